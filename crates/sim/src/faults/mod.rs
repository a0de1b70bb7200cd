//! The faults of a simulation: processes that crash, hang and restart, connections that break, users who interfere.
//!
//! A crash loses exactly the changes that are not durable yet. The changes of a server's turn are durable when the turn
//! is over, and only then do its messages and answers leave. If the server crashes before that, all of them are lost.

pub(crate) mod intruder;
#[cfg(test)]
mod tests;

use crate::places::{Places, ProcessId};
use amalgam_core::hosting::{Envelope, Fact};
use amalgam_core::protocol::{JobAction, Message};
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{AttemptId, Duration, EndReason, ExecutionType, Instant, JobId, Resources, TaskId};
use intruder::Intercepted;
pub use intruder::Intrusion;

/// A fault, or an action of a user or intruder.
#[derive(Clone, PartialEq, Debug)]
pub enum Fault {
    /// The process crashes and restarts after `down`. The processes connected to it notice after `noticed`.
    Crash {
        place: ProcessId,
        down: Duration,
        noticed: Duration,
    },
    /// The executor dies with its tasks. A new one replaces it at once.
    ExecutorDies {
        node: usize,
    },
    /// The log cannot be written, so the process exits, as the daemon does. `reached` thousandths of what it was
    /// writing are on disk, although its messages have not left.
    DiskFails {
        place: ProcessId,
        reached: u32,
        down: Duration,
        noticed: Duration,
    },
    /// The disk takes a hundred times as long: a server's for its log, a node's for launches.
    DiskSlow {
        place: ProcessId,
        lasts: Duration,
    },
    /// The node cannot start processes, as if its disk were full.
    CannotLaunch {
        node: usize,
        lasts: Duration,
    },
    /// The connection breaks. Its ends notice at different times. No new connection is possible for the time `lasts`.
    /// The link of a node with its master has the number of the node.
    Break {
        link: usize,
        lasts: Duration,
        noticed_outside: Duration,
        noticed_inside: Duration,
    },
    /// The process hangs for this time. Its inputs wait.
    Pause {
        place: ProcessId,
        length: Duration,
    },
    /// A user acts on a job of the workload.
    Act {
        job: u32,
        action: JobAction,
    },
    /// A client submits its job again.
    SubmitAgain {
        job: u32,
    },
    Drain {
        node: usize,
        drained: bool,
    },
    /// An intruder sends a launch that it overheard to a node. `which` selects the launch.
    Intrude {
        how: Intrusion,
        which: u32,
    },
    /// All faults end: every process runs and is connected, no node is drained and no job is held.
    Heal,
}

impl Fault {
    /// The kind of the fault, for counts.
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Crash { place: ProcessId::Server, .. } => "server crashes",
            Fault::Act { action: JobAction::Abandon, .. } => "user abandons",
            Fault::Crash { place: ProcessId::Managers(_), .. } => "job managers crash",
            Fault::Crash { place: ProcessId::Cluster(_), .. } => "master of a cluster crashes",
            Fault::Crash { place: ProcessId::Global(_), .. } => "global master crashes",
            Fault::Crash { place: ProcessId::Node(_), .. } => "agent crashes",
            Fault::ExecutorDies { .. } => "executor dies",
            Fault::DiskFails { .. } => "log cannot be written",
            Fault::DiskSlow { place: ProcessId::Server, .. } => "server's disk is slow",
            Fault::DiskSlow { place: ProcessId::Managers(_), .. } => "job managers' disk is slow",
            Fault::DiskSlow { place: ProcessId::Cluster(_) | ProcessId::Global(_), .. } => "a master's disk is slow",
            Fault::DiskSlow { place: ProcessId::Node(_), .. } => "node's disk is slow",
            Fault::CannotLaunch { .. } => "node cannot launch",
            Fault::Break { .. } => "connection breaks",
            Fault::Pause { place: ProcessId::Server, .. } => "server hangs",
            Fault::Pause { place: ProcessId::Managers(_), .. } => "job managers hang",
            Fault::Pause { place: ProcessId::Cluster(_), .. } => "master of a cluster hangs",
            Fault::Pause { place: ProcessId::Global(_), .. } => "global master hangs",
            Fault::Pause { place: ProcessId::Node(_), .. } => "agent hangs",
            Fault::Act { action: JobAction::Cancel, .. } => "user cancels",
            Fault::Act { action: JobAction::Hold, .. } => "user holds",
            Fault::Act { action: JobAction::Release, .. } => "user releases",
            Fault::Act { action: JobAction::RerunFailed, .. } => "user reruns",
            Fault::SubmitAgain { .. } => "client submits again",
            Fault::Drain { drained: true, .. } => "node is drained",
            Fault::Drain { drained: false, .. } => "node's drain ends",
            Fault::Intrude { how: Intrusion::OtherAttempt, .. } => "launch forged for another attempt",
            Fault::Intrude { how: Intrusion::MoreResources, .. } => "launch forged with more resources",
            Fault::Intrude { how: Intrusion::OtherNode, .. } => "launch sent to another node",
            Fault::Intrude { how: Intrusion::Late, .. } => "launch sent when it is expired",
            Fault::Intrude { how: Intrusion::Again, .. } => "launch sent again",
            Fault::Heal => "all faults end",
        }
    }
}

