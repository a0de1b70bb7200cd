//! The durable records of a federation's master in etcd, for an active one and its standbys.
//!
//! ```text
//! <prefix>/cluster-<number>/leader              who is active; ends with its lease
//! <prefix>/cluster-<number>/format              what wrote these records
//! <prefix>/cluster-<number>/life                how often somebody became active: the epoch
//! <prefix>/cluster-<number>/entries/<first>     changes, from this number on
//! <prefix>/cluster-<number>/snapshot            which is the newest: the number of the next change, and in how many pieces
//! <prefix>/cluster-<number>/snapshots/<next>/<piece>
//! ```
//!
//! Every write is a transaction on the condition that the leader's key is the one that this process made. So whoever was away for
//! longer than its lease writes nothing after another began to read. Records of what happened, which nobody decides by, stay in
//! the directory of the process.
//!
//! * `etcd.rs` the client; `lease.rs` who is active

mod etcd;
mod lease;

pub use etcd::EtcdError;
pub use lease::Resignation;

use crate::config::StoreConfig;
use crate::encoding;
use crate::store::Entry;
use crate::versions::STORE;
use amalgam_core::vocabulary::ClusterId;
use etcd::{delete, put, was_created_at};
use lease::{Leadership, take_over};
use std::thread;
use std::time::{Duration, Instant};

/// A value of etcd is at most so long, roughly; etcd takes 1.5 MiB.
const PIECE: usize = 512 << 10;
/// After so many writes a snapshot is made.
const SNAPSHOT_AFTER: u32 = 1_000;
/// Between two tries to write.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    #[error("this is not the active master any more: its lease in etcd has ended")]
    Lost,
    #[error("for as long as the lease lasts etcd could not be reached: {0}")]
    Away(EtcdError),
    #[error(transparent)]
    Etcd(#[from] EtcdError),
    #[error(
        "the records in etcd at {prefix} say {found:?}, and this program reads {STORE} of `amalgam store`; use a program that reads \
         them, or another `prefix` to start afresh"
    )]
    Format { prefix: String, found: String },
    #[error(
        "the records in etcd are damaged: {key}: {what}. Nothing was changed. Restore etcd from a backup, or write another `prefix`"
    )]
    Damaged { key: String, what: &'static str },
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

impl ReplicaError {
    /// What helps an operator whose process ended with it.
    pub fn remedy(&self) -> &'static str {
        match self {
            ReplicaError::Lost | ReplicaError::Away(_) => {
                "nothing that was acknowledged is lost; a standby takes over if there is one, and this one is the next once it is started again: run it under something that does, such as systemd"
            }
            _ => "see to it that etcd answers, and that [store] names it",
        }
    }
}

/// The names of what etcd holds of a cluster.
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

    /// In the order of their numbers, which have a fixed width.
    fn entries(&self, first: u64) -> String {
        self.named(&format!("entries/{first:020}"))
    }

    fn snapshots(&self, next: u64, piece: u32) -> String {
        self.named(&format!("snapshots/{next:020}/{piece:010}"))
    }
}

/// Behind all keys with a number: no digit is as great.
const BEHIND: &str = ":";

/// The one writer of a cluster's records.
#[derive(Debug)]
pub struct Replica {
    leadership: Leadership,
    /// Of the next change that is written.
    next: u64,
    unwritten: Vec<Entry>,
    /// Since the last snapshot.
    writes: u32,
}

/// What etcd held when this process became active.
pub struct Inherited {
    pub resignation: Resignation,
    /// How often somebody became active, this time included.
    pub life: u32,
    /// The state in the newest snapshot and everything after that, in order.
    pub entries: Vec<Entry>,
}

