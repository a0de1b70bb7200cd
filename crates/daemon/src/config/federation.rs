//! `[federation]`: several clusters under several global masters. All processes of a federation say the same of it but for
//! `number`, which each has of its own.

use super::{Mistake, mistake};
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{ClusterId, Federation, GlobalId, Kinds};
use amalgam_workload::{At, Position};
use serde::Deserialize;

/// Numbers of nodes that a cluster has where nothing is said.
const SPAN: u32 = 10_000;

/// The federation that a process is of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FederationConfig {
    pub size: Federation,
    /// Of the cluster whose master this is, or of the global master.
    pub number: Option<u8>,
    /// Where the clusters' masters listen for agents, by their numbers. Of one with a standby both addresses, separated by a comma.
    pub masters: Vec<String>,
    /// The custom kinds of resources, which have the same numbers everywhere.
    pub kinds: Kinds,
}

impl FederationConfig {
    /// The cluster whose master this process is.
    ///
    /// # Errors
    /// A sentence, where it has no such number.
    pub fn cluster(&self) -> Result<ClusterId, String> {
        self.own(self.size.clusters, "clusters").map(ClusterId)
    }

    /// The global master that this process is.
    ///
    /// # Errors
    /// A sentence, where it has no such number.
    pub fn global(&self) -> Result<GlobalId, String> {
        self.own(self.size.globals, "global masters").map(GlobalId)
    }

    fn own(&self, count: u8, of: &str) -> Result<u8, String> {
        match self.number {
            Some(number) if number < count => Ok(number),
            Some(number) => Err(format!("its number is {number}, and {of} are numbered from 0 to {}", count - 1)),
            None => Err(format!("it is not said which of the {of} it is, 0 to {}", count - 1)),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FederationKeys {
    masters: Option<At<Vec<String>>>,
    globals: Option<At<u32>>,
    span: Option<At<u32>>,
    number: Option<u8>,
    kinds: Option<At<Vec<String>>>,
}

impl FederationKeys {
    pub(super) fn config(self, section: Position) -> Result<FederationConfig, Mistake> {
        let example = "write for instance `masters = [\"127.0.0.1:7434\", \"127.0.0.1:7534\"]`";
        let Some(At { at, value: masters }) = self.masters else {
            return Err(mistake(section, "[federation] does not say where its clusters' masters are", example));
        };
        let globals = self.globals.map_or(1, |globals| globals.value);
        let span = self.span.map_or(SPAN, |span| span.value);
        let size = Federation::new(masters.len() as u32, globals, span).map_err(|problem| {
            let at = self.globals.or(self.span).map_or(at, |key| key.at);
            mistake(at, problem, "mend `masters`, `globals` or `span`")
        })?;
        let mut kinds = Kinds::new();
        if let Some(At { at, value: names }) = self.kinds {
            for name in names {
                kinds.add(&name).map_err(|problem| mistake(at, problem, "mend `kinds`, or leave some out"))?;
            }
        }
        Ok(FederationConfig { size, number: self.number, masters, kinds })
    }
}

/// A federation takes a preset of federations, and such a preset a federation.
pub(super) fn check_preset(federation: Option<Position>, preset: Preset) -> Result<(), Mistake> {
    let Some(at) = federation.filter(|_| !preset.is_federated()) else { return Ok(()) };
    let such: Vec<&str> = Preset::all().filter(|preset| preset.is_federated()).map(Preset::name).collect();
    let problem = format!("{} is no preset for a federation", preset.name());
    Err(mistake(at, problem, format!("choose one of {}, or leave [federation] out", such.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse;
    use super::*;

    const TWO: &str = "[federation]\nmasters = ['127.0.0.1:1', '127.0.0.1:2']\n";

    #[test]
    fn a_federation_has_as_many_clusters_as_masters_and_goes_by_a_preset_of_federations() {
        let text = format!("{TWO}globals = 3\nspan = 64\nnumber = 1\nkinds = ['fpga']\n");
        let config = parse(&text).unwrap();
        let federation = config.federation.unwrap();
        assert_eq!(federation.size, Federation::new(2, 3, 64).unwrap());
        assert_eq!((federation.cluster(), federation.global()), (Ok(ClusterId(1)), Ok(GlobalId(1))));
        assert_eq!(config.master.dispatch.kinds.custom(), ["fpga"]);
        assert!(config.preset.is_federated());
        let federation = parse(TWO).unwrap().federation.unwrap();
        assert!(federation.cluster().unwrap_err().contains("which of the clusters it is, 0 to 1"));
    }

    #[test]
    fn what_makes_no_federation_is_pointed_at() {
        for (text, said) in [
            ("[federation]\nglobals = 2".to_owned(), "server.toml:1:1: [federation] does not say where"),
            ("[federation]\nmasters = []".to_owned(), "server.toml:2:11: a federation has 1 to 200 clusters"),
            (format!("{TWO}globals = 0"), "server.toml:3:11: a federation has 1 to 200 clusters"),
            (format!("{TWO}kinds = ['Big Thing']"), "server.toml:3:9: `Big Thing` cannot name a resource"),
            (format!("preset = 'drf'\n{TWO}"), "drf is no preset for a federation\n  help: choose one of megha"),
            (
                format!("{TWO}globals = 2\n[[queue]]\nname = 'a'\nglobal = 2"),
                "queue `a`: global is 2\n  help: this federation has global masters 0 to 1",
            ),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        let own = parse(&format!("{TWO}number = 5")).unwrap().federation.unwrap();
        assert!(own.cluster().unwrap_err().contains("its number is 5, and clusters are numbered from 0 to 1"));
    }
}
