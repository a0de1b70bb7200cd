//! One simulated run.

mod arguments;
mod checks;
mod notes;

pub use arguments::RunArgs;

use super::{printing, tables};
use crate::failure::{Failure, Result};
use crate::show;
use amalgam_cli::files::{cannot_write, create};
use amalgam_cli::process::peak_memory;
use amalgam_core::preset::Preset;
use amalgam_daemon::config::Config;
use amalgam_daemon::durable::Draft;
use amalgam_sim::{Outcome, Reference, Results, Settings, Simulation, capacity, report};
use amalgam_workload::trace::{Node, Workload};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Instant;

/// The inputs that all presets have in common.
struct World {
    seed: u64,
    nodes: Vec<Node>,
    workload: Workload,
}

impl World {
    fn of(args: &RunArgs, seed: u64) -> Result<World> {
        let world = World { seed, nodes: args.nodes(seed)?, workload: args.workload(seed)? };
        if world.nodes.is_empty() {
            return Err(Failure::usage("no nodes", "give at least one with --nodes"));
        }
        Ok(world)
    }
}

pub fn execute(args: &RunArgs) -> Result<()> {
    let seeds = args.seeds.clone().unwrap_or(args.seed..=args.seed);
    let worlds = seeds.clone().map(|seed| World::of(args, seed)).collect::<Result<Vec<World>>>();
    let worlds = worlds.map_err(|failure| match args.scenario() {
        Some(path) => Failure { what: format!("with {}: {}", path.display(), failure.what), ..failure },
        None => failure,
    })?;
    let first = &worlds[0];
    checks::check_worlds(args, &worlds)?;
    let configs = args.configs()?;
    checks::check_presets(args, &configs, first.nodes.len())?;
    // Before the simulation, so that an unwritable place costs no time.
    let report = args.report.as_deref().map(|path| Ok::<_, Failure>((path, create(path)?))).transpose()?;
    args.csv.iter().chain(&args.parquet).try_for_each(|directory| tables::make(directory))?;

    // After all checks, so that an error is the only output.
    notes::tell_gaps(&first.workload);
    notes::report_heartbeats(first, args.world.heartbeat);
    notes::report_inputs(args, first);
    let runs = run_all(args, &worlds, &configs);
    if args.strict {
        runs.iter().try_for_each(checks::check_fits)?;
    }
    checks::check_any_fits(&runs, &first.workload)?;
    print(args, &seeds, &runs)?;
    // Files are written last: the disk may be full.
    for run in &runs {
        args.csv.iter().try_for_each(|directory| tables::write_csv(directory, run))?;
        args.parquet.iter().try_for_each(|directory| tables::write_parquet(directory, run))?;
    }
    if let Some((path, file)) = report {
        write_report(path, file, first, &runs)?;
    }
    if args.strict { runs.iter().try_for_each(checks::check_ends) } else { Ok(()) }
}

/// Prints the stories, if any, and the results.
fn print(args: &RunArgs, seeds: &RangeInclusive<u64>, runs: &[Outcome]) -> Result<()> {
    for run in runs.iter().filter(|_| args.story.is_some()) {
        let heading = if runs.len() > 1 { format!("{}:\n", run.results.preset) } else { String::new() };
        show::print(&(heading + &printing::story(run)))?;
    }
    let results: Vec<&Results> = runs.iter().map(|run| &run.results).collect();
    match (&results[..], args.json) {
        ([run], true) => show::json(run),
        (runs, true) => show::json(&runs),
        ([run], false) => show::print(&printing::table(run)),
        (runs, false) => show::print(&printing::comparison(runs, seeds)),
    }
}

/// Writes the page with tables and plots.
fn write_report(path: &Path, mut file: Draft, first: &World, runs: &[Outcome]) -> Result<()> {
    let command = format!("amalgam {}", std::env::args().skip(1).collect::<Vec<_>>().join(" "));
    let title = format!("{} on {} nodes", first.workload.name, first.nodes.len());
    let notes = &first.workload.notes;
    let page = report::html(&title, &command, notes, runs).map_err(|error| Failure::new(error, ""))?;
    let written = file.write_all(page.as_bytes()).and_then(|()| file.finish());
    written.map_err(|error| cannot_write(path, &error))
}

/// Runs every preset in every world, in the order of the presets and then of the seeds.
fn run_all(args: &RunArgs, worlds: &[World], configs: &[Config]) -> Vec<Outcome> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let last = (configs.len() * worlds.len()) as u64;
    let again = configs.iter().filter(|config| args.against_selfish && selfish(config.preset).is_some()).count();
    let progress =
        Progress::of((configs.len() + again) * worlds.iter().map(|world| world.workload.jobs.len()).sum::<usize>());
    let work = |number: u64| {
        let number = number as usize - 1;
        let World { seed, nodes, workload } = &worlds[number % worlds.len()];
        let config = &configs[number / worlds.len()];
        let preset = config.preset;
        let mut run = simulate(args.settings(config, preset, *seed), nodes, workload, &progress);
        if let Some(selfish) = selfish(preset).filter(|_| args.against_selfish) {
            let settings = Settings { story: None, ..args.settings(config, selfish, *seed) };
            run.compare_with_selfish(&simulate(settings, nodes, workload, &progress));
        }
        run.results.reference = reference(&run, workload, nodes);
        run
    };
    let mut runs = Vec::new();
    amalgam_sim::in_order(1..=last, args.threads.unwrap_or_else(cores), work, |run| runs.push(run));
    runs
}

/// The same preset without yielding jobs; `None` if its jobs never yield.
fn selfish(mut preset: Preset) -> Option<Preset> {
    preset.yielding_mut().filter(|yielding| yielding.altruism > 0)?.altruism = 0;
    Some(preset)
}

/// Lower bounds of any scheduler, for the jobs that fit on a node. Only if all of them did all their work.
fn reference(run: &Outcome, workload: &Workload, nodes: &[Node]) -> Option<Reference> {
    let Results { unfinished_jobs, failed_jobs, succeeded_jobs, .. } = run.results;
    let fitting = workload.jobs.iter().zip(&run.jobs).filter(|(_, result)| result.outcome != "refused");
    (unfinished_jobs == 0 && failed_jobs == 0 && succeeded_jobs > 0)
        .then(|| Reference::of(fitting.map(|(job, _)| job), &capacity(nodes)))
}

/// A progress bar on a terminal: the jobs of all runs that have ended.
struct Progress(ProgressBar);

impl Progress {
    fn of(jobs: usize) -> Progress {
        let target = if show::is_watched() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(jobs as u64), target);
        let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} jobs have ended, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress(bar)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn simulate(settings: Settings, nodes: &[Node], workload: &Workload, progress: &Progress) -> Outcome {
    let started = Instant::now();
    let mut ended = 0;
    let mut outcome = Simulation::new(settings, nodes, workload).run_watched(&mut |now| {
        progress.0.inc((now - ended) as u64);
        ended = now;
    });
    outcome.results.wall_seconds = started.elapsed().as_secs_f64();
    outcome.results.peak_memory_bytes = peak_memory();
    outcome
}
