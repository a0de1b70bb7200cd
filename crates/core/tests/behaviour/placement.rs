//! What the master's central placement promises, checked against a plain model: whatever changes, no room stays empty
//! that an open ask could use, and no job gets more than the nodes have or than its queue may have.

use amalgam_core::master::{Master, MasterSettings};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::{Booker, Placement, Preset};
use amalgam_core::protocol::{Address, Ask, Message, Registration, ToJobManager, ToMaster};
use amalgam_core::role::{Event, Outbox, Role};
use amalgam_core::vocabulary::{
    AskId, Attributes, ClientId, Constraint, Duration, Epoch, ExecutionType, GrantId, Instant, JobId, JobSpec, Key,
    Mac, NodeId, Program, QueueSpec, ResourceSpec, Resources, Sealing, StageSpec, TaskSet,
};
use std::sync::Arc;

const SEALING: Sealing = Sealing { root: Key([1; 32]), mac: Mac::MIXING };

struct Model {
    master: Master,
    out: Outbox,
    now: Instant,
    nodes: Vec<(Resources, Attributes)>,
    free: Vec<Resources>,
    jobs: Vec<ModelJob>,
    running: Vec<(GrantId, NodeId, usize)>,
    state: u64,
}

struct ModelJob {
    shape: Resources,
    constraints: Arc<Vec<Constraint>>,
    limited: bool,
    wanted: u64,
    granted: u64,
}

const NODES: u32 = 12;
const JOBS: usize = 30;

