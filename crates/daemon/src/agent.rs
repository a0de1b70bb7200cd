//! A node's agent as a process of its own: it reaches the executor first, then the server, and stays until stopped.

use crate::auth::AuthError;
use crate::executor::host::Host;
use crate::executor::{self, ExecutorError};
use crate::files::{Fetcher, FileStore, Source, fetcher};
use crate::journal::{JournalError, JournalWriter};
use crate::lock::LockError;
use crate::node_setup::NodeOptions;
use crate::sealing::new_sealing;
use crate::server::{ServerError, spawn_loop};
use crate::shell::{Clock, Committer, EventRing, ExecutorLink, ExecutorSetup, Handle, Input, Shell};
use crate::transport::{JoinError, Joined, OtherNodes, Upstream, serve_server};
use amalgam_core::hosting::Roles;
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::vocabulary::{Epoch, Instant};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// Between two tries to reach the server: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

pub struct AgentOptions {
    pub upstream: Upstream,
    pub node: NodeOptions,
    /// For this agent alone.
    pub executor: ExecutorSetup,
    /// A directory in which what the role takes and leaves is written down.
    pub journal: Option<PathBuf>,
    /// How long the first connection may take; later ones are tried for ever.
    pub patience: Duration,
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
}

/// Runs until the server refuses this node or `until_stopped` returns. Call it before other threads start: it starts the
/// executor.
pub fn run(
    options: AgentOptions,
    joined_as: impl FnMut(&str),
    until_stopped: impl FnOnce() + Send + 'static,
) -> Result<(), AgentError> {
    // Before anything else: a second agent must not touch the executor of the first.
    let _lock = executor::claim(&options.executor.config.state)?;
    let executor = ExecutorLink::open(options.executor.clone())?;
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
            ended = stay(options, executor, joined_as, &mut started) => ended,
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

/// Serves the server for as long as it takes this node; the loop that it starts is `started`.
async fn stay(
    options: AgentOptions,
    executor: ExecutorLink,
    mut joined_as: impl FnMut(&str),
    started: &mut Option<Handle>,
) -> Result<(), AgentError> {
    let AgentOptions { mut upstream, node, journal, patience, .. } = options;
    let files = executor.setup().config.state.clone();
    let sealing = new_sealing()?;
    let settings = node.settings(&Host::inspect(), &executor.enforcement);
    upstream.name.clone_from(&settings.name);
    let first = join_patiently(&upstream, Some(patience)).await?;
    joined_as(&upstream.name);
    // The number that the server gave is part of the role, so the loop starts with the first connection.
    let mut roles = Roles::new(first.preset, Epoch(0), JobManagerSettings::default(), sealing);
    let name = &upstream.name;
    let journal = journal.map(|directory| JournalWriter::create(&directory, name)).transpose()?;
    if journal.is_some() {
        roles.keep_journal();
    }
    roles.add_local_node(first.node, settings);
    let (fetcher, orders) = fetcher();
    let handle = started.insert(start_loop(roles, journal, files.clone(), fetcher)?).clone();
    FileStore::remove_others(&files, first.node);
    FileStore::remove_remains(&files);
    let others = Arc::new(OtherNodes::default());
    let source = Arc::clone(&others) as Arc<dyn Source>;
    tokio::spawn(orders.carry_out(files.clone(), Some(source), handle.clone()));
    // The loop was started just now and takes what it is sent.
    let _ = handle.send(Input::ExecutorConnected(Box::new(executor)));
    let (node, preset) = (first.node, first.preset);
    let mut joined = first;
    loop {
        let end = serve_server(joined, &handle, &files, &others).await;
        tracing::warn!(%end, "the connection to the server broke");
        joined = join_patiently(&upstream, None).await?;
        if joined.node != node {
            let why = format!(
                "it was {node} before and would be {} now: the server has lost its state; start the agent again",
                joined.node
            );
            return Err(JoinError::Refused { server: upstream.server.clone(), why }.into());
        }
        if joined.preset != preset {
            tracing::warn!("the server schedules by other rules than before; start this agent again to follow them");
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

/// Tries again while the server cannot be reached; what it refuses, it would refuse again. Without a limit to its
/// patience it also waits for as long as the server takes the node's old connection for a good one.
async fn join_patiently(upstream: &Upstream, patience: Option<Duration>) -> Result<Joined, JoinError> {
    let started = tokio::time::Instant::now();
    let mut pause = RETRY.0;
    let mut said = String::new();
    let mut say_once = |why: String| {
        if why != said {
            tracing::warn!("still trying: {why}");
            said = why;
        }
    };
    loop {
        match upstream.join().await {
            Err(JoinError::Unreachable { server, error }) => {
                if patience.is_some_and(|patience| started.elapsed() >= patience) {
                    return Err(JoinError::Unreachable { server, error });
                }
                say_once(format!("the server at {server} cannot be reached: {error}"));
            }
            // Its old connection may be seen as broken only in a moment.
            Err(JoinError::Refused { why, server }) if why.contains("is connected already") => {
                if patience.is_some() && started.elapsed() > Duration::from_secs(10) {
                    return Err(JoinError::Refused { server, why });
                }
                say_once(why);
            }
            other => return other,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}
