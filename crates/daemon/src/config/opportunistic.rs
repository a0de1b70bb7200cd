//! `[policies.opportunistic]`: settings of opportunistic work.
//!
//! Values are checked while they are read, so that an error names their line.

use amalgam_core::master::OpportunisticLimit;
use amalgam_core::preset::{Preset, QueueChoice};
use amalgam_core::vocabulary::Duration;
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::num::NonZeroU32;

/// Maximum of settings in thousandths or hundredths.
const LARGEST: f64 = 1e6;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct OpportunisticKeys {
    /// t_d: `auto` tasks with a shorter expected run time may be opportunistic.
    shorter_than: Option<LengthOrAny>,
    /// p_q, in percent.
    percent: Option<Percent>,
    /// A random one of this many best nodes is chosen.
    k: Option<AtLeastOne>,
    /// Maximum number of opportunistic attempts of a job at once.
    quota: Option<AtLeastOne>,
    /// Maximum number of them for each guaranteed attempt of the job.
    quota_per_guaranteed: Option<QuotaRatio>,
    /// Attempts that have run for this time ask to be promoted.
    promote_after: Option<LengthOrNever>,
    /// A queue may be longer than the mean by this many standard deviations.
    deviations: Option<DeviationsOrAny>,
    limit: Option<Limit>,
    /// Whether a node's queue is ordered by the submission of the jobs.
    reorder: Option<bool>,
    /// Maximum number of tasks that wait at a node.
    queue_limit: Option<AtLeastOne>,
    /// How long nodes keep resources that guaranteed work frees for guaranteed work.
    keep_freed: Option<LengthOrNever>,
    /// Attempts that have run for this time are offered resources that no guaranteed work holds.
    offer_after: Option<LengthOrNever>,
    /// Tasks that wait in the longest queue are moved to nodes with room. Nodes report room immediately, but at most
    /// once in this time.
    move_every: Option<LengthOrNever>,
}

impl OpportunisticKeys {
    /// Applies the keys to the preset. The error is a problem and a remedy.
    pub(super) fn apply(self, preset: &mut Preset) -> Result<(), (String, String)> {
        let name = preset.name();
        let Some(own) = preset.opportunistic_mut() else {
            let with = Preset::HYBRID.map(Preset::name);
            let problem =
                format!("[policies.opportunistic] is a setting of the preset {}, and not of {name}", with.join(" or "));
            return Err((problem, format!("set `preset = \"{}\"`, or leave it out", with[0])));
        };
        if let Some(LengthOrAny(length)) = self.shorter_than {
            own.mix.shorter_than = length;
        }
        own.mix.opportunistic = self.percent.map_or(own.mix.opportunistic, |percent| percent.0);
        own.placement = self.k.map_or(own.placement, |k| QueueChoice::TopRanked { k: k.0.get() });
        own.quota.absolute = self.quota.map(|quota| quota.0.get()).or(own.quota.absolute);
        own.quota.relative = self.quota_per_guaranteed.map(|ratio| ratio.0).or(own.quota.relative);
        if let Some(LengthOrNever(length)) = self.promote_after {
            own.promote_after = length;
        }
        if let Some(DeviationsOrAny(deviations)) = self.deviations {
            own.steering.deviations = deviations;
        }
        own.steering.limit = self.limit.map_or(own.steering.limit, |limit| limit.0);
        own.reorder = self.reorder.unwrap_or(own.reorder);
        let rules = &mut own.at_nodes;
        rules.queue_limit = self.queue_limit.map(|limit| limit.0.get()).or(rules.queue_limit);
        rules.keep_freed = self.keep_freed.map_or(rules.keep_freed, |length| length.0.unwrap_or(Duration::ZERO));
        if let Some(LengthOrNever(length)) = self.offer_after {
            rules.offer_after = length;
        }
        if let Some(LengthOrNever(length)) = self.move_every {
            rules.report_spare = length;
            own.steering.moves = length.is_some();
        }
        Ok(())
    }
}

/// A duration; `None` for "any".
struct LengthOrAny(Option<Duration>);

