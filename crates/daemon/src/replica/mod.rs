//! The durable records of a federation's master in etcd, for an active master and its standbys.
//!
//! ```text
//! <prefix>/cluster-<number>/leader              the active master; removed when its lease ends
//! <prefix>/cluster-<number>/format              versions of the snapshot and of the entries
//! <prefix>/cluster-<number>/life                number of times that a process became active: the epoch
//! <prefix>/cluster-<number>/entries/<first>     changes, starting with this number
//! <prefix>/cluster-<number>/snapshot            the newest snapshot: the number of the next change, the number of pieces,
//!                                               and the number of the first one unless it is 0
//! <prefix>/cluster-<number>/snapshots/<next>/<piece>
//! ```
//!
//! Every write is a transaction on the condition that the leader's key is the one that this process created. So a
//! process that was not connected for longer than its lease writes nothing after another one has started to read.
//! Records on which no decision depends are stored in the directory of the process.
//!
//! * `etcd.rs` the client; `lease.rs` the election of the active master

mod etcd;
mod lease;

pub use etcd::EtcdError;
pub use lease::Resignation;

use crate::config::StoreConfig;
use crate::encoding;
use crate::log_entry::Entry;
use crate::versions::{STORE, Versions};
use amalgam_core::vocabulary::ClusterId;
use etcd::{delete, put, was_created_at};
use lease::{Leadership, take_over};
use std::thread;
use std::time::{Duration, Instant};

/// Approximate maximum size of a value in etcd; etcd accepts 1.5 MiB.
const PIECE: usize = 512 << 10;
/// Number of writes after which a snapshot is written.
const SNAPSHOT_AFTER: u32 = 1_000;
/// Pause between attempts to write.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    #[error("this is not the active master any more: its lease in etcd has ended")]
    Lost,
    #[error("etcd could not be reached for the duration of the lease: {0}")]
    Away(EtcdError),
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[error(
        "the records in etcd at {prefix} have the format {found:?}, and this program reads {STORE} of `amalgam store`; use a program that reads \
         them, or another `prefix` to start afresh"
    )]
    Format { prefix: String, found: String },
    #[error(
        "the records in etcd are damaged: {key}: {what}. Nothing was changed. Restore etcd from a backup, or use another `prefix`"
    )]
    Damaged { key: String, what: &'static str },
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

impl ReplicaError {
    /// The remedy for an operator whose process exited with this error.
    pub fn remedy(&self) -> &'static str {
        match self {
            ReplicaError::Lost | ReplicaError::Away(_) => {
                "nothing that was acknowledged is lost; a standby takes over if there is one; restart this process, which is a standby then: use a supervisor such as systemd"
            }
            ReplicaError::Etcd(EtcdError::File { .. }) => "correct the paths in [store], or their permissions",
            _ => "check that etcd answers, and that [store] has its endpoints",
        }
    }
}

/// The names of a cluster's keys in etcd.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    fn of(prefix: &str, cluster: ClusterId) -> Keys {
        Keys { prefix: format!("{prefix}/cluster-{}", cluster.0) }
    }

    fn leader(&self) -> String {
        self.named("leader")
    }

    fn named(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// Numbers have a fixed width, so that names are in order.
    fn entries(&self, first: u64) -> String {
        self.named(&format!("entries/{first:020}"))
    }

    fn snapshots(&self, next: u64, piece: u32) -> String {
        self.named(&format!("snapshots/{next:020}/{piece:010}"))
    }
}

/// Sorts after all keys with a number, because it is greater than every digit.
const BEHIND: &str = ":";

/// The only writer of a cluster's records.
#[derive(Debug)]
pub struct Replica {
    leadership: Leadership,
    /// Number of the next change to write.
    next: u64,
    unwritten: Vec<Entry>,
    /// Number of writes since the last snapshot.
    writes: u32,
    /// The newest snapshot: the number of the next change, and the number after its last piece.
    snapshot: (u64, u32),
    /// Whether there are records of the version before. The mark names both versions then.
    has_older: bool,
}

