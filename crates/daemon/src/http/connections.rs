//! The connections of the interface: how many there may be, and how long a call may take to arrive.
//!
//! One that has not sent a whole head yet waits for nothing of ours, so it makes room for others when there are too many.

use super::reply::Reply;
use crate::api::{Error, ErrorCode};
use crate::descriptors;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::Request;
use axum::response::IntoResponse;
use futures_util::FutureExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tower::ServiceExt;

/// How long and how many.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For a head to arrive, from the end of the call before it on.
    pub head: Duration,
    /// Between two parts of a body.
    pub pause: Duration,
    /// A body that has come for longer than `pause` has brought so much each second.
    pub bytes_per_second: u64,
    /// Connections in all.
    pub most: usize,
    /// Of these, from one address.
    pub most_of_peer: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        /// Files that the process needs for other things.
        const RESERVED: u64 = 256;
        let most = descriptors::allowed().saturating_sub(RESERVED).clamp(64, 20_000) as usize;
        let (head, pause) = (Duration::from_secs(10), Duration::from_secs(10));
        Limits { head, pause, bytes_per_second: 1 << 10, most, most_of_peer: most - most / 4 }
    }
}

/// Answers calls until `shutdown`; then those that are under way are answered.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, shutdown: impl Future<Output = ()> + Send) {
    let seats = Arc::new(Seats { limits, ..Seats::default() });
    let graceful = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head);
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let Ok((stream, address)) = accepted else {
            // Out of file descriptors, most likely. One that waits for a head makes room; else it passes.
            seats.let_one_go();
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        // Answers are small: waiting to fill a packet would cost more than it saves.
        let _ = stream.set_nodelay(true);
        let Some(seat) = Seats::take(&seats, address.ip()) else {
            seats.turn_away(stream);
            continue;
        };
        let (router, own) = (router.clone(), seat.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let busy = Busy::begin(&own);
            let request = request.map(|body| Body::new(Arriving::new(body, limits)));
            let answer = router.clone().oneshot(request);
            answer.map(move |answer| answer.map(|answer| answer.map(|body| Body::new(Leaving { body, _busy: busy }))))
        });
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            tokio::select! {
                // Whatever is wrong with it is its peer's affair.
                _ = connection => {}
                () = seat.place.must_go.notified() => {}
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

#[derive(Default)]
struct Seats {
    limits: Limits,
    /// By age.
    taken: Mutex<BTreeMap<u64, Arc<Place>>>,
    next: AtomicUsize,
    turned_away: AtomicUsize,
}

struct Place {
    peer: IpAddr,
    /// A call is being answered.
    is_busy: AtomicBool,
    must_go: Notify,
}

/// A connection's place among the others, until the last copy of it is dropped.
#[derive(Clone)]
struct Seat {
    place: Arc<Place>,
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
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Place>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more. Where there are too many, the one that has waited longest for a head has to go; `None` where all are
    /// busy.
    fn take(seats: &Arc<Seats>, peer: IpAddr) -> Option<Seat> {
        let mut taken = seats.lock();
        let of_peer = taken.values().filter(|place| place.peer == peer).count();
        if of_peer >= seats.limits.most_of_peer {
            evict(&mut taken, |place| place.peer == peer)?;
        } else if taken.len() >= seats.limits.most {
            evict(&mut taken, |_| true)?;
        }
        let place = Arc::new(Place { peer, is_busy: AtomicBool::new(false), must_go: Notify::new() });
        let number = seats.next.fetch_add(1, Ordering::Relaxed) as u64;
        taken.insert(number, Arc::clone(&place));
        Some(Seat { place, _leave: Arc::new(Leave { number, seats: Arc::clone(seats) }) })
    }

    fn let_one_go(&self) {
        let _ = evict(&mut self.lock(), |_| true);
    }

    /// Says why, if it can be said soon.
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

/// The oldest of these that waits for a head.
fn evict(taken: &mut BTreeMap<u64, Arc<Place>>, is_meant: impl Fn(&Place) -> bool) -> Option<()> {
    let waits = |place: &Place| is_meant(place) && !place.is_busy.load(Ordering::Relaxed);
    let (number, place) = taken.iter().find(|(_, place)| waits(place))?;
    let number = *number;
    place.must_go.notify_one();
    taken.remove(&number);
    Some(())
}

async fn say_full(mut stream: TcpStream) -> io::Result<()> {
    let message = "the server has as many connections as it takes";
    let full = Error::new(ErrorCode::Unavailable, message, "try again in a moment, or end some of your own clients");
    let answer = Reply(full).into_response();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 16).await.unwrap_or_default();
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), &body].concat()).await?;
    stream.shutdown().await?;
    // To close before its call is read would take the answer back.
    let mut unread = [0; 4096];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

