//! The error of every verb: what is wrong, why, and what helps.

use amalgam_daemon::api;
use amalgam_daemon::auth::AuthError;
use amalgam_daemon::backup::BackupError;
use amalgam_daemon::server::ServerError;
use amalgam_daemon::terminal::visible;
use amalgam_workload::FileError;
use amalgam_workload::quantities::Malformed;
use amalgam_workload::trace::WorkloadError;
use std::fmt;
use std::io;
use std::path::Path;

pub type Result<T> = std::result::Result<T, Failure>;

#[derive(Debug)]
pub struct Failure {
    pub what: String,
    pub remedy: String,
    /// The exit code of the process.
    pub code: u8,
    pub kind: Kind,
    /// The servers that can answer instead.
    pub elsewhere: Option<Box<api::Elsewhere>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// No process listens at the server's address.
    Unreachable,
    /// The connection broke during the call; whether the call took effect is unknown.
    Broken,
    /// The server reports that it may work again soon.
    Unavailable,
    /// The server is a standby, and works once it has taken over.
    Standby,
    Refused,
    /// The server's certificate is not trusted; another try would fail in the same way.
    Unverified,
    /// The same, because an authority has signed it that the client does not know.
    UnknownAuthority,
    NotFound,
    /// It was there, and is gone for good.
    Removed,
    /// This kind of server does not support the call.
    Unsupported,
    /// The reader closed the other end of our output.
    ClosedByReader,
    /// Output could not be written, for example because the disk is full.
    Unwritten,
}

impl Kind {
    pub fn is_unverified(self) -> bool {
        matches!(self, Kind::Unverified | Kind::UnknownAuthority)
    }

    /// Whether the same call may succeed later, if nobody does anything about it.
    pub fn may_pass(self) -> bool {
        matches!(self, Kind::Unreachable | Kind::Broken | Kind::Unavailable | Kind::Standby)
    }
}

impl Failure {
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Failure {
        Failure { what: what.into(), remedy: remedy.into(), code: 1, kind: Kind::Refused, elsewhere: None }
    }

    /// A mistake on the command line.
    pub fn usage(what: impl Into<String>, remedy: impl Into<String>) -> Failure {
        Failure { code: 2, ..Failure::new(what, remedy) }
    }

    /// A text file that cannot be read. `otherwise` is the help where the error does not suggest another one.
    pub fn unreadable(path: &Path, error: &io::Error, otherwise: &str) -> Failure {
        let remedy = match error.kind() {
            io::ErrorKind::InvalidData => "name a text file, or convert it to UTF-8",
            io::ErrorKind::IsADirectory => "name a file in it",
            io::ErrorKind::PermissionDenied => "make it readable for your user",
            _ => otherwise,
        };
        Failure::usage(format!("cannot read {}: {error}", path.display()), remedy)
    }

    /// Output that could not be written.
    pub fn unwritten(place: &str, error: &io::Error) -> Failure {
        let (kind, remedy) = match error.kind() {
            io::ErrorKind::BrokenPipe => (Kind::ClosedByReader, ""),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                (Kind::Unwritten, "free space there, or write to another place")
            }
            _ => (Kind::Unwritten, "write to another place"),
        };
        Failure { kind, ..Failure::new(format!("cannot write to {place}: {error}"), remedy) }
    }

    pub fn unreachable(what: impl Into<String>, remedy: impl Into<String>) -> Failure {
        Failure { kind: Kind::Unreachable, ..Failure::new(what, remedy) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "\n  help: {}", self.remedy) }
    }
}

impl From<api::Error> for Failure {
    fn from(error: api::Error) -> Failure {
        let kind = match error.error {
            _ if error.standby => Kind::Standby,
            api::ErrorCode::Unavailable => Kind::Unavailable,
            api::ErrorCode::NotFound => Kind::NotFound,
            api::ErrorCode::Removed => Kind::Removed,
            api::ErrorCode::Unsupported => Kind::Unsupported,
            _ => Kind::Refused,
        };
        // An administrator finds a defect by it in the server's diagnostics.
        let id = error.request.filter(|_| error.error == api::ErrorCode::Internal);
        let id = id.map_or_else(String::new, |id| format!(" (request {id})"));
        let (what, remedy) = (visible(&error.message) + id.as_str(), visible(&error.remedy));
        Failure { kind, elsewhere: error.elsewhere, ..Failure::new(what, remedy) }
    }
}

impl From<AuthError> for Failure {
    fn from(error: AuthError) -> Failure {
        let remedy = error.remedy();
        Failure::new(error.to_string(), remedy)
    }
}

impl From<BackupError> for Failure {
    fn from(error: BackupError) -> Failure {
        Failure::new(error.to_string(), error.remedy())
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Failure {
        match error {
            ServerError::Auth(error) => error.into(),
            ServerError::Address(_) => Failure::usage(error.to_string(), ""),
            ServerError::Unhosted => {
                Failure::usage(error.to_string(), "start it with `amalgam server`, or leave out job_hosts")
            }
            ServerError::Federation(_) => {
                Failure::usage(error.to_string(), "use --number, or correct [federation] in --config")
            }
            ServerError::Inseparable => {
                Failure::usage(error.to_string(), "start it with `amalgam server`, or leave [store] out")
            }
            ServerError::Authority(ref why) => Failure::new(error.to_string(), why.remedy()),
            ServerError::Replica(ref why) => Failure::new(error.to_string(), why.remedy()),
            ServerError::Changed(ref misfit) => Failure::usage(error.to_string(), misfit.remedy.clone()),
            _ => Failure::new(error.to_string(), ""),
        }
    }
}

impl From<Malformed> for Failure {
    fn from(wrong: Malformed) -> Failure {
        Failure::usage(wrong.problem, wrong.remedy)
    }
}

impl From<FileError> for Failure {
    fn from(wrong: FileError) -> Failure {
        let place = format!("{}:{}:{}", wrong.file.display(), wrong.at.line, wrong.at.column);
        Failure::usage(format!("{place}: {}", wrong.problem), wrong.remedy)
    }
}

impl From<WorkloadError> for Failure {
    fn from(wrong: WorkloadError) -> Failure {
        Failure::usage(wrong.problem, wrong.remedy)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        let kind = if error.kind() == io::ErrorKind::BrokenPipe { Kind::ClosedByReader } else { Kind::Refused };
        Failure { kind, ..Failure::new(error.to_string(), "") }
    }
}
