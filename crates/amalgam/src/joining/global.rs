//! What a global master has that joined the masters of its clusters with strings: a certificate for each cluster, and the
//! description of the federation, which needs no file then (ADR 85, ADR 89).

use super::{as_subject, redeemed, stored};
use crate::failure::{Failure, Result};
use crate::show;
use amalgam_core::vocabulary::{ClusterId, Federation};
use amalgam_daemon::auth::DaemonRole;
use amalgam_daemon::auth::joins::JoinString;
use amalgam_daemon::authority::{Certified, Subject};
use amalgam_daemon::config::{Config, ConfigError, difference};
use amalgam_daemon::identity::{Identity, NewKey};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub type Identities = BTreeMap<ClusterId, Arc<Identity>>;

/// Certificates that are not stored yet.
struct New {
    digest: String,
    key: NewKey,
    certified: Certified,
    /// Where the key is meanwhile.
    asking: PathBuf,
}

/// The certificates of a global master, by cluster. Each string is for one of the clusters, which its master says. A file
/// describes the federation.
///
/// # Errors
/// If a master does not give them, or they cannot be stored or read.
pub fn with_file(strings: &[JoinString], state_dir: &Path, number: u8, clusters: u8) -> Result<Identities> {
    let mut kept = kept(state_dir)?;
    kept.retain(|cluster, _| cluster.0 < clusters);
    let kept = of_number(kept, number)?;
    let new = all_redeemed(strings, state_dir, number, &kept)?;
    if let Some((_, new)) = new.iter().find(|(cluster, _)| cluster.0 >= clusters) {
        let of_it = |string: &&JoinString| string.digest() == new.digest;
        let address = strings.iter().find(of_it).map_or("", |string| &string.address);
        return Err(Failure::new(
            format!("the master at {address} is of a cluster that is not in the configuration"),
            "write the same [federation] into all configurations",
        ));
    }
    all_stored(kept, new, state_dir, number)
}

/// The same without a file: the federation is described by the masters, and kept with the certificates. `None` if no cluster
/// was joined. Without a number, it is that of the certificates.
///
/// # Errors
/// Those of [`with_file`]; or if the number is missing, or the masters describe none or different federations.
pub fn without_file(
    strings: &[JoinString],
    state_dir: &Path,
    number: Option<u8>,
) -> Result<Option<(Identities, Config)>> {
    let kept = kept(state_dir)?;
    if strings.is_empty() && kept.is_empty() {
        return Ok(None);
    }
    let number = number.or_else(|| kept.values().find_map(|identity| identity.subject().ok()?.name.parse().ok()));
    let number = number.ok_or_else(|| {
        let remedy = "name the place of its address in `globals` of the servers' [federation], from 0";
        Failure::usage("the number of this global master is missing (--number)", remedy)
    })?;
    let kept = of_number(kept, number)?;
    let new = all_redeemed(strings, state_dir, number, &kept)?;
    let fresh: Vec<(ClusterId, String)> =
        new.iter().map(|(cluster, new)| (*cluster, new.certified.federation.clone())).collect();
    let is_old = |cluster: &ClusterId| fresh.iter().all(|(other, _)| other != cluster);
    let mut known: Vec<(&ClusterId, &Arc<Identity>)> = kept.iter().filter(|(cluster, _)| is_old(cluster)).collect();
    known.sort_by_key(|(cluster, identity)| (Reverse(identity.end()), **cluster));
    let known = known.into_iter().map(|(cluster, identity)| (*cluster, identity.federation().unwrap_or_default()));
    // Before they are stored: the same strings serve again when the servers agree.
    let mut described = agreed(&fresh, &known.collect::<Vec<_>>())?;
    if let Some(federation) = &mut described.federation {
        federation.number = Some(number);
    }
    Ok(Some((all_stored(kept, new, state_dir, number)?, described)))
}

/// The federation that all clusters describe. An older program describes none. What the servers say now has to be the same; what they
/// said before, the newest first, is used as it is: a server that is at another address now could not send its next description.
fn agreed(fresh: &[(ClusterId, String)], known: &[(ClusterId, String)]) -> Result<Config> {
    let mut first: Option<(ClusterId, Config)> = None;
    for (cluster, text) in fresh.iter().filter(|(_, text)| !text.is_empty()) {
        let described = parsed(*cluster, text)?;
        match &first {
            None => first = Some((*cluster, described)),
            Some((other, before)) => {
                if let Some(key) = difference(before, &described) {
                    return Err(Failure::new(
                        format!("the servers of {other} and {cluster} describe different federations: {key} differs"),
                        "write the same [federation], preset, [[queue]] and [policies] into the configurations of both, restart \
                         them, and use the same strings again while they are valid (later: `amalgam token remove --global N` at each \
                         server, and new strings); or give this global master a file with [federation] (--config)",
                    ));
                }
            }
        }
    }
    for (cluster, text) in known.iter().filter(|(_, text)| !text.is_empty()) {
        match &first {
            None => first = Some((*cluster, parsed(*cluster, text)?)),
            Some((other, newer)) => {
                let key = match parsed(*cluster, text) {
                    Ok(described) => difference(newer, &described),
                    Err(_) => Some("its form"),
                };
                let said = |key| {
                    format!(
                        "warning: what {cluster} said of the federation differs from what {other} said later ({key}), which is used until \
                         {cluster} is connected"
                    )
                };
                key.map(said).iter().for_each(|said| show::note(said));
            }
        }
    }
    first.map(|(_, config)| config).ok_or_else(|| {
        let clusters: Vec<String> = fresh.iter().chain(known).map(|(cluster, _)| cluster.to_string()).collect();
        Failure::new(
            format!(
                "no server describes the federation ({}): its program is older, or it has too many queues",
                clusters.join(", ")
            ),
            "copy the configuration with [federation] from a server, and name it with --config",
        )
    })
}

