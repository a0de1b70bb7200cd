//! Global masters that joined with strings, each process on a host of its own: nothing is copied between them (ADR 85).

use crate::support::{
    CommandOutput, Daemon, Namespace, Network, Scene, address, free_port, result, saying_into, until_true,
};
use amalgam_core::vocabulary::{ClusterId, Federation, GlobalId, Kinds};
use amalgam_daemon::api::{JobDetail, JobState, NodeState, NodeSummary};
use amalgam_daemon::authority::{Authority, Expected, key_of};
use amalgam_daemon::identity::Identity;
use amalgam_daemon::transport::{GlobalIntroduction, Introduction, Patience, Secrets, join_patiently};
use std::cell::RefCell;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

/// Two clusters of a node each under two global masters. Hosts 0 and 1 have the masters, 2 and 3 the global masters, 4 and 5 the
/// nodes, and 6 is that of a client.
struct Joined {
    network: Network,
    masters: [RefCell<Option<Daemon>>; 2],
    globals: [RefCell<Option<Daemon>>; 2],
    agents: RefCell<Vec<Daemon>>,
    scene: Scene,
    /// Where the masters listen for agents, and the global masters for clients.
    at: [String; 4],
}

impl Joined {
    fn start() -> Option<Joined> {
        let network = match Network::new(7) {
            Ok(network) => network,
            Err(why) => {
                let _ = writeln!(std::io::stderr(), "skipped: a federation of several machines: {why}");
                return None;
            }
        };
        let at = [0, 1, 2, 3].map(|host| format!("{}:{}", address(host), free_port()));
        let (masters, globals) = Default::default();
        let joined = Joined { network, masters, globals, agents: RefCell::default(), scene: Scene::new(), at };
        for cluster in [0, 1] {
            joined.start_master(cluster);
        }
        Some(joined)
    }

    fn host(&self, number: usize) -> &Namespace {
        &self.network.hosts[number]
    }

    fn config(&self, number: usize) -> PathBuf {
        let [a, b, c, d] = &self.at;
        let text = format!(
            "heartbeat = '200ms'\n[federation]\nmasters = ['{a}', '{b}']\nglobals = ['{c}', '{d}']\nspan = 64\nnumber = {number}\n"
        );
        self.scene.write(&format!("{number}.toml"), &text)
    }

    fn home(&self, name: &str) -> PathBuf {
        self.scene.path().join(name)
    }

    fn started(&self, host: usize, mut command: Command) -> Daemon {
        self.host(host).has(&mut command);
        Daemon::start(command).unwrap_or_else(|output| panic!("no daemon on host {host}: {output}"))
    }

    fn start_master(&self, cluster: usize) {
        let mut command = self.scene.command(&["server", "--listen", &format!("{}:0", address(cluster)), "--config"]);
        command.arg(self.config(cluster)).arg("--state-dir").arg(self.home(&format!("cluster-{cluster}")));
        let command = saying_into(command, &self.home(&format!("master-{cluster}.log")));
        *self.masters[cluster].borrow_mut() = Some(self.started(cluster, command));
    }

    /// A command that works on the state directory of a master.
    fn at_master(&self, cluster: usize, arguments: &[&str]) -> String {
        let home = self.home(&format!("cluster-{cluster}"));
        let mut command = self.scene.command(arguments);
        command.arg("--state-dir").arg(home);
        self.host(cluster).has(&mut command);
        let done = result(command);
        assert_eq!(done.code, 0, "{arguments:?}: {done:?}");
        done.out.trim().to_owned()
    }

    fn string(&self, cluster: usize, role: &str) -> String {
        self.at_master(cluster, &["token", "join", "--role", role])
    }

    fn global_command(&self, global: usize, strings: &[String]) -> Command {
        let mut command = self.scene.command(&["global", "--config"]);
        command.arg(self.config(global)).arg("--state-dir").arg(self.home(&format!("global-{global}")));
        command.env_remove("AMALGAM_STATE").env("HOME", self.scene.path().join("home"));
        command.args(strings.iter().flat_map(|string| ["--join", string]));
        saying_into(command, &self.home(&format!("global-{global}.log")))
    }

