//! Tasks that report their progress, and the duplicate of a slow one.

use crate::support::{Cluster, Scene, until_true};
use amalgam_daemon::api::JobState;
use std::time::{Duration, Instant};

const CONFIG: &str = "preset = \"apollo\"\nheartbeat = \"200ms\"\n[policies.queueing]\n\
                      progress_every = \"250ms\"\nduplicate_saves = \"500ms\"\nreport_every = \"100ms\"\n";
/// The default preset: the master chooses the node of the duplicate.
const BY_MASTER: &str = "heartbeat = \"200ms\"\n";

/// The first attempt of the first task would take two minutes and reports that; all others take two seconds.
const SLOW: &str = r#"
name = "slow"
wait_for_nodes = true
[[stage]]
name = "work"
tasks = 3
outputs = ["out"]
execution = "guaranteed"
expected = "2s"
retries = 0
command = '''
step=0.02; word=fast
if [ $AMALGAM_INDEX = 0 ] && mkdir "$AMALGAM_SUBMIT_DIR/first" 2> /dev/null; then step=1.2; word=slow; fi
trap "echo $word >> $AMALGAM_SUBMIT_DIR/ended; exit 1" TERM
n=100
while [ $n -lt 200 ]; do echo 0.${n#1} > "$AMALGAM_PROGRESS_FILE"; sleep $step; n=$((n + 1)); done
echo $word > out
'''
[[stage]]
name = "read"
after = ["work"]
inputs = ["work/*"]
command = 'cat inputs/work/*/out > "$AMALGAM_SUBMIT_DIR/read"'
"#;

fn result(scene: &Scene, id: &str, kind: &str) -> Vec<String> {
    scene.story(id).into_iter().filter(|line| line.kind == kind).map(|line| line.text).collect()
}

fn count(scene: &Scene, id: &str, kind: &str) -> usize {
    result(scene, id, kind).len()
}

/// A cluster with a job whose slow first task has its second attempt.
fn racing(config: &str) -> (Cluster, String) {
    let cluster = Cluster::start(2, 2, config);
    let job = cluster.scene.write("job.toml", SLOW);
    let id = cluster.scene.submit(&[job.to_str().unwrap()]);
    until_true("a duplicate", || count(&cluster.scene, &id, "straggles") == 1);
    (cluster, id)
}

#[test]
fn a_slow_process_is_overtaken_and_the_output_is_its_duplicates() {
    is_overtaken(CONFIG);
}

#[test]
fn a_slow_process_is_overtaken_where_the_master_has_room() {
    is_overtaken(BY_MASTER);
}

fn is_overtaken(config: &str) {
    let submitted = Instant::now();
    let (cluster, id) = racing(config);
    let scene = &cluster.scene;
    scene.ok(&["wait", &id]);
    let took = submitted.elapsed();
    assert!(took < Duration::from_secs(55), "a slow attempt takes two minutes: {took:?}");
    assert_eq!(scene.read("read"), "fast\nfast\nfast\n");
    until_true("the slow one is ended", || scene.read("ended") == "slow\n");
    let slow = result(scene, &id, "straggles");
    assert!(slow[0].contains("work[0] is slow on node-") || slow[0].contains("is slow on node-"), "{slow:?}");
    assert!(slow[0].contains("% done"), "{slow:?}");
    let [of, by] = ["overtaken", "superseded"].map(|kind| count(scene, &id, kind));
    assert_eq!((of, by), (1, 1), "{:?}", scene.story(&id));
    let metrics = scene.http().text("/metrics");
    for line in ["amalgam_stragglers_total 1", "amalgam_stragglers_overtaken_total 1"] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

#[test]
fn both_attempts_outlive_the_server_and_one_result_counts() {
    let (cluster, id) = racing(CONFIG);
    cluster.kill_server();
    cluster.start_server();
    let scene = &cluster.scene;
    scene.ok(&["wait", &id]);
    assert_eq!(scene.job(&id).summary.state, JobState::Succeeded);
    assert_eq!(scene.read("read"), "fast\nfast\nfast\n");
    until_true("the slow one is ended", || scene.read("ended") == "slow\n");
}
