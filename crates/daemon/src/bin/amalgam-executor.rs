//! The executor alone, as the tests of this crate start it. The product's binary has the same behind a hidden
//! subcommand.

use amalgam_daemon::executor::{self, ExecutorConfig};
use amalgam_daemon::inherited;
use amalgam_daemon::terminal::visible;
use std::process::ExitCode;

fn main() -> ExitCode {
    inherited::let_go([]);
    let result = ExecutorConfig::parse(std::env::args_os().skip(1))
        .and_then(|config| executor::run(config).map_err(|error| error.to_string()));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", visible(&error));
            ExitCode::FAILURE
        }
    }
}
