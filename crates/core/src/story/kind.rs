//! The kinds of lines.

/// Declares the kinds with their names.
macro_rules! kinds {
    ($($kind:ident => $name:literal,)*) => {
        /// What happened, for programs that read stories.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Kind {
            $($kind,)*
        }

        impl Kind {
            /// Sorted by name.
            pub const ALL: &'static [Kind] = &[$(Kind::$kind,)*];

            pub const fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    Admitted => "admitted",
    Adopted => "adopted",
    AwaitsFiles => "awaits-files",
    AwaitsGang => "awaits-gang",
    Blocked => "blocked",
    CanWait => "can-wait",
    CancelAsked => "cancel-asked",
    Cancelled => "cancelled",
    Copied => "copied",
    Duplicated => "duplicated",
    Ended => "ended",
    EndedLate => "ended-late",
    Estimates => "estimates",
    FilesArrived => "files-arrived",
    GangStarted => "gang-started",
    GivenUp => "given-up",
    Held => "held",
    Launched => "launched",
    Lost => "lost",
    Orphaned => "orphaned",
    OutputLost => "output-lost",
    Overtaken => "overtaken",
    Predicted => "predicted",
    Preempting => "preempting",
    Promoted => "promoted",
    Queued => "queued",
    Refused => "refused",
    Released => "released",
    Reopened => "reopened",
    Resumed => "resumed",
    Retried => "retried",
    SlowInput => "slow-input",
    StageReady => "stage-ready",
    Stale => "stale",
    Started => "started",
    Stopping => "stopping",
    Straggles => "straggles",
    Submitted => "submitted",
    Superseded => "superseded",
    TasksCancelled => "tasks-cancelled",
    TasksHeld => "tasks-held",
    TasksReleased => "tasks-released",
    TasksReopened => "tasks-reopened",
    TokenRefused => "token-refused",
    Updated => "updated",
    Yielding => "yielding",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_distinct() {
        assert!(Kind::ALL.is_sorted_by(|one, next| one.name() < next.name()), "{:?}", Kind::ALL);
    }
}
