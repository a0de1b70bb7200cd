//! Nodes for workloads, with attributes and different sizes, read from traces or drawn.
//!
//! Abstract constraints, such as the 21 of Sharma et al. (SoCC 2011) that Megha uses, are the attributes `c1`, `c2`,
//! ..: a node that meets the first has `c1=1`, and a task that requires it has the constraint `c1=1`.

use super::chance::{Distribution, Unit};
use super::demand::{cores, resources};
use super::error::WorkloadError;
use super::formats::fields;
use super::formats::openb::{GPU_MILLI, GpuUnit, gpu_unit};
use super::input;
use super::options::{Key, Values, whole};
use crate::quantities::Malformed;
use crate::suggest;
use amalgam_core::vocabulary::Chance;
use amalgam_core::vocabulary::resources::GPU;
use amalgam_core::vocabulary::{Attributes, ResourceSpec, Resources, WHOLE_GPU};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A node of a simulated cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub name: String,
    pub resources: ResourceSpec,
    pub attributes: Attributes,
}

/// The options of nodes.
pub const NODE_KEYS: [Key; 7] = [
    Key { name: "cpus", default: "1", meaning: "cores of a node, a distribution; openb has its own" },
    Key { name: "memory", default: "4GiB", meaning: "memory of a node, a distribution; openb has its own" },
    Key { name: "count", default: "", meaning: "draw N nodes with replacement from those of the file" },
    Key { name: "shares", default: "", meaning: "for drawn nodes: the share that meets c1, c2, .., such as 0.4,0.1" },
    Key { name: "racks", default: "", meaning: "number of racks of equal size; sets the attribute `rack`" },
    Key { name: "gpu-unit", default: "devices", meaning: "for openb: devices, or thousandths as gpu-milli" },
    Key { name: "seed", default: "1", meaning: "seed of all random numbers" },
];

/// The maximum number of nodes that can be drawn.
const MAX_NODES: usize = 1_000_000;

/// The name and the description of each format.
pub const NODE_FORMATS: [(&str, &str); 3] = [
    ("openb", "the node list of Alibaba's GPU trace of 2023 (openb_node_list*.csv)"),
    ("bit-vectors", "Megha's configurations: a bit for each constraint and node (.json)"),
    ("drawn", "drawn:COUNT, or only the count: nodes with drawn sizes and constraints"),
];
const FORMATS: [&str; 3] = [NODE_FORMATS[0].0, NODE_FORMATS[1].0, NODE_FORMATS[2].0];

/// Reads nodes: `openb:FILE` (the node list of Alibaba's GPU trace of 2023), `bit-vectors:FILE` (Megha's configuration:
/// a bit for each constraint and node), `drawn:COUNT` or only the count. Equal arguments give equal nodes.
///
/// # Errors
/// The format or an option is unknown, or the file cannot be read or is malformed.
pub fn read_nodes(nodes: &str, options: &[(String, String)]) -> Result<Vec<Node>, WorkloadError> {
    let values = Values::parse("node option", options, &[&NODE_KEYS])?;
    let sizes = Sizes {
        cpus: values.get("cpus", cores)?,
        memory: values.get("memory", |text| Distribution::parse(text, Unit::Memory))?,
    };
    let seed = values.get("seed", whole)?;
    let mut chance = Chance::new(seed, "nodes");
    let (format, path) = match nodes.split_once(':') {
        Some((format, path)) => (format, path),
        None if FORMATS.contains(&nodes) => (nodes, ""),
        None => ("drawn", nodes),
    };
    let mut nodes = match format {
        "openb" | "bit-vectors" if path.is_empty() => {
            return Err(WorkloadError::new(format!("the path is missing after `{format}`"), "write FORMAT:PATH"));
        }
        "openb" => openb(Path::new(path), values.get("gpu-unit", gpu_unit)?)?,
        "bit-vectors" => bit_vectors(Path::new(path), &sizes, &mut chance)?,
        "drawn" => {
            drawn(node_count(path).map_err(WorkloadError::from)?, &values.get("shares", shares)?, &sizes, &mut chance)
        }
        _ => return Err(unknown_format(format)),
    };
    if let Some(count) = values.optional("count", node_count)? {
        let mut chance = Chance::new(seed, "draw");
        nodes = (0..count)
            .map(|number| {
                let node = nodes[chance.below(nodes.len() as u64) as usize].clone();
                Node { name: format!("{}-{number}", node.name), ..node }
            })
            .collect();
    }
    if let Some(racks) = values.optional("racks", node_count)? {
        put_in_racks(&mut nodes, racks)?;
    }
    Ok(nodes)
}

/// Assigns the nodes to racks in their order.
fn put_in_racks(nodes: &mut [Node], racks: usize) -> Result<(), WorkloadError> {
    let count = nodes.len();
    if racks > count {
        let problem = format!("node option `racks`: {count} nodes cannot be in {racks} racks");
        return Err(WorkloadError::new(problem, "write at most as many racks as there are nodes"));
    }
    for (number, node) in nodes.iter_mut().enumerate() {
        let rack = ("rack".to_owned(), (number * racks / count).to_string());
        let others = node.attributes.iter().map(|other| (other.name.clone(), other.value.clone()));
        node.attributes = Attributes::new(others.chain([rack]).collect::<Vec<_>>());
    }
    Ok(())
}

