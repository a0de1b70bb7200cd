//! Guaranteed and opportunistic work on the same machines: which is preempted, what happens to it, and what is reported.

use crate::running::AWAIT_GO;
use crate::support::{Cluster, Scene, until, until_true};
use amalgam_core::hosting::{Entry, RoleEvent};
use amalgam_core::protocol::ToNode;
use amalgam_core::role::Event;
use amalgam_core::vocabulary::Generation;
use amalgam_daemon::api::{
    ClusterSummary, Guarantee, JobDetail, JobState, NodeDetail, NodeSummary, QueueSummary, StoryLine, TaskState,
};
use amalgam_daemon::journal::JournalReader;
use std::time::{Duration, Instant};

/// Like [`AWAIT_GO`], and each start writes a line.
const AWAIT_GO_EACH: &str = "echo start >> starts-$AMALGAM_INDEX; while [ ! -e go ]; do sleep 0.02; done";

/// The lines of one kind in a job's story.
fn result(story: &[StoryLine], kind: &str) -> Vec<String> {
    story.iter().filter(|line| line.kind == kind).map(|line| line.text.clone()).collect()
}

fn submit(scene: &Scene, execution: &str, arguments: &[&str], script: &str) -> String {
    let common = ["--execution", execution, "-r", "cpu=1"];
    scene.submit(&[&common, arguments, &["--", "sh", "-c", script]].concat())
}

fn running(scene: &Scene, id: &str) -> (u64, u64) {
    let attempts = scene.job(id).attempts;
    (attempts.guaranteed, attempts.opportunistic)
}

/// Two CPUs that two opportunistic tasks of this script use.
fn filled(script: &str) -> (Scene, String) {
    let scene = Scene::dev(&["--preset", "mercury"]);
    let id = submit(&scene, "opportunistic", &["--array", "0-1"], script);
    until_true("two opportunistic attempts", || running(&scene, &id) == (0, 2));
    (scene, id)
}

#[test]
fn guaranteed_work_starts_at_once_and_preempted_tasks_run_again() {
    let (scene, opportunistic) = filled(&format!("trap 'echo $AMALGAM_INDEX >> terms; exit 1' TERM; {AWAIT_GO_EACH}"));
    // A started shell may not have set its trap yet.
    (0..2).for_each(|index| drop(scene.line_in(&format!("starts-{index}"))));
    let submitted = Instant::now();
    let guaranteed = submit(&scene, "guaranteed", &[], &format!("echo here > arrived; {AWAIT_GO}"));
    scene.line_in("arrived");
    let took = submitted.elapsed();
    assert!(took < Duration::from_secs(5), "far below the kill grace of 10 s: {took:?}");
    let was_preempted = scene.read("terms").trim().to_owned();
    assert!(["0", "1"].contains(&was_preempted.as_str()), "one of the two gave way: {was_preempted}");

    until_true("both kinds at once", || {
        running(&scene, &guaranteed) == (1, 0) && running(&scene, &opportunistic) == (0, 1)
    });
    until_true("the other one at its node again", || scene.job(&opportunistic).attempts.at_nodes == 1);
    both_kinds_are_shown(&scene, &opportunistic);

    scene.write("go", "");
    scene.ok(&["wait", &guaranteed, &opportunistic]);
    let starts = |index: &str| scene.read(&format!("starts-{index}")).lines().count();
    let kept = if was_preempted == "0" { "1" } else { "0" };
    assert_eq!((starts(&was_preempted), starts(kept)), (2, 1));
    preemption_is_told(&scene, &opportunistic, &guaranteed);
    let output = scene.ok(&["info", &opportunistic]);
    assert!(output.contains("  attempts      1 was preempted and 0 were shed\n"), "{output}");
}

