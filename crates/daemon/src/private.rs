//! Directories that nobody else may look into.

use crate::durable;
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

const MODE: u32 = 0o700;
const OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;

/// Makes the directory if need be, and closes one of ours to others.
///
/// # Errors
/// When it belongs to somebody else, or everybody is to have a place in it.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> =
        path.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists()).collect();
    DirBuilder::new().recursive(true).mode(MODE).create(path)?;
    // What is made in it would be lost with it.
    missing.into_iter().try_for_each(durable::sync_parent)?;
    let found = fs::metadata(path)?;
    check_owner(&found)?;
    if found.mode() & STICKY != 0 {
        return Err(io::Error::other("it is shared by all users; name a directory inside it"));
    }
    if found.mode() & OTHERS != 0 {
        fs::set_permissions(path, Permissions::from_mode(found.mode() & 0o7777 & !OTHERS))?;
    }
    Ok(())
}

/// Whether what is in this directory, which may be in a place where everybody can write, was put there by us.
///
/// # Errors
/// When others can get or have got at it.
pub fn check_private_dir(path: &Path) -> io::Result<()> {
    // Not through a link that somebody else put there.
    let found = fs::symlink_metadata(path)?;
    if !found.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    check_owner(&found)?;
    match found.mode() & OTHERS {
        0 => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::PermissionDenied, "others can get at it; run `chmod 700` on it")),
    }
}

fn check_owner(found: &Metadata) -> io::Result<()> {
    if found.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let why = format!("it belongs to the user with number {}; use a directory of your own", found.uid());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_directory_is_closed_and_a_shared_one_refused() {
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
    fn a_link_or_a_directory_of_somebody_else_is_not_ours() {
        let home = tempfile::tempdir().unwrap();
        let link = home.path().join("link");
        std::os::unix::fs::symlink(home.path(), &link).unwrap();
        assert!(check_private_dir(&link).is_err());
        // Whoever runs this does not own both.
        let foreign = ["/proc/1", "/proc/self"].map(Path::new);
        let ours = rustix::process::geteuid().as_raw();
        for path in foreign.into_iter().filter(|path| fs::metadata(path).is_ok_and(|found| found.uid() != ours)) {
            assert!(check_private_dir(path).is_err() && make_private_dir(path).is_err());
        }
    }
}
