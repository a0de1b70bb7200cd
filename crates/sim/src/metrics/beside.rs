//! Measurements by preset, if jobs with different presets share a cluster.

use super::is_race;
use super::queueing::{QueueMeasure, Queueing};
use super::results::summary;
use amalgam_core::hosting::Fact;
use amalgam_core::role::{Change, LostCause, Record};
use amalgam_core::vocabulary::{Duration, JobId};
use amalgam_workload::trace::Summary;
use serde::Serialize;
use std::collections::BTreeMap;

/// The jobs of one preset.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OfPreset {
    pub preset: String,
    pub jobs: u64,
    pub succeeded_jobs: u64,
    /// Of the jobs that succeeded.
    pub jct_s: Summary,
    pub started_tasks: u64,
    /// From the time when a task was ready to its first start.
    pub task_wait_s: Summary,
    pub launched: u64,
    pub duplicated: u64,
    pub queueing: Option<Queueing>,
}

/// Groups of jobs by preset. The first group is that of the cluster's preset.
pub struct Groups {
    all: Vec<Group>,
    /// The group of each job that uses another preset.
    of_job: BTreeMap<JobId, usize>,
}

#[derive(Default)]
struct Group {
    preset: String,
    waits: Vec<Duration>,
    launched: u64,
    duplicated: u64,
    queueing: QueueMeasure,
}

impl Group {
    fn new(preset: &str) -> Group {
        Group { preset: preset.to_owned(), ..Group::default() }
    }
}

impl Groups {
    pub fn new(own: &str) -> Groups {
        Groups { all: vec![Group::new(own)], of_job: BTreeMap::new() }
    }

    fn of(&mut self, job: JobId) -> &mut Group {
        let group = self.number(job);
        &mut self.all[group]
    }

    fn number(&self, job: JobId) -> usize {
        self.of_job.get(&job).copied().unwrap_or(0)
    }

    /// The name of the preset that the job uses.
    pub fn preset(&self, job: JobId) -> &str {
        &self.all[self.number(job)].preset
    }

    pub fn on_first_start(&mut self, job: JobId, wait: Duration) {
        self.of(job).waits.push(wait);
    }

    pub fn on_fact(&mut self, fact: &Fact) {
        match fact {
            Fact::Change(Change::JobAdmitted { job, .. }) => self.on_admitted(job.id, job.preset.as_deref()),
            Fact::Change(Change::Launched { attempt, rule, .. }) => {
                let group = self.of(attempt.job);
                group.launched += 1;
                if rule.is_second() {
                    group.duplicated += 1;
                    group.queueing.on_duplicate_launched(*attempt, is_race(*rule));
                }
            }
            Fact::Change(Change::Lost { attempt, cause: LostCause::Superseded, .. }) => {
                self.of(attempt.job).queueing.on_superseded(*attempt);
            }
            Fact::Record(Record::Started {
                task, waited, expected: Some(expected), opportunistic, promoted, ..
            }) => {
                self.of(task.job).queueing.on_started(*waited, *expected, *opportunistic, *promoted);
            }
            Fact::Record(Record::WaitedInVain { task, waited, expected, .. }) => {
                self.of(task.job).queueing.on_waited_in_vain(*waited, *expected);
            }
            Fact::Record(Record::Duplicated { attempt, trigger, .. }) => {
                self.of(attempt.job).queueing.on_triggered(*attempt, *trigger);
            }
            _ => {}
        }
    }

    fn on_admitted(&mut self, job: JobId, preset: Option<&str>) {
        let Some(preset) = preset.filter(|preset| *preset != self.all[0].preset) else { return };
        let known = self.all.iter().position(|group| group.preset == preset);
        let group = known.unwrap_or_else(|| {
            self.all.push(Group::new(preset));
            self.all.len() - 1
        });
        self.of_job.insert(job, group);
    }

    /// `jobs` are the admitted jobs, with the completion times of those that succeeded.
    pub fn finish(self, jobs: impl Iterator<Item = (JobId, Option<Duration>)>) -> Vec<OfPreset> {
        let mut of_group = vec![(0, Vec::new()); self.all.len()];
        for (job, took) in jobs {
            let (jobs, all) = &mut of_group[self.number(job)];
            *jobs += 1;
            all.extend(took);
        }
        let of_preset = |(mut group, (jobs, took)): (Group, (u64, Vec<Duration>))| {
            group.waits.sort_unstable();
            OfPreset {
                preset: group.preset,
                jobs,
                succeeded_jobs: took.len() as u64,
                jct_s: summary(&took),
                started_tasks: group.waits.len() as u64,
                task_wait_s: summary(&group.waits),
                launched: group.launched,
                duplicated: group.duplicated,
                queueing: group.queueing.finish(),
            }
        };
        self.all.into_iter().zip(of_group).map(of_preset).collect()
    }
}
