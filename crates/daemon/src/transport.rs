//! The stream between a server and a node's agent: framed batches of letters over TCP, both sides proven to hold the
//! same token before the first one.
//!
//! ```text
//! server: Challenge { version, nonce }      agent: Hello { version, name, nonce, proof of the server's nonce }
//! server: Accepted { node, epoch, preset, proof of the agent's nonce } or Refused { why }
//! then both: Mail, for what tasks wrote Fetch / Fetched, and for files of tasks AskFile / FilePiece, which the server
//! passes on from one node to another
//! ```

use crate::auth::{self, Tokens};
use crate::backend::read_output;
use crate::files::{FileStore, MOST_SERVED, PIECE, Piece, PieceAsk, Source};
use crate::frames::{self, Decoder};
use crate::shell::{Handle, Input, NodeRoute};
use amalgam_core::hosting::Letter;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::Address;
use amalgam_core::vocabulary::{AttemptId, NodeId, Stream};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Both sides must speak the same; it grows with every change of a message.
const VERSION: u32 = 18;
/// A peer that says nothing for so long before it is accepted is dropped.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The first frame of a stranger is short.
const STRANGERS_FRAME: usize = 4 * 1024;
const FETCH: Duration = Duration::from_secs(10);

#[derive(Serialize, Deserialize)]
struct Challenge {
    version: u32,
    nonce: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct Hello {
    version: u32,
    name: String,
    user: String,
    nonce: [u8; 32],
    proof: [u8; 32],
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Accepted { node: NodeId, epoch: u32, preset: Box<Preset>, proof: [u8; 32] },
    Refused { why: String },
}

#[derive(Serialize, Deserialize)]
enum Wire {
    Mail(Vec<Letter>),
    Fetch {
        id: u64,
        attempt: AttemptId,
        stream: Stream,
        offset: u64,
        limit: u32,
    },
    Fetched {
        id: u64,
        bytes: FileBytes,
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

/// A piece of a file, or why it cannot be read.
type FileBytes = Result<Vec<u8>, String>;

/// Files of nodes that are connected over the network.
#[derive(Default)]
pub struct RemoteNodes {
    peers: Mutex<HashMap<NodeId, mpsc::UnboundedSender<Outgoing>>>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<FileBytes>>>,
    waiting_pieces: Mutex<HashMap<u64, oneshot::Sender<Piece>>>,
    next: AtomicU64,
}

pub enum Fetched {
    Bytes(Vec<u8>),
    Failed(String),
    /// The node is not connected, or did not answer in time.
    Away,
}

impl RemoteNodes {
    pub async fn fetch(&self, node: NodeId, attempt: AttemptId, stream: Stream, offset: u64, limit: u32) -> Fetched {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting).insert(id, answer);
        let sent = lock(&self.peers)
            .get(&node)
            .is_some_and(|peer| peer.send(Wire::Fetch { id, attempt, stream, offset, limit }.into()).is_ok());
        let fetched = if sent { timeout(FETCH, answered).await.ok().and_then(Result::ok) } else { None };
        lock(&self.waiting).remove(&id);
        match fetched {
            Some(Ok(bytes)) => Fetched::Bytes(bytes),
            Some(Err(why)) => Fetched::Failed(why),
            None => Fetched::Away,
        }
    }

    async fn piece(&self, ask: PieceAsk) -> Piece {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting_pieces).insert(id, answer);
        let node = ask.node;
        let ask = Wire::AskFile { id, ask };
        let sent = lock(&self.peers).get(&node).is_some_and(|peer| peer.send(ask.into()).is_ok());
        let piece = if sent { timeout(FETCH, answered).await.ok().and_then(Result::ok) } else { None };
        lock(&self.waiting_pieces).remove(&id);
        piece.unwrap_or(Piece::Unreachable)
    }

    fn answer_piece(&self, id: u64, piece: Piece) {
        if let Some(waiting) = lock(&self.waiting_pieces).remove(&id) {
            let _ = waiting.send(piece);
        }
    }

