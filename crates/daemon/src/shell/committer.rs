//! Makes the facts of a turn durable and then lets out what waited for them.
//!
//! It runs on the loop's own thread: while the disk is busy inputs pile up, and the next turn takes them all, so one
//! write and one fdatasync serve as many facts as there are. Another thread would add two hand-overs to every launch.
//! What may leave before the fdatasync, and why, is ADR 25.

use super::executor_link::Executor;
use super::routes::Routes;
use super::{AfterCommit, EventRing, Metrics, encode, encode_followed};
use crate::api::Event;
use crate::replica::Replica;
use crate::store::{Entry, EntryRef, Store, StoreError};
use amalgam_core::hosting::{Egress, Fact, Followed, Letter};
use amalgam_core::protocol::{Message, ToExecutor};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{self as words, HostId, Instant};
use std::sync::Arc;
use std::time::Duration;

/// Changes that nobody outside this machine was told of are on disk after this time at the latest.
pub const GROUP: Duration = Duration::from_millis(5);
/// Records that nothing waits for are on disk after this time at the latest.
pub const LAZY: Duration = Duration::from_millis(250);

/// What one turn of the loop leads to.
pub struct Turn {
    pub now: Instant,
    pub facts: Vec<Fact>,
    /// Of the logs of other processes, which come after these.
    pub followed: Vec<(HostId, Followed)>,
    /// Whether `facts` holds a change.
    pub durable: bool,
    pub letters: Vec<(Egress, Letter)>,
    /// With the position of what they tell, in `facts` and then `followed`.
    pub events: Vec<(usize, Event)>,
    pub after: Vec<AfterCommit>,
}

pub struct Committer {
    /// An agent keeps nothing: its executor remembers.
    pub store: Option<Store>,
    /// Has the changes as well, where a standby may need them. What `store` says of them is only for people then.
    pub replica: Option<Replica>,
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
    /// What lets the executor forget ends that are not on disk here.
    acknowledgements: Vec<Letter>,
    /// The server is told what the log holds, once that is on disk.
    tells_log: bool,
    untold_entries: Vec<Entry>,
}

impl Committer {
    pub fn new(store: Option<Store>, events: Arc<EventRing>, metrics: Arc<Metrics>) -> Committer {
        let (executor, routes) = (Executor::default(), Arc::default());
        Committer {
            store,
            replica: None,
            executor,
            routes,
            events,
            metrics,
            due: None,
            must_sync: false,
            untold: Vec::new(),
            acknowledgements: Vec::new(),
            tells_log: false,
            untold_entries: Vec::new(),
        }
    }

    /// Whoever has no master tells the server what it writes down.
    #[must_use]
    pub fn telling_log(mut self) -> Committer {
        self.tells_log = true;
        self
    }

    /// Nothing of the turn leaves this machine before the changes of this and of earlier turns are durable, and what the
    /// public is told waits for its facts.
    ///
    /// The executor and its tasks end with this machine at the latest. What survives the end of this process is durable
    /// enough for them, so orders to launch and to signal leave after the write, and the fdatasync waits a moment for
    /// company, unless the turn ends a job, which somebody may be waiting for. An acknowledgement waits for the
    /// fdatasync: a disk that fails can take along every copy of the end but the executor's (ADR 25).
    ///
    /// # Errors
    /// When the log cannot be written. Nothing after the last durable fact has left the machine then; the caller must
    /// end the process.
    pub fn commit(&mut self, turn: Turn) -> Result<(), StoreError> {
        let first = self.append(&turn)?;
        let Turn { facts, letters, events, after, .. } = turn;
        if !events.is_empty() {
            self.untold.push((first, events));
        }
        let (orders, letters): (Vec<_>, Vec<_>) =
            letters.into_iter().partition(|(egress, _)| *egress == Egress::Executor);
        let orders = orders.into_iter().map(|(_, letter)| letter);
        let (acknowledgements, orders): (Vec<Letter>, Vec<Letter>) = orders.partition(is_acknowledgement);
        self.executor.order(orders);
        self.acknowledgements.extend(acknowledgements);
        if !(letters.is_empty() && after.is_empty()) || facts.iter().any(ends_a_job) {
            self.settle()?;
        }
        self.routes.send(letters);
        self.let_go();
        for after in after {
            after();
        }
        Ok(())
    }

