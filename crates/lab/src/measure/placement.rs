//! The time of the scheduler at a job manager for a decision on a large cluster, and the costs of a new list of nodes: for the
//! master that makes it, and for a job manager that gets it.

use super::{OnCore, SEALING};
use amalgam_core::master::{Master, MasterSettings};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::{Preset, QueueChoice};
use amalgam_core::protocol::{
    Address, Ask, Message, NodeList, NodeReport, Registration, ToClient, ToJobManager, ToMaster,
};
use amalgam_core::role::{Event, Outbox, Role};
use amalgam_core::scheduling::LocalScheduler;
use amalgam_core::vocabulary::{
    AskId, Attributes, Chance, ClientId, Duration as Length, Epoch, ExecutionType, Instant, JobId, JobSpec, NodeId,
    Program, ResourceSpec, Resources, StageSpec, TaskSet,
};
use amalgam_sim::statistics::percentile;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const JOB: JobId = JobId(1);
const CORE: Resources = Resources::new(1_000, 1_024);
const CAPACITY: Resources = Resources::new(32_000, 131_072);

/// Times of the median round.
#[derive(Clone, Debug)]
pub struct Placing {
    /// To place one task; and the lower bound: to draw as many nodes and test the fit, without any scheduler.
    pub decision: Duration,
    pub draw: Duration,
    /// To make a ranked list of the nodes from their latest reports.
    pub list: Duration,
    /// For one job manager to start using the list.
    pub applied: Duration,
}

/// Places `tasks` tasks on `nodes` nodes in each round.
///
/// # Panics
/// If the master does not publish its nodes, which is a bug.
pub fn measure(nodes: u32, tasks: u32, rounds: usize) -> Placing {
    let mut master = Publisher::new(nodes);
    let QueueChoice::TopRanked { k } = choice() else { unreachable!("the preset ranks its nodes") };
    let mut scheduler = scheduler();
    let mut samples: [Vec<Duration>; 4] = Default::default();
    for round in 0..rounds {
        let (list, made) = master.publish();
        let watch = OnCore::start();
        black_box(scheduler.on_nodes(master.now, Arc::clone(&list)));
        let applied = watch.elapsed();
        // The totals of requested tasks grow.
        let wanted = u64::from(tasks) * (round as u64 + 1);
        scheduler.on_ask(Instant::ZERO, &Ask { wanted, needed: wanted, ..ask() });
        let watch = OnCore::start();
        black_box(scheduler.decide(master.now, u64::from(tasks)));
        let decision = watch.elapsed() / tasks;
        for (all, one) in samples.iter_mut().zip([decision, draw(&list, k, tasks), made, applied]) {
            all.push(one);
        }
    }
    let [decision, draw, list, applied] = samples.map(|mut of| {
        of.sort_unstable();
        percentile(&of, 50)
    });
    Placing { decision, draw, list, applied }
}

fn ask() -> Ask {
    Ask {
        id: AskId { job: JOB, number: 0 },
        resources: CORE,
        constraints: Arc::default(),
        execution: ExecutionType::Opportunistic,
        wanted: 0,
        needed: 0,
        rank: 1,
        priority: 0,
        is_gang: false,
        locality: Arc::default(),
        expected: None,
        limit: None,
        duplicates: 0,
    }
}

fn scheduler() -> LocalScheduler {
    let policy = choice().policy(Chance::new(1, "benchmark"));
    LocalScheduler::new(JOB, Epoch(1), std::iter::once(ask()), policy)
}

fn choice() -> QueueChoice {
    Preset::MERCURY.opportunistic().expect("the preset has opportunistic tasks").placement
}

/// The lower bound of a decision.
fn draw(list: &NodeList, k: u32, tasks: u32) -> Duration {
    let (mut chance, mut fitting) = (Chance::new(1, "floor"), 0_u32);
    let watch = OnCore::start();
    for _ in 0..tasks {
        let node = list.best[chance.below(k) as usize];
        fitting += u32::from(black_box(CORE).fits_in(&list.nodes[node as usize].capacity));
    }
    black_box(fitting);
    watch.elapsed() / tasks
}