/// The records in etcd when this process became active.
pub struct Inherited {
    pub resignation: Resignation,
    /// Number of times that a process became active, including this one.
    pub life: u32,
    /// The state in the newest snapshot and all later changes, in order.
    pub entries: Vec<Entry>,
}

impl Replica {
    /// Waits until this cluster has no active master, becomes it, and reads the records of earlier ones. If there is an
    /// active master, `stands_by` is called with its description of itself. `lost` is called from another thread when
    /// this process is no longer the active master, or cannot know whether it is. It should end the process.
    ///
    /// # Errors
    /// If etcd does not answer, has invalid records, or another process became active meanwhile.
    pub fn take_over(
        config: &StoreConfig,
        cluster: ClusterId,
        says: &str,
        stands_by: impl FnOnce(&str),
        lost: impl FnOnce(ReplicaError) + Send + 'static,
    ) -> Result<(Replica, Inherited), ReplicaError> {
        let leadership = take_over(config, Keys::of(&config.prefix, cluster), says, stands_by)?;
        let resignation = leadership.keep(lost).map_err(ReplicaError::Thread)?;
        let (unwritten, snapshot) = (Vec::new(), (0, 0));
        let mut replica = Replica { leadership, next: 0, unwritten, writes: 0, snapshot, has_older: false };
        let (life, entries) = replica.inherit()?;
        Ok((replica, Inherited { resignation, life, entries }))
    }

    /// No other process writes from here on, so the records are complete.
    fn inherit(&mut self) -> Result<(u32, Vec<Entry>), ReplicaError> {
        let Leadership { etcd, keys, .. } = &self.leadership;
        let foreign = |found| ReplicaError::Format { prefix: keys.prefix.clone(), found };
        let format = etcd.get(&keys.named("format"))?;
        let versions = format.map(|found| STORE.of_mark("store", &found.value).map_err(foreign)).transpose()?;
        let oldest = versions.map_or(STORE.newest, |versions| versions.oldest);
        let life = etcd.get(&keys.named("life"))?;
        let life = life.map(|found| number::<u32>(&found.key, &found.value)).transpose()?.unwrap_or(0);
        let life =
            life.checked_add(1).ok_or(ReplicaError::Damaged { key: keys.named("life"), what: "it is too large" })?;
        let (mut entries, snapshot) = self.snapshot()?;
        let (first, mut next) = (snapshot.0, snapshot.0);
        let written = etcd.range(&keys.entries(first), &keys.named(&format!("entries/{BEHIND}")))?;
        for found in &written {
            if found.key != keys.entries(next) {
                return Err(ReplicaError::Damaged { key: keys.entries(next), what: "it is missing" });
            }
            let read = decode(&found.key, &found.value)?;
            next += read.len() as u64;
            entries.extend(read);
        }
        (self.next, self.writes, self.snapshot) = (next, written.len() as u32, snapshot);
        let versions = Versions { oldest, ..STORE };
        self.has_older = oldest < STORE.newest;
        if self.has_older {
            tracing::info!(prefix = %keys.prefix, %versions, "upgrading the records in etcd with the next snapshot");
        }
        let format = put(&keys.named("format"), versions.mark("store").as_bytes(), None);
        let counted = put(&keys.named("life"), life.to_string().as_bytes(), None);
        self.write(vec![format, counted])?;
        Ok((life, entries))
    }

    /// The newest snapshot, the number of the change after it, and the number after its last piece.
    fn snapshot(&self) -> Result<(Vec<Entry>, (u64, u32)), ReplicaError> {
        let Leadership { etcd, keys, .. } = &self.leadership;
        let Some(newest) = etcd.get(&keys.named("snapshot"))? else { return Ok((Vec::new(), (0, 0))) };
        let damaged = |what| ReplicaError::Damaged { key: newest.key.clone(), what };
        let text = String::from_utf8_lossy(&newest.value);
        let (next, rest) = text.split_once(' ').ok_or(damaged("it is not two or three numbers"))?;
        let (pieces, first) = rest.split_once(' ').unwrap_or((rest, "0"));
        let next: u64 = number(&newest.key, next.as_bytes())?;
        let (pieces, first): (u32, u32) =
            (number(&newest.key, pieces.as_bytes())?, number(&newest.key, first.as_bytes())?);
        let end = first.checked_add(pieces).ok_or(damaged("a number is too large"))?;
        let found = etcd.range(&keys.snapshots(next, first), &keys.snapshots(next, end))?;
        if found.len() as u64 != u64::from(pieces) {
            return Err(damaged("a piece is missing"));
        }
        let mut entries = Vec::new();
        for piece in &found {
            entries.extend(decode(&piece.key, &piece.value)?);
        }
        Ok((entries, (next, end)))
    }

