//! Alignment of a task with a node's free resources (Grandl et al. 2014, Tetris, 3.2): the dot product of the task's
//! demand and the free resources, both as fractions of the node's capacity. It prefers large tasks, and tasks that
//! mostly need the kinds of which most is free.

use crate::vocabulary::Resources;
use crate::vocabulary::resources::WIDTH;

/// A kind of resource that is completely free and completely requested contributes 2 to this power.
const ONE_BITS: u32 = 40;

/// A node's free resources, ready to be multiplied with demands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alignment([u64; WIDTH]);

impl Alignment {
    /// For a node with this room and capacity.
    pub fn with(room: &Resources, capacity: &Resources) -> Alignment {
        let mut factors = [0; WIDTH];
        for (factor, (&free, &of)) in factors.iter_mut().zip(room.0.iter().zip(&capacity.0)) {
            let (free, of) = (u64::from(free), u64::from(of));
            if free > 0 && of > 0 {
                *factor = match free.checked_mul(1 << ONE_BITS) {
                    Some(scaled) => scaled / (of * of),
                    None => u64::try_from((u128::from(free) << ONE_BITS) / u128::from(of * of)).unwrap_or(u64::MAX),
                };
            }
        }
        Alignment(factors)
    }

    /// The alignment of a task that needs `shape`, which has to fit into the room.
    #[inline]
    pub fn of(&self, shape: &Resources) -> u64 {
        let parts = shape.0.iter().zip(&self.0).map(|(&wanted, factor)| u64::from(wanted).saturating_mul(*factor));
        parts.fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::resources::GPU;

    #[test]
    fn alignment_is_the_dot_product_of_fractions_of_the_capacity() {
        let capacity = Resources::new(64_000, 256 << 10).with(GPU, 8);
        let room = Resources::new(32_000, 64 << 10).with(GPU, 8);
        let aligned =
            |shape: Resources| Alignment::with(&room, &capacity).of(&shape) as f64 / (1u64 << ONE_BITS) as f64;
        let close = |left: f64, right: f64| assert!((left - right).abs() < 1e-4, "{left} is not {right}");
        close(aligned(Resources::new(16_000, 64 << 10)), 0.5 * 0.25 + 0.25 * 0.25);
        close(aligned(Resources::new(0, 0).with(GPU, 2)), 0.25);
    }
}
