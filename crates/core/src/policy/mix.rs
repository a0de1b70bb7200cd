//! Which tasks of a job are opportunistic: hybrid-GQ(t_d, p_q) of Mercury (Karanasos et al. 2015, section 5). A task that is
//! expected to run shorter than t_d is opportunistic in p_q of the cases, all others are guaranteed.
//!
//! Departs: of tasks that become ready together the whole part p_q is opportunistic, and chance decides only about what is
//! left over; so an array of a million costs one draw.

use super::run_time;
use crate::vocabulary::{Chance, Duration};
use crate::why::Why;
use serde::{Deserialize, Serialize};

/// The unit of `opportunistic`.
const MILLION: u32 = 1_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mix {
    /// t_d; `None` for infinity.
    pub shorter_than: Option<Duration>,
    /// p_q, in millionths.
    pub opportunistic: u32,
}

impl Mix {
    pub const ONLY_GUARANTEED: Mix = Mix { shorter_than: None, opportunistic: 0 };
    pub const ONLY_OPPORTUNISTIC: Mix = Mix { shorter_than: None, opportunistic: MILLION };

    /// How many of so many tasks, each expected to run so long, are opportunistic.
    pub fn draw(&self, tasks: u32, expected: Option<Duration>, chance: &mut Chance) -> u32 {
        if self.shorter_than.is_some_and(|limit| run_time(expected) >= limit) {
            return 0;
        }
        let share = u64::from(tasks) * u64::from(self.opportunistic.min(MILLION));
        let (whole, rest) = (share / u64::from(MILLION), (share % u64::from(MILLION)) as u32);
        whole as u32 + u32::from(rest > 0 && chance.below(MILLION) < rest)
    }
}

/// How many opportunistic attempts of a job may be out at once (section 4.1).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Quota {
    pub absolute: Option<u32>,
    /// In hundredths of the guaranteed ones that are out; one is allowed to a job that has none.
    pub relative: Option<u32>,
}

impl Quota {
    pub fn is_set(&self) -> bool {
        *self != Quota::default()
    }

    /// How many more may be launched.
    pub fn left(&self, guaranteed: u64, opportunistic: u64) -> u64 {
        self.tighter(guaranteed).map_or(u64::MAX, |(most, _)| most).saturating_sub(opportunistic)
    }

    /// Why no more may be launched; `None` where one may.
    pub fn limit_on(&self, guaranteed: u64, opportunistic: u64) -> Option<Why> {
        let (most, is_relative) = self.tighter(guaranteed)?;
        let beside = is_relative.then_some(guaranteed);
        (opportunistic >= most).then_some(Why::Quota { launched: opportunistic, most, beside })
    }

    /// The most that may be out, and whether the guaranteed ones decide that.
    fn tighter(&self, guaranteed: u64) -> Option<(u64, bool)> {
        let absolute = self.absolute.map(|most| (u64::from(most), false));
        let relative = self.relative.map(|hundredths| ((guaranteed * u64::from(hundredths) / 100).max(1), true));
        absolute.into_iter().chain(relative).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Option<Duration> = Some(Duration::from_secs(3));

    #[test]
    fn the_two_ends_are_all_and_nothing_whatever_is_expected() {
        let mut chance = Chance::new(1, "mix");
        for expected in [None, SHORT] {
            assert_eq!(Mix::ONLY_GUARANTEED.draw(1_000, expected, &mut chance), 0);
            assert_eq!(Mix::ONLY_OPPORTUNISTIC.draw(1_000, expected, &mut chance), 1_000);
        }
    }

    #[test]
    fn only_tasks_below_the_limit_are_opportunistic_and_an_unknown_one_is_long() {
        let mix = Mix { shorter_than: Some(Duration::from_secs(10)), opportunistic: MILLION };
        let mut chance = Chance::new(1, "mix");
        assert_eq!(mix.draw(7, SHORT, &mut chance), 7);
        assert_eq!(mix.draw(7, Some(Duration::from_secs(10)), &mut chance), 0);
        assert_eq!(mix.draw(7, None, &mut chance), 0);
    }

    #[test]
    fn one_by_one_or_together_the_share_is_the_same() {
        let mix = Mix { shorter_than: None, opportunistic: 700_000 };
        let mut chance = Chance::new(1, "mix");
        let together = mix.draw(10_000, SHORT, &mut chance);
        assert_eq!(together, 7_000);
        let single: u32 = (0..10_000).map(|_| mix.draw(1, SHORT, &mut chance)).sum();
        assert!(single.abs_diff(7_000) < 150, "{single}");
        let threes: u32 = (0..10_000).map(|_| mix.draw(3, SHORT, &mut chance)).sum();
        assert!(threes.abs_diff(21_000) < 150, "{threes}");
    }

    #[test]
    fn the_tighter_of_two_quotas_holds() {
        let quota = Quota { absolute: Some(100), relative: Some(250) };
        assert_eq!(Quota::default().left(0, 9), u64::MAX - 9);
        assert_eq!(quota.left(10, 20), 5);
        assert_eq!(quota.left(10, 30), 0);
        assert_eq!((quota.left(0, 0), quota.left(0, 1)), (1, 0), "a job of opportunistic tasks alone gets on");
        assert_eq!(quota.left(1_000, 20), 80);
        assert!(quota.is_set() && !Quota::default().is_set());
    }

    #[test]
    fn a_quota_that_allows_no_more_says_by_what() {
        let quota = Quota { absolute: Some(100), relative: Some(250) };
        assert_eq!(quota.limit_on(10, 24), None);
        assert_eq!(quota.limit_on(10, 26), Some(Why::Quota { launched: 26, most: 25, beside: Some(10) }));
        assert_eq!(quota.limit_on(1_000, 100), Some(Why::Quota { launched: 100, most: 100, beside: None }));
        assert_eq!(Quota::default().limit_on(0, u64::MAX), None);
    }
}
