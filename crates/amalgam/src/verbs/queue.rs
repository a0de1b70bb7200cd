//! `amalgam queue`

use crate::connection::Connection;
use crate::failure::Result;
use crate::{discovery, show};
use amalgam_daemon::api::QueueSummary;
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
}

pub fn execute(args: QueueArgs, connection: &Connection) -> Result<ExitCode> {
    let QueueVerb::List { quiet, json } = args.verb;
    let queues: Vec<QueueSummary> = discovery::connect(connection)?.get("/v1/queues")?;
    match (json, quiet) {
        (true, _) => show::json(&queues)?,
        (_, true) => show::print(&queues.iter().map(|queue| show::visible(&queue.name) + "\n").collect::<String>())?,
        _ => show::print(&table(&queues))?,
    }
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
    ];
    show::table(&headings, &queues.iter().map(row).collect::<Vec<_>>())
}
