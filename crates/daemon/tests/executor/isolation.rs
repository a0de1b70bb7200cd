//! Tasks with `/tmp`, `/var/tmp` and `/dev/shm` of their own.

use crate::agent::{Agent, Home, PROGRAM, change, change_program, sh};
use crate::users::{ONE, OTHER, home_or_skip};
use amalgam_core::protocol::{TaskSignal, ToExecutor};
use amalgam_core::vocabulary::*;
use amalgam_daemon::executor::{EnforcementChoice, output_path};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A task that is isolated, in a directory of its own.
fn isolated(number: u32, script: &str) -> LaunchOrder {
    let mut order = sh(number, script);
    let program = change_program(&mut order);
    (program.isolation, program.workdir) = (Some(Isolation::PrivateTmp), Workdir::Own);
    order
}

pub fn of_user(user: &str, mut order: LaunchOrder) -> LaunchOrder {
    change(&mut order).account = Some(user.to_owned());
    order
}

pub fn why(ended: Ended) -> String {
    match ended.reason {
        EndReason::LaunchFailed(why) => why,
        other => panic!("it was launched: {other}"),
    }
}

/// The directories that a task has of its own. Small systems have only the first.
fn private_places() -> Vec<&'static str> {
    ["/tmp", "/var/tmp", "/dev/shm"].into_iter().filter(|place| Path::new(place).is_dir()).collect()
}

/// The mounts of a process, by their places.
fn mounts(process: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap();
    text.lines().map(|line| line.split(' ').nth(4).unwrap().to_owned()).collect()
}

/// Runs two tasks at the same time, which write to all private places and list what they see there.
pub fn two_tasks_do_not_see_each_other(home: &Home, agent: &mut Agent, orders: impl Fn(u32, &str) -> LaunchOrder) {
    let places = private_places();
    let mark = format!("amalgam-of-{}", home.state.parent().unwrap().file_name().unwrap().to_str().unwrap());
    let before = mounts("self");
    let of_executor = mounts(&agent.hello.pid.to_string());
    let script = |name: &str, last: &str| {
        let lines: Vec<String> = places
            .iter()
            .map(|place| format!("touch {place}/{mark}-{name} && echo {place}: $(ls {place} | grep {mark})"))
            .collect();
        format!("{} && touch scratch \"$TMPDIR/mine\" && pwd && echo ready; {last}", lines.join(" && "))
    };
    let running = agent.start(orders(1, &script("one", "sleep 100")));
    home.wait_until("the first task is ready", || {
        let output = fs::read_to_string(output_path(&home.state, running, Stream::Stdout)).unwrap_or_default();
        let errors = fs::read_to_string(output_path(&home.state, running, Stream::Stderr)).unwrap_or_default();
        assert_eq!(errors, "");
        output.contains("ready")
    });
    let ended = agent.run(orders(2, &script("two", "exit 7")));
    assert_eq!(ended.reason, EndReason::Exit(7), "{ended:?}: {}", home.output(2, Stream::Stderr));
    for (number, name) in [(1, "one"), (2, "two")] {
        let output = home.output(number, Stream::Stdout);
        for place in &places {
            assert!(output.contains(&format!("{place}: {mark}-{name}\n")), "only its own file: {output}");
        }
    }
    for place in &places {
        let left: Vec<_> = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().starts_with(&mark)), "on the node: {left:?}");
    }
    assert_eq!(mounts("self"), before);
    assert_eq!(mounts(&agent.hello.pid.to_string()), of_executor);
    agent.send(ToExecutor::Signal { attempt: running, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
    assert_eq!(agent.end_of(running).reason, EndReason::Cancelled);
    home.wait_until("the scratch directories are empty", || home.scratch_files() == 0);
}

#[test]
fn tasks_of_the_executors_user_have_directories_of_their_own() {
    for enforcement in [EnforcementChoice::Auto, EnforcementChoice::None] {
        let home = Home::new(enforcement);
        let mut agent = home.agent();
        let ended = agent.run(isolated(9, "true"));
        if let EndReason::LaunchFailed(why) = &ended.reason {
            return println!("skipped: {why}");
        }
        two_tasks_do_not_see_each_other(&home, &mut agent, isolated);
    }
}

#[test]
fn tasks_of_other_users_have_directories_of_their_own() {
    let Some(home) = home_or_skip(false) else { return };
    let mut agent = home.agent();
    let user = |number: u32| if number == 1 { ONE } else { OTHER };
    two_tasks_do_not_see_each_other(&home, &mut agent, |number, script| {
        of_user(user(number), isolated(number, script))
    });
    let Some(home) = home_or_skip(false) else { return };
    let mut agent = home.agent();
    two_tasks_do_not_see_each_other(&home, &mut agent, |number, script| of_user(ONE, isolated(number, script)));
    let script = "id -un; stat -c %a /tmp; umount /tmp 2> /dev/null || echo kept";
    assert_eq!(agent.run(of_user(ONE, isolated(30, script))).reason, EndReason::Exit(0));
    let output = home.output(30, Stream::Stdout);
    assert!(output.starts_with(ONE) && output.ends_with("1777\nkept\n"), "{output}");
}

/// What isolated tasks see of a directory below `/tmp`, which is the directory of the submission.
#[test]
fn the_working_directory_stays_where_it_is_and_nothing_beside_it() {
    let Some(home) = home_or_skip(false) else { return };
    let mut agent = home.agent();
    let place = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let directory = |name: &str, mode: u32| {
        let path = place.path().join(name);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("file"), name).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (shared, beside) = (directory("shared", 0o777), directory("beside", 0o777));
    let run_in = |agent: &mut Agent, number: u32, directory: &str, script: &str| {
        let mut order = of_user(ONE, isolated(number, script));
        change_program(&mut order).workdir = Workdir::Path(directory.into());
        agent.run(order)
    };
    let script = format!(
        "cat file; echo made > made; ls {} ..; ls {beside} 2> /dev/null || echo hidden",
        place.path().display()
    );
    assert_eq!(run_in(&mut agent, 1, &shared, &script).reason, EndReason::Exit(0));
    let expected = format!("shared..:\nshared\n\n{}:\nshared\nhidden\n", place.path().display());
    let output = home.output(1, Stream::Stdout);
    let mut parts: Vec<&str> = output.lines().collect();
    let mut wanted: Vec<&str> = expected.lines().collect();
    parts.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(parts, wanted);
    assert_eq!(fs::read_to_string(format!("{shared}/made")).unwrap(), "made\n", "it is the directory of the node");

    // A mount does not lead past directories that the user cannot pass.
    let inner = directory("closed/inner", 0o777);
    directory("closed", 0o700);
    let refused = why(run_in(&mut agent, 2, &inner, "cat file"));
    assert!(refused.contains("cannot enter the directory") && refused.contains("Permission denied"), "{refused}");
    let missing = why(run_in(&mut agent, 3, &format!("{shared}/none"), "true"));
    assert!(missing.contains("this node has no directory"), "{missing}");
    let program = format!("{beside}/program");
    fs::write(&program, "#!/bin/sh\nexit 0\n").unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let mut order = of_user(ONE, isolated(4, ""));
    change_program(&mut order).command = vec![program.as_str().into()];
    let hidden = why(agent.run(order));
    assert!(hidden.contains("has a /tmp of its own") && hidden.contains("--isolation none"), "{hidden}");
}

#[test]
fn a_task_that_uses_the_name_of_its_private_directory_reaches_nobody_elses() {
    let Some(home) = home_or_skip(false) else { return };
    let mut agent = home.agent();
    // A task replaces the directory that is its `/tmp`; later ones of the same user have other directories.
    let script = "mv \"$TMPDIR/tmp\" \"$TMPDIR/was\" 2> /dev/null; ln -s /etc \"$TMPDIR/tmp\"; ls /tmp/passwd 2> /dev/null; echo done";
    assert_eq!(agent.run(of_user(ONE, isolated(1, script))).reason, EndReason::Exit(0));
    assert_eq!(home.output(1, Stream::Stdout), "done\n");
    assert_eq!(agent.run(of_user(ONE, isolated(2, "ls -A /tmp | grep -v amalgam; true"))).reason, EndReason::Exit(0));
    home.wait_until("the scratch directories are empty", || home.scratch_files() == 0);
    assert!(Path::new("/etc/passwd").exists());
}

/// Runs this in a thread whose children cannot mount. Only this thread loses the capability. Without root, it is skipped.
pub fn without_mounting(test: impl FnOnce() + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: this needs root");
    }
    let test = || {
        const CAP_SYS_ADMIN: libc::c_ulong = 21;
        // SAFETY: a plain system call that changes this thread and its children only.
        assert_eq!(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0) }, 0);
        test();
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn a_node_that_cannot_isolate_tasks_says_what_to_do() {
    without_mounting(|| {
        let home = Home::new(EnforcementChoice::None);
        let mut agent = home.agent();
        let why = why(agent.run(isolated(1, "true")));
        assert!(why.contains("this node cannot isolate tasks") && why.contains("CAP_SYS_ADMIN"), "{why}");
        assert_eq!(agent.run(sh(2, "exit 3")).reason, EndReason::Exit(3), "others run");
        home.wait_until("the scratch directories are empty", || home.scratch_files() == 0);
    });
}