    fn start_global(&self, global: usize, strings: &[String]) {
        let daemon = self.started(2 + global, self.global_command(global, strings));
        assert!(daemon.ready.starts_with(&format!("ready: https://{}, ", self.at[2 + global])), "{}", daemon.ready);
        *self.globals[global].borrow_mut() = Some(daemon);
    }

    fn refused_global(&self, global: usize, strings: &[String]) -> String {
        let mut command = self.global_command(global, strings);
        self.host(2 + global).has(&mut command);
        let log = self.home(&format!("global-{global}.log"));
        assert!(Daemon::start(command).is_err(), "it is refused");
        fs::read_to_string(log).unwrap()
    }

    /// Both global masters join both clusters.
    fn start_globals(&self) {
        for global in [0, 1] {
            self.start_global(global, &[0, 1].map(|cluster| self.string(cluster, "global")));
        }
    }

    fn start_agents(&self) {
        for cluster in [0, 1] {
            let (home, name) = (self.home(&format!("node-{cluster}")), format!("c{cluster}"));
            self.scene.has_executor(&home);
            let string = self.string(cluster, "agent");
            let mut command = self.scene.agent_command(&["--join", &string, "--name", &name, "--cpus", "2"]);
            command.args(["--memory", "1GiB", "--work-dir"]).arg(home);
            command.env_remove("AMALGAM_STATE").env("HOME", self.scene.path().join("home"));
            self.agents.borrow_mut().push(self.started(4 + cluster, command));
        }
    }

    /// A client on a machine that has nothing but the authority of cluster 0 and a token of its users.
    fn client(&self, global: usize, token: &str, arguments: &[&str]) -> CommandOutput {
        let file = self.scene.write("client.token", token);
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let mut command = self.scene.command(&arguments[..1]);
        command.arg("--server").arg(format!("https://{}", self.at[2 + global])).arg("--token-file").arg(file);
        command.arg("--ca-file").arg(self.home("cluster-0").join("ca.pem")).args(&arguments[1..]);
        command.env_remove("AMALGAM_STATE").env("HOME", self.scene.path().join("home"));
        self.host(6).has(&mut command);
        result(command)
    }

    fn ok(&self, global: usize, token: &str, arguments: &[&str]) -> String {
        let done = self.client(global, token, arguments);
        assert_eq!(done.code, 0, "{arguments:?}: {done:?}");
        done.out
    }

    /// A client that knows only the server of cluster 1, its authority and a token of its users.
    fn at_second_cluster(&self, token: &str, arguments: &[&str]) -> CommandOutput {
        let ready = self.masters[1].borrow().as_ref().map(|master| master.ready.clone()).unwrap_or_default();
        let server = ready.split([' ', ',']).find(|word| word.starts_with("https://")).unwrap_or_default();
        let mut command = self.scene.command(arguments);
        command.arg("--ca-file").arg(self.home("cluster-1").join("ca.pem")).args(["--server", server]);
        command.env("AMALGAM_TOKEN", token);
        command.env_remove("AMALGAM_STATE").env("HOME", self.scene.path().join("home"));
        self.host(6).has(&mut command);
        result(command)
    }

    fn nodes_up(&self, global: usize, token: &str) -> usize {
        let listed = self.client(global, token, &["node", "list", "--json"]);
        let nodes: Vec<NodeSummary> = serde_json::from_str(&listed.out).unwrap_or_default();
        nodes.iter().filter(|node| node.state == NodeState::Up).count()
    }

