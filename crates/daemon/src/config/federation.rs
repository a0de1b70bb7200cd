//! `[federation]`: several clusters under several global masters. All processes of a federation have the same values,
//! except `number`, which is each process's own.

use super::{Mistake, mistake};
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{ClusterId, Federation, GlobalId, Kinds};
use amalgam_workload::{At, Position};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Default number of node numbers of one cluster.
const SPAN: u32 = 10_000;

/// The federation of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FederationConfig {
    pub size: Federation,
    /// Number of this master's cluster, or of this global master.
    pub number: Option<u8>,
    /// Addresses for agents of the clusters' masters, in the order of their numbers. A cluster with a standby has two,
    /// separated by a comma.
    pub masters: Vec<String>,
    /// Addresses of the global masters' interfaces, in the order of their numbers; empty if they are not configured.
    pub interfaces: Vec<String>,
    /// Custom kinds of resources, which have the same numbers in all processes.
    pub kinds: Kinds,
}

impl FederationConfig {
    /// The cluster of this master.
    ///
    /// # Errors
    /// A sentence if the number is missing or too large.
    pub fn cluster(&self) -> Result<ClusterId, String> {
        self.own(self.size.clusters, "clusters").map(ClusterId)
    }

    /// The number of this global master.
    ///
    /// # Errors
    /// A sentence if the number is missing or too large.
    pub fn global(&self) -> Result<GlobalId, String> {
        self.own(self.size.globals, "global masters").map(GlobalId)
    }

    /// Address for agents of this cluster's master. `None` if there are two, because of a standby.
    pub fn agents(&self) -> Option<&str> {
        let written = self.masters.get(usize::from(self.number?))?;
        (!written.contains(',')).then_some(written)
    }

    /// Address of this global master's interface, if configured.
    pub fn interface(&self) -> Option<&str> {
        self.interfaces.get(usize::from(self.number?)).map(String::as_str)
    }

    /// The name or address in each global master's interface, by number. `None` for one that other machines do not reach.
    pub fn names_of_globals(&self) -> Vec<Option<String>> {
        let name = |address: &String| {
            let host = match address.parse::<SocketAddr>() {
                Ok(address) => address.ip().to_string(),
                Err(_) => address.rsplit_once(':')?.0.to_owned(),
            };
            (!is_loopback(address)).then_some(host)
        };
        self.interfaces.iter().map(name).collect()
    }

