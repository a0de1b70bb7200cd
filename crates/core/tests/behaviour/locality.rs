//! What delay scheduling promises, on the master and against a plain model: no job leaves its input's nodes, and then
//! their racks, before its delays have passed; and no job waits for longer than both delays.

use amalgam_core::master::{Master, MasterSettings};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{Address, Ask, Holder, Message, Registration, ToJobManager, ToMaster};
use amalgam_core::role::{Event, Outbox, Role};
use amalgam_core::vocabulary::{
    AskId, Attributes, Chance, ClientId, Duration, Epoch, ExecutionType, GrantId, Instant, JobId, JobSpec, Key, Mac,
    NodeId, Program, ResourceSpec, Resources, Sealing, StageSpec, TaskSet,
};
use std::sync::Arc;

const NODES: u32 = 9;
const RACKS: u32 = 3;
const SEALING: Sealing = Sealing { root: Key([1; 32]), mac: Mac::MIXING };
const JOBS: usize = 8;
const CORE: Resources = Resources::new(1_000, 0);
/// Cores of each node.
const CORES: u32 = 2;

struct Model {
    master: Master,
    preset: Preset,
    out: Outbox,
    now: Instant,
    chance: Chance,
    jobs: Vec<ModelJob>,
    running: Vec<(GrantId, NodeId)>,
    /// Number of starts on a node with the input, in its rack, and elsewhere.
    starts: [u32; 3],
}

struct ModelJob {
    holders: Arc<Vec<Holder>>,
    wanted: u64,
    granted: u64,
    delayed_since: Instant,
}

impl ModelJob {
    /// 0 for a node with the input, 1 for its rack, 2 for others.
    fn distance(&self, node: NodeId) -> usize {
        let most = self.holders.iter().map(|holder| holder.bytes).max().expect("every job has input");
        let local = || self.holders.iter().filter(|holder| 2 * holder.bytes >= most).map(|holder| holder.node);
        if local().any(|holder| holder == node) {
            0
        } else if local().any(|holder| holder.0 % RACKS == node.0 % RACKS) {
            1
        } else {
            2
        }
    }
}

impl Model {
    fn new(preset: Preset, seed: u64) -> Model {
        let settings = MasterSettings { missed_heartbeats: u32::MAX, ..MasterSettings::default() };
        let mut model = Model {
            master: preset.master(Epoch(1), settings, QueueTree::single(), SEALING),
            preset,
            out: Outbox::default(),
            now: Instant(1),
            chance: Chance::new(seed, "locality"),
            jobs: Vec::new(),
            running: Vec::new(),
            starts: [0; 3],
        };
        (0..NODES).for_each(|node| model.register(node));
        (0..JOBS).for_each(|_| model.submit());
        model
    }

    fn register(&mut self, number: u32) {
        let name = format!("node-{number}");
        let node = self.master.name_node(&name, &mut self.out).expect("the number of nodes is not limited");
        let registration = Registration {
            number: 1,
            node,
            name,
            capacity: ResourceSpec { basic: Resources::new(CORES * 1_000, 0), custom: Vec::new() },
            attributes: Attributes::new([("rack".to_owned(), format!("r{}", number % RACKS))]),
            enforcement: Vec::new(),
            live: Vec::new(),
            program: None,
        };
        self.deliver(Event::Message { from: Address::Node(node), body: ToMaster::Register(Box::new(registration)) });
    }

    fn submit(&mut self) {
        let stage = StageSpec {
            name: "only".to_owned(),
            tasks: TaskSet::Count(1_000),
            program: Arc::new(Program { command: vec!["true".into()], ..Program::default() }),
            resources: ResourceSpec { basic: CORE, custom: Vec::new() },
            execution: ExecutionType::Guaranteed,
            ..StageSpec::default()
        };
        let spec = Arc::new(JobSpec { stages: vec![stage], ..JobSpec::default() });
        let body = ToMaster::Submit { spec, key: None };
        let holders = [(); 3].map(|()| Holder {
            node: NodeId(self.chance.below(NODES)),
            bytes: u64::from(1 + self.chance.below(100_u32)),
        });
        let delayed_since = self.now;
        self.jobs.push(ModelJob { holders: Arc::new(holders.to_vec()), wanted: 0, granted: 0, delayed_since });
        self.deliver(Event::Message { from: Address::Client(ClientId(1)), body });
    }

