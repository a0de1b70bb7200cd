//! Jobs that start, or start again, across a restart of the server; cases found by chaos tests. A job that waits for
//! its rerun keeps its finished tasks, is not held permanently by a hold from its first run, and does not wait for a
//! forgotten job. If the log ends before a job starts, the job starts after the restart.

use amalgam_core::dispatch::JobState;
use amalgam_core::hosting::{Effects, Envelope, Roles};
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::master::MasterSettings;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{Address, AdmittedJob, JobAction, JobOutcome, Message, Rule, ToMaster};
use amalgam_core::role::{Change, Role};
use amalgam_core::vocabulary::{
    AttemptId, ClientId, EndReason, Ended, Epoch, ExecutionType, GrantId, HostId, Instant, JobId, JobSpec, Key, Mac,
    NodeId, Program, QueueId, ResourceSpec, Resources, Sealing, StageSpec, TaskId, TaskSet, UserId,
};
use std::sync::Arc;

const JOB: JobId = JobId(1);
const NOW: Instant = Instant(9);
const SEALING: Sealing = Sealing { root: Key([1; 32]), mac: Mac::MIXING };

/// A job of two tasks, the second of which failed. The job is held and waits to run that task again.
fn log() -> Vec<Change> {
    let mut log = first_run(Vec::new());
    log.insert(log.len() - 1, Change::JobHeld { job: JOB, held: true });
    log.push(Change::JobReopened { job: JOB, run: 1 });
    log
}

