//! The time of a small message and its answer over loopback: the lower bound of communication between daemons of one machine.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a message, about those of a launch.
const MESSAGE: usize = 256;

/// Round trips per second over one connection between two threads that do nothing else.
///
/// # Errors
/// If loopback cannot be used.
pub fn rounds_a_second(time: Duration) -> io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let (peer, _) = listener.accept()?;
    let echo = thread::spawn(move || echo(peer));
    let rounds = ask(stream, time);
    // The thread ends with the connection, which `ask` has closed.
    echo.join().map_err(|_| io::Error::other("the thread that answers has failed"))?;
    rounds
}

fn ask(mut stream: TcpStream, time: Duration) -> io::Result<f64> {
    stream.set_nodelay(true)?;
    let mut message = [7; MESSAGE];
    let (started, mut rounds) = (Instant::now(), 0u32);
    while started.elapsed() < time {
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        rounds += 1;
    }
    Ok(f64::from(rounds) / started.elapsed().as_secs_f64())
}

fn echo(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut message = [0; MESSAGE];
    while stream.read_exact(&mut message).and_then(|()| stream.write_all(&message)).is_ok() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        assert!(rounds_a_second(Duration::from_millis(20)).unwrap() > 0.0);
    }
}
