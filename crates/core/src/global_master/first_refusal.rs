//! Room that opens in another's partition is seen here a moment later, where global masters avoid conflicts: the one whose partition
//! it is hears of it at the same time, and has it first. Without that all who have something waiting take it at once, and
//! all but one are refused. Beyond Megha; ADR 51.

use super::GlobalMaster;
use crate::role::Outbox;
use crate::scheduling::Booking;
use crate::vocabulary::{Duration, GrantId, Instant, NodeId, Resources};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct FirstRefusal {
    /// For so long others have it; without it, everything is seen at once.
    length: Option<Duration>,
    rooms: BTreeMap<NodeId, Opening>,
    due: BTreeSet<(Instant, NodeId)>,
}

/// What its cluster said last of a node of another's partition of which not all is seen yet.
struct Opening {
    due: Instant,
    free: Resources,
    /// Proposals that this takes into account.
    seen: u64,
}

impl FirstRefusal {
    pub(super) fn of_length(length: Option<Duration>) -> FirstRefusal {
        FirstRefusal { length, ..FirstRefusal::default() }
    }

    /// Counts from when the first of it opened.
    fn put_off(&mut self, node: NodeId, now: Instant, length: Duration, free: Resources, seen: u64) {
        let due = self.rooms.get(&node).map_or(now + length, |opening| opening.due);
        self.rooms.insert(node, Opening { due, free, seen });
        self.due.insert((due, node));
    }

    pub(super) fn forget(&mut self, node: NodeId) {
        if let Some(opening) = self.rooms.remove(&node) {
            self.due.remove(&(opening.due, node));
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }
}

impl GlobalMaster {
    fn is_others(&self, node: NodeId) -> bool {
        self.federation.internal_to(node) != self.own
    }

    /// Takes in what its cluster says is free on a node, with proposals up to `seen`; but of what opens in another's partition nothing
    /// yet. Whether all of it is seen.
    pub(super) fn take_room(&mut self, now: Instant, node: NodeId, free: Resources, seen: u64, is_whole: bool) -> bool {
        let epoch = self.proposals.epoch();
        let is_counted = |grant: &GrantId| grant.epoch != epoch || grant.number <= seen;
        if let Some(length) = self.first_refusal.length
            && !is_whole
            && self.is_others(node)
            && self.dispatch.rooms.believe_no_more(node, &free, is_counted)
        {
            self.first_refusal.put_off(node, now, length, free, seen);
            return false;
        }
        self.first_refusal.forget(node);
        self.dispatch.rooms.believe(node, &free, is_counted);
        true
    }

    /// What ended of its own on others' nodes leaves room to these first.
    pub(super) fn leave_room(&mut self, freed: &[Booking]) {
        for booking in freed {
            self.dispatch.rooms.believe_taken(booking.node, &booking.resources);
        }
    }

    /// The bookings of these grants, as far as their room is to be left.
    pub(super) fn to_be_left(&self, freed: &[GrantId]) -> Vec<Booking> {
        match self.first_refusal.length {
            None => Vec::new(),
            Some(_) => {
                let booked = freed.iter().filter_map(|grant| self.dispatch.rooms.booking(*grant));
                booked.filter(|booking| self.is_others(booking.node)).collect()
            }
        }
    }

