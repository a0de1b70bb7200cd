//! Measures the constants of the simulator on this machine: the costs of an event at a role, a message, a launch and an exit.
//!
//! All values come from real processes: from the journals of a server and two agents on loopback, and from the kernel's
//! account of a server's CPU time. The load is light, so that no event waits for another.
//!
//! The cost of a message is the CPU time of the server's process for a task, including its interface and its log but without
//! its roles, divided by the messages about the task. The process has several threads; the simulator charges one process.

use super::fdatasync_p50;
use super::journals::{self, Journals, WorkByRole};
use crate::cluster::{Cluster, array, chain, failed};
use amalgam_cli::failure::{Failure, Result};
use amalgam_core::preset::Preset;
use amalgam_sim::Costs;
use amalgam_sim::statistics::{median, percentile, sorted};
use clap::Args;
use std::process::{Command, Stdio};

#[derive(Args)]
pub struct CostsArgs {
    /// Tasks of the chain from which times are taken
    #[arg(long, default_value_t = 200)]
    hops: u32,
    /// Tasks from which the cost of events and messages is taken
    #[arg(long, default_value_t = 4_000)]
    tasks: u32,
    #[arg(long, default_value = "auto")]
    pub enforcement: String,
}

/// Sleep of a task of the chain.
pub const SLEEP_MICROS: u64 = 10_000;
pub const SLEEP: [&str; 2] = ["sleep", "0.01"];
/// Number of agents, and the CPUs of each.
pub const AGENTS: u32 = 2;
pub const CPUS: u32 = 2;

/// The results, in microseconds unless stated otherwise.
pub struct Measured {
    pub costs: Costs,
    /// The delay between two processes, without the costs at both ends.
    pub delay_micros: u64,
    work: WorkByRole,
    letters_per_task: f64,
    /// Time from spawning a process to its end, minus its sleep, without any cluster.
    bare_micros: f64,
    /// The measured value. It is negative if the parts exceed the whole.
    ways_micros: f64,
    exit_spread: String,
}

pub fn execute(args: &CostsArgs) -> Result<()> {
    let measured = measure(args)?;
    measured.print()?;
    Ok(())
}

pub fn measure(args: &CostsArgs) -> Result<Measured> {
    let journals = journals_of_light_work(args)?;
    let mut work = journals::work(&journals.server)?;
    work.nodes = journals::work(&journals.agents)?.nodes;
    let tasks = f64::from(args.hops + args.tasks);
    let letters_per_task = journals.task_letters() as f64 / tasks;
    let roles = work.master.nanos + work.job_managers.nanos + work.decisions.nanos;
    let roles_per_task = roles as f64 / tasks;
    let message = (server_nanos_per_task(args)? - roles_per_task).max(0.0) / letters_per_task;

    let (at_server, at_nodes) = (journals::times(&journals.server), journals::times(&journals.agents));
    let (mut launches, mut exits, mut round_trips) = (Vec::new(), Vec::new(), Vec::new());
    // The chain is the first job.
    for (attempt, there) in at_nodes.iter().filter(|(attempt, _)| attempt.job.0 == 1) {
        let here = at_server.get(attempt).copied().unwrap_or_default();
        let (Some(ordered), Some(started), Some(ended)) = (there.ordered, there.started, there.ended) else { continue };
        let (Some(sent), Some(heard)) = (here.ordered, here.started) else { continue };
        let launch = started.since(ordered).as_micros();
        launches.push(launch as f64);
        exits.push(ended.since(started).as_micros().saturating_sub(SLEEP_MICROS) as f64);
        round_trips.push(heard.since(sent).as_micros().saturating_sub(launch) as f64);
    }
    if launches.is_empty() {
        return Err(Failure::new("the journals have no task", ""));
    }
    let disk = fdatasync_p50()? * 1e6;
    let ways = median(round_trips) - (disk + 4.0 * message) / 1e3;
    let exits = sorted(exits);
    let quartile = |percent: u32| percentile(&exits, percent);
    let exit_spread = format!("{:.0} to {:.0} in the middle half", quartile(25), quartile(75));
    let nanos = |micros: f64| (micros * 1e3) as u64;
    let costs = Costs {
        master_event: work.master.each(),
        job_manager_event: work.job_managers.each(),
        node_event: work.nodes.each(),
        decision: work.decisions.each(),
        message: message as u64,
        disk: disk as u64,
        launch: nanos(median(launches)),
        exit: nanos(quartile(50)),
    };
    let delay_micros = (ways / 2.0).max(0.0) as u64;
    let bare_micros = bare_micros(args.hops)?;
    Ok(Measured { costs, delay_micros, ways_micros: ways / 2.0, work, letters_per_task, bare_micros, exit_spread })
}

