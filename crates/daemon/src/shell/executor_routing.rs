//! Finds the node that an executor's report is for. One executor serves all nodes of a process, and its reports name
//! attempts.

use amalgam_core::hosting::Envelope;
use amalgam_core::protocol::{Address, ExecutorReport, Message, ToExecutor, ToNode};
use amalgam_core::vocabulary::{AttemptId, NodeId};
use std::collections::{HashMap, VecDeque};

#[derive(Default)]
pub struct ExecutorRouting {
    owners: HashMap<AttemptId, NodeId>,
    /// Nodes whose lists of attempts were requested and have not been answered, in the order of the requests.
    listing: VecDeque<NodeId>,
}

impl ExecutorRouting {
    /// Takes note of an order that is sent to the executor.
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

    /// Forgets requests on a connection that has broken: they are not answered on the next one.
    pub fn forget_lists(&mut self) {
        self.listing.clear();
    }

    /// The report as a message to its node; `None` if its attempt belongs to no node of this process.
    pub fn envelope(&mut self, report: ExecutorReport) -> Option<Envelope> {
        let node = self.node_of(&report)?;
        let message = Message::ToNode(ToNode::Executor(report));
        Some(Envelope { from: Address::Executor(node), to: Address::Node(node), message })
    }

    /// The executor sends the ends of a node's attempts before the list, so an unknown attempt belongs to the node
    /// whose list is next.
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
