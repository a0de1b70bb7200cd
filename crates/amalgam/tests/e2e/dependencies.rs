//! Jobs that depend on others, including failed ones; holding and cancelling jobs.

use crate::running::AWAIT_GO;
use crate::support::{Scene, until_true};
use amalgam_daemon::api::{ActionResult, JobState, JobSummary, Waited};

fn user(scene: &Scene) -> String {
    scene.job("1").summary.user
}

#[test]
fn a_job_after_one_that_failed_already_ends_as_one_that_was_there_before() {
    let scene = Scene::dev(&[]);
    let fails = scene.submit(&["--name", "fetch", "--", "sh", "-c", &format!("{AWAIT_GO}; exit 8")]);
    let early = scene.submit(&["--after", &fails, "--", "touch", "never"]);
    scene.write("go", "");
    assert_eq!(scene.run(&["wait", &early]).code, 1);
    let late = scene.submit(&["--after", &fails, "--", "touch", "never"]);
    let last = scene.submit(&["--after", &late, "--", "touch", "never"]);
    let why = format!("its dependency job {fails} (fetch) failed with exit code 8");
    for id in [&early, &late] {
        let result = scene.run(&["wait", id]);
        assert_eq!((result.code, result.out), (1, format!("job {id} cancelled: {why}\n")));
        let job = scene.job(id).summary;
        assert_eq!((job.state, job.reason.as_deref()), (JobState::Cancelled, Some(&*why)));
        assert_eq!(job.failed_dependency.map(|job| job.to_string()).as_ref(), Some(&fails));
        let story = scene.story(id);
        assert_eq!(story.last().map(|line| line.text.as_str()), Some(&*format!("job cancelled: {why}")), "{story:#?}");
        assert!(scene.ok(&["list", "--all"]).contains(&why) && scene.ok(&["info", id]).contains(&why));
    }
    let waited: Vec<Waited> = serde_json::from_str(&scene.run(&["wait", "--json", &last]).out).unwrap();
    let why = format!("its dependency job {late} (touch) never ran, because job {fails} did not succeed");
    assert_eq!((waited[0].exit_code, waited[0].reason.as_deref()), (Some(1), Some(&*why)));
    assert!(!scene.work().join("never").exists());
}

#[test]
fn a_job_may_wait_for_an_end_of_any_kind() {
    let scene = Scene::dev(&[]);
    let fails = scene.submit(&["--", "sh", "-c", &format!("{AWAIT_GO}; exit 8")]);
    let file = scene.write("clean.toml", &format!("command = 'echo cleaned >> done'\nafter_any = [{fails}]\n"));
    let by_file = scene.submit(&[file.to_str().unwrap()]);
    let by_option = scene.submit(&["--after-any", &fails, "--", "sh", "-c", "echo cleaned >> done"]);
    let waiting = scene.job(&by_option);
    assert_eq!(waiting.summary.reason, Some(format!("waits for job {fails} to end")));
    assert_eq!(waiting.after_jobs_any, [fails.parse::<u64>().unwrap()]);
    scene.write("go", "");
    scene.ok(&["wait", &by_file, &by_option]);
    let late = scene.submit(&["--after-any", &fails, "--", "sh", "-c", "echo cleaned >> done"]);
    scene.ok(&["wait", &late]);
    assert_eq!(scene.read("done"), "cleaned\ncleaned\ncleaned\n");
}

