//! Packing within a job (Grandl et al. 2014, Tetris; an alternative in Carbyne 4.1): asks for all runnable tasks, in no
//! order of stages. Which of a job's asks gets a node's room is decided where the room is known: the one that is best
//! aligned with it.

use crate::policy::{DagProgress, IntraJobPolicy, JobDemand};
use crate::vocabulary::{Instant, Totals};

pub struct Tetris;

impl IntraJobPolicy for Tetris {
    fn demand(&mut self, _: Instant, dag: &DagProgress<'_>, _: Option<&Totals>) -> JobDemand {
        JobDemand { needed: dag.everything(), in_order: false, ..JobDemand::default() }
    }
}
