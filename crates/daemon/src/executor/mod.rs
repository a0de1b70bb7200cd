//! The executor: a separate process that starts the tasks and outlives the agent.
//!
//! It has a small heap, one epoll loop on its main thread (`serve.rs`), and threads for slow file operations and for
//! input. An agent connects over a Unix socket, sends orders to launch attempts and receives reports. Tasks continue
//! without an agent, and every end is kept until an agent acknowledges it. The executor makes no scheduling decisions.
//!
//! * `serve.rs`: the loop, the lock, the socket, the agent's link, and when to exit
//! * `tasks/`: the steps of an attempt: launch, output, exit, remaining processes, end
//! * `prepare.rs`: environment, directories and the search for the program; `exec_failure.rs`: why it did not start
//! * `accounts.rs`: the accounts of jobs' users
//! * `outputs.rs`: the declared outputs of tasks; `input.rs`: their standard input
//! * `task_dirs.rs`: scratch directories; `capture.rs`: one stream of output
//! * `progress.rs`: the progress of attempts; `precedence.rs`: their CPU and disk priority
//! * `members.rs`: the processes of an attempt without a cgroup
//! * `cgroups.rs`: the pool of cgroups; `hierarchy.rs`: their versions 1 and 2; `own_group.rs`: that of this process;
//!   `processes.rs`: how many processes they may have; `offered.rs`: what is possible here
//! * `devices.rs`: access to devices
//! * `isolation.rs`: tasks with directories of their own for temporary files, and sandboxes
//! * `containers.rs`: the commands of podman and apptainer
//! * `sys/`: the only unsafe code; `host.rs`: the properties of this machine
//! * `client.rs`: the agent's side; `link.rs`: either end of the connection
//! * `pretended.rs`: a simulated executor in the agent's process, which starts no tasks

mod accounts;
mod capture;
mod cgroups;
pub mod client;
mod container_removal;
pub mod containers;
mod devices;
mod exec_failure;
mod hierarchy;
pub mod host;
mod input;
mod isolation;
mod link;
mod members;
pub mod offered;
mod outputs;
mod own_group;
mod precedence;
mod prepare;
mod pretended;
mod processes;
mod progress;
mod serve;
mod sys;
mod task_dirs;
mod tasks;
mod user_limits;

pub use client::{Hello, claim, connect, ensure_running};
pub use devices::DeviceFiles;
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
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

/// The exit code if another executor uses the state directory.
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
    /// Directory of tasks' directories and output. Only one executor can use it.
    pub state: PathBuf,
    pub enforcement: EnforcementChoice,
    /// Time without an agent, a task and an unacknowledged end after which the executor exits.
    pub idle_exit: Duration,
    /// Time without an agent after which all tasks are killed; `None` means never.
    pub leash: Option<Duration>,
    pub run_as: RunAs,
    /// The declared devices and their files. NVIDIA GPUs need not be declared.
    pub devices: Vec<DeviceFiles>,
}

/// As whom tasks run.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum RunAs {
    /// As the executor's own user, for jobs of all users.
    #[default]
    Agent,
    /// As the account of their job's user. Only root can do that.
    JobUser {
        /// Whether tasks may run as root.
        allows_root: bool,
    },
}

/// A message from an agent to the executor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExecutorFrame {
    Order(ToExecutor),
    /// The agent serves only these nodes: attempts of other nodes have no owner.
    Serve {
        nodes: Vec<NodeId>,
    },
    /// Kill every task and exit.
    Shutdown,
}

/// A message from the executor to an agent. `Hello` is the first one on every connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ExecutorReply {
    Hello(Hello),
    Report(ExecutorReport),
    /// A line for the agent's diagnostics.
    Note(String),
}

