//! The view of nodes that a job manager has if it places its own tasks: as the master published them last, with what
//! the job manager has received and done since.

use super::locality::local_nodes;
use crate::policy::node_queue::projection::Use;
use crate::protocol::{Ask, Holder, ListedNode, NodeList};
use crate::vocabulary::{
    Age, ClosedReason, Constraint, Distance, Duration, ExecutionType, Instant, Load, NodeId, NodeView, NodeViews,
    NodeWaits, Piece, Resources, unmet,
};
use crate::why::Why;
use fixedbitset::FixedBitSet;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Assumed size of the input of a task that is to be near some nodes, if the size is unknown.
const UNKNOWN_INPUT: u64 = 128 << 20;
/// The bytes of a [`Holder`] whose amount is unknown.
const UNKNOWN_BYTES: u64 = 1;

/// How long the waits that a node reported are trusted; after each such period they are trusted less ([`Age`]).
const TRUSTED_FOR: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct PublishedView {
    list: Arc<NodeList>,
    /// Information about load is ignored.
    is_blind: bool,
    published_at: Instant,
    now: Instant,
    /// By the numbers of asks, followed by those of single tasks, for one decision.
    classes: Vec<Class>,
    asks: usize,
    /// Set if some class has an input.
    racks: Option<Racks>,
    /// Nodes that could not launch, and until when they get no tasks.
    closed: BTreeMap<NodeId, Instant>,
    /// Nodes to which this process is not connected.
    unreached: BTreeSet<NodeId>,
    /// Numbers of tasks that were sent to nodes since the last list, and that no report shows.
    sent: BTreeMap<NodeId, u32>,
    /// What tasks take that were sent to a node since it last reported its waits.
    on_the_way: BTreeMap<NodeId, OnTheWay>,
    /// A bit for each node that has no room for one more of these tasks.
    filled: FixedBitSet,
    /// The waits that nodes reported to this process, and when.
    heard: BTreeMap<NodeId, (Instant, Arc<NodeWaits>)>,
    /// The same nodes, in the order in which they reported.
    received_order: Vec<NodeId>,
}

/// The nodes that an ask or one of its tasks may use, and where its input is stored.
struct Class {
    constraints: Arc<Vec<Constraint>>,
    pieces: Vec<Piece>,
    /// Nodes with much of the input, the most first; the racks that they are in, and the other nodes there.
    local: Vec<NodeId>,
    racks: BTreeSet<u32>,
    near: Vec<NodeId>,
}

/// Racks: nodes share one if they have the same attribute `rack`.
struct Racks {
    /// By the numbers of nodes.
    of: Vec<Option<u32>>,
    nodes: Vec<Vec<NodeId>>,
}

impl Racks {
    fn new(list: &NodeList) -> Racks {
        let mut known = BTreeMap::new();
        let mut racks = Racks { of: Vec::with_capacity(list.nodes.len()), nodes: Vec::new() };
        for (number, listed) in (0..).zip(&list.nodes) {
            let rack = listed.attributes.get("rack").map(|name| {
                *known.entry(name).or_insert_with(|| {
                    racks.nodes.push(Vec::new());
                    racks.nodes.len() as u32 - 1
                })
            });
            rack.into_iter().for_each(|rack| racks.nodes[rack as usize].push(NodeId(number)));
            racks.of.push(rack);
        }
        racks
    }

    fn of(&self, node: NodeId) -> Option<u32> {
        self.of.get(node.0 as usize).copied().flatten()
    }
}

/// Tasks that were sent to a node, and the load of the guaranteed ones and of all.
#[derive(Default)]
struct OnTheWay {
    sent: Vec<Sent>,
    guaranteed: Load,
    all: Load,
}

impl OnTheWay {
    fn push(&mut self, sent: Sent) {
        self.all.add(&sent.takes.resources, sent.takes.lasting);
        if !sent.is_opportunistic {
            self.guaranteed.add(&sent.takes.resources, sent.takes.lasting);
        }
        self.sent.push(sent);
    }