/// The job's first run, which ends in a failure.
fn first_run(after_jobs: Vec<JobId>) -> Vec<Change> {
    let resources = Resources::new(1_000, 0);
    let stage = StageSpec {
        name: "s0".to_owned(),
        tasks: TaskSet::Count(2),
        program: Arc::new(Program { command: vec!["true".into()], ..Program::default() }),
        resources: ResourceSpec { basic: resources, custom: Vec::new() },
        execution: ExecutionType::Guaranteed,
        ..StageSpec::default()
    };
    let job = AdmittedJob {
        id: JOB,
        spec: Arc::new(JobSpec { stages: vec![stage], after_jobs, ..JobSpec::default() }),
        user: UserId(0),
        queue: QueueId(1),
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
    let mut log = vec![Change::JobAdmitted { job: Arc::new(job), key: None }, Change::JobStarted { job: JOB }];
    log.extend(run(0, EndReason::Exit(0)));
    log.extend(run(1, EndReason::Exit(1)));
    log.push(Change::JobEnded { job: JOB, outcome: JobOutcome::Failed { exit_code: 1 }, at: Instant(3) });
    log
}

/// An attempt of the task at `index`, from its launch to its end.
fn run(index: u32, reason: EndReason) -> [Change; 2] {
    let attempt = AttemptId { job: JOB, epoch: Epoch(1), number: index };
    let task = TaskId { job: JOB, stage: 0, index };
    let (node, grant, rule) = (NodeId(0), GrantId::default(), Rule::Submission);
    let ended = Ended::without_run(reason);
    [
        Change::Launched {
            attempt,
            task,
            node,
            grant: Some(grant),
            opportunistic: false,
            weight: 1,
            rule,
            passed_over: 0,
            at: Instant(1),
        },
        Change::Finished { attempt, task, node, ended, last: true, at: Instant(2) },
    ]
}

fn restarted(log: Vec<Change>) -> Roles {
    let (preset, epoch) = (Preset::FIFO, Epoch(2));
    let mut roles = Roles::new(preset, epoch, JobManagerSettings::default(), SEALING);
    roles.recover(MasterSettings::default(), QueueTree::single(), log);
    roles.announce_master(NOW, &mut Effects::default());
    roles
}

fn act(roles: &mut Roles, action: JobAction) {
    let message = Message::ToMaster(ToMaster::Control { job: JOB, action, by: "ada".to_owned() });
    let envelope = Envelope { from: Address::Client(ClientId(0)), to: Address::Master, message };
    roles.deliver(NOW, envelope, &mut Effects::default());
}

#[test]
fn a_restart_between_request_and_rerun_keeps_finished_tasks() {
    let mut roles = restarted(log());
    act(&mut roles, JobAction::Release);
    let stage = roles.jobs[&JOB].dag().stage(0);
    assert_eq!((stage.succeeded, stage.ready()), (1, 1), "only the failed task runs again");
}

#[test]
fn a_job_starts_after_a_restart_if_the_log_ends_just_before_its_start() {
    let mut admitted = first_run(Vec::new());
    admitted.truncate(1);
    let mut reopened = first_run(Vec::new());
    reopened.push(Change::JobReopened { job: JOB, run: 1 });
    for log in [admitted, reopened] {
        let roles = restarted(log);
        let state = roles.master.as_ref().and_then(|master| master.dispatch().job(JOB)).map(|(_, state)| state);
        assert_eq!(state, Some(&JobState::Started));
        assert!(roles.jobs[&JOB].dag().stage(0).ready() > 0);
    }
}

#[test]
fn failed_tasks_run_again_if_the_log_ends_after_the_job_started_again() {
    let mut log = first_run(Vec::new());
    log.extend([Change::JobReopened { job: JOB, run: 1 }, Change::JobStarted { job: JOB }]);
    for log in [log.clone(), [log, vec![Change::Rerun { job: JOB, run: 1, only: None }]].concat()] {
        let roles = restarted(log);
        let stage = roles.jobs[&JOB].dag().stage(0);
        assert_eq!((stage.succeeded, stage.ready()), (1, 1));
    }
}

#[test]
fn a_job_that_was_held_runs_again_once_it_is_released() {
    let mut roles = restarted(log());
    act(&mut roles, JobAction::Release);
    assert!(!roles.jobs[&JOB].describe(NOW).held);
    let open = roles.master.as_ref().map(|master| master.describe(NOW).open_tasks);
    assert_eq!(open, Some(1), "the failed task is asked for");
}

#[test]
fn a_job_that_was_held_when_it_ended_runs_again_on_request() {
    let mut held = first_run(Vec::new());
    held.push(Change::JobHeld { job: JOB, held: true });
    let mut roles = restarted(held);
    act(&mut roles, JobAction::RerunFailed);
    let job = roles.master.as_ref().and_then(|master| master.dispatch().job(JOB)).map(|(_, state)| state.clone());
    assert_eq!(job, Some(JobState::Started));
    assert!(roles.jobs[&JOB].dag().stage(0).ready() > 0);
}

#[test]
fn a_job_whose_dependency_is_forgotten_runs_again_if_it_ever_ran() {
    let forgotten = JobId(7);
    let mut roles = restarted(first_run(vec![forgotten]));
    let snapshot = roles.durable();
    act(&mut roles, JobAction::RerunFailed);
    assert_eq!(
        roles.master.as_ref().and_then(|master| master.dispatch().job(JOB)).map(|(_, state)| state),
        Some(&JobState::Started)
    );
    let mut again = restarted(snapshot);
    act(&mut again, JobAction::RerunFailed);
    assert_eq!(again.jobs[&JOB].dag().stage(0).ready(), 1, "the same from a snapshot");

    let mut never_ran = first_run(vec![forgotten]);
    never_ran.truncate(1);
    never_ran.push(Change::JobEnded {
        job: JOB,
        outcome: JobOutcome::DependencyFailed { after: forgotten },
        at: Instant(3),
    });
    let mut roles = restarted(never_ran);
    act(&mut roles, JobAction::RerunFailed);
    let state = roles.master.as_ref().and_then(|master| master.dispatch().job(JOB)).map(|(_, state)| state.clone());
    assert!(matches!(state, Some(JobState::Ended(_))), "the job stays ended: {state:?}");
}
