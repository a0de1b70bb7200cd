//! What happens to a job after its submission: it starts once nothing prevents it, users control it, it ends and is
//! forgotten.

use super::admission::{Admission, Cancellation, JobState};
use super::turns::Turn;
use super::{Dispatcher, JobEnd, refuse};
use crate::protocol::{AdmittedJob, JobAction, JobOutcome, RefusalKind, ToClient, ToJobHost, ToJobManager};
use crate::role::{Change, Outbox, Record};
use crate::vocabulary::{Chosen, ClientId, Duration, Estimated, HostId, Instant, JobId, NodeId, TaskAction};
use std::sync::Arc;

/// Maximum number of jobs that start or end, and of dependants that are updated, in one event.
const TURNS: usize = 250;
/// The rest follows after the events that have arrived in the meantime.
/// Time between two groups of old jobs that are forgotten.
const PAUSE: Duration = Duration::from_millis(10);
const SOON: Duration = Duration(1);

impl Dispatcher {
    pub(super) fn on_control(
        &mut self,
        now: Instant,
        client: ClientId,
        job: JobId,
        (action, by): (JobAction, String),
        out: &mut Outbox,
    ) {
        let Some(entry) = self.admission.jobs.get(&job) else {
            let message = format!("job {job} not found");
            return refuse(client, RefusalKind::NotFound, &message, "`amalgam list --all` shows the known jobs", out);
        };
        let state = entry.state.clone();
        let refused = match (action, &state) {
            (JobAction::RerunFailed, JobState::Ended(end)) if end.outcome == JobOutcome::Succeeded => {
                Some(("it succeeded: nothing failed", "submit it again to run all of it"))
            }
            (JobAction::RerunFailed, JobState::Pending | JobState::Started) => {
                Some(("it has not ended", "wait for it, or cancel it first"))
            }
            (JobAction::RerunFailed, _) if entry.is_abandoned => {
                Some(("it ended without its manager, and the state of its tasks is not known", "submit it again"))
            }
            (JobAction::Cancel | JobAction::Hold | JobAction::Release | JobAction::Abandon, JobState::Ended(_)) => {
                Some(("it has ended", "`amalgam info` shows how"))
            }
            (JobAction::Abandon, JobState::Started) if entry.job.host == HostId::SERVER => {
                Some(("its manager is in the server", "cancel it"))
            }
            (JobAction::Abandon, JobState::Started) if self.hosts.contains(&entry.job.host) => {
                Some(("its manager is connected", "cancel it without --force"))
            }
            _ => None,
        };
        if let Some((what, remedy)) = refused {
            return refuse(client, RefusalKind::Conflict, &format!("job {job}: {what}"), remedy, out);
        }
        if let Some(after) = self.admission.forgotten_dependency(job).filter(|_| action == JobAction::RerunFailed) {
            let message = format!("job {job}: job {after}, on which it depends, is forgotten");
            return refuse(client, RefusalKind::Conflict, &message, "submit it again", out);
        }
        let is_so = match action {
            JobAction::Hold => entry.held,
            JobAction::Release => !entry.held,
            JobAction::Cancel => entry.cancelled.is_some(),
            JobAction::RerunFailed | JobAction::Abandon => false,
        };
        out.send(client, if is_so { ToClient::AsBefore } else { ToClient::Done });
        if matches!(action, JobAction::Cancel | JobAction::Abandon) && !is_so {
            out.persist(Change::CancelAsked { job, by: by.clone(), at: now });
            self.admission.set_cancelled(job, Cancellation { by, at: now });
        }
        match action {
            JobAction::Cancel | JobAction::Abandon if state == JobState::Pending => {
                self.end(now, job, JobOutcome::Cancelled, out);
                self.take_turns(now, out);
            }
            // Sent again: its manager may not have received it.
            JobAction::Cancel => out.send(job, ToJobManager::Act(JobAction::Cancel)),
            // Running attempts end when their leases expire: their nodes get no messages from the job's manager.
            JobAction::Abandon => {
                out.persist(Change::JobAbandoned { job });
                self.admission.set_abandoned(job);
                self.on_job_ended(now, job, JobOutcome::Cancelled, out);
            }
            JobAction::Hold | JobAction::Release => self.set_held(now, job, action == JobAction::Hold, &state, out),
            JobAction::RerunFailed => self.reopen_for(now, job, None, out),
        }
    }

