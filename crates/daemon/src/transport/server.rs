//! The listening side: a server, for agents, job hosts and global masters; or a job host, for agents.

mod certificates;

pub(super) use certificates::Certificated;
pub use certificates::Certifier;

use super::federation::{GlobalIntroduction, exchange, may_say};
use super::files::answer_in_turn;
use super::standbys::Standby;
use super::{
    Answer, Challenge, DOWNGRADED, HANDSHAKE, Hello, Introduction, LISTENING, Link, Obstacle, Outgoing, RemoteNodes,
    STRANGERS_FRAME, Secrets, Terms, Validity, Wire,
};
use crate::auth::{self, Credential, DaemonRole, Holder, TokenEntry};
use crate::channel::{Certificate, Channel};
use crate::files::direct::Way;
use crate::files::{MOST_SERVED, Piece};
use crate::shell::{Handle, Input, Parcel, PeerId, PeerRoute, decode};
use crate::store::Entry;
use crate::store::ServerId;
use crate::strangers::Strangers;
use crate::versions::WIRE;
use amalgam_core::hosting::{Fact, Roles};
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::Address;
use amalgam_core::vocabulary::{self, ClockOffset, Federation, GlobalId, HostId, Instant, Named, NodeId};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

/// Maximum number of transfers between nodes that are arranged for a node at once.
const MOST_WAYS: usize = 16;
/// Maximum number of a node's requests about files that wait for an answer.
const MOST_QUEUED: usize = 1_000;
/// Number of signs of life in the time of a lease.
pub(super) const PULSES: u32 = 5;

const NOT_FEDERATED: &str = "this server's cluster is not in a federation; write [federation] into its configuration";

/// Authenticates and accepts connections.
pub struct Gate {
    pub handle: Handle,
    pub secrets: Secrets,
    pub certificate: Certificate,
    /// Signs the certificates of daemons. `None` for a job host.
    pub certifier: Option<Certifier>,
    pub side: Side,
    /// The lease of a master that has a standby: after a silence of this length, peers no longer consider it active.
    pub lease: Option<Duration>,
}

/// The listening process.
pub enum Side {
    Server {
        remote: Arc<RemoteNodes>,
        id: ServerId,
        preset: Box<Preset>,
        epoch: u32,
        /// The introduction that this server expects of a global master of its federation.
        federated: Option<Box<GlobalIntroduction>>,
    },
    JobHost(HostId),
}

/// An accepted peer.
struct Guest {
    peer: PeerId,
    /// The peer's name in the diagnostics.
    name: String,
    /// The address for agents of a job host.
    address: Option<String>,
    /// The version of the peer's program.
    program: String,
    incarnation: u64,
    link: Link,
    parcels: mpsc::UnboundedReceiver<Parcel>,
    route: PeerRoute,
    /// Set if it has authenticated itself with a certificate.
    certified: Option<Certificated>,
    /// Whether it has authenticated itself with its own token, and may get a certificate instead.
    /// The token of an agent that may have a certificate instead.
    exchanged: Option<Credential>,
}

/// Who was accepted.
enum Accepted {
    Peer(Box<Guest>),
    Standby(Box<Standby>),
}

/// Why a connection is refused, and whether the reason may pass.
struct Refusal {
    why: String,
    obstacle: Obstacle,
}

impl Refusal {
    fn for_good(why: String) -> Refusal {
        Refusal { why, obstacle: Obstacle::Lasting }
    }

    fn stopping() -> Refusal {
        Refusal { why: "the process is stopping".to_owned(), obstacle: Obstacle::Passing }
    }
}

/// Accepts connections of daemons for as long as the process runs.
pub async fn serve_daemons(listeners: Vec<TcpListener>, gate: Gate) {
    let gate = Arc::new(gate);
    if let Some(certifier) = &gate.certifier {
        tokio::spawn(certifier.clone().keep_current(gate.secrets.clone()));
    }
    let connections = Arc::new(AtomicU64::new(1));
    for listener in listeners {
        tokio::spawn(accept_at(listener, Arc::clone(&gate), Arc::clone(&connections)));
    }
}

