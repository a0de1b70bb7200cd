//! Usage of the cluster by jobs, and its fairness.

use super::results::{Heat, Window};
use amalgam_core::vocabulary::resources::{CPU, MEMORY, WIDTH};
use amalgam_core::vocabulary::{ExecutionType, Instant, Resources, TaskShape, Totals};
use std::collections::BTreeSet;

pub struct ClusterUsage {
    capacity: Totals,
    /// The kinds of resources that the cluster has. Usage of other kinds is not measured.
    kinds: Vec<usize>,
    used: Totals,
    /// Microseconds times the used amount, by kind: in the windows that have ended, and in the current window.
    integral: [u128; WIDTH],
    window_integral: [u128; WIDTH],
    /// CPU that opportunistic attempts hold, and microseconds times this.
    opportunistic: u64,
    opportunistic_integral: u128,
    since: Instant,
    window_start: Instant,
    succeeded_tasks: u64,
    jobs: Vec<JobUsage>,
    active: BTreeSet<u32>,
    /// Jobs that ended in this window, and when.
    ended: Vec<(u32, Instant)>,
    running: u64,
    windows: Vec<Window>,
    heat: HeatMap,
}

/// Maximum number of rows of the heat map. Larger clusters have several nodes in a row.
const HEAT_ROWS: usize = 100;

/// The share of the nodes' CPUs in use, by group of nodes and window.
struct HeatMap {
    nodes_in_row: usize,
    rows: Vec<HeatRow>,
}

#[derive(Clone, Default)]
struct HeatRow {
    capacity: u64,
    used: u64,
    integral: u128,
    since: Instant,
    means: Vec<f32>,
}

impl HeatMap {
    fn new(nodes: &[Resources]) -> HeatMap {
        let nodes_in_row = nodes.len().div_ceil(HEAT_ROWS).max(1);
        let row = |group: &[Resources]| HeatRow {
            capacity: group.iter().map(|node| u64::from(node.cpu_millis())).sum(),
            ..HeatRow::default()
        };
        HeatMap { nodes_in_row, rows: nodes.chunks(nodes_in_row).map(row).collect() }
    }

    fn row(&mut self, now: Instant, node: usize) -> &mut HeatRow {
        let row = &mut self.rows[node / self.nodes_in_row];
        row.take_in(now);
        row
    }

    fn end_window(&mut self, now: Instant, length: u64) {
        for row in &mut self.rows {
            row.take_in(now);
            row.means.push(share(std::mem::take(&mut row.integral), row.capacity, length) as f32);
        }
    }
}

impl HeatRow {
    fn take_in(&mut self, now: Instant) {
        self.integral += u128::from(now.since(self.since).as_micros()) * u128::from(self.used);
        self.since = now;
    }
}

#[derive(Clone, Default)]
struct JobUsage {
    used: Totals,
    /// Dominant share times microseconds, in the current window.
    integral: f64,
    since: Instant,
    active_since: Instant,
}

impl ClusterUsage {
    pub fn new(jobs: usize, nodes: &[Resources]) -> ClusterUsage {
        let mut capacity = Totals::default();
        nodes.iter().for_each(|node| capacity.add(node));
        ClusterUsage {
            capacity,
            kinds: (0..WIDTH).filter(|&kind| capacity.0[kind] > 0).collect(),
            used: Totals::default(),
            integral: [0; WIDTH],
            window_integral: [0; WIDTH],
            opportunistic: 0,
            opportunistic_integral: 0,
            since: Instant::ZERO,
            window_start: Instant::ZERO,
            succeeded_tasks: 0,
            jobs: vec![JobUsage::default(); jobs],
            active: BTreeSet::new(),
            ended: Vec::new(),
            running: 0,
            windows: Vec::new(),
            heat: HeatMap::new(nodes),
        }
    }

    pub fn activate(&mut self, now: Instant, job: u32) {
        self.jobs[job as usize].active_since = now;
        self.active.insert(job);
    }

    pub fn deactivate(&mut self, now: Instant, job: u32) {
        self.take_in_job(now, job);
        if self.active.remove(&job) {
            self.ended.push((job, now));
        }
    }

    pub fn running(&self) -> u64 {
        self.running
    }

    pub fn is_any_active(&self) -> bool {
        !self.active.is_empty()
    }

