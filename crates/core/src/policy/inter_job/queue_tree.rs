//! The tree of configured queues: leaves accept jobs, limits apply to whole branches.

use crate::vocabulary::{Named, QueueId, QueueSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// The whole of a share, in millionths.
pub(super) const WHOLE: u32 = 1_000_000;

/// The tree of configured queues; `QueueId` 0 is the root.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QueueTree {
    specs: Vec<QueueSpec>,
    parents: Vec<Option<u32>>,
    children: Vec<Vec<u32>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueTreeError {
    /// The name of the invalid queue.
    pub queue: String,
    pub problem: String,
    pub remedy: String,
}

impl QueueTree {
    /// The queue of jobs that name none, if it is there.
    pub const DEFAULT: &str = "root.default";

    /// The root and one leaf, `root.default`.
    pub fn single() -> QueueTree {
        QueueTree::new(Vec::new()).expect("the default tree is well-formed")
    }

    /// Builds the tree; adds the root, and `root.default` if there is no leaf.
    ///
    /// # Errors
    /// Names the queue that has no parent, is configured twice, or is guaranteed more than its parent.
    pub fn new(mut specs: Vec<QueueSpec>) -> Result<QueueTree, QueueTreeError> {
        specs.sort_by(|a, b| a.name.cmp(&b.name));
        if specs.first().is_none_or(|first| first.name != "root") {
            specs.insert(0, QueueSpec::named("root"));
        }
        if specs.len() == 1 {
            specs.push(QueueSpec::named(QueueTree::DEFAULT));
        }
        let mut tree = QueueTree { parents: vec![None], children: vec![Vec::new()], specs: vec![specs[0].clone()] };
        for spec in specs.into_iter().skip(1) {
            tree.add(spec)?;
        }
        for (index, spec) in tree.specs.iter().enumerate() {
            let granted: u64 = tree.children[index].iter().map(|&c| u64::from(tree.specs[c as usize].guaranteed)).sum();
            let is_inner = !tree.children[index].is_empty();
            let of_leaves =
                spec.user_limit < WHOLE || spec.max_running_jobs.is_some() || spec.default_timeout.is_some();
            if is_inner && of_leaves {
                return Err(wrong(
                    spec,
                    "holds other queues and takes no jobs",
                    "set user_limit, max_running_jobs and default_timeout on the queues below it",
                ));
            }
            if granted > u64::from(spec.guaranteed) {
                let (granted, own) = (granted as f64 / 1e4, f64::from(spec.guaranteed) / 1e4);
                let problem = format!("is guaranteed {own:.1} %, but the queues below it {granted:.1} % in total");
                return Err(wrong(spec, &problem, "raise its guarantee, or lower theirs"));
            }
        }
        Ok(tree)
    }

    /// The tree with these queues instead, which may have other limits. Queues keep their numbers, and new ones get the next
    /// numbers.
    ///
    /// # Errors
    /// As for [`QueueTree::new`]; and if a queue is missing, or differs in what cannot change while jobs are in it.
    pub fn changed(&self, specs: Vec<QueueSpec>) -> Result<QueueTree, QueueTreeError> {
        let wanted = QueueTree::new(specs)?;
        let fixed = "; this can change only while the server is stopped";
        for (known, children) in self.specs.iter().zip(&self.children) {
            let Some(found) = wanted.find(&known.name) else {
                return Err(wrong(known, &format!("is missing{fixed}"), "keep it, or restart the server"));
            };
            let spec = wanted.spec(found);
            if (&spec.preset, spec.global) != (&known.preset, known.global) {
                let problem = format!("has another preset or global master{fixed}");
                return Err(wrong(known, &problem, "restore the value, or restart the server"));
            }
            if children.is_empty() && !wanted.children(found).is_empty() {
                let problem = format!("takes jobs, and would hold other queues{fixed}");
                return Err(wrong(known, &problem, "add the queue elsewhere, or restart the server"));
            }
        }
        let is_new = |spec: &&QueueSpec| self.find(&spec.name).is_none();
        // In the order of names, parents come before their children.
        let names = self.specs.iter().chain(wanted.specs.iter().filter(is_new)).map(|spec| spec.name.as_str());
        let mut tree = QueueTree { specs: Vec::new(), parents: Vec::new(), children: Vec::new() };
        for name in names {
            let found = wanted.find(name).expect("all names are of the wanted queues");
            let index = tree.specs.len() as u32;
            let parent = wanted.parent(found).and_then(|parent| tree.find(&wanted.spec(parent).name));
            if let Some(parent) = parent {
                tree.children[parent.0 as usize].push(index);
            }
            tree.parents.push(parent.map(|parent| parent.0));
            tree.children.push(Vec::new());
            tree.specs.push(wanted.spec(found).clone());
        }
        Ok(tree)
    }

    /// All queues, by number.
    pub fn specs(&self) -> &[QueueSpec] {
        &self.specs
    }

    fn add(&mut self, spec: QueueSpec) -> Result<(), QueueTreeError> {
        if self.find(&spec.name).is_some() {
            return Err(wrong(&spec, "is configured twice", "keep one of them"));
        }
        let (parent_name, own_name) = spec.name.rsplit_once('.').unwrap_or(("", &spec.name));
        if let Err(wrong) = Named::Queue.check(own_name) {
            let remedy = format!("{}; for example `root.research`, with one name after each dot", wrong.remedy);
            return Err(QueueTreeError { queue: spec.name, problem: wrong.problem, remedy });
        }
        let Some(parent) = self.find(parent_name) else {
            let parent = if parent_name.is_empty() { "root" } else { parent_name };
            let remedy = format!("configure `{parent}` as well, or name it `root.{own_name}`");
            return Err(wrong(&spec, "has no parent", &remedy));
        };
        if spec.weight == 0 {
            return Err(wrong(&spec, "has weight 0", "set it to at least 0.001"));
        }
        if spec.guaranteed > spec.maximum {
            return Err(wrong(&spec, "is guaranteed more than its maximum", "lower `guaranteed`, or raise `maximum`"));
        }
        let index = self.specs.len() as u32;
        self.children[parent.0 as usize].push(index);
        self.parents.push(Some(parent.0));
        self.children.push(Vec::new());
        self.specs.push(spec);
        Ok(())
    }

    pub fn find(&self, name: &str) -> Option<QueueId> {
        self.specs.iter().position(|spec| spec.name == name).map(|index| QueueId(index as u32))
    }

    /// The leaf for the name in a job file: a full name, a name below the root, or empty for the default.
    ///
    /// # Errors
    /// A sentence that lists the existing queues.
    pub fn leaf(&self, name: &str) -> Result<QueueId, String> {
        let found = match name {
            "" => self.find(QueueTree::DEFAULT).or_else(|| self.leaves().next()),
            _ => self.find(name).or_else(|| self.find(&format!("root.{name}"))),
        };
        match found {
            Some(queue) if self.children[queue.0 as usize].is_empty() => Ok(queue),
            Some(queue) => Err(format!(
                "queue `{}` holds other queues and takes no jobs; use one of: {}",
                self.spec(queue).name,
                self.leaf_names()
            )),
            None => Err(format!("queue `{name}` not found; use one of: {}", self.leaf_names())),
        }
    }

    /// Checks that the queues are valid for a federation with this many global masters, each of which counts only its
    /// own jobs.
    ///
    /// # Errors
    /// Names the first queue that is invalid.
    pub fn check_federated(&self, globals: u8) -> Result<(), QueueTreeError> {
        let last = globals.saturating_sub(1);
        for (number, spec) in (0..).zip(&self.specs) {
            if let Some(global) = spec.global.filter(|global| *global > last) {
                let problem = format!("is assigned to global master {global}");
                return Err(wrong(spec, &problem, &format!("use a global master from 0 to {last}")));
            }
            let is_limited = spec.maximum < WHOLE || spec.user_limit < WHOLE || spec.max_running_jobs.is_some();
            if is_limited && globals > 1 && !self.is_at_one_global(QueueId(number)) {
                let problem = "has a limit, but jobs at several global masters, each of which counts only its own jobs";
                return Err(wrong(spec, problem, "assign it to one of them with `global`, or remove the limit"));
            }
        }
        Ok(())
    }

    /// Whether all leaves at or below the queue are assigned to the same global master.
    fn is_at_one_global(&self, queue: QueueId) -> bool {
        let is_below = |leaf: &QueueId| {
            let mut chain = std::iter::successors(Some(*leaf), |next| self.parent(*next));
            chain.any(|next| next == queue)
        };
        let leaves = (0..self.len() as u32).map(QueueId).filter(|leaf| self.children(*leaf).is_empty());
        let homes: BTreeSet<Option<u8>> = leaves.filter(is_below).map(|leaf| self.global_of(leaf)).collect();
        homes.len() == 1 && !homes.contains(&None)
    }

    /// The global master of the leaf for a name in a job file.
    pub fn home(&self, name: &str) -> Option<usize> {
        self.global_of(self.leaf(name).ok()?).map(usize::from)
    }

    /// The global master of the queue, or of the nearest queue above it that has one.
    pub fn global_of(&self, queue: QueueId) -> Option<u8> {
        let mut next = Some(queue);
        while let Some(queue) = next {
            if let Some(global) = self.spec(queue).global {
                return Some(global);
            }
            next = self.parent(queue);
        }
        None
    }

    pub(super) fn leaves(&self) -> impl Iterator<Item = QueueId> {
        (0..self.specs.len()).filter(|&index| self.children[index].is_empty()).map(|index| QueueId(index as u32))
    }

    fn leaf_names(&self) -> String {
        self.leaves().map(|queue| self.spec(queue).name.as_str()).collect::<Vec<_>>().join(", ")
    }

    pub fn spec(&self, queue: QueueId) -> &QueueSpec {
        &self.specs[queue.0 as usize]
    }

    /// The preset of the queue's jobs: its own, or that of the nearest queue above it that has one.
    pub fn preset(&self, queue: QueueId) -> Option<&str> {
        let above = std::iter::successors(Some(queue), |queue| self.parent(*queue));
        above.filter_map(|queue| self.spec(queue).preset.as_deref()).next()
    }

    /// All presets that queues name.
    pub fn presets(&self) -> impl Iterator<Item = &str> {
        self.specs.iter().filter_map(|spec| spec.preset.as_deref())
    }

    pub fn len(&self) -> usize {
        self.specs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    pub fn parent(&self, queue: QueueId) -> Option<QueueId> {
        self.parents[queue.0 as usize].map(QueueId)
    }

    pub fn children(&self, queue: QueueId) -> &[u32] {
        &self.children[queue.0 as usize]
    }

    /// The queue's part of the cluster, in millionths, if all active queues want more: what it is guaranteed, or its part by
    /// weight if that is more. The queue counts as active.
    pub fn part_of_cluster(&self, queue: QueueId, is_active: &impl Fn(QueueId) -> bool) -> u64 {
        let Some(parent) = self.parent(queue) else { return u64::from(WHOLE) };
        let siblings = self.children(parent).iter().map(|&sibling| QueueId(sibling));
        let mut by_weight: Vec<QueueId> = siblings.filter(|&sibling| sibling == queue || is_active(sibling)).collect();
        let mut left = self.part_of_cluster(parent, is_active);
        let guaranteed = |queue: QueueId| u64::from(self.spec(queue).guaranteed);
        loop {
            let weights: u64 = by_weight.iter().map(|&one| u64::from(self.spec(one).weight)).sum();
            let part = |queue: QueueId| left * u64::from(self.spec(queue).weight) / weights.max(1);
            let Some(at) = by_weight.iter().position(|&one| part(one) < guaranteed(one)) else { return part(queue) };
            let one = by_weight.swap_remove(at);
            if one == queue {
                return guaranteed(one);
            }
            left = left.saturating_sub(guaranteed(one));
        }
    }

    /// The queue's part of an amount by weight, among active siblings. The queue counts as active.
    pub fn part_by_weight(&self, queue: QueueId, amount: u64, is_active: impl Fn(QueueId) -> bool) -> u64 {
        let mut part = u128::from(amount);
        let mut next = queue;
        while let Some(parent) = self.parent(next) {
            let siblings = self.children(parent).iter().map(|&queue| QueueId(queue));
            let weight = |queue: QueueId| u128::from(self.spec(queue).weight);
            let active = siblings.filter(|&queue| queue == next || is_active(queue));
            part = part * weight(next) / active.map(weight).sum::<u128>();
            next = parent;
        }
        u64::try_from(part).expect("a part of an amount")
    }
}

impl QueueSpec {
    /// A queue without a guarantee or limits; the root is guaranteed everything.
    pub fn named(name: &str) -> QueueSpec {
        QueueSpec {
            name: name.to_owned(),
            weight: 1_000,
            guaranteed: if name == "root" { WHOLE } else { 0 },
            maximum: WHOLE,
            user_limit: WHOLE,
            max_running_jobs: None,
            default_timeout: None,
            preset: None,
            global: None,
        }
    }
}

fn wrong(spec: &QueueSpec, problem: &str, remedy: &str) -> QueueTreeError {
    let QueueSpec { name, .. } = spec;
    QueueTreeError { queue: name.clone(), problem: format!("queue `{name}` {problem}"), remedy: remedy.to_owned() }
}

impl fmt::Display for QueueTreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}

impl std::error::Error for QueueTreeError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, guaranteed: u32, maximum: u32) -> QueueSpec {
        QueueSpec { guaranteed, maximum, ..QueueSpec::named(name) }
    }

    #[test]
    fn a_queue_has_its_guarantee_or_its_part_by_weight_if_that_is_more() {
        let by = |name, guaranteed, weight| QueueSpec { weight, ..spec(name, guaranteed, WHOLE) };
        let specs = vec![
            by("root.a", 500_000, 1_000),
            by("root.b", 0, 3_000),
            by("root.c", 0, 1_000),
            by("root.b.x", 0, 1_000),
        ];
        let tree = QueueTree::new(specs).unwrap();
        let parts = |active: &[&str]| {
            let active: Vec<QueueId> = active.iter().map(|name| tree.find(name).unwrap()).collect();
            let is_active = |queue: QueueId| active.contains(&queue);
            active.iter().map(|queue| tree.part_of_cluster(*queue, &is_active)).collect::<Vec<_>>()
        };
        assert_eq!(parts(&["root.a", "root.b", "root.c"]), [500_000, 375_000, 125_000]);
        assert_eq!(parts(&["root.a", "root.c"]), [500_000, 500_000], "its weight gives it as much as its guarantee");
        assert_eq!(parts(&["root.b", "root.c"]), [750_000, 250_000]);
        assert_eq!(parts(&["root.b", "root.b.x", "root.a"]), [500_000, 500_000, 500_000], "all of the one above it");
    }

    #[test]
    fn changed_queues_keep_their_numbers_and_what_cannot_change_is_named() {
        let tree = QueueTree::new(vec![spec("root.a", 0, WHOLE), spec("root.c", 0, WHOLE)]).unwrap();
        let more = vec![spec("root.a", 100_000, WHOLE), spec("root.b", 0, WHOLE), spec("root.c", 0, 500_000)];
        let changed = tree.changed(more).unwrap();
        let names: Vec<&str> = changed.specs().iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["root", "root.a", "root.c", "root.b"]);
        assert_eq!((changed.children(QueueId(0)), changed.parent(QueueId(3))), (&[1, 2, 3][..], Some(QueueId(0))));
        assert_eq!((changed.spec(QueueId(1)).guaranteed, changed.spec(QueueId(2)).maximum), (100_000, 500_000));
        let refused = |specs: Vec<QueueSpec>| changed.changed(specs).unwrap_err().to_string();
        let named = |names: &[&str]| names.iter().map(|name| spec(name, 0, WHOLE)).collect::<Vec<_>>();
        assert!(refused(named(&["root.a", "root.b"])).contains("`root.c` is missing"));
        assert!(refused(named(&["root.a", "root.a.x", "root.b", "root.c"])).contains("`root.a` takes jobs"));
        let preset = QueueSpec { preset: Some("fifo".to_owned()), ..spec("root.a", 0, WHOLE) };
        assert!(refused(vec![preset, spec("root.b", 0, WHOLE), spec("root.c", 0, WHOLE)]).contains("another preset"));
    }

    #[test]
    fn queues_find_their_parents_and_invalid_ones_are_refused() {
        let tree = QueueTree::new(vec![spec("root.a.x", 0, WHOLE), spec("root.a", 0, WHOLE), spec("root.b", 0, WHOLE)])
            .unwrap();
        assert_eq!(tree.leaf("a.x"), Ok(tree.find("root.a.x").unwrap()));
        assert!(tree.leaf("a").unwrap_err().contains("takes no jobs"));
        assert!(tree.leaf("c").unwrap_err().contains("root.a.x, root.b"));
        let wrong = |specs| QueueTree::new(specs).unwrap_err().to_string();
        assert!(wrong(vec![spec("root.a.x", 0, WHOLE)]).contains("has no parent"));
        assert!(wrong(vec![spec("root.a", 600_000, WHOLE), spec("root.b", 600_000, WHOLE)]).contains("120.0 %"));
        assert!(wrong(vec![spec("root.a", 600_000, 500_000)]).contains("more than its maximum"));
        assert!(wrong(vec![spec("root.a", 0, WHOLE), spec("root.a", 0, WHOLE)]).contains("twice"));
    }

    #[test]
    fn in_a_federation_a_limit_belongs_to_one_global_master() {
        let limits: [fn(&mut QueueSpec); 3] =
            [|spec| spec.maximum = 500_000, |spec| spec.user_limit = 500_000, |spec| spec.max_running_jobs = Some(3)];
        for limit in limits {
            let with = |of: &str, global: Option<u8>| {
                let mut specs = ["root.a", "root.a.x", "root.b"].map(|name| spec(name, 0, WHOLE));
                specs[0].global = global;
                specs.iter_mut().filter(|spec| spec.name == of).for_each(limit);
                let tree = QueueTree::new(specs.to_vec()).unwrap();
                (tree.check_federated(2).is_ok(), tree.check_federated(1).is_ok())
            };
            assert_eq!(with("root.a.x", None), (false, true));
            assert_eq!(with("root.a.x", Some(0)), (true, true), "inherited from the queue above");
            assert_eq!(with("root.b", Some(0)), (false, true));
            assert_eq!(with("root.a.x", Some(1)), (true, false), "there is only one global master");
        }
        let maximum_of_a = |own: Option<u8>, below: [Option<u8>; 2]| {
            let leaf = |name: &str, global| QueueSpec { global, ..spec(name, 0, WHOLE) };
            let above = QueueSpec { global: own, ..spec("root.a", 0, 500_000) };
            let tree = QueueTree::new(vec![above, leaf("root.a.x", below[0]), leaf("root.a.y", below[1])]).unwrap();
            tree.check_federated(2).is_ok()
        };
        assert!(maximum_of_a(None, [Some(1), Some(1)]) && maximum_of_a(Some(0), [None, Some(0)]));
        for (own, below) in [(Some(0), [Some(1), None]), (None, [Some(1), None]), (None, [Some(0), Some(1)])] {
            assert!(!maximum_of_a(own, below), "{own:?} {below:?}");
        }
    }
}
