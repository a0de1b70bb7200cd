//! The common part of all launches of a stage, made at the first launch.

use crate::protocol::AdmittedJob;
use crate::vocabulary::{Duration, ExecutionType, TaskShape, TaskTemplate};
use std::sync::Arc;

/// By stage, and by whether its tasks are opportunistic.
pub(super) struct Templates(Vec<[Option<Arc<TaskTemplate>>; 2]>);

impl Templates {
    pub(super) fn new(job: &AdmittedJob) -> Templates {
        Templates(vec![[None, None]; job.spec.stages.len()])
    }

    pub(super) fn of(&mut self, job: &AdmittedJob, stage: u32, execution: ExecutionType) -> Arc<TaskTemplate> {
        let place = usize::from(execution == ExecutionType::Opportunistic);
        let known = &mut self.0[stage as usize][place];
        Arc::clone(known.get_or_insert_with(|| Arc::new(template(job, stage as usize, execution))))
    }
}

/// Maximum run time of an attempt of the stage.
pub(super) fn timeout(job: &AdmittedJob, stage: usize) -> Option<Duration> {
    job.spec.stages[stage].timeout.or(job.default_timeout)
}

fn template(job: &AdmittedJob, number: usize, execution: ExecutionType) -> TaskTemplate {
    let stage = &job.spec.stages[number];
    TaskTemplate {
        job_name: job.spec.name.clone(),
        stage_name: stage.name.clone(),
        tasks: stage.tasks.len(),
        program: Arc::clone(&stage.program),
        submit_dir: job.spec.submit_dir.clone(),
        shape: Arc::new(TaskShape { resources: job.resources[number], execution }),
        timeout: timeout(job, number),
        anywhere: stage.constraints.is_empty() && job.near[number].is_empty() && !stage.has_inputs(),
        outputs: stage.outputs.clone(),
        keeps_outputs: !job
            .spec
            .stages
            .iter()
            .flat_map(|other| &other.inputs)
            .any(|input| input.stage as usize == number),
    }
}
