//! The audit log: every request that changes something, with who made it, from where and with what result. One JSON object for
//! each line, in the order of the answers.
//!
//! Lines are written before the answer is sent, but not synced to the disk: a crash of the machine can lose the last ones.

use crate::api::ConfigChange;
use crate::durable;
use rustix::fs::OFlags;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// A file that has grown to this size is renamed to `audit.log.1`.
const MOST_BYTES: u64 = 16 << 20;
/// Number of renamed files that are kept.
pub(crate) const KEPT: u32 = 4;

/// A line of the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Line<'a> {
    /// `None` if the caller has not proven who it is.
    pub user: Option<&'a str>,
    /// The name of the access token, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<&'a str>,
    /// The address of the client, or `local` for a command that changed files of the state directory.
    pub from: String,
    /// The method and path of the request, or the command.
    pub request: String,
    /// What was to be changed, as far as it was understood.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
    /// What was there before the change and after it, if that is short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The HTTP status of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// `ok`, or the reason why it was refused or failed.
    pub result: String,
    /// The id of the request, as in the header `X-Request-Id` and in the daemon's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

impl<'a> Line<'a> {
    /// Without what only some requests have.
    fn new(user: Option<&'a str>, from: String, request: String, result: String) -> Line<'a> {
        let (token, what, before, after, status, id) = (None, None, None, None, None, None);
        Line { user, token, from, request, what, before, after, status, result, id }
    }
}

/// A value before and after a change.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Difference {
    pub what: String,
    pub before: String,
    pub after: String,
}

/// What a reload of the configuration is called.
pub const RELOAD: &str = "reload the configuration";

impl From<&ConfigChange> for Difference {
    fn from(ConfigChange { key, before, after, needs_restart }: &ConfigChange) -> Difference {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "(not set)".to_owned());
        let later = if *needs_restart { ", needs a restart" } else { "" };
        Difference { what: format!("{RELOAD}: {key}{later}"), before: shown(before), after: shown(after) }
    }
}

pub struct AuditLog {
    path: PathBuf,
    open: Mutex<Open>,
}

struct Open {
    file: File,
    bytes: u64,
    /// Requests without a valid token, and refused joins: neither displaces the lines of the other.
    strangers: [Strangers; 2],
}

/// Who has no user.
#[derive(Clone, Copy)]
enum Stranger {
    Caller,
    Daemon,
}

/// Lines without a user in one hour.
#[derive(Clone, Copy, Default)]
struct Strangers {
    hour: u64,
    lines: u32,
    left_out: u32,
}

/// Lines of each kind without a user that are written in an hour: callers without a token cannot displace the lines of others within days.
const MOST_STRANGERS: u32 = 60;
/// The most characters of a text in a line.
const MOST_TEXT: usize = 512;

impl AuditLog {
    pub const FILE: &'static str = "audit.log";

    /// Opens the log of a state directory.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(state_dir: &Path) -> io::Result<AuditLog> {
        let path = state_dir.join(AuditLog::FILE);
        let file = append_to(&path)?;
        let bytes = file.metadata()?.len();
        Ok(AuditLog { path, open: Mutex::new(Open { file, bytes, strangers: Default::default() }) })
    }

    /// Adds a line about a daemon that asked for what it authenticates itself with from now on. One that was refused is a stranger.
    pub fn add_daemon(&self, daemon: &str, from: String, request: &str, refused: Option<&str>) {
        let what = refused.map(|_| format!("as {daemon}"));
        let user = refused.is_none().then_some(daemon);
        let result = refused.unwrap_or("ok").to_owned();
        self.add_as(Stranger::Daemon, &Line { what, ..Line::new(user, from, request.to_owned(), result) });
    }

    /// Adds a line. A failure is reported in the daemon's log, and does not affect the request.
    pub fn add(&self, line: &Line) {
        self.add_as(Stranger::Caller, line);
    }

    fn add_as(&self, stranger: Stranger, line: &Line) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if line.user.is_none() {
            let hour = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 3_600;
            let counted = &mut open.strangers[stranger as usize];
            if counted.hour != hour {
                let left_out = counted.left_out;
                *counted = Strangers { hour, ..Strangers::default() };
                if left_out > 0 {
                    let which = match stranger {
                        Stranger::Caller => format!("{left_out} more requests without a valid token"),
                        Stranger::Daemon => format!("{left_out} more refused joins"),
                    };
                    let result = "not recorded one by one".to_owned();
                    self.append(&mut open, &Line::new(None, "several".to_owned(), which, result));
                }
            }
            let counted = &mut open.strangers[stranger as usize];
            if counted.lines >= MOST_STRANGERS {
                counted.left_out = counted.left_out.saturating_add(1);
                return;
            }
            counted.lines += 1;
        }
        self.append(&mut open, line);
    }

    fn append(&self, open: &mut Open, line: &Line) {
        let written = self.rotate(open).and_then(|()| write(&mut open.file, line));
        match written {
            Ok(length) => open.bytes += length,
            Err(error) => tracing::error!(path = %self.path.display(), %error, "cannot write the audit log"),
        }
    }

    fn rotate(&self, open: &mut Open) -> io::Result<()> {
        if open.bytes < MOST_BYTES {
            return Ok(());
        }
        let numbered = |number: u32| self.path.with_extension(format!("log.{number}"));
        for number in (1..KEPT).rev() {
            match fs::rename(numbered(number), numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, numbered(1))?;
        (open.file, open.bytes) = (append_to(&self.path)?, 0);
        Ok(())
    }
}