    /// Whether the free resources of the node leave no room for another task like the last one.
    fn fills(&self, list: &NodeList, node: NodeId) -> bool {
        let listed = list.nodes.get(node.0 as usize);
        let together = self.sent.last().map(|last| self.all.with(&last.takes.resources));
        listed.zip(together).is_some_and(|(listed, together)| !together.fits_in(&listed.report.free))
    }

    /// The tasks that were sent after `at`.
    fn since(&self, at: Instant) -> OnTheWay {
        let mut left = OnTheWay::default();
        self.sent.iter().filter(|one| one.at > at).for_each(|one| left.push(*one));
        left
    }
}

/// A task that was sent to a node.
#[derive(Clone, Copy)]
struct Sent {
    at: Instant,
    takes: Use,
    is_opportunistic: bool,
}

impl Class {
    fn new(constraints: Arc<Vec<Constraint>>, pieces: Vec<Piece>) -> Class {
        let mut at: BTreeMap<NodeId, u64> = BTreeMap::new();
        for Piece { bytes, at: nodes } in &pieces {
            nodes.iter().for_each(|node| *at.entry(*node).or_default() += bytes);
        }
        let holders: Vec<Holder> = at.iter().map(|(&node, &bytes)| Holder { node, bytes }).collect();
        let mut local = local_nodes(&holders);
        local.sort_by_key(|node| (Reverse(at[node]), *node));
        Class { constraints, pieces, local, racks: BTreeSet::new(), near: Vec::new() }
    }

    /// Finds the racks with the input.
    fn locate(&mut self, racks: &Racks) {
        self.racks = self.local.iter().filter_map(|&node| racks.of(node)).collect();
        let near = self.racks.iter().flat_map(|&rack| &racks.nodes[rack as usize]);
        let local: BTreeSet<NodeId> = self.local.iter().copied().collect();
        self.near = near.filter(|node| !local.contains(node)).copied().collect();
        self.near.sort_unstable();
    }
}

/// The pieces of an input that each of these nodes has in full, as far as its size is known. A node with fewer bytes
/// has a part of what the others have.
fn whole(holders: &[Holder]) -> Vec<Piece> {
    let bytes = |holder: &Holder| if holder.bytes == UNKNOWN_BYTES { UNKNOWN_INPUT } else { holder.bytes };
    let mut steps: Vec<u64> = holders.iter().map(bytes).collect();
    steps.sort_unstable();
    steps.dedup();
    let below = |step: usize| step.checked_sub(1).map_or(0, |before| steps[before]);
    let piece = |(step, &upto): (usize, &u64)| {
        let at = holders.iter().filter(|holder| bytes(holder) >= upto).map(|holder| holder.node).collect();
        Piece { bytes: upto - below(step), at }
    };
    steps.iter().enumerate().map(piece).collect()
}

