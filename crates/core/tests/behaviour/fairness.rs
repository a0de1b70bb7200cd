//! What the central presets promise, on the real roles: shares, guarantees, limits, priorities, no starvation, and
//! reasons.

use crate::world::{World, job, stage};
use amalgam_core::dispatch::Decide;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::{Booker, Placement, Preset};
use amalgam_core::protocol::{JobAction, JobOutcome, JobUpdate, ToClient, ToMaster};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{Constraint, Duration, JobId, JobSpec, QueueSpec, Resources, StageSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

fn queue(name: &str) -> QueueSpec {
    QueueSpec::named(name)
}

fn cluster(preset: Preset, queues: Vec<QueueSpec>, nodes: u32, cpus: u32) -> World {
    let mut world = World::new(preset);
    world.queues = QueueTree::new(queues).expect("a valid tree");
    world.start_server();
    for _ in 0..nodes {
        world.add_node(Resources::new(cpus * 1_000, 0), &[]);
    }
    world.settle();
    world
}

fn endless(queue: &str, user: &str, tasks: u32) -> JobSpec {
    let mut spec = job(vec![stage("s", tasks, "1s", 1_000)]);
    (spec.queue, spec.user) = (queue.to_owned(), user.to_owned());
    spec
}

fn running_by_job(world: &World) -> BTreeMap<JobId, usize> {
    let mut running = BTreeMap::new();
    for task in world.running_tasks() {
        *running.entry(task.job).or_default() += 1;
    }
    running
}

#[test]
fn queues_share_by_weight() {
    let heavy = QueueSpec { weight: 3_000, ..queue("root.heavy") };
    let mut world = cluster(Preset::DRF, vec![heavy, queue("root.light")], 2, 4);
    let light = world.submit(endless("light", "ada", 100));
    let heavy = world.submit(endless("heavy", "ada", 100));
    world.run_for(Duration::from_secs(5));
    let running = running_by_job(&world);
    assert_eq!((running[&heavy], running[&light]), (6, 2));
}

#[test]
fn a_queue_below_its_guarantee_is_first_whatever_its_weight() {
    let small = QueueSpec { weight: 1, guaranteed: 500_000, ..queue("root.small") };
    let mut world = cluster(Preset::DRF, vec![small, queue("root.large")], 2, 4);
    let large = world.submit(endless("large", "ada", 100));
    let small = world.submit(endless("small", "ada", 100));
    world.run_for(Duration::from_secs(5));
    let running = running_by_job(&world);
    assert_eq!((running[&small], running[&large]), (4, 4));
}

#[test]
fn a_maximum_share_always_holds_and_is_given_as_the_reason() {
    for preset in Preset::CENTRAL.iter().copied() {
        let capped = QueueSpec { maximum: 250_000, ..queue("root.capped") };
        let mut world = cluster(preset, vec![capped, queue("root.free")], 2, 4);
        let capped = world.submit(endless("capped", "ada", 20));
        let mut explained = 0;
        for _ in 0..80 {
            world.run_for(Duration::from_millis(250));
            let running = running_by_job(&world).get(&capped).copied().unwrap_or(0);
            assert!(running <= 2, "{running} of 2 permitted tasks run");
            if let why @ [_, ..] = world.why(capped).as_slice() {
                explained += 1;
                assert!(why[0].starts_with("queue root.capped is at its maximum share: 2.0 cpu of 2.0 cpu"), "{why:?}");
            }
        }
        assert!(explained > 10, "the job was pending for most of the time");
        assert_eq!(world.outcome(capped), Some(JobOutcome::Succeeded), "a limit delays a job and does not stop it");
    }
}

#[test]
fn a_user_stays_within_the_users_limit_and_other_users_continue() {
    for preset in Preset::CENTRAL.iter().copied() {
        let shared = QueueSpec { user_limit: 500_000, ..queue("root.shared") };
        let mut world = cluster(preset, vec![shared], 1, 4);
        let ada = world.submit(endless("shared", "ada", 50));
        let bob = world.submit(endless("shared", "bob", 50));
        world.run_for(Duration::from_millis(3_500));
        let running = running_by_job(&world);
        assert_eq!((running[&ada], running[&bob]), (2, 2), "{}", preset.name());
        assert!(world.why(ada)[0].contains("at the limit per user of queue root.shared"), "{:?}", world.why(ada));
    }
}

#[test]
fn a_higher_priority_is_first_within_a_queue() {
    for preset in Preset::CENTRAL.iter().copied() {
        let mut world = cluster(preset, Vec::new(), 1, 1);
        let blocker = world.submit(endless("", "ada", 1));
        let low = world.submit(endless("", "ada", 1));
        let mut urgent = endless("", "ada", 1);
        urgent.priority = 10;
        let urgent = world.submit(urgent);
        let why = world.why(low).join("; ");
        assert!(why.contains("no room") && why.contains(&format!("job {urgent} is ahead")), "{why}");
        world.run_for(Duration::from_millis(1_500));
        assert_eq!(running_by_job(&world).into_keys().collect::<Vec<_>>(), [urgent], "{}", preset.name());
        world.run_for(Duration::from_secs(5));
        for id in [blocker, low, urgent] {
            assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
        }
    }
}

#[test]
fn drf_gives_two_jobs_of_a_queue_the_same_and_fifo_chooses_the_first() {
    let shares = |preset| {
        let mut world = cluster(preset, Vec::new(), 2, 4);
        let first = world.submit(endless("", "ada", 100));
        let second = world.submit(endless("", "ada", 100));
        world.run_for(Duration::from_millis(4_500));
        let running = running_by_job(&world);
        (running[&first], running.get(&second).copied().unwrap_or(0))
    };
    assert_eq!(shares(Preset::DRF), (4, 4));
    assert_eq!(shares(Preset::FIFO), (8, 0));
}

/// Ghodsi et al. 2011, section 4.1, with tasks that start and end.
#[test]
fn drf_gives_each_job_the_same_part_of_its_dominant_resource() {
    let mut world = World::new(Preset::DRF);
    world.start_server();
    world.add_node(Resources::new(9_000, 18_432), &[]);
    world.settle();
    let mut submit = |cpus: u32, memory_gib: u32| {
        let mut stage = stage("s", 100, "1s", 0);
        stage.resources.basic = Resources::new(cpus * 1_000, memory_gib * 1_024);
        world.submit(job(vec![stage]))
    };
    let (memory_bound, cpu_bound) = (submit(1, 4), submit(3, 1));
    world.run_for(Duration::from_millis(5_500));
    let running = running_by_job(&world);
    assert_eq!((running[&memory_bound], running[&cpu_bound]), (3, 2), "12 of 18 GiB, and 6 of 9 CPUs");
}

#[test]
fn the_remaining_work_is_reported_in_steps_and_decides_under_srtf() {
    let mut world = cluster(Preset::SRTF, Vec::new(), 1, 4);
    world.verbose = true;
    let timed =
        |tasks| job(vec![StageSpec { expected: Some(Duration::from_secs(1)), ..stage("s", tasks, "1s", 1_000) }]);
    let started = world.submit(timed(800));
    world.run_for(Duration::from_millis(100_500));
    let longer = world.submit(timed(600));
    world.run_for(Duration::from_secs(5));
    assert_eq!(running_by_job(&world), [(started, 4)].into(), "it has less work left than job {longer}");
    let shorter = world.submit(timed(100));
    world.run_for(Duration::from_secs(5));
    assert_eq!(running_by_job(&world), [(shorter, 4)].into());
    world.run_for(Duration::from_secs(400));
    assert_eq!(world.outcome(longer), Some(JobOutcome::Succeeded));
    let reported = world.log.iter().filter(|line| line.contains(&format!("job-{started} -> master: demand"))).count();
    assert!((20..200).contains(&reported), "{reported} messages for 800 tasks");
}

#[test]
fn a_large_task_does_not_starve_behind_small_ones() {
    for preset in Preset::CENTRAL.iter().copied() {
        let mut world = cluster(preset, Vec::new(), 2, 4);
        world.submit(endless("", "ada", 8));
        // It is first in every order, also in those that use the amount of work.
        let large = StageSpec { expected: Some(Duration::from_secs(1)), ..stage("large", 1, "1s", 4_000) };
        let large = world.submit(job(vec![large]));
        // Later jobs with tasks of different lengths, so that no node becomes empty by chance while they are scheduled
        // before it.
        for length in ["900ms", "1s", "1100ms", "1300ms"] {
            world.submit(job(vec![stage("s", 500, length, 1_000)]));
        }
        world.run_for(Duration::from_secs(20));
        if preset != Preset::AMALGAM {
            assert_eq!(world.outcome(large), None, "{}: without a reservation it does not start", preset.name());
        }
        world.run_for(Duration::from_secs(30));
        assert_eq!(world.outcome(large), Some(JobOutcome::Succeeded), "{}: {:?}", preset.name(), world.why(large));
    }
}

/// A large task waits until a node is kept for it, and then finds room on another node.
#[test]
fn no_node_is_kept_for_duplicates() {
    let mut preset = Preset::DRF;
    let reserve_after = Duration::from_secs(5);
    preset.booked_mut().unwrap().by =
        Booker::Master { placement: Placement::NextFit, reserve_after, backfill: false, reclaim: None };
    let mut world = World::with_nodes(preset, 1, Resources::new(4_000, 0));
    world.submit(job(vec![stage("long", 3, "1h", 1_000)]));
    let large = world.submit(job(vec![stage("large", 1, "1h", 4_000)]));
    world.run_for(Duration::from_secs(25));
    let small = world.submit(job(vec![stage("small", 1, "1h", 1_000)]));
    assert_eq!(running_by_job(&world).get(&small), None, "the node is kept: {}", world.log.join("\n"));
    world.request(large, 1, 1);
    world.run_for(Duration::from_secs(25));
    assert_eq!(running_by_job(&world).get(&small), Some(&1), "{}", world.log.join("\n"));
}

#[test]
fn a_node_kept_for_a_task_that_found_room_elsewhere_is_released_at_once() {
    let mut preset = Preset::DRF;
    let reserve_after = Duration::from_secs(5);
    preset.booked_mut().unwrap().by =
        Booker::Master { placement: Placement::NextFit, reserve_after, backfill: false, reclaim: None };
    let mut world = World::new(preset);
    world.start_server();
    for zone in ["a", "b"] {
        world.add_node(Resources::new(4_000, 0), &[("zone", zone)]);
    }
    world.settle();
    let within =
        |zone: &str, spec| StageSpec { constraints: vec![Constraint::parse(zone).expect("a constraint")], ..spec };
    world.submit(job(vec![within("zone=a", stage("short", 4, "31s", 1_000))]));
    world.submit(job(vec![within("zone=b", stage("long", 3, "1h", 1_000))]));
    let large = world.submit(job(vec![stage("large", 1, "1h", 4_000)]));
    world.run_for(Duration::from_secs(25));
    let small = world.submit(job(vec![within("zone=b", stage("small", 1, "1h", 1_000))]));
    assert_eq!(running_by_job(&world).get(&small), None, "{}", world.log.join("\n"));
    // The four tasks end together, between two heartbeats.
    world.run_for(Duration::from_secs(7));
    let running = running_by_job(&world);
    assert_eq!((running.get(&large), running.get(&small)), (Some(&1), Some(&1)), "{}", world.log.join("\n"));
}

#[test]
fn in_heartbeat_mode_nothing_is_decided_between_heartbeats() {
    let mut world = World::new(Preset::DRF);
    world.settings.dispatch.decide = Decide::OnHeartbeats { most: None };
    world.settings.heartbeat = Duration::from_secs(3);
    world.start_server();
    world.add_node(Resources::new(1_000, 0), &[]);
    world.settle();
    world.run_for(Duration::from_millis(3_500));
    let id = world.submit(endless("", "ada", 2));
    assert_eq!(world.why(id), ["decided at the next heartbeat"]);
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.running_tasks().len(), 0, "the next heartbeat is at 6 s");
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.running_tasks().len(), 1);
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}

