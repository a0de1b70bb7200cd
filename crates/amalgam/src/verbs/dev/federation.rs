//! A federation in one process: a server with nodes for each cluster, and global masters.

use crate::cluster;
use crate::failure::{Failure, Result};
use crate::show;
use amalgam_cli::process::user;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{ClusterId, Federation, GlobalId};
use amalgam_core::why::counted;
use amalgam_daemon::api::ServerFile;
use amalgam_daemon::auth::Tokens;
use amalgam_daemon::config::{Config, FederationConfig};
use amalgam_daemon::executor::host::Host;
use amalgam_daemon::executor::{DeviceFiles, EnforcementChoice, ExecutorConfig, RunAs};
use amalgam_daemon::global::{self, GlobalOptions};
use amalgam_daemon::journal::JournalPlace;
use amalgam_daemon::node_setup::NodeOptions;
use amalgam_daemon::private::make_private_dir;
use amalgam_daemon::seat;
use amalgam_daemon::server::{Server, ServerError, ServerOptions, take_address};
use amalgam_daemon::shell::shut_down;
use std::collections::BTreeMap;
use std::fs;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for the global masters to learn all nodes before the ready line is printed.
const PATIENCE: Duration = Duration::from_secs(10);
/// Span of node ids for each cluster: enough for one machine, and few enough that the state of each id costs little.
const SPAN: u32 = 10_000;

/// The result of `--clusters`, `--globals` and the other flags.
pub struct Plan {
    pub state_dir: PathBuf,
    pub config: Config,
    pub clusters: u32,
    pub globals: u32,
    /// The nodes of each cluster.
    pub nodes: Vec<NodeOptions>,
    pub enforcement: EnforcementChoice,
    pub devices: Vec<DeviceFiles>,
    /// Of each cluster, in bytes.
    pub output_limit: Option<u64>,
    pub journal: Option<JournalPlace>,
}

/// Runs until a signal stops it. Call it before other threads start: it starts the executors.
pub fn execute(plan: Plan) -> Result<ExitCode> {
    let size = Federation::new(plan.clusters, plan.globals, SPAN).map_err(|problem| Failure::usage(problem, ""))?;
    let config = federated(&plan, size)?;
    let (config, listeners) = with_interfaces(config, size)?;
    // All processes have the same tokens.
    Tokens::open(&plan.state_dir, &user())?;
    seat::keep_whole(&plan.state_dir, size).map_err(ServerError::from)?;
    let mut executors = Vec::new();
    let mut servers = Vec::new();
    for cluster in size.clusters() {
        let (server, executor) = start_cluster(&plan, &config, cluster)?;
        servers.push(server);
        executors.push(executor);
    }
    let masters = servers.iter().flat_map(|server| &server.agents_addresses).map(ToString::to_string);
    let masters: Vec<String> = masters.collect();
    let globals = size.globals().zip(listeners);
    let globals = globals.map(|(global, listener)| start_global(&plan, &config, global, listener, &masters));
    let globals = globals.collect::<Result<Vec<Server>>>()?;
    let nodes = plan.nodes.len() * servers.len();
    await_nodes(&globals, nodes);
    let Some(first) = globals.first() else { unreachable!("a federation has a global master") };
    first.write_server_file(&plan.state_dir)?;
    let addresses: Vec<String> = globals.iter().flat_map(Server::urls).collect();
    show::announce(&format!(
        "ready: {} in {} under {} at {}, preset {}, state in {}",
        counted(nodes as u64, "node"),
        counted(u64::from(plan.clusters), "cluster"),
        counted(u64::from(plan.globals), "global master"),
        addresses.join(" and "),
        config.preset.name(),
        plan.state_dir.display()
    ));
    cluster::until_stopped(cluster::stop_signals()?);
    let _ = fs::remove_file(plan.state_dir.join(ServerFile::NAME));
    globals.into_iter().chain(servers).for_each(Server::stop);
    executors.iter().for_each(shut_down);
    Ok(ExitCode::SUCCESS)
}

/// The common configuration of all processes of the federation.
fn federated(plan: &Plan, size: Federation) -> Result<Config> {
    let mut config = plan.config.clone();
    check_interface(&config)?;
    let Some(preset) = cluster::in_federation(config.preset)? else {
        let what = format!("preset `{}` is not for federations", config.preset.name());
        let such = Preset::FEDERATED.map(Preset::name).join(", ");
        return Err(Failure::usage(what, format!("choose one of {such}, or leave out --clusters")));
    };
    config.preset = preset;
    // The configuration's own check does not know the number of global masters.
    let checked = config.queues.check_federated(size.globals);
    checked.map_err(|error| Failure::usage(error.problem, error.remedy))?;
    let kinds = &mut config.master.dispatch.kinds;
    for (name, _) in plan.nodes.iter().flat_map(|node| &node.resources) {
        kinds.add(name).map_err(|problem| Failure::usage(problem, "offer others with --resource"))?;
    }
    let kinds = kinds.clone();
    config.federation =
        Some(FederationConfig { size, number: None, masters: Vec::new(), interfaces: Vec::new(), kinds });
    Ok(config)
}

