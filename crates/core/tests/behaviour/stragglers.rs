//! Attempts that make slow progress: which attempts are found to be slow, what happens to the two attempts of a task
//! that race, and that a job manager knows both after a restart.

use crate::world::{World, job, stage};
use amalgam_core::job_manager::JobManager;
use amalgam_core::preset::Preset;
use amalgam_core::progress::TaskState;
use amalgam_core::protocol::{Address, JobAction, JobOutcome, Rule, ToJobManager};
use amalgam_core::role::{Change, Event, LostCause, Outbox, Record, Role};
use amalgam_core::vocabulary::{
    AttemptId, Duration, EndReason, Ended, ExecutionType, Instant, Items, JobId, NodeId, Resources, Sample, StageSpec,
    TaskSet, Workdir,
};
use std::sync::Arc;

const TWO: Resources = Resources::new(2_000, 0);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn tasks(count: u32, length: &str) -> StageSpec {
    let mut stage = StageSpec { execution: ExecutionType::Guaranteed, ..stage("only", count, length, 1_000) };
    Arc::make_mut(&mut stage.program).workdir = Workdir::Own;
    stage
}

fn lasting(lengths: &[&str]) -> StageSpec {
    let mut items = Items::default();
    lengths.iter().for_each(|length| items.push(length).expect("short"));
    StageSpec { tasks: TaskSet::Each(items), ..tasks(1, "1s") }
}

/// Nodes of two cores each. Tasks take this many times as long on the first node.
fn world(nodes: u32, slowness: u64) -> World {
    let mut world = World::with_nodes(Preset::APOLLO, nodes, TWO);
    world.nodes[0].executor.slowness = slowness;
    world.run_for(seconds(10));
    world
}

/// The launches of a job, each with its rule and its node.
fn launches(world: &World, job: JobId) -> Vec<(AttemptId, Rule, NodeId)> {
    let launch = |change: &Change| match change {
        Change::Launched { attempt, rule, node, .. } if attempt.job == job => Some((*attempt, *rule, *node)),
        _ => None,
    };
    world.disk.iter().filter_map(launch).collect()
}

fn rivals(world: &World, job: JobId) -> Vec<(AttemptId, NodeId)> {
    let all = launches(world, job).into_iter();
    all.filter(|(_, rule, _)| *rule == Rule::Straggler).map(|(attempt, _, node)| (attempt, node)).collect()
}

/// The attempts of a job that succeeded.
fn winners(world: &World, job: JobId) -> Vec<AttemptId> {
    let won = |change: &Change| match change {
        Change::Finished { attempt, ended, .. } if attempt.job == job && ended.reason.is_success() => Some(*attempt),
        _ => None,
    };
    world.disk.iter().filter_map(won).collect()
}

fn overtaken(world: &World) -> Vec<(AttemptId, AttemptId)> {
    let overtaken = |record: &Record| match record {
        Record::Overtaken { attempt, by, .. } => Some((*attempt, *by)),
        _ => None,
    };
    world.records.iter().filter_map(overtaken).collect()
}

