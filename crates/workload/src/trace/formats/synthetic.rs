//! `synthetic`: jobs drawn from distributions. `gridmix` draws flat jobs, jobs x tasks x run times. `layered` draws
//! DAGs whose stages form layers. The option `arrival` defines the arrivals.

use super::TraceFormat;
use crate::quantities::Malformed;
use crate::suggest;
use crate::trace::RunTimes;
use crate::trace::chance::{Distribution, Unit, counts};
use crate::trace::error::WorkloadError;
use crate::trace::options::{Key, count};
use crate::trace::reading::{Draft, DraftStage, Reading};
use amalgam_core::vocabulary::Chance;
use amalgam_core::vocabulary::job::MAX_TASKS;

pub(super) const FORMAT: TraceFormat =
    TraceFormat { name: "synthetic", about: "generated jobs: synthetic:gridmix, synthetic:layered", keys: &KEYS, read };

const KEYS: [Key; 6] = [
    Key { name: "jobs", default: "100", meaning: "number of jobs" },
    Key { name: "tasks", default: "uniform:1-20", meaning: "tasks of a stage, a distribution" },
    Key { name: "run-time", default: "exponential:10s", meaning: "run times, a distribution" },
    Key { name: "drawn-per", default: "task", meaning: "draw one run time for each task, stage or job" },
    Key { name: "layers", default: "", meaning: "layers of stages; 1 for gridmix, uniform:2-6 for layered" },
    Key { name: "width", default: "", meaning: "stages of a layer; 1 for gridmix, uniform:1-4 for layered" },
];

const SHAPES: [&str; 2] = ["gridmix", "layered"];

struct Generator {
    tasks: Distribution,
    run_time: Distribution,
    drawn_per: DrawnPer,
    layers: Distribution,
    width: Distribution,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DrawnPer {
    Task,
    Stage,
    Job,
}

fn read(reading: &mut Reading) -> Result<(), WorkloadError> {
    let (layers, width) = match reading.path {
        "" | "gridmix" => (Distribution::Fixed(1.0), Distribution::Fixed(1.0)),
        "layered" => (Distribution::Uniform(2.0, 6.0), Distribution::Uniform(1.0, 4.0)),
        other => return Err(unknown_shape(other)),
    };
    let options = reading.options;
    let or_default = |key, default| match options.own_text(key) {
        "" => Ok(default),
        _ => options.own(key, counts),
    };
    let generator = Generator {
        tasks: options.own("tasks", counts)?,
        run_time: options.own("run-time", |text| Distribution::parse(text, Unit::Time))?,
        drawn_per: options.own("drawn-per", drawn_per)?,
        layers: or_default("layers", layers)?,
        width: or_default("width", width)?,
    };
    let jobs = options.own("jobs", count)?;
    let mut chance = reading.chance("synthetic");
    for number in 1..=jobs {
        if reading.is_full() {
            break;
        }
        let draft = generator.job(number, &mut chance);
        reading.add(draft).map_err(|problem| {
            WorkloadError::new(problem, "choose smaller distributions, or a smaller `time-scale`")
        })?;
    }
    Ok(())
}

fn unknown_shape(shape: &str) -> WorkloadError {
    let remedy = match suggest::closest(shape, SHAPES) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("known: {}", SHAPES.join(", ")),
    };
    WorkloadError::new(format!("unknown generator `{shape}`"), remedy)
}

fn drawn_per(text: &str) -> Result<DrawnPer, Malformed> {
    match text {
        "task" => Ok(DrawnPer::Task),
        "stage" => Ok(DrawnPer::Stage),
        "job" => Ok(DrawnPer::Job),
        _ => Err(Malformed::new(format!("unknown value `{text}`"), "write `task`, `stage` or `job`")),
    }
}

impl Generator {
    fn job(&self, number: usize, chance: &mut Chance) -> Draft {
        let jobs_own = self.run_time.draw_time(chance);
        let mut stages: Vec<DraftStage> = Vec::new();
        let mut layer_before = 0..0;
        for layer in 0..self.layers.draw_count(chance, 1) {
            let layer_start = stages.len();
            for column in 0..self.width.draw_count(chance, 1) {
                // One more task than a job may have: the job is refused, but does not fill the memory before.
                let tasks = self.tasks.draw_count(chance, 1).min(MAX_TASKS as u32 + 1);
                let run_times = match self.drawn_per {
                    DrawnPer::Task => RunTimes::Each((0..tasks).map(|_| self.run_time.draw_time(chance)).collect()),
                    DrawnPer::Stage => RunTimes::Same(self.run_time.draw_time(chance)),
                    DrawnPer::Job => RunTimes::Same(jobs_own),
                };
                let after: Vec<usize> = befores(layer_before.clone(), chance);
                stages.push(DraftStage::new(format!("{layer}-{column}"), tasks, run_times).after(after));
            }
            layer_before = layer_start..stages.len();
        }
        Draft { name: format!("job-{number}"), stages, ..Draft::default() }
    }
}

/// Draws one stage of the layer before, and each other one with a probability of 1/2.
fn befores(layer: std::ops::Range<usize>, chance: &mut Chance) -> Vec<usize> {
    if layer.is_empty() {
        return Vec::new();
    }
    let sure = layer.start + chance.below(layer.len() as u64) as usize;
    layer.filter(|stage| *stage == sure || chance.below(2_u32) == 0).collect()
}
