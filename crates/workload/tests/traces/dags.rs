//! Formats of DAGs as arrays.

use crate::support::{Samples, each, has_note, public, seconds, shape, try_read};
use amalgam_workload::trace::RunTimes;

/// A NumPy file of little-endian doubles.
fn npy(rows: usize, columns: usize, values: &[f64]) -> Vec<u8> {
    let header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({rows}, {columns}), }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

/// A pickled array with the objects that the opcodes `content` push.
fn pickle(content: &[u8]) -> Vec<u8> {
    let header = "{'descr': '|O', 'fortran_order': False, 'shape': (), }\n";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01)");
    bytes.extend(b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R\x89]");
    bytes.extend(content);
    bytes.extend(b"atb.");
    bytes
}

/// `{2: [first..], 10: [first + 1..]}` as opcodes, in thousands of milliseconds.
fn by_executors(seconds: &[u8]) -> Vec<u8> {
    let list = |extra: u8| -> Vec<u8> {
        let times = seconds.iter().flat_map(|time| {
            let [low, high] = (u16::from(time + extra) * 1_000).to_le_bytes();
            [b'M', low, high]
        });
        [b"](".to_vec(), times.collect(), b"e".to_vec()].concat()
    };
    [b"}(K\x02".to_vec(), list(0), b"K\x0a".to_vec(), list(1), b"u".to_vec()].concat()
}

fn tpch() -> Samples {
    let samples = Samples::one("2g/adj_mat_7.npy", npy(2, 2, &[0.0, 1.0, 0.0, 0.0]));
    let stage = |number: u8, first: &[u8], rest: &[u8], fresh: &[u8]| -> Vec<u8> {
        let mut bytes = vec![b'K', number];
        bytes.extend(b"}(");
        for (name, times) in [("first_wave", first), ("rest_wave", rest), ("fresh_durations", fresh)] {
            bytes.extend([b'U', name.len() as u8]);
            bytes.extend(name.bytes());
            bytes.extend(by_executors(times));
        }
        bytes.extend(b"u");
        bytes
    };
    let both = [stage(0, &[5, 4], &[2], &[5]), stage(1, &[3], &[], &[])].concat();
    samples.add("2g/task_duration_7.npy", pickle(&[b"}(".to_vec(), both, b"u".to_vec()].concat()));
    samples
}

#[test]
fn a_tpch_query_has_a_task_for_each_measured_task() {
    let workload = tpch().read("tpch", "2g", "").unwrap();
    let job = &workload.jobs[0];
    assert_eq!(job.spec.name, "tpch-2g-q7");
    assert_eq!(shape(job), ["stage-0(3)<-", "stage-1(1)<-stage-0"]);
    assert_eq!(job.run_times[..], [each(&[5.0, 4.0, 2.0]), each(&[3.0])]);
    assert!(has_note(&workload, "recorded, measured with 2 executors"));
}

#[test]
fn queries_are_repeated_if_the_limit_exceeds_their_number() {
    let read = |options: &str| tpch().read("tpch", "2g", options).unwrap();
    let (few, many) = (read("").jobs.len(), read("limit=40"));
    assert!(few < 40 && many.jobs.len() == 40, "{few} queries");
    assert!(many.notes.iter().any(|note| note.contains("with replacement")), "{:?}", many.notes);
    assert_eq!(read("limit=1").jobs.len(), 1);
}

#[test]
fn tpch_run_times_may_be_drawn_from_one_list_or_use_another_number_of_executors() {
    let read = |options: &str| tpch().read("tpch", "", options).unwrap().jobs[0].run_times.to_vec();
    assert_eq!(
        read("run-times=fresh"),
        [each(&[5.0, 5.0, 5.0]), each(&[3.0])],
        "the first wave if no run time was fresh"
    );
    assert_eq!(read("run-times=rest-wave executors=10"), [each(&[3.0, 3.0, 3.0]), each(&[4.0])]);
    assert_eq!(read("executors=5"), [each(&[6.0, 5.0, 3.0]), each(&[4.0])], "the next larger number");
}

