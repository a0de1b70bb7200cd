//! Writes the archive of a state directory that its process may be using.

use super::{BackupError, FORMAT, LOGS, Listed, MANIFEST, Manifest, small_files};
use crate::accounting;
use crate::auth::{self, hex};
use crate::store::{Content, Part, parts};
use crate::versions::{PROGRAM, Versions};
use crate::{seat, stored_terms};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes an archive with everything that was acknowledged before the call. The process of the directory may run.
///
/// # Errors
/// If the directory has no log, a file cannot be read, the log is damaged, or the archive cannot be written.
pub fn write(state_dir: &Path, out: &mut dyn Write) -> Result<Manifest, BackupError> {
    let at = SystemTime::now();
    if !LOGS.iter().any(|log| state_dir.join(log).exists()) {
        // A directory that may not be read has another message.
        fs::metadata(state_dir).map_err(|error| match error.kind() {
            ErrorKind::NotFound => BackupError::NoLog { dir: state_dir.to_owned() },
            _ => BackupError::file("read", state_dir)(error),
        })?;
    }
    let mut files = open_small(state_dir)?;
    let kind = kind(state_dir)?;
    let mut versions: Option<Versions> = None;
    for log in LOGS {
        let dir = state_dir.join(log);
        if !dir.try_exists().map_err(BackupError::file("look at", &dir))? {
            continue;
        }
        let (of, found) = parts(&dir)?;
        versions =
            Some(versions.map_or(of, |other| Versions {
                oldest: other.oldest.min(of.oldest),
                newest: other.newest.max(of.newest),
            }));
        files.extend(found.into_iter().map(|part| Part { name: format!("{log}/{}", part.name), ..part }));
    }
    let Some(store) = versions else { return Err(BackupError::NoLog { dir: state_dir.to_owned() }) };
    let listed = files.iter().map(|part| listed(state_dir, part)).collect::<Result<_, _>>()?;
    let time = humantime::format_rfc3339_seconds(at).to_string();
    let manifest = Manifest { format: FORMAT, program: PROGRAM.to_owned(), store, kind, at: time, files: listed };
    pack(&manifest, &files, at, out).map_err(BackupError::Write)?;
    Ok(manifest)
}

/// The owner of the directory.
fn kind(state_dir: &Path) -> Result<String, BackupError> {
    if stored_terms::path(state_dir).exists() {
        return Ok("a job host".to_owned());
    }
    let path = state_dir.join(seat::FILE);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.trim_end().to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok("a daemon that was never complete".to_owned()),
        Err(error) => Err(BackupError::file("read", &path)(error)),
    }
}

/// The files outside of the logs that exist. Each is replaced as a whole or only grows.
fn open_small(state_dir: &Path) -> Result<Vec<Part>, BackupError> {
    let _lock = auth::lock(state_dir).map_err(BackupError::file("lock", state_dir))?;
    let (mut parts, mut seen) = (Vec::new(), Vec::new());
    // Before the log, which then has all that they counted.
    let usage = state_dir.join(accounting::DIR);
    let usage = accounting::files(&usage).map_err(BackupError::file("read", &usage))?;
    for name in small_files().into_iter().chain(usage.iter().map(|name| format!("{}/{name}", accounting::DIR))) {
        let path = state_dir.join(&name);
        let opened = File::open(&path).and_then(|file| file.metadata().map(|found| (file, found)));
        match opened {
            Ok((file, found)) => {
                // The audit log may be renamed meanwhile.
                if !seen.contains(&(found.dev(), found.ino())) {
                    seen.push((found.dev(), found.ino()));
                    parts.push(Part { name, content: Content::Start { file, length: found.len() } });
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(BackupError::file("read", &path)(error)),
        }
    }
    Ok(parts)
}

fn listed(state_dir: &Path, part: &Part) -> Result<Listed, BackupError> {
    let mut hasher = Sha256::new();
    let hashed = read(&part.content, &mut |bytes| {
        hasher.update(bytes);
        Ok(())
    });
    let bytes = hashed.map_err(BackupError::file("read", &state_dir.join(&part.name)))?;
    Ok(Listed { path: part.name.clone(), bytes, sha256: hex(&hasher.finalize()) })
}

/// Passes the content on in pieces. Returns its length.
fn read(content: &Content, take: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<u64> {
    match content {
        Content::Bytes(bytes) => take(bytes).map(|()| bytes.len() as u64),
        Content::Start { file, length } => {
            let mut file: &File = file;
            file.rewind()?;
            let mut left = *length;
            let mut buffer = vec![0; 256 << 10];
            while left > 0 {
                let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                match file.read(&mut buffer[..wanted])? {
                    0 => return Err(io::Error::new(ErrorKind::UnexpectedEof, "it was cut meanwhile; try again")),
                    read => {
                        take(&buffer[..read])?;
                        left -= read as u64;
                    }
                }
            }
            Ok(*length)
        }
    }
}

fn pack(manifest: &Manifest, files: &[Part], at: SystemTime, out: &mut dyn Write) -> io::Result<()> {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut text = serde_json::to_vec_pretty(manifest).map_err(io::Error::other)?;
    text.push(b'\n');
    append(out, seconds, MANIFEST, text.len() as u64, &Content::Bytes(text))?;
    for (part, listed) in files.iter().zip(&manifest.files) {
        append(out, seconds, &part.name, listed.bytes, &part.content)?;
    }
    // The end of a tar file.
    out.write_all(&[0; 1024])?;
    out.flush()
}

fn append(out: &mut dyn Write, seconds: u64, path: &str, bytes: u64, content: &Content) -> io::Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_path(path)?;
    header.set_size(bytes);
    header.set_mode(0o600);
    header.set_mtime(seconds);
    header.set_entry_type(tar::EntryType::Regular);
    header.set_cksum();
    out.write_all(header.as_bytes())?;
    let written = read(content, &mut |piece| out.write_all(piece))?;
    let padding = (512 - written % 512) % 512;
    out.write_all(&[0; 512][..padding as usize])
}
