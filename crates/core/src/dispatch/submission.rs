//! Submission of a job: resolves its names and checks whether it could ever run.

use super::{Dispatcher, refuse};
use crate::policy::Trust;
use crate::protocol::{AdmittedJob, Holder, RefusalKind, ToClient};
use crate::role::{Change, Outbox, Record};
use crate::scheduling::NodeState;
use crate::vocabulary::gpus::is_gpu_amount;
use crate::vocabulary::job::{MAX_AFTER_JOBS, MAX_GANG, MAX_PRIORITIES, MAX_STAGES, MAX_TASKS};
use crate::vocabulary::resources::Thousandths;
use crate::vocabulary::{
    ClientId, ExecutionType, Instant, JobId, JobSpec, NodeId, QueueId, Reads, Resources, StageSpec, Totals,
};
use crate::why::Why;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The names in a submission, resolved.
struct Resolved {
    queue: QueueId,
    /// Per stage, for one task.
    resources: Vec<Resources>,
    /// Per stage.
    near: Vec<Arc<Vec<Holder>>>,
    /// Per stage, the nodes named in its blocks.
    places: Vec<Vec<Option<NodeId>>>,
}

/// A refusal: kind, message, remedy.
type Wrong = (RefusalKind, String, String);

impl Dispatcher {
    /// The job that a user submitted with an idempotency key, if it is known.
    pub fn job_of_key(&self, user: String, key: String) -> Option<JobId> {
        self.admission.by_key.get(&(user, key)).copied()
    }

