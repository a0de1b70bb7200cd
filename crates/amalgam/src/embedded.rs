//! A cluster that lives as long as one `run`.

use crate::cluster::{self, Size};
use crate::failure::{Failure, Result};
use amalgam_daemon::config::Config;
use amalgam_daemon::executor::{EnforcementChoice, ExecutorConfig};
use amalgam_daemon::server::{Server, ServerOptions};
use amalgam_daemon::shell::shut_down;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

/// The executor of a cluster whose process has died follows it after this time, with its tasks.
const LEASH: Duration = Duration::from_secs(2);

/// A running cluster. Dropping it stops it, kills what still runs and leaves nothing behind.
pub struct Embedded {
    /// `127.0.0.1:40123`.
    pub address: String,
    pub token: String,
    server: Option<Server>,
    executor: ExecutorConfig,
    state_dir: PathBuf,
}

/// Call it before other threads start.
pub fn start(size: &Size) -> Result<Embedded> {
    let state_dir = temporary_dir()?;
    let mut executor = cluster::executor_setup(&state_dir, EnforcementChoice::Auto)?;
    executor.config.idle_exit = LEASH;
    executor.config.leash = Some(LEASH);
    let config = Config { listen: Some("127.0.0.1:0".to_owned()), ..Config::default() };
    let executor_config = executor.config.clone();
    let server = Server::start(ServerOptions {
        state_dir: state_dir.clone(),
        config,
        user: cluster::user(),
        nodes: size.nodes(),
        executor: Some(executor),
        takes_agents: false,
        journal: None,
    });
    let server = match server {
        Ok(server) => server,
        Err(error) => {
            let _ = std::fs::remove_dir_all(&state_dir);
            return Err(error.into());
        }
    };
    let token = amalgam_daemon::auth::client_token(&server.token_file, &cluster::user())?;
    let address = server.address.to_string();
    Ok(Embedded { address, token, server: Some(server), executor: executor_config, state_dir })
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
        shut_down(&self.executor);
        let _ = std::fs::remove_dir_all(&self.state_dir);
    }
}

fn temporary_dir() -> Result<PathBuf> {
    let base = std::env::temp_dir();
    remove_remains(&base);
    for number in 0..1_000 {
        let path = base.join(format!("amalgam-run-{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(Failure::new(
                    format!("cannot make {}: {error}", path.display()),
                    "set TMPDIR to a directory with room",
                ));
            }
        }
    }
    Err(Failure::new(format!("{} is full of old clusters", base.display()), "remove its amalgam-run-* directories"))
}

/// What runs that were killed left behind: directories whose log nobody holds.
fn remove_remains(base: &std::path::Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let is_run = entry.file_name().to_str().is_some_and(|name| name.starts_with("amalgam-run-"));
        if !is_run {
            continue;
        }
        // Without a lock file it may just be starting.
        let Ok(lock) = std::fs::File::open(entry.path().join("log/lock")) else { continue };
        // SAFETY: the descriptor is open for as long as `lock` lives.
        let is_free =
            unsafe { libc::flock(std::os::fd::AsRawFd::as_raw_fd(&lock), libc::LOCK_EX | libc::LOCK_NB) == 0 };
        if is_free {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
