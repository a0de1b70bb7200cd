//! Work that is sent to a node and that the node does not know of yet.

use super::resources::WIDTH;
use super::{Duration, Resources, Totals};

/// The resources and the work of several tasks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Load {
    pub resources: Totals,
    /// Per kind, the amounts times the microseconds for which they are held.
    work: [u128; WIDTH],
}

impl Load {
    pub fn add(&mut self, resources: &Resources, lasting: Duration) {
        self.resources.add(resources);
        for (work, &amount) in self.work.iter_mut().zip(&resources.0) {
            *work = work.saturating_add(u128::from(amount) * u128::from(lasting.0));
        }
    }

    /// The sum of both.
    #[must_use]
    pub fn and(&self, other: &Load) -> Load {
        Load {
            resources: self.resources.zip(&other.resources, u64::saturating_add),
            work: std::array::from_fn(|kind| self.work[kind].saturating_add(other.work[kind])),
        }
    }

    /// The resources of the load and one more task of this shape; the largest amount of a kind if the sum is larger.
    pub fn with(&self, shape: &Resources) -> Resources {
        let sum = |kind: usize| u64::from(shape.0[kind]).saturating_add(self.resources.0[kind]);
        Resources(std::array::from_fn(|kind| u32::try_from(sum(kind)).unwrap_or(u32::MAX)))
    }

    /// How long it takes if it fills the node.
    pub fn at_full_use(&self, capacity: &Resources) -> Duration {
        let kinds = self.work.iter().zip(&capacity.0);
        let times = kinds.filter_map(|(work, &of)| work.checked_div(u128::from(of)));
        Duration(u64::try_from(times.max().unwrap_or(0)).unwrap_or(u64::MAX))
    }
}
