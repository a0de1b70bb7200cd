//! Files that arrive slowly: their writer runs once more elsewhere, and the copy that is there first is read.

use crate::world::{World, job, stage};
use amalgam_core::job_manager::JobManager;
use amalgam_core::preset::Preset;
use amalgam_core::progress::TaskState;
use amalgam_core::protocol::{Address, JobOutcome, Rule, ToJobManager};
use amalgam_core::role::{Change, Event, LostCause, Outbox, Record, Role};
use amalgam_core::vocabulary::*;

const CORE: Resources = Resources::new(1_000, 0);
/// The index of the node that reads.
const READER: usize = 3;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn on(kind: &str, stage: StageSpec) -> StageSpec {
    StageSpec { constraints: vec![Constraint::parse(&format!("kind={kind}")).expect("a constraint")], ..stage }
}

/// Two tasks have written a file each, on two of three nodes. The reader of both files waits for them on a fourth node,
/// which receives no files yet.
struct Scene {
    world: World,
    job: JobId,
}

fn scene(preset: Preset) -> Scene {
    let mut world = World::new(preset);
    world.start_server();
    for kind in ["map", "map", "map", "reduce"] {
        world.add_node(CORE, &[("kind", kind)]);
    }
    world.settle();
    world.nodes[READER].executor.holds_fetches = true;
    world.run_for(seconds(10));
    let map = StageSpec { outputs: vec!["o".to_owned()], ..stage("map", 2, "2s", 1_000) };
    let inputs = vec![InputSpec { stage: 0, files: "*".to_owned() }];
    let reduce = StageSpec { after: vec![0], inputs, ..stage("reduce", 1, "1s", 1_000) };
    let id = world.submit(job(vec![on("map", map), on("reduce", reduce)]));
    for _ in 0..200 {
        world.run_for(Duration::from_millis(100));
        if world.server.as_ref().unwrap().jobs[&id].dag().stage(0).succeeded == 2 {
            return Scene { world, job: id };
        }
    }
    panic!("no file is written:\n{}", world.log.join("\n"));
}

impl Scene {
    fn manager(&mut self) -> &mut JobManager {
        self.world.server.as_mut().unwrap().jobs.get_mut(&self.job).unwrap()
    }

    fn task(&self, index: u32) -> TaskId {
        TaskId { job: self.job, stage: 0, index }
    }

    /// The node of the first task's file, and the attempt that wrote it.
    fn holder(&mut self) -> (usize, AttemptId) {
        let task = self.task(0);
        let node = self.manager().dag().stage(0).record(0).unwrap().node;
        (node.0 as usize, self.finished(task)[0])
    }

    /// The attempts whose ends counted as ends of the task.
    fn finished(&self, of: TaskId) -> Vec<AttemptId> {
        let finished = |change: &Change| match change {
            Change::Finished { attempt, task, .. } if *task == of => Some(*attempt),
            _ => None,
        };
        self.world.disk.iter().filter_map(finished).collect()
    }

    fn copies(&self) -> Vec<(AttemptId, TaskId, NodeId)> {
        let copy = |change: &Change| match change {
            Change::Launched { attempt, task, node, rule: Rule::Copy, .. } => Some((*attempt, *task, *node)),
            _ => None,
        };
        self.world.disk.iter().filter_map(copy).collect()
    }

    /// Runs until a copy is launched.
    fn run_until_copied(&mut self) -> (AttemptId, TaskId, NodeId) {
        for _ in 0..200 {
            self.world.run_for(Duration::from_millis(100));
            if let Some(copy) = self.copies().first() {
                return *copy;
            }
        }
        panic!("no file is copied:\n{}", self.world.log.join("\n"));
    }

    fn reported(&mut self, by: NodeId, body: ToJobManager) -> Outbox {
        let (now, mut out) = (self.world.now, Outbox::default());
        self.manager().handle(now, Event::Message { from: Address::Node(by), body }, &mut out);
        out
    }

    fn succeeded(&self) {
        assert_eq!(self.world.outcome(self.job), Some(JobOutcome::Succeeded), "{}", self.world.log.join("\n"));
        assert!(self.world.nodes.iter().all(|host| host.executor.running.is_empty()), "no attempt is left running");
    }
}

#[test]
fn a_file_of_a_silent_node_is_written_again_elsewhere_and_read_from_there() {
    let mut scene = scene(Preset::APOLLO);
    let (holder, attempt) = scene.holder();
    scene.world.nodes[holder].executor.is_silent = true;
    scene.world.deliver_held_fetches(READER);
    let begin = scene.world.now;
    let (_, task, node) = scene.run_until_copied();
    let others = [NodeId(holder as u32), NodeId(READER as u32)];
    assert!(task == scene.task(0) && !others.contains(&node), "{task} on {node}");
    assert!(scene.world.now >= begin + seconds(3), "the copy is not launched at once");
    scene.world.run_for(seconds(10));
    scene.succeeded();
    assert_eq!(scene.world.nodes[READER].executor.fetched.last().map(|(_, from)| *from), Some(node));
    let task = scene.task(0);
    assert_eq!(scene.finished(task), [attempt], "the task's result is that of its first attempt");
    assert_eq!(scene.copies().len(), 1);
    let reported = |record: &&Record| matches!(record, Record::SlowInput { writer, .. } if *writer == task);
    assert_eq!(scene.world.records.iter().filter(reported).count(), 1);
    let reruns = scene.world.disk.iter().filter(|change| matches!(change, Change::OutputLost { .. })).count();
    assert_eq!(reruns, 0, "the output was never lost");
}

