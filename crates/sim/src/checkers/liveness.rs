//! After all faults have ended, every job ends.

use super::{Breach, Checker};
use crate::faults::{Fault, Happening};
use crate::simulation::Simulation;
use amalgam_core::job_manager::JobManager;
use amalgam_core::vocabulary::{Duration, Instant, JobId};

/// After the faults have ended, every job ends within this time.
pub const ALL_END_WITHIN: Duration = Duration::from_secs(3_600);

pub struct Liveness {
    /// The time by which all faults have to have ended.
    healed_by: Instant,
    is_healed: bool,
    /// Jobs that had not ended when all faults ended.
    left: u64,
}

impl Liveness {
    pub fn new(healed_by: Instant) -> Liveness {
        Liveness { healed_by, is_healed: false, left: 0 }
    }
}

impl Checker for Liveness {
    fn rule(&self) -> &'static str {
        "every job ends after the faults have ended"
    }

    fn check(&mut self, world: &Simulation, happened: &[Happening]) -> Result<(), Breach> {
        if happened.iter().any(|happening| matches!(happening, Happening::Fault(Fault::Heal))) {
            self.is_healed = true;
            self.left = world.unended().count() as u64;
        }
        if world.now() <= self.healed_by + ALL_END_WITHIN || (self.is_healed && world.is_done()) {
            return Ok(());
        }
        let healed = if self.is_healed { "" } else { "the faults have not ended; " };
        if !world.all_dispatch() {
            return Err(Breach::new(format!("{healed}a process that accepts jobs is down")));
        }
        let left: Vec<JobId> = world.unended().collect();
        let waits: Vec<String> = left.iter().map(|job| format!("job {job} waits: {}", why(world, *job))).collect();
        let what = format!("{healed}{}", if waits.is_empty() { "a client waits".to_owned() } else { waits.join("; ") });
        Err(left.first().map_or_else(|| Breach::new(what.clone()), |job| Breach::of_job(*job, what.clone())))
    }

    fn subjects(&self) -> u64 {
        self.left
    }
}

/// The reasons that the job's dispatcher and its job manager report.
fn why(world: &Simulation, job: JobId) -> String {
    let whys = world.dispatcher(job).map(|dispatcher| dispatcher.explain(job)).unwrap_or_default();
    let mut reasons: Vec<String> =
        whys.iter().map(|why| why.describe(world.kinds(), |node| node.to_string())).collect();
    let manager = world.job_manager(job);
    reasons.extend(manager.map(progress));
    if reasons.is_empty() { "no reason is reported".to_owned() } else { reasons.join(", ") }
}

fn progress(manager: &JobManager) -> String {
    let running: Vec<String> =
        manager.running().map(|(attempt, task, node)| format!("task {task} as {attempt} on {node}")).collect();
    let stages = (0..manager.job().spec.stages.len() as u32).map(|stage| manager.dag().stage(stage));
    let waiting: u32 = stages.map(|stage| stage.waiting()).sum();
    let mut text = format!("{waiting} tasks wait, at nodes: [{}]", running.join("; "));
    if let Some(local) = manager.local_scheduler() {
        for state in local.ask_states().filter(|state| state.open > 0) {
            let nodes = if state.has_nodes { "some node suits" } else { "no node suits" };
            text += &format!(", {} probes for {} tasks, {nodes}", state.probes, state.open);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::ProcessId;
    use crate::testing::{run, simulation};

    fn after(seconds: u64) -> u64 {
        (ALL_END_WITHIN + Duration::from_secs(seconds)).as_micros()
    }

    fn check(plan: &[(u64, Fault)]) -> Result<(), Breach> {
        let mut world = simulation(plan);
        let happened = run(&mut world, after(200));
        Liveness::new(Instant::ZERO + Duration::from_secs(100)).check(&world, &happened)
    }

    #[test]
    fn a_job_that_ends_after_the_faults_is_no_breach() {
        assert_eq!(check(&[(100_000_000, Fault::Heal)]), Ok(()));
    }

    #[test]
    fn a_job_that_never_ends_is_named_with_the_reasons_for_its_wait() {
        let drained = Fault::Drain { node: 0, drained: true };
        let breach = check(&[(900_000, drained)]).unwrap_err();
        assert_eq!(breach.job, Some(JobId(1)));
        assert!(breach.what.starts_with("the faults have not ended; job 1 waits: "), "{}", breach.what);
        assert!(breach.what.contains("takes no work") && breach.what.contains("2 tasks wait"), "{}", breach.what);
    }

    #[test]
    fn a_server_that_never_restarts_is_noticed() {
        let gone =
            Fault::Crash { place: ProcessId::Server, down: Duration::from_secs(1_000_000), noticed: Duration::ZERO };
        let breach = check(&[(2_000_000, gone)]).unwrap_err();
        assert_eq!(breach.what, "the faults have not ended; a process that accepts jobs is down");
    }
}
