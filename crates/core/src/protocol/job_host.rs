//! What a process of job managers receives.

use crate::vocabulary::{Instant, JobId, Kinds};
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToJobHost {
    /// The jobs of this host that the master knows, with their times of submission. It knows no others. Sent on each connection
    /// before any message about these jobs; both sides know the connection by this number.
    Known { connection: u64, kinds: Kinds, jobs: Vec<(JobId, Instant)> },
    /// The kinds of resources that nodes offer now.
    Kinds { kinds: Kinds },
    /// The master forgets the job: its state can be deleted.
    Forget { job: JobId },
    /// A job manager of this process has started.
    Has { job: JobId, submitted_at: Instant },
}
