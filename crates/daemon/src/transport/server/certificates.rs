//! How a listening process authenticates daemons by their certificates, and gives them new ones (ADR 80).

use super::super::standbys::NO_STORE;
use super::super::{Answer, Hello, Introduction, JOINING, LISTENING, Link, Obstacle, Outgoing, Secrets, Terms, Wire};
use super::{Gate, JobHostStatus, NOT_FEDERATED, Refusal, Side, refuse};
use crate::audit::AuditLog;
use crate::auth::joins::{self, Request};
use crate::auth::{self, Credential, DaemonRole, Holder, SharedUser, TokenEntry, Tokens, key_digest};
use crate::authority::{Authority, Certified, Notes, Signers, Subject, Untrusted, Use, end_of, key_of, verify};
use crate::identity::Identity;
use crate::shell::PeerId;
use amalgam_core::hosting::Roles;
use amalgam_core::scheduling::NodeState;
use amalgam_core::vocabulary::{GlobalId, HostId, NodeId};
use rustls::pki_types::CertificateDer;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

/// Interval at which the files of the authority and of the tokens are checked for changes.
const INTERVAL: Duration = Duration::from_secs(1);

/// A peer that has authenticated itself with a certificate.
#[derive(Clone)]
pub(in super::super) struct Certificated {
    subject: Subject,
    /// `SubjectPublicKeyInfo` in DER.
    key: Vec<u8>,
}

/// A task that ends with the connection.
pub(super) struct Beside(JoinHandle<()>);

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Names by which clients on the same machine reach a global master.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Signs certificates of daemons, and notes which of them have stored one.
#[derive(Clone)]
pub struct Certifier {
    pub(in super::super) authority: Arc<Authority>,
    /// Written while a rotation of the authority is under way.
    notes: Arc<Mutex<Notes>>,
    /// Under which name clients reach each global master.
    globals: Arc<[Option<String>]>,
    /// How the federation is configured, for global masters.
    federation: Arc<str>,
    /// Whether agents with tokens get certificates.
    exchanges_tokens: bool,
    /// `None` in tests.
    audit: Option<Arc<AuditLog>>,
    current: watch::Sender<Current>,
}

/// What was last read from the files of the authority and of the tokens.
#[derive(Clone)]
struct Current {
    signers: Arc<Signers>,
    /// The digests of the keys of all agents and of all job hosts.
    keys: Arc<[Vec<String>; 2]>,
    /// For global masters.
    users: Arc<Vec<SharedUser>>,
}

impl Current {
    fn read(authority: &Authority, tokens: Option<&Tokens>) -> Current {
        let now = SystemTime::now();
        let keys = |role| tokens.map_or_else(Vec::new, |tokens| tokens.keys(role, now));
        let keys = Arc::new([DaemonRole::Agent, DaemonRole::JobHost].map(keys));
        let users = Arc::new(tokens.map_or_else(Vec::new, Tokens::users));
        Current { signers: authority.signers(), keys, users }
    }
}

impl Certifier {
    /// `globals` are the names or addresses under which clients on other machines reach the global masters, by number.
    pub fn new(authority: Arc<Authority>, globals: Vec<Option<String>>, exchanges_tokens: bool) -> Certifier {
        let federation = Arc::from("");
        let notes = Arc::new(Mutex::new(Notes::new(Arc::clone(&authority))));
        let (current, _) = watch::channel(Current::read(&authority, None));
        Certifier { authority, notes, globals: globals.into(), federation, exchanges_tokens, audit: None, current }
    }

    /// The same, and records which daemons got certificates or were refused.
    #[must_use]
    pub fn recording(self, audit: Arc<AuditLog>) -> Certifier {
        Certifier { audit: Some(audit), ..self }
    }

    fn record(&self, daemon: &str, from: String, request: &str, refused: Option<&str>) {
        if let Some(audit) = &self.audit {
            audit.add_daemon(daemon, from, request, refused);
        }
    }

