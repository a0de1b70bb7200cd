//! Critical path method (Kelley and Walker 1959; an alternative of Carbyne 4.1): everything that can run is asked for,
//! and what is granted goes to the stage from which the longest path leads to the end of the job.
//!
//! The length of a path is the sum of the expected run times of one task of each stage on it, the stage's own
//! included; the smaller index decides between equals. Leaves out: how many tasks a stage has, and how many of them can
//! run at once.

use crate::policy::{DagProgress, IntraJobPolicy, JobDemand, StageGraph, run_time};
use crate::vocabulary::{Duration, Instant, Totals};
use std::cmp::Reverse;

#[derive(Default)]
pub struct CriticalPath {
    /// By stage; kept to save allocations.
    paths: Vec<Duration>,
}

impl CriticalPath {
    /// Stages come after those that they depend on, so one pass from the last to the first sees every path.
    fn measure(&mut self, graph: &dyn StageGraph) {
        self.paths.clear();
        self.paths.resize(graph.len(), Duration::ZERO);
        for stage in (0..graph.len()).rev() {
            let rest = graph.dependents(stage as u32).iter().map(|&next| self.paths[next as usize]).max();
            self.paths[stage] = run_time(graph.expected(stage as u32)) + rest.unwrap_or_default();
        }
    }
}

impl IntraJobPolicy for CriticalPath {
    fn demand(&mut self, _: Instant, dag: &DagProgress<'_>, _: Option<&Totals>) -> JobDemand {
        if dag.runnable.len() > 1 {
            self.measure(dag.graph);
        }
        let mut needed = dag.everything();
        if needed.len() > 1 {
            needed.sort_by_key(|demand| (Reverse(self.paths[demand.stage as usize]), demand.stage));
        }
        JobDemand { needed, in_order: true, ..JobDemand::default() }
    }
}
