//! Delay scheduling (Zaharia et al. 2010, section 4.1): an ask whose input is stored on some nodes takes room on these
//! nodes only; after a delay, in their racks, too; after another delay, anywhere.
//!
//! The reach of an ask is a class of nodes like that of its constraints, so searches for room and offers of room
//! observe it without examining localities. A start on a node with the input restarts the delays; a start elsewhere
//! does not change the reach. Departs: the delays belong to the ask and not to its job, and nodes are in one rack if
//! they have the same attribute `rack` when the reach widens. Leaves out: which task of the ask has which input.

use super::ledger::Ledger;
use crate::protocol::Holder;
use crate::vocabulary::{Duration, Instant, NodeId, NodeViews};
use serde::{Deserialize, Serialize};

/// How long an ask waits for room near its input.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Delays {
    /// For a node with its input.
    pub node: Duration,
    /// After that, for a rack with it.
    pub rack: Duration,
}

impl Delays {
    /// Any node is accepted at once.
    pub const NONE: Delays = Delays { node: Duration::ZERO, rack: Duration::ZERO };
}

/// The nodes that an ask may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    Node,
    Rack,
    Anywhere,
}

impl Reach {
    pub(super) fn wider(self) -> Reach {
        match self {
            Reach::Node => Reach::Rack,
            Reach::Rack | Reach::Anywhere => Reach::Anywhere,
        }
    }

    /// When it widens, for an ask that has waited since `since`.
    pub(super) fn ends(self, since: Instant, delays: &Delays) -> Option<Instant> {
        match self {
            Reach::Node => Some(since + delays.node),
            Reach::Rack => Some(since + delays.node + delays.rack),
            Reach::Anywhere => None,
        }
    }

    /// The nodes within it, sorted; `None` for all.
    pub(super) fn nodes(self, holders: &[Holder], ledger: &Ledger) -> Option<Vec<NodeId>> {
        match self {
            Reach::Node => Some(local_nodes(holders)),
            Reach::Rack => Some(rack_of(&local_nodes(holders), ledger)),
            Reach::Anywhere => None,
        }
    }
}

/// Nodes with at least half as much of the input as the node that has the most.
pub(super) fn local_nodes(holders: &[Holder]) -> Vec<NodeId> {
    let most = holders.iter().map(|holder| holder.bytes).max().unwrap_or(0);
    let mut nodes: Vec<NodeId> =
        holders.iter().filter(|holder| holder.bytes >= most.div_ceil(2)).map(|holder| holder.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// The nodes themselves, and all that share a rack with one of them.
fn rack_of(nodes: &[NodeId], ledger: &Ledger) -> Vec<NodeId> {
    let rack = |node: NodeId| ledger.attributes(node).get("rack");
    let known = nodes.iter().filter(|node| ledger.state(**node).is_some());
    let racks: Vec<&str> = known.filter_map(|&node| rack(node)).collect();
    let all = (0..ledger.len() as u32).map(NodeId);
    all.filter(|&node| nodes.contains(&node) || rack(node).is_some_and(|rack| racks.contains(&rack))).collect()
}