/// A master with its nodes, which send random reports, and one job that gets their list.
struct Publisher {
    master: Master,
    nodes: u32,
    now: Instant,
    out: Outbox,
    chance: Chance,
}

impl Publisher {
    fn new(nodes: u32) -> Publisher {
        let master = Preset::MERCURY.master(Epoch(1), MasterSettings::default(), QueueTree::single(), SEALING);
        let chance = Chance::new(1, "benchmark");
        let mut publisher = Publisher { master, nodes, now: Instant(1), out: Outbox::default(), chance };
        for number in 0..nodes {
            publisher.join(number);
        }
        let stage = StageSpec {
            name: "only".to_owned(),
            tasks: TaskSet::Count(1),
            program: Arc::new(Program { command: vec!["true".into()], ..Program::default() }),
            resources: ResourceSpec { basic: CORE, custom: Vec::new() },
            ..StageSpec::default()
        };
        let spec = JobSpec { name: "benchmark".to_owned(), stages: vec![stage], ..JobSpec::default() };
        let submit = ToMaster::Submit { spec: Arc::new(spec), key: None };
        publisher.deliver(Address::Client(ClientId(1)), submit);
        let refused = publisher.out.sends.iter().find_map(|(_, message)| match message {
            Message::ToClient(ToClient::Refused(refusal)) => Some(&refusal.message),
            _ => None,
        });
        assert_eq!(refused, None, "the job is admitted");
        publisher
    }

    fn join(&mut self, number: u32) {
        let name = format!("n{number}");
        let node = self.master.name_node(&name, &mut self.out).expect("a cluster of its own has any number of nodes");
        let connected = Event::Connected { peer: Address::Node(node), incarnation: 0 };
        self.master.handle(self.now, connected, &mut self.out);
        let registration = Registration {
            number: 1,
            node,
            name,
            capacity: ResourceSpec { basic: CAPACITY, custom: Vec::new() },
            attributes: Attributes::default(),
            enforcement: Vec::new(),
            live: Vec::new(),
            program: None,
        };
        self.deliver(Address::Node(node), ToMaster::Register(Box::new(registration)));
        self.out.clear();
    }

    fn deliver(&mut self, from: Address, body: ToMaster) {
        self.master.handle(self.now, Event::Message { from, body }, &mut self.out);
    }

    /// All nodes report; then the master publishes the list. Also returns its time for that.
    fn publish(&mut self) -> (Arc<NodeList>, Duration) {
        for number in 0..self.nodes {
            let report = NodeReport {
                free: CAPACITY,
                expected_wait: Length(self.chance.below(10_000_000_u64)),
                running_work: Length(self.chance.below(10_000_000_u64)),
                ..NodeReport::default()
            };
            self.deliver(Address::Node(NodeId(number)), ToMaster::Report(Box::new(report)));
            self.out.clear();
        }
        self.now += MasterSettings::default().heartbeat_of(self.nodes as usize);
        let watch = OnCore::start();
        self.master.handle(self.now, Event::Wakeup, &mut self.out);
        let made = watch.elapsed();
        let list = self.out.sends.drain(..).find_map(|(_, message)| match message {
            Message::ToJobManager(ToJobManager::Nodes { list, .. }) => Some(list),
            _ => None,
        });
        (list.expect("nodes are published on heartbeats"), made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_are_measured() {
        let Placing { decision, list, applied, .. } = measure(100, 50, 3);
        assert!(decision > Duration::ZERO && list > Duration::ZERO && applied < list * 1_000);
    }

    /// Their list is published less often than every heartbeat.
    #[test]
    fn nodes_that_report_less_often_are_measured_as_well() {
        assert!(MasterSettings::default().heartbeat_of(10_001) > MasterSettings::default().heartbeat);
        assert!(measure(10_001, 50, 2).list > Duration::ZERO);
    }
}
