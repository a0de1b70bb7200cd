//! Daemons, files and clients of the version before meet this one. The fixtures were made by that version, with the ignored test
//! below (docs/formats.md).

mod documents;

use crate::support::recording::{self, Frame, Player, Recorder, Side, read_frame, write_frame};
use crate::support::{Cluster, Daemon, Scene, free_port, until, until_true};
use amalgam_core::hosting::Envelope;
use amalgam_core::protocol::{Message, ToJobManager};
use amalgam_core::vocabulary::{Duration as Microseconds, EndReason, HostId, Instant, NodeId};
use amalgam_daemon::api::{ClusterSummary, EventKind, JobState, ManagerPlace, NodeState, NodeSummary, TaskState};
use amalgam_daemon::auth::Tokens;
use amalgam_daemon::executor::{EnforcementChoice, ExecutorConfig, RunAs};
use amalgam_daemon::server::executor_paths;
use amalgam_daemon::store::{Options, Store};
use amalgam_daemon::transport::GlobalIntroduction;
use amalgam_daemon::versions::{STORE, WIRE};
use amalgam_daemon::{auth, encoding};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// The version of the wire of the program that made the fixtures: the one before ours.
const BEFORE: u32 = 32;

/// What the recorded agent's server ran.
const RECORDED_JOB: [&str; 8] = ["--name", "recorded", "--array", "0-2", "--", "sh", "-c", "echo $AMALGAM_INDEX"];

/// What the recorded job host and the recorded global master ran. Their launches name the working directory.
const PLACED_JOB: [&str; 8] = ["--name", "placed", "--workdir", "own", "--", "sh", "-c", "echo placed"];

/// What the recorded executor ran: it ends once the file exists.
const LONG_JOB: [&str; 6] = ["--name", "long", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.02; done"];

const WITH_JOB_HOST: &str = "preset = 'apollo'\njob_hosts = 1\n";

/// The address of the master is in the configuration of the global master only.
fn in_federation(master: &str) -> String {
    format!("[federation]\nmasters = ['{master}']\nglobals = 1\nspan = 64\nnumber = 0\n")
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/v{BEFORE}"))
}

fn recorded(daemon: &str) -> Vec<Frame> {
    recording::load(&fixtures().join(format!("{daemon}.frames")))
}

fn token(cluster: &Cluster) -> String {
    auth::client_token(&cluster.scene.state().join(Tokens::FILE), "ada").unwrap()
}

// ---- the handshake, as it was in that version ------------------------------------------------------------------------

#[derive(Serialize, Deserialize)]
struct Challenge {
    versions: Versions,
    nonce: [u8; 32],
}

#[derive(Serialize, Deserialize)]
struct Versions {
    oldest: u32,
    newest: u32,
}

#[derive(Serialize, Deserialize)]
struct Hello {
    version: u32,
    introduction: Introduction,
    nonce: [u8; 32],
    proof: [u8; 32],
}

#[derive(Serialize, Deserialize)]
enum Introduction {
    Node { name: String },
    NodeOf { node: NodeId },
    JobHost { host: HostId, address: String, next: u64 },
    Global(Box<GlobalIntroduction>),
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Accepted { incarnation: u64, terms: Terms, proof: [u8; 32], longest_silence: Option<Microseconds> },
}

/// Those of a job host to an agent.
#[derive(Serialize, Deserialize)]
enum Terms {
    Node,
    NodeOf,
}

/// A hello with the address of a job host instead of its own.
fn with_address(hello: &[u8], address: &str) -> Option<Vec<u8>> {
    let mut hello: Hello = encoding::from_slice(hello).ok()?;
    let Introduction::JobHost { address: own, .. } = &mut hello.introduction else { return None };
    address.clone_into(own);
    encoding::to_vec(&hello).ok()
}

/// The frames of a connection between daemons without the first `handshake` ones.
fn after_handshake(frames: &[Frame], connection: usize, handshake: usize) -> (Vec<Frame>, Vec<Frame>) {
    let mut rest = handshake;
    frames.iter().cloned().partition(|frame| {
        let is_part = rest > 0 && frame.connection == connection;
        rest -= usize::from(is_part);
        is_part
    })
}

/// Joins the server as the recorded daemon, which is not sent a version that it does not know.
fn join(server: &str, token: &str, hello: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server).unwrap();
    let challenge: Challenge = encoding::from_slice(&read_frame(&mut stream).unwrap()).unwrap();
    assert!((challenge.versions.oldest..=challenge.versions.newest).contains(&BEFORE));
    let mut hello: Hello = encoding::from_slice(hello).unwrap();
    assert_eq!(hello.version, BEFORE, "the recorded daemon is of the version before");
    hello.proof = auth::prove(token, "agent", &challenge.nonce);
    write_frame(&mut stream, &encoding::to_vec(&hello).unwrap()).unwrap();
    stream
}

