//! Order of jobs, waiting jobs and their reasons.

use crate::running::AWAIT_GO;
use crate::support::{Cluster, Scene, until, until_true};
use amalgam_daemon::api::{JobDetail, NodeSummary};
use std::fs;

/// The reasons that a job gives for waiting.
fn reasons(job: &JobDetail) -> String {
    let stages = job.stages.iter().flat_map(|stage| &stage.reasons);
    let all: Vec<&str> = job.summary.reason.iter().chain(&job.reasons).chain(stages).map(String::as_str).collect();
    all.join("\n")
}

/// Waits until the job has a reason with these words, and returns it.
fn waits_because(scene: &Scene, id: &str, words: &str) -> String {
    until(&format!("`{words}` as a reason of job {id}"), || {
        let reasons = reasons(&scene.job(id));
        reasons.contains(words).then_some(reasons)
    })
}

#[test]
fn priorities_order_jobs() {
    for preset in ["fifo", "capacity", "drf", "sjf", "srtf", "tetris", "mercury"] {
        let scene = Scene::dev(&["--cpus", "1", "--preset", preset]);
        let blocker = scene.submit(&["--", "sh", "-c", AWAIT_GO]);
        until_true("a busy node", || scene.job(&blocker).summary.tasks.running == 1);
        let mut last = String::new();
        for (name, priority) in [("low", "-5"), ("middle", "0"), ("late-middle", "0"), ("high", "10")] {
            last = scene.submit(&[
                "--name",
                name,
                "--priority",
                priority,
                "--",
                "sh",
                "-c",
                "echo $AMALGAM_JOB_NAME >> order",
            ]);
        }
        let because = waits_because(&scene, "2", "ahead");
        assert!(because.contains("priority"), "the rule is named: {because}");
        scene.write("go", "");
        scene.ok(&["wait", &format!("1-{last}")]);
        assert_eq!(scene.read("order"), "high\nmiddle\nlate-middle\nlow\n", "{preset}");
    }
}

