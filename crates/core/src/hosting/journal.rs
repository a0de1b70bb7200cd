//! Journals of the events and effects of the roles of a process, and replays that check that the roles do the same again.
//!
//! Roles depend on nothing but their events, so replaying a daemon's journal gives the same effects anywhere. An effect that
//! differs is caused by a clock, a random source or a memory order that core uses by mistake.

use super::{Managers, Roles};
use crate::dispatch::DispatchSettings;
use crate::job_manager::JobManagerSettings;
use crate::master::MasterSettings;
use crate::node::NodeSettings;
use crate::policy::inter_job::QueueTree;
use crate::preset::Preset;
use crate::protocol::{ToGlobalMaster, ToJobHost, ToJobManager, ToMaster, ToNode, VERSION};
use crate::role::{Change, Event, Outbox};
use crate::vocabulary::{Epoch, Instant, JobId, Key, Mac, NodeId, Sealing, Seat};
use serde::{Deserialize, Serialize};

/// A line of a journal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
// The large variant occurs once, at the start.
#[allow(clippy::large_enum_variant)]
pub enum Entry {
    /// A process started, without roles. The root key allows a reader of the journal to make the tokens of this incarnation.
    Started {
        preset: Preset,
        epoch: Epoch,
        settings: JobManagerSettings,
        root: Key,
        managers: Managers,
        seat: Option<Seat>,
    },
    /// It has a master and job managers, which were recovered from its log.
    Recovered { settings: MasterSettings, queues: QueueTree, changes: Vec<Change> },
    /// It has a global master and the managers of its jobs, which were recovered from its log.
    GlobalRecovered { settings: DispatchSettings, queues: QueueTree, changes: Vec<Change> },
    /// It has job managers without a master, which were recovered from their log.
    JobsRecovered { changes: Vec<Change> },
    /// It has a node.
    NodeAdded { node: NodeId, settings: NodeSettings },
    /// The master gave a node its number.
    Named { name: String, left: Outbox },
    /// A role handled an event.
    Handled { now: Instant, event: RoleEvent, left: Outbox },
}

/// An event and the role that handles it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RoleEvent {
    Master(Event<ToMaster>),
    Global(Event<ToGlobalMaster>),
    JobManager(JobId, Event<ToJobManager>),
    JobHost(Event<ToJobHost>),
    Node(NodeId, Event<ToNode>),
}

/// Roles that replay a journal.
pub struct Replay {
    mac: Mac,
    /// The version of the wire that the process spoke.
    version: u32,
    roles: Option<Roles>,
    /// The effects of the last event.
    outbox: Outbox,
}

/// How a replay differs from its journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Difference {
    /// The roles had other effects.
    Effects { recorded: Box<Outbox>, replayed: Box<Outbox> },
    /// The role of the entry does not exist: earlier entries are missing from the journal.
    NoRole,
}

impl Replay {
    /// With the seal function that the process used, which a journal cannot store.
    pub fn new(mac: Mac) -> Replay {
        Replay { mac, version: VERSION, roles: None, outbox: Outbox::default() }
    }

    /// Of a journal whose process spoke this version of the wire. Fields of messages that came later are not compared.
    pub fn of_version(self, version: u32) -> Replay {
        Replay { version, ..self }
    }

    /// # Errors
    /// If the effects differ from those in the journal.
    pub fn apply(&mut self, entry: Entry) -> Result<(), Difference> {
        match entry {
            Entry::Started { preset, epoch, settings, root, managers, seat } => {
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
                let roles = self.roles.as_mut().ok_or(Difference::NoRole)?;
                let master = roles.master.as_mut().ok_or(Difference::NoRole)?;
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

    /// Gives a role its event without comparing the effects.
    ///
    /// # Errors
    /// If the role does not exist.
    pub fn hand_over(&mut self, now: Instant, event: RoleEvent) -> Result<(), Difference> {
        self.outbox.clear();
        let roles = self.roles.as_mut().ok_or(Difference::NoRole)?;
        let is_there = match event {
            RoleEvent::Master(event) => roles.hand_to_master(now, event, &mut self.outbox),
            RoleEvent::Global(event) => roles.hand_to_global(now, event, &mut self.outbox),
            RoleEvent::JobManager(job, event) => roles.hand_to_manager(now, job, event, &mut self.outbox).is_none(),
            RoleEvent::JobHost(event) => roles.hand_to_job_host(now, event, &mut self.outbox),
            RoleEvent::Node(node, event) => roles.hand_to_node(now, node, event, &mut self.outbox),
        };
        if is_there { Ok(()) } else { Err(Difference::NoRole) }
    }

    fn compare(&mut self, recorded: Outbox) -> Result<(), Difference> {
        if self.version < VERSION {
            self.outbox.sends.iter_mut().for_each(|(_, message)| message.reduce_to(self.version));
        }
        if self.outbox == recorded {
            return Ok(());
        }
        let replayed = Box::new(std::mem::take(&mut self.outbox));
        Err(Difference::Effects { recorded: Box::new(recorded), replayed })
    }

    fn roles(&mut self) -> Result<&mut Roles, Difference> {
        self.roles.as_mut().ok_or(Difference::NoRole)
    }
}
