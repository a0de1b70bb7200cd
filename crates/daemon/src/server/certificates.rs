//! The certificates that a server presents.

use super::ServerError;
use crate::auth::TrustedPem;
use crate::authority::Authority;
use crate::channel::Certificate;
use crate::config::{Config, FederationConfig, is_local};
use crate::executor::host::Host;
use crate::http::Encryption;
use crate::transport::Certifier;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// The certificate of the address for agents, and what signs those of daemons.
pub(crate) type ForDaemons = (Certificate, Certifier);

/// What a server has of the cluster's authority.
pub(crate) struct Certificates {
    /// Of the interface for clients.
    pub encryption: Encryption,
    pub for_daemons: Option<ForDaemons>,
    pub trusted: Option<TrustedPem>,
}

/// The certificates of an interface at these addresses, and of the address for agents. Clients on loopback can do without one if they may
/// do without TLS.
pub(crate) fn certificates_of(
    state_dir: &Path,
    interface: &[SocketAddr],
    takes_agents: bool,
    config: &Config,
) -> Result<Certificates, ServerError> {
    let is_needed = takes_agents || !config.plain_http || !interface.iter().copied().all(is_local);
    let authority = match Authority::open(state_dir) {
        Err(error) if !is_needed => {
            tracing::warn!("connections on loopback are not encrypted: {error}; {}", error.remedy());
            let encryption = Encryption { certificate: None, plain_http: config.plain_http };
            return Ok(Certificates { encryption, for_daemons: None, trusted: None });
        }
        opened => Arc::new(opened?),
    };
    let mut names = vec!["localhost".to_owned(), Host::inspect().hostname];
    let interfaces = if_addrs::get_if_addrs().map_err(ServerError::io("list the addresses of this machine"))?;
    names.extend(interfaces.iter().map(|interface| interface.ip().to_string()));
    names.extend(interface.iter().filter(|own| !own.ip().is_unspecified()).map(|own| own.ip().to_string()));
    names.extend_from_slice(&config.listen_names);
    names.retain(|name| ServerName::try_from(name.as_str()).is_ok());
    names.sort();
    names.dedup();
    let renewed = authority.certificates(names)?;
    let certificate = Some(Certificate::resolved(renewed.clone()));
    let encryption = Encryption { certificate, plain_http: config.plain_http };
    let globals = config.federation.as_ref().map_or_else(Vec::new, FederationConfig::names_of_globals);
    let description = config.description.as_deref().unwrap_or_default();
    let certifier = || Certifier::new(authority.clone(), globals, config.exchange_tokens).describing(description);
    let for_daemons = takes_agents.then(|| (Certificate::for_daemons(renewed), certifier()));
    let trusted: TrustedPem = Arc::new(move || authority.pem());
    Ok(Certificates { encryption, for_daemons, trusted: Some(trusted) })
}
