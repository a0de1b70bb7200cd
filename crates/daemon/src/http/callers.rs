//! Who calls, whether the access token allows the request and stays valid, and the record of what was changed.

use super::App;
use super::connections::Peer;
use super::reply::Reply;
use super::requests::{Refused, RequestId};
use crate::api::{Error, ErrorCode};
use crate::audit::{Difference, Line};
use crate::auth::{Callers, Claimed, DaemonRole, Holder, Identity, LocalUser, Refusal, Scope, Scopes, TokenEntry};
use crate::config::OidcConfig;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

/// Interval at which the token of a request that takes long is checked again.
const INTERVAL: Duration = Duration::from_secs(1);

/// What a request is about to change, for the audit log. Handlers say it as soon as they know.
#[derive(Clone, Default)]
pub struct Deed(Arc<Mutex<Said>>);

#[derive(Default)]
struct Said {
    what: Option<String>,
    /// What was changed, each in a line of its own if they are several.
    differences: Vec<Difference>,
}

impl Deed {
    pub fn is(&self, what: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).what = Some(what);
    }

    /// A value that the request has changed.
    pub fn changed(&self, difference: Difference) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).differences.push(difference);
    }

    fn take(&self) -> Said {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Refuses requests without a valid access token or the scope that they need, and adds the user's [`Identity`] and a [`Deed`] to the
/// others. Requests that change something are recorded in the audit log, those that are refused included.
pub async fn authenticate(State(app): State<App>, mut request: Request, next: Next) -> Result<Response, Reply> {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let (deed, from) = (Deed::default(), request.extensions().get::<Peer>().cloned());
    let id = request.extensions().get::<RequestId>().map(|RequestId(id)| id.clone());
    let asked = format!("{} {}", request.method(), request.uri().path());
    let caller = caller(&app.callers, request.headers(), from.as_ref());
    let record = (!reads).then(|| Record {
        callers: Arc::clone(&app.callers),
        user: caller.as_ref().ok().map(|caller| caller.identity.user.clone()),
        token: caller.as_ref().ok().and_then(|caller| caller.token_name.clone()),
        from: from.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string()),
        request: asked,
        deed: deed.clone(),
        id,
        is_answered: false,
    });
    let answer = match &caller {
        Err(refused) => Err(Reply(refused.clone())),
        Ok(Caller { identity, validity, .. }) => match check(identity, if reads { Scope::Read } else { Scope::Submit })
        {
            Err(refused) => Err(Reply(refused)),
            Ok(()) => {
                request.extensions_mut().insert(identity.clone());
                request.extensions_mut().insert(deed.clone());
                Ok(match validity {
                    Validity::Lasting => next.run(request).await,
                    validity => while_valid(&app.callers, validity, next.run(request)).await,
                })
            }
        },
    };
    let Some(record) = record else { return answer };
    let answer = match answer {
        Ok(answer) => answer,
        Err(reply) => reply.into_response(),
    };
    record.answered(&answer);
    Ok(answer)
}

/// Records a request when it is answered, or when its client has left before: what it changes may happen nevertheless.
struct Record {
    callers: Arc<Callers>,
    user: Option<String>,
    token: Option<String>,
    from: String,
    request: String,
    deed: Deed,
    id: Option<String>,
    is_answered: bool,
}

impl Record {
    fn answered(mut self, answer: &Response) {
        self.is_answered = true;
        let status = answer.status();
        let refused = answer.extensions().get::<Refused>().map(|Refused(error)| error.message.clone());
        let is_error = status.is_client_error() || status.is_server_error();
        let result = refused.unwrap_or_else(|| if is_error { status.to_string() } else { "ok".to_owned() });
        self.add(Some(status.as_u16()), result);
    }

