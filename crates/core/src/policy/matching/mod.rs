//! Matching of a batch of tasks with nodes: a node takes at most one task of a batch ([`Candidates`]; Boutin et al. 2014: Apollo,
//! section 3.3), or as many as finish earliest there ([`Regret`]). The cost of a pair is the time at which the task would
//! finish on the node; matching uses costs only. Ties go to the smaller index.

mod regret;
mod sparse;

pub use regret::{Growing, Pairing, Regret};
pub use sparse::{Candidates, Match};
