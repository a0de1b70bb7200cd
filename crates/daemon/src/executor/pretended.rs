//! A simulated executor: it starts no processes, reads and writes no files, and every task succeeds after its run time.
//! It serves hollow nodes, with which schedulers are measured.

use amalgam_core::protocol::{Executing, ExecutorReport, ToExecutor};
use amalgam_core::vocabulary::files::name_for;
use amalgam_core::vocabulary::{
    AttemptId, ByteString, Digest, Duration, EndReason, Ended, EndedFiles, Fetched, Instant, LaunchOrder, NodeId,
    OutputFile, Sample, Usage,
};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The reported pid of tasks, which have no process.
const NO_PROCESS: u32 = 0;

/// A simulated executor. It has no clock: orders are carried out when [`PretendedExecutor::reports`] passes the time.
#[derive(Default)]
pub struct PretendedExecutor {
    orders: Vec<ToExecutor>,
    attempts: HashMap<AttemptId, Pretence>,
    /// Ends of the running attempts, by time.
    ends: BTreeSet<(Instant, AttemptId)>,
}

struct Pretence {
    order: LaunchOrder,
    started: Instant,
    /// Time for which it has yielded, without the current time if it yields now.
    yielded: Duration,
    state: State,
}

enum State {
    Running { until: Instant },
    Yielding { since: Instant, left: Duration },
    Ended(Arc<Ended>),
}

impl PretendedExecutor {
    pub fn handle(&mut self, order: ToExecutor) {
        self.orders.push(order);
    }

    /// When the next report is due. Orders that wait make it due immediately.
    pub fn due(&self) -> Option<Instant> {
        if self.orders.is_empty() { self.ends.first().map(|(at, _)| *at) } else { Some(Instant::ZERO) }
    }

    /// Carries out the orders, and ends the attempts whose time has passed. Returns the reports.
    pub fn reports(&mut self, now: Instant) -> Vec<ExecutorReport> {
        let mut reports = Vec::new();
        for order in std::mem::take(&mut self.orders) {
            self.carry_out(now, order, &mut reports);
        }
        while let Some(&(_, attempt)) = self.ends.first().filter(|(at, _)| *at <= now) {
            self.end(now, attempt, EndReason::Exit(0), &mut reports);
        }
        reports
    }

    fn carry_out(&mut self, now: Instant, order: ToExecutor, reports: &mut Vec<ExecutorReport>) {
        match order {
            ToExecutor::Launch(order) => self.launch(now, *order, reports),
            ToExecutor::Signal { attempt, reason, .. } => self.end(now, attempt, reason, reports),
            ToExecutor::Promote { attempt, grant } => {
                if let Some(known) = self.attempts.get_mut(&attempt) {
                    known.order.promote(grant);
                }
            }
            ToExecutor::SetTimeout { attempt, timeout } => {
                if let Some(known) = self.attempts.get_mut(&attempt) {
                    known.order.set_timeout(timeout);
                }
            }
            ToExecutor::Yield { attempt } => self.suspend(now, attempt),
            ToExecutor::Resume { attempt } => self.resume(now, attempt),
            ToExecutor::Acknowledge { attempt } => self.forget(attempt),
            ToExecutor::List { node } => self.list(now, node, reports),
            ToExecutor::Fetch { node, file, from } => {
                let end = Box::new((file.digest, from, Fetched::Done));
                reports.push(ExecutorReport::Fetched { node, end });
            }
            ToExecutor::Measure { node, attempts } => {
                let sample = |attempt: AttemptId| Some((attempt, self.attempts.get(&attempt)?.sample(now)?));
                let samples = attempts.into_iter().filter_map(sample);
                reports.push(ExecutorReport::Measured { node, samples: samples.collect() });
            }
            ToExecutor::Drop { .. } => {}
        }
    }

    fn launch(&mut self, now: Instant, order: LaunchOrder, reports: &mut Vec<ExecutorReport>) {
        let attempt = order.attempt;
        let known = self.attempts.entry(attempt).or_insert_with(|| {
            let until = now + run_time(&order);
            self.ends.insert((until, attempt));
            Pretence { order, started: now, yielded: Duration::ZERO, state: State::Running { until } }
        });
        reports.push(match &known.state {
            State::Ended(ended) => ExecutorReport::Finished { attempt, ended: Arc::clone(ended) },
            State::Running { .. } | State::Yielding { .. } => ExecutorReport::Started { attempt, pid: NO_PROCESS },
        });
    }

