//! One stream of a task's output: a pipe that is read to its end and a file with as much of it as is kept.

use amalgam_core::vocabulary::OUTPUT_UNWRITTEN;
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// How much is read in one turn, so that a flood does not keep the loop from everyone else.
const PIECE: usize = 64 << 10;

#[derive(Debug)]
pub struct Capture {
    pipe: Option<OwnedFd>,
    path: PathBuf,
    /// Made at the first byte: most tasks say nothing.
    file: Option<File>,
    cap: u64,
    pub bytes: u64,
    pub dropped: u64,
    /// Why nothing more is written, once something failed.
    pub trouble: Option<String>,
}

pub enum Progress {
    /// There may be more.
    More,
    /// Nothing more at the moment.
    Empty,
    /// Every writer has closed it.
    Closed,
}

impl Capture {
    /// Returns the end that the task writes to as well. Only our end is non-blocking.
    pub fn new(path: PathBuf, cap: u64) -> io::Result<(Capture, OwnedFd)> {
        let (pipe, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        let capture = Capture { pipe: Some(pipe), path, file: None, cap, bytes: 0, dropped: 0, trouble: None };
        Ok((capture, writer))
    }

    /// How much was not kept for the cap alone; where a write failed, its trouble says so.
    pub fn past_cap(&self) -> u64 {
        if self.trouble.is_none() { self.dropped } else { 0 }
    }

    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads one piece and keeps what the cap allows. A failed write does not disturb the task.
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

    /// Reads what is left and closes the pipe, whoever else still holds its other end.
    pub fn finish(&mut self, buffer: &mut Vec<u8>) {
        // A pipe holds at most what fits in it, so a writer that we could not kill cannot keep us here.
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
                format!("the disk of {directory} is full ({error}); make room there")
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
