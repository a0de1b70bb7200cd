//! Tasks in containers: the command of podman or apptainer that runs a task's command in an image (ADR 84).

use super::accounts::Account;
use super::container_removal::Removal;
use amalgam_core::vocabulary::{AttemptId, ByteString, EndReason, LaunchOrder};
use rustix::process::{Resource, getegid, geteuid, getrlimit};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Variables that a runtime reads itself. Those of the job reach the task only.
const OF_RUNTIME: [&[u8]; 12] = [
    b"PATH",
    b"HOME",
    b"SHELL",
    b"USER",
    b"LD_",
    b"XDG_",
    b"CONTAINER",
    b"STORAGE_",
    b"REGISTRY_",
    b"APPTAINER",
    b"SINGULARITY",
    b"TMPDIR",
];
/// Variables of the node that a task in a container does not get: they belong to files that are not in the image.
const OF_NODE: [&[u8]; 3] = [b"PATH", b"HOME", b"SHELL"];
/// Where packages put the first process of podman's containers.
const INIT: [&str; 5] = [
    "/usr/libexec/podman/catatonit",
    "/usr/local/libexec/podman/catatonit",
    "/usr/lib/podman/catatonit",
    "/usr/bin/catatonit",
    "/usr/libexec/catatonit/catatonit",
];
/// How much of the end of the standard error explains why a container did not start, in bytes and lines.
const MOST_EXPLAINED: (u64, usize) = (4_096, 5);
/// Podman lowers its own limit of processes to this, and without `CAP_SYS_RESOURCE` a container cannot have more.
const PODMANS_PROCESSES: u64 = 32_768;
/// With this exit code, podman itself failed.
const PODMAN_FAILED: i32 = 125;
/// With these, the program that podman starts containers with failed, or did not find the command. Commands use them, too.
const OCI_FAILED: [i32; 2] = [126, 127];
/// With this exit code, the first process of podman's containers did not find the command. Most programs use it, too.
const INIT_FAILED: i32 = 1;
/// With this exit code, apptainer itself failed. It is also that of many programs.
const APPTAINER_FAILED: i32 = 255;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Runtime {
    Podman,
    Apptainer,
}

impl Runtime {
    fn name(self) -> &'static str {
        match self {
            Runtime::Podman => "podman",
            Runtime::Apptainer => "apptainer",
        }
    }

    /// The first runtime in this search path, and its file.
    pub fn find(search: &OsStr) -> Option<(Runtime, PathBuf)> {
        let known =
            [(Runtime::Podman, "podman"), (Runtime::Apptainer, "apptainer"), (Runtime::Apptainer, "singularity")];
        let is_program = |path: &PathBuf| {
            fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        };
        known.into_iter().find_map(|(runtime, name)| {
            std::env::split_paths(search).map(|place| place.join(name)).find(is_program).map(|path| (runtime, path))
        })
    }
}

/// What is known of a task whose command runs in a container.
pub struct Inside<'a> {
    /// The executor's directory.
    pub state: &'a Path,
    pub order: &'a LaunchOrder,
    pub image: &'a str,
    /// The whole environment of the task.
    pub environment: &'a [Vec<u8>],
    pub task_dir: &'a Path,
    pub directory: &'a Path,
    pub account: Option<&'a Account>,
    /// The files of the task's devices.
    pub devices: &'a [PathBuf],
    pub open_files: Option<libc::rlimit>,
}

/// The command of a runtime.
#[derive(Debug)]
pub struct Command {
    pub program: PathBuf,
    pub arguments: Vec<Vec<u8>>,
    /// Of the runtime. Entries of `node` are those of the node.
    pub environment: Vec<Vec<u8>>,
    pub container: Started,
}

/// A container that is started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Started {
    pub runtime: Runtime,
    pub image: String,
    /// What removes it if its runtime was killed.
    pub removal: Option<Removal>,
}

