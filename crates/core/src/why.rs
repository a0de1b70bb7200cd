//! Why a job waits: what a decision ran into, as a value that can be stored and put into words.

use crate::protocol::Rule;
use crate::vocabulary::resources::{CPU, GPU, Thousandths};
use crate::vocabulary::{Constraint, Duration, HostId, JobId, Kinds, NodeId, Resources, Shut};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Why {
    /// A user holds it.
    Held,
    /// It waits for other jobs to succeed.
    AfterJobs { jobs: Vec<JobId> },
    /// It waits for other jobs to end, in whatever way.
    AfterEnds { jobs: Vec<JobId> },
    /// Its queue runs as many jobs as it may.
    QueueJobs { queue: String, limit: u32 },
    /// No node has joined, or none is open: why, of the first of them.
    NoNode { known: u32, shut: Vec<(NodeId, Shut)> },
    /// No node meets all of these.
    Constraints { unmet: Vec<Constraint> },
    /// No node is large enough even when empty; `closest` comes closest.
    TooLarge { closest: NodeId, short: Resources },
    /// Nodes are large enough but occupied; `closest` lacks least.
    Occupied { closest: NodeId, short: Resources },
    /// Large enough are only nodes that take no work, though others do; `closest` lacks least.
    Closed { closest: NodeId, shut: Shut },
    /// The node is kept for a job that has waited longer.
    Reserved { node: NodeId, job: JobId },
    /// The queue's maximum share, in this kind of resource.
    QueueLimit { queue: String, kind: usize, used: u64, limit: u64, wants: u64 },
    /// The share of one user in this queue.
    UserLimit { queue: String, kind: usize, used: u64, limit: u64, wants: u64 },
    /// Others come first.
    Ahead { jobs: u32, first: JobId, rule: Rule },
    /// It is decided at the next heartbeat.
    NextHeartbeat,
    /// Stages that must succeed first.
    AfterStages { stages: Vec<String> },
    /// The job's own fair share, in millionths of the cluster.
    FairShare { used: u64, most: u64 },
    /// There is room, and it still holds out for some near its input.
    NearInput,
    /// So many of the job's tasks were sent to nodes' queues and have not started there.
    AtNodes { tasks: u64 },
    /// As many of the job's opportunistic tasks are at nodes as may be; `beside` so many guaranteed ones, where those
    /// decide it.
    Quota { launched: u64, most: u64, beside: Option<u64> },
    /// What the job's guaranteed tasks may hold of this kind of resource now and what they do, and the same of its
    /// opportunistic ones.
    Allowance { kind: usize, guaranteed: Used, opportunistic: Used },
    /// So many tasks of the stage need not start before so long, for the job ends no later: others may have the room.
    CanWait { stage: String, tasks: u32, left: Duration },
    /// Its manager is in this process of job managers, which is not connected.
    ManagerAway { host: HostId },
    /// So many tasks begin together, and nodes have room for so many of them now.
    Gang { tasks: u64, rooms: u64 },
    /// A user holds so many tasks of the stage that wait.
    TasksHeld { stage: String, tasks: u32 },
    /// So many tasks of the stage run or are at nodes, and no more may at once.
    AtOnce { stage: String, most: u32, running: u32 },
    /// The task failed so often, and is tried again after so long; so many others wait for the same.
    TriedAgain { task: String, left: Duration, failures: u32, others: u64 },
    /// So many of a gang's tasks are in place and wait for the others.
    GangGathers { stage: String, in_place: u32, tasks: u32 },
}

/// So much of so much, in the unit of the kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Used {
    pub used: u64,
    pub most: u64,
}

