//! How long planning takes: `cargo test --release -p amalgam-core --test plan_time -- --ignored --nocapture`.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use amalgam_core::policy::intra_job::dagps::Search;
use amalgam_core::policy::intra_job::{Order, StageWork, pack, plan};
use amalgam_core::vocabulary::{Chance, Duration, Resources, Totals};
use std::time::Instant;

/// A hundred stages of a thousand tasks each. `running` tasks run, no two of which end together.
fn job(chance: &mut Chance, running: u32, is_after: &mut dyn FnMut(u32, u32, &mut Chance) -> bool) -> Vec<StageWork> {
    let mut stages: Vec<StageWork> = Vec::new();
    for index in 0..100 {
        stages.push(StageWork {
            resources: Resources::new(500 + chance.below(501_u32), 1_000 + chance.below(1_501_u32)),
            duration: Duration(1_000_000 + chance.below(60_000_000_u64)),
            unstarted: 1_000,
            running: Vec::new(),
            after: (0..index).filter(|&before| is_after(index, before, chance)).collect(),
            ..StageWork::default()
        });
    }
    stages[0].running = (0..running).map(|_| (Duration(chance.below(60_000_000_u64)), 1)).collect();
    stages
}

/// The best of five runs, in microseconds.
fn time<T>(mut work: impl FnMut() -> T) -> u128 {
    let once = |_| {
        let started = Instant::now();
        std::hint::black_box(work());
        started.elapsed().as_micros()
    };
    (0..5).map(once).min().unwrap_or(0)
}

#[test]
#[ignore = "measures time"]
fn a_plan_of_a_hundred_thousand_tasks_takes_less_than_a_millisecond() {
    let mut chance = Chance::new(3, "plan time");
    for running in [0, 2_000] {
        let jobs = [
            ("independent", job(&mut chance, running, &mut |_, _, _| false)),
            ("one after the other", job(&mut chance, running, &mut |index, before, _| index == before + 1)),
            ("at random", job(&mut chance, running, &mut |_, _, chance| chance.below(20_u32) == 0)),
            ("ten layers of ten", job(&mut chance, running, &mut |index, before, _| before / 10 + 1 == index / 10)),
        ];
        for (name, stages) in &jobs {
            for slots in [1, 100, 2_000] {
                let share = Totals(Resources::new(1_000 * slots, 2_500 * slots).0.map(u64::from));
                for order in [Order::BreadthFirst, Order::CriticalPath, Order::Packing] {
                    let (packed, planned) =
                        (time(|| pack(stages, &share, &order)), time(|| plan(stages, &share, &order)));
                    println!("{name}, {running} run, {slots} slots, {order:?}: pack {packed} us, plan {planned} us");
                }
            }
            let share = Totals(Resources::new(100_000, 250_000).0.map(u64::from));
            let mut search = Search::new(stages.clone(), &share);
            let mut pieces = Vec::new();
            let mut goes_on = true;
            while goes_on {
                let started = Instant::now();
                goes_on = search.go_on();
                pieces.push(started.elapsed().as_micros());
            }
            let (all, longest) = (pieces.iter().sum::<u128>(), pieces.iter().max().copied().unwrap_or(0));
            println!("{name}, {running} run, 100 slots: dagps {all} us in pieces of at most {longest} us");
        }
    }
}
