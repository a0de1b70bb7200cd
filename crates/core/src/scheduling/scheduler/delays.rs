//! Locality: an ask waits for some time for room near its input.

use super::Scheduler;
use crate::policy::{AskSlot, DemandChange};
use crate::scheduling::Ledger;
use crate::scheduling::locality::Reach;
use crate::vocabulary::Instant;

impl Scheduler {
    pub(super) fn start_delays(&mut self, now: Instant, ask: AskSlot, ledger: &mut Ledger) {
        if !self.queue.ask(ask).locality.is_empty() {
            self.set_reach(ask, Reach::Anywhere, ledger);
            self.queue.ask_mut(ask).delayed_since = now;
            self.set_reach(ask, Reach::Node, ledger);
        }
    }

    pub(super) fn set_reach(&mut self, ask: AskSlot, reach: Reach, ledger: &mut Ledger) {
        let delays = &self.settings.delays;
        let request = self.queue.ask_mut(ask);
        if request.reach == reach {
            return;
        }
        if let Some(end) = request.reach.ends(request.delayed_since, delays) {
            self.widenings.remove(&(end, ask));
            ledger.release_class(request.class);
        }
        request.class = match reach.nodes(&request.locality, ledger) {
            Some(nodes) => ledger.narrow_class(request.widest_class, &nodes),
            None => request.widest_class,
        };
        (request.reach, request.no_room_at) = (reach, None);
        self.hopeless.remove(&ask);
        self.widenings.extend(reach.ends(request.delayed_since, delays).map(|end| (end, ask)));
        self.inter_job.on_change(&DemandChange::Class { ask, class: request.class });
    }

    pub fn next_widening(&self) -> Option<Instant> {
        self.widenings.first().map(|(end, _)| *end)
    }

    /// Lets asks that have waited long enough use more nodes. Returns whether there were any.
    pub fn widen(&mut self, now: Instant, ledger: &mut Ledger) -> bool {
        let mut some = false;
        while let Some(&(end, ask)) = self.widenings.first().filter(|(end, _)| *end <= now) {
            debug_assert_eq!(
                self.queue.ask(ask).reach.ends(self.queue.ask(ask).delayed_since, &self.settings.delays),
                Some(end)
            );
            let wider = self.queue.ask(ask).reach.wider();
            self.set_reach(ask, wider, ledger);
            some = true;
        }
        some
    }
}