    fn set_held(&mut self, now: Instant, job: JobId, held: bool, state: &JobState, out: &mut Outbox) {
        if self.admission.jobs[&job].held == held {
            return;
        }
        self.admission.set_held(job, held);
        out.persist(Change::JobHeld { job, held });
        out.record(Record::Held { job, held });
        if *state == JobState::Started {
            out.send(job, ToJobManager::Act(if held { JobAction::Hold } else { JobAction::Release }));
        }
        self.take_turns(now, out);
    }

    /// The job waits to start like any other, and then runs the tasks that had failed, or only these. A hold is
    /// released.
    pub(super) fn reopen_for(&mut self, now: Instant, job: JobId, only: Option<Box<Chosen>>, out: &mut Outbox) {
        let run = self.admission.jobs[&job].run + 1;
        out.persist(Change::JobReopened { job, run });
        self.admission.set_reopened(job, run);
        if let Some(only) = only {
            self.store_request(job, TaskAction::RerunFailed, only, out);
        }
        self.set_held(now, job, false, &JobState::Pending, out);
        self.take_turns(now, out);
    }

    /// The log may end between a change and its consequences: a job could start, since it was admitted or another job
    /// ended, and had not started; or it was started again, and its manager was not notified.
    pub fn on_recovered(&mut self, now: Instant, out: &mut Outbox) {
        if !self.are_kinds_logged && !self.kinds.custom().is_empty() {
            self.are_kinds_logged = true;
            out.persist(Change::KindsNamed { kinds: self.kinds.clone() });
        }
        self.start_again(|_| true, out);
        self.take_turns(now, out);
    }

    /// A job host has connected: messages of an earlier connection may be lost.
    pub fn on_host_connected(&mut self, host: HostId, connection: u64, out: &mut Outbox) {
        self.hosts.insert(host);
        let entries = self.admission.jobs.values().filter(|entry| entry.job.host == host && !entry.is_abandoned);
        let jobs = entries.map(|entry| (entry.job.id, entry.job.submitted_at)).collect();
        out.send(host, ToJobHost::Known { connection, kinds: self.kinds.clone(), jobs });
        self.start_again(|job| job.host == host, out);
    }

    /// Sends the managers of these jobs their state again, if the jobs have started.
    fn start_again(&mut self, are_meant: impl Fn(&AdmittedJob) -> bool, out: &mut Outbox) {
        let lost: Arc<[NodeId]> = self.nodes_given_up().collect();
        let running = self.admission.running().map(|(job, _)| job).filter(|job| are_meant(job));
        let started: Vec<JobId> = running.map(|job| job.id).collect();
        for &id in &started {
            let entry = &self.admission.jobs[&id];
            // A manager in the server recovers from the same log, and was not sent anything yet.
            let is_elsewhere = entry.job.host != HostId::SERVER;
            let share = if is_elsewhere { self.scheduler.reported_share(id).map(Box::new) } else { None };
            let (job, requested_actions, lost) = (Arc::clone(&entry.job), entry.requested_actions(), Arc::clone(&lost));
            out.send(id, ToJobManager::Start { job, share, requested_actions, lost });
        }
        // Managers in the server start with the state that they recovered.
        self.started.extend(started.into_iter().filter(|id| self.admission.jobs[id].job.host != HostId::SERVER));
    }

    /// Starts the managers of jobs that nothing prevents, in the order of priority, then submission, and ends jobs that
    /// can never start. An event may have more consequences than other events should wait for: the rest follows after
    /// those.
    pub(super) fn take_turns(&mut self, now: Instant, out: &mut Outbox) {
        let mut left = TURNS;
        self.admission.spread_news(&mut left);
        while left > 0
            && let Some(turn) = self.admission.turns.next()
        {
            left -= 1;
            match turn {
                Turn::Start(job) => self.start(job, out),
                Turn::End(job) => {
                    let after = self.admission.failed_dependency(job).unwrap_or_default();
                    self.end(now, job, JobOutcome::DependencyFailed { after }, out);
                }
            }
            self.admission.spread_news(&mut left);
        }
        self.turns_due = self.admission.turns.has_more().then_some(now + SOON);
    }

    /// When it has to be woken to continue with the consequences of an event.
    pub fn next_turns(&self) -> Option<Instant> {
        self.turns_due
    }

    pub fn take_turns_when_due(&mut self, now: Instant, out: &mut Outbox) {
        if self.turns_due.is_some_and(|due| due <= now) {
            self.take_turns(now, out);
        }
    }

