//! Job managers in a separate process: jobs continue while the server is down, and tasks while the job managers are.

use crate::support::{Cluster, is_alive, read, result, until_true};
use amalgam_daemon::api::{Event, EventKind, JobState, TaskState};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const CONFIG: &str = "preset = 'apollo'\njob_hosts = 1\nheartbeat = '100ms'\n";

/// A task that reports its start, and continues once its file exists.
const STEP: &str = "echo $$ > pid-$AMALGAM_INDEX; echo $AMALGAM_INDEX >> ran; \
    while [ ! -e go-$AMALGAM_INDEX ]; do sleep 0.02; done";

fn cluster() -> Cluster {
    let cluster = Cluster::start(1, 2, CONFIG);
    cluster.start_jobs(1);
    cluster
}

fn let_go(cluster: &Cluster, tasks: impl IntoIterator<Item = u32>) {
    tasks.into_iter().for_each(|task| drop(cluster.scene.write(&format!("go-{task}"), "")));
}

/// Each task has run once, and the server has recorded it.
fn all_ran_once(cluster: &Cluster, id: &str, tasks: u32) {
    let scene = &cluster.scene;
    scene.ok(&["wait", id]);
    let mut ran: Vec<u32> = scene.read("ran").lines().map(|line| line.parse().unwrap()).collect();
    ran.sort_unstable();
    assert_eq!(ran, (0..tasks).collect::<Vec<_>>());
    let known = scene.tasks(id);
    assert!(known.iter().all(|task| (task.state, task.attempts) == (TaskState::Succeeded, 1)), "{known:?}");
    let story = scene.story(&format!("{id}.0.{}", tasks - 1));
    for kind in ["launched", "started", "ended"] {
        assert_eq!(story.iter().filter(|line| line.kind == kind && line.attempt.is_some()).count(), 1, "{story:#?}");
    }
}

#[test]
fn a_job_goes_on_to_its_end_while_the_server_is_away() {
    let cluster = cluster();
    let id = cluster.scene.submit(&["--array", "0-5", "--", "sh", "-c", STEP]);
    cluster.scene.line_in("pid-1");
    let manager = cluster.scene.job(&id).summary.manager.expect("it says where its manager is");
    assert_eq!((manager.number, manager.connected), (1, true));
    cluster.kill_server();
    let_go(&cluster, 0..6);
    until_true("all tasks without a server", || cluster.scene.read("ran").lines().count() == 6);
    cluster.start_server();
    all_ran_once(&cluster, &id, 6);
}

#[test]
fn an_agent_that_starts_while_the_server_is_away_goes_on_with_the_job_managers_it_knew() {
    let cluster = cluster();
    let id = cluster.scene.submit(&["--array", "0-3", "--", "sh", "-c", STEP]);
    cluster.scene.line_in("pid-1");
    cluster.kill_server();
    cluster.kill_agent(0);
    let_go(&cluster, 0..4);
    cluster.start_agent(0);
    until_true("all tasks without a server", || cluster.scene.read("ran").lines().count() == 4);
    cluster.start_server();
    all_ran_once(&cluster, &id, 4);
}

#[test]
fn tasks_continue_without_their_job_managers_and_requests_are_queued() {
    let cluster = cluster();
    let id = cluster.scene.submit(&["--array", "0-4", "--", "sh", "-c", STEP]);
    let pid = cluster.scene.line_in("pid-0");
    cluster.scene.line_in("pid-1");
    cluster.kill_jobs(1);
    let scene = &cluster.scene;
    let is_reported = || scene.job(&id).reasons.iter().any(|why| why.starts_with("job host 1, which manages this job"));
    until_true("the reason why nothing starts", is_reported);
    assert!(scene.ok(&["top"]).contains("processes of job managers: 1, not connected: 1"));
    let listed = scene.jobs().remove(0);
    assert!(listed.reason.is_some_and(|why| why.starts_with("job host 1")), "also in a list, while tasks run");
    let_go(&cluster, [0]);
    until_true("the end of a task without its manager", || !is_alive(&pid));
    // Requests are queued until the job managers are back.
    let output = scene.ok(&["hold", &id]);
    assert!(output.contains("waits for job host 1"), "{output}");
    cluster.start_jobs(1);
    until_true("the end that was kept", || scene.job(&id).summary.tasks.succeeded == 1);
    let_go(&cluster, 1..5);
    until_true("the other one", || scene.job(&id).summary.tasks.succeeded >= 2);
    until_true("it is held", || scene.job(&id).summary.state == JobState::Held);
    scene.ok(&["release", &id]);
    all_ran_once(&cluster, &id, 5);
}

