//! Whom a certificate names, and whether it is trusted.

use super::issue::{SERIAL_NUMBER, SERVER};
use crate::auth::DaemonRole;
use crate::cryptography::provider;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{CertificateError, RootCertStore};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;
use x509_parser::certificate::X509Certificate;
use x509_parser::oid_registry::Oid;
use x509_parser::parse_x509_certificate;

/// The daemon that a certificate names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subject {
    pub role: DaemonRole,
    /// A node's or a server's name, or the number of a job host or global master.
    pub name: String,
    /// The number of an agent's node, once the server has given it one. The number of the cluster whose masters a global master may
    /// join.
    pub number: Option<u32>,
}

/// What a certificate is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    Listening,
    Joining,
}

/// The daemon that has to listen at an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expected {
    Server,
    JobHost(u8),
}

/// Why a certificate does not authenticate a daemon.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Untrusted {
    #[error("its certificate has expired, or this machine's clock is wrong")]
    Expired,
    #[error("its certificate is not valid yet; check the clocks of both machines")]
    NotYet,
    #[error("its certificate is not of this cluster's authority")]
    OtherAuthority,
    #[error("its certificate has been revoked")]
    Revoked,
    #[error("its certificate is not valid: {0}")]
    Invalid(String),
    #[error("its certificate names {found}, and this is the address of {expected}")]
    Other { found: String, expected: Expected },
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Server => write!(f, "a server"),
            Expected::JobHost(number) => write!(f, "job host {number}"),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            DaemonRole::Agent => write!(f, "the agent of node {}", self.name),
            role => write!(f, "{} {}", role.title(), self.name),
        }
    }
}

/// Verifies a chain of certificates, the daemon's first. Its owner has proved that it has the key.
///
/// # Errors
/// Why it is not trusted.
pub fn verify(chain: &[CertificateDer<'_>], trusted: &[CertificateDer<'_>], for_what: Use) -> Result<(), Untrusted> {
    let Some((own, between)) = chain.split_first() else {
        return Err(Untrusted::Invalid("it is missing".to_owned()));
    };
    let mut roots = RootCertStore::empty();
    for authority in trusted {
        roots.add(authority.clone().into_owned()).map_err(reason)?;
    }
    let now = UnixTime::now();
    match for_what {
        Use::Listening => {
            let parsed = ParsedCertificate::try_from(own).map_err(reason)?;
            let algorithms = provider().signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&parsed, &roots, between, now, algorithms).map_err(reason)
        }
        Use::Joining => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
            let verifier = verifier.map_err(|error| Untrusted::Invalid(error.to_string()))?;
            verifier.verify_client_cert(own, between, now).map(drop).map_err(reason)
        }
    }
}

fn reason(error: rustls::Error) -> Untrusted {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            Untrusted::Expired
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => Untrusted::NotYet,
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            Untrusted::OtherAuthority
        }
        other => Untrusted::Invalid(other.to_string()),
    }
}

impl Subject {
    /// # Errors
    /// If the certificate names no daemon.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Subject, Untrusted> {
        let parsed = parse(certificate)?;
        let text = |oid: &Oid| {
            let mut found = parsed.subject().iter_by_oid(oid);
            found.next().and_then(|attribute| attribute.as_str().ok()).map(str::to_owned)
        };
        let unit = text(&x509_parser::oid_registry::OID_X509_ORGANIZATIONAL_UNIT);
        let role = DaemonRole::ALL.into_iter().find(|role| unit.as_deref() == Some(role.title()));
        let name = text(&x509_parser::oid_registry::OID_X509_COMMON_NAME);
        let number = Oid::from(&SERIAL_NUMBER).ok().and_then(|oid| text(&oid));
        match (role, name) {
            (Some(role), Some(name)) => {
                Ok(Subject { role, name, number: number.and_then(|number| number.parse().ok()) })
            }
            _ => Err(Untrusted::Invalid("it names no daemon".to_owned())),
        }
    }
}

impl Expected {
    /// Checks that a certificate names the expected daemon.
    ///
    /// # Errors
    /// Whom it names instead.
    pub fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Untrusted> {
        let found = match (self, Subject::of(certificate)) {
            (Expected::Server, Err(_)) if common_name(certificate)? == SERVER => return Ok(()),
            (Expected::JobHost(number), Ok(subject))
                if subject.role == DaemonRole::JobHost && subject.name == number.to_string() =>
            {
                return Ok(());
            }
            (_, Ok(subject)) => subject.to_string(),
            (_, Err(_)) => format!("`{}`", common_name(certificate)?),
        };
        Err(Untrusted::Other { found, expected: self.clone() })
    }
}

/// The public key of a certificate: `SubjectPublicKeyInfo` in DER.
///
/// # Errors
/// If it is not a certificate.
pub fn key_of(certificate: &CertificateDer<'_>) -> Result<Vec<u8>, Untrusted> {
    Ok(parse(certificate)?.public_key().raw.to_vec())
}

/// The end of a certificate's validity, in seconds since 1970.
///
/// # Errors
/// If it is not a certificate.
pub fn end_of(certificate: &CertificateDer<'_>) -> Result<i64, Untrusted> {
    Ok(parse(certificate)?.validity().not_after.timestamp())
}

/// Checks that the first certificate is one of an authority that may sign, and the others those that signed it.
///
/// # Errors
/// What is wrong.
pub(super) fn check_authority(chain: &[CertificateDer<'_>]) -> Result<(), String> {
    let text = |error: Untrusted| error.to_string();
    let mut above: Option<X509Certificate> = None;
    for certificate in chain.iter().rev() {
        let parsed = parse(certificate).map_err(text)?;
        let name = parsed.subject().to_string();
        if !parsed.is_ca() || parsed.key_usage().ok().flatten().is_some_and(|usage| !usage.value.key_cert_sign()) {
            return Err(format!("{name} is not an authority that may sign certificates"));
        }
        if !parsed.validity().is_valid() {
            return Err(format!("{name} has expired or is not valid yet"));
        }
        if let Some(above) = above {
            let is_signed = parsed.verify_signature(Some(above.public_key())).is_ok();
            if !is_signed {
                return Err(format!("{name} was not signed by {}, which follows it", above.subject()));
            }
        }
        above = Some(parsed);
    }
    Ok(())
}

pub(crate) fn pem_of(certificate: &CertificateDer<'_>) -> String {
    pem::encode_config(
        &pem::Pem::new("CERTIFICATE", certificate.to_vec()),
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    )
}

pub(super) fn common_name(certificate: &CertificateDer<'_>) -> Result<String, Untrusted> {
    let parsed = parse(certificate)?;
    let name = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok()).unwrap_or_default();
    Ok(name.to_owned())
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Untrusted> {
    let parsed = parse_x509_certificate(certificate);
    parsed.map(|(_, parsed)| parsed).map_err(|_| Untrusted::Invalid("it is not a certificate".to_owned()))
}
