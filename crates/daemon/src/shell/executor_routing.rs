//! Which node a report of the executor is for: one executor serves all nodes of a process, and knows attempts.

use amalgam_core::hosting::Letter;
use amalgam_core::protocol::{Address, ExecutorReport, Message, ToExecutor, ToNode};
use amalgam_core::vocabulary::{AttemptId, NodeId};
use std::collections::{HashMap, VecDeque};

#[derive(Default)]
pub struct ExecutorRouting {
    owners: HashMap<AttemptId, NodeId>,
    /// Lists that were asked for and not answered, in order.
    listing: VecDeque<NodeId>,
}

impl ExecutorRouting {
    /// An order leaves for the executor.
    pub fn note(&mut self, order: &ToExecutor) {
        match order {
            ToExecutor::Launch(order) => {
                self.owners.insert(order.attempt, order.node);
            }
            ToExecutor::Acknowledge { attempt } => {
                self.owners.remove(attempt);
            }
            ToExecutor::List { node } => self.listing.push_back(*node),
            ToExecutor::Signal { .. }
            | ToExecutor::Promote { .. }
            | ToExecutor::SetTimeout { .. }
            | ToExecutor::Yield { .. }
            | ToExecutor::Resume { .. }
            | ToExecutor::Fetch { .. }
            | ToExecutor::Measure { .. }
            | ToExecutor::Drop { .. } => {}
        }
    }

    /// What was asked on a connection that broke is not answered on the next.
    pub fn forget_lists(&mut self) {
        self.listing.clear();
    }

    /// The report as a letter to its node; `None` for an attempt that nobody here knows.
    pub fn letter(&mut self, report: ExecutorReport) -> Option<Letter> {
        let node = self.node_of(&report)?;
        let message = Message::ToNode(ToNode::Executor(report));
        Some(Letter { from: Address::Executor(node), to: Address::Node(node), message })
    }

    /// Before a list is answered come the ends that belong to it, so an unknown attempt is of the node being listed.
    fn node_of(&mut self, report: &ExecutorReport) -> Option<NodeId> {
        match report {
            ExecutorReport::Started { attempt, .. } => self.owners.get(attempt).copied(),
            ExecutorReport::Finished { attempt, .. } => {
                self.owners.get(attempt).or_else(|| self.listing.front()).copied()
            }
            ExecutorReport::Stored { node, .. }
            | ExecutorReport::Fetched { node, .. }
            | ExecutorReport::Measured { node, .. } => Some(*node),
            ExecutorReport::Executing { attempts } => {
                let node = self.listing.pop_front()?;
                self.owners.extend(attempts.iter().map(|entry| (entry.order.attempt, node)));
                Some(node)
            }
        }
    }
}
