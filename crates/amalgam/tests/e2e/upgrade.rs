//! Daemons, files and clients of the version before meet this one. The fixtures were made by that version, with the ignored test
//! below (docs/formats.md).

use crate::support::recording::{self, Frames, Recorder, Side, read_frame, write_frame};
use crate::support::{Cluster, Daemon, Scene, until_true};
use amalgam_daemon::api::JobState;
use amalgam_daemon::versions::{STORE, WIRE};
use amalgam_daemon::{auth, encoding};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The version of the wire of the program that made the fixtures: the one before ours.
const BEFORE: u32 = 32;

/// What the recorded agent's server ran.
const RECORDED_JOB: [&str; 8] = ["--name", "recorded", "--array", "0-2", "--", "sh", "-c", "echo $AMALGAM_INDEX"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/v{BEFORE}"))
}

// ---- the handshake, as it was in that version ------------------------------------------------------------------------

#[derive(Deserialize)]
struct Challenge {
    versions: Versions,
    nonce: [u8; 32],
}

#[derive(Deserialize)]
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
}

// ---- an old agent ----------------------------------------------------------------------------------------------------

/// Says what the agent said, each frame after as many of the server's as it had heard.
struct OldAgent {
    heard: Arc<AtomicUsize>,
    stream: TcpStream,
}

