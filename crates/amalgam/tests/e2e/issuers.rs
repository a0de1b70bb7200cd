//! Users that an issuer's tokens name (ADR 82): they submit with such a token, and are the users of their jobs.

use crate::support::{Cluster, CommandOutput, Scene, result, until, until_true};
use amalgam_daemon::api::{JobDetail, JobState};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData, SigningKey};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

const ISSUER: &str = "https://id.example.org";

fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A key of the issuer with this `kid`.
struct Key(KeyPair, &'static str);

impl Key {
    fn new(id: &'static str) -> Key {
        Key(KeyPair::generate_for(&PKCS_ED25519).unwrap(), id)
    }

    fn jwks(&self) -> String {
        let public = encoded(self.0.der_bytes());
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": self.1, "x": public}]}).to_string()
    }

    /// A token with these changes of claims that are valid.
    fn token(&self, changes: &Value) -> String {
        let header = json!({"alg": "EdDSA", "typ": "JWT", "kid": self.1});
        let message = message(&header, changes);
        let signature = self.0.sign(message.as_bytes()).unwrap();
        format!("{message}.{}", encoded(&signature))
    }
}

fn message(header: &Value, changes: &Value) -> String {
    let mut claims = json!({"iss": ISSUER, "aud": "amalgam", "sub": "grace", "exp": now() + 600});
    claims.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    format!("{}.{}", encoded(header.to_string().as_bytes()), encoded(claims.to_string().as_bytes()))
}

fn section(issuer: &str, jwks: &str) -> String {
    format!("[[oidc]]\nissuer = '{issuer}'\naudience = 'amalgam'\njwks = '{jwks}'\noperators = ['operators']\n")
}

fn with_token(scene: &Scene, token: &str, arguments: &[&str]) -> CommandOutput {
    let mut command = scene.command(arguments);
    command.env("AMALGAM_TOKEN", token);
    result(command)
}

#[track_caller]
fn ok(scene: &Scene, token: &str, arguments: &[&str]) -> String {
    let done = with_token(scene, token, arguments);
    assert_eq!(done.code, 0, "{arguments:?}: {done:?}");
    done.out
}

/// Submits with the token, and returns the job's user.
#[track_caller]
fn user_of_job(scene: &Scene, token: &str) -> String {
    let id = ok(scene, token, &["submit", "-q", "--", "true"]);
    ok(scene, token, &["wait", id.trim()]);
    let jobs: Vec<JobDetail> = serde_json::from_str(&ok(scene, token, &["info", id.trim(), "--json"])).unwrap();
    assert_eq!(jobs[0].summary.state, JobState::Succeeded);
    jobs[0].summary.user.clone()
}

fn audit(state: &Path) -> Vec<Value> {
    let text = fs::read_to_string(state.join("audit.log")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_user_whom_a_token_of_an_issuer_names_submits_and_all_other_tokens_are_refused() {
    let (key, stranger) = (Key::new("one"), Key::new("one"));
    let files = tempfile::tempdir().unwrap();
    let jwks = files.path().join("keys.json");
    fs::write(&jwks, key.jwks()).unwrap();
    let cluster = Cluster::start(1, 2, &section(ISSUER, jwks.to_str().unwrap()));
    let scene = &cluster.scene;
    let grace = key.token(&json!({}));
    assert_eq!(user_of_job(scene, &grace), "grace");
    // Her own job, and not one of somebody else.
    assert_eq!(ok(scene, &grace, &["list", "--all", "-q"]).lines().count(), 1);
    let drained = with_token(scene, &grace, &["node", "drain", "n0"]);
    assert!(drained.code != 0, "a user is no operator: {drained:?}");
    let submitted = audit(&scene.state());
    let hers =
        |line: &&Value| line["user"] == "grace" && line["token"] == format!("oidc {ISSUER}") && line["result"] == "ok";
    assert!(submitted.iter().any(|line| hers(&line)), "{submitted:?}");

    let none = format!("{}.", message(&json!({"alg": "none", "kid": "one"}), &json!({})));
    let ended = key.token(&json!({"exp": now() - 120}));
    for (what, token, why) in [
        ("expired", ended, "the token has expired"),
        ("wrong audience", key.token(&json!({"aud": "another"})), "the token is for another audience than `amalgam`"),
        ("wrong issuer", key.token(&json!({"iss": "https://evil"})), "no tokens of the issuer `https://evil`"),
        ("other key", stranger.token(&json!({})), "the signature of the token is wrong"),
        ("unknown key", Key::new("two").token(&json!({})), "a key that the issuer has not published"),
        ("no signature", none, "an algorithm that is not accepted"),
        ("no user", key.token(&json!({"sub": "a\nb"})), "the token names no valid user"),
    ] {
        let refused = with_token(scene, &token, &["submit", "-q", "--", "true"]);
        assert!(refused.code != 0 && refused.err.contains(why), "{what}: {refused:?}");
        assert!(refused.err.contains("help: ") && !refused.err.contains(&token), "{what}: {refused:?}");
    }
    assert_eq!(scene.jobs().len(), 1);
    let refused = audit(&scene.state());
    let is_refused = |line: &&Value| line["user"].is_null() && line["status"] == 401;
    assert_eq!(refused.iter().filter(is_refused).count(), 7, "{refused:?}");
}

#[test]
fn keys_of_an_issuer_are_fetched_from_its_url() {
    let key = Key::new("url");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/keys", listener.local_addr().unwrap());
    let text = key.jwks();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", text.len());
            let _ = stream.write_all((head + &text).as_bytes());
        }
    });
    let cluster = Cluster::start(1, 2, &section(ISSUER, &url));
    let scene = &cluster.scene;
    let operator = key.token(&json!({"sub": "kay", "groups": ["operators"]}));
    // No request waits for the issuer, so the first ones may be too early.
    until_true("the keys", || with_token(scene, &operator, &["list"]).code == 0);
    assert_eq!(user_of_job(scene, &operator), "kay");
    let node = until("the node", || {
        let nodes: Vec<Value> = serde_json::from_str(&ok(scene, &operator, &["node", "list", "--json"])).ok()?;
        Some(nodes.first()?["name"].as_str()?.to_owned())
    });
    ok(scene, &operator, &["node", "drain", &node]);
    let lines = audit(&scene.state());
    assert!(
        lines.iter().any(|line| line["user"] == "kay" && line["what"] == "drain node 0" && line["result"] == "ok"),
        "{lines:?}"
    );
}

