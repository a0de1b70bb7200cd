//! Several users on one cluster: tasks run as their job's user. These tests need root, and two accounts that every system has.

use crate::support::{Cluster, Daemon, job_spec, result};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

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
fn where_tasks_run_as_the_agents_user_the_node_says_so() {
    let cluster = Cluster::start(1, 1, "");
    let own = cluster.scene.ok(&["run", "--", "id", "-un"]);
    let said = cluster.scene.ok(&["node", "info", "0"]);
    assert!(said.contains(&format!("tasks run as {}", own.trim())), "{said}");
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

#[test]
fn users_of_the_servers_machine_need_no_token() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: this needs root");
    }
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (socket, program) = (home.path().join("run/socket"), home.path().join("amalgam"));
    fs::copy(env!("CARGO_BIN_EXE_amalgam"), &program).unwrap();
    let cluster = Cluster::start(1, 2, &format!("listen_local = '{}'\n", socket.display()));
    let as_user = |uid: u32, token: Option<&str>, arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).uid(uid).gid(uid).current_dir("/").env_clear();
        command.env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent");
        command.env("AMALGAM_SERVER", format!("unix:{}", socket.display()));
        token.into_iter().for_each(|token| {
            command.env("AMALGAM_TOKEN", token);
        });
        result(command)
    };
    let daemon: u32 = 1;
    let job = as_user(daemon, None, &["submit", "-q", "--", "true"]);
    assert_eq!(job.code, 0, "{job:?}");
    let job = job.out.trim();
    assert_eq!(as_user(daemon, None, &["wait", job]).code, 0);
    assert_eq!(cluster.scene.job(job).summary.user, "daemon");
    let refused = as_user(daemon, None, &["node", "drain", "node-0"]);
    assert!(refused.code == 1 && refused.err.contains("daemon is not an administrator"), "{refused:?}");
    assert_eq!(as_user(0, None, &["node", "drain", "node-0"]).code, 0);
    assert_eq!(as_user(0, None, &["node", "undrain", "node-0"]).code, 0);
    let nameless = as_user(4_000_000_000, None, &["list"]);
    assert!(nameless.code == 1 && nameless.err.contains("id 4000000000 has no name"), "{nameless:?}");

    // A token counts more than the socket.
    let token = cluster.scene.ok(&["token", "add", "grace"]);
    let of_grace = as_user(daemon, Some(token.trim()), &["submit", "-q", "--", "true"]);
    assert_eq!(cluster.scene.job(of_grace.out.trim()).summary.user, "grace");
    assert_eq!(as_user(daemon, Some("forged"), &["list"]).code, 1);

    let audit = fs::read_to_string(cluster.scene.state().join("audit.log")).unwrap();
    let has = |user: &str, from: &str, what: &str| {
        audit.lines().any(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            line["user"] == user
                && line["from"] == from
                && line["what"].as_str().is_some_and(|text| text.contains(what))
        })
    };
    assert!(has("daemon", "local user 1", "submit job") && has("root", "local user 0", "undrain node"), "{audit}");
    cluster.kill_server();
    let refused = as_user(daemon, None, &["list"]);
    assert!(refused.code != 0 && refused.err.contains("the server at its local socket does not answer"), "{refused:?}");
    cluster.start_server();
    assert_eq!(as_user(daemon, None, &["list"]).code, 0, "the killed server's socket is replaced");
}
