//! The environment variables that the program reads. An empty one counts as unset; an invalid value is refused.

use crate::failure::{Failure, Result};
use crate::output::Standard;
use crate::{output, show};
use std::env;
use std::io::{self, Write};
use tracing::level_filters::LevelFilter;

const SERVER: &str = "AMALGAM_SERVER";
const TOKEN: &str = "AMALGAM_TOKEN";
const LOG: &str = "AMALGAM_LOG";

/// All variables of this program that it reads itself. The parser of the command line reads the others.
const READ: [&str; 7] = [SERVER, TOKEN, LOG, "AMALGAM_STATE", "AMALGAM_TOKEN_FILE", "AMALGAM_CA_FILE", "AMALGAM_JOIN"];

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
    log_level()?;
    server()?;
    token()?;
    Ok(())
}

pub fn server() -> Result<Option<String>> {
    text(SERVER)
}

pub fn token() -> Result<Option<String>> {
    let Some(token) = text(TOKEN)? else { return Ok(None) };
    let token = token.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let what = format!("{TOKEN} is not a token: a token has ASCII letters, digits and punctuation, and no spaces");
        return Err(Failure::usage(what, "copy the line that `amalgam token add` printed, or unset it"));
    }
    Ok(Some(token.to_owned()))
}

fn text(name: &str) -> Result<Option<String>> {
    let Some(value) = env::var_os(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    let text = value.into_string();
    text.map(Some).map_err(|_| Failure::usage(format!("{name} is not UTF-8"), "set it to UTF-8 text, or unset it"))
}

/// The level in AMALGAM_LOG, by default warnings.
fn log_level() -> Result<LevelFilter> {
    let Some(level) = text(LOG)? else { return Ok(LevelFilter::WARN) };
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    let known = levels.into_iter().find(|known| known.eq_ignore_ascii_case(level.trim()));
    known.and_then(|known| known.parse().ok()).ok_or_else(|| {
        let what = format!("{LOG} is `{}`, which is not a level", show::visible(&level));
        Failure::usage(what, format!("set it to one of {}, or unset it", levels.join(", ")))
    })
}

/// Writes a daemon's diagnostics to standard error, from the level in AMALGAM_LOG up.
///
/// # Errors
/// If AMALGAM_LOG is not a level.
pub fn log_to_stderr() -> Result<()> {
    let colours = show::is_watched() && show::shows_colour();
    let writer = move || Log { out: output::stderr(), colours };
    let log = tracing_subscriber::fmt().with_max_level(log_level()?).with_writer(writer).with_ansi(colours);
    // A second call changes nothing.
    let _ = log.try_init();
    Ok(())
}

/// Writes one line for each event, also if names of nodes and users contain control characters.
struct Log {
    out: Standard,
    colours: bool,
}

impl Write for Log {
    /// Gets one whole event for each call.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        // The only escapes left are colours: those in values are already printed as text.
        let shown = if self.colours { show::visible_in_colour(line) } else { show::visible(line) };
        // If the diagnostics cannot be written, the daemon continues without them.
        let _ = self.out.write_all(&[shown.as_bytes(), b"\n"].concat());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
