//! The files of a job's tasks: the attempt whose files count for a task, and the nodes that have them.

use crate::protocol::Holder;
use crate::vocabulary::files::{INDEX, input_path};
use crate::vocabulary::{AttemptId, Digest, Ended, InputFile, InputSpec, JobSpec, NodeId, OutputFile, TaskId};
use serde::{Deserialize, Serialize};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Maximum number of nodes with a file that a launch names, so that a file on all nodes makes no long message.
const MOST_HOLDERS: usize = 4;

/// A stage and the position of a task in it.
pub(crate) type TaskPosition = (u32, u32);

/// Files that tasks wrote and others read, and the nodes that have them.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Files {
    committed: BTreeMap<TaskPosition, Committed>,
    holders: BTreeMap<Digest, BTreeSet<NodeId>>,
    /// The committed tasks that wrote the file.
    #[serde(skip)]
    writers: BTreeMap<Digest, BTreeSet<TaskPosition>>,
    /// Tasks with a file that no node has.
    lost: BTreeSet<TaskPosition>,
    /// By stage, the input of each of its tasks, if all read the same: made once and not for each.
    #[serde(skip)]
    shared: BTreeMap<u32, Arc<[InputFile]>>,
    /// By stage, nodes where a task of it started. Only a few copies need to be known.
    #[serde(skip)]
    arrivals: BTreeMap<u32, BTreeSet<NodeId>>,
    /// Stages whose input locations the scheduler knows.
    #[serde(skip)]
    located: BTreeSet<u32>,
}

/// The files of a task: all of one attempt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Committed {
    attempt: AttemptId,
    /// Sorted by name.
    files: Vec<OutputFile>,
}

/// The files of a task that succeeded.
#[derive(Clone, Copy, Debug)]
pub struct TaskOutputs<'a> {
    pub task: TaskId,
    /// The attempt that wrote the files.
    pub attempt: AttemptId,
    /// Sorted by name.
    pub files: &'a [OutputFile],
}

impl Files {
    /// `None` for a job without files.
    pub(crate) fn new(spec: &JobSpec) -> Option<Box<Files>> {
        spec.stages.iter().any(|stage| stage.has_files()).then(Box::default)
    }

    /// Without the parts that can be rebuilt.
    pub(crate) fn saved(&self) -> Box<Files> {
        let Files { committed, holders, lost, .. } = self.clone();
        Box::new(Files { committed, holders, lost, ..Files::default() })
    }

    /// Rebuilds the parts that were not saved.
    pub(crate) fn recovered(mut self: Box<Files>) -> Box<Files> {
        for (&place, committed) in &self.committed {
            for file in &committed.files {
                self.writers.entry(file.digest).or_default().insert(place);
            }
        }
        self
    }

    /// The files of the first attempt that succeeds count.
    fn commit(&mut self, task: TaskPosition, attempt: AttemptId, node: NodeId, files: &[OutputFile]) {
        if files.is_empty() || self.committed.contains_key(&task) {
            return;
        }
        self.shared.clear();
        for file in files {
            self.holders.entry(file.digest).or_default().insert(node);
            self.writers.entry(file.digest).or_default().insert(task);
        }
        let mut files = files.to_vec();
        files.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        self.committed.insert(task, Committed { attempt, files });
    }

    /// The task that wrote the file, and the size of the file in bytes.
    pub(crate) fn writer_of(&self, digest: &Digest) -> Option<(TaskPosition, u64)> {
        let place = *self.writers.get(digest)?.first()?;
        let file = self.committed.get(&place)?.files.iter().find(|file| file.digest == *digest)?;
        Some((place, file.bytes))
    }

    pub(crate) fn has_outputs(&self, task: TaskPosition) -> bool {
        self.committed.contains_key(&task)
    }