/// The output of a command that is refused for a reason that may pass, before it gives up.
fn refused_for_a_while(mut command: Command) -> String {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    thread::sleep(Duration::from_millis(500));
    child.kill().unwrap();
    read(child.wait_with_output().unwrap()).err
}

#[test]
fn job_managers_that_the_server_does_not_know_are_refused_with_a_remedy() {
    let cluster = Cluster::start(1, 1, CONFIG);
    let refused = |command: Command| {
        let output = result(command);
        assert!(output.code != 0, "{output:?}");
        output.err
    };
    let second = refused(cluster.jobs_command(2));
    assert!(second.contains("unknown job host 2; this server"), "{second}");
    assert!(!cluster.jobs_home(2).exists(), "one that was not let in leaves nothing");
    cluster.start_jobs(1);
    let again = refused(cluster.jobs_command(1));
    assert!(again.contains("is in use by process"), "{again}");
    // Another process with the same number and a different directory does not affect the first.
    let twin = refused_for_a_while(cluster.jobs_command_in(1, &cluster.scene.path().join("twin")));
    assert!(twin.contains("job host 1 is connected already"), "{twin}");
    let id = cluster.scene.submit(&["--", "true"]);
    cluster.scene.ok(&["wait", &id]);
    let other = Cluster::start(0, 1, "preset = 'apollo'");
    let output = refused(other.jobs_command(1));
    assert!(output.contains("write `job_hosts = 1` into its configuration"), "{output}");
}

#[test]
fn what_ran_while_the_server_was_away_is_shown_as_running_when_it_is_back() {
    let cluster = cluster();
    let scene = &cluster.scene;
    let id = scene.submit(&["--array", "0-2", "--", "sh", "-c", STEP]);
    scene.line_in("pid-1");
    cluster.kill_server();
    let_go(&cluster, [0]);
    scene.line_in("pid-2");
    cluster.start_server();
    until_true("what runs", || {
        let job = scene.job(&id);
        job.summary.state == JobState::Running && job.summary.tasks.running == 2
    });
    let_go(&cluster, 1..3);
    all_ran_once(&cluster, &id, 3);
    // Of simultaneous events, the end of a stage is recorded once, and each event has its own time. The end of the job takes
    // another path than its manager's records, and may be first.
    let mut awaited = vec![EventKind::JobEnded, EventKind::StageEnded];
    let mut coming = scene.http().events(0);
    let mut events: Vec<Event> = Vec::new();
    while !awaited.is_empty() {
        let event = coming.next().unwrap_or_else(|| panic!("{awaited:?} did not come: {events:#?}"));
        awaited.retain(|kind| *kind != event.kind);
        events.push(event);
    }
    assert_eq!(events.iter().filter(|event| event.kind == EventKind::StageEnded).count(), 1, "{events:#?}");
}

