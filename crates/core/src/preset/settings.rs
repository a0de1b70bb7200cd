//! The settings of a preset. Each alternative owns its settings, so that one that would mean nothing cannot be written.

use crate::job_manager::{AllowanceRules, CorrectionRules, ExplorationRules};
use crate::master::Steering;
use crate::node::{OpportunisticRules, TellWaits};
use crate::policy::inter_job::Within;
use crate::policy::placement::CompletionSettings;
use crate::policy::{Mix, Quota};
use crate::scheduling::Delays;
use crate::vocabulary::Duration;
use serde::{Deserialize, Serialize};

/// How a cluster schedules: what is decided where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Scheduling {
    /// Guaranteed tasks are booked before they are sent, in an order of jobs.
    Booked(Booked),
    /// Job managers send each task to nodes' queues. Nothing is booked and there is no order of jobs.
    Probed(Probed),
    /// Job managers send tasks to nodes' queues within what their jobs are entitled to. Nothing is booked.
    Entitled(Entitled),
}

/// The settings of clusters that book guaranteed tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Booked {
    pub by: Booking,
    pub inter_job: InterJob,
    pub demand: DemandOrder,
    /// How long asks hold out for room near their input.
    pub delays: Delays,
    /// Job managers send opportunistic tasks to nodes' queues beside what is booked; `None` if all tasks are booked.
    pub opportunistic: Option<Opportunistic>,
}

/// Who books.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Booking {
    /// The master, against its ledger.
    Master {
        placement: Placement,
        /// An ask that found no room for this long gets a node kept free for it.
        reserve_after: Duration,
    },
    /// Global masters, over all clusters of a federation, whose masters verify each booking.
    GlobalMasters {
        /// Whether global masters that search the same nodes start at different ones.
        scattered: bool,
        /// Masters report changes to global masters after this long at most; `None`: with the next heartbeat.
        tell_changes_after: Option<Duration>,
    },
}

/// What a job asks for, and in which order its stages use what it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DemandOrder {
    /// Everything that can run.
    Everything(IntraJob),
    /// What a plan by the job's share needs now: jobs yield the rest.
    Yielding(Yielding),
}

/// Jobs plan by their shares and say what could wait; the order of jobs is for what cannot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Yielding {
    pub plans: Plans,
    /// The order of jobs for what is left.
    pub leftover: InterJob,
    /// The probability with which a job yields when its demand changes, in millionths: P(altruism).
    pub altruism: u32,
}

/// In which order plans are packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Plans {
    By(IntraJob),
    /// Around the stages that are long or hard to pack (DAGPS).
    Dagps,
}

/// Opportunistic tasks beside booked ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Opportunistic {
    /// Which tasks are opportunistic.
    pub mix: Mix,
    pub placement: QueueChoice,
    pub quota: Quota,
    /// Attempts that have run for this long ask to be guaranteed; `None` if none do.
    pub promote_after: Option<Duration>,
    pub steering: Steering,
    /// Nodes start the tasks of the job first that was submitted first.
    pub reorder: bool,
    /// What nodes do about them.
    pub at_nodes: OpportunisticRules,
}

/// The settings of clusters whose job managers send every task to nodes' queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Probed {
    pub intra_job: IntraJob,
    pub choice: QueueChoice,
}

/// To which node's queue a job manager sends a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum QueueChoice {
    /// `ratio` random nodes are probed for each task, which goes to the one that is ready first.
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
pub struct Entitled {
    pub intra_job: IntraJob,
    pub choice: Choice,
    /// How much of the cluster may be guaranteed, in hundredths.
    pub guaranteed: u32,
    pub waits: TellWaits,
    /// How the jobs of a queue share what they are due together.
    pub within: Within,
    /// For how long nodes keep room that guaranteed work leaves for guaranteed work: its job sends the next task.
    pub keep_freed: Duration,
    /// Opportunistic attempts yield their CPU to guaranteed work for this long at most; `None`: they are ended at once.
    pub yields_for: Option<Duration>,
    pub allowance: AllowanceRules,
    /// Job managers reconsider what they decided; `None` if they do not.
    pub corrections: Option<CorrectionRules>,
    /// Job managers without estimates try other nodes for what waits, those of this preset and of presets beside it.
    pub explores: Option<ExplorationRules>,
    /// How long job managers without estimates hold out for room near a task's input.
    pub delays: Delays,
    /// Job managers take all tasks to run for this long, whatever is known of them.
    pub assumed_run_time: Option<Duration>,
}

/// To which node a job manager sends a task within its entitlement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Choice {
    /// The node where it is expected to be done first.
    EarliestCompletion(CompletionSettings),
    /// Where the input is and, the longer a task waits, farther away; what waits there is tried elsewhere.
    RelaxedLocality,
}

/// In which order jobs get room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum InterJob {
    /// Priority, then order of submission.
    Fifo,
    /// Guaranteed and maximum shares of hierarchical queues.
    Capacity,
    /// Weighted dominant resource fairness over hierarchical queues. With strict shares nobody gets more than its fair
    /// share, although room may idle.
    Drf { strict: bool },
    /// The job with the least work.
    Sjf,
    /// The job with the least work left.
    Srtf,
    /// Packing; `fairness` is the knob f in millionths, below 1: only the part 1 - f of the jobs, those furthest below
    /// their fair share, is considered.
    Tetris { fairness: u32 },
    /// Queues take turns.
    RoundRobin,
}

/// In which order the stages of a job use what it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum IntraJob {
    /// The order of the job file.
    BreadthFirst,
    /// The longest path to the end first.
    CriticalPath,
    /// The stage that goes best with a node's room.
    Tetris,
}

/// On which node the master books a task.
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
    /// The node whose room goes best with the task.
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
    /// A sentence that lists the placements there are.
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
    /// A sentence that lists the orders there are.
    pub fn parse(name: &str) -> Result<Plans, String> {
        choose("order within a job", name, &Plans::NAMES)
    }
}

pub(super) fn choose<T: Copy>(what: &str, name: &str, named: &[(&str, T)]) -> Result<T, String> {
    named.iter().find(|(known, _)| *known == name).map(|(_, choice)| *choice).ok_or_else(|| {
        let known: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
        format!("there is no {what} `{name}`; there are: {}", known.join(", "))
    })
}
