//! How jobs ended, in words.

use amalgam_core::dispatch::{Dispatcher, JobState};
use amalgam_core::protocol::JobOutcome;
use amalgam_core::vocabulary::JobId;

/// The exit code that a job's end gives `wait`.
pub fn exit_code(outcome: JobOutcome) -> u8 {
    match outcome {
        JobOutcome::Succeeded => 0,
        JobOutcome::Failed { exit_code } => exit_code.max(1),
        JobOutcome::Cancelled => 130,
        JobOutcome::DependencyFailed { .. } => 1,
    }
}

/// Why a job ended without success, as far as its tasks are not asked.
pub fn reason(dispatch: Option<&Dispatcher>, job: JobId, outcome: JobOutcome) -> Option<String> {
    match outcome {
        JobOutcome::Succeeded => None,
        JobOutcome::Failed { .. } => Some("a task failed".to_owned()),
        JobOutcome::Cancelled => Some(cancelled(dispatch, job)),
        JobOutcome::DependencyFailed { after } => Some(of_dependency(dispatch, after)),
    }
}

/// `cancelled by ada`, where it is known by whom.
pub fn cancelled(dispatch: Option<&Dispatcher>, job: JobId) -> String {
    match dispatch.and_then(|dispatch| dispatch.cancellation(job)) {
        Some(cancellation) => format!("cancelled by {}", cancellation.by),
        None => "cancelled".to_owned(),
    }
}

/// What became of a job that another came after: `job 39 (train), which it came after, was cancelled by ada`.
pub fn of_dependency(dispatch: Option<&Dispatcher>, after: JobId) -> String {
    let Some((job, state)) = dispatch.and_then(|dispatch| dispatch.job(after)) else {
        return format!("job {after}, which it came after, did not succeed");
    };
    let how = match state {
        JobState::Ended(end) => match end.outcome {
            JobOutcome::Failed { exit_code } => format!("failed with exit code {exit_code}"),
            JobOutcome::Cancelled => format!("was {}", cancelled(dispatch, after)),
            JobOutcome::DependencyFailed { after } => format!("never ran, since job {after} did not succeed"),
            JobOutcome::Succeeded => "succeeded later".to_owned(),
        },
        JobState::Pending | JobState::Begun => "did not succeed, and runs again".to_owned(),
    };
    format!("job {after} ({}), which it came after, {how}", job.spec.name)
}
