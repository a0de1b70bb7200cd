//! The certificates with which a daemon that joined with a string authenticates itself (ADR 80), and the file that keeps them.
//!
//! The private key is made here and never sent. The server replaces the certificate over the daemon's connection.

use crate::auth::{self, AuthError, DaemonRole, Holder, TokenEntry, Tokens, key_digest};
use crate::authority::{Authority, AuthorityError, Certified, Expected, Subject, Untrusted, Use};
use crate::authority::{end_of, fingerprint, key_of, verify};
use crate::cryptography::provider;
use crate::durable;
use amalgam_core::vocabulary::ClusterId;
use rcgen::{KeyPair, PublicKeyData};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The content of the file. Bytes are DER in base64.
#[derive(Clone, Serialize, Deserialize)]
struct Stored {
    /// Identifies the join string without containing its secret.
    string: String,
    #[serde(with = "base64_bytes")]
    key: Vec<u8>,
    certified: Certified,
    /// Where it joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server: Option<String>,
}

/// A daemon's certificates.
pub struct Identity {
    path: PathBuf,
    stored: Mutex<Stored>,
    /// Digests of the keys that may authenticate other daemons to this one. `None` until the server has sent them.
    allowed: Mutex<Option<HashSet<String>>>,
}

/// A new key, for which a server is asked for a certificate.
pub struct NewKey(KeyPair);

/// The content of the file of a key that is not certified yet.
#[derive(Serialize, Deserialize)]
struct Pending {
    string: String,
    #[serde(with = "base64_bytes")]
    key: Vec<u8>,
}

impl NewKey {
    /// # Errors
    /// If the system returns no random numbers.
    pub fn generate() -> Result<NewKey, rcgen::Error> {
        KeyPair::generate().map(NewKey)
    }

    /// The key for a join string with this digest: the same one after a restart, since the server may have given certificates for it
    /// in an answer that was lost. It is kept beside the identity's file until [`Identity::create`].
    ///
    /// # Errors
    /// If the file cannot be written, or the system returns no random numbers.
    pub fn for_string(identity: &Path, string: &str) -> Result<NewKey, AuthorityError> {
        let path = pending(identity);
        let kept = auth::read_private(&path).ok().and_then(|text| serde_json::from_str::<Pending>(&text).ok());
        let kept = kept.filter(|kept| kept.string == string);
        if let Some(key) = kept.and_then(|kept| KeyPair::try_from(kept.key.as_slice()).ok()) {
            return Ok(NewKey(key));
        }
        let key = KeyPair::generate()?;
        let text = serde_json::to_string(&Pending { string: string.to_owned(), key: key.serialize_der() });
        let text = text.expect("bytes can be written as JSON");
        durable::replace(&path, text.as_bytes()).map_err(|source| AuthError::Io { path, source })?;
        Ok(NewKey(key))
    }

    /// Removes the file of [`NewKey::for_string`].
    pub fn forget(identity: &Path) {
        let _ = fs::remove_file(pending(identity));
    }

    /// `SubjectPublicKeyInfo` in DER.
    pub fn public(&self) -> Vec<u8> {
        self.0.subject_public_key_info()
    }
}

impl Identity {
    /// The file in the daemon's directory.
    pub const FILE: &'static str = "identity.json";

    /// The file of a global master for the certificates of a cluster.
    pub fn file_of_cluster(cluster: ClusterId) -> String {
        format!("identity-{}.json", cluster.0)
    }

    /// That of a directory, if it has one.
    ///
    /// # Errors
    /// If it cannot be used, or others can read it.
    pub fn load(directory: &Path) -> Result<Option<Identity>, AuthError> {
        Identity::load_file(directory.join(Identity::FILE))
    }

    /// The same, from a file of another name.
    ///
    /// # Errors
    /// If it cannot be used, or others can read it.
    pub fn load_file(path: PathBuf) -> Result<Option<Identity>, AuthError> {
        if !path.exists() {
            return Ok(None);
        }
        let text = auth::read_private(&path)?;
        let stored: Stored = serde_json::from_str(&text).map_err(|error| AuthError::Malformed {
            path: path.clone(),
            line: error.line(),
            problem: "it is not a daemon's certificate".to_owned(),
            remedy: "remove the file, and join again with a string of `amalgam token join`",
        })?;
        Ok(Some(Identity::of(path, stored)))
    }

    fn of(path: PathBuf, stored: Stored) -> Identity {
        Identity { path, stored: Mutex::new(stored), allowed: Mutex::new(None) }
    }

