//! What fills the directories of daemons: state directories, and work directories of agents and job hosts.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a file belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Changes since the newest snapshot.
    Log,
    Snapshots,
    /// Changes before the newest snapshot, for stories.
    History,
    /// Totals of users and queues, for reports.
    Usage,
    Audit,
    Journals,
    /// What tasks wrote to their standard output and error.
    Output,
    /// Directories of tasks with `workdir = "own"`.
    Own,
    /// Scratch directories of tasks.
    Scratch,
    /// Declared outputs of tasks, and copies of them for tasks on this node.
    Files,
    Input,
    /// Files that are being removed, or cannot be.
    Trash,
    Other,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Log => "log since the newest snapshot",
            Kind::Snapshots => "snapshots of the log",
            Kind::History => "history for stories",
            Kind::Usage => "usage by day",
            Kind::Audit => "audit log",
            Kind::Journals => "journals",
            Kind::Output => "output of tasks",
            Kind::Own => "own directories of tasks",
            Kind::Scratch => "scratch directories of tasks",
            Kind::Files => "stored files of tasks",
            Kind::Input => "input of tasks",
            Kind::Trash => "files that are being removed",
            Kind::Other => "other files",
        }
    }
}

/// Files of one kind in one directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Use {
    pub kind: Kind,
    /// Where they are.
    pub path: PathBuf,
    /// Space on the disk, in bytes.
    pub bytes: u64,
    pub files: u64,
}

/// The output and the own directories of a job's tasks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobUse {
    pub job: u64,
    pub bytes: u64,
    pub files: u64,
}

/// What fills directories. Both lists are sorted by size.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Report {
    pub bytes: u64,
    pub uses: Vec<Use>,
    pub jobs: Vec<JobUse>,
    /// Directories that could not be read.
    pub unread: Vec<PathBuf>,
}

/// Looks at everything in the directories. Links are not followed, a file with several names is counted once, and files that
/// disappear meanwhile are left out.
///
/// # Errors
/// If one of the directories cannot be read.
pub fn report(dirs: &[PathBuf]) -> io::Result<Report> {
    let mut survey = Survey::default();
    for dir in dirs {
        // Only directories within it may be unreadable.
        fs::read_dir(dir)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot read {}: {error}", dir.display())))?;
        survey.walk(dir);
    }
    Ok(survey.finish())
}

#[derive(Default)]
struct Survey {
    uses: BTreeMap<(Kind, PathBuf), (u64, u64)>,
    jobs: BTreeMap<u64, (u64, u64)>,
    /// Files with several names, and directories.
    seen: HashSet<(u64, u64)>,
    unread: Vec<PathBuf>,
}

impl Survey {
    fn walk(&mut self, root: &Path) {
        let mut open = vec![root.to_owned()];
        while let Some(dir) = open.pop() {
            match fs::metadata(&dir) {
                Ok(found) if self.seen.insert((found.dev(), found.ino())) => self.add(root, &dir, &found),
                _ => continue,
            }
            let entries = match fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(_) => {
                    self.unread.push(dir);
                    continue;
                }
            };
            let newest = newest_snapshot(&dir);
            for path in entries.flatten().map(|entry| entry.path()) {
                let Ok(found) = fs::symlink_metadata(&path) else { continue };
                if found.is_dir() {
                    open.push(path);
                } else if found.nlink() < 2 || self.seen.insert((found.dev(), found.ino())) {
                    self.add_file(root, &path, &found, newest.as_deref());
                }
            }
        }
    }

    fn add_file(&mut self, root: &Path, path: &Path, found: &Metadata, newest: Option<&str>) {
        let (mut kind, place) = kind(root, path);
        let number = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("segment-"));
        if kind == Kind::Log && number.zip(newest).is_some_and(|(number, newest)| number < newest) {
            kind = Kind::History;
        }
        self.count(kind, place, path, found);
    }

    fn add(&mut self, root: &Path, dir: &Path, found: &Metadata) {
        let (kind, place) = kind(root, dir);
        self.count(kind, place, dir, found);
    }

    fn count(&mut self, kind: Kind, place: PathBuf, path: &Path, found: &Metadata) {
        let files = u64::from(!found.is_dir());
        let bytes = found.blocks() * 512;
        let sum = |(had, number): &mut (u64, u64)| {
            *had += bytes;
            *number += files;
        };
        let is_of_job = matches!(kind, Kind::Output | Kind::Own);
        if let Some(job) = path.strip_prefix(&place).ok().filter(|_| is_of_job).and_then(first_number) {
            sum(self.jobs.entry(job).or_default());
        }
        sum(self.uses.entry((kind, place)).or_default());
    }

    fn finish(self) -> Report {
        let uses = self.uses.into_iter().map(|((kind, path), (bytes, files))| Use { kind, path, bytes, files });
        let mut uses: Vec<Use> = uses.collect();
        uses.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| (a.kind, &a.path).cmp(&(b.kind, &b.path))));
        let jobs = self.jobs.into_iter().map(|(job, (bytes, files))| JobUse { job, bytes, files });
        let mut jobs: Vec<JobUse> = jobs.collect();
        jobs.sort_by_key(|job| (std::cmp::Reverse(job.bytes), job.job));
        Report { bytes: uses.iter().map(|used| used.bytes).sum(), uses, jobs, unread: self.unread }
    }
}

