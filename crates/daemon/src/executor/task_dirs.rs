//! The tasks' scratch directories, each for one attempt at a time.
//!
//! Making and removing a directory costs a journalling filesystem a third of a whole launch, and most tasks never
//! touch theirs, so one that was left as it was is passed on.

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// How much of an error file is passed on.
const MOST_MESSAGE: u64 = 4096;
const MODE: u32 = 0o700;

#[derive(Debug)]
pub struct TaskDirs {
    root: PathBuf,
    idle: Vec<PathBuf>,
    next: u64,
}

impl TaskDirs {
    /// What is in `root` belonged to attempts that died with an earlier executor.
    pub fn new(root: PathBuf) -> io::Result<TaskDirs> {
        match fs::remove_dir_all(&root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        make(&root)?;
        Ok(TaskDirs { root, idle: Vec::new(), next: 0 })
    }

    pub fn take(&mut self) -> io::Result<PathBuf> {
        if let Some(dir) = self.idle.pop() {
            return Ok(dir);
        }
        self.next += 1;
        let dir = self.root.join(self.next.to_string());
        make(&dir)?;
        Ok(dir)
    }

    /// Takes a directory back, emptied, and returns what the task wrote to its error file.
    pub fn give_back(&mut self, dir: PathBuf) -> Option<String> {
        if is_untouched(&dir) {
            self.idle.push(dir);
            return None;
        }
        let message = message_in(&dir);
        // What cannot be removed stays until the next start, under a number that is not used again.
        let _ = fs::remove_dir_all(&dir);
        message
    }
}

/// Where a task may leave a message about its failure.
pub fn error_file(dir: &Path) -> PathBuf {
    dir.join("error")
}

fn make(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(MODE).create(dir)
}

fn is_untouched(dir: &Path) -> bool {
    // Not through a link that the task put there instead.
    let is_ours = fs::symlink_metadata(dir).is_ok_and(|found| found.is_dir() && found.mode() & 0o7777 == MODE);
    is_ours && fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

fn message_in(dir: &Path) -> Option<String> {
    let path = error_file(dir);
    // A pipe in its place would keep us waiting.
    fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_file)?;
    let mut text = Vec::new();
    fs::File::open(&path).ok()?.take(MOST_MESSAGE).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text).trim_end().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_an_untouched_directory_is_passed_on() {
        let home = tempfile::tempdir().unwrap();
        let mut dirs = TaskDirs::new(home.path().join("tasks")).unwrap();
        let first = dirs.take().unwrap();
        assert_eq!(dirs.give_back(first.clone()), None);
        assert_eq!(dirs.take().unwrap(), first);

        fs::create_dir(first.join("left")).unwrap();
        fs::write(error_file(&first), "x".repeat(5_000)).unwrap();
        assert_eq!(dirs.give_back(first.clone()).map(|message| message.len()), Some(4096));
        let second = dirs.take().unwrap();
        assert!(second != first && !first.exists());

        fs::set_permissions(&second, fs::Permissions::from_mode(0o777)).unwrap();
        dirs.give_back(second.clone());
        assert_ne!(dirs.take().unwrap(), second);
    }
}