/// Accepts connections at an address. `connections` numbers those of all addresses.
async fn accept_at(listener: TcpListener, gate: Arc<Gate>, connections: Arc<AtomicU64>) {
    let mut strangers = Strangers::default();
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            // The process has most likely no file descriptors left. Closing a connection that is not authenticated
            // frees one; then the loop tries again.
            strangers.drop_oldest();
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let gate = Arc::clone(&gate);
        let incarnation = gate.incarnation(connections.fetch_add(1, Ordering::Relaxed));
        let must_go = strangers.add(address.ip());
        tokio::spawn(async move {
            let let_in = tokio::select! {
                let_in = timeout(HANDSHAKE, gate.let_in(stream, incarnation)) => let_in,
                _ = must_go => return tracing::warn!(%address, "too many connections without a handshake; closed the oldest"),
            };
            match let_in {
                Ok(Ok(Some(Accepted::Peer(guest)))) => gate.serve(*guest).await,
                Ok(Ok(Some(Accepted::Standby(standby)))) => gate.serve_standby(*standby).await,
                Ok(Ok(None)) => {}
                Ok(Err(error)) => tracing::warn!(%address, %error, "refused the connection of a daemon"),
                Err(_) => tracing::warn!(%address, "a connection did not complete the handshake in time"),
            }
        });
    }
}

impl Gate {
    /// A number that identifies the connection. Its lower 32 bits identify the server's run.
    fn incarnation(&self, connection: u64) -> u64 {
        match self.side {
            Side::Server { epoch, .. } => connection << 32 | u64::from(epoch),
            Side::JobHost(_) => connection,
        }
    }

    /// `None` if the peer was given a token and has to connect again.
    async fn let_in(&self, stream: TcpStream, incarnation: u64) -> io::Result<Option<Accepted>> {
        let from = stream.peer_addr()?;
        let mut link = Link::new(Channel::accept(stream, &self.certificate).await?, STRANGERS_FRAME)?;
        let nonce = link.nonce().map_err(io::Error::other)?;
        let versions = link.versions();
        link.write(&Challenge { versions, nonce }).await?;
        let hello: Hello = link.read().await?;
        if !versions.contains(hello.version) {
            let why = format!(
                "unsupported protocol version {}; this program supports {WIRE}; install programs of the same version",
                hello.version
            );
            return Err(refuse(link, Refusal::for_good(why)).await);
        }
        if link.is_downgraded(&hello.nonce) {
            return Err(refuse(link, Refusal { why: DOWNGRADED.to_owned(), obstacle: Obstacle::Passing }).await);
        }
        if let Introduction::Join { .. } = &hello.introduction {
            return self.give_certificate((link, from), &nonce, hello).await.map(|()| None);
        }
        let (entry, certified) = match self.authenticate(&link, &nonce, &hello) {
            Ok(authenticated) => authenticated,
            Err(refusal) => return Err(refuse(link, refusal).await),
        };
        if let Introduction::Standby { .. } = hello.introduction {
            let standby = self.let_in_standby(link, hello, (entry, certified)).await?;
            return Ok(standby.map(|standby| Accepted::Standby(Box::new(standby))));
        }
        let address = match &hello.introduction {
            Introduction::JobHost { address, .. } => Some(address.clone()),
            Introduction::Node { .. } | Introduction::NodeOf { .. } | Introduction::Global(_) => None,
            Introduction::Join { .. } | Introduction::Standby { .. } => unreachable!("it was answered above"),
        };
        let (peer, name, terms) = match self.admit(hello.introduction, hello.version).await {
            Ok(admitted) => admitted,
            Err(refusal) => return Err(refuse(link, refusal).await),
        };
        let (parcels_in, parcels) = mpsc::unbounded_channel();
        // It is printed, so it follows the rules of a job's title.
        let program = hello.program.filter(|program| Named::Job.check(program).is_ok());
        let Some(route) = self.handle.routes().add_with(peer, parcels_in, program.clone()) else {
            return Err(refuse(link, Refusal { why: is_connected(peer, &name), obstacle: Obstacle::Passing }).await);
        };
        // Certificates need no proof.
        let proof = entry.token().map_or([0; 32], |token| auth::prove(token, LISTENING, &link.bound(&hello.nonce)));
        let longest_silence = self.lease.map(|lease| vocabulary::Duration::from_micros(lease.as_micros() as u64));
        link.write(&Answer::Accepted { incarnation, terms, proof, longest_silence }).await?;
        link.trust();
        link.version = hello.version;
        link.validity = Validity::of(&self.secrets, &entry);
        link.pulse = self.lease.map(|lease| lease / PULSES);
        let program = program.unwrap_or_else(|| "unknown".to_owned());
        let is_exchanged =
            entry.holder.role() == Some(DaemonRole::Agent) && entry.token().is_some() && !link.binding.is_empty();
        let exchanged = is_exchanged.then_some(entry.credential);
        let guest = Guest { exchanged, peer, name, address, program, incarnation, link, parcels, route, certified };
        Ok(Some(Accepted::Peer(Box::new(guest))))
    }

