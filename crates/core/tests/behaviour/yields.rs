//! Opportunistic attempts that yield their CPU to guaranteed work: which attempts yield and when, what they hold
//! meanwhile, when they get their CPU back, and how their clocks count.

use crate::world::{World, job, sealing, stage};
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{JobOutcome, Launch, ToNode};
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{
    AttemptId, Duration, EndReason, Ended, Epoch, ExecutionType, Generation, Items, JobId, NodeId, Resources,
    StageSpec, TaskId, TaskSet, TaskShape, TaskTemplate, Token,
};
use std::sync::Arc;

use ExecutionType::{Auto, Guaranteed, Opportunistic};

const NODE: NodeId = NodeId(0);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn of_kind(execution: ExecutionType, resources: Resources, lengths: &[&str]) -> StageSpec {
    let mut items = Items::default();
    lengths.iter().for_each(|length| items.push(length).expect("short"));
    let mut stage = StageSpec { tasks: TaskSet::Each(items), ..stage("only", 1, "1s", resources.cpu_millis()) };
    stage.resources.basic = resources;
    (stage.execution, stage.expected) = (execution, Some(seconds(40)));
    stage
}

/// Seventy hundredths of the cluster may be guaranteed, and decisions are final.
fn preset(yields_for: Option<Duration>) -> Preset {
    let mut preset = Preset::APOLLO;
    let queueing = preset.entitled_mut().expect("the preset has entitlements");
    (queueing.yields_for, queueing.corrections, queueing.keep_freed) = (yields_for, None, Duration::ZERO);
    queueing.allowance.starved_after = seconds(1_000);
    preset.entitled_mut().unwrap().guaranteed = 70;
    preset
}

/// A node of two cores, of which 1.4 may be guaranteed, and a job with a guaranteed and an opportunistic task of one
/// core each.
fn shared(yields_for: Option<Duration>, memory: u32) -> (World, JobId) {
    let mut world = World::with_nodes(preset(yields_for), 1, Resources::new(2_000, 1_000));
    let mut spec = job(vec![of_kind(Auto, Resources::new(1_000, memory), &["60s", "40s"])]);
    spec.stages[0].timeout = Some(seconds(62));
    let id = world.submit(spec);
    world.run_for(seconds(2));
    assert_eq!((running(&world, id), yielding(&world).len()), (2, 0));
    (world, id)
}

fn disturb(world: &mut World, length: &str) -> JobId {
    let id = world.submit(job(vec![of_kind(Guaranteed, Resources::new(400, 200), &[length])]));
    world.run_for(seconds(2));
    assert_eq!(running(world, id), 1, "{}", world.log.join("\n"));
    id
}

fn running(world: &World, job: JobId) -> usize {
    world.running_tasks().iter().filter(|task| task.job == job).count()
}

fn yielding(world: &World) -> Vec<AttemptId> {
    world.nodes[0].executor.yielding.keys().copied().collect()
}

/// The ends of the job's attempts, in order of time.
fn ends(world: &World, job: JobId) -> Vec<Arc<Ended>> {
    let of_job = world.disk.iter().filter_map(|change| match change {
        Change::Finished { task, ended, .. } if task.job == job => Some(Arc::clone(ended)),
        _ => None,
    });
    of_job.collect()
}

fn free_cpu(world: &World) -> u32 {
    world.nodes[0].agent.as_ref().expect("the agent runs").free().cpu_millis()
}

