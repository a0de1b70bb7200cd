//! `amalgam-lab scoreboard`: public workloads under each preset, and how far each preset is from the best one.

mod backfilling;
mod board;
mod entry;
mod experiments;
mod score;

use crate::baselines;
use crate::extent::{Amount, Extent, ExtentArgs, SEEDS, nodes, run_all};
use amalgam_cli::failure::{Failure, Result};
use amalgam_cli::show;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{Chance, Duration};
use amalgam_sim::{ExecutionSettings, Settings, Simulation};
use amalgam_workload::trace::Workload;
use backfilling::Promised;
use board::{Board, BoardRow, Half, Variant};
use clap::Args;
use entry::Entry;
use experiments::{Experiment, Numbers};
use score::{CaseRuns, REFERENCE, Run, Score};
use serde::Serialize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam-lab scoreboard --traces DIR --quick
  amalgam-lab scoreboard --traces DIR --row 'TPC-H, 90 % load' --preset drf,srtf --seeds 1..1
  amalgam-lab scoreboard --traces DIR --half validation --variant plain,unknown,wrong,slow --json")]
pub struct ScoreboardArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Which jobs to run: schedulers are tuned on those of the development half only
    #[arg(long, default_value = "development")]
    half: Half,
    /// Rows and experiments of papers to run; repeatable. Experiments have presets and jobs of their own, so --preset, --half and
    /// --variant do not apply to them [default: all]
    #[arg(long = "row", value_name = "NAME")]
    rows: Vec<String>,
    /// Presets to compare, which may be baselines; drf is always run, since each job is compared with its end under drf [default:
    /// amalgam,fifo,drf,srtf,tetris,carbyne,mercury-plus,apollo-plus,sparrow]
    #[arg(long = "preset", value_name = "NAME", value_delimiter = ',')]
    presets: Vec<String>,
    /// What jobs and nodes are like
    #[arg(long = "variant", value_delimiter = ',', default_value = "plain")]
    variants: Vec<Variant>,
    #[command(flatten)]
    extent: ExtentArgs,
}

/// The stable output format.
#[derive(Serialize)]
struct Found<'a> {
    half: Half,
    seeds: Vec<u64>,
    rows: Vec<Entry>,
    /// What was cut, in sentences.
    cut: &'a [String],
}

/// A row in a variant, with the jobs for each seed.
struct Jobs<'a> {
    row: &'a BoardRow,
    variant: Variant,
    workloads: Vec<Workload>,
}

/// The same under a preset.
struct Case<'a> {
    jobs: &'a Jobs<'a>,
    preset: Preset,
    /// Each job arrives a bit later.
    are_moved: bool,
}

/// The baseline that shows how much the ends of jobs depend on chance: [`REFERENCE`] with jobs that arrive a bit later.
const MOVED: &str = "drf-moved";
/// Maximum by which they do.
const MOVED_BY: Duration = Duration::from_secs(1);

pub fn execute(args: &ScoreboardArgs) -> Result<()> {
    let board = Board::load();
    let extent = args.extent.extent();
    let presets = presets(if args.presets.is_empty() { &board.presets } else { &args.presets })?;
    let (rows, experiments) = board.select(&args.rows)?;
    // Other variants are compared with this one.
    let mut variants = args.variants.clone();
    if !variants.contains(&Variant::Plain) {
        variants.insert(0, Variant::Plain);
    }
    let of_rows: Vec<(&BoardRow, Variant)> =
        rows.into_iter().flat_map(|row| variants.iter().map(move |variant| (row, *variant))).collect();
    // All files are read before the first simulation: a mistake in a path is reported at once.
    let read = run_all(&of_rows, &extent, |(row, variant), seed| row.jobs(args.half, *variant, seed, &extent));
    let mut jobs = Vec::with_capacity(of_rows.len());
    for ((row, variant), read) in of_rows.into_iter().zip(read) {
        jobs.push(Jobs { row, variant, workloads: read.into_iter().collect::<Result<_>>()? });
    }
    let reference = presets.iter().find(|preset| preset.name() == REFERENCE).map(|preset| (*preset, true));
    let compared: Vec<(Preset, bool)> = presets.iter().map(|preset| (*preset, false)).chain(reference).collect();
    let case = |jobs, (preset, are_moved)| Case { jobs, preset, are_moved };
    let cases: Vec<Case<'_>> = jobs.iter().flat_map(|jobs| compared.iter().map(move |of| case(jobs, *of))).collect();
    let progress = Progress::new(cases.len() * extent.seeds.clone().count());
    let runs = run_all(&cases, &extent, |case, seed| progress.after(case, seed, || case.run(seed, &extent)));
    let mut of_presets = cases.iter().zip(runs).map(|(case, runs)| case.with(runs));
    let of_jobs = |jobs| of_presets.by_ref().take(compared.len()).chain(backfilled(jobs, &extent)).collect::<Vec<_>>();
    let of_cases: Vec<CaseRuns<'_>> = jobs.iter().flat_map(of_jobs).collect();
    let scores = score::of_all(&of_cases);
    let numbers = experiments.iter().map(|one| run_experiment(one, &extent)).collect::<Result<Vec<Numbers>>>()?;
    let of_rows = if scores.is_empty() { Vec::new() } else { cut(&extent) };
    let cut: Vec<String> = of_rows.into_iter().chain(numbers.iter().filter_map(|one| one.cut.clone())).collect();
    if args.json {
        let (half, seeds) = (args.half, extent.seeds.clone().collect());
        let of_numbers = numbers.into_iter().flat_map(|numbers| [numbers.asked, numbers.others].into_iter().flatten());
        let rows = scores.iter().flat_map(Score::entries).chain(of_numbers).collect();
        return show::json(&Found { half, seeds, rows, cut: &cut });
    }
    show::print(&text(&scores, &numbers, &extent, &cut))
}

