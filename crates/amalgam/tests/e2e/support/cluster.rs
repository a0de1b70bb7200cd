//! A server and agents as separate processes that can be killed and started again.

use super::{Daemon, Scene, free_port};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct Cluster {
    server: RefCell<Option<Daemon>>,
    agents: RefCell<Vec<Option<Daemon>>>,
    /// By their numbers.
    jobs: RefCell<BTreeMap<u8, Daemon>>,
    /// Dropped last: it ends the executors, which outlive their agents.
    pub scene: Scene,
    listen: String,
    listen_agents: String,
    config: PathBuf,
    cpus: String,
}

impl Cluster {
    /// A server with this configuration, and agents with `cpus` CPUs each.
    pub fn start(agents: usize, cpus: u32, config: &str) -> Cluster {
        let scene = Scene::new();
        let cluster = Cluster {
            server: RefCell::default(),
            agents: RefCell::new((0..agents).map(|_| None).collect()),
            jobs: RefCell::default(),
            listen: format!("127.0.0.1:{}", free_port()),
            listen_agents: format!("127.0.0.1:{}", free_port()),
            config: scene.write("server.toml", config),
            cpus: cpus.to_string(),
            scene,
        };
        cluster.start_server();
        for agent in 0..agents {
            cluster.start_agent(agent);
        }
        cluster
    }

    pub fn start_server(&self) {
        let config = self.config.to_str().unwrap();
        let mut command = self.scene.command(&[
            "server",
            "--listen",
            &self.listen,
            "--listen-agents",
            &self.listen_agents,
            "--config",
            config,
        ]);
        command.arg("--journal").arg(self.scene.journals());
        let server = Daemon::start(command).unwrap_or_else(|output| panic!("no server: {output}"));
        *self.server.borrow_mut() = Some(server);
    }

    /// Starts it in its own state directory, as on a host of its own.
    pub fn start_agent(&self, agent: usize) {
        let daemon = Daemon::start(self.agent_command(agent)).unwrap_or_else(|output| panic!("no agent: {output}"));
        self.agents.borrow_mut()[agent] = Some(daemon);
    }

    pub fn agent_command(&self, agent: usize) -> Command {
        self.agent_command_at(agent, &self.listen_agents)
    }

    /// The same with another address of the server.
    pub fn agent_command_at(&self, agent: usize, server: &str) -> Command {
        self.agent_command_as(agent, server, "agent")
    }

    /// The same for an agent that runs tasks as their job's user.
    pub fn agent_for_users(&self, agent: usize) -> Command {
        self.agent_command_as(agent, &self.listen_agents, "job-user")
    }

    fn agent_command_as(&self, agent: usize, server: &str, run_as: &str) -> Command {
        let name = format!("node-{agent}");
        let home = self.scene.path().join(&name);
        let tokens = self.scene.state().join("tokens.toml");
        let mut command = self.scene.command(&["agent", "--server", server, "--name", &name, "--run-as", run_as]);
        command.args(["--cpus", &self.cpus, "--memory", "1GiB", "--work-dir"]).arg(&home);
        command.arg("--token-file").arg(tokens);
        command.arg("--journal").arg(self.scene.journals());
        self.scene.has_executor(&home);
        command
    }

    /// One process of `count` hollow nodes with this name.
    pub fn hollow_command(&self, name: &str, count: u32) -> Command {
        let tokens = self.scene.state().join("tokens.toml");
        let mut command = self.scene.command(&["agent", "--server", &self.listen_agents, "--name", name]);
        command.args(["--hollow", &count.to_string(), "--cpus", &self.cpus, "--memory", "1GiB"]);
        command.arg("--token-file").arg(tokens);
        command.arg("--journal").arg(self.scene.journals());
        command
    }

    /// A process of job managers.
    pub fn start_jobs(&self, number: u8) {
        let daemon =
            Daemon::start(self.jobs_command(number)).unwrap_or_else(|output| panic!("no job managers: {output}"));
        self.jobs.borrow_mut().insert(number, daemon);
    }

    /// Each incarnation listens on another port.
    pub fn jobs_command(&self, number: u8) -> Command {
        self.jobs_command_in(number, &self.jobs_home(number))
    }

    pub fn jobs_command_in(&self, number: u8, home: &Path) -> Command {
        self.jobs_command_at(number, home, &self.listen_agents, &format!("127.0.0.1:{}", free_port()))
    }

    /// The same with other addresses: of the server, and its own.
    pub fn jobs_command_at(&self, number: u8, home: &Path, server: &str, listen: &str) -> Command {
        let tokens = self.scene.state().join("tokens.toml");
        let mut command = self.scene.command(&["jobs", "--number", &number.to_string(), "--server", server]);
        command.args(["--listen", listen, "--work-dir"]).arg(home).arg("--token-file").arg(tokens);
        command.arg("--journal").arg(self.scene.journals());
        command
    }

    pub fn jobs_home(&self, number: u8) -> PathBuf {
        self.scene.path().join(format!("jobs-{number}"))
    }

    pub fn kill_jobs(&self, number: u8) {
        self.jobs.borrow_mut().remove(&number).expect("job managers run").kill();
    }

    pub fn kill_server(&self) {
        self.server.borrow_mut().take().expect("the server runs").kill();
    }

    pub fn kill_agent(&self, agent: usize) {
        self.agents.borrow_mut()[agent].take().expect("the agent runs").kill();
    }

    pub fn agents_address(&self) -> &str {
        &self.listen_agents
    }
}
