//! Two presets on one cluster: which preset a job uses, what the presets share, and that a job keeps its preset.

use crate::world::{World, baselines, job, stage};
use amalgam_core::dispatch::Beside;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{JobAction, JobOutcome, Rule};
use amalgam_core::role::{Change, LostCause, Record, Trigger};
use amalgam_core::vocabulary::{
    AttemptId, Duration, ExecutionType, InputSpec, JobId, JobSpec, NodeId, QueueSpec, Resources, StageSpec, TaskId,
};
use std::collections::BTreeSet;

const CORE: Resources = Resources::new(1_000, 0);
const FOUR: Resources = Resources::new(4_000, 0);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn guaranteed(tasks: u32, length: &str) -> StageSpec {
    let mut stage = stage("only", tasks, length, 1_000);
    (stage.execution, stage.expected) = (ExecutionType::Guaranteed, Duration::parse(length).ok());
    stage
}

fn in_queue(queue: &str, stage: StageSpec) -> JobSpec {
    JobSpec { queue: queue.to_owned(), ..job(vec![stage]) }
}

/// This many times the cluster may be guaranteed.
fn preset(times: u32) -> Preset {
    let mut preset = Preset::APOLLO.with_others(baselines::ALL);
    preset.entitled_mut().unwrap().guaranteed = 100 * times;
    preset
}

fn world(preset: Preset, nodes: u32, capacity: Resources) -> World {
    let mut world = World::new(preset);
    let other = QueueSpec { preset: Some("without-estimates".to_owned()), ..QueueSpec::named("root.other") };
    let queues = [QueueSpec::named("root.own"), other, QueueSpec::named("root.other.below")];
    world.queues = QueueTree::new(queues.to_vec()).expect("a tree");
    world.start_server();
    (0..nodes).for_each(|_| world.add_node(capacity, &[]));
    world.settle();
    world
}

fn launches(world: &World, job: JobId) -> Vec<(AttemptId, Rule, NodeId)> {
    let launched = world.disk.iter().filter_map(|change| match change {
        Change::Launched { attempt, rule, node, .. } if attempt.job == job => Some((*attempt, *rule, *node)),
        _ => None,
    });
    launched.collect()
}

/// Tasks that wait at nodes or run there.
fn tasks_out(world: &World, job: JobId) -> usize {
    let manager = &world.server.as_ref().unwrap().jobs[&job];
    manager.running().map(|(_, task, _)| task).collect::<BTreeSet<TaskId>>().len()
}

fn superseded(world: &World) -> Vec<AttemptId> {
    let lost = world.disk.iter().filter_map(|change| match change {
        Change::Lost { attempt, cause: LostCause::Superseded, .. } => Some(*attempt),
        _ => None,
    });
    lost.collect()
}

fn explored(world: &World, job: JobId) -> usize {
    let is_of_job = |record: &&Record| matches!(record, Record::Duplicated { task, trigger: Trigger::Explored, .. } if task.job == job);
    world.records.iter().filter(is_of_job).count()
}

fn preset_of(world: &World, job: JobId) -> Option<String> {
    world.server.as_ref().unwrap().jobs[&job].job().preset.clone()
}

