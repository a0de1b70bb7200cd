//! The common parts of the verbs that start daemons.

use crate::connection::Connection;
use crate::environment;
use crate::failure::{Failure, Result};
use amalgam_cli::process::user;
use amalgam_cli::values::parse_preset;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::Named;
use amalgam_daemon::auth::Tokens;
use amalgam_daemon::config::{Config, ConfigError, addresses_of, is_address};
use amalgam_daemon::executor::host::Host;
use amalgam_daemon::executor::{DeviceFiles, EnforcementChoice, ExecutorConfig, RunAs};
use amalgam_daemon::journal::{JOURNAL_LIMIT, JournalPlace};
use amalgam_daemon::node_setup::NodeOptions;
use amalgam_daemon::reload::ConfigFile;
use amalgam_daemon::server::executor_paths;
use amalgam_daemon::service_manager;
use amalgam_daemon::shell::ExecutorSetup;
use amalgam_daemon::transport::Secrets;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An executor exits after this time without an agent, a task or an unreported end.
const IDLE_EXIT: Duration = Duration::from_secs(60);

/// The secrets with which a daemon authenticates to the server and other daemons; `node` is set for that node's agent. Token
/// files are read now, so that errors appear at the start.
///
/// # Errors
/// If the token file cannot be used.
pub fn secrets(connection: &Connection, state_dir: &Path, node: Option<&str>) -> Result<Secrets> {
    if let (Some(token), None) = (environment::token()?, &connection.token_file) {
        return Ok(Secrets::Single(token));
    }
    let path = connection.token_file.clone().unwrap_or_else(|| state_dir.join(Tokens::FILE));
    let secrets = Secrets::file(path, user(), node.map(str::to_owned));
    secrets.own()?;
    Ok(secrets)
}

/// The address as written on the command line; several are separated by commas.
pub fn agents_address(written: &str) -> Result<String> {
    let each = |address: &str| {
        let address = address.trim().trim_start_matches("http://").trim_end_matches('/');
        if is_address(address) {
            return Ok(address.to_owned());
        }
        let what = format!("`{address}` is not the address of a server for agents (--server)");
        Err(Failure::usage(what, "write HOST:PORT, such as head:7434, as in the server's ready line"))
    };
    Ok(written.split(',').map(each).collect::<Result<Vec<_>>>()?.join(","))
}

/// How large a cluster in one process is; by default like this machine.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct Size {
    /// Number of nodes [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub nodes: Option<u32>,
    /// CPUs of each node [default: those of this machine]
    #[arg(long, value_name = "CPUS", value_parser = amalgam_workload::quantities::parse_node_cpu_millis)]
    pub cpus: Option<u32>,
    /// Memory of each node, such as 4GiB [default: that of this machine]
    #[arg(long, value_name = "SIZE", value_parser = amalgam_workload::quantities::parse_memory_mib)]
    pub memory: Option<u32>,
}

/// What a node offers beside CPUs and memory.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct Offer {
    /// Devices of a kind that each node has, such as fpga=2; may be repeated
    #[arg(long = "resource", value_name = "NAME=COUNT", value_parser = parse_resource)]
    pub resources: Vec<(String, u32)>,
    /// The files of device N of a kind, from 0 on, such as gpu:0=/dev/nvidia0 with a comma between files; only tasks that get this device
    /// may use them [default: those of NVIDIA GPUs]; may be repeated
    #[arg(long = "device", value_name = "NAME:N=FILES", value_parser = parse_device)]
    pub devices: Vec<DeviceFiles>,
    /// An attribute of each node, such as zone=a; may be repeated
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = parse_attribute)]
    pub attributes: Vec<(String, String)>,
    /// Maximum size of the files that each node keeps for tasks to read, such as 50GiB [default: 10GiB]
    #[arg(long, value_name = "SIZE", value_parser = amalgam_workload::quantities::parse_size)]
    pub cache: Option<u64>,
    /// Maximum size of what ended tasks have written to standard output and error here, such as 50GiB: beyond it, the oldest is removed
    /// [default: a tenth of the file system]
    #[arg(long, value_name = "SIZE", value_parser = amalgam_workload::quantities::parse_size)]
    pub output_limit: Option<u64>,
    /// How tasks are held to their limits: auto, cgroup, polling or none
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub enforcement: EnforcementChoice,
}

