//! Asks for all runnable tasks at once, in the order of the stages. (Carbyne 4.1, the baseline.)

use crate::policy::{DagProgress, IntraJobPolicy, JobDemand};
use crate::vocabulary::{Instant, Totals};

pub struct BreadthFirst;

impl IntraJobPolicy for BreadthFirst {
    fn demand(&mut self, _: Instant, dag: &DagProgress<'_>, _: Option<&Totals>) -> JobDemand {
        JobDemand { needed: dag.everything(), in_order: true, ..JobDemand::default() }
    }
}
