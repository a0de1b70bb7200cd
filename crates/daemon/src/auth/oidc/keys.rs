//! The keys of an issuer (JWKS), from a file or a URL.
//!
//! A file is read again when it changes. A URL is fetched by a thread, at intervals and when a token has an unknown key;
//! while that fails, the last keys stay in use.

use super::verifier::ALGORITHMS;
use crate::auth::{AuthError, Version, version};
use crate::config::{Jwks, OidcConfig};
use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use rustls::pki_types::CertificateDer;
use serde::Deserialize;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Interval at which keys are fetched again.
const INTERVAL: Duration = Duration::from_secs(15 * 60);
/// The shortest time between two fetches, also if tokens with unknown keys arrive or fetches fail.
const PAUSE: Duration = Duration::from_secs(60);
/// Time limit for a fetch.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of a JWKS.
const MOST_BYTES: u64 = 1 << 20;

/// A key and what the issuer says about it.
pub struct Key {
    id: Option<String>,
    /// The only algorithm that it is for.
    algorithm: Option<Algorithm>,
    key: DecodingKey,
}

/// The key for a token.
pub enum Found {
    Key(DecodingKey),
    Unknown,
    NotFetched(String),
}

/// The keys of an issuer, kept up to date.
pub enum Keys {
    File { path: PathBuf, read: Mutex<(Version, Vec<Key>)> },
    Fetched { known: Arc<Mutex<Known>>, wake: SyncSender<()> },
}

/// Keys that were fetched, or why there are none yet.
pub type Known = Result<Vec<Key>, String>;

impl Keys {
    /// # Errors
    /// If a file cannot be used.
    pub fn start(config: &OidcConfig) -> Result<Keys, AuthError> {
        match &config.jwks {
            Jwks::File(path) => {
                let version = version(path);
                let keys = read(path).map_err(|why| AuthError::Jwks { path: path.clone(), why })?;
                Ok(Keys::File { path: path.clone(), read: Mutex::new((version, keys)) })
            }
            Jwks::Url(url) => {
                let known = Arc::new(Mutex::new(Err("they have not been fetched yet".to_owned())));
                // One wake-up that waits is enough.
                let (wake, woken) = sync_channel(1);
                let (fetched, url) = (Arc::clone(&known), url.clone());
                let fetching = thread::Builder::new().name("oidc".to_owned());
                fetching.spawn(move || keep_fetching(&url, &fetched, &woken)).map_err(AuthError::Thread)?;
                Ok(Keys::Fetched { known, wake })
            }
        }
    }

    /// The key with this id; without an id, the only one for the algorithm.
    pub fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Found {
        match self {
            Keys::File { path, read: last } => {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                reload(path, &mut last);
                chosen(&last.1, id, algorithm)
            }
            Keys::Fetched { known, wake } => {
                let found = match &*known.lock().unwrap_or_else(PoisonError::into_inner) {
                    Ok(keys) => chosen(keys, id, algorithm),
                    Err(why) => Found::NotFetched(why.clone()),
                };
                if matches!(found, Found::Unknown) && id.is_some() {
                    // Full means that it is about to fetch.
                    let _ = wake.try_send(());
                }
                found
            }
        }
    }
}

fn chosen(keys: &[Key], id: Option<&str>, algorithm: Algorithm) -> Found {
    let is_for = |key: &&Key| {
        key.algorithm.map_or(family(algorithm) == key.key.family(), |only| only == algorithm)
            && id.is_none_or(|id| key.id.as_deref() == Some(id))
    };
    let mut fitting = keys.iter().filter(is_for);
    match (fitting.next(), fitting.next()) {
        (Some(key), None) => Found::Key(key.key.clone()),
        _ => Found::Unknown,
    }
}

fn family(algorithm: Algorithm) -> AlgorithmFamily {
    match algorithm {
        Algorithm::RS256 => AlgorithmFamily::Rsa,
        Algorithm::EdDSA => AlgorithmFamily::Ed,
        _ => AlgorithmFamily::Ec,
    }
}

/// A file that is being changed, or has a mistake, leaves the last keys in use.
fn reload(path: &Path, (last, keys): &mut (Version, Vec<Key>)) {
    let now = version(path);
    if now == *last {
        return;
    }
    *last = now;
    match read(path) {
        Ok(read) => *keys = read,
        Err(why) => tracing::error!("cannot use {}: {why}; the previous keys stay in use", path.display()),
    }
}

fn read(path: &Path) -> Result<Vec<Key>, String> {
    parse(&fs::read(path).map_err(|error| error.to_string())?)
}

/// The keys that can verify tokens; others, such as those for encryption, are left out.
fn parse(text: &[u8]) -> Result<Vec<Key>, String> {
    #[derive(Deserialize)]
    struct Set {
        keys: Vec<Value>,
    }
    let set: Set = serde_json::from_slice(text).map_err(|_| "it is not a JWKS: JSON with a list `keys`".to_owned())?;
    let keys: Vec<Key> = set.keys.into_iter().filter_map(key).collect();
    if keys.is_empty() {
        return Err("it has no key for RS256, ES256 or EdDSA".to_owned());
    }
    Ok(keys)
}

fn key(value: Value) -> Option<Key> {
    let algorithm = match value.get("alg") {
        Some(named) => Some(Algorithm::from_str(named.as_str()?).ok().filter(|named| ALGORITHMS.contains(named))?),
        None => None,
    };
    let jwk: Jwk = serde_json::from_value(value).ok()?;
    if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
        return None;
    }
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    (key.family() != AlgorithmFamily::Hmac).then_some(Key { id: jwk.common.key_id, algorithm, key })
}

/// Fetches until the issuer is dropped.
fn keep_fetching(url: &str, known: &Mutex<Known>, woken: &Receiver<()>) {
    loop {
        let started = Instant::now();
        let fetched = fetch(url);
        let is_fetched = fetched.is_ok();
        if let Err(why) = &fetched {
            tracing::warn!("cannot fetch the keys of an issuer from {url}: {why}; trying again in a minute");
        }
        {
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            // A failure does not replace keys.
            if is_fetched || known.is_err() {
                *known = fetched;
            }
        }
        let wait = if is_fetched { INTERVAL } else { PAUSE };
        if woken.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        let pause = PAUSE.saturating_sub(started.elapsed());
        // Wake-ups during the pause are for the same fetch.
        let end = Instant::now() + pause;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if woken.recv_timeout(left) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }
}

fn fetch(url: &str) -> Result<Vec<Key>, String> {
    let mut body = agent(url)?.get(url).call().map_err(|error| error.to_string())?.into_body().into_reader();
    let mut text = Vec::new();
    body.by_ref().take(MOST_BYTES).read_to_end(&mut text).map_err(|error| error.to_string())?;
    parse(&text)
}

/// Trusts the authorities of the operating system, or those of the file in `SSL_CERT_FILE`.
fn agent(url: &str) -> Result<Agent, String> {
    let mut config = Agent::config_builder().timeout_global(Some(PATIENCE)).max_redirects(0);
    if url.starts_with("https://") {
        let found = rustls_native_certs::load_native_certs();
        if found.certs.is_empty() {
            return Err("this machine has no certificates of authorities".to_owned());
        }
        let certificate = |der: &CertificateDer<'static>| Certificate::from_der(der).to_owned();
        let roots = RootCerts::Specific(Arc::new(found.certs.iter().map(certificate).collect()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(provider).build();
        config = config.tls_config(tls);
    }
    Ok(config.build().new_agent())
}
