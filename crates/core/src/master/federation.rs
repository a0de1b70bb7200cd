//! Duty in a federation: pass on the launches that global masters propose, as far as there is room, and notify global
//! masters of changes in this cluster (Megha, section IV-B6).
//!
//! A global master that an event concerned is notified of all changes since its last notification. All global masters
//! are notified when a node joins and at each heartbeat.

use super::Master;
use super::holdings::Holdings;
use crate::dispatch::{NodeNames, refuse};
use crate::protocol::{
    Address, ClaimError, ClusterUpdate, GlobalIntroduction, HeldGrant, NodeNews, ProposedLaunch, RefusalKind, Since,
    ToGlobalMaster, ToJobManager, ToNode,
};
use crate::role::{Outbox, Record};
use crate::scheduling::{Booking, BookingChange, Ledger, NodeState};
use crate::vocabulary::{AttemptId, ClientId, ClusterId, Epoch, Federation, GlobalId, GrantId, Instant, Kinds, NodeId};
use std::collections::{BTreeMap, VecDeque};

/// The node of each change is kept for at least this many changes. A global master that is further behind gets the full
/// state.
const LEAST_CHANGES: usize = 4_096;

pub(super) struct Federated {
    federation: Federation,
    cluster: ClusterId,
    /// By number.
    globals: Vec<Global>,
    holdings: Holdings,
    /// For which global masters nodes are kept, and since when the task or gang has waited for which they have reserved them.
    keepers: BTreeMap<NodeId, (GlobalId, Instant)>,
    /// Counts changes of nodes.
    version: u64,
    /// The nodes of the last changes, oldest first.
    changes: VecDeque<NodeId>,
    /// The version at which each node registered last.
    joined_at: Vec<u64>,
    /// Attempts of refused launches. Their job managers are notified last: the global masters need the news before they
    /// try again.
    not_taken: Vec<(AttemptId, ClaimError)>,
    beat_at: Option<Instant>,
    /// When global masters that are behind are notified.
    report_at: Option<Instant>,
}

/// What this master knows of a global master.
#[derive(Clone, Default)]
struct Global {
    /// The number of its introduction on the present connection.
    introduction: Option<u64>,
    /// Its newest incarnation.
    epoch: Epoch,
    /// The last proposal of this incarnation that was examined.
    seen: u64,
    /// The version that it was notified of last.
    reported: u64,
    /// It gets the full state next.
    lacks_all: bool,
    /// It is notified at the end of the event.
    is_due: bool,
    freed: Vec<GrantId>,
    refused: Vec<GrantId>,
    spared: Vec<GrantId>,
    /// By the number of a proposal that is to come: its own grants that are preempted for that if there is no room. Those of proposals
    /// that never come stay until a later one does.
    instead_of: BTreeMap<u64, Vec<GrantId>>,
    /// The nodes that it has reserved, in ascending order, and since when the task or gang has waited for which it did.
    kept: Vec<NodeId>,
    kept_since: Instant,
}

impl Global {
    /// What may be preempted for the proposal of this number. Earlier ones that have not come are overtaken.
    fn take_instead_of(&mut self, number: u64) -> Option<Vec<GrantId>> {
        let later = self.instead_of.split_off(&number.saturating_add(1));
        std::mem::replace(&mut self.instead_of, later).remove(&number)
    }
}

impl Federated {
    /// `has_shares`: some queues have shares, for which other work is preempted.
    pub(super) fn new(federation: Federation, cluster: ClusterId, has_shares: bool) -> Federated {
        Federated {
            federation,
            cluster,
            globals: vec![Global::default(); usize::from(federation.globals)],
            holdings: Holdings::new(has_shares),
            keepers: BTreeMap::new(),
            version: 0,
            changes: VecDeque::new(),
            joined_at: Vec::new(),
            not_taken: Vec::new(),
            beat_at: None,
            report_at: None,
        }
    }

    pub(super) fn first_node(&self) -> NodeId {
        NodeId(self.federation.nodes_of(self.cluster).start)
    }

