//! `amalgam-lab scoreboard`: every row runs at a small size, and the results have the documented form.

use serde_json::Value;
use std::process::{Command, Output};

fn scoreboard(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_amalgam-lab")).arg("scoreboard").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn every_row_is_run_in_each_variant_and_compared_with_fair_shares() {
    let run =
        || scoreboard(&["--smoke", "--preset", "srtf,sparrow", "--variant", "plain,unknown,wrong,slow", "--json"]);
    let output = run();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["half"], found["seeds"].as_array().unwrap().len()), (&Value::from("development"), 1));
    let scores = found["scores"].as_array().unwrap();
    let rows: Vec<&str> =
        scores.chunk_by(|one, next| one["row"] == next["row"]).map(|of| of[0]["row"].as_str().unwrap()).collect();
    let wanted = ["TPC-H, 90 % load", "TPC-H, all at once", "TPC-DS, overload", "Alibaba's DAGs", "Yahoo", "Facebook"];
    assert_eq!(rows[..6], wanted);
    assert_eq!(scores.len(), rows.len() * 4 * 3, "drf is always run");
    for of_case in scores.chunks(3) {
        let presets: Vec<&str> = of_case.iter().map(|score| score["preset"].as_str().unwrap()).collect();
        assert_eq!(presets, ["drf", "srtf", "sparrow"]);
        assert!(of_case.iter().all(|score| score["bounded_slowdown"].as_f64() >= Some(1.0)), "{of_case:?}");
        assert_eq!((of_case[0]["worst"].as_f64(), of_case[0]["slower"].as_f64()), (Some(1.0), Some(0.0)));
        let means = of_case.iter().map(|score| score["over_best"]["mean"].as_f64().unwrap());
        assert_eq!(means.fold(f64::INFINITY, f64::min), 1.0, "{of_case:?}");
    }
    assert!(found["cut"][0].as_str().unwrap().starts_with("cut: "));
    assert_eq!(output.stdout, run().stdout, "the same seeds give the same bytes");
}

#[test]
fn people_get_a_table_and_errors_with_a_remedy() {
    let output = scoreboard(&["--smoke", "--row", "Yahoo", "--preset", "fifo"]);
    let table = text(&output.stdout);
    assert!(table.starts_with("ROW    PRESET  MEAN") && table.contains("Yahoo  fifo"), "{table}");
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
