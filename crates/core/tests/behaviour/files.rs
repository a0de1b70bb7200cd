//! The files that tasks store for others: which nodes fetch them, from where, and what happens when they are gone.

use crate::world::*;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::*;
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::*;

const CORE: Resources = Resources::new(1_000, 0);

fn writer(name: &str, tasks: u32, outputs: &[&str]) -> StageSpec {
    let outputs = outputs.iter().map(|name| (*name).to_owned()).collect();
    StageSpec { outputs, ..stage(name, tasks, "1s", 1_000) }
}

fn reader(name: &str, tasks: u32, run: &str, after: u32, files: &str) -> StageSpec {
    let inputs = vec![InputSpec { stage: after, files: files.to_owned() }];
    StageSpec { after: vec![after], inputs, ..stage(name, tasks, run, 1_000) }
}

/// Two tasks that store a file each, and one that reads both.
fn map_reduce() -> JobSpec {
    job(vec![writer("map", 2, &["o"]), reader("reduce", 1, "1s", 0, "*")])
}

/// A cluster of nodes with a core each.
fn cluster(nodes: u32) -> World {
    World::with_nodes(Preset::FIFO, nodes, CORE)
}

fn mapped(index: u32) -> Digest {
    digest_of(&format!("map/{index}/o"))
}

fn task(job: JobId, stage: u32, index: u32) -> TaskId {
    TaskId { job, stage, index }
}

fn attempts_of(world: &World, task: TaskId) -> usize {
    world.launches().get(&task).map_or(0, std::collections::BTreeSet::len)
}

fn lost_outputs(world: &World) -> Vec<TaskId> {
    let lost = world.disk.iter().filter_map(|change| match change {
        Change::OutputLost { task, .. } => Some(*task),
        _ => None,
    });
    lost.collect()
}

fn reasons(world: &World, of: TaskId) -> Vec<EndReason> {
    let ends = world.disk.iter().filter_map(|change| match change {
        Change::Finished { task, ended, .. } if *task == of => Some(ended.reason.clone()),
        _ => None,
    });
    ends.collect()
}

#[test]
fn a_node_fetches_what_it_lacks_and_nothing_else() {
    let mut world = cluster(2);
    let job = world.submit(map_reduce());
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.outcome(job), Some(JobOutcome::Succeeded));
    let reduced = usize::from(world.nodes[1].executor.launched.iter().any(|(task, _)| task.stage == 1));
    let (other, there) = (NodeId(1 - reduced as u32), &world.nodes[reduced].executor);
    let other_wrote = world.nodes[other.0 as usize].executor.launched[0].0.index;
    assert_eq!(there.fetched, [(mapped(other_wrote), other)]);
    assert_eq!(lost_outputs(&world), []);
    let launch = world.intercepted_launches.iter().find(|(_, launch)| launch.task.stage == 1).map(|(_, launch)| launch);
    let paths: Vec<&str> = launch.unwrap().inputs.iter().map(|input| input.path.as_str()).collect();
    assert_eq!(paths, ["inputs/map/0/o", "inputs/map/1/o"]);
}

#[test]
fn readers_by_index_get_their_own_files() {
    let mut world = cluster(2);
    let stages = vec![writer("map", 3, &["p-{index}", "to-0", "to-1"]), reader("same", 3, "1s", 0, "p-{index}")];
    let shuffled = reader("to", 2, "1s", 0, "to-{index}");
    let job = world.submit(job(stages.into_iter().chain([shuffled]).collect()));
    world.run_for(Duration::from_secs(20));
    assert_eq!(world.outcome(job), Some(JobOutcome::Succeeded));
    let paths = |stage: u32, index: u32| -> Vec<String> {
        let of = |(_, launch): &&(NodeId, Launch)| launch.task == task(job, stage, index);
        let launch = &world.intercepted_launches.iter().find(of).unwrap().1;
        launch.inputs.iter().map(|input| input.path.clone()).collect()
    };
    assert_eq!(paths(1, 2), ["inputs/map/2/p-2"]);
    assert_eq!(paths(2, 1), ["inputs/map/0/to-1", "inputs/map/1/to-1", "inputs/map/2/to-1"]);
}

