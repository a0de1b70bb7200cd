//! The environment variables that the program reads. An empty one counts as unset; an invalid value is refused.

use crate::failure::{Failure, Result};
use crate::levels::{self, LogFormat};
use std::env;
use tracing_subscriber::filter::Targets;

const SERVER: &str = "AMALGAM_SERVER";
const CONTEXT: &str = "AMALGAM_CONTEXT";
const TOKEN: &str = "AMALGAM_TOKEN";
const LOG: &str = "AMALGAM_LOG";
const LOG_FORMAT: &str = "AMALGAM_LOG_FORMAT";

/// All variables of this program that it reads itself. The parser of the command line reads the others.
const READ: [&str; 9] =
    [SERVER, CONTEXT, TOKEN, LOG, LOG_FORMAT, "AMALGAM_STATE", "AMALGAM_TOKEN_FILE", "AMALGAM_CA_FILE", "AMALGAM_JOIN"];

/// Removes empty variables. Call it before other threads start.
pub fn drop_empty() {
    for name in READ.into_iter().filter(|name| env::var_os(name).is_some_and(|value| value.is_empty())) {
        // SAFETY: no other thread runs.
        unsafe { env::remove_var(name) };
    }
}

/// Checks all variables for every verb, so that a mistake does not depend on which verb reads the variable.
///
/// # Errors
/// Names the variable and its allowed values.
pub fn check() -> Result<()> {
    log_levels()?;
    log_format()?;
    server()?;
    context()?;
    token()?;
    Ok(())
}

pub fn server() -> Result<Option<String>> {
    text(SERVER)
}

/// The name of a context of `amalgam login`.
pub fn context() -> Result<Option<String>> {
    text(CONTEXT)
}

pub fn token() -> Result<Option<String>> {
    let Some(token) = text(TOKEN)? else { return Ok(None) };
    token_of(&token, TOKEN, "copy the line that `amalgam token add` printed, or unset it").map(Some)
}

/// A token that somebody wrote at this place.
///
/// # Errors
/// If it is not one.
pub fn token_of(text: &str, place: &str, remedy: &str) -> Result<String> {
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let what = format!("{place} is not a token: a token has ASCII letters, digits and punctuation, and no spaces");
        return Err(Failure::usage(what, remedy));
    }
    Ok(token.to_owned())
}

fn text(name: &str) -> Result<Option<String>> {
    let Some(value) = env::var_os(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    let text = value.into_string();
    text.map(Some).map_err(|_| Failure::usage(format!("{name} is not UTF-8"), "set it to UTF-8 text, or unset it"))
}

/// The levels in AMALGAM_LOG, by default warnings of all parts.
///
/// # Errors
/// If one is not a level, or is for an unknown part.
pub fn log_levels() -> Result<Targets> {
    levels::parse_levels(LOG, text(LOG)?.as_deref().unwrap_or("warn"))
}

/// # Errors
/// If AMALGAM_LOG_FORMAT is not a format.
pub fn log_format() -> Result<Option<LogFormat>> {
    text(LOG_FORMAT)?.map(|format| levels::parse_format(LOG_FORMAT, &format)).transpose()
}
