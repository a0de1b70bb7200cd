//! Either end of the connection between an agent and its executor. It never blocks.

use crate::frames::{self, Decoder, FrameError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// How much is read in one turn.
const MOST_PER_TURN: usize = 1 << 20;

#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    decoder: Decoder,
    unsent: Vec<u8>,
}

impl Link {
    /// Goes on with a stream of which `decoder` has taken in what was read already.
    pub fn new(stream: UnixStream, decoder: Decoder) -> io::Result<Link> {
        stream.set_nonblocking(true)?;
        Ok(Link { stream, decoder, unsent: Vec::new() })
    }

    /// Takes in what has arrived; false when the other end has closed the connection.
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

    /// The next whole message of what was received.
    // Not an iterator: each call may fail.
    #[allow(clippy::should_implement_trait)]
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        self.decoder.next()
    }

    /// Puts a message behind those that wait to be sent.
    pub fn queue<T: Serialize + ?Sized>(&mut self, message: &T) -> Result<(), FrameError> {
        frames::encode(message, &mut self.unsent)
    }

    /// Writes what the socket takes.
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

    /// Bytes that wait for room in the socket.
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
    fn what_the_socket_does_not_take_waits_and_arrives_whole() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut sender = Link::new(ours, Decoder::default()).unwrap();
        let mut receiver = Link::new(theirs, Decoder::default()).unwrap();
        let message: Vec<u32> = (0..2_000_000).collect();
        sender.queue(&message).unwrap();
        sender.send().unwrap();
        assert!(sender.unsent() > 0, "the socket took several megabytes at once");
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
