//! The settings of a preset. Each alternative has its own settings, so that meaningless combinations cannot be expressed.

use super::encoded;
use crate::job_manager::{AllowanceRules, CorrectionRules, ExplorationRules};
use crate::master::Steering;
use crate::node::{OpportunisticRules, ReportWaits};
use crate::policy::inter_job::{InterJob, Within};
use crate::policy::placement::CompletionSettings;
use crate::policy::{Mix, Quota};
use crate::scheduling::{Delays, Reclaim};
use crate::vocabulary::Duration;
use serde::{Deserialize, Serialize};

/// How a cluster schedules: what is decided where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Scheduling {
    /// Guaranteed tasks are booked before they are sent, in an order of jobs.
    Booked(Booked),
    /// Job managers send each task to nodes' queues. Nothing is booked and there is no order of jobs.
    Probed(Probed),
    /// Job managers send tasks to nodes' queues within their jobs' entitlements. Nothing is booked.
    Entitled(Entitled),
}

/// The settings of clusters that book guaranteed tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Booked {
    pub by: Booker,
    pub inter_job: InterJob,
    pub demand: DemandOrder,
    /// How long asks wait for room near their input.
    pub delays: Delays,
    /// Job managers send opportunistic tasks to nodes' queues besides booked ones; `None` if all tasks are booked.
    pub opportunistic: Option<Opportunistic>,
    /// Slow nodes are avoided, and slow attempts get a duplicate; `None` if neither is so.
    #[serde(default)]
    pub corrections: Option<CorrectionRules>,
}

/// The role that books.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Booker {
    /// The master, against its ledger.
    Master {
        placement: Placement,
        /// An ask that found no room for this long gets a node reserved.
        reserve_after: Duration,
        /// Others may run on reserved nodes until those are needed.
        #[serde(default)]
        backfill: bool,
        /// Work of jobs beyond what they are entitled to is preempted for others; `None` if none is.
        #[serde(default)]
        reclaim: Option<Reclaim>,
    },
    /// Global masters, over all clusters of a federation, whose masters verify each booking.
    GlobalMasters {
        /// Whether global masters that search the same nodes start at different ones.
        scattered: bool,
        /// Masters report changes to global masters within this time; `None`: with the next heartbeat.
        report_changes_after: Option<Duration>,
        /// As for a master, of the work of its own jobs; that of other global masters is preempted by the shares of queues only.
        #[serde(default)]
        reclaim: Option<Reclaim>,
        /// An ask that found no room for this long gets nodes reserved, on which others may run until they are needed; `None`: none is.
        #[serde(default)]
        reserve_after: Option<Duration>,
    },
}

/// What a job requests, and in which order its stages use what it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DemandOrder {
    /// Everything that can run.
    Everything(IntraJob),
    /// What a plan within the job's share needs now: jobs yield the rest.
    Yielding(Yielding),
}

/// Jobs plan within their shares and report what can wait; the order of jobs applies to what cannot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Yielding {
    pub plans: Plans,
    /// The order of jobs for leftover resources.
    pub leftover: InterJob,
    /// The probability with which a job yields when its demand changes, in millionths: P(altruism).
    pub altruism: u32,
}

/// The order in which plans are packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Plans {
    By(IntraJob),
    /// Around the stages that are long or hard to pack (DAGPS).
    Dagps,
}

/// Opportunistic tasks besides booked ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Opportunistic {
    /// Which tasks are opportunistic.
    pub mix: Mix,
    pub placement: QueueChoice,
    pub quota: Quota,
    /// Attempts that have run for this long request to be guaranteed; `None` if none do.
    pub promote_after: Option<Duration>,
    pub steering: Steering,
    /// Nodes first start the tasks of the job that was submitted first.
    pub reorder: bool,
    /// The rules of nodes for them.
    pub at_nodes: OpportunisticRules,
}

/// The settings of clusters whose job managers send every task to nodes' queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Probed {
    pub intra_job: IntraJob,
    pub choice: QueueChoice,
}

