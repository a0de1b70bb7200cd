//! How far a running attempt has come.

use super::time::Duration;
use serde::{Deserialize, Serialize};

/// Parts of a whole are counted in millionths.
pub const WHOLE: u32 = 1_000_000;

/// What an executor sees of an attempt's progress.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Since its process started.
    pub running_for: Duration,
    /// The part of its work that is done, in millionths, where its process says so.
    pub said: Option<u32>,
    /// What it has used so far.
    pub cpu: Duration,
    /// What it has read so far, from wherever.
    pub read_bytes: u64,
}
