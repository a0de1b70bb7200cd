//! A cluster in memory for tests of clients. It runs no processes. Five commands have an effect; a task with any other
//! command succeeds immediately.
//!
//! `echo TEXT..` writes its arguments, `item` writes the task's item, `warn TEXT..` writes to standard error,
//! `exit CODE` ends with this exit code, `hang` writes a line and runs until it is cancelled.

use super::backend::{
    Acted, Backend, FoundFile, InputRequest, JobFilter, OutputChunk, OutputFilter, OutputRequest, Page, StoryFilter,
    TaskFilter,
};
use crate::api::{
    Action, AttemptSummary, ChosenCounts, ChosenTasks, ClusterSummary, ConfigChange, Error, ErrorCode, Event,
    EventKind, InputState, InputTaken, JobDetail, JobState, JobSummary, Listing, NodeDetail, NodeState, NodeSummary,
    OutputFile, QueueSummary, Report, ReportRow, StageDetail, StoryLine, Submitted, TaskCounts, TaskState, TaskSummary,
    Timestamp, Waited,
};
use crate::dates::{By, date};
use crate::files::{Piece, PieceAsk};
use amalgam_core::protocol::JobUpdate;
use amalgam_core::vocabulary::{
    AttemptId, ByteString, Digest, Epoch, JobId, JobSpec, NodeId, QueueSettings, Stream, TaskId,
};
use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// The name of a task's only output, which contains its standard output.
const SAID: &str = "said";

/// Reads the `JOB.STAGE.INDEX` of an event.
fn numbers(job: JobId, task: &str) -> Option<TaskId> {
    let mut parts = task.strip_prefix(&format!("{job}."))?.split('.');
    Some(TaskId { job, stage: parts.next()?.parse().ok()?, index: parts.next()?.parse().ok()? })
}

fn digest_of(bytes: &[u8]) -> Digest {
    Digest(Sha256::digest(bytes).into())
}

pub struct FakeCluster {
    state: Arc<Mutex<State>>,
    /// Counts changes; subscribers wait for the next one.
    changed: Arc<watch::Sender<u64>>,
}

#[derive(Default)]
struct State {
    jobs: BTreeMap<u64, FakeJob>,
    keys: BTreeMap<String, Submitted>,
    events: Vec<Event>,
    drained: bool,
}

struct FakeJob {
    spec: JobSpec,
    state: JobState,
    tasks: Vec<FakeTask>,
    submitted_at: Timestamp,
}

struct FakeTask {
    id: TaskId,
    state: TaskState,
    exit_code: Option<u8>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Default for FakeCluster {
    fn default() -> FakeCluster {
        FakeCluster { state: Arc::default(), changed: Arc::new(watch::channel(0).0) }
    }
}

impl FakeCluster {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and notifies the subscribers of `changed`.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.send_modify(|count| *count += 1);
        result
    }

    /// Calls `ask` again after every change, until it returns an answer or `patience` has passed.
    async fn until<T>(
        &self,
        patience: Duration,
        mut ask: impl FnMut(&State) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        let mut changed = self.changed.subscribe();
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            if let Some(answer) = ask(&self.lock())? {
                return Ok(Some(answer));
            }
            if tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                return Ok(None);
            }
        }
    }
}

impl State {
    fn job(&self, job: JobId) -> Result<&FakeJob, Error> {
        self.jobs.get(&job.0).ok_or_else(|| Error::no_such_job(job.0))
    }

    fn emit(&mut self, kind: EventKind, job: u64, task: Option<usize>) {
        let Some(owner) = self.jobs.get(&job) else { return };
        let mut event = Event {
            sequence: self.events.len() as u64 + 1,
            at: Timestamp::now(),
            kind,
            user: Some(owner.spec.user.clone()),
            job: Some(job),
            ..Event::default()
        };
        if let Some(task) = task.and_then(|at| owner.tasks.get(at)) {
            event.task = Some(task.id.to_string());
            event.stage = owner.spec.stages.get(task.id.stage as usize).map(|stage| stage.name.clone());
            event.index = Some(task.id.index);
            event.attempt = Some(format!("{job}-1-{}", task.id.index));
            event.exit_code = task.exit_code;
            event.stdout_bytes = Some(task.stdout.len() as u64);
            event.stderr_bytes = Some(task.stderr.len() as u64);
        }
        self.events.push(event);
    }