    /// Stores what a server gave for a join string with this digest. An earlier file is replaced.
    ///
    /// # Errors
    /// If the file cannot be written, or the certificate is not for this key.
    pub fn create(path: PathBuf, string: String, key: NewKey, certified: Certified) -> Result<Identity, AuthError> {
        let stored = Stored { string, key: key.0.serialize_der(), certified, server: None };
        let identity = Identity::of(path, stored);
        identity.check(&identity.stored())?;
        identity.write(&identity.stored())?;
        NewKey::forget(&identity.path);
        Ok(identity)
    }

    /// The address, or several, at which the daemon joined; `None` if that is not known.
    pub fn server(&self) -> Option<String> {
        self.stored().server
    }

    /// Keeps the server's address, for starts that name none.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep_server(&self, address: &str) -> Result<(), AuthError> {
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        stored.server = Some(address.to_owned());
        self.write(&stored)
    }

    fn stored(&self) -> Stored {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn write(&self, stored: &Stored) -> Result<(), AuthError> {
        let text = serde_json::to_string(stored).expect("bytes can be written as JSON");
        let wrong = |source| AuthError::Io { path: self.path.clone(), source };
        durable::replace(&self.path, text.as_bytes()).map_err(wrong)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it was given for the join string with this digest.
    pub fn is_of(&self, string: &str) -> bool {
        self.stored().string == string
    }

    /// How the federation of a global master is configured, as the cluster's master says.
    pub fn federation(&self) -> Option<String> {
        Some(self.stored().certified.federation).filter(|text| !text.is_empty())
    }

    /// Uses a newer certificate for the same key from now on.
    ///
    /// # Errors
    /// If it cannot be stored, or is not for this daemon's key: the previous one stays.
    pub fn replace(&self, certified: Certified) -> Result<(), AuthError> {
        let before = self.stored();
        if before.certified == certified {
            return Ok(());
        }
        let stored = Stored { certified, ..before };
        self.check(&stored)?;
        self.write(&stored)?;
        *self.stored.lock().unwrap_or_else(PoisonError::into_inner) = stored;
        Ok(())
    }

    /// The certificate of a server with this name, which has the authority itself, for the other servers of its cluster. The first call
    /// makes the key and adds it to the tokens.
    ///
    /// # Errors
    /// If a file cannot be used, or the certificate there is that of another daemon.
    pub fn of_server(state_dir: &Path, name: &str) -> Result<(), AuthorityError> {
        let path = state_dir.join(Identity::FILE);
        if let Some(kept) = Identity::load(state_dir)? {
            return if kept.is_of_server() { Ok(()) } else { Err(of_another(path).into()) };
        }
        let (authority, key) = (Authority::open(state_dir)?, NewKey::generate()?);
        let subject = Subject { role: DaemonRole::Server, name: name.to_owned(), number: None };
        let (certified, public) = (authority.certify(&subject, &key.public())?, key.public());
        let holder = Holder::Daemon { role: DaemonRole::Server, name: name.to_owned() };
        auth::add(&state_dir.join(Tokens::FILE), TokenEntry::with_key(holder, &public), true)?;
        Identity::create(path, String::new(), key, certified)?;
        Ok(())
    }

    /// Whether it is that of a server.
    pub fn is_of_server(&self) -> bool {
        self.subject().is_ok_and(|subject| subject.role == DaemonRole::Server)
    }

    /// Replaces the certificate of a server, which has the authority itself. Returns the digest of its key and the fingerprint of the
    /// authority that has signed it; `None` for other daemons.
    ///
    /// # Errors
    /// If it cannot be stored.
    pub fn renew_by(&self, authority: &Authority) -> Result<Option<(String, String)>, AuthError> {
        let certificate = CertificateDer::from(self.stored().certified.certificate);
        let (Ok(subject), Ok(key)) = (Subject::of(&certificate), key_of(&certificate)) else { return Ok(None) };
        if subject.role != DaemonRole::Server {
            return Ok(None);
        }
        let Ok(certified) = authority.certify(&subject, &key) else { return Ok(None) };
        let signer = certified.between.first().map(|signer| fingerprint(&CertificateDer::from(signer.as_slice())));
        self.replace(certified)?;
        Ok(signer.map(|signer| (key_digest(&key), signer)))
    }

    fn check(&self, stored: &Stored) -> Result<(), AuthError> {
        let is_ours = || -> Option<bool> {
            let key = KeyPair::try_from(stored.key.as_slice()).ok()?.subject_public_key_info();
            Some(key_of(&CertificateDer::from(stored.certified.certificate.as_slice())).ok()? == key)
        };
        if is_ours() == Some(true) {
            return Ok(());
        }
        let problem = "the server's certificate is not for this daemon's key".to_owned();
        Err(AuthError::Malformed { path: self.path.clone(), line: 1, problem, remedy: "report this as a bug" })
    }

    /// The daemon that the certificate names.
    ///
    /// # Errors
    /// If it names none.
    pub fn subject(&self) -> Result<Subject, Untrusted> {
        Subject::of(&CertificateDer::from(self.stored().certified.certificate))
    }

    /// Whether the certificate is still valid by this machine's clock.
    pub fn has_expired(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
        self.end().is_some_and(|end| end < now)
    }

    /// When the certificate ends, in seconds since 1970. That of a newer one is later.
    pub fn end(&self) -> Option<i64> {
        end_of(&CertificateDer::from(self.stored().certified.certificate)).ok()
    }

    /// Certificates and key, for TLS.
    ///
    /// # Errors
    /// If the key cannot be used.
    pub fn certified_key(&self) -> Result<CertifiedKey, rustls::Error> {
        let Stored { key, certified, .. } = self.stored();
        let chain = std::iter::once(certified.certificate).chain(certified.between);
        with_key(chain, key)
    }

    /// What a global master presents to clients, for TLS. `None` if the server has given it nothing for that.
    ///
    /// # Errors
    /// If the key cannot be used.
    pub fn for_clients(&self) -> Result<Option<CertifiedKey>, rustls::Error> {
        let Stored { key, certified, .. } = self.stored();
        let chain = certified.for_clients;
        if chain.is_empty() { Ok(None) } else { with_key(chain.into_iter(), key).map(Some) }
    }

    /// The authorities that it trusts.
    pub fn trusted(&self) -> Vec<CertificateDer<'static>> {
        self.stored().certified.authorities.into_iter().map(CertificateDer::from).collect()
    }

    /// Checks the certificates of the daemon that listens at an address.
    ///
    /// # Errors
    /// Why it is not the expected one.
    pub fn check_listening(&self, chain: &[CertificateDer<'_>], expected: &Expected) -> Result<(), Untrusted> {
        verify(chain, &self.trusted(), Use::Listening)?;
        expected.check(&chain[0])?;
        // The server's key is in no list.
        if matches!(expected, Expected::JobHost(_)) && !self.allows(&key_digest(&key_of(&chain[0])?)) {
            return Err(Untrusted::Revoked);
        }
        Ok(())
    }

    /// Sets the keys that may authenticate other daemons.
    pub fn allow(&self, keys: Vec<String>) {
        *self.allowed.lock().unwrap_or_else(PoisonError::into_inner) = Some(keys.into_iter().collect());
    }

    /// Whether a key may authenticate another daemon. Before the server has said which ones may, all may whose certificate is
    /// valid: a job host starts also without its server.
    pub fn allows(&self, key_digest: &str) -> bool {
        let allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        allowed.as_ref().is_none_or(|allowed| allowed.contains(key_digest))
    }
}

fn with_key(chain: impl Iterator<Item = Vec<u8>>, key: Vec<u8>) -> Result<CertifiedKey, rustls::Error> {
    let key = provider().key_provider.load_private_key(PrivatePkcs8KeyDer::from(key).into())?;
    Ok(CertifiedKey::new(chain.map(CertificateDer::from).collect(), key))
}

fn pending(identity: &Path) -> PathBuf {
    identity.with_extension("joining")
}

fn of_another(path: PathBuf) -> AuthError {
    let problem = "it is the certificate of another daemon than a server".to_owned();
    AuthError::Malformed { path, line: 1, problem, remedy: "name the state directory of the server" }
}

/// A global master presents to clients what the server has given it for that.
pub struct ToClients(pub Arc<Identity>);

impl std::fmt::Debug for ToClients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ToClients").field(&self.0.path).finish()
    }
}

impl ResolvesServerCert for ToClients {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let key = self.0.for_clients();
        let key =
            key.inspect_err(|error| tracing::error!(%error, "the certificate for clients cannot be used")).ok()?;
        key.map(Arc::new)
    }
}

/// A job host presents its certificate to agents.
#[derive(Clone)]
pub struct Presented(pub Arc<Identity>);

impl std::fmt::Debug for Presented {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Presented").field(&self.0.path).finish()
    }
}

impl ResolvesServerCert for Presented {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let key = self.0.certified_key().map(Arc::new);
        key.inspect_err(|error| tracing::error!(%error, "the certificate of this daemon cannot be used")).ok()
    }
}

mod base64_bytes {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64_STANDARD.decode(text).map_err(serde::de::Error::custom)
    }
}