    pub(super) fn has(&self, node: NodeId) -> bool {
        self.federation.has(node) && self.federation.cluster_of(node) == self.cluster
    }

    pub(super) fn next_beat(&self) -> Option<Instant> {
        self.beat_at.into_iter().chain(self.report_at).min()
    }

    /// Whether it has not been notified of all changes.
    fn is_behind(global: &Global, version: u64) -> bool {
        global.introduction.is_some() && global.reported < version
    }

    /// `None` for a number that the federation does not have.
    fn global(&mut self, global: GlobalId) -> Option<&mut Global> {
        self.globals.get_mut(usize::from(global.0))
    }

    /// Counts the changes of the ledger since the last call.
    fn take_news(&mut self, ledger: &mut Ledger) {
        let Some(news) = ledger.news() else { return };
        // Global masters are notified at once: their job managers ask a returned node for its attempts.
        let has_joined = !news.joined.is_empty();
        self.globals.iter_mut().for_each(|global| global.is_due |= has_joined);
        for &node in &news.joined {
            self.note_change(node);
            let index = ledger.index(node);
            if self.joined_at.len() <= index {
                self.joined_at.resize(index + 1, 0);
            }
            self.joined_at[index] = self.version;
        }
        for &node in &news.changed {
            let is_unreported = self.globals.iter().all(|global| global.reported < self.version);
            if !is_unreported || self.changes.back() != Some(&node) {
                self.note_change(node);
            }
        }
        for (booking, change) in &news.bookings {
            self.holdings.apply(booking, *change, ledger.index(booking.node));
            if let BookingChange::Freed { .. } = change {
                self.note_freed(booking);
            }
        }
        ledger.forget_news();
        let most = LEAST_CHANGES.max(2 * ledger.ids().count());
        self.changes.drain(..self.changes.len().saturating_sub(most));
    }

    fn note_change(&mut self, node: NodeId) {
        self.version += 1;
        self.changes.push_back(node);
    }

    fn note_freed(&mut self, booking: &Booking) {
        let owner = self.federation.issuer(booking.grant.epoch);
        if let Some(global) = owner.and_then(|owner| self.global(owner)).filter(|global| global.introduction.is_some())
        {
            global.freed.push(booking.grant);
            global.is_due = true;
        }
    }

    /// Counts again with the queues that are known now. A node whose counts differ counts as changed.
    fn count_holdings(&mut self, ledger: &Ledger) {
        for node in self.holdings.count(ledger) {
            self.note_change(node);
        }
    }

    /// If the node is kept for another global master: since when the task or gang has waited for which it is.
    fn kept_from(&self, global: GlobalId, node: NodeId) -> Option<Instant> {
        self.keepers.get(&node).filter(|(keeper, _)| *keeper != global).map(|(_, since)| *since)
    }

    /// From now on the global master has reserved these nodes. The others are notified. A node is kept for the gang that has waited
    /// longest: all masters of clusters decide alike, so one of two gangs gets all of its nodes.
    fn keep(&mut self, from: GlobalId, nodes: Vec<NodeId>, since: Instant) {
        let Some(entry) = self.global(from) else { return };
        entry.kept_since = since;
        let before = std::mem::replace(&mut entry.kept, nodes.clone());
        let mut concerned = [before, nodes].concat();
        concerned.sort_unstable();
        concerned.dedup();
        for node in concerned {
            let requests = |global: &GlobalId| self.globals[usize::from(global.0)].kept.binary_search(&node).is_ok();
            let with_age = |global: GlobalId| (self.globals[usize::from(global.0)].kept_since, global);
            let oldest = self.federation.globals().filter(requests).map(with_age).min();
            let next = oldest.map(|(since, global)| (global, since));
            let before = match next {
                Some(keeper) => self.keepers.insert(node, keeper),
                None => self.keepers.remove(&node),
            };
            // One that does not get the node may not know that it is kept.
            let is_refused = requests(&from) && next.is_some_and(|(keeper, _)| keeper != from);
            if next != before || is_refused {
                self.note_change(node);
            }
        }
    }