impl Model {
    fn new(preset: Preset, seed: u64) -> Model {
        let limited = QueueSpec { maximum: 300_000, ..QueueSpec::named("root.limited") };
        let queues = QueueTree::new(vec![limited, QueueSpec::named("root.free")]).expect("a tree of two leaves");
        let mut model = Model {
            master: preset.master(Epoch(1), MasterSettings::default(), queues, SEALING),
            out: Outbox::default(),
            now: Instant(1),
            nodes: Vec::new(),
            free: Vec::new(),
            jobs: Vec::new(),
            running: Vec::new(),
            state: seed,
        };
        for node in 0..NODES {
            let capacity = Resources::new(1_000 * (1 + model.below(4)), 1_024 * (1 + model.below(4)));
            let zone = ["a", "b"][model.below(2) as usize].to_owned();
            model.nodes.push((capacity, Attributes::new([("zone".to_owned(), zone)])));
            model.free.push(capacity);
            model
                .master
                .name_node(&format!("node-{node}"), &mut model.out)
                .expect("the number of nodes is not limited");
            model.register(node as usize);
        }
        for job in 0..JOBS {
            model.submit(job);
        }
        model
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.state >> 33) % u64::from(limit)) as u32
    }

    fn register(&mut self, index: usize) {
        let (capacity, attributes) = self.nodes[index].clone();
        let node = NodeId(index as u32);
        let registration = Registration {
            number: 1,
            node,
            name: format!("node-{index}"),
            capacity: ResourceSpec { basic: capacity, custom: Vec::new() },
            attributes,
            enforcement: Vec::new(),
            live: Vec::new(),
            program: None,
        };
        self.deliver(Address::Node(node), ToMaster::Register(Box::new(registration)));
    }

    fn submit(&mut self, job: usize) {
        let shape = Resources::new(250 * (1 + self.below(8)), 128 * (1 + self.below(12)));
        let constraints = match self.below(3) {
            0 => vec![Constraint::parse("zone=a").expect("well-formed")],
            _ => Vec::new(),
        };
        let limited = self.below(2) == 0;
        let stage = StageSpec {
            name: "only".to_owned(),
            tasks: TaskSet::Count(1_000),
            program: Arc::new(Program { command: vec!["true".into()], ..Program::default() }),
            resources: ResourceSpec { basic: shape, custom: Vec::new() },
            execution: ExecutionType::Guaranteed,
            constraints: constraints.clone(),
            ..StageSpec::default()
        };
        let queue = if limited { "limited" } else { "free" }.to_owned();
        let spec = JobSpec { queue, stages: vec![stage], wait_for_nodes: true, ..JobSpec::default() };
        self.deliver(Address::Client(ClientId(1)), ToMaster::Submit { spec: Arc::new(spec), key: None });
        self.jobs.push(ModelJob { shape, constraints: Arc::new(constraints), limited, wanted: 0, granted: 0 });
        assert_eq!(self.jobs.len(), job + 1);
    }

    fn want(&mut self, job: usize, open: u64) {
        let entry = &mut self.jobs[job];
        entry.wanted = entry.granted + open;
        let id = JobId(job as u64 + 1);
        let ask = Ask {
            id: AskId { job: id, number: 0 },
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
        self.deliver(Address::JobManager(id), ToMaster::Demand { job: id, asks: vec![ask], work: Box::default() });
    }

    fn end_one(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let at = self.below(self.running.len() as u32) as usize;
        let (grant, node, job) = self.running.swap_remove(at);
        let free = &mut self.free[node.0 as usize];
        *free = free.saturating_add(&self.jobs[job].shape);
        self.deliver(Address::Node(node), ToMaster::Freed { grants: vec![grant], unfinished: false });
    }

    fn deliver(&mut self, from: Address, body: ToMaster) {
        self.now = Instant(self.now.0 + 1);
        self.master.handle(self.now, Event::Message { from, body }, &mut self.out);
        let sends = std::mem::take(&mut self.out).sends;
        for (to, message) in sends {
            let (Address::JobManager(id), Message::ToJobManager(ToJobManager::Granted { grants })) = (to, message)
            else {
                continue;
            };
            for grant in grants {
                let index = id.0 as usize - 1;
                let job = &mut self.jobs[index];
                job.granted += 1;
                let free = &mut self.free[grant.node.0 as usize];
                assert!(job.shape.fits_in(free), "job {id} was granted more than {} has", grant.node);
                *free = free.saturating_sub(&job.shape);
                self.running.push((grant.id, grant.node, index));
            }
        }
    }

    /// How much of kind 0 and 1 the limited queue may still take.
    fn headroom(&self) -> [u64; 2] {
        [0, 1].map(|kind| {
            let total: u64 = self.nodes.iter().map(|(capacity, _)| u64::from(capacity.0[kind])).sum();
            let of_limited = self.running.iter().filter(|(_, _, job)| self.jobs[*job].limited);
            let used: u64 = of_limited.map(|(_, _, job)| u64::from(self.jobs[*job].shape.0[kind])).sum();
            (total * 3 / 10).checked_sub(used).expect("the queue is within its maximum")
        })
    }

    fn check(&self, context: &str) {
        let headroom = self.headroom();
        for (index, job) in self.jobs.iter().enumerate().filter(|(_, job)| job.wanted > job.granted) {
            if job.limited && (0..2).any(|kind| u64::from(job.shape.0[kind]) > headroom[kind]) {
                continue;
            }
            for (node, free) in self.free.iter().enumerate() {
                let meets = job.constraints.iter().all(|constraint| constraint.is_met_by(&self.nodes[node].1));
                let idle = meets && job.shape.fits_in(free);
                assert!(!idle, "{context}: job {} waits although n{node} has room", index + 1);
            }
        }
    }
}

#[test]
fn no_room_stays_empty_that_an_open_ask_could_use() {
    let placements =
        [Placement::BestFit, Placement::WorstFit, Placement::Random, Placement::PowerOfTwo, Placement::Aligned];
    let with = |placement| {
        let mut preset = Preset::FIFO;
        preset.booked_mut().unwrap().by =
            Booker::Master { placement, reserve_after: Duration::from_secs(30), backfill: false, reclaim: None };
        preset
    };
    for preset in Preset::CENTRAL.iter().copied().chain(placements.map(with)) {
        for seed in 1..=30 {
            let mut model = Model::new(preset, seed);
            for step in 0..400 {
                match model.below(5) {
                    0 | 1 => {
                        let (job, open) = (model.below(JOBS as u32) as usize, u64::from(model.below(4)));
                        model.want(job, open);
                    }
                    _ => model.end_one(),
                }
                model.check(&format!("{preset:?}, seed {seed}, step {step}"));
            }
        }
    }
}
