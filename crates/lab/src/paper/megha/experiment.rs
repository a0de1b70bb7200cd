//! Runs each case of a figure with every seed, and keeps the results that the figures need.

use super::super::figure::{Amount, Extent, in_traces, nodes, run_all, seconds, source};
use super::peak::Plan;
use super::scenario::{Arrivals, CostCase, FigureScenario, Masters, Scenario, WorkloadEntry};
use amalgam_cli::failure::{Failure, Result};
use amalgam_cli::values::as_text;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{Chance, Resources};
use amalgam_sim::{Allocation, Busy, Costs, Counters, Outcome, Settings, Simulation};
use amalgam_workload::trace::{self, Node, Summary, TraceJob, Workload};
use std::sync::Arc;

/// A bar of a figure.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    pub workload: String,
    pub arrivals: Arrivals,
    pub scheduler: String,
    pub nodes: u32,
    pub masters: Masters,
    pub heartbeat_s: f64,
    /// The name of its costs, if the figure has several.
    pub costs: Option<String>,
}

pub struct CaseRuns {
    pub case: Case,
    /// The name in rows.
    pub name: String,
    /// In the order of the seeds.
    pub runs: Vec<Run>,
}

/// The results of a run.
pub struct Run {
    pub wait_s: Summary,
    pub allocation: Allocation,
    pub jct_s: Summary,
    pub counters: Counters,
    pub busy: Busy,
    /// The start of each window, and the part of the CPUs in use in it.
    pub cpu: Vec<(f64, f64)>,
    /// Quantiles of the waits of tasks.
    pub wait_curve: Vec<f64>,
    /// The part of the tasks that started.
    pub started: f64,
    /// The jobs of users that succeeded: user, seconds.
    pub of_users: Vec<(String, f64)>,
    pub left_out: LeftOut,
}

/// Numbers of drawn jobs that were left out.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct LeftOut {
    pub unsuited: usize,
    pub wide: usize,
    pub long: usize,
}

/// The inputs of a run.
pub struct Prepared {
    pub nodes: Vec<Node>,
    pub workload: Workload,
    pub settings: Settings,
    pub left_out: LeftOut,
}

/// All inputs of a run except its seed.
pub struct World<'a> {
    scenario: &'a Scenario,
    figure: &'a FigureScenario,
    case: &'a Case,
    preset: Preset,
    costs: Costs,
    workload: &'a WorkloadEntry,
    extent: &'a Extent,
}

/// All combinations of the values that the figure lists.
pub fn cases(scenario: &Scenario, figure: &FigureScenario) -> Vec<Case> {
    let setup = &scenario.setup;
    let usual = Case {
        workload: String::new(),
        arrivals: Arrivals::AtOnce,
        scheduler: String::new(),
        nodes: setup.nodes,
        masters: setup.masters(),
        heartbeat_s: setup.heartbeat_s,
        costs: None,
    };
    let cases = for_each(vec![usual], &figure.workloads, |case, name| case.workload.clone_from(name));
    let cases = for_each(cases, &figure.arrivals(), |case, arrivals| case.arrivals = *arrivals);
    let cases = for_each(cases, &figure.nodes, |case, nodes| case.nodes = *nodes);
    let cases = for_each(cases, &figure.masters, |case, masters| case.masters = *masters);
    let cases = for_each(cases, &figure.heartbeats_s, |case, period| case.heartbeat_s = *period);
    let cases = for_each(cases, &figure.costs, |case, costs| case.costs = Some(costs.name.clone()));
    for_each(cases, &figure.schedulers, |case, name| case.scheduler.clone_from(name))
}

/// Each case with each value; without values, the cases unchanged.
fn for_each<T>(cases: Vec<Case>, values: &[T], set: impl Fn(&mut Case, &T)) -> Vec<Case> {
    if values.is_empty() {
        return cases;
    }
    let with = |case: &Case, value: &T| {
        let mut case = case.clone();
        set(&mut case, value);
        case
    };
    cases.iter().flat_map(|case| values.iter().map(|value| with(case, value)).collect::<Vec<_>>()).collect()
}

impl Case {
    fn name(&self, figure: &FigureScenario) -> String {
        let arrivals = match self.arrivals {
            Arrivals::Load(load) => format!("load {load}"),
            Arrivals::Gap(gap) => format!("a job every {gap} s"),
            Arrivals::Within(time) => format!("within {time} s"),
            Arrivals::AtOnce => "all at once".to_owned(),
        };
        let Masters { globals, clusters } = self.masters;
        let parts = [
            (figure.workloads.len() > 1, self.workload.clone()),
            (figure.arrivals().len() > 1, arrivals),
            (figure.nodes.len() > 1, format!("{} nodes", self.nodes)),
            (figure.masters.len() > 1, format!("{globals} over {clusters}")),
            (figure.heartbeats_s.len() > 1, format!("heartbeat {} s", self.heartbeat_s)),
            (self.costs.is_some(), self.costs.clone().unwrap_or_default()),
            (figure.schedulers.len() > 1, self.scheduler.clone()),
        ];
        let differing: Vec<String> = parts.into_iter().filter(|(differs, _)| *differs).map(|(_, part)| part).collect();
        differing.join(", ")
    }
}

