//! What jobs give and receive is counted, and compared with how they would have run alone.

use crate::world::{World, job, stage};
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{JobAction, JobOutcome, ToMaster};
use amalgam_core::role::{Change, Role};
use amalgam_core::vocabulary::{
    Duration, Exchange, Instant, Items, JobId, JobSpec, NodeId, Resources, StageSpec, TaskSet, resources::CPU,
};
use amalgam_core::why::Why;

fn drain(world: &mut World, drained: bool) {
    world.ask_master(ToMaster::Drain { node: NodeId(0), drained });
}

/// The jobs of Carbyne's section 2.1 on one machine, which opens once both are submitted: the time at which it opens,
/// and their ids.
fn examples(world: &mut World) -> (Instant, [JobId; 2]) {
    let ids = waiting_examples(world);
    drain(world, false);
    (world.now, ids)
}

fn waiting_examples(world: &mut World) -> [JobId; 2] {
    let timed = |name, tasks, length, cpu, after: &[u32]| StageSpec {
        expected: Some(Duration::parse(length).expect("a duration")),
        after: after.to_vec(),
        ..stage(name, tasks, length, cpu)
    };
    drain(world, true);
    let first = vec![timed("a", 2, "1s", 40, &[]), timed("b", 3, "1s", 210, &[]), timed("c", 1, "100ms", 40, &[0, 1])];
    [first, vec![timed("d", 2, "1s", 290, &[])]].map(|stages| world.submit(job(stages)))
}

fn exchange(world: &World, id: JobId) -> Exchange {
    world.server.as_ref().expect("the server runs").jobs[&id].exchange(world.now).expect("its exchange is counted")
}

/// Thousandths of CPU seconds.
fn cpu(exchange: &Exchange) -> (u64, u64) {
    let rounded = |time: f64| time.round() as u64;
    (rounded(exchange.given.seconds(CPU)), rounded(exchange.received.seconds(CPU)))
}

/// Each is entitled to half. For a second the first job holds 0.29 of the node and defers two tasks of 0.21, of which
/// 0.21 more would fit into its half. The other job holds 0.58, and ends a second early.
#[test]
fn a_job_receives_what_the_other_gives_and_ends_earlier_than_alone() {
    let mut world = World::with_nodes(Preset::CARBYNE, 1, Resources::new(1_000, 0));
    let (begin, ids) = examples(&mut world);
    world.run_for(Duration::from_secs(10));
    let [first, second] = ids.map(|id| exchange(&world, id));
    assert_eq!((cpu(&first), cpu(&second)), ((210, 0), (0, 80)));
    let alone =
        [first, second].map(|exchange| exchange.alone.expect("the end alone is known").since(begin).as_millis());
    assert_eq!(alone, [2_100, 2_000]);
    let ended = ids.map(|id| world.end_of(id).since(begin).as_millis());
    assert_eq!(ended, [2_100, 1_000]);
}

#[test]
fn without_deferral_no_exchange_is_counted_or_stored() {
    let mut world = World::with_nodes(Preset::DRF, 1, Resources::new(1_000, 0));
    let (_, ids) = examples(&mut world);
    world.run_for(Duration::from_secs(10));
    let server = world.server.as_ref().expect("the server runs");
    assert!(ids.iter().all(|id| server.jobs[id].exchange(world.now).is_none()));
    assert!(!world.disk.iter().any(|change| matches!(change, Change::Exchanged { .. })));
}

/// A long stage beside a short one before a third, while another job takes all leftover resources.
fn one_that_waits(world: &mut World) -> JobId {
    let timed = |name, length, after: &[u32]| StageSpec {
        expected: Some(Duration::parse(length).expect("a duration")),
        after: after.to_vec(),
        ..stage(name, 1, length, 250)
    };
    world.submit(job(vec![stage("before", 1, "1s", 1_000)]));
    let stages = vec![timed("long", "30s", &[]), timed("short", "2s", &[]), timed("last", "1s", &[0, 1])];
    let id = world.submit(job(stages));
    let many = StageSpec { expected: Some(Duration::from_millis(300)), ..stage("many", 1_000, "300ms", 250) };
    world.submit(JobSpec { priority: 1, ..job(vec![many]) });
    world.run_for(Duration::from_secs(2));
    id
}

