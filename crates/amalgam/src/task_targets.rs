//! Which tasks: `15.main`, `15.main.3`, `15.main.0-49`, `15.main.0-4,7`.

use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::selectors::{Selector, Target};
use amalgam_daemon::api::{ChosenTasks, JobDetail};
use std::ops::RangeInclusive;

/// What an action is for.
#[derive(Clone, Debug)]
pub enum ActTarget {
    Jobs(Selector),
    Tasks(TaskRanges),
}

/// Tasks of a stage, by their places in it.
#[derive(Clone, Debug)]
pub struct TaskRanges {
    /// The job and the stage.
    stage: Target,
    /// All of them where there are none.
    places: Vec<RangeInclusive<u32>>,
    pub typed: String,
}

impl ActTarget {
    /// A value parser for the command line.
    pub fn parse(text: &str) -> std::result::Result<ActTarget, String> {
        if !text.contains('.') {
            return Selector::parse(text).map(ActTarget::Jobs);
        }
        let wrong = || "write jobs as `7`, `1-5` or `last`, and tasks as `7.count`, `7.count.3` or `7.count.0-49`";
        let mut parts = text.splitn(3, '.');
        let (job, stage, places) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""), parts.next());
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
            (first <= last && last < u32::MAX).then_some(first..=last)
        };
        let places: Option<Vec<_>> = places.into_iter().flat_map(|places| places.split(',')).map(range).collect();
        let places = places.ok_or_else(wrong)?;
        let stage = Target::parse(&format!("{job}.{stage}")).map_err(|_| wrong())?;
        Ok(ActTarget::Tasks(TaskRanges { stage, places, typed: text.to_owned() }))
    }
}

impl TaskRanges {
    /// The job, and the tasks that it has of these.
    pub fn find(&self, client: &Client) -> Result<(u64, Vec<ChosenTasks>)> {
        let job = self.stage.job(client)?;
        let detail: JobDetail = client.job(job)?;
        let stage = self.stage.stage(&detail)?.unwrap_or(0);
        let tasks = detail.stages.get(stage as usize).map_or(0, |stage| stage.tasks.total);
        let all = [0..=u32::try_from(tasks.saturating_sub(1)).unwrap_or(u32::MAX - 1)];
        let places = if self.places.is_empty() { &all[..] } else { &self.places };
        if let Some(beyond) = places.iter().find(|range| u64::from(*range.end()) >= tasks) {
            let name = detail.stages.get(stage as usize).map_or("", |stage| stage.name.as_str());
            let tasks = amalgam_core::why::counted(tasks, "task");
            let what = format!("there is no task {} in stage `{name}` of job {job}, which has {tasks}", beyond.end());
            let remedy =
                format!("count from 0, whatever the array's values are; `amalgam info {job} --tasks` lists them");
            return Err(Failure::new(what, remedy));
        }
        let chosen = places.iter().map(|range| ChosenTasks { stage, first: *range.start(), last: *range.end() });
        Ok((job, chosen.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_actions_are_jobs_or_tasks() {
        assert!(matches!(ActTarget::parse("3-7,9"), Ok(ActTarget::Jobs(_))));
        let places = |text: &str| match ActTarget::parse(text) {
            Ok(ActTarget::Tasks(ranges)) => ranges.places,
            other => panic!("{other:?}"),
        };
        assert_eq!(places("15.main"), []);
        assert_eq!(places("last.main.3"), [3..=3]);
        assert_eq!(places("15.main.0-49,60"), [0..=49, 60..=60]);
        for text in
            ["15.", "15.main.", "15.main.x", "15.main.5-3", "15.main.1.2", "15.main.0-4294967295", ".main", "1-3.main"]
        {
            assert!(ActTarget::parse(text).is_err(), "{text}");
        }
    }
}
