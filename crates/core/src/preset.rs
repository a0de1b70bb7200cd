//! Which policies a cluster uses, by name. A paper's system is a preset: its policies, in the places where it hosts
//! them.

use crate::dispatch::DispatchSettings;
use crate::global_master::GlobalMaster;
use crate::job_manager::{
    AllowanceRules, CorrectionRules, ExplorationRules, JobManager, JobManagerSettings, OwnPlacement,
};
use crate::master::{Master, MasterSettings, OpportunisticLimit, Publish, Steering};
use crate::node::{NodeAgent, NodeSettings, OpportunisticRules, TellWaits};
use crate::policy::inter_job::{
    Capacity, Drf, Entitlement, Fifo, Layered, QueueTree, RoundRobin, Sjf, Srtf, Tetris, Within,
};
use crate::policy::intra_job::{Order, PlanOrder};
use crate::policy::placement::CompletionSettings;
use crate::policy::{
    InterJobPolicy, IntraJobPolicy, Mix, PlacementPolicy, QueuePolicy, Quota, intra_job, node_queue, placement,
};
use crate::protocol::AdmittedJob;
use crate::scheduling::{Delays, Scheduler, SchedulerSettings};
use crate::vocabulary::{Chance, Duration, Epoch, Federation, GlobalId, Mac, NodeId, Sealing};
use serde::{Deserialize, Deserializer, Serialize};
use std::sync::Arc;

/// A combination of policies that has a name. Its parts are settings: a configuration may replace them one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Preset {
    name: Name,
    pub inter_job: InterJob,
    pub intra_job: IntraJob,
    pub placement: Placement,
    pub places: Places,
    /// Whether jobs yield what they do not need yet.
    pub yielding: Option<Yielding>,
    /// Whether tasks wait at nodes that nobody booked, and how much of a job may be sent there.
    pub queueing: Option<Queueing>,
    /// Of a federation: global masters are told of changes after so long at most; without it with the next heartbeat, unless they ask
    /// for something before.
    pub tell_changes_after: Option<Duration>,
    /// Means something where opportunistic tasks have a place of their own.
    pub opportunistic: Opportunistic,
    /// How long asks hold out for room near their input.
    pub delays: Delays,
    /// An ask that found no room for so long gets a node kept free for it.
    pub reserve_after: Duration,
    /// From which the generators of policies that need chance are split.
    pub seed: u64,
}

/// One of those in [`Preset::all`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Name(&'static str);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        let name = String::deserialize(deserializer)?;
        Preset::parse(&name).map(|preset| preset.name).map_err(serde::de::Error::custom)
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum InterJob {
    /// Priority, then order of submission.
    Fifo,
    /// Guaranteed and maximum shares of hierarchical queues.
    Capacity,
    /// Weighted dominant resource fairness over hierarchical queues. With strict shares nobody gets more than its fair
    /// share, although room may idle.
    Drf { strict: bool },
    /// The job with the least work.
    Sjf,
    /// The job with the least work left.
    Srtf,
    /// Packing; `fairness` is the knob f in millionths, below 1: only the part 1 - f of the jobs, those furthest below
    /// their fair share, is considered.
    Tetris { fairness: u32 },
    /// Nobody's: job managers place all tasks, and are told what their jobs are entitled to and may have now: so many
    /// hundredths of the cluster may be guaranteed.
    Entitlement { guaranteed: u32 },
    /// Queues take turns.
    RoundRobin,
}

/// What a job asks for, and in which order its stages use what it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum IntraJob {
    /// The order of the job file.
    BreadthFirst,
    /// The longest path to the end first.
    CriticalPath,
    /// Whichever goes best with a node's room.
    Tetris,
    /// Around the stages that are long or hard to pack. Means something only where jobs plan; elsewhere it is the order of the
    /// job file.
    Dagps,
}

/// Where a task goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Placement {
    /// The next node, cyclically.
    NextFit,
    /// The node with the least room.
    BestFit,
    /// The node with the most room.
    WorstFit,
    Random,
    /// The less loaded of two random nodes.
    PowerOfTwo,
    /// The node whose room goes best with the task.
    Aligned,
    /// Probes of so many random nodes for each task, which goes to the one that is ready first. Only job managers probe.
    BatchSampling {
        ratio: u32,
    },
    /// One of the k nodes where it would wait least. Only job managers know the ranking.
    TopRanked {
        k: u32,
    },
    /// The node where it is expected to be done first. Only job managers estimate.
    EarliestCompletion(CompletionSettings),
    /// Where the input is and, the longer a task waits, farther away. Only job managers try node after node.
    RelaxedLocality,
    /// First the own partitions, then others', each from its first node on or, scattered, from one that is drawn. Only global
    /// masters have partitions; elsewhere it is the next node, cyclically.
    Partitions {
        scattered: bool,
    },
}

