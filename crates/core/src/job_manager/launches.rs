//! What the launches of a job have in common: the template of their stage, its timeout, and the sealer of their tokens.

use super::sealer::Sealer;
use crate::protocol::AdmittedJob;
use crate::vocabulary::{Allocation, Duration, ExecutionType, Generation, NodeId, TaskShape, TaskTemplate, Token};
use std::sync::Arc;

pub(super) struct Launches {
    /// By stage, and by whether its tasks are opportunistic. Made at the first launch.
    templates: Vec<[Option<Arc<TaskTemplate>>; 2]>,
    /// Open attempts may have been launched with another timeout.
    has_new_timeout: bool,
    sealer: Sealer,
}

impl Launches {
    pub(super) fn new(job: &AdmittedJob, sealer: Sealer) -> Launches {
        Launches { templates: no_templates(job), has_new_timeout: false, sealer }
    }

    /// The common part of all launches of a stage.
    pub(super) fn template(&mut self, job: &AdmittedJob, stage: u32, execution: ExecutionType) -> Arc<TaskTemplate> {
        let place = usize::from(execution == ExecutionType::Opportunistic);
        let known = &mut self.templates[stage as usize][place];
        Arc::clone(known.get_or_insert_with(|| Arc::new(template(job, stage as usize, execution))))
    }

    /// The generation of new tokens.
    pub(super) fn generation(&self) -> Generation {
        self.sealer.generation()
    }

    /// New tokens have this generation.
    pub(super) fn set_generation(&mut self, generation: Generation) {
        self.sealer.set_generation(generation);
    }

    /// New tokens have this generation, unless it is earlier than the present one.
    pub(super) fn advance_generation(&mut self, generation: Generation) {
        self.sealer.advance(generation);
    }

    /// A token for an attempt at the node.
    pub(super) fn token(&self, node: NodeId, allocation: &Allocation<'_>) -> Token {
        self.sealer.token(node, allocation)
    }

    /// New launches use the updated job.
    pub(super) fn on_updated(&mut self, before: &AdmittedJob, job: &AdmittedJob) {
        self.templates = no_templates(job);
        let mut stages = 0..job.spec.stages.len();
        self.has_new_timeout |= stages.any(|stage| timeout(before, stage) != timeout(job, stage));
    }

    /// Before the restart, a new timeout may not have reached all nodes. Repeating it has no effect.
    pub(super) fn on_restart(&mut self) {
        self.has_new_timeout = true;
    }

    pub(super) fn has_new_timeout(&self) -> bool {
        self.has_new_timeout
    }
}

fn no_templates(job: &AdmittedJob) -> Vec<[Option<Arc<TaskTemplate>>; 2]> {
    vec![[None, None]; job.spec.stages.len()]
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
        account: job.spec.account.clone(),
    }
}
