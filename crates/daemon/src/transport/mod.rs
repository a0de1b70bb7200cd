//! The connections between daemons: frames over TCP that carry batches of messages. Before the first message, both
//! sides prove that they have the same token, or verify each other's certificates. An agent connects to the server and to each job host, and a job host
//! connects to the server. In a federation, each global master connects to the master of each cluster.
//!
//! ```text
//! listener: Challenge { versions, nonce }
//! joiner:   Hello { version, introduction, nonce, proof of the listener's nonce, program }
//! listener: Accepted { terms, proof of the joiner's nonce } or Refused { why }
//! then both sides send frames:
//!   Mail                  messages between roles
//!   Fetch / Fetched       output of tasks
//!   Feed / Fed            standard input of tasks
//!   AskFile / FilePiece   files of tasks; the server forwards them between nodes that cannot reach each other
//!   AskWay / Way          how a node reaches another one that has a file
//!   Expect / Expected     a node that will fetch a file, from the server to the node that has it
//!   Hosts                 addresses of job hosts, from the server to agents
//!   Certificate           the newest certificate of a daemon, from the server
//!   Keys                  which keys authenticate daemons, from the server to job hosts
//!   Users                 whose tokens are valid at a global master, from the master of a cluster
//!   Shared                the authority and the tokens of a cluster, from its active server to a standby
//!   Log, All, Present     state of a job host, to the server
//! ```
//!
//! Masters and global masters also send each other requests for output, input and files of nodes in other clusters.

mod agents;
mod federation;
mod files;
mod job_hosts;
mod joining;
mod patience;
#[cfg(test)]
mod schema;
mod secrets;
mod server;
mod standbys;
mod ways;
mod wire;

pub use agents::{HostLinks, serve_server};
pub use federation::{ClusterNews, GlobalIntroduction, serve_cluster};
pub use files::{FederatedFiles, Fetched, OtherNodes, RemoteNodes};
pub use job_hosts::serve_as_job_host;
pub use joining::{JoinError, join, redeem};
pub use patience::{Patience, RETRY, join_for_ever, join_patiently};
pub use secrets::Secrets;
use secrets::Validity;
pub use server::{Certifier, Gate, Side, serve_daemons};
pub use standbys::serve_as_standby;
use wire::{Outgoing, Wire};

use crate::auth::{self, AuthError, DaemonRole};
use crate::authority::Certified;
use crate::channel::Channel;
use crate::frames::{self, Decoder};
use crate::shell::Parcel;
use crate::store::ServerId;
use crate::versions::{Versions, WIRE};
use amalgam_core::hosting::Envelope;
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{self, HostId, Instant, NodeId};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Maximum duration of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Maximum duration of a handshake if there are other addresses to try. A stopped process still accepts connections but
/// does not answer.
const HANDSHAKE_AMONG_SEVERAL: Duration = Duration::from_secs(1);
/// Maximum size of a frame in bytes before the peer is authenticated.
const STRANGERS_FRAME: usize = 4 * 1024;

#[derive(Serialize, Deserialize)]
struct Challenge {
    versions: Versions,
    nonce: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct Hello {
    /// The protocol version that both sides use from now on. Both support it.
    version: u32,
    introduction: Introduction,
    nonce: [u8; 32],
    proof: [u8; 32],
    /// The version of the joining side's program, for administrators.
    program: Option<String>,
}

/// The identity of the joining side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Introduction {
    /// A node's agent, to the server, which gives the node its number.
    Node { name: String },
    /// A node's agent, to a job host.
    NodeOf { node: NodeId },
    /// A job host, to the server: its address for agents, and the number of its log's next entry.
    JobHost { host: HostId, address: String, next: u64 },
    /// A global master, to the master of a cluster of its federation.
    Global(Box<GlobalIntroduction>),
    /// A machine with the secret of a join string, to the server, which gives it a certificate for this public key
    /// (`SubjectPublicKeyInfo` in DER).
    Join { role: DaemonRole, name: String, key: Vec<u8> },
    /// A server with this name that stands by, to the active one of its cluster.
    Standby { name: String },
}

#[derive(Serialize, Deserialize)]
enum Answer {
    /// The connection is accepted. `incarnation` identifies it on both sides.
    Accepted {
        incarnation: u64,
        terms: Terms,
        proof: [u8; 32],
        /// The listener sends a frame at least once in this time. If a master with a standby is silent for longer, it
        /// is no longer the active one.
        longest_silence: Option<vocabulary::Duration>,
    },
    Refused {
        why: String,
        obstacle: Obstacle,
    },
}

