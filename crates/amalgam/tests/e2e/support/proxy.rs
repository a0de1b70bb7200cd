//! A link between two daemons that a test can cut and heal: a small TCP proxy on loopback.

use super::free_port;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

pub struct Proxy {
    /// Who connects here is connected with the other end.
    pub address: String,
    link: Arc<Link>,
}

struct Link {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    /// Both ends of each connection.
    streams: Vec<TcpStream>,
}

/// What is wrong with a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Connections break, and no others come about.
    Cut,
    /// Nothing arrives, and nobody is told: what was sent comes when the link is healed.
    Held,
}

impl Proxy {
    /// To a daemon that listens there, or will.
    pub fn to(target: String) -> Proxy {
        let address = format!("127.0.0.1:{}", free_port());
        let listener = TcpListener::bind(&address).unwrap();
        let link = Arc::new(Link { state: Mutex::default(), changed: Condvar::new() });
        let accepting = Arc::clone(&link);
        // It ends with the test's process.
        thread::spawn(move || listener.incoming().flatten().for_each(|inner| accepting.connect(inner, &target)));
        Proxy { address, link }
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

impl Link {
    fn connect(self: &Arc<Link>, inner: TcpStream, target: &str) {
        let mut state = self.state.lock().unwrap();
        if state.fault == Some(Fault::Cut) {
            return;
        }
        let Ok(outer) = TcpStream::connect(target) else { return };
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
            drop(held.unwrap());
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}
