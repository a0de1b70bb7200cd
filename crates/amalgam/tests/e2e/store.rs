//! Acknowledged changes are on disk, and a damaged or full disk is detected.

use crate::support::{Cluster, Daemon, Scene, job_spec, result};
use amalgam_daemon::api::JobState;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn segment(scene: &Scene) -> PathBuf {
    let entries = fs::read_dir(scene.state().join("log")).unwrap().flatten().map(|entry| entry.path());
    let mut segments: Vec<PathBuf> =
        entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("segment-")).collect();
    segments.sort();
    segments.pop().unwrap()
}

#[test]
fn what_has_ended_stays_ended() {
    let scene = Scene::dev(&[]);
    scene.ok(&["run", "--array", "0-4", "--", "sh", "-c", "echo $AMALGAM_INDEX | tee -a ran"]);
    scene.run(&["run", "--", "sh", "-c", "exit 3"]);
    scene.kill_daemon();
    scene.start_dev(&[]);
    let jobs: Vec<(u64, JobState)> = scene.jobs().iter().map(|job| (job.id, job.state)).collect();
    assert!(jobs.contains(&(1, JobState::Succeeded)) && jobs.contains(&(2, JobState::Failed)), "{jobs:?}");
    assert_eq!(scene.run(&["wait", "1-2"]).code, 3);
    assert_eq!(scene.ok(&["logs", "1.main.3"]), "3\n", "output is kept, too");
    assert_eq!(scene.read("ran").lines().count(), 5);
    assert_eq!(scene.submit(&["--", "true"]), "3", "ids are not given twice");

    // The same for an orderly stop and start.
    let daemon = scene.daemons.borrow_mut().pop().unwrap();
    assert!(daemon.stop().success());
    scene.start_dev(&[]);
    assert_eq!(scene.jobs().len(), 3);
}

#[test]
fn one_state_directory_has_one_server() {
    let scene = Scene::dev(&[]);
    scene.submit(&["--", "true"]);
    for verb in ["dev", "server"] {
        let second = scene.run(&[verb, "--listen", "127.0.0.1:0"]);
        assert_eq!(second.code, 1, "{second:?}");
        assert!(second.err.contains("is in use by process"), "{second:?}");
    }
    assert_eq!(scene.run(&["run", "--", "true"]).code, 0, "the first is not disturbed");
}

#[test]
fn one_work_directory_has_one_agent() {
    let cluster = Cluster::start(1, 1, "");
    let second = result(cluster.agent_command(0));
    assert_eq!(second.code, 1, "{second:?}");
    let dir = cluster.scene.path().join("node-0/executor");
    assert!(second.err.contains(&format!("the directory {} is in use by process", dir.display())), "{second:?}");
    assert!(second.err.contains("--work-dir"), "{second:?}");
    assert_eq!(cluster.scene.run(&["run", "--", "true"]).code, 0, "the first is not disturbed");
}

#[test]
fn an_agent_does_not_share_the_executor_of_dev() {
    let scene = Scene::dev(&[]);
    let state = scene.state().display().to_string();
    let second = scene.run(&["agent", "--server", "127.0.0.1:1", "--work-dir", &state]);
    assert_eq!(second.code, 1, "{second:?}");
    assert!(second.err.contains("executor is in use by process"), "{second:?}");
    assert_eq!(scene.run(&["run", "--", "true"]).code, 0, "the first is not disturbed");
}

