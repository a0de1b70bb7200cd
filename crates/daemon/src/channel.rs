//! The bytes of a connection: TLS 1.3, except to daemons of version 32 and to clients on the same machine (ADR 67, ADR 68).
//!
//! A daemon that joined with a string has certificates: both sides verify the other's (ADR 80). For other daemons the
//! certificate does not authenticate its owner. Both sides then prove that they have the same token, and the proofs contain a value that only the two ends of this TLS connection
//! can compute (RFC 9266, `tls-exporter`). A process between the two ends has a TLS connection with each of them, so it
//! cannot forward their proofs.

mod blocking;

pub(crate) use blocking::Blocking;

use crate::authority::{Expected, Untrusted};
use crate::config::is_local;
use crate::cryptography::provider;
use crate::identity::Identity;
use rustix::net::sockopt;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ResolvesClientCert, Resumption};
use rustls::crypto;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoClientAuth, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, PeerIncompatible, ServerConfig, SignatureScheme,
};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// A peer with TLS sends the first bytes, one of version 32 waits for the challenge. This is how long the listener waits
/// for the first byte of a peer on this machine. Others have the time of a handshake.
const FIRST_BYTE: Duration = Duration::from_millis(500);
/// The first byte of a TLS connection: a record of a handshake.
pub(crate) const TLS_HANDSHAKE: u8 = 22;

pub enum Channel {
    Tls(Box<TlsStream<TcpStream>>),
    /// To a daemon of version 32, over a loopback address.
    Plain(TcpStream),
}

/// The certificate and key of a process that listens for daemons.
#[derive(Clone)]
pub struct Certificate(TlsAcceptor);

impl Certificate {
    /// A certificate that only this process uses.
    ///
    /// # Errors
    /// If the system returns no random numbers.
    pub fn of_process() -> io::Result<Certificate> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).map_err(io::Error::other)?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let key = provider().key_provider.load_private_key(key.into()).map_err(io::Error::other)?;
        let certified = CertifiedKey::new(vec![made.cert.into()], key);
        Ok(Certificate::resolved(Arc::new(SingleCertAndKey::from(certified))))
    }

    /// The certificate that `resolver` returns for each connection of a client.
    pub(crate) fn resolved(resolver: Arc<dyn ResolvesServerCert>) -> Certificate {
        Certificate::asking(Arc::new(NoClientAuth), resolver)
    }

    /// The certificate that `resolver` returns for each connection of a daemon, which may present one, too.
    pub(crate) fn for_daemons(resolver: Arc<dyn ResolvesServerCert>) -> Certificate {
        Certificate::asking(Arc::new(AnyCertificate), resolver)
    }

    fn asking(verifier: Arc<dyn ClientCertVerifier>, resolver: Arc<dyn ResolvesServerCert>) -> Certificate {
        let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
        let builder = builder.expect("the provider supports TLS 1.3");
        let mut config = builder.with_client_cert_verifier(verifier).with_cert_resolver(resolver);
        // Connections last, so the state for shorter handshakes would be kept for nothing.
        config.send_tls13_tickets = 0;
        Certificate(TlsAcceptor::from(Arc::new(config)))
    }

    /// Accepts a connection whose first byte is that of TLS.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<Channel> {
        match self.0.accept(stream).await {
            Ok(stream) => Ok(Channel::Tls(Box::new(stream.into()))),
            Err(error) => match of_tls(&error) {
                Some(rustls::Error::AlertReceived(alert)) => {
                    let why = format!("the peer does not accept the certificate of this process ({alert:?})");
                    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
                }
                _ => Err(error),
            },
        }
    }
}

/// What a daemon with certificates presents, and whom it expects to find.
pub(crate) type Mutual<'a> = (&'a Arc<Identity>, Expected);

