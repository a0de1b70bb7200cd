//! Messages to the service manager that started this process, such as systemd: that it is ready, that it stops, and that its
//! event loop still makes turns (`sd_notify(3)`).
//!
//! Not the crate `sd-notify`: it reads the environment at each message, but the executor and the tasks must not inherit the
//! variables, and it does not connect to abstract sockets.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const SOCKET: &str = "NOTIFY_SOCKET";
const WATCHDOG: &str = "WATCHDOG_USEC";
const WATCHED: &str = "WATCHDOG_PID";

/// A message that must not be lost waits for at most this time until the service manager has read earlier ones.
const PATIENCE: Duration = Duration::from_secs(5);

/// The service manager of this process. A process has at most one, which its environment names.
static MANAGER: OnceLock<ServiceManager> = OnceLock::new();

struct ServiceManager {
    socket: SocketAddr,
    /// The process counts as hung if its event loop makes no turn within this time. `None` if it is not watched.
    watchdog: Option<Duration>,
}

/// Takes the service manager's variables out of the environment, so that child processes cannot send messages for this one. Call
/// it before other threads start. Without these variables, or if this program does not support the kind of socket, the other
/// functions do nothing.
pub fn meet() {
    let (socket, watchdog, watched) = (env::var_os(SOCKET), env::var(WATCHDOG), env::var(WATCHED));
    for name in [SOCKET, WATCHDOG, WATCHED] {
        // SAFETY: no other thread runs.
        unsafe { env::remove_var(name) };
    }
    let Some(socket) = socket.and_then(|socket| address(&socket)) else { return };
    let is_ours = watched.is_err() || watched.is_ok_and(|pid| pid.parse() == Ok(std::process::id()));
    let micros = watchdog.ok().filter(|_| is_ours).and_then(|micros| micros.parse().ok());
    let watchdog = micros.filter(|micros| *micros > 0).map(Duration::from_micros);
    // A second call would find no variables.
    let _ = MANAGER.set(ServiceManager { socket, watchdog });
}

/// The address of a socket with a path, or of an abstract one after `@`.
fn address(text: &OsStr) -> Option<SocketAddr> {
    match text.as_bytes() {
        [b'/', ..] => SocketAddr::from_pathname(text).ok(),
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        _ => None,
    }
}

/// The process can be used. `status` is shown to administrators.
pub fn ready(status: &str) {
    say(&format!("READY=1\nSTATUS={}\n", status.replace('\n', " ")));
}

/// The process begins to stop.
pub fn stopping() {
    say("STOPPING=1\nSTATUS=stopping\n");
}

fn say(message: &str) {
    let Some(manager) = MANAGER.get() else { return };
    let sent = UnixDatagram::unbound().and_then(|socket| {
        socket.set_write_timeout(Some(PATIENCE))?;
        socket.send_to_addr(message.as_bytes(), &manager.socket)
    });
    if let Err(error) = sent {
        tracing::warn!(%error, message, "cannot send this to the service manager ({SOCKET})");
    }
}

/// Reports turns of an event loop. It belongs to the loop's thread: a loop that hangs reports none, and the service manager
/// starts the process again.
#[derive(Default)]
pub struct Watchdog(Option<Watched>);

struct Watched {
    /// Never blocks: a lost report is followed by another one in time.
    socket: UnixDatagram,
    manager: SocketAddr,
    every: Duration,
    next: Instant,
}

impl Watchdog {
    /// Without a service manager that watches this process, it does nothing.
    ///
    /// # Errors
    /// If no socket can be made.
    pub fn new() -> io::Result<Watchdog> {
        let watched = MANAGER.get().and_then(|manager| Some((manager.socket.clone(), manager.watchdog?)));
        watched.map_or(Ok(Watchdog(None)), |(manager, limit)| Watchdog::reporting_to(manager, limit))
    }

    fn reporting_to(manager: SocketAddr, limit: Duration) -> io::Result<Watchdog> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Watchdog(Some(Watched { socket, manager, every: limit / 2, next: Instant::now() })))
    }

    /// Time until the loop has to make a turn, also without inputs.
    pub fn due_in(&self) -> Option<Duration> {
        self.0.as_ref().map(|watched| watched.next.saturating_duration_since(Instant::now()))
    }

    /// The loop has made a turn.
    pub fn turned(&mut self) {
        let Some(watched) = &mut self.0 else { return };
        let now = Instant::now();
        if now < watched.next {
            return;
        }
        watched.next = now + watched.every;
        if let Err(error) = watched.socket.send_to_addr(b"WATCHDOG=1\n", &watched.manager) {
            tracing::debug!(%error, "cannot report a turn to the service manager");
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A service manager for one loop, which counts as hung after `limit`, and the loop's watchdog.
    pub fn watching(limit: Duration) -> (tempfile::TempDir, UnixDatagram, Watchdog) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let watchdog = Watchdog::reporting_to(SocketAddr::from_pathname(path).unwrap(), limit).unwrap();
        (dir, manager, watchdog)
    }

    #[test]
    fn addresses_are_paths_or_abstract_names() {
        assert_eq!(address(OsStr::new("/run/x")).unwrap().as_pathname().unwrap().to_str(), Some("/run/x"));
        assert_eq!(address(OsStr::new("@a/b")).unwrap().as_abstract_name(), Some(&b"a/b"[..]));
        for other in ["", "vsock:2:1234", "relative"] {
            assert!(address(OsStr::new(other)).is_none(), "{other}");
        }
    }

    #[test]
    fn a_report_is_sent_at_half_of_the_limit() {
        let (_dir, manager, mut watchdog) = watching(Duration::from_secs(3_600));
        manager.set_nonblocking(true).unwrap();
        watchdog.turned();
        watchdog.turned();
        let mut report = [0; 100];
        let length = manager.recv(&mut report).unwrap();
        assert_eq!(&report[..length], b"WATCHDOG=1\n");
        assert!(manager.recv(&mut report).is_err());
        let due = watchdog.due_in().unwrap();
        assert!(due > Duration::from_secs(1_700) && due <= Duration::from_secs(1_800), "{due:?}");
    }
}