/// Who places tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Places {
    /// The master, against its ledger.
    Master,
    /// Each job manager by itself, at nodes' queues. The order of jobs, their shares and limits mean nothing then.
    JobManagers,
    /// Guaranteed tasks by the master, opportunistic ones by their job managers.
    ByKind,
    /// Global masters, over all clusters of a federation, whose masters let it through.
    GlobalMasters,
}

/// Jobs plan by their shares and say what could wait; the order of jobs is for what cannot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Yielding {
    /// Whose turn it is for what is left.
    pub leftover: InterJob,
    /// The probability with which a job yields when its demand changes, in millionths: P(altruism).
    pub altruism: u32,
}

/// Nodes queue tasks and say how long others would wait; job managers send as many as their jobs are entitled to, and
/// opportunistic ones beyond.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Queueing {
    pub waits: TellWaits,
    /// Who of the jobs of a queue gets what these are due together.
    pub within: Within,
    /// For how long nodes keep room that guaranteed work leaves for guaranteed work: its job sends the next task.
    pub keep_freed: Duration,
    /// Opportunistic attempts yield their CPU to guaranteed work, for so long at most; without it they are ended at once.
    pub yields_for: Option<Duration>,
    pub allowance: AllowanceRules,
    /// With it, job managers look again at what they decided.
    pub corrections: Option<CorrectionRules>,
    /// With it, they try other nodes for what waits, whatever is said of waits.
    pub explores: Option<ExplorationRules>,
    /// So do those of other presets that try other nodes and share this one's cluster.
    pub explores_beside: Option<ExplorationRules>,
    /// They take all tasks to run for so long, whatever is known of them.
    pub assumed_run_time: Option<Duration>,
}

/// What becomes of opportunistic tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Opportunistic {
    /// Which tasks are.
    pub mix: Mix,
    pub placement: Placement,
    pub quota: Quota,
    /// Attempts that have run for so long ask to be guaranteed; `None` if none do.
    pub promote_after: Option<Duration>,
    pub steering: Steering,
    /// Nodes start the tasks of the job first that was submitted first.
    pub reorder: bool,
    /// What nodes do about them.
    pub at_nodes: OpportunisticRules,
}

impl Placement {
    const NAMES: [(&str, Placement); 6] = [
        ("next-fit", Placement::NextFit),
        ("best-fit", Placement::BestFit),
        ("worst-fit", Placement::WorstFit),
        ("random", Placement::Random),
        ("power-of-two", Placement::PowerOfTwo),
        ("aligned", Placement::Aligned),
    ];

    pub fn names() -> impl Iterator<Item = &'static str> {
        Placement::NAMES.into_iter().map(|(name, _)| name)
    }

    /// # Errors
    /// A sentence that lists those there are.
    pub fn parse(name: &str) -> Result<Placement, String> {
        choose("placement", name, &Placement::NAMES)
    }

    /// The policy; one that needs chance takes it from the seed, split for this component.
    pub fn policy(self, seed: u64, component: &str, delays: &Delays) -> Box<dyn PlacementPolicy> {
        let chance = Chance::new(seed, component);
        match self {
            Placement::NextFit | Placement::Partitions { .. } => Box::new(placement::NextFit::default()),
            Placement::BestFit => Box::new(placement::BestFit),
            Placement::WorstFit => Box::new(placement::WorstFit),
            Placement::Random => Box::new(placement::Random::new(chance)),
            Placement::PowerOfTwo => Box::new(placement::PowerOfTwo::new(chance)),
            Placement::Aligned => Box::new(placement::Aligned::default()),
            Placement::BatchSampling { ratio } => Box::new(placement::BatchSampling::new(chance, ratio)),
            Placement::TopRanked { k } => Box::new(placement::TopRanked::new(chance, k)),
            Placement::EarliestCompletion(settings) => Box::new(placement::EarliestCompletion::new(chance, settings)),
            Placement::RelaxedLocality => Box::new(placement::RelaxedLocality::new(chance, delays.node, delays.rack)),
        }
    }
}

