//! An executor that simulates running and measuring processes and fetching files.

use super::*;

/// A process runs for as long as its command specifies: `["run", "5s", "exit code"]`.
#[derive(Default)]
pub struct PretendedExecutor {
    pub running: BTreeMap<AttemptId, (LaunchOrder, Instant, Instant)>,
    pub ends: BTreeMap<AttemptId, Arc<Ended>>,
    /// Every attempt that ever became a process.
    pub launched: Vec<(TaskId, AttemptId)>,
    /// Why it cannot launch any process.
    pub fault: Option<String>,
    /// The files that its node has, with their sizes in bytes.
    pub files: BTreeMap<Digest, u64>,
    /// How many more fetches from here get a different file.
    pub sends_wrong: u32,
    /// How many more fetches from here find the file damaged, which is then removed.
    pub spoils: u32,
    /// It does not answer nodes that fetch from here.
    pub is_silent: bool,
    /// Fetches that were ordered here.
    pub fetched: Vec<(Digest, NodeId)>,
    /// Fetches are not answered.
    pub holds_fetches: bool,
    pub(super) held_fetches: Vec<(StoredFile, NodeId)>,
    /// Processes that start here take this many times as long, with the same CPU time; 0 means 1.
    pub slowness: u64,
    /// Processes seem to use no CPU.
    pub hides_cpu: bool,
    /// Attempts that yield their CPU, and since when. They make no progress meanwhile.
    pub yielding: BTreeMap<AttemptId, Instant>,
    pub yielded: BTreeMap<AttemptId, Duration>,
    /// How many times it was asked to measure attempts.
    pub measured: usize,
}

impl PretendedExecutor {
    /// When attempts exit without being stopped.
    pub(super) fn next_ends(&self) -> impl Iterator<Item = (AttemptId, Instant)> {
        let working = self.running.iter().filter(|(id, _)| !self.yielding.contains_key(id));
        working.map(|(id, (_, _, end))| (*id, *end))
    }

    fn on_launch(&mut self, now: Instant, node: NodeId, order: LaunchOrder) -> ExecutorReport {
        let attempt = order.attempt;
        if let Some(fault) = &self.fault {
            let ended = Ended::without_run(EndReason::NodeFault(fault.clone()));
            self.ends.insert(attempt, ended.clone());
            return ExecutorReport::Finished { attempt, ended };
        }
        let gone = order.inputs.iter().filter(|input| !self.files.contains_key(&input.digest));
        let missing: Vec<(Digest, NodeId)> = gone.map(|input| (input.digest, node)).collect();
        if !missing.is_empty() {
            let mut ended = Ended::without_run(EndReason::NoInput("it is gone".to_owned()));
            Arc::make_mut(&mut ended).files = Some(Box::new(EndedFiles { outputs: Vec::new(), missing }));
            self.ends.insert(attempt, ended.clone());
            return ExecutorReport::Finished { attempt, ended };
        }
        let length = order.item.as_ref().unwrap_or(&order.template.program.command[1]);
        let length = Duration::parse(&length.to_string()).expect("a run time");
        let length = Duration(length.0 * self.slowness.max(1));
        self.launched.push((order.task, attempt));
        self.running.insert(attempt, (order, now, now + length));
        ExecutorReport::Started { attempt, pid: 1 }
    }

    fn measure(&mut self, now: Instant, attempts: &[AttemptId]) -> Box<[(AttemptId, Sample)]> {
        self.measured += 1;
        let running = attempts.iter().filter_map(|attempt| Some((*attempt, self.running.get(attempt)?)));
        let slowness = self.slowness.max(1);
        let samples = running.map(|(attempt, (_, since, end))| {
            let (running_for, length) = (now.since(*since), end.since(*since));
            let reported = Some((running_for.0 * u64::from(WHOLE) / length.0.max(1)) as u32);
            (
                attempt,
                Sample {
                    running_for,
                    reported,
                    cpu: Duration(if self.hides_cpu { 0 } else { running_for.0 / slowness }),
                    read_bytes: 0,
                },
            )
        });
        samples.collect()
    }

    /// The ends that were not acknowledged, the files, and the running attempts.
    fn list(&self, now: Instant, node: NodeId) -> Vec<ExecutorReport> {
        let ends = self.ends.iter();
        let mut reports: Vec<ExecutorReport> =
            ends.map(|(id, end)| ExecutorReport::Finished { attempt: *id, ended: end.clone() }).collect();
        if !self.files.is_empty() {
            let stored = |(&digest, &bytes): (&Digest, &u64)| StoredFile { digest, bytes };
            let files = self.files.iter().map(stored).collect();
            reports.push(ExecutorReport::Stored { node, files });
        }
        let attempts = self.running.values().map(|(order, since, _)| {
            let yields_since = self.yielding.get(&order.attempt);
            Executing {
                order: order.clone(),
                running_for: yields_since.unwrap_or(&now).since(*since),
                yields_for: yields_since.map(|since| now.since(*since)),
                pid: 1,
                asked_to_end: None,
            }
        });
        reports.push(ExecutorReport::Executing { attempts: attempts.collect() });
        reports
    }
}

