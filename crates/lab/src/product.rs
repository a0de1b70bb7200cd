//! The product's program, which figures and benchmarks start like an operator.

use amalgam_cli::failure::{Failure, Result};
use std::env;
use std::path::PathBuf;

/// Names a program to use instead of the one in this program's directory.
const VARIABLE: &str = "AMALGAM_PROGRAM";

/// The path of `amalgam`.
///
/// # Errors
/// If the file does not exist and the variable is not set.
pub fn program() -> Result<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE).filter(|named| !named.is_empty()) {
        return Ok(named.into());
    }
    let beside = env::current_exe()?.with_file_name("amalgam");
    if beside.is_file() {
        return Ok(beside);
    }
    let remedy = format!(
        "build it beside this program with `cargo build --release -p amalgam`, or set {VARIABLE} to the file of another"
    );
    Err(Failure::new(format!("program not found: {}", beside.display()), remedy))
}
