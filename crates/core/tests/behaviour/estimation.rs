//! Job managers that send their tasks to the node that completes them first: how much of a job is guaranteed and how
//! much opportunistic, what happens to both, what nodes report, and what happens after wrong decisions.

mod duplicates;

use crate::world::{World, job, stage};
use amalgam_core::job_manager::JobManager;
use amalgam_core::preset::Preset;
use amalgam_core::progress::TaskState;
use amalgam_core::protocol::{Address, JobAction, JobOutcome, Message, Rule, ToJobManager, ToNode};
use amalgam_core::role::{Change, Event, LostCause, Outbox, Record, Role};
use amalgam_core::vocabulary::resources::CPU;
use amalgam_core::vocabulary::{
    AttemptId, Constraint, Duration, EndReason, Ended, Epoch, ExecutionType, Instant, Items, JobId, JobSpec, NodeId,
    Resources, StageSpec, TaskSet,
};
use amalgam_core::why::{Used, Why};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ExecutionType::{Auto, Guaranteed, Opportunistic};

const CORE: Resources = Resources::new(1_000, 0);
const TWO: Resources = Resources::new(2_000, 0);
const FOUR: Resources = Resources::new(4_000, 0);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// This many hundredths of the cluster may be guaranteed, and the same amount opportunistic. Decisions are final.
fn preset(guaranteed: u32) -> Preset {
    let mut preset = Preset::APOLLO;
    let settings = preset.entitled_mut().expect("the preset has entitlements");
    (settings.guaranteed, settings.corrections) = (guaranteed, None);
    preset
}

fn of_kind(execution: ExecutionType, tasks: u32, length: &str, cpu_millis: u32) -> StageSpec {
    let mut stage = stage("only", tasks, length, cpu_millis);
    stage.execution = execution;
    stage.expected = length.split(' ').next().and_then(|length| Duration::parse(length).ok());
    stage
}

/// A task of one core for each length.
fn lasting(lengths: &[&str]) -> StageSpec {
    let mut items = Items::default();
    lengths.iter().for_each(|length| items.push(length).expect("short"));
    StageSpec { tasks: TaskSet::Each(items), ..of_kind(Auto, 1, "1s", 1_000) }
}

/// Numbers of a job's attempts that have not ended: guaranteed and opportunistic.
fn out_of(world: &World, job: JobId) -> (usize, usize) {
    let mut out: BTreeMap<AttemptId, bool> = BTreeMap::new();
    for change in world.disk.iter().filter(|change| change.job() == Some(job)) {
        match change {
            Change::Launched { attempt, opportunistic, .. } => drop(out.insert(*attempt, *opportunistic)),
            Change::Promoted { attempt, .. } => drop(out.insert(*attempt, false)),
            Change::Finished { attempt, .. } | Change::Lost { attempt, .. } => drop(out.remove(attempt)),
            _ => {}
        }
    }
    let opportunistic = out.values().filter(|opportunistic| **opportunistic).count();
    (out.len() - opportunistic, opportunistic)
}

fn running_of(world: &World, job: JobId) -> usize {
    world.running_tasks().iter().filter(|task| task.job == job).count()
}

/// The jobs whose attempts were preempted.
fn preempted(world: &World) -> Vec<JobId> {
    let was_preempted = |change: &Change| match change {
        Change::Finished { task, ended, .. } if ended.reason == EndReason::Preempted => Some(task.job),
        _ => None,
    };
    world.disk.iter().filter_map(was_preempted).collect()
}

fn promotions(world: &World) -> Vec<AttemptId> {
    let promoted = |change: &Change| match change {
        Change::Promoted { attempt, grant: None, .. } => Some(*attempt),
        _ => None,
    };
    world.disk.iter().filter_map(promoted).collect()
}

