//! The process of a server: master, job managers, log and public interface; for `dev` and `run` also its own nodes.

mod addresses;
mod certificates;
mod identity;
mod standby;

use crate::accounting::Accounting;
use crate::api::ServerFile;
use crate::audit::AuditLog;
use crate::auth::{self, AuthError, Callers, Tokens, TrustedPem};
use crate::authority::AuthorityError;
use crate::backend::ServerBackend;
use crate::changed::{self, Misfit};
use crate::config::{Config, StoreConfig};
use crate::descriptors;
use crate::executor::host::Host;
use crate::executor::{self, ExecutorError};
use crate::files::{FileStore, Source};
use crate::http::{self, Encryption, Entrance};
use crate::journal::{JournalError, JournalPlace, JournalWriter};
use crate::kept_output;
use crate::lock::LockError;
use crate::neighbours::Neighbours;
use crate::node_setup::NodeOptions;
use crate::reload::{ConfigFile, Reloader};
use crate::replica::{Inherited, Replica, ReplicaError, Resignation};
use crate::sealing::new_sealing;
use crate::seat::{self, SeatError};
use crate::shell::fetcher::{Fetcher, fetcher};
use crate::shell::{
    Clock, Committer, EventRing, ExecutorLink, ExecutorSetup, Handle, Input, Metrics, Shell, decode_numbered,
    end_process_on_panic,
};
use crate::store::{History, Options, Recovered, ServerId, Store, StoreError};
use crate::terminal::visible;
use crate::transport::{
    FederatedFiles, Gate, GlobalIntroduction, JoinError, RemoteNodes, Secrets, Side, serve_daemons,
};
pub(crate) use addresses::{Reached, asynchronous, bind_all, is_here, local_addresses, resolve, resolve_all, shown};
pub use addresses::{check_addresses, take_address};
use amalgam_core::hosting::{Fact, Managers, Roles};
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{ClusterId, Epoch, Federation, GlobalId, Instant, NodeId, QueueId, Seat};
pub(crate) use certificates::certificates_of;
pub use standby::receive_files;
use std::collections::VecDeque;
use std::error::Error;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;

/// What server to start, and where.
pub struct ServerOptions {
    pub state_dir: PathBuf,
    pub config: Config,
    /// The user of the first token.
    pub user: String,
    /// Nodes of this process; `executor` runs their tasks.
    pub nodes: Vec<NodeOptions>,
    pub executor: Option<ExecutorSetup>,
    /// Whether agents may connect.
    pub takes_agents: bool,
    /// Place for the journal of the roles' events and effects.
    pub journal: Option<JournalPlace>,
    /// The file of the configuration, which can be read again.
    pub config_file: Option<ConfigFile>,
}

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Replica(#[from] ReplicaError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error(transparent)]
    Executor(#[from] ExecutorError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The address is invalid or not allowed.
    #[error("{0}")]
    Address(String),
    #[error("job_hosts of the configuration: no other process can join this cluster, so no job host either")]
    Unhosted,
    #[error(transparent)]
    Changed(#[from] Misfit),
    #[error("[federation] of the configuration: {0}")]
    Federation(String),
    #[error(
        "the interface would listen at {addresses}, but `globals` of [federation] announces {announced}: leave out --listen and \
         `listen`, or correct `globals`"
    )]
    Elsewhere { addresses: String, announced: String },
    #[error(
        "the interface would listen at {addresses}, which other machines reach, but `globals` of [federation] does not name its address: \
         write a list of the addresses of all global masters, the same in all configurations, or listen on 127.0.0.1"
    )]
    Unannounced { addresses: String },
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Seat(#[from] SeatError),
    #[error("[store] of the configuration: a server with its own nodes cannot have a standby")]
    Inseparable,
    #[error("too many starts with {path}: new attempts cannot be numbered", path = path.display())]
    TooManyStarts { path: PathBuf },
    #[error("{0}")]
    Bind(String),
    #[error("the log has an entry that this version cannot read: {0}; use the version that wrote it")]
    Log(String),
    #[error(
        "{path} has {bytes} bytes instead of 16, and job hosts identify this server by them: restore it from a \
         backup, or remove it and start each job host with an empty state directory once its jobs have ended",
        path = path.display()
    )]
    NoIdentity { path: PathBuf, bytes: usize },
    #[error("cannot {what}: {error}")]
    Io { what: String, error: io::Error },
}

