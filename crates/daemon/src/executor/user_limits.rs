//! The limits that the administrator of a machine sets for its users, in `/etc/security/limits.conf` and `limits.d`, as the module
//! `pam_limits` applies them at a login (limits.conf(5)). Tasks that run as their job's user have them.
//!
//! What a login has beyond limits of resources (`maxlogins`, `priority`, `chroot`, `nonewprivs`) is left out.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Where the files are.
const DIRECTORY: &str = "/etc/security";

/// The limits of one resource: of [`libc::RLIMIT_CORE`] and the like, in the unit of setrlimit(2). `None` leaves the value as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserLimit {
    pub resource: libc::__rlimit_resource_t,
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

impl UserLimit {
    /// The limits to set where these are in effect: the soft one is never above the hard one.
    pub fn over(&self, present: libc::rlimit) -> libc::rlimit {
        let hard = self.hard.unwrap_or(present.rlim_max);
        libc::rlimit { rlim_cur: self.soft.unwrap_or(present.rlim_cur).min(hard), rlim_max: hard }
    }
}

/// The limits of a task that runs as an account.
pub struct UserLimits {
    pub open_files: Option<libc::rlimit>,
    /// Of other resources.
    pub limits: Vec<(libc::__rlimit_resource_t, libc::rlimit)>,
    /// Of private writable memory.
    pub data: Option<libc::rlimit>,
}

impl UserLimits {
    /// The user's limits over those that every task has. `data` is never raised: it protects the machine.
    pub fn of(limits: &[UserLimit], open_files: Option<libc::rlimit>, data: Option<libc::rlimit>) -> UserLimits {
        let mut all = UserLimits { open_files, limits: Vec::new(), data };
        for limit in limits {
            match limit.resource {
                libc::RLIMIT_NOFILE => {
                    all.open_files = open_files.or_else(|| present(limit.resource)).map(|one| limit.over(one))
                }
                libc::RLIMIT_DATA if data.is_some() => {
                    all.data = data.map(|most| {
                        let wanted = limit.over(most);
                        libc::rlimit {
                            rlim_cur: wanted.rlim_cur.min(most.rlim_cur),
                            rlim_max: wanted.rlim_max.min(most.rlim_max),
                        }
                    });
                }
                resource => all.limits.extend(present(resource).map(|one| (resource, limit.over(one)))),
            }
        }
        all
    }
}

/// The limits of this process.
fn present(resource: libc::__rlimit_resource_t) -> Option<libc::rlimit> {
    let mut found = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a value of this function.
    (unsafe { libc::getrlimit(resource, &raw mut found) } == 0).then_some(found)
}

/// Whom the limits are for.
pub struct Who<'a> {
    pub name: &'a str,
    pub uid: u32,
    /// Names and numbers of the user's groups.
    pub groups: &'a [(String, u32)],
}

/// The limits of this user on this machine.
///
/// # Errors
/// If a file cannot be read, with its path. Lines that are not understood are without effect, as at a login.
pub fn user_limits(who: &Who<'_>) -> Result<Vec<UserLimit>, (PathBuf, io::Error)> {
    of_directory(Path::new(DIRECTORY), who)
}

fn of_directory(directory: &Path, who: &Who<'_>) -> Result<Vec<UserLimit>, (PathBuf, io::Error)> {
    let more = directory.join("limits.d");
    let mut files = match fs::read_dir(&more) {
        Ok(entries) => {
            let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>();
            paths.map_err(|error| (more, error))?
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err((more, error)),
    };
    files.retain(|path| path.extension().is_some_and(|ending| ending == "conf"));
    files.sort();
    files.insert(0, directory.join("limits.conf"));
    let mut limits = Limits::default();
    for path in files {
        match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).lines().for_each(|line| limits.take(line, who)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err((path, error)),
        }
    }
    Ok(limits.finish())
}

/// How closely a line names the user. A closer one precedes, wherever it is; of equally close ones, the last one does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Closeness {
    Everybody,
    Group,
    User,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Soft,
    Hard,
}

