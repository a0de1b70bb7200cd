//! Stages whose tasks start together (gang scheduling; Ousterhout 1982, and the future work of Megha, section VIII). ADR 54.
//!
//! Their launches wait at the nodes until all are in place; then all are started. If only some find room, they wait for a
//! limited time and are withdrawn, so that two gangs do not block each other permanently. Running tasks stay together: if one
//! has to be tried again, all that have not ended are.

use super::{JobManager, Life, RunningAttempt};
use crate::protocol::{Address, ToNode};
use crate::role::{Outbox, Record};
use crate::vocabulary::{AttemptId, Chance, Duration, EndReason, HostList, Instant, JobSpec, NodeId, TaskId};
use crate::why::Why;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// About how long placed tasks wait for the others. Doubled after each failed try. Also the pause before the next try.
const PATIENCE: Duration = Duration::from_secs(1);
const MOST_PATIENCE: Duration = Duration::from_secs(30);
/// Launches without files to fetch that do not arrive within this time are considered lost.
const ARRIVE_WITHIN: Duration = Duration::from_secs(60);

const NOT_COMPLETE: &str = "its job manager was restarted, and another task of its gang has to be tried again";

pub(super) struct Gangs {
    /// By stage; gangs only.
    stages: BTreeMap<u32, Gang>,
    /// Names of the nodes that reported them since the last restart.
    names: BTreeMap<NodeId, String>,
    /// Whether attempts were launched before a restart.
    is_recovered: bool,
    chance: Chance,
}

#[derive(Default)]
struct Gang {
    phase: Phase,
    in_place: BTreeSet<AttemptId>,
    /// Hosts of all its tasks, known once it runs.
    hosts: Option<Arc<HostList>>,
    /// Number of withdrawals since it last ran.
    tries: u32,
}

enum Phase {
    /// All waiting tasks are asked for. If not all are placed, the placed ones wait until then.
    Gathers { until: Option<Instant> },
    /// All were started, and nothing more is asked for.
    Runs,
    /// Its attempts are stopped for this reason. Then it gathers again, but not before this time.
    Dissolves { reason: EndReason, not_before: Option<Instant> },
}

impl Default for Phase {
    fn default() -> Phase {
        Phase::Gathers { until: None }
    }
}

/// Progress of a stage's tasks.
struct GangProgress {
    waiting: u32,
    running: u32,
    /// A task never succeeds, so the others are of no use.
    has_failed: bool,
    /// It is not known whether some attempts launched before a restart were started.
    is_unsure: bool,
    fetches: bool,
}

/// The next step of a gang.
enum Step {
    None,
    Begin,
    Dissolve { reason: EndReason, pauses: bool },
    Gather,
}

impl Gangs {
    pub(super) fn new(spec: &JobSpec, job: u64) -> Gangs {
        let gangs = spec.stages.iter().zip(0..).filter(|(stage, _)| stage.gang);
        Gangs {
            stages: gangs.map(|(_, number)| (number, Gang::default())).collect(),
            names: BTreeMap::new(),
            is_recovered: false,
            // Two jobs must not wait for the same times repeatedly.
            chance: Chance::new(job, "patience of gangs"),
        }
    }

    pub(super) fn is_gang(&self, stage: u32) -> bool {
        self.stages.contains_key(&stage)
    }

    /// Whether the stage asks for nothing now, although some of its tasks could run.
    pub(super) fn withholds(&self, stage: u32) -> bool {
        self.stages.get(&stage).is_some_and(|gang| !matches!(gang.phase, Phase::Gathers { .. }))
    }

    pub(super) fn on_gone(&mut self, stage: u32, attempt: AttemptId) {
        if let Some(gang) = self.stages.get_mut(&stage) {
            gang.in_place.remove(&attempt);
        }
    }

    pub(super) fn restart(&mut self) {
        self.stages.values_mut().for_each(|gang| *gang = Gang::default());
    }