impl Channel {
    /// Connects to a listening daemon.
    ///
    /// # Errors
    /// If it cannot be reached, if it does not use TLS and is not on this machine, or if it is not the expected daemon.
    pub(crate) async fn connect(address: &str, mutual: Option<Mutual<'_>>) -> io::Result<Channel> {
        let stream = open(address).await?;
        let is_local = is_local(stream.peer_addr()?);
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let peer = stream.peer_addr()?;
        let verifier = mutual.map(|(identity, expected)| Known::new(Arc::clone(identity), expected));
        let has_certificate = verifier.is_some();
        let (connector, refused) = match verifier {
            None => (connector()?, None),
            Some(verifier) => {
                let refused = Arc::clone(&verifier.refused);
                (verifier.connector().map_err(io::Error::other)?, Some(refused))
            }
        };
        let connected = connector.connect(name, stream).await;
        let refused = refused.and_then(|refused| refused.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(why) = refused {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        match connected {
            Ok(stream) => Ok(Channel::Tls(Box::new(stream.into()))),
            Err(error) if is_not_tls(&error) && has_certificate => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it does not use TLS, and this daemon joined with a string; check that this is its address for agents",
            )),
            Err(error) if is_not_tls(&error) && is_local => {
                tracing::warn!(address, "it does not use TLS; trying version 32, which is not encrypted");
                // Not the name again, which may lead to another machine.
                Ok(Channel::Plain(open(peer).await?))
            }
            Err(error) if is_not_tls(&error) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it does not use TLS; check that this is its address for agents, and that its program is not older",
            )),
            Err(error) => Err(error),
        }
    }

    /// Connects to a daemon that uses TLS.
    ///
    /// # Errors
    /// If it cannot be reached, or does not use TLS.
    pub(crate) async fn connect_encrypted(address: &str) -> io::Result<Channel> {
        let stream = open(address).await?;
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        Ok(Channel::Tls(Box::new(connector()?.connect(name, stream).await?.into())))
    }

    /// Accepts the connection of a daemon that uses TLS.
    ///
    /// # Errors
    /// If the peer does not use TLS.
    pub(crate) async fn accept_encrypted(stream: TcpStream, certificate: &Certificate) -> io::Result<Channel> {
        prepare(&stream)?;
        certificate.accept(stream).await
    }

    /// This machine's address on the connection.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        let stream = match self {
            Channel::Tls(stream) => stream.get_ref().0,
            Channel::Plain(stream) => stream,
        };
        stream.local_addr().ok().map(|address| address.ip().to_canonical())
    }

    /// Accepts the connection of a daemon.
    ///
    /// # Errors
    /// If the peer does not use TLS. Daemons of version 32 do not, and are accepted on this machine.
    pub(crate) async fn accept(stream: TcpStream, certificate: &Certificate) -> io::Result<Channel> {
        prepare(&stream)?;
        let mut first = [0];
        let may_be_plain = is_local(stream.peer_addr()?);
        let arrived = timeout(if may_be_plain { FIRST_BYTE } else { Duration::MAX }, stream.peek(&mut first));
        match arrived.await {
            Ok(Ok(0)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(Ok(_)) if first == [TLS_HANDSHAKE] => certificate.accept(stream).await,
            Ok(Ok(_)) => Err(io::Error::new(io::ErrorKind::InvalidData, "the peer does not use TLS")),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                tracing::warn!("a peer on this machine does not start TLS; trying version 32, which is not encrypted");
                Ok(Channel::Plain(stream))
            }
        }
    }

    /// The certificates that the peer has presented and whose key it has, its own first. They are not verified.
    pub(crate) fn peer_chain(&self) -> Vec<CertificateDer<'static>> {
        let chain = match self {
            Channel::Plain(_) => None,
            Channel::Tls(stream) => match &**stream {
                TlsStream::Client(stream) => stream.get_ref().1.peer_certificates(),
                TlsStream::Server(stream) => stream.get_ref().1.peer_certificates(),
            },
        };
        chain.unwrap_or_default().to_vec()
    }

    /// What binds proofs to this connection. Empty without TLS.
    ///
    /// # Errors
    /// If the TLS library does not provide it.
    pub(crate) fn binding(&self) -> io::Result<Vec<u8>> {
        match self {
            Channel::Plain(_) => Ok(Vec::new()),
            Channel::Tls(stream) => {
                let output = vec![0; 32];
                let exported = match &**stream {
                    TlsStream::Client(stream) => stream.get_ref().1.export_keying_material(output, EXPORTER, Some(&[])),
                    TlsStream::Server(stream) => stream.get_ref().1.export_keying_material(output, EXPORTER, Some(&[])),
                };
                exported.map_err(io::Error::other)
            }
        }
    }
}