#[test]
fn a_reload_adds_and_removes_issuers_and_ends_what_their_users_read() {
    let key = Key::new("one");
    let files = tempfile::tempdir().unwrap();
    let jwks = files.path().join("keys.json");
    fs::write(&jwks, key.jwks()).unwrap();
    let cluster = Cluster::start(1, 2, "kept_jobs = 50\n");
    let scene = &cluster.scene;
    let configure = |text: &str| scene.write("server.toml", &format!("kept_jobs = 50\n{text}"));
    let grace = key.token(&json!({}));
    assert!(with_token(scene, &grace, &["list"]).err.contains("does not know the token"));
    configure(&section(ISSUER, jwks.to_str().unwrap()));
    let reloaded = scene.ok(&["reload"]);
    assert!(reloaded.contains("oidc.https://id.example.org.audience") && !reloaded.contains("restart"), "{reloaded}");
    assert_eq!(user_of_job(scene, &grace), "grace");
    // A file that cannot be read changes nothing.
    configure(&section(ISSUER, "/nowhere/keys.json"));
    let refused = scene.run(&["reload"]);
    assert!(refused.code != 0 && refused.err.contains("cannot use /nowhere/keys.json"), "{refused:?}");
    ok(scene, &grace, &["list"]);

    let id = ok(scene, &grace, &["submit", "-q", "--", "sh", "-c", "echo runs; sleep 60"]);
    let mut follows = scene.command(&["logs", "--follow", id.trim()]);
    let printed = scene.path().join("printed");
    follows.env("AMALGAM_TOKEN", &grace).stdout(fs::File::create(&printed).unwrap()).stderr(Stdio::piped());
    let follows = follows.spawn().unwrap();
    until_true("output of the task", || fs::read_to_string(&printed).unwrap() == "runs\n");
    configure("");
    scene.ok(&["reload"]);
    assert!(with_token(scene, &grace, &["list"]).err.contains("does not know the token"));
    let ended = follows.wait_with_output().unwrap();
    assert!(!ended.status.success() && String::from_utf8_lossy(&ended.stderr).contains("token"), "{ended:?}");
    scene.ok(&["cancel", id.trim()]);
}
