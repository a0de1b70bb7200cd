//! The files that a node stores for tasks: in a cache of limited size, which drops files that other nodes have first.

use super::Files;
use crate::vocabulary::{Digest, JobId, NodeId, StoredFile};
use std::collections::BTreeSet;

pub(super) struct Stored {
    pub(super) bytes: u64,
    /// The larger, the more recent.
    pub(super) last_use: u64,
    /// A task left it here for others. If it were dropped, that task would run again.
    pub(super) is_own: bool,
    pub(super) readers: u32,
    /// Jobs whose tasks stored or read it. Not known for files that were here before this agent.
    pub(super) jobs: BTreeSet<JobId>,
}

/// How a file came here.
#[derive(Clone, Copy)]
pub(super) enum Origin {
    /// A task of this job stored it for others.
    Left(JobId),
    /// A task of this job stored it, and no task will read it.
    Unread(JobId),
    Fetched,
    /// It was here before this agent started.
    Found,
}

impl Files {
    pub(super) fn store(&mut self, file: StoredFile, origin: Origin, readers: u32) {
        self.uses += 1;
        let StoredFile { digest, bytes } = file;
        let stored = self.stored.entry(digest).or_insert_with(|| {
            self.stored_bytes += bytes;
            Stored { bytes, last_use: 0, is_own: false, readers: 0, jobs: BTreeSet::new() }
        });
        if stored.readers == 0 && readers > 0 {
            self.pinned_bytes += stored.bytes;
        }
        stored.readers += readers;
        match origin {
            Origin::Left(job) => {
                (stored.is_own, stored.last_use) = (true, self.uses);
                stored.jobs.insert(job);
            }
            Origin::Unread(job) => drop(stored.jobs.insert(job)),
            Origin::Fetched | Origin::Found => stored.last_use = self.uses,
        }
    }

    /// Drops files that no task needs until the rest is within the limit: first those that other nodes have, too, and
    /// of those the least recently used.
    pub(super) fn make_room(&mut self) {
        let wanted = self.limit.saturating_sub(self.fetch_bytes);
        if self.stored_bytes <= wanted {
            return;
        }
        let mut idle: Vec<(bool, u64, Digest)> = self
            .stored
            .iter()
            .filter(|(_, one)| one.readers == 0)
            .map(|(digest, one)| (one.is_own, one.last_use, *digest))
            .collect();
        idle.sort_unstable();
        for (_, _, digest) in idle {
            if self.stored_bytes <= wanted {
                return;
            }
            self.drop_file(&digest);
        }
    }

    pub(super) fn drop_file(&mut self, digest: &Digest) {
        self.forget(digest);
        self.effects.drop.push(*digest);
    }

    pub(super) fn forget(&mut self, digest: &Digest) -> Option<Stored> {
        let gone = self.stored.remove(digest)?;
        self.stored_bytes -= gone.bytes;
        if gone.readers > 0 {
            self.pinned_bytes -= gone.bytes;
        }
        Some(gone)
    }

    /// A file is here without having been fetched. If a fetch waits for it, that fetch is complete.
    pub(super) fn take_in(&mut self, own: NodeId, file: StoredFile, origin: Origin) {
        if self.fetches.contains_key(&file.digest) {
            self.arrive(own, file, origin);
        } else {
            self.store(file, origin, 0);
        }
    }

    pub(super) fn arrive(&mut self, own: NodeId, file: StoredFile, origin: Origin) {
        let readers = self.fetches[&file.digest].readers;
        self.remove_fetch(&file.digest);
        self.store(file, origin, readers);
        for (&id, reader) in &mut self.readers {
            if reader.is_admitted && reader.files.contains_key(&file.digest) {
                reader.missing -= 1;
                if reader.missing == 0 {
                    self.effects.arrived.push(id);
                }
                let stored = self.stored.get_mut(&file.digest).expect("just stored");
                stored.jobs.insert(id.job);
            }
        }
        self.admit(own);
    }
}
