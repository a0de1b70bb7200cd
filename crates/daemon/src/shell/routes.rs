//! Sends the messages that leave this machine: to peers over the network, and to waiting clients.

use crate::store::Entry;
use amalgam_core::hosting::{Egress, Envelope};
use amalgam_core::protocol::{Address, Message, ToClient};
use amalgam_core::vocabulary::{ClientId, ClusterId, GlobalId, HostId, NodeId};
use std::collections::HashMap;
use std::collections::hash_map;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// Data for one peer.
#[derive(Debug)]
pub enum Parcel {
    Mail(Vec<Envelope>),
    /// Entries of this process's log, from number `first` on. Only sent to the server.
    Log {
        first: u64,
        entries: Vec<Entry>,
        size: Unreported,
    },
}

/// Counts bytes that are queued for a peer, until it is dropped.
#[derive(Debug)]
pub struct Unreported {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Unreported {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Maximum number of bytes of the log that are queued for the server. Beyond it, the connection is closed, and the
/// server gets the entries from the log when it is connected again.
const MOST_UNREPORTED: usize = 64 << 20;

/// Queues data for one peer, in order.
pub type PeerSender = mpsc::UnboundedSender<Parcel>;

/// The peer of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PeerId {
    Node(NodeId),
    JobHost(HostId),
    /// The server, connected to this node of the agent. Each node has a connection of its own.
    ServerOf(NodeId),
    /// A job host, connected to this node of the agent.
    JobHostOf(NodeId, HostId),
    /// At a global master: the master of a cluster.
    Cluster(ClusterId),
    /// At the master of a cluster: a global master.
    Global(GlobalId),
}

/// The only route to a peer. The peer can have another one after this is dropped. Before that, the loop must have been
/// notified of the connection's end.
pub struct PeerRoute {
    routes: Arc<Routes>,
    peer: PeerId,
}

impl Drop for PeerRoute {
    fn drop(&mut self) {
        lock(&self.routes.peers).remove(&self.peer);
    }
}

struct Peer {
    /// `None` if the connection has to end.
    sender: Option<PeerSender>,
    /// The version of the peer's program, if the peer reported it.
    program: Option<String>,
}

#[derive(Default)]
pub struct Routes {
    peers: Mutex<HashMap<PeerId, Peer>>,
    /// In a job host: its connection to the server.
    server: Mutex<Option<PeerSender>>,
    /// Bytes of the log that are queued for the server and not yet written to its connection.
    unreported: Arc<AtomicUsize>,
    clients: Mutex<HashMap<ClientId, oneshot::Sender<ToClient>>>,
}

impl Routes {
    pub fn set_server(&self, peer: Option<PeerSender>) {
        *lock(&self.server) = peer;
    }

    /// Sends messages for the peer to `sender` from now on. Returns `None` if the peer already has a connection.
    pub fn add(self: &Arc<Routes>, peer: PeerId, sender: PeerSender) -> Option<PeerRoute> {
        self.add_with(peer, sender, None)
    }

    /// The same for a peer that reported the version of its program.
    pub fn add_with(
        self: &Arc<Routes>,
        peer: PeerId,
        sender: PeerSender,
        program: Option<String>,
    ) -> Option<PeerRoute> {
        match lock(&self.peers).entry(peer) {
            hash_map::Entry::Occupied(_) => None,
            hash_map::Entry::Vacant(place) => {
                place.insert(Peer { sender: Some(sender), program });
                Some(PeerRoute { routes: Arc::clone(self), peer })
            }
        }
    }

    /// Ends the connection of the peer, if it has one.
    pub fn close(&self, peer: PeerId) {
        lock(&self.peers).entry(peer).and_modify(|known| known.sender = None);
    }

    /// The job hosts that are connected, with the versions of their programs.
    pub fn job_hosts(&self) -> HashMap<HostId, Option<String>> {
        let host = |(peer, known): (&PeerId, &Peer)| match peer {
            PeerId::JobHost(host) => Some((*host, known.program.clone())),
            _ => None,
        };
        lock(&self.peers).iter().filter_map(host).collect()
    }

    /// Whether the peer is connected.
    pub fn has(&self, peer: PeerId) -> bool {
        lock(&self.peers).contains_key(&peer)
    }

    /// The clusters whose masters are connected.
    pub fn clusters(&self) -> Vec<ClusterId> {
        let clusters = |peer: &PeerId| match peer {
            PeerId::Cluster(cluster) => Some(*cluster),
            _ => None,
        };
        lock(&self.peers).keys().filter_map(clusters).collect()
    }

