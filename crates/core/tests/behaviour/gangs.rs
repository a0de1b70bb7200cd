//! Stages whose tasks start together: all or none, whatever is lost on the way. And stages with a priority of their
//! own.

use crate::world::{World, job, stage};
use amalgam_core::dispatch::Decide;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::{Booker, Placement, Preset};
use amalgam_core::protocol::JobOutcome;
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{Duration, JobId, JobSpec, QueueSpec, Resources, StageSpec, TaskId};
use std::collections::{BTreeMap, BTreeSet};

const CORE: Resources = Resources::new(1_000, 0);
const TWO: Resources = Resources::new(2_000, 0);

const CENTRAL: [Preset; 9] = [
    Preset::AMALGAM,
    Preset::DRF,
    Preset::CAPACITY,
    Preset::FIFO,
    Preset::SJF,
    Preset::SRTF,
    Preset::TETRIS,
    Preset::CARBYNE,
    Preset::MERCURY,
];

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn gang(name: &str, tasks: u32, run: &str) -> StageSpec {
    StageSpec { gang: true, ..stage(name, tasks, run, 1_000) }
}

fn running_of(world: &World, job: JobId) -> usize {
    world.running_tasks().iter().filter(|task| task.job == job).count()
}

/// How many attempts ended for each reason.
fn ends(world: &World, of: JobId) -> BTreeMap<&'static str, u32> {
    let mut ends = BTreeMap::new();
    for change in &world.disk {
        if let Change::Finished { task, ended, .. } = change
            && task.job == of
        {
            *ends.entry(ended.reason.label()).or_default() += 1;
        }
    }
    ends
}

fn beginnings(world: &World, of: JobId) -> Vec<u32> {
    let begins = |record: &Record| match record {
        Record::GangStarts { job, tasks, .. } if *job == of => Some(*tasks),
        _ => None,
    };
    world.records.iter().filter_map(begins).collect()
}

#[test]
fn a_gang_starts_once_all_its_tasks_have_room() {
    for preset in CENTRAL {
        let mut world = World::with_nodes(preset, 4, CORE);
        world.submit(job(vec![stage("short", 1, "5s", 1_000)]));
        world.submit(job(vec![stage("long", 1, "12s", 1_000)]));
        let id = world.submit(job(vec![gang("gang", 4, "3s")]));
        // At each time the free nodes are enough for some of the gang.
        for _ in 0..11 {
            world.run_for(seconds(1));
            assert_eq!(running_of(&world, id), 0, "{} at {:?}", preset.name(), world.now);
        }
        let why = world.why(id).join("; ");
        assert!(why.contains("its 4 tasks start together, and nodes have room for 3"), "{}: {why}", preset.name());
        world.run_for(seconds(2));
        assert_eq!(running_of(&world, id), 4, "{}: {}", preset.name(), world.log.join("\n"));
        world.run_for(seconds(4));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}", preset.name());
        assert_eq!(beginnings(&world, id), [4]);
    }
}

#[test]
fn other_jobs_use_room_that_a_gang_cannot_use_yet() {
    let mut world = World::with_nodes(Preset::FIFO, 4, CORE);
    world.submit(job(vec![stage("long", 1, "20s", 1_000)]));
    let waits = world.submit(job(vec![gang("gang", 4, "3s")]));
    let small = world.submit(job(vec![stage("small", 3, "2s", 1_000)]));
    world.run_for(seconds(1));
    assert_eq!((running_of(&world, waits), running_of(&world, small)), (0, 3));
}

#[test]
fn gangs_that_compete_for_room_do_not_block_each_other() {
    for preset in CENTRAL {
        let mut world = World::with_nodes(preset, 3, TWO);
        let all: Vec<JobId> = (0..5).map(|_| world.submit(job(vec![gang("gang", 4, "3s")]))).collect();
        world.run_for(seconds(20));
        for id in all {
            assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}: {}", preset.name(), world.log.join("\n"));
            assert_eq!(beginnings(&world, id), [4]);
        }
    }
}

