//! Permissions of the public interface, and its promises to programs.

use crate::running::AWAIT_GO;
use crate::support::{Cluster, Daemon, PATIENCE, Scene, free_port, job_spec, result, saying_into, until_true};
use amalgam_core::vocabulary::HostId;
use amalgam_daemon::api::{Event, EventKind, JobState};
use amalgam_daemon::transport::{Introduction, JoinError, Secrets, join};
use serde_json::Value;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

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

    // Also if the server was killed in between.
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

    // An open stream gets new events.
    let open = http.events(all.last().unwrap().sequence + 1);
    scene.run(&["run", "--", "sh", "-c", "exit 5"]);
    let ended: Vec<Event> = open.filter(|event| event.kind == EventKind::TaskEnded).take(1).collect();
    assert_eq!((ended[0].job, ended[0].exit_code), (Some(2), Some(5)));
}

#[test]
fn each_thing_has_one_name_and_every_printed_id_is_taken() {
    let cluster = Cluster::start(1, 1, "");
    let (scene, http) = (&cluster.scene, cluster.scene.http());
    let before = scene.submit(&["--", "sh", "-c", "echo out; exit 3"]);
    scene.run(&["wait", &before]);
    let other = scene.submit(&["--after", &scene.submit(&["--name", "held", "--hold", "--", "true"]), "--", "true"]);
    scene.ok(&["cancel", "2"]);
    scene.run(&["wait", &other]);

    let all: Vec<Event> =
        http.events(0).take_while(|event| event.job != Some(3) || event.kind != EventKind::JobEnded).collect();
    let nodes: Vec<&Event> = all.iter().filter(|event| event.node.is_some()).collect();
    assert!(nodes.len() >= 3 && nodes.iter().all(|event| event.node.as_deref() == Some("node-0")), "{nodes:#?}");
    assert!(nodes.iter().all(|event| event.node_id == Some(0)), "{nodes:#?}");
    let of_one: Vec<Event> = http.events_of(1).take_while(|event| event.kind != EventKind::JobEnded).collect();
    assert!(of_one.len() >= 4 && of_one.iter().all(|event| event.job == Some(1)), "{of_one:#?}");
    let ended = all.iter().find(|event| event.kind == EventKind::TaskEnded).unwrap();
    assert_eq!((ended.state.as_deref(), ended.task.as_deref()), (Some("failed"), Some("1.0.0")));

    // Every printed state can be used as a filter of the list.
    for line in http.text("/metrics").lines().filter(|line| line.starts_with("amalgam_jobs{")) {
        let state = line.split('"').nth(1).unwrap();
        assert_eq!(http.get(&format!("/v1/jobs?state={state}")).0, 200, "{line}");
    }
    let attempt = ended.attempt.as_deref().unwrap();
    for task in ["1.0.0", "0.0", "main.0", "1.main.0"] {
        assert_eq!(http.text(&format!("/v1/jobs/1/output?task={task}")), "out\n", "{task}");
        assert_eq!(http.text(&format!("/v1/jobs/1/output?task={task}&attempt={attempt}")), "out\n", "{task}");
        assert_eq!(http.get(&format!("/v1/jobs/1/story?task={task}")).0, 200, "{task}");
    }
    for task in ["2.0.0", "0", "main", "nothing.0", "1.0.x", ""] {
        assert_eq!(http.get(&format!("/v1/jobs/1/output?task={task}")).0, 400, "{task}");
    }
    for stage in ["0", "main"] {
        let (status, tasks) = http.get(&format!("/v1/jobs/1/tasks?stage={stage}"));
        assert_eq!((status, tasks["items"][0]["task"].as_str()), (200, Some("1.0.0")), "{stage}");
    }
    for node in ["0", "n0", "node-0"] {
        let (status, found) = http.get(&format!("/v1/nodes/{node}"));
        assert_eq!(
            (status, found["name"].as_str().or(found["summary"]["name"].as_str())),
            (200, Some("node-0")),
            "{node}"
        );
    }
    assert_eq!(http.get("/v1/nodes/node-7").0, 404);
}

