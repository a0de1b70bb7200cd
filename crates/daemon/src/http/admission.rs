//! Checks of a submitted job, before any other part of the server gets it. Clients check jobs too, but are not trusted.

use crate::api::Error;
use amalgam_core::vocabulary::clashes::{Clash, LOOK_ALIKE, clash};
use amalgam_core::vocabulary::files::{INDEX, MAX_INPUTS, MAX_NAME, check_output};
use amalgam_core::vocabulary::job::{MAX_STAGES, MAX_TASKS, check_image};
use amalgam_core::vocabulary::launch_size;
use amalgam_core::vocabulary::{ByteString, Duration, InputSpec, JobSpec, Named, StageSpec, TaskSet, Workdir};
use std::collections::BTreeSet;

/// Maximum number of comparisons of input patterns with names of files. This number takes seconds.
const MAX_COMPARISONS: u64 = 100_000_000;

pub fn check(job: &JobSpec) -> Result<(), Error> {
    let refuse =
        |message: String| Err(Error::bad_request(message, "submit a job that `amalgam submit` made from a job file"));
    if job.stages.is_empty() || job.stages.len() > MAX_STAGES {
        return refuse(format!("the job has {} stages; it may have 1 to {MAX_STAGES}", job.stages.len()));
    }
    if !job.submit_dir.as_bytes().starts_with(b"/") {
        return refuse(format!("the submit directory `{}` is not absolute", job.submit_dir));
    }
    if let Err(wrong) = Named::Job.check(&job.name) {
        return refuse(wrong.to_string());
    }
    let mut names = BTreeSet::new();
    let mut tasks = 0u64;
    for (index, stage) in job.stages.iter().enumerate() {
        if let Err(wrong) = check_stage(index, stage) {
            return refuse(format!("stage {index} (`{}`) {wrong}", stage.name));
        }
        if let Err(wrong) = check_files(&job.stages[..index], stage) {
            return refuse(format!("stage {index} (`{}`) {wrong}", stage.name));
        }
        if !names.insert(stage.name.as_str()) {
            return refuse(format!("two stages are named `{}`", stage.name));
        }
        tasks = tasks.saturating_add(count(&stage.tasks));
    }
    if let Err((stage, wrong)) = launch_size::check(job) {
        let name = &job.stages[stage].name;
        return Err(Error::bad_request(format!("stage {stage} (`{name}`) cannot start: {wrong}"), wrong.remedy()));
    }
    if tasks > MAX_TASKS {
        return refuse(format!("the job has {tasks} tasks; it may have at most {MAX_TASKS}"));
    }
    // The numbers of tasks have been checked, so the products below do not overflow.
    let comparisons = job.stages.iter().map(|stage| comparisons(&job.stages, stage)).fold(0, u64::saturating_add);
    if comparisons > MAX_COMPARISONS {
        return refuse(format!(
            "the job's inputs require {comparisons} comparisons of patterns with names; {MAX_COMPARISONS} are allowed"
        ));
    }
    for (index, stage) in job.stages.iter().enumerate() {
        if let Err(wrong) = check_names(stage) {
            return refuse(format!("stage {index} (`{}`) {wrong}", stage.name));
        }
        let counts = stage.samples_of_readers().map(|position| stage.count_inputs(&job.stages[..index], position));
        if let Some(files) = counts.max().filter(|files| *files > MAX_INPUTS) {
            return refuse(format!(
                "stage {index} (`{}`) has a task that reads {files} files; {MAX_INPUTS} are allowed",
                stage.name
            ));
        }
    }
    Ok(())
}

/// Number of tasks. Saturates, unlike `TaskSet::len`, which requires a checked set.
fn count(tasks: &TaskSet) -> u64 {
    match tasks {
        TaskSet::Count(count) => u64::from(*count),
        TaskSet::Indexes(ranges) => ranges.iter().fold(0, |sum, range| {
            // The range of all numbers has 2^64 tasks. Saturation at 2^64 - 1 is still above the limit.
            let steps = range.last.saturating_sub(range.first) / range.step.max(1);
            sum.saturating_add(steps.saturating_add(1))
        }),
        TaskSet::Each(items) => u64::from(items.len()),
    }
}

fn has_nul(text: &ByteString) -> bool {
    text.as_bytes().contains(&0)
}

