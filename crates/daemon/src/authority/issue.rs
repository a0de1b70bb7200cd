//! What an authority signs: its own certificate, the server's, and those of daemons.

use super::subject::Subject;
use super::{Authority, DAY, Signers};
use crate::auth::{self, DaemonRole};
use crate::cryptography::provider;
use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer};
use rcgen::{KeyPair, KeyUsagePurpose, PublicKeyData, SubjectPublicKeyInfo};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// How long the authority's certificate is valid.
const AUTHORITY_DAYS: u32 = 10 * 365;
/// How long a certificate of the server is valid. It is replaced after half of that.
pub(super) const SERVER_DAYS: u32 = 7;
/// How long a certificate of a daemon is valid. While the daemon is connected, it is replaced after a third of that.
const DAEMON_DAYS: u32 = 30;
/// Clocks of other machines may be behind by this.
const CLOCK_SKEW: Duration = DAY;
/// RFC 4519, section 2.31: `serialNumber`, the node's number in the certificate of its agent.
pub(super) const SERIAL_NUMBER: [u64; 4] = [2, 5, 4, 5];

/// A key of an authority with its certificate.
pub(super) struct Signer {
    pub certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate of a daemon, and whom it may trust.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Certified {
    /// In DER, as the other fields.
    pub certificate: Vec<u8>,
    /// The certificates between it and an authority.
    pub between: Vec<Vec<u8>>,
    pub authorities: Vec<Vec<u8>>,
    /// With which a global master presents itself to clients, and the certificates between it and an authority. Empty for others.
    #[serde(default)]
    pub for_clients: Vec<Vec<u8>>,
    /// How the federation of a global master is configured, as TOML. Empty for others.
    #[serde(default)]
    pub federation: String,
}

impl Signer {
    pub fn new(certificate: &CertificateDer<'static>, key: KeyPair) -> Result<Signer, rcgen::Error> {
        let issuer = Issuer::from_ca_cert_der(certificate, key)?;
        Ok(Signer { certificate: certificate.clone(), issuer })
    }
}

impl Authority {
    /// How long a daemon that stays connected keeps a certificate.
    pub const RENEWED_AFTER: Duration = DAY.saturating_mul(DAEMON_DAYS / 3);

    /// A certificate for a daemon with this public key (`SubjectPublicKeyInfo` in DER).
    ///
    /// # Errors
    /// If it is not a key.
    pub fn certify(&self, subject: &Subject, key: &[u8]) -> Result<Certified, rcgen::Error> {
        self.certify_until(subject, key, SystemTime::now() + DAY * DAEMON_DAYS)
    }

    /// [`Authority::certify`] with another end, for tests.
    ///
    /// # Errors
    /// If it is not a key.
    pub fn certify_until(&self, subject: &Subject, key: &[u8], until: SystemTime) -> Result<Certified, rcgen::Error> {
        let signers = self.signers();
        let signer = signers.for_daemons();
        let mut params = CertificateParams::default();
        params.distinguished_name = named(&subject.name);
        params.distinguished_name.push(DnType::OrganizationalUnitName, subject.role.title());
        if let Some(number) = subject.number {
            params.distinguished_name.push(DnType::CustomDnType(SERIAL_NUMBER.to_vec()), number.to_string());
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if subject.role == DaemonRole::JobHost {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.not_before = (SystemTime::now().min(until) - CLOCK_SKEW).into();
        params.not_after = until.into();
        let certificate = params.signed_by(&SubjectPublicKeyInfo::from_der(key)?, &signer.issuer)?;
        Ok(Certified {
            certificate: certificate.der().to_vec(),
            between: vec![signer.certificate.to_vec()],
            authorities: signers.anchors().iter().map(|anchor| anchor.to_vec()).collect(),
            for_clients: Vec::new(),
            federation: String::new(),
        })
    }

    /// Adds what a global master with this public key presents to clients, which reach it under these names. It is signed by the
    /// authority of the server's own certificate, which clients trust also while a rotation is under way.
    ///
    /// # Errors
    /// If it is not a key, or a name cannot be in a certificate.
    pub fn certify_for_clients(
        &self,
        certified: Certified,
        key: &[u8],
        names: &[String],
    ) -> Result<Certified, rcgen::Error> {
        if names.is_empty() {
            return Ok(certified);
        }
        let (signers, now) = (self.signers(), SystemTime::now());
        let params = listening(names, GLOBAL, now, DAEMON_DAYS)?;
        let certificate = params.signed_by(&SubjectPublicKeyInfo::from_der(key)?, &signers.server.issuer)?;
        let for_clients = vec![certificate.der().to_vec(), signers.server.certificate.to_vec()];
        Ok(Certified { for_clients, ..certified })
    }
}

impl Signers {
    fn of_server(&self, names: &[String], now: SystemTime) -> Result<CertifiedKey, rcgen::Error> {
        let params = listening(names, SERVER, now, SERVER_DAYS)?;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.server.issuer)?;
        let chain = vec![certificate.into(), self.server.certificate.clone()];
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let signing = provider().key_provider.load_private_key(key.into());
        Ok(CertifiedKey::new(chain, signing.map_err(|_| rcgen::Error::CouldNotParseKeyPair)?))
    }
}

/// The name in the server's certificate.
pub(super) const SERVER: &str = "Amalgam server";
/// The name in what global masters present to clients. No daemon expects to find it.
const GLOBAL: &str = "Amalgam global master";

/// A certificate for listening under these names and addresses.
fn listening(names: &[String], title: &str, now: SystemTime, days: u32) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = named(title);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    valid(&mut params, now, days);
    Ok(params)
}

/// The certificate of the server, which is replaced before it expires.
pub(crate) struct Renewed {
    authority: Arc<Authority>,
    names: Vec<String>,
    current: Mutex<Current>,
}

struct Current {
    signed_at: SystemTime,
    signers: Arc<Signers>,
    certificate: Arc<CertifiedKey>,
}

impl Renewed {
    /// # Errors
    /// If a name cannot be in a certificate.
    pub fn new(authority: Arc<Authority>, names: Vec<String>) -> Result<Renewed, rcgen::Error> {
        let (signed_at, signers) = (SystemTime::now(), authority.signers());
        let certificate = Arc::new(signers.of_server(&names, signed_at)?);
        Ok(Renewed { authority, names, current: Mutex::new(Current { signed_at, signers, certificate }) })
    }

    pub fn at(&self, now: SystemTime) -> Arc<CertifiedKey> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let signers = self.authority.signers();
        // A clock that was set back has no age.
        let is_young = now.duration_since(current.signed_at).is_ok_and(|age| age < DAY * SERVER_DAYS / 2);
        if is_young && Arc::ptr_eq(&signers, &current.signers) {
            return Arc::clone(&current.certificate);
        }
        match signers.of_server(&self.names, now) {
            Ok(new) => *current = Current { signed_at: now, signers, certificate: Arc::new(new) },
            Err(error) => tracing::error!(%error, "the server's certificate cannot be replaced"),
        }
        Arc::clone(&current.certificate)
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

/// The certificate of a new authority, in PEM. Each has a name of its own, so that a client reports an unknown one as such.
pub(super) fn authority(key: &KeyPair) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name =
        named(&format!("Amalgam authority {}", &auth::hex(&Sha256::digest(key.der_bytes()))[..16]));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut params, SystemTime::now(), AUTHORITY_DAYS);
    Ok(params.self_signed(key)?.pem())
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