impl World {
    pub fn deliver_held_fetches(&mut self, node: usize) {
        let executor = &mut self.nodes[node].executor;
        executor.holds_fetches = false;
        for (file, from) in std::mem::take(&mut executor.held_fetches) {
            let node = NodeId(node as u32);
            self.at_executor(node, ToExecutor::Fetch { node, file, from });
        }
    }

    /// Delivers only the held fetch from that node, and returns the file.
    pub fn deliver_held_fetch(&mut self, node: usize, from: NodeId) -> Digest {
        let held = &mut self.nodes[node].executor.held_fetches;
        let at = held.iter().position(|(_, other)| *other == from).expect("a fetch from that node is held");
        let (file, from) = held.remove(at);
        let number = NodeId(node as u32);
        let outcome = self.fetch(number, file, from);
        let end = Box::new((file.digest, from, outcome));
        let body = ToNode::Executor(ExecutorReport::Fetched { node: number, end });
        self.at_node(node, Event::Message { from: Address::Executor(number), body });
        file.digest
    }

    pub(super) fn fetch(&mut self, node: NodeId, file: StoredFile, from: NodeId) -> Fetched {
        let source = &mut self.nodes[from.0 as usize].executor;
        if source.is_silent {
            return Fetched::Unreachable;
        }
        if !source.files.contains_key(&file.digest) {
            return Fetched::Absent;
        }
        if source.spoils > 0 {
            source.spoils -= 1;
            source.files.remove(&file.digest);
            return Fetched::Spoiled;
        }
        if source.sends_wrong > 0 {
            source.sends_wrong -= 1;
            return Fetched::Wrong;
        }
        self.nodes[node.0 as usize].executor.files.insert(file.digest, file.bytes);
        Fetched::Done
    }

    pub(super) fn at_executor(&mut self, node: NodeId, body: ToExecutor) {
        let now = self.now;
        let mut reports = Vec::new();
        if let ToExecutor::Fetch { file, from, .. } = body {
            let executor = &mut self.nodes[node.0 as usize].executor;
            if executor.holds_fetches {
                return executor.held_fetches.push((file, from));
            }
            executor.fetched.push((file.digest, from));
            let outcome = self.fetch(node, file, from);
            reports.push(ExecutorReport::Fetched { node, end: Box::new((file.digest, from, outcome)) });
        }
        let executor = &mut self.nodes[node.0 as usize].executor;
        match body {
            ToExecutor::Fetch { .. } => {}
            ToExecutor::Drop { files, .. } => executor.files.retain(|digest, _| !files.contains(digest)),
            ToExecutor::Launch(order) => reports.push(executor.on_launch(now, node, *order)),
            ToExecutor::Promote { attempt, grant } => {
                if let Some((order, ..)) = executor.running.get_mut(&attempt) {
                    order.promote(grant);
                }
            }
            ToExecutor::SetTimeout { attempt, timeout } => {
                if let Some((order, ..)) = executor.running.get_mut(&attempt) {
                    order.set_timeout(timeout);
                }
            }
            ToExecutor::Yield { attempt } => {
                if executor.running.contains_key(&attempt) {
                    executor.yielding.entry(attempt).or_insert(now);
                }
            }
            ToExecutor::Resume { attempt } => {
                if let Some(yields_since) = executor.yielding.remove(&attempt) {
                    let length = now.since(yields_since);
                    let (_, since, end) = executor.running.get_mut(&attempt).expect("the attempt runs");
                    *since += length;
                    *end += length;
                    let yielded = executor.yielded.entry(attempt).or_default();
                    *yielded += length;
                }
            }
            ToExecutor::Signal { attempt, reason, .. } => {
                executor.yielding.remove(&attempt);
                if executor.running.remove(&attempt).is_some() {
                    let ended = Ended::without_run(reason);
                    executor.ends.insert(attempt, ended.clone());
                    reports.push(ExecutorReport::Finished { attempt, ended });
                }
            }
            ToExecutor::Acknowledge { attempt } => {
                executor.ends.remove(&attempt);
            }
            ToExecutor::Measure { attempts, .. } => {
                let samples = executor.measure(now, &attempts);
                reports.push(ExecutorReport::Measured { node, samples });
            }
            ToExecutor::List { .. } => reports = executor.list(now, node),
        }
        for report in reports {
            self.mail.push_back((
                Address::Executor(node),
                Address::Node(node),
                Message::ToNode(ToNode::Executor(report)),
            ));
        }
    }
}

/// The files that an attempt stores. They depend on the stage's name and the index, not on the attempt.
pub(super) fn outputs(order: &LaunchOrder, bytes: u64) -> Vec<OutputFile> {
    let index = order.index;
    let named = |name: &String| {
        let name = files::name_for(name, index);
        let text = format!("{}/{index}/{name}", order.template.stage_name);
        OutputFile { name, digest: digest_of(&text), bytes }
    };
    order.template.outputs.iter().map(named).collect()
}
