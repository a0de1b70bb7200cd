//! Makes the facts of a turn durable, then sends the messages and events that waited for them.
//!
//! It runs on the loop's own thread. While the disk is busy, inputs accumulate and the next turn takes them all, so one
//! write and one fdatasync serve many facts. Another thread would add two thread switches to every launch. ADR 25
//! defines which messages may be sent before the fdatasync.

use super::executor_link::Executor;
use super::routes::Routes;
use super::{AfterCommit, EventRing, Metrics, encode, encode_followed};
use crate::api::Event;
use crate::replica::Replica;
use crate::store::{Entry, EntryRef, Store, StoreError};
use amalgam_core::hosting::{Egress, Envelope, Fact, Followed};
use amalgam_core::protocol::{Message, ToExecutor};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{self as words, HostId, Instant};
use std::sync::Arc;
use std::time::Duration;

/// Maximum time until changes are on disk that were not sent to another machine.
pub const GROUP: Duration = Duration::from_millis(5);
/// Maximum time until records are on disk that nothing waits for.
pub const LAZY: Duration = Duration::from_millis(250);

/// The effects of one turn of the loop.
pub struct Turn {
    pub now: Instant,
    pub facts: Vec<Fact>,
    /// Facts of the logs of job hosts. They are written after `facts`.
    pub followed: Vec<(HostId, Followed)>,
    /// Whether `facts` or `followed` contains a change.
    pub durable: bool,
    pub envelopes: Vec<(Egress, Envelope)>,
    /// Events, each with the position of its fact in `facts` followed by `followed`.
    pub events: Vec<(usize, Event)>,
    pub after: Vec<AfterCommit>,
}

