//! Daemons that joined with a string, and their certificates: who is refused, and what a rotation of the authority does.

use crate::machines::Machines;
use crate::support::{Daemon, Scene, address, free_port, result, saying_into, until_true};
use amalgam_daemon::api::{JobState, NodeDetail, NodeState};
use amalgam_daemon::authority::{Authority, Expected, Subject, finish, key_of, start};
use amalgam_daemon::identity::Identity;
use amalgam_daemon::transport::{Introduction, Patience, Secrets, join_patiently};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

impl Machines {
    fn join_agents(&self, hosts: &[usize]) {
        let string = self.join_string(&["--uses", &hosts.len().to_string()]);
        for host in hosts {
            self.started(*host, self.joining_agent(*host, &format!("host-{host}"), &string));
        }
    }

    fn home(&self, host: usize) -> PathBuf {
        self.scene.path().join(format!("host-{host}"))
    }

    pub fn state_of(&self, node: &str) -> NodeState {
        self.scene.json::<NodeDetail>(&["node", "info", node]).summary.state
    }

    /// The agent of this host, which has joined before, keeps trying and reports this reason.
    fn keeps_trying(&self, host: usize, server: &str, why: &str) {
        let output = self.scene.path().join("refused");
        let mut command = saying_into(self.again(host, server), &output);
        self.host(host).has(&mut command);
        let daemon = Daemon::spawn(command);
        until_true(why, || fs::read_to_string(&output).unwrap_or_default().contains(why));
        daemon.kill();
    }

    /// The agent of a host that has joined before, without the string.
    fn again(&self, host: usize, server: &str) -> std::process::Command {
        let name = format!("host-{host}");
        let mut command = self.scene.agent_command(&["--server", server, "--name", &name, "--cpus", "2"]);
        command.args(["--memory", "1GiB", "--attribute", &format!("host={host}"), "--work-dir"]).arg(self.home(host));
        command.env_remove("AMALGAM_STATE").env("HOME", self.scene.path().join("home"));
        command
    }

    /// What the server says to a daemon with the certificate of a host that introduces itself as somebody else.
    fn answer_to(&self, host: usize, introduction: Introduction) -> String {
        let identity = Arc::new(Identity::load(&self.home(host)).unwrap().unwrap());
        let secrets = Secrets::Certificates(identity, Expected::Server);
        let (namespace, address) = (self.host(host).clone(), self.agents.clone());
        let ask = move || {
            namespace.enter().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let patience = Patience::Briefly(Duration::ZERO);
            let joined = runtime.block_on(join_patiently(&address, &secrets, || introduction.clone(), patience));
            joined.map(drop).expect_err("it is refused").to_string()
        };
        thread::spawn(ask).join().unwrap()
    }
}

/// On the machine of an agent whose certificate has ended.
fn doctor_finds_the_end(machines: &Machines, host: usize) {
    let home = machines.home(host);
    let examined = machines.scene.run(&["doctor", "--role", "agent", "--work-dir", home.to_str().unwrap()]);
    assert!(examined.code == 1 && examined.out.contains("ended less than a day ago"), "{examined:?}");
    assert!(
        examined.out.contains(&format!("`amalgam token remove --agent host-{host}` at the server, and join again")),
        "{examined:?}"
    );
}

fn the_server_has_said_why(machines: &Machines) {
    let log = machines.scene.kill_daemon();
    for why in [
        "belongs to the agent of node host-1, and this node is named host-2",
        "belongs to the agent host-1, and is for nothing else",
        "certificate has expired",
        "is not of this cluster's authority",
        "has been revoked",
    ] {
        assert!(log.lines().any(|line| line.contains("WARN") && line.contains(why)), "{why}: {log}");
    }
}

