//! The executors of a simulation: orders on their way to them, the attempts and fetches that they run, and their reports.

use super::{Occurrence, Simulation};
use crate::execution::{PlannedRun, WorkloadTask};
use crate::executor::Reaction;
use crate::faults::{Happening, Moment};
use crate::places::ProcessId;
use crate::process::Input;
use crate::settings::SLOW_FILE;
use amalgam_core::hosting::Envelope;
use amalgam_core::node::Turn;
use amalgam_core::protocol::{Address, ExecutorReport, Message, ToExecutor, ToNode};
use amalgam_core::vocabulary::{
    AttemptId, Chance, Duration, EndReason, Fetched, Instant, LaunchOrder, NodeId, Reads, StoredFile, TaskId,
    TaskShape, TaskTemplate,
};

impl Simulation {
    pub(super) fn leave_for_executor(&mut self, node: usize, at: Instant, order: ToExecutor) {
        let launch = self.settings.costs.launch * self.slowness(ProcessId::Node(node));
        let launch = Duration::from_micros(launch / 1_000);
        let at = if matches!(order, ToExecutor::Launch(_)) { at + launch } else { at };
        let ordered_until = &mut self.nodes[node].ordered_until;
        let at = at.max(*ordered_until);
        *ordered_until = at;
        if at <= self.now {
            self.order(node, order);
        } else {
            let link = self.nodes[node].executor_link;
            let order = self.orders.insert(order) as u32;
            self.agenda.note(at, Occurrence::Ordered { node, link, order });
        }
    }

    pub(super) fn order(&mut self, node: usize, order: ToExecutor) {
        if let ToExecutor::Launch(launch) = &order
            && let Some(fault) = self.launch_fault(node)
            && let Some(report) = self.nodes[node].executor.refuse(launch, fault)
        {
            return self.at_once.push_back((node, report));
        }
        let mut reactions = std::mem::take(&mut self.reactions);
        self.nodes[node].executor.on_order(self.now, order, &mut reactions);
        for reaction in reactions.drain(..) {
            match reaction {
                Reaction::Report(report) => self.at_once.push_back((node, report)),
                Reaction::Started { attempt, task, template } => self.start_task(node, attempt, task, &template),
                Reaction::Fetch { file, from } => self.fetch(node, file, from),
                Reaction::Ended { order, held, reason } => self.task_ended(node, &order, &held, reason),
                Reaction::Promoted { task, before } => self.metrics.on_promoted(self.now, task, &before),
                Reaction::Yielded { attempt, task, shape } => {
                    self.metrics.on_yielded(self.now, node, attempt, task, &shape);
                    self.note(|| Happening::Yielded { node, attempt, task });
                }
                Reaction::Resumed { attempt, task, shape, left, reason } => {
                    self.metrics.on_resumed(self.now, node, attempt, task, &shape);
                    self.note(|| Happening::Resumed { node, attempt, task });
                    self.agenda.note(self.now + left, Occurrence::TaskEnds { node, attempt, reason });
                }
            }
        }
        self.reactions = reactions;
    }

    /// Transfers a file, if the other node has it and does not send it to too many others.
    fn fetch(&mut self, node: usize, file: StoredFile, from: NodeId) {
        let StoredFile { digest, bytes } = file;
        self.fetches += 1;
        let source = self.nodes.get_mut(from.0 as usize).filter(|source| source.executor.has(&digest));
        let turn = source.map(|source| source.uploads.ask(file, NodeId(node as u32)));
        let (outcome, on_the_way) = match turn {
            None => (Fetched::Absent, Duration::ZERO),
            Some(Turn::Later(others)) => (Fetched::Busy(others), Duration::ZERO),
            Some(Turn::Now) if self.is_unlucky("spoiled", self.settings.files.spoiled) => {
                self.nodes[from.0 as usize].executor.remove(&digest);
                (Fetched::Spoiled, self.settings.files.transfer(bytes))
            }
            Some(Turn::Now) if self.is_unlucky("fetch", self.settings.files.wrong) => {
                (Fetched::Wrong, self.settings.files.transfer(bytes))
            }
            Some(Turn::Now) => (Fetched::Done, self.settings.files.transfer(bytes)),
        };
        let is_slow = self.is_unlucky("slow fetch", self.settings.files.slow);
        let on_the_way = if is_slow { Duration(on_the_way.0 * SLOW_FILE) } else { on_the_way };
        let at = self.now + self.settings.network.delay + self.settings.network.delay + on_the_way;
        let link = self.nodes[node].executor_link;
        self.agenda.note(at, Occurrence::Fetched { node, link, end: Box::new((file, from, outcome)) });
    }

