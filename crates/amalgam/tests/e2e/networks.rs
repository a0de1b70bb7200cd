//! Clusters in networks of IPv6 only, and with a server of several interfaces.

use crate::machines::Machines;
use crate::support::{CommandOutput, Network, address, free_port, interface, ipv6_address, result, until_true};
use amalgam_daemon::api::NodeState;
use std::fs;
use std::process::Command;

impl Machines {
    /// A process that has nothing of the server's.
    fn elsewhere(&self, mut command: Command) -> Command {
        command.env_remove("AMALGAM_STATE").env("HOME", self.scene.path().join("home"));
        command
    }

    fn start_agent_with(&self, host: usize, string: &str, arguments: &[&str]) -> String {
        let mut command = self.joining_agent(host, &format!("host-{host}"), string);
        command.args(arguments);
        self.started(host, command)
    }

    /// A client on a host, which has a token and the authority.
    pub fn client(&self, host: usize, server: &str, arguments: &[&str]) -> CommandOutput {
        let token = self.scene.work().join("client.token");
        if !token.exists() {
            self.private("client.token", &self.scene.ok(&["token", "add", "grace"]));
        }
        let mut command = self.scene.command(&[arguments[0], "--server", server, "--token-file"]);
        command.arg(token).arg("--ca-file").arg(self.scene.state().join("ca.pem")).args(&arguments[1..]);
        let mut command = self.elsewhere(command);
        self.host(host).has(&mut command);
        result(command)
    }

    fn are_up(&self, nodes: &[&str]) -> bool {
        nodes.iter().all(|node| self.state_of(node) == NodeState::Up)
    }
}

#[test]
fn a_cluster_with_ipv6_addresses_only() {
    let [agents, interface, host] = [0, 0, 3].map(|number| format!("[{}]:{}", ipv6_address(number), free_port()));
    let Some(site) = Machines::within(Network::of_ipv6(4), agents.clone()) else { return };
    let config = site.scene.write("server.toml", "preset = 'apollo'\njob_hosts = 1\n");
    let mut server = site.scene.command(&["server", "--listen", &interface, "--listen-agents", &agents, "--config"]);
    server.arg(config);
    let ready = site.scene.start(server, &site.scene.state());
    assert!(ready.starts_with(&format!("ready: https://{interface}, agents at {agents}, ")), "{ready}");
    // A job host, and agents that are told its address and exchange files.
    let string = site.join_string(&["--role", "jobs"]);
    assert!(string.starts_with(&format!("{agents}/")), "{string}");
    let mut jobs = site.scene.command(&["jobs", "--number", "1", "--join", &string, "--listen", &host, "--work-dir"]);
    jobs.arg(site.scene.path().join("jobs"));
    let ready = site.started(3, site.elsewhere(jobs));
    assert_eq!(ready, format!("ready: job host 1 for agents at {host}, server {agents}"));
    let advertised = format!("[{}]:{}", ipv6_address(1), free_port());
    site.start_agent_with(
        1,
        &site.join_string(&[]),
        &["--listen-files", &advertised, "--advertise-files", &advertised],
    );
    let ready = site.start_agent_with(2, &site.join_string(&[]), &[]);
    assert_eq!(ready, format!("ready: node host-2, server {agents}"));
    until_true("both nodes", || site.are_up(&["host-1", "host-2"]));
    site.run_across();
    // The certificate names the address.
    let https = format!("https://{interface}");
    let ran = site.client(2, &https, &["run", "--", "echo", "from elsewhere"]);
    assert_eq!((ran.code, ran.out.trim()), (0, "from elsewhere"), "{ran:?}");
    // With what is written by hand, in another form of the same address.
    let long = https.replace("fd77::1", "fd77:0:0:0:0:0:0:1");
    assert_eq!(site.client(2, &long, &["list"]).code, 0);
    let metrics = site.client(2, &format!("http://{interface}"), &["list"]);
    assert!(metrics.code != 0 && metrics.err.contains("would send your token unencrypted"), "{metrics:?}");
    // A login, whose context has the address.
    let pem = fs::read(site.scene.state().join("ca.pem")).unwrap();
    let fingerprint = amalgam_daemon::authority::Trusted::read(&pem).unwrap().remove(0).fingerprint;
    let mut login = site.scene.command(&["login", &https, "--fingerprint", &fingerprint, "--token-file"]);
    login.arg(site.scene.work().join("client.token"));
    let mut login = site.elsewhere(login);
    site.host(1).has(&mut login);
    let logged_in = result(login);
    assert_eq!(logged_in.code, 0, "{logged_in:?}");
    // All addresses, after a restart; agents come back by themselves.
    site.scene.kill_daemon();
    let port = |address: &str| format!("[::]:{}", address.rsplit_once(':').unwrap().1);
    let mut server = site.scene.command(&["server", "--listen", &port(&interface), "--listen-agents", &port(&agents)]);
    server.arg("--config").arg(site.scene.work().join("server.toml"));
    site.scene.start(server, &site.scene.state());
    until_true("both nodes again", || site.are_up(&["host-1", "host-2"]));
    site.run_across();
    assert_eq!(site.client(2, &https, &["list"]).code, 0);
}

#[test]
fn agents_in_two_networks_reach_a_server_that_listens_in_both() {
    let hosts = [vec![interface(0, 0), interface(1, 0)], vec![interface(0, 1)], vec![interface(1, 2)]];
    let (first, second) = (address(0), "10.78.0.1");
    let (port, clients) = (free_port(), free_port());
    let agents = format!("{first}:{port},{second}:{port}");
    let Some(site) = Machines::within(Network::with(&hosts), agents.clone()) else { return };
    let server = ["server", "--listen", &format!("0.0.0.0:{clients}"), "--listen-agents", &agents];
    let ready = site.scene.start(site.scene.command(&server), &site.scene.state());
    assert!(ready.contains(&format!(", agents at {first}:{port}, {second}:{port}, ")), "{ready}");
    // By the address that is not named in the string, too.
    site.start_agent_with(1, &site.join_string(&[]), &[]);
    site.start_agent_with(2, &site.join_string(&["--address", &format!("{second}:{port}")]), &[]);
    until_true("both nodes", || site.are_up(&["host-1", "host-2"]));
    // Neither node reaches the other: files go through the server.
    site.run_across();
    for (host, server) in [(1, first.as_str()), (2, second)] {
        let listed = site.client(host, &format!("https://{server}:{clients}"), &["node", "list"]);
        assert!(listed.code == 0 && listed.out.contains("host-2"), "{listed:?}");
    }
    // Both names are in one certificate, whichever interface the server was reached by; a third is not.
    let loopback = format!("https://127.0.0.1:{clients}");
    assert_eq!(site.client(0, &loopback, &["list"]).code, 0);
    let twice = ["server", "--listen", "127.0.0.1:0", "--listen-agents", &format!("{agents},{first}:{port}")];
    let mut again = site.scene.command(&twice);
    again.arg("--state-dir").arg(site.scene.path().join("other"));
    let refused = result(again);
    assert!(refused.code != 0 && refused.err.contains(&format!("`{first}:{port}` is listed twice")), "{refused:?}");
}