pub fn run(scenario: &Scenario, figure: &FigureScenario, extent: &Extent) -> Result<Vec<CaseRuns>> {
    let cases = cases(scenario, figure);
    let worlds: Vec<World> =
        cases.iter().map(|case| World::of(scenario, figure, case, extent)).collect::<Result<_>>()?;
    let runs = run_all(&worlds, extent, World::run);
    let named = cases.iter().zip(runs).map(|(case, runs)| {
        let runs = runs.into_iter().collect::<Result<_>>()?;
        Ok(CaseRuns { case: case.clone(), name: case.name(figure), runs })
    });
    named.collect()
}

/// Divides the numbers of nodes and tasks.
pub fn part(amount: Amount) -> u32 {
    match amount {
        Amount::Whole => 1,
        Amount::Quick => 10,
        Amount::Smoke => 100,
    }
}

impl<'a> World<'a> {
    pub fn of(
        scenario: &'a Scenario,
        figure: &'a FigureScenario,
        case: &'a Case,
        extent: &'a Extent,
    ) -> Result<World<'a>> {
        let of_case = figure.costs.iter().find(|costs| Some(&costs.name) == case.costs.as_ref());
        let costs = of_case.map_or_else(|| Ok(Costs::default()), CostCase::costs);
        let wrong =
            |what: String| Failure::usage(what, "start with the frozen scenario: `amalgam-lab paper scenario megha-3`");
        let preset = Preset::parse(&case.scheduler).map_err(wrong)?;
        Ok(World {
            scenario,
            figure,
            case,
            preset: preset.in_federation().unwrap_or(preset),
            costs: costs.map_err(wrong)?,
            workload: match extent.amount {
                Amount::Smoke => scenario.setup.stand_in(),
                _ => scenario.workload(&case.workload),
            },
            extent,
        })
    }

    pub fn prepare(&self, seed: u64) -> Result<Prepared> {
        let nodes = self.nodes(self.case.nodes, seed)?;
        let (workload, left_out) = self.jobs(seed)?;
        Ok(Prepared { nodes, workload, settings: self.settings(seed)?, left_out })
    }

    fn run(&self, seed: u64) -> Result<Run> {
        let Prepared { nodes, workload, settings, left_out } = self.prepare(seed)?;
        let outcome = Simulation::new(settings, &nodes, &workload).run();
        Ok(Run::of(outcome, workload.task_count(), left_out))
    }

    fn is_constrained(&self) -> bool {
        self.workload.constrained && self.extent.amount != Amount::Smoke
    }

    fn count(&self, nodes: u32) -> u32 {
        (nodes / part(self.extent.amount)).max(u32::from(self.case.masters.clusters))
    }

    fn node_size(&self) -> Resources {
        let setup = &self.scenario.setup;
        Resources::new(setup.cpus * 1_000, setup.memory_gib * 1_024)
    }

    /// A smaller cluster has the first nodes of a larger one.
    fn nodes(&self, count: u32, seed: u64) -> Result<Vec<Node>> {
        let count = self.count(count);
        if !self.is_constrained() {
            return Ok(nodes(self.node_size(), count));
        }
        let setup = &self.scenario.setup;
        let source = source("megha", &format!("bit-vectors:{}", setup.node_constraints), self.extent)?;
        let options = [
            ("cpus", setup.cpus.to_string()),
            ("memory", format!("{}GiB", setup.memory_gib)),
            ("count", count.to_string()),
            ("seed", seed.to_string()),
        ];
        let options = options.map(|(key, value)| (key.to_owned(), value));
        trace::read_nodes(&source, &options).map_err(|error| Failure::usage(error.problem, error.remedy))
    }

    /// The jobs that can run on the smallest cluster of the figure. All its clusters get the same ones.
    fn jobs(&self, seed: u64) -> Result<(Workload, LeftOut)> {
        let mut workload = self.read(seed)?;
        let least = self.figure.nodes.iter().copied().min().unwrap_or(self.case.nodes);
        let left_out = self.leave_out(&mut workload.jobs, &self.nodes(least, seed)?);
        self.arrive(&mut workload.jobs, seed)?;
        let users = &self.figure.users;
        let mut chance = Chance::new(seed, "users");
        for job in workload.jobs.iter_mut().filter(|_| !users.is_empty()) {
            Arc::make_mut(&mut job.spec).queue = users[chance.below(users.len() as u64) as usize].name.clone();
        }
        Ok((workload, left_out))
    }

    /// Drawn with replacement, in the order of the draws.
    fn read(&self, seed: u64) -> Result<Workload> {
        let source = source("megha", &self.workload.read, self.extent)?;
        let mut options: Vec<(String, String)> = self.workload.options.clone().into_iter().collect();
        options.push(("seed".to_owned(), seed.to_string()));
        options.push(("draw".to_owned(), self.tasks().to_string()));
        options.push(("arrival".to_owned(), "at-once".to_owned()));
        if self.is_constrained() {
            let setup = &self.scenario.setup;
            let tables = in_traces("megha", &setup.task_constraints, self.extent)?;
            options.push(("constraints".to_owned(), as_text(&tables)?.to_owned()));
            options.push(("constrained".to_owned(), setup.constrained.to_string()));
        }
        trace::read(&source, &options).map_err(|error| Failure::usage(error.problem, error.remedy))
    }

    fn tasks(&self) -> u64 {
        (self.workload.tasks / u64::from(part(self.extent.amount))).max(1)
    }

    /// Keeps jobs until they have enough tasks. Counts the jobs before that which were left out, because no node suits them,
    /// they are too wide or they run too long.
    fn leave_out(&self, jobs: &mut Vec<TraceJob>, nodes: &[Node]) -> LeftOut {
        let widest = self.scenario.setup.widest * f64::from(self.load_nodes());
        let (mut left, mut left_out) = (self.tasks(), LeftOut::default());
        let longest_s = self.scenario.setup.longest_s.unwrap_or(f64::INFINITY);
        jobs.retain(|job| {
            let tasks = job.spec.task_count();
            if tasks > left {
                return false;
            }
            let is_suited = job.spec.stages.iter().all(|stage| {
                nodes.iter().any(|node| {
                    let constraints = &stage.constraints;
                    stage.resources.basic.fits_in(&node.resources.basic)
                        && constraints.iter().all(|constraint| constraint.is_met_by(&node.attributes))
                })
            });
            let is_narrow = Plan::of(std::slice::from_ref(job), &self.node_size()).peak(1.0) <= widest;
            let is_short = longest_s.is_infinite() || job.shape().critical_seconds <= longest_s;
            left_out.unsuited += usize::from(!is_suited);
            left_out.wide += usize::from(is_suited && !is_narrow);
            left_out.long += usize::from(is_suited && is_narrow && !is_short);
            let is_kept = is_suited && is_narrow && is_short;
            left -= if is_kept { tasks } else { 0 };
            is_kept
        });
        left_out
    }

    fn load_nodes(&self) -> u32 {
        self.count(self.figure.load_nodes.unwrap_or(self.case.nodes))
    }

    /// Jobs arrive from the third heartbeat on: in the first all nodes join, and the second is for the resulting messages.
    fn arrive(&self, jobs: &mut [TraceJob], seed: u64) -> Result<()> {
        let mut chance = Chance::new(seed, "arrivals");
        let mut at = 0.0;
        for job in jobs.iter_mut() {
            job.arrival = seconds(at);
            at -= (1.0 - chance.unit()).ln();
        }
        let gap_s = match self.case.arrivals {
            Arrivals::AtOnce => 0.0,
            Arrivals::Gap(gap_s) => gap_s,
            Arrivals::Within(time_s) => {
                let last = jobs.last().map_or(0.0, |job| job.arrival.as_secs_f64());
                if last > 0.0 { time_s / last } else { 0.0 }
            }
            Arrivals::Load(load) => {
                let most = load * f64::from(self.load_nodes());
                Plan::of(jobs, &self.node_size()).least_gap(most).ok_or_else(|| {
                    let what = format!("the jobs of {} cannot be that few at once: load {load}", self.case.workload);
                    Failure::usage(what, "give more nodes, or a greater load than setup.widest")
                })?
            }
        };
        for job in jobs {
            job.arrival = seconds(2.0 * self.case.heartbeat_s + job.arrival.as_secs_f64() * gap_s);
        }
        Ok(())
    }

    fn settings(&self, seed: u64) -> Result<Settings> {
        let Masters { globals, clusters } = self.case.masters;
        let setup = &self.scenario.setup;
        let mut settings = Settings { preset: self.preset, seed, costs: self.costs, ..Settings::default() };
        settings.preset.seed = seed;
        settings.master.heartbeat = seconds(self.case.heartbeat_s);
        settings.join_over = settings.master.heartbeat;
        settings.network.delay = seconds(setup.delay_ms / 1e3);
        settings.queues =
            self.figure.queues().map_err(|what| Failure::usage(what, "correct the users of the figure"))?;
        if self.preset.is_federated() {
            settings.federation = Some((clusters, globals));
        } else if self.preset.is_distributed() {
            // As many schedulers as there are global masters.
            settings.manager_processes = globals;
        }
        Ok(settings)
    }
}

impl Run {
    pub fn of(outcome: Outcome, tasks: u64, left_out: LeftOut) -> Run {
        let results = outcome.results;
        let users = outcome.jobs.into_iter().filter(|job| job.outcome == "succeeded");
        Run {
            wait_s: results.task_wait_s,
            allocation: results.allocation_s,
            jct_s: results.jct_s,
            counters: results.counters,
            busy: results.busy,
            cpu: outcome.windows.iter().map(|window| (window.begins_s, window.cpu)).collect(),
            wait_curve: outcome.wait_curve,
            started: results.started_tasks as f64 / tasks.max(1) as f64,
            of_users: users.filter_map(|job| Some((job.queue, job.jct_s?))).collect(),
            left_out,
        }
    }

    pub fn part_of_launches(&self, count: u64) -> f64 {
        count as f64 / self.counters.launched.max(1) as f64
    }
}
