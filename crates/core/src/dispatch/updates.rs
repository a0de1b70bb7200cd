//! A user changes a job that has not ended: its priority, its timeout, its queue.

use super::admission::JobState;
use super::{Dispatcher, refuse};
use crate::protocol::{JobUpdate, RefusalKind, ToClient, ToJobManager};
use crate::role::{Change, Outbox};
use crate::vocabulary::{ClientId, Instant, JobId};
use std::sync::Arc;

/// A refusal: kind, message, remedy.
type Wrong = (RefusalKind, String, &'static str);

impl Dispatcher {
    pub(super) fn on_update(
        &mut self,
        now: Instant,
        client: ClientId,
        job: JobId,
        mut update: JobUpdate,
        by: String,
        out: &mut Outbox,
    ) {
        if let Err((kind, message, remedy)) = self.check_update(job, &mut update) {
            return refuse(client, kind, &message, remedy, out);
        }
        let before = Arc::clone(&self.admission.jobs[&job].job);
        if update.applied(&before) == *before {
            return out.send(client, ToClient::AsBefore);
        }
        out.send(client, ToClient::Done);
        self.admission.update(job, &update);
        out.persist(Change::JobUpdated { job, update: Box::new(update), by });
        let entry = &self.admission.jobs[&job];
        if entry.state == JobState::Started {
            let (job, queue) = (Arc::clone(&entry.job), entry.queue);
            let is_placed_anew = (job.spec.priority, job.queue) != (before.spec.priority, before.queue);
            if is_placed_anew {
                // Its asks are queued at its old place.
                self.scheduler.end_job(job.id, &mut self.rooms);
                self.scheduler.add_job(&job, queue);
                self.started.push(job.id);
            }
            out.send(job.id, ToJobManager::Updated { job, is_placed_anew });
        }
        self.take_turns(now, out);
    }

    /// Also replaces the queue's name by its full name.
    fn check_update(&self, job: JobId, update: &mut JobUpdate) -> Result<(), Wrong> {
        let conflict = |message: String, remedy| Err((RefusalKind::Conflict, message, remedy));
        let Some(entry) = self.admission.jobs.get(&job) else {
            let message = format!("job {job} not found");
            return Err((RefusalKind::NotFound, message, "`amalgam list --all` shows the known jobs"));
        };
        if let JobState::Ended(_) = entry.state {
            return conflict(format!("job {job}: it has ended"), "`amalgam info` shows how");
        }
        let Some(name) = &update.queue else { return Ok(()) };
        let queues = &self.admission.queues;
        let queue = queues
            .leaf(name)
            .map_err(|message| (RefusalKind::Invalid, message, "`amalgam queue list` shows the queues"))?;
        update.queue = Some(queues.spec(queue).name.clone());
        if queue == entry.queue && !entry.is_queue_gone {
            return Ok(());
        }
        if queues.preset(queue) != entry.job.preset.as_deref() && (queues.preset(queue).is_some() || entry.has_started)
        {
            let message = format!("job {job}: queue {} uses another preset than the job", queues.spec(queue).name);
            return conflict(message, "submit it to that queue instead");
        }
        if queues.global_of(queue) != queues.global_of(entry.queue) {
            let message = format!("job {job}: queue {} belongs to another global master", queues.spec(queue).name);
            return conflict(message, "submit it to that queue instead");
        }
        if entry.state == JobState::Started && self.scheduler.holds_resources(job) {
            let message =
                format!("job {job}: its tasks hold resources that are counted for queue {}", entry.job.spec.queue);
            return conflict(message, "hold it, wait until its tasks have ended, move it, and release it");
        }
        Ok(())
    }
}
