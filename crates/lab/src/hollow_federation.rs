//! A federation of daemons with hollow nodes on loopback: each master, global master and group of nodes is a process.

use crate::cluster::failed;
use crate::cluster::{ask_to_stop, first_line, new_state_dir, spawn, stop};
use amalgam_cli::client::Client;
use amalgam_cli::failure::{Failure, Result};
use amalgam_cli::values::as_text;
use amalgam_core::vocabulary::Attribute;
use amalgam_daemon::auth::{Tokens, client_token};
use amalgam_daemon::removal::{Pace, remove_tree};
use amalgam_workload::trace::Node;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Time limit for every global master to learn all nodes.
const PATIENCE: Duration = Duration::from_secs(240);

pub struct Plan<'a> {
    /// A preset of federations.
    pub preset: &'a str,
    pub clusters: u32,
    pub globals: u32,
    /// Heartbeat of the masters; `None` for the default.
    pub heartbeat: Option<Duration>,
    pub nodes: Nodes<'a>,
}

pub enum Nodes<'a> {
    /// `count` nodes of all clusters in total, with `cpus` CPUs each. The nodes of a cluster are one process.
    Alike { count: u32, cpus: u32 },
    /// One process for each node. The first nodes belong to the first cluster and join it in this order, as in the simulator.
    Each(&'a [Node]),
}

pub struct Daemons {
    masters: Vec<Child>,
    globals: Vec<Child>,
    agents: Vec<Child>,
    /// Clients of the global masters.
    pub clients: Vec<Client>,
    pub of_masters: Vec<Client>,
    state_dir: PathBuf,
}

/// CPU time of processes in seconds.
#[derive(Default)]
pub struct Spent {
    /// By the kind of process, and the thread's name.
    pub by_thread: BTreeMap<&'static str, BTreeMap<String, f64>>,
    /// Time that all threads together waited for a core, because of each other or of other programs on this machine.
    pub waited: f64,
}

impl Daemons {
    /// Starts all daemons, and returns once every global master knows all nodes.
    pub fn start(plan: &Plan<'_>) -> Result<Daemons> {
        let state_dir = new_state_dir();
        let (masters, globals, agents, clients, of_masters) = Default::default();
        // From here on a failure stops all processes started so far.
        let mut daemons = Daemons { masters, globals, agents, clients, of_masters, state_dir };
        let addresses = free_addresses(plan.clusters)?;
        let first = daemons.home("global-0")?;
        let user = amalgam_cli::process::user();
        Tokens::open(&first, &user).map_err(|error| Failure::new(error.to_string(), ""))?;
        let tokens = first.join(Tokens::FILE);
        std::fs::write(daemons.state_dir.join("federation.toml"), plan.config(&addresses))?;
        for (cluster, address) in (0..plan.clusters).zip(&addresses) {
            let (process, ready) =
                daemons.daemon("server", "cluster", cluster, &["--listen-agents", address], &tokens)?;
            daemons.masters.push(process);
            daemons.of_masters.push(Client::new(interface(&ready)?, token(&tokens, &user)?));
        }
        for global in 0..plan.globals {
            let (process, ready) = daemons.daemon("global", "global", global, &[], &tokens)?;
            daemons.globals.push(process);
            daemons.clients.push(Client::new(interface(&ready)?, token(&tokens, &user)?));
        }
        let count = match plan.nodes {
            Nodes::Alike { count, cpus } => {
                daemons.add_alike(count, cpus, &addresses, &tokens)?;
                count
            }
            Nodes::Each(nodes) => {
                daemons.add_each(nodes, &addresses, &tokens)?;
                nodes.len() as u32
            }
        };
        daemons.wait_for_nodes(count)?;
        Ok(daemons)
    }

