//! Requests that change nodes, queues and the server itself while it runs.

use super::App;
use super::callers::Deed;
use super::reply::{Answer, Number, Reply, bad_body, parse_json};
use crate::api::{DrainRequest, Error, ErrorCode, LabelRequest, NodeDetail, QueueRequest, QueueSummary, Reloaded};
use crate::audit::{Difference, RELOAD};
use crate::auth::{self, DaemonRole, Identity, Scope, Which};
use crate::config::queue_settings;
use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, State};
use axum::http::StatusCode;

pub async fn drain(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Extension(deed): Extension<Deed>,
    Number(node): Number<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Reply> {
    let request: DrainRequest = parse_json(&body.map_err(bad_body)?)?;
    let what = format!("{} node {node}", if request.drain { "drain" } else { "undrain" });
    deed.is(what.clone());
    App::allow_operator(&caller)?;
    let node = app.node(&node).await?;
    let before = app.backend.node(node).await;
    app.backend.drain(node, request.drain).await?;
    let state = |detail: Result<NodeDetail, Error>| detail.map(|node| node.summary.state.to_string());
    if let (Ok(before), Ok(after)) = (state(before), state(app.backend.node(node).await)) {
        deed.changed(Difference { what, before, after });
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Forgets a node, and revokes the access tokens of its agent.
pub async fn remove_node(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Extension(deed): Extension<Deed>,
    Number(node): Number<String>,
) -> Result<StatusCode, Reply> {
    let what = format!("remove node {node}");
    deed.is(what.clone());
    App::allow_operator(&caller)?;
    let node = app.node(&node).await?;
    let before = app.backend.node(node).await?.summary;
    app.backend.remove_node(node).await?;
    let (path, name) = (app.callers.tokens.path().to_owned(), before.name.clone());
    let revoke = move || auth::remove(&path, &Which { holder: &name, role: Some(DaemonRole::Agent), name: None });
    let revoked = tokio::task::spawn_blocking(revoke).await;
    let token = match revoked {
        Ok(Ok(())) => "its token revoked",
        // It used the token of all agents.
        Ok(Err(auth::AuthError::Unknown { .. })) => "it has no token of its own",
        failed => {
            let why = match failed {
                Ok(Err(error)) => error.to_string(),
                _ => "the task was stopped".to_owned(),
            };
            let message = format!("node {} was removed, but the token of its agent is still valid: {why}", before.name);
            let remedy = format!("`amalgam token remove --agent {}` at the server", before.name);
            return Err(Error::new(ErrorCode::Internal, message, remedy).into());
        }
    };
    let before = format!("{} {}", before.name, before.state);
    deed.changed(Difference { what, before, after: format!("removed, {token}") });
    Ok(StatusCode::NO_CONTENT)
}

pub async fn label(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Extension(deed): Extension<Deed>,
    Number(node): Number<String>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<NodeDetail> {
    let LabelRequest { set, remove } = parse_json(&body.map_err(bad_body)?)?;
    let what = format!("label node {node}");
    deed.is(what.clone());
    App::allow_operator(&caller)?;
    if set.is_empty() && remove.is_empty() {
        return Err(Error::bad_request("no label is named", "name labels in `set` or `remove`").into());
    }
    let node = app.node(&node).await?;
    let names: Vec<String> = set.keys().chain(&remove).cloned().collect();
    let shown = |detail: &NodeDetail| {
        let values = names.iter().map(|name| match detail.labels.get(name) {
            Some(value) => format!("{name}={value}"),
            None => format!("{name} not set"),
        });
        values.collect::<Vec<_>>().join(", ")
    };
    let before = shown(&app.backend.node(node).await?);
    let set = set.into_iter().map(|(name, value)| (name, Some(value)));
    app.backend.label_node(node, set.chain(remove.into_iter().map(|name| (name, None))).collect()).await?;
    let detail = app.backend.node(node).await?;
    deed.changed(Difference { what, before, after: shown(&detail) });
    Ok(Json(NodeDetail { attempts: Vec::new(), ..detail }))
}

pub async fn set_queue(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Extension(deed): Extension<Deed>,
    Number(queue): Number<String>,
    body: Result<Bytes, BytesRejection>,
) -> Answer<QueueSummary> {
    let QueueRequest { set, reset } = parse_json(&body.map_err(bad_body)?)?;
    let what = if reset { format!("reset queue {queue}") } else { format!("set queue {queue}") };
    deed.is(what.clone());
    App::allow_administrator(&caller)?;
    if set.is_empty() != reset {
        let message = if reset { "a queue is reset and set at once" } else { "nothing of the queue is set" };
        return Err(Error::bad_request(message, "name values in `set`, or write `\"reset\": true` alone").into());
    }
    let before = find_queue(&app, &queue).await?;
    let bad = |wrong: amalgam_workload::quantities::Malformed| Error::bad_request(wrong.problem, wrong.remedy);
    let settings = if reset { None } else { Some(queue_settings(&set).map_err(bad)?) };
    app.backend.set_queue(&before.name, settings).await?;
    let after = find_queue(&app, &queue).await?;
    deed.changed(Difference { what, before: limits(&before), after: limits(&after) });
    Ok(Json(after))
}

/// A queue by its full name, or its name below the root.
async fn find_queue(app: &App, name: &str) -> Result<QueueSummary, Error> {
    let queues = app.backend.queues().await?;
    let full = format!("root.{name}");
    let position = queues.iter().position(|queue| queue.name == name);
    let found = position.or_else(|| queues.iter().position(|queue| queue.name == full));
    let missing = || {
        let message = format!("queue `{}` not found", name.escape_debug());
        Error::new(ErrorCode::NotFound, message, "`amalgam queue list` shows the queues")
    };
    found.map(|at| queues[at].clone()).ok_or_else(missing)
}

/// The limits of a queue in the words of the configuration.
fn limits(queue: &QueueSummary) -> String {
    let QueueSummary { weight, guaranteed, maximum, user_limit, max_running_jobs, default_timeout_seconds, .. } = queue;
    let jobs = max_running_jobs.map_or_else(|| "none".to_owned(), |most| most.to_string());
    let timeout = default_timeout_seconds.map_or_else(|| "none".to_owned(), |seconds| format!("{seconds}s"));
    format!(
        "weight={weight} guaranteed={guaranteed} maximum={maximum} user_limit={user_limit} max_running_jobs={jobs} \
         default_timeout={timeout}"
    )
}

pub async fn reload_configuration(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Extension(deed): Extension<Deed>,
) -> Answer<Reloaded> {
    deed.is(RELOAD.to_owned());
    App::allow_administrator(&caller)?;
    let changes = app.backend.reload().await?;
    changes.iter().map(Difference::from).for_each(|difference| deed.changed(difference));
    Ok(Json(Reloaded { changes }))
}

impl App {
    /// Checks that the caller may change what applies to all users.
    fn allow_administrator(caller: &Identity) -> Result<(), Error> {
        if caller.scopes.has(Scope::Admin) {
            return Ok(());
        }
        let message = format!("{} is not an administrator", caller.user);
        Err(Error::new(ErrorCode::Forbidden, message, "use an administrator's token"))
    }
}
