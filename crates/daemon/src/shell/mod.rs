//! The event loop of every daemon.
//!
//! A single thread takes inputs in turns, passes them to the roles, makes the resulting facts durable and sends the
//! resulting messages. No other thread accesses a role. Questions from the HTTP interface are closures that run on this
//! thread between two turns.
//!
//! ```text
//!  transport, executor, HTTP --Input--> loop: roles, then log --> executor, then fsync --> transport, HTTP
//! ```

mod clock;
mod committer;
mod event_ring;
mod executor_link;
mod executor_routing;
pub mod fetcher;
mod inbox;
mod log_entries;
mod metrics;
mod observe;
mod routes;
mod stays;

pub use clock::Clock;
pub use committer::Committer;
use committer::Turn;
pub use event_ring::EventRing;
pub use executor_link::{Executor, ExecutorLink, ExecutorSetup, shut_down};
pub use log_entries::{decode, decode_numbered, encode, encode_followed};
pub use metrics::{FileTraffic, Metrics};
pub use routes::{Parcel, PeerId, PeerRoute, PeerSender, Routes};

use crate::journal::JournalWriter;
use crate::service_manager::Watchdog;
use crate::store::{Store, StoreError};
use amalgam_core::hosting::{Effects, Envelope, Fact, Followed, Present, Roles};
use amalgam_core::node::NodeSettings;
use amalgam_core::protocol::{Address, Message, ToClient, ToMaster};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{AttemptId, ClientId, ClusterId, GlobalId, HostId, Instant, JobId, NodeId};
use inbox::{Awake, Inbox, inbox};
use stays::Stays;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// Maximum number of inputs of a turn. It limits how long the effects of the first input wait for the other inputs.
const TURN: usize = 1_024;

/// Runs on the loop's thread between two turns.
pub type Question = Box<dyn FnOnce(&Roles, Instant) + Send>;

/// Runs when all facts up to its turn are durable.
pub type AfterCommit = Box<dyn FnOnce() + Send>;

/// An input of the loop.
pub enum Input {
    Mail(Vec<Envelope>),
    /// A node's agent connected over the network.
    NodeConnected {
        node: NodeId,
        incarnation: u64,
    },
    NodeDisconnected {
        node: NodeId,
    },
    /// A job host connected.
    HostConnected {
        host: HostId,
        incarnation: u64,
    },
    HostDisconnected {
        host: HostId,
    },
    /// At the master of a cluster: it and a global master are connected.
    GlobalConnected {
        global: GlobalId,
        incarnation: u64,
    },
    GlobalDisconnected {
        global: GlobalId,
    },
    /// At a global master: it and the master of a cluster are connected.
    ClusterConnected {
        cluster: ClusterId,
        incarnation: u64,
    },
    ClusterDisconnected {
        cluster: ClusterId,
    },
    /// Entries of a job host's log, from number `first` on. The instants are those of this process's clock.
    HostReports {
        host: HostId,
        first: u64,
        facts: Vec<(Instant, Fact)>,
    },
    /// The full state of a job host before its log's entry `next`. It is sent if its log no longer has the entries
    /// after those that this process received.
    HostReportsAll {
        host: HostId,
        next: u64,
        changes: Vec<Change>,
    },
    /// The state of a job host that its log does not contain.
    HostPresent {
        host: HostId,
        present: Present,
    },
    /// Asks for the contents of a snapshot and the number of the log's next entry. The answer is durable.
    ReportAll(oneshot::Sender<(u64, Vec<Change>)>),
    /// At a job host: it is connected to its server.
    MasterConnected {
        incarnation: u64,
    },
    MasterDisconnected,
    /// At an agent: one of its nodes is connected to the server or to a job host.
    LocalNodeConnected {
        node: NodeId,
        peer: Address,
        incarnation: u64,
    },
    LocalNodeDisconnected {
        node: NodeId,
        peer: Address,
    },
    ExecutorConnected(Box<ExecutorLink>),
    /// Asks for the number of the node with this name. A new name gets a number. The answer is durable.
    NameNode {
        name: String,
        answer: oneshot::Sender<NodeId>,
    },
    /// Starts a node of this process and connects it to the master in this process.
    LocalNode(Box<NodeSettings>),
    /// Starts a node with a simulated executor. `node` is the number that its server gave it.
    HollowNode {
        node: NodeId,
        settings: Box<NodeSettings>,
    },
    Ask(Question),
    /// Makes the effects of all earlier inputs durable, then ends the loop.
    Stop(oneshot::Sender<()>),
}

