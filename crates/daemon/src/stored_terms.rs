//! The file in which a process stores the server's answer, so that a later run can start while the server is not
//! connected.

use crate::durable;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub(crate) const NAME: &str = "known.json";

#[derive(Debug)]
pub enum LoadError {
    Unreadable(io::Error),
    Damaged(serde_json::Error),
}

pub fn path(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

/// The stored terms. `None` if this directory has none.
///
/// # Errors
/// If the file cannot be read, or is damaged.
pub fn load<T: DeserializeOwned>(dir: &Path) -> Result<Option<T>, LoadError> {
    match fs::read(path(dir)) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(LoadError::Damaged),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LoadError::Unreadable(error)),
    }
}

/// Stores the terms durably.
///
/// # Errors
/// If they could not be written to the disk. The previous file is unchanged then.
pub fn store(dir: &Path, terms: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(terms).expect("names and numbers can be written");
    durable::replace(&path(dir), &text)
}