#[test]
fn later_launches_name_all_nodes_that_have_a_file() {
    let mut world = cluster(2);
    let id = world.submit(job(vec![writer("map", 1, &["o"]), reader("reduce", 3, "5s", 0, "*")]));
    world.run_for(Duration::from_secs(20));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    let named = |index: u32| -> usize {
        let of = |(_, launch): &&(NodeId, Launch)| launch.task == task(id, 1, index);
        world.intercepted_launches.iter().find(of).unwrap().1.inputs[0].holders.len()
    };
    assert_eq!([0, 1, 2].map(named), [1, 1, 2]);
}

#[test]
fn a_task_starts_once_its_files_are_there_and_later_tasks_may_start_before_it() {
    let mut world = World::with_nodes(Preset::FIFO, 2, Resources::new(2_000, 0));
    world.nodes[0].executor.holds_fetches = true;
    world.nodes[1].executor.holds_fetches = true;
    // One core each, so that both nodes write.
    let wide = StageSpec {
        resources: ResourceSpec { basic: Resources::new(2_000, 0), custom: Vec::new() },
        ..writer("map", 2, &["o"])
    };
    let id = world.submit(job(vec![wide, reader("reduce", 1, "1s", 0, "*")]));
    world.run_for(Duration::from_secs(2));
    let awaits = |record: &&Record| matches!(record, Record::AwaitsFiles { files: 1, bytes: FILE_BYTES, .. });
    assert_eq!(world.records.iter().filter(awaits).count(), 1, "{}", world.log.join("\n"));
    let others = world.submit(job(vec![stage("others", 3, "1s", 1_000)]));
    world.run_for(Duration::from_secs(3));
    assert_eq!(world.outcome(others), Some(JobOutcome::Succeeded));
    assert_eq!(attempts_of(&world, task(id, 1, 0)), 0, "it must not start without its files");
    (0..2).for_each(|node| world.deliver_held_fetches(node));
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}

#[test]
fn a_file_with_a_wrong_checksum_is_fetched_again() {
    let mut world = cluster(2);
    (0..2).for_each(|node| world.nodes[node].executor.sends_wrong = 2);
    let job = world.submit(map_reduce());
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.outcome(job), Some(JobOutcome::Succeeded));
    let fetches: usize = world.nodes.iter().map(|node| node.executor.fetched.len()).sum();
    assert_eq!((fetches, lost_outputs(&world).len()), (3, 0));
    assert_eq!(attempts_of(&world, task(job, 1, 0)), 1);
}

#[test]
fn a_file_that_always_arrives_wrong_is_lost_and_its_task_runs_again() {
    let mut world = cluster(2);
    (0..2).for_each(|node| world.nodes[node].executor.sends_wrong = 3);
    let job = world.submit(map_reduce());
    world.run_for(Duration::from_secs(20));
    assert_eq!(world.outcome(job), Some(JobOutcome::Succeeded));
    let lost = lost_outputs(&world);
    assert_eq!(lost.len(), 1, "{}", world.log.join("\n"));
    assert_eq!(attempts_of(&world, lost[0]), 2);
    let ends = reasons(&world, task(job, 1, 0));
    let EndReason::NoInput(why) = &ends[0] else { panic!("{ends:?}") };
    assert!(why.contains("inputs/map/") && why.contains("wrong checksum"), "{why}");
    assert_eq!(ends[1], EndReason::Exit(0));
}

#[test]
fn outputs_of_a_lost_node_are_written_again_if_a_task_reads_them() {
    let mut world = cluster(3);
    // The second stage keeps all nodes busy, so that no node has fetched files for the third when one is lost.
    let stages = vec![writer("map", 3, &["o"]), stage("middle", 3, "10s", 1_000), reader("reduce", 1, "1s", 0, "*")];
    let mut stages = stages;
    stages[1].after = vec![0];
    stages[2].after = vec![0, 1];
    let id = world.submit(job(stages));
    world.run_for(Duration::from_secs(5));
    world.kill_agent(0);
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    assert_eq!(lost_outputs(&world).len(), 1);
    assert_eq!(world.running_tasks(), []);
}