/// The command that runs a task's command in its image. `node` is the environment without the job's variables.
///
/// # Errors
/// If this node has no runtime, or the task's directories cannot be in a container.
pub fn command(inside: &Inside<'_>, node: &[Vec<u8>], search: &OsStr) -> Result<Command, EndReason> {
    let image = inside.image;
    let refused = |why: String| EndReason::LaunchFailed(format!("the image {image} cannot be run on this node: {why}"));
    let found = Runtime::find(search);
    let (runtime, program) =
        found.ok_or_else(|| refused("it has neither podman nor apptainer in its PATH".to_owned()))?;
    if image.starts_with('/') && runtime == Runtime::Podman {
        return Err(refused("a file needs apptainer, and this node has podman".to_owned()));
    }
    if inside.directory == Path::new("/") {
        return Err(refused("the working directory `/` would hide it; use `--workdir own`".to_owned()));
    }
    for path in [inside.directory, inside.task_dir] {
        if path.as_os_str().as_bytes().iter().any(|byte| b":,".contains(byte)) {
            return Err(refused(format!("the path {} contains a colon or comma", path.display())));
        }
    }
    let is_jobs = |name: &[u8]| inside.order.template.program.env.iter().any(|(set, _)| set.as_bytes() == name);
    let (mut passed, mut environment) = (Vec::new(), node.to_vec());
    for entry in inside.environment {
        let name = entry.split(|byte| *byte == b'=').next().unwrap_or_default();
        if OF_NODE.contains(&name) && !is_jobs(name) {
            continue;
        }
        let is_plain = name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        let is_runtimes = OF_RUNTIME.iter().any(|of| name.starts_with(of));
        passed.push((name, entry.as_slice(), is_plain && !is_runtimes));
    }
    let (arguments, removal) = match runtime {
        Runtime::Podman => {
            // Podman remembers for ever where its temporary files are, and the directory of this task will be gone.
            environment.retain(|entry| !entry.starts_with(b"TMPDIR="));
            // A value that is only named is not seen by other users in the list of processes.
            let given = passed.iter().filter(|(.., by_name)| *by_name).map(|(_, entry, _)| entry.to_vec());
            replace(&mut environment, given);
            let container = name(inside.state, inside.order.attempt);
            let arguments = ["podman", "rm", "--force", "--ignore", "--time=0", &container];
            let removal = Removal::new(&program, &arguments, node, inside.account);
            (podman(inside, &container, &passed), Some(removal))
        }
        Runtime::Apptainer => {
            let given = passed.iter().map(|(_, entry, _)| [b"APPTAINERENV_", *entry].concat());
            replace(&mut environment, given);
            (apptainer(inside), None)
        }
    };
    let container = Started { runtime, image: image.to_owned(), removal };
    Ok(Command { program, arguments, environment, container })
}

/// The name of an attempt's container. Other executors of this machine, perhaps of another cluster, give other names.
fn name(state: &Path, attempt: AttemptId) -> String {
    let digest = Sha256::digest(state.as_os_str().as_bytes());
    let [a, b, c, d] = [digest[0], digest[1], digest[2], digest[3]];
    format!("amalgam-{a:02x}{b:02x}{c:02x}{d:02x}-{attempt}")
}

fn replace(environment: &mut Vec<Vec<u8>>, given: impl Iterator<Item = Vec<u8>>) {
    for entry in given {
        let name = entry.split(|byte| *byte == b'=').next().unwrap_or_default().len();
        environment.retain(|known| known.get(..=name) != entry.get(..=name));
        environment.push(entry);
    }
}

/// A name, its entry, and whether podman gets it by its name only.
type Passed<'a> = (&'a [u8], &'a [u8], bool);

