//! Cases found by chaos tests in which a node ran attempts that its ledger or its agent did not know.
//!
//! A master asked a node twice to introduce itself, or connections repeated a welcome or a registration: the node
//! accepted launches whose grants the ledger had freed. An executor was asked twice for its attempts: its second answer
//! made the agent write off what it had ordered after the first. An agent found more running than its node has, because
//! it had less than before or did not know its custom kinds yet: it gave away room that did not exist when some
//! attempts ended.

use crate::launches::bare_launch;
use amalgam_core::node::{NodeAgent, NodeSettings};
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{
    Address, Executing, ExecutorReport, Launch, Message, ToExecutor, ToJobManager, ToMaster, ToNode, Welcome,
};
use amalgam_core::role::{Event, Outbox, Role};
use amalgam_core::vocabulary::{
    AttemptId, Attributes, Digest, Duration, EndReason, Ended, Epoch, ExecutionType, Generation, GrantId, InputFile,
    Instant, JobId, Key, Kinds, LaunchOrder, Mac, NodeId, ResourceSpec, Resources, Sealing, TaskId, TaskShape,
    TaskTemplate, Token,
};
use std::sync::Arc;

const NODE: NodeId = NodeId(0);
const EPOCH: Epoch = Epoch(1);
const SEALING: Sealing = Sealing { root: Key([1; 32]), mac: Mac::MIXING };
const CORE: Resources = Resources::new(1_000, 0);

/// An agent that has registered once, at time 0.
fn registered() -> NodeAgent {
    let (agent, registration) = registered_at(Instant(0));
    assert_eq!(registration, Some(1));
    agent
}

fn registered_at(now: Instant) -> (NodeAgent, Option<u64>) {
    registered_with(now, Vec::new())
}

/// An agent whose executor runs these attempts from an earlier run of the agent.
fn registered_with(now: Instant, attempts: Vec<Executing>) -> (NodeAgent, Option<u64>) {
    registered_as(Preset::FIFO, CORE, now, attempts)
}

fn registered_as(
    preset: Preset,
    capacity: Resources,
    now: Instant,
    attempts: Vec<Executing>,
) -> (NodeAgent, Option<u64>) {
    let settings = NodeSettings {
        name: "host0".to_owned(),
        capacity: ResourceSpec { basic: capacity, custom: Vec::new() },
        attributes: Attributes::default(),
        enforcement: Vec::new(),
        orphan_lease: Duration::from_secs(600),
        stop_grace: Duration::from_secs(10),
        cache_bytes: 10 << 30,
        program: None,
    };
    let mut agent = preset.node_agent(NODE, settings, SEALING.mac);
    handle(&mut agent, Event::Connected { peer: Address::Executor(NODE), incarnation: 1 });
    hear(&mut agent, ToNode::Executor(ExecutorReport::Executing { attempts }));
    let sent = handle_at(now, &mut agent, Event::Connected { peer: Address::Master, incarnation: 1 });
    (agent, registration(&sent))
}

fn handle(agent: &mut NodeAgent, event: Event<ToNode>) -> Vec<(Address, Message)> {
    handle_at(Instant(0), agent, event)
}

fn handle_at(now: Instant, agent: &mut NodeAgent, event: Event<ToNode>) -> Vec<(Address, Message)> {
    let mut out = Outbox::default();
    agent.handle(now, event, &mut out);
    out.sends
}

fn hear(agent: &mut NodeAgent, body: ToNode) -> Vec<(Address, Message)> {
    handle(agent, Event::Message { from: Address::Master, body })
}

fn registration(sent: &[(Address, Message)]) -> Option<u64> {
    sent.iter().find_map(|(_, message)| match message {
        Message::ToMaster(ToMaster::Register(registration)) => Some(registration.number),
        _ => None,
    })
}

