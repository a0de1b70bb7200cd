//! Which launches a node accepts: those with a valid token for this node and time, each once.
//!
//! A launch that is not authentic gets no answer. With an answer, a forger could have an attempt written off that
//! belongs to another owner.

use super::NodeAgent;
use crate::protocol::{Address, Claim, Launch, TheMaster, ToJobManager, ToMaster};
use crate::role::{Outbox, Record, TokenFault};
use crate::vocabulary::{AttemptId, Epoch, Generation, GrantId, HostId, Instant, JobId, Key, Mac};
use std::collections::BTreeSet;

pub(super) struct Tokens {
    mac: Mac,
    /// The server, and the job hosts that have introduced themselves, ordered by number.
    issuers: Vec<Issuer>,
    /// Ordered by job: the last attempt whose launch arrived here, or was lost on the way as far as its job manager
    /// knows. Launches of a job arrive in the order of their numbers, so none up to this one arrives any more. Dropped
    /// once all tokens of the generation are invalid.
    seen: Vec<Seen>,
    /// Launches that arrived before the welcome, which contains the key.
    early: Vec<(Address, Box<Launch>)>,
    /// Grants that were preempted before their launches arrived.
    preempted: BTreeSet<GrantId>,
}

/// A process that may launch here.
struct Issuer {
    host: HostId,
    /// Its newest known incarnation. Messages from older ones are refused.
    newest: Epoch,
    /// The last key that it reported.
    key: Option<Key>,
    /// Tokens of earlier generations are invalid.
    oldest: Generation,
}

struct Seen {
    job: JobId,
    last: (Epoch, u32),
    /// The issuer whose generations apply to it.
    sealed_by: HostId,
    generation: Generation,
}

enum Verdict {
    Good,
    /// An authentic launch arrived before, and its outcome is no longer known here.
    Repeated,
    Refused(TokenFault),
}

impl Tokens {
    pub(super) fn new(mac: Mac) -> Tokens {
        Tokens {
            mac,
            issuers: vec![Issuer::new(HostId::SERVER)],
            seen: Vec::new(),
            early: Vec::new(),
            preempted: BTreeSet::new(),
        }
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

    /// Whether a newer incarnation of its issuer is known.
    pub(super) fn is_outdated(&self, epoch: Epoch) -> bool {
        self.issuer(epoch.host()).is_some_and(|issuer| epoch < issuer.newest)
    }

    /// A message from this incarnation arrived.
    pub(super) fn received_from(&mut self, epoch: Epoch) {
        let issuer = self.issuer_mut(epoch.host());
        issuer.newest = issuer.newest.max(epoch);
    }

    /// An issuer introduces itself. A new key belongs to a new incarnation, which has its own numbers of generations.
    /// Earlier incarnations are refused.
    pub(super) fn on_issuer(&mut self, key: Key, oldest: Generation, epoch: Epoch) {
        self.received_from(epoch);
        let issuer = self.issuer_mut(epoch.host());
        if issuer.key.replace(key) != Some(key) {
            issuer.oldest = oldest;
        }
        let newest = issuer.newest;
        let is_older = |seen: &Seen| seen.last.0.host() == newest.host() && seen.last.0 < newest;
        self.seen.retain(|seen| !is_older(seen));
        self.expire(newest.host(), oldest);
    }

    /// Launches that were lost with an earlier connection are written off now: if one arrived later, it would have no
    /// owner.
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

    /// Launches of an earlier connection were lost with it.
    pub(super) fn forget_early(&mut self) {
        self.early.clear();
    }

    /// `sealed_by` made the token.
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

    /// Marks the attempt and those before it as seen. Returns false if they were seen already.
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

/// Launches that the master passes on are sealed by the server, all others by the process of their job manager.
fn sealed_by(from: Address, launch: &Launch) -> HostId {
    if from == Address::Master { HostId::SERVER } else { launch.attempt.epoch.host() }
}

impl NodeAgent {
    /// The oldest generation of this host whose tokens are valid here.
    pub fn oldest_generation(&self, host: HostId) -> Generation {
        self.tokens.issuer(host).map_or(Generation::default(), |issuer| issuer.oldest)
    }

    /// Whether a newer incarnation of its issuer is known, so that it is refused.
    pub fn is_outdated(&self, epoch: Epoch) -> bool {
        self.tokens.is_outdated(epoch)
    }

    /// Before the welcome no launch can be checked, so none is accepted; such launches are answered after the welcome.
    /// A job host sends no new launches before its greeting.
    pub(super) fn on_launch(&mut self, now: Instant, from: Address, launch: Box<Launch>, out: &mut Outbox) {
        let (attempt, host) = (launch.attempt, sealed_by(from, &launch));
        if !self.serves(host) && !self.is_outdated(attempt.epoch) {
            if host == HostId::SERVER {
                self.tokens.early.push((from, launch));
            } else {
                out.record(Record::Stale { from, attempt });
            }
        } else if self.admits(now, from, &launch, out) {
            if let Some(grant) = launch.grant.filter(|grant| self.tokens.preempted.remove(grant)) {
                self.refuse(now, &launch, out);
                out.send(TheMaster, ToMaster::Freed { grants: vec![grant], unfinished: true });
            } else if self.master.honours(launch.grant) {
                self.accept(now, launch, out);
            } else {
                self.refuse(now, &launch, out);
            }
        }
    }

    /// These grants are preempted: launches under them that have not arrived are refused.
    pub(super) fn refuse_later(&mut self, grants: impl Iterator<Item = GrantId>) {
        /// The launches of older ones are lost, or their grants were returned.
        const MOST: usize = 1_024;
        self.tokens.preempted.extend(grants);
        while self.tokens.preempted.len() > MOST {
            self.tokens.preempted.pop_first();
        }
    }

    pub(super) fn answer_early_launches(&mut self, now: Instant, out: &mut Outbox) {
        for (from, launch) in std::mem::take(&mut self.tokens.early) {
            if self.admits(now, from, &launch, out) {
                self.refuse(now, &launch, out);
            }
        }
    }

    /// Whether the launch is accepted. If not, this is recorded, and answered if the answer does no harm.
    fn admits(&mut self, now: Instant, from: Address, launch: &Launch, out: &mut Outbox) -> bool {
        let Launch { attempt, task, grant, .. } = *launch;
        if self.attempts.contains(&attempt) {
            out.record(Record::Stale { from, attempt });
            return false;
        }
        if self.is_outdated(attempt.epoch) {
            // Its key is gone with the incarnation of the server that launched it, and only that one would act on the
            // answer. The probes of that incarnation are gone, too, and no others are affected.
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
                    // The master knows about older grants from the registration.
                    if let Some(grant) = grant.filter(|grant| self.master.honours(Some(*grant))) {
                        out.send(TheMaster, ToMaster::Freed { grants: vec![grant], unfinished: true });
                    }
                }
            }
        }
        false
    }

    /// Holds nothing for the launch, and frees the room that was kept for its probe.
    fn refuse(&mut self, now: Instant, launch: &Launch, out: &mut Outbox) {
        if let Some(probe) = launch.probe {
            self.take_probe(probe);
        }
        out.send(launch.attempt.job, ToJobManager::NotTaken { attempt: launch.attempt });
        self.start_what_fits(now, out);
    }
}