    pub(super) fn next_review(&self) -> Option<Instant> {
        let at = |gang: &Gang| match gang.phase {
            Phase::Gathers { until } => until,
            Phase::Runs => None,
            Phase::Dissolves { not_before, .. } => not_before,
        };
        self.stages.values().filter_map(at).min()
    }

    /// Between 0.5 and 1.5 times the usual patience after `tries` withdrawals.
    fn patience(&mut self, tries: u32) -> Duration {
        let usual = Duration(PATIENCE.0 << tries.min(5)).min(MOST_PATIENCE);
        Duration(usual.0 / 2 + self.chance.below(usual.0))
    }

    fn step(&mut self, now: Instant, stage: u32, of: &GangProgress) -> Step {
        let Some(gang) = self.stages.get(&stage) else { return Step::None };
        let withdrawn = |why: &str| EndReason::Withdrawn(why.to_owned());
        match &gang.phase {
            Phase::Gathers { .. } if of.running == 0 => {
                self.wait_until(stage, None);
                Step::None
            }
            Phase::Gathers { .. } | Phase::Runs if of.has_failed && of.running > 0 => {
                Step::Dissolve { reason: EndReason::Cancelled, pauses: false }
            }
            Phase::Gathers { .. } if of.waiting == 0 && gang.in_place.len() as u32 == of.running => Step::Begin,
            Phase::Gathers { .. } if of.waiting > 0 && of.is_unsure => {
                Step::Dissolve { reason: withdrawn(NOT_COMPLETE), pauses: false }
            }
            Phase::Gathers { until: Some(until) } if *until <= now => {
                let why = if of.waiting > 0 { "found room" } else { "arrived at their nodes" };
                let reason = withdrawn(&format!("not all tasks of its gang {why}"));
                Step::Dissolve { reason, pauses: true }
            }
            Phase::Gathers { until } => {
                let (until, tries) = (*until, gang.tries);
                let limit = match of {
                    GangProgress { waiting: 1.., .. } => Some(until.unwrap_or_else(|| now + self.patience(tries))),
                    GangProgress { fetches: false, .. } => Some(until.unwrap_or(now + ARRIVE_WITHIN)),
                    GangProgress { fetches: true, .. } => None,
                };
                self.wait_until(stage, limit);
                Step::None
            }
            Phase::Runs if of.running == 0 => Step::Gather,
            Phase::Runs if of.waiting > 0 => {
                let reason =
                    withdrawn("another task of its gang has to be tried again, and all tasks of a gang run together");
                Step::Dissolve { reason, pauses: false }
            }
            Phase::Dissolves { not_before, .. } if not_before.is_none_or(|at| at <= now) => {
                if of.running == 0 {
                    return Step::Gather;
                }
                self.end_pause(stage);
                Step::None
            }
            Phase::Runs | Phase::Dissolves { .. } => Step::None,
        }
    }

    fn end_pause(&mut self, stage: u32) {
        if let Some(Gang { phase: Phase::Dissolves { not_before, .. }, .. }) = self.stages.get_mut(&stage) {
            *not_before = None;
        }
    }

    fn wait_until(&mut self, stage: u32, until: Option<Instant>) {
        if let Some(gang) = self.stages.get_mut(&stage) {
            gang.phase = Phase::Gathers { until };
        }
    }
}

impl JobManager {
    /// Takes all steps that are due. Called before the asks are updated, and when an attempt may have arrived at its node.
    pub(super) fn review_gangs(&mut self, now: Instant, out: &mut Outbox) {
        if self.lifecycle.is_stopping() {
            return;
        }
        let stages: Vec<u32> = self.gangs.stages.keys().copied().collect();
        for stage in stages {
            let entry = self.dag.stage(stage);
            let waiting = if entry.abandoned { 0 } else { entry.waiting() };
            let progress = GangProgress {
                waiting,
                is_unsure: self.gangs.is_recovered && waiting > 0 && entry.running > 0 && self.is_unsure_of(stage),
                running: entry.running,
                has_failed: entry.failed > 0 || entry.abandoned,
                fetches: !self.job.spec.stages[stage as usize].inputs.is_empty(),
            };
            match self.gangs.step(now, stage, &progress) {
                Step::None => {}
                Step::Begin => {
                    self.start_gang(stage, out);
                    let tasks = self.dag.stage(stage).running;
                    out.record(Record::GangStarts { job: self.id(), stage, tasks });
                }
                Step::Dissolve { reason, pauses } => self.dissolve_gang(now, stage, reason, pauses, out),
                Step::Gather => self.gangs.wait_until(stage, None),
            }
        }
    }

