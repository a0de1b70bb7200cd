//! What a client of the HTTP interface receives.

use crate::vocabulary::JobId;
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToClient {
    /// The job is on disk.
    Submitted {
        job: JobId,
    },
    Done,
    /// There was nothing to do: the requested state is the present one.
    AsBefore,
    Refused(Refusal),
}

/// Why a client's request was not carried out, and a remedy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refusal {
    pub kind: RefusalKind,
    pub message: String,
    pub remedy: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RefusalKind {
    Invalid,
    NotFound,
    /// The present state does not allow it.
    Conflict,
    /// A limit is reached; a later request may succeed.
    Busy,
}