/// The name in certificates. It identifies nobody.
const NAME: &str = "amalgam";
/// RFC 9266, section 2.
const EXPORTER: &[u8] = b"EXPORTER-Channel-Binding";

async fn open(address: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    prepare(&stream)?;
    Ok(stream)
}

/// A machine that is gone sends no end of its connections. The kernel ends them after about 25 seconds.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    const IDLE: Duration = Duration::from_secs(10);
    const INTERVAL: Duration = Duration::from_secs(5);
    const PROBES: u32 = 3;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_user_timeout(stream, (IDLE + INTERVAL * PROBES).as_millis() as u32)?;
    Ok(())
}

/// Whether the peer's answer to the first bytes of TLS is not TLS. A daemon of version 32 has sent its challenge.
fn is_not_tls(error: &io::Error) -> bool {
    matches!(of_tls(error), Some(rustls::Error::InvalidMessage(_) | rustls::Error::InappropriateMessage { .. }))
}

fn of_tls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>())
}

fn connector() -> io::Result<TlsConnector> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(Arc::clone(config).into());
    }
    let verifier = Arc::new(AnyCertificate);
    let config = joining(verifier, None).map_err(io::Error::other)?;
    Ok(Arc::clone(CONFIG.get_or_init(|| Arc::new(config))).into())
}

fn joining(
    verifier: Arc<dyn ServerCertVerifier>,
    own: Option<Arc<dyn ResolvesClientCert>>,
) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match own {
        Some(own) => builder.with_client_cert_resolver(own),
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

/// How a verifier checks that the other side has the key of its certificate, whatever it says of the certificate.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(PeerIncompatible::ServerDoesNotSupportTls12Or13.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            crypto::verify_tls13_signature(message, certificate, signed, &provider().signature_verification_algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            provider().signature_verification_algorithms.supported_schemes()
        }
    };
}

/// Accepts the certificate of the expected daemon, and presents that of this one.
#[derive(Debug)]
struct Known {
    identity: ByIdentity,
    expected: Expected,
    /// Why the other side's was not accepted: the error of TLS does not say it all.
    refused: Arc<Mutex<Option<Untrusted>>>,
}

#[derive(Clone)]
struct ByIdentity(Arc<Identity>);

impl Known {
    fn new(identity: Arc<Identity>, expected: Expected) -> Known {
        Known { identity: ByIdentity(identity), expected, refused: Arc::default() }
    }

    fn connector(self) -> Result<TlsConnector, rustls::Error> {
        let own = Arc::new(self.identity.clone());
        Ok(Arc::new(joining(Arc::new(self), Some(own))?).into())
    }
}

impl std::fmt::Debug for ByIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ByIdentity")
    }
}

impl ResolvesClientCert for ByIdentity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let key = self.0.certified_key().map(Arc::new);
        key.inspect_err(|error| tracing::error!(%error, "the certificate of this daemon cannot be used")).ok()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let chain: Vec<CertificateDer> = std::iter::once(own).chain(between).cloned().collect();
        self.identity.0.check_listening(&chain, &self.expected).map_err(|why| {
            let error = match &why {
                Untrusted::Expired => CertificateError::Expired,
                Untrusted::NotYet => CertificateError::NotValidYet,
                Untrusted::OtherAuthority => CertificateError::UnknownIssuer,
                Untrusted::Revoked => CertificateError::Revoked,
                Untrusted::Invalid(_) | Untrusted::Other { .. } => CertificateError::ApplicationVerificationFailure,
            };
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
            rustls::Error::InvalidCertificate(error)
        })?;
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}