/// Why a connection is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Obstacle {
    /// The reason may pass without a change on either side, for example an earlier connection whose end is not noticed
    /// yet.
    Passing,
    /// The token is not accepted. An operator may replace it in its file.
    Token,
    /// One of both sides has to be restarted with another configuration or version.
    Lasting,
}

/// The listener's answer to each kind of introduction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Terms {
    Node {
        node: NodeId,
        preset: Box<Preset>,
    },
    NodeOf,
    /// The server has the entries of the job host's log before number `heard`.
    JobHost {
        /// Identifies the server's log.
        server: ServerId,
        preset: Box<Preset>,
        settings: JobManagerSettings,
        heard: u64,
    },
    Global,
    /// The certificate of the new daemon. The connection ends.
    Join(Box<Certified>),
    Standby,
}

/// An accepted connection.
pub struct Joined {
    pub terms: Terms,
    incarnation: u64,
    link: Link,
    /// This machine's address on the connection.
    pub local: Option<IpAddr>,
}

/// The end of a nonce that a program with TLS sends over a connection without it. The proofs cover it, so nobody between
/// both sides can remove it. As in RFC 8446, section 4.1.3.
const HAS_TLS: &[u8; 8] = b"with-TLS";
const DOWNGRADED: &str = "the connection is not encrypted, although both programs can encrypt it; trying again";
/// The newest protocol version without TLS.
const PLAIN: u32 = 32;
/// The protocol version that introduced join strings.
const JOIN_SINCE: u32 = 33;

/// The roles that the proofs name, so that one side's proof cannot serve as the other's.
const JOINING: &str = "agent";
const LISTENING: &str = "server";

// ---- both sides ----------------------------------------------------------------------------------------------------

struct Link {
    reader: ReadHalf<Channel>,
    writer: WriteHalf<Channel>,
    decoder: Decoder,
    /// What only the two ends of this connection know. Proofs contain it.
    binding: Vec<u8>,
    /// The certificates that the peer has presented, not verified.
    peer_chain: Vec<CertificateDer<'static>>,
    /// Protocol version of this connection.
    version: u32,
    /// Maximum silence of the peer. A longer silence ends the connection.
    longest_silence: Option<Duration>,
    /// Maximum silence of this side.
    pulse: Option<Duration>,
    /// Set once the peer has proven that it has a token that may be revoked.
    validity: Option<Validity>,
}

/// An accepted link. Both sides send frames at any time, until it is dropped.
struct Conversation {
    reader: ReadHalf<Channel>,
    decoder: Decoder,
    longest_silence: Option<Duration>,
    writing: JoinHandle<io::Result<()>>,
    /// Ends when the peer's token is no longer valid.
    watching: JoinHandle<()>,
}

impl Link {
    fn new(channel: Channel, limit: usize) -> io::Result<Link> {
        let binding = channel.binding()?;
        let peer_chain = channel.peer_chain();
        let (reader, writer) = tokio::io::split(channel);
        let decoder = Decoder::with_limit(limit);
        Ok(Link {
            reader,
            writer,
            decoder,
            binding,
            peer_chain,
            version: WIRE.oldest,
            longest_silence: None,
            pulse: None,
            validity: None,
        })
    }

    /// The protocol versions of this connection.
    fn versions(&self) -> Versions {
        let newest = if self.binding.is_empty() { PLAIN } else { WIRE.newest };
        Versions { newest, ..WIRE }
    }

    /// A random challenge. Without TLS, it tells a peer that has TLS that both could use it.
    fn nonce(&self) -> Result<[u8; 32], AuthError> {
        let mut nonce = auth::new_nonce()?;
        if self.binding.is_empty() {
            nonce[32 - HAS_TLS.len()..].copy_from_slice(HAS_TLS);
        }
        Ok(nonce)
    }

    /// Whether this connection has no TLS, though both sides could use it. Somebody between them forwards it, or the first
    /// bytes were late.
    fn is_downgraded(&self, nonce: &[u8; 32]) -> bool {
        self.binding.is_empty() && nonce.ends_with(HAS_TLS)
    }

    /// A nonce for a proof that is valid on this connection only.
    fn bound(&self, nonce: &[u8; 32]) -> Vec<u8> {
        [nonce, &self.binding[..]].concat()
    }