/// Submits two jobs with secrets in their variables, and one that is refused.
fn submit_with_secrets(scene: &Scene) -> [String; 2] {
    let mut submit = scene.command(&[
        "submit",
        "-q",
        "--env",
        "API_TOKEN=hunter2-env",
        "--export",
        "DB_PASSWORD=hunter2-export,SSH_KEY",
        "--",
        "sh",
        "-c",
        "echo $API_TOKEN $DB_PASSWORD $SSH_KEY; exit 3",
    ]);
    submit.env("SSH_KEY", "hunter2-own");
    let submitted = result(submit);
    assert_eq!(submitted.code, 0, "{submitted:?}");
    let first = submitted.out.trim().to_owned();
    let file = "name = \"deploy\"\n[[stage]]\nname = \"main\"\ncommand = [\"./missing\"]\nenv = { CLIENT_SECRET = \"hunter2-file\" }\n";
    scene.write("job.toml", file);
    let second = scene.submit(&["job.toml"]);
    scene.write("long.toml", &file.replace("hunter2-file", &"hunter2-file".repeat(20_000)));
    let refused = scene.run(&["submit", "long.toml"]);
    assert!(refused.code != 0 && !refused.err.contains("hunter2"), "{refused:?}");
    [first, second]
}

/// Values of variables are visible to their owner only: not to other users, and at no level in the daemon's diagnostics.
#[test]
fn values_of_variables_are_shown_to_no_other_user_and_not_logged() {
    const SECRETS: [&str; 4] = ["hunter2-env", "hunter2-export", "hunter2-own", "hunter2-file"];
    let scene = Scene::new();
    let start = |more: &[&str]| {
        let words = ["dev", "--listen", "127.0.0.1:0", "--cpus", "2", "--memory", "1GiB"];
        let mut dev = scene.command(&[&words, more].concat());
        dev.env("AMALGAM_LOG", "trace");
        scene.start(dev, &scene.state());
    };
    start(&[]);
    let token = scene.ok(&["token", "add", "grace"]);
    let grace = |arguments: &[&str]| {
        let mut command = scene.command(arguments);
        command.env("AMALGAM_TOKEN", token.trim()).env("USER", "grace");
        result(command)
    };
    let [first, second] = submit_with_secrets(&scene);
    scene.run(&["wait", &first, &second]);
    assert_eq!(scene.ok(&["logs", &first]), "hunter2-env hunter2-export hunter2-own\n");

    let events = scene.http().with_token(token.trim()).events(0);
    let graces = grace(&["submit", "-q", "--", "true"]).out.trim().to_owned();
    let seen: Vec<Event> = events.take_while(|event| event.kind != EventKind::JobEnded).collect();
    let mut shown = format!("{seen:?}");
    for verb in ["info", "story", "logs", "outputs", "update"] {
        for job in [&first, &second] {
            let result = match verb {
                "outputs" => grace(&[verb, job, "--list"]),
                "update" => grace(&[verb, job, "priority=1"]),
                _ => grace(&[verb, job]),
            };
            assert!(result.code == 1 && result.err.contains("belongs to"), "{verb}: {result:?}");
            shown += &format!("{result:?}");
        }
    }
    for words in
        [&["list", "--all"][..], &["list", "--all", "--json"], &["history", "--csv"], &["node", "list", "--json"]]
    {
        let result = grace(words);
        assert_eq!(result.code, 0, "{words:?}: {result:?}");
        shown += &result.out;
    }
    grace(&["wait", &graces]);
    for words in
        [&["info", &first, "--json"][..], &["story", &first], &["info", &second, "--json"], &["story", &second]]
    {
        shown += &scene.ok(words);
    }
    let other = scene.write("other.toml", "[[queue]]\nname = \"other\"\n");
    let before = scene.kill_daemon();
    start(&["--config", other.to_str().unwrap()]);
    let log = before + &scene.kill_daemon();
    assert!(log.contains("no queue root.default that takes jobs"), "it logs: {log}");
    for secret in SECRETS {
        assert!(!shown.contains(secret), "{secret} is shown:\n{shown}");
        assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
    }
    // Stored values are in files that only the daemon's user can read.
    let mode = std::fs::metadata(scene.state()).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
}