#[test]
fn nodes_are_reserved_for_a_gang_that_would_never_find_enough_free_ones() {
    let mut preset = Preset::DRF;
    preset.booked_mut().unwrap().by =
        Booker::Master { placement: Placement::NextFit, reserve_after: seconds(5), backfill: false, reclaim: None };
    let started = |preset: Preset, is_first: bool| {
        let mut world = World::with_nodes(preset, 3, TWO);
        // Each second a task arrives that runs for five seconds: five or six of six cores are always busy.
        world.run_for(seconds(1));
        for _ in 0..3 {
            world.submit(job(vec![stage("before", 1, "4s", 1_000)]));
        }
        if !is_first {
            // It waits for a node that never joins.
            world.submit(JobSpec { wait_for_nodes: true, ..job(vec![gang("larger", 7, "3s")]) });
        }
        let mut id = None;
        for at in 0..40 {
            world.submit(job(vec![stage("small", 1, "5s", 1_000)]));
            if at == 3 {
                id = Some(world.submit(job(vec![gang("gang", 5, "3s")])));
            }
            world.run_for(seconds(1));
        }
        let id = id.expect("the gang was submitted");
        (world.outcome(id), beginnings(&world, id))
    };
    assert_eq!(started(preset, true), (Some(JobOutcome::Succeeded), vec![5]));
    assert_eq!(started(preset, false), (Some(JobOutcome::Succeeded), vec![5]), "a larger gang does not block it");
    let never =
        Booker::Master { placement: Placement::NextFit, reserve_after: seconds(3_600), backfill: false, reclaim: None };
    preset.booked_mut().unwrap().by = never;
    assert_eq!(started(preset, true), (None, vec![]), "without kept nodes it does not start");
}

#[test]
fn gangs_start_in_heartbeat_mode() {
    let mut world = World::new(Preset::DRF);
    world.settings.dispatch.decide = Decide::OnHeartbeats { most: None };
    world.settings.heartbeat = seconds(3);
    world.start_server();
    (0..3).for_each(|_| world.add_node(CORE, &[]));
    world.settle();
    let id = world.submit(job(vec![gang("gang", 3, "3s")]));
    world.run_for(seconds(10));
    assert_eq!((world.outcome(id), beginnings(&world, id)), (Some(JobOutcome::Succeeded), vec![3]));
}

#[test]
fn a_failing_gang_starts_again_together_until_its_retries_are_used_up() {
    let mut world = World::with_nodes(Preset::DRF, 4, CORE);
    let failing = StageSpec { retries: 1, ..gang("gang", 4, "3s 1") };
    let id = world.submit(job(vec![failing]));
    world.run_for(seconds(60));
    // The first task that fails stops the others, twice; then its retries are used up.
    assert_eq!(world.outcome(id), Some(JobOutcome::Failed { exit_code: 1 }));
    assert!(beginnings(&world, id).len() >= 2, "{:?}", beginnings(&world, id));
    assert_eq!(world.running_tasks(), []);
}

#[test]
fn a_gang_that_loses_a_node_starts_again_as_a_whole() {
    let mut world = World::with_nodes(Preset::DRF, 4, CORE);
    let id = world.submit(job(vec![gang("gang", 3, "60s")]));
    world.run_for(seconds(2));
    assert_eq!(running_of(&world, id), 3);
    let node = (0..4).find(|&node| !world.nodes[node].executor.running.is_empty()).expect("one runs");
    world.kill_agent(node);
    world.kill_executor(node);
    world.run_for(seconds(100));
    assert_eq!(beginnings(&world, id), [3, 3]);
    assert_eq!(ends(&world, id).get("withdrawn"), Some(&2), "{}", world.log.join("\n"));
    world.run_for(seconds(60));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}

#[test]
fn a_gang_does_not_start_without_a_task_whose_launch_is_lost() {
    let mut world = World::with_nodes(Preset::DRF, 3, CORE);
    world.run_for(seconds(1));
    world.hold_launches = true;
    let id = world.submit(job(vec![gang("gang", 3, "3s")]));
    world.run_for(seconds(1));
    world.unlink(2);
    world.hold_launches = false;
    world.deliver_held_launches();
    world.run_for(seconds(5));
    assert_eq!((running_of(&world, id), beginnings(&world, id)), (0, vec![]), "{}", world.log.join("\n"));
    world.link(2);
    world.run_for(seconds(60));
    assert_eq!((world.outcome(id), beginnings(&world, id)), (Some(JobOutcome::Succeeded), vec![3]));
}

