//! A cluster, its queues, its users' jobs and its faults, all drawn from a seed.

use super::draws::{is_one_in, one_of};
use super::{cluster, jobs, misfortune, queues, variants};
use crate::execution::ExecutionSettings;
use crate::faults::Planned;
use crate::places;
use crate::settings::{Costs, FileSettings, NetworkSettings, Settings};
use amalgam_core::dispatch::{Beside, Decide, DispatchSettings};
use amalgam_core::job_manager::{AllowanceRules, CorrectionRules, ExplorationRules};
use amalgam_core::master::{MasterSettings, OpportunisticLimit, Steering};
use amalgam_core::node::{OpportunisticRules, ReportWaits};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::policy::{Mix, Quota};
use amalgam_core::preset::{
    Booked, Booker, Choice, DemandOrder, InterJob, IntraJob, Opportunistic, Placement, Plans, Preset, Probed,
    QueueChoice, Scheduling, Yielding,
};
use amalgam_core::scheduling::Reclaim;
use amalgam_core::vocabulary::{Chance, Duration, QueueId, QueueSpec};
use amalgam_workload::trace::{Node, Workload};
use std::num::NonZeroU32;
use std::sync::Arc;

/// Jobs arrive and faults strike within this time. Then all faults end.
pub const UNSAFE_FOR: Duration = Duration::from_secs(120);

pub struct Scenario {
    pub settings: Settings,
    pub nodes: Vec<Node>,
    pub workload: Workload,
    pub plan: Vec<Planned>,
}

impl Scenario {
    pub fn draw(seed: u64) -> Scenario {
        let nodes = cluster::nodes(&mut Chance::new(seed, "chaos nodes"));
        let mut shapes = cluster::shapes(&nodes, &mut Chance::new(seed, "chaos shapes"));
        cluster::enlarge(&mut shapes, &nodes, &mut Chance::new(seed, "chaos large shapes"));
        let least = cluster::least_share(&nodes, &shapes);
        let queues = queues::queues(least, &mut Chance::new(seed, "chaos queues"));
        let mut workload = jobs::workload(&shapes, &queues::leaves(&queues), &mut Chance::new(seed, "chaos jobs"));
        let files = &mut Chance::new(seed, "chaos files");
        jobs::hand_on_files(&mut workload, files);
        let mut settings = settings(seed, queues, &mut Chance::new(seed, "chaos settings"));
        federate(&mut settings, &mut workload, nodes.len(), &mut Chance::new(seed, "chaos federation"));
        if !settings.preset.is_distributed() {
            jobs::form_gangs(&mut workload, &nodes, &settings.queues, &mut Chance::new(seed, "chaos gangs"));
        }
        jobs::give_priorities(&mut workload, &mut Chance::new(seed, "chaos priorities"));
        let managers = usize::from(settings.manager_processes);
        let hosts = places::Places { nodes: nodes.len(), managers, federation: settings.federation_of(nodes.len()) };
        let mut plan = misfortune::plan(&hosts, workload.jobs.len(), &mut Chance::new(seed, "chaos faults"));
        // Drawn separately, so that the other faults of a seed stay the same.
        plan.extend(misfortune::intrusions(&mut Chance::new(seed, "chaos intruder")));
        settings.files = FileSettings {
            bytes: 1 << 20,
            bytes_per_second: one_of(files, &[1 << 20, 100 << 20]),
            cache_bytes: one_of(files, &[40 << 20, 10 << 30]),
            wrong: one_of(files, &[0.0, 0.05, 0.5]),
            slow: one_of(files, &[0.0, 0.1]),
            spoiled: one_of(files, &[0.0, 0.02, 0.2]),
            vary: true,
        };
        // Drawn separately, as above. The cache has no room for the files that many tasks read at once.
        if is_one_in(4, &mut Chance::new(seed, "chaos small cache")) {
            settings.files.cache_bytes = 4 << 20;
        }
        // Drawn separately, as above. A node sends large files to few others at once.
        if is_one_in(4, &mut Chance::new(seed, "chaos large files")) {
            settings.files.bytes *= 5;
            settings.files.cache_bytes *= 5;
        }
        Scenario { settings, nodes, workload, plan }
    }
}

