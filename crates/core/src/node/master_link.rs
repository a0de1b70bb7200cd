//! The connection to the master: the agent registers, is welcomed, and reports at intervals from then on.

use crate::vocabulary::{Duration, GrantId, Instant, PredictedStart, Resources};

/// Maximum number of starts, and of late attempts, in one report to the master.
pub(super) const MOST_STARTS: usize = 64;

#[derive(Default)]
pub(super) struct MasterLink {
    state: LinkState,
    /// The number of the last registration.
    registration: u64,
    /// Number of attempts that have succeeded.
    succeeded: u32,
    /// Starts of attempts that had a prediction. The next report sends them to the master.
    starts: Vec<PredictedStart>,
    /// What the last report said that does not change with time alone.
    said: Option<Box<Said>>,
}

/// The part of a report that is the same until something happens at the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Said {
    pub free: Resources,
    pub running: u32,
    pub queued: u32,
    pub expected_wait: Duration,
    pub succeeded: u32,
}

enum LinkState {
    Down {
        orphans_at: Option<Instant>,
    },
    /// The agent registers as soon as it knows what runs here.
    Connected {
        registered: bool,
    },
    Welcomed {
        first_grant: GrantId,
        heartbeat: Duration,
        next_report: Instant,
    },
}

impl Default for LinkState {
    fn default() -> LinkState {
        LinkState::Down { orphans_at: None }
    }
}

/// What the agent does when the time of the link has come.
pub(super) enum Overdue {
    Report,
    /// The master has not been connected for longer than its lease.
    StopOrphans,
}

impl MasterLink {
    /// The master is connected, or asks for another registration.
    pub(super) fn on_connected(&mut self) {
        self.state = LinkState::Connected { registered: false };
    }

    /// The master may reconnect and claim its attempts until `orphans_at`.
    pub(super) fn on_disconnected(&mut self, orphans_at: Instant) {
        self.state = LinkState::Down { orphans_at: Some(orphans_at) };
    }

    /// The master is not connected. Its lease ends at `ends`, unless one is running.
    pub(super) fn start_lease(&mut self, ends: Instant) {
        if let LinkState::Down { orphans_at } = &mut self.state {
            orphans_at.get_or_insert(ends);
        }
    }

    /// The number of a new registration, if the master is connected and has not got one.
    pub(super) fn register(&mut self, now: Instant) -> Option<u64> {
        let LinkState::Connected { registered } = &mut self.state else { return None };
        if std::mem::replace(registered, true) {
            return None;
        }
        // The clock keeps the numbers increasing if an earlier run's number is lost.
        self.registration = now.0.max(self.registration + 1);
        Some(self.registration)
    }

    /// Whether the master owes a welcome to the registration of this number.
    pub(super) fn awaits_welcome(&self, registration: u64) -> bool {
        registration == self.registration && matches!(self.state, LinkState::Connected { registered: true })
    }

    /// Grants from `first_grant` on are valid. The first of the regular reports follows after one heartbeat.
    pub(super) fn on_welcome(&mut self, now: Instant, first_grant: GrantId, heartbeat: Duration) {
        self.state = LinkState::Welcomed { first_grant, heartbeat, next_report: now + heartbeat };
    }

    /// Whether its master has accepted the registration on the present connection.
    pub(super) fn is_welcomed(&self) -> bool {
        matches!(self.state, LinkState::Welcomed { .. })
    }

    /// Whether a launch under this grant is valid on the present connection.
    pub(super) fn honours(&self, grant: Option<GrantId>) -> bool {
        let Some(grant) = grant else { return true };
        let LinkState::Welcomed { first_grant: first, .. } = &self.state else { return false };
        (grant.epoch, grant.number) >= (first.epoch, first.number)
    }

    pub(super) fn on_ended(&mut self, is_success: bool) {
        self.succeeded = self.succeeded.wrapping_add(u32::from(is_success));
    }

    /// An attempt started whose start had been predicted. If there are many, only the first of them are reported.
    pub(super) fn on_predicted_start(&mut self, start: PredictedStart) {
        if self.starts.len() < MOST_STARTS {
            self.starts.push(start);
        }
    }

    /// The predicted starts since the last report, for the next one.
    pub(super) fn take_starts(&mut self) -> Vec<PredictedStart> {
        std::mem::take(&mut self.starts)
    }

    /// The number of attempts that have succeeded so far.
    pub(super) fn succeeded(&self) -> u32 {
        self.succeeded
    }

    pub(super) fn on_said(&mut self, said: Said) {
        match &mut self.said {
            Some(before) => **before = said,
            None => self.said = Some(Box::new(said)),
        }
    }

    /// When the next report is due and the interval after it, if the last one said this and no start is to be reported.
    pub(super) fn next_same_report(&self, said: &Said) -> Option<(Instant, Duration)> {
        let LinkState::Welcomed { heartbeat, next_report, .. } = &self.state else { return None };
        let is_same = self.starts.is_empty() && self.said.as_deref() == Some(said) && *heartbeat > Duration::ZERO;
        is_same.then_some((*next_report, *heartbeat))
    }

    /// Leaves out the reports that were due by then. Returns their number, and when the last one was due.
    pub(super) fn skip_reports(&mut self, until: Instant) -> Option<(u64, Instant)> {
        match &mut self.state {
            LinkState::Welcomed { heartbeat, next_report, .. }
                if *next_report <= until && *heartbeat > Duration::ZERO =>
            {
                let further = until.since(*next_report).0 / heartbeat.0;
                let last = *next_report + Duration(heartbeat.0 * further);
                *next_report = last + *heartbeat;
                Some((further + 1, last))
            }
            _ => None,
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        match &self.state {
            LinkState::Down { orphans_at } => *orphans_at,
            LinkState::Connected { .. } => None,
            LinkState::Welcomed { next_report, .. } => Some(*next_report),
        }
    }

    /// What has to be done by now, once. The next report follows after one heartbeat.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Overdue> {
        match &mut self.state {
            LinkState::Welcomed { heartbeat, next_report, .. } if *next_report <= now => {
                *next_report = now + *heartbeat;
                Some(Overdue::Report)
            }
            LinkState::Down { orphans_at } => orphans_at.take_if(|at| *at <= now).map(|_| Overdue::StopOrphans),
            _ => None,
        }
    }
}
