//! First come, first started; nobody overtakes.

use crate::policy::QueuePolicy;
use crate::vocabulary::{Instant, QueueView, Resources, RunningEntry};

pub struct Fifo;

impl QueuePolicy for Fifo {
    fn pick(&mut self, _: Instant, queue: &QueueView<'_>, _: &[RunningEntry], free: &Resources) -> Option<usize> {
        queue.entries.first().filter(|entry| entry.resources.fits_in(free)).map(|_| 0)
    }
}
