//! Two presets on one cluster: the jobs of a queue use another preset than the server's.

use crate::support::{Cluster, Scene, until_true};
use amalgam_daemon::api::QueueSummary;
use serde_json::Value;

const CONFIG: &str = "preset = \"apollo\"\nheartbeat = \"200ms\"\n[policies.queueing]\nguaranteed = 1.0\n\
                      [[queue]]\nname = \"new\"\n[[queue]]\nname = \"old\"\npreset = \"apollo-plus\"\n";

/// Submits tasks of one CPU.
fn submit(scene: &Scene, queue: &str, name: &str, tasks: u32, command: &str) -> String {
    let job = format!(
        "name = \"{name}\"\nqueue = \"{queue}\"\nwait_for_nodes = true\n[[stage]]\nname = \"only\"\ntasks = {tasks}\n\
         command = [\"sh\", \"-c\", \"{command}\"]\nexecution = \"guaranteed\"\nexpected = \"3s\"\nresources = {{ cpu = 1 }}\n"
    );
    let path = scene.write(&format!("{name}.toml"), &job);
    scene.submit(&[path.to_str().unwrap()])
}

fn result(scene: &Scene, id: &str, kind: &str) -> Vec<String> {
    scene.story(id).into_iter().filter(|line| line.kind == kind).map(|line| line.text).collect()
}

#[test]
fn a_job_keeps_the_preset_of_its_queue_when_the_server_comes_back_and_both_kinds_end() {
    let cluster = Cluster::start(2, 2, CONFIG);
    let scene = &cluster.scene;
    let wait = "until test -e go; do sleep 0.1; done";
    let new = submit(scene, "new", "new", 4, wait);
    until_true("its tasks run", || scene.job(&new).summary.tasks.running >= 2);
    let old = submit(scene, "old", "old", 2, "true");
    assert_eq!(
        (scene.job(&new).summary.preset, scene.job(&old).summary.preset),
        (None, Some("apollo-plus".to_owned()))
    );
    assert!(scene.ok(&["info", &old]).contains("preset        apollo-plus"));
    cluster.kill_server();
    cluster.start_server();
    assert_eq!(scene.job(&old).summary.preset, Some("apollo-plus".to_owned()));
    scene.write("go", "");
    scene.ok(&["wait", &new, &old]);
    let output =
        |id: &str| result(scene, id, "launched").iter().any(|text| text.contains("sent as guaranteed work to"));
    assert!(output(&new) && output(&old), "{:?}", scene.story(&new));
}

#[test]
fn a_launch_without_grants_records_its_execution_type() {
    let cluster = Cluster::start(1, 1, "preset = \"apollo\"\nheartbeat = \"200ms\"\n");
    let scene = &cluster.scene;
    let id = scene.submit(&["--wait-for-nodes", "--execution", "opportunistic", "--", "true"]);
    scene.ok(&["wait", &id]);
    let launched = result(scene, &id, "launched");
    assert!(launched.len() == 1 && launched[0].contains("sent as opportunistic work to"), "{launched:?}");
}

#[test]
fn one_step_beyond_apollo_a_short_job_is_done_before_a_long_one_that_came_first() {
    let cluster = Cluster::start(
        2,
        1,
        "preset = \"apollo-plus\"\nheartbeat = \"200ms\"\n[policies.queueing]\nguaranteed = 1.0\n",
    );
    let scene = &cluster.scene;
    let long = submit(scene, "default", "long", 24, "sleep 0.5");
    until_true("its tasks run", || scene.job(&long).summary.tasks.running >= 1);
    let short = submit(scene, "default", "short", 2, "sleep 0.5");
    scene.ok(&["wait", &short]);
    assert!(scene.job(&long).summary.tasks.succeeded < 20, "{:?}", scene.job(&long).summary.tasks);
    scene.ok(&["wait", &long]);
    let sent = result(scene, &long, "launched");
    assert!(sent.iter().any(|text| text.contains("earliest expected completion")), "{sent:?}");
}

#[test]
fn a_server_refuses_presets_that_cannot_share_it() {
    let scene = Scene::new();
    let path = scene.write("server.toml", "preset = \"drf\"\n[[queue]]\nname = \"old\"\npreset = \"apollo-plus\"\n");
    let result = scene.run(&["server", "--config", path.to_str().unwrap()]);
    assert_eq!(result.code, 2, "{}", result.err);
    assert!(result.err.contains("make apollo the cluster's preset"), "{}", result.err);
}

