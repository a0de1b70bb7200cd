//! `amalgam doctor` finds what is wrong with a machine, and says what helps.

use crate::support::{Daemon, Scene, free_port, result};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The exit code and the checks with this name.
fn examined(scene: &Scene, check: &str, arguments: &[&str]) -> (i32, Vec<Value>) {
    examined_by(scene.command(&[&["doctor", "--json"], arguments].concat()), check)
}

fn examined_by(command: Command, check: &str) -> (i32, Vec<Value>) {
    let output = result(command);
    let checks: Vec<Value> = serde_json::from_str(&output.out).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output.code, checks.into_iter().filter(|found| found["check"] == check).collect())
}

/// The same on a machine that this script of a shell has changed: its mounts and its name are those of the command only.
fn examined_after(scene: &Scene, change: &str, check: &str, arguments: &[&str]) -> (i32, Vec<Value>) {
    let command = scene.command(&[&["doctor", "--json"], arguments].concat());
    let mut changed = Command::new("unshare");
    changed.args(["--mount", "--uts", "sh", "-ec", &format!("{change}\nexec \"$@\""), "sh"]);
    changed.arg(command.get_program()).args(command.get_args()).current_dir(scene.work());
    changed.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    examined_by(changed, check)
}

/// Whether this is possible, which is printed if it is not.
fn may_change_or_skip() -> bool {
    let change = "echo probe > /proc/sys/kernel/hostname; mount -t tmpfs none /mnt";
    let made = Command::new("unshare").args(["--mount", "--uts", "sh", "-ec", change]).stderr(Stdio::null()).status();
    let may = made.is_ok_and(|made| made.success());
    if !may {
        println!("skipped: this needs root and namespaces of mounts");
    }
    may
}

#[track_caller]
fn finds(checks: &[Value], result: &str, found: &str, remedy: &str) {
    let matches = |check: &Value| {
        check["result"] == result
            && check["found"].as_str().unwrap().contains(found)
            && check["remedy"].as_str().unwrap_or_default().contains(remedy)
    };
    assert!(checks.iter().any(matches), "{result}, {found}, {remedy}: {checks:?}");
}

#[test]
fn a_running_server_is_examined_and_tokens_that_others_can_read_are_found() {
    let scene = Scene::dev(&[]);
    for (check, found) in [
        ("server", "1 of 1 nodes up"),
        ("clock", "as the server's, within"),
        ("versions", "the server is"),
        ("ports", "listens for clients at 127.0.0.1"),
        ("disk writes", "until a write to the state directory is durable"),
        ("secrets", "tokens.toml has mode 0600"),
    ] {
        finds(&examined(&scene, check, &[]).1, "ok", found, "");
    }
    let tokens = scene.state().join("tokens.toml");
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, secrets) = examined(&scene, "secrets", &[]);
    assert_eq!(code, 1);
    finds(&secrets, "problem", "mode 0644", &format!("chmod 600 {}", tokens.display()));
    let printed = scene.run(&["doctor"]);
    assert!(printed.code == 1 && printed.out.contains("\n  help: run `chmod 600"), "{printed:?}");
    fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600)).unwrap();
    // Nothing is left behind.
    let drafts = fs::read_dir(scene.state()).unwrap().flatten();
    assert_eq!(drafts.filter(|entry| entry.file_name().to_string_lossy().starts_with("doctor")).count(), 0);
}

#[test]
fn a_port_that_another_process_uses_is_found() {
    let scene = Scene::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let (taken, free) = (other.local_addr().unwrap(), free_port());
    let config = scene.write("server.toml", &format!("listen = '{taken}'\nlisten_agents = '127.0.0.1:{free}'\n"));
    let arguments = ["--role", "server", "--config", config.to_str().unwrap()];
    let (code, ports) = examined(&scene, "ports", &arguments);
    assert_eq!((code, ports.len()), (1, 2));
    finds(&ports, "problem", &format!("another process listens at {taken}"), "--listen");
    finds(&ports, "ok", &format!("127.0.0.1:{free} is free for agents"), "");
    drop(other);
    finds(&examined(&scene, "ports", &arguments).1, "ok", &format!("{taken} is free for clients"), "");
}

#[test]
fn a_host_name_that_others_do_not_find_is_found() {
    if !may_change_or_skip() {
        return;
    }
    let scene = Scene::new();
    // Names are found in a file only, so that no network is asked.
    let (switch, hosts) = (scene.write("nsswitch.conf", "hosts: files\n"), scene.work().join("hosts"));
    let change = format!(
        "mount --bind {} /etc/nsswitch.conf; mount --bind {} /etc/hosts; echo nowhere.invalid > /proc/sys/kernel/hostname",
        switch.display(),
        hosts.display()
    );
    let config = scene.write("server.toml", "listen_agents = '0.0.0.0:7434'\n");
    let for_others = ["--role", "server", "--config", config.to_str().unwrap()];
    let (none, here, right) = ("", "127.0.1.1 nowhere.invalid\n", "192.0.2.7 nowhere.invalid\n");
    for (text, arguments, result, found, remedy) in [
        (none, &["--role", "client"][..], "warning", "nowhere.invalid has no address", "add `nowhere.invalid` to DNS"),
        (none, &for_others, "problem", "no address, and join strings name it", "amalgam token join --address"),
        (here, &["--role", "client"], "ok", "nowhere.invalid is 127.0.1.1", ""),
        (here, &for_others, "warning", "is a loopback address here", "add `nowhere.invalid` to DNS"),
        (right, &for_others, "ok", "nowhere.invalid is 192.0.2.7", ""),
    ] {
        fs::write(&hosts, text).unwrap();
        let (code, checks) = examined_after(&scene, &change, "host name", arguments);
        finds(&checks, result, found, remedy);
        assert!(code == 1 || result != "problem", "{checks:?}");
    }
}