impl ServerError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> ServerError {
        move |error| ServerError::Io { what: what.into(), error }
    }
}

/// The log of a process, with the recovered changes.
pub(crate) struct Log {
    pub directory: PathBuf,
    pub store: Store,
    /// The replica that has the changes if they are not in `store`, and the means to leave it to a standby.
    pub replica: Option<(Replica, Resignation)>,
    /// Number of runs of this process, including this one.
    pub life: u32,
    pub changes: Vec<Change>,
    /// Continues after the last entry.
    pub clock: Clock,
    pub torn_bytes: u64,
}

impl Log {
    pub(crate) fn open(state_dir: &Path, config: &Config) -> Result<Log, ServerError> {
        let directory = state_dir.join("log");
        let (store, recovered) = open_store(&directory, config)?;
        let Recovered { epoch: life, torn_bytes, .. } = recovered;
        let (changes, last) = changes(recovered.snapshot.iter().chain(&recovered.entries))?;
        let clock = Clock::starting_at_least(last);
        Ok(Log { directory, store, replica: None, life, changes, clock, torn_bytes })
    }

    /// Returns with the changes in etcd, once this process is the active master of the cluster; see
    /// [`Replica::take_over`]. The facts of its time as active master are also stored in its directory, for stories.
    pub(crate) fn take_over(
        state_dir: &Path,
        config: &Config,
        store: &StoreConfig,
        cluster: ClusterId,
        says: &str,
        stands_by: impl FnOnce(&str),
        lost: impl FnOnce(ReplicaError) + Send + 'static,
    ) -> Result<Log, ServerError> {
        // Not the directory `log` of a server without a replica, whose changes would be mistaken for newer ones.
        let directory = state_dir.join("history");
        let (local, recovered) = open_store(&directory, config)?;
        let (replica, inherited) = Replica::take_over(store, cluster, says, stands_by, lost)?;
        let Inherited { resignation, life, entries } = inherited;
        let (changes, last) = changes(entries.iter())?;
        let newest = recovered.entries.last().map_or(last, |entry| last.max(Instant(entry.at_micros)));
        let (clock, replica) = (Clock::starting_at_least(newest), Some((replica, resignation)));
        Ok(Log { directory, store: local, replica, life, changes, clock, torn_bytes: recovered.torn_bytes })
    }
}

fn open_store(directory: &Path, config: &Config) -> Result<(Store, Recovered), StoreError> {
    let Config { history_bytes, history_for, segment_bytes, .. } = *config;
    let history_for = history_for.map(|length| std::time::Duration::from_micros(length.as_micros()));
    Store::open(directory, Options { history_bytes, history_for, segment_bytes, ..Options::default() })
}

/// A running event loop with a log, and the parts of it that the interface uses.
pub(crate) struct Hosted {
    pub handle: Handle,
    history: History,
    events: Arc<EventRing>,
    pub(crate) metrics: Arc<Metrics>,
    started: Instant,
}

impl Hosted {
    /// `files` are the executor's state directory for the nodes of this process, and the fetcher for files of other
    /// nodes.
    pub(crate) fn start(
        roles: Roles,
        store: Store,
        replica: Option<Replica>,
        clock: Clock,
        journal: Option<JournalWriter>,
        files: Option<(PathBuf, Fetcher)>,
    ) -> Result<Hosted, ServerError> {
        let (started, history, metrics) = (clock.now(), store.history(), Arc::new(Metrics::default()));
        let events = Arc::new(EventRing::starting_at(store.next_sequence()));
        let mut committer = Committer::new(Some(store), Arc::clone(&events), Arc::clone(&metrics));
        committer.replica = replica;
        let (files, fetcher) = files.unzip();
        fetcher.into_iter().for_each(|fetcher| committer.executor.fetch_with(fetcher));
        let (shell, handle) =
            Shell::new(roles, clock, committer, journal, files).map_err(ServerError::io("make the loop's inbox"))?;
        spawn_loop(shell)?;
        Ok(Hosted { handle, history, events, metrics, started })
    }
}

/// The HTTP interface before it is open.
pub(crate) struct Interface {
    pub addresses: Vec<SocketAddr>,
    pub encryption: Encryption,
}

