//! Makes the facts of a turn durable and then lets out what waited for them.
//!
//! It runs on the loop's own thread: while the disk is busy inputs pile up, and the next turn takes them all, so one
//! write and one fdatasync serve as many facts as there are. Another thread would add two hand-overs to every launch.
//! What may leave before the fdatasync, and why, is ADR 25.

use super::executor_link::Executor;
use super::routes::Routes;
use super::{AfterCommit, EventRing, Metrics, encode};
use crate::api::Event;
use crate::store::{Entry, EntryRef, Store, StoreError};
use amalgam_core::hosting::{Effects, Fact, Letter};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{self as words, Instant};
use std::sync::Arc;
use std::time::Duration;

/// Changes that nobody outside this machine was told of are on disk after this time at the latest.
pub const GROUP: Duration = Duration::from_millis(5);
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
    pub executor: Executor,
    pub routes: Arc<Routes>,
    pub events: Arc<EventRing>,
    pub metrics: Arc<Metrics>,
    /// When the facts that are not on disk have to be, at the latest.
    due: Option<Instant>,
    /// There are changes among them.
    must_sync: bool,
    /// What is told about facts that are not on disk: after a crash their numbers would be given again.
    untold: Vec<(u64, Vec<(usize, Event)>)>,
}

impl Committer {
    pub fn new(store: Option<Store>, events: Arc<EventRing>, metrics: Arc<Metrics>) -> Committer {
        let (executor, routes) = (Executor::default(), Arc::default());
        Committer { store, executor, routes, events, metrics, due: None, must_sync: false, untold: Vec::new() }
    }

    /// Nothing of the turn leaves this machine before the changes of this and of earlier turns are durable, and what the
    /// public hears of records waits until they are written.
    ///
    /// The executor and its tasks end with this machine at the latest. What survives the end of this process is durable
    /// enough for them, so their orders leave after the write, and the fdatasync waits a moment for company (ADR 25).
    ///
    /// # Errors
    /// When the log cannot be written. Nothing after the last durable fact has left the machine then; the caller must
    /// end the process.
    pub fn commit(&mut self, turn: Turn) -> Result<(), StoreError> {
        let Turn { now, effects, events, after } = turn;
        let mut first = 0;
        if let Some(store) = self.store.as_mut().filter(|_| !effects.facts.is_empty()) {
            let entries: Vec<Entry> = effects.facts.iter().map(|fact| encode(now, fact)).collect();
            let entries: Vec<EntryRef<'_>> = entries.iter().map(Entry::as_ref).collect();
            first = store.append(&entries)?;
            if effects.durable {
                store.write()?;
            }
            let patience = if effects.durable { GROUP } else { LAZY };
            let latest = now + words::Duration::from_micros(patience.as_micros() as u64);
            self.due = Some(self.due.map_or(latest, |due| due.min(latest)));
            self.must_sync |= effects.durable;
        }
        if !events.is_empty() {
            self.untold.push((first, events));
        }
        let (orders, letters): (Vec<Letter>, Vec<Letter>) = effects.letters.into_iter().partition(Letter::is_order);
        self.executor.order(orders);
        if !(letters.is_empty() && after.is_empty()) {
            self.settle()?;
        }
        self.routes.send(letters);
        if self.due.is_none() {
            self.tell();
        }
        for after in after {
            after();
        }
        Ok(())
    }

    /// Every change so far is durable after this: whoever looks at the roles then sees nothing that could be lost.
    pub fn settle(&mut self) -> Result<(), StoreError> {
        if self.must_sync { self.flush() } else { Ok(()) }
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
        self.due.map(|due| Duration::from_micros(due.since(now).as_micros()))
    }

    fn write_out(&mut self) -> Result<(), StoreError> {
        (self.due, self.must_sync) = (None, false);
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
    use crate::executor::{ExecutorFrame, Link};
    use crate::frames::Decoder;
    use crate::store::{History, Options};
    use amalgam_core::protocol::{Address, ExecutorReport, Message, ToExecutor, ToNode};
    use amalgam_core::role::Record;
    use amalgam_core::vocabulary::{JobId, NodeId};
    use std::os::unix::net::UnixStream;
    use std::path::Path;

    /// A committer over a store in `dir`, and the far end of its executor's connection.
    fn committer(dir: &Path) -> (Committer, History, Link) {
        let (store, _) = Store::open(dir, Options::default()).unwrap();
        let history = store.history();
        let mut committer = Committer::new(Some(store), Arc::new(EventRing::starting_at(0)), Arc::default());
        let (ours, theirs) = UnixStream::pair().unwrap();
        committer.executor = Executor::over(Link::new(ours, Decoder::default()).unwrap());
        (committer, history, Link::new(theirs, Decoder::default()).unwrap())
    }

    fn durable_facts(history: &History) -> usize {
        let mut facts = 0;
        history
            .scan(None, 0, |_, _| {
                facts += 1;
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        facts
    }

    fn turn(at: Instant, to: Address, message: Message) -> Turn {
        let change = Change::JobHeld { job: JobId(1), held: true };
        let letters = vec![Letter { from: Address::Master, to, message }];
        let effects = Effects { facts: vec![Fact::Change(change)], durable: true, letters, ..Effects::default() };
        Turn { now: at, effects, events: vec![], after: vec![] }
    }

    #[test]
    fn an_order_for_the_executor_leaves_with_the_write_and_everything_else_with_the_fdatasync() {
        let dir = tempfile::tempdir().unwrap();
        let (mut committer, history, mut executor) = committer(dir.path());
        let segment = || std::fs::metadata(dir.path().join("segment-00000000000000000000")).unwrap().len();
        let empty = segment();
        let order = || Message::ToExecutor(ToExecutor::List { node: NodeId(1) });
        committer.commit(turn(Instant(0), Address::Executor(NodeId(1)), order())).unwrap();
        assert!(executor.receive().unwrap());
        let received = executor.next().unwrap();
        assert_eq!(received, Some(ExecutorFrame::Order(ToExecutor::List { node: NodeId(1) })));
        assert_eq!((durable_facts(&history), committer.due_in(Instant(0))), (0, Some(GROUP)));
        // What was written survives the process: a reader of the same files, like the next server, finds it.
        assert!(segment() > empty);

        let (peer, mut letters) = tokio::sync::mpsc::unbounded_channel();
        let _route = committer.routes.add_node(NodeId(2), peer).unwrap();
        let letter = Message::ToNode(ToNode::Executor(ExecutorReport::Executing { attempts: vec![] }));
        committer.commit(turn(Instant(1), Address::Node(NodeId(2)), letter)).unwrap();
        assert_eq!((durable_facts(&history), committer.due_in(Instant(1))), (2, None));
        assert_eq!(letters.try_recv().unwrap().len(), 1);

        committer.commit(turn(Instant(2), Address::Executor(NodeId(1)), order())).unwrap();
        committer.settle().unwrap();
        assert_eq!(durable_facts(&history), 3);
    }

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
            let expected = if at < lazy { 0 } else { 4 };
            assert_eq!((durable_facts(&history), events.read(0, 9).len()), (expected, expected));
        }
        assert_eq!(committer.due_in(Instant(lazy)), None);
    }
}