#[test]
fn control_groups_that_cannot_be_used_are_found() {
    if !may_change_or_skip() {
        return;
    }
    if !fs::read_to_string("/proc/mounts").unwrap().contains(" /sys/fs/cgroup") {
        return println!("skipped: there are no cgroups at /sys/fs/cgroup");
    }
    let scene = Scene::new();
    // Version 2 in a group that was given no controllers.
    let empty = scene.write("empty", "");
    let bare = format!(
        "umount --lazy /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup\n\
         mount --bind {} /sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/cgroup.controllers",
        empty.display()
    );
    let closed =
        "for place in $(grep -o ' /sys/fs/cgroup[^ ]*' /proc/mounts); do mount -o remount,bind,ro $place; done";
    for (change, found) in [
        ("umount --lazy /sys/fs/cgroup", "none are mounted"),
        (closed, "where you may not create groups"),
        (&bare, "without the controllers cpu and memory"),
    ] {
        let (_, checks) = examined_after(&scene, change, "cgroups", &["--role", "agent"]);
        finds(&checks, "warning", found, "without cgroups, CPU is not limited and memory is only measured");
    }
}

#[test]
fn little_space_for_a_daemon_is_found() {
    if !may_change_or_skip() {
        return;
    }
    let scene = Scene::new();
    let (state, nodes) = (scene.state(), scene.path().join("node"));
    fs::create_dir(&nodes).unwrap();
    let of_agent = ["--role", "agent", "--work-dir", nodes.to_str().unwrap()];
    for (what, directory, arguments) in
        [("state directory", &state, &["--role", "server"][..]), ("work directory", &nodes, &of_agent)]
    {
        let place = format!("free in the {what} {}", directory.display());
        for (options, code, result, found, remedy) in [
            ("size=64m", 1, "problem", "64.0 MiB free", "free space on this file system"),
            ("size=4g", 0, "warning", "4.0 GiB free", "free space on this file system"),
            ("size=20g", 0, "ok", "20.0 GiB free", ""),
            ("size=20g,nr_inodes=500", 1, "problem", "499 inodes left, ", "remove files there"),
        ] {
            let change = format!("mount -t tmpfs -o {options} none {}", directory.display());
            let (exit, checks) = examined_after(&scene, &change, "disk", arguments);
            finds(&checks, result, found, remedy);
            finds(&checks, result, &place, remedy);
            // A machine on which the tests run may have other problems.
            assert!(exit >= code, "{checks:?}");
        }
    }
}

/// An authority that ends after this time, or has ended.
fn authority(path: &Path, ends: SystemTime) {
    fs::write(path, pem_of_authority(ends)).unwrap();
}

fn pem_of_authority(ends: SystemTime) -> String {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (params.not_before, params.not_after) = ((ends - 100 * DAY).into(), ends.into());
    let key = KeyPair::generate().unwrap();
    params.self_signed(&key).unwrap().pem()
}

#[test]
fn an_authority_that_ends_soon_is_found() {
    let scene = Scene::new();
    let path = scene.work().join("ca.pem");
    let arguments = ["--ca-file", path.to_str().unwrap()];
    let now = SystemTime::now();
    for (ends, code, result, found) in [
        (now + 90 * DAY, 0, "ok", "more days"),
        (now + 10 * DAY, 0, "warning", "ends in "),
        (now - 2 * DAY, 1, "problem", "ended "),
    ] {
        authority(&path, ends);
        let (exit, checks) = examined(&scene, "authority", &arguments);
        assert_eq!(exit, code, "{checks:?}");
        finds(&checks, result, found, if code == 0 && result == "ok" { "" } else { "copy ca.pem to each client" });
    }
    fs::write(&path, "nothing").unwrap();
    finds(&examined(&scene, "authority", &arguments).1, "problem", "contains no certificate", "copy ca.pem");
}

