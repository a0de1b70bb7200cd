//! The certificate authority of a server, which clients trust, and the server's own certificates, which it signs (ADR 68).
//!
//! A server's certificate lives in memory and is replaced while the server runs, so only the authority's key has to be
//! kept: `ca-key.pem`, readable by its owner only. Clients get a copy of `ca.pem`.

use crate::auth::{self, AuthError};
use crate::channel::{Certificate, provider};
use crate::durable;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer};
use rcgen::{KeyPair, KeyUsagePurpose, PublicKeyData};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use std::{fs, io};
use thiserror::Error;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the authority's certificate is valid.
const AUTHORITY_DAYS: u32 = 10 * 365;
/// How long a certificate of the server is valid. It is replaced after half of that.
const SERVER_DAYS: u32 = 7;
/// Clocks of clients may be behind by this.
const CLOCK_SKEW: Duration = DAY;

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
    #[error("{path} has another key than ca-key.pem", path = path.display())]
    OtherKey { path: PathBuf },
    #[error("cannot create a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
}

impl AuthorityError {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            AuthorityError::Key(error) => error.remedy(),
            AuthorityError::Io { .. } => "check the path and its permissions".to_owned(),
            AuthorityError::Malformed { path, .. } | AuthorityError::OtherKey { path } => {
                format!("restore {} from a backup; or remove ca.pem and ca-key.pem: {ANEW}", path.display())
            }
            AuthorityError::NoKey { .. } => format!("restore it from a backup; or remove ca.pem: {ANEW}"),
            AuthorityError::Certificate(_) => "try again".to_owned(),
        }
    }
}

const ANEW: &str = "the next start makes new ones, and each client on another machine needs the new ca.pem";

/// Signs the certificates of a server.
pub struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// The authority's certificate, for clients.
    pub const FILE: &'static str = "ca.pem";
    pub(crate) const KEY_FILE: &'static str = "ca-key.pem";

    /// The authority of a state directory. The first start creates it.
    ///
    /// # Errors
    /// If its files cannot be used or do not belong together, or if the key is missing.
    pub fn open(state_dir: &Path) -> Result<Authority, AuthorityError> {
        let (path, key_path) = (state_dir.join(Authority::FILE), state_dir.join(Authority::KEY_FILE));
        // Another server may start on this directory, too.
        let _lock = auth::lock(state_dir).map_err(of(state_dir))?;
        let key = match key_path.exists().then(|| auth::read_private(&key_path)).transpose()? {
            Some(pem) => KeyPair::from_pem(&pem).map_err(|error| malformed(&key_path, error))?,
            None if path.exists() => return Err(AuthorityError::NoKey { path: key_path }),
            None => {
                let key = KeyPair::generate()?;
                durable::replace(&key_path, key.serialize_pem().as_bytes()).map_err(of(&key_path))?;
                key
            }
        };
        let certificate = match read(&path)? {
            Some(pem) => CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| malformed(&path, error))?,
            // A crash after the key was written.
            None => {
                let made = authority(&key).self_signed(&key)?;
                durable::replace(&path, made.pem().as_bytes()).map_err(of(&path))?;
                made.into()
            }
        };
        if !contains(&certificate, key.der_bytes()) {
            return Err(AuthorityError::OtherKey { path });
        }
        Ok(Authority { certificate, issuer: Issuer::new(authority(&key), key) })
    }

    /// Certificates for a server that clients reach under these names and addresses.
    ///
    /// # Errors
    /// If a name cannot be in a certificate.
    pub fn certificate(self, names: Vec<String>) -> Result<Certificate, AuthorityError> {
        let now = SystemTime::now();
        let current = self.issue(&names, now)?;
        let current = Mutex::new((now, Arc::new(current)));
        Ok(Certificate::resolved(Arc::new(Renewed { authority: self, names, current })))
    }

    fn issue(&self, names: &[String], now: SystemTime) -> Result<CertifiedKey, rcgen::Error> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = named("Amalgam server");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        valid(&mut params, now, SERVER_DAYS);
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let chain = vec![certificate.into(), self.certificate.clone()];
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let signing = provider().key_provider.load_private_key(key.into());
        Ok(CertifiedKey::new(chain, signing.map_err(|_| rcgen::Error::CouldNotParseKeyPair)?))
    }
}

