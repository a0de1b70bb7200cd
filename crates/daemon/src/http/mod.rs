//! The HTTP interface: routes, authorization and answers. A [`Backend`] carries out the requests.
//!
//! Everything except `/healthz`, `/readyz` and `/ca.pem` requires an access token. One function, `App::allow`, decides whether a caller
//! may access a job. A backend gets only requests that the caller is allowed to make.

mod admission;
mod backend;
mod callers;
mod changes;
mod cluster;
mod connections;
mod events;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod input;
mod jobs;
mod openapi;
mod output;
mod outputs;
mod reply;
mod requests;
pub mod submission;
#[cfg(test)]
mod tests;

pub use backend::{
    Acted, Backend, FoundFile, InputRequest, JobFilter, OutputChunk, OutputFilter, OutputRequest, Page, StoryFilter,
    TaskFilter,
};
pub use connections::{Encryption, Entrance};
pub use openapi::openapi;
pub use output::{ATTEMPT, ENDED, NEWER};
pub use outputs::SHA256;

use crate::api::{Error, ErrorCode};
use crate::auth::{Callers, Identity, Scope};
use amalgam_core::vocabulary::{JobId, NodeId};
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use connections::Limits;
use reply::Reply;
use std::future::Future;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::sync::watch;

/// Maximum size of a request's body in bytes. Twenty million short items fit.
pub const MAX_BODY: usize = 256 << 20;

/// Answers requests until `shutdown` completes. Then it ends the streams, answers the requests in flight and returns.
pub async fn serve(
    entrance: Entrance,
    backend: Arc<dyn Backend>,
    mut callers: Callers,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let (close, closing) = watch::channel(false);
    let local = callers.local.as_mut().and_then(|socket| socket.listener.try_clone().ok());
    let local = local.and_then(|listener| UnixListener::from_std(listener).ok());
    let app = App { backend, callers: Arc::new(callers), closing };
    let stop = async move {
        shutdown.await;
        close.send_replace(true);
    };
    connections::serve(entrance, local, router(app), Limits::default(), stop).await;
}

/// Answers every request with `refusal`, except `/healthz`, which reports that the process runs.
pub async fn refuse_all(entrance: Entrance, refusal: Error) {
    let refuse = move || std::future::ready(Reply(refusal.clone()));
    let router = Router::new().route("/healthz", get(cluster::healthy)).fallback(refuse);
    let router = router.layer(middleware::from_fn(requests::identify));
    connections::serve(entrance, None, router, Limits::default(), std::future::pending()).await;
}

#[derive(Clone)]
struct App {
    backend: Arc<dyn Backend>,
    callers: Arc<Callers>,
    closing: watch::Receiver<bool>,
}

impl App {
    /// Checks that the caller may read and change the job: its user or an administrator.
    async fn allow(&self, caller: &Identity, job: JobId) -> Result<(), Error> {
        let owner = self.backend.owner(job).await?;
        if caller.may_access(&owner) {
            return Ok(());
        }
        let message = format!("job {job} belongs to {owner}, and you are {}", caller.user);
        Err(Error::new(ErrorCode::Forbidden, message, format!("ask {owner} or an administrator")))
    }

    /// Checks that the caller may act on nodes.
    fn allow_operator(caller: &Identity) -> Result<(), Error> {
        if caller.scopes.has(Scope::Operate) {
            return Ok(());
        }
        let message = format!("{} is not an administrator", caller.user);
        Err(Error::new(ErrorCode::Forbidden, message, "use an administrator's token, or one with the scope `operate`"))
    }

    /// Finds a node by its name, or by its number with or without a leading `n`. Does not check that the number exists.
    async fn node(&self, text: &str) -> Result<NodeId, Error> {
        if let Some(named) = self.backend.node_named(text).await? {
            return Ok(named);
        }
        text.strip_prefix('n').unwrap_or(text).parse().map(NodeId).map_err(|_| {
            let shown = text.escape_debug();
            Error::new(ErrorCode::NotFound, format!("node `{shown}` not found"), "`amalgam node list` shows the nodes")
        })
    }

    async fn name_of(&self, node: NodeId) -> String {
        self.backend.node(node).await.map_or_else(|_| node.to_string(), |node| node.summary.name)
    }

    /// Returns when the server shuts down.
    async fn closing(mut self) {
        // An error means that `serve` has returned already.
        let _ = self.closing.wait_for(|closing| *closing).await;
    }
}

fn router(app: App) -> Router {
    let private = Router::new()
        .route("/v1/jobs", get(jobs::list).post(jobs::submit))
        .route("/v1/jobs/actions", post(jobs::act))
        .route("/v1/jobs/update", post(jobs::update))
        .route("/v1/jobs/{job}", get(jobs::detail))
        .route("/v1/jobs/{job}/tasks", get(jobs::tasks))
        .route("/v1/jobs/{job}/attempts", get(jobs::attempts))
        .route("/v1/jobs/{job}/story", get(jobs::story))
        .route("/v1/jobs/{job}/wait", get(jobs::wait))
        .route("/v1/jobs/{job}/output", get(output::read))
        .route("/v1/jobs/{job}/input", post(input::take))
        .route("/v1/jobs/{job}/outputs", get(outputs::list))
        .route("/v1/jobs/{job}/outputs/content", get(outputs::content))
        .route("/v1/history", get(jobs::history))
        .route("/v1/nodes", get(cluster::nodes))
        .route("/v1/nodes/{node}", get(cluster::node).delete(changes::remove_node))
        .route("/v1/nodes/{node}/drain", post(changes::drain))
        .route("/v1/nodes/{node}/labels", post(changes::label))
        .route("/v1/queues", get(cluster::queues))
        .route("/v1/queues/{queue}", post(changes::set_queue))
        .route("/v1/report", get(cluster::report))
        .route("/v1/reload", post(changes::reload_configuration))
        .route("/v1/cluster", get(cluster::summary))
        .route("/v1/events", get(events::stream))
        .route("/metrics", get(cluster::metrics))
        .route("/openapi.json", get(cluster::openapi))
        .fallback(reply::not_found)
        .method_not_allowed_fallback(reply::method_not_allowed)
        .layer(middleware::from_fn_with_state(app.clone(), callers::authenticate));
    Router::new()
        .route("/healthz", get(cluster::healthy))
        .route("/readyz", get(cluster::ready))
        .route("/ca.pem", get(cluster::authorities))
        .merge(private)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(refuse_large))
        .layer(middleware::from_fn(requests::identify))
        .with_state(app)
}

/// Refuses a request whose `Content-Length` is above the limit, before its body is read.
async fn refuse_large(request: Request, next: Next) -> Result<Response, Reply> {
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > MAX_BODY as u64) {
        return Err(reply::too_large());
    }
    Ok(next.run(request).await)
}
