//! Clusters in which job managers place their tasks themselves: how many probes there are and where, that tasks run on
//! nodes that are ready, and that no resources are booked.

use crate::world::{World, baselines, job, stage};
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{JobAction, JobOutcome, ToMaster};
use amalgam_core::role::Role;
use amalgam_core::vocabulary::{Chance, Constraint, Duration, JobSpec, NodeId, Resources, StageSpec};
use std::collections::BTreeSet;

const CORE: Resources = Resources::new(1_000, 0);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn seeded(seed: u64) -> Preset {
    let mut preset = Preset::SPARROW;
    preset.seed = seed;
    preset
}

fn probes(world: &World) -> usize {
    world.log.iter().filter(|line| line.contains(": probe p")).count()
}

/// The nodes on which tasks became processes.
fn launched_on(world: &World) -> BTreeSet<usize> {
    (0..world.nodes.len()).filter(|&node| !world.nodes[node].executor.launched.is_empty()).collect()
}

#[test]
fn a_batch_is_probed_for_as_a_whole_and_each_stage_is_a_batch() {
    let mut world = World::with_nodes(Preset::SPARROW, 20, CORE);
    world.verbose = true;
    let mut second = stage("second", 4, "1s", 1_000);
    second.after = vec![0];
    let id = world.submit(job(vec![stage("first", 7, "1s", 1_000), second]));
    assert_eq!(probes(&world), 14);
    world.run_for(Duration::from_millis(1_500));
    assert_eq!(probes(&world), 14 + 8);
    assert_eq!(world.running_tasks().len(), 4, "no task waits while nodes are idle");
    world.run_for(seconds(1));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}

/// Submits a job with one task. Returns why it has no node.
fn why(world: &mut World, cores: u32, zone: &str) -> String {
    let stage =
        StageSpec { constraints: vec![Constraint::parse(zone).unwrap()], ..stage("only", 1, "1s", 1_000 * cores) };
    let id = world.submit(JobSpec { wait_for_nodes: true, ..job(vec![stage]) });
    let server = world.server.as_ref().unwrap();
    let reasons = server.jobs[&id].explain();
    reasons.iter().map(|why| server.master.dispatch().describe_why(why)).collect::<Vec<_>>().join("; ")
}

const DRAINED: &str = "is drained (`amalgam node undrain` opens it)";

#[test]
fn tasks_that_suit_no_node_have_a_reason() {
    let mut world = World::new(Preset::SPARROW);
    world.start_server();
    assert_eq!(why(&mut world, 1, "zone=earth"), "no node has joined the cluster yet");
    for zone in ["mars", "moon"] {
        world.add_node(CORE, &[("zone", zone)]);
    }
    world.run_for(seconds(2));
    assert_eq!(why(&mut world, 1, "zone=earth"), "no node meets zone=earth");
    assert_eq!(why(&mut world, 3, "zone=moon"), "larger than every node: the node that fits best, host1, lacks 2 cpu");
    world.ask_master(ToMaster::Drain { node: NodeId(1), drained: true });
    world.run_for(seconds(2));
    assert_eq!(why(&mut world, 1, "zone=moon"), format!("host1 could run it, but {DRAINED}"));
    world.ask_master(ToMaster::Drain { node: NodeId(0), drained: true });
    world.run_for(seconds(2));
    let none = format!("no node takes work: host0 {DRAINED}; host1 {DRAINED}");
    assert_eq!(why(&mut world, 1, "zone=moon"), none);
}

#[test]
fn every_task_runs_where_its_constraints_are_met_and_where_it_fits() {
    for seed in 0..20 {
        let mut chance = Chance::new(seed, "nodes");
        let mut world = World::new(seeded(seed));
        world.start_server();
        world.add_node(Resources::new(2_000, 0), &[("arch", "arm64")]);
        for _ in 0..10 {
            let arch = ["x86_64", "arm64"][chance.below(2_u32) as usize];
            world.add_node(Resources::new(1_000 * (1 + chance.below(2)), 0), &[("arch", arch)]);
        }
        world.settle();
        let mut spec = job(vec![stage("large", 12, "1s", 1_500)]);
        spec.stages[0].constraints = vec![Constraint::parse("arch=arm64").unwrap()];
        let id = world.submit(spec);
        world.run_for(seconds(20));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
        let server = world.server.as_ref().unwrap();
        for node in server.master.describe(world.now).nodes {
            let suits = node.capacity == Resources::new(2_000, 0) && node.attributes.get("arch") == Some("arm64");
            assert!(suits || !launched_on(&world).contains(&(node.node.0 as usize)), "seed {seed}: {}", node.node);
        }
    }
}

#[test]
fn a_task_runs_on_the_first_of_its_probed_nodes_to_be_ready() {
    for seed in 0..20 {
        let mut world = World::with_nodes(seeded(seed), 2, CORE);
        world.submit(job(vec![stage("long", 1, "60s", 1_000), stage("short", 1, "2s", 1_000)]));
        let next = world.submit(job(vec![stage("next", 3, "1s", 1_000)]));
        world.run_for(Duration::from_millis(5_500));
        assert_eq!(
            world.outcome(next),
            Some(JobOutcome::Succeeded),
            "seed {seed}: all three tasks run after the short one"
        );
    }
}

