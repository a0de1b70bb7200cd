//! The frames between daemons after the handshake.

use super::Fetched;
use crate::auth::SharedUser;
use crate::authority::{Certified, SharedFiles};
use crate::files::direct::{Expected, Visit, Way};
use crate::files::{Piece, PieceAsk};
use crate::input::{InputPart, Taken};
use crate::store::Entry;
use amalgam_core::hosting::{Envelope, Present};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{AttemptId, HostId, Instant, NodeId, StoredFile, Stream};
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;

#[derive(Serialize, Deserialize)]
pub(super) enum Wire {
    /// A sign of life, sent if there is nothing else to send.
    Alive,
    Mail(Vec<Envelope>),
    /// Requests a piece of an attempt's output from its node.
    Fetch {
        id: u64,
        node: NodeId,
        attempt: AttemptId,
        stream: Stream,
        offset: u64,
        limit: u32,
    },
    Fetched {
        id: u64,
        fetched: Fetched,
    },
    /// A part of the standard input of an attempt at this node.
    Feed {
        id: u64,
        node: NodeId,
        attempt: AttemptId,
        part: InputPart,
    },
    Fed {
        id: u64,
        taken: Taken,
    },
    /// Requests a piece of a file of another node.
    AskFile {
        id: u64,
        ask: PieceAsk,
    },
    FilePiece {
        id: u64,
        piece: Piece,
    },
    /// Addresses of the job hosts that have connected to the server.
    Hosts(Vec<(HostId, String)>),
    /// Durable entries of a job host's log, from number `first` on. `now` is the time of the job host's clock.
    Log {
        now: Instant,
        first: u64,
        entries: Vec<Entry>,
    },
    /// The state of a job host that its log does not contain. Sent after the log.
    Present {
        now: Instant,
        present: Present,
    },
    /// The full state of a job host before its log's entry `next`.
    All {
        now: Instant,
        next: u64,
        changes: Vec<Change>,
    },
    /// Asks the server how this node reaches another one that has a file.
    AskWay {
        id: u64,
        source: NodeId,
        file: StoredFile,
    },
    Way {
        id: u64,
        way: Way,
    },
    /// A node will fetch a file of this one.
    Expect {
        id: u64,
        visit: Visit,
    },
    Expected {
        id: u64,
        expected: Expected,
    },
    /// From the server: the newest certificate of a daemon that joined with a string.
    Certificate(Box<Certified>),
    /// From the server: the digests of the keys of all agents, to a job host; of all job hosts, to an agent.
    Keys(Vec<String>),
    /// To the server: the last certificate was stored. The authority with this fingerprint has signed it.
    Stored(String),
    /// From the server, to a global master that joined with a string: the users whose tokens are valid there, too.
    Users(Vec<SharedUser>),
    /// From the active server, to a standby that joined with a string.
    Shared(SharedFiles),
    /// From an agent that has authenticated itself with its token: asks for a certificate for this public key.
    WantCertificate {
        key: Vec<u8>,
    },
}

impl Wire {
    /// The protocol version that introduced this frame.
    pub(super) fn since(&self) -> u32 {
        match self {
            Wire::Alive
            | Wire::Mail(_)
            | Wire::Fetch { .. }
            | Wire::Fetched { .. }
            | Wire::Feed { .. }
            | Wire::Fed { .. }
            | Wire::AskFile { .. }
            | Wire::FilePiece { .. }
            | Wire::Hosts(_)
            | Wire::Log { .. }
            | Wire::Present { .. }
            | Wire::All { .. } => 32,
            Wire::AskWay { .. }
            | Wire::Way { .. }
            | Wire::Expect { .. }
            | Wire::Expected { .. }
            | Wire::Certificate(_)
            | Wire::Keys(_)
            | Wire::Stored(_)
            | Wire::Users(_)
            | Wire::Shared(_)
            | Wire::WantCertificate { .. } => 33,
        }
    }
}

impl Wire {
    /// Replaces variants that a peer with this version of the protocol does not know.
    pub(super) fn fit(&mut self, version: u32) {
        if let Wire::Fetched { fetched, .. } = self {
            fetched.fit(version);
        }
    }
}

/// A frame to be written. It holds its permit until it is written, so that pieces for a peer that reads slowly take a
/// limited amount of memory.
pub(super) struct Outgoing {
    pub(super) wire: Wire,
    pub(super) _place: Option<OwnedSemaphorePermit>,
}

impl From<Wire> for Outgoing {
    fn from(wire: Wire) -> Outgoing {
        Outgoing { wire, _place: None }
    }
}
