//! `amalgam token`: changes the server's token file. A running server reads it again automatically.

use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::{discovery, show};
use amalgam_daemon::api::ServerFile;
use amalgam_daemon::audit;
use amalgam_daemon::auth::joins::{self, JoinString};
use amalgam_daemon::auth::{self, DaemonRole, Holder, LastUses, Scope, Scopes, TokenEntry, Tokens, Which};
use amalgam_daemon::authority::Progress;
use amalgam_daemon::config::is_address;
use amalgam_daemon::config::is_local;
use amalgam_daemon::executor::host::Host;
use amalgam_daemon::identity::Identity;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::fmt::Display;
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
    /// own only. Where the agents run as root, tasks run as the job's user; elsewhere all tasks run as the agent's user, and can
    /// read and change whatever that user can, also the output of others' tasks. An agent's token lets the agent of that name join
    /// and is valid for nothing else.
    ///
    /// If the user or agent has a token of the same name already, the old one is valid for another 24 hours.
    Add {
        #[command(flatten)]
        which: WhichArgs,
        /// The user may act on everyone's jobs and drain nodes
        #[arg(long, conflicts_with_all = ["agent", "job_host", "global", "server_name"])]
        admin: bool,
        /// What the token may be used for: read (list jobs and nodes, read own jobs), submit (submit jobs and act on own ones),
        /// operate (act on all jobs and on nodes), admin (everything) [default: read,submit]
        #[arg(long, value_name = "SCOPES", value_delimiter = ',', conflicts_with_all = ["agent", "job_host", "global", "server_name", "admin"])]
        scope: Vec<Scope>,
        /// How long the token is valid, such as 30d or 12h [default: without limit]
        #[arg(long, value_name = "DURATION", value_parser = parse_ttl)]
        ttl: Option<Duration>,
        #[command(flatten)]
        overlap: OverlapArgs,
    },
    /// Replace the token of a user or an agent by a new one with the same rights, and print it
    ///
    /// The old one is valid for another 24 hours, so that copies of it can be replaced.
    Rotate {
        #[command(flatten)]
        which: WhichArgs,
        #[command(flatten)]
        overlap: OverlapArgs,
    },
    /// Remove tokens of a user or an agent: that of a name, or all
    ///
    /// They are refused at once. Connections of agents and streams of output that use them end within a second.
    #[command(visible_alias = "revoke")]
    Remove {
        #[command(flatten)]
        which: WhichArgs,
    },
    /// Print a join string, with which daemons of other machines get certificates: `amalgam agent --join STRING`
    ///
    /// It contains the server's address and a secret. The daemon proves the secret over an encrypted connection without sending it,
    /// so it also verifies the server. The string is useless once it has been used or has expired.
    Join {
        /// What joins with it: an agent, a job host (`amalgam jobs --join STRING`), a global master of the federation (`amalgam
        /// global --join STRING`), or a standby (`amalgam server --join STRING`)
        #[arg(long, value_enum, default_value = "agent")]
        role: JoinRole,
        /// Number of machines that can use it
        #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100_000))]
        uses: u32,
        /// How long it can be used, such as 30m or 2d
        #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_ttl)]
        ttl: Duration,
        /// The server's address for agents as the other machines reach it; also the standby's, separated by a comma [default: this machine's name or the address where the
        /// server listens]
        #[arg(long, value_name = "HOST:PORT[,..]", value_parser = parse_address)]
        address: Option<String>,
    },
    /// List tokens with their users or agents, and when they were last used
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum JoinRole {
    Agent,
    Jobs,
    Global,
    Server,
}

impl JoinRole {
    fn role(self) -> DaemonRole {
        match self {
            JoinRole::Agent => DaemonRole::Agent,
            JoinRole::Jobs => DaemonRole::JobHost,
            JoinRole::Global => DaemonRole::Global,
            JoinRole::Server => DaemonRole::Server,
        }
    }
}

