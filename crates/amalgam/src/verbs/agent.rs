//! `amalgam agent`

use crate::cluster::{self, JournalArgs, Offer};
use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::{discovery, joining, show};
use amalgam_cli::log::LogArgs;
use amalgam_daemon::agent::{self, AgentError, AgentOptions};
use amalgam_daemon::auth::DaemonRole;
use amalgam_daemon::executor::RunAs;
use amalgam_daemon::files::direct::{FilesAddress, Listen};
use amalgam_daemon::hollow::{self, HollowError, HollowOptions};
use amalgam_daemon::node_setup::NodeOptions;
use amalgam_daemon::private::{make_passable_dir, make_private_dir};
use amalgam_daemon::transport::JoinError;
use clap::Args;
use rustix::fs::Mode;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Time limit for the server to appear.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam token join                                             # at the server; prints STRING
  amalgam agent --join STRING --name rack1-node3                 # on the node

  amalgam token add --agent rack1-node3 > rack1-node3.token      # at the server; copy it to the node, with mode 600
  amalgam agent --server head:7434 --token-file rack1-node3.token --name rack1-node3
If the server does not know the token, the agent retries, and reads the file again each time.
Tasks continue while the agent is down, and are taken over when it returns.

To measure a scheduler at the size of thousands of nodes on one machine:
  amalgam agent --hollow 3000 --cpus 16 --memory 64GiB --name hollow
These are nodes hollow-0 to hollow-2999, each with a node agent and connections of its own.
Their tasks do not run, read or write: each succeeds after the first `sleep` of its command, or at once.
They have the attribute hollow=true, and are lost with the process.")]
pub struct AgentArgs {
    /// The server's address for agents, as in its ready line; also the standby's, separated by a comma [default: where it joined with a
    /// string before, or 127.0.0.1:7434]
    #[arg(long, value_name = "HOST:PORT[,..]", help_heading = "Connection")]
    server: Option<String>,
    /// Join the server for the first time with a string of `amalgam token join`; later starts use the certificates that it
    /// gave, in the work directory. In the variable, other users do not see the string
    #[arg(long, value_name = "STRING", env = "AMALGAM_JOIN", hide_env_values = true,
        help_heading = "Connection", conflicts_with_all = ["server", "hollow"])]
    join: Option<String>,
    /// Number of hollow nodes in this process, whose tasks do not run: each succeeds after the time that its command would sleep
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with_all = ["work_dir", "cache", "output_limit", "enforcement", "devices", "scope"])]
    hollow: Option<u32>,
    /// The node's name, one for each agent; hollow nodes append a dash and a number [default: the host's name]
    #[arg(long, value_parser = amalgam_workload::quantities::parse_node_name)]
    name: Option<String>,
    /// CPUs to offer [default: those of this machine]
    #[arg(long, value_name = "CPUS", value_parser = amalgam_workload::quantities::parse_node_cpu_millis)]
    cpus: Option<u32>,
    /// Memory to offer, such as 4GiB [default: that of this machine]
    #[arg(long, value_name = "SIZE", value_parser = amalgam_workload::quantities::parse_memory_mib)]
    memory: Option<u32>,
    #[command(flatten)]
    offer: Offer,
    /// Where other nodes fetch files that tasks declare: an address of this machine, such as 0.0.0.0:7435, or none, so that these
    /// files go through the server [default: the address from which the agent is connected to the server, at any free port]
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_listen, conflicts_with = "hollow")]
    listen_files: Option<Listen>,
    /// The address that other nodes are told for that, if it is another one
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_advertise, conflicts_with = "hollow")]
    advertise_files: Option<String>,
    /// Directory of the executor for task directories and output, for this agent only [default: agent-NAME in the state
    /// directory]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// As whom tasks run: job-user, the account with the name of the job's user, or agent, the agent's own user [default: job-user
    /// if the agent runs as root, otherwise agent]
    #[arg(long, value_name = "WHO", value_parser = parse_run_as, conflicts_with = "hollow")]
    run_as: Option<RunAs>,
    /// Run jobs of root, too, if tasks run as their job's user
    #[arg(long, conflicts_with = "hollow")]
    allow_root: bool,
    /// Start the executor in a scope of systemd of its own, as the packaged unit does: systemd can stop and start this agent while
    /// tasks run. Without systemd, it has no effect
    #[arg(long)]
    scope: bool,
    #[command(flatten)]
    journal: JournalArgs,
    #[command(flatten)]
    log: LogArgs,
}

fn parse_listen(text: &str) -> std::result::Result<Listen, String> {
    match text {
        "none" => Ok(Listen::Nowhere),
        _ => text.parse().map(Listen::At).map_err(|_| {
            "write an address of this machine and a port, such as 10.0.0.7:7435 or [::]:7435, or none".to_owned()
        }),
    }
}

fn parse_advertise(text: &str) -> std::result::Result<String, String> {
    let port =
        text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse::<u16>().ok());
    match port.filter(|port| *port > 0) {
        Some(_) => Ok(text.to_owned()),
        None => Err("write a host and a port, such as node-7:7435 or [2001:db8::7]:7435".to_owned()),
    }
}

fn parse_run_as(text: &str) -> std::result::Result<RunAs, String> {
    match text {
        "job-user" => Ok(RunAs::JobUser { allows_root: false }),
        "agent" => Ok(RunAs::Agent),
        _ => Err("known are job-user and agent".to_owned()),
    }
}