    fn runs(&self, global: usize, token: &str) {
        let array = ["submit", "-q", "--wait-for-nodes", "--array", "0-3", "--", "sleep", "0.3"];
        let id = self.ok(global, token, &array).trim().to_owned();
        self.ok(global, token, &["wait", &id]);
        let jobs: Vec<JobDetail> = serde_json::from_str(&self.ok(global, token, &["info", &id, "--json"])).unwrap();
        assert_eq!(jobs[0].summary.state, JobState::Succeeded);
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.home(&format!("{name}.log"))).unwrap_or_default()
    }

    /// What the master of a cluster answers to a daemon on a host with these certificates.
    fn answer(&self, host: usize, cluster: usize, identity: &Identity, introduction: &Introduction) -> String {
        let identity = Arc::new(Identity::load_file(identity.path().to_owned()).unwrap().unwrap());
        let secrets = Secrets::Certificates(identity, Expected::Server);
        let (host, at, introduction) = (self.host(host).clone(), self.at[cluster].clone(), introduction.clone());
        let ask = move || {
            host.enter().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let patience = Patience::Briefly(Duration::ZERO);
            let joined = runtime.block_on(join_patiently(&at, &secrets, || introduction.clone(), patience));
            joined.map(drop).expect_err("it is refused").to_string()
        };
        thread::spawn(ask).join().unwrap()
    }

    fn identity_of_global(&self, global: usize, cluster: u8) -> Identity {
        let file = Identity::file_of_cluster(ClusterId(cluster));
        Identity::load_file(self.home(&format!("global-{global}")).join(file)).unwrap().unwrap()
    }
}

fn global(global: u8, cluster: u8) -> Introduction {
    Introduction::Global(Box::new(GlobalIntroduction {
        federation: Federation::new(2, 2, 64).unwrap(),
        global: GlobalId(global),
        cluster: ClusterId(cluster),
        preset: "amalgam".to_owned(),
        kinds: Kinds::new(),
        queues: Vec::new(),
    }))
}

#[test]
fn global_masters_join_each_cluster_with_a_string_and_know_its_users() {
    let Some(joined) = Joined::start() else { return };
    let ada = joined.at_master(0, &["token", "add", "ada", "--name", "laptop"]);
    joined.start_globals();
    joined.start_agents();
    until_true("all nodes at both", || [0, 1].iter().all(|global| joined.nodes_up(*global, &ada) == 2));
    for global in [0, 1] {
        joined.runs(global, &ada);
    }
    // Redirected from one to the other, which the same authority verifies.
    let id = joined.ok(1, &ada, &["submit", "-q", "--", "echo", "from the second"]);
    joined.ok(1, &ada, &["wait", id.trim()]);
    assert_eq!(joined.ok(0, &ada, &["logs", id.trim()]).trim(), "from the second");
    assert_eq!(joined.ok(0, &ada, &["list", "--all", "-q"]).lines().count(), 3);
    // A user of the second cluster is none of the federation.
    let bob = joined.at_master(1, &["token", "add", "bob"]);
    let refused = joined.client(0, &bob, &["list"]);
    assert!(refused.code != 0 && refused.err.contains("does not know the token"), "{refused:?}");
    // Its server names the global masters, which its authority does not verify.
    let led = joined.at_second_cluster(&bob, &["list"]);
    assert!(led.code != 0 && led.out.is_empty(), "no jobs are known: {led:?}");
    assert!(led.err.contains("of the authority of another cluster: run `amalgam login https://"), "{led:?}");
    // Users are added and removed while it runs, and known while the master of their cluster is down.
    let eve = joined.at_master(0, &["token", "add", "eve"]);
    until_true("a new user", || joined.client(0, &eve, &["list"]).code == 0);
    joined.at_master(0, &["token", "remove", "eve"]);
    until_true("the end of the token", || joined.client(0, &eve, &["list"]).code != 0);
    drop(joined.masters[0].borrow_mut().take());
    drop(joined.globals[0].borrow_mut().take());
    // Without the strings, as after a restart of the machine.
    joined.start_global(0, &[]);
    joined.ok(0, &ada, &["list"]);
    // On its own machine nothing has to be named, and its own administrator may do everything.
    let mut own = joined.scene.command(&["list", "--all", "--state-dir"]);
    own.arg(joined.home("global-0"));
    joined.host(2).has(&mut own);
    let own = result(own);
    assert!(own.out.contains("sleep"), "{own:?}");
    joined.start_master(0);
    until_true("all nodes again", || joined.nodes_up(0, &ada) == 2);
    joined.runs(0, &ada);
}

