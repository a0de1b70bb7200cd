//! The directories of daemons: free space, the time of a write, and who can read secrets.

use super::certificates::identities;
use super::{Check, Patient, Role};
use crate::show;
use amalgam_daemon::auth::Tokens;
use rustix::fs::{statfs, statvfs};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Less free space is a problem, or a warning.
const LITTLE_SPACE: u64 = 1 << 30;
const ENOUGH_SPACE: u64 = 10 << 30;
/// A longer write is a problem, or a warning: a submission waits for one.
const LONG_WRITE: Duration = Duration::from_millis(500);
const SHORT_WRITE: Duration = Duration::from_millis(50);
const WRITES: usize = 11;

/// Files in a state or work directory with secrets of the cluster.
const SECRETS: [&str; 4] = [Tokens::FILE, "joins.json", "ca-key.pem", "ca-next-key.pem"];

pub fn checks(patient: &Patient) -> Vec<Check> {
    let state = patient.state_dir.as_deref().filter(|_| patient.is(Role::Server)).map(|dir| ("state directory", dir));
    let work = patient.work_dir.as_deref().filter(|_| patient.is(Role::Agent)).map(|dir| ("work directory", dir));
    let mut checks = Vec::new();
    for (what, directory) in state.into_iter().chain(work) {
        checks.extend(of_directory(what, directory, patient));
    }
    for directory in [&patient.state_dir, &patient.work_dir].into_iter().flatten() {
        let files = SECRETS.iter().map(|name| directory.join(name)).chain(identities(directory));
        checks.extend(files.filter_map(|path| secret(&path)));
    }
    checks.extend(patient.connection.token_file.as_deref().and_then(secret));
    checks
}

/// A directory that the command line names, or that a role has, and that is not there.
pub fn missing(directory: &Path) -> Option<Check> {
    let why = match fs::metadata(directory) {
        Ok(found) if found.is_dir() => return None,
        Ok(_) => "is not a directory".to_owned(),
        Err(error) => error.to_string(),
    };
    let remedy = "check the path; a daemon makes its directory at its first start";
    Some(Check::problem("directory", format!("{}: {why}", directory.display()), remedy))
}

fn of_directory(what: &str, directory: &Path, patient: &Patient) -> Vec<Check> {
    let mut checks = vec![space(what, directory)];
    let is_state = what.starts_with("state");
    checks.extend(kind(what, directory, is_state));
    // Only the server's answers wait for its disk. The files of others belong to them.
    if is_state || patient.work_dir.as_deref() == Some(directory) {
        checks.push(write_time(what, directory));
    }
    checks
}

fn space(what: &str, directory: &Path) -> Check {
    const CHECK: &str = "disk";
    let found = match statvfs(directory) {
        Ok(found) => found,
        Err(error) => {
            let remedy = "check the path, or run this as the daemon's user or as root";
            return Check::problem(CHECK, format!("{what} {}: {error}", directory.display()), remedy);
        }
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let shown = format!("{} free in the {what} {}", show::bytes(free), directory.display());
    let inodes = found.f_files > 0 && found.f_favail < 10_000;
    let remedy = "free space on this file system, or move the directory to a larger one";
    match free {
        _ if inodes => Check::problem(CHECK, format!("{} inodes left, {shown}", found.f_favail), "remove files there"),
        0..LITTLE_SPACE => Check::problem(CHECK, shown, remedy),
        LITTLE_SPACE..ENOUGH_SPACE => Check::warning(CHECK, shown, remedy),
        _ => Check::ok(CHECK, shown),
    }
}

/// File systems on which a state directory is not safe.
fn kind(what: &str, directory: &Path, is_state: bool) -> Option<Check> {
    const CHECK: &str = "file system";
    const NFS: u64 = 0x6969;
    const TMPFS: u64 = 0x0102_1994;
    const SMB: u64 = 0xfe53_4d42;
    const CIFS: u64 = 0xff53_4d42;
    let name = directory.display();
    match statfs(directory).ok()?.f_type as u64 {
        TMPFS if is_state => {
            let found = format!("the {what} {name} is in memory, and lost when the machine restarts");
            Some(Check::warning(CHECK, found, "use a directory on a disk"))
        }
        NFS | SMB | CIFS => {
            let found = format!("the {what} {name} is on another machine");
            Some(Check::problem(CHECK, found, "use a directory on a local disk"))
        }
        _ => None,
    }
}

fn write_time(what: &str, directory: &Path) -> Check {
    const CHECK: &str = "disk writes";
    match measure(directory) {
        Err(error) => {
            let remedy =
                "run this as the daemon's user or as root; if that fails too, check the owner and the file system";
            Check::warning(CHECK, format!("cannot write to the {what} {}: {error}", directory.display()), remedy)
        }
        Ok(time) => {
            let found = format!("{} until a write to the {what} is durable", show::seconds(time.as_secs_f64()));
            let remedy = "every submission waits for such a write: use a faster disk, one with a protected write cache, or one that \
                          other programs do not write to";
            match time {
                _ if time > LONG_WRITE => Check::problem(CHECK, found, remedy),
                _ if time > SHORT_WRITE => Check::warning(CHECK, found, remedy),
                _ => Check::ok(CHECK, found),
            }
        }
    }
}

/// The median time of a small durable write.
fn measure(directory: &Path) -> io::Result<Duration> {
    let path = directory.join(format!("doctor-{}.tmp", std::process::id()));
    let timed = |file: &mut File| -> io::Result<Duration> {
        let mut times = Vec::new();
        for _ in 0..WRITES {
            let started = Instant::now();
            file.write_all(&[0; 512])?;
            file.sync_data()?;
            times.push(started.elapsed());
        }
        times.sort();
        Ok(times[WRITES / 2])
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let measured = timed(&mut file);
    fs::remove_file(&path)?;
    measured
}

/// A file that only its owner may read, which has to be the owner of its directory.
fn secret(path: &Path) -> Option<Check> {
    const CHECK: &str = "secrets";
    let found = fs::metadata(path).ok()?;
    let name = path.display();
    let mode = found.mode() & 0o777;
    if mode & 0o077 != 0 {
        let what = format!("{name} has mode {mode:04o}, and others can read it");
        return Some(Check::problem(CHECK, what, format!("run `chmod 600 {name}`, and replace the tokens in it")));
    }
    let directory = fs::metadata(path.parent()?).ok()?;
    if directory.uid() != found.uid() {
        let what =
            format!("{name} belongs to the user with the id {}, and its directory to {}", found.uid(), directory.uid());
        return Some(Check::warning(
            CHECK,
            what,
            format!("run `chown --reference=DIRECTORY {name}` with its directory"),
        ));
    }
    Some(Check::ok(CHECK, format!("{name} has mode {mode:04o}")))
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_readable_secret_is_found_and_a_private_one_is_right() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(Tokens::FILE);
        assert!(secret(&path).is_none());
        fs::write(&path, "").unwrap();
        for (mode, result) in [(0o600, Outcome::Ok), (0o640, Outcome::Problem), (0o644, Outcome::Problem)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let check = secret(&path).unwrap();
            assert_eq!((check.result, check.remedy.contains("chmod 600")), (result, result != Outcome::Ok), "{mode:o}");
        }
    }

    #[test]
    fn writes_are_measured_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert!(measure(dir.path()).unwrap() > Duration::ZERO);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(measure(&dir.path().join("missing")).is_err());
    }
}
