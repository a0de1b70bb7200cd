//! When which role wants to be woken.

use crate::protocol::Address;
use crate::vocabulary::Instant;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub struct Wakeups {
    at: BTreeMap<Address, Instant>,
    order: BTreeSet<(Instant, Address)>,
    /// The first of `order`: it is asked for after every turn.
    next: Option<Instant>,
    /// What was set last: most processes host one role, and it wants to be woken when it wanted before.
    last: Option<(Address, Option<Instant>)>,
}

impl Wakeups {
    pub fn set(&mut self, address: Address, wakeup: Option<Instant>) {
        if self.last.replace((address, wakeup)) == Some((address, wakeup)) {
            return;
        }
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

    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    pub fn pop_due(&mut self, now: Instant) -> Option<Address> {
        self.next.filter(|at| *at <= now)?;
        let (_, address) = self.order.pop_first()?;
        self.at.remove(&address);
        self.last = None;
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

    #[test]
    fn the_earliest_is_woken_once_and_a_later_word_replaces_an_earlier() {
        let mut wakeups = Wakeups::default();
        wakeups.set(Address::Master, Some(Instant(5)));
        wakeups.set(Address::Master, Some(Instant(9)));
        assert_eq!((wakeups.next(), wakeups.pop_due(Instant(8))), (Some(Instant(9)), None));
        assert_eq!(wakeups.pop_due(Instant(9)), Some(Address::Master));
        assert_eq!((wakeups.next(), wakeups.pop_due(Instant(99))), (None, None));
    }
}
