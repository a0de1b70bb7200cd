//! Requests about nodes, queues and the server itself.

use super::App;
use super::reply::{Answer, Number, Parameters, Reply};
use crate::api::{ClusterSummary, Error, ErrorCode, NodeDetail, NodeSummary, QueueSummary, Report, Timestamp};
use crate::auth::{Identity, Scope};
use crate::dates::{By, day_of_date};
use axum::Json;
use axum::extract::{Extension, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

pub async fn nodes(State(app): State<App>) -> Answer<Vec<NodeSummary>> {
    Ok(Json(app.backend.nodes().await?))
}

pub async fn node(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Number(node): Number<String>,
) -> Answer<NodeDetail> {
    let mut detail = app.backend.node(app.node(&node).await?).await?;
    if !caller.scopes.has(Scope::Operate) {
        // Only operators may see other users' tasks. The summary has their number.
        detail.attempts.clear();
    }
    Ok(Json(detail))
}

pub async fn queues(State(app): State<App>) -> Answer<Vec<QueueSummary>> {
    Ok(Json(app.backend.queues().await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReportParameters {
    by: Option<String>,
    from: Option<String>,
    to: Option<String>,
}

/// The number of days of a report that names none.
const USUAL_DAYS: u64 = 30;

pub async fn report(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Parameters(ReportParameters { by, from, to }): Parameters<ReportParameters>,
) -> Answer<Report> {
    let mut wanted = By::default();
    for word in by.as_deref().unwrap_or("user").split(',').filter(|word| !word.is_empty()) {
        match word {
            "user" => wanted.user = true,
            "queue" => wanted.queue = true,
            "day" => wanted.day = true,
            other => {
                let message = format!("`{}` is not a column of reports", other.escape_debug());
                return Err(Error::bad_request(message, "use user, queue and day, separated by commas").into());
            }
        }
    }
    let day = |text: &str| {
        let wrong =
            || Error::bad_request(format!("invalid date `{}`", text.escape_debug()), "write it like 2026-11-01");
        day_of_date(text).ok_or_else(wrong)
    };
    let today = Timestamp::now().0 / 86_400_000_000;
    let to = to.as_deref().map_or(Ok(today), day)?;
    let from = from.as_deref().map_or_else(|| Ok((to + 1).saturating_sub(USUAL_DAYS)), day)?;
    if from > to {
        return Err(Error::bad_request("`from` is after `to`", "exchange the dates").into());
    }
    let user = (!caller.scopes.has(Scope::Operate)).then_some(caller.user);
    Ok(Json(app.backend.report((from, to), wanted, user).await?))
}

pub async fn summary(State(app): State<App>) -> Answer<ClusterSummary> {
    Ok(Json(app.backend.cluster().await?))
}

pub async fn metrics(State(app): State<App>) -> Result<Response, Reply> {
    let text = app.backend.metrics().await?;
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

pub async fn openapi() -> Json<serde_json::Value> {
    Json(super::openapi())
}

/// The certificates that clients verify this server by, for `amalgam login`. They are no secret.
pub async fn authorities(State(app): State<App>) -> Result<Response, Reply> {
    let Some(trusted) = &app.callers.trusted else {
        let message = "this server has no certificate authority";
        let remedy = "it listens on loopback only and takes no agents: clients of its machine need no certificates";
        return Err(Reply(Error::new(ErrorCode::NotFound, message, remedy)));
    };
    Ok(([(CONTENT_TYPE, "application/pem-certificate-chain")], trusted()).into_response())
}

pub async fn healthy() -> &'static str {
    "ok\n"
}

pub async fn ready(State(app): State<App>) -> Result<&'static str, Reply> {
    app.backend.ready().await?;
    Ok("ready\n")
}
