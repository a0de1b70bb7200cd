//! Traces: shown, converted, sampled, and run as processes that sleep.

use crate::support::Scene;
use serde_json::Value;
use std::time::{Duration, Instant};

const TRACE: &str = "5 2 1.5 1 2\n6 1 1 1\nnonsense\n8 1 4 4\n";
const WORKFLOW: &str = r#"{"name": "diamond", "schemaVersion": "1.4", "workflow": {"tasks": [
    {"name": "first", "runtimeInSeconds": 20, "children": ["left", "right"]},
    {"name": "left", "runtimeInSeconds": 10, "children": ["last"]},
    {"name": "right", "runtimeInSeconds": 10, "children": ["last"]},
    {"name": "last", "runtimeInSeconds": 20}]}}"#;

#[test]
fn a_real_workflow_runs_as_sleeping_processes_in_its_order() {
    let scene = Scene::dev(&[]);
    scene.write("diamond.json", WORKFLOW);
    let started = Instant::now();
    let result = scene.run(&["run", "--quiet", "--from", "wfformat:diamond.json", "--time-scale", "0.01"]);
    assert_eq!(result.code, 0, "{result:?}");
    assert!(started.elapsed() >= Duration::from_millis(500), "20, 10 and 20 s at a hundredth");
    assert_eq!(scene.job("last").summary.name, "diamond");
    let stages: Vec<String> = scene.tasks("last").into_iter().map(|task| task.stage).collect();
    assert_eq!(stages, ["first", "left", "right", "last"]);
}

#[test]
fn run_takes_one_job_of_a_trace() {
    let scene = Scene::new();
    scene.write("a.tr", TRACE);
    let result = scene.run(&["run", "--from", "hawk:a.tr"]);
    assert_eq!(result.code, 2);
    assert!(result.err.contains("has 3 jobs") && result.err.contains("-w limit=1"), "{result:?}");
    assert_eq!(scene.run(&["run", "--time-scale", "2", "--", "true"]).code, 2, "only with --from");
    let result = scene.run(&["run", "--from", "hwak:a.tr"]);
    assert!(result.code == 2 && result.err.contains("did you mean `hawk`?"), "{result:?}");
}

#[test]
fn a_workload_is_shown_for_people_and_for_programs() {
    let scene = Scene::new();
    scene.write("a.tr", TRACE);
    let result = scene.run(&["workload", "info", "hawk:a.tr", "--nodes", "2"]);
    assert_eq!(result.code, 0, "{result:?}");
    for part in [
        "hawk:a.tr: 3 jobs, 4 tasks",
        "run time of a task",
        "load on the cluster: 133% of its CPU",
        "no schedule ends before 7.00s",
        "note: demands are not in the trace",
        "a.tr:3: the submit time `nonsense` is not a number",
    ] {
        assert!(result.out.contains(part), "{part} is not in {}", result.out);
    }
    let info: Value = scene.json(&["workload", "info", "hawk:a.tr", "-w", "limit=2"]);
    assert_eq!((&info["jobs"], &info["tasks"]), (&2.into(), &3.into()));
    assert_eq!(info["run_time_s"]["max"], 2.0);
    scene.write("n.csv", "sn,cpu_milli,memory_mib,gpu,model\na,1500,4096,0,\nb,500,4096,0,\n");
    let unequal = scene.run(&["workload", "info", "hawk:a.tr", "--nodes", "openb:n.csv"]);
    assert!(unequal.out.contains("load on the cluster: 133% of its CPU"), "{unequal:?}");
    let wrong = scene.run(&["workload", "info", "hawk:a.tr", "--nodes", "ten"]);
    assert!(wrong.code != 0 && wrong.err.contains("write a count from 1 to 1000000, or FORMAT:PATH"), "{wrong:?}");
    let formats = scene.run(&["workload", "formats"]).out;
    assert!(formats.contains("hive-explain") && formats.contains("bit-vectors") && formats.contains("gpu-unit"));
}

#[test]
fn a_converted_workload_and_a_sample_of_it_are_read_again() {
    let scene = Scene::new();
    scene.write("a.tr", TRACE);
    let converted = scene.run(&["workload", "convert", "hawk:a.tr", "--output", "all.jsonl"]);
    assert!(converted.code == 0 && converted.err.contains("1 malformed line or record was left out"), "{converted:?}");
    let sample = scene.run(&["workload", "sample", "job:all.jsonl", "-n", "2", "--seed", "3"]);
    assert_eq!(sample.out.lines().count(), 2);
    assert_eq!(sample.out, scene.run(&["workload", "sample", "hawk:a.tr", "-n", "2", "--seed", "3"]).out);
}
