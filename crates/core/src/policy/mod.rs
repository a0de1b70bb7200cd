//! Policies: the four kinds of scheduling decision. A policy gets values and returns values; it knows no roles and
//! sends no messages. The module `preset` defines which policies a cluster uses.

mod alignment;
mod calibration;
pub mod completion;
mod forecast;
pub mod inter_job;
pub mod intra_job;
pub mod matching;
mod mix;
pub mod node_queue;
pub mod node_speeds;
pub mod placement;
pub mod reliability;
pub(crate) mod timeline;
mod trust;

pub use alignment::Alignment;
pub use calibration::Calibration;
pub use forecast::Forecast;
pub use mix::{Mix, Quota};
pub use trust::Trust;

use crate::policy::inter_job::QueueTree;
use crate::protocol::Rule;
use crate::vocabulary::{
    AllowanceRequest, ClassTable, Duration, ExecutionType, Instant, JobId, JobWork, NodeViews, QueueId, QueueView,
    QueuedEntry, Resources, RunningEntry, Totals, UserId,
};
use crate::why::Why;

/// Position of an ask in the scheduler's request queue. Policies use it as an index into dense vectors.
pub type AskSlot = u32;
/// Position of a job in the scheduler's request queue.
pub type JobSlot = u32;

/// The order of jobs. Incremental: callers report changes and ask for the next ask to serve.
pub trait InterJobPolicy: Send {
    fn on_change(&mut self, change: &DemandChange);

    /// The resources of the whole cluster that the job is entitled to now.
    fn share(&self, job: JobSlot) -> Totals;

    /// For a job that places its own tasks: the share that was sent to it, or would be sent.
    fn reported_share(&self, _job: JobSlot) -> Option<Totals> {
        None
    }

    /// Jobs whose shares have changed and have to be sent to them. Empty where jobs do not plan by their shares.
    fn new_shares(&mut self) -> Vec<JobSlot> {
        Vec::new()
    }

    /// Jobs whose allowances for guaranteed tasks have changed and have to be sent to them. Empty where the master
    /// places these tasks.
    fn new_allowances(&mut self) -> Vec<NewAllowance> {
        Vec::new()
    }

    /// Whether the order does not consider some job as it should before the next call of `standings`.
    fn has_new_jobs(&self) -> bool {
        false
    }

    /// Whether a queue below the root that has the job, and not the other one, is guaranteed what it would hold with this much more.
    fn is_guaranteed(&self, _job: JobSlot, _more: &Resources, _other: Option<JobSlot>) -> bool {
        false
    }

    /// What jobs hold and are entitled to, for orders under which a job's work beyond that may be preempted; otherwise
    /// empty.
    fn standings(&mut self) -> Vec<Standing> {
        Vec::new()
    }

    /// That of one job if all queues had work, so that none was lent anything; `None` also if more than [`Standing::MOST_JOBS`] jobs are
    /// active. It answers users and decides nothing: it takes O(n log n) steps for n jobs.
    fn standing_if_all_have_work(&self, _job: JobSlot) -> Option<Standing> {
        None
    }

    /// The next ask for this offer; `None` if no open ask fits it.
    fn next(&mut self, offer: &Offer<'_>) -> Option<NextAsk>;

    /// Reports the outcome for the ask that `next` returned.
    fn outcome(&mut self, ask: AskSlot, outcome: Outcome);

    /// Passes the asks without room that no limit keeps from starting to `is_enough`, in scheduling order, until it
    /// returns true.
    fn blocked(&self, is_enough: &mut dyn FnMut(AskSlot) -> bool);

    /// The same for the asks of one queue that accepts jobs. Passes none where the order does not depend on queues.
    fn blocked_in(&self, _queue: QueueId, _is_enough: &mut dyn FnMut(AskSlot) -> bool) {}

    /// The limit that keeps the ask from starting, if any.
    fn limit_on(&self, ask: AskSlot) -> Option<Why>;

    /// The limit that keeps the job from holding `more`, if any.
    fn limit_for(&self, job: JobSlot, more: &Resources) -> Option<Why>;

    /// Jobs with open asks that are scheduled before this one's job: their number, and the first of them.
    fn ahead_of(&self, ask: AskSlot) -> Option<(u32, JobId)>;

    fn rule(&self) -> Rule;

    fn queue_usage(&self, queue: QueueId) -> QueueUsage;
}

/// What a job holds, and what it is entitled to now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    pub job: JobSlot,
    pub used: Totals,
    pub due: Totals,
    /// It wants more than an equal part of what its queue's jobs share.
    pub is_wide: bool,
}

