//! Nodes that fail tasks, repeatedly or all at once: which failures count against a node, with what effect, and for how
//! long.

use crate::world::{World, job, stage};
use amalgam_core::policy::reliability::Doubt;
use amalgam_core::preset::{Choice, Preset};
use amalgam_core::protocol::{JobOutcome, ToClient, ToMaster};
use amalgam_core::role::{Change, LostCause};
use amalgam_core::vocabulary::{Duration, InputSpec, JobId, NodeId, Resources, StageSpec};

const FOUR: Resources = Resources::new(4_000, 0);
const FULL: &str = "no space left";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A cluster in which the weight of failures halves every minute.
fn world(preset: Preset) -> World {
    let mut world = World::new(preset);
    world.settings.reliability.half_life = seconds(60);
    world.start_server();
    world
}

fn with_nodes(preset: Preset, nodes: u32) -> World {
    let mut world = world(preset);
    for _ in 0..nodes {
        world.add_node(FOUR, &[]);
    }
    world.settle();
    world
}

fn tasks(count: u32, length: &str) -> StageSpec {
    StageSpec { expected: Duration::parse(length).ok(), ..stage("only", count, length, 1_000) }
}

/// Submits jobs of four tasks, one every four seconds, which fill a small part of the cluster.
fn submit_for(world: &mut World, length: Duration) -> Vec<JobId> {
    let end = world.now + length;
    let mut jobs = Vec::new();
    while world.now < end {
        jobs.push(world.submit(job(vec![tasks(4, "3s")])));
        world.run_for(seconds(4));
    }
    jobs
}

/// Number of attempts launched on each node after the first `since` changes.
fn launches(world: &World, since: usize) -> Vec<usize> {
    let mut launches = vec![0; world.nodes.len()];
    for change in &world.disk[since..] {
        if let Change::Launched { node, .. } = change {
            launches[node.0 as usize] += 1;
        }
    }
    launches
}

fn doubt(world: &World, node: u32) -> Option<Doubt> {
    let statuses = world.server.as_ref().expect("the server runs").master.node_statuses(world.now);
    statuses.into_iter().find(|status| status.node == NodeId(node)).expect("the node is known").doubt
}

fn doubted(world: &World) -> Vec<u32> {
    (0..world.nodes.len() as u32).filter(|node| doubt(world, *node).is_some()).collect()
}

fn all_succeeded(world: &World, jobs: &[JobId]) {
    assert!(jobs.iter().all(|job| world.outcome(*job) == Some(JobOutcome::Succeeded)), "{}", world.log.join("\n"));
}

/// The machines die with all their tasks, and start again after this time.
fn reboot(world: &mut World, nodes: &[usize], away: Duration) {
    for &node in nodes {
        world.kill_agent(node);
        world.kill_executor(node);
    }
    world.run_for(away);
    nodes.iter().for_each(|node| world.start_agent(*node));
    world.run_for(seconds(2));
}

// ---- a bad machine -------------------------------------------------------------------------------------------------

/// Launches at node 0, which cannot launch, and at each other node on average, in six minutes; then the same after the
/// node was repaired and some time has passed.
fn beside_a_bad_machine(penalty: u32) -> [(usize, usize); 2] {
    let mut preset = Preset::APOLLO;
    let Choice::EarliestCompletion(settings) = &mut preset.entitled_mut().unwrap().choice else {
        panic!("the preset estimates completion times")
    };
    settings.penalty = penalty;
    let mut world = with_nodes(preset, 8);
    world.nodes[0].executor.fault = Some(FULL.to_owned());
    let jobs = submit_for(&mut world, seconds(60));
    all_succeeded(&world, &jobs[..10]);
    let mut found = Vec::new();
    for _ in 0..2 {
        let before = world.disk.len();
        submit_for(&mut world, seconds(360));
        let launches = launches(&world, before);
        found.push((launches[0], launches[1..].iter().sum::<usize>() / 7));
        assert!(found.len() == 1 || doubted(&world).is_empty(), "the node was repaired");
        world.nodes[0].executor.fault = None;
        submit_for(&mut world, seconds(420));
    }
    [found[0], found[1]]
}

#[test]
fn a_failing_node_gets_fewer_tasks_until_some_time_after_its_repair() {
    let [(failing, others), (repaired, beside)] = beside_a_bad_machine(200);
    assert!((1..=2).contains(&failing) && others >= 40, "{failing} on it, {others} on each other node");
    assert!(repaired * 3 >= beside * 2, "{repaired} on it, {beside} on each other node");
    // If a failure costs nothing, only the pauses keep tasks from the node.
    let [(failing, _), _] = beside_a_bad_machine(100);
    assert!(failing >= 4, "{failing} on it");
}

