//! Costs of a global master with 50,000 nodes for each task and each message of a cluster (Megha, section IV): a match with eight
//! constraints, compared with a scan of all nodes; a full update; an update about 100 nodes.

use amalgam_core::dispatch::DispatchSettings;
use amalgam_core::global_master::GlobalMaster;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::policy::placement::Partitions;
use amalgam_core::policy::{Budget, Decision, OpenAsk, PlacementPolicy};
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{Address, ClusterUpdate, NodeNews, Since, ToGlobalMaster};
use amalgam_core::role::{Event, Outbox, Role};
use amalgam_core::scheduling::{Booking, Ledger};
use amalgam_core::vocabulary::{
    Attributes, Chance, ClusterId, Constraint, Epoch, ExecutionType, Federation, GlobalId, GrantId, Instant, JobId,
    Kinds, NodeId, NodeViews, Resources,
};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;

const CLUSTERS: u32 = 10;
const NODES: u32 = 50_000;
/// The paper's nodes: 64 cores and 16 GB.
const CAPACITY: Resources = Resources::new(64_000, 16_384);
const TASK: Resources = Resources::new(1_000, 256);
const OWN: GlobalId = GlobalId(3);
/// Number of constraints of a task, of 21 possible ones.
const CONSTRAINTS: usize = 8;

fn federation() -> Federation {
    Federation::new(CLUSTERS, CLUSTERS, NODES / CLUSTERS).unwrap()
}

/// A node meets each of 21 constraints with a probability of three quarters.
fn attributes(chance: &mut Chance) -> Arc<Attributes> {
    let pairs = (0..21).map(|name| (format!("c{name}"), u8::from(chance.below(4_u64) > 0).to_string()));
    Arc::new(Attributes::new(pairs))
}

fn all_attributes() -> Vec<Arc<Attributes>> {
    let mut chance = Chance::new(7, "attributes");
    (0..NODES).map(|_| attributes(&mut chance)).collect()
}

fn constraints() -> Arc<Vec<Constraint>> {
    Arc::new((0..CONSTRAINTS).map(|name| Constraint::parse(&format!("c{name}=1")).unwrap()).collect())
}

fn suits(attributes: &Attributes) -> bool {
    constraints().iter().all(|constraint| constraint.is_met_by(attributes))
}

/// A node has no room for a task if `is_full` is true for its attributes.
fn ledger(is_full: impl Fn(&Attributes) -> bool) -> Ledger {
    let mut ledger = Ledger::new();
    for (node, attributes) in (0..).map(NodeId).zip(all_attributes()) {
        let full = is_full(&attributes);
        ledger.join(node, CAPACITY, attributes);
        ledger.set_open(node, true);
        if full {
            let grant = GrantId { epoch: Epoch(1), number: u64::from(node.0), slot: ledger.next_slot() };
            let resources = CAPACITY.saturating_sub(&Resources::new(999, 16_384));
            ledger.claim(Booking { grant, job: JobId(1), node, resources }).unwrap();
        }
    }
    ledger.tighten();
    ledger
}

/// The work of a search without any index.
fn scan(ledger: &Ledger, constraints: &[Constraint]) -> Option<usize> {
    (0..ledger.len()).find(|&index| {
        let node = ledger.node(index);
        let attributes = ledger.attributes(node);
        constraints.iter().all(|constraint| constraint.is_met_by(attributes)) && TASK.fits_in(&ledger.offer(node))
    })
}

fn matches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("match of 8 constraints over 50,000 nodes");
    let (empty, full, full_where_it_suits) = (ledger(|_| false), ledger(|_| true), ledger(suits));
    let cases = [("empty", empty), ("full", full), ("full where it suits", full_where_it_suits)];
    for (name, mut ledger) in cases {
        let (constraints, mut out) = (constraints(), Vec::new());
        let class = ledger.class(&constraints);
        let expected = None;
        let (execution, slot, count, probes) = (ExecutionType::Guaranteed, 0, 1, 0);
        let ask = OpenAsk { slot, shape: TASK, class, count, probes, execution, expected };
        let mut policy = Partitions::new(federation(), OWN, None);
        let mut place = || {
            out.clear();
            policy.place(Instant::ZERO, &[ask], Budget { starts: 1 }, &ledger, &mut out);
            matches!(out[0], Decision::Start { .. })
        };
        assert_eq!(place(), scan(&ledger, &constraints).is_some(), "{name}");
        group.bench_function(name, |bencher| bencher.iter(&mut place));
        group.bench_function(format!("{name}, by a scan"), |bencher| {
            bencher.iter(|| scan(black_box(&ledger), &constraints))
        });
    }
    group.bench_function("a set of constraints that is new", |bencher| {
        let ledger = || {
            let mut ledger = ledger(|_| false);
            for one in constraints().iter() {
                ledger.class(&Arc::new(vec![one.clone()]));
            }
            ledger
        };
        bencher.iter_batched_ref(ledger, |ledger| ledger.class(&constraints()), BatchSize::LargeInput);
    });
    group.finish();
}

