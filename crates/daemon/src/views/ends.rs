//! The names of tasks, and the reasons why they ended.

use amalgam_core::vocabulary::{Duration, EndReason, StageSpec};

/// The displayed name of a task: its place as in selectors, and its value if that is another number.
pub fn task_name(stage: &StageSpec, place: u32) -> String {
    let value = stage.tasks.index_value(place);
    match &stage.name {
        name if stage.tasks.len() == 1 => name.clone(),
        name if value == u64::from(place) => format!("{name}/{place}"),
        name => format!("{name}/{place} (value {value})"),
    }
}

/// Whether the reason contains its own explanation.
pub(super) fn is_explained(reason: &EndReason) -> bool {
    use EndReason::{LaunchFailed, NoInput, NoOutput, NodeFault, Withdrawn};
    matches!(reason, LaunchFailed(_) | NodeFault(_) | NoInput(_) | NoOutput(_) | Withdrawn(_))
}

pub(super) fn task_reason(reason: &EndReason, message: Option<&String>, timeout: Option<Duration>) -> String {
    let general = with_limit(reason, timeout);
    match message {
        Some(message) if !is_explained(reason) => format!("{general}: {}", message.trim_end()),
        _ => general,
    }
}

pub(super) fn describe_end(reason: &EndReason, timeout: Option<Duration>) -> String {
    match reason {
        EndReason::OutOfMemory => "ran out of memory".to_owned(),
        EndReason::Signal(signal) => format!("was killed by signal {signal}"),
        other => with_limit(other, timeout),
    }
}

fn with_limit(reason: &EndReason, timeout: Option<Duration>) -> String {
    match (reason, timeout) {
        (EndReason::Timeout, Some(timeout)) => format!("{reason} after {timeout}"),
        _ => reason.to_string(),
    }
}