impl Standing {
    /// The number of active jobs with which the standing of a single one is still found.
    pub const MOST_JOBS: usize = 1_000;
}

/// The new limit of what a job's guaranteed tasks may hold in total.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewAllowance {
    pub job: JobSlot,
    /// Increases with each allowance of the job.
    pub number: u32,
    /// The last message of the job ([`AllowanceRequest::said`]) that this takes into account.
    pub answers: u32,
    pub allowance: Totals,
}

/// What changed for an [`InterJobPolicy`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DemandChange {
    /// The sum of all nodes' capacities.
    Capacity(Totals),
    JobAdded {
        job: JobSlot,
        id: JobId,
        queue: QueueId,
        user: UserId,
        priority: i32,
    },
    JobRemoved {
        job: JobSlot,
    },
    /// The work that the job has left.
    Work {
        job: JobSlot,
        work: JobWork,
    },
    AskAdded {
        ask: AskSlot,
        job: JobSlot,
        shape: Resources,
        class: u32,
        /// Priority of its tasks, which may differ from the job's.
        priority: i32,
        /// All of its open tasks get resources at once, or none do. An offer of a single node never fits it.
        is_gang: bool,
    },
    AskRemoved {
        ask: AskSlot,
    },
    /// The set of nodes that the ask accepts has changed.
    Class {
        ask: AskSlot,
        class: u32,
    },
    /// There is room again for an ask that had found none.
    RoomFor {
        ask: AskSlot,
    },
    /// The number of open tasks of the ask has changed. Among a job's asks of equal priority, the one with the smallest
    /// rank is served first; among those of equal rank, the one that is best aligned with the room, then the older one.
    Open {
        ask: AskSlot,
        count: u64,
        /// The number of these tasks that must start now so that the job does not end later than its share allows.
        needed: u64,
        rank: u32,
    },
    /// For a job that places its own tasks: the resources it needs for all tasks that run or could run.
    AllowanceRequest {
        job: JobSlot,
        request: Box<AllowanceRequest>,
    },
    /// The job holds resources that the policy did not grant, for instance for attempts found again after a restart.
    Taken {
        job: JobSlot,
        resources: Resources,
    },
    Freed {
        job: JobSlot,
        resources: Resources,
    },
    /// Nodes were added or opened: asks without room may find some.
    RoomOpened,
    /// Limits of queues have changed, or queues were added after the others ([`QueueTree::changed`]).
    Queues(Box<QueueTree>),
}

