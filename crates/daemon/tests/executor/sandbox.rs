//! Tasks in a sandbox: how they end, and what they can do to their node and to other tasks.

use crate::agent::{Agent, Home, PROGRAM, cgroups_or_skip, change_program, change_shape, order, sh, sleeping};
use crate::isolation::{
    NOBODY, of_user, two_tasks_do_not_see_each_other, why, without_mounting, without_privileges,
    without_privileges_after,
};
use crate::users::{ONE, OTHER, home_or_skip};
use amalgam_core::protocol::{TaskSignal, ToExecutor};
use amalgam_core::vocabulary::*;
use amalgam_daemon::executor::{EnforcementChoice, output_path, own_dir};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn in_sandbox(mut order: LaunchOrder) -> LaunchOrder {
    change_program(&mut order).isolation = Some(Isolation::Sandbox);
    order
}

/// A task in a sandbox, in a directory of its own.
fn sandboxed(number: u32, script: &str) -> LaunchOrder {
    let mut order = in_sandbox(sh(number, script));
    change_program(&mut order).workdir = Workdir::Own;
    order
}

/// An executor of this test's user that can start sandboxes.
fn usual(enforcement: EnforcementChoice) -> Option<(Home, Agent)> {
    let home = Home::new(enforcement);
    let mut agent = home.agent();
    match agent.run(sandboxed(99, "true")).reason {
        EndReason::LaunchFailed(why) => {
            println!("skipped: {why}");
            None
        }
        ended => {
            assert_eq!(ended, EndReason::Exit(0));
            Some((home, agent))
        }
    }
}

fn ready(home: &Home, attempt: AttemptId) {
    home.wait_until("the task is ready", || {
        let output = fs::read_to_string(output_path(&home.state, attempt, Stream::Stdout)).unwrap_or_default();
        output.contains("ready")
    });
}

/// The same tasks without and with a sandbox end in the same way.
fn ends_are_the_same(home: &Home, agent: &mut Agent, change: impl Fn(LaunchOrder) -> LaunchOrder) {
    let own = |mut order: LaunchOrder| {
        change_program(&mut order).workdir = Workdir::Own;
        change(order)
    };
    let scripts = [
        ("exit 0", EndReason::Exit(0)),
        ("echo out; echo err >&2; exit 3", EndReason::Exit(3)),
        ("kill -SEGV $$", EndReason::Signal(11)),
        ("kill -KILL $$", EndReason::Signal(9)),
        ("kill -TERM $$", EndReason::Signal(15)),
        ("kill -TERM 0; sleep 100", EndReason::Signal(15)),
        ("kill -HUP $$", EndReason::Signal(1)),
        // Processes that remain are killed, and the first process does not end with them.
        ("(setsid sleep 100 &) ; sleep 100 & exit 4", EndReason::Exit(4)),
        ("(exit 7) & (sh -c 'exit 8' &); sleep 0.1; wait; exit 5", EndReason::Exit(5)),
    ];
    for (place, (script, expected)) in scripts.iter().enumerate() {
        let number = 100 + place as u32 * 2;
        let plain = agent.run(own(sh(number, script)));
        let ended = agent.run(in_sandbox(own(sh(number + 1, script))));
        assert_eq!((&plain.reason, &ended.reason), (expected, expected), "{script}: {ended:?}");
        let written = |ended: &Ended| (ended.usage.stdout_bytes, ended.message.clone());
        assert_eq!(written(&plain), written(&ended), "{script}");
    }
    let mut refused = |number, change: &dyn Fn(LaunchOrder) -> LaunchOrder| {
        let mut wrong = own(order(number, &["/no/such/program"]));
        let first = why(agent.run(change(wrong.clone())));
        change_program(&mut wrong).command = vec!["no-such-command".into()];
        let mut lost = own(sh(number + 2, "true"));
        change_program(&mut lost).workdir = Workdir::Path("/no/such/directory".into());
        wrong.attempt.number += 1;
        (first, why(agent.run(change(wrong))), why(agent.run(change(lost))))
    };
    let reasons = refused(200, &|order| order);
    assert_eq!(refused(210, &in_sandbox), reasons);
    assert!(reasons.0.contains("/no/such/program") && reasons.2.contains("no directory"), "{reasons:?}");
    home.wait_until("the scratch directories are empty", || home.scratch_files() == 0);
}