    fn run(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.state = JobState::Running;
        for task in &mut job.tasks {
            let Some(stage) = job.spec.stages.get(task.id.stage as usize) else { continue };
            if !task.state.has_ended() {
                run_task(task, &stage.program.command, stage.tasks.item(task.id.index));
            }
        }
        let count = job.tasks.len();
        self.emit(EventKind::JobStarted, id, None);
        for task in 0..count {
            if self.jobs[&id].tasks[task].state.has_ended() {
                self.emit(EventKind::TaskEnded, id, Some(task));
            }
        }
        self.settle(id);
    }

    fn settle(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if !job.tasks.iter().all(|task| task.state.has_ended()) {
            return;
        }
        let any = |state| job.tasks.iter().any(|task| task.state == state);
        job.state = if any(TaskState::Cancelled) {
            JobState::Cancelled
        } else if any(TaskState::Failed) {
            JobState::Failed
        } else {
            JobState::Succeeded
        };
        self.emit(EventKind::JobEnded, id, None);
    }

    fn cancel(&mut self, id: u64) {
        let count = self.jobs.get(&id).map_or(0, |job| job.tasks.len());
        for at in 0..count {
            if let Some(task) = self.jobs.get_mut(&id).and_then(|job| job.tasks.get_mut(at))
                && !task.state.has_ended()
            {
                (task.state, task.exit_code) = (TaskState::Cancelled, Some(130));
                self.emit(EventKind::TaskEnded, id, Some(at));
            }
        }
        self.settle(id);
    }
}

fn run_task(task: &mut FakeTask, command: &[ByteString], item: Option<&[u8]>) {
    let words: Vec<String> = command.iter().map(ByteString::to_string).collect();
    let rest = words.get(1..).unwrap_or_default().join(" ");
    let mut code = 0;
    match words.first().map(String::as_str) {
        Some("echo") => task.stdout = format!("{rest}\n").into_bytes(),
        Some("item") => task.stdout = [item.unwrap_or_default(), b"\n"].concat(),
        Some("warn") => task.stderr = format!("{rest}\n").into_bytes(),
        Some("exit") => code = rest.parse().unwrap_or(1),
        Some("hang") => {
            task.stdout = b"hanging\n".to_vec();
            task.state = TaskState::Running;
            return;
        }
        _ => {}
    }
    task.exit_code = Some(code);
    task.state = if code == 0 { TaskState::Succeeded } else { TaskState::Failed };
}

impl FakeJob {
    fn new(id: u64, spec: JobSpec) -> FakeJob {
        let ids = spec.stages.iter().enumerate().flat_map(|(stage, spec)| {
            (0..spec.tasks.len()).map(move |index| TaskId { job: JobId(id), stage: stage as u32, index })
        });
        let task = |id| FakeTask { id, state: TaskState::Queued, exit_code: None, stdout: vec![], stderr: vec![] };
        let state = if spec.held { JobState::Held } else { JobState::Pending };
        FakeJob { tasks: ids.map(task).collect(), spec, state, submitted_at: Timestamp::now() }
    }

    fn counts(&self, stage: Option<u32>) -> TaskCounts {
        let mut counts = TaskCounts::default();
        for task in self.tasks.iter().filter(|task| stage.is_none_or(|stage| stage == task.id.stage)) {
            counts.total += 1;
            *match task.state {
                TaskState::Waiting => &mut counts.waiting,
                TaskState::Queued => &mut counts.queued,
                TaskState::Running => &mut counts.running,
                TaskState::Succeeded => &mut counts.succeeded,
                TaskState::Failed => &mut counts.failed,
                TaskState::Cancelled => &mut counts.cancelled,
            } += 1;
        }
        counts
    }

