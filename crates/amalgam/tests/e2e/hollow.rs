//! Hollow nodes: many in one process, which speak the real protocol and only pretend to run tasks.

use crate::support::{Cluster, Daemon, result, until_true};
use amalgam_daemon::api::{JobState, NodeState, NodeSummary, TaskState};
use std::process::Command;

const CONFIG: &str = "heartbeat = '100ms'\nnode_grace = '500ms'\n";

fn start(cluster: &Cluster, name: &str, count: u32) -> Daemon {
    let daemon =
        Daemon::start(cluster.hollow_command(name, count)).unwrap_or_else(|output| panic!("no nodes: {output}"));
    assert!(daemon.ready.starts_with(&format!("ready: hollow nodes {name}-0 to {name}-{}, ", count - 1)));
    daemon
}

fn nodes_up(cluster: &Cluster) -> Vec<NodeSummary> {
    let nodes: Vec<NodeSummary> = cluster.scene.json(&["node", "list"]);
    nodes.into_iter().filter(|node| node.state == NodeState::Up).collect()
}

fn await_nodes(cluster: &Cluster, count: usize) {
    until_true("the nodes that are there", || nodes_up(cluster).len() == count);
}

fn all_succeeded(cluster: &Cluster, id: &str, count: u32) {
    cluster.scene.ok(&["wait", id]);
    let job = cluster.scene.job(id).summary;
    assert_eq!((job.state, job.tasks.succeeded), (JobState::Succeeded, count.into()));
}

#[test]
fn fifty_nodes_in_a_process_run_thousands_of_tasks_and_are_lost_with_it() {
    let cluster = Cluster::start(0, 4, CONFIG);
    let scene = &cluster.scene;
    let hollow = start(&cluster, "hollow", 50);
    await_nodes(&cluster, 50);
    let mut names: Vec<String> = nodes_up(&cluster).into_iter().map(|node| node.name).collect();
    names.sort();
    let mut expected: Vec<String> = (0..50).map(|number| format!("hollow-{number}")).collect();
    expected.sort();
    assert_eq!(names, expected);
    assert!(scene.ok(&["node", "info", "hollow-7"]).contains("hollow=true"));

    let id = scene.submit(&["--array", "0-2999", "--", "true"]);
    all_succeeded(&cluster, &id, 3_000);
    let tasks = scene.tasks(&id);
    assert!(tasks.iter().all(|task| (task.state, task.attempts) == (TaskState::Succeeded, 1)));
    assert_eq!(scene.ok(&["logs", &format!("{id}.0.1")]), "", "nothing was written");

    // All of them run at the same time.
    let id = scene.submit(&["--array", "0-199", "--", "sleep", "3"]);
    until_true("200 tasks that run", || scene.job(&id).summary.tasks.running == 200);
    hollow.kill();
    await_nodes(&cluster, 0);
    until_true("the loss of all tasks", || scene.job(&id).summary.tasks.running == 0);
    let others = start(&cluster, "others", 60);
    all_succeeded(&cluster, &id, 200);
    assert!(scene.tasks(&id).iter().all(|task| task.attempts == 2));
    assert!(others.stop().success(), "it ends cleanly when it is asked to");
    await_nodes(&cluster, 0);
}

#[test]
fn hollow_nodes_return_to_a_server_that_was_away_with_what_they_run() {
    let cluster = Cluster::start(0, 2, CONFIG);
    let _hollow = start(&cluster, "hollow", 20);
    let id = cluster.scene.submit(&["--array", "0-39", "--", "sleep", "4"]);
    until_true("40 tasks that run", || cluster.scene.job(&id).summary.tasks.running == 40);
    cluster.kill_server();
    cluster.start_server();
    all_succeeded(&cluster, &id, 40);
    assert!(cluster.scene.tasks(&id).iter().all(|task| task.attempts == 1));
}

#[test]
fn each_hollow_node_is_connected_with_the_job_managers_of_another_process() {
    let cluster = Cluster::start(0, 2, "preset = 'apollo'\njob_hosts = 1\nheartbeat = '100ms'\n");
    let _hollow = start(&cluster, "hollow", 20);
    cluster.start_jobs(1);
    let id = cluster.scene.submit(&["--array", "0-399", "--", "sleep", "0.01"]);
    all_succeeded(&cluster, &id, 400);
}

#[test]
fn what_a_hollow_stage_declares_to_leave_is_there_for_the_next() {
    let cluster = Cluster::start(0, 2, CONFIG);
    let _hollow = start(&cluster, "hollow", 3);
    let job = "name = 'files'\n[[stage]]\nname = 'write'\narray = '0-9'\ncommand = ['true']\nworkdir = 'own'\n\
               outputs = ['part-{index}']\n[[stage]]\nname = 'read'\nafter = ['write']\ncommand = ['true']\n\
               workdir = 'own'\ninputs = ['write/part-*']\n";
    cluster.scene.write("job.toml", job);
    let id = cluster.scene.submit(&["job.toml"]);
    all_succeeded(&cluster, &id, 11);
}

#[test]
fn flags_that_mean_nothing_for_hollow_nodes_are_refused() {
    let cluster = Cluster::start(0, 1, CONFIG);
    let refused = |arguments: &[&str]| {
        let result = cluster.scene.run(&[&["agent", "--server", cluster.agents_address()], arguments].concat());
        assert_eq!(result.code, 2, "{result:?}");
        result.err
    };
    assert!(refused(&["--hollow", "0"]).contains("0 is not in 1.."));
    for flag in [["--work-dir", "here"], ["--enforcement", "none"], ["--cache", "1GiB"]] {
        let output = refused(&[&["--hollow", "2"], &flag[..]].concat());
        assert!(output.contains("cannot be used with") && output.contains(flag[0]), "{output}");
    }
    let hollow = cluster.hollow_command("hollow", 1_000);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 500; exec \"$@\"", "sh"]).arg(hollow.get_program()).args(hollow.get_args());
    let result = result(limited);
    assert_eq!(result.code, 1, "{result:?}");
    assert!(
        result.err.contains("1000 hollow nodes need 1064 file descriptors, and the limit of this process is 500"),
        "{result:?}"
    );
    assert!(result.err.contains("help: raise the hard limit"), "{result:?}");
}
