//! The daemons' clock: microseconds since the Unix epoch. It never goes back, not even after a restart.

use amalgam_core::vocabulary::Instant;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
    started: std::time::Instant,
}

impl Clock {
    /// Starts at the system's time, but not before `floor`, the last instant in the log of an earlier run.
    pub fn starting_at_least(floor: Instant) -> Clock {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = Instant(u64::try_from(since_epoch.as_micros()).unwrap_or(0));
        Clock { origin: wall.max(floor), started: std::time::Instant::now() }
    }

    pub fn now(&self) -> Instant {
        Instant(self.origin.0 + self.started.elapsed().as_micros() as u64)
    }
}
