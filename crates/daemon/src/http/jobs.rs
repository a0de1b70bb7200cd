//! Requests about jobs.

use super::App;
use super::backend::{Acted, Backend, JobFilter, Page, StoryFilter, TaskFilter};
use super::callers::Deed;
use super::reply::{Answer, Number, Parameters, Reply, bad_body, parse_json};
use super::submission::{self, Kind};
use crate::api::{
    ActionRequest, ActionResult, AttemptSummary, ChosenTasks, Error, ErrorCode, JobDetail, JobState, JobSummary,
    Listing, StoryLine, Submitted, TaskState, TaskSummary, Timestamp, UpdateRequest, Waited,
};
use crate::auth::Identity;
use amalgam_core::protocol::JobUpdate;
use amalgam_core::vocabulary::constraints::Operator;
use amalgam_core::vocabulary::job::CONTAINER;
use amalgam_core::vocabulary::{Constraint, Duration as CoreDuration, JobId, JobSpec, TaskId};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use futures_util::stream::{self, StreamExt};
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// Bodies above this size in bytes are decoded on another thread, so that they do not block the event loop.
const LARGE_BODY: usize = 1 << 20;
const MAX_PAGE: u32 = 10_000;
const DEFAULT_PAGE: u32 = 1_000;
/// Maximum number of jobs that one request acts on concurrently.
const AT_ONCE: usize = 256;
const MAX_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmitParameters {
    /// The directory in which the tasks of a job file run, if the file sets no `workdir`.
    submit_dir: Option<PathBuf>,
}

/// Submits a job after the whole body has arrived. If the client disconnects before, no job is submitted.
pub async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Extension(deed): Extension<Deed>,
    Parameters(SubmitParameters { submit_dir }): Parameters<SubmitParameters>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<Submitted>), Reply> {
    let body = body.map_err(bad_body)?;
    let kind = Kind::of(&headers)?;
    let key = idempotency_key(&headers)?;
    let large = body.len() > LARGE_BODY;
    let account = Some(app.callers.accounts.of(&caller.user));
    let decode = move || submission::decode(kind, &body, submit_dir);
    let job = if large { tokio::task::spawn_blocking(decode).await.map_err(died)?? } else { decode()? };
    let mut job = JobSpec { user: caller.user, account, ..job };
    let isolated = app.callers.isolation.get().apply(&mut job);
    isolated.map_err(|(problem, remedy)| Error::bad_request(problem, remedy))?;
    require_containers(&mut job);
    let (name, queue) = (job.name.clone(), job.queue.clone());
    let in_queue = if queue.is_empty() { String::new() } else { format!(" in queue {queue}") };
    deed.is(format!("submit {name}{in_queue}"));
    let submitted = app.backend.submit(job, key).await?;
    deed.is(format!("submit job {}, {name}{in_queue}", submitted.job));
    Ok((StatusCode::CREATED, Json(submitted)))
}

/// Lets stages with a container run on nodes that have a runtime for it.
fn require_containers(job: &mut JobSpec) {
    let (attribute, value) = (CONTAINER.to_owned(), "yes".to_owned());
    let required = Constraint { attribute, operator: Operator::Equal, value };
    for stage in job.stages.iter_mut().filter(|stage| stage.program.container.is_some()) {
        if !stage.constraints.contains(&required) {
            stage.constraints.push(required.clone());
        }
    }
}

fn died(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorCode::Internal, format!("reading the job failed: {error}"), "report this with the job")
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Error> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    let key = key.to_str().ok().filter(|key| (1..=128).contains(&key.len()));
    let wrong = || Error::bad_request("the idempotency key is empty, too long or not ASCII", "use 1 to 128 characters");
    key.map(|key| Some(key.to_owned())).ok_or_else(wrong)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListParameters {
    /// Separated by commas.
    state: Option<String>,
    user: Option<String>,
    queue: Option<String>,
    name: Option<String>,
    /// Only jobs that ended at or after this time.
    since: Option<String>,
    /// Only jobs that ended before this time.
    until: Option<String>,
    cursor: Option<String>,
    limit: Option<u32>,
}