    /// Takes the facts of a turn up, and writes them if there are changes among them. Returns the number of the first.
    fn append(&mut self, turn: &Turn) -> Result<u64, StoreError> {
        let Turn { now, facts, followed, durable, .. } = turn;
        let is_empty = facts.is_empty() && followed.is_empty();
        let Some(store) = self.store.as_mut().filter(|_| !is_empty) else { return Ok(0) };
        let mut entries: Vec<Entry> = facts.iter().map(|fact| encode(*now, fact)).collect();
        entries.extend(followed.iter().map(|(host, followed)| encode_followed(*host, followed)));
        let borrowed: Vec<EntryRef<'_>> = entries.iter().map(Entry::as_ref).collect();
        let first = store.append(&borrowed)?;
        if let Some(replica) = &mut self.replica {
            let changes = entries.iter().zip(facts).filter(|(_, fact)| fact.is_change());
            replica.append(changes.map(|(entry, _)| entry.clone()));
        }
        if *durable {
            store.write()?;
        }
        if self.tells_log {
            self.untold_entries.extend(entries);
        }
        let patience = if *durable { GROUP } else { LAZY };
        let latest = *now + words::Duration::from_micros(patience.as_micros() as u64);
        self.due = Some(self.due.map_or(latest, |due| due.min(latest)));
        self.must_sync |= durable;
        Ok(first)
    }

    /// Every change so far is durable after this: whoever looks at the roles then sees nothing that could be lost.
    pub fn settle(&mut self) -> Result<(), StoreError> {
        if self.must_sync { self.flush() } else { Ok(()) }
    }

    /// Everything appended so far is durable after this.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        self.write_out()?;
        self.let_go();
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
        if let Some(store) = &mut self.store {
            let started = std::time::Instant::now();
            store.commit()?;
            self.replica.as_mut().map_or(Ok(()), Replica::commit)?;
            self.metrics.committed(started.elapsed());
            if !self.untold_entries.is_empty() {
                let first = store.next_sequence() - self.untold_entries.len() as u64;
                self.routes.tell_log(first, std::mem::take(&mut self.untold_entries));
            }
        }
        (self.due, self.must_sync) = (None, false);
        Ok(())
    }

    /// Lets out what waits for the disk, where there is nothing left to wait for.
    fn let_go(&mut self) {
        if !self.must_sync {
            self.executor.order(std::mem::take(&mut self.acknowledgements));
        }
        if self.due.is_none() {
            for (first, events) in self.untold.drain(..) {
                self.events.publish(first, events);
            }
        }
    }

    pub fn wants_snapshot(&self) -> bool {
        let of_store = self.store.as_ref().is_some_and(Store::needs_snapshot);
        of_store || self.replica.as_ref().is_some_and(Replica::needs_snapshot)
    }

    /// Writes the state that all facts so far lead to.
    pub fn write_snapshot(&mut self, now: Instant, state: Vec<Change>) -> Result<(), StoreError> {
        self.flush()?;
        let Some(store) = &mut self.store else { return Ok(()) };
        let entries: Vec<Entry> = state.into_iter().map(|change| encode(now, &Fact::Change(change))).collect();
        if let Some(replica) = &mut self.replica {
            replica.write_snapshot(&entries)?;
        }
        store.write_snapshot(entries.iter().map(Entry::as_ref))
    }
}

fn ends_a_job(fact: &Fact) -> bool {
    matches!(fact, Fact::Change(Change::JobEnded { .. }))
}

