//! Reports: the totals of some days, by user, queue and day.

use super::Counts;
use super::days::Days;
use crate::api::{Report, ReportRow};
use crate::dates::{By, date};
use std::collections::BTreeMap;
use std::io;

pub(super) struct Filter {
    pub from: u64,
    pub to: u64,
    /// Only this user's.
    pub user: Option<String>,
}

/// The day, the user and the queue of a row, as far as they are wanted.
type Key = (Option<u64>, Option<String>, Option<String>);

/// Reads one day after the other, and keeps one row for each combination that is wanted.
pub(super) fn report(days: &Days, filter: &Filter, by: By) -> io::Result<Report> {
    let mut rows: BTreeMap<Key, Counts> = BTreeMap::new();
    let wanted = days.stored()?.into_iter().filter(|day| (filter.from..=filter.to).contains(day));
    for day in wanted {
        for ((user, queue), counts) in days.load(day)?.rows {
            if filter.user.as_ref().is_none_or(|only| *only == user) {
                let key = (by.day.then_some(day), by.user.then_some(user), by.queue.then_some(queue));
                rows.entry(key).or_default().add(&counts);
            }
        }
    }
    let row = |((day, user, queue), counts): (Key, Counts)| ReportRow {
        day: day.map(date),
        user,
        queue,
        ..of_counts(&counts)
    };
    let rows = rows.into_iter().map(row).collect();
    Ok(Report { from: date(filter.from), to: date(filter.to), rows })
}

fn of_counts(counts: &Counts) -> ReportRow {
    /// Milliseconds of an hour.
    const HOUR: f64 = 3_600e3;
    let cpu_hours = |amount: u64| amount as f64 / 1e3 / HOUR;
    let gib_hours = |amount: u64| amount as f64 / 1_024.0 / HOUR;
    let waited = counts.waited as f64 / 1e3;
    ReportRow {
        day: None,
        user: None,
        queue: None,
        jobs: counts.jobs,
        tasks: counts.tasks,
        attempts: counts.attempts,
        cpu_hours_asked: cpu_hours(counts.cpu_asked),
        cpu_hours_used: cpu_hours(counts.cpu_used),
        memory_gib_hours_asked: gib_hours(counts.memory_asked),
        memory_gib_hours_used: gib_hours(counts.memory_used),
        starts: counts.starts,
        wait_seconds: waited,
        mean_wait_seconds: (counts.starts > 0).then(|| waited / counts.starts as f64),
        preempted: counts.preempted,
        cpu_hours_preempted: cpu_hours(counts.cpu_preempted),
        lost: counts.lost,
        cpu_hours_lost: cpu_hours(counts.cpu_lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_summed_over_what_is_not_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut days = Days::open(dir.path(), 0, 400).unwrap();
        let hour = 1_000 * 3_600 * 1_000;
        let mut add = |day, user, queue, hours: u64| {
            let counts = Counts { cpu_asked: hours * hour, starts: 2, waited: 3_000, ..Counts::default() };
            days.add(0, day, (user, queue), &counts);
        };
        add(100, "ada", "a", 1);
        add(100, "bob", "a", 2);
        add(101, "ada", "b", 4);
        add(102, "ada", "a", 8);
        days.save(1).unwrap();
        let of = |by: By, user: Option<&str>, (from, to): (u64, u64)| {
            let filter = Filter { from, to, user: user.map(str::to_owned) };
            let rows = report(&days, &filter, by).unwrap().rows;
            rows.into_iter().map(|row| (row.user.or(row.queue).or(row.day), row.cpu_hours_asked)).collect::<Vec<_>>()
        };
        let named = |name: &str, hours: f64| (Some(name.to_owned()), hours);
        let user = By { user: true, ..By::default() };
        assert_eq!(of(user, None, (100, 102)), [named("ada", 13.0), named("bob", 2.0)]);
        assert_eq!(of(user, Some("bob"), (100, 102)), [named("bob", 2.0)]);
        assert_eq!(of(By { queue: true, ..By::default() }, None, (100, 101)), [named("a", 3.0), named("b", 4.0)]);
        let day = By { day: true, ..By::default() };
        assert_eq!(of(day, None, (101, 102)), [named(&date(101), 4.0), named(&date(102), 8.0)]);
        assert_eq!(of(By::default(), None, (0, 99)), []);
        let all = report(&days, &Filter { from: 0, to: 200, user: None }, By::default()).unwrap().rows;
        assert_eq!((all[0].starts, all[0].wait_seconds, all[0].mean_wait_seconds), (8, 12.0, Some(1.5)));
    }
}
