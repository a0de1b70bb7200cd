//! Duty: admit. Jobs come in, wait for their turn (held, after other jobs, queue full), get a job manager, end.

use super::history::History;
use super::{JobEnd, Master, refuse};
use crate::policy::Trust;
use crate::policy::inter_job::QueueTree;
use crate::protocol::{AdmittedJob, Holder, JobAction, JobOutcome, RefusalKind, ToClient, ToJobManager};
use crate::role::{Change, Outbox, Record};
use crate::scheduling::NodeState;
use crate::vocabulary::job::{MAX_STAGES, MAX_TASKS};
use crate::vocabulary::{
    ClientId, Duration, Estimated, Instant, JobId, JobSpec, NodeId, NodeViews, QueueId, Reads, Resources, StageSpec,
    UserId,
};
use crate::why::Why;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(super) struct Admission {
    queues: QueueTree,
    jobs: BTreeMap<JobId, JobEntry>,
    next_job: u64,
    users: BTreeMap<String, UserId>,
    /// In users' estimates; in all that are not here. It does not outlive the master.
    trust: BTreeMap<UserId, Trust>,
    history: History,
    /// By user and the user's own key.
    by_key: BTreeMap<(String, String), JobId>,
    /// In the order of their ends.
    ended: BTreeSet<(Instant, JobId)>,
    /// How many pending jobs wait for this one.
    awaited: BTreeMap<JobId, u32>,
    /// Jobs that have begun and not ended, and that are pending, per queue.
    counts: BTreeMap<QueueId, (u32, u32)>,
    /// Jobs that have not ended.
    unended: BTreeSet<JobId>,
    /// Those of them without a job manager.
    pending: BTreeSet<JobId>,
}

struct JobEntry {
    job: Arc<AdmittedJob>,
    queue: QueueId,
    key: Option<String>,
    held: bool,
    /// The jobs that it came after had succeeded: they may be forgotten since.
    has_begun: bool,
    /// When it begins again, it is to run what had failed.
    reruns: bool,
    /// What its estimates say of its user is known.
    judged: bool,
    state: JobState,
}

/// Where a job is in its life, as the master sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JobState {
    /// Admitted, without a job manager yet.
    Pending,
    /// Its job manager has it; whether anything runs, that one knows.
    Begun,
    Ended(JobEnd),
}

impl Admission {
    pub(super) fn new(queues: QueueTree) -> Admission {
        Admission {
            queues,
            jobs: BTreeMap::new(),
            next_job: 1,
            users: BTreeMap::new(),
            trust: BTreeMap::new(),
            history: History::default(),
            by_key: BTreeMap::new(),
            ended: Default::default(),
            awaited: BTreeMap::new(),
            counts: BTreeMap::new(),
            unended: Default::default(),
            pending: Default::default(),
        }
    }

    pub(super) fn queues(&self) -> &QueueTree {
        &self.queues
    }

    pub(super) fn job(&self, job: JobId) -> Option<(&Arc<AdmittedJob>, &JobState)> {
        self.jobs.get(&job).map(|entry| (&entry.job, &entry.state))
    }

    pub(super) fn queue_of(&self, job: JobId) -> Option<QueueId> {
        self.jobs.get(&job).map(|entry| entry.queue)
    }

    pub(super) fn jobs_from(&self, from: JobId) -> impl DoubleEndedIterator<Item = (&Arc<AdmittedJob>, &JobState)> {
        self.jobs.range(from..).map(|(_, entry)| (&entry.job, &entry.state))
    }

    pub(super) fn is_running(&self, job: JobId) -> bool {
        self.jobs.get(&job).is_some_and(|entry| entry.state == JobState::Begun)
    }

    pub(super) fn running(&self) -> impl Iterator<Item = (&Arc<AdmittedJob>, QueueId)> {
        let entries = self.unended.iter().filter_map(|id| self.jobs.get(id));
        entries.filter(|entry| entry.state == JobState::Begun).map(|entry| (&entry.job, entry.queue))
    }

    /// Begun and not begun jobs of a queue.
    pub(super) fn count_jobs(&self, queue: QueueId) -> (u32, u32) {
        self.counts.get(&queue).copied().unwrap_or_default()
    }

