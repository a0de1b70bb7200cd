//! Standard output and standard error. A write stores every byte or returns an error.

use amalgam_daemon::terminal::visible_lines;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// An unbuffered standard stream. If another process made the descriptor non-blocking, writes wait for it: its flags are
/// shared, so they stay unchanged.
pub struct Standard {
    descriptor: RawFd,
    whole: &'static Mutex<()>,
}

/// Keeps the writes of several threads apart.
static STDOUT: Mutex<()> = Mutex::new(());
static STDERR: Mutex<()> = Mutex::new(());

/// Whether a note could not be written.
static NOTES_LOST: AtomicBool = AtomicBool::new(false);

pub fn stdout() -> Standard {
    Standard { descriptor: libc::STDOUT_FILENO, whole: &STDOUT }
}

pub fn stderr() -> Standard {
    Standard { descriptor: libc::STDERR_FILENO, whole: &STDERR }
}

impl Standard {
    #[cfg(test)]
    fn of(descriptor: RawFd) -> Standard {
        Standard { descriptor, whole: &STDOUT }
    }

    fn was_closed(&self) -> bool {
        usize::try_from(self.descriptor)
            .ok()
            .and_then(|place| CLOSED.get(place))
            .is_some_and(|closed| closed.load(Ordering::Relaxed))
    }
}

impl Write for Standard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.was_closed() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        loop {
            // SAFETY: the bytes are valid for their length.
            let written = unsafe { libc::write(self.descriptor, bytes.as_ptr().cast(), bytes.len()) };
            if let Ok(written) = usize::try_from(written) {
                return Ok(written);
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => wait_for_room(self.descriptor)?,
                _ => return Err(error),
            }
        }
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let _whole = self.whole.lock().unwrap_or_else(PoisonError::into_inner);
        while !bytes.is_empty() {
            match self.write(bytes)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => bytes = &bytes[written..],
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns once the descriptor can be written to, or the next write will return an error.
fn wait_for_room(descriptor: RawFd) -> io::Result<()> {
    let mut waited = libc::pollfd { fd: descriptor, events: libc::POLLOUT, revents: 0 };
    // SAFETY: it points to one entry, as the length says.
    match unsafe { libc::poll(&mut waited, 1, -1) } {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
        _ => Ok(()),
    }
}

/// Prints a line on standard error. A missing reader is ignored; another error is kept for [`has_lost_notes`].
pub fn note(line: &str) {
    let written = stderr().write_all(format!("{}\n", visible_lines(line)).as_bytes());
    if written.is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe) {
        NOTES_LOST.store(true, Ordering::Relaxed);
    }
}

/// Whether a note could not be written to standard error.
pub fn has_lost_notes() -> bool {
    NOTES_LOST.load(Ordering::Relaxed)
}

/// Which of the three standard descriptors were closed when the program started. Before `main` Rust's runtime opens /dev/null
/// in their place, where output would be lost without an error.
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

extern "C" fn look_for_closed() {
    for (descriptor, closed) in (0..).zip(&CLOSED) {
        // SAFETY: fcntl accepts any number.
        closed.store(unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1, Ordering::Relaxed);
    }
}

// SAFETY: the loader calls the functions of this section before the runtime, without other threads; this one only calls fcntl.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_FOR_CLOSED: extern "C" fn() = look_for_closed;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::{AsRawFd, FromRawFd};

    fn pipe() -> (File, File) {
        let mut ends = [0; 2];
        // SAFETY: there is room for both ends, and no other code owns them.
        unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
        }
    }

    #[test]
    fn a_stream_that_does_not_block_gets_every_byte() {
        let (mut reader, writer) = pipe();
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
        let bytes: Vec<u8> = (0..1_000_000u32).map(|number| number as u8).collect();
        let expected = bytes.clone();
        let writes = std::thread::spawn(move || Standard::of(writer.as_raw_fd()).write_all(&bytes));
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        writes.join().unwrap().unwrap();
        assert!(read == expected);
    }

    #[test]
    fn a_full_disk_and_an_absent_reader_are_distinguished() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let error = Standard::of(full.as_raw_fd()).write_all(b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let (reader, writer) = pipe();
        drop(reader);
        assert_eq!(Standard::of(writer.as_raw_fd()).write_all(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
