//! The measurements of a simulation, from the facts that the roles report and the starts and ends of tasks.

mod altruism;
mod beside;
mod chain;
mod forecast;
mod guarantees;
mod queueing;
mod reading;
mod results;
mod usage;

pub use altruism::{Against, Altruism, QueueExchange};
use beside::Groups;
pub use beside::OfPreset;
pub use chain::Chain;
use chain::{AttemptWaits, ChainMeasure, LastOfStage};
use forecast::ForecastMeasure;
pub use forecast::{Forecast, RunTimes};
use guarantees::GuaranteeMeasure;
pub use guarantees::{Guarantees, QueueGuarantee};
use queueing::QueueMeasure;
pub use queueing::{AcrossNodes, Duplicates, Queueing, Stragglers};
use reading::ReadingMeasure;
pub use reading::{ReadFrom, Reading};
pub use results::{
    Allocation, Busy, Counters, Gantt, GanttStage, Heat, Jain, JobResult, Outcome, Results, Utilization, Watched,
    Window,
};
use usage::ClusterUsage;

use crate::execution::PlannedRun;
use crate::oracle::Allowed;
use amalgam_core::hosting::Fact;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::protocol::{JobOutcome, Rule};
use amalgam_core::role::{Change, LostCause, Record};
use amalgam_core::vocabulary::{
    AttemptId, Duration, EndReason, Ended, Exchange, Instant, JobId, Resources, StageSpec, TaskId, TaskShape,
};
use amalgam_workload::trace::TraceJob;
use std::collections::BTreeSet;

/// The length of the windows over which fairness and utilisation are averaged.
pub const WINDOW: Duration = Duration::from_secs(60);

pub struct Metrics {
    jobs: Vec<JobMeasure>,
    /// Number of jobs that have neither ended nor been refused.
    jobs_left: usize,
    /// The number in the workload of each job id.
    of_id: Vec<Option<u32>>,
    waits: Vec<Duration>,
    allocation: AllocationSamples,
    usage: ClusterUsage,
    counters: Counters,
    queueing: QueueMeasure,
    chain: ChainMeasure,
    /// By the presets that jobs use, if there are several.
    groups: Option<Groups>,
    /// If queues have guarantees.
    guarantees: Option<GuaranteeMeasure>,
    forecast: ForecastMeasure,
    reading: ReadingMeasure,
    last_end: Instant,
    tasks_succeeded: u64,
    /// Sum over the tasks that succeeded of run time times requested CPU, in microseconds and thousandths of a core.
    useful: u128,
    /// The same of the attempts that were preempted.
    preempted: u128,
    has_refused: bool,
    watched_job: Option<WatchedJob>,
    /// Whether the allowances of jobs are recorded for the oracle.
    pub keeps_allowances: bool,
}

/// How many tasks of the watched job ran, whenever that changed.
struct WatchedJob {
    job: u32,
    running: u32,
    points: Vec<(f64, u32)>,
}

/// The measurements of one job of the workload.
struct JobMeasure {
    arrival: Instant,
    started: Instant,
    ended: Option<(Instant, JobOutcome)>,
    refused: Option<String>,
    /// Empty once the job has ended.
    stages: Vec<StageMeasure>,
    /// When the first task of each stage started and the last ended.
    spans: Vec<(Instant, Instant)>,
    /// As reported last, if jobs donate resources.
    exchange: Option<Box<Exchange>>,
    /// Recorded if an oracle is requested.
    allowed: Vec<Allowed>,
}

struct StageMeasure {
    /// When its tasks became ready.
    ready: Instant,
    /// By task: the progress up to its first start. Empty before the first launch.
    launches: Vec<TaskState>,
    tasks: u32,
    /// Tasks that will run or run, once they may run. Only counted if queues have guarantees.
    left: Option<u32>,
    /// The others, by index.
    done: BTreeSet<u32>,
    /// What each task requests.
    each: Resources,
    /// The stages that it depends on.
    after: Vec<u32>,
    last: Option<LastOfStage>,
}

#[derive(Clone, Copy)]
enum TaskState {
    Waiting,
    /// `travelled` is the time in transit to the processes that have passed the launch on.
    Launched {
        at: Instant,
        travelled: Duration,
    },
    Delivered {
        launched: Instant,
        at: Instant,
        travelled: Duration,
    },
    HasStarted,
}

/// The parts of the waiting time of each task that started.
#[derive(Default)]
struct AllocationSamples {
    queue: Vec<Duration>,
    processing: Vec<Duration>,
    communication: Vec<Duration>,
    node: Vec<Duration>,
}

