//! A baseline for benchmarks: the cost of the agenda alone.

use crate::agenda::Agenda;
use amalgam_core::vocabulary::{Chance, Duration, Instant};

/// Tenths of the entries that add another one after [`SOON`]. The others add one up to [`FAR`] microseconds later.
const SOON_TENTHS: u32 = 8;
const SOON: Duration = Duration::from_micros(500);
const FAR: u64 = 600_000_000;

/// Takes `happening` entries from an agenda that holds `waiting` entries at any time. Returns the time of the last one.
pub fn run_agenda(waiting: u64, happening: u64) -> Instant {
    let mut chance = Chance::new(1, "bench");
    let mut agenda = Agenda::default();
    for number in 0..waiting {
        agenda.note(Instant(chance.below(FAR)), number);
    }
    let mut now = Instant::ZERO;
    for _ in 0..happening {
        let Some((at, number)) = agenda.pop() else { break };
        now = at;
        let after = if chance.below(10_u32) < SOON_TENTHS { SOON } else { Duration::from_micros(chance.below(FAR)) };
        agenda.note(now + after, number);
    }
    now
}
