//! Why a job waits: what prevented a decision, as a value that can be stored and described.

use crate::protocol::Rule;
use crate::vocabulary::resources::{CPU, GPU, Thousandths};
use crate::vocabulary::{ClosedReason, Constraint, Duration, HostId, JobId, Kinds, NodeId, Resources};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Why {
    /// A user holds it.
    Held,
    /// It waits for other jobs to succeed.
    AfterJobs { jobs: Vec<JobId> },
    /// It waits for other jobs to end, with any outcome.
    AfterEnds { jobs: Vec<JobId> },
    /// Its queue runs as many jobs as it may.
    QueueJobs { queue: String, limit: u32 },
    /// No node has joined, or none is open; with the reasons of the first nodes.
    NoNode { known: u32, closed_reason: Vec<(NodeId, ClosedReason)> },
    /// No node meets all of these.
    Constraints { unmet: Vec<Constraint> },
    /// No node is large enough even when empty; `closest` lacks the least.
    TooLarge { closest: NodeId, short: Resources },
    /// Nodes are large enough but occupied; `closest` has the most room.
    Occupied { closest: NodeId, short: Resources },
    /// Only nodes that take no work are large enough; of these, `closest` has the most room.
    Closed { closest: NodeId, closed_reason: ClosedReason },
    /// The node is reserved for a job that has waited longer.
    Reserved { node: NodeId, job: JobId },
    /// The queue is at its maximum share of this kind of resource.
    QueueLimit { queue: String, kind: usize, used: u64, limit: u64, requested: u64 },
    /// The user is at the limit of one user's share in this queue.
    UserLimit { queue: String, kind: usize, used: u64, limit: u64, requested: u64 },
    /// Other jobs are scheduled first.
    Ahead { jobs: u32, first: JobId, rule: Rule },
    /// It is decided at the next heartbeat.
    NextHeartbeat,
    /// It waits for stages to succeed.
    AfterStages { stages: Vec<String> },
    /// The job is at its fair share, in millionths of the cluster.
    FairShare { used: u64, most: u64 },
    /// There is room, but it still waits for room near its input.
    NearInput,
    /// These tasks were sent to nodes' queues and have not started there.
    AtNodes { tasks: u64 },
    /// The job's opportunistic tasks at nodes are at their limit, which depends on the number of guaranteed ones if
    /// `beside` is given.
    Quota { launched: u64, most: u64, beside: Option<u64> },
    /// How much of this kind of resource the job's guaranteed tasks hold and may hold now, and the same for its
    /// opportunistic tasks.
    Allowance { kind: usize, guaranteed: Used, opportunistic: Used },
    /// These tasks of the stage can start up to `left` later without delaying the job's end: other jobs may use the
    /// room.
    CanWait { stage: String, tasks: u32, left: Duration },
    /// Its manager is in this job host, which is not connected.
    ManagerAway { host: HostId },
    /// These tasks start together, but nodes have room for only `rooms` now.
    Gang { tasks: u64, rooms: u64 },
    /// A user holds these waiting tasks of the stage.
    TasksHeld { stage: String, tasks: u32 },
    /// `running` tasks of the stage run or are at nodes, and no more may at once.
    AtOnce { stage: String, most: u32, running: u32 },
    /// The task has failed and is retried after `left`; `others` tasks wait for the same.
    TriedAgain { task: String, left: Duration, failures: u32, others: u64 },
    /// These tasks of a gang are in place and wait for the others.
    GangGathers { stage: String, in_place: u32, tasks: u32 },
    /// This many nodes are reserved for it: for a gang that has waited longest.
    NodesReserved { nodes: u32 },
    /// Only slow nodes have room, such as this one, where tasks take this many times as long, in thousandths: it is expected to end
    /// sooner elsewhere, later.
    SlowNode { node: NodeId, times: u32 },
    /// The node is reserved by another global master.
    ReservedElsewhere { node: NodeId },
}

/// The used and the allowed amount, in the unit of the kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Used {
    pub used: u64,
    pub most: u64,
}

