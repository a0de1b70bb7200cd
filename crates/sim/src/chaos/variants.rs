//! Presets that only chaos runs: job managers that choose queues without knowing loads, or by loads that were published.

use amalgam_core::preset::{Choice, Entitled, IntraJob, Preset, Probed, QueueChoice, Scheduling};

const RANDOM: Preset = probed("sparrow-random", QueueChoice::Random);
const POWER_OF_TWO: Preset = probed("sparrow-power-of-two", QueueChoice::PowerOfTwo);
pub(super) const WITHOUT_ESTIMATES: Preset = {
    let Some(settings) = Preset::APOLLO.entitled() else { panic!("job managers have entitlements") };
    Preset::new("apollo-baseline", Scheduling::Entitled(Entitled { choice: Choice::WITHOUT_ESTIMATES, ..*settings }))
};

/// For [`Preset::with_others`].
pub(super) const ALL: &[Preset] = &[RANDOM, POWER_OF_TWO, WITHOUT_ESTIMATES];

/// Presets in which job managers send every task to nodes' queues.
pub(super) const DISTRIBUTED: [Preset; 3] = [Preset::SPARROW, RANDOM, POWER_OF_TWO];

/// Presets in which job managers send tasks to nodes' queues within entitlements.
pub(super) const QUEUEING: [Preset; 3] = [Preset::APOLLO, Preset::APOLLO_PLUS, WITHOUT_ESTIMATES];

const fn probed(name: &'static str, choice: QueueChoice) -> Preset {
    Preset::new(name, Scheduling::Probed(Probed { intra_job: IntraJob::BreadthFirst, choice }))
}
