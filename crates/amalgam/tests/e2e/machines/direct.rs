//! Files go directly from host to host, and through the server only between hosts that cannot reach each other.

use super::{ACROSS, Machines, SECRET};
use crate::support::{Fault, Http, Proxy, address, free_port, saying_into, until, until_true};
use amalgam_daemon::api::{JobState, ServerFile};
use amalgam_daemon::auth::{Tokens, client_token};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

/// Bytes of the file that one node sends to another.
const LENGTH: usize = (SECRET.len() + 1) * 1_000;

impl Machines {
    /// A metric of the server.
    fn metric(&self, name: &str) -> u64 {
        // The interface listens on the server's host only.
        let file = fs::read_to_string(self.scene.state().join(ServerFile::NAME)).unwrap();
        let address = serde_json::from_str::<ServerFile>(&file).unwrap().address;
        let token = client_token(&self.scene.state().join(Tokens::FILE), "ada").unwrap();
        let host = self.host(0).clone();
        let ask = move || {
            host.enter().unwrap();
            Http::new(&address, &token).text("/metrics")
        };
        let metrics = thread::spawn(ask).join().unwrap();
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("_total "));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no metric {name}"))
    }

    /// The bytes of files that went through the server, and the number of transfers that did not.
    fn forwarded_and_direct(&self) -> (u64, u64) {
        (self.metric("amalgam_files_forwarded_bytes"), self.metric("amalgam_files_direct"))
    }

    fn diagnostics(&self, host: usize) -> PathBuf {
        self.scene.path().join(format!("diagnostics-{host}"))
    }

    fn said(&self, host: usize) -> String {
        fs::read_to_string(self.diagnostics(host)).unwrap_or_default()
    }

    /// Starts the agent of a host, with these additional arguments.
    fn start_with(&self, host: usize, arguments: &[&str]) {
        let token = self.token_of(&format!("host-{host}"));
        let mut command: Command = self.agent(host, &self.agents, &token);
        command.args(arguments).env("AMALGAM_LOG", "warn,files=info");
        self.started(host, saying_into(command, &self.diagnostics(host)));
    }

    /// An agent whose files are fetched through a proxy on the same host, which records what passes.
    fn start_recorded(&self, host: usize) -> Proxy {
        let listen = format!("{}:{}", address(host), free_port());
        let advertised = format!("{}:{}", address(host), free_port());
        let proxy = Proxy::recording(Some(self.host(host)), advertised.clone(), &listen);
        self.start_with(host, &["--listen-files", &listen, "--advertise-files", &advertised]);
        proxy
    }

    fn submit(&self, job: &str) -> String {
        let job = self.scene.write("job.toml", job);
        self.scene.submit(&[job.to_str().unwrap()])
    }
}

#[test]
fn a_file_goes_directly_from_host_to_host_and_the_network_cannot_read_it() {
    let Some(machines) = Machines::start(3, "") else { return };
    let wire = machines.start_recorded(1);
    machines.start_with(2, &[]);
    machines.run_across();
    assert_eq!(machines.forwarded_and_direct(), (0, 1));
    let seen = wire.recorded();
    assert!(seen.len() > LENGTH, "{} bytes passed", seen.len());
    for text in [SECRET, "host-2", "across", "quick"] {
        assert!(!seen.windows(text.len()).any(|part| part == text.as_bytes()), "`{text}` is readable");
    }
    until_true("both ends of the transfer", || {
        machines.said(2).contains("fetched a file") && machines.said(1).contains("sent a file")
    });
    // Something that is no node of this cluster gets nothing there, and the agent says so.
    for sent in [&b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..], b"\x16\x03\x01\x00\x05hello"] {
        let received = machines.received(2, &wire.address, sent);
        assert!(received.len() <= 7, "{received:?}");
    }
    until_true("a refusal", || machines.said(1).matches("refused a connection that asked for a file").count() == 2);
    machines.run_across();
}

#[test]
fn hosts_that_reach_only_the_server_exchange_files_through_it() {
    let Some(machines) = Machines::start(3, "") else { return };
    machines.network.separate(&[1, 2]);
    machines.start_with(1, &[]);
    machines.start_with(2, &[]);
    let different = |number: u32| ACROSS.replace("the quick brown fox", &format!("the quick brown fox {number}"));
    for number in 1..=3 {
        let id = machines.submit(&different(number));
        until_true("the end of the job", || machines.scene.job(&id).summary.state == JobState::Succeeded);
        assert!(machines.forwarded_and_direct().0 > u64::from(number) * LENGTH as u64);
    }
    let said = machines.said(2);
    let tries = said.matches("cannot fetch files directly from a node; they come through the server").count();
    assert_eq!(tries, 1, "it is not tried each time: {said}");
}

#[test]
fn an_agent_that_does_not_listen_sends_files_through_the_server() {
    let Some(machines) = Machines::start(3, "") else { return };
    machines.start_with(1, &["--listen-files", "none"]);
    machines.start_with(2, &[]);
    machines.run_across();
    assert_eq!(machines.forwarded_and_direct(), (LENGTH as u64, 0));
}

/// Both have the file, and the one that sends it is killed.
#[test]
fn the_rest_of_a_file_comes_from_another_host_if_the_first_one_dies() {
    const BYTES: usize = 96 << 20;
    let Some(machines) = Machines::start(4, "") else { return };
    let wires = [1, 2].map(|host| machines.start_recorded(host));
    let job = format!(
        r#"
name = "resumed"
wait_for_nodes = true
[[stage]]
name = "write"
constraints = ["host=1"]
outputs = ["file"]
command = "head -c {BYTES} /dev/urandom > file; sha256sum < file > \"$AMALGAM_SUBMIT_DIR/sum\""
[[stage]]
name = "copy"
after = ["write"]
constraints = ["host=2"]
inputs = ["write/*"]
command = "true"
[[stage]]
name = "read"
after = ["write", "copy"]
constraints = ["host=3"]
inputs = ["write/*"]
command = "sha256sum < inputs/write/0/file"
"#
    );
    let id = machines.submit(&job);
    until_true("a copy on the second host", || machines.scene.job(&id).summary.tasks.succeeded == 2);
    let copied = wires[0].recorded().len();
    machines.start_with(3, &[]);
    let sender = until("the first part of the file", || {
        let sent = [wires[0].recorded().len() - copied, wires[1].recorded().len()];
        sent.iter().position(|sent| *sent > 8 << 20)
    });
    machines.daemons.borrow_mut().remove(sender).kill();
    wires[sender].break_by(Fault::Cut);
    until_true("the end of the job", || machines.scene.job(&id).summary.state.has_ended());
    assert_eq!(machines.scene.job(&id).summary.state, JobState::Succeeded, "{}", machines.scene.ok(&["story", &id]));
    assert_eq!(machines.scene.ok(&["logs", &format!("{id}.read.0")]), machines.scene.read("sum"));
    let said = machines.said(3);
    assert!(said.contains("a node stopped sending a file"), "{said}");
    let other = wires[1 - sender].recorded().len() - if sender == 1 { copied } else { 0 };
    assert!(other > 1 << 20 && other < BYTES - (4 << 20), "the other sent only the rest: {other} bytes");
}