    /// The entry of a peer that has proved its token or has a valid certificate, and may join as what it says.
    fn authenticate(
        &self,
        link: &Link,
        nonce: &[u8; 32],
        hello: &Hello,
    ) -> Result<(TokenEntry, Option<Certificated>), Refusal> {
        let (entry, certified) = match link.peer_chain.is_empty() {
            true => (self.by_token(&link.bound(nonce), hello)?, None),
            false => {
                let (entry, certified) = self.by_certificate(&link.peer_chain, hello)?;
                (entry, Some(certified))
            }
        };
        may_join(&entry, hello).map_err(|why| Refusal { why, obstacle: Obstacle::Token })?;
        Ok((entry, certified))
    }

    async fn admit(&self, introduction: Introduction, version: u32) -> Result<(PeerId, String, Terms), Refusal> {
        match (&self.side, introduction) {
            (Side::Server { preset, .. }, Introduction::Node { name }) => {
                Named::Node.check(&name).map_err(|wrong| Refusal::for_good(wrong.to_string()))?;
                let (answer, answered) = oneshot::channel();
                let asked = self.handle.send(Input::NameNode { name: name.clone(), answer });
                asked.map_err(|_| Refusal::stopping())?;
                let node = answered.await.map_err(|_| Refusal::stopping())?;
                Ok((PeerId::Node(node), name, Terms::Node { node, preset: Box::new(preset.for_nodes_of(version)) }))
            }
            (Side::Server { .. }, Introduction::JobHost { host, .. })
                if self.handle.routes().job_hosts().contains_key(&host) =>
            {
                Err(Refusal { why: are_connected(host), obstacle: Obstacle::Passing })
            }
            (Side::Server { id, preset, .. }, Introduction::JobHost { host, next, .. }) => {
                let status = self.handle.ask(move |roles, _| JobHostStatus::of(roles, host)).await;
                let status = status.map_err(|_| Refusal::stopping())?;
                status.check(host).map_err(Refusal::for_good)?;
                let JobHostStatus { heard, settings, .. } = status;
                if next < heard {
                    let why = format!(
                        "the log of job host {} has {next} entries, and the server received {heard}: the log was lost, \
                         or --work-dir names another directory than before; restore the log, or end the job host's \
                         jobs with `amalgam cancel --force` and give this process a --number that was not used before",
                        host.0
                    );
                    return Err(Refusal::for_good(why));
                }
                let terms = Terms::JobHost { server: *id, preset: preset.clone(), settings, heard };
                Ok((PeerId::JobHost(host), format!("job host {}", host.0), terms))
            }
            (Side::Server { federated: Some(own), .. }, Introduction::Global(introduction)) => {
                introduction.check(&own.as_ref().clone().for_version(version)).map_err(Refusal::for_good)?;
                let global = introduction.global;
                Ok((PeerId::Global(global), global.to_string(), Terms::Global))
            }
            (Side::Server { federated: None, .. }, Introduction::Global(_)) => {
                Err(Refusal::for_good(NOT_FEDERATED.to_owned()))
            }
            (Side::JobHost(_), Introduction::NodeOf { node }) => {
                Ok((PeerId::Node(node), node.to_string(), Terms::NodeOf))
            }
            (Side::Server { .. }, Introduction::NodeOf { .. }) => {
                Err(Refusal::for_good("this is a server, not a job host; check the address".to_owned()))
            }
            (_, Introduction::Join { .. } | Introduction::Standby { .. }) => unreachable!("it was answered before"),
            (Side::JobHost(_), _) => {
                Err(Refusal::for_good("this is a job host, not a server; check the address".to_owned()))
            }
        }
    }