#[test]
fn outputs_without_readers_are_not_written_again() {
    let mut world = cluster(2);
    let id = world.submit(job(vec![writer("map", 2, &["o"]), reader("reduce", 2, "30s", 0, "*")]));
    world.run_for(Duration::from_secs(5));
    // Both readers have their files already, and one of them is lost with its node and runs again.
    assert_eq!(world.running_tasks().len(), 2);
    world.kill_agent(1);
    world.run_for(Duration::from_secs(120));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    // The other node had copies of both files.
    assert_eq!(lost_outputs(&world), []);
}

#[test]
fn a_silent_holder_is_asked_for_a_limited_time() {
    let mut world = cluster(2);
    (0..2).for_each(|node| world.nodes[node].executor.is_silent = true);
    let job = world.submit(map_reduce());
    world.run_for(Duration::from_secs(20));
    assert_eq!((world.outcome(job), lost_outputs(&world).len()), (None, 0));
    let asked: usize = world.nodes.iter().map(|node| node.executor.fetched.len()).sum();
    assert!((8..15).contains(&asked), "{asked}");
    world.run_for(Duration::from_secs(20));
    assert_eq!(lost_outputs(&world).len(), 1, "{}", world.log.join("\n"));
}

#[test]
fn committed_files_survive_a_server_restart() {
    let mut world = cluster(2);
    let mut stages = vec![writer("map", 2, &["o"]), stage("middle", 1, "5s", 1_000), reader("reduce", 1, "1s", 0, "*")];
    stages[1].after = vec![0];
    stages[2].after = vec![0, 1];
    let job = world.submit(job(stages));
    world.run_for(Duration::from_secs(2));
    world.kill_server();
    world.start_server();
    world.settle();
    assert_eq!(attempts_of(&world, task(job, 2, 0)), 0, "the next server launches it");
    world.run_for(Duration::from_secs(30));
    assert_eq!(world.outcome(job), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    assert_eq!(lost_outputs(&world), []);
    for index in 0..2 {
        assert_eq!(attempts_of(&world, task(job, 0, index)), 1);
    }
    let launch = world.intercepted_launches.iter().find(|(_, launch)| launch.task.stage == 2).map(|(_, launch)| launch);
    let inputs = launch.unwrap().inputs.iter();
    let reported: Vec<(Digest, u64, usize)> =
        inputs.map(|input| (input.digest, input.bytes, input.holders.len())).collect();
    assert_eq!(reported, [(mapped(0), FILE_BYTES, 1), (mapped(1), FILE_BYTES, 1)]);
}

#[test]
fn a_holder_with_a_damaged_copy_is_not_asked_again() {
    let mut world = cluster(2);
    (0..2).for_each(|node| world.nodes[node].executor.spoils = 1);
    let id = world.submit(map_reduce());
    world.run_for(Duration::from_secs(20));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    assert_eq!(lost_outputs(&world).len(), 1);
    let EndReason::NoInput(why) = &reasons(&world, task(id, 1, 0))[0] else { panic!("the reader ended differently") };
    assert!(why.contains("had a damaged copy"), "{why}");
    let fetches: usize = world.nodes.iter().map(|node| node.executor.fetched.len()).sum();
    assert!(fetches <= 2, "at most one fetch, and one more for the file that was written again: {fetches}");
}

#[test]
fn a_reader_whose_file_is_lost_with_the_executor_runs_again() {
    let mut world = cluster(1);
    let stages = vec![writer("map", 1, &["o"]), reader("reduce", 1, "20s", 0, "*")];
    let id = world.submit(job(stages));
    world.run_for(Duration::from_secs(3));
    // In this test its files are lost with it, and the reader is tried again.
    world.kill_executor(0);
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    assert_eq!(lost_outputs(&world), [task(id, 0, 0)]);
    assert!(reasons(&world, task(id, 1, 0)).iter().any(|reason| matches!(reason, EndReason::NoInput(_))));
}

/// Readers on both nodes, some of which continue while a short one ends and another takes its place. Returns the job
/// and the node of the short one.
fn one_reader_follows(world: &mut World) -> (JobId, usize) {
    let mut items = Items::default();
    ["30s", "30s", "30s", "5s", "5s"].into_iter().for_each(|item| items.push(item).expect("the items are small"));
    let readers = StageSpec { tasks: TaskSet::Each(items), ..reader("reduce", 5, "-", 0, "*") };
    let id = world.submit(job(vec![writer("map", 1, &["o"]), readers]));
    world.run_for(Duration::from_secs(3));
    let short = task(id, 1, 3);
    let has_short = |host: &NodeHost| host.executor.running.values().any(|(order, ..)| order.task == short);
    let place = world.nodes.iter().position(has_short).expect("the short reader runs");
    (id, place)
}

#[test]
fn a_file_that_is_gone_under_a_running_reader_is_fetched_for_the_next_one() {
    let mut world = World::with_nodes(Preset::FIFO, 2, Resources::new(2_000, 0));
    let (id, place) = one_reader_follows(&mut world);
    assert_eq!(world.nodes[place].executor.running.len(), 2, "another reader continues with the file");
    world.nodes[place].executor.files.clear();
    world.nodes[place].executor.fetched.clear();
    world.run_for(Duration::from_secs(10));
    let last = task(id, 1, 4);
    let ends = reasons(&world, last);
    assert!(matches!(ends[..], [EndReason::NoInput(_), EndReason::Exit(0)]), "{}", world.log.join("\n"));
    assert_eq!(world.nodes[place].executor.fetched, [(mapped(0), NodeId(1 - place as u32))]);
    assert_eq!(lost_outputs(&world), []);
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}

/// Two nodes have a file, and many tasks that read it wait at one of them. Returns the job and that node.
fn many_wait(world: &mut World) -> (JobId, usize) {
    // The first readers bring the file to both nodes.
    let mut stages = vec![writer("map", 1, &["o"]), reader("both", 4, "1s", 0, "*"), reader("many", 8, "5s", 0, "*")];
    stages[2].after.push(1);
    stages[2].execution = ExecutionType::Opportunistic;
    let id = world.submit(job(stages));
    world.run_for(Duration::from_secs(4));
    let waits = |host: &NodeHost| host.agent.as_ref().unwrap().queued().len() > 2;
    let place = world.nodes.iter().position(waits).expect("readers wait at a node");
    (id, place)
}

#[test]
fn a_reader_that_has_not_started_waits_again_for_a_file_that_is_gone() {
    let mut world = World::with_nodes(Preset::MERCURY, 2, Resources::new(2_000, 0));
    let (id, place) = many_wait(&mut world);
    world.nodes[place].executor.files.clear();
    world.nodes[place].executor.fetched.clear();
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    let in_vain = |index: &u32| reasons(&world, task(id, 2, *index)).len() > 1;
    // Only the readers that were launched at once failed.
    assert!((1..=2).contains(&(0..8).filter(in_vain).count()), "{}", world.log.join("\n"));
    assert_eq!(world.nodes[place].executor.fetched, [(mapped(0), NodeId(1 - place as u32))]);
    assert_eq!(lost_outputs(&world), []);
}

#[test]
fn an_executor_that_lists_no_files_has_none() {
    let mut world = World::with_nodes(Preset::MERCURY, 2, Resources::new(2_000, 0));
    let (id, place) = many_wait(&mut world);
    world.kill_executor(place);
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    let all = (0..8).flat_map(|index| reasons(&world, task(id, 2, index)));
    let in_vain: Vec<_> = all.filter(|reason| matches!(reason, EndReason::NoInput(_))).collect();
    assert_eq!(in_vain, [], "the file is fetched again for waiting readers");
    assert_eq!(lost_outputs(&world), []);
}

/// One node with room for this many files.
fn small(files: u64) -> World {
    let mut world = World::new(Preset::FIFO);
    world.cache_bytes = files * FILE_BYTES;
    world.start_server();
    world.add_node(CORE, &[]);
    world.settle();
    world
}

#[test]
fn the_least_recently_used_file_is_dropped_and_files_with_readers_are_kept() {
    let mut world = small(3);
    let first = world.submit(job(vec![writer("a", 2, &["o"]), reader("b", 1, "1s", 0, "*")]));
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.outcome(first), Some(JobOutcome::Succeeded));
    let has = |world: &World, name: &str| world.nodes[0].executor.files.contains_key(&digest_of(name));
    // One more file fits; of two more, one of the first two is dropped.
    world.submit(job(vec![writer("c", 2, &["o"]), reader("d", 1, "1s", 0, "*")]));
    world.run_for(Duration::from_secs(5));
    assert_eq!((has(&world, "a/0/o"), has(&world, "a/1/o")), (false, true), "{:?}", world.nodes[0].executor.files);
    assert!(has(&world, "c/0/o") && has(&world, "c/1/o"));
    assert_eq!(world.nodes[0].executor.files.len(), 3);
}

