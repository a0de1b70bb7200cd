//! Which policies a cluster uses, by name. A paper's system is a preset: its policies, in the places where it hosts
//! them.

use crate::job_manager::{JobManager, JobManagerSettings};
use crate::master::{Master, MasterSettings};
use crate::node::{NodeAgent, NodeSettings};
use crate::policy::inter_job::{Drf, Fifo, QueueTree};
use crate::policy::{InterJobPolicy, intra_job, node_queue, placement};
use crate::protocol::AdmittedJob;
use crate::scheduling::{Scheduler, SchedulerSettings};
use crate::vocabulary::{Duration, Epoch, NodeId};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Preset {
    /// Priority, then order of submission.
    Fifo,
    /// Weighted dominant resource fairness over hierarchical queues.
    #[default]
    Drf,
}

/// An ask that found no room for so long gets a node kept free for it.
const RESERVE_AFTER: Duration = Duration::from_secs(30);

impl Preset {
    pub const ALL: [Preset; 2] = [Preset::Fifo, Preset::Drf];

    pub fn name(self) -> &'static str {
        match self {
            Preset::Fifo => "fifo",
            Preset::Drf => "drf",
        }
    }

    /// # Errors
    /// A sentence that lists the presets there are.
    pub fn parse(name: &str) -> Result<Preset, String> {
        Preset::ALL.into_iter().find(|preset| preset.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Preset::ALL.into_iter().map(Preset::name).collect();
            format!("there is no preset `{name}`; there are: {}", known.join(", "))
        })
    }

    fn inter_job(self, queues: QueueTree) -> Box<dyn InterJobPolicy> {
        match self {
            Preset::Fifo => Box::new(Fifo::new(queues)),
            Preset::Drf => Box::new(Drf::new(queues)),
        }
    }

    pub fn scheduler(self, queues: QueueTree) -> Scheduler {
        let settings = SchedulerSettings { reserve_after: Some(RESERVE_AFTER) };
        Scheduler::new(self.inter_job(queues), Box::new(placement::NextFit::default()), settings)
    }

    pub fn master(self, epoch: Epoch, settings: MasterSettings, queues: QueueTree) -> Master {
        let scheduler = self.scheduler(queues.clone());
        Master::new(epoch, settings, queues, scheduler)
    }

    pub fn job_manager(self, job: Arc<AdmittedJob>, epoch: Epoch, settings: JobManagerSettings) -> JobManager {
        JobManager::new(job, epoch, settings, Box::new(intra_job::BreadthFirst))
    }

    pub fn node_agent(self, node: NodeId, settings: NodeSettings) -> NodeAgent {
        NodeAgent::new(node, settings, Box::new(node_queue::Fifo))
    }
}