    /// Draws whether the latest fetch meets this fault. None does after all faults have ended.
    fn is_unlucky(&self, what: &str, probability: f64) -> bool {
        let chance = || Chance::new(self.settings.seed, &format!("{what} {}", self.fetches)).unit();
        probability > 0.0 && !self.is_healed() && chance() < probability
    }

    pub(super) fn end_upload(&mut self, node: usize, (file, from, outcome): &(StoredFile, NodeId, Fetched)) {
        if let (Fetched::Done | Fetched::Wrong | Fetched::Spoiled, Some(source)) =
            (outcome, self.nodes.get_mut(from.0 as usize))
        {
            source.uploads.end(*file, NodeId(node as u32), *outcome == Fetched::Done);
        }
    }

    pub(super) fn end_fetch(&mut self, node: usize, (file, from, outcome): (StoredFile, NodeId, Fetched)) {
        if outcome == Fetched::Done {
            self.nodes[node].executor.store(file);
        }
        let end = Box::new((file.digest, from, outcome));
        self.report(node, ExecutorReport::Fetched { node: NodeId(node as u32), end });
    }

    fn start_task(&mut self, node: usize, attempt: AttemptId, task: TaskId, template: &TaskTemplate) {
        let TaskShape { resources, execution } = *template.shape;
        self.last_progress = self.now;
        let launch = Duration::from_micros(self.settings.costs.launch / 1_000);
        self.metrics.on_started(self.now, node, task, &template.shape, launch);
        self.note(|| Happening::TaskStarted { node, attempt, task, resources, execution });
        self.on_moment(Moment::TaskStarts, None);
        let run = self.planned_run(node, attempt, task, &template.shape);
        self.nodes[node].executor.set_run(attempt, &run);
        if run.is_straggler {
            self.metrics.on_straggler(attempt, &run);
        }
        let PlannedRun { length, reason, is_stubborn, .. } = run;
        if is_stubborn {
            self.nodes[node].executor.make_stubborn(attempt);
        }
        self.agenda.note(self.now + length, Occurrence::TaskEnds { node, attempt, reason });
    }

    fn planned_run(&mut self, node: usize, attempt: AttemptId, task: TaskId, shape: &TaskShape) -> PlannedRun {
        let TaskId { stage, index, .. } = task;
        let Some(job) = self.metrics.job_of(task.job) else {
            return PlannedRun::default();
        };
        let run_time = self.jobs[job as usize].run_times[stage as usize].of(index);
        let run_time = self.execution.on_node(node, run_time) + self.start_reading(node, attempt, (job, stage, index));
        let busy = if self.execution.heeds_neighbours() { self.nodes[node].busy_beside(&shape.resources) } else { 0.0 };
        self.execution.planned_run(WorkloadTask { job, stage, index }, run_time, busy, shape.execution)
    }

    /// How much longer the attempt takes because its input is stored elsewhere. The run times of the trace are assumed
    /// to be those of tasks on the node that stores their input.
    fn start_reading(&mut self, node: usize, attempt: AttemptId, task: (u32, u32, u32)) -> Duration {
        let Some(inputs) = &self.inputs else { return Duration::ZERO };
        let (job, stage, index) = task;
        let spec = &self.jobs[job as usize].spec.stages[stage as usize];
        let is_up = |other: usize| self.nodes[other].agent.is_up;
        let Some(read) = inputs.read((job, index), spec, node, is_up) else { return Duration::ZERO };
        let longer = inputs.longer(&read);
        self.metrics.on_reading(attempt, read, longer, spec.reads == Reads::Before);
        longer
    }

    /// An attempt has ended that held `held`.
    pub(crate) fn task_ended(&mut self, node: usize, order: &LaunchOrder, held: &TaskShape, reason: EndReason) {
        self.last_progress = self.now;
        self.metrics.on_ended(self.now, node, order.attempt, order.task, held);
        self.metrics.on_read(order.attempt, reason.is_success());
        if let (Some(inputs), Some(job)) = (&mut self.inputs, self.metrics.job_of(order.task.job))
            && reason.is_success()
        {
            inputs.on_succeeded(job, order.task.stage, order.task.index, node);
        }
        self.note(|| Happening::Ended { node, attempt: order.attempt, task: order.task, reason: reason.clone() });
        self.on_moment(Moment::TaskEnds, None);
    }