#[test]
fn the_doubt_about_a_node_is_reported_with_its_age() {
    let mut world = with_nodes(Preset::APOLLO, 4);
    world.nodes[2].executor.fault = Some(FULL.to_owned());
    world.submit(job(vec![tasks(64, "10s")]));
    world.run_for(seconds(12));
    assert_eq!(doubted(&world), [2]);
    let output = doubt(&world, 2).expect("the node is doubted");
    assert!((2..=4).contains(&output.failures) && output.success < 700_000, "{output:?}");
    assert!((8..=12).contains(&(output.since.as_millis() / 1_000)), "{output:?}");
    let status = world.server.as_ref().unwrap().master.node_statuses(world.now).swap_remove(2);
    assert!(status.is_avoided);
}

#[test]
fn failures_are_counted_under_every_preset_but_not_all_act_on_them() {
    let mut world = with_nodes(Preset::DRF, 3);
    world.nodes[0].executor.fault = Some(FULL.to_owned());
    world.submit(job(vec![tasks(64, "10s")]));
    world.run_for(seconds(9));
    assert_eq!(doubted(&world), [0]);
    assert!(!world.server.as_ref().unwrap().master.node_statuses(world.now)[0].is_avoided);
}

#[test]
fn a_node_that_reboots_with_its_tasks_is_doubted_and_a_briefly_silent_one_is_not() {
    let mut world = with_nodes(Preset::APOLLO, 4);
    world.submit(job(vec![tasks(16, "2h")]));
    world.run_for(seconds(2));
    // The node no longer knows the attempts. It is back before it counts as lost.
    reboot(&mut world, &[1], seconds(5));
    let unknown = world.losses().into_values().filter(|cause| *cause == LostCause::Unknown).count();
    assert_eq!(unknown, 4, "{:?}", world.losses());
    assert_eq!(doubted(&world), [1]);
    world.unlink(2);
    world.run_for(seconds(5));
    world.link(2);
    world.run_for(seconds(2));
    assert_eq!(doubted(&world), [1], "its attempts continue");
    let mut world = with_nodes(Preset::APOLLO, 4);
    reboot(&mut world, &[3], seconds(30));
    assert_eq!(doubted(&world), [3], "the node was lost");
}

#[test]
fn a_node_with_recent_successes_is_not_doubted_for_one_failure() {
    for restarted in [false, true] {
        let mut world = with_nodes(Preset::APOLLO, 2);
        world.submit(job(vec![tasks(40, "1s")]));
        world.run_for(seconds(20));
        if restarted {
            world.kill_agent(0);
            world.start_agent(0);
            world.run_for(seconds(900));
            world.submit(job(vec![tasks(24, "1s")]));
            world.run_for(seconds(8));
        }
        world.submit(job(vec![tasks(8, "1h")]));
        world.run_for(seconds(2));
        world.kill_executor(0);
        world.run_for(seconds(1));
        assert_eq!(doubted(&world), [0; 0]);
        world.run_for(seconds(900));
        world.kill_executor(0);
        world.run_for(seconds(1));
        assert_eq!(doubted(&world), [0], "the successes were long ago");
    }
}

#[test]
fn repeated_failures_of_one_task_on_one_node_count_against_the_node() {
    let mut world = with_nodes(Preset::APOLLO, 1);
    world.nodes[0].executor.fault = Some(FULL.to_owned());
    world.submit(job(vec![tasks(1, "1s")]));
    world.run_for(seconds(20));
    let output = doubt(&world, 0).expect("the node is doubted");
    assert!(output.failures >= 4 && output.success < 600_000, "{output:?}");
}

#[test]
fn an_unavailable_input_counts_half_against_its_reader_and_half_against_its_holder() {
    let mut world = with_nodes(Preset::FIFO, 2);
    world.verbose = true;
    (0..2).for_each(|node| world.nodes[node].executor.sends_wrong = 3);
    let write = StageSpec { outputs: vec!["o".to_owned()], ..stage("write", 2, "1s", 3_000) };
    let inputs = vec![InputSpec { stage: 0, files: "*".to_owned() }];
    let read = StageSpec { after: vec![0], inputs, ..stage("read", 1, "1s", 1_000) };
    let id = world.submit(job(vec![write, read]));
    world.run_for(seconds(20));
    all_succeeded(&world, &[id]);
    let output = |node: u32| {
        let text = format!("one of 2 failed: {}", NodeId(node));
        world.log.iter().filter(|line| line.contains(&text)).count()
    };
    assert_eq!((output(0), output(1)), (1, 1), "{}", world.log.join("\n"));
    assert_eq!(world.log.iter().filter(|line| line.contains("failed an attempt")).count(), 0);
}

