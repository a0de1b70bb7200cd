//! Reads one workload: the part that all formats share.

use super::arrival::Arrival;
use super::constraints::ConstraintTables;
use super::demand::Demand;
use super::error::{MalformedLines, WorkloadError};
use super::formats::fields::LONGEST;
use super::input;
use super::options::{Expected, Options};
use super::{RunTimes, TraceJob, Workload};
use crate::order;
use crate::quantities::check_name;
use amalgam_core::vocabulary::Chance;
use amalgam_core::vocabulary::job::{MAX_STAGES, MAX_TASKS};
use amalgam_core::vocabulary::resources::GPU;
use amalgam_core::vocabulary::{
    Constraint, Duration, ExecutionType, JobSpec, Named, Program, Reads, ResourceSpec, StageSpec, TaskSet, Workdir,
};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The minimum of the factors by which values are wrong. Drawn factors may be near zero.
const LEAST_ERROR: f64 = 0.01;

/// A job as the reader of a format describes it.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Draft {
    pub name: String,
    pub user: String,
    pub queue: String,
    pub priority: i32,
    /// In the trace's own time, or `None` if the trace does not state it.
    pub arrival: Option<Duration>,
    /// In any order.
    pub stages: Vec<DraftStage>,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct DraftStage {
    pub name: String,
    /// Indexes of the draft's stages.
    pub after: Vec<usize>,
    pub tasks: u32,
    pub run_times: RunTimes,
    /// The trace's own mean or estimate of the tasks' run times.
    pub estimate: Option<Duration>,
    /// The demand of each task, or `None` if the trace does not state it.
    pub demand: Option<ResourceSpec>,
    pub constraints: Vec<Constraint>,
    /// The amount that each task reads. Empty if the trace does not state it.
    pub input_kib: Vec<u32>,
    /// Whether the tasks start together.
    pub gang: bool,
}

impl DraftStage {
    /// A stage with a number of tasks and their run times.
    pub fn new(name: impl Into<String>, tasks: u32, run_times: RunTimes) -> DraftStage {
        DraftStage {
            name: name.into(),
            after: Vec::new(),
            tasks,
            run_times,
            estimate: None,
            demand: None,
            constraints: Vec::new(),
            input_kib: Vec::new(),
            gang: false,
        }
    }

    /// Sets the number of bytes that each task reads.
    pub fn reading(mut self, bytes: &[u64]) -> DraftStage {
        if bytes.iter().any(|bytes| *bytes > 0) {
            let kib = bytes.iter().map(|bytes| u32::try_from(bytes.div_ceil(1_024)).unwrap_or(u32::MAX));
            self.input_kib = kib.collect();
        }
        self
    }

    pub fn after(mut self, stages: impl Into<Vec<usize>>) -> DraftStage {
        self.after = stages.into();
        self
    }
}

/// Collects the jobs of a workload.
pub(crate) struct Reading<'a> {
    /// The path after the format's name.
    pub path: &'a str,
    pub options: &'a Options,
    jobs: Vec<TraceJob>,
    notes: Vec<String>,
    malformed: MalformedLines,
    demands: Chance,
    errors: Chance,
    /// For the nodes that stages are near.
    nodes: Chance,
    constraints: Option<(ConstraintTables, Chance)>,
    /// Shared by all stages, because it is never executed.
    program: Arc<Program>,
    stages: u64,
    /// Number of stages whose demand the trace does not state.
    without_demand: u64,
    /// If the option `input` is given: number of stages whose input was filled in, and of those whose input was known.
    inputs: (u64, u64),
    saw_no_arrival: bool,
    /// Number of jobs of the files, of which the option `part` may leave some out.
    met: usize,
    /// Number of run times that were raised to one second.
    lifted: u64,
    repeats: bool,
}