#[test]
fn certificates_that_ended_were_revoked_or_are_of_others_are_refused_on_both_sides() {
    let Some(machines) = Machines::start(3, "") else { return };
    machines.join_agents(&[1, 2]);
    machines.run_across();
    let listed = machines.scene.ok(&["token", "list"]);
    assert_eq!(listed.matches("agent (certificate)").count(), 2, "{listed}");

    // A node that claims another's name, or to be a job host.
    let said = machines.answer_to(1, Introduction::Node { name: "host-2".to_owned() });
    assert!(said.contains("belongs to the agent of node host-1, and this node is named host-2"), "{said}");
    let host = amalgam_core::vocabulary::HostId(1);
    let posing = Introduction::JobHost { host, address: format!("{}:7435", address(1)), next: 0 };
    let said = machines.answer_to(1, posing);
    assert!(said.contains("belongs to the agent host-1, and is for nothing else"), "{said}");
    let mut renamed = machines.scene.agent_command(&["--server", &machines.agents, "--name", "host-9", "--work-dir"]);
    renamed.arg(machines.home(1)).env_remove("AMALGAM_STATE").env("HOME", machines.scene.path().join("home"));
    let refused = result(renamed);
    assert!(
        refused.code != 0 && refused.err.contains("has the certificate of the agent of node host-1"),
        "{refused:?}"
    );

    // A certificate that has ended: signed by the right authority, for the right key.
    machines.daemons.borrow_mut().remove(0).kill();
    let authority = Authority::open(&machines.scene.state()).unwrap();
    let identity = Identity::load(&machines.home(1)).unwrap().unwrap();
    let key = key_of(&identity.certified_key().unwrap().cert[0]).unwrap();
    let subject = identity.subject().unwrap();
    assert_eq!(subject.number, Some(0), "the server has sent a certificate with the node's number");
    let ended = SystemTime::now() - Duration::from_secs(5);
    identity.replace(authority.certify_until(&subject, &key, ended).unwrap()).unwrap();
    machines.keeps_trying(1, &machines.agents, "your certificate has expired");
    doctor_finds_the_end(&machines, 1);
    // One of another authority, with the same name and key.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Authority::open(elsewhere.path()).unwrap();
    let mut forged = other.certify(&subject, &key).unwrap();
    forged.authorities = authority.certify(&subject, &key).unwrap().authorities;
    identity.replace(forged).unwrap();
    machines.keeps_trying(1, &machines.agents, "your certificate is not of this cluster's authority");
    // A server of another authority, as somebody between both would have it: the agent does not talk to it.
    identity.replace(authority.certify(&subject, &key).unwrap()).unwrap();
    let strange = format!("{}:{}", address(2), free_port());
    let mut server =
        machines.scene.command(&["server", "--listen", "127.0.0.1:0", "--listen-agents", &strange, "--state-dir"]);
    server.arg(elsewhere.path());
    let said_there = machines.scene.path().join("strange");
    let mut server = saying_into(server, &said_there);
    machines.host(2).has(&mut server);
    let server = Daemon::spawn(server);
    machines.keeps_trying(1, &strange, "its certificate is not of this cluster's authority");
    let why = "the peer does not accept the certificate of this process";
    until_true(why, || fs::read_to_string(&said_there).unwrap_or_default().contains(why));
    server.kill();

    machines.started(1, machines.again(1, &machines.agents));
    machines.run_across();
    // A revoked one: its connection ends, and it is not accepted again.
    machines.scene.ok(&["token", "revoke", "--agent", "host-1"]);
    until_true("the end of the agent's connection", || machines.state_of("host-1") != NodeState::Up);
    machines.daemons.borrow_mut().remove(1).kill();
    machines.keeps_trying(1, &machines.agents, "has been revoked");
    machines.started(1, machines.joining_agent(1, "host-1", &machines.join_string(&[])));
    machines.run_across();
    the_server_has_said_why(&machines);
}