    /// The answer to this client's next request.
    pub fn expect_answer(&self, client: ClientId) -> oneshot::Receiver<ToClient> {
        let (answer, answered) = oneshot::channel();
        lock(&self.clients).insert(client, answer);
        answered
    }

    /// Sends messages to all receivers except the executor. Messages for peers that are not connected are lost, as the
    /// protocol allows.
    pub fn send(&self, envelopes: Vec<(Egress, Envelope)>) {
        let mut by_peer: HashMap<PeerId, Vec<Envelope>> = HashMap::new();
        let mut up = Vec::new();
        for (egress, envelope) in envelopes {
            match (egress, envelope.from) {
                (Egress::Client(client), _) => {
                    if let Message::ToClient(answer) = envelope.message {
                        self.answer(client, answer);
                    }
                }
                (Egress::Node(node), _) => by_peer.entry(PeerId::Node(node)).or_default().push(envelope),
                (Egress::JobHost(host), Address::Node(own)) => {
                    by_peer.entry(PeerId::JobHostOf(own, host)).or_default().push(envelope);
                }
                (Egress::JobHost(host), _) => by_peer.entry(PeerId::JobHost(host)).or_default().push(envelope),
                (Egress::Server, Address::Node(own)) => {
                    by_peer.entry(PeerId::ServerOf(own)).or_default().push(envelope);
                }
                (Egress::Server, _) => up.push(envelope),
                (Egress::Cluster(cluster), _) => by_peer.entry(PeerId::Cluster(cluster)).or_default().push(envelope),
                (Egress::Global(global), _) => by_peer.entry(PeerId::Global(global)).or_default().push(envelope),
                (Egress::Executor, _) => {}
            }
        }
        if !by_peer.is_empty() {
            let peers = lock(&self.peers);
            for (peer, envelopes) in by_peer {
                if let Some(Peer { sender: Some(peer), .. }) = peers.get(&peer) {
                    let _ = peer.send(Parcel::Mail(envelopes));
                }
            }
        }
        if !up.is_empty() {
            self.send_to_server(Parcel::Mail(up));
        }
    }

    pub fn report_log(&self, first: u64, entries: Vec<Entry>) {
        let bytes = entries.iter().map(|entry| entry.payload.len()).sum();
        if self.unreported.fetch_add(bytes, Ordering::Relaxed) > MOST_UNREPORTED {
            // This ends the connection. The next one continues after the entries that the server has received.
            self.set_server(None);
        }
        let size = Unreported { all: Arc::clone(&self.unreported), bytes };
        self.send_to_server(Parcel::Log { first, entries, size });
    }

    fn send_to_server(&self, parcel: Parcel) {
        if let Some(server) = &*lock(&self.server) {
            let _ = server.send(parcel);
        }
    }

    fn answer(&self, client: ClientId, answer: ToClient) {
        if let Some(waiting) = lock(&self.clients).remove(&client) {
            // An error means that the client no longer waits.
            let _ = waiting.send(answer);
        }
    }
}

/// Ignores poisoning: no code that holds a lock here can panic with the data half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_one_route_until_it_is_dropped() {
        let routes = Arc::new(Routes::default());
        let (sender, receiver) = mpsc::unbounded_channel();
        let peer = PeerId::Node(NodeId(1));
        let first = routes.add(peer, sender.clone());
        // The connection's writer may have stopped while its reader still runs.
        drop(receiver);
        assert!(first.is_some() && routes.add(peer, sender.clone()).is_none());
        assert!(routes.add(PeerId::JobHost(HostId(1)), sender.clone()).is_some(), "another peer");
        routes.close(peer);
        assert!(routes.add(peer, sender.clone()).is_none(), "its connection has not ended yet");
        drop(first);
        assert!(routes.add(peer, sender).is_some());
    }

    #[test]
    fn the_connection_to_a_server_that_reads_nothing_is_closed_and_its_queue_is_bounded() {
        let routes = Routes::default();
        let (sender, mut reported) = mpsc::unbounded_channel();
        routes.set_server(Some(sender));
        let entry = || Entry { kind: 0, job: 0, at_micros: 0, payload: vec![0; MOST_UNREPORTED / 2 + 1] };
        for first in 0..3 {
            routes.report_log(first, vec![entry()]);
        }
        assert_eq!(reported.len(), 2);
        while reported.try_recv().is_ok() {}
        assert!(reported.is_closed() && reported.is_empty());
        assert_eq!(routes.unreported.load(Ordering::Relaxed), 0);
    }
}
