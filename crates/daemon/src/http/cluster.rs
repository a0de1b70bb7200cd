//! Requests about nodes, queues and the server itself.

use super::App;
use super::callers::Deed;
use super::reply::{Answer, Number, Reply, bad_body, parse_json};
use crate::api::{ClusterSummary, DrainRequest, NodeDetail, NodeSummary, QueueSummary};
use crate::auth::{Identity, Scope};
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
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

pub async fn drain(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Extension(deed): Extension<Deed>,
    Number(node): Number<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Reply> {
    let request: DrainRequest = parse_json(&body.map_err(bad_body)?)?;
    deed.is(format!("{} node {node}", if request.drain { "drain" } else { "undrain" }));
    App::allow_operator(&caller)?;
    app.backend.drain(app.node(&node).await?, request.drain).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn remove_node(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Extension(deed): Extension<Deed>,
    Number(node): Number<String>,
) -> Result<StatusCode, Reply> {
    deed.is(format!("remove node {node}"));
    App::allow_operator(&caller)?;
    app.backend.remove_node(app.node(&node).await?).await?;
    Ok(StatusCode::NO_CONTENT)
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
