//! A standby that joined with a string has what the active server has, and nothing is copied by hand (ADR 85).

use crate::standby::Servers;
use crate::support::{CommandOutput, Daemon, Scene, free_port, result, saying_into, until_true};
use amalgam_daemon::api::{NodeState, NodeSummary};
use amalgam_daemon::authority::Expected;
use amalgam_daemon::identity::Identity;
use amalgam_daemon::transport::{Introduction, Patience, Secrets, join_patiently};
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Two servers of a cluster, and the daemons that joined it.
struct Pair(Servers);

impl Deref for Pair {
    type Target = Servers;

    fn deref(&self) -> &Servers {
        &self.0
    }
}

impl Pair {
    /// The first server, which is the active one.
    fn start() -> Option<Pair> {
        let pair = Pair(Servers::prepare(2)?);
        pair.start_server(0, &[]);
        pair.await_active(0);
        Some(pair)
    }

    fn home(&self, server: usize) -> PathBuf {
        self.scene.path().join(format!("server-{server}"))
    }

    fn said(&self, server: usize) -> String {
        fs::read_to_string(self.scene.path().join(format!("server-{server}.log"))).unwrap_or_default()
    }

    fn server_command(&self, server: usize, arguments: &[&str]) -> Command {
        let mut command = self.command(server, &self.home(server));
        command.args(arguments);
        saying_into(command, &self.scene.path().join(format!("server-{server}.log")))
    }

    fn start_server(&self, server: usize, arguments: &[&str]) {
        self.spawn(server, self.server_command(server, arguments));
    }

    /// A command on the state directory of a server.
    fn at(&self, server: usize, arguments: &[&str]) -> CommandOutput {
        let mut command = self.scene.command(arguments);
        command.arg("--state-dir").arg(self.home(server));
        result(command)
    }

    fn ok(&self, server: usize, arguments: &[&str]) -> String {
        let done = self.at(server, arguments);
        assert_eq!(done.code, 0, "{arguments:?}: {done:?}");
        done.out.trim().to_owned()
    }

    /// A join string with the addresses of both servers.
    fn string(&self, server: usize, role: &str) -> String {
        self.ok(server, &["token", "join", "--role", role, "--address", &self.listen_agents.join(",")])
    }

    fn agent(&self, name: &str, arguments: &[&str]) -> Command {
        let home = self.scene.path().join(name);
        self.scene.has_executor(&home);
        let mut command = self.scene.agent_command(&["--name", name, "--cpus", "1", "--memory", "1GiB", "--work-dir"]);
        command.arg(home).args(arguments);
        command.env_remove("AMALGAM_STATE").env("HOME", self.scene.path().join("home"));
        command
    }

    fn joins(&self, command: Command) {
        self.others.borrow_mut().push(Daemon::start(command).unwrap_or_else(|output| panic!("no daemon: {output}")));
    }

    fn nodes_up(&self, server: usize) -> usize {
        let listed = self.at(server, &["node", "list", "--json"]);
        let nodes: Vec<NodeSummary> = serde_json::from_str(&listed.out).unwrap_or_default();
        nodes.iter().filter(|node| node.state == NodeState::Up).count()
    }

    fn same_files(&self) -> bool {
        let content = |server: usize| {
            ["tokens.toml", "ca.pem", "ca-key.pem"].map(|file| fs::read(self.home(server).join(file)).ok())
        };
        content(0) == content(1)
    }
}

/// What the active server answers to a daemon with these secrets that says it is a standby.
fn answer(address: &str, secrets: &Secrets, name: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let introduction = || Introduction::Standby { name: name.to_owned() };
    let joined = runtime.block_on(join_patiently(address, secrets, introduction, Patience::Briefly(Duration::ZERO)));
    joined.map(drop).expect_err("it is refused").to_string()
}

fn certificates(home: &Path) -> Secrets {
    Secrets::Certificates(Arc::new(Identity::load(home).unwrap().unwrap()), Expected::Server)
}

