//! What the preset `amalgam` promises: idle room is used, queues get what they are guaranteed, jobs what they are entitled to,
//! and little work is lost for that.

use crate::world::{World, job, stage};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::JobOutcome;
use amalgam_core::vocabulary::resources::CPU;
use amalgam_core::vocabulary::{Duration, JobId, JobSpec, QueueSpec, Resources, StageSpec};

const CORES: usize = 8;

fn cluster(queues: Vec<QueueSpec>) -> World {
    let mut world = World::new(Preset::AMALGAM);
    world.queues = QueueTree::new(queues).expect("a valid tree");
    world.verbose = true;
    world.start_server();
    for _ in 0..2 {
        world.add_node(Resources::new(CORES as u32 / 2 * 1_000, 0), &[]);
    }
    world.settle();
    world
}

fn two_queues() -> Vec<QueueSpec> {
    let half = |name| QueueSpec { guaranteed: 500_000, ..QueueSpec::named(name) };
    vec![half("root.one"), half("root.other")]
}

/// A job of tasks of one core.
fn tasks(queue: &str, count: u32, run: &str, seconds: u64) -> JobSpec {
    let expected = Some(Duration::from_secs(seconds));
    JobSpec { queue: queue.to_owned(), ..job(vec![StageSpec { expected, ..stage("s", count, run, 1_000) }]) }
}

fn running(world: &World, job: JobId) -> usize {
    world.running_tasks().iter().filter(|task| task.job == job).count()
}

/// How many cores the job holds, and how many of them within its share if all queues have work.
fn held_and_within(world: &World, job: JobId) -> (u64, u64) {
    let dispatch = world.server.as_ref().expect("the server runs").master.dispatch();
    let (held, within) = dispatch.held_within_share(job).expect("work beyond shares is preempted");
    (held.0[CPU] / 1_000, within.0[CPU] / 1_000)
}

fn preempted(world: &World) -> usize {
    world.log.iter().filter(|line| line.contains("preempted for job")).count()
}

#[test]
fn a_queue_takes_idle_room_and_leaves_it_to_its_owner_at_once() {
    let mut world = cluster(two_queues());
    let guest = world.submit(tasks("one", 20, "1h", 3_600));
    world.run_for(Duration::from_secs(60));
    assert_eq!(running(&world, guest), CORES, "no room stays idle");
    let owner = world.submit(tasks("other", 20, "2h", 7_200));
    world.run_for(Duration::from_secs(5));
    assert_eq!((running(&world, owner), running(&world, guest)), (4, 4), "each has what it is guaranteed");
    assert_eq!(preempted(&world), 4);
    world.run_for(Duration::from_secs(3_000));
    assert_eq!(preempted(&world), 4, "what is within a guarantee is not preempted");
    world.run_for(Duration::from_secs(30_000));
    assert_eq!(
        [world.outcome(guest), world.outcome(owner)],
        [Some(JobOutcome::Succeeded); 2],
        "preempted tasks run again"
    );
}

#[test]
fn the_newest_attempts_are_preempted() {
    let mut world = cluster(two_queues());
    let old = world.submit(tasks("one", 4, "10h", 36_000));
    world.run_for(Duration::from_secs(600));
    let new = world.submit(tasks("one", 4, "10h", 36_000));
    world.run_for(Duration::from_secs(60));
    let owner = world.submit(tasks("other", 4, "1h", 3_600));
    world.run_for(Duration::from_secs(5));
    let all = [old, new, owner].map(|job| running(&world, job));
    assert_eq!(all, [4, 0, 4]);
}

#[test]
fn within_a_queue_a_task_waits_for_as_long_as_attempts_had_run_before_they_are_preempted() {
    let mut world = cluster(Vec::new());
    let long = world.submit(tasks("", 8, "1h", 3_600));
    world.run_for(Duration::from_secs(20));
    let short = world.submit(tasks("", 2, "1s", 1));
    world.run_for(Duration::from_secs(15));
    assert_eq!((running(&world, long), world.outcome(short)), (CORES, None), "that would lose more than was gained");
    world.run_for(Duration::from_secs(10));
    assert_eq!(world.outcome(short), Some(JobOutcome::Succeeded), "{:?}", world.why(short));
    assert_eq!(preempted(&world), 1, "the second task runs in the room of the first");
}

