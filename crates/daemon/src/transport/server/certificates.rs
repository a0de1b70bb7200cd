//! How a listening process authenticates daemons by their certificates, and gives them new ones (ADR 80).

use super::super::{Answer, Hello, Introduction, JOINING, LISTENING, Link, Obstacle, Outgoing, Secrets, Terms, Wire};
use super::{Gate, Refusal, refuse};
use crate::auth::joins::{self, Request};
use crate::auth::{self, DaemonRole, Holder, TokenEntry, key_digest};
use crate::authority::{Authority, Notes, Subject, Untrusted, Use, end_of, key_of, verify};
use amalgam_core::hosting::Roles;
use amalgam_core::scheduling::NodeState;
use amalgam_core::vocabulary::{HostId, NodeId};
use rustls::pki_types::CertificateDer;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Interval at which the files of the authority and of the tokens are checked for changes.
const INTERVAL: Duration = Duration::from_secs(1);

/// A peer that has authenticated itself with a certificate.
pub(super) struct Certificated {
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

/// Signs certificates of daemons, and notes to which it has sent one.
#[derive(Clone)]
pub struct Certifier {
    authority: Arc<Authority>,
    /// Written while a rotation of the authority is under way.
    notes: Arc<Mutex<Notes>>,
}

impl Certifier {
    pub fn new(authority: Arc<Authority>) -> Certifier {
        let notes = Arc::new(Mutex::new(Notes::new(Arc::clone(&authority))));
        Certifier { authority, notes }
    }

    fn note(&self, key_digest: &str) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).add(key_digest);
    }

    /// Writes what has changed, for as long as the process runs.
    pub(super) async fn keep_written(self) {
        loop {
            sleep(INTERVAL).await;
            let notes = Arc::clone(&self.notes);
            let write = move || notes.lock().unwrap_or_else(PoisonError::into_inner).write();
            let _ = tokio::task::spawn_blocking(write).await;
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
            (Some(certifier), _) => (certifier.authority.signers().trusted.clone(), None),
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
    pub(super) async fn give_certificate(&self, mut link: Link, nonce: &[u8; 32], hello: Hello) -> io::Result<()> {
        let Introduction::Join { role, name, key } = hello.introduction else { return Ok(()) };
        let (Secrets::Server(tokens), Some(Certifier { authority, .. })) = (&self.secrets, &self.certifier) else {
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
        // Before the string is used.
        let certified = match authority.certify(&subject, &key) {
            Ok(certified) => certified,
            Err(error) => {
                let why = format!("a certificate for this key cannot be signed: {error}");
                return Err(refuse(link, Refusal::for_good(why)).await);
            }
        };
        let (bound, proof, path) = (link.bound(nonce), hello.proof, tokens.path().to_owned());
        let described = subject.to_string();
        let given = tokio::task::spawn_blocking(move || {
            let Subject { role, name, .. } = &subject;
            let request = Request { role: *role, name, key: &key, is_up };
            joins::give(&path, &request, |secret| auth::verify(secret, JOINING, &bound, &proof))
        });
        match given.await.map_err(io::Error::other)? {
            Ok(secret) => {
                tracing::info!("{described} used a join string and has a certificate now");
                let proof = auth::prove(&secret, LISTENING, &link.bound(&hello.nonce));
                let terms = Terms::Join(Box::new(certified));
                link.write(&Answer::Accepted { incarnation: 0, terms, proof, longest_silence: None }).await
            }
            Err(why) => Err(refuse(link, Refusal::for_good(why)).await),
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
        }
    }

    /// Sends the peer a certificate now, when the authority changes, and before it ends.
    pub(super) fn keep_certified(
        &self,
        certified: Certificated,
        node: Option<NodeId>,
        wire: &mpsc::UnboundedSender<Outgoing>,
    ) -> Option<Beside> {
        let certifier = self.certifier.clone()?;
        let Certificated { subject, key } = certified;
        let subject = Subject { number: node.map(|NodeId(node)| node).or(subject.number), ..subject };
        let (wire, digest) = (wire.clone(), key_digest(&key));
        let authority = Arc::clone(&certifier.authority);
        let send = move || match certifier.authority.certify(&subject, &key) {
            Ok(new) => {
                certifier.note(&digest);
                let _ = wire.send(Wire::Certificate(Box::new(new)).into());
            }
            Err(error) => tracing::error!("the certificate of {subject} cannot be replaced: {error}"),
        };
        // Queued before everything else.
        let mut signers = authority.signers();
        send();
        Some(Beside(tokio::spawn(async move {
            let mut sent = Instant::now();
            loop {
                sleep(INTERVAL).await;
                let now = authority.signers();
                if !Arc::ptr_eq(&now, &signers) || sent.elapsed() >= Authority::RENEWED_AFTER {
                    (signers, sent) = (now, Instant::now());
                    send();
                }
            }
        })))
    }

    /// Tells a job host the keys of all daemons with certificates, now and when they change.
    pub(super) fn keep_informed(&self, wire: &mpsc::UnboundedSender<Outgoing>) -> Option<Beside> {
        let Secrets::Server(tokens) = &self.secrets else { return None };
        let (tokens, wire) = (Arc::clone(tokens), wire.clone());
        Some(Beside(tokio::spawn(async move {
            let mut sent = None;
            loop {
                let keys = tokens.keys(SystemTime::now());
                if sent.as_ref() != Some(&keys) {
                    sent = Some(keys.clone());
                    if wire.send(Wire::Keys(keys).into()).is_err() {
                        return;
                    }
                }
                sleep(INTERVAL).await;
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
        Untrusted::Expired | Untrusted::OtherAuthority | Untrusted::Invalid(_) | Untrusted::Other { .. } => {
            format!("{}; {join}", why.to_string().replacen("its", "your", 1))
        }
    }
}
