//! Responses that are errors.

use std::fmt;

wire! {
    /// The body of every response that is an error.
    pub struct Error {
        error: ErrorCode,
        /// What is wrong, and why.
        message: String,
        /// What to do about it.
        remedy: String,
        /// Other processes that can answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        elsewhere: Option<Box<Elsewhere>>,
        /// Id of the request, which is also in the server's diagnostics.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request: Option<Box<str>>,
        /// Whether the server is a standby, which answers every call with this.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        standby: bool,
    }

    /// Other processes of a federation. A client that reached this process at another address than `here`, such as
    /// through a tunnel, may not reach the others at their addresses.
    pub struct Elsewhere {
        /// Base URL at which this process listens.
        here: String,
        /// Further ones.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        also_here: Vec<String>,
        /// Base URLs of the processes that have the requested object.
        at: Vec<String>,
    }
}

words! {
    pub enum ErrorCode {
        BadRequest = "bad-request",
        Unauthorized = "unauthorized",
        Forbidden = "forbidden",
        NotFound = "not-found",
        MethodNotAllowed = "method-not-allowed",
        Conflict = "conflict",
        TooLarge = "too-large",
        /// The request is valid, but this kind of server does not support it.
        Unsupported = "unsupported",
        /// Another process of the federation has the requested object.
        Elsewhere = "elsewhere",
        Unavailable = "unavailable",
        /// The requested object is gone for good.
        Removed = "removed",
        #[default]
        Internal = "internal",
    }
}

impl Error {
    pub fn new(error: ErrorCode, message: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error { error, message: message.into(), remedy: remedy.into(), elsewhere: None, request: None, standby: false }
    }

    /// The error for an object that another global master has; `elsewhere` is its address, if known.
    pub fn with_global(message: impl Into<String>, elsewhere: Option<Elsewhere>) -> Error {
        let remedy = "use --server with its address, or --state-dir with its directory";
        Error { elsewhere: elsewhere.map(Box::new), ..Error::new(ErrorCode::Elsewhere, message, remedy) }
    }

    pub fn bad_request(message: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::new(ErrorCode::BadRequest, message, remedy)
    }

    pub fn no_such_job(job: u64) -> Error {
        Error::new(ErrorCode::NotFound, format!("job {job} not found"), "`amalgam list --all` shows the jobs")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