    fn answer(&self, id: u64, bytes: FileBytes) {
        if let Some(waiting) = lock(&self.waiting).remove(&id) {
            let _ = waiting.send(bytes);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---- the server's side ---------------------------------------------------------------------------------------------

/// Lets agents in for as long as the process lives.
pub async fn serve_agents(
    listener: TcpListener,
    handle: Handle,
    tokens: Arc<Tokens>,
    remote: Arc<RemoteNodes>,
    epoch: u32,
    preset: Preset,
) {
    let incarnations = Arc::new(AtomicU64::new(1));
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Out of file descriptors, most likely; it passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (handle, tokens, remote) = (handle.clone(), Arc::clone(&tokens), Arc::clone(&remote));
        let incarnation = incarnations.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            match timeout(HANDSHAKE, let_in(stream, &handle, &tokens, epoch, preset)).await {
                Ok(Ok(agent)) => serve_agent(agent, handle, remote, incarnation).await,
                Ok(Err(error)) => tracing::warn!(%peer, %error, "an agent was not let in"),
                Err(_) => tracing::warn!(%peer, "an agent did not introduce itself in time"),
            }
        });
    }
}

struct LetIn {
    node: NodeId,
    name: String,
    link: Link,
    letters: mpsc::UnboundedReceiver<Vec<Letter>>,
    route: NodeRoute,
}

async fn let_in(stream: TcpStream, handle: &Handle, tokens: &Tokens, epoch: u32, preset: Preset) -> io::Result<LetIn> {
    let mut link = Link::new(stream, STRANGERS_FRAME)?;
    let nonce = auth::new_nonce().map_err(io::Error::other)?;
    link.write(&Challenge { version: VERSION, nonce }).await?;
    let hello: Hello = link.read().await?;
    let refuse = |why: String| Answer::Refused { why };
    if hello.version != VERSION {
        let why = format!("it speaks version {} and the server {VERSION}; install the same version", hello.version);
        link.write(&refuse(why.clone())).await?;
        return Err(io::Error::other(why));
    }
    let administrators = tokens.administrators().map_err(io::Error::other)?;
    let token = administrators.into_iter().find(|token| auth::verify(token, "agent", &nonce, &hello.proof));
    let Some(token) = token else {
        let why = "its token is not that of an administrator of this server".to_owned();
        link.write(&refuse(why.clone())).await?;
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    };
    let (answer, answered) = oneshot::channel();
    let asked = handle.send(Input::NameNode { name: hello.name.clone(), answer });
    let node = match asked {
        Ok(()) => answered.await.map_err(|_| io::Error::other("the server is stopping"))?,
        Err(_) => return Err(io::Error::other("the server is stopping")),
    };
    let (letters_in, letters) = mpsc::unbounded_channel();
    let Some(route) = handle.routes().add_node(node, letters_in) else {
        let why = format!("a node named `{}` is connected already; give each agent a --name of its own", hello.name);
        link.write(&refuse(why.clone())).await?;
        return Err(io::Error::other(why));
    };
    let proof = auth::prove(&token, "server", &hello.nonce);
    let preset = Box::new(preset);
    link.write(&Answer::Accepted { node, epoch, preset, proof }).await?;
    link.trust();
    Ok(LetIn { node, name: hello.name, link, letters, route })
}

async fn serve_agent(agent: LetIn, handle: Handle, remote: Arc<RemoteNodes>, incarnation: u64) {
    let LetIn { node, name, link, letters, route } = agent;
    let (wire_in, wire) = mpsc::unbounded_channel();
    lock(&remote.peers).insert(node, wire_in.clone());
    if handle.send(Input::NodeConnected { node, incarnation }).is_err() {
        return;
    }
    tracing::info!(%node, name, "a node's agent connected");
    let passed_on = Arc::new(Semaphore::new(MOST_SERVED));
    let mut conversation = link.converse(letters, wire);
    let end = loop {
        match conversation.next().await {
            Ok(Wire::Mail(letters)) => {
                // A node speaks for itself only.
                let own = letters.into_iter().filter(|letter| letter.from == Address::Node(node)).collect();
                if handle.send(Input::Mail(own)).is_err() {
                    return;
                }
            }
            Ok(Wire::Fetched { id, bytes }) => remote.answer(id, bytes),
            Ok(Wire::FilePiece { id, piece }) => remote.answer_piece(id, piece),
            Ok(Wire::AskFile { id, ask }) => {
                // Passed on while others speak; the answer finds its way by the number.
                let (remote, answers, places) = (Arc::clone(&remote), wire_in.clone(), Arc::clone(&passed_on));
                tokio::spawn(answer_in_turn(places, id, async move { remote.piece(ask).await }, answers));
            }
            Ok(Wire::Fetch { .. }) => {}
            Err(error) => break error,
        }
    };
    tracing::info!(%node, name, %end, "a node's agent left");
    lock(&remote.peers).remove(&node);
    let _ = handle.send(Input::NodeDisconnected { node });
    drop(route);
}

// ---- the agent's side ----------------------------------------------------------------------------------------------

/// How an agent reaches its server.
#[derive(Clone, Debug)]
pub struct Upstream {
    pub server: String,
    pub name: String,
    pub token: String,
    pub user: String,
}

/// An accepted connection to the server.
pub struct Joined {
    pub node: NodeId,
    pub epoch: u32,
    /// How nodes behave there.
    pub preset: Preset,
    link: Link,
}

/// What stands between an agent and its server.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("cannot reach the server at {server}: {error}")]
    Unreachable { server: String, error: io::Error },
    #[error("the server at {server} does not let this node in: {why}")]
    Refused { server: String, why: String },
    #[error("what answers at {server} cannot prove that it is our server")]
    Impostor { server: String },
}

