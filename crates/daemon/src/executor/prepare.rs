//! What has to be known before a launch: the environment, the directories and where the program is.

use super::members::MARK;
use super::own_dir;
use super::progress::progress_file;
use super::task_dirs::{error_file, nodes_file};
use crate::files::FileStore;
use crate::removal::Remover;
use amalgam_core::vocabulary::byte_string::shown;
use amalgam_core::vocabulary::{
    ByteString, Digest, EndReason, Ended, EndedFiles, LaunchOrder, NodeId, Workdir, files::INPUTS,
};
use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory of marks of attempts that have inputs.
const READERS: &str = "readers";
/// Where programs are looked for when the environment has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";
/// The names of a gang's nodes are a variable up to this length, in bytes; the file has them in any case.
const MOST_NAMES: usize = 64 << 10;
/// Variables of the daemon that tasks find, beside those that start with `LC_`.
const PASSED_ON: [&[u8]; 7] = [b"PATH", b"HOME", b"USER", b"LOGNAME", b"SHELL", b"LANG", b"TZ"];

/// A launch with everything resolved.
pub struct Prepared {
    pub program: CString,
    pub arguments: Vec<CString>,
    pub environment: Vec<CString>,
    pub directory: CString,
}

/// What every task finds of the node's own environment, as `NAME=value`: who it runs as, where programs are, and the language
/// and time zone of messages. Whatever else the daemon was started with may be a secret, or true of the daemon alone.
pub struct BaseEnvironment(Vec<Vec<u8>>);

impl BaseEnvironment {
    pub fn of_this_process() -> BaseEnvironment {
        BaseEnvironment::of(std::env::vars_os())
    }

    fn of(variables: impl Iterator<Item = (OsString, OsString)>) -> BaseEnvironment {
        let is_passed_on = |name: &OsString| {
            let name = name.as_bytes();
            PASSED_ON.contains(&name) || name.starts_with(b"LC_")
        };
        let join = |(name, value): (OsString, OsString)| [name.as_bytes(), b"=", value.as_bytes()].concat();
        let mut environment: Vec<Vec<u8>> = variables.filter(|(name, _)| is_passed_on(name)).map(join).collect();
        if get(&environment, b"PATH").is_none() {
            set(&mut environment, b"PATH", DEFAULT_PATH);
        }
        BaseEnvironment(environment)
    }

    /// The node's environment, then the product's variables, then the program's, then the directories: later wins, so a
    /// program may set `OMP_NUM_THREADS` but nothing that starts with `AMALGAM_`.
    fn for_task(&self, order: &LaunchOrder, task_dir: &Path, directory: &Path) -> Vec<Vec<u8>> {
        let mut environment = self.0.clone();
        for (name, value) in &order.variables() {
            set(&mut environment, name.as_bytes(), value.as_bytes());
        }
        let reserved = |name: &ByteString| name.as_bytes().starts_with(b"AMALGAM_");
        for (name, value) in order.template.program.env.iter().filter(|(name, _)| !reserved(name)) {
            set(&mut environment, name.as_bytes(), value.as_bytes());
        }
        let mut set = |name: &str, value: &[u8]| set(&mut environment, name.as_bytes(), value);
        set(MARK, task_dir.as_os_str().as_bytes());
        set("AMALGAM_ERROR_FILE", error_file(task_dir).as_os_str().as_bytes());
        set("AMALGAM_PROGRESS_FILE", progress_file(task_dir).as_os_str().as_bytes());
        set("TMPDIR", task_dir.as_os_str().as_bytes());
        if let Some(hosts) = &order.hosts {
            set("AMALGAM_NODES_FILE", nodes_file(task_dir).as_os_str().as_bytes());
            let names = hosts.names().join(",");
            if names.len() <= MOST_NAMES {
                set("AMALGAM_NODES", names.as_bytes());
            }
        }
        // By the name that was asked for, as a shell would say it, although links may lead elsewhere.
        set("PWD", Path::new("/").join(directory).as_os_str().as_bytes());
        environment
    }
}

fn set(environment: &mut Vec<Vec<u8>>, name: &[u8], value: &[u8]) {
    let entry = [name, b"=", value].concat();
    match environment.iter_mut().find(|known| known.get(..=name.len()) == Some(&entry[..=name.len()])) {
        Some(known) => *known = entry,
        None => environment.push(entry),
    }
}

