//! Jobs, or tasks of one job: `3-7`, `15.main`, `15.main.3`, `15.main.0-4,7`.

use crate::client::Client;
use crate::failure::Result;
use crate::selectors::{Meant, Selector, Target};
use amalgam_daemon::api::ChosenTasks;

/// The argument of a verb: jobs, or tasks of one.
#[derive(Clone, Debug)]
pub enum ActTarget {
    Jobs(Selector),
    Tasks(Target),
}

impl ActTarget {
    /// A value parser for the command line.
    pub fn parse(text: &str) -> std::result::Result<ActTarget, String> {
        match Target::parse(text) {
            Ok(target) if !target.is_job() => Ok(ActTarget::Tasks(target)),
            Err(_) if text.contains('.') => {
                Err("write jobs as `7`, `1-5` or `last`, and tasks as `7.count`, `7.count.3` or `7.count.0-49`"
                    .to_owned())
            }
            _ => Selector::parse(text).map(ActTarget::Jobs),
        }
    }

    pub fn jobs(&self) -> Option<Selector> {
        match self {
            ActTarget::Jobs(selector) => Some(selector.clone()),
            ActTarget::Tasks(_) => None,
        }
    }

    pub fn tasks(&self) -> Option<&Target> {
        match self {
            ActTarget::Jobs(_) => None,
            ActTarget::Tasks(target) => Some(target),
        }
    }
}

/// The job, and those of these tasks that it has.
pub fn chosen(target: &Target, client: &Client) -> Result<(u64, Vec<ChosenTasks>)> {
    let id = target.job(client)?;
    let job = client.job(id)?;
    let Meant { stage, places } = target.find(client, &job)?;
    let stage = stage.unwrap_or(0);
    let tasks = job.stages.get(stage as usize).map_or(0, |stage| stage.tasks.total);
    let all = 0..=u32::try_from(tasks.saturating_sub(1)).unwrap_or(u32::MAX - 1);
    let places = if places.is_empty() { vec![all] } else { places };
    Ok((id, places.iter().map(|range| ChosenTasks { stage, first: *range.start(), last: *range.end() }).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_jobs_or_tasks() {
        assert!(matches!(ActTarget::parse("3-7,9"), Ok(ActTarget::Jobs(_))));
        for text in ["last", "all", "7", "3-7"] {
            assert!(matches!(ActTarget::parse(text), Ok(ActTarget::Jobs(_))), "{text}");
        }
        for text in ["15.main", "last.main.3", "15.main.0-49,60", "47.0.0", "7-1-3"] {
            assert!(matches!(ActTarget::parse(text), Ok(ActTarget::Tasks(_))), "{text}");
        }
        for text in ["15.", "15.main.", "15.main.x", "15.main.5-3", ".main", "1-3.main"] {
            assert!(ActTarget::parse(text).is_err(), "{text}");
        }
    }
}
