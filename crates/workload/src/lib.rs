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

/// Reads settings in TOML. What an error of a value's own reader says and advises is put together by [`packed`]; an [`At`]
/// remembers where its value is.
///
/// # Errors
/// With the place in the file, and for a key that is not known a suggestion.
pub fn read_settings<T: DeserializeOwned>(text: &str, file: &Path) -> Result<T, FileError> {
    document::parse(text, Format::Toml).and_then(|tree| tree.read()).map_err(|complaint| complaint.in_file(file))
}

/// The path that these bytes are.
pub fn path_of(bytes: &ByteString) -> &Path {
    Path::new(OsStr::from_bytes(bytes.as_bytes()))
}

/// The bytes of a path.
pub fn bytes_of(path: impl Into<PathBuf>) -> ByteString {
    path.into().into_os_string().into_vec().into()
}
