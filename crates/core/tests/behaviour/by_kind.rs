//! Clusters with guaranteed and opportunistic work: which part places which tasks, which work is preempted by which,
//! and that preempted tasks are not lost.

use crate::world::{World, job, stage};
use amalgam_core::dispatch::Decide;
use amalgam_core::master::{OpportunisticLimit, Steering};
use amalgam_core::policy::{Mix, Quota};
use amalgam_core::preset::{Preset, QueueChoice};
use amalgam_core::protocol::{Address, JobOutcome, Message, Rule, ToMaster, ToNode};
use amalgam_core::role::{Change, Event, Outbox, Record, Role};
use amalgam_core::vocabulary::{
    Constraint, Duration, EndReason, ExecutionType, JobId, NodeId, Resources, StageSpec, TaskId,
};
use amalgam_core::why::Why;
use std::num::NonZeroU32;

const CORE: Resources = Resources::new(1_000, 0);
const FOUR: Resources = Resources::new(4_000, 0);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A preset in which no node sheds, and all tasks of `auto` stages are opportunistic.
fn preset() -> Preset {
    let mut preset = Preset::MERCURY;
    preset.opportunistic_mut().unwrap().mix = Mix::ONLY_OPPORTUNISTIC;
    preset.opportunistic_mut().unwrap().steering = Steering::default();
    preset
}

fn of_kind(execution: ExecutionType, tasks: u32, length: &str, cpu_millis: u32) -> StageSpec {
    let mut stage = stage("only", tasks, length, cpu_millis);
    stage.execution = execution;
    stage.expected = Some(Duration::parse(length).unwrap());
    stage
}

use ExecutionType::{Auto, Guaranteed, Opportunistic};

/// The task of each attempt that ended for this reason.
fn ended(world: &World, reason: &EndReason) -> Vec<TaskId> {
    let of_reason = |change: &Change| match change {
        Change::Finished { task, ended, .. } if ended.reason == *reason => Some(*task),
        _ => None,
    };
    world.disk.iter().filter_map(of_reason).collect()
}

fn running_of(world: &World, job: JobId) -> usize {
    world.running_tasks().iter().filter(|task| task.job == job).count()
}

#[test]
fn opportunistic_tasks_are_placed_without_the_master_and_are_not_booked() {
    let mut world = World::with_nodes(preset(), 4, CORE);
    world.verbose = true;
    let id = world.submit(job(vec![of_kind(Auto, 6, "2s", 1_000)]));
    world.run_for(seconds(1));
    assert!(!world.log.iter().any(|line| line.contains("demand j1")), "{}", world.log.join("\n"));
    let server = world.server.as_ref().unwrap();
    assert!(server.master.describe(world.now).nodes.iter().all(|node| node.bookings == 0));
    world.run_for(seconds(20));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}

#[test]
fn guaranteed_work_preempts_the_newest_opportunistic_attempts_and_no_more_than_needed() {
    let mut world = World::with_nodes(preset(), 1, FOUR);
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(world.submit(job(vec![of_kind(Opportunistic, 1, "60s", 1_000)])));
        world.run_for(seconds(1));
    }
    let guaranteed = world.submit(job(vec![of_kind(Guaranteed, 2, "5s", 1_000)]));
    world.run_for(seconds(1));
    assert_eq!(running_of(&world, guaranteed), 2, "{}", world.log.join("\n"));
    let preempted: Vec<JobId> = ended(&world, &EndReason::Preempted).iter().map(|task| task.job).collect();
    assert_eq!(preempted, [all[3], all[2]]);
    assert_eq!((running_of(&world, all[0]), running_of(&world, all[1])), (1, 1));
    world.run_for(seconds(200));
    for job in all.into_iter().chain([guaranteed]) {
        assert_eq!(world.outcome(job), Some(JobOutcome::Succeeded));
    }
}

#[test]
fn one_large_attempt_is_preempted_rather_than_small_ones_that_do_not_suffice() {
    let mut world = World::with_nodes(preset(), 1, FOUR);
    let large = world.submit(job(vec![of_kind(Opportunistic, 1, "60s", 3_000)]));
    world.run_for(seconds(1));
    let small = world.submit(job(vec![of_kind(Opportunistic, 1, "60s", 1_000)]));
    world.run_for(seconds(1));
    world.submit(job(vec![of_kind(Guaranteed, 1, "5s", 3_000)]));
    world.run_for(seconds(1));
    assert_eq!((running_of(&world, large), running_of(&world, small)), (0, 1), "the small attempt need not be stopped");
}