    async fn serve(&self, guest: Guest) {
        match (&self.side, guest.peer) {
            (Side::Server { remote, .. }, PeerId::Node(node)) => self.serve_agent(guest, node, Some(remote)).await,
            (Side::JobHost(_), PeerId::Node(node)) => self.serve_agent(guest, node, None).await,
            (Side::Server { remote, .. }, PeerId::JobHost(host)) => self.serve_job_host(guest, host, remote).await,
            (Side::Server { remote, federated: Some(own), .. }, PeerId::Global(global)) => {
                self.serve_global(guest, own.federation, global, remote).await;
            }
            (Side::Server { federated: None, .. } | Side::JobHost(_), PeerId::Global(_))
            | (Side::JobHost(_), PeerId::JobHost(_))
            | (_, PeerId::ServerOf(_) | PeerId::JobHostOf(..) | PeerId::Cluster(_)) => {}
        }
    }

    /// Serves a node's agent. `remote` is set in a server, which forwards files and sends the addresses of job hosts.
    async fn serve_agent(&self, guest: Guest, node: NodeId, remote: Option<&Arc<RemoteNodes>>) {
        let Guest { name, program, incarnation, link, parcels, route, certified, exchanged, .. } = guest;
        let (wire_in, wire) = mpsc::unbounded_channel();
        if let Some(remote) = remote {
            remote.add(node, link.version, wire_in.clone());
        }
        // Before the addresses of job hosts, to which the node has to prove its number.
        let _renewing = certified.as_ref().and_then(|certified| self.keep_certified(certified, Some(node), &wire_in));
        let _informed = certified.as_ref().and_then(|_| self.keep_informed(DaemonRole::Agent, &wire_in));
        if self.handle.send(Input::NodeConnected { node, incarnation }).is_err() {
            return;
        }
        tracing::info!(%node, name, program, "a node's agent connected");
        let mut hosts = remote.map(|remote| remote.job_hosts.subscribe());
        hosts.iter_mut().for_each(|hosts| hosts.mark_changed());
        let turns = Turns::new();
        let clock = self.handle.clock();
        let mut conversation = link.converse(parcels, wire, move || clock.now());
        let end = loop {
            let changed = async {
                match &mut hosts {
                    Some(hosts) => hosts.changed().await.is_ok(),
                    None => std::future::pending().await,
                }
            };
            let next = tokio::select! {
                next = conversation.next() => next,
                true = changed => {
                    if let Some(hosts) = &mut hosts {
                        let all = hosts.borrow_and_update().iter().map(|(host, at)| (*host, at.clone())).collect();
                        let _ = wire_in.send(Outgoing::from(Wire::Hosts(all)));
                    }
                    continue;
                }
            };
            match next {
                Ok(Wire::Mail(envelopes)) => {
                    // A node may send only messages of its own.
                    let own = envelopes.into_iter().filter(|envelope| envelope.from == Address::Node(node)).collect();
                    if self.handle.send(Input::Mail(own)).is_err() {
                        return;
                    }
                }
                Ok(Wire::Stored(authority)) => self.note_stored(certified.as_ref(), &authority),
                Ok(Wire::WantCertificate { key }) if let Some(token) = &exchanged => {
                    self.exchange_token(node, &name, token.clone(), key, &wire_in).await
                }
                Ok(about_files) => {
                    if let Some(remote) = remote {
                        forward(about_files, node, remote, &turns, &wire_in);
                    }
                }
                Err(error) => break error,
            }
        };
        tracing::info!(%node, name, %end, "a node's agent disconnected");
        if let Some(remote) = remote {
            remote.remove(node);
        }
        let _ = self.handle.send(Input::NodeDisconnected { node });
        drop(route);
    }

