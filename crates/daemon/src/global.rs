//! The process of a global master: jobs and their managers, a log, a public interface, and a connection to the master
//! of each cluster.

use crate::auth::{self, Callers, Tokens, TrustedPem};
use crate::authority::{Authority, Expected, pem_of};
use crate::changed;
use crate::channel::Certificate;
use crate::config::{Config, FederationConfig, is_local, is_loopback};
use crate::durable;
use crate::http::Encryption;
use crate::identity::{Identity, ToClients};
use crate::journal::{JournalPlace, JournalWriter};
use crate::seat;
use crate::server::{
    Hosted, Kept, Log, Server, ServerError, bind_all, certificates_of, global_introduction, interface_runtime,
    neighbours, resolve, resolve_all, roles, shown,
};
use crate::shell::{Handle, Input, Stopped};
use crate::transport::{
    ClusterNews, GlobalIntroduction, Introduction, RETRY, RemoteNodes, Secrets, join_for_ever, serve_cluster,
};
use amalgam_core::hosting::Roles;
use amalgam_core::vocabulary::{ClusterId, Epoch, Seat};
use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

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
    /// The certificates for the masters of the clusters that it has joined with a string.
    pub joined: BTreeMap<ClusterId, Arc<Identity>>,
    /// Place for the journal of the roles' events and effects.
    pub journal: Option<JournalPlace>,
}

/// How clients reach the interface.
struct Interface {
    addresses: Vec<SocketAddr>,
    encryption: Encryption,
    trusted: Option<TrustedPem>,
    /// The address in the certificate, if it has no other.
    announced: Option<String>,
}

impl Interface {
    /// An interface that other machines reach is encrypted, with a certificate of the first cluster that this global master has
    /// joined, or else of an authority of its own.
    fn of(options: &GlobalOptions, federation: &FederationConfig) -> Result<Interface, ServerError> {
        let GlobalOptions { state_dir, config, listener, joined, .. } = options;
        let addresses = resolve_all(&config.interface_of_global())?;
        let is_beyond_loopback = !addresses.iter().copied().all(is_local);
        if let Some(announced) = federation.interface().filter(|_| listener.is_none()) {
            let is_elsewhere = match is_loopback(announced) {
                true => !addresses.contains(&resolve(announced)?),
                // It may be the address of a router.
                false => !is_beyond_loopback,
            };
            if is_elsewhere {
                return Err(ServerError::Elsewhere { addresses: shown(&addresses), announced: announced.to_owned() });
            }
        }
        let Some(first) = joined.values().next() else {
            let own = certificates_of(state_dir, &addresses, false, config)?;
            let (encryption, trusted) = (own.encryption, own.trusted);
            return Ok(Interface { addresses, encryption, trusted, announced: None });
        };
        let announced = federation.interface().filter(|_| is_beyond_loopback);
        if announced.is_none() && is_beyond_loopback {
            return Err(ServerError::Unannounced { addresses: shown(&addresses) });
        }
        announced.into_iter().for_each(|announced| check_name(first, announced));
        let specific = addresses.iter().filter(|address| !address.ip().is_unspecified()).map(ToString::to_string);
        specific.filter(|address| announced != Some(address)).for_each(|address| check_name(first, &address));
        let (presented, identity) = (ToClients(Arc::clone(first)), Arc::clone(first));
        let certificate = Some(Certificate::resolved(Arc::new(presented)));
        Ok(Interface {
            addresses,
            encryption: Encryption { certificate, plain_http: config.plain_http },
            trusted: Some(Arc::new(move || authorities(&identity))),
            announced: announced.map(str::to_owned),
        })
    }
}

/// Warns if clients cannot verify this global master at an address.
fn check_name(identity: &Identity, address: &str) {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let name = ServerName::try_from(host.trim_start_matches('[').trim_end_matches(']'));
    let presented = identity.for_clients().ok().flatten();
    let is_named = |key: CertifiedKey| {
        let parsed = ParsedCertificate::try_from(&key.cert[0]).ok()?;
        verify_server_name(&parsed, name.as_ref().ok()?).ok()
    };
    if presented.and_then(is_named).is_none() {
        tracing::warn!(
            "the certificate for clients does not name {host}: clients cannot verify this global master there; it names loopback and the \
             address of this one in `globals` of the [federation] of the cluster's master"
        );
    }
}