fn reported(cluster: ClusterId, since: Since, version: u64, nodes: Vec<NodeNews>) -> Event<ToGlobalMaster> {
    let reported = ClusterUpdate {
        cluster,
        life: Epoch(1),
        since,
        version,
        seen: 0,
        freed: Vec::new(),
        refused: Vec::new(),
        nodes,
        usage: Vec::new(),
        is_settled: true,
        spared: Vec::new(),
    };
    Event::Message { from: Address::ClusterMaster(cluster), body: ToGlobalMaster::ClusterUpdate(Box::new(reported)) }
}

fn room(node: NodeId, free: Resources) -> NodeNews {
    NodeNews::Room { node, free, closed_reason: None, held: Box::default(), kept_for: None }
}

/// The full state, as in the answers to the global master's introductions.
fn everything(attributes: &[Arc<Attributes>]) -> Vec<Event<ToGlobalMaster>> {
    let of_cluster = |cluster: ClusterId| {
        let nodes = federation().nodes_of(cluster).map(NodeId).flat_map(|node| {
            let attributes = Arc::clone(&attributes[node.0 as usize]);
            let joined = NodeNews::Joined { node, name: format!("n{}", node.0), capacity: CAPACITY, attributes };
            [joined, room(node, CAPACITY)]
        });
        let introduction = u64::from(global_epoch().0) << 32 | (u64::from(cluster.0) + 1);
        let since = Since::Nothing { introduction, kinds: Kinds::new(), held: Vec::new() };
        reported(cluster, since, 1, nodes.collect())
    };
    federation().clusters().map(of_cluster).collect()
}

fn global_epoch() -> Epoch {
    Epoch::of_host(OWN.host(), 1).unwrap()
}

/// A global master that has introduced itself everywhere and knows no node yet.
fn global_master() -> GlobalMaster {
    let settings = DispatchSettings::default();
    let mut global = Preset::MEGHA.global_master(global_epoch(), (federation(), OWN), settings, QueueTree::single());
    for cluster in federation().clusters() {
        let connected = Event::Connected { peer: Address::ClusterMaster(cluster), incarnation: 1 };
        global.handle(Instant::ZERO, connected, &mut Outbox::default());
    }
    global
}

fn hear(global: &mut GlobalMaster, words: Vec<Event<ToGlobalMaster>>) {
    for word in words {
        let mut out = Outbox::default();
        global.handle(Instant::ZERO, word, &mut out);
        assert!(out.records.is_empty(), "{:?}", out.records);
    }
}

type Known = (String, Arc<Attributes>);

/// The least work for these messages; anything more is overhead of the global master.
fn put_into_vectors(words: Vec<Event<ToGlobalMaster>>) -> (Vec<Known>, Vec<[Resources; 2]>) {
    let (mut known, mut rooms) = (Vec::new(), Vec::new());
    for word in words {
        let Event::Message { body: ToGlobalMaster::ClusterUpdate(reported), .. } = word else {
            unreachable!("nothing else is told")
        };
        for news in reported.nodes {
            match news {
                NodeNews::Joined { name, capacity, attributes, .. } => {
                    known.push((name, attributes));
                    rooms.push([capacity, Resources::ZERO]);
                }
                NodeNews::Room { node, free, .. } => rooms[node.0 as usize][1] = free,
                NodeNews::Away { .. } | NodeNews::Removed { .. } => unreachable!("all nodes are there"),
            }
        }
    }
    (known, rooms)
}

fn words(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("words of clusters with 50,000 nodes");
    let attributes = all_attributes();
    group.sample_size(20);
    group.bench_function("everything", |bencher| {
        let setup = || (global_master(), everything(&attributes));
        bencher.iter_batched(
            setup,
            |(mut global, words)| {
                hear(&mut global, words);
                global
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("everything, only put into vectors", |bencher| {
        bencher.iter_batched(|| everything(&attributes), put_into_vectors, BatchSize::PerIteration);
    });
    group.bench_function("everything once more", |bencher| {
        let mut global = global_master();
        hear(&mut global, everything(&attributes));
        bencher.iter_batched(|| everything(&attributes), |words| hear(&mut global, words), BatchSize::PerIteration);
    });
    group.bench_function("of 100 nodes", |bencher| {
        let mut global = global_master();
        hear(&mut global, everything(&attributes));
        let mut version = 1;
        let delta = || {
            let free = if version % 2 == 0 { CAPACITY } else { TASK };
            let nodes = (0..100).map(|node| room(NodeId(node * 49), free)).collect();
            version += 1;
            reported(ClusterId(0), Since::Version(version - 1), version, nodes)
        };
        bencher.iter_batched(delta, |word| hear(&mut global, vec![word]), BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group!(benches, matches, words);
criterion_main!(benches);
