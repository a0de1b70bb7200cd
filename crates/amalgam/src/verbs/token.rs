//! `amalgam token`: changes the server's token file. A running server reads it again automatically.

use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::{discovery, show};
use amalgam_daemon::api::ServerFile;
use amalgam_daemon::auth::joins::{self, JoinString};
use amalgam_daemon::auth::{self, Holder, TokenEntry, Tokens};
use amalgam_daemon::channel::is_local;
use amalgam_daemon::config::is_address;
use amalgam_daemon::executor::host::Host;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

#[derive(Args)]
pub struct TokenArgs {
    #[command(subcommand)]
    verb: TokenVerb,
}

#[derive(Subcommand)]
enum TokenVerb {
    /// Make a token for a user or an agent and print it
    ///
    /// A user's token keeps users apart on the interface: without --admin its holder lists all jobs but reads and acts on their
    /// own only. It does not protect the state directory from their tasks: all tasks run as the user that the server and its
    /// agents run as, and can read and change whatever that user can, the tokens and the output of others' tasks included. An
    /// agent's token lets the agent of that name join and is valid for nothing else.
    ///
    /// If the user or agent has a token already, the old one is valid for another 24 hours.
    Add {
        #[command(flatten)]
        holder: HolderArgs,
        /// The user may act on everyone's jobs and drain nodes
        #[arg(long, conflicts_with = "agent")]
        admin: bool,
        #[command(flatten)]
        overlap: OverlapArgs,
    },
    /// Replace the token of a user or an agent by a new one with the same rights, and print it
    ///
    /// The old one is valid for another 24 hours, so that copies of it can be replaced.
    Rotate {
        #[command(flatten)]
        holder: HolderArgs,
        #[command(flatten)]
        overlap: OverlapArgs,
    },
    /// Remove all tokens of a user or an agent
    Remove {
        #[command(flatten)]
        holder: HolderArgs,
    },
    /// Print a join string, with which the agents of other machines get tokens of their own: `amalgam agent --join STRING`
    ///
    /// It contains the server's address and a secret. The agent proves the secret over an encrypted connection without sending it,
    /// so it also verifies the server. The string is useless once it has been used or has expired.
    Join {
        /// Number of machines that can use it
        #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100_000))]
        uses: u32,
        /// How long it can be used, such as 30m or 2d
        #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_ttl)]
        ttl: Duration,
        /// The server's address for agents as the other machines reach it [default: this machine's name or the address where the
        /// server listens]
        #[arg(long, value_name = "HOST:PORT", value_parser = parse_address)]
        address: Option<String>,
    },
    /// List users and agents with tokens
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct HolderArgs {
    user: Option<String>,
    /// The name of the node whose agent the token is for
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
}

impl HolderArgs {
    /// The name, and whether it is an agent's.
    fn split(self) -> (String, bool) {
        let is_agent = self.agent.is_some();
        (self.agent.or(self.user).unwrap_or_default(), is_agent)
    }
}

#[derive(Args)]
struct OverlapArgs {
    /// Revoke the old token now instead of in 24 hours
    #[arg(long)]
    revoke_now: bool,
}

#[derive(Serialize)]
struct Held {
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    admin: bool,
    /// When a replaced token expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
}

impl Held {
    fn of(entry: TokenEntry) -> Held {
        let (user, agent, admin) = match entry.holder {
            Holder::User { name, admin } => (Some(name), None, admin),
            Holder::Agent { name } => (None, Some(name), false),
        };
        Held {
            user,
            agent,
            admin,
            until: entry.until.map(|until| humantime::format_rfc3339_seconds(until).to_string()),
        }
    }

