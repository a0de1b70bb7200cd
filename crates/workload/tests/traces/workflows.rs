//! Workflow instances, Amalgam's own job files and JSON lines, and jobs as processes that sleep.

use crate::support::{Samples, each, has_note, public, seconds, shape, try_read};
use amalgam_workload::trace::RunTimes;
use proptest::prelude::*;

const V13: &str = r#"{"name": "old", "schemaVersion": "1.3", "workflow": {"tasks": [
    {"name": "split", "id": "ID1", "runtime": 2.5, "cores": 2, "memory": 1048576, "children": ["join"]},
    {"name": "join", "id": "ID2", "runtime": 1, "parents": []}]}}"#;
const V14: &str = r#"{"name": "mid", "schemaVersion": "1.4", "workflow": {"tasks": [
    {"name": "b", "runtimeInSeconds": 1, "memoryInBytes": 1048577, "parents": ["a"]},
    {"name": "a", "runtimeInSeconds": 3, "parents": [], "children": ["b"]}]}}"#;
const V15: &str = r#"{"name": "new", "schemaVersion": "1.5", "workflow": {
    "specification": {"tasks": [
        {"name": "same", "id": "x", "parents": ["y"], "children": []},
        {"name": "same", "id": "y", "parents": [], "children": ["x"]}]},
    "execution": {"makespanInSeconds": 9, "tasks": [
        {"id": "x", "runtimeInSeconds": 0.5, "coreCount": 4}, {"id": "y", "runtimeInSeconds": 8.5}]}}}"#;

#[test]
fn all_three_versions_of_wfformat_are_read() {
    let samples = Samples::one("1.json", V13);
    samples.add("2.json", V14);
    samples.add("3.json", V15);
    let workload = samples.read("wfformat", "", "").unwrap();
    let [old, mid, new] = &workload.jobs[..] else { panic!("{:?}", workload.malformed) };

    assert_eq!(shape(old), ["ID1(1)<-", "ID2(1)<-ID1"]);
    assert_eq!(old.run_times[..], [RunTimes::Same(seconds(2.5)), RunTimes::Same(seconds(1.0))]);
    let demand = &old.spec.stages[0].resources.basic;
    assert_eq!((demand.cpu_millis(), demand.memory_mib()), (2_000, 1_000), "1,048,576 kB are 1000 MiB");

    assert_eq!(shape(mid), ["a(1)<-", "b(1)<-a"]);
    assert_eq!(mid.spec.stages[1].resources.basic.memory_mib(), 2, "bytes, rounded up");

    assert_eq!(shape(new), ["y(1)<-", "x(1)<-y"], "by id, the names are equal");
    assert_eq!(new.spec.stages[1].resources.basic.cpu_millis(), 4_000);
    assert!(has_note(&workload, "demand=unit"), "for tasks that were not measured");
}

#[test]
fn malformed_instances_are_counted_with_their_file() {
    let samples = Samples::one("1.json", V13.replace("1.3", "1.1"));
    samples.add("2.json", V15.replace("\"id\": \"y\", \"runtimeInSeconds\": 8.5", "\"id\": \"z\""));
    samples.add("3.json", V14.replace("[\"a\"]", "[\"c\"]"));
    samples.add("4.json", "{\n\"name\": 3\n");
    samples.add("5.json", V14.replace("\"mid\"", "\"\""));
    samples.add("6.json", V14);
    let workload = samples.read("wfformat", "", "").unwrap();
    let reported: Vec<String> = workload.malformed.first.iter().map(ToString::to_string).collect();
    for (reported, part) in reported.iter().zip([
        "1.json:1: version 1.1 is not one of",
        "2.json:1: the task `y` was not executed",
        "3.json:1: the task `b` refers to `c`, which does not exist",
        "4.json:2: invalid type: integer",
        "5.json:1: the job has an empty name",
    ]) {
        assert!(reported.contains(part), "{reported} does not contain {part}");
    }
    assert_eq!((workload.jobs.len(), reported.len()), (1, 5));
}

#[test]
fn a_job_file_runs_for_its_expected_times() {
    let text = "name = \"a\"\n[[stage]]\nname = \"x\"\ntasks = 3\nexpected = \"4s\"\ncommand = [\"true\"]\n\
                [[stage]]\nname = \"y\"\nafter = [\"x\"]\ncommand = [\"true\"]\n";
    let workload = Samples::one("a.toml", text).read("job", "a.toml", "run-time=2s time-scale=0.5").unwrap();
    let job = &workload.jobs[0];
    assert_eq!(shape(job), ["x(3)<-", "y(1)<-x"]);
    assert_eq!(job.run_times[..], [RunTimes::Same(seconds(2.0)), each(&[1.0])]);
    let error = Samples::one("b.toml", "nam = 3\n").read("job", "b.toml", "").unwrap_err();
    assert!(error.problem.contains("b.toml:1:1: unknown key `nam`"), "{error}");
}

