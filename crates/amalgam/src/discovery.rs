//! Finds the server: the named one, that of the current context, or else the one whose address is in the state directory.

use crate::client::Client;
use crate::connection::Connection;
use crate::contexts::{self, Context, NO_CONTEXT, Store};
use crate::environment;
use crate::failure::{Failure, Result};
use amalgam_cli::process::user;
use amalgam_daemon::api::ServerFile;
use amalgam_daemon::auth::{self, Tokens, USUAL_SOCKET};
use amalgam_daemon::authority::Authority;
use amalgam_daemon::config::{is_address, is_local, reached_here};
use amalgam_workload::path_of;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs, io};
use ureq::http::Uri;

/// The state directory of this user: the named one, or else the one of the XDG rules.
pub fn state_dir(connection: &Connection) -> Result<PathBuf> {
    if let Some(state_dir) = &connection.state_dir {
        return Ok(state_dir.clone());
    }
    if let Some(base) = env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(|base| base.is_absolute()) {
        return Ok(base.join("amalgam"));
    }
    let home = env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let none = || Failure::new("no home directory for the state directory", "set HOME or AMALGAM_STATE");
    home.map(|home| home.join(".local/state/amalgam")).ok_or_else(none)
}

/// The server. Fails if there is none.
pub fn connect(connection: &Connection) -> Result<Client> {
    find(connection)?.ok_or_else(|| {
        let place = state_dir(connection).map_or_else(|_| "this machine".to_owned(), |dir| dir.display().to_string());
        let remedy = "start one with `amalgam dev` or `amalgam server`, or name the state directory of one on this machine with \
                      --state-dir or AMALGAM_STATE; log in to one on another machine with `amalgam login`, or choose a context of \
                      `amalgam context list`";
        Failure::unreachable(format!("no running server was found in the state directory {place}"), remedy)
    })
}

/// What a call goes to.
pub enum Choice {
    /// The address that a flag or the environment names.
    Server(String),
    Context(Context),
    /// The server that is found on this machine.
    Machine,
}

/// The choice of the user: flags, then the environment, then the current context.
pub fn choice(connection: &Connection) -> Result<Choice> {
    if connection.server.is_some() && connection.names_context() {
        let what = "--server and --context both name a server";
        return Err(Failure::usage(what, "leave one of them out"));
    }
    if let Some(name) = connection.context.as_deref().filter(|_| connection.server.is_none()) {
        return of_name(name, "--context");
    }
    if let Some(server) = named(connection)? {
        return Ok(Choice::Server(server));
    }
    if let Some(name) = environment::context()? {
        return of_name(&name, "AMALGAM_CONTEXT");
    }
    if connection.state_dir.is_some() {
        return Ok(Choice::Machine);
    }
    // Without a home directory there are no contexts.
    let Ok(store) = Store::of_user() else { return Ok(Choice::Machine) };
    Ok(store.read()?.current().map_or(Choice::Machine, |context| Choice::Context(context.clone())))
}

fn of_name(name: &str, by: &str) -> Result<Choice> {
    if name == NO_CONTEXT {
        return Ok(Choice::Machine);
    }
    let store = Store::of_user()?;
    Ok(Choice::Context(store.read()?.named(name, by)?.clone()))
}

/// The server, if one was named or one runs on this machine.
pub fn find(connection: &Connection) -> Result<Option<Client>> {
    match choice(connection)? {
        Choice::Server(server) => of_server(connection, &server).map(Some),
        Choice::Context(context) => of_context(connection, &context).map(Some),
        Choice::Machine => of_machine(connection),
    }
}

fn of_server(connection: &Connection, server: &str) -> Result<Client> {
    if let Some(socket) = server.strip_prefix(LOCAL) {
        return Ok(Client::local(Path::new(socket), named_token(connection)?));
    }
    let base = base_url(server, "--server or AMALGAM_SERVER")?;
    if base.starts_with("https://") {
        let authority = authority(connection, &base)?;
        return Client::new(base, token(connection, None)?).trusting(&authority);
    }
    Ok(Client::new(base, token(connection, None)?))
}

