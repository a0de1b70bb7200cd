//! The four parts of tasks' allocation times are reported under every preset.

use crate::support::Scene;
use amalgam_core::preset::Preset;
use amalgam_daemon::api::{AllocationParts, StoryLine};

/// Six tasks of a fifth of a second on two CPUs: two start at once, and the others wait for them.
fn is_reported(preset: Preset) {
    let federated: &[&str] = if preset.is_federated() { &["--clusters", "1"] } else { &[] };
    let scene = Scene::dev(&[&["--preset", preset.name()], federated].concat());
    scene.has_executor(&scene.state().join("cluster-0"));
    let id = scene.submit(&["--array", "0-5", "--", "sleep", "0.2"]);
    scene.ok(&["wait", &id]);
    let story = scene.story(&id);
    let seconds = |line: &StoryLine| line.at.0 as f64 / 1e6;
    let admitted = seconds(story.iter().find(|line| line.kind == "admitted").unwrap());
    let started: Vec<&StoryLine> = story.iter().filter(|line| line.kind == "started").collect();
    let mut waits: Vec<f64> = Vec::new();
    for line in started {
        // Second attempts have no allocation time.
        let Some(AllocationParts { queue, processing, communication, node }) = line.allocation else { continue };
        let total = queue + processing + communication + node;
        // Log entries have the time at which their turn of the event loop ended.
        let at_most = seconds(line) - admitted + 0.1;
        assert!(total > 0.0 && total <= at_most, "{preset:?}: {total} of {at_most}: {line:?}", preset = preset.name());
        assert!(line.text.contains(" communication, "), "{line:?}");
        waits.push(queue + node);
    }
    assert_eq!(waits.len(), 6, "{}: {story:#?}", preset.name());
    let waited = waits.iter().filter(|wait| **wait > 0.1).count();
    assert_eq!(waited, 4, "{}: in the queue, or at the node: {waits:?}", preset.name());
    let metrics = scene.http().text("/metrics");
    for part in ["queue", "processing", "communication", "node"] {
        let count = format!("amalgam_allocation_seconds_count{{part=\"{part}\"}} 6");
        assert!(metrics.contains(&count), "{}: {metrics}", preset.name());
    }
}

#[test]
fn every_preset_records_allocation_times() {
    Preset::all().for_each(is_reported);
}