    async fn serve_global(&self, guest: Guest, federation: Federation, global: GlobalId, remote: &Arc<RemoteNodes>) {
        let Guest { program, incarnation, link, parcels, route, certified, .. } = guest;
        if self.handle.send(Input::GlobalConnected { global, incarnation }).is_err() {
            return;
        }
        tracing::info!(program, "{global} connected");
        let (wire_in, wire) = mpsc::unbounded_channel();
        let _renewing = certified.as_ref().and_then(|certified| self.keep_certified(certified, None, &wire_in));
        let _informed = certified.as_ref().and_then(|_| self.keep_users_known(&wire_in));
        let clock = self.handle.clock();
        let conversation = link.converse(parcels, wire, move || clock.now());
        remote.add_global(global, wire_in.clone());
        let noted = |other| {
            if let Wire::Stored(authority) = other {
                self.note_stored(certified.as_ref(), &authority);
            }
        };
        let may_say = may_say(federation, global);
        let end = exchange(conversation, wire_in, &self.handle, remote, may_say, noted).await;
        tracing::info!(%end, "{global} disconnected");
        remote.remove_global(global);
        let _ = self.handle.send(Input::GlobalDisconnected { global });
        drop(route);
    }

    async fn serve_job_host(&self, guest: Guest, host: HostId, remote: &RemoteNodes) {
        let Guest { name, address, program, incarnation, link, parcels, route, certified, .. } = guest;
        // The address is published only now that this is the only connection of the job host.
        remote.job_hosts.send_modify(|hosts| hosts.extend(address.map(|address| (host, address))));
        if self.handle.send(Input::HostConnected { host, incarnation }).is_err() {
            return;
        }
        tracing::info!(program, "{name} connected");
        let (wire_in, wire) = mpsc::unbounded_channel();
        let _renewing = certified.as_ref().and_then(|certified| self.keep_certified(certified, None, &wire_in));
        let _informed = certified.as_ref().and_then(|_| self.keep_informed(DaemonRole::JobHost, &wire_in));
        let clock = self.handle.clock();
        let mut conversation = link.converse(parcels, wire, move || clock.now());
        let end = loop {
            let input = match conversation.next().await {
                Ok(Wire::Mail(envelopes)) => {
                    let is_own =
                        |from: Address| matches!(from, Address::JobManager(_)) || from == Address::JobHost(host);
                    Input::Mail(envelopes.into_iter().filter(|envelope| is_own(envelope.from)).collect())
                }
                Ok(Wire::Log { now, first, entries }) => {
                    match facts(&entries, ClockOffset::between(self.handle.clock().now(), now)) {
                        Ok(facts) => Input::HostReports { host, first, facts },
                        Err(error) => break io::Error::new(io::ErrorKind::InvalidData, error),
                    }
                }
                Ok(Wire::Present { now, mut present }) => {
                    let offset = ClockOffset::between(self.handle.clock().now(), now);
                    present.starts.iter_mut().for_each(|(_, at)| *at = at.by_clock(offset));
                    Input::HostPresent { host, present }
                }
                Ok(Wire::All { now, next, mut changes }) => {
                    let offset = ClockOffset::between(self.handle.clock().now(), now);
                    changes.iter_mut().for_each(|change| change.set_clock(offset));
                    Input::HostReportsAll { host, next, changes }
                }
                Ok(Wire::Stored(authority)) => {
                    self.note_stored(certified.as_ref(), &authority);
                    continue;
                }
                Ok(_) => continue,
                Err(error) => break error,
            };
            if self.handle.send(input).is_err() {
                return;
            }
        };
        tracing::info!(%end, "{name} disconnected");
        let _ = self.handle.send(Input::HostDisconnected { host });
        drop(route);
    }
}

/// How many of a node's requests are answered at once, and how many may wait for that.
struct Turns {
    queued: Arc<Semaphore>,
    pieces: Arc<Semaphore>,
    ways: Arc<Semaphore>,
}

impl Turns {
    fn new() -> Turns {
        let [queued, pieces, ways] = [MOST_QUEUED, MOST_SERVED, MOST_WAYS].map(|most| Arc::new(Semaphore::new(most)));
        Turns { queued, pieces, ways }
    }

    /// `None` if too many wait. Held until the answer is known.
    fn queue(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.queued).try_acquire_owned().ok()
    }
}

