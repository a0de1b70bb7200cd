//! `amalgam dev`

use crate::arguments::Connection;
use crate::cluster::{self, JournalArgs, Offer, ServerSettings, Size};
use crate::failure::Result;
use crate::{discovery, show};
use amalgam_core::why::counted;
use amalgam_daemon::server::{Server, ServerOptions};
use amalgam_daemon::shell::shut_down;
use clap::Args;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam dev                                  this machine as a cluster of one node
  amalgam dev --nodes 4 --cpus 2 --memory 1GiB
Jobs and finished tasks survive a restart. Ctrl-C ends what runs, to be run again at the next start.")]
pub struct DevArgs {
    #[command(flatten)]
    size: Size,
    #[command(flatten)]
    offer: Offer,
    #[command(flatten)]
    settings: ServerSettings,
    #[command(flatten)]
    journal: JournalArgs,
}

pub fn execute(args: DevArgs, connection: &Connection) -> Result<ExitCode> {
    cluster::log_to_stderr();
    let state_dir = discovery::state_dir(connection)?;
    let config = args.settings.read()?;
    let mut nodes = args.size.nodes();
    nodes.iter_mut().for_each(|node| args.offer.apply(node));
    let executor = cluster::executor_setup(&state_dir, args.offer.enforcement)?;
    let executor_config = executor.config.clone();
    let (count, preset) = (nodes.len(), config.preset.name());
    let server = Server::start(ServerOptions {
        state_dir: state_dir.clone(),
        config,
        user: cluster::user(),
        nodes,
        executor: Some(executor),
        takes_agents: false,
        journal: args.journal.journal,
    })?;
    super::server::report_torn(&server);
    show::print(&format!(
        "ready: {} at http://{}, preset {preset}, state in {}\n",
        counted(count as u64, "node"),
        server.address,
        state_dir.display()
    ))?;
    cluster::until_stopped()?;
    server.stop();
    shut_down(&executor_config);
    Ok(ExitCode::SUCCESS)
}
