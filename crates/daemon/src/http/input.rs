//! The standard input of a job's only task. The client sends it in parts, one after the other.

use super::App;
use super::backend::InputRequest;
use super::callers::Deed;
use super::output::parse_attempt;
use super::reply::{Answer, Number, Parameters, bad_body};
use crate::api::InputTaken;
use crate::auth::Identity;
use crate::input::InputPart;
use amalgam_core::vocabulary::{JobId, TaskId};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, State};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputParameters {
    /// The attempt that reads the part. Absent until the first answer has named it.
    attempt: Option<String>,
    offset: u64,
    /// Whether this is the last part.
    ends: Option<bool>,
}

/// Answers when the task has taken at least a part of the bytes, when a newer attempt runs, or after a timeout.
pub async fn take(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Extension(deed): Extension<Deed>,
    Number(job): Number<u64>,
    Parameters(parameters): Parameters<InputParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<InputTaken> {
    deed.is(format!("write standard input of job {job}"));
    app.allow(&caller, JobId(job)).await?;
    let attempt = parameters.attempt.as_deref().map(|text| parse_attempt(JobId(job), text)).transpose()?;
    let bytes = body.map_err(bad_body)?.to_vec();
    let part = InputPart { offset: parameters.offset, bytes, ends: parameters.ends.unwrap_or(false) };
    let task = TaskId { job: JobId(job), stage: 0, index: 0 };
    Ok(Json(app.backend.input(InputRequest { task, attempt, part }).await?))
}
