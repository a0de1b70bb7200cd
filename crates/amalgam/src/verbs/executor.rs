//! `amalgam executor`: started by agents, not by people.

use crate::failure::Result;
use amalgam_daemon::executor;
use clap::Args;
use std::ffi::OsString;
use std::process::ExitCode;

#[derive(Args)]
pub struct ExecutorArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub fn execute(args: ExecutorArgs) -> Result<ExitCode> {
    Ok(executor::main(args.arguments))
}