fn settings(seed: u64, queues: QueueTree, chance: &mut Chance) -> Settings {
    let preset = preset(&mut Chance::new(seed, "chaos preset"));
    let preset = yielding(preset, &mut Chance::new(seed, "chaos yielding"));
    let preset = entitling(preset, &mut Chance::new(seed, "chaos entitling"));
    let preset = queueing(preset, &mut Chance::new(seed, "chaos queueing"));
    let preset = one_step_further(preset, &mut Chance::new(seed, "chaos one step further"));
    let queues = match preset.preempts_for_shares() {
        true => queues::with_guarantees(&queues, &mut Chance::new(seed, "chaos guarantees")),
        false => queues,
    };
    let (preset, beside) = side_by_side(preset, &mut Chance::new(seed, "chaos side by side"));
    let queues = in_queues(queues, beside.as_ref(), &mut Chance::new(seed, "chaos presets of queues"));
    Settings {
        preset,
        seed,
        manager_processes: job_hosts(&preset, &mut Chance::new(seed, "chaos job hosts")),
        master: master(beside, chance),
        queues,
        network: NetworkSettings {
            delay: Duration::from_micros(one_of(chance, &[100, 500, 5_000, 20_000])),
            jitter: Duration::from_micros(one_of(chance, &[0, 1_000, 50_000, 2_000_000])),
            loss: one_of(chance, &[0.0, 0.01, 0.1]),
            retransmission: Duration::from_micros(one_of(chance, &[200_000, 3_000_000])),
            repeats: one_of(chance, &[0, 1, 8]),
        },
        execution: ExecutionSettings {
            slowdown: one_of(chance, &[0.0, 1.0]),
            stragglers: one_of(chance, &[0.0, 0.1]),
            failures: one_of(chance, &[0.0, 0.1, 0.3]),
            stubborn: one_of(chance, &[0.0, 0.3]),
            ..ExecutionSettings::default()
        },
        costs: Costs { disk: one_of(chance, &[0, 150_000, 20_000_000]), ..Costs::default() },
        orphan_lease: Duration::from_secs(one_of(chance, &[20, 600])),
        until: None,
        rests: false,
        strict: false,
        story: None,
        ..Settings::default()
    }
}

/// In a fifth of all seeds, the nodes belong to several clusters of a federation. Drawn separately, so that other seeds
/// stay the same.
fn federate(settings: &mut Settings, workload: &mut Workload, nodes: usize, chance: &mut Chance) {
    if !is_one_in(5, chance) {
        return;
    }
    let seed = settings.preset.seed;
    settings.preset = one_of(chance, &Preset::FEDERATED);
    settings.preset.seed = seed;
    settings.preset.set_intra_job(one_of(chance, &[IntraJob::BreadthFirst, IntraJob::CriticalPath, IntraJob::Tetris]));
    settings.manager_processes = 0;
    let clusters = 1 + chance.below(nodes.min(3) as u64) as u8;
    let globals = 1 + chance.below(3_u64) as u8;
    settings.federation = Some((clusters, globals));
    settings.master.dispatch =
        DispatchSettings { kept_jobs: settings.master.dispatch.kept_jobs, ..DispatchSettings::default() };
    let all = (0..settings.queues.len() as u32).map(|number| settings.queues.spec(QueueId(number)).clone());
    let at_home = all.map(|spec| {
        let global = is_one_in(3, chance).then(|| chance.below(u64::from(globals)) as u8);
        QueueSpec { preset: None, global, ..spec }
    });
    settings.queues = QueueTree::new(at_home.collect()).expect("the tree is the same");
    let shares = &mut Chance::new(seed, "chaos shares");
    if !is_one_in(8, shares) {
        settings.queues = queues::with_shares(&settings.queues, globals, shares);
    }
    // The ids of the jobs of different global masters alternate, so a dependency is moved to a random one of `globals`
    // ids.
    for job in &mut workload.jobs {
        let spec = Arc::make_mut(&mut job.spec);
        for after in spec.after_jobs.iter_mut().chain(&mut spec.after_jobs_any) {
            after.0 = 1 + (after.0 - 1) / u64::from(globals) * u64::from(globals) + chance.below(u64::from(globals));
        }
    }
}

