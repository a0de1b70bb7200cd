//! Compares waits in the simulator with those of daemons: the same light load on a server and agents on loopback, and simulated
//! with costs that were measured immediately before.

use super::costs::{self, AGENTS, CPUS, CostsArgs, Measured, SLEEP, SLEEP_MICROS};
use super::journals::{self, Journals};
use crate::cluster::{Cluster, array};
use amalgam_cli::failure::{Failure, Result};
use amalgam_core::master::MasterSettings;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{Attributes, Chance, Duration, JobSpec, ResourceSpec, Resources};
use amalgam_sim::{NetworkSettings, Settings, Simulation, statistics};
use amalgam_workload::trace::{MalformedLines, Node, RunTimes, Summary, TraceJob, Workload};
use clap::Args;
use std::sync::Arc;
use std::time::Instant;

#[derive(Args)]
pub struct AgreementArgs {
    #[command(flatten)]
    costs: CostsArgs,
    /// Which policies schedule
    #[arg(long, value_parser = amalgam_cli::values::parse_preset, value_delimiter = ',', default_value = "fifo,drf,sparrow")]
    preset: Vec<Preset>,
    /// Tasks that come at once
    #[arg(long, default_value_t = 600)]
    burst: u32,
    /// Jobs of 20 tasks that come one by one, at random
    #[arg(long, default_value_t = 150)]
    jobs: u32,
    /// The part of all CPUs that the sleeps of these jobs take
    #[arg(long, default_value_t = 0.6)]
    load: f64,
    /// Times that everything is measured; the medians of the ratios count
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Maximum error of the simulator, as a share of the real wait.
const TOLERANCE: f64 = 0.2;
const TASKS_OF_A_JOB: u32 = 20;

/// Jobs and their arrival times.
struct Load {
    name: String,
    jobs: Vec<(Duration, JobSpec)>,
}

/// The waits of the same jobs, real and simulated.
#[derive(Clone, Copy)]
struct Pair {
    real: Waits,
    simulated: Waits,
}

/// Milliseconds.
#[derive(Clone, Copy)]
struct Waits {
    p50: f64,
    p95: f64,
}

pub fn execute(args: &AgreementArgs) -> Result<()> {
    let loads = [burst(args.burst), random(args)];
    let cases: Vec<(Preset, &Load)> =
        args.preset.iter().flat_map(|preset| loads.iter().map(|load| (*preset, load))).collect();
    let mut compared: Vec<Vec<Pair>> = vec![Vec::new(); cases.len()];
    for _ in 0..args.rounds {
        // Measured again each time: other load on the machine changes from minute to minute.
        let measured = costs::measure(&args.costs)?;
        measured.print()?;
        say!();
        for ((preset, load), pairs) in cases.iter().zip(&mut compared) {
            let (real, workload) = run(load, *preset, &args.costs.enforcement)?;
            pairs.push(Pair { real, simulated: simulate(&workload, *preset, &measured, args.seed) });
        }
    }
    say!(
        "wait of tasks that sleep 10 ms, on {AGENTS} agents with {CPUS} CPUs each, in ms: medians of {} rounds",
        args.rounds
    );
    say!("{:<32} {:<12} {:>17} {:>17} {:>13}", "", "", "real p50     p95", "sim p50     p95", "ratio p50  p95");
    let worst = cases.iter().zip(&compared).map(|((preset, load), pairs)| print_case(*preset, load, pairs));
    let worst = worst.collect::<Result<Vec<f64>>>()?.into_iter().fold(0.0, f64::max);
    if worst > TOLERANCE {
        let what =
            format!("the simulator is off by up to {:.0} %, over the limit of {:.0} %", worst * 1e2, TOLERANCE * 1e2);
        return Err(Failure::new(what, "run it on a machine that does nothing else"));
    }
    say!("off by {:.0} % at most; the limit is {:.0} %", worst * 1e2, TOLERANCE * 1e2);
    Ok(())
}

/// Returns the maximum error of the simulator, as a share of the real wait.
fn print_case(preset: Preset, load: &Load, pairs: &[Pair]) -> Result<f64> {
    let median = |of: fn(&Pair) -> f64| statistics::median(pairs.iter().map(of));
    let ratios = [median(|pair| pair.simulated.p50 / pair.real.p50), median(|pair| pair.simulated.p95 / pair.real.p95)];
    say!(
        "{:<32} {:<12} {:>9.1} {:>7.1} {:>9.1} {:>7.1} {:>8.2} {:>4.2}",
        load.name,
        preset.name(),
        median(|pair| pair.real.p50),
        median(|pair| pair.real.p95),
        median(|pair| pair.simulated.p50),
        median(|pair| pair.simulated.p95),
        ratios[0],
        ratios[1]
    );
    Ok(ratios.map(|ratio| (ratio - 1.0).abs()).into_iter().fold(0.0, f64::max))
}

fn burst(tasks: u32) -> Load {
    Load { name: format!("{tasks} tasks at once"), jobs: vec![(Duration::ZERO, array(tasks, &SLEEP))] }
}

/// A Poisson process.
fn random(args: &AgreementArgs) -> Load {
    let busy = f64::from(TASKS_OF_A_JOB) * SLEEP_MICROS as f64 / f64::from(AGENTS * CPUS);
    let (mut chance, mut at) = (Chance::new(args.seed, "arrivals"), 0.0);
    let arrive = |_| {
        at += -(1.0 - chance.unit()).ln() * busy / args.load;
        (Duration::from_micros(at as u64), array(TASKS_OF_A_JOB, &SLEEP))
    };
    let name = format!("{} jobs of {TASKS_OF_A_JOB}, sleeping {:.0} %", args.jobs, args.load * 1e2);
    Load { name, jobs: (0..args.jobs).map(arrive).collect() }
}

/// Runs the jobs on daemons. The returned workload has their real arrival times.
fn run(load: &Load, preset: Preset, enforcement: &str) -> Result<(Waits, Workload)> {
    let mut cluster = Cluster::with_agents(AGENTS, CPUS, enforcement, preset.name(), true)?;
    let started = Instant::now();
    let mut submitted = Vec::new();
    for (at, job) in &load.jobs {
        let at = std::time::Duration::from_micros(at.as_micros());
        std::thread::sleep(at.saturating_sub(started.elapsed()));
        submitted.push(cluster.submit(job)?);
    }
    for job in submitted {
        cluster.wait(job)?;
    }
    cluster.stop();
    let journals = Journals::of(&cluster)?;
    let came = journals.submissions();
    // All processes of a machine count from the same origin.
    let times = journals::times(&journals.agents);
    let wait = |(attempt, times): (&amalgam_core::vocabulary::AttemptId, &journals::Times)| {
        Some(times.started?.since(*came.get(&attempt.job)?).as_micros() as f64 / 1e3)
    };
    // The same kind of percentile as the simulator's.
    let waits = Summary::of(times.iter().filter_map(wait).map(|wait| (wait, 1)));
    let first = came.values().next().copied().ok_or_else(|| Failure::new("the journals have no job", ""))?;
    let job = |(at, (_, spec)): (_, &(Duration, JobSpec))| TraceJob {
        arrival: amalgam_core::vocabulary::Instant::since(at, first),
        spec: Arc::new(spec.clone()),
        run_times: [RunTimes::Same(Duration::from_micros(SLEEP_MICROS))].into(),
    };
    let jobs = came.values().copied().zip(&load.jobs).map(job).collect();
    let workload = Workload { name: load.name.clone(), jobs, notes: Vec::new(), malformed: MalformedLines::default() };
    Ok((Waits { p50: waits.p50, p95: waits.p95 }, workload))
}

fn simulate(workload: &Workload, preset: Preset, measured: &Measured, seed: u64) -> Waits {
    let node = |number| Node {
        name: format!("node-{number}"),
        resources: ResourceSpec { basic: Resources::new(CPUS * 1_000, 1_024), custom: Vec::new() },
        attributes: Attributes::default(),
    };
    let nodes: Vec<Node> = (0..AGENTS).map(node).collect();
    let settings = Settings {
        preset,
        seed,
        master: MasterSettings::default(),
        network: NetworkSettings { delay: Duration::from_micros(measured.delay_micros), ..NetworkSettings::default() },
        costs: measured.costs,
        ..Settings::default()
    };
    let waits = Simulation::new(settings, &nodes, workload).run().results.task_wait_s;
    Waits { p50: waits.p50 * 1e3, p95: waits.p95 * 1e3 }
}
