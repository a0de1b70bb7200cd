//! The ends of jobs as text and exit codes.

use amalgam_core::dispatch::{Dispatcher, JobState};
use amalgam_core::protocol::JobOutcome;
use amalgam_core::vocabulary::JobId;

/// The exit code of `wait` for a job with this outcome.
pub fn exit_code(outcome: JobOutcome) -> u8 {
    match outcome {
        JobOutcome::Succeeded => 0,
        JobOutcome::Failed { exit_code } => exit_code.max(1),
        JobOutcome::Cancelled => 130,
        JobOutcome::DependencyFailed { .. } => 1,
    }
}

/// Why a job ended without success, without the details of its tasks.
pub fn reason(dispatch: Option<&Dispatcher>, job: JobId, outcome: JobOutcome) -> Option<String> {
    match outcome {
        JobOutcome::Succeeded => None,
        JobOutcome::Failed { .. } => Some("a task failed".to_owned()),
        JobOutcome::Cancelled => Some(cancelled(dispatch, job)),
        JobOutcome::DependencyFailed { after } => Some(of_dependency(dispatch, after)),
    }
}

/// `cancelled by ada`, or `cancelled` if the user is not known.
pub fn cancelled(dispatch: Option<&Dispatcher>, job: JobId) -> String {
    match dispatch.and_then(|dispatch| dispatch.cancellation(job)) {
        Some(cancellation) => format!("cancelled by {}", cancellation.by),
        None => "cancelled".to_owned(),
    }
}

/// The outcome of a job's dependency: `its dependency job 39 (train) was cancelled by ada`.
pub fn of_dependency(dispatch: Option<&Dispatcher>, after: JobId) -> String {
    let Some((job, state)) = dispatch.and_then(|dispatch| dispatch.job(after)) else {
        return format!("its dependency job {after} did not succeed");
    };
    let how = match state {
        JobState::Ended(end) => match end.outcome {
            JobOutcome::Failed { exit_code } => format!("failed with exit code {exit_code}"),
            JobOutcome::Cancelled => format!("was {}", cancelled(dispatch, after)),
            JobOutcome::DependencyFailed { after } => format!("never ran, because job {after} did not succeed"),
            JobOutcome::Succeeded => "succeeded later".to_owned(),
        },
        JobState::Pending | JobState::Started => "did not succeed, and runs again".to_owned(),
    };
    format!("its dependency job {after} ({}) {how}", job.spec.name)
}
