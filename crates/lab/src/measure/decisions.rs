//! Placements per second of the master alone: no store, no network, no processes.
//!
//! The real `Master` role gets the messages that nodes and job managers would send it. A cluster of 50,000 nodes is
//! filled until hardly any pending task fits anywhere. Then, in each step, one random task ends, the master grants its room
//! to other tasks, and the jobs with grants ask for as many tasks again, so that the number of pending tasks is
//! constant. Only calls of `handle` are timed; at their end the ledger is committed and the grants are in the outbox.
//! Rates count the time that this thread had a core; time in which the machine ran other threads is excluded.

use super::{OnCore, SEALING};
use amalgam_core::master::{Master, MasterSettings};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{Address, Ask, Message, Registration, ToJobManager, ToMaster};
use amalgam_core::role::{Event, Outbox, Role};
use amalgam_core::vocabulary;
use amalgam_core::vocabulary::resources::{CPU, GPU, MEMORY};
use amalgam_core::vocabulary::{
    AskId, Attributes, Chance, ClientId, Constraint, Epoch, ExecutionType, GrantId, Instant, JobId, JobSpec, JobWork,
    NodeId, Program, ResourceSpec, Resources, StageSpec, TaskSet, Totals, WHOLE_GPU, Work,
};
use amalgam_sim::statistics::{median, percentile};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub preset: Preset,
    pub nodes: u32,
    pub jobs: u32,
    /// Pending tasks throughout, in one cluster and in the other.
    pub pending: [u64; 2],
    /// Tasks that end in each cluster before the measurement starts.
    pub warm_up: u32,
    /// Both clusters are measured alternately, so that other load on the machine affects both.
    pub rounds: u32,
    /// Tasks that end in each round.
    pub departures: u32,
    pub seed: u64,
}

impl Scale {
    pub fn full(preset: Preset) -> Scale {
        Scale {
            preset,
            nodes: 50_000,
            jobs: 1_000,
            pending: [1_000, 1_000_000],
            warm_up: 400_000,
            rounds: 21,
            departures: 20_000,
            seed: 1,
        }
    }
}

/// Two clusters that differ in the depth of their queues.
#[derive(Clone, Debug)]
pub struct Comparison {
    pub clusters: [Decisions; 2],
    /// The time of a decision in the second cluster divided by that in the first: the median over rounds.
    pub slowdown: f64,
    /// The lower bound of a decision, the median over the same rounds: see [`floor`].
    pub floor: Duration,
}

#[derive(Clone, Debug)]
pub struct Decisions {
    pub pending: u64,
    /// Booked parts of the cluster at the end.
    pub cpu_full: f64,
    pub memory_full: f64,
    /// Grants in the timed period.
    pub decisions: u64,
    /// Calls of `handle` in the timed period.
    pub events: u64,
    /// Decisions per second in the median round.
    pub per_second: f64,
    /// Time of one call.
    pub p50: Duration,
    pub p99: Duration,
    /// One in ten thousand calls takes longer.
    pub p9999: Duration,
    /// Includes interruptions by the machine.
    pub longest: Duration,
}

/// Fills two clusters and measures them in their steady state.
pub fn compare(scale: &Scale) -> Comparison {
    let mut clusters = scale.pending.map(|pending| Cluster::new(scale, pending));
    for cluster in &mut clusters {
        (0..scale.warm_up).for_each(|_| cluster.step());
        cluster.is_timed = true;
        cluster.granted = 0;
    }
    let mut each: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    let mut floors = Vec::new();
    for _ in 0..scale.rounds {
        for (cluster, each) in clusters.iter_mut().zip(&mut each) {
            each.push(cluster.round(scale.departures));
        }
        floors.push(floor(scale.nodes, scale.jobs, clusters[0].running.len(), scale.departures).as_secs_f64());
    }
    let slowdown = median(each[0].iter().zip(&each[1]).map(|(few, many)| many / few));
    let [few, many] = clusters;
    let [few_each, many_each] = each;
    Comparison {
        clusters: [few.summary(median(few_each)), many.summary(median(many_each))],
        slowdown,
        floor: Duration::from_secs_f64(median(floors)),
    }
}

/// The nodes and job managers around one master.
struct Cluster {
    master: Master,
    out: Outbox,
    now: Instant,
    chance: Chance,
    jobs: Vec<Job>,
    running: Vec<Running>,
    capacity: Totals,
    booked: Totals,
    granted: u64,
    /// Open tasks of every job.
    pending_each: u64,
    /// Jobs that got grants and ask for as many tasks again.
    topped_up: Vec<usize>,
    /// Nanoseconds of every call in the timed period.
    times: Vec<u32>,
    is_timed: bool,
}