#[test]
fn tasks_end_as_without_a_sandbox() {
    for enforcement in [EnforcementChoice::Auto, EnforcementChoice::None] {
        let Some((home, mut agent)) = usual(enforcement) else { return };
        ends_are_the_same(&home, &mut agent, |order| order);
    }
    without_privileges(|home, agent| ends_are_the_same(home, agent, |order| order));
    let Some(home) = home_or_skip(false) else { return };
    ends_are_the_same(&home, &mut home.agent(), |order| of_user(ONE, order));
}

fn signals_reach_tasks(home: &Home, agent: &mut Agent, change: impl Fn(LaunchOrder) -> LaunchOrder) {
    let order_end = |agent: &mut Agent, attempt, signal| {
        agent.send(ToExecutor::Signal { attempt, signal, reason: EndReason::Cancelled });
    };
    let told = |number, script: &str| {
        change(sandboxed(number, &format!("{script}; echo ready; sleep 100 & wait; wait; echo last")))
    };
    // A task with a handler, one without, one that ignores the signal, and one that changes its process group.
    let handler = agent.start(told(1, "trap 'echo handled; exit 0' TERM"));
    let usual = agent.start(told(2, "true"));
    let stubborn = agent.start(told(3, "trap '' TERM"));
    let stopped =
        agent.start(change(sandboxed(4, "trap 'echo continued; exit 0' TERM; echo ready; kill -STOP $$; sleep 100")));
    // Before it has stopped, it would handle the signal and then stop.
    home.wait_until("the task is stopped", || state_of("echo continued").contains(&'T'));
    for attempt in [handler, usual, stubborn, stopped] {
        ready(home, attempt);
        order_end(agent, attempt, TaskSignal::Terminate);
    }
    for attempt in [handler, usual, stopped] {
        assert_eq!(agent.end_of(attempt).reason, EndReason::Cancelled);
    }
    assert_eq!(home.output(1, Stream::Stdout), "ready\nhandled\n");
    assert_eq!(home.output(2, Stream::Stdout), "ready\n");
    assert_eq!(home.output(4, Stream::Stdout), "ready\ncontinued\n");
    order_end(agent, stubborn, TaskSignal::Kill);
    assert_eq!(agent.end_of(stubborn).reason, EndReason::Cancelled);
    assert_eq!(home.output(3, Stream::Stdout), "ready\n");
}

/// The states of the processes with this in their command.
fn state_of(text: &str) -> Vec<char> {
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let state = |process: PathBuf| {
        let command = fs::read(process.join("cmdline")).ok()?;
        let stat = fs::read_to_string(process.join("stat")).ok()?;
        let is_meant = String::from_utf8_lossy(&command).contains(text);
        stat.rsplit_once(") ").filter(|_| is_meant)?.1.chars().next()
    };
    all.filter_map(state).collect()
}

#[test]
fn signals_reach_tasks_in_sandboxes() {
    for enforcement in [EnforcementChoice::Auto, EnforcementChoice::None] {
        let Some((home, mut agent)) = usual(enforcement) else { return };
        signals_reach_tasks(&home, &mut agent, |order| order);
    }
    without_privileges(|home, agent| signals_reach_tasks(home, agent, |order| order));
    let Some(home) = home_or_skip(false) else { return };
    signals_reach_tasks(&home, &mut home.agent(), |order| of_user(ONE, order));
}

