//! Turns the types of a job file into a checked job.

use crate::document::{At, Format, Node, Value, parse};
use crate::error::{Complaint, FileError, Position};
use crate::inherit::{Submitter, Umask};
use crate::job_file::{
    Array, Command, ConstraintText, Each, Environment, Execution, IsolationText, JobFile, ResourceTable, StageFile,
    TaintText, Word,
};
use crate::quantities::{self, Malformed, check_text};
use crate::{bytes_of, files, order, suggest, tasks};
use amalgam_core::vocabulary::byte_string::shown;
use amalgam_core::vocabulary::job::{MAX_STAGES, check_image};
use amalgam_core::vocabulary::launch_size;
use amalgam_core::vocabulary::names::{MOST_BYTES, is_invisible};
use amalgam_core::vocabulary::resources::BUILT_IN;
use amalgam_core::vocabulary::{
    ByteString, Constraint, ExecutionType, JobId, JobSpec, Named, Program, Reads, StageSpec, TaskSet, Workdir,
};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Default of `output_cap`: the bytes that are kept of each output stream of a task.
pub const DEFAULT_OUTPUT_CAP: u64 = 64 << 20;

/// Where a job is submitted.
#[derive(Clone, Debug)]
pub struct Context {
    /// The absolute path of the directory of submission. Relative paths in a job file start here. Empty if it is not
    /// known.
    pub submit_dir: PathBuf,
}

/// If the unknown key is a resource, replaces the remedy by the table that the resource belongs to.
fn with_table(complaint: Complaint) -> Complaint {
    let resource = complaint.unknown_key().filter(|key| BUILT_IN.contains(key));
    let remedy = resource.map(|key| match key {
        "memory" => "write `resources = { memory = \"1GiB\" }`".to_owned(),
        _ => format!("write `resources = {{ {key} = 1 }}`"),
    });
    Complaint { remedy: remedy.unwrap_or_else(|| complaint.remedy.clone()), ..complaint }
}

/// Reads a job file. `origin` is the file's name in messages, and the default of the job's name.
///
/// # Errors
/// The first problem, with its position and the remedy.
pub fn read_job(text: &str, format: Format, origin: &Path, context: &Context) -> Result<JobSpec, FileError> {
    read_job_of(&Submitter::default(), text, format, origin, context)
}

/// Like [`read_job`], for a submitter whose variables and umask the job file may use.
///
/// # Errors
/// As for [`read_job`].
pub fn read_job_of(
    submitter: &Submitter,
    text: &str,
    format: Format,
    origin: &Path,
    context: &Context,
) -> Result<JobSpec, FileError> {
    let document = parse(text, format).map_err(|complaint| complaint.in_file(origin))?;
    build(&document, submitter, origin, context).map_err(|complaint| complaint.in_file(origin))
}

/// The position of the `queue` key's value in a job file.
pub fn queue_position(text: &str, format: Format) -> Option<Position> {
    let Value::Table(entries) = parse(text, format).ok()?.value else { return None };
    entries.iter().find(|(key, _)| key.name == "queue").map(|(_, queue)| queue.at)
}

fn build(document: &Node, submitter: &Submitter, origin: &Path, context: &Context) -> Result<JobSpec, Complaint> {
    if !matches!(&document.value, Value::Table(entries) if !entries.is_empty()) {
        let remedy = "write at least `command = [\"program\", \"argument\"]`";
        return Err(Complaint::new("the file describes no job", remedy).at(document.at));
    }
    let mut file: JobFile = document.read().map_err(with_table)?;
    inherit(&mut file, submitter)?;
    let after_jobs = file.after.take().unwrap_or_default().0.into_iter().map(JobId).collect();
    let after_jobs_any = file.after_any.take().unwrap_or_default().0.into_iter().map(JobId).collect();
    let name = match &file.name {
        Some(name) => checked_name(Named::Job, name)?,
        None => default_name(origin.file_stem().unwrap_or_default().as_bytes()),
    };
    let mut job = JobSpec {
        name,
        queue: file.queue.take().map(|queue| queue.value).unwrap_or_default(),
        user: String::new(),
        priority: file.priority.unwrap_or(0),
        // An unknown directory is stored as `/`; `workdir_of` prevents tasks from running there by default.
        submit_dir: if is_nowhere(context) { "/".into() } else { bytes_of(&context.submit_dir) },
        stages: Vec::new(),
        after_jobs,
        after_jobs_any,
        max_fails: file.max_fails,
        held: file.hold.unwrap_or(false),
        wait_for_nodes: file.wait_for_nodes.unwrap_or(false),
        account: None,
    };
    let submitted = SubmittedFrom { context, submitter };
    job.stages = stages(file, document.at, submitted)?;
    tasks::check_count(job.task_count()).map_err(|wrong| Complaint::from(wrong).at(document.at))?;
    Ok(job)
}

