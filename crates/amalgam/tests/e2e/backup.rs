//! Backups of running daemons, and what restored ones do.

use crate::support::{Cluster, CommandOutput, Daemon, Scene, result, until, until_true};
use amalgam_daemon::api::{JobState, TaskState};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Runs `arguments` with another state directory.
fn at(scene: &Scene, state: &Path, arguments: &[&str]) -> CommandOutput {
    let mut command = scene.command(arguments);
    command.env("AMALGAM_STATE", state);
    result(command)
}

fn ok_at(scene: &Scene, state: &Path, arguments: &[&str]) -> String {
    let result = at(scene, state, arguments);
    assert_eq!(result.code, 0, "{arguments:?}: {result:?}");
    result.out
}

/// The tasks of all jobs that have succeeded, by job.
fn succeeded(text: impl Fn(&[&str]) -> String) -> BTreeMap<u64, Vec<u32>> {
    let jobs: Vec<amalgam_daemon::api::JobSummary> = serde_json::from_str(&text(&["list", "--all", "--json"])).unwrap();
    let tasks = |job: u64| {
        let text = text(&["info", &job.to_string(), "--tasks", "-n", "100000", "--json"]);
        let tasks: Vec<amalgam_daemon::api::TaskSummary> = serde_json::from_str(&text).unwrap();
        let done = tasks.into_iter().filter(|task| task.state == TaskState::Succeeded);
        done.map(|task| task.index).collect()
    };
    jobs.iter().map(|job| (job.id, tasks(job.id))).collect()
}

fn has_snapshot(state: &Path) -> bool {
    let mut names = fs::read_dir(state.join("log")).unwrap().flatten().map(|entry| entry.file_name());
    names.any(|name| name.to_string_lossy().starts_with("snapshot-"))
}

#[test]
fn backups_while_jobs_run_have_everything_that_was_acknowledged() {
    let cluster = Cluster::start(1, 16, "segment_mib = 1\nhistory_mib = 1\n");
    let scene = &cluster.scene;
    let mut backups = Vec::new();
    for round in 0..4 {
        scene.submit(&["--array", "0-399", "--", "true"]);
        // More than a segment, so that a snapshot is written about now.
        for _ in 0..11 {
            scene.submit(&["--", "true", &"x".repeat(100_000)]);
        }
        let before = succeeded(|arguments| scene.ok(arguments));
        let archive = scene.path().join(format!("backup-{round}.tar"));
        let written = scene.run(&["backup", archive.to_str().unwrap()]);
        assert_eq!(written.code, 0, "{written:?}");
        assert!(written.err.contains("the archive contains secrets"), "{written:?}");
        assert_eq!(fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o600);
        backups.push((archive, before));
    }
    assert!(backups[3].1.len() == 48 && backups[3].1.values().any(|done| !done.is_empty()), "{backups:?}");
    let mut snapshots = 0;
    for (archive, before) in backups {
        let state = archive.with_extension("restored");
        ok_at(scene, &state, &["restore", archive.to_str().unwrap()]);
        let mut command = scene.command(&["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"]);
        command.env("AMALGAM_STATE", &state);
        let server = Daemon::start(command).unwrap_or_else(|output| panic!("no server: {output}"));
        let after = succeeded(|arguments| ok_at(scene, &state, arguments));
        for (job, done) in &before {
            let restored = after.get(job).unwrap_or_else(|| panic!("job {job} is lost: {after:?}"));
            assert!(done.iter().all(|task| restored.contains(task)), "job {job}: {done:?}, restored: {restored:?}");
        }
        assert!(server.stop().success());
        snapshots += usize::from(has_snapshot(&state));
    }
    assert!(snapshots > 0, "snapshots were written meanwhile");
}