#[test]
fn a_signal_that_is_sent_at_once_is_not_lost() {
    let Some((_home, mut agent)) = usual(EnforcementChoice::None) else { return };
    let attempts: Vec<AttemptId> = (1..40)
        .map(|number| {
            let order = sandboxed(number, "sleep 100");
            let attempt = order.attempt;
            agent.send(ToExecutor::Launch(Box::new(order)));
            agent.send(ToExecutor::Signal { attempt, signal: TaskSignal::Terminate, reason: EndReason::Timeout });
            attempt
        })
        .collect();
    for attempt in attempts {
        assert_eq!(agent.end_of(attempt).reason, EndReason::Timeout);
    }
}

#[test]
fn limits_and_usage_are_those_of_the_task() {
    let Some(home) = cgroups_or_skip() else { return };
    let mut agent = home.agent();
    let limited = |number, script: &str| {
        let mut order = sandboxed(number, script);
        change_shape(&mut order).resources = Resources::new(1_000, 64);
        order
    };
    let killed = agent.run(limited(1, "exec dd if=/dev/zero of=/dev/null bs=300M"));
    assert_eq!(killed.reason, EndReason::OutOfMemory, "{killed:?}");
    assert_eq!(killed.message.as_deref(), Some("used 64 of 64 MiB; request more with -r memory"));
    let filled = agent.run(limited(2, "dd if=/dev/zero of=/dev/shm/x bs=1M count=300; exit 1"));
    assert_eq!(filled.reason, EndReason::OutOfMemory, "its memory file system counts: {filled:?}");
    let spin = "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; dd if=/dev/zero of=/dev/null bs=40M count=1 2> /dev/null; times";
    let plain = agent.run(sh(3, spin)).usage;
    let usage = agent.run(sandboxed(4, spin)).usage;
    // As the shell measures itself and `dd`: a second run may take longer on a busy machine.
    let own: f64 = home.output(4, Stream::Stdout).split_whitespace().map(seconds).sum();
    let counted = usage.cpu.as_secs_f64();
    assert!((own * 0.9 - 0.05..own * 1.5 + 0.5).contains(&counted), "{own} seconds by `times`: {usage:?}");
    let ratio = usage.max_memory_bytes as f64 / plain.max_memory_bytes as f64;
    assert!(usage.max_memory_bytes > 40 << 20 && (0.9..1.1).contains(&ratio), "{usage:?}, without a sandbox {plain:?}");
}

/// A time as `times` prints it, such as `0m1.250s`.
fn seconds(text: &str) -> f64 {
    let (minutes, seconds) = text.trim_end_matches('s').split_once('m').expect("minutes and seconds");
    minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
}

#[test]
fn memory_over_the_limit_is_found_by_polling() {
    let home = Home::new(EnforcementChoice::Polling);
    let mut order = sandboxed(1, "dd if=/dev/zero of=/dev/null bs=300M; exit 1");
    change_shape(&mut order).resources = Resources::new(1_000, 64);
    match home.agent().run(order).reason {
        EndReason::LaunchFailed(why) => println!("skipped: {why}"),
        reason => assert_eq!(reason, EndReason::OutOfMemory),
    }
}

