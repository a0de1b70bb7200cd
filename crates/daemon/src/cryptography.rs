//! The cryptographic algorithms of TLS, from one library.

use rustls::crypto::{self, CryptoProvider};
use std::sync::{Arc, OnceLock};

pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(crypto::ring::default_provider())))
}
