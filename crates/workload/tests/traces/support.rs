//! Shared helpers of the tests: samples in a temporary directory, and public traces beside the repository.

use amalgam_core::vocabulary::Duration;
use amalgam_workload::trace::{RunTimes, TraceJob, Workload, WorkloadError, read};
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// Samples in a temporary directory, which is removed at the end of the test.
pub struct Samples(TempDir);

impl Samples {
    pub fn new() -> Samples {
        Samples(tempfile::tempdir().expect("a temporary directory"))
    }

    pub fn one(name: &str, content: impl AsRef<[u8]>) -> Samples {
        let samples = Samples::new();
        samples.add(name, content);
        samples
    }

    pub fn add(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().expect("below the directory")).expect("a directory");
        fs::write(path, content).expect("a sample");
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Reads `name` with a format and options such as `limit=2 seed=3`.
    pub fn read(&self, format: &str, name: &str, options: &str) -> Result<Workload, WorkloadError> {
        try_read(&format!("{format}:{}", self.path(name)), options)
    }
}

pub fn try_read(workload: &str, options: &str) -> Result<Workload, WorkloadError> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').expect("key=value");
        (key.to_owned(), value.to_owned())
    };
    read(workload, &options.split_whitespace().map(pair).collect::<Vec<_>>())
}

/// The path of a public trace. If it is not present, prints that the test is skipped and returns `None`.
pub fn public(path: &str) -> Option<String> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let places = [root.join("../shared/traces"), root.join("../../shared/traces")];
    match places.iter().map(|place| place.join(path)).find(|path| path.exists()) {
        Some(found) => Some(found.display().to_string()),
        None => {
            eprintln!("SKIPPED: ../shared/traces/{path} not found");
            None
        }
    }
}

pub fn seconds(seconds: f64) -> Duration {
    Duration::from_micros((seconds * 1e6).round() as u64)
}

pub fn each(times: &[f64]) -> RunTimes {
    RunTimes::Each(times.iter().map(|time| seconds(*time)).collect())
}

/// `stage(tasks)<-dependencies` for every stage of a job.
pub fn shape(job: &TraceJob) -> Vec<String> {
    let stages = job.spec.stages.iter();
    stages
        .map(|stage| {
            let befores: Vec<&str> =
                stage.after.iter().map(|before| job.spec.stages[*before as usize].name.as_str()).collect();
            format!("{}({})<-{}", stage.name, stage.tasks.len(), befores.join(","))
        })
        .collect()
}

pub fn has_note(workload: &Workload, part: &str) -> bool {
    workload.notes.iter().any(|note| note.contains(part))
}
