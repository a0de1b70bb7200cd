//! Read-only pictures that policies are shown: of nodes, and of a node's queue.

use super::{AttemptId, Duration, ExecutionType, Instant, NodeId, Resources};

/// What a scheduler believes of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeView {
    pub node: NodeId,
    pub capacity: Resources,
    pub free: Resources,
    /// Whether it takes new work: connected and not drained.
    pub open: bool,
    /// How long a new entry would wait in its queue.
    pub expected_wait: Duration,
    /// How old this belief is.
    pub age: Duration,
}

/// Nodes as a placement policy sees them: by dense index, with a search that does not visit every node.
pub trait NodeViews {
    fn len(&self) -> usize;
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn view(&self, index: usize) -> NodeView;
    /// The first open node at or cyclically after `start` that has room for `shape` and meets constraint class
    /// `class`.
    fn find_room(&self, class: u32, shape: &Resources, start: usize) -> Option<usize>;
}

/// One entry that waits at a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueuedEntry {
    pub attempt: AttemptId,
    pub resources: Resources,
    pub execution: ExecutionType,
    pub queued_at: Instant,
    pub expected: Option<Duration>,
}

/// One attempt that runs at a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunningEntry {
    pub attempt: AttemptId,
    pub resources: Resources,
    pub execution: ExecutionType,
    pub started_at: Instant,
    pub expected: Option<Duration>,
}

/// A node's waiting entries in order of arrival.
#[derive(Clone, Copy, Debug)]
pub struct QueueView<'a> {
    pub entries: &'a [QueuedEntry],
}
