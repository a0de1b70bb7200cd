//! Several users on one cluster: tasks run as their job's user. These tests need root, and two accounts that every system has.

use crate::support::{Cluster, Daemon, job_spec, result};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// A server and an agent that runs tasks as their job's user; `None` if this is not root.
fn cluster_or_skip(config: &str) -> Option<(Cluster, Daemon)> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: this needs root");
        return None;
    }
    let cluster = Cluster::start(0, 2, config);
    // Tasks reach their directories below the test's.
    for directory in [cluster.scene.path().to_owned(), cluster.scene.work()] {
        fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let agent = Daemon::start(cluster.agent_for_users(0)).unwrap_or_else(|output| panic!("no agent: {output}"));
    Some((cluster, agent))
}

#[test]
fn users_have_accounts_and_node_info_says_so() {
    let accounts =
        "[[account]]\nuser = 'ada'\nname = 'daemon'\n[[account]]\nuser = 'bob@example.org'\nname = 'nobody'\n";
    let Some((cluster, _agent)) = cluster_or_skip(accounts) else { return };
    let scene = &cluster.scene;
    let ran = |arguments: &[&str]| {
        let job = scene.submit(arguments);
        scene.run(&["wait", &job]);
        scene.ok(&["logs", &job])
    };
    assert_eq!(ran(&["--", "id", "-un"]), "daemon\n");
    let token = scene.ok(&["token", "add", "bob@example.org"]);
    let as_bob = |arguments: &[&str]| {
        let mut command = scene.command(arguments);
        command.env("AMALGAM_TOKEN", token.trim());
        result(command)
    };
    let output = as_bob(&["submit", "--quiet", "--", "sh", "-c", "id -un; id -gn"]);
    let job = output.out.trim().to_owned();
    as_bob(&["wait", &job]);
    assert_eq!(as_bob(&["logs", &job]).out, "nobody\nnogroup\n");

    let info = scene.ok(&["node", "info", "node-0"]);
    assert!(info.contains("tasks run as their job's user"), "{info}");

    // A client cannot choose another account.
    let mut spec: Value = job_spec(scene, &["id", "-un"]);
    spec["account"] = "root".into();
    spec["user"] = "root".into();
    let (status, made) = scene.http().post("/v1/jobs", &[], &spec);
    assert_eq!(status, 201, "{made}");
    let job = made["job"].to_string();
    scene.run(&["wait", &job]);
    assert_eq!(scene.ok(&["logs", &job]), "daemon\n");
}

#[test]
fn a_user_without_an_account_and_root_get_a_clear_reason() {
    let Some((cluster, _agent)) = cluster_or_skip("[[account]]\nuser = 'root-by-another-name'\nname = 'root'\n") else {
        return;
    };
    let scene = &cluster.scene;
    let job = scene.submit(&["--", "true"]);
    scene.run(&["wait", &job]);
    let why = scene.ok(&["info", &job]);
    assert!(why.contains("the user ada has no account on this node"), "{why}");

    let token = scene.ok(&["token", "add", "root-by-another-name"]);
    let mut command = scene.command(&["submit", "--quiet", "--", "true"]);
    command.env("AMALGAM_TOKEN", token.trim());
    let job = result(command).out.trim().to_owned();
    scene.run(&["wait", &job]);
    let why = scene.ok(&["info", &job]);
    assert!(why.contains("--allow-root"), "{why}");
}

#[test]
fn an_agent_says_why_it_cannot_run_tasks_as_others() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: this needs root");
    }
    let cluster = Cluster::start(0, 1, "");
    fs::set_permissions(cluster.scene.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let refused = Daemon::start(cluster.agent_for_users(0)).err().expect("the test's directory is closed to others");
    assert!(refused.contains("closed to other users") && refused.contains("chmod o+x"), "{refused}");
    let refused = cluster.scene.run(&["agent", "--run-as", "agent", "--allow-root"]);
    assert!(refused.code == 2 && refused.err.contains("--allow-root is for agents"), "{refused:?}");
}
