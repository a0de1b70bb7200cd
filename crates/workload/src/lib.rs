//! Workloads: what users and traces describe, turned into `JobSpec`s.
//!
//! A job file goes through three steps: its format becomes one tree of positioned nodes (`document`), the tree becomes
//! the types that also generate the published schema (`job_file`), and those become a checked job (`build`). The
//! position of every value survives all three, so that each complaint can point. Traces and generators are in
//! [`trace`].

mod build;
mod command;
mod document;
mod error;
mod files;
mod job_file;
mod order;
pub mod quantities;
mod suggest;
mod tasks;
pub mod trace;

pub use build::{Context, DEFAULT_OUTPUT_CAP, queue_position, read_job};
pub use command::{CommandOptions, JobOptions, from_command};
pub use document::{At, Format, keys_of};
pub use error::{FileError, Position, packed};
pub use job_file::json_schema;
pub use suggest::closest;

use serde::de::DeserializeOwned;
use std::path::Path;

/// Reads settings in TOML. What an error of a value's own reader says and advises is put together by [`packed`]; an [`At`]
/// remembers where its value is.
///
/// # Errors
/// With the place in the file, and for a key that is not known a suggestion.
pub fn read_settings<T: DeserializeOwned>(text: &str, file: &Path) -> Result<T, FileError> {
    document::parse(text, Format::Toml).and_then(|tree| tree.read()).map_err(|complaint| complaint.in_file(file))
}
