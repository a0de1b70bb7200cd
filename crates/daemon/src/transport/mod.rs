//! The streams between daemons: framed batches of letters over TCP, both sides proven to hold the same token before the
//! first one. Agents have one with the server and with each process of job managers, and these have one with the server; in a
//! federation each global master has one with the master of each cluster.
//!
//! ```text
//! who listens: Challenge { versions, nonce }   who joins: Hello { version, who it is, nonce, proof of the listener's nonce }
//! who listens: Accepted { terms, proof of the other's nonce } or Refused { why }
//! then both: Mail; with the server Fetch / Fetched for what tasks wrote, AskFile / FilePiece for files of tasks, which it
//! passes on from one node to another, and Hosts, where job managers are; to it Log and All, what these wrote down. Masters and
//! global masters ask each other for what is at nodes of other clusters
//! ```

mod agents;
mod federation;
mod files;
mod job_hosts;
mod patience;
#[cfg(test)]
mod schema;
mod secrets;
mod server;

pub use agents::{HostLinks, serve_server};
pub use federation::{GlobalIntroduction, serve_cluster};
pub use files::{FederatedFiles, Fetched, OtherNodes, RemoteNodes};
pub use job_hosts::serve_as_job_host;
pub use patience::{Patience, RETRY, join_for_ever, join_patiently};
pub use secrets::Secrets;
pub use server::{Gate, Side, serve_daemons};

use crate::auth::{self, AuthError};
use crate::files::{Piece, PieceAsk};
use crate::frames::{self, Decoder};
use crate::input::{InputPart, Taken};
use crate::server::ServerId;
use crate::shell::Parcel;
use crate::store::Entry;
use crate::versions::{Versions, WIRE};
use amalgam_core::hosting::{Letter, Present};
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::preset::Preset;
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{self, AttemptId, HostId, Instant, NodeId, Stream};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::cell::RefCell;
use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A peer that says nothing for so long before it is accepted is dropped.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The same where others may be asked instead. One whose process is paused takes connections, and says nothing.
const HANDSHAKE_AMONG_SEVERAL: Duration = Duration::from_secs(1);
/// The first frame of a stranger is short.
const STRANGERS_FRAME: usize = 4 * 1024;

#[derive(Serialize, Deserialize)]
struct Challenge {
    versions: Versions,
    nonce: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct Hello {
    /// The one that both sides use from here on, of those that both know.
    version: u32,
    introduction: Introduction,
    nonce: [u8; 32],
    proof: [u8; 32],
}

/// Who wants to be let in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Introduction {
    /// A node's agent, at the server, which gives it its number.
    Node { name: String },
    /// The same at a process of job managers.
    NodeOf { node: NodeId },
    /// A process of job managers, at the server: where agents reach it, and the number of the next entry of its log.
    JobHost { host: HostId, address: String, next: u64 },
    /// A global master, at the master of a cluster of its federation.
    Global(Box<GlobalIntroduction>),
}

#[derive(Serialize, Deserialize)]
enum Answer {
    /// The number is that by which both sides know the connection.
    Accepted {
        incarnation: u64,
        terms: Terms,
        proof: [u8; 32],
        /// Whoever listens says something more often than this for as long as it lives. A master that has a standby is not the
        /// active one any more when it was silent for so long.
        longest_silence: Option<vocabulary::Duration>,
    },
    Refused {
        why: String,
        obstacle: Obstacle,
    },
}

/// What stands in the way of one that is not let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Obstacle {
    /// It goes away by itself, as a connection before this one that still looks good.
    Passing,
    /// The token: an operator may put a fresh one where it is read.
    Token,
    /// One of both sides has to be started otherwise.
    Lasting,
}

/// What the joining side is told, by how it introduced itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Terms {
    Node {
        node: NodeId,
        preset: Box<Preset>,
    },
    NodeOf,
    /// The server has what the host's log holds before this entry.
    JobHost {
        /// Tells the server's log from all others.
        server: ServerId,
        preset: Box<Preset>,
        settings: JobManagerSettings,
        heard: u64,
    },
    Global,
}

