//! The scheduler of a job manager: it places the tasks of one job on the nodes that the master publishes. No ledger
//! confirms its decisions: a task waits at the node, or a probe waits there and the node requests the task.

mod batches;
mod probes;

pub use batches::{Allowed, NextTask, NextTasks};

use super::predicting::{Outlook, Waiting};
use super::published::PublishedView;
use crate::policy::node_queue::projection::Use;
use crate::policy::{Alternative, Budget, Decision, OpenAsk, PlacementPolicy, TimeAtNode, run_time};
use crate::protocol::{Ask, Holder, NodeList, Probe, Rule};
use crate::vocabulary::{
    AskId, Duration, Epoch, ExecutionType, Instant, JobId, Margins, NodeId, NodeViews, NodeWaits, Piece, Prediction,
    ProbeId, Route, TaskShape,
};
use crate::why::Why;
use batches::NamedTask;
use probes::{SentProbe, SentProbes};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The length of a node's first pause at the master, which publishes the pause well before it ends.
const CLOSED: Duration = Duration::from_secs(1);

pub struct LocalScheduler {
    job: JobId,
    epoch: Epoch,
    placement: Box<dyn PlacementPolicy>,
    view: PublishedView,
    /// By their numbers.
    asks: Vec<LocalAsk>,
    probes: SentProbes,
    /// The margins of predictions of starts.
    margins: Arc<Margins>,
    /// Tasks that were requested since the margins were set, without those that have started.
    sent: u64,
    is_reported: bool,
}

struct LocalAsk {
    ask: Ask,
    shape: Arc<TaskShape>,
    /// The requested tasks that have a node.
    bound: u64,
    /// Outstanding probes of the ask.
    probes: u64,
    /// Nodes that had room for one task each when the node of the task had not.
    instead: Vec<NodeId>,
    /// The expected run time of one of its tasks, if known.
    expected: Option<Duration>,
    /// Some node of the last list is suitable.
    is_suited: bool,
    /// Predictions for its open tasks.
    waiting: Waiting,
}

/// A task that was sent to a node.
pub struct PlacedTask {
    pub ask: u32,
    pub node: NodeId,
    pub execution: ExecutionType,
    pub expected: Option<Duration>,
    /// Its input, if that differs from the input of the other tasks of its ask.
    pub pieces: Option<Vec<Piece>>,
}

/// The progress of an ask whose tasks its job manager places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AskState {
    pub ask: AskId,
    /// Tasks without a node.
    pub open: u64,
    /// Tasks that were given a node since the job last started to count from zero.
    pub bound: u64,
    /// Outstanding probes.
    pub probes: u64,
    /// Some node that takes work is suitable.
    pub has_nodes: bool,
}

/// An action that the job manager has to carry out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Launch a task of the ask; it counts as bound.
    Start {
        ask: AskId,
        node: NodeId,
        /// Which task, if they are not alike.
        task: Option<u32>,
        rule: Rule,
        /// The execution type, if the ask leaves that open.
        execution: ExecutionType,
        /// How long it is expected to wait there.
        wait: Duration,
    },
    Probe {
        node: NodeId,
        probe: Probe,
    },
    Cancel {
        node: NodeId,
        probes: Vec<ProbeId>,
    },
}

impl LocalAsk {
    fn new(ask: Ask) -> LocalAsk {
        let shape = Arc::new(TaskShape { resources: ask.resources, execution: ask.execution });
        LocalAsk {
            ask,
            shape,
            bound: 0,
            probes: 0,
            instead: Vec::new(),
            expected: None,
            is_suited: false,
            waiting: Waiting::default(),
        }
    }

    fn open(&self) -> u64 {
        self.ask.wanted - self.bound
    }
}

impl LocalScheduler {
    /// A scheduler for the asks of a job, in the order of their numbers.
    pub fn new(
        job: JobId,
        epoch: Epoch,
        asks: impl Iterator<Item = Ask>,
        placement: Box<dyn PlacementPolicy>,
    ) -> LocalScheduler {
        let asks: Vec<LocalAsk> = asks.map(LocalAsk::new).collect();
        let view = PublishedView::new(asks.iter().map(|entry| &entry.ask));
        let view = if placement.knows_load() { view } else { view.without_loads() };
        let (probes, margins) = (SentProbes::default(), Arc::default());
        LocalScheduler { job, epoch, placement, view, asks, probes, margins, sent: 0, is_reported: false }
    }

    // ---- what is known ---------------------------------------------------------------------------------------------

    /// Sets the number of requested tasks of an ask.
    pub fn on_ask(&mut self, now: Instant, ask: &Ask) {
        let number = ask.id.number as usize;
        self.asks[number].ask.wanted = ask.wanted;
        self.predict_open(now, number);
    }

