//! The public interface's backend over the event loop, the log and the nodes' files.

use crate::accounting::{Accounting, AccountingError};
use crate::api::{
    Action, AttemptSummary, ChosenCounts, ChosenTasks, ClusterSummary, ConfigChange, Error, ErrorCode, Event,
    EventKind, InputState, InputTaken, JobDetail, JobSummary, Listing, NodeDetail, NodeSummary, OutputFile,
    QueueSummary, Report, StoryLine, Submitted, TaskSummary, Waited,
};
use crate::attempts::Attempts;
use crate::dates::By;
use crate::files::{Piece, PieceAsk};
use crate::http::{
    Acted, Backend, FoundFile, InputRequest, JobFilter, OutputChunk, OutputFilter, OutputRequest, Page, StoryFilter,
    TaskFilter,
};
use crate::input::Taken;
use crate::neighbours::Neighbours;
use crate::outputs;
use crate::reload::{Reloader, refused, stopping};
use crate::shell::{EventRing, Handle, Metrics, Stopped, decode};
use crate::store::History;
use crate::story::{JobNames, story_line};
use crate::transport::{Fetched, RemoteNodes};
use crate::views;
use amalgam_core::hosting::{Fact, Roles};
use amalgam_core::progress::TaskState;
use amalgam_core::protocol::{JobAction, JobUpdate, ToClient, ToMaster};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{AttemptId, Chosen, Instant, JobId, JobSpec, NodeId, QueueSettings, TaskAction, TaskId};
use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Interval between checks of a file that may grow.
const LOOK: Duration = Duration::from_millis(50);
/// Events read at once for one event stream.
const EVENTS_AT_ONCE: usize = 1_000;
/// The period over which tasks per second are averaged.
const LATELY: Duration = Duration::from_secs(5);

pub struct ServerBackend {
    pub handle: Handle,
    pub history: History,
    pub events: Arc<EventRing>,
    pub metrics: Arc<Metrics>,
    pub remote: Arc<RemoteNodes>,
    pub started: Instant,
    /// Ended tasks at the recent calls of `cluster`, for the rate.
    pub ended: Mutex<VecDeque<(std::time::Instant, u64)>>,
    /// Set in a federation.
    pub neighbours: Option<Neighbours>,
    pub accounting: Arc<Accounting>,
    /// Set if there is a configuration that can be read again.
    pub reloader: Option<Arc<Reloader>>,
}

/// The place of a task's output, and whether the output can still grow.
enum OutputPlace {
    Nowhere { ended: bool },
    At { node: NodeId, attempt: AttemptId, ended: bool, newer: Option<AttemptId> },
}