/// Lets an agent join, as the recorded job host did. The agent starts TLS first, which that version does not have.
fn let_in(listener: &TcpListener, token: &str, challenge: &[u8], accepted: &[u8]) -> TcpStream {
    let (mut with_tls, _) = listener.accept().unwrap();
    write_frame(&mut with_tls, challenge).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let offered: Challenge = encoding::from_slice(challenge).unwrap();
    assert_eq!(offered.versions.newest, BEFORE, "the recorded daemon is of the version before");
    write_frame(&mut stream, challenge).unwrap();
    let hello: Hello = encoding::from_slice(&read_frame(&mut stream).unwrap()).unwrap();
    assert_eq!(hello.version, BEFORE, "the agent chose a version that both know");
    assert!(auth::verify(token, "agent", &offered.nonce, &hello.proof));
    let Answer::Accepted { incarnation, terms, longest_silence, .. } = encoding::from_slice(accepted).unwrap();
    let proof = auth::prove(token, "server", &hello.nonce);
    let accepted = Answer::Accepted { incarnation, terms, proof, longest_silence };
    write_frame(&mut stream, &encoding::to_vec(&accepted).unwrap()).unwrap();
    stream
}

fn connected(server: &str, token: &str, hello: &[u8]) -> Player {
    let stream = join(server, token, hello);
    let mut player = Player::default();
    player.connect(0, stream.try_clone().unwrap(), stream);
    player
}

// ---- daemons of the version before -----------------------------------------------------------------------------------

#[test]
fn an_agent_of_the_version_before_runs_a_job_of_this_server() {
    let cluster = Cluster::start(0, 2, "");
    let scene = &cluster.scene;
    let job = scene.submit(&RECORDED_JOB);
    let (handshake, frames) = after_handshake(&recorded("agent"), 0, 2);
    let mut agent = connected(cluster.agents_address(), &token(&cluster), &handshake[1].bytes);
    agent.play(&frames);
    assert_eq!(scene.run(&["wait", &job]).code, 0, "{:?}", scene.story(&job));
    let tasks = scene.tasks(&job);
    assert!(tasks.len() == 3 && tasks.iter().all(|task| task.node.as_deref() == Some("node-0")), "{tasks:?}");
    // An administrator sees that it is to be upgraded.
    assert_eq!(scene.json::<Vec<NodeSummary>>(&["node", "list"])[0].program, None);
    let shown = scene.ok(&["node", "info", "node-0"]);
    assert!(shown.contains("\nprogram      not reported: the agent may be of an older version\n"), "{shown}");
}

/// The executor has outlived an agent, and reports the attempt that it runs to the next one.
#[test]
fn an_executor_of_the_version_before_is_taken_over_by_this_agent() {
    let frames = recorded("executor");
    let cluster = Cluster::start(0, 2, "");
    let scene = &cluster.scene;
    let (state, socket) = executor_paths(&scene.path().join("node-0"));
    make_private_dir(&state);
    let listener = UnixListener::bind(&socket).unwrap();
    let serve = |number: usize| {
        let (stream, _) = listener.accept().unwrap();
        let mut executor = Player::default();
        executor.connect(number, stream.try_clone().unwrap(), stream);
        let own: Vec<Frame> = frames.iter().filter(|frame| frame.connection == number).cloned().collect();
        executor.play(&own);
        executor
    };
    let job = scene.submit(&LONG_JOB);
    thread::scope(|scope| {
        let start = || Daemon::start(cluster.agent_command(0)).unwrap();
        let first = scope.spawn(|| serve(0));
        let agent = start();
        let first = first.join().unwrap();
        until_true("the task runs", || scene.tasks(&job)[0].state == TaskState::Running);
        agent.kill();
        drop(first);
        let second = scope.spawn(|| serve(1));
        let _agent = start();
        let _second = second.join().unwrap();
        assert_eq!(scene.run(&["wait", &job]).code, 0, "{:?}", scene.story(&job));
    });
    let tasks = scene.tasks(&job);
    assert_eq!((tasks[0].state, tasks[0].attempts), (TaskState::Succeeded, 1), "{tasks:?}");
}