impl Upstream {
    pub async fn join(&self) -> Result<Joined, JoinError> {
        let unreachable = |error| JoinError::Unreachable { server: self.server.clone(), error };
        let late = |_| unreachable(io::ErrorKind::TimedOut.into());
        timeout(HANDSHAKE, self.shake_hands()).await.map_err(late)?
    }

    async fn shake_hands(&self) -> Result<Joined, JoinError> {
        let server = &self.server;
        let unreachable = |error| JoinError::Unreachable { server: server.clone(), error };
        let stream = TcpStream::connect(server).await.map_err(unreachable)?;
        let mut link = Link::new(stream, STRANGERS_FRAME).map_err(unreachable)?;
        let challenge: Challenge = link.read().await.map_err(unreachable)?;
        if challenge.version != VERSION {
            let why = format!("it speaks version {} and we {VERSION}; install the same version", challenge.version);
            return Err(JoinError::Refused { server: server.clone(), why });
        }
        let nonce = auth::new_nonce().map_err(|error| unreachable(io::Error::other(error)))?;
        let proof = auth::prove(&self.token, "agent", &challenge.nonce);
        let (name, user) = (self.name.clone(), self.user.clone());
        link.write(&Hello { version: VERSION, name, user, nonce, proof }).await.map_err(unreachable)?;
        match link.read().await.map_err(unreachable)? {
            Answer::Accepted { node, epoch, preset, proof } => {
                if !auth::verify(&self.token, "server", &nonce, &proof) {
                    return Err(JoinError::Impostor { server: server.clone() });
                }
                link.trust();
                Ok(Joined { node, epoch, preset: *preset, link })
            }
            Answer::Refused { why } => Err(JoinError::Refused { server: server.clone(), why }),
        }
    }
}

/// Passes letters between this agent's loop and the server until the connection breaks.
pub async fn serve_server(joined: Joined, handle: &Handle, files: &Path, others: &OtherNodes) -> io::Error {
    let Joined { node, epoch, link, .. } = joined;
    let (letters_in, letters) = mpsc::unbounded_channel();
    let (wire_in, wire) = mpsc::unbounded_channel();
    handle.routes().set_upstream(Some(letters_in));
    if handle.send(Input::MasterConnected { incarnation: u64::from(epoch) }).is_err() {
        return io::Error::other("the agent is stopping");
    }
    let mut conversation = link.converse(letters, wire);
    others.reach_through(Some(wire_in.clone()));
    let end = loop {
        match conversation.next().await {
            Ok(Wire::FilePiece { id, piece }) => others.answer(id, piece),
            Ok(Wire::AskFile { id, ask }) => {
                let (store, answers) = (FileStore::of(files, node), wire_in.clone());
                let served = Arc::clone(&others.served);
                let read = async move {
                    let read = move || piece(&store, &ask);
                    tokio::task::spawn_blocking(read).await.unwrap_or(Piece::Unreachable)
                };
                tokio::spawn(answer_in_turn(served, id, read, answers));
            }
            Ok(Wire::Mail(letters)) => {
                if handle.send(Input::Mail(letters)).is_err() {
                    break io::Error::other("the agent is stopping");
                }
            }
            Ok(Wire::Fetch { id, attempt, stream, offset, limit }) => {
                let (files, answers): (PathBuf, _) = (files.to_owned(), wire_in.clone());
                tokio::task::spawn_blocking(move || {
                    let bytes = read_output(&files, attempt, stream, offset, limit).map_err(|error| error.to_string());
                    let _ = answers.send(Wire::Fetched { id, bytes }.into());
                });
            }
            Ok(Wire::Fetched { .. }) => {}
            Err(error) => break error,
        }
    };
    handle.routes().set_upstream(None);
    others.reach_through(None);
    let _ = handle.send(Input::MasterDisconnected);
    end
}