/// In half of the seeds in which job managers place all tasks, job managers have processes of their own. Drawn
/// separately, so that other seeds stay the same.
fn job_hosts(preset: &Preset, chance: &mut Chance) -> u8 {
    if preset.is_distributed() && is_one_in(2, chance) { one_of(chance, &[1, 3]) } else { 0 }
}

/// A named preset, or one with some parts replaced, as a configuration may do.
fn preset(chance: &mut Chance) -> Preset {
    let central =
        one_of(chance, &[Preset::FIFO, Preset::CAPACITY, Preset::DRF, Preset::SJF, Preset::SRTF, Preset::TETRIS]);
    let distributed = one_of(chance, &variants::DISTRIBUTED);
    let hybrid = one_of(chance, &Preset::HYBRID);
    let mut preset = one_of(chance, &[central, distributed, hybrid]);
    preset.seed = chance.below(u64::MAX);
    if is_one_in(3, chance) {
        preset.set_intra_job(one_of(chance, &[IntraJob::BreadthFirst, IntraJob::CriticalPath, IntraJob::Tetris]));
        replace_parts(&mut preset, chance);
    }
    preset
}

/// In a third of the seeds in which the master places all tasks, jobs donate resources. Drawn separately, so that other
/// seeds stay the same.
fn yielding(preset: Preset, chance: &mut Chance) -> Preset {
    let Scheduling::Booked(Booked { by: Booker::Master { placement, .. }, opportunistic: None, .. }) =
        preset.scheduling
    else {
        return preset;
    };
    if !is_one_in(3, chance) {
        return preset;
    }
    let mut yielding = Preset::CARBYNE.with_seed(preset.seed);
    let settings = yielding.booked_mut().expect("the master books");
    let orders = [InterJob::Drf { strict: false }, InterJob::Capacity, InterJob::Tetris { fairness: 0 }];
    settings.inter_job = one_of(chance, &orders);
    let leftover = one_of(chance, &[InterJob::Srtf, InterJob::Tetris { fairness: 0 }]);
    let altruism = one_of(chance, &[500_000, 1_000_000]);
    let within = [
        Plans::By(IntraJob::BreadthFirst),
        Plans::By(IntraJob::CriticalPath),
        Plans::By(IntraJob::Tetris),
        Plans::Dagps,
    ];
    settings.demand = DemandOrder::Yielding(Yielding { plans: one_of(chance, &within), leftover, altruism });
    let reserve_after = Duration::from_secs(one_of(chance, &[5, 30]));
    settings.by = Booker::Master { placement, reserve_after, backfill: false, reclaim: None };
    yielding
}

/// In half of the seeds, work of jobs beyond what they are entitled to is preempted: in a third of all, since some of these get
/// queues at nodes or become federations afterwards. Drawn separately, as above.
fn entitling(preset: Preset, chance: &mut Chance) -> Preset {
    if !is_one_in(2, chance) {
        return preset;
    }
    let mut entitling = Preset::AMALGAM.with_seed(preset.seed);
    entitling.set_intra_job(one_of(chance, &[IntraJob::BreadthFirst, IntraJob::CriticalPath, IntraJob::Tetris]));
    let settings = entitling.booked_mut().expect("the master books");
    let reclaim = Some(Reclaim { lost: one_of(chance, &[0, 20_000, 500_000]) });
    let reserve_after = Duration::from_secs(one_of(chance, &[5, 30]));
    let placement = one_of(chance, &[Placement::NextFit, Placement::BestFit]);
    settings.by = Booker::Master { placement, reserve_after, backfill: true, reclaim };
    entitling
}

