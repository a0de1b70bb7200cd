//! The time of the scheduler at a job manager to choose the node that completes a task first, on a large cluster, and the memory
//! of the expected waits of all its nodes.

use super::OnCore;
use amalgam_core::policy::node_queue::projection::{Use, Workload};
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{Ask, ListedNode, ListedWaits, NodeList, NodeReport};
use amalgam_core::scheduling::{Allowed, LocalScheduler};
use amalgam_core::vocabulary::{
    AskId, Chance, Duration as Length, Epoch, ExecutionType, Instant, JobId, NodeWaits, Resources, Totals,
};
use amalgam_sim::statistics::percentile;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

const CORE: Resources = Resources::new(1_000, 1_024);
const CAPACITY: Resources = Resources::new(32_000, 131_072);
/// Nodes with different queues; each of the others equals one of them.
const DIFFERENT: usize = 500;

#[derive(Clone, Copy, Debug)]
pub struct Estimating {
    /// Time to place one task, in the median round; and the lower bound: to look up the waits that this needs.
    pub placed: Duration,
    pub lookups: Duration,
    /// Size of the waits of all nodes.
    pub bytes: usize,
}

/// Places `tasks` tasks on `nodes` nodes with the preset in each round. On about half of the nodes small tasks have to wait.
pub fn measure(preset: &Preset, nodes: u32, tasks: u32, rounds: usize) -> Estimating {
    let list = Arc::new(list(nodes));
    let bytes = list.nodes.iter().filter_map(|node| node.waits.as_ref()).map(|waits| waits.waits.matrix.bytes()).sum();
    let settings = preset.entitled().expect("its job managers estimate");
    let policy = settings.choice.policy(Chance::new(1, "benchmark"));
    let mut scheduler = LocalScheduler::new(JobId(1), Epoch(1), std::iter::once(ask(0)), policy);
    let mut now = Instant(1);
    let (mut placed, mut lookups) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        now += Length::from_secs(1);
        scheduler.on_nodes(now, Arc::clone(&list));
        scheduler.on_ask(Instant::ZERO, &ask(u64::from(tasks) * (round as u64 + 1)));
        let execution = ExecutionType::Guaranteed;
        let allowed = Allowed { execution, room: Totals([u64::MAX; 16]), one_goes: false };
        let watch = OnCore::start();
        scheduler.advance(now);
        let steps = black_box(scheduler.decide_batches(now, allowed, &|_, _, _| None));
        placed.push(watch.elapsed() / steps.len().max(1) as u32);
        lookups.push(look_up(&list, tasks));
    }
    let median = |mut of: Vec<Duration>| {
        of.sort_unstable();
        percentile(&of, 50)
    };
    Estimating { placed: median(placed), lookups: median(lookups), bytes }
}

fn ask(wanted: u64) -> Ask {
    Ask {
        id: AskId { job: JobId(1), number: 0 },
        resources: CORE,
        constraints: Arc::default(),
        execution: ExecutionType::Auto,
        wanted,
        needed: wanted,
        rank: 1,
        priority: 0,
        is_gang: false,
        locality: Arc::default(),
        expected: None,
        limit: None,
        duplicates: 0,
    }
}

/// Looks up two waits for each task, like the draws of the policy.
fn look_up(list: &NodeList, tasks: u32) -> Duration {
    let mut chance = Chance::new(1, "floor");
    let watch = OnCore::start();
    for _ in 0..2 * tasks {
        let node = &list.nodes[chance.below(list.nodes.len() as u64) as usize];
        black_box(node.rank());
    }
    watch.elapsed() / tasks
}

fn list(nodes: u32) -> NodeList {
    let mut chance = Chance::new(1, "benchmark");
    let different: Vec<Arc<NodeWaits>> = (0..DIFFERENT).map(|_| Arc::new(waits(&mut chance))).collect();
    let listed = |number: usize| ListedNode {
        closed_reason: None,
        capacity: CAPACITY,
        attributes: Arc::default(),
        report: NodeReport::default(),
        // Each node has its own copy, as if it had been received.
        waits: Some(ListedWaits {
            waits: Arc::new((*different[number % DIFFERENT]).clone()),
            age: Length::ZERO,
            silent_for: Length::ZERO,
        }),
    };
    let nodes: Vec<ListedNode> = (0..nodes as usize).map(listed).collect();
    let mut best: Vec<u32> = (0..nodes.len() as u32).collect();
    best.sort_by_key(|node| (nodes[*node as usize].rank(), *node));
    NodeList { nodes, best, every: Length::from_secs(1), ..NodeList::default() }
}

fn waits(chance: &mut Chance) -> NodeWaits {
    let mut draw = || Use {
        resources: Resources::new(250 + chance.below(4_000_u32), 512 + chance.below(16_384_u32)),
        lasting: Length::from_millis(100 + chance.below(60_000_u64)),
    };
    let running: Vec<Use> = (0..12).map(|_| draw()).collect();
    let queued: Vec<Use> = (0..10).map(|_| draw()).collect();
    let matrix = Workload { capacity: &CAPACITY, running: &running, queued: &queued }.waits(Length::from_secs(20));
    NodeWaits { matrix, ..NodeWaits::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_are_measured() {
        for preset in [Preset::APOLLO, Preset::APOLLO_PLUS] {
            let measured = measure(&preset, 200, 100, 2);
            assert!(measured.placed > Duration::ZERO && measured.lookups > Duration::ZERO);
            assert!((200 * 500..200 * 700).contains(&measured.bytes), "{}", measured.bytes);
        }
    }
}