/// The journal directory, for diagnosis.
#[derive(clap::Args, Debug)]
pub struct JournalArgs {
    /// Record every event of the roles in a journal in this directory, for `amalgam sim replay`
    #[arg(long, value_name = "DIR")]
    journal: Option<PathBuf>,
    /// Maximum size of the journals of this daemon in that directory, such as 500MiB: those of earlier runs are removed for it, and then the
    /// journal ends [default: 4GiB]
    #[arg(long, value_name = "SIZE", requires = "journal", value_parser = amalgam_workload::quantities::parse_size)]
    journal_limit: Option<u64>,
    /// For how long journals of earlier runs are kept after their last entry, such as 30d [default: as long as there is room]
    #[arg(long, value_name = "DURATION", requires = "journal", value_parser = humantime::parse_duration)]
    journal_for: Option<Duration>,
}

impl JournalArgs {
    pub fn place(self) -> Option<JournalPlace> {
        let limit = self.journal_limit.unwrap_or(JOURNAL_LIMIT);
        self.journal.map(|directory| JournalPlace { directory, limit, kept_for: self.journal_for })
    }
}

fn which_presets() -> String {
    let of_cluster: Vec<&str> = Preset::all().filter(|preset| !preset.is_federated()).map(Preset::name).collect();
    format!(
        "Which policies decide: {}; in a federation {} [default: that of --config, or amalgam]",
        of_cluster.join(", "),
        Preset::FEDERATED.map(Preset::name).join(", ")
    )
}

/// The configuration of a server; flags replace values of the file.
#[derive(clap::Args, Debug)]
pub struct ServerSettings {
    #[arg(long, value_parser = parse_preset, help = which_presets())]
    preset: Option<Preset>,
    /// Queues and other settings
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the HTTP interface, or several, separated by commas; may be repeated; 0.0.0.0 and [::] are all of this machine
    /// [default: 127.0.0.1:7433, or that of the global master in [federation]]
    #[arg(long, value_name = "ADDRESS[,..]")]
    listen: Vec<String>,
    /// Path of a socket where users of this machine call without a token: the kernel says who they are
    #[arg(long, value_name = "PATH")]
    listen_local: Option<PathBuf>,
}

impl ServerSettings {
    pub fn read(self) -> Result<Config> {
        let config = self.read_any()?;
        check_federation(&config)?;
        Ok(config)
    }

    /// Also accepts the configuration of a federation whose size is not known yet.
    pub fn read_any(self) -> Result<Config> {
        let mut config = configured(self.config.as_deref(), self.preset)?;
        replace(&mut config.listen, self.listen);
        config.listen_local = self.listen_local.or(config.listen_local);
        Ok(config)
    }

    /// The file, which a running server can read again.
    pub fn file(&self) -> Result<Option<ConfigFile>> {
        let file = |path: &PathBuf| {
            // The process may change its directory.
            let path = std::path::absolute(path)?;
            Ok(ConfigFile { path, preset: self.preset })
        };
        self.config.as_ref().map(file).transpose()
    }
}

/// Replaces addresses of the configuration by those of the command line, if there are any.
pub fn replace(configured: &mut Vec<String>, flags: Vec<String>) {
    if !flags.is_empty() {
        *configured = flags.iter().flat_map(|text| addresses_of(text)).collect();
    }
}

/// The preset in a federation; `None` if it is for single clusters only.
///
/// # Errors
/// If the configuration has policies of a single master.
pub fn in_federation(preset: Preset) -> Result<Option<Preset>> {
    let federated = preset.in_federation();
    if federated.is_some() && preset.has_settings_of_one_master() {
        let what = "`placement` and `reserve_after` of [policies] have no effect in a federation";
        return Err(Failure::usage(what, "leave them out of the configuration"));
    }
    Ok(federated)
}

/// # Errors
/// If the preset is for federations, and the configuration describes none.
fn check_federation(config: &Config) -> Result<()> {
    if config.preset.is_federated() && config.federation.is_none() {
        let name = config.preset.name();
        let what = format!("preset `{name}` is for federations, and this is the server of a single cluster");
        let remedy = format!(
            "write [federation] into --config, start a federation on this machine with `amalgam dev --clusters 3`, \
             choose another preset, or simulate: amalgam sim run --preset {name}"
        );
        return Err(Failure::usage(what, remedy));
    }
    Ok(())
}

