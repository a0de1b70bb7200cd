//! The files of a node. The files that waiting tasks read are fetched from nodes that have them, in order of arrival,
//! into a cache of limited size. The cache first drops files that other nodes have, too, and of those the least
//! recently used.
//!
//! Room is reserved at once for all files that a task reads. Tasks that each held a part of the room would wait
//! permanently.
//!
//! Guaranteed tasks have priority over opportunistic ones. Opportunistic tasks that only wait lose their room, and if
//! that is not enough, some that run are preempted.

mod cache;
mod fetch;
mod reserved_room;

use crate::vocabulary::{
    AttemptId, Digest, Duration, EndReason, Ended, EndedFiles, Fetched, InputFile, Instant, JobId, NodeId, OutputFile,
    StoredFile, Usage,
};
use cache::{Origin, Stored};
use fetch::{Fetch, Step};
use reserved_room::ReservedRoom;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Maximum number of files that are fetched at once. If opportunistic tasks have reached it, guaranteed tasks may still
/// fetch this many.
pub const MOST_FETCHES: usize = 4;
/// Maximum number of slow files that are reported at once for each task that waits.
const MOST_LATE: usize = 16;

pub(super) struct Files {
    /// Maximum size of the files that are kept, in bytes.
    limit: u64,
    stored: BTreeMap<Digest, Stored>,
    stored_bytes: u64,
    /// Of these, the bytes of files that some task waits for or runs with.
    pinned_bytes: u64,
    uses: u64,
    readers: BTreeMap<AttemptId, Reader>,
    /// Readers for which there is no room yet: guaranteed ones, then opportunistic ones, each in order of arrival.
    line: BTreeSet<(bool, u64, AttemptId)>,
    arrivals: u64,
    fetches: BTreeMap<Digest, Fetch>,
    /// Bytes of all fetches together.
    fetch_bytes: u64,
    /// Fetches that wait until fewer are under way, and some that no longer wait: those for guaranteed readers, and the
    /// rest.
    waiting_first: VecDeque<Digest>,
    waiting: VecDeque<Digest>,
    /// No pause ends before this time.
    retry_at: Option<Instant>,
    under_way: BTreeSet<Digest>,
    /// The executor has listed its files since it was asked.
    is_listed: bool,
    effects: Effects,
}

/// Files, and for how long each has been under way.
type Late = [(Digest, Duration)];

struct Reader {
    inputs: Arc<[InputFile]>,
    /// Its files, each once, with the index of its first occurrence in the inputs.
    files: BTreeMap<Digest, usize>,
    is_opportunistic: bool,
    /// The larger, the later the reader arrived or became guaranteed.
    came: u64,
    /// Room is reserved for its files.
    is_admitted: bool,
    missing: usize,
}

/// Consequences outside of this module.
#[derive(Default)]
pub(super) struct Effects {
    pub(super) ask: Vec<(StoredFile, NodeId)>,
    pub(super) drop: Vec<Digest>,
    pub(super) arrived: Vec<AttemptId>,
    /// Attempts that had all files, and wait again for one that is gone.
    pub(super) held: Vec<AttemptId>,
    pub(super) failed: Vec<(AttemptId, Arc<Ended>)>,
}

impl Files {
    pub(super) fn new(limit: u64) -> Files {
        Files {
            limit,
            stored: BTreeMap::new(),
            stored_bytes: 0,
            pinned_bytes: 0,
            uses: 0,
            readers: BTreeMap::new(),
            line: BTreeSet::new(),
            arrivals: 0,
            fetches: BTreeMap::new(),
            fetch_bytes: 0,
            waiting_first: VecDeque::new(),
            waiting: VecDeque::new(),
            retry_at: None,
            under_way: BTreeSet::new(),
            is_listed: false,
            effects: Effects::default(),
        }
    }

