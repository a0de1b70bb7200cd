//! An intruder in the cluster's network: it sends launches again, alters them, or makes up its own.

use super::Simulation;
use crate::faults::intruder::{Intercepted, Intruding};
use crate::faults::{Happening, Intrusion};
use crate::places::ProcessId;
use crate::process::Input;
use amalgam_core::hosting::Envelope;
use amalgam_core::node::NodeAgent;
use amalgam_core::protocol::{Address, Launch, Message, ToNode};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::resources::CPU;
use amalgam_core::vocabulary::{AttemptId, NodeId, TaskShape, TaskTemplate};
use std::sync::Arc;

impl Simulation {
    /// Records a launch that arrives at its node, or is lost because its connection broke.
    pub(crate) fn overhear(&mut self, node: usize, envelope: &Envelope, has_arrived: bool) {
        let Some(faults) = self.faults.as_mut().filter(|faults| faults.has_intruder()) else { return };
        let Message::ToNode(body) = &envelope.message else { return };
        let Some(launch) = body.launch() else { return };
        // A launch that is not durable has never left.
        let of_it = |change: &Change| matches!(change, Change::Launched { attempt, .. } if *attempt == launch.attempt);
        if faults.log().rev().any(of_it) {
            faults.intercepted.push(Intercepted {
                node,
                from: envelope.from,
                launch: Box::new(launch.clone()),
                has_arrived,
            });
        }
    }

    /// The launch that the intruder would send now, and the node; `None` if no overheard launch is suitable.
    pub(super) fn intrusion(&self, how: Intrusion, which: u32) -> Option<Intruding> {
        let faults = self.faults.as_ref()?;
        let target = |node: usize| match how {
            Intrusion::OtherNode => (node + 1 + which as usize % (self.nodes.len() - 1).max(1)) % self.nodes.len(),
            _ => node,
        };
        let suits = |intercepted: &&Intercepted| {
            let agent = self.agent(target(intercepted.node));
            agent.is_some_and(|agent| match how {
                Intrusion::OtherNode => self.nodes.len() > 1,
                Intrusion::Late => {
                    intercepted.launch.token.generation
                        < agent.oldest_generation(intercepted.launch.attempt.epoch.host())
                }
                _ => true,
            })
        };
        let suitable: Vec<&Intercepted> = faults.intercepted.iter().filter(suits).collect();
        // One of the 16 launches that were overheard last.
        let lately = &suitable[suitable.len().saturating_sub(16)..];
        let Intercepted { node, from, launch, has_arrived } = lately.get(which as usize % lately.len().max(1))?;
        let launch = Box::new(altered(launch, how));
        // Repeating a launch that was lost is not wrong: it is as if the network had been slow.
        let is_wrong = how != Intrusion::Again || *has_arrived;
        Some(Intruding { node: target(*node), from: *from, launch, is_wrong })
    }

    pub(super) fn intrude(&mut self, intruding: Intruding) {
        let Intruding { node, from, launch, is_wrong } = intruding;
        let (attempt, task) = (launch.attempt, launch.task);
        let is_judged = is_wrong && self.is_judged_at_once(node, attempt);
        if let Some(faults) = &mut self.faults {
            faults.note(Happening::Intruded { node, attempt, task, is_judged });
        }
        let message = Message::ToNode(ToNode::Launch(launch));
        self.put(
            ProcessId::Node(node),
            Input::Envelope(Envelope { from, to: Address::Node(NodeId(node as u32)), message }),
        );
    }

    /// Whether the node handles the launch at once and has the key to verify it.
    fn is_judged_at_once(&self, node: usize, attempt: AttemptId) -> bool {
        let judges = |agent: &NodeAgent| agent.serves(attempt.epoch.host()) && !agent.is_outdated(attempt.epoch);
        self.nodes[node].agent.is_idle(self.now) && self.agent(node).is_some_and(judges)
    }
}

fn altered(launch: &Launch, how: Intrusion) -> Launch {
    let mut altered = launch.clone();
    match how {
        Intrusion::OtherAttempt => altered.attempt.number += 1,
        Intrusion::MoreResources => {
            let TaskShape { resources, execution } = *altered.template.shape;
            let more = resources.with(CPU, resources.cpu_millis() + 250);
            let shape = Arc::new(TaskShape { resources: more, execution });
            altered.template = Arc::new(TaskTemplate { shape, ..altered.template.as_ref().clone() });
        }
        Intrusion::OtherNode | Intrusion::Late | Intrusion::Again => {}
    }
    altered
}