    /// The task wrote its files again, on that node. Returns those that equal the committed ones.
    pub(crate) fn add_copy(&mut self, task: TaskPosition, node: NodeId, ended: &Ended) -> Vec<Digest> {
        let Some(committed) = self.committed.get(&task) else { return Vec::new() };
        let is_same = |digest: &Digest| committed.files.iter().any(|file| file.digest == *digest);
        let same: Vec<Digest> =
            ended.outputs().iter().map(|file| file.digest).filter(|digest| is_same(digest)).collect();
        for digest in &same {
            self.holders.entry(*digest).or_default().insert(node);
        }
        self.shared.clear();
        same
    }

    pub(crate) fn uncommit(&mut self, task: TaskPosition) {
        self.shared.clear();
        self.located.clear();
        for file in self.committed.remove(&task).into_iter().flat_map(|committed| committed.files) {
            if let Entry::Occupied(mut writers) = self.writers.entry(file.digest) {
                writers.get_mut().remove(&task);
                if writers.get().is_empty() {
                    writers.remove();
                }
            }
        }
        self.lost.remove(&task);
    }

    /// The node no longer has these files, or no longer any if `None`.
    pub(crate) fn drop_holder(&mut self, node: NodeId, gone: Option<&BTreeSet<Digest>>) {
        self.shared.clear();
        for nodes in self.arrivals.values_mut() {
            nodes.remove(&node);
        }
        let is_at = |(digest, holders): (&Digest, &BTreeSet<NodeId>)| holders.contains(&node).then_some(*digest);
        let of_node: Vec<Digest> = match gone {
            Some(gone) => gone.iter().filter_map(|digest| self.holders.get_key_value(digest).and_then(is_at)).collect(),
            None => self.holders.iter().filter_map(is_at).collect(),
        };
        for digest in of_node {
            let Some(holders) = self.holders.get_mut(&digest) else { continue };
            holders.remove(&node);
            if holders.is_empty() {
                self.holders.remove(&digest);
                self.lost.extend(self.writers.get(&digest).into_iter().flatten());
            }
        }
    }

    /// A file of the task that no node has.
    fn lost_file(&self, task: TaskPosition) -> Option<&str> {
        let files = &self.committed.get(&task)?.files;
        files.iter().find(|file| !self.holders.contains_key(&file.digest)).map(|file| file.name.as_str())
    }

    pub(crate) fn holders_of(&self, digest: &Digest) -> Vec<NodeId> {
        self.holders.get(digest).into_iter().flatten().take(MOST_HOLDERS).copied().collect()
    }

    /// The input files in the working directory of a task, sorted by path.
    pub(crate) fn inputs_of(&mut self, spec: &JobSpec, place: TaskPosition) -> Arc<[InputFile]> {
        let (stage, _) = place;
        if spec.stages[stage as usize].inputs.iter().any(is_by_index) {
            return self.gather(spec, place);
        }
        if let Some(shared) = self.shared.get(&stage) {
            return Arc::clone(shared);
        }
        let shared = self.gather(spec, place);
        self.shared.insert(stage, Arc::clone(&shared));
        shared
    }

    /// Total size of these files.
    pub(crate) fn input_bytes(&mut self, spec: &JobSpec, place: TaskPosition) -> u64 {
        let (stage, _) = place;
        if spec.stages[stage as usize].inputs.is_empty() {
            return 0;
        }
        self.inputs_of(spec, place).iter().map(|input| input.bytes).sum()
    }

    /// Number and total size in bytes of these files that the node lacks, as far as is known.
    pub(crate) fn missing_at(&self, node: NodeId, inputs: &[InputFile]) -> (u32, u64) {
        let is_there = |input: &&InputFile| self.holders.get(&input.digest).is_some_and(|nodes| nodes.contains(&node));
        let missing = inputs.iter().filter(|input| !is_there(input));
        missing.fold((0, 0), |(count, bytes), input| (count + 1, bytes + input.bytes))
    }

