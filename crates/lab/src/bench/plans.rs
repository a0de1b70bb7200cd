//! The time of a job manager for an event of a large DAG: run times differ from the expected ones, some tasks fail, and the
//! share changes. The real role runs the job to its end, without a cluster.
//!
//! The time of an event is the least CPU time over several runs. The runs are identical to the last event, so the rest is
//! noise of the machine.

use crate::cluster::{JOB, NODE, array, manager};
use amalgam_cli::failure::{Failure, Result};
use amalgam_core::job_manager::JobManager;
use amalgam_core::preset::{Plans, Preset};
use amalgam_core::protocol::{Address, Ask, Grant, Message, Rule, ToJobManager, ToMaster, ToNode};
use amalgam_core::role::{Event, Outbox, Role};
use amalgam_core::vocabulary::{
    AttemptId, Chance, Duration, EndReason, Ended, Epoch, Generation, GrantId, Instant, JobSpec, ResourceSpec,
    Resources, StageSpec, TaskSet, Totals, Usage,
};
use amalgam_sim::statistics::{percentile, sorted};
use clap::Args;
use std::collections::BTreeMap;
use std::sync::Arc;

const RUNS: usize = 3;
/// Events that usually result in launches and nothing else.
const GRANTS: &str = "grants";
const BETWEEN_GRANTS: Duration = Duration::from_millis(1);
const BETWEEN_SHARES: Duration = Duration::from_secs(5);
/// One task in this many fails once.
const FAILS: u32 = 500;
/// Maximum duration of a job, as a multiple of its work divided by its share.
const PATIENCE: u64 = 100;
/// Maximum milliseconds for a decision, with a hundred stages and a hundred thousand tasks.
const ASKED: f64 = 1.0;

#[derive(Args)]
pub struct PlansArgs {
    /// Stages of the job
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    stages: u32,
    /// Tasks of each
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tasks: u32,
    /// Tasks that fit into the cluster; the job is entitled to half of that in the mean
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    slots: u32,
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

pub fn execute(args: &PlansArgs) -> Result<()> {
    say!(
        "a job of {} stages with {} tasks each; milliseconds of CPU that an event takes the job manager, the least of {RUNS} runs",
        args.stages,
        args.tasks
    );
    let mut dagps = Preset::CARBYNE;
    dagps.yielding_mut().expect("it yields").plans = Plans::Dagps;
    for (name, preset) in [("drf", Preset::DRF), ("carbyne", Preset::CARBYNE), ("carbyne, dagps", dagps)] {
        let decisions = least(args, &preset)?;
        say!("{name}");
        let mut longest: f64 = 0.0;
        for (what, decisions) in decisions {
            let tasks: u64 = decisions.iter().map(|decision| decision.launches).sum();
            let all: f64 = decisions.iter().map(|decision| decision.took).sum();
            let times = sorted(decisions.iter().map(|decision| decision.took));
            let at = |percent: u32| percentile(&times, percent);
            let (p50, p99, most) = (at(50), at(99), at(100));
            let count = times.len();
            say_on!("  {what:<30}{count:>8} times  p50 {p50:.4}  p99 {p99:.4}  max {most:.4}");
            if tasks > 0 {
                say_on!(", and {:.4} for each of {tasks} launches", all / tasks as f64);
            }
            say!();
            if what != GRANTS {
                longest = longest.max(most);
            }
        }
        say!(
            "  the longest without launches takes {longest:.3} of the {ASKED} ms that are required for 100 stages with 1,000 tasks each"
        );
    }
    Ok(())
}

/// By kind of event, the time of each event in order.
type Decisions = BTreeMap<&'static str, Vec<Decided>>;

struct Decided {
    /// Milliseconds of CPU.
    took: f64,
    launches: u64,
}

fn least(args: &PlansArgs, preset: &Preset) -> Result<Decisions> {
    let mut least = Run::new(args, preset).finish()?;
    for _ in 1..RUNS {
        let again = Run::new(args, preset).finish()?;
        if least.len() != again.len() {
            return Err(not_alike());
        }
        for ((what, first), (same, second)) in least.iter_mut().zip(&again) {
            if *what != *same || first.len() != second.len() {
                return Err(not_alike());
            }
            first.iter_mut().zip(second).for_each(|(one, other)| one.took = one.took.min(other.took));
        }
    }
    Ok(least)
}

fn not_alike() -> Failure {
    Failure::new("two runs of one seed are not alike", "this is a bug")
}

/// CPU time of this thread in milliseconds.
fn cpu_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to a local variable.
    unsafe {
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
    }
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

enum Happening {
    Grants,
    NewShare,
    /// The end of an attempt of a stage.
    End(AttemptId, usize),
}

struct Run {
    manager: JobManager,
    start: ToJobManager,
    spec: Arc<JobSpec>,
    now: Instant,
    out: Outbox,
    chance: Chance,
    /// Pending events by time, then by the order in which they were scheduled.
    agenda: BTreeMap<(Instant, u64), Happening>,
    found_out: u64,
    /// By the number of the ask.
    asks: BTreeMap<u32, Open>,
    cluster: Totals,
    free: Totals,
    share: Totals,
    grants: u64,
    /// By stage, in millionths of the expected run time.
    off_by: Vec<u64>,
    has_ended: bool,
    decisions: Decisions,
    /// Launches that the event caused.
    launches: u64,
}

struct Open {
    ask: Ask,
    granted: u64,
}

impl Run {
    fn new(args: &PlansArgs, preset: &Preset) -> Run {
        let mut chance = Chance::new(args.seed, "plans");
        let spec = layered(args, &mut chance);
        let off_by = spec.stages.iter().map(|_| 700_000 + chance.below(800_000_u64)).collect();
        let (job, manager) = manager(preset, spec);
        let cluster = Totals(Resources::new(750, 1_750).0.map(|amount| u64::from(amount) * u64::from(args.slots)));
        let share = Totals(cluster.0.map(|amount| amount / 2));
        let share_told = preset.yielding().is_some().then(|| Box::new(share));
        Run {
            manager,
            start: ToJobManager::start(Arc::clone(&job), share_told),
            spec: Arc::clone(&job.spec),
            now: Instant(1),
            out: Outbox::default(),
            chance,
            agenda: BTreeMap::new(),
            found_out: 0,
            asks: BTreeMap::new(),
            cluster,
            free: cluster,
            share,
            grants: 0,
            off_by,
            has_ended: false,
            decisions: BTreeMap::new(),
            launches: 0,
        }
    }

