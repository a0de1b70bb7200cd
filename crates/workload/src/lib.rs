//! Workloads: job files, command lines and traces, turned into `JobSpec`s.
//!
//! A job file is read in three steps. The parser of its format builds one tree of positioned nodes (`document`). The
//! tree is read into the types that also generate the published schema (`job_file`). Those types are turned into a
//! checked job (`build`). Every value keeps its position through all three steps, so that error messages can point to
//! it. Traces and generators are in [`trace`].

mod build;
mod command;
mod document;
mod error;
mod files;
mod glob;
pub mod inherit;
mod job_file;
mod order;
pub mod quantities;
mod suggest;
mod tasks;
pub mod text;
pub mod trace;

pub use build::{Context, DEFAULT_OUTPUT_CAP, queue_position, read_job, read_job_of};
pub use command::{CommandOptions, JobOptions, from_command};
pub use document::{At, Format, keys_of};
pub use error::{FileError, Position, packed};
pub use job_file::{job_file_schema, json_schema};
pub use suggest::closest;

use amalgam_core::vocabulary::ByteString;
use serde::de::DeserializeOwned;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Reads settings in TOML. A value's own deserializer reports its problem and remedy with [`packed`]; an [`At`] keeps
/// the position of its value.
///
/// # Errors
/// The first problem, with its position in the file, and a suggestion for an unknown key.
pub fn read_settings<T: DeserializeOwned>(text: &str, file: &Path) -> Result<T, FileError> {
    document::parse(text, Format::Toml).and_then(|tree| tree.read()).map_err(|complaint| complaint.in_file(file))
}

/// Converts bytes to a path.
pub fn path_of(bytes: &ByteString) -> &Path {
    Path::new(OsStr::from_bytes(bytes.as_bytes()))
}

/// Converts a path to bytes.
pub fn bytes_of(path: impl Into<PathBuf>) -> ByteString {
    path.into().into_os_string().into_vec().into()
}
