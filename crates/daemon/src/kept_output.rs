//! The limit of what ended tasks have written to standard output and error on this machine: beyond it, the oldest output is removed
//! (ADR 86).
//!
//! An empty file remains in place of a removed one, so that a reader can tell removed output from none.

use crate::executor::{ending, output_path, output_root, removed_mark};
use crate::shell::Handle;
use amalgam_core::hosting::Roles;
use amalgam_core::vocabulary::{AttemptId, Stream};
use std::collections::{BTreeSet, BinaryHeap};
use std::fs::{self, DirEntry, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Without a limit on the command line, this part of the file system.
const PART: u64 = 10;
/// At the shortest, the time between two surveys.
const PAUSE: Duration = Duration::from_secs(5);
/// At most one part in this many of the time is spent on finding the size of all output: a million files take seconds.
const SHARE: u32 = 20;

/// The limit if none is set: a tenth of the file system on which `state` is, in bytes.
fn default_limit(state: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(state)?;
    Ok(found.f_blocks.saturating_mul(found.f_frsize) / PART)
}

/// Keeps the output of ended tasks below `limit` bytes, or below the default, until the event loop has stopped. `state` is the
/// directory of the executor that runs the tasks of the process's nodes.
pub async fn keep_within(limit: Option<u64>, state: impl AsRef<Path>, handle: Handle) {
    let state = state.as_ref().to_owned();
    let limit = match limit.map_or_else(|| default_limit(&state), Ok) {
        Ok(limit) => limit,
        Err(error) => {
            tracing::warn!(path = %state.display(), %error, "cannot find the size of the file system; output is kept without a limit");
            return;
        }
    };
    let mut pause = PAUSE;
    loop {
        tokio::time::sleep(pause).await;
        let at = SystemTime::now();
        let Ok(live) = handle.ask(|roles, _| live(roles)).await else { return };
        let Some(live) = live else { continue };
        let state = state.clone();
        let reduced = tokio::task::spawn_blocking(move || {
            let started = Instant::now();
            let total = total(&state);
            let busy = started.elapsed();
            (total.and_then(|total| reduce(&state, total, limit, &live, at)), busy)
        });
        let Ok((reduced, busy)) = reduced.await else { continue };
        pause = PAUSE.max(busy * SHARE);
        match reduced {
            Ok(Reduced { files: 0, .. }) => {}
            Ok(Reduced { files, bytes }) => {
                tracing::info!(
                    files,
                    bytes,
                    limit,
                    "removed the oldest output of ended tasks, which exceeded its limit"
                );
            }
            Err(error) => tracing::warn!(%error, "cannot remove the oldest output of ended tasks"),
        }
    }
}

/// The attempts that have not ended; `None` while an executor has not said which these are.
fn live(roles: &Roles) -> Option<BTreeSet<AttemptId>> {
    let mut live = BTreeSet::new();
    for node in roles.nodes.ids().filter_map(|node| roles.nodes.get(node)) {
        if !node.knows_its_attempts() {
            return None;
        }
        live.extend(node.live().map(|live| live.attempt));
    }
    Some(live)
}

/// What was removed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Reduced {
    files: u64,
    bytes: u64,
}

/// A file with output, ordered by when it was last written.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Written {
    at: Duration,
    attempt: AttemptId,
    stream: Stream,
    bytes: u64,
}

/// Size of all output on the disk, in bytes.
fn total(state: &Path) -> io::Result<u64> {
    let mut total = 0;
    each_file(state, |file| total += file.bytes)?;
    Ok(total)
}

/// If the total exceeds the limit: removes the oldest output of attempts that are not `live`, until a tenth of the limit is free again.
/// Output that was written since `at`, when `live` was read, stays: it may be of a newer attempt.
///
/// # Errors
/// If a directory cannot be read, or a file cannot be removed. Others were removed nevertheless.
fn reduce(state: &Path, total: u64, limit: u64, live: &BTreeSet<AttemptId>, at: SystemTime) -> io::Result<Reduced> {
    if total <= limit {
        return Ok(Reduced::default());
    }
    let excess = total - (limit - limit / 10);
    let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    // The newest is on top. It is left out as soon as the older ones are enough, so that only what is removed is in memory.
    let (mut oldest, mut sum) = (BinaryHeap::new(), 0);
    each_file(state, |file| {
        if file.bytes == 0 || file.at >= at || live.contains(&file.attempt) {
            return;
        }
        sum += file.bytes;
        oldest.push(file);
        while oldest.peek().is_some_and(|newest| sum - newest.bytes >= excess) {
            sum -= oldest.pop().map_or(0, |newest| newest.bytes);
        }
    })?;
    let (mut reduced, mut failed) = (Reduced::default(), Ok(()));
    for file in oldest.into_sorted_vec() {
        match remove(state, &file) {
            Ok(()) => reduced = Reduced { files: reduced.files + 1, bytes: reduced.bytes + file.bytes },
            // Its job was forgotten meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => failed = Err(error),
        }
    }
    failed.map(|()| reduced)
}

