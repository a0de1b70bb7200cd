//! The connections of a node's agent: to the server, and to the job hosts whose addresses the server sends.

use super::files::{Server, answer_in_turn, piece};
use super::{Fetched, Introduction, Joined, OtherNodes, Outgoing, RETRY, Secrets, Terms, Wire, join_for_ever};
use crate::executor::read_output;
use crate::files::direct::Visit;
use crate::files::{FileStore, Piece, PieceAsk};
use crate::input::{InputPart, Taken};
use crate::shell::{Handle, Input, PeerId};
use amalgam_core::protocol::Address;
use amalgam_core::vocabulary::{AttemptId, HostId, NodeId};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, watch};

/// Passes messages between a node of this agent's loop and the server until the connection breaks. `files` is `None`
/// for a hollow node, whose tasks write no files.
pub async fn serve_server(
    joined: Joined,
    node: NodeId,
    handle: &Handle,
    files: Option<&Path>,
    others: &Arc<OtherNodes>,
    hosts: &HostLinks,
) -> io::Error {
    let Joined { incarnation, link, .. } = joined;
    let (parcels_in, parcels) = mpsc::unbounded_channel();
    let (wire_in, wire) = mpsc::unbounded_channel();
    let Some(route) = handle.routes().add(PeerId::ServerOf(node), parcels_in) else {
        return io::Error::other("another connection to it exists already");
    };
    let peer = Address::Master;
    if handle.send(Input::LocalNodeConnected { node, peer, incarnation }).is_err() {
        return io::Error::other("the agent is stopping");
    }
    let clock = handle.clock();
    let server = Server { version: link.version, frames: wire_in.clone() };
    let is_encrypted = !link.binding.is_empty();
    let mut conversation = link.converse(parcels, wire, move || clock.now());
    others.reach_through(Some(server));
    hosts.exchange_token(is_encrypted, &wire_in);
    let asked = Asked { node, files, others, answers: wire_in };
    let end = loop {
        match conversation.next().await {
            Ok(Wire::FilePiece { id, piece }) => others.answer(id, piece),
            Ok(Wire::AskFile { id, ask }) => asked.send_piece(id, ask),
            Ok(Wire::Way { id, way }) => others.answer_way(id, way),
            Ok(Wire::Expect { id, visit }) => asked.expect(id, visit),
            Ok(Wire::Mail(envelopes)) => {
                if handle.send(Input::Mail(envelopes)).is_err() {
                    break io::Error::other("the agent is stopping");
                }
            }
            Ok(Wire::Fetch { id, attempt, stream, offset, limit, .. }) => {
                asked.send_output(id, move |files| read_output(files, attempt, stream, offset, limit).into());
            }
            Ok(Wire::Feed { id, attempt, part, .. }) => asked.feed(id, attempt, part),
            Ok(Wire::Hosts(list)) => hosts.know(list),
            Ok(news @ (Wire::Certificate(_) | Wire::Keys(_))) => hosts.take(news, &asked.answers),
            Ok(
                Wire::Stored(_)
                | Wire::Users(_)
                | Wire::Shared(_)
                | Wire::WantCertificate { .. }
                | Wire::Fed { .. }
                | Wire::Alive
                | Wire::Fetched { .. }
                | Wire::Log { .. }
                | Wire::Present { .. }
                | Wire::All { .. }
                | Wire::AskWay { .. }
                | Wire::Expected { .. },
            ) => {}
            Err(error) => break error,
        }
    };
    others.reach_through(None);
    let _ = handle.send(Input::LocalNodeDisconnected { node, peer });
    drop(route);
    end
}

/// Answers what a server asks of a node's files. Each answer takes the time that it needs beside the connection's messages.
struct Asked<'a> {
    node: NodeId,
    /// `None` for a hollow node.
    files: Option<&'a Path>,
    others: &'a Arc<OtherNodes>,
    answers: mpsc::UnboundedSender<Outgoing>,
}

impl Asked<'_> {
    fn send_piece(&self, id: u64, ask: PieceAsk) {
        let Some(files) = self.files else {
            let _ = self.answers.send(Wire::FilePiece { id, piece: Piece::Absent }.into());
            return;
        };
        let (store, answers) = (FileStore::of(files, self.node), self.answers.clone());
        let served = Arc::clone(&self.others.served);
        let read = async move {
            let read = move || piece(&store, &ask);
            tokio::task::spawn_blocking(read).await.unwrap_or(Piece::Unreachable)
        };
        tokio::spawn(answer_in_turn(served, read, move |piece| Wire::FilePiece { id, piece }, answers));
    }

    fn expect(&self, id: u64, visit: Visit) {
        let (others, answers) = (Arc::clone(self.others), self.answers.clone());
        tokio::spawn(async move {
            let _ = answers.send(Wire::Expected { id, expected: others.expect(visit).await }.into());
        });
    }

    fn send_output(&self, id: u64, read: impl FnOnce(&Path) -> Fetched + Send + 'static) {
        let Some(files) = self.files else {
            let _ = self.answers.send(Wire::Fetched { id, fetched: Fetched::Bytes(Vec::new()) }.into());
            return;
        };
        let (files, answers): (PathBuf, _) = (files.to_owned(), self.answers.clone());
        tokio::task::spawn_blocking(move || {
            let _ = answers.send(Wire::Fetched { id, fetched: read(&files) }.into());
        });
    }

    fn feed(&self, id: u64, attempt: AttemptId, part: InputPart) {
        let Some(files) = self.files else {
            let _ = self.answers.send(Wire::Fed { id, taken: Taken::NotOpen }.into());
            return;
        };
        let (files, answers, others) = (files.to_owned(), self.answers.clone(), Arc::clone(self.others));
        tokio::spawn(async move {
            let taken = others.inputs.take(&files, attempt, &part).await;
            let _ = answers.send(Wire::Fed { id, taken }.into());
        });
    }
}

