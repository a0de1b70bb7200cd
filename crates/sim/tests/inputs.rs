//! Inputs on nodes: a task beside its input ends sooner, presets that consider locations use them, and every byte is
//! counted once.

use amalgam_core::policy::completion::Rates;
use amalgam_core::preset::{Choice, Entitled, IntraJob, Preset, Probed, QueueChoice, Scheduling};
use amalgam_core::vocabulary::JobSpec;
use amalgam_sim::{Costs, ExecutionSettings, InputSettings, Outcome, Reading, Settings, Simulation};
use amalgam_workload::trace::{self, Node, Workload};

/// Job managers do not know where inputs are.
const RANDOM: Preset = {
    let settings = Probed { intra_job: IntraJob::BreadthFirst, choice: QueueChoice::Random };
    Preset::new("random", Scheduling::Probed(settings))
};
const WITHOUT_ESTIMATES: Preset = {
    let Some(settings) = Preset::APOLLO.entitled() else { panic!("job managers have entitlements") };
    let settings = Entitled { choice: Choice::WITHOUT_ESTIMATES, ..*settings };
    Preset::new("without-estimates", Scheduling::Entitled(settings))
};

const MB: u64 = 1_000_000;
const INPUTS: InputSettings = InputSettings {
    block_bytes: 256 << 20,
    replicas: 1,
    rates: Rates { on_node: 160 * MB, in_rack: 100 * MB, elsewhere: 80 * MB },
};

fn options(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn nodes(count: u32, racks: &str) -> Vec<Node> {
    trace::read_nodes(&format!("drawn:{count}"), &options(&[("cpus", "4"), ("racks", racks)])).unwrap()
}

fn run(preset: Preset, seed: u64, inputs: Option<InputSettings>, nodes: &[Node], workload: &Workload) -> Outcome {
    let mut settings = Settings { preset, seed, inputs, costs: Costs::NONE, ..Settings::default() };
    settings.preset.seed = seed;
    Simulation::new(settings, nodes, workload).run()
}

/// Jobs of one task of 16 s that reads 1.28 GB, which takes 8 s of the 16 s if the input is on its node.
fn single(jobs: &str, seed: u64) -> Workload {
    let seed = seed.to_string();
    let more = [
        ("jobs", jobs),
        ("tasks", "1"),
        ("run-time", "16s"),
        ("input", "80"),
        ("arrival", "every:60s"),
        ("seed", &seed),
    ];
    trace::read("synthetic:gridmix", &options(&more)).unwrap()
}

fn layered(seed: u64) -> Workload {
    let seed = seed.to_string();
    let more = [
        ("jobs", "20"),
        ("run-time", "exponential:20s"),
        ("input", "80"),
        ("arrival", "poisson:15s"),
        ("retries", "5"),
        ("seed", &seed),
    ];
    trace::read("synthetic:layered", &options(&more)).unwrap()
}

fn input_bytes(spec: &JobSpec) -> u64 {
    spec.stages.iter().flat_map(|stage| &stage.input_kib).map(|kib| u64::from(*kib) * 1_024).sum()
}

fn shares(reading: &Reading) -> [f64; 3] {
    [reading.all.tasks_on_node, reading.all.tasks_in_rack, reading.all.tasks_elsewhere]
}

#[test]
fn a_task_takes_longer_by_the_distance_of_its_input() {
    let whole = InputSettings { block_bytes: u64::MAX, ..INPUTS };
    let mut seen = [false; 3];
    for seed in 1..=12 {
        let outcome = run(RANDOM, seed, Some(whole), &nodes(8, "2"), &single("1", seed));
        let reading = outcome.results.reading.expect("the location of its input is known");
        let distance =
            shares(&reading).iter().position(|share| *share == 1.0).expect("one task reads from one distance");
        seen[distance] = true;
        let (took, longer) = (outcome.results.jct_s.mean, [0.0, 4.8, 8.0][distance]);
        assert!((took - 16.0 - longer).abs() < 0.01, "{took} s, {reading:?}");
        assert!((reading.all.longer_s - longer).abs() < 0.001, "{reading:?}");
    }
    assert_eq!(seen, [true; 3], "random placement meets all distances");
}

#[test]
fn a_preset_that_considers_locations_reads_nearby_and_ends_sooner() {
    for seed in 1..=3 {
        let (nodes, workload) = (nodes(12, "3"), single("40", seed));
        let find = |preset| {
            let inputs = InputSettings { replicas: 3, block_bytes: u64::MAX, ..INPUTS };
            let results = run(preset, seed, Some(inputs), &nodes, &workload).results;
            let reading = results.reading.expect("the locations of inputs are known");
            (results.jct_s.mean, reading.all.bytes_on_node, reading)
        };
        let (with, with_near, reading) = find(Preset::APOLLO);
        let (without, without_near, _) = find(RANDOM);
        assert!(with_near > 0.9 && without_near < 0.5, "{with_near} and {without_near}: {reading:?}");
        assert!(with + 2.0 < without, "{with} s and {without} s");
    }
}

#[test]
fn every_byte_of_every_task_is_counted_once_with_failures_and_stragglers() {
    for preset in [Preset::APOLLO, WITHOUT_ESTIMATES, Preset::MERCURY, Preset::DRF, Preset::SPARROW] {
        let workload = layered(5);
        let execution = ExecutionSettings { failures: 0.1, stragglers: 0.05, ..ExecutionSettings::default() };
        let settings = Settings { preset, seed: 5, inputs: Some(INPUTS), execution, ..Settings::default() };
        let outcome = Simulation::new(settings, &nodes(9, "3"), &workload).run();
        let reading = outcome.results.reading.expect("the locations of inputs are known");
        let name = preset.name();
        let rows = || outcome.jobs.iter().zip(&workload.jobs).filter(|(row, _)| row.outcome == "succeeded");
        assert!(rows().count() >= 18, "{name}");
        let least: u64 = rows().map(|(_, job)| input_bytes(&job.spec)).sum();
        let all: u64 = workload.jobs.iter().map(|job| input_bytes(&job.spec)).sum();
        // Two attempts of a task may both succeed, and failed jobs have also read input.
        assert!(reading.all.bytes >= least && reading.all.bytes < all + all / 20, "{name}: {least} {all} {reading:?}");
        assert_eq!(reading.all.bytes, reading.blocks.bytes + reading.earlier_tasks.bytes, "{name}");
        assert!(reading.blocks.tasks > 0 && reading.earlier_tasks.tasks > 0, "{name}");
        for of in [reading.all, reading.blocks, reading.earlier_tasks] {
            let sums = [
                of.tasks_on_node + of.tasks_in_rack + of.tasks_elsewhere,
                of.bytes_on_node + of.bytes_in_rack + of.bytes_elsewhere,
            ];
            assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-9), "{name}: {of:?}");
        }
    }
}

#[test]
fn the_seed_determines_where_inputs_are_stored_and_without_inputs_no_reading_is_reported() {
    let (nodes, workload) = (nodes(9, "3"), layered(2));
    let bytes = |seed, inputs| {
        let outcome = run(Preset::APOLLO, seed, inputs, &nodes, &workload);
        serde_json::to_string(&(outcome.results, outcome.jobs)).unwrap()
    };
    assert_eq!(bytes(2, Some(INPUTS)), bytes(2, Some(INPUTS)));
    assert_ne!(bytes(2, Some(INPUTS)), bytes(3, Some(INPUTS)).replace("\"seed\":3", "\"seed\":2"));
    assert!(run(Preset::APOLLO, 2, None, &nodes, &workload).results.reading.is_none());
}
