//! Whole runs: no preset is below the lower bounds, and the same seed gives the same bytes.

use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::Duration;
use amalgam_sim::{Costs, NetworkSettings, Outcome, Reference, Settings, Simulation, capacity};
use amalgam_workload::trace::{self, Node, Workload};

fn options(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn nodes(count: u32) -> Vec<Node> {
    trace::read_nodes(&format!("drawn:{count}"), &options(&[("cpus", "4"), ("memory", "16GiB")])).unwrap()
}

fn layered(seed: u64, arrival: &str) -> Workload {
    let seed = seed.to_string();
    let pairs = [("jobs", "30"), ("arrival", arrival), ("run-time", "exponential:20s"), ("seed", &seed)];
    trace::read("synthetic:layered", &options(&pairs)).unwrap()
}

fn run(preset: Preset, seed: u64, workload: &Workload) -> Outcome {
    let network = NetworkSettings { jitter: Duration::from_millis(2), ..NetworkSettings::default() };
    let settings = Settings { preset, seed, network, ..Settings::default() };
    Simulation::new(settings, &nodes(5), workload).run()
}

#[test]
fn no_preset_is_below_the_lower_bounds_and_every_job_ends() {
    for preset in Preset::all() {
        for arrival in ["at-once", "poisson:20s", "poisson:200s"] {
            let workload = layered(7, arrival);
            let reference = Reference::of(&workload.jobs, &capacity(&nodes(5)));
            let results = run(preset, 7, &workload).results;
            assert_eq!((results.unfinished_jobs, results.succeeded_jobs), (0, 30), "{} {arrival}", preset.name());
            let bound = reference.critical_path_s.max(reference.work_over_capacity_s);
            let (makespan, mean) = (results.makespan_s, results.jct_s.mean);
            assert!(makespan >= bound, "{} {arrival}: makespan {makespan} below {bound}", preset.name());
            let bound = reference.srpt_mean_jct_s;
            assert!(mean >= bound, "{} {arrival}: mean completion {mean} below {bound}", preset.name());
        }
    }
}

#[test]
fn job_managers_in_their_own_processes_end_every_job_and_the_same_seed_gives_the_same_bytes() {
    let workload = layered(7, "poisson:20s");
    for preset in Preset::all().filter(|preset| !preset.is_federated()) {
        let run = |manager_processes| {
            let network = NetworkSettings { jitter: Duration::from_millis(2), ..NetworkSettings::default() };
            let settings = Settings { preset, seed: 7, network, manager_processes, ..Settings::default() };
            Simulation::new(settings, &nodes(5), &workload).run()
        };
        let (beside, apart) = (run(0).results, run(3));
        let results = &apart.results;
        assert_eq!((results.unfinished_jobs, results.succeeded_jobs), (0, 30), "{}", preset.name());
        let ratio = results.jct_s.mean / beside.jct_s.mean;
        assert!((0.8..1.25).contains(&ratio), "{}: jobs take {ratio} times as long", preset.name());
        let bytes = |outcome: &Outcome| serde_json::to_string(&(&outcome.results, &outcome.jobs)).unwrap();
        assert_eq!(bytes(&apart), bytes(&run(3)), "{}", preset.name());
    }
}

/// Messages take enough time for those of all jobs to overload one process.
#[test]
fn job_managers_in_their_own_processes_do_not_wait_for_each_other() {
    let workload = layered(7, "at-once");
    let mean = |manager_processes| {
        let costs = Costs { message: 200_000_000, ..Costs::default() };
        let settings = Settings { preset: Preset::APOLLO, costs, manager_processes, ..Settings::default() };
        let results = Simulation::new(settings, &nodes(5), &workload).run().results;
        assert_eq!((results.unfinished_jobs, results.succeeded_jobs), (0, 30));
        results.jct_s.mean
    };
    let (together, shared) = (mean(0), mean(8));
    assert!(shared < 0.8 * together, "{shared} s and {together} s");
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_gives_others() {
    let workload = layered(3, "poisson:10s");
    let bytes = |seed| {
        let outcome = run(Preset::default(), seed, &workload);
        serde_json::to_string(&(outcome.results, outcome.jobs, outcome.windows)).unwrap()
    };
    assert_eq!(bytes(3), bytes(3));
    assert_ne!(bytes(3).replace("\"seed\":3", ""), bytes(4).replace("\"seed\":4", ""));
}

#[test]
fn a_job_that_fits_on_no_node_is_named_and_the_others_run() {
    let text = |demand| options(&[("jobs", "3"), ("demand", demand), ("arrival", "at-once"), ("name", demand)]);
    let mut workload = trace::read("synthetic:gridmix", &text("1,1GiB")).unwrap();
    let large = trace::read("synthetic:gridmix", &text("64,1GiB")).unwrap();
    workload.jobs.extend(large.jobs);
    let results = run(Preset::default(), 1, &workload).results;
    assert_eq!((results.succeeded_jobs, results.refused_jobs.len(), results.unfinished_jobs), (3, 3, 0));
    assert!(results.refused_jobs[0].contains("larger than every node"), "{}", results.refused_jobs[0]);
}