impl Metrics {
    pub fn new(jobs: &[TraceJob], nodes: &[Resources]) -> Metrics {
        let measure = |job: &TraceJob| JobMeasure {
            arrival: Instant(job.arrival.as_micros()),
            started: Instant::ZERO,
            ended: None,
            refused: None,
            stages: job.spec.stages.iter().map(StageMeasure::new).collect(),
            spans: vec![(Instant::NEVER, Instant::ZERO); job.spec.stages.len()],
            exchange: None,
            allowed: Vec::new(),
        };
        Metrics {
            jobs: jobs.iter().map(measure).collect(),
            jobs_left: jobs.len(),
            of_id: Vec::new(),
            waits: Vec::new(),
            allocation: AllocationSamples::default(),
            usage: ClusterUsage::new(jobs.len(), nodes),
            counters: Counters::default(),
            queueing: QueueMeasure::default(),
            chain: ChainMeasure::default(),
            groups: None,
            guarantees: None,
            forecast: ForecastMeasure::default(),
            reading: ReadingMeasure::default(),
            last_end: Instant::ZERO,
            tasks_succeeded: 0,
            preempted: 0,
            useful: 0,
            has_refused: false,
            watched_job: None,
            keeps_allowances: false,
        }
    }

    /// Measures jobs also by the preset that they use. `own` is the preset of the cluster.
    pub fn keep_apart(&mut self, own: &str) {
        self.groups = Some(Groups::new(own));
    }

    /// Measures what queues get of their guarantees, if they have any.
    pub fn measure_guarantees(&mut self, queues: &QueueTree, jobs: &[TraceJob], nodes: &[Resources]) {
        self.guarantees = GuaranteeMeasure::new(queues, jobs, nodes);
    }

    /// Records the number of running tasks of a job.
    pub fn watch(&mut self, job: u32) {
        self.watched_job = Some(WatchedJob { job, running: 0, points: Vec::new() });
    }

    /// The job was admitted with this id.
    pub fn on_admitted(&mut self, job: u32, id: JobId) {
        let place = id.0 as usize;
        if self.of_id.len() <= place {
            self.of_id.resize(place + 1, None);
        }
        self.of_id[place] = Some(job);
    }

    pub fn on_refused(&mut self, now: Instant, job: u32, why: String) {
        let measure = &mut self.jobs[job as usize];
        self.jobs_left -= usize::from(measure.is_left());
        measure.refused = Some(why);
        self.has_refused = true;
        self.usage.deactivate(now, job);
    }

    pub fn on_arrival(&mut self, now: Instant, job: u32) {
        self.jobs[job as usize].arrival = now;
        self.usage.activate(now, job);
    }

    /// The number of a job in the workload.
    pub fn job_of(&self, id: JobId) -> Option<u32> {
        self.of_id.get(id.0 as usize).copied().flatten()
    }

    pub fn on_fact(&mut self, now: Instant, fact: &Fact) {
        if let Some(groups) = &mut self.groups {
            groups.on_fact(fact);
        }
        match fact {
            Fact::Change(change) => self.on_change(now, change),
            Fact::Record(record) => self.on_record(now, record),
        }
    }

    fn on_change(&mut self, now: Instant, change: &Change) {
        match change {
            Change::JobStarted { job } => {
                if let Some(job) = self.job_of(*job) {
                    let measure = &mut self.jobs[job as usize];
                    measure.started = now;
                    measure.stages.iter_mut().for_each(|stage| stage.ready = now);
                    let first = measure.stages.iter().zip(0..).filter(|(stage, _)| stage.after.is_empty());
                    let first: Vec<u32> = first.map(|(_, number)| number).collect();
                    first.into_iter().for_each(|stage| self.want(now, job, stage));
                }
            }
            Change::JobEnded { job, outcome, .. } => {
                if let Some(job) = self.job_of(*job) {
                    self.on_job_ended(now, job, *outcome);
                }
            }
            Change::Launched { attempt, rule, .. } if rule.is_second() => {
                self.counters.launched += 1;
                self.counters.duplicated += 1;
                self.queueing.on_duplicate_launched(*attempt, is_race(*rule));
            }
            Change::Launched { task, .. } => {
                self.counters.launched += 1;
                if let Some(state) = self.state(*task)
                    && !matches!(state, TaskState::HasStarted)
                {
                    *state = TaskState::Launched { at: now, travelled: Duration::ZERO };
                }
            }
            Change::Finished { attempt, task, ended, last, .. } => {
                self.on_finished(now, *attempt, *task, ended);
                if *last {
                    self.want_task(now, *task, false);
                }
            }
            Change::OutputLost { task, .. } => self.want_task(now, *task, true),
            Change::Promoted { .. } => self.counters.promoted += 1,
            Change::Exchanged { job, exchange, .. } => {
                if let Some(job) = self.job_of(*job) {
                    self.jobs[job as usize].exchange = Some(exchange.clone());
                }
            }
            Change::Lost { attempt, cause: LostCause::Superseded, .. } => {
                self.chain.forget(*attempt);
                self.forecast.on_ended(*attempt, None);
                self.queueing.on_superseded(*attempt);
            }
            Change::Lost { cause: LostCause::Copied, .. } => {}
            Change::Lost { attempt, task, cause, last, .. } => {
                if *last {
                    self.want_task(now, *task, false);
                }
                self.chain.forget(*attempt);
                self.forecast.on_ended(*attempt, None);
                let is_refused = matches!(cause, LostCause::NotTaken | LostCause::Refused(_));
                self.counters.lost += u64::from(!is_refused);
                self.counters.refused += u64::from(is_refused);
            }
            _ => {}
        }
    }