    /// The news of a node for a global master that was notified up to version `reported`.
    fn news_of(&self, node: NodeId, to: GlobalId, reported: u64, rooms: &Rooms<'_>, news: &mut Vec<NodeNews>) {
        let Rooms { now, ledger, names } = rooms;
        if ledger.is_removed(node) {
            return news.push(NodeNews::Removed { node });
        }
        let Some(state) = ledger.state(node).filter(|state| *state != NodeState::Expected) else { return };
        let joined_at = self.joined_at.get(ledger.index(node)).copied().unwrap_or(0);
        if joined_at > reported && state != NodeState::Lost {
            let name = names.of(node).unwrap_or_default().to_owned();
            let (capacity, attributes) = (ledger.node_capacity(node), ledger.attributes(node).clone());
            news.push(NodeNews::Joined { node, name, capacity, attributes });
        }
        news.push(match state {
            NodeState::Up => {
                let held = self.holdings.on_node(ledger.index(node));
                let (free, closed_reason) = (ledger.node_free(node), ledger.closed_reason(node));
                let kept_for = self.kept_from(to, node).map(|since| now.since(since));
                NodeNews::Room { node, free, closed_reason, held, kept_for }
            }
            NodeState::Unreachable => NodeNews::Away { node, lost: false },
            NodeState::Lost | NodeState::Expected => NodeNews::Away { node, lost: true },
        });
    }

    /// Sends the global master all that it has not been notified of.
    fn send_update(&mut self, global: GlobalId, life: Epoch, rooms: &Rooms<'_>, kinds: &Kinds, out: &mut Outbox) {
        let Federated { cluster, version, .. } = *self;
        let entry = &mut self.globals[usize::from(global.0)];
        let Some(introduction) = entry.introduction else { return };
        entry.is_due = false;
        let (freed, refused) = (std::mem::take(&mut entry.freed), std::mem::take(&mut entry.refused));
        let spared = std::mem::take(&mut entry.spared);
        let (seen, reported, epoch) = (entry.seen, entry.reported, entry.epoch);
        let first = version - self.changes.len() as u64;
        let lacks_all = std::mem::take(&mut entry.lacks_all) || reported < first;
        entry.reported = version;
        let mut nodes = Vec::new();
        let since = if lacks_all {
            rooms.ledger.ids().for_each(|node| self.news_of(node, global, 0, rooms, &mut nodes));
            let bookings = rooms.ledger.ids().flat_map(|node| rooms.ledger.bookings_on(node));
            let own = bookings.filter(|booking| booking.grant.epoch.host() == epoch.host());
            let held = own.map(|Booking { grant, job, node, resources }| HeldGrant { grant, job, node, resources });
            Since::Nothing { introduction, kinds: kinds.clone(), held: held.collect() }
        } else {
            let skipped = (reported - first) as usize;
            let mut changed: Vec<NodeId> = self.changes.range(skipped..).copied().collect();
            changed.sort_unstable();
            changed.dedup();
            changed.into_iter().for_each(|node| self.news_of(node, global, reported, rooms, &mut nodes));
            Since::Version(reported)
        };
        let (usage, is_settled) = (self.holdings.usage(), !rooms.ledger.expects_nodes());
        let update =
            ClusterUpdate { cluster, life, since, version, seen, freed, refused, nodes, usage, is_settled, spared };
        out.send(global, ToGlobalMaster::ClusterUpdate(Box::new(update)));
    }
}

/// The nodes, and their names.
struct Rooms<'a> {
    now: Instant,
    ledger: &'a Ledger,
    names: &'a NodeNames,
}

