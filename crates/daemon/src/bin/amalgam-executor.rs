//! The executor as a program of its own, for the tests of this crate. The product's binary has it as a hidden
//! subcommand.

use amalgam_daemon::{executor, inherited};
use std::process::ExitCode;

fn main() -> ExitCode {
    inherited::let_go([]);
    executor::main(std::env::args_os().skip(1))
}