/// Resources and how many units of setrlimit(2) one unit of the file is.
const ITEMS: [(&str, libc::__rlimit_resource_t, u64); 14] = [
    ("core", libc::RLIMIT_CORE, 1024),
    ("data", libc::RLIMIT_DATA, 1024),
    ("fsize", libc::RLIMIT_FSIZE, 1024),
    ("memlock", libc::RLIMIT_MEMLOCK, 1024),
    ("nofile", libc::RLIMIT_NOFILE, 1),
    ("rss", libc::RLIMIT_RSS, 1024),
    ("stack", libc::RLIMIT_STACK, 1024),
    ("cpu", libc::RLIMIT_CPU, 60),
    ("nproc", libc::RLIMIT_NPROC, 1),
    ("as", libc::RLIMIT_AS, 1024),
    ("locks", libc::RLIMIT_LOCKS, 1),
    ("sigpending", libc::RLIMIT_SIGPENDING, 1),
    ("msgqueue", libc::RLIMIT_MSGQUEUE, 1),
    ("rtprio", libc::RLIMIT_RTPRIO, 1),
];

#[derive(Default)]
struct Limits {
    /// A line without an item exempts the user from all limits.
    exempt: Option<Closeness>,
    found: Vec<(libc::__rlimit_resource_t, Side, Closeness, u64)>,
}

impl Limits {
    fn take(&mut self, line: &str, who: &Who<'_>) {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(closeness) = words.first().and_then(|domain| closeness(domain, who)) else { return };
        let (sides, item, value): (&[Side], &str, &str) = match words[..] {
            [_, "-"] => {
                self.exempt = self.exempt.max(Some(closeness));
                return;
            }
            [_, "-", item, value] => (&[Side::Soft, Side::Hard], item, value),
            [_, "soft", item, value] => (&[Side::Soft], item, value),
            [_, "hard", item, value] => (&[Side::Hard], item, value),
            _ => return,
        };
        let Some((_, resource, unit)) = ITEMS.into_iter().find(|(name, ..)| *name == item) else { return };
        let value = match value {
            "-1" | "unlimited" | "infinity" => libc::RLIM_INFINITY,
            number => match number.parse::<u64>() {
                Ok(number) => number.saturating_mul(unit),
                Err(_) => return,
            },
        };
        for side in sides {
            let known = self.found.iter_mut().find(|(other, of, ..)| (*other, *of) == (resource, *side));
            match known {
                Some((_, _, before, kept)) if closeness >= *before => (*before, *kept) = (closeness, value),
                Some(_) => {}
                None => self.found.push((resource, *side, closeness, value)),
            }
        }
    }

    fn finish(mut self) -> Vec<UserLimit> {
        let exempt = self.exempt;
        self.found.retain(|(_, _, closeness, _)| exempt.is_none_or(|exempt| *closeness > exempt));
        let mut limits: Vec<UserLimit> = Vec::new();
        for (resource, side, _, value) in self.found {
            let at = limits.iter().position(|limit| limit.resource == resource).unwrap_or_else(|| {
                limits.push(UserLimit { resource, soft: None, hard: None });
                limits.len() - 1
            });
            match side {
                Side::Soft => limits[at].soft = Some(value),
                Side::Hard => limits[at].hard = Some(value),
            }
        }
        limits
    }
}

/// How the first word of a line names the user, if it does: `name`, `@group`, `MIN:MAX` of numbers, `@MIN:MAX` of groups' numbers, `*`.
/// Limits of groups and of everybody are not for root.
fn closeness(domain: &str, who: &Who<'_>) -> Option<Closeness> {
    let is_user = domain == who.name || in_range(domain).is_some_and(|holds| holds(who.uid));
    if is_user {
        return Some(Closeness::User);
    }
    if who.uid == 0 {
        return None;
    }
    if domain == "*" {
        return Some(Closeness::Everybody);
    }
    let group = domain.strip_prefix('@')?;
    let is_one = |(name, number): &(String, u32)| name == group || in_range(group).is_some_and(|holds| holds(*number));
    who.groups.iter().any(is_one).then_some(Closeness::Group)
}