#[test]
fn users_see_all_jobs_and_touch_their_own() {
    let scene = Scene::dev(&[]);
    let token = scene.ok(&["token", "add", "grace"]);
    let grace = |arguments: &[&str]| {
        let mut command = scene.command(arguments);
        command.env("AMALGAM_TOKEN", token.trim()).env("USER", "grace");
        result(command)
    };
    let adas = scene.submit(&["--", "sh", "-c", &format!("echo secret; {AWAIT_GO}")]);
    until_true("output", || scene.ok(&["logs", &adas]) == "secret\n");

    assert!(grace(&["list"]).out.contains("ada"), "another user's job is listed");
    for verb in ["cancel", "hold", "logs", "info", "story", "rerun-failed"] {
        let result = grace(&[verb, &adas]);
        assert_eq!(result.code, 1, "{verb}: {result:?}");
        assert!(result.err.contains("belongs to ada") && !result.out.contains("secret"), "{verb}: {result:?}");
    }
    let result = grace(&["node", "drain", "0"]);
    assert!(result.code == 1 && result.err.contains("not an administrator"), "{result:?}");
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
fn calls_without_a_token_are_refused() {
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
    let refused = result(wrong);
    assert!(refused.code == 1 && refused.err.contains("does not know the token\n  help: "), "{refused:?}");
    let mut missing = scene.command(&["list", "--server", &http.address]);
    missing.env("AMALGAM_STATE", scene.path().join("tmp"));
    let refused = result(missing);
    assert!(refused.code == 2 && refused.err.contains("no token"), "{refused:?}");

    // A file that others can read is not a secret.
    let tokens = scene.state().join("tokens.toml");
    assert_eq!(std::fs::metadata(&tokens).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o644)).unwrap();
    let result = scene.run(&["list"]);
    assert!(result.code != 0 && result.err.contains("chmod 600"), "{result:?}");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(scene.run(&["list"]).code, 0);
}

#[test]
fn the_end_of_the_last_administrators_token_is_a_warning() {
    let scene = Scene::dev(&[]);
    let first = scene.run(&["token", "list"]).out;
    let first = first.lines().find(|line| line.contains("administrator")).unwrap().split(' ').next().unwrap();
    let said = "no administrator has a token that stays valid";
    let demoted = scene.run(&["token", "add", first, "--scope", "read"]);
    assert!(demoted.code == 0 && demoted.err.contains(said), "the old one ends in a day: {demoted:?}");
    let added = scene.run(&["token", "add", "bob", "--admin"]);
    assert!(added.code == 0 && !added.err.contains(said), "{added:?}");
    let other = scene.run(&["token", "remove", first]);
    assert!(other.code == 0 && !other.err.contains(said), "{other:?}");
    let last = scene.run(&["token", "revoke", "bob"]);
    assert!(last.code == 0 && last.err.contains(said) && last.err.contains("--admin"), "{last:?}");
    let unknown = scene.run(&["token", "revoke", "eve", "--name", "laptop"]);
    assert!(unknown.code == 1 && unknown.err.contains("has no token `laptop` of eve"), "{unknown:?}");
}

