//! What the launches of each stage have in common, made when the first of them is due.

use crate::protocol::AdmittedJob;
use crate::vocabulary::{TaskShape, TaskTemplate};
use std::sync::Arc;

/// By stage.
pub(super) struct Templates(Vec<Option<Arc<TaskTemplate>>>);

impl Templates {
    pub(super) fn new(job: &AdmittedJob) -> Templates {
        Templates(vec![None; job.spec.stages.len()])
    }

    pub(super) fn of(&mut self, job: &AdmittedJob, stage: u32) -> Arc<TaskTemplate> {
        let known = self.0[stage as usize].get_or_insert_with(|| Arc::new(template(job, stage as usize)));
        Arc::clone(known)
    }
}

fn template(job: &AdmittedJob, number: usize) -> TaskTemplate {
    let stage = &job.spec.stages[number];
    TaskTemplate {
        job_name: job.spec.name.clone(),
        stage_name: stage.name.clone(),
        tasks: stage.tasks.len(),
        program: Arc::clone(&stage.program),
        submit_dir: job.spec.submit_dir.clone(),
        shape: Arc::new(TaskShape { resources: job.resources[number], execution: stage.execution }),
        timeout: stage.timeout.or(job.default_timeout),
    }
}
