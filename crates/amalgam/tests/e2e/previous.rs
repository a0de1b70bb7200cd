//! A cluster of programs of the previous version, upgraded one daemon after the other while it works.
//!
//! `.ci/previous` builds the program; without it the tests are skipped.

mod others;

use crate::support::{Daemon, Scene, free_port, result, until_true};
use amalgam_daemon::api::{JobState, NodeSummary};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each task makes a directory, which is possible once. It takes as long as it needs for the upgrade to happen within the array.
const TASK: &str = "mkdir done/$AMALGAM_INDEX || echo again >> again; sleep 0.02";

const TASKS: usize = 2_000;

/// Runs while everything around it is replaced.
const LONG: &str = "echo $$ runs >> long; while [ ! -e go ]; do sleep 0.05; done; echo $$ ended >> long";

fn previous_program() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("previous").join("amalgam");
    if !built.exists() {
        println!("skipped: there is no program of the previous version, which .ci/previous builds");
    }
    built.exists().then_some(built)
}

/// The command of this scene, by the program of the previous version.
fn before(previous: &Path, scene: &Scene, command: &Command) -> Command {
    let mut before = Command::new(previous);
    before.args(command.get_args()).env_clear().current_dir(scene.work());
    for (name, value) in command.get_envs() {
        before.env(name, value.expect("nothing is taken from the environment"));
    }
    before
}

fn start(command: Command) -> Daemon {
    Daemon::start(command).unwrap_or_else(|printed| panic!("no daemon: {printed}"))
}

/// What an agent of this version is told in addition: the user of the tests' jobs has no account on this machine, and the tests
/// may be run by root.
fn as_itself(mut agent: Command) -> Command {
    agent.args(["--run-as", "agent"]);
    agent
}

/// The number of a job that the previous program has submitted.
fn submitted(previous: &Path, scene: &Scene, arguments: &[&str]) -> String {
    let submit = scene.command(&[&["submit", "-q"], arguments].concat());
    let submitted = result(before(previous, scene, &submit));
    assert_eq!(submitted.code, 0, "{submitted:?}");
    submitted.out.trim().to_owned()
}

/// Tasks of the array that have run.
fn done(scene: &Scene) -> usize {
    fs::read_dir(scene.work().join("done")).unwrap().count()
}

struct Hosts {
    scene: Scene,
    clients: String,
    agents: String,
    previous: PathBuf,
}

impl Hosts {
    fn new(previous: PathBuf) -> Hosts {
        let [clients, agents] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
        Hosts { scene: Scene::new(), clients, agents, previous }
    }

    fn before(&self, command: &Command) -> Command {
        before(&self.previous, &self.scene, command)
    }

    fn server(&self) -> Command {
        let mut server = self.scene.command(&["server", "--listen", &self.clients, "--listen-agents", &self.agents]);
        server.arg("--journal").arg(self.scene.journals());
        server
    }

    fn agent(&self, name: &str, way: [&str; 2]) -> Command {
        let home = self.scene.path().join(name);
        let mut agent = self.scene.command(&["agent", way[0], way[1], "--name", name, "--cpus", "4"]);
        agent.args(["--memory", "1GiB", "--work-dir"]).arg(&home);
        self.scene.has_executor(&home);
        agent
    }

    /// The agent, with a token of the server's state directory.
    fn agent_with_token(&self, name: &str) -> Command {
        let mut agent = self.agent(name, ["--server", &self.agents]);
        agent.arg("--token-file").arg(self.scene.state().join("tokens.toml"));
        agent
    }

    fn submitted(&self, arguments: &[&str]) -> String {
        submitted(&self.previous, &self.scene, arguments)
    }

    fn done(&self) -> usize {
        done(&self.scene)
    }

    fn until_done(&self, tasks: usize) {
        until_true("progress of the array", || self.done() > tasks);
    }

    fn programs(&self) -> Vec<Option<String>> {
        self.scene.json::<Vec<NodeSummary>>(&["node", "list"]).into_iter().map(|node| node.program).collect()
    }
}

#[test]
fn an_array_runs_each_task_once_while_all_daemons_are_upgraded_and_the_authority_is_replaced() {
    let Some(previous) = previous_program() else { return };
    let hosts = Hosts::new(previous);
    let scene = &hosts.scene;
    fs::create_dir(scene.work().join("done")).unwrap();
    let server = start(hosts.before(&hosts.server()));
    let [first, second] = ["node-1", "node-2"].map(|name| start(hosts.before(&hosts.agent_with_token(name))));

    let long = hosts.submitted(&["--array", "0-1", "--resources", "cpu=2,memory=400MiB", "--", "sh", "-c", LONG]);
    until_true("the long tasks", || scene.read("long").lines().count() == 2);
    let range = format!("0-{}", TASKS - 1);
    let array = hosts.submitted(&["--array", &range, "--", "sh", "-c", TASK]);
    hosts.until_done(50);

    assert!(server.stop().success());
    let server = start(hosts.server());
    // The way back is refused, and changes nothing.
    assert!(server.stop().success());
    let refused = Daemon::start(hosts.before(&hosts.server())).err().expect("a downgrade is refused");
    assert!(refused.contains("amalgam store 25") && refused.contains("use a program that reads it"), "{refused}");
    let server = start(hosts.server());
    // Users have the previous program for a while.
    let beside = hosts.submitted(&["--", "true"]);
    hosts.until_done(300);
    assert_eq!(hosts.programs(), [None, None], "both agents are of the previous version");
    assert!(first.stop().success());
    let first = start(as_itself(hosts.agent_with_token("node-1")));
    hosts.until_done(600);
    assert!(second.stop().success());
    let second = start(as_itself(hosts.agent_with_token("node-2")));
    until_true("two upgraded agents", || hosts.programs().iter().all(Option::is_some));

    // What the new version has is there at once: a node joins by a string, and the authority is replaced.
    let string = scene.ok(&["token", "join", "--address", &hosts.agents]);
    let third = start(as_itself(hosts.agent("node-3", ["--join", string.trim()])));
    scene.ok(&["ca", "rotate"]);
    until_true("the end of the rotation", || scene.run(&["ca", "rotate", "--finish"]).code == 0);
    assert!(hosts.done() < TASKS, "the upgrade ended within the array");

    until_true("the end of the array", || scene.job(&array).summary.state.has_ended());
    assert_eq!((scene.job(&array).summary.state, hosts.done()), (JobState::Succeeded, TASKS));
    assert!(!scene.work().join("again").exists(), "a task ran twice");
    scene.write("go", "");
    until_true("the end of the long tasks", || scene.job(&long).summary.state.has_ended());
    assert_eq!(scene.job(&long).summary.state, JobState::Succeeded);
    let said = scene.read("long");
    assert_eq!(said.lines().count(), 4, "a long task was started again: {said}");
    for process in said.lines().take(2).map(|line| line.trim_end_matches(" runs")) {
        assert!(said.contains(&format!("{process} ended")), "{said}");
    }
    assert_eq!(scene.job(&beside).summary.state, JobState::Succeeded);
    for daemon in [third, second, first, server] {
        daemon.stop();
    }
}