    fn suspend(&mut self, now: Instant, attempt: AttemptId) {
        let Some(known) = self.attempts.get_mut(&attempt) else { return };
        if let State::Running { until } = known.state {
            self.ends.remove(&(until, attempt));
            known.state = State::Yielding { since: now, left: until.since(now) };
        }
    }

    fn resume(&mut self, now: Instant, attempt: AttemptId) {
        let Some(known) = self.attempts.get_mut(&attempt) else { return };
        if let State::Yielding { left, .. } = known.state {
            known.yielded = known.yielded(now);
            known.state = State::Running { until: now + left };
            self.ends.insert((now + left, attempt));
        }
    }

    fn end(&mut self, now: Instant, attempt: AttemptId, reason: EndReason, reports: &mut Vec<ExecutorReport>) {
        let Some(known) = self.attempts.get_mut(&attempt) else { return };
        match known.state {
            State::Running { until } => drop(self.ends.remove(&(until, attempt))),
            State::Yielding { .. } => {}
            State::Ended(_) => return,
        }
        let usage = Usage { wall: now.since(known.started), yielded: known.yielded(now), ..Usage::default() };
        let files = if reason.is_success() { empty_outputs(&known.order) } else { None };
        let ended = Arc::new(Ended { reason, usage, message: None, files });
        known.state = State::Ended(Arc::clone(&ended));
        reports.push(ExecutorReport::Finished { attempt, ended });
    }

    fn forget(&mut self, attempt: AttemptId) {
        if self.attempts.get(&attempt).is_some_and(|known| matches!(known.state, State::Ended(_))) {
            self.attempts.remove(&attempt);
        }
    }

    fn list(&self, now: Instant, node: NodeId, reports: &mut Vec<ExecutorReport>) {
        let mut executing = Vec::new();
        for (&attempt, known) in self.attempts.iter().filter(|(_, known)| known.order.node == node) {
            match &known.state {
                State::Ended(ended) => reports.push(ExecutorReport::Finished { attempt, ended: Arc::clone(ended) }),
                State::Running { .. } | State::Yielding { .. } => executing.push(known.executing(now)),
            }
        }
        reports.push(ExecutorReport::Executing { attempts: executing });
    }
}

impl Pretence {
    fn yielded(&self, now: Instant) -> Duration {
        match self.state {
            State::Yielding { since, .. } => self.yielded + now.since(since),
            State::Running { .. } | State::Ended(_) => self.yielded,
        }
    }

    fn ran_for(&self, now: Instant) -> Duration {
        Duration(now.since(self.started).0.saturating_sub(self.yielded(now).0))
    }

    fn sample(&self, now: Instant) -> Option<Sample> {
        let runs = !matches!(self.state, State::Ended(_));
        runs.then(|| Sample { running_for: self.ran_for(now), ..Sample::default() })
    }

    fn executing(&self, now: Instant) -> Executing {
        let yields_for = match self.state {
            State::Yielding { since, .. } => Some(now.since(since)),
            State::Running { .. } | State::Ended(_) => None,
        };
        let (order, running_for) = (self.order.clone(), self.ran_for(now));
        Executing { order, running_for, yields_for, pid: NO_PROCESS, asked_to_end: None }
    }
}

/// The run time of a task: the argument of the first `sleep` in the command, which may be in a shell script; zero
/// without one. `$AMALGAM_ITEM` stands for the task's item, as in jobs that are generated from traces.
fn run_time(order: &LaunchOrder) -> Duration {
    let texts = order.template.program.command.iter().filter_map(ByteString::to_str);
    let mut words = texts.flat_map(str::split_whitespace);
    let sleep = words.find(|word| word.rsplit('/').next() == Some("sleep"));
    let length = sleep.and_then(|_| words.next()).map(|word| word.trim_matches(['"', '\'', ';']));
    let length = match length {
        Some("$AMALGAM_ITEM" | "${AMALGAM_ITEM}") => order.item.as_ref().and_then(ByteString::to_str),
        other => other,
    };
    length.and_then(|length| Duration::parse(length).ok()).unwrap_or(Duration::ZERO)
}

