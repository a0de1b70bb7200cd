//! A node agent of which nothing changes: a simulator may leave its reports out (ADR 90).

use super::NodeAgent;
use super::master_link::Said;
use crate::protocol::NodeReport;
use crate::vocabulary::{Duration, EntryId, Generation, HostId, Instant};

/// An agent whose reports say the same as the last one until something reaches it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rest {
    pub next_report: Instant,
    /// Between two reports.
    pub every: Duration,
    /// When it has something else to do.
    pub wakes_at: Option<Instant>,
}

impl NodeAgent {
    /// Whether the agent rests. `reads_progress`: the master reads how much running work is left, which each report says anew.
    /// `oldest`: the master's oldest valid generation of tokens, which it tells in answer to a report.
    pub fn rest(&self, reads_progress: bool, oldest: Generation) -> Option<Rest> {
        let said = self.said();
        let changes_by_itself = said.running + said.queued > 0 && (reads_progress || self.waits.reports());
        let expects_news = self.oldest_generation(HostId::SERVER) < oldest;
        // An attempt that waits may be reported as late.
        let may_be_late = || self.queue.entries().iter().any(|entry| matches!(entry.id, EntryId::Attempt(_)));
        if changes_by_itself || expects_news || self.waits.is_open() || self.spare.says_something() || may_be_late() {
            return None;
        }
        let (next_report, every) = self.master.next_same_report(&said)?;
        Some(Rest { next_report, every, wakes_at: self.next_besides_reports() })
    }

    /// Leaves out the reports that were due by then, because the agent rested. Returns their number, and when the last one was due.
    pub fn skip_reports(&mut self, until: Instant) -> Option<(u64, Instant)> {
        self.master.skip_reports(until)
    }

    /// What such a report says.
    pub fn same_report(&self, now: Instant) -> NodeReport {
        let Said { free, running, queued, expected_wait, succeeded } = self.said();
        let (running_work, stalled) = (self.attempts.running_work(now), self.queue.stalled_for(now));
        let (starts, late) = (Vec::new(), Vec::new());
        NodeReport { free, running, queued, expected_wait, running_work, stalled, succeeded, starts, late }
    }

    pub(super) fn said(&self) -> Said {
        Said {
            free: *self.room.free(),
            running: self.attempts.running_count() as u32,
            queued: self.queue.len() as u32,
            expected_wait: self.queue.expected_work(),
            succeeded: self.master.succeeded(),
        }
    }
}