#[test]
fn a_standby_joins_with_a_string_and_takes_over_with_all_that_daemons_and_clients_know() {
    let Some(pair) = Pair::start() else { return };
    let string = pair.string(0, "server");
    pair.start_server(1, &["--join", &string, "--name", "second"]);
    until_true("the standby", || pair.at(1, &["node", "list"]).err.contains("this is a standby of cluster 0"));
    // Which is as it should be.
    let examined = pair.at(1, &["doctor"]);
    assert!(
        examined.out.contains("this is a standby of cluster 0") && !examined.out.contains("problem"),
        "{examined:?}"
    );
    until_true("what both have", || pair.same_files());
    // Daemons and users that are added later are known to it, too.
    pair.joins(pair.agent("a", &["--join", &pair.string(0, "agent")]));
    let global = pair.string(0, "global");
    let mut command =
        pair.scene.command(&["global", "--listen", &format!("127.0.0.1:{}", free_port()), "--join", &global]);
    command.arg("--config").arg(&pair.config).arg("--state-dir").arg(pair.scene.state());
    pair.joins(command);
    pair.ok(0, &["token", "add", "grace"]);
    until_true("what both have", || pair.same_files());
    until_true("the node", || pair.nodes_up(0) == 1);
    // A rotation of the authority reaches it, and waits for it: not for the active server itself.
    pair.ok(0, &["ca", "rotate"]);
    until_true("the end of the rotation", || pair.at(0, &["ca", "rotate", "--finish"]).code == 0);
    until_true("what both have", || pair.same_files());
    pair.take(0).kill();
    pair.await_active(1);
    until_true("the node at the other server", || pair.nodes_up(1) == 1);
    let id = pair.scene.submit(&["--wait-for-nodes", "--", "true"]);
    assert_eq!(pair.scene.ok(&["wait", &id]), format!("job {id} succeeded\n"));
    // The first server has no string, and stands by as well; what happened meanwhile is known there.
    pair.ok(1, &["token", "add", "heidi"]);
    pair.start_server(0, &[]);
    until_true("what both have", || pair.same_files());
    // Without its string, with the certificate of the string before.
    pair.take(1).kill();
    pair.await_active(0);
    until_true("the node at the first server", || pair.nodes_up(0) == 1);
    pair.start_server(1, &[]);
    until_true("the standby", || pair.at(1, &["node", "list"]).err.contains("this is a standby of cluster 0"));
    pair.ok(0, &["token", "add", "ivan"]);
    until_true("what both have", || pair.same_files());
    // Revoked: it learns nothing more.
    pair.ok(0, &["token", "revoke", "--server-name", "second"]);
    until_true("the reason", || pair.said(1).contains("has been revoked"));
    pair.ok(0, &["token", "add", "judy"]);
    // Twice the interval at which the server looks for changes.
    thread::sleep(Duration::from_secs(2));
    let theirs = fs::read_to_string(pair.home(1).join("tokens.toml")).unwrap();
    assert!(theirs.contains("ivan") && !theirs.contains("judy"), "{theirs}");
}

#[test]
fn only_a_server_that_joined_as_one_receives_the_authority() {
    let Some(pair) = Pair::start() else { return };
    let at = &pair.listen_agents[0];
    pair.joins(pair.agent("a", &["--join", &pair.string(0, "agent")]));
    let said = answer(at, &certificates(&pair.scene.path().join("a")), "a");
    assert!(said.contains("the certificate belongs to the agent a, and is for nothing else"), "{said}");
    until_true("what the server says", || pair.said(0).contains("belongs to the agent a, and is for nothing else"));
    let tokens = pair.home(0).join("tokens.toml");
    let said = answer(at, &Secrets::file(tokens, "ada".to_owned(), None), "second");
    assert!(said.contains("a standby needs a certificate"), "{said}");
    // A string for agents is not one for servers, nor one that was used; and what is there already is not replaced.
    let string = pair.string(0, "agent");
    let refused = |server: usize, arguments: &[&str]| {
        assert!(Daemon::start(pair.server_command(server, arguments)).is_err(), "{arguments:?} is refused");
        pair.said(server)
    };
    let said = refused(1, &["--join", &string, "--name", "second"]);
    assert!(said.contains("or for another --role"), "{said}");
    let string = pair.string(0, "server");
    let said = refused(1, &["--join", &string, "--name", &amalgam_daemon::executor::host::Host::inspect().hostname]);
    assert!(said.contains("has a token or certificates already; use another --name"), "{said}");
    assert!(!pair.home(1).join("ca-key.pem").exists() && !pair.home(1).join("tokens.toml").exists());
    let said = refused(0, &["--join", &pair.string(0, "server"), "--name", "third"]);
    assert!(!said.contains("has tokens of its own"), "the first server has a certificate by now: {said}");
    // Another server of the pair cannot be the agent, nor the agent's node.
    let secrets = certificates(&pair.home(0));
    let said = answer(at, &secrets, "second");
    assert!(said.contains("the certificate belongs to the server"), "{said}");
    // A server without [store] has no standby.
    let alone = Scene::new();
    let server = ["server", "--listen", "127.0.0.1:0", "--listen-agents", &pair.listen_agents[1]];
    alone.start(alone.command(&server), &alone.state());
    let string = alone.ok(&["token", "join", "--role", "server", "--address", &pair.listen_agents[1]]);
    let said = refused(1, &["--join", string.trim(), "--name", "second"]);
    assert!(said.contains("this server has no standby: write [store]"), "{said}");
}
