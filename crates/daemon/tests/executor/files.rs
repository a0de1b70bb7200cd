//! The directories and the input files of tasks.

use crate::agent::{Home, change, change_program, order, sh};
use amalgam_core::vocabulary::*;
use amalgam_daemon::executor::{EnforcementChoice, own_dir};
use amalgam_daemon::files::{FileStore, Left};
use std::fs;
use std::path::Path;

#[test]
fn removed_directories_of_tasks_are_created_again() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    let script = "[ -d $TMPDIR ] && touch $TMPDIR/f";
    for number in 1..4 {
        // In the second round the task would reuse a directory of an earlier task.
        assert_eq!(agent.run(sh(number * 2, ":")).reason, EndReason::Exit(0));
        if number == 3 {
            fs::remove_dir_all(home.state.join("tasks")).unwrap();
        }
        for left in fs::read_dir(home.state.join("tasks")).into_iter().flatten().flatten() {
            fs::remove_dir_all(left.path()).unwrap();
        }
        assert_eq!(agent.run(sh(number * 2 + 1, script)).reason, EndReason::Exit(0));
    }
}

#[test]
fn the_removal_of_many_files_does_not_delay_other_tasks() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    let many = "cd $TMPDIR && seq 1 60000 | xargs touch";
    assert_eq!(agent.run(sh(1, many)).reason, EndReason::Exit(0));
    let waits = || fs::read_dir(home.state.join("removed")).unwrap().count();
    assert_eq!((waits(), home.scratch_files()), (1, 0), "the directory is moved away and not removed yet");
    assert_eq!(agent.run(sh(2, "exit 7")).reason, EndReason::Exit(7));
    assert_eq!(waits(), 1, "another task has run meanwhile");
    // The next executor continues the removal.
    home.kill_executor(agent.hello.pid);
    home.agent();
    home.wait_until("it is removed", || waits() == 0);
}

#[test]
fn leftovers_of_an_earlier_executors_tasks_are_removed() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    let script = "mkdir -p $TMPDIR/m/n; touch $TMPDIR/m/f; chmod 000 $TMPDIR/m/n; chmod a-w $TMPDIR/m; echo $TMPDIR > $0; sleep 100";
    let printed = home.state.join("said");
    let mut left = sh(1, script);
    change_program(&mut left).command.push(printed.to_str().unwrap().into());
    agent.start(left);
    home.wait_until("the task has created its files", || {
        fs::read_to_string(&printed).is_ok_and(|text| text.ends_with('\n'))
    });
    home.kill_executor(agent.hello.pid);
    let mut next = home.agent();
    assert!(!Path::new(fs::read_to_string(&printed).unwrap().trim()).join("m").exists());
    assert_eq!(next.run(sh(2, "touch $TMPDIR/f")).reason, EndReason::Exit(0));
    home.wait_until("it is removed", || fs::read_dir(home.state.join("removed")).unwrap().count() == 0);
}

#[test]
fn files_in_a_tasks_own_directory_are_kept() {
    let home = Home::new(EnforcementChoice::None);
    let mut order = sh(1, "pwd; ls | wc -l; echo kept > file");
    change_program(&mut order).workdir = Workdir::Own;
    change(&mut order).submit_dir = "/no/such/dir".into();
    let own = own_dir(&home.state, order.attempt);
    assert_eq!(home.agent().run(order).reason, EndReason::Exit(0));
    assert_eq!(home.output(1, Stream::Stdout), format!("{}\n0\n", own.display()));
    assert_eq!(fs::read_to_string(own.join("file")).unwrap(), "kept\n");
    assert_eq!(amalgam_daemon::executor::forget_job(&home.state, JobId(1)), Vec::<String>::new());
    assert!(!own.exists());
}

/// Adds an input file of the node's store to the order, and its own working directory.
fn with_input(home: &Home, mut order: LaunchOrder) -> LaunchOrder {
    fs::write(home.state.join("o"), "text").unwrap();
    let left = Left::find(&home.state, "o").unwrap();
    let StoredFile { digest, bytes } = FileStore::of(&home.state, order.node).put(&left, false).unwrap();
    let path = "inputs/a/0/o".to_owned();
    order.inputs = std::sync::Arc::new([InputFile { path, digest, bytes, holders: Vec::new() }]);
    change_program(&mut order).workdir = Workdir::Own;
    order
}

#[test]
fn inputs_exist_only_while_a_task_runs() {
    let home = Home::new(EnforcementChoice::None);
    let mut agent = home.agent();
    let inputs = |order: &LaunchOrder| own_dir(&home.state, order.attempt).join("inputs");
    let reads = with_input(&home, sh(1, "cat inputs/a/0/o; stat -c ' %a' inputs/a/0/o"));
    assert_eq!(agent.run(reads.clone()).reason, EndReason::Exit(0));
    assert_eq!(home.output(1, Stream::Stdout), "text 444\n");
    assert!(!inputs(&reads).exists());

    let fails = with_input(&home, order(2, &["no-such-command"]));
    assert!(matches!(agent.run(fails.clone()).reason, EndReason::LaunchFailed(_)));
    assert!(own_dir(&home.state, fails.attempt).exists() && !inputs(&fails).exists());

    let lasts = with_input(&home, sh(3, "sleep 1000"));
    agent.start(lasts.clone());
    assert!(inputs(&lasts).exists());
    home.kill_executor(agent.hello.pid);
    home.agent();
    assert!(!inputs(&lasts).exists());
}