/// While it lives, a call of the connection is under way.
struct Busy(Seat);

impl Busy {
    fn begin(seat: &Seat) -> Busy {
        seat.place.is_busy.store(true, Ordering::Relaxed);
        Busy(seat.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.place.is_busy.store(false, Ordering::Relaxed);
    }
}

/// The body of a call, which ends with an error where it does not go on.
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

    /// The next part is here by then: soon, and what came so far makes up for the time that it took.
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
            let late = io::Error::new(io::ErrorKind::TimedOut, "the rest of the body did not come in time");
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

/// The body of an answer; its connection is busy until it has left.
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

    /// A server that answers at once at `/`, with what it is sent at `/echo`, and never at `/never`.
    async fn start(limits: Limits) -> (SocketAddr, oneshot::Sender<()>) {
        let router = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/echo", post(|body: Bytes| async move { body }))
            .route("/never", get(std::future::pending::<&'static str>));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(serve(listener, router, limits, async move {
            let _ = stopped.await;
        }));
        (address, stop)
    }

    async fn open(address: SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// All that comes until the other side closes, which it does in time.
    async fn rest(mut stream: TcpStream) -> String {
        let mut text = Vec::new();
        let read = timeout(Duration::from_secs(20), stream.read_to_end(&mut text)).await.expect("it is closed");
        let _ = read;
        String::from_utf8_lossy(&text).into_owned()
    }

    const WHOLE: &str = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

    #[tokio::test]
    async fn half_a_head_is_not_waited_for_and_shuts_nobody_out() {
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
    async fn half_a_body_and_one_that_trickles_are_not_waited_for() {
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
        assert!(sent < 200, "ten seconds of a byte at a time");
        let whole = "POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 3\r\n\r\nabc";
        assert!(rest(open(address, whole).await).await.ends_with("abc"));
    }

    #[tokio::test]
    async fn one_for_whom_there_is_no_place_is_told() {
        let (address, _stop) = start(LIMITS).await;
        let mut busy = Vec::new();
        for _ in 0..LIMITS.most_of_peer {
            let mut stream = open(address, "GET /never HTTP/1.1\r\nhost: x\r\n\r\n").await;
            // It is being answered once nothing more is read.
            assert!(timeout(Duration::from_millis(50), stream.read_u8()).await.is_err());
            busy.push(stream);
        }
        let answer = rest(open(address, WHOLE).await).await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("as many connections as it takes"), "{answer}");
        drop(busy.pop());
        let served = async {
            while !rest(open(address, WHOLE).await).await.ends_with("here") {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(20), served).await.expect("a place is free again");
    }

    #[tokio::test]
    async fn what_is_under_way_is_answered_before_the_end() {
        let (address, stop) = start(Limits { head: Duration::from_secs(20), ..LIMITS }).await;
        let stream = open(address, "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\na").await;
        sleep(Duration::from_millis(50)).await;
        stop.send(()).unwrap();
        let mut stream = stream;
        stream.write_all(b"bc").await.unwrap();
        assert!(rest(stream).await.ends_with("abc"));
    }
}
