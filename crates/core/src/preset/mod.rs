//! The policies of a cluster, by name. A paper's system is a preset: its policies, each in the role that applies it.

mod beside;
mod encoded;
mod named;
mod settings;

pub use settings::{
    Booked, Booker, Choice, DemandOrder, Entitled, IntraJob, Opportunistic, Placement, Plans, Probed, QueueChoice,
    Scheduling, Yielding,
};

pub use crate::policy::inter_job::InterJob;

use crate::dispatch::DispatchSettings;
use crate::global_master::GlobalMaster;
use crate::job_manager::{EntitledTasks, JobManager, JobManagerSettings, OwnPlacement, OwnTasks};
use crate::master::{Master, MasterSettings, Publish};
use crate::node::{NodeAgent, NodeSettings, OpportunisticRules};
use crate::policy::inter_job::{Entitlement, Layered, QueueTree, Within};
use crate::policy::intra_job::{Order, PlanOrder};
use crate::policy::{InterJobPolicy, IntraJobPolicy, PlacementPolicy, QueuePolicy, intra_job, node_queue, placement};
use crate::protocol::AdmittedJob;
use crate::scheduling::{Delays, Scheduler, SchedulerSettings};
use crate::vocabulary::{Chance, Epoch, Federation, GlobalId, Mac, NodeId, Sealing};
use serde::{Deserialize, Deserializer, Serialize};
use std::sync::Arc;

/// A named combination of policies. Its settings are public: a configuration may replace them one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Preset {
    name: Name,
    pub scheduling: Scheduling,
    /// The seed of the random number generators of policies.
    pub seed: u64,
    /// Presets that jobs may name as well as those of [`Preset::all`]. They are not sent: daemons know the product's presets only.
    #[serde(skip)]
    others: &'static [Preset],
}

/// The name of a preset. Only the names in [`Preset::all`] can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Name(&'static str);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        let name = String::deserialize(deserializer)?;
        Preset::parse(&name).map(|preset| preset.name).map_err(serde::de::Error::custom)
    }
}

impl Preset {
    /// A preset besides those of [`Preset::all`], such as a baseline of an experiment.
    pub const fn new(name: &'static str, scheduling: Scheduling) -> Preset {
        Preset { name: Name(name), scheduling, seed: 0, others: &[] }
    }

    /// Lets queues and jobs name these presets, too.
    #[must_use]
    pub const fn with_others(self, others: &'static [Preset]) -> Preset {
        Preset { others, ..self }
    }

