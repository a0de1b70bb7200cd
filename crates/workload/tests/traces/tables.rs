//! Formats that are tables or logs of clusters: Alibaba, Google, SWF, SWIM and Rumen.

use crate::support::{Samples, each, has_note, public, seconds, shape, try_read};
use amalgam_core::vocabulary::Resources;
use amalgam_core::vocabulary::resources::GPU;
use amalgam_workload::trace::{RunTimes, Workload};

fn reported(workload: &Workload) -> Vec<String> {
    workload.malformed.first.iter().map(|line| format!("{}: {}", line.line, line.problem)).collect()
}

#[test]
fn rows_of_alibaba_2017_with_the_same_job_become_one_job() {
    let text = "task_create_time, task_end_time, job_id, task_id,n, status, cpu,mem\n\
                100,160,3,4,15740,Terminated,50,0.5\n50,51,9,1,1,Terminated,100,0.25\n\
                90,93,3,5,2,Terminated,,\n6036,6046,4,7,393,Waiting,,\n7,6,9,2,1,Terminated,100,0.1\n\
                7,8,9,2,1,Terminated,100,7\n7,8,9\n";
    let workload = Samples::one("t.csv", text).read("alibaba2017", "t.csv", "machine-memory=100GiB").unwrap();
    let [first, second] = &workload.jobs[..] else { panic!("two jobs") };
    assert_eq!((first.spec.name.as_str(), second.spec.name.as_str()), ("9", "3"), "in order of arrival");
    assert_eq!(second.arrival, seconds(40.0), "the earliest start of its rows");
    assert_eq!(shape(second), ["4(15740)<-", "5(2)<-"]);
    assert_eq!(second.run_times[0], RunTimes::Same(seconds(60.0)));
    assert_eq!(second.spec.stages[0].resources.basic, Resources::new(500, 50 * 1024));
    assert_eq!(second.spec.stages[1].resources.basic, Resources::new(1_000, 0), "demand=unit if the columns are empty");
    assert!(has_note(&workload, "1 rows of tasks that are Waiting"), "{:?}", workload.notes);
    assert_eq!(
        reported(&workload),
        [
            "6: the end is 1.00s before the start",
            "7: the memory `7` is more than one machine's",
            "8: the line has 3 fields, not 8"
        ]
    );
}

#[test]
fn task_names_of_alibaba_2018_define_the_dag() {
    let text = "R3_1_2,1,j_1,1,Terminated,20,25,100,0.5\nM1,4,j_1,1,Terminated,10,20,50,0.25\n\
                M2,2,j_1,1,Terminated,11,20,50,0.25\nJ2_1_Stg8,1,j_2,1,Terminated,30,31,100,0.5\n\
                task_abc,7,j_3,1,Terminated,40,41,100,0.5\n";
    let samples = Samples::one("t.csv", text);
    let workload = samples.read("alibaba2018", "t.csv", "").unwrap();
    assert_eq!(shape(&workload.jobs[0]), ["M1(4)<-", "M2(2)<-", "R3_1_2(1)<-M1,M2"]);
    assert_eq!(
        workload.jobs[0].spec.stages[0].resources.basic,
        Resources::new(500, 984),
        "0.25 % of 384 GiB, rounded up"
    );
    assert!(has_note(&workload, "1 of 3 jobs depend on tasks that the file does not have"));
    assert_eq!(samples.read("alibaba2018", "t.csv", "complete=true").unwrap().jobs.len(), 2);
}

#[test]
fn jobs_of_google_run_from_their_last_scheduling_to_their_end() {
    let text = "600000000,,1,0,u1,2,n,l\n601000000,,1,1,u1,2,n,l\n602000000,,2,0,u2,0,n,l\n602500000,,1,3,u1,2,n,l\n\
                603000000,,3,4,u3,0,n,l\n603500000,,2,1,u2,0,n,l\n610000000,,2,4,u2,0,n,l\n611000000,,4,0,u,0,n,l\n\
                611000000,,4,9,u,0,n,l\n";
    let samples = Samples::one("part.csv", text);
    let workload = samples.read("google2011", "part.csv", "tasks=3").unwrap();
    let job = &workload.jobs[0];
    assert_eq!((workload.jobs.len(), job.spec.name.as_str(), job.spec.user.as_str()), (1, "job-2", "u2"));
    assert_eq!(job.run_times[..], [RunTimes::Same(seconds(6.5))]);
    assert_eq!(job.spec.task_count(), 3);
    assert!(has_note(&workload, "2 ends of jobs"), "one failed, one without a start: {:?}", workload.notes);
    assert_eq!(reported(&workload), ["9: the event `9` is not one of 0 to 8"]);
    assert_eq!(samples.read("google2011", "part.csv", "ends=any").unwrap().jobs.len(), 2);
}

