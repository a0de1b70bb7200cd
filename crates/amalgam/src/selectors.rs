//! Selection of jobs: `7`, `1-5`, `3,7`, `last`, `all`; and of tasks: `7.count`, `7.count.3`, `47.0.0`, `7.count.0-49`, `7-1-3`.

use crate::client::{Client, Query};
use crate::failure::{Failure, Kind, Result};
use amalgam_core::why::counted;
use amalgam_daemon::api::{AttemptSummary, JobDetail, JobSummary};
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;

/// The states of a job before its end, in the form of the interface's filter.
pub const ACTIVE: &str = "held,pending,running";

/// Maximum number of jobs in a range.
const MAX_RANGE: u64 = 100_000;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selector {
    /// Ranges of ids in the order of the command line.
    Ids(Vec<RangeInclusive<u64>>),
    /// The user's newest job.
    Last,
    /// All of the user's jobs that the verb can act on.
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
        if ranges.is_none() && Target::read(text).is_some_and(|target| !target.is_job()) {
            return Err("it names tasks, and this command takes whole jobs: write `7`, `1-5`, `3,7`, `last` or `all`"
                .to_owned());
        }
        ranges.map(Selector::Ids).ok_or_else(|| "write `7`, `1-5`, `3,7`, `last` or `all`".to_owned())
    }
}

/// A selected job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    pub id: u64,
    /// Whether the job was named by its number or as `last`, not by a range or `all`.
    pub by_itself: bool,
}

/// The jobs that `all` and ranges select for a verb.
#[derive(Clone, Copy)]
pub struct Reach {
    /// States in the form of the interface's filter.
    pub states: &'static str,
    /// A further condition on jobs in these states.
    pub admits: fn(&JobSummary) -> bool,
}

/// The selected jobs, each once. `all` selects the user's jobs in these states; a range may contain numbers without a job.
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

/// The selected jobs within reach, each once, including jobs outside it that were named individually; and the invalid ranges.
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

/// Calls each job that exists. For a range and `all` some may be missing, but not all.
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

/// The ids of the existing jobs. Jobs that were named individually are not checked.
pub fn existing(client: &Client, named: &[Named]) -> Result<Vec<u64>> {
    let by_itself: BTreeSet<u64> = named.iter().filter(|job| job.by_itself).map(|job| job.id).collect();
    each(named, |id| match (!by_itself.contains(&id)).then(|| client.job(id)) {
        Some(Err(failure)) if failure.kind != Kind::Refused => Err(failure),
        // Also a job that only its owner may read.
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
    let what = format!("jobs {}-{} not found", range.start(), range.end());
    Failure { kind: Kind::NotFound, ..Failure::new(what, "`amalgam list --all` shows the jobs") }
}

/// The newest first; empty `states` means all states.
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
    let none = || Failure::new("you have no jobs, so `last` names none", "submit one with `amalgam submit`");
    found.jobs.first().map(|job| job.id).ok_or_else(none)
}

/// `last` and `all` need an answer from every global master.
fn all_known(silent: Vec<Failure>) -> Result<()> {
    match silent.into_iter().next() {
        None => Ok(()),
        Some(failure) => {
            let remedy = "name the jobs by their ids; `amalgam list` shows the known ones";
            Err(Failure { remedy: remedy.to_owned(), ..failure })
        }
    }
}

/// A job, or tasks of it: `JOB[.STAGE[.PLACES]]`, where a stage is a name or number and places are `3`, `0-49` or `0-4,7`; or an
/// attempt of a task, as printed in stories and lists, such as `7-1-3`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    job: Option<u64>,
    stage: Option<String>,
    /// Places of tasks in the stage; empty means all.
    places: Vec<RangeInclusive<u32>>,
    attempt: Option<String>,
    pub typed: String,
}

/// The selected part of a job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Meant {
    pub stage: Option<u32>,
    /// Places in the stage; empty means all.
    pub places: Vec<RangeInclusive<u32>>,
}

impl Meant {
    /// The place of the task, if one is given.
    pub fn index(&self) -> Option<u32> {
        match &self.places[..] {
            [place] if place.start() == place.end() => Some(*place.start()),
            _ => None,
        }
    }

    /// Whether the task at this place of the stage is selected.
    pub fn has(&self, index: u32) -> bool {
        self.places.is_empty() || self.places.iter().any(|places| places.contains(&index))
    }
}

impl Target {
    /// A value parser for the command line.
    pub fn parse(text: &str) -> std::result::Result<Target, String> {
        Target::read(text).ok_or_else(|| {
            "write JOB, JOB.STAGE or JOB.STAGE.PLACE, for instance `7`, `last`, `7.count.3` or `7.count.0-49`"
                .to_owned()
        })
    }