    /// What keeps a job from getting its job manager; `None` once it has one, or for an unknown job.
    pub(super) fn why_not_begun(&self, job: JobId) -> Option<Why> {
        let entry = self.jobs.get(&job)?;
        if entry.held && !matches!(entry.state, JobState::Ended(_)) {
            return Some(Why::Held);
        }
        if entry.state != JobState::Pending {
            return None;
        }
        let open = |id: &JobId| !entry.has_begun && self.outcome(*id) != Some(JobOutcome::Succeeded);
        let jobs: Vec<JobId> = entry.job.spec.after_jobs.iter().copied().filter(open).collect();
        if !jobs.is_empty() {
            return Some(Why::AfterJobs { jobs });
        }
        let limit = self.queues.spec(entry.queue).max_running_jobs?;
        (self.count_jobs(entry.queue).0 >= limit)
            .then(|| Why::QueueJobs { queue: self.queues.spec(entry.queue).name.clone(), limit })
    }

    fn outcome(&self, job: JobId) -> Option<JobOutcome> {
        match self.jobs.get(&job)?.state {
            JobState::Ended(end) => Some(end.outcome),
            _ => None,
        }
    }

    fn user(&mut self, name: &str, out: &mut Outbox) -> UserId {
        let next = UserId(self.users.len() as u32);
        *self.users.entry(name.to_owned()).or_insert_with(|| {
            out.persist(Change::UserSeen { user: next, name: name.to_owned() });
            next
        })
    }

    fn insert(&mut self, job: Arc<AdmittedJob>, key: Option<String>) {
        let id = job.id;
        self.next_job = self.next_job.max(id.0 + 1);
        if let Some(key) = &key {
            self.by_key.insert((job.spec.user.clone(), key.clone()), id);
        }
        // The configuration may have changed since: the name decides, not the number.
        let queue = self.queues.leaf(&job.spec.queue).or_else(|_| self.queues.leaf("")).unwrap_or(job.queue);
        let held = job.spec.held;
        self.jobs.insert(
            id,
            JobEntry {
                job,
                queue,
                key,
                held,
                has_begun: false,
                reruns: false,
                judged: false,
                state: JobState::Pending,
            },
        );
        self.unended.insert(id);
        self.count(id, 1);
    }

    /// Adds a job to what is kept by state, or takes it out.
    fn count(&mut self, id: JobId, by: i32) {
        let Some(entry) = self.jobs.get(&id) else { return };
        let counts = self.counts.entry(entry.queue).or_default();
        match entry.state {
            JobState::Pending => {
                counts.1 = counts.1.strict_add_signed(by);
                for &after in &entry.job.spec.after_jobs {
                    let awaited = self.awaited.entry(after).or_default();
                    *awaited = awaited.strict_add_signed(by);
                    if *awaited == 0 {
                        self.awaited.remove(&after);
                    }
                }
                if by > 0 {
                    self.pending.insert(id)
                } else {
                    self.pending.remove(&id)
                };
            }
            JobState::Begun => counts.0 = counts.0.strict_add_signed(by),
            JobState::Ended(end) => {
                if by > 0 {
                    self.ended.insert((end.at, id))
                } else {
                    self.ended.remove(&(end.at, id))
                };
            }
        }
    }

    fn set_state(&mut self, job: JobId, state: JobState) {
        if !self.jobs.contains_key(&job) {
            return;
        }
        self.count(job, -1);
        if matches!(state, JobState::Ended(_)) {
            self.unended.remove(&job);
        } else {
            self.unended.insert(job);
        }
        self.jobs.get_mut(&job).expect("just found").state = state;
        self.count(job, 1);
    }

    /// The job that ended longest ago, of those that no other waits for.
    fn forgettable(&self) -> Option<JobId> {
        self.ended.iter().map(|(_, id)| *id).find(|id| !self.awaited.contains_key(id))
    }

    fn forget(&mut self, job: JobId) {
        self.count(job, -1);
        self.unended.remove(&job);
        if let Some(entry) = self.jobs.remove(&job)
            && let Some(key) = entry.key
        {
            self.by_key.remove(&(entry.job.spec.user.clone(), key));
        }
    }

