//! How many times as long tasks take on each node, learned from the attempts that ended there: the estimated completion time of a
//! task (Boutin et al. 2014: Apollo, section 3.3) is larger on a slow node.
//!
//! An attempt is compared with the earlier ones of the same ask, each by the ratio of its time to what was expected of it. So
//! jobs whose run times are estimated wrongly say nothing of the nodes on which they run. Ratios are compared on a logarithmic
//! scale: a node that takes twice as long is as far from the others as one that takes half as long. Attempts of an ask that ran at
//! the same time on a node are one piece of evidence: the first tasks of a stage are often the slowest, wherever they run.
//!
//! An attempt that was stopped or has failed counts only if it had already run for longer than what is known of the node says.
//!
//! Departs: the paper considers the load and the reliability of servers, and leaves slow ones to duplicates.

use super::reliability::decayed;
use crate::vocabulary::{AskId, Duration, Instant, NodeId};

/// A doubling, on the logarithmic scale.
const DOUBLING: i64 = 256;
/// An attempt counts as at most this much slower or faster than others.
const MOST: i64 = 3 * DOUBLING;
/// The weight of attempts of an ask that ran at the same time, if the ratios of the ask have a variance of 1: the weight is the
/// inverse of the variance.
const ONE: i64 = 1 << 32;
/// Minimum variance of ratios: that of a difference of an eighth.
const LEAST_VARIANCE: i64 = (DOUBLING / 8) * (DOUBLING / 8);
/// Maximum weight of a node's attempts, in that of asks with the least variance, so that it is judged by the recent ones.
const MOST_WEIGHT: i64 = 16 * ONE / LEAST_VARIANCE;
/// Minimum number of groups of attempts to judge a node.
const LEAST_GROUPS: u32 = 4;
/// A node is slow if its mean differs by this many standard errors.
const SURE: i64 = 5;
/// Minimum number of earlier attempts of an ask, and the number of which the mean is kept.
const LEAST_OF_ASK: i64 = 4;
const MOST_OF_ASK: i64 = 64;
/// Number of asks whose last attempts on a node are remembered.
const BATCHES: usize = 4;
/// What is known of a node is worth half as much after this many times the time of an attempt, if that is longer than the half-life.
const HALF_AFTER_RUNS: u64 = 16;
/// Number of attempts of which the mean and the variance of all are kept.
const MOST_OF_ALL: i64 = 4_096;

/// How many times as long tasks take as on other nodes, in thousandths: of a node that is as fast as others.
pub const USUAL: u32 = 1_000;
/// Nodes on which tasks take less than this are not slow.
pub const SLOW: u32 = 1_250;

/// Logarithms of ratios.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ratios {
    number: i64,
    sum: i64,
    squares: i64,
}

impl Ratios {
    fn mean(&self) -> i64 {
        self.sum.checked_div(self.number).unwrap_or_default()
    }

    fn add(&mut self, ratio: i64, most: i64) {
        if self.number == most {
            (self.number, self.sum, self.squares) = (self.number / 2, self.sum / 2, self.squares / 2);
        }
        (self.number, self.sum, self.squares) =
            (self.number + 1, self.sum + ratio, self.squares + ratio.saturating_mul(ratio));
    }

    fn variance(&self) -> i64 {
        let [number, sum, squares] = [self.number, self.sum, self.squares].map(i128::from);
        (squares * number - sum * sum).checked_div(number * number).unwrap_or_default() as i64
    }
}

/// What is known of all nodes. It is kept in memory only.
#[derive(Clone, Debug)]
pub struct NodeSpeeds {
    /// The least time in which the weight of an attempt halves.
    half_life: Duration,
    nodes: Vec<Evidence>,
    /// How much slower attempts were than the earlier ones of their asks. Of tasks that start at once, the short ones end first, so
    /// this is positive on average.
    all: Ratios,
}

#[derive(Clone, Default, Debug)]
struct Evidence {
    /// The mean of the attempts, multiplied by `weight`.
    sum: i64,
    weight: i64,
    at: Instant,
    groups: u32,
    /// How long an attempt takes, about.
    took: Duration,
    /// The last ones.
    batches: Vec<Batch>,
}

/// Attempts of an ask that ran at the same time.
#[derive(Clone, Copy, Debug)]
struct Batch {
    ask: AskId,
    /// When the first of them ended.
    ended_at: Instant,
    weight: i64,
    attempts: i64,
    sum: i64,
}

