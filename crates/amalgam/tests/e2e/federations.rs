//! Federations as real processes: jobs span clusters, and every task ends once, whichever link or daemon fails.

use crate::kill_loop::seed;
use crate::running::AWAIT_GO;
use crate::support::{Fault, Federation, Scene, is_alive, result, until_true};
use amalgam_daemon::api::{ClusterSummary, JobState, JobSummary, NodeState, NodeSummary, TaskState};
use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

/// Three clusters of two nodes with two CPUs each, under two global masters.
fn dev() -> Scene {
    let scene = Scene::dev(&["--clusters", "3", "--globals", "2", "--nodes", "2"]);
    (0..3).for_each(|cluster| scene.has_executor(&scene.state().join(format!("cluster-{cluster}"))));
    scene
}

pub fn nodes(scene: &Scene) -> BTreeMap<String, NodeSummary> {
    let nodes: Vec<NodeSummary> = scene.json(&["node", "list"]);
    nodes.into_iter().map(|node| (node.name.clone(), node)).collect()
}

/// The clusters on whose nodes these tasks of a job are.
fn clusters_of(scene: &Scene, id: &str) -> BTreeSet<u32> {
    let nodes = nodes(scene);
    let of = |node: Option<String>| nodes.get(&node?).and_then(|node| node.cluster);
    scene.tasks(id).into_iter().filter_map(|task| of(task.node)).collect()
}

/// Each of these tasks wrote its number once, and its global master has recorded its success.
pub fn all_ran_once(scene: &Scene, id: &str, file: &str, tasks: u32) {
    scene.ok(&["wait", id]);
    let mut ran: Vec<u32> = scene.read(file).lines().map(|line| line.parse().unwrap()).collect();
    ran.sort_unstable();
    assert_eq!(ran, (0..tasks).collect::<Vec<_>>());
    ended_once(scene, id, tasks);
}

/// Each of these tasks is recorded as succeeded, exactly once.
pub fn ended_once(scene: &Scene, id: &str, tasks: u32) {
    let known = scene.tasks(id);
    assert_eq!(known.len(), tasks as usize);
    assert!(known.iter().all(|task| task.state == TaskState::Succeeded), "{known:#?}");
    let mut ends: BTreeMap<String, u32> = BTreeMap::new();
    for line in scene.story(id).iter().filter(|line| line.kind == "ended" && line.text.contains(" succeeded")) {
        *ends.entry(line.task.clone().unwrap_or_default()).or_default() += 1;
    }
    ends.remove("");
    assert!(ends.len() == tasks as usize && ends.values().all(|ends| *ends == 1), "{ends:?}");
}

#[test]
fn an_array_fills_all_clusters_of_a_federation_in_one_process() {
    let scene = dev();
    let all = nodes(&scene);
    assert_eq!(all.values().map(|node| node.cluster.unwrap()).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2]);
    let script = format!("{AWAIT_GO}; echo $AMALGAM_INDEX >> ran; echo said by $AMALGAM_INDEX");
    let id = scene.submit(&["--array", "0-11", "--", "sh", "-c", &script]);
    until_true("all twelve at once", || scene.job(&id).summary.tasks.running == 12);
    assert_eq!(clusters_of(&scene, &id), BTreeSet::from([0, 1, 2]));
    until_true("full nodes, as they are believed", || {
        nodes(&scene).values().all(|node| node.free["cpu"] == 0.0 && node.capacity["cpu"] == 2.0)
    });
    let top: ClusterSummary = scene.json(&["top"]);
    assert_eq!((top.global, top.nodes_up, top.clusters.len()), (Some(0), 6, 3));
    assert!(top.clusters.iter().all(|cluster| cluster.connected && cluster.told_seconds.unwrap() < 5.0), "{top:#?}");
    let pictured = scene.ok(&["top"]);
    assert!(pictured.contains("global master 0; cluster 0: 2 of 2 nodes, heard "), "{pictured}");
    scene.write("go", "");
    all_ran_once(&scene, &id, "ran", 12);
    let logs = scene.ok(&["logs", &id]);
    let output: BTreeSet<u32> =
        logs.lines().filter_map(|line| line.split_once("said by ")?.1.trim().parse().ok()).collect();
    assert_eq!(output, (0..12).collect(), "from the nodes of all clusters: {logs}");
    let launched = scene.story(&format!("{id}.0.0")).into_iter().find(|line| line.kind == "launched").unwrap();
    assert!(launched.text.contains(" of cluster "), "{launched:?}");
    let started = scene.story(&id).into_iter().filter(|line| line.kind == "started");
    let parts: Vec<_> = started.map(|line| line.allocation.expect("each is told what its allocation took")).collect();
    // On a busy machine a process may get no core for a time that is longer than a single task.
    let is_whole = parts.iter().any(|parts| parts.communication > 0.0 && parts.processing > 0.0);
    assert!(parts.len() == 12 && is_whole, "their launches go by a master: {parts:?}");
}