struct Job {
    id: JobId,
    shape: Resources,
    constraints: Arc<Vec<Constraint>>,
    /// The run time of one task.
    each: vocabulary::Duration,
    wanted: u64,
    granted: u64,
}

struct Running {
    grant: GrantId,
    node: NodeId,
    job: u32,
}

impl Cluster {
    /// Creates a full cluster.
    fn new(scale: &Scale, pending: u64) -> Cluster {
        let mut cluster = Cluster {
            master: scale.preset.master(Epoch(1), MasterSettings::default(), QueueTree::single(), SEALING),
            out: Outbox::default(),
            now: Instant(1),
            chance: Chance::new(scale.seed, "cluster"),
            jobs: Vec::new(),
            running: Vec::new(),
            capacity: Totals::ZERO,
            booked: Totals::ZERO,
            granted: 0,
            pending_each: pending / u64::from(scale.jobs),
            topped_up: Vec::new(),
            times: Vec::new(),
            is_timed: false,
        };
        for node in 0..scale.nodes {
            cluster.register(node);
        }
        cluster.submit(scale.jobs);
        cluster.fill();
        cluster
    }

    fn register(&mut self, number: u32) {
        let (capacity, attributes) = random_node(&mut self.chance);
        let node = self.master.name_node(&format!("node-{number}"), &mut self.out);
        let node = node.expect("a cluster of its own has any number of nodes");
        self.capacity.add(&capacity);
        let registration = Registration {
            number: 1,
            node,
            name: format!("node-{number}"),
            capacity: ResourceSpec { basic: capacity, custom: Vec::new() },
            attributes,
            enforcement: Vec::new(),
            live: Vec::new(),
            program: None,
        };
        self.deliver(Address::Node(node), ToMaster::Register(Box::new(registration)));
    }

    fn submit(&mut self, jobs: u32) {
        let sets = constraint_sets();
        let mut shapes = BTreeSet::new();
        while self.jobs.len() < jobs as usize {
            let number = self.jobs.len();
            let constraints = Arc::clone(&sets[number % sets.len()]);
            let shape = random_shape(&mut self.chance, &constraints);
            if !shapes.insert(shape) {
                continue;
            }
            let id = JobId(number as u64 + 1);
            let spec = Arc::new(JobSpec {
                name: format!("job-{number}"),
                user: format!("user-{}", number % 50),
                stages: vec![stage(shape, &constraints)],
                ..JobSpec::default()
            });
            self.deliver(Address::Client(ClientId(1)), ToMaster::Submit { spec, key: None });
            let each = vocabulary::Duration::from_millis(100 + self.chance.below(100_000_u64));
            self.jobs.push(Job { id, shape, constraints, each, wanted: 0, granted: 0 });
        }
    }

    /// Asks for more tasks, equally for all jobs, until hardly any is granted; then for the number that stays pending.
    fn fill(&mut self) {
        const PART: u64 = 100;
        let mut granted = u64::MAX;
        while granted > self.jobs.len() as u64 {
            let before = self.granted;
            for job in 0..self.jobs.len() {
                self.ask_for(job, PART);
            }
            granted = self.granted - before;
        }
        for job in 0..self.jobs.len() {
            self.ask_for(job, self.pending_each);
        }
        while let Some(job) = self.topped_up.pop() {
            self.ask_for(job, self.pending_each);
        }
    }

    /// Ends `departures` tasks. Returns the seconds for each decision.
    fn round(&mut self, departures: u32) -> f64 {
        let (granted, calls) = (self.granted, self.times.len());
        let watch = OnCore::start();
        (0..departures).for_each(|_| self.step());
        let on_core = watch.share();
        let busy: u64 = self.times[calls..].iter().map(|&nanoseconds| u64::from(nanoseconds)).sum();
        busy as f64 / 1e9 * on_core / (self.granted - granted) as f64
    }

    fn summary(mut self, each: f64) -> Decisions {
        self.times.sort_unstable();
        let at = |percent: f64| Duration::from_nanos(percentile(&self.times, percent).into());
        let full = |kind: usize| self.booked.0[kind] as f64 / self.capacity.0[kind] as f64;
        Decisions {
            pending: self.jobs.iter().map(|job| job.wanted - job.granted).sum(),
            cpu_full: full(CPU),
            memory_full: full(MEMORY),
            decisions: self.granted,
            events: self.times.len() as u64,
            per_second: 1.0 / each,
            p50: at(50.0),
            p99: at(99.0),
            p9999: at(99.99),
            longest: at(100.0),
        }
    }