#[test]
fn the_user_who_cancelled_a_job_is_named_also_after_a_restart() {
    let scene = Scene::dev(&[]);
    let stages = "[[stage]]\nname = 'map'\ncommand = 'sleep 300'\n[[stage]]\nname = 'merge'\nafter = ['map']\ncommand = 'true'\n";
    let file = scene.write("job.toml", &format!("name = 'train'\n{stages}"));
    let first = scene.submit(&[file.to_str().unwrap()]);
    let second = scene.submit(&["--after", &first, "--", "true"]);
    let held = scene.submit(&["--hold", "--", "true"]);
    until_true("the first task runs", || scene.job(&first).summary.state == JobState::Running);
    scene.ok(&["cancel", &first, &held]);
    scene.run(&["wait", &first, &second, &held]);
    let by = format!("cancelled by {}", user(&scene));
    let look = || {
        for id in [&first, &held] {
            let job = scene.job(id).summary;
            assert_eq!((job.reason.as_ref(), job.cancelled_by), (Some(&by), Some(user(&scene))));
            assert!(scene.story(id).iter().any(|line| line.text == by), "{:#?}", scene.story(id));
        }
        let of_second = scene.job(&second).summary.reason.unwrap_or_default();
        assert_eq!(of_second, format!("its dependency job {first} (train) was {by}"));
        let output = scene.ok(&["info", &first]);
        assert!(output.contains(&format!("merge: never runs: the job was {by} at 2")), "{output}");
    };
    look();
    assert_eq!(scene.run(&["wait", &first]).out, format!("job {first} {by}\n"));
    scene.kill_daemon();
    scene.start_dev(&[]);
    look();
}

#[test]
fn a_running_job_that_is_held_says_so_and_releasing_what_is_not_held_does_nothing() {
    let scene = Scene::dev(&[]);
    let id = scene.submit(&["--array", "0-5", "--", "sh", "-c", AWAIT_GO]);
    until_true("two tasks run", || scene.job(&id).summary.tasks.running == 2);
    assert_eq!(scene.ok(&["release", &id]), format!("job {id}: nothing was held\n"));
    let results: Vec<ActionResult> = scene.json(&["release", &id]);
    assert_eq!((results[0].unchanged.as_deref(), &results[0].error), (Some("nothing was held"), &None));
    assert_eq!(scene.ok(&["hold", &id]), format!("job {id} held\n"));
    assert_eq!(scene.ok(&["hold", &id]), format!("job {id}: it was held already\n"));
    let job = scene.job(&id).summary;
    assert_eq!((job.state, job.held), (JobState::Running, true));
    for output in [scene.ok(&["list"]), scene.ok(&["info", &id])] {
        assert!(output.contains("running, held") && output.contains("held by its user"), "{output}");
    }
    let held: Vec<JobSummary> = scene.json(&["list", "--state", "held"]);
    assert_eq!(held.iter().map(|job| job.id).collect::<Vec<_>>(), [id.parse::<u64>().unwrap()]);
    assert_eq!(scene.ok(&["release", "all"]), format!("job {id} released\n"));
    assert!(!scene.job(&id).summary.held);
    scene.write("go", "");
    scene.ok(&["wait", &id]);
}

#[test]
fn a_long_chain_ends_at_once_when_its_first_job_is_cancelled() {
    let scene = Scene::dev(&[]);
    let first = scene.submit(&["--hold", "--", "true"]);
    let mut last = first.clone();
    for _ in 0..40 {
        last = scene.submit(&["--after", &last, "--", "true"]);
    }
    scene.ok(&["cancel", &first]);
    assert_eq!(scene.run(&["wait", &last]).code, 1);
    let all: Vec<JobSummary> = scene.json(&["list", "--all"]);
    assert!(all.iter().all(|job| job.state == JobState::Cancelled && job.reason.is_some()), "{all:?}");
}

