//! The process of a node agent. It connects to the executor, then to the server, and runs until it is stopped.

use crate::auth::AuthError;
use crate::executor::host::Host;
use crate::executor::{self, ExecutorError};
use crate::files::direct::{FilesAddress, Port};
use crate::files::{FileStore, Source};
use crate::journal::{JournalError, JournalPlace, JournalWriter};
use crate::kept_output;
use crate::lock::LockError;
use crate::node_setup::NodeOptions;
use crate::sealing::new_sealing;
use crate::server::{ServerError, executor_paths, spawn_loop};
use crate::shell::fetcher::{Fetcher, fetcher};
use crate::shell::{Clock, Committer, EventRing, ExecutorLink, ExecutorSetup, Handle, Input, Shell};
use crate::stored_terms;
use crate::transport::{
    HostLinks, Introduction, JoinError, Joined, OtherNodes, Patience, RETRY, Secrets, Terms, join_for_ever,
    join_patiently, serve_server,
};
use amalgam_core::hosting::Roles;
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::{Epoch, HostId, Instant, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// An agent that knows its node number continues without the server if it cannot connect within this time.
const BRIEFLY: Duration = Duration::from_secs(3);

pub struct AgentOptions {
    /// The server's address for agents; addresses of standbys may follow, separated by commas.
    pub server: String,
    pub secrets: Secrets,
    pub node: NodeOptions,
    /// The executor of this agent, which no other process uses.
    pub executor: ExecutorSetup,
    /// Place for the journal of the role's events and effects.
    pub journal: Option<JournalPlace>,
    /// Time limit for the first connection. Later connections are retried without limit.
    pub patience: Duration,
    /// Where other nodes fetch files of this one.
    pub files_address: FilesAddress,
}

/// The server's terms for this node, which a later run uses while the server is not connected.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct NodeTerms {
    /// The server that sent the other values. They are invalid for any other server.
    server: String,
    name: String,
    node: NodeId,
    preset: Preset,
    job_hosts: BTreeMap<HostId, String>,
}

impl NodeTerms {
    /// The stored terms for this name at this server.
    fn load(files: &Path, server: &str, name: &str) -> Option<NodeTerms> {
        let terms: NodeTerms = stored_terms::load(files).ok()??;
        (terms.server == server && terms.name == name).then_some(terms)
    }

    /// Stores the terms. If that fails, the next run needs the server to start.
    fn store(&self, files: &Path) {
        if let Err(error) = stored_terms::store(files, self) {
            let path = stored_terms::path(files);
            tracing::warn!(path = %path.display(), %error, "cannot store the server's answer");
        }
    }
}

/// The server of the agent that last used this work directory.
pub fn known_server(work_dir: &Path) -> Option<String> {
    let terms: NodeTerms = stored_terms::load(&executor_paths(work_dir).0).ok()??;
    Some(terms.server)
}

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Start(#[from] ServerError),
    #[error("cannot start the network's threads: {0}")]
    Runtime(std::io::Error),
    #[error("{0}")]
    FilesPort(std::io::Error),
}

/// Runs until the server refuses this node or `until_stopped` returns. Call it before other threads start, because it
/// starts the executor.
pub fn run(
    options: AgentOptions,
    joined_as: impl FnMut(&str),
    until_stopped: impl FnOnce() + Send + 'static,
) -> Result<(), AgentError> {
    // First of all: a second agent must not use the executor of the first.
    let _lock = executor::claim(&options.executor.config.state)?;
    let executor = ExecutorLink::open(options.executor.clone())?;
    run_until_stopped(until_stopped, async |started| stay(options, executor, joined_as, started).await)
}