fn get<'a>(environment: &'a [Vec<u8>], name: &[u8]) -> Option<&'a [u8]> {
    environment.iter().find_map(|entry| entry.strip_prefix(name)?.strip_prefix(b"="))
}

/// Resolves an order, and makes the working directory if it is to have one of its own.
///
/// # Errors
/// Whose fault it is, with a sentence for the user that says what is missing and what would help.
pub fn prepare(
    order: &LaunchOrder,
    task_dir: &Path,
    state: &Path,
    base: &BaseEnvironment,
    remover: &Remover,
) -> Result<Prepared, EndReason> {
    let Some(command) = order.template.program.command.first().filter(|command| !command.is_empty()) else {
        return Err(EndReason::LaunchFailed("the command is empty".to_owned()));
    };
    let directory = working_directory(order, state, remover)?;
    if let Some(hosts) = &order.hosts {
        let written = fs::write(nodes_file(task_dir), hosts.lines());
        written.map_err(|error| node_fault("write the list of its gang's nodes", &error))?;
    }
    let environment = base.for_task(order, task_dir, &directory);
    let command = OsStr::from_bytes(command.as_bytes());
    let program = match command.as_bytes().contains(&b'/') {
        true => PathBuf::from(command),
        false => find_program(command, get(&environment, b"PATH").unwrap_or(DEFAULT_PATH), &directory)?,
    };
    let c_strings = |strings: Vec<Vec<u8>>| strings.into_iter().map(c_string).collect::<Result<Vec<CString>, _>>();
    Ok(Prepared {
        program: c_string(program.into_os_string().into_vec())?,
        arguments: c_strings(order.template.program.command.iter().cloned().map(ByteString::into_bytes).collect())?,
        environment: c_strings(environment)?,
        directory: c_string(directory.into_os_string().into_vec())?,
    })
}

fn c_string(bytes: Vec<u8>) -> Result<CString, EndReason> {
    let no_zero = "a zero byte is in its command, its environment or its directory";
    CString::new(bytes).map_err(|_| EndReason::LaunchFailed(no_zero.to_owned()))
}

/// The end of an attempt that this node could not launch, whatever its task is.
pub fn node_fault(what: &str, error: &io::Error) -> EndReason {
    EndReason::NodeFault(format!("this node cannot {what}: {error}"))
}

/// Whether a program or a directory may well be there, but this node cannot get at it: its disk or its file server fails.
pub fn is_out_of_reach(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ESTALE | libc::ENOTCONN | libc::ETIMEDOUT))
}

/// What a `chdir` that failed means to a user.
pub fn directory_failure(directory: &Path, error: &io::Error) -> EndReason {
    let shown = directory.display();
    let remedy = "share it with this node, or say `--workdir own` (`workdir = \"own\"` in a job file) to run each task \
                  in an empty directory";
    EndReason::LaunchFailed(match error.kind() {
        _ if is_out_of_reach(error) => return node_fault(&format!("enter the directory {shown}"), error),
        io::ErrorKind::NotFound => format!("this node has no directory {shown}; {remedy}"),
        _ => format!("cannot enter the directory {shown} on this node: {error}; {remedy}"),
    })
}

/// An empty directory. What is there is an attempt's of the same id, from a server that has lost its state since.
fn make_empty(directory: &Path, remover: &Remover) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(directory),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            remover.put_away(directory);
            fs::create_dir(directory)
        }
        other => other,
    }
}

fn path(written: &ByteString) -> PathBuf {
    OsStr::from_bytes(written.as_bytes()).into()
}

fn working_directory(order: &LaunchOrder, state: &Path, remover: &Remover) -> Result<PathBuf, EndReason> {
    match &order.template.program.workdir {
        Workdir::Submitted => Ok(path(&order.template.submit_dir)),
        Workdir::Path(written) => Ok(path(written)),
        Workdir::Own => {
            let own = own_dir(state, order.attempt);
            make_empty(&own, remover)
                .map_err(|error| node_fault(&format!("make the directory {}", own.display()), &error))?;
            lay_out_inputs(order, &own, state)?;
            Ok(own)
        }
    }
}

