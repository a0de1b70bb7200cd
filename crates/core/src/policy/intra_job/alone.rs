//! How a job would go with its share to itself: its tasks start as they fit into the share, nothing is put off, and nobody
//! gives it more. Its end is what the job's real end is compared with (ADR 38).
//!
//! Its course is a list of turns, from one moment at which something changed for it to the next: another share, or tasks that
//! came back, of which it then has one more to run each while what runs of their stage ends. In a turn it goes on by itself,
//! whatever happens to the job. While the job has no share, or is on hold, nothing starts.
//!
//! A new turn is packed from where the course stands: one packing. When run times turn out others than they were taken to be,
//! they were so from the beginning: all turns are packed again. So that this takes less than a millisecond, fewer turns are
//! kept of a job of many stages; it is done once while the job's age grows by an eighth, and not together with a plan; until
//! then the course stays wrong. At the end of the job it has the run times that its tasks had in the mean, and no stage ends
//! before one of its tasks could that takes as long as its longest did.

use super::plan::{Order, Schedule, StageWork, pack};
use crate::policy::{StageGraph, is_near, run_time};
use crate::vocabulary::{Duration, Instant, Totals};

/// While the age grows by one part in so many, all is packed again once.
const AGAIN_BY: u64 = 8;

/// Of more turns, or where stages times turns are more, the two neighbours that were shortest together become one, with the
/// mean of their shares. What was packed already stays as it is then.
const MOST_TURNS: usize = 64;
const STAGES_TIMES_TURNS: usize = 600;
/// So many are kept however many stages there are.
const LEAST_TURNS: usize = 4;

pub(super) struct Alone {
    /// The job when this began, with the run times that were expected then.
    begin: Vec<StageWork>,
    /// At least one.
    turns: Vec<Turn>,
    /// When the last turn begins, with the run times that are expected now.
    work: Vec<StageWork>,
    /// By stage, what the longest of its tasks is taken to take.
    longest: Vec<Duration>,
    /// From then on.
    schedule: Schedule,
    /// Tasks that came back since the last look, by stage.
    came_back: Vec<(u32, u32)>,
    /// Not before then all is packed again.
    again_at: Instant,
    /// It was packed in another order than it is now.
    is_reordered: bool,
}

struct Turn {
    at: Instant,
    share: Totals,
    /// Nothing starts.
    is_paused: bool,
    /// By stage, how many tasks.
    came_back: Vec<(u32, u32)>,
}

impl Turn {
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
    pub fn new(now: Instant, begin: Vec<StageWork>, share: &Totals, order: &Order) -> Alone {
        let schedule = pack(&begin, share, order);
        let longest = begin.iter().map(|work| work.duration).collect();
        let turn = Turn { at: now, share: *share, is_paused: false, came_back: Vec::new() };
        Alone {
            work: begin.clone(),
            begin,
            longest,
            turns: vec![turn],
            schedule,
            came_back: Vec::new(),
            again_at: now,
            is_reordered: false,
        }
    }

    /// Of a course that is paused, if it went on now. `None` while run times are not known, or known to be others than it has.
    pub fn end(&self, now: Instant, graph: &dyn StageGraph) -> Option<Instant> {
        if self.is_off(graph) || !graph.knows_run_times() {
            return None;
        }
        let turn = self.last();
        let waits = turn.is_paused && self.work.iter().any(|work| work.unstarted > 0);
        Some((if waits { now } else { turn.at }) + self.schedule.length)
    }

