//! Logs and plans of queries: Hive, Shark, Spark.

use crate::support::{Samples, each, has_note, public, seconds, shape, try_read};
use amalgam_workload::trace::RunTimes;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

const PLAN: &str = "\
STAGE PLANS:
  Stage: Stage-1
    Tez
#### A masked pattern was here ####
      Edges:
        Map 1 <- Map 4 (BROADCAST_EDGE), Union 3 (CONTAINS)
        Reducer 2 <- Map 1 (SIMPLE_EDGE), Union 3 (CONTAINS)
        Reducer 5 <- Union 3 (SIMPLE_EDGE)
#### A masked pattern was here ####
      Vertices:
        Map 1 
            Map Operator Tree:
                TableScan
                  alias: sales
                  Statistics: Num rows: 9 Data size: 268435456 Basic stats: COMPLETE Column stats: COMPLETE
                  Select Operator
                    Statistics: Num rows: 9 Data size: 777 Basic stats: COMPLETE Column stats: COMPLETE
                    Reduce Output Operator
                      Statistics: Num rows: 9 Data size: 52428800 Basic stats: COMPLETE Column stats: COMPLETE
        Map 4 
            Map Operator Tree:
                TableScan
                  Statistics: Num rows: 9 Data size: 52428800 Basic stats: COMPLETE Column stats: COMPLETE
        Reducer 2 
            Reduce Operator Tree:
              Reduce Output Operator
                Statistics: Num rows: 9 Data size: 90000000000000 Basic stats: COMPLETE Column stats: COMPLETE
        Reducer 5 
            Reduce Operator Tree:
              File Output Operator
                Statistics: Num rows: 9 Data size: 0 Basic stats: COMPLETE Column stats: COMPLETE
        Union 3 
            Vertex: Union 3

  Stage: Stage-0
    Fetch Operator
      limit: 100
";

#[test]
fn vertices_of_a_plan_are_stages_with_run_times_from_their_bytes() {
    let samples = Samples::one("query7.q.out", PLAN);
    let workload = samples.read("hive-explain", "", "most-bytes=1GiB reduce-input=256MiB").unwrap();
    let job = &workload.jobs[0];
    assert_eq!(job.spec.name, "query7");
    // Both members of the union are before its reader, and Map 1 is before Reducer 2. Reducer 5 reads 1049 MiB.
    assert_eq!(shape(job), ["Map 4(1)<-", "Map 1(2)<-Map 4", "Reducer 2(1)<-Map 1", "Reducer 5(5)<-Map 1,Reducer 2"]);
    let run_time = |stage: usize| job.run_times[stage].of(0).as_secs_f64();
    assert_eq!(job.run_times[0], RunTimes::Same(seconds(2.0)), "50 MiB at 50 MiB/s and one second");
    assert_eq!(job.run_times[1], RunTimes::Same(seconds(1.0 + 3.06)), "256 MiB read and 50 written, by two");
    assert!((run_time(2) - (1.0 + 1049.0 / 50.0)).abs() < 1e-6, "half of Map 1's output read, 1 GiB written");
    assert!(has_note(&workload, "1 estimates above 1GiB were cut"), "{:?}", workload.notes);
}

#[test]
fn a_smaller_database_has_fewer_tasks() {
    let samples = Samples::one("query7.q.out", PLAN);
    let workload = samples.read("hive-explain", "query7.q.out", "data-scale=0.01 most-bytes=1GiB").unwrap();
    assert_eq!(workload.task_count(), 4);
}

