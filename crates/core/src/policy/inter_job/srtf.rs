//! Shortest remaining time first: the job with the least remaining work. (The baseline of Carbyne 5.1, and its order
//! for leftover resources, 3.3; Schrage 1968.)
//!
//! Work is measured as in `sjf.rs`. A running task counts as not started until it ends, and the last report of a job
//! manager may be off by a sixteenth. Leaves out: preemption of running tasks.

use super::accounts::JobAccount;
use super::line::{JobOrder, Line};
use crate::protocol::Rule;

pub type Srtf = Line<ByRemainingWork>;

pub struct ByRemainingWork;

impl JobOrder for ByRemainingWork {
    const RULE: Rule = Rule::ShortestRemaining;

    fn rank(job: &JobAccount) -> u64 {
        job.remaining_time
    }
}
