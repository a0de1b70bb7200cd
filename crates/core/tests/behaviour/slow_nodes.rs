//! What the preset `amalgam` learns of its nodes: tasks are not placed where they would end later than elsewhere, and slow attempts
//! get a duplicate on a node that the master chooses.

use crate::world::{World, job, stage};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{JobAction, JobOutcome, Rule, ToMaster};
use amalgam_core::role::{Change, Record, Role};
use amalgam_core::vocabulary::{
    Constraint, Duration, InputSpec, Instant, Items, JobId, JobSpec, NodeId, QueueSpec, Resources, StageSpec, TaskSet,
    Workdir,
};
use std::sync::Arc;

const SLOW: NodeId = NodeId(0);
const TWO: Resources = Resources::new(2_000, 0);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Nodes of two cores each. Tasks take this many times as long on the first node.
fn world(nodes: u32, slowness: u64) -> World {
    let mut world = World::with_nodes(Preset::AMALGAM, nodes, TWO);
    world.nodes[SLOW.0 as usize].executor.slowness = slowness;
    world.verbose = true;
    world.settle();
    world
}

fn tasks(count: u32, length: &str) -> StageSpec {
    let mut stage = StageSpec { expected: Duration::parse(length).ok(), ..stage("only", count, length, 1_000) };
    Arc::make_mut(&mut stage.program).workdir = Workdir::Own;
    stage
}

/// Runs a job long enough to find the slow node.
fn learn(world: &mut World) {
    world.submit(job(vec![tasks(120, "10s")]));
    world.run_for(seconds(300));
}

/// Runs jobs one after another that fill half of the cluster, and returns how many of their attempts ran on the slow node.
fn run_jobs(world: &mut World, jobs: usize) -> usize {
    let since = world.disk.len();
    for _ in 0..jobs {
        let half = world.nodes.len() as u32;
        world.submit(job(vec![tasks(half, "10s")]));
        world.run_for(seconds(45));
    }
    launched_on(world, since, SLOW)
}

fn launched_on(world: &World, since: usize, node: NodeId) -> usize {
    let is_there = |change: &&Change| matches!(change, Change::Launched { node: on, .. } if *on == node);
    world.disk[since..].iter().filter(is_there).count()
}

/// The second attempts of slow tasks, and their nodes.
fn duplicates(world: &World, job: JobId) -> Vec<NodeId> {
    let duplicate = |change: &Change| match change {
        Change::Launched { attempt, rule: Rule::Straggler, node, .. } if attempt.job == job => Some(*node),
        _ => None,
    };
    world.disk.iter().filter_map(duplicate).collect()
}

#[test]
fn a_slow_node_gets_no_tasks_while_others_have_room() {
    let mut world = world(4, 3);
    assert!(run_jobs(&mut world, 2) > 0, "it is not known yet");
    learn(&mut world);
    assert_eq!(run_jobs(&mut world, 4), 0, "{}", world.log.join("\n"));
    let statuses = world.server.as_ref().expect("the server runs").master.node_statuses(world.now);
    let slowness: Vec<Option<u32>> = statuses.iter().map(|status| status.slowness).collect();
    assert!(slowness[0].is_some_and(|times| (2_500..=3_500).contains(&times)), "{slowness:?}");
    assert_eq!(slowness[1..], [None; 3]);
    // It is as fast as the others now. That is tried once what was learned is old.
    world.nodes[SLOW.0 as usize].executor.slowness = 1;
    world.run_for(seconds(2 * 3_600));
    assert!(run_jobs(&mut world, 2) > 0);
}

#[test]
fn tasks_run_on_a_slow_node_if_they_end_there_sooner_than_elsewhere() {
    let mut world = world(4, 3);
    learn(&mut world);
    let (since, began) = (world.disk.len(), world.now);
    let id = world.submit(job(vec![tasks(64, "10s")]));
    world.run_for(seconds(300));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    let on_slow = launched_on(&world, since, SLOW);
    // Six tasks run at once on the other nodes, and two on the slow one, three times as long each: after 90 s four are left.
    assert!((4..=6).contains(&on_slow), "{on_slow}");
    let took = world.end_of(id).since(began);
    assert!(took <= seconds(101), "{took}: no task started on the slow node when the last ones elsewhere did");
}

#[test]
fn tasks_that_only_a_slow_node_can_run_do_not_wait_for_others() {
    let mut world = World::new(Preset::AMALGAM);
    world.start_server();
    world.add_node(TWO, &[("disk", "large")]);
    (0..3).for_each(|_| world.add_node(TWO, &[]));
    world.nodes[SLOW.0 as usize].executor.slowness = 3;
    world.settle();
    learn(&mut world);
    assert_eq!(run_jobs(&mut world, 2), 0);
    let mut only_there = tasks(2, "10s");
    only_there.constraints = vec![Constraint::parse("disk=large").unwrap()];
    let (id, began) = (world.submit(job(vec![only_there])), world.now);
    world.run_for(seconds(60));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    assert!(world.end_of(id).since(began) < seconds(32));
}

