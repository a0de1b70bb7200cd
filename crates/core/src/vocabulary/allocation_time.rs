//! The time from when a task could run to its first start, split by cause.

use super::Duration;
use serde::{Deserialize, Serialize};

/// How long an attempt was at its node before it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AtNode {
    /// In the node's queue, and for input files.
    pub waited: Duration,
    /// Creating its process.
    pub making: Duration,
}

/// The four parts of allocation time (Megha, section III).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllocationTime {
    /// From when the task could run to the launch that started it.
    pub queue: Duration,
    /// Making the decision durable, and creating the process.
    pub processing: Duration,
    /// The way of the launch to its node. Clocks of machines differ, so this is half of the time that the launch and the report
    /// of the start were under way, including the work of processes that forward them.
    pub communication: Duration,
    /// In the node's queue, and for input files.
    pub node: Duration,
}

impl AllocationTime {
    /// For a start that was reported `received_after` the launch, when the process had run for `running_for`.
    pub fn of(queue: Duration, received_after: Duration, running_for: Duration, at: AtNode) -> AllocationTime {
        let AtNode { waited, making } = at;
        let there = waited.0.saturating_add(making.0).saturating_add(running_for.0);
        let ways = received_after.0.saturating_sub(there);
        AllocationTime { queue, processing: making, communication: Duration(ways / 2), node: waited }
    }

    /// Counts the time for which the launch stayed in the sending process as processing, not as communication.
    pub fn leaving_after(self, stayed: Duration) -> AllocationTime {
        let ways = self.communication.0.saturating_mul(2);
        let stayed = stayed.0.min(ways);
        let communication = Duration((ways - stayed) / 2);
        AllocationTime { processing: self.processing + Duration(stayed), communication, ..self }
    }

    pub fn total(self) -> Duration {
        self.queue + self.processing + self.communication + self.node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn communication_is_the_time_that_no_part_reports() {
        let seconds = Duration::from_secs;
        let at = AtNode { waited: seconds(3), making: seconds(2) };
        let time = AllocationTime::of(seconds(7), seconds(14), seconds(1), at);
        let [queue, processing, communication, node] = [7, 2, 4, 3].map(seconds);
        assert_eq!(time, AllocationTime { queue, processing, communication, node });
        let time = time.leaving_after(seconds(6));
        assert_eq!((time.processing, time.communication, time.total()), (seconds(8), seconds(1), seconds(19)));
        assert_eq!(time.leaving_after(seconds(9)).communication, Duration::ZERO);
        // A node's clock may run faster than ours.
        assert_eq!(AllocationTime::of(seconds(7), seconds(4), seconds(1), at).communication, Duration::ZERO);
    }
}
