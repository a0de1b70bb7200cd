//! What a node does with launches whose token is not valid for them, and that it never refuses authentic ones.

use crate::world::{World, baselines, job, sealing, stage};
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{JobOutcome, Launch, ToNode};
use amalgam_core::role::{Record, TokenFault};
use amalgam_core::vocabulary::*;
use std::sync::Arc;

const CAPACITY: Resources = Resources::new(4_000, 0);
const FIRST: NodeId = NodeId(0);

/// This many times the time for which a generation of tokens is the newest.
const fn lives(many: u64) -> Duration {
    Duration::from_secs(30 * many)
}

fn world(preset: Preset, nodes: u32) -> World {
    let mut world = World::new(preset);
    world.settings.token_life = lives(1);
    world.start_server();
    (0..nodes).for_each(|_| world.add_node(CAPACITY, &[]));
    world.settle();
    world
}

/// A test cluster with a job that runs one long task, and the launch of that task on the first node.
fn with_a_task(preset: Preset, nodes: u32) -> (World, Launch) {
    let mut world = world(preset, nodes);
    world.submit(job(vec![stage("s", 1, "900s", 1_000)]));
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.launches().len(), 1);
    let launch = world.intercepted_launches.iter().find(|(node, _)| *node == FIRST).map(|(_, launch)| launch.clone());
    (world, launch.expect("the task was launched on the first node"))
}

/// The attempts that the nodes refused, and why.
fn refusals(world: &World) -> Vec<(NodeId, AttemptId, TokenFault)> {
    let refused = world.records.iter().filter_map(|record| match *record {
        Record::TokenRefused { attempt, node, why, .. } => Some((node, attempt, why)),
        _ => None,
    });
    refused.collect()
}

/// Sends a launch to a node. Checks that no attempt starts or is written off because of it.
fn intrude(world: &mut World, node: NodeId, launch: &Launch) {
    let (launched, lost) = (world.launches(), world.losses());
    world.report_node(node, launch.attempt.job, ToNode::Launch(Box::new(launch.clone())));
    world.settle();
    assert_eq!(world.launches(), launched, "{launch:?}");
    assert_eq!(world.losses(), lost, "{launch:?}");
}

#[test]
fn a_launch_that_was_altered_is_refused_without_an_answer() {
    let (mut world, honest) = with_a_task(Preset::FIFO, 1);
    let attempt = AttemptId { number: 7, ..honest.attempt };
    let shape = TaskShape { resources: Resources::new(3_000, 0), ..*honest.template.shape };
    let larger = Arc::new(TaskTemplate { shape: Arc::new(shape), ..honest.template.as_ref().clone() });
    let mut forged = vec![
        Launch { attempt, ..honest.clone() },
        Launch { attempt, template: larger, ..honest.clone() },
        Launch { attempt, task: TaskId { index: 5, ..honest.task }, ..honest.clone() },
        Launch { attempt, grant: None, ..honest.clone() },
        Launch { attempt, token: Token::default(), ..honest.clone() },
        // If the node believed this epoch, it would refuse all messages of the present server.
        Launch { attempt: AttemptId { epoch: Epoch(9), ..attempt }, ..honest.clone() },
    ];
    let mut by_another_life = Launch { attempt, ..honest.clone() };
    by_another_life.token = sealing(Epoch(2)).token(FIRST, Generation(0), &by_another_life.allocation());
    forged.push(by_another_life);
    for launch in &forged {
        intrude(&mut world, FIRST, launch);
    }
    let expected = forged.iter().map(|launch| (FIRST, launch.attempt, TokenFault::NotAuthentic));
    assert_eq!(refusals(&world), expected.collect::<Vec<_>>());

    world.submit(job(vec![stage("t", 1, "900s", 1_000)]));
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.launches().len(), 2, "the node accepts authentic launches");
}

#[test]
fn a_launch_for_one_node_is_refused_by_another() {
    for preset in [Preset::FIFO, baselines::RANDOM] {
        let mut world = world(preset, 2);
        world.submit(job(vec![stage("s", 1, "900s", 1_000)]));
        world.run_for(Duration::from_secs(1));
        let (node, honest) = world.intercepted_launches[0].clone();
        let other = NodeId(1 - node.0);
        intrude(&mut world, other, &honest);
        assert_eq!(refusals(&world), [(other, honest.attempt, TokenFault::NotAuthentic)]);
    }
}

#[test]
fn a_launch_of_an_expired_generation_is_refused() {
    let (mut world, honest) = with_a_task(Preset::FIFO, 1);
    world.run_for(lives(2) + Duration::from_secs(5));
    // The node has not seen this attempt: the launch was on its way all the time.
    let attempt = AttemptId { number: 7, ..honest.attempt };
    let mut late = Launch { attempt, ..honest };
    late.token = sealing(Epoch(1)).token(FIRST, Generation(0), &late.allocation());
    intrude(&mut world, FIRST, &late);
    assert_eq!(refusals(&world), [(FIRST, attempt, TokenFault::Expired)]);
}

