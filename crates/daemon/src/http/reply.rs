//! Answers: JSON, and errors with a remedy.

use super::requests::Refused;
use crate::api::{Error, ErrorCode};
use axum::Json;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

/// An error as an HTTP response.
#[derive(Debug)]
pub struct Reply(pub Error);

pub type Answer<T> = Result<Json<T>, Reply>;

impl From<Error> for Reply {
    fn from(error: Error) -> Reply {
        Reply(error)
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let status = match self.0.error {
            ErrorCode::BadRequest | ErrorCode::Unsupported => StatusCode::BAD_REQUEST,
            ErrorCode::Unauthorized => StatusCode::UNAUTHORIZED,
            ErrorCode::Forbidden => StatusCode::FORBIDDEN,
            ErrorCode::NotFound => StatusCode::NOT_FOUND,
            ErrorCode::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            ErrorCode::Conflict => StatusCode::CONFLICT,
            ErrorCode::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            ErrorCode::Elsewhere => StatusCode::MISDIRECTED_REQUEST,
            ErrorCode::Removed => StatusCode::GONE,
            ErrorCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut response = (status, Json(&self.0)).into_response();
        response.extensions_mut().insert(Refused(self.0));
        response
    }
}

pub async fn not_found(uri: Uri) -> Reply {
    let message = format!("path `{}` not found", uri.path());
    Reply(Error::new(ErrorCode::NotFound, message, "/openapi.json lists all paths"))
}

pub async fn method_not_allowed(method: Method, uri: Uri) -> Reply {
    let message = format!("invalid method {method} for `{}`", uri.path());
    Reply(Error::new(ErrorCode::MethodNotAllowed, message, "/openapi.json lists the methods of each path"))
}

/// The parameters after the `?`.
pub struct Parameters<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = Reply;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Reply> {
        let Query(parameters) = Query::from_request_parts(parts, state).await.map_err(bad_query)?;
        Ok(Parameters(parameters))
    }
}

fn bad_query(rejection: QueryRejection) -> Reply {
    Reply(Error::bad_request(rejection.body_text(), "/openapi.json lists the parameters of each request"))
}

/// The parameter in the path: a job's number, or a node's name or number.
pub struct Number<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Number<T> {
    type Rejection = Reply;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Reply> {
        let Path(number) = Path::from_request_parts(parts, state).await.map_err(bad_path)?;
        Ok(Number(number))
    }
}

fn bad_path(rejection: PathRejection) -> Reply {
    Reply(Error::bad_request(rejection.body_text(), "write a job's number, or a node's name or number, into the path"))
}

pub fn too_large() -> Reply {
    let message = format!("the request's body is larger than {} MiB", super::MAX_BODY >> 20);
    Reply(Error::new(ErrorCode::TooLarge, message, "split the job, or use indexes instead of items"))
}

/// The answer to a body that could not be read: it is too large, or the client disconnected.
pub fn bad_body(rejection: BytesRejection) -> Reply {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return too_large();
    }
    Reply(Error::bad_request(rejection.body_text(), "send the whole body"))
}

pub fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| {
        Error::bad_request(format!("invalid body: {error}"), "/openapi.json describes the body of each request")
    })
}