/// Sends inputs to the loop from other threads.
#[derive(Clone)]
pub struct Handle {
    inputs: inbox::Sender,
    routes: Arc<Routes>,
    clock: Clock,
    next_client: Arc<AtomicU64>,
}

/// The error that the loop has ended.
#[derive(Clone, Copy, Debug)]
pub struct Stopped;

impl Handle {
    pub fn send(&self, input: Input) -> Result<(), Stopped> {
        self.inputs.send(input)
    }

    /// The loop's clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    pub fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// Runs a question on the loop's thread and returns its answer. All facts that the answer depends on are durable.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Roles, Instant) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let (answer, answered) = oneshot::channel();
        let question: Question = Box::new(move |roles, now| drop(answer.send(question(roles, now))));
        self.send(Input::Ask(question))?;
        answered.await.map_err(|_| Stopped)
    }

    /// Sends a client's message to the master and waits for the answer, which is durable.
    pub async fn request(&self, body: ToMaster) -> Result<ToClient, Stopped> {
        let client = ClientId(self.next_client.fetch_add(1, Ordering::Relaxed));
        let answered = self.routes.expect_answer(client);
        let envelope =
            Envelope { from: Address::Client(client), to: Address::Master, message: Message::ToMaster(body) };
        self.send(Input::Mail(vec![envelope]))?;
        answered.await.map_err(|_| Stopped)
    }
}

pub struct Shell {
    roles: Roles,
    clock: Clock,
    inputs: Inbox,
    committer: Committer,
    journal: Option<JournalWriter>,
    /// The executor's state directory, if this process has nodes.
    files: Option<PathBuf>,
    effects: Effects,
    /// Facts of the logs of job hosts.
    followed: Vec<(HostId, Followed)>,
    after: Vec<AfterCommit>,
    stays: Stays,
    watchdog: Watchdog,
}

impl Shell {
    /// Creates a loop over these roles, and its handle. [`Shell::run`] starts it.
    pub fn new(
        roles: Roles,
        clock: Clock,
        mut committer: Committer,
        journal: Option<JournalWriter>,
        files: Option<PathBuf>,
    ) -> io::Result<(Shell, Handle)> {
        let (inputs_in, inputs) = inbox()?;
        if files.is_some() {
            committer.executor.prepare_to_reconnect()?;
        }
        let routes = Arc::clone(&committer.routes);
        let handle = Handle { inputs: inputs_in, routes, clock, next_client: Arc::new(AtomicU64::new(1)) };
        let (effects, followed, after, stays) = (Effects::default(), Vec::new(), Vec::new(), Stays::default());
        let watchdog = Watchdog::new()?;
        let shell =
            Shell { roles, clock, inputs, committer, journal, files, effects, followed, after, stays, watchdog };
        Ok((shell, handle))
    }

    /// Runs turns until [`Input::Stop`] arrives or the last handle is dropped.
    ///
    /// # Errors
    /// If the log cannot be written. The process must exit then.
    pub fn run(mut self) -> Result<(), StoreError> {
        let now = self.clock.now();
        if self.roles.dispatch().is_some() {
            self.roles.announce_master(now, &mut self.effects);
            self.finish_turn(now)?;
        }
        // A store of an older version is replaced by a snapshot, even if nothing else happens.
        if self.committer.needs_snapshot() {
            self.committer.write_snapshot(now, self.roles.durable())?;
        }
        loop {
            self.watchdog.turned();
            let Awake { inputs, ready, deserted } = self.wait();
            if ready || self.committer.executor.due().is_some_and(|at| at <= self.clock.now()) {
                self.hear_executor();
            }
            for input in inputs {
                if let Input::Stop(done) = input {
                    self.finish_turn(self.clock.now())?;
                    self.committer.flush()?;
                    let _ = done.send(());
                    return Ok(());
                }
                self.handle(input)?;
            }
            let now = self.clock.now();
            self.roles.wake_up(now, &mut self.effects);
            self.finish_turn(now)?;
            if deserted {
                return self.committer.flush();
            }
            self.committer.flush_if_due(now)?;
        }
    }

    fn wait(&self) -> Awake {
        let now = self.clock.now();
        let executor = &self.committer.executor;
        let wakeup = self.roles.next_wakeup().into_iter().chain(executor.due()).min();
        let wakeup = wakeup.map(|at| Duration::from_micros(at.since(now).as_micros()));
        let patience = wakeup.into_iter().chain(self.committer.due_in(now)).chain(self.watchdog.due_in()).min();
        self.inputs.wait(patience, executor.watch(), TURN)
    }

