//! The settings of a node: this machine or an emulated part of it.

use crate::executor::Enforcement;
use crate::executor::host::Host;
use crate::executor::{Mechanism, RunAs};
use crate::versions::PROGRAM;
use amalgam_core::node::NodeSettings;
use amalgam_core::vocabulary::job::CONTAINER;
use amalgam_core::vocabulary::resources::GPU;
use amalgam_core::vocabulary::{Attributes, Duration, ResourceSpec, Resources, WHOLE_GPU};
use nix::unistd::{User, geteuid};

/// How a node differs from its machine.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NodeOptions {
    pub name: Option<String>,
    pub cpu_millis: Option<u32>,
    pub memory_mib: Option<u32>,
    pub gpus: Option<u32>,
    /// Devices of other kinds, by name.
    pub resources: Vec<(String, u32)>,
    pub attributes: Vec<(String, String)>,
    /// Bytes of files that the node caches for tasks.
    pub cache_bytes: Option<u64>,
}

/// Default size of the file cache in bytes.
pub const DEFAULT_CACHE: u64 = 10 << 30;

impl NodeOptions {
    /// Settings of a hollow node. Nothing is enforced, because no task runs.
    pub fn hollow_settings(&self, host: &Host) -> NodeSettings {
        let hollow = ("hollow".to_owned(), "true".to_owned());
        let options = NodeOptions { attributes: [self.attributes.clone(), vec![hollow]].concat(), ..self.clone() };
        let notes = vec!["tasks are only simulated: nothing runs, and all tasks succeed".to_owned()];
        let (enforces_memory, enforces_cpu) = (false, false);
        options.settings(host, &Enforcement { mechanism: Mechanism::None, enforces_memory, enforces_cpu, notes }, None)
    }

    /// `runs_as` is as whom tasks run; `None` if they do not run.
    pub fn settings(&self, host: &Host, enforcement: &Enforcement, runs_as: Option<RunAs>) -> NodeSettings {
        let cpu_millis = self.cpu_millis.unwrap_or(host.cpus.saturating_mul(1_000));
        let memory_mib = self.memory_mib.unwrap_or(host.memory_mib);
        let gpus = self.gpus.unwrap_or(host.gpus);
        let mut attributes = vec![
            ("arch".to_owned(), host.arch.clone()),
            ("kernel".to_owned(), host.kernel.clone()),
            ("hostname".to_owned(), host.hostname.clone()),
        ];
        if host.containers {
            attributes.push((CONTAINER.to_owned(), "yes".to_owned()));
        }
        attributes.extend(host.os.iter().map(|os| ("os".to_owned(), os.clone())));
        // Attributes of the operator have priority: of two with the same name the first is kept.
        let own = self.attributes.iter().cloned().chain(attributes);
        let mut seen = std::collections::BTreeMap::new();
        for (name, value) in own {
            seen.entry(name).or_insert(value);
        }
        NodeSettings {
            name: self.name.clone().unwrap_or_else(|| host.hostname.clone()),
            capacity: ResourceSpec {
                basic: Resources::new(cpu_millis, memory_mib).with(GPU, gpus.saturating_mul(WHOLE_GPU)),
                custom: self.resources.clone(),
            },
            attributes: Attributes::new(seen),
            enforcement: sentences(enforcement, runs_as),
            orphan_lease: Duration::from_secs(3_600),
            stop_grace: Duration::from_secs(10),
            cache_bytes: self.cache_bytes.unwrap_or(DEFAULT_CACHE),
            program: Some(PROGRAM.to_owned()),
        }
    }
}

/// The name of this process's user, or the number if it has none.
fn own_name() -> String {
    let user = geteuid();
    let found = User::from_uid(user).ok().flatten();
    found.map_or_else(|| format!("the user with the id {user}"), |user| user.name)
}

/// The mechanism first, then what it enforces and what it does not.
fn sentences(enforcement: &Enforcement, runs_as: Option<RunAs>) -> Vec<String> {
    let name = match enforcement.mechanism {
        Mechanism::CgroupV2 => "cgroup v2",
        Mechanism::CgroupV1 => "cgroup v1",
        Mechanism::Polling => "rlimits and polling",
        Mechanism::None => "none",
    };
    let mut sentences = vec![name.to_owned()];
    let says =
        |enforced: bool, what: &str| format!("{what} {}", if enforced { "is enforced" } else { "is not enforced" });
    sentences.push(says(enforcement.enforces_memory, "memory"));
    sentences.push(says(enforcement.enforces_cpu, "CPU"));
    sentences.extend(enforcement.notes.iter().cloned());
    sentences.extend(runs_as.map(|runs_as| match runs_as {
        RunAs::Agent => format!("tasks run as {}", own_name()),
        RunAs::JobUser { .. } => format!("tasks run {runs_as}"),
    }));
    sentences
}
