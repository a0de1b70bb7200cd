//! The simulator on one core: events per second, and the cost of an event on a large cluster. Each figure is compared with the
//! time of a bare agenda for the same number of entries, with as many pending as at the peak of the run.

use crate::measure::OnCore;
use amalgam_cli::failure::Result;
use amalgam_cli::process::peak_memory;
use amalgam_cli::values::parse_option;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::Duration;
use amalgam_sim::bench::run_agenda;
use amalgam_sim::{Settings, Simulation};
use amalgam_workload::trace::{self, Workload};
use clap::Args;
use std::hint::black_box;

#[derive(Args)]
pub struct SimArgs {
    /// The workload for sparrow, such as hawk:YH1_sub.tr.gz; one of that size is drawn without it
    #[arg(long, value_name = "WORKLOAD")]
    workload: Option<String>,
    /// An option of that workload, such as whole-seconds=true; repeatable
    #[arg(short = 'w', long = "workload-option", value_name = "KEY=VALUE", value_parser = parse_option)]
    workload_options: Vec<(String, String)>,
    /// The DAGs for drf on 50,000 nodes, such as alibaba-dag:FILE; a million tasks are drawn without it
    #[arg(long, value_name = "WORKLOAD")]
    dags: Option<String>,
    /// An option of these DAGs, such as limit=3000; repeatable
    #[arg(long = "dag-option", value_name = "KEY=VALUE", value_parser = parse_option)]
    dag_options: Vec<(String, String)>,
    /// A two-hundredth of everything: shows that it works and not how fast it is
    #[arg(long)]
    quick: bool,
}

/// Divides the sizes of a quick run.
const QUICK: u32 = 200;

/// Longer than any run.
const NEVER: Duration = Duration::from_secs(1_000_000);

/// Number of runs of a short case; the median counts.
const REPEATS: usize = 5;

/// CPU seconds of a mean job of [`FEW_TASKS`] with [`MINUTE`].
const SECONDS_PER_JOB: f64 = 10.5 * 60.0;
const FEW_TASKS: &str = "uniform:1-20";
const MINUTE: &str = "exponential:60s";

pub fn execute(args: &SimArgs) -> Result<()> {
    let scale = if args.quick { QUICK } else { 1 };
    one_run(&idle(1_000 / scale)?, "over 1,000,000 a second")?;
    one_run(&contended(1_000 / scale)?, "over 1,000,000 a second")?;
    compare(&loaded(1_000 / scale)?, &loaded(50_000 / scale)?)?;
    one_run(&late_binding(args, scale)?, "less than 1 s")?;
    one_run(&dags(args, scale)?, "less than 60 s and 4 GiB")?;
    say!("  peak memory of all these: {:.2} GiB", peak_memory() as f64 / f64::from(1 << 30));
    Ok(())
}

/// A workload on a cluster.
struct Case {
    title: String,
    preset: Preset,
    nodes: u32,
    cpus: u32,
    /// `None` for no heartbeats.
    heartbeat: Option<Duration>,
    workload: Workload,
}

/// Nearly all events are heartbeats.
fn idle(nodes: u32) -> Result<Case> {
    let workload = drawn(nodes * 3, FEW_TASKS, MINUTE, "task", &poisson(nodes, 4, 0.05))?;
    let title = "hardly loaded (5 %)".to_owned();
    Ok(Case { title, preset: Preset::FIFO, nodes, cpus: 4, heartbeat: Some(Duration::from_secs(10)), workload })
}

/// All that fits runs, and the rest waits.
fn contended(nodes: u32) -> Result<Case> {
    let workload = drawn(nodes, "uniform:1-1000", "exponential:300s", "task", "at-once")?;
    let title = "full, all jobs at once".to_owned();
    Ok(Case { title, preset: Preset::DRF, nodes, cpus: 96, heartbeat: Some(Duration::from_secs(10)), workload })
}

/// The same load for each node, independent of their number.
fn loaded(nodes: u32) -> Result<Case> {
    let workload = drawn(nodes, FEW_TASKS, MINUTE, "task", &poisson(nodes, 4, 0.8))?;
    let title = "80 % loaded".to_owned();
    Ok(Case { title, preset: Preset::DRF, nodes, cpus: 4, heartbeat: Some(Duration::from_secs(60)), workload })
}

/// Long queues of probes, and no heartbeats.
fn late_binding(args: &SimArgs, scale: u32) -> Result<Case> {
    let workload = match &args.workload {
        Some(workload) => trace::read(workload, &args.workload_options)?,
        // As many jobs, tasks and core hours as a well-known trace (Delgado et al. 2015: Hawk, YH1_sub).
        None => drawn(
            2_910 / scale,
            "lognormal:15:1.45",
            "lognormal:95s:2",
            "job",
            &format!("poisson:{}ms", 8_870 * scale),
        )?,
    };
    let title = format!("{} jobs of {} tasks", workload.jobs.len(), workload.task_count());
    Ok(Case { title, preset: Preset::SPARROW, nodes: 4_000 / scale, cpus: 1, heartbeat: None, workload })
}

