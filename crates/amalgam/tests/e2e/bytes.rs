//! Paths, arguments, variables and items are bytes from the command line to the process, UTF-8 or not.

use crate::support::{Scene, result};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// In Latin-1.
const CAFE: &[u8] = b"caf\xe9";
/// The output of a program that decodes everything as UTF-8.
const BESIDE: &str = "caf\u{fffd}";

/// Two directories whose names differ only in the byte that is not UTF-8, each with a file that identifies it.
fn two_directories(scene: &Scene) -> PathBuf {
    let directory = scene.work().join(OsStr::from_bytes(CAFE));
    for (path, which) in [(&directory, "right"), (&scene.work().join(BESIDE), "wrong")] {
        fs::create_dir(path).unwrap();
        fs::write(path.join("which"), which).unwrap();
    }
    directory
}

#[test]
fn tasks_run_where_they_were_submitted_with_the_arguments_variables_and_items_that_were_given() {
    let scene = Scene::dev(&[]);
    let directory = two_directories(&scene);
    let script = "cat which; printf ' %s %s' \"$1\" \"$X\" | od -An -c; cd \"$AMALGAM_SUBMIT_DIR\" && cat which";
    let mut run = scene.command(&["run", "--env"]);
    run.current_dir(&directory).arg(OsStr::from_bytes(b"X=x\xff")).args(["--", "sh", "-c", script, "sh"]);
    let output = result({
        run.arg(OsStr::from_bytes(b"a\xfe"));
        run
    });
    assert_eq!(
        (output.code, output.out.split_whitespace().collect::<Vec<_>>().join(" ").as_str()),
        (0, "right a 376 x 377 right")
    );

    let mut workdir = scene.command(&["run", "--workdir"]);
    workdir.arg(&directory).args(["--", "cat", "which"]);
    assert_eq!(result(workdir).out, "right");

    let mut each = scene.command(&["run", "--each-line", "list", "--", "sh", "-c", "cat \"$AMALGAM_ITEM/which\""]);
    each.arg("");
    scene.write("list", "");
    fs::write(scene.work().join("list"), [CAFE, b"\r\n", BESIDE.as_bytes(), b"\n"].concat()).unwrap();
    let output = result(each);
    // The two end in any order.
    let lines: std::collections::BTreeSet<&str> = output.out.lines().collect();
    assert_eq!(lines.into_iter().collect::<Vec<_>>(), ["main/0: right", "main/1: wrong"]);
}

#[test]
fn a_pattern_makes_a_task_for_each_name_that_matches() {
    let scene = Scene::dev(&[]);
    two_directories(&scene);
    let job = "each = 'caf*/which'\ncommand = 'cat \"$AMALGAM_ITEM\"'\n";
    assert_eq!(scene.ok(&["run", scene.write("job.toml", job).to_str().unwrap()]).lines().count(), 2);
    let id = scene.submit(&["job.toml"]);
    scene.ok(&["wait", &id]);
    let items: Vec<String> = scene.tasks(&id).iter().map(|task| task.item.as_ref().unwrap().to_string()).collect();
    assert_eq!(items, ["caf\\xe9/which", "caf\u{fffd}/which"]);
    let json = scene.ok(&["info", &id, "--tasks", "--json"]);
    assert!(json.contains(r#""bytes": "caf\\xe9/which""#) || json.contains(r#""bytes":"caf\\xe9/which""#), "{json}");
}

#[test]
fn a_job_file_says_bytes_with_escapes() {
    let scene = Scene::dev(&[]);
    two_directories(&scene);
    scene.write("job.toml", "command = ['cat', { bytes = 'caf\\xe9/which' }]\n");
    assert_eq!(scene.ok(&["run", "job.toml"]), "right");
}

#[test]
fn a_state_directory_a_token_file_and_a_configuration_may_have_such_a_name() {
    let scene = Scene::new();
    let directory = two_directories(&scene);
    let (state, config) = (directory.join("state"), directory.join("server.toml"));
    fs::write(&config, "preset = 'fifo'\n").unwrap();
    // Another cluster's state, in the directory that is easily confused with this one.
    fs::create_dir(scene.work().join(BESIDE).join("state")).unwrap();
    let mut dev = scene.command(&["dev", "--listen", "127.0.0.1:0", "--cpus", "2", "--memory", "1GiB", "--config"]);
    dev.arg(&config).env("AMALGAM_STATE", &state);
    scene.start(dev, &state);
    let with_state = |name: &str, state: OsString, arguments: &[&str]| {
        let mut command = scene.command(arguments);
        command.env_remove("AMALGAM_STATE").env(name, state);
        result(command)
    };
    let by_state = with_state("AMALGAM_STATE", state.clone().into(), &["run", "-q", "--", "echo", "found"]);
    assert_eq!((by_state.code, by_state.out.as_str()), (0, "found\n"), "{by_state:?}");
    let listed = with_state("AMALGAM_STATE", state.clone().into(), &["list", "--all", "--json"]);
    assert_eq!(listed.code, 0, "{listed:?}");
    let address = fs::read_to_string(state.join("server.json")).unwrap();
    let address = address.split('"').nth(3).unwrap().to_owned();
    let by_token = with_state("AMALGAM_TOKEN_FILE", state.join("tokens.toml").into(), &["list", "--server", &address]);
    assert_eq!(by_token.code, 0, "{by_token:?}");
    // Output is written to the named directory, too.
    let result = with_state("AMALGAM_STATE", state.into(), &["logs", "1"]);
    assert_eq!(result.out, "found\n");
}

#[test]
fn values_that_are_not_utf8_are_refused_by_name() {
    let scene = Scene::new();
    let mut name = scene.command(&["submit", "--name"]);
    name.arg(OsStr::from_bytes(CAFE)).args(["--", "true"]);
    let refused = result(name);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("`caf\\xe9` is not UTF-8"), "{}", refused.err);
    for variable in ["AMALGAM_SERVER", "AMALGAM_TOKEN"] {
        let mut list = scene.command(&["list", "--server", "127.0.0.1:1"]);
        if variable == "AMALGAM_SERVER" {
            list = scene.command(&["list"]);
        }
        list.env(variable, OsStr::from_bytes(CAFE));
        let refused = result(list);
        assert_eq!(refused.code, 2);
        assert!(refused.err.contains(&format!("{variable} is not UTF-8")), "{}", refused.err);
    }
}

#[test]
fn an_embedded_cluster_works_in_such_a_directory() {
    let scene = Scene::new();
    let directory = two_directories(&scene);
    let mut run = scene.command(&["run", "--", "cat", "which"]);
    run.current_dir(&directory).env("TMPDIR", &directory);
    let output = result(run);
    assert_eq!((output.code, output.out.as_str()), (0, "right"), "{output:?}");
}
