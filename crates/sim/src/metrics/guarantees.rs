//! Whether queues get what they are guaranteed while they have use for it.

use super::WINDOW;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::vocabulary::{Instant, QueueId, Resources, Totals};
use amalgam_workload::trace::TraceJob;
use serde::Serialize;

/// A queue is below its guarantee in a window if its tasks held less than this part of what they could use of it.
const BELOW: f64 = 0.95;

/// A queue has demand in a window if it could use this part of its guarantee on average: more than the moments between the end of a
/// task and its report.
const DEMAND: f64 = 0.01;

/// Of a run with queues that are guaranteed a part of the cluster. Windows without demand do not count.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Guarantees {
    /// Windows of 60 s in which a queue had demand, of all queues.
    pub windows: u64,
    /// Those in which the queue was below its guarantee: its tasks held less than 95 % of what the queue could use of it.
    pub below: u64,
    pub queues: Vec<QueueGuarantee>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct QueueGuarantee {
    pub queue: String,
    /// Part of the cluster.
    pub guaranteed: f64,
    pub windows: u64,
    pub below: u64,
    /// Part of what the queue could use of its guarantee that its tasks held, over all windows.
    pub held: f64,
}

impl Guarantees {
    /// Share of its windows in which a queue was below its guarantee, of the queue where that is largest; zero without windows.
    pub fn part_below(&self) -> f64 {
        self.queues.iter().map(QueueGuarantee::part_below).fold(0.0, f64::max)
    }
}

impl QueueGuarantee {
    /// Share of its windows in which it was below its guarantee; zero without windows.
    pub fn part_below(&self) -> f64 {
        self.below as f64 / self.windows.max(1) as f64
    }
}

pub struct GuaranteeMeasure {
    capacity: Totals,
    queues: Vec<QueueMeasure>,
    /// By job of the workload: its queue and those above it, as far as they have guarantees, as places in `queues`.
    of_job: Vec<Vec<usize>>,
}

/// Times are integrals: microseconds times millionths of the cluster.
struct QueueMeasure {
    name: String,
    /// Dominant share in millionths.
    guaranteed: u64,
    held: Totals,
    /// Of tasks that may run: those that run, too.
    wanted: Totals,
    since: Instant,
    window_held: u128,
    window_usable: u128,
    whole_held: u128,
    whole_usable: u128,
    windows: u64,
    below: u64,
}

impl GuaranteeMeasure {
    /// `None` if no queue below the root has a guarantee.
    pub fn new(queues: &QueueTree, jobs: &[TraceJob], nodes: &[Resources]) -> Option<GuaranteeMeasure> {
        let has_guarantee = |queue: QueueId| queues.parent(queue).is_some() && queues.spec(queue).guaranteed > 0;
        let guaranteed: Vec<QueueId> =
            (0..queues.len() as u32).map(QueueId).filter(|one| has_guarantee(*one)).collect();
        if guaranteed.is_empty() {
            return None;
        }
        let of_job = |job: &TraceJob| {
            let leaf = queues.leaf(&job.spec.queue).ok();
            let up = std::iter::successors(leaf, |queue| queues.parent(*queue));
            up.filter_map(|queue| guaranteed.iter().position(|one| *one == queue)).collect()
        };
        let of_job = jobs.iter().map(of_job).collect();
        let mut capacity = Totals::ZERO;
        nodes.iter().for_each(|node| capacity.add(node));
        let queues = guaranteed.iter().map(|queue| QueueMeasure::new(queues, *queue)).collect();
        Some(GuaranteeMeasure { capacity, queues, of_job })
    }

    /// `tasks` more tasks of the job may run, or that many fewer.
    pub fn on_wanted(&mut self, now: Instant, job: u32, each: &Resources, tasks: i64) {
        self.change(now, job, |queue| change(&mut queue.wanted, each, tasks));
    }

    /// `attempts` more attempts of the job hold room, or that many fewer.
    pub fn on_held(&mut self, now: Instant, job: u32, each: &Resources, attempts: i64) {
        self.change(now, job, |queue| change(&mut queue.held, each, attempts));
    }