    pub fn on_started(&mut self, now: Instant, job: u32, node: usize, shape: &TaskShape) {
        let resources = &shape.resources;
        self.heat.row(now, node).used += u64::from(resources.cpu_millis());
        self.take_in(now);
        self.take_in_job(now, job);
        for &kind in &self.kinds {
            self.used.0[kind] += u64::from(resources.0[kind]);
            self.jobs[job as usize].used.0[kind] += u64::from(resources.0[kind]);
        }
        self.opportunistic += opportunistic_cpu(shape);
        self.running += 1;
    }

    /// An attempt with this shape yields its CPU.
    pub fn on_yielded(&mut self, now: Instant, job: u32, node: usize, shape: &TaskShape) {
        let cpu = u64::from(shape.resources.cpu_millis());
        self.heat.row(now, node).used -= cpu;
        self.take_in(now);
        self.take_in_job(now, job);
        self.used.0[CPU] -= cpu;
        self.jobs[job as usize].used.0[CPU] -= cpu;
        self.opportunistic -= opportunistic_cpu(shape);
    }

    pub fn on_resumed(&mut self, now: Instant, job: u32, node: usize, shape: &TaskShape) {
        let cpu = u64::from(shape.resources.cpu_millis());
        self.heat.row(now, node).used += cpu;
        self.take_in(now);
        self.take_in_job(now, job);
        self.used.0[CPU] += cpu;
        self.jobs[job as usize].used.0[CPU] += cpu;
        self.opportunistic += opportunistic_cpu(shape);
    }

    pub fn on_promoted(&mut self, now: Instant, before: &TaskShape) {
        self.take_in(now);
        self.opportunistic -= opportunistic_cpu(before);
    }

    pub fn on_ended(&mut self, now: Instant, job: u32, node: usize, shape: &TaskShape) {
        let resources = &shape.resources;
        self.heat.row(now, node).used -= u64::from(resources.cpu_millis());
        self.take_in(now);
        self.take_in_job(now, job);
        for &kind in &self.kinds {
            self.used.0[kind] -= u64::from(resources.0[kind]);
            self.jobs[job as usize].used.0[kind] -= u64::from(resources.0[kind]);
        }
        self.opportunistic -= opportunistic_cpu(shape);
        self.running -= 1;
    }

    pub fn on_succeeded(&mut self) {
        self.succeeded_tasks += 1;
    }

    fn take_in(&mut self, now: Instant) {
        let passed = u128::from(now.since(self.since).as_micros());
        self.since = now;
        if passed > 0 {
            self.opportunistic_integral += passed * u128::from(self.opportunistic);
            for kind in [CPU, MEMORY] {
                self.window_integral[kind] += passed * u128::from(self.used.0[kind]);
            }
        }
    }

    fn take_in_job(&mut self, now: Instant, job: u32) {
        let usage = &mut self.jobs[job as usize];
        let passed = now.since(usage.since).as_micros() as f64;
        usage.since = now;
        if passed > 0.0 {
            let shares = self.kinds.iter().map(|&kind| usage.used.0[kind] as f64 / self.capacity.0[kind] as f64);
            usage.integral += passed * shares.fold(0.0, f64::max);
        }
    }

    pub fn end_window(&mut self, now: Instant) {
        self.take_in(now);
        let length = now.since(self.window_start).as_micros();
        if length == 0 {
            return;
        }
        let mut active: Vec<(u32, Instant)> = std::mem::take(&mut self.ended);
        active.extend(self.active.iter().map(|job| (*job, now)));
        let mut shares = Vec::with_capacity(active.len());
        for &(job, until) in &active {
            self.take_in_job(now, job);
            let usage = &mut self.jobs[job as usize];
            let length = until.since(usage.active_since.max(self.window_start)).as_micros();
            let integral = std::mem::take(&mut usage.integral);
            if length > 0 {
                shares.push(integral / length as f64);
            }
        }
        let mean = |kind: usize| share(self.window_integral[kind], self.capacity.0[kind], length);
        self.windows.push(Window {
            begins_s: self.window_start.0 as f64 / 1e6,
            cpu: mean(CPU),
            memory: mean(MEMORY),
            running: self.running,
            active_jobs: active.len() as u64,
            succeeded_tasks: std::mem::take(&mut self.succeeded_tasks),
            jain: jain(&shares),
        });
        for kind in [CPU, MEMORY] {
            self.integral[kind] += std::mem::take(&mut self.window_integral[kind]);
        }
        self.heat.end_window(now, length);
        self.window_start = now;
    }

    /// The mean share of a kind in use from the start to `until`, which must not be before the end of the last window.
    pub fn utilization(&self, kind: usize, until: Instant) -> f64 {
        share(self.integral[kind], self.capacity.0[kind], until.0)
    }

