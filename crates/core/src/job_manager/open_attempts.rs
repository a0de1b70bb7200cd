//! The attempts of a job that have not ended, and those that nodes may still report on.

use super::node_claims::NodeClaims;
use crate::progress::Holding;
use crate::protocol::Rule;
use crate::vocabulary::{AttemptId, Duration, Epoch, Instant, JobId, NodeId, TaskId};
use std::collections::btree_map::{Iter, Values};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;

/// Maximum number of given-up attempts whose nodes may still report their usage. The latest are kept.
const MOST_GIVEN_UP: usize = 4_096;

/// Makes attempt ids, and keeps the attempts that have not ended and how many of them are booked.
pub(super) struct Attempts {
    job: JobId,
    epoch: Epoch,
    next: u32,
    open: BTreeMap<AttemptId, RunningAttempt>,
    outstanding: Outstanding,
    /// Nodes that may still run attempts which were written off.
    estranged: BTreeSet<NodeId>,
    /// Given-up attempts whose nodes may still report their usage.
    given_up: BTreeMap<AttemptId, TaskId>,
    /// Claims to attempts that nodes have not answered.
    pub claims: NodeClaims,
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
            claims: NodeClaims::default(),
        }
    }

    /// The incarnation of the job manager, which makes the ids unique.
    pub fn epoch(&self) -> Epoch {
        self.epoch
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

    /// Removes an attempt that ended or was given up. A twin stays, as the only attempt of its task.
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

    /// Attempts of a stage, in the order of ids.
    pub fn of_stage(&self, stage: u32) -> impl Iterator<Item = (AttemptId, &RunningAttempt)> {
        self.open.iter().filter(move |(_, running)| running.task.stage == stage).map(|(id, running)| (*id, running))
    }

    /// Attempts at a node, in the order of ids.
    pub fn at_node(&self, node: NodeId) -> Vec<AttemptId> {
        self.open.iter().filter(|(_, running)| running.node == node).map(|(id, _)| *id).collect()
    }

    pub fn outstanding(&self) -> Outstanding {
        self.outstanding
    }

    /// A ledger has booked the attempt from now on.
    pub fn book(&mut self, attempt: AttemptId) {
        let unbooked = |running: &&mut RunningAttempt| !running.holding.is_booked();
        if let Some(running) = self.open.get_mut(&attempt).filter(unbooked) {
            running.holding = running.holding.booked();
            self.outstanding.unbooked -= 1;
            self.outstanding.booked += 1;
        }
    }

    /// The attempt's process started.
    pub fn started(&mut self, attempt: AttemptId, at: Instant) {
        if let Some(running) = self.open.get_mut(&attempt) {
            running.started_at = Some(at);
        }
    }

    /// Its node has the attempt of an earlier incarnation.
    pub fn confirm(&mut self, attempt: AttemptId) {
        if let Some(running) = self.open.get_mut(&attempt).filter(|running| running.launched_in == LaunchedIn::Earlier)
        {
            running.launched_in = LaunchedIn::Adopted;
        }
    }

    /// The opportunistic attempt is within the job's allowance from now on. Returns it as it was before; `None` if it is
    /// not opportunistic.
    pub fn promote(&mut self, attempt: AttemptId) -> Option<RunningAttempt> {
        let running = self.open.get_mut(&attempt).filter(|running| running.holding == Holding::Opportunistic)?;
        let before = running.clone();
        running.holding = Holding::Promoted;
        Some(before)
    }

    /// The attempt is expected to start after `wait`.
    pub fn expect_wait(&mut self, now: Instant, attempt: AttemptId, wait: Duration) {
        if let Some(running) = self.open.get_mut(&attempt) {
            running.expected_wait = now.since(running.launched_at) + wait;
        }
    }

    /// The node reports when it expects to start the attempt. Reports about attempts at other nodes are ignored.
    pub fn expect_start(&mut self, node: NodeId, attempt: AttemptId, at: Instant) {
        if let Some(running) = self.open.get_mut(&attempt).filter(|running| running.node == node) {
            running.starts_at = Some(at);
        }
    }

    /// Two attempts of one task. In a race one of them is slow, and the first to succeed counts.
    pub fn pair(&mut self, first: AttemptId, second: AttemptId, is_race: bool) {
        for (one, other) in [(first, second), (second, first)] {
            if let Some(one) = self.open.get_mut(&one) {
                (one.twin, one.had_rival) = (Some(other), is_race);
            }
        }
    }

    // ---- nodes that may still run attempts that were written off ---------------------------------------------------

    /// The node may still run an attempt that was written off.
    pub fn estrange(&mut self, node: NodeId) {
        self.estranged.insert(node);
    }

    /// The node runs only our attempts.
    pub fn reconcile(&mut self, node: NodeId) {
        self.estranged.remove(&node);
    }

    pub fn is_estranged(&self, node: NodeId) -> bool {
        self.estranged.contains(&node)
    }

    /// In the order of ids.
    pub fn estranged(&self) -> impl Iterator<Item = NodeId> {
        self.estranged.iter().copied()
    }

    // ---- given-up attempts -----------------------------------------------------------------------------------------

    /// The attempt is given up, and its node may still report its usage.
    pub fn give_up(&mut self, attempt: AttemptId, task: TaskId) {
        self.given_up.insert(attempt, task);
        if self.given_up.len() > MOST_GIVEN_UP {
            self.given_up.pop_first();
        }
    }

    /// The task of a given-up attempt whose end has been reported now.
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
        assert_eq!(self.outstanding, counted, "numbers of booked and unbooked attempts");
        for (attempt, running) in &self.open {
            let Some(twin) = running.twin else { continue };
            let back = self.open.get(&twin).and_then(|twin| twin.twin);
            assert_eq!(back, Some(*attempt), "twins refer to each other");
        }
    }
}

impl Index<&AttemptId> for Attempts {
    type Output = RunningAttempt;

    fn index(&self, attempt: &AttemptId) -> &RunningAttempt {
        &self.open[attempt]
    }
}

/// An attempt that has not ended. The handlers read its fields; only [`Attempts`] changes those of an inserted attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RunningAttempt {
    pub task: TaskId,
    pub node: NodeId,
    holding: Holding,
    /// The other attempt of its task, if there are two.
    pub twin: Option<AttemptId>,
    /// Its present or last twin exists because one of the two was slow; the first to succeed counts.
    pub had_rival: bool,
    /// Expected wait when it was sent, and expected start from the last report of its node.
    pub expected_wait: Duration,
    pub starts_at: Option<Instant>,
    /// The rule by which it was launched.
    pub rule: Rule,
    /// Weight in its node's random choice among opportunistic attempts.
    pub weight: u16,
    pub launched_at: Instant,
    pub started_at: Option<Instant>,
    pub launched_in: LaunchedIn,
}

impl RunningAttempt {
    /// An attempt that has just been launched, without a twin.
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
            launched_in: LaunchedIn::Present,
        }
    }

    pub fn holding(&self) -> Holding {
        self.holding
    }
}

/// In which incarnation of the job manager an attempt was launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LaunchedIn {
    Present,
    /// In an earlier one, and its node has not confirmed it yet.
    Earlier,
    /// In an earlier one, and its node has confirmed it.
    Adopted,
}
