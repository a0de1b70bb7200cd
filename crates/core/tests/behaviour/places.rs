//! Tasks that read in place: which start on a node that stores their input, which in its rack, and which get room
//! beside their input by chance.

use crate::world::{World, baselines, job, stage};
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{JobAction, JobOutcome, RefusalKind};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{
    Block, Blocks, Constraint, Duration, JobId, JobSpec, NodeId, Reads, Resources, StageSpec,
};
use std::collections::BTreeMap;

const CORE: Resources = Resources::new(1_000, 0);
const TWO: Resources = Resources::new(2_000, 0);
/// 1.6 GB: ten seconds to read it from the node's own disk, sixteen from its rack, twenty from elsewhere.
const KIB: u32 = 1_562_500;
const NODES: u32 = 8;
const RACKS: u32 = 4;

/// Node n is in rack n % 4.
fn world(preset: Preset, capacity: Resources) -> World {
    let mut world = World::new(preset);
    world.start_server();
    for node in 0..NODES {
        let (rack, number) = ((node % RACKS).to_string(), node.to_string());
        world.add_node(capacity, &[("rack", &rack), ("number", &number)]);
    }
    world.run_for(Duration::from_secs(20));
    world
}

/// One task for each entry of `at`, whose only block is stored on that node.
fn reading(name: &str, length: &str, at: &[u32]) -> StageSpec {
    let mut blocks = Blocks::on((0..NODES).map(|node| format!("host{node}")).collect());
    at.iter().for_each(|&node| blocks.push([Block { kib: KIB, at: vec![node] }]).expect("few"));
    let reads = Reads::Blocks(blocks);
    StageSpec { input_kib: vec![KIB; at.len()], reads, ..stage(name, at.len() as u32, length, 1_000) }
}

fn only_on(node: u32, stage: StageSpec) -> StageSpec {
    StageSpec { constraints: vec![Constraint::parse(&format!("number={node}")).expect("one")], ..stage }
}

/// The node on which each task was launched first, by stage and index.
fn launched(world: &World, job: JobId) -> BTreeMap<(u32, u32), NodeId> {
    let mut found = BTreeMap::new();
    for change in &world.disk {
        if let Change::Launched { task, node, .. } = change
            && task.job == job
        {
            found.entry((task.stage, task.index)).or_insert(*node);
        }
    }
    found
}

fn nodes_of(world: &World, job: JobId, stage: u32) -> Vec<u32> {
    launched(world, job).into_iter().filter(|(task, _)| task.0 == stage).map(|(_, node)| node.0).collect()
}

#[test]
fn each_task_runs_on_the_node_of_its_own_block() {
    let at = [7, 3, 0, 5, 1, 6, 2, 4, 3, 7];
    for preset in [Preset::APOLLO, baselines::WITHOUT_ESTIMATES] {
        let mut world = world(preset, TWO);
        let id = world.submit(job(vec![reading("read", "30s", &at)]));
        world.run_for(Duration::from_secs(100));
        assert_eq!(nodes_of(&world, id, 0), at, "{}", preset.name());
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    }
}

#[test]
fn a_task_runs_in_the_rack_of_its_block_if_the_node_is_full() {
    let mut world = world(Preset::APOLLO, CORE);
    let full = StageSpec { expected: Some(Duration::from_secs(500)), ..stage("full", 1, "500s", 1_000) };
    world.submit(job(vec![only_on(2, full)]));
    world.run_for(Duration::from_secs(20));
    let id = world.submit(job(vec![reading("read", "30s", &[2])]));
    world.run_for(Duration::from_secs(100));
    assert_eq!(nodes_of(&world, id, 0), [6], "the other node of rack 2");
}

#[test]
fn granted_room_is_used_for_the_task_whose_block_is_there() {
    let at = [7, 3, 0, 5, 1, 6, 2, 4];
    for preset in [Preset::FIFO, Preset::DRF, Preset::CAPACITY] {
        let mut world = world(preset, CORE);
        let id = world.submit(job(vec![reading("read", "30s", &at)]));
        world.run_for(Duration::from_secs(100));
        assert_eq!(nodes_of(&world, id, 0), at, "{}", preset.name());
    }
}

#[test]
fn later_stages_run_where_earlier_tasks_ran() {
    let mut world = world(Preset::APOLLO, TWO);
    // An amount of input for which it is worth waiting for a node that is not yet known to be idle again.
    let input_kib = vec![20 * KIB];
    let later = StageSpec { after: vec![0], input_kib, reads: Reads::Before, ..stage("merge", 1, "5s", 1_000) };
    let writes = StageSpec { expected: Some(Duration::from_secs(5)), ..stage("write", 2, "5s", 1_000) };
    let id = world.submit(job(vec![only_on(5, writes), later]));
    world.run_for(Duration::from_secs(60));
    assert_eq!((nodes_of(&world, id, 0), nodes_of(&world, id, 1)), (vec![5, 5], vec![5]));
}

#[test]
fn input_locations_survive_a_server_restart() {
    let at = [7, 3, 0, 5, 1, 6, 2, 4];
    let mut world = world(Preset::APOLLO, TWO);
    let id = world.submit(JobSpec { held: true, ..job(vec![reading("read", "30s", &at)]) });
    world.kill_server();
    world.start_server();
    world.run_for(Duration::from_secs(20));
    world.control(id, JobAction::Release);
    world.run_for(Duration::from_secs(100));
    assert_eq!((nodes_of(&world, id, 0), world.outcome(id)), (at.to_vec(), Some(JobOutcome::Succeeded)));
}

#[test]
fn a_block_on_an_unknown_node_is_far_from_all_and_invalid_reads_are_refused() {
    let mut world = world(Preset::APOLLO, CORE);
    let mut elsewhere = Blocks::on(vec!["archive".to_owned()]);
    elsewhere.push([Block { kib: KIB, at: vec![0] }]).expect("one");
    let reads = Reads::Blocks(elsewhere);
    let id = world.submit(job(vec![StageSpec { input_kib: vec![KIB], reads, ..stage("read", 1, "1s", 1_000) }]));
    world.run_for(Duration::from_secs(20));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));

    let too_many = StageSpec { reads: reading("read", "1s", &[1, 2]).reads, ..stage("read", 1, "1s", 1_000) };
    let of_nobody = StageSpec { reads: Reads::Before, ..stage("read", 1, "1s", 1_000) };
    for (stage, output) in [(too_many, "it has 1 tasks, but lists the blocks of 2"), (of_nobody, "depends on none")] {
        let refusal = world.refusal(job(vec![stage]));
        assert_eq!(refusal.kind, RefusalKind::Invalid);
        assert!(refusal.message.contains(output), "{refusal:?}");
    }
}