    pub(super) fn on_submit(
        &mut self,
        now: Instant,
        client: ClientId,
        mut spec: Arc<JobSpec>,
        key: Option<String>,
        out: &mut Outbox,
    ) {
        // The full name of its queue is kept, whatever changes in the configuration.
        if let Ok(queue) = self.admission.queues.leaf(&spec.queue) {
            let name = &self.admission.queues.spec(queue).name;
            if spec.queue != *name {
                Arc::make_mut(&mut spec).queue.clone_from(name);
            }
        }
        let known = key.as_ref().and_then(|key| self.admission.by_key.get(&(spec.user.clone(), key.clone())));
        if let Some(&job) = known {
            if self.admission.jobs[&job].job.spec == spec {
                return out.send(client, ToClient::Submitted { job });
            }
            let message = format!("the idempotency key was already used for job {job}, which differs");
            return refuse(client, RefusalKind::Conflict, &message, "use a different key for each job", out);
        }
        let Resolved { queue, resources, near, places } = match self.check_submission(&spec) {
            Ok(resolved) => resolved,
            Err((kind, message, remedy)) => return refuse(client, kind, &message, &remedy, out),
        };
        let user = self.admission.user(&spec.user, out);
        let job = self.settings.numbers.from(self.admission.next_job);
        let default_timeout = self.admission.queues.spec(queue).default_timeout;
        let tasks = spec.task_count();
        let recalled = self.admission.history.recall(user, &spec);
        // Where nothing is opportunistic, wrong estimates cause no harm.
        let trust = self.admission.trust.get(&user).filter(|_| self.settings.judges_users);
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
            host: self.settings.host_of(job, &self.hosts),
            submitted_at: now,
        });
        out.persist(Change::JobAdmitted { job: Arc::clone(&admitted), key: key.clone() });
        out.record(Record::Submitted { job, tasks });
        self.admission.insert(admitted, key);
        out.send(client, ToClient::Submitted { job });
        self.take_turns(now, out);
        for why in self.admission.why_not_started(job) {
            out.record(Record::Blocked { job, why });
        }
    }

    /// The preset of its queue; if no queue names one, the preset for a part of all jobs, if the job is drawn for it.
    fn preset_of(&self, queue: QueueId, job: JobId) -> Option<String> {
        let of_queue = self.admission.queues.preset(queue).map(str::to_owned);
        let drawn =
            || self.settings.beside.as_ref().filter(|beside| beside.takes(job)).map(|beside| beside.preset.clone());
        of_queue.or_else(drawn)
    }

    /// Resolves names, and refuses a job that could never run here.
    fn check_submission(&mut self, spec: &JobSpec) -> Result<Resolved, Wrong> {
        check_shape(spec)?;
        let queue = self.admission.queues.leaf(&spec.queue).map_err(|message| {
            (RefusalKind::Invalid, message, "name one of these with `--queue`, or `queue` in a job file".to_owned())
        })?;
        if let Some(after) = spec.comes_after().find(|after| !self.admission.jobs.contains_key(after)) {
            let message = format!("dependency not found: job {after}");
            return Err((RefusalKind::NotFound, message, "`amalgam list --all` shows the known jobs".to_owned()));
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
            if !is_gpu_amount(shape.gpu_millis()) {
                let asked = Thousandths(shape.gpu_millis());
                let message = format!(
                    "stage `{}`: invalid number of GPUs per task `{asked}`: neither whole nor less than one",
                    stage.name
                );
                return Err((
                    RefusalKind::Invalid,
                    message,
                    "request a whole number of GPUs, or less than one".to_owned(),
                ));
            }
            if !spec.wait_for_nodes {
                self.check_possible(&stage.name, &shape, &stage.constraints)?;
            }
            if stage.gang {
                self.check_gang(stage, &shape, queue, spec.wait_for_nodes)?;
            }
            resources.push(shape);
            near.push(self.holders(stage, spec.wait_for_nodes)?);
            places.push(self.places(stage));
        }
        Ok(Resolved { queue, resources, near, places })
    }

    /// The nodes that a stage prefers. The amount of input on each is unknown, so all count equally. An unknown name is
    /// not an error if nodes may still join, and is ignored.
    fn holders(&self, stage: &StageSpec, are_nodes_to_come: bool) -> Result<Arc<Vec<Holder>>, Wrong> {
        let mut holders = Vec::with_capacity(stage.near.len());
        for name in &stage.near {
            match self.names.find(name) {
                Some(node) => holders.push(Holder { node, bytes: 1 }),
                None if are_nodes_to_come => {}
                None => return Err(self.unknown_node(&stage.name, name)),
            }
        }
        holders.sort_unstable();
        holders.dedup();
        Ok(if holders.is_empty() { Arc::default() } else { Arc::new(holders) })
    }

    /// A block may be on nodes of a file system that are not in the cluster; it is remote from all nodes then.
    fn places(&self, stage: &StageSpec) -> Vec<Option<NodeId>> {
        match &stage.reads {
            Reads::Blocks(blocks) => blocks.nodes().iter().map(|name| self.names.find(name)).collect(),
            Reads::Unstated | Reads::Before => Vec::new(),
        }
    }

    fn unknown_node(&self, stage: &str, unknown: &str) -> Wrong {
        const NAMED: usize = 5;
        let message = format!("stage `{stage}`: node `{unknown}` of `near` not found");
        let alike =
            |name: &str| name.bytes().zip(unknown.bytes()).take_while(|(known, written)| known == written).count();
        let mut known: Vec<&str> = self.names.all().collect();
        known.sort_by_key(|name| (std::cmp::Reverse(alike(name)), name.len().abs_diff(unknown.len()), *name));
        let more = known.len().saturating_sub(NAMED);
        known.truncate(NAMED);
        let there_are = match (&known[..], more) {
            ([], _) => "no node has joined yet".to_owned(),
            (_, 0) => format!("known: {}", known.join(", ")),
            _ => format!("known: {} and {more} more", known.join(", ")),
        };
        let remedy = format!("{there_are}; or use `--wait-for-nodes` to ignore nodes that have not joined");
        (RefusalKind::Invalid, message, remedy)
    }

    fn unknown_kind(&self, stage: &str, unknown: &str) -> Wrong {
        let known: Vec<&str> = crate::vocabulary::resources::BUILT_IN
            .into_iter()
            .chain(self.kinds.custom().iter().map(String::as_str))
            .collect();
        let message = format!("stage `{stage}`: unknown resource `{unknown}`; known: {}", known.join(", "));
        (RefusalKind::Invalid, message, format!("start an agent with `--resource {unknown}=N`, or correct the name"))
    }

    /// Whether some node that is known now could run the task if it were empty.
    fn check_possible(
        &mut self,
        stage: &str,
        shape: &Resources,
        constraints: &[crate::vocabulary::Constraint],
    ) -> Result<(), Wrong> {
        let joined = |node: &NodeId| matches!(self.rooms.state(*node), Some(NodeState::Up | NodeState::Unreachable));
        let (mut any, mut possible) = (false, false);
        for node in self.rooms.ids().filter(joined) {
            any = true;
            let meets = || constraints.iter().all(|constraint| constraint.is_met_by(self.rooms.attributes(node)));
            if shape.fits_in(&self.rooms.node_capacity(node)) && meets() {
                possible = true;
                break;
            }
        }
        if possible || !any {
            return Ok(());
        }
        let class = self.rooms.class(&Arc::new(constraints.to_vec()));
        let why = crate::scheduling::explain_fit(class, shape, &self.rooms);
        let instead = match &why {
            Some(Why::Constraints { .. }) => "correct the constraint",
            _ => "request less",
        };
        let what = why.map_or_else(|| "no node can run it".to_owned(), |why| self.describe_why(&why));
        let message = format!("stage `{stage}` can never start on the nodes of this cluster: {what}");
        let remedy = format!(
            "{instead}, or use `--wait-for-nodes` (`wait_for_nodes = true` in a job file) if such a node will join"
        );
        Err((RefusalKind::Invalid, message, remedy))
    }

    /// Whether gangs are placed here, and the nodes in total have room for all tasks of the stage.
    fn check_gang(
        &self,
        stage: &StageSpec,
        shape: &Resources,
        queue: QueueId,
        are_nodes_to_come: bool,
    ) -> Result<(), Wrong> {
        let (name, tasks) = (&stage.name, u64::from(stage.tasks.len()));
        if self.settings.jobs_place_all {
            let message =
                format!("the tasks of stage `{name}` start together, but jobs here place their tasks one by one");
            let remedy = "leave `gang` out, or submit it where a master or a global master places tasks (presets such as drf or megha)";
            return Err((RefusalKind::Invalid, message, remedy.to_owned()));
        }
        let joined = |node: &NodeId| matches!(self.rooms.state(*node), Some(NodeState::Up | NodeState::Unreachable));
        let meets = |node: &NodeId| stage.constraints.iter().all(|one| one.is_met_by(self.rooms.attributes(*node)));
        let mut rooms = 0;
        let mut any = false;
        for node in self.rooms.ids().filter(joined) {
            any = true;
            if meets(&node) {
                rooms += u64::from(shape.times_in(&self.rooms.node_capacity(node)));
            }
            if rooms >= tasks {
                break;
            }
        }
        if are_nodes_to_come || !any {
            return Ok(());
        }
        let mut together = Totals::ZERO;
        together.add_times(shape, tasks);
        let (share, most) = (together.dominant_share(self.rooms.capacity()), self.most_of(queue));
        let message = if rooms < tasks {
            format!(
                "stage `{name}` can never start on the nodes of this cluster: its {tasks} tasks start together, and suitable nodes have room for {rooms}"
            )
        } else if share > most {
            let percent = |millionths: u64| millionths as f64 / 1e4;
            format!(
                "stage `{name}` can never start in its queue: its {tasks} tasks start together and need {:.1} % of this cluster, and the limit per user is {:.1} %",
                percent(share),
                percent(most)
            )
        } else {
            return Ok(());
        };
        let remedy = "give it fewer tasks or smaller ones, or use `--wait-for-nodes` (`wait_for_nodes = true` in a job file) if nodes will join";
        Err((RefusalKind::Invalid, message, remedy.to_owned()))
    }
}