/// The end of an order with an input that its node does not have any more, or not as it was.
pub fn lacking(order: &LaunchOrder, state: &Path) -> Option<Arc<Ended>> {
    let store = FileStore::of(state, order.node);
    let mut missing: Vec<(Digest, NodeId)> = Vec::new();
    let mut first = None;
    for input in order.inputs.iter().filter(|input| !store.has(&input.digest, input.bytes)) {
        missing.push((input.digest, order.node));
        first.get_or_insert(&input.path);
    }
    let why = format!("its input {} is not on this node any more, or was written to", first?);
    let mut ended = Ended::without_run(EndReason::NoInput(why));
    Arc::make_mut(&mut ended).files = Some(Box::new(EndedFiles { outputs: Vec::new(), missing }));
    Some(ended)
}

/// Gives the task's inputs the names by which it knows them.
fn lay_out_inputs(order: &LaunchOrder, own: &Path, state: &Path) -> Result<(), EndReason> {
    if order.inputs.is_empty() {
        return Ok(());
    }
    let mark = readers_mark(state, &order.attempt.to_string());
    let marked = fs::create_dir_all(state.join(READERS)).and_then(|()| fs::write(&mark, ""));
    marked.map_err(|error| node_fault(&format!("make the file {}", mark.display()), &error))?;
    let store = FileStore::of(state, order.node);
    for input in order.inputs.iter() {
        let target = own.join(&input.path);
        let laid = fs::create_dir_all(target.parent().unwrap_or(own)).and_then(|()| store.link(&input.digest, &target));
        laid.map_err(|error| {
            let what = format!("this node cannot lay out its input {}: {}", input.path, store.trouble(&error));
            EndReason::NodeFault(what)
        })?;
    }
    Ok(())
}

/// Nobody reads them any more, and names would keep what the store drops.
pub fn remove_inputs(order: &LaunchOrder, state: &Path, remover: &Remover) {
    if !order.inputs.is_empty() {
        remover.put_away(&own_dir(state, order.attempt).join(INPUTS));
        let _ = fs::remove_file(readers_mark(state, &order.attempt.to_string()));
    }
}

/// The same, of all attempts that died with an earlier executor.
pub fn remove_remaining_inputs(state: &Path, remover: &Remover) {
    for mark in fs::read_dir(state.join(READERS)).into_iter().flatten().flatten() {
        let name = mark.file_name();
        if let Some((name, (job, _))) = name.to_str().and_then(|name| Some((name, name.split_once('-')?))) {
            remover.put_away(&state.join("own").join(job).join(name).join(INPUTS));
        }
        let _ = fs::remove_file(mark.path());
    }
}

/// Says that an attempt's inputs are laid out: a task may make a directory of that name itself.
fn readers_mark(state: &Path, attempt: &str) -> PathBuf {
    state.join(READERS).join(attempt)
}

fn find_program(name: &OsStr, search: &[u8], directory: &Path) -> Result<PathBuf, EndReason> {
    let (mut not_executable, mut out_of_reach) = (None, None);
    for place in search.split(|byte| *byte == b':') {
        let candidate = directory.join(OsStr::from_bytes(place)).join(name);
        match fs::metadata(&candidate) {
            Ok(metadata) if metadata.is_file() && metadata.mode() & 0o111 != 0 => return Ok(candidate),
            Ok(metadata) if metadata.is_file() => not_executable = Some(candidate),
            Err(error) if is_out_of_reach(&error) => out_of_reach = Some((candidate, error)),
            _ => {}
        }
    }
    Err(not_found(&shown(name.as_bytes()), search, not_executable, out_of_reach))
}

/// Why no program was found: it may be where nobody could look.
fn not_found(
    name: &str,
    search: &[u8],
    not_executable: Option<PathBuf>,
    out_of_reach: Option<(PathBuf, io::Error)>,
) -> EndReason {
    if let Some((path, error)) = out_of_reach {
        return node_fault(&format!("look for {}", path.display()), &error);
    }
    EndReason::LaunchFailed(match not_executable {
        Some(path) => format!("{} is not executable (`chmod +x` makes it so)", path.display()),
        None if is_command_line(name) => needs_shell(name),
        None => format!("the command `{name}` was not found on this node; PATH is {}", shortened(search)),
    })
}

/// Someone meant a shell to take it apart.
pub fn is_command_line(program: &str) -> bool {
    program.contains(char::is_whitespace)
}

pub fn needs_shell(line: &str) -> String {
    format!(
        "there is no program `{line}` on this node; write its arguments as words of their own, or have a shell read it: \
         `sh -c '...'`"
    )
}

