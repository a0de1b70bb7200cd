//! Stages with a limit on the number of tasks that run at once.

use crate::world::{World, job, stage};
use amalgam_core::preset::Preset;
use amalgam_core::protocol::JobOutcome;
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{AttemptId, Duration, ExecutionType, JobId, Resources, StageSpec};
use amalgam_core::why::Why;
use std::collections::BTreeSet;

const NODE: Resources = Resources::new(8_000, 0);
const PRESETS: [Preset; 11] = [
    Preset::FIFO,
    Preset::DRF,
    Preset::CAPACITY,
    Preset::SRTF,
    Preset::TETRIS,
    Preset::CARBYNE,
    Preset::MERCURY,
    Preset::MERCURY_PLUS,
    Preset::SPARROW,
    Preset::APOLLO,
    Preset::APOLLO_PLUS,
];

fn limited(tasks: u32, run: &str, at_once: u32) -> StageSpec {
    let execution = ExecutionType::Auto;
    StageSpec { at_once: Some(at_once), execution, ..stage("limited", tasks, run, 1_000) }
}

/// The largest number of attempts of a stage that were out at once.
fn most_at_once(world: &World, of: JobId, stage: u32) -> usize {
    let mut out: BTreeSet<AttemptId> = BTreeSet::new();
    let mut most = 0;
    for change in &world.disk {
        match change {
            Change::Launched { attempt, task, .. } if (task.job, task.stage) == (of, stage) => {
                out.insert(*attempt);
            }
            Change::Finished { attempt, .. } | Change::Lost { attempt, .. } => drop(out.remove(attempt)),
            _ => {}
        }
        most = most.max(out.len());
    }
    most
}

#[test]
fn the_limit_of_tasks_at_once_holds_under_every_preset_and_leaves_room_to_others() {
    for preset in PRESETS {
        let mut world = World::with_nodes(preset, 2, NODE);
        let free = StageSpec { execution: ExecutionType::Auto, ..stage("free", 6, "2s", 1_000) };
        let id = world.submit(job(vec![limited(12, "2s", 3), free]));
        world.run_for(Duration::from_secs(120));
        assert_eq!(world.outcome(id), Some(JobOutcome::Succeeded), "{preset:?}: {:?}", world.why(id));
        assert_eq!(most_at_once(&world, id, 0), 3, "{preset:?}");
        assert!(most_at_once(&world, id, 1) > 3, "{preset:?}");
    }
}

#[test]
fn the_limit_of_tasks_at_once_holds_with_failures_restarts_and_lost_nodes() {
    for preset in [Preset::DRF, Preset::SPARROW, Preset::APOLLO, Preset::MERCURY] {
        let mut world = World::with_nodes(preset, 2, NODE);
        let spec = StageSpec { retries: 2, ..limited(8, "3s 1", 2) };
        let id = world.submit(job(vec![spec, limited(8, "4s", 2)]));
        world.run_for(Duration::from_secs(5));
        world.kill_server();
        world.start_server();
        world.settle();
        world.run_for(Duration::from_secs(5));
        world.kill_agent(0);
        world.kill_executor(0);
        world.run_for(Duration::from_secs(200));
        assert_eq!(world.outcome(id), Some(JobOutcome::Failed { exit_code: 1 }), "{preset:?}");
        // Not more than the limit, and the limit is reached in spite of the faults.
        assert_eq!([most_at_once(&world, id, 0), most_at_once(&world, id, 1)], [2, 2], "{preset:?}");
    }
}

#[test]
fn a_stage_at_its_limit_of_tasks_at_once_has_that_reason() {
    let mut world = World::with_nodes(Preset::DRF, 1, NODE);
    let id = world.submit(job(vec![limited(5, "10s", 2)]));
    world.run_for(Duration::from_secs(1));
    let why = world.server.as_ref().unwrap().jobs[&id].explain();
    let at_limit = Why::AtOnce { stage: "limited".to_owned(), most: 2, running: 2 };
    assert!(why.contains(&at_limit), "{why:?}");
    let text = at_limit.describe(&amalgam_core::vocabulary::Kinds::default(), |node| node.to_string());
    assert_eq!(text, "stage limited runs at most 2 tasks at once, and 2 are launched");
}