/// A piece of a file of this node.
fn piece(store: &FileStore, ask: &PieceAsk) -> Piece {
    if ask.is_suspect && !store.verify(&ask.digest) {
        return Piece::Absent;
    }
    match store.read(&ask.digest, ask.offset, ask.limit.min(PIECE)) {
        Ok(Some(bytes)) => Piece::Bytes(bytes),
        // What cannot be read is as good as lost.
        Ok(None) | Err(_) => Piece::Absent,
    }
}

/// Files of other nodes, as an agent reaches them through its server.
pub struct OtherNodes {
    server: watch::Sender<Option<mpsc::UnboundedSender<Outgoing>>>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Piece>>>,
    next: AtomicU64,
    /// Places for those that ask for files of this node.
    served: Arc<Semaphore>,
}

impl Default for OtherNodes {
    fn default() -> OtherNodes {
        OtherNodes {
            server: watch::Sender::new(None),
            waiting: Mutex::default(),
            next: AtomicU64::new(0),
            served: Arc::new(Semaphore::new(MOST_SERVED)),
        }
    }
}

impl OtherNodes {
    fn reach_through(&self, server: Option<mpsc::UnboundedSender<Outgoing>>) {
        self.server.send_replace(server);
        // What was asked on an earlier connection is not answered on this one.
        lock(&self.waiting).clear();
    }

    fn answer(&self, id: u64, piece: Piece) {
        if let Some(waiting) = lock(&self.waiting).remove(&id) {
            let _ = waiting.send(piece);
        }
    }