#[test]
fn guaranteed_work_is_never_preempted_and_opportunistic_work_waits_for_it() {
    let mut world = World::with_nodes(preset(), 1, FOUR);
    let first = world.submit(job(vec![of_kind(Guaranteed, 4, "5s", 1_000)]));
    world.run_for(seconds(1));
    let waits = world.submit(job(vec![of_kind(Opportunistic, 2, "1s", 1_000)]));
    let second = world.submit(job(vec![of_kind(Guaranteed, 3, "5s", 1_000)]));
    world.run_for(seconds(3));
    assert_eq!((running_of(&world, first), running_of(&world, waits), running_of(&world, second)), (4, 0, 0));
    world.run_for(seconds(3));
    assert_eq!((running_of(&world, waits), running_of(&world, second)), (0, 3), "{}", world.log.join("\n"));
    world.run_for(seconds(20));
    assert_eq!(world.outcome(waits), Some(JobOutcome::Succeeded));
    assert!(ended(&world, &EndReason::Preempted).iter().all(|task| task.job == waits));
}

#[test]
fn a_guaranteed_stage_gets_only_guaranteed_work() {
    let mut world = World::with_nodes(preset(), 2, FOUR);
    let id = world.submit(job(vec![of_kind(Guaranteed, 8, "1s", 1_000)]));
    world.run_for(seconds(5));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    let all_booked = |change: &Change| !matches!(change, Change::Launched { grant: None, .. });
    assert!(world.disk.iter().all(all_booked));
}

#[test]
fn the_mix_defines_how_many_tasks_are_opportunistic() {
    let mut preset = preset();
    preset.opportunistic_mut().unwrap().mix = Mix { shorter_than: Some(seconds(10)), opportunistic: 250_000 };
    for (length, expected) in [("1s", 10), ("30s", 0)] {
        let mut world = World::with_nodes(preset, 4, FOUR);
        let id = world.submit(job(vec![of_kind(Auto, 40, length, 1_000)]));
        world.run_for(seconds(400));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
        let unbooked = |change: &&Change| matches!(change, Change::Launched { grant: None, .. });
        let preempted = ended(&world, &EndReason::Preempted).len();
        assert_eq!(world.disk.iter().filter(unbooked).count() - preempted, expected, "tasks of {length}");
    }
}

#[test]
fn a_quota_bounds_the_opportunistic_attempts_of_a_job() {
    let mut preset = preset();
    preset.opportunistic_mut().unwrap().quota = Quota { absolute: Some(3), relative: None };
    let mut world = World::with_nodes(preset, 4, FOUR);
    let id = world.submit(job(vec![of_kind(Auto, 10, "2s", 1_000)]));
    for _ in 0..8 {
        world.run_for(seconds(1));
        let manager = world.server.as_ref().unwrap().jobs.get(&id);
        assert!(manager.is_none_or(|manager| manager.running().count() <= 3));
    }
    world.run_for(seconds(3));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}

#[test]
fn a_job_reports_tasks_that_wait_at_nodes_and_a_quota_that_limits_it() {
    let mut preset = preset();
    preset.opportunistic_mut().unwrap().quota = Quota { absolute: Some(3), relative: None };
    let mut world = World::with_nodes(preset, 1, CORE);
    let id = world.submit(job(vec![of_kind(Auto, 4, "2s", 1_000)]));
    let bound = Why::Quota { launched: 3, most: 3, beside: None };
    let waiting = |tasks| Why::AtNodes { tasks };
    for reasons in [vec![waiting(2), bound.clone()], vec![waiting(2)], vec![waiting(1)], Vec::new()] {
        world.run_for(seconds(1));
        assert_eq!(world.server.as_ref().unwrap().jobs[&id].explain(), reasons, "{}", world.log.join("\n"));
        world.run_for(seconds(1));
    }
    let reported: Vec<&Record> =
        world.records.iter().filter(|record| matches!(record, Record::Blocked { .. })).collect();
    assert_eq!(reported, [&Record::Blocked { job: id, why: bound }]);
}

