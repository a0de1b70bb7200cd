//! `amalgam server`

use crate::cluster::{self, JournalArgs, Numbered, ServerSettings};
use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::{discovery, joining, show};
use amalgam_cli::log::LogArgs;
use amalgam_cli::process::user;
use amalgam_daemon::auth::{DaemonRole, Tokens};
use amalgam_daemon::config::Config;
use amalgam_daemon::executor::host::Host;
use amalgam_daemon::identity::Identity;
use amalgam_daemon::private::make_private_dir;
use amalgam_daemon::server::{Server, ServerOptions, receive_files};
use clap::Args;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Time limit for the active server to appear.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Args)]
#[command(after_help = "Example:
  amalgam server --state-dir /var/lib/amalgam &
  amalgam agent --server 127.0.0.1:7434 --token-file /var/lib/amalgam/tokens.toml
Tasks continue while the server is down, and are taken over when it returns. SIGHUP, or `amalgam reload`, makes it read --config again.

With [federation] in its configuration it is the master of one cluster of a federation, which takes no jobs itself:
  amalgam server --config federation.toml --number 1
They are submitted to one of its global masters, see `amalgam global --help`.

Where [store] names an etcd as well, a second one with the same number is its standby: it waits,
answers calls with that state, and takes over when the lease of the first ends. It gets the authority and the tokens of the first:
  amalgam token join --role server                # at the active one; prints STRING
  amalgam server --config federation.toml --number 1 --join STRING
 Global masters and agents are given both addresses:
  amalgam agent --server 10.0.0.1:7434,10.0.0.2:7434")]
pub struct ServerArgs {
    #[command(flatten)]
    settings: ServerSettings,
    /// Address for agents, or several, separated by commas; may be repeated; 0.0.0.0 and [::] are all of this machine [default: that of this master in [federation], or 127.0.0.1:7434]
    #[arg(long, value_name = "ADDRESS[,..]")]
    listen_agents: Vec<String>,
    /// Become a standby with a string of `amalgam token join --role server` of the active server, in an empty state directory; later
    /// starts use the certificate that it gave, with or without the string. [store] has to name the etcd of both
    #[arg(long, value_name = "STRING", env = "AMALGAM_JOIN", hide_env_values = true, help_heading = "Connection")]
    join: Option<String>,
    /// Name of a standby among the servers of its cluster [default: the host name]
    #[arg(long, value_name = "NAME", requires = "join")]
    name: Option<String>,
    #[command(flatten)]
    numbered: Numbered,
    #[command(flatten)]
    journal: JournalArgs,
    #[command(flatten)]
    log: LogArgs,
}

pub fn execute(args: ServerArgs, connection: &Connection) -> Result<ExitCode> {
    args.log.start()?;
    let state_dir = discovery::state_dir(connection)?;
    let config_file = args.settings.file()?;
    let mut config = args.settings.read()?;
    args.numbered.apply(&mut config)?;
    cluster::replace(&mut config.listen_agents, args.listen_agents);
    stand_by(args.join.as_deref(), args.name, &config, &state_dir, connection)?;
    let preset = config.preset.name();
    let cluster = config.federation.as_ref().and_then(|federation| federation.cluster().ok());
    let server = Server::start(ServerOptions {
        state_dir: state_dir.clone(),
        config,
        user: user(),
        nodes: Vec::new(),
        executor: None,
        takes_agents: true,
        journal: args.journal.place(),
        config_file,
    })?;
    report_torn(&server);
    let agents: Vec<String> = server.agents_addresses.iter().map(ToString::to_string).collect();
    let agents = if agents.is_empty() { String::new() } else { format!(", agents at {}", agents.join(", ")) };
    let of = cluster.map_or_else(String::new, |cluster| format!(", {cluster} of a federation"));
    // A service manager may stop the process as soon as it is ready.
    let signals = cluster::stop_and_reload_signals()?;
    let urls = server.urls().join(", ");
    show::announce(&format!("ready: {urls}{agents}{of}, preset {preset}, state in {}", state_dir.display()));
    cluster::until_stopped_with(signals, || server.reload());
    server.stop();
    Ok(ExitCode::SUCCESS)
}

/// Prepares the state directory of a standby that joins with a string, or has done so.
fn stand_by(
    join: Option<&str>,
    name: Option<String>,
    config: &Config,
    state_dir: &Path,
    connection: &Connection,
) -> Result<()> {
    if let Some(string) = joining::parse(join.filter(|text| !text.is_empty()))? {
        if config.store.is_none() {
            let what = "--join is for a standby, and the configuration has no [store]";
            return Err(Failure::usage(what, "write [store] with the etcd of the active server into --config"));
        }
        if state_dir.join(Tokens::FILE).exists() && Identity::load(state_dir)?.is_none() {
            let what = format!(
                "the state directory {} has tokens of its own, which those of the active server would replace",
                state_dir.display()
            );
            return Err(Failure::usage(what, "name an empty one with --state-dir, or move it aside"));
        }
        make_private_dir(state_dir).map_err(|error| {
            let what = format!("cannot use the state directory {}: {error}", state_dir.display());
            Failure::new(what, "name another --state-dir")
        })?;
        let name = name.unwrap_or_else(|| Host::inspect().hostname);
        joining::identity(Some(&string), state_dir, DaemonRole::Server, &name, connection)?;
    }
    Ok(receive_files(state_dir, config, PATIENCE)?)
}

/// Prints that a crash cut off the log's last writes. They were not acknowledged.
pub fn report_torn(server: &Server) {
    if server.torn_bytes > 0 {
        let bytes = server.torn_bytes;
        show::note(&format!(
            "the log ended in {bytes} bytes that a crash cut short and that were never acknowledged; they were removed"
        ));
    }
}