#[test]
fn a_heartbeat_starts_at_most_the_configured_number_of_tasks() {
    let mut world = World::new(Preset::DRF);
    world.settings.dispatch.decide = Decide::OnHeartbeats { most: NonZeroU32::new(3) };
    world.settings.heartbeat = Duration::from_secs(3);
    world.start_server();
    world.add_node(Resources::new(8_000, 0), &[]);
    world.settle();
    world.run_for(Duration::from_millis(3_500));
    world.submit(job(vec![stage("s", 20, "1h", 1_000)]));
    for running in [0, 3, 6, 8, 8] {
        assert_eq!(world.running_tasks().len(), running);
        world.run_for(Duration::from_secs(3));
    }
}

#[test]
fn every_pending_job_has_a_reason_that_names_what_is_missing() {
    let limited = QueueSpec { max_running_jobs: Some(1), ..queue("root.single") };
    let mut world = cluster(Preset::DRF, vec![limited, queue("root.other")], 2, 2);
    let first = world.submit(endless("single", "ada", 20));
    let second = world.submit(endless("single", "ada", 1));
    assert_eq!(world.why(second), ["queue root.single already runs 1 job, which is its limit"]);

    let mut elsewhere = endless("other", "ada", 1);
    elsewhere.stages[0].constraints = vec![Constraint::parse("kernel>=9.9").unwrap()];
    let refusal = world.refusal(elsewhere.clone());
    assert!(refusal.message.contains("no node meets kernel>=9.9"), "{}", refusal.message);
    elsewhere.wait_for_nodes = true;
    let elsewhere = world.submit(elsewhere);
    assert_eq!(world.why(elsewhere), ["no node meets kernel>=9.9"]);

    let mut huge = endless("other", "ada", 1);
    huge.stages[0].resources.basic = Resources::new(64_000, 0);
    let refusal = world.refusal(huge);
    assert!(refusal.message.contains("lacks 62 cpu"), "{}", refusal.message);

    let mut held = endless("other", "ada", 1);
    held.held = true;
    let held = world.submit(held);
    assert_eq!(world.why(held), ["held by its user (release starts it)"]);
    world.control(held, JobAction::Release);
    assert!(world.why(held)[0].contains("lacks 1 cpu"), "{:?}", world.why(held));

    world.kill_server();
    world.start_server();
    assert_eq!(
        world.why(second),
        ["queue root.single already runs 1 job, which is its limit"],
        "the same reason after a restart"
    );
    assert_eq!(world.outcome(first), None);
}