impl Master {
    /// Passes on the launch to its node if there is room, or if there will be room once attempts are preempted: of the queue that it
    /// names, or those that its global master has named.
    pub(super) fn on_proposed(&mut self, proposed: ProposedLaunch, out: &mut Outbox) {
        let ProposedLaunch { node, queue, instead_of, mut launch } = proposed;
        let Some(federated) = &mut self.federated else { return };
        let attempt = launch.attempt;
        let stale = Record::Stale { from: Address::JobManager(attempt.job), attempt };
        let Some(grant) = launch.grant else { return out.record(stale) };
        // A global master proposes launches of its own jobs only.
        let admitted_by = federated.federation.admitted_by(attempt.job);
        let owner = federated.federation.issuer(grant.epoch).filter(|owner| *owner == admitted_by);
        let Some(global) = owner.and_then(|owner| federated.global(owner)) else { return out.record(stale) };
        // Proposals of an earlier incarnation or connection were given up when this one started.
        if global.introduction.is_none() || grant.epoch != global.epoch || self.dispatch.rooms.booking(grant).is_some()
        {
            return out.record(stale);
        }
        let is_overtaken = grant.number <= global.seen;
        let instead_of_own = global.take_instead_of(grant.number);
        global.seen = global.seen.max(grant.number);
        global.is_due = true;
        let (job, task, resources) = (attempt.job, launch.task, launch.template.shape.resources);
        let is_kept = federated.kept_from(admitted_by, node).is_some();
        let (rooms, holdings) = (&mut self.dispatch.rooms, &federated.holdings);
        let booking = Booking { grant, job, node, resources };
        let claimed = match (instead_of, &instead_of_own) {
            // A later notification has reported that this booking does not exist.
            _ if is_overtaken => Err(ClaimError::Overtaken),
            (None, _) if is_kept => Err(ClaimError::NoRoom),
            (None, None) => rooms.claim_proposed(booking).map(|()| Vec::new()),
            (Some(victim), _) => rooms.claim_instead(booking, |other| holdings.is_of(other, victim)),
            (None, Some(own)) => rooms.claim_instead(booking, |other| own.contains(&other.grant)),
        };
        let victims = match claimed {
            Ok(victims) => victims,
            Err(why) => {
                if let Some(global) = owner.and_then(|owner| federated.global(owner)) {
                    global.refused.push(grant);
                }
                federated.not_taken.push((attempt, why));
                return out.record(Record::LaunchRefused { task, attempt, node, why });
            }
        };
        if let (Some(own), Some(global)) = (instead_of_own, federated.global(admitted_by)) {
            global.spared.extend(own.into_iter().filter(|own| victims.iter().all(|victim| victim.grant != *own)));
        }
        if federated.holdings.learn(job, queue) {
            federated.take_news(&mut self.dispatch.rooms);
            federated.count_holdings(&self.dispatch.rooms);
        }
        if federated.federation.internal_to(node).host() != grant.epoch.host() {
            out.record(Record::Repartitioned { task, attempt, node });
        }
        launch.shared_gpu = self.dispatch.rooms.shared_gpu(grant);
        launch.token = self.claims.tokens.seal(node, &launch.allocation());
        if victims.is_empty() {
            return out.send(node, ToNode::Launch(launch));
        }
        let of = victims.iter().map(|victim| victim.grant).collect();
        out.send(node, ToNode::LaunchInstead { launch, of });
    }

    /// A global master decides about the work of its own jobs.
    pub(super) fn on_make_room(&mut self, from: GlobalId, grant: GrantId, mut instead_of: Vec<GrantId>) {
        let Some(global) = self.federated.as_mut().and_then(|federated| federated.global(from)) else { return };
        instead_of.retain(|own| own.epoch.host() == from.host());
        if global.introduction.is_some() && grant.epoch == global.epoch && grant.number > global.seen {
            global.instead_of.insert(grant.number, instead_of);
        }
    }

    pub(super) fn on_keep(&mut self, from: GlobalId, mut nodes: Vec<NodeId>, since: Instant) {
        let Some(federated) = &mut self.federated else { return };
        nodes.retain(|node| federated.has(*node));
        nodes.sort_unstable();
        if federated.global(from).is_some_and(|global| global.introduction.is_some()) {
            federated.keep(from, nodes, since);
        }
    }

