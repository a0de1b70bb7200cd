//! What a user submits: a job of stages of tasks.

use super::{ByteString, Constraint, Duration, InputSpec, JobId, Reads, ResourceSpec};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The most tasks that one job may have.
pub const MAX_TASKS: u64 = 20_000_000;
/// The most tasks of a gang: room for all of them is searched in one decision.
pub const MAX_GANG: u32 = 16_384;
/// The most priorities that the stages of a job have: the job is in the order of its queue once for each.
pub const MAX_PRIORITIES: usize = 32;
/// The most jobs that one job may depend on.
pub const MAX_AFTER_JOBS: usize = 10_000;
/// The most stages that one job may have.
pub const MAX_STAGES: usize = 100_000;

/// A validated job. Each stage comes after the stages that it depends on.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct JobSpec {
    pub name: String,
    /// The full name of the queue, such as `root.analytics`; empty for the default one.
    pub queue: String,
    /// The user who submitted it; the server overwrites the client's value.
    pub user: String,
    /// Jobs of a higher priority are scheduled first within their queue.
    pub priority: i32,
    /// The directory it was submitted from; absolute.
    pub submit_dir: ByteString,
    pub stages: Vec<StageSpec>,
    /// Other jobs that must have succeeded first.
    pub after_jobs: Vec<JobId>,
    /// Other jobs that must have ended first, with any outcome.
    #[serde(default)]
    pub after_jobs_any: Vec<JobId>,
    /// Once more tasks than this have failed permanently, the rest is cancelled.
    pub max_fails: Option<u32>,
    /// Accepted but not started until released.
    pub held: bool,
    /// Accepted although no known node could ever run it.
    pub wait_for_nodes: bool,
    /// The account on the nodes that its tasks run as, where agents run tasks as their job's user; the server overwrites
    /// the client's value. `None` if it was submitted to a server that knew no accounts.
    #[serde(default)]
    pub account: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct StageSpec {
    pub name: String,
    /// Indexes of the stages that must have succeeded first; all smaller than the index of this stage.
    pub after: Vec<u32>,
    pub tasks: TaskSet,
    pub program: Arc<Program>,
    /// Per task.
    pub resources: ResourceSpec,
    /// How long the user expects a task to run.
    pub expected: Option<Duration>,
    pub execution: ExecutionType,
    pub constraints: Vec<Constraint>,
    /// Names of the nodes that have its input; preferred for a limited time, not required.
    pub near: Vec<String>,
    /// How often a failed task is retried. Attempts that were lost, preempted or failed by their node do not count.
    pub retries: u32,
    /// Delay before the first retry; it doubles with each further failure. `None` for the default.
    #[serde(default)]
    pub retry_delay: Option<Duration>,
    /// An attempt that runs longer is stopped; `None` for the queue's default.
    pub timeout: Option<Duration>,
    /// The priority of its tasks; `None` for the job's.
    #[serde(default)]
    pub priority: Option<i32>,
    /// No task starts before room is booked for all of them. If one has to be retried, all that have not ended are.
    #[serde(default)]
    pub gang: bool,
    /// The most of its tasks that run or wait at nodes at once. With a limit, no task has a duplicate.
    #[serde(default)]
    pub at_once: Option<u32>,
    /// Files that each task writes, relative to its working directory.
    #[serde(default)]
    pub outputs: Vec<String>,
    /// Files of earlier stages that its tasks read.
    #[serde(default)]
    pub inputs: Vec<InputSpec>,
    /// Per task, how much it reads besides `inputs`, in KiB; not known for tasks after the last.
    #[serde(default)]
    pub input_kib: Vec<u32>,
    /// Where that input is stored.
    #[serde(default)]
    pub reads: Reads,
}

/// What an attempt executes.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Program {
    /// The program and its arguments; never empty.
    pub command: Vec<ByteString>,
    /// Added to the environment that tasks get on their node.
    pub env: Vec<(ByteString, ByteString)>,
    pub workdir: Workdir,
    /// Bytes of standard output, and of standard error, that are kept of an attempt; the rest is counted and dropped.
    pub output_cap: u64,
    /// The client forwards its standard input to the task; otherwise it is empty.
    #[serde(default)]
    pub stdin: bool,
    /// The file mode creation mask; `None` for the executor's.
    #[serde(default)]
    pub umask: Option<u16>,
    /// `None`: the stage does not say.
    #[serde(default)]
    pub isolation: Option<Isolation>,
    /// The image that the command runs in; see [`check_image`]. Executors before version 33 of the wire would run it without.
    #[serde(default)]
    pub container: Option<String>,
}

