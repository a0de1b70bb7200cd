//! Files that tasks leave for other tasks, with agents that share only the machine.

use crate::support::{Cluster, Daemon, Scene, until, until_true};
use amalgam_daemon::api::{JobState, OutputFile};
use std::fs::{self, FileTimes, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Two tasks that leave a file of two megabytes each, and one that reads both, on the node with a device.
const MAP_REDUCE: &str = r#"
name = "files"
wait_for_nodes = true
[[stage]]
name = "map"
tasks = 2
outputs = ["part/numbers-{index}"]
command = 'mkdir part; seq $((AMALGAM_INDEX * 1000000)) $((AMALGAM_INDEX * 1000000 + 300000)) > part/numbers-$AMALGAM_INDEX'
[[stage]]
name = "reduce"
after = ["map"]
inputs = ["map/*"]
resources = { cpu = 1, gpu = 1 }
command = '''
find inputs -type f | sort > "$AMALGAM_SUBMIT_DIR/read"
cat inputs/map/0/part/numbers-0 inputs/map/1/part/numbers-1 | cksum > "$AMALGAM_SUBMIT_DIR/sum"
'''
"#;

const READ: &str = "inputs/map/0/part/numbers-0\ninputs/map/1/part/numbers-1\n";
/// By `(seq 0 300000; seq 1000000 1300000) | cksum`.
fn sum_of_all() -> String {
    let all = std::process::Command::new("sh").args(["-c", "(seq 0 300000; seq 1000000 1300000) | cksum"]).output();
    String::from_utf8(all.unwrap().stdout).unwrap()
}

/// A cluster of one agent, on which the first stage of this job has ended.
fn mapped(config: &str) -> (Cluster, String) {
    let cluster = Cluster::start(1, 2, config);
    let job = cluster.scene.write("job.toml", MAP_REDUCE);
    let id = cluster.scene.submit(&[job.to_str().unwrap()]);
    until_true("both parts", || cluster.scene.job(&id).summary.tasks.succeeded == 2);
    (cluster, id)
}

/// An agent on a host of its own, the only one that can run the second stage.
fn start_big(cluster: &Cluster, more: &[&str]) -> Daemon {
    let mut command = cluster.agent_command(1);
    command.args(["--resource", "gpu=1"]).args(more);
    Daemon::start(command).unwrap_or_else(|printed| panic!("no agent: {printed}"))
}

fn stored(cluster: &Cluster, agent: usize) -> Vec<PathBuf> {
    let store = cluster.scene.path().join(format!("node-{agent}/executor/files/{agent}"));
    let mut files: Vec<PathBuf> = fs::read_dir(store).into_iter().flatten().flatten().map(|file| file.path()).collect();
    files.sort();
    files
}

fn result(scene: &Scene, id: &str, kind: &str) -> Vec<String> {
    scene.story(id).into_iter().filter(|line| line.kind == kind).map(|line| line.text).collect()
}

/// Damages a file without changing its modification time.
fn damage(file: &Path) {
    fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    let mut open = OpenOptions::new().write(true).open(file).unwrap();
    let written = open.metadata().unwrap().modified().unwrap();
    open.write_all(b"7").unwrap();
    open.set_times(FileTimes::new().set_modified(written)).unwrap();
}

#[test]
fn files_of_other_stages_have_the_time_at_which_they_were_written_on_any_node() {
    let cluster = Cluster::start(1, 2, "");
    let job = r#"
name = "dated"
wait_for_nodes = true
[[stage]]
name = "write"
outputs = ["old", "new", "empty"]
command = 'echo 1 > old; touch -d "2001-02-03 04:05:06.789 UTC" old; echo 2 > new; touch -d "1999-12-31 UTC" empty; date +%s > "$AMALGAM_SUBMIT_DIR/now"'
[[stage]]
name = "here"
after = ["write"]
inputs = ["write/*"]
command = 'stat -c "%Y %n" inputs/write/0/* > "$AMALGAM_SUBMIT_DIR/here"'
[[stage]]
name = "there"
after = ["write"]
inputs = ["write/*"]
resources = { gpu = 1 }
command = 'stat -c "%Y %n" inputs/write/0/* > "$AMALGAM_SUBMIT_DIR/there"'
"#;
    let job = cluster.scene.write("job.toml", job);
    let id = cluster.scene.submit(&[job.to_str().unwrap()]);
    let _big = start_big(&cluster, &[]);
    assert_eq!(cluster.scene.run(&["wait", &id]).code, 0);
    let now: u64 = cluster.scene.line_in("now").parse().unwrap();
    for place in ["here", "there"] {
        let printed = cluster.scene.read(place);
        let times: Vec<u64> = printed.lines().map(|line| line.split_once(' ').unwrap().0.parse().unwrap()).collect();
        // Empty, new and old files.
        assert_eq!((times[0], times[2]), (946_598_400, 981_173_106), "{place}: {printed}");
        assert!(times[1] <= now && now < times[1] + 60, "{place}: {printed}");
    }
}

#[test]
fn a_task_reads_what_others_left_on_another_node() {
    let (cluster, id) = mapped("kept_jobs = 1");
    let scene = &cluster.scene;
    assert_eq!(stored(&cluster, 0).len(), 2);
    let _big = start_big(&cluster, &[]);
    scene.ok(&["wait", &id]);
    assert_eq!((scene.read("read"), scene.read("sum")), (READ.to_owned(), sum_of_all()));
    assert_eq!(stored(&cluster, 1).len(), 2);
    assert_eq!(result(scene, &id, "output-lost"), Vec::<String>::new());
    assert_eq!(result(scene, &id, "awaits-files"), ["node-1 lacks 2 files of 4388905 bytes that reduce reads"]);
    let own = |agent: usize| scene.path().join(format!("node-{agent}/executor/own/{id}"));
    assert!(own(1).exists() && !glob_inputs(&own(1)), "inputs are there while a task runs");
    // Nodes keep no files that the master has forgotten.
    let next = scene.submit(&["--", "true"]);
    scene.ok(&["wait", &next]);
    until_true("all of it is gone", || (0..2).all(|agent| !own(agent).exists() && stored(&cluster, agent).is_empty()));
}

fn glob_inputs(own: &Path) -> bool {
    fs::read_dir(own).unwrap().flatten().any(|attempt| attempt.path().join("inputs").exists())
}

#[test]
fn a_damaged_file_is_noticed_and_written_again() {
    let (cluster, id) = mapped("");
    damage(&stored(&cluster, 0)[0]);
    let _big = start_big(&cluster, &[]);
    let scene = &cluster.scene;
    scene.ok(&["wait", &id]);
    assert_eq!((scene.read("read"), scene.read("sum")), (READ.to_owned(), sum_of_all()));
    let lost = result(scene, &id, "output-lost");
    assert!(lost.len() == 1 && lost[0].contains("no node has its output `part/numbers-"), "{lost:?}");
    let ended = result(scene, &id, "ended").join("\n");
    assert!(ended.contains("wrong checksum"), "{ended}");
}

#[test]
fn outputs_of_a_node_that_went_away_are_written_again() {
    let (cluster, id) = mapped("heartbeat = '200ms'\nnode_grace = '1s'");
    cluster.kill_agent(0);
    let _big = start_big(&cluster, &[]);
    let scene = &cluster.scene;
    scene.ok(&["wait", &id]);
    assert_eq!((scene.read("read"), scene.read("sum")), (READ.to_owned(), sum_of_all()));
    assert_eq!(result(scene, &id, "output-lost").len(), 2);
}

#[test]
fn files_that_are_too_much_for_a_node_say_so() {
    let (cluster, id) = mapped("");
    let _big = start_big(&cluster, &["--cache", "3MiB"]);
    let scene = &cluster.scene;
    let ended = until("a refusal", || result(scene, &id, "ended").into_iter().find(|text| text.contains("--cache")));
    assert!(ended.contains("this node keeps 3145728 bytes of files at most"), "{ended}");
    scene.run(&["wait", &id]);
    assert_eq!(scene.job(&id).summary.state, JobState::Failed);
}

#[test]
fn committed_files_survive_a_killed_server_and_a_killed_agent() {
    let (cluster, id) = mapped("");
    cluster.kill_server();
    cluster.kill_agent(0);
    cluster.start_server();
    cluster.start_agent(0);
    let _big = start_big(&cluster, &[]);
    let scene = &cluster.scene;
    scene.ok(&["wait", &id]);
    assert_eq!(scene.read("sum"), sum_of_all());
    assert_eq!(result(scene, &id, "output-lost"), Vec::<String>::new());
}

#[test]
fn a_declared_file_that_is_missing_fails_the_task_and_is_named() {
    let scene = Scene::dev(&[]);
    for (command, printed) in [
        ("true", "the task exited with 0 and did not write `counts.txt`, which its stage declares as an output"),
        ("mkdir counts.txt", "the output `counts.txt` is not a regular file"),
    ] {
        let job = scene.write("job.toml", &format!("outputs = ['counts.txt']\ncommand = '{command}'\nretries = 1\n"));
        let id = scene.submit(&[job.to_str().unwrap()]);
        assert_eq!(scene.run(&["wait", &id]).code, 1);
        let info = scene.ok(&["info", &id]);
        assert!(info.contains(printed), "{info}");
        assert_eq!(result(&scene, &id, "launched").len(), 2, "a retry is used");
    }
}

#[test]
fn inputs_are_read_only_and_an_output_that_nobody_reads_stays() {
    let scene = Scene::dev(&["--nodes", "2"]);
    let text = r#"
[[stage]]
name = "a"
outputs = ["o"]
command = 'echo one > o'
[[stage]]
name = "b"
after = ["a"]
inputs = ["a/o"]
outputs = ["result"]
command = 'stat -c %a inputs/a/0/o; cat inputs/a/0/o > result; rm -f inputs/a/0/o'
"#;
    let job = scene.write("job.toml", text);
    let id = scene.submit(&[job.to_str().unwrap()]);
    scene.ok(&["wait", &id]);
    assert!(scene.ok(&["logs", &id]).contains("444"));
    let own = scene.state().join(format!("executor/own/{id}"));
    let left = |name: &str| -> Vec<PathBuf> {
        let attempts = fs::read_dir(&own).unwrap().flatten();
        attempts.map(|attempt| attempt.path().join(name)).filter(|path| path.exists()).collect()
    };
    let results = left("result");
    assert_eq!(results.len(), 1);
    assert_eq!(fs::read_to_string(&results[0]).unwrap(), "one\n");
    assert_eq!(left("o"), Vec::<PathBuf>::new(), "what somebody reads is in the store");
}

#[test]
fn what_a_link_leads_to_is_left_alone() {
    let scene = Scene::dev(&[]);
    let text = r#"
[[stage]]
name = "a"
outputs = ["out/result"]
command = 'mkdir -p "$AMALGAM_SUBMIT_DIR/out"; ln -s "$AMALGAM_SUBMIT_DIR/out" out; echo mine > out/result'
[[stage]]
name = "b"
after = ["a"]
inputs = ["a/*"]
command = 'true'
"#;
    let job = scene.write("job.toml", text);
    let id = scene.submit(&[job.to_str().unwrap()]);
    assert_eq!(scene.run(&["wait", &id]).code, 1);
    assert!(scene.ok(&["info", &id]).contains("the output `out/result` is behind a link to a directory"));
    let mine = scene.work().join("out/result");
    assert_eq!(fs::read_to_string(&mine).unwrap(), "mine\n");
    assert_ne!(fs::metadata(&mine).unwrap().permissions().mode() & 0o222, 0, "it is as it was");
}

#[test]
fn outputs_are_fetched_from_the_node_that_has_them() {
    let (cluster, id) = mapped("");
    let scene = &cluster.scene;
    let out = scene.path().join("out");
    let fetch = |target: &str, more: &[&str]| {
        let out = out.to_str().unwrap();
        scene.run(&[&["outputs", target, "-o", out], more].concat())
    };
    let listed: Vec<OutputFile> = serde_json::from_str(&scene.ok(&["outputs", &id, "--list", "--json"])).unwrap();
    let names: Vec<(&str, &str)> = listed.iter().map(|file| (file.task.as_str(), file.name.as_str())).collect();
    assert_eq!(names, [("1.0.0", "part/numbers-0"), ("1.0.1", "part/numbers-1")]);
    assert!(listed.iter().all(|file| file.nodes == ["node-0"] && file.bytes > 1_000_000), "{listed:?}");

    let result = fetch(&format!("{id}.map.1"), &[]);
    assert_eq!((result.code, out.join("map/0").exists()), (0, false), "{result:?}");
    let result = fetch(&id, &["part/*"]);
    assert!(result.code == 0 && result.out.starts_with("2 files, "), "{result:?}");
    for (index, (first, last)) in [(0, 300_000), (1_000_000, 1_300_000)].into_iter().enumerate() {
        let expected: String = (first..=last).map(|number| format!("{number}\n")).collect();
        let path = out.join(format!("map/{index}/part/numbers-{index}"));
        assert!(fs::read_to_string(&path).unwrap() == expected, "{}", path.display());
    }
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1, "nothing else is left there");

    // Existing files that differ are not replaced by accident.
    let own = out.join("map/0/part/numbers-0");
    fs::write(&own, "mine").unwrap();
    let result = fetch(&id, &[]);
    assert!(result.code == 1 && result.err.contains("numbers-0 exists, and differs"), "{result:?}");
    assert_eq!(fs::read_to_string(&own).unwrap(), "mine");
    assert_eq!(fetch(&id, &["--force"]).code, 0);
    assert!(fs::read_to_string(&own).unwrap().starts_with("0\n1\n"));

    // A modified copy is not taken for the output, and a missing one is named.
    fs::remove_dir_all(&out).unwrap();
    damage(&stored(&cluster, 0)[0]);
    let result = fetch(&id, &[]);
    assert!(result.code == 1 && result.err.contains("no node has part/numbers-"), "{result:?}");
    assert!(result.out.starts_with("1 file, "), "{result:?}");
    let result = fetch(&id, &["nothing*"]);
    assert!(result.code == 1 && result.err.contains("none of the 2 outputs"), "{result:?}");
    cluster.kill_agent(0);
    let result = fetch(&format!("{id}.map.1"), &[]);
    assert_eq!(result.code, 0, "the sound one is there already: {result:?}");
}