/// A duration above zero; `None` for "never".
#[derive(Clone, Copy)]
pub(super) struct LengthOrNever(pub(super) Option<Duration>);

/// Millionths.
struct Percent(u32);

#[derive(Clone, Copy)]
pub(super) struct AtLeastOne(pub(super) NonZeroU32);

/// Hundredths.
struct QuotaRatio(u32);

/// Hundredths, above zero.
#[derive(Clone, Copy)]
pub(super) struct Ratio(pub(super) u32);

/// Hundredths; 0 is allowed.
#[derive(Clone, Copy)]
pub(super) struct RatioOrNone(pub(super) u32);

/// Thousandths; `None` for "any".
struct DeviationsOrAny(Option<u32>);

struct Limit(OpportunisticLimit);

/// Accepts a number or a word, and converts it.
pub(super) struct NumberOrWord<T> {
    pub expected: &'static str,
    pub number: fn(f64) -> Option<T>,
    pub word: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for NumberOrWord<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        (self.number)(value).ok_or_else(|| E::invalid_value(Unexpected::Float(value), &self))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        (self.number)(value as f64).ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        (self.number)(value as f64).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(value), &self))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<T, E> {
        (self.word)(value).ok_or_else(|| E::invalid_value(Unexpected::Str(value), &self))
    }
}

pub(super) fn scaled(value: f64, range: std::ops::RangeInclusive<f64>, parts: f64) -> Option<u32> {
    range.contains(&value).then(|| (value * parts).round() as u32)
}

impl<'de> Deserialize<'de> for LengthOrAny {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrWord {
            expected: "a duration such as \"10s\", or \"any\"",
            number: |_| None,
            word: |word| match word {
                "any" => Some(LengthOrAny(None)),
                length => Duration::parse(length).ok().map(|length| LengthOrAny(Some(length))),
            },
        })
    }
}

impl<'de> Deserialize<'de> for LengthOrNever {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrWord {
            expected: "a duration above zero such as \"30s\", or \"never\"",
            number: |_| None,
            word: |word| match word {
                "never" => Some(LengthOrNever(None)),
                length => {
                    let length = Duration::parse(length).ok().filter(|length| *length > Duration::ZERO)?;
                    Some(LengthOrNever(Some(length)))
                }
            },
        })
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrWord {
            expected: "a percentage from 0 (all `auto` tasks are guaranteed) to 100 (all are opportunistic)",
            number: |percent| scaled(percent, 0.0..=100.0, 1e4).map(Percent),
            word: |_| None,
        })
    }
}

impl<'de> Deserialize<'de> for AtLeastOne {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrWord {
            expected: "a whole number from 1 on; leave the key out for the preset's own",
            number: |number| {
                (number.fract() == 0.0).then(|| scaled(number, 1.0..=f64::from(u32::MAX), 1.0))?.map(at_least_one)
            },
            word: |_| None,
        })
    }
}

fn at_least_one(number: u32) -> AtLeastOne {
    AtLeastOne(NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN))
}

impl<'de> Deserialize<'de> for QuotaRatio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrWord {
            expected: "a number from 0.01 on; leave the key out for the preset's own",
            number: |ratio| scaled(ratio, 0.01..=LARGEST, 100.0).map(QuotaRatio),
            word: |_| None,
        })
    }
}

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrWord {
            expected: "a number from 0.01 on; leave the key out for the preset's own",
            number: |ratio| scaled(ratio, 0.01..=LARGEST, 100.0).map(Ratio),
            word: |_| None,
        })
    }
}

impl<'de> Deserialize<'de> for RatioOrNone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrWord {
            expected: "a number from 0 on; leave the key out for the preset's own",
            number: |ratio| scaled(ratio, 0.0..=LARGEST, 100.0).map(RatioOrNone),
            word: |_| None,
        })
    }
}

