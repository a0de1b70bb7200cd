//! The attempts of a job that have not ended, and those that nodes may still report on.

use crate::protocol::Rule;
use crate::vocabulary::{AttemptId, Duration, Epoch, Instant, JobId, NodeId, TaskId};
use serde::{Deserialize, Serialize};
use std::collections::btree_map::{Iter, Values};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;

/// Attempts that were given up and may still report what they used: all of most jobs, and the latest where there are more.
const MOST_GIVEN_UP: usize = 4_096;

/// Makes attempt ids, and keeps the attempts that have not ended, with how many of them are booked.
pub(super) struct Attempts {
    job: JobId,
    epoch: Epoch,
    next: u32,
    open: BTreeMap<AttemptId, RunningAttempt>,
    outstanding: Outstanding,
    /// Nodes that may still run attempts which were written off.
    estranged: BTreeSet<NodeId>,
    /// Attempts that are not awaited any more, whose nodes may still report what they used.
    given_up: BTreeMap<AttemptId, TaskId>,
}

/// Numbers of attempts that have not ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Outstanding {
    pub booked: u64,
    pub unbooked: u64,
}

impl Outstanding {
    fn counter(&mut self, booked: bool) -> &mut u64 {
        if booked { &mut self.booked } else { &mut self.unbooked }
    }
}

impl Attempts {
    pub fn new(job: JobId, epoch: Epoch) -> Attempts {
        Attempts {
            job,
            epoch,
            next: 0,
            open: BTreeMap::new(),
            outstanding: Outstanding::default(),
            estranged: BTreeSet::new(),
            given_up: BTreeMap::new(),
        }
    }

    /// The id of a new attempt.
    pub fn make_id(&mut self) -> AttemptId {
        self.next += 1;
        AttemptId { job: self.job, epoch: self.epoch, number: self.next - 1 }
    }

    /// The number of the attempt that is made next.
    pub fn next_number(&self) -> u32 {
        self.next
    }

    pub fn insert(&mut self, attempt: AttemptId, running: RunningAttempt) {
        *self.outstanding.counter(running.holding.is_booked()) += 1;
        self.open.insert(attempt, running);
    }

    /// It has ended, or is not awaited any more. A twin stays, as the only attempt of its task.
    pub fn remove(&mut self, attempt: AttemptId) -> Option<RunningAttempt> {
        let running = self.open.remove(&attempt)?;
        *self.outstanding.counter(running.holding.is_booked()) -= 1;
        if let Some(twin) = running.twin.and_then(|twin| self.open.get_mut(&twin)) {
            twin.twin = None;
        }
        Some(running)
    }

    pub fn get(&self, attempt: &AttemptId) -> Option<&RunningAttempt> {
        self.open.get(attempt)
    }

    pub fn get_mut(&mut self, attempt: &AttemptId) -> Option<&mut RunningAttempt> {
        self.open.get_mut(attempt)
    }

    pub fn iter(&self) -> Iter<'_, AttemptId, RunningAttempt> {
        self.open.iter()
    }

    pub fn values(&self) -> Values<'_, AttemptId, RunningAttempt> {
        self.open.values()
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Those of a stage, by id.
    pub fn of_stage(&self, stage: u32) -> impl Iterator<Item = (AttemptId, &RunningAttempt)> {
        self.open.iter().filter(move |(_, running)| running.task.stage == stage).map(|(id, running)| (*id, running))
    }

    /// Those at a node, by id.
    pub fn at_node(&self, node: NodeId) -> Vec<AttemptId> {
        self.open.iter().filter(|(_, running)| running.node == node).map(|(id, _)| *id).collect()
    }

    pub fn outstanding(&self) -> Outstanding {
        self.outstanding
    }

    /// A ledger holds the resources of the attempt from now on.
    pub fn book(&mut self, attempt: AttemptId) {
        let unbooked = |running: &&mut RunningAttempt| !running.holding.is_booked();
        if let Some(running) = self.open.get_mut(&attempt).filter(unbooked) {
            running.holding = running.holding.booked();
            self.outstanding.unbooked -= 1;
            self.outstanding.booked += 1;
        }
    }

    /// Two attempts of one task. With a race one of them is slow, and the first that ends well counts.
    pub fn pair(&mut self, first: AttemptId, second: AttemptId, is_race: bool) {
        for (one, other) in [(first, second), (second, first)] {
            if let Some(one) = self.open.get_mut(&one) {
                (one.twin, one.had_rival) = (Some(other), is_race);
            }
        }
    }

    // ---- nodes that may still run what was written off -------------------------------------------------------------

    /// The node may still run an attempt that was written off.
    pub fn estrange(&mut self, node: NodeId) {
        self.estranged.insert(node);
    }

    /// The node runs only what is ours.
    pub fn reconcile(&mut self, node: NodeId) {
        self.estranged.remove(&node);
    }

    pub fn is_estranged(&self, node: NodeId) -> bool {
        self.estranged.contains(&node)
    }

    /// By id.
    pub fn estranged(&self) -> impl Iterator<Item = NodeId> {
        self.estranged.iter().copied()
    }

    // ---- attempts that are not awaited any more --------------------------------------------------------------------

    /// The attempt is not awaited any more, and its node may report later what it used.
    pub fn give_up(&mut self, attempt: AttemptId, task: TaskId) {
        self.given_up.insert(attempt, task);
        if self.given_up.len() > MOST_GIVEN_UP {
            self.given_up.pop_first();
        }
    }

    /// The task of an attempt that was given up and has been reported on now.
    pub fn take_given_up(&mut self, attempt: AttemptId) -> Option<TaskId> {
        self.given_up.remove(&attempt)
    }

    // ---- across restarts -------------------------------------------------------------------------------------------

    pub fn saved(&self) -> (BTreeSet<NodeId>, Vec<(AttemptId, TaskId)>) {
        (self.estranged.clone(), self.given_up.iter().map(|(attempt, task)| (*attempt, *task)).collect())
    }

    pub fn recover(&mut self, estranged: BTreeSet<NodeId>, given_up: Vec<(AttemptId, TaskId)>) {
        (self.estranged, self.given_up) = (estranged, given_up.into_iter().collect());
    }

    pub fn check_invariants(&self) {
        let mut counted = Outstanding::default();
        self.open.values().for_each(|running| *counted.counter(running.holding.is_booked()) += 1);
        assert_eq!(self.outstanding, counted, "attempts that are booked and that are not");
        for (attempt, running) in &self.open {
            let Some(twin) = running.twin else { continue };
            let back = self.open.get(&twin).and_then(|twin| twin.twin);
            assert_eq!(back, Some(*attempt), "twins know each other");
        }
    }
}

