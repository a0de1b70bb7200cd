//! All attempts of the node, from their arrival to the acknowledgement of their ends: those that run, when they have to
//! be stopped, and which of them yield their CPU or are preempted.

use super::attempt::{AtExecutor, Attempt, State};
use super::progress::Watch;
use super::yields::{Yielding, Yields};
use crate::vocabulary::{
    AtNode, AttemptId, Devices, Duration, EndReason, Ended, EntryId, Epoch, ExecutionType, GrantId, HostList, Instant,
    JobId, Late, LaunchOrder, NodeId, PredictedStart, Prediction, QueuedEntry, TaskShape, TaskTemplate,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Index;
use std::sync::Arc;

/// The fields are stored in this order: see [`NodeAgent`](super::NodeAgent).
#[repr(C)]
pub(super) struct Attempts {
    /// When an attempt has to be stopped because of its timeout, or killed.
    due: BTreeSet<(Instant, AttemptId)>,
    /// Boxed, since a node of the map reserves space for eleven values, and most agents have few attempts.
    all: BTreeMap<AttemptId, Box<Attempt>>,
    /// Attempts at the executor, in the order of launch.
    running: Vec<AtExecutor>,
    watch: Watch,
    yields: Yields,
    /// Running attempts that are being stopped, and the attempt that needs their resources.
    preempting: BTreeMap<AttemptId, AttemptId>,
}

/// The start of an attempt's process.
pub(super) struct ProcessStart {
    pub(super) at_node: AtNode,
    /// The prediction of the start, and how right it was.
    pub(super) prediction: Option<(Prediction, PredictedStart)>,
}

impl Index<&AttemptId> for Attempts {
    type Output = Attempt;

    /// # Panics
    /// If the attempt is not known.
    fn index(&self, id: &AttemptId) -> &Attempt {
        &self.all[id]
    }
}

impl Attempts {
    /// `yields_for`: how long an opportunistic attempt yields its CPU at most; `None`: attempts do not yield.
    pub(super) fn new(yields_for: Option<Duration>) -> Attempts {
        Attempts {
            due: BTreeSet::new(),
            all: BTreeMap::new(),
            running: Vec::new(),
            watch: Watch::default(),
            yields: Yields::for_at_most(yields_for),
            preempting: BTreeMap::new(),
        }
    }

    pub(super) fn get(&self, id: &AttemptId) -> Option<&Attempt> {
        self.all.get(id).map(|attempt| &**attempt)
    }

    pub(super) fn contains(&self, id: &AttemptId) -> bool {
        self.all.contains_key(id)
    }

    pub(super) fn is_queued(&self, id: &AttemptId) -> bool {
        self.get(id).is_some_and(|attempt| matches!(attempt.state, State::Queued(_)))
    }

    /// All attempts in the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (AttemptId, &Attempt)> {
        self.all.iter().map(|(id, attempt)| (*id, &**attempt))
    }

    /// The ids of all attempts, in their order.
    pub(super) fn ids(&self) -> impl Iterator<Item = AttemptId> {
        self.all.keys().copied()
    }

    /// The attempts of the job, in the order of their ids.
    pub(super) fn of_job(&self, job: JobId) -> impl Iterator<Item = AttemptId> {
        let (epoch, number) = (Epoch(0), 0);
        let from = self.all.range(AttemptId { job, epoch, number }..);
        from.map(|(id, _)| *id).take_while(move |id| id.job == job)
    }

    /// Attempts at the executor, in the order of launch.
    pub(super) fn running(&self) -> impl DoubleEndedIterator<Item = (AttemptId, &Attempt)> {
        self.running.iter().map(|one| (one.attempt, &*self.all[&one.attempt]))
    }

    /// Number of attempts at the executor.
    pub(super) fn running_count(&self) -> usize {
        self.running.len()
    }

    /// The sum of the expected run times that the attempts at the executor have left.
    pub(super) fn running_work(&self, now: Instant) -> Duration {
        let left = self.running.iter().filter_map(|one| {
            let until = if self.yields.is_any() { self.all[&one.attempt].yielding } else { None };
            Some(one.expected_end?.since(until.map_or(now, |yielding| yielding.since)))
        });
        left.fold(Duration::ZERO, |a, b| a + b)
    }

    // ---- from arrival to end ---------------------------------------------------------------------------------------

    /// Adds an attempt that is not at the executor.
    pub(super) fn add(&mut self, id: AttemptId, attempt: Attempt) {
        self.all.insert(id, Box::new(attempt));
    }

    /// Adds an attempt that was at the executor before this agent started. It is stopped or killed at `due`.
    pub(super) fn adopt(&mut self, now: Instant, id: AttemptId, attempt: Attempt, due: Option<Instant>) {
        let does_yield = attempt.yielding.is_some();
        self.run(now, AtExecutor::new(id, attempt.since, attempt.expected));
        self.due.extend(due.map(|at| (at, id)));
        self.add(id, attempt);
        if does_yield {
            self.note_yields();
        }
    }

    fn run(&mut self, now: Instant, mut running: AtExecutor) {
        self.watch.on_running(now, &mut running);
        self.running.push(running);
    }

    /// All tasks of the attempt's gang are in place, at these nodes.
    pub(super) fn on_gang_in_place(&mut self, id: AttemptId, hosts: Arc<HostList>) {
        if let Some(attempt) = self.all.get_mut(&id) {
            attempt.hosts = Some(hosts);
        }
    }

    /// The queued attempt starts with these devices at the node of this id and name. Returns the order to the executor.
    pub(super) fn start(&mut self, now: Instant, id: AttemptId, devices: Devices, node: (NodeId, &str)) -> LaunchOrder {
        let entry = self.all.get_mut(&id).expect("a queued attempt is known");
        let order = entry.start(now, id, devices, node);
        self.run(now, AtExecutor::new(id, now, order.expected));
        order
    }

    /// The attempt's process has run for `running_for`: its timeout counts from its start. Returns `None` if the start
    /// was known.
    pub(super) fn on_started(&mut self, now: Instant, id: AttemptId, running_for: Duration) -> Option<ProcessStart> {
        let entry = self.all.get_mut(&id).expect("the caller has checked that the attempt exists");
        if !matches!(entry.state, State::Starting) {
            return None;
        }
        entry.state = State::Running;
        let started_at = now.before(running_for);
        let at_node = AtNode { waited: entry.waited, making: started_at.since(entry.since) };
        let prediction = entry.prediction.take();
        let prediction = prediction.map(|(prediction, came)| (prediction, prediction.started(started_at.since(came))));
        let timeout = entry.template.timeout;
        match &mut entry.yielding {
            Some(yielding) => {
                yielding.timeout_left = timeout.map(|timeout| Duration(timeout.0.saturating_sub(running_for.0)));
            }
            None => self.due.extend(timeout.map(|timeout| (started_at + timeout, id))),
        }
        Some(ProcessStart { at_node, prediction })
    }

    /// The attempt at the executor is asked to stop. It is killed at `killed_at` if it has not ended by then.
    pub(super) fn stop(&mut self, id: AttemptId, reason: EndReason, killed_at: Instant) {
        let entry = self.all.get_mut(&id).expect("the caller has checked that the attempt exists");
        entry.state = State::Stopping { reason, killed: false };
        self.forget_due(id);
        self.due.insert((killed_at, id));
    }

    /// Takes an attempt whose timeout or grace has passed.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<AttemptId> {
        let &(at, id) = self.due.first().filter(|(at, _)| *at <= now)?;
        self.due.remove(&(at, id));
        Some(id)
    }

    /// Marks the attempt as killed, if it was asked to stop and not killed yet. Returns the reason for which it is
    /// stopped.
    pub(super) fn kill(&mut self, id: AttemptId) -> Option<EndReason> {
        match &mut self.all.get_mut(&id)?.state {
            State::Stopping { killed, reason } if !*killed => {
                *killed = true;
                Some(reason.clone())
            }
            _ => None,
        }
    }

    /// The attempt has ended, and is kept until the end is acknowledged. Returns the end, with the attempt for which it
    /// was preempted, if any.
    pub(super) fn end(&mut self, id: AttemptId, mut ended: Arc<Ended>) -> Arc<Ended> {
        let by = self.preempting.remove(&id).filter(|_| ended.reason == EndReason::Preempted);
        if let Some(by) = by {
            let message = &mut Arc::make_mut(&mut ended).message;
            message.get_or_insert_with(|| format!("to make room for attempt {by} of job {}", by.job));
        }
        let entry = self.all.get_mut(&id).expect("the caller has checked that the attempt exists");
        let was_at_executor = entry.is_at_executor();
        entry.state = State::Ended(Arc::clone(&ended));
        entry.devices = Devices::new();
        let did_yield = entry.yielding.take().is_some();
        if was_at_executor {
            if let Some(place) = self.running.iter().position(|other| other.attempt == id) {
                self.running.remove(place);
            }
            self.forget_due(id);
            if did_yield {
                self.note_yields();
            }
        }
        ended
    }

    /// Removes an attempt that has ended.
    pub(super) fn remove_ended(&mut self, id: AttemptId) {
        self.all.remove(&id);
    }

    fn forget_due(&mut self, id: AttemptId) {
        self.due.retain(|(_, other)| *other != id);
    }

    // ---- changes of an attempt -------------------------------------------------------------------------------------

    /// The attempt that runs is booked from now on.
    pub(super) fn on_booked(&mut self, id: AttemptId, grant: GrantId) {
        let entry = self.all.get_mut(&id).expect("the caller has checked that the attempt exists");
        entry.grant = Some(grant);
        if entry.yielding.is_some() {
            self.note_yields();
        }
    }

    /// The opportunistic attempt is guaranteed from now on, without a booking. Returns its new shape.
    pub(super) fn on_entitled(&mut self, id: AttemptId) -> Arc<TaskShape> {
        let entry = self.all.get_mut(&id).expect("the caller has checked that the attempt exists");
        let TaskShape { resources, .. } = *entry.template.shape;
        let shape = Arc::new(TaskShape { resources, execution: ExecutionType::Guaranteed });
        let template = TaskTemplate { shape: Arc::clone(&shape), ..(*entry.template).clone() };
        entry.set_template(template);
        if entry.yielding.is_some() {
            self.note_yields();
        }
        shape
    }

    /// The timeout counts from the start of the attempt. Returns whether the executor has to be notified.
    pub(super) fn set_timeout(&mut self, id: AttemptId, timeout: Option<Duration>) -> bool {
        let entry = self.all.get_mut(&id).expect("the caller has checked that the attempt exists");
        let template = TaskTemplate { timeout, ..(*entry.template).clone() };
        entry.set_template(template);
        let since = entry.since;
        match &entry.state {
            State::Starting => true,
            State::Running => {
                match &mut entry.yielding {
                    Some(yielding) => {
                        let ran = yielding.since.since(since);
                        yielding.timeout_left = timeout.map(|timeout| Duration(timeout.0.saturating_sub(ran.0)));
                    }
                    None => {
                        self.forget_due(id);
                        self.due.extend(timeout.map(|timeout| (since + timeout, id)));
                    }
                }
                true
            }
            State::Queued(_) | State::Stopping { .. } | State::Ended(_) => false,
        }
    }

    /// Attempts among these entries that have waited for longer than predicted, each only once, and at most `most`.
    pub(super) fn late(&mut self, now: Instant, waiting: &[QueuedEntry], most: usize) -> Vec<Late> {
        let mut all = Vec::new();
        for entry in waiting {
            let EntryId::Attempt(id) = entry.id else { continue };
            let Some(attempt) = self.all.get_mut(&id) else { continue };
            let Some((prediction, came)) = attempt.prediction.as_mut().filter(|(prediction, _)| !prediction.is_counted)
            else {
                continue;
            };
            if let Some(late) = prediction.late(now.since(*came)).filter(|_| all.len() < most) {
                prediction.is_counted = true;
                all.push(late);
            }
        }
        all
    }

    // ---- preempted and yielding attempts ---------------------------------------------------------------------------

    /// The attempt is going to be stopped, because `by` needs its resources.
    pub(super) fn on_preempted(&mut self, id: AttemptId, by: AttemptId) {
        self.preempting.insert(id, by);
    }

    /// Whether opportunistic attempts yield their CPU to guaranteed ones, and are not stopped.
    pub(super) fn may_yield(&self) -> bool {
        self.yields.are_allowed()
    }

    pub(super) fn is_any_yielding(&self) -> bool {
        self.yields.is_any()
    }

    /// The attempt has no CPU from now on. Its clock stops.
    pub(super) fn on_yield(&mut self, now: Instant, id: AttemptId, by: AttemptId) {
        let due = self.due.iter().find(|(_, other)| *other == id).copied();
        self.forget_due(id);
        let entry = self.all.get_mut(&id).expect("it runs");
        let (before, timeout_left) = (entry.yielded_until.since(now), due.map(|(at, _)| at.since(now)));
        entry.yielding = Some(Yielding { since: now, before, timeout_left, by: Some(by) });
        self.note_yields();
    }

    /// The attempt has its CPU again. Returns how long it has yielded.
    pub(super) fn on_resume(&mut self, now: Instant, id: AttemptId) -> Duration {
        let entry = self.all.get_mut(&id).expect("it runs");
        let Yielding { since, before, timeout_left, .. } = entry.yielding.take().expect("it yields");
        let after = now.since(since);
        entry.yielded_until = now + before + after;
        entry.since += after;
        self.due.extend(timeout_left.map(|left| (now + left, id)));
        if let Some(running) = self.running.iter_mut().find(|one| one.attempt == id) {
            running.expected_end = running.expected_end.map(|end| end + after);
        }
        self.note_yields();
        after
    }

    /// Counts the attempts that yield, and finds when the first of them has yielded for too long.
    pub(super) fn note_yields(&mut self) {
        self.yields.note(self.running.iter().map(|one| &*self.all[&one.attempt]));
    }

    /// Whether an attempt may have yielded for too long.
    pub(super) fn is_yield_due(&self, now: Instant) -> bool {
        self.yields.is_due(now)
    }

    /// The attempts that have yielded for too long, each with the attempt for which it yields.
    pub(super) fn overdue_yields(&self, now: Instant) -> Vec<(AttemptId, Option<AttemptId>)> {
        let overdue = self.running().filter(|(_, entry)| self.yields.is_overdue(now, entry));
        overdue.map(|(id, entry)| (id, entry.yielding.and_then(|yielding| yielding.by))).collect()
    }

    // ---- progress --------------------------------------------------------------------------------------------------

    /// The progress of attempts is measured, with at least this time between two measurements.
    pub(super) fn measure_every(&mut self, every: Option<Duration>) {
        self.watch = Watch::every(every);
    }

    /// An attempt starts to wait for files. How far they have come is reported together with the progress of others.
    pub(super) fn on_lacking_files(&mut self, now: Instant) {
        self.watch.on_lacking(now);
    }

    pub(super) fn is_measurement_due(&self, now: Instant) -> bool {
        self.watch.is_due(now)
    }

    /// The attempts whose progress is measured now, with the minimum time between two measurements. `None` if none is
    /// ever measured.
    pub(super) fn measure(&mut self, now: Instant) -> Option<(Duration, Vec<AttemptId>)> {
        let (every, mut attempts) = self.watch.measure(now, &mut self.running)?;
        // An attempt without CPU is not slow.
        let runs = |entry: &Attempt| matches!(entry.state, State::Running) && entry.yielding.is_none();
        attempts.retain(|attempt| runs(&self.all[attempt]));
        Some((every, attempts))
    }

    // ---- all of them -----------------------------------------------------------------------------------------------

    pub(super) fn next_due(&self) -> Option<Instant> {
        let due = self.due.first().map(|(at, _)| *at);
        [due, self.watch.next_due(), self.yields.next_due()].into_iter().flatten().min()
    }

    /// # Panics
    /// If other attempts run or yield than are counted.
    pub(super) fn check_invariants(&self) {
        let at_executor = self.iter().filter(|(_, attempt)| attempt.is_at_executor()).count();
        assert_eq!(self.running.len(), at_executor, "running attempts and attempts at the executor");
        let yielding = self.iter().filter(|(_, attempt)| attempt.yielding.is_some());
        assert_eq!(yielding.count(), self.yields.count(), "attempts that yield");
    }
}