    fn finish(mut self) -> Result<Decisions> {
        let start = self.start.clone();
        let plans = matches!(&start, ToJobManager::Start { share: Some(_), .. });
        self.deliver("the beginning", Address::Master, start);
        self.later(BETWEEN_GRANTS, Happening::Grants);
        if plans {
            self.later(BETWEEN_SHARES, Happening::NewShare);
        }
        let work: u64 = self.spec.stages.iter().map(|stage| stage.expected.map_or(0, |each| each.0)).sum();
        let latest = Instant(work.saturating_mul(PATIENCE));
        while !self.has_ended {
            let next = self.agenda.first_key_value().map(|((at, _), _)| *at);
            match self.manager.next_wakeup() {
                Some(at) if next.is_none_or(|next| at <= next) => {
                    self.now = at.max(self.now);
                    self.handle("a task that must start", Event::Wakeup);
                }
                _ => self.happen()?,
            }
            if self.now > latest {
                return Err(Failure::new("the job does not end", ""));
            }
        }
        Ok(self.decisions)
    }

    fn later(&mut self, after: Duration, what: Happening) {
        self.agenda.insert((self.now + after, self.found_out), what);
        self.found_out += 1;
    }

    fn happen(&mut self) -> Result<()> {
        let Some(((at, _), what)) = self.agenda.pop_first() else {
            return Err(Failure::new("nothing is left to happen, and the job has not ended", ""));
        };
        self.now = at;
        match what {
            Happening::Grants => {
                let grants = self.grants();
                if !grants.is_empty() {
                    self.deliver(GRANTS, Address::Master, ToJobManager::Granted { grants });
                }
                self.later(BETWEEN_GRANTS, Happening::Grants);
            }
            Happening::NewShare => {
                let part = 300_000 + self.chance.below(400_000_u64);
                self.share = Totals(self.cluster.0.map(|amount| amount / 1_000 * part / 1_000));
                self.deliver("a new share", Address::Master, ToJobManager::Share { share: Box::new(self.share) });
                self.later(BETWEEN_SHARES, Happening::NewShare);
            }
            Happening::End(attempt, stage) => {
                self.free.add(&self.spec.stages[stage].resources.basic);
                let usage = Usage { wall: Duration::from_millis(20), ..Usage::default() };
                let fails = self.chance.below(FAILS) == 0;
                let ended =
                    Arc::new(Ended { reason: EndReason::Exit(u8::from(fails)), usage, message: None, files: None });
                let what = if fails { "a failure" } else { "the end of a task" };
                self.deliver(what, Address::Node(NODE), ToJobManager::Finished { attempt, ended, instead: None });
            }
        }
        Ok(())
    }

