//! The server's configuration file: TOML, every key optional.

mod accounts;
mod addresses;
mod beside;
mod federation;
mod isolation;
mod kept;
mod live;
mod oidc;
mod opportunistic;
mod policies;
mod queueing;
mod queues;
mod range;
mod shared;
mod store;

use accounts::AccountEntry;
use addresses::Addresses;
pub use addresses::addresses_of;
use amalgam_core::dispatch::{Decide, DispatchSettings};
use amalgam_core::master::MasterSettings;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::Duration;
use amalgam_workload::quantities::Malformed;
use amalgam_workload::text::read_text;
use amalgam_workload::{At, FileError, Position, closest, keys_of, packed, read_settings};
use beside::BesideEntry;
use federation::FederationKeys;
pub use federation::{FederationConfig, is_address, is_local, is_loopback, reached_here};
pub use isolation::{IsolationKeys, IsolationRules};
use kept::{KEPT_FOR, KEPT_TASKS, kept_for};
pub use live::queue_settings;
use oidc::OidcEntry;
pub use oidc::{Jwks, OidcConfig};
use opportunistic::OpportunisticKeys;
use policies::Policies;
use queueing::QueueingKeys;
use queues::{QueueEntry, of_queue, queues};
use rustls::pki_types::ServerName;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
pub use shared::difference;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use store::StoreKeys;
pub use store::{StoreConfig, StoreTls};

/// Default address of the public interface.
const INTERFACE: &str = "127.0.0.1:7433";
/// Default address for agents.
const AGENTS: &str = "127.0.0.1:7434";

/// The settings of a server.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    pub preset: Preset,
    pub queues: QueueTree,
    pub master: MasterSettings,
    /// Set for a process of a federation.
    pub federation: Option<FederationConfig>,
    /// What all processes of the federation have the same, for global masters that join this one. `None` if there is none, or too much.
    pub description: Option<String>,
    /// Store of the durable records of a federation's master; `None` if they are in its directory.
    pub store: Option<StoreConfig>,
    /// Addresses of the public interface; empty if they are not configured.
    pub listen: Vec<String>,
    /// Addresses for agents; empty if they are not configured.
    pub listen_agents: Vec<String>,
    /// Whether the public interface answers clients on loopback also without TLS.
    pub plain_http: bool,
    /// Path of a socket for users of this machine, if configured.
    pub listen_local: Option<PathBuf>,
    /// Names and addresses under which clients reach the server, besides those that it finds itself.
    pub listen_names: Vec<String>,
    /// Accounts on the nodes of users who have another name there, by the name of the user.
    pub accounts: BTreeMap<String, String>,
    /// Issuers whose tokens identify users.
    pub oidc: Vec<OidcConfig>,
    /// Bytes of the log that are kept besides the last snapshot, for stories and history.
    pub history_bytes: u64,
    /// And for how long; `None` for as long as there is not too much of it.
    pub history_for: Option<Duration>,
    /// A snapshot is written after this many bytes of the log.
    pub segment_bytes: u64,
    /// For how many days totals of usage are kept.
    pub usage_days: u32,
    /// What tasks do not share with their nodes.
    pub isolation: IsolationKeys,
    /// Whether agents with tokens of their own get certificates instead.
    pub exchange_tokens: bool,
}

impl Default for Config {
    fn default() -> Config {
        let dispatch =
            DispatchSettings { kept_for: Some(KEPT_FOR), kept_tasks: Some(KEPT_TASKS), ..DispatchSettings::default() };
        Config {
            preset: Preset::default(),
            queues: QueueTree::single(),
            master: MasterSettings { dispatch, ..MasterSettings::default() },
            federation: None,
            description: None,
            store: None,
            listen: Vec::new(),
            listen_agents: Vec::new(),
            plain_http: true,
            listen_local: None,
            listen_names: Vec::new(),
            accounts: BTreeMap::new(),
            oidc: Vec::new(),
            history_bytes: 1 << 30,
            history_for: None,
            segment_bytes: 64 << 20,
            usage_days: 400,
            isolation: IsolationKeys::default(),
            exchange_tokens: true,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {error}", path = path.display())]
    Read { path: PathBuf, error: std::io::Error },
    #[error(transparent)]
    Wrong(FileError),
}

/// What is wrong with a value, a remedy, and the position.
type Mistake = At<Malformed>;

fn mistake(at: Position, problem: impl Into<String>, remedy: impl Into<String>) -> Mistake {
    At { at, value: Malformed::new(problem, remedy) }
}

fn value<T>(key: Option<At<T>>, default: T) -> T {
    key.map_or(default, |key| key.value)
}

/// The written addresses, or else the one of `[federation]`, or else the usual one.
fn written_or<'a>(written: &'a [String], federated: Option<&'a str>, usual: &'a str) -> Vec<&'a str> {
    match written {
        [] => vec![federated.unwrap_or(usual)],
        each => each.iter().map(String::as_str).collect(),
    }
}

