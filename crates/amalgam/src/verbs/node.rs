//! `amalgam node`

use crate::client::Client;
use crate::connection::Connection;
use crate::failure::{Failure, Kind, Result};
use crate::{discovery, show};
use amalgam_core::vocabulary::TAINT;
use amalgam_daemon::api::{DrainRequest, LabelRequest, NodeDetail, NodeDoubt, NodeSummary, RunningAttempt};
use amalgam_workload::quantities;
use clap::{Args, Subcommand};
use std::fmt::Write as _;
use std::process::ExitCode;

#[derive(Args)]
pub struct NodeArgs {
    #[command(subcommand)]
    verb: NodeVerb,
}

#[derive(Subcommand)]
enum NodeVerb {
    /// List the nodes
    List {
        /// Print only ids
        #[arg(short, long)]
        quiet: bool,
        /// Print the interface's JSON
        #[arg(long, conflicts_with = "quiet")]
        json: bool,
    },
    /// Show a node: its resources, its attributes, and how its tasks are held to their limits
    Info {
        /// A node's id or name
        node: String,
        /// Print the interface's JSON
        #[arg(long)]
        json: bool,
    },
    /// Give a node no new tasks; running ones continue
    Drain {
        /// Ids or names of nodes
        #[arg(required = true, value_name = "NODES")]
        nodes: Vec<String>,
    },
    /// Remove a node that is lost, or drained and not connected, and revoke the token of its agent. If it returns, it joins as a new one
    Remove {
        /// A node's id or name
        node: String,
    },
    /// Set labels of a node: attributes beside those that its agent reports, or in place of them. They outlive restarts
    Label {
        /// A node's id or name
        node: String,
        /// `key=value` sets a label, `key-` removes it
        #[arg(required = true, value_name = "KEY=VALUE | KEY-", value_parser = Label::parse)]
        labels: Vec<Label>,
    },
    /// Keep tasks away from a node, except those whose stage tolerates its taints. Tasks that run there go on. Taints outlive restarts
    Taint {
        /// A node's id or name
        node: String,
        /// `name` or `name=reason` adds a taint, `name-` removes it
        #[arg(required = true, value_name = "NAME[=REASON] | NAME-", value_parser = parse_taint)]
        taints: Vec<Label>,
    },
    /// Take a drained or paused node back into use
    Undrain {
        /// Ids or names of nodes
        #[arg(required = true, value_name = "NODES")]
        nodes: Vec<String>,
    },
}

#[derive(Clone)]
enum Label {
    Set(String, String),
    Remove(String),
}

impl Label {
    fn parse(text: &str) -> std::result::Result<Label, String> {
        match (text.split_once('='), text.strip_suffix('-')) {
            (Some((name, value)), _) => Ok(Label::Set(name.to_owned(), value.to_owned())),
            (None, Some(name)) => Ok(Label::Remove(name.to_owned())),
            (None, None) => Err(format!("`{text}` is neither `key=value` nor `key-`")),
        }
    }
}

/// A taint is a label with a special name.
fn parse_taint(text: &str) -> std::result::Result<Label, String> {
    let label = match (text.split_once('='), text.strip_suffix('-')) {
        (Some((name, reason)), _) => Label::Set(name.to_owned(), reason.to_owned()),
        (None, Some(name)) => Label::Remove(name.to_owned()),
        (None, None) => Label::Set(text.to_owned(), "yes".to_owned()),
    };
    let (Label::Set(name, _) | Label::Remove(name)) = &label;
    let attribute = quantities::parse_taint(name).map_err(|wrong| wrong.to_string())?.attribute;
    Ok(match label {
        Label::Set(_, reason) => Label::Set(attribute, reason),
        Label::Remove(_) => Label::Remove(attribute),
    })
}

