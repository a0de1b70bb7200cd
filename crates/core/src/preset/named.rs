//! All presets: the papers' systems, improved variants of some of them, and the usual orders of jobs.

use super::Preset;
use super::settings::{
    Booked, Booker, Choice, DemandOrder, Entitled, IntraJob, Opportunistic, Placement, Plans, Probed, QueueChoice,
    Scheduling, Yielding, choose,
};
use crate::job_manager::{AllowanceRules, CorrectionRules, ExplorationRules};
use crate::master::{OpportunisticLimit, Steering};
use crate::node::{OpportunisticRules, ReportWaits};
use crate::policy::inter_job::InterJob;
use crate::policy::inter_job::Within;
use crate::policy::placement::CompletionSettings;
use crate::policy::{Mix, Quota};
use crate::scheduling::{Delays, Reclaim};
use crate::vocabulary::Duration;

/// A few heartbeats each; the usual value (Spark's `spark.locality.wait`).
const DELAYS: Delays = Delays { node: Duration::from_secs(3), rack: Duration::from_secs(3) };

impl Choice {
    /// The Apollo paper's baseline (Boutin et al. 2014, section 4).
    pub const WITHOUT_ESTIMATES: Choice =
        Choice::RelaxedLocality { delays: DELAYS, explores: Some(ExplorationRules { after: Duration::from_secs(1) }) };
}

/// Three of four jobs are considered, which is close to packing freely. In millionths.
const TETRIS_FAIRNESS: u32 = 250_000;

/// As in section 7 of the paper.
const OPPORTUNISTIC: Opportunistic = Opportunistic {
    mix: Mix { shorter_than: Some(Duration::from_secs(10)), opportunistic: 700_000 },
    placement: QueueChoice::TopRanked { k: 50 },
    quota: Quota { absolute: None, relative: None },
    promote_after: None,
    steering: Steering { deviations: Some(2_000), limit: OpportunisticLimit::Everything, moves: false },
    reorder: true,
    at_nodes: OpportunisticRules {
        queue_limit: None,
        keep_freed: Duration::ZERO,
        offer_after: None,
        report_spare: None,
        yields_for: None,
    },
};

const ENTITLED: Entitled = Entitled {
    intra_job: IntraJob::CriticalPath,
    choice: Choice::EarliestCompletion(CompletionSettings::USUAL),
    guaranteed: 90,
    waits: ReportWaits {
        every: Duration::from_millis(500),
        tolerance: Duration::from_millis(100),
        least_left: 0,
        reports_room: false,
    },
    within: Within::FairShares,
    keep_freed: Duration::from_millis(50),
    yields_for: Some(Duration::from_secs(300)),
    allowance: AllowanceRules { opportunistic: 100, starved_after: Duration::from_secs(30), sent_first: false },
    corrections: Some(CorrectionRules::USUAL),
    assumed_run_time: None,
};

const RESERVE_AFTER: Duration = Duration::from_secs(30);

const BY_MASTER: Booker =
    Booker::Master { placement: Placement::NextFit, reserve_after: RESERVE_AFTER, backfill: false, reclaim: None };

const RECLAIM: Reclaim = Reclaim { lost: 20_000 };

const CHANGES_REPORTED_AFTER: Option<Duration> = Some(Duration::from_millis(50));

/// Rarer than under Apollo: nodes report of all jobs, and all the time.
const PROGRESS_EVERY: Duration = Duration::from_secs(30);

const fn fair_sojourn(by: Booker) -> Booked {
    let demand = DemandOrder::Everything(IntraJob::CriticalPath);
    let corrections = Some(CorrectionRules { progress_every: Some(PROGRESS_EVERY), ..CorrectionRules::USUAL });
    Booked { by, inter_job: InterJob::FairSojourn, demand, delays: DELAYS, opportunistic: None, corrections }
}

/// A preset in which the master books every task.
const fn central(name: &'static str, inter_job: InterJob, demand: DemandOrder) -> Preset {
    booked(name, Booked { by: BY_MASTER, inter_job, demand, delays: DELAYS, opportunistic: None, corrections: None })
}

const fn booked(name: &'static str, settings: Booked) -> Preset {
    Preset::new(name, Scheduling::Booked(settings))
}

const fn entitled(name: &'static str, settings: Entitled) -> Preset {
    Preset::new(name, Scheduling::Entitled(settings))
}

const IN_FILE_ORDER: DemandOrder = DemandOrder::Everything(IntraJob::BreadthFirst);

