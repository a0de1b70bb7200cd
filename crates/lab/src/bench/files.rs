//! The time in which a file that a task left reaches another node, against a bare TLS stream of the same size.

use crate::cluster::{Cluster, failed, new_state_dir};
use crate::measure::tls_floor;
use amalgam_cli::client::Query;
use amalgam_cli::failure::{Failure, Result};
use amalgam_cli::values::as_text;
use amalgam_daemon::api::AttemptSummary;
use amalgam_daemon::removal::{Pace, remove_tree};
use amalgam_sim::statistics::median;
use clap::Args;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[derive(Args)]
pub struct FilesArgs {
    /// Size of the file
    #[arg(long, value_name = "MIB", default_value_t = 4_096, value_parser = clap::value_parser!(u64).range(1..=8_192))]
    mib: u64,
    /// Rounds; the medians of their ratios are printed. Each needs four times the size on the disk of the temporary directory
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

pub fn execute(args: &FilesArgs) -> Result<()> {
    let dir = new_state_dir();
    std::fs::create_dir(&dir).map_err(failed("make a directory for the files"))?;
    let measured = measure(args, &dir);
    let _ = remove_tree(&dir, &mut Pace::fast());
    measured
}

fn measure(args: &FilesArgs, dir: &Path) -> Result<()> {
    let (mut memory, mut files, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..args.rounds {
        let bytes = args.mib << 20;
        settle()?;
        memory.push(tls_floor::memory_to_memory(bytes).map_err(failed("send over TLS"))?.as_secs_f64());
        files.push(bare(args.mib, dir)?);
        nodes.push(between_nodes(args.mib)?);
        let rate = |seconds: f64| args.mib as f64 / seconds;
        let [memory, files, nodes] = [&memory, &files, &nodes].map(|times| rate(times[round as usize]));
        say!(
            "round {round}: TLS memory to memory {memory:.0}, TLS file to file {files:.0}, between two nodes {nodes:.0} MiB/s"
        );
    }
    // Of each round, because other load on the machine changes between rounds.
    let ratio = |bare: &[f64]| median(bare.iter().zip(&nodes).map(|(bare, nodes)| bare / nodes).collect::<Vec<_>>());
    let (of_files, of_memory) = (ratio(&files), ratio(&memory));
    let [memory, files, nodes] = [memory, files, nodes].map(median);
    say!(
        "{} MiB, medians: TLS memory to memory {memory:.2} s, TLS file to file and to the disk {files:.2} s",
        args.mib
    );
    say!("between two nodes, from the writer's end to the reader's start: {nodes:.2} s");
    say!("{of_files:.2} of the rate of TLS from file to file, {of_memory:.2} of that from memory to memory");
    Ok(())
}

/// A virtual machine gives memory that is free for some seconds back to its host. Writing to a file costs three times as much where
/// the host has to provide the memory again.
const UNTIL_COLD: Duration = Duration::from_secs(6);

/// Waits until what was written before is on the disk, and free memory is as cold as it is between two nodes, where the task writes
/// for longer than that.
fn settle() -> Result<()> {
    Command::new("sync").status().map_err(failed("run `sync`"))?;
    std::thread::sleep(UNTIL_COLD);
    Ok(())
}

fn bare(mib: u64, dir: &Path) -> Result<f64> {
    let (from, to) = (dir.join("from"), dir.join("to"));
    let made = Command::new("sh")
        .args(["-c", "head -c \"${0}M\" /dev/urandom > \"$1\"", &mib.to_string()])
        .arg(&from)
        .status()
        .map_err(failed("make a file"))?;
    if !made.success() {
        return Err(Failure::new("cannot make a file", "check the room in the temporary directory"));
    }
    settle()?;
    let time = tls_floor::file_to_file(&from, &to).map_err(failed("send a file over TLS"))?;
    for file in [from, to] {
        std::fs::remove_file(file)?;
    }
    Ok(time.as_secs_f64())
}

/// Seconds from the end of the task that wrote the file to the start of the one that reads it on another node.
fn between_nodes(mib: u64) -> Result<f64> {
    let cluster = Cluster::with_agents(2, 1, "none", "fifo", false)?;
    let job = cluster.state_dir.join("job.toml");
    let text = format!(
        r#"
name = "files"
[[stage]]
name = "write"
constraints = ["agent=0"]
outputs = ["file"]
command = "head -c {mib}M /dev/urandom > file; sync file"
[[stage]]
name = "read"
after = ["write"]
constraints = ["agent=1"]
inputs = ["write/file"]
command = "true"
"#
    );
    std::fs::write(&job, text)?;
    let id = cluster.verb(&["submit", "-q", as_text(&job)?])?;
    let id: u64 = id.trim().parse().map_err(|_| Failure::new(format!("`{id}` is not a job"), ""))?;
    cluster.wait(id)?;
    let attempts: Vec<AttemptSummary> = cluster.client.list(&format!("/v1/jobs/{id}/attempts"), &Query::default())?;
    let of = |stage: &str| attempts.iter().find(|attempt| attempt.stage == stage);
    let times = (of("write").and_then(|write| write.ended_at), of("read").and_then(|read| read.started_at));
    let (Some(written), Some(started)) = times else {
        return Err(Failure::new("a task has no attempt", "look at the story of the job"));
    };
    let through_server = forwarded(&cluster)?;
    if through_server > 0.0 {
        return Err(Failure::new(
            format!("{through_server} bytes went through the server"),
            "look at the agents' diagnostics",
        ));
    }
    Ok((started.0.saturating_sub(written.0)) as f64 / 1e6)
}

/// Bytes of files that went through the server.
fn forwarded(cluster: &Cluster) -> Result<f64> {
    let mut metrics = String::new();
    cluster.client.open("/metrics")?.into_body().into_reader().read_to_string(&mut metrics)?;
    let line = metrics.lines().find_map(|line| line.strip_prefix("amalgam_files_forwarded_bytes_total "));
    line.and_then(|value| value.parse().ok()).ok_or_else(|| Failure::new("the server counts no files", ""))
}
