//! Requests for output, input and files of tasks on other nodes. They are forwarded by the server.

use super::ways::Unreachable;
use super::{Outgoing, Wire};
use crate::executor::{OutputRemoved, read_output};
use crate::files::direct::{Expected, Port, Way};
use crate::files::{FileStore, Incoming, MOST_SERVED, PIECE, Piece, PieceAsk, Rest, Source};
use crate::input::{InputPart, Inputs, Taken};
use crate::shell::{FileTraffic, Handle};
use crate::versions::WIRE;
use amalgam_core::vocabulary::{AttemptId, ClusterId, GlobalId, HostId, NodeId, Seat, StoredFile, Stream};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout;

pub(super) const FETCH: Duration = Duration::from_secs(10);

/// Connections of a server or a global master through which nodes are reached, and the addresses of a server's job
/// hosts.
#[derive(Default)]
pub struct RemoteNodes {
    /// The process's place in a federation.
    seat: Option<Seat>,
    /// The executor's state directory, if this process has nodes.
    local_files: Option<PathBuf>,
    /// Addresses for agents of the job hosts that have connected since the server started.
    pub(super) job_hosts: watch::Sender<BTreeMap<HostId, String>>,
    /// With the version of the protocol.
    pub(super) peers: Mutex<BTreeMap<Via, (u32, mpsc::UnboundedSender<Outgoing>)>>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Fetched>>>,
    waiting_pieces: Mutex<HashMap<u64, oneshot::Sender<Piece>>>,
    waiting_inputs: Mutex<HashMap<u64, oneshot::Sender<Taken>>>,
    pub(super) waiting_expected: Mutex<HashMap<u64, oneshot::Sender<Expected>>>,
    pub(super) next: AtomicU64,
    /// Inputs of attempts on nodes in this process.
    inputs: Inputs,
    pub(super) traffic: FileTraffic,
}

/// The peer that is asked for data of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Via {
    Node(NodeId),
    /// In a global master: the master of the node's cluster.
    Cluster(ClusterId),
    /// In a cluster's master: a global master, for a node of another cluster.
    Global(GlobalId),
}

/// A piece of an attempt's output, or why it is not available.
#[derive(Debug, Serialize, Deserialize)]
pub enum Fetched {
    Bytes(#[serde(with = "amalgam_core::vocabulary::byte_string")] Vec<u8>),
    Failed(String),
    /// The node is not connected, or did not answer in time.
    Away,
    /// The output was removed, because that of all ended tasks exceeded the limit of the node.
    Removed,
}

impl From<io::Result<Vec<u8>>> for Fetched {
    fn from(read: io::Result<Vec<u8>>) -> Fetched {
        match read {
            Ok(bytes) => Fetched::Bytes(bytes),
            Err(error) if error.get_ref().is_some_and(|cause| cause.is::<OutputRemoved>()) => Fetched::Removed,
            Err(error) => Fetched::Failed(error.to_string()),
        }
    }
}

impl Fetched {
    /// See [`super::Wire::fit`].
    pub(super) fn fit(&mut self, version: u32) {
        if version < 33 && matches!(self, Fetched::Removed) {
            *self = Fetched::Failed(OutputRemoved.to_string());
        }
    }
}

impl RemoteNodes {
    pub fn new(seat: Option<Seat>, local_files: Option<PathBuf>, traffic: FileTraffic) -> RemoteNodes {
        RemoteNodes { seat, local_files, traffic, ..RemoteNodes::default() }
    }

    /// A piece of an attempt's output on any node, in this process or connected.
    pub async fn output(
        &self,
        handle: &Handle,
        node: NodeId,
        attempt: AttemptId,
        stream: Stream,
        offset: u64,
        limit: u32,
    ) -> Fetched {
        let Some(files) = self.files_of(handle, node).await else {
            return self.fetch(node, attempt, stream, offset, limit).await;
        };
        let read = move || read_output(&files, attempt, stream, offset, limit);
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| Err(error.into())).into()
    }

    /// A piece of a file on any node, in this process or connected.
    pub(crate) async fn any_piece(&self, handle: &Handle, ask: PieceAsk) -> Piece {
        let Some(files) = self.files_of(handle, ask.node).await else { return self.piece(ask).await };
        let read = move || piece(&FileStore::of(&files, ask.node), &ask);
        tokio::task::spawn_blocking(read).await.unwrap_or(Piece::Unreachable)
    }