fn describe(world: &World, why: &Why) -> String {
    world.server.as_ref().expect("the server runs").master.dispatch().describe_why(why)
}

#[test]
fn a_deferred_task_shows_how_long_it_can_wait_and_the_story_records_it() {
    let mut world = World::with_nodes(Preset::CARBYNE, 1, Resources::new(1_000, 0));
    let id = one_that_waits(&mut world);
    let manager = &world.server.as_ref().expect("the server runs").jobs[&id];
    assert!(manager.needs_nothing_now());
    let why: Vec<String> = manager.can_wait(world.now).map(|why| describe(&world, &why)).collect();
    assert!(why.len() == 1 && why[0].starts_with("1 task of stage short can wait 27."), "{why:?}");
    assert!(manager.task_can_wait(1, 0, world.now).is_some() && manager.task_can_wait(0, 0, world.now).is_none());
    let reported =
        world.log.iter().filter(|line| line.contains(&format!("job {id}: 1 task of stage 1 can wait"))).count();
    assert_eq!(reported, 1, "{}", world.log.join("\n"));
    world.run_for(Duration::from_secs(28));
    let manager = &world.server.as_ref().expect("the server runs").jobs[&id];
    assert_eq!(manager.can_wait(world.now).count(), 0, "the stage had to start");
}

#[test]
fn of_equal_tasks_the_first_must_start() {
    let mut world = World::with_nodes(Preset::CARBYNE, 1, Resources::new(1_000, 0));
    let [_, second] = waiting_examples(&mut world);
    let manager = &world.server.as_ref().expect("the server runs").jobs[&second];
    assert!(!manager.needs_nothing_now());
    let can_wait = [0, 1].map(|index| manager.task_can_wait(0, index, world.now).map(|why| describe(&world, &why)));
    assert!(
        can_wait[0].is_none() && can_wait[1].as_ref().is_some_and(|why| why.contains("can wait 1.00s")),
        "{can_wait:?}"
    );
}

/// The server can lose at most what happened since the last end of a task that came ten seconds after the one before
/// it.
#[test]
fn given_and_received_amounts_survive_a_server_restart() {
    let mut world = World::with_nodes(Preset::CARBYNE, 1, Resources::new(1_000, 0));
    let (_, ids) = examples(&mut world);
    world.run_for(Duration::from_secs(10));
    let ended = ids.map(|id| exchange(&world, id));
    let many = one_that_waits(&mut world);
    let receiver = JobId(many.0 + 1);
    world.run_for(Duration::from_secs(15));
    let (waits, receives) = (exchange(&world, many), exchange(&world, receiver));
    assert!(cpu(&waits).0 > 2_000 && cpu(&receives).1 > 2_000, "{waits:?} {receives:?}");
    world.kill_server();
    world.start_server();
    assert_eq!(ids.map(|id| exchange(&world, id)), ended);
    let again = exchange(&world, receiver);
    let lost = cpu(&receives).1 - cpu(&again).1;
    assert!(cpu(&again).1 > 0 && lost < 11 * cpu(&receives).1 / 15, "{lost} of {receives:?} are lost");
    assert_eq!(again.alone, receives.alone);
    world.run_for(Duration::from_secs(200));
    let server = world.server.as_ref().expect("the server runs");
    let before: Vec<Exchange> = server.jobs.values().filter_map(|manager| manager.exchange(world.now)).collect();
    world.kill_server();
    world.start_server();
    let server = world.server.as_ref().expect("the server runs");
    let after: Vec<Exchange> = server.jobs.values().filter_map(|manager| manager.exchange(world.now)).collect();
    assert_eq!(before, after, "all jobs have ended");
}

/// What a job receives now, in thousandths of a CPU.
fn received_now(world: &World, id: JobId) -> u64 {
    let manager = &world.server.as_ref().expect("the server runs").jobs[&id];
    let until = |now| manager.exchange(now).expect("its exchange is counted").received.seconds(CPU);
    (until(world.now + Duration::from_secs(1)) - until(world.now)).round() as u64
}

