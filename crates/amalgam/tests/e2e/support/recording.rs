//! Messages of a daemon: recorded by a proxy, and sent again by a test in place of the daemon.

use amalgam_daemon::encoding;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for a message that the recorded daemon had got before it sent its next one. Two messages may have become
/// one, so its absence is no error.
const LATE: Duration = Duration::from_secs(2);

/// The sender of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The recorded daemon.
    Recorded,
    /// The daemon that it talks to.
    Other,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    /// Number of the connection, from 0.
    pub connection: usize,
    pub side: Side,
    /// Without its length.
    pub bytes: Vec<u8>,
}

// ---- recording -------------------------------------------------------------------------------------------------------

/// The frames of several connections, in the order in which they passed their proxies.
#[derive(Clone, Default)]
pub struct Recorder {
    frames: Arc<Mutex<Vec<Frame>>>,
}

/// Changes a frame that passes a proxy.
pub type Edit = fn(&[u8], &str) -> Option<Vec<u8>>;

impl Recorder {
    /// A proxy for one connection to the daemon at `target`; returns its address. `joins` is the side that connects. An
    /// edit changes the frames of that side, with its text.
    pub fn before(&self, connection: usize, joins: Side, target: &str, edit: Option<(Edit, String)>) -> String {
        let target = target.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let recorder = self.clone();
        thread::spawn(move || {
            let (joining, _) = listener.accept().unwrap();
            let listening = TcpStream::connect(&target).unwrap();
            let twins = (joining.try_clone().unwrap(), listening.try_clone().unwrap());
            let answers = if joins == Side::Recorded { Side::Other } else { Side::Recorded };
            recorder.pass((connection, joins), twins.0, listening, edit);
            recorder.pass((connection, answers), twins.1, joining, None);
        });
        address
    }

    /// A proxy in front of an executor for connections one after the other, numbered from 0.
    pub fn before_socket(&self, socket: &Path, target: &Path) {
        let listener = UnixListener::bind(socket).unwrap();
        let (recorder, target) = (self.clone(), PathBuf::from(target));
        thread::spawn(move || {
            for (connection, agent) in listener.incoming().enumerate() {
                let agent = agent.unwrap();
                let Ok(executor) = UnixStream::connect(&target) else { continue };
                let twins = (agent.try_clone().unwrap(), executor.try_clone().unwrap());
                recorder.pass((connection, Side::Other), twins.0, executor, None);
                recorder.pass((connection, Side::Recorded), twins.1, agent, None);
            }
        });
    }

    fn pass(&self, of: (usize, Side), mut from: impl Stream, mut to: impl Stream, edit: Option<(Edit, String)>) {
        let frames = Arc::clone(&self.frames);
        thread::spawn(move || {
            while let Ok(mut bytes) = read_frame(&mut from) {
                if let Some((edit, text)) = &edit {
                    bytes = edit(&bytes, text).unwrap_or(bytes);
                }
                frames.lock().unwrap().push(Frame { connection: of.0, side: of.1, bytes: bytes.clone() });
                if write_frame(&mut to, &bytes).is_err() {
                    break;
                }
            }
            from.end();
            to.end();
        });
    }

    pub fn frames(&self) -> Vec<Frame> {
        self.frames.lock().unwrap().clone()
    }
}

pub trait Stream: Read + Write + Send + 'static {
    /// Ends the connection in both directions.
    fn end(&self);
}

impl Stream for TcpStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Stream for UnixStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// A frame is its length as a little-endian `u32` and that many bytes.
pub fn read_frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut frame = vec![0; u32::from_le_bytes(length) as usize];
    from.read_exact(&mut frame)?;
    Ok(frame)
}

pub fn write_frame(to: &mut (impl Write + ?Sized), frame: &[u8]) -> io::Result<()> {
    to.write_all(&[&(frame.len() as u32).to_le_bytes()[..], frame].concat())
}

/// In the file, a letter before each frame names its sender: `a` is the recorded daemon, `s` the other one. Those of
/// connection 1 are capital letters.
pub fn save(frames: &[Frame], path: &Path) {
    let mut bytes = Vec::new();
    for frame in frames {
        let letter = if frame.side == Side::Recorded { b'a' } else { b's' };
        bytes.push(if frame.connection == 0 { letter } else { letter.to_ascii_uppercase() });
        write_frame(&mut bytes, &frame.bytes).unwrap();
    }
    fs::write(path, bytes).unwrap();
}

pub fn load(path: &Path) -> Vec<Frame> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut rest = &bytes[..];
    let mut frames = Vec::new();
    while let Some((letter, after)) = rest.split_first() {
        rest = after;
        let side = if letter.eq_ignore_ascii_case(&b'a') { Side::Recorded } else { Side::Other };
        let connection = usize::from(letter.is_ascii_uppercase());
        frames.push(Frame { connection, side, bytes: read_frame(&mut rest).unwrap() });
    }
    frames
}

// ---- playing ---------------------------------------------------------------------------------------------------------

/// Sends what a daemon has sent, each frame after the messages that it had got before.
#[derive(Default)]
pub struct Player {
    writers: [Option<Box<dyn Stream>>; 2],
    heard: Arc<(Mutex<Heard>, Condvar)>,
    /// The number of messages that the recorded daemon had got.
    expected: usize,
}

#[derive(Default)]
struct Heard {
    messages: usize,
    frames: Vec<Vec<u8>>,
}

impl Player {
    /// Uses this stream from now on, after its handshake.
    pub fn connect<S: Stream>(&mut self, connection: usize, mut from: S, to: S) {
        self.writers[connection] = Some(Box::new(to));
        let heard = Arc::clone(&self.heard);
        thread::spawn(move || {
            while let Ok(frame) = read_frame(&mut from) {
                let mut all = heard.0.lock().unwrap();
                all.messages += messages_in(&frame);
                all.frames.push(frame);
                heard.1.notify_all();
            }
        });
    }

    pub fn play(&mut self, frames: &[Frame]) {
        for Frame { connection, side, bytes } in frames {
            match side {
                Side::Other => self.expected += messages_in(bytes),
                Side::Recorded => {
                    let deadline = Instant::now() + LATE;
                    let is_early = |heard: &mut Heard| heard.messages < self.expected && Instant::now() < deadline;
                    let heard = self.heard.0.lock().unwrap();
                    drop(self.heard.1.wait_timeout_while(heard, LATE, is_early).unwrap());
                    let writer = self.writers[*connection].as_mut().expect("it is connected");
                    write_frame(&mut **writer, bytes).expect("the other daemon listens");
                }
            }
        }
    }

    /// All frames that were received so far.
    pub fn heard(&self) -> Vec<Vec<u8>> {
        self.heard.0.lock().unwrap().frames.clone()
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.writers.iter().flatten().for_each(|writer| writer.end());
    }
}

/// The number of messages in a frame: a batch may be as many frames as it has messages, or one.
fn messages_in(frame: &[u8]) -> usize {
    #[derive(Deserialize)]
    enum Wire {
        Alive,
        Mail(Vec<IgnoredAny>),
    }
    match encoding::from_slice(frame) {
        Ok(Wire::Alive) => 0,
        Ok(Wire::Mail(messages)) => messages.len(),
        // A frame of another kind.
        Err(_) => 1,
    }
}
