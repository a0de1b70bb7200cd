//! Inputs that are stored on nodes: their placement, and the distance from which tasks read them.

use super::super::figure::{PaperNumber, Row, number_of};
use super::production::Run;
use super::scenario::Inputs;
use amalgam_core::policy::completion::Rates;
use amalgam_core::vocabulary::Attributes;
use amalgam_sim::{InputSettings, ReadFrom, Reading};
use amalgam_workload::trace::Node;

pub const TASKS: [&str; 3] = ["tasks_on_node", "tasks_in_rack", "tasks_across"];
pub const IO: [&str; 3] = ["io_on_node", "io_in_rack", "io_across"];

/// Consecutive nodes share a rack.
pub fn put_in_racks(nodes: &mut [Node], nodes_in_rack: u32) {
    for (number, node) in (0..).zip(nodes) {
        let rack: u32 = number / nodes_in_rack;
        node.attributes = Attributes::new([("rack".to_owned(), rack.to_string())]);
    }
}

/// A partition is the input of one task and is one block.
pub fn layout(inputs: &Inputs, rates: Rates) -> InputSettings {
    InputSettings { block_bytes: u64::MAX, replicas: inputs.replicas, rates }
}

/// Groups of tasks.
const ALL: [(&str, Selection); 3] = [
    ("", |reading| reading.all),
    (", first stages", |reading| reading.blocks),
    (", later stages", |reading| reading.earlier_tasks),
];
type Selection = fn(&Reading) -> ReadFrom;

pub fn rows(figure: &str, case: &str, runs: &[Run], paper: &[PaperNumber]) -> Vec<Row> {
    let of_runs: Vec<&Reading> = runs.iter().filter_map(|run| run.reading.as_ref()).collect();
    let mut rows = Vec::new();
    if of_runs.is_empty() {
        return rows;
    }
    for (which, part) in ALL {
        let mut row = |metric: &str, of: &dyn Fn(ReadFrom) -> f64| {
            let metric = format!("{metric}{which}");
            let of_seeds: Vec<f64> = of_runs.iter().map(|reading| of(part(reading))).collect();
            rows.push(Row::of(case, &metric, number_of(paper, figure, case, &metric), &of_seeds));
        };
        row(TASKS[0], &|of| of.tasks_on_node);
        row(TASKS[1], &|of| of.tasks_in_rack);
        row(TASKS[2], &|of| of.tasks_elsewhere);
        row(IO[0], &|of| of.bytes_on_node);
        row(IO[1], &|of| of.bytes_in_rack);
        row(IO[2], &|of| of.bytes_elsewhere);
        row("longer_s", &|of| of.longer_s);
    }
    rows
}