/// The server of a context. Another token or file of authorities may be named.
fn of_context(connection: &Connection, context: &Context) -> Result<Client> {
    let again = || format!("run `amalgam login {} --name {}`", context.server, context.name);
    let token = named_token(connection)?.or_else(|| context.token.clone());
    if let Some(socket) = context.server.strip_prefix(LOCAL) {
        return Ok(Client::local(Path::new(socket), token).of_context(&context.name));
    }
    let base = base_url(&context.server, "a context")?;
    let missing = |what: &str| Failure::usage(format!("the context `{}` has no {what}", context.name), again());
    let client = Client::new(base.clone(), token.ok_or_else(|| missing("token"))?).of_context(&context.name);
    if !base.starts_with("https://") {
        return Ok(client);
    }
    if let Some(path) = &connection.ca_file {
        return client.trusting(path);
    }
    let authorities = context.authorities.as_deref().unwrap_or_default();
    let client = client.trusting_pem(authorities.as_bytes()).ok_or_else(|| missing("authority"))?;
    Ok(contexts::with_present_authorities(client, context))
}

fn of_machine(connection: &Connection) -> Result<Option<Client>> {
    // A half-written file, or one that a dead server left, means that no server runs.
    let state_dir = state_dir(connection)?;
    let Some(file) = server_file(&state_dir)?.and_then(|text| serde_json::from_str::<ServerFile>(&text).ok()) else {
        return of_this_machine(connection);
    };
    if !listens(&file)? {
        return of_this_machine(connection);
    }
    let token = token(connection, Some(path_of(&file.token_file)))?;
    let trusted = state_dir.join(Authority::FILE);
    let Ok(address) = file.address.parse::<SocketAddr>() else {
        // The name in the certificate of a global master.
        let is_named = is_address(&file.address);
        return is_named
            .then(|| Client::new(format!("https://{}", file.address), token).trusting(&trusted))
            .transpose();
    };
    if is_local(address) && !file.https {
        return Ok(Some(Client::new(format!("http://{address}"), token)));
    }
    let base = format!("https://{}", reached_here(address));
    Client::new(base, token).trusting(&trusted).map(Some)
}

/// How the path of a local socket is written as a server's address.
pub const LOCAL: &str = "unix:";

/// The server that runs as a service of this machine, where no state directory was named.
fn of_this_machine(connection: &Connection) -> Result<Option<Client>> {
    let socket = Path::new(USUAL_SOCKET);
    if connection.state_dir.is_some() || UnixStream::connect(socket).is_err() {
        return Ok(None);
    }
    Ok(Some(Client::local(socket, named_token(connection)?)))
}

/// The token of the command line or the environment.
pub fn named_token(connection: &Connection) -> Result<Option<String>> {
    match &connection.token_file {
        Some(path) => Ok(Some(auth::client_token(path, &user())?)),
        None => environment::token(),
    }
}

/// The file with the authority of a server with https.
fn authority(connection: &Connection, base: &str) -> Result<PathBuf> {
    if let Some(path) = &connection.ca_file {
        return Ok(path.clone());
    }
    let own = state_dir(connection).map(|dir| dir.join(Authority::FILE));
    own.ok().filter(|path| path.exists()).ok_or_else(|| {
        let remedy = "store it with `amalgam login`; or pass --ca-file or set AMALGAM_CA_FILE: a copy of ca.pem in the server's state \
                      directory";
        Failure::usage(format!("nothing to verify the server at {base} by"), remedy)
    })
}

/// The server that a flag or the environment names.
pub fn named(connection: &Connection) -> Result<Option<String>> {
    match &connection.server {
        Some(server) => Ok(Some(server.clone())),
        None => environment::server(),
    }
}

/// The content of the server's file, if it exists. A directory that cannot be read is an error: a server may run there.
pub fn server_file(state_dir: &Path) -> Result<Option<String>> {
    match fs::read_to_string(state_dir.join(ServerFile::NAME)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => Ok(None),
        Err(error) => {
            let what =
                format!("cannot read {} in the state directory {}: {error}", ServerFile::NAME, state_dir.display());
            let mend = match error.kind() {
                io::ErrorKind::PermissionDenied => "make both readable for your user, or ",
                _ => "",
            };
            let remedy = format!(
                "{mend}name another directory with --state-dir or AMALGAM_STATE, or the server with --server or \
                 AMALGAM_SERVER"
            );
            Err(Failure::new(what, remedy))
        }
    }
}