impl PublishedView {
    pub(super) fn new<'a>(asks: impl Iterator<Item = &'a Ask>) -> PublishedView {
        let class = |ask: &Ask| Class::new(Arc::clone(&ask.constraints), whole(&ask.locality));
        let classes: Vec<Class> = asks.map(class).collect();
        PublishedView { asks: classes.len(), classes, ..PublishedView::default() }
    }

    /// Ignores the load of nodes from now on, both as published and as they report it.
    pub(super) fn without_loads(mut self) -> PublishedView {
        self.is_blind = true;
        self
    }

    pub(super) fn replace(&mut self, now: Instant, list: Arc<NodeList>) {
        let before = std::mem::replace(&mut self.list, list);
        (self.published_at, self.now) = (now, now);
        self.closed.clear();
        self.sent.clear();
        let list = &self.list;
        // Published waits may be older than those that a node reported here; a node without published waits counts as
        // reported now.
        let reported_at_node = |node: NodeId| {
            let waits = list.nodes.get(node.0 as usize).and_then(|listed| listed.waits.as_ref());
            waits.map_or(now, |waits| now.before(waits.age))
        };
        self.heard.retain(|&node, heard| heard.0 > reported_at_node(node));
        self.received_order.retain(|node| self.heard.contains_key(node));
        // A report of the node confirms its earlier waits.
        let confirmed_at = |node: NodeId| {
            let waits = list.nodes.get(node.0 as usize).and_then(|listed| listed.waits.as_ref());
            waits.map_or(now, |waits| now.before(waits.age.min(waits.silent_for)))
        };
        self.filled.clear();
        self.on_the_way.retain(|&node, on_the_way| {
            *on_the_way = on_the_way.since(confirmed_at(node));
            if on_the_way.fills(list, node) {
                self.filled.grow_and_insert(node.0 as usize);
            }
            !on_the_way.sent.is_empty()
        });
        // Consecutive lists share what has not changed.
        let pairs = || before.nodes.iter().zip(&list.nodes);
        let is_as_before = before.nodes.len() == list.nodes.len()
            && pairs().all(|(one, other)| Arc::ptr_eq(&one.attributes, &other.attributes));
        if !is_as_before {
            self.racks = None;
            for class in 0..self.asks {
                self.locate(class);
            }
        }
    }

    /// The input of the ask's tasks is stored on these nodes, a part on each.
    pub(super) fn set_parts(&mut self, ask: u32, parts: &[Holder]) {
        let pieces = parts.iter().map(|part| Piece { bytes: part.bytes, at: vec![part.node] }).collect();
        let class = &mut self.classes[ask as usize];
        *class = Class::new(Arc::clone(&class.constraints), pieces);
        self.locate(ask as usize);
    }

    /// Adds a class for one task of an ask, which reads these pieces. It exists until [`PublishedView::forget_tasks`].
    pub(super) fn add_task(&mut self, ask: u32, pieces: Vec<Piece>) -> u32 {
        let constraints = Arc::clone(&self.classes[ask as usize].constraints);
        self.classes.push(Class::new(constraints, pieces));
        self.locate(self.classes.len() - 1);
        self.classes.len() as u32 - 1
    }

    pub(super) fn forget_tasks(&mut self) {
        self.classes.truncate(self.asks);
    }

    fn locate(&mut self, class: usize) {
        let class = &mut self.classes[class];
        if !class.local.is_empty() {
            class.locate(self.racks.get_or_insert_with(|| Racks::new(&self.list)));
        }
    }

    /// A node reports how long tasks would wait there.
    pub(super) fn on_waits(&mut self, now: Instant, node: NodeId, waits: Arc<NodeWaits>) {
        if self.is_blind {
            return;
        }
        if self.heard.insert(node, (now, waits)).is_some() {
            self.received_order.retain(|other| *other != node);
        }
        self.received_order.push(node);
        if self.on_the_way.remove(&node).is_some() && self.filled.contains(node.0 as usize) {
            self.filled.remove(node.0 as usize);
        }
    }

    /// Advances the time; nodes that were closed until then open.
    pub(super) fn advance(&mut self, now: Instant) {
        self.now = now;
        self.closed.retain(|_, until| *until > now);
    }

    pub(super) fn close(&mut self, node: NodeId, until: Instant) {
        self.closed.insert(node, until);
    }

    pub(super) fn reaches(&self, node: NodeId) -> bool {
        !self.unreached.contains(&node)
    }

    pub(super) fn set_reached(&mut self, node: NodeId, reached: bool) {
        if reached {
            self.unreached.remove(&node);
        } else {
            self.unreached.insert(node);
        }
    }

    pub(super) fn next_opening(&self) -> Option<Instant> {
        self.closed.values().min().copied()
    }

    pub(super) fn on_sent(&mut self, node: NodeId) {
        *self.sent.entry(node).or_default() += 1;
    }

    /// The task is counted until the node reports how long others would wait behind it.
    pub(super) fn on_the_way(&mut self, node: NodeId, takes: Use, is_opportunistic: bool) {
        if self.is_blind {
            return;
        }
        let on_the_way = self.on_the_way.entry(node).or_default();
        on_the_way.push(Sent { at: self.now, takes, is_opportunistic });
        if on_the_way.fills(&self.list, node) {
            self.filled.grow_and_insert(node.0 as usize);
        }
    }

    /// The waits that the node reported last, here or to the master.
    fn waits(&self, node: NodeId) -> Option<(&NodeWaits, Age)> {
        let listed = self.list.nodes.get(node.0 as usize)?.waits.as_ref();
        let since_published = self.now.since(self.published_at);
        let by_list = listed.map(|listed| (&*listed.waits, listed.age + since_published, listed.silent_for));
        let by_node = self.heard.get(&node).map(|(at, waits)| (&**waits, self.now.since(*at)));
        match (by_node, by_list) {
            (Some((waits, age)), _) => {
                Some((waits, Age { since_made: age, since_confirmed: age, trusted_for: TRUSTED_FOR }))
            }
            (None, Some((waits, since_made, silent_for))) => {
                let since_confirmed = since_made.min(silent_for + since_published);
                Some((waits, Age { since_made, since_confirmed, trusted_for: TRUSTED_FOR }))
            }
            (None, None) => None,
        }
    }

    /// Why no node that takes work is suitable for the ask.
    pub(super) fn why_none(&self, ask: &Ask) -> Why {
        let open = || (0..self.len()).map(|index| NodeId(index as u32)).filter(|&node| self.is_open(node));
        if open().next().is_none() {
            let nodes = (0..self.len()).map(|index| NodeId(index as u32)).take(ClosedReason::SHOWN);
            let closed_reason = nodes.map(|node| (node, self.why_closed(node))).collect();
            return Why::NoNode { known: self.len() as u32, closed_reason };
        }
        let listed = |node: NodeId| &self.list.nodes[node.0 as usize];
        let meets = |&node: &NodeId| listed(node).attributes.suit(&ask.constraints);
        let mut all = (0..self.len()).map(|index| NodeId(index as u32)).filter(meets);
        if let Some(closest) = all.find(|&node| ask.resources.fits_in(&listed(node).capacity)) {
            return Why::Closed { closest, closed_reason: self.why_closed(closest) };
        }
        let lacking = open().filter(meets).map(|node| (ask.resources.shortage(&listed(node).capacity), node));
        let lack = |short: &Resources| short.0.iter().map(|&amount| u64::from(amount)).sum::<u64>();
        if let Some((short, closest)) = lacking.min_by_key(|(short, node)| (lack(short), *node)) {
            return Why::TooLarge { closest, short };
        }
        Why::Constraints { unmet: unmet(&ask.constraints, || open().map(|node| &*listed(node).attributes)) }
    }

    fn why_closed(&self, node: NodeId) -> ClosedReason {
        let listed = self.list.nodes.get(node.0 as usize).and_then(|listed| listed.closed_reason.clone());
        listed.unwrap_or(if self.reaches(node) { ClosedReason::Closed } else { ClosedReason::Unreachable })
    }

    pub(super) fn is_open(&self, node: NodeId) -> bool {
        let is_published = self.list.nodes.get(node.0 as usize).is_some_and(ListedNode::is_open);
        is_published && !self.closed.contains_key(&node) && self.reaches(node)
    }
}