#[test]
fn outputs_are_copied_by_name() {
    let (cluster, id) = mapped("");
    let scene = &cluster.scene;
    let out = scene.path().join("copies");
    fs::create_dir(&out).unwrap();
    let cp = |from: &[&str], to: &str, more: &[&str]| {
        let from: Vec<String> = from.iter().map(|from| format!("{id}{from}")).collect();
        let from: Vec<&str> = from.iter().map(String::as_str).collect();
        scene.run(&[&["cp"], more, &from[..], &[out.join(to).to_str().unwrap()]].concat())
    };
    let numbers = |index: u64| -> String {
        (index * 1_000_000..=index * 1_000_000 + 300_000).map(|number| format!("{number}\n")).collect()
    };
    let is_there = |path: &str, index: u64| fs::read_to_string(out.join(path)).unwrap() == numbers(index);

    let copied = cp(&[".map.1:part/numbers-1"], "one", &[]);
    assert!(copied.code == 0 && copied.out.starts_with("1 file, "), "{copied:?}");
    assert!(is_there("one", 1));
    assert_eq!(cp(&[".map.*:*numbers-*"], "all/", &[]).code, 0);
    assert!(is_there("all/numbers-0", 0) && is_there("all/numbers-1", 1));
    assert_eq!(cp(&[":*"], "tree", &["--tree"]).code, 0);
    assert!(is_there("tree/map/0/part/numbers-0", 0) && is_there("tree/map/1/part/numbers-1", 1));
    let printed = scene.ok(&["cp", &format!("{id}.map.0:part/numbers-0"), "-"]);
    assert!(printed == numbers(0));

    let several = cp(&[":*"], "file", &[]);
    assert!(several.code == 1 && several.err.contains("2 files are selected: 1.0.0:part/numbers-0"), "{several:?}");
    let several = scene.run(&["cp", &format!("{id}:*"), "-"]);
    assert!(several.code == 1 && several.err.contains("standard output is one file"), "{several:?}");
    let none = cp(&[".map.0:nothing"], "none", &[]);
    assert!(none.code == 1 && none.err.contains("none of the 1 output of job"), "{none:?}");
    let other = cp(&[".map.0:part/*"], "one", &[]);
    assert!(other.code == 1 && other.err.contains("exists, and differs"), "{other:?}");
    assert!(is_there("one", 1));
    assert_eq!(cp(&[".map.0:part/*"], "one", &["--force"]).code, 0);
    assert!(is_there("one", 0));

    // The start of a file that an interrupted copy left, a wrong one, and one that is too long.
    for partial in [numbers(0)[..700_000].to_owned(), "nonsense".to_owned(), numbers(0) + "more"] {
        fs::write(out.join(".rest.amalgam-part"), partial).unwrap();
        let _ = fs::remove_file(out.join("rest"));
        let copied = cp(&[".map.0:part/*"], "rest", &["--continue"]);
        assert!(copied.code == 0 && is_there("rest", 0) && !out.join(".rest.amalgam-part").exists(), "{copied:?}");
    }
    assert!(!fs::read_dir(&out).unwrap().flatten().any(|file| file.file_name().as_encoded_bytes().starts_with(b".")));
}

