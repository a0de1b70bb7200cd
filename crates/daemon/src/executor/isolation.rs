//! Tasks with `/tmp`, `/var/tmp` and `/dev/shm` of their own (ADR 74).

use super::prepare::node_fault;
use super::sys::mounts::{Kept, MOST, Mounts, Private};
use amalgam_core::vocabulary::EndReason;
use std::ffi::CString;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// The directories of the node that a task has of its own, and their names in its scratch directory.
const PRIVATE: [(&str, &str); MOST] = [("/tmp", "tmp"), ("/var/tmp", "var-tmp")];
/// The place of a file system in memory.
const MEMORY: &str = "/dev/shm";
/// As of `/tmp`: everybody may create files, and only their owners may remove them.
const MODE: u32 = 0o1777;

/// Creates the directories of a task in its scratch directory. `directory` is where it runs. Its own directories stay reachable
/// if they are below those of the node that are hidden.
///
/// The scratch directory must not belong to another user yet, who could replace what is created here.
pub fn prepare(task_dir: &Path, directory: &Path) -> Result<Mounts, EndReason> {
    let failed = |path: &Path, error| node_fault(&format!("create {} for an isolated task", path.display()), &error);
    let mut mounts = Mounts { maps: maps(), ..Mounts::default() };
    let mut places: Vec<(PathBuf, PathBuf)> = Vec::new();
    for (written, name) in PRIVATE {
        // A node may lack one, or one may be a link to another.
        let Ok(target) = fs::canonicalize(written) else { continue };
        if places.iter().any(|(other, _)| target.starts_with(other)) {
            continue;
        }
        let source = task_dir.join(name);
        let identity = make(&source).map_err(|error| failed(&source, error))?;
        mounts.private.push(Private { source: c_string(&source)?, identity, target: c_string(&target)? });
        places.push((target, source));
    }
    for (path, is_users) in [(task_dir, false), (directory, true)] {
        let Some((target, point)) = below(&places, path) else { continue };
        // What is mounted below a kept directory is kept with it.
        let covers = |one: &Kept, other: &Path| other.starts_with(super::sys::mounts::as_path(&one.target));
        if mounts.kept.iter().any(|kept| covers(kept, &target)) {
            continue;
        }
        DirBuilder::new().recursive(true).mode(0o755).create(&point).map_err(|error| failed(&point, error))?;
        open_up(&point, &places).map_err(|error| failed(&point, error))?;
        mounts.kept.retain(|kept| !super::sys::mounts::as_path(&kept.target).starts_with(&target));
        mounts.kept.push(Kept { source: c_string(path)?, target: c_string(&target)?, is_users });
    }
    mounts.memory = fs::canonicalize(MEMORY).ok().map(|target| c_string(&target)).transpose()?;
    Ok(mounts)
}

/// Why a process did not get its mounts.
pub fn failure(what: &str, error: &io::Error) -> EndReason {
    let remedy = match rustix::process::geteuid().is_root() {
        true => "its agent needs the capability CAP_SYS_ADMIN, which containers often lack",
        false => {
            "its agent is not root, and its kernel must allow user namespaces to others (`sysctl user.max_user_namespaces \
             kernel.unprivileged_userns_clone kernel.apparmor_restrict_unprivileged_userns`)"
        }
    };
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::ENOSPC | libc::EUSERS | libc::ENOSYS | libc::EINVAL) => {
            EndReason::LaunchFailed(format!(
                "this node cannot isolate tasks: {what} failed: {error}; {remedy}; or submit the job with `--isolation none`"
            ))
        }
        _ => node_fault(&format!("isolate the task: {what} failed"), error),
    }
}

/// Why an isolated task does not find this path, if the path exists on its node only.
pub fn hidden(mounts: &Mounts, path: &Path) -> Option<EndReason> {
    let place = mounts.hiding(path)?;
    let (path, place) = (path.display(), place.display());
    Some(EndReason::LaunchFailed(format!(
        "the task has a {place} of its own (`isolation`), in which there is no {path}; use a path elsewhere, or submit the job with \
         `--isolation none`"
    )))
}

/// Creates an empty directory. Returns its identity.
fn make(directory: &Path) -> io::Result<(u64, u64)> {
    fs::create_dir(directory)?;
    // The umask of this process does not apply.
    fs::set_permissions(directory, Permissions::from_mode(MODE))?;
    fs::symlink_metadata(directory).map(|made| (made.dev(), made.ino()))
}

