//! A standby: it waits until its cluster has no active master, and answers all requests with that until then.

use super::{Interface, Log, ServerError, bind, end_process, interface_runtime, leave_address};
use crate::api::{Error, ErrorCode};
use crate::auth::Tokens;
use crate::config::{Config, StoreConfig};
use crate::http;
use crate::service_manager;
use amalgam_core::vocabulary::ClusterId;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;

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
                interface = Some(runtime);
                // It may stand by for ever, and a service manager waits for a limited time until a service is ready.
                service_manager::ready(&format!("standby of {cluster}"));
            }
            Err(error) => tracing::warn!(%error, "cannot open the interface of this standby"),
        }
    };
    let lost = |error: crate::replica::ReplicaError| end_process(&error, error.remedy());
    let says = format!("process {} at {}", std::process::id(), own.address);
    let log = Log::take_over(state_dir, config, store, cluster, &says, stands_by, lost)?;
    if let Some(interface) = interface {
        // The server needs the same address.
        interface.shutdown_timeout(Duration::from_millis(200));
        tracing::warn!("this is the active master of {cluster} now");
    }
    Ok(log)
}

fn refusal(cluster: ClusterId, active: &str) -> Error {
    let message = format!("this is a standby of {cluster}, and its active master is {active}");
    Error::new(ErrorCode::Unavailable, message, "use the active master, or wait until this one takes over")
}

fn answer_meanwhile(
    state_dir: &Path,
    own: &Interface,
    tokens: &Tokens,
    refusal: Error,
) -> Result<Runtime, ServerError> {
    let runtime = interface_runtime()?;
    let listener = runtime.block_on(bind(own.address))?;
    let address = listener.local_addr().map_err(ServerError::io("learn the interface's address"))?;
    leave_address(state_dir, address.to_string(), None, tokens.path())?;
    runtime.spawn(http::refuse_all(listener, own.certificate.clone(), refusal));
    Ok(runtime)
}