    pub(super) fn recover(&mut self, change: &Change) {
        match change {
            Change::UserSeen { user, name } => {
                self.users.insert(name.clone(), *user);
            }
            Change::JobAdmitted { job, key } => self.insert(Arc::clone(job), key.clone()),
            Change::JobHeld { job, held } => {
                if let Some(entry) = self.jobs.get_mut(job) {
                    entry.held = *held;
                }
            }
            Change::JobBegun { job } => self.set_begun(*job),
            Change::JobReopened { job } => {
                self.set_state(*job, JobState::Pending);
                self.set_reruns(*job, true);
            }
            Change::JobEnded { job, outcome, at } => {
                self.set_state(*job, JobState::Ended(JobEnd { outcome: *outcome, at: *at }));
            }
            Change::JobForgotten { job } => {
                self.next_job = self.next_job.max(job.0 + 1);
                self.forget(*job);
            }
            _ => self.history.recover(change),
        }
    }

    /// A job that it is to come after and of which nothing is known any more.
    fn forgotten_dependency(&self, job: JobId) -> Option<JobId> {
        let entry = self.jobs.get(&job).filter(|entry| !entry.has_begun)?;
        entry.job.spec.after_jobs.iter().copied().find(|after| !self.jobs.contains_key(after))
    }

    fn has_failed_dependency(&self, job: JobId) -> bool {
        let entry = &self.jobs[&job];
        let failed = |after: &JobId| self.outcome(*after).is_some_and(|outcome| outcome != JobOutcome::Succeeded);
        !entry.has_begun && entry.job.spec.after_jobs.iter().any(failed)
    }

    /// It has a job manager from now on.
    fn set_begun(&mut self, job: JobId) {
        self.set_state(job, JobState::Begun);
        if let Some(entry) = self.jobs.get_mut(&job) {
            (entry.has_begun, entry.reruns) = (true, false);
        }
    }

    fn set_reruns(&mut self, job: JobId, reruns: bool) {
        if let Some(entry) = self.jobs.get_mut(&job) {
            entry.reruns = reruns;
        }
    }

    pub(super) fn durable(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.next_job > 1 {
            // Numbers are never used twice, even when the newest jobs are forgotten.
            changes.push(Change::JobForgotten { job: JobId(self.next_job - 1) });
        }
        changes.extend(self.users.iter().map(|(name, user)| Change::UserSeen { user: *user, name: name.clone() }));
        for (&id, entry) in &self.jobs {
            changes.push(Change::JobAdmitted { job: Arc::clone(&entry.job), key: entry.key.clone() });
            // Also where it is as submitted: its job manager knows only what it was told.
            changes.push(Change::JobHeld { job: id, held: entry.held });
            if entry.has_begun {
                changes.push(Change::JobBegun { job: id });
            }
            match &entry.state {
                JobState::Pending if entry.reruns => changes.push(Change::JobReopened { job: id }),
                JobState::Pending | JobState::Begun => {}
                JobState::Ended(end) => {
                    changes.push(Change::JobEnded { job: id, outcome: end.outcome, at: end.at });
                }
            }
        }
        changes.extend(self.history.durable());
        changes
    }
}

/// What a submission's names mean here.
struct Resolved {
    queue: QueueId,
    /// Per stage, of one task.
    resources: Vec<Resources>,
    /// Per stage.
    near: Vec<Arc<Vec<Holder>>>,
    /// Per stage, of the names in its blocks.
    places: Vec<Vec<Option<NodeId>>>,
}

/// A refusal in the making: kind, message, remedy.
type Wrong = (RefusalKind, String, String);

