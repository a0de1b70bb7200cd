//! An attempt at its node, from its arrival to the acknowledgement of its end.

use super::yields::Yielding;
use crate::protocol::Launch;
use crate::vocabulary::{
    AttemptId, Devices, Duration, EndReason, Ended, GrantId, HostList, Instant, LaunchOrder, NodeId, Prediction,
    RunningEntry, SharedGpu, TaskId, TaskShape, TaskTemplate,
};
use std::sync::Arc;

/// An attempt at the executor, with the fields that each report reads of all of them.
pub(super) struct AtExecutor {
    pub(super) attempt: AttemptId,
    pub(super) expected: Option<Duration>,
    /// When it would end according to `expected`.
    pub(super) expected_end: Option<Instant>,
    /// When the executor is asked for its progress next.
    pub(super) measured_at: Instant,
}

impl AtExecutor {
    pub(super) fn new(attempt: AttemptId, since: Instant, expected: Option<Duration>) -> AtExecutor {
        let expected_end = expected.map(|length| since + length);
        AtExecutor { attempt, expected, expected_end, measured_at: Instant::NEVER }
    }
}

pub(super) struct Attempt {
    pub(super) task: TaskId,
    pub(super) template: Arc<TaskTemplate>,
    /// `None`: not booked in the ledger.
    pub(super) grant: Option<GrantId>,
    pub(super) expected: Option<Duration>,
    pub(super) devices: Devices,
    /// The GPU that it shares according to its grant.
    pub(super) shared_gpu: Option<SharedGpu>,
    /// When it was queued. After its start: when it was sent to the executor, moved forward by the time for which it
    /// has yielded.
    pub(super) since: Instant,
    /// How long it was queued.
    pub(super) waited: Duration,
    pub(super) yielding: Option<Yielding>,
    /// Until then, the time for which it has yielded still counts towards the limit; running reduces it.
    pub(super) yielded_until: Instant,
    /// The nodes of all tasks of its gang, once the gang may start.
    pub(super) hosts: Option<Arc<HostList>>,
    /// The prediction of its start and when it arrived here; `None` once it has started.
    pub(super) prediction: Option<(Prediction, Instant)>,
    pub(super) state: State,
}

impl Attempt {
    /// All other fields are empty.
    pub(super) fn new(task: TaskId, template: Arc<TaskTemplate>, since: Instant, state: State) -> Attempt {
        Attempt {
            task,
            template,
            grant: None,
            expected: None,
            devices: Devices::new(),
            shared_gpu: None,
            since,
            waited: Duration::ZERO,
            yielding: None,
            yielded_until: since,
            hosts: None,
            prediction: None,
            state,
        }
    }
}

impl Attempt {
    /// It leaves the queue with these devices, at the node of this id and name. Returns the order to the executor.
    pub(super) fn start(
        &mut self,
        now: Instant,
        attempt: AttemptId,
        devices: Devices,
        (node, node_name): (NodeId, &str),
    ) -> LaunchOrder {
        let State::Queued(launch) = std::mem::replace(&mut self.state, State::Starting) else {
            unreachable!("only queued attempts are in the queue")
        };
        let Launch { task, template, index, item, inputs, .. } = *launch;
        self.devices = devices;
        self.waited = now.since(self.since);
        self.since = now;
        LaunchOrder {
            attempt,
            task,
            node,
            node_name: node_name.to_owned(),
            template,
            index,
            item,
            devices: self.devices.clone(),
            inputs,
            hosts: self.hosts.take(),
            grant: self.grant,
            shared_gpu: self.shared_gpu,
            expected: self.expected,
        }
    }

    /// Changes the template, and that of its launch while it is queued.
    pub(super) fn set_template(&mut self, template: TaskTemplate) {
        self.template = Arc::new(template);
        if let State::Queued(launch) = &mut self.state {
            launch.template = Arc::clone(&self.template);
        }
    }

    /// Whether it holds resources, because it is at the executor.
    pub(super) fn is_at_executor(&self) -> bool {
        matches!(self.state, State::Starting | State::Running | State::Stopping { .. })
    }

    pub(super) fn as_running(&self, now: Instant, attempt: AttemptId) -> RunningEntry {
        let TaskShape { resources, execution } = *self.template.shape;
        let started_at = now.before(self.running_for(now));
        RunningEntry { attempt, resources, execution, started_at, expected: self.expected }
    }
}

pub(super) enum State {
    Queued(Box<Launch>),
    /// Sent to the executor.
    Starting,
    Running,
    /// Asked to stop for this reason; killed if it has not ended within its grace.
    Stopping {
        reason: EndReason,
        killed: bool,
    },
    /// Kept until its owner acknowledges it.
    Ended(Arc<Ended>),
}
