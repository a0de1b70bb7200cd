//! Ids of requests: a client and an administrator find the same request in an answer and in the diagnostics.

use crate::api::Error;
use axum::Json;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::time::Instant;

/// The header of requests and answers.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is accepted from a client.
const LONGEST: usize = 128;

/// The error in the body of an answer, for [`identify`].
#[derive(Clone)]
pub struct Refused(pub Error);

/// The id of a request, for handlers.
#[derive(Clone)]
pub struct RequestId(pub String);

/// Gives the request an id, the client's or a new one, and adds it to the answer's header, to the body of an error and to the
/// diagnostics.
pub async fn identify(mut request: Request, next: Next) -> Response {
    let id = accepted(request.headers()).unwrap_or_else(new_id);
    request.extensions_mut().insert(RequestId(id.clone()));
    let (method, path, started) = (request.method().clone(), request.uri().path().to_owned(), Instant::now());
    let mut response = next.run(request).await;
    let (status, took) = (response.status(), started.elapsed());
    if let Some(Refused(error)) = response.extensions_mut().remove::<Refused>() {
        response = with_id(response, error, &id);
    }
    // Every character is that of a header.
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    // The answer to a stream is complete later.
    if status == StatusCode::INTERNAL_SERVER_ERROR {
        tracing::error!(request = id, %method, path, status = status.as_u16(), ?took, "a request failed");
    } else {
        tracing::debug!(request = id, %method, path, status = status.as_u16(), ?took, "answered a request");
    }
    response
}

/// The answer with the same status and headers, and the id in its body.
fn with_id(response: Response, error: Error, id: &str) -> Response {
    let (mut head, _) = response.into_parts();
    let body = Json(Error { request: Some(id.into()), ..error }).into_response().into_body();
    head.headers.remove(CONTENT_LENGTH);
    Response::from_parts(head, body)
}

/// The client's id, if it is printable and not too long.
fn accepted(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let is_allowed = (1..=LONGEST).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    is_allowed.then(|| id.to_owned())
}

fn new_id() -> String {
    // Without random numbers the process would not have started: it makes tokens and certificates of them.
    let number = getrandom::u64().unwrap_or_default();
    format!("{number:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_clients_are_accepted_if_they_are_printable_and_short() {
        let accepted = |id: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(id).unwrap());
            super::accepted(&headers)
        };
        assert_eq!(accepted(b"build-7/step:3").as_deref(), Some("build-7/step:3"));
        for wrong in [&b""[..], b"a b", b"caf\xc3\xa9", &[b'x'; LONGEST + 1]] {
            assert_eq!(accepted(wrong), None);
        }
        assert_ne!(new_id(), new_id());
        assert_eq!(new_id().len(), 16);
    }
}
