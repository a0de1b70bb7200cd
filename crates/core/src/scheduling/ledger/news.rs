//! What changed in a ledger since a reader last asked.

use super::{Booking, Ledger};
use crate::vocabulary::NodeId;

/// Changes of a ledger; a node may occur several times.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LedgerNews {
    /// Possibly with another capacity or other attributes.
    pub joined: Vec<NodeId>,
    /// Their room or their state has changed.
    pub changed: Vec<NodeId>,
    /// In the order in which they happened.
    pub bookings: Vec<(Booking, BookingChange)>,
}

/// What happened to a booking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BookingChange {
    Booked,
    /// It is being preempted: another booking gets its resources.
    Preempted,
    /// It is no longer being preempted: no booking needs its resources.
    Stays,
    Freed {
        was_preempted: bool,
    },
}

impl Ledger {
    /// From now on, changes are kept for [`Ledger::news`].
    pub fn keep_news(&mut self) {
        self.news = Some(Box::default());
    }

    pub fn news(&self) -> Option<&LedgerNews> {
        self.news.as_deref()
    }

    /// Removes the changes that were read.
    pub fn forget_news(&mut self) {
        if let Some(LedgerNews { joined, changed, bookings }) = self.news.as_deref_mut() {
            joined.clear();
            changed.clear();
            bookings.clear();
        }
    }

    pub(super) fn note_booking(&mut self, booking: Booking, change: BookingChange) {
        if let Some(news) = &mut self.news {
            news.bookings.push((booking, change));
        }
    }
}