#[test]
fn a_job_host_of_the_version_before_runs_a_job_on_this_agent() {
    let cluster = Cluster::start(1, 2, WITH_JOB_HOST);
    let scene = &cluster.scene;
    let token = token(&cluster);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (with_server, frames) = after_handshake(&recorded("job-host"), 0, 2);
    let (with_agent, frames) = after_handshake(&frames, 1, 3);
    let hello = with_address(&with_server[1].bytes, &listener.local_addr().unwrap().to_string()).unwrap();
    let mut host = connected(cluster.agents_address(), &token, &hello);
    let first_of_agent = frames.iter().position(|frame| frame.connection == 1).unwrap();
    host.play(&frames[..first_of_agent]);
    let agent = let_in(&listener, &token, &with_agent[0].bytes, &with_agent[2].bytes);
    host.connect(1, agent.try_clone().unwrap(), agent);
    let job = scene.submit(&PLACED_JOB);
    let begins = until("the job at the job host", || submitted_at(&host.heard()));
    let recorded = frames.iter().find_map(|frame| submitted_at(std::slice::from_ref(&frame.bytes))).unwrap();
    let frames: Vec<Frame> = frames.iter().map(|frame| with_instant(frame, recorded, begins)).collect();
    host.play(&frames[first_of_agent..]);
    assert_eq!(scene.run(&["wait", &job]).code, 0, "{:?}", scene.story(&job));
    let manager = scene.job(&job).summary.manager.expect("a job host manages it");
    assert_eq!((manager.number, manager.connected, manager.program), (1, true, None));
    assert_eq!(scene.ok(&["logs", &job]), "placed\n", "the agent ran the task");
}

#[test]
fn a_global_master_of_the_version_before_runs_a_job_on_this_cluster() {
    let cluster = Cluster::start(1, 2, &in_federation("127.0.0.1:1"));
    until_up(&cluster.scene);
    let (handshake, frames) = after_handshake(&recorded("global-master"), 0, 2);
    let mut global = connected(cluster.agents_address(), &token(&cluster), &handshake[1].bytes);
    global.play(&frames);
    let reason = until("the end of the task", || {
        mail(&global.heard()).into_iter().find_map(|envelope| match envelope.message {
            Message::ToJobManager(ToJobManager::Finished { ended, .. }) => Some(ended.reason.clone()),
            _ => None,
        })
    });
    assert_eq!(reason, EndReason::Exit(0));
}

#[test]
fn nodes_and_job_hosts_of_this_version_report_their_programs() {
    let cluster = Cluster::start(1, 2, WITH_JOB_HOST);
    cluster.start_jobs(1);
    let scene = &cluster.scene;
    until_up(scene);
    let own = scene.ok(&["--version"]);
    let own = own.trim().strip_prefix("amalgam ").unwrap();
    assert_eq!(scene.json::<Vec<NodeSummary>>(&["node", "list"])[0].program.as_deref(), Some(own));
    let shown = scene.ok(&["node", "info", "node-0"]);
    assert!(shown.contains(&format!("\nprogram      amalgam {own}\n")), "{shown}");
    let hosts = scene.json::<ClusterSummary>(&["top"]).job_managers;
    assert_eq!(hosts, [ManagerPlace { number: 1, connected: true, program: Some(own.to_owned()) }]);
    let joined = scene.http().events(0).find(|event| event.kind == EventKind::NodeUp).unwrap();
    assert_eq!(joined.program.as_deref(), Some(own));
}

fn until_up(scene: &Scene) {
    until_true("a node is up", || {
        scene.json::<Vec<NodeSummary>>(&["node", "list"]).iter().any(|node| node.state == NodeState::Up)
    });
}

/// When the job was submitted that a server gave a job host.
fn submitted_at(frames: &[Vec<u8>]) -> Option<Instant> {
    mail(frames).into_iter().find_map(|envelope| match envelope.message {
        Message::ToJobManager(ToJobManager::Start { job, .. }) => Some(job.submitted_at),
        _ => None,
    })
}

