//! Ways found by chaos in which a node ran what its ledger or its agent did not know of.
//!
//! A master asked a node twice to introduce itself, connections repeated a welcome or a registration: the node took
//! launches that the ledger had freed. An executor was asked twice what it runs: the second answer made the agent write
//! off what it had ordered after the first. An agent that found more running than its node has, because it had less than
//! before or did not know its custom kinds yet, gave away room that was not there when some of it ended.

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

/// An agent that has introduced itself once, at the beginning of time.
fn registered() -> NodeAgent {
    let (agent, registration) = registered_at(Instant(0));
    assert_eq!(registration, Some(1));
    agent
}

fn registered_at(now: Instant) -> (NodeAgent, Option<u64>) {
    registered_with(now, Vec::new())
}

/// One whose executor runs these from an earlier life of the agent.
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
    let mut launch = Launch {
        attempt: AttemptId { number, ..ATTEMPT },
        task: TaskId { job: JobId(1), stage: 0, index: number },
        grant: Some(GrantId { epoch: EPOCH, number: 5, slot: 0 }),
        probe: None,
        is_of_gang: false,
        shared_gpu: None,
        template: template(),
        index: 0,
        item: None,
        expected: None,
        weight: 1,
        inputs: Arc::default(),
        foretold: None,
        token: Token::default(),
    };
    launch.token = SEALING.token(NODE, Generation(0), &launch.allocation());
    launch
}

/// Whether the node takes a launch of this number.
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
fn a_welcome_to_an_earlier_registration_does_not() {
    let mut agent = registered();
    let sent = hear(&mut agent, ToNode::IntroduceYourself);
    assert_eq!(registration(&sent), Some(2));
    hear(&mut agent, welcome(1));
    assert!(!takes_launch(&mut agent, 0));
    assert!(hear(&mut agent, welcome(2)).contains(&not_taken(0)), "it is answered once it can be judged");
    assert!(takes_launch(&mut agent, 1));
}

#[test]
fn a_launch_that_comes_before_the_welcome_is_answered_only_if_it_is_authentic() {
    let mut agent = registered();
    let forged = Launch { token: Token::default(), ..launch(0) };
    for launch in [forged, launch(1)] {
        assert_eq!(hear(&mut agent, ToNode::Launch(Box::new(launch))), []);
    }
    let said = hear(&mut agent, welcome(1));
    assert!(!said.contains(&not_taken(0)) && said.contains(&not_taken(1)), "{said:?}");
    assert_eq!(agent.live().count(), 0);
}

#[test]
fn a_welcome_to_an_earlier_life_does_not() {
    let mut agent = registered_at(Instant(7)).0;
    hear(&mut agent, welcome(1));
    assert!(!takes_launch(&mut agent, 0));
    hear(&mut agent, welcome(7));
    assert!(takes_launch(&mut agent, 1));
}

#[test]
fn a_welcome_that_comes_again_after_a_reconnect_does_not() {
    let mut agent = registered();
    hear(&mut agent, welcome(1));
    handle(&mut agent, Event::Disconnected { peer: Address::Executor(NODE) });
    handle(&mut agent, Event::Connected { peer: Address::Master, incarnation: 2 });
    hear(&mut agent, welcome(1));
    assert!(!takes_launch(&mut agent, 0), "it has not introduced itself on this connection");
}

#[test]
fn an_executors_second_answer_ends_nothing_that_was_ordered_after_the_first() {
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

/// An attempt of the earlier life with a core of its own.
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
fn room_is_free_only_when_all_fits_that_still_runs_from_an_earlier_life() {
    let (mut agent, _) = registered_with(Instant(0), vec![executing(1), executing(2)]);
    let end = |number| {
        let attempt = AttemptId { number, ..ATTEMPT };
        ToNode::Executor(ExecutorReport::Finished { attempt, ended: Ended::without_run(EndReason::Exit(0)) })
    };
    hear(&mut agent, end(1));
    assert_eq!(*agent.free(), Resources::ZERO, "of two cores that ran on a node of one");
    hear(&mut agent, end(2));
    assert_eq!(*agent.free(), CORE);
}

/// Of four cores two and one are in use by opportunistic work. Guaranteed work of two ends the one and waits for it; then
/// guaranteed work of an earlier job takes the core that was free, and the other has to go, too.
#[test]
fn guaranteed_work_that_waits_has_more_room_made_when_other_guaranteed_work_takes_what_it_counted_on() {
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
        let told = sent.into_iter().filter_map(|(_, message)| match message {
            Message::ToExecutor(ToExecutor::Signal { attempt, reason: EndReason::Preempted, .. }) => {
                Some(attempt.number)
            }
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(launch(1, 0, 2, ExecutionType::Opportunistic), []);
    assert_eq!(launch(1, 1, 1, ExecutionType::Opportunistic), []);
    assert_eq!(launch(9, 2, 2, ExecutionType::Guaranteed), [1]);
    assert_eq!(launch(8, 3, 1, ExecutionType::Guaranteed), [0]);
}

/// Otherwise it would be promoted, and end all the same.
#[test]
fn what_an_earlier_life_of_the_agent_asked_to_end_is_still_to_end() {
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
fn who_is_promoted_while_its_input_is_on_its_way_starts_with_it_and_not_before() {
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
    assert_eq!(starts(Vec::new()), [true, false], "there is room");
}

#[test]
fn a_word_about_an_attempt_counts_from_its_jobs_manager_only() {
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
