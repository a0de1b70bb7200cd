//! A shell for one page, in a directory, with a state directory and at ports of its own. Its commands name the ports, paths and the
//! host that readers find on the page; they are replaced on the way in and out.

use regex::{Captures, Regex};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than any command of a page takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// After this time what was asked to end is killed.
const PATIENCE_AT_THE_END: Duration = Duration::from_secs(10);

/// The ports from which daemons listen unless they are told otherwise, and how many of a page are its own.
const FIRST_PORT: u16 = 7400;
const PORTS: u16 = 300;

/// What pages call the directory and the host.
const HOME: &str = "/home/ada";
const HOST: &str = "vm";

/// Daemons listen at ports of the page, unless the command line or a configuration says otherwise.
const WRAPPER: &str = r#"#!/bin/sh
real=@REAL@ base=@BASE@
case " $* " in *" --help "* | *" --listen"*) exec "$real" "$@" ;; esac
number=1
case "$*" in *"--number "*) number=${*##*--number } number=${number%% *} ;; esac
case "$1 $*" in
    dev*) exec "$real" "$@" --listen 127.0.0.1:$((base + 33)) ;;
    server*--number*) exec "$real" "$@" --listen 127.0.0.1:$((base + 33)) ;;
    server*) exec "$real" "$@" --listen 127.0.0.1:$((base + 33)) --listen-agents 127.0.0.1:$((base + 34)) ;;
    jobs*) exec "$real" "$@" --listen 127.0.0.1:$((base + 34 + number)) ;;
esac
exec "$real" "$@"
"#;

pub struct Shell {
    child: Child,
    output: Receiver<Vec<u8>>,
    dir: TempDir,
    base: u16,
    commands: u32,
    ports: Regex,
    host: Option<Regex>,
}

impl Shell {
    pub fn start() -> io::Result<Shell> {
        let dir = tempfile::Builder::new().prefix("amalgam-docs-").tempdir()?;
        let path = |name: &str| dir.path().join(name);
        for name in ["home/amalgam", "home/.local/state", "tmp", "bin", "steps"] {
            fs::create_dir_all(path(name))?;
        }
        let repository = crate::root();
        for name in ["examples", "crates"] {
            copy(&repository.join(name), &path("home/amalgam").join(name))?;
        }
        let base = free_ports();
        let wrapper = WRAPPER.replace("@REAL@", env!("CARGO_BIN_EXE_amalgam")).replace("@BASE@", &base.to_string());
        fs::write(path("bin/amalgam"), wrapper)?;
        fs::set_permissions(path("bin/amalgam"), fs::Permissions::from_mode(0o755))?;
        let others = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".to_owned());
        let (mut reader, writer) = io::pipe()?;
        let mut command = Command::new("bash");
        command
            .args(["--noprofile", "--norc"])
            .env_clear()
            .env("PATH", format!("{}:{others}", path("bin").display()))
            .env("HOME", path("home"))
            .env("USER", "ada")
            .env("LC_ALL", "C.UTF-8")
            .env("TMPDIR", path("tmp"))
            .env("AMALGAM_STATE", path("home/.local/state/amalgam"))
            .current_dir(path("home/amalgam"))
            .stdin(Stdio::piped())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        let child = command.spawn()?;
        // The other ends of the pipe are the children's alone.
        drop(command);
        let (printed, output) = mpsc::channel();
        thread::spawn(move || {
            let mut chunk = [0; 8192];
            while let Ok(read @ 1..) = reader.read(&mut chunk) {
                if printed.send(chunk[..read].to_owned()).is_err() {
                    break;
                }
            }
        });
        let ports = Regex::new(r"\b(127\.0\.0\.1|localhost):(\d+)\b").expect("a pattern");
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let is_named = host.trim() != HOST && !host.trim().is_empty();
        let host = is_named.then(|| Regex::new(&format!(r"\b{}\b", regex::escape(host.trim()))).expect("a pattern"));
        Ok(Shell { child, output, dir, base, commands: 0, ports, host })
    }