/// Values of the start that a running server keeps.
pub(crate) struct Kept {
    pub agents_addresses: Vec<SocketAddr>,
    pub torn_bytes: u64,
    pub state_dir: PathBuf,
    pub lock: Option<File>,
    pub resignation: Option<Resignation>,
    pub neighbours: Option<Neighbours>,
    pub encryption: Encryption,
    /// The address in the certificate, if clients on this machine have to use that one, too.
    pub announced: Option<String>,
}

/// Empty roles for a process with this configuration.
pub(crate) fn roles(config: &Config, epoch: Epoch, seat: Option<Seat>) -> Result<Roles, ServerError> {
    let settings = JobManagerSettings {
        token_life: config.master.token_life,
        node_grace: config.master.node_grace,
        federation: config.federation.as_ref().map(|federation| federation.size),
        ..JobManagerSettings::default()
    };
    Ok(Roles::new(config.preset, epoch, settings, new_sealing()?).seated(seat))
}

/// The other processes in the federation of this configuration.
pub(crate) fn neighbours(config: &Config, seat: Seat, listeners: &[TcpListener]) -> Result<Neighbours, ServerError> {
    let interfaces = config.federation.as_ref().map_or_else(Vec::new, |federation| federation.interfaces.clone());
    Ok(Neighbours { seat, here: local_addresses(listeners)?, plain_http: config.plain_http, interfaces })
}

/// The introduction of a global master with this configuration to a cluster.
pub(crate) fn global_introduction(
    config: &Config,
    federation: Federation,
    global: GlobalId,
    cluster: ClusterId,
) -> GlobalIntroduction {
    let (preset, kinds) = (config.preset.name().to_owned(), config.master.dispatch.kinds.clone());
    let tree = &config.queues;
    let queue = |number: usize| {
        let queue = QueueId(number as u32);
        (tree.spec(queue).name.clone(), tree.spec(queue).guaranteed, tree.global_of(queue))
    };
    let queues = (0..tree.len()).map(queue).collect();
    GlobalIntroduction { federation, global, cluster, preset, kinds, queues }
}

pub(crate) fn interface_runtime() -> Result<tokio::runtime::Runtime, ServerError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("interface")
        .enable_all()
        .build()
        .map_err(ServerError::io("start the interface's threads"))
}

/// A running server, or global master.
pub struct Server {
    reached: Reached,
    /// Where agents connect; empty if none do.
    pub agents_addresses: Vec<SocketAddr>,
    pub token_file: PathBuf,
    /// Bytes that were removed from the end of the log because the last write was incomplete.
    pub torn_bytes: u64,
    state_dir: PathBuf,
    _executor_lock: Option<File>,
    /// Set if a standby may take over.
    resignation: Option<Resignation>,
    handle: Handle,
    reloader: Option<Arc<Reloader>>,
    stop: oneshot::Sender<()>,
    runtime: tokio::runtime::Runtime,
}

