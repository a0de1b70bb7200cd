//! Statistics of a workload: the sizes and shapes of its jobs, and their load on a cluster.

use super::{Node, RunTimes, TraceJob, Workload};
use amalgam_core::vocabulary::{Resources, StageSpec};
use serde::Serialize;
use std::collections::VecDeque;

/// The shape of one job's DAG. Barriers and disjoint paths are those of Carbyne, section 2.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct JobShape {
    pub stages: usize,
    pub tasks: u64,
    /// Number of stages on the longest path, counted in stages.
    pub critical_stages: usize,
    /// Length of the longest path, if each stage takes as long as its longest task. The job takes this time on a
    /// cluster without limits.
    pub critical_seconds: f64,
    /// Minimum number of paths that contain all stages and have no common stage.
    pub disjoint_paths: usize,
    /// Number of stages that depend on more than one other.
    pub barriers: usize,
    /// Core-seconds of all tasks.
    pub core_seconds: f64,
    /// MiB-seconds of all tasks.
    pub memory_mib_seconds: f64,
}

/// Mean, quantiles and maximum of a distribution.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize)]
pub struct Summary {
    pub mean: f64,
    pub p50: f64,
    pub p75: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

/// The shape of a whole workload.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct WorkloadShape {
    pub jobs: usize,
    pub tasks: u64,
    /// From the start to the last arrival.
    pub span_s: f64,
    pub arrival_gap_s: Summary,
    pub stages: Summary,
    pub tasks_per_job: Summary,
    pub critical_path_stages: Summary,
    pub critical_path_s: Summary,
    pub disjoint_paths: Summary,
    pub barriers: Summary,
    /// Over all tasks.
    pub run_time_s: Summary,
    /// Over all tasks.
    pub cores: Summary,
    /// Over all tasks.
    pub memory_mib: Summary,
    pub core_seconds: f64,
    pub memory_mib_seconds: f64,
}

/// The load of a workload on a cluster.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Load {
    /// Work divided by the cluster's capacity from the start to the last arrival, or `None` if all jobs arrive at once.
    /// Above 1, the cluster cannot finish the work as fast as it arrives.
    pub cpu: Option<f64>,
    pub memory: Option<f64>,
    /// Lower bound of every schedule's length: the latest end of a critical path that starts at its job's arrival, or
    /// all work divided by the capacity of all nodes.
    pub shortest_makespan_s: f64,
    /// Number of tasks whose CPU and memory fit on no node.
    pub tasks_too_large: u64,
}

impl TraceJob {
    pub fn shape(&self) -> JobShape {
        let stages = &self.spec.stages;
        let paired = || stages.iter().zip(self.run_times.iter());
        let seconds = |(stage, times): (&StageSpec, &RunTimes)| times.total_seconds(stage.tasks.len());
        let cores = |stage: &StageSpec| f64::from(stage.resources.basic.cpu_millis()) / 1e3;
        let mib = |stage: &StageSpec| f64::from(stage.resources.basic.memory_mib());
        JobShape {
            stages: stages.len(),
            tasks: self.spec.task_count(),
            critical_stages: longest_path(stages, |_| 1.0) as usize,
            critical_seconds: longest_path(stages, |stage| self.run_times[stage].longest().as_secs_f64()),
            disjoint_paths: disjoint_paths(stages),
            barriers: stages.iter().filter(|stage| stage.after.len() > 1).count(),
            core_seconds: paired().map(|pair| cores(pair.0) * seconds(pair)).sum(),
            memory_mib_seconds: paired().map(|pair| mib(pair.0) * seconds(pair)).sum(),
        }
    }
}