#[test]
fn the_certificate_of_a_server_is_verified_as_clients_do_it() {
    let scene = Scene::new();
    let port = free_port();
    let listen = format!("0.0.0.0:{port}");
    let server = scene.command(&["server", "--listen", &listen, "--listen-agents", "127.0.0.1:0"]);
    let _server = Daemon::start(server).unwrap();
    let there = format!("https://localhost:{port}");
    let own = scene.state().join("ca.pem");
    let (_, checks) = examined(&scene, "certificate", &["--server", &there, "--ca-file", own.to_str().unwrap()]);
    finds(&checks, "ok", &format!("localhost:{port} is valid for "), "");
    let other = scene.work().join("other.pem");
    authority(&other, SystemTime::now() + 90 * DAY);
    let (code, checks) = examined(&scene, "certificate", &["--server", &there, "--ca-file", other.to_str().unwrap()]);
    assert_eq!(code, 1);
    finds(&checks, "problem", "UnknownIssuer", "compare ");
}

#[test]
fn a_server_that_is_not_reached_is_a_problem_and_none_is_not() {
    let scene = Scene::new();
    let (code, server) = examined(&scene, "server", &[]);
    assert_eq!(code, 0, "{server:?}");
    finds(&server, "warning", "none runs on this machine", "--server");
    let there = format!("http://127.0.0.1:{}", free_port());
    let mut command = scene.command(&["doctor", "--json", "--server", &there]);
    command.env("AMALGAM_TOKEN", "token");
    let output = result(command);
    let checks: Vec<Value> = serde_json::from_str(&output.out).unwrap();
    assert_eq!(output.code, 1, "{checks:?}");
    finds(&checks, "problem", &there, "");
    assert!(checks.iter().all(|check| check["result"] == "ok" || check["remedy"] != ""), "{checks:?}");
}

/// The checks of these contexts, which are in the user's file.
fn of_contexts(scene: &Scene, mode: u32, text: &str) -> (i32, Vec<Value>) {
    let directory = scene.path().join("config/amalgam");
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join("contexts.toml");
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    let mut command = scene.command(&["doctor", "--json"]);
    command.env("XDG_CONFIG_HOME", scene.path().join("config"));
    examined_by(command, "contexts")
}

#[test]
fn contexts_that_no_longer_serve_are_found() {
    let scene = Scene::new();
    let listen = format!("0.0.0.0:{}", free_port());
    let server = scene.command(&["server", "--listen", &listen, "--listen-agents", "127.0.0.1:0"]);
    let _server = Daemon::start(server).unwrap();
    let there = format!("https://localhost:{}", listen.rsplit_once(':').unwrap().1);
    let token = scene.ok(&["token", "add", "grace"]);
    let own = fs::read_to_string(scene.state().join("ca.pem")).unwrap();
    let context = |name: &str, server: &str, token: &str, pem: &str| {
        format!(
            "[[context]]\nname = '{name}'\nserver = '{server}'\ntoken = '{}'\nauthorities = \'\'\'\n{pem}\'\'\'\n",
            token.trim()
        )
    };
    let (code, checks) = of_contexts(&scene, 0o600, &context("good", &there, &token, &own));
    assert_eq!(code, 0, "{checks:?}");
    finds(&checks, "ok", &format!("`good` is {there}, which answers"), "");

    let ended = pem_of_authority(SystemTime::now() - 2 * DAY);
    let soon = own.clone() + &pem_of_authority(SystemTime::now() - 2 * DAY);
    let gone = format!("http://127.0.0.1:{}", free_port());
    let jwt = "e30.eyJleHAiOjEwMDB9.x";
    let all = [
        context("good", &there, &token, &own),
        context("rotated", &there, &token, &soon),
        context("ended", &there, &token, &ended),
        context("other", &there, &token, &pem_of_authority(SystemTime::now() + 10 * DAY)),
        context("unknown", &there, "0123456789abcdef", &own),
        context("gone", &gone, &token, ""),
        context("issued", &there, jwt, &own),
    ];
    let (code, checks) = of_contexts(&scene, 0o600, &all.concat());
    assert_eq!(code, 1);
    let again = |name: &str| format!("amalgam login {there} --name {name}");
    finds(&checks, "ok", "`rotated` is ", "");
    finds(&checks, "problem", "the authority of `ended` ended ", &again("ended"));
    finds(&checks, "warning", "the authority of `other` ends in ", &again("other"));
    finds(&checks, "problem", "`other`: ", &again("other"));
    finds(&checks, "problem", "`unknown`: ", &again("unknown"));
    finds(&checks, "warning", "`gone`: ", "amalgam context remove gone");
    finds(&checks, "problem", "the token of `issued` ended ", "get a new token from its issuer");
    assert_eq!(checks.len(), 8, "{checks:?}");
    assert!(!format!("{checks:?}").contains(token.trim()));

    let (code, checks) = of_contexts(&scene, 0o644, &all[0]);
    assert_eq!((code, checks.len()), (1, 1));
    finds(&checks, "problem", "can be read by others (mode 644)", "chmod 600");
}

#[test]
fn a_named_directory_that_is_missing_is_a_problem() {
    let scene = Scene::new();
    let missing = scene.path().join("missing");
    let missing = missing.to_str().unwrap();
    for arguments in [["--work-dir", missing], ["--state-dir", missing]] {
        let (code, checks) = examined(&scene, "directory", &arguments);
        finds(&checks, "problem", "missing: No such file or directory", "check the path");
        assert_eq!(code, 1);
    }
}
