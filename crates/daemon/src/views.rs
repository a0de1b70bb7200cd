//! Converts the state of the roles to the data of the public interface.

use crate::api::{
    AttemptCounts, ChosenCounts, ClusterSummary, ClusterView, Exchange, Guarantee, JobDetail, JobState, JobSummary,
    ManagerPlace, MeanOf, NodeDetail, NodeDoubt, NodeState, NodeSummary, QueueSummary, RunningAttempt, StageDetail,
    TaskCounts, TaskState, TaskSummary, Timestamp, Waited,
};
use crate::endings;
use crate::http::{JobFilter, TaskFilter};
use amalgam_core::dispatch::{self, Dispatcher, QueueStatus};
use amalgam_core::global_master::BelievedNode;
use amalgam_core::hosting::Roles;
use amalgam_core::job_manager::{JobManager, OpenAttempt};
use amalgam_core::master::NodeStatus;
use amalgam_core::progress::{self, Estimate, EstimateSource, Stage};
use amalgam_core::protocol::{AdmittedJob, JobOutcome};
use amalgam_core::scheduling::NodeState as Presence;
use amalgam_core::vocabulary::resources::{WIDTH, is_in_thousandths};
use amalgam_core::vocabulary::{
    Attributes, ByteString, Chosen, ClusterId, Duration, EndReason, HostId, Instant, JobId, Kinds, NodeId, QueueId,
    ResourceTime, Resources, Seat, Spans, StageSpec, TaskId, Totals,
};
use amalgam_core::why::{Why, counted};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of tasks that one page examines. A filter that few tasks match may need several pages.
const LOOKED_AT: u32 = 100_000;

/// A job with its manager at one time.
struct Job<'a> {
    job: &'a AdmittedJob,
    state: &'a dispatch::JobState,
    manager: Option<&'a JobManager>,
    dispatch: &'a Dispatcher,
    now: Instant,
    /// Whether the job host of its manager is connected. Always true for the server's own managers.
    is_managed: bool,
    /// Reasons of the master, then of the job manager. They are expensive to compute.
    explained: OnceCell<Vec<Why>>,
}

fn look(roles: &Roles, id: JobId, now: Instant) -> Option<Job<'_>> {
    let dispatch = roles.dispatch()?;
    let (job, state) = dispatch.job(id)?;
    let (manager, is_managed) = (roles.jobs.get(&id).map(Box::as_ref), true);
    Some(Job { job, state, manager, dispatch, now, is_managed, explained: OnceCell::new() })
}

/// The connected job hosts.
pub type Hosts = [HostId];

// ---- jobs ----------------------------------------------------------------------------------------------------------

pub fn owner(roles: &Roles, id: JobId) -> Option<String> {
    Some(roles.dispatch()?.job(id)?.0.spec.user.clone())
}

/// Up to `limit` jobs with ids below `before`, the newest first, and the `before` of the next page.
pub fn jobs(
    roles: &Roles,
    filter: &JobFilter,
    before: Option<JobId>,
    limit: usize,
    hosts: &Hosts,
    now: Instant,
) -> (Vec<JobSummary>, Option<JobId>) {
    let Some(dispatch) = roles.dispatch() else { return (Vec::new(), None) };
    let mut found = Vec::new();
    for (job, _) in dispatch.jobs_below(before).rev() {
        let Some(look) = look(roles, job.id, now) else { continue };
        let look = look.managed_by(hosts);
        if !filter.has_state(look.state(), look.is_held()) {
            continue;
        }
        let summary = look.summary();
        if filter.admits(&summary) {
            if found.len() == limit {
                let next = found.last().map(|last: &JobSummary| JobId(last.id));
                return (found, next);
            }
            found.push(summary);
        }
    }
    (found, None)
}

pub fn job(roles: &Roles, id: JobId, hosts: &Hosts, now: Instant) -> Option<JobDetail> {
    look(roles, id, now).map(|job| job.managed_by(hosts).detail())
}

pub fn waited(roles: &Roles, id: JobId, now: Instant) -> Option<Waited> {
    let job = look(roles, id, now)?;
    let state = job.state();
    Some(Waited {
        job: id.0,
        state,
        exit_code: job.exit_code(),
        reason: if state.has_ended() { job.end_reason() } else { None },
    })
}

