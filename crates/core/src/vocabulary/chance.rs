//! Random numbers that are the same in every run with the same seed, and the only ones in the project.

use super::Fingerprint;
use rand_pcg::Pcg64;
use rand_pcg::rand_core::Rng;

/// A random number generator for one purpose, so that a new purpose does not change the numbers drawn for the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chance(Pcg64);

impl Chance {
    /// The generator for a purpose, derived from the seed of the run and the purpose's name.
    pub fn new(seed: u64, purpose: &str) -> Chance {
        Chance(Pcg64::new(u128::from(seed), u128::from(Fingerprint::default().bytes(purpose.as_bytes()).value())))
    }

    /// Uniform in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        const STEPS: f64 = (1u64 << 53) as f64;
        (self.0.next_u64() >> 11) as f64 / STEPS
    }

    /// Uniform in `0..limit`; `limit` is not 0.
    pub fn below<N: Copy + TryFrom<u64> + Into<u64>>(&mut self, limit: N) -> N {
        let drawn = (u128::from(self.0.next_u64()) * u128::from(limit.into())) >> 64;
        // A number below the limit fits into its type.
        N::try_from(drawn as u64).unwrap_or(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_draw_different_numbers_and_runs_the_same() {
        let draw = |seed, purpose| {
            let mut chance = Chance::new(seed, purpose);
            [(); 8].map(|()| chance.below(1_000_u32))
        };
        assert_eq!(draw(1, "placement"), draw(1, "placement"));
        assert_ne!(draw(1, "placement"), draw(2, "placement"));
        assert_ne!(draw(1, "placement"), draw(1, "network"));
    }

    #[test]
    fn every_number_is_drawn_about_equally_often() {
        let mut chance = Chance::new(7, "test");
        let mut counts = [0u32; 10];
        (0..100_000).for_each(|_| counts[chance.below(10_u32) as usize] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        let mean = (0..10_000).map(|_| chance.unit()).sum::<f64>() / 10_000.0;
        assert!((0.49..0.51).contains(&mean), "{mean}");
    }
}