impl ServerBackend {
    async fn look<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Roles, Instant) -> T + Send + 'static,
    ) -> Result<T, Error> {
        self.handle.ask(question).await.map_err(stopping)
    }

    async fn order(&self, body: ToMaster) -> Result<ToClient, Error> {
        match self.handle.request(body).await.map_err(stopping)? {
            ToClient::Refused(refusal) => Err(refused(refusal)),
            answer => Ok(answer),
        }
    }

    async fn place(&self, request: &OutputRequest) -> Result<OutputPlace, Error> {
        let (task, attempt) = (request.task, request.attempt);
        let latest = self.look(move |roles, _| latest_attempt(roles, task)).await?;
        let latest = latest.ok_or_else(|| no_such_task(task))?;
        match (latest, attempt) {
            (Latest::None { ended }, _) => Ok(OutputPlace::Nowhere { ended }),
            (Latest::Attempt { node, attempt: latest, ended }, wanted) if wanted.is_none_or(|id| id == latest) => {
                Ok(OutputPlace::At { node, attempt: latest, ended, newer: None })
            }
            (Latest::Attempt { attempt: latest, .. }, Some(wanted)) => {
                let node = self.node_of_earlier(wanted).await?;
                Ok(OutputPlace::At { node, attempt: wanted, ended: true, newer: Some(latest) })
            }
            (Latest::Attempt { .. }, None) => Ok(OutputPlace::Nowhere { ended: true }),
        }
    }

    /// The node of an earlier attempt, from the log.
    async fn node_of_earlier(&self, attempt: AttemptId) -> Result<NodeId, Error> {
        let history = self.history.clone();
        let found = blocking(move || {
            let mut found = None;
            history.scan(Some(attempt.job.0), 0, |_, entry| match decode(entry) {
                Ok(Fact::Change(Change::Launched { attempt: launched, node, .. })) if launched == attempt => {
                    found = Some(node);
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            })?;
            Ok(found)
        });
        let missing = || {
            Error::new(ErrorCode::NotFound, format!("attempt {attempt} not found"), "`amalgam story` shows attempts")
        };
        found.await?.ok_or_else(missing)
    }

    async fn name_of(&self, node: NodeId) -> Result<String, Error> {
        let named = move |roles: &Roles, _| Some(roles.dispatch()?.names.of(node)?.to_owned());
        Ok(self.look(named).await?.unwrap_or_else(|| node.to_string()))
    }

    /// Refuses further jobs for a queue that the configuration does not have any more. A job that is `known` and in it stays there.
    async fn check_queue(&self, queue: &str, known: Known) -> Result<(), Error> {
        let Some(reloader) = self.reloader.as_ref().filter(|reloader| reloader.has_gone()) else { return Ok(()) };
        let queue = queue.to_owned();
        let full = move |roles: &Roles, _| {
            let dispatch = roles.dispatch()?;
            let queues = dispatch.queues();
            let found = queues.leaf(&queue).ok()?;
            let is_there = match known {
                Known::Job(job) => dispatch.queue_of(job).is_none_or(|queue| queue == found),
                Known::Key(user, key) => key.is_some_and(|key| dispatch.job_of_key(user, key).is_some()),
            };
            (!is_there).then(|| queues.spec(found).name.clone())
        };
        match self.look(full).await? {
            Some(name) if reloader.is_gone(&name) => {
                let message = format!("queue `{name}` is not in the configuration any more, and takes no further jobs");
                Err(Error::new(ErrorCode::Conflict, message, "use another one: `amalgam queue list` shows them"))
            }
            _ => Ok(()),
        }
    }

    async fn read(&self, node: NodeId, attempt: AttemptId, request: &OutputRequest) -> Result<Vec<u8>, Error> {
        let (stream, offset, limit) = (request.stream, request.offset, request.limit);
        match self.remote.output(&self.handle, node, attempt, stream, offset, limit).await {
            Fetched::Bytes(bytes) => Ok(bytes),
            Fetched::Failed(why) => {
                let node = self.name_of(node).await?;
                Err(Error::new(
                    ErrorCode::Internal,
                    format!("node {node} cannot read the output: {why}"),
                    "check the node's disk",
                ))
            }
            Fetched::Removed => {
                let node = self.name_of(node).await?;
                let what =
                    format!("node {node} has removed the output, because that of all ended tasks exceeded its limit");
                Err(Error::new(
                    ErrorCode::Removed,
                    what,
                    "read output earlier, or raise --output-limit of the node's agent",
                ))
            }
            Fetched::Away => {
                let what = format!("the output is on node {}, which is not reachable", self.name_of(node).await?);
                Err(Error::new(ErrorCode::Unavailable, what, "try again when the node is reachable"))
            }
        }
    }
}

enum Latest {
    None { ended: bool },
    Attempt { node: NodeId, attempt: AttemptId, ended: bool },
}

fn chosen(tasks: &[ChosenTasks]) -> Result<Chosen, Error> {
    let mut chosen = Chosen::default();
    for ChosenTasks { stage, first, last } in tasks {
        if first > last || *last == u32::MAX {
            let what = format!("invalid range of tasks: {first} to {last}");
            return Err(Error::bad_request(what, "give the first and the last position, from 0"));
        }
        chosen.0.entry(*stage).or_default().add(*first, last + 1);
    }
    Ok(chosen)
}

fn latest_attempt(roles: &Roles, task: TaskId) -> Option<Latest> {
    let (job, state) = roles.dispatch()?.job(task.job)?;
    let job_ended = matches!(state, amalgam_core::dispatch::JobState::Ended(_));
    let exists = job.spec.stages.get(task.stage as usize).is_some_and(|stage| task.index < stage.tasks.len());
    if !exists {
        return None;
    }
    let status = roles.jobs.get(&task.job).and_then(|manager| manager.dag().stage(task.stage).status(task.index));
    let Some(status) = status else { return Some(Latest::None { ended: job_ended }) };
    let ended = job_ended || !matches!(status.state, TaskState::Waiting | TaskState::Running);
    Some(match status.record {
        Some(record) => Latest::Attempt { node: record.node, attempt: record.attempt(task.job), ended },
        None => Latest::None { ended },
    })
}