impl Why {
    // Long: one match with a line or two for each reason.
    /// One line for people; `node_name` returns the name of a node.
    pub fn describe(&self, kinds: &Kinds, node_name: impl Fn(NodeId) -> String) -> String {
        match self {
            Why::Gang { tasks, rooms } => {
                format!("its {} start together, and nodes have room for {rooms}", counted(*tasks, "task"))
            }
            Why::NodesReserved { nodes } => {
                let are = if *nodes == 1 { "is" } else { "are" };
                format!("{} {are} reserved for it until all of it can start", counted(u64::from(*nodes), "node"))
            }
            Why::ReservedElsewhere { node } => {
                format!("{} is reserved by another global master, for a gang or a large task", node_name(*node))
            }
            Why::SlowNode { node, times } => format!(
                "waits for room elsewhere, where it is expected to end sooner: on node {}, which has room, tasks take {} times as long",
                node_name(*node),
                Thousandths(*times)
            ),
            Why::GangGathers { stage, in_place, tasks } => {
                format!("{in_place} of the {tasks} tasks of stage {stage}, which start together, are in place")
            }
            Why::TasksHeld { stage, tasks } => {
                format!("{} of stage {stage} held by a user (release starts them)", counted(u64::from(*tasks), "task"))
            }
            Why::AtOnce { stage, most, running } => {
                format!(
                    "stage {stage} runs at most {} at once, and {running} are launched",
                    counted(u64::from(*most), "task")
                )
            }
            Why::TriedAgain { task, left, failures, others } => tried_again(task, *left, *failures, *others),
            Why::Held => "held by its user (release starts it)".to_owned(),
            Why::AfterJobs { jobs } => format!("waits for {} to succeed", all_of("job", jobs)),
            Why::AfterEnds { jobs } => format!("waits for {} to end", all_of("job", jobs)),
            Why::QueueJobs { queue, limit } => {
                format!("queue {queue} already runs {}, which is its limit", counted(u64::from(*limit), "job"))
            }
            Why::NoNode { known: 0, .. } => "no node has joined the cluster yet".to_owned(),
            Why::NoNode { known, closed_reason } => no_node(*known, closed_reason, node_name),
            Why::Constraints { unmet } => match unmet.iter().map(Constraint::taint).collect::<Option<Vec<_>>>() {
                Some(taints) if !taints.is_empty() => tainted(&taints),
                _ => format!("no node meets {}", shown(unmet).join(" and ")),
            },
            Why::TooLarge { closest, short } => {
                let (closest, short) = (node_name(*closest), kinds.describe(short));
                format!("larger than every node: the node that fits best, {closest}, lacks {short}")
            }
            Why::Occupied { closest, short } => {
                let (closest, short) = (node_name(*closest), kinds.describe(short));
                format!("no room: the node with the most room, {closest}, lacks {short}")
            }
            Why::Closed { closest, closed_reason } => {
                let name = node_name(*closest);
                format!("{name} could run it, but {}", closed_reason.describe())
            }
            Why::Reserved { node, job } => {
                format!("{} is reserved for job {job}, which has waited longer", node_name(*node))
            }
            Why::QueueLimit { queue, kind, used, limit, requested } => format!(
                "queue {queue} is at its maximum share: {} of {} in use, {} more requested",
                amount(kinds, *kind, *used),
                amount(kinds, *kind, *limit),
                amount(kinds, *kind, *requested)
            ),
            Why::UserLimit { queue, kind, used, limit, requested } => format!(
                "its user is at the limit per user of queue {queue}: {} of {} in use, {} more requested",
                amount(kinds, *kind, *used),
                amount(kinds, *kind, *limit),
                amount(kinds, *kind, *requested)
            ),
            Why::Ahead { jobs: 1, first, rule } => format!("job {first} is ahead, by {rule}"),
            Why::Ahead { jobs, first, rule } => format!("{jobs} jobs are ahead, job {first} first, by {rule}"),
            Why::NearInput => "waits for room near its input".to_owned(),
            Why::FairShare { used, most } => {
                let percent = |share: u64| share as f64 / 1e4;
                format!("it has {:.1} % of the cluster, and its fair share is {:.1} %", percent(*used), percent(*most))
            }
            Why::ManagerAway { host: HostId(host) } => format!(
                "job host {host}, which manages this job, is not connected to the server: running tasks continue, and others \
                 start only if the job host is still running; its state is updated when the job host connects again (start \
                 it with `amalgam jobs --number {host}`)"
            ),
            Why::NextHeartbeat => "decided at the next heartbeat".to_owned(),
            Why::AfterStages { stages } => format!("waits for {} to succeed", all_of("stage", stages)),
            Why::AtNodes { tasks: 1 } => "1 task waits in a node's queue for room".to_owned(),
            Why::AtNodes { tasks } => format!("{tasks} tasks wait in nodes' queues for room"),
            Why::Quota { launched, most, beside: None } => format!(
                "its quota of opportunistic tasks: {launched} of {most} are at nodes, and the next one is launched when one \
                 of them ends or becomes guaranteed"
            ),
            Why::Quota { launched, most, beside: Some(guaranteed) } => format!(
                "its quota of opportunistic tasks beside {}: {launched} of {most} are at nodes, and the next one is \
                 launched when one of them ends or more guaranteed ones are launched",
                counted(*guaranteed, "guaranteed one")
            ),
            Why::Allowance { kind, guaranteed, opportunistic } => allowance(kinds, *kind, guaranteed, opportunistic),
            Why::CanWait { stage, tasks, left } => format!(
                "{} of stage {stage} can wait {left} without delaying the job's end; {} sooner if there is room that no \
                 other job needs",
                counted(u64::from(*tasks), "task"),
                if *tasks == 1 { "it starts" } else { "they start" }
            ),
        }
    }
}

