//! `kill -9` for servers, agents and executors: acknowledged work is kept, and running tasks continue.

use crate::running::AWAIT_GO;
use crate::support::{Cluster, Daemon, Scene, is_alive, until, until_true};
use amalgam_daemon::api::{JobState, StoryLine, TaskState};
use std::os::unix::process::CommandExt;

/// Nodes count as lost after about a second.
const HASTY: &str = "heartbeat = '100ms'\nmissed_heartbeats = 3\nnode_grace = '700ms'\n";

/// The number of lines of the story of this kind that name an attempt.
fn kinds(story: &[StoryLine], kind: &str) -> usize {
    story.iter().filter(|line| line.kind == kind && line.attempt.is_some()).count()
}

/// Tasks in every state, a server that dies, and one that takes over. `restart` kills and starts it again, and calls its argument
/// in between.
fn a_killed_server_is_survived(scene: &Scene, restart: impl FnOnce(&dyn Fn())) {
    let done = scene.submit(&["--array", "0-3", "--", "sh", "-c", "echo $AMALGAM_INDEX >> done"]);
    scene.ok(&["wait", &done]);
    let script = format!("echo $$ >> pids-$AMALGAM_INDEX; {}", AWAIT_GO.replace("go", "go-$AMALGAM_INDEX"));
    let running = scene.submit(&["--array", "0-1", "--", "sh", "-c", &script]);
    let pids = [scene.line_in("pids-0"), scene.line_in("pids-1")];
    let waiting = scene.submit(&["--array", "0-4", "--", "sh", "-c", "echo $AMALGAM_INDEX >> waited"]);
    let held = scene.submit(&["--hold", "--after", &waiting, "--", "true"]);

    restart(&|| {
        // One task ends while no server runs.
        scene.write("go-0", "");
        until_true("the end of a task without a server", || !is_alive(&pids[0]));
        assert!(is_alive(&pids[1]), "tasks do not end with the server");
    });

    until_true("the end that was kept", || scene.job(&running).summary.tasks.succeeded == 1);
    scene.ok(&["wait", &waiting]);
    assert!(is_alive(&pids[1]));
    let task = scene.tasks(&running).remove(1);
    assert_eq!((task.state, task.attempts), (TaskState::Running, 1), "{task:?}");
    assert_eq!(scene.job(&held).summary.state, JobState::Held);
    scene.write("go-1", "");
    scene.ok(&["wait", &running]);
    scene.ok(&["release", &held]);
    scene.ok(&["wait", &held]);

    let once = |name: &str, lines: usize| assert_eq!(scene.read(name).lines().count(), lines, "{name}");
    once("done", 4);
    once("waited", 5);
    once("pids-0", 1);
    once("pids-1", 1);
    let story = scene.story(&format!("{running}.0.1"));
    assert_eq!((kinds(&story, "launched"), kinds(&story, "adopted"), kinds(&story, "ended")), (1, 1, 1), "{story:#?}");
}

#[test]
fn a_server_is_killed_and_its_tasks_go_on() {
    let cluster = Cluster::start(1, 2, "");
    a_killed_server_is_survived(&cluster.scene, |meanwhile| {
        cluster.kill_server();
        meanwhile();
        cluster.start_server();
    });
}

#[test]
fn a_cluster_in_one_process_is_killed_and_its_tasks_go_on() {
    let scene = Scene::dev(&[]);
    a_killed_server_is_survived(&scene, |meanwhile| {
        scene.kill_daemon();
        meanwhile();
        scene.start_dev(&[]);
    });
}

#[test]
fn an_agent_that_returns_in_time_takes_its_tasks_over() {
    let cluster = Cluster::start(1, 2, "");
    let script = format!("echo $$ >> pids-$AMALGAM_INDEX; {}", AWAIT_GO.replace("go", "go-$AMALGAM_INDEX"));
    let id = cluster.scene.submit(&["--array", "0-1", "--", "sh", "-c", &script]);
    let pids = [cluster.scene.line_in("pids-0"), cluster.scene.line_in("pids-1")];
    // A task can be faster than the message about its start.
    until_true("the news of both starts", || kinds(&cluster.scene.story(&id), "started") == 2);
    cluster.kill_agent(0);
    cluster.scene.write("go-0", "");
    until_true("the end of a task without an agent", || !is_alive(&pids[0]));
    cluster.start_agent(0);
    let scene = &cluster.scene;
    until_true("the end that was kept", || scene.job(&id).summary.tasks.succeeded == 1);
    assert!(is_alive(&pids[1]));
    scene.write("go-1", "");
    scene.ok(&["wait", &id]);
    assert!(scene.tasks(&id).iter().all(|task| task.attempts == 1), "no task ran twice");
    assert_eq!(scene.read("pids-1").lines().count(), 1);
    let story = scene.story(&format!("{id}.0.1"));
    assert_eq!(kinds(&story, "adopted"), 1, "{story:#?}");
}

/// Each attempt prints its id and waits for a file of its own.
const ONE_BY_ONE: &str = "echo $AMALGAM_ATTEMPT $$ >> attempts; \
    while [ ! -e go-$AMALGAM_ATTEMPT ]; do sleep 0.02; done; exit $(cat go-$AMALGAM_ATTEMPT)";

/// The attempts so far: their ids and processes.
fn attempts(scene: &Scene, count: usize) -> Vec<(String, String)> {
    until(&format!("attempt number {count}"), || {
        let text = scene.read("attempts");
        let lines: Vec<(String, String)> =
            text.lines().filter_map(|line| line.split_once(' ')).map(|(id, pid)| (id.into(), pid.into())).collect();
        (text.ends_with('\n') && lines.len() >= count).then_some(lines)
    })
}