#[test]
fn a_task_that_reads_more_than_a_node_keeps_fails_with_a_remedy() {
    let mut world = small(1);
    // Its second file makes the node drop the first.
    let id = world.submit(job(vec![writer("a", 1, &["o", "p"]), reader("b", 1, "1s", 0, "*")]));
    world.run_for(Duration::from_secs(100));
    assert_eq!(world.outcome(id), Some(JobOutcome::Failed { exit_code: 126 }), "{}", world.log.join("\n"));
    let ends = reasons(&world, task(id, 1, 0));
    let Some(EndReason::NoInput(why)) = ends.last() else { panic!("{ends:?}") };
    assert!(why.contains("2000 bytes") && why.contains("larger --cache"), "{why}");
}

#[test]
fn a_job_that_is_forgotten_leaves_no_files() {
    let mut world = small(10);
    world.settings.dispatch.kept_jobs = 1;
    world.kill_server();
    world.start_server();
    world.settle();
    for _ in 0..3 {
        world.submit(job(vec![writer("a", 1, &["o"]), reader("b", 1, "1s", 0, "*")]));
        world.run_for(Duration::from_secs(5));
    }
    assert_eq!(world.nodes[0].executor.files.len(), 1);
    world.submit(job(vec![writer("other", 1, &["o"])]));
    world.submit(job(vec![stage("last", 1, "1s", 1_000)]));
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.nodes[0].executor.files.len(), 0, "{:?}", world.nodes[0].executor.files);
}

