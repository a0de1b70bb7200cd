//! Lower bounds of all schedules of a job: for the completion of its last task, and for the mean completion of its tasks.

use super::quality::Job;
use crate::matching::{Costs, optimal};
use amalgam_core::vocabulary::Duration;

/// A lower bound of the completion of any schedule. A schedule that completes at T meets two conditions. Each task alone can
/// complete by T on some server. And the servers have the room: each works for T less its wait. For the second condition,
/// each server gets the tasks that prefer it up to its room, and the rest goes, in arbitrary pieces, to other servers at the
/// slower time. No other assignment needs less room: moving a piece off its preferred server costs more elsewhere than it
/// frees. The bound is the least T that meets both conditions.
pub fn least_completion_s(job: &Job) -> f64 {
    let servers = 0..job.waits.len();
    let alone = |task: usize| servers.clone().map(|server| job.waits[server] + job.time(task, server)).min();
    let longest = (0..job.tasks.len()).filter_map(alone).max().map_or(0.0, Duration::as_secs_f64);
    let (mut low, mut high) = (longest, longest + total_s(job));
    if has_room(job, low) {
        return low;
    }
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if has_room(job, middle) { high = middle } else { low = middle }
    }
    low
}

fn total_s(job: &Job) -> f64 {
    job.tasks.iter().map(|task| task.slow.as_secs_f64()).sum()
}

/// Whether all tasks, divided into pieces, can complete by then.
fn has_room(job: &Job, by_s: f64) -> bool {
    let mut room: Vec<f64> = job.waits.iter().map(|wait| (by_s - wait.as_secs_f64()).max(0.0)).collect();
    let mut elsewhere = 0.0;
    for task in &job.tasks {
        let (fast, room) = (task.fast.as_secs_f64(), &mut room[task.preferred]);
        let kept = fast.min(*room);
        *room -= kept;
        if fast > 0.0 {
            elsewhere += (fast - kept) / fast * task.slow.as_secs_f64();
        }
    }
    elsewhere <= room.iter().sum()
}

/// The completion of the best schedule, given that a schedule completes at `known`.
pub fn exact_completion_s(job: &Job, known: f64) -> f64 {
    let mut search = Search { job, best: known, bound: least_completion_s(job), order: Vec::new() };
    let mut loads: Vec<f64> = job.waits.iter().map(|wait| wait.as_secs_f64()).collect();
    // Tasks with the fewest choices first, which prunes the search early.
    let choices = |task: usize| (0..loads.len()).filter(|&server| search.end(&loads, task, server) < known).count();
    let mut order: Vec<usize> = (0..job.tasks.len()).collect();
    order.sort_by_cached_key(|&task| (choices(task), std::cmp::Reverse(job.tasks[task].slow)));
    search.order = order;
    search.place(0, 0.0, &mut loads);
    search.best
}

/// A search of all schedules, except those that cannot be better than the best one found.
struct Search<'a> {
    job: &'a Job,
    best: f64,
    bound: f64,
    order: Vec<usize>,
}

/// Less than a microsecond: rounding.
const SAME_S: f64 = 0.5e-6;

impl Search<'_> {
    fn end(&self, loads: &[f64], task: usize, server: usize) -> f64 {
        loads[server] + self.job.time(task, server).as_secs_f64()
    }

    fn place(&mut self, next: usize, latest: f64, loads: &mut [f64]) {
        let Some(&task) = self.order.get(next) else {
            self.best = latest;
            return;
        };
        let mut choices: Vec<(f64, usize)> =
            (0..loads.len()).map(|server| (self.end(loads, task, server), server)).collect();
        choices.sort_by(|one, other| one.0.total_cmp(&other.0));
        for (end, server) in choices {
            let is_better = |time: f64| time < self.best - SAME_S;
            if !is_better(end) || !is_better(latest) || !is_better(self.bound) {
                return;
            }
            let load = std::mem::replace(&mut loads[server], end);
            self.place(next + 1, latest.max(end), loads);
            loads[server] = load;
        }
    }
}

