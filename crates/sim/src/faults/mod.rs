//! What goes wrong in a simulation: processes that die, hang and come back, connections that break, users who interfere.
//!
//! A crash loses exactly what was not yet durable. What a turn of the server changed is durable when the turn is over,
//! and only then do its letters and answers leave; a server that dies in between takes all of it along.

mod intruder;
mod strikes;
#[cfg(test)]
mod tests;

use crate::places::{Place, Places};
use amalgam_core::hosting::{Envelope, Fact};
use amalgam_core::protocol::{JobAction, Message};
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{AttemptId, Duration, EndReason, ExecutionType, Instant, JobId, Resources, TaskId};
use intruder::Intercepted;
pub use intruder::Intrusion;

/// Something that goes wrong, or somebody who interferes.
#[derive(Clone, PartialEq, Debug)]
pub enum Fault {
    /// The process dies and starts again after `down`. Those connected to it notice after `noticed`.
    Crash {
        place: Place,
        down: Duration,
        noticed: Duration,
    },
    /// The executor dies with its tasks; another takes its place at once.
    ExecutorDies {
        node: usize,
    },
    /// The log cannot be written any more, so the process ends itself, as the daemon does. Of what it was writing, this
    /// part, in thousandths, is on disk all the same; nobody was told of it.
    DiskFails {
        place: Place,
        reached: u32,
        down: Duration,
        noticed: Duration,
    },
    /// The disk takes a hundred times as long: the server's for its log, a node's for launches.
    DiskSlow {
        place: Place,
        lasts: Duration,
    },
    /// The node cannot make processes: its disk is full, or the like.
    CannotLaunch {
        node: usize,
        lasts: Duration,
    },
    /// The connection breaks, which its ends notice each in its own time; none comes about for as long as this `lasts`. That of
    /// a node with the server has the number of the node.
    Break {
        link: usize,
        lasts: Duration,
        noticed_outside: Duration,
        noticed_inside: Duration,
    },
    /// The process stands still; what comes in waits.
    Pause {
        place: Place,
        length: Duration,
    },
    /// A user acts on a job of the workload.
    Act {
        job: u32,
        action: JobAction,
    },
    /// A client that is not sure of its job submits it again.
    SubmitAgain {
        job: u32,
    },
    Drain {
        node: usize,
        drained: bool,
    },
    /// Somebody brings to a node a launch that he overheard; `which` of them says chance.
    Intrude {
        how: Intrusion,
        which: u32,
    },
    /// From now on nothing is wrong: everything runs and is connected, no node is drained and no job held.
    Heal,
}

impl Fault {
    /// Its kind, for counts.
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::Crash { place: Place::Server, .. } => "server crashes",
            Fault::Act { action: JobAction::Abandon, .. } => "user abandons",
            Fault::Crash { place: Place::Managers(_), .. } => "job managers crash",
            Fault::Crash { place: Place::Cluster(_), .. } => "master of a cluster crashes",
            Fault::Crash { place: Place::Global(_), .. } => "global master crashes",
            Fault::Crash { place: Place::Node(_), .. } => "agent crashes",
            Fault::ExecutorDies { .. } => "executor dies",
            Fault::DiskFails { .. } => "log cannot be written",
            Fault::DiskSlow { place: Place::Server, .. } => "server's disk is slow",
            Fault::DiskSlow { place: Place::Managers(_), .. } => "job managers' disk is slow",
            Fault::DiskSlow { place: Place::Cluster(_) | Place::Global(_), .. } => "a master's disk is slow",
            Fault::DiskSlow { place: Place::Node(_), .. } => "node's disk is slow",
            Fault::CannotLaunch { .. } => "node cannot launch",
            Fault::Break { .. } => "connection breaks",
            Fault::Pause { place: Place::Server, .. } => "server hangs",
            Fault::Pause { place: Place::Managers(_), .. } => "job managers hang",
            Fault::Pause { place: Place::Cluster(_), .. } => "master of a cluster hangs",
            Fault::Pause { place: Place::Global(_), .. } => "global master hangs",
            Fault::Pause { place: Place::Node(_), .. } => "agent hangs",
            Fault::Act { action: JobAction::Cancel, .. } => "user cancels",
            Fault::Act { action: JobAction::Hold, .. } => "user holds",
            Fault::Act { action: JobAction::Release, .. } => "user releases",
            Fault::Act { action: JobAction::RerunFailed, .. } => "user reruns",
            Fault::SubmitAgain { .. } => "client submits again",
            Fault::Drain { drained: true, .. } => "node is drained",
            Fault::Drain { drained: false, .. } => "node is opened",
            Fault::Intrude { how: Intrusion::OtherAttempt, .. } => "launch of another attempt made up",
            Fault::Intrude { how: Intrusion::MoreResources, .. } => "launch made larger",
            Fault::Intrude { how: Intrusion::OtherNode, .. } => "launch brought to another node",
            Fault::Intrude { how: Intrusion::Late, .. } => "launch brought when it is void",
            Fault::Intrude { how: Intrusion::Again, .. } => "launch brought again",
            Fault::Heal => "everything is healed",
        }
    }
}