pub struct Committer {
    /// `None` in an agent, which keeps no log: its executor keeps the state of attempts.
    pub store: Option<Store>,
    /// A second copy of the changes, for a standby. With a replica, the changes in `store` only serve the history that
    /// users read.
    pub replica: Option<Replica>,
    pub executor: Executor,
    pub routes: Arc<Routes>,
    pub events: Arc<EventRing>,
    pub metrics: Arc<Metrics>,
    /// When the appended facts must be on disk; `None` if they are.
    due: Option<Instant>,
    /// Whether changes are among these facts.
    must_sync: bool,
    /// Events about facts that are not on disk. They are not published yet, because their numbers would be used again
    /// after a crash.
    unreported: Vec<(u64, Vec<(usize, Event)>)>,
    /// Acknowledgements of ends that are not on disk here. The executor forgets an end once it is acknowledged.
    acknowledgements: Vec<Envelope>,
    /// Whether entries of the log are sent to the server once they are on disk.
    reports_log: bool,
    unreported_entries: Vec<Entry>,
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
            unreported: Vec::new(),
            acknowledgements: Vec::new(),
            reports_log: false,
            unreported_entries: Vec::new(),
        }
    }

    /// Sends the entries of the log to the server. Used by processes without a master.
    #[must_use]
    pub fn reporting_log(mut self) -> Committer {
        self.reports_log = true;
        self
    }

    /// Writes the facts of a turn and sends its messages. No message leaves this machine before the changes of this and
    /// of earlier turns are durable. Events are published once their facts are durable.
    ///
    /// The executor and its tasks do not survive a crash of this machine. A fact that survives the end of this process
    /// is durable enough for them, so orders to launch and to signal are sent after the write. The fdatasync is delayed
    /// by up to [`GROUP`] to serve several turns, unless the turn ends a job, which a client may be waiting for. An
    /// acknowledgement waits for the fdatasync: if the disk fails, the executor may have the only copy of the end
    /// (ADR 25).
    ///
    /// # Errors
    /// If the log cannot be written. No message that depends on a fact after the last durable one has left the machine.
    /// The caller must end the process.
    pub fn commit(&mut self, turn: Turn) -> Result<(), StoreError> {
        let first = self.append(&turn)?;
        let Turn { facts, envelopes, events, after, .. } = turn;
        if !events.is_empty() {
            self.unreported.push((first, events));
        }
        let (orders, envelopes): (Vec<_>, Vec<_>) =
            envelopes.into_iter().partition(|(egress, _)| *egress == Egress::Executor);
        let orders = orders.into_iter().map(|(_, envelope)| envelope);
        let (acknowledgements, orders): (Vec<Envelope>, Vec<Envelope>) = orders.partition(is_acknowledgement);
        self.executor.order(orders);
        self.acknowledgements.extend(acknowledgements);
        if !(envelopes.is_empty() && after.is_empty()) || facts.iter().any(ends_a_job) {
            self.settle()?;
        }
        self.routes.send(envelopes);
        self.let_go();
        for after in after {
            after();
        }
        Ok(())
    }

    /// Appends the facts of a turn to the log, and writes them if changes are among them. Returns the number of the
    /// first entry.
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
        if self.reports_log {
            self.unreported_entries.extend(entries);
        }
        let patience = if *durable { GROUP } else { LAZY };
        let latest = *now + words::Duration::from_micros(patience.as_micros() as u64);
        self.due = Some(self.due.map_or(latest, |due| due.min(latest)));
        self.must_sync |= durable;
        Ok(first)
    }

    /// Makes all changes so far durable, so that the state of the roles contains nothing that a crash could undo.
    pub fn settle(&mut self) -> Result<(), StoreError> {
        if self.must_sync { self.flush() } else { Ok(()) }
    }

    /// Makes all facts appended so far durable.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        self.write_out()?;
        self.let_go();
        Ok(())
    }

    /// Makes facts durable whose time has come, whether or not more inputs are waiting.
    pub fn flush_if_due(&mut self, now: Instant) -> Result<(), StoreError> {
        if self.due_in(now) == Some(Duration::ZERO) { self.flush() } else { Ok(()) }
    }

    /// Time until the next flush, if facts are waiting for it.
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        self.due.map(|due| Duration::from_micros(due.since(now).as_micros()))
    }

    fn write_out(&mut self) -> Result<(), StoreError> {
        if let Some(store) = &mut self.store {
            let started = std::time::Instant::now();
            store.commit()?;
            self.replica.as_mut().map_or(Ok(()), Replica::commit)?;
            self.metrics.committed(started.elapsed());
            if !self.unreported_entries.is_empty() {
                let first = store.next_sequence() - self.unreported_entries.len() as u64;
                self.routes.report_log(first, std::mem::take(&mut self.unreported_entries));
            }
        }
        (self.due, self.must_sync) = (None, false);
        Ok(())
    }

    /// Sends the acknowledgements and publishes the events whose facts are on disk.
    fn let_go(&mut self) {
        if !self.must_sync {
            self.executor.order(std::mem::take(&mut self.acknowledgements));
        }
        if self.due.is_none() {
            for (first, events) in self.unreported.drain(..) {
                self.events.publish(first, events);
            }
        }
    }

    pub fn needs_snapshot(&self) -> bool {
        let of_store = self.store.as_ref().is_some_and(Store::needs_snapshot);
        of_store || self.replica.as_ref().is_some_and(Replica::needs_snapshot)
    }

    /// Writes a snapshot with this state, after all facts so far.
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

