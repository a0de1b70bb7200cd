//! How long launches stay in this process after they were decided on: until what must be durable before them is.

use amalgam_core::hosting::{Fact, Letter};
use amalgam_core::protocol::{Message, ToMaster, ToNode};
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{AttemptId, Duration};
use std::collections::HashMap;

/// Of attempts that have left and neither started nor ended, as far as is known here.
#[derive(Default)]
pub struct Stays(HashMap<AttemptId, Duration>);

/// The attempt that a letter launches, from the process of its manager.
pub fn launched(letter: &Letter) -> Option<AttemptId> {
    match &letter.message {
        Message::ToNode(ToNode::Launch(launch)) => Some(launch.attempt),
        Message::ToMaster(ToMaster::Launch(proposed)) => Some(proposed.launch.attempt),
        _ => None,
    }
}

impl Stays {
    /// These have left so long after they were decided on.
    pub fn left(&mut self, launched: Vec<AttemptId>, stayed: Duration) {
        self.0.extend(launched.into_iter().map(|attempt| (attempt, stayed)));
    }

    /// What is said of starts tells of it.
    pub fn tell(&mut self, facts: &mut [Fact]) {
        for fact in facts {
            match fact {
                Fact::Record(Record::Started { attempt, allocation, .. }) => {
                    let stayed = self.0.remove(attempt);
                    if let (Some(allocation), Some(stayed)) = (allocation, stayed) {
                        *allocation = allocation.leaving_after(stayed);
                    }
                }
                Fact::Change(Change::Finished { attempt, .. } | Change::Lost { attempt, .. }) => {
                    self.0.remove(attempt);
                }
                _ => {}
            }
        }
    }
}
