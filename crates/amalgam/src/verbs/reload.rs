//! `amalgam reload`

use crate::connection::Connection;
use crate::failure::Result;
use crate::{discovery, show};
use amalgam_daemon::api::{ConfigChange, Reloaded};
use clap::Args;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::process::ExitCode;

#[derive(Args)]
#[command(
    after_help = "Queues, accounts, isolation, kept_jobs, kept_tasks and kept_for take effect at once. What else has changed is listed, and needs a restart of the server. A file
that is invalid changes nothing. SIGHUP has the same effect, and writes the changes to the server's log."
)]
pub struct ReloadArgs {
    /// Print the interface's JSON
    #[arg(long)]
    json: bool,
}

pub fn execute(args: &ReloadArgs, connection: &Connection) -> Result<ExitCode> {
    let reloaded: Reloaded = discovery::connect(connection)?.post("/v1/reload", &())?;
    if args.json {
        show::json(&reloaded)?
    } else {
        show::print(&describe(&reloaded.changes))?
    }
    Ok(ExitCode::SUCCESS)
}

fn describe(changes: &[ConfigChange]) -> String {
    if changes.is_empty() {
        return "nothing has changed\n".to_owned();
    }
    let mut text = String::new();
    for ConfigChange { key, before, after, needs_restart } in changes {
        let later = if *needs_restart { ": needs a restart" } else { "" };
        let _ =
            writeln!(text, "{} {} -> {}{later}", show::visible(key), shown(before.as_deref()), shown(after.as_deref()));
    }
    text
}

fn shown(value: Option<&str>) -> Cow<'_, str> {
    value.map_or("(not set)".into(), show::visible)
}
