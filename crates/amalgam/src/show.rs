//! Formats of jobs, tasks and resource usage, and the functions of [`amalgam_cli::show`].

pub use amalgam_cli::show::*;
use amalgam_core::vocabulary::Duration;
use amalgam_daemon::api::{AttemptCounts, JobState, JobSummary, StageDetail, TaskCounts, Timestamp, Waited};
use std::collections::BTreeMap;

/// Resources that the attempts of a job used; empty if none has ended.
pub fn used(job: &JobSummary) -> String {
    if job.wall_seconds == 0.0 {
        return String::new();
    }
    let (cpu, wall, memory) = (seconds(job.cpu_seconds), seconds(job.wall_seconds), bytes(job.max_memory_bytes));
    format!("{cpu} of CPU in {wall} of run time, at most {memory} of memory at a time; all attempts that have ended")
}

/// The time between two moments; a missing end means now.
pub fn between(start: Timestamp, end: Option<Timestamp>) -> String {
    let end = end.unwrap_or_else(Timestamp::now);
    // Whole seconds: fractions only flicker.
    let seconds = end.0.saturating_sub(start.0) / 1_000_000;
    if seconds < 60 { format!("{seconds}s") } else { Duration::from_secs(seconds).to_string() }
}

/// To the second, in UTC.
pub fn time(moment: Timestamp) -> String {
    Timestamp(moment.0 / 1_000_000 * 1_000_000).to_string().replace(".000000", "")
}

/// `12/200, 1 failed`
pub fn counts(tasks: &TaskCounts) -> String {
    let failed = if tasks.failed > 0 { format!(", {} failed", tasks.failed) } else { String::new() };
    format!("{}/{}{failed}", tasks.succeeded, tasks.total)
}

/// `1 guaranteed and 3 opportunistic run, 2 at nodes and not started; 4 were preempted and 1 was shed so far`. Without active
/// attempts only the second part. Empty if there is nothing to distinguish.
pub fn attempts(counts: &AttemptCounts) -> String {
    let AttemptCounts { guaranteed, opportunistic, at_nodes, preempted, shed } = counts;
    let waiting = if *at_nodes > 0 { format!(", {at_nodes} at nodes and not started") } else { String::new() };
    let now = format!("{guaranteed} guaranteed and {opportunistic} opportunistic run{waiting}");
    let were = |count: &u64| if *count == 1 { "was" } else { "were" };
    let past = format!("{preempted} {} preempted and {shed} {} shed", were(preempted), were(shed));
    match (guaranteed + opportunistic + at_nodes > 0, preempted + shed > 0) {
        (false, false) => String::new(),
        (true, false) => now,
        (false, true) => past,
        (true, true) => format!("{now}; {past} so far"),
    }
}

/// `2 cpu, 256 MiB memory`
pub fn amounts(amounts: &BTreeMap<String, f64>) -> String {
    let shown = amounts.iter().filter(|(_, amount)| **amount != 0.0).map(|(kind, amount)| match kind.as_str() {
        "memory" => memory(*amount),
        _ => format!("{} {kind}", number(*amount)),
    });
    let text = shown.collect::<Vec<_>>().join(", ");
    if text.is_empty() { "nothing".to_owned() } else { text }
}

fn memory(mebibytes: f64) -> String {
    match mebibytes {
        1024.0.. => format!("{} GiB memory", number(mebibytes / 1024.0)),
        _ => format!("{} MiB memory", number(mebibytes)),
    }
}

/// `2.5 cpu-s, 0.75 GiB-s`: resources times seconds.
pub fn resource_seconds(amounts: &BTreeMap<String, f64>) -> String {
    let shown = amounts.iter().map(|(kind, amount)| match kind.as_str() {
        "memory" => format!("{} GiB-s", number(*amount / 1024.0)),
        _ => format!("{} {kind}-s", number(*amount)),
    });
    let text = shown.collect::<Vec<_>>().join(", ");
    if text.is_empty() { "nothing".to_owned() } else { text }
}

