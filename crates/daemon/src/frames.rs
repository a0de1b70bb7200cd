//! Frames on a byte stream: a length as a little-endian `u32`, then a value of that many bytes (`encoding.rs`).
//!
//! Encoder and decoder work on buffers and do no IO, so the executor's epoll loop and the daemons' transport share
//! them.

use crate::encoding::{self, EncodingError};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum length of a frame that is sent or accepted, in bytes.
pub const MAX_FRAME: usize = 256 << 20;

const LENGTH: usize = 4;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {bytes} bytes is longer than the limit of {limit}")]
    TooLong { bytes: usize, limit: usize },
    #[error("invalid frame: {0}")]
    Malformed(#[from] EncodingError),
    #[error("invalid frame: {0} bytes follow its message")]
    Trailing(usize),
}

/// Appends one frame to `out`, which is unchanged after an error.
pub fn encode<T: Serialize + ?Sized>(message: &T, out: &mut Vec<u8>) -> Result<(), FrameError> {
    encode_within(message, MAX_FRAME, out)
}

/// As [`encode`], with another limit.
pub fn encode_within<T: Serialize + ?Sized>(message: &T, limit: usize, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH]);
    let result = encoding::append(message, out).map_err(FrameError::from);
    let bytes = out.len() - start - LENGTH;
    let result = if bytes <= limit { result } else { Err(FrameError::TooLong { bytes, limit }) };
    match result {
        Ok(()) => out[start..start + LENGTH].copy_from_slice(&(bytes as u32).to_le_bytes()),
        Err(_) => out.truncate(start),
    }
    result
}

/// Splits a byte stream into messages. It allocates memory for received bytes only, not for the length that a frame
/// announces.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Position of the first byte that is not decoded yet.
    start: usize,
    limit: usize,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::with_limit(MAX_FRAME)
    }
}

impl Decoder {
    /// Refuses frames longer than `limit` bytes.
    pub fn with_limit(limit: usize) -> Decoder {
        Decoder { buffer: Vec::new(), start: 0, limit }
    }

    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start * 2 >= self.buffer.len() {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Number of bytes that are not a complete message yet.
    pub fn waiting(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// The next whole message, or `None` until more bytes come. After an error the stream is of no further use.
    // Not an iterator: each call may ask for another type.
    #[allow(clippy::should_implement_trait)]
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        let waiting = &self.buffer[self.start..];
        let Some((length, rest)) = waiting.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let bytes = u32::from_le_bytes(*length) as usize;
        if bytes > self.limit {
            return Err(FrameError::TooLong { bytes, limit: self.limit });
        }
        let Some(body) = rest.get(..bytes) else { return Ok(None) };
        let (message, trailing) = encoding::take_from_slice(body)?;
        if trailing > 0 {
            return Err(FrameError::Trailing(trailing));
        }
        self.start += LENGTH + bytes;
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_however_the_stream_is_split() {
        let sent: Vec<(u32, String)> = (0..50).map(|n| (n, "x".repeat(n as usize * 7))).collect();
        let mut stream = Vec::new();
        for message in &sent {
            encode(message, &mut stream).unwrap();
        }
        for piece in [1, 3, 64, stream.len()] {
            let mut decoder = Decoder::default();
            let mut received = Vec::new();
            for bytes in stream.chunks(piece) {
                decoder.push(bytes);
                while let Some(message) = decoder.next::<(u32, String)>().unwrap() {
                    received.push(message);
                }
            }
            assert_eq!(received, sent);
        }
    }

    #[test]
    fn an_invalid_length_or_content_is_an_error() {
        let mut decoder = Decoder::with_limit(100);
        decoder.push(&101u32.to_le_bytes());
        assert!(matches!(decoder.next::<u8>(), Err(FrameError::TooLong { bytes: 101, limit: 100 })));

        let mut decoder = Decoder::default();
        decoder.push(&[2, 0, 0, 0, 7, 7]);
        assert!(matches!(decoder.next::<u8>(), Err(FrameError::Trailing(1))));

        let mut decoder = Decoder::default();
        decoder.push(&[1, 0, 0, 0, 9]);
        assert!(matches!(decoder.next::<bool>(), Err(FrameError::Malformed(_))));
    }
}
