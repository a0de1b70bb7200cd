//! What a simulation is told beside its workload and its nodes.

use crate::execution::ExecutionSettings;
use crate::story::Subject;
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
    /// Processes among which job managers are shared out; none: they are in the server.
    pub manager_processes: u8,
    /// In a federation: so many clusters, each with as many of the nodes, and so many global masters.
    pub federation: Option<(u8, u8)>,
    pub queues: QueueTree,
    pub network: NetworkSettings,
    pub execution: ExecutionSettings,
    pub files: FileSettings,
    /// Inputs lie on nodes; without it nobody says where they are, and it takes no longer to read them from afar.
    pub inputs: Option<InputSettings>,
    pub costs: Costs,
    /// How long an agent waits for its master before it ends what runs.
    pub orphan_lease: Duration,
    /// Nodes join one after the other within so long, so that their heartbeats do not come at once.
    pub join_over: Duration,
    /// Nodes that report less than waits there.
    pub understating: Understating,
    /// The node whose limits are written down.
    pub watched: Option<usize>,
    /// The job, by its number in the workload, whose running tasks are written down.
    pub watched_job: Option<u32>,
    /// What jobs are allowed is kept, and their ends are compared with an oracle's.
    pub oracle: bool,
    /// The simulation ends here even if jobs are left.
    pub until: Option<Duration>,
    /// The simulation ends as soon as there is a job that can never run.
    pub strict: bool,
    /// Whose story to keep.
    pub story: Option<Subject>,
}

/// The arrival of a job that comes when one of its queue has ended, as in a closed loop.
pub const ONCE_ANOTHER_ENDED: Duration = Duration(u64::MAX);

/// The first `nodes` of all report only one part in `divisor` of the work that waits and runs there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Understating {
    pub nodes: usize,
    pub divisor: u64,
}

impl Understating {
    pub const NOBODY: Understating = Understating { nodes: 0, divisor: 1 };
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

/// Files that tasks leave for others.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FileSettings {
    /// Of each file.
    pub bytes: u64,
    /// From one node to another, each file by itself.
    pub bytes_per_second: u64,
    /// What a node keeps.
    pub cache_bytes: u64,
    /// The probability that another file comes than was asked for.
    pub wrong: f64,
    /// The probability that a file takes [`SLOW_FILE`] times as long.
    pub slow: f64,
    /// The probability that it does because the copy there is damaged, and stays so.
    pub spoiled: f64,
    /// Attempts of every other job leave each something else, as programs do that draw or look at the clock.
    pub vary: bool,
}

pub const SLOW_FILE: u64 = 100;

/// Inputs of tasks on nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InputSettings {
    /// The most in one block.
    pub block_bytes: u64,
    /// Nodes that have each block.
    pub replicas: u32,
    /// How fast tasks read.
    pub rates: Rates,
}

/// What the roles' work costs the process that does it, in nanoseconds. While a process works, what comes in waits.
///
/// The defaults are what `amalgam-lab bench costs` prints on a virtual machine of two cores, the medians of four runs in two
/// digits; the exit varied most, from 55 to 642 us. A decision is of `amalgam-lab bench decisions` instead (drf, 1,000 nodes
/// and as many pending jobs: 300,000 a second), since on the two nodes of the other it takes a fifteenth of that. `amalgam-lab bench
/// agreement` compares the waits that follow with real ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// Of an event at a master, or a global master, without what it decides.
    pub master_event: u64,
    /// Of an event at a job manager.
    pub job_manager_event: u64,
    /// Of an event at a node agent.
    pub node_event: u64,
    /// Of placing a task, or of a probe.
    pub decision: u64,
    /// Of a message that leaves or enters a process: encoding, system call, wake-up.
    pub message: u64,
    /// Of making a turn's changes durable. A server takes what came in meanwhile in its next turn.
    pub disk: u64,
    /// From the order to the running process, and from its exit to the report.
    pub launch: u64,
    pub exit: u64,
}

/// Nanoseconds of a time below some hours, with its unit.
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
    /// The federation of which so many nodes are, if there is one.
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
            // As the daemons do.
            orphan_lease: Duration::from_secs(600),
            join_over: Duration::ZERO,
            understating: Understating::NOBODY,
            watched: None,
            watched_job: None,
            oracle: false,
            until: None,
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
    /// How long a file is on its way.
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
    /// By the names that a command line uses.
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

    /// Sets parts as in `message=12.5us,disk=1ms`; the others stay.
    ///
    /// # Errors
    /// A sentence that says what is allowed.
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        for part in text.split(',') {
            let (name, time) = part.split_once('=').ok_or_else(|| format!("`{part}` is no cost; write disk=150us"))?;
            let nanos = parse_nanos(time).ok_or_else(|| format!("`{time}` is no time; write 800ns, 12.5us or 1ms"))?;
            let mut parts = self.parts();
            let known = parts.each_ref().map(|(known, _)| *known).join(", ");
            let place = parts.iter_mut().find(|(known, _)| *known == name);
            *place.ok_or_else(|| format!("there is no cost `{name}`; there are: {known}"))?.1 = nanos;
        }
        Ok(())
    }

    /// Everything takes no time but the network.
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
    fn costs_are_read_as_they_are_printed_and_mistakes_say_what_is_allowed() {
        let mut costs = Costs::NONE;
        costs.set(&Costs::default().to_string()).unwrap();
        assert_eq!(costs, Costs::default());
        costs.set("message=800ns,disk=1.5ms").unwrap();
        assert_eq!((costs.message, costs.disk), (800, 1_500_000));
        let mistake = |text: &str| Costs::default().set(text).unwrap_err();
        assert!(mistake("tape=1ms").contains("there is no cost `tape`; there are: master-event, job-manager-event"));
        for time in ["1", "-1us", "us", "infs", "1h"] {
            assert!(mistake(&format!("disk={time}")).contains("is no time"), "{time}");
        }
        assert!(mistake("disk").contains("is no cost"));
    }
}