    /// Sends a part of an attempt's input to any node, in this process or connected.
    pub(crate) async fn feed(&self, handle: &Handle, node: NodeId, attempt: AttemptId, part: InputPart) -> Taken {
        if let Some(files) = self.files_of(handle, node).await {
            return self.inputs.take(&files, attempt, &part).await;
        }
        let id = self.fresh_id();
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting_inputs).insert(id, answer);
        let feed = Wire::Feed { id, node, attempt, part };
        let sent = self.toward(node).is_some_and(|peer| peer.send(feed.into()).is_ok());
        let taken = if sent { timeout(FETCH, answered).await.ok().and_then(Result::ok) } else { None };
        lock(&self.waiting_inputs).remove(&id);
        taken.unwrap_or(Taken::Away)
    }

    pub(super) fn answer_input(&self, id: u64, taken: Taken) {
        if let Some(waiting) = lock(&self.waiting_inputs).remove(&id) {
            let _ = waiting.send(taken);
        }
    }

    async fn files_of(&self, handle: &Handle, node: NodeId) -> Option<PathBuf> {
        let files = self.local_files.clone()?;
        handle.ask(move |roles, _| roles.nodes.contains(node)).await.is_ok_and(|is_local| is_local).then_some(files)
    }

    /// The connection through which the node is reached, if there is one.
    fn toward(&self, node: NodeId) -> Option<mpsc::UnboundedSender<Outgoing>> {
        let peers = lock(&self.peers);
        let via = match self.seat {
            Some(Seat::Global(federation, _)) => Via::Cluster(federation.cluster_of(node)),
            Some(Seat::Cluster(federation, own)) if federation.cluster_of(node) != own => {
                *peers.keys().find(|via| matches!(via, Via::Global(_)))?
            }
            _ => Via::Node(node),
        };
        peers.get(&via).map(|(_, peer)| peer.clone())
    }

    async fn fetch(&self, node: NodeId, attempt: AttemptId, stream: Stream, offset: u64, limit: u32) -> Fetched {
        let id = self.fresh_id();
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting).insert(id, answer);
        let ask = Wire::Fetch { id, node, attempt, stream, offset, limit };
        let sent = self.toward(node).is_some_and(|peer| peer.send(ask.into()).is_ok());
        let fetched = if sent { timeout(FETCH, answered).await.ok().and_then(Result::ok) } else { None };
        lock(&self.waiting).remove(&id);
        fetched.unwrap_or(Fetched::Away)
    }

    pub(super) fn add(&self, node: NodeId, version: u32, peer: mpsc::UnboundedSender<Outgoing>) {
        lock(&self.peers).insert(Via::Node(node), (version, peer));
    }

    pub(super) fn remove(&self, node: NodeId) {
        lock(&self.peers).remove(&Via::Node(node));
    }

    pub(super) fn add_cluster(&self, cluster: ClusterId, peer: mpsc::UnboundedSender<Outgoing>) {
        lock(&self.peers).insert(Via::Cluster(cluster), (WIRE.oldest, peer));
    }

    pub(super) fn remove_cluster(&self, cluster: ClusterId) {
        lock(&self.peers).remove(&Via::Cluster(cluster));
    }

    pub(super) fn add_global(&self, global: GlobalId, peer: mpsc::UnboundedSender<Outgoing>) {
        lock(&self.peers).insert(Via::Global(global), (WIRE.oldest, peer));
    }

    pub(super) fn remove_global(&self, global: GlobalId) {
        lock(&self.peers).remove(&Via::Global(global));
    }

    pub(super) async fn piece(&self, ask: PieceAsk) -> Piece {
        let id = self.fresh_id();
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting_pieces).insert(id, answer);
        let node = ask.node;
        let ask = Wire::AskFile { id, ask };
        let sent = self.toward(node).is_some_and(|peer| peer.send(ask.into()).is_ok());
        let piece = if sent { timeout(FETCH, answered).await.ok().and_then(Result::ok) } else { None };
        lock(&self.waiting_pieces).remove(&id);
        piece.unwrap_or(Piece::Unreachable)
    }

    pub(super) fn answer_piece(&self, id: u64, piece: Piece) {
        if let Some(waiting) = lock(&self.waiting_pieces).remove(&id) {
            let _ = waiting.send(piece);
        }
    }

    pub(super) fn answer(&self, id: u64, fetched: Fetched) {
        if let Some(waiting) = lock(&self.waiting).remove(&id) {
            let _ = waiting.send(fetched);
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads a piece of a file of this node.
pub(super) fn piece(store: &FileStore, ask: &PieceAsk) -> Piece {
    let is_as_it_was = if ask.is_suspect { store.verify(&ask.digest) } else { Ok(true) };
    let read = is_as_it_was.and_then(|is_as_it_was| match is_as_it_was {
        true => store.read(&ask.digest, ask.offset, ask.limit.min(PIECE)),
        false => Ok(None),
    });
    match read {
        Ok(Some(bytes)) => match store.written(&ask.digest).filter(|_| ask.offset == 0) {
            Some(written) => Piece::first(bytes, written),
            None => Piece::Bytes(bytes),
        },
        Ok(None) => Piece::Absent,
        Err(error) => {
            // The file may be readable later; the reader tries again a limited number of times.
            tracing::warn!(file = %ask.digest, "cannot read the file: {error}");
            Piece::Unreachable
        }
    }
}

/// Files of all nodes of a federation, for a server with nodes of its own.
pub struct FederatedFiles {
    pub remote: Arc<RemoteNodes>,
    pub handle: Handle,
}

impl Source for FederatedFiles {
    fn piece(&self, ask: PieceAsk) -> Pin<Box<dyn Future<Output = Piece> + Send + '_>> {
        Box::pin(self.remote.any_piece(&self.handle, ask))
    }
}

/// Files of other nodes, for an agent. They are fetched from their nodes, or requested from the server.
pub struct OtherNodes {
    server: watch::Sender<Option<Server>>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<Piece>>>,
    pub(super) waiting_ways: Mutex<HashMap<u64, oneshot::Sender<Way>>>,
    pub(super) unreachable: Mutex<Unreachable>,
    next: AtomicU64,
    /// Limits the number of pieces of this node's files that are read and sent at once.
    pub(super) served: Arc<Semaphore>,
    /// Where other nodes fetch this node's files.
    pub port: Option<Arc<Port>>,
    /// Inputs of attempts on this node.
    pub(super) inputs: Inputs,
}

/// The connection to the server.
#[derive(Clone)]
pub(super) struct Server {
    pub version: u32,
    pub frames: mpsc::UnboundedSender<Outgoing>,
}

impl Default for OtherNodes {
    fn default() -> OtherNodes {
        OtherNodes {
            server: watch::Sender::new(None),
            waiting: Mutex::default(),
            waiting_ways: Mutex::default(),
            unreachable: Mutex::default(),
            next: AtomicU64::new(0),
            served: Arc::new(Semaphore::new(MOST_SERVED)),
            port: None,
            inputs: Inputs::default(),
        }
    }
}

impl OtherNodes {
    /// For a node whose files other nodes fetch at this port.
    pub fn with_port(port: Arc<Port>) -> OtherNodes {
        OtherNodes { port: Some(port), ..OtherNodes::default() }
    }

    pub(super) fn reach_through(&self, server: Option<Server>) {
        self.server.send_replace(server);
        // Requests on an earlier connection are not answered on this one.
        lock(&self.waiting).clear();
        lock(&self.waiting_ways).clear();
    }

    pub(super) fn answer(&self, id: u64, piece: Piece) {
        if let Some(waiting) = lock(&self.waiting).remove(&id) {
            let _ = waiting.send(piece);
        }
    }

    /// Sends a request to the server. Without a connection, it waits for one, because the node itself may be reachable. `None` if
    /// there is no answer.
    ///
    /// # Errors
    /// If the server does not know such requests.
    pub(super) async fn request<T>(
        &self,
        waiting: &Mutex<HashMap<u64, oneshot::Sender<T>>>,
        is_known: impl Fn(&Server) -> bool,
        ask: impl Fn(u64) -> Wire,
    ) -> Result<Option<T>, ()> {
        let mut connections = self.server.subscribe();
        loop {
            let Ok(server) = connections.wait_for(Option::is_some).await.map(|server| server.clone()) else {
                return Ok(None);
            };
            if !server.as_ref().is_some_and(&is_known) {
                return Err(());
            }
            let id = self.next.fetch_add(1, Ordering::Relaxed);
            let (answer, answered) = oneshot::channel();
            lock(waiting).insert(id, answer);
            if server.is_some_and(|server| server.frames.send(ask(id).into()).is_ok()) {
                match timeout(FETCH * 2, answered).await {
                    Ok(Ok(answer)) => return Ok(Some(answer)),
                    Err(_) => {
                        lock(waiting).remove(&id);
                        return Ok(None);
                    }
                    // The connection broke.
                    Ok(Err(_)) => {}
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn ask(&self, ask: PieceAsk) -> Piece {
        let piece = self.request(&self.waiting, |_| true, |id| Wire::AskFile { id, ask }).await;
        piece.ok().flatten().unwrap_or(Piece::Unreachable)
    }
}

impl Source for OtherNodes {
    fn piece(&self, ask: PieceAsk) -> Pin<Box<dyn Future<Output = Piece> + Send + '_>> {
        Box::pin(self.ask(ask))
    }

    fn rest(
        &self,
        file: StoredFile,
        from: NodeId,
        incoming: Incoming,
    ) -> Pin<Box<dyn Future<Output = Rest> + Send + '_>> {
        Box::pin(self.fetch_rest(file, from, incoming))
    }
}

/// Answers a request once there is a permit. The permit is released when the answer has been written.
pub(super) async fn answer_in_turn<T>(
    places: Arc<Semaphore>,
    answer: impl Future<Output = T>,
    frame: impl FnOnce(T) -> Wire,
    answers: mpsc::UnboundedSender<Outgoing>,
) {
    let place = places.acquire_owned().await.ok();
    let wire = frame(answer.await);
    let _ = answers.send(Outgoing { wire, _place: place });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Left;
    use std::fs::{self, FileTimes, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_number_of_queued_pieces_is_limited() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (answers, mut taken) = mpsc::unbounded_channel();
            let places = Arc::new(Semaphore::new(2));
            for id in 0..5 {
                let piece = async { Piece::Bytes(vec![0]) };
                let frame = move |piece| Wire::FilePiece { id, piece };
                tokio::spawn(answer_in_turn(Arc::clone(&places), piece, frame, answers.clone()));
            }
            let mut written = 0;
            for waiting in [2; 4] {
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
                assert_eq!(taken.len(), waiting);
                // Dropping the frame, as after it is written, releases its permit.
                drop(taken.recv().await);
                written += 1;
            }
            assert_eq!((written, taken.recv().await.is_some(), taken.len()), (4, true, 0));
        });
    }

    #[test]
    fn a_suspect_copy_is_verified_and_removed_if_it_is_damaged() {
        let state = tempfile::tempdir().unwrap();
        let store = FileStore::of(state.path(), NodeId(1));
        fs::write(state.path().join("o"), "abc").unwrap();
        let stored = store.put(&Left::find(state.path(), "o").unwrap(), false).unwrap();
        let text = |is_suspect| {
            piece(&store, &PieceAsk { node: NodeId(1), digest: stored.digest, offset: 0, limit: 9, is_suspect })
        };
        let written = store.written(&stored.digest).unwrap();
        assert_eq!(text(true), Piece::first(b"abc".to_vec(), written));
        // Damage that the time of modification does not show.
        let path = state.path().join("files/1").join(stored.digest.to_string());
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "abd").unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_times(FileTimes::new().set_modified(written)).unwrap();
        assert_eq!(text(false), Piece::first(b"abd".to_vec(), written));
        assert_eq!((text(true), text(false)), (Piece::Absent, Piece::Absent));
        assert!(!store.has(&stored.digest, 3), "the node's own readers do not get it either");
        // A file that cannot be opened is unreachable, not absent.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert_eq!((text(true), text(false)), (Piece::Unreachable, Piece::Unreachable));
    }
}
