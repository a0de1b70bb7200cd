//! Users whom an issuer of OpenID Connect identifies: tokens that it has signed (JWT), as bearer tokens (ADR 82).
//!
//! A token is accepted if the issuer of an `[[oidc]]` entry has signed it with a key of its JWKS, for the audience of the
//! entry, and if it is valid now. Its claims say who the user is. A request never waits for keys: they are fetched by a
//! thread.

mod keys;
#[cfg(test)]
mod tests;
mod verifier;

use super::{AuthError, Identity, Scope, Scopes};
use crate::config::OidcConfig;
use amalgam_core::vocabulary::Named;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use keys::{Found, Keys};
use serde_json::{Map, Value};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// Difference of clocks that is tolerated.
const LEEWAY: Duration = Duration::from_secs(30);
/// The most characters of an issuer's name that a message shows, which comes from a token that is not verified.
const MOST_SHOWN: usize = 100;

/// What a token says that was verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claimed {
    pub identity: Identity,
    /// For the audit log.
    pub by: String,
    /// The token is not valid after this time.
    pub until: SystemTime,
    /// The entry under which it is valid, see [`Issuers::have`].
    pub under: Arc<OidcConfig>,
}

/// Why a token is not accepted. The text contains no part of the token but the name of its issuer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Refusal {
    #[error("the access token is not known here, and looks like a JWT, but is none: {0}")]
    Malformed(&'static str),
    #[error("this server accepts no tokens of the issuer `{0}`")]
    UnknownIssuer(String),
    #[error("the token is signed with an algorithm that is not accepted")]
    Algorithm,
    #[error("the token is signed with a key that the issuer has not published")]
    UnknownKey,
    #[error("the token does not say with which of the issuer's keys it is signed")]
    NoKey,
    #[error("the signature of the token is wrong")]
    Signature,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    Immature,
    #[error("the token is for another audience than `{0}`")]
    Audience(String),
    #[error("the token has no valid claim `{0}`")]
    Claim(String),
    #[error("the token names no valid user: {0}")]
    BadName(String),
    /// The keys could not be fetched yet.
    #[error("the keys of the issuer are not available: {0}")]
    NoKeys(String),
}

impl Refusal {
    pub fn remedy(&self) -> &'static str {
        match self {
            Refusal::Malformed(_) => "pass a token of `amalgam token add` or one of a configured issuer",
            Refusal::UnknownIssuer(_) => {
                "compare the claim `iss` with `issuer` in `[[oidc]]` of the server's configuration"
            }
            Refusal::Algorithm => "let the issuer sign with RS256, ES256 or EdDSA",
            Refusal::UnknownKey => {
                "try again in a minute: the server fetches the keys again; if that does not help, get a new token, or compare `kid` \
                 with the issuer's keys"
            }
            Refusal::NoKey => "let the issuer set `kid` in the header of its tokens",
            Refusal::Signature => "get a new token; check `jwks` in `[[oidc]]` of the server's configuration",
            Refusal::Expired => "get a new token; if it is new, compare the clocks",
            Refusal::Immature => "compare the clocks of the server and the issuer",
            Refusal::Audience(_) => "get a token for this audience, or correct `audience` in `[[oidc]]`",
            Refusal::Claim(_) => "let the issuer add the claim, or name another one in `[[oidc]]`",
            Refusal::BadName(_) => "name another `claim` in `[[oidc]]` of the server's configuration",
            Refusal::NoKeys(_) => {
                "try again; if it does not help, an administrator finds the reason in the server's diagnostics"
            }
        }
    }
}

/// All issuers of a configuration, which a reload may replace.
#[derive(Default)]
pub struct Issuers(RwLock<Started>);

/// Issuers with their keys.
#[derive(Clone, Default)]
pub struct Started(Arc<[Issuer]>);

struct Issuer {
    config: Arc<OidcConfig>,
    keys: Arc<Keys>,
}

impl Issuers {
    /// Reads the keys in files, and begins to fetch the others.
    ///
    /// # Errors
    /// If a file of keys cannot be used.
    pub fn start(configs: Vec<OidcConfig>) -> Result<Issuers, AuthError> {
        let issuers = Issuers::default();
        issuers.replace(issuers.prepare(configs)?);
        Ok(issuers)
    }

    /// The issuers of another configuration. Keys of the same file or URL are kept.
    ///
    /// # Errors
    /// If a file of keys cannot be used.
    pub fn prepare(&self, configs: Vec<OidcConfig>) -> Result<Started, AuthError> {
        if !configs.is_empty() {
            verifier::install();
        }
        let now = self.now();
        let issuer = |config: OidcConfig| {
            let keys = match now.0.iter().find(|issuer| issuer.config.jwks == config.jwks) {
                Some(same) => Arc::clone(&same.keys),
                None => Arc::new(Keys::start(&config)?),
            };
            Ok(Issuer { keys, config: Arc::new(config) })
        };
        configs.into_iter().map(issuer).collect::<Result<_, _>>().map(Started)
    }

    /// Requests from now on, and streams within a second, need tokens of these.
    pub fn replace(&self, issuers: Started) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = issuers;
    }

    /// Whether this entry is still part of the configuration, without any change.
    pub fn have(&self, entry: &OidcConfig) -> bool {
        self.now().0.iter().any(|issuer| *issuer.config == *entry)
    }

    fn now(&self) -> Started {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The user of a token. `None` if it is no JWT, or there are no issuers.
    pub fn verify(&self, token: &str, now: SystemTime) -> Option<Result<Claimed, Refusal>> {
        let mut parts = token.split('.');
        let (Some(_), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return None;
        };
        let issuers = self.now();
        (!issuers.0.is_empty()).then(|| issuers.verified(token, claims, now))
    }
}

