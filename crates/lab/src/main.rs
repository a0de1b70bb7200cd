//! `amalgam-lab`: the figures of the papers, the scoreboard and the benchmarks. It is a separate program, and starts the product's program
//! where a figure or a benchmark needs real daemons.

mod baselines;
mod bench;
mod cluster;
mod extent;
mod hollow_federation;
mod matching;
mod measure;
mod paper;
mod product;
mod scoreboard;

use amalgam_cli::failure::Result;
use amalgam_cli::process::{die_of_broken_pipes, outlive_full_files};
use amalgam_cli::{environment, output, refusal, show};
use amalgam_daemon::inherited;
use clap::{CommandFactory, Parser, Subcommand};
use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

/// Experiments with Amalgam: the figures of the papers, the scoreboard of presets, and benchmarks.
#[derive(Parser)]
#[command(name = "amalgam-lab", version, propagate_version = true, disable_help_subcommand = true)]
#[command(
    after_help = "Figures and benchmarks with real daemons start the program `amalgam` of the same directory, or the one that AMALGAM_PROGRAM names.

Examples:
  amalgam-lab paper list
  amalgam-lab paper run mercury-6 --quick
  amalgam-lab scoreboard --traces DIR --quick
  amalgam-lab bench launch --runs 1"
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the figures of the papers and compare
    Paper(paper::PaperArgs),
    /// Run public workloads under each preset and compare them
    Scoreboard(scoreboard::ScoreboardArgs),
    /// Measure this machine and Amalgam on it
    Bench(bench::BenchArgs),
}

fn main() -> ExitCode {
    environment::drop_empty();
    let written: Vec<OsString> = env::args_os().collect();
    let arguments = Arguments::try_parse_from(&written)
        .unwrap_or_else(|error| refusal::refuse(error, Arguments::command(), &written));
    match arguments.verb {
        Verb::Paper(_) | Verb::Scoreboard(_) => die_of_broken_pipes(),
        Verb::Bench(_) => inherited::let_go(env::args_os()),
    }
    outlive_full_files();
    let code = execute(arguments.verb).unwrap_or_else(|failure| {
        show::note(&failure.to_string());
        ExitCode::from(failure.code)
    });
    if code == ExitCode::SUCCESS && output::has_lost_notes() { ExitCode::FAILURE } else { code }
}

fn execute(verb: Verb) -> Result<ExitCode> {
    environment::check()?;
    match verb {
        Verb::Paper(args) => paper::execute(&args).map(|()| ExitCode::SUCCESS),
        Verb::Scoreboard(args) => scoreboard::execute(&args).map(|()| ExitCode::SUCCESS),
        Verb::Bench(args) => bench::execute(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verbs_are_consistent() {
        Arguments::command().debug_assert();
    }
}
