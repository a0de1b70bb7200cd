use super::{Fault, Happening};
use crate::settings::Settings;
use crate::simulation::{Place, Simulation};
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{
    Attributes, Duration, ExecutionType, Instant, JobSpec, Program, ResourceSpec, Resources, StageSpec, TaskSet,
};
use amalgam_workload::trace::{MalformedLines, Node, RunTimes, TraceJob, Workload};
use std::sync::Arc;

/// One job of two tasks of 5 s each that comes at once, on one node that runs both.
fn simulation(plan: &[(u64, Fault)]) -> Simulation {
    let stage = StageSpec {
        name: "s0".to_owned(),
        after: Vec::new(),
        tasks: TaskSet::Count(2),
        program: Arc::new(Program { command: vec!["true".to_owned()], ..Program::default() }),
        resources: ResourceSpec { basic: Resources::new(1_000, 0), custom: Vec::new() },
        expected: None,
        execution: ExecutionType::Guaranteed,
        constraints: Vec::new(),
        retries: 0,
        timeout: None,
    };
    let spec = Arc::new(JobSpec { name: "j0".to_owned(), stages: vec![stage], ..JobSpec::default() });
    let run_times = vec![RunTimes::Same(Duration::from_secs(5))].into();
    let jobs = vec![TraceJob { arrival: Duration::from_secs(1), spec, run_times }];
    let workload = Workload { name: String::new(), jobs, notes: Vec::new(), malformed: MalformedLines::default() };
    let resources = ResourceSpec { basic: Resources::new(2_000, 0), custom: Vec::new() };
    let nodes = [Node { name: "host0".to_owned(), resources, attributes: Attributes::default() }];
    let mut simulation = Simulation::new(Settings::default(), &nodes, &workload);
    simulation.plan(plan.iter().map(|(micros, fault)| (Instant(*micros), fault.clone())).collect());
    simulation
}

fn run(simulation: &mut Simulation, until: u64) -> Vec<Happening> {
    while simulation.agenda.next_at().is_some_and(|at| at.0 <= until) {
        simulation.step();
    }
    simulation.take_happened()
}

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
