//! Many nodes in one process, to measure a scheduler: each has a real node agent and its own connections, but its tasks
//! are only simulated.
//!
//! One event loop runs all node agents and the simulated executor, and one thread all connections. Nothing is stored on
//! disk: when the process exits, its tasks are lost, as on nodes whose machines fail.

use crate::agent::{AgentError, Member, numbered, run_until_stopped};
use crate::descriptors;
use crate::executor::host::Host;
use crate::journal::{JournalPlace, JournalWriter};
use crate::node_setup::NodeOptions;
use crate::sealing::new_sealing;
use crate::server::spawn_loop;
use crate::shell::{Clock, Committer, EventRing, Executor, Handle, Input, Shell};
use crate::transport::{HostLinks, Introduction, JoinError, Joined, OtherNodes, Patience, Secrets, join_patiently};
use amalgam_core::hosting::Roles;
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::node::NodeSettings;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{Epoch, Instant};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

/// Number of nodes that join at the same time. A server closes connections that do not introduce themselves within
/// seconds.
const JOINING: usize = 64;
/// File descriptors of a process without nodes.
const OWN_DESCRIPTORS: u64 = 64;

pub struct HollowOptions {
    /// The server's address for agents.
    pub server: String,
    pub secrets: Secrets,
    /// The settings of each node. Node names are the name given here, a dash and a number.
    pub node: NodeOptions,
    pub count: u32,
    /// Place for the journal of the roles' events and effects.
    pub journal: Option<JournalPlace>,
    /// Time limit for the first connection of each node. Later connections are retried without limit.
    pub patience: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum HollowError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("{count} hollow nodes need {needed} file descriptors, and the limit of this process is {allowed}")]
    Descriptors { count: u32, needed: u64, allowed: u64 },
}

impl From<JoinError> for HollowError {
    fn from(error: JoinError) -> HollowError {
        HollowError::Agent(error.into())
    }
}

/// Runs until the server refuses one of the nodes or `until_stopped` returns. `ready` is called when all nodes have
/// joined.
///
/// # Errors
/// If a node is refused, or the process may not have one connection for each node.
pub fn run(
    options: HollowOptions,
    ready: impl FnOnce(),
    until_stopped: impl FnOnce() + Send + 'static,
) -> Result<(), HollowError> {
    let needed = OWN_DESCRIPTORS + u64::from(options.count);
    let allowed = descriptors::raise();
    if allowed < needed {
        return Err(HollowError::Descriptors { count: options.count, needed, allowed });
    }
    run_until_stopped(until_stopped, async |started| stay(options, ready, started).await)
}

/// The data that all nodes of the process share.
struct Hollow {
    server: String,
    secrets: Secrets,
    patience: Duration,
    /// Settings of each node, except its name.
    settings: NodeSettings,
    preset: Preset,
    handle: Handle,
    /// Limits concurrent joins: one at a time would be slow, all at once would be too many for the server.
    joining: Semaphore,
}

/// Joins all nodes and serves them until the server refuses one.
async fn stay(options: HollowOptions, ready: impl FnOnce(), started: &mut Option<Handle>) -> Result<(), HollowError> {
    let HollowOptions { server, secrets, node, count, journal, patience } = options;
    let settings = node.hollow_settings(&Host::inspect());
    // The first node receives the preset, which is part of the roles.
    let name = hollow_name(&settings.name, 0);
    let first =
        join_patiently(&server, &secrets, || Introduction::Node { name: name.clone() }, Patience::AtFirst(patience))
            .await?;
    let (_, preset) = numbered(&first, &server)?;
    let journal = journal.map(|place| JournalWriter::create(&place, &settings.name)).transpose();
    let handle = started.insert(start_loop(preset, journal.map_err(AgentError::Journal)?)?).clone();
    let joining = Semaphore::new(JOINING);
    let hollow = Arc::new(Hollow { server, secrets, patience, settings, preset, handle, joining });
    let (joined, mut joins) = mpsc::unbounded_channel();
    let mut nodes = JoinSet::new();
    let mut first = Some(first);
    for number in 0..count {
        nodes.spawn(live(Arc::clone(&hollow), number, first.take(), joined.clone()));
    }
    let mut absent = count;
    let mut ready = Some(ready);
    loop {
        tokio::select! {
            Some(ended) = nodes.join_next() => match ended {
                Ok(error) => return Err(error.into()),
                Err(defect) => std::panic::resume_unwind(defect.into_panic()),
            },
            Some(()) = joins.recv() => absent -= 1,
        }
        if absent == 0
            && let Some(ready) = ready.take()
        {
            ready();
        }
    }
}

/// Joins and serves one node until the server refuses it.
async fn live(
    hollow: Arc<Hollow>,
    number: u32,
    joined: Option<Joined>,
    report_joined: mpsc::UnboundedSender<()>,
) -> JoinError {
    let Hollow { server, secrets, patience, settings, preset, handle, joining } = &*hollow;
    let settings = NodeSettings { name: hollow_name(&settings.name, number), ..settings.clone() };
    let name = settings.name.clone();
    let joined = match joined {
        Some(joined) => Ok(joined),
        None => {
            let _place = joining.acquire().await;
            join_patiently(server, secrets, || Introduction::Node { name: name.clone() }, Patience::AtFirst(*patience))
                .await
        }
    };
    let numbered = joined.and_then(|joined| numbered(&joined, server).map(|(node, _)| (joined, node)));
    let (joined, node) = match numbered {
        Ok(numbered) => numbered,
        Err(error) => return error,
    };
    // After the loop has stopped, the node is not needed.
    let _ = handle.send(Input::HollowNode { node, settings: Box::new(settings) });
    let _ = report_joined.send(());
    drop(report_joined);
    let hosts = HostLinks::new(handle.clone(), secrets.clone(), node, |_| {});
    let (server, secrets, handle, preset) = (server.clone(), secrets.clone(), handle.clone(), *preset);
    let others = Arc::new(OtherNodes::default());
    let member = Member { server, secrets, name, node, preset, files: None, others, hosts, handle };
    member.stay(Some(joined)).await
}

fn hollow_name(name: &str, number: u32) -> String {
    format!("{name}-{number}")
}

fn start_loop(preset: Preset, journal: Option<JournalWriter>) -> Result<Handle, HollowError> {
    let sealing = new_sealing().map_err(AgentError::Auth)?;
    let mut roles = Roles::new(preset, Epoch(0), JobManagerSettings::default(), sealing);
    if journal.is_some() {
        roles.keep_journal();
    }
    let clock = Clock::starting_at_least(Instant::ZERO);
    let mut committer = Committer::new(None, Arc::new(EventRing::starting_at(0)), Arc::default());
    committer.executor = Executor::pretended();
    let (shell, handle) = Shell::new(roles, clock, committer, journal, None).map_err(AgentError::Runtime)?;
    spawn_loop(shell).map_err(AgentError::Start)?;
    Ok(handle)
}