fn parsed(cluster: ClusterId, text: &str) -> Result<Config> {
    let name = format!("federation-of-{}", cluster.0);
    let described = Config::parse(text, Path::new(&name)).map_err(|error| match error {
        ConfigError::Wrong(error) => error.to_string(),
        error @ ConfigError::Read { .. } => error.to_string(),
    });
    described.map_err(|why| {
        Failure::new(
            format!("the server of {cluster} describes its federation in a way that this program does not know: {why}"),
            "install programs of the same version, or name a file with [federation] with --config",
        )
    })
}

fn kept(state_dir: &Path) -> Result<BTreeMap<ClusterId, Identity>> {
    let mut kept = BTreeMap::new();
    for cluster in (0..Federation::MOST).map(ClusterId) {
        if let Some(identity) = Identity::load_file(state_dir.join(Identity::file_of_cluster(cluster)))? {
            kept.insert(cluster, identity);
        }
    }
    Ok(kept)
}

/// Refuses those of another global master.
fn of_number(kept: BTreeMap<ClusterId, Identity>, number: u8) -> Result<Identities> {
    let name = number.to_string();
    let checked = |(cluster, identity)| Ok((cluster, Arc::new(as_subject(identity, DaemonRole::Global, &name)?)));
    kept.into_iter().map(checked).collect()
}

/// The certificates for the strings that were not used before.
fn all_redeemed(
    strings: &[JoinString],
    state_dir: &Path,
    number: u8,
    kept: &Identities,
) -> Result<Vec<(ClusterId, New)>> {
    let mut all = Vec::new();
    for string in strings {
        let digest = string.digest();
        if kept.values().any(|kept| kept.is_of(&digest)) {
            continue;
        }
        // Its cluster is not known yet.
        let asking = state_dir.join(format!("identity-{}", &digest[..16]));
        let (key, certified) = redeemed(string, &asking, DaemonRole::Global, &number.to_string())?;
        let subject = Subject::of(&certified.certificate.as_slice().into());
        let cluster = subject.ok().and_then(|subject| u8::try_from(subject.number?).ok());
        let cluster = cluster.filter(|cluster| *cluster < Federation::MOST).map(ClusterId).ok_or_else(|| {
            let what = format!("the master at {} gave a certificate without its cluster", string.address);
            Failure::new(what, "install programs of the same version")
        })?;
        all.push((cluster, New { digest, key, certified, asking }));
    }
    Ok(all)
}

fn all_stored(mut kept: Identities, new: Vec<(ClusterId, New)>, state_dir: &Path, number: u8) -> Result<Identities> {
    for (cluster, New { digest, key, certified, asking }) in new {
        let path = state_dir.join(Identity::file_of_cluster(cluster));
        let identity = stored(path, digest, key, certified, DaemonRole::Global, &number.to_string())?;
        kept.insert(cluster, Arc::new(identity));
        NewKey::forget(&asking);
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(of: &[(u8, &str)]) -> Vec<(ClusterId, String)> {
        of.iter().map(|(cluster, text)| (ClusterId(*cluster), (*text).to_owned())).collect()
    }

    #[test]
    fn a_cluster_of_an_older_program_takes_what_the_others_describe() {
        let text = "[federation]\nmasters = ['a:1', 'b:2']\n";
        let agreed_on = agreed(&texts(&[(0, ""), (1, text)]), &[]).unwrap();
        assert_eq!(agreed_on.federation.unwrap().masters, ["a:1", "b:2"]);
        let refused = agreed(&texts(&[(0, "")]), &texts(&[(1, "")])).err().unwrap();
        assert!(refused.what.starts_with("no server describes the federation (cluster 0, cluster 1)"), "{refused}");
        assert!(refused.remedy.contains("--config"), "{refused}");
    }

    #[test]
    fn differing_and_unknown_descriptions_name_the_clusters() {
        let (one, other) = ("[federation]\nmasters = ['a:1', 'b:2']\n", "[federation]\nmasters = ['a:1', 'c:2']\n");
        let refused = agreed(&texts(&[(0, one), (1, other)]), &[]).err().unwrap();
        let what =
            "the servers of cluster 0 and cluster 1 describe different federations: `masters` of [federation] differs";
        assert_eq!(refused.what, what);
        // What they said before does not keep a global master from starting: the newest is used, and what they say now before that.
        let masters = |config: Config| config.federation.unwrap().masters;
        assert_eq!(masters(agreed(&[], &texts(&[(1, other), (0, one)])).unwrap()), ["a:1", "c:2"]);
        assert_eq!(masters(agreed(&texts(&[(0, one)]), &texts(&[(1, other)])).unwrap()), ["a:1", "b:2"]);
        let newer = agreed(&texts(&[(3, "invented = 1\n[federation]\nmasters = ['a:1']\n")]), &[]).err().unwrap();
        assert!(newer.what.contains("the server of cluster 3") && newer.what.contains("invented"), "{newer}");
    }
}