#[test]
fn queues_longer_than_the_target_are_shed_and_their_tasks_run_elsewhere() {
    let mut preset = preset();
    preset.opportunistic_mut().unwrap().steering.deviations = Some(0);
    let mut world = World::with_nodes(preset, 1, CORE);
    let id = world.submit(job(vec![of_kind(Auto, 12, "4s", 1_000)]));
    world.run_for(seconds(2));
    (0..3).for_each(|_| world.add_node(CORE, &[]));
    world.run_for(seconds(30));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    assert!(!ended(&world, &EndReason::Shed).is_empty(), "{}", world.log.join("\n"));
    let used = world.nodes.iter().filter(|host| !host.executor.launched.is_empty()).count();
    assert_eq!(used, 4);
    assert!(
        world.nodes.iter().map(|host| host.executor.launched.len()).sum::<usize>() == 12,
        "tasks are shed before they run"
    );
}

#[test]
fn tasks_of_unknown_length_are_not_shed() {
    let mut preset = preset();
    preset.opportunistic_mut().unwrap().steering.deviations = Some(0);
    let mut world = World::with_nodes(preset, 1, CORE);
    let known = world.submit(job(vec![of_kind(Auto, 6, "4s", 1_000)]));
    let mut unknown = of_kind(Auto, 4, "4s", 1_000);
    unknown.expected = None;
    world.submit(job(vec![unknown]));
    world.run_for(seconds(1));
    (0..2).for_each(|_| world.add_node(CORE, &[]));
    world.run_for(seconds(4));
    let shed = ended(&world, &EndReason::Shed);
    assert!(!shed.is_empty() && shed.iter().all(|task| task.job == known), "{shed:?}");
}

#[test]
fn opportunistic_work_stays_within_its_part_of_a_node() {
    let mut preset = preset();
    preset.opportunistic_mut().unwrap().steering.limit = OpportunisticLimit::Part(500_000);
    let mut world = World::with_nodes(preset, 1, FOUR);
    world.run_for(seconds(3));
    let id = world.submit(job(vec![of_kind(Auto, 4, "3s", 1_000)]));
    world.run_for(seconds(2));
    assert_eq!(running_of(&world, id), 2);
    world.run_for(seconds(6));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}

#[test]
fn a_forecast_counts_tasks_that_heartbeats_start() {
    let mut preset = preset();
    preset.opportunistic_mut().unwrap().steering.limit = OpportunisticLimit::Forecast;
    let mut world = World::new(preset);
    world.settings.dispatch.decide = Decide::OnHeartbeats { most: None };
    world.settings.heartbeat = seconds(3);
    world.start_server();
    world.add_node(FOUR, &[]);
    world.settle();
    // Four tasks start at each heartbeat and have ended at the next one.
    world.submit(job(vec![of_kind(Guaranteed, 1_000, "1s", 1_000)]));
    world.run_for(seconds(47));
    assert_eq!(world.running_tasks().len(), 0);
    let id = world.submit(job(vec![of_kind(Auto, 4, "10s", 1_000)]));
    world.run_for(Duration::from_millis(500));
    assert_eq!(running_of(&world, id), 1, "one attempt may always run");
}

#[test]
fn a_full_queue_sheds_launches_and_no_task_is_lost() {
    let mut preset = preset();
    preset.opportunistic_mut().unwrap().at_nodes.queue_limit = Some(2);
    let mut world = World::with_nodes(preset, 2, CORE);
    let id = world.submit(job(vec![of_kind(Auto, 9, "1s", 1_000)]));
    world.run_for(seconds(20));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
}

#[test]
fn opportunistic_attempts_survive_an_agent_restart_and_are_preempted_by_booked_work() {
    let mut world = World::with_nodes(preset(), 1, CORE);
    let id = world.submit(job(vec![of_kind(Auto, 1, "30s", 1_000)]));
    world.run_for(seconds(2));
    world.kill_agent(0);
    world.start_agent(0);
    world.run_for(seconds(2));
    assert_eq!(running_of(&world, id), 1);
    let guaranteed = world.submit(job(vec![of_kind(Guaranteed, 1, "2s", 1_000)]));
    world.run_for(seconds(1));
    assert_eq!((running_of(&world, id), running_of(&world, guaranteed)), (0, 1));
    world.run_for(seconds(60));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
}