fn first_number(path: &Path) -> Option<u64> {
    path.iter().next()?.to_str()?.parse().ok()
}

/// The number in the name of the newest snapshot of a log. Names have a fixed width.
fn newest_snapshot(dir: &Path) -> Option<String> {
    let names = fs::read_dir(dir).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let number = |name: String| {
        let number = name.strip_prefix("snapshot-")?;
        number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.to_owned())
    };
    names.filter_map(number).max()
}

/// The kind of a file, and the directory that is named for it.
fn kind(root: &Path, path: &Path) -> (Kind, PathBuf) {
    let inner = path.strip_prefix(root).unwrap_or(path);
    let names: Vec<&str> = inner.iter().map(|name| name.to_str().unwrap_or("")).collect();
    let mut place = root.to_owned();
    for (at, name) in names.iter().enumerate() {
        let above = place.clone();
        place.push(name);
        let next = names.get(at + 1).copied().unwrap_or("");
        let found = match *name {
            "executor" => match next {
                "output" => Kind::Output,
                "own" => Kind::Own,
                "tasks" => Kind::Scratch,
                "files" => Kind::Files,
                "input" => Kind::Input,
                "removed" | "unremovable" => Kind::Trash,
                _ => Kind::Other,
            },
            "log" if next.starts_with("segment-") => return (Kind::Log, place),
            "log" if next.starts_with("snapshot-") => return (Kind::Snapshots, place),
            "history" if next.starts_with("segment-") || next.starts_with("snapshot-") => {
                return (Kind::History, place);
            }
            "usage" if next == "next" || next.ends_with(".json") => return (Kind::Usage, place),
            name if name.starts_with("audit.log") => return (Kind::Audit, above),
            name if name.ends_with(".journal") => return (Kind::Journals, above),
            _ => continue,
        };
        return if found == Kind::Other { (found, place) } else { (found, place.join(next)) };
    }
    (Kind::Other, root.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn files_are_counted_once_by_kind_and_by_job() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        let write = |path: &str, kib: usize| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![1; kib << 10]).unwrap();
        };
        write("log/segment-00000000000000000000", 64);
        write("log/segment-00000000000000000009", 32);
        write("log/snapshot-00000000000000000009", 16);
        write("usage/2026-11-27.json", 4);
        write("audit.log", 8);
        write("audit.log.1", 8);
        write("server-1.journal", 8);
        write("agent-a/executor/output/7/a/out", 400);
        write("agent-a/executor/output/8/a/log/segment-1", 200);
        write("agent-a/executor/own/7/b/executor/files/x", 100);
        write("agent-a/executor/files/1/ab", 12);
        write("agent-a/executor/removed/3", 12);
        fs::hard_link(root.join("agent-a/executor/files/1/ab"), root.join("agent-a/executor/own/7/ab")).unwrap();
        symlink("/", root.join("everything")).unwrap();

        // A directory within another is counted once.
        let report = report(&[root.to_owned(), root.join("agent-a")]).unwrap();
        let of = |kind: Kind| {
            let found: Vec<&Use> = report.uses.iter().filter(|used| used.kind == kind).collect();
            assert_eq!(found.len(), 1, "{kind:?}: {report:?}");
            (found[0].files, found[0].bytes >> 10)
        };
        assert_eq!(of(Kind::History), (1, 64));
        assert_eq!(of(Kind::Log), (1, 32));
        assert_eq!(of(Kind::Snapshots), (1, 16));
        assert_eq!(of(Kind::Usage), (1, 4));
        assert_eq!(of(Kind::Audit), (2, 16));
        assert_eq!(of(Kind::Journals), (1, 8));
        assert_eq!(of(Kind::Output).0, 2);
        assert_eq!(of(Kind::Files).0 + of(Kind::Own).0, 2, "the file with two names is counted once");
        assert_eq!(of(Kind::Trash).0, 1);
        let jobs: Vec<(u64, bool)> = report.jobs.iter().map(|job| (job.job, job.bytes >= 500 << 10)).collect();
        assert_eq!(jobs, [(7, true), (8, false)]);
        assert!(report.uses.is_sorted_by(|a, b| a.bytes >= b.bytes));
        assert_eq!(report.bytes, report.uses.iter().map(|used| used.bytes).sum::<u64>());
        assert!(super::report(&[root.join("missing")]).unwrap_err().to_string().starts_with("cannot read "));
    }
}
