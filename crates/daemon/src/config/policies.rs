//! `[policies]`: the parts of a preset that a configuration may replace.

use super::opportunistic::OpportunisticKeys;
use super::queueing::QueueingKeys;
use super::{Mistake, duration, mistake, named, value};
use amalgam_core::preset::{Booked, Booker, DemandOrder, InterJob, Placement, Plans, Preset, Yielding};
use amalgam_core::scheduling::{Delays, Reclaim};
use amalgam_core::vocabulary::Duration;
use amalgam_workload::{At, Position};
use serde::{Deserialize, Deserializer};

/// The replaced parts of the preset.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Policies {
    #[serde(default, deserialize_with = "intra_job")]
    intra_job: Option<At<Plans>>,
    #[serde(default, deserialize_with = "placement")]
    placement: Option<At<Placement>>,
    #[serde(default, deserialize_with = "duration")]
    node_delay: Option<At<Duration>>,
    #[serde(default, deserialize_with = "duration")]
    rack_delay: Option<At<Duration>>,
    #[serde(default, deserialize_with = "duration")]
    reserve_after: Option<At<Duration>>,
    /// Preset amalgam: the part of all work that may be lost because work beyond what jobs are entitled to is preempted.
    lost_work: Option<At<f64>>,
    /// Seed of random placements, and of jobs that yield.
    seed: Option<u64>,
    /// Preset drf: whether resources stay idle instead of going to a job beyond its fair share.
    strict_shares: Option<At<bool>>,
    /// The fairness f of packing: in the preset tetris, or for leftover resources under carbyne.
    fairness: Option<At<f64>>,
    /// Preset carbyne: the probability with which a job yields when its demand changes.
    altruism: Option<At<f64>>,
    /// Preset carbyne: the order of jobs for needed and for leftover resources.
    #[serde(default, deserialize_with = "layer")]
    needed: Option<At<Layer>>,
    #[serde(default, deserialize_with = "layer")]
    leftover: Option<At<Layer>>,
    opportunistic: Option<At<OpportunisticKeys>>,
    queueing: Option<At<QueueingKeys>>,
}

impl Policies {
    pub(super) fn apply(self, preset: &mut Preset) -> Result<(), Mistake> {
        preset.seed = self.seed.unwrap_or(preset.seed);
        self.apply_booking(preset)?;
        self.apply_reclaim(preset)?;
        self.apply_delays(preset)?;
        self.apply_yielding(preset)?;
        self.apply_order(preset)?;
        if let Some(At { at, value: keys }) = self.opportunistic {
            keys.apply(preset).map_err(|(problem, remedy)| mistake(at, problem, remedy))?;
        }
        if let Some(At { at, value: keys }) = self.queueing {
            keys.apply(at, preset)?;
        }
        Ok(())
    }

    /// Settings of presets in which the master books tasks.
    fn apply_booking(&self, preset: &mut Preset) -> Result<(), Mistake> {
        let central = "drf, and of others in which the master books tasks";
        let keys =
            [("placement", self.placement.map(|key| key.at)), ("reserve_after", self.reserve_after.map(|key| key.at))];
        let Some((key, at)) = keys.into_iter().find_map(|(key, at)| Some((key, at?))) else { return Ok(()) };
        let foreign = foreign(at, key, central, preset);
        let Some(Booked { by: Booker::Master { placement, reserve_after, .. }, .. }) = preset.booked_mut() else {
            return Err(foreign);
        };
        *placement = value(self.placement, *placement);
        *reserve_after = value(self.reserve_after, *reserve_after);
        Ok(())
    }

    fn apply_reclaim(&self, preset: &mut Preset) -> Result<(), Mistake> {
        let Some(At { at, value }) = self.lost_work else { return Ok(()) };
        let foreign = foreign(at, "lost_work", "amalgam", preset);
        let reclaim = preset.booked_mut().and_then(|booked| match &mut booked.by {
            Booker::Master { reclaim, .. } | Booker::GlobalMasters { reclaim, .. } => reclaim.as_mut(),
        });
        let Some(reclaim) = reclaim else { return Err(foreign) };
        if !(0.0..=Reclaim::MOST_LOST).contains(&value) {
            let remedy = format!("write a part from 0 to {}", Reclaim::MOST_LOST);
            return Err(mistake(at, format!("lost_work is {value}"), remedy));
        }
        reclaim.lost = (value * 1e6).round() as u32;
        Ok(())
    }

