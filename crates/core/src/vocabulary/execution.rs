//! The execution of an attempt: what is launched under which limits, and how it ended.

use super::resources::Thousandths;
use super::{
    AttemptId, ByteString, Digest, Duration, EndedFiles, ExecutionType, GrantId, HostList, InputFile, NodeId,
    OutputFile, Program, Resources, SharedGpu, TaskId,
};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Everything that an executor needs to run one attempt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchOrder {
    pub attempt: AttemptId,
    pub task: TaskId,
    /// The node that owns the attempt; one executor may serve several.
    pub node: NodeId,
    pub node_name: String,
    pub template: Arc<TaskTemplate>,
    /// The user's index value of the task.
    pub index: u64,
    /// The user's text for the task, where it has one.
    pub item: Option<ByteString>,
    pub devices: Devices,
    /// Files that it finds in its working directory; its node has them.
    pub inputs: Arc<[InputFile]>,
    /// The nodes of all tasks of its gang, if it is in one.
    pub hosts: Option<Arc<HostList>>,
    // The node agent needs the following fields to adopt the attempt again; the executor only keeps them.
    /// `None`: no ledger holds its resources.
    pub grant: Option<GrantId>,
    pub shared_gpu: Option<SharedGpu>,
    pub expected: Option<Duration>,
}

/// What all attempts of a stage have in common; those of one process share it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct TaskTemplate {
    pub job_name: String,
    pub stage_name: String,
    /// How many tasks the stage has.
    pub tasks: u32,
    pub program: Arc<Program>,
    /// The directory that the job was submitted from.
    pub submit_dir: ByteString,
    pub shape: Arc<TaskShape>,
    pub timeout: Option<Duration>,
    /// No node suits its tasks better than another with the same room.
    pub anywhere: bool,
    /// Files that each task writes.
    pub outputs: Vec<String>,
    /// No stage reads the outputs: they stay in the task's directory as well.
    pub keeps_outputs: bool,
    /// The account that the tasks run as, where the agent runs tasks as their job's user. As in the job.
    #[serde(default)]
    pub account: Option<String>,
}

/// What each task of a stage requires of a node, and its execution type.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct TaskShape {
    /// What an attempt holds. Its limits of CPU and memory; zero means no limit.
    pub resources: Resources,
    pub execution: ExecutionType,
}

/// Indexes of the assigned devices, by kind: `("gpu", [0, 3])`. A kind without indexes hides the node's devices of that kind.
pub type Devices = Vec<(String, Vec<u32>)>;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// How an attempt ended. Messages share it: every message is as large as the largest one, and several hold the same end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ended {
    pub reason: EndReason,
    pub usage: Usage,
    /// The first 4 KiB that the task wrote to `AMALGAM_ERROR_FILE`; for a preempted or shed attempt, for which work or from which
    /// queue.
    pub message: Option<String>,
    /// Present if it wrote outputs or did not get inputs.
    pub files: Option<Box<EndedFiles>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EndReason {
    /// It exited with this code.
    Exit(u8),
    /// A signal killed it.
    Signal(u8),
    OutOfMemory,
    Timeout,
    /// A guaranteed attempt needed its resources.
    Preempted,
    /// Removed from a node's queue, because the queue was too long or another node had room.
    Shed,
    NodeLost,
    Cancelled,
    DependencyFailed,
    /// Its process could not be started because of the task; the text gives the reason and a remedy.
    LaunchFailed(String),
    /// Its process could not be started because the node cannot start any; the text gives the reason.
    NodeFault(String),
    /// Its process was not started because an input file was not available; the text names the file and the reason.
    NoInput(String),
    /// It exited with 0 but did not write a file that its stage declares; the text names the file.
    NoOutput(String),
    /// Its job manager withdrew it before it started, which is not a failure; the text gives the reason.
    Withdrawn(String),
}

/// The stated run times of a job's tasks in total, and the measured ones of those that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Estimated {
    pub stated: Duration,
    pub measured: Duration,
}

/// Start of the line in an end's message that gives the reason why output below the cap was dropped.
pub const OUTPUT_UNWRITTEN: &str = "output was dropped: ";

/// What an attempt used.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Usage {
    pub wall: Duration,
    /// The part of `wall` in which other attempts had its CPU.
    pub yielded: Duration,
    /// User and system time together.
    pub cpu: Duration,
    pub max_memory_bytes: u64,
    /// Bytes written to each stream, kept or not.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// Bytes that were dropped: past the cap, or because they could not be written.
    pub dropped_bytes: u64,
}

