//! A user's actions on jobs: retry, hold, cancel, chain.

use crate::running::AWAIT_GO;
use crate::support::{Scene, is_alive, until_true};
use amalgam_daemon::api::{AttemptState, AttemptSummary, JobState, Listing, NodeState, NodeSummary, TaskState};
use std::fs;

#[test]
fn a_failed_task_is_tried_again_as_often_as_allowed() {
    let scene = Scene::dev(&[]);
    let script = "echo x >> tries; [ $(wc -l < tries) -ge 3 ]";
    assert_eq!(scene.run(&["run", "--retries", "2", "--", "sh", "-c", script]).code, 0);
    let task = &scene.tasks("1")[0];
    assert_eq!((task.state, task.attempts), (TaskState::Succeeded, 3));
    let story = scene.story("1");
    assert_eq!(story.iter().filter(|line| line.kind == "retried").count(), 2, "{story:#?}");

    assert_eq!(scene.run(&["run", "--retries", "2", "--", "sh", "-c", "echo y >> in-vain; exit 4"]).code, 4);
    assert_eq!(scene.read("in-vain"), "y\ny\ny\n");
}

#[test]
fn a_task_that_waits_for_its_retry_has_a_reason_and_follows_the_job_file() {
    let scene = Scene::dev(&[]);
    let job = "command = 'echo x >> tries; exit 4'\nretries = 5\nretry_delay = '1h'\n";
    let id = scene.submit(&[scene.write("job.toml", job).to_str().unwrap()]);
    until_true("it has failed once", || scene.tasks(&id)[0].exit_code == Some(4));
    let reason = scene.tasks(&id)[0].reason.clone().unwrap_or_default();
    assert!(reason.contains("exited with code 4; main is tried again in ") && reason.contains("after its 1st failure"));
    let result = scene.job(&id);
    assert!(result.reasons.iter().any(|why| why.starts_with("main is tried again in ")), "{result:?}");
    assert_eq!(result.stages[0].retry_delay_seconds, 3_600.0);
    let retried = scene.story(&id).into_iter().find(|line| line.kind == "retried").unwrap();
    assert!(retried.text.contains("is tried again in 1h00m (1 of 5 retries used)"), "{retried:?}");
    assert_eq!(scene.read("tries"), "x\n");
    scene.ok(&["cancel", &id]);

    let again = "echo x >> again; [ $(wc -l < again) -ge 3 ]";
    let result = scene.run(&["run", "--retries", "2", "--retry-delay", "0s", "--", "sh", "-c", again]);
    assert_eq!(result.code, 0, "{result:?}");
}

#[test]
fn the_story_of_a_task_tells_causes_before_effects() {
    let scene = Scene::dev(&[]);
    assert_eq!(scene.run(&["run", "--array", "0-2", "--retries", "1", "--", "sh", "-c", "exit 4"]).code, 4);
    let kinds = |target: &str| -> Vec<String> {
        let story = scene.story(target);
        story
            .into_iter()
            .map(|line| line.kind)
            .filter(|kind| !["started", "blocked", "predicted"].contains(&kind.as_str()))
            .collect()
    };
    let result = ["submitted", "admitted", "launched", "ended", "retried", "launched", "ended", "ended"];
    assert_eq!(kinds("1.main.0"), result, "its own two ends and the job's");
    let place = |target: &str, kind: &str| scene.story(target).iter().position(|line| line.kind == kind).unwrap();
    assert!(place("1.main.0", "launched") < place("1.main.0", "blocked"), "what is blocked is what was left over");
    assert!(place("1.main.2", "blocked") < place("1.main.2", "launched"));
}

