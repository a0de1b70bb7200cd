//! The file store of one node. Each file is named after its contents.
//!
//! Tasks get their inputs as additional names of the stored files, which are read-only; but a task of root can write to
//! them. A stored file keeps the time at which it was written, except for a mark within its millisecond. So a file that
//! was written to later is detected, and is not served any more.

use super::{Left, PutError};
use crate::durable::{self, Temporary};
use crate::removal::{Pace, remove_or_put_aside};
use amalgam_core::vocabulary::{Digest, NodeId, StoredFile};
use sha2::{Digest as _, Sha256};
use std::fs::{self, DirBuilder, File, FileTimes, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// The mark: the nanoseconds within the millisecond of every stored file's modification time.
const MARK: i64 = 321_000;
const MILLISECOND: i64 = 1_000_000;
/// The modification time of all files on a file system that stores whole seconds; 1980-01-02, as archives cannot store
/// earlier times.
const COARSE: Duration = Duration::from_secs(315_619_200);
const READ_ONLY: u32 = 0o444;
const PART: usize = 1 << 20;

pub struct FileStore {
    directory: PathBuf,
}

impl FileStore {
    /// The store of a node whose executor has this state directory.
    pub fn of(state: &Path, node: NodeId) -> FileStore {
        FileStore { directory: state.join("files").join(node.0.to_string()) }
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.directory.join(digest.to_string())
    }

    /// A message for an error of the store, with the directory and a remedy.
    pub fn trouble(&self, error: &io::Error) -> String {
        let directory = self.directory.display();
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!(
                "the disk of {directory} is full; make room there, or start the node's agent with a smaller --cache"
            ),
            _ => format!("{directory} cannot be used: {error}"),
        }
    }

    /// Stores a file that a task left. Unless `is_kept`, it is removed from the task's directory.
    pub fn put(&self, left: &Left, is_kept: bool) -> Result<StoredFile, PutError> {
        self.put_opened(left, left.open()?, is_kept)
    }

    /// Stores a file that a task left and that was opened with the rights of the task's user. Unless `is_kept`, it is removed from the
    /// task's directory.
    pub fn put_opened(&self, left: &Left, mut file: File, is_kept: bool) -> Result<StoredFile, PutError> {
        let found = file.metadata().map_err(PutError::of_source)?;
        if !found.is_file() {
            return Err(PutError::NotAFile);
        }
        // A file with another name must not become read-only there. Another user may have the file open, and could change it in the
        // store.
        let is_foreign = found.uid() != rustix::process::geteuid().as_raw();
        if left.is_shared() || found.nlink() > 1 || is_foreign {
            return self.copy(&mut file, left, is_kept);
        }
        seal(&file, found.modified().map_err(PutError::of_source)?).map_err(PutError::of_source)?;
        let (digest, bytes) = digest_of(&mut file).map_err(PutError::of_source)?;
        if !is_sealed(&file.metadata().map_err(PutError::of_source)?) {
            return Err(PutError::Unreadable(io::Error::other("a process wrote to it while it was stored")));
        }
        let fresh = self.fresh().map_err(PutError::Io)?;
        if left.rename(&fresh, is_kept).is_err() {
            // Another file system, or one without links.
            file.rewind().map_err(PutError::of_source)?;
            return self.copy(&mut file, left, is_kept);
        }
        let stored = fs::symlink_metadata(&fresh).map_err(PutError::Io)?;
        if (stored.dev(), stored.ino()) != (found.dev(), found.ino()) {
            let _ = fs::remove_file(&fresh);
            return Err(PutError::Unreadable(io::Error::other("a process replaced it while it was stored")));
        }
        self.move_to_final_name(&fresh, &digest).and_then(|()| self.sync()).map_err(PutError::Io)?;
        Ok(StoredFile { digest, bytes })
    }

    fn copy(&self, file: &mut File, left: &Left, is_kept: bool) -> Result<StoredFile, PutError> {
        let mut incoming = self.incoming().map_err(PutError::Io)?;
        incoming.written = file.metadata().and_then(|found| found.modified()).map_err(PutError::of_source)?;
        let length = file.metadata().map_err(PutError::of_source)?.len();
        self.check_room(length)?;
        let mut part = vec![0; PART];
        // What is added meanwhile does not belong to the output.
        let mut left_over = file.take(length);
        loop {
            match left_over.read(&mut part).map_err(PutError::of_source)? {
                0 => break,
                length => incoming.write(&part[..length]).map_err(PutError::Io)?,
            }
        }
        let stored = incoming.keep(None).map_err(PutError::Io)?.expect("no digest is required");
        if !is_kept {
            // The task may have forbidden it. Then the file also stays there.
            let _ = left.remove();
        }
        Ok(stored)
    }

    /// Refuses a copy that does not fit on the disk, such as that of a file with holes.
    fn check_room(&self, bytes: u64) -> Result<(), PutError> {
        // Some file systems, such as one in memory, have no size.
        let Some(disk) = rustix::fs::statvfs(&self.directory).ok().filter(|disk| disk.f_blocks > 0) else {
            return Ok(());
        };
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        if bytes <= free {
            return Ok(());
        }
        let why = format!("it has {bytes} bytes, and the node's disk for outputs has {free} free");
        Err(PutError::Unreadable(io::Error::other(why)))
    }

    /// Renames a complete file from its temporary name to its final one.
    fn move_to_final_name(&self, fresh: &Path, digest: &Digest) -> io::Result<()> {
        let taken = fs::rename(fresh, self.path(digest));
        // If both are names of the same file, renaming does nothing.
        let _ = fs::remove_file(fresh);
        taken
    }

    /// A new file that is received from elsewhere.
    pub fn incoming(&self) -> io::Result<Incoming> {
        Ok(Incoming {
            store: FileStore { directory: self.directory.clone() },
            file: Temporary::create(self.fresh()?, 0o600)?,
            hash: Sha256::new(),
            bytes: 0,
            written: SystemTime::now(),
        })
    }

    /// An unused temporary name.
    fn fresh(&self) -> io::Result<PathBuf> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = self.directory.join(format!(".new-{}-{number}", std::process::id()));
            // In a container, an earlier process may have had the same id.
            if fs::symlink_metadata(&path).is_err() {
                return Ok(path);
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        durable::sync_dir(&self.directory)
    }

    /// Whether the file is stored with this length and unchanged. Changes nothing: another node may have named a wrong length.
    pub fn holds(&self, digest: &Digest, bytes: u64) -> bool {
        let metadata = fs::symlink_metadata(self.path(digest));
        metadata.is_ok_and(|metadata| metadata.len() == bytes && is_sealed(&metadata))
    }

    /// Whether the file is stored and unchanged. A changed file is removed.
    pub fn has(&self, digest: &Digest, bytes: u64) -> bool {
        let path = self.path(digest);
        let Ok(metadata) = fs::symlink_metadata(&path) else { return false };
        let is_whole = metadata.len() == bytes && is_sealed(&metadata);
        if !is_whole {
            let _ = fs::remove_file(&path);
        }
        is_whole
    }

    /// Gives the file another name. If the file system allows no more links, it is copied.
    pub fn link(&self, digest: &Digest, target: &Path) -> io::Result<()> {
        let path = self.path(digest);
        match fs::hard_link(&path, target) {
            Err(error) if matches!(error.kind(), io::ErrorKind::TooManyLinks | io::ErrorKind::CrossesDevices) => {
                fs::copy(&path, target)?;
                // A copy has another modification time.
                seal(&File::open(target)?, fs::metadata(&path)?.modified()?)
            }
            other => other,
        }
    }

    /// Links a file from the store of another node of this machine. Returns false if that store does not have it.
    pub fn link_from(&self, other: &FileStore, file: &StoredFile) -> io::Result<bool> {
        if !other.has(&file.digest, file.bytes) {
            return Ok(false);
        }
        let fresh = self.fresh()?;
        match other.link(&file.digest, &fresh) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        }
        self.move_to_final_name(&fresh, &file.digest)?;
        Ok(true)
    }

    /// A piece of a file; `None` if the file is not stored.
    pub fn read(&self, digest: &Digest, offset: u64, limit: u32) -> io::Result<Option<Vec<u8>>> {
        let Some((file, metadata)) = self.opened(digest)? else { return Ok(None) };
        let length = metadata.len().saturating_sub(offset).min(u64::from(limit)) as usize;
        let mut piece = vec![0; length];
        file.read_exact_at(&mut piece, offset)?;
        Ok(Some(piece))
    }

    /// Opens a file, and returns when it was written; `None` if the file is not stored.
    pub fn open(&self, digest: &Digest) -> io::Result<Option<(File, SystemTime)>> {
        let Some((file, metadata)) = self.opened(digest)? else { return Ok(None) };
        Ok(Some((file, metadata.modified()?)))
    }

    fn opened(&self, digest: &Digest) -> io::Result<Option<(File, fs::Metadata)>> {
        let file = match File::open(self.path(digest)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let metadata = file.metadata()?;
        if !is_sealed(&metadata) {
            let _ = fs::remove_file(self.path(digest));
            return Ok(None);
        }
        Ok(Some((file, metadata)))
    }

    /// The time at which a file was written; `None` if it is not stored.
    pub fn written(&self, digest: &Digest) -> Option<SystemTime> {
        fs::symlink_metadata(self.path(digest)).ok()?.modified().ok()
    }

    /// Compares the whole file with its digest, after a report that it has changed. A changed file is removed; one that
    /// cannot be read now is kept.
    pub fn verify(&self, digest: &Digest) -> io::Result<bool> {
        let path = self.path(digest);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        let is_whole = digest_of(&mut file)?.0 == *digest;
        if !is_whole {
            tracing::warn!(file = %path.display(), "removing a stored file whose contents have changed");
            let _ = fs::remove_file(&path);
        }
        Ok(is_whole)
    }

    /// All files, ordered by the time at which they last got a name.
    pub fn list(&self) -> Vec<StoredFile> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut files: Vec<((i64, i64), StoredFile)> = entries
            .filter_map(|entry| {
                let digest = Digest::parse(entry.file_name().to_str()?)?;
                let metadata = entry.metadata().ok()?;
                if !is_sealed(&metadata) {
                    // A changed file is not served any more.
                    self.remove(&digest);
                    return None;
                }
                Some(((metadata.ctime(), metadata.ctime_nsec()), StoredFile { digest, bytes: metadata.len() }))
            })
            .collect();
        files.sort_by_key(|(used_at, file)| (*used_at, file.digest));
        files.into_iter().map(|(_, file)| file).collect()
    }

    pub fn remove(&self, digest: &Digest) {
        let _ = fs::remove_file(self.path(digest));
    }

    /// Removes the stores of other nodes that used this executor before.
    pub fn remove_others(state: &Path, node: NodeId) {
        let own = FileStore::of(state, node).directory;
        for store in fs::read_dir(state.join("files")).into_iter().flatten().flatten() {
            if store.path() != own
                && let Some(note) = remove_or_put_aside(state, &store.path(), &mut Pace::fast())
            {
                tracing::warn!("{note}");
            }
        }
    }

    /// Removes incomplete files of processes that have exited. Call it before this process writes files.
    pub fn remove_remains(state: &Path) {
        let writer = |name: &str| name.strip_prefix(".new-")?.split('-').next()?.parse::<u32>().ok();
        // A file with this process's id was written by an earlier process.
        let is_alive = |pid: u32| pid != std::process::id() && Path::new(&format!("/proc/{pid}")).exists();
        for store in fs::read_dir(state.join("files")).into_iter().flatten().flatten() {
            for entry in fs::read_dir(store.path()).into_iter().flatten().flatten() {
                let name = entry.file_name();
                if name.to_str().and_then(writer).is_some_and(|pid| !is_alive(pid)) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
    }
}

/// An incomplete file under a temporary name.
pub struct Incoming {
    store: FileStore,
    pub(super) file: Temporary,
    pub(super) hash: Sha256,
    pub(super) bytes: u64,
    /// The time at which its task wrote it, which may be unknown.
    pub written: SystemTime,
}

impl Incoming {
    pub fn write(&mut self, part: &[u8]) -> io::Result<()> {
        self.hash.update(part);
        self.bytes += part.len() as u64;
        self.file.file().write_all(part)
    }

    /// The number of bytes that have arrived.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Stores the complete file. `None` if its digest is not the requested one.
    pub fn keep(self, wanted: Option<Digest>) -> io::Result<Option<StoredFile>> {
        let digest = Digest(self.hash.finalize().into());
        if wanted.is_some_and(|wanted| wanted != digest) {
            return Ok(None);
        }
        mark(self.file.file(), self.written)?;
        self.file.rename(&self.store.path(&digest))?;
        Ok(Some(StoredFile { digest, bytes: self.bytes }))
    }
}

/// Makes the file read-only with a marked time, durably.
fn seal(file: &File, written: SystemTime) -> io::Result<()> {
    mark(file, written)?;
    file.sync_all()
}

/// Makes the file read-only with a marked time.
fn mark(file: &File, written: SystemTime) -> io::Result<()> {
    let coarse = SystemTime::UNIX_EPOCH + COARSE;
    file.set_permissions(Permissions::from_mode(READ_ONLY))?;
    file.set_times(FileTimes::new().set_modified(marked(written).unwrap_or(coarse)))?;
    if !is_sealed(&file.metadata()?) {
        file.set_times(FileTimes::new().set_modified(coarse))?;
    }
    Ok(())
}

/// The same time to the millisecond, with the mark.
fn marked(time: SystemTime) -> Option<SystemTime> {
    let within = |length: Duration| i64::from(length.subsec_nanos()) % MILLISECOND;
    let above = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => within(since),
        Err(before) => (MILLISECOND - within(before.duration())) % MILLISECOND,
    };
    time.checked_sub(Duration::from_nanos(above.unsigned_abs()))?.checked_add(Duration::from_nanos(MARK.unsigned_abs()))
}