#[test]
fn a_file_of_two_jobs_is_kept_until_both_are_forgotten() {
    let mut world = World::new(Preset::FIFO);
    world.settings.dispatch.kept_jobs = 1;
    world.start_server();
    world.add_node(Resources::new(2_000, 0), &[]);
    world.settle();
    let mut late = vec![writer("a", 1, &["o"]), stage("middle", 1, "20s", 1_000), reader("b", 1, "1s", 0, "*")];
    late[1].after = vec![0];
    late[2].after = vec![0, 1];
    let late = world.submit(job(late));
    world.run_for(Duration::from_secs(2));
    // Another job stores the same file, is the last to use it, and is forgotten.
    world.submit(job(vec![writer("a", 1, &["o"]), reader("b", 1, "1s", 0, "*")]));
    world.run_for(Duration::from_secs(5));
    world.submit(job(vec![stage("last", 1, "1s", 1_000)]));
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.nodes[0].executor.files.len(), 1);
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.outcome(late), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    assert_eq!(lost_outputs(&world), []);
    world.submit(job(vec![stage("last", 1, "1s", 1_000)]));
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.nodes[0].executor.files.len(), 0);
}

/// Files that a reader waits for are fetched before the node has room for it.
#[test]
fn files_are_fetched_while_the_task_waits_in_the_queue() {
    let mut world = World::with_nodes(Preset::MERCURY, 2, CORE);
    let mut stages = map_reduce().stages;
    stages[1].execution = ExecutionType::Opportunistic;
    let id = world.submit(job(stages));
    world.run_for(Duration::from_millis(500));
    // Both nodes are busy before the reader could start.
    world.submit(job(vec![stage("busy", 2, "30s", 1_000)]));
    world.run_for(Duration::from_secs(3));
    let fetched: usize = world.nodes.iter().map(|node| node.executor.fetched.len()).sum();
    assert_eq!((fetched, attempts_of(&world, task(id, 1, 0))), (1, 0), "{}", world.log.join("\n"));
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}

