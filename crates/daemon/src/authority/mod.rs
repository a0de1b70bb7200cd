//! The certificate authority of a cluster: it signs the server's certificates, which clients and daemons trust (ADR 68), and
//! those of daemons that joined with a string, which name the daemon (ADR 80).
//!
//! The certificates of the server live in memory and are replaced while it runs, so only the authority's key has to be
//! kept: `ca-key.pem`, readable by its owner only. Clients get a copy of `ca.pem`. During a rotation, `ca.pem` has both
//! authorities, and `ca-next-key.pem` the key of the next one. The files are read again when they change.

mod issue;
mod rotation;
mod sharing;
mod subject;
#[cfg(test)]
mod tests;

pub use issue::Certified;
pub(crate) use rotation::NEXT_FILE;
pub use rotation::{Notes, Progress, Standing, cancel, fingerprint, finish, import, start};
pub use sharing::SharedFiles;
pub(crate) use subject::pem_of;
pub use subject::{Expected, Subject, Untrusted, Use, end_of, key_of, verify};

use crate::auth::{self, AuthError};
use crate::durable;
use issue::{Renewed, Signer};
use rcgen::KeyPair;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};
use thiserror::Error;

pub(crate) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Error)]
pub enum AuthorityError {
    /// The key cannot be read, or others can read it.
    #[error(transparent)]
    Key(#[from] AuthError),
    #[error("cannot use {path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is not a key or certificate: {why}", path = path.display())]
    Malformed { path: PathBuf, why: String },
    #[error("{path} is missing, and clients trust certificates that it signed", path = path.display())]
    NoKey { path: PathBuf },
    #[error("{path} has another key than {key}", path = path.display())]
    OtherKey { path: PathBuf, key: &'static str },
    #[error("cannot create a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A rotation cannot begin or end.
    #[error("{problem}")]
    Rotation { problem: String, remedy: String },
}

impl AuthorityError {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            AuthorityError::Key(error) => error.remedy(),
            AuthorityError::Io { .. } => "check the path and its permissions".to_owned(),
            AuthorityError::Malformed { path, .. } | AuthorityError::OtherKey { path, .. } => {
                format!("restore {} from a backup; or remove ca.pem and ca-key.pem: {ANEW}", path.display())
            }
            AuthorityError::NoKey { .. } => format!("restore it from a backup; or remove ca.pem: {ANEW}"),
            AuthorityError::Certificate(_) => "try again".to_owned(),
            AuthorityError::Rotation { remedy, .. } => remedy.clone(),
        }
    }
}

const ANEW: &str = "the next start makes new ones; then each client on another machine needs the new ca.pem, and each daemon \
                    that joined with a string has to join again";

/// The authority of a state directory.
pub struct Authority {
    state_dir: PathBuf,
    loaded: Mutex<Loaded>,
}

struct Loaded {
    versions: Versions,
    signers: Arc<Signers>,
}

/// Versions of the authority's files.
type Versions = [auth::Version; 3];

/// An authority that a client trusts or may trust.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trusted {
    pub name: String,
    /// SHA-256 of its certificate, in hexadecimal.
    pub fingerprint: String,
    pub pem: String,
}

impl Trusted {
    /// The authorities of a PEM text, at least one.
    ///
    /// # Errors
    /// If the text has no certificate, or one that cannot be read.
    pub fn read(pem: &[u8]) -> Result<Vec<Trusted>, String> {
        let read: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let trusted = |certificate: &CertificateDer<'static>| {
            let name = subject::common_name(certificate).map_err(|error| error.to_string())?;
            Ok(Trusted { name, fingerprint: fingerprint(certificate), pem: subject::pem_of(certificate) })
        };
        let read = read.map_err(|error| error.to_string())?;
        if read.is_empty() {
            return Err("it contains no certificate".to_owned());
        }
        read.iter().map(trusted).collect()
    }
}

/// What the files of an authority contain.
pub struct Signers {
    /// The certificates of `ca.pem`.
    pub trusted: Vec<CertificateDer<'static>>,
    /// Signs the certificate of the server.
    server: Signer,
    /// During a rotation, signs the certificates of daemons, which trust it already.
    next: Option<Signer>,
}

impl Authority {
    /// The authority's certificate, for clients.
    pub const FILE: &'static str = "ca.pem";
    pub(crate) const KEY_FILE: &'static str = "ca-key.pem";
    pub(crate) const NEXT_KEY_FILE: &'static str = "ca-next-key.pem";

    /// The authority of a state directory. The first start creates it.
    ///
    /// # Errors
    /// If its files cannot be used or do not belong together, or if the key is missing.
    pub fn open(state_dir: &Path) -> Result<Authority, AuthorityError> {
        // Another server may start on this directory, too.
        let lock = auth::lock(state_dir).map_err(of(state_dir))?;
        create(state_dir)?;
        drop(lock);
        let versions = versions(state_dir);
        let signers = Arc::new(Signers::read(state_dir)?);
        Ok(Authority { state_dir: state_dir.to_owned(), loaded: Mutex::new(Loaded { versions, signers }) })
    }