fn remove(state: &Path, file: &Written) -> io::Result<()> {
    // The mark is first: after a crash between both, the output is there and can be read.
    File::create(removed_mark(state, file.attempt, file.stream))?;
    fs::remove_file(output_path(state, file.attempt, file.stream))
}

fn each_file(state: &Path, mut visit: impl FnMut(Written)) -> io::Result<()> {
    let absent_is_empty = |read: io::Result<fs::ReadDir>| match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    };
    for job in absent_is_empty(fs::read_dir(output_root(state)))?.into_iter().flatten() {
        for entry in absent_is_empty(fs::read_dir(job?.path()))?.into_iter().flatten() {
            written(&entry?).into_iter().for_each(&mut visit);
        }
    }
    Ok(())
}

/// `None` for a mark, and for a file that disappears meanwhile.
fn written(entry: &DirEntry) -> Option<Written> {
    let name = entry.file_name();
    let (attempt, end) = name.to_str()?.split_once('.')?;
    let stream = [Stream::Stdout, Stream::Stderr].into_iter().find(|stream| ending(*stream) == end)?;
    let found = entry.metadata().ok().filter(fs::Metadata::is_file)?;
    Some(Written {
        at: Duration::new(found.mtime().try_into().unwrap_or(0), found.mtime_nsec() as u32),
        attempt: AttemptId::parse(attempt)?,
        stream,
        // As the disk counts them.
        bytes: found.blocks() * 512,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{OutputRemoved, read_output};
    use amalgam_core::vocabulary::JobId;
    use std::fs::FileTimes;
    use std::path::PathBuf;

    /// Writes 8 KiB of output, this many seconds ago.
    fn wrote(state: &Path, attempt: &str, stream: Stream, seconds_ago: u64) -> PathBuf {
        let path = output_path(state, AttemptId::parse(attempt).unwrap(), stream);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, [b'x'; 8 << 10]).unwrap();
        let at = SystemTime::now() - Duration::from_secs(seconds_ago);
        File::options().write(true).open(&path).unwrap().set_times(FileTimes::new().set_modified(at)).unwrap();
        path
    }

    fn reduced(state: &Path, limit: u64, live: &BTreeSet<AttemptId>, at: SystemTime) -> io::Result<Reduced> {
        reduce(state, total(state)?, limit, live, at)
    }

    #[test]
    fn the_oldest_output_of_ended_tasks_is_removed_until_a_tenth_is_free() {
        let home = tempfile::tempdir().unwrap();
        let state = home.path();
        let live = BTreeSet::from([AttemptId::parse("2-1-1").unwrap()]);
        assert_eq!(reduced(state, 0, &live, SystemTime::now()).unwrap(), Reduced::default(), "there is no output");
        let of_a_live_task = wrote(state, "2-1-1", Stream::Stdout, 900);
        let oldest = wrote(state, "1-1-1", Stream::Stderr, 800);
        let older = wrote(state, "3-1-7", Stream::Stdout, 700);
        let newer = wrote(state, "1-1-1", Stream::Stdout, 600);
        let newest = wrote(state, "3-1-8", Stream::Stdout, 500);
        let other = output_root(state).join("1/note");
        fs::write(&other, [b'x'; 8 << 10]).unwrap();
        let now = SystemTime::now();

        let limit = 5 * (8 << 10);
        assert_eq!(reduced(state, limit, &live, now).unwrap(), Reduced::default(), "the limit is not exceeded");
        // 40 KiB are to become at most 27 KiB.
        assert_eq!(reduced(state, 30 << 10, &live, now).unwrap(), Reduced { files: 2, bytes: 16 << 10 });
        let left = |path: &PathBuf| path.exists();
        assert_eq!([&oldest, &older].map(left), [false, false]);
        assert_eq!([&of_a_live_task, &newer, &newest, &other].map(left), [true; 4]);
        assert_eq!(reduced(state, 30 << 10, &live, now).unwrap(), Reduced::default(), "marks take no space");

        // A reader can tell removed output from none.
        let read = |attempt, stream| read_output(state, AttemptId::parse(attempt).unwrap(), stream, 0, 9);
        let removed = read("1-1-1", Stream::Stderr).unwrap_err();
        assert!(removed.get_ref().unwrap().is::<OutputRemoved>(), "{removed}");
        assert_eq!(read("1-1-1", Stream::Stdout).unwrap(), b"xxxxxxxxx");
        assert_eq!(read("3-1-9", Stream::Stdout).unwrap(), b"");

        // What may be of a task that started since stays, also if nothing else can be removed.
        let late = reduced(state, 0, &live, now - Duration::from_secs(550)).unwrap();
        assert_eq!(late, Reduced { files: 1, bytes: 8 << 10 });
        assert_eq!([&of_a_live_task, &newer, &newest].map(left), [true, false, true]);
        // Nothing remains of a job that is forgotten.
        assert_eq!(crate::executor::forget_job(state, JobId(1)), Vec::<String>::new());
        assert!(!output_root(state).join("1").exists());
    }
}
