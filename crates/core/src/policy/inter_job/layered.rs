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

    fn first_blocked(&self) -> Option<AskSlot> {
        self.needed.first_blocked().or_else(|| self.open.first_blocked())
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
