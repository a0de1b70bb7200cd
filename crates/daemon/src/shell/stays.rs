//! Measures how long launches stay in this process after the decision, until the facts that must be durable before them
//! are durable.

use amalgam_core::hosting::{Envelope, Fact};
use amalgam_core::protocol::{Message, ToMaster, ToNode};
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::{AttemptId, Duration};
use std::collections::HashMap;

/// How long each launch stayed, by attempt. An attempt is removed when its start or end is reported.
#[derive(Default)]
pub struct Stays(HashMap<AttemptId, Duration>);

/// The attempt that a message from a job manager launches.
pub fn launched(envelope: &Envelope) -> Option<AttemptId> {
    match &envelope.message {
        Message::ToNode(ToNode::Launch(launch)) => Some(launch.attempt),
        Message::ToMaster(ToMaster::Launch(proposed)) => Some(proposed.launch.attempt),
        _ => None,
    }
}

impl Stays {
    /// Notes launches that left this process `stayed` after the decision.
    pub fn left(&mut self, launched: Vec<AttemptId>, stayed: Duration) {
        self.0.extend(launched.into_iter().map(|attempt| (attempt, stayed)));
    }

    /// Adds the noted times to the allocation times of attempts that start.
    pub fn add_to(&mut self, facts: &mut [Fact]) {
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
