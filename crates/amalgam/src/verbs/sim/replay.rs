//! Replays the journal of a daemon: the same roles handle the recorded events without any IO.

use crate::failure::{Failure, Result};
use crate::show;
use amalgam_core::hosting::{Difference, Entry, Replay};
use amalgam_core::why::counted;
use amalgam_daemon::journal::JournalReader;
use amalgam_daemon::sealing::HMAC;
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Example:
  amalgam dev --journal /tmp/journal
  amalgam sim replay /tmp/journal
Exits with 1 if a role has other effects, which is a bug of the program.")]
pub struct ReplayArgs {
    /// Journals, or directories of them
    #[arg(required = true, value_name = "JOURNAL")]
    journals: Vec<PathBuf>,
}

pub fn execute(args: &ReplayArgs) -> Result<ExitCode> {
    let mut journals = Vec::new();
    for path in &args.journals {
        journals.extend(if path.is_dir() { in_directory(path)? } else { vec![path.clone()] });
    }
    let mut all = 0;
    for path in &journals {
        let Replayed { events, left_over } = replay(path)?;
        all += events;
        let cut = match left_over {
            0 => String::new(),
            bytes => format!("; its last {bytes} bytes are no whole entry"),
        };
        show::print(&format!("{}: {}, the same effects{cut}\n", path.display(), counted(events, "event")))?;
    }
    if all == 0 {
        let remedy = "processes that were killed at once leave such journals; name others";
        return Err(Failure::new("the journals have no events, so nothing was compared", remedy));
    }
    Ok(ExitCode::SUCCESS)
}

fn in_directory(directory: &Path) -> Result<Vec<PathBuf>> {
    let wrong = |error| Failure::new(format!("cannot read {}: {error}", directory.display()), "");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.extension().is_some_and(|extension| extension == "journal") {
            found.push(path);
        }
    }
    found.sort();
    if found.is_empty() {
        let remedy = "give the directory that a daemon's --journal named";
        return Err(Failure::new(format!("{} has no journals", directory.display()), remedy));
    }
    Ok(found)
}

struct Replayed {
    /// Events that the roles handled.
    events: u64,
    /// Bytes after the last complete entry.
    left_over: usize,
}

fn replay(path: &Path) -> Result<Replayed> {
    let mut journal = JournalReader::open(path).map_err(|error| Failure::new(error.to_string(), ""))?;
    let (mut replay, mut number, mut events) = (Replay::new(HMAC).of_version(journal.wire_version()), 0, 0);
    while let Some(entry) = journal.next_entry().map_err(|error| Failure::new(error.to_string(), ""))? {
        number += 1;
        events += u64::from(matches!(entry, Entry::Handled { .. }));
        let what = show_event(&entry);
        if let Err(difference) = replay.apply(entry) {
            return Err(report(path, number, &what, &difference));
        }
    }
    Ok(Replayed { events, left_over: journal.left_over() })
}

fn show_event(entry: &Entry) -> String {
    match entry {
        Entry::Handled { now, event, .. } => format!("{event:?} at {} us", now.0),
        Entry::Named { name, .. } => format!("the naming of {name}"),
        other => format!("{other:?}"),
    }
}

fn report(path: &Path, number: u64, what: &str, difference: &Difference) -> Failure {
    let place = format!("{}, entry {number}, {what}", path.display());
    match difference {
        Difference::NoRole => {
            let remedy = "replay the journal whole, by the version that wrote it";
            Failure::new(format!("{place}: the role for it does not exist"), remedy)
        }
        Difference::Effects { recorded, replayed } => {
            let what = format!("{place}: the roles have other effects now\n  then {recorded:?}\n  now  {replayed:?}");
            Failure::new(what, "replay it by the version that wrote it; if that differs, too, report both")
        }
    }
}