    /// The earliest time at which a node that did not answer is asked again.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        self.retry_at
    }

    // ---- readers ---------------------------------------------------------------------------------------------------

    /// `others`: the readers with which it starts at the same time, as a gang.
    pub(super) fn add_reader(
        &mut self,
        own: NodeId,
        id: AttemptId,
        inputs: Arc<[InputFile]>,
        is_opportunistic: bool,
        others: &[AttemptId],
    ) {
        let files: BTreeMap<Digest, usize> = inputs.iter().enumerate().map(|(at, input)| (input.digest, at)).collect();
        let missing = files.len();
        self.arrivals += 1;
        let reader = Reader { inputs, files, is_opportunistic, came: self.arrivals, is_admitted: false, missing };
        let of_others = others.iter().filter_map(|other| self.readers.get(other)).flat_map(Reader::files);
        let together: BTreeMap<Digest, u64> =
            reader.files().chain(of_others).map(|file| (file.digest, file.bytes)).collect();
        let bytes = together.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        if bytes > self.limit {
            let who = if others.is_empty() { "it reads" } else { "it and other tasks of its gang here read" };
            let why = format!(
                "{who} {bytes} bytes, and this node keeps {} bytes of files at most; start its agent with a larger --cache",
                self.limit
            );
            return self.effects.failed.push((id, no_input(why, Vec::new())));
        }
        self.line.insert(reader.place(id));
        self.readers.insert(id, reader);
        self.admit(own);
    }

    /// It waits behind earlier guaranteed readers.
    pub(super) fn guarantee(&mut self, own: NodeId, id: AttemptId) {
        let Some(reader) = self.readers.get_mut(&id).filter(|reader| reader.is_opportunistic) else { return };
        let is_in_line = self.line.remove(&reader.place(id));
        self.arrivals += 1;
        (reader.is_opportunistic, reader.came) = (false, self.arrivals);
        if is_in_line {
            self.line.insert(reader.place(id));
        } else {
            for digest in reader.files.keys() {
                let Some(fetch) = self.fetches.get_mut(digest) else { continue };
                fetch.guaranteed += 1;
                if fetch.step == Step::Waiting {
                    self.waiting_first.push_back(*digest);
                }
            }
        }
        self.admit(own);
    }

    /// Reserves room for readers in the order of `line`.
    pub(super) fn admit(&mut self, own: NodeId) {
        while let Some(&(_, _, id)) = self.line.first() {
            let reader = &self.readers[&id];
            let is_new = |digest: &Digest| {
                let is_pinned = self.stored.get(digest).is_some_and(|stored| stored.readers > 0);
                !is_pinned && !self.fetches.contains_key(digest)
            };
            let more: u64 = reader.files().filter(|file| is_new(&file.digest)).map(|file| file.bytes).sum();
            if self.pinned_bytes + self.fetch_bytes + more > self.limit {
                break;
            }
            self.line.pop_first();
            self.reserve(own, id);
        }
        self.make_room();
        self.ask_more();
    }

    fn reserve(&mut self, own: NodeId, id: AttemptId) {
        let Some(mut reader) = self.readers.remove(&id) else { return };
        reader.is_admitted = true;
        reader.missing = 0;
        for (&digest, &at) in &reader.files {
            let InputFile { bytes, ref holders, .. } = reader.inputs[at];
            if self.pin(&digest, id.job) {
                continue;
            }
            reader.missing += 1;
            self.send_for(own, StoredFile { digest, bytes }, holders, !reader.is_opportunistic);
        }
        if reader.missing == 0 {
            self.effects.arrived.push(id);
        }
        self.readers.insert(id, reader);
    }

    /// Adds a reader that waits for a file that these nodes may have.
    fn send_for(&mut self, own: NodeId, file: StoredFile, holders: &[NodeId], is_guaranteed: bool) {
        let StoredFile { digest, bytes } = file;
        let mut is_new = false;
        let fetch = self.fetches.entry(digest).or_insert_with(|| {
            is_new = true;
            self.fetch_bytes += bytes;
            Fetch::new(bytes)
        });
        fetch.readers += 1;
        fetch.guaranteed += u32::from(is_guaranteed);
        if is_guaranteed && fetch.guaranteed == 1 && fetch.step == Step::Waiting {
            self.waiting_first.push_back(digest);
        } else if is_new {
            self.waiting.push_back(digest);
        }
        // Different nodes start with different holders.
        let first = own.0 as usize % holders.len().max(1);
        holders.iter().cycle().skip(first).take(holders.len()).for_each(|holder| fetch.add_holder(own, *holder));
    }

    /// Keeps a file that is here for one more reader. Returns false if it is not here.
    fn pin(&mut self, digest: &Digest, job: JobId) -> bool {
        let Some(stored) = self.stored.get_mut(digest) else { return false };
        self.uses += 1;
        stored.last_use = self.uses;
        stored.jobs.insert(job);
        stored.readers += 1;
        if stored.readers == 1 {
            self.pinned_bytes += stored.bytes;
        }
        true
    }

    /// Whether the task has read files here, or its end names files.
    pub(super) fn concerns(&self, id: AttemptId, ended: &Ended) -> bool {
        self.readers.contains_key(&id) || ended.files.is_some()
    }

    /// A task has ended: it reads no files any more. The files that it stored are here, for other tasks if `are_read`;
    /// those that it did not find are not.
    pub(super) fn on_end(
        &mut self,
        own: NodeId,
        id: AttemptId,
        ended: &Ended,
        are_read: bool,
        has_started: impl Fn(AttemptId) -> bool,
    ) {
        self.remove_reader(id);
        let origin = if are_read { Origin::Left(id.job) } else { Origin::Unread(id.job) };
        for OutputFile { digest, bytes, .. } in ended.outputs() {
            self.take_in(own, StoredFile { digest: *digest, bytes: *bytes }, origin);
        }
        for (digest, _) in ended.missing().iter().filter(|(_, node)| *node == own) {
            self.lose(own, digest, &has_started);
        }
        self.admit(own);
    }

    /// Files that only this task needed may be dropped.
    fn remove_reader(&mut self, id: AttemptId) {
        let Some(reader) = self.readers.remove(&id) else { return };
        if reader.is_admitted {
            self.release(&reader);
        } else {
            self.line.remove(&reader.place(id));
        }
    }

    /// Frees its room for others; it waits in `line` again.
    pub(super) fn send_back(&mut self, id: AttemptId) {
        let Some(mut reader) = self.readers.remove(&id) else { return };
        self.release(&reader);
        (reader.is_admitted, reader.missing) = (false, reader.files.len());
        self.line.insert(reader.place(id));
        self.readers.insert(id, reader);
        self.effects.arrived.retain(|other| *other != id);
        self.effects.held.push(id);
    }

    /// Files that no other reader needs may be dropped.
    fn release(&mut self, reader: &Reader) {
        for digest in reader.files.keys() {
            if let Some(fetch) = self.fetches.get_mut(digest) {
                fetch.readers -= 1;
                fetch.guaranteed -= u32::from(!reader.is_opportunistic);
                // A fetch that is under way is completed, since a later reader may need the file.
                if fetch.readers == 0 && !matches!(fetch.step, Step::Asked(_)) {
                    self.remove_fetch(digest);
                }
            } else if let Some(stored) = self.stored.get_mut(digest) {
                stored.readers -= 1;
                if stored.readers == 0 {
                    self.pinned_bytes -= stored.bytes;
                    if stored.jobs.is_empty() {
                        // All of its jobs were forgotten meanwhile.
                        self.drop_file(digest);
                    }
                }
            }
        }
    }

    /// Whether guaranteed readers wait for room.
    pub(super) fn lacks_guaranteed_room(&self) -> bool {
        self.line.first().is_some_and(|(is_opportunistic, ..)| !is_opportunistic)
    }

    /// Opportunistic readers that have room, each with its position in the order of arrival.
    pub(super) fn opportunistic_with_room(&self) -> impl Iterator<Item = (AttemptId, u64)> {
        let those = self.readers.iter().filter(|(_, reader)| reader.is_admitted && reader.is_opportunistic);
        those.map(|(id, reader)| (*id, reader.came))
    }

    /// Which of these opportunistic readers have room that guaranteed ones in `line` lack, and the last reader for
    /// which they have to leave. It names no more of them than needed, those at the front of `others` before the rest.
    /// The readers `leaving` are about to free their room.
    pub(super) fn in_the_way(
        &self,
        leaving: &[AttemptId],
        others: &[AttemptId],
    ) -> Option<(AttemptId, Vec<AttemptId>)> {
        let mut room =
            ReservedRoom { files: self, readers: BTreeMap::new(), bytes: self.pinned_bytes + self.fetch_bytes };
        // Fetches that are under way but have no readers do not stay.
        room.bytes -= self.fetches.values().filter(|fetch| fetch.readers == 0).map(|fetch| fetch.bytes).sum::<u64>();
        leaving.iter().chain(others).for_each(|id| room.without(&self.readers[id]));
        let mut last = None;
        for &(_, _, id) in self.line.iter().take_while(|(is_opportunistic, ..)| !is_opportunistic) {
            room.with(&self.readers[&id]);
            if room.bytes > self.limit {
                room.without(&self.readers[&id]);
                break;
            }
            last = Some(id);
        }
        let last = last?;
        let mut those = Vec::new();
        for &id in others.iter().rev() {
            room.with(&self.readers[&id]);
            if room.bytes > self.limit {
                room.without(&self.readers[&id]);
                those.push(id);
            }
        }
        Some((last, those))
    }

    // ---- stored files ----------------------------------------------------------------------------------------------

    /// The executor is asked which files it has.
    pub(super) fn on_list_asked(&mut self) {
        self.is_listed = false;
    }

    pub(super) fn awaits_list(&self) -> bool {
        !self.is_listed
    }

    /// The executor has these files and no others.
    pub(super) fn on_listed(&mut self, own: NodeId, listed: Vec<StoredFile>, has_started: impl Fn(AttemptId) -> bool) {
        self.is_listed = true;
        let there: BTreeSet<Digest> = listed.iter().map(|file| file.digest).collect();
        let gone: Vec<Digest> = self.stored.keys().filter(|digest| !there.contains(digest)).copied().collect();
        gone.iter().for_each(|digest| self.lose(own, digest, &has_started));
        for file in listed {
            if !self.stored.contains_key(&file.digest) {
                self.take_in(own, file, Origin::Found);
            }
        }
        self.admit(own);
    }

    /// Drops the files that only this job has stored or read.
    pub(super) fn forget_job(&mut self, job: JobId) {
        let is_nobodys = |one: &mut Stored| one.jobs.remove(&job) && one.jobs.is_empty() && one.readers == 0;
        let left = self.stored.iter_mut().filter_map(|(digest, one)| is_nobodys(one).then_some(*digest));
        for digest in left.collect::<Vec<_>>() {
            self.drop_file(&digest);
        }
    }

    /// A file that was recorded as stored is not here. A task that has started has its own link to the file and no
    /// longer needs it here. A task that has not started waits until the file is fetched again.
    fn lose(&mut self, own: NodeId, digest: &Digest, has_started: impl Fn(AttemptId) -> bool) {
        if self.forget(digest).is_none() {
            return;
        }
        let mut readers = std::mem::take(&mut self.readers);
        for (&id, reader) in readers.iter_mut().filter(|(_, reader)| reader.is_admitted) {
            let Some(&at) = reader.files.get(digest) else { continue };
            if has_started(id) {
                reader.files.remove(digest);
                continue;
            }
            if reader.missing == 0 {
                self.effects.held.push(id);
            }
            reader.missing += 1;
            let InputFile { bytes, ref holders, .. } = reader.inputs[at];
            self.send_for(own, StoredFile { digest: *digest, bytes }, holders, !reader.is_opportunistic);
        }
        self.readers = readers;
    }

    // ---- fetching --------------------------------------------------------------------------------------------------

    fn ask_more(&mut self) {
        while let Some(digest) = self.next_to_ask() {
            let Some(fetch) = self.fetches.get_mut(&digest).filter(|fetch| fetch.step == Step::Waiting) else {
                continue;
            };
            let Some(holder) = fetch.next_holder() else {
                self.fail(&digest, None);
                continue;
            };
            fetch.step = Step::Asked(holder);
            self.under_way.insert(digest);
            self.effects.ask.push((StoredFile { digest, bytes: fetch.bytes }, holder));
        }
    }

    fn next_to_ask(&mut self) -> Option<Digest> {
        let is_guaranteed = |digest: &Digest| self.fetches.get(digest).is_some_and(|fetch| fetch.guaranteed > 0);
        if self.under_way.iter().filter(|digest| is_guaranteed(digest)).count() < MOST_FETCHES {
            while let Some(digest) = self.waiting_first.pop_front() {
                if is_guaranteed(&digest) {
                    return Some(digest);
                }
                // Its guaranteed readers are gone.
                self.waiting.push_back(digest);
            }
        }
        if self.under_way.len() < MOST_FETCHES { self.waiting.pop_front() } else { None }
    }

    /// The fetch waits until it may be sent for.
    fn line_up(&mut self, digest: Digest) {
        let is_guaranteed = self.fetches.get(&digest).is_some_and(|fetch| fetch.guaranteed > 0);
        if is_guaranteed { &mut self.waiting_first } else { &mut self.waiting }.push_back(digest);
    }

    /// The result of asking the holder. It may have been asked before another, faster one, and answer later.
    pub(super) fn on_fetched(
        &mut self,
        now: Instant,
        own: NodeId,
        (digest, holder, outcome): (Digest, NodeId, Fetched),
    ) {
        let Some(fetch) = self.fetches.get_mut(&digest) else {
            if outcome == Fetched::Done && !self.stored.contains_key(&digest) {
                // Its readers ended while the executor was not connected.
                self.effects.drop.push(digest);
            }
            return;
        };
        let asked = fetch.step;
        if !matches!(asked, Step::Asked(_)) {
            // It was sent for before the executor disconnected, and will be sent for again.
            if outcome == Fetched::Done {
                let bytes = fetch.bytes;
                self.arrive(own, StoredFile { digest, bytes }, Origin::Fetched);
            }
            return;
        }
        self.under_way.remove(&digest);
        fetch.step = Step::Waiting;
        match outcome {
            Fetched::Done => {
                let file = StoredFile { digest, bytes: fetch.bytes };
                return self.arrive(own, file, Origin::Fetched);
            }
            Fetched::NoRoom(why) => {
                self.fail(&digest, Some(why));
                return self.admit(own);
            }
            Fetched::Absent => fetch.was_absent(holder),
            Fetched::Spoiled => fetch.was_spoiled(holder),
            Fetched::Wrong => fetch.was_wrong(holder),
            Fetched::CutShort => fetch.was_cut_short(now, holder),
            Fetched::Unreachable => fetch.was_silent(now, holder),
            Fetched::Busy(others) => fetch.was_busy(now, own, holder, &others),
        }
        if asked != Step::Asked(holder) {
            // Another holder was asked meanwhile.
            fetch.step = asked;
            self.under_way.insert(digest);
            return;
        }
        match fetch.step {
            Step::Waiting if fetch.readers == 0 => self.remove_fetch(&digest),
            Step::Waiting => self.line_up(digest),
            Step::Paused(at) => self.retry_at = Some(self.retry_at.map_or(at, |earliest| earliest.min(at))),
            Step::Asked(_) => {}
        }
        self.admit(own);
    }

    fn remove_fetch(&mut self, digest: &Digest) {
        self.under_way.remove(digest);
        if let Some(fetch) = self.fetches.remove(digest) {
            self.fetch_bytes -= fetch.bytes;
        }
    }

    /// No node has the file, or it cannot be kept here for the reason `no_room`: its readers end.
    fn fail(&mut self, digest: &Digest, no_room: Option<String>) {
        let Some(fetch) = self.fetches.get(digest) else { return };
        let missing: Vec<(Digest, NodeId)> = fetch.asked_in_vain().map(|node| (*digest, node)).collect();
        let asked = fetch.why_in_vain();
        let readers = self.readers.iter().filter(|(_, one)| one.is_admitted && one.files.contains_key(digest));
        for id in readers.map(|(id, _)| *id).collect::<Vec<_>>() {
            let reader = &self.readers[&id];
            let path = &reader.inputs[reader.files[digest]].path;
            let ended = match &no_room {
                Some(why) => Ended::without_run(EndReason::NodeFault(format!("cannot keep its input {path}: {why}"))),
                None => no_input(format!("its input {path} is not available: {asked}"), missing.clone()),
            };
            self.remove_reader(id);
            self.effects.failed.push((id, ended));
        }
        self.remove_fetch(digest);
    }

    pub(super) fn retry(&mut self, now: Instant, own: NodeId) {
        self.retry_at = None;
        let mut again = Vec::new();
        for (digest, fetch) in &mut self.fetches {
            match fetch.step {
                Step::Paused(at) if at <= now => {
                    fetch.step = Step::Waiting;
                    again.push(*digest);
                }
                Step::Paused(at) => self.retry_at = Some(self.retry_at.map_or(at, |earliest| earliest.min(at))),
                Step::Waiting | Step::Asked(_) => {}
            }
        }
        again.into_iter().for_each(|digest| self.line_up(digest));
        self.admit(own);
    }

    /// Another node has the file, and is asked besides the one that was asked before.
    pub(super) fn on_holder(&mut self, own: NodeId, digest: Digest, holder: NodeId) {
        let Some(fetch) = self.fetches.get_mut(&digest).filter(|_| holder != own) else { return };
        if !fetch.add_first(holder) {
            return;
        }
        match fetch.step {
            Step::Asked(_) => {
                fetch.step = Step::Asked(holder);
                self.effects.ask.push((StoredFile { digest, bytes: fetch.bytes }, holder));
            }
            Step::Paused(_) => {
                fetch.step = Step::Waiting;
                self.line_up(digest);
                self.admit(own);
            }
            Step::Waiting => {}
        }
    }

    /// Whether a reader waits for a file that is being fetched.
    pub(super) fn is_any_lacking(&self) -> bool {
        !self.fetches.is_empty()
    }

    /// For each attempt, the files that it lacks and that have been under way for at least `least`: the longest first.
    pub(super) fn lacking(&self, now: Instant, least: Duration) -> Vec<(AttemptId, Box<Late>)> {
        let mut late = Vec::new();
        for (digest, fetch) in &self.fetches {
            let waited = fetch.asked_at.map_or(Duration::ZERO, |since| now.since(since));
            if fetch.step != Step::Waiting && waited >= least {
                late.push((*digest, waited));
            }
        }
        late.sort_unstable_by_key(|(digest, waited)| (Reverse(*waited), *digest));
        let admitted = self.readers.iter().filter(|(_, reader)| reader.is_admitted && reader.missing > 0);
        let lacking = admitted.map(|(id, reader)| {
            let of = late.iter().filter(|(digest, _)| reader.files.contains_key(digest)).take(MOST_LATE);
            (*id, of.copied().collect::<Box<Late>>())
        });
        lacking.filter(|(_, files)| !files.is_empty()).collect()
    }

    /// Fetches that were under way were lost with the executor.
    pub(super) fn ask_again(&mut self, own: NodeId) {
        for digest in std::mem::take(&mut self.under_way) {
            self.fetches.get_mut(&digest).expect("a fetch under way is known").step = Step::Waiting;
            self.line_up(digest);
        }
        self.admit(own);
    }

    // ---- all of them -----------------------------------------------------------------------------------------------

    /// What has to be done outside of this module because of the changes until `now`, each once.
    pub(super) fn take_effects(&mut self, now: Instant) -> Effects {
        let effects = std::mem::take(&mut self.effects);
        for (file, _) in &effects.ask {
            if let Some(fetch) = self.fetches.get_mut(&file.digest) {
                fetch.asked_at.get_or_insert(now);
            }
        }
        effects
    }

    /// # Panics
    /// If a guaranteed reader lacks room that opportunistic ones have which stay.
    pub(super) fn check_room(&self, stays: impl Fn(AttemptId) -> bool) {
        let Some(&(is_opportunistic, _, first)) = self.line.first() else { return };
        if is_opportunistic {
            return;
        }
        let bytes = |counts: &dyn Fn(AttemptId, &Reader) -> bool| -> u64 {
            let is_one = |id: AttemptId, reader: &Reader| id == first || reader.is_admitted && counts(id, reader);
            let those = self.readers.iter().filter(|(id, reader)| is_one(**id, reader));
            let files = those.flat_map(|(_, reader)| reader.files().map(|file| (file.digest, file.bytes)));
            files.collect::<BTreeMap<Digest, u64>>().into_values().sum()
        };
        let left = bytes(&|id, reader| !reader.is_opportunistic || stays(id));
        let least = bytes(&|_, reader| !reader.is_opportunistic);
        assert!(left <= self.limit || least > self.limit, "opportunistic readers block {first}");
    }

    pub(super) fn check_invariants(&self) {
        let stored = self.stored.values().map(|one| one.bytes).sum::<u64>();
        assert_eq!(self.stored_bytes, stored, "bytes of stored files");
        let pinned = self.stored.values().filter(|one| one.readers > 0).map(|one| one.bytes).sum::<u64>();
        assert_eq!(self.pinned_bytes, pinned, "bytes of pinned files");
        assert_eq!(self.fetch_bytes, self.fetches.values().map(|fetch| fetch.bytes).sum::<u64>(), "bytes of fetches");
        let under_way = self.fetches.iter().filter(|(_, fetch)| matches!(fetch.step, Step::Asked(_)));
        assert!(under_way.map(|(digest, _)| digest).eq(&self.under_way), "fetches under way");
        let in_line = self.readers.iter().filter(|(_, reader)| !reader.is_admitted);
        let in_line: BTreeSet<_> = in_line.map(|(id, reader)| reader.place(*id)).collect();
        assert_eq!(self.line, in_line, "readers without room");
        assert!(self.pinned_bytes + self.fetch_bytes <= self.limit, "room is reserved within the limit");
        let readers = |digest: &Digest, counts: &dyn Fn(&Reader) -> bool| {
            let admitted = self.readers.values().filter(|reader| reader.is_admitted && counts(reader));
            admitted.filter(|reader| reader.files.contains_key(digest)).count() as u32
        };
        let wanted = |digest: &Digest| readers(digest, &|_| true);
        for (digest, readers) in self.stored.iter().map(|(digest, one)| (digest, one.readers)) {
            assert_eq!(readers, wanted(digest), "readers of a stored file");
        }
        for (digest, fetch) in &self.fetches {
            assert_eq!(fetch.readers, wanted(digest), "readers of a fetch");
            let guaranteed = readers(digest, &|reader| !reader.is_opportunistic);
            assert_eq!(fetch.guaranteed, guaranteed, "guaranteed readers of a fetch");
        }
    }
}

impl Reader {
    /// Its position in `line`.
    fn place(&self, id: AttemptId) -> (bool, u64, AttemptId) {
        (self.is_opportunistic, self.came, id)
    }

    /// The files that it reads, each once.
    fn files(&self) -> impl Iterator<Item = &InputFile> {
        self.files.values().map(|at| &self.inputs[*at])
    }
}

fn no_input(why: String, missing: Vec<(Digest, NodeId)>) -> Arc<Ended> {
    let files = (!missing.is_empty()).then(|| Box::new(EndedFiles { outputs: Vec::new(), missing }));
    Arc::new(Ended { reason: EndReason::NoInput(why), usage: Usage::default(), message: None, files })
}

#[cfg(test)]
mod tests;
