//! Decides which tasks of a job are opportunistic: hybrid-GQ(t_d, p_q) of Mercury (Karanasos et al. 2015, section 5). A
//! task with an expected run time below t_d is opportunistic with probability p_q; all others are guaranteed.
//!
//! Departs: of N tasks that become ready together, the integer part of p_q N are opportunistic, and only the fraction
//! that remains is drawn at random; so an array of a million tasks costs one draw.

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
    pub const ONLY_OPPORTUNISTIC: Mix = Mix { shorter_than: None, opportunistic: MILLION };

    /// How many of `tasks` tasks with this expected run time are opportunistic.
    pub fn draw(&self, tasks: u32, expected: Option<Duration>, chance: &mut Chance) -> u32 {
        if self.shorter_than.is_some_and(|limit| run_time(expected) >= limit) {
            return 0;
        }
        let share = u64::from(tasks) * u64::from(self.opportunistic.min(MILLION));
        let (whole, rest) = (share / u64::from(MILLION), (share % u64::from(MILLION)) as u32);
        whole as u32 + u32::from(rest > 0 && chance.below(MILLION) < rest)
    }
}

/// Limit of a job's opportunistic attempts that are active at once (section 4.1).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Quota {
    pub absolute: Option<u32>,
    /// In percent of the active guaranteed attempts; a job without any may have one.
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

    /// The reason why no more may be launched; `None` if one may.
    pub fn limit_on(&self, guaranteed: u64, opportunistic: u64) -> Option<Why> {
        let (most, is_relative) = self.tighter(guaranteed)?;
        let beside = is_relative.then_some(guaranteed);
        (opportunistic >= most).then_some(Why::Quota { launched: opportunistic, most, beside })
    }

    /// The maximum number of active attempts, and whether it depends on the guaranteed ones.
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
    fn pure_mixes_draw_all_or_none_for_any_run_time() {
        let mut chance = Chance::new(1, "mix");
        for expected in [None, SHORT] {
            let only_guaranteed = Mix { shorter_than: None, opportunistic: 0 };
            assert_eq!(only_guaranteed.draw(1_000, expected, &mut chance), 0);
            assert_eq!(Mix::ONLY_OPPORTUNISTIC.draw(1_000, expected, &mut chance), 1_000);
        }
    }

    #[test]
    fn tasks_below_the_limit_are_opportunistic_and_unknown_ones_count_as_long() {
        let mix = Mix { shorter_than: Some(Duration::from_secs(10)), opportunistic: MILLION };
        let mut chance = Chance::new(1, "mix");
        assert_eq!(mix.draw(7, SHORT, &mut chance), 7);
        assert_eq!(mix.draw(7, Some(Duration::from_secs(10)), &mut chance), 0);
        assert_eq!(mix.draw(7, None, &mut chance), 0);
    }

    #[test]
    fn drawing_one_by_one_or_together_gives_the_same_share() {
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
        assert_eq!((quota.left(0, 0), quota.left(0, 1)), (1, 0), "a job with only opportunistic tasks can run");
        assert_eq!(quota.left(1_000, 20), 80);
        assert!(quota.is_set() && !Quota::default().is_set());
    }

    #[test]
    fn an_exhausted_quota_reports_which_limit_applies() {
        let quota = Quota { absolute: Some(100), relative: Some(250) };
        assert_eq!(quota.limit_on(10, 24), None);
        assert_eq!(quota.limit_on(10, 26), Some(Why::Quota { launched: 26, most: 25, beside: Some(10) }));
        assert_eq!(quota.limit_on(1_000, 100), Some(Why::Quota { launched: 100, most: 100, beside: None }));
        assert_eq!(Quota::default().limit_on(0, u64::MAX), None);
    }
}