/// The frame with another instant instead of this one. A job host names the instant of a job's submission with its end.
fn with_instant(frame: &Frame, before: Instant, after: Instant) -> Frame {
    let [before, after] = [before, after].map(|instant| encoding::to_vec(&instant).unwrap());
    assert_eq!(before.len(), after.len());
    let mut bytes = frame.bytes.clone();
    for at in 0..bytes.len().saturating_sub(before.len() - 1) {
        if bytes[at..].starts_with(&before) {
            bytes[at..at + after.len()].copy_from_slice(&after);
        }
    }
    Frame { bytes, ..frame.clone() }
}

/// The messages in frames of a connection between daemons.
fn mail(frames: &[Vec<u8>]) -> Vec<Envelope> {
    #[derive(Deserialize)]
    enum Wire {
        Alive,
        Mail(Vec<Envelope>),
    }
    let envelopes = |frame: &Vec<u8>| match encoding::from_slice(frame) {
        Ok(Wire::Mail(envelopes)) => envelopes,
        _ => Vec::new(),
    };
    frames.iter().flat_map(envelopes).collect()
}

#[test]
fn an_agent_of_a_version_that_is_too_old_is_refused() {
    let cluster = Cluster::start(0, 2, "");
    let mut stream = TcpStream::connect(cluster.agents_address()).unwrap();
    let challenge: Challenge = encoding::from_slice(&read_frame(&mut stream).unwrap()).unwrap();
    let proof = auth::prove(&token(&cluster), "agent", &challenge.nonce);
    let introduction = Introduction::Node { name: "old".to_owned() };
    let hello = Hello { version: WIRE.oldest - 1, introduction, nonce: [0; 32], proof };
    write_frame(&mut stream, &encoding::to_vec(&hello).unwrap()).unwrap();
    let answer = read_frame(&mut stream).unwrap();
    let expected = format!("unsupported protocol version {}; this program supports {WIRE}", WIRE.oldest - 1);
    assert!(String::from_utf8_lossy(&answer).contains(&expected), "{:?}", String::from_utf8_lossy(&answer));
}

// ---- old files -------------------------------------------------------------------------------------------------------

/// Without locks and sockets.
fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_tree(&path, &copy);
        } else if path.is_file() && !path.ends_with("lock") && path.extension().is_none_or(|ending| ending != "lock") {
            fs::copy(&path, &copy).unwrap();
        }
    }
}

/// Nobody else may read it.
fn private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| private(&entry.unwrap().path()));
    }
}

/// With the jobs that [`write_fixtures`] left.
fn check_jobs(scene: &Scene) {
    let states: Vec<(u64, JobState)> = scene.jobs().iter().map(|job| (job.id, job.state)).collect();
    let states: BTreeMap<u64, JobState> = states.into_iter().filter(|(job, _)| *job <= 3).collect();
    assert_eq!(Vec::from_iter(states), [(1, JobState::Succeeded), (2, JobState::Failed), (3, JobState::Held)]);
    assert_eq!(scene.ok(&["logs", "1.main.2"]), "2\n", "output is kept");
    assert_eq!(scene.run(&["wait", "2"]).code, 3);
    assert!(!scene.story("1.main.0").is_empty());
}

#[test]
fn a_state_directory_of_the_version_before_is_replaced_by_a_snapshot() {
    let scene = Scene::new();
    let (before, log) = (fixtures().join("state/log"), scene.state().join("log"));
    copy_tree(&fixtures().join("state"), &scene.state());
    private(&scene.state());
    let (older, older_segments) = (files(&before, "snapshot-"), files(&before, "segment-"));
    assert!(older.len() == 1 && older_segments.len() == 2, "{older:?} {older_segments:?}");
    scene.start_dev(&[]);
    until_true("the store is upgraded", || fs::read_to_string(log.join("format")).unwrap() == STORE.line("store"));
    let newer = files(&log, "snapshot-");
    assert!(newer.len() == 1 && newer > older, "{newer:?}");
    assert!(files(&log, "segment-").starts_with(&older_segments), "they are kept for stories");
    check_jobs(&scene);
    // It is read once more, without anything that the version before has written but stories.
    scene.kill_daemon();
    scene.start_dev(&[]);
    check_jobs(&scene);
    let holders: Vec<Value> = scene.json(&["token", "list"]);
    assert!(holders.iter().any(|held| held["user"] == "bob"), "{holders:?}");
    // The token of the version before is still that of its user, and the held job runs now.
    scene.ok(&["release", "3"]);
    assert_eq!(scene.run(&["wait", "3"]).code, 0);
    assert_eq!(scene.submit(&["--", "true"]), "4");
    assert_eq!(scene.run(&["wait", "4"]).code, 0);
    scene.kill_daemon();
    scene.start_dev(&[]);
    assert_eq!(scene.jobs().len(), 4);
}

