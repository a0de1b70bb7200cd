//! Which jobs: `7`, `1-5`, `3,7`, `last`, `all`; and which tasks: `7.count.3`.

use crate::client::{Client, Query};
use crate::failure::{Failure, Kind, Result};
use amalgam_core::why::counted;
use amalgam_daemon::api::{JobDetail, JobSummary};
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
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

/// A job that somebody meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    pub id: u64,
    /// Whether by its own number or as `last`; a range and `all` mean whichever of theirs there are.
    pub by_itself: bool,
}

/// What `all` and ranges mean to a verb that acts on jobs.
#[derive(Clone, Copy)]
pub struct Reach {
    /// As the interface's filter takes them.
    pub states: &'static str,
    /// Among the jobs in these states.
    pub admits: fn(&JobSummary) -> bool,
}

/// The jobs that the selectors name, each once. `all` means yours in these states; a range may name numbers that no job has.
pub fn resolve(client: &Client, selectors: &[Selector], all: &str) -> Result<Vec<Named>> {
    let mut named = Vec::new();
    for selector in selectors {
        match selector {
            Selector::Ids(ranges) => ranges.iter().for_each(|range| named.extend(in_range(range))),
            Selector::Last => named.push(Named { id: last(client)?, by_itself: true }),
            Selector::All => named.extend(whole(listed(client, all, Some("me"))?.iter())),
        }
    }
    Ok(each_once(named))
}

/// The jobs within reach that the selectors name, each once, and those named by themselves in any case; and which ranges are wrong.
pub fn resolve_within(client: &Client, selectors: &[Selector], reach: Reach) -> Result<(Vec<Named>, Vec<Failure>)> {
    let (mut named, mut wrong) = (Vec::new(), Vec::new());
    let mut everybodys: Option<Vec<JobSummary>> = None;
    for selector in selectors {
        let Selector::Ids(ranges) = selector else {
            let Reach { states, admits } = reach;
            let within = |selector| match selector {
                &Selector::All => Ok(whole(listed(client, states, Some("me"))?.iter().filter(|job| admits(job)))),
                other => resolve(client, std::slice::from_ref(other), states),
            };
            named.extend(within(selector)?);
            continue;
        };
        for range in ranges {
            if range.start() == range.end() {
                named.extend(in_range(range));
                continue;
            }
            if everybodys.is_none() {
                everybodys = Some(listed(client, reach.states, None)?);
            }
            let jobs = everybodys.iter().flatten().filter(|job| range.contains(&job.id));
            let found = whole(jobs.filter(|job| (reach.admits)(job)));
            if found.is_empty() && !listed(client, "", None)?.iter().any(|job| range.contains(&job.id)) {
                wrong.push(no_such(range));
            }
            named.extend(found);
        }
    }
    Ok((each_once(named), wrong))
}

/// What the call says of each job that there is. Of a range and `all` that may be some, but not none.
pub fn each<T>(named: &[Named], mut call: impl FnMut(u64) -> Result<T>) -> Result<Vec<T>> {
    let mut answers = Vec::with_capacity(named.len());
    let mut absent = None;
    for job in named {
        match call(job.id) {
            Err(failure) if failure.kind == Kind::NotFound && !job.by_itself => absent = absent.or(Some(failure)),
            answer => answers.push(answer?),
        }
    }
    match absent.filter(|_| answers.is_empty()) {
        None => Ok(answers),
        Some(failure) => Err(match named {
            [_] => failure,
            [first, .., last] => no_such(&(first.id..=last.id)),
            [] => failure,
        }),
    }
}

/// The ids of those that there are; whether one that was named by itself is, is for others to say.
pub fn existing(client: &Client, named: &[Named]) -> Result<Vec<u64>> {
    let by_itself: BTreeSet<u64> = named.iter().filter(|job| job.by_itself).map(|job| job.id).collect();
    each(named, |id| match (!by_itself.contains(&id)).then(|| client.job(id)) {
        Some(Err(failure)) if failure.kind != Kind::Refused => Err(failure),
        // Also one that its owner alone may look into.
        _ => Ok(id),
    })
}

fn in_range(range: &RangeInclusive<u64>) -> impl Iterator<Item = Named> + use<> {
    let by_itself = range.start() == range.end();
    range.clone().map(move |id| Named { id, by_itself })
}

/// Jobs of a list, which has the newest first.
fn whole<'a>(jobs: impl DoubleEndedIterator<Item = &'a JobSummary>) -> Vec<Named> {
    jobs.rev().map(|job| Named { id: job.id, by_itself: false }).collect()
}

fn each_once(named: Vec<Named>) -> Vec<Named> {
    let by_itself: BTreeSet<u64> = named.iter().filter(|job| job.by_itself).map(|job| job.id).collect();
    let mut seen = BTreeSet::new();
    let once = named.into_iter().filter(|job| seen.insert(job.id));
    once.map(|job| Named { by_itself: by_itself.contains(&job.id), ..job }).collect()
}

fn no_such(range: &RangeInclusive<u64>) -> Failure {
    let what = format!("there are no jobs {}-{}", range.start(), range.end());
    Failure { kind: Kind::NotFound, ..Failure::new(what, "`amalgam list --all` shows the jobs") }
}

/// The newest first; no states are all states.
fn listed(client: &Client, states: &str, user: Option<&str>) -> Result<Vec<JobSummary>> {
    let mut query = Query::default();
    query.add("user", user);
    query.add("state", Some(states).filter(|states| !states.is_empty()));
    let found = client.jobs("/v1/jobs", &query, None)?;
    all_known(found.silent)?;
    Ok(found.jobs)
}

fn last(client: &Client) -> Result<u64> {
    let found = client.jobs("/v1/jobs", &Query::default().with("user", "me"), Some(NonZeroUsize::MIN))?;
    all_known(found.silent)?;
    let none = || Failure::new("you have no jobs, so none is the last", "submit one with `amalgam submit`");
    found.jobs.first().map(|job| job.id).ok_or_else(none)
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
    fn a_job_is_named_once_and_by_itself_if_somebody_did() {
        let named = |id, by_itself| Named { id, by_itself };
        let mentions = [1..=3, 2..=2].iter().flat_map(in_range).collect();
        assert_eq!(each_once(mentions), [named(1, false), named(2, true), named(3, false)]);
    }

    #[test]
    fn a_range_means_the_jobs_that_there_are_and_a_number_is_one() {
        let ask = |there_are: &'static [u64]| {
            move |id| match there_are.contains(&id) {
                true => Ok(id),
                false => Err(Failure { kind: Kind::NotFound, ..Failure::new(format!("there is no job {id}"), "") }),
            }
        };
        let range: Vec<Named> = in_range(&(1..=4)).collect();
        assert_eq!(each(&range, ask(&[2, 4])).unwrap(), [2, 4]);
        assert_eq!(each(&range, ask(&[])).unwrap_err().what, "there are no jobs 1-4");
        assert!(each(&[], ask(&[])).unwrap().is_empty());
        let single: Vec<Named> = in_range(&(3..=3)).collect();
        assert_eq!(each(&single, ask(&[2])).unwrap_err().what, "there is no job 3");
        assert!(each(&single, |_| Err::<u64, _>(Failure::new("no", ""))).is_err());
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