    fn is_unsure_of(&self, stage: u32) -> bool {
        let is_known = |(attempt, running): (AttemptId, &RunningAttempt)| {
            running.life == Life::Present || self.gangs.stages[&stage].in_place.contains(&attempt)
        };
        !self.attempts.of_stage(stage).all(is_known)
    }

    fn start_gang(&mut self, stage: u32, out: &mut Outbox) {
        let Some(gang) = self.gangs.stages.get_mut(&stage) else { return };
        (gang.phase, gang.tries, gang.hosts) = (Phase::Runs, 0, None);
        gang.in_place.clear();
        self.send_start(stage, |_| true, out);
    }

    /// Starts these attempts of a gang, if they have not started. After a restart of the manager, this waits until all nodes
    /// have reported their names.
    fn send_start(&mut self, stage: u32, which: impl Fn(AttemptId) -> bool, out: &mut Outbox) {
        let Some(hosts) = self.hosts_of(stage) else { return };
        for (attempt, running) in self.attempts.of_stage(stage).filter(|(attempt, _)| which(*attempt)) {
            if running.started_at.is_none() {
                out.send(running.node, ToNode::StartTask { attempt, hosts: Arc::clone(&hosts) });
            }
        }
    }

    /// Hosts of its tasks, in task order; without tasks that succeeded before the others were tried again.
    fn hosts_of(&mut self, stage: u32) -> Option<Arc<HostList>> {
        if let Some(hosts) = &self.gangs.stages.get(&stage)?.hosts {
            return Some(Arc::clone(hosts));
        }
        let mut of_stage: Vec<(AttemptId, &RunningAttempt)> = self.attempts.of_stage(stage).collect();
        of_stage.sort_unstable_by_key(|(attempt, running)| (running.task.index, *attempt));
        let nodes = of_stage.iter().map(|(_, running)| running.node);
        let hosts = Arc::new(HostList::new(nodes, &self.gangs.names)?);
        self.gangs.stages.get_mut(&stage)?.hosts = Some(Arc::clone(&hosts));
        Some(hosts)
    }

    /// Stores the name of a node, and starts gangs that lacked it.
    pub(super) fn learn_name(&mut self, node: NodeId, name: String, out: &mut Outbox) {
        if self.gangs.stages.is_empty() || self.gangs.names.get(&node) == Some(&name) {
            return;
        }
        self.gangs.names.insert(node, name);
        let lack = |gang: &Gang| matches!(gang.phase, Phase::Runs) && gang.hosts.is_none();
        let lacking: Vec<u32> =
            self.gangs.stages.iter().filter(|(_, gang)| lack(gang)).map(|(stage, _)| *stage).collect();
        for stage in lacking {
            self.send_start(stage, |_| true, out);
        }
    }

    fn dissolve_gang(&mut self, now: Instant, stage: u32, reason: EndReason, pauses: bool, out: &mut Outbox) {
        let tries = self.gangs.stages.get(&stage).map_or(0, |gang| gang.tries);
        let not_before = pauses.then(|| now + self.gangs.patience(tries));
        if let Some(gang) = self.gangs.stages.get_mut(&stage) {
            gang.tries += u32::from(pauses);
            gang.phase = Phase::Dissolves { reason: reason.clone(), not_before };
            gang.in_place.clear();
        }
        let attempts: Vec<AttemptId> = self.attempts.of_stage(stage).map(|(attempt, _)| attempt).collect();
        for attempt in attempts {
            self.stop(attempt, &self.attempts[&attempt], reason.clone(), out);
        }
    }

