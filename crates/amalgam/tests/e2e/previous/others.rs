//! The upgrade of daemons beside a server and its agents: job hosts, global masters and standbys.

use super::{as_itself, before, done, previous_program, start, submitted};
use crate::standby::Servers;
use crate::support::{Daemon, Scene, free_port, until_true};
use amalgam_daemon::api::{JobState, NodeState, NodeSummary};
use amalgam_daemon::auth::Tokens;
use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each task makes a directory, which is possible once. With eight at a time, an array takes longer than an upgrade.
const TASK: &str = "mkdir done/$AMALGAM_INDEX || echo again >> again; sleep 0.1";

/// An array that the previous program has submitted, while daemons are replaced.
struct Upgrade {
    previous: PathBuf,
    tasks: usize,
    job: OnceCell<String>,
}

impl Upgrade {
    fn of(tasks: usize) -> Option<Upgrade> {
        Some(Upgrade { previous: previous_program()?, tasks, job: OnceCell::new() })
    }

    fn before(&self, scene: &Scene, command: &Command) -> Command {
        before(&self.previous, scene, command)
    }

    fn submit(&self, scene: &Scene) {
        fs::create_dir(scene.work().join("done")).unwrap();
        let range = format!("0-{}", self.tasks - 1);
        let job = submitted(&self.previous, scene, &["--array", &range, "--", "sh", "-c", TASK]);
        self.job.set(job).expect("one array");
    }

    /// Waits until some more tasks have run.
    fn goes_on(&self, scene: &Scene) {
        let before = done(scene);
        assert!(before < self.tasks, "the upgrade ended within the array");
        until_true("progress of the array", || done(scene) > (before + 50).min(self.tasks - 1));
    }

    fn ends_with_each_task_once(&self, scene: &Scene) {
        println!("{} of {} tasks had run when the upgrade was complete", done(scene), self.tasks);
        assert!(done(scene) < self.tasks, "the upgrade ended within the array");
        let job = self.job.get().expect("an array");
        until_true("the end of the array", || scene.job(job).summary.state.has_ended());
        assert_eq!((scene.job(job).summary.state, done(scene)), (JobState::Succeeded, self.tasks));
        assert!(!scene.work().join("again").exists(), "a task ran twice");
    }
}

fn agent(scene: &Scene, name: &str, servers: &str, tokens: &Path) -> Command {
    let home = scene.path().join(name);
    let mut agent = scene.command(&["agent", "--server", servers, "--name", name, "--cpus", "4"]);
    agent.args(["--memory", "1GiB", "--work-dir"]).arg(&home).arg("--token-file").arg(tokens);
    scene.has_executor(&home);
    agent
}

fn replace(daemon: &mut Option<Daemon>, command: Command) {
    assert!(daemon.take().expect("it runs").stop().success());
    *daemon = Some(start(command));
}

fn programs(scene: &Scene) -> Vec<Option<String>> {
    scene.json::<Vec<NodeSummary>>(&["node", "list"]).into_iter().map(|node| node.program).collect()
}

#[test]
fn a_job_host_is_upgraded_with_its_cluster_while_its_job_runs() {
    let Some(upgrade) = Upgrade::of(800) else { return };
    let scene = Scene::new();
    let config = scene.write("server.toml", "preset = 'apollo'\njob_hosts = 1\nheartbeat = '200ms'\n");
    let [clients, agents, jobs] = [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
    let tokens = scene.state().join(Tokens::FILE);
    let server = || {
        let mut server = scene.command(&["server", "--listen", &clients, "--listen-agents", &agents, "--config"]);
        server.arg(&config);
        server
    };
    let host = || {
        let mut host = scene.command(&["jobs", "--number", "1", "--server", &agents, "--listen", &jobs, "--work-dir"]);
        host.arg(scene.path().join("jobs")).arg("--token-file").arg(&tokens);
        host
    };
    let node = |name| agent(&scene, name, &agents, &tokens);
    let old = |command: Command| start(upgrade.before(&scene, &command));
    let mut running = [server(), host(), node("node-1"), node("node-2")].map(|command| Some(old(command)));
    upgrade.submit(&scene);
    upgrade.goes_on(&scene);
    let commands = [server(), host(), as_itself(node("node-1")), as_itself(node("node-2"))];
    for (daemon, command) in running.iter_mut().zip(commands) {
        replace(daemon, command);
        upgrade.goes_on(&scene);
    }
    upgrade.ends_with_each_task_once(&scene);
    assert!(programs(&scene).iter().all(Option::is_some), "an agent was left out");
}

#[test]
fn a_standby_is_upgraded_before_its_master_then_the_global_master_and_the_agents() {
    let Some(upgrade) = Upgrade::of(1_200) else { return };
    let Some(servers) = Servers::prepare(2) else { return };
    let scene = &servers.scene;
    let homes = ["server-0", "server-1"].map(|name| scene.path().join(name));
    let server = |number: usize| servers.command(number, &homes[number]);
    let old = |command: Command| upgrade.before(scene, &command);
    servers.spawn(0, old(server(0)));
    servers.await_active(0);
    let tokens = scene.state().join(Tokens::FILE);
    for home in [&homes[1], &scene.state()] {
        fs::create_dir_all(home).unwrap();
        fs::copy(homes[0].join(Tokens::FILE), home.join(Tokens::FILE)).unwrap();
    }
    servers.spawn(1, old(server(1)));
    let listen = format!("127.0.0.1:{}", free_port());
    let global = || {
        let mut global = scene.command(&["global", "--listen", &listen, "--config"]);
        global.arg(&servers.config).arg("--state-dir").arg(scene.state());
        global
    };
    let node = |name| agent(scene, name, &servers.listen_agents.join(","), &tokens);
    let mut others = [global(), node("node-1"), node("node-2")].map(|command| Some(start(old(command))));
    upgrade.submit(scene);
    upgrade.goes_on(scene);

    drop(servers.take(1));
    servers.spawn(1, server(1));
    let asked = ["node", "list", "--state-dir", homes[1].to_str().unwrap()];
    until_true("the new standby", || scene.run(&asked).err.contains("this is a standby of cluster 0"));
    upgrade.goes_on(scene);
    assert!(servers.take(0).stop().success());
    servers.await_active(1);
    servers.spawn(0, server(0));
    upgrade.goes_on(scene);
    for (daemon, command) in others.iter_mut().zip([global(), as_itself(node("node-1")), as_itself(node("node-2"))]) {
        replace(daemon, command);
        upgrade.goes_on(scene);
    }
    // Back to the first one, both with the new program.
    servers.take(1).kill();
    servers.await_active(0);
    upgrade.goes_on(scene);
    upgrade.ends_with_each_task_once(scene);
    let nodes: Vec<NodeSummary> = scene.json(&["node", "list", "--state-dir", homes[0].to_str().unwrap()]);
    assert!(nodes.iter().all(|node| node.state == NodeState::Up && node.program.is_some()), "{nodes:?}");
}
