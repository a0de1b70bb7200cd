//! Late binding: a probe is known to its node and to its job manager, the number of probes follows the rule of ADR 30,
//! and no room is kept for a probe that is not answered.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::places::ProcessId;
use crate::simulation::Simulation;
use amalgam_core::node::NodeAgent;
use amalgam_core::preset::{Probed, QueueChoice, Scheduling};
use amalgam_core::protocol::{Message, ToNode};
use amalgam_core::scheduling::AskState;
use amalgam_core::vocabulary::{NodeId, ProbeId};
use std::collections::BTreeSet;

#[derive(Default)]
pub struct Probes {
    /// Probes that a connection delivered to their nodes a second time. Their job managers may have written them off
    /// with the connection before. The node learns that when it asks for a task.
    repeated: BTreeSet<ProbeId>,
    /// Nodes that were compared while a probe waited there.
    compared: u64,
}

impl Probes {
    /// The probes that a node knows are those that job managers know to be there.
    fn check_node(&self, world: &Simulation, node: usize, agent: &NodeAgent) -> Result<(), Breach> {
        let id = NodeId(node as u32);
        let managers = world.job_managers().filter_map(|(_, manager)| manager.local_scheduler());
        let out: BTreeSet<ProbeId> =
            managers.flat_map(|local| local.probes()).filter(|(_, on)| *on == id).map(|(probe, _)| probe).collect();
        let here: BTreeSet<ProbeId> = agent.probes().map(|(probe, _)| probe).collect();
        if let Some(probe) = out.difference(&here).next() {
            return Err(Breach::of_job(probe.job, format!("{probe:?} should wait on {id}, which does not have it")));
        }
        if let Some(probe) = here.difference(&out).find(|probe| !self.repeated.contains(probe)) {
            return Err(Breach::of_job(probe.job, format!("{probe:?} waits on {id}, but no job manager knows it")));
        }
        match agent.probes().find(|(_, keeps_room)| *keeps_room) {
            Some((probe, _)) => Err(Breach::of_job(probe.job, format!("{id} keeps room for {probe:?} permanently"))),
            None => Ok(()),
        }
    }
}

/// At least `ratio` probes for each task that is not bound, if some node suits, and at most that number plus the probes
/// that bound tasks have left over.
fn check_count(state: &AskState, ratio: u64) -> Result<(), Breach> {
    let AskState { ask, open, bound, probes, has_nodes } = *state;
    let least = if has_nodes { ratio * open } else { 0 };
    let most = if open == 0 { 0 } else { ratio * open + (ratio - 1) * bound };
    if (least..=most.max(least)).contains(&probes) {
        return Ok(());
    }
    let what = format!("{ask:?} has {probes} probes for {open} open tasks, after {bound} tasks were bound");
    Err(Breach::of_job(ask.job, what))
}

