//! The tasks of a stage: a number of tasks, one for each index of an array, or one for each item.

use crate::job_file::Each;
use crate::quantities::{Malformed, NONE_AT_ONCE, check_text};
use crate::text::{decode, without_mark};
use crate::{glob, path_of};
use amalgam_core::vocabulary::byte_string::shown;
use amalgam_core::vocabulary::job::{MAX_GANG, MAX_TASKS};
use amalgam_core::vocabulary::{ByteString, ExecutionType, IndexRange, Items, TaskSet};
use serde_json::value::RawValue;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Checks that the ranges contain at least one and at most `MAX_TASKS` indexes.
pub(crate) fn indexed(ranges: Vec<IndexRange>) -> Result<TaskSet, Malformed> {
    let count = ranges.iter().fold(0u64, |sum, range| sum.saturating_add(range.len()));
    check_count(count)?;
    Ok(TaskSet::Indexes(ranges))
}

pub(crate) fn counted(count: u32) -> Result<TaskSet, Malformed> {
    check_count(u64::from(count))?;
    Ok(TaskSet::Count(count))
}

/// Reads the items of an `each`; relative paths start at `directory`.
pub(crate) fn each(source: Each, directory: &Path) -> Result<TaskSet, Malformed> {
    let items = match source {
        Each::Files(pattern) => files(pattern.as_bytes(), directory)?,
        Each::Lines(file) => lines(&file, directory)?,
        Each::Json(file) => json(&file, directory)?,
        Each::Items(items) => items,
    };
    check_count(u64::from(items.len()))?;
    Ok(TaskSet::Each(items))
}

/// The sizes of the files that are the items, in KiB, rounded up; 0 for anything that is not a regular file.
pub(crate) fn sizes(tasks: &TaskSet, directory: &Path) -> Vec<u32> {
    let TaskSet::Each(items) = tasks else { return Vec::new() };
    let kib = |item: &[u8]| match fs::metadata(directory.join(OsStr::from_bytes(item))) {
        Ok(found) if found.is_file() => u32::try_from(found.len().div_ceil(1_024)).unwrap_or(u32::MAX),
        _ => 0,
    };
    items.iter().map(kib).collect()
}

pub(crate) fn check_count(count: u64) -> Result<(), Malformed> {
    match count {
        0 => Err(Malformed::new("the stage has no tasks", "define at least one")),
        1..=MAX_TASKS => Ok(()),
        _ => {
            let remedy = format!("split the job: at most {MAX_TASKS} are allowed");
            Err(Malformed::new(format!("{count} tasks are too many"), remedy))
        }
    }
}

/// Checks that a stage with this number of tasks and this execution type can be a gang.
pub(crate) fn check_gang(tasks: u32, execution: ExecutionType) -> Result<(), Malformed> {
    if execution == ExecutionType::Opportunistic {
        let problem = "a gang cannot be opportunistic";
        return Err(Malformed::new(problem, "remove `gang` or `execution`"));
    }
    if tasks > MAX_GANG {
        let problem = format!("{tasks} tasks are too many for a gang");
        return Err(Malformed::new(problem, format!("split the stage: at most {MAX_GANG} are allowed")));
    }
    Ok(())
}

/// The maximum number of tasks that run at once. Two places may define it: `at_once`, and the limit of an array.
pub(crate) fn check_at_once(limits: [Option<u32>; 2], gang: Option<u32>) -> Result<Option<u32>, Malformed> {
    let limit = match limits {
        [Some(one), Some(other)] if one != other => {
            let problem = format!("the stage has two limits of the tasks that run at once: {one} and {other}");
            return Err(Malformed::new(problem, "keep one of them"));
        }
        [one, other] => one.or(other),
    };
    match (limit, gang) {
        (Some(0), _) => Err(Malformed::new(NONE_AT_ONCE, "write at least 1, or hold the job")),
        (Some(limit), Some(tasks)) if limit < tasks => {
            let problem = format!("the gang has {tasks} tasks, but only {limit} may run at once");
            Err(Malformed::new(problem, "remove `gang` or `at_once`"))
        }
        _ => Ok(limit),
    }
}

fn files(pattern: &[u8], directory: &Path) -> Result<Items, Malformed> {
    let mut items = Items::default();
    for path in glob::expand(pattern, directory)? {
        push(&mut items, &path)?;
    }
    if items.is_empty() {
        let problem = format!("`{}` matches no file in {}", shown(pattern), directory.display());
        return Err(Malformed::new(problem, "correct the pattern, or submit from the directory that has the files"));
    }
    items.shrink();
    Ok(items)
}

/// Reads one item from each line. Lines end with LF or CR LF.
fn lines(file: &ByteString, directory: &Path) -> Result<Items, Malformed> {
    let text = read(file, directory)?;
    let mut items = Items::default();
    for line in text.strip_suffix(b"\n").unwrap_or(&text).split(|byte| *byte == b'\n') {
        push(&mut items, line.strip_suffix(b"\r").unwrap_or(line))?;
    }
    if text.is_empty() {
        return Err(Malformed::new(format!("`{file}` has no lines"), "write one line for each task into it"));
    }
    items.shrink();
    Ok(items)
}

/// Reads one item from each element of a list. A string becomes its text, any other value its JSON.
fn json(file: &ByteString, directory: &Path) -> Result<Items, Malformed> {
    let text = decode(read(file, directory)?).map_err(|wrong| in_file(file, wrong))?;
    let elements: Vec<&RawValue> = serde_json::from_str(&text).map_err(|error| {
        Malformed::new(format!("`{file}` is not a JSON list: {error}"), "write a list with one element for each task")
    })?;
    let mut items = Items::default();
    for element in elements {
        match serde_json::from_str::<std::borrow::Cow<'_, str>>(element.get()) {
            Ok(text) => push(&mut items, text.as_bytes())?,
            Err(_) => push(&mut items, element.get().as_bytes())?,
        }
    }
    if items.is_empty() {
        return Err(Malformed::new(format!("`{file}` is an empty list"), "write one element for each task into it"));
    }
    items.shrink();
    Ok(items)
}

fn read(file: &ByteString, directory: &Path) -> Result<Vec<u8>, Malformed> {
    let path = directory.join(path_of(file));
    let bytes = fs::read(&path).map_err(|error| {
        let remedy = "check the path: it is relative to the directory of the submission";
        Malformed::new(format!("cannot read `{}`: {error}", path.display()), remedy)
    })?;
    let text = without_mark(&bytes).map_err(|wrong| in_file(file, wrong))?;
    Ok(if text.len() == bytes.len() { bytes } else { text.to_vec() })
}

fn in_file(file: &ByteString, wrong: Malformed) -> Malformed {
    Malformed { problem: format!("cannot read `{file}`: {}", wrong.problem), ..wrong }
}

fn push(items: &mut Items, text: &[u8]) -> Result<(), Malformed> {
    check_text("an item", text)?;
    items.push(text).map_err(|problem| Malformed::new(problem, "split the job"))
}
