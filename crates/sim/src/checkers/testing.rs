//! Happenings and test clusters for the tests of checkers.

use crate::faults::Happening;
use crate::places::ProcessId;
use crate::simulation::Simulation;
use crate::testing::{run, simulation};
use amalgam_core::hosting::Fact;
use amalgam_core::protocol::{AdmittedJob, JobOutcome, Rule};
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{
    AttemptId, EndReason, Ended, Epoch, ExecutionType, GrantId, HostId, Instant, JobId, JobSpec, NodeId, Program,
    QueueId, ResourceSpec, Resources, StageSpec, TaskId, TaskSet, UserId,
};
use std::sync::Arc;

const TASK: TaskId = TaskId { job: JobId(1), stage: 0, index: 0 };

/// One node of two cores, before the first job arrives.
pub fn quiet_world() -> Simulation {
    let mut world = simulation(&[]);
    run(&mut world, 500_000);
    world
}

/// The same node, running two tasks of one core each.
pub fn world_with_a_task() -> Simulation {
    let mut world = simulation(&[]);
    run(&mut world, 2_000_000);
    world
}

pub fn attempt(number: u32) -> AttemptId {
    AttemptId { job: TASK.job, epoch: Epoch(1), number }
}

pub fn task_started(node: usize, attempt: AttemptId, cpu_millis: u32) -> Happening {
    let (resources, execution) = (Resources::new(cpu_millis, 0), ExecutionType::Guaranteed);
    Happening::TaskStarted { node, attempt, task: TASK, resources, execution }
}

pub fn reported(change: Change) -> Happening {
    Happening::Reported(ProcessId::Server, Fact::Change(change))
}

pub fn reported_record(record: Record) -> Happening {
    Happening::Reported(ProcessId::Server, Fact::Record(record))
}

pub fn launched(attempt: AttemptId) -> Happening {
    launched_under(attempt, Some(GrantId::default()))
}

pub fn launched_under(attempt: AttemptId, grant: Option<GrantId>) -> Happening {
    let (node, rule, opportunistic) = (NodeId(0), Rule::Submission, grant.is_none());
    reported(Change::Launched {
        attempt,
        task: TASK,
        node,
        grant,
        opportunistic,
        weight: 1,
        rule,
        passed_over: 0,
        at: Instant(0),
    })
}

pub fn finished(attempt: AttemptId, reason: EndReason, last: bool) -> Happening {
    let ended = Ended::without_run(reason);
    reported(Change::Finished { attempt, task: TASK, node: NodeId(0), ended, last, at: Instant(0) })
}

pub fn ended(outcome: JobOutcome) -> Happening {
    reported(Change::JobEnded { job: TASK.job, outcome, at: Instant(0) })
}

/// A job of one task.
pub fn admitted(execution: ExecutionType) -> Happening {
    let resources = Resources::new(1_000, 0);
    let stage = StageSpec {
        name: "s0".to_owned(),
        tasks: TaskSet::Count(1),
        program: Arc::new(Program::default()),
        resources: ResourceSpec { basic: resources, custom: Vec::new() },
        execution,
        ..StageSpec::default()
    };
    let job = AdmittedJob {
        id: TASK.job,
        spec: Arc::new(JobSpec { stages: vec![stage], ..JobSpec::default() }),
        user: UserId(0),
        queue: QueueId(0),
        resources: vec![resources],
        near: vec![Default::default()],
        places: Vec::new(),
        default_timeout: None,
        recalled: Vec::new(),
        only_guaranteed: false,
        preset: None,
        host: HostId::SERVER,
        submitted_at: Instant(0),
    };
    reported(Change::JobAdmitted { job: Arc::new(job), key: None })
}
