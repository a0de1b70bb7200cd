//! An executor without processes: tasks run for as long as the workload specifies.
//!
//! An attempt that yields its CPU makes no progress. This is the worst case: a real process of the lowest priority gets
//! the CPU time that the others leave; here they leave none.

use crate::execution::PlannedRun;
use amalgam_core::protocol::{Executing, ExecutorReport, TaskSignal, ToExecutor};
use amalgam_core::vocabulary::resources::CPU;
use amalgam_core::vocabulary::{
    AttemptId, Chance, Digest, Duration, EndReason, Ended, EndedFiles, ExecutionType, Instant, LaunchOrder, NodeId,
    OutputFile, Resources, Sample, StoredFile, TaskId, TaskShape, TaskTemplate, Usage, WHOLE, files,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The executor of one node. It outlives its agent and keeps every end until it is acknowledged.
#[derive(Default)]
pub struct Executor {
    /// In the order of their ids. A list, because a node has few attempts at a time and the list's memory is reused.
    attempts: Vec<(AttemptId, Attempt)>,
    /// The files of the node, with their sizes in bytes.
    files: BTreeMap<Digest, u64>,
    /// Size of each file that a task writes.
    file_bytes: u64,
    /// Whether, in every other job, each attempt writes different content.
    files_vary: bool,
}

enum Attempt {
    Running(Running),
    Ended(Arc<Ended>),
}

struct Running {
    order: Box<LaunchOrder>,
    since: Instant,
    /// Run time if it does not fail, and if it is not slowed down either. Zero before its run is planned.
    whole: Duration,
    nominal: Duration,
    /// How long it works until it ends on its own, and the reason of that end. `None` before its run is planned.
    end: Option<Box<(Duration, EndReason)>>,
    /// Since when it yields its CPU, and for how long it yielded before that.
    yields_since: Option<Instant>,
    yielded: Duration,
    /// It ignores requests to terminate and has to be killed.
    is_stubborn: bool,
    /// Why it was asked to end, if it was; this becomes the reason of its end. Boxed, because most attempts are not
    /// asked.
    asked: Option<Box<EndReason>>,
}

/// An effect of an order.
pub enum Reaction {
    /// A report to the agent.
    Report(ExecutorReport),
    /// A process runs from now on. The simulation has to end it.
    Started { attempt: AttemptId, task: TaskId, template: Arc<TaskTemplate> },
    /// A file has to be transferred from another node.
    Fetch { file: StoredFile, from: NodeId },
    /// A running process was stopped early.
    Ended { order: Box<LaunchOrder>, held: Arc<TaskShape>, reason: EndReason },
    /// A running attempt that had the shape `before` is guaranteed from now on.
    Promoted { task: TaskId, before: Arc<TaskShape> },
    /// A running process has no CPU from now on.
    Yielded { attempt: AttemptId, task: TaskId, shape: Arc<TaskShape> },
    /// A yielding process has its CPU again and ends for `reason` after `left` more run time.
    Resumed { attempt: AttemptId, task: TaskId, shape: Arc<TaskShape>, left: Duration, reason: EndReason },
}

impl Executor {
    /// An executor whose tasks write files of this size.
    pub fn leaving(file_bytes: u64, files_vary: bool) -> Executor {
        Executor { file_bytes, files_vary, ..Executor::default() }
    }

    /// Replaces the executor with a new one without its attempts and files. Returns the old one.
    pub fn die(&mut self) -> Executor {
        let next = Executor::leaving(self.file_bytes, self.files_vary);
        std::mem::replace(self, next)
    }

    pub fn on_order(&mut self, now: Instant, order: ToExecutor, out: &mut Vec<Reaction>) {
        match order {
            ToExecutor::Launch(order) => self.on_launch(now, order, out),
            ToExecutor::Signal { attempt, signal, reason } => self.on_signal(now, attempt, signal, reason, out),
            ToExecutor::Promote { attempt, grant } => {
                if let Some(Attempt::Running(running)) = self.attempt(attempt) {
                    let (before, was) = (running.holds(), Arc::clone(&running.order.template.shape));
                    running.order.promote(grant);
                    if *was != *running.order.template.shape {
                        out.push(Reaction::Promoted { task: running.order.task, before: Arc::new(before) });
                    }
                }
            }
            ToExecutor::SetTimeout { attempt, timeout } => {
                if let Some(Attempt::Running(running)) = self.attempt(attempt) {
                    running.order.set_timeout(timeout);
                }
            }
            ToExecutor::Yield { attempt } => {
                if let Some(Attempt::Running(running)) = self.attempt(attempt)
                    && running.yields_since.is_none()
                {
                    running.yields_since = Some(now);
                    let (task, shape) = (running.order.task, Arc::clone(&running.order.template.shape));
                    out.push(Reaction::Yielded { attempt, task, shape });
                }
            }
            ToExecutor::Resume { attempt } => self.resume(now, attempt, out),
            ToExecutor::Acknowledge { attempt } => {
                if let Ok(at) = self.place(attempt)
                    && let (_, Attempt::Ended(_)) = self.attempts[at]
                {
                    self.attempts.remove(at);
                }
            }
            ToExecutor::Measure { node, attempts } => {
                let running = |attempt: &AttemptId| match &self.attempts[self.place(*attempt).ok()?].1 {
                    Attempt::Running(running) => Some((*attempt, running.sample(now))),
                    Attempt::Ended(_) => None,
                };
                let samples = attempts.iter().filter_map(running).collect();
                out.push(Reaction::Report(ExecutorReport::Measured { node, samples }));
            }
            ToExecutor::Fetch { file, from, .. } => out.push(Reaction::Fetch { file, from }),
            ToExecutor::Drop { files, .. } => self.files.retain(|digest, _| !files.contains(digest)),
            ToExecutor::List { node } => self.list(now, node, out),
        }
    }

    fn on_launch(&mut self, now: Instant, order: Box<LaunchOrder>, out: &mut Vec<Reaction>) {
        let attempt = order.attempt;
        if let Some(report) = self.lacking(&order).and_then(|ended| self.refuse_with(&order, ended)) {
            return out.push(Reaction::Report(report));
        }
        match self.place(attempt) {
            Ok(at) => {
                if let Attempt::Ended(ended) = &self.attempts[at].1 {
                    return out.push(Reaction::Report(finished(attempt, ended)));
                }
            }
            Err(at) => {
                out.push(Reaction::Started { attempt, task: order.task, template: Arc::clone(&order.template) });
                let (whole, nominal) = (Duration::ZERO, Duration::ZERO);
                let (yields_since, yielded, end) = (None, Duration::ZERO, None);
                let since = now;
                let running = Running {
                    order,
                    since,
                    whole,
                    nominal,
                    end,
                    yields_since,
                    yielded,
                    is_stubborn: false,
                    asked: None,
                };
                self.attempts.insert(at, (attempt, Attempt::Running(running)));
            }
        }
        out.push(Reaction::Report(ExecutorReport::Started { attempt, pid: 0 }));
    }

    fn on_signal(
        &mut self,
        now: Instant,
        attempt: AttemptId,
        signal: TaskSignal,
        reason: EndReason,
        out: &mut Vec<Reaction>,
    ) {
        let Some(Attempt::Running(running)) = self.attempt(attempt) else { return };
        let reason = (**running.asked.get_or_insert_with(|| Box::new(reason))).clone();
        if running.is_stubborn && signal == TaskSignal::Terminate {
            return;
        }
        let held = Arc::new(running.holds());
        if let Some((order, ended)) = self.end(now, attempt, reason.clone()) {
            out.push(Reaction::Ended { order, held, reason });
            out.push(Reaction::Report(ended));
        }
    }

    fn resume(&mut self, now: Instant, attempt: AttemptId, out: &mut Vec<Reaction>) {
        if let Some(Attempt::Running(running)) = self.attempt(attempt)
            && let Some(since) = running.yields_since.take()
        {
            running.yielded += now.since(since);
            let (length, reason) = running.end.as_deref().cloned().unwrap_or((Duration::ZERO, EndReason::Exit(0)));
            let left = Duration(length.0.saturating_sub(running.running_for(now).0));
            let (task, shape) = (running.order.task, Arc::clone(&running.order.template.shape));
            out.push(Reaction::Resumed { attempt, task, shape, left, reason });
        }
    }

    /// Reports the ends that were not acknowledged, the files, and the running attempts.
    fn list(&self, now: Instant, node: NodeId, out: &mut Vec<Reaction>) {
        out.extend(self.attempts.iter().filter_map(|(attempt, state)| match state {
            Attempt::Ended(ended) => Some(Reaction::Report(finished(*attempt, ended))),
            Attempt::Running(_) => None,
        }));
        if !self.files.is_empty() {
            let stored = |(&digest, &bytes): (&Digest, &u64)| StoredFile { digest, bytes };
            let files = self.files.iter().map(stored).collect();
            out.push(Reaction::Report(ExecutorReport::Stored { node, files }));
        }
        let attempts = self.running().map(|running| running.describe(now)).collect();
        out.push(Reaction::Report(ExecutorReport::Executing { attempts }));
    }

    /// The position of an attempt, or the position to insert it at.
    fn place(&self, attempt: AttemptId) -> Result<usize, usize> {
        self.attempts.binary_search_by_key(&attempt, |(id, _)| *id)
    }

    fn attempt(&mut self, attempt: AttemptId) -> Option<&mut Attempt> {
        self.place(attempt).ok().map(|at| &mut self.attempts[at].1)
    }

    fn running(&self) -> impl Iterator<Item = &Running> {
        self.attempts.iter().filter_map(|(_, state)| match state {
            Attempt::Running(running) => Some(running),
            Attempt::Ended(_) => None,
        })
    }

    /// The process of this order cannot be started, for this reason. `None` if the attempt runs already or has ended.
    pub fn refuse(&mut self, order: &LaunchOrder, reason: EndReason) -> Option<ExecutorReport> {
        self.refuse_with(order, Ended::without_run(reason))
    }

    fn refuse_with(&mut self, order: &LaunchOrder, ended: Arc<Ended>) -> Option<ExecutorReport> {
        let attempt = order.attempt;
        let at = self.place(attempt).err()?;
        self.attempts.insert(at, (attempt, Attempt::Ended(Arc::clone(&ended))));
        Some(ExecutorReport::Finished { attempt, ended })
    }

    /// The end of an order whose input files are not all on the node; `None` if they are.
    fn lacking(&self, order: &LaunchOrder) -> Option<Arc<Ended>> {
        let gone = order.inputs.iter().filter(|input| !self.has(&input.digest));
        let missing: Vec<(Digest, NodeId)> = gone.map(|input| (input.digest, order.node)).collect();
        if missing.is_empty() {
            return None;
        }
        let mut ended = Ended::without_run(EndReason::NoInput("an input file is not on the node any more".to_owned()));
        Arc::make_mut(&mut ended).files = Some(Box::new(EndedFiles { outputs: Vec::new(), missing }));
        Some(ended)
    }

    /// The input files of a running attempt.
    pub fn inputs_of(&self, attempt: AttemptId) -> Option<impl Iterator<Item = Digest>> {
        match self.place(attempt).map(|at| &self.attempts[at].1) {
            Ok(Attempt::Running(running)) => Some(running.order.inputs.iter().map(|input| input.digest)),
            _ => None,
        }
    }

    pub fn has(&self, digest: &Digest) -> bool {
        self.files.contains_key(digest)
    }

    /// Removes a file that is damaged.
    pub fn remove(&mut self, digest: &Digest) {
        self.files.remove(digest);
    }

    /// Stores a file that was fetched.
    pub fn store(&mut self, file: StoredFile) {
        self.files.insert(file.digest, file.bytes);
    }

    /// The files that an attempt writes. All attempts of a task write the same content, as deterministic programs do,
    /// unless files vary.
    fn outputs(&self, order: &LaunchOrder) -> Option<Box<EndedFiles>> {
        let varies = self.files_vary && order.task.job.0.is_multiple_of(2);
        let writer = if varies { order.attempt.to_string() } else { order.task.to_string() };
        let file = |name: &String| {
            let name = files::name_for(name, order.index);
            let mut chance = Chance::new(order.task.job.0, &format!("{writer}/{name}"));
            OutputFile {
                name,
                digest: Digest(std::array::from_fn(|_| chance.below(256_u64) as u8)),
                bytes: self.file_bytes,
            }
        };
        let outputs: Vec<OutputFile> = order.template.outputs.iter().map(file).collect();
        (!outputs.is_empty()).then(|| Box::new(EndedFiles { outputs, missing: Vec::new() }))
    }

    /// Sets the planned run of a running attempt.
    pub fn set_run(&mut self, attempt: AttemptId, run: &PlannedRun) {
        if let Some(Attempt::Running(running)) = self.attempt(attempt) {
            (running.whole, running.nominal) = (run.whole, run.nominal);
            running.end = Some(Box::new((run.length, run.reason.clone())));
        }
    }

    /// From now on only a kill can stop the attempt early.
    pub fn make_stubborn(&mut self, attempt: AttemptId) {
        if let Some(Attempt::Running(running)) = self.attempt(attempt) {
            running.is_stubborn = true;
        }
    }

    /// Whether the attempt has worked for the whole length of its planned run. Time in which it yielded does not count.
    pub fn is_done(&self, now: Instant, attempt: AttemptId) -> bool {
        match self.place(attempt).map(|at| &self.attempts[at].1) {
            Ok(Attempt::Running(running)) => {
                let length = running.end.as_deref().map_or(Duration::ZERO, |(length, _)| *length);
                running.yields_since.is_none() && running.running_for(now) >= length
            }
            _ => false,
        }
    }

    /// The orders of the running attempts, and the resources that each attempt held.
    pub fn into_running(self) -> impl Iterator<Item = (Box<LaunchOrder>, TaskShape)> {
        self.attempts.into_iter().filter_map(|(_, state)| match state {
            Attempt::Running(running) => {
                let held = running.holds();
                Some((running.order, held))
            }
            Attempt::Ended(_) => None,
        })
    }

    /// Number of ends that were not acknowledged.
    pub fn ends(&self) -> usize {
        self.attempts.len() - self.running().count()
    }

    /// CPU that running attempts hold, in thousandths of a core.
    pub fn used_cpu(&self) -> u64 {
        self.running().map(|running| u64::from(running.holds().resources.cpu_millis())).sum()
    }

    /// The part of it that opportunistic attempts hold.
    pub fn opportunistic_cpu(&self) -> u64 {
        let shapes = self.running().map(Running::holds);
        let opportunistic = shapes.filter(|shape| shape.execution == ExecutionType::Opportunistic);
        opportunistic.map(|shape| u64::from(shape.resources.cpu_millis())).sum()
    }

    /// Ends the process of an attempt; `None` if it had ended before.
    pub fn end(
        &mut self,
        now: Instant,
        attempt: AttemptId,
        reason: EndReason,
    ) -> Option<(Box<LaunchOrder>, ExecutorReport)> {
        let at = self.place(attempt).ok()?;
        let Attempt::Running(running) = &mut self.attempts[at].1 else { return None };
        let (wall, run_time) = (now.since(running.since), running.running_for(now));
        let reason = running.asked.take().map_or(reason, |asked| *asked);
        let yielded = Duration(wall.0 - run_time.0);
        let usage = Usage { wall, yielded, cpu: running.cpu(run_time), ..Usage::default() };
        let Attempt::Running(running) = &self.attempts[at].1 else { unreachable!("the attempt was running") };
        let files = if reason.is_success() { self.outputs(&running.order) } else { None };
        for file in files.iter().flat_map(|files| &files.outputs) {
            self.files.insert(file.digest, file.bytes);
        }
        let ended = Arc::new(Ended { reason, usage, message: None, files });
        let state = &mut self.attempts[at].1;
        let Attempt::Running(running) = std::mem::replace(state, Attempt::Ended(Arc::clone(&ended))) else {
            unreachable!("the attempt was running")
        };
        Some((running.order, ExecutorReport::Finished { attempt, ended }))
    }
}

impl Running {
    /// The resources that it holds: those of the order, without the CPU while it yields.
    fn holds(&self) -> TaskShape {
        let TaskShape { resources, execution } = *self.order.template.shape;
        let resources = if self.yields_since.is_some() { resources.with(CPU, 0) } else { resources };
        TaskShape { resources, execution }
    }

    /// For how long it has run with its CPU.
    fn running_for(&self, now: Instant) -> Duration {
        let until = self.yields_since.unwrap_or(now);
        Duration(until.since(self.since).0.saturating_sub(self.yielded.0))
    }

    /// The part of its work that is done after `length`, in millionths. The simulated process reports it exactly.
    fn part_after(&self, length: Duration) -> u32 {
        let part = u128::from(length.0) * u128::from(WHOLE) / u128::from(self.whole.0.max(1));
        u32::try_from(part).map_or(WHOLE, |part| part.min(WHOLE))
    }

    /// CPU time used after `length`. An attempt uses its requested CPU; a slowed-down one uses the same total over a
    /// longer time.
    fn cpu(&self, length: Duration) -> Duration {
        let work = if self.whole == self.nominal {
            length
        } else {
            Duration((u128::from(self.nominal.0) * u128::from(self.part_after(length)) / u128::from(WHOLE)) as u64)
        };
        used_cpu(work, &self.order.template.shape.resources)
    }

    fn sample(&self, now: Instant) -> Sample {
        let running_for = self.running_for(now);
        let part = self.part_after(running_for);
        let input: u64 = self.order.inputs.iter().map(|input| input.bytes).sum();
        let read_bytes = (u128::from(input) * u128::from(part) / u128::from(WHOLE)) as u64;
        Sample { running_for, reported: Some(part), cpu: self.cpu(running_for), read_bytes }
    }

    fn describe(&self, now: Instant) -> Executing {
        Executing {
            order: (*self.order).clone(),
            running_for: self.running_for(now),
            yields_for: self.yields_since.map(|since| now.since(since)),
            pid: 0,
            asked_to_end: self.asked.as_deref().cloned(),
        }
    }
}

fn finished(attempt: AttemptId, ended: &Arc<Ended>) -> ExecutorReport {
    ExecutorReport::Finished { attempt, ended: Arc::clone(ended) }
}

/// CPU time of a task that uses all of its requested CPU.
fn used_cpu(wall: Duration, resources: &Resources) -> Duration {
    Duration::from_micros((u128::from(wall.as_micros()) * u128::from(resources.cpu_millis()) / 1_000) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::{Epoch, JobId, NodeId};

    const ATTEMPT: AttemptId = AttemptId { job: JobId(1), epoch: Epoch(1), number: 0 };

    fn launch() -> Box<LaunchOrder> {
        Box::new(LaunchOrder {
            attempt: ATTEMPT,
            task: TaskId::default(),
            node: NodeId(0),
            node_name: "node".to_owned(),
            hosts: None,
            shared_gpu: None,
            template: Arc::default(),
            index: 0,
            item: None,
            devices: Vec::new(),
            inputs: Arc::default(),
            grant: None,
            expected: None,
        })
    }

    fn ends(executor: &mut Executor, signal: TaskSignal) -> Vec<EndReason> {
        let mut out = Vec::new();
        let order = ToExecutor::Signal { attempt: ATTEMPT, signal, reason: EndReason::Cancelled };
        executor.on_order(Instant(5), order, &mut out);
        let ended = |reaction| match reaction {
            Reaction::Ended { reason, .. } => Some(reason),
            _ => None,
        };
        out.into_iter().filter_map(ended).collect()
    }

    #[test]
    fn only_a_kill_stops_a_stubborn_attempt_early() {
        let mut executor = Executor::default();
        executor.on_order(Instant(0), ToExecutor::Launch(launch()), &mut Vec::new());
        executor.make_stubborn(ATTEMPT);
        assert_eq!(ends(&mut executor, TaskSignal::Terminate), []);
        assert_eq!(ends(&mut executor, TaskSignal::Kill), [EndReason::Cancelled]);
    }

    #[test]
    fn an_attempt_that_was_asked_to_end_ends_for_that_reason_even_on_its_own() {
        let mut executor = Executor::default();
        executor.on_order(Instant(0), ToExecutor::Launch(launch()), &mut Vec::new());
        executor.make_stubborn(ATTEMPT);
        ends(&mut executor, TaskSignal::Terminate);
        let (_, report) = executor.end(Instant(9), ATTEMPT, EndReason::Exit(0)).unwrap();
        let is_cancelled = |ended: &Ended| ended.reason == EndReason::Cancelled;
        assert!(matches!(report, ExecutorReport::Finished { ended, .. } if is_cancelled(&ended)));
    }

    #[test]
    fn an_attempt_that_yields_makes_no_progress_and_ends_later_by_that_time() {
        let mut executor = Executor::default();
        let mut order = launch();
        Arc::make_mut(&mut Arc::make_mut(&mut order.template).shape).resources = Resources::new(1_000, 5);
        executor.on_order(Instant(0), ToExecutor::Launch(order), &mut Vec::new());
        let run =
            PlannedRun { length: Duration(10), whole: Duration(10), nominal: Duration(10), ..PlannedRun::default() };
        executor.set_run(ATTEMPT, &run);
        let deliver = |executor: &mut Executor, at: u64, order: ToExecutor| {
            let mut out = Vec::new();
            executor.on_order(Instant(at), order, &mut out);
            out.pop()
        };
        let (yields, resumes) = (ToExecutor::Yield { attempt: ATTEMPT }, ToExecutor::Resume { attempt: ATTEMPT });
        assert!(deliver(&mut executor, 3, resumes.clone()).is_none(), "the attempt has its CPU");
        assert!(matches!(deliver(&mut executor, 4, yields.clone()), Some(Reaction::Yielded { .. })));
        assert!(deliver(&mut executor, 5, yields.clone()).is_none(), "the attempt yields already");
        assert_eq!((executor.used_cpu(), executor.is_done(Instant(10), ATTEMPT)), (0, false));
        let Some(Reaction::Report(ExecutorReport::Executing { attempts })) =
            deliver(&mut executor, 20, ToExecutor::List { node: NodeId(0) })
        else {
            panic!("the attempt is listed")
        };
        assert_eq!((attempts[0].running_for, attempts[0].yields_for), (Duration(4), Some(Duration(16))));
        let left = |reaction: Option<Reaction>| match reaction {
            Some(Reaction::Resumed { left, .. }) => Some(left),
            _ => None,
        };
        assert_eq!(left(deliver(&mut executor, 24, resumes.clone())), Some(Duration(6)));
        assert_eq!((executor.used_cpu(), executor.is_done(Instant(29), ATTEMPT)), (1_000, false));
        deliver(&mut executor, 29, yields);
        assert_eq!(left(deliver(&mut executor, 40, resumes)), Some(Duration(1)));
        assert!(executor.is_done(Instant(41), ATTEMPT));
        let (_, report) = executor.end(Instant(41), ATTEMPT, EndReason::Exit(0)).unwrap();
        let ExecutorReport::Finished { ended, .. } = report else { panic!("the attempt has ended") };
        assert_eq!(
            (ended.usage.wall, ended.usage.yielded, ended.usage.cpu),
            (Duration(41), Duration(31), Duration(10))
        );
    }

    #[test]
    fn a_refused_launch_has_ended_and_a_known_attempt_is_not_refused() {
        let mut executor = Executor::default();
        let fault = || EndReason::NodeFault("full".to_owned());
        assert!(executor.refuse(&launch(), fault()).is_some());
        assert_eq!(executor.ends(), 1);
        assert!(executor.refuse(&launch(), fault()).is_none(), "the attempt has ended already");
    }
}
