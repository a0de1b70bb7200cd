//! What the roles of a process were given and what they left, and whether they would do the same again.
//!
//! Roles read nothing but their events, so a journal that a daemon kept leads roles anywhere else to the same effects. An
//! effect that differs comes from a clock, a random source or an order of memory that has crept into core.

use super::{Managers, Roles};
use crate::dispatch::DispatchSettings;
use crate::job_manager::JobManagerSettings;
use crate::master::MasterSettings;
use crate::node::NodeSettings;
use crate::policy::inter_job::QueueTree;
use crate::preset::Preset;
use crate::protocol::{ToGlobalMaster, ToJobHost, ToJobManager, ToMaster, ToNode};
use crate::role::{Change, Event, Outbox};
use crate::vocabulary::{Epoch, Instant, JobId, Key, Mac, NodeId, Sealing, Seat};
use serde::{Deserialize, Serialize};

/// A line of a journal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
// The large one comes once, at the beginning.
#[allow(clippy::large_enum_variant)]
pub enum Entry {
    /// A process began. It has no roles yet. With the root, whoever reads the journal can make this life's tokens.
    Began {
        preset: Preset,
        epoch: Epoch,
        settings: JobManagerSettings,
        root: Key,
        managers: Managers,
        seat: Option<Seat>,
    },
    /// It has a master, and job managers, which took in what its log held.
    Recovered { settings: MasterSettings, queues: QueueTree, changes: Vec<Change> },
    /// It has a global master, and the managers of its jobs, which took in what its log held.
    GlobalRecovered { settings: DispatchSettings, queues: QueueTree, changes: Vec<Change> },
    /// It has job managers and no master; they took in what their log held.
    JobsRecovered { changes: Vec<Change> },
    /// It has a node.
    NodeAdded { node: NodeId, settings: NodeSettings },
    /// The master gave a node its number.
    Named { name: String, left: Outbox },
    /// A role took an event.
    Handled { now: Instant, event: RoleEvent, left: Outbox },
}

/// An event and the role that takes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RoleEvent {
    Master(Event<ToMaster>),
    Global(Event<ToGlobalMaster>),
    JobManager(JobId, Event<ToJobManager>),
    JobHost(Event<ToJobHost>),
    Node(NodeId, Event<ToNode>),
}

/// Roles that are led through a journal.
pub struct Replay {
    mac: Mac,
    roles: Option<Roles>,
    /// What the last event left.
    outbox: Outbox,
}

/// Where a replay leaves its journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// The roles left something else.
    Effects { recorded: Box<Outbox>, replayed: Box<Outbox> },
    /// Nobody is there who could take the entry: the journal lacks what came before.
    Nobody,
}

impl Replay {
    /// By the seal that the process used, which a journal cannot hold.
    pub fn new(mac: Mac) -> Replay {
        Replay { mac, roles: None, outbox: Outbox::default() }
    }

    /// # Errors
    /// When the roles do not do what the journal says they did.
    pub fn take(&mut self, entry: Entry) -> Result<(), Difference> {
        match entry {
            Entry::Began { preset, epoch, settings, root, managers, seat } => {
                let roles = Roles::new(preset, epoch, settings, Sealing { root, mac: self.mac });
                self.roles = Some(roles.with_managers(managers).seated(seat));
            }
            Entry::Recovered { settings, queues, changes } => self.roles()?.recover(settings, queues, changes),
            Entry::GlobalRecovered { settings, queues, changes } => {
                self.roles()?.recover_global(settings, queues, changes);
            }
            Entry::JobsRecovered { changes } => self.roles()?.recover_job_managers(changes),
            Entry::NodeAdded { node, settings } => self.roles()?.add_local_node(node, settings),
            Entry::Named { name, left } => {
                self.outbox.clear();
                let roles = self.roles.as_mut().ok_or(Difference::Nobody)?;
                let master = roles.master.as_mut().ok_or(Difference::Nobody)?;
                master.name_node(&name, &mut self.outbox);
                self.compare(left)?;
            }
            Entry::Handled { now, event, left } => {
                self.hand_over(now, event)?;
                self.compare(left)?;
            }
        }
        Ok(())
    }

    /// Gives a role its event, and compares nothing.
    ///
    /// # Errors
    /// When the role is not there.
    pub fn hand_over(&mut self, now: Instant, event: RoleEvent) -> Result<(), Difference> {
        self.outbox.clear();
        let roles = self.roles.as_mut().ok_or(Difference::Nobody)?;
        let is_there = match event {
            RoleEvent::Master(event) => roles.hand_to_master(now, event, &mut self.outbox),
            RoleEvent::Global(event) => roles.hand_to_global(now, event, &mut self.outbox),
            RoleEvent::JobManager(job, event) => roles.hand_to_manager(now, job, event, &mut self.outbox).is_none(),
            RoleEvent::JobHost(event) => roles.hand_to_job_host(now, event, &mut self.outbox),
            RoleEvent::Node(node, event) => roles.hand_to_node(now, node, event, &mut self.outbox),
        };
        if is_there { Ok(()) } else { Err(Difference::Nobody) }
    }

    fn compare(&mut self, recorded: Outbox) -> Result<(), Difference> {
        if self.outbox == recorded {
            return Ok(());
        }
        let replayed = Box::new(std::mem::take(&mut self.outbox));
        Err(Difference::Effects { recorded: Box::new(recorded), replayed })
    }

    fn roles(&mut self) -> Result<&mut Roles, Difference> {
        self.roles.as_mut().ok_or(Difference::Nobody)
    }
}
