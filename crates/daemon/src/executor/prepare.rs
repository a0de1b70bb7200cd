//! Prepares a launch: the environment, the directories and the path of the program.

use super::accounts::Account;
use super::containers::{self, Inside, Started};
use super::devices::{DeviceFiles, KnownDevices};
use super::isolation::{self, Outside};
use super::members::MARK;
use super::own_dir;
use super::progress::progress_file;
use super::sys::mounts::Mounts;
use super::task_dirs::{error_file, nodes_file};
use crate::files::FileStore;
use crate::private::make_passable_dir;
use crate::removal::Remover;
use amalgam_core::vocabulary::byte_string::shown;
use amalgam_core::vocabulary::{
    ByteString, Digest, EndReason, Ended, EndedFiles, Isolation, LaunchOrder, NodeId, Workdir, files::INPUTS,
};
use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory with a file for each attempt that has inputs.
const READERS: &str = "readers";
/// The `PATH` if the environment has none.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";
/// Maximum length in bytes of the variable with the names of a gang's nodes. The file always has the names.
const MOST_NAMES: usize = 64 << 10;
/// Variables of the daemon that tasks get, in addition to those that start with `LC_`.
const PASSED_ON: [&[u8]; 7] = [b"PATH", b"HOME", b"USER", b"LOGNAME", b"SHELL", b"LANG", b"TZ"];

/// A launch with all paths and values resolved.
pub struct Prepared {
    /// Paths of the program, of which the first that exists is executed. Only one, unless the task runs as another user: then
    /// the search is that user's.
    pub programs: Vec<CString>,
    pub arguments: Vec<CString>,
    pub environment: Vec<CString>,
    pub directory: CString,
    pub is_of_another_user: bool,
    /// The mounts of an isolated task.
    pub mounts: Option<Mounts>,
    /// The container that the program starts.
    pub container: Option<Started>,
}

impl Prepared {
    /// The path of the program, or the first one of several.
    pub fn program(&self) -> &CString {
        &self.programs[0]
    }

    /// The program that failed, as written and as a file: of several, the first one that exists.
    pub fn tried(&self) -> (PathBuf, PathBuf) {
        let directory = Path::new(OsStr::from_bytes(self.directory.as_bytes()));
        let paths = || self.programs.iter().map(|program| Path::new(OsStr::from_bytes(program.as_bytes())));
        let found = if self.programs.len() > 1 { paths().find(|path| path.is_file()) } else { None };
        let program = found.or_else(|| paths().next()).unwrap_or(Path::new(""));
        (program.to_owned(), directory.join(program))
    }

    /// Why none of several programs could be executed; with the rights of the task's user.
    pub fn why_not_found(&self) -> Option<EndReason> {
        let (command, search) = (self.arguments.first()?, self.search()?);
        let directory = OsStr::from_bytes(self.directory.as_bytes());
        find_program(OsStr::from_bytes(command.as_bytes()), search, Path::new(directory)).err()
    }

    /// The `PATH` in which the program is searched, if it is.
    fn search(&self) -> Option<&[u8]> {
        let is_path = self.arguments.first()?.as_bytes().contains(&b'/');
        let of_task = || self.environment.iter().find_map(|entry| entry.as_bytes().strip_prefix(b"PATH="));
        (!is_path).then(|| of_task().unwrap_or(DEFAULT_PATH))
    }
}

/// Where and as whom an order is executed.
pub struct Place<'a> {
    pub task_dir: &'a Path,
    pub state: &'a Path,
    pub base: &'a BaseEnvironment,
    pub remover: &'a Remover,
    /// The account that the task runs as; `None` for this process's own.
    pub account: Option<&'a Account>,
    /// The declared devices of the node.
    pub declared: &'a [DeviceFiles],
    pub open_files: Option<libc::rlimit>,
}

