//! The server's configuration file: TOML, every key optional.

mod opportunistic;

use amalgam_core::master::{Decide, MasterSettings};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::{InterJob, IntraJob, Placement, Preset, Yielding};
use amalgam_core::vocabulary::{Duration, QueueSpec};
use amalgam_workload::quantities::Malformed;
use amalgam_workload::{FileError, closest, packed, read_settings};
use opportunistic::OpportunisticKeys;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::fs;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// What a server's operator decides.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    pub preset: Preset,
    pub queues: QueueTree,
    pub master: MasterSettings,
    /// Where the public interface listens.
    pub listen: String,
    /// Where agents connect.
    pub listen_agents: String,
    /// What the log keeps beyond its last snapshot, for stories and history.
    pub history_bytes: u64,
    /// After so much of the log a snapshot is written.
    pub segment_bytes: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            preset: Preset::default(),
            queues: QueueTree::single(),
            master: MasterSettings::default(),
            listen: "127.0.0.1:7433".to_owned(),
            listen_agents: "127.0.0.1:7434".to_owned(),
            history_bytes: 1 << 30,
            segment_bytes: 64 << 20,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {error}", path = path.display())]
    Read { path: PathBuf, error: std::io::Error },
    #[error("{path}: {what}", path = path.display())]
    Wrong { path: PathBuf, what: String },
    #[error(transparent)]
    Misread(FileError),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, deserialize_with = "preset")]
    preset: Option<Preset>,
    listen: Option<String>,
    listen_agents: Option<String>,
    #[serde(default, deserialize_with = "duration")]
    heartbeat: Option<Duration>,
    missed_heartbeats: Option<u32>,
    #[serde(default, deserialize_with = "duration")]
    node_grace: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    token_life: Option<Duration>,
    /// "events" or "heartbeats".
    decide: Option<String>,
    grants_per_heartbeat: Option<NonZeroU32>,
    kept_jobs: Option<usize>,
    history_mib: Option<u64>,
    segment_mib: Option<u64>,
    #[serde(default)]
    policies: Policies,
    #[serde(default)]
    queue: Vec<QueueEntry>,
}

/// Parts of the preset that are replaced.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Policies {
    #[serde(default, deserialize_with = "intra_job")]
    intra_job: Option<IntraJob>,
    #[serde(default, deserialize_with = "placement")]
    placement: Option<Placement>,
    #[serde(default, deserialize_with = "duration")]
    node_delay: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    rack_delay: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    reserve_after: Option<Duration>,
    /// Of the placements that draw nodes, and of jobs that yield.
    seed: Option<u64>,
    /// Of the preset drf: whether room stays idle rather than go to a job above its fair share.
    strict_shares: Option<bool>,
    /// The knob f of what packs: the preset tetris, or what is left over under carbyne.
    fairness: Option<f64>,
    /// Of the preset carbyne: the probability with which a job yields when its demand changes.
    altruism: Option<f64>,
    /// Of the preset carbyne: whose turn it is for what jobs need, and for what is left.
    #[serde(default, deserialize_with = "layer")]
    needed: Option<Layer>,
    #[serde(default, deserialize_with = "layer")]
    leftover: Option<Layer>,
    opportunistic: Option<OpportunisticKeys>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QueueEntry {
    name: String,
    #[serde(default = "one")]
    weight: f64,
    #[serde(default)]
    guaranteed: f64,
    #[serde(default = "one")]
    maximum: f64,
    #[serde(default = "one")]
    user_limit: f64,
    max_running_jobs: Option<u32>,
    #[serde(default, deserialize_with = "duration")]
    default_timeout: Option<Duration>,
}

fn one() -> f64 {
    1.0
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Duration::parse(&text).map(Some).map_err(D::Error::custom)
}

fn preset<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Preset>, D::Error> {
    named(deserializer, Preset::parse, Preset::all().map(Preset::name))
}

fn intra_job<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<IntraJob>, D::Error> {
    named(deserializer, IntraJob::parse, IntraJob::names())
}

fn placement<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Placement>, D::Error> {
    named(deserializer, Placement::parse, Placement::names())
}

fn layer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Layer>, D::Error> {
    named(deserializer, Layer::parse, Layer::NAMES.iter().map(|(name, _)| *name))
}

/// An order of jobs in one of the two layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layer(InterJob);

impl Layer {
    const NAMES: [(&str, InterJob); 4] = [
        ("fair-shares", InterJob::Drf { strict: false }),
        ("capacity", InterJob::Capacity),
        ("shortest-remaining", InterJob::Srtf),
        ("packing", InterJob::Tetris { fairness: 0 }),
    ];