#[test]
fn a_long_attempt_is_promoted_if_there_is_room_and_is_not_preempted_afterwards() {
    let mut preset = preset();
    preset.opportunistic_mut().unwrap().promote_after = Some(seconds(5));
    let mut world = World::with_nodes(preset, 1, FOUR);
    let guaranteed = world.submit(job(vec![of_kind(Guaranteed, 3, "20s", 1_000)]));
    let long = world.submit(job(vec![of_kind(Auto, 1, "60s", 1_000)]));
    world.run_for(seconds(4));
    let bookings = |world: &World| world.server.as_ref().unwrap().master.describe(world.now).nodes[0].bookings;
    assert_eq!(bookings(&world), 3);
    world.run_for(seconds(3));
    assert_eq!(bookings(&world), 4);
    let next = world.submit(job(vec![of_kind(Guaranteed, 2, "8s", 1_000)]));
    world.run_for(seconds(1));
    assert_eq!((running_of(&world, guaranteed), running_of(&world, long), running_of(&world, next)), (3, 1, 0));
    world.run_for(seconds(100));
    assert!(ended(&world, &EndReason::Preempted).is_empty(), "{}", world.log.join("\n"));
    assert_eq!((world.outcome(long), world.outcome(next)), (Some(JobOutcome::Succeeded), Some(JobOutcome::Succeeded)));
    assert_eq!(bookings(&world), 0);
}

#[test]
fn a_promotion_survives_restarts_of_agent_and_server() {
    let mut preset = preset();
    preset.opportunistic_mut().unwrap().promote_after = Some(seconds(2));
    let mut world = World::with_nodes(preset, 1, CORE);
    let long = world.submit(job(vec![of_kind(Auto, 1, "60s", 1_000)]));
    world.run_for(seconds(4));
    world.kill_agent(0);
    world.start_agent(0);
    world.settle();
    world.kill_server();
    world.start_server();
    world.settle();
    let next = world.submit(job(vec![of_kind(Guaranteed, 1, "1s", 1_000)]));
    world.run_for(seconds(20));
    assert_eq!((running_of(&world, long), running_of(&world, next)), (1, 0), "{}", world.log.join("\n"));
    world.run_for(seconds(60));
    assert_eq!((world.outcome(long), world.outcome(next)), (Some(JobOutcome::Succeeded), Some(JobOutcome::Succeeded)));
}

#[test]
fn a_grant_for_a_late_promotion_is_returned() {
    let mut preset = preset();
    preset.opportunistic_mut().unwrap().promote_after = Some(seconds(2));
    let mut world = World::with_nodes(preset, 1, CORE);
    // The end of the attempt and the promotion cross on their way.
    let short = world.submit(job(vec![of_kind(Auto, 1, "2s", 1_000)]));
    world.run_for(seconds(10));
    assert_eq!(world.outcome(short), Some(JobOutcome::Succeeded));
    assert_eq!(world.server.as_ref().unwrap().master.describe(world.now).nodes[0].bookings, 0);
}

#[test]
fn a_user_with_understated_run_times_gets_guaranteed_work_until_estimates_improve() {
    let mut world = World::with_nodes(preset(), 2, FOUR);
    let one_job = |world: &mut World, stated: &str, run: &str| {
        let mut stage = of_kind(Auto, 2, run, 1_000);
        stage.expected = Some(Duration::parse(stated).unwrap());
        let from = world.disk.len();
        let id = world.submit(job(vec![stage]));
        world.run_for(seconds(10));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
        let launched = |change: &Change| matches!(change, Change::Launched { grant: Some(_), .. });
        world.disk[from..].iter().filter(|change| launched(change)).count()
    };
    for _ in 0..3 {
        assert_eq!(one_job(&mut world, "1s", "3s"), 0, "opportunistic");
    }
    for _ in 0..3 {
        assert_eq!(one_job(&mut world, "3s", "3s"), 2, "guaranteed");
    }
    assert_eq!(one_job(&mut world, "3s", "3s"), 0, "opportunistic again");
    let judged = |text| world.log.iter().filter(|line| line.contains(text)).count();
    let (too_low, right) = (judged(": ran far longer than stated"), judged(": ran about as long as stated"));
    assert_eq!((too_low, right), (1, 1), "{}", world.log.join("\n"));
}

