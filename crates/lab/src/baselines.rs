//! Presets of the papers' baselines, which no operator would choose, besides the product's.

use amalgam_core::preset::{Choice, Entitled, IntraJob, Preset, Probed, QueueChoice, Scheduling};

/// The baselines of the Sparrow paper (Ousterhout et al. 2013, section 3): no probes, the task waits at the node that was chosen
/// for it.
const SPARROW_RANDOM: Preset = probed("sparrow-random", QueueChoice::Random);
/// Departs: queues are compared as the master published them last, not by probing.
const SPARROW_POWER_OF_TWO: Preset = probed("sparrow-power-of-two", QueueChoice::PowerOfTwo);

/// The baseline of the Apollo paper (Boutin et al. 2014, section 4): the same shares and nodes' queues, but job managers do not
/// know loads. They send tasks near their input, at a larger distance the longer they wait, and try node after node with duplicates.
/// Nodes work as under `apollo`, with which it shares a cluster; no job manager reads the waits that nodes publish.
const APOLLO_BASELINE: Preset = {
    let Some(settings) = Preset::APOLLO.entitled() else { panic!("job managers have entitlements") };
    Preset::new("apollo-baseline", Scheduling::Entitled(Entitled { choice: Choice::WITHOUT_ESTIMATES, ..*settings }))
};

const ALL: &[Preset] = &[SPARROW_RANDOM, SPARROW_POWER_OF_TWO, APOLLO_BASELINE];

/// A preset of the product or a baseline. Jobs on its cluster may name baselines, too.
///
/// # Errors
/// A sentence that lists all.
pub fn parse(name: &str) -> Result<Preset, String> {
    let found = ALL.iter().copied().find(|baseline| baseline.name() == name).map_or_else(|| Preset::parse(name), Ok);
    let baselines = ALL.iter().map(|baseline| baseline.name()).collect::<Vec<_>>().join(", ");
    found.map(|preset| preset.with_others(ALL)).map_err(|problem| format!("{problem}, and the baselines {baselines}"))
}

const fn probed(name: &'static str, choice: QueueChoice) -> Preset {
    Preset::new(name, Scheduling::Probed(Probed { intra_job: IntraJob::BreadthFirst, choice }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn baselines_are_known_beside_the_presets_of_the_product_and_only_here() {
        let names = |preset: &str| parse(preset).map(Preset::name);
        assert_eq!([names("apollo-baseline"), names("drf")], [Ok("apollo-baseline"), Ok("drf")]);
        let unknown = parse("sparow").unwrap_err();
        assert!(
            unknown.ends_with("and the baselines sparrow-random, sparrow-power-of-two, apollo-baseline"),
            "{unknown}"
        );
        assert!(ALL.iter().all(|baseline| Preset::parse(baseline.name()).is_err()));
        let apollo = parse("apollo").expect("the product has it");
        assert_eq!(apollo.beside("apollo-baseline").map(Preset::name), Ok("apollo-baseline"));
    }
}
