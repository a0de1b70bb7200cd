//! The formats of workloads, one in each file.

mod alibaba;
mod alibaba_dag;
mod bdb;
mod bytes;
pub(super) mod fields;
mod google2011;
mod hawk;
mod hive_explain;
mod job;
mod npy;
pub(super) mod openb;
mod pickle;
mod rumen;
mod spark_events;
mod stages;
mod swf;
mod swim;
mod synthetic;
mod tpch;
mod wfformat;

use super::error::WorkloadError;
use super::options::Key;
use super::reading::Reading;
use crate::suggest;

/// A format of traces, or a family of generators.
pub struct TraceFormat {
    pub name: &'static str,
    /// A description for users.
    pub about: &'static str,
    /// The format's own options.
    pub keys: &'static [Key],
    pub(crate) read: fn(&mut Reading) -> Result<(), WorkloadError>,
}

/// All formats, in the order of their names.
pub const FORMATS: &[TraceFormat] = &[
    alibaba_dag::FORMAT,
    alibaba::FORMAT_2017,
    alibaba::FORMAT_2018,
    bdb::FORMAT,
    google2011::FORMAT,
    hawk::FORMAT,
    hive_explain::FORMAT,
    job::FORMAT,
    openb::FORMAT,
    rumen::FORMAT,
    spark_events::FORMAT,
    swf::FORMAT,
    swim::FORMAT,
    synthetic::FORMAT,
    tpch::FORMAT,
    wfformat::FORMAT,
];

/// Splits `hawk:PATH` into the format and the path. The path may be missing.
pub(super) fn find(workload: &str) -> Result<(&'static TraceFormat, &str), WorkloadError> {
    let (name, path) = workload.split_once(':').unwrap_or((workload, ""));
    if let Some(format) = FORMATS.iter().find(|format| format.name == name) {
        return Ok((format, path));
    }
    let known = || FORMATS.iter().map(|format| format.name);
    let remedy = match suggest::closest(name, known()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("write FORMAT:PATH; known formats: {}", known().collect::<Vec<_>>().join(", ")),
    };
    Err(WorkloadError::new(format!("unknown workload format `{name}`"), remedy))
}