#[test]
fn tasks_that_are_too_large_for_other_nodes_do_not_wait_for_those() {
    let mut world = World::new(Preset::AMALGAM);
    world.start_server();
    world.add_node(Resources::new(4_000, 0), &[]);
    (0..3).for_each(|_| world.add_node(TWO, &[]));
    world.nodes[SLOW.0 as usize].executor.slowness = 3;
    world.settle();
    learn(&mut world);
    let statuses = world.server.as_ref().expect("the server runs").master.node_statuses(world.now);
    assert!(statuses[0].slowness.is_some());
    let large = StageSpec { expected: Some(seconds(100)), ..stage("large", 1, "100s", 3_000) };
    let (id, began) = (world.submit(job(vec![large])), world.now);
    world.run_for(seconds(500));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    assert!(world.end_of(id).since(began) < seconds(305), "it takes 300 s there");
}

#[test]
fn tasks_near_a_slow_node_wait_for_others() {
    let mut world = world(4, 3);
    learn(&mut world);
    let mut near = tasks(2, "20s");
    near.near = vec!["host0".to_owned()];
    let (since, began) = (world.disk.len(), world.now);
    let id = world.submit(job(vec![near]));
    world.run_for(seconds(60));
    assert_eq!(launched_on(&world, since, SLOW), 0, "{}", world.log.join("\n"));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    assert!(world.end_of(id).since(began) < seconds(30));
}

#[test]
fn a_node_that_an_operator_declares_well_takes_what_waits() {
    let mut world = world(1, 3);
    world.add_node(TWO, &[]);
    world.settle();
    learn(&mut world);
    world.run_for(seconds(300));
    // Both other cores are taken for long, and what waits expects to have one of them soon.
    world.submit(job(vec![tasks(2, "30s")]));
    let (id, began) = (world.submit(job(vec![tasks(1, "100s")])), world.now);
    world.run_for(seconds(1));
    assert_eq!(world.running_tasks().iter().filter(|task| task.job == id).count(), 0, "{}", world.log.join("\n"));
    let why = world.why(id);
    assert!(why[0].contains("on node") && why[0].contains("tasks take") && why[0].contains("times as long"), "{why:?}");
    world.ask_master(ToMaster::Drain { node: SLOW, drained: false });
    assert_eq!(world.running_tasks().iter().filter(|task| task.job == id).count(), 1);
    assert!(world.now.since(began) < seconds(2));
}

#[test]
fn a_node_on_which_attempts_fail_gets_no_tasks_while_others_have_room() {
    let mut world = world(4, 1);
    world.nodes[SLOW.0 as usize].executor.fault = Some("no space left".to_owned());
    run_jobs(&mut world, 6);
    world.nodes[SLOW.0 as usize].executor.fault = None;
    // The node takes work again.
    world.run_for(seconds(120));
    assert_eq!(run_jobs(&mut world, 4), 0, "{}", world.log.join("\n"));
    world.ask_master(ToMaster::Drain { node: SLOW, drained: false });
    assert!(run_jobs(&mut world, 4) > 0, "an operator says that it works again");
}

#[test]
fn a_slow_attempt_gets_a_duplicate_where_the_master_has_room() {
    let mut world = world(3, 10);
    let id = world.submit(job(vec![tasks(5, "60s")]));
    world.run_for(seconds(200));
    let duplicates = duplicates(&world, id);
    assert!(!duplicates.is_empty() && duplicates.iter().all(|node| *node != SLOW), "{}", world.log.join("\n"));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    let overtaken = world.records.iter().filter(|record| matches!(record, Record::Overtaken { .. })).count();
    assert_eq!(overtaken, duplicates.len());
    assert!(world.end_of(id) < Instant(0) + seconds(200), "a slow attempt takes ten minutes");
}

#[test]
fn a_duplicate_waits_for_room_on_another_node() {
    let mut world = world(2, 10);
    let first = world.submit(job(vec![tasks(1, "10s")]));
    let id = world.submit(job(vec![tasks(3, "60s")]));
    world.run_for(seconds(50));
    world.ask_master(ToMaster::Drain { node: NodeId(1), drained: true });
    world.run_for(seconds(150));
    assert_eq!(world.outcome(first), Some(JobOutcome::Succeeded), "there is room on the slow node");
    assert!(world.log.iter().any(|line| line.contains("-> master: return")), "it was granted");
    assert_eq!(duplicates(&world, id), [], "{}", world.log.join("\n"));
    world.ask_master(ToMaster::Drain { node: NodeId(1), drained: false });
    world.run_for(seconds(100));
    assert_eq!(duplicates(&world, id), [NodeId(1)], "{}", world.log.join("\n"));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    let open = world.server.as_ref().expect("the server runs").master.describe(world.now).open_tasks;
    assert_eq!(open, 0, "nothing is requested for attempts that have ended");
}

