//! The authority of an encrypted interface, the certificate that the server presents, and those with which daemons of this machine
//! authenticate themselves.

use super::{Check, Patient};
use crate::discovery;
use amalgam_daemon::auth::DaemonRole;
use amalgam_daemon::authority::Authority;
use amalgam_daemon::identity::Identity;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::parse_x509_certificate;

const PATIENCE: Duration = Duration::from_secs(5);
const DAY: i64 = 24 * 60 * 60;
/// An authority that ends sooner is a warning: all clients need the next one before.
const SOON: i64 = 60 * DAY;
/// A daemon's certificate, which is valid for 30 days and replaced after 10, ends sooner if that fails.
const LATE: i64 = 15 * DAY;
/// The directories of daemons of the Debian package, besides the server's and the agent's.
const PACKAGED: [&str; 2] = ["/var/lib/amalgam-jobs", "/var/lib/amalgam-global"];

pub fn checks(patient: &Patient) -> Vec<Check> {
    let own = patient.state_dir.as_ref().map(|dir| dir.join(Authority::FILE)).filter(|path| path.exists());
    let named = patient.connection.ca_file.clone();
    let files: Vec<PathBuf> = named.clone().into_iter().chain(own.clone()).collect();
    let mut checks: Vec<Check> = files.iter().map(|path| authority(path)).collect();
    let server = discovery::named(patient.connection).ok().flatten();
    if let (Some(address), Some(trusted)) = (server.as_deref().and_then(encrypted), named.or(own)) {
        checks.push(presented(address, &trusted));
    }
    let given = [&patient.state_dir, &patient.work_dir].into_iter().flatten().map(PathBuf::as_path);
    let directories = given.chain(PACKAGED.iter().map(Path::new));
    let files: BTreeSet<PathBuf> = directories.flat_map(with_daemons).flat_map(|place| identities(&place)).collect();
    checks.extend(files.iter().map(|path| of_daemon(path)));
    checks
}

/// A directory, and those in it that agents and job hosts have by default.
fn with_daemons(directory: &Path) -> Vec<PathBuf> {
    let inner = fs::read_dir(directory).into_iter().flatten().filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok()?;
        (name.starts_with("agent-") || name.starts_with("jobs-")).then(|| entry.path())
    });
    inner.chain([directory.to_owned()]).collect()
}

/// The files in a directory with certificates of daemons: one for each cluster of a global master.
pub fn identities(directory: &Path) -> Vec<PathBuf> {
    let names =
        fs::read_dir(directory).into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("identity") && name.ends_with(".json")).collect();
    names.sort_unstable();
    names.into_iter().map(|name| directory.join(name)).collect()
}

/// A certificate with which a daemon authenticates itself.
fn of_daemon(path: &Path) -> Check {
    const CHECK: &str = "identity";
    let name = path.display();
    let identity = match Identity::load_file(path.to_owned()) {
        Ok(Some(identity)) => identity,
        Ok(None) => return Check::ok(CHECK, format!("{name} was removed")),
        Err(error) => return Check::problem(CHECK, format!("{name}: {error}"), error.remedy()),
    };
    let (Ok(subject), Some(end)) = (identity.subject(), identity.end()) else {
        let remedy = "remove the file, and join again with a string of `amalgam token join`";
        return Check::problem(CHECK, format!("{name} has no certificate of a daemon"), remedy);
    };
    let days = days_until(end);
    judged(CHECK, &format!("the certificate of {subject} in {name}"), days, LATE / DAY, || {
        match (days, subject.role) {
        (..0, role) if role != DaemonRole::Server => format!(
            "run `amalgam token remove {} {}` at the server, and join again with a string of `amalgam token join`",
            role.flag(),
            subject.name
        ),
        _ => "start the daemon, and check that it reaches the server and that both clocks agree: the server replaces its certificate"
            .to_owned(),
    }
    })
}

/// HOST:PORT of an https address.
fn encrypted(server: &str) -> Option<&str> {
    server.trim().strip_prefix("https://").map(|address| address.trim_end_matches('/'))
}

fn authority(path: &Path) -> Check {
    const CHECK: &str = "authority";
    let name = path.display();
    match read(path).and_then(|certificate| days_left(&certificate)) {
        Ok(days) => judged(CHECK, &format!("{name}"), days, SOON / DAY, || {
            "at the server, run `amalgam ca rotate`, copy ca.pem to each client, and run `amalgam ca rotate --finish`"
                .to_owned()
        }),
        Err(why) => {
            let remedy = "copy ca.pem from the server's state directory again; at the server, restore it from a backup";
            Check::problem(CHECK, format!("{name}: {why}"), remedy)
        }
    }
}

