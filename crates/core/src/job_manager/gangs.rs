//! Stages whose tasks start together (gang scheduling; Ousterhout 1982, and the future work of Megha, section VIII). ADR 54.
//!
//! Their launches wait at the nodes until all are in place; then all are started. If only some find room, they wait for a
//! limited time and are withdrawn, so that two gangs do not block each other permanently. Running tasks stay together: if one
//! has to be tried again, all that have not ended are.

use super::{Attempts, LaunchedIn, RunningAttempt};
use crate::progress::Dag;
use crate::vocabulary::{AttemptId, Chance, Duration, EndReason, HostList, Instant, JobSpec, NodeId};
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
#[derive(Clone, Copy)]
pub(super) struct GangProgress {
    pub waiting: u32,
    pub running: u32,
    /// A task never succeeds, so the others are of no use.
    pub has_failed: bool,
    /// Its tasks fetch files before they start.
    pub fetches: bool,
}

/// What attempts of a gang have to do.
pub(super) enum Order {
    /// They start together. Empty after a restart until all their nodes have reported their names.
    Start(Vec<Start>),
    /// They are stopped for this reason.
    Stop(EndReason),
}

/// The start of an attempt.
pub(super) struct Start {
    pub attempt: AttemptId,
    pub node: NodeId,
    /// Hosts of all tasks of its gang.
    pub hosts: Arc<HostList>,
}

/// The next step of a gang.
enum Step {
    None,
    Start,
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

    /// The stages that are gangs, in order.
    pub(super) fn stages(&self) -> Vec<u32> {
        self.stages.keys().copied().collect()
    }

    /// Takes the step of the gang that is due. Returns what all its attempts have to do, if anything.
    pub(super) fn review(&mut self, now: Instant, stage: u32, of: &GangProgress, attempts: &Attempts) -> Option<Order> {
        match self.step(now, stage, of, attempts) {
            Step::None => None,
            Step::Start => Some(Order::Start(self.start(stage, attempts))),
            Step::Dissolve { reason, pauses } => {
                self.dissolve(now, stage, &reason, pauses);
                Some(Order::Stop(reason))
            }
            Step::Gather => {
                self.wait_until(stage, None);
                None
            }
        }
    }

    /// The attempt's node has everything that the attempt needs to start. `None` if it waits for the others: the gang is to be
    /// reviewed.
    pub(super) fn on_in_place(&mut self, stage: u32, attempt: AttemptId, attempts: &Attempts) -> Option<Order> {
        let gang = self.stages.get_mut(&stage)?;
        match &gang.phase {
            Phase::Gathers { .. } => {
                gang.in_place.insert(attempt);
                None
            }
            // The start message was lost.
            Phase::Runs => Some(Order::Start(self.starts_of(stage, Some(attempt), attempts))),
            Phase::Dissolves { reason, .. } => Some(Order::Stop(reason.clone())),
        }
    }

    /// The last order for an attempt that is live at its node: the message may have been lost.
    pub(super) fn last_order(&mut self, attempt: AttemptId, attempts: &Attempts) -> Option<Order> {
        let running = attempts.get(&attempt)?;
        let stage = running.task.stage;
        match &self.stages.get(&stage)?.phase {
            Phase::Runs if running.started_at.is_none() => {
                Some(Order::Start(self.starts_of(stage, Some(attempt), attempts)))
            }
            Phase::Dissolves { reason, .. } => Some(Order::Stop(reason.clone())),
            Phase::Gathers { .. } | Phase::Runs => None,
        }
    }

    /// A task started or succeeded while its gang gathers, so the gang was started before a restart, and the others start. `None`
    /// if it is not complete, since a task has to be tried again: the gang is to be reviewed.
    pub(super) fn on_started(&mut self, stage: u32, is_complete: bool, attempts: &Attempts) -> Option<Vec<Start>> {
        if is_complete {
            return Some(self.start(stage, attempts));
        }
        if let Some(gang) = self.stages.get_mut(&stage) {
            gang.phase = Phase::Runs;
        }
        None
    }

    /// Stores the name of a node. Returns the starts of gangs that lacked it.
    pub(super) fn learn_name(&mut self, node: NodeId, name: String, attempts: &Attempts) -> Vec<Start> {
        if self.stages.is_empty() || self.names.get(&node) == Some(&name) {
            return Vec::new();
        }
        self.names.insert(node, name);
        let lacks = |gang: &Gang| matches!(gang.phase, Phase::Runs) && gang.hosts.is_none();
        let lacking: Vec<u32> = self.stages.iter().filter(|(_, gang)| lacks(gang)).map(|(stage, _)| *stage).collect();
        lacking.into_iter().flat_map(|stage| self.starts_of(stage, None, attempts)).collect()
    }

    /// Before the restart, some of these were being withdrawn or still gathered. It is not known which, so all are stopped.
    pub(super) fn recover(&mut self, dag: &Dag, attempts: &Attempts) {
        self.is_recovered = !attempts.is_empty();
        for (&stage, gang) in &mut self.stages {
            let entry = dag.stage(stage);
            if entry.running > 0 && (entry.waiting() > 0 || entry.failed > 0) {
                let reason = match entry.failed {
                    0 => EndReason::Withdrawn(NOT_COMPLETE.to_owned()),
                    _ => EndReason::Cancelled,
                };
                gang.phase = Phase::Dissolves { reason, not_before: None };
            }
        }
    }