    /// The nodes with the input of a stage whose tasks all read the same, once for each stage.
    pub(crate) fn locate(&mut self, spec: &JobSpec, stage: u32) -> Option<Vec<Holder>> {
        let inputs = &spec.stages[stage as usize].inputs;
        let is_shared = !inputs.is_empty() && !inputs.iter().any(is_by_index);
        if !is_shared || !self.located.insert(stage) {
            return None;
        }
        let mut parts: BTreeMap<NodeId, u64> = BTreeMap::new();
        for input in self.inputs_of(spec, (stage, 0)).iter() {
            // Only one of several holders counts: a part on two nodes is not twice as much.
            input.holders.iter().take(1).for_each(|node| *parts.entry(*node).or_default() += input.bytes);
        }
        Some(parts.into_iter().map(|(node, bytes)| Holder { node, bytes }).collect())
    }

    /// The task started on the node, which has all its input files.
    pub(crate) fn arrive(&mut self, spec: &JobSpec, task: TaskPosition, node: NodeId) {
        let (stage, _) = task;
        // If each task reads its own files, a node with the files of one task has none of another's.
        let read_the_same = !spec.stages[stage as usize].inputs.iter().any(is_by_index);
        let nodes = self.arrivals.entry(stage).or_default();
        if read_the_same && (nodes.len() >= MOST_HOLDERS || !nodes.insert(node)) {
            return;
        }
        for input in self.inputs_of(spec, task).iter() {
            self.holders.entry(input.digest).and_modify(|holders| {
                holders.insert(node);
            });
        }
        // From now on launches name this node, too.
        self.shared.remove(&stage);
    }

    /// Applies what the end of an attempt reports about files.
    pub(crate) fn take_end(&mut self, task: TaskPosition, attempt: AttemptId, node: NodeId, ended: &Ended) {
        if ended.reason.is_success() {
            self.commit(task, attempt, node, ended.outputs());
        }
        let nodes: BTreeSet<NodeId> = ended.missing().iter().map(|(_, node)| *node).collect();
        for node in nodes {
            let gone: BTreeSet<Digest> =
                ended.missing().iter().filter(|(_, of)| *of == node).map(|(digest, _)| *digest).collect();
            self.drop_holder(node, Some(&gone));
        }
    }

    /// The files of tasks, from this stage and position on, in order.
    pub(crate) fn outputs_from(
        &self,
        from: TaskPosition,
    ) -> impl Iterator<Item = (TaskPosition, AttemptId, &[OutputFile])> {
        self.committed.range(from..).map(|(&place, Committed { attempt, files })| (place, *attempt, files.as_slice()))
    }

    /// Tasks with a file that no node has, and the name of the file.
    pub(crate) fn lost(&self) -> impl Iterator<Item = (TaskPosition, &str)> {
        // Another copy may have been found since.
        self.lost.iter().filter_map(|&task| Some((task, self.lost_file(task)?)))
    }

    fn gather(&self, spec: &JobSpec, (stage, position): TaskPosition) -> Arc<[InputFile]> {
        let reader = &spec.stages[stage as usize];
        let mut inputs: BTreeMap<String, InputFile> = BTreeMap::new();
        for InputSpec { stage, files } in &reader.inputs {
            let writer = &spec.stages[*stage as usize];
            for (from, name) in writer.select_outputs(files, reader.tasks.index_value(position)) {
                let index = writer.tasks.index_value(from);
                if let Some(file) = self.committed.get(&(*stage, from)).and_then(|committed| committed.find(&name)) {
                    let path = input_path(&writer.name, index, &name);
                    let holders = self.holders_of(&file.digest);
                    inputs.insert(path.clone(), InputFile { path, digest: file.digest, bytes: file.bytes, holders });
                }
            }
        }
        inputs.into_values().collect()
    }
}

/// Whether tasks of different indexes read different files.
pub(crate) fn is_by_index(input: &InputSpec) -> bool {
    input.files.contains(INDEX)
}

