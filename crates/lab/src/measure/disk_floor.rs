//! The time of a small durable write to this disk: the lower bound of every acknowledgement.

use amalgam_sim::statistics::percentile;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub struct DiskFloor {
    pub p50: Duration,
    pub p95: Duration,
}

/// Appends 256 bytes and syncs, `rounds` times (at least once), to a file in `dir` that is removed afterwards.
pub fn fdatasync_floor(dir: &Path, rounds: usize) -> io::Result<DiskFloor> {
    let path = dir.join(format!("disk-floor-{}", std::process::id()));
    let result = measure(&path, rounds.max(1));
    std::fs::remove_file(&path)?;
    result
}

fn measure(path: &Path, rounds: usize) -> io::Result<DiskFloor> {
    let mut file = File::create(path)?;
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        file.write_all(&[7; 256])?;
        file.sync_data()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(DiskFloor { p50: percentile(&times, 50), p95: percentile(&times, 95) })
}
