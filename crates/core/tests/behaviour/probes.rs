//! What a node does with probes: it asks for tasks in the order of the queue, keeps room until it gets an answer, and
//! drops probes with the connection.

use crate::launches::bare_launch;
use amalgam_core::node::{NodeAgent, NodeSettings};
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{
    Address, ExecutorReport, Launch, Message, Probe, ToExecutor, ToJobManager, ToMaster, ToNode, Welcome,
};
use amalgam_core::role::{Event, Outbox, Role};
use amalgam_core::vocabulary::{
    AttemptId, Attributes, Duration, Epoch, ExecutionType, Generation, GrantId, Instant, JobId, Key, Kinds, Mac,
    NodeId, ProbeId, ResourceSpec, Resources, Sealing, TaskId, TaskShape, TaskTemplate, Token,
};
use std::sync::Arc;

const NODE: NodeId = NodeId(0);
const JOB: JobId = JobId(1);
const EPOCH: Epoch = Epoch(1);
const SEALING: Sealing = Sealing { root: Key([1; 32]), mac: Mac::MIXING };

/// A node with 4 CPUs.
struct Node(NodeAgent);

impl Node {
    fn new() -> Node {
        let mut node = Node::unconnected(Vec::new());
        node.connect(Kinds::new());
        node
    }

    fn unconnected(custom: Vec<(String, u32)>) -> Node {
        let settings = NodeSettings {
            name: "host".to_owned(),
            capacity: ResourceSpec { basic: Resources::new(4_000, 0), custom },
            attributes: Attributes::default(),
            enforcement: Vec::new(),
            orphan_lease: Duration::MAX,
            stop_grace: Duration::from_secs(1),
            cache_bytes: 10 << 30,
            program: None,
        };
        let mut node = Node(Preset::FIFO.node_agent(NODE, settings, SEALING.mac));
        node.handle(Event::Connected { peer: Address::Executor(NODE), incarnation: 1 });
        node.deliver(Address::Executor(NODE), ToNode::Executor(ExecutorReport::Executing { attempts: Vec::new() }));
        node
    }

    /// Connects the node. Returns what it sends once it is welcomed.
    fn connect(&mut self, kinds: Kinds) -> Vec<Said> {
        let mut out = Outbox::default();
        self.0.handle(Instant(0), Event::Connected { peer: Address::Master, incarnation: 1 }, &mut out);
        let registration = out.sends.iter().find_map(|(_, message)| match message {
            Message::ToMaster(ToMaster::Register(registration)) => Some(registration.number),
            _ => None,
        });
        let registration = registration.expect("the node registers");
        self.deliver(Address::Master, welcome(registration, kinds))
    }

    /// What it sends to job managers and to its executor.
    fn handle(&mut self, event: Event<ToNode>) -> Vec<Said> {
        let mut out = Outbox::default();
        self.0.handle(Instant(0), event, &mut out);
        let output = out.sends.into_iter().filter_map(|(_, message)| match message {
            Message::ToJobManager(ToJobManager::Ready { probe }) => Some(Said::Ready(probe.number)),
            Message::ToJobManager(ToJobManager::NotTaken { attempt }) => Some(Said::NotTaken(attempt.number)),
            Message::ToExecutor(ToExecutor::Launch(order)) => Some(Said::Launch(order.attempt.number)),
            _ => None,
        });
        output.collect()
    }

    fn deliver(&mut self, from: Address, body: ToNode) -> Vec<Said> {
        self.handle(Event::Message { from, body })
    }

    fn probe(&mut self, number: u32, cpu_millis: u32) -> Vec<Said> {
        self.probe_for(number, Resources::new(cpu_millis, 0))
    }

    fn probe_for(&mut self, number: u32, resources: Resources) -> Vec<Said> {
        let probe = Probe { id: id(number), shape: shape(resources) };
        self.deliver(Address::JobManager(JOB), ToNode::Probe(probe))
    }

    fn cancel(&mut self, probes: &[u32]) -> Vec<Said> {
        let probes = probes.iter().map(|&number| id(number)).collect();
        self.deliver(Address::JobManager(JOB), ToNode::Cancel { probes })
    }

    fn launch(&mut self, number: u32, probe: Option<u32>, cpu_millis: u32) -> Vec<Said> {
        self.launch_in(EPOCH, number, probe, cpu_millis)
    }

    fn launch_in(&mut self, epoch: Epoch, number: u32, probe: Option<u32>, cpu_millis: u32) -> Vec<Said> {
        let launch = self.made(epoch, number, probe, cpu_millis);
        self.deliver(Address::JobManager(JOB), ToNode::Launch(Box::new(launch)))
    }

    fn made(&self, epoch: Epoch, number: u32, probe: Option<u32>, cpu_millis: u32) -> Launch {
        let shape = shape(Resources::new(cpu_millis, 0));
        let template = Arc::new(TaskTemplate { shape, ..TaskTemplate::default() });
        let task = TaskId { job: JOB, stage: 0, index: number };
        let bare = bare_launch(AttemptId { job: JOB, epoch, number }, task, template);
        let mut launch = Launch { probe: probe.map(id), ..bare };
        launch.token = SEALING.token(NODE, Generation(0), &launch.allocation());
        launch
    }

    fn free(&self) -> u32 {
        self.0.describe(Instant(0)).free.cpu_millis()
    }
}

