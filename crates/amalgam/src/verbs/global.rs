//! `amalgam global`

use crate::cluster::{self, JournalArgs, Numbered, ServerSettings};
use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::joining::global::{Identities, with_file, without_file};
use crate::{discovery, joining, show};
use amalgam_cli::log::LogArgs;
use amalgam_cli::process::user;
use amalgam_core::why::counted;
use amalgam_daemon::config::Config;
use amalgam_daemon::global::{self, GlobalOptions};
use amalgam_daemon::private::make_private_dir;
use clap::Args;
use std::path::Path;
use std::process::ExitCode;

#[derive(Args)]
#[command(
    after_help = "A federation is several clusters under several global masters. Every server has the same [federation] and
[[queue]] in its configuration, and a --number of its own:

  [federation]
  masters = [\"127.0.0.1:7434\", \"127.0.0.1:7534\"]    # where each cluster's master listens for agents
  globals = [\"127.0.0.1:7633\", \"127.0.0.1:7634\"]    # where each global master listens for clients

  amalgam server --config federation.toml --number 0 --state-dir /var/lib/amalgam/cluster-0
  amalgam server --config federation.toml --number 1 --state-dir /var/lib/amalgam/cluster-1 --listen 127.0.0.1:7533
  amalgam token join --role global --state-dir ...   # at each cluster's server; prints a string
  amalgam global --number 0 --join STRING0 --join STRING1 --state-dir /var/lib/amalgam/global-0
  amalgam submit --server 127.0.0.1:7633 -- ./step

The servers describe the federation to a global master that joins with strings, so it needs no file. Its number is the place of its
address in `globals`. Later starts need neither strings nor number. A --config with [federation] replaces what the servers describe.

It accepts the access tokens of the users of the first cluster that it has joined, and its own. Instead of strings, all processes may
have the same configuration and copies of one tokens.toml in their state directories.

Its jobs and their running tasks outlive it: it takes them over after a restart. See `amalgam dev --clusters`
for a whole federation on one machine."
)]
pub struct GlobalArgs {
    #[command(flatten)]
    settings: ServerSettings,
    #[command(flatten)]
    numbered: Numbered,
    /// Join the master of a cluster for the first time with a string of `amalgam token join --role global`; may be repeated, one for
    /// each cluster. Later starts use the certificates that they gave, in the state directory, with or without the strings
    #[arg(
        long,
        value_name = "STRING",
        env = "AMALGAM_JOIN",
        hide_env_values = true,
        value_delimiter = ' ',
        help_heading = "Connection"
    )]
    join: Vec<String>,
    #[command(flatten)]
    journal: JournalArgs,
    #[command(flatten)]
    log: LogArgs,
}

pub fn execute(args: GlobalArgs, connection: &Connection) -> Result<ExitCode> {
    args.log.start()?;
    let state_dir = discovery::state_dir(connection)?;
    let mut config = args.settings.read_any()?;
    let joined = joined(&args.join, args.numbered, &mut config, &state_dir)?;
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
        joined,
        journal: args.journal.place(),
    };
    let server = global::start(options)?;
    super::server::report_torn(&server);
    let (number, clusters) = of.unwrap_or_default();
    // A service manager may stop the process as soon as it is ready.
    let signals = cluster::stop_signals()?;
    show::announce(&format!(
        "ready: {}, global master {} of {}, preset {preset}, state in {}",
        server.urls().join(", "),
        number.unwrap_or_default(),
        counted(clusters.into(), "cluster"),
        state_dir.display()
    ));
    cluster::until_stopped(signals);
    server.stop();
    Ok(ExitCode::SUCCESS)
}

/// The certificates for the clusters that it has joined. A file with `[federation]` is used as it is; without one, the
/// configuration takes over what the masters describe.
fn joined(strings: &[String], numbered: Numbered, config: &mut Config, state_dir: &Path) -> Result<Identities> {
    // A variable of a service may be empty.
    let strings = strings.iter().filter(|text| !text.is_empty());
    let strings = strings.filter_map(|text| joining::parse(Some(text)).transpose());
    let strings = strings.collect::<Result<Vec<_>>>()?;
    if !strings.is_empty() {
        make_private_dir(state_dir).map_err(|error| {
            let what = format!("cannot use the state directory {}: {error}", state_dir.display());
            Failure::new(what, "name another --state-dir")
        })?;
    }
    if config.federation.is_some() {
        numbered.apply(config)?;
        let Some(federation) = &config.federation else { return Ok(Identities::new()) };
        let Ok(number) = federation.global() else { return Ok(Identities::new()) };
        return with_file(&strings, state_dir, number.0, federation.size.clusters);
    }
    let Some((identities, described)) = without_file(&strings, state_dir, numbered.number)? else {
        let remedy = "join each cluster with a string of `amalgam token join --role global` at its server (--number N --join STRING), \
                      or write [federation] into --config";
        return Err(Failure::usage("this global master has joined no cluster, and no file has [federation]", remedy));
    };
    config.adopt(described).map_err(|key| {
        let what = format!("the configuration has {key} and no [federation]");
        Failure::usage(what, format!("leave {key} out, since the servers describe it; or write [federation], too"))
    })?;
    Ok(identities)
}
