//! Tests of the durable log with crashes, damage and full disks.

use amalgam_daemon::store::{Entry, EntryRef, History, Options, Recovered, Store, StoreError};
use amalgam_daemon::versions::STORE;
use proptest::prelude::*;
use std::fs::{self, FileTimes, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Bytes of a record before its payload, and of a segment before its first record.
const FRONT: u64 = 33;
const HEADER: u64 = 20;

fn entry(job: u64, text: &str) -> Entry {
    Entry { kind: 1, job, at_micros: 7, payload: text.as_bytes().to_vec() }
}

fn open(dir: &Path) -> (Store, Recovered) {
    Store::open(dir, Options::default()).unwrap()
}

fn put(store: &mut Store, entries: &[Entry]) {
    let refs: Vec<EntryRef<'_>> = entries.iter().map(Entry::as_ref).collect();
    store.append(&refs).unwrap();
    store.commit().unwrap();
}

fn last_segment(dir: &Path) -> PathBuf {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("segment-")).max().unwrap()
}

fn segments(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().starts_with("segment-")).count()
}

/// A directory in memory if possible, where a sync is fast. The result of reading is the same.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = in_memory();
    for file in fs::read_dir(from).unwrap().flatten() {
        fs::copy(file.path(), to.path().join(file.file_name())).unwrap();
    }
    to
}

fn flip(path: &Path, at: u64) {
    let byte = fs::read(path).unwrap()[at as usize];
    let mut file = OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&[byte ^ 0x10]).unwrap();
}

/// Fills a random range of this part of a file with zeros. Returns false if it had only zeros before.
fn zero(path: &Path, part: Range<usize>, ends: &[prop::sample::Index]) -> bool {
    let mut bytes = fs::read(path).unwrap();
    let mut ends = [part.start + ends[0].index(part.len()), part.start + ends[1].index(part.len())];
    ends.sort_unstable();
    let hole = &mut bytes[ends[0]..=ends[1]];
    let differs = hole.iter().any(|byte| *byte != 0);
    hole.fill(0);
    fs::write(path, bytes).unwrap();
    differs
}

fn refusal(dir: &Path) -> String {
    Store::open(dir, Options::default()).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn other_users_cannot_read_the_store() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("log");
    let (mut store, _) = open(&dir);
    put(&mut store, &[entry(1, "a")]);
    store.write_snapshot([entry(1, "a").as_ref()]).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    for file in fs::read_dir(&dir).unwrap() {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[test]
fn committed_entries_and_the_epoch_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, recovered) = open(dir.path());
    assert_eq!((recovered.epoch, recovered.entries.len()), (1, 0));
    put(&mut store, &[entry(1, "a"), entry(2, "")]);
    store.append(&[entry(3, "never committed").as_ref()]).unwrap();
    drop(store);
    let (mut store, recovered) = open(dir.path());
    assert_eq!((recovered.epoch, recovered.torn_bytes), (2, 0));
    assert_eq!(recovered.entries, [entry(1, "a"), entry(2, "")]);
    assert_eq!(store.append(&[entry(4, "b").as_ref()]).unwrap(), 2);
    store.commit().unwrap();
    drop(store);
    assert_eq!(open(dir.path()).1.entries.len(), 3);
}

#[test]
fn the_refusal_of_a_second_writer_names_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, _) = open(dir.path());
    let error = refusal(dir.path());
    assert!(error.contains(&format!("in use by process {}", std::process::id())), "{error}");
}

#[test]
fn an_unknown_format_and_missing_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path());
    put(&mut store, &[entry(1, "a")]);
    drop(store);
    let without_epoch = copy(dir.path());
    fs::remove_file(without_epoch.path().join("epoch")).unwrap();
    assert!(refusal(without_epoch.path()).contains("missing although there are segments"));
    fs::write(dir.path().join("format"), "amalgam store 99\n").unwrap();
    assert!(refusal(dir.path()).contains("store 99"));
    fs::write(dir.path().join("format"), format!("amalgam store {}-{}\n", STORE.oldest - 1, STORE.oldest)).unwrap();
    assert!(refusal(dir.path()).contains("use a program that reads it"));
}

fn mark(dir: &Path) -> String {
    fs::read_to_string(dir.join("format")).unwrap()
}

fn mark_as_older(dir: &Path) {
    fs::write(dir.join("format"), format!("amalgam store {}\n", STORE.oldest)).unwrap();
}