    /// One task ends.
    fn step(&mut self) {
        let at = self.chance.below(self.running.len() as u64) as usize;
        let ended = self.running.swap_remove(at);
        for kind in 0..self.booked.0.len() {
            self.booked.0[kind] -= u64::from(self.jobs[ended.job as usize].shape.0[kind]);
        }
        self.now = Instant(self.now.0 + 5);
        self.deliver(Address::Node(ended.node), ToMaster::Freed { grants: vec![ended.grant], unfinished: false });
        while let Some(job) = self.topped_up.pop() {
            self.ask_for(job, self.pending_each);
        }
    }

    fn ask_for(&mut self, job: usize, open: u64) {
        let entry = &mut self.jobs[job];
        entry.wanted = entry.granted + open;
        let ask = Ask {
            id: AskId { job: entry.id, number: 0 },
            resources: entry.shape,
            constraints: Arc::clone(&entry.constraints),
            execution: ExecutionType::Guaranteed,
            wanted: entry.wanted,
            needed: entry.wanted,
            rank: 0,
            priority: 0,
            is_gang: false,
            locality: Arc::default(),
            expected: None,
            limit: None,
            duplicates: 0,
        };
        let id = entry.id;
        // The work that is left covers the pending tasks only; the finished part is in the total.
        let work = |tasks: u64| Work::of(&entry.shape, entry.each, u32::try_from(tasks).unwrap_or(u32::MAX));
        let work = Box::new(JobWork { total: work(entry.wanted), remaining: work(open) });
        self.deliver(Address::JobManager(id), ToMaster::Demand { job: id, asks: vec![ask], work });
    }

    fn deliver(&mut self, from: Address, body: ToMaster) {
        let start = Clock::now();
        self.master.handle(self.now, Event::Message { from, body }, &mut self.out);
        if self.is_timed {
            self.times.push(start.elapsed().as_nanos() as u32);
        }
        self.out.changes.clear();
        self.out.records.clear();
        for (to, message) in self.out.sends.drain(..) {
            let (Address::JobManager(job), Message::ToJobManager(ToJobManager::Granted { grants })) = (to, message)
            else {
                continue;
            };
            let index = job.0 as usize - 1;
            let entry = &mut self.jobs[index];
            for grant in grants {
                entry.granted += 1;
                self.granted += 1;
                self.booked.add(&entry.shape);
                self.running.push(Running { grant: grant.id, node: grant.node, job: index as u32 });
                self.topped_up.push(index);
            }
        }
    }
}

// ---- nodes and jobs of the cluster ---------------------------------------------------------------------------------

/// Cores, GiB, GPUs.
const SIZES: [(u32, u32, u32); 4] = [(16, 64, 0), (32, 128, 0), (64, 256, 0), (64, 512, 8)];
const KERNELS: [&str; 5] = ["5.4.0", "5.10.12", "5.15.3", "6.1.0", "6.8.4"];
const ZONES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const GPU_MODELS: [&str; 3] = ["t4", "v100", "a100"];

fn random_node(chance: &mut Chance) -> (Resources, Attributes) {
    let (cores, gib, gpus) = SIZES[[0, 0, 0, 1, 1, 1, 1, 2, 2, 3][chance.below(10_u64) as usize]];
    let mut pairs = vec![
        ("kernel", *pick(chance, &KERNELS)),
        ("arch", if chance.below(5_u64) == 0 { "arm64" } else { "x86_64" }),
        ("zone", *pick(chance, &ZONES)),
    ];
    if gpus > 0 {
        pairs.push(("gpu-model", *pick(chance, &GPU_MODELS)));
    }
    let owned = pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    (Resources::new(cores * 1_000, gib * 1_024).with(GPU, gpus * WHOLE_GPU), Attributes::new(owned))
}

/// Twenty sets, from none to three constraints.
fn constraint_sets() -> Vec<Arc<Vec<Constraint>>> {
    const SETS: [&str; 20] = [
        "",
        "arch=x86_64",
        "kernel>=5.10",
        "kernel>=5.15 arch=x86_64",
        "zone=a",
        "zone!=b",
        "zone=c arch=x86_64",
        "kernel>=6.1",
        "kernel<6",
        "arch=arm64",
        "arch=arm64 kernel>=5.10",
        "zone=d kernel>=5.10",
        "gpu-model=a100",
        "gpu-model!=t4 arch=x86_64",
        "zone!=e zone!=f arch=x86_64",
        "kernel!=5.15.3",
        "kernel>=5.10 kernel<=6.1 arch=x86_64",
        "zone=f",
        "arch=x86_64 zone!=a kernel>=5.10",
        "kernel>=6.8",
    ];
    let parse = |text: &str| Constraint::parse(text).expect("a constraint of the list above");
    SETS.iter().map(|set| Arc::new(set.split_whitespace().map(parse).collect())).collect()
}