    fn summary(&self, id: u64) -> JobSummary {
        JobSummary {
            id,
            name: self.spec.name.clone(),
            user: self.spec.user.clone(),
            queue: self.spec.queue.clone(),
            priority: self.spec.priority,
            state: self.state,
            reason: (self.state == JobState::Held).then(|| "held by its owner".to_owned()),
            submitted_at: self.submitted_at,
            started_at: (self.state != JobState::Held).then_some(self.submitted_at),
            ended_at: self.state.has_ended().then_some(self.submitted_at),
            tasks: self.counts(None),
            ..JobSummary::default()
        }
    }

    fn exit_code(&self) -> Option<u8> {
        let first_failed = self.tasks.iter().filter_map(|task| task.exit_code).find(|code| *code != 0);
        self.state.has_ended().then(|| first_failed.unwrap_or(0))
    }

    fn waited(&self, id: u64) -> Waited {
        Waited { job: id, state: self.state, exit_code: self.exit_code(), reason: None }
    }
}

/// A page of a complete list. The cursor is the position of the next page's first item.
fn paged<T>(all: Vec<T>, page: &Page) -> Result<Listing<T>, Error> {
    let start: usize = match &page.cursor {
        None => 0,
        Some(cursor) => cursor.parse().map_err(|_| {
            Error::bad_request(format!("invalid cursor `{cursor}`"), "use the `next` of the page before")
        })?,
    };
    let end = start.saturating_add(page.limit as usize).min(all.len());
    let next = (end < all.len()).then(|| end.to_string());
    Ok(Listing { items: all.into_iter().take(end).skip(start).collect(), next, others: None })
}

#[async_trait]
impl Backend for FakeCluster {
    async fn submit(&self, job: JobSpec, idempotency_key: Option<String>) -> Result<Submitted, Error> {
        self.change(|state| {
            if let Some(before) = idempotency_key.as_ref().and_then(|key| state.keys.get(key)) {
                return Ok(before.clone());
            }
            let id = state.jobs.len() as u64 + 1;
            let submitted = Submitted { job: id, sequence: state.events.len() as u64 + 1 };
            let held = job.held;
            state.jobs.insert(id, FakeJob::new(id, job));
            state.keys.extend(idempotency_key.map(|key| (key, submitted.clone())));
            state.emit(EventKind::JobSubmitted, id, None);
            if !held {
                state.run(id);
            }
            Ok(submitted)
        })
    }

    async fn owner(&self, job: JobId) -> Result<String, Error> {
        Ok(self.lock().job(job)?.spec.user.clone())
    }

    async fn jobs(&self, filter: JobFilter, page: Page) -> Result<Listing<JobSummary>, Error> {
        let state = self.lock();
        let jobs = state.jobs.iter().rev().map(|(id, job)| job.summary(*id)).filter(|job| filter.admits(job));
        paged(jobs.collect(), &page)
    }

    async fn job(&self, job: JobId) -> Result<JobDetail, Error> {
        let state = self.lock();
        let found = state.job(job)?;
        let stage = |(index, spec): (usize, &amalgam_core::vocabulary::StageSpec)| StageDetail {
            name: spec.name.clone(),
            after: spec.after.iter().map(|before| found.spec.stages[*before as usize].name.clone()).collect(),
            command: spec.program.command.clone(),
            tasks: found.counts(Some(index as u32)),
            resources: BTreeMap::from([("cpu".to_owned(), f64::from(spec.resources.basic.cpu_millis()) / 1e3)]),
            constraints: spec.constraints.iter().map(ToString::to_string).collect(),
            retries: spec.retries,
            retry_delay_seconds: spec.first_retry_delay().as_secs_f64(),
            gang: spec.gang,
            at_once: spec.at_once,
            priority: spec.priority.unwrap_or(0),
            timeout_seconds: spec.timeout.map(|timeout| timeout.as_secs_f64()),
            ..StageDetail::default()
        };
        Ok(JobDetail {
            summary: found.summary(job.0),
            stages: found.spec.stages.iter().enumerate().map(stage).collect(),
            after_jobs: found.spec.after_jobs.iter().map(|job| job.0).collect(),
            submit_dir: found.spec.submit_dir.clone(),
            max_fails: found.spec.max_fails,
            exit_code: found.exit_code(),
            ..JobDetail::default()
        })
    }