impl InterJob {
    fn policy(self, queues: QueueTree) -> Box<dyn InterJobPolicy> {
        match self {
            InterJob::Fifo => Box::new(Fifo::new(queues)),
            InterJob::Capacity => Box::new(Capacity::new(queues)),
            InterJob::Drf { strict: false } => Box::new(Drf::new(queues)),
            InterJob::Drf { strict: true } => Box::new(Drf::strict(queues)),
            InterJob::Sjf => Box::new(Sjf::new(queues)),
            InterJob::Srtf => Box::new(Srtf::new(queues)),
            InterJob::RoundRobin => Box::new(RoundRobin::new(queues)),
            InterJob::Tetris { fairness } => Box::new(Tetris::new(queues, fairness)),
            InterJob::Entitlement { guaranteed } => Box::new(Entitlement::new(queues, guaranteed, Within::FairShares)),
        }
    }
}

impl IntraJob {
    const NAMES: [(&str, IntraJob); 4] = [
        ("breadth-first", IntraJob::BreadthFirst),
        ("critical-path", IntraJob::CriticalPath),
        ("tetris", IntraJob::Tetris),
        ("dagps", IntraJob::Dagps),
    ];

    pub fn names() -> impl Iterator<Item = &'static str> {
        IntraJob::NAMES.into_iter().map(|(name, _)| name)
    }

    /// # Errors
    /// A sentence that lists those there are.
    pub fn parse(name: &str) -> Result<IntraJob, String> {
        choose("order within a job", name, &IntraJob::NAMES)
    }

    /// That in which plans are packed.
    fn of_plans(self) -> PlanOrder {
        PlanOrder::Fixed(match self {
            IntraJob::BreadthFirst => Order::BreadthFirst,
            IntraJob::CriticalPath => Order::CriticalPath,
            IntraJob::Tetris => Order::Packing,
            IntraJob::Dagps => return PlanOrder::Dagps,
        })
    }
}

fn choose<T: Copy>(what: &str, name: &str, named: &[(&str, T)]) -> Result<T, String> {
    named.iter().find(|(known, _)| *known == name).map(|(_, choice)| *choice).ok_or_else(|| {
        let known: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
        format!("there is no {what} `{name}`; there are: {}", known.join(", "))
    })
}

/// A few heartbeats each, as is usual (Spark's `spark.locality.wait`).
const DELAYS: Delays = Delays { node: Duration::from_secs(3), rack: Duration::from_secs(3) };

/// Three of four jobs are considered: close to packing freely. In millionths.
const TETRIS_FAIRNESS: u32 = 250_000;

/// Of the paper's section 7.
const OPPORTUNISTIC: Opportunistic = Opportunistic {
    mix: Mix { shorter_than: Some(Duration::from_secs(10)), opportunistic: 700_000 },
    placement: Placement::TopRanked { k: 50 },
    quota: Quota { absolute: None, relative: None },
    promote_after: None,
    steering: Steering { deviations: Some(2_000), limit: OpportunisticLimit::Everything, moves: false },
    reorder: true,
    at_nodes: OpportunisticRules {
        queue_limit: None,
        keep_freed: Duration::ZERO,
        offer_after: None,
        tell_spare: None,
        yields_for: None,
    },
};

const QUEUEING: Queueing = Queueing {
    waits: TellWaits {
        every: Duration::from_millis(500),
        tolerance: Duration::from_millis(100),
        least_left: 0,
        tells_room: false,
    },
    within: Within::FairShares,
    keep_freed: Duration::from_millis(50),
    yields_for: Some(Duration::from_secs(300)),
    allowance: AllowanceRules { opportunistic: 100, starved_after: Duration::from_secs(30), sent_first: false },
    corrections: Some(CorrectionRules::USUAL),
    explores: None,
    explores_beside: EXPLORATION,
    assumed_run_time: None,
};

const EXPLORATION: Option<ExplorationRules> = Some(ExplorationRules { after: Duration::from_secs(1) });

impl Default for Preset {
    fn default() -> Preset {
        Preset::DRF
    }
}