#[test]
fn all_processes_end_with_the_executor_and_with_the_first_process() {
    let Some((home, mut agent)) = usual(EnforcementChoice::None) else { return };
    let mark = format!("{}", 100_000 + std::process::id());
    let running = || sleeping(&mark).len();
    let script = format!("setsid sleep {mark} & (sleep {mark} &); echo ready; sleep {mark}");
    let attempt = agent.start(sandboxed(1, &script));
    home.wait_until("three processes run", || running() == 3);
    agent.send(ToExecutor::Signal { attempt, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
    assert_eq!(agent.end_of(attempt).reason, EndReason::Cancelled);
    assert_eq!(running(), 0);
    agent.start(sandboxed(2, &script));
    home.wait_until("three processes run", || running() == 3);
    home.kill_executor(agent.hello.pid);
    home.wait_until("none runs", || running() == 0);
}

/// Attempts that must fail. `$TEST` is the process of the test, `$BESIDE` a file that all users can write.
const HOSTILE: &str = r#"
fail() { echo "POSSIBLE: $*"; }
touch /usr/made 2>/dev/null && fail usr
touch /etc/made 2>/dev/null && fail etc
touch /made 2>/dev/null && fail root
touch /dev/made 2>/dev/null && fail dev
(echo x > $BESIDE) 2>/dev/null && fail file
(echo x > /proc/sys/kernel/hostname) 2>/dev/null && fail hostname
(echo x > /proc/sys/kernel/core_pattern) 2>/dev/null && fail core_pattern
(echo h > /proc/sysrq-trigger) 2>/dev/null && fail sysrq
for file in /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/cgroup.procs; do (echo 0 > $file) 2>/dev/null && fail cgroup; done
kill -0 $TEST 2>/dev/null && fail signal
kill -0 $EXECUTOR 2>/dev/null && fail executor
[ -e /proc/$TEST ] && fail proc
ls /proc/1/root/ >/dev/null 2>&1 && fail root-of-first
(cat /proc/1/environ | grep .) >/dev/null 2>&1 && fail environment-of-first
(cat /proc/1/mem) >/dev/null 2>&1 && fail memory-of-first
kill -KILL 1 2>/dev/null; kill -TERM 1 2>/dev/null
mount -o remount,rw / 2>/dev/null && fail remount
mount -o remount,bind,rw / 2>/dev/null && fail remount-bind
mount -t tmpfs none /mnt 2>/dev/null && fail mount
umount /proc 2>/dev/null && fail umount-proc
umount /dev 2>/dev/null && fail umount-dev
unshare -Ur mount -o remount,bind,rw / 2>/dev/null && fail remount-as-root-of-a-namespace
unshare -Urm mount -o remount,bind,rw / 2>/dev/null && fail remount-in-a-namespace
unshare -Urm sh -c 'mount -o remount,bind,rw /proc/sys && echo x > /proc/sys/kernel/hostname' 2>/dev/null && fail sysctl-in-a-namespace
unshare -Urpfm sh -c 'mount -t proc none /mnt && echo x > /mnt/sys/kernel/hostname' 2>/dev/null && fail another-proc
mknod disk b 8 0 2>/dev/null && fail mknod
chroot / true 2>/dev/null && fail chroot
hostname made 2>/dev/null && fail set-hostname
[ -e $SOCKET ] && fail socket
[ -e $STATE/output ] && fail state
for there in /dev/*; do case ${there#/dev/} in full|null|random|tty|urandom|zero|fd|stdin|stdout|stderr|ptmx|pts|shm|mqueue) ;; *) fail $there;; esac; done
grep $KEY /proc/sysvipc/shm >/dev/null 2>&1 && fail shared-memory
ls /dev/mqueue | grep . && fail queue
grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb):' /proc/self/status | grep -v 0000000000000000 && fail capabilities
grep -q '^NoNewPrivs:.1' /proc/self/status || fail new-privileges
[ $(ls /proc | grep -c '^[0-9]') -lt 10 ] || fail processes
# What must be possible.
echo x > here && echo x > $TMPDIR/there && echo x > /tmp/x && echo x > /dev/shm/x && echo x > /dev/null || fail write
[ $(cat /proc/self/comm) = cat ] || fail self
echo 500 > /proc/self/oom_score_adj || fail oom_score_adj
kill -0 $$ || fail own
[ -c /dev/pts/ptmx ] || fail pts
exit 6
"#;

fn hostile_attempts_fail(home: &Home, agent: &mut Agent, beside: &Path, change: impl Fn(LaunchOrder) -> LaunchOrder) {
    // Shared memory and a queue of the node.
    let key = 0x0a3a_0000 + std::process::id() as i32 % 0xffff;
    // SAFETY: plain system calls; the objects are removed below.
    let (memory, queue) = unsafe {
        let memory = libc::shmget(key, 4096, libc::IPC_CREAT | 0o666);
        let queue = libc::mq_open(
            c"/amalgam-test".as_ptr(),
            libc::O_CREAT | libc::O_RDWR,
            0o666,
            std::ptr::null_mut::<libc::mq_attr>(),
        );
        (memory, queue)
    };
    assert!(memory >= 0);
    let mut order = change(sandboxed(31, HOSTILE));
    let variables = [
        ("TEST", std::process::id().to_string()),
        ("EXECUTOR", agent.hello.pid.to_string()),
        ("BESIDE", beside.display().to_string()),
        ("SOCKET", home.config.socket.display().to_string()),
        ("STATE", home.state.display().to_string()),
        ("KEY", key.to_string()),
    ];
    change_program(&mut order).env = variables.map(|(name, value)| (name.into(), value.as_str().into())).to_vec();
    let ended = agent.run(order);
    // SAFETY: as above.
    unsafe {
        libc::shmctl(memory, libc::IPC_RMID, std::ptr::null_mut());
        libc::mq_close(queue);
        libc::mq_unlink(c"/amalgam-test".as_ptr());
    }
    let written = |stream| fs::read_to_string(output_path(&home.state, self::order(31, &["x"]).attempt, stream));
    let [output, errors] = [Stream::Stdout, Stream::Stderr].map(|stream| written(stream).unwrap_or_default());
    assert_eq!((ended.reason, output.as_str()), (EndReason::Exit(6), ""), "{errors}");
    assert_eq!(fs::read_to_string(beside).unwrap(), "of the node");
}

/// A file outside of the private directories that every user can write to.
fn beside() -> tempfile::TempPath {
    let mut file = tempfile::NamedTempFile::new_in("/").unwrap();
    file.write_all(b"of the node").unwrap();
    fs::set_permissions(file.path(), PermissionsExt::from_mode(0o666)).unwrap();
    file.into_temp_path()
}

#[test]
fn a_task_of_root_does_nothing_to_its_node() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: this needs root");
    }
    let Some((home, mut agent)) = usual(EnforcementChoice::Auto) else { return };
    hostile_attempts_fail(&home, &mut agent, &beside(), |order| order);
}

#[test]
fn a_task_of_another_user_does_nothing_to_its_node() {
    let Some(home) = home_or_skip(false) else { return };
    let mut agent = home.agent();
    hostile_attempts_fail(&home, &mut agent, &beside(), |order| of_user(ONE, order));
    let script = "id -un; touch made; stat -c %U made";
    assert_eq!(agent.run(of_user(ONE, sandboxed(2, script))).reason, EndReason::Exit(0));
    assert_eq!(home.output(2, Stream::Stdout), format!("{ONE}\n{ONE}\n"));
}

#[test]
fn a_task_of_an_executor_without_privileges_does_nothing_to_its_node() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: this needs root, to become another user");
    }
    let beside = beside();
    without_privileges(move |home, agent| {
        hostile_attempts_fail(home, agent, &beside, |order| order);
        assert_eq!(agent.run(sandboxed(32, "id -u")).reason, EndReason::Exit(0));
        assert_eq!(home.output(32, Stream::Stdout), format!("{NOBODY}\n"));
        two_tasks_do_not_see_each_other(home, agent, sandboxed);
    });
}

#[test]
fn two_sandboxes_do_not_see_each_other() {
    let Some((home, mut agent)) = usual(EnforcementChoice::Auto) else { return };
    two_tasks_do_not_see_each_other(&home, &mut agent, sandboxed);
    // Neither the processes nor the directories of the other.
    let one = agent.start(sandboxed(3, "sleep 777 & echo $TMPDIR; pwd; echo ready; sleep 100"));
    ready(&home, one);
    let output = home.output(3, Stream::Stdout);
    let [scratch, own] = [0, 1].map(|line| output.lines().nth(line).unwrap());
    assert!(Path::new(scratch).exists() && Path::new(own) == own_dir(&home.state, one));
    let script = format!(
        "ls {scratch} {own} 2> /dev/null; cat /proc/*/cmdline | tr '\\0' ' ' | grep 'sleep 777' | grep -v grep; ls -A /tmp | wc -l"
    );
    assert_eq!(agent.run(sandboxed(4, &script)).reason, EndReason::Exit(0));
    let seen = home.output(4, Stream::Stdout);
    assert!(!seen.contains("sleep 777\n") && !seen.contains("error"), "{seen}");
}