    fn parse(name: &str) -> Result<Layer, String> {
        let found = Layer::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, order)| Layer(*order)).ok_or_else(|| {
            let known = Layer::NAMES.map(|(name, _)| name);
            format!("there is no order of jobs `{name}` here; there are: {}", known.join(", "))
        })
    }
}

/// One of those that have names.
fn named<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: fn(&str) -> Result<T, String>,
    names: impl Iterator<Item = &'static str>,
) -> Result<Option<T>, D::Error> {
    let name = String::deserialize(deserializer)?;
    parse(&name).map(Some).map_err(|problem| {
        let remedy = closest(&name, names).map(|near| format!("did you mean `{near}`?")).unwrap_or_default();
        D::Error::custom(packed(&Malformed { problem, remedy }))
    })
}

impl Config {
    /// With `preset` in place of the file's own, if given; the file's `[policies]` apply to it all the same.
    ///
    /// # Errors
    /// Names the file and what is wrong in it, with line and column where it is not TOML or a key or value cannot be read.
    pub fn read(path: &Path, preset: Option<Preset>) -> Result<Config, ConfigError> {
        let text = fs::read_to_string(path).map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
        let file = read_settings(&text, path).map_err(ConfigError::Misread)?;
        Config::of_file(file, preset).map_err(|what| ConfigError::Wrong { path: path.to_owned(), what })
    }

    /// What a file with this text would say; `name` is what it is called in an error.
    ///
    /// # Errors
    /// As of [`Config::read`].
    pub fn parse(text: &str, name: &Path) -> Result<Config, ConfigError> {
        let file = read_settings(text, name).map_err(ConfigError::Misread)?;
        Config::of_file(file, None).map_err(|what| ConfigError::Wrong { path: name.to_owned(), what })
    }

    fn of_file(file: File, preset: Option<Preset>) -> Result<Config, String> {
        let mut config = Config::default();
        config.preset = preset.or(file.preset).unwrap_or(config.preset);
        file.policies.apply(&mut config.preset)?;
        config.listen = file.listen.unwrap_or(config.listen);
        config.listen_agents = file.listen_agents.unwrap_or(config.listen_agents);
        config.history_bytes = file.history_mib.map_or(config.history_bytes, |mib| mib << 20);
        config.segment_bytes = file.segment_mib.map_or(config.segment_bytes, |mib| mib.max(1) << 20);
        let master = &mut config.master;
        master.heartbeat = file.heartbeat.unwrap_or(master.heartbeat);
        master.missed_heartbeats = file.missed_heartbeats.unwrap_or(master.missed_heartbeats);
        master.node_grace = file.node_grace.unwrap_or(master.node_grace);
        master.token_life = file.token_life.unwrap_or(master.token_life);
        master.kept_jobs = file.kept_jobs.unwrap_or(master.kept_jobs);
        if master.heartbeat < Duration::from_millis(10) {
            return Err(format!("heartbeat is {}; it is at least 10ms", master.heartbeat));
        }
        if master.token_life < Duration::from_secs(1) {
            return Err(format!("token_life is {}; it is at least 1s", master.token_life));
        }
        if master.missed_heartbeats == 0 {
            return Err("missed_heartbeats is 0; it is at least 1".to_owned());
        }
        master.decide = match (file.decide.as_deref(), file.grants_per_heartbeat) {
            (None | Some("events"), None) => Decide::OnEvents,
            (Some("heartbeats"), most) => Decide::OnHeartbeats { most },
            (None | Some("events"), Some(_)) => {
                return Err("grants_per_heartbeat is for decide = \"heartbeats\"".to_owned());
            }
            (Some(other), _) => return Err(format!("decide is `{other}`; it is \"events\" or \"heartbeats\"")),
        };
        let queues: Result<Vec<QueueSpec>, String> = file.queue.into_iter().map(QueueEntry::spec).collect();
        config.queues = QueueTree::new(queues?).map_err(|error| error.to_string())?;
        Ok(config)
    }
}