impl Checker for Probes {
    fn rule(&self) -> &'static str {
        "probes are known at both ends, their number follows the rule, and room kept for them is released"
    }

    /// Nodes that were compared while a probe waited there.
    fn subjects(&self) -> u64 {
        self.compared
    }

    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        let preset = &world.settings().preset;
        if !preset.is_distributed() {
            return Ok(());
        }
        for happening in happened {
            if let Happening::Repeated { to: ProcessId::Node(_), message } = happening
                && let Message::ToNode(ToNode::Probe(probe)) = message.as_ref()
            {
                self.repeated.insert(probe.id);
            }
        }
        for (_, manager) in world.job_managers().filter(|(place, _)| world.moved(*place)) {
            let of_job = preset.of_job(manager.job()).scheduling;
            let Scheduling::Probed(Probed { choice: QueueChoice::BatchSampling { ratio }, .. }) = of_job else {
                continue;
            };
            let ratio = u64::from(ratio);
            // If input may be lost, ready tasks may have to wait again, and there are too many probes.
            let may_wait_again = manager.job().spec.stages.iter().any(|stage| !stage.inputs.is_empty());
            let is_surplus = |state: &AskState| may_wait_again && state.probes > ratio * state.open;
            let mut states = manager.local_scheduler().into_iter().flat_map(|local| local.ask_states());
            states.try_for_each(|state| if is_surplus(&state) { Ok(()) } else { check_count(&state, ratio) })?;
        }
        for node in world.quiet_nodes() {
            let is_counted_on = world.is_counted_on(node);
            if let Some(agent) = world.agent(node).filter(|agent| is_counted_on && agent.is_welcomed()) {
                self.compared += u64::from(agent.probes().next().is_some());
                self.check_node(world, node, agent)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Input;
    use crate::testing::{run, simulation_under};
    use amalgam_core::hosting::Envelope;
    use amalgam_core::preset::Preset;
    use amalgam_core::protocol::{Address, Probe, ToJobManager};
    use amalgam_core::vocabulary::{AskId, Epoch, ExecutionType, JobId, Resources, TaskShape};
    use std::sync::Arc;

    /// Checks a test cluster that runs two tasks and has no waiting ones, after `to` has taken this false message.
    fn check_after_lie(to: ProcessId, from: Address, address: Address, message: Message) -> Result<(), Breach> {
        let mut world = simulation_under(Preset::SPARROW, &[]);
        run(&mut world, 2_000_000);
        world.put(to, Input::Envelope(Envelope { from, to: address, message }));
        run(&mut world, 2_100_000);
        assert!(world.is_quiet(0));
        Probes::default().check(&world, &[])
    }

    fn probe(cpu_millis: u32) -> Message {
        let id = ProbeId { job: JobId(1), epoch: Epoch(1), number: 99 };
        let shape = TaskShape { resources: Resources::new(cpu_millis, 0), execution: ExecutionType::Guaranteed };
        Message::ToNode(ToNode::Probe(Probe { id, shape: Arc::new(shape) }))
    }

    const NODE: Address = Address::Node(NodeId(0));
    const JOB: Address = Address::JobManager(JobId(1));

    #[test]
    fn a_probe_that_only_its_node_knows_is_noticed() {
        let quiet = Message::ToJobManager(ToJobManager::Ready { probe: ProbeId::default() });
        assert_eq!(check_after_lie(ProcessId::Server, NODE, JOB, quiet), Ok(()));
        let breach = check_after_lie(ProcessId::Node(0), JOB, NODE, probe(1_000)).unwrap_err();
        assert!(breach.what.contains("no job manager knows it"), "{}", breach.what);
    }

    #[test]
    fn a_probe_that_only_its_job_manager_knows_is_noticed() {
        let mut world = simulation_under(Preset::SPARROW, &[]);
        run(&mut world, 2_000_000);
        // The job manager believes that a running task is lost and sends probes for it, which wait at the full node.
        let attempt = world.agent(0).and_then(|agent| agent.live().next()).map(|live| live.attempt).unwrap();
        let message = Message::ToJobManager(ToJobManager::NotTaken { attempt });
        world.put(ProcessId::Server, Input::Envelope(Envelope { from: NODE, to: JOB, message }));
        run(&mut world, 2_100_000);
        assert_eq!(Probes::default().check(&world, &[]), Ok(()));
        let probes: Vec<ProbeId> = world.agent(0).unwrap().probes().map(|(probe, _)| probe).collect();
        assert_eq!(probes.len(), 2);
        let message = Message::ToNode(ToNode::Cancel { probes });
        world.put(ProcessId::Node(0), Input::Envelope(Envelope { from: JOB, to: NODE, message }));
        run(&mut world, 2_200_000);
        let breach = Probes::default().check(&world, &[]).unwrap_err();
        assert!(breach.what.contains("which does not have it"), "{}", breach.what);
    }

    #[test]
    fn too_few_probes_and_too_many_are_noticed() {
        let state = AskState { ask: AskId::default(), open: 3, bound: 0, probes: 6, has_nodes: true };
        assert_eq!(check_count(&state, 2), Ok(()));
        assert!(check_count(&AskState { probes: 5, ..state }, 2).is_err());
        assert!(check_count(&AskState { probes: 7, ..state }, 2).is_err());
        assert_eq!(check_count(&AskState { probes: 7, bound: 1, ..state }, 2), Ok(()), "left by a bound task");
        assert!(check_count(&AskState { open: 0, probes: 1, bound: 3, ..state }, 2).is_err());
        assert_eq!(check_count(&AskState { probes: 0, has_nodes: false, ..state }, 2), Ok(()));
    }
}
