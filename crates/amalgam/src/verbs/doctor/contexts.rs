//! The contexts of `amalgam login`: who can read them, and whether each of them still serves.

use super::certificates::{authorities_end_in, days_ago};
use super::{Check, Outcome};
use crate::client::Client;
use crate::contexts::{Context, Store, seconds_now};
use crate::discovery::{LOCAL, base_url};
use crate::failure::Failure;
use amalgam_daemon::api::ClusterSummary;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use std::path::Path;
use std::thread;
use std::time::Duration;

const CHECK: &str = "contexts";
/// Time limit for each server. All are called at once.
const PATIENCE: Duration = Duration::from_secs(3);

pub fn checks() -> Vec<Check> {
    // Without a home directory there are none.
    let Ok(store) = Store::of_user() else { return Vec::new() };
    let contexts = match store.read() {
        Ok(contexts) => contexts,
        Err(failure) => return vec![Check::problem(CHECK, failure.what, failure.remedy)],
    };
    thread::scope(|scope| {
        let started: Vec<_> = contexts.list().iter().map(|context| scope.spawn(|| of_context(context))).collect();
        started.into_iter().flat_map(|checks| checks.join().unwrap_or_default()).collect()
    })
}

fn of_context(context: &Context) -> Vec<Check> {
    let name = &context.name;
    let mut checks = Vec::new();
    if context.server.starts_with("https://") {
        let pem = context.authorities.as_deref().unwrap_or_default();
        let authority = authorities_end_in(CHECK, &format!("the authority of `{name}`"), pem, &again(context));
        if authority.result != Outcome::Ok {
            checks.push(authority);
        }
    }
    // Neither an expired token nor an authority that has ended would be accepted, so the server is not asked.
    match expired(context) {
        Some(check) => checks.push(check),
        None if checks.iter().any(|check| check.result == Outcome::Problem) => {}
        None => checks.push(reached(context)),
    }
    checks
}

fn again(context: &Context) -> String {
    format!("run `amalgam login {} --name {}`", context.server, context.name)
}

/// The claim of a JWT that says when it ends.
#[derive(Deserialize)]
struct Claims {
    exp: u64,
}

/// That the token of an issuer has ended, which the token says itself. Only the server knows it of an access token.
fn expired(context: &Context) -> Option<Check> {
    let payload = context.token.as_deref()?.split('.').nth(1)?;
    let claims = URL_SAFE_NO_PAD.decode(payload).ok()?;
    let Claims { exp } = serde_json::from_slice(&claims).ok()?;
    let since = seconds_now().checked_sub(exp)?;
    let found = format!("the token of `{}` ended {}", context.name, days_ago(i64::try_from(since).unwrap_or(i64::MAX)));
    let remedy = format!("get a new token from its issuer, and {} with it", again(context));
    Some(Check::problem(CHECK, found, remedy))
}

fn reached(context: &Context) -> Check {
    let Context { name, server, .. } = context;
    let client = match client(context) {
        Ok(client) => client.within(PATIENCE),
        Err(failure) => return Check::problem(CHECK, failure.what, failure.remedy),
    };
    match client.get::<ClusterSummary>("/v1/cluster") {
        Ok(_) => Check::ok(CHECK, format!("`{name}` is {server}, which answers")),
        Err(failure) => judged(context, failure),
    }
}

/// The network of another server may be away; what it refuses stays refused.
fn judged(context: &Context, failure: Failure) -> Check {
    let Context { name, server, .. } = context;
    let found = format!("`{name}`: {}", failure.what);
    match failure.kind {
        kind if kind.may_pass() => {
            let remedy = format!(
                "start the server at {server}, or check the network; if it is gone, run `amalgam context remove {name}`"
            );
            Check::warning(CHECK, found, remedy)
        }
        _ => {
            let own = if failure.remedy.is_empty() { String::new() } else { format!("{}; or ", failure.remedy) };
            Check::problem(CHECK, found, own + &again(context))
        }
    }
}

/// As for other commands, but the context is not changed.
fn client(context: &Context) -> Result<Client, Failure> {
    let missing = |what: &str| Failure::new(format!("the context `{}` has no {what}", context.name), again(context));
    if let Some(socket) = context.server.strip_prefix(LOCAL) {
        return Ok(Client::local(Path::new(socket), context.token.clone()));
    }
    let base = base_url(&context.server, "a context")?;
    let client = Client::new(base.clone(), context.token.clone().ok_or_else(|| missing("token"))?);
    if !base.starts_with("https://") {
        return Ok(client);
    }
    let authorities = context.authorities.as_deref().unwrap_or_default();
    client.trusting_pem(authorities.as_bytes()).ok_or_else(|| missing("authority"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(token: Option<String>) -> Context {
        let (name, server) = ("head".to_owned(), "https://head:7433".to_owned());
        Context { name, server, token, authorities: None, authorities_at: None }
    }

    #[test]
    fn the_end_of_a_token_is_known_if_it_says_so() {
        let jwt = |claims: &str| context(Some(format!("e30.{}.x", URL_SAFE_NO_PAD.encode(claims))));
        let ended = expired(&jwt("{\"exp\":1000}")).unwrap();
        assert!(ended.result == Outcome::Problem && ended.found.starts_with("the token of `head` ended "), "{ended:?}");
        assert!(ended.remedy.contains("amalgam login https://head:7433 --name head"), "{ended:?}");
        let later = format!("{{\"exp\":{}}}", seconds_now() + 60);
        for context in [jwt(&later), jwt("{}"), context(Some("a.b.c".to_owned())), context(None)] {
            assert!(expired(&context).is_none());
        }
    }

    #[test]
    fn a_context_without_its_parts_names_the_remedy() {
        let checks = of_context(&context(Some("secret".to_owned())));
        assert!(checks.len() == 1 && checks[0].result == Outcome::Problem, "{checks:?}");
        assert!(checks[0].remedy.contains("amalgam login"), "{checks:?}");
    }
}
