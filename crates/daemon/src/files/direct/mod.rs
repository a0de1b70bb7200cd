//! Files go directly from the node that has them to the node that needs them (ADR 77).
//!
//! ```text
//! reader -> server:  AskWay { source, file }
//! server -> source:  Expect { reader, file, pass }
//! source -> server:  Expected: Ready { address }, or Busy, Absent, NotListening
//! server -> reader:  Way: At { address, pass }, or Busy, Absent, Through the server
//! then, over TLS, at that address:
//! source: Greeting { versions, nonce }
//! reader: Request { version, pass's number, nonce, offset, proof of the source's nonce }
//! source: Sending { proof of the reader's nonce, time of the file }, or Refused { why }, or Absent
//! source: the bytes of the file from the offset on
//! reader: STORED, once the file is complete and verified
//! ```
//!
//! The server makes the pass for one transfer. Its secret is sent to both nodes over their connections to the server, and never
//! between them: they prove that they have it, bound to the TLS connection, as daemons prove their tokens.

mod port;
mod visit;

pub use port::{FilesAddress, Listen, Port};
pub(crate) use visit::{Visited, receive, visit};

use crate::auth::{self, AuthError};
use crate::channel::Channel;
use crate::frames::{self, Decoder};
use crate::versions::Versions;
use amalgam_core::vocabulary::{NodeId, StoredFile};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fmt;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// How long a pass is good if it is not used.
const PASS_LIFE: Duration = Duration::from_secs(10);
/// Maximum duration of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Maximum silence of the other node during a transfer.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time in which a receiver writes a complete file to its disk.
const TO_DISK: Duration = Duration::from_secs(120);
/// Maximum size of a frame before a transfer.
const FRAME: usize = 4 << 10;
/// The receiver's last byte.
const STORED: u8 = 1;

/// The roles that the proofs name, so that one side's proof cannot serve as the other's.
const READER: &str = "reader of a file";
const SOURCE: &str = "source of a file";

/// A secret for one transfer of one file between two nodes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pass {
    /// Identifies the secret. It is random, and not secret.
    number: u64,
    secret: String,
}

/// A transfer that the server announces to the node with the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Visit {
    pub reader: NodeId,
    pub file: StoredFile,
    pub pass: Pass,
}

/// The answer of the node with the file to the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Expected {
    /// It accepts the pass at this address.
    Ready {
        address: String,
    },
    /// It sends the file to others now. These nodes have received it.
    Busy(Vec<NodeId>),
    Absent,
    /// Other nodes cannot connect to it.
    NotListening,
}

/// How a node gets a file of another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Way {
    At {
        address: String,
        pass: Pass,
    },
    Busy(Vec<NodeId>),
    Absent,
    /// Only through the server.
    Through,
    /// The node does not answer.
    Unreachable,
}

impl Pass {
    /// # Errors
    /// If the system returns no random numbers.
    pub fn new() -> Result<Pass, AuthError> {
        let number = auth::new_nonce()?;
        let number = number.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
        Ok(Pass { number, secret: auth::hex(&auth::new_nonce()?) })
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pass {:016x}", self.number)
    }
}

#[derive(Serialize, Deserialize)]
struct Greeting {
    versions: Versions,
    nonce: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct Request {
    /// The protocol version that both sides use from now on.
    version: u32,
    pass: u64,
    nonce: [u8; 32],
    proof: [u8; 32],
    /// The bytes before it are there.
    offset: u64,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Sending {
        proof: [u8; 32],
        /// The time at which the file was written, in microseconds since 1970.
        written: i64,
    },
    Refused {
        why: String,
    },
    Absent,
}

/// A nonce for a proof that is valid on this connection only.
fn bound(channel: &Channel, nonce: &[u8; 32]) -> io::Result<Vec<u8>> {
    Ok([nonce, &channel.binding()?[..]].concat())
}

async fn write<T: Serialize>(channel: &mut Channel, value: &T) -> io::Result<()> {
    let mut bytes = Vec::new();
    frames::encode(value, &mut bytes).map_err(io::Error::other)?;
    channel.write_all(&bytes).await?;
    channel.flush().await
}

/// Reads one frame, and no byte after it: the bytes of a file may follow.
async fn read<T: DeserializeOwned>(channel: &mut Channel) -> io::Result<T> {
    let invalid = |error: frames::FrameError| io::Error::new(io::ErrorKind::InvalidData, error);
    let mut decoder = Decoder::with_limit(FRAME);
    let mut length = [0; 4];
    channel.read_exact(&mut length).await?;
    decoder.push(&length);
    if let Some(empty) = decoder.next().map_err(invalid)? {
        return Ok(empty);
    }
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    channel.read_exact(&mut body).await?;
    decoder.push(&body);
    decoder.next().map_err(invalid)?.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests;
