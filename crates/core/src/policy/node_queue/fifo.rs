//! First come, first started; nobody overtakes: the queue of a worker in Sparrow (Ousterhout et al. 2013, section 3),
//! and Mercury's before it is re-ordered (Karanasos et al. 2015). Departs: where the first lacks room, the others wait.

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