fn check_stage(index: usize, stage: &StageSpec) -> Result<(), String> {
    Named::Stage.check(&stage.name).map_err(|wrong| format!("has an invalid name: {wrong}"))?;
    if stage.after.iter().any(|before| *before as usize >= index) {
        return Err("depends on itself or on a later stage".to_owned());
    }
    if stage.after.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err("lists its dependencies twice or out of order".to_owned());
    }
    let program = &stage.program;
    if program.command.first().is_none_or(ByteString::is_empty) {
        return Err("has no command".to_owned());
    }
    if program.command.iter().any(has_nul) {
        return Err("has an argument with a NUL character".to_owned());
    }
    if program.umask.is_some_and(|mask| mask > 0o777) {
        return Err("has a umask above 0777".to_owned());
    }
    if let Some(image) = &program.container {
        check_image(image).map_err(|problem| format!("has a container without a valid image: {problem}"))?;
    }
    let bad_variable = |(name, value): &(ByteString, ByteString)| {
        let bad_name = name.is_empty() || name.as_bytes().contains(&b'=') || has_nul(name);
        bad_name || has_nul(value)
    };
    if program.env.iter().any(bad_variable) {
        let problem = "its name is empty or contains `=`, or it contains a NUL character";
        return Err(format!("has an invalid environment variable: {problem}"));
    }
    if let Some((name, _)) = program.env.iter().find(|(name, _)| name.as_bytes().starts_with(b"AMALGAM_")) {
        return Err(format!("sets the variable `{name}`: names that start with AMALGAM_ are reserved"));
    }
    if matches!(&program.workdir, Workdir::Path(path) if !path.as_bytes().starts_with(b"/") || has_nul(path)) {
        return Err("has a working directory that is not absolute".to_owned());
    }
    match stage.at_once {
        Some(0) => return Err("allows 0 tasks at once: allow at least 1".to_owned()),
        Some(limit) if stage.gang && u64::from(limit) < count(&stage.tasks) => {
            return Err(format!("is a gang, whose tasks all start together, but allows only {limit} tasks at once"));
        }
        _ => {}
    }
    if stage.timeout == Some(Duration::ZERO) {
        return Err("has a timeout of zero".to_owned());
    }
    check_tasks(&stage.tasks)
}

fn check_files(before: &[StageSpec], stage: &StageSpec) -> Result<(), String> {
    if stage.has_files() && stage.program.workdir != Workdir::Own {
        return Err("has inputs or outputs, but its tasks do not run in directories of their own".to_owned());
    }
    for name in &stage.outputs {
        check_output(name).map_err(|(problem, _)| format!("cannot have the output `{name}`: {problem}"))?;
    }
    let names: BTreeSet<&str> = stage.outputs.iter().map(String::as_str).collect();
    if names.len() < stage.outputs.len() {
        return Err("declares an output twice".to_owned());
    }
    let parents = |name: &'_ str| name.match_indices('/').map(|(at, _)| name[..at].to_owned()).collect::<Vec<_>>();
    if let Some(name) = names.iter().flat_map(|name| parents(name)).find(|parent| names.contains(parent.as_str())) {
        return Err(format!("has the output `{name}`, which is a directory of another one"));
    }
    for InputSpec { stage: writer, files } in &stage.inputs {
        let Some(writer) = before.get(*writer as usize).filter(|_| stage.after.contains(writer)) else {
            return Err("has an input from a stage that is not one of its dependencies".to_owned());
        };
        if files.is_empty() || files.len() > MAX_NAME {
            return Err("has an input that is empty or too long".to_owned());
        }
        // The name becomes a directory in the working directory of the readers.
        if writer.name.contains('/') || writer.name.starts_with('.') {
            return Err(format!("has an input from stage `{}`, whose name cannot be a directory", writer.name));
        }
    }
    Ok(())
}

/// Checks that for each task the outputs have different paths, and that no output is a directory of another one.
fn check_names(stage: &StageSpec) -> Result<(), String> {
    let outputs = &stage.outputs;
    match clash(outputs, &stage.tasks) {
        None => Ok(()),
        Some(Clash::TooMany) => Err(format!("cannot have these outputs: {LOOK_ALIKE}")),
        Some(Clash::Same { one, other, index } | Clash::Inside { one, other, index }) => {
            let (one, other) = (&outputs[one], &outputs[other]);
            Err(format!("has the outputs `{one}` and `{other}`, whose paths clash for index {index}"))
        }
    }
}

