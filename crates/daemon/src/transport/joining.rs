//! The joining side of a connection.

use super::{
    Answer, Challenge, DOWNGRADED, HANDSHAKE, HANDSHAKE_AMONG_SEVERAL, Hello, Introduction, JOIN_SINCE, JOINING,
    Joined, LISTENING, Link, Obstacle, Patience, Secrets, Terms, Validity, join_patiently,
};
use crate::auth::joins::JoinString;
use crate::auth::{self, AuthError, DaemonRole, Holder, TokenEntry};
use crate::authority::{Certified, Expected, Untrusted, key_of};
use crate::channel::Channel;
use crate::identity::NewKey;
use crate::versions::{PROGRAM, WIRE};
use std::io;
use std::time::Duration;
use tokio::time::timeout;

/// Maximum size in bytes of a listening daemon's first frames: certificates of an organisation's authorities may be long.
const ANSWER_FRAME: usize = 64 * 1024;

/// Why a daemon cannot join another one.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("cannot reach {address}: {error}")]
    Unreachable { address: String, error: io::Error },
    #[error("{address} refuses the connection: {why}")]
    Refused { address: String, why: String, obstacle: Obstacle },
    #[error("the daemon at {address} is not trusted: {why}")]
    Untrusted { address: String, why: Untrusted },
    #[error("the peer at {address} cannot prove that it has the token; check the address")]
    Impostor { address: String },
    #[error(transparent)]
    Auth(#[from] AuthError),
}

impl JoinError {
    pub(crate) fn lasting(address: &str, why: String) -> JoinError {
        JoinError::Refused { address: address.to_owned(), why, obstacle: Obstacle::Lasting }
    }

    /// Whether trying again is useless without a change of the configuration or the version.
    pub fn is_lasting(&self) -> bool {
        matches!(self, JoinError::Refused { obstacle: Obstacle::Lasting, .. })
    }

    pub(super) fn is_of_network(&self) -> bool {
        matches!(self, JoinError::Unreachable { .. } | JoinError::Refused { obstacle: Obstacle::Passing, .. })
    }
}

/// Joins the daemon at one of these addresses, which are separated by commas. An active master and its standbys have
/// several. The addresses are tried in order, and the first daemon that answers is joined.
///
/// # Errors
/// If the daemon cannot be reached, refuses the connection, or cannot prove that it has the same token.
pub async fn join(
    addresses: &str,
    secrets: &Secrets,
    introduction: impl Fn() -> Introduction,
) -> Result<Joined, JoinError> {
    let patience = if addresses.contains(',') { HANDSHAKE_AMONG_SEVERAL } else { HANDSHAKE };
    let mut errors = Vec::new();
    for address in addresses.split(',').map(str::trim) {
        let late = |_| {
            let error = io::Error::new(io::ErrorKind::TimedOut, "no answer; check that this is its address for agents");
            JoinError::Unreachable { address: address.to_owned(), error }
        };
        match timeout(patience, shake_hands(address, secrets, introduction())).await.map_err(late).flatten() {
            Err(JoinError::Unreachable { error, .. }) => errors.push(error),
            answer => return answer,
        }
    }
    let error = match errors.pop() {
        Some(only) if errors.is_empty() => only,
        last => {
            let all: Vec<String> = errors.iter().chain(&last).map(io::Error::to_string).collect();
            io::Error::other(all.join("; "))
        }
    };
    Err(JoinError::Unreachable { address: addresses.to_owned(), error })
}

/// Exchanges a join string for a certificate with which the daemon joins from then on. Tries for this long if the server
/// cannot be reached.
///
/// # Errors
/// If the server cannot be reached, or refuses the string or the name.
pub fn redeem(
    string: &JoinString,
    role: DaemonRole,
    name: &str,
    key: &NewKey,
    patience: Duration,
) -> Result<Certified, JoinError> {
    let unreachable = |error| JoinError::Unreachable { address: string.address.clone(), error };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(unreachable)?;
    let secrets = Secrets::Single(string.secret.clone());
    let introduction = || Introduction::Join { role, name: name.to_owned(), key: key.public() };
    let joining = join_patiently(&string.address, &secrets, introduction, Patience::AtFirst(patience));
    match runtime.block_on(joining)?.terms {
        Terms::Join(certified) => Ok(*certified),
        _ => Err(JoinError::lasting(&string.address, "it sent other terms than a certificate".to_owned())),
    }
}

async fn shake_hands(address: &str, secrets: &Secrets, introduction: Introduction) -> Result<Joined, JoinError> {
    let unreachable = |error| JoinError::Unreachable { address: address.to_owned(), error };
    let token = secrets.own()?;
    let mutual = secrets.mutual();
    let has_certificate = mutual.is_some();
    let channel = Channel::connect(address, mutual).await.map_err(|error| match untrusted(&error) {
        Some(why) => JoinError::Untrusted { address: address.to_owned(), why: why.clone() },
        None => unreachable(error),
    })?;
    let local = channel.local_ip();
    let mut link = Link::new(channel, ANSWER_FRAME).map_err(unreachable)?;
    let challenge: Challenge = link.read().await.map_err(unreachable)?;
    let Some(version) = link.versions().common(challenge.versions) else {
        let why = format!(
            "it supports protocol {}, and this program supports {WIRE}; install programs of the same version",
            challenge.versions
        );
        return Err(JoinError::lasting(address, why));
    };
    if link.is_downgraded(&challenge.nonce) {
        return Err(unreachable(io::Error::other(DOWNGRADED)));
    }
    if matches!(introduction, Introduction::Join { .. }) && version < JOIN_SINCE {
        let why = "its program is older, and has no join strings; use a token of `amalgam token add --agent NAME`";
        return Err(JoinError::lasting(address, why.to_owned()));
    }
    let introduction = match introduction {
        Introduction::Global(own) => Introduction::Global(Box::new(own.for_version(version))),
        other => other,
    };
    let nonce = link.nonce()?;
    let proof = auth::prove(&token, JOINING, &link.bound(&challenge.nonce));
    let program = Some(PROGRAM.to_owned());
    link.write(&Hello { version, introduction, nonce, proof, program }).await.map_err(unreachable)?;
    match link.read().await.map_err(unreachable)? {
        Answer::Accepted { incarnation, terms, proof, longest_silence } => {
            // Certificates have authenticated both sides.
            if !has_certificate && !auth::verify(&token, LISTENING, &link.bound(&nonce), &proof) {
                return Err(JoinError::Impostor { address: address.to_owned() });
            }
            link.trust();
            link.validity = listeners_validity(secrets, &link);
            link.version = version;
            link.longest_silence = longest_silence.map(|longest| Duration::from_micros(longest.as_micros()));
            Ok(Joined { terms, incarnation, link, local })
        }
        Answer::Refused { why, obstacle } => Err(JoinError::Refused { address: address.to_owned(), why, obstacle }),
    }
}

/// Watches whether the certificate of a job host is revoked while the connection lasts.
fn listeners_validity(secrets: &Secrets, link: &Link) -> Option<Validity> {
    let (_, Expected::JobHost(host)) = secrets.mutual()? else { return None };
    let key = key_of(link.peer_chain.first()?).ok()?;
    let holder = Holder::Daemon { role: DaemonRole::JobHost, name: host.to_string() };
    Validity::of(secrets, &TokenEntry::with_key(holder, &key))
}

fn untrusted(error: &io::Error) -> Option<&Untrusted> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}