#[test]
fn an_authority_is_imported_before_the_first_start_of_the_server() {
    let (scene, theirs) = (Scene::new(), tempfile::tempdir().unwrap());
    // That of another cluster is one like any other.
    Authority::open(theirs.path()).unwrap();
    let [certificate, key] = ["ca.pem", "ca-key.pem"].map(|file| theirs.path().join(file));
    let flags = ["--certificate", certificate.to_str().unwrap(), "--key", key.to_str().unwrap()];
    scene.ok(&[&["ca", "import"], &flags[..]].concat());
    let listed = scene.ok(&["ca", "list"]);
    let server = ["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"];
    scene.start(scene.command(&server), &scene.state());
    assert_eq!(scene.ok(&["ca", "list"]), listed);
    let [ours, theirs] = [scene.state().join("ca.pem"), certificate].map(|path| fs::read(path).unwrap());
    assert_eq!(String::from_utf8(ours), String::from_utf8(theirs));
}

/// Each task makes a directory, which is possible once.
const TASK: &str = "mkdir done/$AMALGAM_INDEX || echo again >> again; sleep 0.02";

#[test]
fn an_array_runs_each_task_once_while_the_authority_is_replaced_and_the_server_restarted() {
    let Some(machines) = Machines::start(3, "") else { return };
    machines.join_agents(&[1, 2]);
    let scene = &machines.scene;
    fs::create_dir(scene.work().join("done")).unwrap();
    let id = scene.submit(&["--array", "0-1999", "--wait-for-nodes", "--", "sh", "-c", TASK]);
    let done = || fs::read_dir(scene.work().join("done")).unwrap().count();
    until_true("the first tasks", || done() > 100);
    let listed = |what: &str| scene.ok(&["ca", "list"]).lines().filter(|line| line.contains(what)).count();
    assert_eq!((listed("server,daemons"), listed("Amalgam authority")), (1, 1));
    scene.ok(&["ca", "rotate"]);
    assert_eq!((listed("Amalgam authority"), listed("server,daemons")), (2, 0));
    scene.kill_daemon();
    machines.start_server("127.0.0.1:0");
    // Both agents receive certificates of the next authority, and only then the first one may go.
    until_true("the end of the rotation", || scene.run(&["ca", "rotate", "--finish"]).code == 0);
    assert!(done() < 2_000, "the rotation ended within the array");
    scene.kill_daemon();
    machines.start_server("127.0.0.1:0");
    until_true("the end of the job", || scene.job(&id).summary.state.has_ended());
    assert_eq!((scene.job(&id).summary.state, done()), (JobState::Succeeded, 2_000));
    assert!(!scene.work().join("again").exists(), "a task ran twice");
    assert_eq!((listed("server,daemons"), listed("Amalgam authority")), (1, 1));
    // Both agents connect again later, too.
    for _ in [1, 2] {
        machines.daemons.borrow_mut().remove(0).kill();
    }
    for host in [1, 2] {
        machines.started(host, machines.again(host, &machines.agents));
    }
    machines.run_across();
}

/// The certificates of an organisation's authority, which its root has signed, and the private key: files in this directory.
fn organisation(directory: &Path) -> [PathBuf; 2] {
    let authority = |name: &str, below: BasicConstraints| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(below);
        params
    };
    let (root_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let root = authority("Their root", BasicConstraints::Unconstrained);
    let signed = root.self_signed(&root_key).unwrap();
    let own = authority("Their cluster", BasicConstraints::Constrained(0));
    let own = own.signed_by(&key, &Issuer::new(root, root_key)).unwrap();
    let files = ["their.pem", "their.key"].map(|name| directory.join(name));
    fs::write(&files[0], own.pem() + &signed.pem()).unwrap();
    fs::write(&files[1], key.serialize_pem()).unwrap();
    fs::set_permissions(&files[1], fs::Permissions::from_mode(0o600)).unwrap();
    files
}

