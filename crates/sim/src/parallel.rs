//! Runs work on several threads and reports the results in order, so that output does not depend on the number of
//! threads.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

/// Calls `work` for each number, and `report` with the results in the order of the numbers.
pub fn in_order<T: Send>(
    numbers: RangeInclusive<u64>,
    threads: usize,
    work: impl Fn(u64) -> T + Sync,
    mut report: impl FnMut(T),
) {
    let next = AtomicU64::new(*numbers.start());
    let (sender, done) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (next, numbers, work, sender) = (&next, &numbers, &work, sender.clone());
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if !numbers.contains(&number) || sender.send((number, work(number))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        for expected in numbers.clone() {
            while !early.contains_key(&expected) {
                let Ok((number, result)) = done.recv() else { return };
                early.insert(number, result);
            }
            early.remove(&expected).into_iter().for_each(&mut report);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_reported_in_order_even_if_later_ones_are_done_first() {
        for threads in [0, 1, 7] {
            let mut reported = Vec::new();
            let work = |number: u64| {
                std::thread::sleep(std::time::Duration::from_millis(20 - number));
                number * number
            };
            in_order(3..=12, threads, work, |square| reported.push(square));
            assert_eq!(reported, (3..=12).map(|number| number * number).collect::<Vec<u64>>());
        }
    }
}
