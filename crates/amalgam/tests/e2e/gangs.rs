//! Gangs as real processes: on one cluster, and across the clusters of a federation.

use crate::federations::ended_once;
use crate::support::{Fault, Federation, Scene, is_alive, until_true};
use amalgam_daemon::api::{NodeSummary, TaskState};
use std::collections::BTreeSet;

/// Announces itself and waits for the three others, like the ranks of a computation.
const RANK: &str = "echo $$ > pid-$AMALGAM_INDEX; (echo $AMALGAM_NODES; cat $AMALGAM_NODES_FILE) > nodes-$AMALGAM_INDEX; touch here-$AMALGAM_INDEX; \
    until [ -e here-0 ] && [ -e here-1 ] && [ -e here-2 ] && [ -e here-3 ]; do sleep 0.02; done; \
    while [ ! -e go ]; do sleep 0.02; done; echo $AMALGAM_INDEX >> ran";

/// Each of the four knows the nodes of all, in order.
fn each_knows_where_all_are(scene: &Scene, id: &str, prefix: &str, on_nodes: usize) {
    let nodes: Vec<String> = scene.tasks(id).into_iter().filter_map(|task| task.node).collect();
    let first = |at: usize| !nodes[..at].contains(&nodes[at]);
    let each_once: Vec<String> = (0..nodes.len()).filter(|at| first(*at)).map(|at| nodes[at].clone()).collect();
    assert_eq!((nodes.len(), each_once.len()), (4, on_nodes), "{nodes:?}");
    let result = format!("{}\n{}\n", each_once.join(","), nodes.join("\n"));
    for rank in 0..4 {
        assert_eq!(scene.read(&format!("{prefix}nodes-{rank}")), result, "rank {rank}");
    }
}

fn running(scene: &Scene, id: &str) -> u64 {
    scene.job(id).summary.tasks.running
}

#[test]
fn two_gangs_of_which_one_has_room_run_one_after_the_other() {
    let scene = Scene::dev(&["--nodes", "2", "--cpus", "3"]);
    let script = |name: &str| {
        RANK.replace("here-", &format!("{name}-here-"))
            .replace("nodes-", &format!("{name}-nodes-"))
            .replace(">> ran", &format!(">> {name}"))
    };
    let submit = |name: &str| scene.submit(&["--gang", "--array", "0-3", "--", "sh", "-c", &script(name)]);
    let (first, second) = (submit("first"), submit("second"));
    until_true("all of the first", || running(&scene, &first) == 4);
    // Two CPUs are free, and the second gang uses none of them.
    let reason = scene.job(&second).summary.reason.unwrap_or_default();
    assert!(reason.contains("its 4 tasks start together, and nodes have room for 2"), "{reason}");
    assert_eq!(running(&scene, &second), 0);
    let small = scene.submit(&["--", "true"]);
    scene.ok(&["wait", &small]);
    scene.write("go", "");
    scene.ok(&["wait", &first, &second]);
    assert_eq!((scene.read("first").lines().count(), scene.read("second").lines().count()), (4, 4));
    each_knows_where_all_are(&scene, &second, "second-", 2);
    let result: Vec<String> = scene.story(&second).into_iter().map(|line| line.kind).collect();
    assert_eq!(result.iter().filter(|kind| *kind == "gang-started").count(), 1, "{result:?}");
    let too_many = scene.run(&["submit", "--gang", "--array", "0-6", "--", "true"]);
    assert!(too_many.code != 0 && too_many.err.contains("suitable nodes have room for 6"), "{too_many:?}");
}

#[test]
fn a_gang_spans_clusters_and_begins_anew_together_when_one_of_it_is_lost() {
    let federation = Federation::start(2, 2, 2, "heartbeat = '100ms'\nmissed_heartbeats = 3\nnode_grace = '700ms'");
    let scene = &federation.scene;
    let nodes = || scene.json::<Vec<NodeSummary>>(&["node", "list"]);
    until_true("all nodes", || nodes().len() == 4);
    let id = scene.submit(&["--gang", "--array", "0-3", "--", "sh", "-c", RANK]);
    until_true("all four at once", || running(scene, &id) == 4);
    let clusters: BTreeSet<char> =
        scene.tasks(&id).iter().filter_map(|task| task.node.as_ref()?.chars().nth(1)).collect();
    assert_eq!(clusters.len(), 2, "{:?}", scene.tasks(&id));
    let gone = scene.tasks(&id)[0].node.clone().expect("it runs somewhere");
    let elsewhere = |index: u32| scene.tasks(&id)[index as usize].node.as_ref() != Some(&gone);
    let others: Vec<u32> = (0..4).filter(|index| elsewhere(*index)).collect();
    let others: Vec<String> = others.iter().map(|rank| scene.line_in(&format!("pid-{rank}"))).collect();
    assert!(!others.is_empty());
    let digit = |at: usize| gone[at..=at].parse::<usize>().expect("a number");
    let (cluster, agent) = (digit(1), digit(3));
    federation.of_agents[cluster][agent].break_by(Fault::Cut);
    federation.kill_agent(cluster, agent);
    until_true("the others are taken back", || others.iter().all(|pid| !is_alive(pid)));
    until_true("all four again", || {
        let tasks = scene.tasks(&id);
        running(scene, &id) == 4 && tasks.iter().all(|task| task.state == TaskState::Running && task.attempts > 1)
    });
    assert!(scene.tasks(&id).iter().all(|task| task.node.as_ref() != Some(&gone)));
    scene.write("go", "");
    scene.ok(&["wait", &id]);
    each_knows_where_all_are(scene, &id, "", 3);
    ended_once(scene, &id, 4);
}