    /// The stages that gather, and how many of their attempts are in place.
    pub(super) fn gathering(&self) -> impl Iterator<Item = (u32, u32)> {
        let gathers = |gang: &Gang| matches!(gang.phase, Phase::Gathers { .. });
        let gathering = self.stages.iter().filter(move |(_, gang)| gathers(gang));
        gathering.map(|(stage, gang)| (*stage, gang.in_place.len() as u32))
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

    fn step(&mut self, now: Instant, stage: u32, of: &GangProgress, attempts: &Attempts) -> Step {
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
            Phase::Gathers { .. } if of.waiting == 0 && gang.in_place.len() as u32 == of.running => Step::Start,
            Phase::Gathers { .. } if of.waiting > 0 && self.is_unsure_of(stage, attempts) => {
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
            // A task that has ended was on a node whose name is not known since a restart.
            Phase::Runs if gang.hosts.is_none() && self.knows_nodes_of(stage, attempts) => Step::Start,
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

    /// Whether it is not known if some attempts launched before a restart were started.
    fn is_unsure_of(&self, stage: u32, attempts: &Attempts) -> bool {
        let is_known = |(attempt, running): (AttemptId, &RunningAttempt)| {
            running.launched_in == LaunchedIn::Present || self.stages[&stage].in_place.contains(&attempt)
        };
        self.is_recovered && !attempts.of_stage(stage).all(is_known)
    }

    fn knows_nodes_of(&self, stage: u32, attempts: &Attempts) -> bool {
        attempts.of_stage(stage).all(|(_, running)| self.names.contains_key(&running.node))
    }

    fn start(&mut self, stage: u32, attempts: &Attempts) -> Vec<Start> {
        let Some(gang) = self.stages.get_mut(&stage) else { return Vec::new() };
        (gang.phase, gang.tries, gang.hosts) = (Phase::Runs, 0, None);
        gang.in_place.clear();
        self.starts_of(stage, None, attempts)
    }

    /// Starts of the attempts of a gang that have not started, or only of this one. After a restart, none until all nodes have
    /// reported their names.
    fn starts_of(&mut self, stage: u32, only: Option<AttemptId>, attempts: &Attempts) -> Vec<Start> {
        let Some(hosts) = self.hosts_of(stage, attempts) else { return Vec::new() };
        let of_stage = attempts.of_stage(stage).filter(|(attempt, _)| only.is_none_or(|only| only == *attempt));
        let unstarted = of_stage.filter(|(_, running)| running.started_at.is_none());
        let start = |(attempt, running): (AttemptId, &RunningAttempt)| {
            let (node, hosts) = (running.node, Arc::clone(&hosts));
            Start { attempt, node, hosts }
        };
        unstarted.map(start).collect()
    }

    /// Hosts of its tasks, in task order; without tasks that succeeded before the others were tried again.
    fn hosts_of(&mut self, stage: u32, attempts: &Attempts) -> Option<Arc<HostList>> {
        let gang = self.stages.get_mut(&stage)?;
        if let Some(hosts) = &gang.hosts {
            return Some(Arc::clone(hosts));
        }
        let mut of_stage: Vec<(AttemptId, &RunningAttempt)> = attempts.of_stage(stage).collect();
        of_stage.sort_unstable_by_key(|(attempt, running)| (running.task.index, *attempt));
        let nodes = of_stage.iter().map(|(_, running)| running.node);
        let hosts = Arc::new(HostList::new(nodes, &self.names)?);
        gang.hosts = Some(Arc::clone(&hosts));
        Some(hosts)
    }

    fn dissolve(&mut self, now: Instant, stage: u32, reason: &EndReason, pauses: bool) {
        let tries = self.stages.get(&stage).map_or(0, |gang| gang.tries);
        let not_before = pauses.then(|| now + self.patience(tries));
        if let Some(gang) = self.stages.get_mut(&stage) {
            gang.tries += u32::from(pauses);
            gang.phase = Phase::Dissolves { reason: reason.clone(), not_before };
            gang.in_place.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Holding;
    use crate::protocol::Rule;
    use crate::vocabulary::{Epoch, JobId, StageSpec, TaskId};

    const NODES: [NodeId; 2] = [NodeId(0), NodeId(1)];

    /// A gang of two tasks, one on each node.
    fn gang() -> (Gangs, Attempts, [AttemptId; 2]) {
        let stages = vec![StageSpec { gang: true, ..StageSpec::default() }];
        let gangs = Gangs::new(&JobSpec { stages, ..JobSpec::default() }, 1);
        let mut attempts = Attempts::new(JobId(1), Epoch(1));
        let sent = NODES.map(|node| {
            let (id, task) = (attempts.make_id(), TaskId { job: JobId(1), stage: 0, index: node.0 });
            attempts
                .insert(id, RunningAttempt::launched(task, node, Holding::Granted, Rule::Submission, Instant::ZERO));
            id
        });
        (gangs, attempts, sent)
    }

    fn started(order: Option<Order>) -> Vec<AttemptId> {
        match order {
            Some(Order::Start(starts)) => starts.iter().map(|start| start.attempt).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn a_task_that_has_ended_on_a_node_without_a_known_name_does_not_keep_the_rest_of_its_gang() {
        let (mut gangs, mut attempts, [ended, left]) = gang();
        // After a restart, only the node of the other one has reported its name.
        assert!(gangs.learn_name(NODES[1], "n1".to_owned(), &attempts).is_empty());
        let starts = gangs.on_started(0, true, &attempts).expect("the gang is complete");
        assert!(starts.is_empty(), "the names of all hosts are not known");
        let mut review = |attempts: &Attempts, running| {
            let progress = GangProgress { waiting: 0, running, has_failed: false, fetches: false };
            started(gangs.review(Instant::ZERO, 0, &progress, attempts))
        };
        assert_eq!(review(&attempts, 2), []);
        attempts.remove(ended);
        assert_eq!((review(&attempts, 1), review(&attempts, 1)), (vec![left], vec![]), "once");
    }
}