impl<'a> Reading<'a> {
    pub fn new(path: &'a str, options: &'a Options) -> Result<Reading<'a>, WorkloadError> {
        let tables = options.constraints.as_ref().map(|tables| ConstraintTables::read(tables, options.constrained));
        Ok(Reading {
            path,
            options,
            jobs: Vec::new(),
            notes: Vec::new(),
            malformed: MalformedLines::default(),
            demands: Chance::new(options.seed, "demands"),
            errors: Chance::new(options.seed, "errors"),
            nodes: Chance::new(options.seed, "near"),
            constraints: tables.transpose()?.map(|tables| (tables, Chance::new(options.seed, "constraints"))),
            program: Arc::new(Program { command: vec!["true".into()], workdir: Workdir::Own, ..Program::default() }),
            stages: 0,
            without_demand: 0,
            inputs: (0, 0),
            saw_no_arrival: false,
            met: 0,
            lifted: 0,
            repeats: false,
        })
    }

    /// Random numbers for one purpose of a format.
    pub fn chance(&self, purpose: &str) -> Chance {
        Chance::new(self.options.seed, purpose)
    }

    /// The files that the path selects; see [`input::files`].
    pub fn files(&mut self, endings: &[&str]) -> Result<Vec<PathBuf>, WorkloadError> {
        let files = input::files(self.path, endings)?;
        if files.len() > 1 {
            self.note(format!("`{}` matches {} files", self.path, files.len()));
        }
        Ok(files)
    }

    /// Whether enough jobs were read.
    pub fn is_full(&self) -> bool {
        self.options.limit.is_some_and(|limit| self.jobs.len() >= limit)
    }

    /// Declares that the jobs are queries of a benchmark and have no arrivals. If `limit` is larger than the number of
    /// jobs, jobs are repeated.
    pub fn repeats(&mut self) {
        self.repeats = true;
    }

    /// Adds a note about the whole workload, unless the workload has it already.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    pub fn malformed(&mut self, file: &Path, line: u64, problem: impl Into<String>) {
        self.malformed.add(file, line, problem);
    }

    /// Calls `on_line` with each line of a file until enough jobs were read. Lines for which it returns an error are
    /// counted as malformed.
    pub fn lines(
        &mut self,
        file: &Path,
        mut on_line: impl FnMut(&mut Self, &str) -> Result<(), String>,
    ) -> Result<(), WorkloadError> {
        if self.is_full() {
            return Ok(());
        }
        input::lines(file, |number, line| {
            let done = line.map_err(str::to_owned).and_then(|line| on_line(self, line));
            if let Err(problem) = done {
                self.malformed(file, number, problem);
            }
            if self.is_full() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }

    /// Adds a job.
    ///
    /// # Errors
    /// Why the job is invalid, without its position, which the caller knows.
    pub fn add(&mut self, draft: Draft) -> Result<(), String> {
        check(&draft)?;
        if !self.is_of_part() {
            return Ok(());
        }
        let after: Vec<Vec<usize>> = draft.stages.iter().map(|stage| distinct(&stage.after)).collect();
        let order = order::topological(&after).map_err(|cycle| {
            let names: Vec<&str> = cycle.iter().map(|stage| draft.stages[*stage].name.as_str()).collect();
            format!("the stages form a cycle: {}", names.join(" -> "))
        })?;
        let mut new_index = vec![0u32; order.len()];
        for (index, stage) in order.iter().enumerate() {
            new_index[*stage] = index as u32;
        }

        let mut drafts: Vec<Option<DraftStage>> = draft.stages.into_iter().map(Some).collect();
        let mut stages = Vec::with_capacity(order.len());
        let mut run_times = Vec::with_capacity(order.len());
        for index in order {
            let Some(stage) = drafts[index].take() else { continue };
            let mut after: Vec<u32> = after[index].iter().map(|before| new_index[*before]).collect();
            after.sort_unstable();
            let (spec, times) = self.stage(stage, after)?;
            stages.push(spec);
            run_times.push(times);
        }
        let spec = JobSpec {
            name: draft.name,
            user: draft.user,
            queue: draft.queue,
            priority: draft.priority,
            submit_dir: "/".into(),
            stages,
            ..JobSpec::default()
        };
        self.keep(draft.arrival, spec, run_times);
        Ok(())
    }

    /// Adds a job whose stages are already in topological order, with its true run times.
    pub fn push(&mut self, arrival: Option<Duration>, spec: JobSpec, run_times: Vec<RunTimes>) {
        if self.is_of_part() {
            self.keep(arrival, spec, run_times);
        }
    }

    /// Whether the next job belongs to the part that the options select.
    fn is_of_part(&mut self) -> bool {
        self.met += 1;
        self.options.part.has(self.met - 1)
    }

    fn keep(&mut self, arrival: Option<Duration>, mut spec: JobSpec, mut run_times: Vec<RunTimes>) {
        for (stage, run_times) in spec.stages.iter_mut().zip(&mut run_times) {
            self.fill_in_input(stage, run_times);
            self.misjudge(stage, run_times);
        }
        self.saw_no_arrival |= arrival.is_none();
        let arrival = arrival.unwrap_or_default();
        self.jobs.push(TraceJob { arrival, spec: Arc::new(spec), run_times: run_times.into() });
    }

    /// Applies the errors of demands and of expected run times that the options define. A task that requests too little
    /// runs longer in proportion; one that requests too much does not run shorter.
    fn misjudge(&mut self, stage: &mut StageSpec, run_times: &mut RunTimes) {
        let Options { demand_scale, demand_error, expected_error, .. } = self.options;
        let (stated, asked) = (expected_error.draw(&mut self.errors), demand_error.draw(&mut self.errors));
        stage.expected = stage.expected.map(|expected| scale(expected, stated.max(LEAST_ERROR)).min(LONGEST));
        let asked = asked.max(LEAST_ERROR);
        stage.resources.basic.0[..GPU].iter_mut().filter(|amount| **amount > 0).for_each(|amount| {
            *amount = ((f64::from(*amount) * demand_scale * asked).round() as u32).max(1);
        });
        let longer = |time: Duration| scale(time, asked.recip().max(1.0)).min(LONGEST);
        match run_times {
            RunTimes::Same(time) => *time = longer(*time),
            RunTimes::Each(times) => times.iter_mut().for_each(|time| *time = longer(*time)),
        }
    }

    fn stage(&mut self, draft: DraftStage, after: Vec<u32>) -> Result<(StageSpec, RunTimes), String> {
        let run_times = self.timed(draft.run_times)?;
        let expected = self.expected(draft.estimate, &run_times)?;
        self.stages += 1;
        let resources = draft.demand.unwrap_or_else(|| {
            self.without_demand += 1;
            self.options.demand.draw(&mut self.demands)
        });
        let mut constraints = draft.constraints;
        if let Some((tables, chance)) = self.constraints.as_mut().filter(|_| constraints.is_empty()) {
            constraints = tables.draw(chance);
        }
        let spec = StageSpec {
            name: draft.name,
            after,
            tasks: TaskSet::Count(draft.tasks),
            program: self.program.clone(),
            resources,
            expected,
            execution: ExecutionType::Auto,
            constraints,
            near: self.draw_near(),
            retries: self.options.retries,
            retry_delay: None,
            timeout: None,
            priority: None,
            gang: draft.gang,
            at_once: None,
            outputs: Vec::new(),
            inputs: Vec::new(),
            input_kib: draft.input_kib,
            reads: Reads::default(),
        };
        Ok((spec, run_times))
    }

    /// Fills in the amount that tasks read if it is not known; at most 4 TiB. All tasks of a stage read the same
    /// amount: an amount in proportion to their own run times would reveal these to the schedulers.
    fn fill_in_input(&mut self, stage: &mut StageSpec, run_times: &RunTimes) {
        let Some(rate) = self.options.input else { return };
        if stage.input_kib.is_empty() {
            let kib = (run_times.mean().as_secs_f64() * rate * 1e6 / 1_024.0).ceil();
            stage.input_kib = vec![kib as u32; stage.tasks.len() as usize];
            self.inputs.0 += 1;
        } else {
            self.inputs.1 += 1;
        }
    }

    /// Draws the names of different nodes, as drawn nodes are named.
    fn draw_near(&mut self) -> Vec<String> {
        let (near, of) = self.options.near;
        let mut drawn = BTreeSet::new();
        while drawn.len() < near as usize {
            drawn.insert(self.nodes.below(of));
        }
        drawn.into_iter().map(|node| format!("node-{node}")).collect()
    }

    /// Rounds and scales run times as the options define. They are rounded before they are scaled, because the whole
    /// seconds are those of the trace.
    ///
    /// # Errors
    /// A run time is longer than 30 years.
    pub fn timed(&mut self, run_times: RunTimes) -> Result<RunTimes, String> {
        let mut timed = |time: Duration| {
            if !self.options.whole_seconds {
                return self.scaled(time);
            }
            let seconds = (time.as_micros() + 500_000) / 1_000_000;
            self.lifted += u64::from(seconds == 0);
            self.scaled(Duration::from_secs(seconds.max(1)))
        };
        let run_times = match run_times {
            RunTimes::Same(time) => RunTimes::Same(timed(time)),
            RunTimes::Each(times) => {
                let mut times: Vec<Duration> = times.into_iter().map(timed).collect();
                // Readers do not know the number in advance, and a workload may have many millions.
                times.shrink_to_fit();
                RunTimes::Each(times)
            }
        };
        check_length("takes", run_times.longest())?;
        Ok(run_times)
    }

    /// The expected run time of a stage. The run times have been rounded and scaled already.
    ///
    /// # Errors
    /// It is longer than 30 years.
    pub fn expected(&self, estimate: Option<Duration>, run_times: &RunTimes) -> Result<Option<Duration>, String> {
        let expected = match self.options.expected {
            Expected::Nothing => return Ok(None),
            Expected::Mean => estimate.map_or_else(|| run_times.mean(), |stated| self.scaled(stated)),
            Expected::Exact => run_times.mean(),
        };
        check_length("is expected to take", expected)?;
        Ok(Some(expected))
    }

    fn scaled(&self, time: Duration) -> Duration {
        scale(time, self.options.time_scale)
    }

    /// Returns the workload, in the order of arrivals.
    ///
    /// # Errors
    /// There is no job, or the last one arrives after more than 30 years.
    pub fn finish(mut self, workload: &str) -> Result<Workload, WorkloadError> {
        if self.jobs.is_empty() {
            return Err(self.nothing(workload));
        }
        self.draw_jobs();
        self.arrive();
        let last = self.jobs.last().map_or(Duration::ZERO, |job| job.arrival);
        if last > LONGEST {
            let problem = format!("`{workload}`: the last job arrives after {last}, which is more than 30 years");
            return Err(WorkloadError::new(
                problem,
                "choose smaller gaps, or a smaller `time-scale` or `arrival-scale`",
            ));
        }
        self.say_what_was_substituted();
        let name = self.options.name.clone().unwrap_or_else(|| workload.to_owned());
        Ok(Workload { name, jobs: self.jobs, notes: self.notes, malformed: self.malformed })
    }

    fn nothing(&self, workload: &str) -> WorkloadError {
        match self.malformed.first.first() {
            Some(first) => WorkloadError::new(
                format!("`{workload}` has no valid job; the first problem is\n  {first}"),
                "check that the format is correct",
            ),
            None => WorkloadError::new(format!("`{workload}` has no job"), "check the path and the options"),
        }
    }

    /// Draws jobs with replacement. All draws of a job share its description.
    fn draw_jobs(&mut self) {
        let more = self.options.limit.filter(|limit| self.repeats && *limit > self.jobs.len());
        let Some(count) = self.options.draw.or(more) else { return };
        let mut chance = self.chance("draw");
        let from = self.jobs.len() as u64;
        self.jobs = (0..count).map(|_| self.jobs[chance.below(from) as usize].clone()).collect();
        self.note(format!(
            "{count} jobs were drawn with replacement from {from}; all draws of a job have the same demand"
        ));
    }

    /// Sorts the jobs by arrival and scales their arrivals.
    fn arrive(&mut self) {
        let Options { arrival, arrival_scale, time_scale, .. } = *self.options;
        let factor = arrival_scale * time_scale;
        match arrival.instants(self.jobs.len(), &mut self.chance("arrivals")) {
            Some(instants) => {
                for (job, at) in self.jobs.iter_mut().zip(instants) {
                    job.arrival = scale(at, factor);
                }
            }
            None => {
                self.jobs.sort_by_key(|job| job.arrival);
                let first = self.jobs[0].arrival;
                if first > Duration::ZERO {
                    self.note(format!("the first job of the trace arrives at {first}; time is counted from there"));
                }
                for job in &mut self.jobs {
                    job.arrival = scale(job.arrival - first, factor);
                }
            }
        }
    }

    fn say_what_was_substituted(&mut self) {
        if self.without_demand > 0 {
            let of = match self.stages {
                all if all == self.without_demand => String::new(),
                all => format!(" for {} of {all} stages", self.without_demand),
            };
            self.note(format!("demands are not in the trace{of}: {}", self.options.demand.describe()));
        } else if self.options.demand != Demand::Unit {
            self.note("the trace has demands: the option `demand` was not used");
        }
        match (self.options.input, self.inputs) {
            (None, _) => {}
            (Some(_), (0, _)) => self.note("the trace states what tasks read: the option `input` was not used"),
            (Some(rate), (filled, known)) => {
                let of = if known > 0 { format!(" for {filled} of {} stages", filled + known) } else { String::new() };
                let how = format!("{rate} MB for each second of their stage's mean run time");
                self.note(format!("what tasks read is not in the trace{of}: {how}"));
            }
        }
        if let (Some(tables), share) = (&self.options.constraints, self.options.constrained) {
            self.note(format!("{share} of the stages got constraints drawn from the tables of {}", tables.display()));
        }
        if self.saw_no_arrival && self.jobs.len() > 1 && self.options.arrival == Arrival::Trace {
            self.note("arrivals are not in the trace: all jobs arrive at once; see the option `arrival`");
        }
        if self.lifted > 0 {
            self.note(format!("{} run times below half a second were raised to 1 s", self.lifted));
        }
    }
}

fn check_length(what: &str, time: Duration) -> Result<(), String> {
    if time <= LONGEST { Ok(()) } else { Err(format!("a task {what} {time}, which is more than 30 years")) }
}

fn check(draft: &Draft) -> Result<(), String> {
    if draft.stages.is_empty() || draft.stages.len() > MAX_STAGES {
        return Err(format!("the job has {} stages, not 1 to {MAX_STAGES}", draft.stages.len()));
    }
    let tasks: u64 = draft.stages.iter().map(|stage| u64::from(stage.tasks)).sum();
    if tasks > MAX_TASKS {
        return Err(format!("the job has {tasks} tasks, more than {MAX_TASKS}"));
    }
    check_name(Named::Job, &draft.name).map_err(|wrong| wrong.problem)?;
    for stage in &draft.stages {
        check_name(Named::Job, &stage.name).map_err(|wrong| wrong.problem)?;
        if stage.tasks == 0 {
            return Err(format!("the stage `{}` has no tasks", stage.name));
        }
        let known = match &stage.run_times {
            RunTimes::Same(_) => stage.tasks as usize,
            RunTimes::Each(times) => times.len(),
        };
        assert_eq!(known, stage.tasks as usize, "the number of run times must equal the number of tasks");
    }
    Ok(())
}

fn distinct(stages: &[usize]) -> Vec<usize> {
    let mut stages = stages.to_vec();
    stages.sort_unstable();
    stages.dedup();
    stages
}

fn scale(time: Duration, factor: f64) -> Duration {
    if factor == 1.0 { time } else { Duration::from_micros((time.as_micros() as f64 * factor).round() as u64) }
}