#[test]
fn a_job_within_its_entitlement_loses_nothing() {
    let mut world = cluster(Vec::new());
    // The first job is done first with fair shares.
    let first = world.submit(tasks("", 8, "100s", 100));
    world.run_for(Duration::from_secs(10));
    let second = world.submit(tasks("", 80, "100s", 100));
    world.run_for(Duration::from_secs(85));
    assert_eq!((running(&world, first), running(&world, second)), (CORES, 0));
    assert_eq!(preempted(&world), 0);
}

/// A master that starts again does not know how long the attempts have run, and preempts for a guarantee all the same.
#[test]
fn guarantees_hold_after_a_restart_of_the_master() {
    let mut world = cluster(two_queues());
    let guest = world.submit(tasks("one", 8, "1h", 3_600));
    world.run_for(Duration::from_secs(60));
    world.kill_server();
    world.start_server();
    world.settle();
    world.run_for(Duration::from_secs(30));
    let owner = world.submit(tasks("other", 4, "1h", 3_600));
    world.run_for(Duration::from_secs(5));
    assert_eq!((running(&world, owner), running(&world, guest)), (4, 4));
}

#[test]
fn an_attempt_that_is_preempted_before_its_launch_arrives_does_not_start() {
    let mut world = cluster(two_queues());
    world.hold_launches = true;
    let guest = world.submit(tasks("one", 8, "1h", 3_600));
    let owner = world.submit(tasks("other", 4, "1h", 3_600));
    world.run_for(Duration::from_secs(2));
    world.hold_launches = false;
    world.deliver_held_launches();
    world.run_for(Duration::from_secs(5));
    assert_eq!((running(&world, owner), running(&world, guest)), (4, 4));
    assert_eq!(preempted(&world), 0, "nothing had to be stopped");
    world.run_for(Duration::from_secs(4 * 3_600));
    assert_eq!([world.outcome(guest), world.outcome(owner)], [Some(JobOutcome::Succeeded); 2]);
}

#[test]
fn a_guarantee_does_not_help_a_queue_against_its_own_jobs() {
    let most = QueueSpec { guaranteed: 750_000, ..QueueSpec::named("root.one") };
    let mut world = cluster(vec![most, QueueSpec::named("root.other")]);
    // Gangs are not preempted.
    let mut gang = tasks("other", 4, "1h", 3_600);
    gang.stages[0].gang = true;
    let gang = world.submit(gang);
    world.run_for(Duration::from_secs(5));
    let long = world.submit(tasks("one", 8, "1h", 3_600));
    world.run_for(Duration::from_secs(60));
    assert_eq!((running(&world, gang), running(&world, long)), (4, 4));
    let dispatch = world.server.as_ref().expect("the server runs").master.dispatch();
    assert_eq!(dispatch.held_within_share(gang), None, "it loses nothing");
    let short = world.submit(tasks("one", 2, "1s", 1));
    world.run_for(Duration::from_secs(20));
    assert_eq!((running(&world, long), world.outcome(short)), (4, None), "its queue has less than it is guaranteed");
    assert_eq!(preempted(&world), 0);
}

/// The credit is a part of the work that was done: 2 % of ten hours of eight cores are twelve minutes of eight cores.
#[test]
fn a_cluster_that_was_idle_has_no_work_to_lose() {
    for (busy, short_ends) in [(true, true), (false, false)] {
        let mut world = cluster(Vec::new());
        if busy {
            world.submit(tasks("", 8, "10h", 36_000));
        }
        world.run_for(Duration::from_secs(36_010));
        let long = world.submit(tasks("", 8, "1h", 3_600));
        world.run_for(Duration::from_secs(300));
        let short = world.submit(tasks("", 1, "1s", 1));
        world.run_for(Duration::from_secs(10));
        assert_eq!(world.outcome(short).is_some(), short_ends, "{}", world.log.join("\n"));
        assert_eq!(running(&world, long), CORES);
    }
}