#[derive(Args)]
struct WhichArgs {
    #[command(flatten)]
    holder: HolderArgs,
    /// The name of the token, for users who have several, such as one for each program
    #[arg(long = "name", value_name = "NAME", conflicts_with_all = ["agent", "job_host", "global", "server_name"])]
    name: Option<String>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct HolderArgs {
    user: Option<String>,
    /// The name of the node whose agent the token is for
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// The number of a job host
    #[arg(long, value_name = "N")]
    job_host: Option<String>,
    /// The number of a global master
    #[arg(long, value_name = "N")]
    global: Option<String>,
    /// The name of a server that shares its records with others: a standby
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
}

impl WhichArgs {
    fn which(&self) -> Which<'_> {
        let HolderArgs { user, agent, job_host, global, server_name } = &self.holder;
        let daemon = [
            (DaemonRole::Agent, agent),
            (DaemonRole::JobHost, job_host),
            (DaemonRole::Global, global),
            (DaemonRole::Server, server_name),
        ];
        let daemon = daemon.into_iter().find_map(|(role, name)| Some((role, name.as_deref()?)));
        let Some((role, holder)) = daemon else {
            return Which { holder: user.as_deref().unwrap_or(""), role: None, name: self.name.as_deref() };
        };
        let role = Some(role);
        Which { holder, role, name: None }
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
    #[serde(skip_serializing_if = "Option::is_none")]
    job_host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    global: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    /// Whether it has certificates instead of a token.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    has_certificates: bool,
    /// Distinguishes tokens of one user.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    admin: bool,
    scopes: Vec<&'static str>,
    /// When the token expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    /// To the minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used: Option<String>,
}

impl Held {
    fn of(entry: TokenEntry, uses: &LastUses) -> Held {
        let last_used = uses.of_credential(&entry.credential);
        let has_certificates = entry.token().is_none();
        let admin = matches!(entry.holder, Holder::User { admin: true, .. });
        let named = |role: Option<DaemonRole>| (entry.holder.role() == role).then(|| entry.holder.name().to_owned());
        let [agent, job_host, global, server] = DaemonRole::ALL.map(|role| named(Some(role)));
        let user = named(None);
        let shown = |at: Option<SystemTime>| at.map(|at| humantime::format_rfc3339_seconds(at).to_string());
        let scopes = if user.is_none() { Vec::new() } else { entry.scopes.names().collect() };
        let (until, last_used) = (shown(entry.until), shown(last_used));
        Held {
            user,
            agent,
            job_host,
            global,
            server,
            has_certificates,
            name: entry.name,
            admin,
            scopes,
            until,
            last_used,
        }
    }

