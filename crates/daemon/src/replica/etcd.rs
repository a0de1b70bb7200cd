//! A small client for etcd: its JSON gateway over HTTP. Every call has a time limit and is tried at each endpoint in
//! turn.
//!
//! Keys and values are base64 in this interface, and 64-bit numbers are strings. A call that failed at one endpoint may
//! have been executed, so callers only use calls that may be repeated.

use crate::auth;
use crate::config::{StoreConfig, StoreTls};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

/// Minimum time limit of a call at one endpoint.
const LEAST_PATIENCE: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    #[error("cannot use {path}, a file of [store]: {why}", path = path.display())]
    File { path: PathBuf, why: String },
    #[error("no endpoint of etcd answers correctly; the last one tried, {endpoint}: {why}")]
    Unanswered { endpoint: String, why: String },
    #[error("unexpected answer of etcd to {call}: it lacks {what}")]
    Strange { call: &'static str, what: &'static str },
}

/// An etcd cluster.
#[derive(Debug)]
pub struct Etcd {
    agent: Mutex<Current>,
    tls: Option<StoreTls>,
    /// Time limit of a call at one endpoint.
    each: Duration,
    endpoints: Vec<String>,
    /// Index of the endpoint that answered last.
    preferred: AtomicUsize,
}

/// The client, and the versions of the files that it has read.
#[derive(Debug)]
struct Current {
    agent: Agent,
    versions: Vec<auth::Version>,
}

/// A key in etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    pub key: String,
    pub value: Vec<u8>,
    /// Increases with every change in etcd. It distinguishes this key from earlier ones with the same name.
    pub create_revision: i64,
    /// The lease whose end removes the key; 0 for none.
    pub lease: i64,
}

/// A condition of a transaction: the key was created at this revision.
pub fn was_created_at(key: &str, create_revision: i64) -> Value {
    json!({
        "key": BASE64.encode(key), "target": "CREATE", "result": "EQUAL", "create_revision": create_revision.to_string(),
    })
}

/// A condition of a transaction: the key does not exist.
pub fn is_absent(key: &str) -> Value {
    was_created_at(key, 0)
}

/// A part of a transaction: writes a key. With a lease, the end of the lease removes the key.
pub fn put(key: &str, value: &[u8], lease: Option<i64>) -> Value {
    let lease = lease.unwrap_or_default().to_string();
    json!({ "requestPut": { "key": BASE64.encode(key), "value": BASE64.encode(value), "lease": lease } })
}

/// A part of a transaction: removes the keys from `from` to before `to`.
pub fn delete(from: &str, to: &str) -> Value {
    json!({ "requestDeleteRange": { "key": BASE64.encode(from), "range_end": BASE64.encode(to) } })
}

impl Etcd {
    /// A call at all endpoints together takes at most a third of the lease.
    ///
    /// # Errors
    /// If a file of the configuration cannot be used.
    pub fn new(config: &StoreConfig) -> Result<Etcd, EtcdError> {
        let StoreConfig { endpoints, tls, lease, .. } = config;
        let each = (*lease / 3 / endpoints.len().max(1) as u32).max(LEAST_PATIENCE);
        let endpoints = endpoints.iter().map(|endpoint| endpoint.trim_end_matches('/').to_owned()).collect();
        let versions = versions(tls.as_ref());
        let agent = Mutex::new(Current { agent: agent(tls.as_ref(), each)?, versions });
        Ok(Etcd { agent, tls: tls.clone(), each, endpoints, preferred: AtomicUsize::new(0) })
    }

    /// The client with the present certificates: they are replaced before they end.
    fn agent(&self) -> Agent {
        let mut current = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        let versions = versions(self.tls.as_ref());
        if versions != current.versions {
            // A mistake is reported once for each version of the files.
            current.versions = versions;
            match agent(self.tls.as_ref(), self.each) {
                Ok(agent) => current.agent = agent,
                Err(error) => tracing::error!("{error}; the previous certificates stay in use until this is done"),
            }
        }
        current.agent.clone()
    }

    /// A new lease, and its duration in seconds, which may be longer than requested.
    pub fn grant(&self, seconds: u64) -> Result<(i64, u64), EtcdError> {
        const CALL: &str = "a grant of a lease";
        let answer = self.call("/v3/lease/grant", &json!({ "TTL": seconds.to_string() }))?;
        let lease = number(&answer["ID"]).ok_or(EtcdError::Strange { call: CALL, what: "the lease" })?;
        let lasts = number(&answer["TTL"]).ok_or(EtcdError::Strange { call: CALL, what: "its duration" })?;
        Ok((lease, lasts.max(0) as u64))
    }

    /// Renews a lease. Returns false if it has ended.
    pub fn keep_alive(&self, lease: i64) -> Result<bool, EtcdError> {
        let answer = self.call("/v3/lease/keepalive", &json!({ "ID": lease.to_string() }))?;
        let result = answer.get("result");
        let result = result.ok_or(EtcdError::Strange { call: "a keep-alive", what: "a result" })?;
        // Etcd omits fields that are 0.
        Ok(number(&result["TTL"]).is_some_and(|left| left > 0))
    }