#[test]
fn the_log_of_a_job_host_of_the_version_before_is_replaced_by_a_snapshot() {
    let cluster = Cluster::start(0, 2, WITH_JOB_HOST);
    let home = cluster.jobs_home(1);
    copy_tree(&fixtures().join("job-host"), &home);
    private(&home);
    let log = home.join("log");
    // Its server is not connected, so it uses the stored terms.
    let start = || {
        let command = cluster.jobs_command_at(1, &home, "127.0.0.1:1", &format!("127.0.0.1:{}", free_port()));
        Daemon::start(command).unwrap_or_else(|output| panic!("no job host: {output}"))
    };
    let daemon = start();
    until_true("the store is upgraded", || fs::read_to_string(log.join("format")).unwrap() == STORE.line("store"));
    daemon.kill();
    start().kill();
    let (_store, recovered) = Store::open(&log, Options::default()).unwrap();
    assert!(!recovered.snapshot.is_empty(), "it has the job that ran");
}

#[test]
fn the_log_of_a_global_master_of_the_version_before_is_replaced_by_a_snapshot() {
    let scene = Scene::new();
    let home = scene.path().join("global-0");
    copy_tree(&fixtures().join("global-master"), &home);
    private(&home);
    let log = home.join("log");
    for _ in 0..2 {
        let command = global_command(&scene, &home, "127.0.0.1:1");
        let daemon = Daemon::start(command).unwrap_or_else(|output| panic!("no global master: {output}"));
        until_true("the store is upgraded", || fs::read_to_string(log.join("format")).unwrap() == STORE.line("store"));
        let jobs: Vec<Value> = scene.json(&["list", "--all", "--state-dir", home.to_str().unwrap()]);
        let jobs: Vec<_> = jobs.iter().map(|job| (&job["name"], &job["state"])).collect();
        assert_eq!(jobs, [(&json!("placed"), &json!("succeeded"))]);
        assert_eq!(files(&log, "snapshot-").len(), 1);
        daemon.kill();
    }
}

/// The names of files of a log that start with this, in order.
fn files(log: &Path, prefix: &str) -> Vec<String> {
    let names = fs::read_dir(log).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> = names.filter(|name| name.starts_with(prefix) && !name.contains('.')).collect();
    names.into_iter().collect()
}

#[test]
fn a_journal_of_the_version_before_is_replayed() {
    let scene = Scene::new();
    let journals = fixtures().join("journals");
    let output = scene.ok(&["sim", "replay", journals.to_str().unwrap()]);
    let (line, more) = output.split_once('\n').expect("a line for each process");
    let events: u32 = line.split_whitespace().nth(1).and_then(|count| count.parse().ok()).expect("a count of events");
    assert!(events > 20 && line.ends_with("the same effects") && more.is_empty(), "{output}");
}

#[test]
fn tokens_of_the_version_before_are_accepted_and_kept_by_changes() {
    let before = fs::read_to_string(fixtures().join(Tokens::FILE)).unwrap();
    let scene = Scene::new();
    let file = scene.state().join(Tokens::FILE);
    fs::write(&file, &before).unwrap();
    private(&scene.state());
    scene.start_dev(&[]);
    scene.ok(&["token", "add", "carol"]);
    scene.ok(&["token", "rotate", "eve"]);
    scene.ok(&["token", "rotate", "--agent", "vm-1"]);
    let after = fs::read_to_string(&file).unwrap();
    let lost: Vec<&str> = before.lines().filter(|line| !after.contains(line)).collect();
    assert!(before.contains("agent = ") && before.contains("until = ") && lost.is_empty(), "{lost:?}");
    // All requests use the token of `ada`, which the version before made.
    let holders: Vec<Value> = scene.json(&["token", "list"]);
    let names = holders.iter().filter_map(|held| held["user"].as_str().or(held["agent"].as_str()));
    assert_eq!(BTreeSet::from_iter(names), BTreeSet::from(["ada", "bob", "carol", "eve", "vm-1"]));
}

