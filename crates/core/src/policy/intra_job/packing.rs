//! Greedy list scheduling of a job's remaining work into its share. (Carbyne, Pseudocode 1, line 17.)

use super::plan::Order;
use super::remaining::{Remaining, Run};
use crate::policy::timeline::Amounts;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Tasks that are much shorter than this many ticks run in a row for up to that time.
const TICKS_IN_A_ROW: u64 = 2;
/// Freed room of more than one part in this many of the share is used at once, without waiting for the next tick.
const SMALL_PARTS: i64 = 16;
/// A kind of resource that is completely free and completely requested contributes this much to the alignment.
const ONE: u128 = 1 << 120;

pub(super) fn pack<const K: usize>(job: &Remaining<K>, order: &Order) -> Vec<Run> {
    let mut packer = Packer::new(job, order);
    packer.pack();
    packer.runs
}

struct Packer<'a, const K: usize> {
    job: &'a Remaining<K>,
    /// By stage: its rank among ready stages. `None` if the best aligned stage is served first.
    ranks: Option<Vec<u32>>,
    alignment: Alignment<K>,
    free: Amounts<K>,
    ends: BinaryHeap<Reverse<(u64, End)>>,
    unstarted: Vec<u32>,
    /// By stage: how many of its dependencies have not ended.
    missing: Vec<u32>,
    /// By stage: the latest end of its tasks so far.
    until: Vec<u64>,
    /// Stages that have unstarted tasks and no missing dependencies, by rank.
    ready: Vec<u32>,
    left: u64,
    runs: Vec<Run>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// Running tasks, by the index of their release.
    Running(u32),
    Run(u32),
    /// All tasks of a stage.
    Stage(u32),
}