impl Job<'_> {
    fn managed_by(self, hosts: &Hosts) -> Self {
        let is_managed = self.job.host == HostId::SERVER || hosts.contains(&self.job.host);
        Job { is_managed, ..self }
    }

    fn manager_place(&self) -> Option<ManagerPlace> {
        let HostId(number) = self.job.host;
        (number != 0).then_some(ManagerPlace { number: number.into(), connected: self.is_managed })
    }

    fn state(&self) -> JobState {
        match self.state {
            dispatch::JobState::Ended(end) => JobState::of_outcome(end.outcome),
            dispatch::JobState::Pending if self.is_held() => JobState::Held,
            dispatch::JobState::Pending => JobState::Pending,
            dispatch::JobState::Started => {
                let has_room = |open: OpenAttempt| open.booked || open.started_at.is_some();
                match self.manager.is_some_and(|manager| manager.open_attempts().any(has_room)) {
                    true => JobState::Running,
                    false if self.is_held() => JobState::Held,
                    false => JobState::Pending,
                }
            }
        }
    }

    fn is_held(&self) -> bool {
        self.dispatch.is_held(self.job.id) && !matches!(self.state, dispatch::JobState::Ended(_))
    }

    fn explain(&self) -> &[Why] {
        self.explained.get_or_init(|| {
            let mut reasons = self.dispatch.explain(self.job.id);
            if !self.is_managed && *self.state == dispatch::JobState::Started {
                reasons.push(Why::ManagerAway { host: self.job.host });
                return reasons;
            }
            let Some(manager) = self.manager else { return reasons };
            reasons.extend(manager.explain());
            reasons.extend(manager.why_some_delayed(self.now));
            // If all tasks can wait, this reason is more informative than the lack of room.
            let place = if manager.needs_nothing_now() { 0 } else { reasons.len() };
            reasons.splice(place..place, manager.can_wait(self.now));
            reasons
        })
    }

    fn exit_code(&self) -> Option<u8> {
        match self.state {
            dispatch::JobState::Ended(end) => Some(endings::exit_code(end.outcome)),
            _ => None,
        }
    }

    fn end_reason(&self) -> Option<String> {
        let dispatch::JobState::Ended(end) = self.state else { return None };
        let general = endings::reason(Some(self.dispatch), self.job.id, end.outcome);
        if !matches!(end.outcome, JobOutcome::Failed { .. }) {
            return general;
        }
        let failure = self.manager.and_then(|manager| manager.dag().first_failure());
        let Some((stage, index, reason)) = failure else { return general };
        let message = self.manager.and_then(|manager| manager.dag().stage(stage).status(index)?.message);
        let stage = &self.job.spec.stages[stage as usize];
        let which = task_name(stage, index);
        let message = message.filter(|_| !is_explained(&reason));
        let more = message.map(|text| format!(": {}", text.trim_end())).unwrap_or_default();
        let timeout = stage.timeout.or(self.job.default_timeout);
        Some(format!("task {which} {}{more}", describe_end(&reason, timeout)))
    }

    /// The dependency that ended it.
    fn failed_dependency(&self) -> Option<u64> {
        match self.state {
            dispatch::JobState::Ended(end) => match end.outcome {
                JobOutcome::DependencyFailed { after } => Some(after.0),
                _ => None,
            },
            _ => None,
        }
    }

    /// Why no more of its tasks start, the most important reason first.
    fn reasons(&self) -> Vec<String> {
        if let dispatch::JobState::Ended(_) = self.state {
            return Vec::new();
        }
        self.explain().iter().map(|why| self.dispatch.describe_why(why)).collect()
    }

    fn counts(&self) -> TaskCounts {
        let Some(manager) = self.manager else { return self.counts_without_manager(self.job.spec.task_count()) };
        let mut sum = TaskCounts::default();
        task_counts(manager).iter().for_each(|stage| sum.add(stage));
        sum
    }

    /// Counts of `total` tasks that have never run.
    fn counts_without_manager(&self, total: u64) -> TaskCounts {
        let ended = matches!(self.state, dispatch::JobState::Ended(_));
        let (waiting, cancelled) = if ended { (0, total) } else { (total, 0) };
        TaskCounts { total, waiting, cancelled, ..TaskCounts::default() }
    }

    fn summary(&self) -> JobSummary {
        let state = self.state();
        let reason = match state {
            JobState::Running if self.is_managed && !self.is_held() => None,
            JobState::Running => self.reasons().into_iter().next(),
            state if state.has_ended() => self.end_reason(),
            _ => self.reasons().into_iter().next(),
        };
        // Attempts that only wait in nodes' queues have not started.
        let has_started = |manager: &&JobManager| state != JobState::Pending || manager.dag().has_run();
        let started_at = self.manager.filter(has_started).and_then(|manager| manager.dag().first_launch());
        let ended_at = match self.state {
            dispatch::JobState::Ended(end) => Some(end.at.into()),
            _ => None,
        };
        let spent = self.manager.map(|manager| manager.dag().spent()).unwrap_or_default();
        JobSummary {
            id: self.job.id.0,
            name: self.job.spec.name.clone(),
            user: self.job.spec.user.clone(),
            queue: self.dispatch.queue_name(self.job.id).unwrap_or_default().to_owned(),
            preset: self.job.preset.clone(),
            manager: self.manager_place(),
            priority: self.job.spec.priority,
            state,
            held: self.is_held(),
            reason,
            cancelled_by: self.dispatch.cancellation(self.job.id).map(|cancellation| cancellation.by.clone()),
            failed_dependency: self.failed_dependency(),
            submitted_at: self.job.submitted_at.into(),
            started_at: started_at.map(Timestamp::from),
            ended_at,
            tasks: self.counts(),
            wall_seconds: spent.wall.as_secs_f64(),
            cpu_seconds: spent.cpu.as_secs_f64(),
            max_memory_bytes: spent.max_memory_bytes,
            exchange: self.exchange(),
        }
    }

    fn exchange(&self) -> Option<Exchange> {
        let exchange = self.manager?.exchange(self.now)?;
        let kinds = &self.dispatch.kinds;
        Some(Exchange {
            given: named_seconds(&exchange.given, kinds),
            received: named_seconds(&exchange.received, kinds),
            alone_end: exchange.alone.map(Timestamp::from),
        })
    }

    fn detail(&self) -> JobDetail {
        let summary = self.summary();
        let mut reasons = self.reasons();
        let counts = self.manager.map(task_counts);
        let counts_of = |stage: usize| counts.as_ref().map(|counts| counts[stage].clone());
        let ran = self.manager.map(|manager| running_for(manager, self.now)).unwrap_or_default();
        let ran_of = |stage: usize| ran.get(stage).map_or(&[][..], Vec::as_slice);
        let broken = self.broken_by();
        let stages: Vec<StageDetail> = (0..self.job.spec.stages.len())
            .map(|stage| self.stage(stage, counts_of(stage), ran_of(stage), broken.get(stage).copied().flatten()))
            .collect();
        reasons
            .extend(stages.iter().flat_map(|stage| stage.reasons.iter().map(|why| format!("{}: {why}", stage.name))));
        let expected_end = (!summary.state.has_ended()).then(|| self.expected_end(&stages)).flatten();
        JobDetail {
            summary,
            attempts: self.manager.map(attempt_counts).unwrap_or_default(),
            stages,
            reasons,
            after_jobs: self.job.spec.after_jobs.iter().map(|job| job.0).collect(),
            after_jobs_any: self.job.spec.after_jobs_any.iter().map(|job| job.0).collect(),
            submit_dir: self.job.spec.submit_dir.clone(),
            max_fails: self.job.spec.max_fails,
            expected_end,
            exit_code: self.exit_code(),
        }
    }

    /// The latest expected end of its stages, once all of them are known.
    fn expected_end(&self, stages: &[StageDetail]) -> Option<Timestamp> {
        let open = stages.iter().filter(|stage| stage.tasks.ended() < stage.tasks.total);
        let ends: Option<Vec<Timestamp>> = open.map(|stage| stage.expected_end).collect();
        ends?.into_iter().max_by_key(|end| end.0)
    }

    /// For each stage, a failed stage that it depends on, directly or indirectly.
    fn broken_by(&self) -> Vec<Option<u32>> {
        let Some(manager) = self.manager else { return Vec::new() };
        let mut broken: Vec<Option<u32>> = Vec::with_capacity(self.job.spec.stages.len());
        for spec in &self.job.spec.stages {
            let failed = |before: &u32| {
                let stage = manager.dag().stage(*before);
                if stage.failed + stage.cancelled > 0 { Some(*before) } else { broken[*before as usize] }
            };
            broken.push(spec.after.iter().find_map(failed));
        }
        broken
    }

    /// `ran` contains the run times of its running attempts so far; `broken_by` is a failed stage that it depends on.
    fn stage(
        &self,
        number: usize,
        counts: Option<TaskCounts>,
        ran: &[Duration],
        broken_by: Option<u32>,
    ) -> StageDetail {
        let spec = &self.job.spec.stages[number];
        let progress = self.manager.map(|manager| &manager.dag().stages[number]);
        let tasks = counts.unwrap_or_else(|| self.counts_without_manager(spec.tasks.len().into()));
        let name = |stage: &u32| self.job.spec.stages[*stage as usize].name.clone();
        let estimate = progress.map(|stage| &stage.estimate);
        let spent = progress.map(|stage| stage.spent).unwrap_or_default();
        StageDetail {
            name: spec.name.clone(),
            after: spec.after.iter().map(name).collect(),
            command: spec.program.command.clone(),
            rate: progress.and_then(|stage| rate(stage, &tasks, self.now)),
            mean_seconds: estimate.and_then(Estimate::expected).map(Duration::as_secs_f64),
            mean_of: estimate.and_then(Estimate::source).map(mean_of),
            p50_seconds: estimate.and_then(|estimate| estimate.percentile(50)).map(Duration::as_secs_f64),
            expected_end: estimate
                .and_then(Estimate::expected)
                .and_then(|mean| expected_end(mean, ran, tasks.waiting + tasks.queued, self.now)),
            reasons: progress.map(|stage| self.stage_reasons(number, stage, broken_by)).unwrap_or_default(),
            resources: named(&self.job.resources[number], &self.dispatch.kinds),
            constraints: spec.constraints.iter().map(ToString::to_string).collect(),
            retries: spec.retries,
            retry_delay_seconds: spec.first_retry_delay().as_secs_f64(),
            gang: spec.gang,
            at_once: spec.at_once,
            priority: spec.priority_in(&self.job.spec),
            timeout_seconds: spec.timeout.or(self.job.default_timeout).map(Duration::as_secs_f64),
            wall_seconds: spent.wall.as_secs_f64(),
            cpu_seconds: spent.cpu.as_secs_f64(),
            max_memory_bytes: spent.max_memory_bytes,
            dropped_bytes: progress.map_or(0, |stage| stage.dropped_bytes),
            output_unwritten: progress.and_then(Stage::why_output_unwritten).map(str::to_owned),
            tasks,
        }
    }

    fn stage_reasons(&self, number: usize, stage: &Stage, broken_by: Option<u32>) -> Vec<String> {
        if stage.abandoned && stage.waiting() > 0 {
            let who = if stage.waiting() < stage.total { "the rest " } else { "" };
            return vec![format!("{who}never runs: {}", self.why_abandoned(number, broken_by))];
        }
        if stage.inputs_missing == 0 || stage.waiting() == 0 {
            return Vec::new();
        }
        let Some(manager) = self.manager else { return Vec::new() };
        let spec = &self.job.spec.stages[number];
        let open = spec.after.iter().filter(|before| !manager.dag().stage(**before).is_complete());
        let stages = open.map(|before| self.job.spec.stages[*before as usize].name.clone()).collect();
        vec![self.dispatch.describe_why(&Why::AfterStages { stages })]
    }
}