#[test]
fn certificates_of_global_masters_are_for_nothing_else_and_others_are_not_theirs() {
    let Some(joined) = Joined::start() else { return };
    let ada = joined.at_master(0, &["token", "add", "ada", "--name", "laptop"]);
    let strings = [0, 1].map(|cluster| joined.string(cluster, "global"));
    joined.start_global(0, &strings);
    joined.start_agents();
    until_true("all nodes", || joined.nodes_up(0, &ada) == 2);
    let listed = joined.at_master(0, &["token", "list"]);
    assert!(listed.contains("global master (certificate)") && listed.contains("agent (certificate)"), "{listed}");
    let agent = Identity::load(&joined.home("node-0")).unwrap().unwrap();
    let [own, others] = [0, 1].map(|cluster| joined.identity_of_global(0, cluster));
    // Each pairing that is wrong, and what both sides say.
    let node = Introduction::Node { name: "c9".to_owned() };
    for (identity, introduction, why) in [
        (&agent, global(1, 0), "the certificate belongs to the agent c0, and is for nothing else"),
        (&own, node.clone(), "the certificate belongs to the global master 0, and is for nothing else"),
        (&own, global(1, 0), "the certificate belongs to global master 0, and this is global master 1"),
    ] {
        let said = joined.answer(2, 0, identity, &introduction);
        assert!(said.contains(why), "{said}");
        until_true(why, || joined.log("master-0").contains(why));
    }
    // That for the other cluster is not trusted there, nor is the cluster by it.
    let said = joined.answer(2, 0, &others, &global(0, 0));
    assert!(said.contains("is not trusted: its certificate is not of this cluster's authority"), "{said}");
    let why = "the peer does not accept the certificate of this process";
    until_true(why, || joined.log("master-0").contains(why));
    // The authority would sign one for another cluster only by mistake, and it would be refused.
    let authority = Authority::open(&joined.home("cluster-0")).unwrap();
    let key = key_of(&own.certified_key().unwrap().cert[0]).unwrap();
    let subject = own.subject().unwrap();
    let issue = |subject, until: Option<SystemTime>| {
        let until = until.unwrap_or(SystemTime::now() + Duration::from_secs(60));
        own.replace(authority.certify_until(&subject, &key, until).unwrap()).unwrap();
    };
    let mut elsewhere = subject.clone();
    elsewhere.number = Some(1);
    issue(elsewhere, None);
    let said = joined.answer(2, 0, &own, &global(0, 0));
    assert!(said.contains("the certificate of global master 0 is for another cluster than cluster 0"), "{said}");
    issue(subject.clone(), Some(SystemTime::now() - Duration::from_secs(5)));
    let said = joined.answer(2, 0, &own, &global(0, 0));
    assert!(said.contains("your certificate has expired"), "{said}");
    until_true("what the master says", || joined.log("master-0").contains("your certificate has expired"));
    issue(subject, None);
    // The right one is accepted: what is compared then is the configuration.
    assert!(
        joined.answer(2, 0, &own, &global(0, 0)).contains("the queues of this cluster and of the global master differ")
    );

    // Strings: used up, of another role, for another number, of a server without that global master.
    let said = joined.refused_global(1, &strings[..1]);
    assert!(said.contains("the join string is unknown, used up, expired"), "{said}");
    let said = joined.refused_global(1, &[joined.string(0, "agent")]);
    assert!(said.contains("or for another --role"), "{said}");
    let said = joined.refused_global(0, &[joined.string(0, "global")]);
    assert!(said.contains("global master 0 has a token or certificates already; use another --number"), "{said}");
    // Revoked: the connection ends at once, and it is told why.
    joined.at_master(0, &["token", "revoke", "--global", "0"]);
    until_true("the end of the connection", || {
        joined.log("global-0").contains("lost the connection to the master of cluster 0")
    });
    until_true("the reason", || joined.log("global-0").contains("has been revoked"));
    until_true("what the master says", || joined.log("master-0").contains("has been revoked"));
    drop(joined.globals[0].borrow_mut().take());
    joined.start_global(0, &[joined.string(0, "global")]);
    until_true("all nodes again", || joined.nodes_up(0, &ada) == 2);
    joined.runs(0, &ada);
}

