//! A federation of separate processes. Each link goes through a proxy, and each process may have a network namespace.

use super::namespace::address;
use super::{Daemon, Namespace, Network, Proxy, Scene, free_port, result};
use amalgam_daemon::auth::Tokens;
use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

pub struct Federation {
    masters: Vec<RefCell<Option<Daemon>>>,
    globals: Vec<RefCell<Option<Daemon>>>,
    agents: Vec<Vec<RefCell<Option<Daemon>>>>,
    /// Dropped after the daemons: it ends the executors, which outlive their agents. Its commands find global master 0.
    pub scene: Scene,
    /// From each global master to the master of each cluster.
    pub to_masters: Vec<Vec<Proxy>>,
    /// From the agents of each cluster to its master.
    pub of_agents: Vec<Vec<Proxy>>,
    /// To each master from the other namespaces.
    _gates: Vec<Proxy>,
    /// Hosts of the masters, then the global masters, then the agents.
    pub network: Option<Network>,
    listen_agents: Vec<String>,
    listen: Vec<String>,
    config: String,
}

impl Federation {
    /// `clusters` clusters of `agents` agents with two CPUs each, under `globals` global masters.
    pub fn start(clusters: usize, globals: usize, agents: usize, config: &str) -> Federation {
        Federation::across(None, [clusters, globals, agents], config)
    }

    /// Each process is on a host of its own.
    pub fn across(network: Option<Network>, [clusters, globals, agents]: [usize; 3], config: &str) -> Federation {
        let scene = Scene::new();
        let loopback = || format!("127.0.0.1:{}", free_port());
        let listen_agents: Vec<String> = (0..clusters).map(|_| loopback()).collect();
        let host = |number: usize| network.as_ref().map(|network| &network.hosts[number]);
        // Every master listens on its own loopback only; other hosts connect through a gate on its host.
        let is_apart = |_: &usize| network.is_some();
        let gates: Vec<Proxy> = (0..clusters)
            .filter(is_apart)
            .map(|number| {
                let outside = format!("{}:{}", address(number), free_port());
                Proxy::within(host(number), outside, &listen_agents[number])
            })
            .collect();
        let link = |from: usize, to: usize| {
            let target = gates.get(to).map_or(&listen_agents[to], |gate| &gate.address);
            Proxy::within(host(from), loopback(), target)
        };
        let of_global = |global| (0..clusters).map(|cluster| link(clusters + global, cluster)).collect();
        let to_masters = (0..globals).map(of_global).collect();
        let first = clusters + globals;
        let of_cluster = |cluster| (0..agents).map(|agent| link(first + cluster * agents + agent, cluster)).collect();
        let of_agents = (0..clusters).map(of_cluster).collect();
        let federation = Federation {
            masters: (0..clusters).map(|_| RefCell::default()).collect(),
            globals: (0..globals).map(|_| RefCell::default()).collect(),
            agents: (0..clusters).map(|_| (0..agents).map(|_| RefCell::default()).collect()).collect(),
            to_masters,
            of_agents,
            listen: (0..clusters + globals).map(|_| loopback()).collect(),
            listen_agents,
            config: config.to_owned(),
            scene,
            _gates: gates,
            network,
        };
        Tokens::open(&federation.scene.state(), "ada").unwrap();
        if let Some(host) = federation.host(federation.global_host(0)) {
            drop(federation.scene.namespace.set(host.clone()));
        }
        (0..clusters).for_each(|cluster| federation.start_master(cluster));
        (0..globals).for_each(|global| federation.start_global(global));
        for cluster in 0..clusters {
            (0..agents).for_each(|agent| federation.start_agent(cluster, agent));
        }
        federation
    }

    fn host(&self, number: usize) -> Option<&Namespace> {
        self.network.as_ref().map(|network| &network.hosts[number])
    }

    pub fn global_host(&self, global: usize) -> usize {
        self.masters.len() + global
    }

    pub fn agent_host(&self, cluster: usize, agent: usize) -> usize {
        self.masters.len() + self.globals.len() + cluster * self.agents[cluster].len() + agent
    }

    /// Starts a daemon on its host.
    fn started(&self, host: usize, mut command: Command, what: &str) -> Daemon {
        self.host(host).into_iter().for_each(|host| host.has(&mut command));
        Daemon::start(command).unwrap_or_else(|output| panic!("no {what}: {output}"))
    }