    /// Grants for all tasks that must start, and for some of the others of each ask.
    fn grants(&mut self) -> Vec<Grant> {
        let mut grants = Vec::new();
        for is_needed in [true, false] {
            for open in self.asks.values_mut() {
                let wanted = if is_needed { open.ask.needed } else { open.ask.wanted };
                let resources = &open.ask.resources;
                while open.granted < wanted && fits(resources, &self.free) {
                    if !is_needed && self.chance.below(2_u32) == 0 {
                        break;
                    }
                    self.free.sub(resources);
                    open.granted += 1;
                    self.grants += 1;
                    let id = GrantId { epoch: Epoch(1), number: self.grants, slot: 0 };
                    let rule = if is_needed { Rule::DominantShare } else { Rule::Leftover };
                    let (ask, generation) = (open.ask.id, Generation(0));
                    grants.push(Grant {
                        id,
                        ask,
                        node: NODE,
                        rule,
                        passed_over: 0,
                        generation,
                        prediction: None,
                        shared_gpu: None,
                    });
                }
            }
        }
        grants
    }

    fn deliver(&mut self, what: &'static str, from: Address, body: ToJobManager) {
        self.handle(what, Event::Message { from, body });
    }

    fn handle(&mut self, what: &'static str, event: Event<ToJobManager>) {
        let started = cpu_time();
        self.manager.handle(self.now, event, &mut self.out);
        let took = cpu_time() - started;
        self.launches = 0;
        let mut asks = false;
        for (_, message) in std::mem::take(&mut self.out).sends {
            asks |= matches!(&message, Message::ToMaster(ToMaster::Demand { asks, .. }) if !asks.is_empty());
            self.take_in(message);
        }
        let what = match what {
            "the end of a task" if asks => "the end of one, and it asks",
            GRANTS if asks => "grants, and it asks",
            what => what,
        };
        self.decisions.entry(what).or_default().push(Decided { took, launches: self.launches });
    }

    fn take_in(&mut self, message: Message) {
        match message {
            Message::ToMaster(ToMaster::Demand { asks, .. }) => {
                for ask in asks {
                    let granted = self.asks.get(&ask.id.number).map_or(0, |open| open.granted);
                    self.asks.insert(ask.id.number, Open { ask, granted });
                }
            }
            Message::ToMaster(ToMaster::JobEnded { job, .. }) => self.has_ended = job == JOB,
            Message::ToNode(ToNode::Launch(launch)) => {
                self.launches += 1;
                let stage = launch.task.stage as usize;
                let expected = self.spec.stages[stage].expected.map_or(1, |expected| expected.0);
                let each = 800_000 + self.chance.below(400_000_u64);
                let time = expected * self.off_by[stage] / 1_000_000 * each / 1_000_000;
                self.later(Duration(time.max(1)), Happening::End(launch.attempt, stage));
            }
            _ => {}
        }
    }
}

fn fits(resources: &Resources, free: &Totals) -> bool {
    let mut wanted = Totals::ZERO;
    wanted.add(resources);
    wanted.fits_in(free)
}

/// Ten layers at most; a stage depends on some stages of the layer before its own.
fn layered(args: &PlansArgs, chance: &mut Chance) -> JobSpec {
    let mut spec = array(args.tasks, &["/bin/true"]);
    let width = args.stages.div_ceil(10);
    let program = Arc::clone(&spec.stages[0].program);
    let stage = |index: u32| {
        let before = (index / width).checked_sub(1).map_or(0..0, |layer| layer * width..(layer + 1) * width);
        let basic = Resources::new(500 + chance.below(501_u32), 1_000 + chance.below(1_501_u32));
        StageSpec {
            name: format!("s{index}"),
            after: before.filter(|_| chance.below(3_u32) == 0).collect(),
            tasks: TaskSet::Count(args.tasks),
            program: Arc::clone(&program),
            resources: ResourceSpec { basic, custom: Vec::new() },
            retries: 5,
            expected: Some(Duration::from_millis(1_000 + chance.below(20_000_u64))),
            ..StageSpec::default()
        }
    };
    spec.stages = (0..args.stages).map(stage).collect();
    spec
}