impl Job<'_> {
    fn why_abandoned(&self, number: usize, broken_by: Option<u32>) -> String {
        if let Some(cancellation) = self.dispatch.cancellation(self.job.id) {
            return format!("the job was cancelled by {} at {}", cancellation.by, Timestamp::from(cancellation.at));
        }
        if let Some(before) = broken_by {
            let spec = &self.job.spec.stages[before as usize];
            let failure = self.manager.and_then(|manager| manager.dag().stage(before).first_failure());
            let timeout = spec.timeout.or(self.job.default_timeout);
            let how = match failure {
                None => "was cancelled in part".to_owned(),
                Some((_, reason)) if spec.tasks.len() == 1 => format!("failed ({})", describe_end(&reason, timeout)),
                Some((place, reason)) => {
                    format!("failed ({} {})", task_name(spec, place), describe_end(&reason, timeout))
                }
            };
            return format!("its dependency stage {} {how}", spec.name);
        }
        let failed = self.manager.map_or(0, |manager| manager.dag().failed_tasks());
        match self.job.spec.max_fails {
            Some(most) if failed > u64::from(most) => {
                format!("{} failed, and the job allows {most}", counted(failed, "task"))
            }
            _ if self.job.spec.stages[number].gang => "its tasks start together, and one of them failed".to_owned(),
            _ => "the job was cancelled".to_owned(),
        }
    }
}

/// Task counts of a job by stage. Tasks whose processes have not started are queued, even if they wait at a node.
fn task_counts(manager: &JobManager) -> Vec<TaskCounts> {
    let mut counts: Vec<TaskCounts> = manager.dag().stages.iter().map(stage_counts).collect();
    for open in manager.open_attempts().filter(|open| open.started_at.is_none()) {
        let stage = &mut counts[open.task.stage as usize];
        stage.running -= 1;
        stage.queued += 1;
    }
    counts
}

