//! How much is kept of ended jobs, and for how long: `kept_for`, `kept_tasks`, `history_for`.

use super::{Mistake, at_least, mistake};
use amalgam_core::vocabulary::Duration;
use amalgam_workload::At;

/// For how long ended jobs are kept by default.
pub const KEPT_FOR: Duration = Duration::from_secs(30 * 86_400);

/// How many tasks of ended jobs are kept by default.
pub const KEPT_TASKS: u64 = 10_000_000;

/// A time for which something is kept; `None` for as long as there is not too much of it, which is written `forever`.
pub fn kept_for(key: &str, found: Option<At<String>>, default: Option<Duration>) -> Result<Option<Duration>, Mistake> {
    let Some(At { at, value }) = found else { return Ok(default) };
    if value == "forever" {
        return Ok(None);
    }
    let wrong = || mistake(at, format!("{key} is `{value}`"), "write for instance \"720h\", or \"forever\"");
    let kept_for = Duration::parse(&value).map_err(|_| wrong())?;
    at_least(key, Some(At { at, value: kept_for }), Duration::from_secs(1), "1s")?;
    Ok(Some(kept_for))
}
