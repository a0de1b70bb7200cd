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
use std::collections::{BTreeMap, BTreeSet};

/// What shows that an attempt is slow and the task not long by its nature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Evidence {
    /// It uses less CPU than others.
    Cpu,
    /// Its progress only: a duplicate may be as slow.
    Progress,
}

/// The slow attempts of which duplicates are requested.
#[derive(Default)]
pub(super) struct WantedDuplicates {
    /// With their stages.
    of: BTreeMap<AttemptId, (u32, Evidence)>,
    /// The asks do not request the same number.
    has_changed: bool,
    /// Attempts that got a duplicate because of their progress only, since the last restart, if it has not won.
    tried: BTreeSet<AttemptId>,
    /// Number of such duplicates that have won.
    have_won: usize,
}

impl WantedDuplicates {
    /// Maximum number of duplicates of a job that were requested because of progress only and have not won, besides as many as have.
    /// Such a duplicate does not help against a task that is long by its nature, and that is found out only by trying.
    const MOST_IN_VAIN: usize = 2;

    fn may_be_tried(&self) -> bool {
        let requested = self.of.values().filter(|(_, evidence)| *evidence == Evidence::Progress).count();
        self.tried.len() + requested < Self::MOST_IN_VAIN + self.have_won
    }

    /// The duplicate of this attempt has succeeded first.
    pub(super) fn on_won(&mut self, slow: AttemptId) {
        self.have_won += usize::from(self.tried.remove(&slow));
    }

    fn on_launched(&mut self, slow: AttemptId) {
        if let Some((_, evidence)) = self.of.remove(&slow) {
            self.has_changed = true;
            self.tried.extend((evidence == Evidence::Progress).then_some(slow));
        }
    }

    pub(super) fn request(&mut self, attempt: AttemptId, stage: u32, evidence: Evidence) {
        let is_known = self.of.get(&attempt).is_some_and(|(_, known)| *known == evidence);
        if is_known || evidence == Evidence::Cpu || self.may_be_tried() {
            self.has_changed |= self.of.insert(attempt, (stage, evidence)).is_none();
        } else {
            self.withdraw(attempt);
        }
    }

    pub(super) fn withdraw(&mut self, attempt: AttemptId) {
        self.has_changed |= self.of.remove(&attempt).is_some();
    }

    pub(super) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// By stage, with repetitions; the asks request them.
    pub(super) fn take(&mut self) -> Vec<u32> {
        self.has_changed = false;
        self.of.values().map(|(stage, _)| *stage).collect()
    }
}

impl JobManager {
    /// Requests room for a duplicate of the attempt if it is a straggler that a duplicate may overtake, or no longer requests it.
    pub(super) fn request_duplicate(&mut self, attempt: AttemptId, straggler: Option<Straggler>) {
        let evidence = straggler.and_then(|straggler| match self.stragglers.is_hindered(attempt, &straggler) {
            Some(true) => Some(Evidence::Cpu),
            Some(false) => None,
            None => Some(Evidence::Progress),
        });
        let stage = self.attempts.get(&attempt).map(|sent| sent.task.stage);
        let Some(stage) = stage.filter(|stage| !self.gangs.is_gang(*stage)) else { return };
        match evidence {
            Some(evidence) => self.duplicates.request(attempt, stage, evidence),
            None => self.duplicates.withdraw(attempt),
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
        let of_ask =
            self.duplicates.of.iter().filter(|(_, (stage, _))| self.requests.ask_of(*stage, false) == ask.number);
        let of_ask: Vec<(AttemptId, u32)> = of_ask.map(|(attempt, (stage, _))| (*attempt, *stage)).collect();
        let may_start = !self.lifecycle.is_stopping() && !self.lifecycle.is_held();
        for &(attempt, stage) in &of_ask {
            let sent = self.attempts.get(&attempt).filter(|sent| may_start && sent.node != target.node);
            let Some(straggler) = sent.and_then(|sent| self.stragglers.find_straggler(attempt, sent)) else { continue };
            let Straggler { slow: Slow { task, node, left, .. }, part, takes } = straggler;
            self.duplicates.on_launched(attempt);
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
        later.for_each(|(attempt, _)| self.duplicates.withdraw(attempt));
        false
    }
}