    /// Allows large frames, because the peer is authenticated.
    fn trust(&mut self) {
        self.decoder.set_limit(frames::MAX_FRAME);
    }

    async fn write<T: Serialize>(&mut self, value: &T) -> io::Result<()> {
        let mut bytes = Vec::new();
        frames::encode(value, &mut bytes).map_err(io::Error::other)?;
        self.writer.write_all(&bytes).await?;
        self.writer.flush().await
    }

    async fn read<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        read_frame(&mut self.reader, &mut self.decoder).await
    }

    fn converse(
        self,
        parcels: mpsc::UnboundedReceiver<Parcel>,
        wire: mpsc::UnboundedReceiver<Outgoing>,
        clock: impl Fn() -> Instant + Send + 'static,
    ) -> Conversation {
        let Link { reader, writer, decoder, version, longest_silence, pulse, validity, .. } = self;
        let writing = tokio::spawn(write_out(writer, version, parcels, wire, clock, pulse));
        let watching = tokio::spawn(async move {
            match validity {
                Some(validity) => validity.ended().await,
                None => std::future::pending().await,
            }
        });
        Conversation { reader, decoder, longest_silence, writing, watching }
    }
}

impl Conversation {
    /// The next frame of the peer. After an error, the connection cannot be used.
    async fn next(&mut self) -> io::Result<Wire> {
        loop {
            let silence = after(self.longest_silence);
            let next = tokio::select! {
                next = read_frame(&mut self.reader, &mut self.decoder) => next,
                // A connection that cannot be written to is ended, even if frames still arrive.
                _ = &mut self.writing => Err(io::ErrorKind::BrokenPipe.into()),
                () = silence => Err(io::Error::new(io::ErrorKind::TimedOut, "the peer has been silent for too long")),
                _ = &mut self.watching => {
                    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer's token or certificate has been revoked or has expired"))
                }
            };
            match next {
                Ok(Wire::Alive) => {}
                next => return next,
            }
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.writing.abort();
        self.watching.abort();
    }
}

/// Waits for this time; for `None`, never returns.
async fn after(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

async fn read_frame<T: DeserializeOwned>(reader: &mut ReadHalf<Channel>, decoder: &mut Decoder) -> io::Result<T> {
    loop {
        let frame = decoder.next().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if let Some(frame) = frame {
            return Ok(frame);
        }
        poll_fn(|context| fill(reader, decoder, context)).await?;
    }
}

thread_local! {
    /// Buffer for received bytes, which the connections of a thread share. Most of thousands of connections are silent,
    /// and allocating a buffer for each read would cost more than most reads.
    static ARRIVED: RefCell<Box<[u8]>> = RefCell::new(vec![0; 64 * 1024].into());
}

/// Adds the bytes that have arrived to the decoder.
fn fill(reader: &mut ReadHalf<Channel>, decoder: &mut Decoder, context: &mut Context<'_>) -> Poll<io::Result<()>> {
    ARRIVED.with_borrow_mut(|bytes| {
        let mut buffer = ReadBuf::new(bytes);
        Pin::new(reader).poll_read(context, &mut buffer).map(|read| match (read, buffer.filled()) {
            (Ok(()), []) => Err(io::ErrorKind::UnexpectedEof.into()),
            (Ok(()), arrived) => {
                decoder.push(arrived);
                Ok(())
            }
            // A peer that was killed sends no end of TLS.
            (Err(error), _) if error.kind() == io::ErrorKind::UnexpectedEof => Err(error.kind().into()),
            (Err(error), _) => Err(error),
        })
    })
}

/// Writes queued parcels and frames. Parcels that are queued already are written together.
async fn write_out(
    mut writer: WriteHalf<Channel>,
    version: u32,
    mut parcels: mpsc::UnboundedReceiver<Parcel>,
    mut wire: mpsc::UnboundedReceiver<Outgoing>,
    clock: impl Fn() -> Instant,
    pulse: Option<Duration>,
) -> io::Result<()> {
    loop {
        let mut bytes = Vec::new();
        let written = tokio::select! {
            parcel = parcels.recv() => parcel.map(|parcel| encode_parcel(parcel, version, &clock, &mut bytes).map(|()| None)),
            other = wire.recv() => other.map(|outgoing| Ok(Some(outgoing))),
            () = after(pulse) => Some(Ok(Some(Wire::Alive.into()))),
        };
        let Some(mut written) = written.transpose()? else { return Ok(()) };
        if let Some(outgoing) = &mut written
            && outgoing.wire.since() <= version
        {
            outgoing.wire.fit(version);
            frames::encode(&outgoing.wire, &mut bytes).map_err(io::Error::other)?;
        }
        while bytes.len() < 256 * 1024
            && let Ok(more) = parcels.try_recv()
        {
            encode_parcel(more, version, &clock, &mut bytes)?;
        }
        writer.write_all(&bytes).await?;
        writer.flush().await?;
    }
}

fn encode_parcel(parcel: Parcel, version: u32, clock: impl Fn() -> Instant, bytes: &mut Vec<u8>) -> io::Result<()> {
    match parcel {
        Parcel::Mail(mut envelopes) => {
            envelopes.retain(|envelope| {
                let is_known = envelope.message.since() <= version;
                if !is_known {
                    tracing::warn!(to = ?envelope.to, version, "dropped a message that the peer's older version does not support");
                }
                is_known
            });
            encode_mail(envelopes, frames::MAX_FRAME, bytes);
        }
        // Entries are never left out: without one of them, the later ones are useless.
        Parcel::Log { first, entries, .. } => {
            frames::encode(&Wire::Log { now: clock(), first, entries }, bytes).map_err(io::Error::other)?;
        }
    }
    Ok(())
}

/// Encodes a batch of messages. A message that is too long is dropped, and the others are sent.
fn encode_mail(envelopes: Vec<Envelope>, limit: usize, bytes: &mut Vec<u8>) {
    let mail = Wire::Mail(envelopes);
    let Err(error) = frames::encode_within(&mail, limit, bytes) else { return };
    let Wire::Mail(envelopes) = mail else { return };
    match &envelopes[..] {
        [only] => tracing::error!(to = ?only.to, %error, "dropped a message that cannot be sent"),
        _ => envelopes.into_iter().for_each(|envelope| encode_mail(vec![envelope], limit, bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::protocol::{Address, Message, ToMaster};

    #[test]
    fn a_message_that_the_peers_version_does_not_have_is_not_sent() {
        let message = || Message::ToMaster(ToMaster::CannotLaunch { why: "full".to_owned() });
        let sent_to = |version| {
            let envelope = Envelope { from: Address::Node(NodeId(1)), to: Address::Master, message: message() };
            let mut bytes = Vec::new();
            encode_parcel(Parcel::Mail(vec![envelope]), version, || Instant::ZERO, &mut bytes).unwrap();
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            match decoder.next().unwrap() {
                Some(Wire::Mail(envelopes)) => envelopes.len(),
                _ => panic!("expected messages"),
            }
        };
        let since = message().since();
        assert_eq!([since - 1, since, WIRE.newest].map(sent_to), [0, 1, 1]);
    }

    /// The hello of wire version 32 ended with the proof.
    #[test]
    fn a_hello_without_a_program_is_accepted() {
        #[derive(Serialize)]
        struct Before {
            version: u32,
            introduction: Introduction,
            nonce: [u8; 32],
            proof: [u8; 32],
        }
        let introduction = Introduction::NodeOf { node: NodeId(7) };
        let before = Before { version: 32, introduction, nonce: [1; 32], proof: [2; 32] };
        let hello: Hello = crate::encoding::from_slice(&crate::encoding::to_vec(&before).unwrap()).unwrap();
        assert_eq!((hello.version, hello.nonce, hello.proof, hello.program), (32, [1; 32], [2; 32], None));
    }

    #[test]
    fn a_message_that_is_too_long_is_dropped_and_the_others_are_sent() {
        let envelope = |length: usize| {
            let why = "x".repeat(length);
            let message = Message::ToMaster(ToMaster::CannotLaunch { why });
            Envelope { from: Address::Node(NodeId(1)), to: Address::Master, message }
        };
        let mut bytes = Vec::new();
        encode_mail(vec![envelope(1), envelope(500), envelope(2)], 100, &mut bytes);
        let mut decoder = Decoder::default();
        decoder.push(&bytes);
        let mut lengths = Vec::new();
        while let Some(Wire::Mail(envelopes)) = decoder.next().unwrap() {
            lengths.extend(envelopes.into_iter().map(|envelope| match envelope.message {
                Message::ToMaster(ToMaster::CannotLaunch { why }) => why.len(),
                other => panic!("{other:?}"),
            }));
        }
        assert_eq!(lengths, [1, 2]);
    }
}
