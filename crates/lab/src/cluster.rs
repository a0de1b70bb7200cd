//! The cluster of a benchmark: `amalgam dev`, or a server and its agents, as separate processes.

use crate::product;
use amalgam_cli::client::Client;
use amalgam_cli::failure::{Failure, Result};
use amalgam_cli::values::as_text;
use amalgam_core::job_manager::{JobManager, JobManagerSettings};
use amalgam_core::preset::Preset;
use amalgam_core::protocol::AdmittedJob;
use amalgam_core::vocabulary::{
    Epoch, HostId, Instant as Moment, JobId, JobSpec, Key, NodeId, QueueId, Sealing, UserId,
};
use amalgam_daemon::api::{JobState, NodeState, NodeSummary, ServerFile, Waited};
use amalgam_daemon::auth::Tokens;
use amalgam_daemon::executor::{EnforcementChoice, ExecutorConfig, RunAs};
use amalgam_daemon::removal::{Pace, remove_tree};
use amalgam_daemon::sealing::HMAC;
use amalgam_daemon::server::executor_paths;
use amalgam_workload::path_of;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub struct Cluster {
    /// The server, then its agents.
    processes: Vec<Child>,
    pub client: Client,
    pub state_dir: PathBuf,
    /// From the start of the process to the first answer.
    pub ready_after: Duration,
}

/// Time limit for a process to start.
const PATIENCE: Duration = Duration::from_secs(20);

impl Cluster {
    /// One process, with these additional arguments of `amalgam dev`.
    pub fn dev(arguments: &[&str]) -> Result<Cluster> {
        let state_dir = new_state_dir();
        let started = Instant::now();
        let process = spawn(&state_dir, &[&["dev", "--listen", "127.0.0.1:0"], arguments].concat(), Stdio::null())?;
        Cluster::of(process, state_dir, started)
    }

    /// A server and `agents` agents with `cpus` CPUs each on loopback, optionally with journals.
    pub fn with_agents(agents: u32, cpus: u32, enforcement: &str, preset: &str, journal: bool) -> Result<Cluster> {
        let state_dir = new_state_dir();
        let journals = state_dir.join("journals");
        let journals = ["--journal", as_text(&journals)?];
        let journals = if journal { &journals[..] } else { &[] };
        let started = Instant::now();
        let listen = ["--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0", "--preset", preset];
        let verb = [&["server"], &listen[..], journals].concat();
        let mut process = spawn(&state_dir, &verb, Stdio::piped())?;
        let ready = first_line(&mut process)?;
        let mut cluster = Cluster::of(process, state_dir, started)?;
        let address = ready.split("agents at ").nth(1).and_then(|rest| rest.split(',').next());
        let address = address.ok_or_else(|| Failure::new(format!("the server printed `{ready}`"), ""))?;
        for agent in 0..agents {
            let name = format!("node-{agent}");
            let (home, cpus) = (cluster.agent_home(agent), cpus.to_string());
            let tokens = cluster.state_dir.join(Tokens::FILE);
            let (home, tokens) = (as_text(&home)?, as_text(&tokens)?);
            let place = ["agent", "--server", address, "--name", &name, "--work-dir", home, "--token-file", tokens];
            let offer = ["--cpus", &cpus, "--memory", "1GiB", "--enforcement", enforcement, "--run-as", "agent"];
            let number = format!("agent={agent}");
            let verb = [&place[..], &offer, &["--attribute", &number], journals].concat();
            cluster.processes.push(spawn(&cluster.state_dir, &verb, Stdio::null())?);
        }
        cluster.wait_for_nodes(agents as usize)?;
        Ok(cluster)
    }

    fn of(process: Child, state_dir: PathBuf, started: Instant) -> Result<Cluster> {
        let client = Client::new(String::new(), String::new());
        let mut cluster = Cluster { processes: vec![process], client, state_dir, ready_after: Duration::ZERO };
        let file = cluster.server_file(started)?;
        let token = amalgam_daemon::auth::client_token(path_of(&file.token_file), &amalgam_cli::process::user())?;
        cluster.client = Client::new(format!("http://{}", file.address), token);
        cluster.client.get::<serde_json::Value>("/v1/cluster")?;
        cluster.ready_after = started.elapsed();
        Ok(cluster)
    }