#[test]
fn the_working_directory_is_written_to_and_mounts_in_it_are_not() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: this needs root");
    }
    let Some((home, mut agent)) = usual(EnforcementChoice::Auto) else { return };
    let place = tempfile::tempdir_in("/").unwrap();
    let within = place.path().join("within");
    fs::create_dir(&within).unwrap();
    fs::write(place.path().join("file"), "content").unwrap();
    let link = place.path().with_extension("link");
    std::os::unix::fs::symlink(place.path(), &link).unwrap();
    for (number, directory) in [(1, place.path()), (2, link.as_path())] {
        let mut order = in_sandbox(sh(
            number,
            "cat file; echo x > made && mkdir within/x && echo written; (echo x > ../beside) 2> /dev/null || echo closed",
        ));
        change_program(&mut order).workdir = Workdir::Path(directory.to_str().unwrap().into());
        assert_eq!(agent.run(order).reason, EndReason::Exit(0));
        assert_eq!(home.output(number, Stream::Stdout), "contentwritten\nclosed\n");
        fs::remove_file(place.path().join("made")).unwrap();
        fs::remove_dir(within.join("x")).unwrap();
    }
    fs::remove_file(link).unwrap();
    let mut order = in_sandbox(sh(3, "pwd; touch made 2> /dev/null || echo closed"));
    change_program(&mut order).workdir = Workdir::Path("/".into());
    assert_eq!(agent.run(order).reason, EndReason::Exit(0));
    assert_eq!(home.output(3, Stream::Stdout), "/\nclosed\n");
}

