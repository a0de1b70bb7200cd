//! Either end of the connection between an agent and its executor. It never blocks.

use crate::frames::{self, Decoder, FrameError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Maximum number of bytes that are read in one turn.
const MOST_PER_TURN: usize = 1 << 20;

#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    decoder: Decoder,
    unsent: Vec<u8>,
}

impl Link {
    /// Creates a link for a stream. `decoder` has the bytes that were already read from it.
    pub fn new(stream: UnixStream, decoder: Decoder) -> io::Result<Link> {
        stream.set_nonblocking(true)?;
        Ok(Link { stream, decoder, unsent: Vec::new() })
    }

    /// Reads the bytes that have arrived. Returns false if the peer has closed the connection.
    pub fn receive(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 16 << 10];
        let mut taken = 0;
        while taken < MOST_PER_TURN {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(length) => {
                    self.decoder.push(&buffer[..length]);
                    taken += length;
                    if length < buffer.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The next complete message of the received bytes.
    // Not an iterator: each call may fail.
    #[allow(clippy::should_implement_trait)]
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        self.decoder.next()
    }

    /// Adds a message to the send buffer.
    pub fn queue<T: Serialize + ?Sized>(&mut self, message: &T) -> Result<(), FrameError> {
        frames::encode(message, &mut self.unsent)
    }

    /// Writes as much of the send buffer as the socket accepts.
    pub fn send(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match self.stream.write(&self.unsent[sent..]) {
                Ok(length) => sent += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.unsent.drain(..sent);
        Ok(())
    }

    /// Number of bytes in the send buffer.
    pub fn unsent(&self) -> usize {
        self.unsent.len()
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_larger_than_the_sockets_buffer_arrives_completely() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut sender = Link::new(ours, Decoder::default()).unwrap();
        let mut receiver = Link::new(theirs, Decoder::default()).unwrap();
        let message: Vec<u32> = (0..2_000_000).collect();
        sender.queue(&message).unwrap();
        sender.send().unwrap();
        assert!(sender.unsent() > 0, "the socket accepted several megabytes at once");
        let received: Vec<u32> = loop {
            assert!(receiver.receive().unwrap());
            if let Some(received) = receiver.next().unwrap() {
                break received;
            }
            sender.send().unwrap();
        };
        assert!(received == message && sender.unsent() == 0);
        drop(sender);
        assert!(!receiver.receive().unwrap());
    }
}
