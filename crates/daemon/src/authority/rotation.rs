//! Replacing the authority while everything runs (ADR 80).
//!
//! A rotation begins with a second authority that everybody gets to trust: it is added to `ca.pem`, the running server
//! sends it to all daemons, and signs their certificates with it from then on. Its own certificates are still signed by
//! the first one, until clients have the new `ca.pem`. When the rotation is finished, the first one is gone.

use super::{Authority, AuthorityError, Signers, certificates, issue, key, malformed, of, place, subject};
use crate::auth::{self, Credential, Holder};
use rcgen::KeyPair;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// What `ca.pem` becomes at the end of a rotation: the next authority, and those that signed its certificate.
pub(crate) const NEXT_FILE: &str = "ca-next.pem";
/// Which daemons have certificates of the next authority.
const GIVEN_FILE: &str = "ca-next-given.json";

/// An authority of a state directory, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    pub name: String,
    /// SHA-256 of its certificate, in hexadecimal.
    pub fingerprint: String,
    /// The end of its validity, in seconds since 1970.
    pub until: i64,
    pub signs_server: bool,
    pub signs_daemons: bool,
}

/// The authorities of a state directory, and the daemons that do not have certificates of the next one yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Progress {
    pub authorities: Vec<Standing>,
    pub is_rotating: bool,
    pub missing: Vec<Holder>,
}

/// The daemons with certificates of an authority.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Given {
    /// SHA-256 of the authority's certificate.
    authority: String,
    /// Digests of the daemons' keys.
    keys: BTreeSet<String>,
}

impl Progress {
    /// # Errors
    /// If the files cannot be used.
    pub fn of(state_dir: &Path) -> Result<Progress, AuthorityError> {
        let _lock = auth::lock(state_dir).map_err(of(state_dir))?;
        let signers = Signers::read(state_dir)?;
        let standing = |certificate: &CertificateDer<'static>| {
            let wrong = |error| malformed(&state_dir.join(Authority::FILE), error);
            Ok(Standing {
                name: subject::common_name(certificate).map_err(wrong)?,
                fingerprint: fingerprint(certificate),
                until: subject::end_of(certificate).map_err(wrong)?,
                signs_server: signers.server.certificate == *certificate,
                signs_daemons: signers.for_daemons().certificate == *certificate,
            })
        };
        let authorities = signers.trusted.iter().map(standing).collect::<Result<Vec<_>, AuthorityError>>()?;
        let is_rotating = signers.next.is_some();
        let missing = if is_rotating { missing(state_dir, &Given::read(state_dir, &signers))? } else { Vec::new() };
        Ok(Progress { authorities, is_rotating, missing })
    }
}

impl Given {
    /// Those of the authority that signs certificates of daemons now.
    pub fn read(state_dir: &Path, signers: &Signers) -> Given {
        let authority = fingerprint(&signers.for_daemons().certificate);
        let text = fs::read(state_dir.join(GIVEN_FILE)).ok();
        let given = text.and_then(|text| serde_json::from_slice::<Given>(&text).ok());
        given.filter(|given| given.authority == authority).unwrap_or(Given { authority, keys: BTreeSet::new() })
    }
}

/// Notes which daemons have stored certificates of the next authority, while a rotation is under way.
pub struct Notes {
    authority: Arc<Authority>,
    given: Given,
    is_written: bool,
}

impl Notes {
    pub fn new(authority: Arc<Authority>) -> Notes {
        let given = Given::read(&authority.state_dir, &authority.signers());
        Notes { authority, given, is_written: true }
    }

    /// Notes that the daemon with this key has stored a certificate of the authority with this fingerprint.
    pub fn add(&mut self, key_digest: &str, authority: &str) {
        let signers = self.authority.signers();
        if authority != fingerprint(&signers.for_daemons().certificate) {
            return;
        }
        if self.given.authority != fingerprint(&signers.for_daemons().certificate) {
            self.given = Given::read(&self.authority.state_dir, &signers);
        }
        self.is_written &= !self.given.keys.insert(key_digest.to_owned());
    }

