//! The scheduler beside a job manager: it places one job's tasks on nodes that it knows from what the master publishes.
//! No ledger confirms what it decides: a task waits at the node, or a probe waits there and the node asks back.

use super::locality::local_nodes;
use crate::policy::{Budget, Decision, OpenAsk, PlacementPolicy};
use crate::protocol::{Ask, NodeList, Probe, Rule};
use crate::vocabulary::{
    AskId, Constraint, Duration, Epoch, Instant, JobId, NodeId, NodeView, NodeViews, ProbeId, Resources, TaskShape,
};
use crate::why::Why;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// As long as a node's first pause at the master, of which a list tells long before that.
const CLOSED: Duration = Duration::from_secs(1);

pub struct LocalScheduler {
    job: JobId,
    epoch: Epoch,
    placement: Box<dyn PlacementPolicy>,
    view: PublishedView,
    /// By their numbers.
    asks: Vec<LocalAsk>,
    probes: SentProbes,
}

struct LocalAsk {
    ask: Ask,
    shape: Arc<TaskShape>,
    /// Of the wanted tasks, those that have a node.
    bound: u64,
    /// Probes that are out for it.
    probes: u64,
    /// Nodes that had room for one task each when theirs had not.
    instead: Vec<NodeId>,
}

/// How far an ask is that its job manager places itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AskState {
    pub ask: AskId,
    /// Tasks without a node.
    pub open: u64,
    /// Tasks that were given one since they were last counted from zero.
    pub bound: u64,
    /// Probes that are out.
    pub probes: u64,
    /// Some node that takes work suits.
    pub has_nodes: bool,
}

#[derive(Clone, Copy)]
struct SentProbe {
    ask: u32,
    node: NodeId,
}

/// Probes that are out, by their numbers, which grow by one each time: a list from the oldest that is out to the newest.
#[derive(Default)]
struct SentProbes {
    first: u32,
    list: VecDeque<Option<SentProbe>>,
}

impl SentProbes {
    fn next_number(&self) -> u32 {
        self.first + self.list.len() as u32
    }

    fn push(&mut self, probe: SentProbe) {
        self.list.push_back(Some(probe));
    }

    fn remove(&mut self, number: u32) -> Option<SentProbe> {
        let at = number.checked_sub(self.first)? as usize;
        let probe = self.list.get_mut(at)?.take();
        while self.list.pop_front_if(|oldest| oldest.is_none()).is_some() {
            self.first += 1;
        }
        probe
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &SentProbe)> {
        (self.first..).zip(&self.list).filter_map(|(number, probe)| Some((number, probe.as_ref()?)))
    }
}

/// What the job manager is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Launch a task of the ask; it counts as bound.
    Start {
        ask: AskId,
        node: NodeId,
        rule: Rule,
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
        LocalAsk { ask, shape, bound: 0, probes: 0, instead: Vec::new() }
    }

    fn open(&self) -> u64 {
        self.ask.wanted - self.bound
    }
}

impl LocalScheduler {
    /// For the asks of a job, by their numbers.
    pub fn new(
        job: JobId,
        epoch: Epoch,
        asks: impl Iterator<Item = Ask>,
        placement: Box<dyn PlacementPolicy>,
    ) -> LocalScheduler {
        let asks: Vec<LocalAsk> = asks.map(LocalAsk::new).collect();
        let classes = asks.iter().map(|entry| Arc::clone(&entry.ask.constraints)).collect();
        let local = asks.iter().map(|entry| local_nodes(&entry.ask.locality)).collect();
        LocalScheduler {
            job,
            epoch,
            placement,
            view: PublishedView { classes, local, ..PublishedView::default() },
            asks,
            probes: SentProbes::default(),
        }
    }

    // ---- what is known ---------------------------------------------------------------------------------------------

    /// How much the job wants of an ask.
    pub fn on_ask(&mut self, ask: &Ask) {
        self.asks[ask.id.number as usize].ask.wanted = ask.wanted;
    }

    /// The job counts its tasks from zero again.
    pub fn restart(&mut self) {
        for ask in &mut self.asks {
            (ask.ask.wanted, ask.bound) = (0, 0);
        }
    }

    /// The master's latest list. Probes at nodes that take no new work any more are taken back.
    pub fn on_nodes(&mut self, now: Instant, list: Arc<NodeList>) -> Vec<Step> {
        self.view.replace(now, list);
        self.take_back(|_, probe, view| !view.is_open(probe.node))
    }

    /// The node cannot launch, or was given up: nothing goes there until the master has published its nodes again, or for
    /// a while, because the master need not have noticed.
    pub fn close(&mut self, now: Instant, node: NodeId) -> Vec<Step> {
        self.view.closed.insert(node, now + CLOSED);
        self.forget_node(node)
    }

