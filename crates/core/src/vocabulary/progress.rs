//! The progress of a running attempt.

use super::time::Duration;
use serde::{Deserialize, Serialize};

/// Parts of a whole are counted in millionths.
pub const WHOLE: u32 = 1_000_000;

/// What an executor sees of an attempt's progress.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Since its process started.
    pub running_for: Duration,
    /// The part of its work that is done, in millionths, if its process reports it.
    pub reported: Option<u32>,
    /// CPU time used so far.
    pub cpu: Duration,
    /// Bytes read so far, from any source.
    pub read_bytes: u64,
}
