//! Bytes for each task of a job manager: untouched, half finished, half to be retried. The real role, without a cluster.

use super::arrays::resident_bytes;
use crate::cluster::{JOB, NODE, array, manager};
use amalgam_cli::failure::Result;
use amalgam_core::job_manager::JobManager;
use amalgam_core::preset::Preset;
use amalgam_core::protocol::{Address, Grant, Rule, ToJobManager};
use amalgam_core::role::{Event, Outbox, Role};
use amalgam_core::vocabulary::{
    AskId, AttemptId, Duration, EndReason, Ended, Epoch, Generation, GrantId, Instant, JobSpec, Usage,
};
use clap::Args;
use std::sync::Arc;

#[derive(Args)]
pub struct MemoryArgs {
    #[arg(long, default_value_t = 1_000_000)]
    tasks: u32,
}

pub fn execute(args: &MemoryArgs) -> Result<()> {
    let start = resident_bytes(std::process::id())?;
    let mut spec = array(args.tasks, &["/bin/true"]);
    spec.stages[0].retries = 1;
    let mut run = Run::start(spec);
    let per_task = |bytes: u64| bytes as f64 / f64::from(args.tasks);
    let show = |what: &str, run: &Run| -> Result<()> {
        give_back_free_memory();
        let resident = resident_bytes(std::process::id())?.saturating_sub(start);
        let counted = run.manager.dag().stage(0).bytes() as u64;
        say!("{what}: {:.1} bytes a task resident, {:.1} in its records", per_task(resident), per_task(counted));
        Ok(())
    };
    show("untouched", &run)?;
    for _ in 0..args.tasks / 2 {
        run.attempt(EndReason::Exit(0));
    }
    show("half of them finished", &run)?;
    for _ in 0..args.tasks / 2 {
        run.attempt_and_leave(EndReason::Exit(1));
    }
    show("the other half failed once and to be tried again", &run)?;
    Ok(())
}

/// Returns freed memory, which the allocator would keep, to the system.
fn give_back_free_memory() {
    // SAFETY: it has no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}

struct Run {
    manager: JobManager,
    out: Outbox,
    now: Instant,
    attempts: u32,
    waiting: Vec<AttemptId>,
}

impl Run {
    fn start(spec: JobSpec) -> Run {
        let (job, manager) = manager(&Preset::DRF, spec);
        let mut run = Run { manager, out: Outbox::default(), now: Instant(1), attempts: 0, waiting: Vec::new() };
        run.deliver(Address::Master, ToJobManager::start(job, None));
        run
    }

    fn deliver(&mut self, from: Address, body: ToJobManager) {
        self.now += Duration::from_micros(10);
        self.manager.handle(self.now, Event::Message { from, body }, &mut self.out);
        self.out = Outbox::default();
    }

    fn launch(&mut self) -> AttemptId {
        let number = u64::from(self.attempts) + 1;
        let id = GrantId { epoch: Epoch(1), number, slot: 0 };
        let ask = AskId { job: JOB, number: 0 };
        let grant = Grant {
            id,
            ask,
            node: NODE,
            rule: Rule::DominantShare,
            passed_over: 0,
            generation: Generation(0),
            prediction: None,
            shared_gpu: None,
        };
        self.deliver(Address::Master, ToJobManager::Granted { grants: vec![grant] });
        let attempt = AttemptId { job: JOB, epoch: Epoch(1), number: self.attempts };
        self.attempts += 1;
        attempt
    }

    fn end(&mut self, attempt: AttemptId, reason: EndReason) {
        let usage = Usage { wall: Duration::from_millis(20), ..Usage::default() };
        let ended = Arc::new(Ended { reason, usage, message: None, files: None });
        self.deliver(Address::Node(NODE), ToJobManager::Finished { attempt, ended, instead: None });
    }

    fn attempt(&mut self, reason: EndReason) {
        let attempt = self.launch();
        self.end(attempt, reason);
    }

    /// Launches the next untouched task while the previous one still runs, so that no retry is launched.
    fn attempt_and_leave(&mut self, reason: EndReason) {
        let attempt = self.launch();
        self.waiting.push(attempt);
        let untouched = self.manager.dag().stage(0);
        if untouched.waiting() == 0 {
            for attempt in std::mem::take(&mut self.waiting) {
                self.end(attempt, reason.clone());
            }
        }
    }
}