/// A name or address that can be in a certificate.
fn listen_name(name: At<String>) -> Result<String, Mistake> {
    if ServerName::try_from(name.value.as_str()).is_ok() {
        return Ok(name.value);
    }
    let problem = format!("`{}` is neither the name nor the address of a machine", name.value);
    Err(mistake(name.at, problem, "write for instance `listen_names = [\"head.example.org\", \"10.0.0.1\"]`"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, deserialize_with = "preset")]
    preset: Option<At<Preset>>,
    listen: Option<At<Addresses>>,
    listen_agents: Option<At<Addresses>>,
    listen_local: Option<PathBuf>,
    plain_http: Option<bool>,
    /// Names and addresses for the server's certificate.
    #[serde(default)]
    listen_names: Vec<At<String>>,
    #[serde(default)]
    account: Vec<AccountEntry>,
    #[serde(default)]
    oidc: Vec<OidcEntry>,
    #[serde(default, deserialize_with = "duration")]
    heartbeat: Option<At<Duration>>,
    missed_heartbeats: Option<At<u32>>,
    /// Maximum number of reports per second of all nodes in total.
    most_reports: Option<NonZeroU32>,
    #[serde(default, deserialize_with = "duration")]
    node_grace: Option<At<Duration>>,
    #[serde(default, deserialize_with = "duration")]
    token_life: Option<At<Duration>>,
    /// A failure of a node counts half after this time.
    #[serde(default, deserialize_with = "duration")]
    failures_half_life: Option<At<Duration>>,
    /// Many nodes that fail within this time have an outage, which is not counted against them.
    #[serde(default, deserialize_with = "duration")]
    outage_window: Option<At<Duration>>,
    /// "events" or "heartbeats".
    decide: Option<At<String>>,
    grants_per_heartbeat: Option<At<NonZeroU32>>,
    kept_jobs: Option<usize>,
    /// `"forever"`, or for how long ended jobs are kept.
    kept_for: Option<At<String>>,
    /// How many tasks the ended jobs that are kept may have together.
    kept_tasks: Option<u64>,
    /// Number of job hosts (`amalgam jobs`) that run the managers of new jobs.
    job_hosts: Option<At<u8>>,
    history_mib: Option<u64>,
    /// `"forever"`, or for how long the past is kept.
    history_for: Option<At<String>>,
    segment_mib: Option<u64>,
    usage_days: Option<At<u32>>,
    /// `none`, `private-tmp` or `sandbox`: for stages that do not say.
    isolation: Option<At<String>>,
    /// The least isolation that a stage may ask for.
    isolation_at_least: Option<At<String>>,
    exchange_tokens: Option<bool>,
    beside: Option<At<BesideEntry>>,
    federation: Option<At<FederationKeys>>,
    store: Option<At<StoreKeys>>,
    #[serde(default)]
    policies: Policies,
    #[serde(default)]
    queue: Vec<QueueEntry>,
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<At<Duration>>, D::Error> {
    let At { at, value } = At::<String>::deserialize(deserializer)?;
    Duration::parse(&value).map(|value| Some(At { at, value })).map_err(D::Error::custom)
}

fn preset<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<At<Preset>>, D::Error> {
    named(deserializer, Preset::parse, Preset::all().map(Preset::name))
}

/// Parses a named value; the error suggests the closest name.
fn named<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: fn(&str) -> Result<T, String>,
    names: impl Iterator<Item = &'static str>,
) -> Result<Option<At<T>>, D::Error> {
    let At { at, value: name } = At::<String>::deserialize(deserializer)?;
    parse(&name).map(|value| Some(At { at, value })).map_err(|problem| {
        let near = closest(&name, names).map(|near| format!("did you mean `{near}`?"));
        let remedy = near.unwrap_or_else(|| "use one of the known ones".to_owned());
        D::Error::custom(packed(&Malformed { problem, remedy }))
    })
}