    /// Time without a keep-alive after which another process may be active.
    pub fn lease(&self) -> Duration {
        self.leadership.lasts
    }

    /// Adds changes, which are durable after the next [`Replica::commit`].
    pub fn append(&mut self, changes: impl IntoIterator<Item = Entry>) {
        self.unwritten.extend(changes);
    }

    /// Makes all appended changes durable.
    ///
    /// # Errors
    /// Permanent: this process is no longer the active master, or cannot know whether it is, and has to exit.
    pub fn commit(&mut self) -> Result<(), ReplicaError> {
        for (count, value) in pieces(&std::mem::take(&mut self.unwritten)) {
            self.write(vec![put(&self.leadership.keys.entries(self.next), &value, None)])?;
            self.next += count;
            self.writes += 1;
        }
        Ok(())
    }

    pub fn needs_snapshot(&self) -> bool {
        self.has_older || self.writes >= SNAPSHOT_AFTER
    }

    /// Replaces the changes so far by the resulting state.
    ///
    /// # Errors
    /// As for [`Replica::commit`].
    pub fn write_snapshot(&mut self, state: &[Entry]) -> Result<(), ReplicaError> {
        self.commit()?;
        let (keys, next) = (self.leadership.keys.clone(), self.next);
        // The pieces of a snapshot are not overwritten while it is the newest: this process may crash between two of them.
        let first = if self.snapshot.0 == next { self.snapshot.1 } else { 0 };
        let mut end = first;
        for (_, value) in pieces(state) {
            self.write(vec![put(&keys.snapshots(next, end), &value, None)])?;
            end += 1;
        }
        let count = end - first;
        let named = if first == 0 { format!("{next} {count}") } else { format!("{next} {count} {first}") };
        // In one transaction: there is always one snapshot with its entries, and a mark with their versions.
        self.write(vec![
            put(&keys.named("snapshot"), named.as_bytes(), None),
            delete(&keys.snapshots(0, 0), &keys.snapshots(next, first)),
            delete(&keys.entries(0), &keys.entries(next)),
            put(&keys.named("format"), STORE.line("store").as_bytes(), None),
        ])?;
        (self.writes, self.snapshot, self.has_older) = (0, (next, end), false);
        Ok(())
    }

