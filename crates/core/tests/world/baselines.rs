//! Presets that only tests use: job managers that choose a queue without knowing loads, or by those that were published.

use amalgam_core::preset::{Choice, Entitled, IntraJob, Preset, Probed, QueueChoice, Scheduling};

pub const RANDOM: Preset = probed("random", QueueChoice::Random);
pub const POWER_OF_TWO: Preset = probed("power-of-two", QueueChoice::PowerOfTwo);
pub const WITHOUT_ESTIMATES: Preset = {
    let Some(settings) = Preset::APOLLO.entitled() else { panic!("job managers have entitlements") };
    Preset::new("without-estimates", Scheduling::Entitled(Entitled { choice: Choice::WITHOUT_ESTIMATES, ..*settings }))
};

/// For [`Preset::with_others`].
pub const ALL: &[Preset] = &[RANDOM, POWER_OF_TWO, WITHOUT_ESTIMATES];

const fn probed(name: &'static str, choice: QueueChoice) -> Preset {
    Preset::new(name, Scheduling::Probed(Probed { intra_job: IntraJob::BreadthFirst, choice }))
}
