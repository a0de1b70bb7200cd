//! `amalgam dev`

use crate::failure::{Failure, Result};
use clap::Args;
use std::process::ExitCode;

#[derive(Args)]
pub struct DevArgs {
    #[command(flatten)]
    pub size: crate::embedded::Size,
}

pub fn execute(_args: DevArgs) -> Result<ExitCode> {
    Err(Failure::new("this build cannot start a whole cluster", "use one with the daemons"))
}