#[derive(Serialize, Deserialize)]
enum Wire {
    /// Who says this lives.
    Alive,
    Mail(Vec<Letter>),
    /// For a piece of what an attempt wrote at this node.
    Fetch {
        id: u64,
        node: NodeId,
        attempt: AttemptId,
        stream: Stream,
        offset: u64,
        limit: u32,
    },
    Fetched {
        id: u64,
        fetched: Fetched,
    },
    /// A part of the standard input of an attempt at this node.
    Feed {
        id: u64,
        node: NodeId,
        attempt: AttemptId,
        part: InputPart,
    },
    Fed {
        id: u64,
        taken: Taken,
    },
    /// For a piece of a file of another node.
    AskFile {
        id: u64,
        ask: PieceAsk,
    },
    FilePiece {
        id: u64,
        piece: Piece,
    },
    /// Where agents reach processes of job managers, as far as these have said.
    Hosts(Vec<(HostId, String)>),
    /// What a process of job managers has on disk from entry `first` on, and what its clock says now.
    Log {
        now: Instant,
        first: u64,
        entries: Vec<Entry>,
    },
    /// What it knows besides, told once it has told what its log holds.
    Present {
        now: Instant,
        present: Present,
    },
    /// All that it knows before entry `next`.
    All {
        now: Instant,
        next: u64,
        changes: Vec<Change>,
    },
}

impl Wire {
    /// The version of the wire that brought this message.
    fn since(&self) -> u32 {
        match self {
            Wire::Alive
            | Wire::Mail(_)
            | Wire::Fetch { .. }
            | Wire::Fetched { .. }
            | Wire::Feed { .. }
            | Wire::Fed { .. }
            | Wire::AskFile { .. }
            | Wire::FilePiece { .. }
            | Wire::Hosts(_)
            | Wire::Log { .. }
            | Wire::Present { .. }
            | Wire::All { .. } => 32,
        }
    }
}

/// What is to be written, with the place that it takes until it is: what nobody reads must not fill the memory.
struct Outgoing {
    wire: Wire,
    _place: Option<OwnedSemaphorePermit>,
}

impl From<Wire> for Outgoing {
    fn from(wire: Wire) -> Outgoing {
        Outgoing { wire, _place: None }
    }
}

// ---- joining -------------------------------------------------------------------------------------------------------

/// An accepted connection.
pub struct Joined {
    pub terms: Terms,
    incarnation: u64,
    link: Link,
}

/// What stands between a daemon and the one that it wants to join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("cannot reach {address}: {error}")]
    Unreachable { address: String, error: io::Error },
    #[error("{address} does not let us in: {why}")]
    Refused { address: String, why: String, obstacle: Obstacle },
    #[error("what answers at {address} cannot prove that it has our token")]
    Impostor { address: String },
    #[error(transparent)]
    Auth(#[from] AuthError),
}

impl JoinError {
    pub(crate) fn lasting(address: &str, why: String) -> JoinError {
        JoinError::Refused { address: address.to_owned(), why, obstacle: Obstacle::Lasting }
    }

    /// Whether nothing that happens elsewhere can help.
    pub fn is_lasting(&self) -> bool {
        matches!(self, JoinError::Refused { obstacle: Obstacle::Lasting, .. })
    }

    fn is_of_network(&self) -> bool {
        matches!(self, JoinError::Unreachable { .. } | JoinError::Refused { obstacle: Obstacle::Passing, .. })
    }
}

/// Joins the daemon that listens there. Where that is one of several, as an active master and its standbys, their addresses are
/// separated by commas, and the first that answers is joined.
///
/// # Errors
/// When it cannot be reached, does not let us in, or cannot prove that it holds the same token.
pub async fn join(
    addresses: &str,
    secrets: &Secrets,
    introduction: impl Fn() -> Introduction,
) -> Result<Joined, JoinError> {
    let patience = if addresses.contains(',') { HANDSHAKE_AMONG_SEVERAL } else { HANDSHAKE };
    let mut errors = Vec::new();
    for address in addresses.split(',').map(str::trim) {
        let late = |_| {
            let error = io::Error::new(io::ErrorKind::TimedOut, "it says nothing; is this its address for agents?");
            JoinError::Unreachable { address: address.to_owned(), error }
        };
        match timeout(patience, shake_hands(address, secrets, introduction())).await.map_err(late).flatten() {
            Err(JoinError::Unreachable { error, .. }) => errors.push(error),
            answer => return answer,
        }
    }
    let error = match errors.pop() {
        Some(only) if errors.is_empty() => only,
        last => {
            let all: Vec<String> = errors.iter().chain(&last).map(io::Error::to_string).collect();
            io::Error::other(all.join("; "))
        }
    };
    Err(JoinError::Unreachable { address: addresses.to_owned(), error })
}

