//! What is kept on disks: its limits, and what a reader is told about the rest.

use crate::support::{Scene, until_true};
use amalgam_daemon::du::{Kind, Report};
use std::fs;

const MIB: u64 = 1 << 20;
const TASKS: u64 = 1_000;

fn bytes_of(report: &Report, kinds: &[Kind]) -> u64 {
    report.uses.iter().filter(|found| kinds.contains(&found.kind)).map(|found| found.bytes).sum()
}

#[test]
fn a_busy_server_and_its_node_stay_within_the_limits_of_their_disks() {
    let scene = Scene::new();
    let config = scene
        .write("server.toml", "kept_jobs = 50\nkept_tasks = 3_000\nsegment_mib = 1\nhistory_mib = 1\nusage_days = 1\n");
    let limits = ["--config", config.to_str().unwrap(), "--output-limit", "2MiB", "--journal-limit", "2MiB"];
    scene.start_dev(&[&["--cpus", "8", "--memory", "4GiB"], &limits[..]].concat());
    // Written before everything else, by a task that goes on.
    let first = scene.submit(&["--", "sh", "-c", "head -c 8000 /dev/zero; while [ ! -e go ]; do sleep 0.1; done"]);
    let range = format!("0-{}", TASKS - 1);
    let du = || scene.json::<Report>(&["du"]);
    let mut arrays = Vec::new();
    for round in 0..6 {
        let array = scene.submit(&["--array", &range, "--", "head", "-c", "8000", "/dev/zero"]);
        scene.ok(&["wait", &array]);
        arrays.push(array);
        let report = du();
        // A segment is replaced by a snapshot while the next one is being written.
        let log = bytes_of(&report, &[Kind::Log, Kind::Snapshots]);
        assert!(log < 6 * MIB, "round {round}: {log} bytes of the log");
        let history = bytes_of(&report, &[Kind::History]);
        assert!(history <= 2 * MIB, "round {round}: {history} bytes of history");
    }
    until_true("the removal of output beyond the limit", || bytes_of(&du(), &[Kind::Output]) <= 2 * MIB);
    let journals = fs::read_dir(scene.journals()).unwrap().map(|found| found.unwrap().metadata().unwrap().len());
    assert!(journals.sum::<u64>() <= 2 * MIB);
    // Tasks of the oldest jobs were too many, although 50 jobs are kept.
    assert_eq!(scene.run(&["info", &arrays[0]]).code, 1);
    let kept: Vec<String> = scene.jobs().iter().map(|job| job.id.to_string()).collect();
    assert!(arrays[4..].iter().chain([&first]).all(|id| kept.contains(id)), "{kept:?}");
    assert!(kept.len() <= 4, "{kept:?}");

    // Readers are told what is missing, once for each node, and get the rest.
    let (oldest, newest) = (&arrays[4], &arrays[5]);
    let removed = "has removed the output, because that of all ended tasks exceeded its limit";
    let one = scene.run(&["logs", &format!("{oldest}.0.0")]);
    assert!(one.code == 1 && one.out.is_empty() && one.err.contains(removed), "{one:?}");
    let all = scene.run(&["logs", newest]);
    assert_eq!((all.code, all.err.matches(removed).count()), (1, 1), "{}", all.err);
    let left = all.out.len() as u64;
    assert!((MIB / 2..2 * MIB).contains(&left), "{left} bytes of the newest output");
    let archived = scene.run(&["logs", newest, "--archive", "newest.tar"]);
    assert_eq!((archived.code, archived.err.matches(removed).count()), (1, 1), "{}", archived.err);
    let mut archive = tar::Archive::new(fs::File::open(scene.work().join("newest.tar")).unwrap());
    let sizes = archive.entries().unwrap().map(|entry| entry.unwrap().size());
    assert_eq!(sizes.filter(|size| *size > 0).sum::<u64>() / 8_000, left / 8_000);

    // The output of a task that runs is kept however old it is.
    scene.write("go", "");
    scene.ok(&["wait", &first]);
    assert_eq!(scene.ok(&["logs", &first]).len(), 8_000);
}