#[test]
fn under_drf_a_node_is_kept_for_the_job_with_the_smallest_share() {
    let mut world = cluster(Preset::DRF, Vec::new(), 2, 4);
    // Earlier jobs that get grants all the time, and so never wait for long themselves.
    for length in ["900ms", "1s", "1100ms", "1300ms"] {
        world.submit(job(vec![stage("s", 500, length, 1_000)]));
    }
    let large = world.submit(job(vec![stage("large", 1, "1s", 4_000)]));
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.outcome(large), Some(JobOutcome::Succeeded), "{:?}", world.why(large));
}

#[test]
fn a_kept_node_is_used_when_the_limit_on_its_job_lifts() {
    let capped = QueueSpec { maximum: 500_000, ..queue("root.capped") };
    let mut world = cluster(Preset::FIFO, vec![capped, queue("root.free")], 2, 4);
    world.submit(endless("free", "ada", 8));
    let mut large = job(vec![stage("large", 3, "20s", 4_000)]);
    large.queue = "capped".to_owned();
    let large = world.submit(large);
    for length in ["900ms", "1100ms", "1300ms"] {
        let mut spec = job(vec![stage("s", 200, length, 1_000)]);
        spec.queue = "free".to_owned();
        world.submit(spec);
    }
    world.run_for(Duration::from_secs(600));
    assert_eq!(world.outcome(large), Some(JobOutcome::Succeeded), "{:?}", world.why(large));
    assert_eq!(world.running_tasks(), []);
}

