//! A node agent of which nothing changes: a simulator may leave its reports out (ADR 90).

use super::NodeAgent;
use super::master_link::Said;
use crate::vocabulary::{Duration, EntryId, Instant};

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
    /// Whether the agent rests. `reads_progress`: somebody reads how much running work is left, which each report says anew.
    pub fn rest(&self, reads_progress: bool) -> Option<Rest> {
        let (running, queued) = (self.attempts.running_count() as u32, self.queue.len() as u32);
        let changes_by_itself = running + queued > 0 && (reads_progress || self.waits.reports());
        // An attempt that waits may be reported as late.
        let may_be_late = || self.queue.entries().iter().any(|entry| matches!(entry.id, EntryId::Attempt(_)));
        if changes_by_itself || self.waits.is_open() || self.spare.says_something() || may_be_late() {
            return None;
        }
        let (expected_wait, succeeded) = (self.queue.expected_work(), self.master.succeeded());
        let said = Said { free: *self.room.free(), running, queued, expected_wait, succeeded };
        let (next_report, every) = self.master.next_same_report(&said)?;
        Some(Rest { next_report, every, wakes_at: self.next_besides_reports() })
    }

    /// Leaves out the reports that were due by now, because the agent rested. Returns their number.
    pub fn skip_reports(&mut self, now: Instant) -> u64 {
        self.master.skip_reports(now)
    }
}