impl Config {
    /// Addresses of the public interface, except for global masters.
    pub fn interface(&self) -> Vec<&str> {
        written_or(&self.listen, None, INTERFACE)
    }

    /// Addresses of a global master's interface. `[federation]` may define one.
    pub fn interface_of_global(&self) -> Vec<&str> {
        written_or(&self.listen, self.federation.as_ref().and_then(FederationConfig::interface), INTERFACE)
    }

    /// Addresses for agents. `[federation]` may define one for each cluster.
    pub fn agents(&self) -> Vec<&str> {
        written_or(&self.listen_agents, self.federation.as_ref().and_then(FederationConfig::agents), AGENTS)
    }

    /// Reads the file, with `preset` instead of its own if given. The file's `[policies]` apply to it in any case.
    ///
    /// # Errors
    /// Names the file, the line and column, what is wrong, and what is allowed.
    pub fn read(path: &Path, preset: Option<Preset>) -> Result<Config, ConfigError> {
        let text = read_text(path).map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
        Config::of_text(&text, path, preset).map_err(ConfigError::Wrong)
    }

    /// The configuration of a file with this text; `name` is its name in errors.
    ///
    /// # Errors
    /// As for [`Config::read`].
    pub fn parse(text: &str, name: &Path) -> Result<Config, ConfigError> {
        Config::of_text(text, name, None).map_err(ConfigError::Wrong)
    }

    fn of_text(text: &str, name: &Path, preset: Option<Preset>) -> Result<Config, FileError> {
        let file = read_settings(text, name).map_err(with_table)?;
        let config = Config::of_file(file, preset);
        let mut config = config.map_err(|At { at, value: Malformed { problem, remedy } }| FileError {
            file: name.to_owned(),
            at,
            problem,
            remedy,
        })?;
        config.description = config.federation.as_ref().and_then(|_| shared::described(text, config.preset));
        Ok(config)
    }

    fn of_file(file: File, preset: Option<Preset>) -> Result<Config, Mistake> {
        let mut config = Config::default();
        let section = file.federation.as_ref().map(|federation| federation.at);
        config.preset = preset.unwrap_or(value(file.preset, config.preset));
        federation::choose_preset(section, &mut config.preset)?;
        config.federation = file.federation.map(|At { at, value }| value.config(at)).transpose()?;
        config.store = file.store.map(|At { at, value }| value.config(at, section.is_some())).transpose()?;
        file.policies.apply(&mut config.preset)?;
        config.listen = addresses::addresses("listen", file.listen)?;
        config.listen_agents = addresses::addresses("listen_agents", file.listen_agents)?;
        config.listen_local = file.listen_local;
        config.plain_http = file.plain_http.unwrap_or(config.plain_http);
        config.listen_names = file.listen_names.into_iter().map(listen_name).collect::<Result<_, _>>()?;
        config.accounts = accounts::accounts(file.account)?;
        config.oidc = oidc::oidc(file.oidc)?;
        config.history_bytes = file.history_mib.map_or(config.history_bytes, |mib| mib.saturating_mul(1 << 20));
        config.history_for = kept_for("history_for", file.history_for, None)?;
        config.segment_bytes = file.segment_mib.map_or(config.segment_bytes, |mib| mib.max(1).saturating_mul(1 << 20));
        at_least("usage_days", file.usage_days, 1, "1")?;
        config.usage_days = value(file.usage_days, config.usage_days);
        config.isolation = IsolationKeys::read(file.isolation, file.isolation_at_least)?;
        config.exchange_tokens = file.exchange_tokens.unwrap_or(config.exchange_tokens);
        let master = &mut config.master;
        at_least("heartbeat", file.heartbeat, Duration::from_millis(10), "10ms")?;
        at_least("token_life", file.token_life, Duration::from_secs(1), "1s")?;
        at_least("failures_half_life", file.failures_half_life, Duration::from_secs(1), "1s")?;
        at_least("outage_window", file.outage_window, Duration::from_secs(1), "1s")?;
        at_least("missed_heartbeats", file.missed_heartbeats, 1, "1")?;
        master.heartbeat = value(file.heartbeat, master.heartbeat);
        master.missed_heartbeats = value(file.missed_heartbeats, master.missed_heartbeats);
        master.most_reports = file.most_reports.unwrap_or(master.most_reports);
        master.node_grace = value(file.node_grace, master.node_grace);
        master.token_life = value(file.token_life, master.token_life);
        let failures = &mut master.reliability;
        failures.half_life = value(file.failures_half_life, failures.half_life);
        failures.together = value(file.outage_window, failures.together);
        master.dispatch.kept_jobs = file.kept_jobs.unwrap_or(master.dispatch.kept_jobs);
        master.dispatch.kept_for = kept_for("kept_for", file.kept_for, Some(KEPT_FOR))?;
        master.dispatch.kept_tasks = file.kept_tasks.or(master.dispatch.kept_tasks);
        master.dispatch.decide = decide(file.decide, file.grants_per_heartbeat)?;
        master.dispatch.hosts = job_hosts(file.job_hosts, config.preset)?;
        config.queues = queues(&file.queue, config.preset)?;
        if let Some(federation) = &config.federation {
            config.master.dispatch.kinds = federation.kinds.clone();
            let checked = config.queues.check_federated(federation.size.globals);
            checked.map_err(|error| of_queue(&file.queue, error))?;
        }
        config.master.dispatch.beside =
            file.beside.map(|At { at, value }| value.settings(at, config.preset)).transpose()?;
        Ok(config)
    }
}

