//! `amalgam server`

use crate::failure::{Failure, Result};
use clap::Args;
use std::process::ExitCode;

#[derive(Args)]
pub struct ServerArgs {}

pub fn execute(_args: ServerArgs) -> Result<ExitCode> {
    Err(Failure::new("this build cannot start a server", "use one with the daemons"))
}