impl Preset {
    pub const FIFO: Preset = Preset::of("fifo", InterJob::Fifo);
    pub const CAPACITY: Preset = Preset::of("capacity", InterJob::Capacity);
    pub const DRF: Preset = Preset::of("drf", InterJob::Drf { strict: false });
    pub const SJF: Preset = Preset::of("sjf", InterJob::Sjf);
    pub const SRTF: Preset = Preset::of("srtf", InterJob::Srtf);

    pub const TETRIS: Preset =
        Preset { intra_job: IntraJob::Tetris, ..Preset::of("tetris", InterJob::Tetris { fairness: TETRIS_FAIRNESS }) };

    /// Ousterhout et al. 2013: Sparrow, with d = 2.
    pub const SPARROW: Preset = Preset {
        placement: Placement::BatchSampling { ratio: 2 },
        places: Places::JobManagers,
        ..Preset::of("sparrow", InterJob::Fifo)
    };

    /// Karanasos et al. 2015: Mercury, as its section 7 found it best: k = 50, queues no longer than the mean and two standard
    /// deviations, re-ordered; 70 % of the tasks that are shorter than 10 s are opportunistic.
    pub const MERCURY: Preset = Preset { places: Places::ByKind, ..Preset::of("mercury", InterJob::Capacity) };

    /// One step beyond it, for a master that decides on events: nodes keep room that guaranteed work leaves for a moment,
    /// offer room that nobody guaranteed wants to what has run for long, and say at once that they have room for what waits
    /// elsewhere.
    pub const MERCURY_PLUS: Preset = Preset {
        name: Name("mercury-plus"),
        opportunistic: Opportunistic {
            at_nodes: OpportunisticRules {
                queue_limit: None,
                keep_freed: Duration::from_millis(50),
                offer_after: Some(Duration::from_secs(5)),
                tell_spare: Some(Duration::from_millis(200)),
                yields_for: None,
            },
            steering: Steering { moves: true, ..OPPORTUNISTIC.steering },
            ..OPPORTUNISTIC
        },
        ..Preset::MERCURY
    };

    /// Grandl et al. 2016: Carbyne, as its pseudocode has it: fair shares, plans by packing, and what is left goes to the job
    /// with the least work left.
    pub const CARBYNE: Preset = Preset {
        intra_job: IntraJob::Tetris,
        yielding: Some(Yielding { leftover: InterJob::Srtf, altruism: 1_000_000 }),
        ..Preset::of("carbyne", InterJob::Drf { strict: false })
    };

    /// Boutin et al. 2014: Apollo. Each job manager sends its job's tasks where they are expected to be done first; a job's
    /// guaranteed tasks hold its fair share, and as much again may be opportunistic.
    pub const APOLLO: Preset = Preset {
        intra_job: IntraJob::CriticalPath,
        placement: Placement::EarliestCompletion(CompletionSettings::USUAL),
        places: Places::JobManagers,
        queueing: Some(QUEUEING),
        ..Preset::of("apollo", InterJob::Entitlement { guaranteed: 90 })
    };

    /// Its paper's baseline (section 4): the same shares and nodes' queues, but job managers know no loads. They send tasks near
    /// their input, farther away the longer they wait, and try node after node with duplicates. The nodes do what they do
    /// under the other one, with which it shares a cluster: what nodes say of waits, nobody reads.
    pub const APOLLO_BASELINE: Preset = Preset {
        name: Name("apollo-baseline"),
        placement: Placement::RelaxedLocality,
        queueing: Some(Queueing { explores: EXPLORATION, ..QUEUEING }),
        ..Preset::APOLLO
    };

    /// One step beyond it.
    pub const APOLLO_PLUS: Preset = Preset {
        name: Name("apollo-plus"),
        placement: Placement::EarliestCompletion(CompletionSettings {
            several: true,
            spares: true,
            at_once: Some(95),
            ..CompletionSettings::USUAL
        }),
        queueing: Some(Queueing {
            waits: TellWaits { least_left: 50, tells_room: true, ..QUEUEING.waits },
            within: Within::FairSojourn,
            allowance: AllowanceRules { sent_first: true, ..QUEUEING.allowance },
            corrections: Some(CorrectionRules { saving_while_waiting: 0, ..CorrectionRules::USUAL }),
            ..QUEUEING
        }),
        ..Preset::APOLLO
    };