/// The part of the daemon's environment that every task gets, as `NAME=value`: the user, the `PATH`, the language and
/// the time zone. Other variables may be secrets, or may apply only to the daemon.
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

    /// The `PATH` for a user with this home directory: without the directories in another one, that of the daemon's user.
    fn search_for(&self, home: &Path) -> Vec<u8> {
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        let own = get(&self.0, b"HOME").map(path).filter(|own| own != home && own.parent().is_some());
        let directories = get(&self.0, b"PATH").unwrap_or(DEFAULT_PATH).split(|byte| *byte == b':');
        let is_kept = |directory: &&[u8]| own.as_ref().is_none_or(|own| !path(directory).starts_with(own));
        let kept: Vec<&[u8]> = directories.filter(is_kept).collect();
        if kept.is_empty() { DEFAULT_PATH.to_vec() } else { kept.join(&b':') }
    }

    /// The node's environment, then Amalgam's variables, then the job's, then the directories. A later value replaces
    /// an earlier one, so a job may set `OMP_NUM_THREADS`, but no variable that starts with `AMALGAM_`.
    fn for_task(
        &self,
        order: &LaunchOrder,
        task_dir: &Path,
        directory: &Path,
        account: Option<&Account>,
    ) -> Vec<Vec<u8>> {
        let mut environment = self.0.clone();
        if let Some(Account { name, home, shell, .. }) = account {
            let search = self.search_for(home);
            set(&mut environment, b"PATH", &search);
            set(&mut environment, b"HOME", home.as_os_str().as_bytes());
            set(&mut environment, b"USER", name.as_bytes());
            set(&mut environment, b"LOGNAME", name.as_bytes());
            set(&mut environment, b"SHELL", shell.as_os_str().as_bytes());
        }
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
        // The requested path with its links, as a shell sets it.
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

/// Resolves an order, and creates the working directory if the task has its own.
///
/// # Errors
/// A failure of the task or of the node, with a sentence for the user that names the problem and a remedy.
pub fn prepare(order: &LaunchOrder, place: &Place) -> Result<Prepared, EndReason> {
    let Place { task_dir, state, base, remover, account, declared, .. } = *place;
    let Some(command) = order.template.program.command.first().filter(|command| !command.is_empty()) else {
        return Err(EndReason::LaunchFailed("the command is empty".to_owned()));
    };
    let directory = working_directory(order, state, remover)?;
    if let (Workdir::Own, Some(account)) = (&order.template.program.workdir, account) {
        let given = give_own_dir(order, state, account);
        given.map_err(|error| node_fault(&format!("give {} to {}", directory.display(), account.name), &error))?;
    }
    if let Some(hosts) = &order.hosts {
        let written = fs::write(nodes_file(task_dir), hosts.lines());
        written.map_err(|error| node_fault("write the list of the gang's nodes", &error))?;
    }
    let mounts = match order.template.program.isolation {
        // A container has all of this of its own.
        _ if order.template.program.container.is_some() => None,
        None | Some(Isolation::None) => None,
        Some(Isolation::PrivateTmp) => Some(isolation::prepare(task_dir, &directory, None)?),
        Some(Isolation::Sandbox) => {
            let outside = Outside { state, devices: KnownDevices::new(declared).files(&order.devices) };
            Some(isolation::prepare(task_dir, &directory, Some(&outside))?)
        }
    };
    if let Some(account) = account {
        let given = give_task_dir(task_dir, account);
        given.map_err(|error| node_fault(&format!("give {} to {}", task_dir.display(), account.name), &error))?;
    }
    let environment = base.for_task(order, task_dir, &directory, account);
    if let Some(image) = &order.template.program.container {
        return in_container(order, place, image, &environment, directory);
    }
    let command = OsStr::from_bytes(command.as_bytes());
    let search = get(&environment, b"PATH").unwrap_or(DEFAULT_PATH);
    let programs = match (command.as_bytes().contains(&b'/'), account) {
        (true, _) => vec![PathBuf::from(command)],
        (false, None) => vec![find_program(command, search, &directory)?],
        (false, Some(_)) => candidates(command, search, &directory).collect(),
    };
    let c_strings = |strings: Vec<Vec<u8>>| strings.into_iter().map(c_string).collect::<Result<Vec<CString>, _>>();
    Ok(Prepared {
        programs: c_strings(programs.into_iter().map(|program| program.into_os_string().into_vec()).collect())?,
        arguments: c_strings(order.template.program.command.iter().cloned().map(ByteString::into_bytes).collect())?,
        environment: c_strings(environment)?,
        directory: c_string(directory.into_os_string().into_vec())?,
        is_of_another_user: account.is_some(),
        mounts,
        container: None,
    })
}

/// The command of a runtime that runs the order's command in its image.
fn in_container(
    order: &LaunchOrder,
    place: &Place,
    image: &str,
    environment: &[Vec<u8>],
    directory: PathBuf,
) -> Result<Prepared, EndReason> {
    let Place { task_dir, state, base, account, declared, open_files, .. } = *place;
    let mut plain = order.clone();
    Arc::make_mut(&mut Arc::make_mut(&mut plain.template).program).env.clear();
    let node = base.for_task(&plain, task_dir, Path::new("/"), account);
    let devices = KnownDevices::new(declared).files(&order.devices);
    let directory = Path::new("/").join(directory);
    let (devices, directory) = (devices.as_slice(), directory.as_path());
    let inside = Inside { state, order, image, environment, task_dir, directory, account, devices, open_files };
    // That of the task's user.
    let search = get(&node, b"PATH").unwrap_or(DEFAULT_PATH);
    let command = containers::command(&inside, &node, OsStr::from_bytes(search))?;
    let c_strings = |strings: Vec<Vec<u8>>| strings.into_iter().map(c_string).collect::<Result<Vec<CString>, _>>();
    Ok(Prepared {
        programs: vec![c_string(command.program.into_os_string().into_vec())?],
        arguments: c_strings(command.arguments)?,
        environment: c_strings(command.environment)?,
        directory: c"/".into(),
        is_of_another_user: account.is_some(),
        mounts: None,
        container: Some(command.container),
    })
}

fn c_string(bytes: Vec<u8>) -> Result<CString, EndReason> {
    let no_zero = "its command, environment or directory contains a zero byte";
    CString::new(bytes).map_err(|_| EndReason::LaunchFailed(no_zero.to_owned()))
}

/// The end of an attempt that could not be launched because of this node, not because of its task.
pub fn node_fault(what: &str, error: &io::Error) -> EndReason {
    EndReason::NodeFault(format!("this node cannot {what}: {error}"))
}

/// Whether this error means that the node cannot access a program or directory because a disk or a file server fails.
pub fn is_out_of_reach(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EIO | libc::ESTALE | libc::ENOTCONN | libc::ETIMEDOUT))
}