    /// While there is no server it waits for one: that says nothing of the node.
    async fn ask(&self, ask: PieceAsk) -> Piece {
        let mut connections = self.server.subscribe();
        loop {
            let Ok(server) = connections.wait_for(Option::is_some).await.map(|server| server.clone()) else {
                return Piece::Unreachable;
            };
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            let (answer, answered) = oneshot::channel();
            lock(&self.waiting).insert(id, answer);
            let ask = Wire::AskFile { id, ask };
            if server.is_some_and(|server| server.send(ask.into()).is_ok()) {
                match timeout(FETCH * 2, answered).await {
                    Ok(Ok(piece)) => return piece,
                    Err(_) => {
                        lock(&self.waiting).remove(&id);
                        return Piece::Unreachable;
                    }
                    // The connection broke.
                    Ok(Err(_)) => {}
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Source for OtherNodes {
    fn piece(&self, ask: PieceAsk) -> Pin<Box<dyn Future<Output = Piece> + Send + '_>> {
        Box::pin(self.ask(ask))
    }
}

// ---- both sides ----------------------------------------------------------------------------------------------------

struct Link {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    decoder: Decoder,
}

/// A link on which both sides say what they like, until it is dropped.
struct Conversation {
    reader: OwnedReadHalf,
    decoder: Decoder,
    writing: JoinHandle<io::Result<()>>,
}

impl Link {
    fn new(stream: TcpStream, limit: usize) -> io::Result<Link> {
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        Ok(Link { reader, writer, decoder: Decoder::with_limit(limit) })
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
        letters: mpsc::UnboundedReceiver<Vec<Letter>>,
        wire: mpsc::UnboundedReceiver<Outgoing>,
    ) -> Conversation {
        let Link { reader, writer, decoder } = self;
        Conversation { reader, decoder, writing: tokio::spawn(write_out(writer, letters, wire)) }
    }
}

impl Conversation {
    /// What the peer says next. After an error there is nothing more.
    async fn next(&mut self) -> io::Result<Wire> {
        tokio::select! {
            next = read_frame(&mut self.reader, &mut self.decoder) => next,
            // A connection that takes nothing any more is of no use, even if something still comes.
            _ = &mut self.writing => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        self.writing.abort();
    }
}

async fn read_frame<T: DeserializeOwned>(reader: &mut OwnedReadHalf, decoder: &mut Decoder) -> io::Result<T> {
    let mut bytes = vec![0; 64 * 1024];
    loop {
        let frame = decoder.next().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if let Some(frame) = frame {
            return Ok(frame);
        }
        match reader.read(&mut bytes).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => decoder.push(&bytes[..count]),
        }
    }
}

/// Gets a piece of a file when there is a place for it, which is free again once the piece is written.
async fn answer_in_turn(
    places: Arc<Semaphore>,
    id: u64,
    piece: impl Future<Output = Piece>,
    answers: mpsc::UnboundedSender<Outgoing>,
) {
    let place = places.acquire_owned().await.ok();
    let wire = Wire::FilePiece { id, piece: piece.await };
    let _ = answers.send(Outgoing { wire, _place: place });
}

/// Writes what comes, as much at once as has piled up.
async fn write_out(
    mut writer: OwnedWriteHalf,
    mut letters: mpsc::UnboundedReceiver<Vec<Letter>>,
    mut wire: mpsc::UnboundedReceiver<Outgoing>,
) -> io::Result<()> {
    loop {
        let mut bytes = Vec::new();
        let written = tokio::select! {
            mail = letters.recv() => mail.map(|mail| {
                encode_mail(mail, frames::MAX_FRAME, &mut bytes);
                None
            }),
            other = wire.recv() => other.map(Some),
        };
        let Some(written) = written else { return Ok(()) };
        if let Some(outgoing) = &written {
            frames::encode(&outgoing.wire, &mut bytes).map_err(io::Error::other)?;
        }
        while bytes.len() < 256 * 1024
            && let Ok(more) = letters.try_recv()
        {
            encode_mail(more, frames::MAX_FRAME, &mut bytes);
        }
        writer.write_all(&bytes).await?;
    }
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
    use crate::files::Left;
    use amalgam_core::protocol::{Message, ToMaster};
    use std::fs::{self, FileTimes, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::time::SystemTime;

    #[test]
    fn pieces_that_nobody_takes_are_few() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (answers, mut taken) = mpsc::unbounded_channel();
            let places = Arc::new(Semaphore::new(2));
            for id in 0..5 {
                let piece = async { Piece::Bytes(vec![0]) };
                tokio::spawn(answer_in_turn(Arc::clone(&places), id, piece, answers.clone()));
            }
            let mut written = 0;
            for waiting in [2; 4] {
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                assert_eq!(taken.len(), waiting);
                // As it is written, its place is free.
                drop(taken.recv().await);
                written += 1;
            }
            assert_eq!((written, taken.recv().await.is_some(), taken.len()), (4, true, 0));
        });
    }

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

    #[test]
    fn a_copy_that_somebody_doubts_is_read_as_a_whole_and_goes_if_it_is_damaged() {
        let state = tempfile::tempdir().unwrap();
        let store = FileStore::of(state.path(), NodeId(1));
        fs::write(state.path().join("o"), "abc").unwrap();
        let stored = store.put(&Left::find(state.path(), "o").unwrap(), false).unwrap();
        let said = |is_suspect| {
            piece(&store, &PieceAsk { node: NodeId(1), digest: stored.digest, offset: 0, limit: 9, is_suspect })
        };
        assert_eq!(said(true), Piece::Bytes(b"abc".to_vec()));
        // Damage that no time of change tells of.
        let path = state.path().join("files/1").join(stored.digest.to_string());
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "abd").unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1))).unwrap();
        assert_eq!(said(false), Piece::Bytes(b"abd".to_vec()));
        assert_eq!((said(true), said(false)), (Piece::Absent, Piece::Absent));
        assert!(!store.has(&stored.digest, 3), "its own readers are not given it either");
    }
}