/// After the restart, running tasks keep the rule that launched them, and the end alone counts from the job's start.
/// Both hold for a server that recovers from the log and from a snapshot.
#[test]
fn a_receiving_job_still_receives_after_a_server_restart() {
    for from_snapshot in [false, true] {
        let mut world = World::with_nodes(Preset::CARBYNE, 1, Resources::new(1_000, 0));
        let id = one_that_waits(&mut world);
        let receiver = JobId(id.0 + 1);
        world.run_for(Duration::from_secs(13));
        let (rate, kept) = (received_now(&world, receiver), exchange(&world, receiver));
        assert!(rate > 0 && kept.alone.is_some());
        if from_snapshot {
            let server = world.server.as_ref().expect("the server runs");
            let mut snapshot = server.master.durable();
            snapshot.extend(server.jobs.values().flat_map(Role::durable));
            world.disk = snapshot;
        }
        world.kill_server();
        world.start_server();
        world.settle();
        assert_eq!(received_now(&world, receiver), rate, "from a snapshot: {from_snapshot}");
        world.run_for(Duration::from_secs(3));
        assert_eq!(exchange(&world, receiver).alone, kept.alone, "from a snapshot: {from_snapshot}");
    }
}

/// For a job that has the cluster to itself, in seconds since its submission: when it ended, and when it would have
/// ended alone according to the estimate.
fn on_an_idle_cluster(expected: Option<&str>, tasks: u32, run: &str) -> (f64, f64) {
    let mut world = World::with_nodes(Preset::CARBYNE, 1, Resources::new(1_000, 0));
    let expected = expected.map(|length| Duration::parse(length).expect("a duration"));
    let begin = world.now;
    let id = world.submit(job(vec![StageSpec { expected, ..stage("sleep", tasks, run, 500) }]));
    world.run_for(Duration::from_secs(60));
    let alone = exchange(&world, id).alone.expect("the end alone is known");
    [world.end_of(id), alone].map(|end| end.since(begin).as_secs_f64()).into()
}

#[test]
fn the_end_alone_uses_actual_run_times_instead_of_wrong_expectations() {
    for expected in [None, Some("1s"), Some("3s"), Some("999999999999s")] {
        for tasks in [1, 2, 9] {
            let (end, alone) = on_an_idle_cluster(expected, tasks, "3s");
            assert!((end - alone).abs() < 0.1, "{tasks} tasks, expected {expected:?}: {alone} s for {end} s");
        }
    }
}

/// Their mean run time, 3 s, is the run time of none of them.
#[test]
fn no_stage_would_end_alone_before_its_longest_task() {
    for (cpus, then, least) in [(4, 2, 11), (2, 2, 11), (1, 2, 14), (4, 0, 9), (2, 0, 9), (1, 0, 12)] {
        let mut world = World::with_nodes(Preset::CARBYNE, 1, Resources::new(1_000 * cpus, 0));
        let begin = world.now;
        let mut items = Items::default();
        ["1s", "1s", "1s", "9s"].into_iter().for_each(|item| items.push(item).expect("the items are small"));
        let expected = Some(Duration::from_secs(3));
        let vary = StageSpec { tasks: TaskSet::Each(items), expected, ..stage("vary", 4, "-", 1_000) };
        let expected = Some(Duration::from_secs(then));
        let then = (then > 0).then(|| StageSpec { after: vec![0], expected, ..stage("then", 1, "2s", 1_000) });
        let id = world.submit(job([vary].into_iter().chain(then).collect()));
        world.run_for(Duration::from_secs(60));
        let alone = exchange(&world, id).alone.expect("the end alone is known");
        let least = Duration::from_secs(least);
        assert!((least..least + Duration::from_millis(100)).contains(&alone.since(begin)), "{cpus}: {alone:?}");
        assert!(world.end_of(id) > alone.before(Duration::from_millis(100)), "no other job delayed it or gave it more");
    }
}