#[test]
fn a_server_refuses_presets_of_federations_and_names_what_runs_them() {
    let scene = Scene::new();
    let result = scene.run(&["server", "--preset", "megha"]);
    assert_eq!(result.code, 2, "{}", result.err);
    assert!(result.err.contains("amalgam sim run --preset megha"), "{}", result.err);
}

#[test]
fn a_simulation_has_results_for_the_jobs_of_each_preset() {
    let scene = Scene::new();
    let run = |preset: &'static str, beside: &'static str| {
        let mut words = vec!["sim", "run", "--preset", preset, "--beside", beside, "--nodes", "8", "--cpus", "4"];
        words.extend(["--workload", "synthetic:layered", "-w", "limit=30", "--json", "--csv", "tables"]);
        words
    };
    let result: Value = scene.json(&run("apollo", "apollo-plus:0.5"));
    let all = result["side_by_side"].as_array().expect("a list");
    let of = |key: &str| all.iter().map(|of| of[key].as_u64().unwrap()).collect::<Vec<u64>>();
    assert_eq!([&all[0]["preset"], &all[1]["preset"]], ["apollo", "apollo-plus"]);
    assert!(of("jobs").iter().sum::<u64>() == 30 && of("jobs").iter().all(|jobs| *jobs > 5), "{all:?}");
    assert_eq!(of("jobs"), of("succeeded_jobs"));
    assert_eq!(of("launched").iter().sum::<u64>(), result["counters"]["launched"].as_u64().unwrap());
    assert_eq!(of("started_tasks").iter().sum::<u64>(), result["started_tasks"].as_u64().unwrap());
    let jobs = scene.read("tables/jobs-apollo.csv");
    assert_eq!(jobs.lines().filter(|line| line.contains(",apollo-plus,")).count() as u64, of("jobs")[1]);

    for (preset, beside, wanted) in [
        ("drf", "apollo-plus:0.5", "make apollo the cluster's preset"),
        ("apollo", "drf:0.5", "as apollo: apollo-plus"),
        ("apollo", "apollo-plus", "write a preset and a part of the jobs"),
        ("apollo", "apollo-plus:2", "a number from 0 to 1"),
        ("all", "drf:0.5", "jobs cannot use the preset drf"),
        (
            "fifo,apollo",
            "apollo-plus:0.5",
            "--beside needs one preset whose cluster apollo-plus can share, and these are 2\n  help: name one, such as \
             `--preset apollo`",
        ),
    ] {
        let result = scene.run(&run(preset, beside));
        assert!(result.code == 2 && result.err.contains(wanted), "{}", result.err);
    }
    let scenario = scene.write("scenario.toml", "preset = \"all\"\nworkload = \"synthetic:layered\"\n");
    let result = scene.run(&["sim", "run", scenario.to_str().unwrap(), "--beside", "apollo-plus:0.5"]);
    assert!(result.code == 2 && result.err.contains("name one, such as `--preset apollo`"), "{}", result.err);
}

#[test]
fn what_is_guaranteed_and_not_booked_is_used_by_its_queue_and_by_those_above() {
    let config = "preset = \"apollo\"\nheartbeat = \"200ms\"\n[policies.queueing]\nguaranteed = 1.0\n\
                  [[queue]]\nname = \"new\"\n[[queue]]\nname = \"new.er\"\n[[queue]]\nname = \"old\"\n";
    let cluster = Cluster::start(1, 4, config);
    let scene = &cluster.scene;
    let id = submit(scene, "new.er", "held", 2, "until test -e go; do sleep 0.1; done");
    until_true("its tasks run", || scene.job(&id).summary.tasks.running == 2);
    let queues: Vec<QueueSummary> = scene.json(&["queue", "list"]);
    let used = |queue: &QueueSummary| (queue.used["cpu"], queue.dominant_share);
    for queue in &queues {
        let wanted = if queue.name == "root.old" { (0.0, 0.0) } else { (2.0, 0.5) };
        assert_eq!(used(queue), wanted, "{}", queue.name);
    }
    scene.write("go", "");
    scene.ok(&["wait", &id]);
    let queues: Vec<QueueSummary> = scene.json(&["queue", "list"]);
    assert!(queues.iter().all(|queue| used(queue) == (0.0, 0.0)), "{queues:?}");
}