    fn want(&mut self, job: usize, open: u64) {
        let entry = &mut self.jobs[job];
        if entry.wanted == entry.granted {
            entry.delayed_since = self.now;
        }
        entry.wanted = entry.granted + open;
        let id = JobId(job as u64 + 1);
        let ask = Ask {
            id: AskId { job: id, number: 0 },
            resources: CORE,
            constraints: Arc::default(),
            execution: ExecutionType::Guaranteed,
            wanted: entry.wanted,
            needed: entry.wanted,
            rank: 0,
            priority: 0,
            is_gang: false,
            locality: Arc::clone(&entry.holders),
            expected: None,
            limit: None,
            duplicates: 0,
        };
        let body = ToMaster::Demand { job: id, asks: vec![ask], work: Box::default() };
        self.deliver(Event::Message { from: Address::JobManager(id), body });
    }

    fn end_one(&mut self) {
        if !self.running.is_empty() {
            let at = self.chance.below(self.running.len() as u32) as usize;
            let (grant, node) = self.running.swap_remove(at);
            self.deliver(Event::Message {
                from: Address::Node(node),
                body: ToMaster::Freed { grants: vec![grant], unfinished: false },
            });
        }
    }

    fn deliver(&mut self, event: Event<ToMaster>) {
        self.master.handle(self.now, event, &mut self.out);
        for (to, message) in std::mem::take(&mut self.out).sends {
            let (Address::JobManager(id), Message::ToJobManager(ToJobManager::Granted { grants })) = (to, message)
            else {
                continue;
            };
            for grant in grants {
                self.running.push((grant.id, grant.node));
                self.on_start(id.0 as usize - 1, grant.node);
            }
        }
    }

    fn on_start(&mut self, job: usize, node: NodeId) {
        let entry = &mut self.jobs[job];
        entry.granted += 1;
        let (distance, waited) = (entry.distance(node), self.now.since(entry.delayed_since));
        let delays = self.preset.booked().unwrap().delays;
        let least = [Duration::ZERO, delays.node, delays.node + delays.rack][distance];
        assert!(waited >= least, "job {job} left its input by {distance} after {waited}");
        if distance == 0 {
            entry.delayed_since = self.now;
        }
        self.starts[distance] += 1;
    }

    /// Lets time pass, with all wake-ups in between.
    fn pass(&mut self, length: Duration) {
        let until = self.now + length;
        while let Some(at) = self.master.next_wakeup().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.deliver(Event::Wakeup);
            self.check();
        }
        self.now = until;
    }

    /// Checks that no job waits that may take some room.
    fn check(&self) {
        let delays = self.preset.booked().unwrap().delays;
        for (number, job) in self.jobs.iter().enumerate().filter(|(_, job)| job.wanted > job.granted) {
            let waited = self.now.since(job.delayed_since);
            let reach = usize::from(waited >= delays.node) + usize::from(waited >= delays.node + delays.rack);
            for node in (0..NODES).map(NodeId) {
                let running = self.running.iter().filter(|(_, at)| *at == node).count() as u32;
                let idle = running < CORES && job.distance(node) <= reach;
                assert!(!idle, "job {number} has waited for {waited} although {node} has room within its reach");
            }
        }
    }
}

#[test]
fn no_job_leaves_its_input_too_early_or_waits_for_it_too_long() {
    for preset in Preset::CENTRAL.iter().copied() {
        let mut starts = [0; 3];
        for seed in 1..=10 {
            let mut model = Model::new(preset, seed);
            for _ in 0..400 {
                match model.chance.below(5_u32) {
                    0 => {
                        let (job, open) = (model.chance.below(JOBS as u32) as usize, model.chance.below(5_u32));
                        model.want(job, u64::from(open));
                    }
                    1 => model.end_one(),
                    _ => {
                        let length = Duration::from_millis(u64::from(model.chance.below(2_000_u32)));
                        model.pass(length);
                    }
                }
                model.check();
            }
            starts.iter_mut().zip(model.starts).for_each(|(all, more)| *all += more);
        }
        assert!(starts.iter().all(|&starts| starts > 20), "{}: {starts:?}", preset.name());
    }
}