/// The first places of a path, as many as are read at a glance.
fn shortened(search: &[u8]) -> String {
    const SHOWN: usize = 4;
    let search = String::from_utf8_lossy(search);
    let places: Vec<&str> = search.split(':').collect();
    match places.len().saturating_sub(SHOWN) {
        0 => search.into_owned(),
        more => format!("{} and {more} more", places[..SHOWN].join(":")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Left;
    use amalgam_core::vocabulary::{
        AttemptId, Epoch, InputFile, JobId, NodeId, Program, Resources, StoredFile, TaskId, TaskShape, TaskTemplate,
    };

    fn remover(state: &Path) -> Remover {
        Remover::new(state).unwrap()
    }

    /// Of two cores.
    fn order(env: &[(&str, &str)]) -> LaunchOrder {
        let env = env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let program = Arc::new(Program { env, ..Program::default() });
        let shape = Arc::new(TaskShape { resources: Resources::new(2_000, 0), ..TaskShape::default() });
        LaunchOrder {
            attempt: AttemptId { job: JobId(1), epoch: Epoch(1), number: 1 },
            task: TaskId { job: JobId(1), ..TaskId::default() },
            node: NodeId(1),
            node_name: "node".to_owned(),
            hosts: None,
            shared_gpu: None,
            template: Arc::new(TaskTemplate { program, shape, ..TaskTemplate::default() }),
            index: 0,
            item: None,
            devices: Vec::new(),
            inputs: Arc::default(),
            grant: None,
            expected: None,
        }
    }

    /// An attempt that reads one file, laid out.
    fn laid_out(state: &Path) -> (LaunchOrder, PathBuf) {
        fs::write(state.join("o"), "abc").unwrap();
        let mut order = order(&[]);
        let StoredFile { digest, bytes } =
            FileStore::of(state, order.node).put(&Left::find(state, "o").unwrap(), false).unwrap();
        let path = "inputs/a/0/o".to_owned();
        order.inputs = Arc::new([InputFile { path, digest, bytes, holders: Vec::new() }]);
        let own = working_directory(&LaunchOrder { template: own_template(), ..order.clone() }, state, &remover(state))
            .unwrap();
        assert_eq!(fs::read_to_string(own.join("inputs/a/0/o")).unwrap(), "abc");
        (order, own)
    }

    fn own_template() -> Arc<TaskTemplate> {
        let program = Arc::new(Program { workdir: Workdir::Own, ..Program::default() });
        Arc::new(TaskTemplate { program, ..TaskTemplate::default() })
    }

    #[test]
    fn inputs_of_attempts_that_died_with_an_executor_go_and_no_task_s_own_directory_does() {
        let state = tempfile::tempdir().unwrap();
        let (order, own) = laid_out(state.path());
        remove_inputs(&order, state.path(), &remover(state.path()));
        assert!(own.exists() && !own.join(INPUTS).exists());
        fs::create_dir(own.join(INPUTS)).unwrap();
        remove_remaining_inputs(state.path(), &remover(state.path()));
        assert!(own.join(INPUTS).exists(), "nobody laid that one out");
        let (_, own) = laid_out(state.path());
        remove_remaining_inputs(state.path(), &remover(state.path()));
        assert!(own.exists() && !own.join(INPUTS).exists());
    }

    #[test]
    fn an_attempt_finds_nothing_of_another_one_of_its_id() {
        let state = tempfile::tempdir().unwrap();
        let (_, own) = laid_out(state.path());
        fs::write(own.join("result"), "old").unwrap();
        let (_, again) = laid_out(state.path());
        assert!(own == again && !own.join("result").exists());
    }

    #[test]
    fn the_later_source_of_a_variable_wins() {
        let base =
            BaseEnvironment(vec![b"HOME=/root".to_vec(), b"TMPDIR=/tmp".to_vec(), b"AMALGAM_TASK_DIR=/x".to_vec()]);
        let order =
            order(&[("OMP_NUM_THREADS", "9"), ("AMALGAM_JOB_ID", "forged"), ("HOME", "/home/me"), ("HOMEPAGE", "h")]);
        let environment = base.for_task(&order, Path::new("/state/tasks/1"), Path::new("/work"));
        let value =
            |name: &str| get(&environment, name.as_bytes()).map(|value| String::from_utf8_lossy(value).into_owned());
        assert_eq!(value("HOME").as_deref(), Some("/home/me"));
        assert_eq!(value("OMP_NUM_THREADS").as_deref(), Some("9"));
        assert_eq!(value("AMALGAM_JOB_ID").as_deref(), Some("1"));
        assert_eq!(value("AMALGAM_TASK_DIR").as_deref(), Some("/state/tasks/1"));
        assert_eq!(value("TMPDIR").as_deref(), Some("/state/tasks/1"));
        assert_eq!(value("HOMEPAGE").as_deref(), Some("h"));
        let mut names: Vec<&[u8]> =
            environment.iter().filter_map(|entry| entry.split(|byte| *byte == b'=').next()).collect();
        names.sort_unstable();
        assert!(names.is_sorted_by(|one, next| one < next), "each is set once");
    }

    #[test]
    fn tasks_find_little_of_the_daemon_s_environment_and_a_working_directory_of_their_own() {
        let daemon = [
            ("PATH", "/opt/bin"),
            ("HOME", "/root"),
            ("LC_ALL", "C.UTF-8"),
            ("TZ", "UTC"),
            ("PWD", "/somewhere"),
            ("OLDPWD", "/elsewhere"),
            ("SECRET", "s"),
            ("AMALGAM_TOKEN", "t"),
            ("LISTEN_FDS", "1"),
            ("PATHOLOGY", "p"),
        ];
        let base = |variables: &[(&str, &str)]| {
            BaseEnvironment::of(variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))))
        };
        let names = |environment: Vec<Vec<u8>>| -> Vec<String> {
            let texts = environment.into_iter().map(|entry| String::from_utf8(entry).unwrap());
            texts.filter(|text| !text.starts_with("AMALGAM_")).collect()
        };
        let of = |base: BaseEnvironment, env: &[(&str, &str)]| {
            names(base.for_task(&order(env), Path::new("/t"), Path::new("/link/work")))
        };
        let usual = ["OMP_NUM_THREADS=2", "TMPDIR=/t", "PWD=/link/work"];
        let kept = ["PATH=/opt/bin", "HOME=/root", "LC_ALL=C.UTF-8", "TZ=UTC"];
        assert_eq!(of(base(&daemon), &[]), [&kept[..], &usual].concat());
        let bare = [&["PATH=/usr/local/bin:/usr/bin:/bin"][..], &usual].concat();
        assert_eq!(of(base(&[]), &[("PWD", "/forged")]).len(), bare.len());
        assert_eq!(of(base(&[]), &[]), bare);
    }

    #[test]
    fn programs_are_found_along_the_path_and_from_the_working_directory() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        fs::create_dir(here.join("bin")).unwrap();
        fs::write(here.join("bin/tool"), "").unwrap();
        let refused = find_program("tool".as_ref(), b"/nowhere:bin", here).unwrap_err().to_string();
        assert!(refused.contains("not executable"), "{refused}");
        fs::set_permissions(here.join("bin/tool"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(find_program("tool".as_ref(), b"/nowhere:bin", here), Ok(here.join("bin/tool")));
        let missing = find_program("no-such".as_ref(), b"/nowhere:bin", here).unwrap_err();
        let why = "the command `no-such` was not found on this node; PATH is /nowhere:bin";
        assert_eq!(missing, EndReason::LaunchFailed(why.to_owned()));
        let long = find_program("no-such".as_ref(), b"/a:/b:/c:/d:/e:/f", here).unwrap_err().to_string();
        assert!(long.ends_with("PATH is /a:/b:/c:/d and 2 more"), "{long}");
        let line = find_program("echo $FOO".as_ref(), b"/nowhere", here).unwrap_err().to_string();
        assert!(line.contains("`sh -c '...'`") && !line.contains("PATH"), "{line}");
    }

    #[test]
    fn what_the_node_cannot_reach_is_its_own_fault() {
        let (path, directory) = (Path::new("/shared/tool"), Path::new("/shared"));
        let is_nodes = |end: EndReason| matches!(end, EndReason::NodeFault(_));
        for number in [libc::EIO, libc::ESTALE, libc::ENOTCONN, libc::ETIMEDOUT] {
            let error = || io::Error::from_raw_os_error(number);
            assert!(is_nodes(directory_failure(directory, &error())));
            assert!(is_nodes(not_found("tool", b"/shared", None, Some((path.to_owned(), error())))));
        }
        for number in [libc::ENOENT, libc::EACCES, libc::ENOTDIR] {
            let error = io::Error::from_raw_os_error(number);
            assert!(!is_nodes(directory_failure(directory, &error)));
        }
    }
}