/// Handles what an agent sends about files and outputs: answers to the server's questions, and questions for other nodes.
fn forward(
    message: Wire,
    node: NodeId,
    remote: &Arc<RemoteNodes>,
    turns: &Turns,
    to_agent: &mpsc::UnboundedSender<Outgoing>,
) {
    match message {
        Wire::Fetched { id, fetched } => remote.answer(id, fetched),
        Wire::Fed { id, taken } => remote.answer_input(id, taken),
        Wire::FilePiece { id, piece } => remote.answer_piece(id, piece),
        Wire::Expected { id, expected } => remote.answer_expected(id, expected),
        Wire::AskFile { id, ask } => {
            let Some(queued) = turns.queue() else {
                let _ = to_agent.send(Wire::FilePiece { id, piece: Piece::Unreachable }.into());
                return;
            };
            // Forwarded concurrently; `id` assigns the answer to the request.
            let (remote, answers, places) = (Arc::clone(remote), to_agent.clone(), Arc::clone(&turns.pieces));
            let piece = async move {
                let _queued = queued;
                remote.forwarded(ask).await
            };
            tokio::spawn(answer_in_turn(places, piece, move |piece| Wire::FilePiece { id, piece }, answers));
        }
        Wire::AskWay { id, source, file } => {
            let Some(queued) = turns.queue() else {
                let _ = to_agent.send(Wire::Way { id, way: Way::Through }.into());
                return;
            };
            let (remote, answers, places) = (Arc::clone(remote), to_agent.clone(), Arc::clone(&turns.ways));
            let way = async move {
                let _queued = queued;
                remote.way(node, source, file).await
            };
            tokio::spawn(answer_in_turn(places, way, move |way| Wire::Way { id, way }, answers));
        }
        Wire::Mail(_)
        | Wire::Alive
        | Wire::Fetch { .. }
        | Wire::Feed { .. }
        | Wire::Hosts(_)
        | Wire::Log { .. }
        | Wire::Present { .. }
        | Wire::All { .. }
        | Wire::Way { .. }
        | Wire::Expect { .. }
        | Wire::Certificate(_)
        | Wire::Keys(_)
        | Wire::Stored(_)
        | Wire::Users(_)
        | Wire::Shared(_)
        | Wire::WantCertificate { .. } => {}
    }
}

fn unknown_token(side: &Side, secrets: &Secrets) -> Refusal {
    let why = match side {
        Side::JobHost(_) if secrets.identity().is_some() => {
            "this job host joined with a string and knows no tokens; let this daemon join with a string of `amalgam token join`, \
             too"
        }
        Side::Server { .. } => {
            "the server does not know this token; replace it by the output of `amalgam token add --agent NAME` at the \
             server, or for job hosts and global masters by a copy of its tokens.toml, or join with a string of `amalgam token join`; \
             the file is read again for each try"
        }
        Side::JobHost(_) => {
            "the job host does not know this token; if the server does, copy the server's tokens.toml to the job host's \
             --token-file, which is read again for each try"
        }
    };
    Refusal { why: why.to_owned(), obstacle: Obstacle::Token }
}

