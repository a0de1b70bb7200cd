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

/// How clients reach an interface.
#[derive(Clone, Debug)]
pub(crate) struct Reached {
    pub addresses: Vec<SocketAddr>,
    /// Whether clients on loopback may do without TLS.
    pub plain_http: bool,
    /// The address in the certificate, if clients on this machine have to use that one beyond loopback, too.
    pub announced: Option<String>,
}

impl Reached {
    /// The base of URLs for each address.
    pub fn urls(&self) -> Vec<String> {
        let mut urls = Vec::new();
        for address in &self.addresses {
            let url = match &self.announced {
                _ if is_local(*address) && self.plain_http => format!("http://{address}"),
                Some(announced) if !is_local(*address) => format!("https://{announced}"),
                _ => format!("https://{address}"),
            };
            if !urls.contains(&url) {
                urls.push(url);
            }
        }
        urls
    }

    /// The address for clients on this machine.
    fn here(&self) -> String {
        let reaches_others = self.announced.as_ref().filter(|_| self.is_beyond_loopback());
        let local = self.addresses.iter().find(|address| is_local(**address));
        let any = self.addresses.iter().find(|address| address.ip().is_unspecified());
        let found = local.or(any).or(self.addresses.first());
        reaches_others.cloned().or(found.map(ToString::to_string)).unwrap_or_default()
    }

    fn is_beyond_loopback(&self) -> bool {
        !self.addresses.iter().copied().all(is_local)
    }