/// The listening side verifies a certificate after the handshake, so that it can tell the peer what is wrong.
impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    signatures!();
}

/// Accepts every certificate whose owner has its key. The proofs of the token authenticate both sides.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}

impl AsyncRead for Channel {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Channel::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            Channel::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Channel {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Channel::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            Channel::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Channel::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Channel::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Channel::Tls(stream) => stream.is_write_vectored(),
            Channel::Plain(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Channel::Tls(stream) => Pin::new(stream).poll_flush(context),
            Channel::Plain(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Channel::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Channel::Plain(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    async fn listen() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        (listener, address.to_string())
    }

    /// Both ends of a connection with this certificate: the joining side first.
    async fn ends(certificate: &Certificate) -> (Channel, Channel) {
        let (listener, address) = listen().await;
        let accept = async { Channel::accept(listener.accept().await.unwrap().0, certificate).await.unwrap() };
        let (joining, listening) = tokio::join!(Channel::connect(&address, None), accept);
        (joining.unwrap(), listening)
    }

    #[tokio::test]
    async fn both_ends_of_a_connection_have_the_same_binding_and_no_other_connection_has_it() {
        let certificate = Certificate::of_process().unwrap();
        let (mut joining, mut listening) = ends(&certificate).await;
        assert!(matches!((&joining, &listening), (Channel::Tls(_), Channel::Tls(_))));
        let binding = joining.binding().unwrap();
        assert_eq!((binding.len(), listening.binding().unwrap()), (32, binding.clone()));
        let (other, _listening) = ends(&certificate).await;
        assert_ne!(other.binding().unwrap(), binding);
        let sent = vec![7; 300_000];
        let mut received = Vec::new();
        let write = async {
            joining.write_all(&sent).await.unwrap();
            joining.shutdown().await.unwrap();
        };
        let (read, ()) = tokio::join!(listening.read_to_end(&mut received), write);
        assert_eq!((read.unwrap(), received == sent), (300_000, true));
    }

    #[tokio::test]
    async fn a_peer_that_sends_plain_text_is_refused() {
        let certificate = Certificate::of_process().unwrap();
        let (listener, address) = listen().await;
        let mut peer = TcpStream::connect(&address).await.unwrap();
        peer.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let refused = Channel::accept(listener.accept().await.unwrap().0, &certificate).await.err().unwrap();
        assert_eq!(refused.to_string(), "the peer does not use TLS");
    }

    #[tokio::test]
    async fn a_silent_peer_on_this_machine_and_a_listener_without_tls_are_of_version_32() {
        let certificate = Certificate::of_process().unwrap();
        let (listener, address) = listen().await;
        let _silent = TcpStream::connect(&address).await.unwrap();
        let accepted = Channel::accept(listener.accept().await.unwrap().0, &certificate).await.unwrap();
        assert!(matches!(accepted, Channel::Plain(_)) && accepted.binding().unwrap().is_empty());

        let greet = async {
            for _ in 0..2 {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(b"\0\0\0\x09challenge").await.unwrap();
            }
        };
        let (joined, ()) = tokio::join!(Channel::connect(&address, None), greet);
        assert!(matches!(joined.unwrap(), Channel::Plain(_)));
    }

    #[test]
    fn only_loopback_addresses_are_of_this_machine() {
        let local = |address: &str| is_local(address.parse().unwrap());
        assert!(local("127.0.0.1:1") && local("[::1]:1") && local("[::ffff:127.0.0.1]:1"));
        assert!(!local("10.0.0.1:1") && !local("[fe80::1]:1"));
    }
}
