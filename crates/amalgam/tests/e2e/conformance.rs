//! Journals of daemons are replayed by the simulator's roles. Other tests here replay the journals of their daemons at the end.

use crate::support::{Scene, result};
use amalgam_daemon::versions::JOURNAL;
use std::fs;

/// The words of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn each_incarnation_has_a_journal_that_is_replayed() {
    let scene = Scene::dev(&[]);
    scene.ok(&["wait", &scene.submit(&["--array", "0-9", "--", "true"])]);
    scene.kill_daemon();
    scene.start_dev(&[]);
    scene.ok(&["wait", &scene.submit(&["--", "true"])]);
    scene.kill_daemon();
    let journals = scene.journals();
    let output = scene.ok(&["sim", "replay", journals.to_str().unwrap()]);
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines.len(), 2, "{output}");
    for (line, least) in lines.iter().zip([60, 9]) {
        let events: u32 = cells(line)[1].parse().unwrap();
        assert!(events > least && line.ends_with("the same effects"), "{line}");
    }
}

#[test]
fn files_that_are_no_journals_are_refused() {
    let scene = Scene::new();
    let journals = scene.journals();
    fs::create_dir(&journals).unwrap();
    let path = journals.to_str().unwrap();
    let output = scene.run(&["sim", "replay", path]);
    assert!(output.code == 1 && output.err.contains("has no journals"), "{output:?}");
    fs::write(journals.join("a.journal"), "amalgam journal 3\n").unwrap();
    let output = scene.run(&["sim", "replay", path]);
    assert!(
        output.code == 1 && output.err.contains("a.journal is not a journal that this program reads"),
        "{output:?}"
    );
    fs::write(journals.join("a.journal"), JOURNAL.line("journal")).unwrap();
    let output = scene.run(&["sim", "replay", path]);
    assert!(output.code == 1 && output.err.contains("nothing was compared"), "{output:?}");
    fs::remove_dir_all(&journals).unwrap();
    let mut file = scene.command(&["dev", "--listen", "127.0.0.1:0", "--journal"]);
    file.arg(scene.write("file", "").join("below"));
    let output = result(file);
    assert!(output.code == 1 && output.err.contains("cannot make the directory"), "{output:?}");
}
