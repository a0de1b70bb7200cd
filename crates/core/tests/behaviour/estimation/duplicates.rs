//! One of two tasks waits behind another job's task on the only node for longer than expected, and another node joins.

use super::*;

/// The job, and the attempts of its only task on nodes 0 and 1. The launch on node 1 has not arrived yet.
struct Pair {
    world: World,
    job: JobId,
    first: AttemptId,
    second: AttemptId,
}

fn preset() -> Preset {
    // Twice the cluster may be guaranteed.
    let mut preset = Preset::APOLLO;
    preset.entitled_mut().unwrap().guaranteed = 200;
    preset
}

/// `length` also sets the task's exit status. The task has `retries`.
fn pair(length: &str, retries: u32) -> Pair {
    let mut world = World::with_nodes(preset(), 1, CORE);
    world.submit(job(vec![of_kind(Guaranteed, 1, "60s", 1_000)]));
    let id = world.submit(job(vec![StageSpec { retries, ..of_kind(Guaranteed, 1, length, 1_000) }]));
    world.run_for(seconds(5));
    assert_eq!((running_of(&world, id), out_of(&world, id)), (0, (1, 0)), "the task waits");
    world.hold_launches = true;
    world.add_node(CORE, &[]);
    world.run_for(seconds(5));
    assert_eq!(out_of(&world, id), (2, 0), "{}", world.log.join("\n"));
    world.hold_launches = false;
    let mut launched = world.disk.iter().filter_map(|change| match change {
        Change::Launched { attempt, rule, node, .. } if attempt.job == id => Some((*attempt, *rule, *node)),
        _ => None,
    });
    let (first, rule, node) = launched.next().unwrap();
    assert_eq!((rule, node), (Rule::Completion, NodeId(0)));
    let (second, rule, node) = launched.next().unwrap();
    assert_eq!((rule, node), (Rule::Duplicate, NodeId(1)));
    drop(launched);
    Pair { world, job: id, first, second }
}

impl Pair {
    fn finish(&mut self) {
        self.world.run_for(seconds(100));
        succeeded(&self.world, self.job);
        let success = |change: &&Change| matches!(change, Change::Finished { task, ended, .. } if task.job == self.job && ended.reason.is_success());
        assert_eq!(self.world.disk.iter().filter(success).count(), 1, "it succeeds once");
        let launches = |change: &&Change| matches!(change, Change::Launched { task, .. } if task.job == self.job);
        assert_eq!(self.world.disk.iter().filter(launches).count(), 2, "it is not launched a third time");
    }

    /// The node of the attempt in the task's record.
    fn shown_on(&mut self) -> NodeId {
        self.manager().dag().stage(0).record(0).unwrap().node
    }

    /// The changes that the job manager makes after a message.
    fn reported(&mut self, by: NodeId, body: ToJobManager) -> Vec<Change> {
        let (now, mut out) = (self.world.now, Outbox::default());
        self.manager().handle(now, Event::Message { from: Address::Node(by), body }, &mut out);
        out.changes
    }

    /// The attempt on node 0 ended.
    fn ended(&mut self, attempt: AttemptId, reason: EndReason) -> Vec<Change> {
        let ended = Ended::without_run(reason);
        self.reported(NodeId(0), ToJobManager::Finished { attempt, ended, instead: None })
    }

    fn manager(&mut self) -> &mut JobManager {
        self.world.server.as_mut().unwrap().jobs.get_mut(&self.job).unwrap()
    }
}

#[test]
fn the_attempt_that_starts_first_is_kept() {
    let mut pair = pair("4s", 0);
    pair.world.deliver_held_launches();
    pair.world.settle();
    let (first, superseded) = (pair.first, Some(&LostCause::Superseded));
    assert_eq!(pair.world.losses().get(&first), superseded, "{}", pair.world.log.join("\n"));
    let in_vain = pair.world.records.iter().filter_map(|record| match record {
        Record::WaitedInVain { attempt, waited, expected, .. } => Some((*attempt, waited > expected)),
        _ => None,
    });
    assert_eq!(in_vain.collect::<Vec<_>>(), [(first, true)]);
    assert_eq!(pair.world.nodes[0].agent.as_ref().unwrap().describe(pair.world.now).queued.len(), 0);
    assert_eq!(pair.shown_on(), NodeId(1));
    pair.finish();

    let mut pair = self::pair("4s", 0);
    // The other job's task ends before the launch arrives.
    pair.world.run_for(seconds(52));
    assert_eq!(pair.world.losses().get(&pair.second), superseded);
    pair.world.deliver_held_launches();
    pair.finish();
}