/// Runs a test with an executor of a user without privileges, in a thread, which becomes that user.
pub fn without_privileges(test: impl FnOnce(&Home, &mut Agent) + Send + 'static) {
    without_privileges_after(|| {}, test);
}

/// As [`without_privileges`], and the thread does something as root before.
pub fn without_privileges_after(
    before: impl FnOnce() + Send + 'static,
    test: impl FnOnce(&Home, &mut Agent) + Send + 'static,
) {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: this needs root, to become another user");
    }
    let test = || {
        before();
        let home = Home::new(EnforcementChoice::None);
        let above = home.state.parent().unwrap();
        let program = above.join("executor");
        fs::copy(PROGRAM, &program).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        for path in [above, &home.state] {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        // SAFETY: plain system calls. Made directly, they change this thread and its children only.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), 0);
            assert_eq!(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY), 0);
            assert_eq!(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY), 0);
        }
        let mut agent = home.agent_by(&program);
        match agent.run(isolated(90, "true")).reason {
            EndReason::LaunchFailed(why) => {
                assert!(why.contains("sysctl user.max_user_namespaces"), "{why}");
                println!("no namespaces of users here: {why}");
            }
            ended => {
                assert_eq!(ended, EndReason::Exit(0));
                test(&home, &mut agent);
            }
        }
    };
    std::thread::spawn(test).join().unwrap();
}

pub const NOBODY: u32 = 65_534;

/// An executor that is not root uses a namespace of users.
#[test]
fn tasks_of_an_executor_without_privileges_are_isolated() {
    without_privileges(|home, agent| {
        assert_eq!(agent.run(isolated(9, "id -u; test -w /tmp")).reason, EndReason::Exit(0));
        assert_eq!(home.output(9, Stream::Stdout), format!("{NOBODY}\n"));
        two_tasks_do_not_see_each_other(home, agent, isolated);
    });
}