impl Why {
    /// One line for people; `node_name` says what they call a node.
    pub fn describe(&self, kinds: &Kinds, node_name: impl Fn(NodeId) -> String) -> String {
        match self {
            Why::Gang { tasks, rooms } => {
                format!("its {} begin together, and nodes have room for {rooms}", counted(*tasks, "task"))
            }
            Why::GangGathers { stage, in_place, tasks } => {
                format!("{in_place} of the {tasks} tasks of stage {stage}, which begin together, are in place")
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
            Why::TriedAgain { task, left, failures, others } => {
                let after = match failures {
                    0 => String::new(),
                    failures => format!(", after its {} failure", ordinal(*failures)),
                };
                let others = match others {
                    0 => String::new(),
                    others => format!("; {} later", counted(*others, "other task")),
                };
                format!("{task} is tried again in {left}{after}{others}")
            }
            Why::Held => "held by its user (release starts it)".to_owned(),
            Why::AfterJobs { jobs } => format!("waits for {} to succeed", all_of("job", jobs)),
            Why::AfterEnds { jobs } => format!("waits for {} to end", all_of("job", jobs)),
            Why::QueueJobs { queue, limit } => {
                format!("queue {queue} already runs {}, which is its limit", counted(u64::from(*limit), "job"))
            }
            Why::NoNode { known: 0, .. } => "no node has joined the cluster yet".to_owned(),
            Why::NoNode { known, shut } => {
                let mut reasons: Vec<String> =
                    shut.iter().map(|(node, shut)| format!("{} {}", node_name(*node), shut.describe())).collect();
                match (*known as usize).saturating_sub(shut.len()) {
                    0 => {}
                    more => reasons.push(format!("{more} more (`amalgam node list` shows them)")),
                }
                let who = if *known == 1 { "the only node takes no work" } else { "no node takes work" };
                format!("{who}: {}", reasons.join("; "))
            }
            Why::Constraints { unmet } => format!("no node meets {}", shown(unmet).join(" and ")),
            Why::TooLarge { closest, short } => {
                let (closest, short) = (node_name(*closest), kinds.describe(short));
                format!("larger than every node: {closest} comes closest and is short of {short}")
            }
            Why::Occupied { closest, short } => {
                let (closest, short) = (node_name(*closest), kinds.describe(short));
                format!("no room: {closest} comes closest and is short of {short}")
            }
            Why::Closed { closest, shut } => {
                let name = node_name(*closest);
                format!("{name} could run it, but {}", shut.describe())
            }
            Why::Reserved { node, job } => {
                format!("{} is being kept free for job {job}, which has waited longer", node_name(*node))
            }
            Why::QueueLimit { queue, kind, used, limit, wants } => format!(
                "queue {queue} is at its maximum share: {} of {} in use, {} more wanted",
                amount(kinds, *kind, *used),
                amount(kinds, *kind, *limit),
                amount(kinds, *kind, *wants)
            ),
            Why::UserLimit { queue, kind, used, limit, wants } => format!(
                "its user is at the limit for one user in queue {queue}: {} of {} in use, {} more wanted",
                amount(kinds, *kind, *used),
                amount(kinds, *kind, *limit),
                amount(kinds, *kind, *wants)
            ),
            Why::Ahead { jobs: 1, first, rule } => format!("job {first} is ahead, by {rule}"),
            Why::Ahead { jobs, first, rule } => format!("{jobs} jobs are ahead, job {first} first, by {rule}"),
            Why::NearInput => "waits a moment for room near its input".to_owned(),
            Why::FairShare { used, most } => {
                let percent = |share: u64| share as f64 / 1e4;
                format!("it has {:.1} % of the cluster, and its fair share is {:.1} %", percent(*used), percent(*most))
            }
            Why::ManagerAway { host: HostId(host) } => format!(
                "job managers {host}, which have this job, are not connected with the server: tasks that run go on, no others \
                 start unless these are only cut off from here, and what becomes of it is told when they are back (started \
                 by `amalgam jobs --number {host}`)"
            ),
            Why::NextHeartbeat => "decided at the next heartbeat".to_owned(),
            Why::AfterStages { stages } => format!("waits for {} to succeed", all_of("stage", stages)),
            Why::AtNodes { tasks: 1 } => "1 task waits in a node's queue for room".to_owned(),
            Why::AtNodes { tasks } => format!("{tasks} tasks wait in nodes' queues for room"),
            Why::Quota { launched, most, beside: None } => format!(
                "its quota of opportunistic tasks: {launched} of {most} are at nodes, and the next goes when one of them \
                 ends or becomes guaranteed"
            ),
            Why::Quota { launched, most, beside: Some(guaranteed) } => format!(
                "its quota of opportunistic tasks beside {}: {launched} of {most} are at nodes, and the next goes when \
                 one of them ends or more guaranteed ones are launched",
                counted(*guaranteed, "guaranteed one")
            ),
            Why::Allowance { kind, guaranteed, opportunistic } => {
                let of =
                    |part: &Used| format!("{} of {}", amount(kinds, *kind, part.used), amount(kinds, *kind, part.most));
                let of_guaranteed = match guaranteed.most {
                    0 => "others hold all that may be guaranteed".to_owned(),
                    _ => format!("its guaranteed tasks hold {}, which is its part now", of(guaranteed)),
                };
                format!(
                    "{of_guaranteed}; its opportunistic ones hold {}; the next goes when one of them ends or others leave more",
                    of(opportunistic)
                )
            }
            Why::CanWait { stage, tasks, left } => format!(
                "{} of stage {stage} can wait {left} without the job ending later; until then others may have the \
                 room, and room that nobody wants starts {} sooner",
                counted(u64::from(*tasks), "task"),
                if *tasks == 1 { "it" } else { "them" }
            ),
        }
    }
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
    fn what_is_waited_for_is_one_phrase() {
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
