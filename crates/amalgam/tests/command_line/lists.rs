//! Lists are complete, or print what they leave out.

use super::{Cluster, says};
use amalgam_daemon::api::{JobSummary, StoryLine, TaskSummary};

#[test]
fn lists_of_tasks_are_complete_or_note_the_limit() {
    let cluster = Cluster::start();
    assert_eq!(cluster.run(&["submit", "-q", "--hold", "--array", "0-12000", "--", "hang"]).code, 0);
    let result = cluster.run(&["info", "1", "--tasks"]);
    assert_eq!((result.code, result.out.matches("\n1.0.").count(), result.err.as_str()), (0, 12_001, ""));
    assert_eq!(cluster.json::<Vec<TaskSummary>>(&["info", "1", "--tasks"]).len(), 12_001);
    let result = cluster.run(&["info", "1", "--tasks", "--limit", "10"]);
    let note = "note: only the first 10 tasks of job 1 are shown; without --limit all are\n";
    assert_eq!((result.out.matches("\n1.0.").count(), result.err.as_str()), (10, note));
    assert_eq!(cluster.run(&["info", "1", "--tasks", "--limit", "12001"]).err, "");
}

#[test]
fn lists_of_jobs_are_complete_or_note_the_limit() {
    let cluster = Cluster::start();
    for _ in 0..25 {
        assert_eq!(cluster.run(&["submit", "-q", "--", "exit", "1"]).code, 0);
    }
    let note = |shown: &str| format!("note: only the newest {shown} are shown; without --limit all are\n");
    for verb in [&["list", "--all"][..], &["history"], &["list", "--all", "--state", "failed"]] {
        assert_eq!(cluster.json::<Vec<JobSummary>>(verb).len(), 25, "{verb:?}");
        let result = cluster.run(&[verb, &["-q", "-n", "2"]].concat());
        assert_eq!(result, says(0, "24\n25\n", &note("2 jobs")), "{verb:?}");
    }
    assert_eq!(cluster.run(&["usage"]).err, "note: only the newest 20 jobs are shown; --limit shows more\n");
    assert_eq!(cluster.run(&["usage", "-n", "25"]).err, "");
    assert_eq!(cluster.run(&["list", "--all", "--state", "succeeded", "-q"]), says(0, "", ""));
    for _ in 0..21 {
        assert_eq!(cluster.run(&["submit", "-q", "--hold", "--", "hang"]).code, 0);
    }
    assert!(cluster.run(&["top"]).out.ends_with("and more jobs: `amalgam list`\n"));
}

#[test]
fn an_empty_list_names_its_filter() {
    let cluster = Cluster::start();
    let none = |arguments: &[&str]| {
        let result = cluster.run(arguments);
        assert_eq!((result.code, result.err.as_str()), (0, ""), "{result:?}");
        result.out
    };
    assert!(none(&["list"]).starts_with("nothing pending or running ("));
    assert!(none(&["list", "--user", "bob"]).starts_with("no such jobs are pending or running ("));
    assert_eq!(none(&["list", "--all"]), "no jobs\n");
    assert_eq!(none(&["history"]), "no job has ended\n");
    assert_eq!(none(&["history", "--since", "7d"]), "no such jobs have ended\n");
}

#[test]
fn a_stages_story_has_all_of_its_tasks() {
    let cluster = Cluster::start();
    std::fs::write(
        cluster.state.path().join("job.yaml"),
        "stages:\n  - { name: a, command: [item], each: [x, y, z] }\n  - { name: b, command: [item], each: [x, y] }\n",
    )
    .unwrap();
    assert_eq!(cluster.run(&["submit", "-q", "job.yaml"]).code, 0);
    let tasks = |target: &str| {
        let lines: Vec<StoryLine> = cluster.json(&["story", target]);
        let mut tasks: Vec<String> = lines.into_iter().filter_map(|line| line.task).collect();
        tasks.dedup();
        tasks
    };
    assert_eq!(tasks("1.a"), ["1.0.0", "1.0.1", "1.0.2"]);
    assert_eq!(tasks("1.1"), ["1.1.0", "1.1.1"]);
    assert_eq!(tasks("1.b.1"), ["1.1.1"]);
    assert_eq!(tasks("1").len(), 5);
    assert_eq!(cluster.run(&["logs", "1.a"]).out, "a/0: x\na/1: y\na/2: z\n");
}

#[test]
fn history_is_of_the_requested_time() {
    let cluster = Cluster::start();
    assert_eq!(cluster.run(&["submit", "-q", "--", "echo"]).code, 0);
    let ids = |arguments: &[&str]| cluster.run(&[&["history", "-q"], arguments].concat()).out;
    assert_eq!(ids(&["--since", "1h"]), "1\n");
    assert_eq!(ids(&["--since", "2020-01-01", "--until", "2100-01-01T00:00"]), "1\n");
    assert_eq!(ids(&["--since", "2100-01-01"]), "");
    assert_eq!(ids(&["--until", "2020-01-01 12:00:00Z"]), "");
    let table = cluster.run(&["history", "--since", "1h", "--csv"]).out;
    let mut lines = table.lines();
    let headings: Vec<&str> = lines.next().unwrap().split(',').collect();
    assert!(["ended_at", "cpu_seconds", "max_memory_bytes"].iter().all(|name| headings.contains(name)), "{table}");
    assert!(table.contains("\n1,echo,ada,") && lines.next().unwrap().split(',').count() == headings.len(), "{table}");
    assert_eq!(cluster.run(&["history", "--since", "2100-01-01", "--csv"]).out.lines().count(), 1);
    for text in ["yesterday-ish", "2026", "12:30", ""] {
        let wrong = cluster.run(&["history", "--since", text]);
        assert!(wrong.code == 2 && wrong.err.contains("write a date or a time in UTC"), "{wrong:?}");
    }
}
