//! Outputs and inputs of the stages of a job.

use crate::document::At;
use crate::error::{Complaint, Position};
use crate::suggest;
use amalgam_core::vocabulary::clashes::{Clash, LOOK_ALIKE, clash};
use amalgam_core::vocabulary::files::{INDEX, MAX_INPUTS, check_output};
use amalgam_core::vocabulary::{InputSpec, StageSpec, TaskSet, Workdir};
use std::collections::BTreeMap;

/// Checks the declared outputs of a stage with these tasks.
pub(crate) fn outputs(names: Option<Vec<At<String>>>, tasks: &TaskSet) -> Result<Vec<String>, Complaint> {
    let mut seen: BTreeMap<String, Position> = BTreeMap::new();
    let mut outputs = Vec::new();
    for At { at, value: name } in names.into_iter().flatten() {
        if let Err((problem, remedy)) = check_output(&name) {
            return Err(Complaint::new(format!("`{name}` cannot be an output: {problem}"), remedy).at(at));
        }
        if let Some(first) = seen.insert(name.clone(), at) {
            let remedy = format!("remove one; the first is on line {}", first.line);
            return Err(Complaint::new(format!("the output `{name}` is declared twice"), remedy).at(at));
        }
        outputs.push(name);
    }
    let inside = |one: &str, other: &str| other.strip_prefix(one).is_some_and(|rest| rest.starts_with('/'));
    for name in &outputs {
        if let Some(inner) = outputs.iter().find(|other| inside(name, other)) {
            let problem = format!("`{name}` is an output and also the directory of `{inner}`");
            return Err(Complaint::new(problem, "rename one of them").at(seen[name]));
        }
    }
    let at = |one: usize, other: usize| seen[&outputs[one]].max(seen[&outputs[other]]);
    let (problem, at) = match clash(&outputs, tasks) {
        None => return Ok(outputs),
        Some(Clash::Same { one, other, index }) => {
            let (first, second) = (&outputs[one.min(other)], &outputs[one.max(other)]);
            let problem =
                format!("the outputs `{first}` and `{second}` are the same file for the task of index {index}");
            (problem, at(one, other))
        }
        Some(Clash::Inside { one, other, index }) => {
            let (directory, inner) = (&outputs[one], &outputs[other]);
            let problem =
                format!("`{directory}` is an output and also the directory of `{inner}` for the task of index {index}");
            (problem, at(one, other))
        }
        Some(Clash::TooMany) => {
            let last = seen.values().max().copied().unwrap_or_default();
            return Err(Complaint::new(LOOK_ALIKE, "write a character that is not a digit before `{index}`").at(last));
        }
    };
    Err(Complaint::new(problem, "rename one of them").at(at))
}

/// The working directory of a stage. Tasks with files run in directories of their own: in one directory, tasks and
/// attempts of the same task would overwrite each other's files.
pub(crate) fn workdir(written: Option<(Position, Workdir)>, has_files: bool) -> Result<Workdir, Complaint> {
    match written {
        None if has_files => Ok(Workdir::Own),
        None => Ok(Workdir::Submitted),
        Some((at, Workdir::Submitted | Workdir::Path(_))) if has_files => {
            let problem = "tasks with `inputs` or `outputs` require directories of their own";
            let remedy = "remove `workdir`, or write `own`; `$AMALGAM_SUBMIT_DIR` is the directory of the submission";
            Err(Complaint::new(problem, remedy).at(at))
        }
        Some((_, workdir)) => Ok(workdir),
    }
}

/// Reads the inputs of a stage. `before` are the stages before it in topological order.
pub(crate) fn inputs(
    written: Vec<At<String>>,
    reader: &StageSpec,
    before: &[StageSpec],
    names: &[String],
) -> Result<Vec<InputSpec>, Complaint> {
    let mut seen: BTreeMap<String, Position> = BTreeMap::new();
    let mut inputs = Vec::new();
    for At { at, value: text } in written {
        inputs.push(input(&text, reader, before, names).map_err(|complaint| complaint.at(at))?);
        if let Some(first) = seen.insert(text.clone(), at) {
            let remedy = format!("remove one; the first is on line {}", first.line);
            return Err(Complaint::new(format!("the input `{text}` is declared twice"), remedy).at(at));
        }
    }
    let reader = StageSpec { inputs, ..reader.clone() };
    let counts = reader.samples_of_readers().map(|position| reader.count_inputs(before, position));
    match (counts.max(), seen.values().max()) {
        (Some(found), Some(last)) if found > MAX_INPUTS => {
            let problem =
                format!("a task of `{}` has {found} input files; at most {MAX_INPUTS} are allowed", reader.name);
            Err(Complaint::new(problem, "merge the files in a stage between the two").at(*last))
        }
        _ => Ok(reader.inputs),
    }
}

fn input(text: &str, reader: &StageSpec, before: &[StageSpec], names: &[String]) -> Result<InputSpec, Complaint> {
    let Some((name, files)) = text.split_once('/').filter(|(name, files)| !name.is_empty() && !files.is_empty()) else {
        let remedy = "write STAGE/PATTERN, such as `map/*` for all outputs of `map`, or `map/part-{index}.txt`";
        return Err(Complaint::new(format!("`{text}` does not name outputs of a stage"), remedy));
    };
    let Some(stage) = before.iter().position(|stage| stage.name == name) else {
        // A stage that is later in topological order cannot be one that this stage depends on.
        if names.iter().any(|known| known == name) {
            return Err(not_after(name, reader));
        }
        let remedy = match suggest::closest(name, names.iter().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}/{files}`?"),
            None => "name a stage of this file".to_owned(),
        };
        return Err(Complaint::new(format!("stage `{name}` not found"), remedy));
    };
    if !reader.after.contains(&(stage as u32)) {
        return Err(not_after(name, reader));
    }
    check_selection(text, files, reader, &before[stage])?;
    Ok(InputSpec { stage: stage as u32, files: files.to_owned() })
}

fn not_after(name: &str, reader: &StageSpec) -> Complaint {
    let problem = format!("`{}` reads outputs of `{name}`, which is not in its `after`", reader.name);
    Complaint::new(problem, format!("add `{name}` to its `after`"))
}

/// Checks that each task that reads `text` has at least one and at most `MAX_INPUTS` files. If the pattern contains
/// both the index and `*`, only the first and the last task are checked.
fn check_selection(text: &str, files: &str, reader: &StageSpec, writer: &StageSpec) -> Result<(), Complaint> {
    let tasks = reader.tasks.len();
    let asked: Vec<u32> = match files.contains(INDEX) {
        false => vec![0],
        true if files.contains('*') => vec![0, tasks - 1],
        true => (0..tasks).collect(),
    };
    for position in asked {
        let index = reader.tasks.index_value(position);
        let found = writer.count_outputs(files, index);
        if found == 0 {
            let whose = if files.contains(INDEX) { format!(" for the task of index {index}") } else { String::new() };
            let problem = format!("`{text}` matches no output of `{}`{whose}", writer.name);
            let remedy = match writer.outputs.is_empty() {
                true => format!("declare its outputs: `outputs = [\"FILE\"]` in the stage `{}`", writer.name),
                false => format!("its outputs are {}", writer.outputs.join(", ")),
            };
            return Err(Complaint::new(problem, remedy));
        }
        if found > MAX_INPUTS {
            let problem = format!("`{text}` selects {found} files for one task; at most {MAX_INPUTS} are allowed");
            return Err(Complaint::new(problem, "merge the files in a stage between the two"));
        }
    }
    Ok(())
}
