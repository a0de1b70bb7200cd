//! `amalgam-lab bench`: small benchmarks end and print the lines that others read. Those with real daemons start the product's
//! program, which `cargo test --workspace` builds in the same directory.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// The lab, with a directory for the clusters that it starts.
fn lab(directory: &TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_amalgam-lab"));
    command.args(arguments).env("TMPDIR", directory.path()).stdin(Stdio::null());
    command
}

fn bench(arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    lab(&directory, &[&["bench"], arguments].concat()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The words of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn the_simulator_is_measured_beside_a_bare_agenda() {
    let output = bench(&["sim", "--quick"]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{output:?}");
    let reported = text(&output.stdout);
    let cases = ["fifo, 5 nodes", "drf, 5 nodes", "drf, 250 nodes", "sparrow, 20 nodes", "48 DAGs"];
    assert!(cases.iter().all(|case| reported.contains(case)), "{reported}");
    assert_eq!(reported.matches("on the bare agenda").count(), 1, "{reported}");
    assert_eq!(reported.matches("the bare agenda takes").count(), 4, "{reported}");
}

#[test]
fn unwritten_output_is_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in [&["bench", "sim", "--quick"][..], &["paper", "list"], &["--help"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = lab(&directory, arguments).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let reported = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?} {reported}");
        assert!(reported.starts_with("error: cannot write to standard output"), "{arguments:?} {reported}");
    }
}

#[test]
fn the_program_to_start_is_named_where_there_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let alone = directory.path().join("amalgam-lab");
    std::fs::copy(env!("CARGO_BIN_EXE_amalgam-lab"), &alone).unwrap();
    let output = Command::new(&alone).args(["bench", "floors"]).env("TMPDIR", directory.path()).output().unwrap();
    let reported = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{reported}");
    assert!(reported.starts_with("error: program not found: ") && reported.contains("AMALGAM_PROGRAM"), "{reported}");
    let mut named = Command::new(&alone);
    named.args(["bench", "floors"]).env("TMPDIR", directory.path()).env("AMALGAM_PROGRAM", "/nonexistent/amalgam");
    let reported = text(&named.output().unwrap().stderr);
    assert!(reported.contains("cannot launch through an executor"), "{reported}");
}

#[test]
fn costs_are_printed_as_flags_of_a_simulation() {
    let output = bench(&["costs", "--hops", "5", "--tasks", "50"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let flags = cells(printed.lines().last().unwrap().strip_prefix("for `amalgam sim run`: ").unwrap());
    let product = Path::new(env!("CARGO_BIN_EXE_amalgam-lab")).with_file_name("amalgam");
    let mut run = Command::new(product);
    run.args(["sim", "run", "--nodes", "2", "--workload", "synthetic:gridmix", "-w", "jobs=3", "--json"]).args(flags);
    let result: serde_json::Value = serde_json::from_slice(&run.output().unwrap().stdout).unwrap();
    // A launch takes real time. A wait of 0 would mean that the measured costs were not simulated.
    assert!(result["task_wait_s"]["p50"].as_f64().unwrap() > 0.0001, "{result}");
}

#[test]
fn real_and_simulated_waits_are_compared() {
    let small =
        ["--hops", "5", "--tasks", "50", "--burst", "40", "--jobs", "5", "--preset", "fifo,sparrow", "--rounds", "1"];
    // Beside other tests they may differ; the limit applies to a quiet machine.
    let output = bench(&[&["agreement"], &small[..]].concat());
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let rows: Vec<Vec<&str>> =
        out.lines().filter(|line| line.contains(" fifo ") || line.contains(" sparrow ")).map(cells).collect();
    assert_eq!(rows.len(), 4, "{out} {err}");
    for row in rows {
        let numbers: Vec<f64> = row[row.len() - 6..].iter().map(|cell| cell.parse().unwrap()).collect();
        let [real_p50, real_p95, p50, p95, ..] = numbers[..] else { panic!("{row:?}") };
        assert!(0.0 < real_p50 && real_p50 <= real_p95 && 0.0 < p50 && p50 <= p95, "{row:?}");
    }
    assert!(output.status.success() || err.contains("the simulator is off by up to"), "{err}");
}

#[test]
fn the_executor_is_measured_beside_a_bare_loop() {
    let output = bench(&["floors", "--launches", "4", "--slots", "2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let reported = text(&output.stdout);
    assert_eq!(
        reported.lines().filter(|line| line.starts_with("2 slots, ") && line.contains("/s, executor ")).count(),
        3
    );
    assert!(reported.lines().last().unwrap().starts_with("fdatasync of 256 bytes: p50 "), "{reported}");
}

#[test]
fn a_wrong_variable_is_refused_by_every_verb() {
    for arguments in [&["paper", "list"][..], &["bench", "floors"]] {
        let mut run = Command::new(env!("CARGO_BIN_EXE_amalgam-lab"));
        let output = run.args(arguments).env("AMALGAM_LOG", "wrongvalue").output().unwrap();
        let reported = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{reported}");
        assert!(reported.starts_with("error: AMALGAM_LOG is `wrongvalue`, which is not a level"), "{reported}");
    }
}

#[test]
fn launches_are_measured_beside_other_programs() {
    let small = ["launch", "--tasks", "20", "--slots", "2", "--enforcement", "none", "--runs", "1"];
    let peers = ["--peer", "counted=echo {tasks}{slots}", "--peer", "timed=seq {tasks} | xargs -P {slots} -n 1 true"];
    let output = bench(&[&small[..], &peers].concat());
    let reported = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let row = |name: &str| {
        reported.lines().map(cells).find(|cells| cells.get(1) == Some(&name)).unwrap_or_else(|| panic!("{reported}"))
    };
    assert_eq!(row("counted")[2], "202", "what it says of itself");
    assert!(row("timed")[2].parse::<f64>().unwrap() > 0.0, "{reported}");
    let output = bench(&[&small[..], &["--peer", "wrong=exit 3"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("`exit 3` failed"), "{}", text(&output.stderr));
}
