//! Locations of input that tasks read in place: blocks that the job names, and output of earlier tasks on their nodes.
//!
//! Files that are fetched are handled by [`super::files`]. Departs: output of an earlier task is assumed to stay on its node
//! for as long as the job runs.

use super::JobManager;
use super::requests::Requests;
use crate::progress::Dag;
use crate::protocol::{AdmittedJob, Holder};
use crate::scheduling::NextTask;
use crate::vocabulary::{Block, JobSpec, NodeId, Piece, Reads, TaskId};
use std::collections::{BTreeMap, BTreeSet};

/// Number of next tasks of a stage that are searched for the one with the most input on a node.
const LOOKS: usize = 64;

/// Stages whose input is stored where earlier tasks ran, not yet reported to the scheduler.
#[derive(Default)]
pub(super) struct Unlocated(BTreeSet<u32>);

impl Unlocated {
    pub(super) fn new(spec: &JobSpec) -> Unlocated {
        let stages = (0..).zip(&spec.stages).filter(|(_, stage)| stage.reads == Reads::Before);
        Unlocated(stages.map(|(number, _)| number).collect())
    }

    /// Those that can run now. They are not returned again.
    fn take_runnable(&mut self, dag: &Dag) -> Vec<u32> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let runnable: Vec<u32> = dag.runnable().filter(|stage| self.0.contains(stage)).collect();
        for stage in &runnable {
            self.0.remove(stage);
        }
        runnable
    }
}

/// The blocks that a task reads; `None` if its stage has none.
fn blocks_of(job: &AdmittedJob, stage: u32, index: u32) -> Option<Vec<Piece>> {
    let Reads::Blocks(blocks) = &job.spec.stages[stage as usize].reads else { return None };
    let nodes = job.places.get(stage as usize);
    let node = |&place: &u32| nodes.and_then(|nodes| nodes.get(place as usize).copied().flatten());
    let piece =
        |block: &Block| Piece { bytes: u64::from(block.kib) * 1_024, at: block.at.iter().filter_map(node).collect() };
    Some(blocks.of(index).iter().map(piece).collect())
}

fn bytes_at(pieces: &[Piece], node: NodeId) -> u64 {
    pieces.iter().filter(|piece| piece.at.contains(&node)).map(|piece| piece.bytes).sum()
}

/// For the job's own scheduler: the next tasks of an ask, if each reads blocks of its own.
pub(super) fn next_tasks<'a>(
    job: &'a AdmittedJob,
    dag: &'a Dag,
    requests: &'a Requests,
) -> impl Fn(u32, u64, &BTreeSet<u32>) -> Option<Vec<NextTask>> + 'a {
    move |ask, most, taken| {
        let stage = requests.next_stage(ask)?;
        if !matches!(job.spec.stages[stage as usize].reads, Reads::Blocks(_)) {
            return None;
        }
        let next = dag.upcoming(stage).filter(|index| !taken.contains(index));
        let named = |index| {
            let pieces = blocks_of(job, stage, index).unwrap_or_default();
            NextTask { index, pieces, expected: dag.expected(stage, index) }
        };
        Some(next.take(usize::try_from(most).unwrap_or(usize::MAX)).map(named).collect())
    }
}

impl JobManager {
    pub(super) fn blocks_of(&self, task: TaskId) -> Option<Vec<Piece>> {
        blocks_of(&self.job, task.stage, task.index)
    }

    /// The task of the stage that starts on this node: the decided one, else the one with the most input there, else the first.
    pub(super) fn next_on(&self, stage: u32, decided: Option<u32>, node: NodeId) -> Option<u32> {
        let decided = decided.filter(|index| self.dag.is_upcoming(stage, *index));
        decided.or_else(|| self.nearest_to(stage, node)).or_else(|| self.dag.next_task(stage))
    }

    fn nearest_to(&self, stage: u32, node: NodeId) -> Option<u32> {
        if !matches!(self.job.spec.stages[stage as usize].reads, Reads::Blocks(_)) {
            return None;
        }
        let here = |index| bytes_at(&blocks_of(&self.job, stage, index).unwrap_or_default(), node);
        let first = self.dag.upcoming(stage).take(LOOKS).map(|index| (index, here(index)));
        // The first of equals.
        let best = first.reduce(|best, next| if next.1 > best.1 { next } else { best });
        best.filter(|(_, bytes)| *bytes > 0).map(|(index, _)| index)
    }

    /// Reports to the job's own scheduler where earlier tasks ran whose output can be read now.
    pub(super) fn locate_earlier(&mut self) {
        let Some(scheduler) = &mut self.own.scheduler else { return };
        for stage in self.own.unlocated.take_runnable(&self.dag) {
            let spec = &self.job.spec.stages[stage as usize];
            let mut ran: BTreeMap<NodeId, u64> = BTreeMap::new();
            for node in spec.after.iter().flat_map(|before| self.dag.stage(*before).ran_on()) {
                *ran.entry(node).or_default() += 1;
            }
            let tasks: u64 = ran.values().sum();
            let kib: u64 = spec.input_kib.iter().map(|kib| u64::from(*kib)).sum();
            let of_one = kib.saturating_mul(1_024) / (spec.input_kib.len() as u64).max(1);
            let bytes = |count: u64| (u128::from(of_one) * u128::from(count) / u128::from(tasks.max(1))) as u64;
            let parts: Vec<Holder> =
                ran.into_iter().map(|(node, count)| Holder { node, bytes: bytes(count) }).collect();
            for is_opportunistic in [false, true] {
                scheduler.set_parts(self.requests.ask_of(stage, is_opportunistic), &parts);
            }
        }
    }
}
