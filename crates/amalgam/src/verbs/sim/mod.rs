//! `amalgam sim`: simulates a cluster of any size.

mod chaos;
mod printing;
mod replay;
mod run;
mod scenario;
mod tables;

use crate::failure::Result;
use amalgam_core::vocabulary::{JobId, TaskId};
use clap::{Args, Subcommand};
use std::process::ExitCode;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam sim run --preset drf --nodes 100 --cpus 20 --memory 128GiB --workload tpch:tpch_decima -w limit=250
  amalgam sim run --preset fifo --nodes 4000 --workload hawk:YH1_sub.tr.gz --json
  amalgam sim run examples/scenario.toml --seed 7
  amalgam dev --journal DIR    and later    amalgam sim replay DIR")]
pub struct SimArgs {
    #[command(subcommand)]
    verb: SimVerb,
}

#[derive(Subcommand)]
enum SimVerb {
    /// Run a workload on a simulated cluster and print the results
    Run(Box<run::RunArgs>),
    /// Run simulations with random faults, and check every rule after every event
    Chaos(chaos::ChaosArgs),
    /// Replay a daemon's journal, and print where the roles have other effects
    Replay(replay::ReplayArgs),
}

pub fn execute(args: SimArgs) -> Result<ExitCode> {
    match with_scenario(args)?.verb {
        SimVerb::Run(args) => {
            run::execute(&args)?;
            Ok(ExitCode::SUCCESS)
        }
        SimVerb::Chaos(args) => chaos::execute(&args),
        SimVerb::Replay(args) => replay::execute(&args),
    }
}

fn with_scenario(args: SimArgs) -> Result<SimArgs> {
    let SimVerb::Run(run) = &args.verb else { return Ok(args) };
    let Some(path) = run.scenario() else { return Ok(args) };
    scenario::with_flags_of(path)
}

/// `3.0.2`: the number of the job from 1, the stage, and the index.
fn parse_task(text: &str) -> std::result::Result<TaskId, String> {
    let parts: Vec<u64> = text.split('.').filter_map(|part| part.parse().ok()).collect();
    match parts[..] {
        [job, stage, index] => Ok(TaskId { job: JobId(job), stage: stage as u32, index: index as u32 }),
        _ => Err(format!("`{text}` is not a task; write job, stage and index as 3.0.2")),
    }
}