/// Starts all parts and returns when jobs can be submitted. The clusters may connect later.
///
/// # Errors
/// If the configuration defines no global master, or the log or an address cannot be used.
pub fn start(options: GlobalOptions) -> Result<Server, ServerError> {
    let missing = || ServerError::Federation("a global master requires this section".to_owned());
    let federation = options.config.federation.clone().ok_or_else(missing)?;
    let own = federation.global().map_err(ServerError::Federation)?;
    let tokens = Arc::new(Tokens::open(&options.state_dir, &options.user)?);
    let Interface { addresses, encryption, trusted, announced } = Interface::of(&options, &federation)?;
    let GlobalOptions { state_dir, config, listener, secrets, joined, journal, .. } = options;
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
    let listeners = listener.map_or_else(|| bind_all(&addresses), |taken| Ok(vec![taken]))?;
    let remote = Arc::new(RemoteNodes::new(Some(seat), None, hosted.metrics.file_traffic.clone()));
    let neighbours = Some(neighbours(&config, seat, &listeners)?);
    let secrets = secrets.unwrap_or_else(|| Secrets::Server(Arc::clone(&tokens)));
    let joins = Joins { secrets, joined, tokens: Arc::clone(&tokens), state_dir: state_dir.clone() };
    joins.prepare()?;
    let FederationConfig { size, masters, .. } = federation;
    for (cluster, master) in size.clusters().zip(masters) {
        let introduction = global_introduction(&config, size, own, cluster);
        let (handle, remote, news) = (hosted.handle.clone(), Arc::clone(&remote), joins.news_of(cluster));
        runtime.spawn(async move { stay_with(&master, introduction, &news, (&handle, &remote)).await });
    }
    let torn_bytes = log.torn_bytes;
    let kept = Kept {
        agents_addresses: Vec::new(),
        torn_bytes,
        state_dir,
        lock: None,
        resignation: None,
        neighbours,
        encryption,
        announced,
    };
    let usage_days = config.usage_days;
    let callers = Callers { trusted, ..Callers::open(tokens, config, auth::audit_log(&kept.state_dir)?)? };
    Server::serve(hosted, remote, (callers, None, usage_days), runtime, listeners, kept)
}

/// With what this global master joins the masters of the clusters.
struct Joins {
    /// For those that it has not joined with a string.
    secrets: Secrets,
    joined: BTreeMap<ClusterId, Arc<Identity>>,
    tokens: Arc<Tokens>,
    state_dir: PathBuf,
}

impl Joins {
    /// Those who are users of the first cluster that it has joined, are users here.
    fn prepare(&self) -> Result<(), ServerError> {
        if let Some((cluster, first)) = self.joined.iter().next() {
            self.tokens.load_others(*cluster)?;
            leave_authorities(first, &self.state_dir);
        }
        Ok(())
    }

    fn news_of(&self, cluster: ClusterId) -> ClusterNews {
        let Some(identity) = self.joined.get(&cluster) else {
            return ClusterNews { secrets: self.secrets.clone(), users: None, renewed: None };
        };
        let is_first = self.joined.keys().next() == Some(&cluster);
        let (renewed, state_dir) = (Arc::clone(identity), self.state_dir.clone());
        let renewed = move || leave_authorities(&renewed, &state_dir);
        ClusterNews {
            secrets: Secrets::Certificates(Arc::clone(identity), Expected::Server),
            users: is_first.then(|| Arc::clone(&self.tokens)),
            renewed: is_first.then(|| Arc::new(renewed) as Arc<dyn Fn() + Send + Sync>),
        }
    }
}

fn authorities(identity: &Identity) -> String {
    identity.trusted().iter().map(|certificate| pem_of(certificate)).collect()
}

/// Writes the authorities to the file by which clients of this machine verify this process.
fn leave_authorities(identity: &Identity, state_dir: &Path) {
    let (path, pem) = (state_dir.join(Authority::FILE), authorities(identity));
    if fs::read(&path).is_ok_and(|before| before == pem.as_bytes()) {
        return;
    }
    if let Err(error) = durable::replace(&path, pem.as_bytes()) {
        tracing::warn!(path = %path.display(), %error, "clients on this machine cannot verify this global master");
    }
}

/// Serves the master of a cluster as long as this process runs. If the master refuses the connection, it is retried:
/// its operator may fix the reason.
async fn stay_with(
    master: &str,
    introduction: GlobalIntroduction,
    news: &ClusterNews,
    (handle, remote): (&Handle, &Arc<RemoteNodes>),
) {
    let (federation, cluster) = (introduction.federation, introduction.cluster);
    loop {
        let introduce = || Introduction::Global(Box::new(introduction.clone()));
        let joined = join_for_ever(master, &news.secrets, introduce).await;
        tracing::info!("connected to the master of {cluster}");
        let end = serve_cluster(joined, federation, cluster, (handle, remote), news).await;
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
