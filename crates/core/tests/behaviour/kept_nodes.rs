//! In a federation, the master of a cluster keeps the nodes that a global master has reserved from the others.

use crate::first_refusal::Believer;
use crate::launches::bare_launch;
use amalgam_core::master::{Master, MasterSettings};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{
    Address, Ask, GlobalIntroduction, Launch, Message, NodeNews, ProposedLaunch, Registration, ToGlobalMaster,
    ToJobManager, ToMaster, ToNode,
};
use amalgam_core::role::{Event, Outbox, Role};
use amalgam_core::vocabulary::{
    AskId, AttemptId, Attributes, ClientId, ClusterId, Duration, Epoch, ExecutionType, Federation, GlobalId, GrantId,
    Instant, JobId, JobSpec, Key, Mac, NodeId, Program, QueueId, ResourceSpec, Resources, Sealing, StageSpec, TaskId,
    TaskSet, TaskShape, TaskTemplate,
};
use amalgam_core::why::Why;
use std::sync::Arc;

const NOW: Instant = Instant(100);
const SEALING: Sealing = Sealing { root: Key([1; 32]), mac: Mac::MIXING };
const GLOBALS: [GlobalId; 2] = [GlobalId(0), GlobalId(1)];
/// The nodes of both partitions, in the order of the global masters.
const NODES: [NodeId; 2] = [NodeId(0), NodeId(1)];

/// The master of a cluster with two nodes, one in the partition of each of two global masters.
struct Cluster {
    master: Master,
    launched: u64,
    /// By global master: the nodes that it knows to be kept from it.
    kept_from: [Vec<NodeId>; 2],
}

fn epoch_of(global: GlobalId) -> Epoch {
    Epoch::of_host(global.host(), 1).expect("the first life")
}

impl Cluster {
    fn new() -> Cluster {
        let federation = Federation::new(1, 2, 4).expect("a small federation");
        assert_eq!(NODES.map(|node| federation.internal_to(node)), GLOBALS);
        let settings = MasterSettings { federated: Some((federation, ClusterId(0))), ..MasterSettings::default() };
        let master = Preset::AMALGAM_IN_FEDERATIONS.master(Epoch(1), settings, QueueTree::single(), SEALING);
        let mut cluster = Cluster { master, launched: 0, kept_from: Default::default() };
        for node in NODES {
            let name = format!("n{}", node.0);
            cluster.master.name_node(&name, &mut Outbox::default()).expect("the number of nodes is not limited");
            let registration = Registration {
                number: 1,
                node,
                name,
                capacity: ResourceSpec { basic: Resources::new(64_000, 0), custom: Vec::new() },
                attributes: Attributes::default(),
                enforcement: Vec::new(),
                live: Vec::new(),
                program: None,
            };
            cluster.hear(Address::Node(node), ToMaster::Register(Box::new(registration)));
        }
        GLOBALS.into_iter().for_each(|global| cluster.introduce(global, 1));
        cluster
    }

    fn introduce(&mut self, global: GlobalId, number: u64) {
        let introduction = GlobalIntroduction { epoch: epoch_of(global), number, jobs: Vec::new() };
        self.hear(Address::GlobalMaster(global), ToMaster::Introduce(Box::new(introduction)));
    }

    fn hear(&mut self, from: Address, body: ToMaster) -> Outbox {
        self.handle(Event::Message { from, body })
    }

    fn handle(&mut self, event: Event<ToMaster>) -> Outbox {
        let mut out = Outbox::default();
        self.master.handle(NOW, event, &mut out);
        for (to, message) in &out.sends {
            let (Address::GlobalMaster(global), Message::ToGlobalMaster(ToGlobalMaster::ClusterUpdate(update))) =
                (to, message)
            else {
                continue;
            };
            let known = &mut self.kept_from[usize::from(global.0)];
            for news in &update.nodes {
                if let NodeNews::Room { node, kept_for, .. } = news {
                    known.retain(|kept| kept != node);
                    known.extend(kept_for.map(|_| *node));
                }
            }
        }
        out
    }

    /// For a gang that has waited since then.
    fn keep(&mut self, global: GlobalId, nodes: &[NodeId], since: u64) {
        let (nodes, waited) = (nodes.to_vec(), NOW.since(Instant(since)));
        self.hear(Address::GlobalMaster(global), ToMaster::Keep { nodes, waited });
    }

    /// Whether a launch of a job of the global master is passed on to the node.
    fn launches(&mut self, global: GlobalId, node: NodeId) -> bool {
        self.launched += 1;
        // Odd jobs are those of the second global master.
        let job = JobId(2 * self.launched + 1 + u64::from(global.0));
        let shape = TaskShape { resources: Resources::new(1_000, 0), execution: ExecutionType::Guaranteed };
        let template = Arc::new(TaskTemplate { shape: Arc::new(shape), ..TaskTemplate::default() });
        let attempt = AttemptId { job, epoch: epoch_of(global), number: 0 };
        let grant = GrantId { epoch: epoch_of(global), number: self.launched, slot: 0 };
        let bare = bare_launch(attempt, TaskId { job, stage: 0, index: 0 }, template);
        let launch = Box::new(Launch { grant: Some(grant), ..bare });
        let proposed = ProposedLaunch { node, queue: QueueId(0), instead_of: None, launch };
        let out = self.hear(Address::JobManager(job), ToMaster::Launch(Box::new(proposed)));
        out.sends.iter().any(|(_, message)| matches!(message, Message::ToNode(ToNode::Launch(_))))
    }

