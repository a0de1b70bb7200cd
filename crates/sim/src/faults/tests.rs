use super::{Fault, Happening};
use crate::places::Place;
use crate::settings::Costs;
use crate::simulation::Simulation;
use crate::testing::{run, simulation};
use amalgam_core::role::{Change, Record};
use amalgam_core::vocabulary::Duration;

fn crash(place: Place) -> Fault {
    Fault::Crash { place, down: Duration::from_secs(2), noticed: Duration::from_millis(100) }
}

fn launches(simulation: &Simulation) -> usize {
    simulation.log().iter().filter(|change| matches!(change, Change::Launched { .. })).count()
}

#[test]
fn a_server_that_dies_loses_exactly_what_was_not_durable() {
    for (crash_at, is_lost) in [(1_000_100, true), (1_001_000, false)] {
        let mut simulation = simulation(&[(crash_at, crash(Place::Server))]);
        let happened = run(&mut simulation, 2_000_000);
        let undone = happened.iter().any(|happening| {
            matches!(happening, Happening::Undone(changes)
                if matches!(changes[..], [.., Change::JobAdmitted { .. }, Change::JobBegun { .. }, Change::Launched { .. }, Change::Launched { .. }]))
        });
        let admitted = simulation.log().iter().any(|change| matches!(change, Change::JobAdmitted { .. }));
        assert_eq!((undone, admitted), (is_lost, !is_lost), "crash at {crash_at}");
        // Nobody was answered, or the launches had left: either way each task runs once.
        run(&mut simulation, 20_000_000);
        assert!(simulation.is_done());
        assert_eq!(launches(&simulation), 2, "crash at {crash_at}");
    }
}

#[test]
fn tasks_outlive_their_agent_but_not_their_executor() {
    for (fault, expected) in [(crash(Place::Node(0)), 2), (Fault::ExecutorDies { node: 0 }, 4)] {
        let mut simulation = simulation(&[(3_000_000, fault.clone())]);
        run(&mut simulation, 20_000_000);
        assert!(simulation.is_done());
        assert_eq!(launches(&simulation), expected, "{fault:?}");
    }
}

#[test]
fn a_process_that_hangs_does_nothing_until_it_goes_on() {
    let pause = Fault::Pause { place: Place::Node(0), length: Duration::from_secs(10) };
    let mut simulation = simulation(&[(500_000, pause)]);
    let happened = run(&mut simulation, 30_000_000);
    let began = happened.iter().position(|happening| matches!(happening, Happening::Began { .. }));
    assert!(began.is_some() && simulation.is_done());
    let end = simulation.log().iter().find_map(|change| match change {
        Change::JobEnded { at, .. } => Some(at.0),
        _ => None,
    });
    assert!(end.is_some_and(|at| at > 15_500_000), "{end:?}");
}

#[test]
fn a_broken_connection_costs_no_attempt_that_runs() {
    let fault = Fault::Break {
        node: 0,
        lasts: Duration::from_secs(3),
        noticed_by_node: Duration::from_millis(10),
        noticed_by_server: Duration::from_secs(1),
    };
    let mut simulation = simulation(&[(3_000_000, fault)]);
    run(&mut simulation, 20_000_000);
    assert!(simulation.is_done());
    assert_eq!(launches(&simulation), 2);
}

#[test]
fn of_a_log_that_cannot_be_written_the_first_part_is_there_after_the_restart() {
    for (reached, is_admitted) in [(0, false), (600, true)] {
        let (down, noticed) = (Duration::from_secs(2), Duration::ZERO);
        let mut simulation = simulation(&[(1_000_100, Fault::DiskFails { reached, down, noticed })]);
        run(&mut simulation, 2_000_000);
        let has = |wanted: fn(&Change) -> bool| simulation.log().iter().any(wanted);
        assert_eq!(has(|change| matches!(change, Change::JobAdmitted { .. })), is_admitted, "{reached} thousandths");
        assert!(!has(|change| matches!(change, Change::Launched { .. })), "that comes last in the turn");
        // The client was not answered and asks again; it has one job either way, each task of which runs once.
        run(&mut simulation, 20_000_000);
        assert!(simulation.is_done());
        assert_eq!(launches(&simulation), 2, "{reached} thousandths");
    }
}

#[test]
fn a_node_that_cannot_make_processes_fails_launches_until_it_can() {
    let mut simulation = simulation(&[(500_000, Fault::CannotLaunch { node: 0, lasts: Duration::from_secs(4) })]);
    let happened = run(&mut simulation, 30_000_000);
    let paused = happened.iter().filter_map(Happening::record);
    assert!(paused.filter(|record| matches!(record, Record::NodePaused { .. })).count() > 0);
    assert!(simulation.is_done() && launches(&simulation) > 2);
}

#[test]
fn a_slow_disk_makes_its_server_and_its_node_slow() {
    let began = |place: Option<Place>| {
        let slow = place.map(|place| (500_000, Fault::DiskSlow { place, lasts: Duration::from_secs(9) }));
        let mut simulation = simulation(slow.as_slice());
        while simulation.now().0 < 20_000_000 {
            simulation.step();
            let happened = simulation.take_happened();
            if happened.iter().any(|happening| matches!(happening, Happening::Began { .. })) {
                return simulation.now().0;
            }
        }
        panic!("no task began");
    };
    // The log of the submission and the launch take a hundred times as long: 99 times longer, in microseconds.
    let (usual, Costs { disk, launch, .. }) = (began(None), Costs::default());
    assert_eq!(began(Some(Place::Server)), usual + 99 * disk / 1_000);
    assert!(began(Some(Place::Node(0))) >= usual + 99 * launch / 1_000);
}
