//! Jobs: their states, their summaries and details.

use super::amounts::{named_seconds, named_totals};
use super::ends::{describe_end, is_explained, task_name};
use super::stages::{attempt_counts, running_for, task_counts};
use super::{Hosts, Job, look};
use crate::api::{
    Exchange, JobDetail, JobState, JobSummary, ManagerPlace, ShareUse, StageDetail, TaskCounts, Timestamp, Waited,
};
use crate::endings;
use crate::http::JobFilter;
use amalgam_core::dispatch;
use amalgam_core::hosting::Roles;
use amalgam_core::job_manager::{JobManager, OpenAttempt};
use amalgam_core::protocol::JobOutcome;
use amalgam_core::vocabulary::{HostId, Instant, JobId, Totals};
use amalgam_core::why::Why;

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

/// What a request for a job waits for, if the job's manager is not connected.
pub fn manager_that_is_away(roles: &Roles, id: JobId, hosts: &Hosts) -> Option<String> {
    let (job, state) = roles.dispatch()?.job(id)?;
    let is_away = job.host != HostId::SERVER && !hosts.contains_key(&job.host);
    (is_away && *state == dispatch::JobState::Started)
        .then(|| format!("job host {}, which is not connected", job.host.0))
}

impl Job<'_> {
    fn managed_by(self, hosts: &Hosts) -> Self {
        let connected = hosts.get(&self.job.host);
        let is_managed = self.job.host == HostId::SERVER || connected.is_some();
        Job { is_managed, host_program: connected.cloned().flatten(), ..self }
    }

    fn manager_place(&self) -> Option<ManagerPlace> {
        let HostId(number) = self.job.host;
        let (connected, program) = (self.is_managed, self.host_program.clone());
        (number != 0).then_some(ManagerPlace { number: number.into(), connected, program })
    }

    pub(super) fn state(&self) -> JobState {
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

    pub(super) fn counts(&self) -> TaskCounts {
        let Some(manager) = self.manager else { return self.counts_without_manager(self.job.spec.task_count()) };
        let mut sum = TaskCounts::default();
        task_counts(manager).iter().for_each(|stage| sum.add(stage));
        sum
    }

    /// Counts of `total` tasks that have never run.
    pub(super) fn counts_without_manager(&self, total: u64) -> TaskCounts {
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
            share: self.share(),
        }
    }

    fn share(&self) -> Option<ShareUse> {
        let (held, within) = self.dispatch.held_within_share(self.job.id).filter(|(held, _)| *held != Totals::ZERO)?;
        let named = |amount: &Totals| named_totals(amount, &self.dispatch.kinds);
        Some(ShareUse { within: named(&within), beyond: named(&held.saturating_sub(&within)) })
    }

    /// The latest expected end of its stages, once all of them are known.
    fn expected_end(&self, stages: &[StageDetail]) -> Option<Timestamp> {
        let open = stages.iter().filter(|stage| stage.tasks.ended() < stage.tasks.total);
        let ends: Option<Vec<Timestamp>> = open.map(|stage| stage.expected_end).collect();
        ends?.into_iter().max_by_key(|end| end.0)
    }
}