/// Runs `stay` until it returns or `until_stopped` does. Then it stops the event loop in `started`, which handles all
/// earlier inputs first.
pub(crate) fn run_until_stopped<E: From<AgentError>>(
    until_stopped: impl FnOnce() + Send + 'static,
    stay: impl AsyncFnOnce(&mut Option<Handle>) -> Result<(), E>,
) -> Result<(), E> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("network")
        .enable_all()
        .build()
        .map_err(AgentError::Runtime)?;
    let (stop, stopped) = oneshot::channel();
    let wait = move || {
        until_stopped();
        let _ = stop.send(());
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(AgentError::Runtime)?;
    let ended = runtime.block_on(async {
        let mut started = None;
        let ended = tokio::select! {
            ended = stay(&mut started) => ended,
            _ = stopped => Ok(()),
        };
        let (done, is_done) = oneshot::channel();
        if started.is_some_and(|handle| handle.send(Input::Stop(done)).is_ok()) {
            let _ = is_done.await;
        }
        ended
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

/// Joins the server and serves it until the server refuses this node. `started` receives the handle of the event loop.
async fn stay(
    options: AgentOptions,
    executor: ExecutorLink,
    mut joined_as: impl FnMut(&str),
    started: &mut Option<Handle>,
) -> Result<(), AgentError> {
    let AgentOptions { server, secrets, node, journal, patience, files_address, .. } = options;
    let files = executor.setup().config.state.clone();
    let output_limit = executor.setup().output_limit;
    let sealing = new_sealing()?;
    let settings = node.settings(&Host::inspect(), &executor.enforcement, Some(executor.run_as));
    let name = settings.name.clone();
    let introduction = || Introduction::Node { name: name.clone() };
    let before = NodeTerms::load(&files, &server, &name).filter(|terms| !terms.job_hosts.is_empty());
    let patience = if before.is_some() { Patience::Briefly(BRIEFLY) } else { Patience::AtFirst(patience) };
    let first = match join_patiently(&server, &secrets, introduction, patience).await {
        Ok(joined) => Some(joined),
        Err(error) if before.is_none() || error.is_lasting() => return Err(error.into()),
        Err(error) => {
            tracing::warn!("{error}; continuing with the job managers of the last run");
            None
        }
    };
    let terms = match (first.as_ref().map(|joined| numbered(joined, &server)).transpose()?, before) {
        (Some((node, preset)), before) => {
            let job_hosts = before.filter(|terms| terms.node == node).map(|terms| terms.job_hosts).unwrap_or_default();
            NodeTerms { server: server.clone(), name: name.clone(), node, preset, job_hosts }
        }
        (None, Some(before)) => before,
        (None, None) => unreachable!("without stored values the error was returned"),
    };
    let port = Port::new(files.clone(), terms.node, files_address).map_err(AgentError::FilesPort)?;
    let local = first.as_ref().and_then(|joined| joined.local);
    // An address of the command line that cannot be used is said now.
    port.listen(local).await.map_err(AgentError::FilesPort)?;
    joined_as(&name);
    // The node's number is part of the role, so the loop can only start once the number is known.
    let NodeTerms { node, preset, ref job_hosts, .. } = terms;
    let mut roles = Roles::new(preset, Epoch(0), JobManagerSettings::default(), sealing);
    let journal = journal.map(|place| JournalWriter::create(&place, &name)).transpose()?;
    if journal.is_some() {
        roles.keep_journal();
    }
    roles.add_local_node(node, settings);
    let (fetcher, orders) = fetcher();
    let handle = started.insert(start_loop(roles, journal, files.clone(), fetcher)?).clone();
    FileStore::remove_others(&files, node);
    FileStore::remove_remains(&files);
    let others = Arc::new(OtherNodes::with_port(Arc::new(port)));
    let source = Arc::clone(&others) as Arc<dyn Source>;
    tokio::spawn(orders.carry_out(files.clone(), Some(source), handle.clone()));
    tokio::spawn(kept_output::keep_within(output_limit, files.clone(), handle.clone()));
    // The loop has just started and accepts inputs.
    let _ = handle.send(Input::ExecutorConnected(Box::new(executor)));
    let store = {
        let (terms, files) = (terms.clone(), files.clone());
        move |hosts: &BTreeMap<HostId, String>| NodeTerms { job_hosts: hosts.clone(), ..terms.clone() }.store(&files)
    };
    let hosts = HostLinks::new(handle.clone(), secrets.clone(), node, store);
    terms.store(&files);
    hosts.know(job_hosts.clone());
    let member = Member { server, secrets, name, node, preset, files: Some(files), others, hosts, handle };
    Err(member.stay(first).await.into())
}

/// One node of this process, and its connections.
pub(crate) struct Member {
    pub server: String,
    pub secrets: Secrets,
    pub name: String,
    pub node: NodeId,
    pub preset: Preset,
    /// The executor's state directory. `None` if tasks are only simulated.
    pub files: Option<PathBuf>,
    pub others: Arc<OtherNodes>,
    pub hosts: HostLinks,
    pub handle: Handle,
}

impl Member {
    /// Serves the server until it permanently refuses this node or assigns it another number. `joined` is a connection
    /// that exists already. After a disconnection it connects again without limit; tasks continue meanwhile.
    pub async fn stay(&self, mut joined: Option<Joined>) -> JoinError {
        let Member { server, secrets, name, node, preset, files, others, hosts, handle } = self;
        loop {
            if let Some(joined) = joined.take() {
                if let Some(port) = &others.port
                    && let Err(error) = port.listen(joined.local).await
                {
                    tracing::warn!("{error}; other nodes get files of this one through the server");
                }
                let end = serve_server(joined, *node, handle, files.as_deref(), others, hosts).await;
                tracing::warn!(name, %end, "lost the connection to the server");
                tokio::time::sleep(RETRY.0).await;
            }
            let introduction = || Introduction::Node { name: name.clone() };
            let (again, number, rules) = match join_again(server, secrets, introduction).await {
                Ok(again) => again,
                Err(error) => return error,
            };
            tracing::warn!(name, "connected to the server again");
            if number != *node {
                let why = format!(
                    "the number of this node changed from {node} to {number}: the server has lost its state; restart \
                     the agent"
                );
                if let Some(files) = files {
                    // The next run must not use the old number.
                    let _ = fs::remove_file(stored_terms::path(files));
                }
                return JoinError::lasting(server, why);
            }
            if rules != *preset {
                tracing::warn!("the server now uses other scheduling settings; restart this agent to apply them");
            }
            joined = Some(again);
        }
    }
}

async fn join_again(
    server: &str,
    secrets: &Secrets,
    introduction: impl Fn() -> Introduction,
) -> Result<(Joined, NodeId, Preset), JoinError> {
    let joined = join_for_ever(server, secrets, introduction).await;
    let (node, preset) = numbered(&joined, server)?;
    Ok((joined, node, preset))
}

pub(crate) fn numbered(joined: &Joined, server: &str) -> Result<(NodeId, Preset), JoinError> {
    match &joined.terms {
        Terms::Node { node, preset } => Ok((*node, **preset)),
        Terms::NodeOf | Terms::JobHost { .. } | Terms::Global | Terms::Join(_) | Terms::Standby => {
            let why = "it treats this process as another kind of daemon".to_owned();
            Err(JoinError::lasting(server, why))
        }
    }
}

fn start_loop(
    roles: Roles,
    journal: Option<JournalWriter>,
    files: PathBuf,
    fetcher: Fetcher,
) -> Result<Handle, AgentError> {
    let clock = Clock::starting_at_least(Instant::ZERO);
    let mut committer = Committer::new(None, Arc::new(EventRing::starting_at(0)), Arc::default());
    committer.executor.fetch_with(fetcher);
    let (shell, handle) = Shell::new(roles, clock, committer, journal, Some(files)).map_err(AgentError::Runtime)?;
    spawn_loop(shell)?;
    Ok(handle)
}
