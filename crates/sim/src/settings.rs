//! Settings of a simulation, beside its workload and its nodes.

use crate::execution::ExecutionSettings;
use crate::subject::Subject;
use amalgam_core::master::MasterSettings;
use amalgam_core::policy::completion::Rates;
use amalgam_core::policy::inter_job::QueueTree;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{Duration, Federation};
use std::fmt;

#[derive(Clone, Debug)]
pub struct Settings {
    pub preset: Preset,
    pub seed: u64,
    pub master: MasterSettings,
    /// Number of processes for job managers. 0: job managers run in the server.
    pub manager_processes: u8,
    /// In a federation: the number of clusters, among which the nodes are divided evenly, and the number of global
    /// masters.
    pub federation: Option<(u8, u8)>,
    pub queues: QueueTree,
    pub network: NetworkSettings,
    pub execution: ExecutionSettings,
    pub files: FileSettings,
    /// Stores inputs on nodes. If `None`, the locations of inputs are unknown and do not affect the run times of tasks.
    pub inputs: Option<InputSettings>,
    pub costs: Costs,
    /// How long the owner of an attempt may be disconnected before the attempt's node stops it.
    pub orphan_lease: Duration,
    /// Nodes join one after the other within this time, so that their heartbeats do not arrive at the same time.
    pub join_over: Duration,
    /// Nodes that report less work than they have.
    pub understating: Understating,
    /// The node whose limits for opportunistic work are recorded.
    pub watched: Option<usize>,
    /// The job, by its number in the workload, whose number of running tasks is recorded.
    pub watched_job: Option<u32>,
    /// Records the allowances of jobs and compares the ends of jobs with those of an oracle.
    pub oracle: bool,
    /// The simulation ends at this time even if jobs have not ended.
    pub until: Option<Duration>,
    /// Reports of nodes that say nothing new are charged and not simulated, where that makes no difference.
    pub rests: bool,
    /// The simulation ends as soon as a job is refused.
    pub strict: bool,
    /// The subject whose story is recorded.
    pub story: Option<Subject>,
}

/// Arrival time of a job that arrives when another job of its queue has ended, as in a closed loop.
pub const ONCE_ANOTHER_ENDED: Duration = Duration(u64::MAX);

/// The first `nodes` nodes report their waiting and running work divided by `divisor`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Understating {
    pub nodes: usize,
    pub divisor: u64,
}

impl Understating {
    pub const NONE: Understating = Understating { nodes: 0, divisor: 1 };
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NetworkSettings {
    /// From one process to another.
    pub delay: Duration,
    /// Maximum of a uniformly drawn time that is added to each delay. Messages between two processes stay in order.
    pub jitter: Duration,
    /// The probability that a packet is lost; it is sent again after `retransmission`.
    pub loss: f64,
    pub retransmission: Duration,
    /// How many of the messages that were delivered last on a broken connection may be delivered again, in each
    /// direction.
    pub repeats: u32,
}

/// Files that tasks write for other tasks.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FileSettings {
    /// Size of each file.
    pub bytes: u64,
    /// Transfer rate from one node to another, for each file separately.
    pub bytes_per_second: u64,
    /// Size of a node's cache of files.
    pub cache_bytes: u64,
    /// The probability that a transfer delivers a wrong file.
    pub wrong: f64,
    /// The probability that a transfer takes [`SLOW_FILE`] times as long.
    pub slow: f64,
    /// The probability that a transfer fails because the copy at the source is damaged.
    pub spoiled: f64,
    /// In every other job, each attempt writes different content, as programs do that use random numbers or the clock.
    pub vary: bool,
}

pub const SLOW_FILE: u64 = 100;

/// How inputs of tasks are stored on nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InputSettings {
    /// Maximum size of a block.
    pub block_bytes: u64,
    /// Number of nodes that store each block.
    pub replicas: u32,
    /// How fast tasks read.
    pub rates: Rates,
}

/// The time that work costs the process that does it, in nanoseconds. While a process works, its inputs wait.
///
/// The defaults are measurements of `amalgam-lab bench costs` on a virtual machine with two cores: medians of four
/// runs, rounded to two digits. The exit varied most, from 55 to 642 us. The cost of a decision is from `amalgam-lab
/// bench decisions` instead (drf, 1,000 nodes and 1,000 pending jobs: 300,000 decisions per second), because a decision
/// takes a fifteenth of that time on the two nodes of `bench costs`. `amalgam-lab bench agreement` compares the
/// resulting waits with real ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// Of an event at a master or global master, without its decisions.
    pub master_event: u64,
    /// Of an event at a job manager.
    pub job_manager_event: u64,
    /// Of an event at a node agent.
    pub node_event: u64,
    /// Of placing a task, or of a probe.
    pub decision: u64,
    /// Of a message that leaves or enters a process: encoding, system call, wake-up.
    pub message: u64,
    /// Of making the changes of a turn durable. A server takes inputs that arrive in the meantime in its next turn.
    pub disk: u64,
    /// Of a launch: from the order to the running process.
    pub launch: u64,
    /// Of an exit: from the exit of the process to its report.
    pub exit: u64,
}