/// Checks that the holder of a token or certificate may join as what it introduces itself as.
fn may_join(entry: &TokenEntry, hello: &Hello) -> Result<(), String> {
    let what = if entry.token().is_some() { "token" } else { "certificate" };
    if matches!(hello.introduction, Introduction::Standby { .. }) && entry.token().is_some() {
        return Err(
            "a standby needs a certificate, which a string of `amalgam token join --role server` gives it".to_owned()
        );
    }
    let (role, name) = match &entry.holder {
        Holder::User { admin: true, .. } => return Ok(()),
        Holder::User { name, admin: false } => {
            return Err(format!(
                "the token belongs to the user {name}, who is not an administrator; use the output of `amalgam token add \
                 --agent NAME`"
            ));
        }
        Holder::Daemon { role, name } => (*role, name),
    };
    match (role, &hello.introduction) {
        (DaemonRole::Agent, Introduction::Node { name: node }) if name == node => Ok(()),
        // Of a token, the name is not compared: a job host knows only the numbers of nodes, which a certificate has.
        (DaemonRole::Agent, Introduction::NodeOf { .. }) => Ok(()),
        (DaemonRole::JobHost, Introduction::JobHost { host: HostId(host), .. }) if *name == host.to_string() => Ok(()),
        (DaemonRole::Server, Introduction::Standby { name: server }) if name == server => Ok(()),
        (DaemonRole::Server, Introduction::Standby { name: server }) => Err(format!(
            "the {what} belongs to the server {name}, and this is {server}; use --name {name}, or join with a string of `amalgam \
             token join --role server`"
        )),
        (DaemonRole::Global, Introduction::Global(own)) if *name == own.global.0.to_string() => Ok(()),
        (DaemonRole::Global, Introduction::Global(own)) => Err(format!(
            "the {what} belongs to global master {name}, and this is {}; use --number {name}, or join with a string of `amalgam \
             token join --role global`",
            own.global
        )),
        (DaemonRole::Agent, Introduction::Node { name: node }) => Err(format!(
            "the {what} belongs to the agent of node {name}, and this node is named {node}; use --name {name}, or \
             join as {node} with a string of `amalgam token join`"
        )),
        (DaemonRole::JobHost, Introduction::JobHost { host: HostId(host), .. }) => Err(format!(
            "the {what} belongs to job host {name}, and this is job host {host}; use --number {name}, or join as {host} \
             with a string of `amalgam token join --role jobs`"
        )),
        (role, _) => Err(format!(
            "the {what} belongs to the {} {name}, and is for nothing else; join as another daemon with a string \
             of `amalgam token join`, or use an administrator's token",
            role.title()
        )),
    }
}

/// Why a second connection of a peer is refused.
fn is_connected(peer: PeerId, name: &str) -> String {
    match peer {
        PeerId::Node(_) => format!("a node named `{name}` is connected already; give each agent a --name of its own"),
        PeerId::JobHost(host) => are_connected(host),
        PeerId::Global(global) => {
            format!("{global} is connected already; give each global master a --number of its own")
        }
        PeerId::ServerOf(_) | PeerId::JobHostOf(..) | PeerId::Cluster(_) => {
            unreachable!("`admit` returns no such peer")
        }
    }
}

fn are_connected(HostId(host): HostId) -> String {
    format!("job host {host} is connected already; give each job host a --number of its own")
}

/// The server's knowledge of a job host.
struct JobHostStatus {
    is_wanted: bool,
    /// The highest number that the configuration allows.
    most: u8,
    heard: u64,
    settings: JobManagerSettings,
}

impl JobHostStatus {
    fn of(roles: &Roles, host: HostId) -> JobHostStatus {
        let (most, settings) = (roles.dispatch().map_or(0, |dispatch| dispatch.settings.hosts), roles.of_managers());
        // A job host that the configuration no longer allows may still have jobs.
        let has_jobs = || roles.dispatch().is_some_and(|dispatch| dispatch.has_jobs_at(host));
        let is_wanted = host != HostId::SERVER && (host.0 <= most || roles.heard(host) > 0 || has_jobs());
        JobHostStatus { is_wanted, most, heard: roles.heard(host), settings }
    }

    /// # Errors
    /// Why this job host is not wanted.
    fn check(&self, host: HostId) -> Result<(), String> {
        match self.most {
            _ if self.is_wanted => Ok(()),
            0 => Err("this server runs all job managers itself; write `job_hosts = 1` into its configuration, or a higher number"
                .to_owned()),
            most => Err(format!("unknown job host {}; this server's configuration allows job hosts 1 to {most}", host.0)),
        }
    }
}

async fn refuse(mut link: Link, Refusal { why, obstacle }: Refusal) -> io::Error {
    let why = match link.write(&Answer::Refused { why: why.clone(), obstacle }).await {
        Ok(()) => why,
        Err(error) => format!("{why} (it did not wait for this answer: {error})"),
    };
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// The facts of log entries, with their instants converted to this process's clock.
fn facts(entries: &[Entry], offset: ClockOffset) -> Result<Vec<(Instant, Fact)>, String> {
    let fact = |entry: &Entry| {
        let mut fact = decode(entry.as_ref())?;
        if let Fact::Change(change) = &mut fact {
            change.set_clock(offset);
        }
        Ok((Instant(entry.at_micros).by_clock(offset), fact))
    };
    entries.iter().map(fact).collect()
}

#[cfg(test)]
mod tests;
