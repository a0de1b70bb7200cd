//! Two orders of jobs in one: the first considers only tasks that must start now; the second considers all open tasks,
//! and gets what the first leaves (Carbyne 3.3, lines 2 and 6 of its pseudocode; 4.2).
//!
//! With fair shares as the first and the shortest remaining job as the second order, it is the paper's; packing, in
//! either place, is the order of its implementation. If all tasks are needed, only the first order decides.
//!
//! Departs: needed tasks are not packed before all others but served in the first order, which may pack; and the second
//! order does not pack what the order by remaining work left, since that order skips tasks that do not fit and so
//! leaves none that would.

use super::QueueTree;
use super::shares::Shares;
use crate::policy::{AskSlot, DemandChange, InterJobPolicy, JobSlot, NextAsk, Offer, Outcome, QueueUsage};
use crate::protocol::Rule;
use crate::vocabulary::{JobId, QueueId, Resources, Totals};
use crate::why::Why;

pub struct Layered {
    /// Considers the needed tasks of each ask.
    needed: Box<dyn InterJobPolicy>,
    /// Considers all open tasks of each ask.
    open: Box<dyn InterJobPolicy>,
    asks: Vec<Option<OpenTasks>>,
    shares: Shares,
    /// The layer that chose last.
    chose: Layer,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Layer {
    Needed,
    Open,
}

struct OpenTasks {
    job: JobSlot,
    shape: Resources,
    count: u64,
    /// The number of them that must start now.
    needed: u64,
}

impl Layered {
    pub fn new(needed: Box<dyn InterJobPolicy>, open: Box<dyn InterJobPolicy>, tree: QueueTree) -> Layered {
        Layered { needed, open, asks: Vec::new(), shares: Shares::new(tree), chose: Layer::Needed }
    }

    fn ask(&self, ask: AskSlot) -> &OpenTasks {
        self.asks[ask as usize].as_ref().expect("an ask slot in use")
    }

    /// The layer that orders the next task of the ask.
    fn layer_of(&self, ask: AskSlot) -> &dyn InterJobPolicy {
        if self.ask(ask).needed > 0 { self.needed.as_ref() } else { self.open.as_ref() }
    }

    fn on_started(&mut self, ask: AskSlot) {
        let tasks = self.asks[ask as usize].as_mut().expect("an ask slot in use");
        tasks.count = tasks.count.saturating_sub(1);
        // Its tasks are alike: whichever layer chose it, the needed tasks start first.
        if tasks.needed > 0 {
            tasks.needed -= 1;
            self.needed.outcome(ask, Outcome::Started);
        } else {
            self.needed.on_change(&DemandChange::Taken { job: tasks.job, resources: tasks.shape });
        }
        self.open.outcome(ask, Outcome::Started);
        self.shares.on_started(ask);
    }
}

impl InterJobPolicy for Layered {
    fn on_change(&mut self, change: &DemandChange) {
        self.shares.on_change(change);
        match *change {
            DemandChange::AskAdded { ask, job, shape, .. } => {
                if self.asks.len() <= ask as usize {
                    self.asks.resize_with(ask as usize + 1, || None);
                }
                self.asks[ask as usize] = Some(OpenTasks { job, shape, count: 0, needed: 0 });
            }
            DemandChange::Open { ask, count, needed, rank } => {
                let needed = needed.min(count);
                let tasks = self.asks[ask as usize].as_mut().expect("an ask slot in use");
                (tasks.count, tasks.needed) = (count, needed);
                self.needed.on_change(&DemandChange::Open { ask, count: needed, needed, rank });
                self.open.on_change(change);
                return;
            }
            _ => {}
        }
        self.needed.on_change(change);
        self.open.on_change(change);
        if let DemandChange::AskRemoved { ask } = *change {
            self.asks[ask as usize] = None;
        }
    }

    fn share(&self, job: JobSlot) -> Totals {
        self.shares.of(job)
    }