    pub(super) fn on_introduced(&mut self, global: GlobalId, introduction: GlobalIntroduction, out: &mut Outbox) {
        let GlobalIntroduction { epoch, number, jobs } = introduction;
        let Some(federated) = &mut self.federated else { return };
        let Some(entry) = federated.global(global) else { return };
        if epoch < entry.epoch || epoch.host() != global.host() {
            return out.record(Record::StaleMessage { from: Address::GlobalMaster(global) });
        }
        if epoch > entry.epoch {
            (entry.epoch, entry.seen) = (epoch, 0);
        }
        entry.introduction = Some(number);
        (entry.lacks_all, entry.is_due) = (true, true);
        // The full state includes all pending notifications.
        entry.freed.clear();
        entry.refused.clear();
        entry.spared.clear();
        entry.instead_of.clear();
        // It repeats what it keeps.
        federated.keep(global, Vec::new(), Instant::ZERO);
        federated.take_news(&mut self.dispatch.rooms);
        let federation = federated.federation;
        federated.holdings.learn_all(&jobs, |job| federation.admitted_by(job) == global);
        federated.count_holdings(&self.dispatch.rooms);
    }

    /// Reports of nodes to this global master may have been lost in transit.
    pub(super) fn on_global_connected(&mut self, global: GlobalId, out: &mut Outbox) {
        self.forget_global(global);
        // The connection of a silent node may still work.
        let may_hear =
            |node: &NodeId| matches!(self.dispatch.rooms.state(*node), Some(NodeState::Up | NodeState::Unreachable));
        for node in self.dispatch.rooms.ids().filter(may_hear) {
            out.send(node, ToNode::ResendEnds { host: global.host() });
        }
    }

    /// It is notified again after its next introduction.
    pub(super) fn forget_global(&mut self, global: GlobalId) {
        let Some(federated) = &mut self.federated else { return };
        federated.keep(global, Vec::new(), Instant::ZERO);
        if let Some(entry) = federated.global(global) {
            entry.introduction = None;
            entry.instead_of.clear();
        }
    }

    pub(super) fn beat_when_due(&mut self, now: Instant) {
        let every = self.settings.heartbeat;
        let Some(federated) = &mut self.federated else { return };
        let beat_at = federated.beat_at.get_or_insert(now + every);
        if *beat_at <= now {
            *beat_at = now + every;
            federated.globals.iter_mut().for_each(|global| global.is_due = true);
        }
        if federated.report_at.is_some_and(|at| at <= now) {
            federated.report_at = None;
            let version = federated.version;
            federated.globals.iter_mut().for_each(|global| global.is_due |= Federated::is_behind(global, version));
        }
    }

    /// Runs at the end of an event.
    pub(super) fn report_to_globals(&mut self, now: Instant, out: &mut Outbox) {
        let life = self.claims.epoch();
        let every = self.settings.heartbeat;
        let Some(federated) = &mut self.federated else { return };
        federated.beat_at.get_or_insert(now + every);
        federated.take_news(&mut self.dispatch.rooms);
        let rooms = Rooms { now, ledger: &self.dispatch.rooms, names: &self.dispatch.names };
        for global in federated.federation.globals() {
            if federated.globals[usize::from(global.0)].is_due {
                federated.send_update(global, life, &rooms, &self.dispatch.kinds, out);
            }
        }
        if let Some(after) = self.settings.report_changes_after {
            let is_behind = federated.globals.iter().any(|global| Federated::is_behind(global, federated.version));
            federated.report_at = is_behind.then(|| federated.report_at.unwrap_or(now + after));
        }
        // Now that their global masters have the news.
        for (attempt, why) in std::mem::take(&mut federated.not_taken) {
            out.send(attempt.job, ToJobManager::NotPassed { attempt, why });
        }
    }
}