#[test]
fn files_go_from_one_cluster_to_another() {
    let scene = dev();
    let job = "name = 'spread'\n[[stage]]\nname = 'write'\ntasks = 12\noutputs = ['part']\n\
               command = 'sleep 0.3; echo $AMALGAM_INDEX > part'\n\
               [[stage]]\nname = 'read'\nafter = ['write']\ninputs = ['write/*']\ncommand = 'cat inputs/write/*/part | sort -n | tr \"\\n\" \" \"'\n";
    scene.write("spread.toml", job);
    let id = scene.submit(&["spread.toml"]);
    scene.ok(&["wait", &id]);
    assert_eq!(clusters_of(&scene, &id).len(), 3, "all slots at once");
    assert_eq!(scene.ok(&["logs", &format!("{id}.read")]).trim(), "0 1 2 3 4 5 6 7 8 9 10 11");
}

#[test]
fn each_process_of_a_federation_names_calls_for_other_processes() {
    let scene = dev();
    let of_cluster = scene.state().join("cluster-1");
    let of_cluster = of_cluster.to_str().unwrap();
    let own: Vec<NodeSummary> = scene.json(&["node", "list", "--state-dir", of_cluster]);
    assert!(own.len() == 2 && own.iter().all(|node| node.cluster == Some(1)), "{own:#?}");
    let name = own[0].name.clone();
    let refused = scene.run(&["node", "drain", &name]);
    assert!(refused.code != 0 && refused.err.contains("is of cluster 1, whose master drains it"), "{refused:?}");
    scene.ok(&["node", "drain", "--state-dir", of_cluster, &name]);
    until_true("the global master hears of it", || nodes(&scene)[&name].state == NodeState::Closed);
    let id = scene.submit(&["--array", "0-9", "--", "sleep", "0.1"]);
    scene.ok(&["wait", &id]);
    assert!(scene.tasks(&id).iter().all(|task| task.node.as_ref() != Some(&name)), "nothing is launched there");
    // The other global master knows the same nodes.
    let other = scene.state().join("global-1");
    let listed: Vec<NodeSummary> = scene.json(&["node", "list", "--state-dir", other.to_str().unwrap()]);
    assert_eq!(listed.len(), 6);
}