impl ListParameters {
    /// `user=me` names the caller.
    fn split(self, caller: Identity) -> Result<(JobFilter, Page), Error> {
        let states = words(self.state.as_deref(), "job state", JobState::word, JobState::ALL)?;
        let user = self.user.map(|user| if user == "me" { caller.user } else { user });
        let moment = |text: Option<String>| text.map(|text| moment(&text)).transpose();
        let (ended_since, ended_until) = (moment(self.since)?, moment(self.until)?);
        let filter = JobFilter { states, user, queue: self.queue, name: self.name, ended_since, ended_until };
        Ok((filter, page(self.cursor, self.limit)))
    }
}

fn moment(text: &str) -> Result<Timestamp, Error> {
    let wrong = || Error::bad_request(format!("invalid time `{text}`"), "write it like 2026-11-01T12:30:00Z");
    Timestamp::parse(text).ok_or_else(wrong)
}

pub fn page(cursor: Option<String>, limit: Option<u32>) -> Page {
    Page { cursor, limit: limit.unwrap_or(DEFAULT_PAGE).clamp(1, MAX_PAGE) }
}

/// Reads words separated by commas.
fn words<T: Copy>(text: Option<&str>, what: &str, word: fn(T) -> &'static str, all: &[T]) -> Result<Vec<T>, Error> {
    let known = |text: &str| {
        all.iter().copied().find(|known| word(*known) == text).ok_or_else(|| {
            let words: Vec<_> = all.iter().map(|known| word(*known)).collect();
            Error::bad_request(format!("unknown {what} `{text}`"), format!("known: {}", words.join(", ")))
        })
    };
    text.into_iter().flat_map(|text| text.split(',')).map(known).collect()
}

pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Parameters(parameters): Parameters<ListParameters>,
) -> Answer<Listing<JobSummary>> {
    let (filter, page) = parameters.split(caller)?;
    Ok(Json(app.backend.jobs(filter, page).await?))
}

pub async fn history(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Parameters(parameters): Parameters<ListParameters>,
) -> Answer<Listing<JobSummary>> {
    let (filter, page) = parameters.split(caller)?;
    Ok(Json(app.backend.history(filter, page).await?))
}