#[async_trait]
impl Backend for ServerBackend {
    async fn submit(&self, job: JobSpec, key: Option<String>) -> Result<Submitted, Error> {
        if self.neighbours.is_some() && job.stages.iter().any(|stage| stage.program.stdin) {
            let message = "tasks cannot have standard input in a federation";
            let remedy = "use `--stdin none`, or let the task read a file";
            return Err(Error::new(ErrorCode::Unsupported, message, remedy));
        }
        let job = Arc::new(job);
        if let Some(neighbours) = self.neighbours.clone() {
            let submitted = Arc::clone(&job);
            let taker = move |roles: &Roles, _| neighbours.takes(roles.dispatch()?.queues(), &submitted);
            self.look(taker).await?.map_or(Ok(()), Err)?;
        }
        self.check_queue(&job.queue, Known::Key(job.user.clone(), key.clone())).await?;
        let sequence = self.events.newest() + 1;
        match self.order(ToMaster::Submit { spec: job, key }).await? {
            ToClient::Submitted { job } => Ok(Submitted { job: job.0, sequence }),
            other => Err(Error::new(ErrorCode::Internal, format!("the master answered {other:?}"), "report this")),
        }
    }

    async fn owner(&self, job: JobId) -> Result<String, Error> {
        self.neighbours.as_ref().and_then(|neighbours| neighbours.has_job(job)).map_or(Ok(()), Err)?;
        self.look(move |roles, _| views::owner(roles, job)).await?.ok_or_else(|| Error::no_such_job(job.0))
    }

    async fn jobs(&self, filter: JobFilter, page: Page) -> Result<Listing<JobSummary>, Error> {
        let before = cursor(&page)?.map(JobId);
        let limit = page.limit as usize;
        let hosts = self.handle.routes().job_hosts();
        let (items, next) =
            self.look(move |roles, now| views::jobs(roles, &filter, before, limit, &hosts, now)).await?;
        let others = self.neighbours.as_ref().and_then(Neighbours::others);
        Ok(Listing { items, next: next.map(|job| job.0.to_string()), others })
    }

    async fn job(&self, job: JobId) -> Result<JobDetail, Error> {
        let hosts = self.handle.routes().job_hosts();
        let found = self.look(move |roles, now| views::job(roles, job, &hosts, now)).await?;
        found.ok_or_else(|| Error::no_such_job(job.0))
    }

    async fn tasks(&self, job: JobId, filter: TaskFilter, page: Page) -> Result<Listing<TaskSummary>, Error> {
        let from = match &page.cursor {
            None => (0, 0),
            Some(text) => {
                let pair =
                    text.split_once('.').and_then(|(stage, index)| Some((stage.parse().ok()?, index.parse().ok()?)));
                pair.ok_or_else(|| bad_cursor(text))?
            }
        };
        let limit = page.limit as usize;
        let found = self.look(move |roles, now| views::tasks(roles, job, &filter, from, limit, now)).await?;
        let (items, next) = found.ok_or_else(|| Error::no_such_job(job.0))?;
        Ok(Listing { items, next: next.map(|(stage, index)| format!("{stage}.{index}")), others: None })
    }

    async fn story(&self, job: JobId, of: StoryFilter, page: Page) -> Result<Listing<StoryLine>, Error> {
        let from = cursor(&page)?.unwrap_or(0);
        let names = self.look(move |roles, _| JobNames::of(roles, job)).await?;
        let names = names.ok_or_else(|| Error::no_such_job(job.0))?;
        let (history, limit) = (self.history.clone(), page.limit as usize);
        blocking(move || {
            let mut items = Vec::new();
            let mut next = None;
            history.scan(Some(job.0), from, |sequence, entry| {
                let line = decode(entry).ok().and_then(|fact| story_line(sequence, entry.at_micros, &fact, of, &names));
                // The reason is recorded again at every check.
                let is_repeated = |line: &StoryLine| {
                    let before = items.iter().rev().find(|before: &&StoryLine| before.attempt.is_none());
                    line.kind == "blocked"
                        && before.is_some_and(|before| (&before.kind, &before.text) == (&line.kind, &line.text))
                };
                let Some(line) = line.filter(|line| !is_repeated(line)) else { return ControlFlow::Continue(()) };
                if items.len() == limit {
                    next = Some(sequence.to_string());
                    return ControlFlow::Break(());
                }
                items.push(line);
                ControlFlow::Continue(())
            })?;
            Ok(Listing { items, next, others: None })
        })
        .await
    }