#[test]
fn a_task_whose_launch_expired_is_launched_again_with_a_new_grant() {
    let mut world = world(Preset::FIFO, 1);
    let spec = job(vec![stage("s", 1, "1s", 4_000)]);
    world.hold_launches = true;
    let id = world.submit(spec);
    world.run_for(lives(2) + Duration::from_secs(5));
    assert_eq!(world.launches().len(), 0);
    world.hold_launches = false;
    world.deliver_held_launches();
    world.run_for(Duration::from_secs(5));
    let [(_, attempt, why)] = refusals(&world)[..] else { panic!("{:?}", refusals(&world)) };
    assert_eq!((attempt.number, why), (0, TokenFault::Expired));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "the job succeeds without a retry");
    let records = world.records.iter();
    let retried = records.filter(|record| matches!(record, Record::Retried { failures: 0, costs_none: true, .. }));
    assert_eq!(retried.count(), 1);
}

#[test]
fn tokens_use_new_generations_under_every_preset() {
    for preset in Preset::all().chain(baselines::ALL.iter().copied()) {
        let mut world = world(preset, 2);
        let mut last = JobId(0);
        for _ in 0..5 {
            last = world.submit(job(vec![stage("s", 4, "2s", 2_000)]));
            world.run_for(lives(1));
        }
        let newest = world.intercepted_launches.iter().map(|(_, launch)| launch.token.generation).max();
        assert!(newest >= Some(Generation(2)), "{}: {newest:?}", preset.name());
        assert_eq!(refusals(&world), [], "{}", preset.name());
        assert_eq!(world.outcome(last), Some(JobOutcome::Succeeded), "{}", preset.name());
    }
}

#[test]
fn a_repeated_launch_of_a_forgotten_attempt_starts_no_task() {
    for preset in [Preset::FIFO, baselines::RANDOM] {
        let mut world = world(preset, 1);
        let id = world.submit(job(vec![stage("s", 2, "1s", 1_000)]));
        world.run_for(Duration::from_secs(5));
        assert!(world.outcome(id).is_some());
        for (node, launch) in world.intercepted_launches.clone() {
            intrude(&mut world, node, &launch);
        }
        assert_eq!(refusals(&world), [], "{}: their tokens are valid", preset.name());
    }
}

#[test]
fn a_launch_that_was_written_off_starts_no_task_when_it_arrives() {
    for preset in [Preset::FIFO, baselines::RANDOM] {
        let mut world = world(preset, 1);
        world.hold_launches = true;
        world.submit(job(vec![stage("s", 2, "900s", 1_000)]));
        world.unlink(0);
        world.link(0);
        world.run_for(Duration::from_secs(5));
        assert_eq!(world.losses().len(), 2, "{}", preset.name());
        world.hold_launches = false;
        world.deliver_held_launches();
        world.settle();
        let launches = world.launches();
        assert_eq!(launches.len(), 2, "{}", preset.name());
        let once = launches.values().all(|attempts| attempts.len() == 1);
        assert!(once && launches.values().flatten().all(|attempt| attempt.number >= 2), "{launches:?}");
    }
}

#[test]
fn a_node_cannot_write_off_an_attempt_of_another_node() {
    let mut world = world(Preset::FIFO, 2);
    world.submit(job(vec![stage("s", 1, "900s", 1_000)]));
    world.run_for(Duration::from_secs(1));
    let (node, honest) = world.intercepted_launches[0].clone();
    world.kill_server();
    world.start_server();
    world.settle();
    // The key of the token is gone, so the launch cannot be checked; the node reports that it does not accept it.
    intrude(&mut world, NodeId(1 - node.0), &honest);
    assert_eq!(refusals(&world), []);
    assert_eq!(world.running_tasks().len(), 1);
}

#[test]
fn authentic_launches_are_accepted_after_restarts() {
    for preset in [Preset::FIFO, Preset::SPARROW, Preset::MERCURY] {
        let mut world = world(preset, 2);
        let id = world.submit(job(vec![stage("s", 400, "3s", 1_000)]));
        world.run_for(lives(3));
        for _ in 0..3 {
            world.run_for(Duration::from_secs(4));
            world.kill_server();
            world.run_for(Duration::from_secs(1));
            world.start_server();
            world.settle();
            world.run_for(Duration::from_secs(4));
            world.kill_agent(0);
            world.start_agent(0);
            world.settle();
            world.unlink(1);
            world.link(1);
            world.settle();
        }
        world.run_for(lives(4));
        assert_eq!(refusals(&world), [], "{}", preset.name());
        assert!(world.outcome(id).is_some(), "{}", preset.name());
    }
}
