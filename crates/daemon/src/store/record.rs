//! The framing of entries: `[length u32][crc32 u32][synced u64]`, then `length` bytes of
//! `[kind u8][job u64][at u64][payload]`, all little-endian. The checksum covers everything but itself.
//!
//! `synced` is the part of the segment that was certainly on disk when the record was created. A damaged record before
//! it was complete once. A damaged record after it may be an incomplete write of a power failure.

pub use crate::log_entry::{Entry, EntryRef};

/// Bytes before the body.
pub const HEAD: usize = 16;
/// The position of the checksum.
const CRC: std::ops::Range<usize> = 4..8;
/// Bytes of a body before its payload.
pub const FIELDS: usize = 17;
/// Maximum length of a body.
pub const MOST_BODY: usize = 1 << 30;

pub fn write(entry: EntryRef<'_>, synced: u64, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&((FIELDS + entry.payload.len()) as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&synced.to_le_bytes());
    out.push(entry.kind);
    out.extend_from_slice(&entry.job.to_le_bytes());
    out.extend_from_slice(&entry.at_micros.to_le_bytes());
    out.extend_from_slice(entry.payload);
    let record = &mut out[start..];
    let crc = checksum(record);
    record[CRC].copy_from_slice(&crc.to_le_bytes());
}

/// A record in a file.
#[derive(Clone, Copy)]
pub struct Framed<'a> {
    pub entry: EntryRef<'a>,
    /// Length of the whole record.
    pub length: usize,
    pub synced: u64,
}

/// The record at the start of `bytes`, or `None` if it is incomplete or damaged.
pub fn read(bytes: &[u8]) -> Option<Framed<'_>> {
    let length = HEAD + body_length(bytes)?;
    let record = bytes.get(..length)?;
    (checksum(record).to_le_bytes() == record[CRC]).then_some(())?;
    let synced = u64::from_le_bytes(*record[CRC.end..].first_chunk::<8>()?);
    Some(Framed { entry: parse_body(&record[HEAD..])?, length, synced })
}

/// The length of the body of the record at the start of `bytes`; `None` if `write` never creates this length.
pub fn body_length(bytes: &[u8]) -> Option<usize> {
    let length = u32::from_le_bytes(*bytes.first_chunk::<4>()?) as usize;
    (FIELDS..=MOST_BODY).contains(&length).then_some(length)
}

pub fn parse_body(body: &[u8]) -> Option<EntryRef<'_>> {
    let (kind, rest) = body.split_first()?;
    let (job, rest) = rest.split_first_chunk::<8>()?;
    let (at, payload) = rest.split_first_chunk::<8>()?;
    Some(EntryRef { kind: *kind, job: u64::from_le_bytes(*job), at_micros: u64::from_le_bytes(*at), payload })
}

fn checksum(record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&record[..CRC.start]);
    hasher.update(&record[CRC.end..]);
    hasher.finalize()
}
