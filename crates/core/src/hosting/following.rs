//! The server keeps copies of job managers that other processes have, made of what these write down: so that people can be told.
//! A copy decides nothing.

use super::{Fact, Life, Roles};
use crate::job_manager::JobManager;
use crate::protocol::AdmittedJob;
use crate::role::{Change, Role};
use crate::vocabulary::{AttemptId, HostId, Instant, JobId};
use crate::why::Why;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An entry of the log of a process of job managers, which is news here.
#[derive(Clone, Debug)]
pub struct Followed {
    pub number: u64,
    pub at: Instant,
    pub fact: Fact,
}

/// What was told is not what comes next: something in between was not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    pub expected: u64,
    pub told: u64,
}

/// What a process of job managers knows that its changes do not say: since when its attempts run, and why no more do.
#[derive(Clone, PartialEq, Eq, Default, Debug, serde::Serialize, serde::Deserialize)]
pub struct Present {
    pub starts: Vec<(AttemptId, Instant)>,
    pub reasons: Vec<(JobId, Why)>,
}

impl Roles {
    /// The managers of jobs that this process or another one has, besides the master's.
    pub(super) fn recover_managed(&mut self, changes: Vec<Change>) {
        let Life { preset, epoch, settings, sealing, .. } = *self.life;
        let mut by_job: BTreeMap<JobId, (Option<Arc<AdmittedJob>>, Vec<Change>)> = BTreeMap::new();
        for change in changes {
            match (&change, change.job()) {
                (Change::Heard { host, next }, _) => drop(self.heard.insert(*host, *next)),
                (Change::Unmanaged { job } | Change::JobAbandoned { job }, _) => drop(by_job.remove(job)),
                // All that is known of it follows, also where something was known before.
                (Change::Managed { job }, _) => {
                    by_job.insert(job.id, (Some(Arc::clone(job)), vec![change]));
                }
                (_, Some(job)) => by_job.entry(job).or_default().1.push(change),
                (_, None) => {}
            }
        }
        for (id, (job, own)) in by_job {
            let Some(job) = job else { continue };
            let mut manager = preset.job_manager(job, epoch, settings, sealing);
            manager.recover(&own);
            self.jobs.insert(id, Box::new(manager));
        }
    }

    /// Up to which number a process of job managers has told what its log holds.
    pub fn heard(&self, host: HostId) -> u64 {
        self.heard.get(&host).copied().unwrap_or(0)
    }

    /// A process of job managers tells what its log holds from this number on. Returns what is new, which the log of this
    /// process is to hold, with the numbers: what it holds was heard.
    ///
    /// # Errors
    /// When there is something before it that was not told.
    pub fn follow(&mut self, host: HostId, first: u64, facts: Vec<(Instant, Fact)>) -> Result<Vec<Followed>, Gap> {
        let expected = self.heard(host);
        if first > expected {
            return Err(Gap { expected, told: first });
        }
        let numbered = (first..).zip(facts).skip_while(|(number, _)| *number < expected);
        let mut news = Vec::new();
        for (number, (at, fact)) in numbered {
            self.follow_fact(at, &fact);
            self.heard.insert(host, number + 1);
            news.push(Followed { number, at, fact });
        }
        Ok(news)
    }

    /// It tells all that it knows, since its log does not go back far enough: what its snapshot would hold before entry `next`.
    /// Returns what the log of this process is to hold.
    pub fn follow_anew(&mut self, host: HostId, next: u64, changes: Vec<Change>) -> Vec<Change> {
        let told: BTreeSet<JobId> = changes.iter().filter_map(Change::job).collect();
        let is_gone = |job: &JobId, manager: &JobManager| manager.job().host == host && !told.contains(job);
        let gone = self.jobs.iter().filter(|(job, manager)| is_gone(job, manager));
        let mut news: Vec<Change> = gone.map(|(&job, _)| Change::Unmanaged { job }).collect();
        news.extend(changes.into_iter().filter(Change::is_job_managers));
        for change in &news {
            self.follow_fact(Instant::ZERO, &Fact::Change(change.clone()));
        }
        self.heard.insert(host, next);
        // The last: where the log ends before it, all of this is told again.
        news.push(Change::Heard { host, next });
        news
    }

    fn follow_fact(&mut self, at: Instant, fact: &Fact) {
        // What a host keeps for itself it was told by the master.
        if matches!(fact, Fact::Change(change) if !change.is_job_managers()) {
            return;
        }
        let Life { preset, epoch, settings, sealing, .. } = *self.life;
        if let Fact::Change(Change::Managed { job }) = fact {
            self.jobs.insert(job.id, Box::new(preset.job_manager(Arc::clone(job), epoch, settings, sealing)));
        }
        let Some(manager) = fact.job().and_then(|job| self.jobs.get_mut(&job)) else { return };
        match fact {
            Fact::Change(Change::Unmanaged { job }) => drop(self.jobs.remove(job)),
            Fact::Change(change) => manager.follow(change),
            Fact::Record(record) => manager.follow_record(at, record),
        }
    }

    /// Of this process, which has job managers.
    pub fn present(&self) -> Present {
        let mut present = Present::default();
        for (&job, manager) in &self.jobs {
            let started = manager.open_attempts().filter_map(|open| Some((open.attempt, open.started_at?)));
            present.starts.extend(started);
            present.reasons.extend(manager.explain().into_iter().next().map(|why| (job, why)));
        }
        present
    }

    /// Of a process of job managers, told after what its log holds.
    pub fn follow_present(&mut self, host: HostId, present: Present) {
        for (attempt, at) in present.starts {
            if let Some(manager) = self.copy(attempt.job, host) {
                manager.follow_start(attempt, at);
            }
        }
        for (job, why) in present.reasons {
            if let Some(manager) = self.copy(job, host) {
                manager.follow_reason(&why);
            }
        }
    }

    fn copy(&mut self, job: JobId, host: HostId) -> Option<&mut JobManager> {
        self.jobs.get_mut(&job).map(Box::as_mut).filter(|manager| manager.job().host == host)
    }
}