#[test]
fn a_rotation_of_an_authority_reaches_the_global_masters_and_their_clients() {
    let Some(joined) = Joined::start() else { return };
    let ada = joined.at_master(0, &["token", "add", "ada", "--name", "laptop"]);
    joined.start_globals();
    joined.start_agents();
    until_true("all nodes", || joined.nodes_up(0, &ada) == 2);
    // While a global master is away, the rotation does not end.
    drop(joined.globals[1].borrow_mut().take());
    let before = joined.home("before.pem");
    fs::copy(joined.home("cluster-0").join("ca.pem"), &before).unwrap();
    joined.at_master(0, &["ca", "rotate"]);
    let finish = || {
        let mut command = joined.scene.command(&["ca", "rotate", "--finish", "--state-dir"]);
        result({
            command.arg(joined.home("cluster-0"));
            command
        })
    };
    until_true("that only one is missing", || {
        let refused = finish();
        refused.err.contains("global master 1 have not received") && !refused.err.contains("global master 0")
    });
    // Clients that know only the first authority still verify the global masters.
    let file = joined.scene.write("client.token", &ada);
    let mut command = joined.scene.command(&["node", "list", "--server"]);
    command.arg(format!("https://{}", joined.at[2])).arg("--token-file").arg(file).arg("--ca-file").arg(&before);
    joined.host(6).has(&mut command);
    let listed = result(command);
    assert_eq!(listed.code, 0, "{listed:?}");
    joined.start_global(1, &[]);
    until_true("the end of the rotation", || finish().code == 0);
    // Which reaches the files of the global master, too, and clients use it.
    until_true("the next authority alone", || {
        fs::read(joined.home("global-0").join("ca.pem")).unwrap()
            == fs::read(joined.home("cluster-0").join("ca.pem")).unwrap()
    });
    until_true("both global masters by the next authority", || {
        [0, 1].iter().all(|global| joined.client(*global, &ada, &["list"]).code == 0)
    });
    for global in [0, 1] {
        drop(joined.globals[global].borrow_mut().take());
        joined.start_global(global, &[]);
    }
    until_true("all nodes again", || joined.nodes_up(1, &ada) == 2);
    joined.runs(1, &ada);
}

impl Joined {
    /// A global master without a file.
    fn bare_global(&self, global: usize, arguments: &[&str], strings: &[String]) -> Command {
        let mut command = self.scene.command(&["global", "--state-dir"]);
        command.arg(self.home(&format!("global-{global}"))).args(arguments);
        command.env_remove("AMALGAM_STATE").env("HOME", self.scene.path().join("home"));
        command.args(strings.iter().flat_map(|string| ["--join", string]));
        saying_into(command, &self.home(&format!("global-{global}.log")))
    }

    /// The configuration with one more queue.
    fn with_queue(&self, number: usize) -> PathBuf {
        let text = fs::read_to_string(self.config(number)).unwrap();
        self.scene.write(&format!("{number}-queue.toml"), &format!("{text}[[queue]]\nname = 'research'\n"))
    }

    fn master_with_queue(&self, cluster: usize) -> Daemon {
        let mut command = self.scene.command(&["server", "--listen", &format!("{}:0", address(cluster)), "--config"]);
        command.arg(self.with_queue(cluster)).arg("--state-dir").arg(self.home(&format!("cluster-{cluster}")));
        self.started(cluster, command)
    }

    fn start_bare_global(&self, global: usize, arguments: &[&str], strings: &[String]) {
        let daemon = self.started(2 + global, self.bare_global(global, arguments, strings));
        let ready =
            format!("ready: https://{}, global master {global} of 2 clusters, preset amalgam", self.at[2 + global]);
        assert!(daemon.ready.starts_with(&ready), "{}", daemon.ready);
        *self.globals[global].borrow_mut() = Some(daemon);
    }

    fn refused_bare_global(&self, global: usize, arguments: &[&str], strings: &[String]) -> String {
        let mut command = self.bare_global(global, arguments, strings);
        self.host(2 + global).has(&mut command);
        let log = self.home(&format!("global-{global}.log"));
        let _ = fs::remove_file(&log);
        assert!(Daemon::start(command).is_err(), "it is refused");
        fs::read_to_string(log).unwrap()
    }
}

