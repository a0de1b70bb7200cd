//! The order of the preset `amalgam`: between queues as in `drf.rs`; within a queue no job ends later than with fair shares
//! if run times are as expected, and the mean completion time is the smallest that this allows (`fair_deadlines.rs`).
//!
//! Jobs that want no more than an equal part of their queue's share come first: with fair shares they would have it at
//! once, and they cannot catch up later. Of these, the one with the least work left is first: when room is short, this keeps their mean
//! wait short. The places of the others are computed for all of them now and then
//! ([`InterJobPolicy::standings`](crate::policy::InterJobPolicy::standings)); until then a new one is behind them.

use super::Accounts;
use super::accounts::QueueAccount;
use super::drf::ByDominantShare;
use super::tree_line::{QueueKey, QueueOrder, TreeLine};
use crate::policy::JobSlot;
use crate::protocol::Rule;
use crate::vocabulary::QueueSpec;

pub type FairSojourn = TreeLine<ByEndWithFairShares>;

pub struct ByEndWithFairShares;

impl QueueOrder for ByEndWithFairShares {
    const RULE: Rule = Rule::FairSojourn;
    const ENTITLES: bool = true;

    fn queue_key(spec: &QueueSpec, account: &QueueAccount) -> QueueKey {
        ByDominantShare::queue_key(spec, account)
    }

    /// First the jobs that want no more than they would have if all were equal.
    fn job_rank(accounts: &Accounts, job: JobSlot) -> u64 {
        const WIDE: u64 = 1 << 63;
        let account = accounts.job(job);
        if accounts.is_wide(job) {
            WIDE + u64::from(account.fair.place.unwrap_or(u32::MAX))
        } else if account.fair_end() == u64::MAX {
            // It has not reported its work.
            WIDE - 1
        } else {
            account.remaining_time.min(WIDE - 1)
        }
    }
}