#[test]
fn commands_are_redirected_to_the_global_master_that_owns_the_job() {
    let federation = Federation::start(2, 2, 1, "[[queue]]\nname = 'any'\n[[queue]]\nname = 'ours'\nglobal = 1");
    let scene = &federation.scene;
    until_true("both nodes", || nodes(scene).len() == 2 && federation.ok_at(1, &["node", "list"]).lines().count() == 3);
    let submit = |arguments: &[&str]| scene.submit(&[arguments, &["--", "sh", "-c", "echo it ran"]].concat());
    assert_eq!(submit(&["--queue", "any"]), "1");
    assert_eq!(submit(&["--queue", "ours"]), "2", "of the queue's global master");
    assert_eq!(submit(&["--queue", "any", "--after", "2"]), "4", "of the one that has job 2");
    assert_eq!(scene.ok(&["wait", "1-2,4"]).lines().count(), 3);
    let at_master = federation.home("cluster-1");
    let at_master = at_master.to_str().unwrap();
    for asked in [&["--state-dir", at_master][..], &[]] {
        assert_eq!(scene.ok(&[&["logs"], asked, &["2"]].concat()).trim(), "it ran");
        assert!(scene.ok(&[&["story"], asked, &["2.main.0"]].concat()).contains("launched  "));
        assert!(scene.ok(&[&["info"], asked, &["4"]].concat()).contains("job 4  sh  succeeded"));
        let listed: Vec<JobSummary> = scene.json(&[&["list", "--all"], asked].concat());
        assert_eq!(listed.iter().map(|job| job.id).collect::<Vec<_>>(), [1, 2, 4], "as they were submitted");
        assert_eq!(scene.ok(&[&["wait"], asked, &["last"]].concat()), "job 4 succeeded\n");
    }
    let here = scene.ok(&["submit", "-q", "--state-dir", at_master, "--queue", "any", "--", "sleep", "60"]);
    assert_eq!(here.trim(), "3", "of the first, since a cluster's master has no jobs");
    let there = submit(&["--queue", "ours", "--hold"]);
    let missing = scene.run(&["cancel", "9999", &there, here.trim()]);
    assert_eq!((missing.code, missing.out.as_str()), (1, "job 6 cancelled\njob 3 cancelled\n"));
    assert!(missing.err.contains("job 9999 not found"), "{missing:?}");

    federation.kill_global(1);
    let listed = scene.run(&["list", "--all", "-q"]);
    assert_eq!((listed.code, listed.out.as_str()), (1, "1\n3\n"), "it is not all");
    assert!(listed.err.contains("the jobs of another global master are missing"), "{listed:?}");
    for verb in [&["cancel", "last"][..], &["wait", "all"], &["story", "last"]] {
        let unknown = scene.run(verb);
        let output = "the jobs of another global master are missing";
        assert!(unknown.code == 1 && unknown.out.is_empty() && unknown.err.contains(output), "{verb:?}: {unknown:?}");
    }
    let away = scene.run(&["info", "2"]);
    assert!(away.code != 0 && away.err.contains("does not answer"), "{away:?}");
}

#[test]
fn a_queue_below_its_share_gets_it_soon_and_other_tasks_run_later() {
    let queues = "heartbeat = '200ms'\n[[queue]]\nname = 'anybody'\n\
                  [[queue]]\nname = 'owner'\nguaranteed = 0.5\nglobal = 0";
    let federation = Federation::start(2, 2, 1, queues);
    let scene = &federation.scene;
    until_true("both nodes", || nodes(scene).len() == 2);
    let script = |file: &str| format!("{AWAIT_GO}; echo $AMALGAM_INDEX >> {file}");
    let submit =
        |queue: &str, script: &str| scene.submit(&["--queue", queue, "--array", "0-3", "--", "sh", "-c", script]);
    let anybodys = submit("anybody", &script("anybodys"));
    until_true("all four CPUs in use", || scene.job(&anybodys).summary.tasks.running == 4);
    let owners = submit("owner", &script("owners"));
    until_true("two of them for who has half of all", || scene.job(&owners).summary.tasks.running == 2);
    until_true("and the other two as before", || scene.job(&anybodys).summary.tasks.running == 2);
    let ended: Vec<_> = scene.story(&anybodys).into_iter().filter(|line| line.kind == "ended").collect();
    assert!(ended.len() == 2 && ended.iter().all(|line| line.text.contains("preempted")), "{ended:#?}");
    let launched: Vec<_> = scene.story(&owners).into_iter().filter(|line| line.kind == "launched").collect();
    // The same global master has both jobs, so either of its rules may apply.
    let for_shares =
        |text: &str| text.contains("its queue's share") || text.contains("less than the job is entitled to");
    assert!(launched.iter().all(|line| for_shares(&line.text)), "{launched:#?}");
    scene.write("go", "");
    all_ran_once(scene, &owners, "owners", 4);
    all_ran_once(scene, &anybodys, "anybodys", 4);
}

