//! The output of tasks: what is written so far, or all of it until the task ends.
//!
//! An offset counts the bytes of one attempt's output. A reader therefore reads one attempt to its end. A reader that
//! follows the task then continues with the next attempt, from its first byte. The headers name the attempt that the
//! body starts with. They also name the newer attempt, or report the end of the task, if this is known when the body
//! starts:
//!
//! ```text
//! client: GET output?task=0.0&follow=attempt                    server: attempt 7-1-1, its bytes; it ends
//! client: GET output?..&attempt=7-1-1&offset=5&follow=attempt   server: newer attempt 7-1-2
//! client: GET output?..&attempt=7-1-2&offset=0&follow=attempt   server: attempt 7-1-2, its bytes; ended
//! ```

use super::App;
use super::backend::{Backend, OutputChunk, OutputRequest};
use super::jobs::parse_task;
use super::reply::{Number, Parameters, Reply};
use crate::api::{Error, ErrorCode};
use crate::auth::Identity;
use amalgam_core::vocabulary::{AttemptId, JobId, Stream};
use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde::Deserialize;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

const CHUNK: u32 = 256 << 10;
/// How long a backend may wait for output before it returns an empty answer and is asked again.
const PATIENCE: Duration = Duration::from_secs(20);

/// The attempt that the body starts with.
pub const ATTEMPT: HeaderName = HeaderName::from_static("amalgam-attempt");
/// The task's latest attempt, if the body is the end of an earlier attempt's output.
pub const NEWER: HeaderName = HeaderName::from_static("amalgam-newer-attempt");
/// Present if the task has ended and nothing follows the body.
pub const ENDED: HeaderName = HeaderName::from_static("amalgam-ended");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputParameters {
    /// A task in the format that [`parse_task`] reads.
    task: String,
    attempt: Option<String>,
    /// `stdout` or `stderr`.
    stream: Option<String>,
    offset: Option<u64>,
    /// Maximum number of bytes.
    limit: Option<u64>,
    follow: Option<Follow>,
}

/// Where the body ends.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Follow {
    /// At the end of the output written so far.
    False,
    /// At the end of the task, through all further attempts. With `attempt`: at the end of that attempt.
    True,
    /// At the end of the attempt; after `PATIENCE` if the task has no attempt yet.
    Attempt,
}

pub async fn read(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Number(job): Number<u64>,
    Parameters(parameters): Parameters<OutputParameters>,
) -> Result<Response, Reply> {
    app.allow(&caller, JobId(job)).await?;
    let follow = parameters.follow.unwrap_or(Follow::False);
    let attempt = parameters.attempt.as_deref().map(|text| parse_attempt(JobId(job), text)).transpose()?;
    let position = ReadPosition {
        request: OutputRequest {
            task: parse_task(&*app.backend, JobId(job), &parameters.task).await?,
            attempt,
            stream: parse_stream(parameters.stream.as_deref())?,
            offset: parameters.offset.unwrap_or(0),
            limit: CHUNK,
            // Clients resume with `follow=attempt`. Their headers wait for more output or the attempt's end, so that
            // they can name the newer attempt. Other requests get their headers without delay.
            patience: if follow == Follow::Attempt { PATIENCE } else { Duration::ZERO },
        },
        left: parameters.limit.unwrap_or(u64::MAX),
        follow: if attempt.is_some() && follow == Follow::True { Follow::Attempt } else { follow },
        done: false,
    };
    let mut reader = Reader { backend: app.backend.clone(), position };
    // The first piece is read before the answer starts, so that an error is sent with its HTTP status.
    let first = unless_closing(&app, reader.next()).await?;
    let headers = headers(&first);
    reader.position.request.patience = if follow == Follow::False { Duration::ZERO } else { PATIENCE };
    // If a read fails or the server shuts down, the body ends with an error: a regular end would mean that the output
    // is complete.
    let rest = stream::unfold((reader, app), |(mut reader, app)| async move {
        if reader.position.done {
            return None;
        }
        let piece = unless_closing(&app, reader.next()).await.map(|chunk| Bytes::from(chunk.bytes));
        reader.position.done |= piece.is_err();
        Some((piece, (reader, app)))
    });
    let body = stream::iter([Ok(Bytes::from(first.bytes))]).chain(rest);
    Ok((headers, Body::from_stream(body)).into_response())
}