/// Room to be assigned.
pub enum Offer<'a> {
    /// One node's room.
    Node { node: usize, room: Resources, capacity: Resources, classes: &'a ClassTable },
    /// Any room in the cluster, for the next ask that is not known to lack room. With `only_gangs`: only asks that do
    /// not fit an offer of a single node.
    Cluster { only_gangs: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextAsk {
    pub ask: AskSlot,
    /// Number of jobs before it whose asks did not fit the offer; a job with asks of several priorities counts once for
    /// each.
    pub passed_over: u32,
    /// It found no room anywhere, and none in what was opened since.
    pub parked: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// One of its tasks got resources.
    Started,
    /// No open node has room for it. Cluster offers skip it until room is opened.
    NoRoom,
    /// The owner of the node refused the task, which is still open.
    Refused,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct QueueUsage {
    pub used: Totals,
    pub maximum: Totals,
    /// In millionths of the cluster.
    pub dominant_share: u64,
}

/// The demand of a job. (Carbyne's rules within a job are implemented here.)
pub trait IntraJobPolicy: Send {
    /// `share` is the job's share as last received.
    fn demand(&mut self, now: Instant, dag: &DagProgress<'_>, share: Option<&Totals>) -> JobDemand;

    /// When the job would end with exactly its share: it donates nothing and receives nothing. Called after every
    /// event, and without a share while no task of the job may start. `None` if the policy does not plan by the share,
    /// or has no new value. Long computations are delayed while `has_time` is false.
    fn end_alone(
        &mut self,
        _now: Instant,
        _graph: &dyn StageGraph,
        _share: Option<&Totals>,
        _has_time: bool,
    ) -> Option<Instant> {
        None
    }

    /// The job had ended, and some of its tasks run again.
    fn rerun(&mut self) {}

    /// A task of the stage had started and is waiting again.
    fn came_back(&mut self, _stage: u32) {}

    /// Whether it may declare tasks deferrable.
    fn yields(&self) -> bool {
        false
    }
}

/// Assumed run time of a task: learned or stated, else [`UNKNOWN_RUN_TIME`].
pub fn run_time(expected: Option<Duration>) -> Duration {
    expected.unwrap_or(UNKNOWN_RUN_TIME)
}

/// Run times that differ by more than one part in this many count as different.
const OFF_BY: u64 = 16;

/// Whether an assumed run time (above zero) is close to the one expected now.
pub fn is_near(taken: Duration, expected: Duration) -> bool {
    taken.0.abs_diff(expected.0.max(1)).saturating_mul(OFF_BY) <= taken.0
}

/// Assumed run time of a task without an estimate: in orders by run time, its job comes after jobs with smaller
/// estimates.
const UNKNOWN_RUN_TIME: Duration = Duration::from_secs(60);

/// The progress of a job.
pub struct DagProgress<'a> {
    /// Something happened since the last call; false if the policy only asked to be called again.
    pub is_news: bool,
    /// The stages that have tasks ready to run, in the order of the job file.
    pub runnable: &'a [RunnableStage],
    pub graph: &'a dyn StageGraph,
}

impl DagProgress<'_> {
    /// All tasks that could run now.
    fn everything(&self) -> Vec<StageDemand> {
        self.runnable.iter().map(|stage| StageDemand { stage: stage.stage, count: stage.ready }).collect()
    }
}

/// All stages of a job. A stage has a higher index than those it depends on.
pub trait StageGraph {
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Direct dependents of this stage.
    fn dependents(&self, stage: u32) -> &[u32];
    /// Direct dependencies of this stage.
    fn dependencies(&self, stage: u32) -> &[u32];
    /// Run time of one of its tasks, learned or stated.
    fn expected(&self, stage: u32) -> Option<Duration>;
    /// Run time of the longest of its finished tasks.
    fn longest(&self, _stage: u32) -> Duration {
        Duration::ZERO
    }
    /// Whether the run times of every stage are known.
    fn knows_run_times(&self) -> bool {
        (0..self.len() as u32).all(|stage| self.expected(stage).is_some())
    }
    /// Resources of one task.
    fn resources(&self, stage: u32) -> &Resources;
    fn tasks(&self, stage: u32) -> u32;
    /// Tasks that do not run and have not ended: they run now or later.
    fn unstarted(&self, stage: u32) -> u32;
    /// Passes the stage and start of every running task to `show`.
    fn each_running(&self, show: &mut dyn FnMut(u32, Instant));
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunnableStage {
    pub stage: u32,
    pub resources: Resources,
    pub ready: u32,
    /// Run time of one task, learned or stated.
    pub expected: Option<Duration>,
}

/// Tasks to ask for, by stage: those that must start now, and those that can start later.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct JobDemand {
    pub needed: Vec<StageDemand>,
    pub deferrable: Vec<Deferrable>,
    /// Stages are served in this order. Otherwise, the stage that is best aligned with a node's room is served first.
    pub in_order: bool,
    /// When some of the deferrable tasks must start, if nothing else happens before.
    pub review_at: Option<Instant>,
    /// A plan was made, or an order searched for: other long computations are delayed to another event.
    pub took_long: bool,
}

/// Tasks of a stage that can start later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deferrable {
    pub stage: u32,
    pub count: u32,
    /// When the first of them must start.
    pub due: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StageDemand {
    pub stage: u32,
    pub count: u32,
}

/// The choice of nodes for asks.
pub trait PlacementPolicy: Send {
    /// Whether it decides about many tasks of several asks at once, each of which may go to another node.
    fn takes_batches(&self) -> bool {
        false
    }

    /// Whether it looks for the node with the least or the most room, and so needs nodes ordered by room.
    fn compares_room(&self) -> bool {
        false
    }

    /// Whether it uses the load of nodes.
    fn knows_load(&self) -> bool {
        true
    }

    fn place(&mut self, now: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>);

    /// The owner of a node refused a placement there, most likely because another scheduler was first.
    fn on_refused(&mut self, _now: Instant, _node: usize) {}

    /// A guaranteed task started: its expected wait when it was sent, and its actual wait.
    fn on_started(&mut self, _expected: Duration, _waited: Duration) {}

    /// A task of the ask was sent to `node`: a better node for it now. `None` if the policy knows none, or would leave
    /// the task where it is.
    fn reconsider(
        &mut self,
        _ask: &OpenAsk,
        _node: usize,
        _time: TimeAtNode,
        _view: &dyn NodeViews,
    ) -> Option<Alternative> {
        None
    }
}

/// How long a task waits or runs at its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeAtNode {
    /// It starts after this time.
    Waits(Duration),
    /// It has waited for this time, and its expected wait is unknown.
    Waited(Duration),
    /// It ends after this time.
    Runs(Duration),
}

/// A node where a task would end earlier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alternative {
    pub node: usize,
    /// Its wait there.
    pub wait: Duration,
    /// How much earlier it would end.
    pub saving: Duration,
}