impl Dispatcher {
    /// What one user may hold in the queue, in millionths of the cluster.
    fn most_of(&self, queue: QueueId) -> u64 {
        let queues = &self.admission.queues;
        let above = std::iter::successors(Some(queue), |queue| queues.parent(*queue));
        let most = above.map(|queue| queues.spec(queue).maximum).min().unwrap_or(u32::MAX);
        u64::from(most.min(queues.spec(queue).user_limit))
    }
}

/// Checks the limits that apply to every specification, from any client.
fn check_shape(spec: &JobSpec) -> Result<(), Wrong> {
    let invalid = |message: String| Err((RefusalKind::Invalid, message, "correct the job".to_owned()));
    if spec.stages.is_empty() || spec.stages.len() > MAX_STAGES {
        return invalid(format!("a job has 1 to {MAX_STAGES} stages, this one has {}", spec.stages.len()));
    }
    if spec.task_count() > MAX_TASKS {
        return invalid(format!("a job has at most {MAX_TASKS} tasks, this one has {}", spec.task_count()));
    }
    if spec.comes_after().count() > MAX_AFTER_JOBS {
        let many = spec.comes_after().count();
        return invalid(format!("a job has at most {MAX_AFTER_JOBS} dependencies, this one has {many}"));
    }
    let priorities: BTreeSet<i32> = spec.stages.iter().filter_map(|stage| stage.priority).collect();
    if priorities.len() > MAX_PRIORITIES {
        let many = priorities.len();
        return invalid(format!("the stages of a job have at most {MAX_PRIORITIES} priorities, these have {many}"));
    }
    for (index, stage) in spec.stages.iter().enumerate() {
        if stage.program.command.is_empty() {
            return invalid(format!("stage `{}` has no command", stage.name));
        }
        if stage.tasks.is_empty() {
            return invalid(format!("stage `{}` has no tasks", stage.name));
        }
        if stage.gang && stage.tasks.len() > MAX_GANG {
            return invalid(format!("stage `{}` has more than {MAX_GANG} tasks that start together", stage.name));
        }
        if let Some(most) = stage.at_once.filter(|most| *most == 0 || stage.gang && *most < stage.tasks.len()) {
            let tasks = if stage.gang { ": its tasks start together" } else { "" };
            return invalid(format!("stage `{}`: invalid limit of {most} tasks at once{tasks}", stage.name));
        }
        if stage.gang && stage.execution == ExecutionType::Opportunistic {
            return invalid(format!(
                "the tasks of stage `{}` start together, so they cannot be opportunistic",
                stage.name
            ));
        }
        if stage.after.iter().any(|&after| after as usize >= index) {
            return invalid(format!("stage `{}` comes before a stage that it depends on", stage.name));
        }
        let wrong = match &stage.reads {
            Reads::Blocks(blocks) => blocks.check(stage.tasks.len()).err(),
            Reads::Before if stage.after.is_empty() => {
                Some("it reads the output of other stages, but depends on none".to_owned())
            }
            Reads::Unstated | Reads::Before => None,
        };
        if let Some(wrong) = wrong {
            return invalid(format!("stage `{}`: {wrong}", stage.name));
        }
    }
    Ok(())
}
