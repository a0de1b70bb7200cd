//! An intruder that overhears launches and sends them to nodes again, unchanged or altered. The intruder has no key.

use super::Faults;
use amalgam_core::protocol::{Address, Launch};

/// What the intruder does with a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intrusion {
    /// Sends it for another attempt.
    OtherAttempt,
    /// Sends it with more resources.
    MoreResources,
    /// Sends it to another node.
    OtherNode,
    /// Sends it unchanged, after its token's generation has expired.
    Late,
    /// Sends it unchanged.
    Again,
}

impl Intrusion {
    pub const ALL: [Intrusion; 5] =
        [Intrusion::OtherAttempt, Intrusion::MoreResources, Intrusion::OtherNode, Intrusion::Late, Intrusion::Again];
}

/// A launch that was sent to a node.
pub(crate) struct Intercepted {
    pub(crate) node: usize,
    pub(crate) from: Address,
    pub(crate) launch: Box<Launch>,
    /// Whether it arrived, instead of being lost with its connection.
    pub(crate) has_arrived: bool,
}

/// A launch that the intruder sends to a node.
pub(crate) struct Intruding {
    pub(crate) node: usize,
    pub(crate) from: Address,
    pub(crate) launch: Box<Launch>,
    /// Whether the node has to refuse it.
    pub(crate) is_wrong: bool,
}

impl Faults {
    /// The node's agent has lost its memory of attempts that were launched there and have ended. If no grant and no
    /// claim excludes it, such an attempt could be launched again (decision 35).
    pub(crate) fn forget_intercepted(&mut self, node: usize) {
        self.intercepted.retain(|intercepted| intercepted.node != node);
    }
}
