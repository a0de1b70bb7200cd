//! Actions on single tasks of a job that users request. They are kept here, so that they apply to a job that has not
//! started, and carried out by its manager.

use super::admission::JobState;
use super::{Dispatcher, refuse};
use crate::protocol::{JobOutcome, RefusalKind, ToClient, ToJobManager};
use crate::role::{Change, Outbox};
use crate::vocabulary::{Chosen, ClientId, Instant, JobId, TaskAction};

impl Dispatcher {
    pub(super) fn on_control_tasks(
        &mut self,
        now: Instant,
        client: ClientId,
        job: JobId,
        action: TaskAction,
        tasks: Box<Chosen>,
        out: &mut Outbox,
    ) {
        if let Some((kind, message, remedy)) = self.why_not_on_tasks(job, action, &tasks) {
            return refuse(client, kind, &message, remedy, out);
        }
        out.send(client, ToClient::Done);
        let is_started = self.admission.jobs[&job].state == JobState::Started;
        if action == TaskAction::RerunFailed {
            self.reopen_for(now, job, Some(tasks), out);
            return;
        }
        self.store_request(job, action, tasks.clone(), out);
        if is_started {
            out.send(job, ToJobManager::ActOnTasks { action, tasks });
        }
    }

    pub(super) fn store_request(&mut self, job: JobId, action: TaskAction, tasks: Box<Chosen>, out: &mut Outbox) {
        self.admission.add_request(job, action, &tasks);
        out.persist(Change::TasksAsked { job, action, tasks });
    }

    fn why_not_on_tasks(
        &self,
        job: JobId,
        action: TaskAction,
        tasks: &Chosen,
    ) -> Option<(RefusalKind, String, &'static str)> {
        let Some(entry) = self.admission.jobs.get(&job) else {
            let message = format!("job {job} not found");
            return Some((RefusalKind::NotFound, message, "`amalgam list --all` shows the known jobs"));
        };
        if let Some((stage, place)) = tasks.missing_in(&entry.job.spec) {
            let message = match place {
                Some(place) => format!("job {job}: stage {stage} has no task at place {place}"),
                None => format!("job {job} has no stage {stage}"),
            };
            return Some((RefusalKind::NotFound, message, "`amalgam info --tasks` lists the tasks"));
        }
        let is_rerun = action == TaskAction::RerunFailed;
        let (what, remedy) = match &entry.state {
            JobState::Ended(end) if is_rerun && end.outcome == JobOutcome::Succeeded => {
                ("it succeeded: nothing failed", "submit it again to run all of it")
            }
            JobState::Ended(_) if is_rerun && entry.is_abandoned => {
                ("it ended without its manager, and the state of its tasks is not known", "submit it again")
            }
            JobState::Ended(_) if is_rerun && self.admission.forgotten_dependency(job).is_some() => {
                ("a job on which it depends is forgotten", "submit it again")
            }
            JobState::Ended(_) if !is_rerun => ("it has ended", "`amalgam info` shows how"),
            JobState::Pending | JobState::Started if is_rerun => {
                ("it has not ended", "wait for it, or cancel it first")
            }
            _ => return None,
        };
        Some((RefusalKind::Conflict, format!("job {job}: {what}"), remedy))
    }
}
