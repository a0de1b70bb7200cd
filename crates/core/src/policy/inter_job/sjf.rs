//! Shortest job first: the job whose work, all of it, would occupy the whole cluster for the shortest time. (The
//! baseline of Carbyne 5.1; the rule is Smith's of 1956.)
//!
//! Work is resources times expected run time, in the kind of resource that is scarcest: what a job needs of a cluster,
//! and not how long its longest path is. Estimates are refined while it runs, and the order follows them. Leaves out:
//! preemption of what runs.

use super::accounts::JobAccount;
use super::line::{JobOrder, Line};
use crate::protocol::Rule;

pub type Sjf = Line<ByTotalWork>;

pub struct ByTotalWork;

impl JobOrder for ByTotalWork {
    const RULE: Rule = Rule::ShortestJob;

    fn rank(job: &JobAccount) -> u64 {
        job.total_time
    }
}
