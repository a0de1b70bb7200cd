//! When which role wants to be woken.

use crate::protocol::Address;
use crate::vocabulary::Instant;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub struct Wakeups {
    at: BTreeMap<Address, Instant>,
    order: BTreeSet<(Instant, Address)>,
}

impl Wakeups {
    pub fn set(&mut self, address: Address, wakeup: Option<Instant>) {
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
    }

    pub fn next(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    pub fn pop_due(&mut self, now: Instant) -> Option<Address> {
        let &(at, address) = self.order.first().filter(|(at, _)| *at <= now)?;
        self.order.remove(&(at, address));
        self.at.remove(&address);
        Some(address)
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