/// The end of an attempt whose `chdir` failed, with a sentence for the user.
pub fn directory_failure(directory: &Path, error: &io::Error) -> EndReason {
    let shown = directory.display();
    let remedy = "share it with this node, or use `--workdir own` (`workdir = \"own\"` in a job file) to run each task \
                  in an empty directory";
    EndReason::LaunchFailed(match error.kind() {
        _ if is_out_of_reach(error) => return node_fault(&format!("enter the directory {shown}"), error),
        io::ErrorKind::NotFound => format!("this node has no directory {shown}; {remedy}"),
        _ => format!("cannot enter the directory {shown} on this node: {error}; {remedy}"),
    })
}

/// Creates an empty directory. An existing one belongs to an attempt with the same id, of a server that has lost its
/// state since, and is removed.
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
                .map_err(|error| node_fault(&format!("create the directory {}", own.display()), &error))?;
            lay_out_inputs(order, &own, state)?;
            Ok(own)
        }
    }
}

/// Gives a task's own directory and the directories of its inputs to the user; the inputs stay read-only and this process's. Nobody
/// else has access to the directory before.
fn give_own_dir(order: &LaunchOrder, state: &Path, account: &Account) -> io::Result<()> {
    let own = own_dir(state, order.attempt);
    for above in [own.parent(), own.parent().and_then(Path::parent)].into_iter().flatten().rev() {
        make_passable_dir(above)?;
    }
    let mut given = vec![own.clone()];
    for input in order.inputs.iter() {
        let target = own.join(&input.path);
        let above = target.ancestors().skip(1).take_while(|above| *above != own);
        given.extend(above.map(Path::to_owned));
    }
    // The directory itself is the last: its user can replace the others from then on.
    given.sort_by_key(|directory| std::cmp::Reverse(directory.as_os_str().len()));
    for directory in given {
        std::os::unix::fs::lchown(directory, Some(account.uid), Some(account.gid))?;
    }
    Ok(())
}

/// Gives a task's scratch directory to the user, with the list of a gang's nodes if it has one.
fn give_task_dir(task_dir: &Path, account: &Account) -> io::Result<()> {
    for path in [nodes_file(task_dir), task_dir.to_owned()] {
        match std::os::unix::fs::lchown(&path, Some(account.uid), Some(account.gid)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && path != task_dir => {}
            given => given?,
        }
    }
    Ok(())
}

