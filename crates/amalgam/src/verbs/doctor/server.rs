//! Ports, and the server: whether it is reached, its clock, and the versions of all programs.

use super::{Check, Patient, Role};
use crate::client::Client;
use crate::failure::Kind;
use crate::{discovery, show};
use amalgam_daemon::agent::known_server;
use amalgam_daemon::api::{ClusterSummary, NodeDetail, NodeSummary, ServerFile};
use amalgam_daemon::config::is_loopback;
use amalgam_daemon::executor::host::Host;
use amalgam_daemon::versions::PROGRAM;
use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

const PATIENCE: Duration = Duration::from_secs(3);
/// Calls of the server's clock: the fastest answer has the smallest error.
const CALLS: usize = 5;
/// A larger difference of clocks is a warning: times in lists and stories do not match those of this machine.
const CLOCKS: Duration = Duration::from_secs(5);
/// A larger one is a problem: certificates begin one day before they are made.
const CLOCKS_OF_CERTIFICATES: Duration = Duration::from_secs(12 * 60 * 60);

pub fn checks(patient: &Patient) -> Vec<Check> {
    let mut checks = Vec::new();
    if patient.is(Role::Server) {
        checks.extend(ports(patient));
    }
    if let Some(server) = patient.work_dir.as_deref().filter(|_| patient.is(Role::Agent)).and_then(known_server) {
        checks.extend(server.split(',').map(|address| reached("server", address)));
    }
    // An agent needs no HTTP interface.
    let is_named = matches!(
        discovery::choice(patient.connection),
        Ok(discovery::Choice::Server(_) | discovery::Choice::Context(_))
    );
    match discovery::find(patient.connection) {
        Ok(Some(client)) => checks.extend(of_server(patient, &client)),
        Ok(None) if patient.roles == [Role::Client] => {
            let remedy = "name one with --server or AMALGAM_SERVER, or its state directory with --state-dir; `amalgam run` works \
                          without one";
            checks.push(Check::warning("server", "none is named, and none runs on this machine", remedy));
        }
        Ok(None) => {}
        Err(failure) if is_named || !patient.is(Role::Agent) => {
            checks.push(Check::problem("server", failure.what, failure.remedy));
        }
        Err(_) => {}
    }
    checks
}

/// The addresses of a server on this machine.
fn ports(patient: &Patient) -> Vec<Check> {
    let running = patient.state_dir.as_deref().and_then(running);
    let texts = |addresses: Vec<&str>| addresses.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let (of_clients, of_agents) = match &running {
        Some(file) => addresses_of(file.clone()),
        None => (texts(patient.config.interface()), texts(patient.config.agents())),
    };
    let check = |what: &str, flag: &str, address: &String| match running.is_some() {
        true => listening(what, address),
        false => free(what, flag, address),
    };
    let mut checks: Vec<Check> = of_clients.iter().map(|address| check("clients", "--listen", address)).collect();
    checks.extend(of_agents.iter().map(|address| check("agents", "--listen-agents", address)));
    checks
}

/// Where a server listens for clients and for agents. The file of an older one has the first address of each.
fn addresses_of(file: ServerFile) -> (Vec<String>, Vec<String>) {
    let or_else = |all: Vec<String>, first: Option<String>| if all.is_empty() { Vec::from_iter(first) } else { all };
    (or_else(file.addresses, Some(file.address)), or_else(file.agents_addresses, file.agents))
}

/// The file of a server whose process exists.
fn running(state_dir: &Path) -> Option<ServerFile> {
    let text = discovery::server_file(state_dir).ok()??;
    let file: ServerFile = serde_json::from_str(&text).ok()?;
    Path::new("/proc").join(file.pid.to_string()).exists().then_some(file)
}

fn listening(what: &str, address: &str) -> Check {
    const CHECK: &str = "ports";
    // An unspecified address is reached through loopback.
    let here = address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]");
    match connect(&here) {
        Ok(_) => Check::ok(CHECK, format!("the server listens for {what} at {address}")),
        Err(error) => {
            let remedy = "restart the server, and look at what it wrote: `journalctl -u amalgam-server`";
            Check::problem(
                CHECK,
                format!("the server runs, and nothing answers for {what} at {address}: {error}"),
                remedy,
            )
        }
    }
}