#[test]
fn a_preempted_attempt_names_the_other_and_is_counted_also_after_a_restart() {
    let mut world = World::with_nodes(preset(), 1, CORE);
    let id = world.submit(job(vec![of_kind(Opportunistic, 1, "30s", 1_000)]));
    world.run_for(seconds(2));
    let guaranteed = world.submit(job(vec![of_kind(Guaranteed, 1, "2s", 1_000)]));
    world.run_for(seconds(1));
    let output = world.disk.iter().find_map(|change| match change {
        Change::Finished { ended, .. } if ended.reason == EndReason::Preempted => ended.message.clone(),
        _ => None,
    });
    assert_eq!(output, Some(format!("to make room for attempt {guaranteed}-1-0 of job {guaranteed}")));
    let counted = |world: &World| {
        let stage = world.server.as_ref().unwrap().jobs[&id].dag().stage(0);
        (stage.preempted, stage.shed)
    };
    assert_eq!(counted(&world), (1, 0));
    world.kill_server();
    world.start_server();
    assert_eq!(counted(&world), (1, 0));
}

/// The parts of `mercury-plus`, one by one.
mod beyond {
    use super::*;

    #[test]
    fn room_that_guaranteed_work_frees_is_kept_for_the_next_guaranteed_task() {
        for (keep, preempted) in [(Duration::ZERO, 3), (Duration::from_millis(50), 0)] {
            let mut preset = preset();
            preset.opportunistic_mut().unwrap().at_nodes.keep_freed = keep;
            let mut world = World::with_nodes(preset, 1, CORE);
            let guaranteed = world.submit(job(vec![of_kind(Guaranteed, 4, "2s", 1_000)]));
            world.run_for(seconds(1));
            let waits = world.submit(job(vec![of_kind(Opportunistic, 1, "1s", 1_000)]));
            world.run_for(seconds(20));
            assert_eq!(world.outcome(guaranteed), Some(JobOutcome::Succeeded));
            assert_eq!(world.outcome(waits), Some(JobOutcome::Succeeded));
            assert_eq!(ended(&world, &EndReason::Preempted).len(), preempted, "kept for {keep}");
        }
    }

    #[test]
    fn nodes_offer_free_room_to_attempts_that_have_run_for_long() {
        let mut preset = preset();
        preset.opportunistic_mut().unwrap().at_nodes.offer_after = Some(seconds(5));
        let mut world = World::with_nodes(preset, 1, FOUR);
        let guaranteed = world.submit(job(vec![of_kind(Guaranteed, 3, "12s", 1_000)]));
        let long = world.submit(job(vec![of_kind(Auto, 1, "60s", 1_000)]));
        let bookings = |world: &World| world.server.as_ref().unwrap().master.describe(world.now).nodes[0].bookings;
        world.run_for(seconds(4));
        assert_eq!(bookings(&world), 3, "the attempt has not run for long");
        world.run_for(seconds(6));
        assert_eq!((bookings(&world), running_of(&world, guaranteed)), (4, 3), "{}", world.log.join("\n"));
        world.submit(job(vec![of_kind(Guaranteed, 4, "2s", 1_000)]));
        world.run_for(seconds(100));
        assert_eq!(ended(&world, &EndReason::Preempted), []);
        assert_eq!(world.outcome(long), Some(JobOutcome::Succeeded));
    }

    #[test]
    fn waiting_guaranteed_work_gets_the_room_before_long_attempts() {
        let mut preset = preset();
        preset.opportunistic_mut().unwrap().at_nodes.offer_after = Some(seconds(1));
        let mut world = World::with_nodes(preset, 1, CORE);
        let long = world.submit(job(vec![of_kind(Auto, 1, "60s", 1_000)]));
        // Before the attempt has run for long enough, guaranteed work has taken the room.
        let guaranteed = world.submit(job(vec![of_kind(Guaranteed, 5, "2s", 1_000)]));
        world.run_for(seconds(12));
        assert_eq!(world.outcome(guaranteed), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
        world.run_for(seconds(80));
        assert_eq!(world.outcome(long), Some(JobOutcome::Succeeded));
    }

    #[test]
    fn tasks_in_the_longest_queue_move_to_a_node_with_room() {
        let mut preset = preset();
        preset.opportunistic_mut().unwrap().steering.moves = true;
        preset.opportunistic_mut().unwrap().at_nodes.report_spare = Some(Duration::from_millis(200));
        let mut world = World::with_nodes(preset, 1, CORE);
        let id = world.submit(job(vec![of_kind(Auto, 8, "10s", 1_000)]));
        world.run_for(seconds(2));
        (0..3).for_each(|_| world.add_node(CORE, &[]));
        world.run_for(seconds(2));
        assert_eq!(running_of(&world, id), 4, "{}", world.log.join("\n"));
        let moved = |change: &&Change| matches!(change, Change::Launched { rule: Rule::Moved, .. });
        assert_eq!(world.disk.iter().filter(moved).count(), 3);
        // Each end makes room for another task, and the node reports it before its heartbeat.
        world.run_for(seconds(20));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
        assert!(
            world.nodes.iter().map(|host| host.executor.launched.len()).sum::<usize>() == 8,
            "tasks are moved before they run"
        );
    }

    #[test]
    fn tasks_of_unknown_length_move_too() {
        let mut preset = preset();
        preset.opportunistic_mut().unwrap().steering.moves = true;
        preset.opportunistic_mut().unwrap().at_nodes.report_spare = Some(Duration::from_millis(200));
        let mut world = World::with_nodes(preset, 1, CORE);
        let mut stage = of_kind(Auto, 4, "10s", 1_000);
        stage.expected = None;
        let id = world.submit(job(vec![stage]));
        world.run_for(seconds(2));
        (0..3).for_each(|_| world.add_node(CORE, &[]));
        world.run_for(seconds(12));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}", world.log.join("\n"));
    }