/// The end of an attempt if one of its inputs is missing on this node or was changed.
pub fn lacking(order: &LaunchOrder, state: &Path) -> Option<Arc<Ended>> {
    let store = FileStore::of(state, order.node);
    let mut missing: Vec<(Digest, NodeId)> = Vec::new();
    let mut first = None;
    for input in order.inputs.iter().filter(|input| !store.has(&input.digest, input.bytes)) {
        missing.push((input.digest, order.node));
        first.get_or_insert(&input.path);
    }
    let why = format!("its input {} is missing on this node, or was changed", first?);
    let mut ended = Ended::without_run(EndReason::NoInput(why));
    Arc::make_mut(&mut ended).files = Some(Box::new(EndedFiles { outputs: Vec::new(), missing }));
    Some(ended)
}

/// Links the task's inputs into its working directory.
fn lay_out_inputs(order: &LaunchOrder, own: &Path, state: &Path) -> Result<(), EndReason> {
    if order.inputs.is_empty() {
        return Ok(());
    }
    let mark = readers_mark(state, &order.attempt.to_string());
    let marked = fs::create_dir_all(state.join(READERS)).and_then(|()| fs::write(&mark, ""));
    marked.map_err(|error| node_fault(&format!("create the file {}", mark.display()), &error))?;
    let store = FileStore::of(state, order.node);
    for input in order.inputs.iter() {
        let target = own.join(&input.path);
        let laid = fs::create_dir_all(target.parent().unwrap_or(own)).and_then(|()| store.link(&input.digest, &target));
        laid.map_err(|error| {
            let what = format!("this node cannot provide the input {}: {}", input.path, store.trouble(&error));
            EndReason::NodeFault(what)
        })?;
    }
    Ok(())
}

/// Removes the links to an attempt's inputs after its end: they would keep files that the store deletes.
pub fn remove_inputs(order: &LaunchOrder, state: &Path, remover: &Remover) {
    if !order.inputs.is_empty() {
        remover.put_away(&own_dir(state, order.attempt).join(INPUTS));
        let _ = fs::remove_file(readers_mark(state, &order.attempt.to_string()));
    }
}

/// Removes the links to inputs of attempts that ended with an earlier executor.
pub fn remove_remaining_inputs(state: &Path, remover: &Remover) {
    for mark in fs::read_dir(state.join(READERS)).into_iter().flatten().flatten() {
        let name = mark.file_name();
        if let Some((name, (job, _))) = name.to_str().and_then(|name| Some((name, name.split_once('-')?))) {
            remover.put_away(&state.join("own").join(job).join(name).join(INPUTS));
        }
        let _ = fs::remove_file(mark.path());
    }
}

/// The file that marks an attempt with links to inputs. The directory of inputs alone is no mark, because a task may
/// create one with this name.
fn readers_mark(state: &Path, attempt: &str) -> PathBuf {
    state.join(READERS).join(attempt)
}

/// The paths that a program may have, in the order of the search.
fn candidates<'a>(name: &'a OsStr, search: &'a [u8], directory: &'a Path) -> impl Iterator<Item = PathBuf> + 'a {
    search.split(|byte| *byte == b':').map(move |place| directory.join(OsStr::from_bytes(place)).join(name))
}

fn find_program(name: &OsStr, search: &[u8], directory: &Path) -> Result<PathBuf, EndReason> {
    let (mut not_executable, mut out_of_reach) = (None, None);
    for candidate in candidates(name, search, directory) {
        match fs::metadata(&candidate) {
            Ok(metadata) if metadata.is_file() && metadata.mode() & 0o111 != 0 => return Ok(candidate),
            Ok(metadata) if metadata.is_file() => not_executable = Some(candidate),
            Err(error) if is_out_of_reach(&error) => out_of_reach = Some((candidate, error)),
            _ => {}
        }
    }
    Err(not_found(&shown(name.as_bytes()), search, not_executable, out_of_reach))
}

/// Why no program was found. If a directory could not be accessed, the node is at fault.
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
        Some(path) => format!("{} is not executable; use `chmod +x`", path.display()),
        None if is_command_line(name) => needs_shell(name),
        None => format!("the command `{name}` was not found on this node; PATH is {}", shortened(search)),
    })
}