#[test]
fn agents_rejoin_a_restored_server_and_continue_what_it_knows() {
    let cluster = Cluster::start(1, 4, "");
    let scene = &cluster.scene;
    let archive = scene.path().join("backup.tar");
    let wait = "echo $1 >> ran; until test -e go; do sleep 0.05; done";
    let known = scene.submit(&["--", "sh", "-c", wait, "sh", "known"]);
    let finished = scene.submit(&["--", "sh", "-c", "echo finished >> ran"]);
    scene.ok(&["wait", &finished]);
    until_true("the first job runs", || scene.read("ran").contains("known"));
    until_true("the start is known", || scene.job(&known).summary.state == JobState::Running);
    scene.ok(&["backup", archive.to_str().unwrap()]);

    // What happened later is lost: starts of the server, whose numbers the node knows, and a job that runs.
    for _ in 0..3 {
        cluster.kill_server();
        cluster.start_server();
    }
    let lost = scene.submit(&["--", "sh", "-c", "echo $$ > lost; exec sleep 1000"]);
    let process = scene.line_in("lost");
    cluster.kill_server();

    let refused = scene.run(&["restore", archive.to_str().unwrap()]);
    assert!(refused.code == 1 && refused.err.contains("move the directory aside"), "{refused:?}");
    fs::rename(scene.state(), scene.path().join("aside")).unwrap();
    let restored = scene.run(&["restore", archive.to_str().unwrap()]);
    assert_eq!(restored.code, 0, "{restored:?}");
    cluster.start_server();
    until_true("the task of the lost job is stopped", || !crate::support::is_alive(&process));

    let again = scene.submit(&["--", "sh", "-c", "echo again >> ran"]);
    assert_eq!(again, lost, "numbers of lost jobs are given again");
    assert_eq!(scene.run(&["wait", &again]).code, 0);
    scene.write("go", "");
    assert_eq!(scene.run(&["wait", &known, &finished]).code, 0);
    let mut ran: Vec<String> = scene.read("ran").lines().map(str::to_owned).collect();
    ran.sort();
    assert_eq!(ran, ["again", "finished", "known"], "nothing ran twice");
    let adopted = until("the story", || Some(scene.ok(&["story", &known])));
    assert!(adopted.contains("adopted"), "{adopted}");
}

#[test]
fn a_backup_goes_through_a_pipe_and_bad_archives_are_refused() {
    let scene = Scene::dev(&[]);
    scene.ok(&["run", "--", "true"]);
    let archive = scene.path().join("backup.tar");
    let mut command = scene.command(&["backup", "-"]);
    let written = command.stdout(fs::File::create(&archive).unwrap()).status().unwrap();
    assert!(written.success());
    assert!(
        fs::read_to_string(scene.state().join("audit.log")).unwrap().contains("backup -"),
        "the copy of secrets is in the audit log"
    );
    let state = scene.path().join("restored");
    let mut command = scene.command(&["restore", "-"]);
    command.env("AMALGAM_STATE", &state).stdin(fs::File::open(&archive).unwrap());
    let restored = command.output().unwrap();
    assert!(restored.status.success(), "{restored:?}");
    assert!(state.join("log/format").exists() && !state.join("executor").exists());

    let mut bytes = fs::read(&archive).unwrap();
    // In a file: the bytes between files have no meaning.
    let mark = b"amalgam store ";
    let place = bytes.windows(mark.len()).position(|window| window == mark).unwrap();
    bytes[place] ^= 1;
    let damaged = scene.path().join("damaged.tar");
    fs::write(&damaged, bytes).unwrap();
    let other = scene.path().join("other");
    let refused = at(&scene, &other, &["restore", damaged.to_str().unwrap()]);
    assert!(refused.code == 1 && refused.err.contains("the SHA-256 of log/format"), "{refused:?}");
    assert!(!other.exists(), "nothing was restored");
    let refused = at(&scene, &other, &["backup", "x.tar"]);
    assert!(refused.code == 1 && refused.err.contains("there is no log"), "{refused:?}");
    let refused = scene.run(&["restore", archive.to_str().unwrap()]);
    assert!(refused.code == 1 && refused.err.contains("is not empty"), "{refused:?}");
    let refused = scene.run(&["backup", "--server", "http://127.0.0.1:1", "x.tar"]);
    assert!(refused.code == 2 && refused.err.contains("leave --server and --context out"), "{refused:?}");
}

#[test]
fn what_fills_the_state_directory_is_shown_by_kind_and_by_job() {
    let scene = Scene::dev(&[]);
    scene.ok(&["run", "--", "true"]);
    scene.ok(&["run", "--", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"]);
    let report: amalgam_daemon::du::Report = scene.json(&["du"]);
    let output = &report.uses[0];
    assert_eq!(output.kind, amalgam_daemon::du::Kind::Output, "{report:?}");
    assert!(output.bytes >= 3_000_000 && output.path == scene.state().join("executor/output"), "{report:?}");
    assert_eq!(report.jobs[0].job, 2);
    assert!(report.unread.is_empty());
    let table = scene.ok(&["du", "-n", "1"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[1].contains("output of tasks") && table.contains("in all"), "{table}");
    assert!(lines.last().unwrap().ends_with(" 2"), "only the biggest job is shown: {table}");
    let refused = scene.run(&["du", "/missing"]);
    assert!(refused.code == 1 && refused.err.contains("cannot read /missing"), "{refused:?}");
}
