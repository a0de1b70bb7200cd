//! `[store]`: where the master of a federation's cluster has its durable records, so that a standby can take over.

use super::{Mistake, mistake, value};
use amalgam_core::vocabulary::Duration;
use amalgam_workload::{At, Position};
use serde::Deserialize;

/// etcd takes no leases that are shorter than this.
const LEAST_LEASE: Duration = Duration::from_secs(2);
const LEASE: Duration = Duration::from_secs(5);
const PREFIX: &str = "amalgam";

/// A cluster of etcd, for an active master and its standbys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreConfig {
    /// Any of them will do, as `http://127.0.0.1:2379`.
    pub endpoints: Vec<String>,
    /// All keys begin with it, and the number of the cluster comes next.
    pub prefix: String,
    /// An active master that is silent for so long is replaced.
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
            let problem =
                "[store] is for the master of a federation's cluster: no other server can have a standby so far";
            return Err(mistake(section, problem, "leave [store] out, or write [federation] as well"));
        }
        let Some(At { at, value: endpoints }) = self.etcd.filter(|endpoints| !endpoints.value.is_empty()) else {
            return Err(mistake(section, "[store] does not say where etcd is", example));
        };
        if let Some(wrong) = endpoints.iter().find(|endpoint| !endpoint.starts_with("http://")) {
            let problem = format!("`{wrong}` is no endpoint of etcd that can be used: it has to begin with http://");
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
    fn a_federations_master_has_its_records_in_etcd_where_that_is_named() {
        let store =
            parse(&format!("{MASTER}etcd = ['http://a:1', 'http://b:1']\nlease = '3s'")).unwrap().store.unwrap();
        assert_eq!((store.endpoints.len(), store.prefix.as_str(), store.lease), (2, "amalgam", Duration::from_secs(3)));
    }

    #[test]
    fn what_makes_no_store_is_pointed_at() {
        for (text, said) in [
            ("[store]\netcd = ['http://a:1']".to_owned(), "server.toml:1:1: [store] is for the master of a federation"),
            (MASTER.to_owned(), "server.toml:3:1: [store] does not say where etcd is"),
            (format!("{MASTER}etcd = ['https://a:1']"), "server.toml:4:8: `https://a:1` is no endpoint"),
            (format!("{MASTER}etcd = ['http://a:1']\nlease = '1s'"), "lease is 1.00s\n  help: write 2s or more"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
