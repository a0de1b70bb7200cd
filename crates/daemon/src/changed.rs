//! Checks a changed configuration against the jobs that have not ended. If it would run them differently than they were
//! submitted, the start is refused with the jobs and a remedy.

use amalgam_core::dispatch::{Dispatcher, JobState};
use amalgam_core::hosting::Roles;
use amalgam_core::protocol::AdmittedJob;
use amalgam_core::vocabulary::{HostId, JobId, Seat};
use amalgam_core::why::counted;
use std::collections::BTreeMap;

/// Why the configuration does not fit some jobs.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what}, and {jobs} not ended ({named})")]
pub struct Misfit {
    what: String,
    jobs: String,
    named: String,
    /// What to do.
    pub remedy: String,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Wrong {
    what: String,
    /// How the jobs are affected, as the end of "2 jobs ..".
    which: &'static str,
    /// What to do; `JOB` stands for one of the jobs.
    remedy: String,
}

const PRESET_BACK: &str =
    "start the server with its previous preset, and change the preset once these jobs have ended or are cancelled";

/// # Errors
/// The first misfit, with all affected jobs.
pub(crate) fn check(roles: &Roles) -> Result<(), Misfit> {
    let Some(dispatch) = roles.dispatch() else { return Ok(()) };
    let mut wrong: BTreeMap<Wrong, Vec<JobId>> = BTreeMap::new();
    let mut queues_gone: BTreeMap<&str, u64> = BTreeMap::new();
    for (job, state) in dispatch.jobs_from(JobId(0)) {
        if !matches!(state, JobState::Ended(_)) {
            if let Some(misfit) = misfit(roles, dispatch, job) {
                wrong.entry(misfit).or_default().push(job.id);
            }
        } else if dispatch.queue_of(job.id).is_none() {
            *queues_gone.entry(&job.spec.queue).or_default() += 1;
        }
    }
    for (queue, ended) in queues_gone {
        let jobs = counted(ended, "ended job");
        tracing::warn!(
            "the configuration has no queue {} that takes jobs; its ended jobs keep the name ({jobs})",
            queue.escape_debug()
        );
    }
    const NAMED: usize = 10;
    let Some((Wrong { what, which, remedy }, jobs)) = wrong.into_iter().next() else { return Ok(()) };
    let mut named: Vec<String> = jobs.iter().take(NAMED).map(JobId::to_string).collect();
    named.extend((jobs.len() > NAMED).then(|| "..".to_owned()));
    let remedy = remedy.replace("JOB", &jobs[0].to_string());
    let have = if jobs.len() == 1 { "has" } else { "have" };
    let jobs = format!("{} {which} {have}", counted(jobs.len() as u64, "job"));
    Err(Misfit { what, jobs, named: named.join(", "), remedy })
}

fn misfit(roles: &Roles, dispatch: &Dispatcher, job: &AdmittedJob) -> Option<Wrong> {
    queue_misfit(roles, dispatch, job)
        .or_else(|| preset_misfit(roles, dispatch, job))
        .or_else(|| gang_misfit(roles, dispatch, job))
}

fn queue_misfit(roles: &Roles, dispatch: &Dispatcher, job: &AdmittedJob) -> Option<Wrong> {
    let (queues, name) = (dispatch.queues(), &job.spec.queue);
    let move_them = "cancel these jobs or move them, `amalgam update JOB queue=root.other`";
    let Some(queue) = dispatch.queue_of(job.id) else {
        let holds_others = queues.find(name).is_some();
        let what = match holds_others {
            true => format!("queue {name} of the configuration holds other queues now and takes no jobs"),
            false => format!("the configuration has no queue {name} that takes jobs"),
        };
        let put_back = match holds_others {
            true => "remove the queues below it, and before you add them",
            false => "restore the queue, and before you remove it",
        };
        return Some(Wrong { what, which: "of it", remedy: format!("{put_back} {move_them}") });
    };
    let (Some(Seat::Global(_, own)), Some(home)) = (roles.seat(), queues.global_of(queue)) else { return None };
    (own.0 != home).then(|| {
        let what = format!("queue {name} belongs to global master {home} now, and this is global master {}", own.0);
        let remedy = format!("restore `global = {}` for it, and before you change that {move_them}", own.0);
        Wrong { what, which: "of it", remedy }
    })
}

fn preset_misfit(roles: &Roles, dispatch: &Dispatcher, job: &AdmittedJob) -> Option<Wrong> {
    let preset = roles.preset();
    // If the master books tasks, job managers in job hosts cannot run their jobs.
    if roles.master.is_some() && job.host != HostId::SERVER && !preset.is_distributed() {
        let what = format!("job hosts do not support the preset {}", preset.name());
        return Some(Wrong { what, which: "of a job host", remedy: PRESET_BACK.to_owned() });
    }
    let wanted = job.preset.as_deref().filter(|wanted| *wanted != preset.name())?;
    let drawn = dispatch.drawn_preset();
    (!preset.still_serves(wanted, dispatch.queues(), drawn)).then(|| {
        let what = format!("jobs cannot use the preset {wanted} on a cluster with the preset {}", preset.name());
        Wrong { what, which: "with that preset", remedy: PRESET_BACK.to_owned() }
    })
}

fn gang_misfit(roles: &Roles, dispatch: &Dispatcher, job: &AdmittedJob) -> Option<Wrong> {
    let is_gang = dispatch.jobs_place_all() && job.spec.stages.iter().any(|stage| stage.gang);
    is_gang.then(|| {
        let preset = roles.preset().name();
        let what = format!("the preset {preset} does not support gangs, because its jobs place their tasks one by one");
        Wrong { what, which: "with gangs", remedy: PRESET_BACK.to_owned() }
    })
}
