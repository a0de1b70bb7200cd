//! What a simulation is told beside its workload and its nodes.

use crate::execution::ExecutionSettings;
use amalgam_core::master::MasterSettings;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::Duration;

#[derive(Clone, Debug)]
pub struct Settings {
    pub preset: Preset,
    pub seed: u64,
    pub master: MasterSettings,
    pub queues: QueueTree,
    pub network: NetworkSettings,
    pub execution: ExecutionSettings,
    pub costs: Costs,
    /// How long an agent waits for its master before it ends what runs.
    pub orphan_lease: Duration,
    /// The simulation ends here even if jobs are left.
    pub until: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NetworkSettings {
    /// From one process to another.
    pub delay: Duration,
    /// Added to each delay, uniformly drawn up to this. Messages between two processes stay in order.
    pub jitter: Duration,
    /// The probability that a packet is lost; it is sent again after `retransmission`.
    pub loss: f64,
    pub retransmission: Duration,
    /// Messages in each direction, of those that were delivered last on a broken connection, that may be delivered again.
    pub repeats: u32,
}

/// What the roles' work costs the process that does it, in nanoseconds. While a process works, what comes in waits.
///
/// The defaults are of the right order, no more: events from the time that simulations take on two cores, the disk from
/// the fdatasync that `amalgam bench latency` prints; messages, launch and exit are assumed. Nothing measures all of them
/// yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// Of an event at the master, its decisions included.
    pub master_event: u64,
    /// Of an event at a job manager.
    pub job_manager_event: u64,
    /// Of an event at a node agent.
    pub node_event: u64,
    /// Of a message that leaves or enters a process: encoding, system call, wake-up.
    pub message: u64,
    /// Of making a turn's changes durable. A server takes what came in meanwhile in its next turn.
    pub disk: u64,
    /// From the order to the running process, and from its exit to the report.
    pub launch: u64,
    pub exit: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            preset: Preset::default(),
            seed: 1,
            master: MasterSettings { heartbeat: Duration::from_secs(10), ..MasterSettings::default() },
            queues: QueueTree::single(),
            network: NetworkSettings::default(),
            execution: ExecutionSettings::default(),
            costs: Costs::default(),
            // As the daemons do.
            orphan_lease: Duration::from_secs(600),
            until: None,
        }
    }
}

impl Default for NetworkSettings {
    fn default() -> NetworkSettings {
        NetworkSettings {
            delay: Duration::from_micros(500),
            jitter: Duration::ZERO,
            loss: 0.0,
            retransmission: Duration::from_millis(200),
            repeats: 0,
        }
    }
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            master_event: 1_500,
            job_manager_event: 1_500,
            node_event: 1_000,
            message: 5_000,
            disk: 150_000,
            launch: 300_000,
            exit: 100_000,
        }
    }
}

impl Costs {
    /// Everything takes no time but the network.
    pub const NONE: Costs =
        Costs { master_event: 0, job_manager_event: 0, node_event: 0, message: 0, disk: 0, launch: 0, exit: 0 };
}