#[test]
fn a_damaged_array_is_malformed_and_names_its_file() {
    let samples = tpch();
    samples.add("2g/adj_mat_8.npy", npy(2, 2, &[0.0, 1.0, 1.0, 0.0]));
    samples.add("2g/task_duration_8.npy", "no array");
    let workload = samples.read("tpch", "2g", "").unwrap();
    assert_eq!((workload.jobs.len(), workload.malformed.count), (1, 1));
    let reported = workload.malformed.first[0].to_string();
    assert!(reported.ends_with("task_duration_8.npy:8: the file is not an array of NumPy"), "{reported}");
}

#[test]
fn alibabas_arrays_may_be_a_folder_or_a_tar_file() {
    let files = [
        ("adj_mat_0.npy", npy(3, 3, &[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0])),
        ("ins_dur0.npy", npy(3, 2, &[2.0, 4.0, 1.0, 3.5, 100_000.0, 0.0])),
        ("adj_mat_1.npy", npy(2, 2, &[0.0, 1.0, 1.0, 0.0])),
        ("ins_dur1.npy", npy(2, 2, &[1.0, 1.0, 1.0, 1.0])),
        ("ins_dur2.npy", npy(1, 2, &[1.0, 1.0])),
        ("ins_dur3.npy", npy(1, 2, &[0.0, 1.0])),
        ("adj_mat_3.npy", npy(1, 1, &[0.0])),
    ];
    let samples = Samples::new();
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in &files {
        samples.add(&format!("folder/{name}"), bytes);
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_cksum();
        archive.append_data(&mut header, format!("x/{name}"), &bytes[..]).expect("memory");
    }
    let archive = archive.into_inner().expect("memory");
    samples.add("cut.tar", &archive[..archive.len() - 1_024 - 700]);
    let error = samples.read("alibaba-dag", "cut.tar", "").unwrap_err();
    assert!(error.remedy.contains("truncated"), "{error}");
    samples.add("all.tar", archive);
    for path in ["folder", "all.tar"] {
        let workload = samples.read("alibaba-dag", path, "").unwrap();
        let job = &workload.jobs[0];
        assert_eq!(shape(job), ["stage-1(1)<-", "stage-2(100000)<-", "stage-0(2)<-stage-1,stage-2"], "sorted");
        assert_eq!(job.run_times[0], RunTimes::Same(seconds(3.5)));
        let reported: Vec<&str> = workload.malformed.first.iter().map(|line| line.problem.as_str()).collect();
        assert_eq!(
            reported,
            [
                "the stages form a cycle: stage-0 -> stage-1 -> stage-0",
                "job 2 has no adjacency matrix",
                "stage 0 has 0 instances"
            ]
        );
    }
}

#[test]
fn the_tpch_queries_have_their_known_sizes() {
    for (size, tasks) in [("2g", 13_707), ("10g", 14_372), ("50g", 17_923), ("100g", 22_386)] {
        let Some(path) = public(&format!("dag/tpch_decima/{size}")) else { return };
        let workload = try_read(&format!("tpch:{path}"), "").unwrap();
        assert_eq!((workload.jobs.len(), workload.task_count()), (15, tasks), "{size}");
    }
}

#[test]
fn alibabas_dags_have_their_known_sizes() {
    let Some(path) = public("dag/alibaba2018_npy") else { return };
    let workload = try_read(&format!("alibaba-dag:{path}"), "").unwrap();
    let stages: usize = workload.jobs.iter().map(|job| job.spec.stages.len()).sum();
    let edges: usize = workload.jobs.iter().flat_map(|job| &job.spec.stages).map(|stage| stage.after.len()).sum();
    assert_eq!((workload.jobs.len(), stages, edges), (14_993, 55_741, 43_400));
    assert_eq!(workload.task_count(), 5_797_167);
    assert_eq!(workload.malformed.count, 7, "six jobs without a DAG, one without run times");
}
