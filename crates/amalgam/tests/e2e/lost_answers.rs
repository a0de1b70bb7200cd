//! A join whose answer is lost can be repeated by the same daemon, and by no other.

use crate::support::{Daemon, Scene, free_port, saying_into, until_true};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Forwards connections to the server. What the server sends after it has given certificates to the node is lost, and so is the
/// connection.
struct Thief {
    is_active: Arc<AtomicBool>,
    stolen: Arc<AtomicUsize>,
    address: String,
}

impl Thief {
    fn before(server: String, tokens: PathBuf, node: &'static str) -> Thief {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (is_active, stolen) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let (active, count) = (Arc::clone(&is_active), Arc::clone(&stolen));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (joining, server) = (stream.unwrap(), TcpStream::connect(&server).unwrap());
                let (mut from_joining, mut to_server) = (joining.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || std::io::copy(&mut from_joining, &mut to_server));
                let (active, count, tokens) = (Arc::clone(&active), Arc::clone(&count), tokens.clone());
                thread::spawn(move || {
                    let (mut joining, mut server) = (joining, server);
                    let mut bytes = [0; 16 * 1024];
                    while let Ok(length @ 1..) = server.read(&mut bytes) {
                        let is_given = fs::read_to_string(&tokens).is_ok_and(|text| text.contains(node));
                        if is_given && active.load(Ordering::SeqCst) {
                            count.fetch_add(1, Ordering::SeqCst);
                            break;
                        }
                        if joining.write_all(&bytes[..length]).is_err() {
                            break;
                        }
                    }
                    let _ = (joining.shutdown(std::net::Shutdown::Both), server.shutdown(std::net::Shutdown::Both));
                });
            }
        });
        Thief { is_active, stolen, address }
    }

    fn stop(&self) {
        self.is_active.store(false, Ordering::SeqCst);
    }

    fn has_stolen(&self) -> bool {
        self.stolen.load(Ordering::SeqCst) > 0
    }
}

fn agent(scene: &Scene, home: &str, name: &str, string: &str) -> Command {
    let path = scene.path().join(home);
    scene.has_executor(&path);
    let mut command = scene.agent_command(&["--join", string, "--name", name, "--cpus", "1", "--memory", "1GiB"]);
    command.arg("--work-dir").arg(path).env_remove("AMALGAM_STATE").env("HOME", scene.path().join("home"));
    saying_into(command, &scene.path().join(format!("{home}.log")))
}

#[test]
fn a_daemon_whose_answer_was_lost_asks_again_and_no_other_can() {
    let scene = Scene::new();
    let agents = format!("127.0.0.1:{}", free_port());
    let server = ["server", "--listen", "127.0.0.1:0", "--listen-agents", &agents];
    scene.start(scene.command(&server), &scene.state());
    let thief = Thief::before(agents.clone(), scene.state().join("tokens.toml"), "vm-1");
    let string = scene.ok(&["token", "join", "--address", &thief.address]).trim().to_owned();
    let said = |home: &str| fs::read_to_string(scene.path().join(format!("{home}.log"))).unwrap_or_default();
    // It is killed while it tries.
    let first = Daemon::spawn(agent(&scene, "one", "vm-1", &string));
    until_true("a lost answer", || thief.has_stolen());
    first.kill();
    thief.stop();
    // Others with the string get nothing, under any name.
    for (home, name, why) in [("two", "vm-1", "the join string is unknown, used up"), ("three", "vm-2", "used up")] {
        assert!(Daemon::start(agent(&scene, home, name, &string)).is_err(), "{name} is refused");
        assert!(said(home).contains(why), "{}", said(home));
    }
    // The same daemon does, after a restart.
    let again = Daemon::start(agent(&scene, "one", "vm-1", &string)).unwrap();
    assert_eq!(scene.ok(&["token", "list"]).matches("agent (certificate)").count(), 1);
    let left: Vec<String> = fs::read_dir(scene.path().join("one"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".joining"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(scene.ok(&["run", "--wait-for-nodes", "--", "echo", "it ran"]).trim(), "it ran");
    again.kill();
    // One that is not killed asks again by itself.
    let thief = Thief::before(agents, scene.state().join("tokens.toml"), "vm-4");
    let string = scene.ok(&["token", "join", "--address", &thief.address]).trim().to_owned();
    let mut patient = Daemon::spawn(agent(&scene, "four", "vm-4", &string));
    until_true("a lost answer", || thief.has_stolen());
    thief.stop();
    patient.await_ready().unwrap();
}