/// The certificate of the server, which is replaced before it expires.
struct Renewed {
    authority: Authority,
    names: Vec<String>,
    /// The last one and when it was signed.
    current: Mutex<(SystemTime, Arc<CertifiedKey>)>,
}

impl Renewed {
    fn at(&self, now: SystemTime) -> Arc<CertifiedKey> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (signed_at, certificate) = &mut *current;
        // A clock that was set back has no age.
        if now.duration_since(*signed_at).is_ok_and(|age| age < DAY * SERVER_DAYS / 2) {
            return Arc::clone(certificate);
        }
        match self.authority.issue(&self.names, now) {
            Ok(new) => (*signed_at, *certificate) = (now, Arc::new(new)),
            Err(error) => tracing::error!(%error, "the server's certificate cannot be replaced"),
        }
        Arc::clone(certificate)
    }
}

impl std::fmt::Debug for Renewed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renewed").field("names", &self.names).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Renewed {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.at(SystemTime::now()))
    }
}

/// Each authority has a name of its own, so that a client reports an unknown one as such.
fn authority(key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name =
        named(&format!("Amalgam authority {}", &auth::hex(&Sha256::digest(key.der_bytes()))[..16]));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut params, SystemTime::now(), AUTHORITY_DAYS);
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn valid(params: &mut CertificateParams, now: SystemTime, days: u32) {
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + DAY * days).into();
}

/// The content of a file, if it exists.
fn read(path: &Path) -> Result<Option<String>, AuthorityError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(of(path)(error)),
    }
}

fn of(path: &Path) -> impl Fn(io::Error) -> AuthorityError + use<> {
    let path = path.to_owned();
    move |source| AuthorityError::Io { path: path.clone(), source }
}

fn malformed(path: &Path, error: impl ToString) -> AuthorityError {
    AuthorityError::Malformed { path: path.to_owned(), why: error.to_string() }
}

/// Whether a certificate in DER contains this public key, which nothing else in it can equal.
fn contains(certificate: &CertificateDer<'_>, key: &[u8]) -> bool {
    certificate.windows(key.len()).any(|part| part == key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_first_start_creates_a_private_key_and_later_ones_use_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = Authority::open(dir.path()).unwrap().certificate;
        let mode = fs::metadata(dir.path().join(Authority::KEY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(Authority::open(dir.path()).unwrap().certificate, first);
        // A crash between the two files: the key is used again.
        fs::remove_file(dir.path().join(Authority::FILE)).unwrap();
        Authority::open(dir.path()).unwrap();
    }

    #[test]
    fn files_that_are_missing_damaged_or_of_another_authority_are_refused() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let opened = || Authority::open(dir.path()).map(drop).unwrap_err();
        Authority::open(dir.path()).unwrap();
        Authority::open(other.path()).unwrap();
        let (certificate, key) = (dir.path().join(Authority::FILE), dir.path().join(Authority::KEY_FILE));
        fs::copy(other.path().join(Authority::FILE), &certificate).unwrap();
        assert!(matches!(opened(), AuthorityError::OtherKey { .. }));
        fs::write(&certificate, "no certificate").unwrap();
        assert!(matches!(opened(), AuthorityError::Malformed { path, .. } if path == certificate));
        fs::write(&key, "no key").unwrap();
        assert!(matches!(opened(), AuthorityError::Malformed { path, .. } if path == key));
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(opened(), AuthorityError::Key(AuthError::Exposed { .. })));
        fs::remove_file(&key).unwrap();
        assert!(matches!(opened(), AuthorityError::NoKey { path } if path == key));
    }

    #[test]
    fn a_certificate_is_replaced_after_half_of_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(dir.path()).unwrap();
        let names = vec!["localhost".to_owned()];
        let now = SystemTime::now();
        let current = Mutex::new((now, Arc::new(authority.issue(&names, now).unwrap())));
        let renewed = Renewed { authority, names, current };
        let first = renewed.at(now);
        let half = DAY * SERVER_DAYS / 2;
        assert!(Arc::ptr_eq(&renewed.at(now + half - DAY), &first));
        let second = renewed.at(now + half);
        assert!(!Arc::ptr_eq(&second, &first));
        assert!(Arc::ptr_eq(&renewed.at(now + half + DAY), &second));
    }
}