/// Task counts from the DAG, in which launched tasks count as running.
fn stage_counts(stage: &Stage) -> TaskCounts {
    let waiting = u64::from(stage.waiting());
    let mut counts = TaskCounts {
        total: u64::from(stage.total),
        running: u64::from(stage.running),
        succeeded: u64::from(stage.succeeded),
        failed: u64::from(stage.failed),
        cancelled: u64::from(stage.cancelled),
        ..TaskCounts::default()
    };
    match (stage.abandoned, stage.inputs_missing) {
        (true, _) => counts.cancelled += waiting,
        (false, 0) => counts.queued = waiting,
        (false, _) => counts.waiting = waiting,
    }
    counts
}

/// Attempts of a job by type and state.
pub fn attempt_counts(manager: &JobManager) -> AttemptCounts {
    let mut counts = AttemptCounts::default();
    for OpenAttempt { opportunistic, started_at, .. } in manager.open_attempts() {
        match (started_at, opportunistic) {
            (None, _) => counts.at_nodes += 1,
            (Some(_), false) => counts.guaranteed += 1,
            (Some(_), true) => counts.opportunistic += 1,
        }
    }
    for stage in &manager.dag().stages {
        counts.preempted += u64::from(stage.preempted);
        counts.shed += u64::from(stage.shed);
    }
    counts
}

fn rate(stage: &Stage, tasks: &TaskCounts, now: Instant) -> Option<f64> {
    let seconds = now.since(stage.first_launch?).as_secs_f64();
    let ended = tasks.succeeded + tasks.failed;
    (ended > 0 && seconds > 0.0 && tasks.running > 0).then(|| ended as f64 / seconds)
}

fn mean_of(source: EstimateSource) -> MeanOf {
    match source {
        EstimateSource::FinishedTasks => MeanOf::FinishedTasks,
        EstimateSource::JobFile => MeanOf::JobFile,
        EstimateSource::EarlierRuns => MeanOf::EarlierRuns,
    }
}

/// For each stage, the run times of its running attempts so far.
fn running_for(manager: &JobManager, now: Instant) -> Vec<Vec<Duration>> {
    let mut stages = vec![Vec::new(); manager.dag().stages.len()];
    for OpenAttempt { task, started_at, .. } in manager.open_attempts() {
        stages[task.stage as usize].extend(started_at.map(|at| now.since(at)));
    }
    stages
}

/// The end of a stage if each of its tasks takes `mean` in total, and waiting tasks start as running ones end. A
/// running task that has exceeded `mean` is assumed to end now.
fn expected_end(mean: Duration, ran: &[Duration], waiting: u64, now: Instant) -> Option<Timestamp> {
    let mut left: Vec<u64> = ran.iter().map(|ran| mean.0.saturating_sub(ran.0)).collect();
    left.sort_unstable();
    let places = left.len() as u64;
    let rounds = waiting.checked_div(places)?;
    let last = match waiting % places {
        0 => left.last()?.saturating_add(mean.0.saturating_mul(rounds)),
        rest => left[rest as usize - 1].saturating_add(mean.0.saturating_mul(rounds + 1)),
    };
    Some(Timestamp(now.0.saturating_add(last)))
}

// ---- tasks ---------------------------------------------------------------------------------------------------------

/// Tasks, and the (stage, position) at which the next page starts.
pub type TasksFound = (Vec<TaskSummary>, Option<(u32, u32)>);

/// Tasks from (stage, position) on.
pub fn tasks(
    roles: &Roles,
    id: JobId,
    filter: &TaskFilter,
    from: (u32, u32),
    limit: usize,
    now: Instant,
) -> Option<TasksFound> {
    let job = look(roles, id, now)?;
    let mut found = Vec::new();
    let mut looked_at = 0;
    let (mut stage, mut index) = from;
    if let (Some(only), Some(position)) = (filter.stage, filter.index) {
        (stage, index) = (stage.max(only), index.max(position));
    }
    while let Some(spec) = job.job.spec.stages.get(stage as usize) {
        let wanted = filter.stage.is_none_or(|only| only == stage);
        if !wanted || index >= spec.tasks.len() {
            (stage, index) = (stage + 1, 0);
            continue;
        }
        if found.len() == limit || looked_at == LOOKED_AT {
            return Some((found, Some((stage, index))));
        }
        looked_at += 1;
        let summary = job.task(stage, index);
        if filter.admits(TaskId { job: id, stage, index }, summary.state) {
            found.push(summary);
        }
        index += 1;
        if filter.index.is_some() {
            (stage, index) = (stage + 1, filter.index.unwrap_or(0));
        }
    }
    Some((found, None))
}

