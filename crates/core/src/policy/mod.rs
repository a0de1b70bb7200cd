//! The four kinds of decision that a policy takes. A policy sees values and returns values; it knows no roles and
//! sends no messages. Which policies a cluster uses is said in the module `preset`.

mod alignment;
mod calibration;
pub mod completion;
mod forecast;
pub mod inter_job;
pub mod intra_job;
pub mod matching;
mod mix;
pub mod node_queue;
pub mod placement;
pub mod reliability;
pub(crate) mod timeline;
mod trust;

pub use alignment::Alignment;
pub use calibration::Calibration;
pub use forecast::Forecast;
pub use mix::{Mix, Quota};
pub use trust::Trust;

use crate::protocol::Rule;
use crate::vocabulary::{
    ClassTable, Duration, ExecutionType, Instant, JobId, JobWork, NodeViews, QueueId, QueueView, QueuedEntry,
    Resources, RunningEntry, Totals, UserId, Wants,
};
use crate::why::Why;

/// An ask's place in the scheduler's request queue; policies keep dense vectors by it.
pub type AskSlot = u32;
/// A job's place in the scheduler's request queue.
pub type JobSlot = u32;

/// Whose turn is it? Incremental: it is told what changed and asked for the next best.
pub trait InterJobPolicy: Send {
    fn on_change(&mut self, change: &DemandChange);

    /// What the job is entitled to now, of the whole cluster.
    fn share(&self, job: JobSlot) -> Totals;

    /// What a job was told of its share, or would be, that places its tasks itself.
    fn told_share(&self, _job: JobSlot) -> Option<Totals> {
        None
    }

    /// The jobs that are to be told of their shares, because these have changed. Nobody where jobs do not plan by them.
    fn new_shares(&mut self) -> Vec<JobSlot> {
        Vec::new()
    }

    /// The jobs that are to be told what their guaranteed tasks may hold together. Nobody where the master places these.
    fn new_allowances(&mut self) -> Vec<NewAllowance> {
        Vec::new()
    }

    /// The next ask for this offer; `None` where nothing that is open goes with it.
    fn next(&mut self, offer: &Offer<'_>) -> Option<Choice>;

    /// What became of the ask that `next` returned.
    fn outcome(&mut self, ask: AskSlot, outcome: Outcome);

    /// Shows the asks that found no room and that no limit holds back, in its own order and until it is told that no more are wanted.
    fn blocked(&self, is_enough: &mut dyn FnMut(AskSlot) -> bool);

    /// Shows the asks of a queue that takes jobs which found no room and which no limit holds back, in its own order and until it is
    /// told that no more are wanted. None where it is nobody's turn by queues.
    fn blocked_in(&self, _queue: QueueId, _is_enough: &mut dyn FnMut(AskSlot) -> bool) {}

    /// Which limit keeps the ask from starting, if one does.
    fn limit_on(&self, ask: AskSlot) -> Option<Why>;

    /// Which limit keeps the job from holding so much more, if one does.
    fn limit_for(&self, job: JobSlot, more: &Resources) -> Option<Why>;

    /// Jobs with open asks that come before this one's: how many, and the first of them.
    fn ahead_of(&self, ask: AskSlot) -> Option<(u32, JobId)>;

    fn rule(&self) -> Rule;

    fn queue_usage(&self, queue: QueueId) -> QueueUsage;
}

/// What a job's guaranteed tasks may hold together from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewAllowance {
    pub job: JobSlot,
    /// Each of a job's has a larger one.
    pub number: u32,
    /// Of what the job said ([`Wants::said`]), the last that this takes into account.
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
    /// How much work the job is.
    Work {
        job: JobSlot,
        work: JobWork,
    },
    AskAdded {
        ask: AskSlot,
        job: JobSlot,
        shape: Resources,
        class: u32,
        /// Of its tasks, which may be another than the job's.
        priority: i32,
        /// All of its open tasks get resources at once, or none: it goes with no offer of one node.
        is_gang: bool,
    },
    AskRemoved {
        ask: AskSlot,
    },
    /// The ask takes other nodes than before.
    Class {
        ask: AskSlot,
        class: u32,
    },
    /// There is room for an ask that had been found without.
    RoomFor {
        ask: AskSlot,
    },
    /// So many tasks of the ask are open. Of a job's asks of equal priority the one of the smallest rank goes first; of those of equal
    /// rank the one that is best aligned with the room, then the older one.
    Open {
        ask: AskSlot,
        count: u64,
        /// Of these, so many must start now, or their job ends later than it could with its share.
        needed: u64,
        rank: u32,
    },
    /// What the job, whose asks nobody here serves, wants to hold: all that runs of it or could.
    Wants {
        job: JobSlot,
        wants: Box<Wants>,
    },
    /// The job holds more than the policy granted, for instance attempts found again after a restart.
    Taken {
        job: JobSlot,
        resources: Resources,
    },
    Freed {
        job: JobSlot,
        resources: Resources,
    },
    /// Nodes were added or opened: asks that found no room may find some.
    RoomOpened,
}