/// Up to eight cores in steps of 1/8, with half a GiB to six GiB for each core.
fn random_shape(chance: &mut Chance, constraints: &[Constraint]) -> Resources {
    let cpu_millis = 125 * (1 + chance.below(64_u64) as u32);
    let memory_mib = (cpu_millis * (512 + chance.below(5_632_u64) as u32) / 1_000).max(256) / 64 * 64;
    let needs_gpu =
        constraints.iter().any(|constraint| constraint.attribute == "gpu-model" && constraint.value == "a100");
    Resources::new(cpu_millis, memory_mib)
        .with(GPU, if needs_gpu { (1 + chance.below(2_u64) as u32) * WHOLE_GPU } else { 0 })
}

fn stage(shape: Resources, constraints: &[Constraint]) -> StageSpec {
    StageSpec {
        name: "only".to_owned(),
        tasks: TaskSet::Count(1_000_000),
        program: Arc::new(Program { command: vec!["true".into()], ..Program::default() }),
        resources: ResourceSpec { basic: shape, custom: Vec::new() },
        execution: ExecutionType::Guaranteed,
        constraints: constraints.to_vec(),
        ..StageSpec::default()
    }
}

fn pick<'a, T>(chance: &mut Chance, of: &'a [T]) -> &'a T {
    &of[chance.below(of.len() as u64) as usize]
}

// ---- lower bound ---------------------------------------------------------------------------------------------------

/// The lower bound of a decision, without the choice itself: a random booking is read and rewritten, its node's vector is
/// enlarged, tested and reduced, two jobs change their places in an ordered set, and one message is allocated and put
/// into an outbox. The sizes equal those of the measured run, for the same misses of the processor's caches.
pub fn floor(nodes: u32, jobs: u32, bookings: usize, rounds: u32) -> Duration {
    #[derive(Clone, Copy)]
    struct Held {
        node: u32,
        resources: Resources,
    }
    let mut chance = Chance::new(7, "floor");
    let shape = Resources::new(1_000, 1_024);
    let mut rooms = vec![Resources::new(500, 300); nodes as usize];
    let mut held = vec![Held { node: 0, resources: shape }; bookings.max(1)];
    for entry in &mut held {
        entry.node = chance.below(u64::from(nodes)) as u32;
    }
    let mut shares = vec![0u64; jobs as usize];
    let mut order: BTreeSet<(u64, u32)> = (0..jobs).map(|job| (0, job)).collect();
    let mut outbox: Vec<Vec<Held>> = Vec::new();
    let watch = OnCore::start();
    for _ in 0..rounds {
        let at = chance.below(held.len() as u64) as usize;
        let Held { node, resources } = held[at];
        let room = &mut rooms[node as usize];
        *room = room.saturating_add(&resources);
        if black_box(shape.fits_in(room)) {
            *room = room.saturating_sub(&shape);
        }
        held[at] = Held { node, resources: shape };
        for _ in 0..2 {
            let job = chance.below(u64::from(jobs)) as u32;
            let share = &mut shares[job as usize];
            order.remove(&(*share, job));
            *share = share.wrapping_add(chance.below(1_000_u64));
            order.insert((*share, job));
        }
        outbox.push(vec![held[at]]);
        black_box(&outbox);
        outbox.clear();
    }
    watch.elapsed() / rounds.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clusters_stay_full_and_the_pending_tasks_stay_pending() {
        for preset in Preset::CENTRAL.iter().copied() {
            let small = Scale { nodes: 60, jobs: 40, pending: [40, 400], warm_up: 200, ..Scale::full(preset) };
            let result = compare(&Scale { rounds: 3, departures: 100, ..small });
            assert_eq!(result.clusters.each_ref().map(|cluster| cluster.pending), [40, 400], "{preset:?}");
            for cluster in &result.clusters {
                assert!(cluster.decisions > 150 && cluster.events > 300, "{preset:?}: {cluster:?}");
                assert!(cluster.cpu_full.max(cluster.memory_full) > 0.8, "{preset:?}: {cluster:?}");
            }
        }
    }
}
