//! Many seeds on several threads, told in the order of the seeds.

use super::{Report, run_seed};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

/// Runs each seed and hands on its report, in the order of the seeds whatever the number of threads.
pub fn run_seeds(seeds: RangeInclusive<u64>, threads: usize, mut tell: impl FnMut(Report)) {
    let next = AtomicU64::new(*seeds.start());
    let (sender, reports) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (next, seeds, sender) = (&next, &seeds, sender.clone());
            scope.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if !seeds.contains(&seed) || sender.send(run_seed(seed)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut early: BTreeMap<u64, Report> = BTreeMap::new();
        for expected in seeds.clone() {
            while !early.contains_key(&expected) {
                let Ok(report) = reports.recv() else { return };
                early.insert(report.seed, report);
            }
            early.remove(&expected).into_iter().for_each(&mut tell);
        }
    });
}
