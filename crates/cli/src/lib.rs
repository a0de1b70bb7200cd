//! The common parts of this project's command lines: failures, output, values of arguments, environment variables, and the
//! client of the HTTP interface.

pub mod client;
pub mod environment;
pub mod failure;
pub mod files;
pub mod levels;
mod local;
pub mod log;
pub mod output;
pub mod process;
pub mod refusal;
pub mod show;
pub mod values;
