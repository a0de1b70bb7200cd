//! `amalgam token`: works on the server's own file, which a running server reads again by itself.

use crate::arguments::Connection;
use crate::failure::{Failure, Result};
use crate::{discovery, show};
use amalgam_daemon::auth::{self, Tokens};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::process::ExitCode;

#[derive(Args)]
pub struct TokenArgs {
    #[command(subcommand)]
    verb: TokenVerb,
}

#[derive(Subcommand)]
enum TokenVerb {
    /// Make a token for a user and print it
    ///
    /// A token keeps users apart on the interface: without --admin its holder lists all jobs but reads and acts on their own only. It
    /// does not protect the state directory from their tasks: all tasks run as the user that the server and its agents
    /// run as, and can read and change whatever that user can, the tokens and the output of others' tasks included.
    Add {
        user: String,
        /// The user may act on everyone's jobs and drain nodes
        #[arg(long)]
        admin: bool,
    },
    /// List who has a token
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Serialize)]
struct Holder {
    user: String,
    admin: bool,
}

pub fn execute(args: TokenArgs, connection: &Connection) -> Result<ExitCode> {
    let path = discovery::state_dir(connection)?.join(Tokens::FILE);
    if !path.exists() {
        let remedy = "start the server once, or name its state directory with --state-dir";
        return Err(Failure::new(format!("there is no token file {}", path.display()), remedy));
    }
    match args.verb {
        TokenVerb::Add { user, admin } => {
            let entry = auth::add(&path, &user, admin)?;
            if !admin {
                show::note(&format!(
                    "warning: tasks of {user} will run as the daemon's own user and can read its state directory\n  \
                     help: give tokens only to people whom that user trusts; `amalgam token add --help` says more"
                ));
            }
            show::print(&format!("{}\n", entry.token))?;
        }
        TokenVerb::List { json } => {
            let entries = auth::read(&path)?;
            let holders: Vec<Holder> =
                entries.into_iter().map(|entry| Holder { user: entry.user, admin: entry.admin }).collect();
            if json {
                show::json(&holders)?;
            } else {
                let role = |holder: &Holder| if holder.admin { "administrator" } else { "user" }.to_owned();
                let rows: Vec<_> = holders.iter().map(|holder| vec![holder.user.clone(), role(holder)]).collect();
                show::print(&show::table(&["USER", "ROLE"], &rows))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