    fn hear_executor(&mut self) {
        let now = self.clock.now();
        let (envelopes, outcome) = self.committer.executor.exchange(now);
        for envelope in envelopes {
            self.roles.deliver(now, envelope, &mut self.effects);
        }
        if let Err(error) = outcome {
            tracing::warn!(%error, "lost the connection to the executor; reconnecting");
            self.lose_executor(now);
        }
    }

    fn use_executor(&mut self, now: Instant, link: ExecutorLink) {
        match self.committer.executor.connect(link) {
            Ok(incarnation) => {
                self.committer.executor.serve_nodes(self.roles.nodes.ids().collect());
                self.roles.executor_connected(now, incarnation, &mut self.effects);
            }
            Err(error) => {
                tracing::error!(%error, "cannot use the connection to the executor; reconnecting");
                self.lose_executor(now);
            }
        }
    }

    fn lose_executor(&mut self, now: Instant) {
        self.roles.executor_disconnected(now, &mut self.effects);
        self.committer.executor.reconnect(self.inputs.sender());
    }

    fn handle(&mut self, input: Input) -> Result<(), StoreError> {
        let now = self.clock.now();
        self.settle_before(&input, now)?;
        let (roles, effects) = (&mut self.roles, &mut self.effects);
        match input {
            Input::Mail(envelopes) => {
                for envelope in envelopes {
                    roles.deliver(now, envelope, effects);
                }
            }
            Input::NodeConnected { node, incarnation } => roles.node_connected(now, node, incarnation, effects),
            Input::NodeDisconnected { node } => roles.node_disconnected(now, node, effects),
            Input::HostConnected { host, incarnation } => roles.host_connected(now, host, incarnation, effects),
            Input::HostDisconnected { host } => roles.host_disconnected(now, host, effects),
            Input::GlobalConnected { global, incarnation } => {
                roles.global_connected(now, global, incarnation, effects);
            }
            Input::GlobalDisconnected { global } => roles.global_disconnected(now, global, effects),
            Input::ClusterConnected { cluster, incarnation } => {
                roles.cluster_connected(now, cluster, incarnation, effects);
            }
            Input::ClusterDisconnected { cluster } => roles.cluster_disconnected(now, cluster, effects),
            Input::HostReports { host, first, facts } => self.follow(host, first, facts),
            Input::HostReportsAll { host, next, changes } => {
                effects.facts.extend(roles.follow_anew(host, next, changes).into_iter().map(Fact::Change));
                effects.durable = true;
            }
            Input::HostPresent { host, present } => roles.follow_present(host, present),
            Input::ReportAll(answer) => {
                let next = self.committer.store.as_ref().map_or(0, Store::next_sequence);
                let _ = answer.send((next, roles.durable()));
            }
            Input::MasterConnected { incarnation } => roles.master_connected(now, incarnation, effects),
            Input::MasterDisconnected => roles.master_disconnected(now, effects),
            Input::LocalNodeConnected { node, peer, incarnation } => {
                roles.local_node_connected(now, node, peer, incarnation, effects);
            }
            Input::LocalNodeDisconnected { node, peer } => roles.local_node_disconnected(now, node, peer, effects),
            Input::ExecutorConnected(link) => self.use_executor(now, *link),
            Input::NameNode { name, answer } => {
                if let Some(node) = roles.name_node(&name, effects) {
                    self.after.push(Box::new(move || {
                        let _ = answer.send(node);
                    }));
                }
            }
            Input::LocalNode(settings) => {
                if let Some(node) = roles.name_node(&settings.name, effects) {
                    roles.add_local_node(node, *settings);
                    roles.connect_local_node(now, node, effects);
                }
            }
            Input::HollowNode { node, settings } => {
                roles.add_local_node(node, *settings);
                roles.local_node_connected(now, node, Address::Executor(node), 0, effects);
            }
            Input::Ask(question) => question(roles, now),
            Input::Stop(_) => unreachable!("`run` handles it"),
        }
        Ok(())
    }

    /// Makes the changes durable that an answer to this input could depend on.
    fn settle_before(&mut self, input: &Input, now: Instant) -> Result<(), StoreError> {
        match input {
            Input::Ask(_) => {
                self.finish_turn(now)?;
                self.committer.settle()
            }
            // Numbers of entries that were sent must not be used again, so records have to be durable too.
            Input::ReportAll(_) => {
                self.finish_turn(now)?;
                self.committer.flush()
            }
            _ => Ok(()),
        }
    }

