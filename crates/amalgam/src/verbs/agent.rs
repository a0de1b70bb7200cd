//! `amalgam agent`

use crate::failure::{Failure, Result};
use clap::Args;
use std::process::ExitCode;

#[derive(Args)]
pub struct AgentArgs {}

pub fn execute(_args: AgentArgs) -> Result<ExitCode> {
    Err(Failure::new("this build cannot start a node's agent", "use one with the daemons"))
}
