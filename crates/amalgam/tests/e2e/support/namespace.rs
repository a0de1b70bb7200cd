//! Network namespaces that a test creates: hosts with a loopback of their own, linked by real interfaces.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;

/// It has no name, and exists while a process has it open or is in it, so that a test leaves nothing behind.
#[derive(Clone)]
pub struct Namespace(Arc<File>);

/// Hosts that are connected by a bridge in a separate namespace.
pub struct Network {
    pub hosts: Vec<Namespace>,
    bridge: Namespace,
}

impl Namespace {
    fn new() -> io::Result<Namespace> {
        let made = thread::spawn(|| {
            // SAFETY: unshare has no preconditions, and affects this thread only.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            File::open("/proc/thread-self/ns/net")
        });
        Ok(Namespace(Arc::new(made.join().unwrap()?)))
    }

    /// This thread enters it, and so do threads that it starts from now on.
    pub fn enter(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open while `self` exists.
        match unsafe { libc::setns(self.0.as_raw_fd(), libc::CLONE_NEWNET) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The command will run there.
    pub fn has(&self, command: &mut Command) {
        let namespace = self.clone();
        // SAFETY: setns is async-signal-safe, and no other function is called unless it fails.
        unsafe { command.pre_exec(move || namespace.enter()) };
    }

    /// A path with which another process can open it.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs `ip` there.
    fn ip(&self, arguments: &str) -> Result<(), String> {
        let mut command = Command::new("ip");
        self.has(command.args(arguments.split_whitespace()));
        let output = command.output().map_err(|why| format!("`ip` of iproute2 cannot be run: {why}"))?;
        let stdout = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(format!("`ip {arguments}`: {}", stdout.trim())) }
    }
}

impl Network {
    /// # Errors
    /// Why namespaces cannot be created here.
    pub fn new(hosts: usize) -> Result<Network, String> {
        let addresses: Vec<_> = (0..hosts).map(|number| vec![(0, format!("{}/24", address(number)))]).collect();
        Network::with(&addresses)
    }

    /// Hosts that have IPv6 addresses only.
    ///
    /// # Errors
    /// Why namespaces cannot be created here.
    pub fn of_ipv6(hosts: usize) -> Result<Network, String> {
        let addresses: Vec<_> = (0..hosts).map(|number| vec![(0, format!("{}/64", ipv6_address(number)))]).collect();
        Network::with(&addresses)
    }

    /// Hosts with an interface for each address with its prefix, at the network with this number. Hosts do not forward between networks.
    ///
    /// # Errors
    /// Why namespaces cannot be created here.
    pub fn with(hosts: &[Vec<(usize, String)>]) -> Result<Network, String> {
        let namespace = || Namespace::new().map_err(|why| format!("no network namespace can be made: {why}"));
        let bridge = namespace()?;
        let networks = hosts.iter().flatten().map(|(network, _)| network + 1).max().unwrap_or(0);
        for network in 0..networks {
            bridge.ip(&format!("link add hub{network} type bridge"))?;
            bridge.ip(&format!("link set hub{network} up"))?;
        }
        let mut made = Network { hosts: Vec::new(), bridge };
        for (number, interfaces) in hosts.iter().enumerate() {
            let host = namespace()?;
            host.ip("link set lo up")?;
            for (place, (network, address)) in interfaces.iter().enumerate() {
                let port = if place == 0 { format!("port{number}") } else { format!("port{number}-{place}") };
                let path = made.bridge.path();
                host.ip(&format!("link add eth{place} type veth peer name {port} netns {path}"))?;
                // Without the time in which IPv6 looks for duplicates.
                let usable = if address.contains(':') { " nodad" } else { "" };
                host.ip(&format!("address add {address} dev eth{place}{usable}"))?;
                host.ip(&format!("link set eth{place} up"))?;
                made.bridge.ip(&format!("link set {port} master hub{network} up"))?;
            }
            made.hosts.push(host);
        }
        Ok(made)
    }

    /// Packets are lost from now on, without an error.
    pub fn cut(&self, host: usize) {
        self.bridge.ip(&format!("link set port{host} down")).unwrap();
    }

    /// These hosts do not reach each other any more, only the others.
    pub fn separate(&self, hosts: &[usize]) {
        for host in hosts {
            self.bridge.ip(&format!("link set port{host} type bridge_slave isolated on")).unwrap();
        }
    }

    pub fn heal(&self, host: usize) {
        self.bridge.ip(&format!("link set port{host} up")).unwrap();
    }
}

/// The address of a host for the others.
pub fn address(host: usize) -> String {
    format!("10.77.0.{}", host + 1)
}

/// The same in a network of IPv6.
pub fn ipv6_address(host: usize) -> String {
    format!("fd77::{}", host + 1)
}

/// An interface of a host in one of several networks, for [`Network::with`].
pub fn interface(network: usize, host: usize) -> (usize, String) {
    (network, format!("10.7{}.0.{}/24", 7 + network, host + 1))
}
