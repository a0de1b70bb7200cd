//! The nodes of a seed, and the shapes of its tasks. Each shape fits on some node.

use super::draws::{is_one_in, one_of};
use amalgam_core::vocabulary::resources::{GPU, WIDTH};
use amalgam_core::vocabulary::{Attributes, Chance, Constraint, ResourceSpec, Resources, WHOLE_GPU};
use amalgam_workload::trace::Node;

/// GPU requests of tasks, in thousandths.
const GPUS: [u32; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 250, 400, 600, 1_000, 1_000];
/// Custom kinds of resources.
const CUSTOM: [&str; 3] = ["licence", "fpga", "port"];
/// A built-in kind beside CPU, memory and GPU.
const NETWORK_IN: usize = 4;

pub fn nodes(chance: &mut Chance) -> Vec<Node> {
    let kinds = if is_one_in(3, chance) { &CUSTOM[..] } else { &[] };
    (0..1 + chance.below(6_u64)).map(|number| node(number, kinds, chance)).collect()
}

fn node(number: u64, kinds: &[&str], chance: &mut Chance) -> Node {
    let basic = Resources::new(1_000 * (1 + chance.below(4_u32)), 1_024 << chance.below(3_u64))
        .with(GPU, chance.below(3_u32) * WHOLE_GPU)
        .with(NETWORK_IN, one_of(chance, &[0, 100]));
    let has = kinds.iter().filter(|_| is_one_in(2, chance)).copied().collect::<Vec<_>>();
    let custom = has.into_iter().map(|kind| (kind.to_owned(), 1 + chance.below(3_u32))).collect();
    let attributes =
        [("zone", one_of(chance, &["a", "b"])), ("kernel", one_of(chance, &["4.18", "5.10", "6.1", "6.12"]))];
    Node {
        name: format!("host{number}"),
        resources: ResourceSpec { basic, custom },
        attributes: Attributes::new(attributes.map(|(name, value)| (name.to_owned(), value.to_owned()))),
    }
}

pub struct Shape {
    pub resources: ResourceSpec,
    pub constraints: Vec<Constraint>,
}

pub fn shapes(nodes: &[Node], chance: &mut Chance) -> Vec<Shape> {
    (0..1 + chance.below(4_u64)).map(|_| shape(&nodes[chance.below(nodes.len() as u64) as usize], chance)).collect()
}

/// A shape that this node could run if it were empty.
fn shape(host: &Node, chance: &mut Chance) -> Shape {
    let basic = Resources::new(250 * (1 + chance.below(6_u32)), 128 * chance.below(8_u32))
        .with(GPU, one_of(chance, &GPUS))
        .with(NETWORK_IN, one_of(chance, &[0, 0, 0, 60]));
    let mut custom = host.resources.custom.clone();
    custom.retain_mut(|(_, amount)| {
        *amount = 1 + chance.below(*amount);
        is_one_in(2, chance)
    });
    let attribute = |name: &str| host.attributes.get(name).unwrap_or_default();
    let constraints = match chance.below(6_u64) {
        0 => vec![format!("zone={}", attribute("zone"))],
        1 => vec![format!("kernel>={}", attribute("kernel"))],
        2 => vec![format!("zone!={}", if attribute("zone") == "a" { "b" } else { "a" }), "kernel<6.99".to_owned()],
        _ => Vec::new(),
    };
    let parse = |text: &String| Constraint::parse(text).expect("drawn constraints are well-formed");
    Shape {
        resources: ResourceSpec { basic: smaller_of(&basic, &host.resources.basic), custom },
        constraints: constraints.iter().map(parse).collect(),
    }
}

/// Makes some tasks need a whole node, so that they wait for it while smaller tasks run.
pub fn enlarge(shapes: &mut [Shape], nodes: &[Node], chance: &mut Chance) {
    let host = &nodes[chance.below(nodes.len() as u64) as usize];
    let runs_anywhere = |shape: &&mut Shape| shape.constraints.is_empty() && shape.resources.custom.is_empty();
    if let Some(shape) = shapes.iter_mut().find(runs_anywhere).filter(|_| is_one_in(3, chance)) {
        shape.resources.basic = host.resources.basic;
    }
}

fn smaller_of(a: &Resources, b: &Resources) -> Resources {
    let mut smaller = *a;
    smaller.0.iter_mut().zip(b.0).for_each(|(amount, other)| *amount = other.min(*amount));
    smaller
}

/// The smallest share of the cluster in which every task fits, in millionths. A queue with a smaller share could never
/// run some task.
pub fn least_share(nodes: &[Node], shapes: &[Shape]) -> u32 {
    let share = |wanted: u32, total: u64| (u64::from(wanted) * 1_000_000).div_ceil(total.max(1));
    let basic = |shape: &Shape, kind: usize| {
        let total = nodes.iter().map(|node| u64::from(node.resources.basic.0[kind])).sum();
        share(shape.resources.basic.0[kind], total)
    };
    let custom = |(name, wanted): &(String, u32)| {
        let offers = nodes.iter().flat_map(|node| &node.resources.custom).filter(|(kind, _)| kind == name);
        share(*wanted, offers.map(|(_, amount)| u64::from(*amount)).sum())
    };
    let shares = shapes.iter().flat_map(|shape| {
        (0..WIDTH).map(move |kind| basic(shape, kind)).chain(shape.resources.custom.iter().map(custom))
    });
    shares.max().unwrap_or(0) as u32
}
