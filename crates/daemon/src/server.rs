//! A server: master, job managers, log, public interface, and, for `dev` and `run`, nodes of its own.

use crate::api::ServerFile;
use crate::auth::{AuthError, Tokens, check_bind, new_nonce};
use crate::backend::ServerBackend;
use crate::changed::{self, Misfit};
use crate::config::{Config, StoreConfig};
use crate::descriptors;
use crate::durable;
use crate::executor::host::Host;
use crate::executor::{self, ExecutorError};
use crate::files::{Fetcher, FileStore, Source, fetcher};
use crate::http;
use crate::journal::{JournalError, JournalWriter};
use crate::lock::LockError;
use crate::neighbours::Neighbours;
use crate::node_setup::NodeOptions;
use crate::replica::{Inherited, Replica, ReplicaError, Resignation};
use crate::sealing::new_sealing;
use crate::seat::{self, SeatError};
use crate::shell::{
    Clock, Committer, EventRing, ExecutorLink, ExecutorSetup, Handle, Input, Metrics, Shell, decode_numbered,
    end_process_on_panic,
};
use crate::standby;
use crate::store::{History, IDENTITY, IDENTITY_BYTES, Options, Recovered, Store, StoreError};
use crate::terminal::visible;
use crate::transport::{FederatedFiles, Gate, GlobalIntroduction, RemoteNodes, Secrets, Side, serve_daemons};
use amalgam_core::hosting::{Fact, Managers, Roles};
use amalgam_core::job_manager::JobManagerSettings;
use amalgam_core::role::Change;
use amalgam_core::vocabulary::{ClusterId, Epoch, Federation, GlobalId, Instant, NodeId, QueueId, Seat};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Which server to start, and where.
pub struct ServerOptions {
    pub state_dir: PathBuf,
    pub config: Config,
    /// Who owns the first token.
    pub user: String,
    /// Nodes in this process, and the executor that runs their tasks.
    pub nodes: Vec<NodeOptions>,
    pub executor: Option<ExecutorSetup>,
    /// Whether agents may connect.
    pub takes_agents: bool,
    /// A directory in which what the roles take and leave is written down.
    pub journal: Option<PathBuf>,
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
    Executor(#[from] ExecutorError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// It was told to listen where it cannot or must not.
    #[error("{0}")]
    Address(String),
    #[error("job_hosts of the configuration: nobody else can join this cluster, also no process of job managers")]
    Unhosted,
    #[error(transparent)]
    Changed(#[from] Misfit),
    #[error("[federation] of the configuration: {0}")]
    Federation(String),
    #[error(
        "it is to listen at {address}, and `globals` of [federation] tells clients that it does at {told}: leave out --listen and \
         `listen`, or mend `globals`"
    )]
    Elsewhere { address: SocketAddr, told: String },
    #[error(transparent)]
    Seat(#[from] SeatError),
    #[error("[store] of the configuration: a server with nodes of its own has no standby")]
    Inseparable,
    #[error("{path} was started more often than its attempts can be numbered", path = path.display())]
    TooManyStarts { path: PathBuf },
    #[error("{0}")]
    Bind(String),
    #[error("the log holds something that this version does not understand: {0}; use the version that wrote it")]
    Log(String),
    #[error(
        "{path} holds {bytes} bytes instead of 16, and processes of job managers know this server by them: put it back from a \
         backup, or remove it, and start each of those processes with an empty state directory once its jobs have ended",
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

/// Tells the log of a server from all others, whatever becomes of it: a random number, made with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServerId([u8; IDENTITY_BYTES]);

impl ServerId {
    /// That of this directory; a new one where there is none. One that is torn is made again, unless job hosts go by it:
    /// `has_hosts`.
    fn of(directory: &Path, has_hosts: bool) -> Result<ServerId, ServerError> {
        let path = directory.join(IDENTITY);
        let torn = match fs::read(&path) {
            Ok(bytes) => match <[u8; IDENTITY_BYTES]>::try_from(bytes) {
                Ok(id) => return Ok(ServerId(id)),
                Err(bytes) => Some(bytes.len()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(ServerError::io(format!("read {}", path.display()))(error)),
        };
        match torn {
            Some(bytes) if has_hosts => return Err(ServerError::NoIdentity { path, bytes }),
            Some(bytes) => {
                tracing::warn!(path = %path.display(), bytes, "this file was not finished; it is made again")
            }
            None => {}
        }
        let nonce = new_nonce()?;
        let id: [u8; IDENTITY_BYTES] = std::array::from_fn(|byte| nonce[byte]);
        durable::replace(&path, &id).map_err(ServerError::io(format!("write {}", path.display())))?;
        Ok(ServerId(id))
    }
}

/// The log of a process, and what it held.
pub(crate) struct Log {
    pub directory: PathBuf,
    pub store: Store,
    /// Where the changes are, if not in `store`, and how that is left to a standby.
    pub replica: Option<(Replica, Resignation)>,
    /// Counts the lives of the process, this one included.
    pub life: u32,
    pub changes: Vec<Change>,
    /// It goes on after the last entry.
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

    /// With the changes of etcd, once this process is the active master of the cluster; see [`Replica::take_over`]. What happened
    /// while it is active is in its directory as well, for stories.
    pub(crate) fn take_over(
        state_dir: &Path,
        config: &Config,
        store: &StoreConfig,
        cluster: ClusterId,
        says: &str,
        stands_by: impl FnOnce(&str),
        lost: impl FnOnce(ReplicaError) + Send + 'static,
    ) -> Result<Log, ServerError> {
        // Not that of a server which has its changes here, too: they would be taken for newer than they are.
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
    let Config { history_bytes, segment_bytes, .. } = *config;
    Store::open(directory, Options { history_bytes, segment_bytes, ..Options::default() })
}

/// A loop that runs over a log, and what the interface needs of it.
pub(crate) struct Hosted {
    pub handle: Handle,
    history: History,
    events: Arc<EventRing>,
    metrics: Arc<Metrics>,
    started: Instant,
}

impl Hosted {
    /// `files` are the executor's state directory of the nodes of this process, and who fetches others there.
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

/// What a running server keeps of its start.
pub(crate) struct Kept {
    pub agents_address: Option<SocketAddr>,
    pub torn_bytes: u64,
    pub state_dir: PathBuf,
    pub lock: Option<File>,
    pub resignation: Option<Resignation>,
    pub neighbours: Option<Neighbours>,
}

/// Those of a process with this configuration, which has none yet.
pub(crate) fn roles(config: &Config, epoch: Epoch, seat: Option<Seat>) -> Result<Roles, ServerError> {
    let settings = JobManagerSettings {
        token_life: config.master.token_life,
        node_grace: config.master.node_grace,
        federation: config.federation.as_ref().map(|federation| federation.size),
        ..JobManagerSettings::default()
    };
    Ok(Roles::new(config.preset, epoch, settings, new_sealing()?).seated(seat))
}

/// Who else is in the federation of this configuration.
pub(crate) fn neighbours(config: &Config, seat: Seat, listener: &TcpListener) -> Result<Neighbours, ServerError> {
    let interfaces = config.federation.as_ref().map_or_else(Vec::new, |federation| federation.interfaces.clone());
    let here = listener.local_addr().map_err(ServerError::io("learn the interface's address"))?;
    Ok(Neighbours { seat, here, interfaces })
}

/// How a global master with this configuration introduces itself to a cluster.
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
    pub address: SocketAddr,
    pub agents_address: Option<SocketAddr>,
    pub token_file: PathBuf,
    /// What was cut off a log whose last writes were interrupted.
    pub torn_bytes: u64,
    state_dir: PathBuf,
    _executor_lock: Option<File>,
    /// Where a standby may take over.
    resignation: Option<Resignation>,
    handle: Handle,
    stop: oneshot::Sender<()>,
    runtime: tokio::runtime::Runtime,
}

impl Server {
    /// Starts everything and returns when it can be used. Call it before other threads start: it starts the executor.
    pub fn start(options: ServerOptions) -> Result<Server, ServerError> {
        let ServerOptions { state_dir, mut config, user, nodes, executor, takes_agents, journal } = options;
        if config.master.dispatch.hosts > 0 && !takes_agents {
            return Err(ServerError::Unhosted);
        }
        if takes_agents && executor.is_none() {
            // Each agent has a connection.
            descriptors::raise();
        }
        let federated = config.federation.as_ref().map(|federation| Ok((federation.size, federation.cluster()?)));
        config.master.federated = federated.transpose().map_err(ServerError::Federation)?;
        let address = resolve(config.interface())?;
        let agents = takes_agents.then(|| resolve(config.agents())).transpose()?;
        let tokens = Arc::new(Tokens::open(&state_dir, &user)?);
        // The lock on the log comes first: a second server must not touch the executor of the first.
        let log = match (&config.store, config.master.federated) {
            (Some(store), Some((_, cluster))) if takes_agents && executor.is_none() => {
                standby::wait(&state_dir, &config, store, cluster, address, &tokens)?
            }
            (Some(_), _) => return Err(ServerError::Inseparable),
            (None, _) => Log::open(&state_dir, &config)?,
        };
        let seat = config.master.federated.map(|(federation, cluster)| Seat::Cluster(federation, cluster));
        seat::keep(&state_dir, seat)?;
        let (replica, resignation) = log.replica.unzip();
        let lease = replica.as_ref().map(Replica::lease);
        let executor_lock = executor.as_ref().map(|setup| executor::claim(&setup.config.state)).transpose()?;
        let executor = executor.map(ExecutorLink::open).transpose()?;

        let epoch = Epoch(log.life);
        let id = ServerId::of(&log.directory, log.changes.iter().any(|change| matches!(change, Change::Heard { .. })))?;
        let mut roles = roles(&config, epoch, seat)?.with_managers(Managers::Shared);
        let name = config.master.federated.map_or("server".to_owned(), |(_, cluster)| format!("cluster-{}", cluster.0));
        let journal = journal.map(|directory| JournalWriter::create(&directory, &name)).transpose()?;
        if journal.is_some() {
            roles.keep_journal();
        }
        roles.recover(config.master.clone(), config.queues.clone(), log.changes);
        changed::check(&roles)?;
        let local_files = executor.as_ref().map(|link| link.setup().config.state.clone());
        let (fetcher, file_orders) = fetcher();
        let files = local_files.clone().map(|files| (files, fetcher));
        let hosted = Hosted::start(roles, log.store, replica, log.clock, journal, files)?;
        let handle = &hosted.handle;

        start_nodes(handle, &nodes, executor);

        let runtime = interface_runtime()?;
        if local_files.is_some() {
            runtime.block_on(local_nodes_join(handle, nodes.len()));
        }
        let remote = Arc::new(RemoteNodes::new(seat, local_files.clone()));
        if let Some(files) = local_files {
            FileStore::remove_remains(&files);
            // Who has nodes of its own has no agents that hold files; but other clusters may.
            let (remote, handle) = (Arc::clone(&remote), handle.clone());
            let source = seat.is_some().then(|| Arc::new(FederatedFiles { remote, handle }) as Arc<dyn Source>);
            runtime.spawn(file_orders.carry_out(files, source, hosted.handle.clone()));
        }
        let listener = runtime.block_on(bind(address))?;
        let agents_address = match agents {
            None => None,
            Some(agents) => {
                let listener = runtime.block_on(bind(agents))?;
                let address = listener.local_addr().map_err(ServerError::io("learn the agents' address"))?;
                let (remote, preset) = (Arc::clone(&remote), Box::new(config.preset));
                let federated = config.master.federated.map(|(federation, cluster)| {
                    Box::new(global_introduction(&config, federation, GlobalId::default(), cluster))
                });
                let side = Side::Server { remote, id, preset, epoch: epoch.0, federated };
                let secrets = Secrets::Server(Arc::clone(&tokens));
                let gate = Gate { handle: handle.clone(), secrets, side, lease };
                runtime.spawn(serve_daemons(listener, gate));
                Some(address)
            }
        };
        let torn_bytes = log.torn_bytes;
        let neighbours = seat.map(|seat| neighbours(&config, seat, &listener)).transpose()?;
        let kept = Kept { agents_address, torn_bytes, state_dir, lock: executor_lock, resignation, neighbours };
        Server::serve(hosted, remote, tokens, runtime, listener, kept)
    }

    /// Opens the interface of a process whose loop runs.
    pub(crate) fn serve(
        hosted: Hosted,
        remote: Arc<RemoteNodes>,
        tokens: Arc<Tokens>,
        runtime: tokio::runtime::Runtime,
        listener: TcpListener,
        kept: Kept,
    ) -> Result<Server, ServerError> {
        let Hosted { handle, history, events, metrics, started } = hosted;
        let address = listener.local_addr().map_err(ServerError::io("learn the interface's address"))?;
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move {
            let _ = stopped.await;
        };
        let ended = Mutex::new(VecDeque::new());
        let Kept { agents_address, torn_bytes, state_dir, lock, resignation, neighbours } = kept;
        let handle_of_backend = handle.clone();
        let backend =
            ServerBackend { handle: handle_of_backend, history, events, metrics, remote, started, ended, neighbours };
        let token_file = tokens.path().to_owned();
        runtime.spawn(async move {
            http::serve(listener, Arc::new(backend), tokens, shutdown).await;
        });
        let server = Server {
            address,
            agents_address,
            token_file,
            torn_bytes,
            state_dir,
            _executor_lock: lock,
            resignation,
            handle,
            stop,
            runtime,
        };
        server.write_server_file(&server.state_dir)?;
        Ok(server)
    }

    /// Leaves the address where clients on this machine look for it.
    pub fn write_server_file(&self, state_dir: &Path) -> Result<(), ServerError> {
        leave_address(state_dir, self.address, &self.token_file)
    }

    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Answers what is under way, makes everything durable, and stops. Tasks go on in their executor.
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

/// Leaves the address of an interface where clients on this machine look for it.
pub(crate) fn leave_address(state_dir: &Path, address: SocketAddr, token_file: &Path) -> Result<(), ServerError> {
    let token_file = token_file.as_os_str().as_bytes().into();
    let file = ServerFile { address: address.to_string(), pid: std::process::id(), token_file };
    let text = serde_json::to_string(&file).expect("an address can be written");
    let path = state_dir.join(ServerFile::NAME);
    durable::replace(&path, text.as_bytes()).map_err(ServerError::io(format!("write {}", path.display())))
}

/// The changes among these entries, in order, and when the last entry was written.
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

/// Starts the loop on a thread of its own. A log that cannot be written ends the process, and so does a panic: nothing
/// that is not durable has left this machine, and the executor goes on with what runs and keeps the ends of the rest.
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

/// Says why, and what helps.
pub(crate) fn end_process(error: &dyn Error, remedy: &str) -> ! {
    eprintln!("error: {}", visible(&error.to_string()));
    eprintln!("  help: {}", visible(remedy));
    std::process::exit(1);
}

fn start_nodes(handle: &Handle, nodes: &[NodeOptions], executor: Option<ExecutorLink>) {
    let Some(executor) = executor else { return };
    // The loop was started just now and takes what it is sent.
    let host = Host::inspect();
    for options in nodes {
        let settings = options.settings(&host, &executor.enforcement);
        let _ = handle.send(Input::LocalNode(Box::new(settings)));
    }
    let _ = handle.send(Input::ExecutorConnected(Box::new(executor)));
}

/// Whoever finds the interface finds these nodes, too: a job that fits on none of them is refused from the first moment.
/// An executor that does not answer is not waited for.
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

pub(crate) fn resolve(address: &str) -> Result<SocketAddr, ServerError> {
    let wrong = |why: String| {
        ServerError::Address(format!(
            "`{address}` is not an address to listen on: {why}; write for instance `127.0.0.1:7433`"
        ))
    };
    let mut found = address.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    let first = found.next().ok_or_else(|| wrong("it names nothing".to_owned()))?;
    check_bind(first).map_err(ServerError::Address)?;
    Ok(first)
}

pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address).await.map_err(|error| cannot_bind(address, &error))
}

fn cannot_bind(address: SocketAddr, error: &io::Error) -> ServerError {
    let remedy = if error.kind() == io::ErrorKind::AddrInUse {
        "; another server has it: stop that one, or listen elsewhere with --listen"
    } else {
        ""
    };
    ServerError::Bind(format!("cannot listen on {address}: {error}{remedy}"))
}

/// Takes an address before whoever listens there is started, for others to be told which one it is.
///
/// # Errors
/// When it is no address of this machine's loopback, or is in use.
pub fn take_address(address: &str) -> Result<StdListener, ServerError> {
    let address = resolve(address)?;
    let taken = StdListener::bind(address).and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    taken.map_err(|error| cannot_bind(address, &error))
}

/// Where the executor of a server or agent with this state directory keeps its files and its socket.
pub fn executor_paths(state_dir: &Path) -> (PathBuf, PathBuf) {
    /// A unix socket's path has 108 bytes, the last of them 0.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_that_was_not_finished_is_made_again_unless_somebody_goes_by_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(IDENTITY);
        let first = ServerId::of(dir.path(), false).unwrap();
        assert_eq!(ServerId::of(dir.path(), true).unwrap(), first);
        let whole = fs::read(&path).unwrap();
        for length in 0..IDENTITY_BYTES {
            fs::write(&path, &whole[..length]).unwrap();
            let refused = ServerId::of(dir.path(), true).unwrap_err().to_string();
            assert!(refused.contains(&format!("identity holds {length} bytes instead of 16")), "{refused}");
            let again = ServerId::of(dir.path(), false).unwrap();
            assert!(again != first && ServerId::of(dir.path(), true).unwrap() == again);
        }
    }
}