    async fn tasks(&self, job: JobId, filter: TaskFilter, page: Page) -> Result<Listing<TaskSummary>, Error> {
        let state = self.lock();
        let found = state.job(job)?;
        let summary = |task: &FakeTask| {
            let stage = &found.spec.stages[task.id.stage as usize];
            TaskSummary {
                task: task.id.to_string(),
                stage: stage.name.clone(),
                index: task.id.index,
                value: stage.tasks.index_value(task.id.index),
                item: stage.tasks.item(task.id.index).map(ByteString::from),
                state: task.state,
                exit_code: task.exit_code,
                attempts: 1,
                ..TaskSummary::default()
            }
        };
        let tasks = found.tasks.iter().filter(|task| filter.admits(task.id, task.state)).map(summary);
        paged(tasks.collect(), &page)
    }

    async fn story(&self, job: JobId, of: StoryFilter, page: Page) -> Result<Listing<StoryLine>, Error> {
        let state = self.lock();
        state.job(job)?;
        let is_of = |task: &str| numbers(job, task).is_some_and(|task| of.admits(task));
        let whole = of == StoryFilter::default();
        let concerns = |event: &&Event| event.job == Some(job.0) && (whole || event.task.as_deref().is_some_and(is_of));
        let line = |event: &Event| StoryLine {
            sequence: event.sequence,
            at: event.at,
            kind: event.kind.to_string(),
            text: format!("{} of {}", event.kind, event.task.as_deref().unwrap_or("the job")),
            task: event.task.clone(),
            attempt: event.attempt.clone(),
            node: event.node.clone(),
            allocation: None,
        };
        paged(state.events.iter().filter(concerns).map(line).collect(), &page)
    }

    async fn attempts(&self, job: JobId, task: Option<TaskId>, page: Page) -> Result<Listing<AttemptSummary>, Error> {
        let state = self.lock();
        state.job(job)?;
        let task = task.map(|task| task.to_string());
        let launched = |event: &&Event| event.job == Some(job.0) && event.attempt.is_some();
        let of_task = |event: &&Event| task.is_none() || event.task == task;
        let mut attempts: Vec<AttemptSummary> = Vec::new();
        for event in state.events.iter().filter(launched).filter(of_task) {
            let (attempt, task) = (event.attempt.clone().unwrap_or_default(), event.task.clone().unwrap_or_default());
            if !attempts.iter().any(|known| known.attempt == attempt) {
                attempts.push(AttemptSummary { attempt, task, ..AttemptSummary::default() });
            }
        }
        paged(attempts, &page)
    }

    async fn history(&self, filter: JobFilter, page: Page) -> Result<Listing<JobSummary>, Error> {
        let state = self.lock();
        let jobs = state.jobs.iter().rev().map(|(id, job)| job.summary(*id));
        paged(jobs.filter(|job| job.state.has_ended() && filter.admits(job)).collect(), &page)
    }