/// Tasks that read the same file, of which every sixth takes long.
fn uneven_job() -> JobSpec {
    let mut items = Items::default();
    let length = |task: u32| if task.is_multiple_of(6) { "200s" } else { "10s" };
    (0..24).for_each(|task| items.push(length(task)).expect("the items are small"));
    let inputs = vec![InputSpec { stage: 0, files: "*".to_owned() }];
    let readers = StageSpec { after: vec![0], inputs, tasks: TaskSet::Each(items), ..tasks(24, "10s") };
    job(vec![StageSpec { outputs: vec!["o".to_owned()], ..tasks(1, "1s") }, readers])
}

#[test]
fn tasks_that_use_the_cpu_for_longer_than_others_get_no_duplicates() {
    let mut world = world(4, 1);
    let id = world.submit(uneven_job());
    world.run_for(seconds(2_000));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    assert_eq!(duplicates(&world, id), [], "{}", world.log.join("\n"));
}

#[test]
fn tasks_that_are_long_by_nature_get_few_duplicates() {
    let mut world = world(4, 1);
    world.nodes.iter_mut().for_each(|node| node.executor.hides_cpu = true);
    let id = world.submit(uneven_job());
    world.run_for(seconds(2_000));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    assert_eq!(duplicates(&world, id).len(), 2, "{}", world.log.join("\n"));
}

#[test]
fn a_job_whose_duplicates_win_gets_more() {
    let mut world = world(5, 20);
    world.nodes.iter_mut().for_each(|node| node.executor.hides_cpu = true);
    let id = world.submit(job(vec![tasks(4, "60s"), StageSpec { after: vec![0], ..tasks(40, "60s") }]));
    world.run_for(seconds(3_000));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    let overtaken = world.records.iter().filter(|record| matches!(record, Record::Overtaken { .. })).count();
    assert!(overtaken > 2 && duplicates(&world, id).len() == overtaken, "{}", world.log.join("\n"));
}

#[test]
fn a_duplicate_preempts_nothing() {
    let mut world = World::new(Preset::AMALGAM);
    let queue = |name, guaranteed| QueueSpec { guaranteed, ..QueueSpec::named(name) };
    world.queues =
        QueueTree::new(vec![queue("root.guests", 300_000), queue("root.owners", 700_000)]).expect("a valid tree");
    world.start_server();
    (0..2).for_each(|_| world.add_node(Resources::new(3_000, 0), &[]));
    world.nodes[SLOW.0 as usize].executor.slowness = 20;
    world.verbose = true;
    world.settle();
    let queued = |queue: &str, tasks| JobSpec { queue: queue.to_owned(), ..job(vec![tasks]) };
    let owner = world.submit(queued("owners", tasks(4, "60s")));
    let guest = world.submit(queued("guests", tasks(10, "1h")));
    world.run_for(seconds(200));
    assert_eq!(launched_on(&world, 0, SLOW), 3, "{}", world.log.join("\n"));
    assert_eq!(world.running_tasks().iter().filter(|task| task.job == guest).count(), 4);
    let open = world.server.as_ref().expect("the server runs").master.describe(world.now).open_tasks;
    assert_eq!(open, 6 + 2, "duplicates are requested: {}", world.log.join("\n"));
    let preempted = world.log.iter().filter(|line| line.contains("preempted for job")).count();
    assert_eq!(preempted, 0, "{}", world.log.join("\n"));
    world.control(guest, JobAction::Cancel);
    world.run_for(seconds(200));
    assert_eq!(world.outcome(owner), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    assert_eq!(duplicates(&world, owner).len(), 2);
}

#[test]
fn a_task_has_not_waited_for_as_long_as_the_duplicates_of_its_ask() {
    let mut world = World::with_nodes(Preset::AMALGAM, 1, TWO);
    world.verbose = true;
    world.submit(job(vec![tasks(2, "2h")]));
    let id = world.submit(job(vec![tasks(2, "60s")]));
    let preempted = |world: &World| world.log.iter().filter(|line| line.contains("preempted for job")).count();
    world.request(id, 2, 2);
    world.run_for(seconds(600));
    assert_eq!(preempted(&world), 0, "nothing is preempted for duplicates");
    world.request(id, 2, 1);
    world.run_for(seconds(500));
    assert_eq!(preempted(&world), 0, "{}", world.log.join("\n"));
    // The attempts had run for 600 s when the task came: it waits for as long.
    world.run_for(seconds(200));
    assert_eq!(preempted(&world), 1, "{}", world.log.join("\n"));
}