#[test]
fn one_of_two_attempts_that_start_at_the_same_time_is_kept() {
    for server_dies in [false, true] {
        let mut pair = pair("4s", 0);
        pair.world.run_for(seconds(49));
        // The connection to one node breaks at the same time.
        pair.world.unlink(0);
        pair.world.now += seconds(1);
        pair.world.happen();
        pair.world.deliver_held_launches();
        pair.world.settle();
        assert_eq!(running_of(&pair.world, pair.job), 2);
        assert_eq!(pair.world.losses().get(&pair.first), Some(&LostCause::Superseded));
        if server_dies {
            pair.world.kill_server();
            pair.world.start_server();
        } else {
            pair.world.link(0);
        }
        pair.world.settle();
        assert_eq!(running_of(&pair.world, pair.job), 1, "the node is asked to stop the other attempt");
        pair.finish();
    }
}

#[test]
fn a_task_that_starts_soon_is_not_launched_again() {
    let mut world = World::with_nodes(preset(), 1, CORE);
    world.submit(job(vec![of_kind(Guaranteed, 1, "6s", 1_000)]));
    let waits = world.submit(job(vec![of_kind(Guaranteed, 1, "4s", 1_000)]));
    world.run_for(seconds(1));
    world.submit(job(vec![of_kind(Guaranteed, 1, "60s", 1_000)]));
    world.run_for(Duration::from_millis(4_200));
    world.add_node(CORE, &[]);
    world.run_for(Duration::from_millis(700));
    let launches = |change: &&Change| matches!(change, Change::Launched { task, .. } if task.job == waits);
    assert_eq!(world.disk.iter().filter(launches).count(), 1, "{}", world.log.join("\n"));
}

#[test]
fn a_task_is_launched_again_although_many_older_opportunistic_ones_wait() {
    let mut preset = self::preset();
    preset.entitled_mut().unwrap().guaranteed = 60;
    preset.entitled_mut().unwrap().allowance.opportunistic = 10_000;
    let mut world = World::with_nodes(preset, 1, Resources::new(8_000, 0));
    let small = |world: &mut World| {
        world.add_node(TWO, &[("kind", "small")]);
        world.run_for(seconds(1));
    };
    small(&mut world);
    let of_small = |tasks, length| StageSpec {
        constraints: vec![Constraint::parse("kind=small").expect("a constraint")],
        ..of_kind(Guaranteed, tasks, length, 1_000)
    };
    world.submit(job(vec![of_small(1, "60s")]));
    // Larger than the part of the cluster that may be guaranteed.
    let large = of_kind(Opportunistic, 40, "600s", 8_000);
    let first = StageSpec { name: "first".to_owned(), ..of_kind(Guaranteed, 1, "3s", 1_000) };
    let next = StageSpec { after: vec![0], ..of_small(2, "50s") };
    let id = world.submit(job(vec![first, large, next]));
    world.run_for(seconds(5));
    assert_eq!((running_of(&world, id), out_of(&world, id)), (2, (2, 40)), "{}", world.log.join("\n"));
    small(&mut world);
    world.run_for(seconds(4));
    let launches =
        |change: &&Change| matches!(change, Change::Launched { task, .. } if (task.job, task.stage) == (id, 2));
    assert_eq!(world.disk.iter().filter(launches).count(), 3, "{}", world.log.join("\n"));
}

#[test]
fn an_attempt_is_superseded_if_the_other_has_succeeded() {
    let mut pair = pair("4s", 0);
    let (first, second) = (pair.first, pair.second);
    // The report of its start was lost.
    let changes = pair.ended(first, EndReason::Exit(0));
    let lost = |change: &Change| matches!(change, Change::Lost { attempt, cause: LostCause::Superseded, .. } if *attempt == second);
    assert!(changes.iter().any(lost), "{changes:?}");
    assert_eq!(pair.manager().outcome(), Some(JobOutcome::Succeeded));
}