/// A fault and when it strikes.
#[derive(Clone, PartialEq, Debug)]
pub struct Planned {
    pub at: Instant,
    /// If set, the fault waits from `at` on for the next such moment, and then for this time. Otherwise most faults
    /// would strike an idle cluster.
    pub upon: Option<(Moment, Duration)>,
    pub fault: Fault,
}

/// A moment at which faults are likely to have an effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// A process has made changes that are not durable yet.
    InTurn,
    TaskStarts,
    TaskEnds,
}

/// An event of the simulation, for checkers and stories.
#[derive(Clone, Debug)]
pub enum Happening {
    Fault(Fault),
    Started(ProcessId),
    /// A process has reported a change or a record.
    Reported(ProcessId, Fact),
    /// A process crashed before these changes were durable.
    Undone(Vec<Change>),
    /// A client received the id of its job.
    Answered {
        job: u32,
        id: JobId,
    },
    /// A connection delivers a message that the one before it had delivered already.
    Repeated {
        to: ProcessId,
        message: Box<Message>,
    },
    /// An intruder sent a launch to the node.
    Intruded {
        node: usize,
        attempt: AttemptId,
        task: TaskId,
        /// The node handles it at once, has the key to verify it, and has to refuse it.
        is_judged: bool,
    },
    /// A process runs from now on.
    TaskStarted {
        node: usize,
        attempt: AttemptId,
        task: TaskId,
        resources: Resources,
        execution: ExecutionType,
    },
    Ended {
        node: usize,
        attempt: AttemptId,
        task: TaskId,
        reason: EndReason,
    },
    /// A process yields its CPU.
    Yielded {
        node: usize,
        attempt: AttemptId,
        task: TaskId,
    },
    /// A process has its CPU again.
    Resumed {
        node: usize,
        attempt: AttemptId,
        task: TaskId,
    },
}

/// The additional state of a simulation with faults.
pub struct Faults {
    pub(crate) plan: Vec<Planned>,
    /// Planned faults that wait for a moment, by their number in the plan.
    pub(crate) armed: Vec<(Moment, Duration, u32)>,
    /// The process of each writer: all processes other than nodes, in the order of [`Places::all`].
    pub(crate) written_by: Vec<ProcessId>,
    pub(crate) writers: Vec<Writer>,
    /// By link: until when no connection is possible.
    pub(crate) parted_until: Vec<Instant>,
    /// By node: until when it cannot start processes.
    pub(crate) faulty_until: Vec<Instant>,
    /// By process, in the order of [`Places::all`]: until when its disk is slow.
    pub(crate) slow_until: Vec<Instant>,
    /// By job of the workload: the state of its client.
    pub(crate) answers: Vec<Answer>,
    /// The launches that the intruder has overheard, if the plan has intrusions.
    pub(crate) intercepted: Vec<Intercepted>,
    /// The happenings since the last [`Faults::take_happened`].
    pub(crate) happened: Vec<Happening>,
    pub(crate) is_healed: bool,
}

/// A process that has a log.
pub(crate) struct Writer {
    /// The number of its current incarnation.
    pub(crate) life: u32,
    /// The changes that are durable.
    pub(crate) log: Vec<Change>,
    /// Its turn, while it is not over.
    pub(crate) turn: Option<Turn>,
}

/// The effects of a process's turn that become visible when the turn is over.
pub struct Turn {
    pub over: Instant,
    pub facts: Vec<Fact>,
    pub answers: Vec<Envelope>,
}

/// The factor by which a slow disk takes longer.
const SLOW: u64 = 100;

impl Turn {
    pub(crate) fn changes_something(&self) -> bool {
        self.facts.iter().any(Fact::is_change)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    NotAsked,
    Awaited,
    Known(JobId),
    Refused,
}

impl Faults {
    pub fn new(plan: Vec<Planned>, places: &Places, jobs: usize) -> Faults {
        let writer = || Writer { life: 1, log: Vec::new(), turn: None };
        let written_by: Vec<ProcessId> = places.all().filter(|place| !matches!(place, ProcessId::Node(_))).collect();
        Faults {
            plan,
            armed: Vec::new(),
            writers: written_by.iter().map(|_| writer()).collect(),
            parted_until: vec![Instant::ZERO; places.links()],
            faulty_until: vec![Instant::ZERO; places.nodes],
            slow_until: vec![Instant::ZERO; written_by.len() + places.nodes],
            written_by,
            answers: vec![Answer::NotAsked; jobs],
            intercepted: Vec::new(),
            happened: Vec::new(),
            is_healed: false,
        }
    }

    pub(crate) fn has_intruder(&self) -> bool {
        self.plan.iter().any(|planned| matches!(planned.fault, Fault::Intrude { .. }))
    }

    /// Keeps the effects of a turn until it is over.
    pub fn hold(&mut self, place: ProcessId, turn: Turn) {
        let before = self.writer(place).turn.replace(turn);
        assert!(before.is_none(), "a process takes one turn at a time");
    }

