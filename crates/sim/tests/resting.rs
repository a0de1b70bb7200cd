//! Nodes that rest: leaving out reports that say nothing new changes no result (ADR 90).

use amalgam_core::dispatch::Decide;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::Duration;
use amalgam_sim::{Costs, Outcome, Settings, Simulation};
use amalgam_workload::trace::{self, Node, Workload};

fn options(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn nodes(count: u32, cpus: &str) -> Vec<Node> {
    trace::read_nodes(&format!("drawn:{count}"), &options(&[("cpus", cpus), ("memory", "16GiB")])).unwrap()
}

/// Long tasks, so that most reports say nothing new.
fn workload(jobs: &str, seed: u64) -> Workload {
    let seed = seed.to_string();
    let pairs = [("jobs", jobs), ("arrival", "poisson:60s"), ("run-time", "exponential:300s"), ("seed", seed.as_str())];
    trace::read("synthetic:layered", &options(&pairs)).unwrap()
}

fn run(settings: &Settings, rests: bool, nodes: &[Node], workload: &Workload) -> Outcome {
    Simulation::new(Settings { rests, ..settings.clone() }, nodes, workload).run()
}

/// Everything but the time that the simulation took, and how much was simulated.
fn shown(outcome: &Outcome) -> String {
    let mut results = outcome.results.clone();
    (results.mattered, results.wall_seconds) = (0, 0.0);
    serde_json::to_string(&(results, &outcome.jobs, &outcome.windows)).unwrap()
}

fn presets() -> impl Iterator<Item = Preset> {
    Preset::all().filter(|preset| !preset.is_federated())
}

#[test]
fn where_nothing_costs_time_all_results_are_the_same_bytes() {
    let nodes = nodes(15, "4");
    for preset in presets() {
        for (seed, manager_processes) in [(1, 0), (2, u8::from(preset.is_distributed()))] {
            let mut settings = Settings { preset, seed, manager_processes, costs: Costs::NONE, ..Settings::default() };
            settings.execution.failures = 0.05;
            // Often, so that nodes have to hear of it.
            settings.master.token_life = Duration::from_secs(75);
            let [all, rested] = [false, true].map(|rests| run(&settings, rests, &nodes, &workload("8", seed)));
            let (one, other) = (shown(&all), shown(&rested));
            let same = one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count();
            let around = |text: &str| text[same.saturating_sub(60)..text.len().min(same + 60)].to_owned();
            assert!(one == other, "{}, seed {seed}: {} or {}", preset.name(), around(&one), around(&other));
            assert_eq!(all.results.mattered, all.results.events, "{}", preset.name());
            let rests = ["amalgam", "fifo", "capacity", "drf", "sjf", "srtf", "tetris", "carbyne", "sparrow"]
                .contains(&preset.name());
            assert_eq!(rested.results.mattered < rested.results.events, rests, "{}", preset.name());
        }
    }
}

#[test]
fn most_events_of_a_quiet_cluster_do_not_matter() {
    let nodes = nodes(100, "1");
    for name in ["fifo", "drf", "carbyne", "sparrow"] {
        let preset = Preset::all().find(|preset| preset.name() == name).expect("a preset");
        let settings = Settings { preset, ..Settings::default() };
        let results = run(&settings, true, &nodes, &workload("40", 3)).results;
        assert!(results.mattered * 2 < results.events, "{name}: {} of {}", results.mattered, results.events);
    }
}

/// The master is as busy as with all reports, and what reaches it waits as long. Fractions of a microsecond of costs may be charged in
/// another order, so that two events change places.
#[test]
fn what_reports_cost_is_charged_when_they_would_have_arrived() {
    let nodes = nodes(700, "1");
    for name in ["fifo", "drf", "sparrow"] {
        let preset = Preset::all().find(|preset| preset.name() == name).expect("a preset");
        let settings = Settings { preset, until: Some(Duration::from_secs(2_000)), ..Settings::default() };
        let workload = workload("40", 4);
        let [all, rested] = [false, true].map(|rests| run(&settings, rests, &nodes, &workload).results);
        let close = |one: f64, other: f64| (one - other).abs() <= 0.001 * one.abs().max(other.abs());
        for (what, one, other) in [
            ("busy server", all.busy.server, rested.busy.server),
            ("busy nodes", all.busy.nodes, rested.busy.nodes),
            ("mean completion", all.jct_s.mean, rested.jct_s.mean),
            ("processing", all.allocation_s.parts.processing, rested.allocation_s.parts.processing),
        ] {
            assert!(close(one, other), "{name}, {what}: {one} with all reports, {other} without");
        }
    }
}

/// Delays that vary, lost messages, and presets whose master learns from each report.
#[test]
fn where_a_report_may_matter_all_are_simulated() {
    let nodes = nodes(20, "4");
    for name in ["mercury", "mercury-plus", "apollo", "apollo-plus"] {
        let preset = Preset::all().find(|preset| preset.name() == name).expect("a preset");
        let results = run(&Settings { preset, ..Settings::default() }, true, &nodes, &workload("20", 5)).results;
        assert_eq!(results.mattered, results.events, "{name}");
    }
    let changes: [fn(&mut Settings); 5] = [
        |settings| settings.network.jitter = Duration::from_millis(1),
        |settings| settings.network.loss = 0.01,
        |settings| settings.network.repeats = 2,
        |settings| settings.watched = Some(3),
        |settings| settings.master.dispatch.decide = Decide::OnHeartbeats { most: None },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut settings = Settings::default();
        change(&mut settings);
        let results = run(&settings, true, &nodes, &workload("5", 5)).results;
        assert_eq!(results.mattered, results.events, "change {number}");
    }
}