async fn unless_closing(
    app: &App,
    piece: impl Future<Output = Result<OutputChunk, Error>>,
) -> Result<OutputChunk, Error> {
    tokio::select! {
        biased;
        piece = piece => piece,
        () = app.clone().closing() => {
            Err(Error::new(ErrorCode::Unavailable, "the server is shutting down", "try again when it runs again"))
        }
    }
}

fn headers(first: &OutputChunk) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    let mut add = |name, attempt: Option<AttemptId>| {
        headers.extend(attempt.and_then(|attempt| Some((name, HeaderValue::try_from(attempt.to_string()).ok()?))));
    };
    add(ATTEMPT, first.attempt);
    if first.ended {
        add(NEWER, first.newer);
        if first.newer.is_none() {
            headers.insert(ENDED, HeaderValue::from_static("true"));
        }
    }
    headers
}

struct Reader {
    backend: Arc<dyn Backend>,
    position: ReadPosition,
}

/// Position of a reader, and when it is done.
struct ReadPosition {
    request: OutputRequest,
    left: u64,
    follow: Follow,
    done: bool,
}

impl Reader {
    async fn next(&mut self) -> Result<OutputChunk, Error> {
        self.position.request.limit = self.position.left.min(u64::from(CHUNK)) as u32;
        let chunk = self.backend.output(self.position.request.clone()).await?;
        self.position.go_on(&chunk);
        Ok(chunk)
    }
}

impl ReadPosition {
    fn go_on(&mut self, chunk: &OutputChunk) {
        self.request.attempt = chunk.attempt.or(self.request.attempt);
        self.request.offset += chunk.bytes.len() as u64;
        self.left = self.left.saturating_sub(chunk.bytes.len() as u64);
        let waits_in_vain = match self.follow {
            Follow::False => chunk.bytes.is_empty(),
            Follow::True => false,
            Follow::Attempt => self.request.attempt.is_none(),
        };
        self.done = chunk.ended || self.left == 0 || waits_in_vain;
        if let Some(newer) = chunk.newer.filter(|_| chunk.ended && self.follow == Follow::True) {
            (self.request.attempt, self.request.offset) = (Some(newer), 0);
            self.done = self.left == 0;
        }
    }
}

pub fn parse_attempt(job: JobId, text: &str) -> Result<AttemptId, Error> {
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
        Some(other) => Err(Error::bad_request(format!("unknown stream `{other}`"), "known: stdout, stderr")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::vocabulary::{Epoch, TaskId};

    #[test]
    fn following_a_retried_task_continues_at_offset_0_of_its_next_attempt() {
        let attempt = |number| AttemptId { job: JobId(7), epoch: Epoch(1), number };
        let (first, second) = (Some(attempt(1)), Some(attempt(2)));
        let piece = |bytes: &str, ended, attempt, newer| OutputChunk { bytes: bytes.into(), ended, attempt, newer };
        let story = [
            (piece("one", false, first, None), (first, 3, false)),
            (piece("1", true, first, second), (second, 0, false)),
            (piece("two", true, second, None), (second, 3, true)),
        ];
        let task = TaskId { job: JobId(7), stage: 0, index: 0 };
        let (stream, patience) = (Stream::Stdout, PATIENCE);
        let request = OutputRequest { task, attempt: None, stream, offset: 0, limit: CHUNK, patience };
        let mut position = ReadPosition { request, left: u64::MAX, follow: Follow::True, done: false };
        for (chunk, after) in story {
            position.go_on(&chunk);
            assert_eq!((position.request.attempt, position.request.offset, position.done), after);
        }
    }
}
