//! Facts as entries of the log.

use crate::store::{Entry, EntryRef};
use amalgam_core::hosting::Fact;
use amalgam_core::vocabulary::Instant;

const CHANGE: u8 = 0;
const RECORD: u8 = 1;

/// A fact as the log keeps it.
pub fn encode(at: Instant, fact: &Fact) -> Entry {
    let (kind, job, payload) = match fact {
        Fact::Change(change) => (CHANGE, change.job(), postcard::to_allocvec(change)),
        Fact::Record(record) => (RECORD, record.job(), postcard::to_allocvec(record)),
    };
    let payload = payload.expect("facts hold nothing that cannot be written");
    Entry { kind, job: job.map_or(0, |job| job.0), at_micros: at.0, payload }
}

/// # Errors
/// When the entry was written by another version of the program.
pub fn decode(entry: EntryRef<'_>) -> Result<Fact, String> {
    let fact = match entry.kind {
        CHANGE => postcard::from_bytes(entry.payload).map(Fact::Change),
        RECORD => postcard::from_bytes(entry.payload).map(Fact::Record),
        other => return Err(format!("entries of kind {other} are not known")),
    };
    fact.map_err(|error| error.to_string())
}