    /// Takes in what has become of the job; nothing starts where there is no share. All is packed again only where there is
    /// time for it.
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
            self.turn(Turn { at: now, share, is_paused, came_back });
            if !again {
                self.pack(order);
            }
        }
        if again {
            self.replay(graph, order);
            self.is_reordered = false;
            self.again_at = now + Duration(now.since(self.turns[0].at).0 / AGAIN_BY);
        }
    }

    /// The order of the stages is another one from now on, and was so from the beginning.
    pub fn reorder(&mut self) {
        self.is_reordered = true;
    }

    pub fn came_back(&mut self, stage: u32) {
        add(&mut self.came_back, stage, 1);
    }

    fn last(&self) -> &Turn {
        self.turns.last().expect("it began with one")
    }

    /// By stage, as they are taken to be.
    fn run_times(&self) -> impl Iterator<Item = [Duration; 2]> {
        self.work.iter().zip(&self.longest).map(|(work, longest)| [work.duration, *longest])
    }

    /// Whether run times are others than they are taken to be.
    fn is_off(&self, graph: &dyn StageGraph) -> bool {
        let is_near =
            |taken: &[Duration; 2], expected: [Duration; 2]| (0..2).all(|at| is_near(taken[at], expected[at]));
        self.run_times().zip(0..).any(|(taken, stage)| !is_near(&taken, run_times(graph, stage)))
    }

    fn is_inexact(&self, graph: &dyn StageGraph) -> bool {
        self.run_times().zip(0..).any(|(taken, stage)| taken != run_times(graph, stage))
    }

    /// From now on it is this one's turn.
    fn turn(&mut self, turn: Turn) {
        self.work = self.work_at(turn.at);
        self.work.iter_mut().zip(0..).for_each(|(work, stage)| work.take_back(stage, &turn.came_back));
        match self.turns.last_mut().filter(|last| last.at == turn.at) {
            Some(last) => {
                (last.share, last.is_paused) = (turn.share, turn.is_paused);
                last.add(turn.came_back);
            }
            None => self.turns.push(turn),
        }
        let most = (STAGES_TIMES_TURNS / self.begin.len().max(1)).clamp(LEAST_TURNS, MOST_TURNS);
        if self.turns.len() > most {
            self.merge_the_shortest();
        }
    }

    fn pack(&mut self, order: &Order) {
        let turn = self.last();
        let (share, is_paused) = (turn.share, turn.is_paused);
        self.schedule = pack(&self.work, &share, order);
        if is_paused {
            self.schedule.starts.iter_mut().for_each(Vec::clear);
        }
    }

    fn merge_the_shortest(&mut self) {
        let length = |first: usize| self.turns[first + 2].at.since(self.turns[first].at);
        let Some(first) = (0..self.turns.len() - 2).min_by_key(|&first| length(first)) else { return };
        let second = self.turns.remove(first + 1);
        let end = self.turns[first + 1].at;
        let kept = &mut self.turns[first];
        let weight = |turn: &Turn, until: Instant| if turn.is_paused { 0 } else { u128::from(until.since(turn.at).0) };
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

    /// All turns again, with the run times of now.
    fn replay(&mut self, graph: &dyn StageGraph, order: &Order) {
        let again = self.begin.iter().zip(0..).map(|(work, stage)| {
            let [expected, longest] = run_times(graph, stage);
            let none_had_started = work.unstarted == graph.tasks(stage);
            StageWork {
                longest: if none_had_started { longest } else { Duration::ZERO },
                ..work.with_run_time(expected)
            }
        });
        self.work = again.collect();
        self.longest = (0..self.begin.len() as u32).map(|stage| run_times(graph, stage)[1]).collect();
        let turns = std::mem::take(&mut self.turns);
        for turn in turns {
            if !self.turns.is_empty() {
                self.work = self.work_at(turn.at);
            }
            self.work.iter_mut().zip(0..).for_each(|(work, stage)| work.take_back(stage, &turn.came_back));
            self.turns.push(turn);
            self.pack(order);
        }
    }

    /// What is left of it.
    fn work_at(&self, now: Instant) -> Vec<StageWork> {
        let passed = now.since(self.last().at);
        let stages = self.work.iter().zip(&self.schedule.starts).map(|(work, starts)| {
            // What would start just now may start otherwise.
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

/// Of a task in the mean, and of the longest.
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
    /// What runs ends as much later or earlier.
    fn with_run_time(&self, duration: Duration) -> StageWork {
        let shifted = |left: Duration| left.0.saturating_add(duration.0).saturating_sub(self.duration.0).max(1);
        let running = self.running.iter().map(|(left, count)| (Duration(shifted(*left)), *count)).collect();
        StageWork { duration, running, after: self.after.clone(), ..*self }
    }

    /// One more to run of each task of this stage that came back.
    fn take_back(&mut self, stage: u32, came_back: &[(u32, u32)]) {
        let tasks = came_back.iter().filter(|(of, _)| *of == stage).map(|(_, tasks)| tasks).sum();
        self.unstarted += tasks;
        self.drop_running(tasks);
    }

    /// So many of those that run do not any more: those that would end last.
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
