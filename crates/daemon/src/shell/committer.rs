//! Makes the facts of a turn durable and then lets out what waited for them.
//!
//! It runs on the loop's own thread: while the disk is busy inputs pile up, and the next turn takes them all, so one
//! write and one fdatasync serve as many facts as there are. Another thread would add two hand-overs to every launch.

use super::routes::Routes;
use super::{AfterCommit, Effects, EventRing, Fact, Metrics, encode};
use crate::api::Event;
use crate::store::{Entry, EntryRef, Store, StoreError};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::Instant;
use std::sync::Arc;
use std::time::Duration;

/// Records that nothing waits for are on disk after this time at the latest.
pub const LAZY: Duration = Duration::from_millis(250);

/// What one turn of the loop leads to.
pub struct Turn {
    pub now: Instant,
    pub effects: Effects,
    /// With the position in `effects.facts` of what they tell.
    pub events: Vec<(usize, Event)>,
    pub after: Vec<AfterCommit>,
}

pub struct Committer {
    /// An agent keeps nothing: its executor remembers.
    pub store: Option<Store>,
    pub routes: Arc<Routes>,
    pub events: Arc<EventRing>,
    pub metrics: Arc<Metrics>,
    /// When the first fact was appended that is not on disk.
    unwritten_since: Option<Instant>,
    /// What is told about facts that are not on disk: after a crash their numbers would be given again.
    untold: Vec<(u64, Vec<(usize, Event)>)>,
}

impl Committer {
    pub fn new(store: Option<Store>, events: Arc<EventRing>, metrics: Arc<Metrics>) -> Committer {
        Committer { store, routes: Arc::default(), events, metrics, unwritten_since: None, untold: Vec::new() }
    }

    /// Nothing of the turn leaves before what must be durable is. Letters that no change stands behind leave at once,
    /// and what the public hears of records waits until they are written.
    ///
    /// # Errors
    /// When the log cannot be written. Nothing after the last durable fact has left the process then; the caller must
    /// end it.
    pub fn commit(&mut self, turn: Turn) -> Result<(), StoreError> {
        let Turn { now, effects, events, after } = turn;
        let mut first = 0;
        if let Some(store) = self.store.as_mut().filter(|_| !effects.facts.is_empty()) {
            let entries: Vec<Entry> = effects.facts.iter().map(|fact| encode(now, fact)).collect();
            let entries: Vec<EntryRef<'_>> = entries.iter().map(Entry::as_ref).collect();
            first = store.append(&entries)?;
            self.unwritten_since.get_or_insert(now);
            if effects.durable {
                self.write_out()?;
            }
        }
        self.routes.send(effects.letters);
        if !events.is_empty() {
            self.untold.push((first, events));
        }
        if self.unwritten_since.is_none() {
            self.tell();
        }
        for after in after {
            after();
        }
        Ok(())
    }

    /// Everything appended so far is durable after this.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        self.write_out()?;
        self.tell();
        Ok(())
    }

    /// Writes what nothing waits for, once it is old enough. Inputs that keep coming must not put that off.
    pub fn flush_if_due(&mut self, now: Instant) -> Result<(), StoreError> {
        if self.due_in(now) == Some(Duration::ZERO) { self.flush() } else { Ok(()) }
    }

    /// How long until there is something to flush.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        let age = |since| Duration::from_micros(now.since(since).as_micros());
        self.unwritten_since.map(|since| LAZY.saturating_sub(age(since)))
    }

    fn write_out(&mut self) -> Result<(), StoreError> {
        self.unwritten_since = None;
        let Some(store) = &mut self.store else { return Ok(()) };
        let started = std::time::Instant::now();
        store.commit()?;
        self.metrics.committed(started.elapsed());
        Ok(())
    }

    fn tell(&mut self) {
        for (first, events) in self.untold.drain(..) {
            self.events.publish(first, events);
        }
    }

    pub fn wants_snapshot(&self) -> bool {
        self.store.as_ref().is_some_and(Store::needs_snapshot)
    }

    /// Writes the state that all facts so far lead to.
    pub fn write_snapshot(&mut self, now: Instant, state: Vec<Change>) -> Result<(), StoreError> {
        self.flush()?;
        let Some(store) = &mut self.store else { return Ok(()) };
        let entries: Vec<Entry> = state.into_iter().map(|change| encode(now, &Fact::Change(change))).collect();
        store.write_snapshot(entries.iter().map(Entry::as_ref))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{EventKind, Timestamp};
    use crate::store::Options;
    use amalgam_core::role::Record;
    use amalgam_core::vocabulary::NodeId;

    #[test]
    fn records_are_told_when_they_are_written_and_written_when_they_are_old() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), Options::default()).unwrap();
        let (history, events) = (store.history(), Arc::new(EventRing::starting_at(0)));
        let mut committer = Committer::new(Some(store), Arc::clone(&events), Arc::default());
        let lazy = LAZY.as_micros() as u64;
        // Inputs never cease.
        for at in [0, lazy / 2, lazy - 1, lazy] {
            let facts = vec![Fact::Record(Record::NodeJoined { node: NodeId(1) })];
            let event = Event::new(Timestamp(0), EventKind::NodeUp);
            let effects = Effects { facts, ..Effects::default() };
            committer.commit(Turn { now: Instant(at), effects, events: vec![(0, event)], after: vec![] }).unwrap();
            committer.flush_if_due(Instant(at)).unwrap();
            let mut written = 0;
            history
                .scan(None, 0, |_, _| {
                    written += 1;
                    std::ops::ControlFlow::Continue(())
                })
                .unwrap();
            let expected = if at < lazy { 0 } else { 4 };
            assert_eq!((written, events.read(0, 9).len()), (expected, expected));
        }
        assert_eq!(committer.due_in(Instant(lazy)), None);
    }
}