    /// The time for which attempts held CPUs up to the end of the last window, in microseconds and thousandths of a core.
    pub fn cpu_time(&self) -> u128 {
        self.integral[CPU]
    }

    /// The mean share of the CPUs that opportunistic attempts held, from the start to `until`.
    pub fn opportunistic(&self, until: Instant) -> f64 {
        share(self.opportunistic_integral, self.capacity.0[CPU], until.0)
    }

    pub fn take_windows(&mut self) -> Vec<Window> {
        std::mem::take(&mut self.windows)
    }

    pub fn take_heat(&mut self) -> Heat {
        let rows = self.heat.rows.iter_mut().map(|row| std::mem::take(&mut row.means));
        Heat { nodes_in_row: self.heat.nodes_in_row, rows: rows.collect() }
    }
}

fn opportunistic_cpu(shape: &TaskShape) -> u64 {
    if shape.execution == ExecutionType::Opportunistic { u64::from(shape.resources.cpu_millis()) } else { 0 }
}

fn share(integral: u128, capacity: u64, micros: u64) -> f64 {
    if capacity == 0 || micros == 0 { 0.0 } else { integral as f64 / (capacity as f64 * micros as f64) }
}

/// Jain's index of the shares of active jobs: 1 if all got the same, 1/n if one got everything. `None` for fewer than
/// two jobs, or if no job got anything.
fn jain(shares: &[f64]) -> Option<f64> {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
    (shares.len() > 1 && squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(cpu_millis: u32) -> TaskShape {
        TaskShape { resources: Resources::new(cpu_millis, 0), execution: ExecutionType::Opportunistic }
    }

    #[test]
    fn jains_index_is_one_for_equal_shares_and_one_nth_for_a_monopoly() {
        assert_eq!(jain(&[0.2, 0.2, 0.2, 0.2]), Some(1.0));
        assert_eq!(jain(&[0.0, 0.7, 0.0, 0.0]), Some(0.25));
        assert_eq!((jain(&[0.5]), jain(&[0.0, 0.0])), (None, None));
    }

    #[test]
    fn a_window_has_the_mean_usage_within_it() {
        let mut usage = ClusterUsage::new(2, &[Resources::new(1_000, 0), Resources::new(3_000, 0)]);
        (0..2).for_each(|job| usage.activate(Instant(0), job));
        let task = shape(1_000);
        usage.on_started(Instant(0), 0, 0, &task);
        usage.on_started(Instant(30_000_000), 1, 1, &task);
        usage.end_window(Instant(60_000_000));
        usage.on_ended(Instant(60_000_000), 0, 0, &task);
        usage.end_window(Instant(120_000_000));
        let windows = usage.take_windows();
        assert_eq!(windows.iter().map(|window| window.cpu).collect::<Vec<_>>(), [0.375, 0.25]);
        // One job used twice as much as the other, then one used everything.
        assert_eq!(windows[0].jain.map(|index| (index * 1e6).round()), Some(900_000.0));
        assert_eq!(windows[1].jain, Some(0.5));
        assert_eq!(usage.utilization(CPU, Instant(120_000_000)), 0.3125);
        assert_eq!(usage.opportunistic(Instant(120_000_000)), 0.3125);
        let sixth = 0.5_f32 / 3.0;
        assert_eq!(usage.take_heat().rows, [vec![1.0, 0.0], vec![sixth, sixth * 2.0]]);
    }

    #[test]
    fn a_job_counts_for_the_part_of_a_window_in_which_it_was_active() {
        let mut usage = ClusterUsage::new(3, &[Resources::new(1_000, 0)]);
        let task = shape(500);
        // Each job uses half of the node while it is active: until 20 s, from 40 s on, and all the time.
        for (job, from) in [(0, 0), (2, 0)] {
            usage.activate(Instant(from), job);
            usage.on_started(Instant(from), job, 0, &task);
        }
        usage.on_ended(Instant(20_000_000), 0, 0, &task);
        usage.deactivate(Instant(20_000_000), 0);
        usage.activate(Instant(40_000_000), 1);
        usage.on_started(Instant(40_000_000), 1, 0, &task);
        usage.end_window(Instant(60_000_000));
        usage.end_window(Instant(120_000_000));
        let windows = usage.take_windows();
        assert_eq!(windows.iter().map(|window| window.active_jobs).collect::<Vec<_>>(), [3, 2]);
        assert_eq!(windows.iter().map(|window| window.jain).collect::<Vec<_>>(), [Some(1.0), Some(1.0)]);
    }
}
