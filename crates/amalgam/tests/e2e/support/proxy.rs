//! A link between two daemons that a test can cut and heal: a small TCP proxy on loopback, or within a network namespace.

use super::Namespace;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// Time limit for the other end to answer. A refused client tries again.
const CONNECTING: Duration = Duration::from_secs(1);

pub struct Proxy {
    /// Connections to this address are connected with the other end.
    pub address: String,
    link: Arc<Link>,
    listener: TcpListener,
}

struct Link {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    is_over: bool,
    /// Both ends of each connection.
    streams: Vec<TcpStream>,
    /// All bytes that passed, in both directions; `None` if they are not recorded.
    recorded: Option<Vec<u8>>,
}

/// A fault of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Connections break, and new ones fail.
    Cut,
    /// Packets are held without an error, and arrive when the link is healed.
    Held,
    /// A bit of each packet is another one.
    Altered,
}

impl Proxy {
    /// Listens at `address` and connects to a daemon at `target`, also one that starts later, in a namespace or here. A socket
    /// belongs to the namespace of the thread that created it, and a thread starts in that of its parent.
    pub fn within(namespace: Option<&Namespace>, address: String, target: &str) -> Proxy {
        let link = Arc::new(Link { state: Mutex::default(), changed: Condvar::new() });
        let (accepting, namespace, at) = (Arc::clone(&link), namespace.cloned(), address.clone());
        let target: SocketAddr = target.parse().unwrap();
        let (listens, is_listening) = mpsc::channel();
        thread::spawn(move || {
            namespace.iter().for_each(|namespace| namespace.enter().unwrap());
            let listener = TcpListener::bind(&at).unwrap();
            listens.send(listener.try_clone().unwrap()).unwrap();
            accepting.accept(&listener, target);
        });
        let listener = is_listening.recv().unwrap_or_else(|_| panic!("nobody can listen at {address}"));
        Proxy { address, link, listener }
    }

    /// As [`Proxy::within`]; the bytes are recorded.
    pub fn recording(namespace: Option<&Namespace>, address: String, target: &str) -> Proxy {
        let proxy = Proxy::within(namespace, address, target);
        proxy.link.state.lock().unwrap().recorded = Some(Vec::new());
        proxy
    }

    pub fn recorded(&self) -> Vec<u8> {
        self.link.state.lock().unwrap().recorded.clone().expect("the proxy records")
    }

    pub fn break_by(&self, fault: Fault) {
        let mut state = self.link.state.lock().unwrap();
        state.fault = Some(fault);
        if fault == Fault::Cut {
            state.streams.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        }
        self.link.changed.notify_all();
    }

    pub fn heal(&self) {
        self.link.state.lock().unwrap().fault = None;
        self.link.changed.notify_all();
    }
}

/// Its threads would keep a namespace alive.
impl Drop for Proxy {
    fn drop(&mut self) {
        self.link.state.lock().unwrap().is_over = true;
        self.break_by(Fault::Cut);
        // SAFETY: the socket is ours. A thread that waits for connections there wakes.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

impl Link {
    fn accept(self: &Arc<Link>, listener: &TcpListener, target: SocketAddr) {
        while !self.state.lock().unwrap().is_over {
            let Ok((inner, _)) = listener.accept() else { continue };
            let link = Arc::clone(self);
            thread::spawn(move || link.connect(inner, target));
        }
    }

    fn connect(self: &Arc<Link>, inner: TcpStream, target: SocketAddr) {
        let Ok(outer) = TcpStream::connect_timeout(&target, CONNECTING) else { return };
        let mut state = self.state.lock().unwrap();
        if state.fault == Some(Fault::Cut) {
            return;
        }
        for stream in [&inner, &outer] {
            stream.set_nodelay(true).unwrap();
            state.streams.push(stream.try_clone().unwrap());
        }
        let ways = [(inner.try_clone().unwrap(), outer.try_clone().unwrap()), (outer, inner)];
        for (from, to) in ways {
            let link = Arc::clone(self);
            thread::spawn(move || link.pass_on(from, to));
        }
    }

    fn pass_on(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let held = self.changed.wait_while(self.state.lock().unwrap(), |state| state.fault == Some(Fault::Held));
            let mut state = held.unwrap();
            if state.fault == Some(Fault::Altered) {
                bytes[count - 1] ^= 1;
            }
            state.recorded.iter_mut().for_each(|recorded| recorded.extend(&bytes[..count]));
            drop(state);
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}