#[test]
fn a_job_file_of_the_version_before_is_accepted() {
    let scene = Scene::dev(&[]);
    let file = fixtures().join("job.toml");
    let job = scene.submit(&[file.to_str().unwrap()]);
    assert_eq!(scene.run(&["wait", &job]).code, 0);
}

// ---- making the fixtures of the next version -------------------------------------------------------------------------

/// Run with the program of the version that the fixtures are to be of, before anything of its formats is changed:
/// `AMALGAM_FIXTURES=crates/amalgam/tests/fixtures/vN cargo nextest run -p amalgam --run-ignored only write_fixtures`
#[test]
#[ignore = "writes the fixtures of a version"]
fn write_fixtures() {
    let directory = std::env::var_os("AMALGAM_FIXTURES").expect("AMALGAM_FIXTURES names the directory to write");
    let directory = PathBuf::from(directory);
    fs::create_dir_all(&directory).unwrap();

    let streams = [
        ("agent", record_agent()),
        ("executor", record_executor()),
        ("job-host", record_job_host()),
        ("global-master", record_global()),
    ];
    for (daemon, frames) in streams {
        recording::save(&frames, &directory.join(format!("{daemon}.frames")));
    }

    write_states_of_others(&directory);
    let scene = Scene::dev(&[]);
    scene.ok(&["run", "--name", "array", "--array", "0-4", "--", "sh", "-c", "echo $AMALGAM_INDEX"]);
    scene.run(&["run", "--", "sh", "-c", "exit 3"]);
    let stop = || {
        let daemon = scene.daemons.borrow_mut().pop().unwrap();
        assert!(daemon.stop().success());
        until_true("the executor has ended", || !scene.state().join("executor/socket").exists());
    };
    stop();
    copy_tree(&scene.journals(), &directory.join("journals"));
    start_new_segment(&scene.state().join("log"));
    scene.start_dev(&[]);
    until_true("a snapshot is written", || files(&scene.state().join("log"), "snapshot-").len() == 1);
    scene.submit(&["--hold", "--workdir", "own", "--", "true"]);
    scene.ok(&["token", "add", "bob"]);
    check_jobs(&scene);
    for (name, document) in documents::documents(&scene) {
        fs::write(directory.join(name), document.to_string() + "\n").unwrap();
    }
    stop();
    copy_tree(&scene.state(), &directory.join("state"));

    // All kinds of entries.
    scene.ok(&["token", "add", "eve", "--admin"]);
    scene.ok(&["token", "add", "--agent", "vm-1"]);
    scene.ok(&["token", "rotate", "bob"]);
    fs::copy(scene.state().join(Tokens::FILE), directory.join(Tokens::FILE)).unwrap();
}

/// Makes the next start write a snapshot.
fn start_new_segment(log: &Path) {
    let (mut store, _) = Store::open(log, Options::default()).unwrap();
    drop(store.start_snapshot().unwrap());
}

/// The state directories of a job host with a running job, and of a global master with an ended one.
fn write_states_of_others(directory: &Path) {
    let cluster = Cluster::start(1, 2, WITH_JOB_HOST);
    let scene = &cluster.scene;
    cluster.start_jobs(1);
    until_up(scene);
    let job = scene.submit(&PLACED_JOB);
    assert_eq!(scene.run(&["wait", &job]).code, 0);
    let job = scene.submit(&LONG_JOB);
    until_true("the task runs", || scene.tasks(&job)[0].state == TaskState::Running);
    cluster.kill_jobs(1);
    scene.write("go", "");
    copy_tree(&cluster.jobs_home(1), &directory.join("job-host"));

    let cluster = Cluster::start(1, 2, &in_federation("127.0.0.1:1"));
    let scene = &cluster.scene;
    until_up(scene);
    let home = scene.path().join("global-0");
    fs::create_dir(&home).unwrap();
    fs::copy(scene.state().join(Tokens::FILE), home.join(Tokens::FILE)).unwrap();
    let global = Daemon::start(global_command(scene, &home, cluster.agents_address())).unwrap();
    let at = home.to_str().unwrap();
    assert_eq!(scene.run(&[&["run", "--state-dir", at], &PLACED_JOB[..]].concat()).code, 0);
    assert!(global.stop().success());
    copy_tree(&home, &directory.join("global-master"));
}