#[test]
fn every_attempt_of_a_task_counts_and_is_listed_also_after_a_restart() {
    let scene = Scene::dev(&[]);
    // A fifth of a second of CPU and 30 MB in the first two tries, almost nothing in the third.
    let burn = "x=$(head -c 30000000 /dev/zero | tr '\\0' x); end=$(($(date +%s%N) + 200000000)); \
                while [ $(date +%s%N) -lt $end ]; do :; done";
    let script = format!("echo x >> tries; if [ $(wc -l < tries) -lt 3 ]; then {burn}; exit 3; fi");
    let job = ["run", "--retries", "2", "--retry-delay", "0s", "--", "sh", "-c", &script];
    assert_eq!(scene.run(&job).code, 0);
    let check = || {
        let attempts: Vec<AttemptSummary> = scene.json(&["info", "1", "--tasks", "--attempts"]);
        let states: Vec<_> = attempts.iter().map(|one| (one.state, one.exit_code)).collect();
        let failed = (AttemptState::Failed, Some(3));
        assert_eq!(states, [failed, failed, (AttemptState::Succeeded, Some(0))]);
        assert!(attempts.iter().all(|one| one.started_at.is_some() && one.ended_at >= one.started_at), "{attempts:#?}");
        assert_eq!(attempts[0].reason.as_deref(), Some("exited with code 3"));
        let sum = |of: fn(&AttemptSummary) -> Option<f64>| attempts.iter().filter_map(of).sum::<f64>();
        let (wall, cpu) = (sum(|one| one.wall_seconds), sum(|one| one.cpu_seconds));
        let memory = attempts.iter().filter_map(|one| one.max_memory_bytes).max().unwrap();
        assert!(wall > 0.4 && cpu > 0.1 && memory > 20_000_000, "{attempts:#?}");
        let task = &scene.tasks("1")[0];
        let is_close = |one: f64, other: f64| (one - other).abs() < 0.01;
        assert!(is_close(task.wall_seconds.unwrap(), wall) && is_close(task.cpu_seconds.unwrap(), cpu), "{task:?}");
        assert!(task.max_memory_bytes.unwrap().abs_diff(memory) < 2_048, "{task:?}");
        let result = scene.job("1");
        assert!(
            is_close(result.summary.cpu_seconds, cpu) && is_close(result.stages[0].wall_seconds, wall),
            "{result:#?}"
        );
        assert_eq!(result.summary.max_memory_bytes, memory);
        let usage = scene.ok(&["usage", "1"]);
        assert!(usage.contains("CPU") && usage.contains("MEMORY"), "{usage}");
        let listed = scene.ok(&["info", "1", "--tasks", "--attempts"]);
        assert_eq!(listed.matches("exited with code 3").count(), 2, "{listed}");
    };
    check();
    scene.kill_daemon();
    scene.start_dev(&[]);
    check();
    let page = |query: &str| -> Listing<AttemptSummary> {
        let (status, answer) = scene.http().get(&format!("/v1/jobs/1/attempts?{query}"));
        assert_eq!(status, 200, "{answer}");
        serde_json::from_value(answer).unwrap()
    };
    let rest = page("limit=2&task=0.0");
    assert_eq!(rest.items.len(), 2);
    let rest = page(&format!("cursor={}", rest.next.expect("there is a third")));
    assert_eq!((rest.items.len(), rest.items[0].state, rest.next), (1, AttemptState::Succeeded, None));
}

#[test]
fn single_tasks_and_ranges_are_held_cancelled_and_run_again() {
    let scene = Scene::dev(&[]);
    let id = scene.submit(&["--hold", "--array", "0-9", "--", "sh", "-c", "[ $AMALGAM_INDEX -ne 9 ]"]);
    let act = |verb: &str, tasks: &str| {
        let target = format!("{id}.main{tasks}");
        let result = scene.ok(&[verb, &target]);
        result.strip_prefix(&format!("{target}: ")).unwrap_or_else(|| panic!("{result}")).to_owned()
    };
    assert_eq!(act("cancel", ".0-3"), "4 tasks cancelled\n");
    assert_eq!(act("hold", ".4"), "1 task held\n");
    scene.ok(&["release", &id]);
    let counts = || scene.job(&id).summary.tasks;
    until_true("the others have ended", || counts().succeeded == 4 && counts().failed == 1);
    let reasons = scene.job(&id).reasons;
    assert!(reasons.iter().any(|why| why.starts_with("1 task of stage main held by a user")), "{reasons:?}");
    let released = "1 task released, 4 had succeeded, 1 had failed, 4 had been cancelled\n";
    assert_eq!(act("release", ""), released);
    assert_eq!(scene.run(&["wait", &id]).code, 1);
    assert_eq!(act("rerun-failed", ".0-2,9"), "4 tasks to run again\n");
    assert_eq!(scene.run(&["wait", &id]).code, 1);
    let now = counts();
    assert_eq!((now.succeeded, now.failed, now.cancelled), (8, 1, 1));
    for wrong in [".10", ".0-10"] {
        let result = scene.run(&["rerun-failed", &format!("{id}.main{wrong}")]);
        assert!(result.code == 1 && result.err.contains("no task 10 in stage `main`"), "{result:?}");
    }
    let result = scene.run(&["run", "--", "sh", "-c", "echo $AMALGAM_NODE"]);
    assert_eq!(result.out.trim(), scene.tasks("last")[0].node.clone().unwrap());
}

#[test]
fn each_attempt_of_a_followed_task_is_shown_from_its_beginning() {
    let scene = Scene::dev(&[]);
    let script = "echo x >> tries; echo try $(wc -l < tries); sleep 0.7; [ $(wc -l < tries) -ge 3 ]";
    let result = scene.run(&["run", "--retries", "2", "--", "sh", "-c", script]);
    assert_eq!((result.code, result.out.as_str()), (0, "try 1\ntry 2\ntry 3\n"), "{result:?}");
    assert_eq!(scene.ok(&["logs", "1"]), "try 3\n");
}

