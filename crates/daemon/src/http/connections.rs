//! The connections of the HTTP interface: their encryption, their maximum number, and how long a request may take to arrive.
//!
//! A connection that starts with TLS is encrypted. Without TLS, only clients on loopback are answered, unless the configuration refuses
//! these, too.
//!
//! At the maximum number of connections, a new one replaces the oldest connection that is not busy, that is, has not
//! sent a complete request head.

use super::reply::Reply;
use crate::api::{Error, ErrorCode};
use crate::auth::LocalUser;
use crate::channel::{Certificate, Channel, TLS_HANDSHAKE};
use crate::config::is_local;
use crate::descriptors;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use futures_util::FutureExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tower::ServiceExt;

/// Names of local users that are looked up at once, so that other work of the same threads goes on.
const MOST_LOOKUPS: usize = 8;

/// Where a request comes from.
#[derive(Clone, Debug)]
pub enum Peer {
    Network(SocketAddr),
    Local(LocalUser),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Network(address) => address.fmt(f),
            Peer::Local(user) => user.fmt(f),
        }
    }
}

/// Whose connections are counted together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    Address(IpAddr),
    User(u32),
}

/// Limits on connections and on the time that a request may take to arrive.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum time until a request's head has arrived, from the end of the previous request.
    pub head: Duration,
    /// Maximum time between two parts of a body.
    pub pause: Duration,
    /// Minimum rate of a body that takes long to arrive, on average, in bytes per second. See
    /// `Arriving::next_deadline`.
    pub bytes_per_second: u64,
    /// Maximum number of connections in total.
    pub most: usize,
    /// Maximum number of connections from one address.
    pub most_of_peer: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        /// File descriptors that the process needs for other purposes.
        const RESERVED: u64 = 256;
        let most = descriptors::allowed().saturating_sub(RESERVED).clamp(64, 20_000) as usize;
        let (head, pause) = (Duration::from_secs(10), Duration::from_secs(10));
        Limits { head, pause, bytes_per_second: 1 << 10, most, most_of_peer: most - most / 4 }
    }
}

/// Which connections are encrypted, and how.
#[derive(Clone)]
pub struct Encryption {
    /// Without one, connections with TLS fail.
    pub certificate: Option<Certificate>,
    /// Whether clients on loopback may do without TLS.
    pub plain_http: bool,
}

/// Where connections are accepted, and how.
pub struct Entrance {
    pub listeners: Vec<TcpListener>,
    pub encryption: Encryption,
}

/// Answers requests until `shutdown` completes. Then it answers the requests in flight and returns.
pub async fn serve(
    entrance: Entrance,
    local: Option<UnixListener>,
    router: Router,
    limits: Limits,
    shutdown: impl Future<Output = ()> + Send,
) {
    let seats = Arc::new(Seats { limits, ..Seats::default() });
    let graceful = GracefulShutdown::new();
    let (stop, stopping) = watch::channel(());
    let names = Arc::new(Semaphore::new(MOST_LOOKUPS));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head);
    let Entrance { listeners, encryption } = entrance;
    let mut doors = Doors { listeners, next: 0 };
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = doors.accept() => accepted.map(|(stream, address)| Arrival::Network(stream, address)),
            accepted = accept_local(local.as_ref()) => accepted.map(|(stream, user)| Arrival::Local(stream, user)),
            () = &mut shutdown => break,
        };
        let Ok(arrival) = accepted else {
            // The process has most likely no file descriptors left. Closing an idle connection frees one. If none is
            // idle, the loop tries again until one is free.
            seats.let_one_go();
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Some(seat) = Seats::take(&seats, arrival.origin()) else {
            if let Arrival::Network(stream, _) = arrival {
                seats.turn_away(stream);
            }
            continue;
        };
        let front = Front { seat, router: router.clone(), limits, http: http.clone(), watcher: graceful.watcher() };
        let (encryption, stopping, names) = (encryption.clone(), stopping.clone(), Arc::clone(&names));
        tokio::spawn(async move {
            match arrival {
                Arrival::Network(stream, address) => {
                    // Answers are small: a delay to fill a packet costs more than it saves.
                    let _ = stream.set_nodelay(true);
                    let opening = async move { open(stream, &encryption).await };
                    front.answer(opening, Peer::Network(address), stopping).await;
                }
                Arrival::Local(stream, uid) => {
                    // The name service may be slow, or not answer.
                    let named = async {
                        let _turn = names.acquire().await.ok()?;
                        tokio::task::spawn_blocking(move || LocalUser::of(uid)).await.ok()
                    };
                    let Ok(Some(user)) = timeout(limits.head, named).await else { return };
                    front.answer(std::future::ready(Ok(stream)), Peer::Local(user), stopping).await;
                }
            }
        });
    }
    drop((doors, stop));
    graceful.shutdown().await;
}

