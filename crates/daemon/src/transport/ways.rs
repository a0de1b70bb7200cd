//! Arranges transfers of files directly between two nodes: the server's side, and the side of the node that needs a file.

use super::files::{FETCH, OtherNodes, RemoteNodes, Server, Via, lock};
use super::{Outgoing, Wire};
use crate::files::direct::{Expected, Pass, Visit, Visited, Way, receive, visit};
use crate::files::{Incoming, Piece, PieceAsk, Rest};
use amalgam_core::vocabulary::{Fetched, NodeId, StoredFile};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The protocol version that introduced transfers between nodes.
const DIRECT_SINCE: u32 = 33;
/// How long files of a node come through the server after it could not be reached.
const REMEMBERED: Duration = Duration::from_secs(300);

// ---- the server ----------------------------------------------------------------------------------------------------

impl RemoteNodes {
    /// The number of a request. A node answers by the number alone, so it must not be able to guess that of a request to another
    /// node.
    pub(super) fn fresh_id(&self) -> u64 {
        let mut random = [0; 8];
        // Without random numbers, TLS and proofs do not work either.
        let _ = getrandom::fill(&mut random);
        u64::from_le_bytes(random) ^ self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// How a node gets a file of another one. The other one is told to expect it.
    pub(super) async fn way(&self, reader: NodeId, source: NodeId, file: StoredFile) -> Way {
        // Nodes of other clusters are reached through their masters.
        let peer = lock(&self.peers).get(&Via::Node(source)).cloned();
        let Some((_, peer)) = peer.filter(|(version, _)| *version >= DIRECT_SINCE && source != reader) else {
            return Way::Through;
        };
        let pass = match Pass::new() {
            Ok(pass) => pass,
            Err(error) => {
                tracing::warn!(%error, "a file goes through the server");
                return Way::Through;
            }
        };
        let id = self.fresh_id();
        let (answer, answered) = oneshot::channel();
        lock(&self.waiting_expected).insert(id, answer);
        let expect = Wire::Expect { id, visit: Visit { reader, file, pass: pass.clone() } };
        let sent = peer.send(Outgoing::from(expect)).is_ok();
        let expected = if sent { timeout(FETCH, answered).await.ok().and_then(Result::ok) } else { None };
        lock(&self.waiting_expected).remove(&id);
        match expected {
            Some(Expected::Ready { address }) => {
                self.traffic.arranged.inc();
                Way::At { address, pass }
            }
            Some(Expected::Busy(others)) => Way::Busy(others),
            Some(Expected::Absent) => Way::Absent,
            Some(Expected::NotListening) => Way::Through,
            None => Way::Unreachable,
        }
    }

    pub(super) fn answer_expected(&self, id: u64, expected: Expected) {
        if let Some(waiting) = lock(&self.waiting_expected).remove(&id) {
            let _ = waiting.send(expected);
        }
    }

    /// A piece of a node's file for another node.
    pub(super) async fn forwarded(&self, ask: PieceAsk) -> Piece {
        let piece = self.piece(ask).await;
        if let Piece::Bytes(bytes) | Piece::First { bytes, .. } = &piece {
            self.traffic.forwarded_bytes.inc_by(bytes.len() as u64);
        }
        piece
    }
}

// ---- a node --------------------------------------------------------------------------------------------------------

/// Nodes that could not be reached, and when that was noticed.
#[derive(Default)]
pub(super) struct Unreachable(HashMap<NodeId, Instant>);

impl OtherNodes {
    pub(super) fn answer_way(&self, id: u64, way: Way) {
        if let Some(waiting) = lock(&self.waiting_ways).remove(&id) {
            let _ = waiting.send(way);
        }
    }

    pub(super) async fn expect(&self, visit: Visit) -> Expected {
        match &self.port {
            Some(port) => port.expect(visit).await,
            None => Expected::NotListening,
        }
    }

    /// Fetches the rest of a file from its node, unless only the server reaches it.
    pub(super) async fn fetch_rest(&self, file: StoredFile, from: NodeId, incoming: Incoming) -> Rest {
        let is_known_not_to_be_reachable = {
            let Unreachable(nodes) = &mut *lock(&self.unreachable);
            nodes.retain(|_, since| since.elapsed() < REMEMBERED);
            nodes.contains_key(&from)
        };
        if is_known_not_to_be_reachable {
            return Rest::NotDirect(incoming);
        }
        let ask = |id| Wire::AskWay { id, source: from, file };
        let speaks = |server: &Server| server.version >= DIRECT_SINCE;
        let (address, pass) = match self.request(&self.waiting_ways, speaks, ask).await {
            Ok(Some(Way::At { address, pass })) => (address, pass),
            Ok(Some(Way::Busy(others))) => return Rest::Ended(Ok((Fetched::Busy(others), Some(incoming)))),
            Ok(Some(Way::Absent)) => return Rest::Ended(Ok((Fetched::Absent, Some(incoming)))),
            Ok(Some(Way::Unreachable) | None) => return Rest::Ended(Ok((Fetched::Unreachable, Some(incoming)))),
            Ok(Some(Way::Through)) | Err(()) => return Rest::NotDirect(incoming),
        };
        let offset = incoming.bytes();
        let (channel, opened) = match visit(&address, &pass, offset).await {
            Ok(Visited::Open(channel, opened)) => (channel, opened),
            Ok(Visited::Absent) => return Rest::Ended(Ok((Fetched::Absent, Some(incoming)))),
            Err(error) => {
                if error.kind() != io::ErrorKind::ConnectionRefused || error.raw_os_error().is_some() {
                    lock(&self.unreachable).0.insert(from, Instant::now());
                }
                tracing::warn!(%from, address, %error, "cannot fetch files directly from a node; they come through the server");
                return Rest::NotDirect(incoming);
            }
        };
        let started = Instant::now();
        let received = tokio::task::spawn_blocking(move || receive(channel, &opened, file, incoming)).await;
        let received = received.map_err(io::Error::other).flatten();
        if let Ok((Fetched::Done, _)) = &received {
            let millis = started.elapsed().as_millis() as u64;
            tracing::info!(%from, address, file = %file.digest, offset, bytes = file.bytes - offset, millis, "fetched a file");
        }
        Rest::Ended(received)
    }
}
