//! The server's copies of job managers in other processes, built from the logs of these, to answer queries. A copy decides
//! nothing.

use super::{Fact, Incarnation, Roles};
use crate::job_manager::JobManager;
use crate::protocol::AdmittedJob;
use crate::role::{Change, Role};
use crate::vocabulary::{AttemptId, HostId, Instant, JobId};
use crate::why::Why;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A new entry of the log of a job host.
#[derive(Clone, Debug)]
pub struct Followed {
    pub number: u64,
    pub at: Instant,
    pub fact: Fact,
}

/// The received entries are not the next ones: entries in between are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    pub expected: u64,
    pub received: u64,
}

/// The state of a job host that its changes do not contain: the start times of its attempts, and why no more run.
#[derive(Clone, PartialEq, Eq, Default, Debug, serde::Serialize, serde::Deserialize)]
pub struct Present {
    pub starts: Vec<(AttemptId, Instant)>,
    pub reasons: Vec<(JobId, Why)>,
}

impl Roles {
    /// Recovers the managers of jobs that this process or another one has, besides the master's.
    pub(super) fn recover_managed(&mut self, changes: Vec<Change>) {
        let Incarnation { preset, epoch, settings, sealing, .. } = *self.incarnation;
        let mut by_job: BTreeMap<JobId, (Option<Arc<AdmittedJob>>, Vec<Change>)> = BTreeMap::new();
        for change in changes {
            match (&change, change.job()) {
                (Change::Heard { host, next }, _) => drop(self.heard.insert(*host, *next)),
                (Change::Unmanaged { job } | Change::JobAbandoned { job }, _) => drop(by_job.remove(job)),
                // Its full state follows, even if some of it was known before.
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

    /// The number up to which log entries of a job host were received.
    pub fn heard(&self, host: HostId) -> u64 {
        self.heard.get(&host).copied().unwrap_or(0)
    }

    /// Takes log entries of a job host, numbered from `first` on. Returns the new ones, which this process has to write to its
    /// log with their numbers: entries in the log count as received.
    ///
    /// # Errors
    /// If entries before `first` are missing.
    pub fn follow(&mut self, host: HostId, first: u64, facts: Vec<(Instant, Fact)>) -> Result<Vec<Followed>, Gap> {
        let expected = self.heard(host);
        if first > expected {
            return Err(Gap { expected, received: first });
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

    /// Takes the full state of a job host, whose log does not go back far enough: the contents of its snapshot before entry
    /// `next`. Returns what this process has to write to its log.
    pub fn follow_anew(&mut self, host: HostId, next: u64, changes: Vec<Change>) -> Vec<Change> {
        let reported: BTreeSet<JobId> = changes.iter().filter_map(Change::job).collect();
        let is_gone = |job: &JobId, manager: &JobManager| manager.job().host == host && !reported.contains(job);
        let gone = self.jobs.iter().filter(|(job, manager)| is_gone(job, manager));
        let mut news: Vec<Change> = gone.map(|(&job, _)| Change::Unmanaged { job }).collect();
        news.extend(changes.into_iter().filter(Change::is_job_managers));
        for change in &news {
            self.follow_fact(Instant::ZERO, &Fact::Change(change.clone()));
        }
        self.heard.insert(host, next);
        // The last one: if the log ends before it, the full state is sent again.
        news.push(Change::Heard { host, next });
        news
    }

    fn follow_fact(&mut self, at: Instant, fact: &Fact) {
        // The host has its other changes from the master.
        if matches!(fact, Fact::Change(change) if !change.is_job_managers()) {
            return;
        }
        let Incarnation { preset, epoch, settings, sealing, .. } = *self.incarnation;
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

    /// The present state of the job managers of this process.
    pub fn present(&self) -> Present {
        let mut present = Present::default();
        for (&job, manager) in &self.jobs {
            let started = manager.open_attempts().filter_map(|open| Some((open.attempt, open.started_at?)));
            present.starts.extend(started);
            present.reasons.extend(manager.explain().into_iter().next().map(|why| (job, why)));
        }
        present
    }

    /// Takes the present state of a job host, which it sends after its log entries.
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