impl Master {
    pub(super) fn on_submit(
        &mut self,
        now: Instant,
        client: ClientId,
        spec: Arc<JobSpec>,
        key: Option<String>,
        out: &mut Outbox,
    ) {
        let known = key.as_ref().and_then(|key| self.admission.by_key.get(&(spec.user.clone(), key.clone())));
        if let Some(&job) = known {
            if self.admission.jobs[&job].job.spec == spec {
                return out.send(client, ToClient::Submitted { job });
            }
            let message = format!("the idempotency key was used before, for job {job}, with another job");
            return refuse(client, RefusalKind::Conflict, &message, "use a key of its own for each job", out);
        }
        let Resolved { queue, resources, near, places } = match self.check_submission(&spec) {
            Ok(resolved) => resolved,
            Err((kind, message, remedy)) => return refuse(client, kind, &message, &remedy, out),
        };
        let user = self.admission.user(&spec.user, out);
        let job = JobId(self.admission.next_job);
        let default_timeout = self.admission.queues.spec(queue).default_timeout;
        let tasks = spec.task_count();
        let recalled = self.admission.history.recall(user, &spec);
        // Where nothing is opportunistic, estimates harm nobody.
        let trust = self.admission.trust.get(&user).filter(|_| self.settings.steer.is_some());
        let admitted = Arc::new(AdmittedJob {
            id: job,
            spec,
            user,
            queue,
            resources,
            near,
            places,
            default_timeout,
            recalled,
            only_guaranteed: trust.is_some_and(Trust::is_lost),
            preset: self.preset_of(queue, job),
            submitted_at: now,
        });
        out.persist(Change::JobAdmitted { job: Arc::clone(&admitted), key: key.clone() });
        out.record(Record::Submitted { job, tasks });
        self.admission.insert(admitted, key);
        out.send(client, ToClient::Submitted { job });
        self.begin_what_may(now, out);
        if let Some(why) = self.admission.why_not_begun(job) {
            out.record(Record::Blocked { job, why });
        }
    }

    /// That of its queue, or, where no queue names one, the one that a part of all jobs goes by if it is drawn.
    fn preset_of(&self, queue: QueueId, job: JobId) -> Option<String> {
        let of_queue = self.admission.queues.preset(queue).map(str::to_owned);
        let drawn =
            || self.settings.beside.as_ref().filter(|beside| beside.takes(job)).map(|beside| beside.preset.clone());
        of_queue.or_else(drawn)
    }

    /// Resolves names, and refuses what could never run here.
    fn check_submission(&mut self, spec: &JobSpec) -> Result<Resolved, Wrong> {
        check_shape(spec)?;
        let queue = self.admission.queues.leaf(&spec.queue).map_err(|message| {
            (RefusalKind::Invalid, message, "name one of these with `--queue`, or `queue` in a job file".to_owned())
        })?;
        for &after in &spec.after_jobs {
            match self.admission.jobs.get(&after).map(|entry| &entry.state) {
                None => {
                    let message = format!("job {after}, which this one is to come after, is not known");
                    return Err((
                        RefusalKind::NotFound,
                        message,
                        "`amalgam list --all` shows the known jobs".to_owned(),
                    ));
                }
                Some(JobState::Ended(end)) if end.outcome != JobOutcome::Succeeded => {
                    let message = format!("job {after}, which this one is to come after, did not succeed");
                    let remedy = format!("`amalgam rerun-failed {after}` first");
                    return Err((RefusalKind::Conflict, message, remedy));
                }
                Some(_) => {}
            }
        }
        let mut resources = Vec::with_capacity(spec.stages.len());
        let mut near = Vec::with_capacity(spec.stages.len());
        let mut places = Vec::with_capacity(spec.stages.len());
        for stage in &spec.stages {
            let mut shape =
                self.kinds.resolve(&stage.resources).map_err(|unknown| self.unknown_kind(&stage.name, &unknown))?;
            if shape.is_zero() {
                // Something of every task must be counted, or a whole array would start at once.
                shape = Resources::new(1, 0);
            }
            if !spec.wait_for_nodes {
                self.check_possible(&stage.name, &shape, &stage.constraints)?;
            }
            resources.push(shape);
            near.push(self.holders(stage, spec.wait_for_nodes)?);
            places.push(self.places(stage));
        }
        Ok(Resolved { queue, resources, near, places })
    }

