//! Presets that share a cluster, and the settings of a preset on a cluster of another one (ADR 45).

use super::settings::choose;
use super::{Entitled, Preset, Scheduling};
use crate::policy::inter_job::QueueTree;
use crate::protocol::AdmittedJob;

impl Preset {
    /// Whether job managers of the other preset may place on a cluster of this one: both send tasks to the same nodes' queues,
    /// and both within entitlements or neither.
    fn shares_cluster_with(self, other: Preset) -> bool {
        matches!(
            (self.scheduling, other.scheduling),
            (Scheduling::Probed(_), Scheduling::Probed(_)) | (Scheduling::Entitled(_), Scheduling::Entitled(_))
        )
    }

    /// The preset of this name, for some of the jobs on a cluster of this one.
    ///
    /// # Errors
    /// Why the two cannot share a cluster, and what to choose instead.
    pub fn beside(self, name: &str) -> Result<Preset, (String, String)> {
        if name == self.name() {
            return Ok(self);
        }
        let other = self.named(name).map_err(|problem| (problem, String::new()))?;
        if self.shares_cluster_with(other) {
            return Ok(self.taken_in(other));
        }
        let names = |of: Preset| {
            let shares = |preset: &Preset| of.shares_cluster_with(*preset) && preset.name != of.name;
            self.known().filter(shares).map(Preset::name).collect::<Vec<_>>().join(" or ")
        };
        let (own, name) = (self.name(), other.name());
        let problem = format!("jobs cannot use the preset {name} on a cluster with the preset {own}");
        let remedy = match (names(self), names(other)) {
            (mine, _) if !mine.is_empty() => {
                format!("use a preset whose job managers send tasks to the same nodes' queues as {own}: {mine}")
            }
            (_, its) if !its.is_empty() => format!(
                "make {its} the cluster's preset: its job managers send tasks to the same nodes' queues as those of {name}"
            ),
            _ => format!(
                "only presets whose job managers send tasks to nodes' queues can share a cluster, such as {} and {}",
                Preset::APOLLO.name(),
                Preset::APOLLO_PLUS.name()
            ),
        };
        Err((problem, remedy))
    }

    /// All presets that queues and jobs can name.
    fn known(self) -> impl Iterator<Item = Preset> {
        Preset::all().chain(self.others.iter().copied())
    }

    fn named(self, name: &str) -> Result<Preset, String> {
        let named: Vec<(&str, Preset)> = self.known().map(|preset| (preset.name(), preset)).collect();
        choose("preset", name, &named)
    }

    /// Whether a cluster of this preset, whose queues name others, still publishes all that jobs with the other preset read.
    pub fn still_serves(self, name: &str, queues: &QueueTree, drawn: Option<&str>) -> bool {
        let Ok(wanted) = self.beside(name) else { return false };
        let others = queues.presets().chain(drawn).filter_map(|name| self.beside(name).ok());
        others.chain([self]).map(Preset::publishes).max() >= Some(wanted.publishes())
    }

    /// The settings of the cluster are those of this preset, those of the job managers are the other's.
    fn taken_in(self, other: Preset) -> Preset {
        let scheduling = match (self.scheduling, other.scheduling) {
            (Scheduling::Entitled(own), Scheduling::Entitled(other)) => {
                let Entitled { intra_job, choice, corrections, assumed_run_time, .. } = other;
                Scheduling::Entitled(Entitled { intra_job, choice, corrections, assumed_run_time, ..own })
            }
            (_, scheduling) => scheduling,
        };
        Preset { scheduling, seed: self.seed, others: self.others, ..other }
    }