#[test]
fn processors_of_swf_are_tasks_or_cores() {
    let text = "; Version: 2.2\n 1 0 -1 1451 128 -1 2048 -1 2000 -1 1 7 1 -1 -1 -1 -1 -1\n\
                2 5 -1 -1 1 -1 -1 -1 -1 -1 1 7 1 -1 -1 -1 -1 -1\n\
                3 5 -1 10 -1 -1 -1 4 -1 -1 1 7 1 -1 -1 -1 -1 -1\n1 2 3\n";
    let samples = Samples::one("a.swf", text);
    let workload = samples.read("swf", "a.swf", "").unwrap();
    let [first, second] = &workload.jobs[..] else { panic!("two jobs") };
    assert_eq!(
        (shape(first), shape(second)),
        (vec!["processors(128)<-".to_owned()], vec!["processors(4)<-".to_owned()])
    );
    assert_eq!(first.spec.stages[0].resources.basic, Resources::new(1_000, 2));
    assert_eq!(first.spec.stages[0].expected, Some(seconds(2_000.0)), "the requested time");
    assert_eq!(second.spec.stages[0].expected, Some(seconds(10.0)));
    assert_eq!(reported(&workload), ["3: the run time is not known", "5: the line has 3 columns, not 18"]);
    let gangs = samples.read("swf", "a.swf", "processors=gang").unwrap();
    assert!(gangs.jobs[0].spec.stages[0].gang && !first.spec.stages[0].gang);
    let (mut converted, samples_of_gangs) = (Vec::new(), Samples::new());
    gangs.write_lines(&mut converted).unwrap();
    samples_of_gangs.add("a.jsonl", converted);
    assert_eq!(samples_of_gangs.read("job", "a.jsonl", "").unwrap().jobs, gangs.jobs);
    let cores = samples.read("swf", "a.swf", "processors=cores").unwrap();
    assert_eq!(cores.jobs[0].spec.stages[0].resources.basic, Resources::new(128_000, 256));
}

#[test]
fn bytes_of_swim_become_tasks_and_run_times() {
    let text = "job0\t49\t49\t268435456\t104857600\t52428800\njob1\t101\t52\t0\t0\t52428800\njob2\t1\t1\t-5\t0\t0\n";
    let workload = Samples::one("a.tsv", text).read("swim", "a.tsv", "").unwrap();
    let [both, only_maps] = &workload.jobs[..] else { panic!("two jobs") };
    assert_eq!(shape(both), ["map(2)<-", "reduce(1)<-map"]);
    // 256 MiB read and 100 MiB written by two maps at 50 MiB/s; 150 MiB by one reduce; one second for each task.
    assert_eq!(both.run_times[..], [RunTimes::Same(seconds(4.56)), RunTimes::Same(seconds(4.0))]);
    assert_eq!(shape(only_maps), ["map(1)<-"]);
    assert_eq!(only_maps.run_times[..], [RunTimes::Same(seconds(2.0))]);
    assert_eq!(reported(&workload), ["3: the map input `-5` is not an amount"]);
    let workload = Samples::one("a.tsv", text).read("swim", "a.tsv", "most-written=10MiB").unwrap();
    assert_eq!(shape(&workload.jobs[0]), ["map(10)<-", "reduce(5)<-map"]);
}

#[test]
fn pods_run_from_their_scheduling_to_their_deletion() {
    let text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,\
                scheduled_time\n\
                p0,12000,16384,1,460,,LS,Running,5,105,25\np1,6000,12288,8,1000,,BE,Failed,6,8,7\n\
                p2,1,1,0,0,,BE,Pending,6,8,\np3,1,1,0,0,,BE,Running,6,8,9\n";
    let samples = Samples::one("pods.csv", text);
    let workload = samples.read("openb", "pods.csv", "").unwrap();
    assert_eq!(workload.jobs[0].run_times[..], [RunTimes::Same(seconds(80.0))]);
    assert_eq!(workload.jobs[0].spec.stages[0].resources.basic, Resources::new(12_000, 16_384).with(GPU, 1_000));
    assert_eq!(workload.jobs[1].arrival, seconds(1.0));
    assert!(has_note(&workload, "1 pods that were never scheduled") && has_note(&workload, "1 pods that request less"));
    assert_eq!(reported(&workload), ["5: the end is 1.00s before the start"]);
    let shared = samples.read("openb", "pods.csv", "gpu-unit=thousandths").unwrap();
    let custom = |job: usize| shared.jobs[job].spec.stages[0].resources.custom.clone();
    assert_eq!((custom(0), custom(1)), (vec![("gpu-milli".to_owned(), 460)], vec![("gpu-milli".to_owned(), 8_000)]));
}

