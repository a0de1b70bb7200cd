//! How a job would run with exactly its share: its tasks start as they fit into the share, none is delayed, and the job
//! receives no more than its share. The job's real end is compared with the end of this course (ADR 38).
//!
//! The course is a list of phases. A new phase starts when something changes for the job: its share, or tasks that came
//! back (each adds one task to run, and one running task of the stage less). Within a phase the course does not depend
//! on events. While the job has no share, or is on hold, nothing starts.
//!
//! A new phase is packed from the present state of the course: one packing. When run times differ from those assumed,
//! they did so from the beginning, and all phases are packed again. To keep this below a millisecond, fewer phases are
//! kept for jobs of many stages, and all phases are packed again at most once while the job's age grows by an eighth,
//! and not in the same event as a plan; until then the course is inexact. At the end of the job it uses the mean run
//! times of its tasks, and no stage ends before a task as long as its longest could.

use super::plan::{Order, Schedule, StageWork, pack};
use crate::policy::{StageGraph, is_near, run_time};
use crate::vocabulary::{Duration, Instant, Totals};

/// All phases are packed again at most once while the age grows by one part in this many.
const AGAIN_BY: u64 = 8;

/// If there are more phases, or stages times phases are more, the two neighbours with the shortest total time are merged,
/// with the mean of their shares. Phases that are packed already are not packed again for that.
const MOST_PHASES: usize = 64;
const STAGES_TIMES_PHASES: usize = 600;
/// This many phases are kept for any number of stages.
const LEAST_PHASES: usize = 4;

pub(super) struct Alone {
    /// The job when the course started, with the run times expected then.
    at_start: Vec<StageWork>,
    /// At least one.
    phases: Vec<Phase>,
    /// The job at the start of the last phase, with the run times expected now.
    work: Vec<StageWork>,
    /// By stage: the assumed run time of the longest task.
    longest: Vec<Duration>,
    /// The schedule from the start of the last phase.
    schedule: Schedule,
    /// By stage: tasks that came back since the last call of `follow`.
    came_back: Vec<(u32, u32)>,
    /// All phases are not packed again before this time.
    again_at: Instant,
    /// The order of stages has changed since the last packing of all phases.
    is_reordered: bool,
}

struct Phase {
    at: Instant,
    share: Totals,
    /// No task starts.
    is_paused: bool,
    /// By stage: the number of tasks.
    came_back: Vec<(u32, u32)>,
}

impl Phase {
    fn add(&mut self, came_back: Vec<(u32, u32)>) {
        for (stage, tasks) in came_back {
            add(&mut self.came_back, stage, tasks);
        }
    }
}

fn add(came_back: &mut Vec<(u32, u32)>, stage: u32, tasks: u32) {
    match came_back.iter_mut().find(|(of, _)| *of == stage) {
        Some((_, all)) => *all += tasks,
        None => came_back.push((stage, tasks)),
    }
}

impl Alone {
    pub fn new(now: Instant, at_start: Vec<StageWork>, share: &Totals, order: &Order) -> Alone {
        let schedule = pack(&at_start, share, order);
        let longest = at_start.iter().map(|work| work.duration).collect();
        let phase = Phase { at: now, share: *share, is_paused: false, came_back: Vec::new() };
        Alone {
            work: at_start.clone(),
            at_start,
            longest,
            phases: vec![phase],
            schedule,
            came_back: Vec::new(),
            again_at: now,
            is_reordered: false,
        }
    }

    /// The end of the course; for a paused one, the end if it continued now. `None` while run times are unknown, or
    /// known to differ from the assumed ones.
    pub fn end(&self, now: Instant, graph: &dyn StageGraph) -> Option<Instant> {
        if self.is_off(graph) || !graph.knows_run_times() {
            return None;
        }
        let phase = self.last();
        let waits = phase.is_paused && self.work.iter().any(|work| work.unstarted > 0);
        Some((if waits { now } else { phase.at }) + self.schedule.length)
    }