fn welcome(registration: u64) -> ToNode {
    let first_grant = GrantId { epoch: EPOCH, number: 1, slot: 0 };
    ToNode::Welcome(Box::new(Welcome {
        node: NODE,
        registration,
        epoch: EPOCH,
        first_grant,
        kinds: Kinds::new(),
        heartbeat: Duration::from_secs(1),
        pace: Duration::ZERO,
        key: SEALING.node_key(NODE),
        oldest: Generation(0),
        passes_on: false,
    }))
}

const ATTEMPT: AttemptId = AttemptId { job: JobId(1), epoch: EPOCH, number: 0 };

/// A task of one core.
fn template() -> Arc<TaskTemplate> {
    let shape = Arc::new(TaskShape { resources: CORE, ..TaskShape::default() });
    Arc::new(TaskTemplate { shape, ..TaskTemplate::default() })
}

fn launch(number: u32) -> Launch {
    let task = TaskId { job: JobId(1), stage: 0, index: number };
    let bare = bare_launch(AttemptId { number, ..ATTEMPT }, task, template());
    let mut launch = Launch { grant: Some(GrantId { epoch: EPOCH, number: 5, slot: 0 }), ..bare };
    launch.token = SEALING.token(NODE, Generation(0), &launch.allocation());
    launch
}

/// Whether the node accepts a launch with this number.
fn takes_launch(agent: &mut NodeAgent, number: u32) -> bool {
    hear(agent, ToNode::Launch(Box::new(launch(number))));
    agent.live().any(|live| live.attempt.number == number)
}

fn not_taken(number: u32) -> (Address, Message) {
    let attempt = AttemptId { number, ..ATTEMPT };
    (Address::JobManager(JobId(1)), Message::ToJobManager(ToJobManager::NotTaken { attempt }))
}

#[test]
fn a_welcome_to_the_latest_registration_opens_the_node() {
    let mut agent = registered();
    hear(&mut agent, welcome(1));
    assert!(takes_launch(&mut agent, 1));
}

#[test]
fn a_welcome_to_an_earlier_registration_does_not_open_the_node() {
    let mut agent = registered();
    let sent = hear(&mut agent, ToNode::RegisterAgain);
    assert_eq!(registration(&sent), Some(2));
    hear(&mut agent, welcome(1));
    assert!(!takes_launch(&mut agent, 0));
    assert!(
        hear(&mut agent, welcome(2)).contains(&not_taken(0)),
        "the launch is answered once its token can be checked"
    );
    assert!(takes_launch(&mut agent, 1));
}

#[test]
fn a_launch_before_the_welcome_is_answered_only_if_it_is_authentic() {
    let mut agent = registered();
    let forged = Launch { token: Token::default(), ..launch(0) };
    for launch in [forged, launch(1)] {
        assert_eq!(hear(&mut agent, ToNode::Launch(Box::new(launch))), []);
    }
    let output = hear(&mut agent, welcome(1));
    assert!(!output.contains(&not_taken(0)) && output.contains(&not_taken(1)), "{output:?}");
    assert_eq!(agent.live().count(), 0);
}

#[test]
fn a_welcome_to_an_earlier_run_does_not_open_the_node() {
    let mut agent = registered_at(Instant(7)).0;
    hear(&mut agent, welcome(1));
    assert!(!takes_launch(&mut agent, 0));
    hear(&mut agent, welcome(7));
    assert!(takes_launch(&mut agent, 1));
}

#[test]
fn a_repeated_welcome_after_a_reconnect_does_not_open_the_node() {
    let mut agent = registered();
    hear(&mut agent, welcome(1));
    handle(&mut agent, Event::Disconnected { peer: Address::Executor(NODE) });
    handle(&mut agent, Event::Connected { peer: Address::Master, incarnation: 2 });
    hear(&mut agent, welcome(1));
    assert!(!takes_launch(&mut agent, 0), "the node has not registered on this connection");
}

