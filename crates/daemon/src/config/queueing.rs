//! `[policies.queueing]`: settings of tasks that wait at nodes without being booked.

use super::opportunistic::{AtLeastOne, LengthOrNever, NumberOrWord, Ratio, RatioOrNone, scaled};
use super::{Mistake, mistake};
use amalgam_core::job_manager::CorrectionRules;
use amalgam_core::policy::inter_job::Within;
use amalgam_core::preset::{Choice, Preset};
use amalgam_core::vocabulary::Duration;
use amalgam_workload::{At, Position};
use serde::{Deserialize, Deserializer};

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct QueueingKeys {
    /// The part of the cluster that may be guaranteed, for all jobs together.
    guaranteed: Option<At<Ratio>>,
    /// A job's opportunistic tasks may hold this multiple of its share of that part.
    opportunistic: Option<At<Ratio>>,
    /// An opportunistic task that has waited for this time gets the next resources within the job's allowance.
    starved_after: Option<At<LengthOrNever>>,
    /// A waiting task gets a duplicate on another node if it would finish this much earlier there.
    duplicate_saves: Option<At<LengthOrNever>>,
    /// In addition, the duplicate has to save this part of the remaining wait and of the run time.
    duplicate_part: Option<At<RatioOrNone>>,
    /// Nodes report progress at this interval, and slow running tasks get a duplicate.
    progress_every: Option<At<LengthOrNever>>,
    /// Nodes report changed waits at most once in this time.
    report_every: Option<At<LengthOrNever>>,
    /// A running task is assumed to run for at least this part of its expected run time more.
    least_left: Option<At<RatioOrNone>>,
    /// How long nodes keep resources that guaranteed work frees for guaranteed work.
    keep_freed: Option<At<LengthOrNever>>,
    /// How long opportunistic tasks yield their CPU to guaranteed ones before they are stopped; "never" stops them at
    /// once.
    yields_for: Option<At<LengthOrNever>>,
    /// Number of lightly loaded nodes that are considered for each task.
    light: Option<At<AtLeastOne>>,
    /// The cost of a task that fails with its node, as a multiple of its duration.
    penalty: Option<At<Ratio>>,
    /// The order of the jobs of a queue within the queue's share: "fair-shares" or "fair-sojourn".
    within_queue: Option<At<WithinQueue>>,
    /// Waiting opportunistic tasks are promoted before new tasks are sent.
    sent_first: Option<At<bool>>,
    /// Resources that no task holds are used first.
    spares: Option<At<bool>>,
    /// A node may take several tasks of a batch.
    several: Option<At<bool>>,
    /// Nodes are chosen such that this part of the tasks expected to start at once does so, given the tasks that other
    /// jobs may have sent there; "mean" uses only the reported state.
    at_once: Option<At<AtOnce>>,
    /// A random part, below this, of the time between two node lists is added to each estimate.
    spread: Option<At<RatioOrNone>>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum WithinQueue {
    FairShares,
    FairSojourn,
}

enum AtOnce {
    /// Hundredths.
    Part(u32),
    Mean,
}

impl<'de> Deserialize<'de> for AtOnce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrWord {
            expected: "a part from 0.01 to 1, or \"mean\"",
            number: |part| scaled(part, 0.01..=1.0, 100.0).map(AtOnce::Part),
            word: |word| (word == "mean").then_some(AtOnce::Mean),
        })
    }
}

