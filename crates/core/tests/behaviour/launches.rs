//! Launches for tests of a single role.

use amalgam_core::protocol::Launch;
use amalgam_core::vocabulary::{AttemptId, TaskId, TaskTemplate, Token};
use std::sync::Arc;

/// A launch without a grant, a probe, inputs or a valid token.
pub fn bare_launch(attempt: AttemptId, task: TaskId, template: Arc<TaskTemplate>) -> Launch {
    Launch {
        attempt,
        task,
        grant: None,
        probe: None,
        is_of_gang: false,
        shared_gpu: None,
        template,
        index: 0,
        item: None,
        expected: None,
        weight: 1,
        inputs: Arc::default(),
        prediction: None,
        token: Token::default(),
    }
}