    /// The tasks of a stage may run.
    fn want(&mut self, now: Instant, job: u32, stage: u32) {
        let stages = &mut self.jobs[job as usize].stages;
        if let Some((measure, stage)) = self.guarantees.as_mut().zip(stages.get_mut(stage as usize))
            && stage.left.is_none()
        {
            stage.left = Some(stage.tasks);
            measure.on_wanted(now, job, &stage.each, i64::from(stage.tasks));
        }
    }

    /// A task does not run again, or does after all.
    fn want_task(&mut self, now: Instant, task: TaskId, again: bool) {
        let Some(job) = self.job_of(task.job) else { return };
        let stage = self.jobs[job as usize].stages.get_mut(task.stage as usize);
        if let Some((measure, stage)) = self.guarantees.as_mut().zip(stage)
            && let Some(left) = &mut stage.left
            && stage.done.contains(&task.index) == again
        {
            let change = if again { 1 } else { -1 };
            *left = left.saturating_add_signed(change);
            if again {
                stage.done.remove(&task.index);
            } else {
                stage.done.insert(task.index);
            }
            measure.on_wanted(now, job, &stage.each, change.into());
        }
    }

    fn on_job_ended(&mut self, now: Instant, job: u32, outcome: JobOutcome) {
        let measure = &mut self.jobs[job as usize];
        self.jobs_left -= usize::from(measure.is_left());
        measure.ended = Some((now, outcome));
        let stages = std::mem::take(&mut measure.stages);
        if let Some(measure) = &mut self.guarantees {
            let left = stages.iter().filter_map(|stage| Some((&stage.each, i64::from(stage.left?))));
            left.for_each(|(each, tasks)| measure.on_wanted(now, job, each, -tasks));
        }
        if outcome == JobOutcome::Succeeded {
            let ends = stages.into_iter().map(|stage| (stage.last, stage.after));
            self.chain.on_job(&ends.collect::<Vec<_>>());
        }
        self.usage.deactivate(now, job);
        self.last_end = self.last_end.max(now);
    }

    fn on_finished(&mut self, now: Instant, attempt: AttemptId, task: TaskId, ended: &Ended) {
        let took = ended.reason.is_success().then(|| ended.usage.run_time());
        let ready = self.stage(task).map_or(now, |stage| stage.ready);
        let last = self.chain.on_ended(now, attempt, ready, took);
        if let Some(stage) = self.stage(task) {
            stage.last = last.or(stage.last);
            let useful = took.map_or(0, |took| u128::from(took.0) * u128::from(stage.each.cpu_millis()));
            self.useful += useful;
        }
        self.forecast.on_ended(attempt, took);
        if ended.reason.is_success() {
            self.tasks_succeeded += 1;
            self.usage.on_succeeded();
        }
        match ended.reason {
            EndReason::Exit(0) => {}
            EndReason::Preempted => {
                self.counters.preempted += 1;
                let cpu = self.stage(task).map_or(0, |stage| stage.each.cpu_millis());
                self.preempted += u128::from(ended.usage.run_time().0) * u128::from(cpu);
            }
            EndReason::Shed => self.counters.shed += 1,
            _ => self.counters.failed += 1,
        }
    }

