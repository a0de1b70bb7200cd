//! Notes about a simulated run, on standard error.

use super::World;
use super::arguments::RunArgs;
use crate::show;
use amalgam_core::vocabulary::Duration;
use amalgam_core::why::counted;
use amalgam_workload::trace::Workload;

/// Prints what the trace lacks and how the gaps were filled.
pub(super) fn tell_gaps(workload: &Workload) {
    workload.notes.iter().for_each(|note| show::note(&format!("note: {note}")));
    if workload.malformed.count > 0 {
        let lines = counted(workload.malformed.count, "malformed line");
        show::note(&format!("note: left out: {lines}; the first:"));
        workload.malformed.first.iter().for_each(|line| show::note(&format!("  {line}")));
    }
}

/// Explains why the run may take long, and what would help.
pub(super) fn report_heartbeats(world: &World, heartbeat: Duration) {
    const MANY: u64 = 20_000_000;
    let span = world.workload.jobs.last().map_or(Duration::ZERO, |job| job.arrival);
    let beats = world.nodes.len() as u64 * (span.as_micros() / heartbeat.as_micros());
    if beats > MANY {
        let millions = beats / 1_000_000;
        show::note(&format!(
            "note: jobs arrive over {span}: the nodes report {millions} million times before the last does, which takes most \
             of the time; a longer --heartbeat makes that less"
        ));
    }
}

/// Prints options about inputs that have no effect, or another effect than expected.
pub(super) fn report_inputs(args: &RunArgs, world: &World) {
    let nodes = world.nodes.len();
    match args.world.replicas {
        Some(replicas) if replicas as usize > nodes => show::note(&format!(
            "note: with {} each block has as many copies, not {replicas}",
            counted(nodes as u64, "node")
        )),
        None if args.workload_options.iter().any(|(key, _)| key == "input") => show::note(
            "note: -w input has no effect without --replicas N, which stores inputs on nodes: reading them takes no time",
        ),
        _ => {}
    }
}