/// Makes the checks of a server with this configuration, as far as they need no state directory.
///
/// # Errors
/// If `amalgam server` would refuse the configuration.
pub fn check_for_server(config: &Config) -> Result<()> {
    check_federation(config)?;
    Ok(amalgam_daemon::server::check_addresses(config)?)
}

/// Which process of a federation this is.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Numbered {
    /// In a federation: the number of this server's cluster, or of this global master, from 0 [default: that of --config, or of the certificates]
    #[arg(long, value_name = "N")]
    pub number: Option<u8>,
}

impl Numbered {
    /// # Errors
    /// If the configuration has no federation.
    pub fn apply(self, config: &mut Config) -> Result<()> {
        match (&mut config.federation, self.number) {
            (Some(federation), number) => federation.number = number.or(federation.number),
            (None, None) => {}
            (None, Some(_)) => {
                let what = "--number requires a federation, and the configuration has none";
                return Err(Failure::usage(what, "write [federation] into --config"));
            }
        }
        Ok(())
    }
}

impl Size {
    pub fn is_given(&self) -> bool {
        self.nodes.is_some() || self.cpus.is_some() || self.memory.is_some()
    }

    pub fn nodes(&self) -> Vec<NodeOptions> {
        let count = self.nodes.unwrap_or(1);
        let host = Host::inspect().hostname;
        let name = |number: u32| if count == 1 { host.clone() } else { format!("{host}-{number}") };
        let node = |number| NodeOptions {
            name: Some(name(number)),
            cpu_millis: self.cpus,
            memory_mib: self.memory,
            ..NodeOptions::default()
        };
        (1..=count).map(node).collect()
    }
}

impl Offer {
    pub fn apply(&self, node: &mut NodeOptions) -> Result<()> {
        for (name, count) in self.counts()? {
            match name.as_str() {
                "gpu" => node.gpus = Some(count),
                _ => node.resources.push((name, count)),
            }
        }
        node.cache_bytes = self.cache;
        node.attributes.extend(self.attributes.iter().cloned());
        Ok(())
    }

    /// Number of devices of each kind. A kind without a number has as many as have files.
    fn counts(&self) -> Result<Vec<(String, u32)>> {
        let mut counts = self.resources.clone();
        for (place, device) in self.devices.iter().enumerate() {
            let DeviceFiles { kind, index, .. } = device;
            if self.devices[..place].iter().any(|other| other.kind == *kind && other.index == *index) {
                let what = format!("--device names {kind}:{index} twice");
                return Err(Failure::usage(what, "list all of its files in one --device, separated by commas"));
            }
            let is_given = self.resources.iter().any(|(name, _)| name == kind);
            match counts.iter_mut().find(|(name, _)| name == kind) {
                Some((_, count)) if is_given && index >= count => {
                    let what = format!("--device names {kind}:{index}, and the node has {count} {kind}");
                    return Err(Failure::usage(what, "indexes start at 0; raise the number in --resource"));
                }
                Some(_) if is_given => {}
                Some((_, count)) => *count = (*count).max(index.saturating_add(1)),
                None => counts.push((kind.clone(), index.saturating_add(1))),
            }
        }
        Ok(counts)
    }
}

fn parse_device(text: &str) -> std::result::Result<DeviceFiles, String> {
    text.parse()
}

fn parse_resource(text: &str) -> std::result::Result<(String, u32), String> {
    let wrong = || format!("`{text}` is not a resource; write for instance `gpu=2` or `fpga=1`");
    let (name, count) = text.split_once('=').ok_or_else(wrong)?;
    let (name, count) = (name.trim(), count.trim().parse().map_err(|_| wrong())?);
    if name != "gpu" {
        Named::Resource.check(name).map_err(|wrong| wrong.to_string())?;
    }
    Ok((name.to_owned(), count))
}

fn parse_attribute(text: &str) -> std::result::Result<(String, String), String> {
    let wrong = || format!("`{text}` is not an attribute; write for instance `zone=a`");
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    let (name, value) = (name.trim(), value.trim());
    Named::Attribute.check(name).map_err(|wrong| wrong.to_string())?;
    // A value follows the rules of a job's title.
    Named::Job.check(value).map_err(|_| wrong())?;
    Ok((name.to_owned(), value.to_owned()))
}

