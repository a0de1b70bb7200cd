//! A cluster that exists for one `run`.

use crate::cluster::{self, Size};
use crate::failure::{Failure, Result};
use crate::show;
use amalgam_cli::process::user;
use amalgam_daemon::auth::Tokens;
use amalgam_daemon::config::Config;
use amalgam_daemon::executor::{EnforcementChoice, ExecutorConfig, RunAs};
use amalgam_daemon::removal::{Leftover, Pace, remove_tree};
use amalgam_daemon::server::{Server, ServerOptions};
use amalgam_daemon::shell::shut_down;
use std::fs::DirBuilder;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Time after which the executor of a cluster exits, with its tasks, once the cluster's process is dead.
const LEASH: Duration = Duration::from_secs(2);

/// A running cluster. Dropping it stops it, kills running tasks and removes its files.
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
    let mut executor = cluster::executor_setup(&state_dir, EnforcementChoice::Auto, RunAs::Agent)?;
    executor.config.idle_exit = LEASH;
    executor.config.leash = Some(LEASH);
    let config = Config { listen: vec!["127.0.0.1:0".to_owned()], ..Config::default() };
    let executor_config = executor.config.clone();
    let server = Server::start(ServerOptions {
        state_dir: state_dir.clone(),
        config,
        user: user(),
        nodes: size.nodes(),
        executor: Some(executor),
        takes_agents: false,
        journal: None,
        config_file: None,
    });
    let server = match server {
        Ok(server) => server,
        Err(error) => {
            remove(&state_dir);
            return Err(error.into());
        }
    };
    let token = amalgam_daemon::auth::client_token(&server.token_file, &user())?;
    let address = server.addresses()[0].to_string();
    Ok(Embedded { address, token, server: Some(server), executor: executor_config, state_dir })
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
        shut_down(&self.executor);
        remove(&self.state_dir);
    }
}

/// Removes the directory of a stopped cluster. Its tokens go first, so that they are removed even if files of tasks cannot be.
fn remove(state_dir: &Path) {
    let _ = std::fs::remove_file(state_dir.join(Tokens::FILE));
    if let Err(Leftover { example, error, count }) = remove_tree(state_dir, &mut Pace::fast()) {
        let more = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        let error = std::io::Error::from(error);
        show::note(&format!("cannot remove {}: {example}{more} in it cannot be removed: {error}", state_dir.display()));
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

/// Removes what killed runs left: our directories whose log is not locked, and directories without a log that a removal left
/// incomplete.
fn remove_remains(base: &Path) {
    // SAFETY: it has no preconditions.
    let own = unsafe { libc::geteuid() };
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix("amalgam-run-")) else { continue };
        if !entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own) {
            continue;
        }
        let is_left = match std::fs::File::open(entry.path().join("log/lock")) {
            // SAFETY: the descriptor is open for as long as `lock` lives.
            Ok(lock) => unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 },
            // A run that is just starting has no log yet.
            Err(_) => !is_alive(rest) && entry.metadata().and_then(|found| found.modified()).is_ok_and(is_old),
        };
        if is_left {
            let _ = std::fs::remove_file(entry.path().join(Tokens::FILE));
            let _ = remove_tree(&entry.path(), &mut Pace::fast());
        }
    }
}

/// Whether the process with the directory's number exists, as far as this process can see.
fn is_alive(name: &str) -> bool {
    let pid = name.split('-').next().unwrap_or_default();
    !pid.is_empty() && Path::new("/proc").join(pid).exists()
}

fn is_old(modified: SystemTime) -> bool {
    modified.elapsed().is_ok_and(|age| age > Duration::from_secs(60))
}
