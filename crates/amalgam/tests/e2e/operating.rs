//! What operators change while the server runs, and find again after it was killed: labels, limits of queues, the configuration.

use crate::running::AWAIT_GO;
use crate::support::{Cluster, Scene, job_spec, result, until, until_true};
use amalgam_daemon::api::{JobDetail, NodeDetail, QueueSummary, Reloaded, Report, ReportRow};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// The lines of the audit log.
fn audit(scene: &Scene) -> Vec<Value> {
    let text = fs::read_to_string(scene.state().join("audit.log")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What was there before and after a change, as the audit log has it.
fn change(scene: &Scene, what: &str) -> (String, String) {
    let lines = audit(scene);
    let line = lines.iter().rfind(|line| line["what"] == what).unwrap_or_else(|| panic!("no {what}: {lines:#?}"));
    let field = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
    (field("before"), field("after"))
}

fn queue(scene: &Scene, name: &str) -> QueueSummary {
    let queues: Vec<QueueSummary> = scene.json(&["queue", "list"]);
    queues.into_iter().find(|queue| queue.name == name).unwrap()
}

#[test]
fn labels_and_limits_of_queues_outlive_a_killed_server_and_are_in_the_audit_log() {
    let cluster = Cluster::start(2, 4, "[[queue]]\nname = 'a'\nmaximum = 0.5\n");
    let scene = &cluster.scene;
    let job = ["submit", "--constraint", "zone=north", "--queue", "a", "--", "true"];
    assert_eq!(scene.run(&job).code, 1, "no node meets the constraint");

    assert_eq!(scene.ok(&["node", "label", "node-1", "zone=north", "disk=ssd"]), "node node-1: disk=ssd zone=north\n");
    assert_eq!(scene.ok(&["node", "label", "node-1", "disk-"]), "node node-1: zone=north\n");
    assert_eq!(change(scene, "label node 1"), ("disk=ssd".to_owned(), "disk not set".to_owned()));
    let set = scene.ok(&["queue", "set", "a", "maximum=1", "max_running_jobs=7"]);
    assert!(set.contains("maximum max_running_jobs") && set.contains("  MOST JOBS  SET\n"), "{set}");
    let (before, after) = change(scene, "set queue a");
    assert!(before.contains("maximum=0.5 ") && before.contains("max_running_jobs=none"), "{before}");
    assert!(after.contains("maximum=1 ") && after.contains("max_running_jobs=7"), "{after}");
    let wrong = scene.run(&["queue", "set", "a", "maximum=75"]);
    assert!(wrong.err.contains("maximum is `75`\n  help: write a number from 0 to 1"), "{wrong:?}");
    let wrong = scene.run(&["node", "label", "node-1", "disk-"]);
    assert!(wrong.err.contains("node node-1 has no label `disk`"), "{wrong:?}");

    cluster.kill_server();
    cluster.start_server();
    until_true("the node is back", || scene.ok(&["node", "info", "node-1"]).contains("label        zone=north\n"));
    let node: NodeDetail = scene.json(&["node", "info", "node-1"]);
    assert_eq!(node.labels.into_iter().collect::<Vec<_>>(), [("zone".to_owned(), "north".to_owned())]);
    let kept = queue(scene, "root.a");
    assert_eq!((kept.maximum, kept.max_running_jobs, kept.set.len()), (1.0, Some(7), 2));
    let id = scene.submit(&job[1..]);
    scene.ok(&["wait", &id]);
    assert_eq!(scene.tasks(&id)[0].node.as_deref(), Some("node-1"));

    assert!(!scene.ok(&["queue", "reset", "a"]).contains("SET"));
    let configured = queue(scene, "root.a");
    assert_eq!((configured.maximum, configured.max_running_jobs), (0.5, None));
}

/// The queue b of this job, which was submitted with the key `once`, is not configured any more.
fn takes_no_further_jobs(scene: &Scene, job: &Value, first: &Value) {
    let (http, key) = (scene.http(), [("idempotency-key", "once")]);
    assert_eq!(http.post("/v1/jobs", &key, job).1["job"], first["job"], "a repeated submission has its job already");
    assert_eq!(http.post("/v1/jobs", &[], job).0, 409);
    let other = scene.submit(&["--queue", "a", "--", "sleep", "60"]);
    let moved = scene.run(&["update", &other, "queue=b"]);
    assert!(moved.code == 1 && moved.err.contains("takes no further jobs"), "{moved:?}");
    scene.ok(&["cancel", &other]);
    let refused = scene.run(&["submit", "--queue", "b", "--", "true"]);
    assert!(
        refused.code == 1 && refused.err.contains("queue `root.b` is not in the configuration any more"),
        "{refused:?}"
    );
}

#[test]
fn jobs_without_a_queue_are_taken_when_the_first_queue_was_configured() {
    let scene = Scene::new();
    let config = scene.write("server.toml", "kept_jobs = 10\n");
    let mut command = scene.command(&["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"]);
    command.arg("--config").arg(&config);
    scene.start(command, &scene.state());
    fs::write(&config, "[[queue]]\nname = 'a'\n").unwrap();
    scene.ok(&["reload"]);
    for queue in [&["--queue", "a"][..], &[]] {
        scene.submit(&[queue, &["--wait-for-nodes", "--", "true"]].concat());
    }
    assert!(!queue(&scene, "root.default").closed);
}

#[test]
fn a_reload_applies_what_can_change_names_the_rest_and_an_invalid_file_changes_nothing() {
    let scene = Scene::new();
    let config = scene.write("server.toml", "kept_jobs = 10\n[[queue]]\nname = 'a'\nweight = 2.0\n");
    let mut command = scene.command(&["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"]);
    command.arg("--config").arg(&config);
    scene.start(command, &scene.state());

    fs::write(
        &config,
        "kept_jobs = 20\nheartbeat = '2s'\n[[queue]]\nname = 'a'\nweight = 3.0\n[[queue]]\nname = 'b'\n",
    )
    .unwrap();
    let reloaded: Reloaded = scene.json(&["reload"]);
    let shown: Vec<(&str, Option<&str>, Option<&str>, bool)> = reloaded
        .changes
        .iter()
        .map(|change| (change.key.as_str(), change.before.as_deref(), change.after.as_deref(), change.needs_restart))
        .collect();
    assert_eq!(
        shown,
        [
            ("heartbeat", None, Some("\"2s\""), true),
            ("kept_jobs", Some("10"), Some("20"), false),
            ("queue.a.weight", Some("2.0"), Some("3.0"), false),
            ("queue.b.name", None, Some("\"b\""), false),
        ]
    );
    assert_eq!((queue(&scene, "root.a").weight, queue(&scene, "root.b").weight), (3.0, 1.0));
    assert_eq!(scene.ok(&["reload"]), "heartbeat (not set) -> \"2s\": needs a restart\n", "until it is restarted");
    let changed = change(&scene, "reload the configuration: queue.a.weight");
    assert_eq!(changed, ("2.0".to_owned(), "3.0".to_owned()));
    change(&scene, "reload the configuration: heartbeat, needs a restart");

    fs::write(&config, "[[queue]]\nname = 'a'\nweight = 0\n").unwrap();
    let wrong = scene.run(&["reload"]);
    assert!(
        wrong.err.contains("server.toml:3:10: queue `a`: weight is 0\n  help: write a number from 0.001"),
        "{wrong:?}"
    );
    let (http, key) = (scene.http(), [("idempotency-key", "once")]);
    let mut job = job_spec(&scene, &["true"]);
    job["queue"] = "b".into();
    let (status, first) = http.post("/v1/jobs", &key, &job);
    assert_eq!(status, 201);
    fs::write(&config, "[[queue]]\nname = 'a'\nweight = 5.0\n").unwrap();
    scene.signal_daemon("HUP");
    until("the weight of the file", || (queue(&scene, "root.a").weight == 5.0).then_some(()));
    assert_eq!(queue(&scene, "root.b").weight, 1.0, "a queue that is gone stays until a restart");
    until_true("its end", || queue(&scene, "root.b").closed);
    assert!(!queue(&scene, "root.a").closed);
    takes_no_further_jobs(&scene, &job, &first);
    let lines = audit(&scene);
    let gone = "reload the configuration: queue.b.name, needs a restart";
    let line = lines.iter().find(|line| line["what"] == gone).unwrap_or_else(|| panic!("{lines:#?}"));
    assert_eq!((line["request"].as_str(), line["from"].as_str()), (Some("SIGHUP"), Some("signal")));

    // What was set while the server ran precedes the file.
    scene.ok(&["queue", "set", "a", "weight=9"]);
    fs::write(&config, "[[queue]]\nname = 'a'\nweight = 6.0\n[[queue]]\nname = 'b'\n").unwrap();
    scene.ok(&["reload"]);
    let id = scene.submit(&["--queue", "b", "--", "true"]);
    scene.ok(&["cancel", &id]);
    assert_eq!(queue(&scene, "root.a").weight, 9.0);
    scene.ok(&["queue", "reset", "a"]);
    assert_eq!(queue(&scene, "root.a").weight, 6.0);
    let log = scene.kill_daemon();
    assert!(log.contains("reload the configuration: queue.a.weight"), "{log}");
    assert!(log.contains("reload the configuration: heartbeat, needs a restart"), "{log}");
    assert!(log.contains("the configuration was not reloaded: nothing has changed"), "{log}");
}

#[test]
fn a_taint_keeps_tasks_away_that_do_not_tolerate_it() {
    let cluster = Cluster::start(1, 4, "");
    let scene = &cluster.scene;
    until_true("the node", || scene.ok(&["node", "list"]).contains("up"));
    scene.ok(&["node", "taint", "node-0", "gpu=for training", "new"]);
    assert_eq!(change(scene, "label node 0").1, "taint.gpu=for training, taint.new=yes");
    let listed = scene.ok(&["node", "list"]);
    assert!(listed.contains("  TAINTS\n") && listed.contains("  gpu=for training new\n"), "{listed}");
    let info = scene.ok(&["node", "info", "node-0"]);
    assert!(info.contains("\ntaint        gpu=for training\ntaint        new=yes\n"), "{info}");
    let waits = scene.submit(&["--tolerates", "gpu", "--", "true"]);
    let file =
        scene.write("job.toml", "tolerates = ['gpu']\n[[stage]]\nname = 's'\ntolerates = ['new']\ncommand = 'true'\n");
    let runs = scene.submit(&[file.to_str().unwrap()]);
    scene.ok(&["wait", &runs]);
    let said = "each node that could run it has a taint that the stage does not tolerate: `new`";
    until_true("the reason", || scene.ok(&["info", &waits]).contains(said));
    assert!(scene.ok(&["info", &waits]).contains("tolerates gpu"));
    let wrong = scene.run(&["submit", "--tolerates", "a b", "--", "true"]);
    assert!(wrong.code == 2 && wrong.err.contains("`a b` is not the name of a taint"), "{wrong:?}");
    let wrong = scene.run(&["node", "taint", "node-0", "other-"]);
    assert!(wrong.err.contains("node node-0 has no taint `other`"), "{wrong:?}");
    scene.ok(&["node", "taint", "node-0", "new-"]);
    scene.ok(&["wait", &waits]);
}

#[test]
fn a_report_has_what_jobs_asked_for_and_used_and_outlives_the_jobs_and_a_killed_server() {
    let cluster = Cluster::start(1, 4, "kept_jobs = 1\n[[queue]]\nname = 'a'\n[[queue]]\nname = 'b'\n");
    let scene = &cluster.scene;
    let run = |queue: &str, tasks: &str| {
        let wanted = ["--queue", queue, "-r", "cpu=2,memory=128MiB", "--array", tasks];
        let id = scene.submit(&[&wanted[..], &["--", "sleep", "0.5"]].concat());
        scene.ok(&["wait", &id]);
        scene.job(&id).summary.wall_seconds
    };
    let report = |by: &str| -> Vec<ReportRow> { scene.json::<Report>(&["report", "--by", by]).rows };
    let (of_a, of_b) = (run("a", "0-3"), run("b", "0-1"));
    let check = |what: &str| {
        let rows = report("queue");
        let queues: Vec<Option<&str>> = rows.iter().map(|row| row.queue.as_deref()).collect();
        assert_eq!(queues, [Some("root.a"), Some("root.b")], "{what}");
        for (row, (tasks, seconds)) in rows.iter().zip([(4, of_a), (2, of_b)]) {
            assert_eq!((row.jobs, row.tasks, row.attempts, row.starts), (1, tasks, tasks, tasks), "{what}");
            // Each attempt held 2 CPUs and 128 MiB for its run time; rounded to milliseconds.
            let near = |hours: f64, wanted: f64| (hours * 3_600.0 - wanted).abs() < 0.02;
            assert!(near(row.cpu_hours_asked, 2.0 * seconds), "{what}: {row:?}, {seconds}");
            assert!(near(row.memory_gib_hours_asked, seconds / 8.0), "{what}: {row:?}, {seconds}");
            assert!(row.cpu_hours_used < row.cpu_hours_asked && row.memory_gib_hours_used < 1.0);
            assert_eq!((row.preempted, row.lost), (0, 0));
        }
        // Two of the four tasks waited for the others.
        assert!((0.9..10.0).contains(&rows[0].wait_seconds), "{what}: {rows:?}");
    };
    check("at first");
    assert_eq!(scene.jobs().len(), 1, "one ended job is kept");
    cluster.kill_server();
    cluster.start_server();
    check("after the server was killed");
    let all = report("user,day");
    assert_eq!((all.len(), all[0].tasks, all[0].jobs), (1, 6, 2));
    let csv = scene.ok(&["report", "--by", "queue", "--csv"]);
    assert!(csv.starts_with("queue,jobs,tasks,attempts,cpu_hours_asked,") && csv.contains("\nroot.a,1,4,4,"), "{csv}");
    assert_eq!(
        scene.ok(&["report", "--from", "2020-01-01", "--to", "2020-01-31"]),
        "nothing was counted from 2020-01-01 to 2020-01-31\n"
    );
    let wrong = scene.run(&["report", "--from", "yesterday"]);
    assert!(wrong.err.contains("invalid date `yesterday`\n  help: write it like 2026-11-01"), "{wrong:?}");
    let du = scene.ok(&["du"]);
    assert!(du.contains("usage by day"), "{du}");
}

/// The rows of `report --csv` by user and queue, each with its values by the name of their column.
fn rows_of_csv(scene: &Scene) -> Vec<BTreeMap<String, String>> {
    let table = scene.ok(&["report", "--by", "user,queue", "--csv"]);
    let mut lines = table.lines().map(|line| line.split(',').map(str::to_owned));
    let names: Vec<String> = lines.next().expect("the names of the columns").collect();
    lines.map(|values| names.iter().cloned().zip(values).collect()).collect()
}

#[test]
fn a_report_has_preempted_work_in_the_row_of_its_user_and_queue() {
    let cluster = Cluster::start(1, 2, "preset = 'mercury'\n[[queue]]\nname = 'a'\n[[queue]]\nname = 'b'\n");
    let scene = &cluster.scene;
    let grace = scene.ok(&["token", "add", "grace"]);
    let wanted = ["submit", "-q", "-r", "cpu=1", "--execution"];
    let submitted = Instant::now();
    let tasks = ["opportunistic", "--queue", "a", "--array", "0-1", "--", "sh", "-c", AWAIT_GO];
    let opportunistic = scene.ok(&[&wanted[..], &tasks].concat()).trim().to_owned();
    until_true("both tasks", || scene.job(&opportunistic).attempts.opportunistic == 2);
    let both_run = Instant::now();
    thread::sleep(Duration::from_secs(1));
    let least = both_run.elapsed().as_secs_f64();
    let mut guaranteed = scene.command(&[&wanted[..], &["guaranteed", "--queue", "b", "--", "true"]].concat());
    guaranteed.env("AMALGAM_TOKEN", grace.trim());
    scene.ok(&["wait", result(guaranteed).out.trim()]);
    // One of the two tasks was preempted before this, and each has one CPU.
    let most = submitted.elapsed().as_secs_f64();
    scene.write("go", "");
    scene.ok(&["wait", &opportunistic]);

    let rows = scene.json::<Report>(&["report", "--by", "user,queue"]).rows;
    let [of_ada, of_grace] = &rows[..] else { panic!("{rows:#?}") };
    assert_eq!((of_ada.user.as_deref(), of_ada.queue.as_deref()), (Some("ada"), Some("root.a")));
    assert_eq!((of_ada.tasks, of_ada.attempts, of_ada.preempted, of_ada.lost), (2, 3, 1, 0));
    let preempted = of_ada.cpu_hours_preempted * 3_600.0;
    // The amounts are in milliseconds.
    assert!((least - 0.01..most + 0.01).contains(&preempted), "{preempted} is not in {least}..{most}");
    // The other task ran for longer.
    assert!(of_ada.cpu_hours_asked >= 2.0 * of_ada.cpu_hours_preempted, "{of_ada:?}");
    assert_eq!((of_grace.user.as_deref(), of_grace.queue.as_deref()), (Some("grace"), Some("root.b")));
    assert_eq!((of_grace.attempts, of_grace.preempted, of_grace.cpu_hours_preempted), (1, 0, 0.0));
    let names = ["user", "queue", "preempted", "cpu_hours_preempted"];
    let shown: Vec<_> = rows_of_csv(scene).into_iter().map(|row| names.map(|name| row[name].clone())).collect();
    let hours = of_ada.cpu_hours_preempted.to_string();
    assert_eq!(shown, [["ada", "root.a", "1", &hours], ["grace", "root.b", "0", "0"]]);
}

#[test]
fn stages_with_a_container_need_nodes_with_a_runtime() {
    let scene = Scene::new();
    let file = scene.write(
        "job.toml",
        "[[stage]]\nname = 'a'\ncommand = 'x'\ncontainer = 'debian:12'\n[[stage]]\nname = 'b'\ncommand = 'x'\n",
    );
    scene
        .start(scene.command(&["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"]), &scene.state());
    let id = scene.submit(&["--wait-for-nodes", file.to_str().unwrap()]);
    let job = scene.json::<Vec<JobDetail>>(&["info", &id]).remove(0);
    let shown: Vec<_> =
        job.stages.iter().map(|stage| (stage.container.as_deref(), stage.constraints.join(" "))).collect();
    assert_eq!(shown, [(Some("debian:12"), "container=yes".to_owned()), (None, String::new())]);
    assert!(scene.ok(&["info", &id]).contains(", container=yes, in debian:12"));
    let all = scene.submit(&["--wait-for-nodes", "--container", "alpine", file.to_str().unwrap()]);
    let job = scene.json::<Vec<JobDetail>>(&["info", &all]).remove(0);
    assert!(job.stages.iter().all(|stage| stage.container.as_deref() == Some("alpine")));
    let wrong = scene.run(&["submit", "--container=-v/:/host", "--", "true"]);
    assert!(wrong.code != 0 && wrong.err.contains("is not the name of an image"), "{wrong:?}");
}

#[test]
fn the_default_isolation_and_the_least_one_apply_to_jobs_that_are_submitted_later() {
    let scene = Scene::new();
    let config = scene.write("server.toml", "isolation = 'private-tmp'\n");
    let mut command = scene.command(&["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"]);
    command.arg("--config").arg(&config);
    scene.start(command, &scene.state());
    let submitted = |more: &[&str]| {
        let id = scene.submit(&[more, &["--", "true"]].concat());
        let job = scene.json::<Vec<JobDetail>>(&["info", &id]).remove(0);
        (id, job.stages[0].isolation.clone())
    };
    let (first, isolation) = submitted(&[]);
    assert_eq!(isolation, "private-tmp");
    assert!(scene.ok(&["info", &first]).contains(", private-tmp"));
    assert_eq!(submitted(&["--isolation", "none"]).1, "none", "it is a default");

    fs::write(&config, "isolation_at_least = 'sandbox'\n").unwrap();
    let reloaded: Reloaded = scene.json(&["reload"]);
    assert!(reloaded.changes.len() == 2 && reloaded.changes.iter().all(|change| !change.needs_restart));
    let refused = scene.run(&["submit", "--isolation", "private-tmp", "--", "true"]);
    assert!(refused.code != 0 && refused.err.contains("this cluster requires at least `sandbox`"), "{refused:?}");
    assert_eq!(submitted(&[]).1, "sandbox");
    let job = scene.json::<Vec<JobDetail>>(&["info", &first]).remove(0);
    assert_eq!(job.stages[0].isolation, "private-tmp", "it was decided when the job was submitted");
}
