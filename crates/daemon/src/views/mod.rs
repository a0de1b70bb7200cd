//! Converts the state of the roles to the data of the public interface.

mod amounts;
mod cluster;
mod ends;
mod jobs;
mod nodes;
mod queues;
mod stages;
mod tasks;

pub use cluster::cluster;
pub use ends::task_name;
pub use jobs::{job, jobs, manager_that_is_away, owner, waited};
pub use nodes::{node, nodes};
pub use queues::queues;
pub use stages::attempt_counts;
pub use tasks::{count_chosen, tasks};

use amalgam_core::dispatch::{self, Dispatcher};
use amalgam_core::hosting::Roles;
use amalgam_core::job_manager::JobManager;
use amalgam_core::protocol::AdmittedJob;
use amalgam_core::vocabulary::{HostId, Instant, JobId};
use amalgam_core::why::Why;
use std::cell::OnceCell;
use std::collections::HashMap;

/// A job with its manager at one time.
struct Job<'a> {
    job: &'a AdmittedJob,
    state: &'a dispatch::JobState,
    manager: Option<&'a JobManager>,
    dispatch: &'a Dispatcher,
    now: Instant,
    /// Whether the job host of its manager is connected. Always true for the server's own managers.
    is_managed: bool,
    /// The version of that job host's program, if it is connected and reports it.
    host_program: Option<String>,
    /// Reasons of the master, then of the job manager. They are expensive to compute.
    explained: OnceCell<Vec<Why>>,
}

fn look(roles: &Roles, id: JobId, now: Instant) -> Option<Job<'_>> {
    let dispatch = roles.dispatch()?;
    let (job, state) = dispatch.job(id)?;
    let (manager, is_managed) = (roles.jobs.get(&id).map(Box::as_ref), true);
    let explained = OnceCell::new();
    Some(Job { job, state, manager, dispatch, now, is_managed, host_program: None, explained })
}

/// The connected job hosts, with the versions of their programs.
pub type Hosts = HashMap<HostId, Option<String>>;