    pub fn name(self) -> &'static str {
        self.name.0
    }

    #[must_use]
    pub fn with_seed(self, seed: u64) -> Preset {
        Preset { seed, ..self }
    }

    /// The settings of its booking; `None` if nothing is booked.
    pub const fn booked(&self) -> Option<&Booked> {
        if let Scheduling::Booked(settings) = &self.scheduling { Some(settings) } else { None }
    }

    pub fn booked_mut(&mut self) -> Option<&mut Booked> {
        if let Scheduling::Booked(settings) = &mut self.scheduling { Some(settings) } else { None }
    }

    /// The settings of its entitlements; `None` if its job managers have none.
    pub const fn entitled(&self) -> Option<&Entitled> {
        if let Scheduling::Entitled(settings) = &self.scheduling { Some(settings) } else { None }
    }

    pub fn entitled_mut(&mut self) -> Option<&mut Entitled> {
        if let Scheduling::Entitled(settings) = &mut self.scheduling { Some(settings) } else { None }
    }

    /// The settings of opportunistic tasks besides booked ones; `None` if there are none.
    pub fn opportunistic(&self) -> Option<&Opportunistic> {
        self.booked()?.opportunistic.as_ref()
    }

    pub fn opportunistic_mut(&mut self) -> Option<&mut Opportunistic> {
        self.booked_mut()?.opportunistic.as_mut()
    }

    /// How its jobs yield; `None` if they do not.
    pub fn yielding(&self) -> Option<&Yielding> {
        if let DemandOrder::Yielding(settings) = &self.booked()?.demand { Some(settings) } else { None }
    }

    pub fn yielding_mut(&mut self) -> Option<&mut Yielding> {
        if let DemandOrder::Yielding(settings) = &mut self.booked_mut()?.demand { Some(settings) } else { None }
    }

    /// Whether it requires a federation.
    pub fn is_federated(self) -> bool {
        self.booked().is_some_and(|booked| matches!(booked.by, Booker::GlobalMasters { .. }))
    }

    /// Whether job managers place all tasks.
    pub fn is_distributed(self) -> bool {
        !matches!(self.scheduling, Scheduling::Booked(_))
    }

    /// Whether tasks are booked or opportunistic, and opportunistic ones are preempted by booked ones.
    pub fn has_kinds(self) -> bool {
        self.opportunistic().is_some()
    }

    /// Whether guaranteed work may be preempted if another queue, or job, has less than its share. Without it, only opportunistic
    /// work may be preempted.
    pub fn preempts_for_shares(self) -> bool {
        let by = self.booked().map(|booked| booked.by);
        self.is_federated() || matches!(by, Some(Booker::Master { reclaim: Some(_), .. }))
    }

    /// Sets the order of the stages of jobs, or of their plans if they yield.
    pub fn set_intra_job(&mut self, order: IntraJob) {
        match &mut self.scheduling {
            Scheduling::Booked(Booked { demand: DemandOrder::Everything(own), .. })
            | Scheduling::Probed(Probed { intra_job: own, .. })
            | Scheduling::Entitled(Entitled { intra_job: own, .. }) => *own = order,
            Scheduling::Booked(Booked { demand: DemandOrder::Yielding(yielding), .. }) => {
                yielding.plans = Plans::By(order);
            }
        }
    }

    pub fn scheduler(self, queues: QueueTree) -> Scheduler {
        let unused = || Box::new(placement::NextFit::default());
        let (placement, settings): (Box<dyn PlacementPolicy>, _) = match self.scheduling {
            Scheduling::Booked(Booked {
                by: Booker::Master { placement, reserve_after, backfill, reclaim },
                delays,
                corrections,
                ..
            }) => {
                let placement = placement.policy(Chance::new(self.seed, "placement"));
                let (reserve_after, avoids_slow_nodes) = (Some(reserve_after), corrections.is_some());
                (placement, SchedulerSettings { reserve_after, backfill, delays, reclaim, avoids_slow_nodes })
            }
            Scheduling::Booked(Booked { by: Booker::GlobalMasters { .. }, delays, .. }) => {
                (unused(), SchedulerSettings { delays, ..SchedulerSettings::NONE })
            }
            Scheduling::Probed(_) | Scheduling::Entitled(_) => (unused(), SchedulerSettings::NONE),
        };
        Scheduler::new(self.inter_job(queues), placement, settings)
    }

    fn inter_job(self, queues: QueueTree) -> Box<dyn InterJobPolicy> {
        match self.scheduling {
            Scheduling::Booked(Booked { inter_job, demand, .. }) => {
                let order = inter_job.policy(queues.clone());
                match demand {
                    DemandOrder::Everything(_) => order,
                    DemandOrder::Yielding(Yielding { leftover, .. }) => {
                        Box::new(Layered::new(order, leftover.policy(queues.clone()), queues))
                    }
                }
            }
            Scheduling::Probed(_) => InterJob::Fifo.policy(queues),
            Scheduling::Entitled(Entitled { guaranteed, within, .. }) => {
                Box::new(Entitlement::new(queues, guaranteed, within))
            }
        }
    }

    pub fn master(self, epoch: Epoch, settings: MasterSettings, queues: QueueTree, sealing: Sealing) -> Master {
        let scheduler = self.scheduler(queues.clone());
        let steer = self.opportunistic().map(|settings| settings.steering);
        let others = queues.presets().chain(settings.dispatch.beside.iter().map(|beside| &*beside.preset));
        let all = others.filter_map(|name| self.beside(name).ok()).chain([self]);
        let publish = all.map(Preset::publishes).max().unwrap_or(Publish::Nothing);
        let report_changes_after = match self.scheduling {
            Scheduling::Booked(Booked { by: Booker::GlobalMasters { report_changes_after, .. }, .. }) => {
                report_changes_after
            }
            _ => None,
        };
        let settings = MasterSettings { publish, steer, report_changes_after, ..settings };
        Master::new(epoch, settings, queues, scheduler, sealing)
    }

    /// What the master publishes about its nodes to job managers.
    fn publishes(self) -> Publish {
        let choice = match self.scheduling {
            Scheduling::Booked(Booked { opportunistic: None, .. }) => return Publish::Nothing,
            Scheduling::Booked(Booked { opportunistic: Some(Opportunistic { placement, .. }), .. }) => placement,
            Scheduling::Probed(Probed { choice, .. }) => choice,
            // With relaxed locality, too: presets beside it may read them.
            Scheduling::Entitled(_) => return Publish::Waits,
        };
        match choice {
            QueueChoice::BatchSampling { .. } | QueueChoice::Random => Publish::Nodes,
            QueueChoice::TopRanked { .. } => Publish::Ranking,
            QueueChoice::PowerOfTwo => Publish::Load,
        }
    }

    /// In a federation.
    pub fn global_master(
        self,
        epoch: Epoch,
        (federation, own): (Federation, GlobalId),
        settings: DispatchSettings,
        queues: QueueTree,
    ) -> GlobalMaster {
        let (scattered, report_changes_after, reclaim, reserve_after) = match self.scheduling {
            Scheduling::Booked(Booked {
                by: Booker::GlobalMasters { scattered, report_changes_after, reclaim, reserve_after },
                ..
            }) => (scattered, report_changes_after, reclaim, reserve_after),
            _ => (false, None, None, None),
        };
        let delays = self.booked().map_or(Delays::NONE, |booked| booked.delays);
        let scatter = scattered.then(|| Chance::new(self.seed, &format!("placement of {own}")));
        let placement = Box::new(placement::Partitions::new(federation, own, scatter));
        let backfill = reserve_after.is_some();
        let of_scheduler = SchedulerSettings { reserve_after, backfill, delays, reclaim, ..SchedulerSettings::NONE };
        let scheduler = Scheduler::new(self.inter_job(queues.clone()), placement, of_scheduler);
        let scheduler = scheduler.reserving_first_in(federation, own);
        // The time until the other global masters know of it and the launch of one of them has arrived.
        let first_refusal = report_changes_after.map(|after| after + after);
        GlobalMaster::new(epoch, (federation, own), settings, queues, scheduler).leaving_to_others(first_refusal)
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
        let manager = JobManager::new(job, epoch, settings, intra_job, own, sealing);
        let manager = if preset.uses_run_times() { manager.reporting_run_times() } else { manager };
        match preset.booked().and_then(|booked| booked.corrections) {
            Some(rules) => manager.finding_stragglers(rules),
            None => manager,
        }
    }

    /// Whether tasks run on reserved nodes until those are needed, or are preempted for others.
    fn uses_run_times(&self) -> bool {
        self.booked().is_some_and(|booked| match booked.by {
            Booker::Master { backfill, reclaim, .. } => backfill || reclaim.is_some(),
            Booker::GlobalMasters { reclaim, reserve_after, .. } => reclaim.is_some() || reserve_after.is_some(),
        })
    }

    fn intra_job(self, component: &str) -> Box<dyn IntraJobPolicy> {
        let order = match self.scheduling {
            Scheduling::Booked(Booked { demand: DemandOrder::Yielding(yielding), .. }) => {
                let chance = Chance::new(self.seed, &format!("altruism {component}"));
                return Box::new(intra_job::Altruistic::new(yielding.plans.order(), yielding.altruism, chance));
            }
            Scheduling::Booked(Booked { demand: DemandOrder::Everything(order), .. })
            | Scheduling::Probed(Probed { intra_job: order, .. })
            | Scheduling::Entitled(Entitled { intra_job: order, .. }) => order,
        };
        match order {
            IntraJob::BreadthFirst => Box::new(intra_job::BreadthFirst),
            IntraJob::CriticalPath => Box::new(intra_job::CriticalPath::default()),
            IntraJob::Tetris => Box::new(intra_job::Tetris),
        }
    }

    /// The placement of tasks that its job managers place.
    fn own_placement(self, component: &str) -> Option<OwnPlacement> {
        let chance = Chance::new(self.seed, &format!("placement {component}"));
        let (placement, tasks) = match self.scheduling {
            Scheduling::Booked(Booked { opportunistic, .. }) => {
                let Opportunistic { mix, placement, quota, promote_after, .. } = opportunistic?;
                let mix = (mix, Chance::new(self.seed, &format!("mix {component}")));
                (placement.policy(chance), OwnTasks::Opportunistic { mix, quota, promote_after })
            }
            Scheduling::Probed(Probed { choice, .. }) => (choice.policy(chance), OwnTasks::Everything),
            Scheduling::Entitled(settings) => {
                let Entitled { choice, allowance, corrections, assumed_run_time, .. } = settings;
                let reports_work = settings.within != Within::FairShares;
                let explores = match choice {
                    Choice::EarliestCompletion(_) => None,
                    Choice::RelaxedLocality { explores, .. } => explores,
                };
                let tasks = EntitledTasks { allowance, reports_work, corrections, explores, assumed_run_time };
                (choice.policy(chance), OwnTasks::Entitled(tasks))
            }
        };
        Some(OwnPlacement { placement, tasks })
    }

    /// This preset, or one with which nodes act in the same way as far as they can, for nodes of this version of the wire: they do not
    /// know presets that came later, nor that attempts are preempted for others.
    #[must_use]
    pub fn for_nodes_of(self, version: u32) -> Preset {
        let is_known = version >= 33 || self.name != Preset::AMALGAM.name;
        if is_known { self } else { Preset::DRF.with_seed(self.seed) }
    }

    pub fn node_agent(self, node: NodeId, settings: NodeSettings, mac: Mac) -> NodeAgent {
        let (queue, rules): (Box<dyn QueuePolicy>, _) = match self.scheduling {
            Scheduling::Booked(Booked { opportunistic: Some(Opportunistic { reorder, at_nodes, .. }), .. }) => {
                (Box::new(node_queue::ByKind { reorder }), at_nodes)
            }
            Scheduling::Entitled(Entitled { keep_freed, yields_for, .. }) => {
                let chance = Chance::new(self.seed, &format!("queue of node {node}"));
                let rules = OpportunisticRules { keep_freed, yields_for, ..OpportunisticRules::default() };
                (Box::new(node_queue::GapFilling::new(chance)), rules)
            }
            Scheduling::Booked(_) | Scheduling::Probed(_) => {
                (Box::new(node_queue::Fifo), OpportunisticRules::default())
            }
        };
        let entitled = self.entitled();
        let corrections = match self.scheduling {
            Scheduling::Booked(booked) => booked.corrections,
            Scheduling::Entitled(entitled) => entitled.corrections,
            Scheduling::Probed(_) => None,
        };
        NodeAgent::new(node, settings, queue, rules, mac)
            .reporting_waits(entitled.map(|settings| settings.waits))
            .reporting_progress(corrections.and_then(|rules| rules.progress_every))
    }
}