    /// Starts a process and returns its ready line.
    fn daemon(
        &self,
        verb: &str,
        kind: &str,
        number: u32,
        arguments: &[&str],
        tokens: &Path,
    ) -> Result<(Child, String)> {
        let home = self.home(&format!("{kind}-{number}"))?;
        let own = home.join(Tokens::FILE);
        if !own.exists() {
            std::fs::copy(tokens, &own)?;
        }
        let (config, number) = (self.state_dir.join("federation.toml"), number.to_string());
        let (config, place) = (as_text(&config)?, as_text(&home)?);
        let own = [verb, "--listen", "127.0.0.1:0", "--config", config, "--number", &number, "--state-dir", place];
        let mut process = spawn(&home, &[&own[..], arguments].concat(), Stdio::piped())?;
        match is_ready(&mut process) {
            Ok(ready) => Ok((process, ready)),
            Err(failure) => {
                stop(process);
                Err(failure)
            }
        }
    }

    fn add_alike(&mut self, count: u32, cpus: u32, masters: &[String], tokens: &Path) -> Result<()> {
        let clusters = masters.len() as u32;
        for (cluster, master) in (0..).zip(masters) {
            let own = (count / clusters + u32::from(cluster < count % clusters)).to_string();
            if own != "0" {
                let size = ["--hollow", &own, "--cpus", &cpus.to_string(), "--memory", "64GiB"];
                self.agents.push(self.agent(master, &format!("c{cluster}"), &size, tokens)?);
                self.agents.last_mut().map(is_ready).transpose()?;
            }
        }
        Ok(())
    }

    /// One node of each cluster at a time.
    fn add_each(&mut self, nodes: &[Node], masters: &[String], tokens: &Path) -> Result<()> {
        let of_cluster: Vec<&[Node]> = nodes.chunks(nodes.len().div_ceil(masters.len()).max(1)).collect();
        for place in 0..of_cluster.iter().map(|nodes| nodes.len()).max().unwrap_or(0) {
            let first = self.agents.len();
            for (cluster, (nodes, master)) in of_cluster.iter().zip(masters).enumerate() {
                let Some(node) = nodes.get(place) else { continue };
                let name = format!("c{cluster}-n{place}");
                let offer = offer(node);
                let offer: Vec<&str> = offer.iter().map(String::as_str).collect();
                self.agents.push(self.agent(master, &name, &offer, tokens)?);
            }
            self.agents[first..].iter_mut().try_for_each(|agent| is_ready(agent).map(drop))?;
        }
        Ok(())
    }

    /// A process of hollow nodes, which may not have joined yet.
    fn agent(&self, master: &str, name: &str, offer: &[&str], tokens: &Path) -> Result<Child> {
        let who = ["agent", "--server", master, "--token-file", as_text(tokens)?, "--name", name];
        spawn(&self.state_dir, &[&who[..], offer].concat(), Stdio::piped())
    }

    fn home(&self, name: &str) -> Result<PathBuf> {
        let home = self.state_dir.join(name);
        std::fs::create_dir_all(&home).map_err(failed("make a state directory"))?;
        Ok(home)
    }

    fn wait_for_nodes(&self, count: u32) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let mut knows_all = true;
            for client in &self.clients {
                knows_all &= Counts::of(client)?.get("amalgam_nodes{state=\"up\"}") == f64::from(count);
            }
            if knows_all {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Err(Failure::new("the nodes did not become known to all global masters", "look at the machine's load"))
    }

    /// CPU time of all processes so far.
    pub fn spent(&self) -> Result<Spent> {
        let mut spent = Spent::default();
        for (who, processes) in [("masters", &self.masters), ("globals", &self.globals), ("agents", &self.agents)] {
            for process in processes {
                spent.add(who, process.id())?;
            }
        }
        Ok(spent)
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        self.agents.iter().for_each(ask_to_stop);
        for process in self.agents.drain(..).chain(self.globals.drain(..)).chain(self.masters.drain(..)) {
            stop(process);
        }
        let _ = remove_tree(&self.state_dir, &mut Pace::fast());
    }
}

impl Spent {
    fn add(&mut self, who: &'static str, pid: u32) -> Result<()> {
        let by_thread = self.by_thread.entry(who).or_default();
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let thread = task?.path();
            let name = std::fs::read_to_string(thread.join("comm"))?;
            let text = std::fs::read_to_string(thread.join("schedstat"))?;
            let nanos: Vec<f64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
            let [ran, waited, ..] = nanos[..] else {
                return Err(Failure::new("the kernel does not account for threads", ""));
            };
            *by_thread.entry(name.trim().to_owned()).or_default() += ran / 1e9;
            self.waited += waited / 1e9;
        }
        Ok(())
    }
}

