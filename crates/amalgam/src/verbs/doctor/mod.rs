//! `amalgam doctor`

mod certificates;
mod contexts;
mod directories;
mod machine;
mod server;

use crate::cluster;
use crate::connection::Connection;
use crate::failure::Result;
use crate::{discovery, show};
use amalgam_daemon::api::ServerFile;
use amalgam_daemon::config::Config;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam doctor                                            # on any machine
  amalgam doctor --server https://head:7433                 # also whether this machine can use that server
  sudo amalgam doctor --state-dir /var/lib/amalgam --config /etc/amalgam/server.toml
  sudo amalgam doctor --role agent --work-dir /var/lib/amalgam-node
It changes nothing, except that it writes a small file into each directory and removes it again.
The exit code is 1 if there is a problem, and 0 if there are only warnings.")]
pub struct DoctorArgs {
    /// What this machine is used for; may be repeated [default: what its directories show]
    #[arg(long, value_name = "ROLE")]
    role: Vec<Role>,
    /// Configuration of the server, for its addresses
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Work directory of an agent [default: /var/lib/amalgam-node, if it exists]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    Server,
    Agent,
    Client,
}

/// Results are in the order of their severity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Ok,
    Warning,
    Problem,
}

/// One line of the table.
#[derive(Debug, Serialize)]
pub struct Check {
    check: &'static str,
    result: Outcome,
    found: String,
    /// What to do; empty if the result is ok.
    #[serde(skip_serializing_if = "String::is_empty")]
    remedy: String,
}

impl Check {
    pub fn ok(check: &'static str, found: impl Into<String>) -> Check {
        Check { check, result: Outcome::Ok, found: found.into(), remedy: String::new() }
    }

    pub fn warning(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { check, result: Outcome::Warning, found: found.into(), remedy: remedy.into() }
    }

    pub fn problem(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { check, result: Outcome::Problem, found: found.into(), remedy: remedy.into() }
    }
}

/// The machine that is examined.
pub struct Patient<'a> {
    roles: Vec<Role>,
    connection: &'a Connection,
    config: Config,
    state_dir: Option<PathBuf>,
    work_dir: Option<PathBuf>,
}

/// The packaged unit's work directory.
const WORK_DIR: &str = "/var/lib/amalgam-node";

pub fn execute(args: DoctorArgs, connection: &Connection) -> Result<ExitCode> {
    let state_dir = discovery::state_dir(connection).ok();
    let is_expected = connection.state_dir.is_some() || args.role.contains(&Role::Server);
    let expected = [state_dir.as_deref().filter(|_| is_expected), args.work_dir.as_deref()];
    let mut checks: Vec<Check> = expected.into_iter().flatten().filter_map(directories::missing).collect();
    let state_dir = state_dir.filter(|dir| dir.is_dir());
    let work_dir = Some(args.work_dir.unwrap_or_else(|| PathBuf::from(WORK_DIR))).filter(|dir| dir.is_dir());
    let config = cluster::configured(args.config.as_deref(), None)?;
    let roles = if args.role.is_empty() { found_roles(state_dir.as_deref(), work_dir.as_deref()) } else { args.role };
    let patient = Patient { roles, connection, config, state_dir, work_dir };
    checks.extend(machine::checks(&patient));
    checks.extend(directories::checks(&patient));
    checks.extend(certificates::checks(&patient));
    checks.extend(server::checks(&patient));
    checks.extend(contexts::checks());
    if args.json {
        show::json(&checks)?;
    } else {
        show::print(&report(&checks))?;
    }
    let worst = checks.iter().map(|check| check.result).max();
    Ok(if worst == Some(Outcome::Problem) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A server leaves its log in its state directory, and an agent its executor in its work directory.
fn found_roles(state_dir: Option<&Path>, work_dir: Option<&Path>) -> Vec<Role> {
    let is_server = state_dir.is_some_and(|dir| dir.join("log").is_dir() || dir.join(ServerFile::NAME).exists());
    let is_agent = work_dir.is_some_and(|dir| dir.join("executor").is_dir());
    let mut roles: Vec<Role> = [(is_server, Role::Server), (is_agent, Role::Agent)]
        .into_iter()
        .filter_map(|(is, role)| is.then_some(role))
        .collect();
    if roles.is_empty() {
        roles.push(Role::Client);
    }
    roles
}

impl Patient<'_> {
    pub fn is(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }
}

fn report(checks: &[Check]) -> String {
    let result = |check: &Check| match check.result {
        Outcome::Ok => "ok",
        Outcome::Warning => "warning",
        Outcome::Problem => "problem",
    };
    let row = |check: &Check| vec![check.check.to_owned(), result(check).to_owned(), check.found.clone()];
    let mut text = show::table(&["CHECK", "RESULT", "FOUND"], &checks.iter().map(row).collect::<Vec<_>>());
    for check in checks.iter().filter(|check| check.result != Outcome::Ok) {
        let found = show::visible(&check.found);
        text += &format!("\n{}: {}: {found}\n  help: {}\n", result(check), check.check, show::visible(&check.remedy));
    }
    text
}