/// The job hosts that a node of this agent knows. The node stays connected to each of them, whether or not it is
/// connected to the server.
pub struct HostLinks {
    handle: Handle,
    secrets: Secrets,
    node: NodeId,
    /// The job hosts' addresses.
    addresses: Mutex<BTreeMap<HostId, watch::Sender<String>>>,
    /// Called with all addresses when one is new or has changed.
    keep: Keep,
}

type Keep = Box<dyn Fn(&BTreeMap<HostId, String>) + Send + Sync>;

impl HostLinks {
    pub fn new(
        handle: Handle,
        secrets: Secrets,
        node: NodeId,
        keep: impl Fn(&BTreeMap<HostId, String>) + Send + Sync + 'static,
    ) -> HostLinks {
        HostLinks { handle, secrets, node, addresses: Mutex::default(), keep: Box::new(keep) }
    }

    /// Asks the server for a certificate instead of the agent's token, if it may be asked.
    fn exchange_token(&self, is_encrypted: bool, to_server: &mpsc::UnboundedSender<Outgoing>) {
        if let Some(key) = self.secrets.wanted().filter(|_| is_encrypted) {
            let _ = to_server.send(Wire::WantCertificate { key }.into());
        }
    }

    /// Uses what the server sends about certificates.
    fn take(&self, news: Wire, to_server: &mpsc::UnboundedSender<Outgoing>) {
        match news {
            Wire::Certificate(certified) => {
                if let Some(answer) = self.secrets.renew(*certified) {
                    let _ = to_server.send(answer.into());
                }
            }
            Wire::Keys(keys) => self.secrets.allow(keys),
            _ => {}
        }
    }

    /// Adds job hosts or changes their addresses. Job hosts that are not in the list are kept.
    pub fn know(&self, list: impl IntoIterator<Item = (HostId, String)>) {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_news = false;
        for (host, address) in list {
            match addresses.get(&host) {
                Some(known) => {
                    is_news |= known.send_if_modified(|at| std::mem::replace(at, address.clone()) != address)
                }
                None => {
                    let (known, heard) = watch::channel(address);
                    addresses.insert(host, known);
                    let (handle, node) = (self.handle.clone(), self.node);
                    let secrets = self.secrets.for_job_host(host);
                    tokio::spawn(stay_with(host, heard, handle, secrets, node));
                    is_news = true;
                }
            }
        }
        if is_news {
            let all = addresses.iter().map(|(host, address)| (*host, address.borrow().clone()));
            (self.keep)(&all.collect());
        }
    }
}

/// Keeps a connection to a job host at its current address, for as long as this agent runs.
async fn stay_with(host: HostId, mut address: watch::Receiver<String>, handle: Handle, secrets: Secrets, node: NodeId) {
    loop {
        let at = address.borrow_and_update().clone();
        let introduction = || Introduction::NodeOf { node };
        let joined = tokio::select! {
            joined = join_for_ever(&at, &secrets, introduction) => joined,
            moved = address.changed() => match moved {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        match joined {
            joined @ Joined { terms: Terms::NodeOf, .. } => {
                let end = serve_host(host, joined, &handle, &mut address, node).await;
                tracing::warn!(%end, "lost the connection to job host {}", host.0);
            }
            _ => tracing::warn!("the peer at {at} is not a job host"),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY.1) => {}
            moved = address.changed() => if moved.is_err() { return },
        }
    }
}

async fn serve_host(
    host: HostId,
    joined: Joined,
    handle: &Handle,
    address: &mut watch::Receiver<String>,
    node: NodeId,
) -> io::Error {
    let Joined { incarnation, link, .. } = joined;
    let (parcels_in, parcels) = mpsc::unbounded_channel();
    let Some(route) = handle.routes().add(PeerId::JobHostOf(node, host), parcels_in) else {
        return io::Error::other("another connection to it exists already");
    };
    let peer = Address::JobHost(host);
    if handle.send(Input::LocalNodeConnected { node, peer, incarnation }).is_err() {
        return io::Error::other("the agent is stopping");
    }
    tracing::warn!("connected to job host {}", host.0);
    // The agent sends no other frames, but dropping the sender would end the connection.
    let (_wire_in, wire) = mpsc::unbounded_channel();
    let clock = handle.clock();
    let mut conversation = link.converse(parcels, wire, move || clock.now());
    let end = loop {
        let next = tokio::select! {
            next = conversation.next() => next,
            moved = address.changed() => {
                let why = if moved.is_ok() { "its address has changed" } else { "the agent is stopping" };
                address.mark_changed();
                break io::Error::other(why);
            }
        };
        match next {
            Ok(Wire::Mail(envelopes)) => {
                let is_own = |from: Address| matches!(from, Address::JobManager(_)) || from == Address::JobHost(host);
                let for_node = |to: Address| to == Address::Node(node);
                let own =
                    envelopes.into_iter().filter(|envelope| is_own(envelope.from) && for_node(envelope.to)).collect();
                if handle.send(Input::Mail(own)).is_err() {
                    break io::Error::other("the agent is stopping");
                }
            }
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    let _ = handle.send(Input::LocalNodeDisconnected { node, peer });
    drop(route);
    end
}
