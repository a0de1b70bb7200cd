//! Tasks with `/tmp`, `/var/tmp` and `/dev/shm` of their own (ADR 74), and tasks in a sandbox (ADR 83).

use super::prepare::node_fault;
use super::sys::mounts::{Kept, Mounts, Private};
use super::sys::sandbox::{DEV, Device, OWN, Sandbox};
use amalgam_core::vocabulary::EndReason;
use std::ffi::CString;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// The directories of the node that a task has of its own, and their names in its scratch directory.
const PRIVATE: [(&str, &str); 2] = [("/tmp", "tmp"), ("/var/tmp", "var-tmp")];
/// The place of a file system in memory.
const MEMORY: &str = "/dev/shm";
/// As of `/tmp`: everybody may create files, and only their owners may remove them.
const MODE: u32 = 0o1777;
/// What is mounted in place of the executor's directory in a sandbox.
const OWN_STATE: (&str, u32) = ("state", 0o755);
/// Devices that every sandbox has.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
/// Directories that are empty in a sandbox: sockets there start programs outside of it.
const EMPTIED: [&str; 1] = ["/run/user"];

/// What a sandbox is made of, besides directories.
pub struct Outside<'a> {
    /// The executor's directory, with its socket and the files of other tasks.
    pub state: &'a Path,
    /// The files of the task's devices.
    pub devices: Vec<PathBuf>,
}

/// A directory of the node, as it is written and as it is found, and the one that takes its place.
struct Replaced {
    target: PathBuf,
    source: PathBuf,
}