/// Number of names that are compared with the stage's patterns to find its inputs.
fn comparisons(stages: &[StageSpec], stage: &StageSpec) -> u64 {
    let of = |input: &InputSpec| {
        let writer = &stages[input.stage as usize];
        let by_index = writer.outputs.iter().filter(|name| name.contains(INDEX)).count() as u64;
        let names = if input.files.contains('*') { by_index * count(&writer.tasks) } else { 0 };
        names + writer.outputs.len() as u64
    };
    stage.inputs.iter().map(of).fold(0, u64::saturating_add)
}

fn check_tasks(tasks: &TaskSet) -> Result<(), String> {
    if count(tasks) == 0 {
        return Err("has no tasks".to_owned());
    }
    match tasks {
        TaskSet::Count(_) => Ok(()),
        TaskSet::Indexes(ranges) => {
            let malformed = ranges.iter().any(|range| range.step == 0 || range.last < range.first);
            let unordered = ranges.windows(2).any(|pair| pair[1].first <= pair[0].last);
            if malformed || unordered {
                Err("has index ranges with step 0 or not in ascending order".to_owned())
            } else {
                Ok(())
            }
        }
        TaskSet::Each(items) => {
            let sound = (0..items.len()).all(|at| items.get(at).is_some_and(|item| !item.contains(&0)));
            if sound { Ok(()) } else { Err("has an invalid item, for example one with a NUL character".to_owned()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::Program;
    use std::sync::Arc;

    fn stage(name: &str, tasks: u32) -> StageSpec {
        let command = vec!["true".into()];
        let program = Arc::new(Program { command, workdir: Workdir::Own, ..Program::default() });
        StageSpec { name: name.to_owned(), tasks: TaskSet::Count(tasks), program, ..StageSpec::default() }
    }

    /// Checks a job of two stages: the first has `tasks` tasks with `outputs`, the second reads `patterns` from it.
    fn refused(tasks: u32, outputs: &[&str], patterns: &[&str]) -> Option<String> {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let writer = StageSpec { outputs: texts(outputs), ..stage("a", tasks) };
        let inputs = texts(patterns).into_iter().map(|files| InputSpec { stage: 0, files }).collect();
        let reader = StageSpec { after: vec![0], inputs, ..stage("b", 2) };
        let (name, submit_dir) = ("job".to_owned(), "/".into());
        let job = JobSpec { name, submit_dir, stages: vec![writer, reader], ..JobSpec::default() };
        check(&job).err().map(|error| error.message)
    }

    #[test]
    fn a_task_with_too_many_input_files_is_refused() {
        assert_eq!(refused(100_000, &["o"], &["*"]), None);
        let output = refused(100_001, &["o"], &["*"]).unwrap();
        assert!(output.contains("`b`") && output.contains("100001 files"), "{output}");
        assert!(
            refused(60_000, &["o", "p"], &["o", "p"]).unwrap().contains("120000 files"),
            "the patterns' files are added"
        );
        assert_eq!(refused(100_001, &["o-{index}"], &["o-{index}"]), None);
        assert!(refused(100_001, &["to-1"], &["to-{index}"]).is_some(), "the second task reads them");
        let output = refused(1_000_000, &["o-{index}"], &["*x"; 101]).unwrap();
        assert!(output.contains("101000101 comparisons"), "{output}");
    }

    #[test]
    fn outputs_with_clashing_paths_are_refused() {
        assert!(refused(1, &["o", "o"], &[]).unwrap().contains("twice"));
        assert!(refused(1, &["a/b/c", "a/b"], &[]).unwrap().contains("`a/b`, which is a directory"));
        assert_eq!(refused(1, &["a/b/c", "a/bc", "c"], &[]), None);
        let output = refused(12, &["part-11", "part-{index}"], &[]).unwrap();
        assert!(output.contains("paths clash for index 11"), "{output}");
        assert_eq!(refused(11, &["part-11", "part-{index}"], &[]), None);
    }

    #[test]
    fn names_longer_than_255_bytes_are_refused() {
        let long = "x".repeat(256);
        assert!(check_stage(0, &stage(&long, 1)).is_err() && check_stage(0, &stage(&long[1..], 1)).is_ok());
        assert!(refused(1, &[&long], &[]).unwrap().contains("255 bytes"));
    }
}