    /// How long tasks wait for room near their input. Tasks of job managers with estimates do not wait: the estimate
    /// includes the input.
    fn apply_delays(&self, preset: &mut Preset) -> Result<(), Mistake> {
        let keys = [("node_delay", self.node_delay), ("rack_delay", self.rack_delay)];
        let Some((key, at)) = keys.into_iter().find_map(|(key, found)| Some((key, found?.at))) else { return Ok(()) };
        let foreign = foreign(at, key, "drf, and of others that book tasks", preset);
        let Some(Booked { delays, .. }) = preset.booked_mut() else { return Err(foreign) };
        *delays = Delays { node: value(self.node_delay, delays.node), rack: value(self.rack_delay, delays.rack) };
        Ok(())
    }

    /// The demand of jobs, and the order of jobs that yield.
    fn apply_yielding(&self, preset: &mut Preset) -> Result<(), Mistake> {
        let dagps = self.intra_job.filter(|key| key.value == Plans::Dagps);
        let keys = [
            ("altruism", self.altruism.map(|key| key.at)),
            ("needed", self.needed.map(|key| key.at)),
            ("leftover", self.leftover.map(|key| key.at)),
            ("intra_job = \"dagps\"", dagps.map(|key| key.at)),
        ];
        let foreign = keys
            .into_iter()
            .find_map(|(key, at)| Some((key, at?)))
            .map(|(key, at)| foreign(at, key, "carbyne", preset));
        let Some(Booked { inter_job, demand: DemandOrder::Yielding(yielding), .. }) = preset.booked_mut() else {
            if let Some(At { value: Plans::By(order), .. }) = self.intra_job {
                preset.set_intra_job(order);
            }
            return foreign.map_or(Ok(()), Err);
        };
        yielding.plans = value(self.intra_job, yielding.plans);
        if let Some(At { at, value }) = self.altruism {
            if !(0.0..=1.0).contains(&value) {
                return Err(mistake(at, format!("altruism is {value}"), "write a probability from 0 to 1"));
            }
            yielding.altruism = (value * 1e6).round() as u32;
        }
        yielding.leftover = self.leftover.map_or(yielding.leftover, |order| order.value.0);
        *inter_job = self.needed.map_or(*inter_job, |order| order.value.0);
        Ok(())
    }

    /// Settings of single orders of jobs.
    fn apply_order(&self, preset: &mut Preset) -> Result<(), Mistake> {
        if let Some(At { at, value }) = self.strict_shares {
            let foreign = foreign(at, "strict_shares", "drf", preset);
            match preset.booked_mut() {
                Some(Booked {
                    inter_job: InterJob::Drf { strict },
                    demand: DemandOrder::Everything(_),
                    opportunistic: None,
                    ..
                }) => *strict = value,
                _ => return Err(foreign),
            }
        }
        if let Some(At { at, value }) = self.fairness {
            let foreign = foreign(at, "fairness", "tetris, and of carbyne with leftover = \"packing\"", preset);
            let order = match preset.booked_mut() {
                Some(Booked { demand: DemandOrder::Yielding(Yielding { leftover, .. }), .. }) => leftover,
                Some(Booked { inter_job, .. }) => inter_job,
                None => return Err(foreign),
            };
            let InterJob::Tetris { fairness } = order else { return Err(foreign) };
            if !(0.0..1.0).contains(&value) {
                return Err(mistake(at, format!("fairness is {value}"), "write a number from 0 to below 1"));
            }
            *fairness = ((value * 1e6).round() as u32).min(999_999);
        }
        Ok(())
    }
}

/// The error for a key that this preset does not use.
fn foreign(at: Position, key: &str, owner: &str, preset: &Preset) -> Mistake {
    let problem = format!("{key} is a setting of the preset {owner}, and not of {} as configured here", preset.name());
    let name = owner.split(',').next().unwrap_or(owner);
    let remedy =
        format!("leave it out, or choose the preset {name}: with --preset, or else with `preset` in this file");
    mistake(at, problem, remedy)
}

fn intra_job<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<At<Plans>>, D::Error> {
    named(deserializer, Plans::parse, Plans::names())
}

fn placement<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<At<Placement>>, D::Error> {
    named(deserializer, Placement::parse, Placement::names())
}

fn layer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<At<Layer>>, D::Error> {
    named(deserializer, Layer::parse, Layer::NAMES.iter().map(|(name, _)| *name))
}

/// An order of jobs in one of the two layers of carbyne.
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
            format!("unknown order of jobs `{name}`; known: {}", known.join(", "))
        })
    }
}