#[test]
fn a_users_changes_of_a_job_take_effect_and_are_recorded() {
    let scene = Scene::dev(&["--cpus", "1"]);
    let blocker = scene.submit(&["--", "sh", "-c", AWAIT_GO]);
    let first = scene.submit(&["--", "sh", "-c", "echo first >> order"]);
    let second = scene.submit(&["--", "sh", "-c", "echo second >> order; sleep 300"]);
    assert_eq!(scene.ok(&["update", &second, "priority=5", "timeout=1s"]), format!("job {second} updated\n"));
    assert_eq!(scene.ok(&["update", &second, "priority=5"]), format!("job {second}: it has these values already\n"));
    let job = scene.job(&second);
    assert_eq!((job.summary.priority, job.stages[0].timeout_seconds), (5, Some(1.0)));
    let text = format!("priority = 5, timeout = 1.00s set by {}", user(&scene));
    assert!(scene.story(&second).iter().any(|line| line.text == text), "{:#?}", scene.story(&second));
    scene.write("go", "");
    assert_eq!(scene.run(&["wait", &second]).code, 124);
    scene.ok(&["wait", &blocker, &first]);
    assert_eq!(scene.read("order"), "second\nfirst\n");
    // Running attempts get the new one, too.
    let third = scene.submit(&["--timeout", "1h", "--", "sleep", "300"]);
    until_true("it runs", || scene.job(&third).summary.state == JobState::Running);
    scene.ok(&["update", &third, "timeout=100ms"]);
    assert_eq!(scene.run(&["wait", &third]).code, 124);
    let result = scene.run(&["update", &second, "priority=6"]);
    assert!(result.code == 1 && result.err.contains("it has ended"), "{result:?}");
    for wrong in [&["update", &first][..], &["update", "priority=1"], &["update", &first, "name=x"]] {
        assert_eq!(scene.run(wrong).code, 2, "{wrong:?}");
    }
}

#[test]
fn a_queue_with_jobs_that_have_not_ended_is_not_taken_out_silently() {
    let scene = Scene::new();
    let with = scene.write("with.toml", "[[queue]]\nname = \"deep\"\n[[queue]]\nname = \"default\"\n");
    let without = scene.write("without.toml", "[[queue]]\nname = \"default\"\n");
    scene.start_dev(&["--config", with.to_str().unwrap()]);
    let ended = scene.submit(&["--queue", "deep", "--", "true"]);
    scene.ok(&["wait", &ended]);
    let held = scene.submit(&["--queue", "deep", "--hold", "--", "true"]);
    scene.kill_daemon();
    let result = scene.run(&["dev", "--config", without.to_str().unwrap()]);
    assert!(result.code != 0, "{result:?}");
    let output = format!("no queue root.deep that takes jobs, and 1 job of it has not ended ({held})");
    assert!(result.err.contains(&output) && result.err.contains("restore the queue"), "{result:?}");
    // A queue that gets child queues accepts no more jobs.
    let parent = scene.write(
        "parent.toml",
        "[[queue]]\nname = \"deep\"\n[[queue]]\nname = \"deep.er\"\n[[queue]]\nname = \"default\"\n",
    );
    let result = scene.run(&["dev", "--config", parent.to_str().unwrap()]);
    let output = format!(
        "queue root.deep of the configuration holds other queues now and takes no jobs, and 1 job of it has not ended ({held})"
    );
    assert!(result.code != 0 && result.err.contains(&output), "{result:?}");
    scene.start_dev(&["--config", with.to_str().unwrap()]);
    scene.ok(&["update", &held, "queue=default"]);
    scene.kill_daemon();
    scene.start_dev(&["--config", without.to_str().unwrap()]);
    let queue = |id: &str| scene.job(id).summary.queue;
    assert_eq!((queue(&ended).as_str(), queue(&held).as_str()), ("root.deep", "root.default"));
}