/// An ask to be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenAsk {
    pub slot: AskSlot,
    pub shape: Resources,
    pub class: u32,
    pub count: u64,
    /// Number of probes sent for its tasks.
    pub probes: u64,
    /// The execution type of its tasks.
    pub execution: ExecutionType,
    /// Run time of a task, if known.
    pub expected: Option<Duration>,
}

/// How much a placement policy may decide in one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    pub starts: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// One task of the ask on this node (a dense index).
    Start { ask: AskSlot, node: usize },
    /// The node asks for a task when it has room.
    Probe { ask: AskSlot, node: usize },
    /// No open node has room.
    Wait { ask: AskSlot },
}

impl Decision {
    /// A start on this node, or `Wait` if there is none.
    fn on(ask: &OpenAsk, node: Option<usize>) -> Decision {
        node.map_or(Decision::Wait { ask: ask.slot }, |node| Decision::Start { ask: ask.slot, node })
    }
}

/// The order of a node's queue.
pub trait QueuePolicy: Send {
    /// The position in `queue` of the next entry to start, if one fits into `free`. `running` is in the order of
    /// launch.
    fn pick(
        &mut self,
        now: Instant,
        queue: &QueueView<'_>,
        running: &mut dyn Iterator<Item = RunningEntry>,
        free: &Resources,
    ) -> Option<usize>;

    /// The position of the opportunistic entry to shed first, among those that `may_go`.
    fn last(&self, queue: &QueueView<'_>, may_go: &dyn Fn(&QueuedEntry) -> bool) -> Option<usize> {
        queue.entries.iter().rposition(|entry| entry.is_opportunistic() && may_go(entry))
    }
}