fn node_of(scene: &Scene, id: &str) -> usize {
    let node = scene.tasks(id)[0].node.clone().expect("it runs somewhere");
    node.strip_prefix("node-").unwrap().parse().unwrap()
}

#[test]
fn a_task_of_a_lost_node_runs_elsewhere_and_the_late_result_is_refused() {
    let cluster = Cluster::start(2, 1, HASTY);
    let id = cluster.scene.submit(&["--", "sh", "-c", ONE_BY_ONE]);
    let (first, pid) = attempts(&cluster.scene, 1).remove(0);
    let lost = node_of(&cluster.scene, &id);
    cluster.kill_agent(lost);
    let (second, _) = attempts(&cluster.scene, 2).remove(1);
    assert_ne!(node_of(&cluster.scene, &id), lost);

    // The first attempt fails while its node is not connected, and the node returns with that result.
    cluster.scene.write(&format!("go-{first}"), "5\n");
    until_true("the end of the lost attempt", || !is_alive(&pid));
    cluster.start_agent(lost);
    let scene = &cluster.scene;
    let about = |kind: &str| {
        let story = scene.story(&format!("{id}.0.0"));
        story.into_iter().filter(|line| line.kind == kind).filter_map(|line| line.attempt).collect::<Vec<_>>()
    };
    until_true("the late result", || about("stale").contains(&first));
    let stale = scene.story(&id).into_iter().find(|line| line.kind == "stale").unwrap();
    assert!(
        stale.text.contains("arrived after its end, for example after a duplicate or from a reconnected node"),
        "{stale:?}"
    );
    assert_eq!(scene.tasks(&id)[0].state, TaskState::Running);
    scene.write(&format!("go-{second}"), "0\n");
    assert_eq!(scene.run(&["wait", &id]).code, 0);
    assert_eq!((about("lost"), about("ended")), (vec![first], vec![second]));
}

#[test]
fn an_attempt_that_was_given_up_is_ended_when_its_node_returns() {
    let cluster = Cluster::start(2, 1, HASTY);
    let id = cluster.scene.submit(&["--", "sh", "-c", ONE_BY_ONE]);
    let (_, pid) = attempts(&cluster.scene, 1).remove(0);
    let lost = node_of(&cluster.scene, &id);
    cluster.kill_agent(lost);
    let (second, _) = attempts(&cluster.scene, 2).remove(1);
    assert!(is_alive(&pid));
    cluster.start_agent(lost);
    until_true("the end of the attempt that nobody owns", || !is_alive(&pid));
    cluster.scene.write(&format!("go-{second}"), "0\n");
    assert_eq!(cluster.scene.run(&["wait", &id]).code, 0);
    assert_eq!(attempts(&cluster.scene, 2).len(), 2);
}

#[test]
fn a_killed_executor_is_replaced_and_its_tasks_run_again() {
    let scene = Scene::dev(&[]);
    let id = scene.submit(&["--", "sh", "-c", ONE_BY_ONE]);
    let (_, pid) = attempts(&scene, 1).remove(0);
    let lock = scene.state().join("executor/executor.lock");
    let executor = std::fs::read_to_string(&lock).unwrap_or_else(|error| panic!("{}: {error}", lock.display()));
    // SAFETY: kill has no preconditions; the executor holds the lock and so still runs.
    unsafe { libc::kill(executor.trim().parse().unwrap(), libc::SIGKILL) };
    let (second, _) = attempts(&scene, 2).remove(1);
    until_true("the end of the orphan", || !is_alive(&pid));
    scene.write(&format!("go-{second}"), "0\n");
    assert_eq!(scene.run(&["wait", &id]).code, 0);
    let story = scene.story(&id);
    assert!(story.iter().any(|line| line.kind == "ended" && line.text.contains("tried again")), "{story:#?}");
    let retried = story.iter().find(|line| line.kind == "retried").unwrap();
    assert!(retried.text.contains("costs none of its retries"), "{retried:?}");
}

#[test]
fn agents_prove_themselves() {
    let cluster = Cluster::start(1, 1, "");
    let scene = &cluster.scene;
    let agents = cluster.agents_address();
    let refused = |name: &str, token: &str| {
        let mut command = scene.agent_command(&["--server", agents, "--name", name, "--work-dir"]);
        let home = scene.path().join(format!("refused-{name}"));
        scene.has_executor(&home);
        crate::support::result({
            command.arg(home).env("AMALGAM_TOKEN", token);
            command
        })
    };
    let stranger = refused("stranger", "wrong");
    assert!(stranger.code != 0 && stranger.err.contains("token"), "{stranger:?}");
    let user = scene.ok(&["token", "add", "grace"]);
    let user = refused("user", user.trim());
    assert!(user.code != 0 && user.err.contains("administrator"), "{user:?}");
    assert_eq!(scene.ok(&["node", "list", "-q"]).lines().count(), 1);
}

#[test]
fn an_agent_of_a_script_that_ignores_interrupts_ends_by_them_as_a_server_does() {
    let cluster = Cluster::start(0, 1, "");
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut command = cluster.agent_command(0);
        // SAFETY: signal is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGINT, libc::SIG_IGN);
                Ok(())
            });
        }
        let agent = Daemon::start(command).unwrap_or_else(|output| panic!("no agent: {output}"));
        // SAFETY: kill has no preconditions; the child has not been waited for.
        unsafe { libc::kill(agent.pid() as libc::pid_t, signal) };
        let (status, output) = agent.ended();
        assert_eq!(status.code(), Some(0), "{output}");
    }
}