    fn change(&mut self, now: Instant, job: u32, change: impl Fn(&mut QueueMeasure)) {
        for place in &self.of_job[job as usize] {
            let queue = &mut self.queues[*place];
            queue.take_in(now, &self.capacity);
            change(queue);
        }
    }

    pub fn end_window(&mut self, now: Instant) {
        for queue in &mut self.queues {
            queue.take_in(now, &self.capacity);
            queue.end_window();
        }
    }

    pub fn finish(self) -> Guarantees {
        let queues: Vec<QueueGuarantee> = self.queues.into_iter().map(QueueMeasure::finish).collect();
        let sum = |of: fn(&QueueGuarantee) -> u64| queues.iter().map(of).sum();
        Guarantees { windows: sum(|queue| queue.windows), below: sum(|queue| queue.below), queues }
    }
}

fn change(total: &mut Totals, each: &Resources, count: i64) {
    if count < 0 { total.sub_times(each, count.unsigned_abs()) } else { total.add_times(each, count.unsigned_abs()) }
}

impl QueueMeasure {
    fn new(queues: &QueueTree, queue: QueueId) -> QueueMeasure {
        let spec = queues.spec(queue);
        QueueMeasure {
            name: spec.name.clone(),
            guaranteed: u64::from(spec.guaranteed),
            held: Totals::ZERO,
            wanted: Totals::ZERO,
            since: Instant::ZERO,
            window_held: 0,
            window_usable: 0,
            whole_held: 0,
            whole_usable: 0,
            windows: 0,
            below: 0,
        }
    }

    fn take_in(&mut self, now: Instant, capacity: &Totals) {
        let passed = u128::from(now.since(self.since).as_micros());
        self.since = now;
        if passed > 0 {
            let usable = self.wanted.dominant_share(capacity).min(self.guaranteed);
            self.window_usable += passed * u128::from(usable);
            self.window_held += passed * u128::from(self.held.dominant_share(capacity).min(usable));
        }
    }

    fn end_window(&mut self) {
        let (held, usable) = (std::mem::take(&mut self.window_held), std::mem::take(&mut self.window_usable));
        let whole = u128::from(self.guaranteed) * u128::from(WINDOW.as_micros());
        if usable as f64 >= whole as f64 * DEMAND {
            self.windows += 1;
            self.below += u64::from((held as f64) < usable as f64 * BELOW);
        }
        self.whole_held += held;
        self.whole_usable += usable;
    }

