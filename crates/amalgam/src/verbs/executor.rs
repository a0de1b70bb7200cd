//! `amalgam executor`

use crate::failure::{Failure, Result};
use clap::Args;
use std::process::ExitCode;

#[derive(Args)]
pub struct ExecutorArgs {}

pub fn execute(_args: ExecutorArgs) -> Result<ExitCode> {
    Err(Failure::new("this build cannot start an executor", "use one with the daemons"))
}