    /// The nodes that a stage is to be near. How much of its input each has is not said: all have as much. A name that
    /// nobody has yet is no error where nodes are still to come, and then names nobody.
    fn holders(&self, stage: &StageSpec, are_nodes_to_come: bool) -> Result<Arc<Vec<Holder>>, Wrong> {
        let mut holders = Vec::with_capacity(stage.near.len());
        for name in &stage.near {
            match self.nodes.find(name) {
                Some(node) => holders.push(Holder { node, bytes: 1 }),
                None if are_nodes_to_come => {}
                None => return Err(self.unknown_node(&stage.name, name)),
            }
        }
        holders.sort_unstable();
        holders.dedup();
        Ok(if holders.is_empty() { Arc::default() } else { Arc::new(holders) })
    }

    /// A block may be on nodes of a file system that are none of ours; it is far from all of them then.
    fn places(&self, stage: &StageSpec) -> Vec<Option<NodeId>> {
        match &stage.reads {
            Reads::Blocks(blocks) => blocks.nodes().iter().map(|name| self.nodes.find(name)).collect(),
            Reads::Unsaid | Reads::Before => Vec::new(),
        }
    }

    fn unknown_node(&self, stage: &str, unknown: &str) -> Wrong {
        const NAMED: usize = 5;
        let message = format!("stage `{stage}` is to be near `{unknown}`, and no node has that name");
        let alike =
            |name: &str| name.bytes().zip(unknown.bytes()).take_while(|(known, written)| known == written).count();
        let mut known: Vec<&str> = self.nodes.names().collect();
        known.sort_by_key(|name| (std::cmp::Reverse(alike(name)), name.len().abs_diff(unknown.len()), *name));
        let more = known.len().saturating_sub(NAMED);
        known.truncate(NAMED);
        let there_are = match (&known[..], more) {
            ([], _) => "none has joined yet".to_owned(),
            (_, 0) => format!("there are {}", known.join(", ")),
            _ => format!("there are {} and {more} more", known.join(", ")),
        };
        let remedy = format!("{there_are}; or say `--wait-for-nodes` to go on without those that have not joined");
        (RefusalKind::Invalid, message, remedy)
    }

    fn unknown_kind(&self, stage: &str, unknown: &str) -> Wrong {
        let known: Vec<&str> = crate::vocabulary::resources::BUILT_IN
            .into_iter()
            .chain(self.kinds.custom().iter().map(String::as_str))
            .collect();
        let message =
            format!("stage `{stage}` asks for `{unknown}`, which no node has; known are {}", known.join(", "));
        (RefusalKind::Invalid, message, format!("start an agent with `--resource {unknown}=N`, or mend the name"))
    }

    /// Whether some node that is known now could run the task if it were empty.
    fn check_possible(
        &mut self,
        stage: &str,
        shape: &Resources,
        constraints: &[crate::vocabulary::Constraint],
    ) -> Result<(), Wrong> {
        let joined = |index: usize| {
            matches!(self.ledger.state(NodeId(index as u32)), Some(NodeState::Up | NodeState::Unreachable))
        };
        let (mut any, mut possible) = (false, false);
        for index in (0..self.ledger.len()).filter(|&index| joined(index)) {
            any = true;
            let node = NodeId(index as u32);
            let meets = || constraints.iter().all(|constraint| constraint.is_met_by(self.ledger.attributes(node)));
            if shape.fits_in(&self.ledger.node_capacity(node)) && meets() {
                possible = true;
                break;
            }
        }
        if possible || !any {
            return Ok(());
        }
        let class = self.ledger.class(&Arc::new(constraints.to_vec()));
        let why = crate::scheduling::explain_fit(class, shape, &self.ledger);
        let instead = match &why {
            Some(Why::Constraints { .. }) => "mend the constraint",
            _ => "ask for less",
        };
        let what = why.map_or_else(|| "no node can run it".to_owned(), |why| self.describe_why(&why));
        let message = format!("stage `{stage}` can never start on the nodes of this cluster: {what}");
        let remedy = format!(
            "{instead}, or say `--wait-for-nodes` (`wait_for_nodes = true` in a job file) if such a node will join"
        );
        Err((RefusalKind::Invalid, message, remedy))
    }

