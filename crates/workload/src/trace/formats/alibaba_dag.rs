//! `alibaba-dag`: DAGs of Alibaba's trace of 2018 as NumPy arrays, in a folder or in a tar file. `adj_mat_N.npy` has a
//! 1 at `[i][j]` if stage `i` is before stage `j`. `ins_durN.npy` has a row for each stage: the number of instances,
//! and their run time in seconds. All instances of a stage have the same run time, because the trace states only one.

use super::TraceFormat;
use super::npy::Matrix;
use crate::trace::RunTimes;
use crate::trace::error::WorkloadError;
use crate::trace::input;
use crate::trace::reading::{Draft, DraftStage, Reading};
use amalgam_core::vocabulary::Duration;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use tar::Archive;

pub(super) const FORMAT: TraceFormat = TraceFormat {
    name: "alibaba-dag",
    about: "DAGs of Alibaba's trace of 2018 as arrays (.npy, or a .tar of them)",
    keys: &[],
    read,
};

/// The two files of a job, as far as they were found.
#[derive(Default)]
struct Halves {
    befores: Option<Result<Vec<Vec<usize>>, String>>,
    /// Number of instances and their run time.
    stages: Option<Result<Vec<(u32, Duration)>, String>>,
}

#[derive(Clone, Copy)]
enum Half {
    Befores,
    Stages,
}

fn read(reading: &mut Reading) -> Result<(), WorkloadError> {
    let mut jobs: BTreeMap<u64, Halves> = BTreeMap::new();
    let mut take = |name: &Path, content: &mut dyn Read| -> std::io::Result<()> {
        let Some((half, number)) = half(name) else { return Ok(()) };
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes)?;
        let job = jobs.entry(number).or_default();
        match half {
            Half::Befores => job.befores = Some(Matrix::read(&bytes).and_then(|matrix| matrix.befores())),
            Half::Stages => job.stages = Some(Matrix::read(&bytes).and_then(|matrix| instances(&matrix))),
        }
        Ok(())
    };
    for file in reading.files(&[".npy", ".tar"])? {
        let wrong = |error: std::io::Error| unreadable(&file, &error);
        if half(&file).is_some() {
            take(&file, &mut input::open(&file)?).map_err(wrong)?;
            continue;
        }
        for entry in Archive::new(input::open(&file)?).entries().map_err(wrong)? {
            let mut entry = entry.map_err(wrong)?;
            let name = entry.path().map_err(wrong)?.into_owned();
            take(&name, &mut entry).map_err(wrong)?;
        }
    }
    let path = Path::new(reading.path);
    for (number, halves) in jobs {
        if reading.is_full() {
            break;
        }
        if let Err(problem) = job(number, halves).and_then(|draft| reading.add(draft)) {
            reading.malformed(path, number, problem);
        }
    }
    reading.note("all instances of a stage have the stage's run time: the trace does not list instances");
    Ok(())
}

/// The error for an archive. Its reader reports an early end only in the text of an error.
fn unreadable(file: &Path, error: &std::io::Error) -> WorkloadError {
    if error.to_string().contains("failed to read entire block") {
        let problem = format!("{}: the archive ends too early", file.display());
        return WorkloadError::new(problem, "fetch the file again: it is truncated");
    }
    input::unreadable(file, error)
}

/// The kind of a file and the number of its job, by the file's name.
fn half(path: &Path) -> Option<(Half, u64)> {
    let name = path.file_name()?.to_str()?.strip_suffix(".npy")?;
    let (half, number) = match name.strip_prefix("adj_mat_") {
        Some(number) => (Half::Befores, number),
        None => (Half::Stages, name.strip_prefix("ins_dur")?),
    };
    Some((half, number.parse().ok()?))
}

fn instances(matrix: &Matrix) -> Result<Vec<(u32, Duration)>, String> {
    if matrix.columns != 2 {
        return Err(format!("the stages have {} columns, not 2 (instances and seconds)", matrix.columns));
    }
    let row = |row: usize| {
        let (count, seconds) = (matrix.at(row, 0), matrix.at(row, 1));
        if count < 1.0 || count.fract() != 0.0 || count > f64::from(u32::MAX) {
            return Err(format!("stage {row} has {count} instances"));
        }
        if !(0.0..1e9).contains(&seconds) {
            return Err(format!("stage {row} takes {seconds} s"));
        }
        Ok((count as u32, Duration::from_micros((seconds * 1e6).round() as u64)))
    };
    (0..matrix.rows).map(row).collect()
}

fn job(number: u64, halves: Halves) -> Result<Draft, String> {
    let befores = halves.befores.ok_or_else(|| format!("job {number} has no adjacency matrix"))??;
    let stages = halves.stages.ok_or_else(|| format!("job {number} has no instances and run times"))??;
    if befores.len() != stages.len() {
        return Err(format!("the DAG has {} stages, but {} have run times", befores.len(), stages.len()));
    }
    let stage = |(index, (after, (count, time))): (usize, (Vec<usize>, (u32, Duration)))| {
        DraftStage::new(format!("stage-{index}"), count, RunTimes::Same(time)).after(after)
    };
    let stages = befores.into_iter().zip(stages).enumerate().map(stage).collect();
    Ok(Draft { name: format!("alibaba-{number}"), stages, ..Draft::default() })
}