/// If a path is below one of these places: the same path, and where it has to be in the directory that takes the place.
fn below(places: &[(PathBuf, PathBuf)], path: &Path) -> Option<(PathBuf, PathBuf)> {
    // What a parent is depends on links.
    if path.components().any(|component| component == Component::ParentDir) {
        return None;
    }
    let written = PRIVATE.iter().map(|(written, _)| Path::new(written));
    let real = |written: &Path| fs::canonicalize(written).ok();
    let rest = |place: &Path| path.strip_prefix(place).ok().filter(|rest| !rest.as_os_str().is_empty());
    let by_link = written.filter_map(|written| Some((real(written)?, rest(written)?)));
    let (place, rest) =
        places.iter().filter_map(|(place, _)| Some((place.clone(), rest(place)?))).chain(by_link).next()?;
    let (_, source) = places.iter().find(|(target, _)| *target == place)?;
    Some((place.join(rest), source.join(rest)))
}

/// Lets every user pass through the directories above a mount point, within the private directory.
fn open_up(point: &Path, places: &[(PathBuf, PathBuf)]) -> io::Result<()> {
    let is_within = |path: &&Path| places.iter().any(|(_, source)| path.starts_with(source) && *path != source);
    point
        .ancestors()
        .take_while(is_within)
        .try_for_each(|above| fs::set_permissions(above, Permissions::from_mode(0o755)))
}

/// The maps with which a user who is not root stays the same user in a namespace of its own. Root needs none.
fn maps() -> Option<[CString; 2]> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let map = |id: u32| CString::new(format!("{id} {id} 1\n")).unwrap_or_default();
    (!user.is_root()).then(|| [map(user.as_raw()), map(group.as_raw())])
}

fn c_string(path: &Path) -> Result<CString, EndReason> {
    let zero = |_| EndReason::LaunchFailed("its directory contains a zero byte".to_owned());
    CString::new(path.as_os_str().as_bytes()).map_err(zero)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_a_private_place_are_found_without_following_parents() {
        let places = [("/tmp".into(), "/scratch/tmp".into())];
        let found = below(&places, Path::new("/tmp/./a//b"));
        assert_eq!(found, Some(("/tmp/a/b".into(), "/scratch/tmp/a/b".into())));
        for path in ["/tmp", "/tmp/", "/tmp/../etc", "/tmpx/a", "/home/a", "tmp/a"] {
            assert_eq!(below(&places, Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn directories_are_open_to_all_and_kept_ones_are_created_in_them() {
        let scratch = tempfile::tempdir_in("/tmp").unwrap();
        let task_dir = scratch.path().join("7");
        fs::create_dir(&task_dir).unwrap();
        let mounts = prepare(&task_dir, Path::new("/tmp/some/place")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!(mode(&task_dir.join("tmp")), MODE);
        let point = task_dir.join("tmp").join(task_dir.strip_prefix("/tmp").unwrap());
        assert!(point.is_dir() && task_dir.join("tmp/some/place").is_dir());
        assert_eq!(mode(point.parent().unwrap()), 0o755);
        assert_eq!(mounts.kept.iter().map(|kept| kept.is_users).collect::<Vec<_>>(), [false, true]);
        let hidden = hidden(&mounts, &scratch.path().join("other")).unwrap().to_string();
        assert!(hidden.contains("has a /tmp of its own"), "{hidden}");
    }

    #[test]
    fn a_directory_above_the_scratch_directory_keeps_both() {
        let scratch = tempfile::tempdir_in("/tmp").unwrap();
        let task_dir = scratch.path().join("7");
        fs::create_dir(&task_dir).unwrap();
        let mounts = prepare(&task_dir, scratch.path()).unwrap();
        let kept: Vec<_> = mounts.kept.iter().map(|kept| kept.source.to_str().unwrap()).collect();
        assert_eq!(kept, [scratch.path().to_str().unwrap()]);
    }

    #[test]
    fn a_refusal_by_the_kernel_is_explained_and_other_failures_are_of_the_node() {
        let of = |number| failure("creating namespaces", &io::Error::from_raw_os_error(number));
        let EndReason::LaunchFailed(why) = of(libc::EPERM) else { panic!("{}", of(libc::EPERM)) };
        assert!(why.contains("this node cannot isolate tasks") && why.contains("--isolation none"), "{why}");
        assert!(matches!(of(libc::EIO), EndReason::NodeFault(_)));
    }
}