/// Resolves the exported variables and the umask of the submitter. The job's own variables have priority over exported
/// ones.
fn inherit(file: &mut JobFile, submitter: &Submitter) -> Result<(), Complaint> {
    let written = file.export.take();
    let at = written.as_ref().map_or(Position::default(), |written| written.at);
    let export = submitter.export.clone().or(written.map(|written| written.value.0)).unwrap_or_default();
    let exported = export.resolve(submitter).map_err(|wrong| Complaint::from(wrong).at(at))?;
    if !exported.is_empty() {
        let env = file.env.get_or_insert(At { at, value: Environment::default() });
        env.value.0.splice(0..0, exported);
    }
    if let Some(At { at, value }) = &mut file.umask {
        let mask = value.0.resolve(submitter).map_err(|wrong| Complaint::from(wrong).at(*at))?;
        value.0 = Umask::These(mask);
    }
    Ok(())
}

/// Makes a job's name from a file's name, which may contain any bytes.
pub(crate) fn default_name(file: &[u8]) -> String {
    let mut name = String::new();
    for character in shown(file).chars() {
        let character = if is_invisible(character) { '_' } else { character };
        if name.len() + character.len_utf8() > MOST_BYTES {
            break;
        }
        name.push(character);
    }
    if name.trim().is_empty() { "job".to_owned() } else { name }
}

fn checked_name(what: Named, name: &At<String>) -> Result<String, Complaint> {
    quantities::check_name(what, &name.value).map_err(|wrong| Complaint::from(wrong).at(name.at))?;
    Ok(name.value.clone())
}

/// The stages in topological order.
fn stages(mut file: JobFile, top: Position, submitted: SubmittedFrom<'_>) -> Result<Vec<StageSpec>, Complaint> {
    let Some(At { at, value: list }) = file.stage.take() else {
        let only = At { at: top, value: only_stage(&mut file) };
        return Ok(vec![stage(only, "main".to_owned(), &file, false, submitted)?]);
    };
    for (key, at) in [
        ("command", file.command.as_ref().map(|key| key.at)),
        ("tasks", file.tasks.as_ref().map(|key| key.at)),
        ("array", file.array.as_ref().map(|key| key.at)),
        ("at_once", file.at_once.as_ref().map(|key| key.at)),
        ("each", file.each.as_ref().map(|key| key.at)),
        ("outputs", file.outputs.as_ref().map(|key| key.at)),
        ("gang", file.gang.as_ref().map(|key| key.at)),
    ] {
        if let Some(at) = at {
            let problem = format!("`{key}` is not allowed beside a list of stages");
            return Err(Complaint::new(problem, "move it into the stage that it belongs to").at(at));
        }
    }
    if list.is_empty() || list.len() > MAX_STAGES {
        let problem = format!("the job has {} stages", list.len());
        return Err(Complaint::new(problem, format!("give it between 1 and {MAX_STAGES}")).at(at));
    }
    let names = stage_names(&list)?;
    let after = dependencies(&list, &names)?;
    let order = order::topological(&after).map_err(|cycle| {
        let path: Vec<&str> = cycle.iter().map(|stage| names[*stage].as_str()).collect();
        let at = cycle.first().map_or(at, |stage| list[*stage].at);
        Complaint::new(format!("the stages form a cycle: {}", path.join(" -> ")), "remove one `after` of it").at(at)
    })?;

    let mut new_index = vec![0u32; order.len()];
    for (index, stage) in order.iter().enumerate() {
        new_index[*stage] = index as u32;
    }
    let mut written: Vec<_> = list.into_iter().zip(names.iter().cloned()).map(Some).collect();
    let mut specs = Vec::with_capacity(order.len());
    for index in order {
        let Some((mut file_stage, name)) = written[index].take() else { continue };
        let inputs = file_stage.value.inputs.take();
        let mut spec = stage(file_stage, name, &file, inputs.is_some(), submitted)?;
        spec.after = after[index].iter().map(|before| new_index[*before]).collect();
        spec.after.sort_unstable();
        spec.inputs = files::inputs(inputs.unwrap_or_default(), &spec, &specs, &names)?;
        specs.push(spec);
    }
    Ok(specs)
}