fn succeeded(world: &World, job: JobId) {
    assert_eq!(world.outcome(job), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
}

// ---- which attempts are slow ---------------------------------------------------------------------------------------

#[test]
fn slow_attempts_of_a_stage_get_duplicates_elsewhere_and_are_overtaken() {
    let mut world = world(3, 10);
    let id = world.submit(job(vec![tasks(5, "10s")]));
    world.run_for(seconds(5));
    let mut slow: Vec<AttemptId> =
        launches(&world, id).iter().filter(|(.., node)| *node == NodeId(0)).map(|(attempt, ..)| *attempt).collect();
    slow.sort_unstable();
    assert!((1..=2).contains(&slow.len()), "{slow:?}");
    world.run_for(seconds(35));
    let rivals = rivals(&world, id);
    assert_eq!(rivals.len(), slow.len(), "{}", world.log.join("\n"));
    assert!(rivals.iter().all(|(_, node)| *node != NodeId(0)));
    let mut overtaken: Vec<AttemptId> = overtaken(&world).iter().map(|(slow, _)| *slow).collect();
    overtaken.sort_unstable();
    assert_eq!(overtaken, slow);
    assert!(slow.iter().all(|attempt| world.losses().get(attempt) == Some(&LostCause::Superseded)));
    assert_eq!(winners(&world, id).len(), 5);
    succeeded(&world, id);
    assert!(world.end_of(id) < Instant(0) + seconds(50), "the job does not wait for the slow attempts");
    let received = world.records.iter().find_map(|record| match record {
        Record::Straggles { node, part, left, elsewhere, takes, .. } => Some((*node, *part, *left, *elsewhere, *takes)),
        _ => None,
    });
    let (node, part, left, elsewhere, takes) = received.expect("a straggler was found");
    assert!(node == NodeId(0) && elsewhere != node);
    assert!((50_000..200_000).contains(&part), "{part}");
    assert!((seconds(80)..seconds(95)).contains(&left) && (seconds(9)..seconds(16)).contains(&takes), "{left} {takes}");
}

#[test]
fn a_longer_task_is_no_straggler() {
    let mut world = world(3, 1);
    let id = world.submit(job(vec![lasting(&["10s", "10s", "10s", "100s"])]));
    world.run_for(seconds(200));
    assert_eq!(rivals(&world, id), [], "{}", world.log.join("\n"));
    succeeded(&world, id);
}

#[test]
fn tasks_that_share_a_directory_never_run_twice_at_the_same_time() {
    let mut world = world(3, 10);
    let mut shared = tasks(5, "10s");
    Arc::make_mut(&mut shared.program).workdir = Workdir::Submitted;
    let id = world.submit(job(vec![shared]));
    world.run_for(seconds(150));
    assert_eq!(rivals(&world, id), []);
    succeeded(&world, id);
}

#[test]
fn no_attempt_is_slow_if_all_are_equally_slow() {
    let mut world = world(3, 1);
    world.nodes.iter_mut().for_each(|host| host.executor.slowness = 10);
    let id = world.submit(job(vec![tasks(5, "10s")]));
    world.run_for(seconds(150));
    assert_eq!(rivals(&world, id), [], "{}", world.log.join("\n"));
    succeeded(&world, id);
}

#[test]
fn a_task_that_is_nearly_done_gets_no_duplicate() {
    // Tasks take six times as long in one case, so that much is left when the others have ended and show the usual
    // speed.
    for (slowness, expected) in [(2, 0), (6, 1)] {
        let mut world = world(2, slowness);
        let id = world.submit(job(vec![tasks(3, "12s")]));
        world.run_for(seconds(100));
        let found = rivals(&world, id).len();
        assert!(found <= 2 && (found > 0) == (expected > 0), "{slowness}: {}", world.log.join("\n"));
        succeeded(&world, id);
    }
}

#[test]
fn no_duplicate_is_sent_to_a_slow_or_full_node() {
    let mut world = world(2, 10);
    let others = world.submit(job(vec![tasks(2, "10s")]));
    world.run_for(seconds(1));
    let id = world.submit(job(vec![tasks(2, "10s")]));
    world.run_for(seconds(1));
    world.submit(job(vec![tasks(2, "300s")]));
    world.run_for(seconds(60));
    for job in [others, id] {
        let on_slow = launches(&world, job).iter().filter(|(.., node)| *node == NodeId(0)).count();
        let found = rivals(&world, job);
        assert!(found.len() <= on_slow && found.iter().all(|(_, node)| *node == NodeId(1)), "{found:?}");
    }
}

#[test]
fn progress_is_not_measured_if_stragglers_are_not_looked_for() {
    let mut never = Preset::APOLLO;
    never.entitled_mut().unwrap().corrections.as_mut().unwrap().progress_every = None;
    let mut none = Preset::APOLLO;
    none.entitled_mut().unwrap().corrections = None;
    for preset in [Preset::DRF, Preset::MERCURY, never, none] {
        let mut world = World::with_nodes(preset, 2, TWO);
        world.nodes[0].executor.slowness = 10;
        let id = world.submit(job(vec![tasks(4, "10s")]));
        world.run_for(seconds(150));
        succeeded(&world, id);
        assert!(world.nodes.iter().all(|host| host.executor.measured == 0));
    }
}

#[test]
fn progress_is_measured_at_intervals_that_are_longer_for_long_tasks() {
    let mut preset = Preset::APOLLO;
    preset.entitled_mut().unwrap().guaranteed = 100;
    let mut world = World::with_nodes(preset, 1, TWO);
    for (expected, asked) in [(None, 33), (Some(seconds(100)), 16)] {
        let before = world.nodes[0].executor.measured;
        let id = world.submit(job(vec![StageSpec { expected, ..tasks(2, "100s") }]));
        world.run_for(seconds(110));
        succeeded(&world, id);
        let more = world.nodes[0].executor.measured - before;
        assert!((asked - 1..=asked).contains(&more), "{more} times, of two tasks together");
    }
}

#[test]
fn short_tasks_are_measured_only_when_late() {
    let short = || job(vec![StageSpec { expected: Some(seconds(2)), ..tasks(6, "2s") }]);
    for (slowness, is_asked) in [(1, false), (10, true)] {
        let mut world = world(3, slowness);
        let id = world.submit(short());
        world.run_for(seconds(60));
        succeeded(&world, id);
        let measured: usize = world.nodes.iter().map(|host| host.executor.measured).sum();
        assert_eq!((measured > 0, !rivals(&world, id).is_empty()), (is_asked, is_asked), "{}", world.log.join("\n"));
    }
}

#[test]
fn a_restarted_agent_continues_to_report_progress() {
    let mut world = world(2, 10);
    let id = world.submit(job(vec![tasks(3, "10s")]));
    world.run_for(seconds(2));
    world.kill_agent(0);
    world.start_agent(0);
    world.run_for(seconds(40));
    assert!(!rivals(&world, id).is_empty(), "{}", world.log.join("\n"));
    succeeded(&world, id);
}

// ---- what happens to the two attempts ------------------------------------------------------------------------------

/// A task with a slow attempt and its rival, which both run.
struct Race {
    world: World,
    job: JobId,
    slow: AttemptId,
    rival: AttemptId,
    /// The node of the rival.
    node: NodeId,
}

/// One of the tasks is slow. Each task has `retries`.
fn race(retries: u32) -> Race {
    let mut world = world(3, 10);
    world.nodes[1].executor.slowness = 1;
    // The other nodes are full when the last task starts, so that one is sent to the slow node.
    let id = world.submit(job(vec![StageSpec { retries, ..tasks(5, "20s") }]));
    for _ in 0..40 {
        world.run_for(seconds(1));
        let running: Vec<AttemptId> =
            world.nodes.iter().flat_map(|host| host.executor.running.keys().copied()).collect();
        if let Some((rival, node)) = rivals(&world, id).first().copied().filter(|(rival, _)| running.contains(rival)) {
            let slow = world.records.iter().find_map(|record| match record {
                Record::Straggles { attempt, .. } => Some(*attempt),
                _ => None,
            });
            return Race { slow: slow.unwrap(), world, job: id, rival, node };
        }
    }
    panic!("no slow attempt found:\n{}", world.log.join("\n"));
}

impl Race {
    fn manager(&mut self) -> &mut JobManager {
        self.world.server.as_mut().unwrap().jobs.get_mut(&self.job).unwrap()
    }

    fn received(&mut self, by: NodeId, body: ToJobManager) -> Outbox {
        let (now, mut out) = (self.world.now, Outbox::default());
        self.manager().handle(now, Event::Message { from: Address::Node(by), body }, &mut out);
        out
    }

    fn ended(&mut self, attempt: AttemptId, reason: EndReason) -> Outbox {
        let node = if attempt == self.slow { NodeId(0) } else { self.node };
        self.received(node, ToJobManager::Finished { attempt, ended: Ended::without_run(reason), instead: None })
    }

    fn index(&self) -> u32 {
        let task = |change: &Change| match change {
            Change::Launched { attempt, task, .. } if *attempt == self.slow => Some(task.index),
            _ => None,
        };
        self.world.disk.iter().find_map(task).unwrap()
    }

    fn progress(&mut self, attempt: AttemptId, after: Duration, output: u32) -> Outbox {
        let node = if attempt == self.slow { NodeId(0) } else { self.node };
        let sample = Sample { running_for: after, reported: Some(output), cpu: Duration::ZERO, read_bytes: 0 };
        self.received(node, ToJobManager::Progress { samples: Box::new([(attempt, sample)]) })
    }
}

fn superseded(changes: &[Change]) -> Vec<AttemptId> {
    let lost = |change: &Change| match change {
        Change::Lost { attempt, cause: LostCause::Superseded, .. } => Some(*attempt),
        _ => None,
    };
    changes.iter().filter_map(lost).collect()
}

#[test]
fn both_attempts_run_and_the_first_success_is_the_tasks_end() {
    let race = race(0);
    assert_eq!(superseded(&race.world.disk), [], "both continue although both have started");
    for (first, other, tells) in [(race.slow, race.rival, 0), (race.rival, race.slow, 1)] {
        let mut race = self::race(0);
        let out = race.ended(first, EndReason::Exit(0));
        assert_eq!(superseded(&out.changes), [other]);
        let received = out.records.iter().filter(|record| matches!(record, Record::Overtaken { .. })).count();
        assert_eq!(received, tells, "only a duplicate overtakes");
        let index = race.index();
        assert_eq!(race.manager().dag().stage(0).record(index).unwrap().state, TaskState::Succeeded);
        let late = race.ended(other, EndReason::Exit(0));
        let counts = |change: &Change| !matches!(change, Change::EndedLate { .. });
        assert!(!late.changes.iter().any(counts), "only its usage is counted: {:?}", late.changes);
    }
}

#[test]
fn an_attempt_continues_if_the_other_fails_and_two_failures_count_as_one() {
    for (retries, last) in [(0, TaskState::Failed), (1, TaskState::Waiting)] {
        for is_slow in [true, false] {
            let mut race = race(retries);
            let (first, other) = if is_slow { (race.slow, race.rival) } else { (race.rival, race.slow) };
            let index = race.index();
            let mut log = race.world.disk.clone();
            log.extend(race.ended(first, EndReason::Exit(3)).changes);
            let again = race.world.recovered(race.job, &log);
            for manager in [&*race.manager(), &again] {
                let record = manager.dag().stage(0).record(index).unwrap();
                assert_eq!((record.failures, record.state), (0, TaskState::Running));
                assert!(manager.running().any(|(attempt, ..)| attempt == other));
            }
            log.extend(race.ended(other, EndReason::Exit(3)).changes);
            let again = race.world.recovered(race.job, &log);
            assert_eq!(again.dag().stage(0).record(index).unwrap().failures, 1);
            let record = *race.manager().dag().stage(0).record(index).unwrap();
            // The next try may be out already.
            let state = if record.state == TaskState::Running { TaskState::Waiting } else { record.state };
            assert_eq!((record.failures, state), (1, last));
        }
    }
}

#[test]
fn the_task_succeeds_if_only_one_attempt_fails() {
    let mut race = race(0);
    race.ended(race.rival, EndReason::Exit(3));
    race.ended(race.slow, EndReason::Exit(0));
    let index = race.index();
    assert_eq!(race.manager().dag().stage(0).record(index).unwrap().state, TaskState::Succeeded);
}

#[test]
fn a_task_gets_no_third_attempt_while_it_runs() {
    for fails in [false, true] {
        let mut race = race(0);
        if fails {
            race.ended(race.rival, EndReason::Exit(3));
        }
        let (attempt, node) = (race.slow, NodeId(0));
        let log = race.world.disk.clone();
        let mut launched = race.progress(attempt, seconds(60), 1_000).changes;
        launched.extend(race.progress(race.rival, seconds(60), 1_000).changes);
        assert_eq!(launched, [], "a running task is launched again only once");
        // The same holds after a restart of the server.
        let durable = race.manager().durable();
        for log in [log, durable] {
            if fails && log.len() > 1 {
                continue;
            }
            let mut manager = race.world.recovered(race.job, &log);
            let mut out = Outbox::default();
            for body in [
                ToJobManager::Started { attempt, running_for: seconds(60), at_node: None },
                ToJobManager::Progress {
                    samples: Box::new([(
                        attempt,
                        Sample { running_for: seconds(60), reported: Some(1_000), ..Sample::default() },
                    )]),
                },
            ] {
                manager.handle(race.world.now, Event::Message { from: Address::Node(node), body }, &mut out);
            }
            assert!(!out.changes.iter().any(|change| matches!(change, Change::Launched { .. })), "{:?}", out.changes);
        }
    }
}

#[test]
fn an_attempt_continues_if_the_other_is_lost_with_its_node() {
    for is_slow in [true, false] {
        let mut race = race(0);
        let (lost, kept) = if is_slow { (race.slow, race.rival) } else { (race.rival, race.slow) };
        let node = if is_slow { 0 } else { race.node.0 as usize };
        race.world.kill_agent(node);
        let out = race.received(race.node, ToJobManager::NodeLost { node: NodeId(node as u32) });
        let is_lost = |change: &Change| matches!(change, Change::Lost { attempt, cause: LostCause::NodeLost, last: false, .. } if *attempt == lost);
        assert!(out.changes.iter().any(is_lost));
        let index = race.index();
        let record = *race.manager().dag().stage(0).record(index).unwrap();
        assert_eq!(record.state, TaskState::Running);
        assert!(race.manager().running().any(|(attempt, ..)| attempt == kept));
    }
}

#[test]
fn an_attempt_that_has_just_started_is_not_judged() {
    let mut world = world(3, 1);
    let id = world.submit(job(vec![tasks(4, "40s")]));
    world.run_for(seconds(30));
    let (attempt, _, node) = launches(&world, id)[0];
    for (running_for, found) in [(18, 0), (22, 1)] {
        let sample = Sample { running_for: seconds(running_for), reported: Some(10), ..Sample::default() };
        let body = ToJobManager::Progress { samples: Box::new([(attempt, sample)]) };
        let mut out = Outbox::default();
        let now = world.now;
        let manager = world.server.as_mut().unwrap().jobs.get_mut(&id).unwrap();
        manager.handle(now, Event::Message { from: Address::Node(node), body }, &mut out);
        let straggles = out.records.iter().filter(|record| matches!(record, Record::Straggles { .. })).count();
        assert_eq!(straggles, found, "after {running_for} s, where others take 40");
    }
}

#[test]
fn progress_reported_by_another_node_is_ignored() {
    let mut world = world(3, 1);
    let id = world.submit(job(vec![tasks(4, "40s")]));
    world.run_for(seconds(20));
    let (attempt, _, node) = launches(&world, id)[0];
    let sample = Sample { running_for: seconds(20), reported: Some(10), cpu: Duration::ZERO, read_bytes: 0 };
    for (from, found) in [(NodeId((node.0 + 1) % 3), 0), (node, 1)] {
        let body = ToJobManager::Progress { samples: Box::new([(attempt, sample)]) };
        let mut out = Outbox::default();
        let now = world.now;
        let manager = world.server.as_mut().unwrap().jobs.get_mut(&id).unwrap();
        manager.handle(now, Event::Message { from: Address::Node(from), body }, &mut out);
        let straggles = out.records.iter().filter(|record| matches!(record, Record::Straggles { .. })).count();
        assert_eq!(straggles, found, "{:?}", out.records);
    }
}

#[test]
fn a_cancelled_job_stops_both_attempts() {
    let mut race = race(0);
    race.world.control(race.job, JobAction::Cancel);
    race.world.run_for(seconds(5));
    assert_eq!(race.world.outcome(race.job), Some(JobOutcome::Cancelled));
    assert!(race.world.nodes.iter().all(|host| host.executor.running.is_empty()));
    assert_eq!(rivals(&race.world, race.job).len(), launches(&race.world, race.job).len() - 5);
}

/// The largest number of a job's attempts that were out at the same time, and of those that were second attempts.
fn most_out(world: &World, job: JobId) -> (usize, usize) {
    let (mut out, mut most) = (Vec::new(), (0, 0));
    for change in world.disk.iter().filter(|change| change.job() == Some(job)) {
        match change {
            Change::Launched { attempt, rule, .. } => out.push((*attempt, *rule)),
            Change::Finished { attempt, .. } | Change::Lost { attempt, .. } => out.retain(|(id, _)| id != attempt),
            _ => {}
        }
        let rivals = out.iter().filter(|(_, rule)| *rule == Rule::Straggler).count();
        // A task that waits and was sent to another queue as well starts only once.
        let running = out.iter().filter(|(_, rule)| *rule != Rule::Duplicate).count();
        most = (most.0.max(running), most.1.max(rivals));
    }
    most
}

#[test]
fn second_attempts_stay_within_the_share_or_run_one_at_a_time() {
    // The job always has more tasks to send than it may hold: nine of ten cores, and three of four.
    for (nodes, slow, most) in [(5, 1, (10, 2)), (2, 1, (4, 2)), (20, 4, (40, 8))] {
        let mut world = World::with_nodes(Preset::APOLLO, nodes, TWO);
        world.nodes.iter_mut().take(slow).for_each(|host| host.executor.slowness = 20);
        world.run_for(seconds(10));
        let id = world.submit(job(vec![tasks(400, "20s")]));
        world.run_for(seconds(200));
        let out = most_out(&world, id);
        assert!(out.0 <= most.0 && out.1 >= 1 && out.1 <= most.1, "{nodes} nodes: {out:?}");
        assert!(!overtaken(&world).is_empty(), "rivals are launched before the stage ends");
    }
}

#[test]
fn a_server_restarted_after_any_change_knows_the_race() {
    for first_is_slow in [true, false] {
        let mut race = race(0);
        let first = if first_is_slow { race.slow } else { race.rival };
        let out = race.ended(first, EndReason::Exit(0));
        let mut log = race.world.disk.clone();
        log.extend(out.changes);
        let mut raced = 0;
        for length in 0..=log.len() {
            let manager = race.world.recovered(race.job, &log[..length]);
            // A snapshot recovers to the same state.
            let again = race.world.recovered(race.job, &manager.durable());
            assert_eq!(again.durable(), manager.durable());
            let attempts: Vec<AttemptId> = manager.running().map(|(attempt, ..)| attempt).collect();
            if !attempts.contains(&race.slow) || !attempts.contains(&race.rival) {
                continue;
            }
            raced += 1;
            for mut manager in [manager, again] {
                let mut out = Outbox::default();
                for (attempt, node) in [(race.slow, NodeId(0)), (race.rival, race.node)] {
                    let body = ToJobManager::Started { attempt, running_for: seconds(9), at_node: None };
                    manager.handle(race.world.now, Event::Message { from: Address::Node(node), body }, &mut out);
                }
                assert_eq!(superseded(&out.changes), [], "both attempts continue");
                let (ended, instead) = (Ended::without_run(EndReason::Exit(0)), None);
                let body = ToJobManager::Finished { attempt: race.rival, ended, instead };
                manager.handle(race.world.now, Event::Message { from: Address::Node(race.node), body }, &mut out);
                assert_eq!(superseded(&out.changes), [race.slow]);
            }
        }
        assert!(raced > 0);
    }
}

#[test]
fn speeds_are_known_after_a_server_restart() {
    let mut preset = Preset::APOLLO;
    preset.entitled_mut().unwrap().corrections.as_mut().unwrap().progress_every = Some(seconds(20));
    let mut world = World::with_nodes(preset, 3, TWO);
    world.nodes[0].executor.slowness = 10;
    world.run_for(seconds(10));
    let id = world.submit(job(vec![tasks(6, "10s")]));
    // The tasks on the other nodes have ended. The slow ones, of which there was no report, are equally slow.
    world.run_for(seconds(12));
    assert_eq!(winners(&world, id).len(), 4);
    world.kill_server();
    world.start_server();
    world.run_for(seconds(25));
    assert!(!rivals(&world, id).is_empty(), "{}", world.log.join("\n"));
    world.run_for(seconds(20));
    succeeded(&world, id);
}
