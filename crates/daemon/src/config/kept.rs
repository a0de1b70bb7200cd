//! `kept_for`: for how long ended jobs are kept.

use super::{Mistake, at_least, mistake};
use amalgam_core::vocabulary::Duration;
use amalgam_workload::At;

/// For how long ended jobs are kept by default.
pub const KEPT_FOR: Duration = Duration::from_secs(30 * 86_400);

/// For how long ended jobs are kept; `None` for as long as there are not too many.
pub fn kept_for(found: Option<At<String>>) -> Result<Option<Duration>, Mistake> {
    let Some(At { at, value }) = found else { return Ok(Some(KEPT_FOR)) };
    if value == "forever" {
        return Ok(None);
    }
    let wrong = || mistake(at, format!("kept_for is `{value}`"), "write for instance \"720h\", or \"forever\"");
    let kept_for = Duration::parse(&value).map_err(|_| wrong())?;
    at_least("kept_for", Some(At { at, value: kept_for }), Duration::from_secs(1), "1s")?;
    Ok(Some(kept_for))
}
