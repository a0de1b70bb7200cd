//! The time of a node to compute how long a task of any size would wait there.

use amalgam_cli::failure::Result;
use amalgam_core::policy::node_queue::projection::{Use, Workload};
use amalgam_core::vocabulary::{Chance, Duration, Resources};
use amalgam_sim::statistics::{median, percentile, sorted};
use clap::Args;
use std::hint::black_box;
use std::time::Instant;

const NODES: usize = 200;
const REPEATED: usize = 20;
/// Maximum microseconds with a hundred waiting tasks.
const ASKED: f64 = 20.0;

#[derive(Args)]
pub struct WaitsArgs {
    /// Tasks that wait at each node
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    queued: u32,
}

pub fn execute(args: &WaitsArgs) -> Result<()> {
    let mut chance = Chance::new(1, "waits");
    let kinds = [("alike", 1), ("of five kinds", 5), ("all different", u32::MAX)];
    say!(
        "a node of 32 cores and 128 GiB, full of tasks, at which {} wait; microseconds, of {NODES} nodes",
        args.queued
    );
    for (name, kinds) in kinds {
        let nodes: Vec<Node> = (0..NODES).map(|_| Node::random(&mut chance, args.queued, kinds)).collect();
        let (lasting, mut bytes) = (Duration::from_secs(20), 0);
        let matrix = nodes.iter().map(|node| {
            least(|| {
                let matrix = node.workload().waits(lasting);
                bytes = matrix.bytes();
                black_box(matrix);
            })
        });
        let matrix = sorted(matrix);
        // The lower bound: each task is looked at once, and its end is inserted among the others.
        let floor = nodes.iter().map(|node| {
            least(|| {
                let mut ends: Vec<Duration> = node.running.iter().chain(&node.queued).map(|one| one.lasting).collect();
                ends.sort_unstable();
                black_box(ends);
            })
        });
        let floor = median(floor);
        let at = |percent: u32| percentile(&matrix, percent);
        say!(
            "{name}: the matrix p50 {:.1}, p95 {:.1}, max {:.1}, of {bytes} bytes; {ASKED} are required for 100; putting the ends in order p50 {:.1}",
            at(50),
            at(95),
            at(100),
            floor
        );
    }
    Ok(())
}

/// Microseconds, without interruptions by the machine.
fn least(mut work: impl FnMut()) -> f64 {
    let once = |_| {
        let started = Instant::now();
        work();
        started.elapsed().as_secs_f64() * 1e6
    };
    (0..REPEATED).map(once).fold(f64::INFINITY, f64::min)
}

struct Node {
    capacity: Resources,
    running: Vec<Use>,
    queued: Vec<Use>,
}

impl Node {
    fn random(chance: &mut Chance, queued: u32, kinds: u32) -> Node {
        let capacity = Resources::new(32_000, 131_072);
        let draw = |chance: &mut Chance| Use {
            resources: Resources::new(250 + chance.below(4_000_u32), 512 + chance.below(16_384_u32)),
            lasting: Duration::from_millis(100 + chance.below(60_000_u64)),
        };
        let drawn: Vec<Use> = (0..kinds.min(queued.max(1))).map(|_| draw(chance)).collect();
        let one = |chance: &mut Chance| match kinds {
            u32::MAX => draw(chance),
            kinds => drawn[chance.below(kinds.min(queued.max(1))) as usize],
        };
        let mut running: Vec<Use> = Vec::new();
        let mut free = capacity;
        loop {
            let next = one(chance);
            if !next.resources.fits_in(&free) {
                break;
            }
            free = free.saturating_sub(&next.resources);
            running.push(Use { lasting: Duration(1 + chance.below(next.lasting.0)), ..next });
        }
        Node { capacity, running, queued: (0..queued).map(|_| one(chance)).collect() }
    }

    fn workload(&self) -> Workload<'_> {
        Workload { capacity: &self.capacity, running: &self.running, queued: &self.queued }
    }
}