fn is_sealed(metadata: &fs::Metadata) -> bool {
    let is_marked = metadata.mtime_nsec() % MILLISECOND == MARK;
    metadata.is_file() && (is_marked || (metadata.mtime(), metadata.mtime_nsec()) == (COARSE.as_secs() as i64, 0))
}

fn digest_of(file: &mut File) -> io::Result<(Digest, u64)> {
    let (mut hash, mut bytes, mut part) = (Sha256::new(), 0, vec![0; PART]);
    loop {
        match file.read(&mut part)? {
            0 => return Ok((Digest(hash.finalize().into()), bytes)),
            length => {
                hash.update(&part[..length]);
                bytes += length as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(state: &Path) -> FileStore {
        FileStore::of(state, NodeId(3))
    }

    /// A file that a task left.
    fn left<'a>(state: &Path, name: &'a str, text: &str) -> Left<'a> {
        fs::write(state.join(name), text).unwrap();
        Left::find(state, name).unwrap()
    }

    #[test]
    fn a_file_is_stored_under_its_checksum_and_read_from_there() {
        let state = tempfile::tempdir().unwrap();
        let (store, path) = (store(state.path()), state.path().join("o"));
        let stored = store.put(&left(state.path(), "o", "abc"), false).unwrap();
        // Computed with `printf abc | sha256sum`.
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((stored.digest.to_string().as_str(), stored.bytes), (known, 3));
        assert!(!path.exists());
        assert_eq!(store.read(&stored.digest, 1, 10).unwrap().as_deref(), Some(&b"bc"[..]));
        assert_eq!(store.read(&stored.digest, 1, 1).unwrap().as_deref(), Some(&b"b"[..]));
        assert_eq!(store.read(&stored.digest, 9, 1).unwrap().as_deref(), Some(&b""[..]));
        assert_eq!(store.list(), [stored]);
        let target = state.path().join("input");
        store.link(&stored.digest, &target).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "abc");
        assert_eq!(fs::metadata(&target).unwrap().mode() & 0o777, READ_ONLY);
        store.remove(&stored.digest);
        assert_eq!((store.list(), store.read(&stored.digest, 0, 1).unwrap()), (vec![], None));
    }

    #[test]
    fn a_kept_file_stays_and_a_file_with_another_name_is_not_changed() {
        let state = tempfile::tempdir().unwrap();
        let store = store(state.path());
        store.put(&left(state.path(), "o", "abc"), true).unwrap();
        assert_eq!(fs::read_to_string(state.path().join("o")).unwrap(), "abc");
        let (others, output) = (state.path().join("others"), state.path().join("output"));
        fs::write(&others, "xyz").unwrap();
        fs::hard_link(&others, &output).unwrap();
        fs::set_permissions(&others, Permissions::from_mode(0o644)).unwrap();
        let stored = store.put(&Left::find(state.path(), "output").unwrap(), false).unwrap();
        assert!(!output.exists() && store.has(&stored.digest, 3));
        assert!(!is_sealed(&fs::metadata(&others).unwrap()));
    }

    #[test]
    fn a_changed_file_is_removed() {
        let state = tempfile::tempdir().unwrap();
        let store = store(state.path());
        let stored = store.put(&left(state.path(), "o", "abc"), false).unwrap();
        let link = state.path().join("input");
        store.link(&stored.digest, &link).unwrap();
        fs::set_permissions(&link, Permissions::from_mode(0o644)).unwrap();
        assert!(store.has(&stored.digest, 3));
        fs::write(&link, "abd").unwrap();
        assert!(!store.has(&stored.digest, 3));
        assert_eq!(store.list(), []);
    }

    #[test]
    fn a_stored_file_has_the_time_at_which_it_was_written() {
        let state = tempfile::tempdir().unwrap();
        let (one, other) = (store(state.path()), FileStore::of(state.path(), NodeId(4)));
        let epoch = SystemTime::UNIX_EPOCH;
        let (late, early) = (Duration::new(1_582_608_722, 999_999_999), Duration::new(86_400, 1));
        for (name, time) in [("now", SystemTime::now()), ("late", epoch + late), ("early", epoch - early)] {
            let file = left(state.path(), name, name);
            let opened = File::options().write(true).open(state.path().join(name)).unwrap();
            opened.set_times(FileTimes::new().set_modified(time)).unwrap();
            let shared = state.path().join("shared");
            fs::hard_link(state.path().join(name), &shared).unwrap();
            // A file with two names is copied.
            for kept in [Left::find(state.path(), "shared").unwrap(), file] {
                let stored = one.put(&kept, false).unwrap();
                assert!(other.link_from(&one, &stored).unwrap());
                let target = state.path().join("input");
                other.link(&stored.digest, &target).unwrap();
                let found = fs::metadata(&target).unwrap().modified().unwrap();
                let apart = found.duration_since(time).unwrap_or_else(|error| error.duration());
                assert!(apart < Duration::from_millis(1), "{name}: {time:?} became {found:?}");
                assert!(one.has(&stored.digest, stored.bytes), "{name}");
                fs::remove_file(&target).unwrap();
                one.remove(&stored.digest);
                other.remove(&stored.digest);
            }
        }
    }

    #[test]
    fn a_changed_file_is_removed_by_a_listing() {
        let state = tempfile::tempdir().unwrap();
        let store = store(state.path());
        let stored = store.put(&left(state.path(), "o", "abc"), false).unwrap();
        fs::set_permissions(store.path(&stored.digest), Permissions::from_mode(0o600)).unwrap();
        fs::write(store.path(&stored.digest), "abd").unwrap();
        assert_eq!(store.list(), []);
        assert!(!store.path(&stored.digest).exists(), "it does not use space permanently");
    }

    #[test]
    fn leftovers_of_earlier_processes_and_nodes_are_removed() {
        let state = tempfile::tempdir().unwrap();
        let (store, other) = (store(state.path()), FileStore::of(state.path(), NodeId(4)));
        let stored = store.put(&left(state.path(), "o", "abc"), false).unwrap();
        other.put(&left(state.path(), "p", "xyz"), false).unwrap();
        // Files of an earlier process with the same id, in a container.
        let remains = |number: u32| store.directory.join(format!(".new-{}-{number}", std::process::id()));
        (0..300).for_each(|number| fs::write(remains(number), "").unwrap());
        assert!(store.incoming().is_ok());
        FileStore::remove_remains(state.path());
        assert_eq!(fs::read_dir(&store.directory).unwrap().count(), 1);
        FileStore::remove_others(state.path(), NodeId(3));
        assert_eq!((store.list(), other.directory.exists()), (vec![stored], false));
    }

    #[test]
    fn a_file_with_the_wrong_digest_is_not_stored() {
        let state = tempfile::tempdir().unwrap();
        let store = store(state.path());
        let stored = store.put(&left(state.path(), "o", "abc"), false).unwrap();
        store.remove(&stored.digest);
        for (text, is_kept) in [("abd", false), ("abc", true)] {
            let mut incoming = store.incoming().unwrap();
            incoming.write(text.as_bytes()).unwrap();
            assert_eq!(incoming.keep(Some(stored.digest)).unwrap().is_some(), is_kept);
            assert_eq!(store.has(&stored.digest, 3), is_kept);
        }
        assert_eq!(fs::read_dir(&store.directory).unwrap().count(), 1);
    }

    #[test]
    fn nodes_of_one_machine_share_a_file() {
        let state = tempfile::tempdir().unwrap();
        let (one, other) = (store(state.path()), FileStore::of(state.path(), NodeId(4)));
        let stored = one.put(&left(state.path(), "o", "abc"), false).unwrap();
        assert!(other.link_from(&one, &stored).unwrap());
        one.remove(&stored.digest);
        assert!(
            other.has(&stored.digest, 3) && !one.link_from(&FileStore::of(state.path(), NodeId(5)), &stored).unwrap()
        );
        let names = |store: &FileStore| fs::read_dir(&store.directory).unwrap().count();
        assert!(one.link_from(&other, &stored).unwrap() && one.link_from(&other, &stored).unwrap());
        assert_eq!((names(&one), names(&other)), (1, 1), "a repetition leaves no second name");
    }

    #[test]
    fn a_file_that_cannot_be_read_now_is_kept() {
        let state = tempfile::tempdir().unwrap();
        let (store, digest) = (store(state.path()), Digest([7; 32]));
        fs::create_dir_all(&store.directory).unwrap();
        // Reads of a directory always fail, as on a broken disk.
        std::os::unix::fs::symlink(state.path(), store.path(&digest)).unwrap();
        assert!(store.verify(&digest).is_err());
        assert!(fs::symlink_metadata(store.path(&digest)).is_ok());
        store.remove(&digest);
        assert!(!store.verify(&digest).unwrap(), "it is removed");
    }

    #[test]
    fn the_message_for_a_full_disk_names_the_directory_and_a_remedy() {
        let state = tempfile::tempdir().unwrap();
        let printed = store(state.path()).trouble(&io::Error::from_raw_os_error(libc::ENOSPC));
        assert!(printed.contains(state.path().to_str().unwrap()) && printed.contains("--cache"), "{printed}");
    }
}
