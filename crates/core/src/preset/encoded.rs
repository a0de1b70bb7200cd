//! How [`Entitled`](super::Entitled) is sent: the settings of a choice stand beside it, as versions 32 and 33 of the wire have them.

use super::settings::{self, IntraJob};
use crate::job_manager::{AllowanceRules, CorrectionRules, ExplorationRules};
use crate::node::ReportWaits;
use crate::policy::inter_job::Within;
use crate::policy::placement::CompletionSettings;
use crate::scheduling::Delays;
use crate::vocabulary::Duration;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Entitled {
    intra_job: IntraJob,
    choice: Choice,
    guaranteed: u32,
    waits: ReportWaits,
    within: Within,
    keep_freed: Duration,
    yields_for: Option<Duration>,
    allowance: AllowanceRules,
    corrections: Option<CorrectionRules>,
    /// Of `RelaxedLocality` only, as are the delays.
    explores: Option<ExplorationRules>,
    delays: Delays,
    assumed_run_time: Option<Duration>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Choice {
    EarliestCompletion(CompletionSettings),
    RelaxedLocality,
}

impl From<settings::Entitled> for Entitled {
    fn from(settings: settings::Entitled) -> Entitled {
        let settings::Entitled { intra_job, choice, guaranteed, waits, within, keep_freed, .. } = settings;
        let settings::Entitled { yields_for, allowance, corrections, assumed_run_time, .. } = settings;
        let (choice, explores, delays) = match choice {
            settings::Choice::EarliestCompletion(settings) => {
                (Choice::EarliestCompletion(settings), None, Delays::NONE)
            }
            settings::Choice::RelaxedLocality { delays, explores } => (Choice::RelaxedLocality, explores, delays),
        };
        Entitled {
            intra_job,
            choice,
            guaranteed,
            waits,
            within,
            keep_freed,
            yields_for,
            allowance,
            corrections,
            explores,
            delays,
            assumed_run_time,
        }
    }
}

impl From<Entitled> for settings::Entitled {
    fn from(encoded: Entitled) -> settings::Entitled {
        let Entitled { intra_job, choice, guaranteed, waits, within, keep_freed, .. } = encoded;
        let Entitled { yields_for, allowance, corrections, explores, delays, assumed_run_time, .. } = encoded;
        let choice = match choice {
            Choice::EarliestCompletion(settings) => settings::Choice::EarliestCompletion(settings),
            Choice::RelaxedLocality => settings::Choice::RelaxedLocality { delays, explores },
        };
        settings::Entitled {
            intra_job,
            choice,
            guaranteed,
            waits,
            within,
            keep_freed,
            yields_for,
            allowance,
            corrections,
            assumed_run_time,
        }
    }
}