/// What is to be given away.
pub enum Offer<'a> {
    /// One node's room.
    Node { node: usize, room: Resources, capacity: Resources, classes: &'a ClassTable },
    /// Any room anywhere: the next ask that has not been found without room; with `only_gangs`, of those that take no room of
    /// a single node.
    Cluster { only_gangs: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    pub ask: AskSlot,
    /// Jobs before it whose asks did not go with the offer; one with asks of several priorities counts for each.
    pub passed_over: u32,
    /// It found no room anywhere, and none of the room that was opened since.
    pub parked: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// One task of it got resources.
    Started,
    /// No open node has room for it. It is passed over in cluster offers until room is opened.
    NoRoom,
    /// The owner of the node refused; it is open still.
    Refused,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct QueueUsage {
    pub used: Totals,
    pub maximum: Totals,
    /// In millionths of the cluster.
    pub dominant_share: u64,
}

/// What does a job ask for now? (Carbyne's half of a scheduler lives here.)
pub trait IntraJobPolicy: Send {
    /// `share` is what the job is entitled to, as far as it was told.
    fn demand(&mut self, now: Instant, dag: &DagProgress<'_>, share: Option<&Totals>) -> JobDemand;

    /// When the job would end with its share to itself: it yields nothing and is given nothing. Asked whatever
    /// happens, and without a share while nothing of the job may start; `None` where it does not plan by its share, or has
    /// nothing new to say. What takes long is put off where there is no time for it.
    fn end_alone(
        &mut self,
        _now: Instant,
        _graph: &dyn StageGraph,
        _share: Option<&Totals>,
        _has_time: bool,
    ) -> Option<Instant> {
        None
    }

    /// The job had ended, and some of it runs again.
    fn rerun(&mut self) {}

    /// A task of the stage had started and waits again.
    fn came_back(&mut self, _stage: u32) {}

    /// Whether it may say of tasks that they could wait.
    fn yields(&self) -> bool {
        false
    }
}

/// How long a task is taken to run: as learned or stated, else [`UNKNOWN_RUN_TIME`].
pub fn run_time(expected: Option<Duration>) -> Duration {
    expected.unwrap_or(UNKNOWN_RUN_TIME)
}

/// A run time that is off by one part in so many is another one.
const OFF_BY: u64 = 16;

/// Whether a run time that was taken, above zero, is about what is expected now.
pub fn is_near(taken: Duration, expected: Duration) -> bool {
    taken.0.abs_diff(expected.0.max(1)).saturating_mul(OFF_BY) <= taken.0
}

/// Taken for the run time of a task of which nothing is known: whoever says nothing comes after those who say less.
const UNKNOWN_RUN_TIME: Duration = Duration::from_secs(60);

/// How far a job is.
pub struct DagProgress<'a> {
    /// Something happened, and not only that the policy wanted to be asked again.
    pub is_news: bool,
    /// The stages that have tasks ready to run, in the order of the job file.
    pub runnable: &'a [RunnableStage],
    pub graph: &'a dyn StageGraph,
}

impl DagProgress<'_> {
    /// All that could run now.
    fn everything(&self) -> Vec<StageDemand> {
        self.runnable.iter().map(|stage| StageDemand { stage: stage.stage, count: stage.ready }).collect()
    }
}

/// All stages of a job. Each comes after those that it depends on.
pub trait StageGraph {
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The stages that depend on this one directly.
    fn dependents(&self, stage: u32) -> &[u32];
    /// The stages that this one depends on directly.
    fn dependencies(&self, stage: u32) -> &[u32];
    /// How long one of its tasks runs, as learned or as stated.
    fn expected(&self, stage: u32) -> Option<Duration>;
    /// How long the longest took of its tasks that have finished.
    fn longest(&self, _stage: u32) -> Duration {
        Duration::ZERO
    }
    /// Whether the run times of every stage are known.
    fn knows_run_times(&self) -> bool {
        (0..self.len() as u32).all(|stage| self.expected(stage).is_some())
    }
    /// Of one task.
    fn resources(&self, stage: u32) -> &Resources;
    fn tasks(&self, stage: u32) -> u32;
    /// Tasks that do not run and have not ended: they will run, now or later.
    fn unstarted(&self, stage: u32) -> u32;
    /// Shows the stage of every task that runs, and since when.
    fn each_running(&self, show: &mut dyn FnMut(u32, Instant));
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunnableStage {
    pub stage: u32,
    pub resources: Resources,
    pub ready: u32,
    /// Of one task, as learned or as stated.
    pub expected: Option<Duration>,
}

/// Tasks to ask for, per stage: those that must start now, and those that could wait.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct JobDemand {
    pub needed: Vec<StageDemand>,
    pub deferrable: Vec<Deferrable>,
    /// Whoever stands first is served first. Otherwise whoever is best aligned with a node's room is.
    pub in_order: bool,
    /// When some of what could wait must start, if nothing else happens before.
    pub review_at: Option<Instant>,
    /// A plan was made, or an order searched for: whatever else takes long is for another event.
    pub took_long: bool,
}

/// Tasks of a stage that could wait.
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

/// Which node for which ask?
pub trait PlacementPolicy: Send {
    /// Whether it decides about many tasks at once, of several asks, and each of them to be sent to another node.
    fn takes_batches(&self) -> bool {
        false
    }

    /// Whether it asks for the node with the least or the most room, and so needs nodes in the order of their room.
    fn compares_room(&self) -> bool {
        false
    }

    /// Whether it asks how loaded nodes are.
    fn knows_load(&self) -> bool {
        true
    }

    fn place(&mut self, now: Instant, asks: &[OpenAsk], budget: Budget, view: &dyn NodeViews, out: &mut Vec<Decision>);

    /// The owner of a node did not take what was placed there: somebody else was first, most likely.
    fn on_refused(&mut self, _now: Instant, _node: usize) {}

    /// A guaranteed task started that was expected to wait for so long when it was sent, and waited.
    fn on_started(&mut self, _expected: Duration, _waited: Duration) {}

    /// A task of the ask is on this node: where it would go now, if it had not been sent yet. `None` where the policy would not
    /// know, or leave it.
    fn reconsider(
        &mut self,
        _ask: &OpenAsk,
        _node: usize,
        _standing: Standing,
        _view: &dyn NodeViews,
    ) -> Option<Alternative> {
        None
    }
}

/// What a task still has to do where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It waits for so long still, and then runs.
    Waits(Duration),
    /// It has waited for so long, and nobody says for how long it still will.
    Waited(Duration),
    /// It runs for so long still.
    Runs(Duration),
}