impl Started {
    fn verified(&self, token: &str, claims: &str, now: SystemTime) -> Result<Claimed, Refusal> {
        // Only to find the entry; everything is verified with its keys.
        let claims = URL_SAFE_NO_PAD.decode(claims).map_err(|_| Refusal::Malformed("its claims are not Base64"))?;
        let claims: Map<String, Value> =
            serde_json::from_slice(&claims).map_err(|_| Refusal::Malformed("its claims are not JSON"))?;
        let named = claims.get("iss").and_then(Value::as_str).ok_or_else(|| Refusal::Claim("iss".to_owned()))?;
        let issuer = self.0.iter().find(|issuer| issuer.config.issuer == named);
        let shown = || named.escape_debug().take(MOST_SHOWN).collect();
        issuer.ok_or_else(|| Refusal::UnknownIssuer(shown()))?.verified(token, now)
    }
}

impl Issuer {
    fn verified(&self, token: &str, now: SystemTime) -> Result<Claimed, Refusal> {
        // An unknown algorithm, such as `none`, is an error of the header.
        let header = decode_header(token).map_err(|error| match error.kind() {
            ErrorKind::Json(_) => Refusal::Algorithm,
            _ => Refusal::Malformed("its header cannot be read"),
        })?;
        if !verifier::ALGORITHMS.contains(&header.alg) {
            return Err(Refusal::Algorithm);
        }
        let key = match self.keys.find(header.kid.as_deref(), header.alg) {
            Found::Key(key) => key,
            Found::Unknown if header.kid.is_none() => return Err(Refusal::NoKey),
            Found::Unknown => return Err(Refusal::UnknownKey),
            Found::NotFetched(why) => return Err(Refusal::NoKeys(why)),
        };
        let validation = self.validation(header.alg);
        let claims =
            decode::<Map<String, Value>>(token, &key, &validation).map_err(|error| self.refusal(&error))?.claims;
        let until = self.check_times(&claims, now)?;
        let (by, under) = (format!("oidc {}", self.config.issuer), Arc::clone(&self.config));
        Ok(Claimed { identity: self.identity(&claims)?, by, until, under })
    }

    fn validation(&self, algorithm: Algorithm) -> Validation {
        let mut validation = Validation::new(algorithm);
        validation.set_issuer(&[&self.config.issuer]);
        validation.set_audience(&[&self.config.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        // Times are compared with the caller's clock in `check_times`.
        (validation.validate_exp, validation.validate_nbf) = (false, false);
        validation
    }

    fn refusal(&self, error: &jsonwebtoken::errors::Error) -> Refusal {
        match error.kind() {
            ErrorKind::InvalidSignature | ErrorKind::InvalidRsaKey(_) => Refusal::Signature,
            ErrorKind::InvalidAudience => Refusal::Audience(self.config.audience.clone()),
            ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName => Refusal::Algorithm,
            ErrorKind::InvalidIssuer => Refusal::Claim("iss".to_owned()),
            ErrorKind::MissingRequiredClaim(claim) | ErrorKind::InvalidClaimFormat(claim) => {
                Refusal::Claim(claim.clone())
            }
            _ => Refusal::Malformed("it cannot be read"),
        }
    }

    /// The end of the validity, with the leeway.
    fn check_times(&self, claims: &Map<String, Value>, now: SystemTime) -> Result<SystemTime, Refusal> {
        let time = |claim: &str| match claims.get(claim) {
            None => Ok(None),
            Some(value) => moment(value).map(Some).ok_or_else(|| Refusal::Claim(claim.to_owned())),
        };
        let until = time("exp")?.and_then(|exp| exp.checked_add(LEEWAY));
        let until = until.ok_or_else(|| Refusal::Claim("exp".to_owned()))?;
        if now >= until {
            return Err(Refusal::Expired);
        }
        if time("nbf")?.is_some_and(|from| from > now + LEEWAY) {
            return Err(Refusal::Immature);
        }
        Ok(until)
    }

    fn identity(&self, claims: &Map<String, Value>) -> Result<Identity, Refusal> {
        let OidcConfig { claim, groups_claim, operators, admins, .. } = &*self.config;
        let user = claims.get(claim).and_then(Value::as_str).ok_or_else(|| Refusal::Claim(claim.clone()))?;
        Named::User.check(user).map_err(|bad| Refusal::BadName(bad.problem))?;
        // A group, or a list of groups.
        let groups: Vec<&str> = match claims.get(groups_claim) {
            Some(Value::String(group)) => vec![group],
            Some(Value::Array(groups)) => groups.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let is_in = |list: &[String]| groups.iter().any(|group| list.iter().any(|listed| listed == group));
        let scopes = if is_in(admins) {
            Scopes::ADMIN
        } else if is_in(operators) {
            Scopes::of([Scope::Read, Scope::Submit, Scope::Operate]).unwrap_or(Scopes::USUAL)
        } else {
            Scopes::USUAL
        };
        Ok(Identity { user: user.to_owned(), scopes })
    }
}

/// A time in seconds since 1970, which may have a fraction.
fn moment(value: &Value) -> Option<SystemTime> {
    let seconds = Duration::try_from_secs_f64(value.as_f64()?).ok()?;
    UNIX_EPOCH.checked_add(seconds)
}