/// The global masters listen at ports in a row, and the certificates of their own that they have there have nothing in common.
fn check_interface(config: &Config) -> Result<()> {
    let what = match config.interface().len() {
        1 if config.plain_http => return Ok(()),
        1 => "`plain_http = false` is not for a federation in one process",
        _ => "a federation in one process listens at one address for each global master, and several are configured",
    };
    Err(Failure::usage(what, "leave it out, or start its servers and global masters as separate processes"))
}

/// Opens an address for each global master before any starts, since each publishes the addresses of the others.
fn with_interfaces(mut config: Config, size: Federation) -> Result<(Config, Vec<TcpListener>)> {
    let first = config.interface()[0].to_owned();
    let listeners = size.globals().map(|global| take_address(&next_port(&first, global.0)));
    let listeners = listeners.collect::<std::result::Result<Vec<TcpListener>, ServerError>>()?;
    let addresses = listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string()));
    let addresses = addresses.collect::<Result<Vec<String>>>()?;
    if let Some(federation) = &mut config.federation {
        federation.interfaces = addresses;
    }
    Ok((config, listeners))
}

/// The state directory of one process, with a link to the common tokens.
fn home(state_dir: &Path, name: &str) -> Result<PathBuf> {
    let home = state_dir.join(name);
    let wrong = |error| Failure::new(format!("cannot make {}: {error}", home.display()), "name another --state-dir");
    make_private_dir(&home).map_err(wrong)?;
    match symlink(Path::new("..").join(Tokens::FILE), home.join(Tokens::FILE)) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(wrong(error)),
        _ => Ok(home),
    }
}

fn start_cluster(plan: &Plan, config: &Config, cluster: ClusterId) -> Result<(Server, ExecutorConfig)> {
    let state_dir = home(&plan.state_dir, &format!("cluster-{}", cluster.0))?;
    let mut executor = cluster::executor_setup(&state_dir, plan.enforcement, RunAs::Agent)?;
    executor.config.devices.clone_from(&plan.devices);
    executor.output_limit = plan.output_limit;
    let executor_config = executor.config.clone();
    let mut config = config.clone();
    let any = || vec!["127.0.0.1:0".to_owned()];
    (config.listen, config.listen_agents) = (any(), any());
    if let Some(federation) = &mut config.federation {
        federation.number = Some(cluster.0);
    }
    let host = Host::inspect().hostname;
    let named = |(number, node): (usize, &NodeOptions)| {
        let name = format!("{host}-c{}-{}", cluster.0, number + 1);
        NodeOptions { name: Some(name), ..node.clone() }
    };
    let server = Server::start(ServerOptions {
        state_dir,
        config,
        user: user(),
        nodes: plan.nodes.iter().enumerate().map(named).collect(),
        executor: Some(executor),
        takes_agents: true,
        journal: plan.journal.clone(),
        config_file: None,
    })?;
    crate::verbs::server::report_torn(&server);
    Ok((server, executor_config))
}

fn start_global(
    plan: &Plan,
    config: &Config,
    global: GlobalId,
    listener: TcpListener,
    masters: &[String],
) -> Result<Server> {
    let state_dir = home(&plan.state_dir, &format!("global-{}", global.0))?;
    let mut config = config.clone();
    if let Some(federation) = &mut config.federation {
        federation.number = Some(global.0);
        federation.masters = masters.to_vec();
    }
    let (user, journal) = (user(), plan.journal.clone());
    let listener = Some(listener);
    let server = global::start(GlobalOptions {
        state_dir,
        config,
        listener,
        user,
        secrets: None,
        joined: BTreeMap::new(),
        journal,
    })?;
    crate::verbs::server::report_torn(&server);
    Ok(server)
}

/// The address of global master `number`, if the first one has `first`. An invalid address is reported when it is opened.
fn next_port(first: &str, number: u8) -> String {
    match first.to_socket_addrs().ok().and_then(|mut found| found.next()) {
        Some(mut address) if address.port() > 0 => {
            address.set_port(address.port().saturating_add(number.into()));
            address.to_string()
        }
        _ => first.to_owned(),
    }
}

/// Waits until all global masters know all nodes, so that any of them can place tasks on them. Gives up after the time limit.
fn await_nodes(globals: &[Server], nodes: usize) {
    let deadline = Instant::now() + PATIENCE;
    for global in globals {
        while Instant::now() < deadline && global::known_nodes(global.handle()).is_ok_and(|known| known < nodes) {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn global_masters_listen_at_ports_in_a_row_unless_the_system_chooses() {
        assert_eq!(next_port("127.0.0.1:7433", 0), "127.0.0.1:7433");
        assert_eq!(next_port("127.0.0.1:7433", 2), "127.0.0.1:7435");
        assert_eq!(next_port("127.0.0.1:0", 2), "127.0.0.1:0");
    }
}