/// How much earlier or later a job that succeeded ended, compared with the estimate for it alone with its share.
pub fn against_alone(job: &JobSummary) -> Option<String> {
    let (end, alone) = (job.ended_at.filter(|_| job.state == JobState::Succeeded)?, job.exchange.as_ref()?.alone_end?);
    let difference = (alone.0 as f64 - end.0 as f64) / 1e6;
    let length = format!("{:.1}s", difference.abs());
    Some(match difference {
        _ if length == "0.0s" => "as alone".to_owned(),
        0.0.. => format!("{length} earlier"),
        _ => format!("{length} later"),
    })
}

/// How much of a stage's output was not kept, and what may help; `None` if nothing was dropped.
pub fn dropped_output(stage: &StageDetail) -> Option<String> {
    let dropped = (stage.dropped_bytes > 0).then(|| bytes(stage.dropped_bytes))?;
    let name = visible(&stage.name);
    if let Some(why) = &stage.output_unwritten {
        return Some(format!("{name}: {dropped} of output were not kept: {}", visible(why)));
    }
    Some(format!(
        "{name}: {dropped} of output were not kept; if it was past the cap, --output-cap, or `output_cap` in a file, \
         keeps more"
    ))
}

/// A job's state and its reason: `failed: task main exited with code 3`, `cancelled by ada`.
pub fn ending(waited: &Waited) -> String {
    match &waited.reason {
        None => waited.state.to_string(),
        Some(reason) if reason.starts_with(waited.state.word()) => visible(reason).into_owned(),
        Some(reason) => format!("{}: {}", waited.state, visible(reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_daemon::api::Exchange;

    #[test]
    fn attempts_are_counted_by_kind_if_there_are_any() {
        let counts = |guaranteed, opportunistic, at_nodes, preempted| {
            attempts(&AttemptCounts { guaranteed, opportunistic, at_nodes, preempted, shed: 0 })
        };
        assert_eq!(counts(0, 0, 0, 0), "");
        assert_eq!(counts(2, 0, 0, 0), "2 guaranteed and 0 opportunistic run");
        assert_eq!(counts(0, 0, 0, 1), "1 was preempted and 0 were shed");
        let all =
            "1 guaranteed and 3 opportunistic run, 2 at nodes and not started; 4 were preempted and 0 were shed so far";
        assert_eq!(counts(1, 3, 2, 4), all);
    }

    #[test]
    fn an_end_is_compared_with_the_end_alone_where_both_are_known() {
        let job = |state, ended, alone: Option<u64>| {
            let exchange = Exchange { alone_end: alone.map(Timestamp), ..Exchange::default() };
            let ended_at = Some(Timestamp(ended));
            against_alone(&JobSummary { state, ended_at, exchange: Some(exchange), ..JobSummary::default() })
        };
        let succeeded = JobState::Succeeded;
        assert_eq!(job(succeeded, 2_000_000, Some(3_500_000)).as_deref(), Some("1.5s earlier"));
        assert_eq!(job(succeeded, 2_000_000, Some(1_900_000)).as_deref(), Some("0.1s later"));
        assert_eq!(job(succeeded, 2_000_000, Some(1_990_000)).as_deref(), Some("as alone"));
        assert_eq!(job(JobState::Failed, 2_000_000, Some(3_500_000)), None);
        assert_eq!(job(succeeded, 2_000_000, None), None);
    }

    #[test]
    fn amounts_are_short() {
        let some = BTreeMap::from([("cpu".to_owned(), 0.5), ("memory".to_owned(), 1536.0), ("gpu".to_owned(), 0.0)]);
        assert_eq!(amounts(&some), "0.5 cpu, 1.5 GiB memory");
        assert_eq!(resource_seconds(&some), "0.5 cpu-s, 0 gpu-s, 1.5 GiB-s");
        assert_eq!(resource_seconds(&BTreeMap::new()), "nothing");
    }
}