impl Job<'_> {
    fn task(&self, stage: u32, index: u32) -> TaskSummary {
        let spec = &self.job.spec.stages[stage as usize];
        let progress = self.manager.map(|manager| manager.dag().stage(stage));
        let status = progress.and_then(|progress| progress.status(index));
        let record = status.as_ref().and_then(|status| status.record);
        let task = TaskId { job: self.job.id, stage, index };
        let launched = status.as_ref().is_some_and(|status| status.state == progress::TaskState::Running);
        let attempt = record.map(|record| record.attempt(self.job.id));
        let ended = record.filter(|_| !launched);
        let started_at = match (launched, ended) {
            (true, _) => attempt.and_then(|attempt| self.manager?.started_at(attempt)),
            (false, Some(record)) => Some(record.at.before(record.wall)),
            (false, None) => None,
        };
        let state = match status.as_ref().map(|status| status.state) {
            Some(progress::TaskState::Waiting) if progress.is_some_and(|stage| stage.inputs_missing == 0) => {
                TaskState::Queued
            }
            Some(progress::TaskState::Waiting) => TaskState::Waiting,
            Some(progress::TaskState::Running) if started_at.is_none() => TaskState::Queued,
            Some(progress::TaskState::Running) => TaskState::Running,
            Some(progress::TaskState::Succeeded) => TaskState::Succeeded,
            Some(progress::TaskState::Failed) => TaskState::Failed,
            Some(progress::TaskState::Cancelled) => TaskState::Cancelled,
            None if matches!(self.state, dispatch::JobState::Ended(_)) => TaskState::Cancelled,
            None => TaskState::Waiting,
        };
        let can_wait = self.manager.filter(|_| state == TaskState::Queued && !launched);
        let can_wait = can_wait.and_then(|manager| manager.task_can_wait(stage, index, self.now));
        // While its first attempt runs, no usage is known.
        let has_ended = ended.is_some() || record.is_some_and(|record| record.attempts > 1);
        let spent = self.manager.filter(|_| has_ended).map(|manager| manager.dag().spent_by(stage, index));
        let retry_delays = self.manager.and_then(|manager| manager.why_delayed(stage, index, self.now));
        let retry_delays =
            retry_delays.filter(|_| state == TaskState::Queued).map(|why| self.dispatch.describe_why(&why));
        let reason = status.as_ref().and_then(|status| status.reason.as_ref());
        let message = status.as_ref().and_then(|status| status.message.as_ref());
        TaskSummary {
            task: task.to_string(),
            stage: spec.name.clone(),
            index,
            value: spec.tasks.index_value(index),
            item: spec.tasks.item(index).map(ByteString::from),
            state,
            node: record.map(|record| self.dispatch.names.of(record.node).unwrap_or_default().to_owned()),
            attempt: attempt.map(|attempt| attempt.to_string()),
            attempts: record.map_or(0, |record| u32::from(record.attempts)),
            exit_code: reason.map(EndReason::exit_code),
            reason: reason
                .filter(|reason| !reason.is_success())
                .map(|reason| task_reason(reason, message, spec.timeout.or(self.job.default_timeout)))
                .map(|reason| retry_delays.map_or(reason.clone(), |retry_delays| format!("{reason}; {retry_delays}")))
                .or_else(|| can_wait.map(|why| self.dispatch.describe_why(&why))),
            started_at: started_at.map(Timestamp::from),
            ended_at: ended.map(|record| record.at.into()),
            wall_seconds: spent.map(|spent| spent.wall.as_secs_f64()),
            cpu_seconds: spent.map(|spent| spent.cpu.as_secs_f64()),
            max_memory_bytes: spent.map(|spent| spent.max_memory_bytes),
        }
    }
}

/// Counts these tasks by state. Tasks that the job does not have are not counted.
pub fn count_chosen(roles: &Roles, id: JobId, chosen: &Chosen) -> ChosenCounts {
    let mut sum = ChosenCounts::default();
    let Some((job, state)) = roles.dispatch().and_then(|dispatch| dispatch.job(id)) else { return sum };
    let manager = roles.jobs.get(&id);
    for (stage, spans) in &chosen.0 {
        let Some(spec) = job.spec.stages.get(*stage as usize) else { continue };
        let Some(progress) = manager.map(|manager| manager.dag().stage(*stage)) else {
            let tasks = Spans::below(spec.tasks.len()).take_all(spans).len();
            let has_ended = matches!(state, dispatch::JobState::Ended(_));
            *(if has_ended { &mut sum.cancelled } else { &mut sum.waiting }) += tasks;
            continue;
        };
        let counts = progress.count_chosen(spans);
        sum.waiting += counts.waiting;
        sum.held += counts.held;
        sum.running += counts.running;
        sum.succeeded += counts.succeeded;
        sum.failed += counts.failed;
        sum.cancelled += counts.cancelled;
    }
    sum
}

/// The displayed name of a task: its place as in selectors, and its value if that is another number.
pub fn task_name(stage: &StageSpec, place: u32) -> String {
    let value = stage.tasks.index_value(place);
    match &stage.name {
        name if stage.tasks.len() == 1 => name.clone(),
        name if value == u64::from(place) => format!("{name}/{place}"),
        name => format!("{name}/{place} (value {value})"),
    }
}

/// Whether the reason contains its own explanation.
fn is_explained(reason: &EndReason) -> bool {
    use EndReason::{LaunchFailed, NoInput, NoOutput, NodeFault, Withdrawn};
    matches!(reason, LaunchFailed(_) | NodeFault(_) | NoInput(_) | NoOutput(_) | Withdrawn(_))
}

fn task_reason(reason: &EndReason, message: Option<&String>, timeout: Option<Duration>) -> String {
    let general = with_limit(reason, timeout);
    match message {
        Some(message) if !is_explained(reason) => format!("{general}: {}", message.trim_end()),
        _ => general,
    }
}

fn describe_end(reason: &EndReason, timeout: Option<Duration>) -> String {
    match reason {
        EndReason::OutOfMemory => "ran out of memory".to_owned(),
        EndReason::Signal(signal) => format!("was killed by signal {signal}"),
        other => with_limit(other, timeout),
    }
}

fn with_limit(reason: &EndReason, timeout: Option<Duration>) -> String {
    match (reason, timeout) {
        (EndReason::Timeout, Some(timeout)) => format!("{reason} after {timeout}"),
        _ => reason.to_string(),
    }
}

// ---- nodes, queues, cluster ----------------------------------------------------------------------------------------

pub fn nodes(roles: &Roles, now: Instant) -> Vec<NodeSummary> {
    if let Some(global) = &roles.global {
        let kinds = &global.dispatch().kinds;
        return global.believed_nodes(now).iter().map(|node| believed_summary(node, kinds)).collect();
    }
    let Some(master) = &roles.master else { return Vec::new() };
    let unbooked = unbooked(roles);
    let cluster = own_cluster(roles);
    let summary = |status: &NodeStatus| NodeSummary {
        cluster,
        ..node_summary(status, unbooked.get(&status.node), master.kinds())
    };
    master.node_statuses(now).iter().map(summary).collect()
}