    /// When a node that was closed opens by itself.
    pub fn next_opening(&self) -> Option<Instant> {
        self.view.closed.values().min().copied()
    }

    /// The node has forgotten what waited there for this job. All the same it is told: a probe may have been on its way
    /// when the new connection stood already and nobody here knew.
    pub fn forget_node(&mut self, node: NodeId) -> Vec<Step> {
        self.take_back(|_, probe, _| probe.node == node)
    }

    /// Takes these probes off the account and tells their nodes, with one message for each.
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

    /// The probes that are out.
    pub fn probes(&self) -> impl Iterator<Item = (ProbeId, NodeId)> {
        let LocalScheduler { job, epoch, .. } = *self;
        self.probes.iter().map(move |(number, probe)| (ProbeId { job, epoch, number }, probe.node))
    }

    /// How far each ask is.
    pub fn ask_states(&self) -> impl Iterator<Item = AskState> {
        self.asks.iter().enumerate().map(|(number, entry)| AskState {
            ask: entry.ask.id,
            open: entry.open(),
            bound: entry.bound,
            probes: entry.probes,
            has_nodes: (0..self.view.len()).any(|node| self.view.has_room(node, number as u32, &entry.ask.resources)),
        })
    }

    /// Why the asks with open tasks that no node suits have none.
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

    /// The node of a probe is ready for a task of this ask, which counts as bound; `None` if the probe is not out. (Those
    /// of asks without open tasks are not.)
    pub fn on_ready(&mut self, number: u32) -> Option<AskId> {
        let probe = self.probes.remove(number)?;
        let entry = &mut self.asks[probe.ask as usize];
        entry.probes -= 1;
        entry.bound += 1;
        Some(entry.ask.id)
    }

    /// In the next decision a task of the ask goes to this node. False if it does not suit.
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

    /// Places what is open, so many tasks at most, and takes back what is not needed any more.
    pub fn decide(&mut self, now: Instant, mut most: u64) -> Vec<Step> {
        let mut steps = Vec::new();
        self.view.now = now;
        self.view.closed.retain(|_, until| *until > now);
        self.cancel_idle_probes(&mut steps);
        for number in 0..self.asks.len() {
            while most > 0 && self.place(now, number, &mut steps) {
                most -= 1;
            }
            // The room was there a moment ago.
            self.asks[number].instead.clear();
        }
        steps
    }

    /// Probes of asks without open tasks are taken back.
    fn cancel_idle_probes(&mut self, steps: &mut Vec<Step>) {
        if self.asks.iter().any(|ask| ask.probes > 0 && ask.open() == 0) {
            steps.extend(self.take_back(|ask, _, _| ask.open() == 0));
        }
    }

    /// Asks the policy about one ask. Whether it started a task, so that it may be asked again.
    fn place(&mut self, now: Instant, number: usize, steps: &mut Vec<Step>) -> bool {
        let entry = &self.asks[number];
        let (slot, count) = (number as u32, entry.open());
        if count == 0 {
            return false;
        }
        if let Some(node) = self.asks[number].instead.pop() {
            steps.push(self.start(number, node, Rule::Moved));
            return true;
        }
        let entry = &self.asks[number];
        let ask = OpenAsk { slot, shape: entry.ask.resources, class: slot, count, probes: entry.probes };
        let mut decisions = Vec::new();
        self.placement.place(now, &[ask], Budget { starts: 1 }, &self.view, &mut decisions);
        let started = decisions.iter().any(|decision| matches!(decision, Decision::Start { .. }));
        steps.extend(decisions.into_iter().filter_map(|decision| match decision {
            Decision::Start { node, .. } => Some(self.start(number, NodeId(node as u32), Rule::Sampling)),
            Decision::Probe { node, .. } => Some(self.probe(number, NodeId(node as u32))),
            Decision::Wait { .. } => None,
        }));
        started
    }

    fn start(&mut self, number: usize, node: NodeId, rule: Rule) -> Step {
        let entry = &mut self.asks[number];
        entry.bound += 1;
        self.view.on_sent(node);
        Step::Start { ask: entry.ask.id, node, rule }
    }

    fn probe(&mut self, number: usize, node: NodeId) -> Step {
        let entry = &mut self.asks[number];
        entry.probes += 1;
        let id = ProbeId { job: self.job, epoch: self.epoch, number: self.probes.next_number() };
        self.probes.push(SentProbe { ask: number as u32, node });
        Step::Probe { node, probe: Probe { id, shape: Arc::clone(&entry.shape) } }
    }

    /// In tests and debug builds.
    pub fn check_invariants(&self) {
        for (number, entry) in self.asks.iter().enumerate() {
            let out = self.probes.iter().filter(|(_, probe)| probe.ask == number as u32).count();
            assert_eq!(entry.probes, out as u64, "probes of ask {number}");
            assert!(entry.bound <= entry.ask.wanted, "no more tasks are bound than are wanted");
        }
    }
}

