//! Times from the journals of a cluster.

use crate::cluster::Cluster;
use amalgam_cli::failure::{Failure, Result};
use amalgam_core::hosting::{Entry, Replay, RoleEvent, decisions};
use amalgam_core::protocol::{ExecutorReport, Message, ToExecutor, ToJobManager, ToNode};
use amalgam_core::role::{Change, Event};
use amalgam_core::vocabulary::{AttemptId, Instant, JobId};
use amalgam_daemon::journal::JournalReader;
use amalgam_daemon::sealing::HMAC;
use std::collections::BTreeMap;
use std::path::Path;

pub struct Journals {
    pub server: Vec<Entry>,
    pub agents: Vec<Entry>,
}

/// When an attempt was ordered, its process ran, and it had ended; as seen by one process, by its clock.
#[derive(Clone, Copy, Default)]
pub struct Times {
    pub ordered: Option<Instant>,
    pub started: Option<Instant>,
    pub ended: Option<Instant>,
}

/// Events that roles of a kind handled in a replay, and the nanoseconds for them.
#[derive(Clone, Copy, Default)]
pub struct Work {
    pub events: u64,
    pub nanos: u64,
}

#[derive(Clone, Copy, Default)]
pub struct WorkByRole {
    pub master: Work,
    pub job_managers: Work,
    pub nodes: Work,
    /// Placed tasks, and the additional time of the events that placed them, compared with other events of the role.
    pub decisions: Work,
}

impl Work {
    pub fn each(&self) -> u64 {
        self.nanos / self.events.max(1)
    }
}

impl Journals {
    /// Reads the journals of a stopped cluster.
    pub fn of(cluster: &Cluster) -> Result<Journals> {
        let directory = cluster.state_dir.join("journals");
        let server = read(&directory.join("server-1.journal"))?;
        let mut agents = Vec::new();
        for agent in 0.. {
            let path = directory.join(format!("node-{agent}-1.journal"));
            if !path.exists() {
                break;
            }
            agents.extend(read(&path)?);
        }
        Ok(Journals { server, agents })
    }

    /// When the server accepted each job.
    pub fn submissions(&self) -> BTreeMap<JobId, Instant> {
        let mut submitted = BTreeMap::new();
        for (now, _, left) in handled(&self.server) {
            submitted.extend(left.changes.iter().filter_map(|change| match change {
                Change::JobAdmitted { job, .. } => Some((job.id, now)),
                _ => None,
            }));
        }
        submitted
    }

    /// Messages about tasks between the server and its nodes.
    pub fn task_letters(&self) -> u64 {
        let out = handled(&self.server).flat_map(|(_, _, left)| &left.sends);
        let out = out.filter(|(_, message)| match message {
            Message::ToNode(message) => {
                !matches!(message, ToNode::Welcome(_) | ToNode::Expire { .. } | ToNode::Forget { .. })
            }
            _ => false,
        });
        let back = handled(&self.agents).flat_map(|(_, _, left)| &left.sends);
        let back = back.filter(|(_, message)| match message {
            Message::ToMaster(message) => matches!(message, amalgam_core::protocol::ToMaster::Freed { .. }),
            Message::ToJobManager(_) => true,
            _ => false,
        });
        (out.count() + back.count()) as u64
    }
}

fn read(path: &Path) -> Result<Vec<Entry>> {
    let wrong = |error: amalgam_daemon::journal::JournalError| Failure::new(error.to_string(), "");
    let mut journal = JournalReader::open(path).map_err(wrong)?;
    std::iter::from_fn(|| journal.next_entry().transpose()).collect::<std::result::Result<_, _>>().map_err(wrong)
}

fn handled(entries: &[Entry]) -> impl Iterator<Item = (Instant, &RoleEvent, &amalgam_core::role::Outbox)> {
    entries.iter().filter_map(|entry| match entry {
        Entry::Handled { now, event, left } => Some((*now, event, left)),
        _ => None,
    })
}

/// Times by attempt, from the job managers in a server's journal or the nodes in those of agents.
pub fn times(entries: &[Entry]) -> BTreeMap<AttemptId, Times> {
    let mut times: BTreeMap<AttemptId, Times> = BTreeMap::new();
    for (now, event, left) in handled(entries) {
        match event {
            RoleEvent::JobManager(_, Event::Message { body: ToJobManager::Started { attempt, .. }, .. })
            | RoleEvent::Node(
                _,
                Event::Message { body: ToNode::Executor(ExecutorReport::Started { attempt, .. }), .. },
            ) => {
                times.entry(*attempt).or_default().started = Some(now);
            }
            RoleEvent::JobManager(_, Event::Message { body: ToJobManager::Finished { attempt, .. }, .. })
            | RoleEvent::Node(
                _,
                Event::Message { body: ToNode::Executor(ExecutorReport::Finished { attempt, .. }), .. },
            ) => {
                times.entry(*attempt).or_default().ended = Some(now);
            }
            _ => {}
        }
        for (_, message) in &left.sends {
            let attempt = match message {
                Message::ToNode(ToNode::Launch(launch)) => launch.attempt,
                Message::ToExecutor(ToExecutor::Launch(order)) => order.attempt,
                _ => continue,
            };
            times.entry(attempt).or_default().ordered = Some(now);
        }
    }
    times
}

/// The costs of the roles of a journal when they handle the events again, measured on this machine now.
pub fn work(entries: &[Entry]) -> Result<WorkByRole> {
    let defect = |_| Failure::new("the roles did not do the same again", "see `amalgam sim replay`");
    let (mut work, mut deciding, mut replay) = (WorkByRole::default(), Work::default(), Replay::new(HMAC));
    for entry in entries.iter().cloned() {
        let Entry::Handled { now, event, left } = entry else {
            replay.apply(entry).map_err(defect)?;
            continue;
        };
        let of_role = match event {
            RoleEvent::Global(_) => continue,
            RoleEvent::Master(_) => &mut work.master,
            RoleEvent::JobManager(..) | RoleEvent::JobHost(_) => &mut work.job_managers,
            RoleEvent::Node(..) => &mut work.nodes,
        };
        let decided = u64::from(decisions(&left));
        let started = std::time::Instant::now();
        replay.hand_over(now, event).map_err(defect)?;
        let nanos = started.elapsed().as_nanos() as u64;
        let place = if decided > 0 { &mut deciding } else { of_role };
        (place.nanos, place.events) = (place.nanos + nanos, place.events + 1);
        work.decisions.events += decided;
    }
    // The cost of a decision is what it adds to an event of the master. In the presets measured here the master decides.
    work.decisions.nanos = deciding.nanos.saturating_sub(deciding.events * work.master.each());
    Ok(work)
}