/// The least mean completion of tasks over all schedules. A task that is the k-th from the end on a server adds the server's
/// wait once and its own time k times to the sum, so the best schedule is a matching of tasks to places.
pub fn least_mean_s(job: &Job) -> f64 {
    let mut places = 4;
    loop {
        // If the last place is used, a task might be better off at a further place.
        match least_sum_in(job, places) {
            Some(sum) => return sum / job.tasks.len() as f64,
            None => places *= 2,
        }
    }
}

/// With this number of places on each server; `None` if the last one is used.
fn least_sum_in(job: &Job, places: usize) -> Option<f64> {
    let servers = job.waits.len();
    let mut costs = Costs::new(job.tasks.len(), servers * places);
    for task in 0..job.tasks.len() {
        for (cell, cost) in costs.row_mut(task).iter_mut().enumerate() {
            let (place, server) = (cell / servers + 1, cell % servers);
            *cost = Duration(job.waits[server].0 + job.time(task, server).0 * place as u64);
        }
    }
    let pairs = optimal(&costs);
    let is_in_last = |node: u32| node as usize >= servers * (places - 1);
    (!pairs.iter().any(|pair| is_in_last(pair.node))).then(|| costs.total(&pairs) as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::super::quality::Matcher;
    use super::super::scenario::Quality;
    use super::*;
    use amalgam_core::vocabulary::Chance;

    fn job(seed: u64, tasks: u32, servers: u32, speed_up: f64) -> Job {
        let (mean_wait_s, mean_run_time_s) = (1.0, 1.0);
        let set_up =
            Quality { servers, mean_wait_s, mean_run_time_s, speed_ups: Vec::new(), rounds: 3, batches: Vec::new() };
        Job::draw(&set_up, tasks, speed_up, &mut Chance::new(seed, "bounds"))
    }

    /// The least completion and the least mean over all assignments of tasks to servers; on each server shorter tasks run first.
    fn by_trying_all(job: &Job) -> (f64, f64) {
        let (tasks, servers) = (job.tasks.len(), job.waits.len());
        let mut best = (f64::INFINITY, f64::INFINITY);
        for way in 0..servers.pow(tasks as u32) {
            let (mut last, mut sum) = (0.0_f64, 0.0);
            for server in 0..servers {
                let here = (0..tasks).filter(|&task| way / servers.pow(task as u32) % servers == server);
                let mut times: Vec<f64> = here.map(|task| job.time(task, server).as_secs_f64()).collect();
                times.sort_by(f64::total_cmp);
                let mut now = job.waits[server].as_secs_f64();
                for time in times {
                    now += time;
                    last = last.max(now);
                    sum += now;
                }
            }
            best = (best.0.min(last), best.1.min(sum / tasks as f64));
        }
        best
    }

    #[test]
    fn the_best_schedule_equals_exhaustive_search_and_no_bound_exceeds_it() {
        for seed in 0..60 {
            let job = job(seed, 2 + seed as u32 % 4, 2 + seed as u32 % 3, [1.0, 1.5, 3.0][seed as usize % 3]);
            let (last, of_tasks) = by_trying_all(&job);
            let known = Matcher::Greedy.complete(&job, 3).into_iter().map(Duration::as_secs_f64).fold(0.0, f64::max);
            let near = |ours: f64, theirs: f64| (ours - theirs).abs() < 2e-6;
            assert!(near(exact_completion_s(&job, known), last), "seed {seed}");
            assert!(near(least_mean_s(&job), of_tasks), "seed {seed}");
            assert!(least_completion_s(&job) <= last + 2e-6, "seed {seed}");
        }
    }

    #[test]
    fn every_matcher_completes_every_task_and_none_before_the_bound() {
        for seed in 0..6 {
            let job = job(seed, 50, 12, 2.0);
            for matcher in Matcher::ALL {
                let done = matcher.complete(&job, 3);
                assert_eq!(done.len(), 50);
                let last = done.iter().max().map_or(0.0, |last| last.as_secs_f64());
                assert!(last >= least_completion_s(&job), "{}", matcher.name());
            }
        }
    }
}
