//! In a federation, what the master of a cluster does with launches for which their global master has named others of its own that may
//! be preempted.

use crate::launches::bare_launch;
use amalgam_core::master::{Master, MasterSettings};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{
    Address, ClusterUpdate, GlobalIntroduction, Launch, Message, ProposedLaunch, Registration, ToGlobalMaster,
    ToMaster, ToNode,
};
use amalgam_core::role::{Event, Outbox, Role};
use amalgam_core::vocabulary::{
    AttemptId, Attributes, ClusterId, Epoch, ExecutionType, Federation, GlobalId, GrantId, HostId, Instant, JobId, Key,
    Mac, NodeId, QueueId, ResourceSpec, Resources, Sealing, TaskId, TaskShape, TaskTemplate,
};
use std::sync::Arc;

const OWN: GlobalId = GlobalId(0);
const NODE: NodeId = NodeId(0);
const SEALING: Sealing = Sealing { root: Key([1; 32]), mac: Mac::MIXING };

/// The master of a cluster with one node of four cores, on which four launches of a core each have room: the numbers 1 to 4.
struct Cluster {
    master: Master,
    introductions: u64,
}

/// What the master answers to a launch: the numbers of the grants that are preempted, refused and spared. `None`: not sent to the node.
#[derive(PartialEq, Eq, Debug)]
struct Answer {
    preempted: Option<Vec<u64>>,
    refused: Vec<u64>,
    spared: Vec<u64>,
}

fn epoch_of(host: HostId) -> Epoch {
    Epoch::of_host(host, 1).expect("the first life")
}

fn grant(number: u64) -> GrantId {
    GrantId { epoch: epoch_of(OWN.host()), number, slot: 0 }
}

fn numbers(grants: &[GrantId]) -> Vec<u64> {
    grants.iter().map(|grant| grant.number).collect()
}

impl Cluster {
    fn new() -> Cluster {
        let federated = Some((Federation::new(1, 1, 4).expect("a small federation"), ClusterId(0)));
        let settings = MasterSettings { federated, ..MasterSettings::default() };
        let master = Preset::AMALGAM_IN_FEDERATIONS.master(Epoch(1), settings, QueueTree::single(), SEALING);
        let mut cluster = Cluster { master, introductions: 0 };
        cluster.master.name_node("n0", &mut Outbox::default()).expect("the number of nodes is not limited");
        let registration = Registration {
            number: 1,
            node: NODE,
            name: "n0".to_owned(),
            capacity: ResourceSpec { basic: Resources::new(4_000, 0), custom: Vec::new() },
            attributes: Attributes::default(),
            enforcement: Vec::new(),
            live: Vec::new(),
            program: None,
        };
        cluster.hear(Address::Node(NODE), ToMaster::Register(Box::new(registration)));
        cluster.introduce();
        for number in 1..=4 {
            assert_eq!(cluster.launch(number, 1).preempted, Some(Vec::new()), "there is room for {number}");
        }
        cluster
    }

    fn hear(&mut self, from: Address, body: ToMaster) -> Outbox {
        let mut out = Outbox::default();
        self.master.handle(Instant(1), Event::Message { from, body }, &mut out);
        out
    }

    fn introduce(&mut self) {
        self.introductions += 1;
        let (epoch, number) = (epoch_of(OWN.host()), self.introductions);
        let introduction = GlobalIntroduction { epoch, number, jobs: Vec::new() };
        self.hear(Address::GlobalMaster(OWN), ToMaster::Introduce(Box::new(introduction)));
    }

    fn make_room(&mut self, number: u64, instead_of: Vec<GrantId>) {
        let out = self.hear(Address::GlobalMaster(OWN), ToMaster::MakeRoom { grant: grant(number), instead_of });
        assert!(out.sends.is_empty(), "nothing is preempted before the launch");
    }

    fn launch(&mut self, number: u64, cores: u32) -> Answer {
        let job = JobId(number);
        let shape = TaskShape { resources: Resources::new(cores * 1_000, 0), execution: ExecutionType::Guaranteed };
        let template = Arc::new(TaskTemplate { shape: Arc::new(shape), ..TaskTemplate::default() });
        let attempt = AttemptId { job, epoch: epoch_of(OWN.host()), number: 0 };
        let bare = bare_launch(attempt, TaskId { job, stage: 0, index: 0 }, template);
        let launch = Launch { grant: Some(grant(number)), ..bare };
        let proposed = ProposedLaunch { node: NODE, queue: QueueId(0), instead_of: None, launch: Box::new(launch) };
        let out = self.hear(Address::JobManager(job), ToMaster::Launch(Box::new(proposed)));
        let mut answer = Answer { preempted: None, refused: Vec::new(), spared: Vec::new() };
        for (_, message) in &out.sends {
            match message {
                Message::ToNode(ToNode::Launch(_)) => answer.preempted = Some(Vec::new()),
                Message::ToNode(ToNode::LaunchInstead { of, .. }) => answer.preempted = Some(numbers(of)),
                Message::ToGlobalMaster(ToGlobalMaster::ClusterUpdate(update)) => {
                    let ClusterUpdate { refused, spared, .. } = &**update;
                    (answer.refused, answer.spared) = (numbers(refused), numbers(spared));
                }
                _ => {}
            }
        }
        answer
    }
}

fn launched(preempted: &[u64], spared: &[u64]) -> Answer {
    Answer { preempted: Some(preempted.to_vec()), refused: Vec::new(), spared: spared.to_vec() }
}

fn refused(number: u64) -> Answer {
    Answer { preempted: None, refused: vec![number], spared: Vec::new() }
}

#[test]
fn only_what_is_named_and_necessary_is_preempted_and_the_rest_is_spared() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.launch(5, 1), refused(5), "nothing is named");
    cluster.make_room(6, vec![grant(1), grant(2), grant(3)]);
    assert_eq!(cluster.launch(6, 2), launched(&[3, 2], &[1]), "the newest");
    cluster.make_room(7, vec![grant(1), grant(2)]);
    assert_eq!(cluster.launch(7, 2), refused(7), "the second one makes room already");
}

#[test]
fn launches_share_the_room_that_earlier_ones_have_made() {
    let mut cluster = Cluster::new();
    cluster.hear(Address::Node(NODE), ToMaster::Freed { grants: [1, 2, 3, 4].map(grant).to_vec(), unfinished: false });
    assert_eq!(cluster.launch(5, 4), launched(&[], &[]));
    cluster.make_room(6, vec![grant(5)]);
    assert_eq!(cluster.launch(6, 1), launched(&[5], &[]));
    cluster.make_room(7, Vec::new());
    assert_eq!(cluster.launch(7, 3), launched(&[], &[]), "it gets the rest of the room");
    cluster.make_room(8, Vec::new());
    assert_eq!(cluster.launch(8, 1), refused(8));
}

#[test]
fn what_is_named_counts_for_its_launch_only_and_not_after_a_new_introduction() {
    let mut cluster = Cluster::new();
    cluster.make_room(5, vec![grant(1)]);
    cluster.make_room(6, vec![grant(2)]);
    assert_eq!(cluster.launch(6, 1), launched(&[2], &[]));
    assert_eq!(cluster.launch(5, 1).preempted, None, "a later one has overtaken it");
    let others = GrantId { epoch: epoch_of(GlobalId(1).host()), ..grant(1) };
    cluster.make_room(7, vec![others]);
    assert_eq!(cluster.launch(7, 1), refused(7), "the grant of another global master");
    cluster.make_room(8, vec![grant(1)]);
    cluster.introduce();
    assert_eq!(cluster.launch(8, 1), refused(8));
}