/// The cluster of this process's master, in a federation.
fn own_cluster(roles: &Roles) -> Option<u32> {
    match roles.seat() {
        Some(Seat::Cluster(_, cluster)) => Some(cluster.0.into()),
        _ => None,
    }
}

pub fn node(roles: &Roles, node: NodeId, now: Instant) -> Option<NodeDetail> {
    if let Some(global) = &roles.global {
        let believed = global.believed_nodes(now).into_iter().find(|believed| believed.node == node)?;
        return Some(NodeDetail {
            summary: believed_summary(&believed, &global.dispatch().kinds),
            attributes: named_attributes(&believed.attributes),
            enforcement: format!(
                "known only to the master of {}, like attempts of other global masters",
                believed.cluster
            ),
            notes: Vec::new(),
            paused: None,
            pause_left_seconds: None,
            attempts: attempts_at(roles, node, now),
        });
    }
    let master = roles.master.as_ref()?;
    let status = master.node_statuses(now).into_iter().find(|status| status.node == node)?;
    let mut enforcement = status.enforcement.clone();
    let mechanism = if enforcement.is_empty() { String::new() } else { enforcement.remove(0) };
    let summary = node_summary(&status, unbooked(roles).get(&node), master.kinds());
    Some(NodeDetail {
        summary: NodeSummary { cluster: own_cluster(roles), ..summary },
        attributes: named_attributes(&status.attributes),
        enforcement: mechanism,
        notes: enforcement,
        paused: status.paused.as_ref().map(|pause| pause.why.clone()),
        pause_left_seconds: status.paused.as_ref().map(|pause| pause.left.as_secs_f64()),
        attempts: attempts_at(roles, node, now),
    })
}

fn named_attributes(attributes: &Attributes) -> BTreeMap<String, String> {
    attributes.iter().map(|pair| (pair.name.clone(), pair.value.clone())).collect()
}

fn attempts_at(roles: &Roles, node: NodeId, now: Instant) -> Vec<RunningAttempt> {
    let open = roles.jobs.values().flat_map(|manager| manager.open_attempts());
    open.filter(|open| open.node == node).map(|open| running_attempt(&open, now)).collect()
}

/// A node in the view of a global master. It was last heard when its cluster's master sent the last report.
fn believed_summary(node: &BelievedNode, kinds: &Kinds) -> NodeSummary {
    let state = match node.state {
        Presence::Up if node.is_open => NodeState::Up,
        Presence::Up => NodeState::Closed,
        Presence::Unreachable | Presence::Expected => NodeState::Unreachable,
        Presence::Lost => NodeState::Lost,
    };
    NodeSummary {
        id: node.node.0,
        name: node.name.clone(),
        cluster: Some(node.cluster.0.into()),
        state,
        capacity: named(&node.capacity, kinds),
        free: named(&node.free, kinds),
        running: node.bookings,
        last_heard_seconds: node.age.map(Duration::as_secs_f64),
        ..NodeSummary::default()
    }
}

fn running_attempt(open: &OpenAttempt, now: Instant) -> RunningAttempt {
    RunningAttempt {
        attempt: open.attempt.to_string(),
        task: open.task.to_string(),
        guarantee: if open.opportunistic { Guarantee::Opportunistic } else { Guarantee::Guaranteed },
        waiting: open.started_at.is_none(),
        running_seconds: open.started_at.map_or(0.0, |at| now.since(at).as_secs_f64()),
    }
}

/// A node's attempts without booked resources: only their job managers know them.
#[derive(Clone, Copy, Default)]
struct AtNode {
    guaranteed: Tally,
    opportunistic: Tally,
}

#[derive(Clone, Copy, Default)]
struct Tally {
    running: u32,
    waiting: u32,
    used: Totals,
}

fn unbooked(roles: &Roles) -> BTreeMap<NodeId, AtNode> {
    let mut nodes: BTreeMap<NodeId, AtNode> = BTreeMap::new();
    for manager in roles.jobs.values() {
        for open in manager.open_attempts().filter(|open| !open.booked) {
            let at = nodes.entry(open.node).or_default();
            let tally = if open.opportunistic { &mut at.opportunistic } else { &mut at.guaranteed };
            if open.started_at.is_some() {
                tally.running += 1;
                tally.used.add(&manager.job().resources[open.task.stage as usize]);
            } else {
                tally.waiting += 1;
            }
        }
    }
    nodes
}

fn node_summary(status: &NodeStatus, unbooked: Option<&AtNode>, kinds: &Kinds) -> NodeSummary {
    let AtNode { guaranteed, opportunistic } = unbooked.copied().unwrap_or_default();
    let mut free = Totals::ZERO;
    free.add(&status.free);
    NodeSummary {
        id: status.node.0,
        name: status.name.clone(),
        cluster: None,
        state: node_state(status),
        capacity: named(&status.capacity, kinds),
        free: named_totals(&free.saturating_sub(&guaranteed.used), kinds),
        running: status.bookings + guaranteed.running,
        opportunistic: opportunistic.running,
        opportunistic_waiting: opportunistic.waiting,
        opportunistic_used: named_totals(&opportunistic.used, kinds),
        last_heard_seconds: status.silent_for.map(Duration::as_secs_f64),
        unheard_since: status.unheard_since.map(Timestamp::from),
        doubt: status.doubt.map(|doubt| NodeDoubt {
            success: f64::from(doubt.success) / 1e6,
            failures: doubt.failures,
            since_seconds: doubt.since.as_secs_f64(),
            avoided: status.is_avoided,
        }),
    }
}

pub fn node_state(status: &NodeStatus) -> NodeState {
    match status.state {
        Presence::Lost => NodeState::Lost,
        Presence::Unreachable | Presence::Expected => NodeState::Unreachable,
        Presence::Up if status.drained && status.bookings > 0 => NodeState::Draining,
        Presence::Up if status.drained => NodeState::Drained,
        Presence::Up if status.paused.is_some() => NodeState::Paused,
        Presence::Up => NodeState::Up,
    }
}

