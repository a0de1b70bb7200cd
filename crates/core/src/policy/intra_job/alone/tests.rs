use super::super::altruistic::work_left;
use super::*;
use crate::vocabulary::Resources;

/// Stages of tasks of one CPU, none of which has started; every stage depends on the first.
struct Job {
    tasks: Vec<u32>,
    expected: Option<Duration>,
    longest: Duration,
}

const CPU: Resources = Resources::new(1_000, 0);
const IN_ORDER: &Order = &Order::BreadthFirst;

impl Job {
    fn new(tasks: &[u32], expected: Option<u64>) -> Job {
        Job { tasks: tasks.to_vec(), expected: expected.map(Duration::from_secs), longest: Duration::ZERO }
    }

    fn start(&self, cpus: u64) -> Alone {
        Alone::new(Instant::ZERO, work_left(Instant::ZERO, self), &share(cpus), IN_ORDER)
    }

    fn follow(&self, alone: &mut Alone, second: u64, cpus: u64, has_time: bool) {
        alone.follow(at(second), self, Some(&share(cpus)), IN_ORDER, has_time);
    }

    fn end(&self, alone: &Alone) -> Option<u64> {
        let end = alone.end(Instant::ZERO, self)?;
        Some(end.since(Instant::ZERO).0 / 1_000_000)
    }
}

impl StageGraph for Job {
    fn len(&self) -> usize {
        self.tasks.len()
    }

    fn dependents(&self, _stage: u32) -> &[u32] {
        &[]
    }

    fn dependencies(&self, stage: u32) -> &[u32] {
        if stage == 0 { &[] } else { &[0] }
    }

    fn expected(&self, _stage: u32) -> Option<Duration> {
        self.expected
    }

    fn longest(&self, _stage: u32) -> Duration {
        self.longest
    }

    fn resources(&self, _stage: u32) -> &Resources {
        &CPU
    }

    fn tasks(&self, stage: u32) -> u32 {
        self.tasks[stage as usize]
    }

    fn unstarted(&self, stage: u32) -> u32 {
        self.tasks(stage)
    }

    fn each_running(&self, _show: &mut dyn FnMut(u32, Instant)) {}
}

fn share(cpus: u64) -> Totals {
    let mut share = Totals::ZERO;
    share.add_times(&CPU, cpus);
    share
}

fn at(second: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(second)
}

#[test]
fn changed_run_times_give_no_end_until_all_is_packed_again() {
    let mut job = Job::new(&[2], None);
    let mut alone = job.start(1);
    assert_eq!(job.end(&alone), None, "run times are unknown");
    job.expected = Some(Duration::from_secs(10));
    job.follow(&mut alone, 1, 1, false);
    assert_eq!(job.end(&alone), None);
    job.follow(&mut alone, 2, 1, true);
    assert_eq!(job.end(&alone), Some(20));
}

#[test]
fn jobs_with_more_stages_keep_fewer_phases() {
    for (stages, kept) in [(1, 64), (20, 30), (100, 6), (300, 4)] {
        let job = Job::new(&vec![1; stages], Some(10));
        let mut alone = job.start(1);
        (1..200).for_each(|second| job.follow(&mut alone, second, 1 + second % 2, false));
        assert_eq!(alone.phases.len(), kept, "of {stages} stages");
    }
}

/// Three tasks run at the same time, and come back when there is room for one at a time.
#[test]
fn all_tasks_that_came_back_together_run_again() {
    let mut job = Job::new(&[3], Some(10));
    let mut alone = job.start(3);
    alone.came_back(0);
    alone.came_back(0);
    job.follow(&mut alone, 5, 1, true);
    alone.came_back(0);
    job.follow(&mut alone, 5, 1, true);
    assert_eq!(job.end(&alone), Some(5 + 30));
    job.expected = Some(Duration::from_secs(20));
    job.follow(&mut alone, 6, 1, true);
    assert_eq!(job.end(&alone), Some(5 + 60), "also after packing all phases again");
}

/// The mean run time is 5 seconds.
#[test]
fn a_stage_ends_with_its_longest_task_across_phases() {
    for (stages, end) in [(&[2][..], 9), (&[2, 1], 9 + 9)] {
        let mut job = Job::new(stages, Some(10));
        let mut alone = job.start(2);
        (job.expected, job.longest) = (Some(Duration::from_secs(5)), Duration::from_secs(9));
        job.follow(&mut alone, 1, 2, true);
        let phases = (2..9).map(|second| {
            let end = job.end(&alone);
            job.follow(&mut alone, second, 1 + second % 2, false);
            end
        });
        assert!(phases.eq([Some(end); 7]), "of {stages:?}");
        assert_eq!(job.end(&alone), Some(end), "of {stages:?}");
    }
}