#[test]
fn links_and_parents_do_not_make_the_system_writable() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: this needs root");
    }
    let Some((home, mut agent)) = usual(EnforcementChoice::Auto) else { return };
    let place = tempfile::tempdir_in("/").unwrap();
    let link = |name: &str, target: &str| {
        let link = place.path().join(name);
        std::os::unix::fs::symlink(target, &link).unwrap();
        link.to_str().unwrap().to_owned()
    };
    let (root, kernel, shown) = (link("root", "/"), link("kernel", "/proc/sys"), link("shown", "/dev/.."));
    let parent = format!("{}/..", place.path().display());
    // Each as root, whose writes only the mounts prevent.
    let script = "for path in /probe ./probe /etc/probe /proc/sys/kernel/core_pattern; do (echo x > $path) 2> /dev/null && echo $path; done; \
                  echo done";
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    for (number, directory) in (1..).zip([root, kernel, shown, parent, "/usr/..".to_owned(), "/proc/sys".to_owned()]) {
        let mut order = in_sandbox(sh(number, script));
        change_program(&mut order).workdir = Workdir::Path(directory.as_str().into());
        assert_eq!(agent.run(order).reason, EndReason::Exit(0), "{directory}");
        assert_eq!(home.output(number, Stream::Stdout), "done\n", "{directory}");
    }
    assert!(!Path::new("/probe").exists() && !Path::new("/etc/probe").exists());
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), before);

    // A link below /tmp, where the working directory is kept in the task's own /tmp.
    let hidden = tempfile::tempdir_in("/tmp").unwrap();
    let link = hidden.path().join("root");
    std::os::unix::fs::symlink("/", &link).unwrap();
    let mut order = in_sandbox(sh(20, script));
    change_program(&mut order).workdir = Workdir::Path(link.to_str().unwrap().into());
    let refused = agent.run(order).reason;
    assert!(matches!(refused, EndReason::LaunchFailed(_)), "{refused:?}");
    assert!(!Path::new("/probe").exists());
}

