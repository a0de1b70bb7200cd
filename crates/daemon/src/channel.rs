//! The bytes of a connection: TLS 1.3, except to daemons of version 32 and to clients on the same machine (ADR 67, ADR 68).
//!
//! Between daemons, the certificate does not authenticate its owner: each listening process makes one at its start. Both sides
//! prove that they have the same token, and the proofs contain a value that only the two ends of this TLS connection
//! can compute (RFC 9266, `tls-exporter`). A process between the two ends has a TLS connection with each of them, so it
//! cannot forward their proofs.

use rustix::net::sockopt;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::{self, CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::ResolvesServerCert;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{DigitallySignedStruct, PeerIncompatible, ServerConfig, SignatureScheme};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
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

    /// The certificate that `resolver` returns for each connection.
    pub(crate) fn resolved(resolver: Arc<dyn ResolvesServerCert>) -> Certificate {
        let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
        let builder = builder.expect("the provider supports TLS 1.3");
        let mut config = builder.with_no_client_auth().with_cert_resolver(resolver);
        // Connections last, so the state for shorter handshakes would be kept for nothing.
        config.send_tls13_tickets = 0;
        Certificate(TlsAcceptor::from(Arc::new(config)))
    }

    /// Accepts a connection whose first byte is that of TLS.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<Channel> {
        Ok(Channel::Tls(Box::new(self.0.accept(stream).await?.into())))
    }
}

impl Channel {
    /// Connects to a listening daemon.
    ///
    /// # Errors
    /// If it cannot be reached, or if it does not use TLS and is not on this machine.
    pub(crate) async fn connect(address: &str) -> io::Result<Channel> {
        let stream = open(address).await?;
        let is_local = is_local(stream.peer_addr()?);
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let peer = stream.peer_addr()?;
        match connector()?.connect(name, stream).await {
            Ok(stream) => Ok(Channel::Tls(Box::new(stream.into()))),
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

/// Whether an address is on loopback, also as an IPv4-mapped one.
pub fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Whether the peer's answer to the first bytes of TLS is not TLS. A daemon of version 32 has sent its challenge.
fn is_not_tls(error: &io::Error) -> bool {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(of_tls, Some(rustls::Error::InvalidMessage(_) | rustls::Error::InappropriateMessage { .. }))
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(crypto::ring::default_provider())))
}

fn connector() -> io::Result<TlsConnector> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(Arc::clone(config).into());
    }
    let verifier = Arc::new(AnyCertificate(provider().signature_verification_algorithms));
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(io::Error::other)?;
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(Arc::clone(CONFIG.get_or_init(|| Arc::new(config))).into())
}

/// Accepts every certificate whose owner has its key. The proofs of the token authenticate both sides.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

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
        crypto::verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
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
        let (joining, listening) = tokio::join!(Channel::connect(&address), accept);
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
        let (joined, ()) = tokio::join!(Channel::connect(&address), greet);
        assert!(matches!(joined.unwrap(), Channel::Plain(_)));
    }

    #[test]
    fn only_loopback_addresses_are_of_this_machine() {
        let local = |address: &str| is_local(address.parse().unwrap());
        assert!(local("127.0.0.1:1") && local("[::1]:1") && local("[::ffff:127.0.0.1]:1"));
        assert!(!local("10.0.0.1:1") && !local("[fe80::1]:1"));
    }
}
