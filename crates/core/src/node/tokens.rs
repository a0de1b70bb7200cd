//! Which launches a node takes: those whose token speaks for them, here and now, and each once.
//!
//! What is not authentic gets no answer: an answer would let whoever made it up write off an attempt that is none of his.

use super::NodeAgent;
use crate::protocol::{Address, Claim, Launch, TheMaster, ToJobManager, ToMaster};
use crate::role::{Outbox, Record, TokenFault};
use crate::vocabulary::{AttemptId, Epoch, Generation, Instant, JobId, Key, Mac};

pub(super) struct Tokens {
    mac: Mac,
    /// From the latest welcome.
    key: Option<Key>,
    /// Earlier generations are void.
    oldest: Generation,
    /// By job, in order: the last attempt whose launch was here, or was lost on the way as far as its job manager knows.
    /// Launches of a job come in the order of their numbers, so none up to it comes any more. Dropped when no token of the
    /// generation counts any more.
    seen: Vec<Seen>,
    /// Launches that came before the welcome which brings the key.
    early: Vec<(Address, Box<Launch>)>,
}

struct Seen {
    job: JobId,
    last: (Epoch, u32),
    generation: Generation,
}

enum Verdict {
    Good,
    /// An authentic launch came before, and what became of it is forgotten here.
    Repeated,
    Refused(TokenFault),
}

impl Tokens {
    pub(super) fn new(mac: Mac) -> Tokens {
        Tokens { mac, key: None, oldest: Generation::default(), seen: Vec::new(), early: Vec::new() }
    }

    /// A new key belongs to a new life of the server, which counts generations anew. Epochs before this one are refused.
    pub(super) fn on_welcome(&mut self, key: Key, oldest: Generation, epoch: Epoch) {
        if self.key.replace(key) != Some(key) {
            self.oldest = oldest;
        }
        self.seen.retain(|seen| seen.last.0 >= epoch);
        self.expire(oldest);
    }

    /// What was lost with an earlier connection is written off now: should it come after all, nobody would own it.
    pub(super) fn on_claim(&mut self, claim: &Claim) {
        let Claim { job, epoch, next_attempt, generation, .. } = *claim;
        if let Some(number) = next_attempt.checked_sub(1) {
            self.see(AttemptId { job, epoch, number }, generation);
        }
    }

    pub(super) fn expire(&mut self, before: Generation) {
        self.oldest = self.oldest.max(before);
        self.seen.retain(|seen| seen.generation >= self.oldest);
    }

    /// What came on an earlier connection was lost with it.
    pub(super) fn forget_early(&mut self) {
        self.early.clear();
    }

    fn judge(&mut self, launch: &Launch) -> Verdict {
        let Launch { attempt, token, .. } = launch;
        let is_authentic = self.key.is_some_and(|key| self.mac.verifies(&key, token, &launch.allocation()));
        if !is_authentic {
            Verdict::Refused(TokenFault::NotAuthentic)
        } else if token.generation < self.oldest {
            Verdict::Refused(TokenFault::Expired)
        } else if self.see(*attempt, token.generation) {
            Verdict::Good
        } else {
            Verdict::Repeated
        }
    }

    /// From now on the attempt and those before it have been seen; false if they had been already.
    fn see(&mut self, attempt: AttemptId, generation: Generation) -> bool {
        let last = (attempt.epoch, attempt.number);
        match self.seen.binary_search_by_key(&attempt.job, |seen| seen.job) {
            Ok(at) => {
                let seen = &mut self.seen[at];
                let is_new = last > seen.last;
                (seen.last, seen.generation) = (last.max(seen.last), generation.max(seen.generation));
                is_new
            }
            Err(at) => {
                self.seen.insert(at, Seen { job: attempt.job, last, generation });
                true
            }
        }
    }
}

impl NodeAgent {
    /// Tokens of earlier generations are void here.
    pub fn oldest_generation(&self) -> Generation {
        self.tokens.oldest
    }

    /// Before the welcome nothing can be checked, and nothing is taken: such launches are answered once it is there.
    pub(super) fn on_launch(&mut self, now: Instant, from: Address, launch: Box<Launch>, out: &mut Outbox) {
        if !self.is_welcomed() && launch.attempt.epoch >= self.newest_epoch {
            self.tokens.early.push((from, launch));
        } else if self.admits(now, from, &launch, out) {
            if self.honours(launch.grant) {
                self.take(now, launch, out);
            } else {
                self.refuse(now, &launch, out);
            }
        }
    }

    pub(super) fn answer_early_launches(&mut self, now: Instant, out: &mut Outbox) {
        for (from, launch) in std::mem::take(&mut self.tokens.early) {
            if self.admits(now, from, &launch, out) {
                self.refuse(now, &launch, out);
            }
        }
    }

    /// Whether a launch speaks for itself. If it does not, that is recorded, and answered where the answer does no harm.
    fn admits(&mut self, now: Instant, from: Address, launch: &Launch, out: &mut Outbox) -> bool {
        let Launch { attempt, task, grant, .. } = *launch;
        if self.attempts.contains_key(&attempt) {
            out.record(Record::Stale { from, attempt });
            return false;
        }
        if attempt.epoch < self.newest_epoch {
            // Its key is gone with the life of the server that launched it; nobody but that one would mind the answer. The
            // probes of that life are gone, too, and no other is touched.
            out.send(attempt.job, ToJobManager::NotTaken { attempt });
            return false;
        }
        match self.tokens.judge(launch) {
            Verdict::Good => return true,
            Verdict::Repeated => out.record(Record::Stale { from, attempt }),
            Verdict::Refused(why) => {
                out.record(Record::TokenRefused { task, attempt, node: self.node, why });
                if why == TokenFault::Expired {
                    self.refuse(now, launch, out);
                    // Of an older one the master has learnt from the registration.
                    if let Some(grant) = grant.filter(|grant| self.honours(Some(*grant))) {
                        out.send(TheMaster, ToMaster::Freed { grants: vec![grant] });
                    }
                }
            }
        }
        false
    }

    /// Nothing is held for the launch, neither what was kept for its probe.
    fn refuse(&mut self, now: Instant, launch: &Launch, out: &mut Outbox) {
        if let Some(probe) = launch.probe {
            self.take_probe(probe);
        }
        out.send(launch.attempt.job, ToJobManager::NotTaken { attempt: launch.attempt });
        self.start_what_fits(now, out);
    }
}