#[test]
fn an_array_runs_each_task_once_while_the_authority_of_an_organisation_is_imported() {
    let port = free_port();
    let Some(machines) = Machines::listening(&format!("0.0.0.0:{port}"), 3, "") else { return };
    machines.join_agents(&[1, 2]);
    let scene = &machines.scene;
    let https = format!("https://{}:{port}", address(0));
    let token = machines.private("grace.token", &scene.ok(&["token", "add", "grace"]));
    let copy = |name: &str| {
        let path = scene.path().join(name);
        fs::copy(scene.state().join("ca.pem"), &path).unwrap();
        path
    };
    // A client on another machine with a copy of the authority.
    let lists = |authority: &Path| {
        let mut command = scene.command(&["list", "--server", &https, "--token-file"]);
        command.arg(&token).arg("--ca-file").arg(authority).env_remove("AMALGAM_STATE");
        machines.host(2).has(&mut command);
        result(command)
    };
    let first = copy("first.pem");
    fs::create_dir(scene.work().join("done")).unwrap();
    let id = scene.submit(&["--array", "0-1999", "--wait-for-nodes", "--", "sh", "-c", TASK]);
    let done = || fs::read_dir(scene.work().join("done")).unwrap().count();
    until_true("the first tasks", || done() > 100);
    // This agent connects again with a certificate of the first authority.
    machines.daemons.borrow_mut().remove(1).kill();

    let [certificate, key] = organisation(scene.path());
    scene.ok(&["ca", "import", "--certificate", certificate.to_str().unwrap(), "--key", key.to_str().unwrap()]);
    let listed = |what: &str| scene.ok(&["ca", "list"]).lines().filter(|line| line.contains(what)).count();
    assert_eq!((listed("Amalgam authority"), listed("Their cluster")), (1, 1), "both are trusted");
    let both = copy("both.pem");
    assert_eq!([&first, &both].map(|authority| lists(authority).code), [0, 0]);
    let early = scene.run(&["ca", "rotate", "--finish"]);
    assert!(early.code != 0 && early.err.contains("agent host-2"), "{early:?}");
    machines.started(2, machines.again(2, &machines.agents));
    until_true("the end of the rotation", || scene.run(&["ca", "rotate", "--finish"]).code == 0);
    assert!(done() < 2_000, "the rotation ended within the array");

    assert_eq!((listed("Amalgam authority"), listed("Their cluster")), (0, 1));
    until_true("the certificate of the organisation", || lists(&first).err.contains("UnknownIssuer"));
    let only = copy("only.pem");
    assert_eq!([&both, &only].map(|authority| lists(authority).code), [0, 0]);
    until_true("the end of the job", || scene.job(&id).summary.state.has_ended());
    assert_eq!((scene.job(&id).summary.state, done()), (JobState::Succeeded, 2_000));
    assert!(!scene.work().join("again").exists(), "a task ran twice");
    // All connect again later, too.
    scene.kill_daemon();
    machines.start_server(&format!("0.0.0.0:{port}"));
    machines.daemons.borrow_mut().clear();
    for host in [1, 2] {
        machines.started(host, machines.again(host, &machines.agents));
    }
    machines.run_across();
    assert_eq!(lists(&only).code, 0);
}

#[test]
fn a_rotation_waits_for_daemons_that_are_not_connected() {
    let Some(machines) = Machines::start(2, "") else { return };
    machines.join_agents(&[1]);
    until_true("the node", || machines.state_of("host-1") == NodeState::Up);
    machines.daemons.borrow_mut().remove(0).kill();
    let scene = &machines.scene;
    scene.ok(&["ca", "rotate"]);
    let refused = scene.run(&["ca", "rotate", "--finish"]);
    assert!(refused.code != 0 && refused.err.contains("agent host-1 have not received"), "{refused:?}");
    assert!(scene.ok(&["ca", "list"]).contains("Amalgam authority"));
    machines.started(1, machines.again(1, &machines.agents));
    until_true("the end of the rotation", || scene.run(&["ca", "rotate", "--finish"]).code == 0);
    // One that misses a rotation that was forced has to join again.
    machines.daemons.borrow_mut().remove(0).kill();
    start(&scene.state()).unwrap();
    finish(&scene.state(), true).unwrap();
    machines.keeps_trying(1, &machines.agents, "is not trusted: its certificate is not of this cluster's authority");
}

