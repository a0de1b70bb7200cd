//! Queues in rotation (Megha, section IV-C): among siblings, the queue that was served longest ago is first, and within
//! a queue the job that was submitted first.
//!
//! Departs: queues within their shares precede those above them. If there is not enough for all, tasks of the latter
//! would be started only to be preempted.

use super::Accounts;
use super::accounts::QueueAccount;
use super::tree_line::{QueueKey, QueueOrder, TreeLine};
use crate::policy::JobSlot;
use crate::protocol::Rule;
use crate::vocabulary::QueueSpec;

pub type RoundRobin = TreeLine<ByTurn>;

pub struct ByTurn;

impl QueueOrder for ByTurn {
    const RULE: Rule = Rule::Turn;

    fn queue_key(spec: &QueueSpec, account: &QueueAccount) -> QueueKey {
        (account.share >= u64::from(spec.guaranteed), account.served_at)
    }

    fn job_rank(_: &Accounts, _: JobSlot) -> u64 {
        0
    }
}