    /// Writes what has changed.
    pub fn write(&mut self) {
        if self.is_written || self.authority.signers().next.is_none() {
            return;
        }
        self.is_written = true;
        let text = serde_json::to_string(&self.given).expect("strings can be written as JSON");
        if let Err(error) = place(&self.authority.state_dir.join(GIVEN_FILE), &text) {
            tracing::warn!("{error}; the rotation of the authority can be finished with --force only");
        }
    }
}

/// Begins a rotation to a new authority.
///
/// # Errors
/// If another is under way, or a file cannot be used.
pub fn start(state_dir: &Path) -> Result<(), AuthorityError> {
    let _lock = auth::lock(state_dir).map_err(of(state_dir))?;
    let key_path = state_dir.join(Authority::NEXT_KEY_FILE);
    check_idle(state_dir)?;
    let key = KeyPair::generate()?;
    place(&key_path, &key.serialize_pem())?;
    add_next(state_dir, &issue::authority(&key)?)
}

/// Makes an organisation's authority that of the cluster: at once if the directory has none yet, otherwise as [`start`]. `chain`
/// is a file with its certificate, followed by those of the authorities that signed it.
///
/// # Errors
/// If another rotation is under way, the files do not belong together, or the certificate is not one of an authority.
pub fn import(state_dir: &Path, chain: &Path, key_path: &Path) -> Result<(), AuthorityError> {
    let pem = fs::read_to_string(chain).map_err(of(chain))?;
    let certificates = certificates(chain, pem.as_bytes()).map_err(|error| {
        instead(error, "name a PEM file with the certificate of the authority first (--certificate)")
    })?;
    let key = key(key_path).map_err(|error| {
        instead(error, "name a PEM file with the authority's key, PKCS#8 without a password (--key)")
    })?;
    let wrong = |problem: &str, remedy: &str| AuthorityError::Rotation {
        problem: format!("{}: {problem}", chain.display()),
        remedy: remedy.to_owned(),
    };
    if !super::contains(&certificates[0], &key) {
        return Err(wrong(
            "the first certificate has another key than the file of --key",
            "name the authority's certificate first, and its own key",
        ));
    }
    if let Err(why) = subject::check_authority(&certificates) {
        return Err(wrong(
            &why,
            "name the certificate of an authority that may sign certificates of servers and clients",
        ));
    }
    let _lock = auth::lock(state_dir).map_err(of(state_dir))?;
    // Without what may stand between the certificates.
    let pem: String = certificates.iter().map(|certificate| subject::pem_of(certificate)).collect();
    if !state_dir.join(Authority::FILE).exists() && !state_dir.join(Authority::KEY_FILE).exists() {
        place(&state_dir.join(Authority::KEY_FILE), &key.serialize_pem())?;
        return place(&state_dir.join(Authority::FILE), &pem);
    }
    check_idle(state_dir)?;
    place(&state_dir.join(Authority::NEXT_KEY_FILE), &key.serialize_pem())?;
    add_next(state_dir, &pem)
}

/// The error of a file that a user named, and not one of the state directory.
fn instead(error: AuthorityError, remedy: &str) -> AuthorityError {
    match error {
        AuthorityError::Malformed { .. } => {
            AuthorityError::Rotation { problem: error.to_string(), remedy: remedy.to_owned() }
        }
        other => other,
    }
}

/// Ends a rotation: the first authority is not trusted any more.
///
/// # Errors
/// If none is under way, or daemons have no certificates of the next authority yet, except with `is_forced`; or a file cannot
/// be used.
pub fn finish(state_dir: &Path, is_forced: bool) -> Result<(), AuthorityError> {
    let _lock = auth::lock(state_dir).map_err(of(state_dir))?;
    let signers = Signers::read(state_dir)?;
    if signers.next.is_none() {
        return Err(none());
    }
    let missing = missing(state_dir, &Given::read(state_dir, &signers))?;
    if !missing.is_empty() && !is_forced {
        let names: Vec<String> = missing.iter().take(10).map(described).collect();
        let more = if missing.len() > names.len() {
            format!(" and {} more", missing.len() - names.len())
        } else {
            String::new()
        };
        return Err(AuthorityError::Rotation {
            problem: format!(
                "{}{more} have not received certificates of the next authority yet; without them, they would have to join again",
                names.join(", ")
            ),
            remedy:
                "connect them to the running server first, or remove them with `amalgam token remove`; or use --force"
                    .to_owned(),
        });
    }
    let (next, key) = (state_dir.join(NEXT_FILE), state_dir.join(Authority::NEXT_KEY_FILE));
    let chain = fs::read_to_string(&next).map_err(of(&next))?;
    place(&state_dir.join(Authority::KEY_FILE), &auth::read_private(&key)?)?;
    place(&state_dir.join(Authority::FILE), &chain)?;
    forget_next(state_dir)
}

