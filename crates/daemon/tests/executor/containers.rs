//! Tasks in containers. Podman runs an image of BusyBox that the test makes; where it cannot, a program in its place shows
//! what it was told.

use crate::agent::{Agent, Home, PROGRAM, change_program, change_shape, exists, sh, sleeping};
use crate::isolation::of_user;
use crate::users::{ONE, home_or_skip};
use amalgam_core::protocol::{TaskSignal, ToExecutor};
use amalgam_core::vocabulary::*;
use amalgam_daemon::executor::{EnforcementChoice, Mechanism, output_path, own_dir};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const IMAGE: &str = "localhost/amalgam-test:1";

fn in_image(number: u32, image: &str, script: &str) -> LaunchOrder {
    let mut order = sh(number, script);
    let program = change_program(&mut order);
    (program.container, program.workdir) = (Some(image.to_owned()), Workdir::Own);
    order
}

/// Writes a program, and an executor that finds it first.
fn executor_with(home: &Home, name: &str, script: &str) -> PathBuf {
    let place = home.state.parent().unwrap().join("programs");
    fs::create_dir_all(&place).unwrap();
    let executor = home.state.parent().unwrap().join("executor");
    let start = format!("#!/bin/sh\nPATH={}:$PATH exec {PROGRAM} \"$@\"\n", place.display());
    for (path, text) in [(&place.join(name), script), (&executor, start.as_str())] {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    executor
}

/// Leaves the mounts of this shell without version 1 of cgroups, which podman's runtime does not accept together with version 2.
const ONLY_CGROUP2: &str = "umount -l /sys/fs/cgroup 2> /dev/null; mount -t cgroup2 none /sys/fs/cgroup";

fn is_installed(program: &str) -> bool {
    Command::new("sh").args(["-c", "command -v \"$0\"", program]).output().is_ok_and(|shown| shown.status.success())
}

/// An archive of an image with BusyBox, in this directory. `None` if there is no BusyBox.
fn image_of_busybox(above: &Path) -> Option<PathBuf> {
    let found = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    let Some(busybox) = found else {
        println!("skipped: there is no BusyBox");
        return None;
    };
    let root = above.join("image");
    fs::create_dir_all(root.join("bin")).unwrap();
    for directory in ["tmp", "etc", "proc", "sys", "dev"] {
        fs::create_dir(root.join(directory)).unwrap();
    }
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    for name in ["sh", "id", "sleep", "echo", "cat", "pwd", "ls", "env", "grep", "touch", "kill", "true", "test", "dd"]
    {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    let archive = above.join("image.tar");
    let packed = Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".").status();
    assert!(packed.unwrap().success());
    Some(archive)
}

/// Podman with storage of this test's own, in a namespace of mounts of its own.
struct Podman {
    home: Home,
    wrapper: PathBuf,
    executor: PathBuf,
}

impl Podman {
    fn start(enforcement: EnforcementChoice) -> Option<(Podman, Agent)> {
        if !rustix::process::geteuid().is_root() || !is_installed("podman") || !is_installed("unshare") {
            println!("skipped: this needs root and podman");
            return None;
        }
        let home = Home::new(enforcement);
        let above = home.state.parent().unwrap();
        let (storage, run) = (above.join("storage"), above.join("run"));
        let script = format!(
            "#!/bin/sh\nexec unshare -m sh -c '{ONLY_CGROUP2}\n\
             exec /usr/bin/podman --root {} --runroot {} --storage-driver vfs --cgroup-manager cgroupfs \"$@\"' podman \"$@\"\n",
            storage.display(),
            run.display()
        );
        let executor = executor_with(&home, "podman", &script);
        let wrapper = above.join("programs/podman");
        let archive = image_of_busybox(above)?;
        let imported = Command::new(&wrapper).args(["import", "--quiet"]).arg(&archive).arg(IMAGE).output().unwrap();
        if !imported.status.success() {
            println!("skipped: podman cannot import an image: {}", String::from_utf8_lossy(&imported.stderr));
            return None;
        }
        // No higher limits than this process has.
        let limits = ["--ulimit=nofile=512:512", "--ulimit=nproc=4096:4096"];
        let plain = [&["run", "--rm", "--network=host", "--cgroups=disabled"][..], &limits, &[IMAGE, "true"]].concat();
        let plain = Command::new(&wrapper).args(plain).output().unwrap();
        if !plain.status.success() {
            println!("skipped: podman cannot run containers here: {}", String::from_utf8_lossy(&plain.stderr));
            return None;
        }
        let mut agent = home.agent_by(&executor);
        let ended = agent.run(in_image(99, IMAGE, "true"));
        let errors = fs::read_to_string(output_path(&home.state, attempt(99), Stream::Stderr)).unwrap_or_default();
        assert_eq!(ended.reason, EndReason::Exit(0), "{errors}");
        Some((Podman { home, wrapper, executor }, agent))
    }

    /// The containers that podman knows.
    fn containers(&self) -> String {
        let shown =
            Command::new(&self.wrapper).args(["ps", "--all", "--quiet"]).stderr(Stdio::null()).output().unwrap();
        String::from_utf8(shown.stdout).unwrap()
    }
}

fn attempt(number: u32) -> AttemptId {
    sh(number, "").attempt
}

#[test]
fn a_container_has_the_tasks_directories_environment_streams_and_exit_code() {
    let Some((podman, mut agent)) = Podman::start(EnforcementChoice::Auto) else { return };
    let home = &podman.home;
    let script = "id -u; pwd; echo $AMALGAM_INDEX $MINE $AMALGAM_TASK_DIR; echo told > $AMALGAM_ERROR_FILE; touch made; \
                  echo wrong >&2; test -e /usr/bin/podman || echo apart; cat; exit 7";
    let mut order = in_image(1, IMAGE, script);
    change_program(&mut order).env = vec![("MINE".into(), "two words".into())];
    let ended = agent.run(order);
    assert_eq!((ended.reason, ended.message.as_deref()), (EndReason::Exit(7), Some("told")));
    let output = home.output(1, Stream::Stdout);
    let own = own_dir(&home.state, attempt(1));
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!((lines[0], lines[1], lines[3]), ("0", own.to_str().unwrap(), "apart"), "{output}");
    assert!(lines[2].starts_with("1 two words ") && lines[2].contains("/tasks/"), "{output}");
    assert_eq!(home.output(1, Stream::Stderr), "wrong\n");
    assert!(own.join("made").exists());
    assert_eq!(podman.containers(), "");
    assert_eq!(agent.run(in_image(2, IMAGE, "kill -KILL $$")).reason, EndReason::Exit(137), "as a shell reports it");
}

#[test]
fn a_container_is_in_the_tasks_cgroup_and_killed_and_removed_with_it() {
    for enforcement in [EnforcementChoice::Auto, EnforcementChoice::None] {
        let Some((podman, mut agent)) = Podman::start(enforcement) else { return };
        let home = &podman.home;
        let mark = format!("{}", 200_000 + std::process::id());
        let running = || sleeping(&mark);
        let killed = agent.start(in_image(1, IMAGE, &format!("trap '' TERM; sleep {mark} & sleep {mark}")));
        home.wait_until("the container runs", || running().len() == 2);
        if matches!(agent.hello.enforcement.mechanism, Mechanism::CgroupV1 | Mechanism::CgroupV2) {
            let group = fs::read_to_string(format!("/proc/{}/cgroup", running()[0])).unwrap();
            assert!(group.contains(&format!("amalgam-{}-", agent.hello.pid)), "{group}");
        }
        agent.send(ToExecutor::Signal { attempt: killed, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
        assert_eq!(agent.end_of(killed).reason, EndReason::Cancelled);
        assert_eq!(running(), [] as [i32; 0]);
        home.wait_until("the container is removed", || podman.containers().is_empty());

        let asked = agent.start(in_image(
            2,
            IMAGE,
            &format!("trap 'echo asked; exit 0' TERM; sleep {mark} & echo ready; wait"),
        ));
        home.wait_until("the container is ready", || {
            let output = fs::read_to_string(output_path(&home.state, asked, Stream::Stdout));
            running().len() == 1 && output.is_ok_and(|text| text == "ready\n")
        });
        agent.send(ToExecutor::Signal { attempt: asked, signal: TaskSignal::Terminate, reason: EndReason::Timeout });
        assert_eq!(agent.end_of(asked).reason, EndReason::Timeout);
        assert_eq!(home.output(2, Stream::Stdout), "ready\nasked\n");
        home.wait_until("the container is removed", || podman.containers().is_empty());
    }
}

/// The process that podman without root keeps for its user's later containers.
struct Pause(PathBuf);

impl Drop for Pause {
    fn drop(&mut self) {
        let pid = fs::read_to_string(&self.0).ok().and_then(|pid| pid.trim().parse().ok());
        // SAFETY: plain kill of a process that this test started.
        pid.map(|pid: i32| unsafe { libc::kill(pid, libc::SIGKILL) });
    }
}

/// Each user of a node has podman of their own, without root.
#[test]
fn a_container_of_a_jobs_user_is_that_users() {
    let Some(mut home) = home_or_skip(false) else { return };
    if !["podman", "unshare", "newuidmap", "setpriv"].into_iter().all(is_installed) {
        return println!("skipped: this needs podman, uidmap and util-linux");
    }
    home.config.enforcement = EnforcementChoice::Polling;
    let above = home.state.parent().unwrap().to_owned();
    let Some(archive) = image_of_busybox(&above) else { return };
    let (own, ranges) = (above.join("own"), above.join("ranges"));
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(1), Some(1)).unwrap();
    fs::write(&ranges, format!("{ONE}:200000:65536\n")).unwrap();
    let podman = format!(
        "#!/bin/sh\ntest -z \"$TMPDIR\" || exit 99\nexec env HOME={0} XDG_RUNTIME_DIR={0} /usr/bin/podman --root {0}/storage --runroot {0}/run --storage-driver vfs \
         --cgroup-manager cgroupfs \"$@\"\n",
        own.display()
    );
    let executor = executor_with(&home, "podman", &podman);
    let _pause = Pause(own.join("libpod/tmp/pause.pid"));
    // The account needs ranges of users, which the packages of distributions give to new accounts.
    let start = format!(
        "#!/bin/sh\nexec unshare -m sh -c '{ONLY_CGROUP2}; mount --bind {0} /etc/subuid; mount --bind {0} /etc/subgid\n\
         cd {1}; setpriv --reuid {ONE} --regid {ONE} --init-groups {2}/programs/podman import --quiet {3} {IMAGE} >&2\n\
         PATH={2}/programs:$PATH exec {PROGRAM} \"$@\"' executor \"$@\"\n",
        ranges.display(),
        own.display(),
        above.display(),
        archive.display()
    );
    fs::write(&executor, start).unwrap();
    let mut agent = home.agent_by(&executor);
    let script = "id -u; touch made; ls -l made; echo $HOME";
    let ended = agent.run(of_user(ONE, in_image(1, IMAGE, script)));
    let errors = fs::read_to_string(output_path(&home.state, attempt(1), Stream::Stderr));
    assert_eq!(ended.reason, EndReason::Exit(0), "{errors:?}");
    let made = fs::metadata(own_dir(&home.state, attempt(1)).join("made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (1, 1));
    assert!(home.output(1, Stream::Stdout).starts_with("1\n"));
    let mut missing = in_image(3, IMAGE, "");
    change_program(&mut missing).command = vec!["no-such-program".into()];
    for order in [missing, in_image(4, "localhost:1/no-such-image:1", "true")] {
        let ended = agent.run(of_user(ONE, order));
        let EndReason::LaunchFailed(why) = &ended.reason else { panic!("{ended:?}") };
        assert!(why.contains("podman could not run the image") && why.to_lowercase().contains("error"), "{why}");
    }
    let mark = format!("{}", 400_000 + std::process::id());
    let killed = agent.start(of_user(ONE, in_image(2, IMAGE, &format!("sleep {mark}"))));
    home.wait_until("the container runs", || sleeping(&mark).len() == 1);
    agent.send(ToExecutor::Signal { attempt: killed, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
    assert_eq!(agent.end_of(killed).reason, EndReason::Cancelled);
    assert_eq!(sleeping(&mark), [] as [i32; 0]);
    home.wait_until("nothing is remembered", || fs::read_dir(home.state.join("containers")).unwrap().count() == 0);
}

/// Whether tasks are in cgroups with a limit of CPU, which is printed if they are not.
fn has_cgroups(agent: &Agent) -> bool {
    let enforcement = &agent.hello.enforcement;
    let has = enforcement.enforces_cpu && matches!(enforcement.mechanism, Mechanism::CgroupV1 | Mechanism::CgroupV2);
    if !has {
        println!("skipped: there are no cgroups: {:?}", enforcement.notes);
    }
    has
}

#[test]
fn the_memory_of_a_container_is_limited_as_the_tasks() {
    let Some((_podman, mut agent)) = Podman::start(EnforcementChoice::Auto) else { return };
    if !has_cgroups(&agent) {
        return;
    }
    let mut order = in_image(1, IMAGE, "dd if=/dev/zero of=/dev/null bs=900M; exit 9");
    change_shape(&mut order).resources = Resources::new(1_000, 300);
    let ended = agent.run(order);
    assert_eq!(ended.reason, EndReason::OutOfMemory, "{ended:?}");
}

#[test]
fn the_cpu_of_a_container_is_limited_as_the_tasks() {
    let Some((podman, mut agent)) = Podman::start(EnforcementChoice::Auto) else { return };
    if !has_cgroups(&agent) {
        return;
    }
    // What the command in the container uses within two seconds, beside what podman does.
    let script = "now() { read up idle < /proc/uptime; now=${up%.*}${up#*.}; }\n\
                  now; start=$now; while now; [ $now -lt $((start + 200)) ]; do :; done\n\
                  echo $((now - start)) $(cat /proc/$$/stat)";
    let mut order = in_image(1, IMAGE, script);
    change_shape(&mut order).resources = Resources::new(200, 0);
    assert_eq!(agent.run(order).reason, EndReason::Exit(0));
    let output = podman.home.output(1, Stream::Stdout);
    // Hundredths of a second: the whole time, and in user and in kernel mode (proc(5)).
    let number = |place: usize| -> f64 { output.split_whitespace().nth(place).unwrap().parse().unwrap() };
    let share = (number(14) + number(15)) / number(0);
    assert!((0.05..0.35).contains(&share), "it used {share} of a core instead of 0.2: {output}");
}

/// The directory of the group of a process in this hierarchy of version 1, or in version 2.
fn group_of(pid: i32, mechanism: Mechanism, controller: &str) -> Option<PathBuf> {
    let (above, start) = match mechanism {
        Mechanism::CgroupV1 => (format!("/sys/fs/cgroup/{controller}"), format!(":{controller}:/")),
        _ => ("/sys/fs/cgroup".to_owned(), "0::/".to_owned()),
    };
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let (_, below) = groups.lines().find_map(|line| line.split_once(&start))?;
    Some(Path::new(&above).join(below))
}

#[test]
fn the_processes_of_a_container_are_limited_as_the_tasks() {
    let Some((podman, mut agent)) = Podman::start(EnforcementChoice::Auto) else { return };
    if !has_cgroups(&agent) {
        return;
    }
    let home = &podman.home;
    let mark = format!("{}", 500_000 + std::process::id());
    let script = format!("sleep {mark} & until test -e go; do sleep 0.05; done; while :; do sleep 100 & done");
    let bred = agent.start(in_image(1, IMAGE, &script));
    home.wait_until("the container runs", || sleeping(&mark).len() == 1);
    let Some(group) = group_of(sleeping(&mark)[0], agent.hello.enforcement.mechanism, "pids") else {
        return println!("skipped: there is no pids controller");
    };
    let most: u64 = fs::read_to_string(group.join("pids.max")).unwrap().trim().parse().unwrap();
    let kernel: u64 = fs::read_to_string("/proc/sys/kernel/threads-max").unwrap().trim().parse().unwrap();
    assert!(most >= 64 && most <= kernel / 4, "{most} of {kernel}");
    // Lowered, so that it does not take long.
    fs::write(group.join("pids.max"), "50").unwrap();
    fs::write(own_dir(&home.state, bred).join("go"), "").unwrap();
    let ended = agent.end_of(bred);
    assert!(matches!(ended.reason, EndReason::Exit(code) if code != 0), "{ended:?}");
    let errors = home.output(1, Stream::Stderr);
    assert!(errors.contains("can't fork"), "{errors}");
    assert_eq!(agent.run(in_image(2, IMAGE, "sleep 0 & sleep 0 & wait")).reason, EndReason::Exit(0));
}

#[test]
fn a_container_can_use_only_the_devices_of_its_task() {
    let Some((mut podman, agent)) = Podman::start(EnforcementChoice::Auto) else { return };
    let home = &mut podman.home;
    // Harmless to open, and in no container by themselves.
    let all = ["/dev/fuse", "/dev/loop-control", "/dev/hwrng", "/dev/kmsg", "/dev/net/tun"];
    let found: Vec<&str> = all.into_iter().filter(|path| fs::File::open(path).is_ok()).collect();
    let [one, other, ..] = found[..] else { return println!("skipped: this needs two of {all:?}") };
    home.kill_executor(agent.hello.pid);
    home.config.devices =
        [format!("gpu:0={one}"), format!("gpu:1={other}")].map(|device| device.parse().unwrap()).into();
    let mut agent = home.agent_by(&podman.executor);
    if let Some(why) = agent.hello.enforcement.notes.iter().find(|note| note.starts_with("devices are not enforced")) {
        return println!("skipped: {why}");
    }
    let script = format!("for path in {one} {other}; do ( : < $path ) 2> /dev/null && echo $path; done; echo done");
    for (number, gpus, expected) in [
        (1, &[0][..], format!("{one}\ndone\n")),
        (2, &[1], format!("{other}\ndone\n")),
        (3, &[], "done\n".to_owned()),
        (4, &[0, 1], format!("{one}\n{other}\ndone\n")),
    ] {
        let mut order = in_image(number, IMAGE, &script);
        order.devices = vec![("gpu".to_owned(), gpus.to_vec())];
        assert_eq!(agent.run(order).reason, EndReason::Exit(0));
        assert_eq!(home.output(number, Stream::Stdout), expected, "with {gpus:?}");
    }
}

#[test]
fn a_missing_image_is_the_reason_with_what_podman_says() {
    let Some((_podman, mut agent)) = Podman::start(EnforcementChoice::None) else { return };
    let ended = agent.run(in_image(1, "localhost:1/no-such-image:1", "true"));
    let EndReason::LaunchFailed(why) = &ended.reason else { panic!("{ended:?}") };
    assert!(
        why.contains("podman could not run the image localhost:1/no-such-image:1: ") && why.contains("Error: "),
        "{why}"
    );
    let ended = agent.run(in_image(2, IMAGE, "echo 'not of podman' >&2; exit 125"));
    assert_eq!(ended.reason, EndReason::Exit(125));
}

/// A program in place of podman: it prints what it was told, and runs the command.
#[test]
fn a_runtime_gets_the_command_and_its_container_is_removed_after_a_kill() {
    let home = Home::new(EnforcementChoice::None);
    let told = home.state.join("told");
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {0}\n[ \"$1\" = run ] || exit 0\nwhile [ \"$1\" != image:1 ]; do shift; done; shift\nexec \"$@\"\n",
        told.display()
    );
    let mut agent = home.agent_by(&executor_with(&home, "podman", &script));
    assert_eq!(agent.run(in_image(1, "image:1", "echo $AMALGAM_INDEX; exit 3")).reason, EndReason::Exit(3));
    assert_eq!(home.output(1, Stream::Stdout), "1\n");
    let line = fs::read_to_string(&told).unwrap();
    let own = own_dir(&home.state, attempt(1));
    assert!(
        line.starts_with("run --rm ") && line.contains(&format!(" --workdir={} image:1 sh -c ", own.display())),
        "{line}"
    );
    let running = agent.start(in_image(2, "image:1", "echo ready; sleep 100"));
    home.wait_until("the task runs", || {
        fs::read_to_string(output_path(&home.state, running, Stream::Stdout))
            .is_ok_and(|output| output.contains("ready"))
    });
    agent.send(ToExecutor::Signal { attempt: running, signal: TaskSignal::Kill, reason: EndReason::Cancelled });
    assert_eq!(agent.end_of(running).reason, EndReason::Cancelled);
    let is_removed = |told: &str| {
        let container = told.lines().last()?.strip_prefix("rm --force --ignore --time=0 amalgam-")?;
        container.ends_with(&format!("-{running}")).then_some(())
    };
    home.wait_until("the container is removed", || is_removed(&fs::read_to_string(&told).unwrap()).is_some());
}

#[test]
fn the_containers_of_a_killed_executor_are_removed_by_the_next_one() {
    let Some((podman, mut agent)) = Podman::start(EnforcementChoice::Auto) else { return };
    let home = &podman.home;
    let mark = format!("{}", 300_000 + std::process::id());
    agent.start(in_image(1, IMAGE, &format!("sleep {mark}")));
    home.wait_until("the container runs", || sleeping(&mark).len() == 1);
    home.kill_executor(agent.hello.pid);
    assert_ne!(podman.containers(), "");
    let mut agent = home.agent_by(&podman.executor);
    home.wait_until("the container is removed", || podman.containers().is_empty());
    assert_eq!(sleeping(&mark), [] as [i32; 0]);
    assert_eq!(agent.run(in_image(2, IMAGE, "true")).reason, EndReason::Exit(0));
    home.wait_until("nothing is remembered", || fs::read_dir(home.state.join("containers")).unwrap().count() == 0);
}

#[test]
fn an_executor_that_stops_leaves_no_containers() {
    let Some((podman, mut agent)) = Podman::start(EnforcementChoice::Auto) else { return };
    let home = &podman.home;
    let mark = format!("{}", 400_000 + std::process::id());
    agent.start(in_image(1, IMAGE, &format!("sleep {mark}")));
    home.wait_until("the container runs", || sleeping(&mark).len() == 1);
    assert_ne!(podman.containers(), "");
    home.signal(agent.hello.pid, libc::SIGTERM);
    home.wait_until("the executor has exited", || !exists(agent.hello.pid as i32));
    assert_eq!((podman.containers(), sleeping(&mark)), (String::new(), Vec::new()));
    assert_eq!(fs::read_dir(home.state.join("containers")).unwrap().count(), 0);
}

#[test]
fn a_node_without_a_runtime_says_so() {
    let home = Home::new(EnforcementChoice::None);
    let place = home.state.parent().unwrap().join("executor");
    fs::write(&place, format!("#!/bin/sh\nPATH=/nowhere exec {PROGRAM} \"$@\"\n")).unwrap();
    fs::set_permissions(&place, PermissionsExt::from_mode(0o755)).unwrap();
    let mut agent = home.agent_by(&place);
    let ended = agent.run(in_image(1, "image:1", "true"));
    let EndReason::LaunchFailed(why) = &ended.reason else { panic!("{ended:?}") };
    assert!(why.contains("the image image:1 cannot be run on this node: it has neither podman nor apptainer"), "{why}");
}
