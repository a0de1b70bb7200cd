//! How long a task took from when it could run to its first start, by what that was spent on.

use super::Duration;
use serde::{Deserialize, Serialize};

/// How long an attempt was at its node before it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AtNode {
    /// For its turn, and for files.
    pub waited: Duration,
    /// Its process was made.
    pub making: Duration,
}

/// The four parts of allocation time (Megha, section III).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllocationTime {
    /// From when the task could run to the launch that led to its start.
    pub queue: Duration,
    /// Work that was done for it: what was decided was made durable, and its process was made.
    pub processing: Duration,
    /// Of the launch to its node. Clocks of machines differ, so it is taken to be half of what the launch and the news of the
    /// start took on their ways, which includes the work of whoever passes them on.
    pub communication: Duration,
    /// At the node, for its turn and for files.
    pub node: Duration,
}

impl AllocationTime {
    /// Of a start of which was heard so long after the launch, where the process had run for `running_for`.
    pub fn of(queue: Duration, heard_after: Duration, running_for: Duration, at: AtNode) -> AllocationTime {
        let AtNode { waited, making } = at;
        let there = waited.0.saturating_add(making.0).saturating_add(running_for.0);
        let ways = heard_after.0.saturating_sub(there);
        AllocationTime { queue, processing: making, communication: Duration(ways / 2), node: waited }
    }

    /// So long the launch did not leave its process: that was no way.
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
    fn what_was_on_its_way_is_what_nobody_says_he_had() {
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
