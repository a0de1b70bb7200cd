//! The execution of an attempt: what is launched under which limits, and how it ended.

use super::{AttemptId, Duration, ExecutionType, GrantId, Items, NodeId, Program, ResourceSpec, Resources, TaskId};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Everything that an executor needs to run one attempt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchOrder {
    pub attempt: AttemptId,
    pub task: TaskId,
    /// The node that owns the attempt; one executor may serve several.
    pub node: NodeId,
    pub program: Arc<Program>,
    /// The product's own variables, added after the program's: `AMALGAM_JOB_ID` and the others. Those that name
    /// directories (`AMALGAM_TASK_DIR`, `AMALGAM_ERROR_FILE`, `TMPDIR`) are the executor's to add.
    pub variables: Variables,
    /// The job's directory of submission.
    pub submit_dir: String,
    pub limits: Limits,
    /// What the node agent needs to adopt the attempt again; the executor only keeps it.
    pub carried: Carried,
}

/// Environment variables in the order of their setting, all in one allocation.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Variables {
    /// Each as `NAME=value`.
    texts: Items,
}

/// What a node agent knows of an attempt beside its process.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Carried {
    /// `None`: no ledger holds its resources.
    pub grant: Option<GrantId>,
    pub resources: Resources,
    pub execution: ExecutionType,
    pub timeout: Option<Duration>,
    pub expected: Option<Duration>,
}

/// What an attempt may use.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// CPU, memory and counts of devices; zero CPU or memory means no limit.
    pub resources: ResourceSpec,
    /// Indexes of the devices handed out, by kind: `("gpu", [0, 3])`.
    pub devices: Vec<(String, Vec<u32>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// How an attempt ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ended {
    pub reason: EndReason,
    /// Boxed: every message has room for the largest one, and this would make an end the largest by far.
    pub usage: Box<Usage>,
    /// What the task wrote to `AMALGAM_ERROR_FILE`, the first 4 KiB.
    pub message: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EndReason {
    /// It exited by itself with this code.
    Exit(u8),
    /// A signal ended it.
    Signal(u8),
    OutOfMemory,
    Timeout,
    /// A guaranteed attempt needed its resources.
    Preempted,
    /// Discarded from an overlong queue before it started.
    Shed,
    NodeLost,
    Cancelled,
    DependencyFailed,
    /// It never became a process, for a reason of the task's own; the text says why and what would help.
    LaunchFailed(String),
    /// It never became a process because its node could not make one of any task; the text says why.
    NodeFault(String),
}

/// What an attempt used.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Usage {
    pub wall: Duration,
    /// User and system time together.
    pub cpu: Duration,
    pub max_memory_bytes: u64,
    /// Bytes written to each stream, kept or not.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// Bytes past the cap, which were dropped.
    pub dropped_bytes: u64,
}

impl Variables {
    /// With room for so many, which take so many bytes together.
    pub fn with_room(variables: usize, bytes: usize) -> Variables {
        Variables { texts: Items::with_room(variables, bytes) }
    }

    /// Names hold no `=`. What would not fit in 4 GiB with the others is left out.
    pub fn push(&mut self, name: &str, value: impl fmt::Display) {
        let _ = self.texts.push_shown(format_args!("{name}={value}"));
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().filter_map(|text| text.split_once('='))
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Variables {
    fn from_iter<T: IntoIterator<Item = (&'a str, &'a str)>>(pairs: T) -> Variables {
        let mut variables = Variables::default();
        pairs.into_iter().for_each(|(name, value)| variables.push(name, value));
        variables
    }
}

impl EndReason {
    pub fn is_success(&self) -> bool {
        *self == EndReason::Exit(0)
    }

    /// Whether the fault lies outside the task, so that trying again costs none of its retries.
    pub fn is_infrastructure(&self) -> bool {
        matches!(self, EndReason::NodeLost | EndReason::NodeFault(_) | EndReason::Preempted | EndReason::Shed)
    }

    /// The exit code that the command line passes on: the task's own, 128 + n for signal n, 124 for a timeout,
    /// 137 for an out-of-memory kill, 126 for a failed launch, 130 for a cancelled task, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        match self {
            EndReason::Exit(code) => *code,
            EndReason::Signal(signal) => 128u8.saturating_add(*signal),
            EndReason::OutOfMemory => 137,
            EndReason::Timeout => 124,
            EndReason::LaunchFailed(_) | EndReason::NodeFault(_) => 126,
            EndReason::Cancelled => 130,
            EndReason::Preempted | EndReason::Shed | EndReason::NodeLost | EndReason::DependencyFailed => 1,
        }
    }

    /// One word for lists and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            EndReason::Exit(0) => "succeeded",
            EndReason::Exit(_) => "exit",
            EndReason::Signal(_) => "signal",
            EndReason::OutOfMemory => "out-of-memory",
            EndReason::Timeout => "timeout",
            EndReason::Preempted => "preempted",
            EndReason::Shed => "shed",
            EndReason::NodeLost => "node-lost",
            EndReason::Cancelled => "cancelled",
            EndReason::DependencyFailed => "dependency-failed",
            EndReason::LaunchFailed(_) => "launch-failed",
            EndReason::NodeFault(_) => "node-fault",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndReason::Exit(0) => f.write_str("succeeded"),
            EndReason::Exit(code) => write!(f, "exited with code {code}"),
            EndReason::Signal(signal) => write!(f, "ended by signal {signal}"),
            EndReason::OutOfMemory => f.write_str("out of memory: it passed its memory limit and was killed"),
            EndReason::Timeout => f.write_str("timed out"),
            EndReason::Preempted => f.write_str("preempted by guaranteed work"),
            EndReason::Shed => f.write_str("shed from an overlong queue"),
            EndReason::NodeLost => f.write_str("its node was lost"),
            EndReason::Cancelled => f.write_str("cancelled"),
            EndReason::DependencyFailed => f.write_str("a task that it depends on failed"),
            EndReason::LaunchFailed(why) | EndReason::NodeFault(why) => write!(f, "could not be launched: {why}"),
        }
    }
}

impl Ended {
    /// An end without a process behind it.
    pub fn without_run(reason: EndReason) -> Ended {
        Ended { reason, usage: Box::default(), message: None }
    }
}
