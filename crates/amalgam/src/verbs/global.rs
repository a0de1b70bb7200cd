//! `amalgam global`

use crate::cluster::{self, JournalArgs, Numbered, ServerSettings};
use crate::connection::Connection;
use crate::failure::Result;
use crate::{discovery, show};
use amalgam_cli::log::LogArgs;
use amalgam_cli::process::user;
use amalgam_core::why::counted;
use amalgam_daemon::global::{self, GlobalOptions};
use clap::Args;
use std::process::ExitCode;

#[derive(Args)]
#[command(
    after_help = "A federation is several clusters under several global masters. Every process has the same [federation] and
[[queue]] in its configuration, the same tokens.toml in its state directory, and a --number of its own:

  [federation]
  masters = [\"127.0.0.1:7434\", \"127.0.0.1:7534\"]    # where each cluster's master listens for agents
  globals = [\"127.0.0.1:7633\", \"127.0.0.1:7634\"]    # where each global master listens for clients

  amalgam server --config federation.toml --number 0 --state-dir /var/lib/amalgam/cluster-0
  amalgam server --config federation.toml --number 1 --state-dir /var/lib/amalgam/cluster-1 --listen 127.0.0.1:7533
  amalgam global --config federation.toml --number 0 --state-dir /var/lib/amalgam/global-0
  amalgam global --config federation.toml --number 1 --state-dir /var/lib/amalgam/global-1
  amalgam agent --server 127.0.0.1:7534 ...          # a node of cluster 1
  amalgam submit --server 127.0.0.1:7633 -- ./step

Its jobs and their running tasks outlive it: it takes them over after a restart. See `amalgam dev --clusters`
for a whole federation on one machine."
)]
pub struct GlobalArgs {
    #[command(flatten)]
    settings: ServerSettings,
    #[command(flatten)]
    numbered: Numbered,
    #[command(flatten)]
    journal: JournalArgs,
    #[command(flatten)]
    log: LogArgs,
}

pub fn execute(args: GlobalArgs, connection: &Connection) -> Result<ExitCode> {
    args.log.start()?;
    let state_dir = discovery::state_dir(connection)?;
    let mut config = args.settings.read_any()?;
    args.numbered.apply(&mut config)?;
    let of = config.federation.as_ref().map(|federation| (federation.number, federation.size.clusters));
    let preset = config.preset.name();
    // The token file authenticates it to the masters; its own clients use the tokens in its state directory.
    let secrets =
        connection.token_file.is_some().then(|| cluster::secrets(connection, &state_dir, None)).transpose()?;
    let options = GlobalOptions {
        state_dir: state_dir.clone(),
        config,
        listener: None,
        user: user(),
        secrets,
        journal: args.journal.place(),
    };
    let server = global::start(options)?;
    super::server::report_torn(&server);
    let (number, clusters) = of.unwrap_or_default();
    // A service manager may stop the process as soon as it is ready.
    let signals = cluster::stop_signals()?;
    show::announce(&format!(
        "ready: http://{}, global master {} of {}, preset {preset}, state in {}",
        server.address,
        number.unwrap_or_default(),
        counted(clusters.into(), "cluster"),
        state_dir.display()
    ));
    cluster::until_stopped(signals);
    server.stop();
    Ok(ExitCode::SUCCESS)
}