#[test]
fn no_task_waits_for_a_file_of_a_lost_node() {
    let mut world = cluster(2);
    (0..2).for_each(|node| world.nodes[node].executor.is_silent = true);
    let id = world.submit(map_reduce());
    world.run_for(Duration::from_secs(3));
    let waits = |host: &NodeHost| !host.executor.fetched.is_empty();
    let reader = world.nodes.iter().position(waits).expect("one node waits for the other's file");
    world.kill_agent(1 - reader);
    // Longer than the grace of the node, and shorter than the time for which a silent holder is asked.
    world.run_for(Duration::from_secs(25));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    let ends = reasons(&world, task(id, 1, 0));
    assert!(matches!(&ends[0], EndReason::Withdrawn(why) if why.contains("is written again")), "{ends:?}");
    let record = *world.server.as_ref().unwrap().jobs[&id].dag().stage(1).record(0).unwrap();
    assert_eq!(record.losses, 0, "a lost input is no loss of its reader");
}

#[test]
fn a_job_that_chooses_nodes_itself_sends_tasks_to_its_files() {
    // Large files, so that transfers take time; the node that has most is the last one by number.
    let mut world = World::new(Preset::APOLLO);
    world.file_bytes = 10 << 30;
    world.cache_bytes = 1 << 40;
    world.start_server();
    (0..4).for_each(|_| world.add_node(CORE, &[]));
    world.settle();
    world.run_for(Duration::from_secs(20));
    for _ in 0..5 {
        let id = world.submit(job(vec![writer("map", 1, &["o"]), reader("reduce", 1, "1s", 0, "*")]));
        world.run_for(Duration::from_secs(60));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    }
    let fetched: usize = world.nodes.iter().map(|node| node.executor.fetched.len()).sum();
    assert_eq!(fetched, 0, "each reader runs on its writer's node");
}

// ---- guaranteed work has priority ----------------------------------------------------------------------------------

/// The stage on nodes of this kind.
fn on(kind: &str, stage: StageSpec) -> StageSpec {
    StageSpec { constraints: vec![Constraint::parse(&format!("kind={kind}")).expect("a constraint")], ..stage }
}

/// A node of two cores with room for this many files, and two nodes that write them.
fn small_beside_large(files: u64) -> World {
    let mut world = World::new(Preset::MERCURY);
    world.start_server();
    world.cache_bytes = files * FILE_BYTES;
    world.add_node(Resources::new(2_000, 0), &[("kind", "small")]);
    world.cache_bytes = 100 * FILE_BYTES;
    world.add_node(Resources::new(4_000, 0), &[("kind", "large")]);
    world.add_node(Resources::new(4_000, 0), &[("kind", "other")]);
    world.settle();
    world
}

