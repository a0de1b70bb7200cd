//! The agent's side: connects to the executor, or starts one.

use super::{DeviceFiles, Enforcement, EnforcementChoice, ExecutorConfig, ExecutorError, RunAs};
use crate::lock::{LockError, lock};
use crate::versions::Versions;
use rustix::net::RecvFlags;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long an agent tries again if another agent starts an executor at the same time, or if the executor is about to
/// exit.
const PATIENCE: Duration = Duration::from_secs(10);

/// The executor's first message on a connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    pub version: String,
    pub pid: u32,
    pub enforcement: Enforcement,
    /// The protocol versions that it supports.
    pub wire: Versions,
    /// As whom it runs tasks. Executors of versions without this run them as their own user.
    #[serde(default)]
    pub run_as: RunAs,
}

/// Reserves the executor of this state directory for this process, for as long as the returned file is open. Without
/// this lock, a second agent would replace the first: an executor serves the agent that connected last.
pub fn claim(state: &Path) -> Result<File, LockError> {
    lock(state, "agent.lock")
}

/// Connects to a running executor. Nothing has been read from the returned stream: its first message is the `Hello`.
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    // Another user's executor would get this agent's orders and could send false reports.
    if let Some(directory) = socket.parent() {
        crate::private::check_private_dir(directory)?;
    }
    let stream = UnixStream::connect(socket)?;
    // An executor that is about to exit does not answer, so wait for the first byte.
    match rustix::net::recv(&stream, &mut [0; 1][..], RecvFlags::PEEK)? {
        (_, 0) => Err(io::ErrorKind::ConnectionReset.into()),
        _ => Ok(stream),
    }
}

/// Connects to the executor of `config`. If none runs, starts one: `program` with `arguments`, followed by
/// [`ExecutorConfig::arguments`].
pub fn ensure_running(
    program: &Path,
    arguments: &[OsString],
    config: &ExecutorConfig,
) -> Result<UnixStream, ExecutorError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(stream) = connect(&config.socket) {
            return Ok(stream);
        }
        let started = Command::new(program)
            .args(arguments)
            .args(config.arguments())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .and_then(std::process::Child::wait_with_output)
            .map_err(ExecutorError::file("start", program))?;
        if started.status.success() {
            continue;
        }
        // Another agent may have started an executor, which answers soon. A killed executor has its lock until the
        // kernel has closed its files.
        if let Ok(stream) = connect(&config.socket) {
            return Ok(stream);
        }
        let locked = started.status.code() == Some(super::ALREADY_RUNNING.into());
        if Instant::now() >= deadline || !locked {
            let output = String::from_utf8_lossy(&started.stderr).trim().to_owned();
            return Err(ExecutorError::NotStarted(if output.is_empty() { started.status.to_string() } else { output }));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl ExecutorConfig {
    /// The command line that [`ExecutorConfig::parse`] reads.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![
            "--socket".into(),
            self.socket.clone().into(),
            "--state".into(),
            self.state.clone().into(),
            "--enforcement".into(),
            self.enforcement.to_string().into(),
            "--idle-exit-ms".into(),
            self.idle_exit.as_millis().to_string().into(),
        ];
        if let RunAs::JobUser { allows_root } = self.run_as {
            arguments.extend(["--run-as".into(), if allows_root { "any-job-user" } else { "job-user" }.into()]);
        }
        for device in &self.devices {
            arguments.extend(["--device".into(), device.to_string().into()]);
        }
        if let Some(leash) = self.leash {
            arguments.extend(["--leash-ms".into(), leash.as_millis().to_string().into()]);
        }
        arguments
    }

    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<ExecutorConfig, String> {
        let (mut socket, mut state) = (None, None);
        let mut enforcement = EnforcementChoice::default();
        let mut idle_exit = Duration::from_secs(60);
        let mut leash = None;
        let mut run_as = RunAs::default();
        let mut devices: Vec<DeviceFiles> = Vec::new();
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            let name = name.to_string_lossy();
            let value = arguments.next().ok_or_else(|| format!("`{name}` requires a value"))?;
            let text = value.to_string_lossy();
            match name.as_ref() {
                "--socket" => socket = Some(PathBuf::from(value)),
                "--state" => state = Some(PathBuf::from(value)),
                "--enforcement" => enforcement = text.parse()?,
                "--run-as" => {
                    run_as = match text.as_ref() {
                        "job-user" => RunAs::JobUser { allows_root: false },
                        "any-job-user" => RunAs::JobUser { allows_root: true },
                        _ => return Err(format!("invalid value `{text}` for `{name}`; known: job-user, any-job-user")),
                    }
                }
                "--device" => devices.push(text.parse()?),
                "--idle-exit-ms" | "--leash-ms" => {
                    let millis = text
                        .parse()
                        .map_err(|_| format!("invalid value `{text}` for `{name}`: not a number of milliseconds"))?;
                    let length = Duration::from_millis(millis);
                    if name == "--leash-ms" { leash = Some(length) } else { idle_exit = length }
                }
                _ => return Err(format!("unknown option `{name}` of the executor")),
            }
        }
        Ok(ExecutorConfig {
            socket: socket.ok_or("`--socket` is missing")?,
            state: state.ok_or("`--state` is missing")?,
            enforcement,
            idle_exit,
            leash,
            run_as,
            devices,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_of_a_configuration_parses_to_the_same_configuration() {
        let config = ExecutorConfig {
            socket: "/a/socket".into(),
            state: "/a state".into(),
            enforcement: EnforcementChoice::Polling,
            idle_exit: Duration::from_millis(1_500),
            leash: Some(Duration::from_millis(700)),
            run_as: RunAs::JobUser { allows_root: true },
            devices: vec!["gpu:0=/dev/a,/dev/b".parse().unwrap()],
        };
        let parsed = ExecutorConfig::parse(config.arguments()).unwrap();
        assert_eq!(format!("{parsed:?}"), format!("{config:?}"));
        assert!(ExecutorConfig::parse(["--sockt".into(), "x".into()]).unwrap_err().contains("--sockt"));
    }
}