/// Changes of the configuration under existing jobs, and the messages of a start with it.
#[test]
fn a_configuration_that_cannot_go_on_with_its_jobs_is_refused_with_them_named() {
    let scene = Scene::new();
    let with = |name: &str, text: &str| scene.write(name, text).to_str().unwrap().to_owned();
    let leaf = with("leaf.toml", "preset = \"drf\"\n[[queue]]\nname = \"deep\"\n[[queue]]\nname = \"default\"\n");
    let parent = with(
        "parent.toml",
        "[[queue]]\nname = \"deep\"\n[[queue]]\nname = \"deep.a\"\n[[queue]]\nname = \"default\"\n",
    );
    let sparrow =
        with("sparrow.toml", "preset = \"sparrow\"\n[[queue]]\nname = \"deep\"\n[[queue]]\nname = \"default\"\n");
    scene.start_dev(&["--config", &leaf]);
    let gang = scene.submit(&["--gang", "--array", "0-1", "--hold", "--", "true"]);
    let held = scene.submit(&["--queue", "deep", "--hold", "--", "true"]);
    let runs = scene.submit(&["--", "sh", "-c", &format!("echo once >> ran; {AWAIT_GO}")]);
    until_true("it runs", || scene.work().join("ran").exists());
    scene.kill_daemon();
    let refused = |config: &str, jobs: &str, remedy: &str| {
        let result = scene.run(&["dev", "--listen", "127.0.0.1:0", "--config", config]);
        assert!(result.code == 2 && result.err.contains(jobs) && result.err.contains(remedy), "{result:?}");
    };
    let remedy = format!(
        "remove the queues below it, and before you add them cancel these jobs or move them, `amalgam update {held} "
    );
    refused(
        &parent,
        &format!("holds other queues now and takes no jobs, and 1 job of it has not ended ({held})"),
        &remedy,
    );
    let result = format!(
        "the preset sparrow does not support gangs, because its jobs place their tasks one by one, and 1 job with gangs has \
         not ended ({gang})"
    );
    refused(&sparrow, &result, "start the server with its previous preset");
    scene.start_dev(&["--config", &leaf]);
    scene.ok(&["cancel", &gang]);
    scene.kill_daemon();
    // The master placed the running tasks, which continue; waiting tasks are placed by their job managers.
    scene.start_dev(&["--config", &sparrow]);
    scene.ok(&["release", &held]);
    scene.ok(&["wait", &held]);
    scene.write("go", "");
    scene.ok(&["wait", &runs]);
    assert_eq!(scene.read("ran"), "once\n");
}

/// A node returns with less than its running tasks use, and without a kind of device that a job waits for.
#[test]
fn a_node_that_has_less_than_runs_on_it_keeps_what_runs_and_says_why_others_wait() {
    let scene = Scene::dev(&["--cpus", "2", "--resource", "fpga=1"]);
    let runs = scene.submit(&["-r", "cpu=2,fpga=1", "--", "sh", "-c", AWAIT_GO]);
    let waits = scene.submit(&["-r", "fpga=1", "--", "true"]);
    until_true("it runs", || scene.job(&runs).summary.tasks.running == 1);
    scene.kill_daemon();
    scene.start_dev(&["--cpus", "1"]);
    let small = scene.submit(&["--", "true"]);
    until_true("it is said", || scene.job(&waits).reasons.iter().any(|reason| reason.contains("fpga")));
    scene.write("go", "");
    scene.ok(&["wait", &runs, &small]);
    scene.kill_daemon();
    scene.start_dev(&["--cpus", "2", "--resource", "fpga=1"]);
    scene.ok(&["wait", &waits]);
}

#[test]
fn a_node_that_is_lost_is_forgotten_when_it_is_asked_for() {
    let scene = Scene::dev(&["--nodes", "2"]);
    let result = scene.run(&["node", "remove", "1"]);
    assert!(result.code == 1 && result.err.contains("is connected"), "{result:?}");
    scene.kill_daemon();
    scene.start_dev(&["--nodes", "1"]);
    let output = scene.ok(&["node", "list"]);
    assert!(output.contains("not since the server started at 2"), "{output}");
    scene.ok(&["node", "drain", "1"]);
    scene.ok(&["node", "remove", "1"]);
    let nodes: Vec<amalgam_daemon::api::NodeSummary> = scene.json(&["node", "list"]);
    // A single node has another name than the first of two, and is the third that joined.
    assert_eq!(nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 2]);
    scene.kill_daemon();
    scene.start_dev(&["--nodes", "1"]);
    let nodes: Vec<amalgam_daemon::api::NodeSummary> = scene.json(&["node", "list"]);
    assert_eq!(nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 2], "it is forgotten for good");
}