impl Workload {
    pub fn shape(&self) -> WorkloadShape {
        let shapes: Vec<JobShape> = self.jobs.iter().map(TraceJob::shape).collect();
        let per_job = |value: fn(&JobShape) -> f64| Summary::of(shapes.iter().map(|shape| (value(shape), 1)));
        let stages = || self.jobs.iter().flat_map(|job| job.spec.stages.iter().zip(job.run_times.iter()));
        let per_task = |value: fn(&StageSpec) -> f64| {
            Summary::of(stages().map(|(stage, _)| (value(stage), u64::from(stage.tasks.len()))))
        };
        let gaps = self.jobs.windows(2).map(|pair| ((pair[1].arrival - pair[0].arrival).as_secs_f64(), 1));
        WorkloadShape {
            jobs: self.jobs.len(),
            tasks: self.task_count(),
            span_s: self.span_seconds(),
            arrival_gap_s: Summary::of(gaps),
            stages: per_job(|shape| shape.stages as f64),
            tasks_per_job: per_job(|shape| shape.tasks as f64),
            critical_path_stages: per_job(|shape| shape.critical_stages as f64),
            critical_path_s: per_job(|shape| shape.critical_seconds),
            disjoint_paths: per_job(|shape| shape.disjoint_paths as f64),
            barriers: per_job(|shape| shape.barriers as f64),
            run_time_s: Summary::of(stages().flat_map(|(stage, times)| weighted(stage, times))),
            cores: per_task(|stage| f64::from(stage.resources.basic.cpu_millis()) / 1e3),
            memory_mib: per_task(|stage| f64::from(stage.resources.basic.memory_mib())),
            core_seconds: shapes.iter().map(|shape| shape.core_seconds).sum(),
            memory_mib_seconds: shapes.iter().map(|shape| shape.memory_mib_seconds).sum(),
        }
    }

    /// The load on these nodes.
    pub fn load(&self, nodes: &[Node]) -> Load {
        let shapes: Vec<JobShape> = self.jobs.iter().map(TraceJob::shape).collect();
        let total = |amount: fn(&Resources) -> u32| {
            nodes.iter().map(|node| f64::from(amount(&node.resources.basic))).sum::<f64>()
        };
        let (cores, mib) = (total(Resources::cpu_millis) / 1e3, total(Resources::memory_mib));
        let largest = LargestNodes::of(nodes);
        let core_seconds: f64 = shapes.iter().map(|shape| shape.core_seconds).sum();
        let memory: f64 = shapes.iter().map(|shape| shape.memory_mib_seconds).sum();
        let ends = self.jobs.iter().zip(&shapes).map(|(job, shape)| job.arrival.as_secs_f64() + shape.critical_seconds);
        let fits = |stage: &&StageSpec| largest.fit(&stage.resources.basic);
        let stages = self.jobs.iter().flat_map(|job| &job.spec.stages);
        let per_span = |work: f64| (self.span_seconds() > 0.0).then(|| work / self.span_seconds());
        Load {
            cpu: per_span(core_seconds).map(|busy| busy / cores),
            memory: per_span(memory).map(|busy| busy / mib),
            shortest_makespan_s: ends.fold(0.0, f64::max).max(core_seconds / cores).max(memory / mib.max(1.0)),
            tasks_too_large: stages.filter(|stage| !fits(stage)).map(|stage| u64::from(stage.tasks.len())).sum(),
        }
    }

    fn span_seconds(&self) -> f64 {
        self.jobs.last().map_or(0.0, |job| job.arrival.as_secs_f64())
    }
}

/// CPU and memory of the nodes that no other node exceeds in both, from the most CPU to the most memory.
struct LargestNodes(Vec<(u32, u32)>);

impl LargestNodes {
    fn of(nodes: &[Node]) -> LargestNodes {
        let size = |node: &Node| (node.resources.basic.cpu_millis(), node.resources.basic.memory_mib());
        let mut sizes: Vec<(u32, u32)> = nodes.iter().map(size).collect();
        sizes.sort_unstable_by(|left, right| right.cmp(left));
        let mut largest: Vec<(u32, u32)> = Vec::new();
        for size in sizes {
            if largest.last().is_none_or(|(_, memory)| size.1 > *memory) {
                largest.push(size);
            }
        }
        LargestNodes(largest)
    }

    /// Whether the CPU and memory of the task fit on one of the nodes.
    fn fit(&self, task: &Resources) -> bool {
        let with_cpus = self.0.partition_point(|(cpu, _)| *cpu >= task.cpu_millis());
        with_cpus > 0 && self.0[with_cpus - 1].1 >= task.memory_mib()
    }
}