    /// Applies changes of the job; without a share no task starts. All phases are packed again only if `has_time`.
    pub fn follow(
        &mut self,
        now: Instant,
        graph: &dyn StageGraph,
        share: Option<&Totals>,
        order: &Order,
        has_time: bool,
    ) {
        let came_back = std::mem::take(&mut self.came_back);
        let last = self.last();
        let (share, is_paused) = (share.copied().unwrap_or(last.share), share.is_none());
        let is_due = self.is_off(graph) && now >= self.again_at || self.is_reordered;
        let again = is_due && has_time || self.is_inexact(graph) && has_ended(graph);
        if !came_back.is_empty() || (share, is_paused) != (last.share, last.is_paused) {
            self.start_phase(Phase { at: now, share, is_paused, came_back });
            if !again {
                self.pack(order);
            }
        }
        if again {
            self.replay(graph, order);
            self.is_reordered = false;
            self.again_at = now + Duration(now.since(self.phases[0].at).0 / AGAIN_BY);
        }
    }

    /// The order of the stages has changed; the new one applies from the start of the course.
    pub fn reorder(&mut self) {
        self.is_reordered = true;
    }

    pub fn came_back(&mut self, stage: u32) {
        add(&mut self.came_back, stage, 1);
    }

    fn last(&self) -> &Phase {
        self.phases.last().expect("there is always a phase")
    }

    /// By stage: the assumed mean and longest run times.
    fn run_times(&self) -> impl Iterator<Item = [Duration; 2]> {
        self.work.iter().zip(&self.longest).map(|(work, longest)| [work.duration, *longest])
    }

    /// Whether run times differ from the assumed ones.
    fn is_off(&self, graph: &dyn StageGraph) -> bool {
        let is_near =
            |taken: &[Duration; 2], expected: [Duration; 2]| (0..2).all(|at| is_near(taken[at], expected[at]));
        self.run_times().zip(0..).any(|(taken, stage)| !is_near(&taken, run_times(graph, stage)))
    }

    fn is_inexact(&self, graph: &dyn StageGraph) -> bool {
        self.run_times().zip(0..).any(|(taken, stage)| taken != run_times(graph, stage))
    }

    /// Starts a new phase.
    fn start_phase(&mut self, phase: Phase) {
        self.work = self.work_at(phase.at);
        self.work.iter_mut().zip(0..).for_each(|(work, stage)| work.take_back(stage, &phase.came_back));
        match self.phases.last_mut().filter(|last| last.at == phase.at) {
            Some(last) => {
                (last.share, last.is_paused) = (phase.share, phase.is_paused);
                last.add(phase.came_back);
            }
            None => self.phases.push(phase),
        }
        let most = (STAGES_TIMES_PHASES / self.at_start.len().max(1)).clamp(LEAST_PHASES, MOST_PHASES);
        if self.phases.len() > most {
            self.merge_the_shortest();
        }
    }

    fn pack(&mut self, order: &Order) {
        let phase = self.last();
        let (share, is_paused) = (phase.share, phase.is_paused);
        self.schedule = pack(&self.work, &share, order);
        if is_paused {
            self.schedule.starts.iter_mut().for_each(Vec::clear);
        }
    }

    fn merge_the_shortest(&mut self) {
        let length = |first: usize| self.phases[first + 2].at.since(self.phases[first].at);
        let Some(first) = (0..self.phases.len() - 2).min_by_key(|&first| length(first)) else { return };
        let second = self.phases.remove(first + 1);
        let end = self.phases[first + 1].at;
        let kept = &mut self.phases[first];
        let weight =
            |phase: &Phase, until: Instant| if phase.is_paused { 0 } else { u128::from(until.since(phase.at).0) };
        let (one, other) = (weight(kept, second.at), weight(&second, end));
        let time = u128::from(end.since(kept.at).0).max(1);
        if one + other > 0 {
            let mean =
                |kind: usize| (u128::from(kept.share.0[kind]) * one + u128::from(second.share.0[kind]) * other) / time;
            kept.share = Totals(std::array::from_fn(|kind| mean(kind) as u64));
            kept.is_paused = false;
        }
        kept.add(second.came_back);
    }