impl Usage {
    /// How long the task took without the time in which it yielded its CPU: the progress in that time is not known.
    pub fn run_time(&self) -> Duration {
        Duration(self.wall.0.saturating_sub(self.yielded.0))
    }
}

impl LaunchOrder {
    /// Whether it is not booked and is preempted for guaranteed work.
    pub fn is_opportunistic(&self) -> bool {
        self.grant.is_none() && self.template.shape.execution == ExecutionType::Opportunistic
    }

    /// Makes the attempt guaranteed, and booked if there is a grant.
    pub fn promote(&mut self, grant: Option<GrantId>) {
        match grant {
            Some(_) => self.grant = grant,
            None => {
                let TaskShape { resources, .. } = *self.template.shape;
                let shape = Arc::new(TaskShape { resources, execution: ExecutionType::Guaranteed });
                self.template = Arc::new(TaskTemplate { shape, ..(*self.template).clone() });
            }
        }
    }

    /// Sets how long the attempt may run from its start.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.template = Arc::new(TaskTemplate { timeout, ..(*self.template).clone() });
    }

    /// Amalgam's environment variables, by name. The executor adds those that name directories (`AMALGAM_TASK_DIR`,
    /// `AMALGAM_ERROR_FILE`, `AMALGAM_PROGRESS_FILE`, `TMPDIR`).
    pub fn variables(&self) -> Vec<(Cow<'static, str>, ByteString)> {
        let TaskTemplate { job_name, stage_name, tasks, submit_dir, shape, .. } = &*self.template;
        let TaskShape { resources, execution } = &**shape;
        let cpus = resources.cpu_millis();
        let memory_bytes = u64::from(resources.memory_mib()) << 20;
        let always = [
            ("AMALGAM_JOB_ID", self.task.job.to_string()),
            ("AMALGAM_JOB_NAME", job_name.clone()),
            ("AMALGAM_STAGE", stage_name.clone()),
            ("AMALGAM_TASK_ID", self.task.to_string()),
            ("AMALGAM_INDEX", self.index.to_string()),
            ("AMALGAM_COUNT", tasks.to_string()),
            ("AMALGAM_ATTEMPT", self.attempt.to_string()),
            ("AMALGAM_NODE", self.node_name.clone()),
            ("AMALGAM_CPUS", Thousandths(cpus).to_string()),
            ("AMALGAM_GPUS", Thousandths(resources.gpu_millis()).to_string()),
            ("AMALGAM_MEM_BYTES", memory_bytes.to_string()),
            ("AMALGAM_EXECUTION", execution.label().to_owned()),
            // Libraries that would start a thread for each core of the machine start as many as the task has cores.
            ("OMP_NUM_THREADS", (cpus / 1_000).max(1).to_string()),
        ];
        let always = always.into_iter().map(|(name, value)| (Cow::from(name), value));
        let devices = self.devices.iter().flat_map(|(kind, indexes)| name_devices(kind, indexes));
        let texts = always.chain(devices).map(|(name, value)| (name, ByteString::from(value)));
        let directory = (Cow::from("AMALGAM_SUBMIT_DIR"), submit_dir.clone());
        let item = self.item.iter().map(|item| (Cow::from("AMALGAM_ITEM"), item.clone()));
        texts.chain([directory]).chain(item).collect()
    }
}

/// `AMALGAM_RESOURCE_<KIND>` if the task has any, and for GPUs the variable that CUDA programs use.
fn name_devices(kind: &str, indexes: &[u32]) -> impl Iterator<Item = (Cow<'static, str>, String)> {
    let list = indexes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let own = format!("AMALGAM_RESOURCE_{}", kind.to_ascii_uppercase().replace('-', "_"));
    let own = (!indexes.is_empty()).then(|| (Cow::from(own), list.clone()));
    let visible = (kind == "gpu").then(|| (Cow::from("CUDA_VISIBLE_DEVICES"), list));
    own.into_iter().chain(visible)
}

impl EndReason {
    pub fn is_success(&self) -> bool {
        *self == EndReason::Exit(0)
    }

    /// Whether the cause is outside the task, so that the next attempt does not count as a retry.
    pub fn is_infrastructure(&self) -> bool {
        matches!(self, EndReason::Preempted | EndReason::Shed | EndReason::Withdrawn(_)) || self.is_loss()
    }

    /// Whether its node could not run it. A task to which this happens repeatedly fails.
    pub fn is_loss(&self) -> bool {
        matches!(self, EndReason::NodeLost | EndReason::NodeFault(_) | EndReason::NoInput(_))
    }