#[test]
fn an_executors_second_answer_does_not_write_off_later_launches() {
    let mut agent = registered();
    hear(&mut agent, welcome(1));
    handle(&mut agent, Event::Disconnected { peer: Address::Executor(NODE) });
    handle(&mut agent, Event::Connected { peer: Address::Executor(NODE), incarnation: 2 });
    handle(&mut agent, Event::Disconnected { peer: Address::Executor(NODE) });
    handle(&mut agent, Event::Connected { peer: Address::Executor(NODE), incarnation: 3 });
    let answer = || ToNode::Executor(ExecutorReport::Executing { attempts: Vec::new() });
    hear(&mut agent, answer());
    assert!(takes_launch(&mut agent, 1));
    hear(&mut agent, answer());
    assert_eq!(agent.live().map(|live| live.attempt).collect::<Vec<_>>(), [AttemptId { number: 1, ..ATTEMPT }]);
}

/// An attempt of the earlier run, with a core of its own.
fn executing(number: u32) -> Executing {
    let attempt = AttemptId { number, ..ATTEMPT };
    let order = LaunchOrder {
        attempt,
        task: TaskId { job: JobId(1), stage: 0, index: number },
        node: NODE,
        node_name: "node".to_owned(),
        hosts: None,
        shared_gpu: None,
        template: template(),
        index: u64::from(number),
        item: None,
        devices: Vec::new(),
        inputs: Arc::default(),
        grant: None,
        expected: None,
    };
    Executing { order, running_for: Duration::from_secs(1), yields_for: None, pid: 1, asked_to_end: None }
}

#[test]
fn room_is_free_only_once_all_attempts_of_an_earlier_run_fit() {
    let (mut agent, _) = registered_with(Instant(0), vec![executing(1), executing(2)]);
    let end = |number| {
        let attempt = AttemptId { number, ..ATTEMPT };
        ToNode::Executor(ExecutorReport::Finished { attempt, ended: Ended::without_run(EndReason::Exit(0)) })
    };
    hear(&mut agent, end(1));
    assert_eq!(*agent.free(), Resources::ZERO, "attempts of two cores ran on a node of one core");
    hear(&mut agent, end(2));
    assert_eq!(*agent.free(), CORE);
}

/// Of four cores, two and one are in use by opportunistic attempts. Guaranteed work of two cores preempts the one core
/// and waits for it. Then guaranteed work of an earlier job takes the free core, and the other opportunistic attempt
/// has to be preempted, too.
#[test]
fn more_attempts_are_preempted_if_other_guaranteed_work_takes_the_expected_room() {
    let (mut agent, _) = registered_as(Preset::MERCURY, Resources::new(4_000, 0), Instant(0), Vec::new());
    hear(&mut agent, welcome(1));
    let mut launch = |job: u64, number: u32, cores: u32, execution: ExecutionType| {
        let attempt = AttemptId { job: JobId(job), number, ..ATTEMPT };
        let task = TaskId { job: JobId(job), ..TaskId::default() };
        let grant = GrantId { epoch: EPOCH, number: 5 + u64::from(number), slot: number };
        let shape = TaskShape { resources: Resources::new(1_000 * cores, 0), execution };
        let template = Arc::new(TaskTemplate { shape: Arc::new(shape), ..TaskTemplate::default() });
        let grant = (execution == ExecutionType::Guaranteed).then_some(grant);
        let mut launch = Launch { attempt, task, grant, template, ..launch(number) };
        launch.token = SEALING.token(NODE, Generation(0), &launch.allocation());
        let sent = hear(&mut agent, ToNode::Launch(Box::new(launch)));
        let reported = sent.into_iter().filter_map(|(_, message)| match message {
            Message::ToExecutor(ToExecutor::Signal { attempt, reason: EndReason::Preempted, .. }) => {
                Some(attempt.number)
            }
            _ => None,
        });
        reported.collect::<Vec<_>>()
    };
    assert_eq!(launch(1, 0, 2, ExecutionType::Opportunistic), []);
    assert_eq!(launch(1, 1, 1, ExecutionType::Opportunistic), []);
    assert_eq!(launch(9, 2, 2, ExecutionType::Guaranteed), [1]);
    assert_eq!(launch(8, 3, 1, ExecutionType::Guaranteed), [0]);
}

