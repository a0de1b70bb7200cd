//! Under `megha-plus`, room that becomes free in another global master's partition is offered to that one first.

use amalgam_core::dispatch::DispatchSettings;
use amalgam_core::global_master::GlobalMaster;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{Address, ClusterUpdate, Message, NodeNews, Since, ToGlobalMaster, ToMaster};
use amalgam_core::role::{Event, Outbox, Role};
use amalgam_core::vocabulary::{ClusterId, Duration, Epoch, Federation, GlobalId, Instant, Kinds, NodeId, Resources};
use std::sync::Arc;

const CLUSTER: ClusterId = ClusterId(0);
const OWN: GlobalId = GlobalId(0);

fn cores(cores: u32) -> Resources {
    Resources::new(cores * 1_000, 0)
}

/// A global master of a cluster of two nodes with four cores each. The first node is in its own partition, the second
/// in another's; no resources are free.
pub struct Believer {
    pub global: GlobalMaster,
    version: u64,
}

impl Believer {
    pub fn new(preset: Preset) -> Believer {
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
        let introduction = introduction.expect("the global master introduces itself");
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

    fn hear(&mut self, at: u64, since: Since, nodes: Vec<NodeNews>) -> Outbox {
        self.version += 1;
        let reported = ClusterUpdate {
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
            spared: Vec::new(),
        };
        let (from, body) = (Address::ClusterMaster(CLUSTER), ToGlobalMaster::ClusterUpdate(Box::new(reported)));
        let mut out = Outbox::default();
        self.global.handle(Instant(at), Event::Message { from, body }, &mut out);
        out
    }

    fn hear_of(&mut self, at: Duration, node: u32, free: u32) {
        self.hear_news(at, room(node, free));
    }

    pub fn hear_news(&mut self, at: Duration, news: NodeNews) -> Outbox {
        self.hear(at.as_micros(), Since::Version(self.version), vec![news])
    }

    /// Free cores on both nodes.
    fn free(&mut self, at: Duration) -> [u32; 2] {
        while self.global.next_wakeup().is_some_and(|wakeup| wakeup.0 <= at.as_micros()) {
            self.global.handle(Instant(at.as_micros()), Event::Wakeup, &mut Outbox::default());
        }
        let free: Vec<u32> = self
            .global
            .believed_nodes(Instant(at.as_micros()))
            .iter()
            .map(|node| node.free.cpu_millis() / 1_000)
            .collect();
        [free[0], free[1]]
    }
}

fn room(node: u32, free: u32) -> NodeNews {
    NodeNews::Room { node: NodeId(node), free: cores(free), closed_reason: None, held: Box::default(), kept_for: None }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn free_room_in_another_partition_is_seen_later_and_taken_room_at_once() {
    let mut believer = Believer::new(Preset::MEGHA_PLUS);
    believer.hear_of(millis(10), 0, 2);
    believer.hear_of(millis(10), 1, 3);
    assert_eq!(believer.free(millis(10)), [2, 0]);
    // Its owner has taken some of it meanwhile. The time counts from when the room became free.
    believer.hear_of(millis(60), 1, 1);
    assert_eq!(believer.free(millis(109)), [2, 0]);
    assert_eq!(believer.free(millis(110)), [2, 1]);
    believer.hear_of(millis(120), 1, 4);
    assert_eq!(believer.free(millis(120)), [2, 1], "room that was seen stays visible");
    believer.hear_of(millis(130), 1, 0);
    assert_eq!((believer.free(millis(130)), believer.free(millis(500))), ([2, 0], [2, 0]), "the room is taken");
}

#[test]
fn under_megha_free_room_is_seen_at_once() {
    let mut believer = Believer::new(Preset::MEGHA);
    believer.hear_of(millis(10), 0, 2);
    believer.hear_of(millis(10), 1, 3);
    assert_eq!(believer.free(millis(10)), [2, 3]);
}
