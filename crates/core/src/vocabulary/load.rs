//! What is to be done at a node besides what its node knows of.

use super::resources::WIDTH;
use super::{Duration, Resources, Totals};

/// What several tasks take together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Load {
    pub resources: Totals,
    /// Of each kind, its amounts times the microseconds for which they are held.
    work: [u128; WIDTH],
}

impl Load {
    pub fn add(&mut self, resources: &Resources, lasting: Duration) {
        self.resources.add(resources);
        for (work, &amount) in self.work.iter_mut().zip(&resources.0) {
            *work = work.saturating_add(u128::from(amount) * u128::from(lasting.0));
        }
    }

    /// Both together.
    #[must_use]
    pub fn and(&self, other: &Load) -> Load {
        Load {
            resources: self.resources.zip(&other.resources, u64::saturating_add),
            work: std::array::from_fn(|kind| self.work[kind].saturating_add(other.work[kind])),
        }
    }

    /// With one more of these; as much as the node has, and nothing of it left, where that is more.
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
