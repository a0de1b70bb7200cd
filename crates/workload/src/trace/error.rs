//! Errors in traces: the problem, its position and the remedy.

use crate::quantities;
use std::fmt;
use std::path::{Path, PathBuf};

/// Why a workload could not be read at all. Single malformed lines are skipped: see [`MalformedLines`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkloadError {
    pub problem: String,
    /// What to do about the problem. May be empty.
    pub remedy: String,
}

/// Malformed lines or records, which were skipped: their number, and the first ones.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MalformedLines {
    pub count: u64,
    pub first: Vec<MalformedLine>,
}

/// A malformed line or record. It is printed as `trace.tr:17: the line has 3 fields, not 4`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MalformedLine {
    pub file: PathBuf,
    /// Counts from 1. For formats without lines, the number of the record.
    pub line: u64,
    pub problem: String,
}

impl WorkloadError {
    pub fn new(problem: impl Into<String>, remedy: impl Into<String>) -> WorkloadError {
        WorkloadError { problem: problem.into(), remedy: remedy.into() }
    }

    /// An error about a file, without a remedy.
    pub(crate) fn in_file(file: &Path, problem: impl fmt::Display) -> WorkloadError {
        WorkloadError::new(format!("{}: {problem}", file.display()), "")
    }
}

impl MalformedLines {
    /// The maximum number of lines that are kept with their positions and problems.
    const KEPT: usize = 10;

    pub(crate) fn add(&mut self, file: &Path, line: u64, problem: impl Into<String>) {
        self.count += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(MalformedLine { file: file.to_owned(), line, problem: problem.into() });
        }
    }
}

impl From<quantities::Malformed> for WorkloadError {
    fn from(wrong: quantities::Malformed) -> WorkloadError {
        WorkloadError::new(wrong.problem, wrong.remedy)
    }
}

impl fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "\n  help: {}", self.remedy) }
    }
}

impl std::error::Error for WorkloadError {}

impl fmt::Display for MalformedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.problem)
    }
}