#[test]
fn a_set_user_id_program_gives_nothing() {
    let Some(home) = home_or_skip(false) else { return };
    let mut agent = home.agent();
    let place = tempfile::tempdir_in("/").unwrap();
    fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let secret = place.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    let program = place.path().join("cat");
    let Ok(cat) = fs::canonicalize("/bin/cat") else { return println!("skipped: there is no cat") };
    if cat.file_name().is_none_or(|name| name != "cat") {
        // BusyBox gives up such rights by itself.
        return;
    }
    fs::copy(cat, &program).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
    let script = format!("{} {} 2>&1 || true", program.display(), secret.display());
    let mut plain = sandboxed(1, &script);
    change_program(&mut plain).isolation = None;
    agent.run(of_user(OTHER, plain));
    assert_eq!(home.output(1, Stream::Stdout), "secret", "without a sandbox, it works");
    agent.run(of_user(OTHER, sandboxed(2, &script)));
    assert!(home.output(2, Stream::Stdout).contains("Permission denied"), "{}", home.output(2, Stream::Stdout));
}

#[test]
fn a_node_that_cannot_start_sandboxes_runs_no_task_without() {
    without_mounting(|| {
        let home = Home::new(EnforcementChoice::None);
        let mut agent = home.agent_by(Path::new(PROGRAM));
        let refused = why(agent.run(sandboxed(1, "touch ran")));
        assert!(refused.contains("this node cannot isolate tasks") && refused.contains("CAP_SYS_ADMIN"), "{refused}");
        assert!(!own_dir(&home.state, order(1, &["x"]).attempt).join("ran").exists());
        home.wait_until("the scratch directories are empty", || home.scratch_files() == 0);
    });
}

/// Lets this thread and its children believe that the kernel does not know a system call.
fn forget_system_call(number: libc::c_long) {
    let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let refused = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    // The first word that a filter sees is the number of the call.
    let filter = &mut [
        statement(libc::BPF_LD as u16, 0, 0, 0),
        statement((libc::BPF_JMP | libc::BPF_JEQ) as u16, 0, 1, u32::try_from(number).unwrap()),
        statement(libc::BPF_RET as u16, 0, 0, refused),
        statement(libc::BPF_RET as u16, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len().try_into().unwrap(), filter: filter.as_mut_ptr() };
    // SAFETY: plain system calls that change this thread and its children only; the filter is valid.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

/// Mounts a file system below a directory that only root may enter, for this thread and its children.
fn mount_out_of_reach(closed: &Path) {
    let place = closed.join("mounted");
    fs::create_dir(&place).unwrap();
    fs::set_permissions(closed, PermissionsExt::from_mode(0o700)).unwrap();
    let place = std::ffi::CString::new(place.to_str().unwrap()).unwrap();
    let (root, kind, none) = (c"/".as_ptr(), c"tmpfs".as_ptr(), std::ptr::null::<libc::c_char>());
    // SAFETY: plain system calls with valid pointers; the first one separates this thread's mounts from others.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_NEWNS), 0);
        assert_eq!(libc::mount(none, root, none, libc::MS_REC | libc::MS_PRIVATE, none.cast()), 0);
        assert_eq!(libc::mount(kind, place.as_ptr(), kind, 0, none.cast()), 0);
    }
}

#[test]
fn old_kernels_and_mounts_out_of_reach_do_not_hinder_users_without_privileges() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: this needs root, to become another user");
    }
    let (closed, beside) = (tempfile::tempdir_in("/").unwrap(), beside());
    let path = closed.path().to_owned();
    let before = move || {
        mount_out_of_reach(&path);
        forget_system_call(libc::SYS_mount_setattr);
    };
    without_privileges_after(before, move |home, agent| hostile_attempts_fail(home, agent, &beside, |order| order));
}
