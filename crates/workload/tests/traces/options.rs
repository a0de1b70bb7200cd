//! The options of all formats, and the kinds of files and paths.

use crate::support::{Samples, has_note, seconds, try_read};
use amalgam_workload::trace::{COMMON_KEYS, FORMATS, NODE_KEYS, Workload, read_nodes};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use std::io::Write;

fn gzipped(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).expect("memory");
    encoder.finish().expect("memory")
}

fn lines(jobs: u32) -> String {
    (0..jobs).map(|job| format!("{job} 2 1.5 1 {job}.25\n")).collect()
}

fn names(workload: &Workload) -> Vec<&str> {
    workload.jobs.iter().map(|job| job.spec.name.as_str()).collect()
}

#[test]
fn errors_about_unknown_formats_and_options_suggest_a_name() {
    assert_eq!(try_read("hawks:a.tr", "").unwrap_err().remedy, "did you mean `hawk`?");
    assert_eq!(try_read("hawk:a.tr", "whole-second=true").unwrap_err().remedy, "did you mean `whole-seconds`?");
    assert_eq!(try_read("hawk:a.tr", "arrival=poison:3s").unwrap_err().remedy, "write `poisson:GAP`");
    assert_eq!(try_read("synthetic:gridmx", "").unwrap_err().remedy, "did you mean `gridmix`?");
    assert_eq!(try_read("synthetic", "taks=3").unwrap_err().remedy, "did you mean `tasks`?");
}

#[test]
fn errors_about_missing_files_name_the_path() {
    let error = try_read("hawk:/no/such/file.tr", "").unwrap_err();
    assert_eq!(error.problem, "file `/no/such/file.tr` not found");
    let empty = Samples::new();
    assert!(empty.read("hawk", "", "").unwrap_err().problem.contains("has a name that ends in .tr"));
    assert!(try_read("hawk", "").unwrap_err().remedy.contains("hawk:traces/"));
}

#[test]
fn parts_of_a_file_have_no_job_in_common_and_are_taken_before_the_limit() {
    let samples = Samples::one("a.tr", lines(7));
    let arrivals = |options: &str| {
        let workload = samples.read("hawk", "a.tr", options).unwrap();
        workload.jobs.iter().map(|job| job.arrival.as_micros() / 1_000_000).collect::<Vec<_>>()
    };
    let all = arrivals("");
    let of = |numbers: &[usize]| numbers.iter().map(|number| all[*number] - all[numbers[0]]).collect::<Vec<_>>();
    assert_eq!(arrivals("part=1/2"), of(&[0, 2, 4, 6]));
    assert_eq!(arrivals("part=2/2"), of(&[1, 3, 5]));
    assert_eq!(arrivals("part=2/3 limit=2"), of(&[1, 4]));
    for wrong in ["0/2", "3/2", "1", "1/0", "a/b"] {
        let error = samples.read("hawk", "a.tr", &format!("part={wrong}")).unwrap_err();
        assert!(error.problem.contains(&format!("`{wrong}` is not a part")), "{error:?}");
    }
}

#[test]
fn a_path_may_be_a_directory_or_a_pattern() {
    let samples = Samples::one("in/b.tr", "5 1 1 1\n");
    samples.add("in/a.tr.gz", gzipped("3 1 1 1\n4 1 1 1\n"));
    samples.add("in/readme.txt", "no trace");
    for path in ["in", "in/*.tr*"] {
        let workload = samples.read("hawk", path, "").unwrap();
        assert_eq!((workload.jobs.len(), workload.malformed.count), (3, 0), "{path}");
    }
}

#[test]
fn a_truncated_gzip_file_is_an_error_that_names_it() {
    let whole = gzipped(&lines(1_000));
    let samples = Samples::one("cut.tr.gz", &whole[..whole.len() / 2]);
    let error = samples.read("hawk", "cut.tr.gz", "").unwrap_err();
    assert!(error.problem.ends_with("cut.tr.gz: the compressed data ends too early"), "{error}");
    assert!(error.remedy.contains("truncated"));
}

#[test]
fn other_data_after_gzip_data_is_reported_as_damage() {
    for rest in [&b"garbage"[..], b"\0\0\0"] {
        let samples = Samples::one("a.tr.gz", [&gzipped("1 1 1 1\n")[..], rest].concat());
        let error = samples.read("hawk", "a.tr.gz", "").unwrap_err();
        assert!(error.problem.ends_with("a.tr.gz: the gzip data is followed by other data"), "{error}");
        assert_eq!(error.remedy, "fetch the file again: it is damaged");
    }
}

#[test]
fn a_directory_without_matching_names_suggests_to_name_a_file() {
    let samples = Samples::one("in/NYH_trace70.gz", gzipped("1 1 1 1\n"));
    let error = samples.read("hawk", "in", "").unwrap_err();
    assert!(error.remedy.starts_with("name the file itself, such as ") && error.remedy.ends_with("NYH_trace70.gz"));
    assert_eq!(samples.read("hawk", "in/NYH*", "").unwrap().jobs.len(), 1);
    samples.add("in/NYH_trace90.gz", gzipped("1 1 1 1\n"));
    let both = samples.read("hawk", "in/NYH*", "").unwrap();
    assert!(has_note(&both, "in/NYH*` matches 2 files"), "{:?}", both.notes);
}

