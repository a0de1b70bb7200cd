//! Weighted dominant resource fairness over hierarchical queues (Ghodsi et al. 2011; the baseline of Carbyne 3.3), by
//! progressive filling: whoever has least gets the next task.
//!
//! Of siblings, the queue furthest below its guarantee goes first, then the one with the smallest dominant share for
//! its weight. Within a leaf the higher priority goes first, then the job with the smaller dominant share, then the
//! earlier one. Whoever has tasks that fit is served: nothing idles.
//!
//! With strict shares ([`Drf::strict`]) nobody gets more than its fair share in closed form (`fair_shares.rs`), although
//! room may idle; but whoever holds nothing may start one task. A job's weight is then the part of its queue by weight,
//! among siblings with jobs, divided by the jobs there; guarantees do not count. The shares are found anew when a
//! demand has changed, at the cost of one step for each job.

use super::accounts::{JobAccount, QueueAccount};
use super::tree_line::{QueueKey, QueueOrder, TreeLine};
use crate::protocol::Rule;
use crate::vocabulary::QueueSpec;

pub type Drf = TreeLine<ByDominantShare>;

pub struct ByDominantShare;

impl QueueOrder for ByDominantShare {
    const RULE: Rule = Rule::DominantShare;

    fn queue_key(spec: &QueueSpec, account: &QueueAccount) -> QueueKey {
        let share = account.share;
        if share < u64::from(spec.guaranteed) {
            (false, share * 1_000_000 / u64::from(spec.guaranteed))
        } else {
            (true, share * 1_000 / u64::from(spec.weight))
        }
    }

    fn job_rank(job: &JobAccount) -> u64 {
        job.share
    }
}