/// A node where a task would be done sooner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alternative {
    pub node: usize,
    /// How long it would wait there.
    pub wait: Duration,
    /// By how much sooner.
    pub saving: Duration,
}

/// An ask to be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenAsk {
    pub slot: AskSlot,
    pub shape: Resources,
    pub class: u32,
    pub count: u64,
    /// Probes that are out for its tasks.
    pub probes: u64,
    /// How its tasks would run.
    pub execution: ExecutionType,
    /// How long one runs, if that is known.
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
    /// The node is to ask for a task when it is ready.
    Probe { ask: AskSlot, node: usize },
    /// No open node has room.
    Wait { ask: AskSlot },
}

impl Decision {
    /// A start on this node, or a wait where there is none.
    fn on(ask: &OpenAsk, node: Option<usize>) -> Decision {
        node.map_or(Decision::Wait { ask: ask.slot }, |node| Decision::Start { ask: ask.slot, node })
    }
}

/// Which waiting entry starts next at a node?
pub trait QueuePolicy: Send {
    /// The position in `queue` of the entry to start, if one fits into `free`. What runs is told in the order of launch.
    fn pick(
        &mut self,
        now: Instant,
        queue: &QueueView<'_>,
        running: &mut dyn Iterator<Item = RunningEntry>,
        free: &Resources,
    ) -> Option<usize>;

    /// The position of the opportunistic entry that is given up first, of those that may go.
    fn last(&self, queue: &QueueView<'_>, may_go: &dyn Fn(&QueuedEntry) -> bool) -> Option<usize> {
        queue.entries.iter().rposition(|entry| entry.is_opportunistic() && may_go(entry))
    }
}
