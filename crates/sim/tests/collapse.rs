//! Late binding under load: long jobs fill the nodes' queues, so that short jobs wait behind them.
//!
//! The trace is stored beside the repository. Without it the test is skipped with a message.

use amalgam_core::preset::Preset;
use amalgam_core::vocabulary::Duration;
use amalgam_sim::{Settings, Simulation};
use amalgam_workload::trace::{self, TraceJob, Workload};
use std::path::Path;

/// Jobs with a mean task run time below this are short (Delgado et al. 2015: Hawk, the cut-off of this trace).
const CUT_OFF: Duration = Duration::from_micros(90_581_100);

fn yahoo() -> Option<Workload> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places = ["../shared/traces", "../../shared/traces"].map(|place| root.join(place));
    let path = places.iter().map(|place| place.join("flat/hawk_tr/YH1_sub.tr.gz")).find(|path| path.exists());
    let Some(path) = path else {
        eprintln!("SKIPPED: ../shared/traces/flat/hawk_tr/YH1_sub.tr.gz not found");
        return None;
    };
    let whole_seconds = ("whole-seconds".to_owned(), "true".to_owned());
    Some(trace::read(&format!("hawk:{}", path.display()), &[whole_seconds]).unwrap())
}

fn is_short(job: &TraceJob) -> bool {
    job.run_times[0].mean() < CUT_OFF
}

/// The median completion time of the short jobs, in seconds.
fn short_median(preset: Preset, workload: &Workload) -> f64 {
    let one_slot = [("cpus", "1"), ("memory", "4GiB")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    let nodes = trace::read_nodes("drawn:4000", &one_slot).unwrap();
    let mut settings = Settings { preset, ..Settings::default() };
    // No node fails, so heartbeats are not needed.
    settings.master.heartbeat = Duration::from_secs(1_000_000);
    let outcome = Simulation::new(settings, &nodes, workload).run();
    let short = outcome.jobs.iter().filter(|job| is_short(&workload.jobs[job.job as usize]));
    let mut times: Vec<f64> = short.map(|job| job.jct_s.expect("every job ends")).collect();
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    println!(
        "{}: short jobs' median {median:.1} s of {}; makespan {:.0} s, {} events",
        preset.name(),
        times.len(),
        outcome.results.makespan_s,
        outcome.results.events
    );
    median
}

/// Under batch sampling with late binding, half of the short jobs take longer than 1,000 s. On the same nodes, half of
/// them take less than 100 s if short work is scheduled first.
#[test]
fn short_jobs_wait_behind_long_ones_under_late_binding() {
    let Some(workload) = yahoo() else { return };
    let (sparrow, srtf) = (short_median(Preset::SPARROW, &workload), short_median(Preset::SRTF, &workload));
    assert!(sparrow > 1_000.0, "the known collapse: {sparrow} s");
    assert!((10.0..100.0).contains(&srtf), "expected 10 to 100 s: {srtf} s");
}