pub fn queues(roles: &Roles, now: Instant) -> Vec<QueueSummary> {
    let Some(dispatch) = roles.dispatch() else { return Vec::new() };
    let mut work: BTreeMap<QueueId, QueueWork> = BTreeMap::new();
    for (id, manager) in &roles.jobs {
        let Some(queue) = dispatch.queue_of(*id) else { continue };
        let entry = work.entry(queue).or_default();
        let unbooked = |open: &OpenAttempt| !open.booked && !open.opportunistic && open.started_at.is_some();
        manager.open_attempts().filter(unbooked).for_each(|open| {
            entry.unbooked.add(&manager.job().resources[open.task.stage as usize]);
        });
        entry.attempts.add(&attempt_counts(manager));
        if let Some(exchange) = manager.exchange(now) {
            entry.given.add(&exchange.given);
            entry.received.add(&exchange.received);
        }
        for stage in task_counts(manager) {
            entry.running += stage.running;
            entry.pending += stage.waiting + stage.queued;
        }
    }
    let mut statuses = dispatch.queue_statuses();
    if work.values().any(|work| work.unbooked != Totals::ZERO) {
        add_unbooked(&mut statuses, &work, dispatch.rooms.capacity());
    }
    let summary = |status: &QueueStatus| queue_summary(status, &dispatch.kinds, work.get(&status.queue));
    let mut summaries: Vec<QueueSummary> = statuses.iter().map(summary).collect();
    // A queue precedes the queues below it, so in reverse order each sum is complete before it is added to the parent.
    for index in (1..summaries.len()).rev() {
        let below = summaries[index].clone();
        if let Some(parent) = summaries[..index].iter_mut().find(|queue| Some(&queue.name) == below.parent.as_ref()) {
            parent.running_jobs += below.running_jobs;
            parent.pending_jobs += below.pending_jobs;
            parent.running_tasks += below.running_tasks;
            parent.pending_tasks += below.pending_tasks;
            parent.attempts.add(&below.attempts);
            add_amounts(&mut parent.given, &below.given);
            add_amounts(&mut parent.received, &below.received);
        }
    }
    summaries
}

/// Adds guaranteed attempts without booked resources to the usage of their queue and the queues above.
fn add_unbooked(statuses: &mut [QueueStatus], work: &BTreeMap<QueueId, QueueWork>, capacity: &Totals) {
    let own = |status: &QueueStatus| work.get(&status.queue).map_or(Totals::ZERO, |work| work.unbooked);
    let mut unbooked: Vec<Totals> = statuses.iter().map(own).collect();
    for index in (0..statuses.len()).rev() {
        if unbooked[index] == Totals::ZERO {
            continue;
        }
        let parent = statuses[index].spec.name.rsplit_once('.').map(|(parent, _)| parent);
        if let Some(parent) = statuses[..index].iter().position(|queue| Some(&*queue.spec.name) == parent) {
            unbooked[parent] = unbooked[parent].zip(&unbooked[index], u64::saturating_add);
        }
        let usage = &mut statuses[index].usage;
        usage.used = usage.used.zip(&unbooked[index], u64::saturating_add);
        usage.dominant_share = usage.used.dominant_share(capacity);
    }
}

/// Totals of the jobs of a queue.
#[derive(Clone, Default)]
struct QueueWork {
    /// Resources of running guaranteed attempts that are not booked.
    unbooked: Totals,
    running: u64,
    pending: u64,
    attempts: AttemptCounts,
    given: ResourceTime,
    received: ResourceTime,
}

fn queue_summary(status: &QueueStatus, kinds: &Kinds, work: Option<&QueueWork>) -> QueueSummary {
    let share = |millionths: u32| f64::from(millionths) / 1e6;
    let QueueWork { running, pending, attempts, given, received, .. } = work.cloned().unwrap_or_default();
    QueueSummary {
        name: status.spec.name.clone(),
        parent: status.spec.name.rsplit_once('.').map(|(parent, _)| parent.to_owned()),
        weight: f64::from(status.spec.weight) / 1e3,
        guaranteed: share(status.spec.guaranteed),
        maximum: share(status.spec.maximum),
        user_limit: share(status.spec.user_limit),
        used: named_totals(&status.usage.used, kinds),
        dominant_share: status.usage.dominant_share as f64 / 1e6,
        running_jobs: u64::from(status.running_jobs),
        pending_jobs: u64::from(status.pending_jobs),
        running_tasks: running,
        pending_tasks: pending,
        attempts,
        given: named_seconds(&given, kinds),
        received: named_seconds(&received, kinds),
    }
}

/// Job hosts in the configuration, and others that have jobs.
fn job_managers(roles: &Roles, hosts: &Hosts) -> Vec<ManagerPlace> {
    let Some(dispatch) = roles.dispatch() else { return Vec::new() };
    let unended = dispatch.jobs_from(JobId(0)).filter(|(_, state)| !matches!(state, dispatch::JobState::Ended(_)));
    let with_jobs = unended.map(|(job, _)| job.host).filter(|host| *host != HostId::SERVER);
    let all: BTreeSet<HostId> = (1..=dispatch.settings.hosts).map(HostId).chain(with_jobs).collect();
    all.into_iter().map(|host| ManagerPlace { number: host.0.into(), connected: hosts.contains(&host) }).collect()
}

/// What a request for a job waits for, if the job's manager is not connected.
pub fn manager_that_is_away(roles: &Roles, id: JobId, hosts: &Hosts) -> Option<String> {
    let (job, state) = roles.dispatch()?.job(id)?;
    let is_away = job.host != HostId::SERVER && !hosts.contains(&job.host);
    (is_away && *state == dispatch::JobState::Started)
        .then(|| format!("job host {}, which is not connected", job.host.0))
}

/// The resources of a node, in the ledger or in a view.
struct Room {
    is_up: bool,
    capacity: Resources,
    free: Resources,
}

