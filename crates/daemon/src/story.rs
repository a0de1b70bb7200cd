//! The story of a job, with the names that its user gave.

use crate::api::{AllocationParts, StoryLine, Timestamp};
use crate::endings;
use crate::http::StoryFilter;
use crate::views::task_name;
use amalgam_core::dispatch::{JobEnd, JobState};
use amalgam_core::hosting::{Fact, Roles};
use amalgam_core::protocol::{AdmittedJob, JobOutcome};
use amalgam_core::story;
use amalgam_core::vocabulary::{AllocationTime, Federation, GlobalId, JobId, Kinds, NodeId, TaskId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The names that the lines use.
pub struct JobNames {
    job: Arc<AdmittedJob>,
    nodes: BTreeMap<NodeId, String>,
    /// The federation and this global master, if this process is one.
    federation: Option<(Federation, GlobalId)>,
    kinds: Kinds,
    /// The dependency that ended the job, and its outcome.
    dependency: Option<(JobId, String)>,
    /// Whether tasks are guaranteed or opportunistic under the preset.
    reports_guarantees: bool,
}

impl JobNames {
    pub fn of(roles: &Roles, job: JobId) -> Option<JobNames> {
        let dispatch = roles.dispatch()?;
        let nodes = dispatch.names.by_number().map(|(node, name)| (node, name.to_owned())).collect();
        let preset = roles.preset();
        let (admitted, state) = dispatch.job(job)?;
        let dependency = match state {
            JobState::Ended(JobEnd { outcome: JobOutcome::DependencyFailed { after }, .. }) => Some(*after),
            _ => None,
        };
        let reports_guarantees = preset.has_kinds() || preset.entitled().is_some();
        Some(JobNames {
            job: Arc::clone(admitted),
            dependency: dependency.map(|after| (after, endings::of_dependency(Some(dispatch), after))),
            nodes,
            federation: roles.global.as_ref().map(|global| (global.federation(), global.own())),
            kinds: dispatch.kinds.clone(),
            reports_guarantees,
        })
    }

    pub(crate) fn plain(&self, node: NodeId) -> String {
        self.nodes.get(&node).cloned().unwrap_or_else(|| node.to_string())
    }

    pub(crate) fn stage(&self, stage: u32) -> &str {
        self.job.spec.stages.get(stage as usize).map_or("?", |stage| &stage.name)
    }
}

impl story::Names for JobNames {
    fn task(&self, task: TaskId) -> String {
        match self.job.spec.stages.get(task.stage as usize) {
            Some(stage) => task_name(stage, task.index),
            None => task.to_string(),
        }
    }

    fn node(&self, node: NodeId) -> String {
        let name = self.plain(node);
        match self.federation {
            Some((federation, _)) => format!("{name} of {}", federation.cluster_of(node)),
            None => name,
        }
    }

    fn stage(&self, _: JobId, stage: u32) -> String {
        self.stage(stage).to_owned()
    }

    fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    fn partition(&self, node: NodeId) -> String {
        let Some((federation, own)) = self.federation else { return String::new() };
        match federation.internal_to(node) {
            whose if whose == own => String::new(),
            whose => format!(", which is in the partition of {whose},"),
        }
    }

    fn dependency(&self, after: JobId) -> String {
        match &self.dependency {
            Some((job, text)) if *job == after => text.clone(),
            _ => endings::of_dependency(None, after),
        }
    }

    fn reports_guarantees(&self) -> bool {
        self.reports_guarantees
    }
}

/// The line that a fact adds to the story of a job or of some of its tasks; `None` if it adds none.
pub fn story_line(sequence: u64, at: u64, fact: &Fact, of: StoryFilter, names: &JobNames) -> Option<StoryLine> {
    let line = match fact {
        Fact::Change(change) => story::of_change(change, names)?,
        Fact::Record(record) => story::of_record(record, names)?,
    };
    if line.task.is_some_and(|task| !of.admits(task)) {
        return None;
    }
    Some(StoryLine {
        sequence,
        at: Timestamp(at),
        kind: line.kind.name().to_owned(),
        text: line.text,
        task: line.task.map(|task| task.to_string()),
        attempt: line.attempt.map(|attempt| attempt.to_string()),
        node: line.node.map(|node| names.plain(node)),
        allocation: line.allocation.as_ref().map(allocation_parts),
    })
}

fn allocation_parts(time: &AllocationTime) -> AllocationParts {
    let AllocationTime { queue, processing, communication, node } = time;
    AllocationParts {
        queue: queue.as_secs_f64(),
        processing: processing.as_secs_f64(),
        communication: communication.as_secs_f64(),
        node: node.as_secs_f64(),
    }
}
