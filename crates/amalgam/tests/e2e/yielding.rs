//! Jobs that donate resources to others and receive them, as in the two examples.

use crate::examples::repository;
use crate::support::{Scene, until};
use amalgam_daemon::api::{Exchange, JobDetail, JobState, JobSummary, QueueSummary, StoryLine};
use serde::Deserialize;
use std::thread;

/// The output of `usage --json`.
#[derive(Deserialize)]
struct Usage {
    queues: Vec<QueueSummary>,
    jobs: Vec<JobSummary>,
}

/// The two jobs on a machine of four CPUs, once the second has ended: its summary.
fn second_of_both(preset: &str) -> (Scene, JobSummary) {
    let scene = Scene::dev(&["--cpus", "4", "--memory", "1GiB", "--preset", preset]);
    for example in ["nightly", "query"] {
        scene.submit(&[repository().join(format!("examples/{example}.toml")).to_str().unwrap()]);
    }
    if preset == "carbyne" {
        what_can_wait_is_told(&scene);
    }
    scene.ok(&["wait", "2"]);
    let summary = scene.job("2").summary;
    (scene, summary)
}

fn seconds(job: &JobSummary) -> f64 {
    (job.ended_at.unwrap().0 - job.submitted_at.0) as f64 / 1e6
}

fn exchange(job: &JobSummary) -> &Exchange {
    job.exchange.as_ref().expect("it yields")
}

fn cpu(amounts: &std::collections::BTreeMap<String, f64>) -> f64 {
    amounts.get("cpu").copied().unwrap_or_default()
}

fn what_can_wait_is_told(scene: &Scene) {
    let can_wait = |job: &JobDetail| job.reasons.iter().find(|why| why.contains("of stage pages can wait")).cloned();
    let why = until("pages that can wait", || can_wait(&scene.job("1")));
    assert!(why.contains("without delaying the job's end"), "{why}");
    let tasks = scene.tasks("1");
    let last = &tasks.iter().rfind(|task| task.stage == "pages").unwrap();
    assert!(last.reason.as_ref().is_some_and(|why| why.contains("can wait")), "{tasks:?}");
    let publish = tasks.last().unwrap();
    assert_eq!(publish.reason, None, "it waits for others");
}

fn rules(story: &[StoryLine]) -> usize {
    story.iter().filter(|line| line.kind == "launched" && line.text.contains("room that no job needs")).count()
}

/// The query may use two of four CPUs, needs 12 seconds with them, and waits up to two seconds for its first ones. A third CPU
/// saves four seconds.
#[test]
fn donated_resources_let_another_job_end_earlier_at_no_cost() {
    let without = thread::spawn(|| second_of_both("drf").1);
    let (scene, query) = second_of_both("carbyne");
    let without = without.join().unwrap();
    assert_eq!((query.state, without.state), (JobState::Succeeded, JobState::Succeeded));
    assert!(seconds(&query) + 2.0 < seconds(&without), "{query:?} and without altruism {without:?}");
    assert!(without.exchange.is_none(), "{without:?}");

    let received = exchange(&query);
    assert!(cpu(&received.received) > 4.0 && cpu(&received.given) < 2.0, "{received:?}");
    let alone = received.alone_end.unwrap().0 as f64 - query.ended_at.unwrap().0 as f64;
    assert!(alone > 1e6, "it ends {alone} us before it would have alone");
    assert!(rules(&scene.story("2")) >= 2, "{}", scene.ok(&["story", "2"]));

    scene.ok(&["wait", "1"]);
    let nightly = scene.job("1").summary;
    let gave = exchange(&nightly);
    assert!(cpu(&gave.given) > 4.0, "{gave:?}");
    let late = nightly.ended_at.unwrap().0 as f64 - gave.alone_end.unwrap().0 as f64;
    assert!(late < 3e6, "it ends {late} us after it would have alone");
    let result = scene.story("1");
    assert!(
        result.iter().any(|line| line.kind == "can-wait" && line.text.contains("stage pages can wait")),
        "{result:?}"
    );
    usage_adds_up(&scene);
}

fn usage_adds_up(scene: &Scene) {
    let usage: Usage = scene.json(&["usage"]);
    let given: f64 = usage.jobs.iter().map(|job| cpu(&exchange(job).given)).sum();
    let received: f64 = usage.jobs.iter().map(|job| cpu(&exchange(job).received)).sum();
    for queue in &usage.queues {
        assert!(
            (cpu(&queue.given) - given).abs() < 1e-6 && (cpu(&queue.received) - received).abs() < 1e-6,
            "{queue:?}"
        );
    }
    assert_eq!(usage.queues.iter().map(|queue| &queue.name[..]).collect::<Vec<_>>(), ["root", "root.default"]);
    let table = scene.ok(&["usage"]);
    assert!(table.contains(" earlier") && table.contains("RECEIVED"), "{table}");
    assert!(scene.ok(&["usage", "2"]).contains("query") && !scene.ok(&["usage", "2"]).contains("nightly"));
    assert!(scene.ok(&["info", "2"]).contains("estimated end alone with its share: "));

    // Ended jobs keep their totals.
    let before = scene.job("2").summary;
    scene.kill_daemon();
    scene.start_dev(&["--cpus", "4", "--memory", "1GiB", "--preset", "carbyne"]);
    assert_eq!(scene.job("2").summary, before);
}
