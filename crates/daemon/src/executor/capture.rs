//! One stream of a task's output: a pipe that is read to its end, and a file for the output up to the cap.

use amalgam_core::vocabulary::OUTPUT_UNWRITTEN;
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Number of bytes that are read in one turn, so that a task with much output does not delay others.
const PIECE: usize = 64 << 10;

#[derive(Debug)]
pub struct Capture {
    pipe: Option<OwnedFd>,
    path: PathBuf,
    /// Created at the first byte, because most tasks write no output.
    file: Option<File>,
    cap: u64,
    pub bytes: u64,
    pub dropped: u64,
    /// Why the file is no longer written to, after an error.
    pub trouble: Option<String>,
}

pub enum Progress {
    /// There may be more.
    More,
    /// The pipe is empty.
    Empty,
    /// All writers have closed the pipe.
    Closed,
}

impl Capture {
    /// Creates a pipe. Also returns the end that the task writes to. Only the executor's end is non-blocking.
    pub fn new(path: PathBuf, cap: u64) -> io::Result<(Capture, OwnedFd)> {
        let (pipe, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        let capture = Capture { pipe: Some(pipe), path, file: None, cap, bytes: 0, dropped: 0, trouble: None };
        Ok((capture, writer))
    }

    /// Number of bytes that were dropped because of the cap; 0 after a failed write, which `trouble` reports.
    pub fn past_cap(&self) -> u64 {
        if self.trouble.is_none() { self.dropped } else { 0 }
    }

    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads one piece and writes it to the file, up to the cap. A failed write does not affect the task.
    pub fn read(&mut self, buffer: &mut Vec<u8>) -> Progress {
        let Some(pipe) = &self.pipe else { return Progress::Closed };
        buffer.resize(PIECE, 0);
        let length = match rustix::io::read(pipe, buffer.as_mut_slice()) {
            Ok(0) => {
                self.pipe = None;
                return Progress::Closed;
            }
            Ok(length) => length,
            Err(rustix::io::Errno::INTR) => return Progress::More,
            Err(_) => return Progress::Empty,
        };
        let kept = self.cap.saturating_sub(self.bytes).min(length as u64) as usize;
        self.bytes += length as u64;
        let written = if kept > 0 && self.trouble.is_none() { self.write(&buffer[..kept]) } else { 0 };
        self.dropped += (length - written) as u64;
        if length < PIECE { Progress::Empty } else { Progress::More }
    }

    /// Reads the rest of the pipe and closes it, even if another process still has its other end open.
    pub fn finish(&mut self, buffer: &mut Vec<u8>) {
        // Limited, so that a writer that could not be killed does not block the executor.
        for _ in 0..64 {
            if !matches!(self.read(buffer), Progress::More) {
                break;
            }
        }
        self.pipe = None;
        self.file = None;
    }

    fn write(&mut self, kept: &[u8]) -> usize {
        let mut written = 0;
        let result = self.open().and_then(|file| {
            while written < kept.len() {
                match file.write(&kept[written..]) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(length) => written += length,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        if let Err(error) = result {
            self.trouble = Some(format!("{OUTPUT_UNWRITTEN}{}", self.why_unwritten(&error)));
        }
        written
    }

    fn why_unwritten(&self, error: &io::Error) -> String {
        let directory = self.path.parent().unwrap_or(&self.path).display();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("the disk of {directory} is full ({error}); free space there")
            }
            _ => format!("cannot write {}: {error}; make {directory} writable", self.path.display()),
        }
    }

    fn open(&mut self) -> io::Result<&mut File> {
        if self.file.is_none() {
            let mut options = OpenOptions::new();
            let options = options.create(true).write(true).truncate(true);
            let file = match options.open(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir_all(self.path.parent().unwrap_or(&self.path))?;
                    options.open(&self.path)?
                }
                other => other?,
            };
            self.file = Some(file);
        }
        self.file.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}
