//! What tasks inherit from the submitting process, and the ways to pass a job file.

use crate::support::{Scene, result};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

/// Prints the task's variables that start with `X_`.
const SHOW: [&str; 4] = ["--", "sh", "-c", "env | grep ^X_ | sort | tr '\\n' ' '"];

#[test]
fn tasks_find_the_submitters_variables_where_it_is_asked_for() {
    let server = Scene::dev(&[]);
    let embedded = Scene::new();
    for scene in [&server, &embedded] {
        let seen = |options: &[&str]| {
            let mut run = scene.command(&[&["run"], options, &SHOW].concat());
            run.env("X_A", "1").env("X_B", "2");
            result(run)
        };
        assert_eq!(seen(&[]).out, "");
        assert_eq!(seen(&["--export", "none"]).out, "");
        assert_eq!(seen(&["--export", "all"]).out, "X_A=1 X_B=2 ");
        assert_eq!(seen(&["--export", "all", "--env", "X_B=3"]).out, "X_A=1 X_B=3 ");
        assert_eq!(seen(&["--export", "X_A,X_C=4"]).out, "X_A=1 X_C=4 ");
        assert_eq!(seen(&["--env", "X_B"]).out, "X_B=2 ");
        let unset = seen(&["--env", "X_NO"]);
        assert!(unset.code == 2 && unset.err.contains("`X_NO` is not set"), "{unset:?}");
        let own = seen(&["--env", "AMALGAM_INDEX=1"]);
        assert!(own.code == 2 && own.err.contains("are reserved"), "{own:?}");
    }
    let mut all = embedded.command(&[
        "run",
        "--export",
        "all",
        "--",
        "sh",
        "-c",
        "echo $AMALGAM_TOKEN$SHLVL$OLDPWD; pwd; echo $PWD",
    ]);
    all.env("SHLVL", "7").env("OLDPWD", "/no").env("PWD", "/elsewhere");
    let output = result(all);
    let lines: Vec<&str> = output.out.lines().collect();
    assert!(lines[1] == lines[2] && !lines[0].contains("/no"), "{output:?}");
}

#[test]
fn files_of_tasks_have_the_mode_that_is_asked_for() {
    let scene = Scene::dev(&[]);
    let mode = |options: &[&str]| {
        let _ = fs::remove_file(scene.work().join("made"));
        scene.ok(&[&["run"], options, &["--", "touch", "made"]].concat());
        fs::metadata(scene.work().join("made")).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode(&["--umask", "027"]), 0o640);
    assert_eq!(mode(&["--umask", "0"]), 0o666);
    let mut run = std::process::Command::new("sh");
    let program = env!("CARGO_BIN_EXE_amalgam");
    let line = format!("umask 077; exec {program} run --umask submitter -- touch made");
    run.args(["-c", &line]).current_dir(scene.work()).env("AMALGAM_STATE", scene.state());
    fs::remove_file(scene.work().join("made")).unwrap();
    assert_eq!(result(run).code, 0);
    assert_eq!(fs::metadata(scene.work().join("made")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(scene.run(&["submit", "--umask", "9", "--", "true"]).code, 2);
}

#[test]
fn a_job_file_may_come_from_standard_input() {
    let scene = Scene::dev(&[]);
    let through = |arguments: &[&str], text: &str| {
        let mut command = scene.command(arguments);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        crate::support::read(child.wait_with_output().unwrap())
    };
    let toml = through(&["run", "-", "--format", "toml"], "\u{feff}command = 'echo toml'\r\n");
    assert_eq!((toml.code, toml.out.as_str()), (0, "toml\n"), "{toml:?}");
    let json = through(&["submit", "--format", "json", "-"], "{\"command\": [\"true\"]}");
    assert!(json.out.contains("submitted: stdin, 1 task"), "{json:?}");
    let wrong = through(&["config", "check", "--format", "yaml", "-"], "command: x\ncolour: red\n");
    assert!(wrong.code == 2 && wrong.err.contains("stdin:2:1: unknown key `colour`"), "{wrong:?}");
    let unsaid = through(&["submit", "-"], "command = 'x'");
    assert!(unsaid.code == 2 && unsaid.err.contains("--format"), "{unsaid:?}");
}

#[test]
fn what_no_process_can_be_given_is_refused_when_it_is_submitted() {
    let scene = Scene::dev(&[]);
    let long = "x".repeat(200_000);
    let refused = |arguments: &[&str]| {
        let output = scene.run(&[&["submit"], arguments].concat());
        assert!(output.code == 2 && output.err.contains("file"), "{:.300}", output.err);
        output.err
    };
    fs::write(scene.work().join("items"), &long).unwrap();
    assert!(refused(&["--each-line", "items", "--", "true"]).contains("AMALGAM_ITEM"));
    scene.write("job.toml", &format!("command = ['true', '{long}']"));
    assert!(refused(&["job.toml"]).contains("128 KiB"));
}

#[test]
fn a_program_given_for_a_job_file_is_offered_as_one() {
    let scene = Scene::new();
    scene.write("job.sh", "#!/bin/sh\n");
    let output = scene.run(&["submit", "job.sh"]);
    assert!(output.code == 2 && output.err.contains("amalgam submit -- ./job.sh"), "{output:?}");
    let output = scene.run(&["run", scene.work().join("job.sh").to_str().unwrap()]);
    assert!(output.err.contains(&format!("amalgam run -- {}/job.sh", scene.work().display())), "{output:?}");
}