impl Replica {
    /// Waits until there is no active master of this cluster, becomes it, and reads what the earlier ones left. `stands_by` is
    /// called with what the active one says of itself, where there is one. `lost` is called from another thread when this is not
    /// the active one any more, or cannot know it; it should end the process.
    ///
    /// # Errors
    /// When etcd does not answer, holds what makes no sense, or gave the place to another meanwhile.
    pub fn take_over(
        config: &StoreConfig,
        cluster: ClusterId,
        says: &str,
        stands_by: impl FnOnce(&str),
        lost: impl FnOnce(ReplicaError) + Send + 'static,
    ) -> Result<(Replica, Inherited), ReplicaError> {
        let leadership = take_over(config, Keys::of(&config.prefix, cluster), says, stands_by)?;
        let resignation = leadership.keep(lost).map_err(ReplicaError::Thread)?;
        let mut replica = Replica { leadership, next: 0, unwritten: Vec::new(), writes: 0 };
        let (life, entries) = replica.inherit()?;
        Ok((replica, Inherited { resignation, life, entries }))
    }

    /// From here on nobody else writes, so what is read is all there is.
    fn inherit(&mut self) -> Result<(u32, Vec<Entry>), ReplicaError> {
        let Leadership { etcd, keys, .. } = &self.leadership;
        if let Some(format) = etcd.get(&keys.named("format"))? {
            let foreign = |found| ReplicaError::Format { prefix: keys.prefix.clone(), found };
            STORE.of_line("store", &format.value).map_err(foreign)?;
        }
        let life = etcd.get(&keys.named("life"))?;
        let life = life.map(|found| number::<u32>(&found.key, &found.value)).transpose()?.unwrap_or(0);
        let life =
            life.checked_add(1).ok_or(ReplicaError::Damaged { key: keys.named("life"), what: "it is too great" })?;
        let (mut entries, first) = self.snapshot()?;
        let mut next = first;
        let written = etcd.range(&keys.entries(first), &keys.named(&format!("entries/{BEHIND}")))?;
        for found in &written {
            if found.key != keys.entries(next) {
                return Err(ReplicaError::Damaged { key: keys.entries(next), what: "it is missing" });
            }
            let read = decode(&found.key, &found.value)?;
            next += read.len() as u64;
            entries.extend(read);
        }
        (self.next, self.writes) = (next, written.len() as u32);
        let format = put(&keys.named("format"), STORE.line("store").as_bytes(), None);
        let counted = put(&keys.named("life"), life.to_string().as_bytes(), None);
        self.write(vec![format, counted])?;
        Ok((life, entries))
    }

    /// The newest, and the number of the change after it.
    fn snapshot(&self) -> Result<(Vec<Entry>, u64), ReplicaError> {
        let Leadership { etcd, keys, .. } = &self.leadership;
        let Some(newest) = etcd.get(&keys.named("snapshot"))? else { return Ok((Vec::new(), 0)) };
        let damaged = |what| ReplicaError::Damaged { key: newest.key.clone(), what };
        let text = String::from_utf8_lossy(&newest.value);
        let (next, pieces) = text.split_once(' ').ok_or(damaged("it has no two numbers"))?;
        let (next, pieces): (u64, u32) =
            (number(&newest.key, next.as_bytes())?, number(&newest.key, pieces.as_bytes())?);
        let found = etcd.range(&keys.snapshots(next, 0), &keys.snapshots(next, pieces))?;
        if found.len() as u64 != u64::from(pieces) {
            return Err(damaged("a piece is missing"));
        }
        let mut entries = Vec::new();
        for piece in &found {
            entries.extend(decode(&piece.key, &piece.value)?);
        }
        Ok((entries, next))
    }

    /// After so long without a keep-alive another may be active.
    pub fn lease(&self) -> Duration {
        self.leadership.lasts
    }

    /// Takes changes up; they are durable after the next [`Replica::commit`].
    pub fn append(&mut self, changes: impl IntoIterator<Item = Entry>) {
        self.unwritten.extend(changes);
    }

    /// Makes what was appended durable.
    ///
    /// # Errors
    /// For good: this process is not the active one any more, or cannot know whether it is, and has to end.
    pub fn commit(&mut self) -> Result<(), ReplicaError> {
        for (count, value) in pieces(&std::mem::take(&mut self.unwritten)) {
            self.write(vec![put(&self.leadership.keys.entries(self.next), &value, None)])?;
            self.next += count;
            self.writes += 1;
        }
        Ok(())
    }

