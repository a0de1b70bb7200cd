//! The variables that a task finds, as far as the job's side knows them. Device indexes are added by the node,
//! directories by the executor.

use crate::protocol::AdmittedJob;
use crate::vocabulary::resources::Cores;
use crate::vocabulary::{AttemptId, ExecutionType, TaskId, Variables};
use std::fmt;

pub(super) fn variables(job: &AdmittedJob, task: TaskId, attempt: AttemptId) -> Variables {
    let stage = &job.spec.stages[task.stage as usize];
    let resources = &job.resources[task.stage as usize];
    let cpus = resources.cpu_millis();
    let memory_bytes = u64::from(resources.memory_mib()) << 20;
    // Names and numbers take some 250 bytes.
    let texts = job.spec.name.len() + stage.name.len() + job.spec.submit_dir.len();
    let mut variables = Variables::with_room(16, 320 + texts);
    let mut set = |name, value: &dyn fmt::Display| variables.push(name, value);
    set("AMALGAM_JOB_ID", &task.job);
    set("AMALGAM_JOB_NAME", &job.spec.name);
    set("AMALGAM_STAGE", &stage.name);
    set("AMALGAM_TASK_ID", &task);
    set("AMALGAM_INDEX", &stage.tasks.index_value(task.index));
    set("AMALGAM_COUNT", &stage.tasks.len());
    set("AMALGAM_ATTEMPT", &attempt);
    set("AMALGAM_CPUS", &Cores(cpus));
    set("AMALGAM_MEM_BYTES", &memory_bytes);
    set("AMALGAM_EXECUTION", &execution(stage.execution));
    set("AMALGAM_SUBMIT_DIR", &job.spec.submit_dir);
    // Libraries that would start a thread per core of the machine start as many as the task has.
    set("OMP_NUM_THREADS", &(cpus / 1_000).max(1));
    if let Some(item) = stage.tasks.item(task.index) {
        set("AMALGAM_ITEM", &item);
    }
    variables
}

fn execution(execution: ExecutionType) -> &'static str {
    match execution {
        ExecutionType::Guaranteed => "guaranteed",
        ExecutionType::Opportunistic => "opportunistic",
        ExecutionType::Auto => "auto",
    }
}
