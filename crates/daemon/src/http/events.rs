//! The event stream, as server-sent events. A client that reconnects sends the id of the last event that it received.

use super::App;
use super::reply::{Parameters, Reply};
use crate::api::{Error, Event};
use crate::auth::Identity;
use amalgam_core::vocabulary::JobId;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, future};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventParameters {
    from: Option<u64>,
    job: Option<u64>,
}

pub async fn stream(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    headers: HeaderMap,
    Parameters(parameters): Parameters<EventParameters>,
) -> Result<Response, Reply> {
    let job = parameters.job.map(JobId);
    if let Some(job) = job {
        app.allow(&caller, job).await?;
    }
    // A reconnecting client repeats its original URL with `from`, so the id of the last event has priority.
    let from = match headers.get("last-event-id") {
        Some(seen) => after(seen.to_str().ok())?,
        None => parameters.from.unwrap_or(0),
    };
    let events = app.backend.events(from, job).await?;
    let visible = events
        .filter(move |event| future::ready(event.user.as_ref().is_none_or(|owner| caller.may_access(owner))))
        .map(|event| encode(&event))
        .take_until(app.closing());
    Ok(Sse::new(visible).keep_alive(KeepAlive::default()).into_response())
}

fn after(seen: Option<&str>) -> Result<u64, Error> {
    let seen: Option<u64> = seen.and_then(|seen| seen.trim().parse().ok());
    seen.map(|seen| seen.saturating_add(1))
        .ok_or_else(|| Error::bad_request("the last event id is not a number", "send the id of an event"))
}

fn encode(event: &Event) -> Result<sse::Event, axum::Error> {
    sse::Event::default().id(event.sequence.to_string()).event(event.kind.word()).json_data(event)
}
