//! Why a node takes no work.

use serde::{Deserialize, Serialize};

/// Why a node takes no work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ClosedReason {
    /// Known from an earlier incarnation of the master, and not seen in this one.
    Expected,
    Unreachable,
    Lost,
    Drained,
    /// It could not launch an attempt.
    Paused {
        why: String,
    },
    /// Its master reports it as closed, without a reason.
    Closed,
}

impl ClosedReason {
    /// The most nodes that are named if none takes work.
    pub const SHOWN: usize = 3;

    /// The reason as the rest of a sentence that starts with the node's name.
    pub fn describe(&self) -> String {
        match self {
            ClosedReason::Expected => "has not connected since the server started".to_owned(),
            ClosedReason::Unreachable => "is unreachable".to_owned(),
            ClosedReason::Lost => "is lost: it was unreachable for too long".to_owned(),
            ClosedReason::Drained => "is drained (`amalgam node undrain` opens it)".to_owned(),
            ClosedReason::Paused { why } => format!("is paused because it could not launch a task: {why}"),
            ClosedReason::Closed => "takes no work (drained or paused)".to_owned(),
        }
    }
}