    pub(super) fn on_control(
        &mut self,
        now: Instant,
        client: ClientId,
        job: JobId,
        action: JobAction,
        out: &mut Outbox,
    ) {
        let Some(entry) = self.admission.jobs.get(&job) else {
            let message = format!("there is no job {job}");
            return refuse(client, RefusalKind::NotFound, &message, "`amalgam list --all` shows the known jobs", out);
        };
        let state = entry.state.clone();
        let refused = match (action, &state) {
            (JobAction::RerunFailed, JobState::Ended(end)) if end.outcome == JobOutcome::Succeeded => {
                Some(("it succeeded: nothing failed", "submit it again to run all of it"))
            }
            (JobAction::RerunFailed, JobState::Pending | JobState::Begun) => {
                Some(("it has not ended", "wait for it, or cancel it first"))
            }
            (JobAction::Cancel | JobAction::Hold | JobAction::Release, JobState::Ended(_)) => {
                Some(("it has ended", "`amalgam info` shows how"))
            }
            _ => None,
        };
        if let Some((what, remedy)) = refused {
            return refuse(client, RefusalKind::Conflict, &format!("job {job}: {what}"), remedy, out);
        }
        if let Some(after) = self.admission.forgotten_dependency(job).filter(|_| action == JobAction::RerunFailed) {
            let message = format!("job {job}: job {after}, which it is to come after, is forgotten");
            return refuse(client, RefusalKind::Conflict, &message, "submit it again", out);
        }
        out.send(client, ToClient::Done);
        match action {
            JobAction::Cancel if state == JobState::Pending => {
                self.end(now, job, JobOutcome::Cancelled, out);
                self.begin_what_may(now, out);
            }
            JobAction::Cancel => out.send(job, ToJobManager::Act(JobAction::Cancel)),
            JobAction::Hold | JobAction::Release => self.set_held(now, job, action == JobAction::Hold, &state, out),
            JobAction::RerunFailed => self.reopen(now, job, out),
        }
    }

    fn set_held(&mut self, now: Instant, job: JobId, held: bool, state: &JobState, out: &mut Outbox) {
        let entry = self.admission.jobs.get_mut(&job).expect("found by the caller");
        if entry.held == held {
            return;
        }
        entry.held = held;
        out.persist(Change::JobHeld { job, held });
        out.record(Record::Held { job, held });
        if *state == JobState::Begun {
            out.send(job, ToJobManager::Act(if held { JobAction::Hold } else { JobAction::Release }));
        }
        self.begin_what_may(now, out);
    }

    /// The job waits for its turn again like any other, and then runs what had failed. Whoever asks for that holds it no more.
    fn reopen(&mut self, now: Instant, job: JobId, out: &mut Outbox) {
        out.persist(Change::JobReopened { job });
        self.admission.set_state(job, JobState::Pending);
        self.admission.set_reruns(job, true);
        self.set_held(now, job, false, &JobState::Pending, out);
        self.begin_what_may(now, out);
    }

    /// The log may end between a change and what followed from it: a job was admitted, or another's end made room for it,
    /// and it had not begun.
    pub(super) fn on_recovered(&mut self, now: Instant, out: &mut Outbox) {
        self.begin_what_may(now, out);
    }

    /// Gives job managers to the jobs that nothing holds back, in the order of priority, then submission.
    fn begin_what_may(&mut self, now: Instant, out: &mut Outbox) {
        let mut ended_some = true;
        while std::mem::take(&mut ended_some) {
            let pending = self.admission.pending.iter().map(|id| &self.admission.jobs[id]).filter(|entry| !entry.held);
            let mut candidates: Vec<(std::cmp::Reverse<i32>, JobId)> =
                pending.map(|entry| (std::cmp::Reverse(entry.job.spec.priority), entry.job.id)).collect();
            candidates.sort_unstable();
            for (_, job) in candidates {
                if self.admission.has_failed_dependency(job) {
                    self.end(now, job, JobOutcome::DependencyFailed, out);
                    ended_some = true;
                } else if self.admission.why_not_begun(job).is_none() {
                    self.begin(now, job, out);
                }
            }
        }
    }