/// A job on the small node that reads this many files of a large node.
fn reads(world: &mut World, from: &str, files: usize, execution: ExecutionType, run: &str, cpu_millis: u32) -> JobId {
    let names: Vec<String> = (0..files).map(|number| format!("o{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let name = format!("w{}", world.disk.len());
    let mut reader = StageSpec { execution, ..on("small", reader("r", 1, run, 0, "*")) };
    reader.resources.basic = Resources::new(cpu_millis, 0);
    world.submit(job(vec![on(from, writer(&name, 1, &names)), reader]))
}

#[test]
fn a_guaranteed_reader_gets_the_room_of_a_running_opportunistic_one() {
    let mut world = small_beside_large(2);
    let first = reads(&mut world, "large", 2, ExecutionType::Opportunistic, "100s", 1_000);
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.running_tasks(), [task(first, 1, 0)]);
    let second = reads(&mut world, "large", 1, ExecutionType::Guaranteed, "1s", 1_000);
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.outcome(second), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    assert_eq!(reasons(&world, task(first, 1, 0)), [EndReason::Preempted]);
    let says_why = |record: &&Record| matches!(record, Record::Preempting { by, .. } if by.job == second);
    assert_eq!(world.records.iter().filter(says_why).count(), 1);
    world.run_for(Duration::from_secs(200));
    assert_eq!(world.outcome(first), Some(JobOutcome::Succeeded));
}

#[test]
fn waiting_opportunistic_readers_lose_their_room_before_running_ones_are_stopped() {
    let mut world = small_beside_large(4);
    let runs = reads(&mut world, "large", 1, ExecutionType::Opportunistic, "40s", 1_000);
    world.run_for(Duration::from_secs(5));
    let waits = [1, 2].map(|files| {
        let id = reads(&mut world, "large", files, ExecutionType::Opportunistic, "5s", 2_000);
        world.run_for(Duration::from_secs(5));
        id
    });
    world.nodes[0].executor.fetched.clear();
    let guaranteed = reads(&mut world, "large", 1, ExecutionType::Guaranteed, "1s", 1_000);
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.outcome(guaranteed), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    assert_eq!(world.running_tasks(), [task(runs, 1, 0)]);
    world.run_for(Duration::from_secs(100));
    for id in [runs, waits[0], waits[1]] {
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
        assert_eq!(reasons(&world, task(id, 1, 0)), [EndReason::Exit(0)], "{}", world.log.join("\n"));
    }
    // The newest reader returned to the line, and one of its two files was dropped.
    assert_eq!(world.nodes[0].executor.fetched.len(), 2, "{:?}", world.nodes[0].executor.fetched);
}

#[test]
fn files_of_guaranteed_tasks_are_fetched_beside_those_of_opportunistic_ones() {
    let mut world = small_beside_large(100);
    world.nodes[0].executor.holds_fetches = true;
    reads(&mut world, "large", 6, ExecutionType::Opportunistic, "1s", 1_000);
    world.run_for(Duration::from_secs(5));
    let second = reads(&mut world, "other", 1, ExecutionType::Guaranteed, "1s", 1_000);
    world.run_for(Duration::from_secs(5));
    world.deliver_held_fetch(0, NodeId(2));
    world.run_for(Duration::from_secs(3));
    assert_eq!(world.outcome(second), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
}

#[test]
fn a_gang_whose_tasks_together_read_more_than_their_node_keeps_fails_with_a_remedy() {
    for (kept, outcome) in [(2, JobOutcome::Succeeded), (1, JobOutcome::Failed { exit_code: 126 })] {
        let mut world = small_beside_large(kept);
        let mut readers = StageSpec { gang: true, ..on("small", reader("r", 2, "1s", 0, "to-{index}")) };
        readers.execution = ExecutionType::Guaranteed;
        let id = world.submit(job(vec![on("large", writer("w", 1, &["to-0", "to-1"])), readers]));
        world.run_for(Duration::from_secs(200));
        assert_eq!(world.outcome(id), Some(outcome), "{}", world.log.join("\n"));
        let why = format!("{:?}", [0, 1].map(|index| reasons(&world, task(id, 1, index))));
        assert_eq!(kept == 1, why.contains("it and other tasks of its gang here read 2000 bytes"), "{why}");
    }
}
