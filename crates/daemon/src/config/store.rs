//! `[store]`: where the master of a federation's cluster stores its durable records, so that a standby can take over.

use super::{Mistake, mistake, value};
use amalgam_core::vocabulary::Duration;
use amalgam_workload::{At, Position};
use serde::Deserialize;

/// etcd accepts no shorter leases.
const LEAST_LEASE: Duration = Duration::from_secs(2);
const LEASE: Duration = Duration::from_secs(5);
const PREFIX: &str = "amalgam";

/// An etcd cluster for an active master and its standbys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreConfig {
    /// Any of them is used, such as `http://127.0.0.1:2379`.
    pub endpoints: Vec<String>,
    /// Prefix of all keys, before the number of the cluster.
    pub prefix: String,
    /// An active master that does not renew its lease for this time is replaced.
    pub lease: std::time::Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoreKeys {
    etcd: Option<At<Vec<String>>>,
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
        if let Some(wrong) = endpoints.iter().find(|endpoint| !endpoint.starts_with("http://")) {
            let problem = format!("invalid endpoint `{wrong}`: it has to start with http://");
            return Err(mistake(at, problem, example));
        }
        super::at_least("lease", self.lease, LEAST_LEASE, "2s")?;
        if let Some(At { at, value }) = self.prefix.as_ref().filter(|prefix| prefix.value.is_empty()) {
            return Err(mistake(*at, format!("prefix is `{value}`"), "write a word, or leave it out"));
        }
        let prefix = self.prefix.map_or_else(|| PREFIX.to_owned(), |prefix| prefix.value);
        let lease = std::time::Duration::from_micros(value(self.lease, LEASE).as_micros());
        Ok(StoreConfig { endpoints, prefix, lease })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use std::time::Duration;

    const MASTER: &str = "[federation]\nmasters = ['127.0.0.1:1']\n[store]\n";

    #[test]
    fn the_store_of_a_federations_master_can_be_etcd() {
        let store =
            parse(&format!("{MASTER}etcd = ['http://a:1', 'http://b:1']\nlease = '3s'")).unwrap().store.unwrap();
        assert_eq!((store.endpoints.len(), store.prefix.as_str(), store.lease), (2, "amalgam", Duration::from_secs(3)));
    }

    #[test]
    fn an_invalid_store_is_reported_with_its_position() {
        for (text, expected) in [
            ("[store]\netcd = ['http://a:1']".to_owned(), "server.toml:1:1: [store] is for the master of a federation"),
            (MASTER.to_owned(), "server.toml:3:1: [store] has no `etcd`"),
            (format!("{MASTER}etcd = ['https://a:1']"), "server.toml:4:8: invalid endpoint `https://a:1`"),
            (format!("{MASTER}etcd = ['http://a:1']\nlease = '1s'"), "lease is 1.00s\n  help: write 2s or more"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
