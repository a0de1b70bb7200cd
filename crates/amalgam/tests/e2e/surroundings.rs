//! What daemons and tasks inherit from the process that started the daemon, and what they do not.

use crate::support::{Scene, until_true};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variables of a task whose job sets none.
const VARIABLES: [&str; 23] = [
    "AMALGAM_ATTEMPT",
    "AMALGAM_COUNT",
    "AMALGAM_CPUS",
    "AMALGAM_ERROR_FILE",
    "AMALGAM_EXECUTION",
    "AMALGAM_GPUS",
    "AMALGAM_INDEX",
    "AMALGAM_JOB_ID",
    "AMALGAM_JOB_NAME",
    "AMALGAM_MEM_BYTES",
    "AMALGAM_NODE",
    "AMALGAM_PROGRESS_FILE",
    "AMALGAM_STAGE",
    "AMALGAM_SUBMIT_DIR",
    "AMALGAM_TASK_DIR",
    "AMALGAM_TASK_ID",
    "HOME",
    "LC_ALL",
    "OMP_NUM_THREADS",
    "PATH",
    "PWD",
    "TMPDIR",
    "USER",
];

/// Started as from a shell in another directory that holds a lock, and that ignores and blocks all possible signals.
fn burdened(mut command: Command, lock: &File) -> Command {
    for (name, value) in [
        ("PWD", "/somewhere"),
        ("OLDPWD", "/elsewhere"),
        ("SECRET", "s"),
        ("AMALGAM_SECRET", "s"),
        ("LC_ALL", "C"),
        ("HOME", "/home/ada"),
        ("LISTEN_FDS", "7"),
    ] {
        command.env(name, value);
    }
    let lock = lock.as_raw_fd();
    // SAFETY: all of these are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            libc::dup2(lock, 9);
            let mut all: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGPIPE, libc::SIGCHLD, libc::SIGTERM] {
                libc::signal(signal, libc::SIG_IGN);
            }
            Ok(())
        });
    }
    command
}

/// The open files of a process.
fn open_in(pid: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
}

fn assert_little_is_found(output: &str, work: &Path) {
    let lines: Vec<&str> = output.lines().collect();
    let (variables, rest) = lines.split_at(lines.iter().position(|line| *line == "-").unwrap());
    let names: BTreeSet<&str> = variables.iter().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    // A shell sets some itself.
    let names: Vec<&str> = names.into_iter().filter(|name| !["_", "SHLVL"].contains(name)).collect();
    assert_eq!(names, VARIABLES, "{output}");
    for line in [format!("PWD={}", work.display()), "HOME=/home/ada".to_owned(), "LC_ALL=C".to_owned()] {
        assert!(variables.contains(&line.as_str()), "{line} is missing in {output}");
    }
    let none = "0000000000000000";
    // The last is the directory that is listed.
    assert_eq!(rest, ["-", "0 1 2 3", &format!("SigBlk:\t{none}"), &format!("SigIgn:\t{none}")], "{output}");
}

/// The shell reads its own mask itself, because it briefly blocks all signals while it starts a program.
const LOOK: &str = "env; echo -; echo $(ls /proc/self/fd); \
    while read -r line; do case $line in SigBlk*|SigIgn*) echo \"$line\";; esac; done < /proc/$$/status";

#[test]
fn daemons_and_tasks_inherit_nothing_from_the_starting_process() {
    let scene = Scene::new();
    let lock = File::create(scene.path().join("lock")).unwrap();
    let state = scene.state();
    scene.start(burdened(scene.command(&["dev", "--listen", "127.0.0.1:0"]), &lock), &state);
    let mut command = scene.command(&["run", "--", "sh", "-c", LOOK]);
    let sub = scene.work().join("sub");
    fs::create_dir(&sub).unwrap();
    command.current_dir(&sub);
    let result = crate::support::result(command);
    assert_eq!(result.code, 0, "{result:?}");
    assert_little_is_found(&result.out, &sub);
    let executor = fs::read_to_string(state.join("executor/executor.lock")).unwrap();
    let daemon = scene.daemons.borrow_mut().pop().unwrap();
    for pid in [executor.trim(), &daemon.pid().to_string()] {
        let open = open_in(pid);
        assert!(open.len() > 3 && !open.contains(&scene.path().join("lock")), "{open:?}");
    }
    assert!(daemon.stop().success(), "it can be told to end");
}

#[test]
fn a_cluster_for_one_run_is_as_clean() {
    let scene = Scene::new();
    let lock = File::create(scene.path().join("lock")).unwrap();
    let script = format!("{LOOK}; cat /proc/$PPID/cmdline > executor; ls -l /proc/$PPID/fd > open");
    let result = crate::support::result(burdened(scene.command(&["run", "--", "sh", "-c", &script]), &lock));
    assert_eq!(result.code, 0, "{result:?}");
    assert_little_is_found(&result.out, &scene.work());
    assert!(scene.read("executor").contains("executor"));
    let open = scene.read("open");
    assert!(open.contains("socket:") && !open.contains("/lock\n"), "{open}");
}

#[test]
fn a_file_may_come_through_a_descriptor_that_an_argument_names() {
    let scene = Scene::new();
    let mut command = Command::new("bash");
    let script = "exec \"$0\" run --each-line <(echo from a pipe) -- sh -c 'echo $AMALGAM_ITEM'";
    command.args(["-c", script, env!("CARGO_BIN_EXE_amalgam")]);
    let template = scene.command(&[]);
    command.env_clear().envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(scene.work());
    let result = crate::support::result(command);
    assert_eq!((result.code, result.out.as_str()), (0, "from a pipe\n"), "{result:?}");
}

#[test]
fn tasks_are_not_spared_although_their_daemon_is() {
    let scene = Scene::new();
    let mut command = scene.command(&["dev", "--listen", "127.0.0.1:0"]);
    // SAFETY: both are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            libc::write(file, c"-500".as_ptr().cast(), 4);
            Ok(())
        });
    }
    scene.start(command, &scene.state());
    let executor = fs::read_to_string(scene.state().join("executor/executor.lock")).unwrap();
    let of = |pid: &str| fs::read_to_string(format!("/proc/{}/oom_score_adj", pid.trim())).unwrap();
    if of(&executor) != "-500\n" {
        return println!("skipped: nothing can be spared here");
    }
    let id = scene.submit(&["--", "sh", "-c", "echo $$ > pid; exec sleep 300"]);
    let pid = scene.line_in("pid");
    assert_eq!((of(&pid).as_str(), of(&executor).as_str()), ("0\n", "-500\n"));
    scene.ok(&["cancel", &id]);
    until_true("the task's end", || !crate::support::is_alive(&pid));
}
