//! What room would be reserved for the files of other readers.

use super::{Files, Reader};
use crate::vocabulary::Digest;
use std::collections::BTreeMap;

/// The room that is reserved if other readers are admitted.
pub(super) struct ReservedRoom<'a> {
    pub(super) files: &'a Files,
    /// Number of readers of each file for which it differs from the present number.
    pub(super) readers: BTreeMap<Digest, u32>,
    pub(super) bytes: u64,
}

impl ReservedRoom<'_> {
    fn readers_of(&mut self, digest: Digest) -> &mut u32 {
        let stored = || self.files.stored.get(&digest).map_or(0, |one| one.readers);
        self.readers
            .entry(digest)
            .or_insert_with(|| self.files.fetches.get(&digest).map_or_else(stored, |one| one.readers))
    }

    pub(super) fn with(&mut self, reader: &Reader) {
        for file in reader.files() {
            let readers = self.readers_of(file.digest);
            *readers += 1;
            self.bytes += if *readers == 1 { file.bytes } else { 0 };
        }
    }

    pub(super) fn without(&mut self, reader: &Reader) {
        for file in reader.files() {
            let readers = self.readers_of(file.digest);
            *readers -= 1;
            self.bytes -= if *readers == 0 { file.bytes } else { 0 };
        }
    }
}