pub async fn detail(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Number(job): Number<u64>,
) -> Answer<JobDetail> {
    app.allow(&caller, JobId(job)).await?;
    Ok(Json(app.backend.job(JobId(job)).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskParameters {
    state: Option<String>,
    /// The stage's number or name.
    stage: Option<String>,
    index: Option<u32>,
    cursor: Option<String>,
    limit: Option<u32>,
}

pub async fn tasks(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Number(job): Number<u64>,
    Parameters(parameters): Parameters<TaskParameters>,
) -> Answer<Listing<TaskSummary>> {
    app.allow(&caller, JobId(job)).await?;
    let states = words(parameters.state.as_deref(), "task state", TaskState::word, TaskState::ALL)?;
    let stage = parse_stage(&*app.backend, JobId(job), parameters.stage.as_deref()).await?;
    let filter = TaskFilter { states, stage, index: parameters.index };
    Ok(Json(app.backend.tasks(JobId(job), filter, page(parameters.cursor, parameters.limit)).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoryParameters {
    /// A task in the format that [`parse_task`] reads.
    task: Option<String>,
    /// A stage's number or name: the stories of all its tasks.
    stage: Option<String>,
    cursor: Option<String>,
    limit: Option<u32>,
}

pub async fn story(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Number(job): Number<u64>,
    Parameters(parameters): Parameters<StoryParameters>,
) -> Answer<Listing<StoryLine>> {
    app.allow(&caller, JobId(job)).await?;
    let task = match &parameters.task {
        Some(task) => Some(parse_task(&*app.backend, JobId(job), task).await?),
        None => None,
    };
    let stage = parse_stage(&*app.backend, JobId(job), parameters.stage.as_deref()).await?;
    let of = match (task, stage) {
        (Some(_), Some(_)) => {
            return Err(Reply(Error::bad_request("both `task` and `stage` are set", "set one of them")));
        }
        (Some(task), None) => StoryFilter { stage: Some(task.stage), index: Some(task.index) },
        (None, stage) => StoryFilter { stage, index: None },
    };
    Ok(Json(app.backend.story(JobId(job), of, page(parameters.cursor, parameters.limit)).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptParameters {
    /// A task in the format that [`parse_task`] reads.
    task: Option<String>,
    cursor: Option<String>,
    limit: Option<u32>,
}

pub async fn attempts(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Number(job): Number<u64>,
    Parameters(parameters): Parameters<AttemptParameters>,
) -> Answer<Listing<AttemptSummary>> {
    app.allow(&caller, JobId(job)).await?;
    let task = match &parameters.task {
        Some(task) => Some(parse_task(&*app.backend, JobId(job), task).await?),
        None => None,
    };
    Ok(Json(app.backend.attempts(JobId(job), task, page(parameters.cursor, parameters.limit)).await?))
}

/// Reads a task, written as `JOB.STAGE.INDEX` or `STAGE.INDEX`, with the stage's number or name.
pub async fn parse_task(backend: &dyn Backend, job: JobId, text: &str) -> Result<TaskId, Error> {
    let wrong = || {
        let message = format!("`{}` is not a task of job {job}", text.escape_debug());
        Error::bad_request(message, "write JOB.STAGE.INDEX or STAGE.INDEX, with the stage's number or name")
    };
    let (before, index) = text.rsplit_once('.').ok_or_else(wrong)?;
    let index = index.parse().map_err(|_| wrong())?;
    // `before` is a stage, or the job and a stage.
    let of_job = before.strip_prefix(&format!("{job}."));
    for stage in [Some(before), of_job].into_iter().flatten() {
        if let Some(stage) = find_stage(backend, job, stage).await? {
            return Ok(TaskId { job, stage, index });
        }
    }
    Err(wrong())
}

/// Finds a stage by its number or name. Does not check that the number exists.
async fn find_stage(backend: &dyn Backend, job: JobId, text: &str) -> Result<Option<u32>, Error> {
    match text.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => backend.stage(job, text).await,
    }
}

/// Reads a stage's number or name. An unknown name is an error.
pub async fn parse_stage(backend: &dyn Backend, job: JobId, text: Option<&str>) -> Result<Option<u32>, Error> {
    let Some(text) = text else { return Ok(None) };
    let none = || {
        let message = format!("job {job} has no stage `{}`", text.escape_debug());
        Error::bad_request(message, "write a stage's number or name; the job's `stages` list them")
    };
    find_stage(backend, job, text).await?.ok_or_else(none).map(Some)
}

/// Acts on each job separately: a refused job does not affect the others.
pub async fn act(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Extension(deed): Extension<Deed>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<Vec<ActionResult>> {
    let request: ActionRequest = parse_json(&body.map_err(bad_body)?)?;
    let what = format!("{} {}{}", request.action, listed(&request.jobs), only(&request.tasks));
    deed.is(what.clone());
    let (app, caller, tasks) = (&app, &caller, &request.tasks);
    let one = |job: u64| async move {
        let (id, action) = (JobId(job), request.action);
        if let Err(refused) = app.allow(caller, id).await {
            return result(job, Err(refused));
        }
        if tasks.is_empty() {
            return result(job, app.backend.act(id, action, &caller.user).await);
        }
        match app.backend.act_on_tasks(id, action, tasks).await {
            Ok((waits_for, counts)) => ActionResult { job, waits_for, tasks: Some(counts), ..ActionResult::default() },
            Err(error) => result(job, Err(error)),
        }
    };
    // Concurrent actions share one write to the disk.
    let results: Vec<ActionResult> = stream::iter(request.jobs).map(one).buffered(AT_ONCE).collect().await;
    deed.is(with_refused(what, &results));
    Ok(Json(results))
}

/// Tasks in the audit log, if not the whole jobs are meant.
fn only(tasks: &[ChosenTasks]) -> String {
    let ranges = tasks.iter().map(|ChosenTasks { stage, first, last }| format!("{stage}.{first}-{last}"));
    let ranges = ranges.collect::<Vec<_>>().join(",");
    if ranges.is_empty() { ranges } else { format!(", tasks {ranges}") }
}

/// Jobs in the audit log.
fn listed(jobs: &[u64]) -> String {
    /// Of more jobs, only the number is written.
    const MOST: usize = 100;
    match jobs {
        [job] => format!("job {job}"),
        jobs if jobs.len() > MOST => format!("{} jobs from {} to {}", jobs.len(), jobs[0], jobs[jobs.len() - 1]),
        jobs => format!("jobs {}", jobs.iter().map(u64::to_string).collect::<Vec<_>>().join(",")),
    }
}

/// The same with the jobs for which it was refused.
fn with_refused(what: String, results: &[ActionResult]) -> String {
    let refused: Vec<u64> = results.iter().filter(|result| result.error.is_some()).map(|result| result.job).collect();
    if refused.is_empty() { what } else { format!("{what}; refused for {}", listed(&refused)) }
}

/// Changes each job separately, as [`act`] does.
pub async fn update(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Extension(deed): Extension<Deed>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<Vec<ActionResult>> {
    let request: UpdateRequest = parse_json(&body.map_err(bad_body)?)?;
    let UpdateRequest { jobs, priority, timeout_seconds, queue } = request;
    let timeout = timeout_seconds.map(|seconds| {
        let length = Duration::try_from_secs_f64(seconds).ok();
        let micros = length.and_then(|length| u64::try_from(length.as_micros()).ok());
        micros.map(CoreDuration::from_micros).ok_or_else(|| {
            let remedy = "write a number of seconds from 0; 0 sets the queue's default";
            Error::bad_request(format!("invalid timeout `{seconds}`"), remedy)
        })
    });
    let changes = [
        priority.map(|priority| format!("priority {priority}")),
        timeout_seconds.map(|seconds| format!("timeout {seconds} s")),
        queue.as_ref().map(|queue| format!("queue {queue}")),
    ];
    let changes: Vec<String> = changes.into_iter().flatten().collect();
    let what = format!("set {} of {}", changes.join(", "), listed(&jobs));
    deed.is(what.clone());
    let update = JobUpdate { priority, timeout: timeout.transpose()?, queue };
    if update == JobUpdate::default() {
        return Err(Error::bad_request("the request changes nothing", "set a priority, a timeout or a queue").into());
    }
    let (app, caller, update) = (&app, &caller, &update);
    let one = |job: u64| async move {
        match app.allow(caller, JobId(job)).await {
            Ok(()) => app.backend.update(JobId(job), update.clone(), &caller.user).await,
            Err(refused) => Err(refused),
        }
    };
    let mut results = Vec::with_capacity(jobs.len());
    for job in jobs {
        results.push(result(job, one(job).await));
    }
    deed.is(with_refused(what, &results));
    Ok(Json(results))
}

fn result(job: u64, acted: Result<Acted, Error>) -> ActionResult {
    match acted {
        Ok(Acted { waits_for, unchanged }) => ActionResult { job, waits_for, unchanged, ..ActionResult::default() },
        Err(error) => ActionResult { job, error: Some(error), ..ActionResult::default() },
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitParameters {
    timeout_seconds: Option<f64>,
}

/// A long poll: answers when the job has ended, or with its current state when the timeout has passed.
pub async fn wait(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Number(job): Number<u64>,
    Parameters(parameters): Parameters<WaitParameters>,
) -> Answer<Waited> {
    app.allow(&caller, JobId(job)).await?;
    let seconds = parameters.timeout_seconds.unwrap_or(30.0);
    let patience = Duration::try_from_secs_f64(seconds).unwrap_or(MAX_PATIENCE).min(MAX_PATIENCE);
    let waited = tokio::select! {
        waited = app.backend.wait(JobId(job), patience) => waited?,
        () = app.clone().closing() => app.backend.wait(JobId(job), Duration::ZERO).await?,
    };
    Ok(Json(waited))
}