fn podman(inside: &Inside<'_>, container: &str, passed: &[Passed<'_>]) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut add = |option: &str, value: &[u8]| words.push([option.as_bytes(), value].concat());
    for word in ["podman", "run", "--rm", "--replace", "--quiet", "--pull=missing", "--log-driver=none"] {
        add(word, b"");
    }
    add("--name=", container.as_bytes());
    // Its processes stay in the task's group, where its limits apply and all of them are found.
    add("--cgroups=disabled", b"");
    add("--network=host", b"");
    add("--shm-size=0", b"");
    add("--security-opt=no-new-privileges", b"");
    add("--entrypoint=", b"");
    if INIT.iter().any(|path| Path::new(path).exists()) {
        // Without it, the command would be the first process, to which signals without a handler are not delivered.
        add("--init", b"");
    }
    if inside.order.template.program.stdin {
        add("--interactive", b"");
    }
    let (user, group) = match inside.account {
        Some(account) => (account.uid, account.gid),
        None => (geteuid().as_raw(), getegid().as_raw()),
    };
    if user != 0 {
        add("--userns=keep-id", b"");
    }
    add("--user=", format!("{user}:{group}").as_bytes());
    let umask = inside.order.template.program.umask.or(inside.account.map(|_| 0o022));
    if let Some(umask) = umask {
        add("--umask=", format!("{umask:04o}").as_bytes());
    }
    let limit = |name: &str, soft: Option<u64>, hard: Option<u64>| Some(format!("{name}={}:{}", soft?, hard?));
    let processes = getrlimit(Resource::Nproc);
    let lowered = |limit: Option<u64>| Some(limit.unwrap_or(u64::MAX).min(PODMANS_PROCESSES));
    let files = inside.open_files.and_then(|files| limit("nofile", Some(files.rlim_cur), Some(files.rlim_max)));
    for limit in files.into_iter().chain(limit("nproc", lowered(processes.current), lowered(processes.maximum))) {
        add("--ulimit=", limit.as_bytes());
    }
    for (name, entry, by_name) in passed {
        add("--env=", if *by_name { name } else { entry });
    }
    for file in inside.devices {
        add("--device=", file.as_os_str().as_bytes());
    }
    for directory in mounted(inside) {
        let path = directory.as_os_str().as_bytes();
        add("--volume=", &[path, b":", path].concat());
    }
    add("--workdir=", inside.directory.as_os_str().as_bytes());
    add(inside.image, b"");
    words.extend(command_of(inside));
    words
}

fn apptainer(inside: &Inside<'_>) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut add = |option: &str, value: &[u8]| words.push([option.as_bytes(), value].concat());
    for word in ["apptainer", "--quiet", "exec", "--containall", "--no-home", "--cleanenv", "--no-privs"] {
        add(word, b"");
    }
    // Where its `/tmp` and `/var/tmp` are.
    add("--workdir=", inside.task_dir.as_os_str().as_bytes());
    for path in mounted(inside).into_iter().chain(inside.devices.iter().map(PathBuf::as_path)) {
        add("--bind=", path.as_os_str().as_bytes());
    }
    add("--pwd=", inside.directory.as_os_str().as_bytes());
    let is_complete = inside.image.starts_with('/') || inside.image.contains("://");
    add(if is_complete { "" } else { "docker://" }, inside.image.as_bytes());
    words.extend(command_of(inside));
    words
}

fn command_of(inside: &Inside<'_>) -> impl Iterator<Item = Vec<u8>> {
    inside.order.template.program.command.iter().cloned().map(ByteString::into_bytes)
}

/// The directories that are at the same paths in the container. What is below another one is there with it.
fn mounted<'a>(inside: &Inside<'a>) -> Vec<&'a Path> {
    let (task_dir, directory) = (inside.task_dir, inside.directory);
    match () {
        () if task_dir.starts_with(directory) => vec![directory],
        () if directory.starts_with(task_dir) => vec![task_dir],
        () => vec![task_dir, directory],
    }
}

