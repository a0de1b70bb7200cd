//! What a story is about.

use amalgam_core::vocabulary::{JobId, TaskId};

/// The subject of a story.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    Job(JobId),
    /// With the happenings that concern its job as a whole.
    Task(TaskId),
}
