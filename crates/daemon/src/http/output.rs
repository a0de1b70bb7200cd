//! The output of tasks, as far as it goes or until the task ends.

use super::App;
use super::backend::{Backend, OutputChunk, OutputRequest};
use super::jobs::parse_task;
use super::reply::{Number, Parameters, Reply};
use crate::api::Error;
use crate::auth::Identity;
use amalgam_core::vocabulary::{AttemptId, JobId, Stream};
use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

const CHUNK: u32 = 256 << 10;
/// How long a backend may hold an empty answer back before it is asked again.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputParameters {
    /// `STAGE.INDEX`, both numbers.
    task: String,
    attempt: Option<String>,
    /// `stdout` or `stderr`.
    stream: Option<String>,
    offset: Option<u64>,
    /// The most bytes.
    limit: Option<u64>,
    /// Go on until the task has ended.
    follow: Option<bool>,
}

pub async fn read(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Number(job): Number<u64>,
    Parameters(parameters): Parameters<OutputParameters>,
) -> Result<Response, Reply> {
    app.allow(&caller, JobId(job)).await?;
    let follow = parameters.follow.unwrap_or(false);
    let mut reader = Reader {
        backend: app.backend.clone(),
        request: OutputRequest {
            task: parse_task(JobId(job), &parameters.task)?,
            attempt: parameters.attempt.as_deref().map(|text| parse_attempt(JobId(job), text)).transpose()?,
            stream: parse_stream(parameters.stream.as_deref())?,
            offset: parameters.offset.unwrap_or(0),
            limit: CHUNK,
            patience: Duration::ZERO,
        },
        left: parameters.limit.unwrap_or(u64::MAX),
        follow,
        done: false,
    };
    // The first piece is read before the answer begins, so that an error still has its status.
    let first = reader.next().await?;
    reader.request.patience = if follow { PATIENCE } else { Duration::ZERO };
    let rest = stream::unfold(reader, |mut reader| async move {
        if reader.done {
            return None;
        }
        let piece = reader.next().await;
        reader.done |= piece.is_err();
        Some((piece, reader))
    });
    let body = stream::iter([Ok(first)]).chain(rest).take_until(app.closing());
    Ok(([(CONTENT_TYPE, "application/octet-stream")], Body::from_stream(body)).into_response())
}

struct Reader {
    backend: Arc<dyn Backend>,
    request: OutputRequest,
    left: u64,
    follow: bool,
    done: bool,
}

impl Reader {
    async fn next(&mut self) -> Result<Bytes, Error> {
        self.request.limit = self.left.min(u64::from(CHUNK)) as u32;
        let OutputChunk { bytes, ended } = self.backend.output(self.request.clone()).await?;
        self.request.offset += bytes.len() as u64;
        self.left = self.left.saturating_sub(bytes.len() as u64);
        self.done = ended || self.left == 0 || (bytes.is_empty() && !self.follow);
        Ok(bytes.into())
    }
}

fn parse_attempt(job: JobId, text: &str) -> Result<AttemptId, Error> {
    let attempt = AttemptId::parse(text).filter(|attempt| attempt.job == job);
    attempt.ok_or_else(|| {
        let message = format!("`{text}` is not an attempt of job {job}");
        Error::bad_request(message, "`amalgam info JOB --tasks` shows the attempts")
    })
}

fn parse_stream(text: Option<&str>) -> Result<Stream, Error> {
    match text {
        None | Some("stdout") => Ok(Stream::Stdout),
        Some("stderr") => Ok(Stream::Stderr),
        Some(other) => Err(Error::bad_request(format!("`{other}` is not a stream"), "write stdout or stderr")),
    }
}