impl Index<&AttemptId> for Attempts {
    type Output = RunningAttempt;

    fn index(&self, attempt: &AttemptId) -> &RunningAttempt {
        &self.open[attempt]
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RunningAttempt {
    pub task: TaskId,
    pub node: NodeId,
    holding: Holding,
    /// The other attempt of its task, where there are two.
    pub twin: Option<AttemptId>,
    /// The other one that there is, or was last, is there because one of the two was slow; whichever ends well first counts.
    pub had_rival: bool,
    /// How long it was expected to wait when it was sent, and when it starts by its node's last report.
    pub expected_wait: Duration,
    pub starts_at: Option<Instant>,
    /// The rule by which it was launched.
    pub rule: Rule,
    /// As its node draws by it, if it is opportunistic.
    pub weight: u16,
    pub launched_at: Instant,
    pub started_at: Option<Instant>,
    pub life: Life,
}

impl RunningAttempt {
    /// One that has just been launched in the present life, without a twin.
    pub fn launched(task: TaskId, node: NodeId, holding: Holding, rule: Rule, at: Instant) -> RunningAttempt {
        RunningAttempt {
            task,
            node,
            holding,
            twin: None,
            had_rival: false,
            expected_wait: Duration::ZERO,
            starts_at: None,
            rule,
            weight: 1,
            launched_at: at,
            started_at: None,
            life: Life::Present,
        }
    }

    pub fn holding(&self) -> Holding {
        self.holding
    }

    /// It was opportunistic, and is within what the job is entitled to from now on.
    pub fn promote(&mut self) {
        debug_assert!(!self.holding.is_booked(), "a booked attempt needs no entitlement");
        self.holding = Holding::Promoted;
    }
}

/// By what right an attempt holds resources of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Holding {
    /// A grant: a ledger has booked them since its launch.
    Granted,
    /// It was launched as opportunistic, and a ledger has booked them since.
    GrantedLater,
    /// They are within what the job is entitled to.
    Entitled,
    /// It was launched as opportunistic, and is within what the job is entitled to since.
    Promoted,
    /// None: it is preempted by those that have one.
    Opportunistic,
}

impl Holding {
    pub fn is_booked(self) -> bool {
        matches!(self, Holding::Granted | Holding::GrantedLater)
    }

    /// Whether it counts as opportunistic where its job accounts for it, also if a ledger has booked it since.
    pub fn counts_as_opportunistic(self) -> bool {
        matches!(self, Holding::Opportunistic | Holding::GrantedLater)
    }

    /// As it is from now on if a ledger has booked it.
    pub fn booked(self) -> Holding {
        if self.counts_as_opportunistic() { Holding::GrantedLater } else { Holding::Granted }
    }
}

/// In which life of the job manager an attempt was launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Life {
    Present,
    /// In an earlier one, and its node has not confirmed it yet.
    Earlier,
    /// In an earlier one, and its node has it.
    Adopted,
}