/// A million tasks of many DAGs, all submitted at once to a cluster that holds a fifth of them.
fn dags(args: &SimArgs, scale: u32) -> Result<Case> {
    let workload = match &args.dags {
        Some(workload) => trace::read(workload, &args.dag_options)?,
        None => {
            let jobs = (9_600 / scale).to_string();
            let options = [("jobs", &*jobs), ("run-time", "lognormal:20s:1.2")];
            let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
            trace::read("synthetic:layered", &options)?
        }
    };
    let title = format!("{} DAGs of {} tasks", workload.jobs.len(), workload.task_count());
    let nodes = 50_000 / scale;
    Ok(Case { title, preset: Preset::DRF, nodes, cpus: 4, heartbeat: Some(Duration::from_secs(60)), workload })
}

/// Arrivals of jobs of [`SECONDS_PER_JOB`] that load a cluster to this part.
fn poisson(nodes: u32, cpus: u32, load: f64) -> String {
    format!("poisson:{:.0}us", SECONDS_PER_JOB / (f64::from(nodes * cpus) * load) * 1e6)
}

fn drawn(jobs: u32, tasks: &str, run_time: &str, drawn_per: &str, arrival: &str) -> Result<Workload> {
    let jobs = jobs.to_string();
    let options =
        [("jobs", &*jobs), ("tasks", tasks), ("run-time", run_time), ("drawn-per", drawn_per), ("arrival", arrival)];
    let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Ok(trace::read("synthetic:gridmix", &options)?)
}

/// The time of a run on a core, and of the bare agenda for the same number of entries.
struct Measured {
    events: u64,
    seconds: f64,
    floor: f64,
}

impl Measured {
    fn nanos(&self) -> f64 {
        self.seconds * 1e9 / self.events as f64
    }

    fn floor_nanos(&self) -> f64 {
        self.floor * 1e9 / self.events as f64
    }
}

impl Case {
    fn measure(&self) -> Result<Measured> {
        let options = [("cpus", self.cpus.to_string()), ("memory", "384GiB".to_owned())];
        let options = options.map(|(key, value)| (key.to_owned(), value));
        let nodes = trace::read_nodes(&format!("drawn:{}", self.nodes), &options)?;
        let mut settings = Settings { preset: self.preset, rests: false, ..Settings::default() };
        settings.master.heartbeat = self.heartbeat.unwrap_or(NEVER);
        let watch = OnCore::start();
        let outcome = Simulation::new(settings, &nodes, &self.workload).run();
        let seconds = watch.elapsed().as_secs_f64();
        let running = outcome.windows.iter().map(|window| window.running).max().unwrap_or(0);
        let events = outcome.results.events;
        let watch = OnCore::start();
        black_box(run_agenda(u64::from(self.nodes) + running, events));
        Ok(Measured { events, seconds, floor: watch.elapsed().as_secs_f64() })
    }

    fn describe(&self) -> String {
        let Case { title, preset, nodes, cpus, heartbeat, .. } = self;
        let heartbeat = heartbeat.map_or("no heartbeats".to_owned(), |period| format!("a heartbeat in {period}"));
        format!("{}, {nodes} nodes with {cpus} CPUs each, {heartbeat}, {title}", preset.name())
    }
}

fn one_run(case: &Case, asked: &str) -> Result<()> {
    let Measured { events, seconds, floor } = case.measure()?;
    let rate = events as f64 / seconds;
    say!("{}: {events} events in {seconds:.2} s, {rate:.0} a second; asked: {asked}", case.describe());
    say!("  the bare agenda takes {floor:.2} s, {:.0} a second", events as f64 / floor);
    Ok(())
}

/// The run on the small cluster is short, so it is repeated, before the large one and after it.
fn compare(small: &Case, large: &Case) -> Result<()> {
    let mut few = (1..REPEATS).map(|_| small.measure()).collect::<Result<Vec<_>>>()?;
    let many = large.measure()?;
    few.push(small.measure()?);
    few.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let few = &few[few.len() / 2];
    for (case, Measured { events, seconds, .. }, nanos) in [(small, few, few.nanos()), (large, &many, many.nanos())] {
        say!("{}: {events} events in {seconds:.2} s, {nanos:.0} ns each", case.describe());
    }
    say!(
        "  an event takes {:.2} times as long on the large cluster, required is 2 times at most; on the bare agenda {:.2} \
         times, {:.0} and {:.0} ns",
        many.nanos() / few.nanos(),
        many.floor / many.events as f64 / (few.floor / few.events as f64),
        few.floor_nanos(),
        many.floor_nanos()
    );
    Ok(())
}
