//! What a configuration may replace of its preset: `[policies]`.

use super::opportunistic::OpportunisticKeys;
use super::queueing::QueueingKeys;
use super::{Mistake, duration, mistake, named, value};
use amalgam_core::preset::{InterJob, IntraJob, Placement, Preset, Yielding};
use amalgam_core::vocabulary::Duration;
use amalgam_workload::{At, Position};
use serde::{Deserialize, Deserializer};

/// Parts of the preset that are replaced.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Policies {
    #[serde(default, deserialize_with = "intra_job")]
    intra_job: Option<At<IntraJob>>,
    #[serde(default, deserialize_with = "placement")]
    placement: Option<At<Placement>>,
    #[serde(default, deserialize_with = "duration")]
    node_delay: Option<At<Duration>>,
    #[serde(default, deserialize_with = "duration")]
    rack_delay: Option<At<Duration>>,
    #[serde(default, deserialize_with = "duration")]
    reserve_after: Option<At<Duration>>,
    /// Of the placements that draw nodes, and of jobs that yield.
    seed: Option<u64>,
    /// Of the preset drf: whether room stays idle rather than go to a job above its fair share.
    strict_shares: Option<At<bool>>,
    /// The knob f of what packs: the preset tetris, or what is left over under carbyne.
    fairness: Option<At<f64>>,
    /// Of the preset carbyne: the probability with which a job yields when its demand changes.
    altruism: Option<At<f64>>,
    /// Of the preset carbyne: whose turn it is for what jobs need, and for what is left.
    #[serde(default, deserialize_with = "layer")]
    needed: Option<At<Layer>>,
    #[serde(default, deserialize_with = "layer")]
    leftover: Option<At<Layer>>,
    opportunistic: Option<At<OpportunisticKeys>>,
    queueing: Option<At<QueueingKeys>>,
}

impl Policies {
    /// `beside` are the presets that other jobs on the cluster go by.
    pub(super) fn apply(self, preset: &mut Preset, beside: &[&str]) -> Result<(), Mistake> {
        preset.intra_job = value(self.intra_job, preset.intra_job);
        preset.placement = value(self.placement, preset.placement);
        preset.delays.node = value(self.node_delay, preset.delays.node);
        preset.delays.rack = value(self.rack_delay, preset.delays.rack);
        preset.reserve_after = value(self.reserve_after, preset.reserve_after);
        preset.seed = self.seed.unwrap_or(preset.seed);
        self.apply_yielding(preset)?;
        if let Some(strict_shares) = self.strict_shares {
            let foreign = foreign(strict_shares.at, "strict_shares", "drf", preset);
            match &mut preset.inter_job {
                InterJob::Drf { strict } if preset.yielding.is_none() => *strict = strict_shares.value,
                _ => return Err(foreign),
            }
        }
        if let Some(At { at, value }) = self.fairness {
            let foreign = foreign(at, "fairness", "tetris, and of carbyne with leftover = \"packing\"", preset);
            let order = match &mut preset.yielding {
                Some(Yielding { leftover, .. }) => leftover,
                None => &mut preset.inter_job,
            };
            let InterJob::Tetris { fairness } = order else { return Err(foreign) };
            if !(0.0..1.0).contains(&value) {
                return Err(mistake(at, format!("fairness is {value}"), "write a number from 0 to below 1"));
            }
            *fairness = ((value * 1e6).round() as u32).min(999_999);
        }
        if let Some(At { at, value: keys }) = self.opportunistic {
            keys.apply(preset).map_err(|(problem, remedy)| mistake(at, problem, remedy))?;
        }
        if let Some(At { at, value: keys }) = self.queueing {
            keys.apply(at, preset, beside)?;
        }
        Ok(())
    }

    fn apply_yielding(&self, preset: &mut Preset) -> Result<(), Mistake> {
        let keys = [
            ("altruism", self.altruism.map(|key| key.at)),
            ("needed", self.needed.map(|key| key.at)),
            ("leftover", self.leftover.map(|key| key.at)),
            ("intra_job = \"dagps\"", self.intra_job.filter(|key| key.value == IntraJob::Dagps).map(|key| key.at)),
        ];
        let Some((key, at)) = keys.into_iter().find_map(|(key, at)| Some((key, at?))) else { return Ok(()) };
        let foreign = foreign(at, key, "carbyne", preset);
        let Some(yielding) = &mut preset.yielding else { return Err(foreign) };
        if let Some(At { at, value }) = self.altruism {
            if !(0.0..=1.0).contains(&value) {
                return Err(mistake(at, format!("altruism is {value}"), "write a probability from 0 to 1"));
            }
            yielding.altruism = (value * 1e6).round() as u32;
        }
        yielding.leftover = self.leftover.map_or(yielding.leftover, |order| order.value.0);
        preset.inter_job = self.needed.map_or(preset.inter_job, |order| order.value.0);
        Ok(())
    }
}

/// The key is none of this preset's.
fn foreign(at: Position, key: &str, owner: &str, preset: &Preset) -> Mistake {
    let problem = format!("{key} is a setting of the preset {owner}, and not of {} as it is here", preset.name());
    let name = owner.split(',').next().unwrap_or(owner);
    let remedy = format!(
        "leave it out, or choose the preset {name}: with --preset, or, where none is named, with `preset` in this file"
    );
    mistake(at, problem, remedy)
}

fn intra_job<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<At<IntraJob>>, D::Error> {
    named(deserializer, IntraJob::parse, IntraJob::names())
}

fn placement<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<At<Placement>>, D::Error> {
    named(deserializer, Placement::parse, Placement::names())
}

fn layer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<At<Layer>>, D::Error> {
    named(deserializer, Layer::parse, Layer::NAMES.iter().map(|(name, _)| *name))
}

/// An order of jobs in one of the two layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layer(InterJob);

impl Layer {
    const NAMES: [(&str, InterJob); 4] = [
        ("fair-shares", InterJob::Drf { strict: false }),
        ("capacity", InterJob::Capacity),
        ("shortest-remaining", InterJob::Srtf),
        ("packing", InterJob::Tetris { fairness: 0 }),
    ];

    fn parse(name: &str) -> Result<Layer, String> {
        let found = Layer::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, order)| Layer(*order)).ok_or_else(|| {
            let known = Layer::NAMES.map(|(name, _)| name);
            format!("there is no order of jobs `{name}` here; there are: {}", known.join(", "))
        })
    }
}