/// The listeners of all addresses.
struct Doors {
    listeners: Vec<TcpListener>,
    /// The one that is asked first: each has its turn, however many connections arrive at another.
    next: usize,
}

impl Doors {
    /// The next connection at any of them.
    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        poll_fn(|context| {
            let count = self.listeners.len();
            for place in (self.next..self.next + count).map(|place| place % count) {
                if let Poll::Ready(accepted) = self.listeners[place].poll_accept(context) {
                    self.next = place + 1;
                    return Poll::Ready(accepted);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// A new connection.
enum Arrival {
    Network(TcpStream, SocketAddr),
    /// With the number of its user.
    Local(UnixStream, u32),
}

impl Arrival {
    fn origin(&self) -> Origin {
        match self {
            Arrival::Network(_, address) => Origin::Address(address.ip()),
            Arrival::Local(_, uid) => Origin::User(*uid),
        }
    }
}

/// The next connection to the local socket; never, if there is none.
async fn accept_local(local: Option<&UnixListener>) -> io::Result<(UnixStream, u32)> {
    let Some(local) = local else { return std::future::pending().await };
    let (stream, _) = local.accept().await?;
    let uid = stream.peer_cred()?.uid();
    Ok((stream, uid))
}

/// What a connection needs to be answered.
struct Front {
    seat: Seat,
    router: Router,
    limits: Limits,
    http: http1::Builder,
    watcher: Watcher,
}

impl Front {
    /// Answers the requests of a connection when it is opened, until it ends.
    async fn answer<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self,
        opening: impl Future<Output = io::Result<S>>,
        peer: Peer,
        mut stopping: watch::Receiver<()>,
    ) {
        let Front { seat, router, limits, http, watcher } = self;
        let own = seat.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let busy = Busy::mark(&own);
            let mut request = request.map(|body| Body::new(Arriving::new(body, limits)));
            request.extensions_mut().insert(peer.clone());
            let answer = router.clone().oneshot(request);
            answer.map(move |answer| answer.map(|answer| answer.map(|body| Body::new(Leaving { body, _busy: busy }))))
        });
        let opened = tokio::select! {
            opened = timeout(limits.head, opening) => opened,
            _ = stopping.changed() => return,
            () = seat.occupant.must_go.notified() => return,
        };
        // Errors of a connection concern only its client.
        let Ok(Ok(channel)) = opened else { return };
        let connection = watcher.watch(http.serve_connection(TokioIo::new(channel), service));
        tokio::select! {
            // Errors of a connection concern only its client.
            _ = connection => {}
            () = seat.occupant.must_go.notified() => {}
        }
    }
}

/// The channel of a connection, when its first byte has arrived.
async fn open(stream: TcpStream, encryption: &Encryption) -> io::Result<Channel> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let is_here = is_local(stream.peer_addr()?) && is_local(stream.local_addr()?);
    let message = match &encryption.certificate {
        Some(certificate) if first == [TLS_HANDSHAKE] => return certificate.accept(stream).await,
        _ if is_here && encryption.plain_http => return Ok(Channel::Plain(stream)),
        _ if is_here => "connections to this server have to be encrypted, also on loopback (`plain_http = false`)",
        _ => "connections to other addresses than loopback have to be encrypted",
    };
    let remedy = if is_here { HTTPS_HERE } else { HTTPS };
    say(stream, StatusCode::FORBIDDEN, Error::new(ErrorCode::Forbidden, message, remedy)).await?;
    Err(io::ErrorKind::ConnectionRefused.into())
}

const HTTPS: &str =
    "use https:// in the server's address, and --ca-file with a copy of ca.pem from the server's state directory";
const HTTPS_HERE: &str = "use https:// in the server's address, and --ca-file with ca.pem of the server's state directory, or `amalgam login`; \
                          or remove `plain_http` from the server's configuration";

#[derive(Default)]
struct Seats {
    limits: Limits,
    /// Connections by their number, so the oldest is first.
    taken: Mutex<BTreeMap<u64, Arc<Occupant>>>,
    next: AtomicUsize,
    turned_away: AtomicUsize,
}

struct Occupant {
    peer: Origin,
    /// A request is being answered.
    is_busy: AtomicBool,
    must_go: Notify,
}

/// A connection's place in [`Seats`]. It is released when the last copy is dropped.
#[derive(Clone)]
struct Seat {
    occupant: Arc<Occupant>,
    _leave: Arc<Leave>,
}

struct Leave {
    number: u64,
    seats: Arc<Seats>,
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.seats.lock().remove(&self.number);
    }
}