    fn on_record(&mut self, now: Instant, record: &Record) {
        match record {
            Record::StageReady { job, stage } => {
                if let Some(job) = self.job_of(*job) {
                    if let Some(stage) = self.jobs[job as usize].stages.get_mut(*stage as usize) {
                        stage.ready = now;
                    }
                    self.want(now, job, *stage);
                }
            }
            Record::Allowed { job, most } if self.keeps_allowances => {
                if let Some(job) = self.job_of(*job) {
                    let job = &mut self.jobs[job as usize];
                    job.allowed.push((now.since(job.arrival), **most));
                }
            }
            Record::Started { attempt, waited, expected: Some(expected), opportunistic, promoted, node, .. } => {
                let (is_opportunistic, is_promoted) = (*opportunistic, *promoted);
                let waits = AttemptWaits { waited: *waited, is_opportunistic, is_promoted, ..AttemptWaits::default() };
                self.chain.on_started(*attempt, waits);
                self.queueing.on_started(*waited, *expected, *opportunistic, *promoted);
                if !opportunistic && !promoted {
                    self.queueing.on_started_at(now, *node, *waited);
                }
            }
            Record::WaitedInVain { waited, expected, .. } => self.queueing.on_waited_in_vain(*waited, *expected),
            Record::Prediction { attempt, prediction, start, run, .. } => {
                self.forecast.on_started(*attempt, prediction, start, *run);
            }
            Record::Duplicated { attempt, trigger, .. } => self.queueing.on_triggered(*attempt, *trigger),
            Record::Straggles { attempt, .. } => self.queueing.on_caught(*attempt),
            Record::Overtaken { .. } => self.queueing.on_overtaken(),
            Record::SlowInput { .. } => self.queueing.on_slow_input(),
            Record::Retried { .. } => self.counters.retried += 1,
            Record::Repartitioned { .. } => self.counters.repartitioned += 1,
            Record::Stale { .. } | Record::StaleGrant { .. } => self.counters.stale += 1,
            Record::NodeLost { .. } => self.counters.nodes_lost += 1,
            _ => {}
        }
    }

    /// An attempt started that is made to take several times as long as it should.
    pub fn on_straggler(&mut self, attempt: AttemptId, run: &PlannedRun) {
        self.queueing.on_straggler(attempt, run.whole, run.nominal);
    }

    /// An attempt started that reads these bytes from its node, its rack and elsewhere, and takes `longer` more because
    /// of it.
    pub fn on_reading(&mut self, attempt: AttemptId, read: [u64; 3], longer: Duration, from_tasks: bool) {
        self.reading.on_started(attempt, read, longer, from_tasks);
    }

    /// An attempt ended. The bytes count only if it succeeded.
    pub fn on_read(&mut self, attempt: AttemptId, is_success: bool) {
        self.reading.on_ended(attempt, is_success);
    }

    /// A launch arrived at its node after `travelled` in transit.
    pub fn on_launch_delivered(&mut self, now: Instant, task: TaskId, travelled: Duration) {
        if let Some(state) = self.state(task)
            && let TaskState::Launched { at: launched, travelled: before } = *state
        {
            let travelled = before + travelled;
            *state = TaskState::Delivered { launched, at: now, travelled };
        }
    }

    /// A launch arrived, after `way` in transit, at the master of its node, which passes it on.
    pub fn on_launch_passed(&mut self, task: TaskId, way: Duration) {
        if let Some(TaskState::Launched { travelled, .. }) = self.state(task) {
            *travelled += way;
        }
    }

    /// A task started. Of the time since it was ready, `launch` was spent on creating its process.
    fn on_start(&mut self, now: Instant, task: TaskId, launch: Duration) {
        let Some(ready) = self.stage(task).map(|stage| stage.ready) else { return };
        let Some(state) = self.state(task) else { return };
        let TaskState::Delivered { launched, at, travelled } = *state else { return };
        *state = TaskState::HasStarted;
        let wait = now.since(ready);
        let (queue, communication) = (launched.since(ready), travelled);
        let node = now.since(at) - launch;
        self.waits.push(wait);
        if let Some(groups) = &mut self.groups {
            groups.on_first_start(task.job, wait);
        }
        self.allocation.queue.push(queue);
        self.allocation.communication.push(communication);
        self.allocation.node.push(node);
        self.allocation.processing.push(wait - queue - communication - node);
    }

    fn stage(&mut self, task: TaskId) -> Option<&mut StageMeasure> {
        let job = self.job_of(task.job)?;
        self.jobs[job as usize].stages.get_mut(task.stage as usize)
    }

    fn state(&mut self, task: TaskId) -> Option<&mut TaskState> {
        let stage = self.stage(task)?;
        if stage.launches.is_empty() {
            stage.launches = vec![TaskState::Waiting; stage.tasks as usize];
        }
        stage.launches.get_mut(task.index as usize)
    }

