//! `amalgam server`

use crate::cluster::{self, JournalArgs, Numbered, ServerSettings};
use crate::connection::Connection;
use crate::failure::Result;
use crate::{discovery, show};
use amalgam_cli::log::LogArgs;
use amalgam_cli::process::user;
use amalgam_daemon::server::{Server, ServerOptions};
use clap::Args;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Example:
  amalgam server --state-dir /var/lib/amalgam &
  amalgam agent --server 127.0.0.1:7434 --token-file /var/lib/amalgam/tokens.toml
Tasks continue while the server is down, and are taken over when it returns. SIGHUP, or `amalgam reload`, makes it read --config again.

With [federation] in its configuration it is the master of one cluster of a federation, which takes no jobs itself:
  amalgam server --config federation.toml --number 1
They are submitted to one of its global masters, see `amalgam global --help`.

Where [store] names an etcd as well, a second one with the same number is its standby: it waits,
answers calls with that state, and takes over when the lease of the first ends. Global masters and agents are given both addresses:
  amalgam agent --server 10.0.0.1:7434,10.0.0.2:7434")]
pub struct ServerArgs {
    #[command(flatten)]
    settings: ServerSettings,
    /// Address for agents [default: that of this master in [federation], or 127.0.0.1:7434]
    #[arg(long, value_name = "ADDRESS")]
    listen_agents: Option<String>,
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
    config.listen_agents = args.listen_agents.or(config.listen_agents);
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
    let agents = server.agents_address.map_or_else(String::new, |address| format!(", agents at {address}"));
    let of = cluster.map_or_else(String::new, |cluster| format!(", {cluster} of a federation"));
    // A service manager may stop the process as soon as it is ready.
    let signals = cluster::stop_and_reload_signals()?;
    show::announce(&format!("ready: {}{agents}{of}, preset {preset}, state in {}", server.url(), state_dir.display()));
    cluster::until_stopped_with(signals, || server.reload());
    server.stop();
    Ok(ExitCode::SUCCESS)
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