    async fn attempts(&self, job: JobId, task: Option<TaskId>, page: Page) -> Result<Listing<AttemptSummary>, Error> {
        let from = cursor(&page)?.unwrap_or(0);
        let names = self.look(move |roles, _| JobNames::of(roles, job)).await?;
        let names = names.ok_or_else(|| Error::no_such_job(job.0))?;
        let (history, limit) = (self.history.clone(), page.limit as usize);
        blocking(move || {
            let mut attempts = Attempts::new(names, task, limit);
            history.scan(Some(job.0), from, |sequence, entry| {
                let goes_on = decode(entry).map_or(true, |fact| attempts.apply(sequence, entry.at_micros, &fact));
                if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            let (items, next) = attempts.found();
            Ok(Listing { items, next: next.map(|sequence| sequence.to_string()), others: None })
        })
        .await
    }

    async fn history(&self, filter: JobFilter, page: Page) -> Result<Listing<JobSummary>, Error> {
        let mut filter = filter;
        if filter.states.is_empty() {
            use crate::api::JobState::{Cancelled, Failed, Succeeded};
            filter.states = vec![Succeeded, Failed, Cancelled];
        }
        self.jobs(filter, page).await
    }

    async fn act(&self, job: JobId, action: Action, by: &str) -> Result<Acted, Error> {
        let asked = match action {
            Action::Cancel => JobAction::Cancel,
            Action::Hold => JobAction::Hold,
            Action::Release => JobAction::Release,
            Action::RerunFailed => JobAction::RerunFailed,
            Action::Abandon => JobAction::Abandon,
        };
        let answer = self.order(ToMaster::Control { job, action: asked, by: by.to_owned() }).await?;
        let unchanged = (answer == ToClient::AsBefore).then(|| {
            let how = match action {
                Action::Hold => "it was held already",
                Action::Release => "nothing was held",
                Action::Cancel => "it was cancelled already",
                Action::RerunFailed => "its failed tasks were requested to run again already",
                Action::Abandon => "it was abandoned already",
            };
            how.to_owned()
        });
        let hosts = self.handle.routes().job_hosts();
        // If all managers are in this process, all are connected.
        let waits_for = self.look(move |roles, _| views::manager_that_is_away(roles, job, &hosts)).await?;
        Ok(Acted { waits_for, unchanged })
    }

    async fn act_on_tasks(
        &self,
        job: JobId,
        action: Action,
        tasks: &[ChosenTasks],
    ) -> Result<(Option<String>, ChosenCounts), Error> {
        let chosen = chosen(tasks)?;
        let action = match action {
            Action::Cancel => TaskAction::Cancel,
            Action::Hold => TaskAction::Hold,
            Action::Release => TaskAction::Release,
            Action::RerunFailed => TaskAction::RerunFailed,
            Action::Abandon => {
                let remedy = "use --force for the whole job, or cancel the tasks without it";
                return Err(Error::bad_request("tasks cannot be ended without their job's manager", remedy));
            }
        };
        let counted = chosen.clone();
        let counts = self.look(move |roles, _| views::count_chosen(roles, job, &counted)).await?;
        self.order(ToMaster::ControlTasks { job, action, tasks: Box::new(chosen) }).await?;
        let hosts = self.handle.routes().job_hosts();
        let away = self.look(move |roles, _| views::manager_that_is_away(roles, job, &hosts)).await?;
        Ok((away, counts))
    }

    async fn update(&self, job: JobId, update: JobUpdate, by: &str) -> Result<Acted, Error> {
        if let Some(queue) = &update.queue {
            self.check_queue(queue, Known::Job(job)).await?;
        }
        let answer = self.order(ToMaster::Update { job, update: Box::new(update), by: by.to_owned() }).await?;
        let unchanged = (answer == ToClient::AsBefore).then(|| "it has these values already".to_owned());
        let hosts = self.handle.routes().job_hosts();
        let waits_for = self.look(move |roles, _| views::manager_that_is_away(roles, job, &hosts)).await?;
        Ok(Acted { waits_for, unchanged })
    }

    async fn wait(&self, job: JobId, patience: Duration) -> Result<Waited, Error> {
        let waiting = async {
            let mut ends = self.events.watch_ends();
            loop {
                ends.borrow_and_update();
                let waited = self.look(move |roles, now| views::waited(roles, job, now)).await?;
                let waited = waited.ok_or_else(|| Error::no_such_job(job.0))?;
                if waited.state.has_ended() || ends.changed().await.is_err() {
                    return Ok(waited);
                }
            }
        };
        match timeout(patience, waiting).await {
            Ok(waited) => waited,
            Err(_) => {
                let waited = self.look(move |roles, now| views::waited(roles, job, now)).await?;
                waited.ok_or_else(|| Error::no_such_job(job.0))
            }
        }
    }

    async fn output(&self, request: OutputRequest) -> Result<OutputChunk, Error> {
        let deadline = tokio::time::Instant::now() + request.patience;
        let mut pause = Duration::from_millis(1);
        loop {
            let place = self.place(&request).await?;
            let mut chunk = match place {
                OutputPlace::Nowhere { ended } => OutputChunk { ended, ..OutputChunk::default() },
                OutputPlace::At { node, attempt, ended, newer } => {
                    let bytes = self.read(node, attempt, &request).await?;
                    OutputChunk { bytes, ended, attempt: Some(attempt), newer }
                }
            };
            if !chunk.bytes.is_empty() || chunk.ended || tokio::time::Instant::now() >= deadline {
                chunk.ended &= chunk.bytes.len() < request.limit as usize;
                return Ok(chunk);
            }
            sleep(pause).await;
            pause = (pause * 2).min(LOOK);
        }
    }

    async fn nodes(&self) -> Result<Vec<NodeSummary>, Error> {
        self.look(views::nodes).await
    }

    async fn node(&self, node: NodeId) -> Result<NodeDetail, Error> {
        let found = self.look(move |roles, now| views::node(roles, node, now)).await?;
        let missing =
            || Error::new(ErrorCode::NotFound, format!("node {node} not found"), "`amalgam node list` shows the nodes");
        found.ok_or_else(missing)
    }

    async fn drain(&self, node: NodeId, drained: bool) -> Result<(), Error> {
        if let Some(elsewhere) = self.look(move |roles, _| of_other_master(roles, node, "drains")).await? {
            return Err(elsewhere);
        }
        self.order(ToMaster::Drain { node, drained }).await.map(drop)
    }

    async fn remove_node(&self, node: NodeId) -> Result<(), Error> {
        if let Some(elsewhere) = self.look(move |roles, _| of_other_master(roles, node, "forgets")).await? {
            return Err(elsewhere);
        }
        self.order(ToMaster::RemoveNode { node }).await.map(drop)
    }

    async fn label_node(&self, node: NodeId, labels: Vec<(String, Option<String>)>) -> Result<(), Error> {
        if let Some(elsewhere) = self.look(move |roles, _| of_other_master(roles, node, "labels")).await? {
            return Err(elsewhere);
        }
        self.order(ToMaster::Label { node, labels }).await.map(drop)
    }

    async fn set_queue(&self, queue: &str, settings: Option<QueueSettings>) -> Result<(), Error> {
        if self.look(|roles, _| roles.seat().is_some()).await? {
            let message =
                "queues of a federation cannot be set while it runs: its masters agree on them when they connect";
            let remedy = "change the configuration of all of its masters, and restart them";
            return Err(Error::new(ErrorCode::Unsupported, message, remedy));
        }
        self.order(ToMaster::SetQueue { queue: queue.to_owned(), settings }).await.map(drop)
    }

    async fn reload(&self) -> Result<Vec<ConfigChange>, Error> {
        match &self.reloader {
            Some(reloader) => reloader.reload().await,
            None => Err(Error::new(
                ErrorCode::Conflict,
                "this process was started without a configuration file, or cannot read it again",
                "restart it, for a server with --config",
            )),
        }
    }

    async fn queues(&self) -> Result<Vec<QueueSummary>, Error> {
        let mut queues = self.look(views::queues).await?;
        if let Some(reloader) = &self.reloader {
            queues.iter_mut().for_each(|queue| queue.closed = reloader.is_gone(&queue.name));
        }
        Ok(queues)
    }

    async fn report(&self, days: (u64, u64), by: By, user: Option<String>) -> Result<Report, Error> {
        self.accounting.report(days, by, user).await.map_err(|error| match error {
            AccountingError::Stopping => stopping(Stopped),
            error => Error::new(ErrorCode::Internal, error.to_string(), "check the server's state directory"),
        })
    }

    async fn cluster(&self) -> Result<ClusterSummary, Error> {
        let ended = self.metrics.tasks_ended();
        let rate = {
            let mut looks = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            let now = std::time::Instant::now();
            while looks.len() > 1 && looks.front().is_some_and(|(at, _)| now - *at > LATELY) {
                looks.pop_front();
            }
            let rate = looks.front().map_or(0.0, |(at, before)| {
                let seconds = (now - *at).as_secs_f64();
                if seconds > 0.0 { (ended - before) as f64 / seconds } else { 0.0 }
            });
            looks.push_back((now, ended));
            rate
        };
        let routes = self.handle.routes();
        let (started, hosts, clusters) = (self.started, routes.job_hosts(), routes.clusters());
        let summary =
            self.look(move |roles, now| views::cluster(roles, (&hosts, &clusters), started, rate, now)).await?;
        summary.ok_or_else(|| Error::new(ErrorCode::Unavailable, "this process has no master", "ask the server"))
    }

    async fn events(&self, from: u64, job: Option<JobId>) -> Result<BoxStream<'static, Event>, Error> {
        let events = Arc::clone(&self.events);
        let newest = events.watch();
        // Missing events may be the job's.
        let wanted =
            move |event: &Event| job.is_none_or(|job| event.job == Some(job.0)) || event.kind == EventKind::Gap;
        let stream = stream::unfold(
            (events, newest, from, VecDeque::new()),
            move |(events, mut newest, mut next, mut ready)| async move {
                loop {
                    if let Some(event) = ready.pop_front() {
                        return Some((event, (events, newest, next, ready)));
                    }
                    newest.borrow_and_update();
                    let read = events.read(next, EVENTS_AT_ONCE);
                    if let Some(last) = read.last() {
                        next = last.sequence + 1;
                        ready.extend(read.into_iter().filter(wanted));
                    } else if newest.changed().await.is_err() {
                        return None;
                    }
                }
            },
        );
        Ok(stream.boxed())
    }

    async fn input(&self, request: InputRequest) -> Result<InputTaken, Error> {
        const PATIENCE: Duration = Duration::from_secs(10);
        let InputRequest { task, attempt: wanted, part } = request;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let latest = self.look(move |roles, _| latest_attempt(roles, task)).await?;
            let answer = |state, attempt: Option<AttemptId>, taken| {
                Ok(InputTaken { state, attempt: attempt.map(|attempt| attempt.to_string()), taken })
            };
            let (node, attempt) = match latest.ok_or_else(|| no_such_task(task))? {
                Latest::None { ended: true } => return answer(InputState::Closed, wanted, part.offset),
                Latest::Attempt { attempt, ended: true, .. } => {
                    return answer(InputState::Closed, Some(attempt), part.offset);
                }
                Latest::Attempt { attempt, .. } if wanted.is_some_and(|wanted| wanted != attempt) => {
                    return answer(InputState::Open, Some(attempt), 0);
                }
                Latest::Attempt { node, attempt, .. } => (Some(node), Some(attempt)),
                Latest::None { .. } => (None, None),
            };
            let is_over = tokio::time::Instant::now() >= deadline;
            if let (Some(node), Some(attempt)) = (node, attempt) {
                let unsent = part.bytes.len();
                match self.remote.feed(&self.handle, node, attempt, part.clone()).await {
                    // Report an unchanged offset only at the deadline: the task may be retried meanwhile.
                    Taken::UpTo(taken) if unsent > 0 || is_over || taken != part.offset => {
                        return answer(InputState::Open, Some(attempt), taken);
                    }
                    Taken::UpTo(_) | Taken::NotOpen => {}
                    // The task may still be retried.
                    Taken::Closed if is_over => {
                        return answer(InputState::Open, Some(attempt), part.offset);
                    }
                    Taken::Closed => {}
                    Taken::Lost => {
                        let message =
                            format!("the node's agent was restarted while task {task} read its standard input");
                        return Err(Error::new(ErrorCode::Conflict, message, "run the task again"));
                    }
                    Taken::Away if is_over => {
                        let node = self.name_of(node).await?;
                        let message = format!("node {node}, where task {task} runs, is not reachable");
                        return Err(Error::new(
                            ErrorCode::Unavailable,
                            message,
                            "try again when the node is reachable",
                        ));
                    }
                    Taken::Away => {}
                }
            }
            if is_over {
                return answer(InputState::Waiting, wanted, part.offset);
            }
            sleep(LOOK).await;
        }
    }