impl Plans {
    fn order(self) -> PlanOrder {
        PlanOrder::Fixed(match self {
            Plans::By(IntraJob::BreadthFirst) => Order::BreadthFirst,
            Plans::By(IntraJob::CriticalPath) => Order::CriticalPath,
            Plans::By(IntraJob::Tetris) => Order::Packing,
            Plans::Dagps => return PlanOrder::Dagps,
        })
    }
}

impl Placement {
    pub fn policy(self, chance: Chance) -> Box<dyn PlacementPolicy> {
        match self {
            Placement::NextFit => Box::new(placement::NextFit::default()),
            Placement::BestFit => Box::new(placement::BestFit),
            Placement::WorstFit => Box::new(placement::WorstFit),
            Placement::Random => Box::new(placement::Random::new(chance)),
            Placement::PowerOfTwo => Box::new(placement::PowerOfTwo::new(chance)),
            Placement::Aligned => Box::new(placement::Aligned::default()),
        }
    }
}

impl QueueChoice {
    pub fn policy(self, chance: Chance) -> Box<dyn PlacementPolicy> {
        match self {
            QueueChoice::BatchSampling { ratio } => Box::new(placement::BatchSampling::new(chance, ratio)),
            QueueChoice::Random => Box::new(placement::Random::new(chance)),
            QueueChoice::PowerOfTwo => Box::new(placement::PowerOfTwo::new(chance)),
            QueueChoice::TopRanked { k } => Box::new(placement::TopRanked::new(chance, k)),
        }
    }
}

impl Choice {
    pub fn policy(self, chance: Chance) -> Box<dyn PlacementPolicy> {
        match self {
            Choice::EarliestCompletion(settings) => Box::new(placement::EarliestCompletion::new(chance, settings)),
            Choice::RelaxedLocality { delays, .. } => {
                Box::new(placement::RelaxedLocality::new(chance, delays.node, delays.rack))
            }
        }
    }
}
