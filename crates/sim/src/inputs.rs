//! Which nodes of a simulated cluster store the inputs of tasks, and how much longer a task takes to read from another
//! node.
//!
//! The input of stages without dependencies is stored in blocks as in HDFS (Shvachko et al. 2010, "The Hadoop
//! distributed file system", section III.B): the first copy of each block on a random node, the second in another rack,
//! the third on another node of the second copy's rack, and further copies on random nodes. The input of later stages
//! is stored on the nodes that ran the tasks of their dependencies. Schedulers know the locations that the job
//! specifications contain; this module determines from where a task reads. Departs: each task's input starts a block of
//! its own.

use crate::settings::InputSettings;
use amalgam_core::policy::completion::InputPiece;
use amalgam_core::vocabulary::{Block, Blocks, Chance, Distance, Duration, Reads, StageSpec};
use amalgam_workload::trace::{Node, TraceJob};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Nodes by rack. Nodes that name no rack share one rack when copies are placed, but are far from each other for a task
/// that reads.
pub struct Racks {
    /// The rack of each node.
    of: Vec<u32>,
    /// Whether the first rack consists of the nodes that name no rack.
    has_nameless: bool,
    /// All nodes, rack by rack, and the position of the first node of each rack.
    nodes: Vec<u32>,
    starts: Vec<usize>,
}

impl Racks {
    pub fn of(nodes: &[Node]) -> Racks {
        let mut members: BTreeMap<Option<&str>, Vec<u32>> = BTreeMap::new();
        for (number, node) in (0..).zip(nodes) {
            members.entry(node.attributes.get("rack")).or_default().push(number);
        }
        let mut racks = Racks {
            of: vec![0; nodes.len()],
            has_nameless: members.contains_key(&None),
            nodes: Vec::with_capacity(nodes.len()),
            starts: Vec::new(),
        };
        for (rack, nodes) in (0..).zip(members.into_values()) {
            nodes.iter().for_each(|node| racks.of[*node as usize] = rack);
            racks.starts.push(racks.nodes.len());
            racks.nodes.extend(nodes);
        }
        racks
    }

    /// The rack that the node names, if any. A task reads faster within it.
    fn named(&self, node: u32) -> Option<u32> {
        Some(self.of[node as usize]).filter(|rack| *rack > 0 || !self.has_nameless)
    }

    fn members(&self, rack: u32) -> &[u32] {
        let start = self.starts[rack as usize];
        &self.nodes[start..self.starts.get(rack as usize + 1).copied().unwrap_or(self.nodes.len())]
    }

    /// The nodes for the copies of one block.
    fn draw(&self, replicas: u32, chance: &mut Chance) -> Vec<u32> {
        let all = self.nodes.len();
        let wanted = (replicas as usize).min(all);
        let mut copies = Vec::with_capacity(wanted);
        while copies.len() < wanted {
            let next = match copies[..] {
                [first] => self.draw_beyond(self.of[first as usize], chance),
                [first, second] if self.of[first as usize] != self.of[second as usize] => {
                    let rack = self.members(self.of[second as usize]);
                    rack[chance.below(rack.len() as u64) as usize]
                }
                _ => self.nodes[chance.below(all as u64) as usize],
            };
            // The rack of the second copy may have no other node for the third.
            let is_alone = copies.len() == 2 && self.members(self.of[next as usize]).len() == 1;
            let next = if is_alone { self.nodes[chance.below(all as u64) as usize] } else { next };
            if !copies.contains(&next) {
                copies.push(next);
            }
        }
        copies
    }

    /// A random node of another rack, or of this rack if it is the only one.
    fn draw_beyond(&self, rack: u32, chance: &mut Chance) -> u32 {
        let (own, start) = (self.members(rack).len(), self.starts[rack as usize]);
        let others = self.nodes.len() - own;
        if others == 0 {
            return self.nodes[chance.below(own as u64) as usize];
        }
        let drawn = chance.below(others as u64) as usize;
        self.nodes[if drawn < start { drawn } else { drawn + own }]
    }
}

/// The bytes that a task reads from its node, from its rack, and from elsewhere.
pub type Read = [u64; 3];

