//! Whole runs: no preset is below the lower bounds, and the same seed gives the same bytes.

use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{Duration, JobSpec, Program, QueueSpec, ResourceSpec, Resources, StageSpec, TaskSet};
use amalgam_sim::{Costs, NetworkSettings, Outcome, Reference, Settings, Simulation, capacity};
use amalgam_workload::trace::{self, MalformedLines, Node, RunTimes, TraceJob, Workload};
use std::sync::Arc;

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

/// Jobs of small tasks of 20 s keep all nodes of both global masters busy for half an hour. A gang needs three whole nodes, or six,
/// which are more than are in the partition of its global master; or there are two such gangs, one of each global master.
#[test]
fn a_gang_in_a_federation_gets_whole_nodes_although_others_never_leave_them() {
    let gangs_take = |preset: Preset, sizes: &[u32]| {
        let small = |number: u64| job(5 * number, StageSpec { tasks: TaskSet::Count(8), ..of_cores(1) }, 20);
        let mut jobs: Vec<TraceJob> = (0..1_800 / 5).map(small).collect();
        let gang = |size: &u32| StageSpec { tasks: TaskSet::Count(*size), gang: true, ..of_cores(4) };
        jobs.extend(sizes.iter().map(|size| job(101, gang(size), 60)));
        jobs.sort_by_key(|job| job.arrival);
        let workload = Workload { name: String::new(), jobs, notes: Vec::new(), malformed: MalformedLines::default() };
        let settings = Settings { preset, federation: Some((2, 2)), ..Settings::default() };
        let outcome = Simulation::new(settings, &nodes(8), &workload).run();
        assert_eq!(outcome.results.unfinished_jobs, 0);
        let is_gang = |job: &TraceJob| job.spec.stages[0].gang;
        let gangs = outcome.jobs.iter().zip(&workload.jobs).filter(|(_, job)| is_gang(job));
        let take: Vec<f64> = gangs.map(|(result, _)| result.jct_s.expect("it has ended")).collect();
        assert_eq!(take.len(), sizes.len());
        take.into_iter().fold(0.0, f64::max)
    };
    // 30 s until nodes are reserved, 20 s until they are free, and 60 s of its own.
    for (sizes, most) in [(&[3][..], 180.0), (&[6], 180.0), (&[6, 6], 300.0)] {
        let take = gangs_take(Preset::AMALGAM_IN_FEDERATIONS, sizes);
        assert!(take < most, "{sizes:?} nodes: {take} s");
    }
    let without = gangs_take(Preset::MEGHA, &[3]);
    assert!(without > 900.0, "{without} s without a reservation");
}

/// The first gang starts at about 150 s. One of the other global master has waited since 111 s, and two more of the first one since 121
/// and 131 s; each takes six of the eight nodes for a minute.
#[test]
fn gangs_of_two_global_masters_get_nodes_in_the_order_in_which_they_came() {
    let gang = |arrives| job(arrives, StageSpec { tasks: TaskSet::Count(6), gang: true, ..of_cores(4) }, 60);
    let small = |number: u64| job(5 * number, StageSpec { tasks: TaskSet::Count(8), ..of_cores(1) }, 20);
    let in_queue = |queue: &str, mut job: TraceJob| {
        Arc::make_mut(&mut job.spec).queue = queue.to_owned();
        job
    };
    let mut jobs: Vec<TraceJob> = (0..1_800 / 5).map(|number| in_queue("root.small", small(number))).collect();
    let gangs = [(101, "root.first"), (111, "root.second"), (121, "root.first"), (131, "root.first")];
    jobs.extend(gangs.map(|(arrives, queue)| in_queue(queue, gang(arrives))));
    jobs.sort_by_key(|job| job.arrival);
    let workload = Workload { name: String::new(), jobs, notes: Vec::new(), malformed: MalformedLines::default() };
    let queue = |name: &str, global| QueueSpec { global: Some(global), ..QueueSpec::named(name) };
    let queues = vec![queue("root.small", 0), queue("root.first", 0), queue("root.second", 1)];
    let queues = QueueTree::new(queues).expect("a valid tree");
    let preset = Preset::AMALGAM_IN_FEDERATIONS;
    let settings = Settings { preset, federation: Some((2, 2)), queues, ..Settings::default() };
    let outcome = Simulation::new(settings, &nodes(8), &workload).run();
    let ends = |arrives: u64| {
        let is_it = |job: &TraceJob| job.spec.stages[0].gang && job.arrival == Duration::from_secs(arrives);
        let place = workload.jobs.iter().position(is_it).expect("one of the gangs");
        arrives as f64 + outcome.jobs[place].jct_s.expect("it has ended")
    };
    let ends = gangs.map(|(arrives, _)| ends(arrives));
    assert!(ends.is_sorted() && ends[3] < 600.0, "{ends:?}");
}

fn of_cores(cores: u32) -> StageSpec {
    StageSpec {
        name: "s0".to_owned(),
        program: Arc::new(Program { command: vec!["true".into()], ..Program::default() }),
        resources: ResourceSpec { basic: Resources::new(cores * 1_000, 0), custom: Vec::new() },
        ..StageSpec::default()
    }
}

fn job(arrives: u64, stage: StageSpec, run_time: u64) -> TraceJob {
    let spec = Arc::new(JobSpec { name: "j0".to_owned(), stages: vec![stage], ..JobSpec::default() });
    let run_times = vec![RunTimes::Same(Duration::from_secs(run_time))];
    TraceJob { arrival: Duration::from_secs(arrives), spec, run_times: run_times.into() }
}