#[test]
fn global_masters_need_nothing_but_strings_and_a_number() {
    let Some(joined) = Joined::start() else { return };
    let ada = joined.at_master(0, &["token", "add", "ada", "--name", "laptop"]);
    let said = joined.refused_bare_global(0, &[], &[]);
    assert!(said.contains("has joined no cluster, and no file has [federation]"), "{said}");
    let strings = [0, 1].map(|cluster| joined.string(cluster, "global"));
    let said = joined.refused_bare_global(0, &[], &strings);
    assert!(said.contains("the number of this global master is missing (--number)"), "{said}");
    joined.start_bare_global(0, &["--number", "0"], &strings);
    let strings = [0, 1].map(|cluster| joined.string(cluster, "global"));
    joined.start_bare_global(1, &["--number", "1"], &strings);
    joined.start_agents();
    until_true("all nodes at both", || [0, 1].iter().all(|global| joined.nodes_up(*global, &ada) == 2));
    for global in [0, 1] {
        joined.runs(global, &ada);
    }
    // Without strings, number and file, also while a master is down.
    drop(joined.globals[1].borrow_mut().take());
    drop(joined.masters[1].borrow_mut().take());
    joined.start_bare_global(1, &[], &[]);
    joined.start_master(1);
    until_true("all nodes again", || joined.nodes_up(1, &ada) == 2);
    joined.runs(1, &ada);
    let said = joined.refused_bare_global(0, &["--number", "1"], &[]);
    assert!(said.contains("has the certificate of global master 0"), "{said}");
    // Settings of its own may be in a file, but not a part of what the servers describe.
    drop(joined.globals[0].borrow_mut().take());
    let queues = joined.scene.write("queues.toml", "[[queue]]\nname = 'a'\n");
    let said = joined.refused_bare_global(0, &["--config", queues.to_str().unwrap()], &[]);
    assert!(said.contains("the configuration has [[queue]] and no [federation]"), "{said}");
    let own = joined.scene.write("own.toml", "kept_jobs = 50\n");
    joined.start_bare_global(0, &["--config", own.to_str().unwrap()], &[]);
    until_true("all nodes at the first", || joined.nodes_up(0, &ada) == 2);
}

#[test]
fn clusters_that_describe_different_federations_are_refused_until_they_agree() {
    let Some(joined) = Joined::start() else { return };
    let ada = joined.at_master(0, &["token", "add", "ada", "--name", "laptop"]);
    drop(joined.masters[1].borrow_mut().take());
    let differing = joined.master_with_queue(1);
    let strings = [0, 1].map(|cluster| joined.string(cluster, "global"));
    let said = joined.refused_bare_global(0, &["--number", "0"], &strings);
    let why = "the servers of cluster 0 and cluster 1 describe different federations: [[queue]] differs";
    assert!(said.contains(why) && said.contains("use the same strings again"), "{said}");
    drop(differing);
    joined.start_master(1);
    joined.start_bare_global(0, &["--number", "0"], &strings);
    joined.start_agents();
    until_true("all nodes", || joined.nodes_up(0, &ada) == 2);
    joined.runs(0, &ada);
    // Later changes are refused until the global master had the file once.
    for cluster in [0, 1] {
        drop(joined.masters[cluster].borrow_mut().take());
        *joined.masters[cluster].borrow_mut() = Some(joined.master_with_queue(cluster));
    }
    until_true("the refusal", || {
        let log = joined.log("global-0");
        log.contains("the queues of this cluster and of the global master differ") && log.contains("with --config")
    });
    drop(joined.globals[0].borrow_mut().take());
    let file = joined.with_queue(0);
    joined.start_bare_global(0, &["--config", file.to_str().unwrap()], &[]);
    let knows = |cluster| joined.identity_of_global(0, cluster).federation().unwrap().contains("research");
    until_true("the next description", || knows(0) && knows(1));
    drop(joined.globals[0].borrow_mut().take());
    joined.start_bare_global(0, &[], &[]);
    until_true("all nodes again", || joined.nodes_up(0, &ada) == 2);
    joined.ok(0, &ada, &["submit", "-q", "--queue", "research", "--", "true"]);
}
