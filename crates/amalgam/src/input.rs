//! Passes the standard input of `run` to the only task of its job.

use crate::client::{Client, Query, very_patiently};
use crate::failure::{Failure, Result};
use crate::show;
use amalgam_core::vocabulary::JobSpec;
use amalgam_daemon::api::{Action, InputState, InputTaken};
use clap::ValueEnum;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;
use std::thread;

/// Bytes of input that are kept for further attempts of the task.
const KEPT: usize = 1 << 20;
/// Bytes of input in one call.
const PART: usize = 256 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Stdin {
    /// Pass ours on to the task
    Inherit,
    /// The task finds its input empty
    None,
}

/// Whether the job's task reads our input. The job is marked accordingly.
///
/// # Errors
/// If that was requested and is not possible.
pub fn prepare(job: &mut JobSpec, wanted: Option<Stdin>) -> Result<bool> {
    let is_single = job.task_count() == 1;
    if wanted == Some(Stdin::Inherit) && !is_single {
        let what = format!("standard input can be passed to a single task only, and the job has {}", job.task_count());
        return Err(Failure::usage(what, "leave out --stdin inherit, or name files as inputs"));
    }
    let passes = is_single && wanted.map_or_else(brings_something, |wanted| wanted == Stdin::Inherit);
    if passes && let Some(stage) = job.stages.first_mut() {
        Arc::make_mut(&mut stage.program).stdin = true;
    }
    Ok(passes)
}

/// Whether input is available now, not only a writer.
pub fn holds_something() -> bool {
    let stdin = io::stdin();
    !stdin.is_terminal() && rustix::io::ioctl_fionread(&stdin).is_ok_and(|bytes| bytes > 0)
}

/// Gives the task an empty input after all.
pub fn leave_out(job: &mut JobSpec) {
    job.stages.iter_mut().for_each(|stage| Arc::make_mut(&mut stage.program).stdin = false);
}

/// Whether standard input is usable: not closed, not `/dev/null`, and not a terminal that has us in the background, where a read
/// would stop us.
fn brings_something() -> bool {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        let foreground = rustix::termios::tcgetpgrp(&stdin);
        return foreground.is_ok_and(|group| group == rustix::process::getpgrp());
    }
    let Ok(file) = stdin.as_fd().try_clone_to_owned().map(File::from) else { return false };
    let null = std::fs::metadata("/dev/null").map(|null| null.rdev());
    file.metadata().is_ok_and(|found| {
        let is_null = found.file_type().is_char_device() && null.is_ok_and(|null| null == found.rdev());
        !is_null
    })
}

/// Passes input on a thread that ends with this program. If that fails, the job is cancelled.
pub fn pass_on(client: &Client, job: u64) {
    let client = client.clone();
    thread::spawn(move || {
        if let Err(failure) = Passing::new(&client, job).run(io::stdin().lock()) {
            show::note(&failure.to_string());
            // A job that has ended meanwhile cannot be cancelled, and does not need to be.
            let _ = very_patiently(|| client.act(vec![job], Action::Cancel));
        }
    });
}

struct Passing<'a> {
    client: &'a Client,
    job: u64,
    /// The attempt that gets the input now.
    attempt: Option<String>,
    /// The position up to which the attempt has the input.
    taken: u64,
    /// The first bytes of the input.
    kept: Vec<u8>,
    read: u64,
}

impl Passing<'_> {
    fn new(client: &Client, job: u64) -> Passing<'_> {
        Passing { client, job, attempt: None, taken: 0, kept: Vec::new(), read: 0 }
    }

    fn run(&mut self, mut from: impl Read) -> Result<()> {
        let mut part = vec![0; PART];
        loop {
            let length = match from.read(&mut part) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Failure::new(
                        format!("cannot read standard input: {error}"),
                        "use --stdin none to pass no input",
                    ));
                }
            };
            let room = KEPT.saturating_sub(self.kept.len());
            self.kept.extend_from_slice(&part[..length.min(room)]);
            let start = self.read;
            self.read += length as u64;
            if !self.pass(start, &part[..length], length == 0)? {
                return Ok(());
            }
        }
    }

    /// Sends the input up to the end of this part. After the last part it continues while the task may be retried. Returns
    /// false if no attempt reads any more.
    fn pass(&mut self, start: u64, part: &[u8], is_last: bool) -> Result<bool> {
        while self.taken < self.read || is_last {
            let bytes = match self.taken.checked_sub(start) {
                Some(within) => &part[within as usize..],
                None => self.again()?,
            };
            let ends = is_last && self.taken + bytes.len() as u64 == self.read;
            let bytes = bytes.to_vec();
            let answer = self.send(&bytes, ends)?;
            match answer.state {
                InputState::Closed => return Ok(false),
                InputState::Waiting => {}
                InputState::Open => {
                    self.taken = answer.taken;
                    self.attempt = answer.attempt;
                }
            }
        }
        Ok(true)
    }

    /// The kept input that a new attempt has not got yet.
    fn again(&self) -> Result<&[u8]> {
        let kept = self.kept.get(self.taken as usize..).unwrap_or_default();
        if self.read > self.kept.len() as u64 {
            let what = "the task is retried, and the first attempt read more standard input than the 1 MiB that is kept for that";
            return Err(Failure::new(what, "give it the input as a file, or run it with --retries 0"));
        }
        Ok(&kept[..kept.len().min(PART)])
    }

    fn send(&self, bytes: &[u8], ends: bool) -> Result<InputTaken> {
        let mut query = Query::default().with("offset", &self.taken.to_string());
        query.add("attempt", self.attempt.as_deref());
        query.add("ends", ends.then_some("true"));
        very_patiently(|| self.client.post_bytes(&format!("/v1/jobs/{}/input{query}", self.job), bytes))
    }
}