    async fn act(&self, job: JobId, action: Action, _: &str) -> Result<Acted, Error> {
        self.change(|state| {
            let found = state.job(job)?;
            let conflict = |what: &str| {
                let message = format!("job {job} is {} and cannot be {what}", found.state);
                Err(Error::new(ErrorCode::Conflict, message, "`amalgam info` shows its state"))
            };
            match action {
                Action::Cancel if found.state.has_ended() => return conflict("cancelled"),
                Action::Abandon => return conflict("abandoned"),
                Action::Cancel => state.cancel(job.0),
                Action::Hold if found.state != JobState::Pending => return conflict("held"),
                Action::Release if found.state != JobState::Held => return conflict("released"),
                Action::RerunFailed if !found.state.has_ended() => return conflict("run again"),
                Action::Hold | Action::Release | Action::RerunFailed => {
                    if let Some(job) = state.jobs.get_mut(&job.0) {
                        for task in job.tasks.iter_mut().filter(|task| task.state != TaskState::Succeeded) {
                            (task.state, task.exit_code) = (TaskState::Queued, None);
                        }
                    }
                    state.run(job.0);
                }
            }
            Ok(Acted::default())
        })
    }

    async fn act_on_tasks(
        &self,
        job: JobId,
        _: Action,
        tasks: &[ChosenTasks],
    ) -> Result<(Option<String>, ChosenCounts), Error> {
        self.lock().job(job)?;
        let waiting = tasks.iter().map(|range| range.last - range.first + 1).sum();
        Ok((None, ChosenCounts { waiting, ..ChosenCounts::default() }))
    }

    async fn update(&self, job: JobId, update: JobUpdate, _: &str) -> Result<Acted, Error> {
        self.change(|state| {
            state.job(job)?;
            if let (Some(job), Some(priority)) = (state.jobs.get_mut(&job.0), update.priority) {
                job.spec.priority = priority;
            }
            Ok(Acted::default())
        })
    }

    async fn wait(&self, job: JobId, patience: Duration) -> Result<Waited, Error> {
        let ended = |state: &State| {
            let found = state.job(job)?;
            Ok(found.state.has_ended().then(|| found.waited(job.0)))
        };
        match self.until(patience, ended).await? {
            Some(waited) => Ok(waited),
            None => Ok(self.lock().job(job)?.waited(job.0)),
        }
    }

    async fn output(&self, request: OutputRequest) -> Result<OutputChunk, Error> {
        let piece = |state: &State| {
            let task = state.job(request.task.job)?.tasks.iter().find(|task| task.id == request.task);
            let task = task.ok_or_else(|| {
                let message = format!("job {} has no task {}", request.task.job, request.task);
                Error::new(ErrorCode::NotFound, message, "`amalgam info JOB --tasks` shows them")
            })?;
            let all = if request.stream == Stream::Stdout { &task.stdout } else { &task.stderr };
            let start = usize::try_from(request.offset).unwrap_or(usize::MAX).min(all.len());
            let end = start.saturating_add(request.limit as usize).min(all.len());
            let ended = task.state.has_ended() && end == all.len();
            let attempt = Some(AttemptId { job: task.id.job, epoch: Epoch(1), number: task.id.index });
            let bytes = all[start..end].to_vec();
            Ok((start < end || ended).then_some(OutputChunk { bytes, ended, attempt, newer: None }))
        };
        Ok(self.until(request.patience, piece).await?.unwrap_or_default())
    }

    async fn stage(&self, job: JobId, name: &str) -> Result<Option<u32>, Error> {
        let state = self.lock();
        Ok(state.job(job)?.spec.stages.iter().position(|stage| stage.name == name).map(|number| number as u32))
    }

    async fn node_named(&self, name: &str) -> Result<Option<NodeId>, Error> {
        Ok(self.nodes().await?.into_iter().find(|node| node.name == name).map(|node| NodeId(node.id)))
    }