/// Takes a rotation back: the next authority is not trusted any more. Daemons that are connected get certificates of the first
/// one again.
///
/// # Errors
/// If none is under way, or daemons have certificates of the next authority already, except with `is_forced`; or a file cannot be
/// used.
pub fn cancel(state_dir: &Path, is_forced: bool) -> Result<(), AuthorityError> {
    let _lock = auth::lock(state_dir).map_err(of(state_dir))?;
    let signers = Signers::read(state_dir)?;
    if signers.next.is_none() && !state_dir.join(Authority::NEXT_KEY_FILE).exists() {
        return Err(none());
    }
    let given = Given::read(state_dir, &signers).keys.len();
    if signers.next.is_some() && given > 0 && !is_forced {
        return Err(AuthorityError::Rotation {
            problem: format!("{given} daemons have certificates of the next authority; those that are not connected now would have to join again"),
            remedy: "finish the rotation with --finish, or use --cancel --force while they are connected to the running server".to_owned(),
        });
    }
    let next = state_dir.join(NEXT_FILE);
    let added = match fs::read(&next) {
        Ok(pem) => certificates(&next, &pem)?,
        Err(_) => Vec::new(),
    };
    let is_kept = |certificate: &&CertificateDer<'static>| {
        **certificate == signers.server.certificate || !added.contains(*certificate)
    };
    let kept: String = signers.trusted.iter().filter(is_kept).map(|certificate| subject::pem_of(certificate)).collect();
    place(&state_dir.join(Authority::FILE), &kept)?;
    forget_next(state_dir)
}

fn none() -> AuthorityError {
    AuthorityError::Rotation {
        problem: "no rotation is under way".to_owned(),
        remedy: "begin one with `amalgam ca rotate`".to_owned(),
    }
}

fn check_idle(state_dir: &Path) -> Result<(), AuthorityError> {
    // One that was interrupted before it began starts again.
    if Signers::read(state_dir)?.next.is_none() {
        return Ok(());
    }
    Err(AuthorityError::Rotation {
        problem: "a rotation is under way already".to_owned(),
        remedy: "end it with `amalgam ca rotate --finish`, or take it back with `amalgam ca rotate --cancel`"
            .to_owned(),
    })
}

fn add_next(state_dir: &Path, chain: &str) -> Result<(), AuthorityError> {
    let path = state_dir.join(Authority::FILE);
    place(&state_dir.join(NEXT_FILE), chain)?;
    let before = fs::read_to_string(&path).map_err(of(&path))?;
    place(&path, &format!("{}\n{chain}", before.trim_end()))
}

fn forget_next(state_dir: &Path) -> Result<(), AuthorityError> {
    for file in [Authority::NEXT_KEY_FILE, NEXT_FILE, GIVEN_FILE] {
        let path = state_dir.join(file);
        if path.exists() {
            fs::remove_file(&path).map_err(of(&path))?;
        }
    }
    Ok(())
}

/// The daemons with certificates that the next authority has not signed.
fn missing(state_dir: &Path, given: &Given) -> Result<Vec<Holder>, AuthorityError> {
    let path = state_dir.join(auth::Tokens::FILE);
    let entries = if path.exists() { auth::read(&path)? } else { Vec::new() };
    let now = SystemTime::now();
    let is_missing = |entry: &auth::TokenEntry| {
        entry.is_valid(now) && matches!(&entry.credential, Credential::Key(key) if !given.keys.contains(key))
    };
    Ok(entries.into_iter().filter(is_missing).map(|entry| entry.holder).collect())
}

fn described(holder: &Holder) -> String {
    holder.role().map_or_else(|| holder.name().to_owned(), |role| format!("{} {}", role.title(), holder.name()))
}

/// SHA-256 of a certificate, in hexadecimal.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    auth::hex(&Sha256::digest(certificate))
}