fn is_acknowledgement(letter: &Letter) -> bool {
    matches!(letter.message, Message::ToExecutor(ToExecutor::Acknowledge { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{EventKind, Timestamp};
    use crate::executor::{ExecutorFrame, Link};
    use crate::frames::Decoder;
    use crate::shell::{Parcel, PeerId, PeerRoute};
    use crate::store::{History, Options};
    use amalgam_core::protocol::{Address, ExecutorReport, JobOutcome, ToNode};
    use amalgam_core::role::Record;
    use amalgam_core::vocabulary::{AttemptId, Epoch, JobId, NodeId};
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::sync::mpsc;
    use tokio::sync::mpsc::UnboundedReceiver;

    const ATTEMPT: AttemptId = AttemptId { job: JobId(1), epoch: Epoch(1), number: 1 };
    const LIST: ToExecutor = ToExecutor::List { node: NodeId(1) };
    const ACKNOWLEDGE: ToExecutor = ToExecutor::Acknowledge { attempt: ATTEMPT };

    /// A committer over a store in `dir`, and the far end of its executor's connection.
    fn committer(dir: &Path, options: Options) -> (Committer, History, Link) {
        let (store, _) = Store::open(dir, options).unwrap();
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

    /// The next order that has arrived at the executor.
    fn heard(executor: &mut Link) -> Option<ToExecutor> {
        assert!(executor.receive().unwrap());
        executor.next().unwrap().map(|frame| match frame {
            ExecutorFrame::Order(order) => order,
            other => panic!("{other:?} is no order"),
        })
    }

    fn turn(at: Instant, letters: Vec<(Egress, Message)>) -> Turn {
        let facts = vec![Fact::Change(Change::JobHeld { job: JobId(1), held: true })];
        let to = |egress| match egress {
            Egress::Node(node) => Address::Node(node),
            _ => Address::Executor(NodeId(1)),
        };
        let letter = |(egress, message)| (egress, Letter { from: Address::Master, to: to(egress), message });
        let letters = letters.into_iter().map(letter).collect();
        Turn { now: at, facts, followed: vec![], durable: true, letters, events: vec![], after: vec![] }
    }

    /// The one fact of such a turn, and no letters.
    fn quiet(at: Instant, fact: Fact) -> Turn {
        let durable = fact.is_change();
        Turn { facts: vec![fact], durable, ..turn(at, vec![]) }
    }

    fn order(order: ToExecutor) -> (Egress, Message) {
        (Egress::Executor, Message::ToExecutor(order))
    }

    /// A node over the network: its connection, and what arrives there.
    fn node(committer: &Committer) -> (PeerRoute, UnboundedReceiver<Parcel>) {
        let (peer, letters) = tokio::sync::mpsc::unbounded_channel();
        (committer.routes.add(PeerId::Node(NodeId(2)), peer).unwrap(), letters)
    }

    fn letter() -> (Egress, Message) {
        let report = ExecutorReport::Executing { attempts: vec![] };
        (Egress::Node(NodeId(2)), Message::ToNode(ToNode::Executor(report)))
    }

    #[test]
    fn an_order_for_the_executor_leaves_with_the_write_and_everything_else_with_the_fdatasync() {
        let dir = tempfile::tempdir().unwrap();
        let (mut committer, history, mut executor) = committer(dir.path(), Options::default());
        committer.commit(turn(Instant(0), vec![order(ACKNOWLEDGE), order(LIST)])).unwrap();
        assert_eq!((heard(&mut executor), heard(&mut executor)), (Some(LIST), None));
        assert_eq!((durable_facts(&history), committer.due_in(Instant(0))), (0, Some(GROUP)));

        let (_route, mut letters) = node(&committer);
        committer.commit(turn(Instant(1), vec![letter()])).unwrap();
        assert_eq!((durable_facts(&history), committer.due_in(Instant(1))), (2, None));
        assert!(matches!(letters.try_recv(), Ok(Parcel::Mail(mail)) if mail.len() == 1));
        assert_eq!(heard(&mut executor), Some(ACKNOWLEDGE));

        committer.commit(turn(Instant(2), vec![order(ACKNOWLEDGE)])).unwrap();
        assert_eq!(heard(&mut executor), None);
        committer.settle().unwrap();
        assert_eq!((durable_facts(&history), heard(&mut executor)), (3, Some(ACKNOWLEDGE)));
    }

    #[test]
    fn an_agent_without_a_log_waits_for_nothing() {
        let (mut committer, _, mut executor) = committer(tempfile::tempdir().unwrap().path(), Options::default());
        committer.store = None;
        committer.commit(turn(Instant(0), vec![order(ACKNOWLEDGE)])).unwrap();
        assert_eq!(heard(&mut executor), Some(ACKNOWLEDGE));
    }

    #[test]
    fn the_end_of_a_job_is_told_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (mut committer, history, _executor) = committer(dir.path(), Options::default());
        let event = Event::new(Timestamp(0), EventKind::JobEnded);
        let ended = Change::JobEnded { job: JobId(1), outcome: JobOutcome::Succeeded, at: Instant(0) };
        let ends = Turn { events: vec![(0, event)], ..quiet(Instant(0), Fact::Change(ended)) };
        committer.commit(ends).unwrap();
        assert_eq!((durable_facts(&history), committer.events.read(0, 9).len()), (1, 1));
    }

    #[test]
    fn no_order_leaves_after_a_write_that_failed() {
        let dir = tempfile::tempdir().unwrap();
        let full = Options { full_at_bytes: Some(30), ..Options::default() };
        let (mut committer, _, mut executor) = committer(dir.path(), full);
        assert!(committer.commit(turn(Instant(0), vec![order(LIST)])).is_err());
        assert_eq!(heard(&mut executor), None);
    }

    #[test]
    fn nothing_but_orders_leaves_after_a_sync_that_failed() {
        let dir = tempfile::tempdir().unwrap();
        let broken = Options { broken_at_bytes: Some(30), ..Options::default() };
        let (mut committer, history, mut executor) = committer(dir.path(), broken);
        let (_route, mut letters) = node(&committer);
        let (done, after) = mpsc::channel();
        let turn = Turn {
            events: vec![(0, Event::new(Timestamp(0), EventKind::JobHeld))],
            after: vec![Box::new(move || done.send(()).unwrap())],
            ..turn(Instant(0), vec![letter(), order(ACKNOWLEDGE), order(LIST)])
        };
        assert!(committer.commit(turn).is_err());
        assert_eq!((heard(&mut executor), heard(&mut executor)), (Some(LIST), None));
        assert!(letters.try_recv().is_err() && after.try_recv().is_err());
        assert_eq!((committer.events.read(0, 9).len(), durable_facts(&history)), (0, 0));
        assert!(committer.flush().is_err());
        assert_eq!((heard(&mut executor), committer.events.read(0, 9).len()), (None, 0));
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
            let joined = Fact::Record(Record::NodeJoined { node: NodeId(1) });
            let event = Event::new(Timestamp(0), EventKind::NodeUp);
            let turn = Turn { events: vec![(0, event)], ..quiet(Instant(at), joined) };
            committer.commit(turn).unwrap();
            committer.flush_if_due(Instant(at)).unwrap();
            let expected = if at < lazy { 0 } else { 4 };
            assert_eq!((durable_facts(&history), events.read(0, 9).len()), (expected, expected));
        }
        assert_eq!(committer.due_in(Instant(lazy)), None);
    }

    #[test]
    fn the_server_is_told_of_entries_once_they_are_on_disk_and_before_letters_that_follow_from_them() {
        let dir = tempfile::tempdir().unwrap();
        let (committer, history, _executor) = committer(dir.path(), Options::default());
        let mut committer = committer.telling_log();
        let (server, mut told) = tokio::sync::mpsc::unbounded_channel();
        committer.routes.set_server(Some(server));
        let joined = Fact::Record(Record::NodeJoined { node: NodeId(1) });
        committer.commit(quiet(Instant(0), joined)).unwrap();
        assert!(told.try_recv().is_err(), "it is not on disk");
        let message = Message::ToMaster(amalgam_core::protocol::ToMaster::Return { grants: vec![] });
        committer.commit(turn(Instant(1), vec![(Egress::Server, message)])).unwrap();
        assert!(matches!(told.try_recv(), Ok(Parcel::Log { first: 0, entries, .. }) if entries.len() == 2));
        assert!(matches!(told.try_recv(), Ok(Parcel::Mail(_))));
        committer.commit(turn(Instant(2), vec![])).unwrap();
        assert!(told.try_recv().is_err());
        committer.flush().unwrap();
        assert!(matches!(told.try_recv(), Ok(Parcel::Log { first: 2, entries, .. }) if entries.len() == 1));
        assert_eq!(durable_facts(&history), 3);
    }

    #[test]
    fn what_another_process_wrote_down_keeps_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let (mut committer, history, _executor) = committer(dir.path(), Options::default());
        let held = |held| Fact::Change(Change::JobHeld { job: JobId(1), held });
        let older = Followed { number: 7, at: Instant(3), fact: held(true) };
        let (facts, followed) = (vec![held(false)], vec![(HostId(1), older)]);
        committer.commit(Turn { facts, followed, ..turn(Instant(9), vec![letter()]) }).unwrap();
        let mut at = Vec::new();
        history
            .scan(None, 0, |_, entry| {
                at.push(entry.at_micros);
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(at, [9, 3]);
    }
}
