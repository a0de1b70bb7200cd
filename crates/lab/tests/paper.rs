//! `amalgam-lab paper`: each figure runs at a small size, and its results have the documented form.

use serde_json::Value;
use std::process::{Command, Output};

fn paper(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_amalgam-lab")).arg("paper").args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = paper(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn figures() -> Vec<String> {
    let listed = json(&["list", "--json"]);
    listed.as_array().unwrap().iter().map(|figure| figure["figure"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn all_figures_are_listed_paper_by_paper() {
    let mercury = ["5", "6", "7", "table-1", "8", "9", "10", "11", "plus", "amalgam"];
    let mercury = mercury.map(|name| format!("mercury-{name}"));
    let carbyne = [
        "2",
        "4",
        "5",
        "6",
        "7",
        "8",
        "table-4",
        "9",
        "10",
        "11",
        "12",
        "tetris-fair",
        "overhead",
        "demand",
        "width",
        "plus",
    ];
    let carbyne = carbyne.map(|name| format!("carbyne-{name}"));
    let apollo = [
        "4",
        "5",
        "7",
        "8",
        "9",
        "10",
        "11",
        "table-1",
        "table-2",
        "stragglers",
        "plus",
        "plus-dags",
        "plus-spark",
        "amalgam",
        "12",
    ]
    .map(|name| format!("apollo-{name}"));
    let megha = ["3", "6", "7", "8", "9", "10", "12", "heartbeat", "plus", "amalgam"];
    let megha = megha.map(|name| format!("megha-{name}"));
    let expected: Vec<String> = mercury.into_iter().chain(carbyne).chain(apollo).chain(megha).collect();
    assert_eq!(figures(), expected);
    let text = String::from_utf8(paper(&["list"]).stdout).unwrap();
    assert!(expected.iter().all(|figure| text.contains(figure)), "{text}");
}

#[test]
fn every_figure_of_mercury_runs_and_names_the_papers_numbers_and_its_cuts() {
    run_figures(|figure| figure.starts_with("mercury-"));
}

#[test]
fn every_figure_of_carbyne_runs_and_names_the_papers_numbers_and_its_cuts() {
    run_figures(|figure| figure.starts_with("carbyne-"));
}

#[test]
fn every_figure_of_apollo_runs_and_names_the_papers_numbers_and_its_cuts() {
    run_figures(|figure| figure.starts_with("apollo-") && !figure.starts_with(IMPROVED));
}

#[test]
fn every_figure_of_the_improved_apollo_runs_and_names_its_cuts() {
    run_figures(|figure| figure.starts_with(IMPROVED));
}

#[test]
fn every_figure_of_megha_runs_and_names_the_papers_numbers_and_its_cuts() {
    run_figures(|figure| figure.starts_with("megha-"));
}

const IMPROVED: &str = "apollo-plus";

/// The test of the scoreboard runs these.
const OF_SCOREBOARD: &str = "-amalgam";

/// Runs the figures of a paper in a small form.
fn run_figures(is_wanted: impl Fn(&str) -> bool) {
    let figures = figures().into_iter().filter(|figure| is_wanted(figure) && !figure.ends_with(OF_SCOREBOARD));
    let figures: Vec<String> = figures.collect();
    assert!(figures.len() >= 3, "{figures:?}");
    for figure in figures {
        let found = json(&["run", &figure, "--smoke", "--json"]);
        assert_eq!((&found["figure"], &found["seeds"]), (&Value::from(figure.clone()), &Value::from(vec![1])));
        let rows = found["rows"].as_array().unwrap();
        assert!(!rows.is_empty(), "{figure}");
        for row in rows {
            let [ours, low, high] = ["ours", "low", "high"].map(|key| row[key].as_f64().unwrap());
            assert!(low <= ours && ours <= high && ours.is_finite(), "{figure}: {row}");
            assert!(row["case"].is_string() && row["metric"].is_string(), "{figure}: {row}");
            assert!(row["paper"].is_null() || row["paper"].is_number(), "{figure}: {row}");
        }
        let departures = found["departures"].as_array().unwrap();
        assert!(departures[0].as_str().unwrap().starts_with("cut: "), "{figure}: {departures:?}");
    }
}

#[test]
fn a_figure_gives_the_same_with_any_number_of_threads() {
    let run = |threads| json(&["run", "mercury-6", "--smoke", "--seeds", "1..3", "--json", "--threads", threads]);
    assert_eq!(run("1"), run("3"));
}

#[test]
fn the_report_has_boxes_and_distributions() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("five.html");
    let output = paper(&["run", "mercury-5", "--smoke", "--report", file.to_str().unwrap()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("only-Q, 150 jobs") && text.contains("1.380"), "{text}");
    let page = std::fs::read_to_string(file).unwrap();
    for heading in ["Task throughput, of minutes", "Job throughput, of minutes", "Job latency", "Latency of the jobs"] {
        assert!(page.contains(heading), "{heading}");
    }
    assert!(page.matches("<svg").count() >= 4);
}

#[test]
fn a_figure_that_is_run_with_traces_says_which_and_where_they_are_looked_for() {
    let refused = |arguments: &[&str]| {
        let output = paper(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let text = refused(&["run", "carbyne-5", "--quick"]);
    assert!(text.contains("dag/tpcds_hive_tez_30tb") && text.contains("--traces DIR"), "{text}");
    let text = refused(&["run", "apollo-10", "--quick"]);
    assert!(text.contains("dag/tpch_decima") && text.contains("docs/results/apollo/README.md"), "{text}");
    let text = refused(&["run", "megha-6", "--quick"]);
    assert!(text.contains("constraints/megha_config") && text.contains("docs/results/megha/README.md"), "{text}");
    let empty = tempfile::tempdir().unwrap();
    let text = refused(&["run", "carbyne-5", "--quick", "--traces", empty.path().to_str().unwrap()]);
    assert!(text.contains("file not found") && text.contains("tpcds_hive_tez_30tb"), "{text}");
}

#[test]
fn the_example_of_carbyne_takes_as_long_as_the_paper_says() {
    let found = json(&["run", "carbyne-2", "--quick", "--seeds", "1..1", "--json"]);
    let mean = |case: &str| {
        let mut rows = found["rows"].as_array().unwrap().iter();
        let row = rows.find(|row| row["case"] == case && row["metric"] == "mean_jct_s").unwrap();
        row["ours"].as_f64().unwrap()
    };
    assert!((mean("DRF, strict") - 2.05).abs() < 0.02 && (mean("Carbyne") - 1.55).abs() < 0.02, "{found}");
}

#[test]
fn the_examples_of_apollo_are_as_the_paper_says() {
    for figure in ["apollo-4", "apollo-5"] {
        let found = json(&["run", figure, "--json", "--seeds", "1..1"]);
        let rows = found["rows"].as_array().unwrap();
        let compared: Vec<&Value> = rows.iter().filter(|row| !row["paper"].is_null()).collect();
        assert!(compared.len() >= 6, "{found}");
        for row in compared {
            let [ours, paper] = ["ours", "paper"].map(|key| row[key].as_f64().unwrap());
            assert!((ours - paper).abs() <= 0.006, "{row}");
        }
    }
}

#[test]
fn apollos_rows_have_the_distances_from_which_tasks_read() {
    let found = json(&["run", "apollo-table-1", "--smoke", "--json"]);
    let row = |case: &str, metric: &str| {
        let mut rows = found["rows"].as_array().unwrap().iter();
        rows.find(|row| row["case"] == case && row["metric"] == metric).unwrap_or_else(|| panic!("{case}, {metric}"))
    };
    for case in ["apollo, load 0.8", "apollo-baseline, load 0.8", "mercury, load 0.8"] {
        for kind in ["tasks", "io"] {
            let parts = ["on_node", "in_rack", "across"].map(|distance| row(case, &format!("{kind}_{distance}")));
            let sum: f64 = parts.iter().map(|row| row["ours"].as_f64().unwrap()).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{case}: {parts:?}");
            let papers: Vec<f64> = parts.iter().filter_map(|row| row["paper"].as_f64()).collect();
            let of_paper = if kind == "tasks" { vec![0.28, 0.56, 0.16] } else { vec![0.46, 0.47, 0.07] };
            assert_eq!(papers, if case.starts_with("apollo,") { of_paper } else { Vec::new() });
        }
    }
    let first = row("apollo, load 0.8", "io_on_node, first stages")["ours"].as_f64().unwrap();
    assert!(first > 0.5, "tasks are sent to their input: {first}");
}

#[test]
fn meghas_rows_have_the_parts_of_waits() {
    let found = json(&["run", "megha-7", "--smoke", "--json"]);
    let part = |case: &str, part: &str| {
        let metric = format!("{part}, part of the medians");
        let mut rows = found["rows"].as_array().unwrap().iter();
        let row = rows.find(|row| row["case"] == case && row["metric"] == *metric);
        row.unwrap_or_else(|| panic!("{case}, {metric}"))["ours"].as_f64().unwrap()
    };
    let parts = ["communication", "queue", "processing", "at the node"];
    for case in ["processes are started", "nothing is started"] {
        let all: Vec<f64> = parts.iter().map(|name| part(case, name)).collect();
        assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{case}: {all:?}");
        assert!(all[0] > 0.1, "{case}: two delays of half a millisecond are some of it: {all:?}");
    }
    let [with, without] = ["processes are started", "nothing is started"].map(|case| part(case, "processing"));
    assert!(without < with, "{without} without starting processes, {with} with it");
}

#[test]
fn the_jobs_of_meghas_prototype_run_on_real_daemons_as_in_the_simulator() {
    let found = json(&["run", "megha-12", "--smoke", "--json"]);
    let row = |case: &str, metric: &str| {
        let mut rows = found["rows"].as_array().unwrap().iter();
        let row = rows.find(|row| row["case"] == case && row["metric"] == metric);
        row.unwrap_or_else(|| panic!("{case}, {metric}")).clone()
    };
    let ours = |case: &str, metric: &str| row(case, metric)["ours"].as_f64().unwrap();
    let kinds = ["daemons", "simulator", "simulator with this disk"].map(|kind| format!("Alibaba 2018, {kind}"));
    for case in &kinds {
        assert_eq!(ours(case, "tasks that started"), 1.0, "{case}");
        let waits = ["wait_p50_ms", "wait_p95_ms", "wait_p99_ms", "wait_max_ms"].map(|metric| ours(case, metric));
        assert!(waits[0] > 0.0 && waits.is_sorted(), "{case}: {waits:?}");
    }
    // As many nodes as clusters: each is the first of its cluster, and so in the partition of the first global master.
    let lent = kinds.each_ref().map(|case| ours(case, "repartitions"));
    assert!(lent[0] > 0.0 && lent.iter().all(|count| *count == lent[1]), "{lent:?}");
    let delay = row(&kinds[0], "execution delay, p50_s");
    assert!(delay["paper"] == 2.15 && delay["ours"].as_f64().unwrap() >= 0.0, "{delay}");
    assert!(ours(&kinds[0], "floor: a message and its answer over loopback_ms") > 0.0);
    let departures = found["departures"].as_array().unwrap();
    assert!(
        departures
            .iter()
            .any(|printed| printed.as_str().unwrap().starts_with("missed: Alibaba 2018, daemons, execution"))
    );
}

/// Jobs of one stage each, the third of which needs more cores than any node has.
const ROWS: &str = "M1,20,j_1,1,Terminated,100,110,100,0.2
M1,30,j_2,1,Terminated,101,120,100,0.2
M1,5,j_3,1,Terminated,102,130,9600,0.2
";

#[test]
fn meghas_constraints_are_read_from_the_traces_and_unsuitable_jobs_are_left_out() {
    let traces = tempfile::tempdir().unwrap();
    let write = |path: &str, content: &str| {
        let file = traces.path().join(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, content).unwrap();
    };
    write("rows.csv", ROWS);
    write("nodes.json", r#"{"LMs": {"1": {"partitions": {"1": ["0b0101", "0b1111"]}}}}"#);
    write("constraints/task_constraint_percent.csv", "task_cluster,c1,c2\n1,50,50\n");
    write("constraints/task_cluster_occurrence.csv", "task_cluster,type1\n1,1.0\n");
    let frozen = String::from_utf8(paper(&["scenario", "megha-6"]).stdout).unwrap();
    let changed = [
        ("dag/alibaba2018_rows/sorted_batch_task.csv.gz", "rows.csv"),
        ("constraints/megha_config_G5L5S10000_C.json.gz", "nodes.json"),
        ("workloads = [\"Alibaba 2018\", \"Alibaba 2017\"]", "workloads = [\"Alibaba 2018\"]"),
    ];
    let mine = changed.iter().fold(frozen, |text, (of, is)| {
        assert!(text.contains(of), "{of}");
        text.replace(of, is)
    });
    write("mine.toml", &mine);
    let (folder, file) = (traces.path().to_str().unwrap(), traces.path().join("mine.toml"));
    let file = file.to_str().unwrap();
    let run = ["run", "megha-6", "--quick", "--seeds", "1..1", "--json", "--traces", folder, "--scenario", file];
    let found = json(&run);
    let rows = found["rows"].as_array().unwrap();
    let started: Vec<&Value> = rows.iter().filter(|row| row["metric"] == "tasks that started").collect();
    assert_eq!(started.len(), 4, "two paces on two federations");
    assert!(started.iter().all(|row| row["ours"] == 1.0), "{started:?}");
    let departures = found["departures"].as_array().unwrap().iter().map(|one| one.as_str().unwrap());
    let left_out =
        departures.filter(|printed| printed.contains("were left out that no node suits")).collect::<Vec<_>>();
    assert!(left_out.len() == 1 && !left_out[0].contains("seed, 0 were"), "{left_out:?}");
}

/// Replacements in the figure's scenario, and the expected message of each.
fn wrong_scenarios(figure: &str, wrong: &[(&str, &str, &str)]) {
    let frozen = String::from_utf8(paper(&["scenario", figure]).stdout).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.toml");
    for (of, is, printed) in wrong {
        assert!(frozen.contains(of), "{of}");
        std::fs::write(&file, frozen.replacen(of, is, 1)).unwrap();
        let output = paper(&["run", figure, "--smoke", "--scenario", file.to_str().unwrap()]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{is}: {text}");
        assert!(text.contains(printed), "{is}: {text}");
    }
}

#[test]
fn a_wrong_scenario_is_pointed_at() {
    let of_apollo = [
        ("loads = [0.9]", "loads = [0.0]", "production.figure.apollo-7: loads is 0, and may be"),
        ("[\"apollo\"]", "[\"apolo\"]", "unknown preset `apolo`"),
        ("on = \"C\"", "on = \"X\"", "figure.apollo-4: unknown server `X`"),
        ("speed_ups = [1.2,", "speed_ups = [0.2,", "figure.apollo-12: speed_ups is 0.2"),
        ("in_rack_mb_s = 100", "in_rack_mb_s = 0", "rates.in_rack_mb_s is 0"),
        ("replicas = 3", "replicas = 0", "production.inputs.replicas is 0"),
    ];
    let of_carbyne = [
        ("preset = 'sjf'", "preset = 'sfj'", "sfj"),
        ("load = ", "load = -", "free.load is -"),
        ("contention = 2.0", "contention = 0.0", "figure.carbyne-9: contention is 0"),
        ("workloads = [\"TPC-DS\"]", "workloads = [\"TPC-D\"]", "unknown workload `TPC-D`"),
    ];
    let of_megha = [
        ("schedulers = [\"megha\"]", "schedulers = [\"mega\"]", "unknown preset `mega`"),
        ("widest = 0.1", "widest = 0.0", "setup.widest is 0, and may be"),
        ("share = 0.50, global = 3", "share = 0.50, global = 4", "figure.megha-10: global of user-4 is 4"),
        ("share = 0.50, global = 3", "share = 0.60, global = 3", "110.0 % in total"),
        ("launch=0us", "lunch=0us", "unknown cost `lunch`"),
        ("time_scale = 0.01", "time_scale = 0.0", "prototype: time_scale is 0, and may be"),
        ("workloads = [\"Google 2011\"]", "workloads = [\"Google\"]", "unknown workload `Google`"),
    ];
    wrong_scenarios("apollo-12", &of_apollo);
    wrong_scenarios("megha-10", &of_megha);
    wrong_scenarios("carbyne-5", &of_carbyne);
}

#[test]
fn an_unknown_figure_gives_what_is_known_and_a_suggestion() {
    let output = paper(&["run", "mercury-55"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text.contains("did you mean `mercury-5`?") && text.contains("mercury-table-1"), "{text}");
}

#[test]
fn a_scenario_that_is_no_text_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.toml");
    std::fs::write(&file, b"\xff").unwrap();
    let output = paper(&["run", "apollo-4", "--scenario", file.to_str().unwrap()]);
    let text = String::from_utf8(output.stderr).unwrap();
    let printed = "line 1 is not UTF-8; convert the file to UTF-8\n  help: name a text file";
    assert!(output.status.code() == Some(2) && text.contains(printed), "{text}");
}