impl Committed {
    fn find(&self, name: &str) -> Option<&OutputFile> {
        // State saved by an earlier version has the order of the job file.
        let sorted = self.files.binary_search_by(|file| file.name.as_str().cmp(name)).ok();
        sorted.map(|at| &self.files[at]).or_else(|| self.files.iter().find(|file| file.name == name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{Epoch, JobId};

    const ONE: Digest = Digest([1; 32]);
    const OTHER: Digest = Digest([2; 32]);

    fn attempt(number: u32) -> AttemptId {
        AttemptId { job: JobId(1), epoch: Epoch(1), number }
    }

    fn output(digest: Digest) -> OutputFile {
        OutputFile { name: "o".to_owned(), digest, bytes: 3 }
    }

    #[test]
    fn the_files_of_the_first_attempt_that_succeeds_count() {
        let mut files = Files::default();
        files.commit((0, 0), attempt(1), NodeId(1), &[output(ONE)]);
        files.commit((0, 0), attempt(2), NodeId(2), &[output(OTHER)]);
        assert_eq!(files.committed[&(0, 0)], Committed { attempt: attempt(1), files: vec![output(ONE)] });
        assert_eq!(files.holders_of(&OTHER), [], "no node is known for the file of the second");
    }

    #[test]
    fn a_file_is_lost_with_its_last_holder_unless_there_is_a_copy() {
        let mut files = Files::default();
        files.commit((0, 0), attempt(1), NodeId(1), &[output(ONE)]);
        files.commit((0, 1), attempt(2), NodeId(2), &[output(ONE)]);
        files.drop_holder(NodeId(1), None);
        assert!(files.lost.is_empty(), "another task wrote the same file");
        files.drop_holder(NodeId(2), Some(&BTreeSet::from([OTHER])));
        assert!(files.lost.is_empty());
        files.drop_holder(NodeId(2), Some(&BTreeSet::from([ONE])));
        assert_eq!(files.lost, BTreeSet::from([(0, 0), (0, 1)]));
        assert_eq!(files.lost_file((0, 1)), Some("o"));
        // Written again by one of the two tasks, it is there for both.
        files.uncommit((0, 0));
        files.commit((0, 0), attempt(3), NodeId(3), &[output(ONE)]);
        assert_eq!(files.lost_file((0, 1)), None);
    }

    #[test]
    fn the_writers_of_a_file_survive_a_restart_and_end_with_the_commit() {
        let mut files = Files::default();
        files.commit((0, 0), attempt(1), NodeId(1), &[output(ONE), output(OTHER)]);
        files.commit((0, 1), attempt(2), NodeId(2), &[output(ONE)]);
        let mut files = files.saved().recovered();
        assert_eq!(files.writer_of(&ONE), Some(((0, 0), 3)));
        files.drop_holder(NodeId(1), None);
        assert_eq!(files.lost, BTreeSet::from([(0, 0)]), "another task wrote one of the two files on another node");
        files.uncommit((0, 0));
        assert_eq!((files.writer_of(&ONE), files.writer_of(&OTHER)), (Some(((0, 1), 3)), None));
        files.drop_holder(NodeId(2), None);
        assert_eq!(files.lost, BTreeSet::from([(0, 1)]));
    }

    #[test]
    fn files_are_found_by_name_even_if_saved_in_another_order() {
        let named = |name: &str| OutputFile { name: name.to_owned(), ..output(ONE) };
        let left = [named("b"), named("c"), named("a")];
        let mut files = Files::default();
        files.commit((0, 0), attempt(1), NodeId(1), &left);
        let sorted = files.committed.remove(&(0, 0)).unwrap();
        assert!(sorted.files.is_sorted_by_key(|file| &file.name));
        for committed in [sorted, Committed { attempt: attempt(1), files: left.to_vec() }] {
            for name in ["a", "b", "c"] {
                assert_eq!(committed.find(name).map(|file| file.name.as_str()), Some(name));
            }
            assert_eq!(committed.find("d"), None);
        }
    }

    #[test]
    fn launches_name_only_a_few_holders() {
        let mut files = Files::default();
        files.commit((0, 0), attempt(1), NodeId(0), &[output(ONE)]);
        files.holders.get_mut(&ONE).unwrap().extend((1..10).map(NodeId));
        assert_eq!(files.holders_of(&ONE), [0, 1, 2, 3].map(NodeId));
    }
}
