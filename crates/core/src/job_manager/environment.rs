//! The variables that a task finds, as far as the job's side knows them. Device indexes are added by the node,
//! directories by the executor.

use crate::protocol::AdmittedJob;
use crate::vocabulary::{AttemptId, ExecutionType, TaskId};

pub(super) fn variables(job: &AdmittedJob, task: TaskId, attempt: AttemptId) -> Vec<(String, String)> {
    let stage = &job.spec.stages[task.stage as usize];
    let resources = &job.resources[task.stage as usize];
    let cpus = resources.cpu_millis();
    let memory_bytes = u64::from(resources.memory_mib()) << 20;
    let mut variables = vec![
        ("AMALGAM_JOB_ID", task.job.to_string()),
        ("AMALGAM_JOB_NAME", job.spec.name.clone()),
        ("AMALGAM_STAGE", stage.name.clone()),
        ("AMALGAM_TASK_ID", task.to_string()),
        ("AMALGAM_INDEX", stage.tasks.index_value(task.index).to_string()),
        ("AMALGAM_COUNT", stage.tasks.len().to_string()),
        ("AMALGAM_ATTEMPT", attempt.to_string()),
        ("AMALGAM_CPUS", crate::vocabulary::resources::Cores(cpus).to_string()),
        ("AMALGAM_MEM_BYTES", memory_bytes.to_string()),
        ("AMALGAM_EXECUTION", execution(stage.execution).to_owned()),
        ("AMALGAM_SUBMIT_DIR", job.spec.submit_dir.clone()),
        // Libraries that would start a thread per core of the machine start as many as the task has.
        ("OMP_NUM_THREADS", (cpus / 1_000).max(1).to_string()),
    ];
    if let Some(item) = stage.tasks.item(task.index) {
        variables.push(("AMALGAM_ITEM", item.to_owned()));
    }
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn execution(execution: ExecutionType) -> &'static str {
    match execution {
        ExecutionType::Guaranteed => "guaranteed",
        ExecutionType::Opportunistic => "opportunistic",
        ExecutionType::Auto => "auto",
    }
}
