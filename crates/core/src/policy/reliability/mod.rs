//! How likely each node is to see a task through, by what became of attempts there lately (Boutin et al. 2014: Apollo, the
//! `P_succ` of section 3.3). Section 4 tells how a model that held a power failure against every server that went through it
//! kept work from them when the power was back. So three things are told apart:
//!
//! * A **bad machine** fails alone, and again: each failure counts against it, and for less with time.
//! * In an **outage** many nodes fail within a short time: that is one event of their rack, or of the cluster, and says
//!   nothing about any of them ([`outages`]).
//! * A **bad task** fails on one node after another: of k failures each counts for 1/k², so all together for 1/k.
//!
//! P = (s p + g) / (s + g + b), from the failures b that count and the good ends g, with s attempts' worth of the prior p,
//! which is how the median node does. A good past counts for less the more fails now: g shrinks by s / (s + b). Who has no
//! failures is sure.
//!
//! Departs: the paper says neither how its model weighs what, nor how it tells failures apart; maintenance that is announced
//! is not known here.

mod outages;

use super::completion::MILLION;
use crate::vocabulary::{Duration, Instant, NodeId};
use outages::{OWN_FAULT_AFTER, Outages};
use serde::{Deserialize, Serialize};

/// Evidence is counted in parts of an attempt.
const ONE: u64 = 1 << 16;
/// The prior counts as much as so many attempts.
const PRIOR: u64 = 4 * ONE;
/// Attempts of a node that ended well count as so many at most: what was long ago says little once it fails.
const MOST_GOOD: u64 = 16 * ONE;
/// The last failures of a node, so many.
const MOST_FAILURES: usize = 16;
/// What fails at a node within so long fails for the same reason.
const AT_ONCE: Duration = Duration::from_secs(1);
/// What was said to have failed at some time is what failed there then, to within so long.
const SAME_TIME: Duration = Duration::from_secs(2);
/// Of evidence that has become less than this, nobody speaks any more.
const FORGOTTEN: u64 = ONE / 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReliabilitySettings {
    /// After so long, what became of an attempt counts for half.
    pub half_life: Duration,
    /// Nodes that fail within so long of each other fail together.
    pub together: Duration,
}

impl ReliabilitySettings {
    /// A machine that has failed four times gets as much as others again within the hour. A node that is away for its grace
    /// period, and one that is back before, are heard of within a minute of each other.
    pub const USUAL: ReliabilitySettings =
        ReliabilitySettings { half_life: Duration::from_secs(600), together: Duration::from_secs(60) };
}

impl Default for ReliabilitySettings {
    fn default() -> ReliabilitySettings {
        ReliabilitySettings::USUAL
    }
}

/// What is known of all nodes. Nothing of it outlives its process, and it holds a little for each node.
#[derive(Clone, Debug)]
pub struct Reliability {
    settings: ReliabilitySettings,
    nodes: Vec<Evidence>,
    outages: Outages,
}

#[derive(Clone, Default, Debug)]
struct Evidence {
    /// What ended well counted so much at this time.
    good: u64,
    good_at: Instant,
    /// In the order in which they happened.
    failures: Vec<Failure>,
}

#[derive(Clone, Copy, Debug)]
struct Failure {
    at: Instant,
    /// It counts so much, new.
    weight: u64,
    /// Attempts that failed with it.
    attempts: u32,
    /// It belongs to an outage.
    excused: bool,
}

/// Why a node is doubted, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doubt {
    /// P, in millionths.
    pub success: u32,
    /// Failures that count against it, the first of them so long ago.
    pub failures: u32,
    pub since: Duration,
}

impl Doubt {
    /// Nobody is told of a node that is better than this, in millionths.
    const FROM: u64 = 900_000;
}

/// A half after one half-life, a quarter after two; between them a curve that is 2^-x to within a hundredth.
fn decayed(weight: u64, age: Duration, half_life: Duration) -> u64 {
    let half_life = half_life.0.max(1);
    let (halves, rest) = (age.0 / half_life, age.0 % half_life);
    let Some(then) = u32::try_from(halves).ok().and_then(|halves| weight.checked_shr(halves)) else { return 0 };
    // In parts of 2^16: what is lost grows from none to the half.
    let x = ((u128::from(rest) << 16) / u128::from(half_life)) as u64;
    then - ((then * x * (44_080 - ((11_312 * x) >> 16))) >> 32)
}

impl Evidence {
    fn good(&self, now: Instant, half_life: Duration) -> u64 {
        decayed(self.good, now.since(self.good_at), half_life)
    }

    fn bad(&self, now: Instant, half_life: Duration) -> u64 {
        let counts = |failure: &Failure| decayed(failure.weight, now.since(failure.at), half_life);
        let bad = self.failures.iter().map(counts).sum();
        if bad < FORGOTTEN { 0 } else { bad }
    }

    /// In millionths, where the median node does like the prior.
    fn success(&self, now: Instant, half_life: Duration, prior: u64) -> u64 {
        let bad = self.bad(now, half_life);
        if bad == 0 {
            return MILLION;
        }
        let good = self.good(now, half_life) * PRIOR / (PRIOR + bad);
        (PRIOR * prior + good * MILLION) / (PRIOR + good + bad)
    }
}

impl Reliability {
    pub fn new(settings: ReliabilitySettings) -> Reliability {
        Reliability { settings, nodes: Vec::new(), outages: Outages::default() }
    }