    async fn stage(&self, job: JobId, name: &str) -> Result<Option<u32>, Error> {
        let name = name.to_owned();
        let find = move |roles: &Roles, _| {
            let (job, _) = roles.dispatch()?.job(job)?;
            job.spec.stages.iter().position(|stage| stage.name == name).map(|number| number as u32)
        };
        self.look(find).await
    }

    async fn node_named(&self, name: &str) -> Result<Option<NodeId>, Error> {
        let name = name.to_owned();
        self.look(move |roles, _| roles.dispatch()?.names.find(&name)).await
    }

    async fn outputs(&self, job: JobId, filter: OutputFilter, page: Page) -> Result<Listing<OutputFile>, Error> {
        let from =
            page.cursor.as_ref().map(|text| outputs::cursor(text).ok_or_else(|| bad_cursor(text))).transpose()?;
        let limit = page.limit as usize;
        let found =
            self.look(move |roles, _| outputs::list(roles, job, filter, from.unwrap_or_default(), limit)).await?;
        let (items, next) = found.ok_or_else(|| Error::no_such_job(job.0))?;
        Ok(Listing { items, next: next.map(|(stage, index, file)| format!("{stage}.{index}.{file}")), others: None })
    }

    async fn output_file(&self, task: TaskId, name: &str) -> Result<FoundFile, Error> {
        let wanted = name.to_owned();
        let found = self.look(move |roles, _| outputs::find(roles, task, &wanted)).await?;
        found.ok_or_else(|| {
            let remedy = format!("`amalgam outputs {} --list` shows the outputs", task.job);
            Error::new(ErrorCode::NotFound, format!("task {task} has no output `{name}`"), remedy)
        })
    }