pub fn execute(args: NodeArgs, connection: &Connection) -> Result<ExitCode> {
    let client = discovery::connect(connection)?;
    match args.verb {
        NodeVerb::List { quiet, json } => {
            let nodes: Vec<NodeSummary> = client.get("/v1/nodes")?;
            match (json, quiet) {
                (true, _) => show::json(&nodes)?,
                (_, true) => show::print(&nodes.iter().map(|node| format!("{}\n", node.id)).collect::<String>())?,
                _ => show::print(&table(&nodes))?,
            }
        }
        NodeVerb::Info { node, json } => {
            let detail: NodeDetail = client.get(&format!("/v1/nodes/{}", find(&client, &node)?))?;
            if json { show::json(&detail)? } else { show::print(&describe(&detail))? }
        }
        NodeVerb::Label { node, labels } | NodeVerb::Taint { node, taints: labels } => {
            let mut request = LabelRequest::default();
            for label in labels {
                match label {
                    Label::Set(name, value) => drop(request.set.insert(name, value)),
                    Label::Remove(name) => request.remove.push(name),
                }
            }
            let id = find(&client, &node)?;
            let detail: NodeDetail = client.post(&format!("/v1/nodes/{id}/labels"), &request)?;
            let labels =
                detail.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ");
            let labels = if labels.is_empty() { "no labels".to_owned() } else { labels };
            show::print(&format!("node {}: {}\n", show::visible(&detail.summary.name), show::visible(&labels)))?;
        }
        NodeVerb::Drain { nodes } => return drain_each(&client, &nodes, true),
        NodeVerb::Remove { node } => {
            let id = find(&client, &node)?;
            client.delete(&format!("/v1/nodes/{id}"))?;
            show::print(&format!("node {node} removed\n"))?;
        }
        NodeVerb::Undrain { nodes } => return drain_each(&client, &nodes, false),
    }
    Ok(ExitCode::SUCCESS)
}

