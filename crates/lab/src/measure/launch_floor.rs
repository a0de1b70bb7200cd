//! Processes per second that this machine starts: in a bare loop, and through the executor without a scheduler.

use amalgam_core::protocol::{ExecutorReport, ToExecutor};
use amalgam_core::vocabulary::{
    AttemptId, EndReason, Epoch, JobId, LaunchOrder, NodeId, Program, Resources, TaskId, TaskShape, TaskTemplate,
};
use amalgam_daemon::executor::{
    self, EnforcementChoice, ExecutorConfig, ExecutorFrame, ExecutorReply, Mechanism, RunAs,
};
use amalgam_daemon::frames::{self, Decoder};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The program of every launch.
const PROGRAM: &str = "/bin/true";

#[derive(Clone, Copy, Debug)]
pub struct LaunchFloor {
    pub launches: u32,
    pub took: Duration,
    /// The mechanism that enforced limits; `None` for the bare loop.
    pub mechanism: Option<Mechanism>,
}

impl LaunchFloor {
    pub fn per_second(&self) -> f64 {
        f64::from(self.launches) / self.took.as_secs_f64()
    }
}

/// The best that one process can do: it spawns, keeps `slots` children and waits for the one that ends next.
pub fn bare_loop(launches: u32, slots: u32) -> io::Result<LaunchFloor> {
    let start = Instant::now();
    let mut running = 0;
    let mut started = 0;
    while started < launches || running > 0 {
        if started < launches && running < slots {
            Command::new(PROGRAM).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            (started, running) = (started + 1, running + 1);
            continue;
        }
        rustix::process::wait(rustix::process::WaitOptions::empty())?;
        running -= 1;
    }
    Ok(LaunchFloor { launches, took: start.elapsed(), mechanism: None })
}

/// The same through an executor in `dir`, which `program arguments..` starts.
pub fn through_executor(
    launches: u32,
    slots: u32,
    enforcement: EnforcementChoice,
    dir: &Path,
    program: &Path,
    arguments: &[OsString],
) -> io::Result<LaunchFloor> {
    let config = ExecutorConfig {
        socket: dir.join("socket"),
        state: dir.to_owned(),
        enforcement,
        idle_exit: Duration::from_secs(5),
        leash: None,
        run_as: RunAs::Agent,
        devices: Vec::new(),
    };
    let stream = executor::ensure_running(program, arguments, &config).map_err(io::Error::other)?;
    let mut run = Run { stream, decoder: Decoder::default(), unsent: Vec::new(), ended: 0, mechanism: None };
    let program = Program { command: vec![PROGRAM.into()], output_cap: 1 << 20, ..Program::default() };
    let template = Arc::new(TaskTemplate {
        program: Arc::new(program),
        submit_dir: "/".into(),
        shape: Arc::new(TaskShape { resources: Resources::new(1_000, 256), ..TaskShape::default() }),
        ..TaskTemplate::default()
    });
    run.receive()?;
    let start = Instant::now();
    let mut started = 0;
    while run.ended < launches {
        while started < launches && started - run.ended < slots {
            run.send(&ExecutorFrame::Order(ToExecutor::Launch(Box::new(order(started, &template)))))?;
            started += 1;
        }
        run.flush()?;
        run.receive()?;
    }
    let took = start.elapsed();
    run.send(&ExecutorFrame::Shutdown)?;
    run.flush()?;
    // The executor closes the connection when it no longer uses its directory.
    while run.stream.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {}
    Ok(LaunchFloor { launches, took, mechanism: run.mechanism })
}

struct Run {
    stream: UnixStream,
    decoder: Decoder,
    unsent: Vec<u8>,
    ended: u32,
    mechanism: Option<Mechanism>,
}

impl Run {
    fn send(&mut self, frame: &ExecutorFrame) -> io::Result<()> {
        frames::encode(frame, &mut self.unsent).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.unsent)?;
        self.unsent.clear();
        Ok(())
    }

    /// Waits for a report and reads all that have arrived.
    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = [0; 64 << 10];
        let length = self.stream.read(&mut buffer)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.decoder.push(&buffer[..length]);
        while let Some(reply) = self.decoder.next().map_err(io::Error::other)? {
            match reply {
                ExecutorReply::Hello(hello) => self.mechanism = Some(hello.enforcement.mechanism),
                ExecutorReply::Report(ExecutorReport::Finished { attempt, ended }) => {
                    if ended.reason != EndReason::Exit(0) {
                        return Err(io::Error::other(format!("attempt {attempt} {}", ended.reason)));
                    }
                    self.send(&ExecutorFrame::Order(ToExecutor::Acknowledge { attempt }))?;
                    self.ended += 1;
                }
                ExecutorReply::Report(_) | ExecutorReply::Note(_) => {}
            }
        }
        Ok(())
    }
}

fn order(number: u32, template: &Arc<TaskTemplate>) -> LaunchOrder {
    let job = JobId(1);
    LaunchOrder {
        attempt: AttemptId { job, epoch: Epoch(1), number },
        task: TaskId { job, stage: 0, index: number },
        node: NodeId(1),
        node_name: "node".to_owned(),
        hosts: None,
        shared_gpu: None,
        template: Arc::clone(template),
        index: u64::from(number),
        item: None,
        devices: Vec::new(),
        inputs: Arc::default(),
        grant: None,
        expected: None,
    }
}
