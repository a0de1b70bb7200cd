//! A federation of separate processes, each link of which goes through a proxy.

use super::{Daemon, Proxy, Scene, free_port};
use amalgam_daemon::auth::Tokens;
use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;

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
    listen_agents: Vec<String>,
    listen: Vec<String>,
    config: String,
}

impl Federation {
    /// So many clusters of so many agents with two CPUs each, under so many global masters.
    pub fn start(clusters: usize, globals: usize, agents: usize, config: &str) -> Federation {
        let scene = Scene::new();
        let address = || format!("127.0.0.1:{}", free_port());
        let listen_agents: Vec<String> = (0..clusters).map(|_| address()).collect();
        let links = |target: &String, count: usize| (0..count).map(|_| Proxy::to(target.clone())).collect();
        let federation = Federation {
            masters: (0..clusters).map(|_| RefCell::default()).collect(),
            globals: (0..globals).map(|_| RefCell::default()).collect(),
            agents: (0..clusters).map(|_| (0..agents).map(|_| RefCell::default()).collect()).collect(),
            to_masters: (0..globals).map(|_| listen_agents.iter().cloned().map(Proxy::to).collect()).collect(),
            of_agents: listen_agents.iter().map(|target| links(target, agents)).collect(),
            listen: (0..clusters + globals).map(|_| address()).collect(),
            listen_agents,
            config: config.to_owned(),
            scene,
        };
        Tokens::open(&federation.scene.state(), "ada").unwrap();
        (0..clusters).for_each(|cluster| federation.start_master(cluster));
        (0..globals).for_each(|global| federation.start_global(global));
        for cluster in 0..clusters {
            (0..agents).for_each(|agent| federation.start_agent(cluster, agent));
        }
        federation
    }

    /// The state directory of a process, which has the tokens of all.
    fn home(&self, name: &str) -> PathBuf {
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
        let globals = self.globals.len();
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
        *self.masters[cluster].borrow_mut() = Some(started(command, &name));
    }

    pub fn start_global(&self, global: usize) {
        let masters: Vec<String> = self.to_masters[global].iter().map(|proxy| proxy.address.clone()).collect();
        let config = self.config(&format!("global-{global}"), global, &masters);
        let mut command = self.scene.command(&["global", "--listen", &self.listen[self.masters.len() + global]]);
        command.arg("--config").arg(config).arg("--state-dir").arg(self.global_home(global));
        command.arg("--journal").arg(self.scene.journals());
        *self.globals[global].borrow_mut() = Some(started(command, "global master"));
    }

    pub fn start_agent(&self, cluster: usize, agent: usize) {
        let name = format!("c{cluster}-{agent}");
        let home = self.scene.path().join(&name);
        let mut command = self.scene.command(&["agent", "--server", &self.of_agents[cluster][agent].address]);
        command.args(["--name", &name, "--cpus", "2", "--memory", "1GiB", "--work-dir"]).arg(&home);
        command.arg("--token-file").arg(self.scene.state().join(Tokens::FILE));
        command.arg("--journal").arg(self.scene.journals());
        self.scene.has_executor(&home);
        *self.agents[cluster][agent].borrow_mut() = Some(started(command, &name));
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

fn started(command: std::process::Command, what: &str) -> Daemon {
    Daemon::start(command).unwrap_or_else(|said| panic!("no {what}: {said}"))
}