/// Why a container did not start, if it did not: its runtime says it in the last lines of the task's standard error.
pub fn failure(container: &Started, code: i32, errors: &Path) -> Option<EndReason> {
    let (start, names) = match (container.runtime, code) {
        (Runtime::Podman, PODMAN_FAILED) => ("Error: ", &[""][..]),
        (Runtime::Podman, code) if OCI_FAILED.contains(&code) => {
            ("Error: ", &["OCI runtime", "OCI permission denied"][..])
        }
        (Runtime::Podman, INIT_FAILED) => ("ERROR (catatonit:", &["failed to exec"][..]),
        (Runtime::Apptainer, APPTAINER_FAILED) => ("FATAL: ", &[""][..]),
        _ => return None,
    };
    let mut text = Vec::new();
    let mut file = fs::File::open(errors).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MOST_EXPLAINED.0))).ok()?;
    file.take(MOST_EXPLAINED.0).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    // Otherwise the code is that of the command. Codes that commands often have need the last word of the runtime.
    let said = lines.iter().rev().filter(|line| !line.is_empty()).take(if names == [""] { lines.len() } else { 1 });
    said.into_iter().find(|line| line.starts_with(start) && names.iter().any(|name| line.contains(name)))?;
    let last = lines[lines.len().saturating_sub(MOST_EXPLAINED.1)..].join("; ");
    let (name, image) = (container.runtime.name(), &container.image);
    Some(EndReason::LaunchFailed(format!("{name} could not run the image {image}: {last}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::{Epoch, JobId, NodeId, Program, TaskId, TaskTemplate};
    use std::sync::Arc;

    fn order() -> LaunchOrder {
        let program = Program {
            command: vec!["run".into(), "--rm".into(), "a b".into()],
            env: vec![
                ("MINE".into(), "x\ny".into()),
                ("PATH".into(), "/image/bin".into()),
                ("odd*".into(), "1".into()),
            ],
            umask: Some(0o27),
            stdin: true,
            ..Program::default()
        };
        LaunchOrder {
            attempt: AttemptId { job: JobId(7), epoch: Epoch(1), number: 2 },
            task: TaskId { job: JobId(7), stage: 0, index: 0 },
            node: NodeId(1),
            node_name: "node".to_owned(),
            template: Arc::new(TaskTemplate { program: Arc::new(program), ..TaskTemplate::default() }),
            index: 0,
            item: None,
            devices: Vec::new(),
            inputs: Arc::default(),
            hosts: None,
            grant: None,
            shared_gpu: None,
            expected: None,
        }
    }

    /// A directory with these programs.
    fn with_programs(names: &[&str]) -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        for name in names {
            fs::write(place.path().join(name), "").unwrap();
            fs::set_permissions(place.path().join(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        place
    }

    fn made(image: &str, directory: &str, search: &Path) -> Result<Command, String> {
        let of = |text: &[&str]| -> Vec<Vec<u8>> { text.iter().map(|entry| entry.as_bytes().to_vec()).collect() };
        let environment = of(&["PATH=/image/bin", "HOME=/home/x", "LANG=C", "AMALGAM_INDEX=3", "MINE=x\ny", "odd*=1"]);
        let inside = Inside {
            state: Path::new("/work"),
            order: &order(),
            image,
            environment: &environment,
            task_dir: Path::new("/work/tasks/1"),
            directory: Path::new(directory),
            account: None,
            devices: &[PathBuf::from("/dev/nvidia0")],
            open_files: Some(libc::rlimit { rlim_cur: 10, rlim_max: 20 }),
        };
        let node = of(&["PATH=/usr/bin", "HOME=/home/x", "LANG=C", "AMALGAM_INDEX=3", "TMPDIR=/work/tasks/1"]);
        command(&inside, &node, search.as_os_str()).map_err(|reason| reason.to_string())
    }

    fn words(list: &[Vec<u8>]) -> Vec<String> {
        list.iter().map(|word| String::from_utf8(word.clone()).unwrap()).collect()
    }

    #[test]
    fn podman_gets_the_directories_devices_limits_and_variables_of_the_task() {
        let place = with_programs(&["podman", "apptainer"]);
        let made = made("debian:12", "/data/x", place.path()).unwrap();
        assert_eq!((made.container.runtime, &made.program), (Runtime::Podman, &place.path().join("podman")));
        let arguments = words(&made.arguments);
        for expected in [
            "--cgroups=disabled",
            "--interactive",
            "--umask=0027",
            "--ulimit=nofile=10:20",
            "--env=AMALGAM_INDEX",
            "--env=MINE",
            "--env=LANG",
            "--env=PATH=/image/bin",
            "--env=odd*=1",
            "--device=/dev/nvidia0",
            "--volume=/work/tasks/1:/work/tasks/1",
            "--volume=/data/x:/data/x",
            "--workdir=/data/x",
        ] {
            assert!(arguments.iter().any(|word| word == expected), "{expected}: {arguments:?}");
        }
        assert!(!arguments.iter().any(|word| word.contains("HOME") || word.contains("x\ny")), "{arguments:?}");
        assert_eq!(arguments[arguments.len() - 4..], ["debian:12", "run", "--rm", "a b"]);
        let environment = words(&made.environment);
        assert!(environment.contains(&"PATH=/usr/bin".to_owned()), "the runtime has that of the node: {environment:?}");
        assert!(
            environment.contains(&"MINE=x\ny".to_owned())
                && environment.iter().filter(|entry| entry.starts_with("LANG=")).count() == 1
        );
        let named = arguments.iter().find_map(|word| word.strip_prefix("--name=")).unwrap();
        assert!(named.starts_with("amalgam-") && named.ends_with("-7-1-2"), "{named}");
        assert_ne!(named, name(Path::new("/other"), order().attempt), "two executors of a machine");
        let removal = made.container.removal.unwrap();
        assert_eq!(words(&removal.arguments).last().unwrap(), named);
        assert_eq!(words(&removal.environment), ["PATH=/usr/bin", "HOME=/home/x", "LANG=C"]);
    }

    #[test]
    fn apptainer_gets_variables_by_its_own_names_and_files_or_references() {
        let place = with_programs(&["singularity"]);
        for (image, expected) in [
            ("debian:12", "docker://debian:12"),
            ("/images/x.sif", "/images/x.sif"),
            ("library://a/b", "library://a/b"),
        ] {
            let made = made(image, "/work/tasks/1/x", place.path()).unwrap();
            let arguments = words(&made.arguments);
            assert_eq!(arguments[arguments.len() - 4..], [expected, "run", "--rm", "a b"]);
            let bound: Vec<&String> = arguments.iter().filter(|word| word.starts_with("--bind=")).collect();
            assert_eq!(bound, ["--bind=/work/tasks/1", "--bind=/dev/nvidia0"], "what is in it is there with it");
            let environment = words(&made.environment);
            assert!(
                environment.contains(&"APPTAINERENV_PATH=/image/bin".to_owned())
                    && environment.contains(&"PATH=/usr/bin".to_owned())
            );
            assert_eq!(made.container.removal, None);
        }
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_the_name_of_the_image() {
        let (none, podman) = (with_programs(&[]), with_programs(&["podman"]));
        let why = |image: &str, directory: &str, place: &Path| made(image, directory, place).unwrap_err();
        assert!(
            why("debian:12", "/x", none.path())
                .contains("image debian:12 cannot be run on this node: it has neither podman")
        );
        assert!(why("/x.sif", "/x", podman.path()).contains("a file needs apptainer"));
        assert!(why("debian", "/", podman.path()).contains("--workdir own"));
        assert!(why("debian", "/a:b", podman.path()).contains("contains a colon"));
    }

    #[test]
    fn only_a_failure_of_the_runtime_is_one() {
        let home = tempfile::tempdir().unwrap();
        let errors = home.path().join("err");
        let container = Started { runtime: Runtime::Podman, image: "x:1".to_owned(), removal: None };
        assert_eq!(failure(&container, 125, &errors), None);
        fs::write(&errors, "one\ntwo\nthree\nfour\nError: no such image\nfive\n").unwrap();
        let why = failure(&container, 125, &errors).unwrap().to_string();
        assert!(
            why.contains("podman could not run the image x:1: two; three; four; Error: no such image; five"),
            "{why}"
        );
        assert_eq!(failure(&container, 1, &errors), None);
        fs::write(&errors, "of the command\n").unwrap();
        assert_eq!(failure(&container, 125, &errors), None);
        for (code, said) in [
            (126, "Error: crun: open executable: Permission denied: OCI permission denied\n"),
            (126, "Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied\n\n"),
            (
                127,
                "Error: crun: executable file `x` not found in $PATH: No such file or directory: OCI runtime attempted to invoke a command that was not found\n",
            ),
        ] {
            fs::write(&errors, said).unwrap();
            assert!(
                failure(&container, code, &errors)
                    .unwrap()
                    .to_string()
                    .contains("could not run the image x:1: Error: crun")
            );
        }
        // A command that starts containers itself, and goes on.
        fs::write(&errors, "Error: crun: x: OCI runtime error\nof the command\n").unwrap();
        assert_eq!(failure(&container, 127, &errors), None);
        fs::write(&errors, "Error: of the command\n").unwrap();
        assert_eq!(failure(&container, 127, &errors), None);
    }
}
