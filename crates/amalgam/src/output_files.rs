//! Fetches declared outputs of tasks through the server. A file is written as a whole, with the checksum that it had on its node,
//! or not at all.

use crate::client::{Client, Query, very_patiently};
use crate::failure::{Failure, Result};
use crate::selectors::Meant;
use amalgam_core::vocabulary::files::matches;
use amalgam_core::why::counted;
use amalgam_daemon::api::{JobDetail, OutputFile};
use amalgam_daemon::durable::{Temporary, sync_parent};
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process;

/// How many times a file with a wrong checksum is requested.
const TRIES: u32 = 3;

/// What to do with files that exist or are incomplete.
#[derive(Clone, Copy, Default)]
pub struct Manner {
    /// Existing files that differ are replaced.
    pub force: bool,
    /// What has arrived is kept if the program is interrupted, and the next one continues from there.
    pub continues: bool,
}

/// The outputs of these tasks whose names match the pattern.
///
/// # Errors
/// If there are none.
pub fn find(client: &Client, job: &JobDetail, meant: &Meant, pattern: &str) -> Result<Vec<OutputFile>> {
    let id = job.summary.id;
    let mut query = Query::default();
    query.add("stage", meant.stage.map(|stage| stage.to_string()).as_deref());
    query.add("index", meant.index().map(|index| index.to_string()).as_deref());
    let mut files: Vec<OutputFile> = client.list(&format!("/v1/jobs/{id}/outputs"), &query)?;
    files.retain(|file| meant.has(file.index));
    let all = files.len();
    files.retain(|file| matches(pattern, &file.name));
    if files.is_empty() {
        return Err(nothing(id, all, pattern));
    }
    Ok(files)
}

fn nothing(id: u64, all: usize, pattern: &str) -> Failure {
    if all > 0 {
        let what = format!("none of the {} of job {id} has a name like `{pattern}`", counted(all as u64, "output"));
        return Failure::new(what, format!("`amalgam outputs {id} --list` shows their names"));
    }
    let what = format!("no outputs of job {id}");
    let remedy =
        "tasks that have succeeded leave the outputs that their stage declares: outputs = [\"NAME\"] in a job file";
    Failure::new(what, remedy)
}

/// Fetches the whole file, unless it exists. `directory` is on the file system of `path`.
pub fn fetch(
    client: &Client,
    job: u64,
    file: &OutputFile,
    directory: &Path,
    path: &Path,
    manner: Manner,
) -> Result<PathBuf> {
    if let Ok(found) = fs::symlink_metadata(path) {
        let is_same =
            found.is_file() && found.len() == file.bytes && checksum(path).is_ok_and(|sum| sum == file.sha256);
        if is_same {
            return Ok(path.to_owned());
        }
        if !found.is_file() && !found.is_symlink() || !manner.force {
            let what =
                format!("{} exists, and differs from output `{}` of task {}", path.display(), file.name, file.task);
            let remedy = if found.is_dir() { "name another directory" } else { "--force replaces it" };
            return Err(Failure::new(what, remedy));
        }
    }
    if manner.continues {
        return continued(client, job, file, path);
    }
    let part = temporary(directory)?;
    for suspect in 0..TRIES {
        let mut out = part.file();
        out.set_len(0).and_then(|()| out.rewind()).map_err(|error| cannot("write", part.path(), &error))?;
        let mut received = Received::default();
        received.add_rest(client, job, file, suspect > 0, part.path(), &mut out)?;
        if received.checksum() == file.sha256 {
            part.rename(path).map_err(|error| cannot("write", path, &error))?;
            return Ok(path.to_owned());
        }
    }
    Err(spoiled(file))
}