    /// The same, and tells global masters how their federation is configured.
    #[must_use]
    pub fn describing(self, federation: &str) -> Certifier {
        Certifier { federation: federation.into(), ..self }
    }

    fn certify(&self, subject: &Subject, key: &[u8]) -> Result<Certified, rcgen::Error> {
        let mut certified = self.authority.certify(subject, key)?;
        if subject.role == DaemonRole::Global {
            certified.federation = self.federation.to_string();
        }
        let number = Some(&subject.name).filter(|_| subject.role == DaemonRole::Global);
        let place = number.and_then(|number| number.parse::<usize>().ok());
        let Some(place) = place else { return Ok(certified) };
        let mut names = LOOPBACK.map(str::to_owned).to_vec();
        names.extend(self.globals.get(place).cloned().flatten());
        self.authority.certify_for_clients(certified, key, &names)
    }

    /// A daemon has stored a certificate that an authority with this fingerprint signed.
    pub(super) fn note(&self, certified: &Certificated, authority: &str) {
        let digest = key_digest(&certified.key);
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).add(&digest, authority);
    }

    /// Replaces the certificate of this server for the others of its cluster, if it has one.
    fn renew_own(&self) {
        let renewed = match Identity::load(self.authority.state_dir()) {
            Ok(Some(identity)) => identity.renew_by(&self.authority),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        match renewed {
            Ok(Some((key, signer))) => self.notes.lock().unwrap_or_else(PoisonError::into_inner).add(&key, &signer),
            Ok(None) => {}
            Err(error) => {
                tracing::error!("{error}; this server cannot stand by until this is done: {}", error.remedy())
            }
        }
    }

    /// Reads the files of the authority and of the tokens again, and writes what has changed, for as long as the process runs.
    pub(super) async fn keep_current(self, secrets: Secrets) {
        /// How often the server's own certificate is replaced, in readings: once a day.
        const RENEWED: u64 = 86_400 / INTERVAL.as_secs();
        for reading in 0_u64.. {
            let (certifier, secrets) = (self.clone(), secrets.clone());
            let read = move || {
                let tokens = match &secrets {
                    Secrets::Server(tokens) => Some(&**tokens),
                    _ => None,
                };
                let new = Current::read(&certifier.authority, tokens);
                let mut is_new = false;
                certifier.current.send_if_modified(|current| {
                    let is_same = Arc::ptr_eq(&current.signers, &new.signers)
                        && current.keys == new.keys
                        && current.users == new.users;
                    if !is_same {
                        *current = new;
                    }
                    is_new = !is_same;
                    is_new
                });
                if is_new || reading % RENEWED == 0 {
                    certifier.renew_own();
                }
                certifier.notes.lock().unwrap_or_else(PoisonError::into_inner).write();
            };
            let _ = tokio::task::spawn_blocking(read).await;
            sleep(INTERVAL).await;
        }
    }
}

impl Gate {
    /// The entry of the token that a peer has.
    pub(super) fn by_token(&self, bound: &[u8], hello: &Hello) -> Result<TokenEntry, Refusal> {
        let entries = self.secrets.all().map_err(|error| Refusal {
            why: format!("the tokens of this process cannot be used: {error}"),
            obstacle: Obstacle::Passing,
        })?;
        let has_proven =
            |entry: &TokenEntry| entry.token().is_some_and(|token| auth::verify(token, JOINING, bound, &hello.proof));
        entries.into_iter().find(has_proven).ok_or_else(|| super::unknown_token(&self.side, &self.secrets))
    }

