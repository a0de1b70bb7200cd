//! Metrics for Prometheus. No label names a job, because the number of jobs is unbounded.

use crate::api::AttemptCounts;
use crate::views::attempt_counts;
use amalgam_core::dispatch::JobState;
use amalgam_core::hosting::{Fact, Roles};
use amalgam_core::role::{Change, LostCause, Record};
use amalgam_core::vocabulary::{AllocationTime, EndReason, Instant};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

type Label = Vec<(&'static str, &'static str)>;

pub struct Metrics {
    registry: Registry,
    jobs_submitted: Counter,
    jobs_ended: Family<Label, Counter>,
    attempts_launched: Counter,
    attempts_ended: Family<Label, Counter>,
    attempts_lost: Counter,
    launches_refused: Counter,
    repartitions: Counter,
    attempts_preempted: Counter,
    attempts_shed: Counter,
    attempts_superseded: Counter,
    tokens_refused: Counter,
    stragglers: Counter,
    stragglers_overtaken: Counter,
    slow_inputs: Counter,
    pub file_traffic: FileTraffic,
    tasks_retried: Counter,
    ended: AtomicU64,
    launch_seconds: Histogram,
    allocation_seconds: Family<Label, Histogram, fn() -> Histogram>,
    run_seconds: Histogram,
    commit_seconds: Histogram,
    open_tasks: Gauge,
    running_attempts: Gauge,
    running_by_kind: Family<Label, Gauge>,
    waiting_at_nodes: Gauge,
    jobs: Family<Label, Gauge>,
    nodes: Family<Label, Gauge>,
}