impl NodeViews for PublishedView {
    fn len(&self) -> usize {
        self.list.nodes.len()
    }

    fn best(&self) -> &[u32] {
        if self.is_blind { &[] } else { &self.list.best }
    }

    fn rank(&self, index: usize) -> Duration {
        if self.is_blind { Duration::ZERO } else { self.list.nodes[index].rank() }
    }

    fn local(&self, class: u32) -> &[NodeId] {
        &self.classes[class as usize].local
    }

    fn heard(&self) -> &[NodeId] {
        &self.received_order
    }

    fn near(&self, class: u32) -> &[NodeId] {
        &self.classes[class as usize].near
    }

    fn is_rack_local(&self, index: usize, class: u32) -> bool {
        let rack = self.racks.as_ref().and_then(|racks| racks.of(NodeId(index as u32)));
        rack.is_some_and(|rack| self.classes[class as usize].racks.contains(&rack))
    }

    fn interval(&self) -> Duration {
        self.list.every
    }

    fn success(&self, index: usize) -> u32 {
        self.list.success.get(index).copied().unwrap_or(1_000_000)
    }

    /// Each piece is read from the nearest node that has it.
    fn input(&self, index: usize, class: u32, show: &mut dyn FnMut(u64, Distance)) {
        let node = NodeId(index as u32);
        let rack = |node: NodeId| self.racks.as_ref()?.of(node);
        let mine = rack(node);
        let mut bytes = [0_u64; 3];
        for piece in &self.classes[class as usize].pieces {
            let distance = if piece.at.contains(&node) {
                Distance::OnNode
            } else if mine.is_some() && piece.at.iter().any(|&at| rack(at) == mine) {
                Distance::InRack
            } else {
                Distance::Elsewhere
            };
            bytes[distance as usize] = bytes[distance as usize].saturating_add(piece.bytes);
        }
        for (bytes, distance) in bytes.into_iter().zip([Distance::OnNode, Distance::InRack, Distance::Elsewhere]) {
            if bytes > 0 {
                show(bytes, distance);
            }
        }
    }

