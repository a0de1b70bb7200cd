//! `amalgam usage`: resources that queues and jobs use, donated and received.

use crate::client::{Jobs, Query};
use crate::connection::Connection;
use crate::failure::Result;
use crate::selectors::ACTIVE;
use crate::selectors::{Selector, each, resolve};
use crate::{discovery, show};
use amalgam_core::why::counted;
use amalgam_daemon::api::{JobSummary, QueueSummary};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::process::ExitCode;

#[derive(Args)]
#[command(
    after_help = "Under `carbyne`, GAVE is resources within a job's share that it left to others because its tasks could \
wait; RECEIVED is resources beyond its share that no other job needed; both are resources times seconds. CPU and MEMORY are \
totals of all ended attempts: the sum of their CPU time, and the largest memory of one attempt. TURNAROUND is since its submission (TIME of `list` since its start). ALONE is what it would take with its share to itself, as \
estimated, and ENDED compares with that.

Examples:
  amalgam usage               the queues, and the newest jobs
  amalgam usage 7,9           two jobs"
)]
pub struct UsageArgs {
    /// Only these jobs, and no queues: 7, 1-5, 3,7, last or all
    #[arg(value_name = "JOBS", value_parser = Selector::parse)]
    jobs: Vec<Selector>,
    /// Maximum number of jobs; the newest are listed
    #[arg(short = 'n', long, default_value = "20", conflicts_with = "jobs")]
    limit: NonZeroUsize,
    /// Print the interface's JSON: the queues and the jobs
    #[arg(long)]
    json: bool,
}

/// As `--json` prints it.
#[derive(Serialize)]
struct Usage {
    queues: Vec<QueueSummary>,
    jobs: Vec<JobSummary>,
}

pub fn execute(args: UsageArgs, connection: &Connection) -> Result<ExitCode> {
    let client = discovery::connect(connection)?;
    let mut is_whole = true;
    let usage = if args.jobs.is_empty() {
        let queues = client.get("/v1/queues")?;
        let Jobs { jobs, has_more, silent } = client.jobs("/v1/jobs", &Query::default(), Some(args.limit))?;
        show::failures(&silent);
        is_whole = silent.is_empty();
        if has_more {
            show::note(&format!(
                "note: only the newest {} are shown; --limit shows more",
                counted(jobs.len() as u64, "job")
            ));
        }
        Usage { queues, jobs }
    } else {
        let jobs = resolve(&client, &args.jobs, ACTIVE)?;
        Usage { queues: Vec::new(), jobs: each(&jobs, |id| Ok(client.job(id)?.summary))? }
    };
    let code = if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if args.json {
        show::json(&usage)?;
        return Ok(code);
    }
    let jobs = match usage.jobs.is_empty() {
        false => job_table(&usage.jobs),
        true if args.jobs.is_empty() => "no jobs\n".to_owned(),
        true => "you have no jobs that have not ended\n".to_owned(),
    };
    let queues = (!usage.queues.is_empty()).then(|| queue_table(&usage.queues));
    show::print(&queues.into_iter().chain([jobs]).collect::<Vec<_>>().join("\n"))?;
    Ok(code)
}

fn queue_table(queues: &[QueueSummary]) -> String {
    // Where jobs do not yield, nothing is ever donated.
    let seconds = |amounts: &BTreeMap<String, f64>| match amounts.is_empty() {
        true => "-".to_owned(),
        false => show::resource_seconds(amounts),
    };
    let row = |queue: &QueueSummary| {
        vec![
            queue.name.clone(),
            show::percent(queue.dominant_share),
            show::amounts(&queue.used),
            seconds(&queue.given),
            seconds(&queue.received),
        ]
    };
    show::table(&["QUEUE", "SHARE", "USED", "GAVE", "RECEIVED"], &queues.iter().map(row).collect::<Vec<_>>())
}

fn job_table(jobs: &[JobSummary]) -> String {
    let row = |job: &JobSummary| {
        let exchange = job.exchange.as_ref();
        let dash = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
        let alone = exchange.and_then(|exchange| exchange.alone_end);
        vec![
            job.id.to_string(),
            job.name.clone(),
            job.queue.clone(),
            job.state.to_string(),
            show::seconds(job.cpu_seconds),
            show::bytes(job.max_memory_bytes),
            dash(exchange.map(|exchange| show::resource_seconds(&exchange.given))),
            dash(exchange.map(|exchange| show::resource_seconds(&exchange.received))),
            show::between(job.submitted_at, job.ended_at),
            dash(alone.map(|end| show::between(job.submitted_at, Some(end)))),
            dash(show::against_alone(job)),
        ]
    };
    let headings =
        ["ID", "NAME", "QUEUE", "STATE", "CPU", "MEMORY", "GAVE", "RECEIVED", "TURNAROUND", "ALONE", "ENDED"];
    show::table(&headings, &jobs.iter().map(row).collect::<Vec<_>>())
}