    async fn piece(&self, ask: PieceAsk) -> Piece {
        self.remote.any_piece(&self.handle, ask).await
    }

    async fn metrics(&self) -> Result<String, Error> {
        let metrics = Arc::clone(&self.metrics);
        self.look(move |roles, now| metrics.render(roles, now)).await
    }

    async fn ready(&self) -> Result<(), Error> {
        self.look(|_, _| ()).await
    }
}

/// What is known of a job that is to be in a queue.
enum Known {
    Job(JobId),
    /// The user and the key of a submission, which may be repeated.
    Key(String, Option<String>),
}

/// An error for an action on a node that only the node's own master can do.
fn of_other_master(roles: &Roles, node: NodeId, does: &str) -> Option<Error> {
    let federation = roles.global.as_ref()?.federation();
    let known =
        || Error::new(ErrorCode::NotFound, format!("node {node} not found"), "`amalgam node list` shows the nodes");
    if !federation.has(node) {
        return Some(known());
    }
    let name =
        roles.dispatch().and_then(|dispatch| dispatch.names.of(node)).map_or_else(|| node.to_string(), str::to_owned);
    let message = format!("node {name} is of {}, whose master {does} it", federation.cluster_of(node));
    Some(Error::new(ErrorCode::Conflict, message, "use --server with that cluster's server"))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Box<dyn std::error::Error + Send + Sync>> + Send + 'static,
) -> Result<T, Error> {
    let internal = |why: String| Error::new(ErrorCode::Internal, why, "check the server's state directory");
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(internal(error.to_string())),
        Err(error) => Err(internal(error.to_string())),
    }
}

fn cursor(page: &Page) -> Result<Option<u64>, Error> {
    page.cursor.as_ref().map(|text| text.parse().map_err(|_| bad_cursor(text))).transpose()
}

fn bad_cursor(text: &str) -> Error {
    Error::bad_request(format!("`{text}` is not a cursor of this list"), "use the value of `next`, or leave it out")
}

fn no_such_task(task: TaskId) -> Error {
    Error::new(
        ErrorCode::NotFound,
        format!("task {task} not found"),
        format!("`amalgam info {} --tasks` lists its tasks with their places, from 0", task.job),
    )
}
