//! Which launches a node takes: those whose token speaks for them, here and now, and each once.
//!
//! What is not authentic gets no answer: an answer would let whoever made it up write off an attempt that is none of his.

use super::NodeAgent;
use crate::protocol::{Address, Claim, Launch, TheMaster, ToJobManager, ToMaster};
use crate::role::{Outbox, Record, TokenFault};
use crate::vocabulary::{AttemptId, Epoch, Generation, HostId, Instant, JobId, Key, Mac};

pub(super) struct Tokens {
    mac: Mac,
    /// The server, and those hosts of job managers that have introduced themselves, by their numbers.
    issuers: Vec<Issuer>,
    /// By job, in order: the last attempt whose launch was here, or was lost on the way as far as its job manager knows.
    /// Launches of a job come in the order of their numbers, so none up to it comes any more. Dropped when no token of the
    /// generation counts any more.
    seen: Vec<Seen>,
    /// Launches that came before the welcome which brings the key.
    early: Vec<(Address, Box<Launch>)>,
}

/// Whoever may launch here.
struct Issuer {
    host: HostId,
    /// The newest of its lives that was heard of: what comes of older ones is refused.
    newest: Epoch,
    /// As it said last.
    key: Option<Key>,
    /// Its earlier generations are void.
    oldest: Generation,
}

struct Seen {
    job: JobId,
    last: (Epoch, u32),
    /// Whose generations count for it.
    sealed_by: HostId,
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
        Tokens { mac, issuers: vec![Issuer::new(HostId::SERVER)], seen: Vec::new(), early: Vec::new() }
    }

    fn issuer(&self, host: HostId) -> Option<&Issuer> {
        self.issuers.binary_search_by_key(&host, |issuer| issuer.host).ok().map(|at| &self.issuers[at])
    }

    fn issuer_mut(&mut self, host: HostId) -> &mut Issuer {
        let at = self.issuers.binary_search_by_key(&host, |issuer| issuer.host).unwrap_or_else(|at| {
            self.issuers.insert(at, Issuer::new(host));
            at
        });
        &mut self.issuers[at]
    }

    /// Whether a newer life of whoever issued it was heard of.
    pub(super) fn is_outdated(&self, epoch: Epoch) -> bool {
        self.issuer(epoch.host()).is_some_and(|issuer| epoch < issuer.newest)
    }

    /// Something of this life came.
    pub(super) fn heard_of(&mut self, epoch: Epoch) {
        let issuer = self.issuer_mut(epoch.host());
        issuer.newest = issuer.newest.max(epoch);
    }

    /// An issuer introduces itself. A new key belongs to a new life, which counts generations anew. Its earlier lives are refused.
    pub(super) fn on_issuer(&mut self, key: Key, oldest: Generation, epoch: Epoch) {
        self.heard_of(epoch);
        let issuer = self.issuer_mut(epoch.host());
        if issuer.key.replace(key) != Some(key) {
            issuer.oldest = oldest;
        }
        let newest = issuer.newest;
        let is_older = |seen: &Seen| seen.last.0.host() == newest.host() && seen.last.0 < newest;
        self.seen.retain(|seen| !is_older(seen));
        self.expire(newest.host(), oldest);
    }

    /// What was lost with an earlier connection is written off now: should it come after all, nobody would own it.
    pub(super) fn on_claim(&mut self, claim: &Claim) {
        let Claim { job, epoch, next_attempt, generation, .. } = *claim;
        if let Some(number) = next_attempt.checked_sub(1) {
            self.see(AttemptId { job, epoch, number }, epoch.host(), generation);
        }
    }

    pub(super) fn expire(&mut self, host: HostId, before: Generation) {
        let issuer = self.issuer_mut(host);
        issuer.oldest = issuer.oldest.max(before);
        let oldest = issuer.oldest;
        self.seen.retain(|seen| seen.sealed_by != host || seen.generation >= oldest);
    }

    /// What came on an earlier connection was lost with it.
    pub(super) fn forget_early(&mut self) {
        self.early.clear();
    }

    /// `sealed_by` made its token.
    fn judge(&mut self, launch: &Launch, sealed_by: HostId) -> Verdict {
        let Launch { attempt, token, .. } = launch;
        let issuer = self.issuer(sealed_by);
        let key = issuer.and_then(|issuer| issuer.key);
        let is_authentic = key.is_some_and(|key| self.mac.verifies(&key, token, &launch.allocation()));
        if !is_authentic {
            Verdict::Refused(TokenFault::NotAuthentic)
        } else if issuer.is_some_and(|issuer| token.generation < issuer.oldest) {
            Verdict::Refused(TokenFault::Expired)
        } else if self.see(*attempt, sealed_by, token.generation) {
            Verdict::Good
        } else {
            Verdict::Repeated
        }
    }

    /// From now on the attempt and those before it have been seen; false if they had been already.
    fn see(&mut self, attempt: AttemptId, sealed_by: HostId, generation: Generation) -> bool {
        let last = (attempt.epoch, attempt.number);
        match self.seen.binary_search_by_key(&attempt.job, |seen| seen.job) {
            Ok(at) => {
                let seen = &mut self.seen[at];
                let is_new = last > seen.last;
                (seen.last, seen.generation) = (last.max(seen.last), generation.max(seen.generation));
                is_new
            }
            Err(at) => {
                self.seen.insert(at, Seen { job: attempt.job, last, sealed_by, generation });
                true
            }
        }
    }
}

impl Issuer {
    fn new(host: HostId) -> Issuer {
        Issuer { host, newest: Epoch::default(), key: None, oldest: Generation::default() }
    }
}

/// A master seals what it passes on, and every other launch its own process of job managers.
fn sealed_by(from: Address, launch: &Launch) -> HostId {
    if from == Address::Master { HostId::SERVER } else { launch.attempt.epoch.host() }
}

impl NodeAgent {
    /// Tokens of this host's earlier generations are void here.
    pub fn oldest_generation(&self, host: HostId) -> Generation {
        self.tokens.issuer(host).map_or(Generation::default(), |issuer| issuer.oldest)
    }

    /// Whether a newer life of whoever issued it was heard of: it is refused.
    pub fn is_outdated(&self, epoch: Epoch) -> bool {
        self.tokens.is_outdated(epoch)
    }

    /// Before the welcome nothing can be checked, and nothing is taken: such launches are answered once it is there. Before its
    /// greeting nothing new comes from any other host.
    pub(super) fn on_launch(&mut self, now: Instant, from: Address, launch: Box<Launch>, out: &mut Outbox) {
        let (attempt, host) = (launch.attempt, sealed_by(from, &launch));
        if !self.serves(host) && !self.is_outdated(attempt.epoch) {
            if host == HostId::SERVER {
                self.tokens.early.push((from, launch));
            } else {
                out.record(Record::Stale { from, attempt });
            }
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
        if self.is_outdated(attempt.epoch) {
            // Its key is gone with the life of the server that launched it; nobody but that one would mind the answer. The
            // probes of that life are gone, too, and no other is touched.
            out.send(attempt.job, ToJobManager::NotTaken { attempt });
            return false;
        }
        match self.tokens.judge(launch, sealed_by(from, launch)) {
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
