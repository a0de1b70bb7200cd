//! A job of figure 12, and its schedule by each matcher: tasks of random run times on servers with one slot. Each server has a
//! random wait and is preferred by some tasks. All tasks are dispatched at once; a server runs them in the order of their
//! dispatch.

use super::scenario::Quality;
use crate::matching::{Acceptance, Costs, Pair, Stable, greedy, optimal};
use amalgam_core::policy::matching::{Growing, Pairing, Regret};
use amalgam_core::vocabulary::{Chance, Duration};
use std::cmp::Reverse;

pub struct Job {
    /// By server.
    pub waits: Vec<Duration>,
    pub tasks: Vec<Task>,
}

#[derive(Clone, Copy)]
pub struct Task {
    pub preferred: usize,
    /// The run time on the preferred server; the field after it is for any other server.
    pub fast: Duration,
    pub slow: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Matcher {
    /// As in the paper, with a limited number of rounds for each batch.
    Stable,
    /// With as many rounds as there are unmatched tasks.
    AllRounds,
    /// The rule of Gale and Shapley.
    Deferred,
    /// One task after the other, each on the server that completes it first, considering the tasks before it.
    Greedy,
    /// The same with at most one task for each server in a batch, as in figure 5.
    GreedyBatches,
    /// Greedy, with the longest task first.
    LongestFirst,
    /// In batches, each with the least sum of completion times.
    LeastSum,
    /// One task after the other; first the one that would complete last without its best server: the preset apollo-plus.
    Regret,
}

impl Matcher {
    pub const ALL: [Matcher; 8] = [
        Matcher::Stable,
        Matcher::Greedy,
        Matcher::AllRounds,
        Matcher::Deferred,
        Matcher::GreedyBatches,
        Matcher::LongestFirst,
        Matcher::LeastSum,
        Matcher::Regret,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Matcher::Stable => "stable",
            Matcher::AllRounds => "stable, all rounds",
            Matcher::Deferred => "stable, deferred",
            Matcher::Greedy => "greedy",
            Matcher::GreedyBatches => "greedy in batches",
            Matcher::LongestFirst => "greedy, longest first",
            Matcher::LeastSum => "least sum",
            Matcher::Regret => "greatest regret first (apollo-plus)",
        }
    }

    /// The completion of each task.
    pub fn complete(self, job: &Job, rounds: u32) -> Vec<Duration> {
        let stable = |rounds, acceptance| {
            let mut matcher = Stable::new(rounds, acceptance);
            // The order of dispatch does not matter: each server gets at most one pair of a batch.
            job.in_batches(move |costs| matcher.find(costs, |pair| costs.of(pair)).to_vec())
        };
        match self {
            Matcher::Stable => stable(rounds, Acceptance::Final),
            Matcher::AllRounds => stable(u32::MAX, Acceptance::Final),
            Matcher::Deferred => stable(u32::MAX, Acceptance::Deferred),
            Matcher::Greedy => job.one_by_one((0..job.tasks.len()).collect()),
            Matcher::GreedyBatches => job.in_batches(greedy),
            Matcher::LongestFirst => {
                let mut order: Vec<usize> = (0..job.tasks.len()).collect();
                order.sort_by_key(|&task| Reverse(job.tasks[task].slow));
                job.one_by_one(order)
            }
            Matcher::LeastSum => job.in_batches(optimal),
            Matcher::Regret => job.by_regret(),
        }
    }
}

impl Job {
    pub fn draw(set_up: &Quality, tasks: u32, speed_up: f64, chance: &mut Chance) -> Job {
        let mut exponential = |mean: f64| -mean * (1.0 - chance.unit()).ln();
        let waits = (0..set_up.servers).map(|_| micros(exponential(set_up.mean_wait_s))).collect();
        let run_times: Vec<f64> = (0..tasks).map(|_| exponential(set_up.mean_run_time_s)).collect();
        let task = |run_time: f64| Task {
            preferred: chance.below(set_up.servers) as usize,
            fast: micros(run_time / speed_up),
            slow: micros(run_time),
        };
        Job { waits, tasks: run_times.into_iter().map(task).collect() }
    }

    pub fn time(&self, task: usize, server: usize) -> Duration {
        let Task { preferred, fast, slow } = self.tasks[task];
        if server == preferred { fast } else { slow }
    }

    /// All remaining tasks are a batch. Each server gets at most one of them, and waits are updated after the batch.
    fn in_batches(&self, mut find: impl FnMut(&Costs) -> Vec<Pair>) -> Vec<Duration> {
        let mut waits = self.waits.clone();
        let mut done: Vec<Option<Duration>> = vec![None; self.tasks.len()];
        let mut costs = Costs::default();
        loop {
            let left: Vec<usize> = (0..done.len()).filter(|&task| done[task].is_none()).collect();
            if left.is_empty() {
                return done.into_iter().flatten().collect();
            }
            costs.clear(left.len(), waits.len());
            for (row, &task) in left.iter().enumerate() {
                for (server, cost) in costs.row_mut(row).iter_mut().enumerate() {
                    *cost = waits[server] + self.time(task, server);
                }
            }
            for pair in find(&costs) {
                let end = costs.of(pair);
                waits[pair.node as usize] = end;
                done[left[pair.task as usize]] = Some(end);
            }
        }
    }

    /// All tasks are one batch. A server gets all tasks that complete there first.
    fn by_regret(&self) -> Vec<Duration> {
        let mut matcher = Regret::default();
        for _ in &self.tasks {
            matcher.push_task();
            (0..self.waits.len()).for_each(|server| assert!(matcher.push(server as u32)));
        }
        let mut done = vec![Duration::ZERO; self.tasks.len()];
        let found = matcher.find(|servers| Servers {
            job: self,
            waits: servers.iter().map(|&server| self.waits[server as usize]).collect(),
        });
        found.iter().for_each(|one| done[one.task as usize] = one.cost);
        done
    }

    fn one_by_one(&self, order: Vec<usize>) -> Vec<Duration> {
        let mut waits = self.waits.clone();
        let mut done = vec![Duration::ZERO; self.tasks.len()];
        for task in order {
            let ends = waits.iter().enumerate().map(|(server, &wait)| (wait + self.time(task, server), server));
            let (end, server) = ends.min().expect("there are servers");
            waits[server] = end;
            done[task] = end;
        }
        done
    }
}

/// Waits grow with the tasks that servers get.
struct Servers<'a> {
    job: &'a Job,
    waits: Vec<Duration>,
}

impl Growing for Servers<'_> {
    fn offer(&self, of: Pairing) -> (Duration, Duration) {
        let wait = self.waits[of.place as usize];
        (wait + self.job.time(of.task as usize, of.node as usize), wait)
    }

    fn assign(&mut self, of: Pairing) {
        self.waits[of.place as usize] = self.offer(of).0;
    }
}

fn micros(seconds: f64) -> Duration {
    Duration((seconds * 1e6).round() as u64)
}