impl Seats {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Occupant>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a new connection. At the limit, the oldest idle connection is closed. Returns `None` if all
    /// are busy.
    fn take(seats: &Arc<Seats>, peer: Origin) -> Option<Seat> {
        let mut taken = seats.lock();
        let of_peer = taken.values().filter(|occupant| occupant.peer == peer).count();
        if of_peer >= seats.limits.most_of_peer {
            evict(&mut taken, |occupant| occupant.peer == peer)?;
        } else if taken.len() >= seats.limits.most {
            evict(&mut taken, |_| true)?;
        }
        let occupant = Arc::new(Occupant { peer, is_busy: AtomicBool::new(false), must_go: Notify::new() });
        let number = seats.next.fetch_add(1, Ordering::Relaxed) as u64;
        taken.insert(number, Arc::clone(&occupant));
        Some(Seat { occupant, _leave: Arc::new(Leave { number, seats: Arc::clone(seats) }) })
    }

    fn let_one_go(&self) {
        let _ = evict(&mut self.lock(), |_| true);
    }

    /// Answers with an error and closes the connection. At most `MOST` connections are answered at a time; others are
    /// closed without an answer.
    fn turn_away(self: &Arc<Seats>, stream: TcpStream) {
        const MOST: usize = 64;
        if self.turned_away.fetch_add(1, Ordering::Relaxed) >= MOST {
            self.turned_away.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let seats = Arc::clone(self);
        tokio::spawn(async move {
            let _ = timeout(Duration::from_secs(2), say_full(stream)).await;
            seats.turned_away.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Closes the oldest idle connection that `is_meant` selects. Returns `None` if there is none.
fn evict(taken: &mut BTreeMap<u64, Arc<Occupant>>, is_meant: impl Fn(&Occupant) -> bool) -> Option<()> {
    let waits = |occupant: &Occupant| is_meant(occupant) && !occupant.is_busy.load(Ordering::Relaxed);
    let (number, occupant) = taken.iter().find(|(_, occupant)| waits(occupant))?;
    let number = *number;
    occupant.must_go.notify_one();
    taken.remove(&number);
    Some(())
}

async fn say_full(stream: TcpStream) -> io::Result<()> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    if first == [TLS_HANDSHAKE] {
        // An answer would cost a handshake.
        return Ok(());
    }
    let message = "the server has reached its maximum number of connections";
    let full = Error::new(ErrorCode::Unavailable, message, "try again in a few seconds, or stop some of your clients");
    say(stream, StatusCode::SERVICE_UNAVAILABLE, full).await
}

/// Sends an error as the only answer of a connection without TLS.
async fn say(mut stream: TcpStream, status: StatusCode, error: Error) -> io::Result<()> {
    let answer = Reply(error).into_response();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 16).await.unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), &body].concat()).await?;
    stream.shutdown().await?;
    // Closing a socket with unread input resets the connection, and the client may lose the answer.
    let mut unread = [0; 4096];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

/// Marks a connection as busy until it is dropped.
struct Busy(Seat);

impl Busy {
    fn mark(seat: &Seat) -> Busy {
        seat.occupant.is_busy.store(true, Ordering::Relaxed);
        Busy(seat.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.occupant.is_busy.store(false, Ordering::Relaxed);
    }
}

/// The body of a request. It ends with an error if the next part does not arrive by the deadline.
struct Arriving {
    body: Incoming,
    limits: Limits,
    started: Instant,
    received: u64,
    deadline: Pin<Box<Sleep>>,
}

impl Arriving {
    fn new(body: Incoming, limits: Limits) -> Arriving {
        let started = Instant::now();
        Arriving { body, limits, started, received: 0, deadline: Box::pin(sleep_until(started + limits.pause)) }
    }