    /// The exit code that the command line passes on: the task's own, 128 + n for signal n, 124 for a timeout,
    /// 137 for an out-of-memory kill, 126 for a failed launch, 130 for a cancelled task, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        match self {
            EndReason::Exit(code) => *code,
            EndReason::Signal(signal) => 128u8.saturating_add(*signal),
            EndReason::OutOfMemory => 137,
            EndReason::Timeout => 124,
            EndReason::LaunchFailed(_) | EndReason::NodeFault(_) | EndReason::NoInput(_) => 126,
            EndReason::Cancelled => 130,
            EndReason::Preempted
            | EndReason::Shed
            | EndReason::NodeLost
            | EndReason::DependencyFailed
            | EndReason::NoOutput(_)
            | EndReason::Withdrawn(_) => 1,
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
            EndReason::NoInput(_) => "no-input",
            EndReason::NoOutput(_) => "no-output",
            EndReason::Withdrawn(_) => "withdrawn",
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
            EndReason::Shed => f.write_str("shed from a node's queue"),
            EndReason::NodeLost => f.write_str("its node was lost"),
            EndReason::Cancelled => f.write_str("cancelled"),
            EndReason::DependencyFailed => f.write_str("a task that it depends on failed"),
            EndReason::LaunchFailed(why) | EndReason::NodeFault(why) | EndReason::NoInput(why) => {
                write!(f, "could not be launched: {why}")
            }
            EndReason::NoOutput(why) => f.write_str(why),
            EndReason::Withdrawn(why) => write!(f, "withdrawn: {why}"),
        }
    }
}

impl Ended {
    /// The end of an attempt that never ran.
    pub fn without_run(reason: EndReason) -> Arc<Ended> {
        Arc::new(Ended { reason, usage: Usage::default(), message: None, files: None })
    }

    pub fn outputs(&self) -> &[OutputFile] {
        self.files.as_ref().map_or(&[], |files| &files.outputs)
    }

    /// Inputs that it did not get, with the nodes that were asked.
    pub fn missing(&self) -> &[(Digest, NodeId)] {
        self.files.as_ref().map_or(&[], |files| &files.missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Epoch, JobId};

    fn variables(item: Option<&str>, devices: Devices) -> Vec<(String, String)> {
        let job = JobId(7);
        let shape = TaskShape { resources: Resources::new(1_500, 2), execution: ExecutionType::Auto };
        let template = TaskTemplate { shape: Arc::new(shape), ..TaskTemplate::default() };
        let order = LaunchOrder {
            attempt: AttemptId { job, epoch: Epoch(1), number: 0 },
            task: TaskId { job, stage: 0, index: 4 },
            node: NodeId(0),
            node_name: "node-7".to_owned(),
            hosts: None,
            shared_gpu: None,
            template: Arc::new(template),
            index: 40,
            item: item.map(ByteString::from),
            devices,
            inputs: Arc::default(),
            grant: None,
            expected: None,
        };
        order.variables().into_iter().map(|(name, value)| (name.into_owned(), value.to_string())).collect()
    }

    fn value<'a>(of: &'a [(String, String)], name: &str) -> Option<&'a str> {
        of.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn variables_name_the_task_and_its_resources() {
        let found = variables(Some("a line"), Devices::new());
        let expected = [
            ("AMALGAM_JOB_ID", "7"),
            ("AMALGAM_INDEX", "40"),
            ("AMALGAM_NODE", "node-7"),
            ("AMALGAM_ITEM", "a line"),
            ("AMALGAM_CPUS", "1.5"),
            ("AMALGAM_MEM_BYTES", "2097152"),
            ("AMALGAM_EXECUTION", "auto"),
            ("OMP_NUM_THREADS", "1"),
        ];
        for (name, expected) in expected {
            assert_eq!(value(&found, name), Some(expected), "{name}");
        }
        assert_eq!(value(&variables(None, Devices::new()), "AMALGAM_ITEM"), None);
    }

    #[test]
    fn a_task_sees_its_assigned_devices_and_none_of_a_hidden_kind() {
        let devices = vec![("gpu".to_owned(), vec![0, 3]), ("fast-disk".to_owned(), vec![1])];
        let found = variables(None, devices);
        assert_eq!(value(&found, "CUDA_VISIBLE_DEVICES"), Some("0,3"));
        assert_eq!(value(&found, "AMALGAM_RESOURCE_GPU"), Some("0,3"));
        assert_eq!(value(&found, "AMALGAM_RESOURCE_FAST_DISK"), Some("1"));
        let hidden = variables(None, vec![("gpu".to_owned(), vec![])]);
        assert_eq!(value(&hidden, "CUDA_VISIBLE_DEVICES"), Some(""));
        assert_eq!(value(&hidden, "AMALGAM_RESOURCE_GPU"), None);
    }
}