pub(super) fn refuse_jobs(client: ClientId, out: &mut Outbox) {
    let message = "this is the master of one cluster of a federation, which takes no jobs itself";
    refuse(client, RefusalKind::Conflict, message, "submit to one of the federation's global masters", out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Message;
    use crate::vocabulary::{Attributes, JobId, QueueId, Resources, Totals};

    const NODE: NodeId = NodeId(0);
    const GLOBAL: GlobalId = GlobalId(0);

    struct Cluster {
        federated: Federated,
        ledger: Ledger,
        names: NodeNames,
    }

    impl Cluster {
        /// One node of two cores, and a global master that has introduced itself.
        fn new() -> Cluster {
            let federation = Federation::new(1, 1, 4).unwrap();
            let mut federated = Federated::new(federation, ClusterId(0), false);
            let mut ledger = Ledger::from_node(NODE);
            ledger.keep_news();
            ledger.join(NODE, Resources::new(2_000, 0), Attributes::default());
            ledger.set_open(NODE, true);
            let global = &mut federated.globals[0];
            (global.introduction, global.lacks_all) = (Some(1), true);
            Cluster { federated, ledger, names: NodeNames::default() }
        }

        fn next_update(&mut self) -> ClusterUpdate {
            let mut out = Outbox::default();
            self.federated.take_news(&mut self.ledger);
            let rooms = Rooms { now: Instant(1), ledger: &self.ledger, names: &self.names };
            self.federated.send_update(GLOBAL, Epoch(1), &rooms, &Kinds::new(), &mut out);
            match out.sends.pop() {
                Some((
                    Address::GlobalMaster(GLOBAL),
                    Message::ToGlobalMaster(ToGlobalMaster::ClusterUpdate(received)),
                )) => *received,
                other => panic!("expected a notification, got {other:?}"),
            }
        }

        fn book(&mut self, number: u64) -> GrantId {
            let grant = GrantId { epoch: Epoch::of_host(GLOBAL.host(), 1).unwrap(), number, slot: 77 };
            let booking = Booking { grant, job: JobId(1), node: NODE, resources: Resources::new(1_500, 0) };
            self.ledger.claim_proposed(booking).unwrap();
            grant
        }
    }

    fn free_of(received: &ClusterUpdate) -> Vec<Resources> {
        let room = |news: &NodeNews| match news {
            NodeNews::Room { free, .. } => Some(*free),
            _ => None,
        };
        received.nodes.iter().filter_map(room).collect()
    }

    #[test]
    fn each_later_change_of_the_same_node_is_sent() {
        let mut cluster = Cluster::new();
        let whole = cluster.next_update();
        assert!(matches!(whole.since, Since::Nothing { introduction: 1, .. }), "{whole:?}");
        assert_eq!(free_of(&whole), [Resources::new(2_000, 0)]);
        let mut version = whole.version;
        for number in 1..4 {
            let grant = cluster.book(number);
            for free in [500, 2_000] {
                let received = cluster.next_update();
                assert!(matches!(received.since, Since::Version(since) if since == version), "{received:?}");
                assert_eq!(free_of(&received), [Resources::new(free, 0)]);
                version = received.version;
                if free == 500 {
                    assert_eq!(cluster.ledger.free(grant).map(|booking| booking.grant), Some(grant));
                } else {
                    assert_eq!(received.freed, [grant]);
                }
            }
            assert_eq!(free_of(&cluster.next_update()), [], "a change is sent once");
        }
    }

    #[test]
    fn a_global_master_that_is_too_far_behind_gets_the_full_state() {
        let mut cluster = Cluster::new();
        cluster.next_update();
        for number in 0..LEAST_CHANGES as u64 + 1 {
            let grant = cluster.book(1 + number);
            cluster.ledger.free(grant);
            cluster.federated.take_news(&mut cluster.ledger);
            // As if other global masters had been notified in between.
            cluster.federated.note_change(NODE);
        }
        assert!(matches!(cluster.next_update().since, Since::Nothing { .. }));
        assert!(matches!(cluster.next_update().since, Since::Version(_)));
    }

    #[test]
    fn usage_by_queue_is_part_of_every_notification() {
        let mut cluster = Cluster::new();
        cluster.federated.holdings.learn_all(&[(JobId(1), QueueId(3))], |_| true);
        let grant = cluster.book(1);
        let mut held = Totals::ZERO;
        held.add(&Resources::new(1_500, 0));
        assert_eq!(cluster.next_update().usage, [(QueueId(3), held)]);
        cluster.ledger.free(grant);
        assert_eq!(cluster.next_update().usage, []);
    }
}
