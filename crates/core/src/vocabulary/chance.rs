//! Chance that is the same in every run with the same seed.

/// A generator of random numbers (Steele, Lea and Flood 2014: SplitMix64). Whoever needs chance owns one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chance(u64);

impl Chance {
    /// One for each component, told apart by its name, from the one seed of a run.
    pub fn for_component(seed: u64, name: &str) -> Chance {
        // FNV-1a over the name; the first number drawn mixes it with the seed.
        let hash = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        Chance(Chance(seed ^ hash).next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `limit` - 1, each as likely as the others to within one in 2^32.
    pub fn below(&mut self, limit: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_draw_apart_and_every_run_alike() {
        let draw = |seed, name| {
            let mut chance = Chance::for_component(seed, name);
            [(); 8].map(|()| chance.below(1_000))
        };
        assert_eq!(draw(1, "placement"), draw(1, "placement"));
        assert_ne!(draw(1, "placement"), draw(2, "placement"));
        assert_ne!(draw(1, "placement"), draw(1, "network"));
    }

    #[test]
    fn every_number_is_drawn_about_equally_often() {
        let mut chance = Chance::for_component(7, "test");
        let mut counts = [0u32; 10];
        (0..100_000).for_each(|_| counts[chance.below(10) as usize] += 1);
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }
}
