//! The executor alone, as the tests of this crate start it. The product's binary has the same behind a hidden
//! subcommand.

use amalgam_daemon::{executor, inherited};
use std::process::ExitCode;

fn main() -> ExitCode {
    inherited::let_go([]);
    executor::main(std::env::args_os().skip(1))
}