/// After ten hours of eight cores the credit is a bit more than 5,760 core-seconds; the attempts take an hour.
#[test]
fn the_credit_is_spent_where_little_harm_does_much_good() {
    let cases = [
        (300, 1, 1, true, "a short task, before which an attempt would not end"),
        (300, 1, 3_000, false, "little is gained: it may cost 99 core-seconds"),
        (60, 1, 3_000, true, "that is more than what is lost now"),
        (300, 1, 7_200, false, "an attempt ends before it"),
        (300, 9, 60, false, "the job wants more than its part, and the attempts have run for longer than a twentieth"),
        (100, 9, 60, true, "they have hardly run"),
    ];
    for (ran, count, takes, is_at_once, why) in cases {
        let mut world = cluster(Vec::new());
        world.submit(tasks("", 8, "10h", 36_000));
        world.run_for(Duration::from_secs(36_010));
        world.submit(tasks("", 8, "1h", 3_600));
        world.run_for(Duration::from_secs(ran));
        world.submit(tasks("", count, &format!("{takes}s"), takes));
        world.run_for(Duration::from_secs(10));
        assert_eq!(preempted(&world) > 0, is_at_once, "{takes} s after {ran} s: {why}");
    }
}

#[test]
fn a_time_limit_is_not_taken_for_a_run_time() {
    let mut world = cluster(Vec::new());
    world.submit(tasks("", 8, "10h", 36_000));
    world.run_for(Duration::from_secs(36_010));
    let timeout = Some(Duration::from_secs(1_200));
    world.submit(job(vec![StageSpec { timeout, ..stage("s", 8, "1000s", 1_000) }]));
    world.run_for(Duration::from_secs(300));
    world.submit(tasks("", 9, "60s", 60));
    world.run_for(Duration::from_secs(10));
    assert!(preempted(&world) > 0, "attempts of unknown run time may be preempted for the whole credit");
}

#[test]
fn a_job_of_unknown_length_is_as_long_as_before_after_a_restart() {
    let mut world = cluster(Vec::new());
    let long = world.submit(job(vec![stage("s", 16, "1000s", 1_000)]));
    world.run_for(Duration::from_secs(600));
    world.kill_server();
    world.start_server();
    world.settle();
    world.run_for(Duration::from_secs(30));
    world.submit(tasks("", 80, "50s", 50));
    world.run_for(Duration::from_secs(30));
    let why = world.why(long);
    assert!(why.iter().any(|line| line.starts_with("job 2 is ahead")), "{why:?}");
}

/// Of the first job nothing is known but how long its tasks have run until now.
#[test]
fn a_job_of_unknown_length_is_as_long_as_its_tasks_show() {
    let unknown = |count, run| job(vec![stage("s", count, run, 1_000)]);
    let newcomers = [unknown(160, "1s"), tasks("", 80, "50s", 50)];
    for (newcomer, after) in newcomers.into_iter().zip([60, 300]) {
        let mut world = cluster(Vec::new());
        let long = world.submit(unknown(16, "1000s"));
        world.run_for(Duration::from_secs(after));
        let newcomer = world.submit(newcomer);
        world.run_for(Duration::from_secs(400));
        let has_started = world.outcome(newcomer).is_some() || running(&world, newcomer) > 0;
        assert!(has_started, "no task of the long job has ended, and the newcomer is before it");
        world.run_for(Duration::from_secs(1_200));
        assert_eq!(world.outcome(newcomer), Some(JobOutcome::Succeeded));
        world.run_for(Duration::from_secs(3_000));
        assert_eq!(world.outcome(long), Some(JobOutcome::Succeeded));
    }
}

/// So two jobs do not take the room from each other for ever, even if each of them is before the other while that one runs.
#[test]
fn what_a_job_has_lost_counts_when_it_is_preempted_again_until_one_of_its_tasks_ends() {
    let mut world = World::new(Preset::AMALGAM);
    world.verbose = true;
    world.start_server();
    world.add_node(Resources::new(1_000, 0), &[]);
    world.settle();
    let first = StageSpec { expected: Some(Duration::from_secs(200)), ..stage("first", 1, "200s", 1_000) };
    let then =
        StageSpec { expected: Some(Duration::from_secs(3_600)), after: vec![0], ..stage("then", 1, "1h", 1_000) };
    world.submit(job(vec![first, then]));
    let mut took = || {
        world.run_for(Duration::from_secs(40));
        let (short, at) = (world.submit(tasks("", 1, "1s", 1)), world.now);
        while world.outcome(short).is_none() {
            world.run_for(Duration::from_millis(100));
        }
        world.end_of(short).since(at).as_millis() / 1_000
    };
    // The attempt has run for 40 s, so the task waits for as long. The next one also waits for the 80 s that were lost.
    assert_eq!([took(), took()], [41, 121]);
    // Another 40 s and 160 s: the third one would wait for longer than the attempt takes.
    assert_eq!(took(), 161, "the attempt has ended after 200 s");
    assert_eq!(took(), 41, "nothing has been lost since");
}