/// The stage's declared outputs, as empty files for the stages that read them.
fn empty_outputs(order: &LaunchOrder) -> Option<Box<EndedFiles>> {
    let digest = Digest(Sha256::digest([]).into());
    let empty = |name: &String| OutputFile { name: name_for(name, order.index), digest, bytes: 0 };
    let outputs: Vec<OutputFile> = order.template.outputs.iter().map(empty).collect();
    (!outputs.is_empty()).then(|| Box::new(EndedFiles { outputs, missing: Vec::new() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::protocol::TaskSignal;
    use amalgam_core::vocabulary::{Epoch, JobId, Program, StoredFile, TaskId, TaskTemplate};

    const NODE: NodeId = NodeId(3);

    fn id(number: u32) -> AttemptId {
        AttemptId { job: JobId(1), epoch: Epoch(1), number }
    }

    fn order(number: u32, command: &[&str]) -> LaunchOrder {
        let command = command.iter().map(|&word| word.into()).collect();
        let program = Arc::new(Program { command, ..Program::default() });
        let outputs = vec!["part-{index}".to_owned()];
        LaunchOrder {
            attempt: id(number),
            task: TaskId { job: JobId(1), stage: 0, index: number },
            node: NODE,
            node_name: "node".to_owned(),
            hosts: None,
            shared_gpu: None,
            template: Arc::new(TaskTemplate { program, outputs, ..TaskTemplate::default() }),
            index: 7,
            item: Some("1.5".into()),
            devices: Vec::new(),
            inputs: Arc::default(),
            grant: None,
            expected: None,
        }
    }

    fn launch(number: u32, command: &[&str]) -> ToExecutor {
        ToExecutor::Launch(Box::new(order(number, command)))
    }

    fn started(number: u32) -> ExecutorReport {
        ExecutorReport::Started { attempt: id(number), pid: NO_PROCESS }
    }

    fn reported(
        executor: &mut PretendedExecutor,
        now: Instant,
        orders: impl IntoIterator<Item = ToExecutor>,
    ) -> Vec<ExecutorReport> {
        orders.into_iter().for_each(|order| executor.handle(order));
        executor.reports(now)
    }

    fn end(reports: &[ExecutorReport]) -> (AttemptId, &Ended) {
        match reports {
            [ExecutorReport::Finished { attempt, ended }] => (*attempt, ended),
            other => panic!("{other:?}"),
        }
    }

    fn secs(secs: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(secs)
    }

    #[test]
    fn the_run_time_is_the_argument_of_the_first_sleep_in_the_command() {
        let cases: [(&[&str], u64); 9] = [
            (&["true"], 0),
            (&["sleep", "0.25"], 250),
            (&["/bin/sleep", "2"], 2_000),
            (&["sleep", "2m"], 120_000),
            (&["sh", "-c", "exec sleep \"$AMALGAM_ITEM\""], 1_500),
            (&["sh", "-c", "sleep 3; echo done"], 3_000),
            (&["sleep"], 0),
            (&["sleep", "infinity"], 0),
            (&["oversleep", "9"], 0),
        ];
        for (command, millis) in cases {
            assert_eq!(run_time(&order(0, command)), Duration::from_millis(millis), "{command:?}");
        }
    }

    #[test]
    fn tasks_succeed_after_their_run_time_with_their_declared_outputs() {
        let mut executor = PretendedExecutor::default();
        assert_eq!(executor.due(), None);
        executor.handle(launch(1, &["sleep", "5"]));
        assert_eq!(executor.due(), Some(Instant::ZERO), "an order is carried out immediately");
        assert_eq!(executor.reports(secs(1)), [started(1)]);
        let reports = reported(&mut executor, secs(2), [launch(2, &["true"])]);
        assert_eq!((&reports[..1], end(&reports[1..]).0), (&[started(2)][..], id(2)));
        assert_eq!(executor.due(), Some(secs(6)));
        assert_eq!(executor.reports(secs(5)), []);
        let reports = executor.reports(secs(6));
        let (attempt, ended) = end(&reports);
        assert_eq!((attempt, &ended.reason, ended.usage.wall), (id(1), &EndReason::Exit(0), Duration::from_secs(5)));
        assert_eq!((ended.outputs()[0].name.as_str(), ended.outputs()[0].bytes), ("part-7", 0));
        assert_eq!(executor.due(), None);
    }

    #[test]
    fn an_end_is_kept_until_it_is_acknowledged() {
        let mut executor = PretendedExecutor::default();
        let first = reported(&mut executor, secs(1), [launch(1, &["true"])]);
        let again = reported(&mut executor, secs(9), [launch(1, &["true"])]);
        assert_eq!(first[1..], again, "a repeated order is answered with the attempt's end");
        let listed = reported(&mut executor, secs(9), [ToExecutor::List { node: NODE }]);
        assert_eq!((&listed[0], &listed[1]), (&again[0], &ExecutorReport::Executing { attempts: vec![] }));
        let acknowledge = ToExecutor::Acknowledge { attempt: id(1) };
        assert_eq!(reported(&mut executor, secs(9), [acknowledge]), []);
        assert!(executor.attempts.is_empty());
    }

    #[test]
    fn a_signal_ends_a_running_task_with_its_reason_and_has_no_effect_on_ended_tasks() {
        let mut executor = PretendedExecutor::default();
        reported(&mut executor, secs(1), [launch(1, &["sleep", "9"])]);
        let signal =
            || ToExecutor::Signal { attempt: id(1), signal: TaskSignal::Terminate, reason: EndReason::Timeout };
        let reports = reported(&mut executor, secs(3), [signal()]);
        let (_, ended) = end(&reports);
        assert_eq!(
            (&ended.reason, ended.usage.wall, ended.outputs()),
            (&EndReason::Timeout, Duration::from_secs(2), &[][..])
        );
        assert_eq!((reported(&mut executor, secs(4), [signal()]), executor.due()), (vec![], None));
        // A signal for an unknown attempt has no effect.
        let signal = ToExecutor::Signal { attempt: id(2), signal: TaskSignal::Kill, reason: EndReason::Cancelled };
        assert_eq!(reported(&mut executor, secs(4), [signal]), []);
    }

    #[test]
    fn the_time_for_which_a_task_yields_is_not_part_of_its_run_time() {
        let mut executor = PretendedExecutor::default();
        reported(&mut executor, secs(0), [launch(1, &["sleep", "4"])]);
        reported(&mut executor, secs(1), [ToExecutor::Yield { attempt: id(1) }]);
        assert_eq!(executor.due(), None);
        let listed = reported(&mut executor, secs(6), [ToExecutor::List { node: NODE }]);
        let [ExecutorReport::Executing { attempts }] = &listed[..] else { panic!("{listed:?}") };
        let Executing { running_for, yields_for, .. } = attempts[0];
        assert_eq!((running_for, yields_for), (Duration::from_secs(1), Some(Duration::from_secs(5))));
        reported(&mut executor, secs(11), [ToExecutor::Resume { attempt: id(1) }]);
        let measured = reported(&mut executor, secs(12), [ToExecutor::Measure { node: NODE, attempts: vec![id(1)] }]);
        let [ExecutorReport::Measured { samples, .. }] = &measured[..] else { panic!("{measured:?}") };
        assert_eq!(samples[0].1.running_for, Duration::from_secs(2));
        assert_eq!(executor.due(), Some(secs(14)));
        let reports = executor.reports(secs(14));
        let usage = end(&reports).1.usage;
        assert_eq!((usage.wall, usage.run_time()), (Duration::from_secs(14), Duration::from_secs(4)));
    }

    #[test]
    fn files_are_fetched_immediately() {
        let file = StoredFile { digest: Digest([7; 32]), bytes: 1 << 40 };
        let fetch = ToExecutor::Fetch { node: NODE, file, from: NodeId(4) };
        let reports = reported(&mut PretendedExecutor::default(), secs(1), [fetch]);
        let end = Box::new((file.digest, NodeId(4), Fetched::Done));
        assert_eq!(reports, [ExecutorReport::Fetched { node: NODE, end }]);
    }
}
