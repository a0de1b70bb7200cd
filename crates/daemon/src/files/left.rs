//! A file that a task left in its directory. It is found without following links, so that files outside are never used.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

pub struct Left<'a> {
    /// The directory that contains it.
    parent: OwnedFd,
    name: &'a str,
    /// Whether it has another name, so that it does not belong to the task alone.
    is_shared: bool,
}

/// Why a file was not stored.
#[derive(Debug)]
pub enum PutError {
    Missing,
    NotAFile,
    /// A directory in its path is a link.
    Linked,
    /// The task left it unreadable.
    Unreadable(io::Error),
    /// The node cannot store it.
    Io(io::Error),
}

impl PutError {
    /// The reason for an error of the task's file. Most errors are caused by the task.
    pub fn of_source(error: impl Into<io::Error>) -> PutError {
        let error = error.into();
        match error.raw_os_error() {
            Some(libc::ENOENT) => PutError::Missing,
            Some(
                libc::EIO
                | libc::ESTALE
                | libc::ENOTCONN
                | libc::ETIMEDOUT
                | libc::ENOSPC
                | libc::EDQUOT
                | libc::EROFS
                | libc::EMFILE
                | libc::ENFILE
                | libc::ENOMEM,
            )
            | None => PutError::Io(error),
            Some(_) => PutError::Unreadable(error),
        }
    }
}

impl<'a> Left<'a> {
    /// Finds the file in the directory of a task.
    pub fn find(directory: &Path, path: &'a str) -> Result<Left<'a>, PutError> {
        let (parents, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut parent = enter(CWD, directory)?;
        for part in parents.split('/').filter(|part| !part.is_empty()) {
            parent = enter(&parent, Path::new(part))?;
        }
        let found = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(PutError::of_source)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(PutError::NotAFile);
        }
        Ok(Left { parent, name, is_shared: found.st_nlink > 1 })
    }

    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    pub fn open(&self) -> Result<File, PutError> {
        if !self.is_shared {
            // The task may have removed its own permissions.
            let _ = rustix::fs::chmodat(&self.parent, self.name, Mode::RUSR | Mode::WUSR, AtFlags::empty());
        }
        // A pipe that took its place does not block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::openat(&self.parent, self.name, flags, Mode::empty()).map(File::from).map_err(PutError::of_source)
    }

    /// Renames the file, or gives it another name if `is_kept`.
    pub fn rename(&self, target: &Path, is_kept: bool) -> io::Result<()> {
        match is_kept {
            true => rustix::fs::linkat(&self.parent, self.name, CWD, target, AtFlags::empty())?,
            false => rustix::fs::renameat(&self.parent, self.name, CWD, target)?,
        }
        Ok(())
    }

    pub fn remove(&self) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.parent, self.name, AtFlags::empty())?)
    }
}

/// Opens a directory that is not a link.
fn enter(parent: impl std::os::fd::AsFd, path: &Path) -> Result<OwnedFd, PutError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&parent, path, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOTDIR | Errno::LOOP => match rustix::fs::statat(&parent, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Symlink => PutError::Linked,
            _ => PutError::Missing,
        },
        _ => PutError::of_source(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn no_link_is_followed_below_the_tasks_directory() {
        let home = tempfile::tempdir().unwrap();
        let own = home.path().join("own");
        for directory in ["own/a/b", "elsewhere/b"] {
            fs::create_dir_all(home.path().join(directory)).unwrap();
            fs::write(home.path().join(directory).join("o"), "mine").unwrap();
        }
        let find = |name: &str| Left::find(&own, name).map(|_| ());
        assert!(find("a/b/o").is_ok());
        symlink(home.path().join("elsewhere"), own.join("out")).unwrap();
        symlink("elsewhere", home.path().join("replaced")).unwrap();
        symlink("loop", own.join("loop")).unwrap();
        symlink("a/b/o", own.join("o")).unwrap();
        for linked in ["out/b/o", "loop/o"] {
            assert!(matches!(find(linked), Err(PutError::Linked)), "{linked}");
        }
        assert!(matches!(Left::find(&home.path().join("replaced"), "b/o"), Err(PutError::Linked)));
        for not in ["o", "out", "a"] {
            assert!(matches!(find(not), Err(PutError::NotAFile)), "{not}");
        }
        for missing in ["none", "none/o", "a/none", "a/b/o/o"] {
            assert!(matches!(find(missing), Err(PutError::Missing)), "{missing}");
        }
        assert!(matches!(find(&"a".repeat(300)), Err(PutError::Unreadable(_))), "this is not an error of the node");
        assert!(matches!(find(&format!("{}/o", "a".repeat(300))), Err(PutError::Unreadable(_))));
    }

    #[test]
    fn disk_errors_are_not_the_tasks_errors() {
        let of = |number| PutError::of_source(io::Error::from_raw_os_error(number));
        assert!(
            [libc::EIO, libc::ESTALE, libc::ENOSPC, libc::EMFILE].map(of).iter().all(|e| matches!(e, PutError::Io(_)))
        );
        let its = [libc::EACCES, libc::ELOOP, libc::ENAMETOOLONG, libc::EPERM].map(of);
        assert!(its.iter().all(|error| matches!(error, PutError::Unreadable(_))));
    }
}