impl Policies {
    fn apply(self, preset: &mut Preset) -> Result<(), String> {
        preset.intra_job = self.intra_job.unwrap_or(preset.intra_job);
        preset.placement = self.placement.unwrap_or(preset.placement);
        preset.delays.node = self.node_delay.unwrap_or(preset.delays.node);
        preset.delays.rack = self.rack_delay.unwrap_or(preset.delays.rack);
        preset.reserve_after = self.reserve_after.unwrap_or(preset.reserve_after);
        preset.seed = self.seed.unwrap_or(preset.seed);
        self.apply_yielding(preset)?;
        if let Some(value) = self.strict_shares {
            let name = preset.name();
            let wrong = || format!("strict_shares is a setting of the preset drf, and not of {name}");
            let InterJob::Drf { strict } = &mut preset.inter_job else { return Err(wrong()) };
            if preset.yielding.is_some() {
                return Err(wrong());
            }
            *strict = value;
        }
        if let Some(value) = self.fairness {
            let name = preset.name();
            let order = match &mut preset.yielding {
                Some(Yielding { leftover, .. }) => leftover,
                None => &mut preset.inter_job,
            };
            let InterJob::Tetris { fairness } = order else {
                let which = "of the preset tetris, and of carbyne with leftover = \"packing\"";
                return Err(format!("fairness is a setting {which}, and not of {name} as it is here"));
            };
            if !(0.0..1.0).contains(&value) {
                return Err(format!("fairness is {value}; it is at least 0 and below 1"));
            }
            *fairness = ((value * 1e6).round() as u32).min(999_999);
        }
        if let Some(keys) = self.opportunistic {
            keys.apply(preset)?;
        }
        Ok(())
    }

    fn apply_yielding(&self, preset: &mut Preset) -> Result<(), String> {
        let keys = [
            ("altruism", self.altruism.is_some()),
            ("needed", self.needed.is_some()),
            ("leftover", self.leftover.is_some()),
            ("intra_job = \"dagps\"", self.intra_job == Some(IntraJob::Dagps)),
        ];
        let (name, Some((key, _))) = (preset.name(), keys.into_iter().find(|(_, is_set)| *is_set)) else {
            return Ok(());
        };
        let Some(yielding) = &mut preset.yielding else {
            return Err(format!("{key} is a setting of the preset carbyne, and not of {name}"));
        };
        if let Some(value) = self.altruism {
            if !(0.0..=1.0).contains(&value) {
                return Err(format!("altruism is {value}; it is a probability between 0 and 1"));
            }
            yielding.altruism = (value * 1e6).round() as u32;
        }
        yielding.leftover = self.leftover.map_or(yielding.leftover, |Layer(order)| order);
        preset.inter_job = self.needed.map_or(preset.inter_job, |Layer(order)| order);
        Ok(())
    }
}

impl QueueEntry {
    fn spec(self) -> Result<QueueSpec, String> {
        let share = |what: &str, value: f64| {
            let fits = (0.0..=1.0).contains(&value);
            let wrong = || format!("queue `{}`: {what} is {value}; it is a share between 0 and 1", self.name);
            if fits { Ok((value * 1e6).round() as u32) } else { Err(wrong()) }
        };
        if !(0.001..=1e6).contains(&self.weight) {
            return Err(format!("queue `{}`: weight is {}; it is between 0.001 and 1000000", self.name, self.weight));
        }
        Ok(QueueSpec {
            weight: (self.weight * 1e3).round() as u32,
            guaranteed: share("guaranteed", self.guaranteed)?,
            maximum: share("maximum", self.maximum)?,
            user_limit: share("user_limit", self.user_limit)?,
            max_running_jobs: self.max_running_jobs,
            default_timeout: self.default_timeout,
            name: if self.name.starts_with("root") { self.name } else { format!("root.{}", self.name) },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::scheduling::Delays;

    pub(super) fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("server.toml")).map_err(|error| match error {
            ConfigError::Wrong { what, .. } => what,
            other => other.to_string(),
        })
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parse(""), Ok(Config::default()));
    }

    #[test]
    fn everything_can_be_set() {
        let config = parse(
            "preset = 'fifo'\nheartbeat = '3s'\nnode_grace = '1m'\ntoken_life = '5m'\ndecide = 'heartbeats'\n\
             grants_per_heartbeat = 8\n\
             [[queue]]\nname = 'research'\nweight = 2.5\nguaranteed = 0.5\nmaximum = 0.75\nuser_limit = 0.3\n\
             max_running_jobs = 7\ndefault_timeout = '2h'\n",
        )
        .unwrap();
        let queue = config.queues.spec(config.queues.leaf("research").unwrap()).clone();
        assert_eq!((queue.weight, queue.guaranteed, queue.maximum), (2_500, 500_000, 750_000));
        assert_eq!(config.master.token_life, Duration::from_secs(300));
        assert_eq!(config.master.heartbeat, Duration::from_secs(3));
        assert_eq!(config.master.decide, Decide::OnHeartbeats { most: NonZeroU32::new(8) });
    }