    pub fn needs_snapshot(&self) -> bool {
        self.writes >= SNAPSHOT_AFTER
    }

    /// Replaces the changes so far by the state that they led to.
    ///
    /// # Errors
    /// As of [`Replica::commit`].
    pub fn write_snapshot(&mut self, state: &[Entry]) -> Result<(), ReplicaError> {
        self.commit()?;
        let (keys, next) = (self.leadership.keys.clone(), self.next);
        let mut count = 0;
        for (_, value) in pieces(state) {
            self.write(vec![put(&keys.snapshots(next, count), &value, None)])?;
            count += 1;
        }
        // All at once: there is one snapshot or the other, and what belongs to it.
        self.write(vec![
            put(&keys.named("snapshot"), format!("{next} {count}").as_bytes(), None),
            delete(&keys.snapshots(0, 0), &keys.snapshots(next, 0)),
            delete(&keys.entries(0), &keys.entries(next)),
        ])?;
        self.writes = 0;
        Ok(())
    }

    /// Does this if the leader's key is still ours. While etcd does not answer it is tried again, for as long as the lease can last.
    fn write(&self, operations: Vec<serde_json::Value>) -> Result<(), ReplicaError> {
        let Leadership { etcd, keys, revision, lasts, .. } = &self.leadership;
        let started = Instant::now();
        loop {
            match etcd.transact(was_created_at(&keys.leader(), *revision), operations.clone()) {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(ReplicaError::Lost),
                Err(error) if started.elapsed() >= *lasts => return Err(ReplicaError::Away(error)),
                Err(error) => tracing::warn!(%error, "a write is tried again"),
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Values that hold these entries, and how many are in each.
fn pieces(entries: &[Entry]) -> Vec<(u64, Vec<u8>)> {
    let mut pieces: Vec<Vec<&Entry>> = Vec::new();
    let mut bytes = PIECE;
    for entry in entries {
        if bytes >= PIECE {
            pieces.push(Vec::new());
            bytes = 0;
        }
        bytes += entry.payload.len() + size_of::<Entry>();
        pieces.last_mut().expect("one was begun").push(entry);
    }
    let encode = |piece: &Vec<&Entry>| encoding::to_vec(piece).expect("entries hold nothing that cannot be written");
    pieces.iter().map(|piece| (piece.len() as u64, encode(piece))).collect()
}

fn decode(key: &str, value: &[u8]) -> Result<Vec<Entry>, ReplicaError> {
    encoding::from_slice(value).map_err(|_| ReplicaError::Damaged { key: key.to_owned(), what: "it holds no entries" })
}

fn number<T: std::str::FromStr>(key: &str, text: &[u8]) -> Result<T, ReplicaError> {
    let read = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    read.ok_or(ReplicaError::Damaged { key: key.to_owned(), what: "it holds no number" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::process::{Child, Command, Stdio};

    #[test]
    fn pieces_hold_every_entry_once_and_none_is_too_long() {
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

    /// One member of etcd, ended with the test.
    struct Etcd {
        process: Child,
        config: StoreConfig,
        _dir: tempfile::TempDir,
    }

    impl Etcd {
        /// None where it is not installed, which is said.
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
            let config =
                StoreConfig { endpoints: vec![endpoint], prefix: "test".to_owned(), lease: Duration::from_secs(20) };
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
    fn whoever_takes_over_has_all_that_was_written_and_who_was_replaced_writes_nothing_more() {
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
        // In several pieces, twice, so that one snapshot replaces another.
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
    fn keys_are_in_the_order_of_their_numbers_and_clusters_apart() {
        let keys = Keys::of("amalgam", ClusterId(1));
        assert!(
            keys.entries(9) < keys.entries(10) && keys.entries(u64::MAX) < keys.named(&format!("entries/{BEHIND}"))
        );
        assert!(keys.snapshots(9, 4_000_000_000) < keys.snapshots(10, 0));
        assert_eq!(keys.leader(), "amalgam/cluster-1/leader");
    }
}
