//! A user changes a timeout. It also applies to running attempts, counted from the start of each.

use crate::world::{World, job, stage};
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{JobOutcome, JobUpdate, ToClient, ToMaster};
use amalgam_core::vocabulary::{Duration, JobId, Resources, StageSpec};

const PRESETS: [Preset; 5] = [Preset::DRF, Preset::CARBYNE, Preset::MERCURY, Preset::SPARROW, Preset::APOLLO];
const CORE: Resources = Resources::new(1_000, 0);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Two tasks of a minute, of which one runs and one waits, with this timeout in seconds.
fn running(preset: Preset, timeout: u64) -> (World, JobId) {
    let mut world = World::with_nodes(preset, 1, CORE);
    let spec = job(vec![StageSpec { timeout: Some(seconds(timeout)), ..stage("s", 2, "60s", 1_000) }]);
    let id = world.submit(spec);
    world.run_for(seconds(2));
    assert_eq!(world.running_tasks().len(), 1, "{}", preset.name());
    (world, id)
}

fn set_timeout(world: &mut World, job: JobId, timeout: u64) {
    let update = JobUpdate { timeout: Some(seconds(timeout)), ..JobUpdate::default() };
    let reported = world.ask_master(ToMaster::Update { job, update: Box::new(update), by: "ada".to_owned() });
    assert_eq!(reported, ToClient::Done);
}

#[test]
fn a_shorter_timeout_stops_attempts_that_exceed_it() {
    for preset in PRESETS {
        let (mut world, id) = running(preset, 300);
        set_timeout(&mut world, id, 10);
        world.run_for(seconds(5));
        assert_eq!(world.outcome(id), None, "{}: seven of ten seconds have passed", preset.name());
        world.run_for(seconds(20));
        let reported = world.log.join("\n");
        assert_eq!(world.outcome(id), Some(JobOutcome::Failed { exit_code: 124 }), "{}: {reported}", preset.name());
    }
}

#[test]
fn a_longer_timeout_applies_to_running_attempts_also_after_restarts() {
    for preset in PRESETS {
        for anew in ["no process", "the agent", "the server", "both"] {
            let (mut world, id) = running(preset, 10);
            set_timeout(&mut world, id, 100);
            world.run_for(seconds(1));
            if matches!(anew, "the agent" | "both") {
                world.kill_agent(0);
            }
            if matches!(anew, "the server" | "both") {
                world.kill_server();
                world.start_server();
            }
            if matches!(anew, "the agent" | "both") {
                world.start_agent(0);
            }
            world.run_for(seconds(150));
            let reported = world.log.join("\n");
            assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}, {anew}: {reported}", preset.name());
            assert_eq!(world.launches().len(), 2, "{}, {anew}", preset.name());
        }
    }
}

#[test]
fn a_new_timeout_lost_with_the_server_reaches_the_node_later() {
    for preset in [Preset::DRF, Preset::SPARROW] {
        let (mut world, id) = running(preset, 10);
        world.unlink(0);
        set_timeout(&mut world, id, 100);
        world.kill_server();
        world.start_server();
        world.link(0);
        world.run_for(seconds(150));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{}: {}", preset.name(), world.log.join("\n"));
    }
}