    #[test]
    fn parts_of_a_preset_can_be_replaced() {
        let preset = |text: &str| parse(text).map(|config| config.preset);
        let mut wanted = Preset::TETRIS;
        wanted.inter_job = InterJob::Tetris { fairness: 500_000 };
        (wanted.intra_job, wanted.placement, wanted.seed) = (IntraJob::CriticalPath, Placement::Random, 7);
        let text = "preset = 'tetris'\n[policies]\nfairness = 0.5\nintra_job = 'critical-path'\n\
                    placement = 'random'\nseed = 7\nnode_delay = '1s'\nrack_delay = '0s'";
        wanted.delays = Delays { node: Duration::from_secs(1), rack: Duration::ZERO };
        assert_eq!(preset(text), Ok(wanted));
        let mut wanted = Preset::DRF;
        wanted.inter_job = InterJob::Drf { strict: true };
        assert_eq!(preset("[policies]\nstrict_shares = true"), Ok(wanted));
        let mut wanted = Preset::CARBYNE;
        wanted.inter_job = InterJob::Tetris { fairness: 0 };
        wanted.yielding = Some(Yielding { leftover: InterJob::Capacity, altruism: 500_000 });
        (wanted.intra_job, wanted.reserve_after) = (IntraJob::Dagps, Duration::from_secs(5));
        let text = "preset = 'carbyne'\n[policies]\naltruism = 0.5\nneeded = 'packing'\nleftover = 'capacity'\n\
                    intra_job = 'dagps'\nreserve_after = '5s'";
        assert_eq!(preset(text), Ok(wanted));
        let mut wanted = Preset::CARBYNE;
        let leftover = InterJob::Tetris { fairness: 500_000 };
        wanted.yielding = Some(Yielding { leftover, altruism: 1_000_000 });
        let text = "preset = 'carbyne'\n[policies]\nleftover = 'packing'\nfairness = 0.5";
        assert_eq!(preset(text), Ok(wanted));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, said) in [
            ("\nprest = 'fifo'", "server.toml:2:1: unknown key `prest`\n  help: did you mean `preset`?"),
            ("[policies]\nseeds = 1", "server.toml:2:1: unknown key `seeds`\n  help: did you mean `seed`?"),
            ("colour = 1", "server.toml:1:1: unknown key `colour`\n  help: known are preset, listen,"),
            ("preset = 'fifi'", "server.toml:1:10: there is no preset `fifi`; there are: fifo, capacity, drf"),
            ("preset = 'mercury+'", "help: did you mean `mercury`?"),
            ("preset =", "server.toml:1:9: this is not TOML"),
            ("token_life = '999ms'", "token_life is 999.0ms; it is at least 1s"),
            ("heartbeat = 'soon'", "is not a duration"),
            ("[[queue]]\nname = 'a'\nmaximum = 75", "between 0 and 1"),
            ("[[queue]]\nname = 'a.b'", "has no parent"),
            ("decide = 'never'", "heartbeats"),
            ("grants_per_heartbeat = 8", "for decide = \"heartbeats\""),
            ("decide = 'heartbeats'\ngrants_per_heartbeat = 0", "server.toml:2:24: the number `0` is out of range"),
            ("[policies]\nplacement = 'best-fits'", "help: did you mean `best-fit`?"),
            (
                "[policies]\nintra_job = 'cpm'",
                "server.toml:2:13: there is no order within a job `cpm`; there are: breadth",
            ),
            ("[policies]\nfairness = 0.5", "of the preset tetris, and of carbyne with leftover"),
            ("preset = 'carbyne'\n[policies]\nfairness = 0.5", "and not of carbyne as it is here"),
            ("preset = 'tetris'\n[policies]\nfairness = 1.0", "below 1"),
            ("[policies]\naltruism = 0.5", "altruism is a setting of the preset carbyne, and not of drf"),
            ("[policies]\nintra_job = 'dagps'", "of the preset carbyne, and not of drf"),
            ("preset = 'carbyne'\n[policies]\naltruism = 1.5", "between 0 and 1"),
            ("preset = 'carbyne'\n[policies]\nleftover = 'packin'", "help: did you mean `packing`?"),
            ("preset = 'carbyne'\n[policies]\naltruism = 'yes'", "help: write a number, such as 0.5"),
            ("preset = 'fifo'\n[policies]\nstrict_shares = true", "of the preset drf"),
            ("preset = 'carbyne'\n[policies]\nstrict_shares = true", "of the preset drf, and not of carbyne"),
            ("[policies.opportunistic]\nreorder = false", "of the preset mercury or mercury-plus, and not of drf"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
