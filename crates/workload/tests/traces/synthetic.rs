//! Generators.

use crate::support::{each, has_note, seconds, shape, try_read};
use amalgam_workload::trace::RunTimes;
use proptest::prelude::*;

#[test]
fn gridmix_draws_flat_jobs() {
    let workload = try_read("synthetic:gridmix", "jobs=50 tasks=uniform:2-3 run-time=5s arrival=every:2s").unwrap();
    assert_eq!(workload.jobs.len(), 50);
    assert_eq!(workload.jobs[49].arrival, seconds(98.0));
    for job in &workload.jobs {
        let tasks = job.spec.stages[0].tasks.len();
        assert!((2..=3).contains(&tasks));
        assert_eq!(job.run_times[..], [each(&vec![5.0; tasks as usize])]);
    }
}

#[test]
fn a_run_time_drawn_per_job_is_stored_once() {
    let workload = try_read("synthetic", "jobs=1 tasks=1000000 drawn-per=job").unwrap();
    assert_eq!(workload.task_count(), 1_000_000);
    assert!(matches!(workload.jobs[0].run_times[0], RunTimes::Same(_)));
}

#[test]
fn stages_depend_on_stages_of_the_layer_before() {
    let workload = try_read("synthetic:layered", "jobs=2 layers=3 width=1 tasks=4 run-time=1s").unwrap();
    assert_eq!(shape(&workload.jobs[0]), ["0-0(4)<-", "1-0(4)<-0-0", "2-0(4)<-1-0"]);
    assert!(has_note(&workload, "all jobs arrive at once"));
}

#[test]
fn too_many_tasks_are_refused() {
    let error = try_read("synthetic", "jobs=1 tasks=15000000 layers=2 drawn-per=job").unwrap_err();
    assert!(error.problem.contains("more than 20000000"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn equal_seeds_give_equal_workloads_and_stages_are_in_order(seed in 0u64..1_000) {
        let options = format!("jobs=5 seed={seed} arrival=poisson:3s demand=uniform:1-4,uniform:1GiB-2GiB");
        let workload = try_read("synthetic:layered", &options).unwrap();
        prop_assert_eq!(&workload, &try_read("synthetic:layered", &options).unwrap());
        for job in &workload.jobs {
            prop_assert_eq!(job.run_times.len(), job.spec.stages.len());
            for (index, stage) in job.spec.stages.iter().enumerate() {
                prop_assert!(stage.after.iter().all(|before| (*before as usize) < index));
            }
        }
    }
}
