//! A standby: it waits until its cluster has no active master, and answers all requests with that until then.

use super::addresses::{Reached, asynchronous, bind_all, local_addresses, shown};
use super::{Interface, Log, ServerError, end_process, interface_runtime};
use crate::api::{Error, ErrorCode};
use crate::auth::Tokens;
use crate::authority::{Authority, AuthorityError, Expected, SharedFiles, Subject};
use crate::config::{Config, StoreConfig};
use crate::http::{self, Entrance};
use crate::identity::Identity;
use crate::service_manager;
use crate::transport::{Introduction, Patience, Secrets, join_for_ever, join_patiently, serve_as_standby};
use amalgam_core::vocabulary::ClusterId;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Pause of a standby before it connects to the active server again.
const PAUSE: Duration = Duration::from_millis(500);

/// Returns the records of the cluster once this process is its active master.
///
/// # Errors
/// If the records, or the directory of the local history, cannot be used.
pub(crate) fn wait(
    state_dir: &Path,
    config: &Config,
    store: &StoreConfig,
    cluster: ClusterId,
    own: &Interface,
    tokens: &Tokens,
) -> Result<Log, ServerError> {
    let mut interface = None;
    let stands_by = |active: &str| {
        tracing::warn!("standby: the active master of {cluster} is {active}; this one takes over when its lease ends");
        match answer_meanwhile(state_dir, own, tokens, refusal(cluster, active)) {
            Ok(runtime) => {
                runtime.spawn(follow(state_dir.to_owned(), masters(config, cluster)));
                interface = Some(runtime);
                // It may stand by for ever, and a service manager waits for a limited time until a service is ready.
                service_manager::ready(&format!("standby of {cluster}"));
            }
            Err(error) => tracing::warn!(%error, "cannot open the interface of this standby"),
        }
    };
    let lost = |error: crate::replica::ReplicaError| end_process(&error, error.remedy());
    let says = format!("process {} at {}", std::process::id(), shown(&own.addresses));
    let log = Log::take_over(state_dir, config, store, cluster, &says, stands_by, lost)?;
    if let Some(interface) = interface {
        // The server needs the same address.
        interface.shutdown_timeout(Duration::from_millis(200));
        tracing::warn!("this is the active master of {cluster} now");
    }
    Ok(log)
}

/// The addresses of all servers of a cluster.
fn masters(config: &Config, cluster: ClusterId) -> String {
    let federation = config.federation.as_ref();
    federation.and_then(|federation| federation.masters.get(usize::from(cluster.0))).cloned().unwrap_or_default()
}

/// The certificate of a standby that joined with a string.
fn of_standby(state_dir: &Path) -> Result<Option<(Arc<Identity>, Secrets, String)>, ServerError> {
    let Some(identity) = Identity::load(state_dir)?.filter(Identity::is_of_server).map(Arc::new) else {
        return Ok(None);
    };
    let Ok(Subject { name, .. }) = identity.subject() else { return Ok(None) };
    let secrets = Secrets::Certificates(Arc::clone(&identity), Expected::Server);
    Ok(Some((identity, secrets, name)))
}

/// Keeps the files that all servers of the cluster have as the active one has them. Nothing to do for a standby that did not join with a
/// string: its operator copies them.
async fn follow(state_dir: PathBuf, masters: String) {
    let Ok(Some((identity, secrets, name))) = of_standby(&state_dir) else { return };
    loop {
        // The connection may have been there for longer than a certificate is valid.
        take(state_dir.clone(), Arc::clone(&identity), None).await;
        let introduction = || Introduction::Standby { name: name.clone() };
        let joined = join_for_ever(&masters, &secrets, introduction).await;
        tracing::info!("connected to the active server");
        let end = serve_as_standby(joined, |files| take(state_dir.clone(), Arc::clone(&identity), Some(files))).await;
        tracing::warn!(%end, "lost the connection to the active server");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Takes these files, if there are any, and replaces the certificate of this server by one of their authority. Returns the fingerprint of
/// the authority that has signed it; a failure is in the diagnostics. Another thread does it: a disk may be slow.
async fn take(state_dir: PathBuf, identity: Arc<Identity>, files: Option<SharedFiles>) -> Option<String> {
    let taken = tokio::task::spawn_blocking(move || {
        files.map_or(Ok(()), |files| files.write(&state_dir))?;
        Ok(identity.renew_by(&Authority::open(&state_dir)?)?.map(|(_, signer)| signer))
    });
    let taken: Result<_, AuthorityError> = taken.await.unwrap_or(Ok(None));
    taken.inspect_err(|error| tracing::error!("{error}; {}", error.remedy())).ok().flatten()
}

/// Gets the files that all servers of the cluster have from the active one, if this directory is that of a standby that joined with a
/// string, and they are not there yet. Without them it would make an authority and tokens of its own.
///
/// # Errors
/// If no active server gives them within `patience`.
pub fn receive_files(state_dir: &Path, config: &Config, patience: Duration) -> Result<(), ServerError> {
    let federation = config.federation.as_ref().filter(|_| !SharedFiles::are_in(state_dir));
    let Some(cluster) = federation.and_then(|federation| federation.cluster().ok()) else { return Ok(()) };
    let Some((identity, secrets, name)) = of_standby(state_dir)? else { return Ok(()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(ServerError::io("start the network's thread"))?;
    runtime.block_on(async {
        let introduction = || Introduction::Standby { name: name.clone() };
        let masters = masters(config, cluster);
        let joining = join_patiently(&masters, &secrets, introduction, Patience::Briefly(patience));
        let mut taken = Ok(());
        let end = serve_as_standby(joining.await?, |files| {
            taken =
                files.write(state_dir).and_then(|()| Ok(identity.renew_by(&Authority::open(state_dir)?).map(drop)?));
            std::future::ready(None)
        });
        let end = end.await;
        taken?;
        match SharedFiles::are_in(state_dir) {
            true => Ok(()),
            false => Err(ServerError::Io { what: "receive the files of the active server".to_owned(), error: end }),
        }
    })
}

fn refusal(cluster: ClusterId, active: &str) -> Error {
    let message = format!("this is a standby of {cluster}, and its active master is {active}");
    let remedy = "use the active master, or wait until this one takes over";
    Error { standby: true, ..Error::new(ErrorCode::Unavailable, message, remedy) }
}

fn answer_meanwhile(
    state_dir: &Path,
    own: &Interface,
    tokens: &Tokens,
    refusal: Error,
) -> Result<Runtime, ServerError> {
    let runtime = interface_runtime()?;
    let listeners = bind_all(&own.addresses)?;
    let encryption = own.encryption.clone();
    let addresses = local_addresses(&listeners)?;
    Reached { addresses, plain_http: encryption.plain_http, announced: None }.leave(state_dir, &[], tokens.path())?;
    let entered = runtime.enter();
    let entrance = Entrance { listeners: asynchronous(listeners)?, encryption };
    drop(entered);
    runtime.spawn(http::refuse_all(entrance, refusal));
    Ok(runtime)
}
