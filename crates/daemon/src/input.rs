//! The standard input of tasks: what this process has written to the pipes of attempts.

use crate::executor::{end_of_input, input_path};
use amalgam_core::vocabulary::AttemptId;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long to wait for a task that does not read, before the answer reports it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between attempts to write to a full pipe.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of stored inputs. The oldest are removed first; their attempts have most likely ended.
const MOST: usize = 10_000;

/// A part of an attempt's input.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InputPart {
    pub offset: u64,
    #[serde(with = "amalgam_core::vocabulary::byte_string")]
    pub bytes: Vec<u8>,
    /// Whether this is the last part.
    pub ends: bool,
}

/// The result of writing a part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Taken {
    /// Bytes before this offset are written.
    UpTo(u64),
    /// The attempt has not started, or has ended.
    NotOpen,
    /// The task reads no more input.
    Closed,
    /// This process was restarted meanwhile and does not know what the task has read.
    Lost,
    /// The node is not connected, or did not answer in time.
    Away,
}

/// The inputs that this process has started to write.
#[derive(Default)]
pub struct Inputs(std::sync::Mutex<BTreeMap<AttemptId, Arc<tokio::sync::Mutex<Feed>>>>);

#[derive(Default)]
struct Feed {
    /// `None` before the start and after the end of the input.
    pipe: Option<File>,
    written: u64,
}

impl Inputs {
    /// Writes the bytes that the pipe accepts within about two seconds.
    pub async fn take(&self, state: &Path, attempt: AttemptId, part: &InputPart) -> Taken {
        let feed = {
            let mut feeds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if feeds.len() >= MOST && !feeds.contains_key(&attempt) {
                feeds.pop_first();
            }
            Arc::clone(feeds.entry(attempt).or_default())
        };
        let mut feed = feed.lock().await;
        match feed.take(state, attempt, part).await {
            Ok(taken) => taken,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Taken::Closed,
            // No pipe, or no process has opened it for reading.
            Err(_) => Taken::NotOpen,
        }
    }
}

impl Feed {
    async fn take(&mut self, state: &Path, attempt: AttemptId, part: &InputPart) -> io::Result<Taken> {
        let has_ended = self.pipe.is_none() && end_of_input(state, attempt).exists();
        if self.pipe.is_none() && !has_ended {
            if part.offset > 0 {
                return Ok(if input_path(state, attempt).exists() { Taken::Lost } else { Taken::NotOpen });
            }
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let pipe = rustix::fs::open(input_path(state, attempt), flags, Mode::empty())?;
            (self.pipe, self.written) = (Some(File::from(pipe)), 0);
        }
        // A repeated part was written already, but the answer was lost.
        let Some(known) = self.written.checked_sub(part.offset) else { return Ok(Taken::Lost) };
        let mut left = part.bytes.get(known as usize..).unwrap_or_default();
        let deadline = Instant::now() + PATIENCE;
        while let (Some(pipe), false) = (&mut self.pipe, left.is_empty()) {
            match pipe.write(left) {
                Ok(length) => {
                    self.written += length as u64;
                    left = &left[length..];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if Instant::now() >= deadline {
                        break;
                    }
                    sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
        if left.is_empty() && part.ends && self.pipe.is_some() {
            // Create the mark first: the reader looks for it once the pipe is closed.
            File::create(end_of_input(state, attempt))?;
            self.pipe = None;
        }
        Ok(Taken::UpTo(self.written))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::Input;
    use amalgam_core::vocabulary::{Epoch, JobId};
    use std::io::Read;

    const ATTEMPT: AttemptId = AttemptId { job: JobId(1), epoch: Epoch(1), number: 1 };

    fn part(offset: u64, bytes: &[u8], ends: bool) -> InputPart {
        InputPart { offset, bytes: bytes.to_vec(), ends }
    }

    #[tokio::test]
    async fn input_arrives_once_and_in_order_with_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let inputs = Inputs::default();
        assert_eq!(inputs.take(dir.path(), ATTEMPT, &part(0, b"early", false)).await, Taken::NotOpen);
        let (input, task) = Input::open(dir.path(), ATTEMPT).unwrap();
        let read = std::thread::spawn(move || {
            let mut text = Vec::new();
            File::from(task).read_to_end(&mut text).unwrap();
            text
        });
        // The thread of the pipe may need some time to open it.
        while inputs.take(dir.path(), ATTEMPT, &part(0, b"one", false)).await == Taken::NotOpen {
            sleep(PAUSE).await;
        }
        // The answer to the first part was lost.
        assert_eq!(inputs.take(dir.path(), ATTEMPT, &part(0, b"one\0\xff", false)).await, Taken::UpTo(5));
        let large = vec![7; 1 << 20];
        let mut sent = 0;
        while sent < large.len() {
            match inputs.take(dir.path(), ATTEMPT, &part(5 + sent as u64, &large[sent..], true)).await {
                Taken::UpTo(offset) => sent = offset as usize - 5,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            inputs.take(dir.path(), ATTEMPT, &part(5 + sent as u64, b"", true)).await,
            Taken::UpTo(5 + sent as u64)
        );
        let read = read.join().unwrap();
        assert!(read.starts_with(b"one\0\xff\x07") && read.len() == 5 + large.len(), "{}", read.len());
        drop(input);
        assert_eq!(inputs.take(dir.path(), ATTEMPT, &part(5 + sent as u64, b"x", true)).await, Taken::NotOpen);
    }

    #[tokio::test]
    async fn a_task_that_does_not_read_or_has_ended_does_not_block_the_writer() {
        let dir = tempfile::tempdir().unwrap();
        let inputs = Inputs::default();
        let (input, task) = Input::open(dir.path(), ATTEMPT).unwrap();
        let large = vec![7; 1 << 20];
        let taken = loop {
            match inputs.take(dir.path(), ATTEMPT, &part(0, &large, false)).await {
                Taken::NotOpen => sleep(PAUSE).await,
                taken => break taken,
            }
        };
        assert!(matches!(taken, Taken::UpTo(offset) if offset > 0 && offset < 1 << 20), "{taken:?}");
        // Another instance stands for a restarted process.
        assert_eq!(Inputs::default().take(dir.path(), ATTEMPT, &part(5, b"x", false)).await, Taken::Lost);
        drop(task);
        let Taken::UpTo(offset) = taken else { unreachable!() };
        loop {
            match inputs.take(dir.path(), ATTEMPT, &part(offset, b"more", false)).await {
                Taken::UpTo(_) => sleep(PAUSE).await,
                over => break assert_eq!(over, Taken::Closed),
            }
        }
        drop(input);
    }
}
