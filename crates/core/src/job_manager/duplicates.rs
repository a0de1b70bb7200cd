//! Slow tasks whose job's tasks are placed by the master: the job manager requests room for a duplicate of each together with the
//! tasks of its stage that have no attempt, and after them. If a stage waits for its last tasks only, its asks thus stay open for
//! the slow ones among these.
//!
//! This is the straggler detection of Boutin et al. 2014, section 3.4, with a node that the master chooses. A grant on the node of
//! the slow attempt is returned, and room is requested again when the node reports the next time.

use super::stragglers::{Slow, Straggler};
use super::{JobManager, LaunchTarget};
use crate::protocol::Rule;
use crate::role::{Outbox, Record};
use crate::vocabulary::{AskId, AttemptId, Instant};
use std::collections::BTreeMap;

/// The slow attempts of which duplicates are requested.
#[derive(Default)]
pub(super) struct WantedDuplicates {
    /// With their stages.
    of: BTreeMap<AttemptId, u32>,
    /// The asks do not request the same number.
    has_changed: bool,
    /// Launched since the last restart, and those that succeeded before the slow attempt.
    launched: u64,
    have_won: u64,
}

impl WantedDuplicates {
    /// Maximum number of duplicates of a job that have not won, besides as many as have. A duplicate does not help against a task that
    /// is long by its nature, and that is found out only by trying.
    const MOST_IN_VAIN: u64 = 2;

    /// Duplicates of no other attempt are requested until one wins.
    fn is_discouraged(&self) -> bool {
        let not_won = self.launched - self.have_won + self.of.len() as u64;
        not_won >= Self::MOST_IN_VAIN + self.have_won
    }

    pub(super) fn on_won(&mut self) {
        self.have_won += 1;
    }

    pub(super) fn set(&mut self, attempt: AttemptId, stage: u32, is_wanted: bool) {
        let is_wanted = is_wanted && (self.of.contains_key(&attempt) || !self.is_discouraged());
        let was_wanted = if is_wanted { self.of.insert(attempt, stage) } else { self.of.remove(&attempt) }.is_some();
        self.has_changed |= is_wanted != was_wanted;
    }

    pub(super) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// By stage, with repetitions; the asks request them.
    pub(super) fn take(&mut self) -> Vec<u32> {
        self.has_changed = false;
        self.of.values().copied().collect()
    }
}

impl JobManager {
    /// Requests room for a duplicate of the attempt, or no longer requests it.
    pub(super) fn request_duplicate(&mut self, attempt: AttemptId, is_wanted: bool) {
        let stage = self.attempts.get(&attempt).map(|sent| sent.task.stage);
        if let Some(stage) = stage.filter(|stage| !self.gangs.is_gang(*stage)) {
            self.duplicates.set(attempt, stage, is_wanted);
        }
    }

    /// Launches a duplicate of a slow task in room that no other task of the ask needs. False if there is none on another node.
    pub(super) fn launch_duplicate(
        &mut self,
        now: Instant,
        ask: AskId,
        target: LaunchTarget,
        out: &mut Outbox,
    ) -> bool {
        let of_ask = self.duplicates.of.iter().filter(|(_, stage)| self.requests.ask_of(**stage, false) == ask.number);
        let of_ask: Vec<(AttemptId, u32)> = of_ask.map(|(attempt, stage)| (*attempt, *stage)).collect();
        let may_start = !self.lifecycle.is_stopping() && !self.lifecycle.is_held();
        for &(attempt, stage) in &of_ask {
            let sent = self.attempts.get(&attempt).filter(|sent| may_start && sent.node != target.node);
            let Some(straggler) = sent.and_then(|sent| self.stragglers.find_straggler(attempt, sent)) else { continue };
            let Straggler { slow: Slow { task, node, left, .. }, part, takes } = straggler;
            self.duplicates.set(attempt, stage, false);
            self.duplicates.launched += 1;
            let execution = self.job.spec.stages[stage as usize].execution;
            let elsewhere = target.node;
            out.record(Record::Straggles { task, attempt, node, part, left, elsewhere, takes });
            self.launch(now, LaunchTarget { rule: Rule::Straggler, ..target }, task, execution, out);
            return true;
        }
        // The grant is returned. One duplicate less is requested until the node of its attempt reports again, since the next grant
        // may be on the same node; those of attempts that are not slow any more were requested in vain.
        let is_here = |attempt: &AttemptId| self.attempts.get(attempt).is_some_and(|sent| sent.node == target.node);
        let (here, gone): (Vec<_>, Vec<_>) = of_ask.into_iter().partition(|(attempt, _)| is_here(attempt));
        let later = here.into_iter().take(1).chain(gone);
        later.for_each(|(attempt, stage)| self.duplicates.set(attempt, stage, false));
        false
    }
}
