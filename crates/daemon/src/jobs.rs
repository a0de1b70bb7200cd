//! The process of a job host: it runs job managers, has a log, continues while the server is not connected, and runs
//! until it is stopped (ADR 49).

use crate::auth::AuthError;
use crate::channel::Certificate;
use crate::config::{is_address, is_local, is_loopback};
use crate::descriptors;
use crate::identity::Presented;
use crate::journal::{JournalError, JournalPlace, JournalWriter};
use crate::private::make_private_dir;
use crate::sealing::new_sealing;
use crate::server::is_here;
use crate::server::{ServerError, asynchronous, bind_all, changes, local_addresses, resolve_all, spawn_loop};
use crate::shell::{Clock, Committer, EventRing, Handle, Input, Metrics, Shell};
use crate::store::ServerId;
use crate::store::{Options, Recovered, Store, StoreError};
use crate::stored_terms::{self, LoadError};
use crate::transport::{
    Gate, Introduction, JoinError, Joined, Patience, RETRY, Secrets, Side, Terms, join_for_ever, join_patiently,
    serve_as_job_host, serve_daemons,
};
use amalgam_core::hosting::{Managers, Roles};
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::vocabulary::{Epoch, HostId};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// A job host that has joined before continues without the server if it cannot connect within this time.
const BRIEFLY: Duration = Duration::from_secs(3);

pub struct JobsOptions {
    pub number: HostId,
    /// The server's address for agents.
    pub server: String,
    pub secrets: Secrets,
    /// Addresses at which this process listens for agents.
    pub listen: Vec<String>,
    /// Address at which agents reach this process; `None` for the first one at which it listens
    /// beyond loopback, if there is one, or the first.
    pub advertise: Option<String>,
    /// State directory, which no other process uses.
    pub state_dir: PathBuf,
    /// Place for the journal of the roles' events and effects.
    pub journal: Option<JournalPlace>,
    /// Time limit for the first connection. Later connections are retried without limit.
    pub patience: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum JobsError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Start(#[from] ServerError),
    #[error("the server is at {server}, and agents on other machines cannot connect to {advertised}")]
    OnlyHere { advertised: String, server: String },
    #[error("agents cannot connect to `{advertised}`")]
    NoAddress { advertised: String },
    #[error("too many starts with {path}: new attempts cannot be numbered", path = path.display())]
    TooManyStarts { path: PathBuf },
    #[error("{path} belongs to job host {found}, not to job host {wanted}", path = path.display())]
    OfOthers { path: PathBuf, found: u8, wanted: u8 },
    #[error("{path} belongs to the jobs of another server: the server at {server} has another log", path = path.display())]
    OfAnotherServer { path: PathBuf, server: String },
    #[error(
        "{path} is damaged ({error}), and names the server of the jobs in its log: restore it from a backup; or remove it, \
         if that server is the one of --server",
        path = path.display()
    )]
    Unknown { path: PathBuf, error: serde_json::Error },
    #[error("cannot {what}: {error}")]
    Io { what: String, error: io::Error },
}

impl JobsError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> JobsError {
        move |error| JobsError::Io { what: what.into(), error }
    }
}

/// The server's terms for this job host, which a later run uses while the server is not connected.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct JobHostTerms {
    server: ServerId,
    number: HostId,
    settings: JobManagerSettings,
    preset: amalgam_core::preset::Preset,
}

impl JobHostTerms {
    /// The stored terms. If the log has no jobs, an incomplete file of a first start is ignored.
    fn load(state_dir: &Path, has_jobs: bool) -> Result<Option<JobHostTerms>, JobsError> {
        let path = stored_terms::path(state_dir);
        match stored_terms::load(state_dir) {
            Ok(terms) => Ok(terms),
            Err(LoadError::Unreadable(error)) => Err(JobsError::io(format!("read {}", path.display()))(error)),
            Err(LoadError::Damaged(error)) if has_jobs => Err(JobsError::Unknown { path, error }),
            Err(LoadError::Damaged(error)) => {
                tracing::warn!(path = %path.display(), %error, "this file is incomplete after a first start; creating it again");
                Ok(None)
            }
        }
    }

