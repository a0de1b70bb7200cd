//! Who may do what through the public interface, and what it promises to programs.

use crate::running::AWAIT_GO;
use crate::support::{Cluster, Scene, job_spec, told, until_true};
use amalgam_daemon::api::{Event, EventKind, JobState};
use amalgam_daemon::transport::{Introduction, JoinError, Secrets, join};
use serde_json::Value;

#[test]
fn a_repeated_submission_makes_one_job() {
    let scene = Scene::dev(&[]);
    let http = scene.http();
    let spec = job_spec(&scene, &["sh", "-c", "echo ran >> ran"]);
    let key = [("Idempotency-Key", "this-once")];
    let (first, one) = http.post("/v1/jobs", &key, &spec);
    assert_eq!(first, 201);
    let (_, again) = http.post("/v1/jobs", &key, &spec);
    assert_eq!(one["job"], again["job"]);
    let (_, other) = http.post("/v1/jobs", &[("Idempotency-Key", "another")], &spec);
    assert_ne!(one["job"], other["job"]);
    scene.ok(&["wait", "1-2"]);

    // Also when the server was killed in between.
    scene.kill_daemon();
    scene.start_dev(&[]);
    let (_, after_restart) = scene.http().post("/v1/jobs", &key, &spec);
    assert_eq!(one["job"], after_restart["job"]);
    assert_eq!((scene.jobs().len(), scene.read("ran").lines().count()), (2, 2));
}

#[test]
fn events_go_on_where_they_were_left() {
    let scene = Scene::dev(&[]);
    let http = scene.http();
    scene.ok(&["run", "--", "true"]);
    let all: Vec<Event> = http.events(0).take_while(|event| event.kind != EventKind::JobEnded).collect();
    assert!(all.windows(2).all(|pair| pair[0].sequence < pair[1].sequence), "{all:#?}");
    for kind in [EventKind::JobSubmitted, EventKind::JobStarted, EventKind::AttemptStarted, EventKind::TaskEnded] {
        assert_eq!(all.iter().filter(|event| event.kind == kind).count(), 1, "{kind}: {all:#?}");
    }
    let middle = all[all.len() / 2].sequence;
    let rest: Vec<Event> = http.events(middle).take_while(|event| event.kind != EventKind::JobEnded).collect();
    assert_eq!(rest, all[all.len() / 2..]);

    // A stream that is open sees what happens.
    let open = http.events(all.last().unwrap().sequence + 1);
    scene.run(&["run", "--", "sh", "-c", "exit 5"]);
    let ended: Vec<Event> = open.filter(|event| event.kind == EventKind::TaskEnded).take(1).collect();
    assert_eq!((ended[0].job, ended[0].exit_code), (Some(2), Some(5)));
}

#[test]
fn users_see_all_jobs_and_touch_their_own() {
    let scene = Scene::dev(&[]);
    let token = scene.ok(&["token", "add", "grace"]);
    let grace = |arguments: &[&str]| {
        let mut command = scene.command(arguments);
        command.env("AMALGAM_TOKEN", token.trim()).env("USER", "grace");
        told(command)
    };
    let adas = scene.submit(&["--", "sh", "-c", &format!("echo secret; {AWAIT_GO}")]);
    until_true("output", || scene.ok(&["logs", &adas]) == "secret\n");

    assert!(grace(&["list"]).out.contains("ada"), "another user's job is listed");
    for verb in ["cancel", "hold", "logs", "info", "story", "rerun-failed"] {
        let told = grace(&[verb, &adas]);
        assert_eq!(told.code, 1, "{verb}: {told:?}");
        assert!(told.err.contains("belongs to ada") && !told.out.contains("secret"), "{verb}: {told:?}");
    }
    let told = grace(&["node", "drain", "0"]);
    assert!(told.code == 1 && told.err.contains("not an administrator"), "{told:?}");
    let events = scene.http().with_token(token.trim()).events(0);
    let graces = grace(&["submit", "-q", "--", "sh", "-c", AWAIT_GO]).out.trim().to_owned();
    let seen: Vec<Event> = events.take_while(|event| event.kind != EventKind::AttemptStarted).collect();
    assert!(seen.iter().all(|event| event.user.as_deref() != Some("ada")), "{seen:#?}");

    // The first user is an administrator.
    scene.ok(&["cancel", &graces]);
    assert_eq!(scene.job(&adas).summary.state, JobState::Running);
    scene.write("go", "");
    scene.ok(&["wait", &adas]);
    assert_eq!(scene.job(&graces).summary.user, "grace");
}

#[test]
fn nobody_gets_in_without_a_token() {
    let scene = Scene::dev(&[]);
    let http = scene.http();
    for path in ["/v1/jobs", "/v1/events", "/v1/nodes", "/metrics", "/openapi.json", "/v1/nothing"] {
        assert_eq!(http.without_token(path).0, 401, "{path}");
        assert_eq!(http.with_token("wrong").get(path).0, 401, "{path}");
    }
    assert_eq!((http.without_token("/healthz").0, http.without_token("/readyz").0), (200, 200));
    assert_eq!(http.post("/v1/jobs", &[], &Value::Null).0, 400);
    assert_eq!(http.get("/v1/nothing").0, 404);

    let mut wrong = scene.command(&["list"]);
    wrong.env("AMALGAM_TOKEN", "wrong");
    let refused = told(wrong);
    assert!(refused.code == 1 && refused.err.contains("not known to this server\n  help: "), "{refused:?}");
    let mut missing = scene.command(&["list", "--server", &http.address]);
    missing.env("AMALGAM_STATE", scene.path().join("tmp"));
    let refused = told(missing);
    assert!(refused.code == 2 && refused.err.contains("no token"), "{refused:?}");

    // A file that others can read is no secret.
    let tokens = scene.state().join("tokens.toml");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&tokens).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o644)).unwrap();
    let told = scene.run(&["list"]);
    assert!(told.code != 0 && told.err.contains("chmod 600"), "{told:?}");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(scene.run(&["list"]).code, 0);
}

#[test]
fn a_node_has_a_name_that_can_be_a_path_whoever_gives_it() {
    let cluster = Cluster::start(0, 2, "");
    for name in ["", " ", ".", "..", "../x", "a/b", "-x", "a b", "a\nb", "\u{1b}[31mred", &"x".repeat(65)] {
        let told = cluster.scene.run(&["agent", "--server", cluster.agents_address(), &format!("--name={name}")]);
        assert_eq!(told.code, 2, "{name:?}: {told:?}");
        assert!(told.err.contains("node") && !told.err.contains("\u{1b}[31m"), "{name:?}: {told:?}");

        // A program of one's own does not look at what it says.
        let secrets = Secrets::File { path: cluster.scene.state().join("tokens.toml"), user: "ada".to_owned() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let introduction = || Introduction::Node { name: name.to_owned() };
        let refused = runtime.block_on(join(cluster.agents_address(), &secrets, introduction)).err().unwrap();
        assert!(matches!(&refused, JoinError::Refused { why, .. } if why.contains("node")), "{name:?}: {refused}");
    }
    assert_eq!(cluster.scene.ok(&["node", "list"]).lines().count(), 1, "but for the headings there is nothing");
}

#[test]
fn only_loopback_is_listened_on() {
    let scene = Scene::new();
    for verb in ["dev", "server"] {
        let told = scene.run(&[verb, "--listen", "0.0.0.0:0"]);
        assert!(told.code != 0 && told.err.contains("0.0.0.0"), "{told:?}");
    }
}