    /// Ends a lease, which removes its keys.
    pub fn revoke(&self, lease: i64) -> Result<(), EtcdError> {
        self.call("/v3/lease/revoke", &json!({ "ID": lease.to_string() })).map(drop)
    }

    pub fn get(&self, key: &str) -> Result<Option<Found>, EtcdError> {
        let found = self.call("/v3/kv/range", &json!({ "key": BASE64.encode(key) }))?;
        Ok(keys(&found)?.pop())
    }

    /// The keys from `from` to before `to`, in order.
    pub fn range(&self, from: &str, to: &str) -> Result<Vec<Found>, EtcdError> {
        let asked = json!({
            "key": BASE64.encode(from), "range_end": BASE64.encode(to), "sort_order": "ASCEND", "sort_target": "KEY",
        });
        keys(&self.call("/v3/kv/range", &asked)?)
    }

    /// Executes all of `operations` if `compare` holds, or else none. Returns whether it did.
    pub fn transact(&self, compare: Value, operations: Vec<Value>) -> Result<bool, EtcdError> {
        let answer = self.call("/v3/kv/txn", &json!({ "compare": [compare], "success": operations }))?;
        Ok(answer["succeeded"].as_bool().unwrap_or(false))
    }

    /// What to do about an error of TLS.
    fn explained(&self, why: &str) -> String {
        let has_own = self.tls.as_ref().is_some_and(|tls| tls.own.is_some());
        let has = |text: &str| why.contains(text);
        let hint = if has("UnknownIssuer") {
            "; `ca` of [store] is not the authority of this etcd, or another process answers"
        } else if has("CertificateRequired") || has("BadCertificate") && !has_own {
            "; it requires a certificate: write `certificate` and `key` into [store]"
        } else if has("BadCertificate") || has("UnknownCA") || has("AccessDenied") || has("CertificateUnknown") {
            "; it does not accept `certificate` of [store]"
        } else if self.tls.is_some() && (has("Broken pipe") || has("reset by peer") || has("peer closed")) {
            // The end of the connection may come before the alert that says why.
            match has_own {
                true => "; it may not accept `certificate` of [store]: its log says why",
                false => "; it may require a certificate: write `certificate` and `key` into [store]",
            }
        } else if has("not valid for name") || has("NotValidForName") {
            "; its certificate has another name than the endpoint"
        } else if has("InvalidContentType") || has("corrupt message") {
            "; it does not use TLS: write http://, or let it use TLS"
        } else {
            ""
        };
        format!("{why}{hint}")
    }

    fn call(&self, path: &str, body: &Value) -> Result<Value, EtcdError> {
        let body = body.to_string();
        let first = self.preferred.load(Ordering::Relaxed);
        let mut failed = EtcdError::Unanswered { endpoint: String::new(), why: "no endpoint is configured".to_owned() };
        for place in (0..self.endpoints.len()).map(|turn| (first + turn) % self.endpoints.len()) {
            let endpoint = &self.endpoints[place];
            match self.call_at(endpoint, path, &body) {
                Ok(answer) => {
                    self.preferred.store(place, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(why) => failed = EtcdError::Unanswered { endpoint: endpoint.clone(), why },
            }
        }
        Err(failed)
    }

    fn call_at(&self, endpoint: &str, path: &str, body: &str) -> Result<Value, String> {
        let call = self.agent().post(format!("{endpoint}{path}")).header("content-type", "application/json");
        let answer = call.send(body).map_err(|error| self.explained(&error.to_string()))?;
        let status = answer.status();
        let mut bytes = Vec::new();
        answer.into_body().into_reader().read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if !status.is_success() {
            let text = String::from_utf8_lossy(&bytes);
            return Err(format!("{status}: {}", text.trim().chars().take(300).collect::<String>()));
        }
        // The answer to a keep-alive is a stream, of which only the first one is used.
        let first = serde_json::Deserializer::from_slice(&bytes).into_iter().next();
        first.unwrap_or(Ok(Value::Null)).map_err(|error| format!("invalid answer: {error}"))
    }
}

fn versions(tls: Option<&StoreTls>) -> Vec<auth::Version> {
    let own = tls.and_then(|tls| tls.own.as_ref());
    let files =
        tls.map(|tls| &tls.ca).into_iter().chain(own.into_iter().flat_map(|(certificate, key)| [certificate, key]));
    files.map(|file| auth::version(file)).collect()
}

fn agent(tls: Option<&StoreTls>, each: Duration) -> Result<Agent, EtcdError> {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(each))
        // A proxy in the environment is not intended for the cluster.
        .proxy(None);
    let Some(StoreTls { ca, own }) = tls else { return Ok(config.build().new_agent()) };
    let roots = RootCerts::Specific(Arc::new(certificates(ca)?));
    // Nothing older than TLS 1.3.
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.retain(|suite| suite.tls13().is_some());
    let mut tls = TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(Arc::new(provider));
    if let Some((certificate, key)) = own {
        let chain = certificates(certificate)?;
        let wrong = |why: String| EtcdError::File { path: key.clone(), why };
        let text = auth::read_private(key).map_err(|error| wrong(format!("{error}; {}", error.remedy())))?;
        check_pair(&chain, &text).map_err(|why| wrong(format!("with {}: {why}", certificate.display())))?;
        let key = PrivateKey::from_pem(text.as_bytes()).map_err(|error| wrong(error.to_string()))?;
        tls = tls.client_cert(Some(ClientCert::new_with_certs(&chain, key)));
    }
    Ok(config.tls_config(tls.build()).build().new_agent())
}

/// Refuses a key that is not that of the certificate: both are replaced one after the other.
fn check_pair(chain: &[Certificate<'_>], key: &str) -> Result<(), String> {
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| error.to_string())?;
    let key = rustls::crypto::ring::sign::any_supported_type(&key).map_err(|error| error.to_string())?;
    let chain = chain.iter().map(|certificate| CertificateDer::from(certificate.der().to_vec())).collect();
    CertifiedKey::new(chain, key).keys_match().map_err(|error| error.to_string())
}

/// The certificates of a file, at least one.
fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, EtcdError> {
    let wrong = |why: String| EtcdError::File { path: path.to_owned(), why };
    let pem = fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let found = parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
        Ok(_) => None,
        Err(error) => Some(Err(wrong(error.to_string()))),
    });
    let found = found.collect::<Result<Vec<_>, _>>()?;
    if found.is_empty() { Err(wrong("it contains no certificate".to_owned())) } else { Ok(found) }
}

fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

fn keys(answer: &Value) -> Result<Vec<Found>, EtcdError> {
    let found = |found: &Value| {
        let bytes = |field: &str| BASE64.decode(found[field].as_str().unwrap_or_default()).ok();
        Some(Found {
            key: String::from_utf8(bytes("key")?).ok()?,
            value: bytes("value")?,
            create_revision: number(&found["create_revision"])?,
            lease: number(&found["lease"]).unwrap_or(0),
        })
    };
    let all = answer["kvs"].as_array().map_or(&[][..], Vec::as_slice).iter();
    all.map(|one| found(one).ok_or(EtcdError::Strange { call: "a query for keys", what: "fields of a key" })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    /// Answers one call with `body`.
    fn answering(body: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
        });
        format!("http://{address}")
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let made = || rcgen::generate_simple_self_signed(["etcd".to_owned()]).unwrap();
        let (one, other) = (made(), made());
        let chain = [Certificate::from_der(one.cert.der()).to_owned()];
        assert_eq!(check_pair(&chain, &one.signing_key.serialize_pem()), Ok(()));
        let refused = check_pair(&chain, &other.signing_key.serialize_pem()).unwrap_err();
        assert!(refused.contains("keys may not be consistent") || refused.contains("KeyMismatch"), "{refused}");
        assert!(check_pair(&chain, "no key").is_err());
    }

    fn etcd(endpoints: &[String]) -> Etcd {
        with_lease(endpoints, Duration::from_secs(15))
    }

    fn with_lease(endpoints: &[String], lease: Duration) -> Etcd {
        let prefix = "test".to_owned();
        Etcd::new(&StoreConfig { endpoints: endpoints.to_vec(), tls: None, prefix, lease }).unwrap()
    }

    #[test]
    fn a_key_is_found_at_the_endpoint_that_answers() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = format!("http://{}", silent.local_addr().unwrap());
        drop(silent);
        let body = r#"{"kvs":[{"key":"YS9i","value":"AQI=","create_revision":"7","lease":"9"}],"count":"1"}"#;
        let found = etcd(&[closed, answering(body)]).get("a/b").unwrap().unwrap();
        assert_eq!(found, Found { key: "a/b".to_owned(), value: vec![1, 2], create_revision: 7, lease: 9 });
    }

    #[test]
    fn a_renewal_reports_whether_the_lease_has_ended() {
        assert!(etcd(&[answering(r#"{"result":{"ID":"7","TTL":"5"}}"#)]).keep_alive(7).unwrap());
        assert!(!etcd(&[answering(r#"{"result":{"ID":"7"}}"#)]).keep_alive(7).unwrap());
    }

    #[test]
    fn a_silent_endpoint_causes_a_timeout() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", silent.local_addr().unwrap());
        let etcd = with_lease(std::slice::from_ref(&endpoint), Duration::ZERO);
        let error = etcd.get("a").unwrap_err().to_string();
        assert!(error.contains(&endpoint) && error.contains("timeout"), "{error}");
    }
}
