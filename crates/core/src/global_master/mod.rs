//! The global master's place: it will place tasks over several clusters on views that their masters send (Megha). Today
//! it keeps that view.

use crate::protocol::{Address, ToGlobalMaster};
use crate::role::{Change, Event, Outbox, Role};
use crate::scheduling::ClusterView;
use crate::vocabulary::{Instant, NodeViews};

#[derive(Default)]
pub struct GlobalMaster {
    view: ClusterView,
}

impl GlobalMaster {
    pub fn new() -> GlobalMaster {
        GlobalMaster { view: ClusterView::new() }
    }
}

impl Role for GlobalMaster {
    type Message = ToGlobalMaster;
    /// Nodes in view.
    type Description = usize;

    fn handle(&mut self, now: Instant, event: Event<ToGlobalMaster>, _: &mut Outbox) {
        if let Event::Message { from: Address::Master, body: ToGlobalMaster::State { nodes } } = event {
            for (node, report) in nodes {
                self.view.on_report(now, node, report.free, report);
            }
        }
    }

    fn next_wakeup(&self) -> Option<Instant> {
        None
    }

    fn recover(&mut self, _: &[Change]) {}

    fn durable(&self) -> Vec<Change> {
        Vec::new()
    }

    fn describe(&self, _: Instant) -> usize {
        self.view.len()
    }
}