    fn read(text: &str) -> Option<Target> {
        let target = |job, stage, places, attempt| Target { job, stage, places, attempt, typed: text.to_owned() };
        if let [job, epoch, number] = text.split('-').collect::<Vec<_>>()[..]
            && let Ok(job) = job.parse::<u64>()
        {
            let is_attempt = epoch.parse::<u64>().is_ok() && number.parse::<u64>().is_ok();
            return is_attempt.then(|| target(Some(job), None, Vec::new(), Some(text.to_owned())));
        }
        let mut parts = text.splitn(3, '.');
        let job = match parts.next()? {
            "last" => None,
            id => Some(id.parse().ok()?),
        };
        let stage = parts.next().map(str::to_owned);
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
            (first <= last && last < u32::MAX).then_some(first..=last)
        };
        let places: Option<Vec<_>> = parts.next().into_iter().flat_map(|places| places.split(',')).map(range).collect();
        let places = places?;
        (stage.as_deref() != Some("")).then(|| target(job, stage, places, None))
    }

    /// Whether it is a whole job.
    pub fn is_job(&self) -> bool {
        self.stage.is_none() && self.attempt.is_none()
    }

    pub fn job(&self, client: &Client) -> Result<u64> {
        self.job.map_or_else(|| last(client), Ok)
    }

    /// The selected part of the job, which must exist.
    pub fn find(&self, client: &Client, job: &JobDetail) -> Result<Meant> {
        if let Some(attempt) = &self.attempt {
            return task_of(client, job.summary.id, attempt);
        }
        let stage = self.stage_number(job)?;
        let of = stage.and_then(|number| job.stages.get(number as usize));
        let tasks = of.map_or(0, |stage| stage.tasks.total);
        let beyond = self.places.iter().find(|places| u64::from(*places.end()) >= tasks);
        if let (Some(stage), Some(places)) = (of, beyond) {
            let id = job.summary.id;
            let tasks = counted(tasks, "task");
            let what = format!("no task {} in stage `{}` of job {id}, which has {tasks}", places.end(), stage.name);
            let remedy =
                format!("places count from 0, whatever the array's values are; `amalgam info {id} --tasks` lists them");
            return Err(Failure::new(what, remedy));
        }
        Ok(Meant { stage, places: self.places.clone() })
    }

    /// A name has priority over an equal number.
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

fn task_of(client: &Client, job: u64, attempt: &str) -> Result<Meant> {
    let attempts: Vec<AttemptSummary> = client.list(&format!("/v1/jobs/{job}/attempts"), &Query::default())?;
    let none = || {
        let what = format!("job {job} has no attempt {attempt}");
        Failure::new(what, format!("`amalgam info {job} --tasks --attempts` lists them"))
    };
    let found = attempts.iter().find(|one| one.attempt == attempt).ok_or_else(none)?;
    // `JOB.STAGE.INDEX`, with the stage's number.
    let stage = found.task.split('.').nth(1).and_then(|stage| stage.parse().ok()).ok_or_else(none)?;
    Ok(Meant { stage: Some(stage), places: vec![found.index..=found.index] })
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
    fn a_job_is_listed_once_and_marked_if_named_individually() {
        let named = |id, by_itself| Named { id, by_itself };
        let mentions = [1..=3, 2..=2].iter().flat_map(in_range).collect();
        assert_eq!(each_once(mentions), [named(1, false), named(2, true), named(3, false)]);
    }

    #[test]
    fn a_range_selects_existing_jobs_and_a_number_has_to_exist() {
        let ask = |there_are: &'static [u64]| {
            move |id| match there_are.contains(&id) {
                true => Ok(id),
                false => Err(Failure { kind: Kind::NotFound, ..Failure::new(format!("job {id} not found"), "") }),
            }
        };
        let range: Vec<Named> = in_range(&(1..=4)).collect();
        assert_eq!(each(&range, ask(&[2, 4])).unwrap(), [2, 4]);
        assert_eq!(each(&range, ask(&[])).unwrap_err().what, "jobs 1-4 not found");
        assert!(each(&[], ask(&[])).unwrap().is_empty());
        let single: Vec<Named> = in_range(&(3..=3)).collect();
        assert_eq!(each(&single, ask(&[2])).unwrap_err().what, "job 3 not found");
        assert!(each(&single, |_| Err::<u64, _>(Failure::new("no", ""))).is_err());
    }

    #[test]
    fn targets_accept_all_printed_forms() {
        let target = Target::parse("7.count.3").unwrap();
        assert_eq!((target.job, target.stage.as_deref(), &target.places[..]), (Some(7), Some("count"), &[3..=3][..]));
        assert_eq!(Target::parse("47.0.0").unwrap().stage.as_deref(), Some("0"));
        assert_eq!(Target::parse("last").unwrap().job, None);
        let attempt = Target::parse("7-1-3").unwrap();
        assert_eq!((attempt.job, attempt.attempt.as_deref(), attempt.is_job()), (Some(7), Some("7-1-3"), false));
        assert_eq!(Target::parse("15.main.0-49,60").unwrap().places, [0..=49, 60..=60]);
        for text in
            ["", "x", "7.", "7.a.b", "7.a.1.2", "7.a.", "7.a.5-3", "7.a.0-4294967295", "7-1-x", "1-3.main", ".main"]
        {
            assert!(Target::parse(text).is_err(), "{text}");
        }
        let meant = Meant { stage: Some(0), places: vec![0..=4, 7..=7] };
        assert!(meant.index().is_none() && meant.has(4) && meant.has(7) && !meant.has(5));
        assert_eq!(Meant { stage: Some(0), places: vec![3..=3] }.index(), Some(3));
    }
}