    /// The entry of the daemon that a peer's certificate names.
    pub(super) fn by_certificate(
        &self,
        chain: &[CertificateDer<'static>],
        hello: &Hello,
    ) -> Result<(TokenEntry, Certificated), Refusal> {
        let refused = |why: String| Refusal { why, obstacle: Obstacle::Token };
        let (trusted, verifier) = match (&self.certifier, self.secrets.identity()) {
            (Some(certifier), _) => (certifier.authority.signers().anchors(), None),
            (None, Some(identity)) => (identity.trusted(), Some(identity)),
            (None, None) => {
                return Err(refused(
                    "this job host has no certificate, and cannot verify yours; let it join with a string of `amalgam token \
                     join --role jobs`"
                        .to_owned(),
                ));
            }
        };
        verify(chain, &trusted, Use::Joining).map_err(|why| refused(remedied(&why)))?;
        let parsed = || Ok((Subject::of(&chain[0])?, key_of(&chain[0])?, end_of(&chain[0])?));
        let (subject, key, end) = parsed().map_err(|why: Untrusted| refused(why.to_string()))?;
        let digest = key_digest(&key);
        let revoked = || {
            refused(format!(
                "the certificate of {subject} has been revoked, or is not known here; join again with a string of `amalgam token \
                 join`"
            ))
        };
        if let (Introduction::NodeOf { node: NodeId(node) }, Some(own)) = (&hello.introduction, subject.number)
            && *node != own
        {
            return Err(refused(format!("the certificate of {subject} is for node {own}, not {node}")));
        }
        if let (DaemonRole::Global, Side::Server { federated: Some(own), .. }) = (subject.role, &self.side)
            && subject.number != Some(own.cluster.0.into())
        {
            return Err(refused(format!("the certificate of {subject} is for another cluster than {}", own.cluster)));
        }
        let entry = match (&self.secrets, verifier) {
            (Secrets::Server(tokens), _) => {
                let entry = tokens.entry_of_key(&digest).ok_or_else(revoked)?;
                let named = Holder::Daemon { role: subject.role, name: subject.name.clone() };
                if entry.holder != named {
                    return Err(revoked());
                }
                entry
            }
            (_, Some(identity)) => {
                if !identity.allows(&digest) {
                    return Err(revoked());
                }
                if subject.number.is_none() {
                    return Err(refused(format!(
                        "the certificate of {subject} has no number yet; connect to the server first"
                    )));
                }
                let until = UNIX_EPOCH + Duration::from_secs(end.try_into().unwrap_or(0));
                let holder = Holder::Daemon { role: subject.role, name: subject.name.clone() };
                TokenEntry { until: Some(until), ..TokenEntry::with_key(holder, &key) }
            }
            (_, None) => return Err(revoked()),
        };
        Ok((entry, Certificated { subject, key }))
    }

    /// Gives a machine that proves the secret of a join string a certificate.
    pub(super) async fn give_certificate(
        &self,
        (mut link, from): (Link, SocketAddr),
        nonce: &[u8; 32],
        hello: Hello,
    ) -> io::Result<()> {
        let Introduction::Join { role, name, key } = hello.introduction else { return Ok(()) };
        let (Secrets::Server(tokens), Some(certifier)) = (&self.secrets, &self.certifier) else {
            let why = "this is no server: join strings are for the server's address for agents".to_owned();
            return Err(refuse(link, Refusal::for_good(why)).await);
        };
        if link.binding.is_empty() {
            let why = "a certificate is not given without encryption".to_owned();
            return Err(refuse(link, Refusal { why, obstacle: Obstacle::Passing }).await);
        }
        let Ok(is_up) = self.is_up(role, &name).await else {
            return Err(refuse(link, Refusal::stopping()).await);
        };
        let subject = Subject { role, name, number: None };
        let described = subject.to_string();
        let (bound, proof) = (link.bound(nonce), hello.proof);
        let proves = move |secret: &str| auth::verify(secret, JOINING, &bound, &proof);
        match self.redeemed((certifier, tokens.path()), subject, (key, is_up, from), proves).await? {
            Ok((secret, certified)) => {
                tracing::info!("{described} used a join string and has a certificate now");
                let proof = auth::prove(&secret, LISTENING, &link.bound(&hello.nonce));
                let terms = Terms::Join(Box::new(certified));
                link.write(&Answer::Accepted { incarnation: 0, terms, proof, longest_silence: None }).await
            }
            Err(refusal) => {
                certifier.record(&described, from.to_string(), "join with a string", Some(&refusal.why));
                Err(refuse(link, refusal).await)
            }
        }
    }

    /// The secret of the string that was used, and the certificate; or why there is none.
    async fn redeemed(
        &self,
        (certifier, token_file): (&Certifier, &Path),
        subject: Subject,
        (key, is_up, from): (Vec<u8>, bool, SocketAddr),
        proves: impl Fn(&str) -> bool + Clone + Send + 'static,
    ) -> io::Result<Result<(String, Certified), Refusal>> {
        let path = token_file.to_owned();
        // A stranger learns nothing about the cluster.
        let (role, proves_any) = (subject.role, proves.clone());
        let is_known = tokio::task::spawn_blocking(move || joins::has(&path, role, proves_any));
        if let Err(why) = is_known.await.map_err(io::Error::other)? {
            return Ok(Err(Refusal::for_good(why)));
        }
        let number = match self.check_role(subject.role, &subject.name).await {
            Ok(number) => number,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let subject = Subject { number, ..subject };
        // Before the string is used.
        let certified = match certifier.certify(&subject, &key) {
            Ok(certified) => certified,
            Err(error) => {
                let why = format!("a certificate for this key cannot be signed: {error}");
                return Ok(Err(Refusal::for_good(why)));
            }
        };
        let (path, certifier) = (token_file.to_owned(), certifier.clone());
        // Also if the connection ends meanwhile, the use of the string is recorded.
        let given = tokio::task::spawn_blocking(move || {
            let Subject { role, name, .. } = &subject;
            let given = joins::give(&path, &Request { role: *role, name, key: &key, is_up }, proves);
            given.inspect(|_| certifier.record(&subject.to_string(), from.to_string(), "join with a string", None))
        });
        let secret = given.await.map_err(io::Error::other)?;
        Ok(secret.map(|secret| (secret, certified)).map_err(Refusal::for_good))
    }

    /// Checks that this server can have a daemon of this role. Returns the number for its certificate.
    async fn check_role(&self, role: DaemonRole, name: &str) -> Result<Option<u32>, Refusal> {
        let wrong = |why: String| Err(Refusal::for_good(why));
        match (role, &self.side) {
            (DaemonRole::Global, Side::Server { federated: Some(own), .. }) => {
                let globals = own.federation.globals;
                match name.parse::<u8>() {
                    Ok(number) if number < globals => Ok(Some(own.cluster.0.into())),
                    _ => wrong(format!("unknown global master {name}; known: 0 to {}", globals - 1)),
                }
            }
            (DaemonRole::Global, _) => wrong(NOT_FEDERATED.to_owned()),
            (DaemonRole::Server, _) if self.lease.is_none() => wrong(NO_STORE.to_owned()),
            (DaemonRole::JobHost, _) => {
                let Ok(host) = name.parse().map(HostId) else {
                    return wrong(format!("`{name}` is not the number of a job host"));
                };
                let status = self.handle.ask(move |roles, _| JobHostStatus::of(roles, host)).await;
                let status = status.map_err(|_| Refusal::stopping())?;
                status.check(host).map(|()| None).map_err(Refusal::for_good)
            }
            (DaemonRole::Agent | DaemonRole::Server, _) => Ok(None),
        }
    }

    /// Whether a daemon of this role and name is connected.
    async fn is_up(&self, role: DaemonRole, name: &str) -> Result<bool, ()> {
        match role {
            DaemonRole::Agent => {
                let name = name.to_owned();
                self.handle.ask(move |roles, _| is_node_up(roles, &name)).await.map_err(drop)
            }
            DaemonRole::JobHost => {
                let hosts = self.handle.routes().job_hosts();
                Ok(name.parse().is_ok_and(|host| hosts.contains_key(&HostId(host))))
            }
            DaemonRole::Global => {
                let is_connected = |global| self.handle.routes().has(PeerId::Global(GlobalId(global)));
                Ok(name.parse().is_ok_and(is_connected))
            }
            DaemonRole::Server => Ok(false),
        }
    }

    /// Sends the peer a certificate now, when the authority changes, and before it ends.
    pub(super) fn keep_certified(
        &self,
        certified: &Certificated,
        node: Option<NodeId>,
        wire: &mpsc::UnboundedSender<Outgoing>,
    ) -> Option<Beside> {
        let certifier = self.certifier.clone()?;
        let Certificated { subject, key } = certified.clone();
        let subject = Subject { number: node.map(|NodeId(node)| node).or(subject.number), ..subject };
        let wire = wire.clone();
        let mut current = certifier.current.subscribe();
        let signers = Arc::clone(&current.borrow_and_update().signers);
        let send = move || match certifier.certify(&subject, &key) {
            Ok(new) => drop(wire.send(Wire::Certificate(Box::new(new)).into())),
            Err(error) => tracing::error!("the certificate of {subject} cannot be replaced: {error}"),
        };
        // Queued before everything else.
        send();
        Some(Beside(tokio::spawn(keep_sending(current, signers, Authority::RENEWED_AFTER, send))))
    }

    /// A daemon has stored the last certificate.
    pub(in super::super) fn note_stored(&self, certified: Option<&Certificated>, authority: &str) {
        if let (Some(certifier), Some(certified)) = (&self.certifier, certified) {
            certifier.note(certified, authority);
        }
    }

    /// Tells a daemon which keys may authenticate the daemons that it meets, now and when they change: a job host those of agents,
    /// an agent those of job hosts.
    pub(super) fn keep_informed(&self, role: DaemonRole, wire: &mpsc::UnboundedSender<Outgoing>) -> Option<Beside> {
        let mut current = self.certifier.as_ref()?.current.subscribe();
        let wire = wire.clone();
        Some(Beside(tokio::spawn(async move {
            let mut sent = None;
            loop {
                let [agents, job_hosts] = (*current.borrow_and_update().keys).clone();
                let keys = match role {
                    DaemonRole::Agent => job_hosts,
                    DaemonRole::JobHost | DaemonRole::Global | DaemonRole::Server => agents,
                };
                if sent.as_ref() != Some(&keys) {
                    sent = Some(keys.clone());
                    if wire.send(Wire::Keys(keys).into()).is_err() {
                        return;
                    }
                }
                if current.changed().await.is_err() {
                    return;
                }
            }
        })))
    }
}

impl Gate {
    /// Gives an agent a certificate instead of its token, if all that it connects to accept certificates: job hosts may have tokens, and
    /// a standby an authority of its own.
    pub(super) async fn exchange_token(
        &self,
        node: NodeId,
        name: &str,
        token: Credential,
        key: Vec<u8>,
        wire: &mpsc::UnboundedSender<Outgoing>,
    ) {
        let (Secrets::Server(tokens), Some(certifier), None) = (&self.secrets, &self.certifier, self.lease) else {
            return;
        };
        let hosts = self.handle.ask(|roles, _| roles.dispatch().map_or(0, |dispatch| dispatch.settings.hosts)).await;
        if !certifier.exchanges_tokens || hosts.is_err() || hosts.is_ok_and(|hosts| hosts > 0) {
            return;
        }
        let subject = Subject { role: DaemonRole::Agent, name: name.to_owned(), number: Some(node.0) };
        let (path, holder) = (tokens.path().to_owned(), Holder::agent(name));
        let exchanged = match certifier.certify(&subject, &key) {
            Ok(certified) => {
                let exchange = move || joins::exchange(&path, holder, &token, &key);
                let added = tokio::task::spawn_blocking(exchange).await.map_err(|error| error.to_string()).flatten();
                let what = "exchange of a token for a certificate";
                added.map(|()| {
                    certifier.record(&subject.to_string(), "its connection".to_owned(), what, None);
                    certified
                })
            }
            Err(error) => Err(error.to_string()),
        };
        match exchanged {
            Ok(certified) => {
                tracing::info!("{subject} has a certificate now, and its token ends");
                let _ = wire.send(Wire::Certificate(Box::new(certified)).into());
            }
            Err(why) => tracing::warn!("{subject} keeps its token: {why}"),
        }
    }

    /// Sends a global master the users whose tokens it accepts, now and when they change.
    pub(super) fn keep_users_known(&self, wire: &mpsc::UnboundedSender<Outgoing>) -> Option<Beside> {
        let mut current = self.certifier.as_ref()?.current.subscribe();
        // Its first value is from before the tokens were read.
        let first = Arc::new(match &self.secrets {
            Secrets::Server(tokens) => tokens.users(),
            _ => Vec::new(),
        });
        let wire = wire.clone();
        Some(Beside(tokio::spawn(async move {
            // Also a list without users is sent.
            let mut sent = None;
            let mut users = first;
            loop {
                if sent.as_ref() != Some(&users) {
                    if wire.send(Wire::Users(users.to_vec()).into()).is_err() {
                        return;
                    }
                    sent = Some(users);
                }
                if current.changed().await.is_err() {
                    return;
                }
                users = Arc::clone(&current.borrow_and_update().users);
            }
        })))
    }
}

fn is_node_up(roles: &Roles, name: &str) -> bool {
    let (Some(dispatch), Some(master)) = (roles.dispatch(), &roles.master) else { return false };
    dispatch.names.find(name).is_some_and(|node| master.ledger().state(node) == Some(NodeState::Up))
}

fn remedied(why: &Untrusted) -> String {
    let join = "join again with a string of `amalgam token join`";
    match why {
        Untrusted::NotYet => why.to_string().replacen("its", "your", 1),
        Untrusted::Expired
        | Untrusted::Revoked
        | Untrusted::OtherAuthority
        | Untrusted::Invalid(_)
        | Untrusted::Other { .. } => {
            format!("{}; {join}", why.to_string().replacen("its", "your", 1))
        }
    }
}

/// Sends again whenever the signers change, and `period` after the last time.
async fn keep_sending(
    mut current: watch::Receiver<Current>,
    mut signers: Arc<Signers>,
    period: Duration,
    send: impl Fn(),
) {
    let mut due = Instant::now() + period;
    loop {
        match timeout_at(due, current.changed()).await {
            Ok(Ok(())) if Arc::ptr_eq(&signers, &current.borrow_and_update().signers) => continue,
            Ok(Ok(())) | Err(_) => {}
            Ok(Err(_)) => return,
        }
        signers = Arc::clone(&current.borrow().signers);
        due = Instant::now() + period;
        send();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn a_certificate_is_sent_again_in_time_and_when_the_authority_changes_only() {
        let state = || Current::read(&Authority::open(tempfile::tempdir().unwrap().path()).unwrap(), None);
        let first = state();
        let sent = Arc::new(AtomicUsize::new(0));
        let start = |period| {
            let (change, current) = watch::channel(first.clone());
            let counted = Arc::clone(&sent);
            let send = move || {
                counted.fetch_add(1, Ordering::Relaxed);
            };
            (change, tokio::spawn(keep_sending(current, Arc::clone(&first.signers), period, send)))
        };
        let patience = Duration::from_secs(60);
        let until = async |count: usize| {
            let reached = async {
                while sent.load(Ordering::Relaxed) < count {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(patience, reached).await.expect("it was not sent");
        };
        let (change, task) = start(Duration::from_millis(20));
        until(3).await;
        drop(change);
        task.await.unwrap();
        // Without a change of the authority, and before its time, nothing is sent.
        sent.store(0, Ordering::Relaxed);
        let (change, task) = start(Duration::from_secs(3_600));
        change.send(first.clone()).unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(sent.load(Ordering::Relaxed), 0);
        change.send(state()).unwrap();
        until(1).await;
        drop(change);
        task.await.unwrap();
        assert_eq!(sent.load(Ordering::Relaxed), 1);
    }
}
