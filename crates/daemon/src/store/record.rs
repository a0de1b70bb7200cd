//! The framing of entries: `[length u32][crc32 u32]`, then `length` bytes of `[kind u8][job u64][at u64][payload]`, all
//! little-endian. The checksum covers the length and what follows it.

/// One record of the log; what it means is its reader's affair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryRef<'a> {
    pub kind: u8,
    /// The job it is about; lets a reader skip the others.
    pub job: u64,
    pub at_micros: u64,
    pub payload: &'a [u8],
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub kind: u8,
    pub job: u64,
    pub at_micros: u64,
    pub payload: Vec<u8>,
}

impl Entry {
    pub fn as_ref(&self) -> EntryRef<'_> {
        EntryRef { kind: self.kind, job: self.job, at_micros: self.at_micros, payload: &self.payload }
    }
}

impl EntryRef<'_> {
    pub fn to_owned(self) -> Entry {
        Entry { kind: self.kind, job: self.job, at_micros: self.at_micros, payload: self.payload.to_vec() }
    }
}

/// Bytes before the body.
pub const HEAD: usize = 8;
/// Bytes of a body before its payload.
pub const FIELDS: usize = 17;
/// The longest body.
pub const MOST_BODY: usize = 1 << 30;

pub fn write(entry: EntryRef<'_>, out: &mut Vec<u8>) {
    let length = ((FIELDS + entry.payload.len()) as u32).to_le_bytes();
    let start = out.len();
    out.extend_from_slice(&length);
    out.extend_from_slice(&[0; 4]);
    out.push(entry.kind);
    out.extend_from_slice(&entry.job.to_le_bytes());
    out.extend_from_slice(&entry.at_micros.to_le_bytes());
    out.extend_from_slice(entry.payload);
    let crc = checksum(length, &out[start + HEAD..]);
    out[start + 4..start + HEAD].copy_from_slice(&crc.to_le_bytes());
}

/// The record at the start of `bytes` and its whole length, or `None` when it is cut short or damaged.
pub fn read(bytes: &[u8]) -> Option<(EntryRef<'_>, usize)> {
    let head: Head = Head::read(bytes)?;
    let body = bytes.get(HEAD..HEAD.checked_add(head.length)?)?;
    (checksum((head.length as u32).to_le_bytes(), body) == head.crc).then_some(())?;
    Some((parse_body(body)?, HEAD + head.length))
}

/// A record's length and checksum.
#[derive(Clone, Copy)]
pub struct Head {
    pub length: usize,
    crc: u32,
}

impl Head {
    /// `None` when there are too few bytes, or the length is none that `write` makes.
    pub fn read(bytes: &[u8]) -> Option<Head> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let crc = u32::from_le_bytes(*rest.first_chunk::<4>()?);
        let length = u32::from_le_bytes(*length) as usize;
        (FIELDS..=MOST_BODY).contains(&length).then_some(Head { length, crc })
    }

    pub fn matches(&self, body: &[u8]) -> bool {
        body.len() == self.length && checksum((self.length as u32).to_le_bytes(), body) == self.crc
    }
}

pub fn parse_body(body: &[u8]) -> Option<EntryRef<'_>> {
    let (kind, rest) = body.split_first()?;
    let (job, rest) = rest.split_first_chunk::<8>()?;
    let (at, payload) = rest.split_first_chunk::<8>()?;
    Some(EntryRef { kind: *kind, job: u64::from_le_bytes(*job), at_micros: u64::from_le_bytes(*at), payload })
}

fn checksum(length: [u8; 4], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length);
    hasher.update(body);
    hasher.finalize()
}