    // ---- running attempts ------------------------------------------------------------------------------------------

    pub fn on_started(&mut self, now: Instant, node: usize, task: TaskId, shape: &TaskShape, launch: Duration) {
        self.on_start(now, task, launch);
        if let Some(job) = self.job_of(task.job) {
            self.usage.on_started(now, job, node, shape);
            self.hold(now, job, &shape.resources, 1);
            self.count_watched(now, job, 1);
            let span = self.span(job, task.stage);
            span.0 = span.0.min(now);
        }
    }

    /// An attempt that had the shape `before` is guaranteed from now on.
    pub fn on_promoted(&mut self, now: Instant, task: TaskId, before: &TaskShape) {
        // Attempts of unknown jobs were not counted when they started.
        if self.job_of(task.job).is_some() {
            self.usage.on_promoted(now, before);
        }
    }

    /// An attempt with this shape has no CPU from now on.
    pub fn on_yielded(&mut self, now: Instant, node: usize, attempt: AttemptId, task: TaskId, shape: &TaskShape) {
        if let Some(job) = self.job_of(task.job) {
            self.usage.on_yielded(now, job, node, shape);
            self.hold(now, job, &Resources::new(shape.resources.cpu_millis(), 0), -1);
            self.queueing.on_yielded(now, attempt);
        }
    }

    /// An attempt with this shape has its CPU again.
    pub fn on_resumed(&mut self, now: Instant, node: usize, attempt: AttemptId, task: TaskId, shape: &TaskShape) {
        if let Some(job) = self.job_of(task.job) {
            self.usage.on_resumed(now, job, node, shape);
            self.hold(now, job, &Resources::new(shape.resources.cpu_millis(), 0), 1);
            self.note_resumed(now, attempt);
        }
    }

    fn note_resumed(&mut self, now: Instant, attempt: AttemptId) {
        if let Some(yielded) = self.queueing.on_resumed(now, attempt) {
            self.chain.on_yielded(attempt, yielded);
        }
    }

    pub fn on_ended(&mut self, now: Instant, node: usize, attempt: AttemptId, task: TaskId, shape: &TaskShape) {
        self.note_resumed(now, attempt);
        if let Some(job) = self.job_of(task.job) {
            self.usage.on_ended(now, job, node, shape);
            self.hold(now, job, &shape.resources, -1);
            self.count_watched(now, job, -1);
            self.span(job, task.stage).1 = now;
        }
    }

    fn hold(&mut self, now: Instant, job: u32, each: &Resources, attempts: i64) {
        if let Some(measure) = &mut self.guarantees {
            measure.on_held(now, job, each, attempts);
        }
    }

    fn count_watched(&mut self, now: Instant, job: u32, change: i32) {
        if let Some(watched) = self.watched_job.as_mut().filter(|watched| watched.job == job) {
            watched.running = watched.running.checked_add_signed(change).expect("only a running task ends");
            watched.points.push((now.0 as f64 / 1e6, watched.running));
        }
    }

    fn span(&mut self, job: u32, stage: u32) -> &mut (Instant, Instant) {
        &mut self.jobs[job as usize].spans[stage as usize]
    }

    /// A window of [`WINDOW`] is over.
    pub fn on_window(&mut self, now: Instant) {
        self.usage.end_window(now);
        if let Some(measure) = &mut self.guarantees {
            measure.end_window(now);
        }
    }

    pub fn jobs_left(&self) -> usize {
        self.jobs_left
    }

    pub fn has_refused(&self) -> bool {
        self.has_refused
    }

    /// Whether a job has arrived and not ended.
    pub fn is_running(&self) -> bool {
        self.usage.is_any_active()
    }

    pub fn is_any_task_running(&self) -> bool {
        self.usage.running() > 0
    }
}

/// Whether the duplicate is of an attempt that has started, not of one that waits.
fn is_race(rule: Rule) -> bool {
    !matches!(rule, Rule::Duplicate | Rule::Exploration)
}

impl JobMeasure {
    fn is_left(&self) -> bool {
        self.ended.is_none() && self.refused.is_none()
    }
}

impl StageMeasure {
    fn new(stage: &StageSpec) -> StageMeasure {
        let (tasks, after) = (stage.tasks.len(), stage.after.clone());
        let each = stage.resources.basic;
        StageMeasure {
            ready: Instant::ZERO,
            launches: Vec::new(),
            tasks,
            left: None,
            done: BTreeSet::new(),
            each,
            after,
            last: None,
        }
    }
}
