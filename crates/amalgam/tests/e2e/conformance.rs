//! The simulator beside the daemons: journals are replayed, costs are measured, waits are compared. Other tests here
//! replay the journals of the daemons that serve them when they end.

use crate::support::{Scene, told};
use std::fs;

/// The words of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn a_journal_tells_of_every_life_and_is_replayed() {
    let scene = Scene::dev(&[]);
    scene.ok(&["wait", &scene.submit(&["--array", "0-9", "--", "true"])]);
    scene.kill_daemon();
    scene.start_dev(&[]);
    scene.ok(&["wait", &scene.submit(&["--", "true"])]);
    scene.kill_daemon();
    let journals = scene.journals();
    let said = scene.ok(&["sim", "replay", journals.to_str().unwrap()]);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    for (line, least) in lines.iter().zip([60, 9]) {
        let events: u32 = cells(line)[1].parse().unwrap();
        assert!(events > least && line.ends_with("the same effects"), "{line}");
    }
}

#[test]
fn what_is_no_journal_is_said() {
    let scene = Scene::new();
    let journals = scene.journals();
    fs::create_dir(&journals).unwrap();
    let path = journals.to_str().unwrap();
    let said = scene.run(&["sim", "replay", path]);
    assert!(said.code == 1 && said.err.contains("has no journals"), "{said:?}");
    fs::write(journals.join("a.journal"), "amalgam journal 3\n").unwrap();
    let said = scene.run(&["sim", "replay", path]);
    assert!(said.code == 1 && said.err.contains("a.journal is not a journal of this version"), "{said:?}");
    fs::write(journals.join("a.journal"), "amalgam journal 28\n").unwrap();
    let said = scene.run(&["sim", "replay", path]);
    assert!(said.code == 1 && said.err.contains("nothing was compared"), "{said:?}");
    fs::remove_dir_all(&journals).unwrap();
    let mut file = scene.command(&["dev", "--listen", "127.0.0.1:0", "--journal"]);
    file.arg(scene.write("file", "").join("below"));
    let said = told(file);
    assert!(said.code == 1 && said.err.contains("cannot make the directory"), "{said:?}");
}

#[test]
fn costs_are_measured_in_the_words_that_a_simulation_takes() {
    let scene = Scene::new();
    let said = scene.ok(&["bench", "costs", "--hops", "5", "--tasks", "50"]);
    let line = said.lines().last().unwrap();
    let flags = cells(line.strip_prefix("for `amalgam sim run`: ").unwrap());
    let run = ["sim", "run", "--nodes", "2", "--workload", "synthetic:gridmix", "-w", "jobs=3"];
    let result: serde_json::Value = scene.json(&[&run[..], &flags].concat());
    // A launch takes real time, so a wait of none was not simulated with what was measured.
    assert!(result["task_wait_s"]["p50"].as_f64().unwrap() > 0.0001, "{result}");
}

#[test]
fn real_and_simulated_waits_are_compared() {
    let scene = Scene::new();
    let small =
        ["--hops", "5", "--tasks", "50", "--burst", "40", "--jobs", "5", "--preset", "fifo,sparrow", "--rounds", "1"];
    // On a machine that runs other tests they need not agree; the benchmark itself is asked on a quiet one.
    let said = scene.run(&[&["bench", "agreement"], &small[..]].concat());
    let rows: Vec<Vec<&str>> =
        said.out.lines().filter(|line| line.contains(" fifo ") || line.contains(" sparrow ")).map(cells).collect();
    assert_eq!(rows.len(), 4, "{said:?}");
    for row in rows {
        let numbers: Vec<f64> = row[row.len() - 6..].iter().map(|cell| cell.parse().unwrap()).collect();
        let [real_p50, real_p95, p50, p95, ..] = numbers[..] else { panic!("{row:?}") };
        assert!(0.0 < real_p50 && real_p50 <= real_p95 && 0.0 < p50 && p50 <= p95, "{row:?}");
    }
    assert!(said.code == 0 || said.err.contains("the simulator is off by up to"), "{said:?}");
}