pub struct Inputs {
    settings: InputSettings,
    racks: Racks,
    names: BTreeMap<String, u32>,
    /// By job and stage: the nodes on which tasks have succeeded.
    ran: BTreeMap<(u32, u32), Ran>,
}

#[derive(Default)]
struct Ran {
    tasks: BTreeSet<u32>,
    by_node: BTreeMap<u32, u64>,
    by_rack: BTreeMap<u32, u64>,
}

impl Inputs {
    /// Places the inputs of all jobs on nodes and adds the locations to the job specifications.
    pub fn new(settings: InputSettings, seed: u64, nodes: &[Node], jobs: &mut [TraceJob]) -> Inputs {
        let racks = Racks::of(nodes);
        for (number, job) in jobs.iter_mut().enumerate() {
            let is_open = |stage: &StageSpec| !stage.input_kib.is_empty() && !stage.reads.are_stated();
            if !job.spec.stages.iter().any(is_open) {
                continue;
            }
            let mut chance = Chance::new(seed, &format!("blocks of job {number}"));
            for stage in &mut Arc::make_mut(&mut job.spec).stages {
                if is_open(stage) {
                    stage.reads = match stage.after.is_empty() {
                        true => Reads::Blocks(lay_out(&stage.input_kib, &settings, &racks, nodes, &mut chance)),
                        false => Reads::Before,
                    };
                }
            }
        }
        let names = nodes.iter().map(|node| node.name.clone()).zip(0..).collect();
        Inputs { settings, racks, names, ran: BTreeMap::new() }
    }

    /// A task has succeeded on this node.
    pub fn on_succeeded(&mut self, job: u32, stage: u32, index: u32, node: usize) {
        let ran = self.ran.entry((job, stage)).or_default();
        if ran.tasks.insert(index) {
            *ran.by_node.entry(node as u32).or_default() += 1;
            if let Some(rack) = self.racks.named(node as u32) {
                *ran.by_rack.entry(rack).or_default() += 1;
            }
        }
    }

    /// What a task on this node reads. `None` if the stage does not specify where its input is stored. A block whose
    /// nodes are all down is read from elsewhere.
    pub fn read(
        &self,
        (job, index): (u32, u32),
        stage: &StageSpec,
        node: usize,
        is_up: impl Fn(usize) -> bool,
    ) -> Option<Read> {
        let mine = self.racks.named(node as u32);
        let mut read = [0; 3];
        match &stage.reads {
            Reads::Unstated => return None,
            Reads::Blocks(blocks) => {
                let names = blocks.nodes();
                for Block { kib, at } in blocks.of(index) {
                    let at = at.iter().filter_map(|&at| self.names.get(names.get(at as usize)?)).copied();
                    let at: Vec<u32> = at.filter(|&at| is_up(at as usize)).collect();
                    let distance = if at.contains(&(node as u32)) {
                        Distance::OnNode
                    } else if mine.is_some() && at.iter().any(|&at| self.racks.named(at) == mine) {
                        Distance::InRack
                    } else {
                        Distance::Elsewhere
                    };
                    read[distance as usize] += u64::from(*kib) * 1_024;
                }
            }
            Reads::Before => {
                let all = u64::from(stage.input_kib.get(index as usize).copied().unwrap_or(0)) * 1_024;
                let ran = || stage.after.iter().filter_map(|before| self.ran.get(&(job, *before)));
                let tasks: u64 = ran().map(|ran| ran.tasks.len() as u64).sum();
                let on_node: u64 = ran().filter_map(|ran| ran.by_node.get(&(node as u32))).sum();
                let in_rack: u64 = ran().filter_map(|ran| ran.by_rack.get(&mine?)).sum();
                let part = |of: u64| (u128::from(all) * u128::from(of) / u128::from(tasks.max(1))) as u64;
                let (here, beside) = (part(on_node), part(in_rack.max(on_node)));
                read = [here, beside - here, all - beside];
            }
        }
        Some(read)
    }

