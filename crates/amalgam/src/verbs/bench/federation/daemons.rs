//! A federation of daemons on loopback, whose nodes are hollow.

use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::verbs::bench::cluster::{first_line, new_state_dir, spawn, stop};
use crate::verbs::bench::failed;
use amalgam_daemon::auth::{Tokens, client_token};
use std::collections::BTreeMap;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long all nodes may take until every global master knows them.
const PATIENCE: Duration = Duration::from_secs(240);

#[derive(Clone, Copy)]
pub struct Size {
    pub clusters: u32,
    pub globals: u32,
    /// Of all clusters together.
    pub nodes: u32,
    /// Of each node.
    pub cpus: u32,
}

pub struct Daemons {
    masters: Vec<Child>,
    globals: Vec<Child>,
    /// All nodes of a cluster are one process.
    agents: Vec<Child>,
    pub clients: Vec<Client>,
    state_dir: PathBuf,
}

/// What processes have had of the processors, in seconds.
#[derive(Default)]
pub struct Spent {
    /// By what the process is, and the thread's name.
    pub by_thread: BTreeMap<&'static str, BTreeMap<String, f64>>,
    /// All threads together had to wait for one, be it for each other or for what else runs on this machine.
    pub waited: f64,
}

impl Daemons {
    /// Starts them, and returns when every global master knows all nodes.
    pub fn start(size: Size, preset: &str) -> Result<Daemons> {
        let state_dir = new_state_dir();
        let (masters, globals, agents, clients) = Default::default();
        // From here on whatever was started is stopped when something fails.
        let mut daemons = Daemons { masters, globals, agents, clients, state_dir };
        let addresses = free_addresses(size.clusters)?;
        let first = daemons.home("global-0")?;
        let user = crate::cluster::user();
        Tokens::open(&first, &user).map_err(|error| Failure::new(error.to_string(), ""))?;
        let tokens = first.join(Tokens::FILE);
        let config = daemons.state_dir.join("federation.toml");
        let text = format!("preset = '{preset}'\n[federation]\nmasters = {addresses:?}\nglobals = {}\n", size.globals);
        std::fs::write(&config, text)?;
        for (cluster, address) in (0..size.clusters).zip(&addresses) {
            let master = daemons.daemon("server", "cluster", cluster, &["--listen-agents", address], &tokens)?;
            daemons.masters.push(master.0);
        }
        for global in 0..size.globals {
            let (process, ready) = daemons.daemon("global", "global", global, &[], &tokens)?;
            daemons.globals.push(process);
            daemons.clients.push(Client::new(interface(&ready)?, token(&tokens, &user)?));
        }
        for (cluster, address) in (0..size.clusters).zip(&addresses) {
            let count = size.nodes / size.clusters + u32::from(cluster < size.nodes % size.clusters);
            daemons.add_nodes(cluster, address, count, size.cpus, &tokens)?;
        }
        daemons.wait_for_nodes(size.nodes)?;
        Ok(daemons)
    }

    /// A process that says on one line when it is ready.
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
        let (config, place) = (config.to_string_lossy(), home.to_string_lossy());
        let own = [verb, "--listen", "127.0.0.1:0", "--config", &config, "--number", &number, "--state-dir", &place];
        self.started(&home, &[&own[..], arguments].concat())
    }

    fn add_nodes(&mut self, cluster: u32, server: &str, count: u32, cpus: u32, tokens: &Path) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let (name, count, cpus) = (format!("c{cluster}"), count.to_string(), cpus.to_string());
        let tokens = tokens.to_string_lossy();
        let who = ["agent", "--server", server, "--token-file", &tokens, "--name", &name, "--hollow", &count];
        let agent = self.started(&self.state_dir, &[&who[..], &["--cpus", &cpus, "--memory", "64GiB"]].concat())?;
        self.agents.push(agent.0);
        Ok(())
    }

    fn started(&self, home: &Path, arguments: &[&str]) -> Result<(Child, String)> {
        let mut process = spawn(home, arguments, Stdio::piped())?;
        let ready = first_line(&mut process)?;
        if ready.starts_with("ready: ") {
            return Ok((process, ready));
        }
        stop(process);
        Err(Failure::new(format!("`amalgam {}` did not come up", arguments[0]), "see its message above"))
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

    /// What all processes have used of the processors so far.
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
        for process in self.agents.drain(..).chain(self.globals.drain(..)).chain(self.masters.drain(..)) {
            stop(process);
        }
        let _ = std::fs::remove_dir_all(&self.state_dir);
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

/// What a daemon counts, by the names of its `/metrics`.
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

    /// Zero where nothing was counted yet.
    pub fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }
}

/// Ports that were free a moment ago, for the masters' addresses are in everybody's configuration.
fn free_addresses(count: u32) -> Result<Vec<String>> {
    let listeners: std::io::Result<Vec<TcpListener>> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    let addresses: std::io::Result<Vec<String>> =
        listeners.map_err(failed("listen"))?.iter().map(|listener| Ok(listener.local_addr()?.to_string())).collect();
    addresses.map_err(failed("listen"))
}

/// The address in `ready: http://127.0.0.1:1234, ...`.
fn interface(ready: &str) -> Result<String> {
    let address = ready.strip_prefix("ready: ").and_then(|rest| rest.split(',').next());
    address
        .map(|address| address.trim().to_owned())
        .ok_or_else(|| Failure::new(format!("a global master said `{ready}`"), ""))
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