    fn finish(self) -> QueueGuarantee {
        let held = if self.whole_usable == 0 { 1.0 } else { self.whole_held as f64 / self.whole_usable as f64 };
        QueueGuarantee {
            queue: self.name,
            guaranteed: self.guaranteed as f64 / 1e6,
            windows: self.windows,
            below: self.below,
            held,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::job;
    use crate::{Settings, Simulation};
    use amalgam_core::preset::Preset;
    use amalgam_core::vocabulary::{Attributes, Duration, JobSpec, QueueSpec, ResourceSpec, StageSpec};
    use amalgam_workload::trace::{MalformedLines, Node, RunTimes, Workload};
    use std::sync::Arc;

    const SECOND: u64 = 1_000_000;

    /// Two jobs, of a queue and of one without a guarantee, on four CPUs.
    fn measure() -> GuaranteeMeasure {
        let half = QueueSpec { guaranteed: 500_000, ..QueueSpec::named("root.half") };
        let queues = QueueTree::new(vec![half, QueueSpec::named("root.rest")]).unwrap();
        let of = |queue: &str| {
            let spec = Arc::new(JobSpec { queue: queue.to_owned(), ..JobSpec::default() });
            TraceJob { arrival: Duration::ZERO, spec, run_times: [].into() }
        };
        GuaranteeMeasure::new(&queues, &[of("half"), of("rest")], &[Resources::new(4_000, 0)]).unwrap()
    }

    #[test]
    fn without_guarantees_nothing_is_measured() {
        assert!(GuaranteeMeasure::new(&QueueTree::single(), &[], &[Resources::new(4_000, 0)]).is_none());
    }

    #[test]
    fn a_queue_is_below_its_guarantee_where_it_could_use_more_of_it_than_it_holds() {
        let (mut measure, cpu) = (measure(), Resources::new(1_000, 0));
        let at = |seconds: u64| Instant(seconds * SECOND);
        // No demand in the first window. In the second three tasks of each queue want room, and only the other's get it.
        measure.end_window(at(60));
        (0..2).for_each(|job| measure.on_wanted(at(60), job, &cpu, 3));
        measure.on_held(at(60), 1, &cpu, 3);
        measure.on_held(at(60), 0, &cpu, 1);
        measure.end_window(at(120));
        // Its second task starts 4 s late, within the tolerance of 95 %; the third is beyond the guarantee.
        measure.on_held(at(124), 0, &cpu, 1);
        measure.end_window(at(180));
        // The demand is gone after 30 s.
        measure.on_held(at(210), 0, &cpu, -2);
        measure.on_wanted(at(210), 0, &cpu, -3);
        measure.end_window(at(240));
        let found = measure.finish();
        assert_eq!((found.windows, found.below, found.queues.len()), (3, 1, 1));
        assert_eq!((&*found.queues[0].queue, found.queues[0].guaranteed), ("root.half", 0.5));
        let (held, usable) = (60.0 + 4.0 + 56.0 * 2.0 + 60.0, 150.0 * 2.0);
        assert!((found.queues[0].held - held / usable).abs() < 1e-6, "{}", found.queues[0].held);
    }

    /// A job that fills the cluster for ten minutes, and after a minute one of the other queue, of two stages of two tasks of a minute.
    fn simulated(preset: Preset) -> (Guarantees, f64) {
        let half = QueueSpec { guaranteed: 500_000, ..QueueSpec::named("root.half") };
        let queues = QueueTree::new(vec![half, QueueSpec::named("root.rest")]).unwrap();
        let (minute, seconds) = (Duration::from_secs(60), Duration::from_secs);
        let guest = job("rest", 4, Duration::ZERO, seconds(600));
        let mut owner = job("half", 2, minute, minute);
        let spec = Arc::make_mut(&mut owner.spec);
        let second = StageSpec { name: "s1".to_owned(), after: vec![0], ..spec.stages[0].clone() };
        spec.stages.push(second);
        owner.run_times = vec![RunTimes::Same(minute); 2].into();
        let (jobs, malformed) = (vec![guest, owner], MalformedLines::default());
        let workload = Workload { name: String::new(), jobs, notes: Vec::new(), malformed };
        let resources = ResourceSpec { basic: Resources::new(4_000, 0), custom: Vec::new() };
        let node = Node { name: "node".to_owned(), resources, attributes: Attributes::default() };
        let outcome = Simulation::new(Settings { preset, queues, ..Settings::default() }, &[node], &workload).run();
        let results = outcome.results;
        assert_eq!(results.succeeded_jobs, 2);
        (results.guarantees.expect("a queue has a guarantee"), results.preempted_work)
    }

    #[test]
    fn a_queue_waits_for_its_guarantee_under_one_preset_and_not_under_another() {
        let (fifo, none) = simulated(Preset::FIFO);
        // From the second minute to the eleventh it waits, and then it has two minutes for its stages.
        assert_eq!((fifo.windows, fifo.below, none), (11, 9, 0.0), "{fifo:?}");
        let (amalgam, preempted) = simulated(Preset::AMALGAM);
        assert_eq!((amalgam.windows, amalgam.below), (2, 0), "{amalgam:?}");
        assert_eq!((fifo.part_below(), amalgam.part_below()), (9.0 / 11.0, 0.0));
        // Two attempts lost a minute each, of 40 minutes, four of the other job and these.
        assert!((preempted - 2.0 / 46.0).abs() < 1e-3, "{preempted}");
    }
}