#[test]
fn an_attempt_continues_if_the_other_is_lost_with_its_node() {
    let mut pair = pair("4s", 0);
    pair.world.kill_agent(0);
    pair.world.run_for(seconds(25));
    assert_eq!(pair.world.losses().get(&pair.first), Some(&LostCause::NodeLost));
    assert_eq!(pair.shown_on(), NodeId(1));
    // It would complete earlier on a third node.
    pair.world.add_node(CORE, &[]);
    pair.world.run_for(seconds(1));
    let starts = Box::new([(pair.second, seconds(60))]);
    let changes = pair.reported(NodeId(1), ToJobManager::Waits { waits: Arc::default(), starts });
    assert_eq!(changes, [], "a task is launched again only once");
    pair.world.deliver_held_launches();
    pair.finish();
}

#[test]
fn a_failure_counts_and_the_other_attempt_continues_if_retries_are_left() {
    for (retries, state) in [(0, TaskState::Failed), (1, TaskState::Running)] {
        let mut pair = pair("4s 1", retries);
        // The report of its start was lost.
        let changes = pair.ended(pair.first, EndReason::Exit(1));
        let log: Vec<Change> = pair.world.disk.iter().chain(&changes).cloned().collect();
        let recovered = pair.world.recovered(pair.job, &log);
        for manager in [&*pair.manager(), &recovered] {
            let record = manager.dag().stage(0).record(0).unwrap();
            assert_eq!((record.failures, record.state), (1, state));
        }
        if retries == 0 {
            assert_eq!(pair.manager().outcome(), Some(JobOutcome::Failed { exit_code: 1 }));
            continue;
        }
        pair.world.deliver_held_launches();
        pair.world.run_for(seconds(10));
        let launches = |change: &&Change| matches!(change, Change::Launched { task, .. } if task.job == pair.job);
        assert_eq!(pair.world.disk.iter().filter(launches).count(), 2, "{}", pair.world.log.join("\n"));
        assert_eq!(pair.world.outcome(pair.job), Some(JobOutcome::Failed { exit_code: 1 }));
    }
}

#[test]
fn a_server_restarted_after_any_change_knows_both_attempts() {
    let mut whole = pair("4s", 0);
    whole.world.deliver_held_launches();
    whole.finish();
    let log = std::mem::take(&mut whole.world.disk);
    for length in 0..=log.len() {
        let manager = whole.world.recovered(whole.job, &log[..length]);
        // A snapshot recovers to the same state.
        let again = whole.world.recovered(whole.job, &manager.durable());
        assert_eq!(again.durable(), manager.durable());
        let attempts: Vec<AttemptId> = manager.running().map(|(attempt, ..)| attempt).collect();
        let (first, second) = (whole.first, whole.second);
        if attempts == [second] {
            let node = manager.dag().stage(0).record(0).unwrap().node;
            assert_eq!(node, NodeId(1), "the record shows the other attempt");
        }
        if attempts != [first, second] {
            continue;
        }
        for (mut manager, starts, stops) in [(manager, first, second), (again, second, first)] {
            let mut out = Outbox::default();
            let from = Address::Node(NodeId(u32::from(starts == second)));
            let body = ToJobManager::Started { attempt: starts, running_for: Duration::ZERO, at_node: None };
            manager.handle(whole.world.now, Event::Message { from, body }, &mut out);
            let superseded = |change: &Change| matches!(change, Change::Lost { attempt, cause: LostCause::Superseded, .. } if *attempt == stops);
            assert!(out.changes.iter().any(superseded), "after {length} changes");
            assert_eq!(manager.running().count(), 1);
        }
    }
}

#[test]
fn a_server_killed_while_both_attempts_wait_keeps_one() {
    let mut pair = pair("4s", 0);
    pair.world.deliver_held_launches();
    // Both attempts are at their nodes, and the second one's report is lost with the server.
    pair.world.kill_server();
    pair.world.start_server();
    pair.finish();
}
