//! Measures the progress of attempts: the progress that a task reports, the bytes that it has read and its CPU time.
//!
//! A task reports its progress in a file and not on its standard output. The output may be buffered, is for the user,
//! and would have to be parsed all the time.

use super::accounts::Account;
use super::hierarchy::Leaf;
use super::members::{Census, cpu_micros, read_bytes};
use super::sys::ActsAs;
use amalgam_core::vocabulary::{Duration, Sample, WHOLE};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Number of bytes that are read from the end of the file.
const TAIL: u64 = 256;

/// The file in which a task may report its progress.
pub fn progress_file(task_dir: &Path) -> PathBuf {
    task_dir.join("progress")
}

/// The properties of an attempt that its measurement needs.
pub struct Measured<'a> {
    pub pid: i32,
    pub running_for: Duration,
    pub task_dir: &'a Path,
    pub leaf: Option<&'a Leaf>,
    /// The account that it runs as; `None` for this process's own.
    pub account: Option<&'a Account>,
    /// CPU time of its cgroup before the attempt started, in microseconds.
    pub cpu_before: u64,
}

/// Measures attempts. The processes of the machine are listed at most once, if an attempt has no cgroup.
pub fn measure(attempts: &[Measured]) -> Vec<Sample> {
    let without: Vec<i32> = attempts.iter().filter(|one| one.leaf.is_none()).map(|one| one.pid).collect();
    let mut found = if without.is_empty() { Vec::new() } else { Census::take().members(&without) }.into_iter();
    let sample = |one: &Measured| {
        let members = match one.leaf {
            Some(leaf) => leaf.members(),
            None => found.next().unwrap_or_default(),
        };
        let of_group = one.leaf.and_then(Leaf::cpu_micros).map(|used| used.saturating_sub(one.cpu_before));
        let cpu = of_group.unwrap_or_else(|| members.iter().filter_map(|pid| cpu_micros(*pid)).sum());
        Sample {
            running_for: one.running_for,
            reported: reported(one),
            cpu: Duration::from_micros(cpu),
            // The cgroup's disk reads are not used: inputs are often cached in memory.
            read_bytes: members.iter().filter_map(|pid| read_bytes(*pid)).sum(),
        }
    };
    attempts.iter().map(sample).collect()
}

/// The progress that the task reports, read with the rights of its user.
fn reported(one: &Measured) -> Option<u32> {
    let _acts = one.account.map(|account| ActsAs::user(account.credentials())).transpose().ok()?;
    last_progress(&progress_file(one.task_dir))
}

/// The progress in the last valid line of the file, in millionths.
fn last_progress(path: &Path) -> Option<u32> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    // Links are not followed, and a pipe does not block.
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path).ok()?;
    last_part(&tail(&file)?)
}

fn tail(file: &File) -> Option<String> {
    let found = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut text = [0; TAIL as usize];
    let from = found.len().saturating_sub(TAIL);
    let length = file.read_at(&mut text, from).ok()?;
    let text = String::from_utf8_lossy(&text[..length]);
    // The rest of a line that was cut could be another number, so it is skipped.
    Some(if from == 0 { text.into_owned() } else { text.split_once('\n')?.1.to_owned() })
}

fn last_part(text: &str) -> Option<u32> {
    text.lines().rev().find_map(parse)
}

/// Parses `0.42` or `42%`.
fn parse(line: &str) -> Option<u32> {
    let line = line.trim();
    let part = match line.strip_suffix('%') {
        Some(percent) => percent.trim_end().parse::<f64>().ok()? / 100.0,
        None => line.parse::<f64>().ok()?,
    };
    (0.0..=1.0).contains(&part).then(|| (part * f64::from(WHOLE)).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn progress_is_a_number_from_0_to_1_or_a_percentage() {
        for (text, part) in [("0.42", 420_000), (" 42 %\n", 420_000), ("1", 1_000_000), ("0", 0), ("99.95%", 999_500)] {
            assert_eq!(last_part(text), Some(part), "{text}");
        }
        for text in ["", "\n", "1.5", "-0.1", "nan", "inf", "101%", "half", "0.4.2"] {
            assert_eq!(last_part(text), None, "{text}");
        }
    }

    #[test]
    fn the_last_valid_line_of_a_file_of_any_length_is_used() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("progress");
        assert_eq!(last_progress(&path), None);
        let lines: Vec<String> = (0..=900).map(|part| format!("0.{part:03}\n")).collect();
        fs::write(&path, lines.concat() + "\nwriting\n").unwrap();
        assert_eq!(last_progress(&path), Some(900_000));
        fs::write(&path, "0.1\n".to_owned() + &"x".repeat(254) + "\n").unwrap();
        assert_eq!(last_progress(&path), None, "the line is cut");
    }

    #[test]
    fn only_a_regular_file_is_read() {
        let home = tempfile::tempdir().unwrap();
        let (real, link, pipe) = (home.path().join("real"), home.path().join("link"), home.path().join("pipe"));
        fs::write(&real, "0.5").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        assert_eq!(
            (last_progress(&real), last_progress(&link), last_progress(&pipe), last_progress(home.path())),
            (Some(500_000), None, None, None)
        );
    }
}
