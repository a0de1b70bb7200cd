//! Where letters go that leave this machine: to a peer over the network, to a waiting client.

use crate::store::Entry;
use amalgam_core::hosting::{Egress, Letter};
use amalgam_core::protocol::{Address, Message, ToClient};
use amalgam_core::vocabulary::{ClientId, ClusterId, GlobalId, HostId, NodeId};
use std::collections::HashMap;
use std::collections::hash_map;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// What goes to one peer.
#[derive(Debug)]
pub enum Parcel {
    Mail(Vec<Letter>),
    /// What the log of this process holds from entry `first` on. Only the server is told.
    Log {
        first: u64,
        entries: Vec<Entry>,
        size: Untold,
    },
}

/// So many bytes wait for a peer, until this is dropped.
#[derive(Debug)]
pub struct Untold {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Untold {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Of the log, what waits for a server that takes nothing; more than that it reads from the log when it is back.
const MOST_UNTOLD: usize = 64 << 20;

/// Parcels for one peer, in order.
pub type PeerSender = mpsc::UnboundedSender<Parcel>;

/// The far end of a connection of which this process may have many.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PeerId {
    Node(NodeId),
    JobHost(HostId),
    /// The server, as this node of an agent reaches it: each has a connection of its own.
    ServerOf(NodeId),
    /// And a process of job managers.
    JobHostOf(NodeId, HostId),
    /// The master of a cluster, as a global master reaches it.
    Cluster(ClusterId),
    /// A global master, at the master of a cluster.
    Global(GlobalId),
}

/// The one connection of a peer. Dropping it makes room for the next, which must not begin before the loop was told
/// that this one has ended.
pub struct PeerRoute {
    routes: Arc<Routes>,
    peer: PeerId,
}

impl Drop for PeerRoute {
    fn drop(&mut self) {
        lock(&self.routes.peers).remove(&self.peer);
    }
}

#[derive(Default)]
pub struct Routes {
    /// `None`: its connection is to end.
    peers: Mutex<HashMap<PeerId, Option<PeerSender>>>,
    /// Of a process of job managers.
    server: Mutex<Option<PeerSender>>,
    /// Bytes of the log that it was sent and that are not written to it.
    untold: Arc<AtomicUsize>,
    clients: Mutex<HashMap<ClientId, oneshot::Sender<ToClient>>>,
}

impl Routes {
    pub fn set_server(&self, peer: Option<PeerSender>) {
        *lock(&self.server) = peer;
    }

    /// Letters to the peer go there from now on; `None` if it already has a connection.
    pub fn add(self: &Arc<Routes>, peer: PeerId, sender: PeerSender) -> Option<PeerRoute> {
        match lock(&self.peers).entry(peer) {
            hash_map::Entry::Occupied(_) => None,
            hash_map::Entry::Vacant(place) => {
                place.insert(Some(sender));
                Some(PeerRoute { routes: Arc::clone(self), peer })
            }
        }
    }

    /// Ends the connection of the peer, if it has one.
    pub fn close(&self, peer: PeerId) {
        lock(&self.peers).entry(peer).and_modify(|sender| *sender = None);
    }

    /// Which of them are connected.
    pub fn job_hosts(&self) -> Vec<HostId> {
        let hosts = |peer: &PeerId| match peer {
            PeerId::JobHost(host) => Some(*host),
            _ => None,
        };
        lock(&self.peers).keys().filter_map(hosts).collect()
    }

    /// Whose masters are connected.
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

    /// Letters to everybody but the executor. Those for somebody who is not reachable are lost, as the protocol allows.
    pub fn send(&self, letters: Vec<(Egress, Letter)>) {
        let mut by_peer: HashMap<PeerId, Vec<Letter>> = HashMap::new();
        let mut up = Vec::new();
        for (egress, letter) in letters {
            match (egress, letter.from) {
                (Egress::Client(client), _) => {
                    if let Message::ToClient(answer) = letter.message {
                        self.answer(client, answer);
                    }
                }
                (Egress::Node(node), _) => by_peer.entry(PeerId::Node(node)).or_default().push(letter),
                (Egress::JobHost(host), Address::Node(own)) => {
                    by_peer.entry(PeerId::JobHostOf(own, host)).or_default().push(letter);
                }
                (Egress::JobHost(host), _) => by_peer.entry(PeerId::JobHost(host)).or_default().push(letter),
                (Egress::Server, Address::Node(own)) => {
                    by_peer.entry(PeerId::ServerOf(own)).or_default().push(letter);
                }
                (Egress::Server, _) => up.push(letter),
                (Egress::Cluster(cluster), _) => by_peer.entry(PeerId::Cluster(cluster)).or_default().push(letter),
                (Egress::Global(global), _) => by_peer.entry(PeerId::Global(global)).or_default().push(letter),
                (Egress::Executor, _) => {}
            }
        }
        if !by_peer.is_empty() {
            let peers = lock(&self.peers);
            for (peer, letters) in by_peer {
                if let Some(Some(peer)) = peers.get(&peer) {
                    let _ = peer.send(Parcel::Mail(letters));
                }
            }
        }
        if !up.is_empty() {
            self.send_to_server(Parcel::Mail(up));
        }
    }

    pub fn tell_log(&self, first: u64, entries: Vec<Entry>) {
        let bytes = entries.iter().map(|entry| entry.payload.len()).sum();
        if self.untold.fetch_add(bytes, Ordering::Relaxed) > MOST_UNTOLD {
            // Its stream ends with this, and the next begins with what the server has heard.
            self.set_server(None);
        }
        let size = Untold { all: Arc::clone(&self.untold), bytes };
        self.send_to_server(Parcel::Log { first, entries, size });
    }

    fn send_to_server(&self, parcel: Parcel) {
        if let Some(server) = &*lock(&self.server) {
            let _ = server.send(parcel);
        }
    }

    fn answer(&self, client: ClientId, answer: ToClient) {
        if let Some(waiting) = lock(&self.clients).remove(&client) {
            // A client that went away does not need its answer.
            let _ = waiting.send(answer);
        }
    }
}

/// No lock here is held while something can panic halfway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_one_connection_until_that_one_has_said_goodbye() {
        let routes = Arc::new(Routes::default());
        let (sender, receiver) = mpsc::unbounded_channel();
        let peer = PeerId::Node(NodeId(1));
        let first = routes.add(peer, sender.clone());
        // Its writer may be gone while its reader still has to notice.
        drop(receiver);
        assert!(first.is_some() && routes.add(peer, sender.clone()).is_none());
        assert!(routes.add(PeerId::JobHost(HostId(1)), sender.clone()).is_some(), "another one");
        routes.close(peer);
        assert!(routes.add(peer, sender.clone()).is_none(), "it still has to notice");
        drop(first);
        assert!(routes.add(peer, sender).is_some());
    }

    #[test]
    fn a_server_that_takes_nothing_is_left_and_no_more_is_kept_for_it() {
        let routes = Routes::default();
        let (sender, mut told) = mpsc::unbounded_channel();
        routes.set_server(Some(sender));
        let entry = || Entry { kind: 0, job: 0, at_micros: 0, payload: vec![0; MOST_UNTOLD / 2 + 1] };
        for first in 0..3 {
            routes.tell_log(first, vec![entry()]);
        }
        assert_eq!(told.len(), 2);
        while told.try_recv().is_ok() {}
        assert!(told.is_closed() && told.is_empty());
        assert_eq!(routes.untold.load(Ordering::Relaxed), 0);
    }
}
