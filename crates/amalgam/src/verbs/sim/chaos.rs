//! Random faults by seed: each seed draws a cluster and its faults, and every rule is checked after every event. The summary
//! counts what the seeds covered, to show that the rules had something to check.

use super::parse_task;
use crate::failure::{Failure, Result};
use crate::show;
use amalgam_cli::values::parse_seeds;
use amalgam_core::vocabulary::TaskId;
use amalgam_sim::{Report, TotalCoverage};
use clap::Args;
use serde::Serialize;
use std::ops::RangeInclusive;
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam sim chaos --seeds 1..200
  amalgam sim chaos --seed 17 --story 3.0.2")]
pub struct ChaosArgs {
    /// Run this seed
    #[arg(long, value_name = "N", conflicts_with = "seeds", required_unless_present = "seeds")]
    seed: Option<u64>,
    /// Run these seeds, the last one included
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    seeds: Option<RangeInclusive<u64>>,
    /// Number of seeds that run at once; all cores by default. The output does not depend on it
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print the story of the seed, or of one task such as 3.0.2 (job, stage, index)
    #[arg(long, value_name = "TASK", num_args = 0..=1, requires = "seed", value_parser = parse_task)]
    story: Option<Option<TaskId>>,
    /// Print the reports as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Summary {
    seeds: u64,
    failed: Vec<u64>,
    steps: u64,
    /// How many seeds covered each item.
    coverage: TotalCoverage,
    reports: Vec<Report>,
}

pub fn execute(args: &ChaosArgs) -> Result<ExitCode> {
    if let (Some(seed), Some(task)) = (args.seed, args.story) {
        return print_story(seed, task);
    }
    let seeds = match (&args.seeds, args.seed) {
        (Some(seeds), _) => seeds.clone(),
        (None, Some(seed)) => seed..=seed,
        (None, None) => return Err(Failure::usage("no seed is given", "name one with --seed or some with --seeds")),
    };
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let mut summary =
        Summary { seeds: 0, failed: Vec::new(), steps: 0, coverage: TotalCoverage::default(), reports: Vec::new() };
    let mut printed = Ok(());
    amalgam_sim::run_seeds(seeds.clone(), args.threads.unwrap_or_else(cores), |report| {
        summary.seeds += 1;
        summary.steps += report.steps;
        summary.coverage.add(report.preset, &report.coverage);
        summary.failed.extend(report.failure.is_some().then_some(report.seed));
        if args.json {
            summary.reports.push(report);
        } else if printed.is_ok() && (args.seed.is_some() || report.failure.is_some()) {
            printed = show::print(&describe(&report));
        }
    });
    printed?;
    match args.json {
        true => show::json(&summary)?,
        false => show::print(&conclude(&summary))?,
    }
    Ok(exit_code(summary.failed.is_empty()))
}

fn print_story(seed: u64, task: Option<TaskId>) -> Result<ExitCode> {
    let (report, lines) = amalgam_sim::run_seed_with_story(seed, task);
    lines.iter().try_for_each(|line| show::print(&format!("{line}\n")))?;
    show::print(&describe(&report))?;
    Ok(exit_code(report.failure.is_none()))
}

fn exit_code(is_well: bool) -> ExitCode {
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn describe(report: &Report) -> String {
    let Report { seed, preset, nodes, jobs, faults, steps, digest, .. } = report;
    let seconds = show::number(report.simulated_seconds);
    let mut text = format!(
        "seed {seed}: {preset}, {nodes} nodes, {jobs} jobs, {faults} faults, {steps} steps in {seconds} s, digest {digest}\n"
    );
    if let Some(failure) = &report.failure {
        text += &format!("  broken after {} s: {}\n", failure.at_s, failure.rule);
        text += &format!("  {}\n", failure.what);
        failure.story.iter().for_each(|line| text += &format!("    {line}\n"));
        text += &format!("  replay: amalgam sim chaos --seed {seed} --story\n");
    }
    text
}

fn conclude(summary: &Summary) -> String {
    let Summary { seeds, failed, steps, coverage, .. } = summary;
    let mut text = describe_coverage(coverage);
    text += &match failed.len() {
        0 => format!("{seeds} seeds, {steps} steps: every rule held and every job ended\n"),
        count => format!("{seeds} seeds, {steps} steps: {count} failed\n"),
    };
    text
}

/// How many seeds covered each item, and how many times.
fn describe_coverage(coverage: &TotalCoverage) -> String {
    let TotalCoverage { presets, faults, events, rules } = coverage;
    let groups = [("preset", presets), ("fault", faults), ("what came about", events), ("rule", rules)];
    let mut text = String::new();
    for (title, group) in groups {
        text += &format!("{:>8} {:>9}  {title}\n", "seeds", "times");
        let lines = group.iter().map(|(name, met)| format!("{:>8} {:>9}  {name}\n", met.seeds, met.times));
        text.extend(lines);
        text.push('\n');
    }
    text
}
