//! Two orders of jobs in one: the first knows only the tasks that must start now, the second all that are open, and has what
//! the first leaves (Carbyne 3.3, lines 2 and 6 of its pseudocode; 4.2).
//!
//! With fair shares below and the shortest remaining job above it is the paper's; packing, in either place, is the order of
//! its implementation. Where everything is needed, the first decides alone.
//!
//! Departs: what is needed is not packed before all else but served in the order of the first layer, which may pack; and the
//! second layer does not pack what the order by remaining work left, since that order passes over what does not fit and so
//! leaves nothing that would.

use super::QueueTree;
use super::shares::Shares;
use crate::policy::{AskSlot, Choice, DemandChange, InterJobPolicy, JobSlot, Offer, Outcome, QueueUsage};
use crate::protocol::Rule;
use crate::vocabulary::{JobId, QueueId, Resources, Totals};
use crate::why::Why;

pub struct Layered {
    /// Knows of each ask what is needed.
    needed: Box<dyn InterJobPolicy>,
    /// Knows of each ask all that is open.
    open: Box<dyn InterJobPolicy>,
    asks: Vec<Option<OpenTasks>>,
    shares: Shares,
    /// Which of the two chose last.
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
    /// Of these, so many must start now.
    needed: u64,
}

impl Layered {
    pub fn new(needed: Box<dyn InterJobPolicy>, open: Box<dyn InterJobPolicy>, tree: QueueTree) -> Layered {
        Layered { needed, open, asks: Vec::new(), shares: Shares::new(tree), chose: Layer::Needed }
    }

    fn ask(&self, ask: AskSlot) -> &OpenTasks {
        self.asks[ask as usize].as_ref().expect("an ask slot in use")
    }

    /// The layer in whose order the next task of the ask stands.
    fn layer_of(&self, ask: AskSlot) -> &dyn InterJobPolicy {
        if self.ask(ask).needed > 0 { self.needed.as_ref() } else { self.open.as_ref() }
    }

    fn on_started(&mut self, ask: AskSlot) {
        let tasks = self.asks[ask as usize].as_mut().expect("an ask slot in use");
        tasks.count = tasks.count.saturating_sub(1);
        // Its tasks are alike: whichever layer chose it, the first to start are those that must.
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

    fn next(&mut self, offer: &Offer<'_>) -> Option<Choice> {
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

    /// Jobs of one ask each, on a cluster of twelve cores: how many tasks are open, how many of them needed, and how many seconds
    /// of work are left.
    fn layered(jobs: &[(u64, u64, u32)]) -> Layered {
        let tree = QueueTree::single();
        let leaf = tree.find("root.default").expect("it is there");
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

    /// The jobs that are given a core each, one after the other, and by which rule.
    fn served(policy: &mut Layered, cores: usize) -> Vec<(AskSlot, Rule)> {
        let mut classes = ClassTable::default();
        let anywhere = classes.add_class_of(Vec::new());
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
    fn what_is_needed_goes_by_shares_and_what_is_left_to_the_job_with_least_work_left() {
        let mut policy = layered(&[(3, 2, 90), (2, 1, 10)]);
        let (by_share, left) = (Rule::DominantShare, Rule::Leftover);
        assert_eq!(served(&mut policy, 9), [(0, by_share), (1, by_share), (0, by_share), (1, left), (0, left)]);
    }

    #[test]
    fn what_was_given_of_what_is_left_counts_for_the_share_and_against_what_is_needed() {
        let mut policy = layered(&[(9, 0, 10), (9, 0, 90)]);
        assert_eq!(served(&mut policy, 3), [(0, Rule::Leftover); 3]);
        // Of seven tasks in all two must have started, and three have.
        policy.on_change(&DemandChange::Open { ask: 0, count: 4, needed: 0, rank: 0 });
        policy.on_change(&DemandChange::Open { ask: 1, count: 9, needed: 2, rank: 0 });
        assert_eq!(served(&mut policy, 2), [(1, Rule::DominantShare); 2]);
        policy.on_change(&DemandChange::Open { ask: 0, count: 4, needed: 4, rank: 0 });
        policy.on_change(&DemandChange::Open { ask: 1, count: 7, needed: 7, rank: 0 });
        assert_eq!(served(&mut policy, 1), [(1, Rule::DominantShare)], "it holds two cores, and the other three");
    }

    #[test]
    fn a_job_is_told_its_share_when_it_begins_and_when_others_change_it() {
        let mut policy = layered(&[(100, 0, 1), (100, 0, 1)]);
        let cores = |policy: &Layered, job| policy.share(job).0[0] / 1_000;
        assert_eq!((policy.new_shares(), cores(&policy, 0)), (vec![0, 1], 6));
        assert_eq!(policy.new_shares(), []);
        // Who wants little leaves the rest to the other, and is entitled to half all the same.
        policy.on_change(&DemandChange::Open { ask: 1, count: 3, needed: 0, rank: 0 });
        assert_eq!((policy.new_shares(), cores(&policy, 0), cores(&policy, 1)), (vec![0], 9, 6));
        policy.on_change(&DemandChange::AskRemoved { ask: 1 });
        policy.on_change(&DemandChange::JobRemoved { job: 1 });
        assert_eq!((policy.new_shares(), cores(&policy, 0)), (vec![0], 12));
    }

    #[test]
    fn jobs_are_told_their_shares_of_a_cluster_that_has_become_larger_or_smaller() {
        let mut policy = layered(&[(100, 0, 1), (100, 0, 1)]);
        let cores = |policy: &Layered, job| policy.share(job).0[0] / 1_000;
        assert_eq!((policy.new_shares(), cores(&policy, 0)), (vec![0, 1], 6));
        let mut resize = |cores: u64| {
            let capacity = Totals(CORE.0.map(|amount| u64::from(amount) * cores));
            policy.on_change(&DemandChange::Capacity(capacity));
            let told = policy.new_shares();
            (told, [0, 1].map(|job| policy.share(job).0[0] / 1_000))
        };
        assert_eq!(resize(24), (vec![0, 1], [12, 12]));
        assert_eq!(resize(25).0, []);
        assert_eq!(resize(26).0, [0, 1], "it counts from what they were told");
        assert_eq!(resize(0).0, [0, 1]);
        assert_eq!(resize(12), (vec![0, 1], [6, 6]));
    }

    #[test]
    fn starts_and_ends_of_a_job_that_wants_more_than_its_share_change_no_share() {
        let mut policy = layered(&[(100, 50, 1), (100, 50, 1)]);
        policy.new_shares();
        served(&mut policy, 8);
        policy.on_change(&DemandChange::Freed { job: 0, resources: CORE });
        assert_eq!(policy.new_shares(), []);
    }
}
