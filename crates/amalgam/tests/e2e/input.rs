//! The standard input of `run` is passed to its task.

use crate::support::{Cluster, CommandOutput, Federation, Scene, read};
use std::io::Write;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Starts a command with these bytes as its input, as far as it reads them.
fn given(scene: &Scene, arguments: &[&str], input: Vec<u8>) -> Child {
    let mut command = scene.command(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    thread::spawn(move || stdin.write_all(&input));
    child
}

fn run(scene: &Scene, arguments: &[&str], input: &[u8]) -> CommandOutput {
    read(given(scene, arguments, input.to_vec()).wait_with_output().unwrap())
}

/// Bytes of all values, in no simple order.
fn noise(length: usize) -> Vec<u8> {
    (0..length as u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn passes_input(scene: &Scene) {
    let result = run(scene, &["run", "-q", "--", "bash"], b"echo hello\n");
    assert_eq!((result.code, result.out.as_str()), (0, "hello\n"), "{result:?}");
    assert_eq!(run(scene, &["run", "-q", "--", "cat"], b"").out, "");
    let result = run(scene, &["run", "-q", "--", "sh", "-c", "cat > got"], &noise(5 << 20));
    assert_eq!(result.code, 0, "{result:?}");
    assert!(std::fs::read(scene.work().join("got")).unwrap() == noise(5 << 20));
    // The task does not have to read it.
    let started = Instant::now();
    assert_eq!(run(scene, &["run", "-q", "--", "true"], &noise(5 << 20)).code, 0);
    let result = run(scene, &["run", "-q", "--", "head", "-c", "3"], &vec![b'y'; 50 << 20]);
    assert_eq!((result.code, result.out.as_str()), (0, "yyy"), "{result:?}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert_eq!(run(scene, &["run", "-q", "--stdin", "none", "--", "cat"], b"not this").out, "");
}

#[test]
fn a_task_reads_what_run_is_given_without_a_server() {
    passes_input(&Scene::new());
}

#[test]
fn a_task_reads_what_run_is_given_on_a_node_of_dev() {
    let scene = Scene::dev(&[]);
    passes_input(&scene);
    let result = run(&scene, &["run", "-q", "--array", "0-1", "--", "cat"], b"for nobody");
    assert_eq!((result.code, result.out.as_str()), (0, ""), "several tasks have none: {result:?}");
    let result = run(&scene, &["run", "--stdin", "inherit", "--array", "0-1", "--", "cat"], b"for nobody");
    assert!(result.code == 2 && result.err.contains("the job has 2"), "{result:?}");
}

#[test]
fn a_task_reads_what_run_is_given_at_an_agent() {
    passes_input(&Cluster::start(1, 2, "").scene);
}

#[test]
fn a_task_that_is_tried_again_reads_its_input_from_the_beginning_if_that_was_kept() {
    let scene = Scene::dev(&[]);
    let script = "cat > got; [ -e tried ] || { touch tried; exit 1; }";
    let result = run(&scene, &["run", "-q", "--retries", "1", "--", "sh", "-c", script], b"twice\n");
    assert_eq!((result.code, scene.read("got").as_str()), (0, "twice\n"), "{result:?}");
    assert_eq!(scene.tasks("1")[0].attempts, 2);

    std::fs::remove_file(scene.work().join("tried")).unwrap();
    let result = run(&scene, &["run", "-q", "--retries", "1", "--", "sh", "-c", script], &noise(3 << 20));
    assert!(result.code != 0 && result.err.contains("1 MiB"), "{result:?}");
}

#[test]
fn standard_input_is_not_both_the_job_file_and_what_the_task_reads() {
    let scene = Scene::new();
    let result = scene.run(&["run", "--stdin", "inherit", "-"]);
    assert!(result.code == 2 && result.err.contains("standard input is the job file"), "{result:?}");
    assert!(result.err.contains("leave out --stdin inherit"), "{result:?}");
}

#[test]
fn in_a_federation_a_task_finds_its_input_empty_unless_that_is_not_enough() {
    let federation = Federation::start(2, 1, 1, "");
    let scene = &federation.scene;
    let result = run(scene, &["run", "--", "sh", "-c", "cat; echo read"], b"");
    assert_eq!((result.code, result.out.as_str()), (0, "read\n"), "{result:?}");
    assert!(
        result.err.contains("tasks cannot have standard input in a federation: the task finds its input empty"),
        "{result:?}"
    );
    scene.write("input", "something");
    let path = scene.work().join("input");
    for words in [&["run", "--", "cat"][..], &["run", "--stdin", "inherit", "--", "cat"]] {
        let mut command = scene.command(words);
        let refused = read(command.stdin(std::fs::File::open(&path).unwrap()).output().unwrap());
        assert!(refused.code != 0 && refused.err.contains("use `--stdin none`"), "{refused:?}");
    }
}