/// An attempt that ended.
#[derive(Clone, Copy, Debug)]
pub struct EndedRun {
    pub node: NodeId,
    pub ask: AskId,
    pub since: Instant,
    pub expected: Duration,
    /// It was stopped, has failed, or was refused: it would have taken longer.
    pub unfinished: bool,
}

impl Evidence {
    fn weight(&self, now: Instant, half_life: Duration) -> i64 {
        decayed(self.weight as u64, now.since(self.at), self.half_life(half_life)) as i64
    }

    fn half_life(&self, least: Duration) -> Duration {
        least.max(Duration(self.took.0.saturating_mul(HALF_AFTER_RUNS)))
    }

    /// `slower`: how much slower it was than the earlier ones of its ask, whose ratios have this variance.
    fn add(&mut self, now: Instant, run: &EndedRun, slower: i64, variance: i64, half_life: Duration) {
        let half_life = self.half_life(half_life);
        let is_recent = |batch: &Batch| now.since(batch.ended_at) < half_life;
        let is_one = |batch: &&mut Batch| batch.ask == run.ask && run.since < batch.ended_at && is_recent(batch);
        if let Some(batch) = self.batches.iter_mut().find(is_one) {
            let before = batch.sum / batch.attempts;
            (batch.attempts, batch.sum) = (batch.attempts + 1, batch.sum + slower);
            self.sum += (batch.sum / batch.attempts - before) * batch.weight;
            return;
        }
        let own = ONE / variance.max(LEAST_VARIANCE);
        let (mean, weight) = (self.mean(), self.weight(now, half_life).min(MOST_WEIGHT - own));
        let took = now.since(run.since);
        self.took = if self.groups == 0 { took } else { Duration(self.took.0 - self.took.0 / 8 + took.0 / 8) };
        (self.sum, self.weight, self.at) = (mean * weight + slower * own, weight + own, now);
        self.groups = self.groups.saturating_add(1);
        if self.batches.len() == BATCHES {
            self.batches.remove(0);
        }
        self.batches.push(Batch { ask: run.ask, ended_at: now, weight: own, attempts: 1, sum: slower });
    }

    fn mean(&self) -> i64 {
        // Attempts that were added to an old group count more than it does.
        self.sum.checked_div(self.weight).unwrap_or_default().clamp(-MOST, MOST)
    }
}

impl NodeSpeeds {
    pub fn new(half_life: Duration) -> NodeSpeeds {
        NodeSpeeds { half_life, nodes: Vec::new(), all: Ratios::default() }
    }

    /// An attempt has ended. `ask`: those of its ask that ended before.
    pub fn on_ended(&mut self, now: Instant, run: &EndedRun, ask: &mut Ratios) {
        let ratio = log2(now.since(run.since)) - log2(run.expected);
        let earlier = *ask;
        let index = run.node.0 as usize;
        if run.unfinished {
            let known = self.nodes.get(index).map_or(0, Evidence::mean);
            if ratio - earlier.mean() <= known {
                return;
            }
        } else {
            ask.add(ratio, MOST_OF_ASK);
        }
        if earlier.number < LEAST_OF_ASK {
            return;
        }
        let slower = (ratio - earlier.mean()).clamp(-MOST, MOST);
        // Few attempts may be equal by chance: the variance of all counts as much as that of some of them.
        let of_ask = earlier.variance() * earlier.number + self.all.variance() * LEAST_OF_ASK;
        let variance = of_ask / (earlier.number + LEAST_OF_ASK);
        self.all.add(slower, MOST_OF_ALL);
        if self.nodes.len() <= index {
            self.nodes.resize(index + 1, Evidence::default());
        }
        self.nodes[index].add(now, run, slower, variance, self.half_life);
    }

    /// Forgets what is known of the node: it was put into use again.
    pub fn forget(&mut self, node: NodeId) {
        if let Some(entry) = self.nodes.get_mut(node.0 as usize) {
            *entry = Evidence::default();
        }
    }

    /// How many times as long tasks take on the node as on others, in thousandths; [`USUAL`] if it is not certain that they take
    /// longer.
    pub fn slowness(&self, now: Instant, node: NodeId) -> u32 {
        let Some(entry) = self.nodes.get(node.0 as usize) else { return USUAL };
        let (weight, mean) = (entry.weight(now, self.half_life), entry.mean() - self.all.mean());
        // The square of the mean is compared with that of its standard error.
        let is_sure = mean * mean * weight >= SURE * SURE * ONE;
        if entry.groups < LEAST_GROUPS || mean <= 0 || !is_sure { USUAL } else { times(mean.min(MOST)) }
    }
}

