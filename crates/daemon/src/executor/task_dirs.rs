//! The tasks' scratch directories, each for one attempt at a time.
//!
//! On a journalling file system, creating and removing a directory takes a third of the time of a launch. Most tasks do
//! not use theirs, so an unchanged directory is reused.

use crate::removal::Remover;
use rustix::fs::OFlags;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of bytes of an error file that are reported.
const MOST_MESSAGE: u64 = 4096;
const MODE: u32 = 0o700;

pub struct TaskDirs {
    root: PathBuf,
    /// Whether tasks run as other users, who pass through the root to their directories.
    is_passable: bool,
    remover: Arc<Remover>,
    idle: Vec<PathBuf>,
    next: u64,
}

impl TaskDirs {
    /// Removes the contents of `root`, which belong to attempts of an earlier executor.
    pub fn new(root: PathBuf, is_passable: bool, remover: Arc<Remover>) -> io::Result<TaskDirs> {
        if fs::symlink_metadata(&root).is_ok_and(|found| !found.is_dir()) {
            // A link is removed; its target is not touched.
            remover.put_away(&root);
        }
        for left in fs::read_dir(&root).into_iter().flatten().flatten() {
            remover.put_away(&left.path());
        }
        let dirs = TaskDirs { root, is_passable, remover, idle: Vec::new(), next: 0 };
        dirs.make_root()?;
        Ok(dirs)
    }

    fn make_root(&self) -> io::Result<()> {
        match self.is_passable {
            true => crate::private::make_passable_dir(&self.root),
            false => crate::private::make_private_dir(&self.root),
        }
    }

    /// An empty directory of this process's user.
    pub fn take(&mut self) -> io::Result<PathBuf> {
        while let Some(dir) = self.idle.pop() {
            // The directory may have been removed by another program.
            if fs::symlink_metadata(&dir).is_ok_and(|found| found.is_dir()) {
                return Ok(dir);
            }
        }
        loop {
            self.next += 1;
            let dir = self.root.join(self.next.to_string());
            match make(&dir) {
                Ok(()) => return Ok(dir),
                // A directory of an earlier executor could neither be removed nor renamed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                    if fs::symlink_metadata(&self.root).is_ok_and(|found| !found.is_dir()) {
                        self.remover.put_away(&self.root);
                    }
                    self.make_root()?;
                    make(&dir)?;
                    return Ok(dir);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes a directory back. A changed one, or one of another user, is removed.
    pub fn give_back(&mut self, dir: PathBuf) {
        match is_untouched(&dir) {
            true => self.idle.push(dir),
            false => self.remover.put_away(&dir),
        }
    }
}

/// The file in which a task may write a message about its failure.
pub fn error_file(dir: &Path) -> PathBuf {
    dir.join("error")
}

/// The file with the names of the nodes of a gang's tasks.
pub fn nodes_file(dir: &Path) -> PathBuf {
    dir.join("nodes")
}

fn make(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(MODE).create(dir)
}

fn is_untouched(dir: &Path) -> bool {
    // A link that the task put in its place is not followed.
    let user = rustix::process::geteuid().as_raw();
    let is_ours = fs::symlink_metadata(dir)
        .is_ok_and(|found| found.is_dir() && found.mode() & 0o7777 == MODE && found.uid() == user);
    is_ours && fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none())
}

/// The content of the task's error file.
pub fn message_in(dir: &Path) -> Option<String> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    // Links are not followed, and a pipe does not block.
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(error_file(dir)).ok()?;
    file.metadata().ok().filter(fs::Metadata::is_file)?;
    let mut text = Vec::new();
    file.take(MOST_MESSAGE).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text).trim_end().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_an_unchanged_directory_is_reused() {
        let home = tempfile::tempdir().unwrap();
        let remover = Arc::new(Remover::new(home.path()).unwrap());
        let mut dirs = TaskDirs::new(home.path().join("tasks"), false, remover).unwrap();
        let first = dirs.take().unwrap();
        assert_eq!(message_in(&first), None);
        dirs.give_back(first.clone());
        assert_eq!(dirs.take().unwrap(), first);

        fs::create_dir(first.join("left")).unwrap();
        fs::write(error_file(&first), "x".repeat(5_000)).unwrap();
        assert_eq!(message_in(&first).map(|message| message.len()), Some(4096));
        dirs.give_back(first.clone());
        let second = dirs.take().unwrap();
        assert!(second != first && !first.exists());

        fs::set_permissions(&second, fs::Permissions::from_mode(0o777)).unwrap();
        dirs.give_back(second.clone());
        assert_ne!(dirs.take().unwrap(), second);
    }

    #[test]
    fn removed_directories_are_created_again() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("tasks");
        let mut dirs = TaskDirs::new(root.clone(), false, Arc::new(Remover::new(home.path()).unwrap())).unwrap();
        let idle = dirs.take().unwrap();
        dirs.give_back(idle.clone());
        fs::remove_dir(&idle).unwrap();
        assert!(dirs.take().unwrap().is_dir());
        fs::remove_dir_all(&root).unwrap();
        assert!(dirs.take().unwrap().is_dir());
        assert_eq!(fs::metadata(&root).unwrap().mode() & 0o7777, MODE);
    }

    #[test]
    fn a_link_a_file_or_old_directories_at_the_start_are_replaced() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("tasks");
        let remover = Arc::new(Remover::new(home.path()).unwrap());
        let others = home.path().join("others");
        fs::create_dir(&others).unwrap();
        fs::write(others.join("mine"), "").unwrap();
        std::os::unix::fs::symlink(&others, &root).unwrap();
        TaskDirs::new(root.clone(), false, Arc::clone(&remover)).unwrap();
        assert!(fs::symlink_metadata(&root).unwrap().is_dir() && others.join("mine").exists());
        fs::remove_dir(&root).unwrap();
        fs::write(&root, "").unwrap();
        TaskDirs::new(root.clone(), false, Arc::clone(&remover)).unwrap();
        fs::create_dir_all(root.join("1/closed")).unwrap();
        fs::set_permissions(root.join("1"), fs::Permissions::from_mode(0o000)).unwrap();
        let mut dirs = TaskDirs::new(root.clone(), false, remover).unwrap();
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
        assert!(dirs.take().unwrap().is_dir());
    }
}