/// Acts on all nodes that allow it, then prints the failures.
fn drain_each(client: &Client, nodes: &[String], is_drained: bool) -> Result<ExitCode> {
    let mut failures = Vec::new();
    for node in nodes {
        match drain(client, node, is_drained) {
            Err(failure) if matches!(failure.kind, Kind::NotFound | Kind::Refused) => failures.push(failure),
            done => done?,
        }
    }
    show::failures(&failures);
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn drain(client: &Client, node: &str, drain: bool) -> Result<()> {
    let id = find(client, node)?;
    client.post_quietly(&format!("/v1/nodes/{id}/drain"), &DrainRequest { drain })?;
    let node: NodeDetail = client.get(&format!("/v1/nodes/{id}"))?;
    show::print(&format!(
        "node {} {}\n",
        show::visible(&node.summary.name),
        if drain { "is draining" } else { "is in use" }
    ))
}

/// Finds a node by its number, with or without its `n`, or by its name.
fn find(client: &Client, wanted: &str) -> Result<u32> {
    if let Ok(id) = wanted.strip_prefix('n').unwrap_or(wanted).parse() {
        return Ok(id);
    }
    let nodes: Vec<NodeSummary> = client.get("/v1/nodes")?;
    let names = || nodes.iter().map(|node| node.name.as_str());
    let none = || {
        let near = amalgam_workload::closest(wanted, names());
        let remedy =
            near.map_or_else(|| "`amalgam node list` shows them".to_owned(), |near| format!("did you mean `{near}`?"));
        Failure::new(format!("node `{wanted}` not found"), remedy)
    };
    nodes.iter().find(|node| node.name == wanted).map(|node| node.id).ok_or_else(none)
}

pub fn table(nodes: &[NodeSummary]) -> String {
    let row = |node: &NodeSummary| {
        let taint =
            |(name, value): (&String, &String)| if value == "yes" { name.clone() } else { format!("{name}={value}") };
        vec![
            node.cluster.map(|cluster| cluster.to_string()).unwrap_or_default(),
            node.id.to_string(),
            node.name.clone(),
            match &node.doubt {
                Some(doubt) if doubt.failures == 1 => format!("{} (failed once)", node.state),
                Some(doubt) if doubt.failures > 0 => format!("{} (failed {} times)", node.state, doubt.failures),
                Some(_) => format!("{} (outages)", node.state),
                None => node.state.to_string(),
            },
            node.running.to_string(),
            match node.opportunistic_waiting {
                0 => node.opportunistic.to_string(),
                waiting => format!("{} ({waiting} waiting)", node.opportunistic),
            },
            show::amounts(&node.free),
            show::amounts(&node.capacity),
            heard(node),
            node.taints.iter().map(taint).collect::<Vec<_>>().join(" "),
        ]
    };
    let headings =
        ["CLUSTER", "ID", "NAME", "STATE", "RUNNING", "OPPORTUNISTIC", "FREE", "CAPACITY", "HEARD", "TAINTS"];
    show::table_of_used(&headings, &nodes.iter().map(row).collect::<Vec<_>>(), &["CLUSTER", "TAINTS"])
}

fn heard(node: &NodeSummary) -> String {
    match (node.last_heard_seconds, node.unheard_since) {
        (Some(seconds), _) => format!("{} ago", show::seconds(seconds)),
        (None, Some(start)) => format!("not since the server started at {}", show::time(start)),
        (None, None) => "never".to_owned(),
    }
}

fn in_words(doubt: &NodeDoubt) -> String {
    let mut text = match doubt.failures {
        0 => "its rack had several outages in a row".to_owned(),
        1 => format!("an attempt failed through the node {} ago", show::seconds(doubt.since_seconds)),
        many => format!("failed {many} times in the last {}", show::seconds(doubt.since_seconds)),
    };
    let _ = write!(text, "; {:.0} of 100 attempts there are expected to succeed", doubt.success * 100.0);
    if doubt.avoided {
        text += "; tasks are sent elsewhere, if they do not have to wait for much longer there";
    }
    text
}

fn describe(node: &NodeDetail) -> String {
    let mut text = table(std::slice::from_ref(&node.summary));
    if let (Some(why), Some(left)) = (&node.paused, node.pause_left_seconds.map(show::seconds)) {
        let _ = writeln!(
            text,
            "\npaused       it gets no tasks for another {left}, since it could not launch one: {}",
            show::visible(why)
        );
        let _ = writeln!(
            text,
            "             `amalgam node undrain {}` takes it into use before that",
            show::visible(&node.summary.name)
        );
    }
    if let Some(doubt) = &node.summary.doubt {
        let _ = writeln!(text, "\nfailing      {}", in_words(doubt));
    }
    if let Some(times) = node.summary.slowness {
        let _ = writeln!(
            text,
            "\nslow         tasks take {times:.1} times as long here as on other nodes until they succeed; they are placed here if \
             they do not end sooner elsewhere"
        );
    }
    let program = match &node.summary.program {
        Some(program) => format!("amalgam {}", show::visible(program)),
        None if node.summary.cluster.is_some() => {
            "not known here: the master of its cluster knows it, unless the agent is of an older version".to_owned()
        }
        None => "not reported: the agent may be of an older version".to_owned(),
    };
    let _ = writeln!(text, "\nprogram      {program}");
    let _ = writeln!(text, "enforcement  {}", show::visible(&node.enforcement));
    for note in &node.notes {
        let _ = writeln!(text, "             {}", show::visible(note));
    }
    for (name, value) in &node.attributes {
        let (kind, name) = match name.strip_prefix(TAINT) {
            Some(taint) => ("taint    ", taint),
            None if node.labels.contains_key(name) => ("label    ", name.as_str()),
            None => ("attribute", name.as_str()),
        };
        let _ = writeln!(text, "{kind}    {}", show::visible(&format!("{name}={value}")));
    }
    if node.summary.opportunistic > 0 {
        let held = show::amounts(&node.summary.opportunistic_used);
        let _ = writeln!(text, "in use       {held} by opportunistic attempts, beside what is booked");
    }
    for attempt in &node.attempts {
        let age = show::seconds(attempt.running_seconds);
        let (RunningAttempt { attempt, task, guarantee, .. }, waiting) = (attempt, attempt.waiting);
        let _ = match waiting {
            true => writeln!(text, "waiting      {task} as {attempt}, {guarantee}"),
            false => writeln!(text, "running      {task} as {attempt} for {age}, {guarantee}"),
        };
    }
    text
}
