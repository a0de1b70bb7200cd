//! `[store]`: where the master of a federation's cluster stores its durable records, so that a standby can take over.

use super::{Mistake, is_address, is_loopback, mistake, value};
use amalgam_core::vocabulary::Duration;
use amalgam_workload::{At, Position};
use serde::Deserialize;
use std::path::PathBuf;

/// etcd accepts no shorter leases.
const LEAST_LEASE: Duration = Duration::from_secs(2);
const LEASE: Duration = Duration::from_secs(5);
const PREFIX: &str = "amalgam";

/// An etcd cluster for an active master and its standbys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreConfig {
    /// Any of them is used, such as `https://etcd-1:2379`.
    pub endpoints: Vec<String>,
    /// Set if the endpoints use TLS.
    pub tls: Option<StoreTls>,
    /// Prefix of all keys, before the number of the cluster.
    pub prefix: String,
    /// An active master that does not renew its lease for this time is replaced.
    pub lease: std::time::Duration,
}

/// The files in PEM by which etcd and this process verify each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreTls {
    /// The authorities of etcd's certificates.
    pub ca: PathBuf,
    /// The certificate of this process, and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoreKeys {
    etcd: Option<At<Vec<String>>>,
    ca: Option<At<PathBuf>>,
    certificate: Option<At<PathBuf>>,
    key: Option<At<PathBuf>>,
    #[serde(default)]
    allow_unencrypted: bool,
    prefix: Option<At<String>>,
    #[serde(default, deserialize_with = "super::duration")]
    lease: Option<At<Duration>>,
}

impl StoreKeys {
    pub(super) fn config(self, section: Position, is_federated: bool) -> Result<StoreConfig, Mistake> {
        let example = "write for instance `etcd = [\"http://127.0.0.1:2379\"]`";
        if !is_federated {
            let problem = "[store] is for the master of a federation's cluster: no other server can have a standby";
            return Err(mistake(section, problem, "remove [store], or add [federation]"));
        }
        let Some(At { at, value: endpoints }) = self.etcd.filter(|endpoints| !endpoints.value.is_empty()) else {
            return Err(mistake(section, "[store] has no `etcd`", example));
        };
        endpoints.iter().try_for_each(|endpoint| check_endpoint(endpoint, at, self.allow_unencrypted))?;
        let tls = tls(
            endpoints.iter().any(|endpoint| endpoint.starts_with(ENCRYPTED)),
            at,
            [self.ca, self.certificate, self.key],
        )?;
        super::at_least("lease", self.lease, LEAST_LEASE, "2s")?;
        if let Some(At { at, value }) = self.prefix.as_ref().filter(|prefix| prefix.value.is_empty()) {
            return Err(mistake(*at, format!("prefix is `{value}`"), "write a word, or leave it out"));
        }
        let prefix = self.prefix.map_or_else(|| PREFIX.to_owned(), |prefix| prefix.value);
        let lease = std::time::Duration::from_micros(value(self.lease, LEASE).as_micros());
        Ok(StoreConfig { endpoints, tls, prefix, lease })
    }
}

const ENCRYPTED: &str = "https://";

/// An endpoint without TLS is on this machine, unless the configuration allows others.
fn check_endpoint(endpoint: &str, at: Position, allows_unencrypted: bool) -> Result<(), Mistake> {
    let example = "write for instance `etcd = [\"https://etcd-1:2379\"]`, or \"http://127.0.0.1:2379\" on this machine";
    let shown = endpoint.escape_debug();
    let (plain, rest) = match (endpoint.strip_prefix(ENCRYPTED), endpoint.strip_prefix("http://")) {
        (Some(rest), _) => (false, rest),
        (None, Some(rest)) => (true, rest),
        (None, None) => {
            let problem = format!("invalid endpoint `{shown}`: it has to start with https:// or http://");
            return Err(mistake(at, problem, example));
        }
    };
    let address = rest.trim_end_matches('/');
    if !is_address(address) {
        return Err(mistake(at, format!("invalid endpoint `{shown}`: it has no host and port"), example));
    }
    if plain && !is_loopback(address) && !allows_unencrypted {
        let problem = format!("the endpoint `{shown}` is not encrypted, and not on loopback");
        let remedy = "use https:// with `ca`, `certificate` and `key`; or, if nobody else can read or change what is sent in that network, \
                      write `allow_unencrypted = true`";
        return Err(mistake(at, problem, remedy));
    }
    Ok(())
}