#[test]
fn a_job_gives_up_after_max_fails() {
    let scene = Scene::dev(&[]);
    let result = scene.run(&["run", "--array", "0-199", "--max-fails", "2", "--", "sh", "-c", "exit 9"]);
    assert_eq!(result.code, 9, "{result:?}");
    let counts = scene.job("1").summary.tasks;
    assert!((3..=10).contains(&counts.failed) && counts.failed + counts.cancelled == 200, "{counts:?}");
}

#[test]
fn only_what_failed_runs_again() {
    let scene = Scene::dev(&[]);
    let script = "echo $AMALGAM_INDEX >> ran; [ $AMALGAM_INDEX != 2 ] || [ -e mended ]";
    assert_eq!(scene.run(&["run", "--array", "0-4", "--", "sh", "-c", script]).code, 1);
    scene.write("mended", "");
    scene.ok(&["rerun-failed", "1"]);
    scene.ok(&["wait", "1"]);
    let mut ran: Vec<String> = scene.read("ran").lines().map(str::to_owned).collect();
    ran.sort();
    assert_eq!(ran, ["0", "1", "2", "2", "3", "4"]);
    let result = scene.run(&["rerun-failed", "1"]);
    assert!(result.code != 0 && result.err.starts_with("error: "), "nothing is left to run again: {result:?}");
}

#[test]
fn held_jobs_start_when_they_are_released() {
    let scene = Scene::dev(&[]);
    let id = scene.submit(&["--hold", "--", "sh", "-c", "echo ran > ran"]);
    let job = scene.job(&id);
    assert_eq!(job.summary.state, JobState::Held);
    assert!(job.summary.reason.is_some_and(|reason| reason.contains("held")), "the reason says so");
    assert_eq!(scene.run(&["wait", &id, "--timeout", "100ms"]).code, 124);
    assert_eq!(scene.read("ran"), "");
    scene.ok(&["release", &id]);
    scene.ok(&["wait", &id]);
    assert_eq!(scene.read("ran"), "ran\n");

    // A job that waits for room can be held, too.
    let blocker = scene.submit(&["-r", "cpu=2", "--", "sh", "-c", AWAIT_GO]);
    let waiting = scene.submit(&["--", "sh", "-c", "echo again >> ran"]);
    scene.ok(&["hold", &waiting]);
    scene.write("go", "");
    scene.ok(&["wait", &blocker]);
    assert_eq!(scene.job(&waiting).summary.state, JobState::Held);
    scene.ok(&["release", &waiting]);
    scene.ok(&["wait", &waiting]);
    assert_eq!(scene.read("ran"), "ran\nagain\n");
}

#[test]
fn cancelling_ends_processes_and_what_waits() {
    let scene = Scene::dev(&[]);
    let id = scene.submit(&["--array", "0-9", "--", "sh", "-c", "echo $$ >> pids; exec sleep 300"]);
    until_true("two running tasks", || scene.read("pids").lines().count() == 2);
    scene.ok(&["cancel", &id]);
    assert!(scene.run(&["wait", &id]).code != 0);
    assert_eq!(scene.job(&id).summary.state, JobState::Cancelled);
    assert_eq!(scene.job(&id).summary.tasks.cancelled, 10);
    for pid in scene.read("pids").lines() {
        until_true("the end of a cancelled task", || !is_alive(pid));
    }
    assert_eq!(scene.read("pids").lines().count(), 2, "nothing starts afterwards");
}

#[test]
fn a_job_waits_for_the_jobs_that_it_comes_after() {
    let scene = Scene::dev(&[]);
    let first = scene.submit(&["--", "sh", "-c", &format!("{AWAIT_GO}; echo first >> order")]);
    let second = scene.submit(&["--after", &first, "--", "sh", "-c", "echo second >> order"]);
    let reason = scene.job(&second).summary.reason.unwrap_or_default();
    assert!(reason.contains(&format!("waits for job {first}")), "{reason}");
    scene.write("go", "");
    scene.ok(&["wait", &second]);
    assert_eq!(scene.read("order"), "first\nsecond\n");

    fs::remove_file(scene.work().join("go")).unwrap();
    let fails = scene.submit(&["--", "sh", "-c", &format!("{AWAIT_GO}; exit 8")]);
    let never = scene.submit(&["--after", &fails, "--", "touch", "never"]);
    scene.write("go", "");
    assert!(scene.run(&["wait", &never]).code != 0);
    let job = scene.job(&never);
    assert_eq!(job.summary.state, JobState::Cancelled, "{job:?}");
    assert!(!scene.work().join("never").exists());
    let unknown = scene.run(&["submit", "--after", "999", "--", "true"]);
    assert!(unknown.code == 1 && unknown.err.contains("999"), "{unknown:?}");
}