    /// The output of a command that asks this global master and succeeds.
    pub fn ok_at(&self, global: usize, arguments: &[&str]) -> String {
        let mut command = self.scene.command(&arguments[..1]);
        command.arg("--state-dir").arg(self.global_home(global)).args(&arguments[1..]);
        self.host(self.global_host(global)).into_iter().for_each(|host| host.has(&mut command));
        let result = result(command);
        assert_eq!(result.code, 0, "{arguments:?}: {result:?}");
        result.out
    }

    /// The state directory of a process, with the common tokens.
    pub fn home(&self, name: &str) -> PathBuf {
        let home = self.scene.path().join(name);
        if !home.exists() {
            fs::create_dir(&home).unwrap();
            fs::copy(self.scene.state().join(Tokens::FILE), home.join(Tokens::FILE)).unwrap();
        }
        home
    }

    pub fn global_home(&self, global: usize) -> PathBuf {
        if global == 0 { self.scene.state() } else { self.home(&format!("global-{global}")) }
    }

    fn config(&self, name: &str, number: usize, masters: &[String]) -> PathBuf {
        // The loopback of another namespace cannot be reached.
        let globals = match self.network {
            Some(_) => self.globals.len().to_string(),
            None => format!("{:?}", &self.listen[self.masters.len()..]),
        };
        let text = format!(
            "{}\n[federation]\nmasters = {masters:?}\nglobals = {globals}\nspan = 64\nnumber = {number}\n",
            self.config
        );
        self.scene.write(&format!("{name}.toml"), &text)
    }

    pub fn start_master(&self, cluster: usize) {
        let name = format!("cluster-{cluster}");
        let config = self.config(&name, cluster, &self.listen_agents);
        let mut command = self.scene.command(&["server", "--listen", &self.listen[cluster]]);
        command.args(["--listen-agents", &self.listen_agents[cluster], "--config"]).arg(config);
        command.arg("--state-dir").arg(self.home(&name)).arg("--journal").arg(self.scene.journals());
        *self.masters[cluster].borrow_mut() = Some(self.started(cluster, command, &name));
    }

    pub fn start_global(&self, global: usize) {
        let command = self.global_command(global);
        *self.globals[global].borrow_mut() = Some(self.started(self.global_host(global), command, "global master"));
    }

    pub fn global_command(&self, global: usize) -> Command {
        let masters: Vec<String> = self.to_masters[global].iter().map(|proxy| proxy.address.clone()).collect();
        let config = self.config(&format!("global-{global}"), global, &masters);
        let mut command = self.scene.command(&["global"]);
        if self.network.is_some() {
            command.args(["--listen", &self.listen[self.masters.len() + global]]);
        }
        command.arg("--config").arg(config).arg("--state-dir").arg(self.global_home(global));
        command.arg("--journal").arg(self.scene.journals());
        command
    }

    pub fn start_agent(&self, cluster: usize, agent: usize) {
        let name = format!("c{cluster}-{agent}");
        let home = self.scene.path().join(&name);
        let mut command = self.scene.agent_command(&["--server", &self.of_agents[cluster][agent].address]);
        command.args(["--name", &name, "--cpus", "2", "--memory", "1GiB", "--work-dir"]).arg(&home);
        command.arg("--token-file").arg(self.scene.state().join(Tokens::FILE));
        command.arg("--journal").arg(self.scene.journals());
        self.scene.has_executor(&home);
        *self.agents[cluster][agent].borrow_mut() = Some(self.started(self.agent_host(cluster, agent), command, &name));
    }

    pub fn kill_master(&self, cluster: usize) {
        self.masters[cluster].borrow_mut().take().expect("the master runs").kill();
    }

    pub fn kill_global(&self, global: usize) {
        self.globals[global].borrow_mut().take().expect("the global master runs").kill();
    }

    pub fn kill_agent(&self, cluster: usize, agent: usize) {
        self.agents[cluster][agent].borrow_mut().take().expect("the agent runs").kill();
    }

    /// All links between daemons.
    pub fn links(&self) -> impl Iterator<Item = &Proxy> {
        self.to_masters.iter().chain(&self.of_agents).flatten()
    }
}