#[test]
fn a_job_that_another_waits_for_is_not_forgotten() {
    let mut world = World::new(Preset::FIFO);
    world.settings.dispatch.kept_jobs = 1;
    world.start_server();
    world.add_node(Resources::new(1_000, 0), &[]);
    world.settle();
    let first = world.submit(job(vec![stage("s", 1, "1s", 1_000)]));
    let second = world.submit(job(vec![stage("s", 1, "5s", 1_000)]));
    let mut last = job(vec![stage("s", 1, "1s", 1_000)]);
    last.after_jobs = vec![first, second];
    let last = world.submit(last);
    world.run_for(Duration::from_secs(3));
    let others: Vec<JobId> = (0..3).map(|_| world.submit(job(vec![stage("s", 1, "10ms", 1_000)]))).collect();
    world.run_for(Duration::from_secs(30));
    let succeeded = |change: &Change| matches!(change, Change::JobEnded { job, outcome: JobOutcome::Succeeded, .. } if *job == last);
    assert!(world.disk.iter().any(succeeded), "{:?}", world.why(last));
    let newest = others[2];
    let all = [first, second, last].into_iter().chain(others);
    let known: Vec<JobId> = all.filter(|id| world.outcome(*id).is_some()).collect();
    assert_eq!(known, [newest], "only the job that ended last is kept of the ended ones");
}