#[test]
fn a_job_is_not_taken_for_another_that_had_its_number() {
    let cluster = cluster();
    let scene = &cluster.scene;
    let first = scene.submit(&["--", "true"]);
    scene.ok(&["wait", &first]);
    cluster.kill_server();
    let (state, backup) = (scene.state(), scene.path().join("backup"));
    copy(&state, &backup);
    cluster.start_server();
    let old = scene.submit(&["--", "sh", "-c", "echo old >> ran"]);
    scene.ok(&["wait", &old]);
    cluster.kill_server();
    cluster.kill_jobs(1);
    // The server's log is an old copy.
    fs::remove_dir_all(&state).unwrap();
    copy(&backup, &state);
    cluster.start_server();
    let new = scene.submit(&["--", "sh", "-c", "echo new >> ran"]);
    assert_eq!(new, old);
    cluster.start_jobs(1);
    scene.ok(&["wait", &new]);
    assert_eq!(scene.read("ran"), "old\nnew\n");
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

#[test]
fn jobs_of_job_managers_that_are_lost_can_be_ended_and_others_take_over() {
    let cluster = Cluster::start(1, 2, &CONFIG.replace("job_hosts = 1", "job_hosts = 2"));
    let scene = &cluster.scene;
    cluster.start_jobs(1);
    let lost = scene.submit(&["--array", "0-3", "--", "sh", "-c", STEP]);
    scene.line_in("pid-0");
    let again = scene.run(&["cancel", "--force", &lost]);
    assert!(again.code == 1 && again.err.contains("its manager is connected"), "{again:?}");
    cluster.kill_jobs(1);
    fs::remove_dir_all(cluster.jobs_home(1)).unwrap();
    let output = result(cluster.jobs_command(1)).err;
    assert!(output.contains("the log was lost, or --work-dir names another directory"), "{output}");
    let waits = scene.ok(&["cancel", &lost]);
    assert!(waits.contains("waits for job host 1"), "{waits}");
    scene.ok(&["cancel", "--force", &lost]);
    assert_eq!(scene.run(&["wait", &lost]).code, 130);
    let rerun = scene.run(&["rerun-failed", &lost]);
    assert!(rerun.code == 1 && rerun.err.contains("submit it again"), "{rerun:?}");
    cluster.start_jobs(2);
    let_go(&cluster, 0..4);
    for _ in 0..3 {
        let next = scene.submit(&["--", "true"]);
        scene.ok(&["wait", &next]);
    }
    cluster.kill_server();
    cluster.start_server();
    assert_eq!(scene.job(&lost).summary.state, JobState::Cancelled, "also after a restart");
}

#[test]
fn what_a_lost_node_had_runs_elsewhere_while_the_server_is_away() {
    let config = format!("{CONFIG}node_grace = '700ms'\n");
    let cluster = Cluster::start(2, 1, &config);
    cluster.start_jobs(1);
    let scene = &cluster.scene;
    let step = format!("echo $AMALGAM_INDEX >> began; {}; echo $AMALGAM_INDEX >> done", STEP);
    let id = scene.submit(&["--array", "0-5", "--", "sh", "-c", &step]);
    scene.line_in("pid-0");
    scene.line_in("pid-1");
    cluster.kill_server();
    cluster.kill_agent(0);
    let_go(&cluster, 0..6);
    let done = || scene.read("done").lines().map(str::to_owned).collect::<BTreeSet<String>>().len();
    until_true("all tasks, without the server and one of the nodes", || done() == 6);
    cluster.start_server();
    scene.ok(&["wait", &id]);
}

#[test]
fn a_preset_that_books_is_refused_while_jobs_are_elsewhere() {
    let cluster = cluster();
    let id = cluster.scene.submit(&["--", "sh", "-c", STEP]);
    cluster.scene.line_in("pid-0");
    cluster.kill_server();
    let mut drf = cluster.scene.command(&["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"]);
    drf.args(["--preset", "drf"]);
    let output = result(drf);
    assert!(output.code == 2 && output.err.contains("1 job of a job host has not ended (1)"), "{output:?}");
    cluster.start_server();
    let_go(&cluster, [0]);
    cluster.scene.ok(&["wait", &id]);
}
