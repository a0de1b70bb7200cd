//! A cluster of its own for a benchmark: `amalgam dev` as a separate process.

use super::failed;
use crate::client::Client;
use crate::failure::{Failure, Result};
use amalgam_core::vocabulary::JobSpec;
use amalgam_daemon::api::{JobState, ServerFile, Waited};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct DevCluster {
    process: Child,
    pub client: Client,
    pub state_dir: PathBuf,
    /// From the start of the process to the first answer.
    pub ready_after: Duration,
}

impl DevCluster {
    /// With these further arguments of `amalgam dev`.
    pub fn start(arguments: &[&str]) -> Result<DevCluster> {
        let state_dir =
            std::env::temp_dir().join(format!("amalgam-bench-{}-{}", std::process::id(), super::wall_micros()));
        let program = std::env::current_exe()?;
        let started = Instant::now();
        let process = Command::new(program)
            .args(["dev", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .env("AMALGAM_STATE", &state_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed("start a cluster"))?;
        let mut cluster = DevCluster {
            process,
            client: Client::new(String::new(), String::new()),
            state_dir,
            ready_after: Duration::ZERO,
        };
        let file = cluster.server_file(started)?;
        let token = amalgam_daemon::auth::client_token(file.token_file.as_ref(), &crate::cluster::user())?;
        cluster.client = Client::new(format!("http://{}", file.address), token);
        cluster.client.get::<serde_json::Value>("/v1/cluster")?;
        cluster.ready_after = started.elapsed();
        Ok(cluster)
    }

    fn server_file(&mut self, started: Instant) -> Result<ServerFile> {
        let path = self.state_dir.join(ServerFile::NAME);
        while started.elapsed() < Duration::from_secs(20) {
            if let Some(file) = std::fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok()) {
                return Ok(file);
            }
            if let Some(status) = self.process.try_wait()? {
                return Err(Failure::new(format!("the cluster ended at once: {status}"), "see its message above"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Failure::new("the cluster did not come up", "look at the machine's load"))
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn submit(&self, job: &JobSpec) -> Result<u64> {
        Ok(self.client.submit(job, &crate::job_arguments::idempotency_key()?)?.job)
    }

    /// Until it has ended, which must be well.
    pub fn wait(&self, job: u64) -> Result<Waited> {
        loop {
            let waited = self.client.wait(job, Duration::from_secs(30))?;
            if waited.state == JobState::Succeeded {
                return Ok(waited);
            }
            if waited.state.has_ended() {
                return Err(Failure::new(format!("job {job} {}: {:?}", waited.state, waited.reason), ""));
            }
        }
    }

    /// What a verb of this program prints, with the cluster as its server.
    pub fn verb(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(std::env::current_exe()?)
            .args(arguments)
            .env("AMALGAM_STATE", &self.state_dir)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(Failure::new(format!("`amalgam {}` ended with {}", arguments.join(" "), output.status), ""));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for DevCluster {
    fn drop(&mut self) {
        // SAFETY: it is our child and was not waited for, so the number is its own.
        unsafe {
            libc::kill(self.process.id() as libc::pid_t, libc::SIGTERM);
        }
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.state_dir);
    }
}

/// A job of `tasks` tasks of one command.
pub fn array(tasks: u32, command: &[&str]) -> JobSpec {
    chain(1, tasks, command)
}

/// A job of `stages` stages, each after the one before it.
pub fn chain(stages: u32, tasks: u32, command: &[&str]) -> JobSpec {
    use amalgam_core::vocabulary::{ExecutionType, Program, ResourceSpec, Resources, StageSpec, TaskSet};
    let program = std::sync::Arc::new(Program {
        command: command.iter().map(|&word| word.to_owned()).collect(),
        output_cap: 1 << 20,
        ..Program::default()
    });
    let stage = |number: u32| StageSpec {
        name: format!("s{number}"),
        after: number.checked_sub(1).into_iter().collect(),
        tasks: TaskSet::Count(tasks),
        program: program.clone(),
        resources: ResourceSpec { basic: Resources::new(1_000, 0), custom: Vec::new() },
        expected: None,
        execution: ExecutionType::Auto,
        constraints: Vec::new(),
        retries: 0,
        timeout: None,
    };
    JobSpec {
        name: "bench".to_owned(),
        submit_dir: "/".to_owned(),
        stages: (0..stages).map(stage).collect(),
        ..JobSpec::default()
    }
}