fn read(path: &Path) -> Result<CertificateDer<'static>, String> {
    let pem = fs::read(path).map_err(|error| error.to_string())?;
    CertificateDer::from_pem_slice(&pem).map_err(|_| "it contains no certificate".to_owned())
}

/// When the last of the authorities in a PEM text ends: during a rotation there are two.
pub fn authorities_end_in(check: &'static str, what: &str, pem: &str, remedy: &str) -> Check {
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok);
    match certificates.filter_map(|certificate| days_left(&certificate).ok()).max() {
        Some(days) => judged(check, what, days, SOON / DAY, || {
            format!("at the server, run `amalgam ca rotate`, if nobody has; then {remedy} here")
        }),
        None => Check::problem(check, format!("{what} contains no certificate"), remedy),
    }
}

/// How long ago something was.
pub fn days_ago(seconds: i64) -> String {
    match seconds / DAY {
        0 => "less than a day ago".to_owned(),
        1 => "a day ago".to_owned(),
        days => format!("{days} days ago"),
    }
}

/// Days until the end of a certificate; negative if it has ended.
fn days_left(certificate: &CertificateDer) -> Result<i64, String> {
    let (_, parsed) = parse_x509_certificate(certificate).map_err(|_| "it is not a certificate".to_owned())?;
    Ok(days_until(parsed.validity().not_after.timestamp()))
}

/// Days until a time in seconds since 1970.
fn days_until(end: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64);
    (end - now).div_euclid(DAY)
}

fn judged(check: &'static str, what: &str, days: i64, soon: i64, remedy: impl FnOnce() -> String) -> Check {
    match days {
        ..0 => Check::problem(check, format!("{what} ended {}", days_ago((-days - 1) * DAY)), remedy()),
        days if days < soon => Check::warning(check, format!("{what} ends in {days} days"), remedy()),
        days => Check::ok(check, format!("{what} is valid for {days} more days")),
    }
}

/// The certificate that the server at this address presents, verified as clients do it.
fn presented(address: &str, authority: &Path) -> Check {
    const CHECK: &str = "certificate";
    match handshake(address, authority).and_then(|certificate| days_left(&certificate)) {
        // The server replaces it after half of its seven days.
        Ok(days) => judged(CHECK, &format!("that of {address}"), days, 1, || {
            "restart the server, and check its clock: it did not replace its certificate".to_owned()
        }),
        Err(why) => {
            let remedy = format!(
                "compare {} with ca.pem in the server's state directory, and both clocks; if the name is wrong, add it to `listen_names` \
                 of the configuration",
                authority.display()
            );
            Check::problem(CHECK, format!("{address}: {why}"), remedy)
        }
    }
}

fn handshake(address: &str, authority: &Path) -> Result<CertificateDer<'static>, String> {
    let mut roots = RootCertStore::empty();
    roots.add(read(authority)?).map_err(|error| error.to_string())?;
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(|error| error.to_string())?;
    let resolved = address.to_socket_addrs().map_err(|error| error.to_string())?.next().ok_or("it has no address")?;
    let mut stream = TcpStream::connect_timeout(&resolved, PATIENCE).map_err(|error| error.to_string())?;
    let limited = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    limited.map_err(|error| error.to_string())?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).map_err(|error| error.to_string())?;
    }
    let first = connection.peer_certificates().and_then(|chain| chain.first());
    first.map(|certificate| certificate.clone().into_owned()).ok_or_else(|| "it presents no certificate".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn certificates_that_end_are_found_in_time() {
        for (days, result) in [(-1, Outcome::Problem), (0, Outcome::Warning), (59, Outcome::Warning), (60, Outcome::Ok)]
        {
            let check = judged("authority", "ca.pem", days, SOON / DAY, || "replace it".to_owned());
            assert_eq!((check.result, check.remedy.is_empty()), (result, result == Outcome::Ok), "{days}");
        }
    }

    #[test]
    fn a_file_without_a_certificate_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        fs::write(&path, "no certificate").unwrap();
        let check = authority(&path);
        assert!(check.result == Outcome::Problem && check.found.contains("contains no certificate"), "{check:?}");
    }
}
