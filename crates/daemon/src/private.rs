//! Directories that other users cannot read.

use crate::durable;
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

const MODE: u32 = 0o700;
const PASSABLE: u32 = 0o711;
const OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;

/// Creates the directory if it is missing, and removes the permissions of other users.
///
/// # Errors
/// If it belongs to another user, or is shared by all users (sticky bit).
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    make_dir(path, MODE)
}

/// Like [`make_private_dir`], but other users may pass through the directory to others below it. They cannot list it.
///
/// # Errors
/// As for [`make_private_dir`].
pub fn make_passable_dir(path: &Path) -> io::Result<()> {
    make_dir(path, PASSABLE)
}

fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    let missing: Vec<&Path> =
        path.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists()).collect();
    DirBuilder::new().recursive(true).mode(MODE).create(path)?;
    // Without these entries, the files in it would be lost after a crash.
    missing.into_iter().try_for_each(durable::sync_parent)?;
    let found = fs::metadata(path)?;
    check_owner(&found)?;
    if found.mode() & STICKY != 0 {
        return Err(io::Error::other("it is shared by all users; use a directory inside it"));
    }
    let wanted = (found.mode() & 0o7777 & !OTHERS) | mode;
    if found.mode() & 0o7777 != wanted {
        fs::set_permissions(path, Permissions::from_mode(wanted))?;
    }
    Ok(())
}

/// Checks that only this user could list the directory and write to it. Its parent may be writable for all users.
///
/// # Errors
/// If other users have or had more access than to pass through.
pub fn check_private_dir(path: &Path) -> io::Result<()> {
    // Do not follow a link that another user created.
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    check_owner(&found)?;
    match found.mode() & OTHERS & !PASSABLE {
        0 => Ok(()),
        _ => {
            Err(io::Error::new(io::ErrorKind::PermissionDenied, "other users have access to it; run `chmod 700` on it"))
        }
    }
}

fn check_owner(found: &Metadata) -> io::Result<()> {
    if found.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let why = format!("it belongs to the user with the id {}; use your own directory", found.uid());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_directory_is_made_private_and_a_shared_one_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b");
        make_private_dir(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, MODE);

        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        assert!(check_private_dir(&path).is_err());
        make_private_dir(&path).unwrap();
        check_private_dir(&path).unwrap();

        fs::set_permissions(&path, Permissions::from_mode(0o1777)).unwrap();
        assert!(make_private_dir(&path).is_err());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o1777);
    }

    #[test]
    fn a_link_or_a_directory_of_another_user_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let link = home.path().join("link");
        std::os::unix::fs::symlink(home.path(), &link).unwrap();
        assert!(check_private_dir(&link).is_err());
        // The user of this test does not own both.
        let foreign = ["/proc/1", "/proc/self"].map(Path::new);
        let ours = rustix::process::geteuid().as_raw();
        for path in foreign.into_iter().filter(|path| fs::metadata(path).is_ok_and(|found| found.uid() != ours)) {
            assert!(check_private_dir(path).is_err() && make_private_dir(path).is_err());
        }
    }
}