#[test]
fn tasks_without_grants_are_not_booked() {
    let mut world = World::with_nodes(Preset::SPARROW, 2, CORE);
    let id = world.submit(job(vec![stage("only", 5, "10s", 1_000)]));
    world.run_for(seconds(1));
    assert_eq!(world.running_tasks().len(), 2);
    world.unlink(0);
    world.link(0);
    world.settle();
    world.kill_server();
    world.start_server();
    world.settle();
    let server = world.server.as_ref().unwrap();
    for node in server.master.describe(world.now).nodes {
        assert_eq!((node.bookings, node.free), (0, CORE), "{}", node.node);
    }
    assert_eq!(world.running_tasks().len(), 2);
    world.run_for(seconds(60));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    assert_eq!(world.losses().len(), 0);
    assert!(world.launches().values().all(|attempts| attempts.len() == 1));
}

#[test]
fn a_held_job_has_no_probes_and_a_drained_node_gets_no_task() {
    let mut world = World::with_nodes(Preset::SPARROW, 2, CORE);
    let blocker = world.submit(job(vec![stage("blocker", 2, "2s", 1_000)]));
    let held = world.submit(job(vec![stage("held", 2, "1s", 1_000)]));
    world.control(held, JobAction::Hold);
    world.ask_master(amalgam_core::protocol::ToMaster::Drain { node: NodeId(1), drained: true });
    world.run_for(seconds(5));
    assert_eq!((world.outcome(blocker), world.outcome(held)), (Some(JobOutcome::Succeeded), None));
    world.control(held, JobAction::Release);
    world.run_for(seconds(3));
    assert_eq!(world.outcome(held), Some(JobOutcome::Succeeded));
    let of_held = world.nodes[1].executor.launched.iter().filter(|(task, _)| task.job == held).count();
    assert_eq!(of_held, 0);
}

/// Number of probes at each node.
fn waiting_probes(world: &World) -> Vec<usize> {
    world.nodes.iter().map(|host| host.agent.as_ref().unwrap().probes().count()).collect()
}

#[test]
fn no_probe_stays_at_a_node_that_is_drained() {
    let mut world = World::with_nodes(Preset::SPARROW, 2, CORE);
    world.submit(job(vec![stage("blocker", 2, "60s", 1_000)]));
    world.submit(job(vec![stage("waits", 3, "1s", 1_000)]));
    assert_eq!(waiting_probes(&world), [3, 3]);
    world.ask_master(amalgam_core::protocol::ToMaster::Drain { node: NodeId(1), drained: true });
    world.run_for(seconds(1));
    assert_eq!(waiting_probes(&world), [6, 0]);
}

#[test]
fn a_node_that_cannot_launch_gets_no_second_task_before_its_pause_is_over() {
    let mut world = World::with_nodes(Preset::SPARROW, 1, CORE);
    world.nodes[0].executor.fault = Some("no space left".to_owned());
    let id = world.submit(job(vec![stage("only", 1, "1s", 1_000)]));
    world.run_for(seconds(5));
    assert_eq!(world.outcome(id), None);
    world.nodes[0].executor.fault = None;
    world.run_for(seconds(10));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}

#[test]
fn a_node_that_could_not_launch_is_tried_again_even_if_the_master_was_not_notified() {
    let mut world = World::with_nodes(Preset::SPARROW, 1, CORE);
    world.nodes[0].executor.fault = Some("no space left".to_owned());
    let id = world.submit_without_delivery(job(vec![stage("only", 1, "1s", 1_000)]));
    let has_ended = |world: &World| world.nodes[0].agent.as_ref().unwrap().describe(world.now).unacknowledged > 0;
    while !has_ended(&world) {
        world.sync();
        assert!(world.deliver_one());
    }
    // The agent's messages at this time are lost; it repeats only the end.
    world.kill_server();
    world.nodes[0].executor.fault = None;
    world.start_server();
    world.settle();
    world.run_for(seconds(5));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}

#[test]
fn without_probes_a_task_waits_at_the_node_that_was_chosen_for_it() {
    for preset in [baselines::RANDOM, baselines::POWER_OF_TWO] {
        let mut world = World::with_nodes(preset, 3, CORE);
        world.verbose = true;
        let id = world.submit(job(vec![stage("only", 60, "1s", 1_000)]));
        let waiting = world.nodes.iter().map(|host| host.agent.as_ref().unwrap().describe(world.now).queued.len());
        assert_eq!((waiting.sum::<usize>(), world.running_tasks().len(), probes(&world)), (57, 3, 0));
        world.run_for(seconds(60));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    }
}

#[test]
fn of_two_random_nodes_the_one_with_the_shorter_queue_is_chosen() {
    let longest = |preset: Preset| {
        let mut world = World::with_nodes(preset, 20, CORE);
        for _ in 0..20 {
            world.submit(job(vec![stage("s", 10, "60s", 1_000)]));
            world.run_for(seconds(2));
        }
        let queued = |host: &crate::world::NodeHost| host.agent.as_ref().unwrap().describe(world.now).queued.len();
        world.nodes.iter().map(queued).max().unwrap()
    };
    let (random, better_of_two) = (longest(baselines::RANDOM), longest(baselines::POWER_OF_TWO));
    assert!((9..13).contains(&better_of_two) && random > better_of_two, "{random} and {better_of_two}, mean 9");
}

#[test]
fn a_job_that_waits_for_nodes_starts_when_some_join() {
    let mut world = World::new(Preset::SPARROW);
    world.start_server();
    let mut spec = job(vec![stage("only", 3, "1s", 1_000)]);
    spec.wait_for_nodes = true;
    let id = world.submit(spec);
    world.run_for(seconds(5));
    world.add_node(CORE, &[]);
    world.settle();
    world.run_for(seconds(4));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}
