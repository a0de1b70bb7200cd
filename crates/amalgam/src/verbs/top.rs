//! `amalgam top`: an overview of the cluster, updated repeatedly on a terminal.

use crate::client::{Client, Jobs, Query};
use crate::connection::Connection;
use crate::failure::Result;
use crate::selectors::ACTIVE;
use crate::{discovery, show};
use amalgam_core::why::counted;
use amalgam_daemon::api::{ClusterSummary, ClusterView, NodeSummary};
use clap::Args;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// The number of rows that fit on a screen.
const ROWS: Option<NonZeroUsize> = NonZeroUsize::new(20);

#[derive(Args)]
pub struct TopArgs {
    /// Seconds between updates on a terminal
    #[arg(short, long, default_value_t = 1.0)]
    interval: f64,
    /// Print one snapshot as the interface's JSON
    #[arg(long)]
    json: bool,
}

pub fn execute(args: TopArgs, connection: &Connection) -> Result<ExitCode> {
    let client = discovery::connect(connection)?;
    if args.json {
        show::json(&client.get::<ClusterSummary>("/v1/cluster")?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !io::stdout().is_terminal() {
        show::print(&picture(&client)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let pause = Duration::try_from_secs_f64(args.interval).unwrap_or(Duration::from_secs(1));
    loop {
        // Home, then each line with its old rest cleared, then everything below: no flicker.
        let screen = show::visible_lines(&picture(&client)?).replace('\n', "\x1b[K\n");
        show::print_raw(format!("\x1b[H{screen}\x1b[J").as_bytes())?;
        thread::sleep(pause.max(Duration::from_millis(100)));
    }
}

fn picture(client: &Client) -> Result<String> {
    let cluster: ClusterSummary = client.get("/v1/cluster")?;
    let nodes: Vec<NodeSummary> = client.get("/v1/nodes")?;
    let Jobs { jobs, has_more, silent } = client.jobs("/v1/jobs", &Query::default().with("state", ACTIVE), ROWS)?;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "amalgam {}  {}  up {}  {} of {} nodes",
        cluster.version,
        cluster.preset,
        show::seconds(cluster.uptime_seconds),
        cluster.nodes_up,
        cluster.nodes_total
    );
    text.push_str(&federation(&cluster));
    if !cluster.job_managers.is_empty() {
        let away =
            cluster.job_managers.iter().filter(|manager| !manager.connected).map(|manager| manager.number.to_string());
        let away: Vec<String> = away.collect();
        let which = if away.is_empty() { String::new() } else { format!(", not connected: {}", away.join(", ")) };
        let _ = writeln!(text, "processes of job managers: {}{which}", cluster.job_managers.len());
    }
    let capacity = show::amounts(&cluster.capacity);
    let _ = writeln!(text, "used {} of {capacity}{}", show::amounts(&cluster.used), opportunistic_use(&cluster));
    let _ = writeln!(
        text,
        "tasks: {} running, {} queued, {} waiting; {}/s",
        cluster.tasks.running,
        cluster.tasks.queued,
        cluster.tasks.waiting,
        show::number(cluster.tasks_per_second)
    );
    let attempts = show::attempts(&cluster.attempts);
    let _ = writeln!(text, "attempts: {}\n", if attempts.is_empty() { "none run" } else { &attempts });
    text.push_str(&super::queue::table(first(&cluster.queues)));
    text.push_str(&left_out(&cluster.queues, "queue", "queue list"));
    text.push('\n');
    text.push_str(&super::node::table(first(&nodes)));
    text.push_str(&left_out(&nodes, "node", "node list"));
    text.push('\n');
    text.push_str(&super::list::table(&jobs));
    if has_more {
        text.push_str("and more jobs: `amalgam list`\n");
    }
    silent.iter().for_each(|failure| text.push_str(&format!("{}\n", failure.what)));
    Ok(text)
}

fn first<T>(all: &[T]) -> &[T] {
    &all[..all.len().min(ROWS.map_or(0, NonZeroUsize::get))]
}

fn left_out<T>(all: &[T], what: &str, verb: &str) -> String {
    match all.len() - first(all).len() {
        0 => String::new(),
        more => format!("and {}: `amalgam {verb}`\n", counted(more as u64, &format!("more {what}"))),
    }
}

/// A global master's view of its clusters, and its age.
fn federation(cluster: &ClusterSummary) -> String {
    let place = match (cluster.global, cluster.cluster) {
        (Some(global), _) => format!("global master {global}"),
        (None, Some(own)) => return format!("cluster {own} of a federation\n"),
        (None, None) => return String::new(),
    };
    let view = |view: &ClusterView| {
        let age = view.told_seconds.map_or_else(|| "never".to_owned(), |age| format!("{} ago", show::seconds(age)));
        let away = if view.connected { "" } else { ", not connected" };
        format!("cluster {}: {} of {} nodes, heard {age}{away}", view.number, view.nodes_up, view.nodes_total)
    };
    let views: Vec<String> = cluster.clusters.iter().map(view).collect();
    format!("{place}; {}\n", views.join("; "))
}

/// Resources in use in addition to booked ones.
fn opportunistic_use(cluster: &ClusterSummary) -> String {
    match cluster.opportunistic_used.values().any(|amount| *amount > 0.0) {
        true => format!(", and {} opportunistically", show::amounts(&cluster.opportunistic_used)),
        false => String::new(),
    }
}