#[test]
fn a_job_host_with_a_number_that_the_configuration_lacks_uses_no_string() {
    let Some(machines) = Machines::start(2, "preset = 'apollo'\njob_hosts = 1") else { return };
    let string = machines.join_string(&["--role", "jobs"]);
    let listen = format!("{}:{}", address(1), free_port());
    let host = |number: &str| {
        let mut command = machines.scene.command(&["jobs", "--number", number, "--join", &string, "--listen", &listen]);
        command.arg("--work-dir").arg(machines.scene.path().join("jobs").join(number));
        command.env_remove("AMALGAM_STATE").env("HOME", machines.scene.path().join("home"));
        machines.host(1).has(&mut command);
        command
    };
    fs::create_dir(machines.scene.path().join("jobs")).unwrap();
    let refused = Daemon::start(host("2")).err().expect("it is refused");
    assert!(refused.contains("unknown job host 2; this server's configuration allows job hosts 1 to 1"), "{refused}");
    let joined = Daemon::start(host("1")).unwrap_or_else(|refused| panic!("{refused}"));
    joined.kill();
}

#[test]
fn a_job_host_that_joined_with_a_string_needs_no_copy_of_the_tokens() {
    let Some(machines) = Machines::start(3, "preset = 'apollo'\njob_hosts = 1") else { return };
    let string = machines.join_string(&["--role", "jobs"]);
    let advertised = format!("{}:{}", address(1), free_port());
    let host = |string: &str| {
        let mut command = machines.scene.command(&["jobs", "--number", "1", "--join", string, "--listen", &advertised]);
        command.arg("--work-dir").arg(machines.scene.path().join("jobs"));
        command.env_remove("AMALGAM_STATE").env("HOME", machines.scene.path().join("home"));
        command
    };
    // A string for agents is not one for job hosts.
    let mut wrong = host(&machines.join_string(&[]));
    machines.host(1).has(&mut wrong);
    let refused = Daemon::start(wrong).err().expect("it is refused");
    assert!(refused.contains("or for another --role"), "{refused}");
    machines.started(1, host(&string));
    // Nodes that join later are known to it at once.
    machines.join_agents(&[1, 2]);
    until_true("both nodes", || ["host-1", "host-2"].map(|node| machines.state_of(node)) == [NodeState::Up; 2]);
    machines.run_across();
    // An agent with the number of another node is refused by it.
    let identity = Identity::load(&machines.home(1)).unwrap().unwrap();
    let own = identity.subject().unwrap();
    let Subject { number: Some(number), .. } = own else { panic!("{own:?}") };
    let posing = Introduction::NodeOf { node: amalgam_core::vocabulary::NodeId(number ^ 1) };
    let identity = Arc::new(identity);
    let secrets = Secrets::Certificates(identity, Expected::JobHost(1));
    let (namespace, at) = (machines.host(1).clone(), advertised.clone());
    let ask = move || {
        namespace.enter().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let patience = Patience::Briefly(Duration::ZERO);
        runtime.block_on(join_patiently(&at, &secrets, || posing.clone(), patience)).map(drop).unwrap_err().to_string()
    };
    let said = thread::spawn(ask).join().unwrap();
    assert!(said.contains(&format!("is for node {number}, not")), "{said}");
    // The job host starts again without the string, and a revoked node is refused there, too.
    machines.daemons.borrow_mut().remove(0).kill();
    machines.started(1, host(&string));
    machines.run_across();
    let other = Identity::load(&machines.home(2)).unwrap().unwrap();
    let node = amalgam_core::vocabulary::NodeId(other.subject().unwrap().number.unwrap());
    let other = Secrets::Certificates(Arc::new(other), Expected::JobHost(1));
    let refused = |why: &'static str| {
        let (namespace, at, secrets) = (machines.host(2).clone(), advertised.clone(), other.clone());
        let ask = move || {
            namespace.enter().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let patience = Patience::Briefly(Duration::ZERO);
            let joined = join_patiently(&at, &secrets, || Introduction::NodeOf { node }, patience);
            runtime.block_on(joined).map(drop).err().is_some_and(|error| error.to_string().contains(why))
        };
        thread::spawn(ask).join().unwrap()
    };
    assert!(refused("is connected already"), "its agent is");
    machines.scene.ok(&["token", "revoke", "--agent", "host-2"]);
    until_true("the end of the node's connection", || machines.state_of("host-2") != NodeState::Up);
    until_true("a refusal by the job host", || refused("has been revoked"));
    // A revoked job host loses its agents.
    let said = machines.scene.path().join("agent-1");
    machines.daemons.borrow_mut().remove(0).kill();
    let mut agent = saying_into(machines.again(1, &machines.agents), &said);
    machines.host(1).has(&mut agent);
    let _agent = Daemon::spawn(agent);
    let says = |what: &str| fs::read_to_string(&said).unwrap_or_default().contains(what);
    until_true("the agent at the job host", || says("connected to job host 1"));
    machines.scene.ok(&["token", "revoke", "--job-host", "1"]);
    until_true("the end of that connection", || says("lost the connection to job host 1"));
    until_true("its refusal", || says("its certificate has been revoked"));
}

