//! `amalgam dev`

mod federation;

use crate::cluster::{self, JournalArgs, Offer, ServerSettings, Size};
use crate::connection::Connection;
use crate::failure::Result;
use crate::{discovery, show};
use amalgam_cli::log::LogArgs;
use amalgam_cli::process::user;
use amalgam_core::why::counted;
use amalgam_daemon::executor::RunAs;
use amalgam_daemon::server::{Server, ServerOptions};
use amalgam_daemon::shell::shut_down;
use clap::Args;
use federation::Plan;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam dev                                  this machine as a cluster of one node
  amalgam dev --nodes 4 --cpus 2 --memory 1GiB
  amalgam dev --clusters 3 --globals 2 --nodes 4   a federation: 3 clusters of 4 nodes each, and 2 global masters
Commands find the first global master of a federation; --server names another, and --state-dir STATE/cluster-1 that
cluster's master.
Jobs and finished tasks survive a restart. Ctrl-C stops running tasks; they run again at the next start.")]
pub struct DevArgs {
    #[command(flatten)]
    size: Size,
    /// Start a federation with this number of clusters, each with --nodes nodes and a master of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=200))]
    clusters: Option<u32>,
    /// Number of global masters of the federation [default: 1]; they listen at --listen and the ports after it
    #[arg(long, value_name = "N", requires = "clusters", value_parser = clap::value_parser!(u32).range(1..=200))]
    globals: Option<u32>,
    #[command(flatten)]
    offer: Offer,
    #[command(flatten)]
    settings: ServerSettings,
    #[command(flatten)]
    journal: JournalArgs,
    #[command(flatten)]
    log: LogArgs,
}

pub fn execute(args: DevArgs, connection: &Connection) -> Result<ExitCode> {
    args.log.start()?;
    let state_dir = discovery::state_dir(connection)?;
    let mut nodes = args.size.nodes();
    for node in &mut nodes {
        args.offer.apply(node)?;
    }
    if let Some(clusters) = args.clusters {
        let config = args.settings.read_any()?;
        let (globals, journal) = (args.globals.unwrap_or(1), args.journal.place());
        let Offer { enforcement, devices, output_limit, .. } = args.offer;
        return federation::execute(Plan {
            state_dir,
            config,
            clusters,
            globals,
            nodes,
            enforcement,
            devices,
            output_limit,
            journal,
        });
    }
    let config_file = args.settings.file()?;
    let config = args.settings.read()?;
    let mut executor = cluster::executor_setup(&state_dir, args.offer.enforcement, RunAs::Agent)?;
    executor.config.devices = args.offer.devices;
    executor.output_limit = args.offer.output_limit;
    let executor_config = executor.config.clone();
    let (count, preset) = (nodes.len(), config.preset.name());
    let server = Server::start(ServerOptions {
        state_dir: state_dir.clone(),
        config,
        user: user(),
        nodes,
        executor: Some(executor),
        takes_agents: false,
        journal: args.journal.place(),
        config_file,
    })?;
    super::server::report_torn(&server);
    show::announce(&format!(
        "ready: {} at {}, preset {preset}, state in {}",
        counted(count as u64, "node"),
        server.urls().join(", "),
        state_dir.display()
    ));
    cluster::until_stopped(cluster::stop_signals()?);
    server.stop();
    shut_down(&executor_config);
    Ok(ExitCode::SUCCESS)
}
