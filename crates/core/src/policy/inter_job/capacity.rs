//! Hierarchical capacity (Hadoop's CapacityScheduler; a baseline of Carbyne 5.1): every queue has a guaranteed share,
//! borrows idle resources of others up to its maximum, and serves its jobs in the order of submission.
//!
//! Among siblings, the queue that uses the smallest part of its guarantee is served first, so queues below their
//! guarantee precede those above it. Queues without a guarantee come last, the smallest dominant share relative to its
//! weight first. Leaves out: preemption. Borrowed resources return when their tasks end.

use super::Accounts;
use super::accounts::QueueAccount;
use super::tree_line::{QueueKey, QueueOrder, TreeLine};
use crate::policy::JobSlot;
use crate::protocol::Rule;
use crate::vocabulary::QueueSpec;

pub type Capacity = TreeLine<ByGuarantee>;

pub struct ByGuarantee;

impl QueueOrder for ByGuarantee {
    const RULE: Rule = Rule::Guarantee;

    fn queue_key(spec: &QueueSpec, account: &QueueAccount) -> QueueKey {
        let share = account.share;
        if spec.guaranteed > 0 {
            (false, share * 1_000_000 / u64::from(spec.guaranteed))
        } else {
            (true, share * 1_000 / u64::from(spec.weight))
        }
    }

    fn job_rank(_: &Accounts, _: JobSlot) -> u64 {
        0
    }
}
