//! What daemons have that joined with a string of `amalgam token join`: certificates, in their work directory (ADR 80).

pub mod global;

use crate::cluster;
use crate::connection::Connection;
use crate::environment;
use crate::failure::{Failure, Result};
use amalgam_daemon::auth::DaemonRole;
use amalgam_daemon::auth::joins::JoinString;
use amalgam_daemon::authority::{Certified, Expected};
use amalgam_daemon::identity::{Identity, NewKey};
use amalgam_daemon::transport::{JoinError, Secrets, redeem};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A server's address for agents unless another one is configured.
pub const ON_THIS_MACHINE: &str = "127.0.0.1:7434";

/// Time limit for the server to appear.
const PATIENCE: Duration = Duration::from_secs(30);

/// A string of the command line or the environment. Not by the parser of the command line, which would print the secret in
/// its error.
///
/// # Errors
/// If it is not a join string.
pub fn parse(text: Option<&str>) -> Result<Option<JoinString>> {
    text.map(JoinString::parse).transpose().map_err(|why| {
        let what = format!("invalid join string (--join or AMALGAM_JOIN): {why}");
        Failure::usage(what, "make one with `amalgam token join` at the server")
    })
}

/// Where the server is: as the command line says, as the string does, or where the daemon joined at an earlier start.
///
/// # Errors
/// If that is no address, or the certificates in the work directory cannot be read.
pub fn server(named: Option<&str>, string: Option<&JoinString>, work_dir: &Path) -> Result<String> {
    let given = named.map(str::to_owned).or_else(|| string.map(|string| string.address.clone()));
    let address = match given {
        Some(given) => Some(given),
        None => Identity::load(work_dir)?.and_then(|kept| kept.server()),
    };
    cluster::agents_address(address.as_deref().unwrap_or(ON_THIS_MACHINE))
}

/// The certificates of a daemon. The first start with a string gets them from the server; later ones find them in the work
/// directory, with or without the string. `None` without both, or if the command line names a token.
///
/// # Errors
/// If the server does not give them, or they cannot be stored or read.
pub fn identity(
    string: Option<&JoinString>,
    work_dir: &Path,
    role: DaemonRole,
    name: &str,
    connection: &Connection,
) -> Result<Option<Secrets>> {
    let kept = Identity::load(work_dir)?;
    let Some(string) = string else {
        let is_named = connection.token_file.is_some() || environment::token()?.is_some();
        let kept = kept.filter(|_| !is_named);
        return kept.map(|kept| checked(kept, role, name)).transpose();
    };
    let digest = string.digest();
    if let Some(kept) = kept.filter(|kept| kept.is_of(&digest)) {
        if kept.server().is_none() {
            kept.keep_server(&string.address)?;
        }
        return checked(kept, role, name).map(Some);
    }
    let path = work_dir.join(Identity::FILE);
    let (key, certified) = redeemed(string, &path, role, name)?;
    let identity = stored(path, digest, key, certified, role, name)?;
    identity.keep_server(&string.address)?;
    Ok(Some(Secrets::Certificates(Arc::new(identity), Expected::Server)))
}

/// The key for a string, and the certificates for it. `path` is where they will be stored.
fn redeemed(string: &JoinString, path: &Path, role: DaemonRole, name: &str) -> Result<(NewKey, Certified)> {
    let key = NewKey::for_string(path, &string.digest());
    let key = key.map_err(|error| Failure::new(format!("cannot make a key: {error}"), error.remedy()))?;
    let certified = redeem(string, role, name, &key, PATIENCE).map_err(|error| {
        let remedy = match &error {
            JoinError::Unreachable { .. } => {
                "check that the server runs, that this machine reaches the address, and that it is the one for agents; \
                 `amalgam token join --address HOST:PORT` makes a string with another address"
            }
            JoinError::Impostor { .. } => "make a new join string at the server",
            _ => "",
        };
        Failure::new(error.to_string(), remedy)
    })?;
    Ok((key, certified))
}

fn stored(
    path: PathBuf,
    digest: String,
    key: NewKey,
    certified: Certified,
    role: DaemonRole,
    name: &str,
) -> Result<Identity> {
    Identity::create(path, digest, key, certified).map_err(|error| {
        let remedy =
            format!("run `amalgam token remove {} {name}` at the server, and use a new join string", role.flag());
        Failure::new(error.to_string(), remedy)
    })
}

/// Refuses those of another daemon.
fn checked(identity: Identity, role: DaemonRole, name: &str) -> Result<Secrets> {
    let identity = as_subject(identity, role, name)?;
    Ok(Secrets::Certificates(Arc::new(identity), Expected::Server))
}

fn as_subject(identity: Identity, role: DaemonRole, name: &str) -> Result<Identity> {
    let subject = identity.subject().map_err(|why| {
        Failure::new(
            format!("the certificate in the work directory is of no use: {why}"),
            "join again with a new string",
        )
    })?;
    if subject.role != role || subject.name != name {
        return Err(Failure::usage(
            format!("the work directory has the certificate of {subject}"),
            "use that name or number; or another --work-dir, and a string of `amalgam token join`",
        ));
    }
    Ok(identity)
}