#[test]
fn failures_and_cancellations_of_tasks_do_not_count_against_their_node() {
    let mut world = with_nodes(Preset::APOLLO, 2);
    let failing = StageSpec { retries: 5, ..stage("only", 4, "1s 3", 1_000) };
    world.submit(job(vec![failing]));
    let cancelled = world.submit(job(vec![tasks(2, "1h")]));
    world.run_for(seconds(10));
    world.control(cancelled, amalgam_core::protocol::JobAction::Cancel);
    world.run_for(seconds(10));
    assert_eq!(doubted(&world), [0; 0]);
}

#[test]
fn failures_of_a_drained_node_do_not_count_and_undraining_removes_doubt() {
    let mut world = with_nodes(Preset::APOLLO, 3);
    let drain = |world: &mut World, drained| {
        assert_eq!(world.ask_master(ToMaster::Drain { node: NodeId(1), drained }), ToClient::Done);
    };
    world.submit(job(vec![tasks(12, "1h")]));
    world.run_for(seconds(2));
    drain(&mut world, true);
    world.kill_executor(1);
    world.run_for(seconds(1));
    assert_eq!(doubted(&world), [0; 0], "an executor may die at a drained node");
    reboot(&mut world, &[1], seconds(40));
    assert_eq!(doubted(&world), [0; 0], "a reboot of a drained node is maintenance");
    drain(&mut world, false);
    world.run_for(seconds(5));
    reboot(&mut world, &[1], seconds(40));
    assert_eq!(doubted(&world), [1]);
    drain(&mut world, false);
    assert_eq!(doubted(&world), [0; 0], "an operator reports that the node works");
}

// ---- outages -------------------------------------------------------------------------------------------------------

#[test]
fn nodes_get_work_as_before_after_an_outage_of_many_at_once() {
    for away in [5, 40] {
        let mut world = world(Preset::APOLLO);
        (0..12).for_each(|node| world.add_node(FOUR, &[("rack", if node < 6 { "a" } else { "b" })]));
        world.settle();
        world.submit(job(vec![tasks(40, "30s")]));
        world.run_for(seconds(3));
        reboot(&mut world, &[0, 1, 2, 3, 4, 5], seconds(away));
        assert!(world.losses().len() > 12, "down for {away} s");
        assert_eq!(doubted(&world), [0; 0], "down for {away} s");
        world.run_for(seconds(120));
        let before = world.disk.len();
        submit_for(&mut world, seconds(240));
        let launches = launches(&world, before);
        let (back, others): (usize, usize) = (launches[..6].iter().sum(), launches[6..].iter().sum());
        assert!(back * 10 >= others * 8 && others * 10 >= back * 8, "down for {away} s: {launches:?}");
    }
}

#[test]
fn a_server_restart_does_not_count_against_nodes() {
    let mut world = with_nodes(Preset::APOLLO, 2);
    let id = world.submit(job(vec![tasks(12, "30s")]));
    world.run_for(seconds(2));
    world.hold_launches = true;
    world.submit(job(vec![tasks(4, "30s")]));
    world.run_for(seconds(2));
    world.kill_server();
    world.run_for(seconds(3));
    world.start_server();
    world.hold_launches = false;
    world.run_for(seconds(200));
    all_succeeded(&world, &[id]);
    assert_eq!(doubted(&world), [0; 0]);
}

// ---- a bad task ----------------------------------------------------------------------------------------------------

#[test]
fn a_task_that_takes_every_node_down_counts_against_a_node_only_briefly() {
    let mut world = with_nodes(Preset::APOLLO, 8);
    world.submit(job(vec![tasks(1, "2h")]));
    let mut hit = Vec::new();
    for _ in 0..5 {
        world.run_for(seconds(70));
        let node =
            world.nodes.iter().position(|host| !host.executor.running.is_empty()).expect("the task is tried again");
        hit.push(node);
        world.kill_executor(node);
        world.run_for(seconds(1));
        let expected = if hit.len() == 1 { vec![node as u32] } else { Vec::new() };
        assert_eq!(doubted(&world), expected, "{hit:?}");
    }
}