/// A task that reports its start, and continues once its file exists.
const STEP: &str = "echo $$ > pid-$AMALGAM_INDEX; while [ ! -e go-$AMALGAM_INDEX ]; do sleep 0.02; done; \
    echo $AMALGAM_INDEX >> ran; echo said by $AMALGAM_INDEX";

pub fn let_go(scene: &Scene, tasks: impl IntoIterator<Item = u32>) {
    tasks.into_iter().for_each(|task| drop(scene.write(&format!("go-{task}"), "")));
}

/// A federation of two clusters with a node each, whose four CPUs run the first four of six tasks.
fn half_way() -> (Federation, String, Vec<String>) {
    go_half_way(Federation::start(2, 2, 1, "heartbeat = '200ms'"))
}

/// Runs the first four of six tasks on this federation.
pub fn go_half_way(federation: Federation) -> (Federation, String, Vec<String>) {
    let scene = &federation.scene;
    until_true("both nodes", || nodes(scene).len() == 2);
    let id = scene.submit(&["--array", "0-5", "--", "sh", "-c", STEP]);
    let pids = (0..4).map(|task| scene.line_in(&format!("pid-{task}"))).collect();
    until_true("the news of their starts", || scene.job(&id).summary.tasks.running == 4);
    (federation, id, pids)
}

#[test]
fn a_killed_global_master_takes_its_jobs_over_and_what_ended_meanwhile() {
    let (federation, id, pids) = half_way();
    let scene = &federation.scene;
    federation.kill_global(0);
    let_go(scene, [0, 1]);
    until_true("the ends of tasks without their global master", || !is_alive(&pids[0]) && !is_alive(&pids[1]));
    assert!(is_alive(&pids[2]) && is_alive(&pids[3]));
    federation.start_global(0);
    until_true("the ends that were kept", || scene.job(&id).summary.tasks.succeeded == 2);
    assert!(is_alive(&pids[2]) && is_alive(&pids[3]));
    let_go(scene, 2..6);
    all_ran_once(scene, &id, "ran", 6);
    assert!(scene.tasks(&id).iter().all(|task| task.attempts == 1));
}

#[test]
fn a_killed_master_takes_its_nodes_over_and_jobs_go_on_elsewhere() {
    let (federation, id, pids) = half_way();
    let scene = &federation.scene;
    federation.kill_master(0);
    let let_go_on = |cluster: u32| {
        let on: Vec<u32> = scene
            .tasks(&id)
            .iter()
            .filter(|task| task.state == TaskState::Running)
            .filter_map(|task| {
                let name = task.node.as_deref()?;
                name.starts_with(&format!("c{cluster}-")).then_some(task.index)
            })
            .collect();
        let_go(scene, on.iter().copied());
        on
    };
    // The cluster with a running master continues with the waiting tasks.
    let there = let_go_on(1);
    assert_eq!(there.len(), 2);
    scene.line_in("pid-4");
    scene.line_in("pid-5");
    let away = let_go_on(0);
    until_true("ends without a master", || away.iter().all(|task| !is_alive(&pids[*task as usize])));
    let_go(scene, [4, 5]);
    until_true("all that can be known", || scene.job(&id).summary.tasks.succeeded == 4);
    federation.start_master(0);
    all_ran_once(scene, &id, "ran", 6);
    assert!(scene.tasks(&id).iter().all(|task| task.attempts == 1));
    until_true("the whole federation", || nodes(scene).values().all(|node| node.state == NodeState::Up));
}