/// Parses a time with its unit into nanoseconds, up to 10^13 (2.8 hours).
fn parse_nanos(text: &str) -> Option<u64> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let (number, unit) = units.iter().find_map(|(unit, nanos)| Some((text.strip_suffix(unit)?, nanos)))?;
    let nanos = number.parse::<f64>().ok()? * unit;
    (0.0..1e13).contains(&nanos).then_some(nanos.round() as u64)
}

impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut costs = *self;
        let parts = costs.parts().map(|(name, nanos)| format!("{name}={}us", *nanos as f64 / 1e3));
        f.write_str(&parts.join(","))
    }
}

impl Settings {
    /// The federation with this number of nodes, if the settings define one.
    pub fn federation_of(&self, nodes: usize) -> Option<Federation> {
        self.federation.map(|(clusters, globals)| {
            let span = nodes.div_ceil(usize::from(clusters)).max(1) as u32;
            Federation { clusters, globals, span }
        })
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            preset: Preset::default(),
            seed: 1,
            master: MasterSettings { heartbeat: Duration::from_secs(10), ..MasterSettings::default() },
            manager_processes: 0,
            federation: None,
            queues: QueueTree::single(),
            network: NetworkSettings::default(),
            execution: ExecutionSettings::default(),
            files: FileSettings::default(),
            inputs: None,
            costs: Costs::default(),
            // Shorter than the daemons' 3,600 s.
            orphan_lease: Duration::from_secs(600),
            join_over: Duration::ZERO,
            understating: Understating::NONE,
            watched: None,
            watched_job: None,
            oracle: false,
            until: None,
            rests: true,
            strict: false,
            story: None,
        }
    }
}

impl Default for FileSettings {
    fn default() -> FileSettings {
        FileSettings {
            bytes: 1 << 20,
            bytes_per_second: 100 << 20,
            cache_bytes: 10 << 30,
            wrong: 0.0,
            spoiled: 0.0,
            slow: 0.0,
            vary: false,
        }
    }
}

impl FileSettings {
    /// How long the transfer of a file takes.
    pub fn transfer(&self, bytes: u64) -> Duration {
        Duration::from_micros((u128::from(bytes) * 1_000_000 / u128::from(self.bytes_per_second.max(1))) as u64)
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
            master_event: 590,
            job_manager_event: 390,
            node_event: 130,
            decision: 3_300,
            message: 32_000,
            disk: 120_000,
            launch: 1_500_000,
            exit: 410_000,
        }
    }
}

impl Costs {
    /// Of a node's report, at its agent, in nanoseconds.
    pub fn report(&self) -> u64 {
        self.node_event + self.message
    }

    /// Of a node's report, at the master, in nanoseconds.
    pub fn received_report(&self) -> u64 {
        self.master_event + self.message
    }

    /// The parts with their names on the command line.
    fn parts(&mut self) -> [(&'static str, &mut u64); 8] {
        [
            ("master-event", &mut self.master_event),
            ("job-manager-event", &mut self.job_manager_event),
            ("node-event", &mut self.node_event),
            ("decision", &mut self.decision),
            ("message", &mut self.message),
            ("disk", &mut self.disk),
            ("launch", &mut self.launch),
            ("exit", &mut self.exit),
        ]
    }

    /// Sets parts, such as `message=12.5us,disk=1ms`. The other parts are unchanged.
    ///
    /// # Errors
    /// A message that names the invalid part and the allowed values.
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        for part in text.split(',') {
            let (name, time) =
                part.split_once('=').ok_or_else(|| format!("invalid cost `{part}`; write disk=150us"))?;
            let nanos =
                parse_nanos(time).ok_or_else(|| format!("invalid time `{time}`; write 800ns, 12.5us or 1ms"))?;
            let mut parts = self.parts();
            let known = parts.each_ref().map(|(known, _)| *known).join(", ");
            let place = parts.iter_mut().find(|(known, _)| *known == name);
            *place.ok_or_else(|| format!("unknown cost `{name}`; known: {known}"))?.1 = nanos;
        }
        Ok(())
    }

    /// No work takes time. Only the network has delays.
    pub const NONE: Costs = Costs {
        master_event: 0,
        job_manager_event: 0,
        node_event: 0,
        decision: 0,
        message: 0,
        disk: 0,
        launch: 0,
        exit: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_costs_can_be_parsed_and_errors_name_the_allowed_values() {
        let mut costs = Costs::NONE;
        costs.set(&Costs::default().to_string()).unwrap();
        assert_eq!(costs, Costs::default());
        costs.set("message=800ns,disk=1.5ms").unwrap();
        assert_eq!((costs.message, costs.disk), (800, 1_500_000));
        let mistake = |text: &str| Costs::default().set(text).unwrap_err();
        assert!(mistake("tape=1ms").contains("unknown cost `tape`; known: master-event, job-manager-event"));
        for time in ["1", "-1us", "us", "infs", "1h"] {
            assert!(mistake(&format!("disk={time}")).contains("invalid time"), "{time}");
        }
        assert!(mistake("disk").contains("invalid cost `disk`"));
    }
}