/// The logarithm to base two, linear between powers of two.
fn log2(time: Duration) -> i64 {
    let micros = time.0.max(1);
    let doublings = micros.ilog2();
    let part = (u128::from(micros) << 8 >> doublings) as i64 - DOUBLING;
    i64::from(doublings) * DOUBLING + part
}

/// The ratio of two times whose logarithms differ by this much, in thousandths.
fn times(difference: i64) -> u32 {
    let (doublings, part) = (difference / DOUBLING, difference % DOUBLING);
    ((i64::from(USUAL) << doublings) * (DOUBLING + part) / DOUBLING) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Chance, JobId};

    const SECOND: u64 = 1_000_000;
    const HALF_LIFE: Duration = Duration::from_secs(600);

    fn ask(number: u32) -> AskId {
        AskId { job: JobId(1), number }
    }

    /// An attempt of which one second was expected.
    fn run_of(node: u32, number: u32, since: u64) -> EndedRun {
        let (node, since) = (NodeId(node), Instant(since));
        EndedRun { node, ask: ask(number), since, expected: Duration(SECOND), unfinished: false }
    }

    /// Attempts on ten nodes, one after another, each of the time that is drawn for it and of that which was expected.
    fn after(attempts: u64, mut draw: impl FnMut(&mut Chance, NodeId) -> (u64, u64)) -> (NodeSpeeds, Instant) {
        let (mut speeds, mut ratios, mut chance) =
            (NodeSpeeds::new(HALF_LIFE), Ratios::default(), Chance::new(1, "speeds"));
        let mut busy_until = [Instant::ZERO; 10];
        for number in 0..attempts {
            let node = NodeId((number % 10) as u32);
            let (took, expected) = draw(&mut chance, node);
            let since = busy_until[node.0 as usize];
            let now = since + Duration(took);
            busy_until[node.0 as usize] = now;
            let run = EndedRun { node, ask: ask(0), since, expected: Duration(expected), unfinished: false };
            speeds.on_ended(now, &run, &mut ratios);
        }
        (speeds, busy_until.into_iter().max().unwrap())
    }

    fn all(speeds: &NodeSpeeds, now: Instant) -> Vec<u32> {
        (0..10).map(|node| speeds.slowness(now, NodeId(node))).collect()
    }

    fn is_about(of: u32, expected: u32) -> bool {
        of.abs_diff(expected) <= expected / 5
    }

    #[test]
    fn a_node_on_which_tasks_take_twice_as_long_is_found_and_no_other() {
        let slow = |node| if node == NodeId(9) { 2 } else { 1 };
        for spread in [1, 4, 10] {
            // Run times between one and `spread` times the least, all of which are expected to be ten times as long.
            let draw = |chance: &mut Chance, node| {
                let run = SECOND + chance.below(SECOND * (spread - 1) + 1);
                (run * slow(node), 10 * SECOND)
            };
            let (speeds, now) = after(1_000, draw);
            let found = all(&speeds, now);
            assert!(is_about(found[9], 2_000), "{found:?}");
            assert_eq!(found[..9], [USUAL; 9], "run times that differ {spread} times");
        }
    }

    #[test]
    fn equal_nodes_are_not_slow_however_much_run_times_differ() {
        let (speeds, now) = after(20_000, |chance, _| (1 << chance.below(20_u64), SECOND));
        assert_eq!(all(&speeds, now), [USUAL; 10]);
    }

    #[test]
    fn jobs_that_take_longer_than_expected_say_nothing_of_their_nodes() {
        let (mut speeds, mut now) = (NodeSpeeds::new(HALF_LIFE), Instant::ZERO);
        for number in 0..100 {
            let (mut ratios, node) = (Ratios::default(), NodeId(number % 10));
            let expected = Duration(if number % 10 == 9 { SECOND } else { 8 * SECOND });
            for _ in 0..20 {
                let run = EndedRun { node, ask: ask(number), since: now, expected, unfinished: false };
                now += Duration(8 * SECOND);
                speeds.on_ended(now, &run, &mut ratios);
            }
        }
        assert_eq!(all(&speeds, now), [USUAL; 10]);
    }

    #[test]
    fn the_slow_first_tasks_of_a_stage_say_little_of_their_node() {
        let (mut speeds, mut ratios) = (NodeSpeeds::new(HALF_LIFE), Ratios::default());
        let mut run = |node: u32, since: u64, took: u64| {
            let run = run_of(node, 0, since);
            speeds.on_ended(Instant(since + took), &run, &mut ratios);
        };
        (0..10).for_each(|_| run(0, 0, SECOND));
        (0..50).for_each(|_| run(9, 0, 4 * SECOND));
        assert_eq!(speeds.slowness(Instant(4 * SECOND), NodeId(9)), USUAL);
    }

    #[test]
    fn few_attempts_are_no_proof_and_old_ones_are_forgotten() {
        let slow = |_: &mut Chance, node| (if node == NodeId(9) { 2 * SECOND } else { SECOND }, SECOND);
        let (speeds, now) = after(30, slow);
        assert_eq!(speeds.slowness(now, NodeId(9)), USUAL);
        let (speeds, now) = after(1_000, slow);
        let later = |minutes| speeds.slowness(now + Duration::from_secs(minutes * 60), NodeId(9)) >= SLOW;
        assert_eq!([0_u64, 20, 90].map(later), [true, true, false]);
        // Tasks of an hour say something for longer.
        let (speeds, now) = after(1_000, |_, node| (if node == NodeId(9) { 7_200 } else { 3_600 } * SECOND, SECOND));
        assert!(speeds.slowness(now + Duration::from_secs(7_200), NodeId(9)) >= SLOW);
    }

    #[test]
    fn late_attempts_of_an_old_group_do_not_outweigh_what_came_later() {
        let (mut speeds, mut even, mut uneven) = (NodeSpeeds::new(HALF_LIFE), Ratios::default(), Ratios::default());
        let mut run = |ratios: &mut Ratios, number, since: u64, now: u64| {
            let run = run_of(0, number, since);
            speeds.on_ended(Instant(now), &run, ratios);
        };
        (1..20).for_each(|at| run(&mut even, 0, 100 * at * SECOND, (100 * at + 1) * SECOND));
        let late = 100_000 * SECOND;
        (0..30).for_each(|at| run(&mut uneven, 1, late, late + (SECOND << (at % 10)) / 30));
        let last = late + 10 * SECOND;
        run(&mut even, 0, 1_900 * SECOND, last);
        assert!((USUAL..=USUAL << 3).contains(&speeds.slowness(Instant(last), NodeId(0))));
    }

    #[test]
    fn an_attempt_that_was_stopped_counts_if_it_had_run_for_longer_than_others_do() {
        let slowness_after = |took: Option<u64>| {
            let (mut speeds, mut ratios) = (NodeSpeeds::new(HALF_LIFE), Ratios::default());
            for at in (0..800).step_by(10) {
                let run = run_of(0, 0, at * SECOND);
                speeds.on_ended(run.since + Duration(SECOND), &run, &mut ratios);
                if let Some(took) = took {
                    let stopped = EndedRun { unfinished: true, ..run_of(1, 0, at * SECOND) };
                    speeds.on_ended(stopped.since + Duration(took), &stopped, &mut ratios);
                }
                let ended = run_of(1, 0, (at + 5) * SECOND);
                speeds.on_ended(ended.since + Duration(2 * SECOND), &ended, &mut ratios);
            }
            speeds.slowness(Instant(800 * SECOND), NodeId(1))
        };
        let without = slowness_after(None);
        assert!(without >= SLOW, "{without}");
        assert_eq!(slowness_after(Some(SECOND / 10)), without);
        assert!(slowness_after(Some(8 * SECOND)) > without);
    }

    #[test]
    fn equal_nodes_are_not_slow_if_attempts_are_stopped_late() {
        let (mut speeds, mut ratios) = (NodeSpeeds::new(HALF_LIFE), Ratios::default());
        for at in 0..2_000 {
            // Every third attempt would take four times as long, and is stopped before.
            let (late, since) = (at % 3 == 0, at * 10 * SECOND);
            let run = EndedRun { unfinished: late, ..run_of((at % 10) as u32, 0, since) };
            speeds.on_ended(Instant(since + if late { 3 } else { 1 } * SECOND), &run, &mut ratios);
        }
        assert_eq!(all(&speeds, Instant(20_000 * SECOND)), [USUAL; 10]);
    }

    #[test]
    fn logarithms_and_powers_are_inverse() {
        for (time, by) in [(1_000_000, 1_250), (700_000, 2_000), (3_000_000, 4_000), (1, 1_000)] {
            let longer = log2(Duration(time * by / 1_000)) - log2(Duration(time));
            assert!(is_about(times(longer), by as u32), "{time} {by} {longer}");
        }
    }
}