#[test]
fn a_store_of_the_version_before_is_replaced_by_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path());
    put(&mut store, &[entry(1, "older")]);
    store.write_snapshot([entry(0, "older state").as_ref()]).unwrap();
    drop(store);
    mark_as_older(dir.path());
    let both = format!("amalgam store {}-{}\n", STORE.oldest, STORE.newest);

    // Until the snapshot is complete, each start needs it, and the mark names both versions.
    let (mut store, recovered) = open(dir.path());
    assert_eq!(recovered.snapshot, [entry(0, "older state")]);
    assert_eq!((store.needs_snapshot(), mark(dir.path())), (true, both.clone()));
    put(&mut store, &[entry(2, "newer")]);
    let mut writer = store.start_snapshot().unwrap();
    writer.write(entry(0, "half").as_ref()).unwrap();
    drop((writer, store));
    let (mut store, recovered) = open(dir.path());
    assert_eq!((recovered.snapshot, recovered.entries), (vec![entry(0, "older state")], vec![entry(2, "newer")]));
    assert_eq!((store.needs_snapshot(), mark(dir.path())), (true, both.clone()));
    // A crash between the snapshot and the mark.
    let mut writer = store.start_snapshot().unwrap();
    writer.write(entry(0, "newer state").as_ref()).unwrap();
    writer.finish().unwrap();
    drop(store);
    let (mut store, recovered) = open(dir.path());
    assert_eq!((recovered.snapshot, recovered.entries.len()), (vec![entry(0, "newer state")], 0));
    assert_eq!((store.needs_snapshot(), mark(dir.path())), (true, both));

    store.write_snapshot([entry(0, "newest state").as_ref()]).unwrap();
    assert_eq!((store.needs_snapshot(), mark(dir.path())), (false, STORE.line("store")));
    drop(store);
    let (store, recovered) = open(dir.path());
    assert_eq!((recovered.snapshot, recovered.entries.len()), (vec![entry(0, "newest state")], 0));
    assert!(!store.needs_snapshot());
    // The entries are kept as history.
    let mut jobs = Vec::new();
    let visit = |_, entry: EntryRef<'_>| {
        jobs.push(entry.job);
        ControlFlow::Continue(())
    };
    store.history().scan(None, 0, visit).unwrap();
    assert_eq!(jobs, [1, 2]);
}

#[test]
fn a_damaged_store_keeps_the_mark_of_its_version_and_an_empty_one_gets_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    mark_as_older(dir.path());
    let (mut store, _) = open(dir.path());
    assert_eq!((store.needs_snapshot(), mark(dir.path())), (false, STORE.line("store")));
    store.write_snapshot([entry(0, "the state").as_ref()]).unwrap();
    drop(store);
    mark_as_older(dir.path());
    let older = mark(dir.path());
    flip(&dir.path().join("snapshot-00000000000000000000"), 30);
    assert!(refusal(dir.path()).contains("Nothing was changed"));
    assert_eq!(mark(dir.path()), older);
}

#[test]
fn a_snapshot_replaces_the_entries_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 200, ..Options::default() };
    let (mut store, _) = Store::open(dir.path(), options).unwrap();
    for number in 0..20 {
        put(&mut store, &[entry(number, "a payload")]);
    }
    assert!(store.needs_snapshot() && segments(dir.path()) > 2);
    store.write_snapshot([entry(0, "the state").as_ref()]).unwrap();
    assert!(!store.needs_snapshot());
    put(&mut store, &[entry(20, "after")]);
    drop(store);
    let (mut store, recovered) = open(dir.path());
    assert_eq!(recovered.snapshot, [entry(0, "the state")]);
    assert_eq!((recovered.entries.as_slice(), recovered.first_sequence), ([entry(20, "after")].as_slice(), 20));
    // The next snapshot replaces the first.
    store.write_snapshot([entry(0, "newer").as_ref()]).unwrap();
    drop(store);
    let (_, recovered) = open(dir.path());
    assert_eq!((recovered.snapshot, recovered.entries.len()), (vec![entry(0, "newer")], 0));
}