#[test]
fn a_held_job_stays_held_over_a_snapshot() {
    use amalgam_core::role::Role;
    let mut world = cluster(Preset::DRF, Vec::new(), 1, 1);
    let mut spec = endless("", "ada", 5);
    spec.held = true;
    let id = world.submit(spec);
    world.control(id, JobAction::Release);
    world.run_for(Duration::from_millis(500));
    world.control(id, JobAction::Hold);
    let server = world.server.as_ref().expect("the server runs");
    let mut snapshot = server.master.durable();
    snapshot.extend(server.jobs.values().flat_map(Role::durable));
    world.kill_server();
    world.disk = snapshot;
    world.start_server();
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.launches().len(), 1, "only the task that started before the hold");
    world.control(id, JobAction::Release);
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}

#[test]
fn a_job_that_is_run_again_waits_like_any_other() {
    let single = QueueSpec { max_running_jobs: Some(1), ..queue("root.single") };
    let mut world = cluster(Preset::DRF, vec![single], 1, 2);
    let mut failing = job(vec![stage("s", 1, "1s 9", 1_000)]);
    failing.queue = "single".to_owned();
    let failing = world.submit(failing);
    world.run_for(Duration::from_secs(2));
    let other = world.submit(endless("single", "ada", 4));
    world.control(failing, JobAction::RerunFailed);
    assert_eq!(world.why(failing), ["queue root.single already runs 1 job, which is its limit"]);
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.outcome(other), Some(JobOutcome::Succeeded));
    assert_eq!(world.outcome(failing), Some(JobOutcome::Failed { exit_code: 9 }));
    assert_eq!(world.launches().values().map(|attempts| attempts.len()).max(), Some(2));
}

#[test]
fn an_idempotency_key_belongs_to_one_user_and_one_job() {
    use amalgam_core::protocol::{RefusalKind, ToClient, ToMaster};
    use std::sync::Arc;
    let mut world = cluster(Preset::DRF, Vec::new(), 1, 1);
    let mut submit = |user: &str, tasks: u32| {
        let spec = Arc::new(endless("", user, tasks));
        world.ask_master(ToMaster::Submit { spec, key: Some("k".to_owned()) })
    };
    assert_eq!(submit("ada", 1), ToClient::Submitted { job: JobId(1) });
    assert_eq!(submit("ada", 1), ToClient::Submitted { job: JobId(1) });
    assert_eq!(submit("bob", 1), ToClient::Submitted { job: JobId(2) });
    let ToClient::Refused(refusal) = submit("ada", 2) else { panic!("another job under the same key") };
    assert_eq!(refusal.kind, RefusalKind::Conflict);
}