    pub(crate) fn writer(&mut self, place: ProcessId) -> &mut Writer {
        let number = self.number_of(place).expect("a node has no log");
        &mut self.writers[number]
    }

    /// The number of the process among those with a log.
    pub(crate) fn number_of(&self, place: ProcessId) -> Option<usize> {
        self.written_by.iter().position(|other| *other == place)
    }

    pub(crate) fn disk_of(&self, place: ProcessId) -> usize {
        match place {
            ProcessId::Node(node) => self.writers.len() + node,
            _ => self.number_of(place).expect("the process has a log"),
        }
    }

    pub(crate) fn slow_until(&mut self, place: ProcessId) -> &mut Instant {
        let disk = self.disk_of(place);
        &mut self.slow_until[disk]
    }

    /// The factor by which the disk of this process takes longer now.
    pub fn slowness(&self, now: Instant, place: ProcessId) -> u64 {
        if self.slow_until[self.disk_of(place)] > now { SLOW } else { 1 }
    }

    pub fn cannot_launch(&self, now: Instant, node: usize) -> bool {
        self.faulty_until[node] > now
    }

    /// Removes and returns the faults that waited for this moment.
    pub(crate) fn take_armed(&mut self, moment: Moment) -> Vec<(Duration, u32)> {
        let fired = self.armed.extract_if(.., |(awaited, ..)| *awaited == moment);
        fired.map(|(_, after, fault)| (after, fault)).collect()
    }

    /// Removes and returns the first turn that is over by `now`: its changes are durable, and its effects can be
    /// reported.
    pub fn take_finished_turn(&mut self, now: Instant) -> Option<(ProcessId, Turn)> {
        let over = |writer: &Writer| writer.turn.as_ref().map(|turn| turn.over).filter(|over| *over <= now);
        let ended = (0..).zip(&self.writers).filter_map(|(number, writer)| Some((over(writer)?, number)));
        let (_, number) = ended.min()?;
        Some((self.written_by[number], self.writers[number].turn.take()?))
    }

    pub fn report(&mut self, place: ProcessId, fact: &Fact) {
        if let (Fact::Change(change), Some(writer)) = (fact, self.number_of(place)) {
            self.writers[writer].log.push(change.clone());
        }
        self.happened.push(Happening::Reported(place, fact.clone()));
    }

    pub fn note(&mut self, happening: Happening) {
        self.happened.push(happening);
    }

    pub fn take_happened(&mut self) -> Vec<Happening> {
        std::mem::take(&mut self.happened)
    }

    /// The durable changes of all processes with a log.
    pub fn log(&self) -> impl DoubleEndedIterator<Item = &Change> {
        self.writers.iter().flat_map(|writer| &writer.log)
    }

    pub fn is_healed(&self) -> bool {
        self.is_healed
    }

    pub fn submitted(&mut self, job: u32) {
        let answer = &mut self.answers[job as usize];
        // A client that was refused and submits again awaits a new answer, because the job may be accepted now.
        if matches!(answer, Answer::NotAsked | Answer::Refused) {
            *answer = Answer::Awaited;
        }
    }

    pub fn answered(&mut self, job: u32, id: JobId) {
        self.answers[job as usize] = Answer::Known(id);
        self.happened.push(Happening::Answered { job, id });
    }

    pub fn refused(&mut self, job: u32) {
        self.answers[job as usize] = Answer::Refused;
    }

    /// Whether the client of every job has received its answer.
    pub fn all_answered(&self) -> bool {
        self.answers.iter().all(|answer| matches!(answer, Answer::Known(_) | Answer::Refused))
    }

    pub(crate) fn id_of(&self, job: u32) -> Option<JobId> {
        match self.answers[job as usize] {
            Answer::Known(id) => Some(id),
            Answer::NotAsked | Answer::Awaited | Answer::Refused => None,
        }
    }

    pub(crate) fn awaited(&self) -> Vec<u32> {
        (0..self.answers.len() as u32).filter(|&job| self.answers[job as usize] == Answer::Awaited).collect()
    }
}

impl Happening {
    /// The task that the happening concerns, itself or by one of its attempts.
    pub fn task(&self) -> Option<TaskId> {
        match self {
            Happening::Reported(_, Fact::Change(change)) => change.task(),
            Happening::Reported(_, Fact::Record(record)) => record.task(),
            Happening::Yielded { task, .. } | Happening::Resumed { task, .. } => Some(*task),
            Happening::Intruded { task, .. } | Happening::TaskStarted { task, .. } | Happening::Ended { task, .. } => {
                Some(*task)
            }
            Happening::Fault(_)
            | Happening::Started(_)
            | Happening::Undone(_)
            | Happening::Answered { .. }
            | Happening::Repeated { .. } => None,
        }
    }

    pub fn change(&self) -> Option<&Change> {
        match self {
            Happening::Reported(_, Fact::Change(change)) => Some(change),
            _ => None,
        }
    }

    pub fn record(&self) -> Option<&Record> {
        match self {
            Happening::Reported(_, Fact::Record(record)) => Some(record),
            _ => None,
        }
    }
}