    fn start(&mut self, job: JobId, out: &mut Outbox) {
        out.persist(Change::JobStarted { job });
        self.admission.set_started(job);
        let entry = &self.admission.jobs[&job];
        let (admitted, requested_actions) = (Arc::clone(&entry.job), entry.requested_actions());
        self.scheduler.add_job(&admitted, entry.queue);
        let share = self.share_at_start(job, out);
        out.send(job, ToJobManager::Start { job: admitted, share, requested_actions, lost: Arc::default() });
        self.started.push(job);
    }

    /// Whether this is the job that was submitted at that time, in this run.
    pub fn is_in_run(&self, job: JobId, submitted_at: Instant, run: u32) -> bool {
        let entry = self.admission.jobs.get(&job);
        entry.is_some_and(|entry| (entry.job.submitted_at, entry.run) == (submitted_at, run))
    }

    /// Judges the estimates of a user by a job that ended. A job that ends again was judged before.
    pub fn judge_estimates(&mut self, job: JobId, estimated: Option<Estimated>, out: &mut Outbox) {
        let Some(estimated) = estimated.filter(|_| self.admission.is_running(job)) else { return };
        let Some(entry) = self.admission.jobs.get_mut(&job).filter(|entry| !entry.judged) else { return };
        entry.judged = true;
        let user = entry.job.user;
        let trust = self.admission.trust.entry(user).or_default();
        if trust.learn(estimated) {
            out.record(Record::EstimatesJudged { job, believed: !trust.is_lost() });
        }
    }

    /// Keeps the mean run times of the job's tasks for its later runs.
    pub fn remember(&mut self, job: JobId, means: &[Option<Duration>], out: &mut Outbox) {
        let Admission { jobs, history, .. } = &mut self.admission;
        if let Some(entry) = jobs.get(&job).filter(|entry| entry.state == JobState::Started) {
            history.learn(entry.job.user, &entry.job.spec, means).into_iter().for_each(|change| out.persist(change));
        }
    }

    pub fn on_job_ended(&mut self, now: Instant, job: JobId, outcome: JobOutcome, out: &mut Outbox) {
        if self.admission.is_running(job) {
            self.scheduler.end_job(job, &mut self.rooms);
            self.end(now, job, outcome, out);
            self.take_turns(now, out);
        }
    }

    fn end(&mut self, now: Instant, job: JobId, outcome: JobOutcome, out: &mut Outbox) {
        out.persist(Change::JobEnded { job, outcome, at: now });
        self.admission.set_ended(job, JobEnd { outcome, at: now });
        let most_tasks = self.settings.kept_tasks.unwrap_or(u64::MAX);
        while self.admission.ended.len() > self.settings.kept_jobs
            || (self.admission.ended_tasks > most_tasks && self.admission.ended.len() > 1)
        {
            let Some((_, oldest)) = self.admission.forgettable() else { break };
            // The other ended jobs are those for which pending ones wait.
            if oldest == job && self.admission.ended.len() <= self.settings.kept_jobs {
                break;
            }
            self.forget(oldest, out);
        }
    }

    fn forget(&mut self, job: JobId, out: &mut Outbox) {
        out.persist(Change::JobForgotten { job });
        match self.admission.jobs[&job].job.host {
            HostId::SERVER => out.send(job, ToJobManager::Forgotten),
            host => out.send(host, ToJobHost::Forget { job }),
        }
        self.admission.forget(job);
    }

    /// Forgets jobs that ended long ago, a few at a time, so that decisions do not wait for it.
    pub fn forget_old(&mut self, now: Instant, out: &mut Outbox) {
        const AT_ONCE: usize = 64;
        let Some(kept_for) = self.settings.kept_for else { return };
        if now < self.forgot_at + PAUSE {
            return;
        }
        for _ in 0..AT_ONCE {
            let Some((_, job)) = self.admission.forgettable().filter(|(at, _)| *at + kept_for <= now) else { return };
            self.forgot_at = now;
            self.forget(job, out);
        }
    }

    /// When a job has been kept for long enough.
    pub fn next_forgetting(&self) -> Option<Instant> {
        let kept_for = self.settings.kept_for?;
        let (at, _) = self.admission.forgettable()?;
        Some((at + kept_for).max(self.forgot_at + PAUSE))
    }
}