/// In a sixth of all seeds, job managers send tasks to nodes' queues within allowances. Drawn separately, as above.
fn queueing(preset: Preset, chance: &mut Chance) -> Preset {
    if !is_one_in(6, chance) {
        return preset;
    }
    let mut queueing = Preset::APOLLO.with_seed(preset.seed);
    let rules = queueing.entitled_mut().expect("job managers have entitlements");
    rules.intra_job = one_of(chance, &[IntraJob::BreadthFirst, IntraJob::CriticalPath]);
    rules.allowance.opportunistic = one_of(chance, &[0, 50, 100, 400]);
    rules.allowance.starved_after = Duration::from_secs(one_of(chance, &[1, 30]));
    rules.corrections = one_of(chance, &[None, queueing_corrections(), rules.corrections]);
    rules.waits.every = Duration::from_millis(one_of(chance, &[100, 500, 5_000]));
    rules.yields_for = one_of(chance, &[None, Some(Duration::from_secs(1)), rules.yields_for, rules.yields_for]);
    queueing
}

/// In a third of these, they do so with the rules of `apollo-plus`. Drawn separately, as above.
fn one_step_further(preset: Preset, chance: &mut Chance) -> Preset {
    let Some(drawn) = preset.entitled().filter(|_| is_one_in(3, chance)) else { return preset };
    let mut further = Preset::APOLLO_PLUS.with_seed(preset.seed);
    let rules = further.entitled_mut().expect("job managers have entitlements");
    rules.intra_job = drawn.intra_job;
    let AllowanceRules { opportunistic, starved_after, .. } = drawn.allowance;
    rules.allowance = AllowanceRules { opportunistic, starved_after, ..rules.allowance };
    let saving_while_waiting = rules.corrections.map_or(0, |rules| rules.saving_while_waiting);
    rules.corrections = drawn.corrections.map(|drawn| CorrectionRules { saving_while_waiting, ..drawn });
    rules.waits = ReportWaits { every: drawn.waits.every, ..rules.waits };
    rules.yields_for = drawn.yields_for;
    further
}

/// In two thirds of the seeds in which job managers place tasks in nodes' queues, another such preset replaces the
/// cluster's own, or a part of the jobs uses it. Drawn separately, as above.
fn side_by_side(preset: Preset, chance: &mut Chance) -> (Preset, Option<Beside>) {
    let part = one_of(chance, &[300_000, 500_000, 1_000_000]);
    let beside = |name: &str| Some(Beside { preset: name.to_owned(), part, seed: preset.seed });
    let preset = preset.with_others(variants::ALL);
    let family = if preset.entitled().is_some() { &variants::QUEUEING[..] } else { &variants::DISTRIBUTED[..] };
    if !preset.is_distributed() || is_one_in(3, chance) {
        return (preset, None);
    }
    let other = one_of(chance, family);
    let Some(drawn) = preset.entitled().filter(|_| !is_one_in(2, chance)) else {
        return (preset, beside(other.name()));
    };
    let mut blind = preset.beside(variants::WITHOUT_ESTIMATES.name()).expect("they share a cluster");
    let rules = blind.entitled_mut().expect("job managers have entitlements");
    if let Choice::RelaxedLocality { explores, .. } = &mut rules.choice {
        let after = Duration::from_millis(one_of(chance, &[20, 300, 1_000, 5_000]));
        *explores = Some(ExplorationRules { after });
    }
    rules.intra_job = drawn.intra_job;
    (blind, if is_one_in(2, chance) { beside(Preset::APOLLO.name()) } else { None })
}

/// In a third of the seeds with a second preset, some queues name that preset as well.
fn in_queues(queues: QueueTree, beside: Option<&Beside>, chance: &mut Chance) -> QueueTree {
    let Some(other) = beside.filter(|_| is_one_in(3, chance)) else { return queues };
    let all = (0..queues.len() as u32).map(|number| queues.spec(QueueId(number)).clone());
    let some = all
        .map(|spec| if is_one_in(2, chance) { QueueSpec { preset: Some(other.preset.clone()), ..spec } } else { spec });
    QueueTree::new(some.collect()).expect("the tree is the same")
}