impl Server {
    /// Starts all parts and returns when the server can be used. Call it before other threads start, because it starts
    /// the executor.
    pub fn start(options: ServerOptions) -> Result<Server, ServerError> {
        let ServerOptions { state_dir, mut config, user, nodes, executor, takes_agents, journal, config_file } =
            options;
        if config.master.dispatch.hosts > 0 && !takes_agents {
            return Err(ServerError::Unhosted);
        }
        if takes_agents && executor.is_none() {
            // Each agent has a connection to this process.
            descriptors::raise();
        }
        let federated = config.federation.as_ref().map(|federation| Ok((federation.size, federation.cluster()?)));
        config.master.federated = federated.transpose().map_err(ServerError::Federation)?;
        let addresses = resolve_all(&config.interface())?;
        let agents = takes_agents.then(|| resolve_all(&config.agents())).transpose()?;
        let tokens = Arc::new(Tokens::open(&state_dir, &user)?);
        let own = certificates_of(&state_dir, &addresses, agents.is_some(), &config)?;
        let interface = Interface { addresses, encryption: own.encryption };
        // Lock the log first: a second server must not use the executor of the first.
        let log = open_log(&state_dir, &config, takes_agents && executor.is_none(), &interface, &tokens)?;
        let Interface { addresses, encryption } = interface;
        let seat = config.master.federated.map(|(federation, cluster)| Seat::Cluster(federation, cluster));
        seat::keep(&state_dir, seat)?;
        let (replica, resignation) = log.replica.unzip();
        let lease = replica.as_ref().map(Replica::lease);
        let executor_lock = executor.as_ref().map(|setup| executor::claim(&setup.config.state)).transpose()?;
        let executor = executor.map(ExecutorLink::open).transpose()?;

        let epoch = Epoch(log.life);
        let id = identity::server_id(
            &log.directory,
            log.changes.iter().any(|change| matches!(change, Change::Heard { .. })),
        )?;
        let (roles, journal) = recovered_roles(&config, epoch, seat, log.changes, journal.as_ref())?;
        let local_files = executor.as_ref().map(|link| link.setup().config.state.clone());
        let output_limit = executor.as_ref().and_then(|link| link.setup().output_limit);
        let (fetcher, file_orders) = fetcher();
        let files = local_files.clone().map(|files| (files, fetcher));
        let hosted = Hosted::start(roles, log.store, replica, log.clock, journal, files)?;
        let handle = &hosted.handle;

        start_nodes(handle, &nodes, executor);

        let runtime = interface_runtime()?;
        runtime.block_on(local_nodes_join(handle, nodes.len()));
        let remote = Arc::new(RemoteNodes::new(seat, local_files.clone(), hosted.metrics.file_traffic.clone()));
        if let Some(files) = local_files {
            FileStore::remove_remains(&files);
            runtime.spawn(kept_output::keep_within(output_limit, files.clone(), handle.clone()));
            // A server with its own nodes has no agents that store files, but other clusters may have.
            let (remote, handle) = (Arc::clone(&remote), handle.clone());
            let source = seat.is_some().then(|| Arc::new(FederatedFiles { remote, handle }) as Arc<dyn Source>);
            runtime.spawn(file_orders.carry_out(files, source, hosted.handle.clone()));
        }
        let (listeners, audit) = (bind_all(&addresses)?, auth::audit_log(&state_dir)?);
        let agents_addresses = match agents.zip(own.for_daemons) {
            None => Vec::new(),
            Some((agents, (certificate, certifier))) => {
                let (side, handle) = (side(&config, remote.clone(), id, epoch), handle.clone());
                let (secrets, certifier) = (Secrets::Server(tokens.clone()), Some(certifier.recording(audit.clone())));
                let gate = Gate { handle, secrets, certificate, certifier, side, lease };
                listen_for_agents(&runtime, &agents, gate)?
            }
        };
        let neighbours = seat.map(|seat| neighbours(&config, seat, &listeners)).transpose()?;
        let (lock, torn_bytes, announced) = (executor_lock, log.torn_bytes, None);
        let kept =
            Kept { agents_addresses, torn_bytes, state_dir, lock, resignation, neighbours, encryption, announced };
        let callers = open_callers((tokens, own.trusted), config, audit, config_file, handle, user)?;
        Server::serve(hosted, remote, callers, runtime, listeners, kept)
    }