/// Two of four tasks run at a time, and the job is on hold for 100 seconds from the middle of the first two.
#[test]
fn the_end_alone_includes_the_time_on_hold() {
    let mut world = World::with_nodes(Preset::CARBYNE, 1, Resources::new(1_000, 0));
    let id =
        world.submit(job(vec![StageSpec { expected: Some(Duration::from_secs(10)), ..stage("sleep", 4, "10s", 500) }]));
    world.run_for(Duration::from_secs(5));
    world.control(id, JobAction::Hold);
    world.run_for(Duration::from_secs(100));
    world.control(id, JobAction::Release);
    world.run_for(Duration::from_secs(60));
    let (end, alone) = (world.end_of(id), exchange(&world, id).alone.expect("the end alone is known"));
    assert!(end > Instant::ZERO + Duration::from_secs(110));
    assert!(end.since(alone).max(alone.since(end)) < Duration::from_millis(100), "{alone:?} for {end:?}");
}

/// Its node is lost with two of four tasks, and returns after 100 seconds. The tasks started after the last event that
/// changed the job's demand.
#[test]
fn the_end_alone_includes_the_time_without_a_share() {
    let mut world = World::with_nodes(Preset::CARBYNE, 1, Resources::new(1_000, 0));
    let timed = StageSpec { expected: Some(Duration::from_secs(10)), ..stage("sleep", 4, "10s", 500) };
    let id = world.submit(job(vec![timed]));
    world.run_for(Duration::from_secs(15));
    world.kill_agent(0);
    world.run_for(Duration::from_secs(100));
    world.start_agent(0);
    world.run_for(Duration::from_secs(60));
    let (end, alone) = (world.end_of(id), exchange(&world, id).alone.expect("the end alone is known"));
    assert!(end > Instant::ZERO + Duration::from_secs(125));
    assert!(end.since(alone).max(alone.since(end)) < Duration::from_millis(100), "{alone:?} for {end:?}");
}

/// The job is run again a day after it failed, with or without a restart of the server in between.
#[test]
fn a_job_that_is_run_again_is_compared_from_the_rerun() {
    for restarts in [0, 1, 2] {
        let mut world = World::with_nodes(Preset::CARBYNE, 1, Resources::new(1_000, 0));
        let timed = StageSpec { expected: Some(Duration::from_secs(3)), ..stage("fails", 1, "3s 1", 500) };
        let id = world.submit(job(vec![timed]));
        world.run_for(Duration::from_secs(86_400));
        assert!(matches!(world.outcome(id), Some(JobOutcome::Failed { .. })));
        let restart = |world: &mut World| {
            world.kill_server();
            world.start_server();
            world.settle();
        };
        if restarts > 0 {
            restart(&mut world);
        }
        let again = world.now;
        world.control(id, JobAction::RerunFailed);
        world.run_for(Duration::from_secs(1));
        if restarts > 1 {
            restart(&mut world);
        }
        world.run_for(Duration::from_secs(10));
        assert!(matches!(world.outcome(id), Some(JobOutcome::Failed { .. })));
        let took = exchange(&world, id).alone.expect("the end alone is known").since(again);
        let right = Duration::from_millis(2_900)..Duration::from_millis(3_100);
        assert!(right.contains(&took), "{restarts} restarts: {took}");
    }
}

/// The first stage has ended. Of the second, which is expected to take a minute in one of the cases, the server that
/// started it had measured nothing. It stored its estimate when the stage beside them ended.
#[test]
fn an_earlier_servers_estimate_with_wrong_run_times_is_not_compared() {
    for (expected, is_compared) in [(Duration::from_secs(60), false), (Duration::from_secs(16), true)] {
        let mut world = World::with_nodes(Preset::CARBYNE, 1, Resources::new(1_000, 0));
        let timed = |name, run, expected| StageSpec { expected: Some(expected), ..stage(name, 1, run, 500) };
        let second = StageSpec { after: vec![0], ..timed("second", "16s", expected) };
        let beside = timed("beside", "23s", Duration::from_secs(23));
        let id = world.submit(job(vec![timed("first", "12s", expected.min(Duration::from_secs(12))), second, beside]));
        world.run_for(Duration::from_secs(24));
        world.kill_server();
        world.start_server();
        world.run_for(Duration::from_secs(60));
        assert!(world.end_of(id) > Instant::ZERO);
        assert_eq!(exchange(&world, id).alone.is_some(), is_compared);
    }
}