    fn entry(&mut self, node: NodeId) -> &mut Evidence {
        let index = node.0 as usize;
        if self.nodes.len() <= index {
            self.nodes.resize_with(index + 1, Evidence::default);
        }
        &mut self.nodes[index]
    }

    // ---- what happens ----------------------------------------------------------------------------------------------

    /// The node is there, in this rack.
    pub fn on_join(&mut self, node: NodeId, rack: Option<&str>) {
        self.entry(node);
        self.outages.on_join(node, rack);
    }

    /// So many attempts ended well there.
    pub fn on_success(&mut self, now: Instant, node: NodeId, attempts: u32) {
        let half_life = self.settings.half_life;
        let entry = self.entry(node);
        entry.good = MOST_GOOD.min(entry.good(now, half_life) + u64::from(attempts) * ONE);
        entry.good_at = now;
    }

    /// The node failed: an attempt, or all that it had. With it, so many nodes could be at fault.
    pub fn on_failure(&mut self, now: Instant, node: NodeId, suspects: u32) {
        let ReliabilitySettings { half_life, together } = self.settings;
        let weight = ONE / u64::from(suspects.max(1));
        let entry = self.entry(node);
        if let Some(last) = entry.failures.last_mut().filter(|last| now.since(last.at) < AT_ONCE) {
            last.attempts = last.attempts.saturating_add(1);
            if !last.excused {
                last.weight = last.weight.max(weight);
            }
            return;
        }
        let was_well = entry.bad(now, half_life) < OWN_FAULT_AFTER;
        if entry.failures.len() == MOST_FAILURES {
            entry.failures.remove(0);
        }
        entry.failures.push(Failure { at: now, weight, attempts: 1, excused: false });
        for excused in self.outages.on_failure(now, node, was_well, together) {
            self.excuse(now, excused);
        }
    }

    /// What failed at the node lately, first, is of an outage.
    fn excuse(&mut self, now: Instant, node: NodeId) {
        let together = self.settings.together;
        let is_lately = |failure: &&mut Failure| now.since(failure.at) < together;
        let mut lately = self.nodes[node.0 as usize].failures.iter_mut().filter(is_lately);
        // Once in an outage: who fails again is at fault himself.
        if let Some(first) = lately.next().filter(|first| !first.excused) {
            (first.weight, first.excused) = (0, true);
        }
    }

    /// One task failed at each of these nodes, so long ago: most likely it is at fault itself.
    pub fn on_bad_task(&mut self, now: Instant, at: &[(NodeId, Duration)]) {
        let tries = at.len() as u64;
        for &(node, age) in at {
            let then = now.before(age);
            let Some(entry) = self.nodes.get_mut(node.0 as usize) else { continue };
            let is_it = |failure: &&mut Failure| {
                failure.at.since(then).max(then.since(failure.at)) <= SAME_TIME && failure.attempts == 1
            };
            if let Some(failure) = entry.failures.iter_mut().rev().find(is_it) {
                failure.weight = failure.weight.min(ONE / (tries * tries).max(1));
            }
        }
    }

    /// Somebody says that the node works.
    pub fn forgive(&mut self, node: NodeId) {
        self.entry(node).failures.clear();
    }

    // ---- what is thought of it -------------------------------------------------------------------------------------

    /// How the median node does, in millionths; the prior of all.
    pub fn usual(&self, now: Instant) -> u64 {
        let half_life = self.settings.half_life;
        let rates = self.nodes.iter().map(|entry| entry.success(now, half_life, MILLION));
        let mut failing: Vec<u64> = rates.filter(|rate| *rate < MILLION).collect();
        let half = self.nodes.len() / 2;
        if failing.len() <= half { MILLION } else { *failing.select_nth_unstable(half).1 }
    }

    /// P, in millionths, where the median node does like this.
    pub fn success(&self, now: Instant, node: NodeId, usual: u64) -> u64 {
        let half_life = self.settings.half_life;
        let own = self.nodes.get(node.0 as usize).map_or(MILLION, |entry| entry.success(now, half_life, usual));
        let again = self.outages.again(now, node, half_life);
        if again == 0 { own } else { own * PRIOR / (PRIOR + again) }
    }

    /// By the numbers of nodes, P in millionths; those after the last are sure.
    pub fn all(&self, now: Instant) -> Vec<u32> {
        let usual = self.usual(now);
        let nodes = (0..self.nodes.len() as u32).map(NodeId);
        let mut all: Vec<u32> = nodes.map(|node| self.success(now, node, usual) as u32).collect();
        let unsure = all.iter().rposition(|success| u64::from(*success) < MILLION);
        all.truncate(unsure.map_or(0, |last| last + 1));
        all
    }

    /// Why the node is doubted, if it is.
    pub fn doubt(&self, now: Instant, node: NodeId, usual: u64) -> Option<Doubt> {
        let half_life = self.settings.half_life;
        let success = self.success(now, node, usual);
        let counts = |failure: &&Failure| decayed(failure.weight, now.since(failure.at), half_life) >= FORGOTTEN;
        let failures = self.nodes.get(node.0 as usize)?.failures.iter().filter(counts);
        let since = failures.clone().next().map_or(Duration::ZERO, |first| now.since(first.at));
        let doubt = Doubt { success: success as u32, failures: failures.count() as u32, since };
        (success < Doubt::FROM).then_some(doubt)
    }
}

#[cfg(test)]
mod tests;
