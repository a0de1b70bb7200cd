//! Queues take turns (Megha, section IV-C): of siblings, the one that got something longest ago goes first, and in each the
//! job that was submitted first.
//!
//! Departs: those within their shares come before those beyond them. What is free is enough for all or it is not, and then others
//! would be started only to give way.

use super::accounts::{JobAccount, QueueAccount};
use super::tree_line::{QueueKey, QueueOrder, TreeLine};
use crate::protocol::Rule;
use crate::vocabulary::QueueSpec;

pub type RoundRobin = TreeLine<ByTurn>;

pub struct ByTurn;

impl QueueOrder for ByTurn {
    const RULE: Rule = Rule::Turn;

    fn queue_key(spec: &QueueSpec, account: &QueueAccount) -> QueueKey {
        (account.share >= u64::from(spec.guaranteed), account.served_at)
    }

    fn job_rank(_: &JobAccount) -> u64 {
        0
    }
}