    /// Sets the margins of predictions of starts. The first margins also apply to tasks that were requested before.
    pub fn set_margins(&mut self, now: Instant, margins: Arc<Margins>) {
        let is_first = !std::mem::replace(&mut self.is_reported, true);
        (self.margins, self.sent) = (margins, 0);
        if is_first {
            for number in 0..self.asks.len() {
                self.asks[number].waiting = Waiting::default();
                self.predict_open(now, number);
            }
        }
    }

    fn predict_open(&mut self, now: Instant, number: usize) {
        let (entry, margins) = (&mut self.asks[number], &self.margins);
        let line = margins.crowd.line(self.sent, &entry.ask.resources);
        let open = entry.open();
        let outlook = || Outlook { way: Route::Probed, line, margins: Arc::clone(margins) };
        self.sent += entry.waiting.on_open(now, open, outlook);
    }

    /// The prediction for a task of an ask that is sent to a node's queue with this expected wait. If the wait is
    /// unknown, it is the prediction made when the task was requested, from the number of all waiting tasks.
    pub fn predict(&mut self, now: Instant, way: Route, expected: Option<Duration>, ask: u32) -> Prediction {
        let LocalAsk { waiting, ask, .. } = &mut self.asks[ask as usize];
        if let Some(expected) = expected {
            return self.margins.predict(way, expected);
        }
        let predicted = waiting.next(now);
        waiting.on_placed();
        predicted
            .unwrap_or_else(|| self.margins.predict(way, self.margins.crowd.line(self.sent, &ask.resources).wait(0)))
    }

    /// A task of the job no longer waits.
    pub fn on_started(&mut self) {
        self.sent = self.sent.saturating_sub(1);
    }

    /// Learns from a guaranteed task that was sent to a node's queue and has started.
    pub fn learn_start(&mut self, expected: Duration, waited: Duration) {
        self.placement.on_started(expected, waited);
    }

    pub fn knows_load(&self) -> bool {
        self.placement.knows_load()
    }

    /// The input of the ask's tasks is stored on these nodes, a part on each.
    pub fn set_parts(&mut self, ask: u32, parts: &[Holder]) {
        self.view.set_parts(ask, parts);
    }

    /// The job counts its tasks from zero again.
    pub fn restart(&mut self) {
        for ask in &mut self.asks {
            (ask.ask.wanted, ask.bound) = (0, 0);
        }
    }

    /// Takes over the master's latest list. Probes at nodes that take no new work any more are cancelled.
    pub fn on_nodes(&mut self, now: Instant, list: Arc<NodeList>) -> Vec<Step> {
        self.view.replace(now, list);
        self.review_suited();
        self.take_back(|_, probe, view| !view.is_open(probe.node))
    }

    pub fn reaches(&self, node: NodeId) -> bool {
        self.view.reaches(node)
    }

    fn review_suited(&mut self) {
        for (number, ask) in (0..).zip(&mut self.asks) {
            ask.is_suited = self.view.find_room(number, &ask.ask.resources, 0).is_some();
        }
    }

    /// A node reports how long tasks would wait there.
    pub fn on_waits(&mut self, now: Instant, node: NodeId, waits: Arc<NodeWaits>) {
        self.view.on_waits(now, node, waits);
    }

    /// Sets how long tasks of each ask run, by its number.
    pub fn expect(&mut self, run_times: impl Fn(u32) -> Option<Duration>) {
        for (number, ask) in (0..).zip(&mut self.asks).filter(|(_, ask)| ask.open() > 0) {
            ask.expected = run_times(number);
        }
    }

    /// The node cannot launch, or was given up: it gets no tasks until the master publishes its nodes again, or until
    /// `CLOSED` has passed, since the master may not have noticed.
    pub fn close(&mut self, now: Instant, node: NodeId) -> Vec<Step> {
        self.view.close(node, now + CLOSED);
        self.forget_node(node)
    }

    /// Sets whether this process is connected to the node. A node that is not connected gets no tasks, whatever is
    /// published, and what waited there is forgotten.
    pub fn set_reached(&mut self, node: NodeId, reached: bool) -> Vec<Step> {
        self.view.set_reached(node, reached);
        self.review_suited();
        if reached { Vec::new() } else { self.forget_node(node) }
    }

    /// When a closed node opens automatically.
    pub fn next_opening(&self) -> Option<Instant> {
        self.view.next_opening()
    }

    /// The node has forgotten what waited there for this job. Its probes are cancelled there all the same: a probe may
    /// have been in transit when the new connection already existed and this role did not know that.
    pub fn forget_node(&mut self, node: NodeId) -> Vec<Step> {
        self.take_back(|_, probe, _| probe.node == node)
    }