impl OldAgent {
    fn join(server: &str, token: &str, hello: &[u8]) -> OldAgent {
        let mut stream = TcpStream::connect(server).unwrap();
        let challenge: Challenge = encoding::from_slice(&read_frame(&mut stream).unwrap()).unwrap();
        assert!((challenge.versions.oldest..=challenge.versions.newest).contains(&BEFORE));
        let mut hello: Hello = encoding::from_slice(hello).unwrap();
        assert_eq!(hello.version, BEFORE, "the recorded agent is of the version before");
        hello.proof = auth::prove(token, "agent", &challenge.nonce);
        write_frame(&mut stream, &encoding::to_vec(&hello).unwrap()).unwrap();
        let heard = Arc::new(AtomicUsize::new(1));
        let (counter, mut from) = (Arc::clone(&heard), stream.try_clone().unwrap());
        thread::spawn(move || {
            while read_frame(&mut from).is_ok() {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        });
        OldAgent { heard, stream }
    }

    fn say(mut self, frames: &Frames) -> OldAgent {
        // The challenge was heard, and the hello said.
        let (mut before, mut said_hello) = (0, false);
        for (side, frame) in frames {
            match side {
                Side::Server => before += 1,
                Side::Agent if !said_hello => said_hello = true,
                Side::Agent => {
                    // The server may put into one frame what it sent in two.
                    let deadline = Instant::now() + Duration::from_secs(2);
                    while self.heard.load(Ordering::SeqCst) < before && Instant::now() < deadline {
                        thread::sleep(Duration::from_millis(5));
                    }
                    write_frame(&mut self.stream, frame).expect("the server listens");
                }
            }
        }
        self
    }
}

#[test]
fn an_agent_of_the_version_before_runs_a_job_of_this_server() {
    let frames = recording::load(&fixtures().join("agent.frames"));
    let cluster = Cluster::start(0, 2, "");
    let scene = &cluster.scene;
    let token = auth::client_token(&scene.state().join("tokens.toml"), "ada").unwrap();
    let job = scene.submit(&RECORDED_JOB);
    let (_, hello) = frames.iter().find(|(side, _)| *side == Side::Agent).unwrap();
    let agent = OldAgent::join(cluster.agents_address(), &token, hello).say(&frames);
    assert_eq!(scene.run(&["wait", &job]).code, 0, "{:?}", scene.story(&job));
    let tasks = scene.tasks(&job);
    assert!(tasks.len() == 3 && tasks.iter().all(|task| task.node.as_deref() == Some("node-0")), "{tasks:?}");
    drop(agent);
}

#[test]
fn an_agent_of_a_version_that_is_too_old_is_refused() {
    let cluster = Cluster::start(0, 2, "");
    let token = auth::client_token(&cluster.scene.state().join("tokens.toml"), "ada").unwrap();
    let mut stream = TcpStream::connect(cluster.agents_address()).unwrap();
    let challenge: Challenge = encoding::from_slice(&read_frame(&mut stream).unwrap()).unwrap();
    let proof = auth::prove(&token, "agent", &challenge.nonce);
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
fn a_state_directory_of_the_version_before_is_read_and_written_on() {
    let scene = Scene::new();
    copy_tree(&fixtures().join("state"), &scene.state());
    private(&scene.state());
    scene.start_dev(&[]);
    check_jobs(&scene);
    assert_eq!(fs::read_to_string(scene.state().join("log/format")).unwrap(), STORE.line("store"));
    // The token of the version before is still that of its user, and the held job runs now.
    scene.ok(&["release", "3"]);
    assert_eq!(scene.run(&["wait", "3"]).code, 0);
    assert_eq!(scene.submit(&["--", "true"]), "4");
    assert_eq!(scene.run(&["wait", "4"]).code, 0);
    // What both versions wrote is read once more.
    scene.kill_daemon();
    scene.start_dev(&[]);
    assert_eq!(scene.jobs().len(), 4);
}

#[test]
fn a_journal_of_the_version_before_is_replayed() {
    let scene = Scene::new();
    let journals = fixtures().join("journals");
    let said = scene.ok(&["sim", "replay", journals.to_str().unwrap()]);
    let (line, more) = said.split_once('\n').expect("a line for each process");
    let events: u32 = line.split_whitespace().nth(1).and_then(|count| count.parse().ok()).expect("a count of events");
    assert!(events > 20 && line.ends_with("the same effects") && more.is_empty(), "{said}");
}

#[test]
fn a_job_file_of_the_version_before_is_accepted() {
    let scene = Scene::dev(&[]);
    let file = fixtures().join("job.toml");
    let job = scene.submit(&[file.to_str().unwrap()]);
    assert_eq!(scene.run(&["wait", &job]).code, 0);
}

// ---- what clients rely on --------------------------------------------------------------------------------------------

/// Whether everything of the older document is in the newer one. Lists may gain elements, but for those of keys that a client has to
/// write in a job file.
fn check_grown(older: &Value, newer: &Value, at: &str) -> Result<(), String> {
    match (older, newer) {
        (Value::Object(older), Value::Object(newer)) => {
            // Texts for people may change; what has one of these names and is no text is a key of its own.
            let is_text = |(key, value): &(&String, &Value)| {
                value.is_string() && matches!(&key[..], "description" | "summary" | "version")
            };
            older.iter().filter(|entry| !is_text(entry)).try_for_each(|(key, value)| {
                let at = format!("{at}/{key}");
                check_grown(value, newer.get(key).ok_or_else(|| format!("{at} was removed"))?, &at)
            })
        }
        (Value::Array(older), Value::Array(newer)) => {
            if at.starts_with(JOB_FILE) && at.ends_with("/required") && newer.len() > older.len() {
                return Err(format!("{at}: more is required"));
            }
            older.iter().try_for_each(|value| {
                let has_grown = |other: &Value| check_grown(value, other, at).is_ok();
                if newer.iter().any(has_grown) { Ok(()) } else { Err(format!("{at}: {value} was removed or changed")) }
            })
        }
        (older, newer) if older == newer => Ok(()),
        (older, newer) => Err(format!("{at} was {older} and is {newer}")),
    }
}

const OPENAPI: &str = "openapi.json";
const JOB_FILE: &str = "job-file.schema.json";

fn documents(scene: &Scene) -> [(&'static str, Value); 2] {
    let job_file = serde_json::from_str(&scene.ok(&["config", "schema"])).unwrap();
    [(OPENAPI, scene.http().get("/openapi.json").1), (JOB_FILE, job_file)]
}

#[test]
fn answers_and_job_files_only_grow() {
    let scene = Scene::dev(&[]);
    for (name, newer) in documents(&scene) {
        let older = fs::read_to_string(fixtures().join(name)).unwrap();
        let older: Value = serde_json::from_str(&older).unwrap();
        check_grown(&older, &newer, name).unwrap_or_else(|what| panic!("{what}"));
    }
}

#[test]
fn a_document_that_lacks_something_is_noticed() {
    let older = json!({"properties": {"version": {"type": "string"}}, "oneOf": [{"type": "null"}, {"type": "array", "items": {"type": "integer"}}],
        "required": ["a"]});
    let check = |newer: &Value| check_grown(&older, newer, JOB_FILE);
    assert_eq!(check(&older), Ok(()));
    let mut newer = older.clone();
    newer["properties"]["more"] = json!({"type": "boolean"});
    newer["oneOf"].as_array_mut().unwrap().push(json!({"type": "number"}));
    assert_eq!(check(&newer), Ok(()));
    let changed = |change: fn(&mut Value)| {
        let mut newer = older.clone();
        change(&mut newer);
        check(&newer).unwrap_err()
    };
    assert!(changed(|newer| newer["properties"] = json!({})).contains("version was removed"));
    assert!(changed(|newer| newer["oneOf"][1]["items"]["type"] = json!("string")).contains("removed or changed"));
    assert!(changed(|newer| newer["oneOf"] = json!([{"type": "null"}])).contains("removed or changed"));
    assert!(changed(|newer| newer["required"] = json!(["a", "b"])).contains("more is required"));
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

    let cluster = Cluster::start(0, 2, "");
    let recorder = Recorder::before(cluster.agents_address());
    let job = cluster.scene.submit(&RECORDED_JOB);
    let agent = Daemon::start(cluster.agent_command_at(0, &recorder.address)).unwrap();
    assert_eq!(cluster.scene.run(&["wait", &job]).code, 0);
    let frames = recorder.frames();
    drop(agent);
    recording::save(&frames, &directory.join("agent.frames"));

    let scene = Scene::dev(&[]);
    scene.ok(&["run", "--name", "array", "--array", "0-4", "--", "sh", "-c", "echo $AMALGAM_INDEX"]);
    scene.run(&["run", "--", "sh", "-c", "exit 3"]);
    scene.submit(&["--hold", "--workdir", "own", "--", "true"]);
    scene.ok(&["token", "add", "bob"]);
    check_jobs(&scene);
    for (name, document) in documents(&scene) {
        fs::write(directory.join(name), document.to_string() + "\n").unwrap();
    }
    let daemon = scene.daemons.borrow_mut().pop().unwrap();
    assert!(daemon.stop().success());
    until_true("the executor has ended", || !scene.state().join("executor/socket").exists());
    copy_tree(&scene.state(), &directory.join("state"));
    copy_tree(&scene.journals(), &directory.join("journals"));
}