/// Files of tasks that nodes get from other nodes.
#[derive(Clone, Default)]
pub struct FileTraffic {
    /// Transfers directly between two nodes.
    pub arranged: Counter,
    /// Bytes that passed this process.
    pub forwarded_bytes: Counter,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let seconds = |first| Histogram::new(exponential_buckets(first, 2.0, 20));
        let mut metrics = Metrics {
            registry: Registry::with_prefix("amalgam"),
            jobs_submitted: Counter::default(),
            jobs_ended: Family::default(),
            attempts_launched: Counter::default(),
            attempts_ended: Family::default(),
            attempts_lost: Counter::default(),
            launches_refused: Counter::default(),
            repartitions: Counter::default(),
            attempts_preempted: Counter::default(),
            attempts_shed: Counter::default(),
            attempts_superseded: Counter::default(),
            tokens_refused: Counter::default(),
            stragglers: Counter::default(),
            stragglers_overtaken: Counter::default(),
            slow_inputs: Counter::default(),
            file_traffic: FileTraffic::default(),
            tasks_retried: Counter::default(),
            ended: AtomicU64::new(0),
            launch_seconds: seconds(0.0001),
            allocation_seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.0001, 2.0, 20))),
            run_seconds: seconds(0.001),
            commit_seconds: seconds(0.00002),
            open_tasks: Gauge::default(),
            running_attempts: Gauge::default(),
            running_by_kind: Family::default(),
            waiting_at_nodes: Gauge::default(),
            jobs: Family::default(),
            nodes: Family::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("jobs_submitted", "Jobs accepted", self.jobs_submitted.clone());
        registry.register("jobs_ended", "Jobs ended, by outcome", self.jobs_ended.clone());
        registry.register("attempts_launched", "Attempts launched", self.attempts_launched.clone());
        registry.register("attempts_ended", "Attempts ended, by reason", self.attempts_ended.clone());
        registry.register("attempts_lost", "Attempts lost, except superseded ones", self.attempts_lost.clone());
        let not_taken = "Lost attempts whose launch the master of a federation's cluster refused";
        registry.register("launches_refused", not_taken, self.launches_refused.clone());
        let lent = "Launches that this master accepted on a node of another global master's partition";
        registry.register("repartitions", lent, self.repartitions.clone());
        let preempted = "Opportunistic attempts preempted for guaranteed work";
        registry.register("attempts_preempted", preempted, self.attempts_preempted.clone());
        registry.register("attempts_shed", "Opportunistic attempts shed from node queues", self.attempts_shed.clone());
        let superseded = "Attempts superseded by another attempt of their task";
        registry.register("attempts_superseded", superseded, self.attempts_superseded.clone());
        let refused = "Launches that a node of this process refused because of an invalid token";
        registry.register("tokens_refused", refused, self.tokens_refused.clone());
        let stragglers = "Running attempts that were slow and got a duplicate";
        registry.register("stragglers", stragglers, self.stragglers.clone());
        let overtaken = "Stragglers whose duplicate finished first";
        registry.register("stragglers_overtaken", overtaken, self.stragglers_overtaken.clone());
        let slow = "Input files that arrived slowly, whose tasks ran again on another node";
        registry.register("slow_inputs", slow, self.slow_inputs.clone());
        let FileTraffic { arranged, forwarded_bytes } = self.file_traffic.clone();
        registry.register("files_direct", "Transfers of files that this server arranged between nodes", arranged);
        registry.register("files_forwarded_bytes", "Bytes of files that went through this server", forwarded_bytes);
        registry.register("tasks_retried", "Tasks tried again", self.tasks_retried.clone());
        let launch = "Time from the grant to the start of the process";
        registry.register_with_unit("launch", launch, Unit::Seconds, self.launch_seconds.clone());
        let parts =
            "Time from when a task is ready to its first start, by part: queue, processing, communication, node";
        registry.register_with_unit("allocation", parts, Unit::Seconds, self.allocation_seconds.clone());
        let mut histogram = |name, help, histogram: &Histogram| {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        };
        histogram("run", "Time from the start of an attempt to its end", &self.run_seconds);
        histogram("commit", "Time to make a group of facts durable", &self.commit_seconds);
        registry.register("open_tasks", "Tasks requested and not granted", self.open_tasks.clone());
        registry.register("running_attempts", "Attempts launched and not ended", self.running_attempts.clone());
        let by_kind = "Attempts whose processes run, by execution type";
        registry.register("running_attempts_by_kind", by_kind, self.running_by_kind.clone());
        let waiting = "Attempts sent to nodes and not started";
        registry.register("waiting_attempts", waiting, self.waiting_at_nodes.clone());
        registry.register("jobs", "Jobs known, by state", self.jobs.clone());
        registry.register("nodes", "Nodes known, by state", self.nodes.clone());
    }

    pub fn take_in<'a>(&self, facts: impl Iterator<Item = &'a Fact>) {
        for fact in facts {
            match fact {
                Fact::Change(Change::JobAdmitted { .. }) => {
                    self.jobs_submitted.inc();
                }
                Fact::Change(Change::JobEnded { outcome, .. }) => {
                    self.jobs_ended
                        .get_or_create(&vec![("outcome", crate::api::JobState::of_outcome(*outcome).word())])
                        .inc();
                }
                Fact::Change(Change::Launched { .. }) => {
                    self.attempts_launched.inc();
                }
                Fact::Change(Change::Finished { ended, .. }) => {
                    self.ended.fetch_add(1, Ordering::Relaxed);
                    self.attempts_ended.get_or_create(&vec![("reason", ended.reason.label())]).inc();
                    self.run_seconds.observe(ended.usage.wall.as_secs_f64());
                    match ended.reason {
                        EndReason::Preempted => {
                            self.attempts_preempted.inc();
                        }
                        EndReason::Shed => {
                            self.attempts_shed.inc();
                        }
                        _ => {}
                    }
                }
                Fact::Change(Change::Lost { cause: LostCause::Superseded, .. }) => {
                    self.attempts_superseded.inc();
                }
                Fact::Change(Change::Lost { cause, .. }) => {
                    self.attempts_lost.inc();
                    if matches!(cause, LostCause::Refused(_)) {
                        self.launches_refused.inc();
                    }
                }
                Fact::Record(Record::Started { waited, allocation, .. }) => {
                    self.launch_seconds.observe(waited.as_secs_f64());
                    allocation.iter().for_each(|time| self.observe_allocation(time));
                }
                Fact::Record(Record::TokenRefused { .. }) => {
                    self.tokens_refused.inc();
                }
                Fact::Record(Record::Straggles { .. }) => {
                    self.stragglers.inc();
                }
                Fact::Record(Record::SlowInput { .. }) => {
                    self.slow_inputs.inc();
                }
                Fact::Record(Record::Overtaken { .. }) => {
                    self.stragglers_overtaken.inc();
                }
                Fact::Record(Record::Repartitioned { .. }) => {
                    self.repartitions.inc();
                }
                Fact::Record(Record::Retried { .. }) => {
                    self.tasks_retried.inc();
                }
                _ => {}
            }
        }
    }

    fn observe_allocation(&self, time: &AllocationTime) {
        let AllocationTime { queue, processing, communication, node } = *time;
        let parts = [("queue", queue), ("processing", processing), ("communication", communication), ("node", node)];
        for (part, length) in parts {
            self.allocation_seconds.get_or_create(&vec![("part", part)]).observe(length.as_secs_f64());
        }
    }

    /// Number of attempts that have ended since the process started.
    pub fn tasks_ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    pub fn committed(&self, took: Duration) {
        self.commit_seconds.observe(took.as_secs_f64());
    }

    /// All metrics in Prometheus' text format. Sets the gauges to the current state of the roles.
    pub fn render(&self, roles: &Roles, now: Instant) -> String {
        if let Some(dispatch) = roles.dispatch() {
            self.open_tasks.set(dispatch.scheduler.open_tasks() as i64);
            self.jobs.clear();
            for job in &dispatch.job_statuses(now) {
                let state = match &job.state {
                    JobState::Pending => "pending",
                    JobState::Started => "running",
                    JobState::Ended(end) => crate::api::JobState::of_outcome(end.outcome).word(),
                };
                self.jobs.get_or_create(&vec![("state", state)]).inc();
            }
            self.nodes.clear();
            for node in crate::views::nodes(roles, now) {
                self.nodes.get_or_create(&vec![("state", node.state.word())]).inc();
            }
        }
        self.running_attempts.set(roles.jobs.values().map(|manager| manager.running().count() as i64).sum());
        let mut attempts = AttemptCounts::default();
        roles.jobs.values().for_each(|manager| attempts.add(&attempt_counts(manager)));
        let AttemptCounts { guaranteed, opportunistic, at_nodes, .. } = attempts;
        for (kind, count) in [("guaranteed", guaranteed), ("opportunistic", opportunistic)] {
            self.running_by_kind.get_or_create(&vec![("kind", kind)]).set(count as i64);
        }
        self.waiting_at_nodes.set(at_nodes as i64);
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