#[test]
fn both_streams_of_all_tasks_are_in_one_archive() {
    let scene = Scene::dev(&[]);
    let text = r#"
[[stage]]
name = "a"
tasks = 2
command = 'echo out $AMALGAM_INDEX; echo err $AMALGAM_INDEX >&2; exit $AMALGAM_INDEX'
[[stage]]
name = "b"
after = ["a"]
command = 'echo never'
[[stage]]
name = "c"
command = 'while [ ! -e "$AMALGAM_SUBMIT_DIR/go" ]; do sleep 0.05; done'
"#;
    let job = scene.write("job.toml", text);
    let id = scene.submit(&[job.to_str().unwrap()]);
    let path = scene.path().join("logs.tar");
    let early = scene.run(&["logs", &id, "--archive", path.to_str().unwrap()]);
    assert!(early.code == 1 && early.err.contains("has not ended"), "{early:?}");
    scene.write("go", "");
    scene.run(&["wait", &id]);
    let said = scene.ok(&["logs", &id, "--archive", path.to_str().unwrap()]);
    assert!(said.starts_with("output of 4 tasks, "), "{said}");
    let mut archive = tar::Archive::new(fs::File::open(&path).unwrap());
    let contents: Vec<(String, String)> = archive
        .entries()
        .unwrap()
        .map(|entry| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            (name, std::io::read_to_string(&mut entry).unwrap())
        })
        .collect();
    let expected = |name: &str, text: &str| (format!("{id}/{name}"), text.to_owned());
    for file in [
        expected("a/0/stdout", "out 0\n"),
        expected("a/0/stderr", "err 0\n"),
        expected("a/1/stdout", "out 1\n"),
        expected("a/1/stderr", "err 1\n"),
        expected("b/0/stdout", ""),
        expected("c/0/stderr", ""),
    ] {
        assert!(contents.contains(&file), "{file:?} is missing in {contents:?}");
    }
    assert_eq!(contents.len(), 8);
    let of_one = scene.path().join("one.tar");
    scene.ok(&["logs", &format!("{id}.a.1"), "--archive", of_one.to_str().unwrap()]);
    assert_eq!(tar::Archive::new(fs::File::open(&of_one).unwrap()).entries().unwrap().count(), 2);
}
