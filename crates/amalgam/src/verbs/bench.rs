//! `amalgam bench`

use crate::failure::{Failure, Result};
use clap::Args;
use std::process::ExitCode;

#[derive(Args)]
pub struct BenchArgs {}

pub fn execute(_args: BenchArgs) -> Result<ExitCode> {
    Err(Failure::new("this build cannot start a benchmark", "use one with the daemons"))
}
