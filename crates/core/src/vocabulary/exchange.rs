//! What a job donated to other jobs and received from them.

use super::resources::WIDTH;
use super::{ClockOffset, Duration, Instant, Totals};
use serde::{Deserialize, Serialize};

/// Resources times time, per kind: the kind's unit times microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ResourceTime(pub [u128; WIDTH]);

impl ResourceTime {
    pub const ZERO: ResourceTime = ResourceTime([0; WIDTH]);

    pub fn add(&mut self, more: &ResourceTime) {
        for kind in 0..WIDTH {
            self.0[kind] = self.0[kind].saturating_add(more.0[kind]);
        }
    }

    /// Adds `amounts` held for `time`.
    pub fn add_over(&mut self, amounts: &Totals, time: Duration) {
        for kind in 0..WIDTH {
            let more = u128::from(amounts.0[kind]) * u128::from(time.0);
            self.0[kind] = self.0[kind].saturating_add(more);
        }
    }

    pub fn is_zero(&self) -> bool {
        *self == ResourceTime::ZERO
    }

    /// In the kind's unit times seconds.
    pub fn seconds(&self, kind: usize) -> f64 {
        self.0[kind] as f64 / 1e6
    }
}

/// What a job donated and received so far, and when it would end with its share alone. `job_manager/exchange.rs` defines what is
/// counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Exchange {
    pub given: ResourceTime,
    pub received: ResourceTime,
    /// When the job would end, or would have ended, with its share alone.
    pub alone: Option<Instant>,
}

impl Exchange {
    /// See [`crate::role::Change::set_clock`].
    pub(crate) fn set_clock(&mut self, offset: ClockOffset) {
        self.alone = self.alone.map(|at| at.by_clock(offset));
    }
}