/// Whether this is a command line for a shell rather than the name of a program.
pub fn is_command_line(program: &str) -> bool {
    program.contains(char::is_whitespace)
}

pub fn needs_shell(line: &str) -> String {
    format!(
        "program `{line}` not found on this node; write its arguments as separate words, or use a shell: `sh -c '...'`"
    )
}

/// The first directories of a search path, and the number of the others.
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

    /// An order of a task with 2 cores.
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

    /// An attempt with one input in its working directory.
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
    fn inputs_of_attempts_of_an_earlier_executor_are_removed_and_tasks_own_directories_are_kept() {
        let state = tempfile::tempdir().unwrap();
        let (order, own) = laid_out(state.path());
        remove_inputs(&order, state.path(), &remover(state.path()));
        assert!(own.exists() && !own.join(INPUTS).exists());
        fs::create_dir(own.join(INPUTS)).unwrap();
        remove_remaining_inputs(state.path(), &remover(state.path()));
        assert!(own.join(INPUTS).exists(), "the task created this directory");
        let (_, own) = laid_out(state.path());
        remove_remaining_inputs(state.path(), &remover(state.path()));
        assert!(own.exists() && !own.join(INPUTS).exists());
    }

    #[test]
    fn an_own_directory_contains_no_files_of_an_earlier_attempt_with_the_same_id() {
        let state = tempfile::tempdir().unwrap();
        let (_, own) = laid_out(state.path());
        fs::write(own.join("result"), "old").unwrap();
        let (_, again) = laid_out(state.path());
        assert!(own == again && !own.join("result").exists());
    }

    #[test]
    fn a_later_source_of_a_variable_replaces_an_earlier_one() {
        let base =
            BaseEnvironment(vec![b"HOME=/root".to_vec(), b"TMPDIR=/tmp".to_vec(), b"AMALGAM_TASK_DIR=/x".to_vec()]);
        let order =
            order(&[("OMP_NUM_THREADS", "9"), ("AMALGAM_JOB_ID", "forged"), ("HOME", "/home/me"), ("HOMEPAGE", "h")]);
        let environment = base.for_task(&order, Path::new("/state/tasks/1"), Path::new("/work"), None);
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
        assert!(names.is_sorted_by(|one, next| one < next), "each variable is set once");
    }

    #[test]
    fn directories_of_the_daemons_user_are_in_no_one_elses_path() {
        let search = |path: &str, home: &str, user: &str| {
            let base =
                BaseEnvironment(vec![[b"PATH=", path.as_bytes()].concat(), [b"HOME=", home.as_bytes()].concat()]);
            String::from_utf8(base.search_for(Path::new(user))).unwrap()
        };
        let path = "/root/.cargo/bin:/usr/local/bin:/rooted/bin:/usr/bin";
        assert_eq!(search(path, "/root", "/home/ada"), "/usr/local/bin:/rooted/bin:/usr/bin");
        assert_eq!(search(path, "/root", "/root"), path);
        assert_eq!(search(path, "/", "/home/ada"), path, "a service without a home directory");
        assert_eq!(search("/root/bin", "/root", "/home/ada"), "/usr/local/bin:/usr/bin:/bin");
    }

    #[test]
    fn tasks_get_only_a_few_of_the_daemons_variables() {
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
            names(base.for_task(&order(env), Path::new("/t"), Path::new("/link/work"), None))
        };
        let usual = ["OMP_NUM_THREADS=2", "TMPDIR=/t", "PWD=/link/work"];
        let kept = ["PATH=/opt/bin", "HOME=/root", "LC_ALL=C.UTF-8", "TZ=UTC"];
        assert_eq!(of(base(&daemon), &[]), [&kept[..], &usual].concat());
        let bare = [&["PATH=/usr/local/bin:/usr/bin:/bin"][..], &usual].concat();
        assert_eq!(of(base(&[]), &[("PWD", "/forged")]).len(), bare.len());
        assert_eq!(of(base(&[]), &[]), bare);
    }

    #[test]
    fn programs_are_searched_in_the_path_relative_to_the_working_directory() {
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
    fn errors_of_disks_and_file_servers_are_node_faults() {
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