fn succeeded(world: &World, jobs: &[JobId]) {
    for job in jobs {
        assert_eq!(world.outcome(*job), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    }
}

/// For the job's attempt that yielded: how long it took in total, and how long of that it yielded.
fn took(world: &World, job: JobId) -> (Duration, Duration) {
    let ends = ends(world, job);
    let one = ends.iter().find(|end| end.usage.yielded > Duration::ZERO).expect("one attempt yielded");
    (one.usage.wall, one.usage.yielded)
}

#[test]
fn an_attempt_that_yields_continues_once_there_is_cpu_for_it() {
    let (mut world, first) = shared(Some(seconds(300)), 300);
    let second = disturb(&mut world, "30s");
    assert_eq!((running(&world, first), yielding(&world).len(), free_cpu(&world)), (2, 1, 600));
    world.run_for(seconds(30));
    assert_eq!((yielding(&world).len(), free_cpu(&world)), (0, 0), "{}", world.log.join("\n"));
    world.run_for(seconds(100));
    succeeded(&world, &[first, second]);
    // It keeps to its timeout of 62 s.
    assert_eq!(took(&world, first), (seconds(70), seconds(30)));
    assert_eq!(ends(&world, first).len(), 2, "no attempt was stopped");
    let reported = |record: &&Record| matches!(record, Record::Yielding { .. } | Record::Resumed { .. });
    assert_eq!(world.records.iter().filter(reported).count(), 2);
}

#[test]
fn an_attempt_is_preempted_if_memory_is_lacking_or_yielding_is_off() {
    for (yields_for, memory) in [(Some(seconds(300)), 450), (None, 300)] {
        let (mut world, first) = shared(yields_for, memory);
        let second = disturb(&mut world, "10s");
        let reasons: Vec<EndReason> = ends(&world, first).iter().map(|end| end.reason.clone()).collect();
        assert_eq!((reasons, yielding(&world).len()), (vec![EndReason::Preempted], 0));
        world.run_for(seconds(200));
        succeeded(&world, &[first, second]);
    }
}

#[test]
fn an_attempt_that_yields_for_too_long_is_stopped() {
    let (mut world, first) = shared(Some(seconds(20)), 300);
    let second = disturb(&mut world, "50s");
    world.run_for(seconds(17));
    assert_eq!(yielding(&world).len(), 1);
    world.run_for(seconds(2));
    let ends = ends(&world, first);
    assert_eq!((ends.len(), ends[0].reason.clone()), (1, EndReason::Preempted));
    assert!(ends[0].message.as_ref().is_some_and(|why| why.contains("to make room for attempt")), "{ends:?}");
    world.run_for(seconds(200));
    succeeded(&world, &[first, second]);
}

#[test]
fn a_promoted_attempt_without_cpu_for_too_long_is_stopped() {
    let (mut world, first) = shared(Some(seconds(20)), 300);
    let second = disturb(&mut world, "50s");
    let attempt = yielding(&world)[0];
    world.report_node(NODE, first, ToNode::Promote { attempt, grant: None });
    world.run_for(seconds(17));
    assert_eq!(yielding(&world), [attempt]);
    world.run_for(seconds(2));
    let ends = ends(&world, first);
    assert_eq!((ends.len(), ends[0].reason.clone(), yielding(&world).len()), (1, EndReason::Preempted, 0));
    world.run_for(seconds(200));
    succeeded(&world, &[first, second]);
}

#[test]
fn repeated_yields_add_up() {
    let (mut world, first) = shared(Some(seconds(30)), 300);
    // It yields for 20 s, and again after it has run for 4 s.
    for _ in 0..2 {
        disturb(&mut world, "20s");
        world.run_for(seconds(11));
        assert_eq!((ends(&world, first).len(), yielding(&world).len()), (0, 1), "{}", world.log.join("\n"));
        world.run_for(seconds(11));
    }
    let ends = ends(&world, first);
    assert_eq!((ends.len(), ends[0].reason.clone()), (1, EndReason::Preempted), "{}", world.log.join("\n"));

    // It is not stopped if it ran for longer in between.
    let (mut world, first) = shared(Some(seconds(30)), 300);
    for _ in 0..2 {
        disturb(&mut world, "18s");
        world.run_for(seconds(30));
    }
    world.run_for(seconds(100));
    succeeded(&world, &[first]);
    assert!(self::ends(&world, first).iter().all(|end| end.reason.is_success()), "{}", world.log.join("\n"));
}

#[test]
fn an_attempt_promoted_while_it_yields_waits_only_for_guaranteed_work() {
    let (mut world, first) = shared(Some(seconds(40)), 300);
    let second = disturb(&mut world, "30s");
    let attempt = yielding(&world)[0];
    world.report_node(NODE, first, ToNode::Promote { attempt, grant: None });
    let third = world.submit(job(vec![of_kind(Opportunistic, Resources::new(500, 100), &["20s"])]));
    world.run_for(seconds(20));
    // No opportunistic attempt starts before it.
    assert_eq!((yielding(&world), running(&world, third), free_cpu(&world)), (vec![attempt], 0, 600));
    world.run_for(seconds(10));
    assert_eq!((yielding(&world).len(), running(&world, third)), (0, 0));
    world.run_for(seconds(200));
    succeeded(&world, &[first, second, third]);
    assert_eq!(took(&world, first), (seconds(70), seconds(30)));
}

#[test]
fn a_promoted_attempt_takes_its_cpu_from_opportunistic_ones() {
    let mut world = World::with_nodes(preset(Some(seconds(300))), 1, Resources::new(2_000, 1_000));
    let of_half = |execution, cpu_millis| job(vec![of_kind(execution, Resources::new(cpu_millis, 100), &["60s"])]);
    let submit = |world: &mut World, execution, cpu_millis| {
        let id = world.submit(of_half(execution, cpu_millis));
        world.run_for(seconds(2));
        id
    };
    let first = submit(&mut world, Guaranteed, 1_000);
    let (older, newer) = (submit(&mut world, Opportunistic, 500), submit(&mut world, Opportunistic, 500));
    let last = submit(&mut world, Opportunistic, 400);
    assert_eq!([first, older, newer, last].map(|job| running(&world, job)), [1, 1, 1, 0]);
    let waiting =
        world.intercepted_launches.iter().map(|(_, launch)| launch.attempt).find(|attempt| attempt.job == last);
    let attempt = waiting.expect("the attempt waits");
    world.report_node(NODE, last, ToNode::Promote { attempt, grant: None });
    world.settle();
    let attempt = yielding(&world)[0];
    assert_eq!((attempt.job, yielding(&world).len()), (newer, 1), "the newest loses least");
    world.report_node(NODE, newer, ToNode::Promote { attempt, grant: None });
    world.settle();
    assert_eq!((yielding(&world).len(), yielding(&world)[0].job, free_cpu(&world)), (1, older, 100));
    world.run_for(seconds(300));
    succeeded(&world, &[first, older, newer, last]);
}

#[test]
fn new_opportunistic_work_starts_after_yielding_attempts_have_their_cpu() {
    let (mut world, first) = shared(Some(seconds(300)), 300);
    let second = disturb(&mut world, "30s");
    let third = world.submit(job(vec![of_kind(Opportunistic, Resources::new(500, 100), &["20s"])]));
    world.run_for(seconds(20));
    assert_eq!((running(&world, third), free_cpu(&world)), (0, 600), "there is room for the third job");
    world.run_for(seconds(10));
    assert_eq!((running(&world, third), yielding(&world).len()), (0, 0), "{}", world.log.join("\n"));
    world.run_for(seconds(200));
    succeeded(&world, &[first, second, third]);
}

#[test]
fn a_yielding_attempt_survives_an_agent_restart() {
    for was_promoted in [false, true] {
        let (mut world, first) = shared(Some(seconds(40)), 300);
        let second = disturb(&mut world, "30s");
        let attempt = yielding(&world)[0];
        if was_promoted {
            world.report_node(NODE, first, ToNode::Promote { attempt, grant: None });
            world.settle();
        }
        world.kill_agent(0);
        world.start_agent(0);
        world.link(0);
        world.run_for(seconds(3));
        assert_eq!((yielding(&world), free_cpu(&world)), (vec![attempt], 600));
        world.run_for(seconds(200));
        succeeded(&world, &[first, second]);
        assert_eq!((took(&world, first), ends(&world, first).len()), ((seconds(70), seconds(30)), 2));
    }
}

#[test]
fn a_restarted_agent_stops_attempts_that_yield_for_too_long() {
    let (mut world, first) = shared(Some(seconds(20)), 300);
    disturb(&mut world, "60s");
    world.run_for(seconds(10));
    world.kill_agent(0);
    world.start_agent(0);
    world.link(0);
    world.run_for(seconds(7));
    assert_eq!(yielding(&world).len(), 1);
    world.run_for(seconds(2));
    assert_eq!(ends(&world, first)[0].reason, EndReason::Preempted);
}

#[test]
fn an_agent_without_yielding_resumes_attempts_if_there_is_room_and_stops_the_others() {
    for (guaranteed, cpu_millis) in [("5s", 1_000), ("60s", 0)] {
        let (mut world, first) = shared(Some(seconds(300)), 300);
        disturb(&mut world, guaranteed);
        let attempt = yielding(&world)[0];
        world.kill_agent(0);
        if cpu_millis > 0 {
            world.run_for(seconds(10));
        }
        world.preset = preset(None);
        world.start_agent(0);
        world.link(0);
        world.run_for(seconds(3));
        assert_eq!(yielding(&world), [], "{}", world.log.join("\n"));
        let is_running = world.nodes[0].executor.running.contains_key(&attempt);
        assert_eq!((is_running, ends(&world, first).len()), (cpu_millis > 0, usize::from(cpu_millis == 0)));
        world.run_for(seconds(300));
        succeeded(&world, &[first]);
    }
}

// ---- one node, with launches from the test --------------------------------------------------------------------------

/// The job of attempts that are launched on the node without a manager.
const OWN: JobId = JobId(77);

fn one_node(capacity: Resources) -> World {
    World::with_nodes(preset(Some(seconds(300))), 1, capacity)
}

/// Launches an attempt that is expected to run for 40 s.
fn launch(world: &mut World, number: u32, execution: ExecutionType, resources: Resources, length: &str) -> AttemptId {
    launch_until(world, number, execution, resources, length, None)
}

fn launch_until(
    world: &mut World,
    number: u32,
    execution: ExecutionType,
    resources: Resources,
    length: &str,
    timeout: Option<Duration>,
) -> AttemptId {
    let attempt = AttemptId { job: OWN, epoch: Epoch(1), number };
    let shape = Arc::new(TaskShape { resources, execution });
    let program = stage("only", 1, length, 0).program;
    let template = Arc::new(TaskTemplate { shape, program, timeout, ..TaskTemplate::default() });
    let mut launch = Launch {
        attempt,
        task: TaskId { job: OWN, stage: 0, index: number },
        grant: None,
        probe: None,
        is_of_gang: false,
        shared_gpu: None,
        template,
        index: u64::from(number),
        item: None,
        expected: Some(seconds(40)),
        weight: 1,
        inputs: Arc::default(),
        prediction: None,
        token: Token::default(),
    };
    launch.token = sealing(Epoch(1)).token(NODE, Generation(0), &launch.allocation());
    world.report_node(NODE, OWN, ToNode::Launch(Box::new(launch)));
    world.settle();
    attempt
}

fn promote(world: &mut World, attempt: AttemptId) {
    world.report_node(NODE, OWN, ToNode::Promote { attempt, grant: None });
    world.settle();
}

fn there(world: &World) -> Vec<AttemptId> {
    world.nodes[0].executor.running.keys().copied().collect()
}

/// A node of two cores. Opportunistic attempts hold one core and half a core; guaranteed work of one and a half takes
/// the one core.
fn half_yields() -> (World, [AttemptId; 3]) {
    let mut world = one_node(Resources::new(2_000, 1_000));
    let older = launch(&mut world, 0, Opportunistic, Resources::new(1_000, 300), "60s");
    world.run_for(seconds(1));
    let newer = launch(&mut world, 1, Opportunistic, Resources::new(500, 500), "60s");
    world.run_for(seconds(1));
    let guaranteed = launch(&mut world, 2, Guaranteed, Resources::new(1_500, 100), "20s");
    (world, [older, newer, guaranteed])
}

#[test]
fn no_more_attempts_yield_than_needed() {
    let (world, [older, newer, guaranteed]) = half_yields();
    assert_eq!(there(&world), [older, newer, guaranteed]);
    assert_eq!((yielding(&world), free_cpu(&world)), (vec![older], 0), "the newer attempt's CPU is not needed");
}

#[test]
fn no_attempt_is_preempted_for_one_that_cannot_start_before_a_yielding_one() {
    let (mut world, [older, newer, guaranteed]) = half_yields();
    promote(&mut world, older);
    // There would be memory for it if the newer attempt were stopped, but the CPU goes to the older one first.
    let waits = launch(&mut world, 3, Guaranteed, Resources::new(400, 400), "1s");
    world.run_for(seconds(10));
    assert_eq!((there(&world), yielding(&world)), (vec![older, newer, guaranteed], vec![older]));
    world.run_for(seconds(12));
    let ran = world.nodes[0].executor.launched.iter().any(|(_, attempt)| *attempt == waits);
    assert_eq!((yielding(&world), ran), (vec![], true), "{}", world.log.join("\n"));
}

/// An opportunistic attempt that has run for 10 s of its 60 s yields its core for 20 s, becomes guaranteed, and
/// continues.
fn resumed(timeout: Option<Duration>) -> (World, AttemptId) {
    let core = Resources::new(1_000, 0);
    let mut world = one_node(core);
    let attempt = launch_until(&mut world, 0, Opportunistic, core, "60s", timeout);
    world.run_for(seconds(10));
    launch(&mut world, 1, Guaranteed, core, "20s");
    assert_eq!(yielding(&world), [attempt]);
    promote(&mut world, attempt);
    world.run_for(seconds(20));
    assert_eq!((there(&world), yielding(&world)), (vec![attempt], vec![]));
    (world, attempt)
}

#[test]
fn yielding_does_not_change_the_remaining_run_time() {
    let (mut world, _) = resumed(None);
    world.run_for(seconds(5));
    let waits = launch(&mut world, 2, Guaranteed, Resources::new(1_000, 0), "1s");
    world.run_for(seconds(1));
    let starts: Vec<Duration> = world
        .reported_waits
        .iter()
        .flat_map(|reported| &reported.starts)
        .filter(|(attempt, _)| *attempt == waits)
        .map(|(_, start)| *start)
        .collect();
    assert_eq!(starts, [Duration::from_millis(24_990)], "the attempt has run for 15 of 40 s");
}

#[test]
fn a_timeout_stops_counting_while_the_attempt_yields() {
    let (mut world, attempt) = resumed(Some(seconds(30)));
    world.run_for(Duration::from_millis(19_900));
    assert_eq!(there(&world), [attempt]);
    world.run_for(Duration::from_millis(200));
    assert_eq!(world.nodes[0].executor.ends[&attempt].reason, EndReason::Timeout);
}