    async fn outputs(&self, job: JobId, filter: OutputFilter, _: Page) -> Result<Listing<OutputFile>, Error> {
        let state = self.lock();
        let job = state.job(job)?;
        let is_wanted = |task: &&FakeTask| {
            filter.stage.is_none_or(|stage| stage == task.id.stage)
                && filter.index.is_none_or(|index| index == task.id.index)
        };
        let file = |task: &FakeTask| OutputFile {
            task: task.id.to_string(),
            stage: job.spec.stages.get(task.id.stage as usize).map(|stage| stage.name.clone()).unwrap_or_default(),
            index: task.id.index,
            attempt: format!("{}-1-{}", task.id.job, task.id.index),
            name: SAID.to_owned(),
            bytes: task.stdout.len() as u64,
            sha256: digest_of(&task.stdout).to_string(),
            nodes: vec!["node-1".to_owned()],
        };
        Ok(Listing { items: job.tasks.iter().filter(is_wanted).map(file).collect(), ..Listing::default() })
    }

    async fn output_file(&self, task: TaskId, name: &str) -> Result<FoundFile, Error> {
        let state = self.lock();
        let found = state.job(task.job)?.tasks.iter().find(|known| known.id == task && name == SAID);
        let found = found.map(|task| FoundFile {
            digest: digest_of(&task.stdout),
            bytes: task.stdout.len() as u64,
            nodes: vec![NodeId(1)],
        });
        let message = format!("task {task} has no output `{name}`");
        found.ok_or_else(|| Error::new(ErrorCode::NotFound, message, format!("its only output is `{SAID}`")))
    }

    async fn piece(&self, ask: PieceAsk) -> Piece {
        let state = self.lock();
        let mut stdouts = state.jobs.values().flat_map(|job| &job.tasks).map(|task| &task.stdout);
        let found = stdouts.find(|stdouts| digest_of(stdouts) == ask.digest);
        let rest = found.and_then(|stdouts| stdouts.get(ask.offset as usize..));
        rest.map_or(Piece::Absent, |rest| Piece::Bytes(rest[..rest.len().min(ask.limit as usize)].to_vec()))
    }

    async fn input(&self, request: InputRequest) -> Result<InputTaken, Error> {
        // No command of the fake cluster reads its input.
        self.lock().job(request.task.job)?;
        Ok(InputTaken { state: InputState::Closed, attempt: None, taken: request.part.offset })
    }

    async fn nodes(&self) -> Result<Vec<NodeSummary>, Error> {
        let state = if self.lock().drained { NodeState::Drained } else { NodeState::Up };
        let capacity = BTreeMap::from([("cpu".to_owned(), 2.0), ("memory".to_owned(), 4096.0)]);
        Ok(vec![NodeSummary {
            id: 1,
            name: "fake".to_owned(),
            state,
            free: capacity.clone(),
            capacity,
            ..Default::default()
        }])
    }

    async fn node(&self, node: NodeId) -> Result<NodeDetail, Error> {
        let summary = self.nodes().await?.into_iter().find(|known| known.id == node.0).ok_or_else(|| {
            Error::new(ErrorCode::NotFound, format!("node {node} not found"), "`amalgam node list` shows the nodes")
        })?;
        let attributes = BTreeMap::from([("arch".to_owned(), "x86_64".to_owned())]);
        Ok(NodeDetail { summary, attributes, enforcement: "none".to_owned(), ..NodeDetail::default() })
    }

    async fn drain(&self, node: NodeId, drain: bool) -> Result<(), Error> {
        self.node(node).await?;
        self.change(|state| state.drained = drain);
        Ok(())
    }

    async fn remove_node(&self, node: NodeId) -> Result<(), Error> {
        self.node(node).await.map(drop)
    }

    async fn label_node(&self, node: NodeId, _: Vec<(String, Option<String>)>) -> Result<(), Error> {
        self.node(node).await.map(drop)
    }

    async fn set_queue(&self, queue: &str, _: Option<QueueSettings>) -> Result<(), Error> {
        let missing = || Error::new(ErrorCode::NotFound, format!("queue `{queue}` not found"), "list the queues");
        (queue == "root.default").then_some(()).ok_or_else(missing)
    }

    async fn reload(&self) -> Result<Vec<ConfigChange>, Error> {
        Ok(Vec::new())
    }

