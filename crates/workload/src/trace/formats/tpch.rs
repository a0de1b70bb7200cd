//! `tpch`: the TPC-H queries on Spark that were published with Decima, for instance the folder `tpch/10g`, or `tpch`
//! with all sizes. A query has two files: `adj_mat_N.npy`, its DAG, and `task_duration_N.npy`. The latter has, for each
//! stage and each number of executors that was measured, three lists of run times in milliseconds: `first_wave` (the
//! first tasks of every executor), `fresh_durations` (those of them on executors that had just started) and
//! `rest_wave`.
//!
//! As in Decima's own simulator, a stage has as many tasks as its first and rest waves together. By default each task
//! has the run time that was measured for it (`run-times=recorded`) with the smallest number of executors, two. In that
//! run the fewest tasks include the start of an executor, and none competed with many others. The lists of more
//! executors show how tasks slow down if many run together. A scheduler that does not model this should not see it.

use super::npy::{Matrix, pickled};
use super::pickle::{Value, array_object};
use super::{TraceFormat, fields};
use crate::quantities::Malformed;
use crate::trace::RunTimes;
use crate::trace::error::WorkloadError;
use crate::trace::input;
use crate::trace::options::{Key, whole};
use crate::trace::reading::{Draft, DraftStage, Reading};
use amalgam_core::vocabulary::Chance;
use amalgam_core::vocabulary::Duration;
use std::path::Path;

pub(super) const FORMAT: TraceFormat =
    TraceFormat { name: "tpch", about: "TPC-H queries on Spark, as published with Decima (.npy)", keys: &KEYS, read };

const KEYS: [Key; 2] = [
    Key {
        name: "run-times",
        default: "recorded",
        meaning: "recorded (each task's own), or drawn from one list: fresh, first-wave or rest-wave",
    },
    Key { name: "executors", default: "2", meaning: "number of executors with which the run times were measured" },
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Times {
    Recorded,
    /// Drawn from the first of these lists that is not empty.
    Drawn([&'static str; 3]),
}

fn read(reading: &mut Reading) -> Result<(), WorkloadError> {
    reading.repeats();
    let times = reading.options.own("run-times", times)?;
    let executors = reading.options.own("executors", whole)?;
    let mut files: Vec<_> = reading.files(&[".npy"])?.into_iter().filter(|file| query(file).is_some()).collect();
    files.sort_by_key(|file| (file.parent().map(Path::to_owned), query(file)));
    let mut chance = reading.chance("tpch");
    for file in files {
        if reading.is_full() {
            break;
        }
        let Some(number) = query(&file) else { continue };
        let partner = file.with_file_name(format!("task_duration_{number}.npy"));
        if !partner.exists() {
            let problem = format!("{}: its companion {} is missing", file.display(), partner.display());
            return Err(WorkloadError::new(problem, "fetch both: one has the DAG, the other the run times"));
        }
        let (dag, measured) = (input::content(&file)?, input::content(&partner)?);
        let size =
            file.parent().and_then(Path::file_name).map_or_else(String::new, |size| size.to_string_lossy().into());
        let job = stages(&dag, &measured, times, executors, &mut chance);
        let added = job.and_then(|stages| {
            reading.add(Draft { name: format!("tpch-{size}-q{number}"), stages, ..Draft::default() })
        });
        if let Err(problem) = added {
            reading.malformed(&partner, u64::from(number), problem);
        }
    }
    reading.note(format!(
        "run times: {}, measured with {executors} executors, or with the next number if a stage was not",
        reading.options.own_text("run-times")
    ));
    Ok(())
}

/// The number of the query whose DAG a file holds.
fn query(file: &Path) -> Option<u32> {
    file.file_name()?.to_str()?.strip_prefix("adj_mat_")?.strip_suffix(".npy")?.parse().ok()
}

fn times(text: &str) -> Result<Times, Malformed> {
    const FRESH: &str = "fresh_durations";
    match text {
        "recorded" => Ok(Times::Recorded),
        "fresh" => Ok(Times::Drawn([FRESH, "first_wave", "rest_wave"])),
        "first-wave" => Ok(Times::Drawn(["first_wave", FRESH, "rest_wave"])),
        "rest-wave" => Ok(Times::Drawn(["rest_wave", "first_wave", FRESH])),
        _ => Err(Malformed::new(
            format!("unknown value `{text}`"),
            "write `recorded`, `fresh`, `first-wave` or `rest-wave`",
        )),
    }
}

fn stages(
    dag: &[u8],
    measured: &[u8],
    times: Times,
    executors: u64,
    chance: &mut Chance,
) -> Result<Vec<DraftStage>, String> {
    let befores = Matrix::read(dag)?.befores()?;
    let measured = array_object(pickled(measured)?)?;
    let Value::Dict(entries) = &measured else { return Err("the run times are not a dictionary of stages".to_owned()) };
    if entries.len() != befores.len() {
        return Err(format!("the DAG has {} stages, but {} have run times", befores.len(), entries.len()));
    }
    let stage = |(number, after): (usize, Vec<usize>)| {
        let key = Value::Int(number as i64);
        let (_, lists) =
            entries.iter().find(|(stage, _)| *stage == key).ok_or(format!("stage {number} has no run times"))?;
        let run_times =
            run_times(lists, times, executors, chance).map_err(|problem| format!("stage {number}: {problem}"))?;
        Ok(DraftStage::new(format!("stage-{number}"), run_times.len() as u32, RunTimes::Each(run_times)).after(after))
    };
    befores.into_iter().enumerate().map(stage).collect()
}

fn run_times(lists: &Value, times: Times, executors: u64, chance: &mut Chance) -> Result<Vec<Duration>, String> {
    let list = |name: &str| milliseconds(lists.get(name), executors).map_err(|problem| format!("{name}: {problem}"));
    let (mut first, rest) = (list("first_wave")?, list("rest_wave")?);
    let tasks = first.len() + rest.len();
    let Times::Drawn(names) = times else {
        first.extend(rest);
        return Ok(first);
    };
    for name in names {
        let measured = list(name)?;
        if !measured.is_empty() {
            return Ok((0..tasks).map(|_| measured[chance.below(measured.len() as u64) as usize]).collect());
        }
    }
    Ok(Vec::new())
}

/// The list for a number of executors, or for the next larger number that was measured, or else for the largest one.
fn milliseconds(by_executors: Option<&Value>, executors: u64) -> Result<Vec<Duration>, String> {
    let Some(Value::Dict(entries)) = by_executors else { return Err("no dictionary of executors".to_owned()) };
    let counted = entries.iter().filter_map(|(key, list)| match key {
        Value::Int(count) => Some((u64::try_from(*count).ok()?, list)),
        _ => None,
    });
    let nearest = counted.min_by_key(|(count, _)| (*count < executors, count.abs_diff(executors)));
    let Some((_, Value::List(times))) = nearest else { return Err("no list of run times".to_owned()) };
    let time = |time: &Value| match time {
        Value::Int(millis) => fields::millis(&millis.to_string(), "the run time"),
        _ => Err("a run time is not a number".to_owned()),
    };
    times.iter().map(time).collect()
}
