//! Queues take turns (Megha, section IV-C): of siblings, the one that got something longest ago goes first, and in each the
//! job that was submitted first. Shares play no part before nothing is free.

use super::accounts::{JobAccount, QueueAccount};
use super::tree_line::{QueueKey, QueueOrder, TreeLine};
use crate::protocol::Rule;
use crate::vocabulary::QueueSpec;

pub type RoundRobin = TreeLine<ByTurn>;

pub struct ByTurn;

impl QueueOrder for ByTurn {
    const RULE: Rule = Rule::Turn;

    fn queue_key(_: &QueueSpec, account: &QueueAccount) -> QueueKey {
        (false, account.served_at)
    }

    fn job_rank(_: &JobAccount) -> u64 {
        0
    }
}