    pub(super) fn end_task(&mut self, node: usize, attempt: AttemptId, reason: EndReason) {
        if !self.nodes[node].executor.is_done(self.now, attempt) {
            // The attempt was stopped early, or it yielded for a time and ends later.
            return;
        }
        let Some((order, report)) = self.nodes[node].executor.end(self.now, attempt, reason.clone()) else { return };
        let reason = match &report {
            ExecutorReport::Finished { ended, .. } => ended.reason.clone(),
            _ => reason,
        };
        self.task_ended(node, &order, &order.template.shape, reason);
        let exit = Duration::from_micros(self.settings.costs.exit / 1_000);
        if exit == Duration::ZERO {
            self.at_once.push_back((node, report));
        } else {
            let link = self.nodes[node].executor_link;
            self.agenda.note(self.now + exit, Occurrence::Reported { node, link, report });
        }
    }

    pub(super) fn report(&mut self, node: usize, report: ExecutorReport) {
        let id = NodeId(node as u32);
        let message = Message::ToNode(ToNode::Executor(report));
        let envelope = Envelope { from: Address::Executor(id), to: Address::Node(id), message };
        self.put(ProcessId::Node(node), Input::Envelope(envelope));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{FileSettings, Settings};
    use crate::testing::job;
    use amalgam_core::vocabulary::{Attributes, InputSpec, JobSpec, ResourceSpec, Resources, TaskSet, Workdir};
    use amalgam_workload::trace::{MalformedLines, Node, RunTimes, TraceJob, Workload};
    use std::sync::Arc;

    /// A task writes a file of a gigabyte, and a hundred nodes read it at the same time.
    fn hundred_readers() -> Simulation {
        let TraceJob { arrival, spec, .. } = job("", 1, Duration::ZERO, Duration::from_secs(1));
        let mut writer = spec.stages[0].clone();
        let mut program = (*writer.program).clone();
        program.workdir = Workdir::Own;
        (writer.program, writer.outputs) = (Arc::new(program), vec!["file".to_owned()]);
        let mut reader = writer.clone();
        (reader.name, reader.after, reader.tasks) = ("read".to_owned(), vec![0], TaskSet::Count(100));
        (reader.outputs, reader.inputs) = (Vec::new(), vec![InputSpec { stage: 0, files: "*".to_owned() }]);
        let spec = Arc::new(JobSpec { stages: vec![writer, reader], ..(*spec).clone() });
        let run_times = vec![RunTimes::Same(Duration::from_secs(1)); 2].into();
        let jobs = vec![TraceJob { arrival, spec, run_times }];
        let workload = Workload { name: String::new(), jobs, notes: Vec::new(), malformed: MalformedLines::default() };
        let resources = ResourceSpec { basic: Resources::new(1_000, 0), custom: Vec::new() };
        let node = |number| Node {
            name: format!("n{number}"),
            resources: resources.clone(),
            attributes: Attributes::default(),
        };
        let files = FileSettings { bytes: 1 << 30, bytes_per_second: 1 << 30, ..FileSettings::default() };
        let settings = Settings { files, ..Settings::default() };
        Simulation::new(settings, &(0..101).map(node).collect::<Vec<_>>(), &workload)
    }

    #[test]
    fn a_file_that_a_hundred_nodes_want_is_sent_by_all_that_have_it() {
        let mut simulation = hundred_readers();
        simulation.assemble();
        simulation.open();
        while simulation.is_anything_left() && simulation.step() {}
        assert_eq!(simulation.metrics.jobs_left(), 0);
        let mut sent: Vec<u64> = simulation.nodes.iter().map(|node| node.uploads.complete()).collect();
        sent.sort_unstable();
        assert!(sent.iter().sum::<u64>() >= 99, "{sent:?}");
        assert!(*sent.last().unwrap() <= 14, "no node sends it to many: {sent:?}");
        // A second for a transfer: each takes the file to three times as many nodes.
        assert!(simulation.now < Instant(20_000_000), "{:?}", simulation.now);
    }
}
