//! Which jobs: `7`, `1-5`, `3,7`, `last`, `all`; and which tasks: `7.count.3`.

use crate::client::{Client, Query};
use crate::failure::{Failure, Result};
use amalgam_core::why::counted;
use amalgam_daemon::api::JobDetail;
use std::ops::RangeInclusive;

/// More jobs than one command may name by a range.
const MAX_RANGE: u64 = 100_000;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selector {
    /// Ranges of ids in the order they were written.
    Ids(Vec<RangeInclusive<u64>>),
    /// Your newest job.
    Last,
    /// All of your jobs that the verb can act on.
    All,
}

impl Selector {
    /// A value parser for the command line.
    pub fn parse(text: &str) -> std::result::Result<Selector, String> {
        match text {
            "last" => return Ok(Selector::Last),
            "all" => return Ok(Selector::All),
            _ => {}
        }
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse::<u64>().ok()?, last.trim().parse::<u64>().ok()?);
            (first <= last && last - first < MAX_RANGE).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> = text.split(',').map(|part| range(part.trim())).collect();
        ranges.map(Selector::Ids).ok_or_else(|| "write `7`, `1-5`, `3,7`, `last` or `all`".to_owned())
    }
}

/// The ids that the selectors name, each once. `states` says what `all` means.
pub fn resolve(client: &Client, selectors: &[Selector], states: &str) -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    for selector in selectors {
        match selector {
            Selector::Ids(ranges) => ids.extend(ranges.iter().cloned().flatten()),
            Selector::Last => ids.push(last(client)?),
            Selector::All => {
                let query = Query::default().with("user", "me").with("state", states);
                let (jobs, silent) = client.jobs("/v1/jobs", &query, usize::MAX)?;
                all_known(silent)?;
                ids.extend(jobs.iter().rev().map(|job| job.id));
            }
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    ids.retain(|id| seen.insert(*id));
    Ok(ids)
}

fn last(client: &Client) -> Result<u64> {
    let (jobs, silent) = client.jobs("/v1/jobs", &Query::default().with("user", "me"), 1)?;
    all_known(silent)?;
    let none = || Failure::new("you have no jobs, so none is the last", "submit one with `amalgam submit`");
    jobs.first().map(|job| job.id).ok_or_else(none)
}

/// Which jobs `last` and `all` name is known only where every global master answers.
fn all_known(silent: Vec<Failure>) -> Result<()> {
    match silent.into_iter().next() {
        None => Ok(()),
        Some(failure) => {
            let remedy = "name the jobs that you mean by their numbers; `amalgam list` shows those that are known";
            Err(Failure { remedy: remedy.to_owned(), ..failure })
        }
    }
}

/// `JOB[.STAGE[.INDEX]]`, where a stage is named or numbered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    job: Option<u64>,
    stage: Option<String>,
    /// The task's place in the stage.
    pub index: Option<u32>,
    typed: String,
}

impl Target {
    /// A value parser for the command line.
    pub fn parse(text: &str) -> std::result::Result<Target, String> {
        let wrong = || "write JOB, JOB.STAGE or JOB.STAGE.INDEX, for instance `7.count.3` or `last`".to_owned();
        let mut parts = text.split('.');
        let job = match parts.next() {
            Some("last") => None,
            Some(id) => Some(id.parse().map_err(|_| wrong())?),
            None => return Err(wrong()),
        };
        let stage = parts.next().map(str::to_owned);
        let index = parts.next().map(|index| index.parse().map_err(|_| wrong())).transpose()?;
        if parts.next().is_some() || stage.as_deref() == Some("") {
            return Err(wrong());
        }
        Ok(Target { job, stage, index, typed: text.to_owned() })
    }

    pub fn job(&self, client: &Client) -> Result<u64> {
        self.job.map_or_else(|| last(client), Ok)
    }

    /// The number of the stage, which has the task that is meant.
    pub fn stage(&self, job: &JobDetail) -> Result<Option<u32>> {
        let number = self.stage_number(job)?;
        let stage = number.and_then(|number| job.stages.get(number as usize));
        if let (Some(stage), Some(index)) = (stage, self.index)
            && u64::from(index) >= stage.tasks.total
        {
            let (typed, id) = (&self.typed, job.summary.id);
            let tasks = counted(stage.tasks.total, "task");
            let what = format!("there is no task `{typed}`: stage `{}` of job {id} has {tasks}", stage.name);
            let remedy =
                format!("count from 0, whatever the array's values are; `amalgam info {id} --tasks` lists them");
            return Err(Failure::new(what, remedy));
        }
        Ok(number)
    }

    /// A name goes before a number that reads the same.
    fn stage_number(&self, job: &JobDetail) -> Result<Option<u32>> {
        let Some(wanted) = &self.stage else { return Ok(None) };
        let named = job.stages.iter().position(|stage| stage.name == *wanted);
        let numbered = || wanted.parse::<usize>().ok().filter(|number| *number < job.stages.len());
        let none = || {
            let names = || job.stages.iter().map(|stage| stage.name.as_str());
            let remedy = match amalgam_workload::closest(wanted, names()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("its stages are {}", names().take(20).collect::<Vec<_>>().join(", ")),
            };
            Failure::new(format!("job {} has no stage `{wanted}`", job.summary.id), remedy)
        };
        named.or_else(numbered).map(|number| Some(number as u32)).ok_or_else(none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_read_what_people_write() {
        assert_eq!(Selector::parse("last"), Ok(Selector::Last));
        assert_eq!(Selector::parse("1-3, 7"), Ok(Selector::Ids(vec![1..=3, 7..=7])));
        for text in ["", "x", "5-1", "1-", "1,,2", "-3", "1-99999999"] {
            assert!(Selector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn targets_read_jobs_stages_and_tasks() {
        let target = Target::parse("7.count.3").unwrap();
        assert_eq!((target.job, target.stage.as_deref(), target.index), (Some(7), Some("count"), Some(3)));
        assert_eq!(Target::parse("last").unwrap().job, None);
        for text in ["", "x", "7.", "7.a.b", "7.a.1.2"] {
            assert!(Target::parse(text).is_err(), "{text}");
        }
    }
}