    fn wait(&self, index: usize, shape: &Resources, execution: ExecutionType) -> Duration {
        self.wait_behind(index, shape, execution, &Load::default())
    }

    /// The task and those that were sent there since count as one: if they fit beside the running tasks, they fit
    /// together. If they exceed the node's capacity, the task waits behind them.
    fn wait_behind(&self, index: usize, shape: &Resources, execution: ExecutionType, more: &Load) -> Duration {
        let node = NodeId(index as u32);
        let capacity = &self.list.nodes[index].capacity;
        if !shape.fits_in(capacity) {
            return Duration::MAX;
        }
        if self.is_blind {
            return Duration::ZERO;
        }
        let is_opportunistic = execution == ExecutionType::Opportunistic;
        let before = self.on_the_way.get(&node).map(|sent| if is_opportunistic { &sent.all } else { &sent.guaranteed });
        let before = before.map_or(*more, |before| before.and(more));
        let together = before.with(shape);
        let behind = if together.fits_in(capacity) { Duration::ZERO } else { before.at_full_use(capacity) };
        let Some((waits, age)) = self.waits(node) else { return behind };
        let wait = waits.matrix.wait(capacity, &together.smaller_of(capacity), &age).unwrap_or(Duration::MAX);
        let others = if is_opportunistic { waits.opportunistic.0.saturating_sub(age.since_made.0) } else { 0 };
        wait + behind + Duration(others)
    }

    fn has_spare(&self, index: usize, shape: &Resources, more: &Load) -> bool {
        let node = NodeId(index as u32);
        let before = self.on_the_way.get(&node).map_or(*more, |sent| sent.all.and(more));
        self.waits(node).is_none_or(|(waits, _)| before.with(shape).fits_in(&waits.room))
    }