fn shape(resources: Resources) -> Arc<TaskShape> {
    Arc::new(TaskShape { resources, execution: ExecutionType::Guaranteed })
}

fn welcome(registration: u64, kinds: Kinds) -> ToNode {
    let first_grant = GrantId { epoch: EPOCH, number: 1, slot: 0 };
    ToNode::Welcome(Box::new(Welcome {
        node: NODE,
        registration,
        epoch: EPOCH,
        first_grant,
        kinds,
        heartbeat: Duration::from_secs(1),
        pace: Duration::ZERO,
        key: SEALING.node_key(NODE),
        oldest: Generation(0),
        passes_on: false,
    }))
}

#[derive(PartialEq, Debug)]
enum Said {
    Ready(u32),
    NotTaken(u32),
    Launch(u32),
}
use Said::{Launch as Launched, NotTaken, Ready};

fn id(number: u32) -> ProbeId {
    ProbeId { job: JOB, epoch: EPOCH, number }
}

#[test]
fn a_probe_waits_in_order_and_its_launch_takes_the_kept_room() {
    let mut node = Node::new();
    assert_eq!(node.probe(1, 3_000), [Ready(1)]);
    assert_eq!(node.free(), 1_000);
    assert_eq!(node.probe(2, 2_000), [], "it does not fit");
    assert_eq!(node.launch(7, None, 1_000), [], "a launch does not overtake the probe");
    assert_eq!(node.launch(8, Some(1), 3_000), [Launched(8)]);
    assert_eq!(node.free(), 1_000);
    assert_eq!(node.cancel(&[2]), [Launched(7)], "the entry behind it starts");
}

#[test]
fn room_of_a_cancelled_probe_goes_to_the_next_entry() {
    let mut node = Node::new();
    assert_eq!(node.probe(1, 4_000), [Ready(1)]);
    assert_eq!(node.probe(2, 4_000), []);
    assert_eq!(node.probe(3, 4_000), []);
    assert_eq!(node.cancel(&[1]), [Ready(2)]);
    assert_eq!(node.cancel(&[3, 2]), []);
    assert_eq!(node.free(), 4_000);
}

#[test]
fn a_task_smaller_than_its_probe_leaves_the_rest_of_the_room_to_others() {
    let mut node = Node::new();
    assert_eq!(node.probe(1, 4_000), [Ready(1)]);
    assert_eq!(node.probe(2, 3_000), []);
    assert_eq!(node.launch(5, Some(1), 1_000), [Launched(5), Ready(2)]);
}

#[test]
fn probes_and_their_room_are_dropped_with_the_connection() {
    for notices in [false, true] {
        let mut node = Node::new();
        node.probe(1, 3_000);
        node.probe(2, 3_000);
        assert_eq!(node.launch(7, None, 2_000), []);
        if notices {
            let output = node.handle(Event::Disconnected { peer: Address::Master });
            assert_eq!(output, [Launched(7)], "a launch starts without a connection");
        }
        node.connect(Kinds::new());
        assert_eq!(node.free(), 2_000);
        assert_eq!(node.probe(1, 2_000), [Ready(1)], "the same probe on a new connection is a new one");
    }
}

#[test]
fn a_repeated_probe_is_ignored_and_a_launch_of_an_earlier_epoch_does_not_use_it() {
    let mut node = Node::new();
    assert_eq!(node.probe(1, 4_000), [Ready(1)]);
    assert_eq!(node.probe(2, 4_000), []);
    assert_eq!(node.probe(1, 4_000), []);
    assert_eq!(node.probe(2, 4_000), []);
    assert_eq!(node.launch_in(Epoch(0), 9, Some(1), 4_000), [NotTaken(9)]);
    assert_eq!(node.launch(7, Some(1), 4_000), [Launched(7)]);
}

#[test]
fn a_forged_launch_does_not_take_the_room_of_a_probe() {
    let mut node = Node::new();
    assert_eq!(node.probe(1, 4_000), [Ready(1)]);
    let mut forged = node.made(EPOCH, 9, Some(1), 4_000);
    forged.token = Token::default();
    assert_eq!(node.deliver(Address::JobManager(JOB), ToNode::Launch(Box::new(forged))), []);
    assert_eq!(node.free(), 0, "room is kept for the probe");
    assert_eq!(node.launch(2, Some(1), 4_000), [Launched(2)]);
}

#[test]
fn a_disowned_job_leaves_no_probe() {
    let mut node = Node::new();
    node.probe(1, 3_000);
    node.probe(2, 3_000);
    assert_eq!(node.deliver(Address::Master, ToNode::Disown { job: JOB }), []);
    assert_eq!(node.free(), 4_000);
}

#[test]
fn a_probe_from_before_the_welcome_is_ready_once_custom_kinds_are_known() {
    let mut kinds = Kinds::new();
    let licence = kinds.add("licence").unwrap();
    let mut node = Node::unconnected(vec![("licence".to_owned(), 1)]);
    let mut out = Outbox::default();
    node.0.handle(Instant(0), Event::Connected { peer: Address::Master, incarnation: 1 }, &mut out);
    assert_eq!(node.probe_for(1, Resources::new(1_000, 0).with(licence, 1)), []);
    let registration = out.sends.iter().find_map(|(_, message)| match message {
        Message::ToMaster(ToMaster::Register(registration)) => Some(registration.number),
        _ => None,
    });
    assert_eq!(node.deliver(Address::Master, welcome(registration.unwrap(), kinds)), [Ready(1)]);
}