/// 160 nodes of one core, which one of two queues uses.
fn many_nodes_in_use() -> World {
    let mut world = World::new(Preset::AMALGAM);
    world.queues = QueueTree::new(two_queues()).expect("a valid tree");
    world.start_server();
    (0..160).for_each(|_| world.add_node(Resources::new(1_000, 0), &[]));
    world.settle();
    world.submit(tasks("one", 160, "1h", 3_600));
    world.run_for(Duration::from_secs(60));
    world
}

#[test]
fn a_guarantee_on_many_nodes_is_met_in_one_review() {
    let mut world = many_nodes_in_use();
    let owner = world.submit(tasks("other", 80, "1h", 3_600));
    world.run_for(Duration::from_millis(500));
    assert_eq!(running(&world, owner), 80);
}

/// Stages whose tasks have the same shape are one ask, which waits already for the task of the first stage and grows; and a review
/// examines the 64 newest bookings of a job.
#[test]
fn a_guarantee_is_met_at_once_also_when_an_ask_grows_and_beyond_the_limits_of_a_review() {
    let mut world = many_nodes_in_use();
    let wide = (1..=80).map(|number| StageSpec { after: vec![0], ..stage(&format!("s{number}"), 1, "1h", 1_000) });
    let stages = std::iter::once(stage("first", 1, "1s", 1_000)).chain(wide).collect();
    let owner = world.submit(JobSpec { queue: "other".to_owned(), ..job(stages) });
    world.run_for(Duration::from_millis(1_500));
    assert_eq!(running(&world, owner), 80);
}

/// The own jobs of the queue have newer bookings on the node than others.
#[test]
fn a_queue_takes_what_it_is_guaranteed_from_others_and_not_from_its_own_jobs() {
    let mut world = World::new(Preset::AMALGAM);
    let half = QueueSpec { guaranteed: 500_000, ..QueueSpec::named("root.one") };
    world.queues = QueueTree::new(vec![half, QueueSpec::named("root.other")]).expect("a valid tree");
    world.start_server();
    world.add_node(Resources::new(CORES as u32 * 1_000, 0), &[]);
    world.settle();
    let guest = world.submit(tasks("other", 8, "2h", 7_200));
    world.run_for(Duration::from_secs(60));
    let long = world.submit(tasks("one", 3, "1h", 3_600));
    world.run_for(Duration::from_secs(60));
    assert_eq!([guest, long].map(|job| running(&world, job)), [5, 3]);
    // Of the four cores of the queue it is entitled to three, and the other job to one.
    let short = world.submit(tasks("one", 3, "10m", 600));
    world.run_for(Duration::from_secs(5));
    assert_eq!([guest, long, short].map(|job| running(&world, job)), [4, 3, 1]);
}

