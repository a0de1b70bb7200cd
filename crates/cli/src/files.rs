//! Files that a verb writes at a path of the user's choice.

use crate::failure::{Failure, Result};
use amalgam_daemon::durable::Draft;
use std::io;
use std::path::Path;

/// A file that gets its name once it is complete. Until then an existing file stays as it is.
///
/// # Errors
/// Names the file and why it cannot be written.
pub fn create(path: &Path) -> Result<Draft> {
    Draft::shared(path).map_err(|error| cannot_write(path, &error))
}

/// The failure to write this file.
pub fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Failure::unwritten(&path.display().to_string(), error)
}
