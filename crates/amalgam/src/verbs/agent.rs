//! `amalgam agent`

use crate::arguments::Connection;
use crate::cluster::{self, JournalArgs, Offer};
use crate::failure::{Failure, Result};
use crate::{discovery, show};
use amalgam_daemon::agent::{self, AgentError, AgentOptions};
use amalgam_daemon::node_setup::NodeOptions;
use amalgam_daemon::private::make_private_dir;
use amalgam_daemon::transport::JoinError;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// How long the server may take to appear.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Args)]
#[command(after_help = "Example:
  amalgam agent --server 127.0.0.1:7434 --token-file /var/lib/amalgam/tokens.toml --name rack1-node3
Tasks go on while the agent is away, and are taken over when it returns.")]
pub struct AgentArgs {
    /// Where the server listens for agents, as its first line says
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7434", help_heading = "Connection")]
    server: String,
    /// The node's name, one for each agent [default: the host's name]
    #[arg(long)]
    name: Option<String>,
    /// CPUs to offer [default: those of this machine]
    #[arg(long, value_name = "CPUS", value_parser = amalgam_workload::quantities::parse_node_cpu_millis)]
    cpus: Option<u32>,
    /// Memory to offer, such as 4GiB [default: that of this machine]
    #[arg(long, value_name = "SIZE", value_parser = amalgam_workload::quantities::parse_memory_mib)]
    memory: Option<u32>,
    #[command(flatten)]
    offer: Offer,
    /// Where the executor keeps directories and output, for this agent alone [default: agent-NAME in the state
    /// directory]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    #[command(flatten)]
    journal: JournalArgs,
}

pub fn execute(args: AgentArgs, connection: &Connection) -> Result<ExitCode> {
    cluster::log_to_stderr();
    let state_dir = discovery::state_dir(connection)?;
    let mut node = NodeOptions {
        name: Some(args.name.unwrap_or_else(|| amalgam_daemon::executor::host::Host::inspect().hostname)),
        cpu_millis: args.cpus,
        memory_mib: args.memory,
        ..NodeOptions::default()
    };
    args.offer.apply(&mut node);
    let name = node.name.clone().unwrap_or_default();
    let work_dir = args.work_dir.unwrap_or_else(|| state_dir.join(format!("agent-{name}")));
    make_private_dir(&work_dir).map_err(|error| {
        Failure::new(format!("cannot make {}: {error}", work_dir.display()), "name another --work-dir")
    })?;
    let secrets = cluster::secrets(connection, &state_dir)?;
    let server = cluster::agents_address(&args.server);
    let options = AgentOptions {
        server: server.clone(),
        secrets,
        node,
        executor: cluster::executor_setup(&work_dir, args.offer.enforcement)?,
        journal: args.journal.journal,
        patience: PATIENCE,
    };
    let mut signals = cluster::stop_signals()?;
    let joined_as = |name: &str| {
        let _ = show::print(&format!("ready: node {name}, server {server}\n"));
    };
    let until_stopped = move || {
        signals.forever().next();
    };
    agent::run(options, joined_as, until_stopped).map_err(|error| Failure::new(error.to_string(), remedy(&error)))?;
    Ok(ExitCode::SUCCESS)
}

fn remedy(error: &AgentError) -> &'static str {
    match error {
        AgentError::Join(JoinError::Unreachable { .. }) => "start the server first: `amalgam server`",
        AgentError::Join(JoinError::Refused { .. }) => "",
        AgentError::Auth(_) => "try again",
        AgentError::Lock(_) => "--work-dir names another directory",
        _ => "`amalgam agent --help` shows how to name server and token",
    }
}