    /// Removes these probes and cancels them at their nodes, with one message per node.
    fn take_back(&mut self, is_gone: impl Fn(&LocalAsk, &SentProbe, &PublishedView) -> bool) -> Vec<Step> {
        let LocalScheduler { job, epoch, probes, asks, view, .. } = self;
        let gone = probes.iter().filter(|(_, probe)| is_gone(&asks[probe.ask as usize], probe, view));
        let gone: Vec<(u32, SentProbe)> = gone.map(|(number, probe)| (number, *probe)).collect();
        let mut by_node: BTreeMap<NodeId, Vec<ProbeId>> = BTreeMap::new();
        for (number, probe) in gone {
            probes.remove(number);
            asks[probe.ask as usize].probes -= 1;
            by_node.entry(probe.node).or_default().push(ProbeId { job: *job, epoch: *epoch, number });
        }
        by_node.into_iter().map(|(node, probes)| Step::Cancel { node, probes }).collect()
    }

    /// The outstanding probes.
    pub fn probes(&self) -> impl Iterator<Item = (ProbeId, NodeId)> {
        let LocalScheduler { job, epoch, .. } = *self;
        self.probes.iter().map(move |(number, probe)| (ProbeId { job, epoch, number }, probe.node))
    }

    /// The progress of each ask.
    pub fn ask_states(&self) -> impl Iterator<Item = AskState> {
        self.asks.iter().enumerate().map(|(number, entry)| AskState {
            ask: entry.ask.id,
            open: entry.open(),
            bound: entry.bound,
            probes: entry.probes,
            has_nodes: (0..self.view.len()).any(|node| self.view.has_room(node, number as u32, &entry.ask.resources)),
        })
    }

    /// Why asks with open tasks have no suitable node, if there are such asks.
    pub fn explain(&self) -> Vec<Why> {
        let suits = |number: u32, entry: &LocalAsk| {
            (0..self.view.len()).any(|node| self.view.has_room(node, number, &entry.ask.resources))
        };
        let without = (0..).zip(&self.asks).filter(|(number, entry)| entry.open() > 0 && !suits(*number, entry));
        without.fold(Vec::new(), |mut reasons, (_, entry)| {
            let why = self.view.why_none(&entry.ask);
            if !reasons.contains(&why) {
                reasons.push(why);
            }
            reasons
        })
    }

    /// Whether some task has no node.
    pub fn has_open_tasks(&self) -> bool {
        self.asks.iter().any(|ask| ask.open() > 0)
    }

    pub fn has_probes_at(&self, node: NodeId) -> bool {
        self.probes.iter().any(|(_, probe)| probe.node == node)
    }

    /// The node of a probe is ready for a task of this ask, which counts as bound. Returns the ask and the prediction
    /// for the task's start; `None` if the probe is not outstanding. (Probes of asks without open tasks are not.)
    pub fn on_ready(&mut self, now: Instant, number: u32) -> Option<(AskId, Option<Prediction>)> {
        let probe = self.probes.remove(number)?;
        let entry = &mut self.asks[probe.ask as usize];
        entry.probes -= 1;
        entry.bound += 1;
        let prediction = entry.waiting.next(now);
        entry.waiting.on_placed();
        Some((entry.ask.id, prediction))
    }

    /// Whether some node of the last list is suitable for the ask.
    pub fn is_suited(&self, ask: u32) -> bool {
        self.asks[ask as usize].is_suited
    }

    /// Sends a task of the ask to this node in the next decision. False if the node is not suitable.
    pub fn send_to(&mut self, ask: u32, node: NodeId) -> bool {
        let entry = &mut self.asks[ask as usize];
        let index = node.0 as usize;
        let suits = index < self.view.len() && self.view.has_room(index, ask, &entry.ask.resources);
        if suits {
            entry.instead.push(node);
        }
        suits
    }

    // ---- decisions -------------------------------------------------------------------------------------------------

    /// Places at most `most` open tasks, and cancels probes that are not needed any more.
    pub fn decide(&mut self, now: Instant, mut most: u64) -> Vec<Step> {
        let mut steps = Vec::new();
        self.view.advance(now);
        self.cancel_idle_probes(&mut steps);
        for number in 0..self.asks.len() {
            while most > 0 && self.place(now, number, &mut steps) {
                most -= 1;
            }
            // The room of these nodes may be taken by the next decision.
            self.asks[number].instead.clear();
        }
        steps
    }

    /// Advances the view to this time.
    pub fn advance(&mut self, now: Instant) {
        self.view.advance(now);
    }

