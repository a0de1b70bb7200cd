//! `amalgam-lab scoreboard`: every row runs at a small size, and the results have the documented form.

use serde_json::Value;
use std::process::{Command, Output};

fn scoreboard(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_amalgam-lab")).arg("scoreboard").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const ROWS: [&str; 11] = [
    "TPC-H, 90 % load",
    "TPC-H, all at once",
    "TPC-DS, overload",
    "Alibaba's DAGs",
    "Yahoo",
    "Facebook",
    "Google",
    "Spark's log",
    "NASA, gangs",
    "Queues with guarantees",
    "Queries alone with a guarantee",
];
const EXPERIMENTS: [&str; 3] = ["Mercury's loops", "Megha's jobs", "Apollo's loads"];

#[test]
fn every_row_is_run_in_each_variant_and_compared_with_fair_shares() {
    let rows = ROWS.iter().flat_map(|row| ["--row", row]);
    let arguments = ["--smoke", "--preset", "amalgam,srtf,sparrow", "--variant", "plain,unknown,wrong,slow", "--json"];
    let arguments: Vec<&str> = arguments.into_iter().chain(rows).collect();
    let run = || scoreboard(&arguments);
    let output = run();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["half"], found["seeds"].as_array().unwrap().len()), (&Value::from("development"), 1));
    let entries = found["rows"].as_array().unwrap();
    let text_of = |entry: &Value, key: &str| entry[key].as_str().unwrap().to_owned();
    let case = |entry: &Value| ["workload", "variant", "preset"].map(|key| text_of(entry, key));
    let cases: Vec<&[Value]> = entries.chunk_by(|one, next| case(one) == case(next)).collect();
    let mut rows: Vec<String> = cases.iter().map(|case| text_of(&case[0], "workload")).collect();
    rows.dedup();
    assert_eq!(rows, ROWS);
    assert_eq!(cases.len(), rows.len() * 4 * 5, "drf is always run, twice");
    let number = |case: &[Value], metric: &str, key: &str| {
        case.iter().find(|entry| entry["metric"] == metric).unwrap_or_else(|| panic!("no {metric}"))[key].as_f64()
    };
    let (mut differ, mut moved) = (0, 0);
    for of_row in cases.chunks(4 * 5) {
        for of_variant in of_row.chunks(5) {
            let presets: Vec<String> = of_variant.iter().map(|case| text_of(&case[0], "preset")).collect();
            assert_eq!(presets, ["drf", "amalgam", "srtf", "sparrow", "drf-moved"]);
            moved += u32::from(number(of_variant[4], "worst_speed", "value") < Some(1.0));
            let drf = of_variant[0];
            assert_eq!(
                (number(drf, "worst_speed", "value"), number(drf, "slower_than_drf", "value")),
                (Some(1.0), Some(0.0))
            );
            assert!(number(drf, "utilization", "value") > Some(0.0) && number(drf, "jct_mean_s", "asked").is_none());
        }
        let mean = |variant: usize| number(of_row[variant * 5 + 2], "jct_mean_s", "value");
        differ += u32::from((1..4).any(|variant| mean(variant) != mean(0)));
        assert_eq!(number(of_row[1], "jct_mean_s", "asked"), Some(1.05));
        assert_eq!(number(of_row[6], "jct_mean_of_best_plain", "asked"), Some(1.25));
    }
    assert!(
        differ * 2 > rows.len() as u32,
        "in most rows run times that are unknown, wrong or longer make a difference"
    );
    assert!(moved > 0, "some job ends later if all come a bit later");
    assert!(found["cut"][0].as_str().unwrap().starts_with("cut: "));
    assert_eq!(output.stdout, run().stdout, "the same seeds give the same bytes");
}

#[test]
fn guarantees_are_measured_where_queues_have_some() {
    for (row, has) in [("Queues with guarantees", true), ("Google", false)] {
        let output = scoreboard(&["--smoke", "--row", row, "--preset", "amalgam", "--json"]);
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let is_it = |entry: &&Value| entry["metric"] == "windows_below_guarantee" && entry["preset"] == "amalgam";
        let rows = found["rows"].as_array().unwrap();
        let found = rows.iter().find(is_it);
        assert_eq!(found.map(|entry| entry["asked"].clone()), has.then(|| Value::from(0.01)), "{row}");
        let Some(worst) = found.map(|entry| entry["value"].as_f64().unwrap()) else { continue };
        let of = |queue: &str| {
            let metric = format!("windows_below_guarantee of root.{queue}");
            let is_it = |entry: &&Value| entry["metric"] == *metric && entry["preset"] == "amalgam";
            rows.iter().find(is_it).expect(&metric)["value"].as_f64().unwrap()
        };
        assert_eq!(worst, of("queries").max(of("pipeline")));
    }
}

#[test]
fn experiments_of_the_papers_run_and_something_is_asked_of_the_default_preset_in_each() {
    let arguments: Vec<&str> =
        EXPERIMENTS.iter().flat_map(|name| ["--row", name]).chain(["--smoke", "--json"]).collect();
    let output = scoreboard(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let entries = found["rows"].as_array().unwrap();
    for name in EXPERIMENTS {
        let of_it = || entries.iter().filter(|entry| entry["workload"].as_str().unwrap().starts_with(name));
        assert!(of_it().any(|entry| entry["preset"] == "drf" && entry["asked"].is_null()), "{name}");
        let asked: Vec<&Value> = of_it().filter(|entry| !entry["asked"].is_null()).collect();
        assert!(!asked.is_empty() && asked.iter().all(|entry| entry["preset"] == "amalgam"), "{name}");
        assert!(asked.iter().all(|entry| entry["value"].is_number() && entry["met"].is_boolean()), "{name}");
    }
    let reports = text(&output.stderr);
    assert!(EXPERIMENTS.iter().all(|name| reports.contains(name)), "{reports}");
}

#[test]
fn people_get_a_table_and_errors_with_a_remedy() {
    let output = scoreboard(&["--smoke", "--row", "Yahoo", "--preset", "fifo"]);
    let table = text(&output.stdout);
    assert!(table.starts_with("ROW    PRESET     MEAN") && table.contains("Yahoo  fifo"), "{table}");
    for (arguments, wanted) in [
        (vec!["--row", "Yahu", "--smoke"], "has no row `Yahu`"),
        (vec!["--preset", "megha", "--smoke"], "is for federations"),
        (vec!["--preset", "best", "--smoke"], "unknown preset `best`"),
        (vec!["--row", "Yahoo"], "--traces DIR"),
        (vec!["--row", "Yahoo", "--traces", "/nowhere"], "/nowhere/flat/hawk_tr/YH1_sub.tr.gz"),
    ] {
        let output = scoreboard(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(wanted), "{arguments:?}: {}", text(&output.stderr));
    }
}