/// Each run time of a stage, with the number of tasks that have it.
fn weighted<'a>(stage: &StageSpec, times: &'a RunTimes) -> Box<dyn Iterator<Item = (f64, u64)> + 'a> {
    match times {
        RunTimes::Same(time) => Box::new(std::iter::once((time.as_secs_f64(), u64::from(stage.tasks.len())))),
        RunTimes::Each(times) => Box::new(times.iter().map(|time| (time.as_secs_f64(), 1))),
    }
}

impl Summary {
    /// Summarizes values with their counts. All fields are 0 if there are no values.
    pub fn of(values: impl Iterator<Item = (f64, u64)>) -> Summary {
        let mut values: Vec<(f64, u64)> = values.collect();
        values.sort_by(|left, right| left.0.total_cmp(&right.0));
        let total: u64 = values.iter().map(|(_, count)| count).sum();
        let Some((max, _)) = values.last().filter(|_| total > 0) else { return Summary::default() };
        // The smallest value that at least this share of all values do not exceed.
        let quantile = |share: f64| {
            let rank = (share * total as f64).ceil() as u64;
            let mut seen = 0;
            let reaches = |(_, count): &&(f64, u64)| {
                seen += count;
                seen >= rank
            };
            values.iter().find(reaches).map_or(*max, |(value, _)| *value)
        };
        Summary {
            mean: values.iter().map(|(value, count)| value * *count as f64).sum::<f64>() / total as f64,
            p50: quantile(0.5),
            p75: quantile(0.75),
            p95: quantile(0.95),
            p99: quantile(0.99),
            max: *max,
        }
    }
}

/// The weight of the heaviest path. The stages must be in topological order.
fn longest_path(stages: &[StageSpec], weight: impl Fn(usize) -> f64) -> f64 {
    let mut up_to: Vec<f64> = Vec::with_capacity(stages.len());
    for (index, stage) in stages.iter().enumerate() {
        let before = stage.after.iter().map(|before| up_to[*before as usize]).fold(0.0, f64::max);
        up_to.push(before + weight(index));
    }
    up_to.into_iter().fold(0.0, f64::max)
}

/// The minimum number of paths that contain all stages and have no common stage. Each stage is a path of its own until
/// it is matched with a stage that follows it. The result is therefore the number of stages minus the size of a maximum
/// matching.
fn disjoint_paths(stages: &[StageSpec]) -> usize {
    let mut followers = vec![Vec::new(); stages.len()];
    for (index, stage) in stages.iter().enumerate() {
        for before in &stage.after {
            followers[*before as usize].push(index);
        }
    }
    let mut matching = Matching::new(stages.len());
    // Match greedily first: it finds followers for most stages and leaves little work for the search.
    for (stage, followers) in followers.iter().enumerate() {
        if let Some(free) = followers.iter().find(|follower| matching.previous[**follower].is_none()) {
            matching.join(stage, *free);
        }
    }
    for stage in 0..stages.len() {
        if matching.next[stage].is_none() {
            matching.augment(stage, &followers);
        }
    }
    matching.next.iter().filter(|next| next.is_none()).count()
}

/// The next and the previous stage of each stage on its path.
struct Matching {
    next: Vec<Option<usize>>,
    previous: Vec<Option<usize>>,
    /// For each follower, the last search that visited it, and the stage from which it was visited.
    seen: Vec<(usize, usize)>,
}

impl Matching {
    fn new(stages: usize) -> Matching {
        let no_pair = (usize::MAX, usize::MAX);
        Matching { next: vec![None; stages], previous: vec![None; stages], seen: vec![no_pair; stages] }
    }

    fn join(&mut self, stage: usize, follower: usize) {
        self.next[stage] = Some(follower);
        self.previous[follower] = Some(stage);
    }

    /// Searches for a follower of `start`. Other stages may get another follower.
    fn augment(&mut self, start: usize, followers: &[Vec<usize>]) {
        let mut open = VecDeque::from([start]);
        while let Some(stage) = open.pop_front() {
            for &follower in &followers[stage] {
                if self.seen[follower].0 == start {
                    continue;
                }
                self.seen[follower] = (start, stage);
                match self.previous[follower] {
                    Some(other) => open.push_back(other),
                    None => return self.hand_on(follower),
                }
            }
        }
    }

