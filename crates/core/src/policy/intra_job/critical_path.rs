//! Critical path method (Kelley and Walker 1959; an alternative in Carbyne 4.1): asks for all runnable tasks, and uses
//! grants for the stage with the longest path to the end of the job.
//!
//! The length of a path is the sum of the expected run times of one task of each stage on it, including the first;
//! among equal paths the stage with the smaller index is first. Leaves out: the number of tasks of a stage, and how
//! many of them can run at once.

use crate::policy::{DagProgress, IntraJobPolicy, JobDemand, StageGraph, run_time};
use crate::vocabulary::{Duration, Instant, Totals};
use std::cmp::Reverse;

#[derive(Default)]
pub struct CriticalPath {
    /// By stage; kept to save allocations.
    paths: Vec<Duration>,
}

impl CriticalPath {
    /// Stages have higher indices than those they depend on, so one pass from the last to the first covers every path.
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
