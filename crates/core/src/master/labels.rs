//! Duty: the labels of nodes. Operators set them beside the attributes that agents report, or in place of them.

use super::Master;
use crate::dispatch::refuse;
use crate::protocol::{RefusalKind, ToClient};
use crate::role::{Change, Outbox};
use crate::vocabulary::{Attributes, ClientId, Instant, NO_TAINT, Named, NodeId, TAINT};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most labels of a node.
const MOST_LABELS: usize = 64;

/// The labels of a node.
#[derive(Default)]
pub(super) struct Labels {
    set: Attributes,
    /// The attributes of its agent, without labels.
    reported: Arc<Attributes>,
}

impl Labels {
    pub(super) fn set(&self) -> &Attributes {
        &self.set
    }

    fn all(&self) -> Arc<Attributes> {
        let mut all = by_name(&self.reported);
        all.extend(by_name(&self.set));
        Arc::new(all.into())
    }
}

fn by_name(attributes: &Attributes) -> BTreeMap<String, String> {
    attributes.iter().map(|pair| (pair.name.clone(), pair.value.clone())).collect()
}

impl Master {
    /// The attributes that its agent reports, with its labels.
    pub(super) fn labelled(&mut self, node: NodeId, reported: Attributes) -> Arc<Attributes> {
        let reported = Arc::new(reported);
        match self.nodes.labels_mut(node) {
            None => reported,
            Some(labels) => {
                labels.reported = reported;
                labels.all()
            }
        }
    }

    /// The node has exactly these labels.
    pub(super) fn set_labels(&mut self, node: NodeId, set: Attributes) {
        self.dispatch.rooms.expect_node(node);
        let labels = self.nodes.labels_mut(node);
        let before = labels.take().map(|labels| labels.reported);
        let reported = before.unwrap_or_else(|| Arc::clone(self.dispatch.rooms.attributes(node)));
        let is_empty = set.iter().next().is_none();
        let all = if is_empty { reported } else { labels.insert(Box::new(Labels { set, reported })).all() };
        self.dispatch.rooms.set_attributes(node, all);
    }

    pub(super) fn on_label(
        &mut self,
        now: Instant,
        client: ClientId,
        node: NodeId,
        changes: &[(String, Option<String>)],
        out: &mut Outbox,
    ) {
        if self.dispatch.rooms.state(node).is_none() {
            let message = format!("node {node} not found");
            return refuse(client, RefusalKind::NotFound, &message, "`amalgam node list` shows the nodes", out);
        }
        let before = self.nodes.labels_mut(node).as_ref().map_or_else(Attributes::default, |labels| labels.set.clone());
        match self.changed_labels(node, &before, changes) {
            Err((kind, message, remedy)) => refuse(client, kind, &message, remedy, out),
            Ok(labels) if labels == before => out.send(client, ToClient::AsBefore),
            Ok(labels) => {
                out.send(client, ToClient::Done);
                out.persist(Change::NodeLabelled { node, labels: labels.clone() });
                self.set_labels(node, labels);
                let attributes = Arc::clone(self.dispatch.rooms.attributes(node));
                self.reliability.on_join(node, attributes.get("rack"));
                // The node may meet constraints that it did not meet before.
                self.dispatch.scheduler.on_room_opened();
                self.dispatch.decide(now, &[], &mut self.claims, out);
            }
        }
    }

    /// The labels after these changes, or why not: kind, message, remedy.
    fn changed_labels(
        &self,
        node: NodeId,
        before: &Attributes,
        changes: &[(String, Option<String>)],
    ) -> Result<Attributes, (RefusalKind, String, &'static str)> {
        let mut labels = by_name(before);
        let named = || self.dispatch.names.of(node).map_or_else(|| node.to_string(), str::to_owned);
        for (name, value) in changes {
            Named::Attribute.check(name).map_err(|wrong| (RefusalKind::Invalid, wrong.problem, wrong.remedy))?;
            if name.starts_with(TAINT) && value.as_deref() == Some(NO_TAINT) {
                let message = format!("the taint `{name}` cannot have the value `{NO_TAINT}`");
                return Err((RefusalKind::Invalid, message, "write why the node has it, or leave the value out"));
            }
            if value.as_deref().is_some_and(|value| Named::Job.check(value).is_err()) {
                let message = format!("`{name}` has a value that is empty, too long, or has control characters");
                return Err((RefusalKind::Invalid, message, "write a value of 1 to 255 printable characters"));
            }
            if let Some(value) = value {
                labels.insert(name.clone(), value.clone());
            } else if labels.remove(name).is_none() {
                return Err(self.not_a_label(node, &named(), name));
            }
        }
        if labels.len() > MOST_LABELS {
            let message =
                format!("node {} would have {} labels; at most {MOST_LABELS} are allowed", named(), labels.len());
            return Err((RefusalKind::Invalid, message, "remove some of them"));
        }
        Ok(labels.into())
    }

    /// `named` is the name of the node.
    fn not_a_label(&self, node: NodeId, named: &str, name: &str) -> (RefusalKind, String, &'static str) {
        if self.dispatch.rooms.attributes(node).get(name).is_none() {
            let (kind, name) = name.strip_prefix(TAINT).map_or(("label", name), |name| ("taint", name));
            let message = format!("node {named} has no {kind} `{name}`");
            return (RefusalKind::Conflict, message, "`amalgam node info` shows its labels and taints");
        }
        let message = format!("`{name}` of node {named} is not a label: its agent reports it");
        (RefusalKind::Conflict, message, "change it with --attribute at the agent, or set a label of this name")
    }
}