/// Adds a line about a command that changes files of a state directory itself, whether its server runs or not.
///
/// # Errors
/// If the log cannot be written.
pub fn add_local(state_dir: &Path, user: &str, request: String, result: String) -> io::Result<()> {
    let line = Line::new(Some(user), "local".to_owned(), request, result);
    write(&mut append_to(&state_dir.join(AuditLog::FILE))?, &line).map(drop)
}

/// Opens the log, or creates it for the owner of its directory. Root may write to the directory of another user, so what that user
/// puts in its place is not followed.
fn append_to(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).mode(0o600).custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            durable::belong_to_directory(&file, path);
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = options.open(path)?;
            let found = file.metadata()?;
            if !found.is_file() || found.nlink() != 1 {
                return Err(io::Error::other("it is not a file of its own"));
            }
            Ok(file)
        }
        Err(error) => Err(error),
    }
}

/// Writes a line with one call, so that lines of two processes do not mix. Returns its length.
fn write(file: &mut File, line: &Line) -> io::Result<u64> {
    #[derive(Serialize)]
    struct At<'a> {
        at: String,
        #[serde(flatten)]
        line: &'a Line<'a>,
    }
    let at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    let cut = |text: &str| text.chars().take(MOST_TEXT).collect::<String>();
    let (before, after) = (line.before.as_deref().map(cut), line.after.as_deref().map(cut));
    let (request, what, result) = (cut(&line.request), line.what.as_deref().map(cut), cut(&line.result));
    let line = &Line { request, what, before, after, result, ..line.clone() };
    let mut text = serde_json::to_vec(&At { at, line }).map_err(io::Error::other)?;
    text.push(b'\n');
    file.write_all(&text)?;
    Ok(text.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn line(what: &str) -> Line<'_> {
        let (from, request) = ("127.0.0.1:1".to_owned(), "POST /v1/jobs".to_owned());
        let (what, result) = (Some(what.to_owned()), "ok".to_owned());
        let (before, after) = (None, None);
        Line { user: Some("ada"), token: None, from, request, what, before, after, status: Some(201), result, id: None }
    }

    #[test]
    fn lines_are_json_in_a_private_file_and_old_files_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let log = AuditLog::open(directory.path()).unwrap();
        log.add(&line("submit \"x\"\n"));
        add_local(directory.path(), "root", "token add grace".to_owned(), "ok".to_owned()).unwrap();
        let path = directory.path().join(AuditLog::FILE);
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.len(), lines[0]["what"].as_str()), (2, Some("submit \"x\"\n")));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);

        std::os::unix::fs::symlink("/etc/passwd", directory.path().join("linked")).unwrap();
        assert!(append_to(&directory.path().join("linked")).is_err());
        fs::hard_link(&path, directory.path().join("shared")).unwrap();
        assert!(append_to(&path).is_err());
        for name in ["linked", "shared"] {
            fs::remove_file(directory.path().join(name)).unwrap();
        }
        let long = "x".repeat(70_000);
        for _ in 0..100 {
            log.add(&Line { user: None, request: long.clone(), result: long.clone(), ..line("refused") });
        }
        let text = fs::read_to_string(&path).unwrap();
        assert!((60..=2 * 60 + 2).contains(&text.lines().count()) && text.len() < 200_000, "{}", text.len());
        // A join that is refused is still recorded, and an hour later how many requests were not.
        log.add_daemon("the agent of node x", "10.0.0.9:5".to_owned(), "join with a string", Some("used up"));
        log.open.lock().unwrap().strangers[0].hour -= 1;
        log.add(&Line { user: None, ..line("refused") });
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("as the agent of node x") && text.contains("40 more requests without a valid token"),
            "{text}"
        );

        for number in 0..8 {
            log.open.lock().unwrap().bytes = MOST_BYTES;
            log.add(&line(&number.to_string()));
        }
        let mut names: Vec<String> = fs::read_dir(directory.path())
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["audit.log", "audit.log.1", "audit.log.2", "audit.log.3", "audit.log.4"]);
        assert!(fs::read_to_string(&path).unwrap().contains("\"what\":\"7\""));
        assert!(fs::read_to_string(directory.path().join("audit.log.4")).unwrap().contains("\"what\":\"3\""));
    }
}