async fn shake_hands(address: &str, secrets: &Secrets, introduction: Introduction) -> Result<Joined, JoinError> {
    let unreachable = |error| JoinError::Unreachable { address: address.to_owned(), error };
    let token = secrets.own()?;
    let stream = TcpStream::connect(address).await.map_err(unreachable)?;
    let mut link = Link::new(stream, STRANGERS_FRAME).map_err(unreachable)?;
    let challenge: Challenge = link.read().await.map_err(unreachable)?;
    let Some(version) = WIRE.common(challenge.versions) else {
        let why = format!("it speaks {} and we {WIRE}; install programs of the same version", challenge.versions);
        return Err(JoinError::lasting(address, why));
    };
    let nonce = auth::new_nonce()?;
    let proof = auth::prove(&token, JOINING, &challenge.nonce);
    link.write(&Hello { version, introduction, nonce, proof }).await.map_err(unreachable)?;
    match link.read().await.map_err(unreachable)? {
        Answer::Accepted { incarnation, terms, proof, longest_silence } => {
            if !auth::verify(&token, LISTENING, &nonce, &proof) {
                return Err(JoinError::Impostor { address: address.to_owned() });
            }
            link.trust();
            link.version = version;
            link.longest_silence = longest_silence.map(|longest| Duration::from_micros(longest.as_micros()));
            Ok(Joined { terms, incarnation, link })
        }
        Answer::Refused { why, obstacle } => Err(JoinError::Refused { address: address.to_owned(), why, obstacle }),
    }
}

/// What each side proves to hold the token for.
const JOINING: &str = "agent";
const LISTENING: &str = "server";

// ---- both sides ----------------------------------------------------------------------------------------------------

struct Link {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    decoder: Decoder,
    /// Of the messages that the peer understands.
    version: u32,
    /// Of the other side; a longer one is the end of the connection.
    longest_silence: Option<Duration>,
    /// On our side nothing is as long as this.
    pulse: Option<Duration>,
}

/// A link on which both sides say what they like, until it is dropped.
struct Conversation {
    reader: OwnedReadHalf,
    decoder: Decoder,
    longest_silence: Option<Duration>,
    writing: JoinHandle<io::Result<()>>,
}

impl Link {
    fn new(stream: TcpStream, limit: usize) -> io::Result<Link> {
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        let decoder = Decoder::with_limit(limit);
        Ok(Link { reader, writer, decoder, version: WIRE.oldest, longest_silence: None, pulse: None })
    }

    /// The peer has proven itself: it may send whole batches.
    fn trust(&mut self) {
        self.decoder.set_limit(frames::MAX_FRAME);
    }

    async fn write<T: Serialize>(&mut self, value: &T) -> io::Result<()> {
        let mut bytes = Vec::new();
        frames::encode(value, &mut bytes).map_err(io::Error::other)?;
        self.writer.write_all(&bytes).await
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
        let Link { reader, writer, decoder, version, longest_silence, pulse } = self;
        let writing = tokio::spawn(write_out(writer, version, parcels, wire, clock, pulse));
        Conversation { reader, decoder, longest_silence, writing }
    }
}