/// Two cores of the node are free, and six are held by a queue without a guarantee.
#[test]
fn what_is_free_on_a_reserved_node_is_not_kept_from_a_guarantee_for_a_queue_beyond_its_own() {
    // What is guaranteed to the gang; tasks of the other queue and their cores; how many start, and how many attempts are preempted.
    for (guaranteed, (count, cores), expected) in
        [(0, (2, 1), (2, 0)), (500_000, (2, 1), (0, 0)), (0, (1, 3), (1, 1)), (500_000, (1, 3), (0, 0))]
    {
        let mut world = World::new(Preset::AMALGAM);
        let mut queues = two_queues();
        queues[1].guaranteed = guaranteed;
        queues.push(QueueSpec::named("root.third"));
        world.queues = QueueTree::new(queues).expect("a valid tree");
        world.verbose = true;
        world.start_server();
        world.add_node(Resources::new(CORES as u32 * 1_000, 0), &[]);
        world.settle();
        // When the gang can start, nothing else is free.
        world.submit(tasks("third", 2, "1h", 3_600));
        world.submit(tasks("third", 4, "3h", 10_800));
        let gang = StageSpec { gang: true, ..stage("s", 4, "1h", 1_000) };
        let waits = world.submit(JobSpec { queue: "other".to_owned(), ..job(vec![gang]) });
        world.run_for(Duration::from_secs(60));
        assert_eq!(running(&world, waits), 0);
        assert!(world.why(waits)[0].contains("reserved for it"), "{:?}", world.why(waits));
        let mut owner = tasks("one", count, "2h", 7_200);
        owner.stages[0].resources.basic = Resources::new(cores * 1_000, 0);
        let owner = world.submit(owner);
        world.run_for(Duration::from_secs(5));
        let found = (running(&world, owner), preempted(&world));
        assert_eq!(found, expected, "guaranteed to the gang: {guaranteed}; tasks of {cores} cores");
    }
}

#[test]
fn a_queue_takes_what_it_is_guaranteed_on_reserved_nodes_last() {
    let mut world = cluster(two_queues());
    let guest = world.submit(tasks("one", 8, "1h", 3_600));
    let gang = StageSpec { gang: true, ..stage("s", 4, "1h", 1_000) };
    let waits = world.submit(JobSpec { queue: "one".to_owned(), ..job(vec![gang]) });
    world.run_for(Duration::from_secs(60));
    assert!(world.why(waits)[0].contains("1 node is reserved for it"), "{:?}", world.why(waits));
    let owner = world.submit(tasks("other", 4, "1h", 3_600));
    world.run_for(Duration::from_secs(5));
    assert_eq!([owner, guest].map(|job| running(&world, job)), [4, 4]);
    let on_reserved = world.log.iter().filter(|line| line.contains("preempted for job") && line.contains(" n0 "));
    assert_eq!(on_reserved.count(), 0, "{}", world.log.join("\n"));
}

#[test]
fn a_queue_does_not_wait_for_the_next_review_for_what_it_is_guaranteed() {
    for (queue, waits) in [("other", false), ("one", true)] {
        let mut world = cluster(two_queues());
        world.submit(tasks("one", 8, "20h", 72_000));
        // The credit of this work pays for a task of a second, at the next review.
        world.run_for(Duration::from_secs(36_000));
        // A first task makes the jobs be reviewed, and a second one comes a bit later.
        world.submit(tasks("other", 1, "1h", 3_600));
        world.run_for(Duration::from_millis(20));
        let next = world.submit(tasks(queue, 1, "1s", 1));
        world.run_for(Duration::from_millis(20));
        assert_eq!(running(&world, next) == 0, waits, "{queue}");
    }
}

#[test]
fn what_a_job_holds_beyond_its_share_is_promoted_when_another_job_of_its_queue_ends() {
    let mut world = cluster(two_queues());
    let first = world.submit(tasks("one", 4, "10m", 600));
    let second = world.submit(tasks("one", 4, "1h", 3_600));
    world.run_for(Duration::from_secs(60));
    assert_eq!([first, second].map(|job| held_and_within(&world, job)), [(4, 4), (4, 0)]);
    world.run_for(Duration::from_secs(600));
    assert_eq!(world.outcome(first), Some(JobOutcome::Succeeded));
    assert_eq!(held_and_within(&world, second), (4, 4));
    let owner = world.submit(tasks("other", 8, "1h", 3_600));
    world.run_for(Duration::from_secs(60));
    assert_eq!([second, owner].map(|job| held_and_within(&world, job)), [(4, 4); 2]);
    assert_eq!(preempted(&world), 0, "what was promoted is not preempted");
}

#[test]
fn a_job_that_uses_idle_room_holds_it_beyond_its_share() {
    let mut world = cluster(two_queues());
    let guest = world.submit(tasks("one", 20, "1h", 3_600));
    world.run_for(Duration::from_secs(5));
    assert_eq!(held_and_within(&world, guest), (8, 4));
    world.submit(tasks("other", 20, "1h", 3_600));
    world.run_for(Duration::from_secs(5));
    assert_eq!(held_and_within(&world, guest), (4, 4));
}
