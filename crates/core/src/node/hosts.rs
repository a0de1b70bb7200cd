//! Job hosts: processes of job managers beside the server. They introduce themselves, launch without the master, and
//! own the attempts that they launched.

use super::{NodeAgent, State};
use crate::protocol::{Address, Greeting, ToJobManager};
use crate::role::Outbox;
use crate::vocabulary::{AttemptId, HostId, Instant, JobId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Job hosts that have been connected, ordered by number.
#[derive(Default)]
pub(super) struct JobHosts {
    links: Vec<HostLink>,
    /// The master passes on their messages: they are connected as long as the master is.
    are_passed_on: bool,
}

struct HostLink {
    host: HostId,
    state: LinkState,
}

enum LinkState {
    /// Until then it may reconnect and claim its attempts.
    Down {
        orphans_at: Option<Instant>,
    },
    Connected,
    /// It has sent the key for its launches.
    Greeted,
}

impl JobHosts {
    fn link(&mut self, host: HostId) -> &mut LinkState {
        let at = self.links.binary_search_by_key(&host, |link| link.host).unwrap_or_else(|at| {
            self.links.insert(at, HostLink { host, state: LinkState::Down { orphans_at: None } });
            at
        });
        &mut self.links[at].state
    }

    fn has_greeted(&self, host: HostId) -> bool {
        self.links.iter().any(|link| link.host == host && matches!(link.state, LinkState::Greeted))
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let due = |link: &HostLink| match link.state {
            LinkState::Down { orphans_at } => orphans_at,
            LinkState::Connected | LinkState::Greeted => None,
        };
        self.links.iter().filter_map(due).min()
    }

    /// Takes one job host that has not been connected for longer than its lease.
    fn take_due(&mut self, now: Instant) -> Option<HostId> {
        self.links.iter_mut().find_map(|HostLink { host, state }| match state {
            LinkState::Down { orphans_at } => orphans_at.take_if(|at| *at <= now).map(|_| *host),
            LinkState::Connected | LinkState::Greeted => None,
        })
    }
}

impl NodeAgent {
    /// Whether launches from this job host, or from the server, are accepted on the present connection.
    pub fn serves(&self, host: HostId) -> bool {
        if host == HostId::SERVER || self.hosts.are_passed_on {
            self.is_welcomed()
        } else {
            self.hosts.has_greeted(host)
        }
    }

    /// The host of the job's manager, if the job has attempts here.
    pub fn host_of(&self, job: JobId) -> Option<HostId> {
        self.attempts.of_job(job).next().map(|first| first.epoch.host())
    }

    pub(super) fn on_host_connected(&mut self, now: Instant, host: HostId, out: &mut Outbox) {
        *self.hosts.link(host) = LinkState::Connected;
        self.drop_probes(now, host, out);
    }

    pub(super) fn on_host_disconnected(&mut self, now: Instant, host: HostId, out: &mut Outbox) {
        *self.hosts.link(host) = LinkState::Down { orphans_at: Some(now + self.settings.orphan_lease) };
        self.drop_probes(now, host, out);
    }

    /// Starts the leases of the processes that launched attempts here and have not been connected in this run of the
    /// agent. Until the lease ends, they may claim their attempts.
    pub(super) fn start_leases(&mut self, now: Instant) {
        let ends = now + self.settings.orphan_lease;
        let issuers: BTreeSet<HostId> = self.attempts.ids().map(|attempt| attempt.epoch.host()).collect();
        for host in issuers {
            if host != HostId::SERVER {
                if let LinkState::Down { orphans_at } = self.hosts.link(host) {
                    orphans_at.get_or_insert(ends);
                }
            } else {
                self.master.start_lease(ends);
            }
        }
    }

    /// Sends unacknowledged ends to its job managers again.
    pub(super) fn on_greeting(&mut self, now: Instant, from: Address, greeting: Greeting, out: &mut Outbox) {
        let Greeting { epoch, key, oldest, kinds } = greeting;
        let host = epoch.host();
        if from != Address::JobHost(host) || host == HostId::SERVER || self.tokens.is_outdated(epoch) {
            return;
        }
        self.tokens.on_issuer(key, oldest, epoch);
        *self.hosts.link(host) = LinkState::Greeted;
        self.resend_ends(host, out);
        if self.room.lacks_kinds(&kinds) {
            self.on_kinds(kinds);
            self.start_what_fits(now, out);
        }
    }

    /// A master is connected again. If it passes on the messages of job hosts, these are connected with it.
    pub(super) fn on_passed_on(&mut self, are_passed_on: bool, out: &mut Outbox) {
        self.hosts.are_passed_on = are_passed_on;
        if are_passed_on {
            self.hosts.links.clear();
            self.issuers().into_iter().for_each(|host| self.resend_ends(host, out));
        }
    }

    /// The connection to the master is lost, and with it the job hosts whose messages it passed on.
    pub(super) fn on_passed_on_no_more(&mut self, now: Instant) {
        if self.hosts.are_passed_on {
            self.start_leases(now);
        }
    }

    /// Job hosts that have attempts here.
    fn issuers(&self) -> BTreeSet<HostId> {
        let hosts = self.attempts.ids().map(|attempt| attempt.epoch.host());
        hosts.filter(|host| *host != HostId::SERVER).collect()
    }

    pub(super) fn resend_ends(&self, host: HostId, out: &mut Outbox) {
        for (attempt, entry) in self.attempts.iter().filter(|(attempt, _)| attempt.epoch.host() == host) {
            if let State::Ended(ended) = &entry.state {
                out.send(attempt.job, ToJobManager::Finished { attempt, ended: Arc::clone(ended), instead: None });
            }
        }
    }

    /// Stops attempts that have not been claimed for longer than the lease.
    pub(super) fn end_abandoned(&mut self, now: Instant, out: &mut Outbox) {
        while let Some(host) = self.hosts.take_due(now) {
            self.stop_orphans_of(now, host, out);
        }
    }

    pub(super) fn stop_orphans_of(&mut self, now: Instant, host: HostId, out: &mut Outbox) {
        let all: Vec<AttemptId> = self.attempts.ids().filter(|id| id.epoch.host() == host).collect();
        self.stop_orphans(now, &all, out);
    }
}
