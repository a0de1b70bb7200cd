//! The local socket: on the server's own machine, the kernel says who calls.

use nix::unistd::{Uid, User};
use std::fmt;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The socket of the Debian package, which clients use if they know no other server.
pub const USUAL_SOCKET: &str = "/run/amalgam/socket";

/// A socket that every user of this machine may connect to.
#[derive(Debug)]
pub struct LocalSocket {
    path: PathBuf,
    inode: u64,
    pub listener: UnixListener,
}

impl LocalSocket {
    /// Listens at the path. Its directory is created if it is missing. A socket that a killed server left is replaced.
    ///
    /// # Errors
    /// If another process listens there, another file is there, or the socket cannot be made.
    pub fn bind(path: &Path) -> io::Result<LocalSocket> {
        if let Some(directory) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "another file is in its place"));
            }
            Ok(_) if UnixStream::connect(path).is_ok() => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
            }
            Ok(_) => fs::remove_file(path)?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o666))?;
        listener.set_nonblocking(true)?;
        Ok(LocalSocket { path: path.to_owned(), inode: fs::symlink_metadata(path)?.ino(), listener })
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        // The socket of a successor has another inode.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A user of this machine, by the kernel's word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalUser {
    pub uid: u32,
    /// `None` if the number has no name.
    pub name: Option<Arc<str>>,
}

impl LocalUser {
    /// Looks up the name. May take long, if the name service is a server on the network.
    pub fn of(uid: u32) -> LocalUser {
        let name = User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name.into());
        LocalUser { uid, name }
    }

    /// Whether this is root or the user of this process, who can read and change all its files anyway.
    pub fn is_trusted(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

impl fmt::Display for LocalUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "local user {}", self.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_left_by_a_killed_server_is_replaced_and_a_used_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/socket");
        let first = LocalSocket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o666);
        assert_eq!(LocalSocket::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(LocalSocket::bind(&path).unwrap());
        fs::write(&path, "").unwrap();
        assert_eq!(LocalSocket::bind(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn root_is_trusted_and_has_a_name() {
        let root = LocalUser::of(0);
        assert!(root.is_trusted() && root.name.as_deref() == Some("root"));
        let other = LocalUser::of(4_000_000_000);
        assert_eq!((other.is_trusted(), other.name), (false, None));
    }
}