/// Otherwise the attempt would be promoted, and stopped all the same.
#[test]
fn an_attempt_that_an_earlier_agent_asked_to_stop_is_still_stopped() {
    let opportunistic = |asked_to_end| {
        let mut found = Executing { asked_to_end, ..executing(0) };
        let shape = Arc::new(TaskShape { resources: CORE, execution: ExecutionType::Opportunistic });
        found.order.template = Arc::new(TaskTemplate { shape, ..TaskTemplate::default() });
        let (mut agent, _) = registered_as(Preset::MERCURY, CORE, Instant(0), vec![found]);
        hear(&mut agent, welcome(1));
        let grant = GrantId { epoch: EPOCH, number: 5, slot: 0 };
        let sent = hear(&mut agent, ToNode::Promote { attempt: ATTEMPT, grant: Some(grant) });
        let promoted =
            sent.iter().any(|(_, message)| matches!(message, Message::ToExecutor(ToExecutor::Promote { .. })));
        let late = Instant(0) + Duration::from_secs(10);
        let sent = handle_at(late, &mut agent, Event::Wakeup);
        let is_kill = |message: &Message| matches!(message, Message::ToExecutor(ToExecutor::Signal { .. }));
        (promoted, sent.iter().any(|(_, message)| is_kill(message)))
    };
    assert_eq!(opportunistic(None), (true, false));
    assert_eq!(opportunistic(Some(EndReason::Preempted)), (false, true));
}

#[test]
fn an_attempt_promoted_while_its_input_is_fetched_starts_once_the_input_is_there() {
    let starts = |inputs: Vec<InputFile>| {
        let (mut agent, _) = registered_as(Preset::APOLLO, CORE, Instant(0), Vec::new());
        hear(&mut agent, welcome(1));
        let shape = Arc::new(TaskShape { resources: CORE, execution: ExecutionType::Opportunistic });
        let template = Arc::new(TaskTemplate { shape, ..TaskTemplate::default() });
        let mut launch = Launch { grant: None, template, inputs: inputs.into(), ..launch(0) };
        launch.token = SEALING.token(NODE, Generation(0), &launch.allocation());
        let promote = ToNode::Promote { attempt: ATTEMPT, grant: None };
        [ToNode::Launch(Box::new(launch)), promote].map(|body| {
            let sent = handle(&mut agent, Event::Message { from: Address::JobManager(JobId(1)), body });
            sent.iter().any(|(_, message)| matches!(message, Message::ToExecutor(ToExecutor::Launch(_))))
        })
    };
    let input = InputFile { path: "part".to_owned(), digest: Digest([7; 32]), bytes: 10, holders: vec![NodeId(1)] };
    assert_eq!(starts(vec![input]), [false, false]);
    assert_eq!(starts(Vec::new()), [true, false], "the attempt starts at once, since there is room");
}

#[test]
fn requests_for_an_attempt_are_accepted_only_from_its_job_manager() {
    let stopped = |from: Address| {
        let (mut agent, _) = registered_as(Preset::DRF, CORE, Instant(0), vec![executing(0)]);
        hear(&mut agent, welcome(1));
        let (reason, grace) = (EndReason::Cancelled, Duration::from_secs(1));
        let body = ToNode::Stop { attempt: ATTEMPT, reason, grace };
        let sent = handle(&mut agent, Event::Message { from, body });
        sent.iter().any(|(_, message)| matches!(message, Message::ToExecutor(ToExecutor::Signal { .. })))
    };
    assert!(stopped(Address::JobManager(JobId(1))));
    assert!(!stopped(Address::JobManager(JobId(2))) && !stopped(Address::Master));
}