    fn server_file(&mut self, started: Instant) -> Result<ServerFile> {
        let path = self.state_dir.join(ServerFile::NAME);
        while started.elapsed() < PATIENCE {
            if let Some(file) = std::fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok()) {
                return Ok(file);
            }
            if let Some(status) = self.processes[0].try_wait()? {
                return Err(Failure::new(format!("the cluster ended at once: {status}"), "see its message above"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(Failure::new("the cluster did not start", "look at the machine's load"))
    }

    fn wait_for_nodes(&self, count: usize) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let nodes: Vec<NodeSummary> = self.client.get("/v1/nodes")?;
            if nodes.iter().filter(|node| node.state == NodeState::Up).count() == count {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(Failure::new("the agents did not join", "look at the machine's load"))
    }

    fn agent_home(&self, agent: u32) -> PathBuf {
        self.state_dir.join(format!("agent-{agent}"))
    }

    /// The process id of the server.
    pub fn pid(&self) -> u32 {
        self.processes[0].id()
    }

    /// Stops all processes. Their journals stay readable.
    pub fn stop(&mut self) {
        for process in self.processes.drain(..).rev() {
            stop(process);
        }
        for agent in 0.. {
            let home = self.agent_home(agent);
            if !home.exists() {
                break;
            }
            let (state, socket) = executor_paths(&home);
            let enforcement = EnforcementChoice::Auto;
            let config = ExecutorConfig {
                socket,
                state,
                enforcement,
                idle_exit: Duration::ZERO,
                leash: None,
                run_as: RunAs::Agent,
                devices: Vec::new(),
            };
            amalgam_daemon::shell::shut_down(&config);
        }
    }

    pub fn submit(&self, job: &JobSpec) -> Result<u64> {
        Ok(self.client.submit(job, &amalgam_cli::client::idempotency_key()?)?.job)
    }

    /// Waits for the end of the job, which must succeed.
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

    /// The output of a verb of the product, with this cluster as its server.
    pub fn verb(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(product::program()?)
            .args(arguments)
            .env("AMALGAM_STATE", &self.state_dir)
            .env_remove("AMALGAM_SERVER")
            .env_remove("AMALGAM_TOKEN")
            .env_remove("AMALGAM_TOKEN_FILE")
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()?;
        if !output.status.success() {
            return Err(Failure::new(format!("`amalgam {}` ended with {}", arguments.join(" "), output.status), ""));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
        let _ = remove_tree(&self.state_dir, &mut Pace::fast());
    }
}

pub fn new_state_dir() -> PathBuf {
    std::env::temp_dir().join(format!("amalgam-bench-{}-{}", std::process::id(), wall_micros()))
}

/// Starts a daemon with its state there, independent of the user's server and token.
pub fn spawn(state_dir: &Path, arguments: &[&str], stdout: Stdio) -> Result<Child> {
    let mut command = Command::new(product::program()?);
    for own in ["AMALGAM_SERVER", "AMALGAM_TOKEN", "AMALGAM_TOKEN_FILE"] {
        command.env_remove(own);
    }
    command.args(arguments).env("AMALGAM_STATE", state_dir).stdin(Stdio::null()).stdout(stdout);
    command.spawn().map_err(failed("start a cluster"))
}

pub fn first_line(process: &mut Child) -> Result<String> {
    let mut line = String::new();
    if let Some(stdout) = &mut process.stdout {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    Ok(line)
}

pub fn stop(mut process: Child) {
    ask_to_stop(&process);
    let _ = process.wait();
}

/// Sends SIGTERM to a child that was not waited for yet.
pub fn ask_to_stop(process: &Child) {
    // SAFETY: it is our child and was not waited for, so the process id is still its own.
    unsafe {
        libc::kill(process.id() as libc::pid_t, libc::SIGTERM);
    }
}

/// A job of `tasks` tasks of one command.
pub fn array(tasks: u32, command: &[&str]) -> JobSpec {
    chain(1, tasks, command)
}

/// A job of `stages` stages, each depending on the one before it.
pub fn chain(stages: u32, tasks: u32, command: &[&str]) -> JobSpec {
    use amalgam_core::vocabulary::{Program, ResourceSpec, Resources, StageSpec, TaskSet};
    let program = std::sync::Arc::new(Program {
        command: command.iter().map(|&word| word.into()).collect(),
        output_cap: 1 << 20,
        ..Program::default()
    });
    let stage = |number: u32| StageSpec {
        name: format!("s{number}"),
        after: number.checked_sub(1).into_iter().collect(),
        tasks: TaskSet::Count(tasks),
        program: program.clone(),
        resources: ResourceSpec { basic: Resources::new(1_000, 0), custom: Vec::new() },
        ..StageSpec::default()
    };
    JobSpec {
        name: "bench".to_owned(),
        submit_dir: "/".into(),
        stages: (0..stages).map(stage).collect(),
        ..JobSpec::default()
    }
}

pub const JOB: JobId = JobId(1);
pub const NODE: NodeId = NodeId(0);

/// A job and its job manager under this preset.
pub fn manager(preset: &Preset, spec: JobSpec) -> (Arc<AdmittedJob>, JobManager) {
    let stages = spec.stages.len();
    let job = Arc::new(AdmittedJob {
        id: JOB,
        user: UserId(0),
        queue: QueueId(1),
        resources: spec.stages.iter().map(|stage| stage.resources.basic).collect(),
        near: vec![Default::default(); stages],
        places: Vec::new(),
        spec: Arc::new(spec),
        default_timeout: None,
        recalled: Vec::new(),
        only_guaranteed: false,
        preset: None,
        host: HostId::SERVER,
        submitted_at: Moment(0),
    });
    let sealing = Sealing { root: Key([0; 32]), mac: HMAC };
    let manager = preset.job_manager(Arc::clone(&job), Epoch(1), JobManagerSettings::default(), sealing);
    (job, manager)
}

/// Turns an IO error of an action into a failure: `cannot <what>: <error>`.
pub fn failed(what: &str) -> impl FnOnce(std::io::Error) -> Failure {
    let what = what.to_owned();
    move |error| Failure::new(format!("cannot {what}: {error}"), "")
}

/// Microseconds since the Unix epoch.
pub fn wall_micros() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as u64
}
