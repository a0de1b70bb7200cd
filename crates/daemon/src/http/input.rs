//! The standard input of a job's only task, in parts that its client sends one after the other.

use super::App;
use super::backend::InputRequest;
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
    /// Whose input the part is; before the first answer none is known.
    attempt: Option<String>,
    offset: u64,
    /// Nothing follows.
    ends: Option<bool>,
}

/// Answers when some of it was taken, when there is another attempt, or when a while is over.
pub async fn take(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Number(job): Number<u64>,
    Parameters(parameters): Parameters<InputParameters>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<InputTaken> {
    app.allow(&caller, JobId(job)).await?;
    let attempt = parameters.attempt.as_deref().map(|text| parse_attempt(JobId(job), text)).transpose()?;
    let bytes = body.map_err(bad_body)?.to_vec();
    let part = InputPart { offset: parameters.offset, bytes, ends: parameters.ends.unwrap_or(false) };
    let task = TaskId { job: JobId(job), stage: 0, index: 0 };
    Ok(Json(app.backend.input(InputRequest { task, attempt, part }).await?))
}
