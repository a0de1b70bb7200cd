//! Files that tasks leave in their directories do not prevent a node's start or a cluster's removal.

use crate::support::{Scene, until_true};
use std::fs;

/// Leaves files that plain programs cannot remove: closed directories, a deep tree, a name that is not UTF-8, and, where
/// permitted, an immutable file and a bind mount of another directory.
const LEAVE: &str = "cd $TMPDIR && mkdir -p m/closed/x && touch m/f \"$(printf 'caf\\351')\"; \
     mkdir mounted; mount --bind $AMALGAM_SUBMIT_DIR/mine mounted 2> /dev/null; chattr +i m/f 2> /dev/null; \
     chmod 000 m/closed; chmod a-w m; \
     for i in $(seq 400); do mkdir deeper && cd deeper || exit 9; done; echo $TMPDIR > $AMALGAM_SUBMIT_DIR/left; ";

fn scene() -> Scene {
    let scene = Scene::new();
    fs::create_dir(scene.work().join("mine")).unwrap();
    scene.write("mine/kept", "kept\n");
    scene
}

#[test]
fn a_node_starts_again_whatever_tasks_have_left() {
    let scene = scene();
    scene.start_dev(&[]);
    scene.submit(&["--", "sh", "-c", &format!("{LEAVE} exec sleep 300")]);
    let left = scene.line_in("left");
    scene.kill_daemon();
    let executor = fs::read_to_string(scene.state().join("executor/executor.lock")).unwrap();
    // SAFETY: kill has no preconditions.
    unsafe { libc::kill(executor.trim().parse().unwrap(), libc::SIGKILL) };
    until_true("the executor's end", || !crate::support::is_alive(&executor));
    assert!(fs::exists(&left).unwrap());
    scene.start_dev(&[]);
    assert_eq!(scene.ok(&["run", "--", "sh", "-c", "touch $TMPDIR/f && echo it works"]), "it works\n");
    until_true("all is removed", || fs::read_dir(scene.state().join("executor/removed")).unwrap().count() == 0);
    assert_eq!(scene.read("mine/kept"), "kept\n");
    assert!(!scene.state().join("executor/unremovable").exists());
}

#[test]
fn a_cluster_for_one_run_leaves_nothing_whatever_its_task_has_left() {
    let scene = scene();
    let result = scene.run(&["run", "--", "sh", "-c", LEAVE]);
    assert_eq!(result.code, 0, "{result:?}");
    let left: Vec<_> = fs::read_dir(scene.path().join("tmp")).unwrap().collect();
    assert!(left.is_empty() && result.err == "job 1 submitted: sh, 1 task\n", "{left:?}: {result:?}");
    assert_eq!(scene.read("mine/kept"), "kept\n");
}

#[test]
fn what_an_earlier_run_could_not_remove_is_removed_by_the_next() {
    let scene = scene();
    // Its process, its lock and most other files are gone, but its tokens are not.
    let remains = scene.path().join("tmp/amalgam-run-4194304-0");
    fs::create_dir_all(remains.join("executor/removed/x")).unwrap();
    fs::write(remains.join("tokens.toml"), "secret").unwrap();
    let young = scene.path().join("tmp/amalgam-run-4194305-0");
    fs::create_dir(&young).unwrap();
    let file = fs::File::open(&remains).unwrap();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3_600);
    file.set_times(fs::FileTimes::new().set_modified(long_ago)).unwrap();
    scene.ok(&["run", "--", "true"]);
    assert!(!remains.exists() && young.exists(), "the young one may be about to start");
}
