//! The addresses at which processes listen, and the file where clients on this machine look for them.

use super::ServerError;
use crate::api::ServerFile;
use crate::config::{Config, is_local};
use crate::durable;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tokio::net::TcpListener;

/// Whether this is an address of this machine.
pub(crate) fn is_here(address: &str) -> bool {
    let own: Vec<_> = if_addrs::get_if_addrs().into_iter().flatten().map(|interface| interface.ip()).collect();
    let mut found = address.trim().to_socket_addrs().into_iter().flatten();
    found.any(|found| is_local(found) || own.contains(&found.ip().to_canonical()))
}

/// Writes the address of an interface to a file where clients on this machine look for it.
pub(crate) fn leave_address(
    state_dir: &Path,
    address: String,
    agents: Option<SocketAddr>,
    token_file: &Path,
) -> Result<(), ServerError> {
    let token_file = token_file.as_os_str().as_bytes().into();
    let agents = agents.map(|address| address.to_string());
    let file = ServerFile { address, pid: std::process::id(), token_file, agents };
    let text = serde_json::to_string(&file).expect("an address can be written");
    let path = state_dir.join(ServerFile::NAME);
    durable::replace(&path, text.as_bytes()).map_err(ServerError::io(format!("write {}", path.display())))
}

/// The address to which this resolves first.
pub(crate) fn resolve(address: &str) -> Result<SocketAddr, ServerError> {
    let wrong = |why: String| {
        ServerError::Address(format!(
            "invalid address `{address}` to listen on: {why}; use for example `127.0.0.1:7433`"
        ))
    };
    let mut found = address.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    found.next().ok_or_else(|| wrong("it resolves to no address".to_owned()))
}

/// The addresses of a list, separated by commas.
pub(crate) fn resolve_all(addresses: &str) -> Result<Vec<SocketAddr>, ServerError> {
    addresses.split(',').map(|address| resolve(address.trim())).collect()
}

/// Checks the addresses that a server with this configuration listens on.
///
/// # Errors
/// If one of them cannot be resolved.
pub fn check_addresses(config: &Config) -> Result<(), ServerError> {
    resolve(config.interface()).and_then(|_| resolve_all(config.agents())).map(drop)
}

pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address).await.map_err(|error| cannot_bind(address, &error))
}

fn cannot_bind(address: SocketAddr, error: &io::Error) -> ServerError {
    let remedy = if error.kind() == io::ErrorKind::AddrInUse {
        "; another process uses it: stop that process, or use another address with --listen"
    } else {
        ""
    };
    ServerError::Bind(format!("cannot listen on {address}: {error}{remedy}"))
}

/// Binds an address of a federation in one process before the process that listens there is started, so that others can be told the
/// address.
///
/// # Errors
/// If it is not a loopback address of this machine, or is in use.
pub fn take_address(address: &str) -> Result<StdListener, ServerError> {
    let address = resolve(address)?;
    if !is_local(address) {
        return Err(ServerError::Address(format!(
            "{address} can be reached from other machines, and a federation in one process listens on loopback only; use \
             127.0.0.1:{}, or start its servers and global masters as separate processes",
            address.port()
        )));
    }
    bind_std(address)
}

pub(crate) fn bind_std(address: SocketAddr) -> Result<StdListener, ServerError> {
    let taken = StdListener::bind(address).and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    taken.map_err(|error| cannot_bind(address, &error))
}
