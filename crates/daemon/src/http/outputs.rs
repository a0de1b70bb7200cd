//! The declared outputs of a job's tasks: their list and their content.

use super::App;
use super::backend::OutputFilter;
use super::jobs::{page, parse_stage, parse_task};
use super::reply::{Answer, Number, Parameters, Reply};
use crate::api::{Error, ErrorCode, Listing, OutputFile};
use crate::auth::Identity;
use crate::files::{PIECE, Piece, PieceAsk};
use amalgam_core::vocabulary::{JobId, NodeId};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use std::collections::VecDeque;

/// The SHA-256 of the whole file, in hexadecimal digits.
pub const SHA256: HeaderName = HeaderName::from_static("amalgam-sha256");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListParameters {
    /// The stage's number or name.
    stage: Option<String>,
    index: Option<u32>,
    cursor: Option<String>,
    limit: Option<u32>,
}

pub async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Number(job): Number<u64>,
    Parameters(parameters): Parameters<ListParameters>,
) -> Answer<Listing<OutputFile>> {
    app.allow(&caller, JobId(job)).await?;
    let stage = parse_stage(&*app.backend, JobId(job), parameters.stage.as_deref()).await?;
    let filter = OutputFilter { stage, index: parameters.index };
    Ok(Json(app.backend.outputs(JobId(job), filter, page(parameters.cursor, parameters.limit)).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContentParameters {
    /// `JOB.STAGE.INDEX` or `STAGE.INDEX`, with the stage's number or name.
    task: String,
    name: String,
    offset: Option<u64>,
    /// The client received another checksum: the nodes check their copies before they send the file.
    suspect: Option<bool>,
}

/// Sends the file from a node that has it. A client that has the first bytes already continues at an offset.
pub async fn content(
    State(app): State<App>,
    Extension(caller): Extension<Identity>,
    Number(job): Number<u64>,
    Parameters(parameters): Parameters<ContentParameters>,
) -> Result<Response, Reply> {
    app.allow(&caller, JobId(job)).await?;
    let task = parse_task(&*app.backend, JobId(job), &parameters.task).await?;
    let found = app.backend.output_file(task, &parameters.name).await?;
    let offset = parameters.offset.unwrap_or(0);
    let left = found.bytes.checked_sub(offset).ok_or_else(|| {
        let message = format!("the offset {offset} is beyond the end of `{}`", parameters.name);
        Error::bad_request(message, format!("use an offset of at most {}", found.bytes))
    })?;
    let mut reader = Reader {
        app,
        ask: PieceAsk {
            node: NodeId::default(),
            digest: found.digest,
            offset,
            limit: PIECE,
            is_suspect: parameters.suspect.unwrap_or(false),
        },
        end: found.bytes,
        nodes: found.nodes.into(),
        name: format!("{} of task {task}", parameters.name),
    };
    // The first piece is read before the answer starts, so that an error is sent with its HTTP status.
    let first = if left == 0 { Vec::new() } else { reader.next().await? };
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(left));
    headers.extend(HeaderValue::try_from(found.digest.to_string()).ok().map(|digest| (SHA256, digest)));
    let start = (Some(first), reader);
    let body = stream::unfold(start, |(ready, mut reader)| async move {
        if let Some(bytes) = ready {
            return Some((Ok(Bytes::from(bytes)), (None, reader)));
        }
        if reader.ask.offset >= reader.end {
            return None;
        }
        let piece = reader.next().await.map(Bytes::from);
        if piece.is_err() {
            reader.ask.offset = reader.end;
        }
        Some((piece, (None, reader)))
    });
    Ok((headers, Body::from_stream(body)).into_response())
}

struct Reader {
    app: App,
    ask: PieceAsk,
    end: u64,
    /// Nodes that may have the file. Pieces are requested from the first.
    nodes: VecDeque<NodeId>,
    name: String,
}

impl Reader {
    async fn next(&mut self) -> Result<Vec<u8>, Error> {
        let mut away = Vec::new();
        while let Some(&node) = self.nodes.front() {
            self.ask.node = node;
            match self.app.backend.piece(self.ask).await {
                Piece::Bytes(bytes) | Piece::First { bytes, .. } if !bytes.is_empty() => {
                    self.ask.offset += bytes.len() as u64;
                    // The node has checked its copy.
                    self.ask.is_suspect = false;
                    return Ok(bytes);
                }
                Piece::Bytes(_) | Piece::First { .. } | Piece::Absent => {}
                Piece::Unreachable => away.push(node),
            }
            self.nodes.pop_front();
        }
        let name = &self.name;
        let Some(&first) = away.first() else {
            let message = format!("no node has {name}");
            return Err(Error::new(ErrorCode::NotFound, message, "run the task again with `amalgam submit`"));
        };
        let node = self.app.name_of(first).await;
        self.nodes = away.into();
        let message = format!("{name} is stored on node {node}, which is not connected");
        Err(Error::new(ErrorCode::Unavailable, message, "try again when the node is connected again"))
    }
}