#[test]
fn an_incomplete_snapshot_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path());
    put(&mut store, &[entry(1, "a")]);
    let mut writer = store.start_snapshot().unwrap();
    writer.write(entry(0, "half").as_ref()).unwrap();
    // More entries are accepted meanwhile.
    put(&mut store, &[entry(2, "b")]);
    drop((writer, store));
    let (_, recovered) = open(dir.path());
    assert!(recovered.snapshot.is_empty());
    assert_eq!(recovered.entries, [entry(1, "a"), entry(2, "b")]);
    assert!(fs::read_dir(dir.path()).unwrap().flatten().all(|file| file.path().extension().is_none()));
}

#[test]
fn a_damaged_snapshot_is_refused_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = open(dir.path());
    store.write_snapshot([entry(0, "the state").as_ref()]).unwrap();
    drop(store);
    let snapshot = dir.path().join("snapshot-00000000000000000000");
    for at in 0..fs::metadata(&snapshot).unwrap().len() {
        let damaged = copy(dir.path());
        flip(&damaged.path().join("snapshot-00000000000000000000"), at);
        let error = refusal(damaged.path());
        assert!(error.contains("snapshot-0") && error.contains("aside to start afresh"), "{error}");
    }
    fs::OpenOptions::new().write(true).open(&snapshot).unwrap().set_len(30).unwrap();
    assert!(refusal(dir.path()).contains("end of the snapshot"));
}

#[test]
fn a_missing_or_cut_segment_in_the_middle_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(dir.path(), Options { segment_bytes: 100, ..Options::default() }).unwrap();
    for number in 0..9 {
        put(&mut store, &[entry(number, "0123456789012345678901234567890123456789")]);
    }
    drop(store);
    let mut names: Vec<PathBuf> = fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().path()).collect();
    names.retain(|path| path.to_str().unwrap().contains("segment-"));
    names.sort();
    assert!(names.len() >= 4);
    let middle = names[1].file_name().unwrap();
    let missing = copy(dir.path());
    fs::remove_file(missing.path().join(middle)).unwrap();
    assert!(refusal(missing.path()).contains("the segment is missing"));
    let cut = copy(dir.path());
    let path = cut.path().join(middle);
    let length = fs::metadata(&path).unwrap().len();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 5).unwrap();
    let error = refusal(cut.path());
    assert!(error.contains("a later segment follows") && error.contains("at byte 93"), "{error}");
}