    /// Whoever had the first refusal did not want it.
    pub(super) fn see_openings(&mut self, now: Instant, out: &mut Outbox) {
        let epoch = self.proposals.epoch();
        let mut opened = Vec::new();
        while let Some(&(_, node)) = self.first_refusal.due.first().filter(|(due, _)| *due <= now) {
            let opening = self.first_refusal.rooms.get(&node).map(|opening| (opening.free, opening.seen));
            self.first_refusal.forget(node);
            if let Some((free, seen)) = opening {
                self.dispatch.rooms.believe(node, &free, |grant| grant.epoch != epoch || grant.number <= seen);
                opened.push(node);
            }
        }
        if !opened.is_empty() && self.dispatch.scheduler.open_tasks() > 0 {
            self.dispatch.decide(now, &opened, &mut self.proposals, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::DispatchSettings;
    use crate::policy::inter_job::QueueTree;
    use crate::preset::Preset;
    use crate::protocol::{Address, Message, NodeNews, Since, ToGlobalMaster, ToMaster, Told};
    use crate::role::{Event, Role};
    use crate::vocabulary::{ClusterId, Epoch, Federation, GlobalId, Kinds};
    use std::sync::Arc;

    const CLUSTER: ClusterId = ClusterId(0);
    const OWN: GlobalId = GlobalId(0);

    fn cores(cores: u32) -> Resources {
        Resources::new(cores * 1_000, 0)
    }

    /// Of a cluster of two nodes with four cores each, the first of its own partition and the second of another's; nothing is free.
    struct Believer {
        global: GlobalMaster,
        version: u64,
    }

    impl Believer {
        fn new(preset: Preset) -> Believer {
            let federation = Federation::new(1, 2, 4).unwrap();
            assert_eq!([0, 1].map(|node| federation.internal_to(NodeId(node)) == OWN), [true, false]);
            let epoch = Epoch::of_host(OWN.host(), 1).unwrap();
            let (settings, queues) = (DispatchSettings::default(), QueueTree::single());
            let mut global = preset.global_master(epoch, (federation, OWN), settings, queues);
            let mut out = Outbox::default();
            let peer = Address::ClusterMaster(CLUSTER);
            global.handle(Instant(0), Event::Connected { peer, incarnation: 1 }, &mut out);
            let introduction = out.sends.iter().find_map(|(_, message)| match message {
                Message::ToMaster(ToMaster::Introduce(introduction)) => Some(introduction.number),
                _ => None,
            });
            let introduction = introduction.expect("it introduces itself");
            let since = Since::Nothing { introduction, kinds: Kinds::new(), held: Vec::new() };
            let joined = |node| NodeNews::Joined {
                node: NodeId(node),
                name: format!("n{node}"),
                capacity: cores(4),
                attributes: Arc::default(),
            };
            let mut believer = Believer { global, version: 0 };
            let nodes = vec![joined(0), room(0, 0), joined(1), room(1, 0)];
            believer.hear(0, since, nodes);
            believer
        }

        fn hear(&mut self, at: u64, since: Since, nodes: Vec<NodeNews>) {
            self.version += 1;
            let told = Told {
                cluster: CLUSTER,
                life: Epoch(1),
                since,
                version: self.version,
                seen: 0,
                freed: Vec::new(),
                refused: Vec::new(),
                nodes,
                usage: Vec::new(),
                is_settled: true,
            };
            let (from, body) = (Address::ClusterMaster(CLUSTER), ToGlobalMaster::Told(Box::new(told)));
            self.global.handle(Instant(at), Event::Message { from, body }, &mut Outbox::default());
        }

        fn hear_of(&mut self, at: Duration, node: u32, free: u32) {
            self.hear(at.as_micros(), Since::Version(self.version), vec![room(node, free)]);
        }

        /// Cores on both nodes.
        fn free(&mut self, at: Duration) -> [u32; 2] {
            while self.global.next_wakeup().is_some_and(|wakeup| wakeup.0 <= at.as_micros()) {
                self.global.handle(Instant(at.as_micros()), Event::Wakeup, &mut Outbox::default());
            }
            [0, 1].map(|node| self.global.dispatch.rooms.offer(NodeId(node)).cpu_millis() / 1_000)
        }
    }

    fn room(node: u32, free: u32) -> NodeNews {
        NodeNews::Room { node: NodeId(node), free: cores(free), held: Box::default() }
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn what_opens_in_anothers_partition_is_seen_later_and_what_is_taken_there_at_once() {
        let mut believer = Believer::new(Preset::MEGHA_PLUS);
        believer.hear_of(millis(10), 0, 2);
        believer.hear_of(millis(10), 1, 3);
        assert_eq!(believer.free(millis(10)), [2, 0]);
        // Its owner has taken some of it meanwhile; the time counts from when it opened.
        believer.hear_of(millis(60), 1, 1);
        assert_eq!(believer.free(millis(109)), [2, 0]);
        assert_eq!(believer.free(millis(110)), [2, 1]);
        believer.hear_of(millis(120), 1, 4);
        assert_eq!(believer.free(millis(120)), [2, 1], "what was seen stays so");
        believer.hear_of(millis(130), 1, 0);
        assert_eq!((believer.free(millis(130)), believer.free(millis(500))), ([2, 0], [2, 0]), "it is gone");
    }

    #[test]
    fn without_it_everything_is_seen_at_once() {
        let mut believer = Believer::new(Preset::MEGHA);
        believer.hear_of(millis(10), 0, 2);
        believer.hear_of(millis(10), 1, 3);
        assert_eq!(believer.free(millis(10)), [2, 3]);
    }
}