impl QueueingKeys {
    /// `section` is the position of the table.
    pub(super) fn apply(self, section: Position, preset: &mut Preset) -> Result<(), Mistake> {
        let name = preset.name();
        let Some(rules) = preset.entitled_mut() else {
            let owners = Preset::QUEUEING.map(Preset::name).join(" or ");
            let problem = format!("[policies.queueing] is a setting of the preset {owners}, and not of {name}");
            let own = Preset::APOLLO.name();
            return Err(mistake(section, problem, format!("set `preset = \"{own}\"`, or leave it out")));
        };
        let allowance = &mut rules.allowance;
        let part = |key: &'static str, part: &Option<At<RatioOrNone>>| {
            part.as_ref().map(|part| (key, part.at, part.value.0, "0"))
        };
        let guaranteed = self.guaranteed.as_ref().map(|part| ("guaranteed", part.at, part.value.0, "0.01"));
        let parts = [guaranteed, part("spread", &self.spread), part("least_left", &self.least_left)];
        for (key, at, part, least) in parts.into_iter().flatten() {
            if part > 100 {
                let problem = format!("{key} is {}, and the maximum is 1", f64::from(part) / 100.0);
                return Err(mistake(at, problem, format!("write a number from {least} to 1")));
            }
        }
        rules.guaranteed = self.guaranteed.map_or(rules.guaranteed, |part| part.value.0);
        allowance.opportunistic = self.opportunistic.map_or(allowance.opportunistic, |ratio| ratio.value.0);
        let never =
            |at: Position, key: &str| mistake(at, format!("{key} is \"never\""), "write a duration, such as \"30s\"");
        if let Some(At { at, value: LengthOrNever(length) }) = self.starved_after {
            allowance.starved_after = length.ok_or_else(|| never(at, "starved_after"))?;
        }
        if let Some(At { value: LengthOrNever(length), .. }) = self.duplicate_saves {
            let usual = rules.corrections.unwrap_or(CorrectionRules::USUAL);
            rules.corrections = length.map(|least_saving| CorrectionRules { least_saving, ..usual });
        }
        if let Some(At { at, value: LengthOrNever(length) }) = self.progress_every {
            match &mut rules.corrections {
                Some(corrections) => corrections.progress_every = length,
                None if length.is_none() => {}
                None => {
                    let problem = "progress_every is set, and duplicate_saves is \"never\"";
                    return Err(mistake(at, problem, "leave one of them out"));
                }
            }
        }
        if let Some(At { at, value: LengthOrNever(length) }) = self.report_every {
            rules.waits.every = length.ok_or_else(|| never(at, "report_every"))?;
        }
        rules.keep_freed = self.keep_freed.map_or(rules.keep_freed, |length| length.value.0.unwrap_or(Duration::ZERO));
        rules.yields_for = self.yields_for.map_or(rules.yields_for, |length| length.value.0);
        if let Some(At { at, value: Ratio(penalty) }) = self.penalty.as_ref().filter(|penalty| penalty.value.0 < 100) {
            let problem = format!("penalty is {}: nodes that fail would be preferred", f64::from(*penalty) / 100.0);
            return Err(mistake(*at, problem, "write a number from 1 on"));
        }
        if let Choice::EarliestCompletion(settings) = &mut rules.choice {
            settings.light = self.light.map_or(settings.light, |light| light.value.0.get());
            settings.spread = self.spread.map_or(settings.spread, |spread| spread.value.0);
            settings.penalty = self.penalty.map_or(settings.penalty, |penalty| penalty.value.0);
        }
        self.apply_further(preset)
    }

    /// Rules that are on under `apollo-plus` and off under `apollo`.
    fn apply_further(&self, preset: &mut Preset) -> Result<(), Mistake> {
        let Some(rules) = preset.entitled_mut() else { return Ok(()) };
        rules.within = match self.within_queue.as_ref().map(|key| key.value) {
            Some(WithinQueue::FairShares) => Within::FairShares,
            Some(WithinQueue::FairSojourn) => Within::FairSojourn,
            None => rules.within,
        };
        rules.allowance.sent_first = self.sent_first.as_ref().map_or(rules.allowance.sent_first, |key| key.value);
        rules.waits.least_left = self.least_left.as_ref().map_or(rules.waits.least_left, |key| key.value.0);
        match (&self.duplicate_part, &mut rules.corrections) {
            (Some(key), Some(corrections)) => corrections.saving_while_waiting = key.value.0,
            (Some(key), None) => {
                let problem = "duplicate_part is set, and duplicate_saves is \"never\"";
                return Err(mistake(key.at, problem, "leave one of them out"));
            }
            (None, _) => {}
        }
        let Choice::EarliestCompletion(settings) = &mut rules.choice else { return Ok(()) };
        settings.several = self.several.as_ref().map_or(settings.several, |key| key.value);
        settings.spares = self.spares.as_ref().map_or(settings.spares && settings.several, |key| key.value);
        settings.at_once = match self.at_once.as_ref().map(|key| &key.value) {
            Some(AtOnce::Part(part)) => Some(*part),
            Some(AtOnce::Mean) => None,
            None => settings.at_once.filter(|_| settings.several),
        };
        rules.waits.reports_room = settings.spares;
        let spares = self.spares.as_ref().filter(|_| settings.spares).map(|key| ("spares", key.at));
        let at_once = self.at_once.as_ref().filter(|_| settings.at_once.is_some()).map(|key| ("at_once", key.at));
        match spares.or(at_once) {
            Some((key, at)) if !settings.several => {
                let problem = format!("{key} is set, and several is not");
                Err(mistake(at, problem, "set `several = true`, or leave it out"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::preset::Entitled;

    fn entitled(preset: &Preset) -> Entitled {
        *preset.entitled().expect("the preset has entitlements")
    }

    fn parse(text: &str) -> Result<Preset, String> {
        crate::config::tests::parse(text).map(|config| config.preset)
    }

    #[test]
    fn every_key_reaches_the_preset() {
        let text = "preset = \"apollo\"\n[policies.queueing]\nguaranteed = 0.5\nopportunistic = 3\nstarved_after = \"2s\"\n\
                    duplicate_saves = \"never\"\nprogress_every = \"never\"\nreport_every = \"50ms\"\nkeep_freed = \"7ms\"\nyields_for = \"8m\"\nlight = 5\n\
                    penalty = 3.5\nspread = 0.25\n";
        let preset = parse(text).expect("all keys are known");
        let rules = entitled(&preset);
        let allowance = rules.allowance;
        assert_eq!((rules.guaranteed, allowance.opportunistic), (50, 300));
        assert_eq!(allowance.starved_after, Duration::from_secs(2));
        assert_eq!((rules.corrections, rules.waits.every), (None, Duration::from_millis(50)));
        assert_eq!((rules.keep_freed, rules.yields_for), (Duration::from_millis(7), Some(Duration::from_secs(480))));
        let Choice::EarliestCompletion(settings) = rules.choice else { panic!("the preset has estimates") };
        assert_eq!((settings.light, settings.penalty, settings.spread), (5, 350, 25));
    }

    #[test]
    fn each_rule_of_apollo_plus_has_its_own_key() {
        let all = "within_queue = \"fair-sojourn\"\nsent_first = true\nseveral = true\nspares = true\nat_once = 0.95\n\
                   least_left = 0.5\nduplicate_part = 0\n";
        let preset =
            |name: &str, keys: &str| parse(&format!("preset = \"{name}\"\n[policies.queueing]\n{keys}")).unwrap();
        let (made, plus) = (preset("apollo", all), Preset::APOLLO_PLUS);
        let parts = |preset: Preset| {
            let Entitled { within, waits, allowance, choice, .. } = entitled(&preset);
            (within, waits, allowance, choice)
        };
        assert_eq!(parts(made), parts(plus));
        assert_eq!(entitled(&made).corrections, entitled(&plus).corrections);
        let hundredths = entitled(&preset("apollo", "duplicate_part = 0.01\n")).corrections;
        assert_eq!(hundredths.expect("corrections are on").saving_while_waiting, 1);
        let none = "within_queue = \"fair-shares\"\nsent_first = false\nseveral = false\nleast_left = 0\n";
        let Entitled { within, allowance, choice, .. } = entitled(&preset("apollo-plus", none));
        assert_eq!((within, allowance.sent_first), (Within::FairShares, false));
        assert_eq!(choice, entitled(&Preset::APOLLO).choice, "keys that require `several` are off, too");
        let mean = entitled(&preset("apollo-plus", "at_once = \"mean\"\n"));
        assert!(matches!(mean.choice, Choice::EarliestCompletion(settings) if settings.at_once.is_none()));
        let lonely = parse("preset = \"apollo\"\n[policies.queueing]\nspares = true\n").unwrap_err();
        assert!(lonely.contains("spares is set, and several is not"), "{lonely}");
    }

    #[test]
    fn the_interval_of_progress_reports_can_be_set_or_never() {
        let corrections = |keys: &str| {
            let preset = parse(&format!("preset = \"apollo\"\n[policies.queueing]\n{keys}\n"));
            preset.map(|preset| entitled(&preset).corrections)
        };
        let usual = CorrectionRules::USUAL;
        assert_eq!(corrections(""), Ok(Some(usual)));
        let second = Some(Duration::from_secs(1));
        let rules = CorrectionRules { progress_every: second, least_saving: Duration::from_secs(9), ..usual };
        assert_eq!(corrections("progress_every = \"1s\"\nduplicate_saves = \"9s\""), Ok(Some(rules)));
        let never = CorrectionRules { progress_every: None, ..usual };
        assert_eq!(corrections("progress_every = \"never\""), Ok(Some(never)));
        for key in ["progress_every = \"1s\"", "duplicate_part = 0.5"] {
            let both = corrections(&format!("{key}\nduplicate_saves = \"never\"")).unwrap_err();
            assert!(both.contains("leave one of them out"), "{both}");
        }
    }

    #[test]
    fn opportunistic_tasks_yield_for_some_time_or_not_at_all() {
        let yields_for = |keys: &str| {
            let preset = parse(&format!("preset = \"apollo\"\n[policies.queueing]\n{keys}\n"));
            preset.map(|preset| entitled(&preset).yields_for)
        };
        assert_eq!(yields_for(""), Ok(Some(Duration::from_secs(300))));
        assert_eq!(yields_for("yields_for = \"1m\""), Ok(Some(Duration::from_secs(60))));
        assert_eq!(yields_for("yields_for = \"never\""), Ok(None));
    }

    #[test]
    fn keys_of_another_preset_and_unknown_words_are_reported() {
        let foreign = parse("preset = \"drf\"\n[policies.queueing]\nlight = 5\n").unwrap_err();
        let wanted =
            "server.toml:2:1: [policies.queueing] is a setting of the preset apollo or apollo-plus, and not of drf";
        assert!(foreign.starts_with(wanted), "{foreign}");
        let never = parse("preset = \"apollo\"\n[policies.queueing]\nstarved_after = \"never\"\n").unwrap_err();
        assert!(never.starts_with("server.toml:3:17: starved_after") && never.contains("write a duration"), "{never}");
        let low = parse("preset = \"apollo\"\n[policies.queueing]\npenalty = 0.99\n").unwrap_err();
        assert!(low.contains("penalty is 0.99") && low.contains("from 1 on"), "{low}");
        assert!(parse("preset = \"apollo\"\n[policies.queueing]\npenalty = 1\n").is_ok());
        for (key, help) in [
            ("within_queue = \"fair\"", "unknown value `fair`\n  help: known: fair-shares, fair-sojourn"),
            ("within_queue = \"fair-share\"", "help: did you mean `fair-shares`?"),
            ("at_once = \"median\"", "found the text `median`\n  help: write a part from 0.01 to 1, or \"mean\""),
            ("at_once = 1.01", "the number `1.01` is out of range\n  help: write a part from 0.01 to 1, or \"mean\""),
            ("at_once = true", "found `true`\n  help: write a part from 0.01 to 1, or \"mean\""),
            ("guaranteed = 0.0", "help: write a number from 0.01 on; leave the key out for the preset's own"),
            ("duplicate_part = -0.1", "help: write a number from 0 on; leave the key out for the preset's own"),
        ] {
            let wrong = parse(&format!("preset = \"apollo-plus\"\n[policies.queueing]\n{key}\n")).unwrap_err();
            assert!(wrong.starts_with("server.toml:3:") && wrong.contains(help), "{key}: {wrong}");
        }
        for key in ["guaranteed", "spread", "least_left"] {
            let high = parse(&format!("preset = \"apollo\"\n[policies.queueing]\n{key} = 1.01\n")).unwrap_err();
            assert!(high.contains("the maximum is 1") && high.contains(key), "{high}");
        }
    }
}