/// The presets of these names, and the one that others are compared with.
fn presets(names: &[String]) -> Result<Vec<Preset>> {
    let parse = |name: &str| baselines::parse(name).map_err(|problem| Failure::usage(problem, "name one of those"));
    let mut presets = names.iter().map(|name| parse(name)).collect::<Result<Vec<Preset>>>()?;
    if let Some(federated) = presets.iter().find(|preset| preset.is_federated()) {
        let problem = format!("the preset `{}` is for federations, and the rows have one cluster", federated.name());
        return Err(Failure::usage(problem, "name a preset of one cluster"));
    }
    if presets.iter().all(|preset| preset.name() != REFERENCE) {
        presets.insert(0, parse(REFERENCE)?);
    }
    Ok(presets)
}

/// The same jobs, each of which arrives later by up to [`MOVED_BY`], but not after the next one did.
fn moved(workload: &Workload, seed: u64) -> Workload {
    let mut chance = Chance::new(seed, MOVED);
    let mut moved = workload.clone();
    let next = workload.jobs.iter().skip(1).map(|next| Some(next.arrival)).chain([None]);
    for (job, next) in moved.jobs.iter_mut().zip(next) {
        let most = next.map_or(MOVED_BY, |next| MOVED_BY.min(next - job.arrival));
        job.arrival += Duration(chance.below(most.0 + 1));
    }
    moved
}

/// What backfilling of batch systems would have done; nothing unless all jobs are gangs.
fn backfilled<'a>(jobs: &'a Jobs<'a>, extent: &Extent) -> Vec<CaseRuns<'a>> {
    let Jobs { row, variant, ref workloads } = *jobs;
    let processors = row.node_count(extent.amount) * row.cpus;
    let of = |promised: Promised| {
        let runs = workloads.iter().map(|workload| Run::of_backfilling(workload, processors, promised));
        let runs = runs.collect::<Option<_>>()?;
        Some(CaseRuns { row: &row.name, variant, preset: promised.name(), is_baseline: true, runs })
    };
    Promised::ALL.into_iter().filter_map(of).collect()
}

impl Case<'_> {
    fn with(&self, runs: Vec<Run>) -> CaseRuns<'_> {
        CaseRuns {
            row: &self.jobs.row.name,
            variant: self.jobs.variant,
            preset: self.name(),
            is_baseline: self.are_moved,
            runs,
        }
    }

    fn name(&self) -> &str {
        if self.are_moved { MOVED } else { self.preset.name() }
    }

    fn run(&self, seed: u64, extent: &Extent) -> Run {
        let Case { jobs: Jobs { row, variant, workloads }, preset, are_moved } = self;
        let stated = &workloads[(seed - extent.seeds.start()) as usize];
        let moved = are_moved.then(|| moved(stated, seed));
        let workload = moved.as_ref().unwrap_or(stated);
        let execution = ExecutionSettings { slow_nodes: variant.slow_nodes(), ..ExecutionSettings::default() };
        let mut settings = Settings { preset: *preset, seed, execution, queues: row.queues(), ..Settings::default() };
        settings.preset.seed = seed;
        let nodes = nodes(row.node(), row.node_count(extent.amount));
        Run::of(&Simulation::new(settings, &nodes, workload).run(), workload)
    }
}