/// How the limits of tasks are enforced on this machine, and which are not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Enforcement {
    pub mechanism: Mechanism,
    pub enforces_memory: bool,
    pub enforces_cpu: bool,
    /// The limits that are not enforced and the reasons, for users.
    pub notes: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Mechanism {
    CgroupV2,
    CgroupV1,
    /// Memory is measured periodically, and a task above its limit is killed.
    Polling,
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum EnforcementChoice {
    /// Cgroups if they can be used, otherwise polling.
    #[default]
    Auto,
    /// Cgroups. If they cannot be used, the executor does not start.
    Cgroup,
    Polling,
    None,
}

#[derive(Debug, thiserror::Error)]
pub enum ExecutorError {
    #[error("cannot {what} {path}: {error}", path = path.display())]
    File { what: &'static str, path: PathBuf, error: io::Error },
    #[error(
        "another executor (pid {pid}) uses {state}; connect to its socket, or stop it with `kill {pid}`",
        state = state.display()
    )]
    AlreadyRunning { pid: String, state: PathBuf },
    #[error(transparent)]
    Lock(LockError),
    #[error("cgroups are requested but cannot be used: {0}; use `--enforcement auto` to run without them")]
    NoCgroups(String),
    #[error(
        "the executor (pid {pid}) of this agent's work directory runs tasks {run_as}, and this agent would run them {wanted}; start the \
         agent as before until its tasks have ended, or stop them with `kill {pid}`"
    )]
    RunsAs { pid: u32, run_as: RunAs, wanted: RunAs },
    #[error("cannot {what}: {error}")]
    System { what: &'static str, error: io::Error },
    #[error("the executor did not start: {0}")]
    NotStarted(String),
    /// Like `NotStarted`, because of [`ExecutorError::AlreadyRunning`] in the started process.
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

/// How the names of files with this stream end.
pub fn ending(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "out",
        Stream::Stderr => "err",
    }
}

/// The file with the output of an attempt. It does not exist before the first byte.
pub fn output_path(state: &Path, attempt: AttemptId, stream: Stream) -> PathBuf {
    output_dir(state, attempt.job).join(format!("{attempt}.{}", ending(stream)))
}

/// The empty file that stays when the output of an attempt is removed before its job is forgotten.
pub fn removed_mark(state: &Path, attempt: AttemptId, stream: Stream) -> PathBuf {
    output_dir(state, attempt.job).join(format!("{attempt}.{}.removed", ending(stream)))
}

/// The output was removed, because that of all ended tasks exceeded its limit.
#[derive(thiserror::Error, Debug)]
#[error("it was removed, because the output of ended tasks exceeded its limit")]
pub struct OutputRemoved;

/// Part of an attempt's output from this machine's files; empty at or past its current end.
///
/// # Errors
/// [`OutputRemoved`], or if the file cannot be read.
pub fn read_output(state: &Path, attempt: AttemptId, stream: Stream, offset: u64, limit: u32) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match std::fs::File::open(output_path(state, attempt, stream)) {
        Ok(mut file) => {
            file.seek(SeekFrom::Start(offset))?;
            file.take(u64::from(limit)).read_to_end(&mut bytes)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if removed_mark(state, attempt, stream).exists() {
                return Err(io::Error::other(OutputRemoved));
            }
            // The file does not exist before the first byte is written.
        }
        Err(error) => return Err(error),
    }
    Ok(bytes)
}

/// The directory that an attempt with `workdir = "own"` runs in.
pub fn own_dir(state: &Path, attempt: AttemptId) -> PathBuf {
    own_dirs(state, attempt.job).join(attempt.to_string())
}

/// Removes the files of a job: its output and its tasks' own directories. Returns messages about files that could not
/// be removed.
pub fn forget_job(state: &Path, job: JobId) -> Vec<String> {
    let directories = [output_dir(state, job), own_dirs(state, job)];
    let mut pace = Pace::gentle(|| false);
    directories.iter().filter_map(|directory| remove_or_put_aside(state, directory, &mut pace)).collect()
}

/// The directory with a directory for the output of each job.
pub fn output_root(state: &Path) -> PathBuf {
    state.join("output")
}

fn output_dir(state: &Path, job: JobId) -> PathBuf {
    output_root(state).join(job.to_string())
}

fn own_dirs(state: &Path, job: JobId) -> PathBuf {
    state.join("own").join(job.to_string())
}

impl fmt::Display for RunAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RunAs::Agent => "as its own user",
            RunAs::JobUser { allows_root: false } => "as their job's user",
            RunAs::JobUser { allows_root: true } => "as their job's user, root included",
        })
    }
}

impl FromStr for EnforcementChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<EnforcementChoice, String> {
        match text {
            "auto" => Ok(EnforcementChoice::Auto),
            "cgroup" => Ok(EnforcementChoice::Cgroup),
            "polling" => Ok(EnforcementChoice::Polling),
            "none" => Ok(EnforcementChoice::None),
            _ => Err(format!("unknown enforcement `{text}`; known: auto, cgroup, polling, none")),
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
