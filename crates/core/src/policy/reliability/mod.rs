//! The probability that a task succeeds on a node, estimated from recent attempts there (Boutin et al. 2014: Apollo, the
//! `P_succ` of section 3.3). Section 4 reports that a model which counted a power failure against every affected server
//! kept work from these servers after the power was back. So three causes are distinguished:
//!
//! * A **bad machine** fails alone and repeatedly. Each failure counts against it, with a weight that decays over time.
//! * In an **outage** many nodes fail within a short time. It is one event of their rack or of the cluster, and no evidence
//!   against any single node ([`outages`]).
//! * A **bad task** fails on several nodes. Each of its k failures counts for 1/k², so all of them count for 1/k.
//!
//! P = (s p + g) / (s + g + b), where b is the weight of the failures, g that of the successes, p the prior (the rate of the
//! median node), and s the weight of the prior in attempts. Recent failures reduce the weight of past successes: g is
//! multiplied by s / (s + b). For a node without failures, P = 1.
//!
//! Departs: the paper specifies neither the weights of its model nor how it distinguishes failures. Announced maintenance
//! is not taken into account here.

mod outages;

use super::completion::MILLION;
use crate::vocabulary::{Duration, Instant, NodeId};
use outages::{OWN_FAULT_AFTER, Outages};
use serde::{Deserialize, Serialize};

/// The weight of one attempt.
const ONE: u64 = 1 << 16;
/// Weight of the prior.
const PRIOR: u64 = 4 * ONE;
/// Maximum weight of a node's successes, so that a long good past does not hide new failures.
const MOST_GOOD: u64 = 16 * ONE;
/// Maximum number of failures that are kept for a node. The oldest are dropped.
const MOST_FAILURES: usize = 16;
/// Failures on a node within this time of each other have the same cause.
const AT_ONCE: Duration = Duration::from_secs(1);
/// A reported failure matches a recorded one if their times differ by at most this.
const SAME_TIME: Duration = Duration::from_secs(2);
/// Failures whose weight has decayed below this are ignored.
const FORGOTTEN: u64 = ONE / 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReliabilitySettings {
    /// Time in which the weight of an attempt's result halves.
    pub half_life: Duration,
    /// Nodes that fail within this time of each other may be part of the same outage.
    pub together: Duration,
}

impl ReliabilitySettings {
    /// A machine that has failed four times gets as many tasks as others again within an hour. In an outage, the failures of
    /// nodes that reconnect within their grace period and of those that do not are reported within a minute of each other.
    pub const USUAL: ReliabilitySettings =
        ReliabilitySettings { half_life: Duration::from_secs(600), together: Duration::from_secs(60) };
}

impl Default for ReliabilitySettings {
    fn default() -> ReliabilitySettings {
        ReliabilitySettings::USUAL
    }
}

/// Evidence about all nodes. It is kept in memory only, with a small amount of data for each node.
#[derive(Clone, Debug)]
pub struct Reliability {
    settings: ReliabilitySettings,
    nodes: Vec<Evidence>,
    outages: Outages,
}

#[derive(Clone, Default, Debug)]
struct Evidence {
    /// Weight of the successes at `good_at`.
    good: u64,
    good_at: Instant,
    /// Oldest first.
    failures: Vec<Failure>,
}

#[derive(Clone, Copy, Debug)]
struct Failure {
    at: Instant,
    /// Weight when it happened, before decay.
    weight: u64,
    /// Number of attempts that failed.
    attempts: u32,
    /// It is part of an outage.
    excused: bool,
}

/// Why a node is considered unreliable, for display.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doubt {
    /// P, in millionths.
    pub success: u32,
    /// Number of failures that count against it. `since` is the time since the first of them.
    pub failures: u32,
    pub since: Duration,
}

impl Doubt {
    /// Only nodes with a lower P are reported, in millionths.
    const FROM: u64 = 900_000;
}

/// Half of the weight after one half-life, a quarter after two. In between, a curve that approximates 2^-x to within 1 %.
pub(super) fn decayed(weight: u64, age: Duration, half_life: Duration) -> u64 {
    let half_life = half_life.0.max(1);
    let (halves, rest) = (age.0 / half_life, age.0 % half_life);
    let Some(then) = u32::try_from(halves).ok().and_then(|halves| weight.checked_shr(halves)) else { return 0 };
    // In units of 2^-16: the loss grows from 0 to one half.
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

    /// P in millionths, for the given prior in millionths.
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

    // ---- events ----------------------------------------------------------------------------------------------------

    /// The node joined, in this rack.
    pub fn on_join(&mut self, node: NodeId, rack: Option<&str>) {
        self.entry(node);
        self.outages.on_join(node, rack);
    }

    /// The given number of attempts succeeded on the node.
    pub fn on_success(&mut self, now: Instant, node: NodeId, attempts: u32) {
        let half_life = self.settings.half_life;
        let entry = self.entry(node);
        entry.good = MOST_GOOD.min(entry.good(now, half_life) + u64::from(attempts) * ONE);
        entry.good_at = now;
    }

    /// An attempt on the node failed, or all of its attempts. The cause is one of `suspects` nodes, this one included.
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

    /// The node's first recent failure is part of an outage and does not count.
    fn excuse(&mut self, now: Instant, node: NodeId) {
        let together = self.settings.together;
        let is_lately = |failure: &&mut Failure| now.since(failure.at) < together;
        let mut lately = self.nodes[node.0 as usize].failures.iter_mut().filter(is_lately);
        // Only once in an outage: further failures are the node's fault.
        if let Some(first) = lately.next().filter(|first| !first.excused) {
            (first.weight, first.excused) = (0, true);
        }
    }

    /// One task failed on each of these nodes, the given time ago. Most likely the task is the cause.
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

    /// Clears the node's failures: it was put into use again.
    pub fn forgive(&mut self, node: NodeId) {
        self.entry(node).failures.clear();
    }

    // ---- estimates -------------------------------------------------------------------------------------------------

    /// P of the median node, in millionths: the prior of all nodes.
    pub fn usual(&self, now: Instant) -> u64 {
        let half_life = self.settings.half_life;
        let rates = self.nodes.iter().map(|entry| entry.success(now, half_life, MILLION));
        let mut failing: Vec<u64> = rates.filter(|rate| *rate < MILLION).collect();
        let half = self.nodes.len() / 2;
        if failing.len() <= half { MILLION } else { *failing.select_nth_unstable(half).1 }
    }

    /// P in millionths. `usual` is P of the median node.
    pub fn success(&self, now: Instant, node: NodeId, usual: u64) -> u64 {
        let half_life = self.settings.half_life;
        let own = self.nodes.get(node.0 as usize).map_or(MILLION, |entry| entry.success(now, half_life, usual));
        let again = self.outages.again(now, node, half_life);
        if again == 0 { own } else { own * PRIOR / (PRIOR + again) }
    }

    /// P in millionths, by the number of the node. P is 1 for nodes after the last entry.
    pub fn all(&self, now: Instant) -> Vec<u32> {
        let usual = self.usual(now);
        let nodes = (0..self.nodes.len() as u32).map(NodeId);
        let mut all: Vec<u32> = nodes.map(|node| self.success(now, node, usual) as u32).collect();
        let unsure = all.iter().rposition(|success| u64::from(*success) < MILLION);
        all.truncate(unsure.map_or(0, |last| last + 1));
        all
    }

    /// Why the node is considered unreliable; `None` if it is not.
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