/// The attribute, with the value `yes`, of nodes that can run containers.
pub const CONTAINER: &str = "container";

/// Checks the name of an image: a reference such as `docker.io/library/debian:12`, or the absolute path of a file.
///
/// # Errors
/// What is wrong with it.
pub fn check_image(image: &str) -> Result<(), String> {
    const MOST: usize = 512;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@+".contains(&byte);
    if image.is_empty() || image.len() > MOST {
        return Err(format!("the name of an image has 1 to {MOST} characters"));
    }
    // A name that starts with `-` would be an option.
    if !image.bytes().all(is_allowed) || !image.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '/')
    {
        return Err(format!(
            "`{}` is not the name of an image, such as `docker.io/library/debian:12`",
            image.escape_debug()
        ));
    }
    Ok(())
}

impl Program {
    /// Whether a task has mounts of its own. Executors before version 33 of the wire do not know the field, and would run it without.
    pub fn is_isolated(&self) -> bool {
        self.isolation.is_some_and(|isolation| isolation != Isolation::None)
    }
}

/// What a task does not share with other processes of its node. A later one is separated from more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Isolation {
    None,
    /// It has `/tmp`, `/var/tmp` and `/dev/shm` of its own.
    PrivateTmp,
    /// It also has mounts, processes and IPC objects of its own, reads the system only, and gets no further privileges.
    Sandbox,
}

impl Isolation {
    pub const ALL: [Isolation; 3] = [Isolation::None, Isolation::PrivateTmp, Isolation::Sandbox];

    /// As it is written in job files and configurations.
    pub fn word(self) -> &'static str {
        match self {
            Isolation::None => "none",
            Isolation::PrivateTmp => "private-tmp",
            Isolation::Sandbox => "sandbox",
        }
    }
}

/// Where a task runs.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum Workdir {
    /// In the directory that the job was submitted from; a node that lacks it refuses the attempt.
    #[default]
    Submitted,
    /// In an empty directory of its own, which is kept until the job is forgotten.
    Own,
    /// In this absolute directory.
    Path(ByteString),
}

/// Whether an attempt can be preempted: opportunistic ones can, by guaranteed ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub enum ExecutionType {
    Guaranteed,
    Opportunistic,
    /// The preset decides.
    #[default]
    Auto,
}

/// The tasks of a stage, as one record for any number of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TaskSet {
    Count(u32),
    /// An array with the user's index values, in ascending order without overlaps.
    Indexes(Vec<IndexRange>),
    /// One task per item.
    Each(Items),
}

impl Default for TaskSet {
    fn default() -> TaskSet {
        TaskSet::Count(1)
    }
}

/// `first, first + step, ..` up to `last` inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IndexRange {
    pub first: u64,
    pub last: u64,
    pub step: u64,
}

/// Many short texts in one allocation: a million lines cost their bytes and four more each.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Items {
    #[serde(with = "super::byte_string")]
    text: Vec<u8>,
    /// Where each item ends in `text`.
    ends: Vec<u32>,
}

/// A configured queue. Children's guaranteed shares add up to at most their parent's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueSpec {
    /// Full name, such as `root.analytics`; the parent is the part before the last dot.
    pub name: String,
    /// Relative to its siblings, in thousandths (1000 is the usual weight).
    pub weight: u32,
    /// The share of the cluster, in millionths, that it gets before any sibling gets more. In a federation, if it has a global
    /// master, running tasks are preempted for it.
    pub guaranteed: u32,
    /// The share of the cluster, in millionths, that it never exceeds.
    pub maximum: u32,
    /// The share of the cluster, in millionths, that one user may take in it.
    pub user_limit: u32,
    /// The most jobs of it that run at once.
    pub max_running_jobs: Option<u32>,
    /// The timeout of stages without one.
    pub default_timeout: Option<Duration>,
    /// The preset of its jobs, and of those in queues below it that name none; `None` for the cluster's preset.
    pub preset: Option<String>,
    /// In a federation, the number of the global master that takes its jobs, and those of queues below it that name none. `None`
    /// if any global master takes them; then no tasks are preempted for it.
    pub global: Option<u8>,
}

impl JobSpec {
    pub fn task_count(&self) -> u64 {
        self.stages.iter().map(|stage| u64::from(stage.tasks.len())).sum()
    }

