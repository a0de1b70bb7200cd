//! First come, first started, without overtaking: the queue of a worker in Sparrow (Ousterhout et al. 2013, section 3),
//! and Mercury's queue before re-ordering (Karanasos et al. 2015). Departs: while the first entry has no room, the others wait.

use crate::policy::QueuePolicy;
use crate::vocabulary::{Instant, QueueView, Resources, RunningEntry};

pub struct Fifo;

impl QueuePolicy for Fifo {
    fn pick(
        &mut self,
        _: Instant,
        queue: &QueueView<'_>,
        _: &mut dyn Iterator<Item = RunningEntry>,
        free: &Resources,
    ) -> Option<usize> {
        queue.entries.first().filter(|entry| entry.shape.resources.fits_in(free)).map(|_| 0)
    }
}
