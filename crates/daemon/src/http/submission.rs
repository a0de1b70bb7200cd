//! The body of a submission: a job file, or the job that Amalgam's own clients made from one.

use super::admission;
use super::reply::parse_json;
use crate::api::{Error, JOB_JSON, JOB_MSGPACK};
use crate::encoding;
use crate::versions::WIRE;
use amalgam_core::vocabulary::JobSpec;
use amalgam_workload::inherit::Submitter;
use amalgam_workload::{Context, Format, read_job_of, text};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use std::path::{Path, PathBuf};

/// Formats of job files with their media types. The first one of each is the registered one.
const FILES: [(&[&str], Format); 3] = [
    (&["application/toml", "application/x-toml", "text/toml", "text/x-toml"], Format::Toml),
    (&["application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"], Format::Yaml),
    (&["application/json", "text/json"], Format::Json),
];

/// Format of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    SpecBinary,
    SpecJson,
    File(Format),
}

impl Kind {
    /// # Errors
    /// If the header `Content-Type` is missing or names another type.
    pub fn of(headers: &HeaderMap) -> Result<Kind, Error> {
        let remedy = "send a job file as application/toml, application/yaml or application/json";
        let Some(written) = headers.get(CONTENT_TYPE) else {
            return Err(Error::bad_request("the request has no header `Content-Type`", remedy));
        };
        let written = String::from_utf8_lossy(written.as_bytes()).to_lowercase();
        // The parameters name only a character set, and the body is decoded as UTF-8 in any case.
        let (kind, parameters) = written.split_once(';').unwrap_or((&written, ""));
        let kind = kind.trim();
        match kind {
            JOB_MSGPACK => {
                check_version(parameters)?;
                return Ok(Kind::SpecBinary);
            }
            JOB_JSON => return Ok(Kind::SpecJson),
            _ => {}
        }
        let file = FILES.into_iter().find(|(names, _)| names.contains(&kind)).map(|(_, format)| Kind::File(format));
        file.ok_or_else(|| Error::bad_request(format!("unknown `Content-Type` `{}`", kind.escape_debug()), remedy))
    }
}

/// Checks the version of a binary job: a newer client may use fields that this server would ignore silently.
fn check_version(parameters: &str) -> Result<(), Error> {
    let version = parameters.split(';').find_map(|parameter| parameter.trim().strip_prefix("version="));
    match version {
        Some(version) if !version.parse().is_ok_and(|version| WIRE.contains(version)) => {
            let what = format!("the job has version {}, and this server reads {WIRE}", version.escape_debug());
            Err(Error::bad_request(what, "use an `amalgam` of the server's version"))
        }
        _ => Ok(()),
    }
}

/// Decodes and checks the job in a body. `submit_dir` is the request's parameter, which only job files use.
///
/// # Errors
/// If the body is not a valid job. The error names the problem and its place.
pub fn decode(kind: Kind, body: &[u8], submit_dir: Option<PathBuf>) -> Result<JobSpec, Error> {
    let job: JobSpec = match kind {
        Kind::SpecBinary => encoding::from_slice(body).map_err(|error| {
            let remedy = "use an `amalgam` of the server's version";
            Error::bad_request(format!("invalid job in the body: {error}"), remedy)
        })?,
        Kind::SpecJson => parse_json(body)?,
        Kind::File(format) => read_file(format, body, submit_dir)?,
    };
    admission::check(&job)?;
    Ok(job)
}

fn read_file(format: Format, body: &[u8], submit_dir: Option<PathBuf>) -> Result<JobSpec, Error> {
    if submit_dir.as_ref().is_some_and(|directory| !directory.is_absolute()) {
        return Err(Error::bad_request("`submit_dir` is not absolute", "write a path that starts with `/`"));
    }
    let text = text::decode(body.to_vec())
        .map_err(|wrong| Error::bad_request(format!("cannot read the job file: {}", wrong.problem), wrong.remedy))?;
    let context = Context { submit_dir: submit_dir.unwrap_or_default() };
    read_job_of(&Submitter::elsewhere(), &text, format, Path::new("job"), &context).map_err(|wrong| {
        let place = format!("line {}, column {}", wrong.at.line, wrong.at.column);
        Error::bad_request(format!("job file, {place}: {}", wrong.problem), wrong.remedy)
    })
}
