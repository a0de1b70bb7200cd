//! First come, first served: by priority, then by submission, across all queues.

use super::accounts::JobAccount;
use super::line::{JobOrder, Line};
use crate::protocol::Rule;

pub type Fifo = Line<BySubmission>;

pub struct BySubmission;

impl JobOrder for BySubmission {
    const RULE: Rule = Rule::Submission;

    fn rank(_: &JobAccount) -> u64 {
        0
    }
}
