//! The process of a global master: jobs and their managers, a log, a public interface, and a connection to the master
//! of each cluster.

use crate::auth::{Callers, Tokens};
use crate::changed;
use crate::config::{Config, FederationConfig};
use crate::journal::{JournalPlace, JournalWriter};
use crate::seat;
use crate::server::{
    Hosted, Kept, Log, Server, ServerError, global_introduction, interface_runtime, neighbours, resolve_interface,
    roles, take_address,
};
use crate::shell::{Handle, Input, Stopped};
use crate::transport::{GlobalIntroduction, Introduction, RETRY, RemoteNodes, Secrets, join_for_ever, serve_cluster};
use amalgam_core::hosting::Roles;
use amalgam_core::vocabulary::{Epoch, Seat};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use tokio::net::TcpListener as AsyncListener;

/// What global master to start, and where.
pub struct GlobalOptions {
    pub state_dir: PathBuf,
    /// Its `[federation]` defines the number and the addresses of the clusters' masters.
    pub config: Config,
    /// Listener of the interface, if the caller has bound it already; `None` to bind the configured address.
    pub listener: Option<TcpListener>,
    /// The user of the first token.
    pub user: String,
    /// Secrets for the clusters' masters; `None` for its own tokens.
    pub secrets: Option<Secrets>,
    /// Place for the journal of the roles' events and effects.
    pub journal: Option<JournalPlace>,
}

/// Starts all parts and returns when jobs can be submitted. The clusters may connect later.
///
/// # Errors
/// If the configuration defines no global master, or the log or an address cannot be used.
pub fn start(options: GlobalOptions) -> Result<Server, ServerError> {
    let GlobalOptions { state_dir, config, listener, user, secrets, journal } = options;
    let missing = || ServerError::Federation("a global master requires this section".to_owned());
    let federation = config.federation.clone().ok_or_else(missing)?;
    let own = federation.global().map_err(ServerError::Federation)?;
    let address = resolve_interface(config.interface_of_global())?;
    if let Some(announced) = federation.interface().filter(|_| listener.is_none())
        && resolve_interface(announced)? != address
    {
        return Err(ServerError::Elsewhere { address, announced: announced.to_owned() });
    }
    let tokens = Arc::new(Tokens::open(&state_dir, &user)?);
    let log = Log::open(&state_dir, &config)?;
    let too_many = || ServerError::TooManyStarts { path: state_dir.clone() };
    let epoch = Epoch::of_host(own.host(), log.life).ok_or_else(too_many)?;
    let seat = Seat::Global(federation.size, own);
    seat::keep(&state_dir, Some(seat))?;
    let mut roles = roles(&config, epoch, Some(seat))?;
    let name = format!("global-{}", own.0);
    let journal = journal.map(|place| JournalWriter::create(&place, &name)).transpose()?;
    if journal.is_some() {
        roles.keep_journal();
    }
    roles.recover_global(config.master.dispatch.clone(), config.queues.clone(), log.changes);
    changed::check(&roles)?;
    let hosted = Hosted::start(roles, log.store, None, log.clock, journal, None)?;

    let runtime = interface_runtime()?;
    let listener = listener.map_or_else(|| take_address(config.interface_of_global()), Ok)?;
    let entered = runtime.enter();
    let listener = AsyncListener::from_std(listener).map_err(ServerError::io("listen"))?;
    drop(entered);
    let remote = Arc::new(RemoteNodes::new(Some(seat), None, hosted.metrics.file_traffic.clone()));
    let secrets = secrets.unwrap_or_else(|| Secrets::Server(Arc::clone(&tokens)));
    let neighbours = Some(neighbours(&config, seat, &listener)?);
    let FederationConfig { size, masters, .. } = federation;
    for (cluster, master) in size.clusters().zip(masters) {
        let introduction = global_introduction(&config, size, own, cluster);
        let (handle, remote, secrets) = (hosted.handle.clone(), Arc::clone(&remote), secrets.clone());
        runtime.spawn(async move { stay_with(&master, introduction, &secrets, &handle, &remote).await });
    }
    let torn_bytes = log.torn_bytes;
    let kept = Kept {
        agents_address: None,
        torn_bytes,
        state_dir,
        lock: None,
        resignation: None,
        neighbours,
        certificate: None,
    };
    let usage_days = config.usage_days;
    let callers = Callers::open(tokens, config, &kept.state_dir)?;
    Server::serve(hosted, remote, (callers, None, usage_days), runtime, listener, kept)
}

/// Serves the master of a cluster as long as this process runs. If the master refuses the connection, it is retried:
/// its operator may fix the reason.
async fn stay_with(
    master: &str,
    introduction: GlobalIntroduction,
    secrets: &Secrets,
    handle: &Handle,
    remote: &Arc<RemoteNodes>,
) {
    let (federation, cluster) = (introduction.federation, introduction.cluster);
    loop {
        let introduce = || Introduction::Global(Box::new(introduction.clone()));
        let joined = join_for_ever(master, secrets, introduce).await;
        tracing::info!("connected to the master of {cluster}");
        let end = serve_cluster(joined, federation, cluster, handle, remote).await;
        tracing::warn!(%end, "lost the connection to the master of {cluster}");
        tokio::time::sleep(RETRY.0).await;
    }
}

/// Number of nodes in a global master's view. Must not be called on one of its own threads.
///
/// # Errors
/// If it is stopping.
pub fn known_nodes(handle: &Handle) -> Result<usize, Stopped> {
    let (answer, answered) = mpsc::channel();
    let count = move |roles: &Roles, now| {
        let known = roles.global.as_ref().map_or(0, |global| global.believed_nodes(now).len());
        let _ = answer.send(known);
    };
    handle.send(Input::Ask(Box::new(count)))?;
    answered.recv().map_err(|_| Stopped)
}
