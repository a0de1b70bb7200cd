//! The probes that a job's own scheduler has sent.

use crate::vocabulary::NodeId;
use std::collections::VecDeque;

#[derive(Clone, Copy)]
pub(super) struct SentProbe {
    pub(super) ask: u32,
    pub(super) node: NodeId,
}

/// Outstanding probes by their numbers, which increase by one: a list from the oldest outstanding one to the newest.
#[derive(Default)]
pub(super) struct SentProbes {
    first: u32,
    list: VecDeque<Option<SentProbe>>,
}

impl SentProbes {
    pub(super) fn next_number(&self) -> u32 {
        self.first + self.list.len() as u32
    }

    pub(super) fn push(&mut self, probe: SentProbe) {
        self.list.push_back(Some(probe));
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<SentProbe> {
        let at = number.checked_sub(self.first)? as usize;
        let probe = self.list.get_mut(at)?.take();
        while self.list.pop_front_if(|oldest| oldest.is_none()).is_some() {
            self.first += 1;
        }
        probe
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &SentProbe)> {
        (self.first..).zip(&self.list).filter_map(|(number, probe)| Some((number, probe.as_ref()?)))
    }
}