/// Fetches the rest of a file that an earlier program may have started.
fn continued(client: &Client, job: u64, file: &OutputFile, path: &Path) -> Result<PathBuf> {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".amalgam-part");
    let partial = path.with_file_name(name);
    let cannot_write = |error: io::Error| cannot("write", &partial, &error);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW);
    let mut part = options.open(&partial).map_err(cannot_write)?;
    let mut received = Received::default();
    received.add_all(&mut (&part).take(file.bytes)).map_err(cannot_write)?;
    part.set_len(received.bytes).map_err(cannot_write)?;
    for suspect in 0..TRIES {
        received.add_rest(client, job, file, suspect > 0, &partial, &mut part)?;
        if std::mem::take(&mut received).checksum() == file.sha256 {
            let kept = part.sync_all().and_then(|()| fs::rename(&partial, path)).and_then(|()| sync_parent(path));
            kept.map_err(|error| cannot("write", path, &error))?;
            return Ok(path.to_owned());
        }
        part.set_len(0).and_then(|()| part.seek(SeekFrom::Start(0))).map_err(cannot_write)?;
    }
    let _ = fs::remove_file(&partial);
    Err(spoiled(file))
}

/// Writes the content to standard output or a pipe, where it cannot be taken back.
pub fn print(client: &Client, job: u64, file: &OutputFile, out: &mut dyn Write) -> Result<()> {
    let mut received = Received::default();
    received.add_rest(client, job, file, false, Path::new("standard output"), out)?;
    out.flush().map_err(|error| cannot("write", Path::new("standard output"), &error))?;
    if received.checksum() == file.sha256 { Ok(()) } else { Err(spoiled(file)) }
}

fn spoiled(file: &OutputFile) -> Failure {
    let what = format!("output `{}` of task {} has another checksum on every node that has it", file.name, file.task);
    Failure::new(what, "run the task again; the file was modified on its node")
}

/// The incomplete file of this process.
fn temporary(directory: &Path) -> Result<Temporary> {
    let path = directory.join(format!(".amalgam-outputs-{}", process::id()));
    // It may be left from a process with the same number.
    let _ = fs::remove_file(&path);
    Temporary::create(path.clone(), 0o666).map_err(|error| cannot("write", &path, &error))
}

/// The bytes of a file that have arrived.
#[derive(Default)]
struct Received {
    hash: Sha256,
    bytes: u64,
}

impl Received {
    /// Fetches the missing bytes, if necessary over several connections.
    fn add_rest(
        &mut self,
        client: &Client,
        job: u64,
        file: &OutputFile,
        suspect: bool,
        path: &Path,
        out: &mut dyn Write,
    ) -> Result<()> {
        let mut piece = vec![0; 1 << 18];
        while self.bytes < file.bytes {
            let before = self.bytes;
            let query = Query::default().with("task", &file.task).with("name", &file.name);
            let query = query.with("offset", &before.to_string());
            let query = if suspect { query.with("suspect", "true") } else { query };
            let answer = very_patiently(|| client.open(&format!("/v1/jobs/{job}/outputs/content{query}")))?;
            let mut body = answer.into_body().into_reader();
            loop {
                match body.read(&mut piece) {
                    Ok(0) => break,
                    Ok(length) => {
                        out.write_all(&piece[..length]).map_err(|error| cannot("write", path, &error))?;
                        self.hash.update(&piece[..length]);
                        self.bytes += length as u64;
                    }
                    // The connection broke; the next one continues from here.
                    Err(_) => break,
                }
            }
            if self.bytes == before {
                let what = format!("output `{}` of task {} ends before its {} bytes", file.name, file.task, file.bytes);
                return Err(Failure::new(what, "try again"));
            }
        }
        Ok(())
    }

    /// Adds bytes that are here already.
    fn add_all(&mut self, source: &mut impl Read) -> io::Result<()> {
        let mut part = vec![0; 1 << 18];
        loop {
            match source.read(&mut part)? {
                0 => return Ok(()),
                length => {
                    self.hash.update(&part[..length]);
                    self.bytes += length as u64;
                }
            }
        }
    }

    fn checksum(self) -> String {
        hex(&self.hash.finalize())
    }
}

fn checksum(path: &Path) -> io::Result<String> {
    let mut received = Received::default();
    received.add_all(&mut File::open(path)?)?;
    Ok(received.checksum())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn cannot(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot {what} {}: {error}", path.display()), "name another file or directory")
}