#[test]
fn errors_about_files_that_cannot_be_opened_have_a_remedy() {
    let samples = Samples::one("t/adj_mat_3.npy", "");
    for (workload, options) in [
        (format!("tpch:{}", samples.path("t")), ""),
        ("synthetic".to_owned(), "constraints=/nonexistent"),
        (format!("synthetic{}", ""), &*format!("constraints={}", samples.path("t"))),
    ] {
        let error = try_read(&workload, options).unwrap_err();
        assert!(!error.remedy.is_empty(), "{error}");
    }
    assert_eq!(read_nodes("openb:nope", &[]).unwrap_err().remedy, "check the path");
}

#[test]
fn all_members_of_a_gzip_file_are_read() {
    let mut both = gzipped("1 1 1 1\n");
    both.extend(gzipped("2 1 1 1\n"));
    assert_eq!(Samples::one("a.tr.gz", both).read("hawk", "a.tr.gz", "").unwrap().jobs.len(), 2);
}

#[test]
fn a_limit_keeps_the_first_jobs_of_the_file() {
    let samples = Samples::one("a.tr", lines(10));
    assert_eq!(names(&samples.read("hawk", "a.tr", "limit=3").unwrap()), ["job-1", "job-2", "job-3"]);
}

#[test]
fn arrivals_may_be_scaled_without_the_run_times() {
    let workload = Samples::one("a.tr", "0 1 4 4\n10 1 4 4\n").read("hawk", "a.tr", "arrival-scale=0.5").unwrap();
    assert_eq!((workload.jobs[1].arrival, workload.jobs[1].run_times[0].of(0)), (seconds(5.0), seconds(4.0)));
}

#[test]
fn draws_with_the_same_seed_are_equal() {
    let samples = Samples::one("a.tr", lines(10));
    let draw = |seed| samples.read("hawk", "a.tr", &format!("draw=200 seed={seed} arrival=every:1s")).unwrap();
    let (first, again, other) = (draw(1), draw(1), draw(2));
    assert_eq!(first, again);
    assert_ne!(names(&first), names(&other));
    assert_eq!(first.jobs[199].arrival, seconds(199.0));
    assert!(has_note(&first, "200 jobs were drawn"));
}

#[test]
fn expected_run_times_are_the_traces_the_true_means_or_none() {
    let samples = Samples::one("a.tr", "0 2 9 1 2\n");
    for (option, reported) in [("mean", Some(seconds(9.0))), ("exact", Some(seconds(1.5))), ("none", None)] {
        let workload = samples.read("hawk", "a.tr", &format!("expected={option}")).unwrap();
        assert_eq!(workload.jobs[0].spec.stages[0].expected, reported, "{option}");
    }
}

#[test]
fn expected_run_times_and_demands_may_be_wrong_by_a_factor() {
    let samples = Samples::one("a.tr", "0 2 9 1 2\n");
    let stage = |option: &str| {
        let workload = samples.read("hawk", "a.tr", &format!("demand=2,1GiB,network-in=10 {option}")).unwrap();
        let (stage, times) = (&workload.jobs[0].spec.stages[0], &workload.jobs[0].run_times[0]);
        let asked = stage.resources.basic.0;
        (stage.expected.unwrap(), [asked[0], asked[1], asked[4]], times.of(1))
    };
    let true_one = (seconds(9.0), [2_000, 1_024, 10], seconds(2.0));
    assert_eq!(stage(""), true_one);
    assert_eq!(stage("expected-error=1.5"), (seconds(13.5), true_one.1, true_one.2));
    assert_eq!(stage("demand-scale=2"), (true_one.0, [4_000, 2_048, 20], true_one.2));
    assert_eq!(stage("demand-error=1.5"), (true_one.0, [3_000, 1_536, 15], true_one.2), "resources are wasted");
    assert_eq!(
        stage("demand-error=0.5"),
        (true_one.0, [1_000, 512, 5], seconds(4.0)),
        "half the resources, twice the time"
    );
    let drawn = stage("expected-error=uniform:0.5-1.5").0;
    assert!(drawn != true_one.0 && drawn >= seconds(4.5) && drawn <= seconds(13.5), "{drawn}");
    assert!(samples.read("hawk", "a.tr", "demand-error=0").is_err());
}

#[test]
fn invalid_counts_are_refused() {
    for option in ["tasks=0", "tasks=uniform:0-3", "layers=0.5", "width=0", "tasks=1e9"] {
        let error = try_read("synthetic:layered", option).unwrap_err();
        assert!(error.problem.ends_with("is not a valid count"), "{error}");
        assert!(error.remedy.starts_with("write amounts from 1 to 20000000"), "{error}");
    }
}