/// The only stage of a job without a list of stages. The resources stay in `file`: they are the defaults of the stage.
fn only_stage(file: &mut JobFile) -> StageFile {
    let (tasks, gang) = (file.tasks.take(), file.gang.take());
    let outputs = file.outputs.take().map(|outputs| outputs.value);
    StageFile { tasks, gang, outputs, ..file.take_stage() }
}

fn stage_names(list: &[At<StageFile>]) -> Result<Vec<String>, Complaint> {
    let mut seen: BTreeMap<&str, Position> = BTreeMap::new();
    let mut names = Vec::with_capacity(list.len());
    for At { at, value: stage } in list {
        let Some(name) = &stage.name else {
            if list.len() == 1 {
                return Ok(vec!["main".to_owned()]);
            }
            return Err(Complaint::new("this stage has no name", "add one, for instance `name = \"count\"`").at(*at));
        };
        names.push(checked_name(Named::Stage, name)?);
        if name.value.contains(['.', '/']) || name.value.contains(char::is_whitespace) {
            let problem = format!("the stage name `{}` contains a space, a dot or a slash", name.value);
            return Err(Complaint::new(problem, "use letters, digits, dashes and underscores").at(name.at));
        }
        if let Some(first) = seen.insert(&name.value, name.at) {
            let problem = format!("two stages are named `{}`", name.value);
            return Err(Complaint::new(problem, format!("rename one; the first is on line {}", first.line)).at(name.at));
        }
    }
    Ok(names)
}

fn dependencies(list: &[At<StageFile>], names: &[String]) -> Result<Vec<Vec<usize>>, Complaint> {
    let index: BTreeMap<&str, usize> = names.iter().enumerate().map(|(index, name)| (name.as_str(), index)).collect();
    let resolve = |name: &At<String>| {
        index.get(name.value.as_str()).copied().ok_or_else(|| {
            let remedy = match suggest::closest(&name.value, names.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None if names.len() <= 20 => format!("use one of: {}", names.join(", ")),
                None => "name a stage of this file".to_owned(),
            };
            Complaint::new(format!("stage `{}` not found", name.value), remedy).at(name.at)
        })
    };
    list.iter()
        .map(|stage| {
            let mut after: Vec<usize> =
                stage.value.after.iter().flatten().map(resolve).collect::<Result<_, Complaint>>()?;
            after.sort_unstable();
            after.dedup();
            Ok(after)
        })
        .collect()
}

fn conditions(
    constraints: [&Option<Vec<ConstraintText>>; 2],
    tolerates: [&Option<Vec<TaintText>>; 2],
) -> Vec<Constraint> {
    let constraints = constraints.into_iter().flatten().flatten().map(|ConstraintText(one)| one);
    let tolerates = tolerates.into_iter().flatten().flatten().map(|TaintText(one)| one);
    constraints.chain(tolerates).cloned().collect()
}