/// Whether a process listens at the address. The file of a killed server is still there.
///
/// # Errors
/// If a process listens but accepts no connection. That is not the same as no server, because a job would run elsewhere.
fn listens(file: &ServerFile) -> Result<bool> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut silent = None;
    for address in file.address.to_socket_addrs().into_iter().flatten() {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(_) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => silent = Some(error),
        }
    }
    let Some(error) = silent else { return Ok(false) };
    let what = format!("the server at {} (process {}) accepts no connections: {error}", file.address, file.pid);
    Err(Failure::unreachable(what, "it has too many connections or is paused: try again, or check its process"))
}

/// The scheme of an address without one: plain text only reaches this machine.
fn scheme_of(address: &str) -> &'static str {
    let parsed = format!("http://{}", address.trim()).parse::<Uri>();
    if parsed.is_ok_and(|url| url.host().is_some_and(|host| !is_here(host))) { "https" } else { "http" }
}

/// The base of a server's URLs. `by` says what names the server.
pub fn base_url(server: &str, by: &str) -> Result<String> {
    let (scheme, address) = server.trim().split_once("://").unwrap_or_else(|| (scheme_of(server), server.trim()));
    let url = format!("{scheme}://{}", address.trim_end_matches('/'));
    let is_known = ["http", "https"].contains(&scheme);
    let parsed = url.parse::<Uri>().ok();
    let host = parsed.as_ref().and_then(Uri::host).filter(|host| !host.is_empty());
    let is_text = !url.contains(|character: char| character.is_control() || character.is_whitespace());
    let Some(host) = host.filter(|_| is_text && is_known) else {
        let what = format!("`{server}` is not the address of a server ({by})");
        return Err(Failure::usage(
            what,
            "write for instance https://head:7433, or http://127.0.0.1:7433 or unix:/run/amalgam/socket on this machine",
        ));
    };
    if scheme == "http" && !is_here(host) {
        let what = format!("{url} would send your token unencrypted, and its address is not on loopback");
        let remedy =
            "use https:// and `amalgam login`; at an end of a tunnel on this machine, http://127.0.0.1 and its port";
        return Err(Failure::usage(what, remedy));
    }
    Ok(url)
}

/// Whether a host in a URL is this machine.
fn is_here(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or(host == "localhost", |address| address.to_canonical().is_loopback())
}

/// The token from the named file, the environment, or the server's own file.
fn token(connection: &Connection, server_file: Option<&Path>) -> Result<String> {
    if let Some(token) = named_token(connection)? {
        return Ok(token);
    }
    let default = match server_file {
        Some(path) => path.to_owned(),
        None => state_dir(connection)?.join(Tokens::FILE),
    };
    // A file without read permission has a message of its own.
    if matches!(default.try_exists(), Ok(false)) {
        let remedy = "pass --token-file, or set AMALGAM_TOKEN_FILE or AMALGAM_TOKEN; on the server's machine, --state-dir finds both \
                      the server and your token";
        return Err(Failure::usage("no token for the server", remedy));
    }
    Ok(auth::client_token(&default, &user())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_without_a_scheme_are_encrypted_unless_they_are_on_this_machine() {
        for (given, expected) in [
            ("head:7433", "https://head:7433"),
            ("10.0.0.1:7433", "https://10.0.0.1:7433"),
            ("127.0.0.1:7433", "http://127.0.0.1:7433"),
            ("localhost:7433/", "http://localhost:7433"),
            ("[::1]:7433", "http://[::1]:7433"),
            ("https://127.0.0.1:7433", "https://127.0.0.1:7433"),
        ] {
            assert_eq!(base_url(given, "a test").unwrap(), expected);
        }
        assert!(base_url("http://head:7433", "a test").is_err());
        assert!(base_url("", "a test").is_err());
    }
}