fn both_kinds_are_shown(scene: &Scene, opportunistic: &str) {
    let job: JobDetail = scene.job(opportunistic);
    assert_eq!((job.attempts.preempted, job.attempts.shed), (1, 0));
    let output = scene.ok(&["info", opportunistic]);
    let attempts =
        "0 guaranteed and 1 opportunistic run, 1 at nodes and not started; 1 was preempted and 0 were shed so far";
    assert!(output.contains(attempts), "{output}");

    assert_eq!((job.summary.tasks.running, job.summary.tasks.queued), (1, 1));
    assert_eq!((job.stages[0].tasks.running, job.stages[0].tasks.queued), (1, 1));
    let states = |state| scene.tasks(opportunistic).iter().filter(|task| task.state == state).count();
    assert_eq!((states(TaskState::Running), states(TaskState::Queued)), (1, 1));

    let node = &scene.json::<Vec<NodeSummary>>(&["node", "list"])[0];
    assert_eq!((node.running, node.opportunistic, node.opportunistic_waiting), (1, 1, 1));
    assert_eq!(node.opportunistic_used.get("cpu"), Some(&1.0));
    assert!(scene.ok(&["node", "list"]).contains("1 (1 waiting)"));
    let detail: NodeDetail = scene.json(&["node", "info", "0"]);
    let of = |guarantee, waiting| {
        detail.attempts.iter().filter(|one| (one.guarantee, one.waiting) == (guarantee, waiting)).count()
    };
    let (guaranteed, opportunistic) = (Guarantee::Guaranteed, Guarantee::Opportunistic);
    assert_eq!((of(guaranteed, false), of(opportunistic, false), of(opportunistic, true)), (1, 1, 1));

    let queues: Vec<QueueSummary> = scene.json(&["queue", "list"]);
    for queue in queues.iter().filter(|queue| ["root", "root.default"].contains(&queue.name.as_str())) {
        let attempts = &queue.attempts;
        assert_eq!((attempts.guaranteed, attempts.opportunistic, attempts.preempted), (1, 1, 1), "{}", queue.name);
        assert_eq!((queue.running_tasks, queue.pending_tasks), (2, 1), "{}", queue.name);
    }
    let cluster: ClusterSummary = scene.json(&["top"]);
    assert_eq!((cluster.attempts.guaranteed, cluster.attempts.opportunistic), (1, 1));
    assert_eq!((cluster.tasks.running, cluster.tasks.queued), (2, 1));
    let picture = scene.ok(&["top"]);
    assert!(picture.contains("and 1 cpu opportunistically"), "{picture}");
    let metrics = scene.http().text("/metrics");
    for line in [
        "amalgam_running_attempts_by_kind{kind=\"guaranteed\"} 1",
        "amalgam_running_attempts_by_kind{kind=\"opportunistic\"} 1",
        "amalgam_waiting_attempts 1",
        "amalgam_attempts_preempted_total 1",
        "amalgam_attempts_shed_total 0",
        "amalgam_tokens_refused_total 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

fn preemption_is_told(scene: &Scene, opportunistic: &str, guaranteed: &str) {
    let story = scene.story(opportunistic);
    let launched = result(&story, "launched");
    assert!(launched.len() == 3 && launched.iter().all(|text| text.contains("sent as opportunistic work to")));
    let preempting = result(&story, "preempting").join("\n");
    let cause = format!("is preempted for the guaranteed attempt {guaranteed}-");
    assert!(preempting.contains(&cause) && preempting.contains(&format!("of job {guaranteed}")), "{preempting}");
    let ended = result(&story, "ended").join("\n");
    let cause = format!("preempted by guaranteed work (to make room for attempt {guaranteed}-");
    assert!(ended.contains(&cause), "{ended}");
    assert!(ended.contains("; it waits again"), "{ended}");
    assert!(result(&story, "queued").join("\n").contains("for room"));
    let own = result(&scene.story(guaranteed), "launched").join("\n");
    assert!(own.contains("granted as guaranteed work on"), "{own}");
}

#[test]
fn a_job_that_only_waits_at_a_node_is_pending_until_its_first_process_starts() {
    let (scene, _) = filled(AWAIT_GO);
    let behind = submit(&scene, "opportunistic", &[], "true");
    until_true("an attempt at the node", || scene.job(&behind).attempts.at_nodes == 1);
    let job = scene.job(&behind).summary;
    assert_eq!((job.state, job.tasks.running, job.tasks.queued), (JobState::Pending, 0, 1));
    assert_eq!(job.started_at, None);
    let listed = scene.ok(&["list"]);
    assert!(listed.contains("1 task waits in a node's queue for room"), "{listed}");
    scene.write("go", "");
    scene.ok(&["wait", &behind]);
}

#[test]
fn tasks_that_a_quota_holds_back_say_so_and_what_would_change_it() {
    let scene = Scene::new();
    let config = scene.write("server.toml", "preset = 'mercury'\n[policies.opportunistic]\nquota = 1\n");
    scene.start_dev(&["--cpus", "2", "--config", config.to_str().unwrap()]);
    let id = submit(&scene, "opportunistic", &["--array", "0-2"], AWAIT_GO);
    until_true("an opportunistic attempt", || running(&scene, &id) == (0, 1));
    let why =
        "its quota of opportunistic tasks: 1 of 1 are at nodes, and the next one is launched when one of them ends";
    assert!(scene.ok(&["info", &id]).contains(why), "{}", scene.ok(&["info", &id]));
    let blocked = result(&scene.story(&id), "blocked");
    assert!(blocked.len() == 1 && blocked[0].contains(why), "{blocked:?}");
    scene.write("go", "");
    scene.ok(&["wait", &id]);
}

#[test]
fn an_agent_names_the_attempt_that_preempts() {
    let cluster = Cluster::start(1, 1, "preset = 'mercury'\n");
    let scene = &cluster.scene;
    let opportunistic = submit(scene, "opportunistic", &[], AWAIT_GO);
    until_true("an opportunistic attempt", || running(scene, &opportunistic) == (0, 1));
    let guaranteed = submit(scene, "guaranteed", &[], "true");
    scene.ok(&["wait", &guaranteed]);
    scene.write("go", "");
    scene.ok(&["wait", &opportunistic]);
    let ended = result(&scene.story(&opportunistic), "ended").join("\n");
    assert!(ended.contains(&format!("(to make room for attempt {guaranteed}-")), "{ended}");
}

/// The oldest valid generation of tokens, as sent to the separate agents.
fn oldest_generation(scene: &Scene) -> Option<Generation> {
    let files = std::fs::read_dir(scene.journals()).unwrap().map(|file| file.unwrap().path());
    let of_agents = files.filter(|path| path.to_string_lossy().contains("node-"));
    let result = of_agents.filter_map(|path| {
        let mut journal = JournalReader::open(&path).unwrap();
        let entries = std::iter::from_fn(|| journal.next_entry().unwrap());
        let result = entries.filter_map(|entry| match entry {
            Entry::Handled {
                event: RoleEvent::Node(_, Event::Message { body: ToNode::Expire { before }, .. }),
                ..
            } => Some(before),
            _ => None,
        });
        result.max()
    });
    result.max()
}

#[test]
fn work_of_both_kinds_goes_on_through_generations_of_tokens_and_with_the_key_of_the_next_server() {
    let cluster = Cluster::start(1, 2, "preset = 'mercury'\nheartbeat = '100ms'\ntoken_life = '1s'\n");
    let scene = &cluster.scene;
    for is_last in [false, true] {
        let kinds = ["guaranteed", "opportunistic"];
        let ids = kinds.map(|kind| submit(scene, kind, &["--array", "0-11"], "sleep 0.3"));
        for id in &ids {
            scene.ok(&["wait", id]);
            assert_eq!(scene.job(id).summary.tasks.succeeded, 12);
            let lost = [result(&scene.story(id), "lost"), result(&scene.story(id), "token-refused")];
            assert_eq!(lost.concat(), Vec::<String>::new());
        }
        if !is_last {
            assert!(oldest_generation(scene) >= Some(Generation(1)), "{:?}", oldest_generation(scene));
            cluster.kill_server();
            cluster.start_server();
        }
    }
}

#[test]
fn a_task_that_ignores_sigterm_is_killed_after_the_grace_period_and_runs_again() {
    let (scene, opportunistic) = filled(&format!("trap '' TERM; {AWAIT_GO_EACH}"));
    let submitted = Instant::now();
    let guaranteed = submit(&scene, "guaranteed", &[], "true");
    scene.ok(&["wait", &guaranteed]);
    let took = submitted.elapsed();
    assert!(took >= Duration::from_secs(9), "the grace is 10 s, and not {took:?}");
    scene.write("go", "");
    scene.ok(&["wait", &opportunistic]);
    let starts: usize = (0..2).map(|index| scene.read(&format!("starts-{index}")).lines().count()).sum();
    assert_eq!((starts, scene.job(&opportunistic).attempts.preempted), (3, 1));
}

#[test]
fn long_tasks_are_promoted_and_not_preempted() {
    let scene = Scene::new();
    let config = scene.write("server.toml", "preset = 'mercury'\n[policies.opportunistic]\npromote_after = '500ms'\n");
    scene.start_dev(&["--cpus", "1", "--config", config.to_str().unwrap()]);
    let long = submit(&scene, "opportunistic", &[], AWAIT_GO);
    until_true("an attempt that became guaranteed", || running(&scene, &long) == (1, 0));
    let node = &scene.json::<Vec<NodeSummary>>(&["node", "list"])[0];
    assert_eq!((node.running, node.opportunistic), (1, 0));
    let next = submit(&scene, "guaranteed", &[], "true");
    until_true("the next job waits", || {
        scene.job(&next).summary.reason.is_some_and(|reason| reason.contains("no room"))
    });
    scene.write("go", "");
    scene.ok(&["wait", &long, &next]);
    let promoted = result(&scene.story(&long), "promoted").join("\n");
    assert!(promoted.contains("is guaranteed from now on"), "{promoted}");
    assert_eq!(scene.job(&long).attempts.preempted, 0);
}

#[test]
fn a_full_queue_sheds_with_a_reason_and_nothing_is_lost() {
    let scene = Scene::new();
    let config = scene.write("server.toml", "preset = 'mercury'\n[policies.opportunistic]\nqueue_limit = 1\n");
    scene.start_dev(&["--cpus", "1", "--config", config.to_str().unwrap()]);
    let id = submit(&scene, "opportunistic", &["--array", "0-3"], AWAIT_GO);
    let shed = until("a shed attempt", || {
        let ended = result(&scene.story(&id), "ended").join("\n");
        ended.contains("shed").then_some(ended)
    });
    assert!(shed.contains("shed from a node's queue (the queue is full: limit 1)"), "{shed}");
    assert!(shed.contains("; it waits again"), "{shed}");
    scene.write("go", "");
    scene.ok(&["wait", &id]);
    let job = scene.job(&id);
    assert_eq!((job.summary.tasks.succeeded, job.attempts.shed > 0), (4, true));
}

#[test]
fn where_the_preset_knows_no_kinds_opportunistic_work_just_runs() {
    let scene = Scene::dev(&[]);
    assert_eq!(scene.run(&["run", "--execution", "opportunistic", "--array", "0-9", "--", "true"]).code, 0);
    let launched = result(&scene.story("last"), "launched");
    assert!(launched.iter().all(|text| text.contains(" granted on ")), "{launched:?}");
    assert_eq!(scene.job("last").attempts.preempted, 0);
}

#[test]
fn a_configuration_of_opportunistic_work_is_checked_by_line() {
    let scene = Scene::new();
    let check = |keys: &str| {
        let text = format!("preset = 'mercury'\n[policies.opportunistic]\n{keys}\n");
        scene.run(&["config", "check", "--server-config", scene.write("server.toml", &text).to_str().unwrap()])
    };
    assert_eq!(check("quota = 5\nlimit = 'forecast'").code, 0);
    for (keys, output) in [("percent = 101", "from 0 (all"), ("quota = 0", "a whole number from 1 on")] {
        let result = check(keys);
        assert!(result.code == 2 && result.err.contains("server.toml:3:"), "{result:?}");
        assert!(result.err.contains(output), "{result:?}");
    }
}

#[test]
fn what_waits_moves_to_a_node_that_has_room() {
    let scene = Scene::dev(&["--preset", "mercury-plus", "--nodes", "2", "--cpus", "1"]);
    let nodes = scene.json::<Vec<NodeSummary>>(&["node", "list"]);
    scene.ok(&["node", "drain", &nodes[1].name]);
    let id = submit(&scene, "opportunistic", &["--array", "0-1", "--expected", "10s"], AWAIT_GO);
    until_true("one runs and one waits", || running(&scene, &id) == (0, 1) && scene.job(&id).attempts.at_nodes == 1);
    scene.ok(&["node", "undrain", &nodes[1].name]);
    until_true("both run", || running(&scene, &id) == (0, 2));
    let launched = result(&scene.story(&id), "launched");
    assert!(
        launched.iter().any(|text| text.contains("room on this node while the task waited on another")),
        "{launched:?}"
    );
    assert_eq!(scene.job(&id).attempts.shed, 1);
    scene.write("go", "");
    scene.ok(&["wait", &id]);
}