/// Builds one stage. Keys that the stage does not have are taken from the job. The inputs are left empty, because they
/// refer to outputs of other stages.
fn stage(
    file: At<StageFile>,
    name: String,
    job: &JobFile,
    has_inputs: bool,
    submitted: SubmittedFrom<'_>,
) -> Result<StageSpec, Complaint> {
    let SubmittedFrom { context, submitter } = submitted;
    let At { at, value: file } = file;
    let command = command(file.command, &name, at)?;
    let execution = match file.execution.or(job.execution) {
        Some(Execution::Guaranteed) => ExecutionType::Guaranteed,
        Some(Execution::Opportunistic) => ExecutionType::Opportunistic,
        Some(Execution::Auto) | None => ExecutionType::Auto,
    };
    let of_files = matches!(&file.each, Some(At { value: Each::Files(_), .. }));
    check_items_are_readable(file.each.as_ref(), submitter)?;
    let limits = [file.at_once.as_ref().map(|key| key.value), file.array.as_ref().and_then(|array| array.value.0.1)];
    let limited_at = file.at_once.as_ref().map(|key| key.at).or(file.array.as_ref().map(|key| key.at));
    let tasks = task_set(file.tasks, file.array, file.each, context)?;
    let gang = gang(file.gang, tasks.len(), execution)?;
    let at_once = tasks::check_at_once(limits, gang.then_some(tasks.len()));
    let at_once = at_once.map_err(|wrong| Complaint::from(wrong).at(limited_at.unwrap_or(at)))?;
    let input_kib = if of_files { tasks::sizes(&tasks, &context.submit_dir) } else { Vec::new() };
    let defaults = job.resources.as_ref().map(|table| table.value.clone()).unwrap_or_default();
    let needs_at = file.resources.as_ref().or(job.resources.as_ref()).map_or(at, |table| table.at);
    let resources: ResourceTable = file.resources.map(|table| table.value).unwrap_or_default().or(&defaults);
    let resources = resources.spec();
    quantities::check_needs(&resources).map_err(|wrong| Complaint::from(wrong).at(needs_at))?;
    let constraints = conditions([&job.constraints, &file.constraints], [&job.tolerates, &file.tolerates]);
    let outputs = files::outputs(file.outputs, &tasks)?;
    let written = workdir(file.workdir.as_ref().or(job.workdir.as_ref()))?;
    let program = Program {
        stdin: false,
        command,
        env: environment(job.env.as_ref(), file.env),
        workdir: workdir_of(written, has_inputs || !outputs.is_empty(), is_nowhere(context))?,
        output_cap: file.output_cap.or(job.output_cap).map_or(DEFAULT_OUTPUT_CAP, |cap| cap.0),
        umask: job.umask.as_ref().and_then(|umask| match umask.value.0 {
            Umask::These(mask) => Some(mask),
            Umask::OfSubmitter => None,
        }),
        isolation: file.isolation.or(job.isolation).map(IsolationText::value),
        container: container(file.container.as_ref().or(job.container.as_ref()))?,
    };
    let spec = StageSpec {
        name,
        after: Vec::new(),
        tasks,
        program: Arc::new(program),
        resources,
        expected: file.expected.or(job.expected).map(|time| time.0),
        execution,
        constraints,
        near: near(file.near.as_ref().or(job.near.as_ref()))?,
        retries: file.retries.or(job.retries).unwrap_or(0),
        retry_delay: file.retry_delay.or(job.retry_delay).map(|delay| delay.0),
        timeout: file.timeout.or(job.timeout).map(|time| time.0),
        priority: file.priority,
        gang,
        at_once,
        outputs,
        inputs: Vec::new(),
        input_kib,
        reads: Reads::default(),
    };
    launch_size::check_stage(&spec, context.submit_dir.as_os_str().len())
        .map_err(|wrong| Complaint::new(wrong.to_string(), wrong.remedy()).at(at))?;
    Ok(spec)
}

/// The command of a stage, which starts at `stage` in the file.
fn command(written: Option<At<Command>>, name: &str, stage: Position) -> Result<Vec<ByteString>, Complaint> {
    let at = match written {
        Some(At { value: Command(command), .. }) if command.first().is_some_and(|first| !first.is_empty()) => {
            return Ok(command);
        }
        Some(At { at, .. }) => at,
        None => stage,
    };
    let remedy = "add one, for instance `command = [\"sort\", \"-n\"]`";
    Err(Complaint::new(format!("the stage `{name}` has no command"), remedy).at(at))
}

/// Whether the process that reads the job file can read the files that `each` names.
fn check_items_are_readable(each: Option<&At<Each>>, submitter: &Submitter) -> Result<(), Complaint> {
    if let Some(At { at, value: Each::Files(_) | Each::Lines(_) | Each::Json(_) }) = each
        && submitter.is_elsewhere
    {
        let problem = "`each` names files of the submitter, which the server cannot read";
        let remedy = "list the items, such as `each = [\"a\", \"b\"]`, or submit the file with `amalgam submit`";
        return Err(Complaint::new(problem, remedy).at(*at));
    }
    Ok(())
}