    fn new_shares(&mut self) -> Vec<JobSlot> {
        self.shares.review()
    }

    fn next(&mut self, offer: &Offer<'_>) -> Option<NextAsk> {
        self.chose = Layer::Needed;
        self.needed.next(offer).or_else(|| {
            self.chose = Layer::Open;
            self.open.next(offer)
        })
    }

    fn outcome(&mut self, ask: AskSlot, outcome: Outcome) {
        match (outcome, self.chose) {
            (Outcome::Started, _) => self.on_started(ask),
            (_, Layer::Needed) => self.needed.outcome(ask, outcome),
            (_, Layer::Open) => self.open.outcome(ask, outcome),
        }
    }

    fn blocked(&self, is_enough: &mut dyn FnMut(AskSlot) -> bool) {
        let mut is_over = false;
        self.needed.blocked(&mut |ask| {
            is_over = is_enough(ask);
            is_over
        });
        if !is_over {
            self.open.blocked(is_enough);
        }
    }

    fn limit_on(&self, ask: AskSlot) -> Option<Why> {
        self.layer_of(ask).limit_on(ask)
    }

    fn limit_for(&self, job: JobSlot, more: &Resources) -> Option<Why> {
        self.open.limit_for(job, more)
    }

    fn ahead_of(&self, ask: AskSlot) -> Option<(u32, JobId)> {
        self.layer_of(ask).ahead_of(ask)
    }

    fn rule(&self) -> Rule {
        match self.chose {
            Layer::Needed => self.needed.rule(),
            Layer::Open => Rule::Leftover,
        }
    }