    #[test]
    fn no_task_moves_to_a_node_that_does_not_suit_it() {
        let mut preset = preset();
        preset.opportunistic_mut().unwrap().steering.moves = true;
        preset.opportunistic_mut().unwrap().at_nodes.report_spare = Some(Duration::from_millis(200));
        let mut world = World::with_nodes(preset, 0, CORE);
        world.add_node(CORE, &[("zone", "a")]);
        world.settle();
        let mut stage = of_kind(Auto, 3, "4s", 1_000);
        stage.constraints = vec![Constraint::parse("zone=a").unwrap()];
        let id = world.submit(job(vec![stage]));
        world.run_for(seconds(1));
        world.add_node(CORE, &[("zone", "b")]);
        world.run_for(seconds(30));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
        assert_eq!(world.nodes[1].executor.launched.len(), 0);
        assert_eq!(ended(&world, &EndReason::Shed), []);
    }

    /// Number of tasks that were launched on a node to which they were moved.
    fn moves(world: &World) -> usize {
        world.disk.iter().filter(|change| matches!(change, Change::Launched { rule: Rule::Moved, .. })).count()
    }

    fn moving() -> Preset {
        let mut preset = preset();
        preset.opportunistic_mut().unwrap().steering.moves = true;
        preset.opportunistic_mut().unwrap().at_nodes.report_spare = Some(Duration::from_millis(200));
        preset
    }

    #[test]
    fn no_task_moves_to_room_that_opportunistic_work_may_not_use() {
        let mut preset = moving();
        preset.opportunistic_mut().unwrap().steering.limit = OpportunisticLimit::Part(250_000);
        let mut world = World::with_nodes(preset, 1, FOUR);
        world.run_for(seconds(3));
        let id = world.submit(job(vec![of_kind(Auto, 8, "5s", 1_000)]));
        world.run_for(seconds(1));
        world.add_node(FOUR, &[]);
        world.run_for(seconds(3));
        assert_eq!((running_of(&world, id), moves(&world)), (2, 1), "{}", world.log.join("\n"));
        world.run_for(seconds(20));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
        assert!(moves(&world) <= 4, "{} moves of 8 tasks", moves(&world));
    }

    #[test]
    fn no_task_moves_to_room_that_was_granted_meanwhile() {
        let mut world = World::with_nodes(moving(), 2, FOUR);
        world.submit(job(vec![of_kind(Guaranteed, 1, "60s", 3_000)]));
        world.submit(job(vec![of_kind(Auto, 12, "60s", 1_000)]));
        world.run_for(seconds(2));
        let master = &mut world.server.as_mut().unwrap().master;
        let booked = master.describe(world.now).nodes.iter().position(|node| node.bookings == 1).unwrap();
        // A report of room that the node sends before it has received its launches.
        let body = ToMaster::Room { spare: Box::new(FOUR) };
        let mut out = Outbox::default();
        master.handle(world.now, Event::Message { from: Address::Node(NodeId(booked as u32)), body }, &mut out);
        let reported = out.sends.iter().find_map(|(_, message)| match message {
            Message::ToNode(ToNode::Move { room, .. }) => Some(**room),
            _ => None,
        });
        assert_eq!(reported, Some(CORE));
    }