/// A fault and when it strikes.
#[derive(Clone, PartialEq, Debug)]
pub struct Planned {
    pub at: Instant,
    /// It waits for the next such moment, and then so long: most faults would else meet a cluster that is idle.
    pub upon: Option<(Moment, Duration)>,
    pub fault: Fault,
}

/// A moment at which much is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// The server has changed something that is not durable yet.
    InTurn,
    TaskStarts,
    TaskEnds,
}

/// Something that happened: what checkers and stories are made from.
#[derive(Clone, Debug)]
pub enum Happening {
    Fault(Fault),
    Started(Place),
    /// A change or a record is known to the world.
    Told(Place, Fact),
    /// The server died before these changes were durable.
    Undone(Vec<Change>),
    /// A client was told the number of its job.
    Answered {
        job: u32,
        id: JobId,
    },
    /// A connection brings what the one before it delivered already.
    Repeated {
        to: Place,
        message: Box<Message>,
    },
    /// An intruder brought a launch to the node.
    Intruded {
        node: usize,
        attempt: AttemptId,
        task: TaskId,
        /// The node takes it now, has a key to judge it by, and has to refuse it.
        is_judged: bool,
    },
    /// A process runs from now on.
    Began {
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
    /// A process leaves its CPU to others, and has it again.
    Yielded {
        node: usize,
        attempt: AttemptId,
        task: TaskId,
    },
    Resumed {
        node: usize,
        attempt: AttemptId,
        task: TaskId,
    },
}

/// What a simulation with faults keeps beside the rest.
pub struct Faults {
    plan: Vec<Planned>,
    /// Those of the plan that wait for a moment.
    armed: Vec<(Moment, Duration, u32)>,
    /// The server and the processes of job managers, in this order.
    /// Whose log each writer's is.
    written_by: Vec<Place>,
    writers: Vec<Writer>,
    /// Until when a connection does not come about.
    parted_until: Vec<Instant>,
    /// Until when a node cannot make processes.
    faulty_until: Vec<Instant>,
    /// Until when disks are slow, in the order of [`Places::all`].
    slow_until: Vec<Instant>,
    /// Of each job that was submitted, the number that its client was told.
    answers: Vec<Answer>,
    /// What an intruder has, where there is one.
    intercepted: Vec<Intercepted>,
    /// What happened since it was last looked at.
    happened: Vec<Happening>,
    is_healed: bool,
}

/// A process that has a log.
struct Writer {
    /// Counts how often it has started.
    life: u32,
    /// The changes that are durable.
    log: Vec<Change>,
    /// Its turn that is not over.
    turn: Option<Turn>,
}

/// What a turn of a process leads to when it is over.
pub struct Turn {
    pub over: Instant,
    pub facts: Vec<Fact>,
    pub answers: Vec<Envelope>,
}

/// How many times as long a slow disk takes.
const SLOW: u64 = 100;

impl Turn {
    fn changes_something(&self) -> bool {
        self.facts.iter().any(Fact::is_change)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    NotAsked,
    Awaited,
    Known(JobId),
    Refused,
}

impl Faults {
    pub fn new(plan: Vec<Planned>, places: &Places, jobs: usize) -> Faults {
        let writer = || Writer { life: 1, log: Vec::new(), turn: None };
        let written_by: Vec<Place> = places.all().filter(|place| !matches!(place, Place::Node(_))).collect();
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

    fn has_intruder(&self) -> bool {
        self.plan.iter().any(|planned| matches!(planned.fault, Fault::Intrude { .. }))
    }

    /// Keeps what a turn leads to until it is over.
    pub fn hold(&mut self, place: Place, turn: Turn) {
        let before = self.writer(place).turn.replace(turn);
        assert!(before.is_none(), "a process takes one turn at a time");
    }

    fn writer(&mut self, place: Place) -> &mut Writer {
        let number = self.number_of(place).expect("a node writes nothing");
        &mut self.writers[number]
    }

    /// Its place among those that have a log.
    fn number_of(&self, place: Place) -> Option<usize> {
        self.written_by.iter().position(|other| *other == place)
    }

    fn disk_of(&self, place: Place) -> usize {
        match place {
            Place::Node(node) => self.writers.len() + node,
            _ => self.number_of(place).expect("it has a log"),
        }
    }

    fn slow_until(&mut self, place: Place) -> &mut Instant {
        let disk = self.disk_of(place);
        &mut self.slow_until[disk]
    }

    /// How many times as long as usual the disk of this place takes.
    pub fn slowness(&self, now: Instant, place: Place) -> u64 {
        if self.slow_until[self.disk_of(place)] > now { SLOW } else { 1 }
    }

    pub fn cannot_launch(&self, now: Instant, node: usize) -> bool {
        self.faulty_until[node] > now
    }

    /// The faults that waited for this moment.
    fn take_armed(&mut self, moment: Moment) -> Vec<(Duration, u32)> {
        let fired = self.armed.extract_if(.., |(awaited, ..)| *awaited == moment);
        fired.map(|(_, after, fault)| (after, fault)).collect()
    }

    /// What is durable and known to the world since.
    pub fn take_finished_turn(&mut self, now: Instant) -> Option<(Place, Turn)> {
        let over = |writer: &Writer| writer.turn.as_ref().map(|turn| turn.over).filter(|over| *over <= now);
        let ended = (0..).zip(&self.writers).filter_map(|(number, writer)| Some((over(writer)?, number)));
        let (_, number) = ended.min()?;
        Some((self.written_by[number], self.writers[number].turn.take()?))
    }

    pub fn tell(&mut self, place: Place, fact: &Fact) {
        if let (Fact::Change(change), Some(writer)) = (fact, self.number_of(place)) {
            self.writers[writer].log.push(change.clone());
        }
        self.happened.push(Happening::Told(place, fact.clone()));
    }

    pub fn note(&mut self, happening: Happening) {
        self.happened.push(happening);
    }

    pub fn take_happened(&mut self) -> Vec<Happening> {
        std::mem::take(&mut self.happened)
    }

    /// What is durable, wherever that is.
    pub fn log(&self) -> impl DoubleEndedIterator<Item = &Change> {
        self.writers.iter().flat_map(|writer| &writer.log)
    }

    pub fn is_healed(&self) -> bool {
        self.is_healed
    }

    pub fn submitted(&mut self, job: u32) {
        let answer = &mut self.answers[job as usize];
        // Who was refused and asks again may be taken now, and wants to know.
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

    /// Whether the client of every job has its answer.
    pub fn all_answered(&self) -> bool {
        self.answers.iter().all(|answer| matches!(answer, Answer::Known(_) | Answer::Refused))
    }

    fn id_of(&self, job: u32) -> Option<JobId> {
        match self.answers[job as usize] {
            Answer::Known(id) => Some(id),
            Answer::NotAsked | Answer::Awaited | Answer::Refused => None,
        }
    }

    fn awaited(&self) -> Vec<u32> {
        (0..self.answers.len() as u32).filter(|&job| self.answers[job as usize] == Answer::Awaited).collect()
    }
}

impl Happening {
    /// The task that it is about, or whose attempt.
    pub fn task(&self) -> Option<TaskId> {
        match self {
            Happening::Told(_, Fact::Change(change)) => change.task(),
            Happening::Told(_, Fact::Record(record)) => record.task(),
            Happening::Yielded { task, .. } | Happening::Resumed { task, .. } => Some(*task),
            Happening::Intruded { task, .. } | Happening::Began { task, .. } | Happening::Ended { task, .. } => {
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
            Happening::Told(_, Fact::Change(change)) => Some(change),
            _ => None,
        }
    }

    pub fn record(&self) -> Option<&Record> {
        match self {
            Happening::Told(_, Fact::Record(record)) => Some(record),
            _ => None,
        }
    }
}