/// Whether the tasks of a stage are a gang.
fn gang(written: Option<At<bool>>, tasks: u32, execution: ExecutionType) -> Result<bool, Complaint> {
    let Some(At { at, value: true }) = written else { return Ok(false) };
    tasks::check_gang(tasks, execution).map_err(|wrong| Complaint::from(wrong).at(at))?;
    Ok(true)
}

/// The submitter of a job, and the directory of submission.
#[derive(Clone, Copy)]
struct SubmittedFrom<'a> {
    context: &'a Context,
    submitter: &'a Submitter,
}

/// Whether the directory of submission is not known.
fn is_nowhere(context: &Context) -> bool {
    context.submit_dir.as_os_str().is_empty()
}

fn workdir_of(written: Option<(Position, Workdir)>, has_files: bool, nowhere: bool) -> Result<Workdir, Complaint> {
    match (written, nowhere) {
        (Some((at, Workdir::Submitted)), true) => {
            let problem = "the directory from which the job was submitted is not known";
            let remedy = "write `own` or an absolute path, or add `?submit_dir=/PATH` to the request";
            Err(Complaint::new(problem, remedy).at(at))
        }
        (None, true) => Ok(Workdir::Own),
        (written, _) => files::workdir(written, has_files),
    }
}

fn near(names: Option<&Vec<At<String>>>) -> Result<Vec<String>, Complaint> {
    names.into_iter().flatten().map(|name| checked_name(Named::Node, name)).collect()
}

fn task_set(
    count: Option<At<u32>>,
    array: Option<At<Array>>,
    each: Option<At<Each>>,
    context: &Context,
) -> Result<TaskSet, Complaint> {
    let placed = |at: Position| move |wrong: Malformed| Complaint::from(wrong).at(at);
    match (count, array, each) {
        (None, None, None) => Ok(TaskSet::Count(1)),
        (Some(At { at, value }), None, None) => tasks::counted(value).map_err(placed(at)),
        (None, Some(At { at, value: Array((ranges, _)) }), None) => tasks::indexed(ranges).map_err(placed(at)),
        (None, None, Some(At { at, value })) => tasks::each(value, &context.submit_dir).map_err(placed(at)),
        (count, array, each) => {
            let places = [count.map(|key| key.at), array.map(|key| key.at), each.map(|key| key.at)];
            let at = places.into_iter().flatten().max().unwrap_or_default();
            let problem = "the stage defines its tasks more than once";
            Err(Complaint::new(problem, "keep one of tasks, array and each").at(at))
        }
    }
}

/// The variables of the job and of the stage. If both set a variable, the stage's value is used.
fn environment(job: Option<&At<Environment>>, stage: Option<At<Environment>>) -> Vec<(ByteString, ByteString)> {
    let mut variables: BTreeMap<ByteString, ByteString> = BTreeMap::new();
    variables.extend(job.into_iter().flat_map(|env| env.value.0.iter().cloned()));
    variables.extend(stage.into_iter().flat_map(|env| env.value.0));
    variables.into_iter().collect()
}

/// The name of an image, if one is given.
fn container(written: Option<&At<String>>) -> Result<Option<String>, Complaint> {
    let Some(At { at, value }) = written else { return Ok(None) };
    check_image(value).map_err(|problem| Complaint::from(Malformed::new(problem, IMAGE_REMEDY)).at(*at))?;
    Ok(Some(value.clone()))
}

/// What to do about a wrong name of an image.
const IMAGE_REMEDY: &str = "write `REGISTRY/NAME:TAG`, or the absolute path of an image's file";

fn workdir(written: Option<&At<Word>>) -> Result<Option<(Position, Workdir)>, Complaint> {
    let Some(At { at, value: Word(written) }) = written else { return Ok(None) };
    parse_workdir(written).map(|workdir| Some((*at, workdir))).map_err(|wrong| Complaint::from(wrong).at(*at))
}

/// Reads `submitted`, `own` or an absolute path.
pub(crate) fn parse_workdir(written: &ByteString) -> Result<Workdir, Malformed> {
    check_text("the directory", written.as_bytes())?;
    match written.as_bytes() {
        b"submitted" => Ok(Workdir::Submitted),
        b"own" => Ok(Workdir::Own),
        [b'/', ..] => Ok(Workdir::Path(written.clone())),
        _ => Err(Malformed::new(
            format!("`{written}` is not a working directory"),
            "write `submitted`, `own` or an absolute path",
        )),
    }
}