    fn is_filled(&self, index: usize) -> bool {
        self.filled.contains(index)
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

    /// A task that does not fit now waits at the node, so the capacity of the node counts as room.
    fn has_room(&self, index: usize, class: u32, shape: &Resources) -> bool {
        let listed = &self.list.nodes[index];
        self.is_open(NodeId(index as u32))
            && shape.fits_in(&listed.capacity)
            && listed.attributes.suit(&self.classes[class as usize].constraints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::node_queue::projection::Workload;
    use crate::protocol::{ListedNode, ListedWaits, NodeReport};
    use crate::vocabulary::{AskId, Attributes};

    const CORE: Resources = Resources::new(1_000, 0);
    const FOUR: Resources = Resources::new(4_000, 0);
    const NODE: NodeId = NodeId(0);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn view(holders: Vec<Holder>) -> PublishedView {
        let ask = Ask {
            id: AskId::default(),
            resources: CORE,
            constraints: Arc::default(),
            execution: ExecutionType::Guaranteed,
            wanted: 1,
            needed: 1,
            rank: 0,
            priority: 0,
            is_gang: false,
            locality: Arc::new(holders),
            expected: None,
            limit: None,
            duplicates: 0,
        };
        PublishedView::new(std::iter::once(&ask))
    }

    /// A node of four cores.
    fn listed(rack: Option<&str>, waits: Option<(NodeWaits, Duration)>) -> ListedNode {
        ListedNode {
            closed_reason: None,
            capacity: FOUR,
            attributes: Arc::new(Attributes::new(rack.map(|rack| ("rack".to_owned(), rack.to_owned())))),
            report: NodeReport::default(),
            waits: waits.map(|(waits, age)| ListedWaits { waits: Arc::new(waits), age, silent_for: Duration::ZERO }),
        }
    }

    fn list(nodes: Vec<ListedNode>) -> Arc<NodeList> {
        Arc::new(NodeList { nodes, ..NodeList::default() })
    }

    fn cores(cores: u32, lasting: u64) -> Use {
        Use { resources: Resources::new(1_000 * cores, 0), lasting: seconds(lasting) }
    }

    /// The waits of a node that runs these.
    fn busy(running: &[Use]) -> NodeWaits {
        let matrix = Workload { capacity: &FOUR, running, queued: &[] }.waits(Duration::ZERO);
        NodeWaits { matrix, ..NodeWaits::default() }
    }

    /// How many seconds a task of one core waits on the node, guaranteed and opportunistic.
    fn wait(view: &PublishedView) -> [u64; 2] {
        [ExecutionType::Guaranteed, ExecutionType::Opportunistic]
            .map(|execution| view.wait(0, &CORE, execution).0 / 1_000_000)
    }

    /// The bytes that a task on each of four nodes reads there, in the rack and elsewhere. The first two nodes share a
    /// rack.
    fn read(view: &mut PublishedView) -> [[u64; 3]; 4] {
        let racks = [Some("a"), Some("a"), Some("b"), None];
        view.replace(Instant::ZERO, list(racks.map(|rack| listed(rack, None)).to_vec()));
        std::array::from_fn(|node| {
            let mut bytes = [0; 3];
            view.input(node, 0, &mut |more, distance| bytes[distance as usize] += more);
            bytes
        })
    }

    fn holds(node: u32, bytes: u64) -> Holder {
        Holder { node: NodeId(node), bytes }
    }

    #[test]
    fn the_nearest_of_several_complete_copies_is_read() {
        let mut view = view(vec![holds(0, 100), holds(2, 100)]);
        assert_eq!(read(&mut view), [[100, 0, 0], [0, 100, 0], [100, 0, 0], [0, 0, 100]]);
        let mut unknown = self::view(vec![holds(2, UNKNOWN_BYTES)]);
        assert_eq!(read(&mut unknown)[2..], [[UNKNOWN_INPUT, 0, 0], [0, 0, UNKNOWN_INPUT]]);
    }

    #[test]
    fn each_part_of_an_input_is_read_from_the_node_that_has_it() {
        let mut view = view(Vec::new());
        view.set_parts(0, &[holds(0, 100), holds(1, 50), holds(2, UNKNOWN_BYTES)]);
        assert_eq!(read(&mut view), [[100, 50, 1], [50, 100, 1], [1, 0, 150], [0, 0, 151]]);
    }

    #[test]
    fn nodes_with_much_of_the_input_are_listed_by_amount_and_their_racks_without_them() {
        let mut view = view(Vec::new());
        let racks = [Some("a"), Some("a"), Some("b"), None, Some("a"), Some("c"), Some("b")];
        view.replace(Instant::ZERO, list(racks.map(|rack| listed(rack, None)).to_vec()));
        view.set_parts(0, &[holds(0, 60), holds(2, 100), holds(3, 40), holds(4, 70), holds(5, 49)]);
        let nodes = |nodes: &[NodeId]| nodes.iter().map(|node| node.0).collect::<Vec<u32>>();
        assert_eq!((nodes(view.local(0)), nodes(view.near(0))), (vec![2, 4, 0], vec![1, 6]));
        let of_task = view.add_task(0, vec![Piece { bytes: 5, at: vec![NodeId(5), NodeId(1)] }]);
        assert_eq!((nodes(view.local(of_task)), nodes(view.near(of_task))), (vec![1, 5], vec![0, 4]));
        // Nodes that moved are in their new racks.
        let racks = [Some("b"), Some("a"), Some("b"), None, Some("a"), Some("c"), Some("a")];
        view.forget_tasks();
        view.replace(Instant::ZERO, list(racks.map(|rack| listed(rack, None)).to_vec()));
        assert_eq!(nodes(view.near(0)), [1, 6]);
        assert_eq!([5, 6].map(|node| view.is_rack_local(node, 0)), [false, true]);
    }

    #[test]
    fn a_task_waits_together_with_tasks_in_transit_or_behind_them_if_they_fill_the_node() {
        let mut view = view(Vec::new());
        view.replace(Instant::ZERO, list(vec![listed(None, Some((busy(&[cores(2, 10)]), Duration::ZERO)))]));
        assert_eq!(wait(&view), [0, 0]);
        view.on_the_way(NODE, cores(1, 8), false);
        assert_eq!(wait(&view), [0, 0], "the fourth core is free");
        view.on_the_way(NODE, cores(1, 8), false);
        assert_eq!(wait(&view), [10, 10], "three cores are free in 10 s");
        view.on_the_way(NODE, cores(2, 8), false);
        assert_eq!(wait(&view), [18, 18], "and then all are in use for 8 s");
    }

    #[test]
    fn tasks_in_transit_fill_a_node_until_it_reports() {
        let idle = |free| {
            let mut node = listed(None, Some((NodeWaits::default(), Duration::ZERO)));
            node.report.free = free;
            node
        };
        let mut view = view(Vec::new());
        let nodes = || list((0..70).map(|_| idle(FOUR)).collect());
        view.replace(Instant::ZERO, nodes());
        view.advance(Instant::ZERO + seconds(1));
        view.on_the_way(NodeId(69), cores(1, 8), true);
        view.on_the_way(NodeId(69), cores(2, 8), false);
        assert!(view.is_filled(69), "not for another one of two cores");
        view.on_the_way(NODE, cores(3, 8), false);
        view.on_the_way(NodeId(1), cores(2, 8), false);
        assert_eq!((0..70).filter(|&node| view.is_filled(node)).collect::<Vec<_>>(), [0, 69]);
        view.on_waits(Instant::ZERO + seconds(1), NODE, Arc::new(NodeWaits::default()));
        assert_eq!((0..70).filter(|&node| view.is_filled(node)).collect::<Vec<_>>(), [69]);
        view.replace(Instant::ZERO + seconds(2), nodes());
        assert!(!view.is_filled(69));
    }

    #[test]
    fn opportunistic_work_waits_behind_all_work_and_guaranteed_work_behind_guaranteed_work() {
        let mut view = view(Vec::new());
        let waits = NodeWaits { opportunistic: seconds(30), ..NodeWaits::default() };
        view.replace(Instant::ZERO, list(vec![listed(None, Some((waits, Duration::ZERO)))]));
        view.on_the_way(NODE, cores(4, 8), true);
        assert_eq!(wait(&view), [0, 38]);
        view.advance(Instant::ZERO + seconds(10));
        assert_eq!(wait(&view), [0, 28], "a part of it has passed");
    }

    #[test]
    fn tasks_in_transit_count_until_the_node_has_reported_its_waits() {
        let at = |second| Instant::ZERO + seconds(second);
        let reports = |age, silent_for| {
            let mut node = listed(None, Some((NodeWaits::default(), seconds(age))));
            node.waits.as_mut().expect("just given").silent_for = seconds(silent_for);
            list(vec![node])
        };
        let mut view = view(Vec::new());
        view.replace(at(0), reports(0, 0));
        view.advance(at(5));
        view.on_the_way(NODE, cores(4, 8), false);
        view.replace(at(6), reports(2, 2));
        assert_eq!(wait(&view)[0], 8, "reported before");
        view.replace(at(7), reports(3, 1));
        assert_eq!(wait(&view)[0], 0, "confirmed by a later report");
        view.on_the_way(NODE, cores(4, 8), false);
        view.replace(at(8), reports(0, 0));
        assert_eq!(wait(&view)[0], 0, "reported since");
        view.on_the_way(NODE, cores(4, 8), false);
        view.on_waits(at(8), NODE, Arc::new(NodeWaits::default()));
        assert_eq!(wait(&view)[0], 0, "reported by the node itself");
    }

    #[test]
    fn the_newer_report_counts_whether_published_or_direct() {
        let at = |second| Instant::ZERO + seconds(second);
        let reports = |age| list(vec![listed(None, Some((busy(&[cores(4, 20)]), seconds(age))))]);
        let mut view = view(Vec::new());
        view.on_waits(at(5), NODE, Arc::new(NodeWaits::default()));
        view.replace(at(6), reports(2));
        assert_eq!((wait(&view)[0], view.heard()), (0, &[NODE][..]));
        view.replace(at(7), reports(1));
        assert_eq!((wait(&view)[0], view.heard()), (19, &[][..]));
    }
}
