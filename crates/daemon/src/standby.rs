//! A server that waits until its cluster has no active master any more, and says so to whoever asks it.

use crate::api::{Error, ErrorCode};
use crate::auth::Tokens;
use crate::config::{Config, StoreConfig};
use crate::http;
use crate::server::{Log, ServerError, bind, end_process, interface_runtime, leave_address};
use amalgam_core::vocabulary::ClusterId;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Returns with the records of the cluster when this is its active master.
///
/// # Errors
/// When the records, or the directory with what happened here, cannot be used.
pub(crate) fn wait(
    state_dir: &Path,
    config: &Config,
    store: &StoreConfig,
    cluster: ClusterId,
    address: SocketAddr,
    tokens: &Tokens,
) -> Result<Log, ServerError> {
    let mut interface = None;
    let stands_by = |active: &str| {
        tracing::warn!("standby: the active master of {cluster} is {active}; this one takes over when that ends");
        match answer_meanwhile(state_dir, address, tokens, refusal(cluster, active)) {
            Ok(runtime) => interface = Some(runtime),
            Err(error) => tracing::warn!(%error, "this standby has no interface"),
        }
    };
    let lost = |error: crate::replica::ReplicaError| end_process(&error, error.remedy());
    let says = format!("process {} at {address}", std::process::id());
    let log = Log::take_over(state_dir, config, store, cluster, &says, stands_by, lost)?;
    if let Some(interface) = interface {
        // Its address is wanted again.
        interface.shutdown_timeout(Duration::from_millis(200));
        tracing::warn!("this is the active master of {cluster} now");
    }
    Ok(log)
}

fn refusal(cluster: ClusterId, active: &str) -> Error {
    let message = format!("this is a standby of {cluster}, and its active master is {active}");
    Error::new(ErrorCode::Unavailable, message, "ask the active one, or wait until this one has taken over")
}

fn answer_meanwhile(
    state_dir: &Path,
    address: SocketAddr,
    tokens: &Tokens,
    refusal: Error,
) -> Result<Runtime, ServerError> {
    let runtime = interface_runtime()?;
    let listener = runtime.block_on(bind(address))?;
    let address = listener.local_addr().map_err(ServerError::io("learn the interface's address"))?;
    leave_address(state_dir, address, tokens.path())?;
    runtime.spawn(http::refuse_all(listener, refusal));
    Ok(runtime)
}