#[test]
fn real_runs_sleep_as_long_as_the_tasks_ran() {
    let workload = Samples::one("a.tr", "0 2 1 1.5 0.25\n0 1 7 7\n").read("hawk", "a.tr", "time-scale=0.1").unwrap();
    let several = workload.jobs[0].sleeping().unwrap();
    let items: Vec<_> = (0..2).map(|task| several.stages[0].tasks.item(task)).collect();
    assert_eq!(items, [Some(&b"0.150000"[..]), Some(b"0.025000")]);
    assert_eq!(several.stages[0].program.command[2], "exec sleep \"$AMALGAM_ITEM\"");
    assert_eq!(workload.jobs[1].sleeping().unwrap().stages[0].program.command, ["sleep", "0.700000"]);
}

#[test]
fn a_damaged_line_of_a_converted_workload_is_malformed() {
    let good = r#"{"name":"a","arrival_us":5,"stages":[{"name":"s","tasks":2,"run_times_us":3}]}"#;
    let text = [
        good,
        &good.replace("tasks\":2", "tasks\":2,\"after\":[1]"),
        &good.replace("us\":3", "us\":[3]"),
        &good.replace("name\":\"a", "nam\":\"a"),
    ];
    let workload = Samples::one("a.jsonl", text.join("\n")).read("job", "a.jsonl", "").unwrap();
    let reported: Vec<String> = workload.malformed.first.iter().map(ToString::to_string).collect();
    assert!(
        reported[0].ends_with("a.jsonl:2: the stage `s` is after stage 1, but the job has 1 stages"),
        "{reported:?}"
    );
    assert!(reported[1].ends_with("a.jsonl:3: the stage `s` has 2 tasks but 1 run times"), "{reported:?}");
    assert!(reported[2].contains("a.jsonl:4: unknown field `nam`"), "{reported:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_converted_workload_is_read_back_unchanged(seed in 0u64..1_000) {
        let options = format!("jobs=4 seed={seed} arrival=poisson:3s demand=alibaba2018");
        let workload = try_read("synthetic:layered", &options).unwrap();
        let mut bytes = Vec::new();
        workload.write_lines(&mut bytes).unwrap();
        let samples = Samples::one("a.jsonl", bytes);
        let again = samples.read("job", "a.jsonl", "").unwrap();
        let first = workload.jobs[0].arrival;
        prop_assert_eq!(workload.jobs.len(), again.jobs.len());
        for (job, again) in workload.jobs.iter().zip(&again.jobs) {
            prop_assert_eq!(&job.spec, &again.spec);
            prop_assert_eq!(&job.run_times, &again.run_times);
            prop_assert_eq!(job.arrival - first, again.arrival);
        }
    }
}

#[test]
fn the_workflow_instances_have_their_known_sizes() {
    for (path, tasks, edges, run_time) in [
        ("helloworld/helloworld-forkjoin-10-chameleon.json.gz", 10, 16, 1_028.704),
        ("makeflow/blast/blast-chameleon-small-001.json.gz", 43, 120, 382.913),
        ("nextflow/rnaseq-dirt02-001.json.gz", 197, 451, 2_580.36),
        ("pegasus/1000genome/1000genome-chameleon-16ch-250k-001.json.gz", 656, 848, 40_407.45),
        ("pegasus/montage/montage-chameleon-2mass-02d-001.json.gz", 619, 1_641, 1_603.283),
    ] {
        let Some(path) = public(&format!("dag/wfinstances/{path}")) else { return };
        let workload = try_read(&format!("wfformat:{path}"), "").unwrap();
        let job = &workload.jobs[0];
        let found: usize = job.spec.stages.iter().map(|stage| stage.after.len()).sum();
        let total: f64 = job.run_times.iter().map(|times| times.total_seconds(1)).sum();
        assert_eq!((workload.task_count(), found), (tasks, edges), "{path}");
        assert!((total - run_time).abs() < 0.01, "{path}: {total}");
    }
    let Some(all) = public("dag/wfinstances") else { return };
    assert_eq!(try_read(&format!("wfformat:{all}"), "").unwrap().jobs.len(), 16);
}
