//! The standard input of a task that gets one.
//!
//! The agent writes to a named pipe, and a thread of the executor copies it to the pipe that the task reads. So the
//! agent may restart, and a task that does not read blocks only the writer. The input ends when the agent has closed
//! the named pipe and created a file that marks the end.

use amalgam_core::vocabulary::AttemptId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval at which the thread checks whether the task has ended.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The named pipe of an attempt.
pub fn input_path(state: &Path, attempt: AttemptId) -> PathBuf {
    state.join("input").join(attempt.to_string())
}

/// The file that marks the end of an attempt's input. The agent creates it after the last byte.
pub fn end_of_input(state: &Path, attempt: AttemptId) -> PathBuf {
    state.join("input").join(format!("{attempt}.end"))
}

/// The input of an attempt. It ends when this is dropped.
pub struct Input {
    pipe: PathBuf,
    end: PathBuf,
    is_over: Arc<AtomicBool>,
}

impl Input {
    /// Creates the pipes and starts the thread. Also returns the end that the task reads.
    pub fn open(state: &Path, attempt: AttemptId) -> io::Result<(Input, OwnedFd)> {
        let (pipe, end) = (input_path(state, attempt), end_of_input(state, attempt));
        DirBuilder::new().recursive(true).mode(0o700).create(state.join("input"))?;
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let input = Input { pipe: pipe.clone(), end: end.clone(), is_over: Arc::default() };
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK)?;
        let (is_over, task) = (Arc::clone(&input.is_over), File::from(writer));
        // The thread inherits the blocked signals of the loop's thread, which handles them.
        std::thread::Builder::new().name("input".to_owned()).spawn(move || {
            let _ = pass_on(&pipe, &end, task, &is_over);
            // A connected writer gets an error because the pipe has no reader; later ones find no pipe.
            let _ = fs::remove_file(&pipe);
        })?;
        Ok((input, reader))
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = fs::remove_file(&self.pipe);
        let _ = fs::remove_file(&self.end);
    }
}

/// Writes all bytes, unless the task has ended: another process may keep its input open without reading.
fn write(task: &mut File, mut bytes: &[u8], is_over: &AtomicBool) -> io::Result<()> {
    while !bytes.is_empty() && !is_over.load(Ordering::Relaxed) {
        match task.write(bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(&*task, PollFlags::OUT)], Some(&GLANCE));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Copies the input until it ends or the task ends.
fn pass_on(pipe: &Path, end: &Path, mut task: File, is_over: &AtomicBool) -> io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut from = File::from(rustix::fs::open(pipe, flags, Mode::empty())?);
        loop {
            let mut watched = [PollFd::new(&from, PollFlags::IN), PollFd::new(&task, PollFlags::empty())];
            match poll(&mut watched, Some(&GLANCE)) {
                Ok(0) | Err(rustix::io::Errno::INTR) if !is_over.load(Ordering::Relaxed) => continue,
                Err(error) if error != rustix::io::Errno::INTR => return Err(error.into()),
                _ => {}
            }
            // The task has closed its end, or has ended.
            if is_over.load(Ordering::Relaxed) || !watched[1].revents().is_empty() {
                return Ok(());
            }
            match from.read(&mut bytes) {
                Ok(0) if end.exists() => return Ok(()),
                // The writer was killed or stopped. The next one continues.
                Ok(0) => break,
                Ok(length) => write(&mut task, &bytes[..length], is_over)?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