#[test]
fn a_plan_without_vertices_or_with_an_unknown_edge_is_malformed() {
    let samples = Samples::one("a.q.out", "Plan optimized by CBO.\n");
    samples.add("b.q.out", PLAN.replace("Map 4 (BROADCAST", "Map 9 (BROADCAST"));
    samples.add("c.q.out", PLAN);
    let workload = samples.read("hive-explain", "", "").unwrap();
    let reported: Vec<String> = workload.malformed.first.iter().map(ToString::to_string).collect();
    assert!(reported[0].contains("a.q.out:1: the file has no vertices"), "{reported:?}");
    assert!(reported[1].contains("b.q.out:1: Map 1 reads from Map 9, which the plan does not have"), "{reported:?}");
    assert_eq!(workload.jobs.len(), 1);
}

#[test]
fn stages_of_shark_have_the_run_times_of_successful_tasks() {
    let task = |stage: u32, tid: u32, status: &str, finish: u32| {
        format!(
            "2014/02/07 01:50:43: TASK_TYPE=RESULT_TASK STATUS={status} TID={tid} STAGE_ID={stage} START_TIME=1000 \
             FINISH_TIME={finish} EXECUTOR_ID=2 HOST=x\n"
        )
    };
    let text = [
        "SELECT * FROM x\nSTAGE_ID=4 RDD_DEP=(26,25) STAGE_DEP=(5,1)(6,2)\nSTAGE_ID=5 RDD_DEP=(2) STAGE_DEP=\n",
        "STAGE_ID=6 RDD_DEP=(2) STAGE_DEP=\nSTAGE_ID=4 RESULT_STAGE\n",
        &task(5, 11, "SUCCESS", 2_500),
        &task(5, 10, "SUCCESS", 3_000),
        &task(5, 12, "FAILED", 9_000),
        &task(4, 13, "SUCCESS", 1_100),
        &task(4, 14, "SUCCESS", 900),
    ];
    let workload = Samples::one("2a_job_log", text.concat()).read("bdb", "", "").unwrap();
    let job = &workload.jobs[0];
    assert_eq!(shape(job), ["stage-5(2)<-", "stage-4(1)<-stage-5"], "stage 6 was cached");
    assert_eq!(job.run_times[..], [each(&[2.0, 1.5]), each(&[0.1])], "by task id");
    assert!(has_note(&workload, "1 attempts that failed"));
    assert_eq!(workload.malformed.first[0].problem, "the task ended before it started");
}

