//! Attempts by age, oldest first, of the stages that are asked for. Attempts of other stages cost nothing.

use crate::vocabulary::{AttemptId, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::iter;

/// The start of its age, and the attempt.
type Since = (Instant, AttemptId);

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct ByAge {
    of_stage: BTreeMap<u32, BTreeSet<Since>>,
}

impl ByAge {
    pub(super) fn insert(&mut self, stage: u32, since: Since) {
        self.of_stage.entry(stage).or_default().insert(since);
    }

    /// Returns whether it was there.
    pub(super) fn remove(&mut self, stage: u32, since: &Since) -> bool {
        let Some(those) = self.of_stage.get_mut(&stage) else { return false };
        let was_there = those.remove(since);
        if those.is_empty() {
            self.of_stage.remove(&stage);
        }
        was_there
    }

    pub(super) fn len(&self) -> usize {
        self.of_stage.values().map(BTreeSet::len).sum()
    }

    /// Eligible attempts of some stages, oldest first.
    pub(super) fn oldest<'a>(
        &'a self,
        is_asked_for: impl Fn(u32) -> bool,
        is_eligible: impl Fn(AttemptId) -> bool + Copy + 'a,
    ) -> impl Iterator<Item = Since> + 'a {
        let stages = self.of_stage.iter().filter(|(stage, _)| is_asked_for(**stage));
        let mut first: BTreeMap<Since, _> = stages
            .filter_map(|(_, those)| {
                let mut rest = those.iter().copied().filter(move |(_, attempt)| is_eligible(*attempt));
                Some((rest.next()?, rest))
            })
            .collect();
        iter::from_fn(move || {
            let (oldest, mut rest) = first.pop_first()?;
            if let Some(next) = rest.next() {
                first.insert(next, rest);
            }
            Some(oldest)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Epoch, JobId};

    #[test]
    fn the_oldest_attempts_of_the_requested_stages_come_first() {
        let since = |number| (Instant(10 - u64::from(number)), AttemptId { job: JobId(1), epoch: Epoch(1), number });
        let mut all = ByAge::default();
        (0..9).for_each(|number| all.insert(number % 3, since(number)));
        assert!(all.remove(0, &since(6)) && !all.remove(1, &since(6)));
        let numbers = |is_asked_for: fn(u32) -> bool| -> Vec<u32> {
            all.oldest(is_asked_for, |attempt| attempt.number != 5).map(|(_, attempt)| attempt.number).collect()
        };
        assert_eq!((numbers(|_| true), all.len()), (vec![8, 7, 4, 3, 2, 1, 0], 8));
        assert_eq!(numbers(|stage| stage != 1), [8, 3, 2, 0]);
    }
}
