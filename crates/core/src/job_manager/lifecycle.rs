//! The life of the job as a whole: started, held, cancelled, ended, and started again to rerun tasks.

use crate::protocol::JobOutcome;

/// Which of its states a job is in. The states of its tasks are in its [`Dag`](crate::progress::Dag).
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Lifecycle {
    has_started: bool,
    /// Number of times the job was reopened to rerun failed tasks.
    run: u32,
    is_held: bool,
    is_cancelled: bool,
    is_stopping: bool,
    outcome: Option<JobOutcome>,
}

impl Lifecycle {
    /// The master has handed the job to its manager. Returns whether it had done so before.
    pub(super) fn start(&mut self) -> bool {
        std::mem::replace(&mut self.has_started, true)
    }

    pub(super) fn has_started(&self) -> bool {
        self.has_started
    }

    pub(super) fn run(&self) -> u32 {
        self.run
    }

    /// Whether a user holds the job: no more tasks start.
    pub(super) fn is_held(&self) -> bool {
        self.is_held
    }

    pub(super) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// Whether running attempts are being stopped: the job was cancelled, or too many tasks failed.
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Running attempts are stopped: too many tasks failed, or the job was cancelled.
    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// A user cancelled the job.
    pub(super) fn cancel(&mut self) {
        (self.is_cancelled, self.is_stopping) = (true, true);
    }

    /// The outcome, once it was reported to the master and as long as it is not withdrawn.
    pub(super) fn outcome(&self) -> Option<JobOutcome> {
        self.outcome
    }

    /// A job that is cancelled before its manager gets it ends without a start.
    pub(super) fn end(&mut self, outcome: JobOutcome) {
        self.has_started = true;
        self.outcome = Some(outcome);
    }

    /// The outcome does not hold, or has to be reported again.
    pub(super) fn withdraw_outcome(&mut self) {
        self.outcome = None;
    }

    /// Tasks that failed or were cancelled start again.
    pub(super) fn rerun(&mut self, run: u32) {
        self.run = run;
        (self.is_cancelled, self.is_stopping) = (false, false);
        self.withdraw_outcome();
    }

    /// The state in a snapshot.
    pub(super) fn recover(&mut self, run: u32, is_cancelled: bool, is_stopping: bool) {
        (self.run, self.is_cancelled, self.is_stopping) = (run, is_cancelled, is_stopping);
    }
}