/// A chain of tasks that sleep, then many short ones, with journals.
fn journals_of_light_work(args: &CostsArgs) -> Result<Journals> {
    let mut cluster = Cluster::with_agents(AGENTS, CPUS, &args.enforcement, Preset::default().name(), true)?;
    for job in [chain(args.hops, 1, &SLEEP), array(args.tasks, &["/bin/true"])] {
        let job = cluster.submit(&job)?;
        cluster.wait(job)?;
    }
    cluster.stop();
    Journals::of(&cluster)
}

/// CPU time of a server that writes its log but no journal.
fn server_nanos_per_task(args: &CostsArgs) -> Result<f64> {
    let cluster = Cluster::with_agents(AGENTS, CPUS, &args.enforcement, Preset::default().name(), false)?;
    let before = cpu_nanos(cluster.pid())?;
    let job = cluster.submit(&array(args.tasks, &["/bin/true"]))?;
    cluster.wait(job)?;
    Ok((cpu_nanos(cluster.pid())? - before) as f64 / f64::from(args.tasks))
}

/// CPU time of all threads of a process.
fn cpu_nanos(pid: u32) -> Result<u64> {
    let mut nanos = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let account = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        let running = account.split_whitespace().next().and_then(|nanos| nanos.parse::<u64>().ok());
        nanos +=
            running.ok_or_else(|| Failure::new(format!("`{account}` in /proc is not the CPU time of a thread"), ""))?;
    }
    Ok(nanos)
}

/// Time that spawning, waiting and the timer add to a sleep, without any cluster.
fn bare_micros(count: u32) -> Result<f64> {
    let mut samples = Vec::new();
    for _ in 0..count {
        let started = std::time::Instant::now();
        Command::new(SLEEP[0]).arg(SLEEP[1]).stdin(Stdio::null()).status().map_err(failed("spawn"))?;
        samples.push((started.elapsed().as_micros() as f64) - SLEEP_MICROS as f64);
    }
    Ok(median(samples))
}

impl Measured {
    pub fn print(&self) -> Result<()> {
        let Measured { costs, delay_micros, work, letters_per_task, bare_micros, .. } = self;
        let micros = |nanos: u64| nanos as f64 / 1e3;
        say!("                        us");
        say!("event, master       {:>6.2}   {} events", micros(costs.master_event), work.master.events);
        say!("event, job manager  {:>6.2}   {} events", micros(costs.job_manager_event), work.job_managers.events);
        say!("event, node         {:>6.2}   {} events", micros(costs.node_event), work.nodes.events);
        say!("decision            {:>6.2}   {} tasks placed", micros(costs.decision), work.decisions.events);
        say!("message, each end   {:>6.1}   {letters_per_task:.1} messages a task", micros(costs.message));
        say!("disk                {:>6.0}   fdatasync", micros(costs.disk));
        say!("launch              {:>6.0}   from the order to the process", micros(costs.launch));
        let both = micros(costs.launch + costs.exit);
        let spread = &self.exit_spread;
        say!(
            "exit                {:>6.0}   over 10 ms; {spread}; with the launch {both:.0}, bare {bare_micros:.0}",
            micros(costs.exit)
        );
        say!("delay               {delay_micros:>6}   one way between two processes");
        if self.ways_micros < 0.0 {
            say!("  the parts of a round trip exceed it by {:.0} us: something else was busy", -self.ways_micros * 2.0);
        }
        say!("for `amalgam sim run`: --delay {delay_micros}us --cost {costs}");
        Ok(())
    }
}
