//! How a job would go with its share to itself: its tasks start as they fit into the share, nothing is put off, and nobody
//! gives it more. Its end is what the job's real end is compared with (ADR 38).
//!
//! It goes on by itself, whatever happens to the job. It is packed anew from where it stands when the share changes, when
//! run times turn out others, and when a task comes back: then it has one more to run, and what runs of that stage ends.

use super::altruistic::is_near;
use super::plan::{Order, Schedule, StageWork, pack};
use crate::policy::{StageGraph, run_time};
use crate::vocabulary::{Duration, Instant, Totals};

pub(super) struct Alone {
    share: Totals,
    /// When it was packed last.
    since: Instant,
    work: Vec<StageWork>,
    /// From `since` on.
    schedule: Schedule,
    /// By stage: the job's tasks that had started at the last look.
    started: Vec<u32>,
}

impl Alone {
    pub fn new(now: Instant, work: Vec<StageWork>, share: &Totals, order: &Order) -> Alone {
        let schedule = pack(&work, share, order);
        let started = vec![0; work.len()];
        Alone { share: *share, since: now, work, schedule, started }
    }

    pub fn end(&self) -> Instant {
        self.since + self.schedule.length
    }

    /// Takes in what has become of the job.
    pub fn follow(&mut self, now: Instant, graph: &dyn StageGraph, share: &Totals, order: &Order) {
        let came_back: Vec<u32> = self
            .started
            .iter_mut()
            .enumerate()
            .map(|(stage, before)| {
                let started = graph.tasks(stage as u32) - graph.unstarted(stage as u32);
                std::mem::replace(before, started).saturating_sub(started)
            })
            .collect();
        let is_off = |(stage, work): (usize, &StageWork)| {
            work.unstarted > 0 && !is_near(work.duration, run_time(graph.expected(stage as u32)))
        };
        let is_same = self.share == *share && came_back.iter().all(|&tasks| tasks == 0);
        if is_same && !self.work.iter().enumerate().any(is_off) {
            return;
        }
        self.work = self.work_at(now);
        for (stage, (work, more)) in self.work.iter_mut().zip(came_back).enumerate() {
            work.unstarted += more;
            work.drop_running(more);
            work.duration = Duration(run_time(graph.expected(stage as u32)).0.max(1));
        }
        (self.since, self.share) = (now, *share);
        self.schedule = pack(&self.work, share, order);
    }

    /// What is left of it.
    fn work_at(&self, now: Instant) -> Vec<StageWork> {
        let passed = now.since(self.since);
        let stages = self.work.iter().zip(&self.schedule.starts).map(|(work, starts)| {
            // What would start just now may start otherwise.
            let ends = starts.iter().filter(|(start, _)| *start < passed);
            let ends = ends.map(|(start, count)| (*start + work.duration, *count)).chain(work.running.iter().copied());
            let mut running: Vec<(Duration, u32)> =
                ends.filter(|(end, _)| *end > passed).map(|(end, count)| (end - passed, count)).collect();
            running.sort_unstable();
            let unstarted = starts.iter().filter(|(start, _)| *start >= passed).map(|(_, count)| count).sum();
            StageWork { unstarted, running, after: work.after.clone(), ..*work }
        });
        stages.collect()
    }
}

impl StageWork {
    /// So many of those that run do not any more: those that would end last.
    fn drop_running(&mut self, mut tasks: u32) {
        while let Some((_, count)) = self.running.last_mut().filter(|_| tasks > 0) {
            let dropped = tasks.min(*count);
            (*count, tasks) = (*count - dropped, tasks - dropped);
            self.running.pop_if(|(_, count)| *count == 0);
        }
    }
}
