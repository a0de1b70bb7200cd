//! A small simulation for tests.

use crate::faults::{Fault, Happening, Planned};
use crate::places::ProcessId;
use crate::settings::Settings;
use crate::simulation::Simulation;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{
    Attributes, Duration, ExecutionType, Instant, JobSpec, Program, ResourceSpec, Resources, StageSpec, TaskSet,
};
use amalgam_workload::trace::{MalformedLines, Node, RunTimes, TraceJob, Workload};
use std::sync::Arc;

/// One node that can run two tasks at once, and one job with two tasks of 5 s that arrives after 1 s.
pub fn simulation(plan: &[(u64, Fault)]) -> Simulation {
    simulation_under(Settings::default().preset, plan)
}

pub fn simulation_under(preset: Preset, plan: &[(u64, Fault)]) -> Simulation {
    simulation_of(Settings { preset, ..Settings::default() }, 2, plan)
}

/// The same job with `tasks` tasks.
pub fn simulation_of(settings: Settings, tasks: u32, plan: &[(u64, Fault)]) -> Simulation {
    let jobs = vec![job("", tasks, Duration::from_secs(1), Duration::from_secs(5))];
    let workload = Workload { name: String::new(), jobs, notes: Vec::new(), malformed: MalformedLines::default() };
    let mut simulation = Simulation::new(settings, &nodes(1, 2), &workload);
    simulation.open();
    let planned = |(micros, fault): &(u64, Fault)| Planned { at: Instant(*micros), upon: None, fault: fault.clone() };
    simulation.plan(plan.iter().map(planned).collect());
    simulation
}

/// Nodes with this number of cores each.
pub fn nodes(count: u32, cores: u32) -> Vec<Node> {
    let resources = ResourceSpec { basic: Resources::new(cores * 1_000, 0), custom: Vec::new() };
    let node = |number| Node {
        name: format!("host{number}"),
        resources: resources.clone(),
        attributes: Attributes::default(),
    };
    (0..count).map(node).collect()
}

/// A job of one stage whose tasks need one core each.
pub fn job(queue: &str, tasks: u32, arrival: Duration, run_time: Duration) -> TraceJob {
    let stage = StageSpec {
        name: "s0".to_owned(),
        tasks: TaskSet::Count(tasks),
        program: Arc::new(Program { command: vec!["true".into()], ..Program::default() }),
        resources: ResourceSpec { basic: Resources::new(1_000, 0), custom: Vec::new() },
        execution: ExecutionType::Guaranteed,
        ..StageSpec::default()
    };
    let (name, queue) = ("j0".to_owned(), queue.to_owned());
    let spec = Arc::new(JobSpec { name, queue, stages: vec![stage], ..JobSpec::default() });
    TraceJob { arrival, spec, run_times: vec![RunTimes::Same(run_time)].into() }
}

pub fn run(simulation: &mut Simulation, until: u64) -> Vec<Happening> {
    while simulation.agenda.next_at().is_some_and(|at| at.0 <= until) {
        simulation.step();
    }
    // Checkers that run now have to check every process.
    let nodes = simulation.nodes();
    simulation.turns = std::iter::once(ProcessId::Server).chain(nodes.map(ProcessId::Node)).collect();
    simulation.take_happened()
}