impl<'a, const K: usize> Packer<'a, K> {
    fn new(job: &'a Remaining<K>, order: &Order) -> Packer<'a, K> {
        let mut packer = Packer {
            job,
            ranks: ranks(job, order),
            alignment: Alignment::with(&job.share),
            free: job.free(),
            ends: BinaryHeap::with_capacity(job.releases.len() + 2 * job.stages.len()),
            unstarted: job.stages.iter().map(|stage| stage.unstarted).collect(),
            missing: job.stages.iter().map(|stage| stage.inputs).collect(),
            until: job.stages.iter().map(|stage| stage.running_until).collect(),
            ready: Vec::with_capacity(job.stages.len()),
            left: job.unstarted,
            runs: Vec::with_capacity(4 * job.stages.len()),
        };
        for (at, (end, _)) in job.releases.iter().enumerate() {
            packer.ends.push(Reverse((*end, End::Running(at as u32))));
        }
        for (index, stage) in job.stages.iter().enumerate() {
            if stage.unstarted == 0 {
                packer.ends.push(Reverse((stage.running_until, End::Stage(index as u32))));
            } else if stage.inputs == 0 {
                packer.make_ready(index as u32);
            }
        }
        packer
    }

    fn pack(&mut self) {
        let mut now = self.pass(0);
        loop {
            match self.ranks {
                Some(_) => self.start_in_order(now),
                None => self.start_aligned(now),
            }
            if self.left == 0 {
                break;
            }
            let Reverse((next, _)) = self.ends.peek().expect("something ends while tasks wait");
            now = self.pass((*next).max(now + self.job.tick));
        }
    }

    /// Processes all ends until then, or only until a stage ends or much room is free, which must not wait for a tick.
    /// Returns the time reached.
    fn pass(&mut self, mut until: u64) -> u64 {
        let before = self.free;
        while let Some(&Reverse((at, end))) = self.ends.peek().filter(|Reverse((at, _))| *at <= until) {
            self.ends.pop();
            match end {
                End::Running(release) => self.free.add(&self.job.releases[release as usize].1, 1),
                End::Run(run) => {
                    let run = self.runs[run as usize];
                    self.free.add(&self.job.stages[run.stage as usize].demand, i64::from(run.count));
                    if self.is_much_more_than(&before) {
                        until = at;
                    }
                }
                End::Stage(stage) => {
                    until = at;
                    self.on_stage_ended(stage);
                }
            }
            if self.ends.is_empty() {
                until = at;
            }
        }
        until
    }

    fn is_much_more_than(&self, before: &Amounts<K>) -> bool {
        (0..K).any(|kind| self.free.0[kind] - before.0[kind] > self.job.share.0[kind] / SMALL_PARTS)
    }

    fn on_stage_ended(&mut self, stage: u32) {
        for &next in &self.job.stages[stage as usize].dependents {
            self.missing[next as usize] -= 1;
            if self.missing[next as usize] == 0 && self.unstarted[next as usize] > 0 {
                self.make_ready(next);
            }
        }
    }

    fn make_ready(&mut self, stage: u32) {
        let place = match &self.ranks {
            Some(ranks) => self.ready.partition_point(|&other| ranks[other as usize] < ranks[stage as usize]),
            None => self.ready.partition_point(|&other| other < stage),
        };
        self.ready.insert(place, stage);
    }

    fn start_in_order(&mut self, now: u64) {
        let mut ready = std::mem::take(&mut self.ready);
        ready.retain(|&stage| {
            let fitting = self.free.times(&self.job.stages[stage as usize].demand);
            if fitting > 0 {
                self.start(stage, fitting, now);
            }
            self.unstarted[stage as usize] > 0
        });
        self.ready = ready;
    }

    fn start_aligned(&mut self, now: u64) {
        let mut fitting: Vec<u32> = self.ready.clone();
        loop {
            fitting.retain(|&stage| self.free.has(&self.job.stages[stage as usize].demand));
            let aligned = |&&stage: &&u32| {
                (self.alignment.of(&self.job.stages[stage as usize].demand, &self.free), Reverse(stage))
            };
            let Some(&best) = fitting.iter().max_by_key(aligned) else { break };
            self.start(best, self.free.times(&self.job.stages[best as usize].demand), now);
            fitting.retain(|&stage| stage != best);
        }
        let unstarted = &self.unstarted;
        self.ready.retain(|&stage| unstarted[stage as usize] > 0);
    }

    /// Starts tasks of a stage of which `fitting` fit at once.
    fn start(&mut self, stage: u32, fitting: u32, now: u64) {
        let (unstarted, duration) = (self.unstarted[stage as usize], self.job.stages[stage as usize].duration);
        let count = fitting.min(unstarted);
        let rows = unstarted.div_ceil(count);
        let in_a_row = (TICKS_IN_A_ROW * self.job.tick / duration).clamp(1, u64::from(rows)) as u32;
        // The last row may not have enough tasks for all.
        let lacking = (u64::from(count) * u64::from(in_a_row)).saturating_sub(u64::from(unstarted)) as u32;
        self.run(Run { stage, at: now, count: count - lacking, in_a_row });
        if lacking > 0 {
            self.run(Run { stage, at: now, count: lacking, in_a_row: in_a_row - 1 });
        }
        if self.unstarted[stage as usize] == 0 && !self.job.stages[stage as usize].dependents.is_empty() {
            self.ends.push(Reverse((self.until[stage as usize], End::Stage(stage))));
        }
    }

    fn run(&mut self, run: Run) {
        let stage = run.stage as usize;
        let end = run.at + self.job.lasting(&run);
        self.free.add(&self.job.stages[stage].demand, -i64::from(run.count));
        self.ends.push(Reverse((end, End::Run(self.runs.len() as u32))));
        let is_first = self.unstarted[stage] == self.job.stages[stage].unstarted;
        let longest = if is_first { self.job.stages[stage].longest } else { 0 };
        self.until[stage] = self.until[stage].max(end).max(run.at + longest);
        self.unstarted[stage] -= run.count * run.in_a_row;
        self.left -= u64::from(run.count) * u64::from(run.in_a_row);
        self.runs.push(run);
    }
}

fn ranks<const K: usize>(job: &Remaining<K>, order: &Order) -> Option<Vec<u32>> {
    let mut ranks: Vec<u32> = (0..job.stages.len() as u32).collect();
    match order {
        Order::Packing => return None,
        Order::BreadthFirst => {}
        Order::CriticalPath => {
            let mut listed = ranks.clone();
            listed.sort_by_key(|&stage| (Reverse(job.stages[stage as usize].path), stage));
            listed.iter().zip(0..).for_each(|(&stage, rank)| ranks[stage as usize] = rank);
        }
        Order::Listed(listed) => {
            ranks.iter_mut().for_each(|rank| *rank += listed.len() as u32);
            listed.iter().zip(0..).for_each(|(&stage, rank)| ranks[stage as usize] = rank);
        }
    }
    Some(ranks)
}

/// The dot product of a demand and the free resources, both as fractions of the share (as `policy::Alignment`, which is
/// for the resources of a single node).
struct Alignment<const K: usize>([u128; K]);

impl<const K: usize> Alignment<K> {
    fn with(share: &Amounts<K>) -> Alignment<K> {
        Alignment(share.0.map(|of| ONE.checked_div(of as u128 * of as u128).unwrap_or(0)))
    }

    /// The alignment of a demand that fits into `free`.
    fn of(&self, demand: &Amounts<K>, free: &Amounts<K>) -> u128 {
        (0..K).map(|kind| (demand.0[kind] as u128 * free.0[kind].max(0) as u128) * self.0[kind]).sum()
    }
}
