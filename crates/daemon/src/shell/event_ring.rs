//! The newest events, for clients that follow the event stream.

use crate::api::{Event, EventKind, Timestamp};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Number of events that are kept. A `gap` event stands for older ones.
const KEPT: usize = 100_000;
/// Maximum number of events of one entry of the log.
const PER_ENTRY: u64 = 4;

pub struct EventRing {
    ring: Mutex<Ring>,
    /// The newest sequence number.
    newest: watch::Sender<u64>,
    /// Changes when a job ends.
    ended: watch::Sender<u64>,
}

struct Ring {
    events: VecDeque<Event>,
    /// `events` contains all events from this sequence number on.
    complete_from: u64,
}

impl EventRing {
    /// A ring for a log whose next entry has this number.
    pub fn starting_at(next_entry: u64) -> EventRing {
        let complete_from = next_entry * PER_ENTRY;
        EventRing {
            ring: Mutex::new(Ring { events: VecDeque::new(), complete_from }),
            newest: watch::channel(complete_from.saturating_sub(1)).0,
            ended: watch::channel(0).0,
        }
    }

    /// Adds the events of entries from number `first` on. Each event has the position of its entry, from 0.
    pub fn publish(&self, first: u64, events: Vec<(usize, Event)>) {
        if events.is_empty() {
            return;
        }
        let mut ring = self.lock();
        let mut job_ended = false;
        let mut last = (usize::MAX, 0);
        for (position, mut event) in events {
            last = if last.0 == position { (position, last.1 + 1) } else { (position, 0) };
            event.sequence = (first + position as u64) * PER_ENTRY + last.1.min(PER_ENTRY - 1);
            job_ended |= event.kind == EventKind::JobEnded;
            ring.events.push_back(event);
        }
        while ring.events.len() > KEPT {
            let dropped = ring.events.pop_front();
            ring.complete_from = dropped.map_or(ring.complete_from, |event| event.sequence + 1);
        }
        let newest = ring.events.back().map_or(0, |event| event.sequence);
        drop(ring);
        self.newest.send_replace(newest);
        if job_ended {
            self.ended.send_modify(|count| *count += 1);
        }
    }

    pub fn newest(&self) -> u64 {
        *self.newest.borrow()
    }

    pub fn watch(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    pub fn watch_ends(&self) -> watch::Receiver<u64> {
        self.ended.subscribe()
    }

    /// Up to `limit` events from this sequence number on. They start with a `gap` if some of them are no longer kept.
    pub fn read(&self, from: u64, limit: usize) -> Vec<Event> {
        let ring = self.lock();
        let mut events = Vec::new();
        if from < ring.complete_from {
            events.push(gap(ring.complete_from));
        }
        let start = ring.events.partition_point(|event| event.sequence < from);
        events.extend(ring.events.range(start..).take(limit).cloned());
        events
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn gap(before: u64) -> Event {
    Event { sequence: before.saturating_sub(1), ..Event::new(Timestamp::now(), EventKind::Gap) }
}

impl Event {
    /// An event without a job, task or node.
    pub fn new(at: Timestamp, kind: EventKind) -> Event {
        Event {
            sequence: 0,
            at,
            kind,
            user: None,
            job: None,
            task: None,
            stage: None,
            index: None,
            attempt: None,
            node: None,
            node_id: None,
            state: None,
            exit_code: None,
            reason: None,
            stdout_bytes: None,
            stderr_bytes: None,
            program: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_are_unique_and_old_events_become_a_gap() {
        let ring = EventRing::starting_at(10);
        let event = || Event::new(Timestamp(0), EventKind::AttemptEnded);
        ring.publish(10, vec![(0, event()), (0, event()), (2, event())]);
        let numbers =
            |from| ring.read(from, 9).into_iter().map(|event| (event.kind, event.sequence)).collect::<Vec<_>>();
        let ended = EventKind::AttemptEnded;
        assert_eq!(numbers(40), [(ended, 40), (ended, 41), (ended, 48)]);
        assert_eq!(numbers(42), [(ended, 48)]);
        assert_eq!(numbers(7)[0], (EventKind::Gap, 39));
        assert_eq!(ring.newest(), 48);
    }
}
