//! Formats of jobs with one stage.

use crate::support::{Samples, each, has_note, public, seconds, try_read};

const HAWK: &str = "10.5 2 1.5 1 2\n\n12 1 0.25 0.2657\n";

#[test]
fn a_line_of_hawk_is_a_job_with_the_run_time_of_each_task() {
    let workload = Samples::one("a.tr", HAWK).read("hawk", "a.tr", "").unwrap();
    assert_eq!(workload.jobs.len(), 2);
    let [first, second] = &workload.jobs[..] else { panic!("two jobs") };
    assert_eq!((first.arrival, second.arrival), (seconds(0.0), seconds(1.5)));
    assert_eq!(first.run_times[..], [each(&[1.0, 2.0])]);
    assert_eq!(first.spec.stages[0].expected, Some(seconds(1.5)), "the mean in the trace");
    assert_eq!(second.run_times[0].of(0), seconds(0.2657));
    assert!(has_note(&workload, "demand=unit") && has_note(&workload, "10.50s"), "{:?}", workload.notes);
    assert_eq!(workload.malformed.count, 0);
}

#[test]
fn whole_seconds_are_rounded_before_they_are_scaled() {
    let workload = Samples::one("a.tr", HAWK).read("hawk", "a.tr", "whole-seconds=true time-scale=0.1").unwrap();
    assert_eq!(workload.jobs[1].run_times[..], [each(&[0.1])]);
    assert_eq!(workload.jobs[1].arrival, seconds(0.15));
    assert!(has_note(&workload, "1 run times below half a second"));
}

#[test]
fn malformed_lines_are_counted_with_their_positions() {
    let text = "1 1 2 2\n5 2 1 1\n6 0 1\nx 1 1 1\n7 1 1 -1\n8 1 1 nan\n1370000000000 1 1 1\n9 1 1 3\n";
    let workload = Samples::one("a.tr", text).read("hawk", "a.tr", "").unwrap();
    assert_eq!((workload.jobs.len(), workload.malformed.count), (2, 6));
    let reported: Vec<String> = workload.malformed.first.iter().map(ToString::to_string).collect();
    for (line, problem) in [
        (2, "the line states 2 tasks but has 1 run times"),
        (3, "the job has no tasks"),
        (4, "the submit time `x` is not a number"),
        (5, "the run time `-1` is not a time"),
        (6, "the run time `nan` is not a time"),
        (7, "the submit time `1370000000000` cannot be in seconds: that is more than 30 years"),
    ] {
        assert!(
            reported.iter().any(|reported| reported.ends_with(&format!("a.tr:{line}: {problem}"))),
            "{line}: {reported:?}"
        );
    }
}

#[test]
fn a_line_that_is_not_utf_8_is_malformed() {
    let workload = Samples::one("a.tr", b"1 1 1 1\n\xff\xfe\n").read("hawk", "a.tr", "").unwrap();
    assert_eq!(workload.malformed.first[0].line, 2);
}

#[test]
fn a_file_of_another_format_is_an_error() {
    let error = Samples::one("a.tr", "{\n}\n").read("hawk", "a.tr", "").unwrap_err();
    assert!(error.problem.contains("a.tr:1: the submit time `{` is not a number"), "{error}");
}

#[test]
fn the_hawk_traces_have_their_known_sizes() {
    for (path, jobs, tasks) in [
        ("flat/hawk_tr/YH1_sub.tr.gz", 2_910, 122_878),
        ("flat/pigeon_tr/NYH_trace70.gz", 5_001, 100_350),
        ("flat/pigeon_tr/NYH_trace90.gz", 5_001, 100_350),
    ] {
        let Some(path) = public(path) else { return };
        let workload = try_read(&format!("hawk:{path}"), "").unwrap();
        assert_eq!((workload.jobs.len(), workload.task_count()), (jobs, tasks), "{path}");
        assert_eq!(workload.malformed.count, 0);
    }
}