/// How a daemon with this state directory starts its executor, which is this program too.
pub fn executor_setup(state_dir: &Path, enforcement: EnforcementChoice, run_as: RunAs) -> Result<ExecutorSetup> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::new(format!("cannot find this program's own file: {error}"), "start it by its path")
    })?;
    let state_dir = std::path::absolute(state_dir)?;
    let (state, socket) = executor_paths(&state_dir);
    let config =
        ExecutorConfig { socket, state, enforcement, idle_exit: IDLE_EXIT, leash: None, run_as, devices: Vec::new() };
    Ok(ExecutorSetup { program, arguments: vec!["executor".into()], config, output_limit: None })
}

/// The same executor in a scope of systemd, a control group beside that of this process's unit. Below the unit's group, systemd could
/// not start the unit again while tasks run: cgroup v2 allows no process in a group whose children have limits. Without systemd,
/// nothing changes.
pub fn in_scope(setup: ExecutorSetup) -> ExecutorSetup {
    // As sd_booted(3) finds out.
    if !Path::new("/run/systemd/system").is_dir() {
        return setup;
    }
    let scope = ["--scope", "--quiet", "--collect", "--description=Amalgam executor and tasks"];
    // The executor makes groups in it, and the limit of processes is for all tasks together.
    let properties = ["--property=Delegate=yes", "--property=TasksMax=infinity", "--"];
    let mut arguments: Vec<OsString> = scope.into_iter().chain(properties).map(OsString::from).collect();
    arguments.push(setup.program.into());
    arguments.extend(setup.arguments);
    ExecutorSetup { program: "systemd-run".into(), arguments, ..setup }
}

/// Combines `--config` and `--preset`: a named preset replaces the file's, and the file's `[policies]` apply to it.
pub fn configured(config: Option<&Path>, preset: Option<Preset>) -> Result<Config> {
    match config {
        Some(path) => read_config(path, preset),
        None => Ok(Config { preset: preset.unwrap_or_default(), ..Config::default() }),
    }
}

/// Reads the file, with `preset` instead of its own if given.
pub fn read_config(path: &Path, preset: Option<Preset>) -> Result<Config> {
    Config::read(path, preset).map_err(|error| match error {
        ConfigError::Wrong(error) => error.into(),
        ConfigError::Read { path, error } => Failure::unreadable(&path, &error, "check the path"),
    })
}

/// Waits for Ctrl-C or SIGTERM. A second signal kills the process, even if it is still stopping.
pub fn until_stopped(signals: Signals) {
    until_stopped_with(signals, || {});
}

/// The same, and acts on each SIGHUP.
pub fn until_stopped_with(mut signals: Signals, on_reload: impl Fn()) {
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
        on_reload();
    }
    service_manager::stopping();
    for signal in [SIGINT, SIGTERM] {
        // SAFETY: the default action needs no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Both signals from now on, also if our parent ignored them.
pub fn stop_signals() -> Result<Signals> {
    Ok(Signals::new([SIGINT, SIGTERM])?)
}

/// These and SIGHUP.
pub fn stop_and_reload_signals() -> Result<Signals> {
    Ok(Signals::new([SIGINT, SIGTERM, SIGHUP])?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(resources: &[(&str, u32)], devices: &[&str]) -> Result<NodeOptions> {
        let offer = Offer {
            resources: resources.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            devices: devices.iter().map(|text| text.parse().unwrap()).collect(),
            ..Offer::default()
        };
        let mut node = NodeOptions::default();
        offer.apply(&mut node).map(|()| node)
    }

    #[test]
    fn a_kind_without_a_number_has_as_many_devices_as_have_files() {
        let node = offered(&[("fpga", 3)], &["gpu:1=/dev/a", "gpu:0=/dev/b", "fpga:2=/dev/c", "tpu:0=/dev/d"]).unwrap();
        assert_eq!(node.gpus, Some(2));
        assert_eq!(node.resources, [("fpga".to_owned(), 3), ("tpu".to_owned(), 1)]);
        assert_eq!(offered(&[("gpu", 4)], &["gpu:1=/dev/a"]).unwrap().gpus, Some(4));
    }

    #[test]
    fn a_device_that_the_node_does_not_have_and_one_that_is_named_twice_are_refused() {
        let why = |resources, devices| offered(resources, devices).unwrap_err().to_string();
        let beyond = why(&[("gpu", 1)], &["gpu:1=/dev/a"]);
        assert!(beyond.contains("--device names gpu:1, and the node has 1 gpu"), "{beyond}");
        let twice = why(&[], &["gpu:0=/dev/a", "gpu:0=/dev/b"]);
        assert!(twice.contains("--device names gpu:0 twice"), "{twice}");
    }
}