#[test]
fn a_restarted_server_starts_a_gang_in_place_or_adopts_a_started_one() {
    // The server is killed after each number of delivered messages.
    let mut met = BTreeSet::new();
    for messages in 0..60 {
        let mut world = World::with_nodes(Preset::DRF, 3, CORE);
        world.run_for(seconds(1));
        let id = world.submit_without_delivery(job(vec![gang("gang", 3, "5s")]));
        world.sync();
        for _ in 0..messages {
            world.deliver_one();
            world.sync();
        }
        met.insert((world.launches().len(), beginnings(&world, id).len()));
        world.kill_server();
        world.run_for(seconds(2));
        world.start_server();
        (0..3).for_each(|node| world.link(node));
        world.run_for(seconds(90));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{messages}: {}", world.log.join("\n"));
        assert_eq!(ends(&world, id).get("succeeded"), Some(&3), "{messages}: each ended once: {:?}", ends(&world, id));
    }
    let started = |started: usize| met.iter().any(|(launched, begins)| *launched == started && *begins == 1);
    assert!(met.contains(&(0, 0)) && started(1) && started(3), "{met:?}");
}

#[test]
fn a_gang_is_refused_if_it_could_never_have_room_at_once() {
    let mut world = World::with_nodes(Preset::DRF, 3, TWO);
    let refusal = world.refusal(job(vec![gang("gang", 7, "3s")]));
    assert!(refusal.message.contains("its 7 tasks start together, and suitable nodes have room for 6"), "{refusal:?}");
    let patient = StageSpec { ..gang("gang", 7, "3s") };
    let mut spec = job(vec![patient]);
    spec.wait_for_nodes = true;
    let id = world.submit(spec);
    world.run_for(seconds(5));
    assert_eq!(running_of(&world, id), 0);
    world.add_node(CORE, &[]);
    world.run_for(seconds(2));
    assert_eq!(running_of(&world, id), 7, "{:?}", world.why(id));

    let mut world = World::with_nodes(Preset::SPARROW, 3, TWO);
    let refusal = world.refusal(job(vec![gang("gang", 2, "3s")]));
    assert!(refusal.message.contains("jobs here place their tasks one by one"), "{refusal:?}");
}

#[test]
fn a_whole_gang_counts_towards_the_maximum_of_its_queue() {
    let mut world = World::new(Preset::CAPACITY);
    let half = QueueSpec { maximum: 500_000, ..QueueSpec::named("root.half") };
    world.queues = QueueTree::new(vec![half]).expect("a valid tree");
    world.start_server();
    (0..4).for_each(|_| world.add_node(TWO, &[]));
    world.settle();
    let in_half = |stages| {
        let mut spec = job(stages);
        spec.queue = "root.half".to_owned();
        spec
    };
    let first = world.submit(in_half(vec![stage("one", 1, "5s", 1_000)]));
    let id = world.submit(in_half(vec![gang("gang", 4, "3s")]));
    world.run_for(seconds(2));
    assert_eq!((running_of(&world, first), running_of(&world, id)), (1, 0));
    assert!(
        world.why(id)[0].contains("at its maximum share: 1.0 cpu of 4.0 cpu in use, 4.0 cpu more requested"),
        "{:?}",
        world.why(id)
    );
    world.run_for(seconds(4));
    assert_eq!(running_of(&world, id), 4, "{:?}", world.why(id));
    let refusal = world.refusal(in_half(vec![gang("gang", 5, "3s")]));
    assert!(refusal.message.contains("need 62.5 % of this cluster, and the limit per user is 50.0 %"), "{refusal:?}");
}

#[test]
fn other_running_tasks_of_the_job_do_not_delay_a_gang_that_starts_again() {
    let mut world = World::with_nodes(Preset::DRF, 5, CORE);
    let id = world.submit(job(vec![gang("gang", 3, "60s"), stage("long", 1, "1h", 1_000)]));
    world.run_for(seconds(2));
    let of_gang = |world: &World| world.running_tasks().iter().filter(|task| task.stage == 0).count();
    assert_eq!(of_gang(&world), 3);
    let runs_some = |world: &World, node: usize| {
        world.nodes[node].executor.running.values().any(|(order, ..)| order.task.stage == 0)
    };
    let node = (0..5).find(|&node| runs_some(&world, node)).expect("one runs");
    world.kill_agent(node);
    world.kill_executor(node);
    world.run_for(seconds(30));
    assert_eq!((beginnings(&world, id), of_gang(&world)), (vec![3, 3], 3), "{}", world.log.join("\n"));
}