    /// Packs all phases again, with the run times expected now.
    fn replay(&mut self, graph: &dyn StageGraph, order: &Order) {
        let again = self.at_start.iter().zip(0..).map(|(work, stage)| {
            let [expected, longest] = run_times(graph, stage);
            let none_had_started = work.unstarted == graph.tasks(stage);
            StageWork {
                longest: if none_had_started { longest } else { Duration::ZERO },
                ..work.with_run_time(expected)
            }
        });
        self.work = again.collect();
        self.longest = (0..self.at_start.len() as u32).map(|stage| run_times(graph, stage)[1]).collect();
        let phases = std::mem::take(&mut self.phases);
        for phase in phases {
            if !self.phases.is_empty() {
                self.work = self.work_at(phase.at);
            }
            self.work.iter_mut().zip(0..).for_each(|(work, stage)| work.take_back(stage, &phase.came_back));
            self.phases.push(phase);
            self.pack(order);
        }
    }

    /// The work left at this time.
    fn work_at(&self, now: Instant) -> Vec<StageWork> {
        let passed = now.since(self.last().at);
        let stages = self.work.iter().zip(&self.schedule.starts).map(|(work, starts)| {
            // Tasks that would start now may start in another way.
            let starts = || starts.iter().filter(|(start, _)| *start < passed);
            let ends =
                starts().map(|(start, count)| (*start + work.duration, *count)).chain(work.running.iter().copied());
            let mut running: Vec<(Duration, u32)> =
                ends.filter(|(end, _)| *end > passed).map(|(end, count)| (end - passed, count)).collect();
            running.sort_unstable();
            let unstarted = work.unstarted - starts().map(|(_, count)| count).sum::<u32>();
            let (longest, not_before) = match starts().next() {
                Some((first, _)) if work.longest > Duration::ZERO => (Duration::ZERO, *first + work.longest),
                _ => (work.longest, work.not_before),
            };
            let not_before = Duration(not_before.0.saturating_sub(passed.0));
            StageWork { unstarted, running, after: work.after.clone(), longest, not_before, ..*work }
        });
        stages.collect()
    }
}

/// Mean and longest run time of a stage's tasks.
fn run_times(graph: &dyn StageGraph, stage: u32) -> [Duration; 2] {
    let expected = Duration(run_time(graph.expected(stage)).0.max(1));
    [expected, graph.longest(stage).max(expected)]
}

fn has_ended(graph: &dyn StageGraph) -> bool {
    let mut has_ended = (0..graph.len() as u32).all(|stage| graph.unstarted(stage) == 0);
    if has_ended {
        graph.each_running(&mut |_, _| has_ended = false);
    }
    has_ended
}

impl StageWork {
    /// Ends of running tasks move by the difference.
    fn with_run_time(&self, duration: Duration) -> StageWork {
        let shifted = |left: Duration| left.0.saturating_add(duration.0).saturating_sub(self.duration.0).max(1);
        let running = self.running.iter().map(|(left, count)| (Duration(shifted(*left)), *count)).collect();
        StageWork { duration, running, after: self.after.clone(), ..*self }
    }

    /// Adds one task to run for each task of this stage that came back.
    fn take_back(&mut self, stage: u32, came_back: &[(u32, u32)]) {
        let tasks = came_back.iter().filter(|(of, _)| *of == stage).map(|(_, tasks)| tasks).sum();
        self.unstarted += tasks;
        self.drop_running(tasks);
    }

    /// Removes this many running tasks, those that end last.
    fn drop_running(&mut self, mut tasks: u32) {
        while let Some((_, count)) = self.running.last_mut().filter(|_| tasks > 0) {
            let dropped = tasks.min(*count);
            (*count, tasks) = (*count - dropped, tasks - dropped);
            self.running.pop_if(|(_, count)| *count == 0);
        }
    }
}

#[cfg(test)]
mod tests;