    fn begin(&mut self, now: Instant, job: JobId, out: &mut Outbox) {
        out.persist(Change::JobBegun { job });
        let reruns = self.admission.jobs[&job].reruns;
        self.admission.set_begun(job);
        let entry = &self.admission.jobs[&job];
        let admitted = Arc::clone(&entry.job);
        self.scheduler.add_job(job, entry.queue, admitted.user, admitted.spec.priority);
        let share = self.share_at_begin(job, out);
        out.send(job, ToJobManager::Begin { job: admitted, share });
        self.publish_to(now, job, out);
        if reruns {
            out.send(job, ToJobManager::Act(JobAction::RerunFailed));
        }
    }

    /// A job that ended says how good its user's estimates were. One that ends again was judged before.
    pub(super) fn judge_estimates(&mut self, job: JobId, estimated: Option<Estimated>, out: &mut Outbox) {
        let Some(estimated) = estimated.filter(|_| self.admission.is_running(job)) else { return };
        let Some(entry) = self.admission.jobs.get_mut(&job).filter(|entry| !entry.judged) else { return };
        entry.judged = true;
        let user = entry.job.user;
        let trust = self.admission.trust.entry(user).or_default();
        if trust.learn(estimated) {
            out.record(Record::EstimatesJudged { job, believed: !trust.is_lost() });
        }
    }

    /// The next job of its kind is planned with it.
    pub(super) fn remember(&mut self, job: JobId, means: &[Option<Duration>], out: &mut Outbox) {
        let Admission { jobs, history, .. } = &mut self.admission;
        if let Some(entry) = jobs.get(&job).filter(|entry| entry.state == JobState::Begun) {
            history.learn(entry.job.user, &entry.job.spec, means).into_iter().for_each(|change| out.persist(change));
        }
    }

    pub(super) fn on_job_ended(&mut self, now: Instant, job: JobId, outcome: JobOutcome, out: &mut Outbox) {
        if self.admission.is_running(job) {
            self.scheduler.end_job(job, &mut self.ledger);
            self.end(now, job, outcome, out);
            self.begin_what_may(now, out);
        }
    }

    fn end(&mut self, now: Instant, job: JobId, outcome: JobOutcome, out: &mut Outbox) {
        out.persist(Change::JobEnded { job, outcome, at: now });
        self.admission.set_state(job, JobState::Ended(JobEnd { outcome, at: now }));
        while self.admission.ended.len() > self.settings.kept_jobs {
            let Some(oldest) = self.admission.forgettable() else { break };
            out.persist(Change::JobForgotten { job: oldest });
            out.send(oldest, ToJobManager::Forgotten);
            self.admission.forget(oldest);
        }
    }
}

/// What a client's specification must keep to, however it was made.
fn check_shape(spec: &JobSpec) -> Result<(), Wrong> {
    let invalid = |message: String| Err((RefusalKind::Invalid, message, "mend the job".to_owned()));
    if spec.stages.is_empty() || spec.stages.len() > MAX_STAGES {
        return invalid(format!("a job has 1 to {MAX_STAGES} stages, this one has {}", spec.stages.len()));
    }
    if spec.task_count() > MAX_TASKS {
        return invalid(format!("a job has at most {MAX_TASKS} tasks, this one has {}", spec.task_count()));
    }
    for (index, stage) in spec.stages.iter().enumerate() {
        if stage.program.command.is_empty() {
            return invalid(format!("stage `{}` has no command", stage.name));
        }
        if stage.tasks.is_empty() {
            return invalid(format!("stage `{}` has no tasks", stage.name));
        }
        if stage.after.iter().any(|&after| after as usize >= index) {
            return invalid(format!("stage `{}` comes before a stage that it depends on", stage.name));
        }
        let wrong = match &stage.reads {
            Reads::Blocks(blocks) => blocks.check(stage.tasks.len()).err(),
            Reads::Before if stage.after.is_empty() => {
                Some("it reads what other stages left, and comes after none".to_owned())
            }
            Reads::Unsaid | Reads::Before => None,
        };
        if let Some(wrong) = wrong {
            return invalid(format!("stage `{}`: {wrong}", stage.name));
        }
    }
    Ok(())
}