    /// The jobs that must have ended, or succeeded, first.
    pub fn comes_after(&self) -> impl Iterator<Item = JobId> {
        self.after_jobs.iter().chain(&self.after_jobs_any).copied()
    }
}

impl ExecutionType {
    pub fn label(self) -> &'static str {
        match self {
            ExecutionType::Guaranteed => "guaranteed",
            ExecutionType::Opportunistic => "opportunistic",
            ExecutionType::Auto => "auto",
        }
    }
}

impl StageSpec {
    /// The delay of stages without one.
    pub const FIRST_RETRY_DELAY: Duration = Duration::from_secs(1);
    /// Delays grow up to this; those that are longer from the start do not grow.
    pub const MOST_RETRY_DELAY: Duration = Duration::from_secs(60);

    pub fn first_retry_delay(&self) -> Duration {
        self.retry_delay.unwrap_or(StageSpec::FIRST_RETRY_DELAY)
    }

    /// The priority of its tasks in this job.
    pub fn priority_in(&self, job: &JobSpec) -> i32 {
        self.priority.unwrap_or(job.priority)
    }
}

impl TaskSet {
    pub fn len(&self) -> u32 {
        match self {
            TaskSet::Count(count) => *count,
            TaskSet::Indexes(ranges) => ranges.iter().map(|range| range.len() as u32).sum(),
            TaskSet::Each(items) => items.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The user's index value of the task at `position`.
    pub fn index_value(&self, position: u32) -> u64 {
        let TaskSet::Indexes(ranges) = self else { return u64::from(position) };
        let mut left = u64::from(position);
        for range in ranges {
            if left < range.len() {
                return range.first + left * range.step;
            }
            left -= range.len();
        }
        u64::from(position)
    }

    /// The position of the task with this index value.
    pub fn position_of(&self, index: u64) -> Option<u32> {
        let TaskSet::Indexes(ranges) = self else {
            return u32::try_from(index).ok().filter(|position| *position < self.len());
        };
        let mut before = 0;
        for range in ranges {
            if (range.first..=range.last).contains(&index) && (index - range.first).is_multiple_of(range.step.max(1)) {
                return Some((before + (index - range.first) / range.step.max(1)) as u32);
            }
            before += range.len();
        }
        None
    }

    pub fn item(&self, position: u32) -> Option<&[u8]> {
        match self {
            TaskSet::Each(items) => items.get(position),
            _ => None,
        }
    }
}

impl IndexRange {
    /// How many values it has; 0 where `last` is below `first`.
    pub fn len(&self) -> u64 {
        if self.last < self.first { 0 } else { (self.last - self.first) / self.step.max(1) + 1 }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Items {
    /// # Errors
    /// If the texts are larger than 4 GiB in total.
    pub fn push(&mut self, item: impl AsRef<[u8]>) -> Result<(), String> {
        let start = self.text.len();
        self.text.extend_from_slice(item.as_ref());
        let Ok(end) = u32::try_from(self.text.len()) else {
            self.text.truncate(start);
            return Err("the items are larger than 4 GiB in total".to_owned());
        };
        self.ends.push(end);
        Ok(())
    }

    pub fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn get(&self, position: u32) -> Option<&[u8]> {
        let position = position as usize;
        let end = *self.ends.get(position)? as usize;
        let start = if position == 0 { 0 } else { self.ends[position - 1] as usize };
        // Lengths from another process are checked here rather than trusted.
        self.text.get(start..end)
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|position| self.get(position))
    }

    /// Memory used, in bytes.
    pub fn bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<u32>()
    }

    pub fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn array_positions_map_to_the_users_values() {
        let set = TaskSet::Indexes(vec![
            IndexRange { first: 3, last: 9, step: 3 },
            IndexRange { first: 20, last: 21, step: 1 },
        ]);
        assert_eq!(set.len(), 5);
        let values: Vec<u64> = (0..5).map(|position| set.index_value(position)).collect();
        assert_eq!(values, [3, 6, 9, 20, 21]);
        let positions: Vec<Option<u32>> = values.iter().map(|value| set.position_of(*value)).collect();
        assert_eq!(positions, [Some(0), Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!([4, 12, 22].map(|value| set.position_of(value)), [None; 3]);
    }

    #[test]
    fn items_keep_their_texts() {
        let mut items = Items::default();
        let texts = [&b"a b"[..], b"", "ü".as_bytes(), b"caf\xe9"];
        for item in texts {
            items.push(item).unwrap();
        }
        assert_eq!(items.iter().collect::<Vec<_>>(), texts);
        assert_eq!(items.get(4), None);
    }
}