/// Adds the right table to the error for a key in the wrong table.
fn with_table(error: FileError) -> FileError {
    let tables = [
        ("at the top, before the first table", keys_of::<File>()),
        ("in `[policies]`", keys_of::<Policies>()),
        ("in `[policies.queueing]`", keys_of::<QueueingKeys>()),
        ("in `[policies.opportunistic]`", keys_of::<OpportunisticKeys>()),
        ("in a `[[queue]]`", keys_of::<QueueEntry>()),
        ("in an `[[account]]`", keys_of::<AccountEntry>()),
        ("in an `[[oidc]]`", keys_of::<OidcEntry>()),
        ("in `beside = { .. }`", keys_of::<BesideEntry>()),
        ("in `[federation]`", keys_of::<FederationKeys>()),
        ("in `[store]`", keys_of::<StoreKeys>()),
    ];
    let owners = |key: &str| {
        let owners = tables.iter().filter(|(_, keys)| keys.contains(&key)).map(|(place, _)| *place);
        owners.collect::<Vec<_>>().join(" or ")
    };
    match error.unknown_key().map(|key| (key, owners(key))) {
        Some((key, places)) if !places.is_empty() => {
            FileError { remedy: format!("`{key}` belongs {places}"), ..error.clone() }
        }
        _ => error,
    }
}

fn at_least<T: PartialOrd + Display>(key: &str, found: Option<At<T>>, least: T, written: &str) -> Result<(), Mistake> {
    match found {
        Some(At { at, value }) if value < least => {
            Err(mistake(at, format!("{key} is {value}"), format!("write {written} or more")))
        }
        _ => Ok(()),
    }
}

/// Job managers can only be separate from their master if they place all tasks themselves.
fn job_hosts(found: Option<At<u8>>, preset: Preset) -> Result<u8, Mistake> {
    match found {
        Some(At { at, value }) if value > 0 && !preset.is_distributed() => {
            let problem =
                format!("job_hosts is for presets whose job managers place all tasks, and not for {}", preset.name());
            let such = Preset::all().filter(|preset| preset.is_distributed()).map(Preset::name);
            Err(mistake(at, problem, format!("leave it out, or choose one of {}", such.collect::<Vec<_>>().join(", "))))
        }
        found => Ok(value(found, 0)),
    }
}