    #[test]
    fn a_queue_whose_tasks_cannot_move_does_not_block_other_queues() {
        let mut preset = moving();
        preset.opportunistic_mut().unwrap().placement = QueueChoice::PowerOfTwo;
        let mut world = World::with_nodes(preset, 0, CORE);
        world.add_node(CORE, &[("zone", "a")]);
        world.settle();
        let mut bound = of_kind(Auto, 9, "20s", 1_000);
        bound.constraints = vec![Constraint::parse("zone=a").unwrap()];
        world.submit(job(vec![bound]));
        world.run_for(seconds(2));
        world.add_node(CORE, &[("zone", "b")]);
        world.run_for(seconds(2));
        let free = world.submit(job(vec![of_kind(Auto, 3, "20s", 1_000)]));
        world.run_for(seconds(2));
        assert_eq!(running_of(&world, free), 1, "both nodes are busy");
        world.add_node(CORE, &[("zone", "b")]);
        world.run_for(seconds(4));
        assert_eq!((running_of(&world, free), moves(&world)), (2, 1), "{}", world.log.join("\n"));
    }

    #[test]
    fn room_is_not_kept_after_guaranteed_work_has_taken_it() {
        let mut preset = preset();
        preset.opportunistic_mut().unwrap().at_nodes.keep_freed = seconds(60);
        let mut world = World::with_nodes(preset, 1, Resources::new(2_000, 0));
        let mut second = of_kind(Guaranteed, 1, "30s", 1_000);
        (second.name, second.after) = ("second".to_owned(), vec![0]);
        let guaranteed = world.submit(job(vec![of_kind(Guaranteed, 1, "2s", 1_000), second]));
        let waits = world.submit(job(vec![of_kind(Opportunistic, 2, "4s", 1_000)]));
        world.run_for(seconds(3));
        assert_eq!((running_of(&world, guaranteed), running_of(&world, waits)), (1, 1), "{}", world.log.join("\n"));
        world.run_for(seconds(3));
        assert_eq!(running_of(&world, waits), 1, "the second stage has the first one's room");
    }

    #[test]
    fn offers_wait_for_guaranteed_tasks_that_the_next_heartbeats_bring() {
        let mut preset = preset();
        preset.opportunistic_mut().unwrap().at_nodes.offer_after = Some(seconds(4));
        let mut world = World::new(preset);
        world.settings.dispatch.decide = Decide::OnHeartbeats { most: Some(NonZeroU32::MIN) };
        world.settings.heartbeat = seconds(3);
        world.start_server();
        world.add_node(FOUR, &[]);
        world.settle();
        let long = world.submit(job(vec![of_kind(Auto, 1, "60s", 1_000)]));
        world.run_for(seconds(4));
        world.submit(job(vec![of_kind(Guaranteed, 2, "60s", 1_000)]));
        let bookings = |world: &World| world.server.as_ref().unwrap().master.describe(world.now).nodes[0].bookings;
        for (at, booked) in [(7, 1), (10, 3)] {
            world.run_for(seconds(3));
            assert_eq!(bookings(&world), booked, "after {at} s:\n{}", world.log.join("\n"));
        }
        assert_eq!(running_of(&world, long), 1);
    }

    #[test]
    fn a_promotion_by_offer_is_reported_again_to_a_server_that_missed_it() {
        let mut preset = preset();
        preset.opportunistic_mut().unwrap().at_nodes.offer_after = Some(seconds(2));
        let mut world = World::with_nodes(preset, 1, CORE);
        let long = world.submit(job(vec![of_kind(Auto, 1, "60s", 1_000)]));
        world.run_for(seconds(4));
        let promoted = |world: &World| world.disk.iter().filter(|c| matches!(c, Change::Promoted { .. })).count();
        assert_eq!(promoted(&world), 1);
        // The same state as if the server had died before it received the promotion.
        world.kill_server();
        world.disk.retain(|change| !matches!(change, Change::Promoted { .. }));
        world.start_server();
        world.run_for(seconds(2));
        assert_eq!(promoted(&world), 1, "{}", world.log.join("\n"));
        world.run_for(seconds(60));
        assert_eq!(world.outcome(long), Some(JobOutcome::Succeeded));
    }
}