#[test]
fn a_stage_near_a_node_waits_for_its_delays_and_then_runs_anywhere() {
    for preset in Preset::CENTRAL.iter().copied() {
        let delays = preset.booked().unwrap().delays;
        let mut world = cluster(preset, Vec::new(), 3, 1);
        let near = |name: &str, tasks: u32| {
            job(vec![StageSpec { near: vec![name.to_owned()], ..stage("s", tasks, "60s", 1_000) }])
        };
        let first = world.submit(near("host2", 1));
        world.run_for(Duration::from_millis(100));
        assert_eq!(world.nodes[2].executor.running.len(), 1, "{}: its node is the last one", preset.name());
        let second = world.submit(near("host2", 1));
        world.run_for(Duration::from_millis(100));
        assert_eq!(world.why(second), ["waits for room near its input"], "{}", preset.name());
        world.run_for(delays.node + delays.rack);
        assert_eq!(running_by_job(&world), [(first, 1), (second, 1)].into(), "{}", preset.name());
    }
}

#[test]
fn a_stage_near_an_unknown_node_is_refused_unless_it_waits_for_nodes() {
    let mut world = cluster(Preset::DRF, Vec::new(), 2, 1);
    let mut spec = endless("", "ada", 1);
    spec.stages[0].near = vec!["host1".to_owned(), "host7".to_owned()];
    let refusal = world.refusal(spec.clone());
    assert_eq!(refusal.message, "stage `s`: node `host7` of `near` not found");
    assert!(refusal.remedy.starts_with("known: host0, host1; or use"), "{}", refusal.remedy);
    spec.wait_for_nodes = true;
    world.submit(spec);
    world.run_for(Duration::from_millis(500));
    assert_eq!(world.nodes[1].executor.running.len(), 1, "the known name is used");
}

#[test]
fn raising_the_priority_of_a_waiting_job_makes_it_first_and_running_tasks_continue() {
    let mut world = cluster(Preset::FIFO, Vec::new(), 1, 2);
    let first = world.submit(endless("", "ada", 6));
    let second = world.submit(endless("", "ada", 4));
    let update = |priority| JobUpdate { priority: Some(priority), ..JobUpdate::default() };
    let ask = |job, update: JobUpdate| ToMaster::Update { job, update: Box::new(update), by: "ada".to_owned() };
    world.run_for(Duration::from_millis(500));
    assert_eq!(running_by_job(&world), BTreeMap::from([(first, 2)]));
    assert_eq!(world.ask_master(ask(second, update(5))), ToClient::Done);
    world.run_for(Duration::from_secs(1));
    assert_eq!(running_by_job(&world), BTreeMap::from([(second, 2)]));
    // The same for a job that also has running tasks, which are still counted.
    assert_eq!(world.ask_master(ask(first, update(9))), ToClient::Done);
    world.run_for(Duration::from_secs(1));
    assert_eq!(running_by_job(&world), BTreeMap::from([(first, 2)]));
    let elsewhere = JobUpdate { timeout: Some(Duration::from_millis(200)), ..JobUpdate::default() };
    assert_eq!(world.ask_master(ask(second, elsewhere)), ToClient::Done);
    world.run_for(Duration::from_secs(5));
    assert_eq!(world.outcome(first), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    assert_eq!(
        world.outcome(second),
        Some(JobOutcome::Failed { exit_code: 124 }),
        "tasks that start later have the shorter timeout"
    );
    assert_eq!(world.running_tasks(), []);
    let launches = world.launches().values().map(BTreeSet::len).sum::<usize>();
    assert_eq!(launches, 10, "no task is launched twice");
}
