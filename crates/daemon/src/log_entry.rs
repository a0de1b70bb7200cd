//! An entry of the log, in a store or in etcd.

use serde::{Deserialize, Serialize};

/// One record of the log. Its content is interpreted by its reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryRef<'a> {
    pub kind: u8,
    /// The job that it is about, so that readers can skip other jobs.
    pub job: u64,
    pub at_micros: u64,
    pub payload: &'a [u8],
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    pub kind: u8,
    pub job: u64,
    pub at_micros: u64,
    #[serde(with = "amalgam_core::vocabulary::byte_string")]
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