    async fn queues(&self) -> Result<Vec<QueueSummary>, Error> {
        Ok(vec![QueueSummary {
            name: "root.default".to_owned(),
            parent: Some("root".to_owned()),
            weight: 1.0,
            maximum: 1.0,
            ..Default::default()
        }])
    }

    async fn report(&self, (from, to): (u64, u64), _: By, user: Option<String>) -> Result<Report, Error> {
        let row = ReportRow { user, ..ReportRow::default() };
        Ok(Report { from: date(from), to: date(to), rows: vec![row] })
    }

    async fn cluster(&self) -> Result<ClusterSummary, Error> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(ClusterSummary { version, nodes_up: 1, nodes_total: 1, queues: self.queues().await?, ..Default::default() })
    }

    async fn events(&self, from: u64, job: Option<JobId>) -> Result<BoxStream<'static, Event>, Error> {
        let (state, changed) = (self.state.clone(), self.changed.subscribe());
        let all = stream::unfold((from.max(1), state, changed), |(next, state, mut changed)| async move {
            loop {
                let event = {
                    let state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    state.events.get(next as usize - 1).cloned()
                };
                match event {
                    Some(event) => return Some((event, (next + 1, state, changed))),
                    None => changed.changed().await.ok()?,
                }
            }
        });
        Ok(all.filter(move |event| std::future::ready(job.is_none_or(|job| event.job == Some(job.0)))).boxed())
    }

    async fn metrics(&self) -> Result<String, Error> {
        Ok(format!("# TYPE amalgam_jobs gauge\namalgam_jobs {}\n", self.lock().jobs.len()))
    }

    async fn ready(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// A fake cluster that listens on a local port. Clients find it through its state directory, as they find a server.
pub struct FakeServer {
    pub address: std::net::SocketAddr,
    pub tokens: Arc<crate::auth::Tokens>,
    close: Option<tokio::sync::oneshot::Sender<()>>,
    server: Option<std::thread::JoinHandle<()>>,
}

impl FakeServer {
    /// # Panics
    /// If the server cannot be started.
    pub fn start(state_dir: &std::path::Path, user: &str) -> FakeServer {
        FakeServer::with_issuers(state_dir, user, crate::auth::Issuers::default())
    }

    /// A server that accepts tokens of these issuers, too.
    ///
    /// # Panics
    /// If the server cannot be started.
    pub fn with_issuers(state_dir: &std::path::Path, user: &str, issuers: crate::auth::Issuers) -> FakeServer {
        let tokens = Arc::new(crate::auth::Tokens::open(state_dir, user).expect("a usable state directory"));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("a bound port");
        let (close, closed) = tokio::sync::oneshot::channel();
        let file = crate::api::ServerFile {
            address: address.to_string(),
            https: false,
            addresses: Vec::new(),
            pid: std::process::id(),
            token_file: tokens.path().as_os_str().as_encoded_bytes().into(),
            agents: None,
            agents_addresses: Vec::new(),
        };
        let text = serde_json::to_string(&file).expect("plain texts");
        std::fs::write(state_dir.join(crate::api::ServerFile::NAME), text).expect("a writable directory");
        let audit = crate::audit::AuditLog::open(state_dir).expect("a usable state directory");
        let (accounts, audit) = (Arc::default(), Some(Arc::new(audit)));
        let callers = crate::auth::Callers {
            tokens: tokens.clone(),
            accounts,
            audit,
            local: None,
            trusted: None,
            issuers: Arc::new(issuers),
            isolation: Arc::default(),
        };
        let encryption = super::Encryption { certificate: None, plain_http: true };
        let entrance = super::Entrance { listeners: vec![listener], encryption };
        let serving = super::serve(entrance, Arc::new(FakeCluster::default()), callers, async {
            let _ = closed.await;
        });
        let server = std::thread::spawn(move || runtime.block_on(serving));
        FakeServer { address, tokens, close: Some(close), server: Some(server) }
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        drop(self.close.take());
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}