    pub(super) fn on_in_place(
        &mut self,
        now: Instant,
        from: Address,
        attempt: AttemptId,
        node_name: String,
        out: &mut Outbox,
    ) {
        let stale = Record::Stale { from, attempt };
        let at_its_node = |running: &&RunningAttempt| from == Address::Node(running.node);
        let Some(running) = self.attempts.get(&attempt).filter(at_its_node) else { return out.record(stale) };
        let (node, task) = (running.node, running.task);
        self.learn_name(node, node_name, out);
        match self.gangs.stages.get_mut(&task.stage) {
            None => out.record(stale),
            Some(_) if self.lifecycle.is_stopping() => {
                self.stop(attempt, &self.attempts[&attempt], EndReason::Cancelled, out)
            }
            Some(Gang { phase: Phase::Gathers { .. }, in_place, .. }) => {
                in_place.insert(attempt);
                self.review_gangs(now, out);
            }
            // The start message was lost.
            Some(Gang { phase: Phase::Runs, .. }) => self.send_start(task.stage, |id| id == attempt, out),
            Some(Gang { phase: Phase::Dissolves { reason, .. }, .. }) => {
                let reason = reason.clone();
                self.stop(attempt, &self.attempts[&attempt], reason, out);
            }
        }
    }

    /// A task started or succeeded, so its gang was started before a restart: the others may start too.
    pub(super) fn note_gang_began(&mut self, now: Instant, task: TaskId, out: &mut Outbox) {
        if !self.gangs.is_gang(task.stage) || self.gangs.withholds(task.stage) || self.lifecycle.is_stopping() {
            return;
        }
        let stage = self.dag.stage(task.stage);
        if stage.waiting() == 0 && stage.failed == 0 {
            return self.start_gang(task.stage, out);
        }
        // Another task has to be tried again.
        if let Some(gang) = self.gangs.stages.get_mut(&task.stage) {
            gang.phase = Phase::Runs;
        }
        self.review_gangs(now, out);
    }

    /// Repeats the last message to an attempt that is live at its node: it may have been lost.
    pub(super) fn resend_to_gang(&mut self, attempt: AttemptId, out: &mut Outbox) {
        let Some(running) = self.attempts.get(&attempt) else { return };
        match self.gangs.stages.get(&running.task.stage).map(|gang| &gang.phase) {
            Some(Phase::Runs) if running.started_at.is_none() => {
                let stage = running.task.stage;
                self.send_start(stage, |id| id == attempt, out);
            }
            Some(Phase::Dissolves { reason, .. }) => self.stop(attempt, running, reason.clone(), out),
            _ => {}
        }
    }

    /// Before the restart, some of these were being withdrawn or still gathered. It is not known which, so all are stopped.
    pub(super) fn recover_gangs(&mut self) {
        self.gangs.is_recovered = !self.attempts.is_empty();
        for (&stage, gang) in &mut self.gangs.stages {
            let entry = self.dag.stage(stage);
            if entry.running > 0 && (entry.waiting() > 0 || entry.failed > 0) {
                let reason = match entry.failed {
                    0 => EndReason::Withdrawn(NOT_COMPLETE.to_owned()),
                    _ => EndReason::Cancelled,
                };
                gang.phase = Phase::Dissolves { reason, not_before: None };
            }
        }
    }

    /// Gangs with placed tasks that wait for the others.
    pub(super) fn gangs_that_gather(&self) -> impl Iterator<Item = Why> {
        let gathering = |(stage, gang): (&u32, &Gang)| {
            let entry = self.dag.stage(*stage);
            let is_partial = matches!(gang.phase, Phase::Gathers { .. }) && entry.running > 0;
            let name = || self.job.spec.stages[*stage as usize].name.clone();
            is_partial.then(|| Why::GangGathers {
                stage: name(),
                in_place: gang.in_place.len() as u32,
                tasks: entry.running + entry.ready(),
            })
        };
        self.gangs.stages.iter().filter_map(gathering)
    }
}
