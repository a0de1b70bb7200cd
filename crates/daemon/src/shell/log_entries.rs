//! Facts as entries of the log.

use crate::encoding;
use crate::store::{Entry, EntryRef};
use amalgam_core::hosting::{Fact, Followed};
use amalgam_core::vocabulary::{HostId, Instant};

const CHANGE: u8 = 0;
const RECORD: u8 = 1;
/// Added to the kind of a job host's entry. Its payload starts with the job host's number and the entry's number in the
/// job host's log.
const FOLLOWED: u8 = 2;

/// Length of these numbers: 1 byte and 8 bytes.
const FOLLOWED_HEAD: usize = 9;

/// A fact as an entry of the log.
pub fn encode(at: Instant, fact: &Fact) -> Entry {
    let (kind, job, payload) = match fact {
        Fact::Change(change) => (CHANGE, change.job(), encoding::to_vec(change)),
        Fact::Record(record) => (RECORD, record.job(), encoding::to_vec(record)),
    };
    let payload = payload.expect("every fact can be encoded");
    Entry { kind, job: job.map_or(0, |job| job.0), at_micros: at.0, payload }
}

/// A fact of a job host's log as an entry of this log. After a restart, the numbers in this log show which entries of
/// the job host were received.
pub fn encode_followed(HostId(host): HostId, followed: &Followed) -> Entry {
    let Entry { kind, job, at_micros, payload } = encode(followed.at, &followed.fact);
    let head = [&[host][..], &followed.number.to_le_bytes()].concat();
    Entry { kind: kind + FOLLOWED, job, at_micros, payload: [head, payload].concat() }
}

/// Decodes the fact of an entry.
///
/// # Errors
/// If the kind or the payload is unknown, because another version of the program wrote the entry.
pub fn decode(entry: EntryRef<'_>) -> Result<Fact, String> {
    decode_numbered(entry).map(|(fact, _)| fact)
}

/// Like [`decode`]. For an entry of a job host, also returns the job host and the entry's number in its log.
///
/// # Errors
/// As for [`decode`].
pub fn decode_numbered(entry: EntryRef<'_>) -> Result<(Fact, Option<(HostId, u64)>), String> {
    let (kind, payload, number) = match entry.kind {
        kind @ (CHANGE | RECORD) => (kind, entry.payload, None),
        kind => {
            let unknown = || format!("unknown entry of kind {kind}");
            let kind = kind.checked_sub(FOLLOWED).filter(|kind| *kind <= RECORD).ok_or_else(unknown)?;
            let (head, payload) = entry.payload.split_first_chunk::<FOLLOWED_HEAD>().ok_or_else(unknown)?;
            let (host, number) = (HostId(head[0]), u64::from_le_bytes(head[1..].try_into().expect("eight bytes")));
            (kind, payload, Some((host, number)))
        }
    };
    let fact = match kind {
        CHANGE => encoding::from_slice(payload).map(Fact::Change),
        _ => encoding::from_slice(payload).map(Fact::Record),
    };
    Ok((fact.map_err(|error| error.to_string())?, number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::role::{Change, Record};
    use amalgam_core::vocabulary::{JobId, NodeId};

    #[test]
    fn a_fact_of_a_job_host_keeps_its_number() {
        let facts = [
            Fact::Change(Change::JobHeld { job: JobId(7), held: true }),
            Fact::Record(Record::NodeJoined { node: NodeId(3), program: None }),
        ];
        for (number, fact) in (9..).zip(facts) {
            let followed = Followed { number, at: Instant(5), fact: fact.clone() };
            let entry = encode_followed(HostId(2), &followed);
            let (read, from) = decode_numbered(entry.as_ref()).unwrap();
            let same = |read: Fact| assert_eq!(format!("{read:?}"), format!("{fact:?}"));
            same(read);
            assert_eq!((from, entry.at_micros), (Some((HostId(2), number)), 5));
            let own = encode(Instant(5), &fact);
            assert_eq!((own.job, own.at_micros), (entry.job, 5));
            let (read, from) = decode_numbered(own.as_ref()).unwrap();
            same(read);
            assert_eq!(from, None);
        }
    }

    #[test]
    fn malformed_entries_are_errors() {
        for (kind, payload) in [(4, &[][..]), (255, &[]), (2, &[1, 2, 3]), (3, &[0; 9]), (0, &[])] {
            assert!(decode(EntryRef { kind, job: 0, at_micros: 0, payload }).is_err(), "{kind}");
        }
    }
}
