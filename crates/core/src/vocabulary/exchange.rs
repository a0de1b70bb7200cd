//! What a job gave to others and received from them.

use super::resources::WIDTH;
use super::{ClockOffset, Duration, Instant, Totals};
use serde::{Deserialize, Serialize};

/// Resources times time: of every kind, its unit times microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ResourceTime(pub [u128; WIDTH]);

impl ResourceTime {
    pub const ZERO: ResourceTime = ResourceTime([0; WIDTH]);

    pub fn add(&mut self, more: &ResourceTime) {
        for kind in 0..WIDTH {
            self.0[kind] = self.0[kind].saturating_add(more.0[kind]);
        }
    }

    /// So much more, for so long.
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

/// What a job gave and received so far, and how it would have gone with its share to itself. `job_manager/exchange.rs` says
/// what counts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Exchange {
    pub given: ResourceTime,
    pub received: ResourceTime,
    /// The end that it would have, or have had, with its share to itself.
    pub alone: Option<Instant>,
}

impl Exchange {
    /// See [`crate::role::Change::set_clock`].
    pub(crate) fn set_clock(&mut self, offset: ClockOffset) {
        self.alone = self.alone.map(|at| at.by_clock(offset));
    }
}