#[test]
fn a_drained_node_gets_nothing_new() {
    let scene = Scene::dev(&["--nodes", "2", "--cpus", "1"]);
    let nodes: Vec<NodeSummary> = scene.json(&["node", "list"]);
    let busy = scene.submit(&["--array", "0-1", "--", "sh", "-c", AWAIT_GO]);
    until_true("both nodes are busy", || scene.job(&busy).summary.tasks.running == 2);
    scene.ok(&["node", "drain", &nodes[0].name]);
    let state = || scene.json::<Vec<NodeSummary>>(&["node", "list"])[0].state;
    assert_eq!(state(), NodeState::Draining, "what runs may end");
    scene.write("go", "");
    scene.ok(&["wait", &busy]);
    assert_eq!(state(), NodeState::Drained);

    let id = scene.submit(&["--array", "0-4", "--", "true"]);
    scene.ok(&["wait", &id]);
    assert!(scene.tasks(&id).iter().all(|task| task.node.as_deref() == Some(&nodes[1].name)));
    scene.ok(&["node", "undrain", &nodes[0].name]);
    assert_eq!(state(), NodeState::Up);
    fs::remove_file(scene.work().join("go")).unwrap();
    let id = scene.submit(&["--array", "0-1", "--", "sh", "-c", AWAIT_GO]);
    until_true("both nodes are busy again", || scene.job(&id).summary.tasks.running == 2);
}

#[test]
fn each_reason_is_printed_once() {
    let scene = Scene::dev(&[]);
    let file = scene.write(
        "job.toml",
        &format!(
            "[[stage]]\nname = 'train'\ncommand = \"{AWAIT_GO}\"\n[[stage]]\nname = 'pages'\ncommand = \"{AWAIT_GO}; exit 3\"\n\
             [[stage]]\nname = 'publish'\nafter = ['train', 'pages']\ncommand = 'true'\n"
        ),
    );
    let job = scene.submit(&[file.to_str().unwrap()]);
    let output = scene.ok(&["info", &job]);
    assert_eq!(output.matches("waits for stages train and pages to succeed").count(), 1, "{output}");
    scene.write("go", "");
    assert_eq!(scene.run(&["wait", &job]).code, 3);
    // The reason of its end, and the tasks that never ran because of it.
    let output = scene.ok(&["info", &job]);
    assert_eq!(output.matches("task pages").count(), 1, "{output}");
    let never = "publish: never runs: its dependency stage pages failed (exited with code 3)";
    assert_eq!(output.matches(never).count(), 1, "{output}");
}

#[test]
fn listings_without_jobs_say_so() {
    let scene = Scene::dev(&[]);
    assert_eq!(scene.ok(&["usage", "all"]), "you have no jobs that have not ended\n");
    let none = "nothing pending or running (`amalgam list --all` shows the jobs that have ended, too)\n";
    assert_eq!((scene.ok(&["list"]).as_str(), scene.ok(&["history"]).as_str()), (none, "no job has ended\n"));
    assert_eq!(scene.ok(&["list", "--all"]), "no jobs\n");
    let usage = scene.ok(&["usage"]);
    assert!(usage.contains("root.default") && usage.ends_with("\n\nno jobs\n"), "{usage}");
    scene.ok(&["run", "--", "true"]);
    // Counted from the submission; `list` counts from the start.
    let usage = scene.ok(&["usage", "1"]);
    assert!(usage.contains(" TURNAROUND ") && !usage.contains(" TIME "), "{usage}");
    assert!(scene.ok(&["list", "--all"]).contains(" TIME "));
}

#[test]
fn an_unknown_queue_is_reported_at_its_place_in_the_file() {
    let scene = Scene::new();
    let config = scene.write("server.toml", "[[queue]]\nname = \"research\"\n[[queue]]\nname = \"research.deep\"\n");
    scene.start_dev(&["--config", config.to_str().unwrap()]);
    scene.write("job.toml", "command = [\"true\"]\nqueue = \"research.deeep\"\n");
    for verb in ["submit", "run"] {
        let result = scene.run(&[verb, "job.toml"]);
        let output = "error: job.toml:2:9: queue `research.deeep` not found; use one of: root.research.deep\n  help: did you mean `research.deep`?\n";
        assert_eq!((result.code, result.err.as_str()), (2, output), "{verb}");
    }
    let result = scene.run(&["submit", "--queue", "research", "job.toml"]);
    assert!(
        result.code == 2 && result.err.starts_with("error: queue `root.research` holds other queues"),
        "{result:?}"
    );
    let result = scene.run(&["submit", "--queue", "root.research.deep", "job.toml"]);
    assert_eq!(result.code, 0, "{result:?}");
}