#[test]
fn an_agent_with_a_token_of_its_own_gets_a_certificate_by_itself() {
    let Some(machines) = Machines::start(3, "") else { return };
    let listed = |what: &str| machines.scene.ok(&["token", "list"]).matches(what).count();
    // One with the token of an administrator, which others may use, too, keeps it.
    let tokens = machines.scene.state().join("tokens.toml");
    machines.started(2, machines.agent_in("host-2", 2, &machines.agents, &tokens));
    let token = machines.token_of("host-1");
    machines.started(1, machines.agent(1, &machines.agents, &token));
    until_true("a certificate", || {
        listed("agent (certificate)") == 1 && machines.home(1).join("identity.json").exists()
    });
    machines.run_across();
    let is_back = || machines.daemons.borrow()[1].said().contains("connected to the server again");
    assert!(!is_back(), "it has not been away");
    // The token ends: without it, the agent has to present the certificate, in the same process and after a restart.
    let text = fs::read_to_string(&tokens).unwrap();
    assert!(text.contains("until"), "the token has an end: {text}");
    let secret = fs::read_to_string(&token).unwrap();
    let without: Vec<&str> = text.split("[[token]]").filter(|entry| !entry.contains(secret.trim())).collect();
    fs::write(&tokens, without.join("[[token]]")).unwrap();
    // It may be back before anybody sees that it was away.
    until_true("another connection", is_back);
    until_true("the node with its certificate", || machines.state_of("host-1") == NodeState::Up);
    machines.run_across();
    machines.daemons.borrow_mut().remove(1).kill();
    machines.started(1, machines.agent(1, &machines.agents, &token));
    machines.run_across();
    assert_eq!((listed("agent (certificate)"), listed("host-1")), (1, 1));
    // It is revoked as any other; another token in the same file starts anew.
    machines.scene.ok(&["token", "revoke", "--agent", "host-1"]);
    until_true("the end of the agent's connection", || machines.state_of("host-1") != NodeState::Up);
    machines.token_of("host-1");
    until_true("the node with another token", || machines.state_of("host-1") == NodeState::Up);
    assert_eq!(listed("host-2"), 0);
}

#[test]
fn an_agent_keeps_its_token_where_job_hosts_may_have_tokens() {
    let Some(machines) = Machines::start(2, "preset = 'apollo'\njob_hosts = 1") else { return };
    machines.start_agent(1, &machines.agents);
    until_true("the node", || machines.state_of("host-1") == NodeState::Up);
    // The answer would come before this one.
    machines.scene.ok(&["node", "list"]);
    thread::sleep(Duration::from_millis(500));
    assert!(!machines.scene.ok(&["token", "list"]).contains("certificate"));
}