#[test]
fn tasks_of_rumen_run_as_long_as_their_successful_attempt() {
    let attempt = |result: &str, start: u64, end: u64| {
        format!(r#"{{"attempts":[{{"result":"{result}","startTime":{start},"finishTime":{end}}}]}}"#)
    };
    let maps =
        [attempt("SUCCESS", 1_000, 4_000), attempt("KILLED", 0, 9_000), attempt("SUCCESS", 1_000, 2_500)].join(",");
    let reduces = attempt("SUCCESS", 2_000, 9_000);
    let first = format!(
        r#"{{"jobID":"j1","user":"ann","submitTime":500,"jobMapMB":200,"mapTasks":[{maps}],"reduceTasks":[{reduces}]}}"#
    );
    let empty = r#"{"jobID":"j2","submitTime":1500}"#;
    let workload = Samples::one("a.json", format!("{first}\n{empty}\n{{\"x\"")).read("rumen", "a.json", "").unwrap();
    let job = &workload.jobs[0];
    assert_eq!(shape(job), ["map(3)<-", "reduce(1)<-map"]);
    assert_eq!(job.run_times[..], [each(&[3.0, 3.0, 1.5]), each(&[7.0])], "the median for the one that failed");
    assert_eq!(job.spec.stages[0].resources.basic, Resources::new(1_000, 200));
    let reported = reported(&workload);
    assert_eq!(reported[0], "2: the job j2 has no tasks");
    assert!(reported[1].starts_with("3: EOF"), "{reported:?}");
}

#[test]
fn the_public_tables_have_their_known_sizes() {
    for (workload, jobs, tasks, malformed) in [
        // Of 67,013 terminated rows 167 started before the trace, at -60, and one ends before it starts.
        ("alibaba2017:flat/alibaba2017_batch_task/batch_task.csv.gz", 11_625, 10_134_850, 168),
        ("google2011:flat/google2011_job_events", 4_256, 4_256, 0),
        ("openb:flat/alibaba_gpu2023/openb_pod_list_default.csv.gz", 7_255, 7_255, 0),
        ("swf:flat/pwa_swf", 18_239, 309_953, 0),
        ("rumen:flat/hadoop_rumen", 3, 196, 0),
    ] {
        let (format, path) = workload.split_once(':').unwrap();
        let Some(path) = public(path) else { return };
        let workload = try_read(&format!("{format}:{path}"), "").unwrap();
        assert_eq!(
            (workload.jobs.len(), workload.task_count(), workload.malformed.count),
            (jobs, tasks, malformed),
            "{format}"
        );
    }
}

#[test]
fn the_samples_of_facebook_have_their_known_sizes() {
    for (name, jobs) in
        [("FB-2009_samples_24_times_1hr_0.tsv.gz", 5_894), ("FB-2010_samples_24_times_1hr_0.tsv.gz", 24_442)]
    {
        let Some(path) = public(&format!("flat/swim/{name}")) else { return };
        let workload = try_read(&format!("swim:{path}"), "").unwrap();
        assert_eq!((workload.jobs.len(), workload.malformed.count), (jobs, 0));
        let map_only = workload.jobs.iter().filter(|job| job.spec.stages.len() == 1).count();
        assert!(map_only > jobs / 4);
    }
}

#[test]
fn most_jobs_of_alibaba_2018_have_missing_dependencies() {
    let Some(path) = public("dag/alibaba2018_rows/sorted_batch_task.csv.gz") else { return };
    let workload = try_read(&format!("alibaba2018:{path}"), "").unwrap();
    let stages: usize = workload.jobs.iter().map(|job| job.spec.stages.len()).sum();
    assert_eq!((workload.jobs.len(), stages), (6_294, 17_502), "the terminated rows");
    assert!(
        has_note(&workload, "6285 of 6294 jobs depend on tasks that the file does not have"),
        "{:?}",
        workload.notes
    );
    assert_eq!(try_read(&format!("alibaba2018:{path}"), "complete=true").unwrap().jobs.len(), 9);
}

#[test]
fn only_the_pods_are_read_from_a_folder_with_both_tables_of_the_gpu_trace() {
    let samples = Samples::one("in/openb_node_list.csv", "sn,cpu_milli,memory_mib,gpu,model\na,32000,262144,0,\n");
    samples.add("in/openb_pod_list.csv", "name,cpu_milli\np0,12000,16384,1,460,,LS,Running,5,105,25\n");
    let workload = samples.read("openb", "in", "").unwrap();
    assert_eq!((workload.jobs.len(), workload.malformed.count), (1, 0), "{:?}", workload.malformed);
    assert!(has_note(&workload, "openb_node_list.csv lists nodes and no pods: it was left out"));
    let error = samples.read("openb", "in/openb_node_list.csv", "").unwrap_err();
    assert_eq!(error.remedy, "use it with `--nodes`, and name a file of pods here");
}
