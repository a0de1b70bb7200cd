//! `amalgam-lab paper`: runs the papers' figures in the simulator or with daemons, and compares them with the papers.

mod apollo;
mod carbyne;
mod figure;
mod megha;
mod mercury;

use amalgam_cli::failure::{Failure, Result};
use amalgam_cli::files::{cannot_write, create};
use amalgam_cli::show;
use amalgam_sim::report::figure_html;
use clap::{Args, Subcommand};
pub use figure::Row;
use figure::{Amount, Extent, ExtentArgs, Figure, Findings, SEEDS, ScenarioText};
use serde::Serialize;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::PathBuf;

#[derive(Args)]
#[command(after_help = "Examples:
  amalgam-lab paper list
  amalgam-lab paper run mercury-6 --quick
  amalgam-lab paper run mercury-6 --json --report mercury-6.html
  amalgam-lab paper run carbyne-5 --traces DIR        with the public traces that its scenario names")]
pub struct PaperArgs {
    #[command(subcommand)]
    verb: PaperVerb,
}

#[derive(Subcommand)]
enum PaperVerb {
    /// List the figures and tables that can be run
    List {
        /// Print them as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run a figure and compare the results with the paper's numbers
    Run(RunArgs),
    /// Print the frozen scenario of a figure, as a start for your own
    Scenario {
        /// Such as mercury-6
        figure: String,
    },
}

#[derive(Args)]
struct RunArgs {
    /// Such as mercury-6; see `amalgam-lab paper list`
    figure: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write a page with boxes and distributions
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Run with this scenario file instead of the frozen one, which `amalgam-lab paper scenario` prints; the results say so
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    #[command(flatten)]
    extent: ExtentArgs,
}

/// The stable output format.
#[derive(Serialize)]
struct Found<'a> {
    figure: &'a str,
    seeds: Vec<u64>,
    rows: &'a [Row],
    departures: &'a [String],
}

#[derive(Serialize)]
struct Listed {
    figure: &'static str,
    title: &'static str,
}

pub fn execute(args: &PaperArgs) -> Result<()> {
    match &args.verb {
        PaperVerb::List { json } => list(*json),
        PaperVerb::Run(args) => run(args),
        PaperVerb::Scenario { figure } => show::print(known(figure)?.paper.scenario),
    }
}

/// The numbers of a figure with its frozen scenario, and a description of what was cut.
///
/// # Errors
/// An unknown figure; a folder or file of traces that is missing, or a damaged one.
pub fn rows(figure: &str, extent: &Extent) -> Result<(Vec<Row>, Option<String>)> {
    let figure = known(figure)?;
    Ok(((figure.find)(figure.name, &ScenarioText::frozen(figure), extent)?.rows, cut(figure, extent)))
}

#[cfg(test)]
pub fn is_known(figure: &str) -> bool {
    known(figure).is_ok()
}

fn list(json: bool) -> Result<()> {
    let listed: Vec<Listed> = figure::all().map(|figure| Listed { figure: figure.name, title: figure.title }).collect();
    if json {
        return show::json(&listed);
    }
    let rows: Vec<Vec<String>> =
        listed.iter().map(|listed| vec![listed.figure.to_owned(), listed.title.to_owned()]).collect();
    show::print(&show::table(&["FIGURE", "WHAT IT SHOWS"], &rows))
}

fn known(name: &str) -> Result<&'static Figure> {
    figure::find(name).map_err(|(what, remedy)| Failure::usage(what, remedy))
}

fn run(args: &RunArgs) -> Result<()> {
    let figure = known(&args.figure)?;
    let extent = args.extent.extent();
    let cut = cut(figure, &extent);
    if let Some(cut) = &cut {
        show::note(&format!("note: {cut}"));
    }
    // Before the simulation, so that an unwritable place costs no time.
    let report = args.report.as_deref().map(|path| Ok::<_, Failure>((path, create(path)?))).transpose()?;
    let scenario = args.scenario.as_deref().map_or_else(|| Ok(ScenarioText::frozen(figure)), ScenarioText::read)?;
    let mut findings = (figure.find)(figure.name, &scenario, &extent)?;
    let other = args.scenario.as_deref().map(|path| format!("not the frozen scenario but {}", path.display()));
    findings.departures.splice(0..0, cut.into_iter().chain(other));
    // The results first: the report may find the disk full.
    match args.json {
        true => show::json(&Found {
            figure: figure.name,
            seeds: extent.seeds.clone().collect(),
            rows: &findings.rows,
            departures: &findings.departures,
        }),
        false => show::print(&text(figure.title, &findings, &extent.seeds)),
    }?;
    if let Some((path, mut file)) = report {
        let command = format!("amalgam-lab {}", std::env::args().skip(1).collect::<Vec<_>>().join(" "));
        let rows: Vec<Vec<String>> = findings.rows.iter().map(cells).collect();
        let Findings { departures, plots, .. } = &findings;
        let page = figure_html(figure.title, &command, &HEADINGS, &rows, departures, plots);
        let page = page.map_err(|error| Failure::new(error, ""))?;
        let written = file.write_all(page.as_bytes()).and_then(|()| file.finish());
        written.map_err(|error| cannot_write(path, &error))?;
    }
    Ok(())
}

/// A description of the cuts.
fn cut(figure: &Figure, extent: &Extent) -> Option<String> {
    let count = extent.seeds.clone().count();
    let few = count < SEEDS.count();
    match extent.amount {
        Amount::Smoke => Some(format!("cut: {}", figure.paper.smoke)),
        Amount::Quick if few => Some(format!("cut: {}, {count} seeds of 5", figure.paper.quick)),
        Amount::Quick => Some(format!("cut: {}", figure.paper.quick)),
        Amount::Whole => few.then(|| format!("low and high are of {count} seeds, not of five")),
    }
}

fn text(title: &str, findings: &Findings, seeds: &RangeInclusive<u64>) -> String {
    let rows: Vec<Vec<String>> = findings.rows.iter().map(cells).collect();
    let mut text = format!("{title}\n\n");
    text += &show::table(&HEADINGS, &rows);
    text += &format!("\nmeans over the seeds {} to {}, the least and the most\n", seeds.start(), seeds.end());
    findings.departures.iter().for_each(|departure| text += &format!("- {departure}\n"));
    text
}

const HEADINGS: [&str; 6] = ["CASE", "METRIC", "PAPER", "OURS", "LOW", "HIGH"];

/// A row as text for people.
fn cells(row: &Row) -> Vec<String> {
    let number = |value: f64| format!("{value:.3}");
    let paper = row.paper.map_or_else(|| "-".to_owned(), number);
    vec![row.case.clone(), row.metric.clone(), paper, number(row.ours), number(row.low), number(row.high)]
}