    /// How much longer it takes to read this than if all of it were stored on the node.
    pub fn longer(&self, read: &Read) -> Duration {
        let [on_node, in_rack, elsewhere] = *read;
        let part = |bytes, distance| InputPiece { bytes, distance };
        let parts =
            [part(on_node, Distance::OnNode), part(in_rack, Distance::InRack), part(elsewhere, Distance::Elsewhere)];
        let rates = &self.settings.rates;
        let beside = rates.reading(&[part(read.iter().sum(), Distance::OnNode)]);
        Duration(rates.reading(&parts).0.saturating_sub(beside.0))
    }
}

/// Places the blocks of a stage whose tasks read `kib` KiB each.
fn lay_out(kib: &[u32], settings: &InputSettings, racks: &Racks, nodes: &[Node], chance: &mut Chance) -> Blocks {
    let most = u32::try_from(settings.block_bytes / 1_024).unwrap_or(u32::MAX).max(1);
    let mut known: BTreeMap<u32, u32> = BTreeMap::new();
    let mut by_task = Vec::with_capacity(kib.len());
    for &kib in kib {
        let count = kib.div_ceil(most);
        let block = |number: u32| {
            let copies = racks.draw(settings.replicas, chance);
            let at = copies.into_iter().map(|node| {
                let next = known.len() as u32;
                *known.entry(node).or_insert(next)
            });
            Block { kib: (kib - number * most).min(most), at: at.collect() }
        };
        by_task.push((0..count).map(block).collect::<Vec<Block>>());
    }
    let mut names = vec![String::new(); known.len()];
    known.into_iter().for_each(|(node, place)| names[place as usize].clone_from(&nodes[node as usize].name));
    let mut blocks = Blocks::on(names);
    by_task.into_iter().for_each(|of_task| blocks.push(of_task).expect("a stage has fewer than 2^32 blocks"));
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_core::policy::completion::Rates;
    use amalgam_core::vocabulary::{Attributes, ResourceSpec};

    const MB: u64 = 1_000_000;
    const SETTINGS: InputSettings = InputSettings {
        block_bytes: 256 << 20,
        replicas: 3,
        rates: Rates { on_node: 160 * MB, in_rack: 100 * MB, elsewhere: 80 * MB },
    };

    /// Nodes in racks of these sizes.
    fn nodes(racks: &[u32]) -> Vec<Node> {
        let racks = racks.iter().enumerate().flat_map(|(rack, size)| (0..*size).map(move |_| rack));
        let node = |(number, rack): (usize, usize)| Node {
            name: format!("node-{number}"),
            resources: ResourceSpec::default(),
            attributes: Attributes::new([("rack".to_owned(), rack.to_string())]),
        };
        racks.enumerate().map(node).collect()
    }

    #[test]
    fn copies_are_on_different_nodes_and_in_two_racks_as_in_hdfs() {
        let racks = Racks::of(&nodes(&[4, 7, 2, 5]));
        let rack = |node: u32| racks.of[node as usize];
        let mut chance = Chance::new(1, "blocks");
        let mut held = [0_u32; 18];
        for _ in 0..6_000 {
            let copies = racks.draw(3, &mut chance);
            let [first, second, third] = copies[..] else { panic!("{copies:?}") };
            assert!(rack(first) != rack(second) && rack(second) == rack(third) && second != third, "{copies:?}");
            held[first as usize] += 1;
        }
        assert!(held.iter().all(|count| (240..430).contains(count)), "the first copy is on a random node: {held:?}");
    }

    #[test]
    fn copies_are_on_different_nodes_even_without_two_suitable_racks() {
        let mut chance = Chance::new(1, "blocks");
        for (sizes, replicas) in [(&[9][..], 3), (&[1, 1, 1], 3), (&[1, 8], 3), (&[2], 3), (&[3, 3], 5), (&[6, 1], 9)] {
            let nodes = nodes(sizes);
            let racks = Racks::of(&nodes);
            for _ in 0..300 {
                let mut copies = racks.draw(replicas, &mut chance);
                copies.sort_unstable();
                copies.dedup();
                assert_eq!(copies.len(), nodes.len().min(replicas as usize), "{sizes:?}");
            }
        }
    }

    #[test]
    fn the_whole_input_is_split_into_blocks() {
        let nodes = nodes(&[5, 5]);
        let (settings, racks) = (InputSettings { block_bytes: 100 << 10, ..SETTINGS }, Racks::of(&nodes));
        let sizes = [250, 0, 100, 1, 101];
        let draw = |seed| lay_out(&sizes, &settings, &racks, &nodes, &mut Chance::new(seed, "blocks"));
        let blocks = draw(1);
        assert_eq!(blocks.check(5), Ok(()));
        let of = |task| blocks.of(task).iter().map(|block| block.kib).collect::<Vec<u32>>();
        assert_eq!([0, 1, 2, 3, 4].map(of), [vec![100, 100, 50], vec![], vec![100], vec![1], vec![100, 1]]);
        assert_eq!(blocks, draw(1), "the same seed gives the same blocks");
        assert_ne!(blocks, draw(2));
    }

    #[test]
    fn a_block_is_read_from_the_nearest_node_that_is_up() {
        let nodes = nodes(&[2, 2]);
        let inputs = Inputs::new(SETTINGS, 1, &nodes, &mut []);
        let mut blocks = Blocks::on(["node-0", "node-2"].map(str::to_owned).to_vec());
        blocks.push([Block { kib: 10, at: vec![0, 1] }, Block { kib: 4, at: vec![1] }]).unwrap();
        let stage = StageSpec { reads: Reads::Blocks(blocks), ..StageSpec::default() };
        let kib = |node, down: usize| {
            inputs.read((0, 0), &stage, node, |other| other != down).unwrap().map(|bytes| bytes / 1_024)
        };
        assert_eq!([0, 1, 2, 3].map(|node| kib(node, 9)), [[10, 0, 4], [0, 10, 4], [14, 0, 0], [0, 14, 0]]);
        assert_eq!([0, 1, 3].map(|node| kib(node, 2)), [[10, 0, 4], [0, 10, 4], [0, 0, 14]]);
    }

    #[test]
    fn later_stages_read_from_the_nodes_that_ran_their_dependencies() {
        let nodes = nodes(&[2, 2]);
        let mut inputs = Inputs::new(SETTINGS, 1, &nodes, &mut []);
        for (index, node) in [(0, 0), (1, 0), (2, 1), (3, 3), (3, 2)] {
            inputs.on_succeeded(7, 0, index, node);
        }
        let (after, input_kib) = (vec![0], vec![400]);
        let stage = StageSpec { after, input_kib, reads: Reads::Before, ..StageSpec::default() };
        let kib = |node| inputs.read((7, 0), &stage, node, |_| true).unwrap().map(|bytes| bytes / 1_024);
        assert_eq!([0, 1, 2, 3].map(kib), [[200, 100, 100], [100, 200, 100], [0, 100, 300], [100, 0, 300]]);
    }

    #[test]
    fn nodes_without_racks_are_far_from_each_other() {
        let mut nodes = nodes(&[3]);
        nodes.iter_mut().for_each(|node| node.attributes = Attributes::default());
        let mut inputs = Inputs::new(SETTINGS, 1, &nodes, &mut []);
        inputs.on_succeeded(0, 0, 0, 0);
        inputs.on_succeeded(0, 0, 1, 1);
        let (after, input_kib) = (vec![0], vec![400]);
        let stage = StageSpec { after, input_kib, reads: Reads::Before, ..StageSpec::default() };
        let kib = |node| inputs.read((0, 0), &stage, node, |_| true).unwrap().map(|bytes| bytes / 1_024);
        assert_eq!([kib(0), kib(2)], [[200, 0, 200], [0, 0, 400]]);
    }

    #[test]
    fn reading_from_elsewhere_adds_the_extra_transfer_time() {
        let inputs = Inputs::new(SETTINGS, 1, &nodes(&[1]), &mut []);
        let longer = |megabytes: [u64; 3]| inputs.longer(&megabytes.map(|of| of * MB)).as_millis();
        assert_eq!([longer([1_600, 0, 0]), longer([0, 1_600, 0]), longer([0, 0, 1_600])], [0, 6_000, 10_000]);
        assert_eq!(longer([800, 400, 400]), 4_000);
    }
}