fn tried_again(task: &str, left: Duration, failures: u32, others: u64) -> String {
    let after = match failures {
        0 => String::new(),
        failures => format!(", after its {} failure", ordinal(failures)),
    };
    let others = match others {
        0 => String::new(),
        others => format!("; {} later", counted(others, "other task")),
    };
    format!("{task} is tried again in {left}{after}{others}")
}

/// Nodes that could run it have these taints, with their values.
fn tainted(taints: &[(&str, &str)]) -> String {
    let named = |(taint, value): &(&str, &str)| match *value {
        "yes" => format!("`{taint}`"),
        reason => format!("`{taint}` ({reason})"),
    };
    let all = taints.iter().map(named).collect::<Vec<_>>().join(" or ");
    format!("each node that could run it has a taint that the stage does not tolerate: {all}")
}

/// `known` nodes take no work, the first of them for these reasons.
fn no_node(known: u32, closed_reason: &[(NodeId, ClosedReason)], node_name: impl Fn(NodeId) -> String) -> String {
    let mut reasons: Vec<String> = closed_reason
        .iter()
        .map(|(node, closed_reason)| format!("{} {}", node_name(*node), closed_reason.describe()))
        .collect();
    match (known as usize).saturating_sub(closed_reason.len()) {
        0 => {}
        more => reasons.push(format!("{more} more (`amalgam node list` shows them)")),
    }
    let which = if known == 1 { "the only node takes no work" } else { "no node takes work" };
    format!("{which}: {}", reasons.join("; "))
}

fn allowance(kinds: &Kinds, kind: usize, guaranteed: &Used, opportunistic: &Used) -> String {
    let of = |part: &Used| format!("{} of {}", amount(kinds, kind, part.used), amount(kinds, kind, part.most));
    let of_guaranteed = match guaranteed.most {
        0 => "other jobs hold all that guaranteed tasks may hold".to_owned(),
        _ => format!("its guaranteed tasks hold {}, its present allowance", of(guaranteed)),
    };
    format!(
        "{of_guaranteed}; its opportunistic ones hold {}; the next one is launched when one of them ends or \
         other jobs leave more",
        of(opportunistic)
    )
}

/// `1 task`, `2 tasks`.
pub fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// `1st`, `2nd`, `13th`.
fn ordinal(number: u32) -> String {
    let suffix = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{suffix}")
}

/// `stage a`, `stages a and b`, `stages a, b, c, d, e and 2 more`.
fn all_of<T: ToString>(noun: &str, parts: &[T]) -> String {
    let mut texts = shown(parts);
    let last = texts.pop().unwrap_or_default();
    match texts.is_empty() {
        true => format!("{noun} {last}"),
        false => format!("{noun}s {} and {last}", texts.join(", ")),
    }
}

/// The first few, and how many more there are.
fn shown<T: ToString>(parts: &[T]) -> Vec<String> {
    const SHOWN: usize = 5;
    let mut texts: Vec<String> = parts.iter().take(SHOWN).map(T::to_string).collect();
    if parts.len() > SHOWN {
        texts.push(format!("{} more", parts.len() - SHOWN));
    }
    texts
}

fn amount(kinds: &Kinds, kind: usize, units: u64) -> String {
    match kind {
        CPU => format!("{}.{:01} cpu", units / 1000, units % 1000 / 100),
        GPU => format!("{} gpu", Thousandths(u32::try_from(units).unwrap_or(u32::MAX))),
        1 => format!("{units} MiB memory"),
        _ => format!("{units} {}", kinds.name(kind).unwrap_or("unnamed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_listed_in_one_phrase() {
        let why = |stages: &[&str]| {
            let stages = stages.iter().map(|&stage| stage.to_owned()).collect();
            Why::AfterStages { stages }.describe(&Kinds::default(), |node| node.to_string())
        };
        assert_eq!(why(&["train"]), "waits for stage train to succeed");
        assert_eq!(why(&["train", "pages"]), "waits for stages train and pages to succeed");
        assert_eq!(why(&["a", "b", "c", "d", "e", "f", "g"]), "waits for stages a, b, c, d, e and 2 more to succeed");
        let jobs = Why::AfterJobs { jobs: vec![JobId(1), JobId(2), JobId(7)] };
        assert_eq!(jobs.describe(&Kinds::default(), |node| node.to_string()), "waits for jobs 1, 2 and 7 to succeed");
    }
}
