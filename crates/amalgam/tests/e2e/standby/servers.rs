//! Two servers of a cluster whose records are in etcd: one is active, and the other stands by.

use super::Etcd;
use crate::support::{Daemon, Scene, free_port};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Servers {
    running: [RefCell<Option<Daemon>>; 2],
    /// Other daemons of the cluster.
    pub others: RefCell<Vec<Daemon>>,
    /// Dropped after the daemons.
    pub scene: Scene,
    _etcd: Etcd,
    pub config: PathBuf,
    pub listen: [String; 2],
    pub listen_agents: [String; 2],
}

impl Servers {
    /// Addresses and a configuration for both, with a lease of this many seconds. `None` without etcd, which is printed.
    pub fn prepare(lease: u64) -> Option<Servers> {
        let scene = Scene::new();
        let etcd = Etcd::start(&scene)?;
        let addresses = || [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
        let (listen, listen_agents) = (addresses(), addresses());
        let text = format!(
            "heartbeat = '200ms'\n[federation]\nmasters = ['{}']\nspan = 64\nnumber = 0\n[store]\netcd = ['{}']\nlease = '{lease}s'\n",
            listen_agents.join(","),
            etcd.endpoint
        );
        let config = scene.write("federation.toml", &text);
        let (running, others) = (Default::default(), RefCell::default());
        Some(Servers { running, others, scene, _etcd: etcd, config, listen, listen_agents })
    }

    /// The command of a server with this state directory.
    pub fn command(&self, server: usize, state_dir: &Path) -> Command {
        let mut command = self.scene.command(&["server", "--listen", &self.listen[server], "--config"]);
        command.arg(&self.config).args(["--listen-agents", &self.listen_agents[server]]);
        command.arg("--state-dir").arg(state_dir);
        command
    }

    /// Does not wait for the ready line: a standby is not ready.
    pub fn spawn(&self, server: usize, command: Command) {
        *self.running[server].borrow_mut() = Some(Daemon::spawn(command));
    }

    pub fn await_active(&self, server: usize) {
        self.running[server].borrow_mut().as_mut().expect("it runs").await_ready().unwrap();
    }

    pub fn pid(&self, server: usize) -> u32 {
        self.running[server].borrow().as_ref().expect("it runs").pid()
    }

    pub fn take(&self, server: usize) -> Daemon {
        self.running[server].borrow_mut().take().expect("it runs")
    }
}
