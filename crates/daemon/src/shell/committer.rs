//! The thread that makes facts durable and then lets out what waited for them.
//!
//! It takes whatever has piled up while the disk was busy as one group: one write, one fdatasync.

use super::routes::Routes;
use super::{AfterCommit, Effects, EventRing, Fact, Handle, Input, Letter, Metrics, encode};
use crate::api::Event;
use crate::store::{Entry, EntryRef, Store, StoreError};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::Instant;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Records that nothing waits for are on disk after this time at the latest.
const LAZY: Duration = Duration::from_millis(250);
/// Batches that one group takes at most.
const GROUP: usize = 256;

/// What one turn of the loop hands over.
pub struct Batch {
    facts: Vec<Entry>,
    durable: bool,
    /// With the position in `facts` of what they tell.
    events: Vec<(usize, Event)>,
    letters: Vec<Letter>,
    after: Vec<AfterCommit>,
    /// The state that all facts before this batch lead to.
    snapshot: Option<Vec<Entry>>,
}

impl Batch {
    pub fn new(now: Instant, effects: Effects, events: Vec<(usize, Event)>, after: Vec<AfterCommit>) -> Batch {
        let facts = effects.facts.iter().map(|fact| encode(now, fact)).collect();
        Batch { facts, durable: effects.durable, events, letters: effects.letters, after, snapshot: None }
    }

    pub fn snapshot(now: Instant, changes: Vec<Change>) -> Batch {
        let entries = changes.into_iter().map(|change| encode(now, &Fact::Change(change))).collect();
        Batch {
            facts: Vec::new(),
            durable: false,
            events: Vec::new(),
            letters: Vec::new(),
            after: Vec::new(),
            snapshot: Some(entries),
        }
    }
}

pub struct Committer {
    /// An agent keeps nothing: its executor remembers.
    pub store: Option<Store>,
    pub routes: Arc<Routes>,
    pub events: Arc<EventRing>,
    pub metrics: Arc<Metrics>,
    pub handle: Handle,
}

impl Committer {
    /// Until the loop has gone.
    ///
    /// # Errors
    /// When the log cannot be written. Nothing after the last durable fact has left the process then; the caller must
    /// end it.
    pub fn run(mut self, batches: &Receiver<Batch>) -> Result<(), StoreError> {
        let mut unwritten = false;
        let mut snapshot_asked = false;
        loop {
            let first = match batches.recv_timeout(if unwritten { LAZY } else { Duration::MAX }) {
                Ok(batch) => batch,
                Err(RecvTimeoutError::Timeout) => {
                    self.commit()?;
                    unwritten = false;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return if unwritten { self.commit() } else { Ok(()) };
                }
            };
            let mut group = vec![first];
            while group.len() < GROUP
                && let Ok(batch) = batches.try_recv()
            {
                group.push(batch);
            }
            let durable = group.iter().any(|batch| batch.durable);
            let mut sequences = Vec::with_capacity(group.len());
            for batch in &mut group {
                if let Some(state) = batch.snapshot.take() {
                    self.write_snapshot(&state)?;
                    (unwritten, snapshot_asked) = (false, false);
                }
                sequences.push(self.append(&batch.facts)?);
                unwritten |= !batch.facts.is_empty();
            }
            if durable {
                self.commit()?;
                unwritten = false;
            }
            for (batch, sequence) in group.into_iter().zip(sequences) {
                self.release(batch, sequence);
            }
            if !snapshot_asked && self.store.as_ref().is_some_and(Store::needs_snapshot) {
                snapshot_asked = self.handle.send(Input::Snapshot).is_ok();
            }
        }
    }

    fn append(&mut self, facts: &[Entry]) -> Result<u64, StoreError> {
        let Some(store) = &mut self.store else { return Ok(0) };
        let entries: Vec<EntryRef<'_>> = facts.iter().map(Entry::as_ref).collect();
        store.append(&entries)
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        let Some(store) = &mut self.store else { return Ok(()) };
        let started = std::time::Instant::now();
        store.commit()?;
        self.metrics.committed(started.elapsed());
        Ok(())
    }

    fn write_snapshot(&mut self, state: &[Entry]) -> Result<(), StoreError> {
        let Some(store) = &mut self.store else { return Ok(()) };
        store.commit()?;
        store.write_snapshot(state.iter().map(Entry::as_ref))
    }

    fn release(&self, batch: Batch, first_sequence: u64) {
        self.routes.send(batch.letters);
        self.events.publish(first_sequence, batch.events);
        for after in batch.after {
            after();
        }
    }
}