/// `MIN:MAX`, `MIN:`, `:MAX` or, as one number, `:MAX:`.
fn in_range(text: &str) -> Option<impl Fn(u32) -> bool> {
    let (first, last) = text.split_once(':')?;
    let number = |text: &str, without: u32| if text.is_empty() { Some(without) } else { text.parse().ok() };
    let (first, last) = (number(first, 0)?, number(last, u32::MAX)?);
    Some(move |number| (first..=last).contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(files: &[(&str, &str)], name: &str, uid: u32) -> Vec<(u32, Option<u64>, Option<u64>)> {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("limits.d")).unwrap();
        for (file, text) in files {
            fs::write(home.path().join(file), text).unwrap();
        }
        let groups = [("users".to_owned(), 100), ("staff".to_owned(), 50)];
        let found = of_directory(home.path(), &Who { name, uid, groups: &groups }).unwrap();
        let mut found: Vec<_> = found.iter().map(|limit| (limit.resource, limit.soft, limit.hard)).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn the_closest_and_then_the_last_line_counts_in_the_unit_of_its_resource() {
        let conf = "# a comment\n*  soft  nofile 1000 # of everybody\nada - nofile 3000\n@users hard nofile 2000\n\
                    * hard core 0\nada soft core unlimited\n@staff - memlock 64\n@staff - memlock 128\n* - cpu 2\n\
                    bob - nproc 1\n* - nproc many\n* - priority 5\n* soft\n@wheel - nproc 2\n";
        let expected = vec![
            (libc::RLIMIT_CPU, Some(120), Some(120)),
            (libc::RLIMIT_CORE, Some(libc::RLIM_INFINITY), Some(0)),
            (libc::RLIMIT_NOFILE, Some(3000), Some(3000)),
            (libc::RLIMIT_MEMLOCK, Some(128 << 10), Some(128 << 10)),
        ];
        assert_eq!(limits(&[("limits.conf", conf)], "ada", 1000), expected);
        let later = [
            ("limits.conf", "* - nproc 5\n"),
            ("limits.d/20.conf", "* - nproc 7\n"),
            ("limits.d/10.conf", "* - nproc 6\n"),
        ];
        assert_eq!(limits(&later, "ada", 1000), [(libc::RLIMIT_NPROC, Some(7), Some(7))]);
        assert_eq!(limits(&[("limits.d/other", "* - nproc 5\n")], "ada", 1000), []);
    }

    #[test]
    fn numbers_exemptions_and_root() {
        for (line, is_for_ada) in [
            ("1000:2000 - nproc 5", true),
            ("1001: - nproc 5", false),
            (":1000 - nproc 5", true),
            ("@90:110 - nproc 5", true),
            ("@200: - nproc 5", false),
            ("%users - nproc 5", false),
            ("@users - nproc 5\nada -", false),
            ("* -\n@users - nproc 5", true),
            ("a:b - nproc 5", false),
        ] {
            let found = limits(&[("limits.conf", line)], "ada", 1000);
            assert_eq!(!found.is_empty(), is_for_ada, "{line}");
        }
        let conf = [("limits.conf", "* - nproc 5\n@users - nproc 6\n")];
        assert_eq!(limits(&conf, "root", 0), []);
        let conf = [("limits.conf", "* - nproc 5\nroot soft nproc 7\n")];
        assert_eq!(limits(&conf, "root", 0), [(libc::RLIMIT_NPROC, Some(7), None)]);
        assert_eq!(limits(&[], "ada", 1000), []);
    }

    #[test]
    fn a_soft_limit_is_never_above_the_hard_one() {
        let present = libc::rlimit { rlim_cur: 1024, rlim_max: 4096 };
        let over = |soft, hard| {
            let set = UserLimit { resource: libc::RLIMIT_NOFILE, soft, hard }.over(present);
            (set.rlim_cur, set.rlim_max)
        };
        assert_eq!(over(None, Some(100)), (100, 100));
        assert_eq!(over(Some(9000), None), (4096, 4096));
        assert_eq!(over(Some(9000), Some(libc::RLIM_INFINITY)), (9000, libc::RLIM_INFINITY));
    }
}