/// The node to whose queue a job manager sends a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum QueueChoice {
    /// `ratio` random nodes are probed for each task, which is sent to the one that is ready first.
    BatchSampling {
        ratio: u32,
    },
    Random,
    /// The less loaded of two random nodes.
    PowerOfTwo,
    /// One of the k nodes where it would wait least.
    TopRanked {
        k: u32,
    },
}

/// The settings of clusters whose nodes queue tasks and publish how long others would wait: job managers send as many
/// guaranteed ones as their jobs are entitled to, and opportunistic ones beyond.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "encoded::Entitled", into = "encoded::Entitled")]
pub struct Entitled {
    pub intra_job: IntraJob,
    pub choice: Choice,
    /// The part of the cluster that may be guaranteed, in hundredths.
    pub guaranteed: u32,
    pub waits: ReportWaits,
    /// How the jobs of a queue share its entitlement.
    pub within: Within,
    /// How long nodes keep room that guaranteed work leaves for guaranteed work: its job sends the next task.
    pub keep_freed: Duration,
    /// Opportunistic attempts yield their CPU to guaranteed work for at most this time; `None`: they are stopped at once.
    pub yields_for: Option<Duration>,
    pub allowance: AllowanceRules,
    /// Job managers correct earlier decisions; `None` if they do not.
    pub corrections: Option<CorrectionRules>,
    /// Job managers assume this run time for all tasks, regardless of estimates.
    pub assumed_run_time: Option<Duration>,
}

/// The node to which a job manager sends a task within its entitlement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// The node where it is expected to end first.
    EarliestCompletion(CompletionSettings),
    /// A node near the input, farther away the longer a task waits, without estimates.
    RelaxedLocality {
        /// How long job managers wait for room near a task's input.
        delays: Delays,
        /// Job managers try other nodes for waiting tasks; `None` if they do not.
        explores: Option<ExplorationRules>,
    },
}

/// The order in which the stages of a job use what it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum IntraJob {
    /// The order of the job file.
    BreadthFirst,
    /// The longest path to the end first.
    CriticalPath,
    /// The stage that fits a node's room best.
    Tetris,
}

/// The node on which the master books a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Placement {
    /// The next node, cyclically.
    NextFit,
    /// The node with the least room.
    BestFit,
    /// The node with the most room.
    WorstFit,
    Random,
    /// The less loaded of two random nodes.
    PowerOfTwo,
    /// The node whose room fits the task best.
    Aligned,
}

impl Placement {
    const NAMES: [(&str, Placement); 6] = [
        ("next-fit", Placement::NextFit),
        ("best-fit", Placement::BestFit),
        ("worst-fit", Placement::WorstFit),
        ("random", Placement::Random),
        ("power-of-two", Placement::PowerOfTwo),
        ("aligned", Placement::Aligned),
    ];

    pub fn names() -> impl Iterator<Item = &'static str> {
        Placement::NAMES.into_iter().map(|(name, _)| name)
    }

    /// # Errors
    /// A sentence that lists all placements.
    pub fn parse(name: &str) -> Result<Placement, String> {
        choose("placement", name, &Placement::NAMES)
    }
}

impl Plans {
    const NAMES: [(&str, Plans); 4] = [
        ("breadth-first", Plans::By(IntraJob::BreadthFirst)),
        ("critical-path", Plans::By(IntraJob::CriticalPath)),
        ("tetris", Plans::By(IntraJob::Tetris)),
        ("dagps", Plans::Dagps),
    ];

    pub fn names() -> impl Iterator<Item = &'static str> {
        Plans::NAMES.into_iter().map(|(name, _)| name)
    }

    /// # Errors
    /// A sentence that lists all orders.
    pub fn parse(name: &str) -> Result<Plans, String> {
        choose("order within a job", name, &Plans::NAMES)
    }
}

pub(super) fn choose<T: Copy>(what: &str, name: &str, named: &[(&str, T)]) -> Result<T, String> {
    named.iter().find(|(known, _)| *known == name).map(|(_, choice)| *choice).ok_or_else(|| {
        let known: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
        format!("unknown {what} `{name}`; known: {}", known.join(", "))
    })
}
