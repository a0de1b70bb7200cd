//! The executor: a process of its own that owns the tasks and outlives the agent.
//!
//! It has one thread, a small heap and one epoll loop (`serve.rs`). An agent connects over a unix socket, orders
//! launches and is told what became of them; when it goes away the tasks go on, and every end is kept until an agent
//! acknowledges it. Nothing here decides anything about scheduling.
//!
//! * `serve.rs` the loop: lock, socket, the agent's link, when to exit
//! * `tasks.rs` the life of an attempt: launch, output, exit, leftovers, end
//! * `prepare.rs` environment, directories and the search for the program; `exec_failure.rs` why it did not start
//! * `outputs.rs` the files that tasks declare to leave
//! * `task_dirs.rs` scratch directories; `capture.rs` one stream of output
//! * `progress.rs` how far attempts have come; `precedence.rs` who gives way to whom
//! * `members.rs` which processes belong to an attempt
//! * `cgroups.rs` the pool of cgroups over `hierarchy.rs` (v1 and v2)
//! * `sys.rs` the only unsafe code; `host.rs` what this machine has
//! * `client.rs` the agent's side; `link.rs` either end of the connection
//! * `pretended.rs` stands in for all of it where tasks are only pretended, in the agent's own process

mod capture;
mod cgroups;
pub mod client;
mod exec_failure;
mod hierarchy;
pub mod host;
mod input;
mod link;
mod members;
mod outputs;
mod precedence;
mod prepare;
mod pretended;
mod progress;
mod serve;
mod sys;
mod task_dirs;
mod tasks;

pub use client::{Hello, claim, connect, ensure_running};
#[cfg(test)]
pub(crate) use input::Input;
pub(crate) use input::{end_of_input, input_path};
pub use link::Link;
pub use pretended::PretendedExecutor;
pub use serve::run;

use crate::lock::LockError;
use crate::removal::{Pace, remove_or_put_aside};
use crate::terminal::visible;
use amalgam_core::protocol::{ExecutorReport, ToExecutor};
use amalgam_core::vocabulary::{AttemptId, JobId, NodeId, Stream};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

/// The exit code of a process that found another executor in its state directory.
const ALREADY_RUNNING: u8 = 3;

/// Runs an executor with the arguments of a command line, see [`run`].
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let error = match ExecutorConfig::parse(arguments).map(run) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => error,
        Err(what) => ExecutorError::NotStarted(what),
    };
    let (what, code) = match error {
        ExecutorError::Locked(what) => (what, ExitCode::from(ALREADY_RUNNING)),
        ExecutorError::NotStarted(what) => (what, ExitCode::FAILURE),
        error => (error.to_string(), ExitCode::FAILURE),
    };
    eprintln!("{}", visible(&what));
    code
}

#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    pub socket: PathBuf,
    /// Where tasks' directories and output live; one executor per state directory.
    pub state: PathBuf,
    pub enforcement: EnforcementChoice,
    /// How long it stays without an agent, a task or an unacknowledged end.
    pub idle_exit: Duration,
    /// How long tasks may go on without an agent before they are killed; `None` for ever.
    pub leash: Option<Duration>,
}

/// What an agent sends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExecutorFrame {
    Order(ToExecutor),
    /// The agent serves these nodes and no others: attempts of nodes that were here before have no owner.
    Serve {
        nodes: Vec<NodeId>,
    },
    /// Kill every task and exit.
    Shutdown,
}

/// What an agent receives; `Hello` comes first on every connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExecutorReply {
    Hello(Hello),
    Report(ExecutorReport),
    /// For whoever reads the agent's log.
    Note(String),
}

/// What holds tasks to their limits on this machine, and what nothing does.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Enforcement {
    pub mechanism: Mechanism,
    pub enforces_memory: bool,
    pub enforces_cpu: bool,
    /// What cannot be enforced and why, for people.
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Mechanism {
    CgroupV2,
    CgroupV1,
    /// Memory is watched and a task over its limit is killed.
    Polling,
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum EnforcementChoice {
    /// Cgroups where they are permitted, else polling.
    #[default]
    Auto,
    /// Cgroups, or refuse to start.
    Cgroup,
    Polling,
    None,
}

#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    #[error("cannot {what} {path}: {error}", path = path.display())]
    File { what: &'static str, path: PathBuf, error: io::Error },
    #[error(
        "an executor (pid {pid}) already serves {state}; connect to its socket, or stop it with `kill {pid}`",
        state = state.display()
    )]
    AlreadyRunning { pid: String, state: PathBuf },
    #[error(transparent)]
    Lock(LockError),
    #[error("cgroups were asked for but cannot be used: {0}. Use `--enforcement auto` to go on without them")]
    NoCgroups(String),
    #[error("cannot {what}: {error}")]
    System { what: &'static str, error: io::Error },
    #[error("the executor did not start: {0}")]
    NotStarted(String),
    /// The same because of [`ExecutorError::AlreadyRunning`], as the starting process reports it.
    #[error("the executor did not start: {0}")]
    Locked(String),
}

impl ExecutorError {
    fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ExecutorError {
        move |error| ExecutorError::File { what, path: path.to_owned(), error }
    }

    fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> ExecutorError {
        move |error| ExecutorError::System { what, error: error.into() }
    }
}

/// The file that holds the output of an attempt. It does not exist before the first byte.
pub fn output_path(state: &Path, attempt: AttemptId, stream: Stream) -> PathBuf {
    let ending = match stream {
        Stream::Stdout => "out",
        Stream::Stderr => "err",
    };
    output_dir(state, attempt.job).join(format!("{attempt}.{ending}"))
}

/// The directory that an attempt with `workdir = "own"` runs in.
pub fn own_dir(state: &Path, attempt: AttemptId) -> PathBuf {
    own_dirs(state, attempt.job).join(attempt.to_string())
}

/// Removes everything kept for a job: its output and its tasks' own directories. Returns what could not be removed, for people.
pub fn forget_job(state: &Path, job: JobId) -> Vec<String> {
    let directories = [output_dir(state, job), own_dirs(state, job)];
    let mut pace = Pace::gentle(|| false);
    directories.iter().filter_map(|directory| remove_or_put_aside(state, directory, &mut pace)).collect()
}

fn output_dir(state: &Path, job: JobId) -> PathBuf {
    state.join("output").join(job.to_string())
}

fn own_dirs(state: &Path, job: JobId) -> PathBuf {
    state.join("own").join(job.to_string())
}

impl FromStr for EnforcementChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<EnforcementChoice, String> {
        match text {
            "auto" => Ok(EnforcementChoice::Auto),
            "cgroup" => Ok(EnforcementChoice::Cgroup),
            "polling" => Ok(EnforcementChoice::Polling),
            "none" => Ok(EnforcementChoice::None),
            _ => Err(format!("`{text}` is not a way to enforce limits; use auto, cgroup, polling or none")),
        }
    }
}

impl fmt::Display for EnforcementChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EnforcementChoice::Auto => "auto",
            EnforcementChoice::Cgroup => "cgroup",
            EnforcementChoice::Polling => "polling",
            EnforcementChoice::None => "none",
        })
    }
}
