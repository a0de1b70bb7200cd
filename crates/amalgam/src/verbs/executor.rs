//! `amalgam executor`: started by agents, not by people.

use crate::failure::{Failure, Result};
use amalgam_daemon::executor::{ExecutorConfig, run};
use clap::Args;
use std::ffi::OsString;
use std::process::ExitCode;

#[derive(Args)]
pub struct ExecutorArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub fn execute(args: ExecutorArgs) -> Result<ExitCode> {
    let config =
        ExecutorConfig::parse(args.arguments).map_err(|what| Failure::usage(what, "agents start executors"))?;
    run(config).map_err(|error| Failure::new(error.to_string(), ""))?;
    Ok(ExitCode::SUCCESS)
}