    /// Opens the interface of a process whose loop runs.
    pub(crate) fn serve(
        hosted: Hosted,
        remote: Arc<RemoteNodes>,
        callers: (Callers, Option<Arc<Reloader>>, u32),
        runtime: tokio::runtime::Runtime,
        listeners: Vec<TcpListener>,
        kept: Kept,
    ) -> Result<Server, ServerError> {
        let Hosted { handle, history, events, metrics, started } = hosted;
        let (callers, reloader, usage_days) = callers;
        let addresses = local_addresses(&listeners)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            let _ = stopped.await;
        };
        let ended = Mutex::new(VecDeque::new());
        let Kept { agents_addresses, torn_bytes, state_dir, lock, resignation, neighbours, encryption, announced } =
            kept;
        let reached = Reached { addresses, plain_http: encryption.plain_http, announced };
        let accounting = Accounting::open(&state_dir, history.clone(), handle.clone(), usage_days);
        let accounting = Arc::new(accounting.map_err(ServerError::io("read the totals of usage"))?);
        runtime.spawn(Arc::clone(&accounting).run());
        let handle_of_backend = handle.clone();
        let backend = ServerBackend {
            handle: handle_of_backend,
            history,
            events,
            metrics,
            remote,
            started,
            ended,
            neighbours,
            accounting,
            reloader: reloader.clone(),
        };
        let token_file = callers.tokens.path().to_owned();
        let entrance = {
            let _entered = runtime.enter();
            Entrance { listeners: asynchronous(listeners)?, encryption }
        };
        runtime.spawn(async move {
            http::serve(entrance, Arc::new(backend), callers, shutdown).await;
        });
        let server = Server {
            reached,
            agents_addresses,
            token_file,
            torn_bytes,
            state_dir,
            _executor_lock: lock,
            resignation,
            handle,
            reloader,
            stop,
            runtime,
        };
        server.write_server_file(&server.state_dir)?;
        Ok(server)
    }

    /// Writes the address to a file where clients on this machine look for it.
    pub fn write_server_file(&self, state_dir: &Path) -> Result<(), ServerError> {
        self.reached.leave(state_dir, &self.agents_addresses, &self.token_file)
    }

    /// Where it listens for clients.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.reached.addresses
    }

    /// Where clients connect: encrypted, if other machines can.
    pub fn urls(&self) -> Vec<String> {
        self.reached.urls()
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Reads the configuration again because of a signal. What changed, or what is wrong, is in the log.
    pub fn reload(&self) {
        match &self.reloader {
            Some(reloader) => drop(self.runtime.block_on(reloader.on_signal())),
            None => tracing::warn!("there is no configuration to reload: the server was started without --config"),
        }
    }

    /// Answers pending requests, makes all changes durable, and stops. Tasks continue in their executor.
    pub fn stop(self) {
        let _ = std::fs::remove_file(self.state_dir.join(ServerFile::NAME));
        let _ = self.stop.send(());
        let (done, is_done) = oneshot::channel();
        if self.handle.send(Input::Stop(done)).is_ok() {
            let _ = is_done.blocking_recv();
        }
        if let Some(resignation) = self.resignation {
            resignation.resign();
        }
        self.runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

/// How a server presents itself to agents and other daemons.
fn side(config: &Config, remote: Arc<RemoteNodes>, id: ServerId, epoch: Epoch) -> Side {
    let federated = config
        .master
        .federated
        .map(|(federation, cluster)| Box::new(global_introduction(config, federation, GlobalId::default(), cluster)));
    Side::Server { remote, id, preset: Box::new(config.preset), epoch: epoch.0, federated }
}

/// Who may call, and what reads the configuration of `file` again.
fn open_callers(
    (tokens, trusted): (Arc<Tokens>, Option<TrustedPem>),
    config: Config,
    audit: Arc<AuditLog>,
    file: Option<ConfigFile>,
    handle: &Handle,
    user: String,
) -> Result<(Callers, Option<Arc<Reloader>>, u32), ServerError> {
    let callers = Callers { trusted, ..Callers::open(tokens, config.clone(), audit)? };
    let reloader = file.map(|file| Arc::new(Reloader::new(file, &config, handle.clone(), &callers, user)));
    Ok((callers, reloader, config.usage_days))
}

/// Opens the log. A server that may have a standby waits until it is the active one, if the configuration has a store.
fn open_log(
    state_dir: &Path,
    config: &Config,
    may_stand_by: bool,
    interface: &Interface,
    tokens: &Tokens,
) -> Result<Log, ServerError> {
    match (&config.store, config.master.federated) {
        (Some(store), Some((_, cluster))) if may_stand_by => {
            standby::wait(state_dir, config, store, cluster, interface, tokens)
        }
        (Some(_), _) => Err(ServerError::Inseparable),
        (None, _) => Log::open(state_dir, config),
    }
}

/// The roles of a server in the state after these changes, and their journal if it has a directory.
fn recovered_roles(
    config: &Config,
    epoch: Epoch,
    seat: Option<Seat>,
    changes: Vec<Change>,
    journal: Option<&JournalPlace>,
) -> Result<(Roles, Option<JournalWriter>), ServerError> {
    let mut roles = roles(config, epoch, seat)?.with_managers(Managers::Shared);
    let name = config.master.federated.map_or("server".to_owned(), |(_, cluster)| format!("cluster-{}", cluster.0));
    let journal = journal.map(|place| JournalWriter::create(place, &name)).transpose()?;
    if journal.is_some() {
        roles.keep_journal();
    }
    roles.recover(config.master.clone(), config.queues.clone(), changes);
    changed::check(&roles)?;
    Ok((roles, journal))
}

/// Accepts connections of agents and other daemons; returns the addresses.
fn listen_for_agents(
    runtime: &tokio::runtime::Runtime,
    agents: &[SocketAddr],
    gate: Gate,
) -> Result<Vec<SocketAddr>, ServerError> {
    let listeners = bind_all(agents)?;
    let addresses = local_addresses(&listeners)?;
    let _entered = runtime.enter();
    runtime.spawn(serve_daemons(asynchronous(listeners)?, gate));
    Ok(addresses)
}

/// The changes in these entries, in order, and the time of the last entry.
pub(crate) fn changes<'a>(
    entries: impl Iterator<Item = &'a crate::store::Entry>,
) -> Result<(Vec<Change>, Instant), ServerError> {
    let mut changes = Vec::new();
    let mut last = Instant::ZERO;
    for entry in entries {
        last = last.max(Instant(entry.at_micros));
        let (fact, followed) = decode_numbered(entry.as_ref()).map_err(ServerError::Log)?;
        if let Fact::Change(change) = fact {
            changes.push(change);
        }
        changes.extend(followed.map(|(host, number)| Change::Heard { host, next: number + 1 }));
    }
    Ok((changes, last))
}

/// Starts the loop on its own thread. A log that cannot be written ends the process, and so does a panic. This is safe:
/// nothing that is not durable has left this machine, and the executor continues running tasks and stores the ends of
/// others.
pub(crate) fn spawn_loop(shell: Shell) -> Result<(), ServerError> {
    let run = move || {
        crate::priority::answer_soon();
        if let Err(error) = end_process_on_panic(|| shell.run()) {
            end_process(&error, error.remedy());
        }
    };
    let thread = std::thread::Builder::new().name("loop".to_owned());
    thread.spawn(run).map_err(ServerError::io("start a thread"))?;
    Ok(())
}

/// Prints the error and the remedy, and exits.
pub(crate) fn end_process(error: &dyn Error, remedy: &str) -> ! {
    eprintln!("error: {}", visible(&error.to_string()));
    eprintln!("  help: {}", visible(remedy));
    std::process::exit(1);
}

fn start_nodes(handle: &Handle, nodes: &[NodeOptions], executor: Option<ExecutorLink>) {
    let Some(executor) = executor else { return };
    // The loop has just started and accepts inputs.
    let host = Host::inspect();
    for options in nodes {
        let settings = options.settings(&host, &executor.enforcement, Some(executor.run_as));
        let _ = handle.send(Input::LocalNode(Box::new(settings)));
    }
    let _ = handle.send(Input::ExecutorConnected(Box::new(executor)));
}

/// Waits until the local nodes have joined: clients that find the interface find these nodes, too, and a job that fits on
/// none of them is refused from the start. The wait is limited, in case the executor does not answer.
async fn local_nodes_join(handle: &Handle, count: usize) {
    const PATIENCE: Duration = Duration::from_secs(5);
    let joined = |roles: &Roles, _| {
        let Some(ledger) = roles.master.as_ref().map(|master| master.ledger()) else { return 0 };
        let is_up = |node: &NodeId| ledger.state(*node).is_some() && ledger.is_open(*node);
        roles.nodes.ids().filter(is_up).count()
    };
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while tokio::time::Instant::now() < deadline && handle.ask(joined).await.is_ok_and(|joined| joined < count) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The directory and the socket of the executor of a server or agent with this state directory.
pub fn executor_paths(state_dir: &Path) -> (PathBuf, PathBuf) {
    /// The path of a unix socket has 108 bytes, including the final 0.
    const LONGEST: usize = 100;
    let state = state_dir.join("executor");
    let socket = state.join("socket");
    if socket.as_os_str().len() <= LONGEST {
        return (state, socket);
    }
    let digest = crc32fast::hash(state.as_os_str().as_encoded_bytes());
    let user = rustix::process::getuid().as_raw();
    let socket = PathBuf::from(format!("/tmp/amalgam-{user}-{digest:08x}")).join("socket");
    (state, socket)
}