    fn queue_usage(&self, queue: QueueId) -> QueueUsage {
        self.open.queue_usage(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::inter_job::{Drf, Srtf};
    use crate::vocabulary::{ClassTable, Duration, JobWork, UserId, Work};

    const CORE: Resources = Resources([1_000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);

    /// Jobs of one ask each, on a cluster of twelve cores: the numbers of open and of needed tasks, and the seconds of
    /// work left.
    fn layered(jobs: &[(u64, u64, u32)]) -> Layered {
        let tree = QueueTree::single();
        let leaf = tree.find("root.default").expect("the default queue");
        let (needed, open) = (Box::new(Drf::new(tree.clone())), Box::new(Srtf::new(tree.clone())));
        let mut policy = Layered::new(needed, open, tree);
        let mut capacity = Totals::ZERO;
        (0..12).for_each(|_| capacity.add(&CORE));
        policy.on_change(&DemandChange::Capacity(capacity));
        for (slot, &(count, needed, left)) in (0..).zip(jobs) {
            let (id, queue, user) = (JobId(u64::from(slot)), leaf, UserId(0));
            policy.on_change(&DemandChange::JobAdded { job: slot, id, queue, user, priority: 0 });
            let remaining = Work::of(&CORE, Duration::from_secs(u64::from(left)), 1);
            policy.on_change(&DemandChange::Work { job: slot, work: JobWork { total: remaining, remaining } });
            policy.on_change(&DemandChange::AskAdded {
                ask: slot,
                job: slot,
                shape: CORE,
                class: 0,
                priority: 0,
                is_gang: false,
            });
            policy.on_change(&DemandChange::Open { ask: slot, count, needed, rank: 0 });
        }
        policy
    }

    /// The jobs that get a core each, in order, and the rule.
    fn served(policy: &mut Layered, cores: usize) -> Vec<(AskSlot, Rule)> {
        let mut classes = ClassTable::default();
        let anywhere = classes.add_class_of(Default::default());
        classes.set(anywhere, 0, true);
        let mut served = Vec::new();
        for _ in 0..cores {
            let offer = Offer::Node { node: 0, room: CORE, capacity: CORE, classes: &classes };
            let Some(choice) = policy.next(&offer) else { break };
            served.push((choice.ask, policy.rule()));
            policy.outcome(choice.ask, Outcome::Started);
        }
        served
    }

    #[test]
    fn needed_tasks_follow_shares_and_leftover_goes_to_the_shortest_remaining_job() {
        let mut policy = layered(&[(3, 2, 90), (2, 1, 10)]);
        let (by_share, left) = (Rule::DominantShare, Rule::Leftover);
        assert_eq!(served(&mut policy, 9), [(0, by_share), (1, by_share), (0, by_share), (1, left), (0, left)]);
    }

    #[test]
    fn leftover_counts_for_the_share_and_reduces_the_needed_tasks() {
        let mut policy = layered(&[(9, 0, 10), (9, 0, 90)]);
        assert_eq!(served(&mut policy, 3), [(0, Rule::Leftover); 3]);
        // Two of seven tasks must have started, and three have.
        policy.on_change(&DemandChange::Open { ask: 0, count: 4, needed: 0, rank: 0 });
        policy.on_change(&DemandChange::Open { ask: 1, count: 9, needed: 2, rank: 0 });
        assert_eq!(served(&mut policy, 2), [(1, Rule::DominantShare); 2]);
        policy.on_change(&DemandChange::Open { ask: 0, count: 4, needed: 4, rank: 0 });
        policy.on_change(&DemandChange::Open { ask: 1, count: 7, needed: 7, rank: 0 });
        assert_eq!(served(&mut policy, 1), [(1, Rule::DominantShare)], "job 1 holds two cores, and job 0 three");
    }

    #[test]
    fn shares_are_sent_when_a_job_starts_and_when_others_change_them() {
        let mut policy = layered(&[(100, 0, 1), (100, 0, 1)]);
        let cores = |policy: &Layered, job| policy.share(job).0[0] / 1_000;
        assert_eq!((policy.new_shares(), cores(&policy, 0)), (vec![0, 1], 6));
        assert_eq!(policy.new_shares(), []);
        // A job with a small demand leaves the rest to the other, and is still entitled to half.
        policy.on_change(&DemandChange::Open { ask: 1, count: 3, needed: 0, rank: 0 });
        assert_eq!((policy.new_shares(), cores(&policy, 0), cores(&policy, 1)), (vec![0], 9, 6));
        policy.on_change(&DemandChange::AskRemoved { ask: 1 });
        policy.on_change(&DemandChange::JobRemoved { job: 1 });
        assert_eq!((policy.new_shares(), cores(&policy, 0)), (vec![0], 12));
    }

    #[test]
    fn shares_are_sent_when_the_cluster_grows_or_shrinks() {
        let mut policy = layered(&[(100, 0, 1), (100, 0, 1)]);
        let cores = |policy: &Layered, job| policy.share(job).0[0] / 1_000;
        assert_eq!((policy.new_shares(), cores(&policy, 0)), (vec![0, 1], 6));
        let mut resize = |cores: u64| {
            let capacity = Totals(CORE.0.map(|amount| u64::from(amount) * cores));
            policy.on_change(&DemandChange::Capacity(capacity));
            let reported = policy.new_shares();
            (reported, [0, 1].map(|job| policy.share(job).0[0] / 1_000))
        };
        assert_eq!(resize(24), (vec![0, 1], [12, 12]));
        assert_eq!(resize(25).0, []);
        assert_eq!(resize(26).0, [0, 1], "changes count from the shares sent last");
        assert_eq!(resize(0).0, [0, 1]);
        assert_eq!(resize(12), (vec![0, 1], [6, 6]));
    }

    #[test]
    fn starts_and_ends_of_a_job_with_unmet_demand_change_no_share() {
        let mut policy = layered(&[(100, 50, 1), (100, 50, 1)]);
        policy.new_shares();
        served(&mut policy, 8);
        policy.on_change(&DemandChange::Freed { job: 0, resources: CORE });
        assert_eq!(policy.new_shares(), []);
    }
}
