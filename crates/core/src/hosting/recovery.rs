//! Makes the roles of a process from the changes in its log.

use super::journal::Entry;
use super::{Incarnation, Roles};
use crate::dispatch::{DispatchSettings, JobState};
use crate::job_host::{JobHost, JobHostSettings};
use crate::job_manager::{JobManager, JobManagerSettings};
use crate::master::MasterSettings;
use crate::policy::inter_job::QueueTree;
use crate::preset::Preset;
use crate::protocol::AdmittedJob;
use crate::role::{Change, Role};
use crate::vocabulary::{Epoch, HostId, JobId, Sealing, Seat};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The manager of a job, recovered from its changes. A job that waits for its next run has a manager, which knows what is done.
fn recovered_manager(
    preset: Preset,
    epoch: Epoch,
    settings: JobManagerSettings,
    sealing: Sealing,
    job: &Arc<AdmittedJob>,
    state: &JobState,
    own: &[Change],
) -> Option<(JobId, Box<JobManager>)> {
    if *state == JobState::Pending && !own.iter().any(Change::is_job_managers) {
        return None;
    }
    let mut manager = preset.job_manager(Arc::clone(job), epoch, settings, sealing);
    manager.recover(own);
    Some((job.id, Box::new(manager)))
}

impl Roles {
    /// Makes a master, and job managers if they are in its process, and recovers them from the log.
    pub fn recover(&mut self, settings: MasterSettings, queues: QueueTree, changes: Vec<Change>) {
        self.note(|| Entry::Recovered { settings: settings.clone(), queues: queues.clone(), changes: changes.clone() });
        let Incarnation { preset, epoch, settings: of_managers, sealing, .. } = *self.incarnation;
        let mut master = preset.master(epoch, settings, queues, sealing);
        master.recover(&changes);
        let mut by_job: BTreeMap<JobId, Vec<Change>> = BTreeMap::new();
        let mut of_others = Vec::new();
        for change in changes {
            let Some(job) = change.job() else {
                of_others.push(change);
                continue;
            };
            // The host of a job may still know it when the master has forgotten it.
            match master.dispatch().job(job).map(|(job, _)| job.host) {
                Some(HostId::SERVER) => by_job.entry(job).or_default().push(change),
                _ => of_others.push(change),
            }
        }
        self.recover_managed(of_others);
        let jobs = master.dispatch().jobs_from(JobId(0)).filter(|(job, _)| job.host == HostId::SERVER);
        for (job, state) in jobs {
            let own = by_job.get(&job.id).map_or(&[][..], Vec::as_slice);
            self.jobs.extend(recovered_manager(preset, epoch, of_managers, sealing, job, state, own));
        }
        self.master = Some(Box::new(master));
    }

    /// Makes the global master that its seat names and the managers of its jobs, and recovers them from the log.
    ///
    /// # Panics
    /// If it does not have such a seat.
    pub fn recover_global(&mut self, settings: DispatchSettings, queues: QueueTree, changes: Vec<Change>) {
        self.note(|| Entry::GlobalRecovered {
            settings: settings.clone(),
            queues: queues.clone(),
            changes: changes.clone(),
        });
        let Incarnation { preset, epoch, settings: of_managers, sealing, seat, .. } = *self.incarnation;
        let Some(Seat::Global(federation, own)) = seat else { panic!("{seat:?} is not the seat of a global master") };
        let mut global = preset.global_master(epoch, (federation, own), settings, queues);
        global.recover(&changes);
        let mut by_job: BTreeMap<JobId, Vec<Change>> = BTreeMap::new();
        for change in changes {
            if let Some(job) = change.job() {
                by_job.entry(job).or_default().push(change);
            }
        }
        for (job, state) in global.dispatch().jobs_from(JobId(0)) {
            let own = by_job.get(&job.id).map_or(&[][..], Vec::as_slice);
            self.jobs.extend(recovered_manager(preset, epoch, of_managers, sealing, job, state, own));
        }
        self.global = Some(Box::new(global));
    }

    /// Makes this the job host that its epoch names, and recovers its job managers from their log.
    pub fn recover_job_managers(&mut self, changes: Vec<Change>) {
        self.note(|| Entry::JobsRecovered { changes: changes.clone() });
        let Incarnation { epoch, settings, sealing, .. } = *self.incarnation;
        let JobManagerSettings { token_life, node_grace, .. } = settings;
        let mut job_host = JobHost::new(epoch, sealing, JobHostSettings { token_life, node_grace });
        job_host.recover(&changes);
        self.recover_managed(changes);
        self.job_host = Some(Box::new(job_host));
    }

    /// The contents of a snapshot of the store.
    pub fn durable(&self) -> Vec<Change> {
        let mut changes = self.master.as_ref().map(|master| master.durable()).unwrap_or_default();
        changes.extend(self.global.iter().flat_map(|global| global.durable()));
        changes.extend(self.job_host.iter().flat_map(|job_host| job_host.durable()));
        changes.extend(self.jobs.values().flat_map(|manager| manager.durable()));
        changes.extend(self.heard.iter().map(|(&host, &next)| Change::Heard { host, next }));
        changes
    }
}
