//! `amalgam queue`

use crate::client::encoded;
use crate::connection::Connection;
use crate::failure::Result;
use crate::{discovery, show};
use amalgam_daemon::api::{QueueRequest, QueueSummary};
use clap::{Args, Subcommand};
use std::process::ExitCode;

#[derive(Args)]
pub struct QueueArgs {
    #[command(subcommand)]
    verb: QueueVerb,
}

#[derive(Subcommand)]
enum QueueVerb {
    /// List the queues, their shares and what they use
    List {
        /// Print only names
        #[arg(short, long)]
        quiet: bool,
        /// Print the interface's JSON
        #[arg(long, conflicts_with = "quiet")]
        json: bool,
    },
    /// Set limits of a queue while the server runs. They outlive restarts, and precede the configuration until they are reset
    Set {
        /// A queue's name
        queue: String,
        /// weight, guaranteed, maximum, user_limit, max_running_jobs or default_timeout, with a value as in the configuration;
        /// `none` removes one of the last two
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = pair)]
        values: Vec<(String, String)>,
    },
    /// Forget what was set of a queue: the configuration applies again
    Reset {
        /// A queue's name
        queue: String,
    },
}

fn pair(text: &str) -> std::result::Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not KEY=VALUE, such as weight=2"))?;
    Ok((key.to_owned(), value.to_owned()))
}

pub fn execute(args: QueueArgs, connection: &Connection) -> Result<ExitCode> {
    let (quiet, json) = match args.verb {
        QueueVerb::List { quiet, json } => (quiet, json),
        QueueVerb::Set { queue, values } => {
            let request = QueueRequest { set: values.into_iter().collect(), reset: false };
            return change(&queue, &request, connection);
        }
        QueueVerb::Reset { queue } => {
            let request = QueueRequest { reset: true, ..QueueRequest::default() };
            return change(&queue, &request, connection);
        }
    };
    let queues: Vec<QueueSummary> = discovery::connect(connection)?.get("/v1/queues")?;
    match (json, quiet) {
        (true, _) => show::json(&queues)?,
        (_, true) => show::print(&queues.iter().map(|queue| show::visible(&queue.name) + "\n").collect::<String>())?,
        _ => show::print(&table(&queues))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes a queue and prints it.
fn change(queue: &str, request: &QueueRequest, connection: &Connection) -> Result<ExitCode> {
    let path = format!("/v1/queues/{}", encoded(queue));
    let queue: QueueSummary = discovery::connect(connection)?.post(&path, request)?;
    show::print(&table(&[queue]))?;
    Ok(ExitCode::SUCCESS)
}

pub fn table(queues: &[QueueSummary]) -> String {
    let row = |queue: &QueueSummary| {
        vec![
            queue.name.clone(),
            show::number(queue.weight),
            show::percent(queue.guaranteed),
            show::percent(queue.maximum),
            show::percent(queue.user_limit),
            show::percent(queue.dominant_share),
            format!("{}+{}", queue.running_jobs, queue.pending_jobs),
            format!("{}+{}", queue.running_tasks, queue.pending_tasks),
            queue.attempts.opportunistic.to_string(),
            queue.attempts.preempted.to_string(),
            queue.attempts.shed.to_string(),
            show::amounts(&queue.used),
            queue.max_running_jobs.map(|most| most.to_string()).unwrap_or_default(),
            queue.default_timeout_seconds.map(show::seconds).unwrap_or_default(),
            queue.set.join(" "),
            if queue.closed { "takes no jobs".to_owned() } else { String::new() },
        ]
    };
    let headings = [
        "QUEUE",
        "WEIGHT",
        "GUARANTEED",
        "MAXIMUM",
        "PER USER",
        "SHARE",
        "JOBS",
        "TASKS",
        "OPPORTUNISTIC",
        "PREEMPTED",
        "SHED",
        "USED",
        "MOST JOBS",
        "TIMEOUT",
        "SET",
        "STATE",
    ];
    show::table_of_used(
        &headings,
        &queues.iter().map(row).collect::<Vec<_>>(),
        &["MOST JOBS", "TIMEOUT", "SET", "STATE"],
    )
}