/// Creates the directories of a task in its scratch directory. `directory` is where it runs. Its own directories stay reachable
/// if they are below those of the node that are hidden.
///
/// The scratch directory must not belong to another user yet, who could replace what is created here.
pub fn prepare(task_dir: &Path, directory: &Path, outside: Option<&Outside<'_>>) -> Result<Mounts, EndReason> {
    let failed = |path: &Path, error| node_fault(&format!("create {} for an isolated task", path.display()), &error);
    let mut mounts = Mounts { maps: maps(), ..Mounts::default() };
    let mut places: Vec<Replaced> = Vec::new();
    let usual = PRIVATE.map(|(written, name)| (Path::new(written), name, MODE));
    let state = outside.map(|outside| (outside.state, OWN_STATE.0, OWN_STATE.1));
    let all: Vec<_> = usual.into_iter().chain(state).collect();
    for &(written, name, mode) in &all {
        // A node may lack one, or one may be a link to another.
        let Ok(target) = fs::canonicalize(written) else { continue };
        if places.iter().any(|other| target.starts_with(&other.target)) {
            continue;
        }
        let source = task_dir.join(name);
        let identity = make(&source, mode).map_err(|error| failed(&source, error))?;
        let is_writable = mode == MODE;
        mounts.private.push(Private { source: c_string(&source)?, identity, target: c_string(&target)?, is_writable });
        places.push(Replaced { target, source });
    }
    let written: Vec<&Path> = all.iter().map(|(written, ..)| *written).collect();
    for (path, is_users) in [(task_dir, false), (directory, true)] {
        let Some((target, point)) = below(&places, &written, path) else { continue };
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
    mounts.memory = match outside {
        Some(_) => Some(c_string(Path::new(MEMORY))?),
        None => fs::canonicalize(MEMORY).ok().map(|target| c_string(&target)).transpose()?,
    };
    if let Some(outside) = outside {
        let stays = below(&places, &written, directory).is_none()
            && directory != Path::new("/")
            && !places.iter().any(|place| directory == place.target)
            && !written.contains(&directory)
            && !OWN.iter().any(|own| directory.starts_with(super::sys::mounts::as_path(own)));
        mounts.sandbox = Some(Sandbox {
            working: stays.then(|| c_string(directory)).transpose()?,
            devices: devices(&outside.devices)?,
            emptied: emptied()?,
            one_by_one: false,
        });
    }
    Ok(mounts)
}

/// The directories that a sandbox finds empty.
fn emptied() -> Result<Vec<CString>, EndReason> {
    let found = EMPTIED.iter().filter_map(|place| fs::canonicalize(place).ok());
    found.map(|place| c_string(&place)).collect()
}

/// The devices of every sandbox and these. Those that are not below `/dev` stay where they are.
fn devices(files: &[PathBuf]) -> Result<Vec<Device>, EndReason> {
    let dev = Path::new(DEV);
    let is_plain = |path: &&Path| {
        let mut components = path.strip_prefix(dev).into_iter().flat_map(Path::components).peekable();
        components.peek().is_some() && components.all(|component| matches!(component, Component::Normal(_)))
    };
    let mut all: Vec<&Path> = DEVICES.iter().map(Path::new).chain(files.iter().map(PathBuf::as_path)).collect();
    all.sort_unstable();
    all.dedup();
    let device = |path: &Path| {
        // Without repeated slashes, so that the path continues after the one of `/dev/`.
        let path: PathBuf = path.components().collect();
        let mut above: Vec<&Path> = path.ancestors().skip(1).take_while(|above| *above != dev).collect();
        above.reverse();
        let above = above.into_iter().map(c_string).collect::<Result<_, _>>()?;
        Ok(Device { path: c_string(&path)?, above })
    };
    all.into_iter().filter(is_plain).map(device).collect()
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
                "this node cannot isolate tasks: {what} failed: {error}; {remedy}; or submit the job with another `--isolation`"
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
fn make(directory: &Path, mode: u32) -> io::Result<(u64, u64)> {
    fs::create_dir(directory)?;
    // The umask of this process does not apply.
    fs::set_permissions(directory, Permissions::from_mode(mode))?;
    fs::symlink_metadata(directory).map(|made| (made.dev(), made.ino()))
}

/// If a path is below one of these places, which may be written as `written`: the same path, and where it has to be in the
/// directory that takes the place.
fn below(places: &[Replaced], written: &[&Path], path: &Path) -> Option<(PathBuf, PathBuf)> {
    // What a parent is depends on links.
    if path.components().any(|component| component == Component::ParentDir) {
        return None;
    }
    let real = |written: &Path| fs::canonicalize(written).ok();
    let rest = |place: &Path| path.strip_prefix(place).ok().filter(|rest| !rest.as_os_str().is_empty());
    let by_link = written.iter().filter_map(|written| Some((real(written)?, rest(written)?)));
    let direct = places.iter().filter_map(|place| Some((place.target.clone(), rest(&place.target)?)));
    direct.chain(by_link).find_map(|(found, rest)| {
        let place = places.iter().find(|place| found.starts_with(&place.target))?;
        let rest = found.strip_prefix(&place.target).ok()?.join(rest);
        Some((place.target.join(&rest), place.source.join(rest)))
    })
}

/// Lets every user pass through the directories above a mount point, within the private directory.
fn open_up(point: &Path, places: &[Replaced]) -> io::Result<()> {
    let is_within = |path: &&Path| places.iter().any(|place| path.starts_with(&place.source) && *path != place.source);
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
        let places = [Replaced { target: "/tmp".into(), source: "/scratch/tmp".into() }];
        let below = |path: &str| below(&places, &[Path::new("/tmp")], Path::new(path));
        let found = below("/tmp/./a//b");
        assert_eq!(found, Some(("/tmp/a/b".into(), "/scratch/tmp/a/b".into())));
        for path in ["/tmp", "/tmp/", "/tmp/../etc", "/tmpx/a", "/home/a", "tmp/a"] {
            assert_eq!(below(path), None, "{path}");
        }
    }

    #[test]
    fn directories_are_open_to_all_and_kept_ones_are_created_in_them() {
        let scratch = tempfile::tempdir_in("/tmp").unwrap();
        let task_dir = scratch.path().join("7");
        fs::create_dir(&task_dir).unwrap();
        let mounts = prepare(&task_dir, Path::new("/tmp/some/place"), None).unwrap();
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
        let mounts = prepare(&task_dir, scratch.path(), None).unwrap();
        let kept: Vec<_> = mounts.kept.iter().map(|kept| kept.source.to_str().unwrap()).collect();
        assert_eq!(kept, [scratch.path().to_str().unwrap()]);
    }

    #[test]
    fn a_sandbox_keeps_the_working_directory_and_has_the_devices_of_the_task() {
        let scratch = tempfile::tempdir_in("/tmp").unwrap();
        let task_dir = scratch.path().join("7");
        let prepared = |directory: &str, devices: &[&str]| {
            fs::create_dir(&task_dir).unwrap();
            let devices = devices.iter().map(PathBuf::from).collect();
            let outside = Outside { state: Path::new("/usr/lib"), devices };
            let mounts = prepare(&task_dir, Path::new(directory), Some(&outside)).unwrap();
            fs::remove_dir_all(&task_dir).unwrap();
            let writable: Vec<bool> = mounts.private.iter().map(|private| private.is_writable).collect();
            assert_eq!((writable.first(), writable.last()), (Some(&true), Some(&false)));
            mounts.sandbox.unwrap()
        };
        for (directory, stays) in
            [("/srv", true), ("/", false), ("/tmp", false), ("/tmp/x", false), ("/dev/shm/x", false)]
        {
            assert_eq!(prepared(directory, &[]).working.is_some(), stays, "{directory}");
        }
        let devices =
            prepared("/srv", &["/dev//dri/by-path/x", "/dev", "/dev/../etc/passwd", "/opt/dev/y", "/dev/null"]).devices;
        let paths: Vec<&str> = devices.iter().map(|device| device.path.to_str().unwrap()).collect();
        let expected =
            ["/dev/dri/by-path/x", "/dev/full", "/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"];
        assert_eq!(paths, expected);
        assert_eq!(devices[0].above, [c"/dev/dri".to_owned(), c"/dev/dri/by-path".to_owned()]);
    }

    #[test]
    fn a_refusal_by_the_kernel_is_explained_and_other_failures_are_of_the_node() {
        let of = |number| failure("creating namespaces", &io::Error::from_raw_os_error(number));
        let EndReason::LaunchFailed(why) = of(libc::EPERM) else { panic!("{}", of(libc::EPERM)) };
        assert!(why.contains("this node cannot isolate tasks") && why.contains("another `--isolation`"), "{why}");
        assert!(matches!(of(libc::EIO), EndReason::NodeFault(_)));
    }
}