#[test]
fn a_federation_in_one_process_is_killed_and_its_tasks_go_on() {
    let scene = dev();
    let id = scene.submit(&["--array", "0-13", "--", "sh", "-c", STEP]);
    let pids: Vec<String> = (0..12).map(|task| scene.line_in(&format!("pid-{task}"))).collect();
    until_true("the news of their starts", || scene.job(&id).summary.tasks.running == 12);
    scene.kill_daemon();
    let_go(&scene, 0..3);
    until_true("ends while nobody is there", || (0..3).all(|task| !is_alive(&pids[task])));
    scene.start_dev(&["--clusters", "3", "--globals", "2", "--nodes", "2"]);
    until_true("the ends that were kept", || scene.job(&id).summary.tasks.succeeded == 3);
    let_go(&scene, 3..14);
    all_ran_once(&scene, &id, "ran", 14);
}

fn cut_from_a_global_master(fault: Fault) {
    let (federation, id, pids) = half_way();
    let scene = &federation.scene;
    // Only its own link: the other global master still reaches both clusters.
    federation.to_masters[0][0].break_by(fault);
    let_go(scene, 0..6);
    until_true("all that it started", || pids.iter().all(|pid| !is_alive(pid)));
    let other = federation.global_home(1);
    let other = other.to_str().unwrap();
    let elsewhere = scene.ok(&["submit", "-q", "--state-dir", other, "--array", "0-3", "--", "true"]);
    scene.ok(&["wait", "--state-dir", other, elsewhere.trim()]);
    // Waiting tasks run in the cluster that it reaches.
    until_true("all but what ended out of its sight", || scene.job(&id).summary.tasks.succeeded == 4);
    assert_eq!(scene.job(&id).summary.state, JobState::Running);
    federation.to_masters[0][0].heal();
    all_ran_once(scene, &id, "ran", 6);
    assert!(scene.tasks(&id).iter().all(|task| task.attempts == 1));
}

#[test]
fn ends_out_of_a_global_masters_sight_are_told_when_the_link_is_made_again() {
    cut_from_a_global_master(Fault::Cut);
}

#[test]
fn ends_that_a_silent_link_held_back_are_told_when_it_is_healed() {
    cut_from_a_global_master(Fault::Held);
}

#[test]
fn a_node_that_is_cut_off_goes_on_and_is_heard_when_its_link_is_healed() {
    let (federation, id, pids) = half_way();
    let scene = &federation.scene;
    federation.of_agents[0][0].break_by(Fault::Cut);
    until_true("the global master hears that it is away", || {
        nodes(scene).values().any(|node| node.cluster == Some(0) && node.state == NodeState::Unreachable)
    });
    let_go(scene, 0..6);
    until_true("all that runs", || pids.iter().all(|pid| !is_alive(pid)));
    until_true("what waited, in the other cluster", || scene.job(&id).summary.tasks.succeeded == 4);
    let logs = scene.run(&["logs", &id]);
    assert_eq!((logs.code, logs.out.lines().count()), (1, 4), "what the others said is told: {logs:?}");
    assert!(logs.err.contains("the output is on node c0-0, which is not reachable"), "{logs:?}");
    federation.of_agents[0][0].heal();
    all_ran_once(scene, &id, "ran", 6);
    assert!(scene.tasks(&id).iter().all(|task| task.attempts == 1));
}