fn rooms(roles: &Roles, now: Instant) -> Vec<Room> {
    let room = |state, capacity, free| Room { is_up: state == Presence::Up, capacity, free };
    match (&roles.global, &roles.master) {
        (Some(global), _) => {
            global.believed_nodes(now).iter().map(|node| room(node.state, node.capacity, node.free)).collect()
        }
        (None, Some(master)) => {
            master.node_statuses(now).iter().map(|node| room(node.state, node.capacity, node.free)).collect()
        }
        (None, None) => Vec::new(),
    }
}

/// The clusters of a global master; `connected` are those with a connected master.
fn cluster_views(roles: &Roles, connected: &[ClusterId], now: Instant) -> Vec<ClusterView> {
    let Some(global) = &roles.global else { return Vec::new() };
    let nodes = global.believed_nodes(now);
    let view = |cluster: ClusterId| {
        let of_it = || nodes.iter().filter(|node| node.cluster == cluster);
        ClusterView {
            number: cluster.0.into(),
            connected: connected.contains(&cluster),
            nodes_up: of_it().filter(|node| node.state == Presence::Up).count() as u32,
            nodes_total: of_it().count() as u32,
            told_seconds: of_it().find_map(|node| node.age).map(Duration::as_secs_f64),
        }
    };
    global.federation().clusters().map(view).collect()
}

pub fn cluster(
    roles: &Roles,
    (hosts, clusters): (&Hosts, &[ClusterId]),
    started: Instant,
    ended_lately: f64,
    now: Instant,
) -> Option<ClusterSummary> {
    let dispatch = roles.dispatch()?;
    let rooms = rooms(roles, now);
    let (mut capacity, mut used) = (Totals::ZERO, Totals::ZERO);
    for room in rooms.iter().filter(|room| room.is_up) {
        capacity.add(&room.capacity);
        used.add(&room.capacity.saturating_sub(&room.free));
    }
    let mut opportunistic_used = Totals::ZERO;
    for AtNode { guaranteed, opportunistic } in unbooked(roles).values() {
        (0..WIDTH).for_each(|kind| used.0[kind] += guaranteed.used.0[kind]);
        (0..WIDTH).for_each(|kind| opportunistic_used.0[kind] += opportunistic.used.0[kind]);
    }
    let mut attempts = AttemptCounts::default();
    roles.jobs.values().for_each(|manager| attempts.add(&attempt_counts(manager)));
    let mut jobs: BTreeMap<String, u64> = BTreeMap::new();
    let mut tasks = TaskCounts::default();
    for id in dispatch.jobs_from(JobId(0)).map(|(job, _)| job.id) {
        let Some(job) = look(roles, id, now) else { continue };
        *jobs.entry(job.state().word().to_owned()).or_default() += 1;
        if matches!(job.state, dispatch::JobState::Ended(_)) {
            continue;
        }
        tasks.add(&job.counts());
    }
    Some(ClusterSummary {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        preset: roles.preset().name().to_owned(),
        uptime_seconds: now.since(started).as_secs_f64(),
        job_managers: job_managers(roles, hosts),
        global: roles.global.as_ref().map(|global| global.own().0.into()),
        cluster: own_cluster(roles),
        clusters: cluster_views(roles, clusters, now),
        nodes_up: rooms.iter().filter(|room| room.is_up).count() as u32,
        nodes_total: rooms.len() as u32,
        capacity: named_totals(&capacity, &dispatch.kinds),
        used: named_totals(&used, &dispatch.kinds),
        opportunistic_used: named_totals(&opportunistic_used, &dispatch.kinds),
        jobs,
        tasks,
        attempts,
        tasks_per_second: ended_lately,
        queues: queues(roles, now),
    })
}

/// Amounts by kind, in the units of the kinds. Kinds with the amount 0 are left out, except CPU and memory.
fn named(resources: &Resources, kinds: &Kinds) -> BTreeMap<String, f64> {
    let mut totals = Totals::ZERO;
    totals.add(resources);
    named_totals(&totals, kinds)
}

fn named_totals(totals: &Totals, kinds: &Kinds) -> BTreeMap<String, f64> {
    let amount = |kind: usize| {
        let units = totals.0[kind] as f64;
        if is_in_thousandths(kind) { units / 1e3 } else { units }
    };
    let present = (0..WIDTH).filter(|&kind| totals.0[kind] > 0 || kind <= 1);
    present.filter_map(|kind| Some((kinds.name(kind)?.to_owned(), amount(kind)))).collect()
}

/// Resource-seconds by kind, in the units of the kinds. Kinds with the amount 0 are left out.
fn named_seconds(time: &ResourceTime, kinds: &Kinds) -> BTreeMap<String, f64> {
    let amount = |kind: usize| if is_in_thousandths(kind) { time.seconds(kind) / 1e3 } else { time.seconds(kind) };
    let present = (0..WIDTH).filter(|&kind| time.0[kind] > 0);
    present.filter_map(|kind| Some((kinds.name(kind)?.to_owned(), amount(kind)))).collect()
}

fn add_amounts(sum: &mut BTreeMap<String, f64>, more: &BTreeMap<String, f64>) {
    more.iter().for_each(|(kind, amount)| *sum.entry(kind.clone()).or_default() += amount);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_end_of_a_stage_follows_from_the_remaining_run_times() {
        let seconds = Duration::from_secs;
        let end = |ran: &[u64], waiting: u64| {
            let ran: Vec<Duration> = ran.iter().map(|ran| seconds(*ran)).collect();
            expected_end(seconds(10), &ran, waiting, Instant(5_000_000)).map(|end| (end.0 - 5_000_000) / 1_000_000)
        };
        assert_eq!(end(&[], 3), None, "no task runs");
        assert_eq!(end(&[1], 0), Some(9));
        assert_eq!(end(&[9], 0), Some(1));
        assert_eq!(end(&[2, 9], 0), Some(8), "the last end counts");
        assert_eq!(end(&[25], 0), Some(0), "it is late already");
        assert_eq!(end(&[2, 9], 1), Some(11), "it starts when the first task ends");
        assert_eq!(end(&[2, 9], 2), Some(18));
        assert_eq!(end(&[2, 9], 3), Some(21));
    }
}
