//! Tasks that run as their job's user. These tests need root, and two accounts that every system has.

use crate::agent::{Agent, Home, PROGRAM, change, change_program, exists, patience, sh};
use amalgam_core::protocol::{ExecutorReport, TaskSignal, ToExecutor};
use amalgam_core::vocabulary::*;
use amalgam_daemon::executor::{EnforcementChoice, RunAs, own_dir};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

pub const ONE: &str = "daemon";
pub const OTHER: &str = "nobody";

/// An executor that runs tasks as their job's user; `None` if this is not root or the accounts do not exist.
pub fn home_or_skip(allows_root: bool) -> Option<Home> {
    let has_accounts = [ONE, OTHER].into_iter().all(|name| id(&["-u", name]).is_some());
    if !rustix::process::geteuid().is_root() || !has_accounts {
        println!("skipped: this needs root and the accounts {ONE} and {OTHER}");
        return None;
    }
    let mut home = Home::new(EnforcementChoice::Auto);
    home.config.run_as = RunAs::JobUser { allows_root };
    // The directory of the test is closed to others.
    fs::set_permissions(home.state.parent().unwrap(), PermissionsExt::from_mode(0o711)).unwrap();
    Some(home)
}

fn id(arguments: &[&str]) -> Option<String> {
    let output = Command::new("id").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

/// A task of this user in a directory of its own.
pub fn task(number: u32, user: &str, script: &str) -> LaunchOrder {
    let mut order = sh(number, script);
    change(&mut order).account = Some(user.to_owned());
    change_program(&mut order).workdir = Workdir::Own;
    order
}

/// Writes a file as agents do.
fn secret(home: &Home) {
    let path = home.state.join("secret");
    fs::write(&path, "of the agent").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
}

#[test]
fn a_task_has_the_ids_groups_environment_and_umask_of_its_user() {
    let Some(home) = home_or_skip(false) else { return };
    let mut agent = home.agent();
    for (number, user) in [(1, ONE), (2, OTHER)] {
        let script = "id -u; id -g; id -G | tr ' ' '\\n' | sort -n | xargs; echo $USER $LOGNAME $HOME; umask; \
                      cat /proc/self/status | grep -E 'CapEff|NoNewPrivs'; touch made; echo told > /dev/stderr";
        let mut order = task(number, user, script);
        let ended = agent.run(order.clone());
        assert_eq!(ended.reason, EndReason::Exit(0), "{ended:?}");
        let output = home.output(number, Stream::Stdout);
        let lines: Vec<&str> = output.lines().collect();
        let mut groups: Vec<u32> = id(&["-G", user]).unwrap().split(' ').map(|group| group.parse().unwrap()).collect();
        groups.sort_unstable();
        let groups: Vec<String> = groups.iter().map(u32::to_string).collect();
        assert_eq!(lines[..3], [id(&["-u", user]).unwrap(), id(&["-g", user]).unwrap(), groups.join(" ")]);
        assert!(lines[3].starts_with(&format!("{user} {user} /")) && lines[4] == "0022", "{lines:?}");
        assert_eq!(lines[5], "CapEff:\t0000000000000000");
        assert_eq!(home.output(number, Stream::Stderr), "told\n", "it may open its streams by their paths");
        let made = fs::metadata(own_dir(&home.state, order.attempt).join("made")).unwrap();
        assert_eq!(made.uid().to_string(), lines[0]);

        order.attempt.number += 10;
        change_program(&mut order).umask = Some(0o027);
        assert_eq!(agent.run(order).reason, EndReason::Exit(0));
        assert_eq!(home.output(number + 10, Stream::Stdout).lines().nth(4), Some("0027"));
    }
}

#[test]
fn users_cannot_read_change_or_signal_what_others_have() {
    let Some(home) = home_or_skip(false) else { return };
    let mut agent = home.agent();
    secret(&home);
    let ready = "echo secret > \"$TMPDIR/mine\"; echo secret > mine; chmod 644 mine; echo $TMPDIR; echo $$; echo ready; sleep 100";
    let running = agent.start(task(1, ONE, ready));
    home.wait_until("the task is ready", || {
        fs::read_to_string(amalgam_daemon::executor::output_path(&home.state, running, Stream::Stdout))
            .is_ok_and(|text| text.contains("ready"))
    });
    let told = home.output(1, Stream::Stdout);
    let (scratch, pid) = (told.lines().next().unwrap(), told.lines().nth(1).unwrap());
    let own = own_dir(&home.state, running);
    let state = home.state.display();
    let executor = agent.hello.pid;
    let attempts = [
        format!("cat {}/mine", own.display()),
        format!("ls {}", own.display()),
        format!("cat {scratch}/mine"),
        format!("cat /proc/{pid}/environ"),
        format!("ls -l /proc/{pid}/cwd/"),
        format!("kill -9 {pid}"),
        format!("kill -STOP {executor}"),
        format!("cat /proc/{executor}/environ"),
        format!("ls {state}"),
        format!("ls {state}/own"),
        format!("ls {state}/tasks"),
        format!("cat {state}/secret"),
        format!("cat {state}/executor.log"),
        format!("ls {state}/output"),
        format!("echo x > {state}/socket"),
        format!("touch {state}/made"),
        format!("touch {state}/tasks/made"),
        format!("ln {}/mine stolen", own.display()),
    ];
    let script: String = attempts
        .iter()
        .map(|attempt| format!("if ( {attempt} ) 2> /dev/null; then echo \"{attempt}\"; fi; "))
        .collect();
    let ended = agent.run(task(2, OTHER, &format!("{script} echo done")));
    assert_eq!(ended.reason, EndReason::Exit(0), "{ended:?}");
    assert_eq!(home.output(2, Stream::Stdout), "done\n");
    assert!(exists(pid.parse().unwrap()) && exists(executor as i32));
    agent.send(ToExecutor::Signal { attempt: running, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
    assert_eq!(agent.end_of(running).reason, EndReason::Cancelled);
}

#[test]
fn jobs_without_an_account_and_of_root_are_refused_with_the_reason() {
    let Some(home) = home_or_skip(false) else { return };
    let mut agent = home.agent();
    let mut why = |number, user| match agent.run(task(number, user, ":")).reason {
        EndReason::LaunchFailed(why) => why,
        other => panic!("it was launched: {other}"),
    };
    let unknown = why(1, "no-such-user");
    assert!(unknown.contains("the user no-such-user has no account on this node"), "{unknown}");
    let root = why(2, "root");
    assert!(root.contains("--allow-root"), "{root}");
    let EndReason::LaunchFailed(unnamed) = agent.run(sh(3, ":")).reason else {
        panic!("a task without an account runs")
    };
    assert!(unnamed.contains("records no accounts"), "{unnamed}");

    let Some(home) = home_or_skip(true) else { return };
    let mut agent = home.agent();
    assert_eq!(agent.run(task(1, "root", "id -u")).reason, EndReason::Exit(0));
    assert_eq!(home.output(1, Stream::Stdout), "0\n");
}

#[test]
fn a_program_that_its_user_cannot_execute_is_explained() {
    let Some(home) = home_or_skip(false) else { return };
    let mut agent = home.agent();
    let shared = tempfile::tempdir().unwrap();
    fs::set_permissions(shared.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let file = |name: &str, text: &[u8], mode: u32| {
        let path = shared.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let mut number = 0;
    let mut run = |agent: &mut Agent, command: &[&str]| {
        number += 1;
        let mut order = task(number, ONE, "");
        change_program(&mut order).command = command.iter().map(|part| (*part).into()).collect();
        change_program(&mut order).env =
            vec![("PATH".into(), format!("{}:/usr/bin:/bin", shared.path().display()).as_str().into())];
        agent.run(order).reason
    };
    let mut why = |agent: &mut Agent, command: &[&str]| match run(agent, command) {
        EndReason::LaunchFailed(why) => why,
        other => panic!("{command:?}: {other}"),
    };
    let closed = file("closed", b"#!/bin/sh\nexit 0\n", 0o700);
    let plain = file("plain", b"#!/bin/sh\nexit 0\n", 0o644);
    let damaged = file("damaged", b"\x7fELF damaged", 0o755);
    for (command, expected) in [
        (&["no-such-command"][..], "the command `no-such-command` was not found on this node; PATH is"),
        (&["/no/such/program"], "does not exist on this node"),
        (&[closed.as_str()], "has no permission"),
        (&["closed"], "has no permission"),
        (&[plain.as_str()], "is not executable"),
        (&["plain"], "is not executable"),
        (&[damaged.as_str()], "damaged"),
        (&["/root"], "is a directory"),
    ] {
        let why = why(&mut agent, command);
        assert!(why.contains(expected), "{command:?}: {why}");
    }
    let script = file("script", b"echo as $(id -un) \"$@\" from $0\n", 0o755);
    assert_eq!(run(&mut agent, &["script", "a", "b"]), EndReason::Exit(0));
    assert_eq!(home.output(number, Stream::Stdout), format!("as {ONE} a b from {script}\n"));

    let mut elsewhere = task(100, ONE, ":");
    change_program(&mut elsewhere).workdir = Workdir::Path("/root".into());
    let EndReason::LaunchFailed(why) = agent.run(elsewhere).reason else { panic!("it entered /root") };
    assert!(why.contains("cannot enter the directory /root"), "{why}");
}

#[test]
fn a_user_who_stops_processes_that_start_stops_nobody_else() {
    let Some(home) = home_or_skip(false) else { return };
    let mut agent = home.agent();
    // It stops the executor's other processes as soon as its user may.
    let stops = "while :; do for child in $(cat /proc/$PPID/task/$PPID/children); do \
                 [ $child = $$ ] || kill -STOP $child 2> /dev/null; done; done";
    let hostile = agent.start(task(1, ONE, stops));
    let mut of_hostile: Vec<LaunchOrder> = (2..42).map(|number| task(number, ONE, "true")).collect();
    for (number, order) in of_hostile.drain(..).enumerate() {
        agent.send(ToExecutor::Launch(Box::new(order)));
        let ended = agent.run(task(1_000 + number as u32, OTHER, "true"));
        assert_eq!(ended.reason, EndReason::Exit(0));
        assert!(ended.usage.wall.as_millis() < 5_000, "{}", ended.usage.wall);
    }
    agent.send(ToExecutor::Signal { attempt: hostile, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
    for number in 2..42 {
        let attempt = AttemptId { number, ..hostile };
        agent.send(ToExecutor::Signal { attempt, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
        agent.end_of(attempt);
    }
    agent.end_of(hostile);
}

#[test]
fn leftovers_of_a_users_task_are_killed() {
    let Some(home) = home_or_skip(false) else { return };
    let mut agent = home.agent();
    let script = "(env -i setsid /bin/sh -c 'echo $$ > left; exec /bin/sleep 100' &); sleep 100 & echo $!; \
                  until [ -s left ]; do sleep 0.1; done; cat left";
    assert_eq!(agent.run(task(1, ONE, script)).reason, EndReason::Exit(0));
    let output = home.output(1, Stream::Stdout);
    let pids: Vec<i32> = output.lines().map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.len() == 2 && !pids.iter().any(|pid| exists(*pid)), "{pids:?}");
}

#[test]
fn outputs_become_the_nodes_and_links_to_files_of_others_are_refused() {
    let Some(home) = home_or_skip(false) else { return };
    let mut agent = home.agent();
    let writes = |number, script: &str| {
        let mut order = task(number, ONE, script);
        change(&mut order).outputs = vec!["result".to_owned()];
        order
    };
    let ended = agent.run(writes(1, "echo mine > result; chmod 666 result"));
    let outputs = ended.files.unwrap().outputs;
    let stored = home.state.join("files/1").join(outputs[0].digest.to_string());
    let found = fs::metadata(&stored).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o777), (0, 0o444));

    // Another user's task reads it and cannot change it.
    let mut reader = task(
        2,
        OTHER,
        "cat inputs/a/0/result; (echo x >> inputs/a/0/result) 2> /dev/null; touch inputs/new; chmod 600 inputs/a/0/result",
    );
    reader.inputs = Arc::new([InputFile {
        path: "inputs/a/0/result".to_owned(),
        digest: outputs[0].digest,
        bytes: outputs[0].bytes,
        holders: Vec::new(),
    }]);
    let ended = agent.run(reader);
    assert_eq!(ended.reason, EndReason::Exit(1), "chmod fails: {ended:?}");
    assert_eq!(
        (home.output(2, Stream::Stdout).as_str(), fs::read_to_string(&stored).unwrap().as_str()),
        ("mine\n", "mine\n")
    );

    secret(&home);
    for (number, script) in [(3, "ln -s ../../../secret result"), (4, "ln -s /etc/shadow result"), (5, "mkfifo result")]
    {
        let ended = agent.run(writes(number, script));
        assert!(matches!(&ended.reason, EndReason::NoOutput(why) if why.contains("not a regular file")), "{ended:?}");
    }
    // Neither are programs in directories that only another process of root may enter.
    let mut looks = task(7, ONE, "");
    change_program(&mut looks).command = vec![format!("/proc/{}/root/etc/shadow", std::process::id()).as_str().into()];
    let EndReason::LaunchFailed(why) = agent.run(looks).reason else { panic!("it was launched") };
    assert!(!why.contains("is not executable"), "the executor followed a link of root: {why}");
    // The message and the progress of a task are read with the user's rights.
    let secret = home.state.join("secret");
    let script = format!("ln -s {0} $AMALGAM_ERROR_FILE; ln -s {0} $AMALGAM_PROGRESS_FILE; exit 1", secret.display());
    assert_eq!(agent.run(task(6, ONE, &script)).message, None);
}

/// An executor that finds these files in the place of the machine's limits of users.
fn executor_with_limits(home: &Home, conf: &str, of_directory: &str) -> PathBuf {
    let above = home.state.parent().unwrap();
    let (security, executor) = (above.join("security"), above.join("executor"));
    fs::create_dir_all(security.join("limits.d")).unwrap();
    fs::write(security.join("limits.conf"), conf).unwrap();
    fs::write(security.join("limits.d/10.conf"), of_directory).unwrap();
    let start = format!(
        "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind {} /etc/security && exec {PROGRAM} \"$@\"' executor \"$@\"\n",
        security.display()
    );
    fs::write(&executor, start).unwrap();
    fs::set_permissions(&executor, PermissionsExt::from_mode(0o755)).unwrap();
    executor
}

#[test]
fn a_task_has_the_limits_that_the_machine_sets_for_its_user() {
    let Some(home) = home_or_skip(true) else { return };
    let made = Command::new("unshare").args(["--mount", "test", "-d", "/etc/security"]).status();
    if !made.is_ok_and(|made| made.success()) {
        return println!("skipped: this needs /etc/security and namespaces of mounts");
    }
    let conf = format!("* - nofile 300\n{ONE} soft nofile 123\n{ONE} hard nofile 456\n{ONE} - nproc 2001\n");
    let of_directory = format!("@{} hard nproc 1009\n", id(&["-gn", OTHER]).unwrap());
    let mut agent = home.agent_by(&executor_with_limits(&home, &conf, &of_directory));
    let script = "ulimit -Sn; ulimit -Hn; sed -n 's/^Max processes *//p' /proc/self/limits | xargs";
    let mut limits = |number, user: &str| {
        let ended = agent.run(task(number, user, script));
        assert_eq!(ended.reason, EndReason::Exit(0), "{ended:?}");
        home.output(number, Stream::Stdout).trim().replace('\n', " ")
    };
    assert_eq!(limits(1, ONE), "123 456 2001 2001 processes");
    assert_eq!(limits(2, OTHER), "300 300 1009 1009 processes");
    // Lines for everybody and for groups are not for root: its tasks have the limits of the executor.
    let own = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let of_executor =
        [own.current, own.maximum].map(|most| most.map_or("unlimited".to_owned(), |most| most.to_string()));
    assert!(limits(3, "root").starts_with(&format!("{} ", of_executor.join(" "))), "{of_executor:?}");
}

#[test]
fn a_message_of_a_users_task_is_reported() {
    let Some(home) = home_or_skip(false) else { return };
    let ended = home.agent().run(task(1, ONE, "umask 077; echo 'no licence' > $AMALGAM_ERROR_FILE; exit 3"));
    assert_eq!((ended.reason, ended.message.as_deref()), (EndReason::Exit(3), Some("no licence")));
}

#[test]
fn directories_stay_reachable_when_an_agent_returns() {
    let Some(home) = home_or_skip(false) else { return };
    let mut agent = home.agent();
    let running = agent.start(task(1, ONE, "until [ -e go ]; do sleep 0.05; done; echo here > later; cat later"));
    drop(agent);
    let _lock = amalgam_daemon::executor::claim(&home.state).unwrap();
    let mut agent = home.agent();
    agent.send(ToExecutor::List { node: NodeId(1) });
    match agent.report_within(patience(20)) {
        Some(ExecutorReport::Executing { attempts }) => assert_eq!(attempts.len(), 1),
        other => panic!("expected the attempt: {other:?}"),
    }
    fs::write(own_dir(&home.state, running).join("go"), "").unwrap();
    assert_eq!(agent.end_of(running).reason, EndReason::Exit(0));
    assert_eq!(home.output(1, Stream::Stdout), "here\n");
}