    fn row(self) -> Vec<String> {
        let role = match (&self.agent, self.admin) {
            (Some(_), _) => "agent",
            (None, true) => "administrator",
            (None, false) => "user",
        };
        vec![self.user.or(self.agent).unwrap_or_default(), role.to_owned(), self.until.unwrap_or_default()]
    }
}

pub fn execute(args: TokenArgs, connection: &Connection) -> Result<ExitCode> {
    if connection.server.is_some() {
        let what = "`token` changes the token file of a server on this machine, and connects to no server";
        return Err(Failure::usage(what, "leave --server out, and name the server's state directory with --state-dir"));
    }
    let path = discovery::state_dir(connection)?.join(Tokens::FILE);
    if !path.exists() {
        let remedy = "tokens are managed on the server's machine: run this there, and name the state directory with --state-dir; the \
                      first start of the server creates the file";
        return Err(Failure::new(format!("token file not found: {}", path.display()), remedy));
    }
    match args.verb {
        TokenVerb::Add { holder, admin, overlap } => add(&path, holder.split(), admin, overlap.revoke_now)?,
        TokenVerb::Rotate { holder, overlap } => {
            let (name, is_agent) = holder.split();
            let entry = auth::rotate(&path, &name, is_agent, overlap.revoke_now)?;
            report(&path, &entry)?;
        }
        TokenVerb::Remove { holder } => {
            let (name, is_agent) = holder.split();
            auth::remove(&path, &name, is_agent)?;
        }
        TokenVerb::Join { uses, ttl, address } => {
            let state_dir = discovery::state_dir(connection)?;
            let address = address.map_or_else(|| agents_address(&state_dir), Ok)?;
            let string = JoinString { address, secret: joins::make(&state_dir, ttl, uses)? };
            show::print(&format!("{string}\n"))?;
        }
        TokenVerb::List { json } => {
            let holders: Vec<Held> = auth::read(&path)?.into_iter().map(Held::of).collect();
            if json {
                show::json(&holders)?;
            } else {
                let rows: Vec<_> = holders.into_iter().map(Held::row).collect();
                show::print(&show::table(&["NAME", "ROLE", "UNTIL"], &rows))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn add(path: &Path, (name, is_agent): (String, bool), admin: bool, revokes: bool) -> Result<()> {
    if is_agent {
        return report(path, &auth::add(path, Holder::Agent { name }, revokes)?);
    }
    // An administrator stays one when the token is replaced.
    let was_admin = auth::read(path)?.iter().any(|entry| {
        entry.is_valid(SystemTime::now())
            && matches!(&entry.holder, Holder::User { name: user, admin: true } if *user == name)
    });
    let entry = auth::add(path, Holder::User { name: name.clone(), admin: admin || was_admin }, revokes)?;
    if !(admin || was_admin) {
        show::note(&format!(
            "warning: tasks of {name} will run as the daemon's own user and can read its state directory\n  help: give \
             tokens only to people whom that user trusts; `amalgam token add --help` says more"
        ));
    }
    report(path, &entry)
}

/// Prints the token, and until when the previous one is valid.
fn report(path: &Path, entry: &TokenEntry) -> Result<()> {
    let is_older = |other: &TokenEntry| other.holder.name() == entry.holder.name() && other.token != entry.token;
    let until = auth::read(path)?.into_iter().filter(is_older).filter_map(|other| other.until).max();
    if let Some(until) = until {
        let until = humantime::format_rfc3339_seconds(until);
        let name = entry.holder.name();
        show::note(&format!("note: the previous token of {name} is valid until {until}; --revoke-now revokes it"));
    }
    show::print(&format!("{}\n", entry.token))
}

fn parse_ttl(text: &str) -> std::result::Result<Duration, String> {
    let ttl = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if ttl < Duration::from_secs(1) { Err("use at least 1s".to_owned()) } else { Ok(ttl) }
}

fn parse_address(text: &str) -> std::result::Result<String, String> {
    if is_address(text) { Ok(text.to_owned()) } else { Err("write HOST:PORT, such as head:7434".to_owned()) }
}

/// Where the agents of other machines reach the server of this state directory.
fn agents_address(state_dir: &Path) -> Result<String> {
    let running = discovery::server_file(state_dir)?.and_then(|text| serde_json::from_str::<ServerFile>(&text).ok());
    let Some(running) = running else {
        let what = format!("no running server was found in the state directory {}", state_dir.display());
        return Err(Failure::new(what, "start it, or name its address for agents with --address HOST:PORT"));
    };
    let remedy = "start the server with --listen-agents 0.0.0.0:7434; or name an address that leads there with --address HOST:PORT";
    match running.agents.and_then(|address| address.parse::<SocketAddr>().ok()) {
        None => Err(Failure::new(
            "this server names no address for agents: it is a standby, has its own nodes (`amalgam dev`), or is older",
            "use an active `amalgam server`, or name the address with --address HOST:PORT",
        )),
        Some(address) if is_local(address) => Err(Failure::new(
            format!("the server listens for agents at {address}, which only this machine reaches"),
            remedy,
        )),
        Some(address) if address.ip().is_unspecified() => {
            Ok(format!("{}:{}", Host::inspect().hostname, address.port()))
        }
        Some(address) => Ok(address.to_string()),
    }
}