    /// The preset of a job; the cluster's own if the two cannot share a cluster any more.
    pub fn of_job(self, job: &AdmittedJob) -> Preset {
        job.preset.as_deref().and_then(|name| self.beside(name).ok()).unwrap_or(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_manager::{ExplorationRules, OwnTasks};
    use crate::preset::Choice;
    use crate::vocabulary::Duration;

    const WITHOUT_ESTIMATES: Preset = {
        let Some(settings) = Preset::APOLLO.entitled() else { panic!("job managers have entitlements") };
        let settings = Entitled { choice: Choice::WITHOUT_ESTIMATES, ..*settings };
        Preset::new("without-estimates", Scheduling::Entitled(settings))
    };
    const OTHERS: &[Preset] = &[WITHOUT_ESTIMATES];

    fn entitled(preset: &mut Preset) -> &mut Entitled {
        preset.entitled_mut().expect("job managers have entitlements")
    }

    #[test]
    fn only_presets_that_use_the_same_queues_share_a_cluster() {
        let shares = |one: Preset, other: Preset| one.beside(other.name()).is_ok();
        for (one, other) in Preset::all().flat_map(|one| Preset::all().map(move |other| (one, other))) {
            let among = |some: &[Preset]| some.contains(&one) && some.contains(&other);
            let wanted = one.name == other.name || among(&Preset::QUEUEING) || among(&Preset::DISTRIBUTED);
            assert_eq!(shares(one, other), wanted, "{} beside {}", other.name(), one.name());
        }
    }

    #[test]
    fn the_clusters_own_preset_keeps_its_configured_settings() {
        let mut own = Preset { seed: 7, ..Preset::APOLLO };
        entitled(&mut own).corrections = None;
        assert_eq!(own.beside("apollo"), Ok(own));
        assert_eq!(Preset::DRF.beside("drf"), Ok(Preset::DRF));
    }

    #[test]
    fn a_preset_that_cannot_share_names_those_that_can() {
        let refused = |own: Preset, other: &str| own.beside(other).map(drop).unwrap_err();
        let (problem, remedy) = refused(Preset::APOLLO, "drf");
        assert_eq!(problem, "jobs cannot use the preset drf on a cluster with the preset apollo");
        assert!(remedy.ends_with("as apollo: apollo-plus"), "{remedy}");
        let (_, remedy) = refused(Preset::DRF, "apollo");
        assert!(remedy.starts_with("make apollo-plus the cluster's preset"), "{remedy}");
        let (_, remedy) = refused(Preset::FIFO, "drf");
        assert!(remedy.ends_with("such as apollo and apollo-plus"), "{remedy}");
        assert!(refused(Preset::APOLLO, "apolo").0.starts_with("unknown preset `apolo`"));
    }

    #[test]
    fn only_presets_of_the_product_and_of_the_cluster_can_be_named() {
        let own = Preset::APOLLO.with_others(OTHERS);
        assert_eq!(own.beside("without-estimates").map(Preset::name), Ok("without-estimates"));
        let (problem, _) = Preset::APOLLO.beside("without-estimates").unwrap_err();
        assert!(problem.starts_with("unknown preset `without-estimates`"), "{problem}");
        assert!(Preset::parse("without-estimates").is_err());
    }

    #[test]
    fn a_preset_beside_keeps_the_settings_of_the_cluster() {
        let mut own = Preset { seed: 7, ..Preset::APOLLO.with_others(OTHERS) };
        entitled(&mut own).allowance.opportunistic = 33;
        entitled(&mut own).guaranteed = 44;
        let mut beside = own.beside("without-estimates").expect("they share");
        assert_eq!((beside.name(), beside.seed), ("without-estimates", 7));
        let (rules, own) = (*entitled(&mut beside), *entitled(&mut own));
        assert_eq!((rules.allowance, rules.guaranteed), (own.allowance, 44));
        assert_eq!(rules.choice, Choice::WITHOUT_ESTIMATES);
    }

    #[test]
    fn only_job_managers_without_estimates_explore() {
        let exploring = |own: Preset, other: &str| {
            let own = own.with_others(OTHERS);
            let placement = own.beside(other).expect("they share").own_placement("of job 1").expect("it places");
            let OwnTasks::Entitled(tasks) = placement.tasks else { panic!("its job managers have entitlements") };
            tasks.explores
        };
        let after = Some(ExplorationRules { after: Duration::from_secs(1) });
        assert_eq!(exploring(Preset::APOLLO, "without-estimates"), after);
        assert_eq!(exploring(Preset::APOLLO, "apollo"), None);
        assert_eq!(exploring(WITHOUT_ESTIMATES, "apollo"), None);
        assert_eq!(exploring(WITHOUT_ESTIMATES, "without-estimates"), after);
    }
}