/// Reports each simulation that has ended.
struct Progress {
    count: usize,
    done: AtomicUsize,
}

impl Progress {
    fn new(count: usize) -> Progress {
        Progress { count, done: AtomicUsize::new(0) }
    }

    fn after(&self, case: &Case<'_>, seed: u64, run: impl FnOnce() -> Run) -> Run {
        let started = Instant::now();
        let found = run();
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let (row, preset) = (&case.jobs.row.name, case.name());
        let (count, took) = (self.count, started.elapsed().as_secs_f64());
        show::note(&format!("{done} of {count}: {row}, {preset}, seed {seed}: {took:.1} s"));
        found
    }
}

fn run_experiment(experiment: &Experiment, extent: &Extent) -> Result<Numbers> {
    show::note(&format!("experiment: {}", experiment.name));
    experiment.run(extent)
}

const LEGEND: &str = "\
MEAN, P50, P95, P99, MAKESPAN: times the best of the row; the first four of completion times
PLAIN: the mean, times the best of the row with true run times and equal nodes; SECONDS: the means of the seeds
SLOWER: share of the jobs with a speed below 0.95 of that under drf; WORST: the least speed
KILLS: preempted attempts; LOST: share of the CPU time that no task needed in the end; USED: share of the CPUs in use
ALLOC: seconds from when a task was ready to its start
SLOWDOWN: mean bounded slowdown of the jobs; DELAY: by how much a job took longer than the shortest time possible, in seconds, at most
BELOW: share of the windows of 60 s in which a queue with demand held less than 95 % of what it could use of its guarantee
drf-moved: drf if each job arrives up to a second later, but not after the next one did: what SLOWER and WORST owe to chance; no preset either
easy, conservative: backfilling of batch systems without any costs, where all jobs are gangs; they are no presets and not the best of a row
";

fn cut(extent: &Extent) -> Vec<String> {
    let cut = match extent.amount {
        Amount::Whole => None,
        Amount::Quick => Some("cut: an eighth of the jobs"),
        Amount::Smoke => Some("cut: a tenth of the nodes, and a few drawn jobs instead of those of the traces"),
    };
    let seeds = extent.seeds.clone().count();
    let fewer = (seeds != SEEDS.clone().count())
        .then(|| format!("cut: the number of seeds is {seeds} instead of {}", SEEDS.clone().count()));
    cut.map(str::to_owned).into_iter().chain(fewer).collect()
}

fn text(scores: &[Score], numbers: &[Numbers], extent: &Extent, cut: &[String]) -> String {
    const HEADINGS: [&str; 19] = [
        "ROW",
        "PRESET",
        "MEAN",
        "P50",
        "P95",
        "P99",
        "MAKESPAN",
        "PLAIN",
        "SECONDS",
        "SLOWER",
        "WORST",
        "KILLS",
        "LOST",
        "USED",
        "ALLOC P50",
        "ALLOC P99",
        "SLOWDOWN",
        "DELAY",
        "BELOW",
    ];
    let rows: Vec<Vec<String>> = scores.iter().map(Score::cells).collect();
    let mut text = if rows.is_empty() { String::new() } else { show::table(&HEADINGS, &rows) };
    let asked = || numbers.iter().flat_map(|numbers| &numbers.asked);
    if asked().next().is_some() {
        let separator = if rows.is_empty() { "" } else { "\n" };
        let cells: Vec<Vec<String>> = asked().map(Entry::cells).collect();
        text += separator;
        text += &show::table(&["EXPERIMENT", "SCHEDULER", "METRIC", "VALUE", "ASKED"], &cells);
    }
    text += &format!("\nmeans over the seeds {} to {}\n{LEGEND}", extent.seeds.start(), extent.seeds.end());
    cut.iter().for_each(|cut| text += &format!("- {cut}\n"));
    let entries: Vec<Entry> = scores.iter().flat_map(Score::entries).collect();
    let misses = entries.iter().chain(asked()).filter_map(Entry::miss);
    misses.for_each(|miss| text += &format!("- missed by amalgam: {miss}\n"));
    let unfinished = scores.iter().filter(|score| score.unfinished > 0);
    unfinished.for_each(|score| {
        text += &format!("- {} under {}: {} jobs did not succeed\n", score.title(), score.preset, score.unfinished);
    });
    text
}