fn is_acknowledgement(envelope: &Envelope) -> bool {
    matches!(envelope.message, Message::ToExecutor(ToExecutor::Acknowledge { .. }))
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

    /// A committer with a store in `dir`, the store's history, and the executor's end of the connection.
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

    /// The next order that the executor has received, if any.
    fn heard(executor: &mut Link) -> Option<ToExecutor> {
        assert!(executor.receive().unwrap());
        executor.next().unwrap().map(|frame| match frame {
            ExecutorFrame::Order(order) => order,
            other => panic!("{other:?} is not an order"),
        })
    }

    fn turn(at: Instant, envelopes: Vec<(Egress, Message)>) -> Turn {
        let facts = vec![Fact::Change(Change::JobHeld { job: JobId(1), held: true })];
        let to = |egress| match egress {
            Egress::Node(node) => Address::Node(node),
            _ => Address::Executor(NodeId(1)),
        };
        let envelope = |(egress, message)| (egress, Envelope { from: Address::Master, to: to(egress), message });
        let envelopes = envelopes.into_iter().map(envelope).collect();
        Turn { now: at, facts, followed: vec![], durable: true, envelopes, events: vec![], after: vec![] }
    }

    /// A turn with one fact and no messages.
    fn quiet(at: Instant, fact: Fact) -> Turn {
        let durable = fact.is_change();
        Turn { facts: vec![fact], durable, ..turn(at, vec![]) }
    }

    fn order(order: ToExecutor) -> (Egress, Message) {
        (Egress::Executor, Message::ToExecutor(order))
    }

    /// A node over the network: its route, and the messages that it receives.
    fn node(committer: &Committer) -> (PeerRoute, UnboundedReceiver<Parcel>) {
        let (peer, envelopes) = tokio::sync::mpsc::unbounded_channel();
        (committer.routes.add(PeerId::Node(NodeId(2)), peer).unwrap(), envelopes)
    }

    fn envelope() -> (Egress, Message) {
        let report = ExecutorReport::Executing { attempts: vec![] };
        (Egress::Node(NodeId(2)), Message::ToNode(ToNode::Executor(report)))
    }

    #[test]
    fn orders_are_sent_after_the_write_and_other_messages_after_the_fdatasync() {
        let dir = tempfile::tempdir().unwrap();
        let (mut committer, history, mut executor) = committer(dir.path(), Options::default());
        committer.commit(turn(Instant(0), vec![order(ACKNOWLEDGE), order(LIST)])).unwrap();
        assert_eq!((heard(&mut executor), heard(&mut executor)), (Some(LIST), None));
        assert_eq!((durable_facts(&history), committer.due_in(Instant(0))), (0, Some(GROUP)));

        let (_route, mut envelopes) = node(&committer);
        committer.commit(turn(Instant(1), vec![envelope()])).unwrap();
        assert_eq!((durable_facts(&history), committer.due_in(Instant(1))), (2, None));
        assert!(matches!(envelopes.try_recv(), Ok(Parcel::Mail(mail)) if mail.len() == 1));
        assert_eq!(heard(&mut executor), Some(ACKNOWLEDGE));

        committer.commit(turn(Instant(2), vec![order(ACKNOWLEDGE)])).unwrap();
        assert_eq!(heard(&mut executor), None);
        committer.settle().unwrap();
        assert_eq!((durable_facts(&history), heard(&mut executor)), (3, Some(ACKNOWLEDGE)));
    }

    #[test]
    fn without_a_log_acknowledgements_are_sent_immediately() {
        let (mut committer, _, mut executor) = committer(tempfile::tempdir().unwrap().path(), Options::default());
        committer.store = None;
        committer.commit(turn(Instant(0), vec![order(ACKNOWLEDGE)])).unwrap();
        assert_eq!(heard(&mut executor), Some(ACKNOWLEDGE));
    }

    #[test]
    fn the_end_of_a_job_is_durable_and_published_immediately() {
        let dir = tempfile::tempdir().unwrap();
        let (mut committer, history, _executor) = committer(dir.path(), Options::default());
        let event = Event::new(Timestamp(0), EventKind::JobEnded);
        let ended = Change::JobEnded { job: JobId(1), outcome: JobOutcome::Succeeded, at: Instant(0) };
        let ends = Turn { events: vec![(0, event)], ..quiet(Instant(0), Fact::Change(ended)) };
        committer.commit(ends).unwrap();
        assert_eq!((durable_facts(&history), committer.events.read(0, 9).len()), (1, 1));
    }

    #[test]
    fn no_order_is_sent_after_a_failed_write() {
        let dir = tempfile::tempdir().unwrap();
        let full = Options { full_at_bytes: Some(30), ..Options::default() };
        let (mut committer, _, mut executor) = committer(dir.path(), full);
        assert!(committer.commit(turn(Instant(0), vec![order(LIST)])).is_err());
        assert_eq!(heard(&mut executor), None);
    }

    #[test]
    fn only_orders_are_sent_after_a_failed_sync() {
        let dir = tempfile::tempdir().unwrap();
        let broken = Options { broken_at_bytes: Some(30), ..Options::default() };
        let (mut committer, history, mut executor) = committer(dir.path(), broken);
        let (_route, mut envelopes) = node(&committer);
        let (done, after) = mpsc::channel();
        let turn = Turn {
            events: vec![(0, Event::new(Timestamp(0), EventKind::JobHeld))],
            after: vec![Box::new(move || done.send(()).unwrap())],
            ..turn(Instant(0), vec![envelope(), order(ACKNOWLEDGE), order(LIST)])
        };
        assert!(committer.commit(turn).is_err());
        assert_eq!((heard(&mut executor), heard(&mut executor)), (Some(LIST), None));
        assert!(envelopes.try_recv().is_err() && after.try_recv().is_err());
        assert_eq!((committer.events.read(0, 9).len(), durable_facts(&history)), (0, 0));
        assert!(committer.flush().is_err());
        assert_eq!((heard(&mut executor), committer.events.read(0, 9).len()), (None, 0));
    }

    #[test]
    fn records_are_written_and_published_after_250_ms() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(dir.path(), Options::default()).unwrap();
        let (history, events) = (store.history(), Arc::new(EventRing::starting_at(0)));
        let mut committer = Committer::new(Some(store), Arc::clone(&events), Arc::default());
        let lazy = LAZY.as_micros() as u64;
        // A turn with more facts before and at the deadline does not delay the write.
        for at in [0, lazy / 2, lazy - 1, lazy] {
            let joined = Fact::Record(Record::NodeJoined { node: NodeId(1), program: None });
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
    fn log_entries_are_sent_to_the_server_once_on_disk_and_before_later_messages() {
        let dir = tempfile::tempdir().unwrap();
        let (committer, history, _executor) = committer(dir.path(), Options::default());
        let mut committer = committer.reporting_log();
        let (server, mut reported) = tokio::sync::mpsc::unbounded_channel();
        committer.routes.set_server(Some(server));
        let joined = Fact::Record(Record::NodeJoined { node: NodeId(1), program: None });
        committer.commit(quiet(Instant(0), joined)).unwrap();
        assert!(reported.try_recv().is_err(), "the entry is not on disk");
        let message = Message::ToMaster(amalgam_core::protocol::ToMaster::Return { grants: vec![] });
        committer.commit(turn(Instant(1), vec![(Egress::Server, message)])).unwrap();
        assert!(matches!(reported.try_recv(), Ok(Parcel::Log { first: 0, entries, .. }) if entries.len() == 2));
        assert!(matches!(reported.try_recv(), Ok(Parcel::Mail(_))));
        committer.commit(turn(Instant(2), vec![])).unwrap();
        assert!(reported.try_recv().is_err());
        committer.flush().unwrap();
        assert!(matches!(reported.try_recv(), Ok(Parcel::Log { first: 2, entries, .. }) if entries.len() == 1));
        assert_eq!(durable_facts(&history), 3);
    }

    #[test]
    fn entries_of_job_hosts_keep_their_time() {
        let dir = tempfile::tempdir().unwrap();
        let (mut committer, history, _executor) = committer(dir.path(), Options::default());
        let held = |held| Fact::Change(Change::JobHeld { job: JobId(1), held });
        let older = Followed { number: 7, at: Instant(3), fact: held(true) };
        let (facts, followed) = (vec![held(false)], vec![(HostId(1), older)]);
        committer.commit(Turn { facts, followed, ..turn(Instant(9), vec![envelope()]) }).unwrap();
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
