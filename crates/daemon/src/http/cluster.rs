//! Requests about nodes, queues and the server itself.

use super::App;
use super::reply::{Answer, Number, Reply};
use crate::api::{ClusterSummary, NodeDetail, NodeSummary, QueueSummary};
use crate::auth::{Identity, Scope};
use axum::Json;
use axum::extract::{Extension, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

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

pub async fn healthy() -> &'static str {
    "ok\n"
}

pub async fn ready(State(app): State<App>) -> Result<&'static str, Reply> {
    app.backend.ready().await?;
    Ok("ready\n")
}
