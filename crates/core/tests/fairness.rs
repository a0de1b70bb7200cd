//! What the central presets promise, on the real roles: shares, guarantees, limits, priorities, no starvation, reasons.

#[allow(dead_code)]
mod world;

use amalgam_core::master::Decide;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{JobAction, JobOutcome};
use amalgam_core::vocabulary::{Constraint, Duration, JobId, JobSpec, QueueSpec, Resources};
use std::collections::BTreeMap;
use world::{World, job, stage};

fn queue(name: &str) -> QueueSpec {
    QueueSpec::named(name)
}

fn cluster(preset: Preset, queues: Vec<QueueSpec>, nodes: u32, cpus: u32) -> World {
    let mut world = World::new(preset);
    world.queues = QueueTree::new(queues).expect("a sound tree");
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
    let mut world = cluster(Preset::Drf, vec![heavy, queue("root.light")], 2, 4);
    let light = world.submit(endless("light", "ada", 100));
    let heavy = world.submit(endless("heavy", "ada", 100));
    world.run_for(Duration::from_secs(5));
    let running = running_by_job(&world);
    assert_eq!((running[&heavy], running[&light]), (6, 2));
}

#[test]
fn a_queue_below_its_guarantee_goes_first_whatever_its_weight() {
    let small = QueueSpec { weight: 1, guaranteed: 500_000, ..queue("root.small") };
    let mut world = cluster(Preset::Drf, vec![small, queue("root.large")], 2, 4);
    let large = world.submit(endless("large", "ada", 100));
    let small = world.submit(endless("small", "ada", 100));
    world.run_for(Duration::from_secs(5));
    let running = running_by_job(&world);
    assert_eq!((running[&small], running[&large]), (4, 4));
}

#[test]
fn a_maximum_share_holds_at_every_moment_and_is_the_reason() {
    for preset in Preset::ALL {
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
        assert!(explained > 10, "it was pending for most of the time");
        assert_eq!(world.outcome(capped), Some(JobOutcome::Succeeded), "a limit slows a job and does not stop it");
    }
}

#[test]
fn one_user_takes_no_more_than_the_users_limit_and_the_next_user_goes_on() {
    for preset in Preset::ALL {
        let shared = QueueSpec { user_limit: 500_000, ..queue("root.shared") };
        let mut world = cluster(preset, vec![shared], 1, 4);
        let ada = world.submit(endless("shared", "ada", 50));
        let bob = world.submit(endless("shared", "bob", 50));
        world.run_for(Duration::from_millis(3_500));
        let running = running_by_job(&world);
        assert_eq!((running[&ada], running[&bob]), (2, 2), "{}", preset.name());
        assert!(world.why(ada)[0].contains("at the limit for one user in queue root.shared"), "{:?}", world.why(ada));
    }
}

#[test]
fn a_higher_priority_goes_first_within_a_queue() {
    for preset in Preset::ALL {
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
fn drf_gives_two_jobs_of_a_queue_the_same_and_fifo_serves_the_first() {
    let shares = |preset| {
        let mut world = cluster(preset, Vec::new(), 2, 4);
        let first = world.submit(endless("", "ada", 100));
        let second = world.submit(endless("", "ada", 100));
        world.run_for(Duration::from_millis(4_500));
        let running = running_by_job(&world);
        (running[&first], running.get(&second).copied().unwrap_or(0))
    };
    assert_eq!(shares(Preset::Drf), (4, 4));
    assert_eq!(shares(Preset::Fifo), (8, 0));
}

#[test]
fn a_large_task_does_not_starve_behind_small_ones() {
    for preset in Preset::ALL {
        let mut world = cluster(preset, Vec::new(), 2, 4);
        world.submit(endless("", "ada", 8));
        let large = world.submit(job(vec![stage("large", 1, "1s", 4_000)]));
        // Later jobs with tasks of different lengths, so that no node empties by chance while they pass it over.
        for length in ["900ms", "1s", "1100ms", "1300ms"] {
            world.submit(job(vec![stage("s", 500, length, 1_000)]));
        }
        world.run_for(Duration::from_secs(20));
        assert_eq!(world.outcome(large), None, "{}: without a reservation it does not start", preset.name());
        world.run_for(Duration::from_secs(30));
        assert_eq!(world.outcome(large), Some(JobOutcome::Succeeded), "{}: {:?}", preset.name(), world.why(large));
    }
}

#[test]
fn in_heartbeat_mode_nothing_is_decided_between_heartbeats() {
    let mut world = World::new(Preset::Drf);
    world.settings.decide = Decide::OnHeartbeats;
    world.settings.heartbeat = Duration::from_secs(3);
    world.start_server();
    world.add_node(Resources::new(1_000, 0), &[]);
    world.settle();
    world.run_for(Duration::from_millis(3_500));
    let id = world.submit(endless("", "ada", 2));
    assert_eq!(world.why(id), ["decided at the next heartbeat"]);
    world.run_for(Duration::from_secs(2));
    assert_eq!(world.running_tasks().len(), 0, "the heartbeat is at 6 s");
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.running_tasks().len(), 1);
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}

#[test]
fn every_pending_job_has_a_reason_that_names_what_is_missing() {
    let limited = QueueSpec { max_running_jobs: Some(1), ..queue("root.single") };
    let mut world = cluster(Preset::Drf, vec![limited, queue("root.other")], 2, 2);
    let first = world.submit(endless("single", "ada", 20));
    let second = world.submit(endless("single", "ada", 1));
    assert_eq!(world.why(second), ["queue root.single already runs 1 jobs, which is its limit"]);

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
    assert!(refusal.message.contains("comes closest and is short of 62 cpu"), "{}", refusal.message);

    let mut held = endless("other", "ada", 1);
    held.held = true;
    let held = world.submit(held);
    assert_eq!(world.why(held), ["held by its user (release starts it)"]);
    world.control(held, JobAction::Release);
    assert!(world.why(held)[0].contains("comes closest and is short of 1 cpu"), "{:?}", world.why(held));

    world.kill_server();
    world.start_server();
    assert_eq!(
        world.why(second),
        ["queue root.single already runs 1 jobs, which is its limit"],
        "also after a restart"
    );
    assert_eq!(world.outcome(first), None);
}