    /// Executes the operations if the leader's key is still ours. While etcd does not answer, the write is retried for
    /// the duration of the lease.
    fn write(&self, operations: Vec<serde_json::Value>) -> Result<(), ReplicaError> {
        let Leadership { etcd, keys, revision, lasts, .. } = &self.leadership;
        let started = Instant::now();
        loop {
            match etcd.transact(was_created_at(&keys.leader(), *revision), operations.clone()) {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(ReplicaError::Lost),
                Err(error) if started.elapsed() >= *lasts => return Err(ReplicaError::Away(error)),
                Err(error) => tracing::warn!(%error, "retrying a write"),
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Values with these entries, and the number of entries in each.
fn pieces(entries: &[Entry]) -> Vec<(u64, Vec<u8>)> {
    let mut pieces: Vec<Vec<&Entry>> = Vec::new();
    let mut bytes = PIECE;
    for entry in entries {
        if bytes >= PIECE {
            pieces.push(Vec::new());
            bytes = 0;
        }
        bytes += entry.payload.len() + size_of::<Entry>();
        pieces.last_mut().expect("a piece was started").push(entry);
    }
    let encode = |piece: &Vec<&Entry>| encoding::to_vec(piece).expect("entries can be encoded");
    pieces.iter().map(|piece| (piece.len() as u64, encode(piece))).collect()
}

fn decode(key: &str, value: &[u8]) -> Result<Vec<Entry>, ReplicaError> {
    encoding::from_slice(value)
        .map_err(|_| ReplicaError::Damaged { key: key.to_owned(), what: "it has no valid entries" })
}

fn number<T: std::str::FromStr>(key: &str, text: &[u8]) -> Result<T, ReplicaError> {
    let read = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    read.ok_or(ReplicaError::Damaged { key: key.to_owned(), what: "it is not a number" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::process::{Child, Command, Stdio};

    #[test]
    fn pieces_contain_every_entry_once_and_are_not_too_long() {
        let entry =
            |number: usize| Entry { kind: 0, job: 0, at_micros: number as u64, payload: vec![7; 1_000 * number] };
        let entries: Vec<Entry> = (0..80).map(entry).collect();
        let pieces = pieces(&entries);
        assert!(pieces.len() > 5);
        let mut read = Vec::new();
        for (count, value) in pieces {
            assert!(value.len() < PIECE + 100_000);
            let decoded = decode("key", &value).unwrap();
            assert_eq!(decoded.len() as u64, count);
            read.extend(decoded);
        }
        assert_eq!(read, entries);
    }

    /// One member of etcd, stopped with the test.
    struct Etcd {
        process: Child,
        config: StoreConfig,
        _dir: tempfile::TempDir,
    }

    impl Etcd {
        /// `None` if it is not installed, with a message.
        fn start() -> Option<Etcd> {
            let dir = tempfile::tempdir().unwrap();
            let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let (endpoint, peer) = (format!("http://{}", free()), format!("http://{}", free()));
            let mut command = Command::new("etcd");
            command.arg("--data-dir").arg(dir.path()).args(["--name", "only", "--log-level", "error"]);
            command.args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &format!("only={peer}")]).stdout(Stdio::null()).stderr(Stdio::null());
            let process = match command.spawn() {
                Ok(process) => process,
                Err(why) => {
                    println!("skipped: etcd cannot be started, install etcd-server: {why}");
                    return None;
                }
            };
            let config = StoreConfig {
                endpoints: vec![endpoint],
                tls: None,
                prefix: "test".to_owned(),
                lease: Duration::from_secs(20),
            };
            Some(Etcd { process, config, _dir: dir })
        }

        fn take_over(&self) -> (Replica, Inherited) {
            let stands_by = |active: &str| panic!("{active} is active");
            Replica::take_over(&self.config, ClusterId(0), "a test", stands_by, |error| panic!("{error}")).unwrap()
        }
    }

    impl Drop for Etcd {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    fn entries(numbers: std::ops::Range<u64>, bytes: usize) -> Vec<Entry> {
        numbers.map(|number| Entry { kind: 0, job: 0, at_micros: number, payload: vec![number as u8; bytes] }).collect()
    }

    #[test]
    fn a_new_master_has_all_records_and_the_replaced_one_cannot_write() {
        let Some(etcd) = Etcd::start() else { return };
        let (mut first, inherited) = etcd.take_over();
        assert_eq!((inherited.life, inherited.entries.len()), (1, 0));
        first.append(entries(0..3, 10));
        first.commit().unwrap();
        first.append(entries(3..5, 10));
        first.commit().unwrap();
        inherited.resignation.resign();

        let (mut second, inherited) = etcd.take_over();
        assert_eq!((inherited.life, inherited.entries), (2, entries(0..5, 10)));
        first.append(entries(90..91, 10));
        assert!(matches!(first.commit(), Err(ReplicaError::Lost)));
        assert!(matches!(first.write_snapshot(&[]), Err(ReplicaError::Lost)));
        // Several pieces, twice, so that one snapshot replaces another.
        second.write_snapshot(&entries(0..2, PIECE)).unwrap();
        second.append(entries(5..6, 10));
        second.commit().unwrap();
        let state = entries(10..14, PIECE);
        second.write_snapshot(&state).unwrap();
        second.append(entries(14..16, 10));
        second.commit().unwrap();
        inherited.resignation.resign();

        let (third, inherited) = etcd.take_over();
        assert_eq!((inherited.life, inherited.entries), (3, [state, entries(14..16, 10)].concat()));
        let Leadership { etcd, keys, .. } = &third.leadership;
        let left = etcd.range(&keys.named(""), &keys.named("~")).unwrap();
        let left: Vec<&str> =
            left.iter().filter_map(|found| found.key.rsplit_once("cluster-0/")).map(|key| key.1).collect();
        assert_eq!(left.iter().filter(|key| key.starts_with("snapshots/")).count(), 4, "{left:?}");
        assert_eq!(left.iter().filter(|key| key.starts_with("entries/")).count(), 1, "{left:?}");
        inherited.resignation.resign();
    }

    #[test]
    fn records_of_the_version_before_are_replaced_by_a_snapshot() {
        let Some(etcd) = Etcd::start() else { return };
        let versions = |oldest| Versions { oldest, ..STORE }.mark("store");
        let mark = |replica: &Replica, text: &str| {
            let format = replica.leadership.keys.named("format");
            replica.write(vec![put(&format, text.as_bytes(), None)]).unwrap();
        };
        let marked = |replica: &Replica| {
            let Leadership { etcd, keys, .. } = &replica.leadership;
            String::from_utf8(etcd.get(&keys.named("format")).unwrap().unwrap().value).unwrap()
        };
        let (mut first, inherited) = etcd.take_over();
        assert!(!first.needs_snapshot());
        let old = entries(0..3, PIECE);
        first.write_snapshot(&old).unwrap();
        mark(&first, &format!("amalgam store {}\n", STORE.oldest));
        inherited.resignation.resign();

        // It crashes while it writes the snapshot, which has the number of the one before and other pieces.
        let (second, inherited) = etcd.take_over();
        assert_eq!((inherited.entries, second.needs_snapshot()), (old.clone(), true));
        assert_eq!(marked(&second), versions(STORE.oldest));
        let keys = second.leadership.keys.clone();
        let (_, value) = pieces(&entries(7..8, 10)).pop().unwrap();
        second.write(vec![put(&keys.snapshots(second.next, second.snapshot.1), &value, None)]).unwrap();
        inherited.resignation.resign();

        let (mut third, inherited) = etcd.take_over();
        assert_eq!((inherited.entries, third.needs_snapshot()), (old, true));
        let new = entries(10..12, PIECE);
        third.write_snapshot(&new).unwrap();
        assert_eq!((marked(&third), third.needs_snapshot()), (versions(STORE.newest), false));
        third.append(entries(12..13, 10));
        third.commit().unwrap();
        inherited.resignation.resign();

        let (mut fourth, inherited) = etcd.take_over();
        assert_eq!(inherited.entries, [new, entries(12..13, 10)].concat());
        assert!(!fourth.needs_snapshot());
        fourth.write_snapshot(&entries(20..21, 10)).unwrap();
        let Leadership { etcd, keys, .. } = &fourth.leadership;
        let left = etcd.range(&keys.snapshots(0, 0), &keys.named(&format!("snapshots/{BEHIND}"))).unwrap();
        assert_eq!(left.len(), 1, "{:?}", left.iter().map(|found| &found.key).collect::<Vec<_>>());
        inherited.resignation.resign();
    }

    #[test]
    fn keys_are_in_the_order_of_their_numbers_and_separate_for_each_cluster() {
        let keys = Keys::of("amalgam", ClusterId(1));
        assert!(
            keys.entries(9) < keys.entries(10) && keys.entries(u64::MAX) < keys.named(&format!("entries/{BEHIND}"))
        );
        assert!(keys.snapshots(9, 4_000_000_000) < keys.snapshots(10, 0));
        assert_eq!(keys.leader(), "amalgam/cluster-1/leader");
    }
}
