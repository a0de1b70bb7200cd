//! The files of totals: one for each day, and the number of the next entry of the log.
//!
//! Each file names the number up to which it has counted. If the process ends while some of them are stored, the entries are
//! read again, and each file skips those that it has.

use super::{Counts, write};
use crate::dates::{DAY, date, day_of_date};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The totals of a day, by user and queue.
#[derive(Clone, Default, Debug)]
pub(super) struct Day {
    /// Entries before this one are counted.
    until: u64,
    pub(super) rows: BTreeMap<(String, String), Counts>,
}

#[derive(Serialize, Deserialize)]
struct File {
    until: u64,
    rows: Vec<Row>,
}

#[derive(Serialize, Deserialize)]
struct Row {
    user: String,
    queue: String,
    #[serde(flatten)]
    counts: Counts,
}

pub(super) struct Days {
    dir: PathBuf,
    kept_days: u64,
    /// The number of the next entry of the log.
    next: u64,
    /// Days with entries since the last save.
    open: BTreeMap<u64, Day>,
    /// A day that could not be read, so that its entries are not lost by a save.
    failed: Option<io::Error>,
}

/// The directory of the files, in the state directory.
pub const DIR: &str = "usage";

/// The file with the number of the next entry.
const NEXT: &str = "next";

/// The names of the files of totals in this directory, in the order in which a copy has to read them: each day has then counted at
/// least what lies before the next entry. A log that is copied afterwards has all entries that they counted.
///
/// # Errors
/// If the directory cannot be read. Without the directory there are none.
pub fn files(dir: &Path) -> io::Result<Vec<String>> {
    let mut days = Vec::new();
    match fs::read_dir(dir) {
        Ok(entries) => {
            for entry in entries {
                days.extend(
                    entry?.file_name().to_str().filter(|name| *name != NEXT && is_file(name)).map(str::to_owned),
                );
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(days),
        Err(error) => return Err(error),
    }
    days.sort_unstable();
    days.insert(0, NEXT.to_owned());
    Ok(days)
}

/// Whether a file of totals has this name.
pub fn is_file(name: &str) -> bool {
    name == NEXT || name.strip_suffix(".json").and_then(day_of_date).is_some()
}

impl Days {
    /// `end` is the number of the log's next entry: a log that is shorter than what was counted is another one.
    pub(super) fn open(dir: &Path, end: u64, kept_days: u32) -> io::Result<Days> {
        fs::create_dir_all(dir)?;
        let next = match fs::read_to_string(dir.join(NEXT)) {
            Ok(text) => text.trim().parse().map_err(|_| damaged(&dir.join(NEXT)))?,
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        let mut days =
            Days { dir: dir.to_owned(), kept_days: kept_days.into(), next, open: BTreeMap::new(), failed: None };
        if next > end {
            tracing::warn!(
                counted = next,
                log = end,
                "the log is another one than before: its usage is counted from its start"
            );
            days.start_again()?;
        }
        Ok(days)
    }

    /// Counts the entries of another log beside what was counted.
    fn start_again(&mut self) -> io::Result<()> {
        for day in self.stored()? {
            let mut stored = self.load(day)?;
            stored.until = 0;
            self.store(day, &stored)?;
        }
        self.next = 0;
        write(&self.dir.join(NEXT), "0\n")
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    fn path(&self, day: u64) -> PathBuf {
        self.dir.join(format!("{}.json", date(day)))
    }

    /// The days that have totals, in order.
    pub(super) fn stored(&self) -> io::Result<Vec<u64>> {
        let mut days = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let date = name.to_str().and_then(|name| name.strip_suffix(".json"));
            days.extend(date.and_then(day_of_date));
        }
        days.sort_unstable();
        Ok(days)
    }

    /// The totals of a day; none if there are none.
    pub(super) fn load(&self, day: u64) -> io::Result<Day> {
        if let Some(open) = self.open.get(&day) {
            return Ok(open.clone());
        }
        let path = self.path(day);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Day::default()),
            Err(error) => return Err(error),
        };
        let File { until, rows } = serde_json::from_slice(&text).map_err(|_| damaged(&path))?;
        Ok(Day { until, rows: rows.into_iter().map(|row| ((row.user, row.queue), row.counts)).collect() })
    }

    pub(super) fn add(&mut self, sequence: u64, day: u64, (user, queue): (&str, &str), counts: &Counts) {
        if !self.open.contains_key(&day) {
            match self.load(day) {
                Ok(loaded) => drop(self.open.insert(day, loaded)),
                Err(error) => return self.failed = Some(error),
            }
        }
        let Some(open) = self.open.get_mut(&day).filter(|open| sequence >= open.until) else { return };
        open.rows.entry((user.to_owned(), queue.to_owned())).or_default().add(counts);
    }

    /// Stores all totals: those of entries before `next`.
    pub(super) fn save(&mut self, next: u64) -> io::Result<()> {
        if let Some(error) = self.failed.take() {
            // The entries are read again.
            self.open.clear();
            return Err(error);
        }
        for day in self.open.keys().copied().collect::<Vec<_>>() {
            self.store_day(day, next)?;
        }
        if next != self.next {
            write(&self.dir.join(NEXT), &format!("{next}\n"))?;
            self.next = next;
        }
        // Only the newest is likely to get more.
        while self.open.len() > 1 {
            self.open.pop_first();
        }
        self.remove_old()
    }

    pub(super) fn store_day(&mut self, day: u64, next: u64) -> io::Result<()> {
        let Some(open) = self.open.get_mut(&day) else { return Ok(()) };
        let before = std::mem::replace(&mut open.until, next);
        let stored = open.clone();
        if before == next {
            return Ok(());
        }
        self.store(day, &stored)
    }

    fn store(&self, day: u64, stored: &Day) -> io::Result<()> {
        let row = |((user, queue), counts): (&(String, String), &Counts)| Row {
            user: user.clone(),
            queue: queue.clone(),
            counts: *counts,
        };
        let file = File { until: stored.until, rows: stored.rows.iter().map(row).collect() };
        write(&self.path(day), &serde_json::to_string(&file).map_err(io::Error::other)?)
    }

    fn remove_old(&self) -> io::Result<()> {
        let stored = self.stored()?;
        let Some(newest) = stored.last() else { return Ok(()) };
        // Not counted from a day that a wrong clock has made.
        let oldest = ((*newest).min(today()) + 1).saturating_sub(self.kept_days);
        stored.iter().filter(|day| **day < oldest).try_for_each(|day| fs::remove_file(self.path(*day)))
    }
}

/// The day that this machine's clock says.
fn today() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX) / DAY
}

fn damaged(path: &Path) -> io::Error {
    io::Error::other(format!("{} is damaged: restore it, or remove it and lose its totals", path.display()))
}