/// The nodes as the master published them last, and what this job has seen since.
#[derive(Default)]
struct PublishedView {
    list: Arc<NodeList>,
    published_at: Instant,
    now: Instant,
    /// By the numbers of asks.
    classes: Vec<Arc<Vec<Constraint>>>,
    /// By the same: the nodes with the input, and the racks that they are in.
    local: Vec<Vec<NodeId>>,
    racks: Vec<BTreeSet<String>>,
    /// Nodes that could not launch, and until when nothing goes there.
    closed: BTreeMap<NodeId, Instant>,
    /// Tasks sent to nodes since, which no report shows.
    sent: BTreeMap<NodeId, u32>,
}

impl PublishedView {
    fn replace(&mut self, now: Instant, list: Arc<NodeList>) {
        (self.list, self.published_at) = (list, now);
        self.closed.clear();
        self.sent.clear();
        self.racks =
            self.local.iter().map(|nodes| nodes.iter().filter_map(|node| self.rack(*node)).collect()).collect();
    }

    fn rack(&self, node: NodeId) -> Option<String> {
        self.list.nodes.get(node.0 as usize)?.attributes.get("rack").map(str::to_owned)
    }

    fn on_sent(&mut self, node: NodeId) {
        *self.sent.entry(node).or_default() += 1;
    }

    /// Why no node that takes work suits the ask.
    fn why_none(&self, ask: &Ask) -> Why {
        let open = || (0..self.len()).map(|index| NodeId(index as u32)).filter(|&node| self.is_open(node));
        if open().next().is_none() {
            return Why::NoNode { known: self.len() as u32 };
        }
        let listed = |node: NodeId| &self.list.nodes[node.0 as usize];
        let is_met = |constraint: &Constraint, node| constraint.is_met_by(&listed(node).attributes);
        let meets = |&node: &NodeId| ask.constraints.iter().all(|constraint| is_met(constraint, node));
        let mut all = (0..self.len()).map(|index| NodeId(index as u32)).filter(meets);
        if let Some(closest) = all.find(|&node| ask.resources.fits_in(&listed(node).capacity)) {
            return Why::Closed { closest };
        }
        let lacking = open().filter(meets).map(|node| (ask.resources.shortage(&listed(node).capacity), node));
        let lack = |short: &Resources| short.0.iter().map(|&amount| u64::from(amount)).sum::<u64>();
        if let Some((short, closest)) = lacking.min_by_key(|(short, node)| (lack(short), *node)) {
            return Why::TooLarge { closest, short };
        }
        let by_none = |constraint: &&Constraint| !open().any(|node| is_met(constraint, node));
        let unmet: Vec<Constraint> = ask.constraints.iter().filter(by_none).cloned().collect();
        Why::Constraints { unmet: if unmet.is_empty() { ask.constraints.to_vec() } else { unmet } }
    }

    fn is_open(&self, node: NodeId) -> bool {
        self.list.nodes.get(node.0 as usize).is_some_and(|listed| listed.open) && !self.closed.contains_key(&node)
    }
}

impl NodeViews for PublishedView {
    fn len(&self) -> usize {
        self.list.nodes.len()
    }

    fn best(&self) -> &[u32] {
        &self.list.best
    }

    fn rank(&self, index: usize) -> Duration {
        self.list.nodes[index].report.rank()
    }

    fn local(&self, class: u32) -> &[NodeId] {
        &self.local[class as usize]
    }

    fn is_rack_local(&self, index: usize, class: u32) -> bool {
        let racks = self.racks.get(class as usize).filter(|racks| !racks.is_empty());
        let rack = self.list.nodes[index].attributes.get("rack");
        racks.is_some_and(|racks| rack.is_some_and(|rack| racks.contains(rack)))
    }

    fn view(&self, index: usize) -> NodeView {
        let (listed, node) = (&self.list.nodes[index], NodeId(index as u32));
        NodeView {
            node,
            capacity: listed.capacity,
            free: listed.report.free,
            open: self.is_open(node),
            queued: listed.report.queued + self.sent.get(&node).copied().unwrap_or(0),
            expected_wait: listed.report.expected_wait,
            age: self.now.since(self.published_at),
        }
    }

    /// A task that does not fit now waits at the node, so room is what the empty node has.
    fn has_room(&self, index: usize, class: u32, shape: &Resources) -> bool {
        let listed = &self.list.nodes[index];
        let meets = |constraint: &Constraint| constraint.is_met_by(&listed.attributes);
        self.is_open(NodeId(index as u32))
            && shape.fits_in(&listed.capacity)
            && self.classes[class as usize].iter().all(meets)
    }
}