#[test]
fn times_of_more_than_30_years_are_refused_before_and_after_scaling() {
    let samples = Samples::one("a.tr", "0 1 4 4\n900 1 800000 800000\n");
    let workload = samples.read("hawk", "a.tr", "time-scale=10000").unwrap();
    assert_eq!((workload.jobs.len(), workload.malformed.count), (1, 1));
    assert!(workload.malformed.first[0].problem.ends_with("which is more than 30 years"));
    let drawn = try_read("synthetic", "run-time=lognormal:1s:40").unwrap_err();
    assert!(drawn.problem.ends_with("which is more than 30 years"), "{drawn}");
    let late = samples.read("hawk", "a.tr", "arrival-scale=100000000").unwrap_err();
    assert!(late.problem.contains("the last job arrives after") && late.remedy.contains("arrival-scale"), "{late}");
    samples.add("a.toml", "command = 'true'\n");
    let file = samples.read("job", "a.toml", "run-time=400000h").unwrap_err();
    assert!(file.problem.contains("a.toml: a task takes"), "{file}");
}

#[test]
fn stages_may_be_near_drawn_nodes() {
    let workload = try_read("synthetic:layered", "jobs=50 near=3 near-of=5").unwrap();
    let mut seen = [0; 5];
    for stage in workload.jobs.iter().flat_map(|job| &job.spec.stages) {
        assert_eq!(stage.near.len(), 3);
        assert!(stage.near.is_sorted_by(|left, right| left < right), "no node twice: {:?}", stage.near);
        stage.near.iter().for_each(|name| seen[name.strip_prefix("node-").unwrap().parse::<usize>().unwrap()] += 1);
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    assert!(try_read("synthetic", "near=2").unwrap_err().remedy.contains("near-of"));
}

#[test]
fn stages_without_demand_are_counted() {
    let line = |extra: &str| format!(r#"{{"name":"j","stages":[{{"name":"s","tasks":1,"run_times_us":1{extra}}}]}}"#);
    let text = format!("{}\n{}\n{}\n", line(""), line(r#","resources":{"cpu":5}"#), line(""));
    let workload = Samples::one("a.jsonl", text).read("job", "a.jsonl", "").unwrap();
    assert!(has_note(&workload, "demands are not in the trace for 2 of 3 stages: one core"), "{:?}", workload.notes);
}

#[test]
fn the_input_of_tasks_is_filled_in_from_the_mean_run_time_of_their_stage() {
    let stage = |extra: &str| format!(r#"{{"name":"s","tasks":2,"run_times_us":[1000000,3000000]{extra}}}"#);
    let text = format!("{{\"name\":\"j\",\"stages\":[{},{}]}}\n", stage(""), stage(r#","after":[0]"#));
    let samples = Samples::one("a.jsonl", text);
    let sizes = |options: &str| {
        let workload = samples.read("job", "a.jsonl", options).unwrap();
        let sizes: Vec<Vec<u32>> = workload.jobs[0].spec.stages.iter().map(|stage| stage.input_kib.clone()).collect();
        (sizes, workload)
    };
    assert!(sizes("").0.iter().all(Vec::is_empty));
    // 2 s at 5.12 MB per second. With `time-scale=10`, 20 s.
    let (found, workload) = sizes("input=5.12");
    assert_eq!(found, [[10_000, 10_000], [10_000, 10_000]]);
    assert!(
        has_note(&workload, "what tasks read is not in the trace: 5.12 MB for each second"),
        "{:?}",
        workload.notes
    );
    assert_eq!(sizes("input=5.12 time-scale=10").0[0], [100_000, 100_000]);
    for wrong in ["input=0", "input=-1", "input=much"] {
        assert!(samples.read("job", "a.jsonl", wrong).unwrap_err().problem.contains("`input`"), "{wrong}");
    }
}

#[test]
fn every_format_and_option_is_documented() {
    let page = include_str!("../../../../docs/workloads.md");
    for format in FORMATS {
        assert!(page.contains(&format!("`{}`", format.name)), "{} is not in docs/workloads.md", format.name);
    }
    for key in NODE_KEYS {
        assert!(page.contains(&format!("`{}", key.name)), "{} is not in docs/workloads.md", key.name);
    }
    for key in COMMON_KEYS {
        assert!(page.contains(&format!("`{}=", key.name)), "{} is not in docs/workloads.md", key.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arrivals_are_in_order_and_all_times_are_scaled(
        seed in 0u64..1_000,
        arrival in proptest::sample::select(vec!["trace", "at-once", "poisson:20s", "bursts:1m:3", "diurnal:10s:1.5"]),
    ) {
        let samples = Samples::one("a.tr", lines(20));
        let read = |scale: &str| {
            samples.read("hawk", "a.tr", &format!("seed={seed} arrival={arrival} time-scale={scale}")).unwrap()
        };
        let (plain, doubled) = (read("1"), read("2"));
        prop_assert!(plain.jobs.is_sorted_by_key(|job| job.arrival));
        for (job, scaled) in plain.jobs.iter().zip(&doubled.jobs) {
            prop_assert_eq!(job.arrival + job.arrival, scaled.arrival);
            prop_assert_eq!(job.run_times[0].of(1) + job.run_times[0].of(1), scaled.run_times[0].of(1));
        }
    }
}