    /// Matches the free `follower` with the stage from which it was visited, that stage's old follower with the stage
    /// from which that one was visited, and so on.
    fn hand_on(&mut self, mut follower: usize) {
        loop {
            let (_, stage) = self.seen[follower];
            let old = self.next[stage];
            self.join(stage, follower);
            match old {
                Some(old) => follower = old,
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::Chance;
    use amalgam_core::vocabulary::{ExecutionType, Program, Reads, ResourceSpec, TaskSet};
    use std::sync::Arc;

    fn stages(after: &[&[u32]]) -> Vec<StageSpec> {
        let stage = |after: &&[u32]| StageSpec {
            name: String::new(),
            after: after.to_vec(),
            tasks: TaskSet::Count(1),
            program: Arc::new(Program::default()),
            resources: ResourceSpec::default(),
            expected: None,
            execution: ExecutionType::Auto,
            constraints: Vec::new(),
            near: Vec::new(),
            retries: 0,
            retry_delay: None,
            timeout: None,
            priority: None,
            gang: false,
            at_once: None,
            outputs: Vec::new(),
            inputs: Vec::new(),
            input_kib: Vec::new(),
            reads: Reads::default(),
        };
        after.iter().map(stage).collect()
    }

    #[test]
    fn disjoint_paths_have_no_common_stages() {
        assert_eq!(disjoint_paths(&stages(&[&[], &[0], &[1]])), 1, "a chain");
        assert_eq!(disjoint_paths(&stages(&[&[], &[0], &[0], &[1, 2]])), 2, "a diamond");
        assert_eq!(disjoint_paths(&stages(&[&[], &[], &[]])), 3, "no edges");
        // Stage 0 must not be matched with stage 2, which is the only follower of stage 1.
        assert_eq!(disjoint_paths(&stages(&[&[], &[], &[0, 1], &[0]])), 2);
    }

    /// The minimum number of paths, found by trying every follower of every stage.
    fn fewest_paths(stages: &[StageSpec], stage: usize, taken: u32) -> usize {
        if stage == stages.len() {
            return stages.len() - taken.count_ones() as usize;
        }
        let alone = fewest_paths(stages, stage + 1, taken);
        let follows = |other: &usize| stages[*other].after.contains(&(stage as u32)) && taken & (1 << other) == 0;
        let followers = (stage + 1..stages.len()).filter(follows);
        followers.map(|other| fewest_paths(stages, stage + 1, taken | 1 << other)).fold(alone, usize::min)
    }

    #[test]
    fn disjoint_paths_are_as_few_as_an_exhaustive_search_finds() {
        let mut chance = Chance::new(1, "paths");
        for _ in 0..500 {
            let count = 1 + chance.below(7_u32);
            let mut befores = |stage| (0..stage).filter(|_| chance.below(3_u32) == 0).collect();
            let after: Vec<Vec<u32>> = (0..count).map(&mut befores).collect();
            let stages = stages(&after.iter().map(Vec::as_slice).collect::<Vec<_>>());
            assert_eq!(disjoint_paths(&stages), fewest_paths(&stages, 0, 0), "{after:?}");
        }
    }

    #[test]
    fn the_longest_path_has_the_largest_weight() {
        let stages = stages(&[&[], &[0], &[], &[1, 2]]);
        assert_eq!(longest_path(&stages, |_| 1.0), 3.0);
        assert_eq!(longest_path(&stages, |stage| [1.0, 1.0, 5.0, 1.0][stage]), 6.0);
    }

    #[test]
    fn quantiles_are_values_that_occur() {
        let summary = Summary::of([(3.0, 1), (1.0, 98), (2.0, 1)].into_iter());
        assert_eq!((summary.p50, summary.p95, summary.p99, summary.max), (1.0, 1.0, 2.0, 3.0));
        assert_eq!(summary.mean, 1.03);
        assert_eq!(Summary::of(std::iter::empty()), Summary::default());
    }
}
