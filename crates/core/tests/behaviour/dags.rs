//! A job for policies: its stages, and the states of their tasks.

use amalgam_core::policy::{DagProgress, RunnableStage, StageGraph};
use amalgam_core::vocabulary::{Chance, Duration, Instant, Resources, Totals};

#[derive(Clone, Debug)]
pub struct ModelStage {
    pub resources: Resources,
    /// Expected run time of each task.
    pub duration: Duration,
    /// Actual run time of each task.
    pub takes: Duration,
    pub tasks: u32,
    pub after: Vec<u32>,
    dependents: Vec<u32>,
    pub started: u32,
    /// When each running task started.
    pub running: Vec<Instant>,
}

#[derive(Clone, Debug, Default)]
pub struct ModelDag {
    pub stages: Vec<ModelStage>,
}

impl ModelDag {
    pub fn add(&mut self, resources: Resources, duration: Duration, tasks: u32, after: &[u32]) {
        let stage = self.stages.len() as u32;
        after.iter().for_each(|&before| self.stages[before as usize].dependents.push(stage));
        self.stages.push(ModelStage {
            resources,
            duration,
            takes: duration,
            tasks,
            after: after.to_vec(),
            dependents: Vec::new(),
            started: 0,
            running: Vec::new(),
        });
    }

    /// A random DAG of up to twelve stages.
    pub fn random(chance: &mut Chance) -> ModelDag {
        let stages = 1 + chance.below(12_u32);
        ModelDag::of(chance, stages, 3)
    }

    /// A random DAG of this many stages, each of which comes after one in `one_in` of the earlier ones.
    pub fn of(chance: &mut Chance, stages: u32, one_in: u32) -> ModelDag {
        let mut dag = ModelDag::default();
        for stage in 0..stages {
            let after: Vec<u32> = (0..stage).filter(|_| chance.below(one_in) == 0).collect();
            let resources = Resources::new(1 + chance.below(400_u32), chance.below(400_u32));
            let duration = Duration::from_secs(1 + chance.below(8_u64));
            dag.add(resources, duration, 1 + chance.below(9_u32), &after);
        }
        dag
    }

    fn is_done(&self, stage: u32) -> bool {
        let stage = &self.stages[stage as usize];
        stage.started == stage.tasks && stage.running.is_empty()
    }

    pub fn is_finished(&self) -> bool {
        (0..self.stages.len() as u32).all(|stage| self.is_done(stage))
    }

    pub fn runnable(&self) -> Vec<RunnableStage> {
        let stages = self.stages.iter().enumerate();
        let ready = stages
            .filter(|(_, stage)| stage.started < stage.tasks && stage.after.iter().all(|&before| self.is_done(before)));
        ready
            .map(|(number, stage)| RunnableStage {
                stage: number as u32,
                resources: stage.resources,
                ready: stage.tasks - stage.started,
                expected: Some(stage.duration),
            })
            .collect()
    }

    pub fn progress<'a>(&'a self, runnable: &'a [RunnableStage]) -> DagProgress<'a> {
        DagProgress { is_news: true, runnable, graph: self }
    }

    pub fn start(&mut self, now: Instant, stage: u32, count: u32) {
        let stage = &mut self.stages[stage as usize];
        stage.started += count;
        assert!(stage.started <= stage.tasks, "no more tasks start than the stage has");
        stage.running.extend((0..count).map(|_| now));
    }

    /// Starts a task if it fits into `room` beside the running tasks, or if none is running.
    pub fn take_if_it_fits(&mut self, now: Instant, stage: u32, room: &Totals) -> bool {
        let mut held = Totals::ZERO;
        let running = self.stages.iter().flat_map(|stage| stage.running.iter().map(|_| &stage.resources));
        running.for_each(|resources| held.add(resources));
        let runs_nothing = held == Totals::ZERO;
        held.add(&self.stages[stage as usize].resources);
        let fits = runs_nothing || held.fits_in(room);
        if fits {
            self.start(now, stage, 1);
        }
        fits
    }

    pub fn next_end(&self) -> Option<Instant> {
        self.stages.iter().flat_map(|stage| stage.running.iter().map(|since| *since + stage.takes)).min()
    }

    /// Ends the tasks whose run time has passed. From then on their stage is expected to take that run time.
    pub fn end_what_is_due(&mut self, now: Instant) {
        for stage in &mut self.stages {
            let (takes, before) = (stage.takes, stage.running.len());
            stage.running.retain(|since| *since + takes > now);
            if stage.running.len() < before {
                stage.duration = takes;
            }
        }
    }

    /// Makes a running task fail and wait for another try. Returns its stage, if one was running.
    pub fn fail_one(&mut self, chance: &mut Chance) -> Option<u32> {
        let at = chance.below(self.stages.len() as u64) as usize;
        let stage = &mut self.stages[at];
        stage.running.pop()?;
        stage.started -= 1;
        Some(at as u32)
    }

    /// Follows every single path.
    pub fn longest_path(&self, from: u32) -> Duration {
        let stage = &self.stages[from as usize];
        let rest = stage.dependents.iter().map(|&next| self.longest_path(next)).max();
        stage.duration + rest.unwrap_or(Duration::ZERO)
    }
}

impl StageGraph for ModelDag {
    fn len(&self) -> usize {
        self.stages.len()
    }

    fn dependents(&self, stage: u32) -> &[u32] {
        &self.stages[stage as usize].dependents
    }

    fn dependencies(&self, stage: u32) -> &[u32] {
        &self.stages[stage as usize].after
    }

    fn expected(&self, stage: u32) -> Option<Duration> {
        Some(self.stages[stage as usize].duration)
    }

    fn resources(&self, stage: u32) -> &Resources {
        &self.stages[stage as usize].resources
    }

    fn tasks(&self, stage: u32) -> u32 {
        self.stages[stage as usize].tasks
    }

    fn unstarted(&self, stage: u32) -> u32 {
        let stage = &self.stages[stage as usize];
        stage.tasks - stage.started
    }

    fn each_running(&self, show: &mut dyn FnMut(u32, Instant)) {
        for (number, stage) in self.stages.iter().enumerate() {
            stage.running.iter().for_each(|since| show(number as u32, *since));
        }
    }
}
