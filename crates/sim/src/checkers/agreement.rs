//! The ledger, the job managers and a node agree on the attempts at the node when no message between them is in
//! transit.

use super::{Breach, Checker};
use crate::faults::Happening;
use crate::simulation::Simulation;
use amalgam_core::node::NodeAgent;
use amalgam_core::role::{Change, LostCause, Record};
use amalgam_core::vocabulary::{AttemptId, Epoch, GrantId, NodeId};
use std::collections::BTreeSet;

#[derive(Default)]
pub struct Agreement {
    /// Attempts that their nodes are stopping because they have no owner or another attempt of their task was first.
    orphans: BTreeSet<AttemptId>,
    /// Number of comparisons of nodes with attempts.
    compared: u64,
}

impl Agreement {
    /// Checks that the bookings of a node are the grants that its attempts hold.
    fn check_ledger(world: &Simulation, node: usize, agent: &NodeAgent) -> Result<(), Breach> {
        let Some(ledger) = world.ledger_of(node) else { return Ok(()) };
        let bookings = ledger.bookings_on(NodeId(node as u32));
        let booked: BTreeSet<(Epoch, u64)> = bookings.map(|booking| key(booking.grant)).collect();
        let held: BTreeSet<(Epoch, u64)> = agent.live().filter_map(|live| live.grant).map(key).collect();
        if booked == held {
            return Ok(());
        }
        let only = |some: &BTreeSet<(Epoch, u64)>, others: &BTreeSet<(Epoch, u64)>| {
            let grants: Vec<String> =
                some.difference(others).map(|(epoch, number)| format!("g{}-{number}", epoch.0)).collect();
            grants.join(" ")
        };
        let what = format!(
            "on n{node} only the ledger has [{}], only the node has [{}]",
            only(&booked, &held),
            only(&held, &booked)
        );
        Err(Breach::new(what))
    }

    /// Checks that the attempts which job managers believe to be on a node are there, and no others, except those that
    /// are being stopped.
    fn check_job_managers(&self, world: &Simulation, node: usize, agent: &NodeAgent) -> Result<(), Breach> {
        let id = NodeId(node as u32);
        let live: BTreeSet<AttemptId> = agent.live().map(|live| live.attempt).collect();
        let mut believed = BTreeSet::new();
        for (_, manager) in world.job_managers() {
            for (attempt, task, _) in manager.running().filter(|(_, _, on)| *on == id) {
                if !live.contains(&attempt) {
                    let what = format!("{attempt} should run on {id}, which does not have it");
                    return Err(Breach::of_task(task, what));
                }
                believed.insert(attempt);
            }
        }
        match live.difference(&believed).find(|attempt| !self.orphans.contains(attempt)) {
            None => Ok(()),
            Some(attempt) => Err(Breach::of_job(attempt.job, format!("{attempt} runs on {id} without an owner"))),
        }
    }
}

impl Checker for Agreement {
    fn rule(&self) -> &'static str {
        "ledger and job managers never contradict a node beyond messages in flight"
    }

    /// Comparisons of nodes with attempts.
    fn subjects(&self) -> u64 {
        self.compared
    }

    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        for record in happened.iter().filter_map(Happening::record) {
            if let Record::Orphaned { attempt, .. } = record {
                self.orphans.insert(*attempt);
            }
        }
        for change in happened.iter().filter_map(Happening::change) {
            if let Change::Lost { attempt, cause: LostCause::Superseded, .. } = change {
                self.orphans.insert(*attempt);
            }
        }
        for node in world.quiet_nodes() {
            let is_counted_on = world.is_counted_on(node);
            if let Some(agent) = world.agent(node).filter(|agent| is_counted_on && agent.is_welcomed()) {
                self.compared += u64::from(agent.live().next().is_some());
                Agreement::check_ledger(world, node, agent)?;
                self.check_job_managers(world, node, agent)?;
            }
        }
        Ok(())
    }
}

/// Adopted grants keep their epoch and number and get another place.
fn key(grant: GrantId) -> (Epoch, u64) {
    (grant.epoch, grant.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::testing::world_with_a_task;
    use crate::places::ProcessId;
    use crate::process::Input;
    use crate::testing::run;
    use amalgam_core::hosting::Envelope;
    use amalgam_core::protocol::{Address, Message, ToJobManager, ToMaster};

    /// Checks after the server has taken a false message.
    fn check_after_lie(lie: impl Fn(&Simulation) -> Option<(Address, Message)>) -> Result<(), Breach> {
        let mut world = world_with_a_task();
        if let Some((to, message)) = lie(&world) {
            world.put(ProcessId::Server, Input::Envelope(Envelope { from: Address::Node(NodeId(0)), to, message }));
        }
        run(&mut world, 2_100_000);
        assert!(world.is_quiet(0));
        Agreement::default().check(&world, &[])
    }

    #[test]
    fn a_ledger_that_lost_a_booking_is_noticed() {
        assert_eq!(check_after_lie(|_| None), Ok(()));
        let freed = |world: &Simulation| {
            let grants = world.agent(0)?.live().take(1).filter_map(|live| live.grant).collect();
            Some((Address::Master, Message::ToMaster(ToMaster::Freed { grants, unfinished: false })))
        };
        assert!(check_after_lie(freed).unwrap_err().what.contains("only the node has [g1-1]"));
    }

    #[test]
    fn a_job_manager_that_misses_an_attempt_is_noticed() {
        let finished = |world: &Simulation| {
            let attempt = world.agent(0)?.live().next()?.attempt;
            let message = Message::ToJobManager(ToJobManager::NotTaken { attempt });
            Some((Address::JobManager(attempt.job), message))
        };
        assert!(check_after_lie(finished).unwrap_err().what.contains("without an owner"));
    }
}