/// Decisions are corrected for any small saving.
fn queueing_corrections() -> Option<CorrectionRules> {
    let progress_every = Some(Duration::from_millis(500));
    Some(CorrectionRules {
        least_saving: Duration::from_millis(10),
        saving: 0,
        saving_while_waiting: 0,
        progress_every,
    })
}

fn replace_parts(preset: &mut Preset, chance: &mut Chance) {
    match &mut preset.scheduling {
        Scheduling::Probed(Probed { choice: QueueChoice::BatchSampling { ratio }, .. }) => {
            *ratio = one_of(chance, &[1, 2, 4]);
        }
        Scheduling::Booked(Booked { opportunistic: Some(own), inter_job, .. }) => {
            *own = opportunistic(chance);
            *inter_job = one_of(chance, &[InterJob::Capacity, InterJob::Drf { strict: false }]);
        }
        Scheduling::Booked(Booked { by: Booker::Master { placement, .. }, inter_job, .. }) => {
            let placements = [Placement::BestFit, Placement::WorstFit, Placement::Random, Placement::PowerOfTwo];
            *placement = one_of(chance, &placements);
            if let InterJob::Drf { strict } = inter_job {
                *strict = true;
            }
        }
        Scheduling::Booked(_) | Scheduling::Probed(_) | Scheduling::Entitled(_) => {}
    }
}

fn opportunistic(chance: &mut Chance) -> Opportunistic {
    let few = Quota { absolute: Some(2), relative: None };
    let as_many = Quota { absolute: None, relative: Some(100) };
    Opportunistic {
        mix: Mix {
            shorter_than: one_of(chance, &[None, Some(Duration::from_secs(10))]),
            opportunistic: one_of(chance, &[0, 500_000, 1_000_000]),
        },
        placement: one_of(
            chance,
            &[QueueChoice::TopRanked { k: 2 }, QueueChoice::TopRanked { k: 50 }, QueueChoice::PowerOfTwo],
        ),
        quota: one_of(chance, &[Quota::default(), few, as_many]),
        promote_after: one_of(chance, &[None, Some(Duration::from_secs(1))]),
        steering: Steering {
            deviations: one_of(chance, &[None, Some(0), Some(2_000)]),
            limit: one_of(
                chance,
                &[OpportunisticLimit::Everything, OpportunisticLimit::Part(500_000), OpportunisticLimit::Forecast],
            ),
            moves: is_one_in(2, chance),
        },
        reorder: is_one_in(2, chance),
        at_nodes: OpportunisticRules {
            queue_limit: one_of(chance, &[None, Some(2)]),
            keep_freed: one_of(chance, &[Duration::ZERO, Duration::from_millis(200)]),
            offer_after: one_of(chance, &[None, Some(Duration::from_secs(1))]),
            report_spare: one_of(chance, &[None, Some(Duration::from_millis(100))]),
            yields_for: None,
        },
    }
}

/// Mostly on events, the default.
const DECIDE: [Decide; 6] = [
    Decide::OnEvents,
    Decide::OnEvents,
    Decide::OnEvents,
    Decide::OnEvents,
    Decide::OnHeartbeats { most: None },
    Decide::OnHeartbeats { most: Some(NonZeroU32::MIN) },
];

fn master(beside: Option<Beside>, chance: &mut Chance) -> MasterSettings {
    MasterSettings {
        heartbeat: Duration::from_secs(one_of(chance, &[1, 3])),
        missed_heartbeats: one_of(chance, &[2, 5]),
        node_grace: Duration::from_secs(one_of(chance, &[5, 20, 60])),
        dispatch: DispatchSettings {
            decide: one_of(chance, &DECIDE),
            kept_jobs: one_of(chance, &[10_000, 10_000, 2]),
            beside,
            ..DispatchSettings::default()
        },
        token_life: Duration::from_secs(20),
        ..MasterSettings::default()
    }
}