impl Plan<'_> {
    fn config(&self, masters: &[String]) -> String {
        let heartbeat = self.heartbeat.map(|period| format!("heartbeat = '{}ms'\n", period.as_millis()));
        let (preset, heartbeat, globals) = (self.preset, heartbeat.unwrap_or_default(), self.globals);
        format!("preset = '{preset}'\n{heartbeat}[federation]\nmasters = {masters:?}\nglobals = {globals}\n")
    }
}

fn offer(node: &Node) -> Vec<String> {
    let size = &node.resources.basic;
    let (cpus, memory) = (format!("{}m", size.cpu_millis()), format!("{}MiB", size.memory_mib()));
    let attribute =
        |attribute: &Attribute| ["--attribute".to_owned(), format!("{}={}", attribute.name, attribute.value)];
    let own = ["--hollow", "1", "--cpus", &cpus, "--memory", &memory].map(str::to_owned);
    own.into_iter().chain(node.attributes.iter().flat_map(attribute)).collect()
}

/// Waits for the ready line.
fn is_ready(process: &mut Child) -> Result<String> {
    let ready = first_line(process)?;
    match ready.starts_with("ready: ") {
        true => Ok(ready),
        false => Err(Failure::new("a daemon did not start", "see its message above")),
    }
}

/// The metrics of a daemon, by their names in `/metrics`.
pub struct Counts(BTreeMap<String, f64>);

impl Counts {
    pub fn of(client: &Client) -> Result<Counts> {
        let mut text = String::new();
        client.open("/metrics")?.into_body().into_reader().read_to_string(&mut text)?;
        Ok(Counts::read(&text))
    }

    fn read(text: &str) -> Counts {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let count =
            |line: &str| line.rsplit_once(' ').and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
        Counts(lines.filter_map(count).collect())
    }

    /// Zero if nothing was counted yet.
    pub fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }
}

/// Ports that are free now, chosen in advance because every configuration contains the masters' addresses. They are below the
/// ephemeral ports, so that the system does not give one of them to another daemon.
fn free_addresses(count: u32) -> Result<Vec<String>> {
    const PORTS: std::ops::Range<u32> = 20_000..32_000;
    let start = std::process::id() % PORTS.len() as u32;
    let in_turn = (0..PORTS.len() as u32).map(|turn| PORTS.start + (start + turn) % PORTS.len() as u32);
    let addresses = in_turn.map(|port| format!("127.0.0.1:{port}"));
    let free: Vec<String> =
        addresses.filter(|address| TcpListener::bind(address).is_ok()).take(count as usize).collect();
    if free.len() < count as usize {
        let problem = format!("fewer than {count} ports from {} to {} are free", PORTS.start, PORTS.end - 1);
        return Err(Failure::new(problem, "stop the programs that listen there"));
    }
    Ok(free)
}

/// The address in `ready: http://127.0.0.1:1234, ...`.
fn interface(ready: &str) -> Result<String> {
    let address = ready.strip_prefix("ready: ").and_then(|rest| rest.split(',').next());
    address
        .map(|address| address.trim().to_owned())
        .ok_or_else(|| Failure::new(format!("a global master printed `{ready}`"), ""))
}

fn token(file: &Path, user: &str) -> Result<String> {
    client_token(file, user).map_err(|error| Failure::new(error.to_string(), ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_by_their_names_and_labels() {
        let counts = Counts::read("# HELP jobs Jobs known.\njobs{state=\"up\"} 3\nseconds_sum 0.25\n");
        assert_eq!((counts.get("jobs{state=\"up\"}"), counts.get("seconds_sum"), counts.get("jobs")), (3.0, 0.25, 0.0));
    }

    #[test]
    fn a_global_master_says_where_its_interface_is() {
        let ready = "ready: http://127.0.0.1:1234, global master 0 of 3 clusters, preset megha, state in /tmp/x\n";
        assert_eq!(interface(ready).ok().as_deref(), Some("http://127.0.0.1:1234"));
        assert!(interface("").is_err());
    }
}