fn decide(when: Option<At<String>>, most: Option<At<NonZeroU32>>) -> Result<Decide, Mistake> {
    let most_of = most.map(|most| most.value);
    match (when.as_ref().map(|when| when.value.as_str()), most) {
        (None | Some("events"), None) => Ok(Decide::OnEvents),
        (Some("heartbeats"), _) => Ok(Decide::OnHeartbeats { most: most_of }),
        (None | Some("events"), Some(At { at, .. })) => {
            let problem = "grants_per_heartbeat is for decide = \"heartbeats\"";
            Err(mistake(at, problem, "set it, or leave this key out"))
        }
        (Some(other), _) => {
            let at = when.as_ref().map_or_else(Position::default, |when| when.at);
            Err(mistake(at, format!("decide is `{other}`"), "write \"events\" or \"heartbeats\""))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::preset::{Booked, Booker, DemandOrder, InterJob, IntraJob, Placement, Plans, Yielding};
    use amalgam_core::scheduling::{Delays, Reclaim};

    pub(super) fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("server.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parse(""), Ok(Config::default()));
    }

    #[test]
    fn everything_can_be_set() {
        let config = parse(
            "preset = 'fifo'\nheartbeat = '3s'\nnode_grace = '1m'\ntoken_life = '5m'\nfailures_half_life = '1h'\n\
             outage_window = '90s'\nmost_reports = 50\ndecide = 'heartbeats'\n\
             grants_per_heartbeat = 8\n\
             [[queue]]\nname = 'research'\nweight = 2.5\nguaranteed = 0.5\nmaximum = 0.75\nuser_limit = 0.3\n\
             max_running_jobs = 7\ndefault_timeout = '2h'\n",
        )
        .unwrap();
        let queue = config.queues.spec(config.queues.leaf("research").unwrap()).clone();
        assert_eq!((queue.weight, queue.guaranteed, queue.maximum), (2_500, 500_000, 750_000));
        assert_eq!(config.master.token_life, Duration::from_secs(300));
        assert_eq!(config.master.reliability.half_life, Duration::from_secs(3_600));
        assert_eq!(config.master.reliability.together, Duration::from_secs(90));
        assert_eq!(config.master.heartbeat, Duration::from_secs(3));
        assert_eq!(config.master.most_reports.get(), 50);
        assert_eq!(config.master.dispatch.decide, Decide::OnHeartbeats { most: NonZeroU32::new(8) });
    }

    #[test]
    fn a_queue_or_a_part_of_all_jobs_can_use_another_preset() {
        let text = "preset = 'apollo'\nbeside = { preset = 'apollo-plus', part = 0.25 }\n[[queue]]\nname = 'old'\n\
                    preset = 'apollo-plus'\n[[queue]]\nname = 'old.er'\n[[queue]]\nname = 'new'\n";
        let config = parse(text).expect("the presets can share a cluster");
        let preset = |queue: &str| config.queues.preset(config.queues.leaf(queue).unwrap());
        assert_eq!((preset("old.er"), preset("new")), (Some("apollo-plus"), None));
        let beside = config.master.dispatch.beside.clone().expect("a part of all");
        assert_eq!((beside.preset.as_str(), beside.part), ("apollo-plus", 250_000));
    }

    #[test]
    fn a_preset_that_cannot_share_the_cluster_is_refused_and_a_suitable_one_is_suggested() {
        let queue = "[[queue]]\nname = 'old'\npreset = ";
        for (text, wanted) in [
            (
                format!("preset = 'apollo'\n{queue}'drf'"),
                "server.toml:4:10: jobs cannot use the preset drf on a cluster with the preset apollo\n  help: use a preset whose job managers send tasks to the same nodes' queues as apollo: apollo-plus",
            ),
            (format!("{queue}'apollo-plus'"), "help: make apollo the cluster's preset"),
            (format!("preset = 'apollo'\n{queue}'apolo'"), "help: did you mean `apollo`?"),
            (
                "preset = 'apollo'\nbeside = { preset = 'sparrow', part = 0.5 }".to_owned(),
                "server.toml:2:21: jobs cannot use the preset sparrow",
            ),
            (
                "preset = 'apollo'\nbeside = { preset = 'apollo-plus', part = 1.5 }".to_owned(),
                "part is 1.5\n  help: write a number from 0 to 1",
            ),
            (
                "preset = 'apollo'\nbeside = { preset = 'apollo-plus' }".to_owned(),
                "server.toml:2:10: beside has no `part`\n  help: write a number from 0 to 1, as in `beside = { preset = \"apollo-plus\", part = 0.5 }`",
            ),
            (
                "preset = 'apollo'\nbeside = { part = 0.5 }".to_owned(),
                "server.toml:2:10: beside has no `preset`\n  help: write for instance `beside = {",
            ),
            (
                "preset = 'apollo'\nbeside = { preset = 'apollo', part = 0.5 }".to_owned(),
                "server.toml:2:21: beside names apollo, which is the cluster's preset\n  help: name another preset, as in `beside",
            ),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn parts_of_a_preset_can_be_replaced() {
        let preset = |text: &str| parse(text).map(|config| config.preset);
        let replaced = |mut preset: Preset, change: &dyn Fn(&mut Booked)| {
            change(preset.booked_mut().expect("the master books"));
            preset
        };
        let by = |placement, seconds| Booker::Master {
            placement,
            reserve_after: Duration::from_secs(seconds),
            backfill: false,
            reclaim: None,
        };
        let mut wanted = replaced(Preset::TETRIS, &|settings| {
            settings.inter_job = InterJob::Tetris { fairness: 500_000 };
            settings.demand = DemandOrder::Everything(IntraJob::CriticalPath);
            settings.by = by(Placement::Random, 30);
            settings.delays = Delays { node: Duration::from_secs(1), rack: Duration::ZERO };
        });
        wanted.seed = 7;
        let text = "preset = 'tetris'\n[policies]\nfairness = 0.5\nintra_job = 'critical-path'\n\
                    placement = 'random'\nseed = 7\nnode_delay = '1s'\nrack_delay = '0s'";
        assert_eq!(preset(text), Ok(wanted));
        let wanted = replaced(Preset::DRF, &|settings| settings.inter_job = InterJob::Drf { strict: true });
        assert_eq!(preset("preset = 'drf'\n[policies]\nstrict_shares = true"), Ok(wanted));
        let yielding = |plans, leftover, altruism| DemandOrder::Yielding(Yielding { plans, leftover, altruism });
        let wanted = replaced(Preset::CARBYNE, &|settings| {
            settings.inter_job = InterJob::Tetris { fairness: 0 };
            settings.demand = yielding(Plans::Dagps, InterJob::Capacity, 500_000);
            settings.by = by(Placement::NextFit, 5);
        });
        let text = "preset = 'carbyne'\n[policies]\naltruism = 0.5\nneeded = 'packing'\nleftover = 'capacity'\n\
                    intra_job = 'dagps'\nreserve_after = '5s'";
        assert_eq!(preset(text), Ok(wanted));
        let leftover = InterJob::Tetris { fairness: 500_000 };
        let plans = Plans::By(IntraJob::Tetris);
        let wanted = replaced(Preset::CARBYNE, &|settings| settings.demand = yielding(plans, leftover, 1_000_000));
        let text = "preset = 'carbyne'\n[policies]\nleftover = 'packing'\nfairness = 0.5";
        assert_eq!(preset(text), Ok(wanted));
        let reclaim = Some(Reclaim { lost: 100_000 });
        let (placement, reserve_after) = (Placement::NextFit, Duration::from_secs(30));
        let wanted = replaced(Preset::AMALGAM, &|settings| {
            settings.by = Booker::Master { placement, reserve_after, backfill: true, reclaim };
        });
        assert_eq!(preset("[policies]\nlost_work = 0.1").as_ref(), Ok(&wanted));
        assert!(preset("[policies]\nlost_work = 0.6").is_err_and(|error| error.contains("write a part from 0 to 0.5")));
        let federated = parse("[policies]\nlost_work = 0.1\n[federation]\nmasters = ['127.0.0.1:1']").unwrap().preset;
        assert_eq!(Some(federated), wanted.in_federation());
        assert_ne!(federated, Preset::AMALGAM_IN_FEDERATIONS);
    }

    #[test]
    fn settings_without_effect_under_the_preset_are_refused() {
        for (preset, key) in [
            ("megha", "reserve_after = '5s'"),
            ("megha", "placement = 'random'"),
            ("megha-plus", "placement = 'next-fit'"),
            ("apollo", "placement = 'best-fit'"),
            ("apollo", "reserve_after = '5s'"),
            ("apollo", "node_delay = '5s'"),
            ("apollo-plus", "rack_delay = '5s'"),
            ("apollo", "strict_shares = true"),
            ("apollo", "fairness = 0.5"),
            ("sparrow", "placement = 'random'"),
            ("sparrow", "reserve_after = '5s'"),
            ("sparrow", "node_delay = '5s'"),
            ("sparrow", "intra_job = 'dagps'"),
            ("capacity", "altruism = 0.5"),
            ("drf", "lost_work = 0.1"),
            ("amalgam", "strict_shares = true"),
        ] {
            let error = parse(&format!("preset = '{preset}'\n[policies]\n{key}")).unwrap_err();
            assert!(error.contains(&format!("and not of {preset} as configured here")), "{preset}, {key}: {error}");
            assert!(error.starts_with("server.toml:3:"), "{preset}, {key}: {error}");
        }
    }

    /// The keys of a table, as listed in the error for an unknown key.
    fn keys(table: &str) -> Vec<String> {
        let error = parse(&format!("{table}\nqqqqqqqqqq = 1")).unwrap_err();
        let (_, known) = error.split_once("known: ").unwrap_or_else(|| panic!("{error}"));
        known.split(", ").map(str::to_owned).collect()
    }

    #[test]
    fn the_example_mentions_every_key() {
        let example = include_str!("../../../examples/server.toml");
        // Keys that are off by default are in comments.
        let lines = example.lines().map(|line| line.trim_start_matches(['#', ' ']));
        let mut tables = vec![("", String::new())];
        for line in lines {
            match line.split_once(']') {
                Some((name, _)) if line.starts_with('[') => tables.push((name.trim_start_matches('['), String::new())),
                _ => tables.last_mut().unwrap().1 += &format!(" {line}"),
            }
        }
        for (table, header) in [
            ("", ""),
            ("policies", "[policies]"),
            ("policies.opportunistic", "[policies.opportunistic]"),
            ("policies.queueing", "[policies.queueing]"),
            ("federation", "[federation]"),
            ("store", "[store]"),
            ("queue", "[[queue]]"),
        ] {
            let known = keys(header);
            assert!(known.len() >= 3, "{known:?}");
            for key in known {
                let is_table = tables.iter().any(|(name, _)| *name == format!("{table}.{key}").trim_start_matches('.'));
                let written = |text: &str| [' ', '`'].iter().any(|before| text.contains(&format!("{before}{key} = ")));
                let of_table = || tables.iter().filter(|(name, _)| *name == table);
                assert!(is_table || of_table().any(|(_, text)| written(text)), "[{table}] has no `{key}`");
            }
        }
    }

    // Long: a table of wrong configurations and their errors.
    #[test]
    fn errors_name_the_position_the_problem_and_the_remedy() {
        for (text, expected) in [
            ("\nprest = 'fifo'", "server.toml:2:1: unknown key `prest`\n  help: did you mean `preset`?"),
            ("[policies]\nseeds = 1", "server.toml:2:1: unknown key `seeds`\n  help: did you mean `seed`?"),
            ("colour = 1", "server.toml:1:1: unknown key `colour`\n  help: known: preset, listen,"),
            (
                "preset = 'apollo'\nspares = true",
                "server.toml:2:1: unknown key `spares`\n  help: `spares` belongs in `[policies.queueing]`",
            ),
            ("[policies]\nduplicate_part = 0", "help: `duplicate_part` belongs in `[policies.queueing]`"),
            ("guaranteed = 1", "help: `guaranteed` belongs in `[policies.queueing]` or in a `[[queue]]`"),
            ("seed = 1", "help: `seed` belongs in `[policies]`"),
            ("[policies]\nheartbeat = '1s'", "help: `heartbeat` belongs at the top, before the first table"),
            ("preset = 'fifi'", "server.toml:1:10: unknown preset `fifi`; known: amalgam, fifo, capacity, drf"),
            ("preset = 'mercury+'", "help: did you mean `mercury`?"),
            ("preset =", "server.toml:1:9: this is not TOML"),
            ("\ntoken_life = '999ms'", "server.toml:2:14: token_life is 999.0ms\n  help: write 1s or more"),
            ("failures_half_life = '0s'", "failures_half_life is 0s\n  help: write 1s or more"),
            ("outage_window = '9ms'", "outage_window is 9.0ms\n  help: write 1s or more"),
            ("heartbeat = '9ms'", "server.toml:1:13: heartbeat is 9.0ms\n  help: write 10ms or more"),
            ("missed_heartbeats = 0", "server.toml:1:21: missed_heartbeats is 0\n  help: write 1 or more"),
            ("heartbeat = 'soon'", "is not a duration"),
            (
                "preset = 'mercury'\njob_hosts = 1",
                "server.toml:2:13: job_hosts is for presets whose job managers place all tasks, and not for mercury\n  \
                 help: leave it out, or choose one of sparrow, ",
            ),
            ("preset = 'apollo'\njob_hosts = 256", "server.toml:2:13: the number `256` is out of range"),
            (
                "[[queue]]\nname = 'a'\nmaximum = 75",
                "server.toml:3:11: queue `a`: maximum is 75\n  help: write a number from 0 to 1",
            ),
            (
                "[[queue]]\nname = 'a'\nweight = 0",
                "server.toml:3:10: queue `a`: weight is 0\n  help: write a number from 0.001",
            ),
            (
                "[[queue]]\nname = 'c'\n[[queue]]\nname = 'a.b'",
                "server.toml:4:8: queue `root.a.b` has no parent\n  help: configure",
            ),
            (
                "[[queue]]\nname = 'a'\n[[queue]]\nname = 'root.a'",
                "server.toml:4:8: queue `root.a` is configured twice",
            ),
            ("history_for = '0s'", "server.toml:1:15: history_for is 0s\n  help: write 1s or more"),
            (
                "kept_for = 'long'",
                "server.toml:1:12: kept_for is `long`\n  help: write for instance \"720h\", or \"forever\"",
            ),
            ("kept_for = '0s'", "server.toml:1:12: kept_for is 0s\n  help: write 1s or more"),
            ("usage_days = 0", "server.toml:1:14: usage_days is 0\n  help: write 1 or more"),
            ("decide = 'never'", "server.toml:1:10: decide is `never`\n  help: write \"events\" or \"heartbeats\""),
            ("grants_per_heartbeat = 8", "server.toml:1:24: grants_per_heartbeat is for decide = \"heartbeats\""),
            ("decide = 'heartbeats'\ngrants_per_heartbeat = 0", "server.toml:2:24: the number `0` is out of range"),
            ("[policies]\nplacement = 'best-fits'", "help: did you mean `best-fit`?"),
            ("[policies]\nintra_job = 'cpm'", "server.toml:2:13: unknown order within a job `cpm`; known: breadth"),
            (
                "[policies]\nfairness = 0.5",
                "server.toml:2:12: fairness is a setting of the preset tetris, and of carbyne with leftover",
            ),
            ("preset = 'carbyne'\n[policies]\nfairness = 0.5", "and not of carbyne as configured here"),
            (
                "preset = 'tetris'\n[policies]\nfairness = 1.0",
                "server.toml:3:12: fairness is 1\n  help: write a number from 0 to below 1",
            ),
            (
                "[policies]\naltruism = 0.5",
                "server.toml:2:12: altruism is a setting of the preset carbyne, and not of amalgam",
            ),
            (
                "[policies]\nintra_job = 'dagps'",
                "of the preset carbyne, and not of amalgam as configured here\n  help: leave it out, or choose the preset carbyne",
            ),
            (
                "preset = 'carbyne'\n[policies]\naltruism = 1.5",
                "server.toml:3:12: altruism is 1.5\n  help: write a probability from 0 to 1",
            ),
            ("preset = 'carbyne'\n[policies]\nleftover = 'packin'", "help: did you mean `packing`?"),
            ("preset = 'carbyne'\n[policies]\naltruism = 'yes'", "help: write a number, such as 0.5"),
            ("preset = 'fifo'\n[policies]\nstrict_shares = true", "of the preset drf"),
            ("preset = 'carbyne'\n[policies]\nstrict_shares = true", "of the preset drf, and not of carbyne"),
            (
                "[policies.opportunistic]\nreorder = false",
                "server.toml:1:1: [policies.opportunistic] is a setting of the preset mercury or mercury-plus, and not of amalgam",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