    /// Deadline of the next part: `pause` from now, but at most `3 * pause` after the body's start plus the time that
    /// the received bytes take at `bytes_per_second`.
    fn next_deadline(&self) -> Instant {
        let earned = Duration::from_secs(self.received / self.limits.bytes_per_second.max(1));
        (Instant::now() + self.limits.pause).min(self.started + self.limits.pause * 3 + earned)
    }
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let bytes = frame.iter().flatten().filter_map(Frame::data_ref).map(Bytes::len).sum::<usize>();
            self.received += bytes as u64;
            let next = self.next_deadline();
            self.deadline.as_mut().reset(next);
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        self.deadline.as_mut().poll(context).map(|()| {
            let late = io::Error::new(io::ErrorKind::TimedOut, "the rest of the body did not arrive in time");
            Some(Err(late.into()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer. Its connection is busy until the body has been sent.
struct Leaving {
    body: Body,
    _busy: Busy,
}

impl HttpBody for Leaving {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{get, post};
    use std::net::SocketAddr;
    use tokio::sync::oneshot;

    const LIMITS: Limits = Limits {
        head: Duration::from_millis(300),
        pause: Duration::from_millis(300),
        bytes_per_second: 1_000_000,
        most: 8,
        most_of_peer: 6,
    };

    /// Starts a server that answers `/` immediately, `/echo` with the request's body, and `/never` never.
    async fn start(limits: Limits) -> (SocketAddr, oneshot::Sender<()>) {
        start_with(limits, Encryption { certificate: None, plain_http: true }).await
    }

    async fn start_with(limits: Limits, encryption: Encryption) -> (SocketAddr, oneshot::Sender<()>) {
        let (addresses, stop) = start_at(&["127.0.0.1:0"], limits, encryption).await;
        (addresses[0], stop)
    }

    async fn start_at(at: &[&str], limits: Limits, encryption: Encryption) -> (Vec<SocketAddr>, oneshot::Sender<()>) {
        let router = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/echo", post(|body: Bytes| async move { body }))
            .route("/never", get(std::future::pending::<&'static str>));
        let mut listeners = Vec::new();
        for address in at {
            listeners.push(TcpListener::bind(address).await.unwrap());
        }
        let addresses = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(serve(Entrance { listeners, encryption }, None, router, limits, async move {
            let _ = stopped.await;
        }));
        (addresses, stop)
    }

    fn encrypted(plain_http: bool) -> Encryption {
        Encryption { certificate: Some(Certificate::of_process().unwrap()), plain_http }
    }

    async fn open(address: SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// Reads until the server closes the connection.
    async fn rest(mut stream: TcpStream) -> String {
        let mut text = Vec::new();
        let read = timeout(Duration::from_secs(20), stream.read_to_end(&mut text))
            .await
            .expect("the server closes the connection");
        let _ = read;
        String::from_utf8_lossy(&text).into_owned()
    }

    const WHOLE: &str = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

    #[tokio::test]
    async fn connections_with_half_a_head_are_closed_and_do_not_block_others() {
        let (address, _stop) = start(LIMITS).await;
        let mut halves = Vec::new();
        for number in 0..40 {
            halves.push(open(address, ["", "GET", "GET / HTTP/1.1\r\nhost: x\r\n"][number % 3]).await);
            let answer = rest(open(address, WHOLE).await).await;
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("here"), "{number}: {answer}");
        }
        for half in halves {
            assert!(!rest(half).await.contains("200"));
        }
    }

    #[tokio::test]
    async fn incomplete_and_slow_bodies_are_refused() {
        let (address, _stop) = start(LIMITS).await;
        let head = "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n";
        let half = rest(open(address, &format!("{head}abc")).await).await;
        assert!(!half.contains(" 200 "), "{half}");
        let mut trickling = open(address, head).await;
        let mut sent = 0;
        while trickling.write_all(b"x").await.is_ok() && sent < 200 {
            sleep(Duration::from_millis(50)).await;
            sent += 1;
        }
        assert!(sent < 200, "the server accepts a body of one byte every 50 ms for 10 s");
        let whole = "POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 3\r\n\r\nabc";
        assert!(rest(open(address, whole).await).await.ends_with("abc"));
    }

    #[tokio::test]
    async fn a_connection_above_the_limit_gets_an_error() {
        let (address, _stop) = start(LIMITS).await;
        let mut busy = Vec::new();
        for _ in 0..LIMITS.most_of_peer {
            let mut stream = open(address, "GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await;
            // Give the server time to read the request; then it is being answered.
            assert!(timeout(Duration::from_millis(50), stream.read_u8()).await.is_err());
            busy.push(stream);
        }
        let answer = rest(open(address, WHOLE).await).await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("maximum number of connections"), "{answer}");
        drop(busy.pop());
        let served = async {
            while !rest(open(address, WHOLE).await).await.ends_with("here") {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(20), served).await.expect("the server accepts a connection again");
    }

    #[tokio::test]
    async fn requests_in_flight_are_answered_before_the_server_stops() {
        let (address, stop) = start(Limits { head: Duration::from_secs(20), ..LIMITS }).await;
        let stream = open(address, "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\na").await;
        sleep(Duration::from_millis(50)).await;
        stop.send(()).unwrap();
        let mut stream = stream;
        stream.write_all(b"bc").await.unwrap();
        assert!(rest(stream).await.ends_with("abc"));
    }

    #[tokio::test]
    async fn connections_with_tls_and_without_are_answered_on_this_machine() {
        let (address, stop) = start_with(LIMITS, encrypted(true)).await;
        assert!(rest(open(address, WHOLE).await).await.ends_with("here"));
        let mut channel = Channel::connect(&address.to_string(), None).await.unwrap();
        assert!(matches!(channel, Channel::Tls(_)));
        let head = "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\na";
        channel.write_all(head.as_bytes()).await.unwrap();
        channel.flush().await.unwrap();
        sleep(Duration::from_millis(50)).await;
        // The request in flight is answered before the server stops.
        stop.send(()).unwrap();
        channel.write_all(b"bc").await.unwrap();
        channel.flush().await.unwrap();
        let mut answer = Vec::new();
        let read = timeout(Duration::from_secs(20), channel.read_to_end(&mut answer)).await;
        read.expect("the server closes the connection").unwrap();
        assert!(answer.ends_with(b"abc"));
    }

    #[tokio::test]
    async fn plain_text_on_loopback_is_refused_with_the_remedy_where_it_is_not_wanted() {
        let (address, _stop) = start_with(LIMITS, encrypted(false)).await;
        let refused = rest(open(address, WHOLE).await).await;
        assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("use https://"), "{refused}");
        assert!(matches!(Channel::connect(&address.to_string(), None).await.unwrap(), Channel::Tls(_)));
    }

    #[tokio::test]
    async fn each_address_is_answered_however_many_clients_of_another_one_send_nothing() {
        let limits = Limits { head: Duration::from_secs(20), most: 40, most_of_peer: 40, ..LIMITS };
        let (addresses, _stop) = start_at(&["127.0.0.1:0", "[::1]:0", "127.0.0.2:0"], limits, encrypted(true)).await;
        let mut silent = Vec::new();
        for number in 0..60 {
            silent.push(open(addresses[number % 2], ["", "\u{16}", "\u{16}\u{3}\u{1}"][number % 3]).await);
        }
        for address in addresses {
            assert!(rest(open(address, WHOLE).await).await.ends_with("here"));
            assert!(matches!(Channel::connect(&address.to_string(), None).await.unwrap(), Channel::Tls(_)));
        }
    }

    #[tokio::test]
    async fn addresses_take_turns() {
        let mut doors = Doors { listeners: Vec::new(), next: 0 };
        for _ in 0..2 {
            doors.listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let addresses: Vec<SocketAddr> = doors.listeners.iter().map(|one| one.local_addr().unwrap()).collect();
        let mut waiting = Vec::new();
        for place in [0, 0, 0, 1, 1] {
            waiting.push(TcpStream::connect(addresses[place]).await.unwrap());
        }
        let mut accepted = Vec::new();
        for _ in 0..5 {
            let (stream, _) = doors.accept().await.unwrap();
            accepted.push(addresses.iter().position(|address| *address == stream.local_addr().unwrap()).unwrap());
        }
        assert_eq!(accepted, [0, 1, 0, 1, 0]);
    }

    #[tokio::test]
    async fn half_a_handshake_and_silence_end_with_the_limit_and_with_the_server() {
        let half = "\u{16}\u{3}\u{1}";
        let (address, _stop) = start_with(LIMITS, encrypted(true)).await;
        for text in [half, ""] {
            assert_eq!(rest(open(address, text).await).await, "", "{text:?}");
        }
        let (address, stop) = start_with(Limits { head: Duration::from_secs(20), ..LIMITS }, encrypted(false)).await;
        let open = [open(address, half).await, open(address, "").await];
        sleep(Duration::from_millis(50)).await;
        let stopped = std::time::Instant::now();
        stop.send(()).unwrap();
        for stream in open {
            assert_eq!(rest(stream).await, "");
        }
        assert!(stopped.elapsed() < Duration::from_secs(10), "they do not hold the server up");
    }
}