    /// How long a task of the ask would wait on a node.
    pub fn wait(&self, ask: u32, node: NodeId, execution: ExecutionType) -> Duration {
        let index = Some(node.0 as usize).filter(|index| *index < self.view.len());
        let resources = &self.asks[ask as usize].ask.resources;
        index.map_or(Duration::ZERO, |index| self.view.wait(index, resources, execution))
    }

    /// The node where the task would end sooner by at least `least`, if there is one. The task then counts as sent
    /// there.
    pub fn reconsider(&mut self, task: PlacedTask, time: TimeAtNode, least: Duration) -> Option<Alternative> {
        let PlacedTask { ask, node, execution, expected, pieces } = task;
        let index = Some(node.0 as usize).filter(|index| *index < self.view.len())?;
        let shape = self.asks[ask as usize].ask.resources;
        let class = pieces.map_or(ask, |pieces| self.view.add_task(ask, pieces));
        let open = OpenAsk { slot: ask, shape, class, count: 1, probes: 0, execution, expected };
        let better = self.placement.reconsider(&open, index, time, &self.view);
        self.view.forget_tasks();
        let better = better.filter(|better| better.saving >= least)?;
        let takes = Use { resources: shape, lasting: run_time(expected) };
        self.view.on_the_way(NodeId(better.node as u32), takes, execution == ExecutionType::Opportunistic);
        Some(better)
    }

    /// Cancels the probes of asks without open tasks.
    fn cancel_idle_probes(&mut self, steps: &mut Vec<Step>) {
        if self.asks.iter().any(|ask| ask.probes > 0 && ask.open() == 0) {
            steps.extend(self.take_back(|ask, _, _| ask.open() == 0));
        }
    }

    /// Runs the policy for one ask. Returns whether it started a task, so that it can run again.
    fn place(&mut self, now: Instant, number: usize, steps: &mut Vec<Step>) -> bool {
        let entry = &self.asks[number];
        let (slot, count) = (number as u32, entry.open());
        if count == 0 {
            return false;
        }
        if let Some(node) = self.asks[number].instead.pop() {
            let execution = self.asks[number].ask.execution;
            steps.push(self.start(number, None, node, Rule::Moved, execution));
            return true;
        }
        let entry = &self.asks[number];
        let Ask { resources: shape, execution, .. } = entry.ask;
        let (probes, expected) = (entry.probes, entry.expected);
        let ask = OpenAsk { slot, shape, class: slot, count, probes, execution, expected };
        let mut decisions = Vec::new();
        self.placement.place(now, &[ask], Budget { starts: 1 }, &self.view, &mut decisions);
        let started = decisions.iter().any(|decision| matches!(decision, Decision::Start { .. }));
        steps.extend(decisions.into_iter().filter_map(|decision| match decision {
            Decision::Start { node, .. } => {
                Some(self.start(number, None, NodeId(node as u32), Rule::Sampling, execution))
            }
            Decision::Probe { node, .. } => Some(self.probe(number, NodeId(node as u32))),
            Decision::Wait { .. } => None,
        }));
        started
    }

    fn start(
        &mut self,
        number: usize,
        task: Option<&NamedTask>,
        node: NodeId,
        rule: Rule,
        execution: ExecutionType,
    ) -> Step {
        let entry = &mut self.asks[number];
        entry.bound += 1;
        entry.waiting.on_placed();
        let wait = self.view.wait(node.0 as usize, &entry.ask.resources, execution);
        self.view.on_sent(node);
        if self.placement.takes_batches() {
            let lasting = run_time(task.map_or(entry.expected, |task| task.expected));
            let takes = Use { resources: entry.ask.resources, lasting };
            self.view.on_the_way(node, takes, execution == ExecutionType::Opportunistic);
        }
        Step::Start { ask: entry.ask.id, node, task: task.map(|task| task.index), rule, execution, wait }
    }

    fn probe(&mut self, number: usize, node: NodeId) -> Step {
        let entry = &mut self.asks[number];
        entry.probes += 1;
        let id = ProbeId { job: self.job, epoch: self.epoch, number: self.probes.next_number() };
        self.probes.push(SentProbe { ask: number as u32, node });
        Step::Probe { node, probe: Probe { id, shape: Arc::clone(&entry.shape) } }
    }

    /// Checked in tests and debug builds.
    pub fn check_invariants(&self) {
        for (number, entry) in self.asks.iter().enumerate() {
            let out = self.probes.iter().filter(|(_, probe)| probe.ask == number as u32).count();
            assert_eq!(entry.probes, out as u64, "probes of ask {number}");
            assert!(entry.bound <= entry.ask.wanted, "no more tasks are bound than requested");
        }
    }
}
