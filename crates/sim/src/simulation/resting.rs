//! Nodes that rest: their reports would say nothing new, and are charged to agent and server without being simulated (ADR 90).

use super::{Occurrence, Simulation};
use crate::places::ProcessId;
use crate::process::Process;
use crate::settings::{Settings, Understating};
use amalgam_core::hosting::Envelope;
use amalgam_core::node::Rest;
use amalgam_core::protocol::{Address, Message, ToMaster};
use amalgam_core::vocabulary::{Duration, Generation, Instant, NodeId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// The nodes that rest, and the reports of theirs that reach the server.
pub(super) struct Resting {
    /// The interval of their reports.
    every: Duration,
    /// What a report costs its agent, in nanoseconds, and how long it is on the way then.
    cost: u64,
    delay: Duration,
    /// By the time within the interval at which the reports of each are due.
    nodes: BTreeMap<(u64, u32), RestingNode>,
    /// That time, by node.
    places: Vec<Option<u64>>,
    /// Reports that arrive a little later than others which were due with them.
    late: BinaryHeap<Reverse<Instant>>,
    /// Arrivals have been charged to the server up to then.
    until: Instant,
    oldest_tokens: Generation,
    reads_progress: bool,
    /// Events that were charged and not simulated.
    pub events: u64,
}

#[derive(Clone, Copy)]
struct RestingNode {
    /// When the first report that is left out is due, and the part of a microsecond that its agent owes then.
    first: Instant,
    owed_nanos: u64,
}

impl Resting {
    /// When a report that is due at this time reaches the server.
    fn arrival(&self, node: &RestingNode, due: Instant) -> Instant {
        let before = due.since(node.first).0 / self.every.0;
        let owed = (node.owed_nanos + before * self.cost) % 1_000;
        due + Duration::from_micros((owed + self.cost) / 1_000) + self.delay
    }

    /// The least time from when a report is due until it reaches the server; by what its agent owes, it is up to a microsecond more.
    fn on_the_way(&self) -> u64 {
        self.delay.0 + self.cost / 1_000
    }

    fn rest_of(&self, agent: &Process, node: usize) -> Option<Rest> {
        agent.roles.rest_of(NodeId(node as u32), self.reads_progress, self.oldest_tokens)
    }
}

impl Simulation {
    /// Lets nodes rest from now on, if reports that say nothing new have no other effect than their costs.
    pub(super) fn let_nodes_rest(&mut self) {
        let Settings { rests, understating, watched, network, .. } = &self.settings;
        let is_constant = network.jitter == Duration::ZERO && network.loss == 0.0 && network.repeats == 0;
        let is_plain = self.faults.is_none() && self.story.is_none() && watched.is_none();
        let Some(master) = self.server.roles.master.as_ref().filter(|master| master.needs_no_repeated_reports()) else {
            return;
        };
        if !rests
            || !is_constant
            || !is_plain
            || *understating != Understating::NONE
            || self.places.federation.is_some()
        {
            return;
        }
        self.resting = Some(Box::new(Resting {
            every: Duration::ZERO,
            cost: self.settings.costs.report(),
            delay: network.delay,
            nodes: BTreeMap::new(),
            places: vec![None; self.nodes.len()],
            late: BinaryHeap::new(),
            until: self.now,
            oldest_tokens: master.oldest_tokens(),
            reads_progress: master.reads_progress(),
            events: 0,
        }));
    }

    /// Called after a turn of a node. True if the node rests now: its next report is not on the agenda.
    pub(super) fn rest(&mut self, node: usize) -> bool {
        let now = self.now;
        let Some(resting) = &mut self.resting else { return false };
        let agent = &mut self.nodes[node].agent;
        // At most one report of a node is on its way.
        let rest = resting.rest_of(agent, node).filter(|rest| rest.every.0 > resting.on_the_way() + 1);
        let Some(Rest { next_report, every, wakes_at }) =
            rest.filter(|rest| rest.next_report > now.max(agent.busy_until))
        else {
            return false;
        };
        if agent.has_messages() || !agent.is_up || resting.every != every && !resting.nodes.is_empty() {
            return false;
        }
        resting.every = every;
        let resting_node = RestingNode { first: next_report, owed_nanos: agent.owed_nanos() };
        let offset = next_report.0 % every.0;
        self.catch_up();
        let Some(resting) = &mut self.resting else { return false };
        resting.nodes.insert((offset, node as u32), resting_node);
        resting.places[node] = Some(offset);
        if let Some(master) = &mut self.server.roles.master {
            master.on_rest(NodeId(node as u32));
        }
        if let Some(at) = wakes_at {
            self.note_wakeup_at(ProcessId::Node(node), at);
        }
        true
    }

    /// A wakeup on the agenda: true if the process is that of a resting node, which has nothing to do now. Otherwise it is attended to.
    pub(super) fn rests_on(&mut self, place: ProcessId) -> bool {
        let (ProcessId::Node(node), Some(resting)) = (place, &self.resting) else {
            self.attend(place);
            return false;
        };
        if resting.places[node].is_none() {
            return false;
        }
        let agent = &mut self.nodes[node].agent;
        let until = resting.rest_of(agent, node).and_then(|rest| rest.wakes_at).unwrap_or(Instant::NEVER);
        if until <= self.now {
            // A report that is due now is part of the turn.
            self.wake_node(node, self.now.before(Duration(1)));
            return false;
        }
        agent.wakeup_noted.take_if(|at| *at <= self.now);
        if until < Instant::NEVER {
            self.note_wakeup_at(place, until);
        }
        true
    }

    /// Charges what resting nodes have caused by now at a process that something reaches.
    pub(super) fn attend(&mut self, place: ProcessId) {
        match place {
            _ if self.resting.is_none() => {}
            ProcessId::Server => self.catch_up(),
            ProcessId::Node(node) => self.wake_node(node, self.now),
            _ => {}
        }
    }

    /// A node has something to do. If it rested, the reports that were left out and due by then are charged to its agent.
    pub(super) fn wake_node(&mut self, node: usize, due_by: Instant) {
        let now = self.now;
        let Some(offset) = self.resting.as_mut().and_then(|resting| resting.places[node].take()) else { return };
        self.catch_up();
        let (Some(resting), costs) = (&mut self.resting, &self.settings.costs) else { return };
        resting.nodes.remove(&(offset, node as u32));
        let agent = &mut self.nodes[node].agent;
        let mut heard = None;
        if let Some((skipped, last)) = agent.roles.skip_reports(NodeId(node as u32), due_by) {
            agent.charge_nanos((skipped - 1) * costs.report());
            let left = last + agent.charge_nanos(costs.report());
            agent.busy_until = agent.busy_until.max(left);
            heard = Some((left + resting.delay).min(now));
            // The last one may be on its way: its answer may say something new. What `catch_up` has seen is in `late`.
            let is_on_its_way = left + resting.delay > now && last.0 + resting.on_the_way() > now.0;
            let charged = 2 * skipped - u64::from(is_on_its_way);
            resting.events += charged;
            self.events += charged;
            if is_on_its_way {
                self.deliver_report(node, left);
            }
        }
        if let Some(master) = &mut self.server.roles.master {
            master.on_awake(NodeId(node as u32), heard);
        }
    }

    /// Puts a report that left a resting node on the agenda: it says what the one before said.
    fn deliver_report(&mut self, node: usize, left: Instant) {
        let id = NodeId(node as u32);
        let report = self.nodes[node].agent.roles.nodes.get(id).map(|agent| agent.same_report(left));
        let link = self.places.link(ProcessId::Node(node), ProcessId::Server);
        if let (Some(report), Some((link, direction))) = (report, link)
            && let Some((arrival, life)) = self.network.send(left, link, direction)
        {
            let message = Message::ToMaster(ToMaster::Report(Box::new(report)));
            let envelope = Envelope { from: Address::Node(id), to: Address::Master, message };
            let (link, envelope) = (link as u32, self.envelopes.insert(envelope) as u32);
            self.agenda.note(arrival, Occurrence::Delivered { link, direction, life, sent: left, envelope });
        }
    }

    /// After a turn of the server: if a generation of tokens has ended, the nodes have to hear of it with their next reports.
    pub(super) fn tell_of_tokens(&mut self) {
        let oldest = self.server.roles.master.as_ref().map(|master| master.oldest_tokens());
        let Some((resting, oldest)) = self.resting.as_mut().zip(oldest) else { return };
        if std::mem::replace(&mut resting.oldest_tokens, oldest) != oldest {
            self.wake_all_nodes();
        }
    }

    pub(super) fn wake_all_nodes(&mut self) {
        for node in 0..self.nodes.len() {
            if self.resting.as_ref().is_some_and(|resting| resting.places[node].is_some()) {
                self.wake_node(node, self.now);
                self.note_wakeup(ProcessId::Node(node));
            }
        }
    }

    /// Charges the reports that have arrived at the server by now.
    pub(super) fn catch_up(&mut self) {
        let now = self.now;
        let Some(mut resting) = self.resting.take() else { return };
        let mut queue = Arrivals { server: &mut self.server, cost: self.settings.costs.received_report() };
        let every = resting.every.0.max(1);
        // Reports that were due then arrive between the last time and now, or a microsecond later.
        let earlier = resting.on_the_way();
        let (mut from, end) = ((resting.until.0 + 1).saturating_sub(earlier), (now.0 + 1).saturating_sub(earlier));
        while from < end && !resting.nodes.is_empty() {
            let cycle = from - from % every;
            let to = end.min(cycle + every);
            for (&(offset, _), node) in resting.nodes.range((from - cycle, 0)..(to - cycle, 0)) {
                let due = Instant(cycle + offset);
                if due < node.first {
                    continue;
                }
                let at = resting.arrival(node, due);
                while resting.late.peek().is_some_and(|Reverse(late)| *late <= at.min(now)) {
                    queue.arrive(resting.late.pop().map_or(at, |Reverse(late)| late));
                }
                match at <= now {
                    true => queue.arrive(at),
                    false => resting.late.push(Reverse(at)),
                }
            }
            from = to;
        }
        while resting.late.peek().is_some_and(|Reverse(late)| *late <= now) {
            queue.arrive(resting.late.pop().map_or(now, |Reverse(late)| late));
        }
        queue.server.take_reports(now, queue.cost);
        resting.until = now;
        self.resting = Some(resting);
    }
}

/// The server, to which reports arrive.
struct Arrivals<'a> {
    server: &'a mut Process,
    /// What a report costs the server, in nanoseconds.
    cost: u64,
}

impl Arrivals<'_> {
    fn arrive(&mut self, at: Instant) {
        self.server.take_reports(at, self.cost);
        self.server.put_report(at, self.cost);
        if let Some(master) = &mut self.server.roles.master {
            master.on_same_report(at);
        }
    }
}
