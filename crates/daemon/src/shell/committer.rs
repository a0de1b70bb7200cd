//! Makes the facts of a turn durable and then lets out what waited for them.
//!
//! It runs on the loop's own thread: while the disk is busy inputs pile up, and the next turn takes them all, so one
//! write and one fdatasync serve as many facts as there are. Another thread would add two hand-overs to every launch.

use super::routes::Routes;
use super::{AfterCommit, Effects, EventRing, Fact, Letter, Metrics, encode};
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
    /// Whether facts were appended that are not on disk.
    pub unwritten: bool,
}

impl Committer {
    /// Nothing of the turn leaves before what must be durable is.
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
            self.unwritten = true;
            if effects.durable {
                self.flush()?;
            }
        }
        self.release(effects.letters, first, events, after);
        Ok(())
    }

    /// Everything appended so far is durable after this.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        self.unwritten = false;
        let Some(store) = &mut self.store else { return Ok(()) };
        let started = std::time::Instant::now();
        store.commit()?;
        self.metrics.committed(started.elapsed());
        Ok(())
    }

    pub fn wants_snapshot(&self) -> bool {
        self.store.as_ref().is_some_and(Store::needs_snapshot)
    }

    /// Writes the state that all facts so far lead to.
    pub fn write_snapshot(&mut self, now: Instant, state: Vec<Change>) -> Result<(), StoreError> {
        let Some(store) = &mut self.store else { return Ok(()) };
        let entries: Vec<Entry> = state.into_iter().map(|change| encode(now, &Fact::Change(change))).collect();
        store.commit()?;
        store.write_snapshot(entries.iter().map(Entry::as_ref))
    }

    fn release(&self, letters: Vec<Letter>, first: u64, events: Vec<(usize, Event)>, after: Vec<AfterCommit>) {
        self.routes.send(letters);
        self.events.publish(first, events);
        for after in after {
            after();
        }
    }
}
