//! A server, agent or whole cluster as a separate process.

use super::PATIENCE;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

pub struct Daemon {
    child: Child,
    /// The ready line.
    pub ready: String,
    says: mpsc::Receiver<String>,
    stderr: Option<thread::JoinHandle<()>>,
    said: Arc<Mutex<Vec<u8>>>,
}

impl Daemon {
    /// Starts it and waits until it is ready; an error is its output.
    pub fn start(command: Command) -> Result<Daemon, String> {
        let mut daemon = Daemon::spawn(command);
        daemon.await_ready()?;
        Ok(daemon)
    }

    /// Starts it without waiting until it is ready.
    pub fn spawn(mut command: Command) -> Daemon {
        die_with_us(&mut command);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let (output, says) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let _ = out.read_line(&mut line);
            let _ = output.send(line);
            // Kept open and empty, so that the daemon can always print.
            let _ = std::io::copy(&mut out, &mut std::io::sink());
        });
        let said = Arc::new(Mutex::new(Vec::new()));
        let lines = Arc::clone(&said);
        let stderr = thread::spawn(move || {
            let mut line = Vec::new();
            while err.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                lines.lock().unwrap().append(&mut line);
            }
        });
        Daemon { child, ready: String::new(), says, stderr: Some(stderr), said }
    }

    /// An error is its output; it has exited then.
    pub fn await_ready(&mut self) -> Result<(), String> {
        let line = self.says.recv_timeout(PATIENCE).unwrap_or_default();
        line.trim_end().clone_into(&mut self.ready);
        if self.ready.starts_with("ready: ") { Ok(()) } else { Err(self.end()) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its output on stderr so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap()).into_owned()
    }

    /// Kills it; returns its output on stderr.
    pub fn kill(mut self) -> String {
        self.end()
    }

    /// Sends SIGTERM and waits until it has exited.
    pub fn stop(mut self) -> ExitStatus {
        // SAFETY: kill has no preconditions; the child has not been waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        super::until("the daemon's end", || self.child.try_wait().unwrap())
    }

    /// Waits until it has exited without a signal; returns its exit status and its output.
    pub fn ended(mut self) -> (ExitStatus, String) {
        let status = super::until("the daemon's end", || self.child.try_wait().unwrap());
        (status, self.end())
    }

    fn end(&mut self) -> String {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(thread) = self.stderr.take() {
            let _ = thread.join();
        }
        self.said()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let output = self.end();
        if thread::panicking() && !output.is_empty() {
            eprintln!("{} said:\n{output}", self.ready);
        }
    }
}

/// The process is killed with the test.
pub fn die_with_us(command: &mut Command) {
    // SAFETY: prctl is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// The same command with its diagnostics in a file that can be read while it runs.
pub fn saying_into(command: Command, file: &Path) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" 2>>\"$SAID\"", "sh"]).arg(command.get_program()).args(command.get_args());
    shell.env_clear().env("SAID", file).envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.current_dir(command.get_current_dir().unwrap());
    shell
}

/// A port without a listener that is not an ephemeral port, for daemons that have to restart at the same address.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = std::process::id().wrapping_mul(61) as u16;
    for _ in 0..10_000 {
        let port = 20_000 + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free")
}

/// Whether the process exists and is no zombie.
pub fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}
