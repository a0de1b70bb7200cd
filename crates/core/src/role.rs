//! The interface of all roles: a state machine that takes an event and leaves its effects in an outbox.

mod change;
mod record;

pub use crate::progress::LostCause;
pub use change::Change;
pub use record::{Record, TokenFault, Trigger};

use crate::protocol::{Address, Message, Peer};
use crate::vocabulary::Instant;
use serde::{Deserialize, Serialize};

/// A state machine without IO, driven by a daemon or by the simulator.
pub trait Role {
    type Message;
    type Description;

    /// Handles one event. All effects are left in `out`.
    fn handle(&mut self, now: Instant, event: Event<Self::Message>, out: &mut Outbox);

    /// When the role needs a `Wakeup`; asked after every `handle`.
    fn next_wakeup(&self) -> Option<Instant>;

    /// Restores what an earlier incarnation persisted, in order, before the first event.
    fn recover(&mut self, changes: &[Change]);

    /// Changes that give a new role this one's durable state, for a snapshot of the store.
    fn durable(&self) -> Vec<Change>;

    /// Its state for people, and for a simulator that starts from it. Times are given as ages, not as instants.
    fn describe(&self, now: Instant) -> Self::Description;
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event<M> {
    Message {
        from: Address,
        body: M,
    },
    /// A connection to `peer` is established. Each incarnation of the peer has another number.
    Connected {
        peer: Address,
        incarnation: u64,
    },
    /// The connection to `peer` broke. A driver that cannot detect this may omit it: silence has the same effect later.
    Disconnected {
        peer: Address,
    },
    Wakeup,
}

/// The effects of one or several events.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Outbox {
    pub sends: Vec<(Address, Message)>,
    pub changes: Vec<Change>,
    pub records: Vec<Record>,
}

impl Outbox {
    pub fn send<P: Peer>(&mut self, to: P, body: P::Message) {
        self.sends.push(to.envelope(body));
    }

    /// Makes a change durable before any message of this or a later `handle` is sent. For a receiver on another machine
    /// the change is on disk by then; for an order to the executor on the same machine it is written.
    pub fn persist(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Reports a fact for metrics, stories, transcripts and reasons, after the changes of its event. No message is
    /// delayed by it.
    pub fn record(&mut self, fact: Record) {
        self.records.push(fact);
    }

    pub fn clear(&mut self) {
        self.sends.clear();
        self.changes.clear();
        self.records.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.sends.is_empty() && self.changes.is_empty() && self.records.is_empty()
    }
}
