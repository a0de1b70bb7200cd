//! A floor for benchmarks: what no simulator with an agenda can avoid.

use crate::agenda::Agenda;
use amalgam_core::vocabulary::{Chance, Duration, Instant};

/// Of things that happen, those that lead to another one after [`SOON`], in tenths; the rest lead to one that is far off.
const SOON_TENTHS: u32 = 8;
const SOON: Duration = Duration::from_micros(500);
const FAR: u64 = 600_000_000;

/// Lets so many things happen on a bare agenda on which so many wait all along. Returns when the last one happened.
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