    /// Adds entries of a job host's log to the facts of this turn.
    fn follow(&mut self, host: HostId, first: u64, facts: Vec<(Instant, Fact)>) {
        match self.roles.follow(host, first, facts) {
            Ok(news) => {
                self.effects.durable |= news.iter().any(|followed| followed.fact.is_change());
                self.followed.extend(news.into_iter().map(|followed| (host, followed)));
            }
            Err(gap) => {
                // On its next connection, the job host continues after the last entry that was received.
                tracing::error!(?gap, "log entries of job host {} are missing; closing its connection", host.0);
                self.committer.routes.close(PeerId::JobHost(host));
            }
        }
    }

    /// Makes the facts of this turn durable and sends its messages and events.
    fn finish_turn(&mut self, now: Instant) -> Result<(), StoreError> {
        self.write_journal();
        let mut effects = std::mem::take(&mut self.effects);
        self.stays.add_to(&mut effects.facts);
        let forgotten = std::mem::take(&mut effects.forgotten);
        let (after, followed) = (std::mem::take(&mut self.after), std::mem::take(&mut self.followed));
        if effects.misdirected > 0 {
            tracing::warn!(effects.misdirected, "dropped messages for roles that this process does not host");
        }
        let has_facts = !(effects.facts.is_empty() && followed.is_empty());
        if !has_facts && effects.envelopes.is_empty() && after.is_empty() && forgotten.is_empty() {
            return Ok(());
        }
        let of_others = followed.iter().map(|(_, Followed { at, fact, .. })| (*at, fact));
        let dated = effects.facts.iter().map(|fact| (now, fact)).chain(of_others);
        let events = observe::events(dated.clone(), &self.roles);
        self.committer.metrics.take_in(dated.map(|(_, fact)| fact));
        let Effects { facts, durable, envelopes, .. } = effects;
        let launched: Vec<AttemptId> = envelopes.iter().filter_map(stays::launched).collect();
        let envelopes = envelopes.into_iter().map(|envelope| (self.roles.egress(&envelope), envelope)).collect();
        self.committer.commit(Turn { now, facts, followed, durable, envelopes, events, after })?;
        if !launched.is_empty() && self.roles.manages_jobs() {
            self.stays.left(launched, self.clock.now().since(now));
        }
        if let Some(files) = self.files.clone().filter(|_| !forgotten.is_empty()) {
            // If the change were lost, the log would restore the job, whose output has to exist then.
            self.committer.settle()?;
            remove_files(files, forgotten);
        }
        if self.committer.needs_snapshot() {
            self.committer.write_snapshot(now, self.roles.durable())?;
        }
        Ok(())
    }

    /// Writes the journal. An error ends the journal only: it serves the diagnosis of defects, and the cluster does not
    /// need it.
    fn write_journal(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        let entries = self.roles.take_journal();
        if let Err(error) = journal.write(&entries) {
            tracing::warn!(%error, "cannot write the journal; it ends here");
            self.journal = None;
            self.roles.end_journal();
        }
    }
}

/// Runs the work of a thread that the process cannot work without. A panic ends the process, which would otherwise
/// continue to run without this thread.
pub(crate) fn end_process_on_panic<T>(work: impl FnOnce() -> T) -> T {
    // After a panic the process exits, so nothing sees a broken invariant.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(done) => done,
        Err(_) => {
            eprintln!("error: the program exits because of a defect in it");
            eprintln!(
                "  help: start it again and report the text above; nothing that was acknowledged is lost, and tasks \
                 continue to run"
            );
            std::process::exit(101);
        }
    }
}