/// As whom tasks run, by the command line and this process's user.
fn run_as(chosen: Option<RunAs>, allows_root: bool) -> Result<RunAs> {
    let is_root = rustix::process::geteuid().is_root();
    match chosen {
        Some(RunAs::Agent) | None if allows_root && !(is_root && chosen.is_none()) => Err(Failure::usage(
            "--allow-root is for agents that run tasks as their job's user",
            "run the agent as root with --run-as job-user, or leave --allow-root out",
        )),
        Some(RunAs::Agent) => Ok(RunAs::Agent),
        None if !is_root => Ok(RunAs::Agent),
        Some(RunAs::JobUser { .. }) if !is_root => Err(Failure::new(
            "only root can run tasks as their job's user",
            "run the agent as root, or use --run-as agent",
        )),
        Some(RunAs::JobUser { .. }) | None => Ok(RunAs::JobUser { allows_root }),
    }
}

/// Makes the work directory. If tasks run as other users, they pass through it to their own directories.
fn make_work_dir(work_dir: &Path, run_as: RunAs) -> Result<()> {
    let make = match run_as {
        RunAs::Agent => make_private_dir,
        RunAs::JobUser { .. } => make_passable_dir,
    };
    make(work_dir).map_err(|error| {
        Failure::new(format!("cannot make {}: {error}", work_dir.display()), "name another --work-dir")
    })?;
    if run_as == RunAs::Agent {
        return Ok(());
    }
    // Files that this process and its executor create are closed to other users.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let absolute = fs::canonicalize(work_dir)?;
    let closed = |above: &&Path| fs::metadata(above).is_ok_and(|found| found.mode() & 0o001 == 0);
    match absolute.ancestors().skip(1).find(closed) {
        None => Ok(()),
        Some(closed) => Err(Failure::new(
            format!(
                "tasks cannot reach their directories below {}: {} is closed to other users",
                work_dir.display(),
                closed.display()
            ),
            format!("name another --work-dir, run `chmod o+x {}`, or use --run-as agent", closed.display()),
        )),
    }
}

pub fn execute(args: AgentArgs, connection: &Connection) -> Result<ExitCode> {
    args.log.start()?;
    let state_dir = discovery::state_dir(connection)?;
    let name = args.name.unwrap_or_else(|| amalgam_daemon::executor::host::Host::inspect().hostname);
    let mut node = NodeOptions {
        name: Some(name.clone()),
        cpu_millis: args.cpus,
        memory_mib: args.memory,
        ..NodeOptions::default()
    };
    args.offer.apply(&mut node)?;
    let join = joining::parse(args.join.as_deref())?;
    let (journal, patience) = (args.journal.place(), PATIENCE);
    if let Some(count) = args.hollow {
        let server = cluster::agents_address(args.server.as_deref().unwrap_or(joining::ON_THIS_MACHINE))?;
        let secrets = cluster::secrets(connection, &state_dir, Some(&name))?;
        return be_hollow(HollowOptions { server, secrets, node, count, journal, patience }, &name);
    }
    let work_dir = args.work_dir.unwrap_or_else(|| state_dir.join(format!("agent-{name}")));
    let run_as = run_as(args.run_as, args.allow_root)?;
    make_work_dir(&work_dir, run_as)?;
    let server = joining::server(args.server.as_deref(), join.as_ref(), &work_dir)?;
    let secrets = match joining::identity(join.as_ref(), &work_dir, DaemonRole::Agent, &name, connection)? {
        Some(secrets) => secrets,
        None => {
            let secrets = cluster::secrets(connection, &state_dir, Some(&name))?;
            secrets.exchange_in(&work_dir)?;
            secrets
        }
    };
    let mut executor = cluster::executor_setup(&work_dir, args.offer.enforcement, run_as)?;
    executor.config.devices = args.offer.devices;
    executor.output_limit = args.offer.output_limit;
    let executor = if args.scope { cluster::in_scope(executor) } else { executor };
    let files_address = FilesAddress { listen: args.listen_files.unwrap_or_default(), advertise: args.advertise_files };
    let options = AgentOptions { server: server.clone(), secrets, node, executor, journal, patience, files_address };
    let joined_as = |name: &str| {
        show::announce(&format!("ready: node {name}, server {server}"));
    };
    agent::run(options, joined_as, until_stopped()?)
        .map_err(|error| Failure::new(error.to_string(), remedy(&error)))?;
    Ok(ExitCode::SUCCESS)
}

fn be_hollow(options: HollowOptions, name: &str) -> Result<ExitCode> {
    let (server, last) = (options.server.clone(), options.count - 1);
    let ready = || {
        show::announce(&format!("ready: hollow nodes {name}-0 to {name}-{last}, server {server}"));
    };
    hollow::run(options, ready, until_stopped()?).map_err(|error| {
        let remedy = match &error {
            HollowError::Agent(error) => remedy(error),
            HollowError::Descriptors { .. } => {
                "raise the hard limit (`ulimit -Hn`), or start several of these with fewer nodes and names of their own"
            }
        };
        Failure::new(error.to_string(), remedy)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn until_stopped() -> Result<impl FnOnce() + Send + 'static> {
    let signals = cluster::stop_signals()?;
    Ok(move || cluster::until_stopped(signals))
}

fn remedy(error: &AgentError) -> &'static str {
    match error {
        AgentError::Join(JoinError::Unreachable { .. }) => "start the server first: `amalgam server`",
        AgentError::Join(JoinError::Refused { .. }) => "",
        AgentError::Auth(_) => "try again",
        AgentError::FilesPort(_) => "name another --listen-files, or none",
        AgentError::Lock(_) => "use --work-dir for another directory",
        _ => "`amalgam agent --help` shows how to name server and token",
    }
}
