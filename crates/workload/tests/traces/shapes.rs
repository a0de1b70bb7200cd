//! Statistics and samples of workloads.

use crate::support::{Samples, public, try_read};
use amalgam_workload::trace::{Node, read_nodes};

fn nodes(cpus: &str, memory: &str) -> Vec<Node> {
    let options = [("cpus".to_owned(), cpus.to_owned()), ("memory".to_owned(), memory.to_owned())];
    read_nodes("20", &options).unwrap()
}

#[test]
fn shape_and_load_are_computed_from_the_jobs() {
    let text = r#"{"name":"diamond","arrival_us":0,"stages":[
        {"name":"a","tasks":1,"run_times_us":1000000},
        {"name":"b","tasks":2,"after":[0],"run_times_us":[2000000,4000000],"resources":{"cpu":2000,"memory":1024}},
        {"name":"c","tasks":3,"after":[0],"run_times_us":1000000},
        {"name":"d","tasks":1,"after":[1,2],"run_times_us":1000000}]}"#;
    let single = r#"{"name":"single","arrival_us":10000000,"stages":[{"name":"a","tasks":1,"run_times_us":1000000}]}"#;
    let text = format!("{}\n{single}\n", text.replace('\n', " "));
    let workload = Samples::one("a.jsonl", text).read("job", "a.jsonl", "").unwrap();

    let job = workload.jobs[0].shape();
    assert_eq!((job.stages, job.tasks, job.critical_stages, job.critical_seconds), (4, 7, 3, 6.0));
    assert_eq!((job.disjoint_paths, job.barriers), (2, 1));
    assert_eq!((job.core_seconds, job.memory_mib_seconds), (1.0 + 2.0 * 6.0 + 3.0 + 1.0, 6.0 * 1024.0));

    let shape = workload.shape();
    assert_eq!((shape.jobs, shape.tasks, shape.span_s), (2, 8, 10.0));
    assert_eq!((shape.run_time_s.max, shape.run_time_s.p50, shape.core_seconds), (4.0, 1.0, 18.0));

    let load = workload.load(&nodes("1", "1GiB")[..2]);
    assert_eq!(load.cpu, Some(18.0 / 20.0));
    assert_eq!(load.memory, Some(6.0 / 20.0));
    assert_eq!(load.shortest_makespan_s, 11.0, "the last job arrives at 10 s and takes one");
    assert_eq!(load.tasks_too_large, 2, "the tasks with two cores");
    assert_eq!(workload.load(&nodes("uniform:1-4", "1GiB")).tasks_too_large, 0);
    assert_eq!(workload.load(&nodes("4", "512MiB")).tasks_too_large, 2, "the tasks with one GiB");
}

#[test]
fn a_sample_is_drawn_without_replacement_and_keeps_its_order() {
    let mut workload = try_read("synthetic", "jobs=50 arrival=every:1s").unwrap();
    let mut again = workload.clone();
    workload.sample(10, 7);
    again.sample(10, 7);
    assert_eq!(workload.jobs, again.jobs);
    assert_eq!(workload.jobs.len(), 10);
    assert!(workload.jobs.windows(2).all(|pair| pair[0].arrival < pair[1].arrival));
    workload.sample(99, 7);
    assert_eq!(workload.jobs.len(), 10);
}

#[test]
fn tpcds_has_critical_paths_as_long_as_in_carbynes_paper() {
    let Some(path) = public("dag/tpcds_hive_tez_30tb") else { return };
    let shape = try_read(&format!("hive-explain:{path}"), "").unwrap().shape();
    // Carbyne, table 2: a median critical path of 5 stages.
    assert!((4.0..=6.0).contains(&shape.critical_path_stages.p50), "{:?}", shape.critical_path_stages);
    assert!(shape.barriers.p50 >= 1.0 && shape.disjoint_paths.p50 >= 2.0);
}