#[test]
fn a_damaged_log_is_refused_with_the_remedy() {
    let scene = Scene::dev(&[]);
    for _ in 0..5 {
        scene.ok(&["run", "--", "true"]);
    }
    scene.kill_daemon();
    let segment = segment(&scene);
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    fs::write(&segment, &bytes).unwrap();
    let refused = scene.run(&["dev", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    for words in ["the store is damaged", "at byte", "Restore", "start afresh"] {
        assert!(refused.err.contains(words), "`{words}` is missing in {refused:?}");
    }
    assert_eq!(fs::read(&segment).unwrap(), bytes, "nothing was changed");
    bytes[middle] ^= 0x40;
    fs::write(&segment, &bytes).unwrap();
    scene.start_dev(&[]);
    assert_eq!(scene.jobs().len(), 5);
}

#[test]
fn a_torn_last_write_is_cut_off_and_said_to_be() {
    let scene = Scene::dev(&[]);
    scene.ok(&["run", "--", "true"]);
    scene.kill_daemon();
    let segment = segment(&scene);
    let mut bytes = fs::read(&segment).unwrap();
    // The start of a record, as left by a power failure.
    bytes.extend_from_within(20..31);
    fs::write(&segment, &bytes).unwrap();
    scene.start_dev(&[]);
    assert_eq!(scene.jobs()[0].state, JobState::Succeeded);
    assert_eq!(scene.submit(&["--", "true"]), "2");
    let output = scene.daemons.borrow_mut().pop().unwrap().kill();
    assert!(output.contains("cut short"), "{output}");
}

/// A file system of a few megabytes; unmounted when it is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: &Path, size: &str) -> Result<SmallDisk, String> {
        let options = format!("size={size},mode=700");
        let mounted = result({
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &options, "none"]).arg(at);
            mount
        });
        if mounted.code == 0 { Ok(SmallDisk(at.to_owned())) } else { Err(mounted.err.trim().to_owned()) }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_loses_nothing_acknowledged() {
    let scene = Scene::new();
    let _disk = match SmallDisk::mount(&scene.state(), "4m") {
        Ok(disk) => disk,
        Err(why) => return println!("skipped: no file system can be mounted here: {why}"),
    };
    let start = || {
        let mut command = scene.command(&["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"]);
        command.env("AMALGAM_LOG", "error");
        Daemon::start(command)
    };
    let server = start().unwrap();
    let filler = scene.state().join("filler");
    fs::write(&filler, vec![7; 3 << 20]).unwrap();
    // Much larger than the records of a small job, and much smaller than the free space.
    let mut spec = job_spec(&scene, &["true"]);
    spec["wait_for_nodes"] = true.into();
    spec["stages"][0]["program"]["env"] = serde_json::json!([["BLOB", "x".repeat(100_000)]]);
    let mut acknowledged = Vec::new();
    let http = scene.http();
    while let Some((201, answer)) = http.try_post("/v1/jobs", &spec) {
        acknowledged.push(answer["job"].as_u64().unwrap());
        assert!(acknowledged.len() < 100, "the disk never became full");
    }
    assert!(!acknowledged.is_empty());
    let (status, output) = server.ended();
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(output.contains("nothing that was acknowledged is lost") && output.contains("make room"), "{output}");

    fs::remove_file(&filler).unwrap();
    let server = start().unwrap();
    let mut listed: Vec<u64> = scene.jobs().iter().map(|job| job.id).collect();
    listed.sort_unstable();
    assert!(acknowledged.iter().all(|id| listed.contains(id)), "{acknowledged:?} {listed:?}");
    assert!(listed.len() <= acknowledged.len() + 1, "{acknowledged:?} {listed:?}");
    scene.submit(&["--wait-for-nodes", "--", "true"]);
    server.kill();
}

#[test]
fn a_failed_first_start_on_a_full_disk_does_not_block_the_next() {
    let scene = Scene::new();
    let (mut room, mut refused) = (0, 0);
    loop {
        let _disk = match SmallDisk::mount(&scene.state(), "1m") {
            Ok(disk) => disk,
            Err(why) => return println!("skipped: no file system can be mounted here: {why}"),
        };
        let start = || {
            let mut command = scene.command(&["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"]);
            command.env("AMALGAM_LOG", "error");
            Daemon::start(command)
        };
        // The disk is full after this number of pages of 4 KiB.
        let filler = scene.state().join("filler");
        fs::write(&filler, vec![7; (1 << 20) - (room << 12)]).unwrap();
        let full = start();
        let started = full.is_ok();
        match full {
            Ok(server) => drop(server.kill()),
            Err(output) => {
                refused += 1;
                let state = scene.state().display().to_string();
                assert!(output.contains("No space left") && output.contains(&state), "{room} pages: {output}");
            }
        }
        fs::remove_file(&filler).unwrap();
        let server = start().unwrap_or_else(|output| panic!("with room again, after {room} pages: {output}"));
        assert_eq!(scene.submit(&["--wait-for-nodes", "--", "true"]), "1");
        server.kill();
        if started {
            break;
        }
        room += 1;
    }
    assert!(refused > 3, "the disk was never full at different files: {refused}");
}

#[test]
fn a_server_whose_log_may_not_grow_says_which_file() {
    let scene = Scene::new();
    let mut command = scene.command(&["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"]);
    // SAFETY: setrlimit is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            let most = libc::rlimit { rlim_cur: 300_000, rlim_max: 300_000 };
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const most);
            Ok(())
        });
    }
    let server = Daemon::start(command).unwrap();
    let mut spec = job_spec(&scene, &["true"]);
    spec["wait_for_nodes"] = true.into();
    spec["stages"][0]["program"]["env"] = serde_json::json!([["BLOB", "x".repeat(100_000)]]);
    let http = scene.http();
    let accepted = (0..10).take_while(|_| matches!(http.try_post("/v1/jobs", &spec), Some((201, _)))).count();
    assert!((1..10).contains(&accepted), "{accepted}");
    let (status, output) = server.ended();
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(output.contains("segment-") && output.contains("File too large"), "{output}");
}
