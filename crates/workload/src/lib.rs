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
mod job_file;
mod order;
pub mod quantities;
mod suggest;
mod tasks;
pub mod trace;

pub use build::{Context, DEFAULT_OUTPUT_CAP, read_job};
pub use command::{CommandOptions, JobOptions, from_command};
pub use document::Format;
pub use error::{JobFileError, Position};
pub use job_file::json_schema;
pub use suggest::closest;