#[test]
fn a_gang_with_a_preferred_node_uses_it_and_other_nodes_at_once() {
    let mut world = World::with_nodes(Preset::DRF, 4, CORE);
    world.run_for(seconds(1));
    let near = StageSpec { near: vec![world.nodes[0].name.clone()], ..gang("gang", 4, "3s") };
    let id = world.submit(job(vec![near]));
    world.run_for(seconds(10));
    assert_eq!(
        (beginnings(&world, id), ends(&world, id).get("withdrawn")),
        (vec![4], None),
        "{}",
        world.log.join("\n")
    );
}

#[test]
fn a_cancelled_gang_leaves_no_tasks_in_any_state() {
    for is_partial in [false, true] {
        let mut world = World::with_nodes(Preset::DRF, 3, CORE);
        world.run_for(seconds(1));
        world.hold_launches = is_partial;
        let id = world.submit(job(vec![gang("gang", 3, "60s")]));
        if is_partial {
            world.unlink(2);
            world.hold_launches = false;
            world.deliver_held_launches();
        }
        world.run_for(seconds(2));
        assert_eq!(running_of(&world, id), if is_partial { 0 } else { 3 });
        world.control(id, amalgam_core::protocol::JobAction::Cancel);
        world.run_for(seconds(2));
        if is_partial {
            world.link(2);
        }
        world.run_for(seconds(20));
        assert_eq!(world.outcome(id), Some(JobOutcome::Cancelled), "{is_partial}: {}", world.log.join("\n"));
        assert_eq!(world.running_tasks(), []);
    }
}

// ---- priorities of stages --------------------------------------------------------------------------------------------

#[test]
fn the_priority_of_a_stage_applies_across_jobs_but_not_to_the_rest_of_its_job() {
    for preset in [Preset::FIFO, Preset::DRF, Preset::CAPACITY, Preset::SJF, Preset::TETRIS, Preset::CARBYNE] {
        let mut world = World::with_nodes(preset, 1, CORE);
        world.run_for(seconds(1));
        world.submit(job(vec![stage("now", 1, "2s", 1_000)]));
        let first = world.submit(job(vec![stage("usual", 2, "2s", 1_000)]));
        let urgent = StageSpec { priority: Some(5), ..stage("urgent", 1, "2s", 1_000) };
        let second = world.submit(job(vec![stage("usual", 1, "2s", 1_000), urgent]));
        let low = StageSpec { priority: Some(-5), ..stage("low", 1, "2s", 1_000) };
        let third = world.submit(job(vec![low]));
        let mut order: Vec<TaskId> = Vec::new();
        for _ in 0..140 {
            world.run_for(Duration::from_millis(100));
            order.extend(
                world.running_tasks().into_iter().filter(|task| order.last() != Some(task)).collect::<Vec<_>>(),
            );
        }
        let stages: Vec<(JobId, u32)> = order.iter().map(|task| (task.job, task.stage)).collect();
        let place =
            |job, stage| stages.iter().position(|one| *one == (job, stage)).unwrap_or_else(|| panic!("{stages:?}"));
        assert_eq!(place(second, 1), 1, "{}: {stages:?}", preset.name());
        assert_eq!(place(third, 0), stages.len() - 1, "{}: {stages:?}", preset.name());
        if preset == Preset::FIFO {
            assert!(place(first, 0) < place(second, 0), "{stages:?}");
        }
    }
}

#[test]
fn the_job_ahead_is_found_by_the_priority_of_the_waiting_stage() {
    let mut world = World::with_nodes(Preset::FIFO, 1, CORE);
    world.run_for(seconds(1));
    world.submit(job(vec![stage("now", 1, "60s", 1_000)]));
    let usual = world.submit(job(vec![stage("usual", 1, "2s", 1_000)]));
    let urgent = StageSpec { priority: Some(5), ..stage("urgent", 1, "2s", 1_000) };
    let mixed = world.submit(job(vec![urgent, stage("rest", 1, "2s", 1_000)]));
    assert!(
        world.why(usual).iter().any(|why| why.contains(&format!("job {mixed} is ahead"))),
        "{:?}",
        world.why(usual)
    );
    // One of its stages is first of all, and the other is behind the earlier job.
    assert!(
        world.why(mixed).iter().any(|why| why.contains(&format!("job {usual} is ahead"))),
        "{:?}",
        world.why(mixed)
    );
}
