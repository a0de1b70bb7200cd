//! Every protocol story as a transcript. A script goes in, and all events that come out are compared with
//! tests/transcripts/*.txt. `UPDATE_TRANSCRIPTS=1 cargo test -p amalgam-core --test transcripts` writes the transcripts
//! again.

#[allow(dead_code)]
mod world;

use amalgam_core::preset::Preset;
use amalgam_core::protocol::{JobAction, JobOutcome, ToMaster, ToNode};
use amalgam_core::vocabulary::{Duration, ExecutionType, JobId, NodeId, Resources};
use world::{World, job, stage};

const CORE: Resources = Resources::new(1_000, 0);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Compares with the stored transcript of this name.
#[allow(clippy::disallowed_methods)]
fn check(name: &str, world: &World) {
    let path = format!("{}/tests/transcripts/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let heard: String = world.log.iter().map(|line| format!("{line}\n")).collect();
    if std::env::var_os("UPDATE_TRANSCRIPTS").is_some() {
        std::fs::write(&path, heard).expect("the transcript can be written");
        return;
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = heard.lines().zip(stored.lines()).position(|(heard, stored)| heard != stored);
    if let Some(line) = differs {
        let (heard, stored) = (heard.lines().nth(line).unwrap(), stored.lines().nth(line).unwrap());
        panic!("{name}.txt:{}\n  stored: {stored}\n  now:    {heard}", line + 1);
    }
    assert_eq!(heard.lines().count(), stored.lines().count(), "{name}.txt has another length");
}

fn listening(preset: Preset, nodes: u32) -> World {
    let mut world = World::new(preset);
    world.verbose = true;
    world.start_server();
    for _ in 0..nodes {
        world.add_node(CORE, &[]);
    }
    world.settle();
    world
}

#[test]
fn a_task_runs_from_submission_to_acknowledged_end() {
    let mut world = listening(Preset::FIFO, 1);
    let id = world.submit(job(vec![stage("only", 1, "500ms", 1_000)]));
    world.run_for(Duration::from_millis(900));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    check("one_task", &world);
}

#[test]
fn a_late_launch_is_launched_again_and_a_forged_one_gets_no_answer() {
    let mut world = World::new(Preset::FIFO);
    world.settings.token_life = seconds(1);
    world.start_server();
    world.add_node(CORE, &[]);
    world.settle();
    world.verbose = true;
    world.hold_launches = true;
    let id = world.submit(job(vec![stage("only", 1, "1s", 1_000)]));
    world.run_for(Duration::from_millis(3_500));
    world.hold_launches = false;
    world.deliver_held_launches();
    world.settle();
    let (node, mut forged) = world.intercepted_launches[1].clone();
    forged.attempt.number += 1;
    world.report_node(node, id, ToNode::Launch(Box::new(forged)));
    world.run_for(seconds(1));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    check("launch_too_late", &world);
}

#[test]
fn guaranteed_work_takes_freed_room_and_waiting_tasks_move_to_a_node_with_room() {
    let mut world = listening(Preset::MERCURY_PLUS, 1);
    let of_kind = |execution, tasks, length| {
        let mut stage = stage("only", tasks, length, 1_000);
        (stage.execution, stage.expected) = (execution, Some(Duration::from_secs(2)));
        job(vec![stage])
    };
    let guaranteed = world.submit(of_kind(ExecutionType::Guaranteed, 6, "400ms"));
    let opportunistic = world.submit(of_kind(ExecutionType::Opportunistic, 1, "300ms"));
    world.run_for(Duration::from_millis(600));
    world.add_node(CORE, &[]);
    world.run_for(seconds(2));
    for id in [guaranteed, opportunistic] {
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    }
    check("room_to_spare", &world);
}

#[test]
fn a_failing_task_of_a_diamond_is_tried_again_and_the_rest_waits() {
    let mut world = listening(Preset::DRF, 2);
    world.verbose = false;
    let mut failing = stage("left", 1, "1s 3", 1_000);
    failing.after = vec![0];
    failing.retries = 1;
    let mut right = stage("right", 1, "2s", 1_000);
    right.after = vec![0];
    let mut bottom = stage("bottom", 1, "1s", 1_000);
    bottom.after = vec![1, 2];
    let id = world.submit(job(vec![stage("top", 1, "1s", 1_000), failing, right, bottom]));
    world.run_for(seconds(10));
    assert_eq!(world.outcome(id), Some(JobOutcome::Failed { exit_code: 3 }));
    check("diamond_with_failure", &world);
}

#[test]
fn a_restarted_server_adopts_running_attempts_and_loses_none() {
    let mut world = listening(Preset::FIFO, 1);
    let id = world.submit(job(vec![stage("only", 2, "3s", 1_000)]));
    world.run_for(seconds(1));
    world.kill_server();
    world.run_for(seconds(1));
    world.start_server();
    world.settle();
    world.run_for(seconds(6));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    assert!(world.launches().values().all(|attempts| attempts.len() == 1), "no task ran twice");
    check("server_killed", &world);
}

#[test]
fn an_end_while_the_server_is_down_is_kept_for_it() {
    let mut world = listening(Preset::FIFO, 1);
    let id = world.submit(job(vec![stage("only", 1, "1s", 1_000)]));
    world.run_for(Duration::from_millis(500));
    world.kill_server();
    world.run_for(seconds(2));
    world.start_server();
    world.settle();
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    assert_eq!(world.launches().len(), 1);
    check("end_kept_for_absent_server", &world);
}

#[test]
fn tasks_continue_if_a_killed_agent_returns_in_time() {
    let mut world = listening(Preset::FIFO, 1);
    let id = world.submit(job(vec![stage("only", 1, "5s", 1_000)]));
    world.run_for(seconds(1));
    world.kill_agent(0);
    world.run_for(seconds(2));
    world.start_agent(0);
    world.settle();
    world.run_for(seconds(4));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    assert_eq!(world.losses().len(), 0);
    check("agent_killed_and_back", &world);
}

#[test]
fn a_lost_node_loses_its_attempts_and_its_late_results_are_refused() {
    let mut world = listening(Preset::FIFO, 2);
    world.verbose = false;
    let id = world.submit(job(vec![stage("only", 1, "30s", 1_000)]));
    world.run_for(seconds(1));
    world.unlink(0);
    world.run_for(seconds(25));
    world.verbose = true;
    world.link(0);
    world.settle();
    world.verbose = false;
    world.run_for(seconds(40));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    assert_eq!(world.losses().len(), 1);
    check("node_away_too_long", &world);
}

#[test]
fn the_end_of_a_lost_attempt_is_reported_when_its_node_returns() {
    let mut world = listening(Preset::FIFO, 2);
    world.verbose = false;
    let id = world.submit(job(vec![stage("only", 1, "23s", 1_000)]));
    world.run_for(seconds(1));
    world.unlink(0);
    world.run_for(seconds(23));
    world.verbose = true;
    world.link(0);
    world.settle();
    world.verbose = false;
    world.run_for(seconds(30));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    assert_eq!((world.losses().len(), world.launches().values().map(|attempts| attempts.len()).sum::<usize>()), (1, 2));
    check("end_of_a_lost_attempt", &world);
}

#[test]
fn a_launch_lost_with_the_connection_is_issued_again() {
    let mut world = listening(Preset::FIFO, 1);
    let id = world.submit_without_delivery(job(vec![stage("only", 1, "1s", 1_000)]));
    world.unlink(0);
    world.link(0);
    world.settle();
    world.run_for(seconds(3));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    assert_eq!(world.launches().values().map(|attempts| attempts.len()).sum::<usize>(), 1);
    check("launch_lost", &world);
}

#[test]
fn tasks_of_a_killed_executor_run_again() {
    let mut world = listening(Preset::FIFO, 1);
    let id = world.submit(job(vec![stage("only", 1, "2s", 1_000)]));
    world.run_for(seconds(1));
    world.kill_executor(0);
    world.settle();
    world.run_for(seconds(3));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    check("executor_killed", &world);
}

#[test]
fn a_node_that_cannot_launch_pauses_and_its_task_runs_elsewhere() {
    let mut world = listening(Preset::FIFO, 2);
    world.nodes[0].executor.fault = Some("no space left".to_owned());
    let id = world.submit(job(vec![stage("only", 1, "1s", 1_000)]));
    world.run_for(Duration::from_millis(1_500));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    check("node_cannot_launch", &world);
}

#[test]
fn a_task_waits_until_the_pauses_of_its_only_node_end() {
    let mut world = listening(Preset::FIFO, 1);
    world.verbose = false;
    world.nodes[0].executor.fault = Some("no space left".to_owned());
    let id = world.submit(job(vec![stage("only", 1, "1s", 1_000)]));
    assert_eq!(
        world.why(id),
        ["the only node takes no work: host0 is paused because it could not launch a task: no space left"]
    );
    world.run_for(seconds(5));
    world.nodes[0].executor.fault = None;
    world.run_for(seconds(10));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    check("node_cannot_launch_for_a_while", &world);
}

#[test]
fn a_pause_continues_while_its_node_is_disconnected() {
    let mut world = listening(Preset::FIFO, 1);
    world.verbose = false;
    world.nodes[0].executor.fault = Some("no process to spare".to_owned());
    let id = world.submit(job(vec![stage("only", 1, "1s", 1_000)]));
    world.nodes[0].executor.fault = None;
    world.run_for(Duration::from_millis(200));
    world.unlink(0);
    world.run_for(Duration::from_millis(200));
    world.link(0);
    world.settle();
    world.run_for(seconds(5));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    check("node_away_during_pause", &world);
}

#[test]
fn a_drained_or_disconnected_node_does_not_resume_when_its_pause_ends() {
    let mut world = listening(Preset::FIFO, 2);
    world.verbose = false;
    for node in 0..2 {
        world.nodes[node].executor.fault = Some("no process to spare".to_owned());
    }
    world.submit(job(vec![stage("only", 2, "1s", 1_000)]));
    world.ask_master(ToMaster::Drain { node: NodeId(0), drained: true });
    world.unlink(1);
    world.run_for(seconds(3));
    world.ask_master(ToMaster::Drain { node: NodeId(0), drained: false });
    world.run_for(seconds(1));
    check("pause_ends_unseen", &world);
}

#[test]
fn undraining_a_node_ends_its_pause() {
    let mut world = listening(Preset::FIFO, 1);
    world.verbose = false;
    world.nodes[0].executor.fault = Some("no process to spare".to_owned());
    let id = world.submit(job(vec![stage("only", 1, "1s", 1_000)]));
    world.run_for(seconds(4));
    world.nodes[0].executor.fault = None;
    world.ask_master(ToMaster::Drain { node: NodeId(0), drained: false });
    world.run_for(seconds(2));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    check("pause_ended_by_undrain", &world);
}

#[test]
fn why_names_the_closed_nodes_that_could_run_a_job() {
    let mut world = listening(Preset::FIFO, 1);
    world.add_node(Resources::new(4_000, 0), &[]);
    world.settle();
    world.ask_master(ToMaster::Drain { node: NodeId(1), drained: true });
    let id = world.submit(job(vec![stage("only", 1, "1s", 2_000)]));
    assert_eq!(world.why(id), ["host1 could run it, but is drained (`amalgam node undrain` opens it)"]);
    world.ask_master(ToMaster::Drain { node: NodeId(0), drained: true });
    let drained = "is drained (`amalgam node undrain` opens it)";
    assert_eq!(world.why(id), [format!("no node takes work: host0 {drained}; host1 {drained}")]);
}

#[test]
fn a_task_that_no_node_can_launch_fails_after_its_retries() {
    let mut world = World::with_nodes(Preset::FIFO, 1, CORE);
    world.nodes[0].executor.fault = Some("no space left".to_owned());
    let id = world.submit(job(vec![stage("only", 1, "1s", 1_000)]));
    world.run_for(seconds(600));
    assert_eq!(world.outcome(id), None);
    world.run_for(seconds(600));
    assert_eq!(world.outcome(id), Some(JobOutcome::Failed { exit_code: 126 }));
    assert!(world.launches().is_empty());
}

#[test]
fn a_cancelled_job_stops_its_running_tasks_and_starts_no_more() {
    let mut world = listening(Preset::FIFO, 1);
    world.verbose = false;
    let id = world.submit(job(vec![stage("only", 3, "10s", 1_000)]));
    world.run_for(seconds(1));
    world.control(id, JobAction::Cancel);
    world.run_for(seconds(1));
    assert_eq!(world.outcome(id), Some(JobOutcome::Cancelled));
    assert_eq!(world.launches().len(), 1);
    check("cancelled", &world);
}

#[test]
fn a_timeout_stops_an_attempt_and_is_its_reason() {
    let mut world = listening(Preset::FIFO, 1);
    world.verbose = false;
    let mut slow = stage("slow", 1, "60s", 1_000);
    slow.timeout = Some(seconds(2));
    let id = world.submit(job(vec![slow]));
    world.run_for(seconds(5));
    assert_eq!(world.outcome(id), Some(JobOutcome::Failed { exit_code: 124 }));
    check("timeout", &world);
}

#[test]
fn jobs_that_require_the_success_of_a_failed_job_do_not_start() {
    let mut world = listening(Preset::FIFO, 1);
    world.verbose = false;
    let first = world.submit(job(vec![stage("only", 1, "1s 7", 1_000)]));
    let mut second = job(vec![stage("only", 1, "1s", 1_000)]);
    second.after_jobs = vec![first];
    let waiting = world.submit(second.clone());
    assert_eq!(world.why(waiting), ["waits for job 1 to succeed"]);
    world.run_for(seconds(2));
    assert_eq!(world.outcome(waiting), Some(JobOutcome::DependencyFailed { after: first }));
    let late = world.submit(second.clone());
    assert_eq!(world.outcome(late), Some(JobOutcome::DependencyFailed { after: first }), "the job failed before");
    (second.after_jobs, second.after_jobs_any) = (Vec::new(), vec![first]);
    let any = world.submit(second.clone());
    world.run_for(seconds(2));
    assert_eq!(world.outcome(any), Some(JobOutcome::Succeeded), "it waits only for the end of the first job");
    second.after_jobs_any = vec![JobId(9)];
    assert!(world.refusal(second).message.contains("dependency not found: job 9"));
    world.control(first, JobAction::RerunFailed);
    world.run_for(seconds(2));
    assert_eq!(world.outcome(JobId(1)), Some(JobOutcome::Failed { exit_code: 7 }));
    assert_eq!(world.launches().values().map(|attempts| attempts.len()).sum::<usize>(), 3);
    check("dependency_failed_and_rerun", &world);
}

#[test]
fn a_rerun_asks_only_for_the_failed_tasks() {
    let mut world = listening(Preset::DRF, 2);
    world.verbose = false;
    let mut several = job(vec![stage("several", 4, "1s", 500), stage("fails", 1, "1s 7", 500)]);
    several.stages[1].after = Vec::new();
    let id = world.submit(several);
    world.run_for(seconds(5));
    assert_eq!(world.outcome(id), Some(JobOutcome::Failed { exit_code: 7 }));
    world.control(id, JobAction::RerunFailed);
    world.run_for(seconds(5));
    assert_eq!(world.outcome(id), Some(JobOutcome::Failed { exit_code: 7 }));
    let attempts: Vec<usize> = world.launches().values().map(|attempts| attempts.len()).collect();
    assert_eq!(attempts, [1, 1, 1, 1, 2]);
}

// ---- job managers that place their tasks themselves ----------------------------------------------------------------

#[test]
fn probes_wait_at_busy_nodes_and_the_first_ready_node_gets_the_task() {
    let mut world = listening(Preset::SPARROW, 2);
    let first = world.submit(job(vec![stage("first", 2, "1s", 1_000)]));
    world.run_for(Duration::from_millis(100));
    let second = world.submit(job(vec![stage("second", 1, "100ms", 1_000)]));
    world.run_for(Duration::from_millis(1_400));
    assert_eq!(world.outcome(first), Some(JobOutcome::Succeeded));
    assert_eq!(world.outcome(second), Some(JobOutcome::Succeeded));
    check("probes", &world);
}

#[test]
fn probes_of_a_cancelled_job_are_cancelled_and_the_next_job_gets_their_room() {
    let mut world = listening(Preset::SPARROW, 1);
    world.submit(job(vec![stage("running", 1, "1s", 1_000)]));
    let cancelled = world.submit(job(vec![stage("cancelled", 1, "1s", 1_000)]));
    let next = world.submit(job(vec![stage("next", 1, "1s", 1_000)]));
    world.control(cancelled, JobAction::Cancel);
    world.run_for(Duration::from_millis(2_500));
    assert_eq!(world.outcome(cancelled), Some(JobOutcome::Cancelled));
    assert_eq!(world.outcome(next), Some(JobOutcome::Succeeded));
    check("probes_cancelled", &world);
}

#[test]
fn probes_at_a_lost_node_are_replaced_and_no_task_waits_for_it() {
    let mut world = listening(Preset::SPARROW, 2);
    world.submit(job(vec![stage("running", 2, "2s", 1_000)]));
    let waiting = world.submit(job(vec![stage("waiting", 1, "500ms", 1_000)]));
    world.run_for(seconds(1));
    world.unlink(1);
    world.run_for(Duration::from_millis(1_800));
    assert_eq!(world.outcome(waiting), Some(JobOutcome::Succeeded));
    check("probes_lost_with_a_node", &world);
}

#[test]
fn a_ready_probe_lost_with_the_connection_leaves_no_kept_room_and_no_task() {
    let mut world = listening(Preset::SPARROW, 1);
    let id = world.submit_without_delivery(job(vec![stage("only", 1, "1s", 1_000)]));
    world.sync();
    // The probes arrive, and the node's answers do not.
    while !world.log.iter().any(|line| line.ends_with("n0: probe p1-1-1")) {
        world.deliver_one();
    }
    world.unlink(0);
    world.link(0);
    world.settle();
    world.run_for(seconds(3));
    assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded));
    assert_eq!(world.launches().values().map(|attempts| attempts.len()).sum::<usize>(), 1);
    check("probe_ready_lost", &world);
}