fn global_command(scene: &Scene, home: &Path, master: &str) -> Command {
    let config = scene.write("global.toml", &in_federation(master));
    let mut command = scene.command(&["global", "--listen", "127.0.0.1:0"]);
    command.arg("--config").arg(config).arg("--state-dir").arg(home);
    command
}

/// How long a recorded daemon has for messages that follow the end of its job.
const SETTLED: Duration = Duration::from_millis(500);

fn record_agent() -> Vec<Frame> {
    let (recorder, cluster) = (Recorder::default(), Cluster::start(0, 2, ""));
    let server = recorder.before(0, Side::Recorded, cluster.agents_address(), None);
    let job = cluster.scene.submit(&RECORDED_JOB);
    let _agent = Daemon::start(cluster.agent_command_at(0, &server)).unwrap();
    assert_eq!(cluster.scene.run(&["wait", &job]).code, 0);
    recorder.frames()
}

fn record_executor() -> Vec<Frame> {
    let (recorder, cluster) = (Recorder::default(), Cluster::start(0, 2, ""));
    let scene = &cluster.scene;
    let home = scene.path().join("node-0");
    let (state, socket) = executor_paths(&home);
    make_private_dir(&state);
    let config = ExecutorConfig {
        socket: state.join("recorded"),
        state,
        enforcement: EnforcementChoice::Auto,
        idle_exit: Duration::from_secs(60),
        leash: None,
        run_as: RunAs::Agent,
        devices: Vec::new(),
    };
    let mut command = scene.command(&["executor"]);
    assert!(command.args(config.arguments()).status().unwrap().success());
    recorder.before_socket(&socket, &config.socket);
    let job = scene.submit(&LONG_JOB);
    let agent = Daemon::start(cluster.agent_command(0)).unwrap();
    until_true("the task runs", || scene.tasks(&job)[0].state == TaskState::Running);
    agent.kill();
    let _agent = Daemon::start(cluster.agent_command(0)).unwrap();
    thread::sleep(SETTLED);
    scene.write("go", "");
    assert_eq!(scene.run(&["wait", &job]).code, 0);
    assert_eq!(scene.tasks(&job)[0].attempts, 1);
    recorder.frames()
}

fn record_job_host() -> Vec<Frame> {
    let (recorder, cluster) = (Recorder::default(), Cluster::start(1, 2, WITH_JOB_HOST));
    let listen = format!("127.0.0.1:{}", free_port());
    let for_agents = recorder.before(1, Side::Other, &listen, None);
    let edit: recording::Edit = with_address;
    let server = recorder.before(0, Side::Recorded, cluster.agents_address(), Some((edit, for_agents)));
    let home = cluster.jobs_home(1);
    let _host = Daemon::start(cluster.jobs_command_at(1, &home, &server, &listen)).unwrap();
    until_true("the agent is connected", || recorder.frames().iter().filter(|frame| frame.connection == 1).count() > 3);
    thread::sleep(SETTLED);
    let job = cluster.scene.submit(&PLACED_JOB);
    assert_eq!(cluster.scene.run(&["wait", &job]).code, 0);
    thread::sleep(SETTLED);
    recorder.frames()
}

fn record_global() -> Vec<Frame> {
    let (recorder, cluster) = (Recorder::default(), Cluster::start(1, 2, &in_federation("127.0.0.1:1")));
    let scene = &cluster.scene;
    until_up(scene);
    let master = recorder.before(0, Side::Recorded, cluster.agents_address(), None);
    let home = scene.path().join("global-0");
    fs::create_dir(&home).unwrap();
    fs::copy(scene.state().join(Tokens::FILE), home.join(Tokens::FILE)).unwrap();
    let _global = Daemon::start(global_command(scene, &home, &master)).unwrap();
    let at = home.to_str().unwrap();
    let result = scene.run(&[&["run", "--state-dir", at], &PLACED_JOB[..]].concat());
    assert_eq!((result.code, &result.out[..]), (0, "placed\n"), "{result:?}");
    thread::sleep(SETTLED);
    recorder.frames()
}

fn make_private_dir(path: &Path) {
    fs::create_dir_all(path).unwrap();
    private(path);
}