    /// Megha (Narayanan et al.): global masters over clusters, queues by turns.
    pub const MEGHA: Preset = Preset {
        placement: Placement::Partitions { scattered: false },
        places: Places::GlobalMasters,
        ..Preset::of("megha", InterJob::RoundRobin)
    };

    /// One step beyond it: global masters that search the same nodes begin at different ones, look where they were refused after
    /// their other partitions, take others' room where there is most, and hear of changes before the next heartbeat.
    pub const MEGHA_PLUS: Preset = Preset {
        name: Name("megha-plus"),
        placement: Placement::Partitions { scattered: true },
        tell_changes_after: Some(Duration::from_millis(50)),
        ..Preset::MEGHA
    };

    /// Those for federations.
    pub const FEDERATED: [Preset; 2] = [Preset::MEGHA, Preset::MEGHA_PLUS];

    /// Those in which nodes queue what nobody booked.
    pub const QUEUEING: [Preset; 3] = [Preset::APOLLO, Preset::APOLLO_PLUS, Preset::APOLLO_BASELINE];

    /// Those in which opportunistic tasks have a place of their own.
    pub const HYBRID: [Preset; 2] = [Preset::MERCURY, Preset::MERCURY_PLUS];

    /// Those in which the master places tasks, in an order of jobs.
    pub const CENTRAL: [Preset; 7] =
        [Preset::FIFO, Preset::CAPACITY, Preset::DRF, Preset::SJF, Preset::SRTF, Preset::TETRIS, Preset::CARBYNE];

    /// The baselines of the same paper (section 3): no probes, the task waits at the node that was chosen for it.
    pub const SPARROW_RANDOM: Preset =
        Preset { name: Name("sparrow-random"), placement: Placement::Random, ..Preset::SPARROW };
    /// Departs: queues are compared as the master published them last, and not by probing.
    pub const SPARROW_POWER_OF_TWO: Preset =
        Preset { name: Name("sparrow-power-of-two"), placement: Placement::PowerOfTwo, ..Preset::SPARROW };

    /// Those in which job managers do.
    pub const DISTRIBUTED: [Preset; 3] = [Preset::SPARROW, Preset::SPARROW_RANDOM, Preset::SPARROW_POWER_OF_TWO];

    pub fn all() -> impl Iterator<Item = Preset> {
        Preset::CENTRAL
            .into_iter()
            .chain(Preset::DISTRIBUTED)
            .chain(Preset::HYBRID)
            .chain(Preset::QUEUEING)
            .chain(Preset::FEDERATED)
    }

    const fn of(name: &'static str, inter_job: InterJob) -> Preset {
        Preset {
            name: Name(name),
            inter_job,
            intra_job: IntraJob::BreadthFirst,
            placement: Placement::NextFit,
            places: Places::Master,
            yielding: None,
            queueing: None,
            tell_changes_after: None,
            opportunistic: OPPORTUNISTIC,
            delays: DELAYS,
            reserve_after: Duration::from_secs(30),
            seed: 0,
        }
    }

