//! Detects outages: many nodes of one rack, or of the cluster, that were healthy and fail within a short time.
//!
//! Machines that fail repeatedly are not counted: otherwise three of them in a rack would excuse each other
//! permanently. An outage counts against its rack only if another one happened not long before.

use super::{ONE, decayed};
use crate::vocabulary::{Duration, Instant, NodeId};
use std::collections::{BTreeMap, VecDeque};

/// A node whose failures have this weight or more was not healthy.
pub(super) const OWN_FAULT_AFTER: u64 = ONE / 2;
/// Minimum number of failed nodes in an outage.
const LEAST: u32 = 3;
/// One in this many nodes of a rack must have failed for an outage of the rack.
const OF_RACK: u32 = 4;
/// One in this many nodes of the cluster must have failed for an outage of the cluster: some nodes always fail.
const OF_ALL: u32 = 1_000;
/// Maximum number of outages that are kept for a rack. The oldest are dropped.
const MOST: usize = 8;

/// Index of the group of all nodes.
const ALL: usize = 0;

#[derive(Clone, Debug)]
pub(super) struct Outages {
    /// The group of all nodes, then one group for each rack.
    groups: Vec<Group>,
    by_rack: BTreeMap<String, usize>,
    /// By number of the node.
    nodes: Vec<Member>,
    /// Nodes that were healthy and failed recently, each once, oldest failure first.
    lately: VecDeque<(Instant, NodeId)>,
}

#[derive(Clone, Default, Debug)]
struct Group {
    nodes: u32,
    /// Number of nodes that failed recently.
    failed: u32,
    /// Times of its outages, oldest first.
    outages: Vec<Instant>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Member {
    has_joined: bool,
    /// Index of its rack's group; [`ALL`] if it is in no rack.
    rack: usize,
    failed_lately: bool,
}

impl Default for Outages {
    fn default() -> Outages {
        let groups = vec![Group::default()];
        Outages { groups, by_rack: BTreeMap::new(), nodes: Vec::new(), lately: VecDeque::new() }
    }
}

impl Group {
    fn is_out(&self, one_in: u32) -> bool {
        self.failed >= LEAST.max(self.nodes.div_ceil(one_in))
    }
}

impl Outages {
    fn member(&mut self, node: NodeId) -> &mut Member {
        let index = node.0 as usize;
        if self.nodes.len() <= index {
            self.nodes.resize_with(index + 1, Member::default);
        }
        &mut self.nodes[index]
    }

    pub(super) fn on_join(&mut self, node: NodeId, rack: Option<&str>) {
        let place = rack.map_or(ALL, |rack| match self.by_rack.get(rack) {
            Some(place) => *place,
            None => {
                self.groups.push(Group::default());
                self.by_rack.insert(rack.to_owned(), self.groups.len() - 1);
                self.groups.len() - 1
            }
        });
        let was = *self.member(node);
        if !was.has_joined {
            self.groups[ALL].nodes += 1;
        }
        if was.rack != place {
            let failed = u32::from(was.failed_lately);
            if was.rack != ALL {
                self.groups[was.rack].nodes -= 1;
                self.groups[was.rack].failed -= failed;
            }
            if place != ALL {
                self.groups[place].nodes += 1;
                self.groups[place].failed += failed;
            }
        }
        *self.member(node) = Member { has_joined: true, rack: place, ..was };
    }

    /// The groups of a node. An outage of a group requires that one in N of its nodes failed; N is the second value.
    fn groups_of(&self, node: NodeId) -> impl Iterator<Item = (usize, u32)> + use<> {
        let rack = self.nodes[node.0 as usize].rack;
        [(ALL, OF_ALL), (rack, OF_RACK)].into_iter().take(if rack == ALL { 1 } else { 2 })
    }

    /// Returns the nodes whose failures are part of an outage, as far as this failure shows.
    pub(super) fn on_failure(&mut self, now: Instant, node: NodeId, was_well: bool, together: Duration) -> Vec<NodeId> {
        self.advance(now, together);
        let is_new = !self.member(node).failed_lately && was_well;
        let mut excused = Vec::new();
        for (group, one_in) in self.groups_of(node) {
            let was_out = self.groups[group].is_out(one_in);
            self.groups[group].failed += u32::from(is_new);
            let is_out = self.groups[group].is_out(one_in);
            if is_out {
                excused.push(node);
            }
            if is_out && !was_out {
                self.start_outage(now, group);
                let others = self.lately.iter().map(|(_, other)| *other);
                excused.extend(others.filter(|other| group == ALL || self.nodes[other.0 as usize].rack == group));
            }
        }
        if is_new {
            self.member(node).failed_lately = true;
            self.lately.push_back((now, node));
        }
        excused.sort_unstable();
        excused.dedup();
        excused
    }

    fn start_outage(&mut self, now: Instant, group: usize) {
        let outages = &mut self.groups[group].outages;
        if outages.len() == MOST {
            outages.remove(0);
        }
        outages.push(now);
    }

    fn advance(&mut self, now: Instant, together: Duration) {
        while let Some((_, node)) = self.lately.pop_front_if(|(at, _)| now.since(*at) >= together) {
            self.member(node).failed_lately = false;
            for (group, _) in self.groups_of(node) {
                self.groups[group].failed -= 1;
            }
        }
    }

    /// Weight against a node of its rack's outages, without the last one.
    pub(super) fn again(&self, now: Instant, node: NodeId, half_life: Duration) -> u64 {
        let rack = self.nodes.get(node.0 as usize).map_or(ALL, |member| member.rack);
        if rack == ALL || self.groups[rack].outages.len() < 2 {
            return 0;
        }
        let (_, before) = self.groups[rack].outages.split_last().expect("there are two");
        before.iter().map(|at| decayed(ONE, now.since(*at), half_life)).sum()
    }
}