#[test]
fn jobs_that_place_their_tasks_themselves_run_each_once_also_when_the_server_is_killed() {
    for preset in ["sparrow", "apollo"] {
        let cluster = Cluster::start(2, 1, &format!("preset = '{preset}'\n"));
        let scene = &cluster.scene;
        let id = scene.submit(&["--array", "0-9", "--", "sh", "-c", "sleep 0.2; echo $AMALGAM_INDEX >> ran"]);
        until_true("a running task", || scene.job(&id).summary.tasks.running > 0);
        cluster.kill_server();
        cluster.start_server();
        scene.ok(&["wait", &id]);
        let mut ran: Vec<String> = scene.read("ran").lines().map(str::to_owned).collect();
        ran.sort();
        assert_eq!(ran, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"], "{preset}");
    }
}

#[test]
fn a_task_runs_near_its_input_or_after_a_delay_elsewhere() {
    let cluster = Cluster::start(2, 1, "[policies]\nnode_delay = '3s'\nrack_delay = '0s'\n");
    let scene = &cluster.scene;
    until_true("two nodes", || scene.json::<Vec<NodeSummary>>(&["node", "list"]).len() == 2);
    let file = |near: &str| scene.write("near.toml", &format!("command = '{AWAIT_GO}'\nnear = ['{near}']\n"));
    let submit = |near: &str| scene.submit(&[file(near).to_str().unwrap()]);
    let first = submit("node-1");
    until_true("a running task", || scene.job(&first).summary.tasks.running == 1);
    let second = submit("node-1");
    waits_because(scene, &second, "waits for room near its input");
    until_true("a task elsewhere", || scene.job(&second).summary.tasks.running == 1);
    scene.write("go", "");
    scene.ok(&["wait", &first, &second]);
    let story = |id: &str| scene.ok(&["story", id]);
    assert!(story(&first).contains("main started on node-1"), "{}", story(&first));
    assert!(story(&second).contains("main started on node-0"), "{}", story(&second));
    let unknown = scene.run(&["submit", file("nod-1").to_str().unwrap()]);
    assert!(unknown.code != 0 && unknown.err.contains("known: node-0, node-1"), "{unknown:?}");
}

#[test]
fn queues_keep_to_their_limits_and_say_so() {
    let scene = Scene::new();
    let config = scene.write(
        "server.toml",
        "[[queue]]\nname = 'default'\n[[queue]]\nname = 'half'\nmaximum = 0.5\n\
         [[queue]]\nname = 'few'\nmax_running_jobs = 1\n[[queue]]\nname = 'fair'\nuser_limit = 0.5\n\
         [[queue]]\nname = 'brief'\ndefault_timeout = '300ms'\n",
    );
    scene.start_dev(&["--cpus", "4", "--config", config.to_str().unwrap()]);
    let submit = |queue: &str| scene.submit(&["--queue", queue, "--array", "0-3", "--", "sh", "-c", AWAIT_GO]);
    let running = |id: &str| scene.job(id).summary.tasks.running;

    let half = submit("half");
    until_true("half of the cluster in use", || running(&half) == 2);
    waits_because(&scene, &half, "queue root.half is at its maximum share");
    assert_eq!(running(&half), 2);
    scene.ok(&["cancel", &half]);

    let fair = submit("root.fair");
    until_true("one user's share in use", || running(&fair) == 2);
    waits_because(&scene, &fair, "limit per user of queue root.fair");
    assert_eq!(running(&fair), 2);
    scene.ok(&["cancel", &fair]);

    let few = submit("few");
    let next = submit("few");
    until_true("a running job", || running(&few) == 4);
    waits_because(&scene, &next, "queue root.few already runs 1 job");
    scene.ok(&["cancel", &few, &next]);

    assert_eq!(scene.run(&["run", "--queue", "brief", "--", "sleep", "60"]).code, 124);
    let unknown = scene.run(&["submit", "--queue", "halve", "--", "true"]);
    assert!(unknown.code != 0 && unknown.err.contains("halve"), "{unknown:?}");
}

#[test]
fn what_no_node_can_run_is_refused_with_the_reason() {
    let scene = Scene::dev(&["--attribute", "zone=earth"]);
    let large = scene.run(&["submit", "-r", "cpu=64", "--", "true"]);
    assert!(large.code != 0, "{large:?}");
    let nodes: Vec<NodeSummary> = scene.json(&["node", "list"]);
    let closest = format!("the node that fits best, {}, lacks", nodes[0].name);
    assert!(large.err.contains(&closest) && large.err.contains("62 cpu"), "{large:?}");
    let elsewhere = scene.run(&["submit", "--constraint", "zone=mars", "--", "true"]);
    assert!(elsewhere.code != 0 && elsewhere.err.contains("no node meets zone=mars"), "{elsewhere:?}");
    let newer = scene.run(&["submit", "--constraint", "kernel>=99", "--", "true"]);
    assert!(newer.err.contains("kernel>=99"), "{newer:?}");
    let unknown = scene.run(&["submit", "-r", "fpga=1", "--", "true"]);
    assert!(unknown.code != 0 && unknown.err.contains("fpga"), "{unknown:?}");
    assert!(scene.jobs().is_empty());

    let patient = scene.submit(&["--wait-for-nodes", "--constraint", "zone=mars", "--", "true"]);
    waits_because(&scene, &patient, "no node meets zone=mars");
    assert_eq!(scene.run(&["run", "--constraint", "zone=earth", "--constraint", "kernel>=2.6", "--", "true"]).code, 0);
}

#[test]
fn a_full_cluster_names_the_missing_resource() {
    let scene = Scene::dev(&[]);
    let blocker = scene.submit(&["-r", "cpu=1.5", "--", "sh", "-c", AWAIT_GO]);
    until_true("a busy node", || scene.job(&blocker).summary.tasks.running == 1);
    let waiting = scene.submit(&["--", "true"]);
    let because = waits_because(&scene, &waiting, "no room");
    assert!(because.contains("lacks 0.5 cpu"), "{because}");
    assert!(scene.ok(&["list"]).contains("no room"), "the list says why in one line");
    assert!(scene.ok(&["info", &waiting]).contains("lacks 0.5 cpu"));
    let memory = scene.submit(&["-r", "cpu=0.1,memory=1GiB", "--", "true"]);
    scene.write("go", "");
    scene.ok(&["wait", &waiting, &memory]);
}

#[test]
fn gpus_are_handed_out_by_index() {
    // GPUs of this machine, if it has any, are not used.
    let scene = Scene::dev(&["--device", "gpu:0=/dev/zero", "--device", "gpu:1=/dev/full", "--resource", "fpga=1"]);
    // Both must run at the same time to end.
    let script = "echo $CUDA_VISIBLE_DEVICES $AMALGAM_RESOURCE_GPU > gpu-$AMALGAM_INDEX; \
                  while [ ! -e gpu-0 ] || [ ! -e gpu-1 ]; do sleep 0.02; done";
    let result = scene.run(&["run", "--array", "0-1", "-r", "cpu=0.5,gpu=1", "--", "sh", "-c", script]);
    assert_eq!(result.code, 0, "{result:?}");
    let mut devices = [scene.read("gpu-0"), scene.read("gpu-1")];
    devices.sort();
    assert_eq!(devices, ["0 0\n", "1 1\n"]);

    let both = scene.ok(&["run", "-r", "gpu=2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]);
    assert_eq!(both, "0,1\n");
    let none = scene.ok(&["run", "--", "sh", "-c", "echo \"[$CUDA_VISIBLE_DEVICES]\""]);
    assert_eq!(none, "[]\n");

    // Four tasks share each of the two GPUs and run at the same time; a ninth waits, since no part of a GPU is left.
    let script =
        "echo $AMALGAM_GPUS $CUDA_VISIBLE_DEVICES > part-$AMALGAM_INDEX; while [ ! -e parts ]; do sleep 0.02; done";
    let parts = scene.submit(&["--array", "0-8", "-r", "cpu=0.1,gpu=0.25", "--", "sh", "-c", script]);
    until_true("eight of nine", || {
        (0..9).filter(|index| scene.work().join(format!("part-{index}")).exists()).count() == 8
    });
    let more = scene.submit(&["-r", "cpu=0.1,gpu=0.25", "--", "true"]);
    let reason = scene.job(&more).summary.reason.unwrap_or_default();
    assert!(reason.contains("lacks 0.25 gpu"), "{reason}");
    scene.write("parts", "");
    scene.ok(&["wait", &parts, &more]);
    let mut on: Vec<String> = (0..8).map(|index| scene.read(&format!("part-{index}"))).collect();
    on.sort();
    assert_eq!(on.concat(), "0.25 0\n".repeat(4) + &"0.25 1\n".repeat(4));
    // Together the rest of both is most of a GPU, but no whole one.
    let third = scene.submit(&["--array", "0-1", "-r", "cpu=0.1,gpu=0.6", "--", "sh", "-c", AWAIT_GO]);
    until_true("a part of each", || scene.job(&third).summary.tasks.running == 2);
    let whole = scene.submit(&["-r", "cpu=0.1,gpu=1", "--", "true"]);
    scene.ok(&["run", "-r", "cpu=0.1,gpu=0.4", "--", "true"]);
    let reason = scene.job(&whole).summary.reason.unwrap_or_default();
    assert!(reason.contains("lacks 0.6 gpu"), "{reason}");
    scene.write("go", "");
    scene.ok(&["wait", &third, &whole]);
    std::fs::remove_file(scene.work().join("go")).unwrap();
    let refused = scene.run(&["submit", "-r", "gpu=1.5", "--", "true"]);
    assert!(refused.code == 2 && refused.err.contains("neither whole nor less than one"), "{refused:?}");

    // One task at a time has the other device.
    let script = "mkdir using && echo $AMALGAM_RESOURCE_FPGA && rmdir using";
    let result = scene.run(&["run", "--array", "0-9", "-r", "cpu=0.1,fpga=1", "--", "sh", "-c", script]);
    assert_eq!((result.code, result.out.matches(": 0\n").count()), (0, 10), "{result:?}");
    let holder = scene.submit(&["-r", "cpu=0.1,fpga=1", "--", "sh", "-c", AWAIT_GO]);
    until_true("the device is in use", || scene.job(&holder).summary.tasks.running == 1);
    let waiting = scene.submit(&["-r", "cpu=0.1,fpga=1", "--", "true"]);
    waits_because(&scene, &waiting, "lacks 1 fpga");
    scene.write("go", "");
    scene.ok(&["wait", &waiting]);
}

#[test]
fn a_task_can_read_only_its_own_devices_and_the_node_reports_whether_this_is_enforced() {
    let scene = Scene::dev(&["--device", "gpu:0=/dev/zero", "--device", "gpu:1=/dev/full"]);
    let info = scene.ok(&["node", "info", "0"]);
    let is_enforced = info.contains("devices are enforced: gpu 0, gpu 1\n");
    assert!(is_enforced || info.contains("devices are not enforced, a task can use those of others: "), "{info}");
    let script = "for name in zero full null; do head -c 1 /dev/$name > /dev/null && echo $name; done; true";
    for (request, expected) in [("cpu=1", "null\n"), ("gpu=0.5", "zero\nnull\n"), ("gpu=2", "zero\nfull\nnull\n")] {
        let read = scene.ok(&["run", "-r", request, "--", "sh", "-c", script]);
        assert_eq!(read, if is_enforced { expected } else { "zero\nfull\nnull\n" }, "{request}");
    }
}

#[test]
fn a_dag_with_a_cycle_is_refused_by_name() {
    let scene = Scene::new();
    let refused = |text: &str| {
        fs::write(scene.work().join("job.toml"), text).unwrap();
        let result = scene.run(&["run", "job.toml"]);
        assert_eq!(result.code, 2, "{result:?}");
        result.err
    };
    let cycle = refused(
        "[[stage]]\nname = 'a'\nafter = ['b']\ncommand = 'true'\n[[stage]]\nname = 'b'\nafter = ['a']\ncommand = 'true'\n",
    );
    assert!(cycle.contains("job.toml:") && cycle.contains('a') && cycle.contains("cycle"), "{cycle}");
    let typo = refused("comand = 'true'\n");
    assert!(typo.contains("job.toml:1:1") && typo.contains("did you mean `command`"), "{typo}");
    let missing = refused("[[stage]]\nname = 'a'\n");
    assert!(missing.contains("command"), "{missing}");
    let duration = refused("command = 'true'\ntimeout = 'soon'\n");
    assert!(duration.contains("job.toml:2:") && duration.contains("not a duration"), "{duration}");
    let number = refused("command = 'true'\nresources = { cpu = 'many' }\n");
    assert!(number.contains("job.toml:2:"), "{number}");
}