    pub fn name(self) -> &'static str {
        self.name.0
    }

    /// # Errors
    /// A sentence that lists the presets there are.
    pub fn parse(name: &str) -> Result<Preset, String> {
        let named: Vec<(&str, Preset)> = Preset::all().map(|preset| (preset.name(), preset)).collect();
        choose("preset", name, &named)
    }

    fn inter_job(self, queues: QueueTree) -> Box<dyn InterJobPolicy> {
        let order = match (self.inter_job, self.queueing) {
            (InterJob::Entitlement { guaranteed }, Some(Queueing { within, .. })) => {
                Box::new(Entitlement::new(queues.clone(), guaranteed, within))
            }
            (order, _) => order.policy(queues.clone()),
        };
        match self.yielding {
            Some(Yielding { leftover, .. }) => Box::new(Layered::new(order, leftover.policy(queues.clone()), queues)),
            None => order,
        }
    }

    fn intra_job(self, component: &str) -> Box<dyn IntraJobPolicy> {
        match (self.intra_job, self.yielding) {
            (order, Some(Yielding { altruism, .. })) => {
                let chance = Chance::new(self.seed, &format!("altruism {component}"));
                Box::new(intra_job::Altruistic::new(order.of_plans(), altruism, chance))
            }
            (IntraJob::BreadthFirst | IntraJob::Dagps, None) => Box::new(intra_job::BreadthFirst),
            (IntraJob::CriticalPath, None) => Box::new(intra_job::CriticalPath::default()),
            (IntraJob::Tetris, None) => Box::new(intra_job::Tetris),
        }
    }

    pub fn scheduler(self, queues: QueueTree) -> Scheduler {
        let settings = SchedulerSettings { reserve_after: Some(self.reserve_after), delays: self.delays };
        Scheduler::new(self.inter_job(queues), self.placement.policy(self.seed, "placement", &self.delays), settings)
    }

    /// In a federation.
    pub fn global_master(
        self,
        epoch: Epoch,
        (federation, own): (Federation, GlobalId),
        settings: DispatchSettings,
        queues: QueueTree,
    ) -> GlobalMaster {
        let component = format!("placement of {own}");
        let placement: Box<dyn PlacementPolicy> = match self.placement {
            Placement::Partitions { scattered } => {
                let scatter = scattered.then(|| Chance::new(self.seed, &component));
                Box::new(placement::Partitions::new(federation, own, scatter))
            }
            other => other.policy(self.seed, &component, &self.delays),
        };
        // Nobody keeps a node free for another.
        let of_scheduler = SchedulerSettings { reserve_after: None, delays: self.delays };
        let scheduler = Scheduler::new(self.inter_job(queues.clone()), placement, of_scheduler);
        // As long as it takes until the others have heard of it and somebody's launch is there.
        let first_refusal = self.tell_changes_after.map(|after| after + after);
        GlobalMaster::new(epoch, (federation, own), settings, queues, scheduler).leaving_to_others(first_refusal)
    }

    /// Whether it takes a federation.
    pub fn is_federated(self) -> bool {
        self.places == Places::GlobalMasters
    }

    /// What its job managers place by themselves.
    fn own_placement(self, component: &str) -> Option<OwnPlacement> {
        let policy =
            |placement: Placement| placement.policy(self.seed, &format!("placement {component}"), &self.delays);
        match self.places {
            Places::Master | Places::GlobalMasters => None,
            Places::JobManagers => Some(OwnPlacement {
                placement: policy(self.placement),
                mix: None,
                quota: Quota::default(),
                allowance: self.queueing.map(|queueing| queueing.allowance),
                tells_work: self.queueing.is_some_and(|queueing| queueing.within != Within::FairShares),
                corrections: self.queueing.and_then(|queueing| queueing.corrections),
                explores: self.queueing.and_then(|queueing| queueing.explores),
                assumed_run_time: self.queueing.and_then(|queueing| queueing.assumed_run_time),
                promote_after: None,
            }),
            Places::ByKind => {
                let Opportunistic { mix, placement, quota, promote_after, .. } = self.opportunistic;
                let chance = Chance::new(self.seed, &format!("mix {component}"));
                let (placement, mix) = (policy(placement), Some((mix, chance)));
                let (allowance, corrections, explores, assumed_run_time) = (None, None, None, None);
                Some(OwnPlacement {
                    placement,
                    mix,
                    quota,
                    allowance,
                    tells_work: false,
                    corrections,
                    explores,
                    assumed_run_time,
                    promote_after,
                })
            }
        }
    }

    pub fn master(self, epoch: Epoch, settings: MasterSettings, queues: QueueTree, sealing: Sealing) -> Master {
        let scheduler = self.scheduler(queues.clone());
        let steer = self.has_kinds().then_some(self.opportunistic.steering);
        let others = queues.presets().chain(settings.dispatch.beside.iter().map(|beside| &*beside.preset));
        let all = others.filter_map(|name| self.beside(name).ok()).chain([self]);
        let publish = all.map(Preset::publishes).max().unwrap_or(Publish::Nothing);
        let settings = MasterSettings { publish, steer, tell_changes_after: self.tell_changes_after, ..settings };
        Master::new(epoch, settings, queues, scheduler, sealing)
    }

    /// Whether tasks are guaranteed or opportunistic, and the second give way to the first.
    pub fn has_kinds(self) -> bool {
        self.places == Places::ByKind
    }

    /// Whether guaranteed work may be preempted where another queue has less than its share; without it only opportunistic work may
    /// be.
    pub fn preempts_for_shares(self) -> bool {
        self.places == Places::GlobalMasters
    }

    fn publishes(self) -> Publish {
        let placement = match self.places {
            Places::Master | Places::GlobalMasters => return Publish::Nothing,
            Places::JobManagers => self.placement,
            Places::ByKind => self.opportunistic.placement,
        };
        match placement {
            Placement::BatchSampling { .. } | Placement::Random => Publish::Nodes,
            Placement::TopRanked { .. } => Publish::Ranking,
            // Who shares the cluster may read them.
            Placement::EarliestCompletion(_) | Placement::RelaxedLocality => Publish::Waits,
            _ => Publish::Load,
        }
    }

    /// Whether job managers of the other preset may place on a cluster of this one: all of them at nodes' queues, which are the
    /// same, and within what their jobs are entitled to, or none.
    fn shares_cluster_with(self, other: Preset) -> bool {
        let place = |preset: Preset| preset.places == Places::JobManagers;
        place(self) && place(other) && self.queueing.is_some() == other.queueing.is_some()
    }

    /// The preset of this name, for some of the jobs on a cluster of this one.
    ///
    /// # Errors
    /// Why it cannot be, and what to choose instead.
    pub fn beside(self, name: &str) -> Result<Preset, (String, String)> {
        if name == self.name() {
            return Ok(self);
        }
        let other = Preset::parse(name).map_err(|problem| (problem, String::new()))?;
        if self.shares_cluster_with(other) {
            return Ok(self.taken_in(other));
        }
        let names = |of: Preset| {
            let shares = |preset: &Preset| of.shares_cluster_with(*preset) && preset.name != of.name;
            Preset::all().filter(shares).map(Preset::name).collect::<Vec<_>>().join(" or ")
        };
        let (own, name) = (self.name(), other.name());
        let problem = format!("jobs cannot go by the preset {name} on a cluster of the preset {own}");
        let remedy = match (names(self), names(other)) {
            (mine, _) if !mine.is_empty() => format!(
                "only presets whose job managers place at the same nodes' queues share a cluster: beside {own} that is {mine}"
            ),
            (_, its) if !its.is_empty() => format!(
                "make {its} the cluster's preset: its job managers place at the same nodes' queues as those of {name}"
            ),
            _ => format!(
                "only presets whose job managers place at nodes' queues share a cluster, such as {} and {}",
                Preset::APOLLO.name(),
                Preset::APOLLO_BASELINE.name()
            ),
        };
        Err((problem, remedy))
    }

    /// Whether jobs that were to go by the other preset still find all that it reads, on a cluster of this one whose queues name
    /// others.
    pub fn still_serves(self, name: &str, queues: &QueueTree, drawn: Option<&str>) -> bool {
        let Ok(wanted) = self.beside(name) else { return false };
        let others = queues.presets().chain(drawn).filter_map(|name| self.beside(name).ok());
        others.chain([self]).map(Preset::publishes).max() >= Some(wanted.publishes())
    }

    /// What is the cluster's stays so, and whoever tries other nodes does it as the cluster says.
    fn taken_in(self, other: Preset) -> Preset {
        let queueing = self.queueing.zip(other.queueing).map(|(own, other)| {
            let Queueing { corrections, assumed_run_time, .. } = other;
            let explores = other.explores.and(own.explores_beside);
            Queueing { corrections, explores, assumed_run_time, ..own }
        });
        Preset { queueing, delays: self.delays, seed: self.seed, ..other }
    }

    /// What a job goes by: the cluster's own where that could not be shared any more.
    pub fn of_job(self, job: &AdmittedJob) -> Preset {
        job.preset.as_deref().and_then(|name| self.beside(name).ok()).unwrap_or(self)
    }

    pub fn job_manager(
        self,
        job: Arc<AdmittedJob>,
        epoch: Epoch,
        settings: JobManagerSettings,
        sealing: Sealing,
    ) -> JobManager {
        let component = format!("of job {}", job.id);
        let preset = self.of_job(&job);
        let (intra_job, own) = (preset.intra_job(&component), preset.own_placement(&component));
        JobManager::new(job, epoch, settings, intra_job, own, sealing)
    }

    pub fn node_agent(self, node: NodeId, settings: NodeSettings, mac: Mac) -> NodeAgent {
        let Opportunistic { reorder, at_nodes, .. } = self.opportunistic;
        let (queue, rules): (Box<dyn QueuePolicy>, _) = match (self.places, self.queueing) {
            (Places::ByKind, _) => (Box::new(node_queue::ByKind { reorder }), at_nodes),
            (_, Some(Queueing { keep_freed, yields_for, .. })) => {
                let chance = Chance::new(self.seed, &format!("queue of node {node}"));
                let rules = OpportunisticRules { keep_freed, yields_for, ..OpportunisticRules::default() };
                (Box::new(node_queue::GapFilling::new(chance)), rules)
            }
            (Places::Master | Places::JobManagers | Places::GlobalMasters, None) => {
                (Box::new(node_queue::Fifo), OpportunisticRules::default())
            }
        };
        let every = self.queueing.and_then(|queueing| queueing.corrections?.progress_every);
        NodeAgent::new(node, settings, queue, rules, mac)
            .telling_waits(self.queueing.map(|queueing| queueing.waits))
            .telling_progress(every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_whose_job_managers_place_at_the_same_queues_share_a_cluster_and_no_others() {
        let shares = |one: Preset, other: Preset| one.beside(other.name()).is_ok();
        for (one, other) in Preset::all().flat_map(|one| Preset::all().map(move |other| (one, other))) {
            let among = |some: &[Preset]| some.contains(&one) && some.contains(&other);
            let wanted = one.name == other.name || among(&Preset::QUEUEING) || among(&Preset::DISTRIBUTED);
            assert_eq!(shares(one, other), wanted, "{} beside {}", other.name(), one.name());
        }
    }

    #[test]
    fn the_clusters_own_by_its_name_is_as_it_was_configured() {
        let mut own = Preset { seed: 7, ..Preset::APOLLO };
        own.queueing.as_mut().expect("nodes queue").corrections = None;
        assert_eq!(own.beside("apollo"), Ok(own));
        assert_eq!(Preset::DRF.beside("drf"), Ok(Preset::DRF));
    }

    #[test]
    fn who_cannot_share_is_told_who_can() {
        let told = |own: Preset, other: &str| own.beside(other).map(drop).unwrap_err();
        let (problem, remedy) = told(Preset::APOLLO, "drf");
        assert_eq!(problem, "jobs cannot go by the preset drf on a cluster of the preset apollo");
        assert!(remedy.ends_with("beside apollo that is apollo-plus or apollo-baseline"), "{remedy}");
        let (_, remedy) = told(Preset::DRF, "apollo-baseline");
        assert!(remedy.starts_with("make apollo or apollo-plus the cluster's preset"), "{remedy}");
        let (_, remedy) = told(Preset::FIFO, "drf");
        assert!(remedy.ends_with("such as apollo and apollo-baseline"), "{remedy}");
        assert!(told(Preset::APOLLO, "apolo").0.starts_with("there is no preset `apolo`"));
    }

    #[test]
    fn whoever_shares_a_cluster_keeps_to_what_is_the_clusters() {
        let mut own = Preset { seed: 7, ..Preset::APOLLO };
        own.delays.rack = Duration::from_secs(9);
        own.queueing.as_mut().expect("nodes queue").allowance.opportunistic = 33;
        let beside = own.beside("apollo-baseline").expect("they share");
        let rules = beside.queueing.expect("nodes queue");
        assert_eq!((beside.seed, rules.allowance.opportunistic, beside.delays), (7, 33, own.delays));
        assert_eq!((beside.placement, rules.explores.is_some()), (Placement::RelaxedLocality, true));
    }

    #[test]
    fn whoever_tries_other_nodes_does_it_as_the_cluster_says_and_nobody_else_does() {
        let exploring = |own: Preset, explores: Option<ExplorationRules>, other: &str| {
            let mut own = own;
            own.queueing.as_mut().expect("nodes queue").explores_beside = explores;
            own.beside(other).expect("they share").queueing.expect("nodes queue").explores
        };
        let after = Some(ExplorationRules { after: Duration::from_secs(9) });
        assert_eq!(exploring(Preset::APOLLO, after, "apollo-baseline"), after);
        assert_eq!(exploring(Preset::APOLLO, None, "apollo-baseline"), None);
        assert_eq!(exploring(Preset::APOLLO, after, "apollo"), None);
        assert_eq!(exploring(Preset::APOLLO_BASELINE, after, "apollo"), None);
        assert_eq!(exploring(Preset::APOLLO_BASELINE, after, "apollo-baseline"), EXPLORATION, "its own");
    }
}