#[test]
fn what_a_lost_node_had_runs_in_another_cluster() {
    let federation = Federation::start(2, 1, 1, "heartbeat = '100ms'\nmissed_heartbeats = 3\nnode_grace = '700ms'");
    let scene = &federation.scene;
    until_true("both nodes", || nodes(scene).len() == 2);
    let script = "echo $AMALGAM_INDEX >> began; while [ ! -e go ]; do sleep 0.02; done; echo $AMALGAM_INDEX >> done";
    let id = scene.submit(&["--array", "0-3", "--", "sh", "-c", script]);
    until_true("four tasks", || scene.read("began").lines().count() == 4);
    federation.of_agents[0][0].break_by(Fault::Cut);
    until_true("the node is given up", || nodes(scene).values().any(|node| node.state == NodeState::Lost));
    // Only now; otherwise its tasks would succeed.
    federation.kill_agent(0, 0);
    until_true("they are tried again", || scene.story(&id).iter().filter(|line| line.kind == "lost").count() == 2);
    scene.write("go", "");
    scene.ok(&["wait", &id]);
    ended_once(scene, &id, 4);
    assert!(scene.tasks(&id).iter().all(|task| task.node.as_deref() == Some("c1-0")));
}

/// Many short tasks of both global masters run under repeated random `trouble`. Every task ends once, and all have started when
/// the troubles are over.
fn survives(troubles: u32, trouble: impl Fn(&Federation, &mut dyn FnMut(usize) -> usize)) {
    const TASKS: u32 = 300;
    let federation = Federation::start(2, 2, 2, "heartbeat = '200ms'");
    let scene = &federation.scene;
    until_true("all nodes", || nodes(scene).len() == 4);
    let range = format!("0-{}", TASKS - 1);
    let homes = [0, 1].map(|global| federation.global_home(global));
    let homes = homes.each_ref().map(|home| home.to_str().unwrap());
    let submit = |home: &str, file: &str| {
        let script = format!("sleep 0.1; echo $AMALGAM_INDEX >> {file}");
        let arguments = ["submit", "-q", "--state-dir", home, "--array", &range, "--", "sh", "-c", &script];
        scene.ok(&arguments).trim().to_owned()
    };
    let jobs = [submit(homes[0], "ran-0"), submit(homes[1], "ran-1")];
    let mut random = seed();
    println!("AMALGAM_KILL_SEED={random}");
    let mut draw = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    for _ in 0..troubles {
        trouble(&federation, &mut draw);
        thread::sleep(Duration::from_millis(draw(200) as u64));
    }
    for ((job, home), file) in jobs.iter().zip(homes).zip(["ran-0", "ran-1"]) {
        let waited = result(scene.command(&["wait", "--state-dir", home, job]));
        assert_eq!(waited.code, 0, "{waited:?}");
        let lines = scene.read(file);
        let ran: BTreeSet<u32> = lines.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!((ran.len(), lines.lines().count()), (TASKS as usize, TASKS as usize), "each once: {file}");
    }
    ended_once(scene, &jobs[0], TASKS);
    // All resources are free again.
    until_true("all room", || nodes(scene).values().all(|node| node.free["cpu"] == 2.0 && node.running == 0));
}

fn break_a_link(federation: &Federation, draw: &mut dyn FnMut(usize) -> usize) {
    let links: Vec<_> = federation.links().collect();
    let (link, fault) = (links[draw(links.len())], [Fault::Cut, Fault::Held][draw(2)]);
    link.break_by(fault);
    thread::sleep(Duration::from_millis(100 + draw(700) as u64));
    link.heal();
}

#[test]
fn links_that_break_and_heal_at_random_lose_no_task_and_end_none_twice() {
    survives(14, break_a_link);
}

#[test]
fn daemons_that_are_killed_between_broken_links_lose_no_task_and_end_none_twice() {
    survives(12, |federation, draw| {
        let pause = Duration::from_millis(50 + draw(400) as u64);
        let which = draw(2);
        match draw(4) {
            0 => {
                federation.kill_global(which);
                thread::sleep(pause);
                federation.start_global(which);
            }
            1 => {
                federation.kill_master(which);
                thread::sleep(pause);
                federation.start_master(which);
            }
            2 => {
                let agent = draw(2);
                federation.kill_agent(which, agent);
                thread::sleep(pause);
                federation.start_agent(which, agent);
            }
            _ => break_a_link(federation, draw),
        }
    });
}