    fn row(self) -> Vec<String> {
        let holders = [self.agent, self.job_host, self.global, self.server];
        let daemon = DaemonRole::ALL.into_iter().zip(holders).find_map(|(role, name)| Some((role, name?)));
        let (role, holder) = match daemon {
            Some((role, name)) => (role.title(), name),
            None if self.admin => ("administrator", self.user.unwrap_or_default()),
            None => ("user", self.user.unwrap_or_default()),
        };
        let role = if self.has_certificates { format!("{role} (certificate)") } else { role.to_owned() };
        vec![
            holder,
            role,
            self.name.unwrap_or_default(),
            self.scopes.join(","),
            self.until.unwrap_or_else(|| if self.has_certificates { "renewed".to_owned() } else { String::new() }),
            self.last_used.unwrap_or_default(),
        ]
    }
}

pub fn execute(args: TokenArgs, connection: &Connection) -> Result<ExitCode> {
    if connection.names_server() {
        let what = "`token` changes the token file of a server on this machine, and connects to no server";
        return Err(Failure::usage(
            what,
            "leave --server and --context out, and name the server's state directory with --state-dir",
        ));
    }
    let path = discovery::state_dir(connection)?.join(Tokens::FILE);
    if !path.exists() {
        let remedy = "tokens are managed on the server's machine: run this there, and name the state directory with --state-dir; the \
                      first start of the server creates the file";
        return Err(Failure::new(format!("token file not found: {}", path.display()), remedy));
    }
    let had_administrator = has_administrator(&path);
    match args.verb {
        TokenVerb::Add { which, admin, scope, ttl, overlap } => {
            let which = which.which();
            let (entry, has_new_user) = new_entry(&path, &which, admin, scope, ttl)?;
            recorded(&path, format!("token add {}", shown(&which)), || {
                auth::add(&path, entry.clone(), overlap.revoke_now)
            })?;
            if has_new_user {
                show::note(&format!(
                    "warning: tasks of {} run as the agent's user where agents do not run as root, and can read its files\n  help: give \
                     tokens only to people whom that user trusts, or run agents as root; `amalgam token add --help` says more",
                    which.holder
                ));
            }
            report(&path, &entry)?;
        }
        TokenVerb::Rotate { which, overlap } => {
            let which = which.which();
            let rotate = || auth::rotate(&path, &which, overlap.revoke_now);
            let entry = recorded(&path, format!("token rotate {}", shown(&which)), rotate)?;
            report(&path, &entry)?;
        }
        TokenVerb::Remove { which } => {
            let which = which.which();
            recorded(&path, format!("token remove {}", shown(&which)), || auth::remove(&path, &which))?;
        }
        TokenVerb::Join { role, uses, ttl, address } => {
            let state_dir = discovery::state_dir(connection)?;
            let address = address.map_or_else(|| agents_address(&state_dir), Ok)?;
            if role.role() == DaemonRole::Server {
                // With which it stands by when the other one is active.
                let made = Identity::of_server(&state_dir, &Host::inspect().hostname);
                made.map_err(|error| Failure::new(error.to_string(), error.remedy()))?;
            }
            let fingerprint = fingerprint(&state_dir)?;
            let make = || joins::make(&state_dir, role.role(), ttl, uses);
            let secret =
                recorded(&path, format!("token join --role {}, for {uses} machines", role.role().key()), make)?;
            let string = JoinString { address, fingerprint, secret };
            show::print(&format!("{string}\n"))?;
        }
        TokenVerb::List { json } => list(&path, json)?,
    }
    if had_administrator && !has_administrator(&path) {
        show::note(
            "warning: no administrator has a token that stays valid: only root and the server's user, on this machine, can \
             administer the cluster, and users whom an [[oidc]] of its configuration makes administrators\n  help: `amalgam token add USER --admin` makes a token of an administrator",
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn list(path: &Path, json: bool) -> Result<()> {
    let uses = LastUses::open(path.parent().unwrap_or(Path::new(".")));
    let holders: Vec<Held> = auth::read(path)?.into_iter().map(|entry| Held::of(entry, &uses)).collect();
    if json {
        return show::json(&holders);
    }
    let rows: Vec<_> = holders.into_iter().map(Held::row).collect();
    show::print(&show::table(&["HOLDER", "ROLE", "NAME", "SCOPES", "UNTIL", "LAST USED"], &rows))
}

/// Whether a token of an administrator is valid for longer than replaced ones are.
fn has_administrator(path: &Path) -> bool {
    let end = SystemTime::now() + auth::OVERLAP;
    auth::read(path).unwrap_or_default().iter().any(|entry| entry.scopes.has(Scope::Admin) && entry.is_valid(end))
}

/// The fingerprint of the authority that signs the server's certificates.
fn fingerprint(state_dir: &Path) -> Result<String> {
    let progress = Progress::of(state_dir).map_err(|error| Failure::new(error.to_string(), error.remedy()))?;
    let mut authorities = progress.authorities.into_iter();
    let signs = authorities.find(|authority| authority.signs_server);
    signs.map(|authority| authority.fingerprint).ok_or_else(|| {
        let what = format!("no authority in {} signs certificates of the server", state_dir.display());
        Failure::new(what, "look at the output of `amalgam ca list`")
    })
}

/// A new token, and whether it is the first of a user who is no administrator.
fn new_entry(
    path: &Path,
    which: &Which,
    admin: bool,
    scope: Vec<Scope>,
    ttl: Option<Duration>,
) -> Result<(TokenEntry, bool)> {
    let holder = which.holder.to_owned();
    let until = ttl.map(|ttl| SystemTime::now() + ttl);
    match which.role {
        None => {}
        Some(DaemonRole::Agent) => {
            return Ok((TokenEntry { until, ..TokenEntry::new(Holder::agent(holder))? }, false));
        }
        Some(role) => {
            let what = format!("a {} has certificates instead of a token", role.title());
            return Err(Failure::usage(what, "use a string of `amalgam token join`"));
        }
    }
    // An administrator stays one when the token is replaced.
    let entries = auth::read(path)?;
    let was_admin = auth::newest(&entries, which).is_some_and(|entry| entry.scopes.has(Scope::Admin));
    let scopes = Scopes::of(scope);
    let is_admin = admin || scopes.map_or(was_admin, |scopes| scopes.has(Scope::Admin));
    let entry = TokenEntry::new(Holder::User { name: holder, admin: is_admin })?;
    let scopes = scopes.unwrap_or(entry.scopes);
    Ok((TokenEntry { name: which.name.map(str::to_owned), scopes, until, ..entry }, !is_admin))
}

/// A token in the audit log, without its secret.
fn shown(which: &Which) -> String {
    let kind = which.role.map(|role| format!("{} ", role.flag())).unwrap_or_default();
    let name = which.name.map(|name| format!(" --name {name}")).unwrap_or_default();
    format!("{kind}{}{name}", which.holder)
}

/// Changes a file of the state directory, and records it in the audit log.
pub(super) fn recorded<T, E: Display>(
    token_file: &Path,
    request: String,
    change: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    let changed = change();
    let user = amalgam_cli::process::user();
    let result = changed.as_ref().err().map_or_else(|| "ok".to_owned(), ToString::to_string);
    if let Err(error) = audit::add_local(token_file.parent().unwrap_or(Path::new(".")), &user, request, result) {
        show::note(&format!("warning: this change is not in the audit log: {error}"));
    }
    changed
}

/// Prints the token, and until when the previous one is valid.
fn report(path: &Path, entry: &TokenEntry) -> Result<()> {
    let is_older = |other: &TokenEntry| other.is_same(entry) && other.credential != entry.credential;
    let until = auth::read(path)?.into_iter().filter(is_older).filter_map(|other| other.until).max();
    if let Some(until) = until {
        let until = humantime::format_rfc3339_seconds(until);
        let name = entry.holder.name();
        show::note(&format!("note: the previous token of {name} is valid until {until}; --revoke-now revokes it"));
    }
    show::print(&format!("{}\n", entry.token().unwrap_or_default()))
}

fn parse_ttl(text: &str) -> std::result::Result<Duration, String> {
    let ttl = humantime::parse_duration(text).map_err(|_| "write for instance 30m, 12h or 90d".to_owned())?;
    if ttl < Duration::from_secs(1) { Err("use at least 1s".to_owned()) } else { Ok(ttl) }
}

fn parse_address(text: &str) -> std::result::Result<String, String> {
    if text.split(',').all(is_address) {
        Ok(text.to_owned())
    } else {
        Err("write HOST:PORT, such as head:7434".to_owned())
    }
}

/// Where the agents of other machines reach the server of this state directory.
fn agents_address(state_dir: &Path) -> Result<String> {
    let running = discovery::server_file(state_dir)?.and_then(|text| serde_json::from_str::<ServerFile>(&text).ok());
    let Some(running) = running else {
        let what = format!("no running server was found in the state directory {}", state_dir.display());
        return Err(Failure::new(what, "start it, or name its address for agents with --address HOST:PORT"));
    };
    let remedy = "start the server with --listen-agents 0.0.0.0:7434; or name an address that leads there with --address HOST:PORT";
    let addresses = running.agents_addresses.iter().chain(&running.agents);
    let addresses: Vec<SocketAddr> = addresses.filter_map(|address| address.parse().ok()).collect();
    let of_others = addresses.iter().find(|address| !is_local(**address));
    match of_others.or(addresses.first()).copied() {
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