fn tls(is_encrypted: bool, endpoints: Position, files: [Option<At<PathBuf>>; 3]) -> Result<Option<StoreTls>, Mistake> {
    let names = ["ca", "certificate", "key"];
    for (name, file) in names.iter().zip(&files) {
        let Some(At { at, value }) = file else { continue };
        if !is_encrypted {
            let problem = format!("`{name}` of [store] is for endpoints with https://, and there is none");
            return Err(mistake(*at, problem, "write https:// in `etcd`, or leave it out"));
        }
        if !value.is_absolute() {
            let problem = format!("`{name}` of [store] is not an absolute path");
            return Err(mistake(*at, problem, "write the path of a file in PEM, such as \"/etc/amalgam/etcd-ca.pem\""));
        }
    }
    let [ca, certificate, key] = files;
    match (is_encrypted, ca, certificate, key) {
        (false, ..) => Ok(None),
        (true, None, ..) => {
            let problem = "endpoints with https:// need `ca`: the authorities of the certificates of etcd";
            Err(mistake(endpoints, problem, "write for instance `ca = \"/etc/amalgam/etcd-ca.pem\"`"))
        }
        (true, Some(_), Some(At { at, .. }), None) | (true, Some(_), None, Some(At { at, .. })) => {
            let problem = "[store] has only one of `certificate` and `key`";
            Err(mistake(at, problem, "write both, or none if etcd requires no certificate of its clients"))
        }
        (true, Some(ca), certificate, key) => {
            let own = certificate.zip(key).map(|(certificate, key)| (certificate.value, key.value));
            Ok(Some(StoreTls { ca: ca.value, own }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use std::time::Duration;

    const MASTER: &str = "[federation]\nmasters = ['127.0.0.1:1']\n[store]\n";

    #[test]
    fn the_store_of_a_federations_master_can_be_etcd() {
        let store = parse(&format!("{MASTER}etcd = ['http://127.0.0.1:1', 'http://localhost:2']\nlease = '3s'"))
            .unwrap()
            .store
            .unwrap();
        assert_eq!((store.endpoints.len(), store.prefix.as_str(), store.lease), (2, "amalgam", Duration::from_secs(3)));
        assert_eq!(store.tls, None);
        let allowed =
            parse(&format!("{MASTER}etcd = ['http://a:1']\nallow_unencrypted = true")).unwrap().store.unwrap();
        assert_eq!(allowed.endpoints, ["http://a:1"]);
        let files = "ca = '/ca.pem'\ncertificate = '/own.pem'\nkey = '/own-key.pem'";
        let store =
            parse(&format!("{MASTER}etcd = ['https://a:1', 'https://[fd00::1]:2/']\n{files}")).unwrap().store.unwrap();
        let own = Some(("/own.pem".into(), "/own-key.pem".into()));
        assert_eq!(store.tls, Some(super::StoreTls { ca: "/ca.pem".into(), own }));
        let store = parse(&format!("{MASTER}etcd = ['https://a:1']\nca = '/ca.pem'")).unwrap().store.unwrap();
        assert_eq!(store.tls.unwrap().own, None);
    }

    #[test]
    fn an_invalid_store_is_reported_with_its_position() {
        for (text, expected) in [
            ("[store]\netcd = ['http://a:1']".to_owned(), "server.toml:1:1: [store] is for the master of a federation"),
            (MASTER.to_owned(), "server.toml:3:1: [store] has no `etcd`"),
            (
                format!("{MASTER}etcd = ['a:1']"),
                "server.toml:4:8: invalid endpoint `a:1`: it has to start with https://",
            ),
            (format!("{MASTER}etcd = ['https://a']"), "invalid endpoint `https://a`: it has no host and port"),
            (
                format!("{MASTER}etcd = ['http://a:1']"),
                "the endpoint `http://a:1` is not encrypted, and not on loopback\n  help: use https://",
            ),
            (format!("{MASTER}etcd = ['https://a:1']"), "server.toml:4:8: endpoints with https:// need `ca`"),
            (
                format!("{MASTER}etcd = ['https://a:1']\nca = 'ca.pem'"),
                "server.toml:5:6: `ca` of [store] is not an absolute path",
            ),
            (
                format!("{MASTER}etcd = ['http://127.0.0.1:1']\nca = '/ca.pem'"),
                "`ca` of [store] is for endpoints with https://",
            ),
            (
                format!("{MASTER}etcd = ['https://a:1']\nca = '/ca.pem'\nkey = '/key.pem'"),
                "server.toml:6:7: [store] has only one of `certificate` and `key`",
            ),
            (
                format!("{MASTER}etcd = ['http://127.0.0.1:1']\nlease = '1s'"),
                "lease is 1.00s\n  help: write 2s or more",
            ),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