fn free(what: &str, flag: &str, address: &str) -> Check {
    const CHECK: &str = "ports";
    match TcpListener::bind(address) {
        Ok(_) => Check::ok(CHECK, format!("{address} is free for {what}; no server runs")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let found = format!("no server runs, and another process listens at {address}, which is for {what}");
            let remedy = format!("stop that process (`ss -ltnp` shows it), or use another address with {flag}");
            Check::problem(CHECK, found, remedy)
        }
        Err(error) => {
            let remedy = format!("name an address of this machine with {flag}");
            Check::problem(CHECK, format!("cannot listen for {what} at {address}: {error}"), remedy)
        }
    }
}

/// Whether a server's name has an address, and something listens there.
fn reached(check: &'static str, address: &str) -> Check {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    if address.to_socket_addrs().is_err() {
        let remedy = format!("add `{host}` to DNS or to /etc/hosts, or name the server by its address");
        return Check::problem(check, format!("{host} has no address on this machine"), remedy);
    }
    match connect(address) {
        Ok(time) => Check::ok(check, format!("{address} is reached in {}", show::seconds(time.as_secs_f64()))),
        Err(error) => {
            let remedy = if is_loopback(address) {
                "start the server"
            } else {
                "start the server, let it listen at an address for other machines (`listen_agents`), and open the port in its firewall"
            };
            Check::problem(check, format!("{address} is not reached: {error}"), remedy)
        }
    }
}