impl Default for Preset {
    fn default() -> Preset {
        Preset::AMALGAM
    }
}

impl Preset {
    pub const FIFO: Preset = central("fifo", InterJob::Fifo, IN_FILE_ORDER);
    pub const CAPACITY: Preset = central("capacity", InterJob::Capacity, IN_FILE_ORDER);
    pub const DRF: Preset = central("drf", InterJob::Drf { strict: false }, IN_FILE_ORDER);
    pub const SJF: Preset = central("sjf", InterJob::Sjf, IN_FILE_ORDER);
    pub const SRTF: Preset = central("srtf", InterJob::Srtf, IN_FILE_ORDER);

    pub const TETRIS: Preset =
        central("tetris", InterJob::Tetris { fairness: TETRIS_FAIRNESS }, DemandOrder::Everything(IntraJob::Tetris));

    pub const AMALGAM: Preset = booked(
        "amalgam",
        fair_sojourn(Booker::Master {
            placement: Placement::NextFit,
            reserve_after: RESERVE_AFTER,
            backfill: true,
            reclaim: Some(RECLAIM),
        }),
    );

    /// The same in federations, where the masters of clusters keep reserved nodes.
    pub const AMALGAM_IN_FEDERATIONS: Preset = booked(
        "amalgam",
        fair_sojourn(Booker::GlobalMasters {
            scattered: true,
            report_changes_after: CHANGES_REPORTED_AFTER,
            reclaim: Some(RECLAIM),
            reserve_after: Some(RESERVE_AFTER),
        }),
    );

    /// Ousterhout et al. 2013: Sparrow, with d = 2.
    pub const SPARROW: Preset = Preset::new("sparrow", Scheduling::Probed(SPARROW));

    /// Karanasos et al. 2015: Mercury, with the best settings of its section 7: k = 50, queues no longer than the mean plus two
    /// standard deviations, re-ordered; 70 % of the tasks that are shorter than 10 s are opportunistic.
    pub const MERCURY: Preset = booked("mercury", MERCURY);

    /// An improved variant for a master that decides on events: nodes keep room that guaranteed work leaves for 50 ms, offer room
    /// that guaranteed work does not need to attempts that have run for long, and report at once that they have room for tasks
    /// that wait elsewhere.
    pub const MERCURY_PLUS: Preset = booked(
        "mercury-plus",
        Booked {
            opportunistic: Some(Opportunistic {
                at_nodes: OpportunisticRules {
                    queue_limit: None,
                    keep_freed: Duration::from_millis(50),
                    offer_after: Some(Duration::from_secs(5)),
                    report_spare: Some(Duration::from_millis(200)),
                    yields_for: None,
                },
                steering: Steering { moves: true, ..OPPORTUNISTIC.steering },
                ..OPPORTUNISTIC
            }),
            ..MERCURY
        },
    );

    /// Grandl et al. 2016: Carbyne, as in its pseudocode: fair shares, plans by packing, and leftover resources go to the job
    /// with the least remaining work.
    pub const CARBYNE: Preset = central(
        "carbyne",
        InterJob::Drf { strict: false },
        DemandOrder::Yielding(Yielding {
            plans: Plans::By(IntraJob::Tetris),
            leftover: InterJob::Srtf,
            altruism: 1_000_000,
        }),
    );

    /// Boutin et al. 2014: Apollo. Each job manager sends its tasks to the nodes where they are expected to end first. A job's
    /// guaranteed tasks hold its fair share, and the same amount again may be opportunistic.
    pub const APOLLO: Preset = entitled("apollo", ENTITLED);

    /// An improved variant of it.
    pub const APOLLO_PLUS: Preset = entitled(
        "apollo-plus",
        Entitled {
            choice: Choice::EarliestCompletion(CompletionSettings {
                several: true,
                spares: true,
                at_once: Some(95),
                ..CompletionSettings::USUAL
            }),
            waits: ReportWaits { least_left: 50, reports_room: true, ..ENTITLED.waits },
            within: Within::FairSojourn,
            allowance: AllowanceRules { sent_first: true, ..ENTITLED.allowance },
            corrections: Some(CorrectionRules { saving_while_waiting: 0, ..CorrectionRules::USUAL }),
            ..ENTITLED
        },
    );

    /// Megha (Narayanan et al.): global masters over clusters, queues by turns.
    pub const MEGHA: Preset = booked("megha", MEGHA);