impl<'de> Deserialize<'de> for DeviationsOrAny {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrWord {
            expected: "a number of standard deviations from 0 on, or \"any\" for queues of any length",
            number: |deviations| {
                scaled(deviations, 0.0..=LARGEST, 1e3).map(|deviations| DeviationsOrAny(Some(deviations)))
            },
            word: |word| (word == "any").then_some(DeviationsOrAny(None)),
        })
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrWord {
            expected: "\"everything\", \"forecast\", or a part of a node above 0 and up to 1",
            number: |part| scaled(part, 1e-6..=1.0, 1e6).map(|part| Limit(OpportunisticLimit::Part(part))),
            word: |word| match word {
                "everything" => Some(Limit(OpportunisticLimit::Everything)),
                "forecast" => Some(Limit(OpportunisticLimit::Forecast)),
                _ => None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::parse as parse_config;
    use amalgam_core::master::{OpportunisticLimit, Steering};
    use amalgam_core::node::OpportunisticRules;
    use amalgam_core::policy::{Mix, Quota};
    use amalgam_core::preset::{Opportunistic, Preset, QueueChoice};
    use amalgam_core::vocabulary::Duration;

    const TABLE: &str = "preset = 'mercury'\n[policies.opportunistic]\n";

    fn parse(keys: &str) -> Result<Opportunistic, String> {
        parse_config(&format!("{TABLE}{keys}"))
            .map(|config| *config.preset.opportunistic().expect("mercury has opportunistic work"))
    }

    #[test]
    fn each_part_can_be_set_and_others_keep_the_presets_value() {
        assert_eq!(parse(""), Ok(*Preset::MERCURY.opportunistic().expect("mercury has opportunistic work")));
        let keys = "shorter_than = '5s'\npercent = 50\nk = 20\nquota = 100\nquota_per_guaranteed = 2.5\npromote_after = '30s'\n\
                    deviations = 1.5\nlimit = 0.2\nreorder = false\nqueue_limit = 8\nkeep_freed = '20ms'\noffer_after = '4s'\nmove_every = '1s'";
        let wanted = Opportunistic {
            mix: Mix { shorter_than: Some(Duration::from_secs(5)), opportunistic: 500_000 },
            placement: QueueChoice::TopRanked { k: 20 },
            quota: Quota { absolute: Some(100), relative: Some(250) },
            promote_after: Some(Duration::from_secs(30)),
            steering: Steering { deviations: Some(1_500), limit: OpportunisticLimit::Part(200_000), moves: true },
            reorder: false,
            at_nodes: OpportunisticRules {
                queue_limit: Some(8),
                keep_freed: Duration::from_millis(20),
                offer_after: Some(Duration::from_secs(4)),
                report_spare: Some(Duration::from_secs(1)),
                yields_for: None,
            },
        };
        assert_eq!(parse(keys), Ok(wanted));
        let open = parse("shorter_than = 'any'\npercent = 100\ndeviations = 'any'\nlimit = 'forecast'").unwrap();
        assert_eq!(open.mix, Mix::ONLY_OPPORTUNISTIC);
        assert_eq!(open.steering, Steering { deviations: None, limit: OpportunisticLimit::Forecast, moves: false });
    }

    #[test]
    fn errors_name_the_line_and_the_allowed_values() {
        for (key, problem) in [
            ("percent = 170", "from 0 (all"),
            ("percent = -0.1", "from 0 (all"),
            ("quota = 0", "a whole number from 1 on"),
            ("quota = 1.5", "a whole number from 1 on"),
            ("quota_per_guaranteed = 0", "a number from 0.01 on"),
            ("queue_limit = 0", "a whole number from 1 on"),
            ("k = 0", "a whole number from 1 on"),
            ("promote_after = '0s'", "or \"never\""),
            ("deviations = -1", "from 0 on, or \"any\""),
            ("limit = 'some'", "\"everything\", \"forecast\""),
            ("limit = 1.5", "up to 1"),
            ("shorter_than = 'soon'", "such as \"10s\""),
            ("shorter = '5s'", "unknown key `shorter`"),
            ("quotas = 5", "did you mean `quota`?"),
        ] {
            let error = parse(key).unwrap_err();
            assert!(error.contains(problem) && error.contains("server.toml:3:"), "{key}: {error}");
        }
    }
}
