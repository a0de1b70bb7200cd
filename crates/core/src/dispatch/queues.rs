//! Queues that change while the cluster runs: an operator sets their limits, or the configuration is read again.

use super::{Confirmation, Dispatcher, refuse};
use crate::policy::inter_job::{QueueTree, QueueTreeError};
use crate::protocol::{RefusalKind, ToClient};
use crate::role::{Change, Outbox};
use crate::vocabulary::{ClientId, Duration, Instant, QueueSettings, QueueSpec};
use std::collections::BTreeMap;

/// The part of the configuration that can change while the server runs.
pub struct Reconfiguration {
    pub queues: Vec<QueueSpec>,
    pub kept_jobs: usize,
    pub kept_for: Option<Duration>,
    pub kept_tasks: Option<u64>,
}

/// The configured queues, and what was set of them.
pub(super) struct Configured {
    pub(super) tree: QueueTree,
    pub(super) set: BTreeMap<String, QueueSettings>,
}

impl Configured {
    pub(super) fn remember(&mut self, queue: &str, settings: QueueSettings) {
        if settings.is_empty() {
            self.set.remove(queue);
        } else {
            self.set.insert(queue.to_owned(), settings);
        }
    }

    fn with_settings(&self, specs: &[QueueSpec]) -> Vec<QueueSpec> {
        let with_settings = |spec: &QueueSpec| match self.set.get(&spec.name) {
            Some(settings) => settings.applied(spec),
            None => spec.clone(),
        };
        specs.iter().map(with_settings).collect()
    }

    /// The queues after a restart. Settings that do not fit into the configuration any more have no effect.
    fn effective(&self) -> QueueTree {
        if let Ok(tree) = self.tree.changed(self.with_settings(self.tree.specs())) {
            return tree;
        }
        let mut tree = self.tree.clone();
        for (name, settings) in &self.set {
            let with = |spec: &QueueSpec| if spec.name == *name { settings.applied(spec) } else { spec.clone() };
            tree = tree.changed(tree.specs().iter().map(with).collect()).unwrap_or(tree);
        }
        tree
    }
}

impl Dispatcher {
    /// Sets limits of a queue; `None` resets it to what is configured.
    pub fn on_set_queue(
        &mut self,
        now: Instant,
        client: ClientId,
        queue: &str,
        settings: Option<QueueSettings>,
        claims: &mut dyn Confirmation,
        out: &mut Outbox,
    ) {
        let tree = &self.configured.tree;
        let found = tree.find(queue).or_else(|| tree.find(&format!("root.{queue}")));
        let Some(name) = found.map(|found| tree.spec(found).name.clone()) else {
            let message = format!("queue `{queue}` not found");
            return refuse(client, RefusalKind::NotFound, &message, "`amalgam queue list` shows the queues", out);
        };
        let before = self.configured.set.get(&name).copied().unwrap_or_default();
        let merged = settings.map_or_else(QueueSettings::default, |later| before.merged(later));
        if merged == before {
            return out.send(client, ToClient::AsBefore);
        }
        self.configured.remember(&name, merged);
        let specs = self.configured.with_settings(self.configured.tree.specs());
        match self.admission.queues.changed(specs) {
            Ok(tree) => {
                out.send(client, ToClient::Done);
                out.persist(Change::QueueSet { queue: name, settings: merged });
                self.use_queues(now, tree, claims, out);
            }
            Err(error) => {
                self.configured.remember(&name, before);
                refuse_queues(client, &error, out);
            }
        }
    }

    /// The configuration was read again. Limits that were set while the server ran keep their precedence.
    pub fn on_reconfigure(
        &mut self,
        now: Instant,
        client: ClientId,
        wanted: Reconfiguration,
        claims: &mut dyn Confirmation,
        out: &mut Outbox,
    ) {
        let configured = match self.configured.tree.changed(wanted.queues) {
            Ok(tree) => tree,
            Err(error) => return refuse_queues(client, &error, out),
        };
        let tree = match self.admission.queues.changed(self.configured.with_settings(configured.specs())) {
            Ok(tree) => tree,
            Err(QueueTreeError { problem, .. }) => {
                let message = format!("with what `amalgam queue set` changed, {problem}");
                let remedy = "reset the queue with `amalgam queue reset`, or change the configuration";
                return refuse(client, RefusalKind::Conflict, &message, remedy, out);
            }
        };
        out.send(client, ToClient::Done);
        let settings = &mut self.settings;
        (settings.kept_jobs, settings.kept_for) = (wanted.kept_jobs, wanted.kept_for);
        settings.kept_tasks = wanted.kept_tasks;
        self.configured.tree = configured;
        self.use_queues(now, tree, claims, out);
    }

    /// After a restart: what was set of queues takes effect again.
    pub(super) fn recover_queues(&mut self) {
        if !self.configured.set.is_empty() {
            let tree = self.configured.effective();
            self.admission.set_queues(tree.clone());
            self.scheduler.on_queues(tree);
        }
    }

    fn use_queues(&mut self, now: Instant, tree: QueueTree, claims: &mut dyn Confirmation, out: &mut Outbox) {
        if tree == self.admission.queues {
            return;
        }
        self.admission.set_queues(tree.clone());
        self.scheduler.on_queues(tree);
        self.take_turns(now, out);
        self.scheduler.on_room_opened();
        self.decide(now, &[], claims, out);
    }
}

fn refuse_queues(client: ClientId, error: &QueueTreeError, out: &mut Outbox) {
    refuse(client, RefusalKind::Invalid, &error.problem, &error.remedy, out);
}