    /// What a command prints on both streams; a daemon in the background is waited for until it is ready.
    ///
    /// # Errors
    /// Why it has no output.
    pub fn run(&mut self, command: &str) -> Result<String, String> {
        self.commands += 1;
        let path = self.dir.path().join(format!("steps/{}", self.commands));
        fs::write(&path, self.inwards(command)).map_err(|error| format!("cannot be written: {error}"))?;
        let is_in_background = command.trim_end().ends_with('&');
        let mark = format!("\u{1e}{}\u{1e}", self.commands);
        let own_stderr = if is_in_background { format!("2>> {}", self.log().display()) } else { String::new() };
        let line =
            format!(". {} < /dev/null {own_stderr}; code=$?; printf '%s' '{mark}'; (exit $code)\n", path.display(),);
        let stdin = self.child.stdin.as_mut().ok_or("has no shell")?;
        stdin.write_all(line.as_bytes()).map_err(|_| "finds that the shell has ended".to_owned())?;
        let text = self.read_until(&|text: &str| {
            let (before, after) = text.split_once(&mark)?;
            let text = format!("{before}{after}");
            let is_ready = || text.lines().any(|line| line.starts_with("ready: ")) && text.ends_with('\n');
            (!is_in_background || !starts_daemon(command) || is_ready()).then_some(text)
        })?;
        Ok(self.outwards(&text))
    }

    fn read_until(&self, done: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
        let started = Instant::now();
        let mut bytes = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&bytes);
            if let Some(output) = done(&text) {
                return Ok(output);
            }
            match self.output.recv_timeout(PATIENCE.saturating_sub(started.elapsed())) {
                Ok(more) => bytes.extend(more),
                Err(problem) => {
                    let what = match problem {
                        RecvTimeoutError::Timeout => format!("does not end within {PATIENCE:?}"),
                        RecvTimeoutError::Disconnected => "ends the shell".to_owned(),
                    };
                    let (printed, daemons) = (self.outwards(&text), self.said_by_daemons());
                    return Err(format!("{what}; until then it says\n{printed}\n{daemons}"));
                }
            }
        }
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("daemons.log")
    }

    /// On standard error, by all that were started in the background.
    pub fn said_by_daemons(&self) -> String {
        self.outwards(&fs::read_to_string(self.log()).unwrap_or_default())
    }

    /// A command, with the page's ports and directories replaced by those that it has here.
    fn inwards(&self, command: &str) -> String {
        let replaced = self.ports.replace_all(command, |found: &Captures<'_>| {
            let port = found[2].parse().ok().filter(|port| (FIRST_PORT..FIRST_PORT + PORTS).contains(port));
            port.map_or_else(|| found[0].to_owned(), |port| format!("{}:{}", &found[1], port - FIRST_PORT + self.base))
        });
        replaced.replace(HOME, &self.home())
    }

    fn outwards(&self, output: &str) -> String {
        let output = output.replace(&self.home(), HOME).replace(&format!("{}/tmp", self.dir.path().display()), "/tmp");
        let output = self.ports.replace_all(&output, |found: &Captures<'_>| {
            let port = found[2].parse().ok().filter(|port| (self.base..self.base + PORTS).contains(port));
            port.map_or_else(|| found[0].to_owned(), |port| format!("{}:{}", &found[1], port - self.base + FIRST_PORT))
        });
        match &self.host {
            Some(host) => host.replace_all(&output, HOST).into_owned(),
            None => output.into_owned(),
        }
    }

    fn home(&self) -> String {
        self.dir.path().join("home").display().to_string()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // Executors and tasks have sessions of their own, but all of them know this directory.
        let own = self.dir.path().as_os_str().as_encoded_bytes().to_owned();
        let started = Instant::now();
        let mut asked = BTreeSet::new();
        loop {
            let left = processes_that_know(&own);
            if left.is_empty() {
                break;
            }
            let signal = if started.elapsed() < PATIENCE_AT_THE_END { libc::SIGTERM } else { libc::SIGKILL };
            for pid in left.into_iter().filter(|pid| asked.insert((*pid, signal))) {
                // SAFETY: kill has no preconditions. A process that knows this directory is this page's.
                unsafe { libc::kill(pid, signal) };
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.wait();
    }
}

fn starts_daemon(command: &str) -> bool {
    ["dev", "server", "agent", "global", "jobs"].iter().any(|verb| command.contains(&format!("amalgam {verb} ")))
}

/// The bytes are a name that no other processes have in their arguments and variables.
fn processes_that_know(name: &[u8]) -> Vec<libc::pid_t> {
    let knows = |path: &Path| {
        let holds = |file: &str| {
            let bytes = fs::read(path.join(file)).unwrap_or_default();
            bytes.windows(name.len()).any(|window| window == name)
        };
        holds("cmdline") || holds("environ")
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())));
    ids.filter(|(_, path)| knows(path)).map(|(id, _)| id).collect()
}

/// The first of a range of ports that no other page uses.
fn free_ports() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() % 26) as u16;
    loop {
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let base = 12_000 + (start + turn) % 26 * PORTS;
        let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if (33..40).all(|offset| is_free(base + offset)) {
            return base;
        }
        assert!(turn < 1_000, "no ports are free");
    }
}

/// Sources and examples, as a clone of the repository has them.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
