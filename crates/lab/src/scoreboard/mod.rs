//! `amalgam-lab scoreboard`: public workloads under each preset, and how far each preset is from the best one.

mod board;
mod score;

use crate::baselines;
use crate::extent::{Amount, Extent, ExtentArgs, nodes, run_all};
use amalgam_cli::failure::{Failure, Result};
use amalgam_cli::show;
use amalgam_core::preset::Preset;
use amalgam_sim::{ExecutionSettings, Settings, Simulation};
use board::{Board, BoardRow, Half, Variant};
use clap::Args;
use score::{CaseRuns, REFERENCE, Run, Score};
use serde::Serialize;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam-lab scoreboard --traces DIR --quick
  amalgam-lab scoreboard --traces DIR --row 'TPC-H, 90 % load' --preset drf,srtf --seeds 1..1
  amalgam-lab scoreboard --traces DIR --half validation --variant plain,unknown,wrong,slow --json")]
pub struct ScoreboardArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Whose jobs are run: schedulers are tuned on the development half only
    #[arg(long, default_value = "development")]
    half: Half,
    /// Rows to run; repeatable [default: all]
    #[arg(long = "row", value_name = "NAME")]
    rows: Vec<String>,
    /// Presets to compare, which may be baselines; drf is always run, since each job is compared with its end under drf [default:
    /// fifo,drf,srtf,tetris,carbyne,mercury-plus,apollo-plus,sparrow]
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
    scores: &'a [Score],
    /// What was cut, in sentences.
    cut: &'a [String],
}

/// A row in a variant under a preset.
struct Case<'a> {
    row: &'a BoardRow,
    variant: Variant,
    preset: Preset,
}

pub fn execute(args: &ScoreboardArgs) -> Result<()> {
    let board = Board::load();
    let extent = args.extent.extent();
    let presets = presets(if args.presets.is_empty() { &board.presets } else { &args.presets })?;
    let mut cases = Vec::new();
    for row in board.select(&args.rows)? {
        for variant in args.variants.iter().copied() {
            cases.extend(presets.iter().map(|preset| Case { row, variant, preset: *preset }));
        }
    }
    let runs = run_all(&cases, &extent, |case, seed| case.run(args.half, seed, &extent));
    let of_cases = cases.iter().zip(runs).map(|(case, runs)| case.with(runs)).collect::<Result<Vec<_>>>()?;
    let scores = score::of_all(&of_cases);
    let cut = cut(&extent);
    if args.json {
        let (half, seeds) = (args.half, extent.seeds.clone().collect());
        return show::json(&Found { half, seeds, scores: &scores, cut: &cut });
    }
    show::print(&text(&scores, &extent, &cut))
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

impl Case<'_> {
    fn with(&self, runs: Vec<Result<Run>>) -> Result<CaseRuns<'_>> {
        let runs = runs.into_iter().collect::<Result<_>>()?;
        Ok(CaseRuns { row: &self.row.name, variant: self.variant, preset: self.preset.name(), runs })
    }

    fn run(&self, half: Half, seed: u64, extent: &Extent) -> Result<Run> {
        let Case { row, variant, preset } = *self;
        let workload = row.jobs(half, variant, seed, extent)?;
        let execution = ExecutionSettings { slow_nodes: variant.slow_nodes(), ..ExecutionSettings::default() };
        let mut settings = Settings { preset, seed, execution, ..Settings::default() };
        settings.preset.seed = seed;
        let nodes = nodes(row.node(), row.node_count(extent.amount));
        Ok(Run::of(&Simulation::new(settings, &nodes, &workload).run(), &workload))
    }
}

const LEGEND: &str = "\
MEAN, P50, P95, P99, MAKESPAN: times the best of the row; the first four of completion times
SLOWER: share of the jobs with a speed below 0.95 of that under drf; WORST: the least speed
KILLS: preempted attempts; LOST: share of the CPU time that no task needed in the end
ALLOC: seconds from when a task was ready to its start
SLOWDOWN: mean bounded slowdown of the jobs; WAIT: the longest wait of a job in seconds
";

fn cut(extent: &Extent) -> Vec<String> {
    let cut = match extent.amount {
        Amount::Whole => None,
        Amount::Quick => Some("cut: an eighth of the jobs"),
        Amount::Smoke => Some("cut: a tenth of the nodes, and a few drawn jobs instead of those of the traces"),
    };
    cut.map(str::to_owned).into_iter().collect()
}

fn text(scores: &[Score], extent: &Extent, cut: &[String]) -> String {
    const HEADINGS: [&str; 15] = [
        "ROW",
        "PRESET",
        "MEAN",
        "P50",
        "P95",
        "P99",
        "MAKESPAN",
        "SLOWER",
        "WORST",
        "KILLS",
        "LOST",
        "ALLOC P50",
        "ALLOC P99",
        "SLOWDOWN",
        "WAIT",
    ];
    let rows: Vec<Vec<String>> = scores.iter().map(Score::cells).collect();
    let mut text = show::table(&HEADINGS, &rows);
    text += &format!("\nmeans over the seeds {} to {}\n{LEGEND}", extent.seeds.start(), extent.seeds.end());
    cut.iter().for_each(|cut| text += &format!("- {cut}\n"));
    let unfinished = scores.iter().filter(|score| score.unfinished > 0);
    unfinished.for_each(|score| {
        text += &format!("- {} under {}: {} jobs did not succeed\n", score.title(), score.preset, score.unfinished);
    });
    text
}