fn succeeded(world: &World, job: JobId) {
    assert_eq!(world.outcome(job), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
}

// ---- which preset a job uses ---------------------------------------------------------------------------------------

#[test]
fn a_job_uses_the_preset_of_its_queue_or_of_a_queue_above() {
    let mut world = world(preset(1), 2, FOUR);
    let ids = ["own", "other.below"].map(|queue| world.submit(in_queue(queue, guaranteed(1, "5s"))));
    world.run_for(seconds(1));
    assert_eq!(ids.map(|id| preset_of(&world, id)), [None, Some("without-estimates".to_owned())]);
    assert_eq!(ids.map(|id| launches(&world, id)[0].1), [Rule::Completion, Rule::Sampling]);
    world.run_for(seconds(30));
    ids.iter().for_each(|id| succeeded(&world, *id));
}

#[test]
fn a_random_part_of_jobs_uses_the_second_preset_unless_the_queue_names_one() {
    let mut world = world(preset(1), 1, FOUR);
    world.settings.dispatch.beside = Some(Beside { preset: "without-estimates".to_owned(), part: 300_000, seed: 5 });
    world.kill_server();
    world.start_server();
    let ids: Vec<JobId> = (0..200).map(|_| world.submit(in_queue("own", guaranteed(1, "1s")))).collect();
    let drawn = ids.iter().filter(|id| preset_of(&world, **id).is_some()).count();
    assert!((45..=75).contains(&drawn), "{drawn} of 200");
    world.settings.dispatch.beside = Some(Beside { preset: "apollo".to_owned(), part: 1_000_000, seed: 5 });
    world.kill_server();
    world.start_server();
    let id = world.submit(in_queue("other.below", guaranteed(1, "1s")));
    assert_eq!(preset_of(&world, id).as_deref(), Some("without-estimates"), "the queue names a preset");
}

#[test]
fn a_job_keeps_its_preset_if_the_server_restarts_with_another_configuration() {
    let mut world = world(preset(4), 2, CORE);
    let blocker = world.submit(in_queue("own", guaranteed(2, "60s")));
    let id = world.submit(in_queue("other.below", guaranteed(1, "5s")));
    world.run_for(seconds(1));
    world.kill_server();
    world.queues =
        QueueTree::new(["root.own", "root.other", "root.other.below"].map(QueueSpec::named).to_vec()).unwrap();
    world.start_server();
    let later = world.submit(in_queue("other.below", guaranteed(1, "5s")));
    world.run_for(seconds(5));
    assert_eq!((preset_of(&world, id), preset_of(&world, later)), (Some("without-estimates".to_owned()), None));
    world.kill_server();
    // The log was compacted, and the server starts with another preset.
    world.preset = Preset::DRF;
    world.start_server();
    world.run_for(seconds(200));
    [blocker, id, later].iter().for_each(|id| succeeded(&world, *id));
}

#[test]
fn jobs_of_both_presets_share_the_nodes_and_the_guaranteed_part() {
    let mut world = world(Preset::APOLLO.with_others(baselines::ALL), 5, FOUR);
    let ids = ["own", "other.below"].map(|queue| world.submit(in_queue(queue, guaranteed(60, "20s"))));
    world.run_for(seconds(50));
    let shares = ids.map(|id| tasks_out(&world, id));
    assert_eq!(shares, [9, 9], "90 % of 20 cores: {}", world.log.join("\n"));
    world.run_for(seconds(300));
    ids.iter().for_each(|id| succeeded(&world, *id));
}

// ---- trying other nodes --------------------------------------------------------------------------------------------

/// All nodes but the last `idle` ones are busy for a minute, and a job with one task waits.
fn one_that_waits(nodes: u32, idle: u32, queue: &str) -> (World, JobId) {
    let mut world = world(preset(4), nodes - idle, CORE);
    world.submit(in_queue("own", guaranteed(nodes - idle, "60s")));
    world.run_for(seconds(5));
    assert_eq!(world.running_tasks().len(), (nodes - idle) as usize);
    let id = world.submit(in_queue(queue, guaranteed(1, "5s")));
    world.run_for(Duration::from_millis(500));
    (0..idle).for_each(|_| world.add_node(CORE, &[]));
    (world, id)
}

#[test]
fn a_waiting_task_is_tried_on_other_nodes_and_keeps_its_first_place() {
    let (mut world, id) = one_that_waits(4, 0, "other.below");
    assert_eq!(launches(&world, id).len(), 1);
    world.run_for(seconds(10));
    let all = launches(&world, id);
    assert!((6..=11).contains(&all.len()), "about one launch per second: {all:?}");
    for pair in all.windows(2) {
        assert_eq!(pair[1].1, Rule::Exploration);
        assert!(pair[1].2 != pair[0].2 && pair[1].2 != all[0].2, "{all:?}");
    }
    let taken_back: Vec<AttemptId> = all[1..all.len() - 1].iter().map(|(attempt, _, _)| *attempt).collect();
    assert_eq!(superseded(&world), taken_back, "all but the first and the last launch");
    assert_eq!(explored(&world, id), all.len() - 1);
    world.run_for(seconds(120));
    succeeded(&world, id);
    let success = |change: &&Change| matches!(change, Change::Finished { task, ended, .. } if task.job == id && ended.reason.is_success());
    assert_eq!(world.disk.iter().filter(success).count(), 1);
}

#[test]
fn an_idle_node_is_found_by_exploration() {
    let (mut world, id) = one_that_waits(2, 1, "other.below");
    world.run_for(seconds(2));
    let nodes: Vec<NodeId> = launches(&world, id).iter().map(|(_, _, node)| *node).collect();
    assert_eq!(nodes, [NodeId(0), NodeId(1)]);
    assert_eq!(world.running_tasks().len(), 2, "{}", world.log.join("\n"));
    world.run_for(seconds(8));
    succeeded(&world, id);
    assert_eq!(superseded(&world).len(), 1, "the attempt that starts first is kept");
}

#[test]
fn a_task_that_waits_for_files_on_another_node_is_tried_on_no_further_node() {
    let mut world = world(preset(8), 1, CORE);
    let write = StageSpec { name: "write".to_owned(), outputs: vec!["o".to_owned()], ..guaranteed(1, "1s") };
    let inputs = vec![InputSpec { stage: 0, files: "*".to_owned() }];
    let read = StageSpec { after: vec![0], inputs, ..guaranteed(1, "5s") };
    let id = world.submit(JobSpec { queue: "other.below".to_owned(), ..job(vec![write, read]) });
    // This task is before the reader, whose file is on this node, which does not send it to any other.
    world.submit(in_queue("own", guaranteed(1, "60s")));
    world.nodes[0].executor.is_silent = true;
    world.run_for(Duration::from_millis(1_500));
    (0..3).for_each(|_| world.add_node(CORE, &[]));
    world.run_for(seconds(10));
    assert_eq!(explored(&world, id), 1, "{}", world.log.join("\n"));
    world.run_for(seconds(120));
    succeeded(&world, id);
}

#[test]
fn the_baseline_ignores_reported_waits() {
    for (queue, is_blind) in [("own", false), ("other.below", true)] {
        let mut on_idle = 0;
        for seed in 0..20 {
            let mut preset = preset(4);
            preset.seed = seed;
            let mut world = world(preset, 8, CORE);
            world.submit(in_queue("own", guaranteed(4, "60s")));
            world.run_for(seconds(5));
            let busy: Vec<NodeId> =
                world.server.as_ref().unwrap().jobs[&JobId(1)].running().map(|(_, _, node)| node).collect();
            let id = world.submit(in_queue(queue, guaranteed(1, "5s")));
            world.run_for(Duration::from_millis(500));
            on_idle += u64::from(!busy.contains(&launches(&world, id)[0].2));
        }
        assert!(if is_blind { on_idle < 16 } else { on_idle == 20 }, "{queue}: {on_idle} of 20");
    }
}

#[test]
fn other_presets_do_not_explore_nodes() {
    let (mut world, id) = one_that_waits(4, 0, "own");
    world.run_for(seconds(10));
    assert_eq!((launches(&world, id).len(), explored(&world, id)), (1, 0));
}

#[test]
fn a_held_job_explores_no_nodes() {
    let (mut world, id) = one_that_waits(4, 0, "other.below");
    world.control(id, JobAction::Hold);
    world.run_for(seconds(5));
    assert_eq!(launches(&world, id).len(), 1);
    world.control(id, JobAction::Release);
    world.run_for(seconds(5));
    assert!(launches(&world, id).len() > 3);
}

#[test]
fn exploration_continues_if_the_first_node_is_lost() {
    let (mut world, id) = one_that_waits(4, 0, "other.below");
    world.run_for(seconds(3));
    let first = launches(&world, id)[0].2;
    world.kill_agent(first.0 as usize);
    world.kill_executor(first.0 as usize);
    world.run_for(seconds(40));
    let before = launches(&world, id).len();
    world.run_for(seconds(160));
    let all = launches(&world, id);
    assert!(all.len() > before && all[before..].iter().all(|(.., node)| *node != first), "{all:?}");
    succeeded(&world, id);
}

#[test]
fn waiting_opportunistic_work_explores_no_nodes() {
    let mut world = world(preset(2), 2, CORE);
    world.submit(in_queue("own", guaranteed(4, "60s")));
    world.run_for(seconds(5));
    let mut stage = guaranteed(6, "60s");
    stage.execution = ExecutionType::Opportunistic;
    let id = world.submit(in_queue("other.below", stage));
    world.run_for(seconds(10));
    let all = launches(&world, id);
    assert!(!all.is_empty() && all.iter().all(|(_, rule, _)| *rule == Rule::Sampling), "{all:?}");
    assert!(!world.running_tasks().iter().any(|task| task.job == id), "the opportunistic job waits");
    assert_eq!(explored(&world, id), 0);
}

#[test]
fn a_cancelled_job_explores_no_nodes_before_its_attempts_have_ended() {
    let (mut world, id) = one_that_waits(4, 0, "other.below");
    let first = launches(&world, id)[0].2;
    world.unlink(first.0 as usize);
    world.control(id, JobAction::Cancel);
    world.run_for(seconds(3));
    assert_eq!((launches(&world, id).len(), world.outcome(id)), (1, None));
}

#[test]
fn reports_that_any_preset_reads_are_published() {
    let mut on_idle = 0;
    for seed in 0..40 {
        let mut own = Preset::SPARROW.with_others(baselines::ALL);
        own.seed = seed;
        let mut world = World::new(own);
        let other = QueueSpec { preset: Some("power-of-two".to_owned()), ..QueueSpec::named("root.other") };
        world.queues = QueueTree::new(vec![QueueSpec::named("root.own"), other]).expect("a tree");
        world.start_server();
        (0..2).for_each(|_| world.add_node(CORE, &[]));
        world.settle();
        world.submit(in_queue("own", guaranteed(1, "60s")));
        world.run_for(seconds(5));
        let busy = world.server.as_ref().unwrap().jobs[&JobId(1)].running().next().unwrap().2;
        let id = world.submit(in_queue("other", guaranteed(1, "5s")));
        world.run_for(seconds(1));
        on_idle += u32::from(launches(&world, id)[0].2 != busy);
    }
    assert!((25..=36).contains(&on_idle), "three of four, and not half: {on_idle} of 40");
}