fn connect(address: &str) -> io::Result<Duration> {
    let mut outcome = Err(io::ErrorKind::NotFound.into());
    for address in address.to_socket_addrs()? {
        let started = Instant::now();
        outcome = TcpStream::connect_timeout(&address, PATIENCE).map(|_| started.elapsed());
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

fn of_server(patient: &Patient, client: &Client) -> Vec<Check> {
    let client = client.within(PATIENCE * 4);
    let cluster: ClusterSummary = match client.get("/v1/cluster") {
        Ok(cluster) => cluster,
        // Clients should name the active one, but this machine is as it should be.
        Err(failure) if failure.kind == Kind::Standby && patient.is(Role::Server) => {
            return vec![Check::ok("server", failure.what)];
        }
        Err(failure) => {
            let remedy = if failure.remedy.is_empty() { "start the server".to_owned() } else { failure.remedy };
            return vec![Check::problem("server", failure.what, remedy)];
        }
    };
    let mut checks = vec![up(cluster.nodes_up, cluster.nodes_total)];
    checks.extend(clock(&client));
    checks.push(version("the server", &cluster.version));
    let nodes: Vec<NodeSummary> = client.get("/v1/nodes").unwrap_or_default();
    for node in &nodes {
        let differing = node.program.as_deref().filter(|program| *program != PROGRAM);
        checks.extend(differing.map(|program| version(&format!("node {}", node.name), program)));
    }
    let here = Host::inspect().hostname;
    checks.extend(nodes.iter().find(|node| node.name == here).and_then(|node| enforcement(&client, node)));
    checks
}

fn up(up: u32, total: u32) -> Check {
    const CHECK: &str = "server";
    let found = format!("answers, with {up} of {total} nodes up");
    match (up, total) {
        (_, 0) => Check::warning(
            CHECK,
            found,
            "add a node: `amalgam token join` on the server's machine prints a string for its agent",
        ),
        (0, _) => Check::problem(
            CHECK,
            found,
            "start the agents of its nodes: `amalgam node list` says since when they are down",
        ),
        _ => Check::ok(CHECK, found),
    }
}

/// How the executor of the node on this machine enforces limits.
fn enforcement(client: &Client, node: &NodeSummary) -> Option<Check> {
    const CHECK: &str = "enforcement";
    let detail: NodeDetail = client.get(&format!("/v1/nodes/{}", node.id)).ok()?;
    let found = format!("node {} enforces limits by {}", node.name, detail.enforcement);
    if detail.enforcement.starts_with("cgroup") {
        return Some(Check::ok(CHECK, found));
    }
    let remedy = format!("`amalgam node info {}` says why; run its agent as root, or by the packaged unit", node.name);
    Some(Check::warning(CHECK, found, remedy))
}

fn clock(client: &Client) -> Option<Check> {
    const CHECK: &str = "clock";
    let mut best: Option<(Duration, i64)> = None;
    for _ in 0..CALLS {
        let (sent, started) = (SystemTime::now(), Instant::now());
        let answer = client.open("/healthz").ok()?;
        let took = started.elapsed();
        let date = httpdate::parse_http_date(answer.headers().get("date")?.to_str().ok()?).ok()?;
        // The header has whole seconds, so its moment is half a second later on average.
        let (there, here) = (millis(date) + 500, millis(sent + took / 2));
        if best.is_none_or(|(shortest, _)| took < shortest) {
            best = Some((took, there - here));
        }
    }
    let (took, difference) = best?;
    Some(compared(CHECK, difference, Duration::from_millis(500) + took / 2))
}

fn millis(moment: SystemTime) -> i64 {
    moment.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// `difference` is how many milliseconds the server's clock is ahead.
fn compared(check: &'static str, difference: i64, error: Duration) -> Check {
    let size = Duration::from_millis(difference.unsigned_abs());
    let direction = if difference > 0 { "ahead of" } else { "behind" };
    let found = format!("the server's clock is {} {direction} this one", show::seconds(size.as_secs_f64()));
    let remedy = "let both machines set their clocks from the same source, such as chrony or systemd-timesyncd";
    match size {
        _ if size > CLOCKS_OF_CERTIFICATES => {
            Check::problem(check, format!("{found}, so certificates are refused"), remedy)
        }
        _ if size > CLOCKS => Check::warning(check, found, remedy),
        _ if size <= error => {
            Check::ok(check, format!("as the server's, within {}", show::seconds(error.as_secs_f64())))
        }
        _ => Check::ok(check, found),
    }
}

/// Programs understand those of their own and the previous version.
fn version(what: &str, theirs: &str) -> Check {
    const CHECK: &str = "versions";
    let found = format!("{what} is {theirs}, and this program {PROGRAM}");
    match apart(theirs, PROGRAM) {
        Some(0) if theirs == PROGRAM => Check::ok(CHECK, found),
        Some(0 | 1) => Check::warning(CHECK, found, "upgrade the older one; until then they understand each other"),
        _ => {
            let remedy = "upgrade the older one: programs understand only those of their own and the previous version";
            Check::problem(CHECK, found, remedy)
        }
    }
}

/// Difference of the minor versions; `None` if the major versions differ or one is no version.
fn apart(one: &str, other: &str) -> Option<u64> {
    let parts = |version: &str| -> Option<(u64, u64)> {
        let mut parts = version.split('.').map(|part| part.parse().ok());
        Some((parts.next()??, parts.next()??))
    };
    let ((major, minor), (other_major, other_minor)) = (parts(one)?, parts(other)?);
    (major == other_major).then(|| minor.abs_diff(other_minor))
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn versions_may_differ_by_one() {
        for (one, other, expected) in [
            ("0.1.0", "0.1.7", Some(0)),
            ("0.2.0", "0.1.0", Some(1)),
            ("0.3.0", "0.1.0", Some(2)),
            ("1.0.0", "0.1.0", None),
            ("x", "0.1.0", None),
        ] {
            assert_eq!(apart(one, other), expected, "{one} {other}");
        }
        assert_eq!(version("the server", PROGRAM).result, Outcome::Ok);
        assert_eq!(version("the server", "99.0.0").result, Outcome::Problem);
    }

    #[test]
    fn differences_of_clocks_are_judged_by_what_they_break() {
        let error = Duration::from_millis(501);
        for (difference, result, found) in [
            (300, Outcome::Ok, "as the server's, within 501"),
            (-2_000, Outcome::Ok, "2.00s behind"),
            (60_000, Outcome::Warning, "ahead of"),
            (-90_000_000, Outcome::Problem, "certificates are refused"),
        ] {
            let check = compared("clock", difference, error);
            assert!(check.result == result && check.found.contains(found), "{check:?}");
        }
    }
}