#[test]
fn incomplete_calls_and_introductions_do_not_block_others() {
    let cluster = Cluster::start(1, 2, "");
    let http = cluster.scene.http();
    let mut halves = Vec::new();
    for number in 0..400 {
        let interface = ["", "GET /v1/jobs HT", "POST /v1/jobs HTTP/1.1\r\ncontent-length: 99\r\n"][number % 3];
        let agents: &[u8] = [&b""[..], &[200, 0], &[255; 9]][number % 3];
        for (address, text) in [(http.address.as_str(), interface.as_bytes()), (cluster.agents_address(), agents)] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(text).unwrap();
            halves.push(stream);
        }
    }
    let started = Instant::now();
    assert_eq!(cluster.scene.ok(&["run", "--", "echo", "served"]), "served\n");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    // Another agent can still join.
    let second = Daemon::start(cluster.agent_command(1)).unwrap_or_else(|output| panic!("no agent: {output}"));
    second.kill();
    for mut half in halves {
        half.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut output = Vec::new();
        let end = half.read_to_end(&mut output).map_err(|error| error.kind());
        assert!(end != Err(ErrorKind::WouldBlock), "it is not left open");
    }
}

#[test]
fn a_mistake_in_the_token_file_keeps_the_previous_tokens() {
    let scene = Scene::dev(&[]);
    let path = scene.state().join("tokens.toml");
    let good = fs::read_to_string(&path).unwrap();
    let mut command = scene.command(&["list"]);
    command.env("AMALGAM_TOKEN", amalgam_daemon::auth::client_token(&path, "ada").unwrap());
    let bad = good.replace("admin = true", "admin = maybe");
    fs::write(&path, &bad).unwrap();
    let listed = result(command);
    assert_eq!(listed.code, 0, "{listed:?}");
    for arguments in [&["token", "add", "grace"][..], &["token", "list"], &["list"]] {
        let result = scene.run(arguments);
        assert!(
            result.code == 1 && result.err.contains("tokens.toml:4: ") && result.err.contains("correct line 4"),
            "{result:?}"
        );
        assert!(!result.err.contains("remove"), "{result:?}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), bad, "nothing was changed");
    let output = scene.daemons.borrow_mut().pop().unwrap().kill();
    assert!(output.contains("tokens.toml:4: ") && output.contains("the previous tokens stay valid"), "{output}");
    let refused = scene.run(&["dev", "--listen", "127.0.0.1:0"]);
    assert!(refused.code == 1 && refused.err.contains("correct line 4"), "{refused:?}");
}

/// Replaces a token file like `cp` to a node.
fn give(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn an_agent_whose_token_was_replaced_stays_or_comes_back_and_loses_nothing() {
    let cluster = Cluster::start(0, 1, "exchange_tokens = false");
    let scene = &cluster.scene;
    let (own, home) = (scene.path().join("own-token"), scene.path().join("node-0"));
    let agent = || {
        let mut command = scene.agent_command(&["--server", cluster.agents_address(), "--name", "node-0"]);
        command.args(["--cpus", "1", "--memory", "1GiB", "--work-dir"]).arg(&home).arg("--token-file").arg(&own);
        scene.has_executor(&home);
        command
    };
    give(&own, &scene.ok(&["token", "add", "--agent", "node-0"]));
    let output = scene.path().join("agent-said");
    let refusals = || fs::read_to_string(&output).unwrap_or_default().matches("does not know this token").count();
    let first = Daemon::start(saying_into(agent(), &output)).unwrap_or_else(|output| panic!("no agent: {output}"));
    let job = scene.submit(&["--", "sh", "-c", &format!("echo began; {AWAIT_GO}; echo went on")]);
    until_true("its start", || scene.ok(&["logs", &job]) == "began\n");

    // The old token is valid for a day.
    let newer = scene.ok(&["token", "rotate", "--agent", "node-0"]);
    cluster.kill_server();
    cluster.start_server();
    let up = || scene.ok(&["node", "list"]).contains(" up ");
    until_true("the agent with its old token", up);

    // After that it is not, and the agent retries until it has the new one.
    let newest = scene.ok(&["token", "rotate", "--agent", "node-0", "--revoke-now"]);
    cluster.kill_server();
    cluster.start_server();
    until_true("its refusal", || refusals() == 1);
    assert!(!up());
    give(&own, &newest);
    until_true("the agent with its new token", up);
    scene.write("go", "");
    assert_eq!(scene.run(&["wait", &job]).code, 0);
    assert_eq!(scene.ok(&["logs", &job]), "began\nwent on\n");
    assert_eq!(scene.tasks(&job)[0].attempts, 1);
    first.kill();
    assert_eq!(refusals(), 1, "it says so once");

    // An agent that starts with an old copy waits for a new one, too.
    give(&own, &newer);
    let mut late = Daemon::spawn(saying_into(agent(), &output));
    until_true("its refusal", || refusals() == 2);
    give(&own, &newest);
    late.await_ready().unwrap();
    late.kill();
}

#[test]
fn a_token_is_valid_for_its_holder_only() {
    let cluster = Cluster::start(0, 1, "job_hosts = 1\npreset = 'sparrow'\n");
    let scene = &cluster.scene;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let refused = |token: &str, introduction: Introduction| {
        let secrets = Secrets::Single(token.trim().to_owned());
        runtime
            .block_on(join(cluster.agents_address(), &secrets, || introduction.clone()))
            .err()
            .map(|error| error.to_string())
    };
    let node = |name: &str| Introduction::Node { name: name.to_owned() };
    let (agent, user) = (scene.ok(&["token", "add", "--agent", "vm-1"]), scene.ok(&["token", "add", "grace"]));
    assert_eq!(refused(&agent, node("vm-1")), None);
    assert!(refused(&agent, node("vm-2")).unwrap().contains("belongs to the agent of node vm-1"));
    let jobs = Introduction::JobHost { host: HostId(1), address: "127.0.0.1:1".to_owned(), next: 0 };
    assert!(refused(&agent, jobs.clone()).unwrap().contains("use an administrator's token"));
    for introduction in [node("grace"), jobs] {
        assert!(refused(&user, introduction).unwrap().contains("grace, who is not an administrator"));
    }
    assert!(refused("wrong", node("vm-1")).unwrap().contains("does not know this token"));
}

#[test]
fn node_names_that_cannot_be_a_path_are_refused() {
    let cluster = Cluster::start(0, 2, "");
    for name in ["", " ", ".", "..", "../x", "a/b", "-x", "a b", "a\nb", "\u{1b}[31mred", &"x".repeat(65)] {
        let result = cluster.scene.run(&["agent", "--server", cluster.agents_address(), &format!("--name={name}")]);
        assert_eq!(result.code, 2, "{name:?}: {result:?}");
        assert!(result.err.contains("node") && !result.err.contains("\u{1b}[31m"), "{name:?}: {result:?}");

        // A modified program might not check the name.
        let secrets = Secrets::file(cluster.scene.state().join("tokens.toml"), "ada".to_owned(), None);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let introduction = || Introduction::Node { name: name.to_owned() };
        let refused = runtime.block_on(join(cluster.agents_address(), &secrets, introduction)).err().unwrap();
        assert!(matches!(&refused, JoinError::Refused { why, .. } if why.contains("node")), "{name:?}: {refused}");
    }
    assert_eq!(cluster.scene.ok(&["node", "list"]).lines().count(), 1, "but for the headings there is nothing");
}

#[test]
fn a_global_master_beyond_loopback_is_encrypted_also_if_it_has_joined_nothing() {
    let scene = Scene::new();
    let config = scene.write("federation.toml", "[federation]\nmasters = ['127.0.0.1:1']\nglobals = 1\nnumber = 0");
    let port = free_port();
    let global = ["global", "--listen", &format!("0.0.0.0:{port}"), "--config", config.to_str().unwrap()];
    let ready = scene.start(scene.command(&global), &scene.state());
    assert!(ready.starts_with(&format!("ready: https://0.0.0.0:{port}, global master 0")), "{ready}");
    // Verified by its own authority, which clients find in its state directory.
    assert!(scene.state().join("ca-key.pem").exists());
    scene.ok(&["list"]);
    // A federation in one process has none.
    let dev = scene.run(&["dev", "--clusters", "2", "--listen", "0.0.0.0:0", "--state-dir", "dev"]);
    assert!(dev.code != 0 && dev.err.contains("a federation in one process listens on loopback only"), "{dev:?}");
}