    fn store(&self, state_dir: &Path) -> Result<(), JobsError> {
        let path = stored_terms::path(state_dir);
        stored_terms::store(state_dir, self).map_err(JobsError::io(format!("write {}", path.display())))
    }

    fn of(number: HostId, joined: &Joined, server: &str) -> Result<JobHostTerms, JoinError> {
        match &joined.terms {
            Terms::JobHost { server, preset, settings, .. } => {
                Ok(JobHostTerms { server: *server, number, settings: *settings, preset: **preset })
            }
            Terms::Node { .. } | Terms::NodeOf | Terms::Global | Terms::Join(_) | Terms::Standby => {
                let why = "it treats this process as another kind of daemon".to_owned();
                Err(JoinError::lasting(server, why))
            }
        }
    }
}

/// Runs until the server refuses this process or `until_stopped` returns. `ready` receives the addresses for agents, and
/// whether the server is connected.
///
/// # Errors
/// If the log cannot be used, the server refuses this process, or the peer is not a server.
pub fn run(
    options: JobsOptions,
    ready: impl FnMut(&[SocketAddr], bool),
    until_stopped: impl FnOnce() + Send + 'static,
) -> Result<(), JobsError> {
    let (log_dir, state_dir) = (options.state_dir.join("log"), options.state_dir.clone());
    let is_new = !log_dir.exists();
    make_private_dir(&options.state_dir).map_err(JobsError::io(format!("make {}", options.state_dir.display())))?;
    let log = Store::open(&log_dir, Options::default())?;
    // Each agent has a connection to this process.
    descriptors::raise();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("network")
        .enable_all()
        .build()
        .map_err(JobsError::io("start the network's threads"))?;
    let (stop, stopped) = oneshot::channel();
    let wait = move || {
        until_stopped();
        let _ = stop.send(());
    };
    thread::Builder::new().name("signals".to_owned()).spawn(wait).map_err(JobsError::io("start a thread"))?;
    let ended = runtime.block_on(async {
        let mut started = None;
        let ended = tokio::select! {
            ended = stay(options, log, ready, &mut started) => ended,
            _ = stopped => Ok(()),
        };
        let (done, is_done) = oneshot::channel();
        if started.is_some_and(|handle| handle.send(Input::Stop(done)).is_ok()) {
            let _ = is_done.await;
        }
        ended
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    if is_new && !stored_terms::path(&state_dir).exists() {
        // This process never joined: its unused log would prevent the start of the right one.
        let _ = fs::remove_dir_all(&log_dir);
        let _ = fs::remove_dir(&state_dir);
    }
    ended
}

/// The address that agents are told: one that other machines reach, if there is one.
fn for_agents(addresses: &[SocketAddr]) -> SocketAddr {
    let is_reached = |address: &&SocketAddr| !is_local(**address) && !address.ip().is_unspecified();
    addresses.iter().find(is_reached).copied().unwrap_or(addresses[0])
}

/// Serves agents and the server until the server refuses this process. `started` receives the handle of the event loop.
async fn stay(
    options: JobsOptions,
    (store, recovered): (Store, Recovered),
    mut ready: impl FnMut(&[SocketAddr], bool),
    started: &mut Option<Handle>,
) -> Result<(), JobsError> {
    let JobsOptions { number, server, secrets, listen, advertise, state_dir, journal, patience } = options;
    let before = JobHostTerms::load(&state_dir, store.next_sequence() > 0)?;
    if let Some(other) = before.as_ref().filter(|terms| terms.number != number) {
        return Err(JobsError::OfOthers { path: state_dir, found: other.number.0, wanted: number.0 });
    }
    let listeners = bind_all(&resolve_all(&listen)?)?;
    let addresses = local_addresses(&listeners)?;
    let history = store.history();
    let advertised = advertise.unwrap_or_else(|| for_agents(&addresses).to_string());
    if !is_address(&advertised) || advertised.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_unspecified()) {
        return Err(JobsError::NoAddress { advertised });
    }
    if is_loopback(&advertised) && !server.split(',').all(is_here) {
        return Err(JobsError::OnlyHere { advertised, server });
    }
    let introduction = || Introduction::JobHost { host: number, address: advertised.clone(), next: history.end() };
    let patience = if before.is_some() { Patience::Briefly(BRIEFLY) } else { Patience::AtFirst(patience) };
    let first = match join_patiently(&server, &secrets, introduction, patience).await {
        Ok(joined) => Some(joined),
        Err(error) if before.is_none() || error.is_lasting() => return Err(error.into()),
        Err(error) => {
            tracing::warn!("{error}; continuing with running tasks; new tasks start when the server is connected");
            None
        }
    };
    let received = first.as_ref().map(|joined| JobHostTerms::of(number, joined, &server)).transpose()?;
    if let (Some(received), Some(before)) = (&received, &before)
        && received.server != before.server
        && history.end() > 0
    {
        return Err(JobsError::OfAnotherServer { path: state_dir, server });
    }
    let terms = received.or(before).expect("without stored values the error was returned");
    terms.store(&state_dir)?;
    let handle = started.insert(start_loop(&terms, store, recovered, journal, &state_dir)?).clone();
    let certificate = match secrets.identity() {
        Some(identity) => Certificate::for_daemons(Arc::new(Presented(Arc::clone(identity)))),
        None => Certificate::of_process().map_err(JobsError::io("create a certificate"))?,
    };
    let side = Side::JobHost(number);
    let gate =
        Gate { handle: handle.clone(), secrets: secrets.clone(), certificate, certifier: None, side, lease: None };
    tokio::spawn(serve_daemons(asynchronous(listeners)?, gate));
    ready(&addresses, first.is_some());
    let mut joined = first;
    loop {
        if let Some(joined) = joined.take() {
            tracing::info!("connected to the server");
            let end = serve_as_job_host(joined, &handle, &history, &secrets).await;
            tracing::warn!(%end, "lost the connection to the server");
        }
        tokio::time::sleep(RETRY.0).await;
        let again = join_for_ever(&server, &secrets, introduction).await;
        let received = JobHostTerms::of(number, &again, &server)?;
        if received.server != terms.server {
            return Err(JobsError::OfAnotherServer { path: state_dir, server });
        }
        tracing::warn!("connected to the server again");
        if received != terms {
            tracing::warn!("the server now uses other scheduling settings; restart this process to apply them");
        }
        joined = Some(again);
    }
}

fn start_loop(
    terms: &JobHostTerms,
    store: Store,
    recovered: Recovered,
    journal: Option<JournalPlace>,
    state_dir: &Path,
) -> Result<Handle, JobsError> {
    let JobHostTerms { number, settings, preset, .. } = *terms;
    let epoch = Epoch::of_host(number, recovered.epoch)
        .ok_or_else(|| JobsError::TooManyStarts { path: state_dir.to_owned() })?;
    let (changes, last) = changes(recovered.snapshot.iter().chain(&recovered.entries))?;
    let mut roles = Roles::new(preset, epoch, settings, new_sealing()?).with_managers(Managers::Here);
    let name = format!("jobs-{}", number.0);
    let journal = journal.map(|place| JournalWriter::create(&place, &name)).transpose()?;
    if journal.is_some() {
        roles.keep_journal();
    }
    roles.recover_job_managers(changes);
    let events = Arc::new(EventRing::starting_at(store.next_sequence()));
    let committer = Committer::new(Some(store), events, Arc::new(Metrics::default())).reporting_log();
    let clock = Clock::starting_at_least(last);
    let (shell, handle) =
        Shell::new(roles, clock, committer, journal, None).map_err(JobsError::io("make the loop's inbox"))?;
    spawn_loop(shell)?;
    Ok(handle)
}
