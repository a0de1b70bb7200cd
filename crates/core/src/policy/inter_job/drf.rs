//! Weighted dominant resource fairness over hierarchical queues (Ghodsi et al. 2011; the baseline of Carbyne 3.3), by
//! progressive filling: the job with the least gets the next task.
//!
//! Among siblings, the queue furthest below its guarantee is served first, then the one with the smallest dominant
//! share relative to its weight. Within a leaf, the order is: higher priority, smaller dominant share, earlier
//! submission. Any job whose tasks fit is served, so no room stays idle.
//!
//! With strict shares ([`Drf::strict`]) no job gets more than its fair share in closed form (`fair_shares.rs`),
//! although room may stay idle; but a job that holds nothing may start one task. A job's weight is then its queue's
//! part by weight, among siblings with jobs, divided by the number of jobs there; guarantees are not considered. The
//! shares are computed again when a demand has changed, in one step for each job.

use super::Accounts;
use super::accounts::QueueAccount;
use super::tree_line::{QueueKey, QueueOrder, TreeLine};
use crate::policy::JobSlot;
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

    fn job_rank(accounts: &Accounts, job: JobSlot) -> u64 {
        accounts.job(job).share
    }
}