/// Removes the files of these jobs on a thread of its own.
fn remove_files(files: PathBuf, jobs: Vec<JobId>) {
    let remove = move || {
        crate::priority::lower_priority();
        for job in jobs {
            crate::executor::forget_job(&files, job).iter().for_each(|note| tracing::warn!(%job, "{note}"));
        }
    };
    if let Err(error) = std::thread::Builder::new().name("cleaner".to_owned()).spawn(remove) {
        tracing::warn!(%error, "cannot start a thread to remove the files of forgotten jobs; they are kept");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sealing::new_sealing;
    use crate::service_manager::tests::watching;
    use crate::store::Options;
    use amalgam_core::job_manager::JobManagerSettings;
    use amalgam_core::master::MasterSettings;
    use amalgam_core::policy::inter_job::QueueTree;
    use amalgam_core::preset::Preset;
    use amalgam_core::vocabulary::Epoch;
    use std::ops::ControlFlow;
    use std::process::Command;
    use std::sync::mpsc;

    /// The loop of a server with a new store, after it has given a node a number that is not yet written. The
    /// executor's directory is the parent of the store's directory.
    fn shell_with_a_change(options: Options) -> (tempfile::TempDir, Shell) {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(&dir.path().join("log"), options).unwrap();
        let mut roles = Roles::new(Preset::default(), Epoch(1), JobManagerSettings::default(), new_sealing().unwrap());
        roles.recover(MasterSettings::default(), QueueTree::single(), Vec::new());
        let committer = Committer::new(Some(store), Arc::new(EventRing::starting_at(0)), Arc::default());
        let clock = Clock::starting_at_least(Instant::ZERO);
        let (mut shell, _) = Shell::new(roles, clock, committer, None, Some(dir.path().to_owned())).unwrap();
        shell.roles.name_node("first", &mut shell.effects).unwrap();
        (dir, shell)
    }

    /// A store whose disk fails when anything is synced after opening.
    fn broken() -> Options {
        Options { broken_at_bytes: Some(30), ..Options::default() }
    }

    #[test]
    fn a_question_is_answered_after_all_changes_are_durable() {
        let (_dir, mut shell) = shell_with_a_change(Options::default());
        let history = shell.committer.store.as_ref().unwrap().history();
        let (answer, answered) = mpsc::channel();
        let question = move |roles: &Roles, _| {
            let mut durable = 0;
            let count = |_, _: crate::store::EntryRef<'_>| {
                durable += 1;
                ControlFlow::Continue(())
            };
            history.scan(None, 0, count).unwrap();
            answer.send((roles.dispatch().unwrap().names.find("first"), durable)).unwrap();
        };
        shell.handle(Input::Ask(Box::new(question))).unwrap();
        assert_eq!(answered.try_recv(), Ok((Some(NodeId(0)), 1)));
    }

    #[test]
    fn no_question_is_answered_after_a_failed_sync() {
        let (_dir, mut shell) = shell_with_a_change(broken());
        let (answer, answered) = mpsc::channel();
        let question = move |_: &Roles, _| answer.send(()).unwrap();
        assert!(shell.handle(Input::Ask(Box::new(question))).is_err());
        assert!(answered.try_recv().is_err());
    }

    #[test]
    fn a_loop_that_hangs_reports_no_turns_to_the_service_manager() {
        let (_dir, mut shell) = shell_with_a_change(Options::default());
        let (_socket, manager, watchdog) = watching(Duration::from_millis(100));
        shell.watchdog = watchdog;
        let inputs = shell.inputs.sender();
        let running = std::thread::spawn(move || shell.run());
        let mut report = [0; 100];
        manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        for _ in 0..5 {
            assert_eq!(manager.recv(&mut report).unwrap(), b"WATCHDOG=1\n".len(), "without any input");
        }
        let ((hangs, is_hanging), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel::<()>());
        let hang = move |_: &Roles, _| {
            hangs.send(()).unwrap();
            let _ = goes_on.recv();
        };
        assert!(inputs.send(Input::Ask(Box::new(hang))).is_ok());
        is_hanging.recv().unwrap();
        manager.set_nonblocking(true).unwrap();
        while manager.recv(&mut report).is_ok() {}
        std::thread::sleep(Duration::from_millis(400));
        assert!(manager.recv(&mut report).is_err(), "a report of a loop that hangs");
        manager.set_nonblocking(false).unwrap();
        go_on.send(()).unwrap();
        assert!(manager.recv(&mut report).is_ok());
        drop(inputs);
        running.join().unwrap().unwrap();
    }

    #[test]
    fn output_of_a_forgotten_job_is_kept_after_a_failed_sync() {
        let (dir, mut shell) = shell_with_a_change(broken());
        let output = dir.path().join("output/1");
        std::fs::create_dir_all(&output).unwrap();
        shell.effects.forgotten.push(JobId(1));
        assert!(shell.finish_turn(Instant::ZERO).is_err());
        // Time for the thread that would remove the files.
        std::thread::sleep(Duration::from_millis(20));
        assert!(output.exists());
    }

    #[test]
    fn a_panic_in_a_thread_ends_the_process() {
        const PANICS: &str = "AMALGAM_TEST_PANICS";
        if std::env::var_os(PANICS).is_some() {
            let thread = std::thread::spawn(|| super::end_process_on_panic(|| panic!("as a defect would")));
            let _ = thread.join();
            return;
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "--nocapture", "shell::tests::a_panic_in_a_thread_ends_the_process"]);
        let reported = again.env(PANICS, "1").output().unwrap();
        let err = String::from_utf8_lossy(&reported.stderr);
        assert_eq!(reported.status.code(), Some(101), "{err}");
        assert!(err.contains("as a defect would") && err.contains("start it again"), "{err}");
    }
}
