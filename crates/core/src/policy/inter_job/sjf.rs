//! Shortest job first: the job whose total work would occupy the whole cluster for the shortest time. (The baseline of
//! Carbyne 5.1; the rule is Smith's of 1956.)
//!
//! Work is resources times expected run time, in the scarcest kind of resource: the job's need of the cluster, not the
//! length of its longest path. Estimates are refined while the job runs, and the order follows them. Leaves out:
//! preemption of running tasks.

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