#[test]
fn the_copy_that_is_there_first_is_read() {
    let mut scene = scene(Preset::APOLLO);
    scene.run_until_copied();
    scene.world.run_for(Duration::from_millis(500));
    // The first transfer was not as slow as it seemed.
    scene.world.deliver_held_fetches(READER);
    scene.world.settle();
    let copies = scene.copies();
    let superseded =
        |(attempt, ..): &(AttemptId, TaskId, NodeId)| scene.world.losses().get(attempt) == Some(&LostCause::Superseded);
    assert!(copies.iter().all(superseded), "no reader waits for the copies any more: {}", scene.world.log.join("\n"));
    scene.world.run_for(seconds(5));
    scene.succeeded();
}

#[test]
fn both_transfers_may_complete() {
    let mut scene = scene(Preset::APOLLO);
    let (copy, ..) = scene.run_until_copied();
    scene.world.run_for(seconds(4));
    assert_eq!(scene.world.losses().get(&copy), Some(&LostCause::Copied), "{}", scene.world.log.join("\n"));
    scene.world.deliver_held_fetches(READER);
    scene.world.run_for(seconds(5));
    scene.succeeded();
}

#[test]
fn an_absent_file_at_the_first_holder_does_not_affect_the_second() {
    let mut scene = scene(Preset::APOLLO);
    let (copy, task, node) = scene.run_until_copied();
    scene.world.run_for(seconds(4));
    assert_eq!(scene.world.losses().get(&copy), Some(&LostCause::Copied), "{}", scene.world.log.join("\n"));
    let holder = scene.manager().dag().stage(0).record(task.index).unwrap().node;
    scene.world.nodes[holder.0 as usize].executor.files.clear();
    let file = scene.world.deliver_held_fetch(READER, holder);
    scene.world.run_for(seconds(1));
    scene.world.deliver_held_fetches(READER);
    scene.world.run_for(seconds(5));
    scene.succeeded();
    let asked = &scene.world.nodes[READER].executor.fetched;
    let asked: Vec<NodeId> = asked.iter().filter(|(digest, _)| *digest == file).map(|(_, from)| *from).collect();
    assert_eq!(asked, [node], "each holder is asked once: {}", scene.world.log.join("\n"));
}

#[test]
fn a_copy_that_fails_or_is_lost_changes_nothing() {
    for is_lost in [false, true] {
        let mut scene = scene(Preset::APOLLO);
        let (copy, task, node) = scene.run_until_copied();
        let body = match is_lost {
            true => ToJobManager::NodeLost { node },
            false => {
                ToJobManager::Finished { attempt: copy, ended: Ended::without_run(EndReason::Exit(1)), instead: None }
            }
        };
        let out = scene.reported(node, body);
        let lost = |change: &Change| matches!(change, Change::Lost { attempt, last: false, .. } if *attempt == copy);
        assert!(out.changes.iter().any(lost), "{:?}", out.changes);
        let record = *scene.manager().dag().stage(0).record(task.index).unwrap();
        assert_eq!((record.state, record.failures, record.losses), (TaskState::Succeeded, 0, 0));
    }
}

#[test]
fn no_copy_is_launched_if_it_takes_longer_or_progress_is_not_watched() {
    let mut never = Preset::APOLLO;
    never.entitled_mut().unwrap().corrections.as_mut().unwrap().progress_every = None;
    let mut far = scene(Preset::APOLLO);
    far.world.run_for(seconds(5));
    assert_eq!(far.copies(), [], "the reader has not waited for long");
    let mut without = scene(never);
    without.world.run_for(seconds(25));
    assert_eq!(without.copies(), []);
}

#[test]
fn a_server_restarted_after_any_change_knows_the_copy() {
    let mut scene = scene(Preset::APOLLO);
    let (copy, ..) = scene.run_until_copied();
    scene.world.run_for(seconds(4));
    scene.world.deliver_held_fetches(READER);
    scene.world.run_for(seconds(5));
    scene.succeeded();
    let log = scene.world.disk.clone();
    let mut out_there = 0;
    for length in 0..=log.len() {
        let manager = scene.world.recovered(scene.job, &log[..length]);
        let again = scene.world.recovered(scene.job, &manager.durable());
        assert_eq!(again.durable(), manager.durable());
        if manager.running().any(|(attempt, ..)| attempt == copy) {
            out_there += 1;
            assert_eq!(manager.dag().stage(0).succeeded, 2, "a copy is no try of its task");
        }
    }
    assert!(out_there > 0);
}

#[test]
fn a_server_killed_while_a_copy_runs_claims_it() {
    let mut scene = scene(Preset::APOLLO);
    let (copy, ..) = scene.run_until_copied();
    scene.world.kill_server();
    scene.world.start_server();
    scene.world.run_for(seconds(4));
    assert!(scene.world.losses().contains_key(&copy), "{}", scene.world.log.join("\n"));
    scene.world.deliver_held_fetches(READER);
    scene.world.run_for(seconds(5));
    scene.succeeded();
}

#[test]
fn a_writer_whose_output_is_lost_runs_again_and_its_copy_is_stopped() {
    let mut scene = scene(Preset::APOLLO);
    let (holder, _) = scene.holder();
    let (copy, task, _) = scene.run_until_copied();
    let writer = scene.manager().dag().stage(0).record(task.index).unwrap().node;
    let out = scene.reported(writer, ToJobManager::NodeLost { node: writer });
    let reopened = |change: &Change| matches!(change, Change::OutputLost { task: of, .. } if *of == task);
    assert!(out.changes.iter().any(reopened), "{:?}", out.changes);
    let ended = |change: &Change| matches!(change, Change::Lost { attempt, cause: LostCause::Superseded, .. } if *attempt == copy);
    assert!(out.changes.iter().any(ended), "{:?}", out.changes);
    assert!(holder < READER);
}