fn succeeded(world: &World, job: JobId) {
    assert_eq!(world.outcome(job), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
}

// ---- shares --------------------------------------------------------------------------------------------------------

#[test]
fn a_job_gets_its_share_guaranteed_and_one_more_share_opportunistic() {
    for (execution, sent) in [(Auto, (14, 14)), (Guaranteed, (14, 0))] {
        let mut world = World::with_nodes(preset(90), 4, FOUR);
        let id = world.submit(job(vec![of_kind(execution, 60, "20s", 1_000)]));
        world.run_for(seconds(5));
        assert_eq!(out_of(&world, id), sent, "{execution:?}");
        world.kill_server();
        world.start_server();
        world.run_for(seconds(5));
        assert_eq!(out_of(&world, id), sent, "{execution:?}, after a restart");
        let manager = &world.server.as_ref().unwrap().jobs[&id];
        assert_eq!(world.recovered(id, &manager.durable()).durable(), manager.durable(), "the snapshot is equal");
        world.run_for(seconds(400));
        succeeded(&world, id);
    }
}

#[test]
fn an_opportunistic_stage_is_sent_opportunistic_and_promoted_within_the_share() {
    let mut world = World::with_nodes(preset(90), 4, FOUR);
    let id = world.submit(job(vec![of_kind(Opportunistic, 60, "20s", 1_000)]));
    world.run_for(seconds(5));
    assert_eq!(out_of(&world, id), (14, 14));
    world.run_for(seconds(400));
    succeeded(&world, id);
    let guaranteed = |change: &Change| matches!(change, Change::Launched { opportunistic: false, .. });
    assert!(!world.disk.iter().any(guaranteed));
}

#[test]
fn the_whole_cluster_is_used_even_if_more_jobs_wait_than_may_have_a_guaranteed_task() {
    let mut world = World::with_nodes(preset(50), 2, FOUR);
    let jobs: Vec<JobId> = (0..12).map(|_| world.submit(job(vec![of_kind(Auto, 4, "20s", 1_000)]))).collect();
    world.run_for(seconds(10));
    let out = jobs.iter().map(|id| out_of(&world, *id));
    let (guaranteed, opportunistic) = out.fold((0, 0), |sum, out| (sum.0 + out.0, sum.1 + out.1));
    assert!(guaranteed <= 4 && opportunistic >= 4, "{guaranteed} and {opportunistic}");
    assert_eq!(world.running_tasks().len(), 8, "{}", world.log.join("\n"));
    world.run_for(seconds(400));
    jobs.iter().for_each(|id| succeeded(&world, *id));
}

#[test]
fn a_job_with_almost_no_share_has_one_attempt_out() {
    for execution in [Auto, Guaranteed, Opportunistic] {
        let mut preset = preset(1);
        preset.entitled_mut().unwrap().allowance.opportunistic = 1;
        let mut world = World::with_nodes(preset, 2, CORE);
        let id = world.submit(job(vec![of_kind(execution, 3, "4s", 1_000)]));
        for _ in 0..3 {
            world.run_for(seconds(2));
            let out = out_of(&world, id);
            // One opportunistic attempt may be out beside the guaranteed one. Once it has become guaranteed, another
            // may be sent.
            let (guaranteed, opportunistic) = out;
            assert!(guaranteed <= 1 && opportunistic <= 1, "{execution:?}: {out:?}");
            assert!(guaranteed + opportunistic > 0 || world.outcome(id).is_some(), "{execution:?}");
            assert!(execution != Guaranteed || opportunistic == 0, "{out:?}");
            world.run_for(seconds(2));
        }
        world.run_for(seconds(2));
        succeeded(&world, id);
    }
}

/// The weights of the job's opportunistic attempts. Checks that its nodes received the same.
fn weights(world: &World, job: JobId) -> Vec<u16> {
    let launched = world.disk.iter().filter_map(|change| match change {
        Change::Launched { attempt, opportunistic: true, weight, .. } if attempt.job == job => {
            let heard = world.intercepted_launches.iter().find(|(_, launch)| launch.attempt == *attempt);
            assert_eq!(heard.map(|(_, launch)| launch.weight), Some(*weight));
            Some(*weight)
        }
        _ => None,
    });
    launched.collect()
}

#[test]
fn a_job_with_few_tasks_gives_them_larger_weights() {
    // 14 are guaranteed, and 14 may be opportunistic.
    for (tasks, expected) in [(16, vec![7, 7]), (17, vec![4, 5, 5]), (28, vec![1; 14]), (60, vec![1; 14])] {
        let mut world = World::with_nodes(preset(90), 4, FOUR);
        let id = world.submit(job(vec![of_kind(Auto, tasks, "20s", 1_000)]));
        world.run_for(seconds(1));
        assert_eq!(weights(&world, id), expected, "{tasks} tasks");
    }
}

#[test]
fn weights_count_for_waiting_attempts_only() {
    let mut world = World::with_nodes(preset(90), 4, FOUR);
    let short = StageSpec { name: "short".to_owned(), ..of_kind(Auto, 30, "20s", 1_000) };
    let first = StageSpec { name: "first".to_owned(), ..of_kind(Auto, 1, "1s", 1_000) };
    let id = world.submit(job(vec![of_kind(Auto, 16, "20s", 1_000), first, StageSpec { after: vec![1], ..short }]));
    world.run_for(seconds(4));
    let sent = weights(&world, id);
    // At first three opportunistic attempts start or wait, and then as many as may be out: none exceeds the allowance.
    assert!(sent.iter().any(|weight| *weight > 1), "{sent:?}");
    let (_, opportunistic) = out_of(&world, id);
    assert!((10..=14).contains(&opportunistic), "{opportunistic}: {sent:?}");
    world.kill_server();
    world.start_server();
    world.run_for(seconds(4));
    let manager = &world.server.as_ref().unwrap().jobs[&id];
    assert_eq!(world.recovered(id, &manager.durable()).durable(), manager.durable(), "the snapshot is equal");
    world.run_for(seconds(400));
    succeeded(&world, id);
}

#[test]
fn a_stage_that_suits_no_node_does_not_block_other_stages() {
    let mut world = World::with_nodes(preset(90), 2, FOUR);
    let large = of_kind(Auto, 3_000, "1s", 5_000);
    let small = StageSpec { name: "small".to_owned(), ..of_kind(Auto, 20, "1s", 1_000) };
    let id = world.submit(JobSpec { wait_for_nodes: true, ..job(vec![large, small]) });
    world.run_for(seconds(10));
    let succeeded =
        |change: &&Change| matches!(change, Change::Finished { task, .. } if task.job == id && task.stage == 1);
    assert_eq!(world.disk.iter().filter(succeeded).count(), 20);
}

#[test]
fn both_jobs_are_notified_of_their_shares() {
    let mut world = World::with_nodes(preset(90), 4, FOUR);
    let first = world.submit(job(vec![of_kind(Auto, 600, "3s", 1_000)]));
    world.run_for(seconds(2));
    assert_eq!(out_of(&world, first), (14, 14));
    let tasks = StageSpec { after: vec![0], name: "many".to_owned(), ..of_kind(Auto, 80, "3s", 1_000) };
    let second = world.submit(job(vec![of_kind(Guaranteed, 4, "10s", 1_000), tasks]));
    world.run_for(seconds(8));
    assert_eq!((out_of(&world, first), out_of(&world, second)), ((10, 10), (4, 0)), "all that the second job leaves");
    // Attempts that were opportunistic already continue in the little room that is left.
    world.run_for(seconds(28));
    assert_eq!((out_of(&world, first), out_of(&world, second)), ((7, 7), (7, 7)), "half the cluster each");
    world.run_for(seconds(50));
    succeeded(&world, second);
    assert_eq!(out_of(&world, first), (14, 14), "the whole cluster again");
}

/// A job that fills the cluster: of its first tasks, which are short, 14 are guaranteed.
fn filled(yields_for: Option<Duration>) -> (World, JobId) {
    let mut preset = preset(90);
    preset.entitled_mut().unwrap().yields_for = yields_for;
    let mut world = World::with_nodes(preset, 4, FOUR);
    let lengths: Vec<&str> = [["10s"; 14].as_slice(), &["60s"; 46]].concat();
    let id = world.submit(job(vec![StageSpec { expected: Some(seconds(30)), ..lasting(&lengths) }]));
    world.run_for(seconds(2));
    assert_eq!((running_of(&world, id), out_of(&world, id)), (16, (14, 14)));
    (world, id)
}

#[test]
fn no_job_is_allowed_what_another_still_holds() {
    let (mut world, first) = filled(Some(seconds(300)));
    let second = world.submit(job(vec![of_kind(Guaranteed, 20, "60s", 1_000)]));
    world.run_for(seconds(2));
    assert_eq!(
        (running_of(&world, first), out_of(&world, second)),
        (16, (0, 0)),
        "the first job holds the whole cluster"
    );
    let why = |world: &World| world.server.as_ref().unwrap().jobs[&second].explain();
    let bound = |guaranteed: Used, opportunistic: Used| vec![Why::Allowance { kind: CPU, guaranteed, opportunistic }];
    let share = Used { used: 0, most: 7_200 };
    assert_eq!(why(&world), bound(Used { used: 0, most: 0 }, share));
    world.run_for(seconds(7));
    assert_eq!((out_of(&world, first).0, out_of(&world, second)), (7, (7, 0)), "{}", world.log.join("\n"));
    assert!(why(&world).ends_with(&bound(Used { used: 7_000, most: 7_000 }, share)), "{:?}", why(&world));
    world.control(first, JobAction::Cancel);
    world.run_for(seconds(12));
    assert_eq!(out_of(&world, second), (14, 0), "resources of an ended job are for the others");
}

/// A short job arrives after a job with many tasks. Returns how much the short one holds once the tasks of the other
/// have ended.
fn short_beside_long(preset: Preset) -> usize {
    let mut world = World::with_nodes(preset, 1, Resources::new(16_000, 0));
    world.submit(job(vec![of_kind(Guaranteed, 400, "20s", 1_000)]));
    world.run_for(seconds(5));
    let short = world.submit(job(vec![of_kind(Guaranteed, 12, "20s", 1_000)]));
    world.run_for(seconds(20));
    out_of(&world, short).0
}

#[test]
fn within_a_queue_a_short_job_gets_its_fair_share_or_all_it_needs() {
    assert_eq!(short_beside_long(preset(100)), 8);
    let mut further = Preset::APOLLO_PLUS;
    further.entitled_mut().unwrap().guaranteed = 100;
    assert_eq!(short_beside_long(further), 12);
}

#[test]
fn opportunistic_work_is_preempted_by_guaranteed_work_that_is_not_booked() {
    let (mut world, first) = filled(None);
    let second = world.submit(job(vec![of_kind(Guaranteed, 1, "60s", 400)]));
    world.run_for(seconds(6));
    assert_eq!((running_of(&world, first), running_of(&world, second)), (15, 1), "{}", world.log.join("\n"));
    assert_eq!((preempted(&world), out_of(&world, first).0), (vec![first], 14));
}

// ---- promotions ----------------------------------------------------------------------------------------------------

/// A node of two cores, one of which is the job's share, with a short guaranteed task, and an opportunistic one that
/// becomes guaranteed when the short one has ended.
fn promoted() -> (World, JobId, AttemptId) {
    let mut world = World::with_nodes(preset(50), 1, TWO);
    let id = world.submit(job(vec![lasting(&["2s", "40s"])]));
    world.run_for(seconds(1));
    assert_eq!((out_of(&world, id), promotions(&world)), ((1, 1), vec![]));
    world.run_for(seconds(2));
    let promoted = promotions(&world);
    assert_eq!((out_of(&world, id), promoted.len()), ((1, 0), 1));
    (world, id, promoted[0])
}

/// Another job needs the whole node, and gets it when the first job's task has ended.
fn is_not_preempted(mut world: World, promoted: JobId) {
    let other = world.submit(job(vec![of_kind(Guaranteed, 1, "1s", 2_000)]));
    world.run_for(seconds(20));
    assert_eq!((running_of(&world, promoted), running_of(&world, other)), (1, 0), "{}", world.log.join("\n"));
    world.run_for(seconds(30));
    succeeded(&world, promoted);
    succeeded(&world, other);
    assert_eq!((preempted(&world), promotions(&world).len()), (vec![], 1));
}

#[test]
fn a_running_opportunistic_attempt_is_promoted_once_the_share_has_room() {
    let (world, id, _) = promoted();
    is_not_preempted(world, id);
}

#[test]
fn a_promotion_within_the_share_survives_a_server_restart() {
    let (mut world, id, _) = promoted();
    world.kill_server();
    world.start_server();
    world.run_for(seconds(2));
    is_not_preempted(world, id);
}

#[test]
fn a_promotion_within_the_share_survives_an_agent_restart() {
    let (mut world, id, _) = promoted();
    world.kill_server();
    world.kill_agent(0);
    world.start_agent(0);
    world.settle();
    let room = world.nodes[0].agent.as_ref().unwrap().opportunistic_room();
    assert_eq!(room, Resources::MAX, "no opportunistic attempt runs there");
    world.start_server();
    world.run_for(seconds(2));
    is_not_preempted(world, id);
}

#[test]
fn a_missed_promotion_is_sent_to_the_node_again() {
    let mut world = World::with_nodes(preset(50), 2, CORE);
    let id = world.submit(job(vec![lasting(&["2s", "40s"])]));
    world.run_for(seconds(1));
    let of_long = |world: &World| {
        world.nodes.iter().position(|host| host.executor.running.values().any(|(order, ..)| order.task.index == 1))
    };
    let node = of_long(&world).expect("both run");
    world.unlink(node);
    world.run_for(seconds(2));
    assert_eq!(promotions(&world).len(), 1);
    let opportunistic_room = |world: &World| world.nodes[node].agent.as_ref().unwrap().opportunistic_room();
    assert_ne!(opportunistic_room(&world), Resources::MAX, "the node has not received the promotion");
    world.link(node);
    world.settle();
    assert_eq!((opportunistic_room(&world), running_of(&world, id)), (Resources::MAX, 1));
}

#[test]
fn starved_attempts_are_promoted_before_new_ones_are_sent() {
    for (starved_after, promoted, launched) in [(3, 1, [false, true, true]), (60, 0, [false, true, false])] {
        let mut preset = preset(100);
        preset.entitled_mut().unwrap().allowance.starved_after = seconds(starved_after);
        let mut world = World::with_nodes(preset, 1, CORE);
        let id = world.submit(job(vec![of_kind(Auto, 3, "5s", 1_000)]));
        world.run_for(Duration::from_millis(5_001));
        let kind = |change: &Change| match change {
            Change::Launched { opportunistic, .. } => Some(*opportunistic),
            _ => None,
        };
        let kinds: Vec<bool> = world.disk.iter().filter_map(kind).collect();
        assert_eq!((promotions(&world).len(), &kinds[..3]), (promoted, &launched[..]), "after {starved_after} s");
        world.run_for(seconds(20));
        succeeded(&world, id);
    }
}

/// A task of four cores waits beside a stage of small ones that end one after the other, on a node of four cores.
fn large_beside_small(starved_after: u64) -> (World, JobId) {
    let mut preset = preset(100);
    preset.entitled_mut().unwrap().allowance.starved_after = seconds(starved_after);
    let mut world = World::with_nodes(preset, 1, FOUR);
    let lengths = [["4s", "5s", "6s", "7s"].as_slice(), &["5s"; 26]].concat();
    let small = StageSpec { name: "small".to_owned(), execution: Guaranteed, ..lasting(&lengths) };
    let id = world.submit(job(vec![small, of_kind(Opportunistic, 1, "5s", 4_000)]));
    (world, id)
}

#[test]
fn free_resources_are_kept_for_a_large_starved_task() {
    for (starved_after, kept) in [(3, true), (600, false)] {
        let (mut world, id) = large_beside_small(starved_after);
        world.run_for(Duration::from_millis(5_500));
        let why = |used| {
            let opportunistic = Used { used: 4_000, most: 4_000 };
            Why::Allowance { kind: CPU, guaranteed: Used { used, most: 4_000 }, opportunistic }
        };
        let output = world.server.as_ref().unwrap().jobs[&id].explain();
        assert!(output.contains(&why(if kept { 2_000 } else { 4_000 })), "after {starved_after} s: {output:?}");
        world.run_for(Duration::from_millis(2_500));
        let running = world.running_tasks();
        assert_eq!(running.len() == 1 && running[0].stage == 1, kept, "after {starved_after} s: {running:?}");
        world.run_for(seconds(120));
        succeeded(&world, id);
    }
}

#[test]
fn a_task_is_promoted_although_many_older_ones_are_too_large() {
    let mut preset = preset(50);
    preset.entitled_mut().unwrap().allowance.opportunistic = 20_000;
    let eight = Resources::new(8_000, 0);
    let mut world = World::with_nodes(preset, 1, eight);
    world.submit(job(vec![of_kind(Auto, 8, "10s", 1_000)]));
    world.run_for(seconds(1));
    // All of them wait: no launch has arrived at the node yet.
    world.hold_launches = true;
    let id = world.submit(job(vec![of_kind(Opportunistic, 40, "20s", 8_000), of_kind(Opportunistic, 1, "5s", 1_000)]));
    world.run_for(seconds(5));
    assert_eq!(out_of(&world, id), (0, 41));
    world.run_for(seconds(5));
    assert_eq!(out_of(&world, id), (1, 40), "{}", world.log.join("\n"));
}

#[test]
fn a_promoted_attempt_that_waits_is_queued_like_guaranteed_work() {
    let mut world = World::with_nodes(preset(200), 1, CORE);
    world.submit(job(vec![of_kind(Guaranteed, 1, "10s", 1_000)]));
    world.run_for(seconds(1));
    let id = world.submit(job(vec![of_kind(Opportunistic, 1, "1s", 1_000)]));
    world.run_for(seconds(3));
    assert_eq!((running_of(&world, id), promotions(&world).len()), (0, 1));
    let starts =
        world.reported_waits.iter().flat_map(|reported| &reported.starts).any(|(attempt, _)| attempt.job == id);
    assert!(starts, "its node reports when it starts");
}

// ---- what nodes report ---------------------------------------------------------------------------------------------

/// When the node reported its waits since then, and to which address.
fn reported(world: &World, from: usize) -> Vec<(u64, Address)> {
    world.reported_waits[from..].iter().map(|reported| (reported.at.0 / 1_000, reported.to)).collect()
}

#[test]
fn a_node_reports_waits_and_starts_to_the_master_and_its_jobs() {
    let mut world = World::with_nodes(preset(200), 1, CORE);
    world.run_for(seconds(10));
    let begin = world.reported_waits.len();
    let first = world.submit(job(vec![of_kind(Guaranteed, 2, "5s", 1_000)]));
    world.run_for(seconds(9));
    let manager = Address::JobManager(first);
    assert_eq!(
        reported(&world, begin),
        [(10_010, Address::Master), (10_010, manager)],
        "no report while all goes as expected"
    );
    let waiting = AttemptId { job: first, epoch: Epoch(1), number: 1 };
    assert_eq!(world.reported_waits.last().unwrap().starts, [(waiting, Duration::from_millis(4_990))]);
    let begin = world.reported_waits.len();
    let second = world.submit(job(vec![of_kind(Guaranteed, 1, "20s", 1_000)]));
    world.run_for(seconds(1));
    let all = [Address::Master, manager, Address::JobManager(second)];
    assert_eq!(reported(&world, begin), all.map(|to| (19_010, to)));
}

#[test]
fn an_attempt_longer_than_expected_makes_its_node_report_its_waits_again() {
    let mut world = World::with_nodes(preset(200), 1, CORE);
    world.run_for(seconds(10));
    let mut overruns = of_kind(Guaranteed, 1, "60s", 1_000);
    overruns.expected = Some(seconds(10));
    world.submit(job(vec![overruns]));
    let second = world.submit(job(vec![of_kind(Guaranteed, 1, "10s", 1_000)]));
    world.run_for(seconds(9));
    let begin = world.reported_waits.len();
    world.run_for(seconds(30));
    let to_master = reported(&world, begin).into_iter().filter(|(_, to)| *to == Address::Master).count();
    assert!((5..=30).contains(&to_master), "it may start at any time and would take ten seconds: {to_master}");
    let to_job = world.reported_waits[begin..].iter().filter(|reported| reported.to == Address::JobManager(second));
    let starts: BTreeSet<Duration> =
        to_job.flat_map(|reported| reported.starts.iter().map(|(_, start)| *start)).collect();
    assert_eq!(starts, BTreeSet::from([Duration::from_micros(1)]));
}

#[test]
fn apollo_plus_nodes_report_room_even_if_all_goes_as_expected() {
    for (preset, rooms) in [(Preset::APOLLO, vec![0]), (Preset::APOLLO_PLUS, vec![0, 1_000])] {
        let mut world = World::with_nodes(preset, 1, CORE);
        world.run_for(seconds(10));
        let begin = world.reported_waits.len();
        let id = world.submit(job(vec![of_kind(Guaranteed, 1, "5s", 1_000)]));
        world.run_for(seconds(20));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
        let to_master = world.reported_waits[begin..].iter().filter(|reported| reported.to == Address::Master);
        // An attempt that is always assumed to have half its time left makes its node report the same room again.
        let mut reported: Vec<u32> = to_master.map(|reported| reported.room.cpu_millis()).collect();
        reported.dedup();
        assert_eq!(reported, rooms, "{preset:?}");
    }
}

#[test]
fn a_node_reports_its_waits_at_a_limited_rate_and_with_node_reports() {
    let mut world = World::with_nodes(preset(2_000), 1, CORE);
    world.run_for(seconds(10));
    let begin = world.reported_waits.len();
    for _ in 0..20 {
        world.submit(job(vec![of_kind(Guaranteed, 1, "60s", 1_000)]));
        world.run_for(Duration::from_millis(100));
    }
    let to_master = reported(&world, begin).into_iter().filter(|(_, to)| *to == Address::Master);
    let at: Vec<u64> = to_master.map(|(at, _)| at).collect();
    assert_eq!(at, [10_010, 10_510, 11_000, 11_500, 12_000]);
}

#[test]
fn many_nodes_report_to_their_master_less_often_and_to_jobs_as_before() {
    let mut world = World::with_nodes(preset(2_000), 4, CORE);
    world.settings.most_reports = std::num::NonZeroU32::MIN;
    world.kill_server();
    world.start_server();
    world.run_for(seconds(10));
    let begin = world.reported_waits.len();
    for _ in 0..200 {
        world.submit(job(vec![of_kind(Guaranteed, 1, "60s", 1_000)]));
        world.run_for(Duration::from_millis(100));
    }
    let reported = &world.reported_waits[begin..];
    let first = reported[0].node;
    let of_first = || reported.iter().filter(|reported| reported.node == first);
    let to_master: Vec<Instant> =
        of_first().filter(|reported| reported.to == Address::Master).map(|reported| reported.at).collect();
    assert!((4..=6).contains(&to_master.len()), "four nodes and a report a second: {to_master:?}");
    assert!(to_master.windows(2).skip(1).all(|pair| pair[1].since(pair[0]) == seconds(4)), "{to_master:?}");
    let to_jobs: BTreeSet<Instant> =
        of_first().filter(|reported| reported.to != Address::Master).map(|reported| reported.at).collect();
    assert!(to_jobs.len() >= 2 * to_master.len(), "{to_jobs:?}");
}

#[test]
fn a_node_that_is_welcomed_again_reports_its_waits_again() {
    let mut world = World::with_nodes(preset(100), 1, CORE);
    world.submit(job(vec![of_kind(Guaranteed, 1, "60s", 1_000)]));
    world.run_for(seconds(10));
    let begin = world.reported_waits.len();
    world.kill_server();
    world.start_server();
    world.run_for(seconds(1));
    let to_master = reported(&world, begin).into_iter().filter(|(_, to)| *to == Address::Master);
    assert_eq!(to_master.count(), 1, "{}", world.log.join("\n"));
}

#[test]
fn the_start_of_every_waiting_attempt_is_reported_even_if_waits_are_unchanged() {
    let mut world = World::with_nodes(preset(200), 1, CORE);
    world.submit(job(vec![of_kind(Guaranteed, 1, "60s", 1_000)]));
    world.run_for(seconds(10));
    let begin = world.reported_waits.len();
    let second = world.submit(job(vec![of_kind(Guaranteed, 1, "1s", 1_000)]));
    world.run_for(seconds(1));
    let reported: Vec<_> =
        world.reported_waits[begin..].iter().filter(|reported| reported.to == Address::JobManager(second)).collect();
    let attempt = AttemptId { job: second, epoch: Epoch(1), number: 0 };
    assert_eq!(
        reported.iter().map(|reported| &reported.starts[..]).collect::<Vec<_>>(),
        [[(attempt, Duration::from_millis(49_990))]]
    );
}

// ---- decisions -----------------------------------------------------------------------------------------------------

#[test]
fn a_new_job_knows_where_others_have_just_sent_their_tasks() {
    for seed in 0..20 {
        let mut preset = preset(400);
        preset.seed = seed;
        let mut world = World::with_nodes(preset, 8, CORE);
        // A list of nodes was made just before.
        world.run_for(Duration::from_millis(10_200));
        world.submit(job(vec![of_kind(Guaranteed, 4, "60s", 1_000)]));
        world.run_for(Duration::from_millis(500));
        let second = world.submit(job(vec![of_kind(Guaranteed, 1, "60s", 1_000)]));
        world.run_for(Duration::from_millis(100));
        assert_eq!(running_of(&world, second), 1, "seed {seed}: it is sent to a node without a queue");
    }
}

#[test]
fn a_burst_of_tasks_spreads_as_far_as_nodes_have_room() {
    let mut world = World::with_nodes(preset(100), 8, TWO);
    world.run_for(seconds(10));
    let id = world.submit(job(vec![of_kind(Guaranteed, 16, "10s", 1_000)]));
    world.run_for(seconds(1));
    assert_eq!(running_of(&world, id), 16, "{}", world.log.join("\n"));
}

#[test]
fn a_job_manager_continues_without_the_master() {
    let mut world = World::with_nodes(preset(50), 2, CORE);
    let id = world.submit(job(vec![of_kind(Guaranteed, 3, "5s", 1_000)]));
    world.run_for(seconds(1));
    assert_eq!(out_of(&world, id), (1, 0));
    let manager = world.server.as_mut().unwrap().jobs.get_mut(&id).unwrap();
    let (attempt, _, node) = manager.running().next().unwrap();
    manager.handle(world.now, Event::Disconnected { peer: Address::Master }, &mut Outbox::default());
    let ended = Ended::without_run(EndReason::Exit(0));
    let body = ToJobManager::Finished { attempt, ended, instead: None };
    let mut out = Outbox::default();
    manager.handle(world.now, Event::Message { from: Address::Node(node), body }, &mut out);
    let launch = |(_, message): &(Address, Message)| matches!(message, Message::ToNode(ToNode::Launch(_)));
    assert_eq!(out.sends.iter().filter(|send| launch(send)).count(), 1);
}