    fn add(&self, status: Option<u16>, result: String) {
        let Some(audit) = &self.callers.audit else { return };
        let Said { what, differences } = self.deed.take();
        let line = |what: Option<String>, before: Option<String>, after: Option<String>| {
            audit.add(&Line {
                user: self.user.as_deref(),
                token: self.token.as_deref(),
                from: self.from.clone(),
                request: self.request.clone(),
                what,
                before,
                after,
                status,
                result: result.clone(),
                id: self.id.clone(),
            });
        };
        if differences.is_empty() {
            line(what, None, None);
        }
        for Difference { what, before, after } in differences {
            line(Some(what), Some(before), Some(after));
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.is_answered {
            self.add(None, "the client left before the answer".to_owned());
        }
    }
}

struct Caller {
    identity: Identity,
    validity: Validity,
    /// The name of the access token, or the issuer of a JWT.
    token_name: Option<String>,
}

/// How long a caller may receive an answer.
#[derive(Clone)]
enum Validity {
    /// A user of this machine without a token.
    Lasting,
    /// Until the access token is removed or expires.
    Token(String),
    /// Until a JWT expires, or the entry under which it is valid changes.
    Issued { until: SystemTime, under: Arc<OidcConfig> },
}

impl Validity {
    fn is_over(&self, callers: &Callers) -> bool {
        match self {
            Validity::Lasting => false,
            Validity::Token(token) => !callers.tokens.is_valid(token),
            Validity::Issued { until, under } => SystemTime::now() >= *until || !callers.issuers.have(under),
        }
    }
}

/// The caller of a request: the holder of its access token, or without one the user of this machine who connected to the local
/// socket.
fn caller(callers: &Callers, headers: &HeaderMap, peer: Option<&Peer>) -> Result<Caller, Error> {
    let remedy = "pass a token: --token-file, AMALGAM_TOKEN_FILE, or the header `Authorization: Bearer TOKEN`";
    let refuse = |message: &str| Error::new(ErrorCode::Unauthorized, message, remedy);
    let header = match (headers.get(AUTHORIZATION), peer) {
        (Some(header), _) => header,
        (None, Some(Peer::Local(user))) => return of_this_machine(callers, user),
        (None, _) => return Err(refuse("the request has no access token")),
    };
    let token = header.to_str().ok().and_then(|text| text.strip_prefix("Bearer ")).map(str::trim);
    let token = token.ok_or_else(|| refuse("the authorization header is not `Bearer TOKEN`"))?;
    match callers.tokens.entry(token) {
        Some(TokenEntry { holder: Holder::User { name: user, .. }, scopes, name: token_name, .. }) => {
            let validity = Validity::Token(token.to_owned());
            Ok(Caller { identity: Identity { user, scopes }, validity, token_name })
        }
        Some(TokenEntry { holder: Holder::Daemon { role, name }, .. }) => {
            let of = if role == DaemonRole::Agent { "agent of node" } else { role.title() };
            Err(refuse(&format!("the token belongs to the {of} `{name}`, not to a user")))
        }
        None if let Some(verdict) = callers.issuers.verify(token, SystemTime::now()) => {
            let Claimed { identity, by, until, under } = verdict.map_err(|refusal| {
                let code = match refusal {
                    Refusal::NoKeys(_) => ErrorCode::Unavailable,
                    _ => ErrorCode::Unauthorized,
                };
                Error::new(code, refusal.to_string(), refusal.remedy())
            })?;
            Ok(Caller { identity, validity: Validity::Issued { until, under }, token_name: Some(by) })
        }
        None => {
            let message = "this server does not know the token";
            let remedy = "ask an administrator for a new one: `amalgam token add NAME` or `amalgam token rotate NAME` at the server";
            Err(Error::new(ErrorCode::Unauthorized, message, remedy))
        }
    }
}

/// A user who is known by the kernel. Root, the server's user, and users with an administrator's token are administrators.
fn of_this_machine(callers: &Callers, local: &LocalUser) -> Result<Caller, Error> {
    let Some(user) = local.name.as_deref().map(str::to_owned) else {
        let message = format!("the user with the id {} has no name on the server's machine", local.uid);
        return Err(Error::new(
            ErrorCode::Unauthorized,
            message,
            "create an account for the user, or pass an access token",
        ));
    };
    let is_admin = local.is_trusted() || callers.tokens.has_administrator(&user);
    let scopes = if is_admin { Scopes::ADMIN } else { Scopes::USUAL };
    Ok(Caller { identity: Identity { user, scopes }, validity: Validity::Lasting, token_name: None })
}

fn check(identity: &Identity, scope: Scope) -> Result<(), Error> {
    if identity.scopes.has(scope) {
        return Ok(());
    }
    let message = format!("the token of {} is only for {}", identity.user, identity.scopes);
    let remedy =
        format!("ask an administrator for one with the scope `{scope}`: `amalgam token add NAME --scope {scope}`");
    Err(Error::new(ErrorCode::Forbidden, message, remedy))
}

/// The answer, unless the token is removed or expires before: then the request and a stream that was started end.
async fn while_valid(callers: &Arc<Callers>, validity: &Validity, answer: impl Future<Output = Response>) -> Response {
    let answer = tokio::select! {
        answer = answer => answer,
        () = invalid(Arc::clone(callers), validity.clone()) => {
            let message = "the token ceased to be valid while the request was answered: it was removed, has expired, or the issuer's entry has changed";
            Reply(Error::new(ErrorCode::Unauthorized, message, "use a new token")).into_response()
        }
    };
    if answer.body().size_hint().exact().is_some() {
        return answer;
    }
    let invalid = Box::pin(invalid(Arc::clone(callers), validity.clone()));
    answer.map(|body| Body::new(WhileValid { body, invalid }))
}

/// Returns when the token is no longer valid.
async fn invalid(callers: Arc<Callers>, validity: Validity) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        if validity.is_over(&callers) {
            return;
        }
    }
}

/// A stream that fails when the token is no longer valid.
struct WhileValid {
    body: Body,
    invalid: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl HttpBody for WhileValid {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.invalid.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new("the token is not valid any more"))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