    /// The content of the files, or their last valid content: a rotation changes one after the other.
    pub fn signers(&self) -> Arc<Signers> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let versions = versions(&self.state_dir);
        if versions != loaded.versions {
            // A mistake is reported once for each version of the files.
            loaded.versions = versions;
            match Signers::read(&self.state_dir) {
                Ok(signers) => loaded.signers = Arc::new(signers),
                Err(error) => tracing::error!("{error}; the previous authority stays in use; {}", error.remedy()),
            }
        }
        Arc::clone(&loaded.signers)
    }

    pub(crate) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The certificates that clients trust, in PEM: those of `ca.pem`.
    pub fn pem(&self) -> String {
        self.signers().trusted.iter().map(|certificate| subject::pem_of(certificate)).collect()
    }

    /// Certificates for a server that clients reach under these names and addresses.
    ///
    /// # Errors
    /// If a name cannot be in a certificate.
    pub(crate) fn certificates(self: &Arc<Self>, names: Vec<String>) -> Result<Arc<Renewed>, AuthorityError> {
        Ok(Arc::new(Renewed::new(Arc::clone(self), names)?))
    }
}

impl Signers {
    /// Reads the files of a state directory.
    ///
    /// # Errors
    /// If they cannot be used or do not belong together.
    fn read(state_dir: &Path) -> Result<Signers, AuthorityError> {
        let path = state_dir.join(Authority::FILE);
        let trusted = certificates(&path, &fs::read(&path).map_err(of(&path))?)?;
        let signer = |file: &'static str| {
            let key_path = state_dir.join(file);
            let key = key(&key_path)?;
            let found = trusted.iter().find(|certificate| contains(certificate, &key));
            let certificate = found.ok_or_else(|| AuthorityError::OtherKey { path: path.clone(), key: file })?;
            Signer::new(certificate, key).map_err(|error| malformed(&path, error))
        };
        let server = signer(Authority::KEY_FILE)?;
        let has_next = state_dir.join(Authority::NEXT_KEY_FILE).exists();
        let next = has_next.then(|| signer(Authority::NEXT_KEY_FILE)).transpose();
        // A rotation was interrupted before it began: its certificate is not trusted yet.
        let next = if matches!(next, Err(AuthorityError::OtherKey { .. })) { None } else { next? };
        Ok(Signers { trusted, server, next })
    }

    /// The authorities whose certificates daemons accept of each other. Not those above an imported one, which may sign for
    /// others than this cluster.
    pub fn anchors(&self) -> Vec<CertificateDer<'static>> {
        let own = std::iter::once(&self.server).chain(&self.next);
        own.map(|signer| signer.certificate.clone()).collect()
    }

    /// Signs the certificates of daemons.
    fn for_daemons(&self) -> &Signer {
        self.next.as_ref().unwrap_or(&self.server)
    }
}

fn versions(state_dir: &Path) -> Versions {
    [Authority::FILE, Authority::KEY_FILE, Authority::NEXT_KEY_FILE].map(|file| auth::version(&state_dir.join(file)))
}

/// Creates the authority of a state directory that has none.
fn create(state_dir: &Path) -> Result<(), AuthorityError> {
    let (path, key_path) = (state_dir.join(Authority::FILE), state_dir.join(Authority::KEY_FILE));
    match (key_path.exists(), path.exists()) {
        (true, true) => Ok(()),
        (false, true) => Err(AuthorityError::NoKey { path: key_path }),
        (false, false) => {
            let key = KeyPair::generate()?;
            place(&key_path, &key.serialize_pem())?;
            place(&path, &issue::authority(&key)?)
        }
        // A crash after the key was written.
        (true, false) => place(&path, &issue::authority(&key(&key_path)?)?),
    }
}

/// Writes a file that only its owner can read, who is the owner of the directory: the server's user.
fn place(path: &Path, text: &str) -> Result<(), AuthorityError> {
    durable::replace(path, text.as_bytes()).map_err(of(path))
}

fn key(path: &Path) -> Result<KeyPair, AuthorityError> {
    KeyPair::from_pem(&auth::read_private(path)?).map_err(|error| malformed(path, error))
}

/// The certificates of a PEM text, at least one.
fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, AuthorityError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|error| malformed(path, error))?;
    if read.is_empty() { Err(malformed(path, "it contains no certificate")) } else { Ok(read) }
}

fn of(path: &Path) -> impl Fn(io::Error) -> AuthorityError + use<> {
    let path = path.to_owned();
    move |source| AuthorityError::Io { path: path.clone(), source }
}

fn malformed(path: &Path, error: impl ToString) -> AuthorityError {
    AuthorityError::Malformed { path: path.to_owned(), why: error.to_string() }
}

/// Whether a certificate is that of this key.
fn contains(certificate: &CertificateDer<'_>, key: &KeyPair) -> bool {
    subject::key_of(certificate).is_ok_and(|found| found == rcgen::PublicKeyData::subject_public_key_info(key))
}