    /// Writes what clients on this machine need to the file where they look for it.
    pub fn leave(&self, state_dir: &Path, agents: &[SocketAddr], token_file: &Path) -> Result<(), ServerError> {
        let texts = |addresses: &[SocketAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        let file = ServerFile {
            address: self.here(),
            // From an encrypted interface, clients also follow redirects to others.
            https: !self.plain_http || self.is_beyond_loopback(),
            addresses: texts(&self.addresses),
            pid: std::process::id(),
            token_file: token_file.as_os_str().as_bytes().into(),
            agents: texts(agents).first().cloned(),
            agents_addresses: texts(agents),
        };
        leave_address(state_dir, &file)
    }
}

/// Writes what clients on this machine need to a file where they look for it.
fn leave_address(state_dir: &Path, file: &ServerFile) -> Result<(), ServerError> {
    let text = serde_json::to_string(file).expect("an address can be written");
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

/// The addresses to which these resolve.
pub(crate) fn resolve_all(addresses: &[impl AsRef<str>]) -> Result<Vec<SocketAddr>, ServerError> {
    let mut resolved = Vec::new();
    for address in addresses.iter().map(AsRef::as_ref) {
        let found = resolve(address)?;
        if found.port() > 0 && resolved.contains(&found) {
            return Err(ServerError::Address(format!("`{address}` is listed twice to listen on; leave it out once")));
        }
        resolved.push(found);
    }
    Ok(resolved)
}

/// Checks the addresses that a server with this configuration listens on.
///
/// # Errors
/// If one of them cannot be resolved.
pub fn check_addresses(config: &Config) -> Result<(), ServerError> {
    resolve_all(&config.interface()).and_then(|_| resolve_all(&config.agents())).map(drop)
}

/// Listens at all these addresses.
pub(crate) fn bind_all(addresses: &[SocketAddr]) -> Result<Vec<StdListener>, ServerError> {
    let mut bound = Vec::new();
    for (place, address) in addresses.iter().enumerate() {
        let listener = listen(*address).map_err(|error| {
            let overlaps = |earlier: &&SocketAddr| includes(**earlier, *address) || includes(*address, **earlier);
            let earlier = addresses[..place].iter().find(overlaps);
            match earlier.filter(|_| error.kind() == io::ErrorKind::AddrInUse) {
                Some(earlier) => ServerError::Bind(format!(
                    "cannot listen on {address} and on {earlier}, because one of them includes the other; leave the narrower one out"
                )),
                None => cannot_bind(*address, &error),
            }
        })?;
        bound.push(listener);
    }
    Ok(bound)
}

/// Whether an address is all of this machine, and the other one of these.
fn includes(all: SocketAddr, one: SocketAddr) -> bool {
    all.ip().is_unspecified() && all.port() == one.port() && (all.is_ipv6() || one.is_ipv4())
}

/// The addresses at which these listen.
pub(crate) fn local_addresses(listeners: &[StdListener]) -> Result<Vec<SocketAddr>, ServerError> {
    let addresses = listeners.iter().map(StdListener::local_addr).collect::<Result<_, _>>();
    addresses.map_err(ServerError::io("learn its own address"))
}

/// The same listeners for the async runtime that was entered.
pub(crate) fn asynchronous(listeners: Vec<StdListener>) -> Result<Vec<TcpListener>, ServerError> {
    let listeners = listeners.into_iter().map(TcpListener::from_std).collect::<Result<_, _>>();
    listeners.map_err(ServerError::io("listen"))
}

fn cannot_bind(address: SocketAddr, error: &io::Error) -> ServerError {
    let remedy = if error.kind() == io::ErrorKind::AddrInUse {
        "; another process uses it: stop that process, or use another address with --listen or --listen-agents"
    } else {
        ""
    };
    ServerError::Bind(format!("cannot listen on {address}: {error}{remedy}"))
}

/// The addresses, as messages show them.
pub(crate) fn shown(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
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
    listen(address).map_err(|error| cannot_bind(address, &error))
}

fn listen(address: SocketAddr) -> io::Result<StdListener> {
    let listener = StdListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(addresses: &[&str], plain_http: bool, announced: Option<&str>) -> Reached {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Reached { addresses, plain_http, announced: announced.map(str::to_owned) }
    }

    #[test]
    fn clients_on_this_machine_use_loopback_if_they_can_and_tls_if_others_have_to() {
        let (here, six, there, all) = ("127.0.0.1:1", "[::1]:1", "10.0.0.1:1", "0.0.0.0:2");
        for (reached, urls, address, is_encrypted) in [
            (reached(&[here], true, None), vec!["http://127.0.0.1:1"], here, false),
            (reached(&[six, here], true, None), vec!["http://[::1]:1", "http://127.0.0.1:1"], six, false),
            (reached(&[here], false, None), vec!["https://127.0.0.1:1"], here, true),
            (reached(&[there, here], true, None), vec!["https://10.0.0.1:1", "http://127.0.0.1:1"], here, true),
            (reached(&[there, all], true, None), vec!["https://10.0.0.1:1", "https://0.0.0.0:2"], all, true),
            (reached(&[there], true, None), vec!["https://10.0.0.1:1"], there, true),
            (
                reached(&[there, all, here], true, Some("head:1")),
                vec!["https://head:1", "http://127.0.0.1:1"],
                "head:1",
                true,
            ),
        ] {
            assert_eq!(reached.urls(), urls);
            let state_dir = tempfile::tempdir().unwrap();
            reached.leave(state_dir.path(), &[], Path::new("tokens.toml")).unwrap();
            let text = std::fs::read_to_string(state_dir.path().join(ServerFile::NAME)).unwrap();
            let file: ServerFile = serde_json::from_str(&text).unwrap();
            assert_eq!((file.address.as_str(), file.https, file.agents), (address, is_encrypted, None), "{urls:?}");
            assert_eq!(file.addresses.len(), reached.addresses.len());
        }
    }

    #[test]
    fn an_address_that_is_listed_twice_or_included_in_another_is_named() {
        let twice = resolve_all(&["127.0.0.1:7433", "[::1]:7433", "127.0.0.1:7433"]).unwrap_err().to_string();
        assert!(twice.contains("`127.0.0.1:7433` is listed twice"), "{twice}");
        assert_eq!(resolve_all(&["127.0.0.1:0", "127.0.0.1:0"]).unwrap().len(), 2);
        let bound = bind_all(&resolve_all(&["127.0.0.1:0", "[::1]:0"]).unwrap()).unwrap();
        let taken = local_addresses(&bound).unwrap();
        let port = taken[0].port();
        let again = bind_all(&taken).unwrap_err().to_string();
        assert!(again.contains("another process uses it"), "{again}");
        drop(bound);
        let both = [SocketAddr::new([127, 0, 0, 1].into(), port), SocketAddr::new([0, 0, 0, 0].into(), port)];
        let overlap = bind_all(&both).unwrap_err().to_string();
        assert!(overlap.contains(&format!("cannot listen on 0.0.0.0:{port} and on 127.0.0.1:{port}")), "{overlap}");
    }
}
