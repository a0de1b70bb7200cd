//! Messages between an agent and its server: recorded by a proxy, and sent again by a test in place of the agent.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Agent,
    Server,
}

/// Frames in the order in which they passed the proxy, without their lengths.
pub type Frames = Vec<(Side, Vec<u8>)>;

/// A proxy for one connection.
pub struct Recorder {
    pub address: String,
    frames: Arc<Mutex<Frames>>,
}

impl Recorder {
    pub fn before(target: &str) -> Recorder {
        let target: SocketAddr = target.parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let frames = Arc::new(Mutex::new(Frames::new()));
        let recorded = Arc::clone(&frames);
        thread::spawn(move || {
            let (agent, _) = listener.accept().unwrap();
            let server = TcpStream::connect(target).unwrap();
            let ways =
                [(Side::Agent, agent.try_clone().unwrap(), server.try_clone().unwrap()), (Side::Server, server, agent)];
            for (side, mut from, mut to) in ways {
                let recorded = Arc::clone(&recorded);
                thread::spawn(move || {
                    while let Ok(frame) = read_frame(&mut from) {
                        recorded.lock().unwrap().push((side, frame.clone()));
                        if write_frame(&mut to, &frame).is_err() {
                            break;
                        }
                    }
                    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                });
            }
        });
        Recorder { address, frames }
    }

    pub fn frames(&self) -> Frames {
        self.frames.lock().unwrap().clone()
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

pub fn write_frame(to: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    to.write_all(&[&(frame.len() as u32).to_le_bytes()[..], frame].concat())
}

/// In the file, a byte before each frame names its sender.
pub fn save(frames: &Frames, path: &Path) {
    let mut bytes = Vec::new();
    for (side, frame) in frames {
        bytes.push(if *side == Side::Agent { b'a' } else { b's' });
        write_frame(&mut bytes, frame).unwrap();
    }
    fs::write(path, bytes).unwrap();
}

pub fn load(path: &Path) -> Frames {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut rest = &bytes[..];
    let mut frames = Frames::new();
    while let Some((side, after)) = rest.split_first() {
        rest = after;
        let side = if *side == b'a' { Side::Agent } else { Side::Server };
        frames.push((side, read_frame(&mut rest).unwrap()));
    }
    frames
}
