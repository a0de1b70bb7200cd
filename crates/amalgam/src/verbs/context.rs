//! `amalgam context`: lists and chooses contexts.

use crate::connection::Connection;
use crate::contexts::{Context, Contexts, NO_CONTEXT, Store};
use crate::discovery::{self, Choice};
use crate::failure::{Failure, Result};
use crate::{environment, show};
use amalgam_daemon::authority::Trusted;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

#[derive(Args)]
pub struct ContextArgs {
    #[command(subcommand)]
    verb: ContextVerb,
}

#[derive(Subcommand)]
enum ContextVerb {
    /// List the contexts; `*` marks the current one
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a context the current one; `-` stands for none, so that the server of this machine is used
    Use {
        #[arg(value_name = "CONTEXT", allow_hyphen_values = true)]
        name: String,
    },
    /// Show a context and the authorities that it trusts, without its token
    Show {
        /// The context [default: the one that is used now]
        #[arg(value_name = "CONTEXT")]
        name: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a context; the same as `amalgam logout`
    Remove {
        #[arg(value_name = "CONTEXT")]
        name: String,
    },
}

/// A context without its token.
#[derive(Serialize)]
struct Shown {
    name: String,
    server: String,
    current: bool,
    has_token: bool,
    authorities: Vec<Authority>,
    /// When the server sent them.
    authorities_at: Option<String>,
}

#[derive(Serialize)]
struct Authority {
    name: String,
    /// SHA-256 of the certificate.
    fingerprint: String,
}

impl Shown {
    fn of(context: &Context, contexts: &Contexts) -> Shown {
        let pem = context.authorities.as_deref().unwrap_or_default();
        let authorities = Trusted::read(pem.as_bytes()).unwrap_or_default();
        let authority = |trusted: Trusted| Authority { name: trusted.name, fingerprint: trusted.fingerprint };
        // A time that the calendar has not is left out.
        let at = context.authorities_at.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        Shown {
            name: context.name.clone(),
            server: context.server.clone(),
            current: contexts.current().is_some_and(|current| current.name == context.name),
            has_token: context.token.is_some(),
            authorities: authorities.into_iter().map(authority).collect(),
            authorities_at: at.filter(|_| !pem.is_empty()).map(|at| humantime::format_rfc3339_seconds(at).to_string()),
        }
    }
}

pub fn execute(ContextArgs { verb }: ContextArgs, connection: &Connection) -> Result<ExitCode> {
    match verb {
        ContextVerb::List { json } => list(json, connection),
        ContextVerb::Use { name } => {
            let store = Store::of_user()?;
            store.change(|contexts| {
                let chosen = match name.as_str() {
                    NO_CONTEXT => None,
                    name => Some(contexts.named(name, "the argument")?.name.clone()),
                };
                contexts.choose(chosen.as_deref());
                Ok(())
            })?;
            note_overrides(connection)?;
            Ok(ExitCode::SUCCESS)
        }
        ContextVerb::Show { name, json } => show(name.as_deref(), json, connection),
        ContextVerb::Remove { name } => remove(Some(&name), "the argument"),
    }
}

fn list(json: bool, connection: &Connection) -> Result<ExitCode> {
    let contexts = Store::of_user()?.read()?;
    let shown: Vec<Shown> = contexts.list().iter().map(|context| Shown::of(context, &contexts)).collect();
    if json {
        show::json(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mark = |current: bool| if current { "*" } else { "" }.to_owned();
    let rows: Vec<Vec<String>> =
        shown.into_iter().map(|shown| vec![mark(shown.current), shown.name, shown.server]).collect();
    show::print(&show::table(&["", "NAME", "SERVER"], &rows))?;
    note_overrides(connection)?;
    Ok(ExitCode::SUCCESS)
}

fn show(name: Option<&str>, json: bool, connection: &Connection) -> Result<ExitCode> {
    let store = Store::of_user()?;
    let contexts = store.read()?;
    let context = match name {
        Some(name) => contexts.named(name, "the argument")?.clone(),
        None => match discovery::choice(connection)? {
            Choice::Context(context) => context,
            Choice::Server(server) => {
                let what = format!("no context is used: --server or AMALGAM_SERVER names {server}");
                return Err(Failure::new(what, "name a context; `amalgam context list` shows them"));
            }
            Choice::Machine => {
                let what = "no context is used, but the server of this machine or of its state directory";
                return Err(Failure::new(what, "name a context; `amalgam context list` shows them"));
            }
        },
    };
    let shown = Shown::of(&context, &contexts);
    if json {
        show::json(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    let token = if shown.has_token { "stored" } else { "none" };
    let mut text = format!("name         {}\nserver       {}\ntoken        {token}\n", shown.name, shown.server);
    for Authority { name, fingerprint } in &shown.authorities {
        text.push_str(&format!("authority    {name}, SHA-256 {fingerprint}\n"));
    }
    if let Some(at) = &shown.authorities_at {
        text.push_str(&format!("received     {at}\n"));
    }
    text.push_str(&format!("file         {}\n", store.path().display()));
    show::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Removes a context, by default the current one.
pub fn remove(name: Option<&str>, by: &str) -> Result<ExitCode> {
    let removed = Store::of_user()?.change(|contexts| {
        let removed = match name {
            Some(name) => contexts.named(name, by)?.clone(),
            None => contexts.current().cloned().ok_or_else(|| {
                Failure::usage("no context is current", "name one; `amalgam context list` shows them")
            })?,
        };
        contexts.remove(&removed.name);
        Ok(removed)
    })?;
    let still = match removed.token {
        Some(_) => "; its token stays valid until it expires or `amalgam token revoke` at the server",
        None => "",
    };
    show::note(&format!("removed the context `{}`{still}", removed.name));
    Ok(ExitCode::SUCCESS)
}

/// Says what is used instead of the current context.
pub fn note_overrides(connection: &Connection) -> Result<()> {
    let by = if environment::server()?.is_some() {
        "AMALGAM_SERVER names the server"
    } else if environment::context()?.is_some() {
        "AMALGAM_CONTEXT names the context"
    } else if connection.state_dir.is_some() {
        "--state-dir or AMALGAM_STATE names the server"
    } else {
        return Ok(());
    };
    show::note(&format!("note: {by} of further commands here, before the current context"));
    Ok(())
}
