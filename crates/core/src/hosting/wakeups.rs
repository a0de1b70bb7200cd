//! The times at which roles have to be woken.

use crate::protocol::Address;
use crate::vocabulary::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// Most processes host one role, which needs no order, and a simulation visits thousands of them in turn.
pub enum Wakeups {
    One(Option<(Address, Instant)>),
    Many(Box<Many>),
}

#[derive(Default)]
pub struct Many {
    at: BTreeMap<Address, Instant>,
    order: BTreeSet<(Instant, Address)>,
    /// The first of `order`, which is read after every turn.
    next: Option<Instant>,
}

impl Default for Wakeups {
    fn default() -> Wakeups {
        Wakeups::One(None)
    }
}

impl Wakeups {
    pub fn set(&mut self, address: Address, wakeup: Option<Instant>) {
        match self {
            Wakeups::One(Some((other, at))) if *other != address => {
                let mut many = Many::default();
                many.set(*other, Some(*at));
                many.set(address, wakeup);
                *self = Wakeups::Many(Box::new(many));
            }
            Wakeups::One(one) => *one = wakeup.map(|at| (address, at)),
            Wakeups::Many(many) => many.set(address, wakeup),
        }
    }

    pub fn next(&self) -> Option<Instant> {
        match self {
            Wakeups::One(one) => one.map(|(_, at)| at),
            Wakeups::Many(many) => many.next,
        }
    }

    pub fn pop_due(&mut self, now: Instant) -> Option<Address> {
        match self {
            Wakeups::One(one) => one.take_if(|(_, at)| *at <= now).map(|(address, _)| address),
            Wakeups::Many(many) => many.pop_due(now),
        }
    }
}

impl Many {
    fn set(&mut self, address: Address, wakeup: Option<Instant>) {
        let old = match wakeup {
            Some(at) => self.at.insert(address, at),
            None => self.at.remove(&address),
        };
        if old == wakeup {
            return;
        }
        if let Some(old) = old {
            self.order.remove(&(old, address));
        }
        if let Some(at) = wakeup {
            self.order.insert((at, address));
        }
        self.find_next();
    }

    fn pop_due(&mut self, now: Instant) -> Option<Address> {
        self.next.filter(|at| *at <= now)?;
        let (_, address) = self.order.pop_first()?;
        self.at.remove(&address);
        self.find_next();
        Some(address)
    }

    fn find_next(&mut self) {
        self.next = self.order.first().map(|(at, _)| *at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::JobId;

    #[test]
    fn the_earliest_is_woken_once_and_a_new_time_replaces_the_old_one() {
        let mut wakeups = Wakeups::default();
        wakeups.set(Address::Master, Some(Instant(5)));
        wakeups.set(Address::Master, Some(Instant(9)));
        assert_eq!((wakeups.next(), wakeups.pop_due(Instant(8))), (Some(Instant(9)), None));
        assert_eq!(wakeups.pop_due(Instant(9)), Some(Address::Master));
        assert_eq!((wakeups.next(), wakeups.pop_due(Instant(99))), (None, None));
    }

    #[test]
    fn several_are_woken_in_order() {
        let mut wakeups = Wakeups::default();
        let jobs = [3, 1, 2].map(|number| Address::JobManager(JobId(number)));
        for (at, job) in (7..).zip(jobs) {
            wakeups.set(job, Some(Instant(at)));
        }
        wakeups.set(jobs[1], None);
        assert_eq!((wakeups.next(), wakeups.pop_due(Instant(9))), (Some(Instant(7)), Some(jobs[0])));
        assert_eq!((wakeups.pop_due(Instant(9)), wakeups.pop_due(Instant(9))), (Some(jobs[2]), None));
    }
}
