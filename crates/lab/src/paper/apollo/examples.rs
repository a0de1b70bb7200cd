//! The two examples of section 3.3.

use super::super::figure::{PaperNumber, Row, number_of};
use super::scenario::{Matching, Placing, Server};
use crate::matching::{Acceptance, Costs, Pair, Stable, greedy, optimal};
use amalgam_core::policy::completion::{Estimate, InputPiece, Odds, Rates};
use amalgam_core::vocabulary::{Distance, Duration};

/// The paper's numbers. Servers are counted from 1.
const NUMBERS: [PaperNumber; 14] = [
    ("apollo-4", "A", "io_s", 63.13),
    ("apollo-4", "B", "io_s", 63.5),
    ("apollo-4", "C", "io_s", 32.5),
    ("apollo-4", "D", "io_s", 51.25),
    ("apollo-4", "A", "completion_s", 63.13),
    ("apollo-4", "B", "completion_s", 63.5),
    ("apollo-4", "C", "completion_s", 72.5),
    ("apollo-4", "D", "completion_s", 56.25),
    ("apollo-5", "greedy", "server of Task1", 1.0),
    ("apollo-5", "greedy", "server of Task2", 2.0),
    ("apollo-5", "greedy", "server of Task3", 3.0),
    ("apollo-5", "stable", "server of Task1", 1.0),
    ("apollo-5", "stable", "server of Task2", 3.0),
    ("apollo-5", "stable", "server of Task3", 2.0),
];

fn row(figure: &str, case: &str, metric: &str, ours: f64) -> Row {
    Row::of(case, metric, number_of(&NUMBERS, figure, case, metric), &[ours])
}

/// Figure 4: the completion of the task on each server.
pub fn estimates(set_up: &Placing, rates: &Rates) -> Vec<Row> {
    let of_server = |server: &Server| {
        let part = |(mb, on): (u32, &str)| part(mb, on, server, &set_up.servers);
        let parts: Vec<InputPiece> = set_up.inputs.iter().map(|input| part((input.mb, &input.on))).collect();
        let (wait, run) = (Duration((server.wait_s * 1e6).round() as u64), rates.reading(&parts));
        let completion = Estimate { wait, run, ..Estimate::default() }.completion(&Odds::SURE);
        let row = |metric, time: Duration| row("apollo-4", &server.name, metric, time.as_secs_f64());
        [row("io_s", run), row("completion_s", completion)]
    };
    set_up.servers.iter().flat_map(of_server).collect()
}

/// The part of the input on `on`, as seen from `server`.
fn part(mb: u32, on: &str, server: &Server, servers: &[Server]) -> InputPiece {
    let is_in_rack = servers.iter().any(|other| other.name == on && other.rack == server.rack);
    let distance = match (server.name == on, is_in_rack) {
        (true, _) => Distance::OnNode,
        (_, true) => Distance::InRack,
        _ => Distance::Elsewhere,
    };
    InputPiece { bytes: u64::from(mb) * 1_000_000, distance }
}

/// Figure 5: the server that each task is matched to.
pub fn pairs(set_up: &Matching, rates: &Rates) -> Vec<Row> {
    let mut costs = Costs::new(set_up.tasks.len(), set_up.servers.len());
    for (row, task) in set_up.tasks.iter().enumerate() {
        for (column, server) in set_up.servers.iter().enumerate() {
            let run = rates.reading(&[part(set_up.input_mb, &task.on, server, &set_up.servers)]);
            costs.set(row, column, Estimate { run, ..Estimate::default() }.completion(&Odds::SURE));
        }
    }
    let mut stable = Stable::new(set_up.rounds, Acceptance::Final);
    let stable = stable.find(&costs, |_| Duration::ZERO).to_vec();
    let cases = [("greedy", greedy(&costs)), ("stable", stable), ("optimal", optimal(&costs))];
    let of_case = |(case, pairs): (&str, Vec<Pair>)| {
        let of_pair = |pair: &Pair| {
            let task = &set_up.tasks[pair.task as usize].name;
            row("apollo-5", case, &format!("server of {task}"), f64::from(pair.node + 1))
        };
        let mut in_order = pairs.clone();
        in_order.sort_unstable();
        let mut rows: Vec<Row> = in_order.iter().map(of_pair).collect();
        rows.push(row("apollo-5", case, "sum_s", costs.total(&pairs) as f64 / 1e6));
        rows
    };
    cases.into_iter().flat_map(of_case).collect()
}
