//! Where letters go that leave this machine: to a peer over the network, to a waiting client.

use amalgam_core::hosting::Letter;
use amalgam_core::protocol::{Address, Message, ToClient};
use amalgam_core::vocabulary::{ClientId, NodeId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, oneshot};

/// Letters for one peer, in order.
pub type PeerSender = mpsc::UnboundedSender<Vec<Letter>>;

/// The one connection of a node. Dropping it makes room for the next, which must not begin before the loop was told
/// that this one has ended.
pub struct NodeRoute {
    routes: Arc<Routes>,
    node: NodeId,
}

impl Drop for NodeRoute {
    fn drop(&mut self) {
        lock(&self.routes.nodes).remove(&self.node);
    }
}

#[derive(Default)]
pub struct Routes {
    nodes: Mutex<HashMap<NodeId, PeerSender>>,
    /// Everything that is not here, for an agent.
    upstream: Mutex<Option<PeerSender>>,
    clients: Mutex<HashMap<ClientId, oneshot::Sender<ToClient>>>,
}

impl Routes {
    pub fn set_upstream(&self, peer: Option<PeerSender>) {
        *lock(&self.upstream) = peer;
    }

    /// Letters to the node go there from now on; `None` if it already has a connection.
    pub fn add_node(self: &Arc<Routes>, node: NodeId, peer: PeerSender) -> Option<NodeRoute> {
        match lock(&self.nodes).entry(node) {
            Entry::Occupied(_) => None,
            Entry::Vacant(place) => {
                place.insert(peer);
                Some(NodeRoute { routes: Arc::clone(self), node })
            }
        }
    }

    /// The answer to this client's next request.
    pub fn expect_answer(&self, client: ClientId) -> oneshot::Receiver<ToClient> {
        let (answer, answered) = oneshot::channel();
        lock(&self.clients).insert(client, answer);
        answered
    }

    /// Letters to everybody but the executor. Those for somebody who is not reachable are lost, as the protocol allows.
    pub fn send(&self, letters: Vec<Letter>) {
        let mut by_node: HashMap<NodeId, Vec<Letter>> = HashMap::new();
        let mut up = Vec::new();
        for letter in letters {
            match (letter.to, letter.message) {
                (Address::Client(client), Message::ToClient(answer)) => self.answer(client, answer),
                (Address::Node(node), message) => {
                    let letter = Letter { message, ..letter };
                    by_node.entry(node).or_default().push(letter);
                }
                (_, message) => up.push(Letter { message, ..letter }),
            }
        }
        if !by_node.is_empty() {
            let nodes = lock(&self.nodes);
            for (node, letters) in by_node {
                if let Some(peer) = nodes.get(&node) {
                    let _ = peer.send(letters);
                }
            }
        }
        if let Some(peer) = lock(&self.upstream).as_ref().filter(|_| !up.is_empty()) {
            let _ = peer.send(up);
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
        let first = routes.add_node(NodeId(1), sender.clone());
        // Its writer may be gone while its reader still has to notice.
        drop(receiver);
        assert!(first.is_some() && routes.add_node(NodeId(1), sender.clone()).is_none());
        drop(first);
        assert!(routes.add_node(NodeId(1), sender).is_some());
    }
}
