//! `amalgam jobs`

use crate::cluster::{self, JournalArgs};
use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::{discovery, joining, show};
use amalgam_cli::log::LogArgs;
use amalgam_core::vocabulary::HostId;
use amalgam_daemon::auth::DaemonRole;
use amalgam_daemon::jobs::{self, JobsError, JobsOptions};
use amalgam_daemon::private::make_private_dir;
use amalgam_daemon::transport::JoinError;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Time limit for the server to appear.
const PATIENCE: Duration = Duration::from_secs(30);

/// The server's default port for agents. The processes of job managers use the ports after it.
const FIRST_PORT: u16 = 7434;

#[derive(Args)]
#[command(after_help = "Example, with `job_hosts = 1` in the server's configuration:
  amalgam jobs --number 1 --token-file /var/lib/amalgam/tokens.toml --work-dir /var/lib/amalgam-jobs
Jobs whose managers are here continue while the server is down; tasks continue while this process is down.")]
pub struct JobsArgs {
    /// Which of the server's processes of job managers this is, from 1 to its `job_hosts`
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u8).range(1..))]
    number: u8,
    /// Join the server for the first time with a string of `amalgam token join --role jobs`; later starts use the certificates that
    /// it gave, in the work directory, with or without the string. Agents that joined with a string, too, need nothing else
    #[arg(long, value_name = "STRING", env = "AMALGAM_JOIN", hide_env_values = true, help_heading = "Connection")]
    join: Option<String>,
    /// The server's address for agents, as in its ready line [default: that of the string, where it joined before, or 127.0.0.1:7434]
    #[arg(long, value_name = "HOST:PORT", help_heading = "Connection")]
    server: Option<String>,
    /// Address of this process for agents, or several, separated by commas; may be repeated. Keep it the same after a restart: agents
    /// that know no other address look for it there [default: 127.0.0.1, port 7434 + N]
    #[arg(long, value_name = "ADDRESS[,..]")]
    listen: Vec<String>,
    /// Address at which agents reach this process [default: the first of --listen beyond loopback, or the first]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Directory of this process's log, for this process only [default: jobs-N in the state directory]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    #[command(flatten)]
    journal: JournalArgs,
    #[command(flatten)]
    log: LogArgs,
}

pub fn execute(args: JobsArgs, connection: &Connection) -> Result<ExitCode> {
    args.log.start()?;
    let state_dir = discovery::state_dir(connection)?;
    let number = args.number;
    let join = joining::parse(args.join.as_deref())?;
    let work_dir = args.work_dir.unwrap_or_else(|| state_dir.join(format!("jobs-{number}")));
    if join.is_some() {
        make_private_dir(&work_dir).map_err(|error| {
            Failure::new(
                format!("cannot use the work directory {}: {error}", work_dir.display()),
                "name another --work-dir",
            )
        })?;
    }
    let server = joining::server(args.server.as_deref(), join.as_ref(), &work_dir)?;
    let name = number.to_string();
    let secrets = match joining::identity(join.as_ref(), &work_dir, DaemonRole::JobHost, &name, connection)? {
        Some(secrets) => secrets,
        None => cluster::secrets(connection, &state_dir, None)?,
    };
    let mut listen = vec![format!("127.0.0.1:{}", FIRST_PORT + u16::from(number))];
    cluster::replace(&mut listen, args.listen);
    let options = JobsOptions {
        number: HostId(number),
        server: server.clone(),
        secrets,
        listen,
        advertise: args.advertise,
        state_dir: work_dir,
        journal: args.journal.place(),
        patience: PATIENCE,
    };
    let signals = cluster::stop_signals()?;
    let ready = move |addresses: &[SocketAddr], is_joined: bool| {
        let there = if is_joined { "" } else { ", which is not connected" };
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let addresses = addresses.join(", ");
        show::announce(&format!("ready: job host {number} for agents at {addresses}, server {server}{there}"));
    };
    let until_stopped = move || cluster::until_stopped(signals);
    jobs::run(options, ready, until_stopped).map_err(|error| Failure::new(error.to_string(), remedy(&error)))?;
    Ok(ExitCode::SUCCESS)
}

fn remedy(error: &JobsError) -> &'static str {
    match error {
        JobsError::Join(JoinError::Unreachable { .. }) => "start the server first: `amalgam server`",
        JobsError::Join(JoinError::Refused { .. }) => "",
        JobsError::OfOthers { .. } | JobsError::OfAnotherServer { .. } => {
            "use --work-dir for another directory, or --number for another process"
        }
        JobsError::Store(_) | JobsError::TooManyStarts { .. } => "use --work-dir for another directory",
        JobsError::OnlyHere { .. } => {
            "listen at an address that they reach, such as `--listen 0.0.0.0:7435 --advertise HOST:7435`"
        }
        JobsError::NoAddress { .. } => "name an address of this machine that agents reach: `--advertise HOST:PORT`",
        JobsError::Start(_) => "use --listen for another address",
        _ => "`amalgam jobs --help` shows how to name server and token",
    }
}
