//! The certificates that a server presents.

use super::ServerError;
use crate::auth::TrustedPem;
use crate::authority::Authority;
use crate::channel::Certificate;
use crate::config::{Config, FederationConfig, is_local};
use crate::executor::host::Host;
use crate::transport::Certifier;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// The certificate of the address for agents, and what signs those of daemons.
pub(crate) type ForDaemons = (Certificate, Certifier);

/// What a server has of the cluster's authority.
#[derive(Default)]
pub(crate) struct Certificates {
    /// Of an interface that other machines can reach.
    pub for_clients: Option<Certificate>,
    pub for_daemons: Option<ForDaemons>,
    pub trusted: Option<TrustedPem>,
}

/// The certificates of an interface that other machines can reach, and of the address for agents.
pub(crate) fn certificates_of(
    state_dir: &Path,
    interface: SocketAddr,
    takes_agents: bool,
    config: &Config,
) -> Result<Certificates, ServerError> {
    if is_local(interface) && !takes_agents {
        return Ok(Certificates::default());
    }
    let mut names = vec!["localhost".to_owned(), Host::inspect().hostname];
    let interfaces = if_addrs::get_if_addrs().map_err(ServerError::io("list the addresses of this machine"))?;
    names.extend(interfaces.iter().map(|interface| interface.ip().to_string()));
    names.extend_from_slice(&config.listen_names);
    names.retain(|name| ServerName::try_from(name.as_str()).is_ok());
    names.sort();
    names.dedup();
    let authority = Arc::new(Authority::open(state_dir)?);
    let renewed = authority.certificates(names)?;
    let for_clients = (!is_local(interface)).then(|| Certificate::resolved(renewed.clone()));
    let globals = config.federation.as_ref().map_or_else(Vec::new, FederationConfig::names_of_globals);
    let certifier = || Certifier::new(authority.clone(), globals, config.exchange_tokens);
    let for_daemons = takes_agents.then(|| (Certificate::for_daemons(renewed), certifier()));
    let trusted: TrustedPem = Arc::new(move || authority.pem());
    Ok(Certificates { for_clients, for_daemons, trusted: Some(trusted) })
}
