//! An executor without processes: tasks run for as long as the workload says.

use amalgam_core::protocol::{Executing, ExecutorReport, ToExecutor};
use amalgam_core::vocabulary::{
    AttemptId, Carried, Duration, EndReason, Ended, Instant, LaunchOrder, Resources, TaskId, Usage, Variables,
};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The executor of one node. It outlives its agent and keeps every end until it is acknowledged.
#[derive(Default)]
pub struct Executor {
    attempts: BTreeMap<AttemptId, Attempt>,
}

enum Attempt {
    Running(Running),
    Ended(Ended),
}

struct Running {
    order: Box<LaunchOrder>,
    since: Instant,
}

/// What follows from an order.
pub enum Reaction {
    /// The agent is told something.
    Report(ExecutorReport),
    /// A process runs from now on; somebody has to end it.
    Began { attempt: AttemptId, task: TaskId, carried: Carried },
    /// A running process ended before its time.
    Ended { order: Box<LaunchOrder>, reason: EndReason },
}

impl Executor {
    pub fn on_order(&mut self, now: Instant, order: ToExecutor, out: &mut Vec<Reaction>) {
        match order {
            ToExecutor::Launch(order) => self.on_launch(now, order, out),
            ToExecutor::Signal { attempt, reason, .. } => {
                if let Some((order, ended)) = self.end(now, attempt, reason.clone()) {
                    out.push(Reaction::Ended { order, reason });
                    out.push(Reaction::Report(ended));
                }
            }
            ToExecutor::Acknowledge { attempt } => {
                if let Entry::Occupied(place) = self.attempts.entry(attempt)
                    && let Attempt::Ended(_) = place.get()
                {
                    place.remove();
                }
            }
            ToExecutor::List { .. } => {
                out.extend(self.attempts.iter().filter_map(|(attempt, state)| match state {
                    Attempt::Ended(ended) => Some(Reaction::Report(finished(*attempt, ended))),
                    Attempt::Running(_) => None,
                }));
                let attempts = self.running().map(|running| running.describe(now)).collect();
                out.push(Reaction::Report(ExecutorReport::Executing { attempts }));
            }
        }
    }

    fn on_launch(&mut self, now: Instant, mut order: Box<LaunchOrder>, out: &mut Vec<Reaction>) {
        let attempt = order.attempt;
        match self.attempts.entry(attempt) {
            Entry::Occupied(place) => {
                if let Attempt::Ended(ended) = place.get() {
                    return out.push(Reaction::Report(finished(attempt, ended)));
                }
            }
            Entry::Vacant(place) => {
                out.push(Reaction::Began { attempt, task: order.task, carried: order.carried });
                // There is no process to find them.
                order.variables = Variables::default();
                place.insert(Attempt::Running(Running { order, since: now }));
            }
        }
        out.push(Reaction::Report(ExecutorReport::Started { attempt, pid: 0 }));
    }

    fn running(&self) -> impl Iterator<Item = &Running> {
        self.attempts.values().filter_map(|state| match state {
            Attempt::Running(running) => Some(running),
            Attempt::Ended(_) => None,
        })
    }

    /// What ran when it died.
    pub fn into_running(self) -> impl Iterator<Item = Box<LaunchOrder>> {
        self.attempts.into_values().filter_map(|state| match state {
            Attempt::Running(running) => Some(running.order),
            Attempt::Ended(_) => None,
        })
    }

    /// Ends that nobody acknowledged.
    pub fn ends(&self) -> usize {
        self.attempts.len() - self.running().count()
    }

    /// CPU that attempts here were given, in thousandths.
    pub fn used_cpu(&self) -> u64 {
        self.running().map(|running| u64::from(running.order.carried.resources.cpu_millis())).sum()
    }

    /// The process of the attempt has come to its end; `None` when it was ended before.
    pub fn end(
        &mut self,
        now: Instant,
        attempt: AttemptId,
        reason: EndReason,
    ) -> Option<(Box<LaunchOrder>, ExecutorReport)> {
        let state = self.attempts.get_mut(&attempt)?;
        let Attempt::Running(running) = state else { return None };
        let wall = now.since(running.since);
        let usage = Usage { wall, cpu: used_cpu(wall, &running.order.carried.resources), ..Usage::default() };
        let ended = Ended { reason, usage: Box::new(usage), message: None };
        let Attempt::Running(running) = std::mem::replace(state, Attempt::Ended(ended.clone())) else {
            unreachable!("it was running")
        };
        Some((running.order, ExecutorReport::Finished { attempt, ended }))
    }
}

impl Running {
    fn describe(&self, now: Instant) -> Executing {
        Executing { order: (*self.order).clone(), running_for: now.since(self.since), pid: 0 }
    }
}

fn finished(attempt: AttemptId, ended: &Ended) -> ExecutorReport {
    ExecutorReport::Finished { attempt, ended: ended.clone() }
}

/// A task is taken to use the CPU that it asked for.
fn used_cpu(wall: Duration, resources: &Resources) -> Duration {
    Duration::from_micros((u128::from(wall.as_micros()) * u128::from(resources.cpu_millis()) / 1_000) as u64)
}
