//! Clients on another machine that send slowly, or nothing: each is ended by the server, and the cluster works on.

use super::Machines;
use crate::support::{address, free_port};
use amalgam_daemon::frames;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, crypto};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Between two bytes of a client. What it sends takes longer than the server waits.
const PAUSE: Duration = Duration::from_millis(150);
/// The server waits 5 s for the handshake of a daemon, and 10 s for that of a client and for the head of a request.
const SHORTEST: Duration = Duration::from_secs(4);
const LONGEST: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
enum Slowness {
    Silent,
    /// Sends the first message of TLS.
    Hello,
    /// Sends the first message after the handshake.
    Message,
}

/// A new connection of TLS to the server on the first host, which is verified.
fn session(machines: &Machines) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(machines.scene.state().join("ca.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let server: IpAddr = address(0).parse().unwrap();
    ClientConnection::new(Arc::new(config), ServerName::from(server)).unwrap()
}

/// Whether the server ends the connection within a pause.
fn has_ended(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 4096]) {
        Ok(length) => length == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// What a client sends, with a pause after each.
fn pieces(slowness: Slowness, message: &[u8], session: &mut ClientConnection, stream: &mut TcpStream) -> Vec<Vec<u8>> {
    let written = |session: &mut ClientConnection| {
        let mut bytes = Vec::new();
        session.write_tls(&mut bytes).unwrap();
        bytes
    };
    match slowness {
        Slowness::Silent => Vec::new(),
        Slowness::Hello => written(session).chunks(1).map(<[u8]>::to_vec).collect(),
        Slowness::Message => {
            while session.is_handshaking() {
                // On a busy machine, the server may end the connection before.
                if session.complete_io(stream).is_err() {
                    return Vec::new();
                }
            }
            let record = |byte: &u8| {
                session.writer().write_all(&[*byte]).unwrap();
                written(session)
            };
            message.iter().map(record).collect()
        }
    }
}

/// Starts a client on a host; returns how long the server leaves it connected.
fn start(machines: &Machines, host: usize, server: &str, slowness: Slowness, message: &[u8]) -> JoinHandle<Duration> {
    let (namespace, server, message) = (machines.host(host).clone(), server.to_owned(), message.to_owned());
    let mut session = session(machines);
    thread::spawn(move || {
        namespace.enter().unwrap();
        let started = Instant::now();
        let mut stream = TcpStream::connect(&server).unwrap();
        let mut pieces = pieces(slowness, &message, &mut session, &mut stream).into_iter();
        stream.set_read_timeout(Some(PAUSE)).unwrap();
        loop {
            let sent = pieces.next().map_or(Ok(()), |piece| stream.write_all(&piece));
            if sent.is_err() || has_ended(&mut stream) {
                return started.elapsed();
            }
            assert!(started.elapsed() < LONGEST, "{server} leaves a client connected: {slowness:?}");
        }
    })
}

#[test]
fn slow_clients_on_another_machine_are_ended_and_the_cluster_works_on() {
    let port = free_port();
    let Some(machines) = Machines::listening(&format!("0.0.0.0:{port}"), 3, "") else { return };
    machines.start_agent(1, &machines.agents);
    let interface = format!("{}:{port}", address(0));
    let head = format!("GET /healthz HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(1_000));
    let mut introduction = Vec::new();
    frames::encode(&"x".repeat(1_000), &mut introduction).unwrap();
    let mut clients = Vec::new();
    for (server, message) in [(&interface, head.as_bytes()), (&machines.agents, &introduction)] {
        for slowness in [Slowness::Silent, Slowness::Hello, Slowness::Message] {
            clients.extend((0..20).map(|_| (server, slowness, start(&machines, 2, server, slowness, message))));
        }
    }
    // Another agent of that machine joins beside them.
    machines.start_agent(2, &machines.agents);
    machines.run_across();
    let mut have_ended = false;
    while !have_ended {
        have_ended = clients.iter().all(|(.., client)| client.is_finished());
        let asked = Instant::now();
        let ran = machines.client(1, &format!("https://{interface}"), &["run", "--", "echo", "served"]);
        assert_eq!((ran.code, ran.out.as_str()), (0, "served\n"), "{ran:?}");
        assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
    }
    for (server, slowness, client) in clients {
        let connected = client.join().unwrap();
        assert!(connected > SHORTEST, "{server} ended {slowness:?} after {connected:?} already");
    }
    let log = machines.scene.kill_daemon();
    assert!(log.matches("did not complete the handshake in time").count() >= 60, "{log}");
}
