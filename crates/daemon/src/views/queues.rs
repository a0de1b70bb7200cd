//! The queues of a cluster, with the work of their jobs.

use super::amounts::{add_amounts, named_seconds, named_totals};
use super::stages::{attempt_counts, task_counts};
use crate::api::{AttemptCounts, QueueSummary};
use amalgam_core::dispatch::QueueStatus;
use amalgam_core::hosting::Roles;
use amalgam_core::job_manager::OpenAttempt;
use amalgam_core::vocabulary::{Instant, Kinds, QueueId, QueueSettings, ResourceTime, Totals};
use std::collections::BTreeMap;

pub fn queues(roles: &Roles, now: Instant) -> Vec<QueueSummary> {
    let Some(dispatch) = roles.dispatch() else { return Vec::new() };
    let mut work: BTreeMap<QueueId, QueueWork> = BTreeMap::new();
    for (id, manager) in &roles.jobs {
        let Some(queue) = dispatch.queue_of(*id) else { continue };
        let entry = work.entry(queue).or_default();
        let unbooked = |open: &OpenAttempt| !open.booked && !open.opportunistic && open.started_at.is_some();
        manager.open_attempts().filter(unbooked).for_each(|open| {
            entry.unbooked.add(&manager.job().resources[open.task.stage as usize]);
        });
        entry.attempts.add(&attempt_counts(manager));
        if let Some(exchange) = manager.exchange(now) {
            entry.given.add(&exchange.given);
            entry.received.add(&exchange.received);
        }
        for stage in task_counts(manager) {
            entry.running += stage.running;
            entry.pending += stage.waiting + stage.queued;
        }
    }
    let mut statuses = dispatch.queue_statuses();
    if work.values().any(|work| work.unbooked != Totals::ZERO) {
        add_unbooked(&mut statuses, &work, dispatch.rooms.capacity());
    }
    let summary = |status: &QueueStatus| queue_summary(status, &dispatch.kinds, work.get(&status.queue));
    let mut summaries: Vec<QueueSummary> = statuses.iter().map(summary).collect();
    // A queue precedes the queues below it, so in reverse order each sum is complete before it is added to the parent.
    for index in (1..summaries.len()).rev() {
        let below = summaries[index].clone();
        if let Some(parent) = summaries[..index].iter_mut().find(|queue| Some(&queue.name) == below.parent.as_ref()) {
            parent.running_jobs += below.running_jobs;
            parent.pending_jobs += below.pending_jobs;
            parent.running_tasks += below.running_tasks;
            parent.pending_tasks += below.pending_tasks;
            parent.attempts.add(&below.attempts);
            add_amounts(&mut parent.given, &below.given);
            add_amounts(&mut parent.received, &below.received);
        }
    }
    summaries
}

/// Adds guaranteed attempts without booked resources to the usage of their queue and the queues above.
fn add_unbooked(statuses: &mut [QueueStatus], work: &BTreeMap<QueueId, QueueWork>, capacity: &Totals) {
    let own = |status: &QueueStatus| work.get(&status.queue).map_or(Totals::ZERO, |work| work.unbooked);
    let mut unbooked: Vec<Totals> = statuses.iter().map(own).collect();
    for index in (0..statuses.len()).rev() {
        if unbooked[index] == Totals::ZERO {
            continue;
        }
        let parent = statuses[index].spec.name.rsplit_once('.').map(|(parent, _)| parent);
        if let Some(parent) = statuses[..index].iter().position(|queue| Some(&*queue.spec.name) == parent) {
            unbooked[parent] = unbooked[parent].zip(&unbooked[index], u64::saturating_add);
        }
        let usage = &mut statuses[index].usage;
        usage.used = usage.used.zip(&unbooked[index], u64::saturating_add);
        usage.dominant_share = usage.used.dominant_share(capacity);
    }
}

/// Totals of the jobs of a queue.
#[derive(Clone, Default)]
struct QueueWork {
    /// Resources of running guaranteed attempts that are not booked.
    unbooked: Totals,
    running: u64,
    pending: u64,
    attempts: AttemptCounts,
    given: ResourceTime,
    received: ResourceTime,
}

fn queue_summary(status: &QueueStatus, kinds: &Kinds, work: Option<&QueueWork>) -> QueueSummary {
    let share = |millionths: u32| f64::from(millionths) / 1e6;
    let QueueWork { running, pending, attempts, given, received, .. } = work.cloned().unwrap_or_default();
    QueueSummary {
        name: status.spec.name.clone(),
        parent: status.spec.name.rsplit_once('.').map(|(parent, _)| parent.to_owned()),
        weight: f64::from(status.spec.weight) / 1e3,
        guaranteed: share(status.spec.guaranteed),
        maximum: share(status.spec.maximum),
        user_limit: share(status.spec.user_limit),
        used: named_totals(&status.usage.used, kinds),
        dominant_share: status.usage.dominant_share as f64 / 1e6,
        running_jobs: u64::from(status.running_jobs),
        pending_jobs: u64::from(status.pending_jobs),
        running_tasks: running,
        pending_tasks: pending,
        attempts,
        given: named_seconds(&given, kinds),
        received: named_seconds(&received, kinds),
        max_running_jobs: status.spec.max_running_jobs.map(u64::from),
        default_timeout_seconds: status.spec.default_timeout.map(|timeout| timeout.as_secs_f64()),
        set: set_keys(&status.set),
        closed: false,
    }
}

/// The keys of what was set of a queue.
fn set_keys(set: &QueueSettings) -> Vec<String> {
    let keys = [
        ("weight", set.weight.is_some()),
        ("guaranteed", set.guaranteed.is_some()),
        ("maximum", set.maximum.is_some()),
        ("user_limit", set.user_limit.is_some()),
        ("max_running_jobs", set.max_running_jobs.is_some()),
        ("default_timeout", set.default_timeout.is_some()),
    ];
    keys.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key.to_owned()).collect()
}