fn spark() -> Vec<String> {
    let start = |job: u32, submitted: u32, stages: &str| {
        format!(
            "{{\"Event\":\"SparkListenerJobStart\",\"Job ID\":{job},\"Submission Time\":{submitted},\
             \"Stage Infos\":[{stages}]}}"
        )
    };
    let task = |stage: u32, index: u32, reason: &str, launched: u32, finished: u32| {
        format!(
            "{{\"Event\":\"SparkListenerTaskEnd\",\"Stage ID\":{stage},\"Task End Reason\":{{\"Reason\":\"{reason}\"}},\
             \"Task Info\":{{\"Index\":{index},\"Launch Time\":{launched},\"Finish Time\":{finished}}}}}"
        )
    };
    vec![
        r#"{"Event":"SparkListenerLogStart","Spark Version":"3.1.1"}"#.to_owned(),
        start(0, 5_000, r#"{"Stage ID":1,"Parent IDs":[0]},{"Stage ID":0,"Parent IDs":[]}"#),
        task(0, 1, "Success", 5_000, 6_000),
        task(0, 0, "ExceptionFailure", 5_000, 5_500),
        task(0, 0, "Success", 5_500, 7_500),
        task(1, 0, "Success", 8_000, 8_250),
        start(1, 9_000, r#"{"Stage ID":1,"Parent IDs":[0]},{"Stage ID":2,"Parent IDs":[1]}"#),
        task(2, 0, "Success", 9_000, 9_100),
        task(7, 0, "Success", 9_000, 9_100),
        "oops".to_owned(),
        start(2, 9_500, ""),
    ]
}

#[test]
fn jobs_of_spark_have_the_stages_that_ran_in_them() {
    let workload = Samples::one("app_eventlog", spark().join("\n")).read("spark-events", "", "").unwrap();
    let [first, second] = &workload.jobs[..] else { panic!("two jobs with tasks") };
    assert_eq!(shape(first), ["stage-0(2)<-", "stage-1(1)<-stage-0"]);
    assert_eq!(first.run_times[..], [each(&[2.0, 1.0]), each(&[0.25])], "the successful attempt of each index");
    assert_eq!((shape(second), second.arrival), (vec!["stage-2(1)<-".to_owned()], seconds(4.0)));
    let reported: Vec<String> =
        workload.malformed.first.iter().map(|line| format!("{}: {}", line.line, line.problem)).collect();
    assert_eq!(reported, ["9: no job has started stage 7", "10: the line is not an event"]);
    assert!(has_note(&workload, "1 attempts that did not") && has_note(&workload, "1 jobs without a successful task"));
}

#[test]
fn a_line_with_an_unknown_event_is_malformed() {
    let mut lines = spark();
    let damaged = lines[3].replace("TaskEnd", "TskEnd");
    lines.extend([damaged, r#"{"Evnt":"SparkListenerJobEnd"}"#.to_owned()]);
    lines.push(r#"{"Event":"org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd"}"#.to_owned());
    let workload = Samples::one("app_eventlog", lines.join("\n")).read("spark-events", "", "").unwrap();
    let reported: Vec<&str> = workload.malformed.first.iter().map(|line| line.problem.as_str()).collect();
    assert_eq!(reported[2..], ["`SparkListenerTskEnd` is not an event of Spark", "the line is not an event"]);
}

#[test]
fn zstd_files_are_read_frame_by_frame_and_a_truncated_one_is_an_error() {
    let compress = |lines: &[String]| {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
    };
    let (first, second) = (compress(&spark()[..4]), compress(&spark()[4..]));
    // A frame between them that has to be skipped, with three bytes.
    let skippable = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    let whole = [&first[..], &skippable, &second].concat();
    let samples = Samples::one("a_eventlog.zst", &whole);
    assert_eq!(samples.read("spark-events", "", "").unwrap().jobs.len(), 2);
    samples.add("a_eventlog.zst", &whole[..whole.len() - second.len() / 2]);
    let error = samples.read("spark-events", "", "").unwrap_err();
    assert!(error.problem.ends_with("a_eventlog.zst: the compressed data ends too early"), "{error}");
}

#[test]
fn the_public_logs_have_their_known_sizes() {
    for (workload, jobs, tasks, malformed) in [
        ("bdb:dag/bdb_shark_joblogs", 3, 2_197 + 2 * 2_459, 0),
        ("spark-events:dag/spark_eventlogs/dsAndDf_eventlog.zstd", 4, 651, 0),
        ("spark-events:dag/spark_eventlogs/nds_q72_dataproc_2_2.zstd", 49, 13_504, 0),
        // Five of its 80 jobs have no start in the log.
        ("spark-events:dag/spark_eventlogs/tasks_executors_fail_compressed_eventlog.zstd", 75, 8_251, 299),
    ] {
        let (format, path) = workload.split_once(':').unwrap();
        let Some(path) = public(path) else { return };
        let workload = try_read(&format!("{format}:{path}"), "").unwrap();
        assert_eq!(
            (workload.jobs.len(), workload.task_count(), workload.malformed.count),
            (jobs, tasks, malformed),
            "{path}"
        );
    }
}

#[test]
fn the_plans_of_tpcds_are_dags() {
    let Some(path) = public("dag/tpcds_hive_tez_30tb") else { return };
    let workload = try_read(&format!("hive-explain:{path}"), "").unwrap();
    assert_eq!((workload.jobs.len(), workload.malformed.count), (64, 1), "query 14 is printed in a short form");
    let stages: usize = workload.jobs.iter().map(|job| job.spec.stages.len()).sum();
    assert_eq!(stages, 322 + 369, "maps and reducers");
}