    /// By global master: whether it may launch on the nodes.
    fn may_launch(&mut self) -> [[bool; 2]; 2] {
        GLOBALS.map(|global| NODES.map(|node| self.launches(global, node)))
    }
}

#[test]
fn a_reserved_node_is_kept_from_others_until_it_is_left_or_its_global_master_is_gone() {
    let mut cluster = Cluster::new();
    let all = [[true, true], [true, true]];
    assert_eq!(cluster.may_launch(), all);
    cluster.keep(GLOBALS[1], &[NODES[1]], 0);
    assert_eq!(cluster.may_launch(), [[true, false], [true, true]]);
    assert_eq!(cluster.kept_from, [vec![NODES[1]], vec![]], "the refused one has been told why");
    cluster.keep(GLOBALS[1], &[], 0);
    assert_eq!((cluster.may_launch(), cluster.kept_from.clone()), (all, [vec![], vec![]]));

    cluster.keep(GLOBALS[1], &[NODES[1]], 0);
    assert_eq!(cluster.may_launch(), [[true, false], [true, true]]);
    cluster.handle(Event::Disconnected { peer: Address::GlobalMaster(GLOBALS[1]) });
    assert!(cluster.launches(GLOBALS[0], NODES[1]), "nobody would use it");
}

#[test]
fn all_nodes_that_two_global_masters_want_are_kept_for_the_gang_that_has_waited_longest() {
    let mut cluster = Cluster::new();
    cluster.keep(GLOBALS[0], &NODES, 20);
    assert_eq!(cluster.may_launch(), [[true, true], [false, false]]);
    cluster.keep(GLOBALS[1], &NODES, 10);
    assert_eq!(cluster.may_launch(), [[false, false], [true, true]]);
    assert_eq!(cluster.kept_from, [NODES.to_vec(), vec![]], "both know");
    cluster.keep(GLOBALS[1], &[], 10);
    assert_eq!(cluster.may_launch(), [[true, true], [false, false]], "the other one still wants them");
    cluster.introduce(GLOBALS[0], 2);
    assert_eq!(cluster.may_launch(), [[true, true], [true, true]], "it has not repeated what it keeps");
}

#[test]
fn a_global_master_places_nothing_on_a_node_that_another_one_has_reserved() {
    let mut believer = Believer::new(Preset::AMALGAM_IN_FEDERATIONS);
    let job = JobId(1);
    let id = AskId { job, number: 0 };
    let program = Arc::new(Program { command: vec!["true".into()], ..Program::default() });
    let stage = StageSpec { name: "s".to_owned(), tasks: TaskSet::Count(1), program, ..StageSpec::default() };
    let spec = JobSpec { stages: vec![stage], wait_for_nodes: true, ..JobSpec::default() };
    let submit = ToMaster::Submit { spec: Arc::new(spec), key: None };
    let ask = Ask {
        id,
        resources: Resources::new(1_000, 0),
        constraints: Arc::default(),
        execution: ExecutionType::Guaranteed,
        wanted: 1,
        needed: 1,
        rank: 1,
        priority: 0,
        is_gang: false,
        locality: Arc::default(),
        expected: None,
        limit: None,
        duplicates: 0,
    };
    let demand = ToMaster::Demand { job, asks: vec![ask], work: Box::default() };
    for (from, body) in [(Address::Client(ClientId(1)), submit), (Address::JobManager(job), demand)] {
        let event = Event::Message { from, body: ToGlobalMaster::OfJobs(Box::new(body)) };
        believer.global.handle(Instant(1), event, &mut Outbox::default());
    }
    let of_node = |is_kept: bool| {
        let kept_for = is_kept.then_some(Duration::from_secs(40));
        let (node, free) = (NODES[1], Resources::new(4_000, 0));
        NodeNews::Room { node, free, closed_reason: None, held: Box::default(), kept_for }
    };
    let granted = |out: &Outbox| {
        let is_grant = |message: &Message| matches!(message, Message::ToJobManager(ToJobManager::Granted { .. }));
        out.sends.iter().any(|(_, message)| is_grant(message))
    };
    let reason = |believer: &Believer| {
        let dispatch = believer.global.dispatch();
        dispatch.scheduler.explain_blocked(id, &dispatch.rooms)
    };
    let mut place = |at: u64, is_kept: bool| {
        let heard = believer.hear_news(Duration::from_secs(at), of_node(is_kept));
        // The room belongs to the owner of the partition first.
        let mut later = Outbox::default();
        believer.global.handle(Instant(at * 1_000_000 + 500_000), Event::Wakeup, &mut later);
        (granted(&heard) || granted(&later), reason(&believer))
    };
    assert_eq!(place(1, true), (false, Some(Why::ReservedElsewhere { node: NODES[1] })));
    assert!(place(2, false).0, "it is not reserved any more");
}