    fn own(&self, count: u8, of: &str) -> Result<u8, String> {
        match self.number {
            Some(number) if number < count => Ok(number),
            Some(number) => Err(format!("its number is {number}, and {of} are numbered from 0 to {}", count - 1)),
            None => Err(format!("`number` is missing: {of} are numbered from 0 to {}", count - 1)),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FederationKeys {
    masters: Option<At<Vec<At<String>>>>,
    globals: Option<At<Globals>>,
    span: Option<At<u32>>,
    number: Option<u8>,
    kinds: Option<At<Vec<String>>>,
}

/// The number of global masters, or the address of each one's interface.
enum Globals {
    Count(u32),
    Interfaces(Vec<At<String>>),
}

impl<'de> Deserialize<'de> for Globals {
    // Not derived: a derived implementation tries one form after the other and loses the positions.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Globals, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Globals;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of global masters, or a list of the addresses at which they listen for clients")
            }

            fn visit_u64<E>(self, count: u64) -> Result<Globals, E> {
                Ok(Globals::Count(u32::try_from(count).unwrap_or(u32::MAX)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut each: A) -> Result<Globals, A::Error> {
                let mut addresses = Vec::new();
                while let Some(address) = each.next_element()? {
                    addresses.push(address);
                }
                Ok(Globals::Interfaces(addresses))
            }
        }
        from.deserialize_any(Either)
    }
}

impl FederationKeys {
    pub(super) fn config(self, section: Position) -> Result<FederationConfig, Mistake> {
        let example = "write for instance `masters = [\"127.0.0.1:7434\", \"127.0.0.1:7534\"]`";
        let Some(At { at, value: masters }) = self.masters else {
            return Err(mistake(section, "[federation] has no `masters`", example));
        };
        let globals_at = self.globals.as_ref().map(|globals| globals.at);
        let (globals, interfaces) = match self.globals.map(|globals| globals.value) {
            None => (1, Vec::new()),
            Some(Globals::Count(count)) => (count, Vec::new()),
            Some(Globals::Interfaces(each)) => (each.len() as u32, each),
        };
        let span = self.span.map_or(SPAN, |span| span.value);
        let size = Federation::new(masters.len() as u32, globals, span).map_err(|problem| {
            let at = globals_at.or(self.span.map(|span| span.at)).unwrap_or(at);
            mistake(at, problem, "correct `masters`, `globals` or `span`")
        })?;
        let mut seen = BTreeSet::new();
        check_addresses(&masters, true, &mut seen)?;
        check_addresses(&interfaces, false, &mut seen)?;
        let mut kinds = Kinds::new();
        if let Some(At { at, value: names }) = self.kinds {
            for name in names {
                kinds.add(&name).map_err(|problem| mistake(at, problem, "correct `kinds`, or remove some"))?;
            }
        }
        let values = |each: Vec<At<String>>| each.into_iter().map(|address| address.value).collect();
        let (masters, interfaces) = (values(masters), values(interfaces));
        Ok(FederationConfig { size, number: self.number, masters, interfaces, kinds })
    }
}

/// Each address is a host and a port, and no two are the same. A master with a standby has two, separated by a comma.
fn check_addresses(written: &[At<String>], are_masters: bool, seen: &mut BTreeSet<String>) -> Result<(), Mistake> {
    for At { at, value } in written {
        let each: Vec<&str> = if are_masters { value.split(',').map(str::trim).collect() } else { vec![value] };
        for address in each {
            if !is_address(address) {
                let problem = format!("invalid address `{address}`");
                return Err(mistake(*at, problem, "write a host and a port, as in \"127.0.0.1:7434\""));
            }
            if !seen.insert(address.to_owned()) {
                let problem = format!("`{address}` is listed twice");
                return Err(mistake(*at, problem, "use a different address for each process"));
            }
        }
    }
    Ok(())
}

/// Whether this is HOST:PORT with a port that others can connect to.
pub fn is_address(text: &str) -> bool {
    let is_name = |host: &str| !host.is_empty() && !host.contains(['/', ',', ' ', ':', '[', ']']);
    match (text.parse::<SocketAddr>(), text.rsplit_once(':')) {
        (Ok(address), _) => address.port() > 0,
        (Err(_), Some((host, port))) => is_name(host) && port.parse::<u16>().is_ok_and(|port| port > 0),
        (Err(_), None) => false,
    }
}

/// Whether an address is on loopback, also as an IPv4-mapped one.
pub fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Where this machine reaches a process that listens at an address: an unspecified one is also on loopback.
pub fn reached_here(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Whether the address is certainly on loopback, independent of name resolution.
pub fn is_loopback(address: &str) -> bool {
    match address.parse::<SocketAddr>() {
        Ok(address) => address.ip().is_loopback(),
        Err(_) => address.rsplit_once(':').is_some_and(|(host, _)| host == "localhost"),
    }
}

/// In a federation, the preset of this name for federations.
pub(super) fn choose_preset(federation: Option<Position>, preset: &mut Preset) -> Result<(), Mistake> {
    let Some(at) = federation else { return Ok(()) };
    let Some(federated) = preset.in_federation() else {
        let such = Preset::FEDERATED.map(Preset::name).join(", ");
        let problem = format!("the preset {} does not support federations", preset.name());
        return Err(mistake(at, problem, format!("choose one of {such}, or leave [federation] out")));
    };
    *preset = federated;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    const TWO: &str = "[federation]\nmasters = ['127.0.0.1:1', '127.0.0.1:2']\n";

    #[test]
    fn a_federation_has_one_cluster_for_each_master_and_uses_a_preset_for_federations() {
        let text = format!("{TWO}globals = 3\nspan = 64\nnumber = 1\nkinds = ['fpga']\n");
        let config = parse(&text).unwrap();
        let federation = config.federation.unwrap();
        assert_eq!(federation.size, Federation::new(2, 3, 64).unwrap());
        assert_eq!((federation.cluster(), federation.global()), (Ok(ClusterId(1)), Ok(GlobalId(1))));
        assert_eq!(config.master.dispatch.kinds.custom(), ["fpga"]);
        assert!(config.preset.is_federated());
        let text = format!("{TWO}globals = ['127.0.0.1:3', 'localhost:4']\nnumber = 1");
        let federation = parse(&text).unwrap().federation.unwrap();
        assert_eq!((federation.size.globals, federation.interface()), (2, Some("localhost:4")));
        let named =
            parse(&format!("{TWO}globals = ['head:3', '127.0.0.1:4', '[fd00::1]:5']")).unwrap().federation.unwrap();
        assert_eq!(named.names_of_globals(), [Some("head".to_owned()), None, Some("fd00::1".to_owned())]);
        let of = |more: &str| {
            let config =
                parse(&format!("{more}[federation]\nmasters = ['a:1,b:1', 'c:2']\nglobals = ['[::1]:3']\nnumber = 1"));
            let mut config = config.unwrap();
            let agents = config.agents().join(",");
            config.federation.as_mut().unwrap().number = Some(0);
            [agents, config.agents().join(","), config.interface_of_global().join(",")]
        };
        assert_eq!(of(""), ["c:2", "127.0.0.1:7434", "[::1]:3"]);
        assert_eq!(of("listen = 'x:5'\nlisten_agents = 'y:6'\n"), ["y:6", "y:6", "x:5"]);
        let federation = parse(TWO).unwrap().federation.unwrap();
        assert!(federation.cluster().unwrap_err().contains("`number` is missing: clusters are numbered from 0 to 1"));
    }

    #[test]
    fn an_invalid_federation_is_reported_with_its_position() {
        for (text, expected) in [
            ("[federation]\nglobals = 2".to_owned(), "server.toml:1:1: [federation] has no `masters`"),
            ("[federation]\nmasters = []".to_owned(), "server.toml:2:11: a federation has 1 to 200 clusters"),
            (format!("{TWO}globals = 0"), "server.toml:3:11: a federation has 1 to 200 clusters"),
            (format!("{TWO}globals = []"), "server.toml:3:11: a federation has 1 to 200 clusters"),
            (format!("{TWO}span = 2000001"), "server.toml:3:8: a federation has 1 to 4000000 nodes, not 2 clusters"),
            (format!("{TWO}globals = 'two'"), "server.toml:3:11: "),
            ("[federation]\nmasters = ['a:1', 'b']".to_owned(), "server.toml:2:19: invalid address `b`"),
            ("[federation]\nmasters = ['a:1,:2']".to_owned(), "server.toml:2:12: invalid address `:2`"),
            ("[federation]\nmasters = ['a:0']".to_owned(), "server.toml:2:12: invalid address `a:0`"),
            ("[federation]\nmasters = ['a:1', 'a:1']".to_owned(), "server.toml:2:19: `a:1` is listed twice"),
            (format!("{TWO}globals = ['http://a:1']"), "server.toml:3:12: invalid address `http://a:1`"),
            (format!("{TWO}globals = ['::1:3']"), "server.toml:3:12: invalid address `::1:3`"),
            (format!("{TWO}globals = ['127.0.0.1:2']"), "server.toml:3:12: `127.0.0.1:2` is listed twice"),
            (format!("{TWO}kinds = ['Big Thing']"), "server.toml:3:9: `Big Thing` is not a valid resource name"),
            (
                format!("preset = 'drf'\n{TWO}"),
                "the preset drf does not support federations\n  help: choose one of amalgam, megha",
            ),
            (
                format!("{TWO}globals = 2\n[[queue]]\nname = 'a'\nglobal = 2"),
                "server.toml:5:8: queue `root.a` is assigned to global master 2\n  help: use a global master from 0 to 1",
            ),
            (
                format!("{TWO}globals = 2\n[[queue]]\nname = 'a'\nmaximum = 0.5"),
                "server.toml:5:8: queue `root.a` has a limit, but jobs at several global masters, each of which counts only its own jobs",
            ),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let own = parse(&format!("{TWO}number = 5")).unwrap().federation.unwrap();
        assert!(own.cluster().unwrap_err().contains("its number is 5, and clusters are numbered from 0 to 1"));
    }
}