#[test]
fn history_is_read_while_the_log_grows_and_by_job() {
    let dir = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(dir.path(), Options { segment_bytes: 500, ..Options::default() }).unwrap();
    let history = store.history();
    let mut seen = Vec::new();
    let mut next = 0;
    for number in 0..50u64 {
        put(&mut store, &[entry(number % 3, &format!("text {number}"))]);
        store.append(&[entry(99, "not committed").as_ref()]).unwrap();
        next = history
            .scan(None, next, |sequence, entry| {
                seen.push((sequence, entry.to_owned()));
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(next, store.next_sequence() - 1, "uncommitted entries are not shown");
    }
    assert!(segments(dir.path()) > 3);
    assert!(seen.iter().enumerate().all(|(place, (sequence, _))| *sequence == place as u64));

    store.commit().unwrap();
    let mut of_one = Vec::new();
    let stopped = history.scan(Some(1), 10, |sequence, entry| {
        assert_eq!(entry.job, 1);
        of_one.push(sequence);
        if of_one.len() == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let expected: Vec<u64> = seen.iter().filter(|(at, e)| *at >= 10 && e.job == 1).map(|(at, _)| *at).take(5).collect();
    assert_eq!((of_one.as_slice(), stopped.unwrap()), (expected.as_slice(), expected[4] + 1));
    let mut all = 0;
    History::of(dir.path())
        .scan(None, 0, |_, _| {
            all += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(all, store.next_sequence());
}

#[test]
fn history_is_limited_to_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 1_000, history_bytes: 3_000, ..Options::default() };
    let (mut store, _) = Store::open(dir.path(), options).unwrap();
    for _ in 0..100 {
        put(&mut store, &[entry(1, &"x".repeat(100))]);
    }
    store.write_snapshot([]).unwrap();
    assert!(segments(dir.path()) <= 4, "{}", segments(dir.path()));
    let mut first = None;
    store
        .history()
        .scan(None, 0, |sequence, _| {
            first.get_or_insert(sequence);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(first.is_some_and(|first| first > 50), "{first:?}");
}

#[test]
fn history_is_removed_when_it_is_too_old_also_at_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { segment_bytes: 1_000, history_for: Some(Duration::from_secs(3600)), ..Options::default() };
    let (mut store, _) = Store::open(dir.path(), options.clone()).unwrap();
    let fill = |store: &mut Store| (0..100).for_each(|_| put(store, &[entry(1, &"x".repeat(100))]));
    let age = |seconds| {
        for path in fs::read_dir(dir.path()).unwrap().map(|found| found.unwrap().path()) {
            if path.file_name().unwrap().to_str().unwrap().starts_with("segment-") {
                let at = SystemTime::now() - Duration::from_secs(seconds);
                let times = FileTimes::new().set_modified(at);
                OpenOptions::new().write(true).open(&path).unwrap().set_times(times).unwrap();
            }
        }
    };
    fill(&mut store);
    age(3_000);
    store.write_snapshot([]).unwrap();
    let kept = segments(dir.path());
    assert!(kept > 10, "{kept}");
    age(4_000);
    fill(&mut store);
    let all = segments(dir.path());
    store.write_snapshot([]).unwrap();
    // At least the last one of the old ones was written again.
    let young = segments(dir.path());
    assert!(young > 5 && young <= all - kept + 2, "{young} of {all}");
    age(4_000);
    drop(store);
    let (_store, recovered) = Store::open(dir.path(), options).unwrap();
    assert_eq!(segments(dir.path()), 1, "what recovery needs stays");
    assert_eq!(recovered.entries.len(), 0);
}

#[test]
fn a_full_disk_stops_the_store_and_committed_entries_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { full_at_bytes: Some(200), ..Options::default() };
    let (mut store, _) = Store::open(dir.path(), options).unwrap();
    put(&mut store, &[entry(1, "kept")]);
    store.append(&[entry(2, &"x".repeat(500)).as_ref()]).unwrap();
    let error = store.commit().unwrap_err().to_string();
    assert!(error.contains("No space left") && error.contains("segment-"), "{error}");
    assert!(matches!(store.append(&[entry(3, "late").as_ref()]), Err(StoreError::Poisoned(_))));
    assert!(matches!(store.commit(), Err(StoreError::Poisoned(_))));
    drop(store);
    let (mut store, recovered) = open(dir.path());
    assert_eq!((recovered.entries, recovered.torn_bytes), (vec![entry(1, "kept")], 0));
    put(&mut store, &[entry(4, "room again")]);
}

fn cut(path: &Path, length: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
}

#[test]
fn incomplete_files_of_a_first_start_are_created_again() {
    let dir = in_memory();
    drop(open(dir.path()));
    for name in ["format", "epoch", "segment-00000000000000000000"] {
        for length in 0..=fs::metadata(dir.path().join(name)).unwrap().len() {
            let torn = copy(dir.path());
            cut(&torn.path().join(name), length);
            let (mut store, recovered) = open(torn.path());
            assert!(recovered.epoch >= 1 && recovered.entries.is_empty(), "{name} cut at {length}");
            put(&mut store, &[entry(1, "more entries")]);
            drop(store);
            assert_eq!(open(torn.path()).1.entries, [entry(1, "more entries")], "{name} cut at {length}");
        }
        let missing = copy(dir.path());
        fs::remove_file(missing.path().join(name)).unwrap();
        open(missing.path());
    }
    // After a power failure, a file that was not synced may contain zeros.
    let zeros = copy(dir.path());
    fs::write(zeros.path().join("segment-00000000000000000000"), [0; HEADER as usize]).unwrap();
    open(zeros.path());
}

#[test]
fn an_incomplete_file_of_a_used_store_is_refused() {
    let dir = in_memory();
    let (mut store, _) = open(dir.path());
    put(&mut store, &[entry(1, "acknowledged")]);
    drop(store);
    for name in ["format", "epoch"] {
        for length in 0..fs::metadata(dir.path().join(name)).unwrap().len() {
            let torn = copy(dir.path());
            cut(&torn.path().join(name), length);
            let error = refusal(torn.path());
            assert!(
                error.contains(&format!("/{name} at byte")) && error.contains("from a backup"),
                "{length}: {error}"
            );
        }
    }
    // The owner continued after this segment was created, and may have written to it.
    fs::write(dir.path().join("identity"), [7; 16]).unwrap();
    for length in 0..HEADER {
        let torn = copy(dir.path());
        cut(&last_segment(torn.path()), length);
        assert!(refusal(torn.path()).contains("its header is damaged"), "cut at {length}");
    }
}

/// Batches of entries, each committed as one.
fn batches() -> impl Strategy<Value = Vec<Vec<Entry>>> {
    let payload = prop_oneof![
        3 => proptest::collection::vec(any::<u8>(), 0..60),
        // Bytes that look like lengths.
        1 => proptest::collection::vec(prop_oneof![Just(0u8), Just(17), Just(20)], 0..60),
    ];
    let entry = (any::<u8>(), 0..5u64, any::<u64>(), payload).prop_map(|(kind, job, at_micros, payload)| Entry {
        kind,
        job,
        at_micros,
        payload,
    });
    proptest::collection::vec(proptest::collection::vec(entry, 1..6), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_cut_in_the_last_record_recovers_all_entries_before_it(batches in batches(), segment_bytes in 60..400u64) {
        let dir = in_memory();
        let (mut store, _) = Store::open(dir.path(), Options { segment_bytes, ..Options::default() }).unwrap();
        for batch in &batches {
            put(&mut store, batch);
        }
        drop(store);
        let mut all: Vec<Entry> = batches.concat();
        // A commit that filled its segment left an empty one behind. Then the last record is not at the end.
        let segment = last_segment(dir.path());
        let length = fs::metadata(&segment).unwrap().len();
        prop_assume!(length > HEADER);
        let last = all.pop().unwrap();
        let record = FRONT + last.payload.len() as u64;
        for cut in length - record..length {
            let crashed = copy(dir.path());
            let path = crashed.path().join(segment.file_name().unwrap());
            OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
            let (mut store, recovered) = open(crashed.path());
            prop_assert_eq!(&recovered.entries, &all);
            prop_assert_eq!(recovered.torn_bytes, cut - (length - record));
            // The log continues from there.
            put(&mut store, std::slice::from_ref(&last));
            drop(store);
            let (_, recovered) = open(crashed.path());
            prop_assert_eq!(recovered.entries.last(), Some(&last));
        }
    }

    #[test]
    fn a_flipped_bit_before_the_last_record_is_refused(batches in batches(), place in any::<prop::sample::Index>()) {
        let dir = in_memory();
        let (mut store, _) = open(dir.path());
        for batch in &batches {
            put(&mut store, batch);
        }
        put(&mut store, &[entry(1, "the last record is sound")]);
        drop(store);
        let segment = last_segment(dir.path());
        let before_last = (fs::metadata(&segment).unwrap().len() - FRONT - 24) as usize;
        flip(&segment, place.index(before_last) as u64);
        let before = fs::read(&segment).unwrap();
        let error = refusal(dir.path());
        prop_assert!(error.contains("the store is damaged") && error.contains("segment-"), "{}", error);
        prop_assert_eq!(fs::read(&segment).unwrap(), before, "a refused store is not changed");
    }
    #[test]
    fn holes_in_unsynced_entries_are_cut_off_and_holes_before_them_are_refused(
        synced in batches(),
        unsynced in batches(),
        ends in any::<[prop::sample::Index; 4]>(),
    ) {
        let dir = in_memory();
        let (mut store, _) = open(dir.path());
        for batch in &synced {
            put(&mut store, batch);
        }
        let segment = last_segment(dir.path());
        let synced_bytes = fs::metadata(&segment).unwrap().len() as usize;
        for entry in unsynced.concat() {
            store.append(&[entry.as_ref()]).unwrap();
            store.write().unwrap();
        }
        drop(store);
        let all_bytes = fs::metadata(&segment).unwrap().len() as usize;
        let all = [synced.concat(), unsynced.concat()].concat();

        let torn = copy(dir.path());
        zero(&last_segment(torn.path()), synced_bytes..all_bytes, &ends[..2]);
        zero(&last_segment(torn.path()), synced_bytes..all_bytes, &ends[2..]);
        let (mut store, recovered) = open(torn.path());
        prop_assert!(recovered.entries.len() >= synced.concat().len() && all.starts_with(&recovered.entries));
        put(&mut store, &[entry(1, "more entries")]);
        drop(store);
        prop_assert_eq!(open(torn.path()).1.entries.len(), recovered.entries.len() + 1);

        if zero(&segment, HEADER as usize..synced_bytes, &ends[..2]) {
            prop_assert!(refusal(dir.path()).contains("the store is damaged"));
        }
    }
}
