//! The queues of a seed. Every single task fits in their limits.

use super::draws::{is_one_in, one_of};
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::vocabulary::{Chance, Duration, QueueId, QueueSpec};

/// In millionths.
const WHOLE: u32 = 1_000_000;

/// The guarantee of each queue with children, in millionths.
const GUARANTEED: u32 = 200_000;

/// Up to three queues, some of which have two children. `least` is the smallest share in which every task fits.
pub fn queues(least: u32, chance: &mut Chance) -> QueueTree {
    let mut specs = Vec::new();
    for number in 0..chance.below(4_u64) {
        let name = format!("root.q{number}");
        if is_one_in(3, chance) {
            specs.push(QueueSpec {
                weight: weight(chance),
                guaranteed: GUARANTEED,
                maximum: share(least, chance).max(GUARANTEED),
                ..QueueSpec::named(&name)
            });
            specs.extend(["a", "b"].map(|child| leaf(&format!("{name}.{child}"), GUARANTEED / 2, least, chance)));
        } else {
            specs.push(leaf(&name, GUARANTEED, least, chance));
        }
    }
    QueueTree::new(specs).expect("drawn queues are valid")
}

/// The same queues without limits, each leaf with a home global master, and most with a share: half or all of what the
/// queues before it left of the cluster.
pub fn with_shares(queues: &QueueTree, globals: u8, chance: &mut Chance) -> QueueTree {
    let mut left = WHOLE;
    let mut specs: Vec<QueueSpec> =
        (0..queues.len() as u32).map(|number| queues.spec(QueueId(number)).clone()).collect();
    let is_leaf = |number: &usize| queues.children(QueueId(*number as u32)).is_empty();
    for number in (0..specs.len()).rev() {
        let children = queues.children(QueueId(number as u32));
        let of_children: u32 = children.iter().map(|child| specs[*child as usize].guaranteed).sum();
        let spec = &mut specs[number];
        if is_leaf(&number) {
            spec.guaranteed = one_of(chance, &[0, left / 2, left / 2, left]);
            left -= spec.guaranteed;
        } else {
            spec.guaranteed = if number == 0 { WHOLE } else { of_children };
        }
        spec.maximum = WHOLE;
        spec.user_limit = WHOLE;
        spec.global = is_leaf(&number).then(|| chance.below(u64::from(globals)) as u8);
    }
    QueueTree::new(specs).expect("the tree is the same")
}

/// The same queues, each leaf guaranteed nothing, half or all of what the queues before it left of the cluster, up to its maximum.
pub fn with_guarantees(queues: &QueueTree, chance: &mut Chance) -> QueueTree {
    let mut left = WHOLE;
    let mut specs: Vec<QueueSpec> =
        (0..queues.len() as u32).map(|number| queues.spec(QueueId(number)).clone()).collect();
    for number in (0..specs.len()).rev() {
        let children = queues.children(QueueId(number as u32));
        let of_children: u32 = children.iter().map(|child| specs[*child as usize].guaranteed).sum();
        let spec = &mut specs[number];
        if children.is_empty() {
            spec.guaranteed = one_of(chance, &[0, left / 2, left / 2, left]).min(spec.maximum);
            left -= spec.guaranteed;
        } else if number > 0 {
            spec.maximum = spec.maximum.max(of_children);
            spec.guaranteed = of_children;
        }
    }
    QueueTree::new(specs).expect("the tree is the same")
}

fn leaf(name: &str, guaranteed: u32, least: u32, chance: &mut Chance) -> QueueSpec {
    let maximum = share(least, chance);
    QueueSpec {
        weight: weight(chance),
        guaranteed: one_of(chance, &[0, guaranteed]).min(maximum),
        maximum,
        user_limit: share(least, chance),
        max_running_jobs: one_of(chance, &[None, Some(1), Some(2)]),
        default_timeout: one_of(chance, &[None, Some(Duration::from_secs(20))]),
        ..QueueSpec::named(name)
    }
}

fn weight(chance: &mut Chance) -> u32 {
    one_of(chance, &[500, 1_000, 3_000])
}

/// A share from `least` up to the whole cluster.
fn share(least: u32, chance: &mut Chance) -> u32 {
    one_of(chance, &[0, 300_000, 600_000, 1_000_000]).max(least)
}

/// The names of the queues that accept jobs.
pub fn leaves(queues: &QueueTree) -> Vec<&str> {
    let all = (0..queues.len() as u32).map(QueueId);
    let leaves = all.filter(|queue| queues.children(*queue).is_empty());
    leaves.map(|queue| queues.spec(queue).name.as_str()).collect()
}