impl Conversation {
    /// What the peer says next. After an error there is nothing more.
    async fn next(&mut self) -> io::Result<Wire> {
        loop {
            let silence = after(self.longest_silence);
            let next = tokio::select! {
                next = read_frame(&mut self.reader, &mut self.decoder) => next,
                // A connection that takes nothing any more is of no use, even if something still comes.
                _ = &mut self.writing => Err(io::ErrorKind::BrokenPipe.into()),
                () = silence => Err(io::Error::new(io::ErrorKind::TimedOut, "it is silent")),
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
    }
}

/// Never, where no time is given.
async fn after(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

async fn read_frame<T: DeserializeOwned>(reader: &mut OwnedReadHalf, decoder: &mut Decoder) -> io::Result<T> {
    loop {
        let frame = decoder.next().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if let Some(frame) = frame {
            return Ok(frame);
        }
        reader.readable().await?;
        fill(reader, decoder)?;
    }
}

thread_local! {
    /// What has arrived, on its way to a decoder. The connections of a thread share it: of thousands most are silent, and to make
    /// one for each read would cost more than most reads.
    static ARRIVED: RefCell<Box<[u8]>> = RefCell::new(vec![0; 64 * 1024].into());
}

/// Takes in what has arrived.
fn fill(reader: &OwnedReadHalf, decoder: &mut Decoder) -> io::Result<()> {
    ARRIVED.with_borrow_mut(|bytes| match reader.try_read(bytes) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => {
            decoder.push(&bytes[..count]);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    })
}

/// Writes what comes, as much at once as has piled up.
async fn write_out(
    mut writer: OwnedWriteHalf,
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
        let Some(written) = written.transpose()? else { return Ok(()) };
        if let Some(outgoing) = &written
            && outgoing.wire.since() <= version
        {
            frames::encode(&outgoing.wire, &mut bytes).map_err(io::Error::other)?;
        }
        while bytes.len() < 256 * 1024
            && let Ok(more) = parcels.try_recv()
        {
            encode_parcel(more, version, &clock, &mut bytes)?;
        }
        writer.write_all(&bytes).await?;
    }
}

fn encode_parcel(parcel: Parcel, version: u32, clock: impl Fn() -> Instant, bytes: &mut Vec<u8>) -> io::Result<()> {
    match parcel {
        Parcel::Mail(mut letters) => {
            letters.retain(|letter| {
                let is_known = letter.message.since() <= version;
                if !is_known {
                    tracing::warn!(to = ?letter.to, version, "the peer is of an older version, and does not know this message");
                }
                is_known
            });
            encode_mail(letters, frames::MAX_FRAME, bytes);
        }
        // Without one entry the next ones mean nothing.
        Parcel::Log { first, entries, .. } => {
            frames::encode(&Wire::Log { now: clock(), first, entries }, bytes).map_err(io::Error::other)?;
        }
    }
    Ok(())
}

/// Letters that are too long are left out, for others go the same way.
fn encode_mail(letters: Vec<Letter>, limit: usize, bytes: &mut Vec<u8>) {
    let mail = Wire::Mail(letters);
    let Err(error) = frames::encode_within(&mail, limit, bytes) else { return };
    let Wire::Mail(letters) = mail else { return };
    match &letters[..] {
        [only] => tracing::error!(to = ?only.to, %error, "a letter is lost that cannot be sent"),
        _ => letters.into_iter().for_each(|letter| encode_mail(vec![letter], limit, bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::protocol::{Address, Message, ToMaster};

    #[test]
    fn a_letter_that_is_too_long_does_not_hold_up_the_others() {
        let letter = |length: usize| {
            let why = "x".repeat(length);
            let message = Message::ToMaster(ToMaster::CannotLaunch { why });
            Letter { from: Address::Node(NodeId(1)), to: Address::Master, message }
        };
        let mut bytes = Vec::new();
        encode_mail(vec![letter(1), letter(500), letter(2)], 100, &mut bytes);
        let mut decoder = Decoder::default();
        decoder.push(&bytes);
        let mut lengths = Vec::new();
        while let Some(Wire::Mail(letters)) = decoder.next().unwrap() {
            lengths.extend(letters.into_iter().map(|letter| match letter.message {
                Message::ToMaster(ToMaster::CannotLaunch { why }) => why.len(),
                other => panic!("{other:?}"),
            }));
        }
        assert_eq!(lengths, [1, 2]);
    }
}
