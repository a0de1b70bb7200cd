//! Damaged files: a reader never panics, but returns jobs, malformed lines or an error.

use crate::support::Samples;
use proptest::prelude::*;

const SAMPLES: [(&str, &str, &str); 11] = [
    ("hawk", "a.tr", "10.5 2 1.5 1 2\n12 1 0.25 0.2657\n"),
    ("alibaba2017", "a.csv", "100,160,3,4,15740,Terminated,50,0.5\n50,51,9,1,1,Terminated,100,0.25\n"),
    ("alibaba2018", "a.csv", "R3_1_2,1,j_1,1,Terminated,20,25,100,0.5\nM1,4,j_1,1,Terminated,10,20,50,0.25\n"),
    ("google2011", "a.csv", "602000000,,2,0,u2,0,n,l\n603500000,,2,1,u2,0,n,l\n610000000,,2,4,u2,0,n,l\n"),
    ("openb", "a.csv", "p0,12000,16384,1,460,,LS,Running,5,105,25\np1,6000,12288,8,1000,,BE,Failed,6,8,7\n"),
    ("swf", "a.swf", "; Version\n1 0 -1 1451 128 -1 2048 -1 2000 -1 1 7 1 -1 -1 -1 -1 -1\n"),
    ("swim", "a.tsv", "job0\t49\t49\t268435456\t104857600\t52428800\n"),
    (
        "rumen",
        "a.json",
        r#"{"jobID":"j","submitTime":5,"mapTasks":[{"attempts":[{"result":"SUCCESS","startTime":1,"finishTime":4}]}]}"#,
    ),
    (
        "wfformat",
        "a.json",
        r#"{"name":"m","schemaVersion":"1.4","workflow":{"tasks":[{"name":"b","runtimeInSeconds":1,"parents":["a"]},
        {"name":"a","runtimeInSeconds":3,"memoryInBytes":7}]}}"#,
    ),
    (
        "job",
        "a.jsonl",
        r#"{"name":"a","arrival_us":5,"stages":[{"name":"s","tasks":2,"after":[],"run_times_us":[3,4]},
        {"name":"t","tasks":1,"after":[0],"run_times_us":3,"resources":{"cpu":5},"constraints":["c1=1"]}]}"#,
    ),
    (
        "hive-explain",
        "a.q.out",
        "    Tez\n      Edges:\n        Map 1 <- Map 4 (BROADCAST_EDGE), Union 3 (CONTAINS)\n      Vertices:\n        Map 1 \n\
                TableScan\n                  Statistics: Num rows: 9 Data size: 26843 Basic\n        Map 4 \n",
    ),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_do_not_panic(
        sample in 0..SAMPLES.len(),
        at in any::<prop::sample::Index>(),
        removed in 0usize..12,
        inserted in prop_oneof!["[-0-9.,:eE{}\"\\[\\] \n]{0,12}", "99999999999999999999", "-1", "NaN", "\\PC{0,4}"],
    ) {
        let (format, name, text) = SAMPLES[sample];
        let mut bytes = text.as_bytes().to_vec();
        let start = at.index(bytes.len());
        let end = (start + removed).min(bytes.len());
        bytes.splice(start..end, inserted.bytes());
        let samples = Samples::one(name, bytes);
        if let Ok(workload) = samples.read(format, name, "") {
            let shape = workload.shape();
            prop_assert!(shape.jobs > 0 && shape.tasks > 0);
        }
    }
}