    /// An improved variant: global masters that search the same nodes start at different ones, search the nodes where they were
    /// refused after their other partitions, use other global masters' partitions where there is most room, and receive changes
    /// before the next heartbeat.
    pub const MEGHA_PLUS: Preset = booked(
        "megha-plus",
        Booked {
            by: Booker::GlobalMasters {
                scattered: true,
                report_changes_after: CHANGES_REPORTED_AFTER,
                reclaim: None,
                reserve_after: None,
            },
            ..MEGHA
        },
    );

    /// Presets for federations. The first has the name of a preset for single clusters.
    pub const FEDERATED: [Preset; 3] = [Preset::AMALGAM_IN_FEDERATIONS, Preset::MEGHA, Preset::MEGHA_PLUS];

    /// Presets in which job managers send tasks to nodes' queues within entitlements.
    pub const QUEUEING: [Preset; 2] = [Preset::APOLLO, Preset::APOLLO_PLUS];

    /// Presets that book guaranteed tasks and queue opportunistic ones.
    pub const HYBRID: [Preset; 2] = [Preset::MERCURY, Preset::MERCURY_PLUS];

    /// Presets in which the master places tasks, in an order of jobs.
    pub const CENTRAL: &[Preset] = &[
        Preset::AMALGAM,
        Preset::FIFO,
        Preset::CAPACITY,
        Preset::DRF,
        Preset::SJF,
        Preset::SRTF,
        Preset::TETRIS,
        Preset::CARBYNE,
    ];

    /// Presets in which job managers send every task to nodes' queues.
    pub const DISTRIBUTED: [Preset; 1] = [Preset::SPARROW];

    /// One preset of each name; [`Preset::in_federation`] has those of the same names for federations.
    pub fn all() -> impl Iterator<Item = Preset> {
        Preset::CENTRAL
            .iter()
            .copied()
            .chain(Preset::DISTRIBUTED)
            .chain(Preset::HYBRID)
            .chain(Preset::QUEUEING)
            .chain([Preset::MEGHA, Preset::MEGHA_PLUS])
    }

    /// The preset of this name for federations, with the settings of this one that apply there; itself if it is one. `None` if it is
    /// for single clusters only.
    pub fn in_federation(self) -> Option<Preset> {
        if self.is_federated() {
            return Some(self);
        }
        let mut of_name =
            Preset::FEDERATED.into_iter().find(|preset| preset.name() == self.name())?.with_seed(self.seed);
        if let (Some(federated), Some(own)) = (of_name.booked_mut(), self.booked()) {
            let Booked { inter_job, demand, delays, .. } = *own;
            *federated = Booked { inter_job, demand, delays, ..*federated };
            if let (Booker::GlobalMasters { reclaim, .. }, Booker::Master { reclaim: own, .. }) =
                (&mut federated.by, own.by)
            {
                *reclaim = own;
            }
        }
        Some(of_name)
    }

    /// Whether it has other settings of the master's booking than the preset of its name, besides what may be lost: global masters do
    /// without them.
    pub fn has_settings_of_one_master(self) -> bool {
        let of_name = Preset::all().find(|preset| preset.name() == self.name());
        let by = |preset: Preset| {
            preset.booked().map(|booked| match booked.by {
                Booker::Master { placement, reserve_after, backfill, .. } => Some((placement, reserve_after, backfill)),
                Booker::GlobalMasters { .. } => None,
            })
        };
        of_name.is_some_and(|of_name| by(of_name) != by(self))
    }

    /// # Errors
    /// A sentence that lists all presets.
    pub fn parse(name: &str) -> Result<Preset, String> {
        let named: Vec<(&str, Preset)> = Preset::all().map(|preset| (preset.name(), preset)).collect();
        choose("preset", name, &named)
    }
}

const SPARROW: Probed = Probed { intra_job: IntraJob::BreadthFirst, choice: QueueChoice::BatchSampling { ratio: 2 } };

const MERCURY: Booked = Booked {
    by: BY_MASTER,
    inter_job: InterJob::Capacity,
    demand: IN_FILE_ORDER,
    delays: DELAYS,
    opportunistic: Some(OPPORTUNISTIC),
    corrections: None,
};

const MEGHA: Booked = Booked {
    by: Booker::GlobalMasters { scattered: false, report_changes_after: None, reclaim: None, reserve_after: None },
    inter_job: InterJob::RoundRobin,
    demand: IN_FILE_ORDER,
    delays: DELAYS,
    opportunistic: None,
    corrections: None,
};