fn unknown_format(format: &str) -> WorkloadError {
    let remedy = match suggest::closest(format, FORMATS) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("known: {}", FORMATS.join(", ")),
    };
    WorkloadError::new(format!("unknown format of nodes `{format}`"), remedy)
}

fn node_count(text: &str) -> Result<usize, Malformed> {
    text.parse().ok().filter(|count| (1..=MAX_NODES).contains(count)).ok_or_else(|| {
        let remedy = format!("write a count from 1 to {MAX_NODES}, or FORMAT:PATH with one of {}", FORMATS.join(", "));
        Malformed::new(format!("`{text}` is not a number of nodes"), remedy)
    })
}

struct Sizes {
    cpus: Distribution,
    memory: Distribution,
}

impl Sizes {
    fn draw(&self, chance: &mut Chance) -> ResourceSpec {
        resources(self.cpus.draw(chance), self.memory.draw(chance))
    }
}

fn openb(file: &Path, unit: GpuUnit) -> Result<Vec<Node>, WorkloadError> {
    let text = input::text(file)?;
    let rows = text.lines().enumerate().filter(|(_, line)| !line.starts_with("sn,"));
    let node = |(number, line): (usize, &str)| {
        openb_node(line, unit)
            .map_err(|problem| WorkloadError::in_file(file, format!("line {}: {problem}", number + 1)))
    };
    not_empty(file, rows.map(node).collect::<Result<_, _>>()?)
}

fn openb_node(line: &str, unit: GpuUnit) -> Result<Node, String> {
    let [name, cpu, memory, gpus, model] = fields::columns(line)?;
    let basic = Resources::new(fields::number(cpu, "the CPU")?, fields::number(memory, "the memory")?);
    let gpus: u32 = fields::number(gpus, "the number of GPUs")?;
    let resources = match unit {
        GpuUnit::Devices => ResourceSpec { basic: basic.with(GPU, gpus.saturating_mul(WHOLE_GPU)), custom: Vec::new() },
        GpuUnit::Thousandths => {
            ResourceSpec { basic, custom: vec![(GPU_MILLI.to_owned(), gpus.saturating_mul(1_000))] }
        }
    };
    let model = (!model.is_empty()).then(|| ("gpu-model".to_owned(), model.to_owned()));
    Ok(Node { name: name.to_owned(), resources, attributes: Attributes::new(model) })
}

/// `{"LMs": {"1": {"partitions": {"1": ["0b0110..", ..]}}}}`: a vector for each constraint of each partition of each
/// master, with a digit for each node.
#[derive(Deserialize)]
struct BitVectors {
    #[serde(rename = "LMs")]
    masters: BTreeMap<String, Master>,
}

#[derive(Deserialize)]
struct Master {
    partitions: BTreeMap<String, Vec<String>>,
}

fn bit_vectors(file: &Path, sizes: &Sizes, chance: &mut Chance) -> Result<Vec<Node>, WorkloadError> {
    let wrong = |problem: String| WorkloadError::in_file(file, problem);
    let vectors: BitVectors = serde_json::from_str(&input::text(file)?).map_err(|error| wrong(error.to_string()))?;
    let mut nodes = Vec::new();
    for (master, Master { partitions }) in &vectors.masters {
        for (partition, vectors) in partitions {
            let digits = |vector: &String| vector.strip_prefix("0b").map(|digits| digits.as_bytes().to_vec());
            let vectors: Option<Vec<Vec<u8>>> = vectors.iter().map(digits).collect();
            let vectors =
                vectors.ok_or_else(|| wrong(format!("partition {master}-{partition}: a vector without `0b`")))?;
            let count = vectors.first().map_or(0, Vec::len);
            if vectors.iter().any(|vector| vector.len() != count || vector.iter().any(|digit| !b"01".contains(digit))) {
                return Err(wrong(format!(
                    "partition {master}-{partition}: the vectors differ in length, or have other digits than 0 and 1"
                )));
            }
            nodes.extend((0..count).map(|number| Node {
                name: format!("{master}-{partition}-{number}"),
                resources: sizes.draw(chance),
                attributes: met(vectors.iter().map(|vector| vector[number] == b'1')),
            }));
        }
    }
    not_empty(file, nodes)
}

fn drawn(count: usize, shares: &[f64], sizes: &Sizes, chance: &mut Chance) -> Vec<Node> {
    let mut node = |number: usize| Node {
        name: format!("node-{number}"),
        resources: sizes.draw(chance),
        attributes: met(shares.iter().map(|share| chance.unit() < *share).collect::<Vec<_>>()),
    };
    (0..count).map(&mut node).collect()
}

/// The attributes of a node that meets these constraints, `c1` first.
fn met(constraints: impl IntoIterator<Item = bool>) -> Attributes {
    let numbered = (1..).zip(constraints).filter(|(_, is_met)| *is_met);
    Attributes::new(numbered.map(|(number, _)| (format!("c{number}"), "1".to_owned())))
}

fn shares(text: &str) -> Result<Vec<f64>, Malformed> {
    let share = |text: &str| {
        let share = text.trim().parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
        share.ok_or_else(|| Malformed::new(format!("`{text}` is not a share"), "write numbers from 0 to 1: `0.4,0.1`"))
    };
    text.split(',').filter(|text| !text.is_empty()).map(share).collect()
}

fn not_empty(file: &Path, nodes: Vec<Node>) -> Result<Vec<Node>, WorkloadError> {
    if nodes.is_empty() { Err(WorkloadError::in_file(file, "the file has no nodes")) } else { Ok(nodes) }
}
