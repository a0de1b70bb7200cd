//! Packing within a job (Grandl et al. 2014, Tetris; an alternative of Carbyne 4.1): everything that can run is asked
//! for, and no stage goes before another. Which of a job's asks gets a node's room is then decided where the room is
//! known: the one that is best aligned with it.

use crate::policy::{DagProgress, IntraJobPolicy, JobDemand};
use crate::vocabulary::{Instant, Totals};

pub struct Tetris;

impl IntraJobPolicy for Tetris {
    fn demand(&mut self, _: Instant, dag: &DagProgress<'_>, _: Option<&Totals>) -> JobDemand {
        JobDemand { needed: dag.everything(), in_order: false, ..JobDemand::default() }
    }
}
